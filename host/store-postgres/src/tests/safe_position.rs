//! Which events are given to groups, and when: never one whose place in the log
//! may still be preceded by another's, and always all others.

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use test_postgres::{Server, Stop};

use super::{
    PostgresDatabase, group, pid, publish, run, says, seen, server_of_its_own, session_at,
    store_at, try_to_run, types, until, until_waiting, value,
};
use event_host_core::event::Position;
use event_host_store::traits::*;
use event_host_store::{Blocker, StoreError};

const NOTHING: [&str; 0] = [];

async fn insert(session: &mut PgConnection, event_type: &str) {
    run(session, format!("INSERT INTO event_host.events (type) VALUES ('{event_type}')")).await;
}

#[tokio::test]
async fn who_commits_late_keeps_back_what_came_after_and_stands_before_it() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let (mut a, mut b) = (database.raw().await, database.raw().await);
    insert(&mut b, "before").await;
    run(&mut a, "BEGIN").await;
    insert(&mut a, "a").await;
    insert(&mut b, "b").await;
    for _ in 0..3 {
        assert_eq!(types(&store).await, ["before"], "nobody knows yet what stands before b");
    }
    assert_eq!(types(&database.store()).await, ["before"], "a host that starts now, neither");
    // Who comes now is no matter to a and b.
    let mut c = database.raw().await;
    run(&mut c, "BEGIN").await;
    insert(&mut c, "c").await;
    run(&mut a, "COMMIT").await;
    assert_eq!(types(&store).await, ["before", "a", "b"]);
    run(&mut c, "COMMIT").await;
    let events = seen(&store).await;
    assert_eq!(events.len(), 4);
    assert!(events.is_sorted_by_key(|event| event.position));
}

#[tokio::test]
async fn a_rolled_back_insert_never_stalls_the_log() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let (mut a, mut b) = (database.raw().await, database.raw().await);
    run(&mut a, "BEGIN").await;
    insert(&mut a, "gone").await;
    insert(&mut b, "b").await;
    assert_eq!(types(&store).await, NOTHING);
    run(&mut a, "ROLLBACK").await;
    assert_eq!(types(&store).await, ["b"], "at the next look");
    run(&mut a, "BEGIN").await;
    insert(&mut a, "gone").await;
    run(&mut a, "ROLLBACK").await;
    insert(&mut b, "c").await;
    assert_eq!(types(&store).await, ["b", "c"], "at the next look");
}

#[tokio::test]
async fn what_a_savepoint_took_back_holds_nothing_up() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let (mut a, mut b) = (database.raw().await, database.raw().await);
    run(&mut a, "BEGIN; SAVEPOINT s").await;
    insert(&mut a, "gone").await;
    insert(&mut b, "b").await;
    assert_eq!(types(&store).await, NOTHING);
    run(&mut a, "ROLLBACK TO s").await;
    assert_eq!(types(&store).await, ["b"], "though the transaction is still open");
    insert(&mut a, "a").await;
    run(&mut a, "SAVEPOINT t").await;
    insert(&mut a, "gone").await;
    run(&mut a, "ROLLBACK TO t").await;
    insert(&mut b, "c").await;
    assert_eq!(types(&store).await, ["b"], "what stands before the savepoint still counts");
    run(&mut a, "COMMIT").await;
    assert_eq!(types(&store).await, ["b", "a", "c"]);
}

/// Looks between and after; `names` must be apart on the whole server.
#[tokio::test]
async fn a_prepared_transaction_holds_the_log_until_it_ends() {
    for look_before_it_is_prepared in [false, true] {
        for (end, then) in [("COMMIT", &["a", "b"][..]), ("ROLLBACK", &["b"])] {
            let database = PostgresDatabase::new().await;
            let name = database.database.name();
            let store = database.store();
            let (mut a, mut b) = (database.raw().await, database.raw().await);
            run(&mut a, "BEGIN").await;
            insert(&mut a, "a").await;
            insert(&mut b, "b").await;
            if look_before_it_is_prepared {
                assert_eq!(types(&store).await, NOTHING);
            }
            run(&mut a, format!("PREPARE TRANSACTION '{name}'")).await;
            assert_eq!(types(&store).await, NOTHING);
            // The session that prepared it goes on with something else, and ends.
            insert(&mut a, "c").await;
            a.close().await.unwrap();
            assert_eq!(types(&store).await, NOTHING);
            run(&mut b, format!("{end} PREPARED '{name}'")).await;
            assert_eq!(types(&store).await, [then, &["c"]].concat());
        }
    }
}

