//! What it costs to let old events go: how long it takes, what is locked
//! meanwhile, and what those notice who publish.
//!
//! On PostgreSQL a partition goes, with however many events; on SQLite events are
//! deleted a few at a time. Producers publish before and meanwhile, each event in
//! a transaction of its own, and it is compared how long that takes them.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod postgres;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use event_host_core::event::{Position, Tenant};
use event_host_store::traits::*;
use event_host_store::{Enforced, GroupRegistration, Retention, Start, StoreError};
use event_host_store_sqlite::{OpenOptions, SqliteStore};
use postgres::{Database, Effort, percentile};
use sqlx::PgConnection;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const PRODUCERS: usize = 8;

/// Everything that nobody needs may go.
const NOTHING_STAYS: Retention = Retention { max_age: Some(Duration::ZERO), max_bytes: None };

fn main() {
    let Some(effort) = postgres::called() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        on_postgres(effort).await;
        println!();
        on_sqlite(effort).await;
    });
}

/// How long each publish took, with when it began.
type Times = Vec<(Instant, Duration)>;

async fn produce(store: Arc<dyn Store>, stop: CancellationToken) -> Times {
    let event = [postgres::event(0)];
    let mut times = Vec::new();
    while !stop.is_cancelled() {
        let begun = Instant::now();
        store.publish(&Tenant::none(), &event).await.unwrap();
        times.push((begun, begun.elapsed()));
    }
    times
}

struct Producers {
    tasks: JoinSet<Times>,
    stop: CancellationToken,
}

impl Producers {
    fn start(stores: impl IntoIterator<Item = Arc<dyn Store>>) -> Self {
        let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
        for store in stores {
            tasks.spawn(produce(store, stop.clone()));
        }
        Self { tasks, stop }
    }

    /// Stops them, and prints what they noticed from one moment to another.
    async fn print(self, spans: [(&str, Instant, Instant); 2]) {
        self.stop.cancel();
        let times: Times = self.tasks.join_all().await.into_iter().flatten().collect();
        println!(
            "{:<12} {:>10} {:>10} {:>10} {:>10}",
            "publishing", "events/s", "p50 ms", "p99 ms", "max ms"
        );
        for (name, from, to) in spans {
            let within =
                times.iter().filter(|(begun, took)| *begun + *took >= from && *begun <= to);
            let mut took: Vec<Duration> = within.map(|(_, took)| *took).collect();
            took.sort_unstable();
            if took.is_empty() {
                println!("{name:<12} nothing");
                continue;
            }
            let rate = took.len() as f64 / (to - from).as_secs_f64();
            let at = |part| percentile(&took, part).as_secs_f64() * 1e3;
            println!(
                "{name:<12} {rate:>10.0} {:>10.2} {:>10.2} {:>10.2}",
                at(0.5),
                at(0.99),
                at(1.0)
            );
        }
    }
}

async fn settle_all(store: &dyn Store) {
    store.seek(&postgres::group(), Start::Latest).await.unwrap();
}

async fn make_group(store: &dyn Store) {
    let settings = GroupRegistration::new(postgres::group(), Tenant::none());
    store.ensure_group(&settings).await.unwrap();
}

async fn enforce_retention(store: &dyn Store) -> Result<Enforced, StoreError> {
    loop {
        let enforced = store.enforce_retention(&NOTHING_STAYS).await?;
        if !enforced.postponed || enforced.dropped_up_to.is_some() {
            return Ok(enforced);
        }
    }
}

