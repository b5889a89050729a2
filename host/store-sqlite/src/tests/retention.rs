//! What deleting old events costs those who write meanwhile, and the file.

use std::time::{Duration, Instant};

use sqlx::{Connection, SqliteConnection};

use super::{SqliteDatabase, event, group, settings};
use crate::SqliteStore;
use event_host_core::event::{Event, Position, Tenant};
use event_host_store::traits::*;
use event_host_store::{Retention, Start};

/// Everything that nobody needs may go.
const NOTHING_STAYS: Retention = Retention { max_age: Some(Duration::ZERO), max_bytes: None };

async fn publish(store: &SqliteStore, count: usize, length: usize) -> Position {
    let one = Event { data: Some(vec![7; length]), ..event("some", "1") };
    let positions = store.publish(&Tenant::none(), &vec![one; count]).await.unwrap();
    positions[count - 1]
}

async fn pages(connection: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("PRAGMA page_count").fetch_one(connection).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_writes_while_events_are_deleted_waits_for_one_step_at_most() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let last = publish(&store, 50_000, 100).await;
    store.seek(&group("g"), Start::Position(last)).await.unwrap();
    let deleting = tokio::spawn({
        let store = store.clone();
        async move { store.enforce_retention(&NOTHING_STAYS).await }
    });
    // One of this process, and one of another.
    let mut other = database.raw().await;
    let mut slowest = Duration::ZERO;
    let mut written = 0;
    while !deleting.is_finished() {
        let begun = Instant::now();
        publish(&store, 1, 100).await;
        sqlx::query("INSERT INTO events (type) VALUES ('a')").execute(&mut other).await.unwrap();
        slowest = slowest.max(begun.elapsed());
        written += 2;
    }
    let enforced = deleting.await.unwrap().unwrap();
    assert_eq!(enforced.dropped_up_to, Some(last));
    assert!(slowest < Duration::from_secs(1), "a writer waited for {slowest:?}");
    assert!(written > 10, "they took turns: {written}");
    assert_eq!(store.status().await.unwrap().events, written);
}

#[tokio::test]
async fn the_space_of_what_went_is_used_again() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let mut other = database.raw().await;
    let mut sizes = Vec::new();
    for _ in 0..5 {
        // With data that has pages of its own, and without.
        publish(&store, 2_000, 100).await;
        publish(&store, 100, 50_000).await;
        store.seek(&group("g"), Start::Latest).await.unwrap();
        assert!(store.enforce_retention(&NOTHING_STAYS).await.unwrap().dropped_up_to.is_some());
        assert_eq!(store.status().await.unwrap().events, 0);
        sizes.push(pages(&mut other).await);
    }
    assert!(sizes[4] <= sizes[0] + sizes[0] / 10, "{sizes:?}");
}

#[tokio::test]
async fn a_file_loses_as_much_as_it_is_too_large() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.ensure_group(&settings("g")).await.unwrap();
    publish(&store, 400, 50_000).await;
    store.seek(&group("g"), Start::Latest).await.unwrap();
    let at_most = |max_bytes| Retention { max_age: None, max_bytes: Some(max_bytes) };
    assert_eq!(store.enforce_retention(&at_most(100 << 20)).await.unwrap().dropped_up_to, None);
    store.enforce_retention(&at_most(10 << 20)).await.unwrap();
    let left = store.status().await.unwrap().events;
    assert!((100..220).contains(&left), "{left} are left");
}

#[tokio::test]
async fn a_log_that_was_emptied_goes_on_where_it_was_after_a_restart() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let last = publish(&store, 3, 1).await;
    store.seek(&group("g"), Start::Latest).await.unwrap();
    store.enforce_retention(&NOTHING_STAYS).await.unwrap();
    store.close().await.unwrap();
    let mut other = database.raw().await;
    sqlx::query("VACUUM").execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    let store = database.store().await;
    store.ensure_group(&settings("g")).await.unwrap();
    assert_eq!(store.safe_position().await.unwrap(), last);
    assert_eq!(publish(&store, 1, 1).await, Position(last.0 + 1));
}
