//! What is known of a log belongs to one run of one server.

use std::process::Command;

use test_postgres::{Server, Stop};

use super::{
    PostgresDatabase, PostgresStore, first_settlement, group, host, led, pid, publish, run, says,
    server_of_its_own, session_at, settings, store_at, types, until, value,
};
use event_host_core::event::{Epoch, Position};
use event_host_store::traits::*;
use event_host_store::{Settled, Settlement, StoreError};

const RUN: &str = "SELECT coalesce((SELECT token FROM event_host.incarnation), 'none')";

/// Looks until the server answers, and expects that it says once that the log is not
/// the one that it was.
pub(super) async fn expect_change(store: &PostgresStore) -> StoreError {
    let mut changed = None;
    until("the log is another one", async || match store.safe_position().await {
        Err(why @ StoreError::Changed(_)) => {
            changed = Some(why);
            true
        }
        Err(StoreError::Unavailable(_) | StoreError::Busy(_)) => false,
        other => panic!("{other:?}"),
    })
    .await;
    let still = store.cursor(&group("g")).await.unwrap_err();
    says(&still, &["what was known of the log is forgotten first"]);
    store.safe_position().await.unwrap();
    store.cursor(&group("g")).await.unwrap();
    changed.unwrap()
}

/// Ends a session as nothing else does: the server recovers, as from a crash, and its
/// postmaster lives on.
pub(super) async fn crash(url: &str) {
    let mut session = session_at(url).await;
    let before: String = value(&mut session, RUN).await;
    let victim = pid(&mut session).await.to_string();
    assert!(Command::new("kill").args(["-9", &victim]).status().unwrap().success());
    until("the server is down", async || {
        super::try_to_run(&mut session, "SELECT 1").await.is_err()
    })
    .await;
    // The postmaster may let somebody in before it knows of the crash.
    until("the server is back", async || {
        let Ok(mut session) = <sqlx::PgConnection as sqlx::Connection>::connect(url).await else {
            return false;
        };
        sqlx::query_scalar::<_, String>(RUN)
            .fetch_one(&mut session)
            .await
            .is_ok_and(|now| now != before)
    })
    .await;
}

/// A restore brings the token back, and has the sequence further on by the time that the
/// host looks: nothing else tells that this is another log.
#[tokio::test]
async fn what_was_restored_from_a_dump_is_another_log_though_the_token_came_along() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    led(&store, "g").await;
    publish(&store, "a").await;
    assert_eq!(types(&store).await, ["a"]);
    let mut owner = database.raw().await;
    let before: String = value(&mut owner, RUN).await;
    run(
        &mut owner,
        "BEGIN;
         ALTER TABLE event_host.incarnation RENAME TO dumped;
         CREATE UNLOGGED TABLE event_host.incarnation (LIKE event_host.dumped INCLUDING ALL);
         INSERT INTO event_host.incarnation SELECT * FROM event_host.dumped;
         DROP TABLE event_host.dumped;
         COMMIT",
    )
    .await;
    assert_eq!(value::<String>(&mut owner, RUN).await, before);
    let why = expect_change(&store).await;
    says(&why, &["restarted or replaced"]);
    assert_eq!(types(&store).await, ["a"]);
}

#[tokio::test]
async fn after_a_crash_nothing_is_settled_that_was_begun_before() {
    let (server, store) = server_of_its_own().await;
    let url = server.url("postgres");
    led(&store, "g").await;
    assert_eq!(publish(&store, "a").await, Position(1));
    assert_eq!(types(&store).await, ["a"]);
    assert_eq!(store.settle(&first_settlement("g", 1)).await.unwrap(), Settled::Committed);
    let second = Settlement { number: 2, ..first_settlement("g", 1) };
    crash(&url).await;

    // Before anybody has looked: through a host that knows of nothing.
    let mut raw = session_at(&url).await;
    assert_eq!(value::<String>(&mut raw, RUN).await, "none");
    assert_eq!(store_at(&url).settle(&second).await.unwrap(), Settled::NotLeader);
    let why = expect_change(&store).await;
    says(&why, &["was restarted or replaced", "all groups go on from the cursors"]);
    assert_ne!(value::<String>(&mut raw, RUN).await, "none");
    assert_eq!(store.settle(&second).await.unwrap(), Settled::NotLeader);

    let leadership = store.begin_leadership(&group("g"), &host("one")).await.unwrap();
    assert_eq!((leadership.epoch, leadership.settled), (Epoch(3), 1));
    let third = Settlement { epoch: Epoch(3), ..second };
    assert_eq!(store.settle(&third).await.unwrap(), Settled::Committed);
}

