//! What a tenant with an event now and then waits, alone and beside four tenants
//! that always have more to do than the machine can.
//!
//! `cargo bench --bench fairness`, on the embedded store. The whole path runs:
//! supervisor, store, sandbox. Two of the heavy tenants have eight handlers whose
//! every event computes for about 0.1 ms, the other two eight whose every event
//! computes for about 50 ms; all of them have a backlog that outlasts the round.
//! The light tenant has one handler that does nothing. A publisher with a thread
//! and a runtime of its own commits its events at irregular intervals; the clock
//! starts when an event is committed, and stops when its handler is called. Rounds
//! alone and beside the others alternate, because machines wander.
//!
//! Last, what a permit costs an attempt that nobody else is in the way of, against
//! the same call without one.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

use std::future::Future;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use event_host_core::clock::SystemClock;
use event_host_core::event::{Event, GroupName, Position, Tenant};
use event_host_core::handler::{Call, Handler, Outcome, Report, Usage, Worker};
use event_host_core::troubles::Troubles;
use event_host_delivery::admission::{Admission, Demand, FairExecutor};
use event_host_delivery::group::GroupSettings;
use event_host_delivery::replay_component::NoReplayComponents;
use event_host_delivery::supervisor::{Group, Supervisor};
use event_host_sandbox::settings::{Grants, Limits, Reuse};
use event_host_sandbox::{EngineSettings, Sandbox, Source};
use event_host_store::traits::*;
use event_host_store::{HostIdentity, Start};
use event_host_store_sqlite::{OpenOptions, SqliteStore};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[path = "../sandbox/src/tests/guests.rs"]
#[allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "shared with the tests")]
mod guests;

const HEAVY_TENANTS: usize = 4;
const HANDLERS_A_TENANT: usize = 8;

/// The mean pause between two events of the light tenant.
const PAUSE: Duration = Duration::from_millis(25);

/// Events at the beginning of a round that do not count.
const WARM_UP: usize = 10;

/// Until an event is seen that was published; far longer than it can take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The times at which the light handler was called, in the order of the log.
#[derive(Default)]
struct Seen(watch::Sender<Vec<Instant>>);

impl Seen {
    async fn at_least(&self, count: usize) -> Vec<Instant> {
        let mut seen = self.0.subscribe();
        let all = seen.wait_for(|seen| seen.len() >= count);
        tokio::time::timeout(PATIENCE, all).await.expect("events are missing").unwrap().clone()
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
        let seen = Arc::clone(&self.seen);
        let attempt = self.worker.attempt(call);
        // When it has a core.
        Box::pin(async move {
            let now = Instant::now();
            seen.0.send_modify(|seen| seen.push(now));
            attempt.await
        })
    }

    fn end_batch(&mut self) {
        self.worker.end_batch();
    }
}

fn tenant(name: &str) -> Tenant {
    name.parse().unwrap()
}

fn heavy(tenant: usize) -> String {
    format!("heavy-{tenant}")
}

async fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path.to_str().unwrap(), OpenOptions::to_migrate()).await.unwrap()
}

fn event(n: usize) -> Event {
    Event {
        data: Some(vec![b'x'; 200]),
        ..Event::new(
            format!("event-{n}"),
            "/bench",
            "work",
            "2026-01-01T00:00:00Z".parse().unwrap(),
        )
    }
}

