//! How many connections a host opens, and what becomes of broken ones.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{
    PostgresDatabase, all_after, claims, first_settlement, group, host, led, publish, run, says,
    seen, settings, until, value,
};
use crate::POOL_SIZE;
use event_host_core::event::Position;
use event_host_store::traits::*;
use event_host_store::{Claim, GroupRegistration, Settled, Settlement, StoreError};

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

    let first = store.lock_session(&host("one")).await.unwrap();
    publish(&store, "a").await;
    assert_eq!(value::<i64>(&mut observer, SESSIONS).await, 2, "the lock session, and one");
    // Others than the ones that are at work meanwhile.
    let claimed: Vec<GroupRegistration> = (0..50).map(|n| settings(&format!("h{n}"))).collect();
    store.ensure_groups(&claimed).await.unwrap();
    let names: Vec<_> = claimed.iter().map(|group| group.name.clone()).collect();

    let mut work = JoinSet::new();
    work.spawn({
        let store = store.clone();
        async move { store.wait_for_hint().await }
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
                let settlement = Settlement { number, ..first_settlement(&name, 1) };
                assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
            }
        });
    }
    // The lock session is lost meanwhile, again and again.
    let reopened = Cell::new(false);
    let reopening = async {
        let mut raw = database.raw().await;
        let mut session = first;
        for _ in 0..3 {
            let lost: i32 = value(&mut raw, "SELECT backend_pid FROM event_host.hosts").await;
            drop(session);
            until("the server sees it", async || {
                let alive = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {lost}");
                value::<i64>(&mut raw, alive).await == 0
            })
            .await;
            session = store.lock_session(&host("one")).await.unwrap();
            let claims = session.claim(&names).await.unwrap();
            assert!(claims.iter().all(|claim| matches!(claim, Claim::Led(_))), "{claims:?}");
        }
        reopened.set(true);
        session
    };
    let watching = async {
        let mut most = 0;
        while work.len() > 1 || !reopened.get() {
            most = most.max(value(&mut observer, SESSIONS).await);
            while work.try_join_next().is_some_and(|done| done.map(|()| true).unwrap()) {}
            tokio::task::yield_now().await;
        }
        most
    };
    let (mut session, most) = tokio::join!(reopening, watching);
    assert_eq!(most, wanted);
    session.heartbeat(false).await.unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_lock_in_vain_keeps_its_connection_and_leaves_nothing_open_on_it() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut observer = database.raw().await;
    led(&store, "g").await;
    publish(&store, "a").await;
    let mut other = database.raw().await;
    run(&mut other, "BEGIN; SELECT FROM event_host.consumer_groups FOR UPDATE").await;
    let pids = SESSIONS.replace("count(*)", "array_agg(pid ORDER BY pid)");
    let before: Vec<i32> = value(&mut observer, pids.clone()).await;
    let alone = first_settlement("g", 1);
    let in_a_transaction = Settlement { emits: vec![super::event("emitted")], ..alone.clone() };
    for settlement in [&alone, &in_a_transaction] {
        let error = store.settle(settlement).await.unwrap_err();
        assert!(matches!(error, StoreError::Busy(_)), "{error:?}");
        says(&error, &["holds what it needs locked"]);
        let idle = SESSIONS.to_owned() + " AND state <> 'idle'";
        assert_eq!(value::<i64>(&mut observer, idle).await, 0);
        assert_eq!(value::<Vec<i32>>(&mut observer, pids.clone()).await, before);
    }
    // An operator waits, and is no less patient than the next.
    for _ in 0..2 {
        let pausing = tokio::spawn({
            let store = store.clone();
            async move { store.pause(&group("g"), "a reason").await }
        });
        tokio::time::timeout(super::PATIENCE, async {
            // For longer than a leader does.
            let waits = SESSIONS.to_owned()
                + " AND clock_timestamp() - query_start > interval '500 ms'
                    AND wait_event_type = 'Lock'";
            until("it waits", async || value::<i64>(&mut observer, waits.clone()).await == 1).await;
        })
        .await
        .unwrap();
        run(&mut other, "COMMIT").await;
        pausing.await.unwrap().unwrap();
        run(&mut other, "BEGIN; SELECT FROM event_host.consumer_groups FOR UPDATE").await;
        let asked = Instant::now();
        assert!(store.settle(&in_a_transaction).await.is_err());
        assert!(
            asked.elapsed() < Duration::from_secs(5),
            "a leader does not: {:?}",
            asked.elapsed()
        );
    }
    run(&mut other, "COMMIT").await;
    assert_eq!(store.settle(&in_a_transaction).await.unwrap(), Settled::Committed);
}

#[tokio::test]
async fn a_refusal_leaves_no_transaction_open_for_whoever_comes_next() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut observer = database.raw().await;
    led(&store, "g").await;
    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert_eq!(claims(&mut session, &["g"]).await, [true]);
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
    // It hears what is published after its statement is over.
    let listens = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND query LIKE 'LISTEN%' AND state = 'idle'
             AND pid <> pg_backend_pid()";
    for _ in 0..2 {
        let hinted = tokio::spawn({
            let store = store.clone();
            async move { store.wait_for_hint().await }
        });
        until("it listens", async || value::<i64>(&mut observer, listens).await == 1).await;
        publish(&store, "a").await;
        tokio::time::timeout(super::PATIENCE, hinted).await.unwrap().unwrap();
        let end = listens.replace("count(*)", "count(pg_terminate_backend(pid, 10000))");
        assert_eq!(value::<i64>(&mut observer, end).await, 1);
    }
}
