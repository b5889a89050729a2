//! Files that are moved, deleted or replaced while they are open.

use std::fs;
use std::path::{Path, PathBuf};

use super::{SqliteDatabase, SqliteStore, claims, event, group, settings, this_host};
use event_host_core::event::{Event, Position, Tenant};
use event_host_store::traits::*;
use event_host_store::{LockSession, StoreError};

fn beside(database: &SqliteDatabase, suffix: &str) -> PathBuf {
    database.path().with_file_name(format!("host.db{suffix}"))
}

fn says(error: &StoreError, parts: &[&str]) {
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
}

/// Publishes events with these ids.
async fn publish(store: &SqliteStore, ids: &[&str]) -> Result<Vec<Position>, StoreError> {
    let events: Vec<_> = ids.iter().map(|id| event("a", id)).collect();
    store.publish(&Tenant::none(), &events).await
}

/// A database with so many events and one group, and a host that leads it.
async fn led(events: usize) -> (SqliteDatabase, SqliteStore, Box<dyn LockSession>) {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    publish(&store, &vec!["1"; events]).await.unwrap();
    store.ensure_group(&settings("g")).await.unwrap();
    let mut session = store.lock_session(&this_host()).await.unwrap();
    assert_eq!(claims(&mut session, &["g"]).await, [true]);
    session.heartbeat(false).await.unwrap();
    (database, store, session)
}

/// Whatever is asked says what is wrong, and nothing is made in its place.
async fn all_refuse(
    store: &SqliteStore,
    session: &mut Box<dyn LockSession>,
    database: &SqliteDatabase,
    said: &[&str],
) {
    let path = database.path();
    let was_there = path.exists();
    says(&session.heartbeat(false).await.unwrap_err(), said);
    says(&publish(store, &["lost"]).await.unwrap_err(), said);
    says(&store.safe_position().await.unwrap_err(), said);
    says(&store.cursor(&group("g")).await.unwrap_err(), said);
    says(&store.ensure_group(&settings("g")).await.unwrap_err(), said);
    assert_eq!(path.exists(), was_there, "no new file came into being");
}

/// What a host goes on with: a new session, and the events that the store sees then.
async fn goes_on(store: &SqliteStore) -> i64 {
    let mut session = store.lock_session(&this_host()).await.unwrap();
    store.ensure_group(&settings("g")).await.unwrap();
    assert_eq!(claims(&mut session, &["g"]).await, [true]);
    session.heartbeat(false).await.unwrap();
    store.begin_leadership(&group("g"), &this_host()).await.unwrap();
    store.status().await.unwrap().events
}

