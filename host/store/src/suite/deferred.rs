//! Deferred events: kept whole until their time, in no log and before no cursor, and over
//! with the settlement that ends them.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::samples::{
    end, event, fetch_all, group, head, host, ids, led, mark, publish, redelivery, rich_event,
    settings, settlement, time, until, write,
};
use super::{DeliveryDatabase, TestDatabase};
use crate::{
    Deferral, DeliveryStore, Due, DueFetch, GroupRegistration, Redelivery, Removed, Retention,
    Settled, Settlement, Start, Store,
};
use event_host_core::event::{Attempt, Epoch, Event, GroupName, LogEvent, Partition, Position};

const NOTHING_STAYS: Retention = Retention { max_age: Some(Duration::ZERO), max_bytes: None };

/// A time so many seconds after the first event of these tests is due.
fn at(seconds: i64) -> Timestamp {
    time("2026-03-01T00:00:00.000001Z") + SignedDuration::from_secs(seconds)
}

fn deferral(position: i64, seconds: i64) -> Deferral {
    Deferral { position: Position(position), due_at: at(seconds), late: false }
}

/// Publishes events that are due so many seconds after the first one would be.
async fn publish_delayed(
    store: &Arc<impl DeliveryStore + ?Sized>,
    seconds: &[i64],
) -> Vec<Position> {
    let delayed = |(n, seconds): (usize, &i64)| Event {
        deliver_after: Some(at(*seconds)),
        partitionkey: Some(format!("k{n}")),
        ..event("some", &(n + 1).to_string())
    };
    let events: Vec<Event> = seconds.iter().enumerate().map(delayed).collect();
    publish(store, &events).await
}

/// Leads a group and defers events, with the cursor at a position.
async fn deferring(
    store: &Arc<impl DeliveryStore + ?Sized>,
    name: &str,
    deferred: &[Deferral],
    cursor: i64,
) -> Epoch {
    let epoch = led(store, name).await;
    let deferring =
        Settlement { deferred: deferred.to_vec(), ..settlement(store, name, epoch, cursor).await };
    assert_eq!(store.settle(&deferring).await.unwrap(), Settled::Committed);
    epoch
}

/// Everything that is due by then.
async fn due(store: &Arc<impl DeliveryStore + ?Sized>, name: &GroupName, now: Timestamp) -> Due {
    let all = DueFetch {
        group: name,
        now,
        after: None,
        up_to: Position(i64::MAX),
        max_events: usize::MAX,
    };
    store.due(all).await.unwrap()
}

fn positions(due: &Due) -> Vec<i64> {
    due.events.iter().map(|event| event.position.0).collect()
}

async fn found(
    store: &Arc<impl DeliveryStore + ?Sized>,
    name: &str,
    positions: &[i64],
) -> Vec<LogEvent> {
    let positions: Vec<Position> = positions.iter().copied().map(Position).collect();
    store.fetch_at(&group(name), &positions, usize::MAX).await.unwrap().events
}

async fn waits(store: &Arc<impl DeliveryStore + ?Sized>, name: &str) -> i64 {
    store.deferred(&group(name)).await.unwrap()
}

async fn let_the_log_go(store: &Arc<dyn Store>) {
    until("the log is empty", async || {
        store.enforce_retention(&NOTHING_STAYS).await.unwrap();
        store.status().await.unwrap().events == 0
    })
    .await;
}

pub async fn a_deferred_event_is_kept_whole_though_the_log_lets_it_go(database: &dyn TestDatabase) {
    let (store, other) = (database.handle().await, database.handle().await);
    let original = Event { deliver_after: Some(at(0)), ..rich_event("1") };
    publish(&store, &[original.clone(), event("a", "2")]).await;
    let epoch = deferring(&store, "g", &[deferral(1, 0)], 2).await;
    led(&store, "h").await;
    let both = found(&other, "g", &[1, 2]).await;
    assert_eq!(ids(&both), ["1", "2"], "once, though it is in two places");
    store.seek(&group("h"), Start::Latest).await.unwrap();
    let_the_log_go(&store).await;
    assert_eq!(store.status().await.unwrap().pinned_by, None);

    let kept = found(&other, "g", &[2, 1]).await;
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].position, &kept[0].event), (Position(1), &original));
    assert_eq!(found(&other, "h", &[1]).await, [], "another group's");
    let name = group("g");
    assert_eq!(due(&other, &name, at(-1)).await, Due { events: vec![], next: Some(at(0)) });
    let one = Redelivery {
        due_at: at(0),
        key: original.partitionkey.clone(),
        failure: None,
        ..redelivery(1, 1)
    };
    assert_eq!(due(&other, &name, at(0)).await, Due { events: vec![one], next: None });
    assert_eq!(due(&other, &group("h"), at(9)).await, Due::default());

    // It fails, which makes it a redelivery and keeps it where it is.
    let failing = Settlement {
        redeliveries: vec![redelivery(1, 2)],
        ..settlement(&store, "g", epoch, 2).await
    };
    assert_eq!(store.settle(&failing).await.unwrap(), Settled::Committed);
    assert_eq!(due(&other, &name, at(9)).await, Due::default(), "it comes in another way");
    assert_eq!(store.redeliveries(&name).await.unwrap(), [redelivery(1, 2)]);
    store.enforce_retention(&NOTHING_STAYS).await.unwrap();
    assert_eq!(found(&other, "g", &[1]).await.len(), 1);
    assert_eq!(store.status().await.unwrap().pinned_by, None);
    let over =
        Settlement { redelivered: vec![Position(1)], ..settlement(&store, "g", epoch, 2).await };
    assert_eq!(store.settle(&over).await.unwrap(), Settled::Committed);
    assert_eq!(store.redeliveries(&name).await.unwrap(), []);
    assert_eq!(found(&other, "g", &[1]).await, []);
    assert_eq!(due(&other, &name, at(9)).await, Due::default());
}

