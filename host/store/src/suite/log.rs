//! Appending to the log.

use jiff::SignedDuration;

use super::samples::{event, fetch_all, ids, publish, rich_event, until};
use super::{DeliveryDatabase, TestDatabase};
use crate::StoreError;
use event_host_core::event::bounds::{EXTENSIONS_BYTES, LONG_BYTES, SHORT_BYTES};
use event_host_core::event::{Event, ExtensionValue, Position, Tenant};

pub async fn an_event_comes_back_as_it_was_published(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let least = event("least", "1");
    let events = vec![
        Event { data: None, ..least.clone() },
        Event { data: Some(Vec::new()), ..least.clone() },
        Event { data: Some(b"\0\xff\xfe".to_vec()), ..least.clone() },
        Event { time: "0000-01-01T00:00:00Z".parse().unwrap(), ..least.clone() },
        Event { time: "9999-12-30T00:00:00Z".parse().unwrap(), ..least.clone() },
        Event { data: Some(vec![7; 3 << 20]), ..least },
        rich_event("rich"),
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

/// Attributes at their bounds, each in an event of its own.
fn at_their_bounds() -> Vec<Event> {
    let least = event("least", "1");
    let text = |bytes: usize| "é".repeat(bytes / 2);
    // `{"a": "…"}`
    let value = "x".repeat(EXTENSIONS_BYTES - 9);
    let extensions = [("a".to_owned(), ExtensionValue::Text(value))].into();
    vec![
        Event { id: text(SHORT_BYTES), ..least.clone() },
        Event { event_type: text(SHORT_BYTES), ..least.clone() },
        Event { source: "s".repeat(SHORT_BYTES), ..least.clone() },
        Event { partitionkey: Some(text(SHORT_BYTES)), ..least.clone() },
        Event { subject: Some(text(LONG_BYTES)), ..least.clone() },
        Event {
            datacontenttype: Some(format!("a/{}", "b".repeat(LONG_BYTES - 2))),
            ..least.clone()
        },
        Event { dataschema: Some(format!("a:{}", "b".repeat(LONG_BYTES - 2))), ..least.clone() },
        Event { extensions, ..least },
    ]
}

pub async fn an_attribute_may_have_its_bound_and_not_a_byte_more(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let events = at_their_bounds();
    for event in &events {
        event.check().unwrap();
    }
    publish(&store, &events).await;
    let back = fetch_all(&store, "any", 0).await;
    assert!(back.iter().map(|event| &event.event).eq(&events));

    let longer = |text: &mut String| text.push('x');
    for mut event in events {
        // One of them is at its bound.
        let of_short = [&mut event.id, &mut event.event_type, &mut event.source];
        of_short.into_iter().chain(&mut event.partitionkey).for_each(|text| {
            if text.len() == SHORT_BYTES {
                longer(text);
            }
        });
        let of_long = [&mut event.subject, &mut event.datacontenttype, &mut event.dataschema];
        of_long.into_iter().flatten().for_each(longer);
        event.extensions.values_mut().for_each(|value| {
            if let ExtensionValue::Text(text) = value {
                // A store may print it without the spaces that count here.
                text.push_str("xxx");
            }
        });
        event.check().unwrap_err();
        let refused = store.publish(&Tenant::none(), std::slice::from_ref(&event)).await;
        assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?} of {event:.99?}");
    }
    assert_eq!(store.status().await.unwrap().events, 8);
}

pub async fn what_is_no_event_is_refused_whoever_publishes_it(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let good = event("good", "1");
    let text = |text: &str| Some(text.to_owned());
    let with = |name: &str, value: &str| Event {
        extensions: [(name.to_owned(), ExtensionValue::Text(value.to_owned()))].into(),
        ..good.clone()
    };
    let mut bad = vec![
        Event { subject: text(""), ..good.clone() },
        Event { partitionkey: text(""), ..good.clone() },
        Event { dataschema: text(""), ..good.clone() },
        Event { dataschema: text("/relative"), ..good.clone() },
        Event { dataschema: text("https://a b"), ..good.clone() },
        Event { datacontenttype: text(""), ..good.clone() },
        Event { datacontenttype: text("json"), ..good.clone() },
        Event { datacontenttype: text("a/b/c"), ..good.clone() },
        Event { time: "-000001-12-31T23:59:59Z".parse().unwrap(), ..good.clone() },
        with("Upper", "x"),
        with("", "x"),
        with("id", "x"),
        with("partitionkey", "x"),
    ];
    for source in
        ["", "a b", "<a>", "a\\b", "%", "%4", "%zz", "a#b#c", "é", "1x:y", ":", "a|b", "/\n"]
    {
        bad.push(Event { source: source.to_owned(), ..good.clone() });
    }
    for odd in
        ["a\n", "\u{1}", "\u{7f}", "a\u{85}b", "\u{fdd0}", "\u{ffff}", "\u{1fffe}", "\u{10ffff}"]
    {
        bad.push(Event { id: odd.to_owned(), ..good.clone() });
        bad.push(Event { event_type: odd.to_owned(), ..good.clone() });
        bad.push(Event { subject: text(odd), ..good.clone() });
        bad.push(Event { partitionkey: text(odd), ..good.clone() });
        bad.push(with("odd", odd));
    }
    for event in bad {
        event.check().unwrap_err();
        let refused = store.publish(&Tenant::none(), std::slice::from_ref(&event)).await;
        assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?} of {event:?}");
    }
    assert_eq!(store.status().await.unwrap().events, 0);
    for source in
        ["https://[::1]/a?b=c#d", "urn:x:y", "a/b:c", "?q", "#f", "1-555", "%C3%A9", "//a"]
    {
        let event = Event { source: source.to_owned(), ..good.clone() };
        event.check().unwrap();
        publish(&store, &[event]).await;
    }
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

pub async fn positions_grow_in_the_order_of_publishing(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
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

pub async fn batches_of_two_publishers_at_once_stand_whole(database: &dyn DeliveryDatabase) {
    let mut publishers = Vec::new();
    for publisher in ["a", "b", "c", "d"] {
        let store = database.delivery().await;
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
    let events = fetch_all(&database.delivery().await, "any", 0).await;
    assert_eq!(events.len(), 4 * 25 * 5);
    for publisher in ["a", "b", "c", "d"] {
        let own = events.iter().filter(|event| event.event.event_type == publisher);
        let order: Vec<&str> = own.map(|event| event.event.id.as_str()).collect();
        let expected: Vec<String> =
            (0..25).flat_map(|batch| (0..5).map(move |n| format!("{batch} {n}"))).collect();
        assert_eq!(order, expected);
    }
}
