//! Replays that name a component: what waits for it, and what does not.

use super::*;
use event_host_store::NewVersion;

/// A rig whose first event is a dead letter by now, and comes again at position 4 with a
/// component that is not there yet: it takes as long as the test has it take.
async fn replaying(ordering: Ordering) -> Rig {
    let mut rig = Rig::new(1, |position, _| match position.0 {
        1 => Act::Fail(FailureKind::Reject),
        _ => Act::Succeed,
    })
    .await;
    (rig.ordering, rig.concurrency) = (ordering, 1);
    let running = rig.start().await;
    rig.settled(1).await;
    drop(running);
    let component = b"another";
    let new = NewVersion {
        tenant: &Tenant::none(),
        handler: &"other".parse().unwrap(),
        component,
        deployed_by: "a test",
    };
    rig.store.deploy(new).await.unwrap();
    rig.publish(2).await;
    let dead = rig.store.dead_letter_ids(&name()).await.unwrap()[0];
    let digest = Digest::of(component);
    let replayed = rig.store.replay(dead, None, Some(&digest)).await.unwrap();
    assert_eq!(replayed.position, Position(4));
    rig.publish(20).await;
    rig.handler.0.has_others.send_replace(false);
    rig
}

/// Events that were handled after the first.
fn handled(rig: &Rig) -> Vec<i64> {
    rig.calls().iter().map(|call| call.0).filter(|position| *position > 1).collect()
}

/// That another group gets the only permit that there is.
async fn a_permit_is_free(rig: &Rig) {
    let other = rig.executor.admission().register(&Tenant::none(), demand());
    let mut permit = other.permit();
    let ready = tokio::time::timeout(MINUTE, permit.ready(None)).await;
    assert_eq!(ready, Ok(true), "somebody holds it while a component is loaded");
}

#[tokio::test(start_paused = true)]
async fn a_component_that_is_loaded_for_long_holds_up_no_other_event_where_there_is_no_order() {
    for ordering in [Ordering::Key, Ordering::None] {
        let rig = replaying(ordering).await;
        rig.executor.admission().configure(Some(1), []);
        let _running = rig.start().await;
        rig.settled(24).await;
        assert_eq!(handled(&rig), (2..=24).filter(|n| *n != 4).collect::<Vec<_>>());
        assert_eq!(rig.parked().await, [(4, 1)], "it waits, and no attempt is counted");
        a_permit_is_free(&rig).await;
        rig.handler.0.has_others.send_replace(true);
        rig.all_over(24).await;
        assert_eq!(handled(&rig).last(), Some(&4));
    }
}

#[tokio::test(start_paused = true)]
async fn a_component_that_is_loaded_for_long_takes_no_permit_in_total_order_either() {
    let rig = replaying(Ordering::Total).await;
    rig.executor.admission().configure(Some(1), []);
    let _running = rig.start().await;
    rig.settled(3).await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(handled(&rig), [2, 3], "what stands behind it waits");
    a_permit_is_free(&rig).await;
    rig.handler.0.has_others.send_replace(true);
    rig.settled(24).await;
    assert_eq!(handled(&rig), (2..=24).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_stop_and_another_version_do_not_wait_for_a_component() {
    for ordering in [Ordering::Total, Ordering::Key, Ordering::None] {
        let rig = replaying(ordering).await;
        let mut running = rig.start().await;
        rig.settled(3).await;
        tokio::time::sleep(MINUTE).await;
        let next = ScriptedHandler::new(|_, _| Act::Succeed);
        running.replace(&next);
        rig.all_over(24).await;
        assert!(next.0.calls.borrow().contains(&(4, 1)), "{ordering:?}");
        assert!(!rig.calls().contains(&(4, 1)), "{ordering:?}");

        let rig = replaying(ordering).await;
        running = rig.start().await;
        rig.settled(3).await;
        tokio::time::sleep(MINUTE).await;
        running.stop.cancel();
        let ended = tokio::time::timeout(MINUTE, &mut running.task).await;
        assert_eq!(ended.expect("it waits").unwrap(), End::Stopped, "{ordering:?}");
        assert!(rig.cursor().await.head.is_none(), "no attempt is counted");
    }
}
