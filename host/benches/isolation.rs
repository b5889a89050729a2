//! What it costs to keep handlers apart: a fresh instance for each event beside
//! one that is kept, the memory of a thousand handlers that have nothing to do, of
//! one component and of a thousand, and how long another version takes to take
//! over.
//!
//! `cargo bench --bench isolation`, on the embedded store. The component is the
//! Rust no-op guest, and the versions of the Rust guest `versioned` where there are
//! many: `cargo xtask build-guests` first.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use event_host_core::clock::SystemClock;
use event_host_core::event::{Attempt, Event, GroupName, LogEvent, Position, Tenant};
use event_host_core::handler::state::{BatchState, EmptyState};
use event_host_core::handler::{Call, Handler, Outcome, Worker};
use event_host_core::troubles::Troubles;
use event_host_delivery::admission::FairExecutor;
use event_host_delivery::group::GroupSettings;
use event_host_delivery::replay_component::NoReplayComponents;
use event_host_delivery::supervisor::{Change, Group, Later, Supervisor};
use event_host_sandbox::settings::{Grants, Limits, Reuse};
use event_host_sandbox::{CacheSettings, EngineSettings, LoadedHandler, Sandbox, Source};
use event_host_store::traits::*;
use event_host_store::{HostIdentity, Start};
use event_host_store_sqlite::{OpenOptions, SqliteStore};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// How much is measured.
struct Plan {
    rounds: usize,
    attempts: usize,
    handlers: usize,
    swaps: usize,
}

fn guest(name: &str) -> PathBuf {
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guests");
    let path = guests.join(name).with_extension("wasm");
    assert!(path.exists(), "{} is missing: run `cargo xtask build-guests`", path.display());
    path
}

async fn load(sandbox: &Sandbox, name: &str, reuse: Reuse) -> Arc<LoadedHandler> {
    sandbox.load(name, guest("noop"), Limits::default(), Grants::default(), reuse).await.unwrap()
}

fn event() -> Event {
    Event {
        data: Some(vec![b'x'; 200]),
        ..Event::new("event", "/bench", "work", "2026-01-01T00:00:00Z".parse().unwrap())
    }
}

