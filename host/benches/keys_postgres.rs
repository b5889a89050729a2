//! How fast a group with order by key handles events that wait, and what keys that
//! fail for ever cost the others.
//!
//! Every event has its handler wait 1 ms in a call to the host, 16 at once: without
//! any cost that would be 16,000 events a second. In every other round the events of
//! one key in a hundred fail, and go on to fail as long as they are tried; the
//! figure is how many of the others are handled a second, against the round before.
//! The clock runs from the first attempt until the cursor has passed everything.
//!
//! The component is the `chaos` guest: `cargo xtask build-guests` first.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod postgres;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use event_host_core::clock::SystemClock;
use event_host_core::event::{GroupName, Tenant};
use event_host_core::handler::{Call, Handler, Report, Worker};
use event_host_core::retry::RetryPolicy;
use event_host_core::subscription::Subscription;
use event_host_core::troubles::Troubles;
use event_host_delivery::admission::FairExecutor;
use event_host_delivery::group::GroupSettings;
use event_host_delivery::ordering::Ordering;
use event_host_delivery::replay_component::NoReplayComponents;
use event_host_delivery::supervisor::{Group, Supervisor};
use event_host_sandbox::settings::{Grants, Limits, Reuse};
use event_host_sandbox::{EngineSettings, Sandbox};
use event_host_store::traits::*;
use event_host_store::{HostIdentity, Start};
use postgres::{Database, guest_named, median};
use sqlx::{Executor, PgConnection};
use tokio_util::sync::CancellationToken;

const CONCURRENCY: usize = 16;
const KEYS: usize = 1_000;

/// What an attempt would take if nothing else took any time.
const IDEAL: f64 = CONCURRENCY as f64 * 1_000.0;

/// Notes when the handler that it wraps is called first.
struct Noted {
    handler: Arc<dyn Handler>,
    first: Arc<Mutex<Option<Instant>>>,
}

struct NotedWorker {
    worker: Box<dyn Worker>,
    first: Arc<Mutex<Option<Instant>>>,
}

impl Handler for Noted {
    fn digest(&self) -> &str {
        self.handler.digest()
    }

    fn worker(&self) -> Box<dyn Worker> {
        Box::new(NotedWorker { worker: self.handler.worker(), first: Arc::clone(&self.first) })
    }
}

impl Worker for NotedWorker {
    fn attempt<'worker, 'call, 'attempt>(
        &'worker mut self,
        call: Call<'call>,
    ) -> Pin<Box<dyn Future<Output = Report> + Send + 'attempt>>
    where
        'worker: 'attempt,
        'call: 'attempt,
        Self: 'attempt,
    {
        self.first.lock().unwrap().get_or_insert_with(Instant::now);
        self.worker.attempt(call)
    }

    fn end_batch(&mut self) {
        self.worker.end_batch();
    }
}

/// Publishes so many events of a type, of which those of every hundredth key fail
/// if so.
async fn fill(connection: &mut PgConnection, event_type: &str, events: usize, failing: bool) {
    let wait = r#"{"do": "sleep", "ms": 1}"#;
    let fails = if failing { r#", {"do": "retry", "text": "for ever"}"# } else { "" };
    let insert = format!(
        "INSERT INTO event_host.events (type, partitionkey, data)
         SELECT '{event_type}', 'k' || key,
                convert_to('[{wait}' || CASE key % 100 WHEN 0 THEN '{fails}' ELSE '' END || ']', 'UTF8')
         FROM (SELECT n % {KEYS} AS key FROM generate_series(1, {events}) n ORDER BY n) k"
    );
    connection.execute(sqlx::AssertSqlSafe(insert)).await.unwrap();
}

/// Handles every event of a type; how many were handled a second.
async fn round(database: &Database, handler: &Arc<dyn Handler>, name: &str, events: usize) -> f64 {
    let name: GroupName = name.parse().unwrap();
    let store: Arc<dyn Store> = Arc::new(database.store());
    let last = store.safe_position().await.unwrap();
    let first = Arc::<Mutex<Option<Instant>>>::default();
    let supervisor = Supervisor {
        store: store.clone(),
        deployments: None,
        host: HostIdentity { id: "bench".into(), hostname: "bench".into(), pid: 1 },
        clock: Arc::new(SystemClock),
        executor: FairExecutor::start(Arc::default()).unwrap(),
        groups: vec![Group {
            settings: GroupSettings {
                subscription: Subscription::new([name.as_str()]).unwrap(),
                ordering: Ordering::Key,
                concurrency: CONCURRENCY,
                max_parked: 1_000_000, // Failing for as long as the round takes.
                retry: RetryPolicy { max_attempts: u32::MAX, ..RetryPolicy::default() },
                ..GroupSettings::new(name.clone(), Tenant::none())
            },
            start: Start::Earliest,
            deployed: None,
            components: Arc::new(NoReplayComponents),
            handler: Arc::new(Noted { handler: Arc::clone(handler), first: Arc::clone(&first) }),
        }],
        grace: Duration::from_secs(1),
        drain: false,
        troubles: Troubles::default(),
        metrics: Arc::default(),
        locks: tokio::sync::oneshot::channel().0,
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(supervisor.run(stop.clone()));
    loop {
        if store.cursor(&name).await.is_ok_and(|cursor| cursor.position >= last) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let ended = Instant::now();
    let parked = store.group_status(&name).await.unwrap().parked;
    stop.cancel();
    running.await.unwrap().unwrap();
    let began = first.lock().unwrap().unwrap();
    (events as f64 - parked as f64) / (ended - began).as_secs_f64()
}

#[tokio::main]
async fn main() {
    let Some(effort) = postgres::called() else { return };
    let (events, rounds) = (effort.pick(2_000, 50_000), effort.pick(1, 5));
    let database = Database::create().await;
    let sandbox = Sandbox::new(EngineSettings::default()).unwrap();
    let (limits, grants) = (Limits::default(), Grants::default());
    let handler: Arc<dyn Handler> = sandbox
        .load("chaos", guest_named("chaos"), limits, grants, Reuse::default())
        .await
        .unwrap();
    let mut connection = database.connect().await;
    let (mut sound, mut beside, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..rounds {
        let mut figures = [0.0; 2];
        for (failing, figure) in [false, true].into_iter().zip(&mut figures) {
            let name = format!("round-{number}-{failing}");
            fill(&mut connection, &name, events, failing).await;
            *figure = round(&database, &handler, &name, events).await;
        }
        sound.push(figures[0]);
        beside.push(figures[1]);
        ratios.push(figures[1] / figures[0]);
    }
    println!(
        "keys_postgres: {events} events of {KEYS} keys that wait 1 ms, {CONCURRENCY} at once, medians of {rounds} rounds"
    );
    println!(
        "all succeed:                  {:>7.0} events/s, {:.2} of the ideal {IDEAL}",
        median(&sound),
        median(&sound) / IDEAL
    );
    println!(
        "1 % of the keys always fail:  {:>7.0} events/s of the others, {:.2} of the above",
        median(&beside),
        median(&ratios)
    );
}
