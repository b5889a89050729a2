//! Publishing for many at once, each event once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::TestDatabase;
use super::samples::{event, fetch, fetch_all, ids, publish, rich_event, tenant};
use crate::{Incoming, Ingested, Placed, Store, StoreError, Subscription};
use event_host_core::event::{Event, Position};

const HOUR: Option<Duration> = Some(Duration::from_secs(3_600));

fn request(owner: &str, events: &[Event]) -> Incoming {
    Incoming {
        tenant: tenant(owner),
        events: events.to_vec(),
        window: HOUR,
        also_known_as: Vec::new(),
    }
}

async fn ingest(store: &Arc<dyn Store>, requests: &[Incoming]) -> Vec<Ingested> {
    let ingested = store.ingest(requests).await.unwrap();
    assert_eq!(ingested.len(), requests.len());
    ingested
}

/// The positions of a request that was taken, and which of its events were there before.
fn placed(ingested: &Ingested) -> (Vec<i64>, Vec<bool>) {
    let Ingested::Committed(placed) = ingested else { panic!("{ingested:?}") };
    placed.iter().map(|placed| (placed.position.0, placed.is_duplicate)).unzip()
}

pub async fn what_is_ingested_stands_in_the_order_of_the_requests_under_their_tenants(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let rich = rich_event("r");
    let requests = [
        request("", &[event("t", "1"), rich.clone()]),
        request("acme", &[event("t", "2")]),
        request("", &[]),
        request("", &[event("t", "3")]),
    ];
    let ingested = ingest(&store, &requests).await;
    let positions: Vec<i64> = ingested.iter().flat_map(|one| placed(one).0).collect();
    assert_eq!(positions.len(), 4);
    assert!(positions.is_sorted_by(|a, b| a < b), "{positions:?}");
    assert_eq!(ingested[2], Ingested::Committed(Vec::new()));

    let ours = fetch_all(&store, "any", 0).await;
    assert_eq!(ids(&ours), ["1", "r", "3"]);
    assert!(ours[1].event == rich, "{:?}", ours[1]);
    let found: Vec<i64> = ours.iter().map(|event| event.position.0).collect();
    assert_eq!(found, [positions[0], positions[1], positions[3]]);
    let theirs = fetch(&store, "any", &tenant("acme"), &Subscription::all(), 0).await.events;
    assert_eq!(theirs.iter().map(|event| event.position.0).collect::<Vec<_>>(), [positions[2]]);
}

pub async fn an_event_that_comes_again_is_answered_with_its_position(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let first = ingest(&store, &[request("", &[event("t", "1"), event("t", "2")])]).await;
    let (positions, duplicates) = placed(&first[0]);
    assert_eq!(duplicates, [false, false]);

    // From another handle, at another time, with one that is new, twice.
    let other = database.handle().await;
    let later = Event { time: jiff::Timestamp::UNIX_EPOCH, ..event("t", "2") };
    let again = [later, event("t", "3"), event("t", "3")];
    let again = ingest(&other, &[request("", &again), request("", &[event("t", "1")])]).await;
    let (theirs, duplicates) = placed(&again[0]);
    assert_eq!(duplicates, [true, false, true]);
    assert_eq!((theirs[0], theirs[1]), (positions[1], theirs[2]));
    assert_eq!(placed(&again[1]), (vec![positions[0]], vec![true]));
    assert_eq!(ids(&fetch_all(&store, "any", 0).await), ["1", "2", "3"]);

    // Published in another way, it is in no ledger.
    publish(&store, &[event("t", "4")]).await;
    let new = ingest(&store, &[request("", &[event("t", "4")])]).await;
    assert_eq!(placed(&new[0]).1, [false]);
}

