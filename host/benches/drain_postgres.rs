//! How fast a group drains the shared store, beside a native loop.
//!
//! `host` runs the whole path through the supervisor: fetch, a no-op component,
//! settle; once with a handler that takes one event a call, and once with one that
//! takes batches, of at most 100. `native` is what a careful client would write by
//! hand: prepared statements, one connection, a runtime of one thread; it selects the
//! same rows and columns in batches of the same size, makes an event of each, moves
//! the same cursor, commits, and calls nothing. Both commit durably, once a batch.
//!
//! PostgreSQL plans `native`'s statement anew each time, because it takes any plan
//! without an end of the range for dearer; `host`'s it plans once. That is as good as
//! nothing at 1,000 events and much at 100, where `native` with a plan that is kept
//! would be half as fast again.
//!
//! Both clocks start when the first batch has arrived, and stop when the last
//! one is committed, and a round is long, so that neither pays for its connections:
//! `host` opens some of its own while it drains. Those that it drains with are kept
//! from round to round, as is that of `native`: a new one first has to map the
//! server's memory, page by page. Machines wander while they measure,
//! so the two run in turn, and the figure is the median of the rounds' ratios.
//!
//! The components are the Rust no-op guests: `cargo xtask build-guests` first.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod postgres;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use event_host_core::clock::SystemClock;
use event_host_core::event::{Event, GroupName, LogEvent, Position, Tenant};
use event_host_core::handler::{BatchCall, BatchReport, Call, Handler, Report, Worker};
use event_host_core::subscription::Subscription;
use event_host_core::troubles::Troubles;
use event_host_delivery::admission::FairExecutor;
use event_host_delivery::group::{BatchSettings, GroupSettings};
use event_host_delivery::replay_component::NoReplayComponents;
use event_host_delivery::supervisor::{Group, Supervisor};
use event_host_sandbox::settings::{Grants, Limits, Reuse};
use event_host_sandbox::{EngineSettings, Sandbox};
use event_host_store::{HostIdentity, Start};
use event_host_store_postgres::PostgresStore;
use jiff::Timestamp;
use postgres::{Database, group, median};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How many events each side reads in a round, and how often.
struct Plan {
    events: usize,
    rounds: usize,
}

/// What a round of the host took.
struct HostRound {
    /// From the first attempt to the last commit.
    took: Duration,
    /// Of it, from the first attempt of each batch to the last one's end.
    handling: Duration,
    /// Before it: connecting, leading, and the first fetch.
    start: Duration,
}

/// Counts the attempts of the handler that it wraps, and adds nothing else to
/// them.
struct Watched {
    handler: Arc<dyn Handler>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    wanted: usize,
    attempts: AtomicUsize,
    all: Notify,
    first: Mutex<Option<Instant>>,
    handling: Mutex<Duration>,
}

struct WatchedWorker {
    worker: Box<dyn Worker>,
    seen: Arc<Seen>,
    batch: Option<(Instant, usize)>,
}

impl Handler for Watched {
    fn digest(&self) -> &str {
        self.handler.digest()
    }

    fn takes_batches(&self) -> bool {
        self.handler.takes_batches()
    }

    fn worker(&self) -> Box<dyn Worker> {
        let (worker, seen) = (self.handler.worker(), Arc::clone(&self.seen));
        Box::new(WatchedWorker { worker, seen, batch: None })
    }
}

impl Worker for WatchedWorker {
    fn attempt<'worker, 'call, 'attempt>(
        &'worker mut self,
        call: Call<'call>,
    ) -> Pin<Box<dyn Future<Output = Report> + Send + 'attempt>>
    where
        'worker: 'attempt,
        'call: 'attempt,
        Self: 'attempt,
    {
        self.batch.get_or_insert_with(|| (Instant::now(), 0)).1 += 1;
        self.worker.attempt(call)
    }

    fn attempt_all<'worker, 'call, 'attempt>(
        &'worker mut self,
        call: BatchCall<'call>,
    ) -> Pin<Box<dyn Future<Output = BatchReport> + Send + 'attempt>>
    where
        'worker: 'attempt,
        'call: 'attempt,
        Self: 'attempt,
    {
        self.batch.get_or_insert_with(|| (Instant::now(), 0)).1 += call.events.len();
        self.worker.attempt_all(call)
    }

    fn end_batch(&mut self) {
        self.worker.end_batch();
        let Some((began, attempts)) = self.batch.take() else { return };
        self.seen.first.lock().unwrap().get_or_insert(began);
        *self.seen.handling.lock().unwrap() += began.elapsed();
        let before = self.seen.attempts.fetch_add(attempts, Ordering::Relaxed);
        if before + attempts >= self.seen.wanted {
            self.seen.all.notify_one();
        }
    }
}

