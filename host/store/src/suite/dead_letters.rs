//! Dead letters: kept whole, replayed or discarded once.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::Barrier;

use super::TestDatabase;
use super::deployments::deploy_for;
use super::samples::{
    bury_all, dead, event, fetch_all, group, host, ids, led, letters, publish, publish_some,
    rich_event, settings, settlement, tenant, time,
};
use crate::{
    DeadLetter, DeadLetterFilter, DeadLetterId, FailureRecord, GroupRegistration, Missing,
    Replayed, Settled, Settlement, Store, StoreError,
};
use event_host_core::digest::Digest;
use event_host_core::event::{Epoch, Event, LogEvent, Position, Tenant};
use event_host_core::failure::FailureKind;

fn is_missing(error: &StoreError, id: DeadLetterId) -> bool {
    matches!(error, StoreError::NotFound(Missing::DeadLetter(missing)) if *missing == id)
}

pub async fn a_dead_letter_keeps_everything(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let acme = GroupRegistration { tenant: tenant("acme"), ..settings("g") };
    store.ensure_group(&acme).await.unwrap();
    let epoch = store.begin_leadership(&group("g"), &host("one")).await.unwrap().epoch;
    let no_data = Event { data: None, ..event("a", "2") };
    let empty = Event { data: Some(Vec::new()), ..event("a", "3") };
    for (n, event) in [rich_event("1"), no_data, empty].into_iter().enumerate() {
        let position = Position(
            store.publish(&tenant("acme"), std::slice::from_ref(&event)).await.unwrap()[0].0,
        );
        let given_up = dead(LogEvent {
            position,
            deliver_to: (n == 1).then(|| group("g")),
            digest: None,
            event,
        });
        let settlement = Settlement {
            dead_letters: vec![given_up.clone()],
            ..settlement(&store, "g", epoch, position.0).await
        };
        store.settle(&settlement).await.unwrap();

        let listed = letters(&store, "g").await.pop().unwrap();
        let letter = store.dead_letter(listed.id).await.unwrap();
        for letter in [&listed, &letter] {
            assert_eq!(letter.event, given_up.event);
            assert_eq!((&letter.group, &letter.tenant), (&group("g"), &tenant("acme")));
            assert_eq!(letter.attempts, given_up.attempts);
            assert_eq!(letter.failure, given_up.failure);
            assert_eq!(letter.digest, given_up.digest);
            assert_eq!(letter.dead_at, given_up.dead_at);
        }
    }
}

/// A replay does not wait once more.
fn at_once(event: &Event) -> Event {
    assert!(event.deliver_after.is_some() || event.event_type != "rich");
    Event { deliver_after: None, ..event.clone() }
}

pub async fn a_replay_reaches_only_its_group_and_keeps_the_event(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish(&store, &[rich_event("1"), event("a", "2")]).await;
    let epoch = led(&store, "g").await;
    led(&store, "h").await;
    let original = fetch_all(&store, "g", 0).await.remove(0);
    let letter = bury_all(&store, "g", epoch).await.remove(0);
    assert_eq!(letter.event.event, original.event);

    let last = store.safe_position().await.unwrap();
    let replayed = store.replay(letter.id, None, None).await.unwrap();
    assert_eq!((replayed.id, &replayed.group), (letter.id, &group("g")));
    assert!(replayed.position > last, "no cursor is past it");
    let again = fetch_all(&store, "g", last.0).await;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].position, replayed.position);
    assert_eq!(again[0].event, at_once(&original.event));
    assert_eq!(again[0].deliver_to, Some(group("g")));
    assert!(fetch_all(&store, "h", last.0).await.is_empty());
    assert_eq!(letters(&store, "g").await.len(), 1);

    // One that fails again is a dead letter again, and can be replayed again.
    let again = Settlement {
        dead_letters: vec![dead(again[0].clone())],
        ..settlement(&store, "g", epoch, replayed.position.0).await
    };
    assert_eq!(store.settle(&again).await.unwrap(), Settled::Committed);
    let letter = letters(&store, "g").await.pop().unwrap();
    let replayed = store.replay(letter.id, None, None).await.unwrap();
    let third = fetch_all(&store, "g", replayed.position.0 - 1).await;
    assert_eq!(third[0].event, at_once(&original.event));
}

