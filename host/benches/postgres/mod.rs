//! What the benchmarks of the shared store have in common: a server, a database
//! of their own on it, events, and figures.
//!
//! `DATABASE_URL` names the server. Without one a private server is started from
//! the installed programs; it keeps what it commits through a crash, as a real
//! one does, so a commit costs what it costs on this machine's disk.
//!
//! `cargo bench --bench NAME -- --quick` shows within seconds that a benchmark
//! works; its figures are then worth little.

#![allow(dead_code, unused_imports, reason = "each benchmark uses a part of it")]

mod idle;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use event_host_core::event::{Event, GroupName, Tenant};
use event_host_store::traits::*;
use event_host_store_postgres::{PostgresStore, ServerUrl};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};
use test_postgres::Server;

pub(crate) use idle::Idle;

/// What the private server does about durability, whatever its defaults.
const DURABLE: [(&str, &str); 4] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("max_connections", "100"),
];

/// What is printed of the server's settings.
const PRINTED: [&str; 5] =
    ["fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_connections"];

/// The data of an event, in bytes.
pub(crate) const DATA: usize = 200;

/// How the benchmark was called; `None` if it was called by something else than
/// `cargo bench`, which then gets nothing.
pub(crate) fn called() -> Option<Effort> {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    if !has("--bench") {
        eprintln!("a benchmark: run it with `cargo bench`");
        return None;
    }
    Some(if has("--quick") { Effort::Quick } else { Effort::Full })
}

/// How long a benchmark may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Seconds, to see that it works.
    Quick,
    /// As long as its figures need.
    Full,
}

impl Effort {
    /// One of two values.
    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// A database of the benchmark's own. Dropping it removes it.
pub(crate) struct Database {
    // Before the server, which must not stop first.
    database: test_databases::Database,
    server: Option<Server>,
}

impl Database {
    /// Creates it, with the schema, and prints what server it is on.
    pub(crate) async fn create() -> Self {
        let (url, server) = match std::env::var("DATABASE_URL") {
            Ok(url) => (url, None),
            Err(_) => {
                let server = Server::start(&DURABLE).unwrap();
                (server.url("postgres"), Some(server))
            }
        };
        let database = test_databases::Database::create_on(&url).await;
        let database = Self { database, server };
        print_settings(&mut database.connect().await, database.is_private()).await;
        database.store().migrate().await.unwrap();
        database
    }

    /// Its URL.
    pub(crate) fn url(&self) -> &str {
        self.database.url()
    }

    /// Whether the server was started for the benchmark, so that nobody else
    /// uses it, and its processes are this machine's.
    pub(crate) fn is_private(&self) -> bool {
        self.server.is_some()
    }

    /// A store on it, with connections of its own.
    pub(crate) fn store(&self) -> PostgresStore {
        PostgresStore::new(ServerUrl::from(self.url()), None).unwrap()
    }

    /// A connection to it.
    pub(crate) async fn connect(&self) -> PgConnection {
        connect(self.url()).await
    }

    /// Appends so many events, and leaves the table as a vacuum would.
    pub(crate) async fn fill(&self, count: usize) {
        let store = self.store();
        let events: Vec<Event> = (0..count).map(event).collect();
        for chunk in events.chunks(1_000) {
            store.publish(&Tenant::none(), chunk).await.unwrap();
        }
        let mut connection = self.connect().await;
        connection.execute("VACUUM (FREEZE, ANALYZE) event_host.events").await.unwrap();
        connection.execute("CHECKPOINT").await.unwrap();
        connection.close().await.unwrap();
    }
}

/// A connection that logs nothing.
pub(crate) async fn connect(url: &str) -> PgConnection {
    let options: PgConnectOptions = url.parse().unwrap();
    options.disable_statement_logging().connect().await.unwrap()
}

async fn print_settings(connection: &mut PgConnection, private: bool) {
    let whose = if private { "a private server" } else { "the server of DATABASE_URL" };
    let mut line = String::new();
    for name in ["server_version"].iter().chain(&PRINTED) {
        let value: String = sqlx::query_scalar("SELECT current_setting($1)")
            .bind(name)
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        let shown = if line.is_empty() { value } else { format!(", {name} = {value}") };
        line.push_str(&shown);
    }
    println!("PostgreSQL {line} ({whose})");
}

/// An event of 200 bytes of JSON, with the attributes that every event has.
pub(crate) fn event(number: usize) -> Event {
    let data = format!("{{\"text\":\"{}\"}}", "x".repeat(DATA - 11)).into_bytes();
    assert_eq!(data.len(), DATA);
    Event {
        datacontenttype: Some("application/json".into()),
        data: Some(data),
        ..Event::new(
            format!("event-{number}"),
            "/bench",
            "bench.event",
            "2026-01-01T00:00:00Z".parse().unwrap(),
        )
    }
}

/// The group that a benchmark runs.
pub(crate) fn group() -> GroupName {
    "bench".parse().unwrap()
}

/// The no-op handler in Rust.
pub(crate) fn guest() -> PathBuf {
    guest_named("noop")
}

/// One of the test guests.
pub(crate) fn guest_named(name: &str) -> PathBuf {
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guests");
    let path = guests.join(format!("{name}.wasm"));
    assert!(path.exists(), "{} is missing: run `cargo xtask build-guests`", path.display());
    path.canonicalize().unwrap()
}

/// The value at a part of the way through `sorted`, such as 0.99.
pub(crate) fn percentile<T: Copy>(sorted: &[T], part: f64) -> T {
    let last = sorted.len() - 1;
    sorted[(last as f64 * part).round() as usize]
}

/// The median of figures in any order.
pub(crate) fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    percentile(&sorted, 0.5)
}
