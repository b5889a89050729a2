//! Bringing the schema up to date, by many at once, and refusing what it is not.

use std::time::Duration;

use sqlx::Connection;
use test_databases::Database;
use tokio::task::JoinSet;

use super::{PostgresDatabase, run, says, session_at, store_at, until, value};
use crate::store::postgres::schema::applied;
use crate::store::{Store, StoreError};

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
async fn whoever_waits_for_a_migration_waits_outside_of_the_server() {
    let database = Database::create().await;
    let mut other = session_at(database.url()).await;
    // `evhostmg`: somebody else migrates.
    run(&mut other, "SELECT pg_advisory_lock(x'6576686f73746d67'::bigint)").await;
    let mut hosts = JoinSet::new();
    for _ in 0..3 {
        let store = store_at(database.url());
        hosts.spawn(async move { store.migrate().await.unwrap() });
    }
    // Each of them asks several times.
    until("they ask again and again", async || {
        let waiting: i64 = value(
            &mut other,
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'event-host'
               AND wait_event_type = 'Lock'",
        )
        .await;
        assert_eq!(waiting, 0);
        let transactions: i64 = value(
            &mut other,
            "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()",
        )
        .await;
        transactions >= 12
    })
    .await;
    assert!(hosts.try_join_next().is_none(), "nobody gives up, and nobody goes on");
    run(&mut other, "SELECT pg_advisory_unlock(x'6576686f73746d67'::bigint)").await;
    let all = tokio::time::timeout(Duration::from_secs(30), hosts.join_all()).await.unwrap();
    assert_eq!(all.iter().filter(|applied| !applied.is_empty()).count(), 1);
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
         CREATE FUNCTION event_host.look_at_the_end(bigint) RETURNS int LANGUAGE sql AS 'SELECT 1'",
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
