//! From the commit of an event to the start of its handler, on the shared store.
//!
//! A publisher with a thread, a runtime and a connection of its own inserts 200
//! events a second, at irregular intervals. The clock starts when it knows that
//! an event is committed, and stops when the host calls the handler; both are
//! read in one process. Beside it, one after the other in short rounds:
//! - `host`: nobody sends a hint, so the host finds each event by looking;
//! - `host, hinted`: the publisher sends `NOTIFY event_host` after the commit;
//! - `bare LISTEN`: a loop that is notified after the commit, and then selects
//!   by cursor: the least that a client can do;
//! - `bare poll`: a loop that selects by cursor each millisecond.
//!
//! Then the real program with nothing to do: the processor time of the host, and
//! of the server's processes that serve it where the server is private; beside it
//! a loop that asks for one number as often.
//!
//! The component is the Rust no-op guest: `cargo xtask build-guests` first.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod postgres;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use event_host_core::clock::SystemClock;
use event_host_core::event::Tenant;
use event_host_core::handler::{Call, Handler, Report, Worker};
use event_host_core::subscription::Subscription;
use event_host_core::troubles::Troubles;
use event_host_delivery::admission::FairExecutor;
use event_host_delivery::group::GroupSettings;
use event_host_delivery::replay_component::NoReplayComponents;
use event_host_delivery::supervisor::{Group, Supervisor};
use event_host_sandbox::settings::{Grants, Limits, Reuse};
use event_host_sandbox::{EngineSettings, Sandbox};
use event_host_store::traits::*;
use event_host_store::{self, HostIdentity, Start};
use postgres::{Database, Idle, group, percentile};
use sqlx::postgres::PgListener;
use sqlx::{Executor, PgConnection};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const EVENTS_A_SECOND: f64 = 200.0;

/// Events at the beginning of a round that do not count.
const WARM_UP: usize = 20;

/// Until an event is seen that was published; far longer than it can take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who waits for the events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Host,
    HintedHost,
    Listen,
    Poll,
}

const READERS: [(Reader, &str); 4] = [
    (Reader::Host, "host"),
    (Reader::HintedHost, "host, hinted"),
    (Reader::Listen, "bare LISTEN"),
    (Reader::Poll, "bare poll 1 ms"),
];

/// When the events of one round began to be handled, in the order of the log.
#[derive(Default)]
struct Seen(watch::Sender<Vec<Instant>>);

impl Seen {
    fn note(&self) {
        let now = Instant::now();
        self.0.send_modify(|seen| seen.push(now));
    }

    /// Waits until so many were seen.
    async fn at_least(&self, count: usize) -> Vec<Instant> {
        let mut seen = self.0.subscribe();
        let all = seen.wait_for(|seen| seen.len() >= count);
        let all = tokio::time::timeout(PATIENCE, all).await.expect("events are missing");
        all.unwrap().clone()
    }
}

/// Notes when the handler that it wraps is called.
struct Noted {
    handler: Arc<dyn Handler>,
    seen: Arc<Seen>,
}

struct NotedWorker {
    worker: Box<dyn Worker>,
    seen: Arc<Seen>,
}

impl Handler for Noted {
    fn digest(&self) -> &str {
        self.handler.digest()
    }

    fn worker(&self) -> Box<dyn Worker> {
        Box::new(NotedWorker { worker: self.handler.worker(), seen: Arc::clone(&self.seen) })
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
        self.seen.note();
        self.worker.attempt(call)
    }

    fn end_batch(&mut self) {
        self.worker.end_batch();
    }
}