#[tokio::test]
async fn a_prepared_transaction_still_holds_the_log_after_a_restart() {
    let (mut server, store) = server_of_its_own().await;
    let url = server.url("postgres");
    let mut a = session_at(&url).await;
    run(&mut a, "BEGIN").await;
    insert(&mut a, "a").await;
    let mut b = session_at(&url).await;
    insert(&mut b, "b").await;
    assert_eq!(types(&store).await, NOTHING);
    run(&mut a, "PREPARE TRANSACTION 'kept'").await;
    drop((a, b));
    server.restart(Stop::Immediate).unwrap();
    until("the store is back", async || {
        store.safe_position().await.is_ok() && store.check_schema(true).await.is_ok()
    })
    .await;
    for _ in 0..3 {
        assert_eq!(types(&store).await, NOTHING);
    }
    let mut b = session_at(&url).await;
    run(&mut b, "COMMIT PREPARED 'kept'").await;
    assert_eq!(types(&store).await, ["a", "b"]);
}

#[tokio::test]
async fn what_holds_the_log_up_outlives_the_watchers_connection() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let (mut a, mut b) = (database.raw().await, database.raw().await);
    run(&mut a, "BEGIN").await;
    insert(&mut a, "a").await;
    insert(&mut b, "b").await;
    assert_eq!(types(&store).await, NOTHING);
    for _ in 0..2 {
        let ended: i64 = value(
            &mut b,
            "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
             WHERE datname = current_database() AND query LIKE '%look_at_the_end%'
               AND pid <> pg_backend_pid()",
        )
        .await;
        assert_eq!(ended, 1);
        let error = store.safe_position().await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert_eq!(types(&store).await, NOTHING);
    }
    run(&mut a, "COMMIT").await;
    assert_eq!(types(&store).await, ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_that_waits_keeps_no_group_from_the_log_and_can_be_given_up() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    insert(&mut owner, "before").await;
    assert_eq!(types(&store).await, ["before"]);
    // The sequence cannot be read meanwhile.
    run(
        &mut owner,
        "BEGIN;
         ALTER SEQUENCE event_host.events_position_seq RENAME TO elsewhere;
         ALTER SEQUENCE event_host.elsewhere RENAME TO events_position_seq",
    )
    .await;
    let looking = tokio::spawn({
        let store = store.clone();
        async move { store.safe_position().await }
    });
    until_waiting(&mut owner, 1).await;
    let name = group("g");
    let known = super::all_after(&name, Position(0), Position(1));
    assert_eq!(store.fetch(known).await.unwrap().events.len(), 1);
    looking.abort();
    assert!(looking.await.unwrap_err().is_cancelled());
    run(&mut owner, "ROLLBACK").await;
    insert(&mut owner, "after").await;
    assert_eq!(types(&store).await, ["before", "after"]);
}

#[tokio::test]
async fn a_jump_of_ten_million_positions_costs_one_look_and_one_fetch() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    insert(&mut owner, "before").await;
    run(
        &mut owner,
        "BEGIN;
         SELECT setval('event_host.events_position_seq', 10000000);
         SELECT nextval('event_host.events_position_seq');
         ROLLBACK",
    )
    .await;
    assert_eq!(types(&store).await, ["before"], "there is no need to wait for another event");
    insert(&mut owner, "after").await;
    let safe = store.safe_position().await.unwrap();
    assert_eq!(safe, Position(10_000_002), "at the first look");
    let name = group("g");
    let fetch = |after| store.fetch(super::all_after(&name, after, safe));
    let first = fetch(Position::ZERO).await.unwrap();
    assert_eq!(first.events.len(), 1);
    assert_eq!(first.scanned_to, Position(10_000_001), "the whole gap at once");
    assert_eq!(fetch(first.scanned_to).await.unwrap().events[0].position, safe);
}

#[tokio::test]
async fn nobody_passes_what_was_rolled_back_at_every_look() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    insert(&mut owner, "before").await;
    run(
        &mut owner,
        "BEGIN;
         INSERT INTO event_host.events (type) SELECT 'gone' FROM generate_series(1, 300000);
         ROLLBACK",
    )
    .await;
    assert_eq!(types(&store).await, ["before"]);
    let safe = store.safe_position().await.unwrap();
    assert_eq!(safe, Position(200_001), "nothing above it holds an event");
    insert(&mut owner, "after").await;
    assert_eq!(types(&store).await, ["before", "after"]);
}

