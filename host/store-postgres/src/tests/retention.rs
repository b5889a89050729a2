//! What the shared store adds to the suite's promises about events that go: that
//! nobody waits, that nothing bloats, and that no insert ever fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use test_postgres::Server;
use tokio::task::JoinSet;

use super::incarnations::{crash, expect_change};
use super::{
    PostgresDatabase, PostgresStore, first_settlement, group, led, publish, run, seen, session_at,
    store_at, try_to_run, types, until, value,
};
use crate::table_partitions::WIDTH;
use event_host_core::event::Position;
use event_host_store::traits::*;
use event_host_store::{Enforced, Retention, Settled, Settlement, Start};

/// Everything that nobody needs may go.
const NOTHING_STAYS: Retention = Retention { max_age: Some(Duration::ZERO), max_bytes: None };

const NOTHING: [&str; 0] = [];

/// Lets everything go that may, whoever is in the way for a moment.
pub(super) async fn enforce_all(store: &PostgresStore) -> Enforced {
    let mut enforced = store.enforce_retention(&NOTHING_STAYS).await.unwrap();
    while enforced.postponed {
        enforced = store.enforce_retention(&NOTHING_STAYS).await.unwrap();
    }
    enforced
}

/// Where there are older events, the newest partition is ended once it is an
/// eighth as old.
async fn until_all_is_gone(store: &PostgresStore) {
    until("all events are gone", async || {
        assert_eq!(enforce_all(store).await.pinned_by, None);
        types(store).await.is_empty()
    })
    .await;
}

async fn settle_to(store: &PostgresStore, number: i64, position: Position) {
    let settlement = Settlement { number, ..first_settlement("g", position.0) };
    assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
}

/// A group that has settled three events.
async fn settled() -> (PostgresDatabase, PostgresStore) {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    led(&store, "g").await;
    for event_type in ["a", "b", "c"] {
        publish(&store, event_type).await;
    }
    settle_to(&store, 1, Position(3)).await;
    (database, store)
}

async fn partitions(session: &mut PgConnection) -> Vec<i64> {
    sqlx::query_scalar(
        "SELECT number FROM event_host.partitions WHERE number IS NOT NULL ORDER BY number",
    )
    .fetch_all(session)
    .await
    .unwrap()
}

async fn insert(session: &mut PgConnection, event_type: &str) {
    run(session, format!("INSERT INTO event_host.events (type) VALUES ('{event_type}')")).await;
}

#[tokio::test]
async fn a_partition_ends_goes_and_leaves_the_next_one_behind() {
    let (database, store) = settled().await;
    let mut owner = database.raw().await;
    assert_eq!(partitions(&mut owner).await, [0, 1]);
    let enforced = enforce_all(&store).await;
    assert_eq!(enforced.dropped_up_to, Some(Position(3)));
    assert_eq!(partitions(&mut owner).await, [1, 2]);
    assert_eq!(publish(&store, "d").await, Position(WIDTH));
    assert_eq!(types(&store).await, ["d"]);
    // Nobody notices the jump: one fetch passes it.
    let safe = store.safe_position().await.unwrap();
    let name = group("g");
    let fetched = store.fetch(super::all_after(&name, Position(3), safe)).await.unwrap();
    assert_eq!((fetched.events.len(), fetched.scanned_to), (0, Position(WIDTH - 1)));
}

#[tokio::test]
async fn a_log_that_has_jumped_and_is_quiet_is_drained_and_in_order() {
    let (database, store) = settled().await;
    enforce_all(&store).await;
    let status = store.status().await.unwrap();
    assert_eq!((status.events, status.last_position), (0, Position(3)));
    assert_eq!(status.groups[0].lag_events, 0);
    store.check().await.unwrap();
    // A cursor moves to the safe position, over the jump, and is beyond nothing.
    let safe = store.safe_position().await.unwrap();
    assert!(safe >= Position(3) && safe < Position(WIDTH), "{safe}");
    settle_to(&store, 2, safe).await;
    let other = database.store();
    other.check().await.unwrap();
    assert!(other.status().await.unwrap().safe_position >= safe);
    publish(&other, "d").await;
    assert_eq!(types(&other).await, ["d"]);
    assert_eq!(other.seek(&group("g"), Start::Latest).await.unwrap(), Position(WIDTH));
}

