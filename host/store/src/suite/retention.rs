//! Events that go, and those that stay.

use std::sync::Arc;
use std::time::Duration;

use super::samples::{
    bury_all, event, fetch_all, group, head, host, ids, led, letters, publish, publish_some,
    settings, settlement, time, until,
};
use super::{DeliveryDatabase, TestDatabase};
use crate::{
    DeliveryStore, Enforced, GroupRegistration, LogPin, Redelivery, Retention, Settled, Settlement,
    Start, Store, StoreError,
};
use event_host_core::event::{Attempt, Epoch, GroupName, Position};

/// Everything that nobody needs may go.
const NOTHING_STAYS: Retention = Retention { max_age: Some(Duration::ZERO), max_bytes: None };

const A_WEEK: Retention =
    Retention { max_age: Some(Duration::from_secs(7 * 86_400)), max_bytes: None };

/// Settles that a group is through with everything up to a position.
async fn settle_to(
    store: &Arc<impl DeliveryStore + ?Sized>,
    name: &str,
    epoch: Epoch,
    position: Position,
) {
    let settlement = settlement(store, name, epoch, position.0).await;
    assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
}

/// Maintains until nobody was in the way.
async fn enforce_retention(
    store: &Arc<impl DeliveryStore + ?Sized>,
    retention: Retention,
) -> Enforced {
    let mut all = Enforced::default();
    loop {
        let enforced = store.enforce_retention(&retention).await.unwrap();
        all.dropped_up_to = enforced.dropped_up_to.or(all.dropped_up_to);
        all.pinned_by = enforced.pinned_by;
        if !enforced.postponed {
            return all;
        }
    }
}

async fn events(store: &Arc<dyn Store>) -> i64 {
    store.status().await.unwrap().events
}

async fn pinned_by(store: &Arc<dyn Store>) -> Option<GroupName> {
    store.status().await.unwrap().pinned_by.map(|pin| pin.group)
}

pub async fn events_go_once_every_group_has_settled_them(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let (fast, slow) = (led(&store, "fast").await, led(&store, "slow").await);
    let last = publish_some(&store, 3).await[2];
    settle_to(&store, "fast", fast, last).await;
    let enforced = enforce_retention(&store, NOTHING_STAYS).await;
    assert_eq!(enforced, Enforced { pinned_by: Some(group("slow")), ..Enforced::default() });
    assert_eq!(events(&store).await, 3);

    settle_to(&store, "slow", slow, last).await;
    let enforced = enforce_retention(&store, NOTHING_STAYS).await;
    assert_eq!(enforced.dropped_up_to, Some(last));
    assert_eq!(enforced.pinned_by, None);
    assert_eq!(events(&store).await, 0);
    assert_eq!(enforce_retention(&store, NOTHING_STAYS).await, Enforced::default());
}

pub async fn the_group_that_pins_the_log_is_named(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let fast = led(&store, "fast").await;
    store.ensure_group(&settings("paused")).await.unwrap();
    store.pause(&group("paused"), "out of order").await.unwrap();
    let last = publish_some(&store, 2).await[1];
    settle_to(&store, "fast", fast, last).await;
    assert_eq!(pinned_by(&store).await, None, "nobody wants anything to go");
    enforce_retention(&store, NOTHING_STAYS).await;
    let pin = store.status().await.unwrap().pinned_by.unwrap();
    let LogPin { group: pinning, position, bytes, .. } = pin;
    assert_eq!((pinning, position), (group("paused"), Position::ZERO));
    assert!(bytes > 0);

    // Also by a host that came later, and no longer once that is taken back.
    let other = database.handle().await;
    assert_eq!(pinned_by(&other).await, Some(group("paused")));
    enforce_retention(&other, Retention::FOREVER).await;
    assert_eq!(pinned_by(&store).await, None);

    enforce_retention(&store, NOTHING_STAYS).await;
    store.remove_group(&group("paused"), false).await.unwrap();
    enforce_retention(&store, NOTHING_STAYS).await;
    assert_eq!((pinned_by(&store).await, events(&store).await), (None, 0));
}

pub async fn what_is_young_or_little_stays(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let epoch = led(&store, "g").await;
    let last = publish_some(&store, 3).await[2];
    settle_to(&store, "g", epoch, last).await;
    for retention in
        [A_WEEK, Retention { max_age: None, max_bytes: Some(1 << 30) }, Retention::FOREVER]
    {
        assert_eq!(
            enforce_retention(&store, retention).await,
            Enforced::default(),
            "{retention:?}"
        );
        assert_eq!(events(&store).await, 3);
        assert_eq!(pinned_by(&store).await, None);
    }
    let little = Retention { max_bytes: Some(0), ..A_WEEK };
    assert_eq!(
        enforce_retention(&store, little).await.dropped_up_to,
        Some(last),
        "one of the two will do"
    );
    assert_eq!(events(&store).await, 0);
}