/// One round of a reader: how long each event took, in milliseconds. What was
/// seen before its publisher knew of the commit took no time.
fn round(rig: &Rig, reader: Reader, events: usize) -> Vec<f64> {
    let seen = Arc::new(Seen::default());
    let stop = CancellationToken::new();
    let hint = matches!(reader, Reader::HintedHost | Reader::Listen);
    // Past what the readers by hand have read.
    rig.hosts.block_on(rig.database.store().seek(&group(), Start::Latest)).unwrap();
    let publish = || {
        let committed = publish(rig.database.url(), &seen, events, hint);
        let seen = current_thread().block_on(seen.at_least(committed.len()));
        assert_eq!(seen.len(), committed.len(), "an event was handled twice");
        stop.cancel();
        let took = committed.iter().zip(seen).skip(WARM_UP);
        took.map(|(committed, seen)| seen.saturating_duration_since(*committed))
            .map(|took| took.as_secs_f64() * 1e3)
            .collect()
    };
    match reader {
        Reader::Host | Reader::HintedHost => {
            let running = rig.hosts.spawn(rig.supervisor(&seen).run(stop.clone()));
            let took = publish();
            rig.hosts.block_on(running).unwrap().unwrap();
            took
        }
        Reader::Listen | Reader::Poll => std::thread::scope(|scope| {
            let (ready, is_ready) = std::sync::mpsc::channel();
            let (database, seen, stop) = (&rig.database, &seen, &stop);
            scope.spawn(move || {
                current_thread().block_on(async {
                    let mut bare = Bare::start(database, seen).await;
                    let mut listener = PgListener::connect(database.url()).await.unwrap();
                    listener.listen("event_host").await.unwrap();
                    ready.send(()).unwrap();
                    while !stop.is_cancelled() {
                        if reader == Reader::Listen {
                            tokio::select! {
                                _ = listener.recv() => {}
                                () = stop.cancelled() => {}
                            }
                        } else {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        bare.look().await;
                    }
                });
            });
            is_ready.recv().unwrap();
            publish()
        }),
    }
}

/// Publishes at irregular intervals, the first event long enough before the
/// others to find its reader ready, and gives the moments at which each was known
/// to be committed.
fn publish(url: &str, seen: &Seen, events: usize, hint: bool) -> Vec<Instant> {
    let runtime = current_thread();
    let mut connection = runtime.block_on(postgres::connect(url));
    let data = postgres::event(0).data.unwrap();
    let mut committed = Vec::with_capacity(1 + WARM_UP + events);
    let mut due = Instant::now();
    for number in 0..WARM_UP + events {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        runtime.block_on(async {
            sqlx::query("INSERT INTO event_host.events (type, data) VALUES ('bench.event', $1)")
                .bind(&data)
                .execute(&mut connection)
                .await
                .unwrap();
            committed.push(Instant::now());
            if hint {
                let notify = sqlx::query("SELECT pg_notify('event_host', '')");
                connection.execute(notify).await.unwrap();
            }
            if number == 0 {
                seen.at_least(1).await;
                due = Instant::now();
            }
        });
        // Never in step with anybody's polling.
        due += Duration::from_secs_f64((0.5 + fastrand::f64()) / EVENTS_A_SECOND);
    }
    committed
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A loop by hand, which selects by cursor.
struct Bare<'a> {
    connection: PgConnection,
    cursor: i64,
    seen: &'a Seen,
}

impl<'a> Bare<'a> {
    async fn start(database: &Database, seen: &'a Seen) -> Self {
        let mut connection = database.connect().await;
        let cursor = sqlx::query_scalar("SELECT coalesce(max(position), 0) FROM event_host.events")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        Self { connection, cursor, seen }
    }

    async fn look(&mut self) {
        let rows: Vec<(i64, Vec<u8>)> = sqlx::query_as(
            "SELECT position, data FROM event_host.events WHERE position > $1 ORDER BY position",
        )
        .bind(self.cursor)
        .fetch_all(&mut self.connection)
        .await
        .unwrap();
        for (position, _) in rows {
            self.cursor = position;
            self.seen.note();
        }
    }
}

/// What every round needs.
struct Rig {
    database: Database,
    hosts: Runtime,
    handler: Arc<dyn Handler>,
}

impl Rig {
    fn supervisor(&self, seen: &Arc<Seen>) -> Supervisor {
        let _in_runtime = self.hosts.enter();
        Supervisor {
            store: Arc::new(self.database.store()),
            deployments: None,
            host: HostIdentity { id: "bench".into(), hostname: "bench".into(), pid: 1 },
            clock: Arc::new(SystemClock),
            executor: FairExecutor::start(Arc::default()).unwrap(),
            groups: vec![Group {
                settings: GroupSettings {
                    subscription: Subscription::new(["bench.*"]).unwrap(),
                    ..GroupSettings::new(group(), Tenant::none())
                },
                start: Start::Latest,
                deployed: None,
                components: Arc::new(NoReplayComponents),
                handler: Arc::new(Noted {
                    handler: Arc::clone(&self.handler),
                    seen: Arc::clone(seen),
                }),
            }],
            grace: Duration::from_secs(1),
            drain: false,
            troubles: Troubles::default(),
            metrics: Arc::default(),
            locks: tokio::sync::oneshot::channel().0,
        }
    }
}

fn main() {
    let Some(effort) = postgres::called() else { return };
    let hosts = event_host::runtime::start().unwrap();
    let (database, handler) = hosts.block_on(async {
        let database = Database::create().await;
        let sandbox = Sandbox::new(EngineSettings::default()).unwrap();
        let handler: Arc<dyn Handler> = sandbox
            .load("noop", postgres::guest(), Limits::default(), Grants::default(), Reuse::default())
            .await
            .unwrap();
        // The first round's host is to find it.
        let settings = event_host_store::GroupRegistration {
            subscription: Subscription::new(["bench.*"]).unwrap(),
            start: Start::Latest,
            ..event_host_store::GroupRegistration::new(group(), Tenant::none())
        };
        database.store().ensure_group(&settings).await.unwrap();
        (database, handler)
    });
    let rig = Rig { database, hosts, handler };
    // Ten seconds for each reader in all.
    let (rounds, events) = (effort.pick(1, 5), effort.pick(100, 400));
    println!(
        "latency_postgres: {} events a reader, {EVENTS_A_SECOND} a second, in {rounds} rounds; ms from the commit to the handler's start",
        rounds * events
    );
    println!("{:<15} {:>7} {:>7} {:>7} {:>7}", "", "p50", "p90", "p99", "max");
    let mut times = READERS.map(|_| Vec::new());
    for _ in 0..rounds {
        for ((reader, _), times) in READERS.iter().zip(&mut times) {
            times.extend(round(&rig, *reader, events));
        }
    }
    for ((_, name), mut times) in READERS.iter().zip(times) {
        times.sort_by(f64::total_cmp);
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|part| percentile(&times, part));
        println!("{name:<15} {p50:>7.2} {p90:>7.2} {p99:>7.2} {max:>7.2}");
    }
    rig.hosts.block_on(async {
        let idle = Idle::measure(&rig.database, 1, effort).await;
        println!("an idle host with one group, over {:?}:", idle.length);
        Idle::print_heading();
        idle.print();
    });
    let bare = Idle::bare(&rig.database, effort);
    println!("bare poll 20 ms {:>15.1} %", bare * 100.0);
}
