//! Bringing the schema up to date, by many at once, and refusing what it is not.

use std::time::Duration;

use sqlx::Connection;
use test_databases::Database;
use tokio::task::JoinSet;

use super::{PostgresDatabase, run, says, session_at, store_at, until, value};
use crate::schema::{applied, attempt_watched, embedded};
use event_host_store::StoreError;
use event_host_store::traits::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ten_hosts_that_start_on_an_empty_database_one_migrates_and_all_go_on() {
    let database = Database::create().await;
    let mut hosts = JoinSet::new();
    for _ in 0..10 {
        let store = store_at(database.url());
        hosts.spawn(async move {
            let applied = store.migrate().await.unwrap();
            store.check_schema(true).await.unwrap();
            store.check().await.unwrap();
            applied
        });
    }
    let mut applied = hosts.join_all().await;
    applied.retain(|names| !names.is_empty());
    assert_eq!(applied, [["0001_log_and_groups"]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_migration_waits_for_moments_and_again() {
    for is_there in [false, true] {
        let database = Database::create().await;
        let mut other = session_at(database.url()).await;
        // Somebody else migrates: the schema, or the first that is made in it.
        if is_there {
            run(
                &mut other,
                "CREATE SCHEMA event_host; BEGIN; CREATE TABLE event_host.migrations ()",
            )
            .await;
        } else {
            run(&mut other, "BEGIN; CREATE SCHEMA event_host").await;
        }
        let mut hosts = JoinSet::new();
        for _ in 0..3 {
            let store = store_at(database.url());
            hosts.spawn(async move { store.migrate().await.unwrap() });
        }
        until_tried(&database, 12).await;
        assert!(hosts.try_join_next().is_none(), "nobody gives up, and nobody goes on");
        run(&mut other, "ROLLBACK").await;
        let all = tokio::time::timeout(Duration::from_secs(30), hosts.join_all()).await.unwrap();
        assert_eq!(all.iter().filter(|applied| !applied.is_empty()).count(), 1);
    }
}

/// Waits until migrations were tried so often, none of which waits for a lock for long.
async fn until_tried(database: &Database, times: i64) {
    let mut observer = session_at(database.url()).await;
    let tried = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()";
    let before: i64 = value(&mut observer, tried).await;
    until("they try again and again", async || {
        let waiting: Option<f64> = value(
            &mut observer,
            "SELECT max(extract(epoch FROM clock_timestamp() - l.waitstart))::float8
             FROM pg_locks l JOIN pg_stat_activity a USING (pid)
             WHERE NOT l.granted AND a.datname = current_database()
               AND a.application_name = 'event-host'",
        )
        .await;
        assert!(waiting.is_none_or(|seconds| seconds < 2.0), "{waiting:?} s");
        run(&mut observer, "SELECT pg_stat_clear_snapshot()").await;
        value::<i64>(&mut observer, tried).await >= before + times
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_waits_for_a_lock_for_moments_and_knows_who_has_it() {
    let database = Database::create().await;
    let mut other = session_at(database.url()).await;
    // What the migration needs in its middle.
    run(
        &mut other,
        "CREATE SCHEMA event_host; SET application_name = 'by hand';
         BEGIN; CREATE TABLE event_host.hosts ()",
    )
    .await;
    let store = store_at(database.url());
    let mut session = session_at(database.url()).await;
    let (attempted, in_the_way) =
        attempt_watched(&store.connections, &mut session, "the server", &embedded()).await.unwrap();
    assert!(attempted.is_err());
    let process = super::pid(&mut other).await;
    let user: String = value(&mut other, "SELECT current_user::text").await;
    let wanted = format!("server process {process} (by hand) of role {user}");
    assert_eq!(in_the_way, Some(wanted));

    let migrating = tokio::spawn(async move { store.migrate().await.unwrap() });
    until_tried(&database, 3).await;
    assert!(!migrating.is_finished());
    run(&mut other, "ROLLBACK").await;
    let applied = tokio::time::timeout(Duration::from_secs(30), migrating).await.unwrap();
    assert_eq!(applied.unwrap().len(), 1);
}

#[tokio::test]
async fn nobody_holds_a_migration_up_with_an_advisory_lock() {
    let database = Database::create().await;
    let mut other = session_at(database.url()).await;
    // `evhostmg`, which once kept hosts apart.
    run(&mut other, "SELECT pg_advisory_lock(x'6576686f73746d67'::bigint)").await;
    let migrating = store_at(database.url());
    let migrated = tokio::time::timeout(Duration::from_secs(30), migrating.migrate()).await;
    assert_eq!(migrated.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn whoever_has_waited_for_a_migration_sees_what_was_done_meanwhile() {
    let database = Database::create().await;
    let mut waiting = session_at(database.url()).await;
    assert!(applied(&mut waiting).await.unwrap().is_empty());
    // It waits in a transaction that began before the other one's end.
    let mut waiting = waiting.begin().await.unwrap();
    assert!(applied(&mut waiting).await.unwrap().is_empty());
    assert_eq!(store_at(database.url()).migrate().await.unwrap().len(), 1);
    assert_eq!(applied(&mut waiting).await.unwrap(), [1].into());
}

#[tokio::test]
async fn a_schema_that_is_missing_is_refused_with_what_to_do() {
    let database = Database::create().await;
    let store = store_at(database.url());
    store.check_schema(false).await.unwrap();
    let error = store.check_schema(true).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    says(&error, &[database.name(), "no schema `event_host` yet", "host migrate"]);
    // Whoever did not ask is told as well.
    for error in [
        store.check().await.unwrap_err(),
        store.safe_position().await.unwrap_err(),
        store.status().await.unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
        says(&error, &["no tables of event-host", "host migrate"]);
    }
    assert_eq!(store.migrate().await.unwrap(), ["0001_log_and_groups"]);
    assert_eq!(store.migrate().await.unwrap(), Vec::<String>::new());
    store.check_schema(true).await.unwrap();
}

#[tokio::test]
async fn a_schema_of_a_newer_version_or_of_another_build_is_refused() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    run(&mut owner, "UPDATE event_host.migrations SET checksum = '\\x00'").await;
    run(
        &mut owner,
        "INSERT INTO event_host.migrations (version, description, success, checksum, execution_time)
         VALUES (4711, 'of tomorrow', true, '\\x00', 1)",
    )
    .await;
    for error in [
        store.check_schema(false).await.unwrap_err(),
        store.check_schema(true).await.unwrap_err(),
        store.migrate().await.unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
        says(&error, &["newer version of host", "migration 4711", "up to 1"]);
    }
    run(&mut owner, "DELETE FROM event_host.migrations").await;
    let error = store.migrate().await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    says(&error, &["migration 1 does not fit what", "already exists"]);
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing() {
    let database = Database::create().await;
    let mut owner = session_at(database.url()).await;
    // Something of the same name as the last thing that it makes.
    run(
        &mut owner,
        "CREATE SCHEMA event_host;
         CREATE FUNCTION event_host.look_at_the_end(bigint, boolean) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    )
    .await;
    let store = store_at(database.url());
    let error = store.migrate().await.unwrap_err();
    says(&error, &["migration 1 does not fit what"]);
    let tables: i64 = value(
        &mut owner,
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'event_host'::regnamespace",
    )
    .await;
    assert_eq!(tables, 0);
    run(&mut owner, "DROP FUNCTION event_host.look_at_the_end").await;
    assert_eq!(store.migrate().await.unwrap().len(), 1);
}
