//! One event through the no-op handler, beside the same call made with nothing
//! but wasmtime: what the sandbox adds is the difference.
//!
//! `cargo bench --bench sandbox`. Takes the Rust guest that `cargo xtask
//! build-guests` leaves in `target/guests`, or else one that is written by
//! hand. Both sides use one engine, lower the same event and call through
//! wasmtime's async support; "fresh" makes an instance for each event and drops
//! it, "reused" keeps one.
//!
//! Machines wander while they measure, so after criterion's figures the two
//! sides are timed in turn, in short rounds, and the overhead is the median of
//! the rounds' ratios.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group};
use event_host_core::event::{Attempt, Event, GroupName, LogEvent, Position, Tenant};
use event_host_core::handler::state::{AttemptState, BatchState, EmptyState};
use event_host_core::handler::{Call, Handler as _, Outcome, Worker};
use event_host_sandbox::settings::{Grants, Limits, Reuse};
use event_host_sandbox::{EngineSettings, Sandbox, Source};
use tokio::runtime::Runtime;
use wasmtime::Store;
use wasmtime::component::{Component, Linker};

#[path = "../sandbox/src/tests/guests.rs"]
#[allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "shared with the tests")]
mod guests;

/// The bare side's own bindings, made like the host's.
#[allow(missing_docs, unsafe_code, unreachable_pub, clippy::all)]
mod bindings {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "event-handler",
        ownership: Borrowing { duplicate_if_necessary: true },
        exports: { default: async },
    });
}

use bindings::event_host::handler::types::Event as GuestEvent;
use bindings::{EventHandler, EventHandlerPre};

type Failure = Box<dyn std::error::Error>;

/// The component's bytes, and where they came from.
fn component() -> Result<(Vec<u8>, &'static str), Failure> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guests/noop.wasm");
    let (given, origin) = match fs::read(built) {
        Ok(bytes) => (bytes, "the Rust guest"),
        Err(_) => (guests::noop(), "the guest written by hand"),
    };
    // The host makes a component of a core module itself; wasmtime alone does
    // not.
    if given.get(4..8) == Some(&[1, 0, 0, 0]) {
        let mut encoder = wit_component::ComponentEncoder::default();
        return Ok((encoder.module(&given)?.encode()?, origin));
    }
    Ok((given, origin))
}

fn event() -> Result<LogEvent, Failure> {
    Ok(LogEvent {
        position: Position(1),
        deliver_to: None,
        digest: None,
        event: Event {
            subject: Some("issues/1347".to_owned()),
            datacontenttype: Some("application/json".to_owned()),
            partitionkey: Some("acme/widgets".to_owned()),
            data: Some(vec![b'x'; 200]),
            ..Event::new(
                "3f0c1a52-7c1e-4f0a-9d3b-0d8f5d1f6c11",
                "/repositories/acme/widgets",
                "issues.opened",
                "2026-01-01T00:00:01.123456Z".parse()?,
            )
        },
    })
}

/// One way to run the event so many times.
trait Side {
    async fn run(&mut self, times: u64) -> Result<Duration, Failure>;
}

struct Hosted {
    worker: Box<dyn Worker>,
    group: GroupName,
    tenant: Tenant,
    event: LogEvent,
    batch: BatchState,
    committed: Arc<EmptyState>,
}

impl Hosted {
    async fn new(sandbox: &Sandbox, wasm: &[u8], reuse: Reuse) -> Result<Self, Failure> {
        let source = Source::Bytes { name: "noop".to_owned(), bytes: wasm.to_vec() };
        let handler =
            sandbox.load("noop", source, Limits::default(), Grants::default(), reuse).await?;
        Ok(Self {
            worker: handler.worker(),
            group: "noop".parse()?,
            tenant: Tenant::none(),
            event: event()?,
            batch: BatchState::new(""),
            committed: Arc::default(),
        })
    }
}

impl Side for Hosted {
    async fn run(&mut self, times: u64) -> Result<Duration, Failure> {
        // Delivery makes the state; it is not the sandbox's cost.
        let state: Arc<AttemptState> = self.batch.attempt(Arc::clone(&self.committed) as _);
        let started = Instant::now();
        for _ in 0..times {
            let call = Call {
                group: &self.group,
                tenant: &self.tenant,
                event: &self.event,
                attempt: Attempt::FIRST,
                is_late: false,
                state: Arc::clone(&state),
            };
            let report = black_box(self.worker.attempt(call).await);
            if report.outcome != Outcome::Success {
                return Err(format!("{:?}", report.outcome).into());
            }
        }
        Ok(started.elapsed())
    }
}

struct Bare {
    pre: EventHandlerPre<()>,
    event: LogEvent,
    time: String,
    kept: Option<(Store<()>, EventHandler)>,
    reused: bool,
}