/// What is told, once, so that whoever knows positions of the database before forgets them.
/// Nobody leads before that.
async fn forgets(store: &SqliteStore) -> StoreError {
    let forgetting = async {
        loop {
            match store.safe_position().await {
                Err(why @ StoreError::Changed(_)) => return why,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let host = this_host();
    let (refused, told) = tokio::join!(store.lock_session(&host), forgetting);
    says(&refused.err().unwrap(), &["is forgotten first"]);
    told
}

/// Another database file, closed and whole.
async fn another(events: usize) -> SqliteDatabase {
    let (database, store, _) = led(events).await;
    store.close().await.unwrap();
    database
}

#[tokio::test]
async fn a_database_that_is_gone_is_missed_and_waited_for() {
    let (database, store, mut session) = led(3).await;
    let away = beside(&database, ".away");
    fs::rename(database.path(), &away).unwrap();
    all_refuse(&store, &mut session, &database, &["host.db", "was moved or deleted"]).await;
    drop(session);
    for _ in 0..2 {
        let error = store.lock_session(&this_host()).await.err().unwrap();
        says(&error, &["host.db", "nothing is there"]);
    }
    assert!(!database.path().exists());

    fs::rename(&away, database.path()).unwrap();
    assert_eq!(goes_on(&store).await, 3);
    publish(&store, &["4"]).await.unwrap();
    assert_eq!(store.status().await.unwrap().events, 4);
}

#[tokio::test]
async fn what_stands_in_the_place_of_the_database_is_led_anew() {
    let (database, store, mut session) = led(3).await;
    let other = another(7).await;
    fs::rename(other.path(), database.path()).unwrap();
    let said = ["host.db", "another file is in its place"];
    all_refuse(&store, &mut session, &database, &said).await;
    drop(session);
    let told = forgets(&store).await;
    assert_eq!(goes_on(&store).await, 7);
    assert!(matches!(&told, StoreError::Changed(why) if why.contains("another file")), "{told:?}");
    assert_eq!(store.safe_position().await.unwrap(), Position(7));
    publish(&store, &["8"]).await.unwrap();
    drop(store);
    let fresh = SqliteDatabase::store(&database).await;
    assert_eq!(fresh.status().await.unwrap().events, 8);
}

#[tokio::test]
async fn what_is_no_database_of_the_host_is_not_led() {
    let (database, store, session) = led(3).await;
    drop(session);
    fs::remove_file(database.path()).unwrap();
    fs::write(database.path(), "").unwrap();
    let error = store.lock_session(&this_host()).await.err().unwrap();
    assert!(error.to_string().contains("no tables of event-host"), "{error}");
    says(&publish(&store, &["lost"]).await.unwrap_err(), &["host.db"]);
    let tables = fs::metadata(database.path()).unwrap().len();
    assert!(tables <= 4_096, "nothing was made in it");
}

#[tokio::test]
async fn a_write_ahead_log_that_is_deleted_is_missed_and_nothing_of_it_is_lost() {
    for suffix in ["-wal", "-shm"] {
        let (database, store, mut session) = led(3).await;
        publish(&store, &["4", "5"]).await.unwrap();
        fs::remove_file(beside(&database, suffix)).unwrap();
        let name = format!("host.db{suffix}");
        all_refuse(&store, &mut session, &database, &[&name, "was moved or deleted"]).await;
        drop(session);
        assert_eq!(goes_on(&store).await, 5, "after the end of {suffix}");
        assert_eq!(store.safe_position().await.unwrap(), Position(5), "the same log");
        let sees: i64 = sqlx::query_scalar("SELECT count(*) FROM events")
            .fetch_one(&mut database.raw().await)
            .await
            .unwrap();
        assert_eq!(sees, 5);
    }
}

#[tokio::test]
async fn a_folder_that_is_gone_is_not_made_again() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("data");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("host.db");
    let store = open(&path).await;
    store.ensure_group(&settings("g")).await.unwrap();
    let mut session = store.lock_session(&this_host()).await.unwrap();
    assert_eq!(claims(&mut session, &["g"]).await, [true]);
    fs::remove_dir_all(&folder).unwrap();
    says(&session.heartbeat(false).await.unwrap_err(), &["host.db"]);
    session.claim(&[group("g")]).await.unwrap_err();
    drop(session);
    says(&store.lock_session(&this_host()).await.err().unwrap(), &["nothing is there"]);
    assert!(!folder.exists());
}

async fn open(path: &Path) -> SqliteStore {
    let options = super::OpenOptions::to_migrate();
    let store = SqliteStore::open(path.to_str().unwrap(), options).await.unwrap();
    store.migrate().await.unwrap();
    store
}

#[tokio::test]
async fn a_full_disk_is_said_and_is_over_when_there_is_room() {
    let (database, store, mut session) = led(3).await;
    {
        // As far as this connection goes.
        let mut writer = store.connections.any_writer().await;
        let full = sqlx::query("PRAGMA max_page_count = 1");
        full.execute(writer.connection().await.unwrap()).await.unwrap();
    }
    let large = Event { data: Some(vec![7; 100_000]), ..event("a", "4") };
    let error = store.publish(&Tenant::none(), std::slice::from_ref(&large)).await.unwrap_err();
    says(&error, &["the disk that holds", "host.db", "is full"]);
    session.heartbeat(false).await.unwrap();
    assert_eq!(store.status().await.unwrap().events, 3, "nothing of it is there");
    let published = store.publish(&Tenant::none(), &[large]).await.unwrap();
    assert_eq!(published, [Position(4)]);
    drop(database);
}