pub async fn no_position_is_used_again_when_all_events_are_gone(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let epoch = led(&store, "g").await;
    let mut last = Position::ZERO;
    for round in 0..3 {
        let positions = publish_some(&store, 3).await;
        assert!(positions[0] > last);
        last = positions[2];
        let found = fetch_all(&store, "g", 0).await;
        assert_eq!(found.iter().map(|e| e.position).collect::<Vec<_>>(), positions, "{round}");
        settle_to(&store, "g", epoch, last).await;
        enforce_retention(&store, NOTHING_STAYS).await;
        assert_eq!(events(&store).await, 0);
        // A host that starts now finds nothing wrong.
        let other = database.handle().await;
        other.check().await.unwrap();
        other.ensure_group(&settings("g")).await.unwrap();
        let status = other.status().await.unwrap();
        assert!(status.last_position >= last && status.safe_position >= last, "{status:?}");
        assert!(other.safe_position().await.unwrap() >= last);
        assert_eq!(fetch_all(&other, "g", 0).await, []);
    }
}

pub async fn new_groups_and_cursors_that_go_back_begin_with_what_is_left(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let epoch = led(&store, "g").await;
    let gone = publish_some(&store, 3).await[2];
    settle_to(&store, "g", epoch, gone).await;
    enforce_retention(&store, NOTHING_STAYS).await;
    publish(&store, &[event("some", "left")]).await;
    for to in [Start::Earliest, Start::Position(Position(1)), Start::Position(gone)] {
        let cursor = store.seek(&group("g"), to).await.unwrap();
        assert_eq!(ids(&fetch_all(&store, "g", cursor.0).await), ["left"], "{to:?}");
    }
    let start = Start::Time("2020-01-01T00:00:00Z".parse().unwrap());
    store.ensure_group(&GroupRegistration { start, ..settings("new") }).await.unwrap();
    let cursor = store.cursor(&group("new")).await.unwrap().position;
    assert_eq!(ids(&fetch_all(&store, "new", cursor.0).await), ["left"]);
    // A cursor that is back keeps what is left.
    store.seek(&group("g"), Start::Earliest).await.unwrap();
    assert_eq!(enforce_retention(&store, NOTHING_STAYS).await.pinned_by, Some(group("g")));
    assert_eq!(events(&store).await, 1);
}

pub async fn a_cursor_that_goes_back_to_what_is_gone_is_told_what_is_missing(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let epoch = led(&store, "g").await;
    let at = publish_some(&store, 3).await;
    let back = async |to: Start| store.seek_to(&group("g"), to, true).await;
    assert_eq!(back(Start::Position(at[0])).await.unwrap().gone, None, "all of it is there");
    let epoch = Epoch(epoch.0 + 1);
    settle_to(&store, "g", epoch, at[2]).await;
    enforce_retention(&store, NOTHING_STAYS).await;

    for to in [Start::Position(at[0]), Start::Time("2020-01-01T00:00:00Z".parse().unwrap())] {
        let before = store.cursor(&group("g")).await.unwrap();
        let refused = back(to).await.unwrap_err();
        assert!(matches!(&refused, StoreError::Refused(_)), "{to:?}: {refused:?}");
        let text = refused.to_string();
        assert!(text.contains(&format!("every event up to position {}", at[2])), "{text}");
        assert_eq!(store.cursor(&group("g")).await.unwrap(), before, "nothing was moved");
        let sought = store.seek_to(&group("g"), to, false).await.unwrap();
        assert_eq!(sought.gone.unwrap().up_to, at[2], "{to:?}");
    }
    let left = publish(&store, &[event("some", "left")]).await[0];
    let gone = back(Start::Earliest).await.unwrap().gone.unwrap();
    assert_eq!((gone.up_to, gone.events, gone.first), (at[2], 3, Some(left)));
    let gone = store.seek_to(&group("g"), Start::Position(at[1]), false).await.unwrap().gone;
    let gone = gone.unwrap();
    assert_eq!((gone.up_to, gone.events, gone.first), (at[2], 1, Some(left)));
    for to in [Start::Position(at[2]), Start::Latest] {
        assert_eq!(back(to).await.unwrap().gone, None, "{to:?}");
    }
}

