//! Settlements: whole or not at all.

use std::sync::Arc;

use tokio::sync::Barrier;

use super::samples::{
    dead, end, event, fetch, fetch_all, group, head, host, ids, led, letters, mark, publish_some,
    settings, settlement, tenant, write,
};
use super::{DeliveryDatabase, TestDatabase};
use crate::{
    Cursor, FailureCounts, FailureRecord, GroupRegistration, Head, NewDeadLetter, Settled,
    Settlement, Start, StoreError, Subscription, UndecidedRanges,
};
use event_host_core::event::{Attempt, Position, Tenant};

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
        ..settlement(&store, "g", epoch, events[1].0).await
    };
    assert_eq!(store.settle(&whole).await.unwrap(), Settled::Committed);

    let committed = other.cursor(&group("g")).await.unwrap();
    let head = Some(head(events[2].0, 2));
    let undecided = UndecidedRanges::NONE;
    assert_eq!(
        committed,
        Cursor { epoch, settled: 1, position: events[1], head, mark: None, undecided }
    );
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
        ..settlement(&store, "g", epoch, events[0].0).await
    };
    let broken =
        Settlement { emits: vec![event("emitted", "e1"), event("", "no type")], ..whole.clone() };
    // It is not the leader's fault, nor the group's.
    let refused = store.settle(&broken).await;
    assert!(matches!(refused, Err(StoreError::Unstorable(_))), "{refused:?}");
    let undecided = UndecidedRanges::NONE;
    let nothing =
        Cursor { epoch, settled: 0, position: Position::ZERO, head: None, mark: None, undecided };
    assert_eq!(store.cursor(&group("g")).await.unwrap(), nothing);
    assert!(letters(&store, "g").await.is_empty());
    assert!(fetch_all(&store, "g", events[1].0).await.is_empty());
    assert_eq!(store.state_get(&group("g"), "", "a").await.unwrap(), None);

    // And it does not stand in the way of the next one.
    assert_eq!(store.settle(&whole).await.unwrap(), Settled::Committed);
}

pub async fn a_late_copy_of_a_settlement_is_refused(database: &dyn TestDatabase) {
    // The leader's own connection, and one that it has given up.
    let (store, late) = (database.handle().await, database.handle().await);
    let events = publish_some(&store, 3).await;
    let epoch = led(&store, "g").await;
    let fetched = fetch_all(&store, "g", 0).await;
    let first = Settlement {
        dead_letters: vec![dead(fetched[0].clone())],
        emits: vec![event("emitted", "e1")],
        state: vec![write("a", Some(b"1"))],
        ..settlement(&store, "g", epoch, events[0].0).await
    };
    assert_eq!(store.settle(&first).await.unwrap(), Settled::Committed);
    let second = Settlement {
        head: Some(head(events[2].0, 2)),
        state: vec![write("a", Some(b"2"))],
        ..settlement(&store, "g", epoch, events[1].0).await
    };
    assert_eq!(store.settle(&second).await.unwrap(), Settled::Committed);
    assert_eq!((first.number, second.number), (1, 2));

    let before = store.cursor(&group("g")).await.unwrap();
    let bare = Settlement { dead_letters: vec![], emits: vec![], state: vec![], ..first.clone() };
    for copy in [&first, &bare, &second] {
        for not_the_next in [1, 2, 4, 0, -1, i64::MAX] {
            let copy = Settlement { number: not_the_next, ..copy.clone() };
            assert_eq!(late.settle(&copy).await.unwrap(), Settled::NotLeader, "{not_the_next}");
        }
        assert_eq!(store.cursor(&group("g")).await.unwrap(), before);
        assert_eq!(letters(&store, "g").await.len(), 1);
        assert_eq!(ids(&fetch_all(&store, "g", events[2].0).await), ["e1"]);
        let value = store.state_get(&group("g"), "", "a").await.unwrap();
        assert_eq!(value.as_deref(), Some(&b"2"[..]));
    }
    let third = settlement(&store, "g", epoch, events[2].0).await;
    assert_eq!(late.settle(&third).await.unwrap(), Settled::Committed);
}

pub async fn the_numbers_of_settlements_go_on_whoever_leads(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let name = group("g");
    publish_some(&store, 3).await;
    store.ensure_group(&settings("g")).await.unwrap();
    for settled in 0..3 {
        let leadership = store.begin_leadership(&name, &host("one")).await.unwrap();
        assert_eq!(leadership.settled, settled);
        store.record_work_started(&name, leadership.epoch, settled).await.unwrap();
        store.record_attempt_started(&name, leadership.epoch, settled, mark(1, 1)).await.unwrap();
        end(&store, &name, leadership.epoch).await;
        store.ensure_group(&settings("g")).await.unwrap();
        assert_eq!(store.cursor(&name).await.unwrap().settled, settled, "settled nothing yet");
        let next = settlement(&store, "g", leadership.epoch, 1).await;
        assert_eq!(store.settle(&next).await.unwrap(), Settled::Committed);
        store.seek(&name, Start::Earliest).await.unwrap();
        assert_eq!(store.cursor(&name).await.unwrap().settled, settled + 1);
    }
}

pub async fn of_two_copies_of_a_settlement_at_once_one_commits(database: &dyn TestDatabase) {
    database.drawn_up_to(100).await;
    const ROUNDS: i64 = 50;
    let (one, two) = (database.handle().await, database.handle().await);
    let epoch = led(&one, "g").await;
    for round in 1..=ROUNDS {
        let copy = Settlement {
            emits: vec![event("emitted", &round.to_string())],
            ..settlement(&one, "g", epoch, round).await
        };
        let (first, second) = tokio::join!(one.settle(&copy), two.settle(&copy));
        let committed = [first.unwrap(), second.unwrap()];
        assert!(committed.contains(&Settled::Committed) && committed.contains(&Settled::NotLeader));
        assert_eq!(one.cursor(&group("g")).await.unwrap().settled, round);
        assert_eq!(one.status().await.unwrap().events, round);
    }
}

