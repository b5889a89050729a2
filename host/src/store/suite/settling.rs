//! Settlements: whole or not at all.

use std::sync::Arc;

use tokio::sync::Barrier;

use super::TestDatabase;
use super::samples::{
    dead, event, fetch, fetch_all, group, head, host, ids, led, letters, publish_some, settings,
    settlement, tenant, write,
};
use crate::event::{Attempt, Position, Tenant};
use crate::store::{
    FailureRecord, GroupSettings, Head, NewDeadLetter, Settled, Settlement, Subscription,
};

pub async fn a_settlement_commits_everything_it_holds(database: &dyn TestDatabase) {
    let (store, other) = (database.handle().await, database.handle().await);
    let events = publish_some(&store, 3).await;
    let epoch = led(&store, "g").await;
    let fetched = fetch_all(&store, "g", 0).await;
    let whole = Settlement {
        head: Some(head(events[2].0, 2)),
        dead_letters: vec![dead(fetched[0].clone()), dead(fetched[1].clone())],
        emits: vec![event("emitted", "e1"), event("emitted", "e2")],
        state: vec![write("a", Some(b"1")), write("b", Some(b""))],
        ..settlement("g", epoch, events[1].0)
    };
    assert_eq!(store.settle(&whole).await.unwrap(), Settled::Committed);

    let committed = other.cursor(&group("g")).await.unwrap();
    assert_eq!(committed, (epoch, events[1], Some(head(events[2].0, 2))));
    let buried: Vec<Position> =
        letters(&other, "g").await.iter().map(|letter| letter.event.position).collect();
    assert_eq!(buried, events[..2]);
    assert_eq!(ids(&fetch_all(&other, "g", events[2].0).await), ["e1", "e2"]);
    let name = group("g");
    assert_eq!(other.state_get(&name, "", "a").await.unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(other.state_get(&name, "", "b").await.unwrap().as_deref(), Some(&b""[..]));
}

pub async fn a_settlement_that_breaks_off_leaves_nothing(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let events = publish_some(&store, 2).await;
    let epoch = led(&store, "g").await;
    let fetched = fetch_all(&store, "g", 0).await;
    let whole = Settlement {
        head: Some(head(events[1].0, 2)),
        dead_letters: vec![dead(fetched[0].clone())],
        emits: vec![event("emitted", "e1"), event("emitted", "e2")],
        state: vec![write("a", Some(b"1"))],
        ..settlement("g", epoch, events[0].0)
    };
    let broken =
        Settlement { emits: vec![event("emitted", "e1"), event("", "no type")], ..whole.clone() };
    store.settle(&broken).await.unwrap_err();
    assert_eq!(store.cursor(&group("g")).await.unwrap(), (epoch, Position::ZERO, None));
    assert!(letters(&store, "g").await.is_empty());
    assert_eq!(store.safe_position().await.unwrap(), events[1]);
    assert_eq!(store.state_get(&group("g"), "", "a").await.unwrap(), None);

    // And it does not stand in the way of the next one.
    assert_eq!(store.settle(&whole).await.unwrap(), Settled::Committed);
}

pub async fn a_settlement_without_a_head_forgets_the_retry(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let epoch = led(&store, "g").await;
    let waiting = Settlement { head: Some(head(1, 2)), ..settlement("g", epoch, 0) };
    store.settle(&waiting).await.unwrap();
    store.settle(&settlement("g", epoch, 1)).await.unwrap();
    assert_eq!(store.cursor(&group("g")).await.unwrap(), (epoch, Position(1), None));

    store.settle(&waiting).await.unwrap();
    let with_state =
        Settlement { state: vec![write("a", Some(b"1"))], ..settlement("g", epoch, 1) };
    store.settle(&with_state).await.unwrap();
    assert_eq!(store.cursor(&group("g")).await.unwrap(), (epoch, Position(1), None));
}

pub async fn a_head_comes_back_as_it_was_settled(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let mut epoch = led(&store, "g").await;
    let most = Head { attempt: Attempt(u32::MAX), ..head(i64::MAX, 1) };
    for head in [
        head(1, 2),
        Head { failure: None, ..head(1, 1) },
        Head { in_flight: true, ..head(1, 1) },
        most,
    ] {
        let waiting = Settlement { head: Some(head.clone()), ..settlement("g", epoch, 0) };
        store.settle(&waiting).await.unwrap();
        assert_eq!(store.cursor(&group("g")).await.unwrap().2, Some(head.clone()));
        let status = store.group(&group("g")).await.unwrap();
        assert_eq!(status.retries_pending, i64::from(head.failure.is_some()));
        assert_eq!(status.head, Some(head.clone()));
        let next = store.begin_leadership(&group("g"), &host("one")).await.unwrap();
        assert_eq!(next.head, Some(head));
        epoch = next.epoch;
    }
}

pub async fn odd_text_never_breaks_a_settlement(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let events = publish_some(&store, 1).await;
    let epoch = led(&store, "g").await;
    let fetched = fetch_all(&store, "g", 0).await.remove(0);
    for text in ["", "\0", "a\0b", "\u{1b}[31m", "\u{FFFF}\u{10FFFF}", "'; DROP TABLE events; --"] {
        let failure = FailureRecord { kind: "newer-kind".to_owned(), text: text.to_owned() };
        let head = Head { failure: Some(failure.clone()), ..head(events[0].0, 2) };
        let odd = Settlement {
            head: Some(head.clone()),
            dead_letters: vec![NewDeadLetter {
                failure: failure.clone(),
                digest: text.to_owned(),
                ..dead(fetched.clone())
            }],
            state: vec![write(&format!("key{text}"), Some(text.as_bytes()))],
            ..settlement("g", epoch, events[0].0)
        };
        assert_eq!(store.settle(&odd).await.unwrap(), Settled::Committed, "{text:?}");
        let kept = FailureRecord { text: database.kept(text), ..failure };
        let head = Head { failure: Some(kept.clone()), ..head };
        assert_eq!(store.cursor(&group("g")).await.unwrap().2, Some(head));
        let letter = letters(&store, "g").await.pop().unwrap();
        assert_eq!((letter.failure, letter.digest), (kept, database.kept(text)));
        let value = store.state_get(&group("g"), "", &format!("key{text}")).await.unwrap();
        assert_eq!(value.as_deref(), Some(text.as_bytes()));
        store.pause(&group("g"), text).await.unwrap();
        let reason = store.group(&group("g")).await.unwrap().reason;
        assert_eq!(reason, Some(database.kept(text)));
    }
}

pub async fn emits_stand_in_their_order_and_reach_other_groups(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let acme = GroupSettings { tenant: tenant("acme"), ..settings("g") };
    store.ensure_group(&acme).await.unwrap();
    let epoch = store.begin_leadership(&group("g"), &host("one")).await.unwrap().epoch;
    let emits: Vec<_> = (0..100).map(|n| event("emitted", &n.to_string())).collect();
    let emitting = Settlement { emits: emits.clone(), ..settlement("g", epoch, 0) };
    assert_eq!(store.settle(&emitting).await.unwrap(), Settled::Committed);

    let all = Subscription::all();
    let fetched = fetch(&store, "other", &tenant("acme"), &all, 0).await.events;
    let back: Vec<_> = fetched.iter().map(|event| event.event.clone()).collect();
    assert_eq!(back, emits);
    assert!(fetched.iter().all(|event| event.deliver_to.is_none()));
    let untenanted = fetch(&store, "other", &Tenant::none(), &all, 0).await;
    assert!(untenanted.events.is_empty(), "emits belong to the group's tenant");
}

pub async fn of_two_settlements_at_once_under_two_epochs_only_the_current_commits(
    database: &dyn TestDatabase,
) {
    const ROUNDS: i64 = 50;
    let (one, two) = (database.handle().await, database.handle().await);
    one.ensure_group(&settings("g")).await.unwrap();
    let mut emitted = 0;
    for round in 0..ROUNDS {
        let old = one.begin_leadership(&group("g"), &host("one")).await.unwrap().epoch;
        let barrier = Arc::new(Barrier::new(2));
        let late = {
            let (store, barrier) = (Arc::clone(&one), Arc::clone(&barrier));
            tokio::spawn(async move {
                let late = Settlement {
                    emits: vec![event("late", &round.to_string())],
                    ..settlement("g", old, 2 * round + 1)
                };
                barrier.wait().await;
                store.settle(&late).await.unwrap()
            })
        };
        barrier.wait().await;
        let new = two.begin_leadership(&group("g"), &host("two")).await.unwrap();
        let late = late.await.unwrap();
        // It came before the takeover, which then knew of it, or not at all.
        let before = match late {
            Settled::Committed => {
                emitted += 1;
                2 * round + 1
            }
            Settled::NotLeader => 2 * round,
        };
        assert_eq!(new.position, Position(before), "round {round}: {late:?}");
        assert_eq!(two.status().await.unwrap().events, emitted);
        two.settle(&settlement("g", new.epoch, 2 * round + 2)).await.unwrap();
        assert_eq!(one.cursor(&group("g")).await.unwrap().1, Position(2 * round + 2));
    }
}