/// Drains the log once.
async fn host(
    store: &Arc<PostgresStore>,
    watching: &mut PgConnection,
    handler: &Arc<dyn Handler>,
    plan: &Plan,
    batch: usize,
) -> HostRound {
    rewind(watching).await;
    let seen = Arc::new(Seen { wanted: plan.events, ..Seen::default() });
    let supervisor = Supervisor {
        store: Arc::<PostgresStore>::clone(store),
        deployments: None,
        host: HostIdentity { id: "bench".into(), hostname: "bench".into(), pid: 1 },
        clock: Arc::new(SystemClock),
        executor: FairExecutor::start(Arc::default()).unwrap(),
        groups: vec![Group {
            settings: GroupSettings {
                subscription: Subscription::new(["bench.*"]).unwrap(),
                batch: BatchSettings { max_events: batch, ..BatchSettings::default() },
                ..GroupSettings::new(group(), Tenant::none())
            },
            start: Start::Earliest,
            deployed: None,
            components: Arc::new(NoReplayComponents),
            handler: Arc::new(Watched { handler: Arc::clone(handler), seen: Arc::clone(&seen) }),
        }],
        grace: Duration::from_secs(1),
        drain: false,
        troubles: Troubles::default(),
        metrics: Arc::default(),
        locks: tokio::sync::oneshot::channel().0,
    };
    let stop = CancellationToken::new();
    let began = Instant::now();
    let running = tokio::spawn(supervisor.run(stop.clone()));
    seen.all.notified().await;
    // The last settlement is under way now.
    while position(watching).await < plan.events as i64 {}
    let ended = Instant::now();
    stop.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(seen.attempts.load(Ordering::Relaxed), plan.events);
    let first = seen.first.lock().unwrap().unwrap();
    let handling = *seen.handling.lock().unwrap();
    HostRound { took: ended - first, handling, start: first - began }
}

async fn position(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("SELECT position FROM event_host.consumer_groups WHERE name = $1")
        .bind(group().as_str())
        .fetch_one(connection)
        .await
        .unwrap()
}

async fn rewind(connection: &mut PgConnection) {
    sqlx::query("UPDATE event_host.consumer_groups SET position = 0 WHERE name = $1")
        .bind(group().as_str())
        .execute(connection)
        .await
        .unwrap();
}

/// Reads the log once.
async fn native(connection: &mut PgConnection, plan: &Plan, batch: usize) -> Duration {
    rewind(connection).await;
    let mut cursor = 0_i64;
    let mut events = 0_usize;
    let mut began = None;
    loop {
        let rows = sqlx::query(
            "SELECT position, deliver_to, digest, type, time, id, source, subject,
                    datacontenttype, dataschema, partitionkey, deliver_after, extensions::text,
                    data
             FROM event_host.events WHERE position > $1 ORDER BY position LIMIT $2",
        )
        .bind(cursor)
        .bind(batch as i64)
        .fetch_all(&mut *connection)
        .await
        .unwrap();
        let began = *began.get_or_insert_with(Instant::now);
        let batch: Vec<LogEvent> = rows.iter().map(decoded).collect();
        let Some(last) = batch.last() else {
            assert_eq!((cursor, events), (plan.events as i64, plan.events));
            return began.elapsed();
        };
        cursor = last.position.0;
        events += std::hint::black_box(&batch).len();
        sqlx::query("UPDATE event_host.consumer_groups SET position = $1 WHERE name = $2")
            .bind(cursor)
            .bind(group().as_str())
            .execute(&mut *connection)
            .await
            .unwrap();
        // Without a look for more: the host knows the end of the log, too.
        if events == plan.events {
            return began.elapsed();
        }
    }
}