#[tokio::test]
async fn whoever_writes_no_event_stalls_nothing_however_long_it_is_open() {
    let database = PostgresDatabase::new().await;
    // A copy of the same template: its log has the same number there.
    let elsewhere = PostgresDatabase::new().await;
    let mut owner = database.raw().await;
    run(&mut owner, "CREATE TABLE public.orders (id int)").await;
    insert(&mut owner, "before").await;
    insert(&mut elsewhere.raw().await, "before").await;
    let mut open = Vec::new();
    for (database, sql) in [
        (&database, "INSERT INTO public.orders VALUES (7)"),
        (&elsewhere, "CREATE TABLE public.orders (id int); INSERT INTO public.orders VALUES (7)"),
        (&elsewhere, "INSERT INTO event_host.events (type) VALUES ('elsewhere')"),
        (&database, "SELECT count(*) FROM event_host.events"),
        (&database, "SELECT * FROM event_host.events FOR UPDATE"),
        (&database, "CREATE TEMPORARY TABLE t AS SELECT 1 AS one; INSERT INTO t VALUES (2)"),
        (&database, "UPDATE event_host.consumer_groups SET state = 'paused'"),
        (&database, "SELECT pg_advisory_xact_lock(1); NOTIFY event_host"),
        (&database, "DECLARE c CURSOR FOR SELECT * FROM event_host.events; FETCH c"),
    ] {
        let mut session = database.raw().await;
        run(&mut session, "BEGIN ISOLATION LEVEL REPEATABLE READ").await;
        run(&mut session, sql).await;
        open.push(session);
    }
    let store = database.store();
    insert(&mut owner, "b").await;
    assert_eq!(types(&store).await, ["before", "b"], "at the first look");
    insert(&mut owner, "c").await;
    assert_eq!(types(&store).await, ["before", "b", "c"]);
    for mut session in open {
        // Each is still as it was.
        run(&mut session, "COMMIT").await;
    }
}

#[tokio::test]
async fn however_an_event_is_written_it_is_waited_for() {
    let database = PostgresDatabase::new().await;
    let mut b = database.raw().await;
    run(
        &mut b,
        "CREATE FUNCTION public.order_placed() RETURNS void LANGUAGE plpgsql AS
         $$ BEGIN INSERT INTO event_host.events (type) VALUES ('a'); END $$;
         CREATE TABLE public.orders (id int);
         CREATE FUNCTION public.on_order() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN PERFORM event_host.publish('a'); RETURN NULL; END $$;
         CREATE TRIGGER on_order AFTER INSERT ON public.orders
         FOR EACH ROW EXECUTE FUNCTION public.on_order()",
    )
    .await;
    for sql in [
        "INSERT INTO event_host.events (type) VALUES ('a')",
        "INSERT INTO event_host.events (type) SELECT 'a' FROM generate_series(1, 1)",
        "WITH new AS (INSERT INTO event_host.events (type) VALUES ('a') RETURNING 1) SELECT * FROM new",
        "PREPARE p (text) AS INSERT INTO event_host.events (type) VALUES ($1); EXECUTE p('a')",
        "SELECT event_host.publish('a')",
        "SELECT public.order_placed()",
        "INSERT INTO public.orders VALUES (1)",
        // Only a superuser may.
        "INSERT INTO event_host.events_0
             (position, time, published_at, tenant, type, id, source)
         VALUES (nextval('event_host.events_position_seq'), now(), now(), '', 'a', 'i', '/s')",
        "LOCK TABLE event_host.events IN ACCESS EXCLUSIVE MODE;
         INSERT INTO event_host.events (type) VALUES ('a')",
        "COPY",
    ] {
        let store = database.store();
        let before = types(&store).await.len();
        let mut a = database.raw().await;
        run(&mut a, "BEGIN").await;
        if sql == "COPY" {
            copy(&mut a, "a\n").await;
        } else {
            run(&mut a, sql).await;
        }
        if sql.starts_with("LOCK") {
            // Nobody else gets in; a's lock of an insert counts all the same.
            let look = value::<Vec<String>>(&mut b, "SELECT event_host.who_inserts()");
            assert_eq!(look.await.len(), 1);
            run(&mut a, "COMMIT").await;
            continue;
        }
        insert(&mut b, "b").await;
        assert_eq!(types(&store).await.len(), before, "{sql}");
        run(&mut a, "COMMIT").await;
        assert_eq!(types(&store).await[before..], ["a", "b"], "{sql}");
    }
}

