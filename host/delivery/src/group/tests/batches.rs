//! Attempts that go on batch after batch without their leader.

use super::*;

/// Enough that no group is through with it while anybody waits here.
const BACKLOG: usize = 1_000;

/// Each attempt takes a millisecond, and a batch ten of them.
async fn with_a_backlog(act: Act) -> Rig {
    let mut rig =
        Rig::new(BACKLOG, move |_, _| Act::Take(Duration::from_millis(1), Box::new(act.clone())))
            .await;
    rig.batch.max_events = 10;
    rig
}

#[tokio::test(start_paused = true)]
async fn place_and_memory_go_to_whoever_waits_for_them_when_a_batch_is_over() {
    let memory =
        TenantQuota { memory_bytes: Some(demand().memory_bytes), ..TenantQuota::default() };
    for (what, concurrency, quota) in
        [("memory", None, memory), ("a place", Some(1), TenantQuota::default())]
    {
        let rig = with_a_backlog(Act::Succeed).await;
        rig.executor.admission().configure(concurrency, [(&Tenant::none(), &quota)]);
        let running = rig.start().await;
        rig.called(1).await;
        let mut another = rig.executor.admission().register(&Tenant::none(), demand()).permit();
        tokio::time::timeout(DAY, another.ready(None)).await.expect("never given");
        assert_eq!(rig.calls().len(), 10, "attempts before another group got {what}");
        tokio::time::sleep(MINUTE).await;
        assert_eq!(rig.calls().len(), 10, "attempts while another group has {what}");
        drop(another);
        rig.settled(BACKLOG as i64).await;
        running.stop.cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn ceilings_that_change_hold_from_the_next_batch_on() {
    let rig = with_a_backlog(Act::Fail(FailureKind::Reject)).await;
    let _running = rig.start().await;
    rig.called(5).await;
    let quota = TenantQuota { dead_letters: Some(1), ..TenantQuota::default() };
    rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
    rig.paused().await;
    assert_eq!(rig.dead().await.len(), 10, "dead letters before the ceiling held");
}

#[tokio::test(start_paused = true)]
async fn whoever_makes_way_for_nobody_goes_on_and_has_a_batch_settled_whole() {
    let mut rig = Rig::new(30, |_, _| Act::Compute(TIME_SLICE)).await;
    rig.batch.max_events = 10;
    let _running = rig.start().await;
    rig.settled(30).await;
    assert_eq!(rig.store.calls(Operation::SETTLE), 3, "settlements of 30 events");
}

#[tokio::test(start_paused = true)]
async fn whoever_makes_way_for_a_place_has_what_is_done_settled_meanwhile() {
    let mut rig = Rig::new(30, |_, _| Act::Compute(TIME_SLICE)).await;
    rig.batch.max_time = DAY;
    rig.executor.admission().configure(Some(1), []);
    let _running = rig.start().await;
    rig.called(1).await;
    let mut another = rig.executor.admission().register(&Tenant::none(), demand()).permit();
    tokio::time::timeout(MINUTE, another.ready(None)).await.expect("never given");
    let handled = rig.calls().len() as i64;
    assert!(handled < 30, "it makes way before it is through");
    tokio::time::timeout(MINUTE, rig.settled(handled)).await.expect("held up by what waits");
}

#[tokio::test(start_paused = true)]
async fn whoever_makes_way_for_a_core_has_what_is_done_settled_meanwhile() {
    let mut rig = Rig::new(30, |_, _| Act::Compute(TIME_SLICE)).await;
    rig.batch.max_time = DAY;
    // In line whenever the group makes way, and done long after it.
    let another = rig.executor.admission().register(&Tenant::none(), demand()).spawn(async {
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
    });
    let _running = rig.start().await;
    rig.settled(30).await;
    assert!(rig.store.calls(Operation::SETTLE) > 1, "settled once, at the end");
    another.await;
}
