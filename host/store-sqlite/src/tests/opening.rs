//! What can and cannot be opened, and what is said of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{ConnectOptions, Connection};

use super::children::child;
use super::{OpenOptions, SqliteDatabase, SqliteStore, claims, event, settings, this_host};
use event_host_core::event::Tenant;
use event_host_store::StoreError;
use event_host_store::traits::*;

/// What the system says to who wants to be a user that there cannot be.
const EINVAL: i32 = 22;

async fn refusal(path: &Path, options: OpenOptions) -> String {
    let error = SqliteStore::open(path.to_str().unwrap(), options).await.unwrap_err();
    match error {
        StoreError::Unusable(text) => text,
        other => panic!("{other:?}"),
    }
}

fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
}

#[tokio::test]
async fn what_is_no_database_is_refused_with_the_reason_and_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    let content = "not a database, but long enough to be taken for one\n".repeat(50);
    fs::write(&text, &content).unwrap();
    for options in [OpenOptions::existing(), OpenOptions::to_migrate()] {
        says(&refusal(&text, options).await, &["notes.txt", "not a SQLite database"]);
        says(&refusal(folder.path(), options).await, &["is a folder", "host.db"]);
        let nowhere = folder.path().join("nowhere").join("host.db");
        says(&refusal(&nowhere, options).await, &["no folder", "nowhere"]);
        let inside_a_file = text.join("host.db");
        says(&refusal(&inside_a_file, options).await, &["notes.txt"]);
    }
    assert_eq!(fs::read_to_string(&text).unwrap(), content);

    let missing = folder.path().join("host.db");
    says(&refusal(&missing, OpenOptions::existing()).await, &["no database", "host migrate"]);
    assert!(!missing.exists(), "asking makes no file");
}

#[tokio::test]
async fn a_truncated_database_is_refused() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let events: Vec<_> = (0..1_000).map(|n| event("a", &n.to_string())).collect();
    store.publish(&Tenant::none(), &events).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let whole = fs::read(database.path()).unwrap();
    fs::write(database.path(), &whole[..5_000]).unwrap();
    let text = refusal(&database.path(), OpenOptions::existing()).await;
    says(&text, &["host.db", "damaged"]);
}

#[tokio::test]
async fn a_schema_that_is_missing_names_the_command_that_makes_it() {
    let database = SqliteDatabase::new();
    let path = database.path();
    let store = SqliteStore::open(path.to_str().unwrap(), OpenOptions::to_migrate()).await.unwrap();
    says(&refusal(&path, OpenOptions::existing()).await, &["no tables", "host migrate"]);
    // Also where the schema was not asked for when it was opened.
    for error in [
        store.publish(&Tenant::none(), &[event("a", "1")]).await.unwrap_err(),
        store.safe_position().await.unwrap_err(),
        store.status().await.unwrap_err(),
        store.ensure_group(&settings("g")).await.unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
        says(&error.to_string(), &["host.db", "host migrate"]);
    }
    assert_eq!(store.migrate().await.unwrap(), ["0001_log_and_groups"]);
    assert!(store.migrate().await.unwrap().is_empty(), "the second time there is nothing to do");
    store.publish(&Tenant::none(), &[event("a", "1")]).await.unwrap();
    SqliteStore::open(path.to_str().unwrap(), OpenOptions::existing()).await.unwrap();
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused_and_left_alone() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let mut raw = database.raw().await;
    sqlx::query(
        "INSERT INTO event_host_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'from the future', TRUE, x'00', 0)",
    )
    .execute(&mut raw)
    .await
    .unwrap();
    for options in [OpenOptions::existing(), OpenOptions::to_migrate()] {
        let text = refusal(&database.path(), options).await;
        says(&text, &["host.db", "newer version of host", "9999"]);
    }
    says(&store.migrate().await.unwrap_err().to_string(), &["newer version of host"]);
}

#[tokio::test]
async fn tables_of_another_application_are_not_touched() {
    let database = SqliteDatabase::new();
    let mut raw = SqliteConnectOptions::new()
        .filename(database.path())
        .create_if_missing(true)
        .connect()
        .await
        .unwrap();
    sqlx::raw_sql("CREATE TABLE events (theirs INTEGER); INSERT INTO events VALUES (1)")
        .execute(&mut raw)
        .await
        .unwrap();
    let path = database.path();
    let store = SqliteStore::open(path.to_str().unwrap(), OpenOptions::to_migrate()).await.unwrap();
    let error = store.migrate().await.unwrap_err();
    says(&error.to_string(), &["host.db", "events", "already exists"]);
    let theirs: i64 =
        sqlx::query_scalar("SELECT theirs FROM events").fetch_one(&mut raw).await.unwrap();
    assert_eq!(theirs, 1);
    let tables: i64 =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_schema").fetch_one(&mut raw).await.unwrap();
    assert_eq!(tables, 1, "what broke off left nothing");
}

