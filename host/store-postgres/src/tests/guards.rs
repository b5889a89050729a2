//! Databases that would lose or repeat events in silence, and what is said of
//! them. Where a sentence names a statement that puts it right, the test runs it.

use sqlx::{AssertSqlSafe, Executor, PgConnection};
use test_postgres::{Server, Stop};

use super::{
    PostgresDatabase, PostgresStore, claims, first_settlement, group, host, led, publish, run,
    says, server_of_its_own, session_at, settings, store_at, until, until_waiting,
};
use event_host_core::event::{Epoch, Position};
use event_host_store::traits::*;
use event_host_store::{Adopted, Settled, Start, StoreError};

/// What both looks say: the one at the start, and the one of the lock session.
async fn refusal(store: &PostgresStore) -> StoreError {
    let error = store.check().await.unwrap_err();
    let Err(again) = store.lock_session(&host("one")).await else {
        panic!("a host would lead there: {error}");
    };
    assert_eq!(error.to_string(), again.to_string());
    error
}

/// Runs the statement that a sentence has in backticks.
async fn follow(session: &mut PgConnection, error: &StoreError) {
    let text = error.to_string();
    let sql = text.split('`').nth(1).unwrap();
    session.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
}

#[tokio::test]
async fn a_sequence_that_hands_positions_out_ahead_is_refused() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    run(&mut owner, "ALTER SEQUENCE event_host.events_position_seq CACHE 10").await;
    let error = refusal(&store).await;
    assert!(matches!(error, StoreError::Unusable(_)));
    says(&error, &["events_position_seq", "cache of 10"]);
    follow(&mut owner, &error).await;
    store.check().await.unwrap();
}

#[tokio::test]
async fn a_sequence_that_would_hand_positions_out_again_is_refused() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    for event_type in ["a", "b", "c"] {
        publish(&store, event_type).await;
    }
    let mut owner = database.raw().await;
    run(&mut owner, "SELECT setval('event_host.events_position_seq', 3, false)").await;
    let error = refusal(&store).await;
    assert!(matches!(error, StoreError::Unusable(_)));
    says(&error, &["stands at 2", "an event at position 3"]);
    follow(&mut owner, &error).await;
    store.check().await.unwrap();
    assert_eq!(publish(&store, "d").await, Position(4));
}

#[tokio::test]
async fn a_cursor_beyond_the_log_is_refused_until_it_is_moved() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    led(&store, "g").await;
    publish(&store, "a").await;
    let mut owner = database.raw().await;
    run(&mut owner, "UPDATE event_host.consumer_groups SET position = 1").await;
    store.check().await.unwrap();
    run(&mut owner, "UPDATE event_host.consumer_groups SET position = 2").await;
    let error = refusal(&store).await;
    assert!(matches!(error, StoreError::Refused(_)));
    says(&error, &["group `g` stands at 2", "ends at 1", "host groups seek g --to earliest"]);
    store.seek(&group("g"), Start::Latest).await.unwrap();
    store.check().await.unwrap();
}

