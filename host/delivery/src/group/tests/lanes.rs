//! Order by key and no order: what runs beside what, what is parked, and what the
//! cursor passes. And what is handled while something else settles.

use super::*;

/// A rig whose events have these keys.
async fn rig(
    ordering: Ordering,
    concurrency: usize,
    keys: &[Option<&str>],
    script: impl Fn(Position, Attempt) -> Act + Send + Sync + 'static,
) -> Rig {
    let mut rig = Rig::new(0, script).await;
    (rig.ordering, rig.concurrency) = (ordering, concurrency);
    rig.publish_keys(keys).await;
    rig
}

fn takes(seconds: u64) -> Act {
    Act::Take(Duration::from_secs(seconds), Box::new(Act::Succeed))
}

/// When an event was first called, by the position.
fn order(rig: &Rig) -> Vec<i64> {
    rig.calls().iter().map(|call| call.0).collect()
}

#[tokio::test(start_paused = true)]
async fn keys_run_beside_each_other_and_each_in_order() {
    let keys = [Some("a"), Some("a"), Some("b"), None, Some("b"), None];
    let rig = rig(Ordering::Key, 16, &keys, |_, _| takes(1)).await;
    let _running = rig.start().await;
    rig.all_over(6).await;
    // Four at once, then the second of each key.
    assert_eq!(order(&rig)[..4], [1, 3, 4, 6]);
    assert_eq!(order(&rig)[4..], [2, 5]);
    assert!(rig.began.elapsed() < Duration::from_millis(2_200), "{:?}", rig.began.elapsed());
    assert_eq!((rig.count_in("key:a").await, rig.count_in("key:b").await), (2, 2));
    assert_eq!(rig.store.state_key_count(&name()).await.unwrap(), 2, "none without a key");
}

#[tokio::test(start_paused = true)]
async fn no_more_attempts_are_made_at_once_than_may_be() {
    let rig = rig(Ordering::None, 4, &[None; 20], |_, _| takes(1)).await;
    let _running = rig.start().await;
    rig.all_over(20).await;
    let elapsed = rig.began.elapsed();
    assert!(elapsed >= Duration::from_secs(5) && elapsed < Duration::from_millis(5_500));
}