pub async fn a_dead_letter_outlives_its_event(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let epoch = led(&store, "g").await;
    publish_some(&store, 1).await;
    bury_all(&store, "g", epoch).await;
    enforce_retention(&store, NOTHING_STAYS).await;
    assert_eq!(events(&store).await, 0);
    let letter = letters(&store, "g").await.remove(0);
    assert_eq!(letter.event.event, event("some", "1"));
    let replayed = store.replay(letter.id, None, None).await.unwrap();
    let back = fetch_all(&store, "g", replayed.position.0 - 1).await;
    assert_eq!(ids(&back), ["1"]);
    // Which the group has not handled yet.
    enforce_retention(&store, NOTHING_STAYS).await;
    assert_eq!(events(&store).await, 1);
}

pub async fn an_event_that_is_retried_stays(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let epoch = led(&store, "g").await;
    let positions = publish_some(&store, 2).await;
    let mut settlement = settlement(&store, "g", epoch, positions[0].0).await;
    settlement.head = Some(head(positions[1].0, 2));
    store.settle(&settlement).await.unwrap();
    enforce_retention(&store, NOTHING_STAYS).await;
    let leadership = store.begin_leadership(&group("g"), &host("two")).await.unwrap();
    assert_eq!(leadership.head.map(|head| head.position), Some(positions[1]));
    assert_eq!(ids(&fetch_all(&store, "g", leadership.position.0).await), ["2"]);
}

pub async fn an_event_that_comes_again_stays_with_all_that_follow(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let epoch = led(&store, "g").await;
    let positions = publish_some(&store, 3).await;
    let again = Redelivery {
        position: positions[1],
        attempt: Attempt(2),
        due_at: time("2026-02-01T00:00:00Z"),
        key: None,
        failure: None,
        late: false,
    };
    let parking = Settlement {
        redeliveries: vec![again],
        ..settlement(&store, "g", epoch, positions[2].0).await
    };
    store.settle(&parking).await.unwrap();
    let enforced = enforce_retention(&store, NOTHING_STAYS).await;
    assert_eq!(enforced.pinned_by, Some(group("g")));
    let pin = store.status().await.unwrap().pinned_by.unwrap();
    assert_eq!(pin.position, Position(positions[1].0 - 1));
    let left = store.fetch_at(&group("g"), &[positions[1]], 1).await.unwrap().events;
    assert_eq!(ids(&left), ["2"]);

    let over = Settlement {
        redelivered: vec![positions[1]],
        ..settlement(&store, "g", epoch, positions[2].0).await
    };
    store.settle(&over).await.unwrap();
    assert_eq!(enforce_retention(&store, NOTHING_STAYS).await.pinned_by, None);
    assert_eq!(events(&store).await, 0);
}

/// Hosts that keep the log, groups that settle, and an operator who moves a cursor
/// back and forth, all at once: whatever is above a cursor is there.
pub async fn never_an_event_above_a_cursor_whatever_happens_at_once(database: &dyn TestDatabase) {
    const ROUNDS: usize = 25;
    let store = database.handle().await;
    let epoch = led(&store, "settles").await;
    store.ensure_group(&settings("moves")).await.unwrap();
    let mut keepers = Vec::new();
    let stop = tokio_util::sync::CancellationToken::new();
    for _ in 0..2 {
        let (store, stop) = (database.handle().await, stop.clone());
        keepers.push(tokio::spawn(async move {
            while !stop.is_cancelled() {
                store.enforce_retention(&NOTHING_STAYS).await.unwrap();
                tokio::task::yield_now().await;
            }
        }));
    }
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        let positions = publish_some(&store, 4).await;
        let last = positions[3];
        all.extend(positions);
        // The cursor that is behind: above it nothing may be missing, now or later.
        let behind = store.cursor(&group("moves")).await.unwrap().position;
        let wanted: Vec<Position> = all.iter().copied().filter(|p| *p > behind).collect();
        settle_to(&store, "settles", epoch, last).await;
        // In the middle of a publish positions may go on in another partition of the table:
        // then the store finds in two steps how far the log is decided.
        until("what was published is safe", async || store.safe_position().await.unwrap() >= last)
            .await;
        let there = fetch_all(&store, "moves", behind.0).await;
        assert_eq!(there.iter().map(|e| e.position).collect::<Vec<_>>(), wanted, "{round}");
        if round % 3 == 2 {
            store.seek(&group("moves"), Start::Position(last)).await.unwrap();
        } else if round % 3 == 0 {
            let to = store.seek(&group("moves"), Start::Earliest).await.unwrap();
            let first = fetch_all(&store, "moves", to.0).await;
            // What was left when it moved is left from now on.
            if let Some(first) = first.first() {
                let again = fetch_all(&store, "moves", to.0).await;
                assert_eq!(again[0].position, first.position, "{round}");
                all.retain(|position| *position >= first.position);
            } else {
                all.clear();
            }
        }
    }
    stop.cancel();
    for keeper in keepers {
        keeper.await.unwrap();
    }
}