fn decoded(row: &PgRow) -> LogEvent {
    let deliver_to: Option<String> = row.try_get_unchecked(1).unwrap();
    let digest: Option<String> = row.try_get_unchecked(2).unwrap();
    let extensions: Option<String> = row.try_get_unchecked(12).unwrap();
    LogEvent {
        position: Position(row.try_get_unchecked(0).unwrap()),
        deliver_to: deliver_to.map(|name| name.parse::<GroupName>().unwrap()),
        digest: digest.map(|digest| digest.parse().unwrap()),
        event: Event {
            event_type: row.try_get_unchecked(3).unwrap(),
            time: time(row.try_get_unchecked(4).unwrap()),
            id: row.try_get_unchecked(5).unwrap(),
            source: row.try_get_unchecked(6).unwrap(),
            subject: row.try_get_unchecked(7).unwrap(),
            datacontenttype: row.try_get_unchecked(8).unwrap(),
            dataschema: row.try_get_unchecked(9).unwrap(),
            partitionkey: row.try_get_unchecked(10).unwrap(),
            deliver_after: row.try_get_unchecked::<Option<i64>, _>(11).unwrap().map(time),
            extensions: extensions.map_or_else(BTreeMap::new, |json| unreachable!("{json}")),
            data: row.try_get_unchecked(13).unwrap(),
        },
    }
}

/// PostgreSQL counts microseconds from 2000-01-01.
fn time(microseconds: i64) -> Timestamp {
    const EPOCH: i64 = 946_684_800_000_000;
    Timestamp::from_microsecond(microseconds + EPOCH).unwrap()
}

/// The figures of the rounds, in events a second and in microseconds an event.
#[derive(Default)]
struct Figures {
    native: Vec<f64>,
    host: Vec<f64>,
    paired: Vec<f64>,
    handling: Vec<f64>,
    rest: Vec<f64>,
    start: Vec<f64>,
}

impl Figures {
    fn add(&mut self, native: Duration, host: &HostRound, events: usize) {
        let events = events as f64;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / events;
        self.native.push(events / native.as_secs_f64());
        self.host.push(events / host.took.as_secs_f64());
        self.paired.push(native.as_secs_f64() / host.took.as_secs_f64());
        self.handling.push(each(host.handling));
        self.rest.push(each(host.took.saturating_sub(host.handling)));
        self.start.push(host.start.as_secs_f64() * 1e3);
    }

    fn print(&self, batch: usize, takes: &str) {
        let (native, host) = (median(&self.native), median(&self.host));
        println!(
            "{batch:>6} {takes:>9} {native:>10.0} {host:>10.0} {:>11.2} {:>13.2} {:>12.2} {:>12.2} {:>10.0}",
            host / native,
            median(&self.paired),
            median(&self.handling),
            median(&self.rest),
            median(&self.start),
        );
    }
}

fn main() {
    let Some(effort) = postgres::called() else { return };
    let plan = Plan { events: effort.pick(10_000, 400_000), rounds: effort.pick(2, 5) };
    let hosts = event_host::runtime::start().unwrap();
    let natives = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (database, store, handlers, mut watching) = hosts.block_on(async {
        let database = Database::create().await;
        database.fill(plan.events).await;
        let sandbox = Sandbox::new(EngineSettings::default()).unwrap();
        let mut handlers: Vec<(&str, Arc<dyn Handler>)> = Vec::new();
        for (takes, name) in [("an event", "noop"), ("a batch", "noop_batch")] {
            let (limits, grants, reuse) = (Limits::default(), Grants::default(), Reuse::default());
            let guest = postgres::guest_named(name);
            let handler = sandbox.load(name, guest, limits, grants, reuse).await.unwrap();
            handlers.push((takes, handler));
        }
        let watching = database.connect().await;
        let store = Arc::new(database.store());
        (database, store, handlers, watching)
    });
    let mut connection = natives.block_on(database.connect());
    println!(
        "drain_postgres: {} events of {} bytes, medians of {} rounds, events a second",
        plan.events,
        postgres::DATA,
        plan.rounds
    );
    println!(
        "{:>6} {:>9} {:>10} {:>10} {:>11} {:>13} {:>12} {:>12} {:>10}",
        "batch",
        "a call",
        "native",
        "host",
        "of medians",
        "of the pairs",
        "handling us",
        "the rest us",
        "start ms"
    );
    for (batch, (takes, handler)) in
        [1_000, 100].into_iter().flat_map(|batch| handlers.iter().map(move |each| (batch, each)))
    {
        let mut figures = Figures::default();
        // The first round creates the group, and warms both.
        for round in 0..=plan.rounds {
            let mut run_native = || natives.block_on(native(&mut connection, &plan, batch));
            let before = (round % 2 == 1).then(&mut run_native);
            let host = hosts.block_on(host(&store, &mut watching, handler, &plan, batch));
            let native = before.unwrap_or_else(run_native);
            if round > 0 {
                figures.add(native, &host, plan.events);
            }
        }
        figures.print(batch, takes);
    }
}