pub async fn the_same_id_with_other_content_is_refused_with_all_of_its_request(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let first = ingest(&store, &[request("", &[event("t", "1")])]).await;
    let at = Position(placed(&first[0]).0[0]);
    let one = event("t", "1");
    let others = [
        event("another", "1"),
        Event { subject: Some("s".to_owned()), ..one.clone() },
        Event { datacontenttype: Some("text/plain".to_owned()), ..one.clone() },
        Event { data: Some(b"other".to_vec()), ..one.clone() },
        Event { data: None, ..one.clone() },
    ];
    for (n, other) in others.into_iter().enumerate() {
        let before = format!("before {n}");
        let requests = [
            request("", &[event("t", &before), other.clone()]),
            // What the request before would have entered is free.
            request("", &[Event { data: None, ..event("t", &before) }]),
            request("", &[event("t", "x"), event("u", "x")]),
        ];
        let ingested = ingest(&store, &requests).await;
        assert_eq!(ingested[0], Ingested::Reused { event: 1, position: Some(at) }, "{other:?}");
        assert_eq!(placed(&ingested[1]).0.len(), 1);
        assert_eq!(ingested[2], Ingested::Reused { event: 1, position: None });
    }
    let there = fetch_all(&store, "any", 0).await;
    assert_eq!(ids(&there), ["1", "before 0", "before 1", "before 2", "before 3", "before 4"]);
    assert!(there[1..].iter().all(|event| event.event.data.is_none()));
    // What is refused has left nothing in the ledger.
    let free = ingest(&store, &[request("", &[event("u", "x")])]).await;
    assert_eq!(placed(&free[0]).1, [false]);
}

pub async fn what_is_the_same_of_a_source_is_another_tenants_own(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let of_another_source = Event { source: "/other".to_owned(), ..event("t", "1") };
    let requests =
        [request("", &[event("t", "1"), of_another_source]), request("acme", &[event("u", "1")])];
    for ingested in ingest(&store, &requests).await {
        assert!(placed(&ingested).1.iter().all(|is_duplicate| !is_duplicate));
    }
}

pub async fn what_is_known_besides_its_id_is_a_duplicate_under_another(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let also = |id: &str, also: &str| Incoming {
        also_known_as: vec![also.to_owned()],
        ..request("", &[event("t", id)])
    };
    let first = placed(&ingest(&store, &[also("1", "body")]).await[0]).0;
    let again = ingest(&store, &[also("2", "body"), also("3", "another")]).await;
    assert_eq!(placed(&again[0]), (first, vec![true]));
    assert_eq!(placed(&again[1]).1, [false]);
    // The id that came with a known body is free.
    let other = Event { data: None, ..event("t", "2") };
    let second = ingest(&store, &[request("", &[other])]).await;
    assert_eq!(placed(&second[0]).1, [false]);
    assert_eq!(ids(&fetch_all(&store, "any", 0).await), ["1", "3", "2"]);
}

pub async fn nothing_is_a_duplicate_without_a_window_and_after_it(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let without = Incoming { window: None, ..request("", &[event("t", "1"), event("u", "1")]) };
    for _ in 0..2 {
        let ingested = ingest(&store, &[without.clone(), without.clone()]).await;
        for one in &ingested {
            assert_eq!(placed(one).1, [false, false]);
        }
    }
    let short =
        Incoming { window: Some(Duration::from_micros(1)), ..request("", &[event("t", "1")]) };
    let first = placed(&ingest(&store, std::slice::from_ref(&short)).await[0]).0;
    let later = Incoming { window: HOUR, events: vec![event("u", "1")], ..short };
    let second = ingest(&store, std::slice::from_ref(&later)).await;
    assert_eq!(placed(&second[0]).1, [false], "the entry of {first:?} is over");
    let third = ingest(&store, &[later]).await;
    assert_eq!(placed(&third[0]), (placed(&second[0]).0, vec![true]));
}

pub async fn what_a_store_refuses_leaves_nothing_in_log_and_ledger(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let good = request("", &[event("t", "1")]);
    let bad = request("", &[event("t", "2"), event("", "no type")]);
    let refused = store.ingest(&[good.clone(), bad]).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    assert!(fetch_all(&store, "any", 0).await.is_empty());
    let taken = ingest(&store, &[good, request("", &[event("t", "2")])]).await;
    assert!(taken.iter().all(|one| placed(one).1 == [false]));
    assert_eq!(ids(&fetch_all(&store, "any", 0).await), ["1", "2"]);
}

pub async fn the_same_request_from_many_at_once_is_there_once(database: &dyn TestDatabase) {
    let events: Vec<Event> = (0..20).map(|n| event("t", &n.to_string())).collect();
    let mut sending = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = database.handle().await;
        let one = request("", &events);
        sending.spawn(async move { until_taken(&store, &[one]).await });
    }
    let mut all = BTreeSet::new();
    let mut new = 0;
    for ingested in sending.join_all().await {
        let (positions, duplicates) = placed(&ingested[0]);
        new += duplicates.iter().filter(|is_duplicate| !**is_duplicate).count();
        all.insert(positions);
    }
    assert_eq!(new, 20);
    assert_eq!(all.len(), 1, "all are told the same positions");
    let store = database.handle().await;
    assert_eq!(fetch_all(&store, "any", 0).await.len(), 20);
}