pub async fn what_is_due_comes_by_time_and_in_parts(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let seconds = [5, 1, 3, 1, 9, 3];
    publish_delayed(&store, &seconds).await;
    let all: Vec<Deferral> = (1..).zip(seconds).map(|(n, second)| deferral(n, second)).collect();
    deferring(&store, "g", &all, 6).await;
    let name = group("g");
    for (now, expected, next) in [
        (0, vec![], Some(1)),
        (1, vec![2, 4], Some(3)),
        (4, vec![2, 4, 3, 6], Some(5)),
        (9, vec![2, 4, 3, 6, 1, 5], None),
    ] {
        let found = due(&store, &name, at(now)).await;
        assert_eq!((positions(&found), found.next), (expected, next.map(at)), "at {now}");
    }
    let mut after = None;
    let mut parts = Vec::new();
    loop {
        let part = DueFetch { group: &name, now: at(5), after, up_to: Position(4), max_events: 2 };
        let part = store.due(part).await.unwrap();
        let Some(last) = part.events.last() else { break };
        after = Some((last.due_at, last.position));
        assert_eq!(part.next, Some(at(9)));
        parts.push(positions(&part));
    }
    assert_eq!(parts, [vec![2, 4], vec![3, 1]], "up to the cursor that was named");
    // After one that is not there any more.
    let after = Some((at(1), Position(3)));
    let rest = DueFetch { group: &name, now: at(3), after, up_to: Position(9), max_events: 9 };
    assert_eq!(positions(&store.due(rest).await.unwrap()), [4, 3, 6]);
}

pub async fn what_is_deferred_is_settled_with_the_rest_or_not_at_all(
    database: &dyn DeliveryDatabase,
) {
    let store = database.delivery().await;
    publish_delayed(&store, &[1, 2, 3]).await;
    database.drawn_up_to(99).await;
    let former = led(&store, "g").await;
    let epoch = led(&store, "g").await;
    let whole = Settlement {
        deferred: vec![deferral(1, 1), deferral(2, 2)],
        state: vec![write("a", Some(b"1"))],
        head: Some(head(3, 2)),
        ..settlement(&store, "g", epoch, 2).await
    };
    for refused in [
        Settlement { epoch: former, ..whole.clone() },
        Settlement { number: whole.number + 1, ..whole.clone() },
    ] {
        assert_eq!(store.settle(&refused).await.unwrap(), Settled::NotLeader);
    }
    let emits = vec![event("", "no type")];
    store.settle(&Settlement { emits, ..whole.clone() }).await.unwrap_err();
    let above = Settlement { position: Position(1), ..whole.clone() };
    let error = store.settle(&above).await.unwrap_err().to_string();
    assert!(error.contains("at position 2") && error.contains("cursor at 1"), "{error}");
    assert_eq!(waits(&store, "g").await, 0);
    assert_eq!(store.settle(&whole).await.unwrap(), Settled::Committed);
    assert_eq!(waits(&store, "g").await, 2);

    // One that is over is over, and one that is deferred is no redelivery.
    let next = Settlement {
        redeliveries: vec![redelivery(3, 1)],
        ..settlement(&store, "g", epoch, 3).await
    };
    assert_eq!(store.settle(&next).await.unwrap(), Settled::Committed);
    let last = Settlement {
        deferred: vec![deferral(3, 3), deferral(1, 1)],
        redeliveries: vec![redelivery(3, 2)],
        redelivered: vec![Position(1)],
        ..settlement(&store, "g", epoch, 3).await
    };
    assert_eq!(store.settle(&last).await.unwrap(), Settled::Committed);
    assert_eq!(store.redeliveries(&group("g")).await.unwrap(), []);
    assert_eq!(positions(&due(&store, &group("g"), at(9)).await), [2, 3]);
    // A redelivery of which the log has nothing is not lost for that.
    let odd = Settlement {
        redeliveries: vec![redelivery(77, 1)],
        ..settlement(&store, "g", epoch, 99).await
    };
    assert_eq!(store.settle(&odd).await.unwrap(), Settled::Committed);
    let deferred =
        Settlement { deferred: vec![deferral(77, 1)], ..settlement(&store, "g", epoch, 99).await };
    assert_eq!(store.settle(&deferred).await.unwrap(), Settled::Committed);
    assert_eq!(store.redeliveries(&group("g")).await.unwrap(), [redelivery(77, 1)]);
}

