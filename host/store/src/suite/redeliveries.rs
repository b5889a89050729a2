//! Redeliveries: settled with the rest, found by the next leader, never above the
//! cursor.

use std::sync::Arc;

use tokio::sync::Barrier;

use super::samples::{
    bury_all, dead, end, event, fetch_all, group, head, host, ids, led, publish, publish_some,
    redelivery, rich_event, settings, settlement, tenant, time, write,
};
use super::{DeliveryDatabase, TestDatabase};
use crate::{
    DeliveryStore, FailureRecord, GroupRegistration, Head, Redelivery, Removed, Settled,
    Settlement, Start, StoreError, Subscription,
};
use event_host_core::event::{Attempt, Epoch, Event, GroupName, Position};
use event_host_core::failure::FailureKind;

/// The positions that come again for a group.
async fn parked(store: &Arc<impl DeliveryStore + ?Sized>, name: &str) -> Vec<i64> {
    store.redeliveries(&group(name)).await.unwrap().iter().map(|r| r.position.0).collect()
}

/// Leads a group and parks the events at some positions, with the cursor at
/// another.
async fn parking(
    store: &Arc<impl DeliveryStore + ?Sized>,
    name: &str,
    at: &[i64],
    cursor: i64,
) -> Epoch {
    let epoch = led(store, name).await;
    let parking = Settlement {
        redeliveries: at.iter().map(|position| redelivery(*position, 2)).collect(),
        ..settlement(store, name, epoch, cursor).await
    };
    assert_eq!(store.settle(&parking).await.unwrap(), Settled::Committed);
    epoch
}

pub async fn a_redelivery_comes_back_as_it_was_settled(database: &dyn DeliveryDatabase) {
    database.drawn_up_to(i64::MAX).await;
    let (store, other) = (database.delivery().await, database.delivery().await);
    let epoch = led(&store, "g").await;
    led(&store, "h").await;
    let long = "long \u{1F980} ".repeat(1_000);
    let texts = ["", "\0", "a\0b", "k", "'; DROP TABLE events; --", "\u{FFFF}\u{10FFFF}", &long];
    let mut settled = Vec::new();
    for (position, text) in (1..).zip(texts) {
        let failure = FailureRecord { kind: "newer-kind".to_owned(), text: text.to_owned() };
        settled.push(Redelivery {
            key: Some(text.to_owned()),
            failure: Some(failure),
            ..redelivery(position, u32::MAX)
        });
    }
    settled.push(Redelivery { key: None, failure: None, ..redelivery(i64::MAX, 1) });
    let due_at = time("1969-12-31T23:59:59.999999Z");
    settled.push(Redelivery { due_at, failure: None, ..redelivery(i64::MAX - 1, 1) });
    let parking = Settlement {
        redeliveries: settled.clone(),
        ..settlement(&store, "g", epoch, i64::MAX).await
    };
    assert_eq!(store.settle(&parking).await.unwrap(), Settled::Committed);

    settled.sort_by_key(|redelivery| redelivery.position);
    for Redelivery { key, failure, .. } in &mut settled {
        *key = key.as_deref().map(|key| database.kept(key));
        if let Some(failure) = failure {
            failure.text = database.kept(&failure.text);
        }
    }
    assert_eq!(other.redeliveries(&group("g")).await.unwrap(), settled);
    for nothing in ["h", "nobody"] {
        assert_eq!(other.redeliveries(&group(nothing)).await.unwrap(), []);
    }
}

