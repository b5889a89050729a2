//! Handlers of batches: what goes into one call, and what becomes of it.

use super::*;

/// A rig with a handler of batches, which takes up to so many events a call.
async fn rig(
    ordering: Ordering,
    size: usize,
    keys: &[Option<&str>],
    script: impl Fn(Position, Attempt) -> Act + Send + Sync + 'static,
) -> Rig {
    let mut rig = Rig::new(0, |_, _| Act::NotRun).await;
    rig.handler = ScriptedHandler::of_batches(script);
    rig.ordering = ordering;
    rig.concurrency = if ordering == Ordering::Total { 1 } else { 4 };
    rig.batch.size = Some(size);
    rig.publish_keys(keys).await;
    rig
}

fn sizes(calls: &[Vec<i64>]) -> Vec<usize> {
    calls.iter().map(Vec::len).collect()
}

#[tokio::test(start_paused = true)]
async fn many_events_go_into_one_call_in_order() {
    let rig = rig(Ordering::Total, 100, &[None; 250], |_, _| Act::Succeed).await;
    let _running = rig.start().await;
    rig.settled(250).await;
    assert_eq!(sizes(&rig.batch_calls()), [100, 100, 50]);
    assert_eq!(rig.batch_calls().concat(), (1..=250).collect::<Vec<_>>());
    assert!(rig.calls().is_empty());
    assert_eq!(rig.seen().await, (1..=250).collect::<Vec<_>>());
    assert_eq!(rig.count().await, 250);
}

