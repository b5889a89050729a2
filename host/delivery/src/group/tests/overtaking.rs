//! Going on past open transactions: what comes late, and when it runs.

use super::super::late::MAX_UNDECIDED_RANGES;
use super::*;
use event_host_store::GroupStatus;

/// A rig that goes on past every transaction that is open.
async fn rig(
    concurrency: usize,
    script: impl Fn(Position, Attempt) -> Act + Send + Sync + 'static,
) -> Rig {
    let mut rig = Rig::new(0, script).await;
    (rig.ordering, rig.concurrency) = (Ordering::Key, concurrency);
    rig.overtake = Some(Duration::from_secs(1));
    rig
}

fn keyed(key: &str) -> Event {
    Event { partitionkey: Some(key.to_owned()), ..event("t") }
}

impl Rig {
    fn hold(&self, key: &str) -> Position {
        self.store.hold(&Tenant::none(), keyed(key))
    }

    async fn status(&self) -> GroupStatus {
        self.store.another_host().group_status(&name()).await.unwrap()
    }

    /// Waits until the cursor has passed a position.
    async fn passed(&self, position: i64) {
        self.until(|_, cursor, _| cursor.0 >= position).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_event_comes_after_what_ran_and_before_what_is_new_of_its_key() {
    let takes_a_second = |_, _| Act::Take(Duration::from_secs(1), Box::new(Act::Succeed));
    let rig = rig(4, takes_a_second).await;
    let late = rig.hold("a");
    rig.publish_keys(&[Some("a"), Some("a"), Some("a"), Some("b")]).await;
    let _running = rig.start().await;
    // The first of the key runs and the cursor has passed it.
    rig.passed(2).await;
    rig.store.end_transaction(late, true);
    rig.all_over(5).await;
    let order: Vec<i64> = rig.calls().iter().map(|call| call.0).collect();
    let at = |position: i64| order.iter().position(|called| *called == position).unwrap();
    assert!(at(2) < at(1) && at(1) < at(4), "{order:?}");
    assert_eq!(order.len(), 5);
    assert_eq!(rig.count_in("key:a").await, 4);
    assert_eq!(rig.status().await.late_events, 1);
}

#[tokio::test(start_paused = true)]
async fn late_events_wait_while_as_many_are_parked_as_may_be_and_none_is_lost() {
    let mut rig = rig(4, |position, attempt| {
        if position.0 == 6 && attempt.0 < 4 { Act::Fail(FailureKind::Trap) } else { Act::Succeed }
    })
    .await;
    rig.max_parked = 1;
    let held: Vec<_> = ["a", "b", "c", "d", "e"].map(|key| rig.hold(key)).into();
    rig.publish_keys(&[Some("f"), Some("g")]).await;
    let _running = rig.start().await;
    rig.passed(7).await;
    for position in held {
        rig.store.end_transaction(position, true);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(rig.parked().await.len(), 1);
    assert!(rig.status().await.note.is_some_and(|remark| remark.contains("`max_parked`")));
    rig.all_over(7).await;
    let mut seen = rig.seen().await;
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(rig.status().await.late_events, 5);
}

#[tokio::test(start_paused = true)]
async fn with_too_much_open_the_group_waits_and_says_so() {
    let rig = rig(16, |_, _| Act::Succeed).await;
    let most = i64::try_from(MAX_UNDECIDED_RANGES).unwrap();
    let mut held = Vec::new();
    for _ in 0..most + 10 {
        held.push(rig.hold("a"));
        rig.publish_keys(&[Some("b")]).await;
    }
    let _running = rig.start().await;
    rig.passed(2 * most).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let status = rig.status().await;
    assert_eq!(status.position, Position(2 * most), "it goes no further");
    assert_eq!(status.open_ranges.len(), MAX_UNDECIDED_RANGES);
    assert!(status.note.is_some_and(|remark| remark.contains("1000 places")));
    for (position, commits) in held.into_iter().zip([true, false].into_iter().cycle()) {
        rig.store.end_transaction(position, commits);
    }
    rig.all_over(2 * (most + 10)).await;
    assert_eq!(rig.count_in("key:b").await, usize::try_from(most + 10).unwrap());
    assert_eq!(rig.count_in("key:a").await, usize::try_from(most / 2 + 5).unwrap());
    rig.store.publish(&Tenant::none(), &[keyed("b")]).await.unwrap();
    rig.all_over(2 * (most + 10) + 1).await;
    assert_eq!(rig.status().await.note, None);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_waits_for_all_never_goes_past_an_open_transaction() {
    let mut rig = rig(4, |_, _| Act::Succeed).await;
    rig.overtake = None;
    let held = rig.hold("a");
    rig.publish_keys(&[Some("a"), Some("b")]).await;
    let _running = rig.start().await;
    tokio::time::sleep(60 * MINUTE).await;
    assert_eq!(rig.calls(), []);
    rig.store.end_transaction(held, true);
    rig.all_over(3).await;
    assert_eq!(rig.status().await.late_events, 0);
}