pub async fn a_redelivery_is_set_anew_until_it_is_over(database: &dyn DeliveryDatabase) {
    database.drawn_up_to(10).await;
    let store = database.delivery().await;
    let epoch = parking(&store, "g", &[1, 3, 5], 5).await;
    let again = Redelivery {
        due_at: time("2026-02-01T00:00:09.000009Z"),
        failure: Some(FailureRecord::new(FailureKind::Timeout, "too slow")),
        ..redelivery(3, 4)
    };
    let first = Redelivery { key: Some("k".to_owned()), failure: None, ..redelivery(4, 1) };
    let changing = Settlement {
        // The last one of a position wins, and one that is over is over.
        redeliveries: vec![redelivery(3, 3), first.clone(), redelivery(5, 3), again.clone()],
        redelivered: [5, 2, 5].map(Position).to_vec(),
        ..settlement(&store, "g", epoch, 5).await
    };
    assert_eq!(store.settle(&changing).await.unwrap(), Settled::Committed);
    let now = [redelivery(1, 2), again, first];
    assert_eq!(store.redeliveries(&group("g")).await.unwrap(), now);

    // One that says nothing of them leaves them alone, and so does one that gives
    // up on one of them.
    let bare = settlement(&store, "g", epoch, 6).await;
    assert_eq!(store.settle(&bare).await.unwrap(), Settled::Committed);
    assert_eq!(store.redeliveries(&group("g")).await.unwrap(), now);
    let over = Settlement {
        redelivered: [3, 1, 4].map(Position).to_vec(),
        ..settlement(&store, "g", epoch, 6).await
    };
    assert_eq!(store.settle(&over).await.unwrap(), Settled::Committed);
    assert_eq!(parked(&store, "g").await, [0_i64; 0]);
}

pub async fn thousands_of_redeliveries_are_settled_at_once(database: &dyn DeliveryDatabase) {
    database.drawn_up_to(5_000).await;
    const COUNT: i64 = 3_001;
    let store = database.delivery().await;
    let all: Vec<i64> = (1..=COUNT).collect();
    let epoch = parking(&store, "g", &all, COUNT).await;
    assert_eq!(parked(&store, "g").await, all);
    let (even, odd): (Vec<i64>, Vec<i64>) = all.iter().partition(|position| *position % 2 == 0);
    let both = Settlement {
        redeliveries: even.iter().rev().map(|position| redelivery(*position, 3)).collect(),
        redelivered: odd.iter().copied().map(Position).collect(),
        ..settlement(&store, "g", epoch, COUNT).await
    };
    assert_eq!(store.settle(&both).await.unwrap(), Settled::Committed);
    let left = store.redeliveries(&group("g")).await.unwrap();
    assert!(left.iter().map(|redelivery| redelivery.position.0).eq(even));
    assert!(left.iter().all(|redelivery| redelivery.attempt == Attempt(3)));
}

pub async fn a_settlement_that_is_not_committed_leaves_redeliveries_as_they_were(
    database: &dyn DeliveryDatabase,
) {
    let (store, late) = (database.delivery().await, database.delivery().await);
    let events = publish_some(&store, 4).await;
    let former = led(&store, "g").await;
    let epoch = parking(&store, "g", &[1, 2], 2).await;
    let fetched = fetch_all(&store, "g", 0).await;
    let whole = Settlement {
        head: Some(head(events[3].0, 2)),
        dead_letters: vec![dead(fetched[0].clone())],
        emits: vec![event("emitted", "e1")],
        state: vec![write("a", Some(b"1"))],
        redeliveries: vec![redelivery(2, 3), redelivery(3, 2)],
        redelivered: vec![Position(1)],
        ..settlement(&store, "g", epoch, 3).await
    };
    let unchanged = [redelivery(1, 2), redelivery(2, 2)];
    let emits = vec![event("emitted", "e1"), event("", "no type")];
    store.settle(&Settlement { emits, ..whole.clone() }).await.unwrap_err();
    assert_eq!(store.redeliveries(&group("g")).await.unwrap(), unchanged);
    for refused in [
        Settlement { epoch: former, ..whole.clone() },
        Settlement { number: whole.number - 1, ..whole.clone() },
        Settlement { number: whole.number + 1, ..whole.clone() },
    ] {
        assert_eq!(late.settle(&refused).await.unwrap(), Settled::NotLeader);
        assert_eq!(store.redeliveries(&group("g")).await.unwrap(), unchanged);
    }
    assert_eq!(store.settle(&whole).await.unwrap(), Settled::Committed);
    let now = [redelivery(2, 3), redelivery(3, 2)];
    assert_eq!(store.redeliveries(&group("g")).await.unwrap(), now);
    assert_eq!(late.settle(&whole).await.unwrap(), Settled::NotLeader);
    assert_eq!(store.redeliveries(&group("g")).await.unwrap(), now);
}

