//! Settlements on a real server: what they cost, and what becomes of one that
//! is late, given up, or broken off in the middle.

use std::time::{Duration, Instant};

use super::wire::{Said, Wire};
use super::{
    PostgresDatabase, PostgresStore, dead, draw, event, first_settlement, group, hold_inserts_into,
    led, let_inserts_go, publish, redelivery, run, seen, store_at, until, until_waiting, value,
};
use event_host_core::event::{Epoch, Event, Position, Tenant};
use event_host_store::traits::*;
use event_host_store::{
    DeadLetterFilter, Redelivery, Settled, Settlement, StateWrite, StoreError, UndecidedChange,
    UndecidedRanges,
};

/// Up to where positions were drawn before.
const DRAWN: i64 = 1_000_000;

/// The group's settlement of a number, which moves its cursor to ten times that.
fn numbered(number: i64) -> Settlement {
    Settlement { number, ..first_settlement("g", number * 10) }
}

#[tokio::test]
async fn a_settlement_that_moves_the_cursor_alone_is_one_round_trip() {
    let database = PostgresDatabase::new().await;
    let wire = Wire::to(database.database.url()).await;
    let store = store_at(wire.url());
    draw(&mut database.raw().await, DRAWN).await;
    led(&store, "g").await;
    // The first one makes the statement known to the server.
    assert_eq!(store.settle(&numbered(1)).await.unwrap(), Settled::Committed);
    wire.said();
    assert_eq!(store.settle(&numbered(2)).await.unwrap(), Settled::Committed);
    assert_eq!(wire.said(), Said { round_trips: 1, statements: 1 });
    let head = event_host_store::Head {
        position: Position(31),
        attempt: event_host_core::event::Attempt(2),
        due_at: jiff::Timestamp::UNIX_EPOCH,
        failure: None,
    };
    let with_a_retry = Settlement { head: Some(head), ..numbered(3) };
    assert_eq!(store.settle(&with_a_retry).await.unwrap(), Settled::Committed);
    assert_eq!(wire.said(), Said { round_trips: 1, statements: 1 });
    // Of one that is refused it is asked why.
    assert_eq!(store.settle(&numbered(3)).await.unwrap(), Settled::NotLeader);
    wire.said();
    assert_eq!(store.settle(&numbered(3)).await.unwrap(), Settled::NotLeader);
    assert_eq!(wire.said(), Said { round_trips: 2, statements: 2 });
}

/// A settlement with so many of everything.
async fn with_everything(store: &PostgresStore, number: i64, count: usize) -> Settlement {
    let events: Vec<Event> =
        (0..count).map(|n| Event { id: n.to_string(), ..event("some") }).collect();
    store.publish(&Tenant::none(), &events).await.unwrap();
    let log = seen(store).await;
    let write = |n: usize| StateWrite {
        scope: String::new(),
        key: n.to_string(),
        value: n.is_multiple_of(2).then(|| vec![1]),
    };
    Settlement {
        dead_letters: log.into_iter().rev().take(count).map(dead).collect(),
        emits: events,
        state: (0..count).map(write).collect(),
        redeliveries: (2..).take(count).map(|position| redelivery(position, 2)).collect(),
        redelivered: vec![Position(1)],
        position: Position(DRAWN),
        ..numbered(number)
    }
}

#[tokio::test]
async fn a_settlement_of_thousands_takes_as_many_statements_as_one_of_two() {
    let database = PostgresDatabase::new().await;
    let wire = Wire::to(database.database.url()).await;
    let store = store_at(wire.url());
    draw(&mut database.raw().await, DRAWN).await;
    led(&store, "g").await;
    let mut costs = Vec::new();
    for (number, count) in [(1, 2), (2, 2), (3, 1_000)] {
        let settlement = with_everything(&store, number, count).await;
        wire.said();
        assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
        costs.push(wire.said());
    }
    // BEGIN, the cursor, redeliveries, dead letters, emits, values, deletions,
    // COMMIT; the first time the server is also told of six of them.
    assert_eq!(costs[1], Said { round_trips: 8, statements: 8 });
    assert_eq!(costs[2], costs[1]);
    let letters = store.dead_letters(&DeadLetterFilter::default()).await.unwrap();
    assert_eq!(letters.len(), 1_004);
    assert_eq!(store.state_keys(&group("g"), "", "", 2_000).await.unwrap().len(), 500);
    assert_eq!(store.redeliveries(&group("g")).await.unwrap().len(), 1_000);
    assert_eq!(seen(&store).await.len(), 2 * 1_004, "what was published, and emitted");
}