pub async fn a_settlement_without_a_head_forgets_the_retry(database: &dyn DeliveryDatabase) {
    database.drawn_up_to(10).await;
    let store = database.delivery().await;
    let epoch = led(&store, "g").await;
    let waiting = Settlement { head: Some(head(1, 2)), ..settlement(&store, "g", epoch, 0).await };
    store.settle(&waiting).await.unwrap();
    store.settle(&settlement(&store, "g", epoch, 1).await).await.unwrap();
    let undecided = UndecidedRanges::NONE;
    let done =
        Cursor { epoch, settled: 2, position: Position(1), head: None, mark: None, undecided };
    assert_eq!(store.cursor(&group("g")).await.unwrap(), done);

    store.settle(&Settlement { number: 3, ..waiting }).await.unwrap();
    let with_state = Settlement {
        state: vec![write("a", Some(b"1"))],
        ..settlement(&store, "g", epoch, 1).await
    };
    store.settle(&with_state).await.unwrap();
    assert_eq!(store.cursor(&group("g")).await.unwrap(), Cursor { settled: 4, ..done });
}

pub async fn a_head_comes_back_as_it_was_settled(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let mut epoch = led(&store, "g").await;
    let most = Head { attempt: Attempt(u32::MAX), ..head(i64::MAX, 1) };
    for head in [head(1, 2), Head { failure: None, ..head(1, 1) }, most] {
        let waiting =
            Settlement { head: Some(head.clone()), ..settlement(&store, "g", epoch, 0).await };
        store.settle(&waiting).await.unwrap();
        assert_eq!(store.cursor(&group("g")).await.unwrap().head, Some(head.clone()));
        let status = store.group_status(&group("g")).await.unwrap();
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
            ..settlement(&store, "g", epoch, events[0].0).await
        };
        assert_eq!(store.settle(&odd).await.unwrap(), Settled::Committed, "{text:?}");
        let kept = FailureRecord { text: database.kept(text), ..failure };
        let head = Head { failure: Some(kept.clone()), ..head };
        assert_eq!(store.cursor(&group("g")).await.unwrap().head, Some(head));
        let letter = letters(&store, "g").await.pop().unwrap();
        assert_eq!((letter.failure, letter.digest), (kept, database.kept(text)));
        let value = store.state_get(&group("g"), "", &format!("key{text}")).await.unwrap();
        assert_eq!(value.as_deref(), Some(text.as_bytes()));
        store.pause(&group("g"), text).await.unwrap();
        let reason = store.group_status(&group("g")).await.unwrap().reason;
        assert_eq!(reason, Some(database.kept(text)));
    }
}

pub async fn emits_stand_in_their_order_and_reach_other_groups(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let acme = GroupRegistration { tenant: tenant("acme"), ..settings("g") };
    store.ensure_group(&acme).await.unwrap();
    let epoch = store.begin_leadership(&group("g"), &host("one")).await.unwrap().epoch;
    let emits: Vec<_> = (0..100).map(|n| event("emitted", &n.to_string())).collect();
    let emitting = Settlement { emits: emits.clone(), ..settlement(&store, "g", epoch, 0).await };
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
    database.drawn_up_to(200).await;
    const ROUNDS: i64 = 50;
    let (one, two) = (database.handle().await, database.handle().await);
    one.ensure_group(&settings("g")).await.unwrap();
    let mut emitted = 0;
    for round in 0..ROUNDS {
        let old = one.begin_leadership(&group("g"), &host("one")).await.unwrap().epoch;
        let barrier = Arc::new(Barrier::new(2));
        let late = Settlement {
            emits: vec![event("late", &round.to_string())],
            ..settlement(&one, "g", old, 2 * round + 1).await
        };
        let late = {
            let (store, barrier) = (Arc::clone(&one), Arc::clone(&barrier));
            tokio::spawn(async move {
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
        two.settle(&settlement(&two, "g", new.epoch, 2 * round + 2).await).await.unwrap();
        assert_eq!(one.cursor(&group("g")).await.unwrap().position, Position(2 * round + 2));
    }
}

pub async fn failures_are_counted_with_the_settlement_and_known_to_the_next_leader(
    database: &dyn TestDatabase,
) {
    let (store, watching) = (database.handle().await, database.handle().await);
    let epoch = led(&store, "g").await;
    let counted = || async { watching.group_status(&group("g")).await.unwrap().failures };
    assert_eq!(counted().await, FailureCounts::new());
    let failures =
        FailureCounts::from([("trap".to_owned(), 2), ("timeout".to_owned(), u64::MAX / 4)]);
    let bare = settlement(&store, "g", epoch, 0).await;
    let first = Settlement { failures: Some(failures.clone()), ..bare };
    assert_eq!(store.settle(&first).await.unwrap(), Settled::Committed);
    assert_eq!(counted().await, failures);
    // A settlement without a failure leaves them, and one of a former leader too.
    let second = settlement(&store, "g", epoch, 0).await;
    assert_eq!(store.settle(&second).await.unwrap(), Settled::Committed);
    assert_eq!(counted().await, failures);
    let leadership = store.begin_leadership(&group("g"), &host("other")).await.unwrap();
    assert_eq!(leadership.failures, failures);
    let late = Settlement {
        failures: Some(FailureCounts::new()),
        ..settlement(&store, "g", epoch, 0).await
    };
    assert_eq!(store.settle(&late).await.unwrap(), Settled::NotLeader);
    assert_eq!(counted().await, failures);
}