pub async fn a_replay_can_change_the_data_and_nothing_else(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish(&store, &[rich_event("1"), rich_event("2")]).await;
    let epoch = led(&store, "g").await;
    let originals = fetch_all(&store, "g", 0).await;
    let letters = bury_all(&store, "g", epoch).await;
    for (letter, (original, data)) in
        letters.iter().zip(originals.iter().zip([&b"corrected"[..], b""]))
    {
        let replayed = store.replay(letter.id, Some(data), None).await.unwrap();
        let copy = fetch_all(&store, "g", replayed.position.0 - 1).await.remove(0);
        let expected = Event { data: Some(data.to_vec()), ..at_once(&original.event) };
        assert_eq!(copy.event, expected);
    }
}

pub async fn a_replay_can_name_the_component_that_handles_the_event(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let old = deploy_for(&store, &Tenant::none(), "h", b"old").await.digest;
    deploy_for(&store, &Tenant::none(), "h", b"new").await;
    publish(&store, &[rich_event("1"), event("a", "2"), event("a", "3")]).await;
    let epoch = led(&store, "g").await;
    let originals = fetch_all(&store, "g", 0).await;
    assert!(originals.iter().all(|event| event.digest.is_none()));
    let letters = bury_all(&store, "g", epoch).await;

    let first = store.replay(letters[0].id, None, Some(&old)).await.unwrap();
    assert_eq!(first.digest, Some(old.clone()));
    let others =
        store.replay_some(&group("g"), letters[0].id, letters[2].id, 9, Some(&old)).await.unwrap();
    assert!(others.iter().all(|replayed| replayed.digest.as_ref() == Some(&old)));
    let copies = fetch_all(&store, "g", first.position.0 - 1).await;
    assert_eq!(copies.len(), 3);
    for (copy, original) in copies.iter().zip(&originals) {
        let expected = (Some(old.clone()), at_once(&original.event));
        assert_eq!((copy.digest.clone(), copy.event.clone()), expected);
    }
    let positions: Vec<Position> = copies.iter().map(|copy| copy.position).collect();
    let found = store.fetch_at(&group("g"), &positions, usize::MAX).await.unwrap();
    assert_eq!(found.events, copies);

    // Once more a dead letter, it says itself what failed, and the next replay
    // goes to the group's own component.
    let again = bury(&store, "g", epoch, &copies[0]).await;
    assert_eq!(again.event.digest, None);
    assert_eq!(again.event.event, copies[0].event);
    let replayed = store.replay(again.id, Some(b"other"), None).await.unwrap();
    assert_eq!(replayed.digest, None);
    let copy = fetch_all(&store, "g", replayed.position.0 - 1).await.remove(0);
    assert_eq!(copy.digest, None);
}

/// Settles that the group gives up on one event, the last there is.
async fn bury(store: &Arc<dyn Store>, name: &str, epoch: Epoch, event: &LogEvent) -> DeadLetter {
    let last = store.safe_position().await.unwrap();
    let settlement = Settlement {
        dead_letters: vec![dead(event.clone())],
        ..settlement(store, name, epoch, last.0).await
    };
    assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
    letters(store, name).await.pop().unwrap()
}