pub async fn a_redelivery_above_the_cursor_is_refused(database: &dyn DeliveryDatabase) {
    database.drawn_up_to(10).await;
    let store = database.delivery().await;
    let epoch = parking(&store, "g", &[2], 2).await;
    let before = store.cursor(&group("g")).await.unwrap();
    let above = Settlement {
        redeliveries: vec![redelivery(1, 2), redelivery(4, 2), redelivery(2, 3)],
        ..settlement(&store, "g", epoch, 3).await
    };
    let error = store.settle(&above).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused(text) if text.contains('4')), "{error}");
    assert_eq!(store.cursor(&group("g")).await.unwrap(), before);
    assert_eq!(store.redeliveries(&group("g")).await.unwrap(), [redelivery(2, 2)]);
    let reached = Settlement { position: Position(4), ..above };
    assert_eq!(store.settle(&reached).await.unwrap(), Settled::Committed);
    assert_eq!(parked(&store, "g").await, [1, 2, 4]);
}

pub async fn redeliveries_are_there_for_whoever_leads_next(database: &dyn DeliveryDatabase) {
    let (store, next) = (database.delivery().await, database.delivery().await);
    publish_some(&store, 3).await;
    let epoch = parking(&store, "g", &[1, 2], 3).await;
    end(&store, &group("g"), epoch).await;
    next.ensure_group(&settings("g")).await.unwrap();
    for round in 3..6 {
        // As after a crash: nobody ended the leadership before.
        let epoch = next.begin_leadership(&group("g"), &host("two")).await.unwrap().epoch;
        assert_eq!(parked(&next, "g").await, [1, 2]);
        let again = Settlement {
            redeliveries: vec![redelivery(2, round)],
            ..settlement(&next, "g", epoch, 3).await
        };
        assert_eq!(next.settle(&again).await.unwrap(), Settled::Committed);
        let left = store.redeliveries(&group("g")).await.unwrap();
        assert_eq!(left, [redelivery(1, 2), redelivery(2, round)]);
    }
}

pub async fn a_seek_forgets_the_redeliveries_above_it(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish_some(&store, 5).await;
    parking(&store, "h", &[1, 5], 5).await;
    for (to, left) in [
        (Start::Latest, &[1, 3, 5][..]),
        (Start::Position(Position(4)), &[1, 3]),
        (Start::Position(Position(3)), &[1, 3]),
        (Start::Time(time("2026-01-01T00:00:00Z")), &[]),
        (Start::Earliest, &[]),
    ] {
        parking(&store, "g", &[1, 3, 5], 5).await;
        store.seek(&group("g"), to).await.unwrap();
        assert_eq!(parked(&store, "g").await, left, "{to:?}");
    }
    // One that is refused forgets nothing.
    parking(&store, "g", &[1, 3, 5], 5).await;
    store.seek(&group("g"), Start::Position(Position(6))).await.unwrap_err();
    assert_eq!(parked(&store, "g").await, [1, 3, 5]);
    assert_eq!(parked(&store, "h").await, [1, 5], "another group's");
}