/// A handler that counts down from `turns`.
async fn computing(sandbox: &Sandbox, turns: u32) -> Arc<dyn Handler> {
    let bytes = guests::handling(&format!(
        "(local $left i32)
         (local.set $left (i32.const {turns}))
         (loop $again
           (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
         (call $ok)"
    ));
    let source = Source::Bytes { name: "computing".into(), bytes };
    let (limits, grants) = (Limits::default(), Grants::default());
    sandbox.load("computing", source, limits, grants, Reuse::default()).await.unwrap()
}

struct Rig {
    path: PathBuf,
    hosts: Runtime,
    light: Arc<dyn Handler>,
    short: Arc<dyn Handler>,
    long: Arc<dyn Handler>,
}

impl Rig {
    fn new(path: PathBuf) -> Self {
        let hosts = event_host::runtime::start().unwrap();
        let [light, short, long] = hosts.block_on(async {
            let store = open(&path).await;
            store.migrate().await.unwrap();
            let events: Vec<Event> = (0..1_000).map(event).collect();
            for of in 0..HEAVY_TENANTS {
                for _ in 0..if of < 2 { 40 } else { 1 } {
                    store.publish(&tenant(&heavy(of)), &events).await.unwrap();
                }
            }
            store.close().await.unwrap();
            let sandbox = Sandbox::new(EngineSettings::default()).unwrap();
            [
                computing(&sandbox, 1).await,
                computing(&sandbox, 100_000).await,
                computing(&sandbox, 50_000_000).await,
            ]
        });
        Self { path, hosts, light, short, long }
    }

    fn group(name: &str, of: &str, handler: Arc<dyn Handler>) -> Group {
        Group {
            settings: GroupSettings::new(name.parse().unwrap(), tenant(of)),
            start: Start::Earliest,
            deployed: None,
            components: Arc::new(NoReplayComponents),
            handler,
        }
    }

    fn heavy_groups(&self) -> Vec<Group> {
        let each = |of: usize| {
            let handler = if of < 2 { &self.short } else { &self.long };
            (0..HANDLERS_A_TENANT).map(move |n| {
                Self::group(&format!("{}-{n}", heavy(of)), &heavy(of), Arc::clone(handler))
            })
        };
        (0..HEAVY_TENANTS).flat_map(each).collect()
    }

    /// The latencies of a round, in milliseconds.
    fn round(&self, beside: bool, events: usize) -> Vec<f64> {
        let seen = Arc::<Seen>::default();
        let noted = Noted { handler: Arc::clone(&self.light), seen: Arc::clone(&seen) };
        let mut groups = vec![Self::group("light", "light", Arc::new(noted))];
        if beside {
            groups.extend(self.heavy_groups());
        }
        let names: Vec<GroupName> =
            groups.iter().map(|group| group.settings.name.clone()).collect();
        let store: Arc<dyn Store> = Arc::new(self.hosts.block_on(open(&self.path)));
        let executor = {
            let _in_runtime = self.hosts.enter();
            FairExecutor::start(Arc::default()).unwrap()
        };
        let supervisor = Supervisor {
            store: store.clone(),
            deployments: None,
            host: HostIdentity { id: "bench".into(), hostname: "bench".into(), pid: 1 },
            clock: Arc::new(SystemClock),
            executor,
            groups,
            grace: Duration::ZERO,
            drain: false,
            troubles: Troubles::default(),
            metrics: Arc::default(),
            locks: tokio::sync::oneshot::channel().0,
        };
        let stop = CancellationToken::new();
        let running = self.hosts.spawn(supervisor.run(stop.clone()));
        // All have settled once before the first event that counts.
        self.hosts.block_on(settled(&*store, &names[1..]));
        let path = self.path.clone();
        let watched = Arc::clone(&seen);
        let publishing = std::thread::spawn(move || {
            Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(publish(&path, &watched, events))
        });
        let committed = publishing.join().unwrap();
        let called = self.hosts.block_on(seen.at_least(committed.len()));
        if beside {
            let last = self.hosts.block_on(store.safe_position()).unwrap();
            for name in &names[1..] {
                let cursor = self.hosts.block_on(store.cursor(name)).unwrap().position;
                assert!(cursor < last, "{name} has nothing left to do");
            }
        }
        stop.cancel();
        self.hosts.block_on(running).unwrap().unwrap();
        for name in &names[1..] {
            self.hosts.block_on(store.seek(name, Start::Earliest)).unwrap();
        }
        let latency = |(committed, called): (&Instant, &Instant)| {
            called.saturating_duration_since(*committed).as_secs_f64() * 1e3
        };
        committed.iter().zip(&called).skip(WARM_UP).map(latency).collect()
    }
}

/// Returns once each of the groups has a cursor that moved.
async fn settled(store: &dyn Store, names: &[GroupName]) {
    let all = async {
        for name in names {
            while !store.cursor(name).await.is_ok_and(|cursor| cursor.position > Position::ZERO) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("a group does nothing");
}

/// Publishes events of the light tenant, and says when each was committed.
async fn publish(path: &Path, seen: &Seen, events: usize) -> Vec<Instant> {
    let store = open(path).await;
    let mut committed = Vec::new();
    for n in 0..events + WARM_UP {
        store.publish(&tenant("light"), &[event(n)]).await.unwrap();
        committed.push(Instant::now());
        // The host is up once it has seen the first.
        if n == 0 {
            seen.at_least(1).await;
        }
        tokio::time::sleep(PAUSE.mul_f64(2.0 * fastrand::f64())).await;
    }
    store.close().await.unwrap();
    committed
}

fn percentile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

/// What a permit adds to an attempt that nobody is in the way of, in nanoseconds.
async fn cost_of_a_permit() -> f64 {
    const TIMES: u32 = 200_000;
    let admission = Arc::<Admission>::default();
    let group =
        admission.register(&tenant("light"), Demand { concurrency: 1, memory_bytes: 1 << 20 });
    let attempt = || async {
        black_box(Report {
            outcome: Outcome::Success,
            emits: Vec::new(),
            usage: Usage { duration: Duration::from_micros(2), ..Usage::default() },
        })
    };
    let mut differences = Vec::new();
    for _ in 0..21 {
        let began = Instant::now();
        for _ in 0..TIMES {
            black_box(attempt().await);
        }
        let bare = began.elapsed();
        let began = Instant::now();
        let mut permit = group.permit();
        for _ in 0..TIMES {
            if !permit.is_ready() {
                permit.ready(None).await;
            }
            black_box(permit.run(attempt()).await);
        }
        let with = began.elapsed();
        differences.push((with.as_secs_f64() - bare.as_secs_f64()) * 1e9 / f64::from(TIMES));
    }
    differences.sort_by(f64::total_cmp);
    percentile(&differences, 0.5)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    if !has("--bench") {
        eprintln!("a benchmark: run it with `cargo bench`");
        return;
    }
    let (rounds, events) = if has("--quick") { (1, 100) } else { (5, 400) };
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::new(folder.path().join("bench.db"));
    println!(
        "fairness: {} events a side in {rounds} rounds, beside {HEAVY_TENANTS} tenants with {HANDLERS_A_TENANT} handlers each; ms from the commit to the handler's start",
        rounds * events
    );
    println!("{:<8} {:>7} {:>7} {:>7} {:>7}", "", "p50", "p90", "p99", "max");
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (beside, times) in [false, true].into_iter().zip(&mut times) {
            times.extend(rig.round(beside, events));
        }
    }
    let figures = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        [0.5, 0.9, 0.99, 1.0].map(|part| percentile(&times, part))
    });
    for (name, [p50, p90, p99, max]) in ["alone", "beside"].into_iter().zip(figures) {
        println!("{name:<8} {p50:>7.2} {p90:>7.2} {p99:>7.2} {max:>7.2}");
    }
    let [alone, beside] = figures;
    println!(
        "beside the others: p50 {:.1} times, p99 {:.1} times; {:+.2} ms and {:+.2} ms",
        beside[0] / alone[0],
        beside[2] / alone[2],
        beside[0] - alone[0],
        beside[2] - alone[2],
    );
    let cost = rig.hosts.block_on(cost_of_a_permit());
    println!("a permit adds {cost:.0} ns to an attempt that nobody is in the way of");
}