pub async fn a_replay_that_names_no_component_of_its_tenant_changes_nothing(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let acmes = deploy_for(&store, &tenant("acme"), "h", b"acme's").await.digest;
    let own = deploy_for(&store, &Tenant::none(), "h", b"own").await.digest;
    publish_some(&store, 2).await;
    let epoch = led(&store, "g").await;
    let buried = bury_all(&store, "g", epoch).await;
    let last = store.safe_position().await.unwrap();
    let up_to = buried[1].id;
    for digest in [&acmes, &Digest::of(b"never deployed")] {
        let is_refused = |result: Result<(), StoreError>| {
            let error = result.unwrap_err();
            assert_eq!(error.to_string(), format!("component {digest} not found"));
            assert!(matches!(error, StoreError::NotFound(Missing::Component(_))));
        };
        is_refused(store.replay(buried[0].id, Some(b"x"), Some(digest)).await.map(|_| ()));
        let all = store.replay_some(&group("g"), DeadLetterId(0), up_to, 9, Some(digest)).await;
        is_refused(all.map(|_| ()));
        // Of what is gone that is what is said.
        let gone = DeadLetterId(up_to.0 + 1);
        let error = store.replay(gone, None, Some(digest)).await.unwrap_err();
        assert!(is_missing(&error, gone), "{error}");
    }
    assert_eq!(letters(&store, "g").await.len(), 2);
    assert_eq!(store.safe_position().await.unwrap(), last, "nothing was appended");
    store.replay(buried[0].id, None, Some(&own)).await.unwrap();
}

pub async fn a_replay_never_moves_a_cursor(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish_some(&store, 3).await;
    let epoch = led(&store, "g").await;
    let letters = bury_all(&store, "g", epoch).await;
    let before = store.cursor(&group("g")).await.unwrap();
    store.replay(letters[0].id, None, None).await.unwrap();
    store.replay_some(&group("g"), DeadLetterId(0), letters[2].id, 9, None).await.unwrap();
    assert_eq!(store.cursor(&group("g")).await.unwrap(), before);
    let open = settlement(&store, "g", epoch, before.position.0).await;
    assert_eq!(store.settle(&open).await.unwrap(), Settled::Committed, "nor the epoch");
}

pub async fn of_two_replays_of_one_dead_letter_one_runs(database: &dyn TestDatabase) {
    const ROUNDS: usize = 50;
    let store = database.handle().await;
    publish_some(&store, ROUNDS).await;
    let epoch = led(&store, "g").await;
    let letters = Arc::new(bury_all(&store, "g", epoch).await);
    let digest = deploy_for(&store, &Tenant::none(), "h", b"component").await.digest;
    let last = store.safe_position().await.unwrap();

    let barrier = Arc::new(Barrier::new(2));
    let mut callers = Vec::new();
    for caller in 0..2 {
        let store = database.handle().await;
        let (letters, barrier) = (Arc::clone(&letters), Arc::clone(&barrier));
        let digest = digest.clone();
        callers.push(tokio::spawn(async move {
            let mut won = BTreeSet::new();
            for (round, letter) in letters.iter().enumerate() {
                barrier.wait().await;
                // Every third round it is discarded at the same time.
                let result = if round % 3 == 0 && caller == 1 {
                    store.discard(letter.id).await
                } else {
                    let digest = (round % 2 == 0).then_some(&digest);
                    store.replay(letter.id, None, digest).await.map(|_| ())
                };
                match result {
                    Ok(()) => assert!(won.insert(letter.id)),
                    Err(error) => {
                        assert!(is_missing(&error, letter.id), "{error}");
                        let said = format!("dead letter {} not found", letter.id);
                        assert_eq!(error.to_string(), said);
                    }
                }
            }
            won
        }));
    }
    let (one, two) = (callers.remove(0).await.unwrap(), callers.remove(0).await.unwrap());
    assert_eq!(one.len() + two.len(), ROUNDS, "each had one winner");
    assert!(one.is_disjoint(&two));
    let discarded = letters.iter().step_by(3).filter(|letter| two.contains(&letter.id)).count();
    assert_eq!(fetch_all(&store, "g", last.0).await.len(), ROUNDS - discarded);
    assert_eq!(store.group_status(&group("g")).await.unwrap().dead_letters, 0);
}