#[tokio::test]
async fn a_database_that_keeps_text_in_utf_16_is_refused() {
    let database = SqliteDatabase::new();
    let mut raw = SqliteConnectOptions::new()
        .filename(database.path())
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Delete)
        .connect()
        .await
        .unwrap();
    sqlx::raw_sql("PRAGMA encoding = 'UTF-16'; CREATE TABLE t (a TEXT)")
        .execute(&mut raw)
        .await
        .unwrap();
    raw.close().await.unwrap();
    says(&refusal(&database.path(), OpenOptions::to_migrate()).await, &["UTF-16", "UTF-8"]);
}

/// Root may write everywhere, so the refused one is an ordinary user, who needs a folder
/// that it reaches.
#[tokio::test]
async fn what_cannot_be_written_is_refused_at_once() {
    let for_everybody = test_postgres::folder_for_everybody().unwrap();
    let database = SqliteDatabase { folder: tempfile::tempdir_in(for_everybody).unwrap() };
    database.store().await.close().await.unwrap();
    let folder = database.path().parent().unwrap().to_owned();
    fs::remove_dir(folder.join("host.db-locks")).unwrap();
    let set_mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for (file_mode, folder_mode, said) in
        [(0o444, 0o777, "cannot be written"), (0o666, 0o555, "host.db-locks")]
    {
        set_mode(&database.path(), file_mode);
        set_mode(&folder, folder_mode);
        let mut command = child("be refused", &database.path());
        if rustix::process::geteuid().is_root() {
            command.uid(65_534).gid(65_534);
        }
        let output = command.output().await;
        set_mode(&folder, 0o755);
        let output = match output {
            // Where root is root in a namespace alone, there may be no other user.
            Err(why) if why.raw_os_error() == Some(EINVAL) => {
                return println!("skipped: there is no ordinary user here: {why}");
            }
            output => output.unwrap(),
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        says(&text, &["refused: ", "host.db", said]);
    }
}

#[tokio::test]
async fn two_ways_to_one_file_share_its_locks() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let link = database.path().with_file_name("link.db");
    std::os::unix::fs::symlink(database.path(), &link).unwrap();
    let linked = SqliteStore::open(link.to_str().unwrap(), OpenOptions::existing()).await.unwrap();
    assert_eq!(linked.path(), store.path());
    store.ensure_group(&settings("g")).await.unwrap();
    let mut one = store.lock_session(&this_host()).await.unwrap();
    let mut two = linked.lock_session(&this_host()).await.unwrap();
    assert_eq!(claims(&mut one, &["g"]).await, [true]);
    assert_eq!(claims(&mut two, &["g"]).await, [false]);
}

#[tokio::test]
async fn a_lock_file_that_is_gone_ends_the_leadership() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let mut session = store.lock_session(&this_host()).await.unwrap();
    assert_eq!(claims(&mut session, &["g"]).await, [true]);
    session.heartbeat(false).await.unwrap();
    fs::remove_dir_all(database.path().with_file_name("host.db-locks")).unwrap();
    says(&session.heartbeat(false).await.unwrap_err().to_string(), &["g.lock", "deleted"]);

    // The folder is made again by whoever needs it.
    let mut next = store.lock_session(&this_host()).await.unwrap();
    assert_eq!(claims(&mut next, &["g"]).await, [true]);
    next.heartbeat(false).await.unwrap();
}

#[tokio::test]
async fn a_lock_file_that_cannot_be_used_is_no_trouble_of_the_other_groups() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let in_the_way = database.path().with_file_name("host.db-locks").join("g.lock");
    fs::create_dir_all(&in_the_way).unwrap();
    let mut session = store.lock_session(&this_host()).await.unwrap();
    for name in ["f", "g", "h"] {
        store.ensure_group(&settings(name)).await.unwrap();
    }
    for _ in 0..2 {
        assert_eq!(claims(&mut session, &["f", "g", "h"]).await, [true, false, true]);
    }
    session.heartbeat(true).await.unwrap();
    fs::remove_dir(&in_the_way).unwrap();
    assert_eq!(claims(&mut session, &["f", "g", "h"]).await, [true; 3]);
}

#[tokio::test]
async fn a_closed_store_leaves_one_file_and_can_be_used_again() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.publish(&Tenant::none(), &[event("a", "1")]).await.unwrap();
    store.safe_position().await.unwrap();
    store.close().await.unwrap();
    assert!(!database.path().with_file_name("host.db-wal").exists());
    let positions = store.publish(&Tenant::none(), &[event("a", "2")]).await.unwrap();
    assert_eq!(store.safe_position().await.unwrap(), positions[0]);
}