pub async fn thousands_of_events_are_deferred_at_once_and_a_few_are_due(
    database: &dyn DeliveryDatabase,
) {
    const COUNT: i64 = 3_001;
    let store = database.delivery().await;
    let seconds: Vec<i64> = (1..=COUNT).collect();
    publish_delayed(&store, &seconds).await;
    let all: Vec<Deferral> = seconds.iter().map(|n| deferral(*n, *n)).collect();
    let epoch = deferring(&store, "g", &all, COUNT).await;
    assert_eq!(waits(&store, "g").await, COUNT);
    let found = due(&store, &group("g"), at(3)).await;
    assert_eq!((positions(&found), found.next), (vec![1, 2, 3], Some(at(4))));
    let over = Settlement {
        redelivered: seconds.iter().map(|n| Position(*n)).filter(|n| n.0 % 2 == 0).collect(),
        ..settlement(&store, "g", epoch, COUNT).await
    };
    assert_eq!(store.settle(&over).await.unwrap(), Settled::Committed);
    assert_eq!(waits(&store, "g").await, COUNT / 2 + 1);
}

pub async fn the_deferred_event_of_a_marked_attempt_is_known_to_the_next_leader(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    publish_delayed(&store, &[1, 2]).await;
    let epoch = deferring(&store, "g", &[deferral(1, 1), deferral(2, 2)], 2).await;
    let name = group("g");
    assert_eq!(store.redeliveries(&name).await.unwrap(), []);
    store.record_attempt_started(&name, epoch, 1, mark(2, 1)).await.unwrap();
    let marked =
        Redelivery { due_at: at(2), key: Some("k1".to_owned()), failure: None, ..redelivery(2, 1) };
    store.begin_leadership(&name, &host("two")).await.unwrap();
    assert_eq!(store.redeliveries(&name).await.unwrap(), std::slice::from_ref(&marked));
    assert_eq!(store.group_status(&name).await.unwrap().parked, 0);
    // As it is once it failed.
    let epoch = led(&store, "g").await;
    let failed = Settlement {
        mark: Some(mark(2, 1)),
        redeliveries: vec![Redelivery { attempt: Attempt(2), ..marked.clone() }],
        ..settlement(&store, "g", epoch, 2).await
    };
    assert_eq!(store.settle(&failed).await.unwrap(), Settled::Committed);
    let listed = store.redeliveries(&name).await.unwrap();
    assert_eq!(listed, [Redelivery { attempt: Attempt(2), ..marked }]);
}

pub async fn a_seek_forgets_what_the_log_brings_again_and_keeps_what_it_does_not(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    publish_delayed(&store, &[1, 2, 3]).await;
    let all = [deferral(1, 1), deferral(2, 2), deferral(3, 3)];
    let name = group("g");
    for (to, left) in [(3, 3), (2, 2), (0, 0)] {
        deferring(&store, "g", &all, 3).await;
        let cursor = store.seek(&name, Start::Position(Position(to))).await.unwrap();
        assert_eq!((cursor, waits(&store, "g").await), (Position(to), left));
    }
    assert_eq!(fetch_all(&store, "g", 0).await.len(), 3);

    // Without them in the log the cursor goes no further back than to them.
    let epoch = deferring(&store, "g", &all, 3).await;
    let failing = Settlement {
        redeliveries: vec![redelivery(2, 2)],
        ..settlement(&store, "g", epoch, 3).await
    };
    assert_eq!(store.settle(&failing).await.unwrap(), Settled::Committed);
    let_the_log_go(&store).await;
    let newer = publish(&store, &[event("a", "4"), event("a", "5")]).await;
    let back = async |to| store.seek(&name, to).await.unwrap();
    assert_eq!(back(Start::Earliest).await, Position(3));
    assert_eq!(store.redeliveries(&name).await.unwrap(), [redelivery(2, 2)]);
    assert_eq!(positions(&due(&store, &name, at(9)).await), [1, 3]);
    assert_eq!(ids(&fetch_all(&store, "g", 3).await), ["4", "5"]);
    assert_eq!(back(Start::Latest).await, newer[1]);
    assert_eq!(back(Start::Position(newer[0])).await, newer[0]);
    assert_eq!(waits(&store, "g").await, 2);
}

