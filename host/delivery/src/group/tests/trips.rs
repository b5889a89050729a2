//! Handlers that fail everything: when a group trips, and how it goes on.

use super::*;

/// The group's state, and why.
async fn state(rig: &Rig) -> (GroupState, Option<String>) {
    let status = rig.store.another_host().group_status(&name()).await.unwrap();
    (status.state, status.reason)
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_fails_everything_trips_its_group_and_the_log_is_not_emptied() {
    let rig = Rig::new(100, |_, _| Act::Fail(FailureKind::Reject)).await;
    let _running = rig.start().await;
    rig.settled(20).await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(rig.dead().await.len(), 20);
    let why = "20 events in a row became dead letters".to_owned();
    assert_eq!(state(&rig).await, (GroupState::Tripped, Some(why)));
    // Probes: after a minute, two more, four, and so on; each is one attempt.
    tokio::time::sleep(Duration::from_secs(6 * 3_600)).await;
    let dead = rig.dead().await.len();
    assert!((25..=35).contains(&dead), "{dead} dead letters after some hours");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_succeeds_lets_a_tripped_group_go_on() {
    let rig =
        Rig::new(
            50,
            |position, _| {
                if position.0 <= 20 { Act::Fail(FailureKind::Reject) } else { Act::Succeed }
            },
        )
        .await;
    let _running = rig.start().await;
    rig.settled(50).await;
    assert!(rig.began.elapsed() >= Duration::from_secs(48), "{:?}", rig.began.elapsed());
    assert!(rig.began.elapsed() < Duration::from_secs(75), "{:?}", rig.began.elapsed());
    assert_eq!(state(&rig).await, (GroupState::Running, None));
    assert_eq!(rig.dead().await.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_tripped_group_that_is_resumed_goes_on_at_once() {
    let rig =
        Rig::new(
            50,
            |position, _| {
                if position.0 <= 20 { Act::Fail(FailureKind::Reject) } else { Act::Succeed }
            },
        )
        .await;
    let _running = rig.start().await;
    rig.settled(20).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(state(&rig).await.0, GroupState::Tripped);
    rig.store.another_host().resume(&name()).await.unwrap();
    rig.settled(50).await;
    assert!(rig.began.elapsed() < Duration::from_secs(5), "{:?}", rig.began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_tripped_group_stays_tripped_under_a_new_leader() {
    let rig = Rig::new(100, |_, _| Act::Fail(FailureKind::Reject)).await;
    let first = rig.start().await;
    rig.settled(20).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(first);
    let _second = rig.start().await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(rig.calls().len(), 20);
    rig.settled(21).await;
}

#[tokio::test(start_paused = true)]
async fn a_trip_is_recorded_once_the_database_is_back() {
    let rig = Rig::new(100, |_, _| Act::Fail(FailureKind::Reject)).await;
    rig.store.fail(Operation::RECORD_TRIP, Fault::Before, 5);
    let _running = rig.start().await;
    rig.settled(20).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(rig.store.faults_left(Operation::RECORD_TRIP), 0);
    assert_eq!(state(&rig).await.0, GroupState::Tripped);
    assert_eq!(rig.calls().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_new_version_that_fails_trips_before_it_costs_an_event() {
    let mut rig = Rig::new(1, |_, _| Act::Succeed).await;
    (rig.ordering, rig.concurrency) = (Ordering::None, 1);
    let running = rig.start().await;
    rig.settled(1).await;
    let broken = ScriptedHandler::new(|_, _| Act::Fail(FailureKind::Trap));
    running.replace(&broken);
    rig.publish(50).await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(broken.0.calls.borrow().len(), 3);
    assert_eq!(state(&rig).await.0, GroupState::Tripped);
    // The next version is tried at once.
    let mended = ScriptedHandler::new(|_, _| Act::Succeed);
    running.replace(&mended);
    rig.settled(51).await;
    assert!(rig.began.elapsed() < Duration::from_secs(60), "{:?}", rig.began.elapsed());
    assert_eq!(state(&rig).await, (GroupState::Running, None));
    assert_eq!(rig.dead().await, []);
}

/// In total order nobody can tell a broken version from an event that none can handle
/// before that event is given up.
#[tokio::test(start_paused = true)]
async fn a_new_version_that_fails_in_total_order_trips_at_the_third_event() {
    let rig = Rig::new(1, |_, _| Act::Succeed).await;
    let running = rig.start().await;
    rig.settled(1).await;
    let broken = ScriptedHandler::new(|_, _| Act::Fail(FailureKind::Trap));
    running.replace(&broken);
    rig.publish(50).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(broken.0.calls.borrow().last(), Some(&(5, 1)));
    assert_eq!(state(&rig).await.0, GroupState::Tripped);
    let dead: Vec<i64> = rig.dead().await.iter().map(|dead| dead.0).collect();
    assert_eq!(dead, [3, 4]);
    running.replace(&ScriptedHandler::new(|_, _| Act::Succeed));
    rig.settled(52).await;
    assert_eq!(state(&rig).await, (GroupState::Running, None));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_no_version_can_handle_trips_none() {
    for ordering in [Ordering::Total, Ordering::Key, Ordering::None] {
        let poison = |position: Position, _| match position.0 {
            2 => Act::Fail(FailureKind::Trap),
            _ => Act::Succeed,
        };
        let mut rig = Rig::new(2, poison).await;
        rig.ordering = ordering;
        rig.retry = RetryPolicy { max_attempts: 30, max: Duration::from_secs(1), ..rig.retry };
        let running = rig.start().await;
        rig.called(3).await;
        // It fails under each of them, again and again, and nothing else is there to try.
        for _ in 0..3 {
            let version = ScriptedHandler::new(poison);
            running.replace(&version);
            let mut calls = version.0.calls.subscribe();
            calls.wait_for(|calls| calls.len() >= 5).await.unwrap();
            assert_eq!(state(&rig).await, (GroupState::Running, None), "{ordering:?}");
        }
        // One that a new version is the first to have, too.
        let version = ScriptedHandler::new(|position: Position, _| match position.0 {
            // The one between is what the first emitted.
            2 | 4 => Act::Fail(FailureKind::Trap),
            _ => Act::Succeed,
        });
        running.replace(&version);
        rig.publish(3).await;
        rig.all_over(6).await;
        assert_eq!(state(&rig).await, (GroupState::Running, None), "{ordering:?}");
        let dead: HashSet<i64> = rig.dead().await.iter().map(|dead| dead.0).collect();
        assert_eq!(dead, [2, 4].into(), "{ordering:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_no_version_can_handle_does_not_hold_a_tripped_group_for_ever() {
    let rig = Rig::new(0, |_, _| Act::Succeed).await;
    let running = rig.start().await;
    running.replace(&ScriptedHandler::new(|_, attempt| {
        // It fails for the first event alone, which has five attempts.
        if attempt.0 > 1 { Act::Fail(FailureKind::Trap) } else { Act::Fail(FailureKind::Retry) }
    }));
    rig.publish(1).await;
    rig.settled(1).await;
    assert_eq!(rig.dead().await, [(1, 5, "trap".to_owned())]);
}