pub async fn two_replays_of_all_split_the_work(database: &dyn TestDatabase) {
    const COUNT: usize = 200;
    let store = database.handle().await;
    let originals = publish_some(&store, COUNT).await;
    let epoch = led(&store, "g").await;
    let letters = bury_all(&store, "g", epoch).await;
    let (last, up_to) = (store.safe_position().await.unwrap(), letters[COUNT - 1].id);

    let barrier = Arc::new(Barrier::new(2));
    let mut callers = Vec::new();
    for _ in 0..2 {
        let store = database.handle().await;
        let barrier = Arc::clone(&barrier);
        callers.push(tokio::spawn(async move {
            barrier.wait().await;
            let mut own: Vec<Replayed> = Vec::new();
            loop {
                let after = own.last().map_or(DeadLetterId(0), |replayed| replayed.id);
                let some = store.replay_some(&group("g"), after, up_to, 7, None).await.unwrap();
                if some.is_empty() {
                    return own;
                }
                own.extend(some);
            }
        }));
    }
    let mut all = Vec::new();
    for caller in callers {
        all.extend(caller.await.unwrap());
    }
    let unique: BTreeSet<DeadLetterId> = all.iter().map(|replayed| replayed.id).collect();
    assert_eq!((all.len(), unique.len()), (COUNT, COUNT));
    let copies = fetch_all(&store, "g", last.0).await;
    let copied: BTreeSet<&str> = ids(&copies).into_iter().collect();
    assert_eq!((copies.len(), copied.len()), (COUNT, originals.len()));
    for replayed in &all {
        assert!(copies.iter().any(|copy| copy.position == replayed.position));
    }
}

pub async fn some_are_replayed_within_their_bounds(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish_some(&store, 6).await;
    for name in ["other", "g"] {
        let epoch = led(&store, name).await;
        bury_all(&store, name, epoch).await;
    }
    let id: Vec<DeadLetterId> = letters(&store, "g").await.iter().map(|letter| letter.id).collect();
    let replay = |after: DeadLetterId, up_to: DeadLetterId, limit: usize| {
        let store: Arc<dyn Store> = Arc::clone(&store);
        async move {
            let some = store.replay_some(&group("g"), after, up_to, limit, None).await.unwrap();
            assert!(some.iter().all(|replayed| replayed.group == group("g")));
            assert!(some.is_sorted_by(|a, b| a.id < b.id && a.position < b.position));
            some.into_iter().map(|replayed| replayed.id).collect::<Vec<_>>()
        }
    };
    assert_eq!(replay(id[0], id[4], 2).await, [id[1], id[2]]);
    assert_eq!(replay(id[0], id[4], 9).await, [id[3], id[4]]);
    assert_eq!(replay(id[0], id[4], 9).await, []);
    assert_eq!(replay(DeadLetterId(0), id[5], 0).await, []);
    assert_eq!(replay(DeadLetterId(0), DeadLetterId(i64::MAX), usize::MAX).await, [id[0], id[5]]);
    assert_eq!(letters(&store, "other").await.len(), 6);
}