#[tokio::test]
async fn inserts_never_fail_for_want_of_a_partition() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut session = database.raw().await;
    // No host ever ran. Whatever becomes of the sequence, there is a place.
    for (to, event_type) in [
        (WIDTH - 1, "the last of the first and the first of the second"),
        (2 * WIDTH, "beyond the last"),
        (i64::MAX - 10, "far beyond"),
    ] {
        run(&mut session, format!("SELECT setval('event_host.events_position_seq', {to}, false)"))
            .await;
        insert(&mut session, event_type).await;
        run(&mut session, format!("SELECT event_host.publish('{event_type}')")).await;
    }
    assert_eq!(seen(&store).await.len(), 6);
}

#[tokio::test]
async fn a_log_without_partitions_ahead_gets_back_into_order() {
    let (database, store) = settled().await;
    let mut owner = database.raw().await;
    // Somebody moved the sequence to where no partition is.
    run(&mut owner, format!("SELECT setval('event_host.events_position_seq', {})", 5 * WIDTH))
        .await;
    assert_eq!(publish(&store, "elsewhere").await, Position(5 * WIDTH + 1));
    let enforced = enforce_all(&store).await;
    assert_eq!(enforced.pinned_by, Some(group("g")));
    assert_eq!(types(&store).await, ["elsewhere"]);
    assert_eq!(publish(&store, "d").await, Position(6 * WIDTH), "it is in a partition again");
    settle_to(&store, 2, Position(6 * WIDTH)).await;
    until_all_is_gone(&store).await;
    assert_eq!(partitions(&mut owner).await, [7, 8]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_transactions_of_producers_delay_the_drop_alone_and_stall_nobody() {
    let (database, store) = settled().await;
    let mut open = database.raw().await;
    run(&mut open, "BEGIN").await;
    // It has written to the log before the partition ended, and after.
    insert(&mut open, "open").await;
    enforce_retention(&store).await;
    let mut owner = database.raw().await;
    let count: i64 = value(&mut owner, "SELECT count(*) FROM event_host.events_0").await;
    assert_eq!(count, 3, "its event is in that partition, too");
    run(&mut open, "COMMIT; BEGIN").await;
    insert(&mut open, "still open").await;
    settle_to(&store, 2, Position(4)).await;

    let stop = tokio_util::sync::CancellationToken::new();
    let producing = tokio::spawn(produce(database.raw().await, stop.clone()));
    for _ in 0..10 {
        let enforced = store.enforce_retention(&NOTHING_STAYS).await.unwrap();
        assert!(enforced.postponed);
    }
    stop.cancel();
    let slowest = producing.await.unwrap();
    assert!(slowest < Duration::from_secs(1), "a producer waited for {slowest:?}");
    // What is old is gone all the same, and its space with it.
    let first: i64 = value(&mut owner, "SELECT min(position) FROM event_host.events").await;
    assert!(first >= WIDTH);
    assert!(partitions(&mut owner).await.contains(&0), "its empty rest is there");
    run(&mut open, "COMMIT").await;
    enforce_all(&store).await;
    assert!(!partitions(&mut owner).await.contains(&0));
}

/// Inserts two events in one statement, the second once `owner` lets it. Gives when the
/// first is inserted.
async fn hold_an_insert(
    owner: &mut PgConnection,
    mut slow: PgConnection,
) -> tokio::task::JoinHandle<Result<(), sqlx::Error>> {
    run(owner, "SELECT pg_advisory_lock(77)").await;
    let inserting = tokio::spawn(async move {
        let sql = "INSERT INTO event_host.events (type)
                   SELECT 'slow' || CASE n WHEN 2 THEN pg_advisory_xact_lock(77)::text ELSE '' END
                   FROM generate_series(1, 2) n";
        try_to_run(&mut slow, sql).await
    });
    until("it waits for its second event", async || {
        let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 77
                   AND NOT granted";
        value::<i64>(owner, sql).await == 1
    })
    .await;
    inserting
}

async fn let_it_insert(owner: &mut PgConnection) {
    run(owner, "SELECT pg_advisory_unlock(77)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_does_not_begin_under_a_statement_that_does_not_know_it() {
    let (database, store) = settled().await;
    let mut owner = database.raw().await;
    let inserting = hold_an_insert(&mut owner, database.raw().await).await;
    // Other hosts and events, until a partition would begin that was made meanwhile.
    for (round, event_type) in ["d", "e", "f"].into_iter().enumerate() {
        let other = database.store();
        let position = publish(&other, event_type).await;
        settle_to(&store, 2 + i64::try_from(round).unwrap(), position).await;
        other.enforce_retention(&NOTHING_STAYS).await.unwrap();
        store.enforce_retention(&NOTHING_STAYS).await.unwrap();
    }
    assert!(partitions(&mut owner).await.contains(&2), "it was made");
    let_it_insert(&mut owner).await;
    inserting.await.unwrap().unwrap();
    let last = publish(&store, "g").await;
    settle_to(&store, 5, last).await;
    until_all_is_gone(&store).await;
}

/// A server that takes over may be behind: what was made on the other is made anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_knows_a_partition_is_asked_anew_after_a_failover() {
    let (server, store) = super::server_of_its_own().await;
    let url = server.url("postgres");
    led(&store, "g").await;
    let mut owner = session_at(&url).await;
    let mut held = hold_an_insert(&mut owner, session_at(&url).await).await;
    for event_type in ["a", "b"] {
        publish(&store, event_type).await;
        store.enforce_retention(&NOTHING_STAYS).await.unwrap();
    }
    assert!(publish(&store, "c").await < Position(2 * WIDTH), "the next has not begun");

    store.safe_position().await.unwrap();
    crash(&url).await;
    held.await.unwrap().unwrap_err();
    expect_change(&store).await;
    let mut owner = session_at(&url).await;
    run(&mut owner, "DROP TABLE event_host.events_2").await;
    held = hold_an_insert(&mut owner, session_at(&url).await).await;
    run(&mut owner, "SELECT event_host.make_partition(2)").await;
    store.enforce_retention(&NOTHING_STAYS).await.unwrap();
    let_it_insert(&mut owner).await;
    held.await.unwrap().unwrap();
    assert!(publish(&store, "d").await < Position(2 * WIDTH), "it did not begin meanwhile");
    drop(server);
}

async fn enforce_retention(store: &PostgresStore) {
    store.enforce_retention(&NOTHING_STAYS).await.unwrap();
}

/// Publishes until it is told to stop, and gives the longest time that it took.
async fn produce(mut session: PgConnection, stop: tokio_util::sync::CancellationToken) -> Duration {
    let mut slowest = Duration::ZERO;
    while !stop.is_cancelled() {
        let begun = Instant::now();
        insert(&mut session, "meanwhile").await;
        slowest = slowest.max(begun.elapsed());
    }
    slowest
}

#[tokio::test]
async fn whoever_reads_the_log_for_long_is_not_waited_for() {
    let (database, store) = settled().await;
    let mut reader = database.raw().await;
    run(&mut reader, "BEGIN; SELECT count(*) FROM event_host.events").await;
    let begun = Instant::now();
    assert!(store.enforce_retention(&NOTHING_STAYS).await.unwrap().postponed);
    assert!(begun.elapsed() < Duration::from_secs(5));
    let count: i64 = value(&mut reader, "SELECT count(*) FROM event_host.events").await;
    assert_eq!(count, 3, "what it reads is there");
    publish(&store, "d").await;
    run(&mut reader, "COMMIT").await;
    enforce_all(&store).await;
    assert_eq!(types(&store).await, ["d"]);
}

#[tokio::test]
async fn a_held_snapshot_leaves_no_dead_tuples_behind() {
    // A server of its own: what others do there shows in no count.
    let server = Server::start(&[]).unwrap();
    let url = server.url("postgres");
    let store = store_at(&url);
    store.migrate().await.unwrap();
    led(&store, "g").await;
    let mut old = session_at(&url).await;
    run(
        &mut old,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM event_host.consumer_groups",
    )
    .await;
    let mut owner = session_at(&url).await;
    let mut sizes = Vec::new();
    for round in 1..=5 {
        run(
            &mut owner,
            "INSERT INTO event_host.events (type, data)
             SELECT 'a', decode(repeat('00', 500), 'hex') FROM generate_series(1, 5000)",
        )
        .await;
        let last: i64 = value(&mut owner, "SELECT max(position) FROM event_host.events").await;
        settle_to(&store, round, Position(last)).await;
        enforce_all(&store).await;
        run(&mut owner, "SELECT pg_stat_clear_snapshot()").await;
        let size: i64 = value(
            &mut owner,
            "SELECT sum(pg_total_relation_size(relation))::bigint FROM event_host.partitions",
        )
        .await;
        sizes.push(size);
    }
    let full = 5_000 * 500;
    assert!(sizes.iter().all(|size| *size < full), "{sizes:?}");
    owner.close().await.unwrap();
    // Statistics are sent when a session ends.
    let mut owner = session_at(&url).await;
    let dead: i64 = value(
        &mut owner,
        "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_all_tables s
         WHERE s.schemaname = 'event_host' AND s.relname LIKE 'events%'",
    )
    .await;
    assert_eq!(dead, 0);
    // The snapshot was held all along.
    let count: i64 = value(&mut old, "SELECT count(*) FROM event_host.consumer_groups").await;
    assert_eq!(count, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_that_is_being_moved_back_keeps_what_it_will_need() {
    let (database, store) = settled().await;
    let mut operator = database.raw().await;
    // As a seek does it, held in its middle.
    run(
        &mut operator,
        "BEGIN; LOCK TABLE event_host.events IN ACCESS SHARE MODE;
         UPDATE event_host.consumer_groups SET position = 1, epoch = epoch + 1",
    )
    .await;
    assert!(store.enforce_retention(&NOTHING_STAYS).await.unwrap().postponed);
    run(&mut operator, "COMMIT").await;
    let enforced = enforce_all(&store).await;
    assert_eq!(enforced.pinned_by, Some(group("g")));
    assert_eq!(types(&store).await, ["a", "b", "c"]);

    // The other way round: the seek waits, and begins with what is left.
    let patient = database.patient_store();
    let mut keeper = database.raw().await;
    run(&mut keeper, "BEGIN; LOCK TABLE event_host.events_0 IN ACCESS EXCLUSIVE MODE").await;
    let seeking = tokio::spawn(async move { patient.seek(&group("g"), Start::Earliest).await });
    super::until_waiting(&mut operator, 1).await;
    // As nobody but a superuser can, past the trigger that refuses it.
    let empty =
        "SET LOCAL session_replication_role = replica; TRUNCATE event_host.events_0; COMMIT";
    run(&mut keeper, empty).await;
    assert_eq!(seeking.await.unwrap().unwrap(), Position::ZERO);
    assert_eq!(types(&store).await, NOTHING);
}

#[tokio::test]
async fn the_functions_let_nothing_go_that_a_group_needs_whoever_calls_them() {
    let (database, store) = settled().await;
    let mut owner = database.raw().await;
    let call = async |owner: &mut PgConnection, what: &str| -> bool {
        value(owner, format!("SELECT event_host.{what}")).await
    };
    for what in
        ["empty_partition(0)", "drop_partition(0)", "drop_partition(1)", "empty_partition(1)"]
    {
        assert!(!call(&mut owner, what).await, "{what}: events still come there");
    }
    assert!(!call(&mut owner, "begin_partition(2)").await, "there is none");
    assert!(!call(&mut owner, "begin_partition(0)").await, "that would be back");
    assert!(call(&mut owner, "begin_partition(1)").await);
    assert!(!call(&mut owner, "begin_partition(1)").await);
    store.seek(&group("g"), Start::Position(Position(2))).await.unwrap();
    assert!(!call(&mut owner, "empty_partition(0)").await, "g needs c");
    assert!(!call(&mut owner, "drop_partition(0)").await, "it is not empty");
    assert_eq!(types(&store).await, ["a", "b", "c"]);
    store.seek(&group("g"), Start::Latest).await.unwrap();

    // Not by what a transaction saw before it had the partition for itself.
    let stale = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT event_host.empty_partition(0)";
    assert!(try_to_run(&mut owner, stale).await.is_err());
    run(&mut owner, "ROLLBACK").await;
    // One at a time.
    let mut other = database.raw().await;
    run(&mut other, "BEGIN; SELECT event_host.make_partition(1)").await;
    assert!(!call(&mut owner, "empty_partition(0)").await);
    run(&mut other, "COMMIT").await;
    assert!(call(&mut owner, "empty_partition(0)").await);
    assert!(call(&mut owner, "drop_partition(0)").await);
    assert!(!call(&mut owner, "drop_partition(0)").await);
    assert_eq!(types(&store).await, NOTHING);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_hosts_keep_the_log_at_once_while_producers_write() {
    const PRODUCERS: usize = 3;
    const EACH: usize = 150;
    let database = PostgresDatabase::new().await;
    let store = database.store();
    led(&store, "g").await;
    let stop = tokio_util::sync::CancellationToken::new();
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut keepers = JoinSet::new();
    for _ in 0..3 {
        let (store, stop, dropped) = (database.store(), stop.clone(), Arc::clone(&dropped));
        keepers.spawn(async move {
            while !stop.is_cancelled() {
                let enforced = store.enforce_retention(&NOTHING_STAYS).await.unwrap();
                let some = usize::from(enforced.dropped_up_to.is_some());
                dropped.fetch_add(some, Ordering::Relaxed);
            }
        });
    }
    // Producers go on until something was dropped meanwhile.
    let written = Arc::new(AtomicUsize::new(0));
    let mut producers = JoinSet::new();
    for _ in 0..PRODUCERS {
        let mut session = database.raw().await;
        let (dropped, written) = (Arc::clone(&dropped), Arc::clone(&written));
        producers.spawn(async move {
            let mut mine = 0;
            while mine < EACH || dropped.load(Ordering::Relaxed) == 0 {
                mine += 1;
                run(&mut session, "BEGIN").await;
                insert(&mut session, "a").await;
                let end = if fastrand::u8(..4) == 0 { "ROLLBACK" } else { "COMMIT" };
                run(&mut session, format!("{end}; SELECT 1")).await;
                if end == "ROLLBACK" {
                    insert(&mut session, "a").await;
                }
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let (mut handled, mut cursor, mut number) = (0, Position::ZERO, 0);
    let mut is_written = false;
    until("every event was handled once", async || {
        while let Some(ended) = producers.try_join_next() {
            ended.unwrap();
        }
        is_written |= producers.is_empty();
        let safe = store.safe_position().await.unwrap();
        let name = group("g");
        while cursor < safe {
            let fetched = store.fetch(super::all_after(&name, cursor, safe)).await.unwrap();
            handled += fetched.events.len();
            cursor = fetched.scanned_to;
            number += 1;
            // Who makes room for a moment has it wait; a group tries again.
            until("it is settled", async || {
                let settlement = Settlement { number, ..first_settlement("g", cursor.0) };
                store.settle(&settlement).await.is_ok()
            })
            .await;
        }
        is_written && handled >= written.load(Ordering::Relaxed)
    })
    .await;
    stop.cancel();
    keepers.join_all().await;
    assert_eq!(handled, written.load(Ordering::Relaxed));
    until_all_is_gone(&store).await;
    let mut owner = database.raw().await;
    assert_eq!(partitions(&mut owner).await.len(), 2);
    store.check().await.unwrap();
}

#[tokio::test]
async fn a_small_log_is_counted_wherever_its_partitions_are() {
    let (_database, store) = settled().await;
    store.seek(&group("g"), Start::Earliest).await.unwrap();
    // Ends the partition, and keeps it.
    enforce_all(&store).await;
    publish(&store, "d").await;
    let status = store.status().await.unwrap();
    assert_eq!((status.events, status.last_position), (4, Position(WIDTH)));
    assert_eq!(status.pinned_by.unwrap().group, group("g"));
}

#[tokio::test]
async fn nobody_keeps_the_log_from_being_kept_who_may_only_log_in() {
    let (database, store) = settled().await;
    let mut other = database.raw().await;
    // `evhostrt`, which once was the lock of whoever keeps the log.
    run(&mut other, "SELECT pg_advisory_lock(x'6576686f73747274'::bigint)").await;
    assert_eq!(enforce_all(&store).await.dropped_up_to, Some(Position(3)));
    assert_eq!(types(&store).await, NOTHING);
}