/// Ingests as a sender does, which sends again when it is told that the store is busy.
async fn until_taken(store: &Arc<dyn Store>, requests: &[Incoming]) -> Vec<Ingested> {
    loop {
        match store.ingest(requests).await {
            Ok(ingested) => return ingested,
            Err(StoreError::Busy(why)) => assert!(!why.contains("deadlock"), "{why}"),
            Err(why) => panic!("{why}"),
        }
    }
}

pub async fn batches_in_opposite_orders_at_once_all_pass(database: &dyn TestDatabase) {
    const BATCHES: usize = 40;
    let mut sending = tokio::task::JoinSet::new();
    for sender in 0..4 {
        let store = database.handle().await;
        sending.spawn(async move {
            let mut new = 0;
            for batch in 0..BATCHES {
                // Each event is in the batches of all four, and of two batches of each.
                let ids = batch * 10..batch * 10 + 20;
                let mut events: Vec<Event> = ids.map(|id| event("t", &id.to_string())).collect();
                if sender % 2 == 1 {
                    events.reverse();
                }
                for ingested in until_taken(&store, &[request("", &events)]).await {
                    new += placed(&ingested).1.into_iter().filter(|there| !there).count();
                }
            }
            new
        });
    }
    let new: usize = sending.join_all().await.into_iter().sum();
    assert_eq!(new, BATCHES * 10 + 10);
    let store = database.handle().await;
    let there = fetch_all(&store, "any", 0).await;
    let different: BTreeSet<&str> = there.iter().map(|event| event.event.id.as_str()).collect();
    assert_eq!((there.len(), different.len()), (new, new));
}

pub async fn the_ledger_lets_go_of_what_is_over_and_of_the_oldest_beyond_a_number(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    assert_eq!(store.prune_ledger(Some(10)).await.unwrap().left, Some(0));
    let short = Some(Duration::from_micros(1));
    let events: Vec<Event> = (0..5).map(|n| event("t", &format!("short {n}"))).collect();
    ingest(&store, &[Incoming { window: short, ..request("", &events) }]).await;
    let pruned = store.prune_ledger(None).await.unwrap();
    assert_eq!((pruned.removed, pruned.left, pruned.has_more), (5, None, false));

    for n in 0..5 {
        // Each is known longer than the one before.
        let window = Some(Duration::from_secs(3_600 + n));
        let one = request("", &[event("t", &n.to_string())]);
        ingest(&store, &[Incoming { window, ..one }]).await;
    }
    let pruned = store.prune_ledger(Some(5)).await.unwrap();
    assert_eq!((pruned.removed, pruned.left, pruned.has_more), (0, Some(5), false));
    let pruned = store.prune_ledger(Some(2)).await.unwrap();
    assert_eq!((pruned.removed, pruned.left, pruned.has_more), (3, Some(2), false));
    for (id, is_known) in [("2", false), ("3", true), ("4", true)] {
        let again = ingest(&store, &[request("", &[event("t", id)])]).await;
        assert_eq!(placed(&again[0]).1, [is_known], "{id}");
    }
    assert!(store.log_bytes().await.unwrap() > 0);
}

pub async fn any_number_of_events_is_ingested_at_once(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let events: Vec<Event> = (0..2_500).map(|n| event("t", &n.to_string())).collect();
    let requests: Vec<Incoming> = events
        .chunks(7)
        .enumerate()
        .map(|(n, chunk)| request(if n % 2 == 0 { "" } else { "acme" }, chunk))
        .collect();
    let first = ingest(&store, &requests).await;
    let again = ingest(&store, &requests).await;
    let positions: Vec<i64> = first.iter().flat_map(|one| placed(one).0).collect();
    assert_eq!(positions.len(), events.len());
    assert!(positions.is_sorted_by(|a, b| a < b));
    for (first, again) in first.iter().zip(&again) {
        let Ingested::Committed(first) = first else { panic!("{first:?}") };
        let there = first.iter().map(|placed| Placed { is_duplicate: true, ..*placed });
        assert_eq!(*again, Ingested::Committed(there.collect()));
    }
    assert_eq!(store.status().await.unwrap().events, 2_500);
}