pub async fn of_a_seek_and_settlements_at_once_no_redelivery_stays_above_the_cursor(
    database: &dyn TestDatabase,
) {
    const ROUNDS: usize = 50;
    let (leading, seeking) = (database.handle().await, database.handle().await);
    publish_some(&leading, 9).await;
    for round in 0..ROUNDS {
        let epoch = parking(&leading, "g", &[1, 2, 3, 4], 5).await;
        let open = Settlement {
            redeliveries: (6..=9).map(|position| redelivery(position, 2)).collect(),
            redelivered: vec![Position(4), Position(3)],
            ..settlement(&leading, "g", epoch, 9).await
        };
        let together = Arc::new(Barrier::new(2));
        let settling = tokio::spawn({
            let (store, together) = (Arc::clone(&leading), Arc::clone(&together));
            async move {
                together.wait().await;
                store.settle(&open).await.unwrap()
            }
        });
        together.wait().await;
        seeking.seek(&group("g"), Start::Position(Position(2))).await.unwrap();
        settling.await.unwrap();
        let cursor = leading.cursor(&group("g")).await.unwrap();
        assert_eq!(cursor.position, Position(2), "round {round}");
        assert_eq!(parked(&leading, "g").await, [1, 2], "round {round}");
    }
}

pub async fn a_removed_group_takes_its_redeliveries_along(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let events = publish_some(&store, 3).await;
    let epoch = parking(&store, "g", &[1, 2], 3).await;
    parking(&store, "h", &[2], 3).await;
    bury_all(&store, "g", epoch).await;
    store.remove_group(&group("g"), false).await.unwrap_err();
    assert_eq!(parked(&store, "g").await, [1, 2], "it is still there");
    let removed = store.remove_group(&group("g"), true).await.unwrap();
    assert_eq!(removed, Removed { parked: 2, deferred: 0 });
    assert_eq!(parked(&store, "h").await, [2]);
    assert_eq!(store.safe_position().await.unwrap(), events[2], "the log has them still");

    store.ensure_group(&settings("g")).await.unwrap();
    assert_eq!(parked(&store, "g").await, [0_i64; 0]);
    assert_eq!(fetch_all(&store, "g", 0).await.len(), 3);
    // Redeliveries alone do not stand in the way.
    let removed = store.remove_group(&group("h"), false).await.unwrap();
    assert_eq!(removed, Removed { parked: 1, deferred: 0 });
    assert_eq!(
        store.remove_group(&group("g"), false).await.unwrap(),
        Removed { parked: 0, deferred: 0 }
    );
}

pub async fn status_counts_what_is_parked_and_says_what_is_due_next(database: &dyn TestDatabase) {
    database.drawn_up_to(10).await;
    let store = database.handle().await;
    let at =
        |second: i64| time("2026-02-01T00:00:00.000001Z") + jiff::SignedDuration::from_secs(second);
    let epoch = led(&store, "g").await;
    led(&store, "h").await;
    for (redeliveries, redelivered, of_the_head, retries, parked, next) in [
        (vec![], vec![], None, 0, 0, None),
        (vec![(1, 5), (2, 3), (3, 4)], vec![], None, 3, 3, Some(3)),
        (vec![], vec![], Some(9), 4, 3, Some(3)),
        (vec![], vec![], Some(1), 4, 3, Some(1)),
        (vec![(1, 20)], vec![2], None, 2, 2, Some(4)),
        (vec![], vec![1, 3], Some(7), 1, 0, Some(7)),
        (vec![], vec![], None, 0, 0, None),
    ] {
        let due = |(position, second)| Redelivery { due_at: at(second), ..redelivery(position, 2) };
        let settling = Settlement {
            head: of_the_head.map(|second| Head { due_at: at(second), ..head(6, 2) }),
            redeliveries: redeliveries.into_iter().map(due).collect(),
            redelivered: redelivered.into_iter().map(Position).collect(),
            ..settlement(&store, "g", epoch, 5).await
        };
        assert_eq!(store.settle(&settling).await.unwrap(), Settled::Committed);
        let shown = store.group_status(&group("g")).await.unwrap();
        let all = store.status().await.unwrap().groups;
        for status in [&shown, &all[0]] {
            assert_eq!((status.retries_pending, status.parked), (retries, parked));
            assert_eq!(status.next_due_at, next.map(at));
        }
        assert_eq!((all[1].parked, all[1].next_due_at), (0, None), "another group's");
    }
}

