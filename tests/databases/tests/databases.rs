//! What a database of a test's own promises.

#![allow(clippy::expect_used)]

use std::sync::atomic::{AtomicUsize, Ordering};

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use test_databases::Database;

async fn run(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.expect("the database answers");
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.expect(sql);
    connection.close().await.expect("the connection closes");
}

async fn number(url: &str, sql: &str) -> i64 {
    let mut connection = PgConnection::connect(url).await.expect("the database answers");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut connection).await.expect(sql)
}

/// How many databases there are whose names are like this.
async fn databases(like: &str) -> i64 {
    let server = std::env::var("DATABASE_URL").expect("the server is named");
    number(&server, &format!("SELECT count(*) FROM pg_database WHERE datname LIKE '{like}'")).await
}

/// A key of a template that no other run has used.
fn new_key(topic: &str) -> String {
    format!("{topic}_{:016x}", fastrand::u64(..))
}

/// Removes a template, as these tests leave none behind.
async fn forget(key: &str) {
    let server = std::env::var("DATABASE_URL").expect("the server is named");
    run(&server, &format!("DROP DATABASE IF EXISTS test_template_{key}")).await;
    run(&server, &format!("DROP DATABASE IF EXISTS test_template_{key}_unfinished")).await;
}

#[tokio::test]
async fn each_database_is_empty_and_alone() {
    let (one, other) = (Database::create().await, Database::create().await);
    assert_ne!(one.url(), other.url());
    run(one.url(), "CREATE TABLE mine ()").await;
    let tables = "SELECT count(*) FROM pg_class WHERE relname = 'mine'";
    assert_eq!(number(one.url(), tables).await, 1);
    assert_eq!(number(other.url(), tables).await, 0);
}

#[tokio::test]
async fn a_dropped_database_is_gone_whoever_uses_it() {
    let database = Database::create().await;
    let name = database.name().to_owned();
    let mut session = PgConnection::connect(database.url()).await.unwrap();
    run(
        database.url(),
        "CREATE TABLE held (); BEGIN; LOCK held; PREPARE TRANSACTION 'it''s forgotten'",
    )
    .await;
    assert_eq!(databases(&name).await, 1);
    drop(database);
    assert_eq!(databases(&name).await, 0);
    assert!(session.ping().await.is_err());
}

#[tokio::test]
async fn a_template_is_prepared_once_for_all_who_want_it_at_the_same_time() {
    let key = new_key("once");
    let prepared = AtomicUsize::new(0);
    let copy = async || {
        let prepare = async |url: String| {
            prepared.fetch_add(1, Ordering::Relaxed);
            run(&url, "CREATE TABLE filled AS SELECT generate_series(1, 3)").await;
        };
        let database = Database::from_template(&key, prepare).await;
        number(database.url(), "SELECT count(*) FROM filled").await
    };
    let (a, b, c, d) = tokio::join!(copy(), copy(), copy(), copy());
    assert_eq!([a, b, c, d], [3; 4]);
    assert_eq!(copy().await, 3);
    assert_eq!(prepared.into_inner(), 1);
    forget(&key).await;
}

#[tokio::test]
async fn a_session_that_the_preparation_leaves_behind_stands_in_nobodys_way() {
    let key = new_key("left");
    let mut left = None;
    let database = Database::from_template(&key, async |url| {
        let mut connection = PgConnection::connect(&url).await.unwrap();
        connection.execute("CREATE TABLE filled AS SELECT 1").await.unwrap();
        left = Some(connection);
    })
    .await;
    assert_eq!(number(database.url(), "SELECT count(*) FROM filled").await, 1);
    assert!(left.expect("it was prepared").ping().await.is_err());
    forget(&key).await;
}

#[tokio::test]
async fn a_preparation_that_panics_is_done_again_from_the_start() {
    let key = new_key("again");
    let failing = {
        let key = key.clone();
        tokio::task::LocalSet::new()
            .run_until(async move {
                let work = async move {
                    Database::from_template(&key, async |url| {
                        run(&url, "CREATE TABLE filled AS SELECT 1").await;
                        panic!("half-way");
                    })
                    .await
                };
                tokio::task::spawn_local(work).await
            })
            .await
    };
    assert!(failing.expect_err("it panicked").is_panic());
    let database = Database::from_template(&key, async |url| {
        run(&url, "CREATE TABLE filled AS SELECT generate_series(1, 2)").await;
    })
    .await;
    assert_eq!(number(database.url(), "SELECT count(*) FROM filled").await, 2);
    forget(&key).await;
}

#[test]
fn a_database_needs_no_runtime_to_be_dropped() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(Database::create());
    let name = database.name().to_owned();
    drop(runtime);
    drop(database);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(databases(&name)), 0);
}