async fn copy(session: &mut PgConnection, rows: &str) {
    let mut copy = session.copy_in_raw("COPY event_host.events (type) FROM STDIN").await.unwrap();
    copy.send(rows.as_bytes()).await.unwrap();
    copy.finish().await.unwrap();
}

#[tokio::test]
async fn who_holds_the_log_up_is_named_after_a_second_and_not_before() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let name = database.database.name();
    let (mut a, mut b) = (database.raw().await, database.raw().await);
    let begun = Instant::now();
    run(&mut a, "SET application_name = 'shop'; BEGIN").await;
    insert(&mut a, "a").await;
    insert(&mut b, "b").await;
    let holders = named(&store).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "too early: {:?}", begun.elapsed());
    let user: String = value(&mut b, "SELECT current_user::text").await;
    let [Blocker { pid: Some(of), prepared: None, application, user: by, age_seconds: Some(age) }] =
        &holders[..]
    else {
        panic!("{holders:?}");
    };
    assert_eq!((*of, &**application, by), (i64::from(pid(&mut a).await), "shop", &user));
    assert!(*age >= 1.0 && *age <= begun.elapsed().as_secs_f64(), "{age}");
    assert_eq!(store.status().await.unwrap().held_up_by.len(), 1);

    run(&mut a, format!("PREPARE TRANSACTION '{name}'")).await;
    let holders = named(&store).await;
    let [Blocker { pid: None, prepared: Some(prepared), user: by, age_seconds: Some(_), .. }] =
        &holders[..]
    else {
        panic!("{holders:?}");
    };
    assert_eq!((&**prepared, by), (name, &user));

    run(&mut b, format!("COMMIT PREPARED '{name}'")).await;
    store.safe_position().await.unwrap();
    assert_eq!(store.blockers().await.unwrap(), []);
}

/// Looks until somebody is named.
async fn named(store: &super::PostgresStore) -> Vec<Blocker> {
    let mut holders = Vec::new();
    until("somebody is named", async || {
        store.safe_position().await.unwrap();
        holders = store.blockers().await.unwrap();
        !holders.is_empty()
    })
    .await;
    holders
}

#[tokio::test]
async fn a_busy_log_that_moves_on_is_held_up_by_nobody() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let (mut a, mut b) = (database.raw().await, database.raw().await);
    let begun = Instant::now();
    let mut opened = begun;
    run(&mut a, "BEGIN").await;
    insert(&mut a, "a").await;
    // At every look somebody writes, and the log moves on all the same.
    while begun.elapsed() < Duration::from_millis(1_500) {
        store.safe_position().await.unwrap();
        let holders = store.blockers().await.unwrap();
        // A machine that stands still for a second has held it up indeed.
        assert!(holders.is_empty() || opened.elapsed() >= Duration::from_secs(1), "{holders:?}");
        opened = Instant::now();
        run(&mut b, "BEGIN").await;
        insert(&mut b, "b").await;
        run(&mut a, "COMMIT").await;
        std::mem::swap(&mut a, &mut b);
    }
}

#[tokio::test]
async fn a_log_that_goes_back_is_an_error_and_not_silence() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    for event_type in ["a", "b", "c"] {
        publish(&store, event_type).await;
    }
    assert_eq!(types(&store).await.len(), 3);
    let mut owner = database.raw().await;
    run(&mut owner, "SELECT setval('event_host.events_position_seq', 1)").await;
    let error = store.safe_position().await.unwrap_err();
    assert!(matches!(error, StoreError::Changed(_)), "{error:?}");
    says(&error, &["stands at 1 and stood at 3", "is checked before anything more"]);
    assert_eq!(store.safe_position().await.unwrap(), Position(1), "nothing is remembered");
    // A host that is started again looks at the whole.
    let error = store_at(database.database.url()).check().await.unwrap_err();
    says(&error, &["stands at 1", "an event at position 3", "setval"]);
    assert!(
        try_to_run(&mut owner, "INSERT INTO event_host.events (type) VALUES ('a')").await.is_err()
    );
}

