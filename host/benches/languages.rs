//! One event through the same handler in each language, beside the same call made
//! with wasmtime and nothing else: events a second, and what the host adds.
//!
//! `cargo bench --bench languages` takes the handlers that `cargo xtask sdks` leaves in
//! `target/sdks`; a language that was not built is named. `-- go zig` measures two.
//!
//! Both sides run on one engine and on one thread, lower the same event, and give the
//! handler a state, a log and an outbox in memory. "Fresh" makes an instance for each
//! event and drops it, "warm" keeps one. Time is that of the processor on this thread,
//! which does all the work and never waits, so that a machine that is busy with others
//! measures the same. The sides take turns in short rounds, because machines wander while
//! they measure; a figure is the median of the rounds, and the ratio that of the rounds'.

use std::collections::HashMap;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use event_host_core::event::{Attempt, Event, GroupName, LogEvent, Position, Tenant};
use event_host_core::handler::state::{BatchState, EmptyState};
use event_host_core::handler::{Call, Handler as _, Outcome, Worker};
use event_host_sandbox::settings::{Grants, Limits, Reuse};
use event_host_sandbox::{EngineSettings, Sandbox, Source};
use rustix::time::{ClockId, clock_gettime};
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wasmtime::Store;
use wasmtime::component::{Component, HasSelf, Linker, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{
    Error, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
};

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

use bindings::event_host::handler::outbox::{EmitError, Message};
use bindings::event_host::handler::state::StateError;
use bindings::event_host::handler::types::Event as GuestEvent;
use bindings::event_host::handler::{context, log, outbox, state, types};
use bindings::{EventHandler, EventHandlerPre};

type Failure = Box<dyn std::error::Error>;

/// A language: its name, that of its file, and the most that a warm or fresh call may take
/// through the host, as a multiple of the bare one.
struct Language {
    name: &'static str,
    file: &'static str,
    most: f64,
}

const LANGUAGES: &[Language] = &[
    Language { name: "rust", file: "rust.wasm", most: 1.25 },
    Language { name: "c", file: "c.wasm", most: 1.25 },
    Language { name: "cpp", file: "cpp.wasm", most: 1.25 },
    Language { name: "zig", file: "zig.wasm", most: 1.25 },
    Language { name: "d", file: "d.wasm", most: 1.25 },
    Language { name: "assemblyscript", file: "assemblyscript.wasm", most: 1.25 },
    Language { name: "wat", file: "wat.wasm", most: 1.25 },
    Language { name: "go", file: "go.wasm", most: 1.25 },
    Language { name: "js", file: "js.wasm", most: 1.1 },
    Language { name: "ts", file: "ts.wasm", most: 1.1 },
    Language { name: "js-starlingmonkey", file: "js-starlingmonkey.wasm", most: 1.1 },
    Language { name: "python", file: "python.wasm", most: 1.1 },
];

/// How long a round of one side takes, about.
const ROUND: Duration = Duration::from_millis(25);

/// How many rounds each side has.
const ROUNDS: usize = 41;

/// The component's bytes. The host makes a component of a core module itself; wasmtime
/// alone does not.
fn component(file: &Path) -> Result<Vec<u8>, Failure> {
    let given = wat::parse_bytes(&fs::read(file)?)?.into_owned();
    if given.get(4..8) != Some(&[1, 0, 0, 0]) {
        return Ok(given);
    }
    let adapter = WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME;
    let mut encoder = wit_component::ComponentEncoder::default();
    let encoder = encoder.module(&given)?;
    if given.windows(adapter.len()).any(|bytes| bytes == adapter.as_bytes()) {
        return Ok(encoder.adapter(adapter, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER)?.encode()?);
    }
    Ok(encoder.encode()?)
}

/// An event of about 250 bytes of JSON that every handler takes.
fn event() -> Result<LogEvent, Failure> {
    let data = format!(
        r#"{{"id":7,"name":"Ada Lovelace","customer":"Ada Lovelace","items":"{}"}}"#,
        "0123456789".repeat(18)
    );
    Ok(LogEvent {
        position: Position(1),
        deliver_to: None,
        digest: None,
        event: Event {
            subject: Some("orders/7".to_owned()),
            datacontenttype: Some("application/json".to_owned()),
            data: Some(data.into_bytes()),
            ..Event::new(
                "3f0c1a52-7c1e-4f0a-9d3b-0d8f5d1f6c11",
                "/shop",
                "order.placed",
                "2026-01-01T00:00:01.123456Z".parse()?,
            )
        },
    })
}

/// What this thread has had of processors so far.
fn processor_time() -> Result<Duration, Failure> {
    Ok(clock_gettime(ClockId::ThreadCPUTime).try_into()?)
}

/// One way to run the event so many times.
trait Side {
    async fn run(&mut self, times: u32) -> Result<Duration, Failure>;
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
    async fn new(sandbox: &Sandbox, file: &Path, reuse: Reuse) -> Result<Self, Failure> {
        let handler = sandbox
            .load("orders", Source::from(file), Limits::default(), Grants::default(), reuse)
            .await?;
        Ok(Self {
            worker: handler.worker(),
            group: "orders".parse()?,
            tenant: Tenant::none(),
            event: event()?,
            batch: BatchState::new(""),
            committed: Arc::default(),
        })
    }
}

impl Side for Hosted {
    async fn run(&mut self, times: u32) -> Result<Duration, Failure> {
        // Delivery makes the states; they are not the sandbox's cost.
        let states: Vec<_> =
            (0..times).map(|_| self.batch.attempt(Arc::clone(&self.committed) as _)).collect();
        let started = processor_time()?;
        for state in states {
            let call = Call {
                group: &self.group,
                tenant: &self.tenant,
                event: &self.event,
                attempt: Attempt::FIRST,
                is_late: false,
                state,
            };
            let report = black_box(self.worker.attempt(call).await);
            if report.outcome != Outcome::Success {
                return Err(format!("the host: {:?}", report.outcome).into());
            }
            if report.emits.len() != 1 {
                return Err(format!("the host: {} emits", report.emits.len()).into());
            }
        }
        Ok(processor_time()? - started)
    }
}

/// What the bare side gives the handler: a state, an outbox, a log, WASI, and HTTP that
/// refuses every request.
struct Given {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    hooks: NoRequests,
    table: ResourceTable,
    values: HashMap<String, Vec<u8>>,
    emits: Vec<Message>,
}

impl WasiView for Given {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// What some engines import and no handler here uses.
struct NoRequests;

type Answer =
    Result<(http::Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>), Error>;

impl WasiHttpHooks for NoRequests {
    fn send_request(
        &mut self,
        _: http::Request<WasiBody>,
        _: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Answer> + Send> {
        Box::new(std::future::ready(Err(Error::HttpRequestDenied)))
    }
}

impl WasiHttpView for Given {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { ctx: &mut self.http, table: &mut self.table, hooks: &mut self.hooks }
    }
}

impl types::Host for Given {}

impl outbox::Host for Given {
    fn emit(&mut self, message: Message) -> Result<(), EmitError> {
        self.emits.push(message);
        Ok(())
    }
}

impl state::Host for Given {
    fn get(&mut self, key: String) -> Result<Option<Vec<u8>>, StateError> {
        Ok(self.values.get(&key).cloned())
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), StateError> {
        self.values.insert(key, value);
        Ok(())
    }

    fn delete(&mut self, key: String) -> Result<(), StateError> {
        self.values.remove(&key);
        Ok(())
    }

    fn keys(&mut self, prefix: String, limit: u32) -> Result<Vec<String>, StateError> {
        let mut keys: Vec<_> =
            self.values.keys().filter(|key| key.starts_with(&prefix)).cloned().collect();
        keys.sort();
        keys.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(keys)
    }
}

impl log::Host for Given {
    fn log(&mut self, level: log::Level, message: String) {
        black_box((level, message));
    }
}

impl context::Host for Given {
    fn group(&mut self) -> String {
        "orders".to_owned()
    }

    fn tenant(&mut self) -> String {
        String::new()
    }

    fn remaining_ms(&mut self) -> u64 {
        10_000
    }

    fn is_replay(&mut self) -> bool {
        false
    }

    fn is_late(&mut self) -> bool {
        false
    }
}

struct Bare {
    pre: EventHandlerPre<Given>,
    event: LogEvent,
    time: String,
    kept: Option<(Store<Given>, EventHandler)>,
    warm: bool,
}

impl Bare {
    fn new(sandbox: &Sandbox, wasm: &[u8], warm: bool) -> Result<Self, Failure> {
        let component = Component::from_binary(sandbox.engine(), wasm)?;
        let mut linker = Linker::new(sandbox.engine());
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        EventHandler::add_to_linker::<_, HasSelf<_>>(&mut linker, |given: &mut Given| given)?;
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
        let event = event()?;
        Ok(Self {
            pre: EventHandlerPre::new(linker.instantiate_pre(&component)?)?,
            time: event.event.time.to_string(),
            event,
            kept: None,
            warm,
        })
    }

    async fn call(&mut self) -> Result<(), Failure> {
        let (mut store, handler) = match self.kept.take() {
            Some(kept) => kept,
            None => {
                let given = Given {
                    wasi: WasiCtx::builder().build(),
                    http: WasiHttpCtx::new(),
                    hooks: NoRequests,
                    table: ResourceTable::new(),
                    values: HashMap::new(),
                    emits: Vec::new(),
                };
                let mut store = Store::new(self.pre.engine(), given);
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
        let answer =
            handler.event_host_handler_handler().call_handle(&mut store, guest_event).await?;
        answer.map_err(|failure| format!("wasmtime alone: {failure:?}"))?;
        let given = store.data_mut();
        let emits = given.emits.drain(..).count();
        if emits != 1 {
            return Err(format!("wasmtime alone: {emits} emits").into());
        }
        // The next event finds what this one found.
        given.values.clear();
        if self.warm {
            self.kept = Some((store, handler));
        }
        Ok(())
    }
}

impl Side for Bare {
    async fn run(&mut self, times: u32) -> Result<Duration, Failure> {
        let started = processor_time()?;
        for _ in 0..times {
            self.call().await?;
        }
        Ok(processor_time()? - started)
    }
}

/// Medians: of what the host takes for what the bare call takes in 1, and of the time of
/// an event on either side.
struct Figures {
    ratio: f64,
    bare: Duration,
    host: Duration,
}

async fn compare(bare: &mut impl Side, hosted: &mut impl Side) -> Result<Figures, Failure> {
    // A first round of each warms up and says how many events a round has.
    bare.run(3).await?;
    let one = (hosted.run(3).await? + hosted.run(3).await?) / 6;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few thousands")]
    let times = (ROUND.as_secs_f64() / one.as_secs_f64()).ceil().clamp(1.0, 10_000.0) as u32;
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
        rounds.push((b.as_secs_f64() / a.as_secs_f64(), a, b));
    }
    let median = |side: fn(&(f64, Duration, Duration)) -> f64| {
        let mut figures: Vec<f64> = rounds.iter().map(side).collect();
        figures.sort_by(f64::total_cmp);
        figures[ROUNDS / 2]
    };
    let each = |seconds: f64| Duration::from_secs_f64(seconds / f64::from(times));
    Ok(Figures {
        ratio: median(|round| round.0),
        bare: each(median(|round| round.1.as_secs_f64())),
        host: each(median(|round| round.2.as_secs_f64())),
    })
}

async fn measure(sandbox: &Sandbox, language: &Language, file: &Path) -> Result<(), Failure> {
    let wasm = component(file)?;
    let mut line = format!("| {} |", language.name);
    let mut over = String::new();
    for (name, reuse) in [("warm", Reuse::Events(u32::MAX)), ("fresh", Reuse::Event)] {
        let mut bare = Bare::new(sandbox, &wasm, reuse != Reuse::Event)?;
        let mut hosted = Hosted::new(sandbox, file, reuse).await?;
        let figures = compare(&mut bare, &mut hosted).await?;
        let a_second = |each: Duration| format!("{:.0}", 1.0 / each.as_secs_f64());
        let (bare, host) = (a_second(figures.bare), a_second(figures.host));
        line += &format!(" {host} | {bare} | {:.2} |", figures.ratio);
        if figures.ratio > language.most {
            over += &format!(" {name} is over {}", language.most);
        }
    }
    println!("{line}{over}");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let folder = std::env::var_os("LANGUAGES_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/sdks"),
        PathBuf::from,
    );
    let asked: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let sandbox = Sandbox::new(EngineSettings::default())?;
    println!("events a second of a processor, memory {}", sandbox.allocation());
    println!("| language | warm | warm, bare | ratio | fresh | fresh, bare | ratio |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let mut absent = Vec::new();
    for language in LANGUAGES {
        if !asked.is_empty() && !asked.iter().any(|name| name == language.name) {
            continue;
        }
        let file = folder.join(language.file);
        if file.is_file() {
            measure(&sandbox, language, &file)
                .await
                .map_err(|error| format!("{}: {error}", language.name))?;
        } else {
            absent.push(language.name);
        }
    }
    if !absent.is_empty() {
        println!("not built in {}: {}; see cargo xtask sdks", folder.display(), absent.join(", "));
    }
    Ok(())
}