/// Makes so many attempts, and gives the time of one in microseconds.
async fn attempts(worker: &mut Box<dyn Worker>, count: usize) -> f64 {
    let group: GroupName = "bench".parse().unwrap();
    let tenant = Tenant::none();
    let event = LogEvent { position: Position(1), deliver_to: None, digest: None, event: event() };
    let batch = BatchState::new("");
    let began = Instant::now();
    for _ in 0..count {
        let state = batch.attempt(Arc::new(EmptyState));
        let attempt = Attempt(1);
        let (group, tenant, event) = (&group, &tenant, &event);
        let call = Call { group, tenant, event, attempt, is_late: false, state };
        let report = worker.attempt(call).await;
        assert_eq!(report.outcome, Outcome::Success);
    }
    let took = began.elapsed();
    worker.end_batch();
    took.as_secs_f64() * 1e6 / count as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn fresh_beside_kept(sandbox: &Sandbox, plan: &Plan) {
    let mut fresh = load(sandbox, "fresh", Reuse::Event).await.worker();
    let mut kept = load(sandbox, "kept", Reuse::Batch).await.worker();
    let (mut of_fresh, mut of_kept, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms both.
    for round in 0..=plan.rounds {
        let one = attempts(&mut fresh, plan.attempts).await;
        let other = attempts(&mut kept, plan.attempts).await;
        if round > 0 {
            of_fresh.push(one);
            of_kept.push(other);
            ratios.push(one / other);
        }
    }
    println!(
        "an event, medians of {} rounds: fresh instance {:.1} us, kept instance {:.1} us, ratio {:.1}",
        plan.rounds,
        median(&mut of_fresh),
        median(&mut of_kept),
        median(&mut ratios)
    );
}

/// The memory of this process that is in use, in bytes.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}

/// One version of the guest that has many: another number in its data, and so
/// another component.
fn version(number: usize) -> Source {
    const MARK: &[u8] = b"versioned-guest:";
    let mut bytes = std::fs::read(guest("versioned")).unwrap();
    let mark = bytes.windows(MARK.len()).position(|part| part == MARK).expect("it has a mark");
    let digits = format!("{number:08}").into_bytes();
    bytes[mark + MARK.len()..][..digits.len()].copy_from_slice(&digits);
    Source::Bytes { name: format!("version {number}"), bytes }
}

/// As a host runs: what is new is compiled in a process of its own, so that no
/// memory of the compiler's counts here.
fn compiling_elsewhere(cache: &Path) -> Sandbox {
    let settings = EngineSettings {
        compile_program: Some(env!("CARGO_BIN_EXE_host").into()),
        cache: CacheSettings::Directory(cache.to_owned()),
        ..EngineSettings::default()
    };
    Sandbox::new(settings).unwrap()
}

async fn idle_handlers(sandbox: &Sandbox, what: &str, components: impl Iterator<Item = Source>) {
    let before = resident();
    let began = Instant::now();
    let mut workers = Vec::new();
    for (n, component) in components.enumerate() {
        let (limits, grants) = (Limits::default(), Grants::default());
        let name = format!("handler-{n}");
        let handler = sandbox.load(&name, component, limits, grants, Reuse::Batch).await.unwrap();
        // Each has handled something, and has nothing to do now.
        let mut worker = handler.worker();
        attempts(&mut worker, 1).await;
        workers.push((handler, worker));
    }
    let took = began.elapsed();
    println!(
        "{} handlers that have nothing to do, {what}: {:.1} KiB each; {:.2} ms each to load and to run once",
        workers.len(),
        (resident() - before) / 1024.0 / workers.len() as f64,
        took.as_secs_f64() * 1e3 / workers.len() as f64
    );
}

/// Tells when a worker is made of the handler that it wraps.
struct Watched {
    handler: Arc<LoadedHandler>,
    taken: Arc<Notify>,
}

impl Handler for Watched {
    fn digest(&self) -> &str {
        self.handler.digest()
    }

    fn worker(&self) -> Box<dyn Worker> {
        self.taken.notify_one();
        self.handler.worker()
    }
}

fn group(handler: Arc<dyn Handler>) -> Group {
    Group {
        settings: GroupSettings::new("bench".parse().unwrap(), Tenant::none()),
        start: Start::Latest,
        deployed: None,
        components: Arc::new(NoReplayComponents),
        handler,
    }
}

/// From a component that is on disk to its worker, while a host runs.
async fn swaps(sandbox: &Sandbox, plan: &Plan) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bench.db");
    let store = SqliteStore::open(path.to_str().unwrap(), OpenOptions::to_migrate()).await.unwrap();
    store.migrate().await.unwrap();
    let taken = Arc::new(Notify::new());
    let version = async || {
        let handler = load(sandbox, "bench", Reuse::Batch).await;
        let watched: Arc<dyn Handler> = Arc::new(Watched { handler, taken: Arc::clone(&taken) });
        watched
    };
    let supervisor = Supervisor {
        store: Arc::new(store),
        deployments: None,
        host: HostIdentity { id: "bench".into(), hostname: "bench".into(), pid: 1 },
        clock: Arc::new(SystemClock),
        executor: FairExecutor::start(Arc::default()).unwrap(),
        groups: vec![group(version().await)],
        grace: Duration::ZERO,
        drain: false,
        troubles: Troubles::default(),
        metrics: Arc::default(),
        locks: oneshot::channel().0,
    };
    let stop = CancellationToken::new();
    let (changes, to_follow) = mpsc::channel(1);
    let running =
        tokio::spawn(supervisor.run_and_follow(stop.clone(), to_follow, Later::nothing()));
    taken.notified().await;
    let (mut loads, mut switches) = (Vec::new(), Vec::new());
    for _ in 0..plan.swaps {
        let began = Instant::now();
        let next = version().await;
        let loaded = Instant::now();
        let (refused, refusals) = oneshot::channel();
        changes.send(Change { groups: vec![group(next)], refused }).await.unwrap();
        assert!(refusals.await.unwrap().is_empty());
        taken.notified().await;
        loads.push((loaded - began).as_secs_f64() * 1e3);
        switches.push(loaded.elapsed().as_secs_f64() * 1e3);
    }
    stop.cancel();
    running.await.unwrap().unwrap();
    println!(
        "{} swaps of a group with nothing to do, medians: {:.2} ms to load what was compiled before, {:.2} ms to take over",
        plan.swaps,
        median(&mut loads),
        median(&mut switches)
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    if !has("--bench") {
        eprintln!("a benchmark: run it with `cargo bench`");
        return;
    }
    let plan = if has("--quick") {
        Plan { rounds: 5, attempts: 500, handlers: 100, swaps: 10 }
    } else {
        Plan { rounds: 51, attempts: 2_000, handlers: 1_000, swaps: 200 }
    };
    Runtime::new().unwrap().block_on(async {
        let sandbox = Sandbox::new(EngineSettings::default()).unwrap();
        fresh_beside_kept(&sandbox, &plan).await;
        let same = (0..plan.handlers).map(|_| guest("noop").into());
        idle_handlers(&sandbox, "of one component", same).await;
        let cache = tempfile::tempdir().unwrap();
        let different = (0..plan.handlers).map(version);
        idle_handlers(&compiling_elsewhere(cache.path()), "of one new component each", different)
            .await;
        swaps(&sandbox, &plan).await;
    });
}