/// Three sessions draw positions and two write so much that each WAL record waits for
/// room in the buffers: that is when a sequence's row shows what nobody has drawn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_never_sees_a_position_that_nobody_has_drawn() {
    const DRAW: &str = "SELECT nextval('event_host.events_position_seq')";
    const WRITE: &str =
        "INSERT INTO public.ballast SELECT repeat('x', 500) FROM generate_series(1, 200)";
    let slow_wal = [("wal_buffers", "32kB"), ("fsync", "on"), ("wal_sync_method", "open_datasync")];
    let server = Server::start(&slow_wal).unwrap();
    let url = server.url("postgres");
    store_at(&url).migrate().await.unwrap();
    let mut owner = session_at(&url).await;
    run(
        &mut owner,
        "CREATE TABLE public.ballast (line text);
         CREATE FUNCTION public.falls(seconds int) RETURNS bigint LANGUAGE plpgsql AS $$
         DECLARE
             until  timestamptz := clock_timestamp() + make_interval(secs => seconds);
             before bigint := 0;
             now    bigint;
             falls  bigint := 0;
         BEGIN
             WHILE clock_timestamp() < until LOOP
                 SELECT last_position INTO now FROM event_host.look_at_the_end(before);
                 IF now < before THEN
                     falls := falls + 1;
                 END IF;
                 before := now;
             END LOOP;
             RETURN falls;
         END $$",
    )
    .await;
    let mut busy = tokio::task::JoinSet::new();
    for sql in [DRAW, DRAW, DRAW, WRITE, WRITE] {
        let mut session = session_at(&url).await;
        busy.spawn(async move {
            loop {
                run(&mut session, sql).await;
            }
        });
    }
    let mut looking = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let mut session = session_at(&url).await;
        looking.spawn(async move { value::<i64>(&mut session, "SELECT public.falls(6)").await });
    }
    let falls: i64 = looking.join_all().await.into_iter().sum();
    assert_eq!(falls, 0, "so often a look saw what was taken back");
}

#[tokio::test]
async fn wherever_the_sequence_begins_the_look_knows_what_was_drawn_last() {
    let database = PostgresDatabase::new().await;
    let mut owner = database.raw().await;
    const LAST: &str = "SELECT event_host.last_drawn()";
    assert_eq!(value::<i64>(&mut owner, LAST).await, 0, "nothing was drawn");
    for (set, last) in [
        ("SELECT setval('event_host.events_position_seq', 7, false)", 6),
        ("SELECT nextval('event_host.events_position_seq')", 7),
        ("SELECT setval('event_host.events_position_seq', 9)", 9),
        ("ALTER SEQUENCE event_host.events_position_seq RESTART WITH 20", 19),
        ("SELECT event_host.begin_partition(1)", 9_999_999_999),
    ] {
        run(&mut owner, set).await;
        assert_eq!(value::<i64>(&mut owner, LAST).await, last, "{set}");
        let looked = "SELECT last_position FROM event_host.look_at_the_end(0)";
        assert_eq!(value::<i64>(&mut owner, looked).await, last, "{set}");
    }
    insert(&mut owner, "a").await;
    assert_eq!(seen(&database.store()).await[0].position, Position(10_000_000_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_locks_of_the_server_are_read_no_more_often_than_it_pays() {
    const PUBLISHES: i64 = 150;
    let server = Server::start(&[("track_functions", "pl")]).unwrap();
    let url = server.url("postgres");
    let store = store_at(&url);
    store.migrate().await.unwrap();
    let mut producer = session_at(&url).await;
    let watching = tokio::spawn({
        let store = store.clone();
        async move {
            while store.safe_position().await.unwrap() < Position(PUBLISHES) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    for _ in 0..PUBLISHES {
        run(&mut producer, "BEGIN").await;
        insert(&mut producer, "a").await;
        // As long as a commit takes that waits for its disk.
        run(&mut producer, "SELECT pg_sleep(0.005); COMMIT").await;
    }
    watching.await.unwrap();
    // What a session has done is counted when it has ended.
    drop(store);
    let calls = |function: &str| {
        format!(
            "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_user_functions WHERE funcname = '{function}'"
        )
    };
    until("it is counted", async || {
        run(&mut producer, "SELECT pg_stat_clear_snapshot()").await;
        value::<i64>(&mut producer, calls("look_at_the_end")).await > PUBLISHES
    })
    .await;
    let reads: i64 = value(&mut producer, calls("who_inserts")).await;
    let looks: i64 = value(&mut producer, calls("look_at_the_end")).await;
    println!("{looks} looks and {reads} reads of the locks at {PUBLISHES} publishes");
    assert!(reads <= 3 * PUBLISHES, "{reads} reads at {PUBLISHES} publishes");
}