async fn on_postgres(effort: Effort) {
    let events = effort.pick(100_000, 10_000_000_i64);
    let alone = Duration::from_secs(effort.pick(1, 5));
    let database = Database::create().await;
    let store = database.store();
    make_group(&store).await;
    let mut connection = database.connect().await;
    fill(&mut connection, events).await;
    let size: i64 = sqlx::query_scalar("SELECT pg_total_relation_size('event_host.events_0')")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    // Ends the partition.
    store.enforce_retention(&NOTHING_STAYS).await.unwrap();

    let stores = (0..PRODUCERS).map(|_| Arc::new(database.store()) as Arc<dyn Store>);
    let producers = Producers::start(stores);
    let before = Instant::now();
    tokio::time::sleep(alone).await;
    settle_all(&store).await;
    let watching = CancellationToken::new();
    let locks = tokio::spawn(watch_locks(database.connect().await, watching.clone()));
    let begun = Instant::now();
    let enforced = enforce_retention(&store).await.unwrap();
    let took = begun.elapsed();
    watching.cancel();
    assert!(enforced.dropped_up_to >= Some(Position(events)), "{enforced:?}");

    println!(
        "retention on PostgreSQL: {events} events, {:.1} MB, with {PRODUCERS} producers",
        size as f64 / 1e6
    );
    println!("they went in {:.0} ms", took.as_secs_f64() * 1e3);
    // What it waits for comes after it began.
    let after = begun + took.max(alone);
    tokio::time::sleep(after.saturating_duration_since(Instant::now())).await;
    producers.print([("before", before, begun), ("meanwhile", begun, begun + took)]).await;
    println!("{:<30} {:<28} {:>12}", "locks", "mode", "seen for ms");
    for ((table, mode), seen) in locks.await.unwrap() {
        println!("{table:<30} {mode:<28} {:>12.1}", seen.as_secs_f64() * 1e3);
    }
}

async fn fill(connection: &mut PgConnection, events: i64) {
    const AT_ONCE: i64 = 250_000;
    let data = postgres::event(0).data.unwrap();
    let mut left = events;
    while left > 0 {
        sqlx::query(
            "INSERT INTO event_host.events (type, data)
             SELECT 'bench.event', $1 FROM generate_series(1, $2)",
        )
        .bind(&data)
        .bind(left.min(AT_ONCE))
        .execute(&mut *connection)
        .await
        .unwrap();
        left -= AT_ONCE;
    }
}

/// The locks on the log that others have to wait for, wanted or held, and for how
/// long they were seen.
async fn watch_locks(
    mut connection: PgConnection,
    stop: CancellationToken,
) -> BTreeMap<(String, String), Duration> {
    let mut seen: BTreeMap<(String, String), Duration> = BTreeMap::new();
    let mut last = Instant::now();
    while !stop.is_cancelled() {
        let rows: Vec<(String, String)> = sqlx::query_as(
            "SELECT DISTINCT c.relname::text,
                    l.mode || CASE WHEN l.granted THEN '' ELSE ' (waits)' END
             FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
             WHERE c.relname ~ '^events' AND l.mode NOT IN ('AccessShareLock', 'RowExclusiveLock')",
        )
        .fetch_all(&mut connection)
        .await
        .unwrap();
        let now = Instant::now();
        for row in rows {
            *seen.entry(row).or_default() += now - last;
        }
        last = now;
    }
    seen
}

async fn on_sqlite(effort: Effort) {
    let events = effort.pick(20_000, 1_000_000_usize);
    let alone = Duration::from_secs(effort.pick(1, 5));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.db");
    let path = path.to_str().unwrap();
    let store = SqliteStore::open(path, OpenOptions::to_migrate()).await.unwrap();
    store.migrate().await.unwrap();
    make_group(&store).await;
    let thousand: Vec<_> = (0..1_000).map(postgres::event).collect();
    for _ in 0..events / thousand.len() {
        store.publish(&Tenant::none(), &thousand).await.unwrap();
    }
    let producers = Producers::start([Arc::new(store.clone()) as Arc<dyn Store>]);
    let before = Instant::now();
    tokio::time::sleep(alone).await;
    settle_all(&store).await;
    let begun = Instant::now();
    let enforced = enforce_retention(&store).await.unwrap();
    let took = begun.elapsed();
    assert!(enforced.dropped_up_to.is_some(), "{enforced:?}");
    println!("retention on SQLite: {events} events, with 1 producer");
    println!("they went in {:.0} ms", took.as_secs_f64() * 1e3);
    producers.print([("before", before, begun), ("meanwhile", begun, begun + took)]).await;
}
