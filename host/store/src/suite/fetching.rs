//! Reading the log.

use std::sync::Arc;

use super::samples::{
    bury_all, event, fetch, fetch_all, group, ids, led, publish, publish_some, rich_event, tenant,
};
use super::{DeliveryDatabase, TestDatabase};
use crate::{Fetch, Subscription};
use event_host_core::event::{Event, Position, Tenant};

pub async fn types_and_prefixes_are_matched_by_their_bytes(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let types = [
        "order",
        "order.",
        "order.created",
        "order_created",
        "orderXcreated",
        "Order.created",
        "ORDER.created",
        "order%created",
        "order\\created",
        "order\\",
        "order\\%",
        "order/",
        "order\u{10FFFD}",
        "order\u{10FFFD}x",
        "orderz",
        "ord\u{e9}r.created",
        "orde\u{301}r",
        "\u{D7FF}x",
        "\u{E000}x",
        "\u{10FFFD}",
        "*",
        "a[b]",
        "a?b",
        "z",
        "\u{a0}",
        "\u{ad}",
    ];
    let events: Vec<Event> = types.iter().map(|name| event(name, name)).collect();
    publish(&store, &events).await;

    let mut patterns: Vec<String> = types.iter().map(|name| (*name).to_owned()).collect();
    patterns.retain(|pattern| pattern != "*");
    patterns.extend(types.iter().filter(|name| **name != "*").map(|name| format!("{name}*")));
    let prefixes =
        ["o", "orde", "order.c", "order_c", "order%", "order\\c", "ORDER", "a[", "a?", ""];
    patterns.extend(prefixes.iter().map(|prefix| format!("{prefix}*")));
    let mut subscriptions: Vec<Subscription> =
        patterns.iter().map(|pattern| Subscription::new([pattern]).unwrap()).collect();
    subscriptions.push(Subscription::new(["order", "a*", "z", "order.*", "none"]).unwrap());
    subscriptions.push(Subscription::new(["a*", "z", "order.*", "order", "none"]).unwrap());

    for subscription in subscriptions {
        let fetched = fetch(&store, "any", &Tenant::none(), &subscription, 0).await;
        let expected: Vec<&str> =
            types.iter().copied().filter(|name| subscription.matches(name)).collect();
        assert_eq!(ids(&fetched.events), expected, "{:?}", subscription.patterns());
    }
}

pub async fn any_number_of_patterns_can_be_subscribed(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let events: Vec<Event> =
        ["exact7", "prefix7.x", "other"].iter().map(|name| event(name, name)).collect();
    publish(&store, &events).await;
    let exact = (0..2_000).map(|n| format!("exact{n}"));
    let prefixes = (0..2_000).map(|n| format!("prefix{n}.*"));
    let subscription = Subscription::new(exact.chain(prefixes)).unwrap();
    let fetched = fetch(&store, "any", &Tenant::none(), &subscription, 0).await;
    assert_eq!(ids(&fetched.events), ["exact7", "prefix7.x"]);
}

pub async fn a_fetch_ends_at_its_byte_budget_and_gives_at_least_one_event(
    database: &dyn DeliveryDatabase,
) {
    let store = database.delivery().await;
    let sized = |bytes: usize| Event { data: Some(vec![1; bytes]), ..event("a", "1") };
    let no_data = Event { data: None, ..event("a", "1") };
    // As many bytes of attributes as of data: it makes no difference to a budget.
    let subject = Event { subject: Some("s".repeat(5_000)), ..no_data.clone() };
    let events =
        [sized(1_000), no_data, sized(10), sized(0), sized(90), sized(1), subject, sized(1)];
    assert_eq!(events[1].bytes(), 8, "id, source and type");
    let positions = publish(&store, &events).await;

    for (after, budget, count) in [
        (0, 0, 1),
        (0, 1, 1),
        (0, 1_008, 1),
        (0, 1_009, 2),
        (0, 1_017, 3),
        (1, 26, 2),
        (1, 132, 4),
        (1, 133, 5),
        (6, 5_008, 1),
        (6, 5_009, 2),
        (0, usize::MAX, 8),
    ] {
        let fetch = Fetch {
            partition: None,
            group: &group("any"),
            tenant: &Tenant::none(),
            subscription: &Subscription::all(),
            after: if after == 0 { Position::ZERO } else { positions[after - 1] },
            up_to: *positions.last().unwrap(),
            max_events: 100,
            max_bytes: budget,
        };
        let fetched = store.fetch(fetch).await.unwrap();
        assert_eq!(fetched.events.len(), count, "{budget} bytes after {after}");
        for (fetched, published) in fetched.events.iter().zip(&events[after..]) {
            assert_eq!(fetched.event.data, published.data, "{budget} bytes after {after}");
        }
        assert_eq!(fetched.scanned_to, positions[after + count - 1]);
    }
}