pub async fn dead_letters_are_listed_page_by_page(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish_some(&store, 5).await;
    for name in ["g", "h"] {
        let epoch = led(&store, name).await;
        bury_all(&store, name, epoch).await;
    }
    for only in [None, Some(group("g")), Some(group("h"))] {
        let filter = DeadLetterFilter { group: only.clone(), ..DeadLetterFilter::default() };
        let all = store.dead_letters(&filter).await.unwrap();
        assert_eq!(all.len(), if only.is_none() { 10 } else { 5 });
        assert!(all.is_sorted_by(|a, b| a.id < b.id));
        assert!(all.iter().all(|letter| only.as_ref().is_none_or(|only| letter.group == *only)));

        let (mut paged, mut after) = (Vec::new(), None);
        loop {
            let filter = DeadLetterFilter { after, limit: Some(3), ..filter.clone() };
            let page = store.dead_letters(&filter).await.unwrap();
            assert!(page.len() <= 3);
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            paged.extend(page.into_iter().map(|letter| letter.id));
        }
        assert_eq!(paged, all.iter().map(|letter| letter.id).collect::<Vec<_>>());
        if let Some(only) = &only {
            assert_eq!(store.dead_letter_ids(only).await.unwrap(), paged);
        }
    }
    let none = DeadLetterFilter { limit: Some(0), ..DeadLetterFilter::default() };
    assert!(store.dead_letters(&none).await.unwrap().is_empty());
    let nobody = DeadLetterFilter { group: Some(group("nobody")), ..DeadLetterFilter::default() };
    assert!(matches!(store.dead_letters(&nobody).await, Err(StoreError::NotFound(_))));
    assert!(matches!(store.dead_letter_ids(&group("nobody")).await, Err(StoreError::NotFound(_))));
}

pub async fn a_dead_letter_is_discarded_once(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish_some(&store, 2).await;
    let epoch = led(&store, "g").await;
    let letters = bury_all(&store, "g", epoch).await;
    let last = store.safe_position().await.unwrap();
    let gone = letters[0].id;
    store.discard(gone).await.unwrap();
    assert!(is_missing(&store.discard(gone).await.unwrap_err(), gone));
    assert!(is_missing(&store.replay(gone, None, None).await.unwrap_err(), gone));
    assert!(is_missing(&store.dead_letter(gone).await.unwrap_err(), gone));
    store.dead_letter(letters[1].id).await.unwrap();
    assert_eq!(store.safe_position().await.unwrap(), last, "nothing was appended");
}

pub async fn the_number_of_a_dead_letter_is_never_used_again(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish_some(&store, 1).await;
    let epoch = led(&store, "g").await;
    let mut highest = DeadLetterId(0);
    for _ in 0..3 {
        let given_up = dead(LogEvent {
            position: Position(1),
            deliver_to: None,
            digest: None,
            event: Event { time: time("2026-01-01T00:00:00Z"), ..event("a", "1") },
        });
        let settlement =
            Settlement { dead_letters: vec![given_up], ..settlement(&store, "g", epoch, 1).await };
        store.settle(&settlement).await.unwrap();
        let letter = letters(&store, "g").await.pop().unwrap();
        assert!(letter.id > highest);
        highest = letter.id;
        store.discard(letter.id).await.unwrap();
    }
}

pub async fn a_dead_letter_that_is_not_whole_is_never_replayed(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let positions = publish(&store, &[event("a", "1"), event("a", "2"), event("a", "3")]).await;
    let epoch = led(&store, "g").await;
    let mut dead: Vec<_> = fetch_all(&store, "g", 0).await.into_iter().map(dead).collect();
    dead[1].failure = FailureRecord::new(FailureKind::TooLarge, "a gigabyte");
    dead[1].event.event.data = None;
    let settlement =
        Settlement { dead_letters: dead, ..settlement(&store, "g", epoch, positions[2].0).await };
    store.settle(&settlement).await.unwrap();
    let letters = letters(&store, "g").await;
    let (id, all) = (letters[1].id, (DeadLetterId(0), DeadLetterId(i64::MAX)));
    for data in [None, Some(&b"made up"[..])] {
        let refused = store.replay(id, data, None).await;
        let told =
            matches!(&refused, Err(StoreError::Refused(why)) if why.contains("not the whole"));
        assert!(told, "{refused:?}");
    }
    let replayed = store.replay_some(&group("g"), all.0, all.1, 10, None).await.unwrap();
    assert_eq!(replayed.len(), 2, "the others are");
    let left = store.dead_letter_ids(&group("g")).await.unwrap();
    assert_eq!(left, [id]);
    store.discard(id).await.unwrap();
}