#[tokio::test]
async fn a_clean_restart_is_told_and_keeps_what_leaders_have() {
    let (mut server, store) = server_of_its_own().await;
    let url = server.url("postgres");
    led(&store, "g").await;
    publish(&store, "a").await;
    assert_eq!(types(&store).await, ["a"]);
    let mut raw = session_at(&url).await;
    let before: String = value(&mut raw, RUN).await;
    server.restart(Stop::Fast).unwrap();
    expect_change(&store).await;
    assert_eq!(types(&store).await, ["a"]);
    let mut raw = session_at(&url).await;
    assert_eq!(value::<String>(&mut raw, RUN).await, before);
    assert_eq!(store.settle(&first_settlement("g", 1)).await.unwrap(), Settled::Committed);
}

#[tokio::test]
async fn of_many_that_find_a_new_incarnation_one_begins_it() {
    let (server, store) = server_of_its_own().await;
    let url = server.url("postgres");
    for n in 0..20 {
        store.ensure_group(&settings(&format!("g{n}"))).await.unwrap();
    }
    crash(&url).await;
    let mut looking = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let store = store_at(&url);
        looking.spawn(async move {
            // Who waits for another to begin it in vain looks again.
            while store.safe_position().await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        });
    }
    looking.join_all().await;
    let mut raw = session_at(&url).await;
    let epochs: Vec<i64> =
        value(&mut raw, "SELECT array_agg(DISTINCT epoch) FROM event_host.consumer_groups").await;
    assert_eq!(epochs, [1]);
}

#[tokio::test]
async fn a_lock_session_on_another_server_than_the_look_is_refused() {
    let (server, store) = server_of_its_own().await;
    let other = Server::start(&[]).unwrap();
    store_at(&other.url("postgres")).migrate().await.unwrap();
    store.safe_position().await.unwrap();
    // As through an address that leads elsewhere by now.
    let elsewhere = PostgresStore {
        connections: std::sync::Arc::clone(&store_at(&other.url("postgres")).connections),
        ..store.clone()
    };
    elsewhere.connections.know(store.connections.known().borrow().clone());
    let Err(why) = elsewhere.lock_session(&host("one")).await else {
        panic!("it holds locks where nobody reads");
    };
    says(&why, &["a connection leads to incarnation", "the server was restarted or replaced"]);
    let why = elsewhere.cursor(&group("g")).await.unwrap_err();
    says(&why, &["a connection leads to incarnation"]);
    // Whoever looks finds out, and then the locks may be had.
    let why = elsewhere.safe_position().await.unwrap_err();
    assert!(matches!(why, StoreError::Changed(_)), "{why:?}");
    elsewhere.safe_position().await.unwrap();
    drop(elsewhere.lock_session(&host("one")).await.unwrap());
    drop(server);
}

#[tokio::test]
async fn no_settlement_moves_a_cursor_above_the_last_position() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    led(&store, "g").await;
    for event_type in ["a", "b", "c"] {
        publish(&store, event_type).await;
    }
    let mut raw = database.raw().await;
    run(&mut raw, "SELECT setval('event_host.events_position_seq', 2)").await;
    let with_state = |position| Settlement {
        state: vec![event_host_store::StateWrite {
            scope: String::new(),
            key: "k".to_owned(),
            value: Some(b"v".to_vec()),
        }],
        ..first_settlement("g", position)
    };
    for settlement in [first_settlement("g", 3), with_state(3)] {
        let why = store.settle(&settlement).await.unwrap_err();
        assert!(matches!(why, StoreError::Changed(_)), "{why:?}");
        says(&why, &["group `g` cannot settle up to position 3", "the log ends at 2"]);
    }
    assert_eq!(store.cursor(&group("g")).await.unwrap().position, Position::ZERO);
    assert_eq!(store.settle(&with_state(2)).await.unwrap(), Settled::Committed);
}