#[tokio::test(start_paused = true)]
async fn without_a_size_a_hundred_events_go_into_one_call_or_as_many_as_are_settled() {
    for (max_events, expected) in [(1_000, [100, 50].as_slice()), (60, &[60, 60, 30])] {
        let mut rig = rig(Ordering::Total, 1, &[None; 150], |_, _| Act::Succeed).await;
        (rig.batch.size, rig.batch.max_events) = (None, max_events);
        let _running = rig.start().await;
        rig.settled(150).await;
        assert_eq!(sizes(&rig.batch_calls()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_single_events_gets_them_one_by_one_whatever_the_settings() {
    let mut rig = Rig::new(5, |_, _| Act::Succeed).await;
    rig.batch.size = Some(10);
    let _running = rig.start().await;
    rig.settled(5).await;
    assert!(rig.batch_calls().is_empty());
    assert_eq!(rig.calls().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_call_has_events_of_one_key() {
    let keys = [Some("a"), Some("b"), Some("a"), None, Some("b"), None, Some("a")];
    let rig = rig(Ordering::Key, 2, &keys, |_, _| Act::Succeed).await;
    let _running = rig.start().await;
    rig.all_over(7).await;
    let mut batch_calls = rig.batch_calls();
    batch_calls.sort_unstable();
    assert_eq!(batch_calls, [[1, 3], [2, 5]]);
    assert_eq!((rig.count_in("key:a").await, rig.count_in("key:b").await), (3, 2));
    assert_eq!(rig.store.state_key_count(&name()).await.unwrap(), 2, "none without a key");
}

#[tokio::test(start_paused = true)]
async fn one_failing_event_among_a_hundred_is_retried_alone_and_the_others_succeed() {
    for kind in [FailureKind::Retry, FailureKind::Trap] {
        for ordering in [Ordering::Total, Ordering::None] {
            let rig = rig(ordering, 100, &[None; 100], move |position, attempt| {
                if position == Position(50) && attempt.0 < 3 {
                    Act::Fail(kind)
                } else {
                    Act::Succeed
                }
            })
            .await;
            let _running = rig.start().await;
            rig.all_over(100).await;
            assert_eq!(sizes(&rig.batch_calls()), [100], "they go batch_calls again");
            let mut calls = rig.calls();
            calls.sort_unstable();
            let mut expected: Vec<_> = (1..=100).map(|position| (position, 1)).collect();
            expected.extend([(50, 2), (50, 3)]);
            expected.sort_unstable();
            assert_eq!(calls, expected);
            let mut seen = rig.seen().await;
            assert_eq!(seen.is_sorted(), ordering == Ordering::Total);
            seen.sort_unstable();
            assert_eq!(seen, (1..=100).collect::<Vec<_>>());
            assert!(rig.dead().await.is_empty());
            if ordering == Ordering::Total {
                assert_eq!(rig.count().await, 100);
            }
            // The call that failed counts as no attempt.
            let failures = rig.leadership(&rig.store).await.failures;
            assert_eq!(failures, FailureCounts::from([(kind.label().to_owned(), 2)]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_always_fails_becomes_a_dead_letter_alone() {
    let rig = rig(Ordering::Total, 10, &[None; 20], |position, _| {
        if position == Position(5) { Act::Fail(FailureKind::Reject) } else { Act::Succeed }
    })
    .await;
    let _running = rig.start().await;
    rig.settled(20).await;
    assert_eq!(rig.dead().await, [(5, 1, "reject".to_owned())]);
    assert_eq!(rig.batch_calls(), [(1..=10).collect::<Vec<_>>(), (11..=20).collect()]);
    assert_eq!(rig.count().await, 19);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_could_not_be_run_counts_for_nothing_and_is_made_again() {
    let left = AtomicU32::new(2);
    let rig = rig(Ordering::Total, 10, &[None; 10], move |position, _| {
        let fails = position == Position(3)
            && left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        if fails { Act::NotRun } else { Act::Succeed }
    })
    .await;
    let _running = rig.start().await;
    rig.settled(10).await;
    assert_eq!(sizes(&rig.batch_calls()), [10, 10, 10]);
    assert!(rig.calls().is_empty());
    assert_eq!((rig.seen().await.len(), rig.count().await), (10, 10));
}

#[tokio::test(start_paused = true)]
async fn a_crash_in_the_middle_of_a_call_repeats_the_whole_of_it() {
    let rig = rig(Ordering::Total, 10, &[None; 25], |position, _| {
        let time = if position.0 == 15 { 3_600 } else { 0 };
        Act::Take(Duration::from_secs(time), Box::new(Act::Succeed))
    })
    .await;
    let first = rig.start().await;
    rig.settled(10).await;
    drop(first);
    let _second = rig.start().await;
    rig.settled(25).await;
    let ten: Vec<i64> = (11..=20).collect();
    assert_eq!(rig.batch_calls()[1..3], [ten.clone(), ten]);
    assert_eq!((rig.seen().await.len(), rig.count().await), (25, 25));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_kills_the_process_ends_with_a_dead_letter_of_one_event() {
    let deaths = Arc::new(AtomicU32::new(0));
    let died = Arc::clone(&deaths);
    let mut rig = rig(Ordering::Total, 5, &[None; 12], move |position, _| {
        if position != Position(3) {
            return Act::Succeed;
        }
        died.fetch_add(1, SeqCst);
        Act::Hang
    })
    .await;
    rig.retry.max_attempts = 2;
    let mut running = rig.start().await;
    while rig.dead().await.is_empty() {
        let before = deaths.load(SeqCst);
        assert!(before < 10, "it dies for ever");
        let dies = async {
            while deaths.load(SeqCst) == before && rig.dead().await.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(MINUTE, dies).await.expect("neither dead nor given up");
        if rig.dead().await.is_empty() {
            drop(running);
            running = rig.start().await;
        }
    }
    rig.settled(12).await;
    assert_eq!(rig.dead().await, [(3, 2, "crash".to_owned())]);
    assert_eq!((rig.count().await, rig.seen().await.len()), (11, 11));
    assert_eq!(deaths.load(SeqCst), LEADERSHIPS_WITHOUT_PROGRESS + 2);
}

#[tokio::test(start_paused = true)]
async fn events_wait_for_others_to_come_and_hold_up_nothing_meanwhile() {
    for ordering in [Ordering::Total, Ordering::None] {
        let mut rig = rig(ordering, 4, &[], |_, _| Act::Succeed).await;
        rig.batch.wait = Duration::from_millis(200);
        let _running = rig.start().await;
        let mut last = 0;
        // Enough at once, and then too few.
        for (publish, waits) in [(4, false), (3, true), (1, true), (8, false)] {
            let began = Instant::now();
            rig.publish(publish).await;
            last += i64::try_from(publish).unwrap();
            let before = last;
            rig.settled(before).await;
            let took = began.elapsed();
            assert_eq!(took >= rig.batch.wait, waits, "{publish}: {took:?}, {ordering:?}");
            assert!(took < Duration::from_millis(400), "{publish}: {took:?}, {ordering:?}");
            // What was emitted.
            last += i64::try_from(publish).unwrap();
        }
        assert_eq!(sizes(&rig.batch_calls()), [4, 3, 4, 4], "{ordering:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_take_long_have_as_many_events_as_others() {
    for ordering in [Ordering::Total, Ordering::None] {
        let rig = rig(ordering, 100, &[None; 4_000], |_, _| {
            Act::Take(Duration::from_millis(50), Box::new(Act::Succeed))
        })
        .await;
        let _running = rig.start().await;
        rig.all_over(4_000).await;
        assert_eq!(sizes(&rig.batch_calls()), [100; 40], "{ordering:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_others_to_come() {
    let mut rig = rig(Ordering::Total, 10, &[None; 3], |_, _| Act::Succeed).await;
    (rig.batch.wait, rig.batch.max_time) = (MINUTE, MINUTE);
    let mut running = rig.start().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    running.stop.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(1), &mut running.task).await;
    assert_eq!(ended.expect("it waits").unwrap(), End::Stopped);
    assert!(rig.batch_calls().is_empty() && rig.calls().is_empty());
    let _next = rig.start().await;
    rig.settled(3).await;
    assert_eq!(rig.batch_calls(), [[1, 2, 3]]);
}

#[tokio::test(start_paused = true)]
async fn a_call_beyond_a_ceiling_of_the_state_is_taken_apart() {
    // `count` takes seven bytes in each key's state.
    let keys = [Some("a"), Some("a"), Some("b"), Some("b")];
    let mut rig = rig(Ordering::Key, 2, &keys, |_, _| Act::Succeed).await;
    (rig.concurrency, rig.retry.max_attempts) = (1, 1);
    let quota = TenantQuota { state_bytes: Some(10), ..TenantQuota::default() };
    rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
    let _running = rig.start().await;
    rig.all_over(4).await;
    assert_eq!(rig.batch_calls(), [[1, 2], [3, 4]]);
    assert_eq!(rig.calls(), [(3, 1), (4, 1)]);
    let dead: Vec<_> = rig.dead().await.into_iter().map(|dead| (dead.0, dead.2)).collect();
    let refused = || "state-limit".to_owned();
    assert_eq!(dead, [(3, refused()), (4, refused())]);
    assert_eq!((rig.count_in("key:a").await, rig.count_in("key:b").await), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn each_event_of_a_call_counts_against_the_attempts_a_second() {
    let rig = rig(Ordering::Total, 10, &[None; 40], |_, _| Act::Succeed).await;
    let quota = TenantQuota { events_per_second: Some(10.0), ..TenantQuota::default() };
    rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
    let _running = rig.start().await;
    rig.settled(40).await;
    let took = rig.began.elapsed();
    // A second of them is there at the beginning.
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(5), "{took:?}");
    assert_eq!(sizes(&rig.batch_calls()), [10; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_takes_batches_takes_over_from_one_that_does_not_and_back() {
    let rig = Rig::new(2, |_, _| Act::Succeed).await;
    let running = rig.start().await;
    rig.settled(2).await;
    let batches = ScriptedHandler::of_batches(|_, _| Act::Succeed);
    running.replace(&batches);
    tokio::time::sleep(Duration::from_millis(100)).await;
    rig.publish(3).await;
    rig.settled(7).await;
    assert_eq!(*batches.0.batch_calls.borrow(), [[5, 6, 7]]);
    let single = ScriptedHandler::new(|_, _| Act::Succeed);
    running.replace(&single);
    tokio::time::sleep(Duration::from_millis(100)).await;
    rig.publish(2).await;
    rig.settled(12).await;
    assert_eq!(*single.0.calls.borrow(), [(11, 1), (12, 1)]);
}
