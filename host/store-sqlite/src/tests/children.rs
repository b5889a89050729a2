//! Parts of tests that need a process of their own: the test binary again,
//! which then runs [`in_a_child`] and nothing else.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::{OpenOptions, SqliteStore, claims, event, group, settings, this_host};
use event_host_core::event::{LogEvent, Position, Tenant};
use event_host_core::failure::FailureKind;
use event_host_store::traits::*;
use event_host_store::{
    DeadLetterFilter, FailureRecord, NewDeadLetter, Settled, Settlement, StateWrite,
};

const TASK: &str = "EVENT_HOST_TEST_TASK";
const DATABASE: &str = "EVENT_HOST_TEST_DATABASE";
const READY: &str = "the child is ready";

/// A child that is about to do its task. Killed when it is dropped.
pub(super) fn child(task: &str, database: &Path) -> Command {
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut command = Command::new(this_program());
    command
        // Where whoever runs it can go, as the folder that we are in need not be.
        .current_dir(database.parent().unwrap())
        .args(["--exact", &format!("{module}::in_a_child"), "--ignored", "--nocapture"])
        .env(TASK, task)
        .env(DATABASE, database)
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// This program, by a way that every user can go where there is one: the folder that it
/// lies in may be closed to others.
fn this_program() -> PathBuf {
    let of_the_system = Path::new("/proc/self/exe");
    if of_the_system.exists() {
        return of_the_system.to_owned();
    }
    std::env::current_exe().unwrap()
}

/// Starts a child and waits until it says that it is ready.
pub(super) async fn ready_child(task: &str, database: &Path) -> Child {
    let mut child = child(task, database).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = async {
        loop {
            let line = lines.next_line().await.unwrap().expect("the child ended early");
            if line.contains(READY) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ready).await.unwrap();
    // The pipe stays open, so that a child that still writes does not end by it.
    child.stdout = Some(lines.into_inner().into_inner());
    child
}

#[tokio::test]
#[ignore = "a part of other tests, which start it in a process of its own"]
async fn in_a_child() {
    let (Ok(task), Ok(database)) = (std::env::var(TASK), std::env::var(DATABASE)) else {
        return;
    };
    match task.as_str() {
        "start" => start(&database).await,
        "lead" => lead(&database).await,
        "settle" => settle(&database).await,
        "replay" => replay(&database).await,
        "be refused" => be_refused(&database).await,
        _ => panic!("{task} is no task"),
    }
}

/// What every host does first.
async fn start(database: &str) {
    let store = SqliteStore::open(database, OpenOptions::to_migrate()).await.unwrap();
    for applied in store.migrate().await.unwrap() {
        println!("applied {applied}");
    }
    store.ensure_group(&settings("g")).await.unwrap();
    store.publish(&Tenant::none(), &[event("started", "1")]).await.unwrap();
}

async fn lead(database: &str) {
    let store = SqliteStore::open(database, OpenOptions::existing()).await.unwrap();
    let mut session = store.lock_session(&this_host()).await.unwrap();
    assert_eq!(claims(&mut session, &["g"]).await, [true]);
    println!("{READY}");
    std::future::pending::<()>().await;
}

/// Settles for ever; whatever commits makes cursor, state, emits and dead
/// letters one more.
async fn settle(database: &str) {
    let store = SqliteStore::open(database, OpenOptions::existing()).await.unwrap();
    let leadership = store.begin_leadership(&group("g"), &this_host()).await.unwrap();
    println!("{READY}");
    for n in leadership.position.0 + 1.. {
        let settled = store.settle(&one_more(n, leadership.epoch)).await.unwrap();
        assert_eq!(settled, Settled::Committed);
    }
}

/// The settlement that brings everything to `n`, its number included.
pub(super) fn one_more(n: i64, epoch: event_host_core::event::Epoch) -> Settlement {
    let dead = dead(LogEvent {
        position: Position(n),
        deliver_to: None,
        digest: None,
        event: event("dead", &n.to_string()),
    });
    Settlement {
        group: group("g"),
        epoch,
        number: n,
        position: Position(n),
        head: None,
        dead_letters: vec![dead],
        emits: vec![event("emitted", &n.to_string())],
        state: vec![StateWrite {
            scope: String::new(),
            key: "count".to_owned(),
            value: Some(n.to_string().into_bytes()),
        }],
        redeliveries: vec![],
        redelivered: vec![],
        failures: None,
        undecided: None,
        handled: 0,
        mark: None,
        deferred: Vec::new(),
    }
}

pub(super) fn dead(event: LogEvent) -> NewDeadLetter {
    NewDeadLetter {
        event,
        attempts: 1,
        failure: FailureRecord::new(FailureKind::Reject, "always"),
        digest: String::new(),
        dead_at: jiff::Timestamp::UNIX_EPOCH,
    }
}

async fn replay(database: &str) {
    let store = SqliteStore::open(database, OpenOptions::existing()).await.unwrap();
    println!("{READY}");
    for letter in store.dead_letters(&DeadLetterFilter::default()).await.unwrap() {
        store.replay(letter.id, None, None).await.unwrap();
    }
}

/// As a user who may not write, which root always may.
async fn be_refused(database: &str) {
    let error = SqliteStore::open(database, OpenOptions::to_migrate()).await.unwrap_err();
    println!("refused: {error}");
}
