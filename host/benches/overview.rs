//! What a look at everything costs, which the host that exports the metrics takes each
//! interval and `host status` once: 1,000 groups, 10 million events, a million dead letters.
//!
//! First all groups are near the end of the log, then one is 10 million events behind, then
//! all are, then all are and none receives the first events before it. To hold: at most
//! 200 ms, and no more of it for what the groups have before them.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod postgres;

use std::time::{Duration, Instant};

use event_host_metrics::{Format, GroupSample, Metrics, Sample};
use event_host_store::traits::*;
use event_host_store_sqlite::{OpenOptions, SqliteStore};
use postgres::{Database, Effort, percentile};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor};

const GROUPS: i64 = 1_000;

/// What is changed before each measurement, and what it is called.
fn steps(events: i64, table: &str, other: &str) -> [(String, &'static str); 4] {
    let near = events - 10;
    [
        (format!("UPDATE {table} SET position = {near}"), "all near"),
        (format!("UPDATE {table} SET position = 0 WHERE name = 'g1'"), "one far behind"),
        (format!("UPDATE {table} SET position = 0"), "all far behind"),
        (format!("UPDATE {table} SET subscribe = {other}"), "and of another type"),
    ]
}

fn main() {
    let Some(effort) = postgres::called() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let events = effort.pick(100_000, 10_000_000);
        on_postgres(effort, events).await;
        println!();
        on_sqlite(effort, events).await;
        println!();
        scrape(effort);
    });
}

async fn on_postgres(effort: Effort, events: i64) {
    let database = Database::create().await;
    let mut owner = database.connect().await;
    let dead = events / 10;
    for statement in [
        format!(
            "INSERT INTO event_host.consumer_groups (name, tenant, subscribe, lock_key, position)
             SELECT 'g' || i, '', '{{*}}', i, 0 FROM generate_series(1, {GROUPS}) i"
        ),
        format!(
            "INSERT INTO event_host.events (type) SELECT 'common' FROM generate_series(1, {events})"
        ),
        format!(
            "INSERT INTO event_host.dead_letters (
                 group_name, position, time, tenant, type, event_id, source, attempts,
                 failure_kind, failure_text, digest, dead_at)
             SELECT 'g' || (1 + i % {GROUPS}), i, now(), '', 'common', i::text, '/b', 1,
                    'trap', 'it trapped', 'sha256:' || repeat('0', 64), now()
             FROM generate_series(1, {dead}) i"
        ),
        "ANALYZE".to_owned(),
    ] {
        owner.execute(AssertSqlSafe(statement)).await.unwrap();
    }
    println!("overview on PostgreSQL: {GROUPS} groups, {events} events, {dead} dead letters");
    let store = database.store();
    for (change, what) in steps(events, "event_host.consumer_groups", "'{other}'") {
        owner.execute(AssertSqlSafe(change)).await.unwrap();
        measure(&store, what, effort).await;
    }
}

async fn on_sqlite(effort: Effort, events: i64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.db");
    let text = path.to_str().unwrap();
    let store = SqliteStore::open(text, OpenOptions::to_migrate()).await.unwrap();
    store.migrate().await.unwrap();
    let options = SqliteConnectOptions::new().filename(&path).disable_statement_logging();
    let mut owner = options.connect().await.unwrap();
    let dead = events / 10;
    let numbers = |most: i64| {
        format!("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {most})")
    };
    for statement in [
        format!(
            "{} INSERT INTO consumer_groups (name, tenant, subscribe, position, created_at)
             SELECT 'g' || i, '', '[\"*\"]', 0, 0 FROM n",
            numbers(GROUPS)
        ),
        format!("{} INSERT INTO events (type) SELECT 'common' FROM n", numbers(events)),
        format!(
            "{} INSERT INTO dead_letters (
                 group_name, position, time, tenant, type, event_id, source, attempts,
                 failure_kind, failure_text, digest, dead_at)
             SELECT 'g' || (1 + i % {GROUPS}), i, 0, '', 'common', i, '/b', 1,
                    'trap', 'it trapped', 'sha256:0', 0 FROM n",
            numbers(dead)
        ),
    ] {
        owner.execute(AssertSqlSafe(statement)).await.unwrap();
    }
    println!("overview on SQLite: {GROUPS} groups, {events} events, {dead} dead letters");
    for (change, what) in steps(events, "consumer_groups", "'[\"other\"]'") {
        owner.execute(AssertSqlSafe(change)).await.unwrap();
        measure(&store, what, effort).await;
    }
}

async fn measure(store: &impl Store, what: &str, effort: Effort) {
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..effort.pick(3, 20) {
        let began = Instant::now();
        let status = store.status().await.unwrap();
        took.push(began.elapsed());
        assert_eq!(status.groups.len(), GROUPS as usize, "{:?}", status.unreadable);
    }
    took.sort_unstable();
    let at = |part| percentile(&took, part).as_secs_f64() * 1e3;
    println!("{what:<20} p50 {:>7.1} ms   max {:>7.1} ms", at(0.5), at(1.0));
}

/// What it takes to answer a scrape with as many groups, which all run here.
fn scrape(effort: Effort) {
    let metrics = Metrics::default();
    let tenant = event_host_core::event::Tenant::none();
    let usage = event_host_core::handler::Usage {
        duration: Duration::from_millis(3),
        memory_bytes: 1 << 20,
        ..Default::default()
    };
    let names: Vec<String> = (1..=GROUPS).map(|number| format!("g{number}")).collect();
    for name in &names {
        let counted = metrics.group(&name.parse().unwrap(), &tenant);
        counted.ran(&usage);
        counted.event_age.observe(Duration::from_millis(3));
    }
    let groups = names.into_iter().map(|name| GroupSample { name, ..GroupSample::default() });
    metrics.database.show(Sample { groups: groups.collect(), ..Sample::default() }, Duration::ZERO);
    let mut took: Vec<Duration> = Vec::new();
    let mut bytes = 0;
    for _ in 0..effort.pick(3, 50) {
        let began = Instant::now();
        bytes = metrics.encode(Format::OpenMetrics).len();
        took.push(began.elapsed());
    }
    took.sort_unstable();
    let at = |part| percentile(&took, part).as_secs_f64() * 1e3;
    println!("a scrape of {GROUPS} groups: {bytes} bytes");
    println!("{:<20} p50 {:>7.1} ms   max {:>7.1} ms", "in memory", at(0.5), at(1.0));
}