impl Bare {
    fn new(sandbox: &Sandbox, wasm: &[u8], reused: bool) -> Result<Self, Failure> {
        let component = Component::from_binary(sandbox.engine(), wasm)?;
        let mut linker = Linker::new(sandbox.engine());
        linker.define_unknown_imports_as_traps(&component)?;
        let event = event()?;
        Ok(Self {
            pre: EventHandlerPre::new(linker.instantiate_pre(&component)?)?,
            time: event.event.time.to_string(),
            event,
            kept: None,
            reused,
        })
    }

    async fn call(&mut self) -> wasmtime::Result<()> {
        let (mut store, handler) = match self.kept.take() {
            Some(kept) => kept,
            None => {
                let mut store = Store::new(self.pre.engine(), ());
                store.set_epoch_deadline(u64::MAX / 2);
                let handler = self.pre.instantiate_async(&mut store).await?;
                (store, handler)
            }
        };
        let event = &self.event.event;
        let guest_event = GuestEvent {
            id: &event.id,
            source: &event.source,
            type_: &event.event_type,
            subject: event.subject.as_deref(),
            time: &self.time,
            datacontenttype: event.datacontenttype.as_deref(),
            dataschema: event.dataschema.as_deref(),
            extensions: &[],
            data: event.data.as_deref().unwrap_or_default(),
            partitionkey: event.partitionkey.as_deref(),
            position: 1,
            attempt: 1,
        };
        handler.event_host_handler_handler().call_handle(&mut store, guest_event).await??;
        if self.reused {
            self.kept = Some((store, handler));
        }
        Ok(())
    }
}

impl Side for Bare {
    async fn run(&mut self, times: u64) -> Result<Duration, Failure> {
        let started = Instant::now();
        for _ in 0..times {
            black_box(self.call().await?);
        }
        Ok(started.elapsed())
    }
}

fn measure(c: &mut Criterion, runtime: &Runtime, name: &str, mut side: impl Side) {
    c.bench_function(name, |b| {
        b.iter_custom(|times| {
            runtime.block_on(side.run(times)).unwrap_or_else(|error| stop(error.as_ref()))
        });
    });
}

/// The median, over rounds in which both sides take their turn, of what the
/// host takes more than the bare call.
async fn overhead(
    bare: &mut impl Side,
    hosted: &mut impl Side,
    times: u64,
) -> Result<(f64, Duration, Duration), Failure> {
    const ROUNDS: usize = 201;
    let mut rounds = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        // Neither side is always the first.
        let (a, b) = if round % 2 == 0 {
            let a = bare.run(times).await?;
            (a, hosted.run(times).await?)
        } else {
            let b = hosted.run(times).await?;
            (bare.run(times).await?, b)
        };
        rounds.push((b.as_secs_f64() / a.as_secs_f64() - 1.0, a, b));
    }
    rounds.sort_by(|x, y| x.0.total_cmp(&y.0));
    let middle = rounds[ROUNDS / 2].0;
    let median = |side: fn(&(f64, Duration, Duration)) -> Duration| {
        let mut times: Vec<Duration> = rounds.iter().map(side).collect();
        times.sort();
        times[ROUNDS / 2]
    };
    let each = u32::try_from(times)?;
    Ok((middle, median(|r| r.1) / each, median(|r| r.2) / each))
}

fn stop(error: &dyn std::error::Error) -> ! {
    eprintln!("{error}");
    std::process::exit(1)
}

fn run(c: &mut Criterion) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (wasm, origin) = component()?;
    let sandbox = Sandbox::new(EngineSettings::default())?;
    println!("with {origin}, {} bytes, memory {}", wasm.len(), sandbox.allocation());

    let hosted = |reuse| runtime.block_on(Hosted::new(&sandbox, &wasm, reuse));
    measure(c, &runtime, "fresh/bare", Bare::new(&sandbox, &wasm, false)?);
    measure(c, &runtime, "fresh/host", hosted(Reuse::Event)?);
    measure(c, &runtime, "reused/bare", Bare::new(&sandbox, &wasm, true)?);
    measure(c, &runtime, "reused/host", hosted(Reuse::Batch)?);

    for (name, reuse, times) in [("fresh", Reuse::Event, 100), ("reused", Reuse::Batch, 1_000)] {
        let mut bare = Bare::new(&sandbox, &wasm, reuse == Reuse::Batch)?;
        let mut host = hosted(reuse)?;
        let (overhead, bare, host) = runtime.block_on(overhead(&mut bare, &mut host, times))?;
        println!("{name:<7} bare {bare:.1?}, host {host:.1?}, overhead {:.0} %", overhead * 100.0);
    }
    Ok(())
}

fn sandbox(c: &mut Criterion) {
    run(c).unwrap_or_else(|error| stop(error.as_ref()));
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50);
    targets = sandbox
}

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
}