#[tokio::test]
async fn redeliveries_that_are_settled_again_stay_on_their_pages() {
    const COUNT: i64 = 1_000;
    const ROUNDS: i64 = 10;
    let database = PostgresDatabase::new().await;
    let store = database.store();
    draw(&mut database.raw().await, DRAWN).await;
    led(&store, "g").await;
    let mut owner = database.raw().await;
    // The server tidies up when the test says so.
    run(&mut owner, "ALTER TABLE event_host.redeliveries SET (autovacuum_enabled = off)").await;
    let mut sizes = Vec::new();
    for number in 1..=ROUNDS {
        // All have failed again, but the first ones, which are over.
        let over = (number - 1) * 50;
        let settlement = Settlement {
            redeliveries: (over + 1..=over + COUNT)
                .map(|position| Redelivery {
                    due_at: jiff::Timestamp::from_second(number).unwrap(),
                    ..redelivery(position, u32::try_from(number).unwrap() + 1)
                })
                .collect(),
            redelivered: (over - 49..=over).map(Position).collect(),
            position: Position(over + COUNT),
            ..numbered(number)
        };
        assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
        run(&mut owner, "VACUUM event_host.redeliveries").await;
        let size = "SELECT pg_total_relation_size('event_host.redeliveries')";
        sizes.push(value::<i64>(&mut owner, size).await);
    }
    assert_eq!(store.redeliveries(&group("g")).await.unwrap().len(), 1_000);
    assert!(sizes.last() < sizes.first().map(|size| size * 2).as_ref(), "{sizes:?}");
    // What the session has done is counted when it has ended.
    drop(store);
    let updates = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'redeliveries'";
    until("it is counted", async || {
        run(&mut owner, "SELECT pg_stat_clear_snapshot()").await;
        value::<i64>(&mut owner, updates).await == (COUNT - 50) * (ROUNDS - 1)
    })
    .await;
    let moved = "SELECT n_tup_upd - n_tup_hot_upd FROM pg_stat_user_tables
         WHERE relname = 'redeliveries'";
    let moved: i64 = value(&mut owner, moved).await;
    assert!(moved < COUNT * ROUNDS / 20, "{moved} went to another page, and to the index");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_copy_of_a_settlement_is_refused_and_the_cursor_never_goes_back() {
    let database = PostgresDatabase::new().await;
    let store = database.patient_store();
    draw(&mut database.raw().await, DRAWN).await;
    led(&store, "g").await;
    let mut other = database.raw().await;
    run(&mut other, "BEGIN; SELECT FROM event_host.consumer_groups FOR UPDATE").await;
    // The leader settles, gets no answer, and settles again: both are with the
    // server, which carries out what it has received.
    let settle = |store: PostgresStore, number| {
        tokio::spawn(async move { store.settle(&numbered(number)).await })
    };
    let abandoned = settle(database.patient_store(), 1);
    until_waiting(&mut other, 1).await;
    let again = settle(store.clone(), 1);
    until_waiting(&mut other, 2).await;
    run(&mut other, "ROLLBACK").await;
    let mut outcomes = [abandoned.await.unwrap().unwrap(), again.await.unwrap().unwrap()]
        .map(|outcome| outcome == Settled::Committed);
    outcomes.sort_unstable();
    assert_eq!(outcomes, [false, true]);

    assert_eq!(store.settle(&numbered(2)).await.unwrap(), Settled::Committed);
    assert_eq!(store.settle(&numbered(1)).await.unwrap(), Settled::NotLeader);
    let cursor = store.cursor(&group("g")).await.unwrap();
    assert_eq!((cursor.settled, cursor.position), (2, Position(20)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_waits_for_a_takeover_and_is_refused_after_it() {
    let database = PostgresDatabase::new().await;
    let store = database.patient_store();
    draw(&mut database.raw().await, DRAWN).await;
    led(&store, "g").await;
    let mut other = database.raw().await;
    run(&mut other, "BEGIN; UPDATE event_host.consumer_groups SET epoch = epoch + 1").await;
    let everything = with_everything(&store, 1, 2).await;
    let settling = tokio::spawn({
        let store = store.clone();
        async move { store.settle(&everything).await }
    });
    until_waiting(&mut other, 1).await;
    run(&mut other, "COMMIT").await;
    assert_eq!(settling.await.unwrap().unwrap(), Settled::NotLeader);
    let cursor = store.cursor(&group("g")).await.unwrap();
    assert_eq!((cursor.epoch, cursor.settled, cursor.position), (Epoch(2), 0, Position(0)));
    assert_eq!(store.dead_letter_ids(&group("g")).await.unwrap(), []);
    assert_eq!(seen(&store).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asking_for_the_cursor_waits_for_what_is_still_open() {
    let database = PostgresDatabase::new().await;
    let store = database.patient_store();
    led(&store, "g").await;
    for (end, settled) in [("ROLLBACK", 0), ("COMMIT", 1)] {
        let mut other = database.raw().await;
        run(
            &mut other,
            "BEGIN; UPDATE event_host.consumer_groups SET position = 10, settled = 1
             WHERE settled = 0",
        )
        .await;
        let asking = tokio::spawn({
            let store = store.clone();
            async move { store.cursor(&group("g")).await }
        });
        until_waiting(&mut other, 1).await;
        run(&mut other, end).await;
        let cursor = asking.await.unwrap().unwrap();
        assert_eq!((cursor.settled, cursor.position), (settled, Position(settled * 10)));
    }
}

/// How many sessions of the host have something open.
async fn open_sessions(session: &mut sqlx::PgConnection) -> i64 {
    value(
        session,
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'event-host'
           AND state <> 'idle'",
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_is_given_up_in_the_middle_leaves_nothing_open() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    draw(&mut database.raw().await, DRAWN).await;
    led(&store, "g").await;
    let mut other = database.raw().await;
    let settlement = with_everything(&store, 1, 2).await;
    // Asleep and not behind a lock, as a wait for one ends by itself.
    run(
        &mut other,
        "CREATE FUNCTION public.doze() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN PERFORM pg_sleep(14); RETURN NULL; END $$;
         CREATE TRIGGER doze BEFORE INSERT ON event_host.dead_letters
         FOR EACH STATEMENT EXECUTE FUNCTION public.doze()",
    )
    .await;
    let settling = tokio::spawn({
        let (store, settlement) = (store.clone(), settlement.clone());
        async move { store.settle(&settlement).await }
    });
    let asleep = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event = 'PgSleep'";
    until("it sleeps", async || value::<i64>(&mut other, asleep).await == 1).await;
    settling.abort();
    assert!(settling.await.unwrap_err().is_cancelled());
    let given_up = Instant::now();
    // The server notices though the statement goes on.
    until("nothing is open", async || open_sessions(&mut other).await == 0).await;
    assert!(given_up.elapsed() < Duration::from_secs(10), "{:?}", given_up.elapsed());
    let cursor = store.cursor(&group("g")).await.unwrap();
    assert_eq!((cursor.settled, cursor.position), (0, Position(0)));
    assert_eq!(store.dead_letter_ids(&group("g")).await.unwrap(), []);
    run(&mut other, "DROP TRIGGER doze ON event_host.dead_letters").await;
    assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
    assert_eq!(store.dead_letter_ids(&group("g")).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_whose_session_is_ended_in_the_middle_leaves_nothing() {
    let database = PostgresDatabase::new().await;
    let store = database.patient_store();
    draw(&mut database.raw().await, DRAWN).await;
    led(&store, "g").await;
    let mut other = database.raw().await;
    let settlement = with_everything(&store, 1, 2).await;
    hold_inserts_into(&mut other, "events").await;
    let settling = tokio::spawn({
        let (store, settlement) = (store.clone(), settlement.clone());
        async move { store.settle(&settlement).await }
    });
    until_waiting(&mut other, 1).await;
    let ended: i64 = value(
        &mut other,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )
    .await;
    assert_eq!(ended, 1);
    let error = settling.await.unwrap().unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    // That is what the leader then does: it asks, and tries again.
    assert_eq!(store.cursor(&group("g")).await.unwrap().settled, 0);
    let_inserts_go(&mut other).await;
    assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
    assert_eq!(store.dead_letter_ids(&group("g")).await.unwrap().len(), 2);
    publish(&store, "after").await;
    assert_eq!(seen(&store).await.len(), 5);
}

#[tokio::test]
async fn what_the_database_refuses_of_a_settlement_is_told_from_what_it_cannot_do_now() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    draw(&mut database.raw().await, DRAWN).await;
    led(&store, "g").await;
    let mut other = database.raw().await;
    // No entry of an index has room for it, nor can it be made smaller.
    let scope: String =
        value(&mut other, "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 90) n")
            .await;
    let state = vec![StateWrite { scope, key: "k".to_owned(), value: Some(vec![1]) }];
    let too_large = Settlement { state, ..numbered(1) };
    let emits = vec![Event { source: "a b".to_owned(), ..event("some") }];
    let no_event = Settlement { emits, ..numbered(1) };
    // An operator's rule.
    run(
        &mut other,
        "CREATE FUNCTION public.rule() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'nobody may emit %', NEW.type; END $$;
         CREATE TRIGGER rule BEFORE INSERT ON event_host.events FOR EACH ROW
             WHEN (NEW.type = 'unwanted') EXECUTE FUNCTION public.rule()",
    )
    .await;
    let unwanted = Settlement { emits: vec![event("unwanted")], ..numbered(1) };
    for (refused, word) in [
        (too_large, "index row size"),
        (no_event, "source_is_a_uri_reference"),
        (unwanted, "nobody may emit unwanted"),
    ] {
        let error = store.settle(&refused).await.unwrap_err();
        let told = matches!(&error, StoreError::Unstorable(text) if text.contains(word));
        assert!(told, "{error:?}");
    }
    run(
        &mut other,
        "ALTER TABLE event_host.dead_letters ADD CONSTRAINT small CHECK (octet_length(data) < 3)",
    )
    .await;
    publish(&store, "some").await;
    let large = with_everything(&store, 1, 1).await;
    let mut large = Settlement { emits: vec![], state: vec![], ..large };
    large.dead_letters[0].event.event.data = Some(b"four".to_vec());
    let error = store.settle(&large).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unstorable(text) if text.contains("small")), "{error:?}");
    // What the group's own row refuses is no event's doing.
    run(
        &mut other,
        "ALTER TABLE event_host.consumer_groups ADD CONSTRAINT low CHECK (position < 5)",
    )
    .await;
    let error = store.settle(&numbered(1)).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused(text) if text.contains("low")), "{error:?}");
    assert_eq!(store.cursor(&group("g")).await.unwrap().settled, 0, "nothing was recorded");
}

#[tokio::test]
async fn what_somebody_wrote_into_a_groups_row_stops_neither_it_nor_others() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    draw(&mut database.raw().await, DRAWN).await;
    led(&store, "g").await;
    led(&store, "h").await;
    let mut other = database.raw().await;
    run(
        &mut other,
        r#"UPDATE event_host.consumer_groups
           SET late_events = 9223372036854775806, fruitless = 9223372036854775807,
               failures = '{"trap": -1, "fuel": 1.5, "exit": "x", "crash": 1e30, "retry": 2}'
           WHERE name = 'g'"#,
    )
    .await;
    assert_eq!(store.status().await.unwrap().groups.len(), 2);
    let status = store.group_status(&group("g")).await.unwrap();
    let failures: Vec<_> = status.failures.into_iter().collect();
    let expected = [("crash", u64::MAX), ("fuel", 1), ("retry", 2)];
    assert_eq!(failures, expected.map(|(kind, count)| (kind.to_owned(), count)));
    store.record_work_started(&group("g"), Epoch(1), 0).await.unwrap();
    let undecided = Some(UndecidedChange { undecided: UndecidedRanges::NONE, late: 5 });
    let settlement = Settlement { undecided, ..numbered(1) };
    assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
    assert_eq!(store.group_status(&group("g")).await.unwrap().late_events, i64::MAX);
}
