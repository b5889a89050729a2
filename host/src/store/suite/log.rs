//! Appending to the log.

use jiff::SignedDuration;

use super::TestDatabase;
use super::samples::{event, fetch_all, ids, publish, rich_event, until};
use crate::event::{Event, Position, Tenant};

pub async fn an_event_comes_back_as_it_was_published(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let least = event("least", "1");
    let events = vec![
        Event { data: None, ..least.clone() },
        Event { data: Some(Vec::new()), ..least.clone() },
        Event { data: Some(b"\0\xff\xfe".to_vec()), ..least.clone() },
        Event { time: "-000044-03-15T12:00:00Z".parse().unwrap(), ..least.clone() },
        Event { time: "9999-12-30T00:00:00Z".parse().unwrap(), ..least.clone() },
        Event { subject: Some(String::new()), ..least.clone() },
        Event { data: Some(vec![7; 3 << 20]), ..least },
        rich_event(database, "rich"),
    ];
    publish(&store, &events).await;

    let back: Vec<Event> =
        fetch_all(&store, "any", 0).await.into_iter().map(|event| event.event).collect();
    for (published, back) in events.iter().zip(&back) {
        assert!(published == back, "{published:.200?} came back as {back:.200?}");
    }
    assert_eq!(back.len(), events.len());

    let nanoseconds = SignedDuration::from_nanos(999);
    let fine = Event { time: events[0].time + nanoseconds, ..events[0].clone() };
    let position = publish(&store, &[fine]).await[0];
    let kept = fetch_all(&store, "any", position.0 - 1).await.remove(0);
    assert_eq!(kept.event.time, events[0].time, "stores keep microseconds");
}

pub async fn a_publish_is_all_or_none(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let mut events: Vec<Event> = (0..100).map(|n| event("a", &n.to_string())).collect();
    for broken in [0, 50, 99] {
        let whole = std::mem::replace(&mut events[broken], event("", "no type"));
        store.publish(&Tenant::none(), &events).await.unwrap_err();
        assert!(fetch_all(&store, "any", 0).await.is_empty());
        assert_eq!(store.status().await.unwrap().events, 0);
        events[broken] = whole;
    }
    let last = publish(&store, &events).await[99];
    // What broke off may still be on its way out.
    until("all is safe", async || store.safe_position().await.unwrap() >= last).await;
    assert_eq!(fetch_all(&store, "any", 0).await.len(), 100);
}

pub async fn positions_grow_in_the_order_of_publishing(database: &dyn TestDatabase) {
    let store = database.handle().await;
    assert_eq!(store.safe_position().await.unwrap(), Position::ZERO);
    assert!(publish(&store, &[]).await.is_empty());

    let mut positions = Vec::new();
    for batch in [1, 2, 31, 32, 33, 100] {
        let events: Vec<Event> =
            (0..batch).map(|n| event("a", &(positions.len() + n).to_string())).collect();
        positions.extend(publish(&store, &events).await);
    }
    assert!(positions.is_sorted_by(|a, b| a < b));
    assert!(positions[0] > Position::ZERO);
    assert_eq!(store.safe_position().await.unwrap(), *positions.last().unwrap());

    let events = fetch_all(&store, "any", 0).await;
    assert_eq!(events.iter().map(|event| event.position).collect::<Vec<_>>(), positions);
    let order: Vec<String> = (0..positions.len()).map(|n| n.to_string()).collect();
    assert_eq!(ids(&events), order);
}

pub async fn batches_of_two_publishers_at_once_stand_whole(database: &dyn TestDatabase) {
    let mut publishers = Vec::new();
    for publisher in ["a", "b", "c", "d"] {
        let store = database.handle().await;
        publishers.push(tokio::spawn(async move {
            for batch in 0..25 {
                let events: Vec<Event> =
                    (0..5).map(|n| event(publisher, &format!("{batch} {n}"))).collect();
                let positions = publish(&store, &events).await;
                assert!(positions.is_sorted_by(|a, b| a < b));
            }
        }));
    }
    for publisher in publishers {
        publisher.await.unwrap();
    }
    let events = fetch_all(&database.handle().await, "any", 0).await;
    assert_eq!(events.len(), 4 * 25 * 5);
    for publisher in ["a", "b", "c", "d"] {
        let own = events.iter().filter(|event| event.event.event_type == publisher);
        let order: Vec<&str> = own.map(|event| event.event.id.as_str()).collect();
        let expected: Vec<String> =
            (0..25).flat_map(|batch| (0..5).map(move |n| format!("{batch} {n}"))).collect();
        assert_eq!(order, expected);
    }
}