pub async fn a_removed_group_takes_what_is_deferred_along(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish_delayed(&store, &[1, 2, 3]).await;
    let all = [deferral(1, 1), deferral(2, 2), deferral(3, 3)];
    deferring(&store, "h", &all, 3).await;
    let epoch = deferring(&store, "g", &all, 3).await;
    let failing = Settlement {
        redeliveries: vec![redelivery(2, 2)],
        ..settlement(&store, "g", epoch, 3).await
    };
    assert_eq!(store.settle(&failing).await.unwrap(), Settled::Committed);
    let removed = store.remove_group(&group("g"), false).await.unwrap();
    assert_eq!(removed, Removed { parked: 1, deferred: 2 });
    assert_eq!((waits(&store, "g").await, waits(&store, "h").await), (0, 3));
    store.ensure_group(&settings("g")).await.unwrap();
    assert_eq!(due(&store, &group("g"), at(9)).await, Due::default());
}

pub async fn status_counts_what_is_deferred_apart(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish_delayed(&store, &[7, 5, 9]).await;
    let epoch = deferring(&store, "g", &[deferral(1, 7), deferral(2, 5), deferral(3, 9)], 3).await;
    led(&store, "h").await;
    let name = group("g");
    for (redeliveries, parked, deferred, next) in [
        (vec![], 0, 3, 5),
        // One that failed is counted once, and is due when it is.
        (vec![Redelivery { due_at: at(6), ..redelivery(2, 2) }], 1, 2, 6),
        (vec![Redelivery { due_at: at(8), ..redelivery(2, 3) }], 1, 2, 7),
    ] {
        let settled = Settlement { redeliveries, ..settlement(&store, "g", epoch, 3).await };
        assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
        let shown = store.group_status(&name).await.unwrap();
        let all = store.status().await.unwrap().groups;
        for status in [&shown, &all[0]] {
            assert_eq!((status.parked, status.retries_pending), (parked, parked));
            assert_eq!((status.deferred, status.next_due_at), (deferred, Some(at(next))));
        }
        assert_eq!((all[1].deferred, all[1].next_due_at), (0, None), "another group's");
    }
}

pub async fn what_is_deferred_goes_along_when_a_group_is_repartitioned(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let seconds: Vec<i64> = (1..=20).collect();
    publish_delayed(&store, &seconds).await;
    let all: Vec<Deferral> = seconds.iter().map(|n| deferral(*n, *n)).collect();
    let epoch = deferring(&store, "g", &all, 20).await;
    end(&store, &group("g"), epoch).await;
    let_the_log_go(&store).await;
    let mut found_in = Vec::new();
    for of in [3_u32, 1, 2] {
        store.ensure_group(&GroupRegistration { partitions: of, ..settings("g") }).await.unwrap();
        found_in.clear();
        for number in 0..of {
            let name = if of == 1 { group("g") } else { group("g").partition(number) };
            for one in due(&store, &name, at(99)).await.events {
                let place = Partition::number_of(one.key.as_deref(), one.position, of);
                assert_eq!(place, number, "{one:?}");
                let found = store.fetch_at(&name, &[one.position], usize::MAX).await.unwrap();
                assert_eq!(ids(&found.events), [one.position.0.to_string()]);
                found_in.push(one.position.0);
            }
        }
        found_in.sort_unstable();
        assert_eq!(found_in, seconds);
        assert_eq!(store.group_status(&group("g")).await.unwrap().deferred, 20);
    }
}

pub async fn an_event_for_later_than_a_year_is_refused(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let epoch = led(&store, "g").await;
    let until = |days: i64| Event {
        deliver_after: Some(Timestamp::now() + SignedDuration::from_hours(24 * days)),
        ..event("some", "1")
    };
    let refused =
        store.publish(&event_host_core::event::Tenant::none(), &[until(1), until(400)]).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("deliver_after_is_within_a_year"), "{refused}");
    let emitting =
        Settlement { emits: vec![until(1), until(400)], ..settlement(&store, "g", epoch, 0).await };
    store.settle(&emitting).await.unwrap_err();
    assert_eq!(store.status().await.unwrap().events, 0);
    publish(&store, &[until(366)]).await;
}
