//! The sandbox from outside: real components, real limits, real time.

mod batches;
mod bombs;
mod capabilities;
mod endings;
mod fuzz;
pub(super) mod guests;
mod instance_pool;
mod isolation;
mod loading;
mod machine;
mod reuse;
#[cfg(feature = "winch")]
mod work;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tracing::Level;

use super::settings::{Grants, Limits, Reuse};
use super::{
    CacheSettings, EngineSettings, LoadError, LoadedHandler, PoolSettings, Sandbox, Source,
};
use event_host_core::event::{Attempt, Event, GroupName, LogEvent, Position, Tenant};
use event_host_core::failure::{Failure, FailureKind};
use event_host_core::handler::state::{AttemptState, BatchState, EmptyState};
use event_host_core::handler::{Call, Handler, Outcome, Report, Worker};

/// One engine for all tests, as a host has one for all handlers.
fn sandbox() -> &'static Sandbox {
    static SANDBOX: OnceLock<Sandbox> = OnceLock::new();
    SANDBOX.get_or_init(|| Sandbox::new(settings()).unwrap())
}

fn settings() -> EngineSettings {
    EngineSettings {
        cache: CacheSettings::Off,
        pool: PoolSettings {
            instances: 100,
            memories: 300,
            tables: 300,
            ..PoolSettings::default()
        },
        ..EngineSettings::default()
    }
}

fn bytes(bytes: Vec<u8>) -> Source {
    Source::Bytes { name: "guest.wasm".to_owned(), bytes }
}

async fn load_with(
    wasm: Vec<u8>,
    limits: Limits,
    reuse: Reuse,
) -> Result<Arc<LoadedHandler>, LoadError> {
    sandbox().load("guest", bytes(wasm), limits, Grants::default(), reuse).await
}

async fn load(wasm: Vec<u8>) -> Arc<LoadedHandler> {
    load_with(wasm, Limits::default(), Reuse::Batch).await.unwrap()
}

fn event() -> LogEvent {
    LogEvent {
        position: Position(7),
        deliver_to: None,
        digest: None,
        event: Event {
            datacontenttype: Some("application/json".to_owned()),
            data: Some(br#"{"a":1}"#.to_vec()),
            ..Event::new("e-1", "/test", "test.happened", "2026-01-01T00:00:01Z".parse().unwrap())
        },
    }
}

fn no_state() -> Arc<AttemptState> {
    BatchState::new("").attempt(Arc::new(EmptyState))
}

/// Attempts with one group, tenant and kind of event.
struct Caller {
    group: GroupName,
    tenant: Tenant,
    event: LogEvent,
    state: Arc<AttemptState>,
}

impl Default for Caller {
    fn default() -> Self {
        Self {
            group: "triage".parse().unwrap(),
            tenant: Tenant::none(),
            event: event(),
            state: no_state(),
        }
    }
}

impl Caller {
    fn call(&self) -> Call<'_> {
        Call {
            group: &self.group,
            tenant: &self.tenant,
            event: &self.event,
            attempt: Attempt::FIRST,
            is_late: false,
            state: Arc::clone(&self.state),
        }
    }

    async fn attempt(&self, worker: &mut Box<dyn Worker>) -> Report {
        worker.attempt(self.call()).await
    }
}

async fn attempt(handler: &LoadedHandler) -> Report {
    Caller::default().attempt(&mut handler.worker()).await
}

/// How one attempt of a guest fails under these limits.
async fn failure_under(wasm: Vec<u8>, limits: Limits) -> Failure {
    let handler = load_with(wasm, limits, Reuse::Batch).await.unwrap();
    let report = tokio::time::timeout(Duration::from_secs(20), attempt(&handler)).await.unwrap();
    failure(report)
}

async fn failure_of(wasm: Vec<u8>) -> Failure {
    failure_under(wasm, Limits::default()).await
}

fn failure(report: Report) -> Failure {
    assert!(report.emits.is_empty(), "a failed attempt emits nothing");
    match report.outcome {
        Outcome::Failure(failure) => failure,
        other => panic!("not a failure: {other:?}"),
    }
}

type Lines = Arc<Mutex<Vec<(Level, String)>>>;

/// A worker whose guests' lines are kept.
fn logging(handler: &LoadedHandler) -> (Box<dyn Worker>, Lines) {
    let lines = Lines::default();
    let kept = Arc::clone(&lines);
    let worker = handler.worker_with_log(Arc::new(move |line| {
        kept.lock().unwrap().push((line.level, line.text.to_owned()));
    }));
    (worker, lines)
}

fn assert_kind(failure: &Failure, kind: FailureKind, text: &str) {
    assert_eq!(failure.kind, kind, "{failure:?}");
    assert!(failure.text.contains(text), "{:?} does not say {text:?}", failure.text);
}