#[tokio::test]
async fn a_log_that_grows_while_it_is_checked_is_not_taken_for_a_broken_one() {
    let database = PostgresDatabase::new().await;
    let store = database.patient_store();
    led(&store, "g").await;
    let mut other = database.raw().await;
    run(&mut other, "BEGIN; LOCK TABLE event_host.consumer_groups IN ACCESS EXCLUSIVE MODE").await;
    let checking = tokio::spawn({
        let store = store.clone();
        async move { store.check().await }
    });
    until_waiting(&mut other, 1).await;
    // Another host handles an event that came after the look at the sequence.
    run(
        &mut other,
        "INSERT INTO event_host.events (type) VALUES ('a');
         UPDATE event_host.consumer_groups SET position = 1;
         COMMIT",
    )
    .await;
    checking.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_only_reads_is_refused() {
    let (mut server, store) = server_of_its_own().await;
    store.check().await.unwrap();
    publish(&store, "a").await;
    server.stop(Stop::Fast).unwrap();
    // It starts as a standby that waits for what a primary server never sends.
    server.put("standby.signal", "").unwrap();
    server.resume().unwrap();
    let store = store_at(&server.url("postgres"));
    let error = store.check().await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    says(&error, &["is a standby server, which only reads", "connect to the primary"]);
    let error = store.lock_session(&host("one")).await.err().unwrap();
    says(&error, &["standby server"]);
    // What asks nothing before it writes is told, too.
    let error = store.ensure_group(&settings("g")).await.unwrap_err();
    assert!(matches!(error, StoreError::Busy(_)), "{error:?}");
    says(&error, &["only reads", "primary"]);
}

#[tokio::test]
async fn a_database_that_cannot_keep_every_text_is_refused() {
    let server = Server::start(&[]).unwrap();
    let mut owner = session_at(&server.url("postgres")).await;
    run(
        &mut owner,
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    )
    .await;
    let store = store_at(&server.url("latin"));
    store.migrate().await.unwrap();
    let error = refusal(&store).await;
    says(&error, &["keeps texts in LATIN1", "ENCODING 'UTF8'"]);
}

#[tokio::test]
async fn a_restored_database_is_refused_until_it_is_adopted() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    store.check().await.unwrap();
    led(&store, "b").await;
    led(&store, "a").await;
    for event_type in ["a", "b", "c"] {
        publish(&store, event_type).await;
    }
    assert_eq!(store.settle(&first_settlement("a", 2)).await.unwrap(), Settled::Committed);
    let mut owner = database.raw().await;
    let here: i64 = super::value(&mut owner, "SELECT system_identifier FROM event_host.home").await;
    run(&mut owner, "UPDATE event_host.home SET system_identifier = 4711").await;

    let error = refusal(&store).await;
    assert!(matches!(error, StoreError::Unusable(_)));
    says(
        &error,
        &["restored", "cluster 4711", &here.to_string(), "host adopt", "run nothing on it"],
    );

    let adopted = store.adopt().await.unwrap();
    let groups = vec![(group("a"), Position(2)), (group("b"), Position(0))];
    assert_eq!(adopted, Adopted { from: Some(4711), here, groups });
    store.check().await.unwrap();
    for name in ["a", "b"] {
        let status = store.group_status(&group(name)).await.unwrap();
        assert_eq!((status.epoch, status.leader), (Epoch(2), None));
    }
    // What was open before is refused.
    let late = event_host_store::Settlement { number: 2, ..first_settlement("a", 3) };
    assert_eq!(store.settle(&late).await.unwrap(), Settled::NotLeader);
    assert_eq!(store.cursor(&group("a")).await.unwrap().position, Position(2));

    // At home there is nothing to adopt.
    let again = store.adopt().await.unwrap();
    assert_eq!(again, Adopted { from: None, here, groups: Vec::new() });
    assert_eq!(store.group_status(&group("a")).await.unwrap().epoch, Epoch(2));
}

#[tokio::test]
async fn locks_in_another_database_than_the_log_are_refused() {
    let (server, other_server) = (Server::start(&[]).unwrap(), Server::start(&[]).unwrap());
    let with = |database: &str, locks: &str| {
        PostgresStore::new(database.into(), Some(locks.into())).unwrap()
    };
    let at_home = server.url("postgres");
    for (elsewhere, name) in [
        // Another database of the same server, and the one that has the same
        // name and number on another.
        (server.url("template1"), "template1"),
        (other_server.url("postgres"), "postgres"),
    ] {
        let error = with(&at_home, &elsewhere).lock_session(&host("one")).await.err().unwrap();
        assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
        let leads_to = format!("`lock_database` leads to database {name} at ");
        let and_not_to = "`database` leads to, database postgres at ";
        says(&error, &[&leads_to, and_not_to, "the same database"]);
    }
    let database = PostgresDatabase::new().await;
    let url = database.database.url();
    database.store().ensure_group(&settings("g")).await.unwrap();
    let mut session = with(url, url).lock_session(&host("one")).await.unwrap();
    assert_eq!(claims(&mut session, &["g"]).await, [true]);
    let mut direct = database.store().lock_session(&host("two")).await.unwrap();
    assert_eq!(claims(&mut direct, &["g"]).await, [false]);
    drop(session);
    until("the lock is free", async || claims(&mut direct, &["g"]).await == [true]).await;
}
