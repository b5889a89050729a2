//! What every group does: handle in order, retry, stop, pause and hand over.

use super::*;

#[tokio::test(start_paused = true)]
async fn events_are_handled_in_order_and_settled() {
    let rig = Rig::new(5, |_, _| Act::Succeed).await;
    let _running = rig.start().await;
    rig.settled(5).await;
    assert_eq!(rig.calls(), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]);
    assert_eq!(rig.seen().await, [1, 2, 3, 4, 5]);
    assert_eq!(rig.count().await, 5);
}

#[tokio::test(start_paused = true)]
async fn a_failing_event_is_retried_with_backoff_then_dead_lettered_and_later_events_flow() {
    let rig = Rig::new(3, |position, _| {
        if position == Position(2) { Act::Fail(FailureKind::Trap) } else { Act::Succeed }
    })
    .await;
    let _running = rig.start().await;
    rig.settled(3).await;
    // 1 + 2 + 4 + 8 seconds lie between five attempts.
    assert!(rig.began.elapsed() >= Duration::from_secs(15));
    assert!(rig.began.elapsed() < Duration::from_secs(16));
    assert_eq!(rig.calls(), [(1, 1), (2, 1), (2, 2), (2, 3), (2, 4), (2, 5), (3, 1)]);
    assert_eq!(rig.seen().await, [1, 3]);
    assert_eq!(rig.count().await, 2);
    assert_eq!(rig.dead().await, [(2, 5, "trap".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_was_paused_before_it_is_led_handles_nothing_until_it_is_resumed() {
    let mut rig = Rig::new(3, |_, _| Act::Succeed).await;
    rig.tells_after = Duration::from_secs(10);
    rig.store.pause(&name(), "for now").await.unwrap();
    let _running = rig.start().await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(rig.calls(), []);
    rig.store.resume(&name()).await.unwrap();
    rig.settled(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_not_paused_is_led_before_its_row_is_looked_at() {
    let mut rig = Rig::new(3, |_, _| Act::Succeed).await;
    rig.tells_after = DAY;
    let _running = rig.start().await;
    rig.settled(3).await;
    assert!(rig.began.elapsed() < MINUTE);
}

#[tokio::test(start_paused = true)]
async fn a_reject_is_a_dead_letter_at_once() {
    let rig = Rig::new(2, |position, _| {
        if position == Position(1) { Act::Fail(FailureKind::Reject) } else { Act::Succeed }
    })
    .await;
    let _running = rig.start().await;
    rig.settled(2).await;
    assert_eq!(rig.calls(), [(1, 1), (2, 1)]);
    assert_eq!(rig.dead().await, [(1, 1, "reject".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_is_pending_survives_a_new_leader() {
    let rig = Rig::new(
        1,
        |_, attempt| {
            if attempt.0 < 3 { Act::Fail(FailureKind::Retry) } else { Act::Succeed }
        },
    )
    .await;
    let first = rig.start().await;
    rig.until(|_, _, head| head.is_some_and(|head| head.attempt == Attempt(3))).await;
    drop(first);
    let _second = rig.start().await;
    rig.settled(1).await;
    assert_eq!(rig.calls(), [(1, 1), (1, 2), (1, 3)]);
    assert!(rig.began.elapsed() >= Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_the_handlers_fault_counts_no_attempt() {
    let times = Mutex::new(0);
    let rig = Rig::new(2, move |position, _| {
        let mut times = times.lock().unwrap();
        *times += 1;
        if position == Position(2) && *times < 30 { Act::NotRun } else { Act::Succeed }
    })
    .await;
    let _running = rig.start().await;
    rig.settled(2).await;
    assert!(rig.calls().iter().all(|(_, attempt)| *attempt == 1));
    assert_eq!(rig.seen().await, [1, 2]);
    assert!(rig.dead().await.is_empty());
    // 28 delays, which double from 50 ms to 5 s.
    assert!(rig.began.elapsed() >= Duration::from_secs(60), "{:?}", rig.began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_marked_attempt_that_could_not_be_run_is_not_counted_by_a_later_crash() {
    let away = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&away);
    let rig =
        Rig::new(1, move |_, _| if gone.load(SeqCst) { Act::NotRun } else { Act::Hang }).await;
    // Two crashes make the group suspect; the third leader marks its attempt.
    for calls in 1..=2 {
        let running = rig.start().await;
        rig.called(calls).await;
        drop(running);
    }
    away.store(true, SeqCst);
    let third = rig.start().await;
    rig.called(3).await;
    rig.unmarked().await;
    drop(third);
    let calls = rig.calls().len();
    let _fourth = rig.start().await;
    rig.called(calls + 1).await;
    assert!(rig.calls().iter().all(|(_, attempt)| *attempt == 1), "{:?}", rig.calls());
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_attempt_counts_for_nothing_and_what_was_done_is_settled() {
    let rig =
        Rig::new(3, |position, _| if position == Position(2) { Act::Hang } else { Act::Succeed })
            .await;
    let mut running = rig.start().await;
    rig.called(2).await;
    running.stop.cancel();
    running.interrupt.cancel();
    assert_eq!((&mut running.task).await.unwrap(), End::Stopped);
    rig.until(|_, cursor, head| cursor == Position(1) && head.is_none()).await;
    assert_eq!(rig.seen().await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_the_event_under_way_finish_and_begins_no_other() {
    let rig =
        Rig::new(3, |_, _| Act::Take(Duration::from_millis(100), Box::new(Act::Succeed))).await;
    let mut running = rig.start().await;
    rig.called(1).await;
    running.stop.cancel();
    assert_eq!((&mut running.task).await.unwrap(), End::Stopped);
    assert_eq!(rig.calls(), [(1, 1)]);
    assert_eq!(rig.seen().await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_lost_its_lock_commits_nothing() {
    let rig =
        Rig::new(3, |position, _| if position == Position(2) { Act::Hang } else { Act::Succeed })
            .await;
    let mut running = rig.start().await;
    rig.called(2).await;
    running.lost.cancel();
    assert_eq!((&mut running.task).await.unwrap(), End::Lost);
    assert!(rig.seen().await.is_empty());
    rig.until(|_, cursor, _| cursor == Position::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_lost_its_lock_waits_for_no_answer() {
    for call in [Operation::FETCH, Operation::RECORD_WORK_STARTED, Operation::SETTLE] {
        let rig = Rig::new(3, |_, _| Act::Succeed).await;
        rig.store.fail(call, Fault::Slow(DAY), 1);
        let mut running = rig.start().await;
        rig.asked(call).await;
        running.lost.cancel();
        let ended = tokio::time::timeout(Duration::from_millis(1), &mut running.task).await;
        assert_eq!(ended.expect("it waits").unwrap(), End::Lost, "{call:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_version_takes_over_after_the_event_that_is_handled_under_the_same_epoch() {
    let rig = Rig::new(3, |position, _| {
        let act = Act::Take(Duration::from_secs(10), Box::new(Act::Succeed));
        if position == Position(2) { act } else { Act::Succeed }
    })
    .await;
    let running = rig.start().await;
    rig.called(2).await;
    let next = ScriptedHandler::new(|_, _| Act::Succeed);
    running.replace(&next);
    rig.settled(3).await;
    assert_eq!(rig.calls(), [(1, 1), (2, 1)]);
    assert_eq!(*next.0.calls.borrow(), [(3, 1)]);
    assert_eq!(rig.seen().await, [1, 2, 3]);
    assert_eq!(rig.cursor().await.epoch, running.epoch);
}

#[tokio::test(start_paused = true)]
async fn another_version_goes_on_with_the_retry_of_the_one_before_it_and_counts_its_attempts() {
    let rig = Rig::new(1, |_, _| Act::Fail(FailureKind::Trap)).await;
    let running = rig.start().await;
    rig.until(|_, _, head| head.is_some_and(|head| head.attempt == Attempt(3))).await;
    let next = ScriptedHandler::new(|_, _| Act::Succeed);
    running.replace(&next);
    rig.settled(1).await;
    assert_eq!(*next.0.calls.borrow(), [(1, 3)]);
}

#[tokio::test(start_paused = true)]
async fn another_version_does_not_take_over_before_what_was_done_is_committed() {
    let rig = Rig::new(2, |_, _| Act::Succeed).await;
    rig.store.fail(Operation::SETTLE, Fault::Before, 5);
    let running = rig.start().await;
    rig.called(2).await;
    let next = ScriptedHandler::new(|_, _| Act::Succeed);
    running.replace(&next);
    rig.publish(1).await;
    rig.settled(3).await;
    assert_eq!(rig.calls(), [(1, 1), (2, 1)]);
    assert_eq!(*next.0.calls.borrow(), [(3, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_last_answer_only_so_long() {
    let rig = Rig::new(3, |_, _| Act::Succeed).await;
    rig.store.fail(Operation::SETTLE, Fault::Slow(DAY), 1);
    let mut running = rig.start().await;
    rig.asked(Operation::SETTLE).await;
    running.stop.cancel();
    let early = tokio::time::timeout(Duration::from_secs(60), &mut running.task).await;
    assert!(early.is_err(), "within the grace period the settlement is waited for");
    running.interrupt.cancel();
    let ended = tokio::time::timeout(LAST_ANSWER * 2, &mut running.task).await;
    assert_eq!(ended.expect("it waits").unwrap(), End::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_events_that_nobody_will_handle() {
    for call in [Operation::FETCH, Operation::RECORD_WORK_STARTED] {
        let rig = Rig::new(3, |_, _| Act::Succeed).await;
        rig.store.fail(call, Fault::Slow(DAY), 1);
        let mut running = rig.start().await;
        rig.asked(call).await;
        running.stop.cancel();
        let ended = tokio::time::timeout(Duration::from_millis(1), &mut running.task).await;
        assert_eq!(ended.expect("it waits").unwrap(), End::Stopped, "{call:?}");
        assert!(rig.calls().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_wakes_when_its_proof_is_over_commits_nothing() {
    let mut rig =
        Rig::new(1, |_, _| Act::Take(Duration::from_secs(6), Box::new(Act::Succeed))).await;
    rig.proved = Duration::from_secs(5);
    // As in a process that was frozen, nobody has come to cancel the token.
    let mut running = rig.start().await;
    let end = tokio::time::timeout(Duration::from_secs(60), &mut running.task).await;
    assert_eq!(end.expect("it leads on").unwrap(), End::Lost);
    assert_eq!(rig.store.calls(Operation::SETTLE), 0);
    assert!(rig.seen().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_former_leader_commits_nothing_and_ends() {
    let rig = Rig::new(1, |_, _| Act::Take(Duration::from_secs(1), Box::new(Act::Succeed))).await;
    let mut first = rig.start().await;
    rig.called(1).await;
    let taken = rig.leadership(&rig.store.another_host()).await;
    assert!(taken.epoch > first.epoch);
    assert_eq!((&mut first.task).await.unwrap(), End::Superseded);
    assert!(rig.seen().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pause_takes_effect_between_two_events_and_a_resume_goes_on() {
    let rig =
        Rig::new(3, |_, _| Act::Take(Duration::from_millis(50), Box::new(Act::Succeed))).await;
    let _running = rig.start().await;
    rig.called(1).await;
    rig.store.pause(&name(), "test").await.unwrap();
    rig.settled(1).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(rig.calls(), [(1, 1)]);
    rig.store.resume(&name()).await.unwrap();
    rig.settled(3).await;
    assert_eq!(rig.seen().await, [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_kills_the_process_becomes_a_dead_letter_and_the_others_are_handled() {
    let rig =
        Rig::new(5, |position, _| if position == Position(3) { Act::Hang } else { Act::Succeed })
            .await;
    // Each leadership ends the way a process does: without a word.
    for _ in 0..30 {
        let running = rig.start().await;
        let before = rig.calls().len();
        let stuck = async {
            while !rig.calls()[before..].iter().any(|call| call.0 == 3)
                && rig.cursor().await.position < Position(5)
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DAY, stuck).await.unwrap();
        drop(running);
        if !rig.dead().await.is_empty() {
            break;
        }
    }
    let _last = rig.start().await;
    rig.settled(5).await;
    assert_eq!(rig.dead().await, [(3, 5, "crash".to_owned())]);
    assert_eq!(rig.seen().await, [1, 2, 4, 5]);
    assert_eq!(rig.count().await, 4);
}

#[tokio::test(start_paused = true)]
async fn a_seek_refuses_the_open_batch_and_the_cursor_is_read_anew() {
    let rig = Rig::new(3, |position, _| {
        if position == Position(3) {
            Act::Take(Duration::from_secs(1), Box::new(Act::Succeed))
        } else {
            Act::Succeed
        }
    })
    .await;
    let mut running = rig.start().await;
    rig.called(3).await;
    rig.store.seek(&name(), Start::Position(Position(1))).await.unwrap();
    assert_eq!((&mut running.task).await.unwrap(), End::Superseded);
    assert!(rig.seen().await.is_empty());
    let _next = rig.start().await;
    rig.settled(3).await;
    assert_eq!(rig.seen().await, [2, 3]);
}

#[tokio::test(start_paused = true)]
async fn events_of_other_types_are_passed_without_a_commit_each() {
    let rig = Rig::new(0, |_, _| Act::Succeed).await;
    let _running = rig.start().await;
    for _ in 0..100 {
        rig.store.another_host().publish(&Tenant::none(), &[event("other")]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    rig.settled(100).await;
    assert!(rig.calls().is_empty());
    assert!(rig.store.calls(Operation::SETTLE) <= 3);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_permit_counts_as_nothing_and_ends_at_once() {
    let mut rig = Rig::new(3, |_, _| Act::Succeed).await;
    rig.executor = FairExecutor::on_this_runtime(Arc::new(Admission::new(Some(1))));
    let other = rig.executor.admission().register(&"other".parse().unwrap(), demand());
    let mut held = other.permit();
    held.ready(None).await;
    for (end, at_once) in [("stop", End::Stopped), ("lose", End::Lost), ("seek", End::Superseded)] {
        let mut running = rig.start().await;
        rig.asked(Operation::FETCH).await;
        tokio::time::sleep(MINUTE).await;
        match end {
            "stop" => running.stop.cancel(),
            "lose" => running.lost.cancel(),
            _ => drop(rig.store.seek(&name(), Start::Earliest).await.unwrap()),
        }
        // The feeder tells of a seek within 5 ms.
        let ended = tokio::time::timeout(Duration::from_millis(10), &mut running.task).await;
        assert_eq!(ended.expect("it waits").unwrap(), at_once);
    }
    assert!(rig.calls().is_empty());
    assert_eq!(rig.store.calls(Operation::RECORD_WORK_STARTED), 0, "a crash would count");

    let _running = rig.start().await;
    rig.store.pause(&name(), "test").await.unwrap();
    tokio::time::sleep(MINUTE).await;
    drop(held);
    tokio::time::sleep(MINUTE).await;
    assert!(rig.calls().is_empty(), "it is paused");
    rig.store.resume(&name()).await.unwrap();
    rig.settled(3).await;
    assert_eq!(rig.calls(), [(1, 1), (2, 1), (3, 1)]);
    assert_eq!(rig.executor.admission().in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_done_is_settled_before_the_next_event_is_waited_for() {
    let rig = Rig::new(4, |_, _| Act::Succeed).await;
    let quota = TenantQuota { events_per_second: Some(1.0), ..TenantQuota::default() };
    rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
    let began = Instant::now();
    let _running = rig.start().await;
    for position in 1..=4_u32 {
        rig.settled(position.into()).await;
        let expected = Duration::from_secs((position - 1).into());
        let took = began.elapsed();
        assert!(took >= expected && took < expected + Duration::from_millis(50), "{took:?}");
    }
    assert_eq!(rig.calls(), [(1, 1), (2, 1), (3, 1), (4, 1)]);
}

#[test]
fn a_group_fetches_about_as_much_as_it_handles() {
    for (before, fetched, done, expected) in [
        (1_000, 1_000, 1_000, 1_000),
        (1_000, 1_000, 3, 16),
        (1_000, 1_000, 300, 600),
        (16, 16, 0, 16),
        (16, 16, 16, 32),
        (600, 600, 600, 1_000),
        // There were no more.
        (16, 3, 3, 16),
        (10, 10, 1, 10),
        (1, 1, 1, 2),
    ] {
        assert_eq!(
            next_fetch_size(before, fetched, done, 1_000),
            expected,
            "{before} {fetched} {done}"
        );
    }
}
