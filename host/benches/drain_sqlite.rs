//! How fast a group drains the embedded store, beside a native loop.
//!
//! `host` runs the whole path: fetch, a no-op component, settle, through the
//! supervisor with default settings. `native` reads the same rows and columns in
//! the same batches through the same driver, moves the same cursor, and calls
//! nothing. Both commit with `synchronous=FULL`. The ratio of the two is the
//! figure; it is printed after both.
//!
//! The component is the Rust no-op guest: `cargo xtask build-guests` first.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use event_host_core::clock::SystemClock;
use event_host_core::event::{Event, GroupName, Position, Tenant};
use event_host_core::subscription::Subscription;
use event_host_core::troubles::Troubles;
use event_host_delivery::admission::FairExecutor;
use event_host_delivery::group::GroupSettings;
use event_host_delivery::replay_component::NoReplayComponents;
use event_host_delivery::supervisor::{Group, Supervisor};
use event_host_sandbox::settings::{Grants, Limits, Reuse};
use event_host_sandbox::{EngineSettings, LoadedHandler, Sandbox};
use event_host_store::traits::*;
use event_host_store::{HostIdentity, Start};
use event_host_store_sqlite::{OpenOptions, SqliteStore};
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Row};
use tokio_util::sync::CancellationToken;

const EVENTS: usize = 20_000;
const BATCH: i64 = 1_000;
const COLUMNS: &str = "position, deliver_to, type, time, id, source, subject, datacontenttype, \
                       dataschema, partitionkey, extensions, data";

fn group() -> GroupName {
    "drain".parse().unwrap()
}

async fn store(path: &Path) -> SqliteStore {
    SqliteStore::open(path.to_str().unwrap(), OpenOptions::to_migrate()).await.unwrap()
}

/// A log of events with 200 bytes of JSON each.
async fn fill(path: &Path) {
    let store = store(path).await;
    store.migrate().await.unwrap();
    let data = format!("{{\"text\":\"{}\"}}", "x".repeat(189)).into_bytes();
    assert_eq!(data.len(), 200);
    let events: Vec<Event> = (0..EVENTS)
        .map(|n| Event {
            datacontenttype: Some("application/json".into()),
            data: Some(data.clone()),
            ..Event::new(
                format!("event-{n}"),
                "/bench",
                "bench.event",
                "2026-01-01T00:00:00Z".parse().unwrap(),
            )
        })
        .collect();
    for chunk in events.chunks(1_000) {
        store.publish(&Tenant::none(), chunk).await.unwrap();
    }
    store.close().await.unwrap();
}

/// Drains the log once, and gives the time from the first fetch to the last
/// commit, with the start of the supervisor.
async fn host(path: &Path, handler: Arc<LoadedHandler>) -> Duration {
    let store: Arc<dyn Store> = Arc::new(store(path).await);
    let supervisor = Supervisor {
        store: store.clone(),
        deployments: None,
        host: HostIdentity { id: "bench".into(), hostname: "bench".into(), pid: 1 },
        clock: Arc::new(SystemClock),
        executor: FairExecutor::start(Arc::default()).unwrap(),
        groups: vec![Group {
            settings: GroupSettings {
                subscription: Subscription::new(["bench.*"]).unwrap(),
                ..GroupSettings::new(group(), Tenant::none())
            },
            start: Start::Earliest,
            deployed: None,
            components: Arc::new(NoReplayComponents),
            handler,
        }],
        grace: Duration::from_secs(1),
        drain: false,
        troubles: Troubles::default(),
        metrics: Arc::default(),
        locks: tokio::sync::oneshot::channel().0,
    };
    let stop = CancellationToken::new();
    let last = store.safe_position().await.unwrap();
    let began = Instant::now();
    let running = tokio::spawn(supervisor.run(stop.clone()));
    loop {
        if let Ok(cursor) = store.cursor(&group()).await
            && cursor.position >= last
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = began.elapsed();
    stop.cancel();
    running.await.unwrap().unwrap();
    store.seek(&group(), Start::Earliest).await.unwrap();
    took
}

async fn native(path: &Path) -> Duration {
    let mut connection = SqliteConnectOptions::new()
        .filename(path)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
        .connect()
        .await
        .unwrap();
    let began = Instant::now();
    let mut cursor = 0_i64;
    let mut bytes = 0_usize;
    loop {
        let select = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM events WHERE position > ? AND position <= ? ORDER BY position LIMIT ?"
        ));
        let rows = sqlx::query(select)
            .bind(cursor)
            .bind(EVENTS as i64)
            .bind(BATCH)
            .fetch_all(&mut connection)
            .await
            .unwrap();
        let Some(last) = rows.last() else { break };
        cursor = last.get(0);
        for row in &rows {
            for column in [2, 4, 5] {
                bytes += row.get::<String, _>(column).len();
            }
            let _: i64 = row.get(3);
            for column in [1, 6, 7, 8, 9, 10] {
                bytes += row.get::<Option<String>, _>(column).map_or(0, |text| text.len());
            }
            bytes += row.get::<Option<Vec<u8>>, _>(11).map_or(0, |data| data.len());
        }
        sqlx::query("UPDATE consumer_groups SET position = ? WHERE name = ?")
            .bind(cursor)
            .bind(group().as_str())
            .execute(&mut connection)
            .await
            .unwrap();
    }
    let took = began.elapsed();
    assert_eq!(cursor, EVENTS as i64);
    assert!(bytes > EVENTS * 200);
    connection.close().await.unwrap();
    let store = store(path).await;
    store.seek(&group(), Start::Position(Position::ZERO)).await.unwrap();
    store.close().await.unwrap();
    took
}

fn guest() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guests/noop.wasm");
    assert!(path.exists(), "{} is missing: run `cargo xtask build-guests`", path.display());
    path
}

fn main() {
    let runtime = event_host::runtime::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bench.db");
    let handler = runtime.block_on(async {
        fill(&path).await;
        let sandbox = Sandbox::new(EngineSettings::default()).unwrap();
        sandbox
            .load("noop", guest(), Limits::default(), Grants::default(), Reuse::default())
            .await
            .unwrap()
    });
    // Creates the group, and warms both.
    runtime.block_on(host(&path, Arc::clone(&handler)));
    runtime.block_on(native(&path));

    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    let mut benches = criterion.benchmark_group("drain_sqlite");
    benches.throughput(Throughput::Elements(EVENTS as u64));
    let mut times = [Vec::new(), Vec::new()];
    benches.bench_function("native", |bencher| {
        bencher.iter_custom(|rounds| {
            let round = (0..rounds).map(|_| runtime.block_on(native(&path)));
            round.inspect(|took| times[0].push(*took)).sum()
        });
    });
    benches.bench_function("host", |bencher| {
        bencher.iter_custom(|rounds| {
            let round = (0..rounds).map(|_| runtime.block_on(host(&path, Arc::clone(&handler))));
            round.inspect(|took| times[1].push(*took)).sum()
        });
    });
    benches.finish();
    let [native, host] = times.map(|mut times| {
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    });
    if !host.is_zero() {
        let ratio = native.as_secs_f64() / host.as_secs_f64();
        println!(
            "drain_sqlite: host reaches {ratio:.2} of the native loop (medians {host:?} and {native:?})"
        );
    }
    criterion.final_summary();
}