pub async fn status_counts_what_is_delivered_later_as_parked_and_not_as_a_retry(
    database: &dyn TestDatabase,
) {
    database.drawn_up_to(10).await;
    let store = database.handle().await;
    let epoch = led(&store, "g").await;
    let later = time("2999-01-01T00:00:00Z");
    let waits = |position, due_at| Redelivery { due_at, failure: None, ..redelivery(position, 1) };
    // One waits behind others, one for its time.
    let settling = Settlement {
        redeliveries: vec![
            waits(1, jiff::Timestamp::UNIX_EPOCH),
            waits(2, later),
            Redelivery { due_at: later, ..redelivery(3, 2) },
        ],
        ..settlement(&store, "g", epoch, 5).await
    };
    store.settle(&settling).await.unwrap();
    let status = store.group_status(&group("g")).await.unwrap();
    assert_eq!((status.parked, status.retries_pending), (3, 2));
    assert_eq!(status.next_due_at, Some(later), "what waits for others has no time");
    let delayed: Vec<bool> = store
        .redeliveries(&group("g"))
        .await
        .unwrap()
        .iter()
        .map(|redelivery| redelivery.is_delayed(time("2026-01-01T00:00:00Z")))
        .collect();
    assert_eq!(delayed, [false, true, false]);
}

pub async fn events_are_found_at_their_positions(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let original = rich_event("1");
    publish(&store, &[original.clone(), event("a", "2"), event("b", "3")]).await;
    store.publish(&tenant("acme"), &[event("a", "4")]).await.unwrap();
    // Whatever the group subscribes to now.
    let subscription = Subscription::new(["other"]).unwrap();
    store.ensure_group(&GroupRegistration { subscription, ..settings("g") }).await.unwrap();
    let acme = GroupRegistration { tenant: tenant("acme"), ..settings("acme") };
    store.ensure_group(&acme).await.unwrap();
    let epoch = led(&store, "h").await;
    let letters = bury_all(&store, "h", epoch).await;
    let for_h = store.replay(letters[2].id, None, None).await.unwrap().position;
    assert_eq!(for_h, Position(5));

    let at = async |name: &str, positions: &[i64]| {
        let positions: Vec<Position> = positions.iter().copied().map(Position).collect();
        store.fetch_at(&group(name), &positions, usize::MAX).await.unwrap().events
    };
    let found = at("g", &[3, 1]).await;
    assert_eq!(found[0].event, original);
    assert_eq!((found[0].position, &found[0].deliver_to), (Position(1), &None));
    assert_eq!(ids(&found), ["1", "3"]);
    assert_eq!(ids(&at("g", &[2, 9, i64::MAX, 0, -1, 2]).await), ["2"], "once, and what is there");
    assert_eq!(ids(&at("g", &[4, 5]).await), [""; 0], "another tenant's, and for another group");
    assert_eq!(ids(&at("acme", &[1, 4, 5]).await), ["4"]);
    let own = at("h", &[5, 4, 2]).await;
    assert_eq!(ids(&own), ["2", "3"]);
    assert_eq!(own[1].deliver_to, Some(group("h")));
    assert_eq!(ids(&at("g", &[]).await), [""; 0]);
    assert_eq!(ids(&at("nobody", &[1, 2]).await), [""; 0]);

    let more: Vec<Event> = (0..3_000).map(|n| event("a", &n.to_string())).collect();
    let positions = publish(&store, &more).await;
    let g: GroupName = group("g");
    // In parts, each of which is at least an event.
    let first = store.fetch_at(&g, &positions[..2], 1).await.unwrap();
    assert_eq!((first.events.len(), first.looked_to), (1, positions[0]));
    let found = store.fetch_at(&g, &positions, usize::MAX).await.unwrap();
    assert_eq!(found.looked_to, *positions.last().unwrap());
    assert!(found.events.iter().map(|event| event.position).eq(positions));
}