pub async fn a_fetch_says_how_far_it_looked(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let types = ["a", "b", "a", "b", "b"];
    let events: Vec<Event> = types.iter().map(|name| event(name, name)).collect();
    let positions = publish(&store, &events).await;
    let at = |n: usize| positions[n - 1];
    let only_a = Subscription::new(["a"]).unwrap();

    for (after, up_to, max_events, found, scanned_to) in [
        // Everything was looked at, also what the group does not receive.
        (Position::ZERO, at(5), 10, vec![at(1), at(3)], at(5)),
        (at(3), at(5), 10, vec![], at(5)),
        // Never beyond what is safe.
        (Position::ZERO, at(2), 10, vec![at(1)], at(2)),
        // It stopped because it had enough, and says nothing of what comes next.
        (Position::ZERO, at(5), 1, vec![at(1)], at(1)),
        (at(1), at(5), 1, vec![at(3)], at(3)),
        (Position::ZERO, at(5), 0, vec![], Position::ZERO),
    ] {
        let fetch = Fetch {
            partition: None,
            group: &group("any"),
            tenant: &Tenant::none(),
            subscription: &only_a,
            after,
            up_to,
            max_events,
            max_bytes: usize::MAX,
        };
        let fetched = store.fetch(fetch).await.unwrap();
        let positions: Vec<Position> = fetched.events.iter().map(|event| event.position).collect();
        assert_eq!((positions, fetched.scanned_to), (found, scanned_to), "after {after}");
    }
}

pub async fn a_fetch_beyond_the_safe_position_gives_nothing_and_goes_nowhere(
    database: &dyn DeliveryDatabase,
) {
    let store = database.delivery().await;
    let positions = publish_some(&store, 3).await;
    for (after, up_to) in [(positions[2], positions[2]), (positions[2], positions[0])] {
        let fetch = Fetch {
            partition: None,
            group: &group("any"),
            tenant: &Tenant::none(),
            subscription: &Subscription::all(),
            after,
            up_to,
            max_events: 10,
            max_bytes: 1,
        };
        let fetched = store.fetch(fetch).await.unwrap();
        assert!(fetched.events.is_empty());
        assert_eq!(fetched.scanned_to, after);
    }
}

pub async fn another_tenants_events_are_never_fetched(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    for name in ["", "acme", "ACME", "acme2"] {
        store.publish(&tenant(name), &[event("a", &format!("of {name}"))]).await.unwrap();
    }
    for name in ["", "acme", "ACME", "acme2", "nobody"] {
        let fetched = fetch(&store, "any", &tenant(name), &Subscription::all(), 0).await;
        let own = format!("of {name}");
        let expected: &[&str] = if name == "nobody" { &[] } else { &[&own] };
        assert_eq!(ids(&fetched.events), expected);
    }
}

pub async fn an_event_for_one_group_reaches_that_group_alone(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish(&store, &[event("a", "1")]).await;
    let epoch = led(&store, "addressed").await;
    let letter = bury_all(&store, "addressed", epoch).await.remove(0);
    let replayed = store.replay(letter.id, None, None).await.unwrap();
    let after = replayed.position.0 - 1;

    let own = fetch_all(&store, "addressed", after).await;
    assert_eq!(own[0].deliver_to, Some(group("addressed")));
    assert!(fetch_all(&store, "other", after).await.is_empty());

    // Also when it no longer subscribes to the type.
    let other_types = Subscription::new(["b"]).unwrap();
    let fetched = fetch(&store, "addressed", &Tenant::none(), &other_types, 0).await;
    let fetched: Vec<_> = fetched.events.into_iter().map(Arc::unwrap_or_clone).collect();
    assert_eq!(fetched, own);
}

pub async fn events_that_were_put_back_leave_nothing_in_those_that_are_read_next(
    database: &dyn DeliveryDatabase,
) {
    let store = database.delivery().await;
    let least = Event { data: None, ..event("t", "1") };
    let events: Vec<Event> =
        (0..6).map(|n| if n < 3 { rich_event(&n.to_string()) } else { least.clone() }).collect();
    let positions = publish(&store, &events).await;
    // Each in the place of another that was richer, or had less.
    for from in [0, 3, 0, 3] {
        let after = if from == 0 { 0 } else { positions[from - 1].0 };
        let fetched = fetch(&store, "any", &Tenant::none(), &Subscription::all(), after).await;
        let expected = events[from..].iter().zip(&positions[from..]);
        for (read, (published, position)) in fetched.events.iter().zip(expected) {
            assert_eq!((read.position, &read.event), (*position, published));
            assert_eq!((&read.deliver_to, &read.digest), (&None, &None));
        }
        assert_eq!(fetched.events.len(), events.len() - from);
        store.recycle(fetched.events);
    }
}
