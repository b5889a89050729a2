//! How many connections a host opens, and what becomes of broken ones.

use tokio::task::JoinSet;

use super::{
    PostgresDatabase, all_after, first_settlement, group, host, led, publish, seen, until, value,
};
use crate::event::Position;
use crate::store::postgres::POOL_SIZE;
use crate::store::{Settled, Store, StoreError};

/// The sessions of hosts in this database.
const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND application_name = 'event-host'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_groups_at_once_share_eleven_connections() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut observer = database.raw().await;
    let wanted = i64::try_from(POOL_SIZE + 3).unwrap();
    assert_eq!(wanted, 11, "as the documentation says");

    let mut session = store.lock_session(&host("one")).await.unwrap();
    let names: Vec<_> = (0..200).map(|n| group(&format!("g{n}"))).collect();
    assert!(session.try_locks(&names).await.unwrap().into_iter().all(|held| held));
    publish(&store, "a").await;
    // One that proves that the lock session is its own is closed again.
    until("the pool has one", async || value::<i64>(&mut observer, SESSIONS).await == 2).await;

    let mut work = JoinSet::new();
    work.spawn({
        let store = store.clone();
        async move { store.hint().await }
    });
    for n in 0..200 {
        let store = store.clone();
        work.spawn(async move {
            let name = format!("g{n}");
            led(&store, &name).await;
            let safe = store.safe_position().await.unwrap();
            for number in 1..=5 {
                let fetched = store.fetch(all_after(&group(&name), Position(0), safe)).await;
                assert_eq!(fetched.unwrap().events.len(), 1);
                let settlement = crate::store::Settlement { number, ..first_settlement(&name, 1) };
                assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
            }
        });
    }
    let mut most = 0;
    while work.len() > 1 {
        most = most.max(value(&mut observer, SESSIONS).await);
        while work.try_join_next().is_some_and(|done| done.map(|()| true).unwrap()) {}
        tokio::task::yield_now().await;
    }
    most = most.max(value(&mut observer, SESSIONS).await);
    assert_eq!(most, wanted);
    session.heartbeat(&[]).await.unwrap();
    work.shutdown().await;
    drop((session, store));
    until("all are closed", async || value::<i64>(&mut observer, SESSIONS).await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_server_fails_once_and_not_once_for_each_connection() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut observer = database.raw().await;
    // All connections of the pool are open, and idle.
    let mut work = JoinSet::new();
    for n in 0..POOL_SIZE * 4 {
        let store = store.clone();
        work.spawn(async move { led(&store, &format!("g{n}")).await });
    }
    work.join_all().await;
    let pool = i64::try_from(POOL_SIZE).unwrap();
    assert_eq!(value::<i64>(&mut observer, SESSIONS).await, pool);
    let end_all = SESSIONS.replace("count(*)", "count(pg_terminate_backend(pid, 10000))");
    assert_eq!(value::<i64>(&mut observer, end_all).await, pool);
    let error = store.cursor(&group("g0")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    store.cursor(&group("g0")).await.unwrap();
}

#[tokio::test]
async fn a_refusal_leaves_no_transaction_open_for_whoever_comes_next() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut observer = database.raw().await;
    led(&store, "g").await;
    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert_eq!(session.try_locks(&[group("g")]).await.unwrap(), [true]);
    for _ in 0..3 {
        let error = store.remove_group(&group("g"), false).await.unwrap_err();
        assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
    }
    let open = SESSIONS.to_owned() + " AND state LIKE 'idle in transaction%'";
    until("nothing is open", async || value::<i64>(&mut observer, open.clone()).await == 0).await;
    publish(&store, "a").await;
    assert_eq!(seen(&store).await.len(), 1);
}

#[tokio::test]
async fn a_hint_comes_with_every_publish_and_the_listener_comes_back() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut observer = database.raw().await;
    let listens = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND query LIKE 'LISTEN%' AND pid <> pg_backend_pid()";
    for _ in 0..2 {
        let hinted = tokio::spawn({
            let store = store.clone();
            async move { store.hint().await }
        });
        until("it listens", async || value::<i64>(&mut observer, listens).await == 1).await;
        publish(&store, "a").await;
        tokio::time::timeout(super::PATIENCE, hinted).await.unwrap().unwrap();
        let end = listens.replace("count(*)", "count(pg_terminate_backend(pid, 10000))");
        assert_eq!(value::<i64>(&mut observer, end).await, 1);
    }
}