#[tokio::test(start_paused = true)]
async fn a_failing_event_parks_its_key_and_all_others_flow() {
    let keys = [Some("a"), Some("b"), Some("a"), Some("b"), Some("a")];
    let rig = rig(Ordering::Key, 4, &keys, |position, attempt| {
        if position == Position(1) && attempt.0 < 4 {
            Act::Fail(FailureKind::Trap)
        } else {
            Act::Succeed
        }
    })
    .await;
    let _running = rig.start().await;
    rig.until(|_, cursor, _| cursor == Position(5)).await;
    // The first failed, and its key waits behind it.
    assert!(rig.began.elapsed() < Duration::from_millis(700), "{:?}", rig.began.elapsed());
    assert_eq!(rig.parked().await, [(1, 2), (3, 1), (5, 1)]);
    assert_eq!(rig.seen().await, [2, 4]);
    // Behind what was emitted.
    rig.publish_keys(&[Some("a"), Some("b")]).await;
    rig.all_over(9).await;
    let of_key_a: Vec<i64> = order(&rig).into_iter().filter(|p| [1, 3, 5, 8].contains(p)).collect();
    assert_eq!(of_key_a, [1, 1, 1, 1, 3, 5, 8]);
    assert_eq!(rig.count_in("key:a").await, 4);
    assert!(rig.dead().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_event_of_a_parked_key_that_is_given_up_lets_the_next_one_run() {
    let rig = rig(Ordering::Key, 4, &[Some("a"), Some("a")], |position, _| {
        if position == Position(1) { Act::Fail(FailureKind::Trap) } else { Act::Succeed }
    })
    .await;
    let _running = rig.start().await;
    rig.all_over(2).await;
    assert_eq!(rig.dead().await, [(1, 5, "trap".to_owned())]);
    assert_eq!(rig.seen().await, [2]);
}

#[tokio::test(start_paused = true)]
async fn without_order_a_failing_event_is_parked_alone() {
    let rig = rig(Ordering::None, 2, &[Some("a"); 4], |position, attempt| {
        if position == Position(1) && attempt.0 < 3 {
            Act::Fail(FailureKind::Trap)
        } else {
            Act::Succeed
        }
    })
    .await;
    let _running = rig.start().await;
    rig.until(|_, cursor, _| cursor == Position(4)).await;
    assert_eq!(rig.parked().await, [(1, 2)]);
    rig.all_over(4).await;
    assert_eq!(rig.calls().iter().filter(|call| call.0 == 1).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_parked_survives_a_new_leader_with_its_attempts_and_its_time() {
    let rig = rig(Ordering::Key, 4, &[Some("a"), Some("a"), Some("b")], |position, attempt| {
        if position == Position(1) && attempt.0 < 3 {
            Act::Fail(FailureKind::Trap)
        } else {
            Act::Succeed
        }
    })
    .await;
    let first = rig.start().await;
    while rig.parked().await != [(1, 3), (2, 1)] {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(first);
    let _second = rig.start().await;
    rig.all_over(3).await;
    let calls: Vec<_> = rig.calls().into_iter().filter(|call| call.0 != 3).collect();
    assert_eq!(calls, [(1, 1), (1, 2), (1, 3), (2, 1)]);
    assert!(rig.began.elapsed() >= Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn the_cursor_passes_an_event_that_takes_long_and_it_is_settled_once() {
    let keys = [Some("slow"), Some("b"), Some("c"), Some("slow")];
    let rig = rig(Ordering::Key, 4, &keys, |position, _| {
        if position == Position(1) { takes(60) } else { Act::Succeed }
    })
    .await;
    let _running = rig.start().await;
    rig.until(|_, cursor, _| cursor >= Position(3)).await;
    assert!(rig.began.elapsed() < Duration::from_secs(1), "{:?}", rig.began.elapsed());
    assert_eq!(rig.seen().await, [2, 3]);
    assert_eq!(rig.parked().await[0], (1, 1));
    rig.all_over(4).await;
    assert_eq!(rig.calls().iter().filter(|call| call.0 == 1).count(), 1);
    assert_eq!(rig.count_in("key:slow").await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_crash_of_an_event_that_was_passed_while_it_ran_brings_it_again() {
    let rig = rig(Ordering::None, 4, &[None; 3], |position, _| {
        if position == Position(1) { takes(60) } else { Act::Succeed }
    })
    .await;
    let first = rig.start().await;
    rig.until(|_, cursor, _| cursor == Position(3)).await;
    drop(first);
    let _second = rig.start().await;
    rig.all_over(3).await;
    assert_eq!(rig.calls().iter().filter(|call| **call == (1, 1)).count(), 2);
    assert_eq!(rig.seen().await, [2, 3, 1]);
}

#[tokio::test(start_paused = true)]
async fn as_many_are_parked_as_may_be_and_then_the_group_holds_back_and_says_so() {
    let mut rig = rig(Ordering::None, 4, &[None; 12], |position, attempt| {
        if position.0 <= 6 && attempt.0 < 4 { Act::Fail(FailureKind::Trap) } else { Act::Succeed }
    })
    .await;
    (rig.max_parked, rig.batch.max_events) = (3, 1);
    let _running = rig.start().await;
    while rig.parked().await.len() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(600)).await;
    let status = rig.store.another_host().group_status(&name()).await.unwrap();
    // What was read when the third was parked is parked too, and nothing more is read.
    assert!((3..=6).contains(&status.parked), "{}", status.parked);
    assert_eq!(status.position, Position(status.parked));
    let remark = status.note.unwrap();
    assert!(remark.contains("3 events or more") && remark.contains("`max_parked`"), "{remark}");
    rig.all_over(12).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.store.another_host().group_status(&name()).await.unwrap().note, None);
    let mut seen = rig.seen().await;
    seen.sort_unstable();
    assert_eq!(seen, (1..=12).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn redeliveries_and_the_log_do_not_starve_each_other() {
    // Twenty events fail as long as they may, each attempt for ten seconds; the log
    // brings a hundred more that take one.
    let mut rig = rig(Ordering::None, 4, &[None; 20], |position, attempt| {
        if position.0 <= 20 && attempt.0 > 1 {
            Act::Take(Duration::from_secs(10), Box::new(Act::Fail(FailureKind::Trap)))
        } else if position.0 <= 20 {
            Act::Fail(FailureKind::Trap)
        } else {
            takes(1)
        }
    })
    .await;
    rig.retry.max_attempts = 50;
    rig.retry.max = Duration::from_secs(1);
    let _running = rig.start().await;
    rig.until(|_, cursor, _| cursor == Position(20)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let calls = rig.calls().len();
    rig.publish(100).await;
    let began = Instant::now();
    rig.until(|_, cursor, _| cursor >= Position(120)).await;
    // Half of the room is enough for two a second.
    assert!(began.elapsed() < Duration::from_secs(75), "{:?}", began.elapsed());
    let redelivered = rig.calls()[calls..].iter().filter(|call| call.0 <= 20).count();
    assert!(redelivered >= 6, "{redelivered} redeliveries in {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_version_with_another_ordering_goes_on_with_what_is_parked() {
    for ordering in [Ordering::Total, Ordering::None, Ordering::Key] {
        let mut rig =
            rig(Ordering::Key, 4, &[Some("a"), Some("a"), Some("b")], |position, attempt| {
                if position == Position(1) && attempt.0 < 3 {
                    Act::Fail(FailureKind::Trap)
                } else {
                    Act::Succeed
                }
            })
            .await;
        let mut first = rig.start().await;
        rig.until(|_, cursor, _| cursor == Position(3)).await;
        first.stop.cancel();
        assert_eq!((&mut first.task).await.unwrap(), End::Stopped);
        (rig.ordering, rig.concurrency) =
            (ordering, if ordering == Ordering::Total { 1 } else { 4 });
        // Behind what was emitted.
        rig.publish(2).await;
        let _second = rig.start().await;
        rig.all_over(6).await;
        let mut seen = rig.seen().await;
        if ordering == Ordering::Total {
            assert_eq!(seen[1..], [1, 2, 5, 6], "parked events come first, in their order");
        }
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 3, 5, 6], "{ordering:?}");
        assert_eq!(rig.calls().iter().filter(|call| call.0 == 1).count(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_a_total_order_is_gone_on_with_in_another() {
    let mut rig =
        rig(Ordering::Total, 1, &[Some("a"), Some("a"), Some("b")], |position, attempt| {
            if position == Position(1) && attempt.0 < 3 {
                Act::Fail(FailureKind::Trap)
            } else {
                Act::Succeed
            }
        })
        .await;
    let first = rig.start().await;
    rig.until(|_, _, head| head.is_some_and(|head| head.attempt == Attempt(3))).await;
    drop(first);
    (rig.ordering, rig.concurrency) = (Ordering::Key, 4);
    let _second = rig.start().await;
    rig.until(|_, cursor, _| cursor == Position(3)).await;
    assert_eq!(rig.parked().await, [(1, 3), (2, 1)]);
    rig.all_over(3).await;
    assert_eq!(rig.seen().await, [3, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn the_next_events_are_handled_while_the_last_ones_settle() {
    let rig = Rig::new(2_500, |_, _| Act::Succeed).await;
    rig.store.fail(Operation::SETTLE, Fault::Slow(MINUTE), 1);
    let _running = rig.start().await;
    rig.asked(Operation::SETTLE).await;
    rig.called(2_000).await;
    assert!(rig.began.elapsed() < MINUTE, "{:?}", rig.began.elapsed());
    assert_eq!(rig.store.calls(Operation::SETTLE), 1, "two settlements at once");
    rig.settled(2_500).await;
    assert_eq!(rig.seen().await, (1..=2_500).collect::<Vec<_>>());
    assert_eq!(rig.count().await, 2_500);
}

#[tokio::test(start_paused = true)]
async fn after_a_settlement_that_failed_nothing_begins_and_nothing_later_is_committed() {
    let rig =
        Rig::new(2_500, |_, _| Act::Take(Duration::from_millis(1), Box::new(Act::Succeed))).await;
    rig.store.fail(Operation::SETTLE, Fault::Before, 6);
    rig.store.fail(Operation::CURSOR, Fault::Before, 100);
    let _running = rig.start().await;
    rig.asked(Operation::SETTLE).await;
    let handled = rig.calls().len();
    tokio::time::sleep(MINUTE).await;
    // At most what was under way.
    assert!(rig.calls().len() <= handled + 2, "{} after {handled}", rig.calls().len());
    assert!(rig.seen().await.is_empty());
    rig.store.heal();
    rig.settled(2_500).await;
    assert_eq!(rig.seen().await, (1..=2_500).collect::<Vec<_>>());
    assert_eq!(rig.calls().len(), 2_500);
}

#[tokio::test(start_paused = true)]
async fn a_version_takes_over_once_everything_is_settled_and_parked() {
    let keys = [Some("a"), Some("a"), Some("b"), Some("c")];
    let rig = rig(Ordering::Key, 4, &keys, |position, _| match position.0 {
        1 => Act::Fail(FailureKind::Trap),
        3 => takes(10),
        _ => Act::Succeed,
    })
    .await;
    let running = rig.start().await;
    rig.called(3).await;
    let next = ScriptedHandler::new(|_, _| Act::Succeed);
    running.replace(&next);
    rig.all_over(4).await;
    assert_eq!(rig.calls().iter().filter(|call| call.0 == 3).count(), 1, "half of each version");
    assert_eq!(*next.0.calls.borrow(), [(1, 2), (2, 1)]);
}

#[tokio::test(start_paused = true)]
async fn what_becomes_due_between_two_looks_is_seen() {
    for ordering in [Ordering::Total, Ordering::Key] {
        for tick in 1..30 {
            let mut rig = rig(ordering, 1, &[Some("a")], |_, attempt| {
                if attempt.0 < 3 { Act::Fail(FailureKind::Retry) } else { Act::Succeed }
            })
            .await;
            rig.tick = Duration::from_millis(tick);
            rig.retry.initial = Duration::from_millis(20);
            let _running = rig.start().await;
            rig.all_over(1).await;
            assert!(rig.began.elapsed() < Duration::from_secs(1), "{ordering:?}, {tick} ms");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_done_is_settled_though_all_attempts_that_follow_take_long() {
    for ordering in [Ordering::Key, Ordering::Total] {
        let concurrency = if ordering == Ordering::Total { 1 } else { 2 };
        let rig = rig(ordering, concurrency, &[None; 5], |position, _| {
            if position == Position(1) { Act::Succeed } else { takes(3_600) }
        })
        .await;
        let _running = rig.start().await;
        rig.until(|_, cursor, _| cursor >= Position(1)).await;
        assert!(rig.began.elapsed() < Duration::from_secs(1), "{:?}", rig.began.elapsed());
    }
}

/// What was counted before a settlement, and answered after it, must not pass for
/// what is kept.
#[tokio::test(start_paused = true)]
async fn a_settlement_that_comes_in_between_lets_nobody_beyond_a_ceiling() {
    for operation in [Operation::TENANT_DEAD_LETTERS, Operation::TENANT_STATE_BYTES] {
        let of_letters = operation == Operation::TENANT_DEAD_LETTERS;
        let keys = [Some("a"), Some("b"), Some("c"), Some("d"), Some("e")];
        let rig = rig(Ordering::Key, 2, &keys, move |position, _| {
            let act = || if of_letters { Act::Fail(FailureKind::Reject) } else { Act::Succeed };
            match position.0 {
                1 => act(),
                2 => Act::Take(Duration::from_millis(100), Box::new(act())),
                _ => takes(3_600),
            }
        })
        .await;
        let quota = TenantQuota {
            dead_letters: Some(1),
            state_bytes: (!of_letters).then_some(10),
            ..TenantQuota::default()
        };
        rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
        let _running = rig.start().await;
        rig.called(3).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        rig.store.fail(operation, Fault::Slow(MINUTE), 1);
        tokio::time::sleep(2 * MINUTE).await;
        assert_eq!(rig.store.faults_left(operation), 0);
        if of_letters {
            assert_eq!(rig.dead().await.len(), 1);
        } else {
            assert_eq!((rig.count_in("key:a").await, rig.count_in("key:b").await), (1, 0));
        }
    }
}

/// With `max_parked` reached, what is written behind events that are parked is settled
/// all the same when somebody waits for that.
#[tokio::test(start_paused = true)]
async fn a_group_that_is_held_back_near_a_ceiling_goes_on() {
    for suspect in [false, true] {
        let crashes = AtomicU32::new(if suspect { 2 } else { 0 });
        let mut rig = rig(
            Ordering::Key,
            1,
            &[Some("a"), Some("b"), Some("c"), Some("d")],
            move |position, _| {
                let crash = |left: u32| left.checked_sub(1);
                if crashes.fetch_update(SeqCst, SeqCst, crash).is_ok() {
                    Act::Hang
                } else if position.0 <= 2 {
                    Act::Fail(FailureKind::Trap)
                } else {
                    Act::Succeed
                }
            },
        )
        .await;
        rig.max_parked = 1;
        // `count` takes seven bytes: room for that of one key.
        let quota = TenantQuota { state_bytes: Some(10), ..TenantQuota::default() };
        rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
        if suspect {
            for calls in 1..=2 {
                let running = rig.start().await;
                rig.called(calls).await;
                drop(running);
            }
        }
        let _running = rig.start().await;
        rig.all_over(4).await;
        assert_eq!(rig.seen().await, [3]);
        let dead: BTreeMap<i64, String> =
            rig.dead().await.into_iter().map(|dead| (dead.0, dead.2)).collect();
        let trap = || "trap".to_owned();
        assert_eq!(dead, [(1, trap()), (2, trap()), (4, "state-limit".to_owned())].into());
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_emitted_is_bounded_while_a_settlement_takes_long() {
    let rig = rig(Ordering::None, 4, &[None; 400], |_, _| {
        Act::Take(Duration::from_millis(1), Box::new(Act::Emit(1 << 20)))
    })
    .await;
    rig.store.fail(Operation::SETTLE, Fault::Slow(MINUTE), 1);
    let _running = rig.start().await;
    rig.asked(Operation::SETTLE).await;
    tokio::time::sleep(MINUTE / 2).await;
    // What is on its way, as much again, and what was under way.
    let calls = rig.calls().len();
    assert!(calls <= 2 * (BATCH_BYTES >> 20) + 2 * 4, "{calls} MiB are held");
    rig.all_over(400).await;
    assert_eq!(rig.calls().len(), 400);
}

#[tokio::test(start_paused = true)]
async fn the_parked_events_of_a_key_follow_each_other_without_a_wait_while_others_are_busy() {
    let keys: Vec<Option<&str>> =
        (1..=1_000).map(|position| (position <= 41).then_some("a")).collect();
    let rig = rig(Ordering::Key, 4, &keys, |position, attempt| {
        if position == Position(1) && attempt.0 == 1 {
            Act::Fail(FailureKind::Trap)
        } else {
            Act::Take(Duration::from_millis(10), Box::new(Act::Succeed))
        }
    })
    .await;
    let _running = rig.start().await;
    let mut calls = rig.handler.0.calls.subscribe();
    let last = calls.wait_for(|calls| calls.contains(&(41, 1)));
    tokio::time::timeout(DAY, last).await.expect("never called").unwrap();
    // A second for the retry, and forty events of 10 ms.
    assert!(rig.began.elapsed() < Duration::from_millis(1_700), "{:?}", rig.began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_the_cursor_passed_while_it_ran_takes_no_room_of_the_redeliveries() {
    // Two events run for an hour, and the log never ends.
    let rig = rig(Ordering::None, 4, &[None; 1_000], |position, attempt| match position.0 {
        1 | 2 => takes(3_600),
        3 if attempt.0 < 4 => Act::Fail(FailureKind::Trap),
        _ => takes(1),
    })
    .await;
    let _running = rig.start().await;
    tokio::time::sleep(MINUTE).await;
    let calls = rig.calls();
    assert!(calls.contains(&(3, 4)), "starved by {} others", calls.len());
}

#[tokio::test(start_paused = true)]
async fn the_attempts_of_an_event_are_recorded_though_one_before_it_runs_on() {
    let rig = rig(Ordering::Key, 2, &[Some("a"), Some("b")], |position, attempt| {
        if position == Position(1) {
            takes(3_600)
        } else if attempt.0 < 3 {
            Act::Fail(FailureKind::Trap)
        } else {
            Act::Hang
        }
    })
    .await;
    let first = rig.start().await;
    rig.called(4).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.parked().await, [(1, 1), (2, 3)]);
    drop(first);
    let _second = rig.start().await;
    rig.called(6).await;
    let calls: Vec<_> = rig.calls().into_iter().filter(|call| call.0 == 2).collect();
    assert_eq!(calls, [(2, 1), (2, 2), (2, 3), (2, 3)]);
}

#[tokio::test(start_paused = true)]
async fn no_more_dead_letters_are_kept_than_may_be_however_many_are_made_at_once() {
    let rig = rig(Ordering::None, 4, &[None; 12], |_, _| Act::Fail(FailureKind::Reject)).await;
    let quota = TenantQuota { dead_letters: Some(6), ..TenantQuota::default() };
    rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
    let _running = rig.start().await;
    let status = || async { rig.store.another_host().group_status(&name()).await.unwrap() };
    while status().await.state != GroupState::Paused {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(MINUTE).await;
    assert_eq!(rig.dead().await.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_on_its_way_does_not_count_twice() {
    let rig = rig(Ordering::Total, 1, &[None; 2], |position, _| {
        let time = Duration::from_secs(if position == Position(1) { 0 } else { 2 });
        Act::Take(time, Box::new(Act::Fail(FailureKind::Reject)))
    })
    .await;
    let quota = TenantQuota { dead_letters: Some(2), ..TenantQuota::default() };
    rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
    // It is committed at once, and the leader learns of it after a minute.
    rig.store.fail(Operation::SETTLE, Fault::Slow(MINUTE), 1);
    let _running = rig.start().await;
    rig.until(|_, cursor, _| cursor >= Position(2)).await;
    let status = rig.store.another_host().group_status(&name()).await.unwrap();
    assert_eq!((rig.dead().await.len(), status.state), (2, GroupState::Running));
    assert_eq!(rig.calls(), [(1, 1), (2, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_permit_that_an_attempt_waits_for() {
    let rig = rig(Ordering::None, 4, &[None; 8], |_, _| Act::Succeed).await;
    let quota = TenantQuota { events_per_second: Some(0.001), ..TenantQuota::default() };
    rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
    let mut running = rig.start().await;
    rig.until(|_, cursor, _| cursor >= Position(1)).await;
    running.stop.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(1), &mut running.task).await;
    assert_eq!(ended.expect("it waits").unwrap(), End::Stopped);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_passed_while_it_runs_keeps_its_key_for_another_ordering() {
    let rig = rig(Ordering::None, 2, &[Some("a"), None], |position, _| {
        if position == Position(1) { takes(60) } else { Act::Succeed }
    })
    .await;
    let _running = rig.start().await;
    rig.until(|_, cursor, _| cursor >= Position(2)).await;
    let parked = rig.store.another_host().redeliveries(&name()).await.unwrap();
    assert_eq!(parked[0].key.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn a_group_is_careful_for_as_many_events_as_may_have_been_under_way_and_no_longer() {
    let hangs = AtomicU32::new(2);
    let mut rig = Rig::new(30, move |_, _| {
        let hangs = hangs.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        if hangs { Act::Hang } else { Act::Succeed }
    })
    .await;
    rig.batch.max_events = 2;
    for calls in 1..=LEADERSHIPS_WITHOUT_PROGRESS as usize {
        let running = rig.start().await;
        rig.called(calls).await;
        drop(running);
    }
    let _third = rig.start().await;
    rig.settled(30).await;
    // Three batches that were read, one that settled, one read ahead, and one attempt.
    assert_eq!(rig.store.calls(Operation::RECORD_ATTEMPT_STARTED), 2 * 5 + 1);
}

#[tokio::test(start_paused = true)]
async fn each_death_in_a_marked_attempt_counts_though_others_were_settled_between() {
    let hangs = AtomicU32::new(2);
    let mut rig = Rig::new(2, move |position, _| {
        let first_hangs = position == Position(1)
            && hangs.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        if first_hangs || position == Position(2) { Act::Hang } else { Act::Succeed }
    })
    .await;
    rig.retry.max_attempts = 3;
    let mut deaths = 0;
    while rig.dead().await.is_empty() {
        let running = rig.start().await;
        let before = rig.calls().len();
        let stuck = async {
            let first_hangs = deaths < LEADERSHIPS_WITHOUT_PROGRESS;
            let hangs = |call: &(i64, u32)| call.0 == 2 || first_hangs;
            while !rig.calls()[before..].iter().any(hangs) && rig.dead().await.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(MINUTE, stuck).await.expect("neither stuck nor given up");
        drop(running);
        deaths += u32::from(rig.dead().await.is_empty());
    }
    assert_eq!(rig.dead().await, [(2, 3, "crash".to_owned())]);
    assert_eq!(deaths, LEADERSHIPS_WITHOUT_PROGRESS + 3);
}

/// Parked events are at hand while what the log brings behind them is being settled:
/// the leader must not wait for anything else then.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_first_settlement_comes_before_its_first_attempt_goes_on() {
    let rig = rig(Ordering::Key, 4, &[Some("a")], |_, attempt| {
        if attempt.0 == 1 { Act::Fail(FailureKind::Trap) } else { Act::Succeed }
    })
    .await;
    rig.store.fail(Operation::FETCH_AT, Fault::Before, 1_000);
    let first = rig.start().await;
    rig.until(|_, cursor, _| cursor == Position(1)).await;
    drop(first);
    rig.store.heal();
    rig.publish_keys(&[Some("a"), Some("a")]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let begun = rig.store.calls(Operation::RECORD_WORK_STARTED);
    rig.store.fail(Operation::FETCH_AT, Fault::Slow(Duration::from_secs(1)), 1);
    rig.store.fail(Operation::SETTLE, Fault::Slow(MINUTE), 1);
    let running = rig.start().await;
    rig.until(|_, cursor, _| cursor == Position(3)).await;
    tokio::time::sleep(MINUTE / 2).await;
    assert_eq!(rig.store.calls(Operation::RECORD_WORK_STARTED), begun);
    rig.all_over(3).await;
    assert!(!running.task.is_finished());
}

/// A parked event is at hand before the log is read, and the permit is long in coming:
/// a tenant whose rate is used up must not keep others from the database meanwhile.
#[tokio::test(start_paused = true)]
async fn a_read_goes_on_while_its_leader_waits_for_a_permit() {
    let mut rig = rig(Ordering::Key, 1, &[Some("a")], |_, attempt| {
        if attempt.0 == 1 { Act::Fail(FailureKind::Trap) } else { Act::Succeed }
    })
    .await;
    rig.executor = FairExecutor::on_this_runtime(Arc::new(Admission::new(Some(1))));
    rig.store.fail(Operation::FETCH_AT, Fault::Before, 1_000);
    let first = rig.start().await;
    rig.until(|_, cursor, _| cursor == Position(1)).await;
    drop(first);
    rig.store.heal();
    rig.publish_keys(&[Some("b")]).await;
    let other = rig.executor.admission().register(&"other".parse().unwrap(), demand());
    let mut held = other.permit();
    tokio::time::timeout(MINUTE, held.ready(None)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let reads = rig.store.calls(Operation::FETCH);
    rig.store.fail(Operation::FETCH_AT, Fault::Slow(Duration::from_millis(100)), 1);
    rig.store.fail(Operation::FETCH, Fault::Slow(Duration::from_secs(1)), 1);
    let _running = rig.start().await;
    tokio::time::sleep(MINUTE).await;
    assert!(rig.store.calls(Operation::FETCH) > reads, "nothing is read: this shows nothing");
    let permit = tokio::time::timeout(MINUTE, other.acquire_read(1)).await;
    assert!(permit.is_ok(), "a read that does not go on holds the permit");
    drop(held);
    rig.all_over(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_settlement_goes_on_while_its_leader_says_that_it_holds_back() {
    let mut rig = rig(Ordering::None, 4, &[None; 60], |_, _| Act::Fail(FailureKind::Trap)).await;
    (rig.max_parked, rig.retry.initial, rig.retry.max) = (1, 60 * MINUTE, 60 * MINUTE);
    rig.batch.max_events = 1;
    rig.store.fail(Operation::SET_NOTE, Fault::Slow(60 * MINUTE), 1);
    let _running = rig.start().await;
    let settled = rig.until(|_, cursor, _| cursor >= Position(1));
    assert!(tokio::time::timeout(MINUTE, settled).await.is_ok(), "it waits for the remark");
    assert_eq!(rig.store.calls(Operation::SET_NOTE), 1);
}
