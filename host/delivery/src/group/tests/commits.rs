//! Settlements whose outcome is unknown, late or refused for a while.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_commit_whose_outcome_is_unknown_is_read_back_and_not_repeated() {
    for fault in [Fault::Before, Fault::After] {
        let rig = Rig::new(3, |_, _| Act::Succeed).await;
        rig.store.fail(Operation::SETTLE, fault, 3);
        rig.store.fail(Operation::CURSOR, Fault::Before, 2);
        let _running = rig.start().await;
        rig.settled(3).await;
        assert_eq!(rig.calls(), [(1, 1), (2, 1), (3, 1)], "{fault:?}");
        assert_eq!(rig.seen().await, [1, 2, 3], "{fault:?}");
        assert_eq!(rig.count().await, 3, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_ends_in_a_pending_retry_is_known_again_when_it_is_read_back() {
    let rig = Rig::new(2, |position, attempt| {
        if position == Position(2) && attempt == Attempt(1) {
            Act::Fail(FailureKind::Retry)
        } else {
            Act::Succeed
        }
    })
    .await;
    rig.store.fail(Operation::SETTLE, Fault::After, 1);
    let _running = rig.start().await;
    rig.settled(2).await;
    assert_eq!(rig.calls(), [(1, 1), (2, 1), (2, 2)]);
    assert_eq!(rig.seen().await, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_arrives_after_the_leader_went_on_changes_nothing() {
    let rig = Rig::new(3, |position, _| {
        if position == Position(2) { Act::Fail(FailureKind::Reject) } else { Act::Succeed }
    })
    .await;
    rig.store.fail(Operation::SETTLE, Fault::Delayed, 1);
    let _running = rig.start().await;
    rig.settled(3).await;
    rig.publish(1).await;
    rig.until(|_, cursor, _| cursor > Position(3)).await;
    let (cursor, seen, dead) = (rig.cursor().await, rig.seen().await, rig.dead().await);
    rig.store.deliver_delayed();
    assert_eq!(rig.cursor().await, cursor, "moved back");
    assert_eq!((rig.seen().await, rig.dead().await), (seen, dead), "recorded a second time");
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_arrives_just_before_its_repetition_is_committed_once() {
    let rig = Rig::new(3, |_, _| Act::Succeed).await;
    rig.store.fail(Operation::SETTLE, Fault::Delayed, 1);
    rig.store.fail(Operation::SETTLE, Fault::AfterDelayed, 1);
    let mut running = rig.start().await;
    rig.settled(3).await;
    rig.publish(1).await;
    tokio::select! {
        end = &mut running.task => panic!("took its own settlement for another's: {end:?}"),
        () = rig.until(|_, cursor, _| cursor > Position(6)) => {}
    }
    assert_eq!(rig.seen().await, [1, 2, 3, 7]);
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_arrives_after_its_attempt_was_settled_leaves_nothing_in_flight() {
    let rig = Rig::new(1, |_, _| Act::Take(Duration::from_secs(1), Box::new(Act::Succeed))).await;
    // Two crashes make the group suspect; the third leader marks its attempt.
    for calls in 1..=2 {
        let running = rig.start().await;
        rig.called(calls).await;
        drop(running);
    }
    rig.store.fail(Operation::RECORD_ATTEMPT_STARTED, Fault::Delayed, 1);
    let _third = rig.start().await;
    rig.settled(1).await;
    assert_eq!(rig.store.faults_left(Operation::RECORD_ATTEMPT_STARTED), 0, "nothing was marked");
    rig.store.deliver_delayed();
    assert_eq!(rig.cursor().await.mark, None);
}

#[tokio::test(start_paused = true)]
async fn a_begin_of_work_that_arrives_after_a_settlement_does_not_count_as_fruitless() {
    let rig = Rig::new(1, |_, _| Act::Succeed).await;
    rig.store.fail(Operation::RECORD_WORK_STARTED, Fault::Delayed, 1);
    let running = rig.start().await;
    rig.settled(1).await;
    drop(running);
    rig.store.deliver_delayed();
    assert_eq!(rig.leadership(&rig.store).await.fruitless, 0);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_cannot_be_written_does_not_let_the_cursor_move() {
    let rig = Rig::new(1, |_, _| Act::Fail(FailureKind::Reject)).await;
    rig.store.fail(Operation::SETTLE, Fault::Before, 20);
    let _running = rig.start().await;
    let tries = async {
        while rig.store.faults_left(Operation::SETTLE) > 5 {
            assert!(rig.dead().await.is_empty());
            rig.until(|_, cursor, _| cursor == Position::ZERO).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DAY, tries).await.expect("it stopped trying");
    rig.settled(1).await;
    assert_eq!(rig.dead().await, [(1, 1, "reject".to_owned())]);
}
