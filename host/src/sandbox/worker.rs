//! Attempts: one event through one instance, whatever the guest does.
//!
//! The path of an event through an instance that is alive already is a few
//! microseconds, of which the guest has most; what is done for every event is
//! therefore little, and what can wait until something goes wrong waits.

use std::fmt::{self, Write as _};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use wasmtime::{Store, UpdateDeadline};

use super::bindings::event_host::handler::types::{
    Event as GuestEvent, ExtensionValueParam, Failure as GuestFailure,
};
use super::bindings::{self, EventHandler};
use super::component::{Inspection, Program};
use super::ending::{self, Ending, Phase, timeout_text};
use super::imports::{GuestLog, LogSink, Profile, Side};
use super::limits::COMPONENT_HANDLES;
use super::settings::Reuse;
use crate::delivery::backoff::LONGEST;
use crate::delivery::{Call, Handler, Outcome, Report, Usage, Worker};
use crate::event::{DELIVER_AFTER, Event, ExtensionValue};
use crate::failure::{Failure, FailureKind};

/// A handler that is loaded: its component, compiled and linked, and its
/// settings.
pub struct LoadedHandler {
    program: Arc<Program>,
    profile: Arc<Profile>,
    reuse: Reuse,
}

impl fmt::Debug for LoadedHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedHandler")
            .field("profile", &self.profile)
            .field("reuse", &self.reuse)
            .field("component", &self.program.inspection)
            .finish()
    }
}

impl LoadedHandler {
    pub(super) fn new(program: Arc<Program>, profile: Arc<Profile>, reuse: Reuse) -> Self {
        Self { program, profile, reuse }
    }

    /// What is known of its component.
    #[must_use]
    pub fn inspection(&self) -> &Inspection {
        &self.program.inspection
    }

    /// A worker whose guests' lines go to `sink` as well as to the host's log.
    #[must_use]
    pub fn worker_with_log(&self, sink: LogSink) -> Box<dyn Worker> {
        Box::new(self.new_worker(Some(sink)))
    }

    fn new_worker(&self, sink: Option<LogSink>) -> SandboxWorker {
        SandboxWorker {
            program: Arc::clone(&self.program),
            log: Arc::new(GuestLog::new(Arc::clone(&self.profile), sink)),
            profile: Arc::clone(&self.profile),
            reuse: self.reuse,
            kept: None,
            time: String::new(),
        }
    }
}

impl Handler for LoadedHandler {
    fn digest(&self) -> &str {
        &self.program.inspection.digest
    }

    fn memory_bytes(&self) -> usize {
        self.profile.limits.memory_bytes
    }

    fn state_keys(&self) -> Option<u64> {
        Some(self.profile.limits.state_keys)
    }

    fn worker(&self) -> Box<dyn Worker> {
        Box::new(self.new_worker(None))
    }
}

struct SandboxWorker {
    program: Arc<Program>,
    profile: Arc<Profile>,
    log: Arc<GuestLog>,
    reuse: Reuse,
    /// The instance between two attempts. Empty during one, so that an attempt
    /// whose future is dropped leaves none behind.
    kept: Option<Instance>,
    /// Holds the text of an event's time; kept for its allocation.
    time: String,
}

#[async_trait]
impl Worker for SandboxWorker {
    async fn attempt(&mut self, call: Call<'_>) -> Report {
        let started = Instant::now();
        // Kept representable, whatever the settings.
        let deadline = started + self.profile.limits.timeout.min(LONGEST);

        let mut instance = match self.kept.take() {
            Some(instance) => instance,
            None => {
                // What an attempt that was dropped had written.
                self.log.discard();
                Instance::new(&self.program, &self.profile, &self.log)
            }
        };
        let fresh = instance.handler.is_none();
        instance.store.data_mut().begin(&call, deadline);

        self.time.clear();
        // Writing to a string cannot fail.
        let _ = write!(self.time, "{}", call.event.event.time);
        let answer = {
            let _ticking = self.program.ticker.guest_runs();
            let running = pin!(instance.run(&self.program, &call, &self.time));
            within(deadline, running).await
        };

        let log_lines = self.log.end();
        let memory_bytes = instance.store.data().limiter.memory_bytes();
        let (outcome, emits) = self.settle(answer, instance, &call);
        let usage = Usage { duration: started.elapsed(), memory_bytes, fresh, log_lines };
        Report { outcome, emits, usage }
    }

    fn end_batch(&mut self) {
        if self.reuse == Reuse::Batch {
            self.kept = None;
        }
    }
}

/// What became of a call; `None` when it took too long.
type Answer = Option<Result<Result<(), GuestFailure>, (wasmtime::Error, Phase)>>;

impl SandboxWorker {
    /// Tells how an attempt ended, and keeps its instance if it may live on.
    fn settle(
        &mut self,
        answer: Answer,
        mut instance: Instance,
        call: &Call<'_>,
    ) -> (Outcome, Vec<Event>) {
        let side = instance.store.data_mut();
        let over = side.http.over().cloned();
        let under_way = side.end();
        // Requests run beside the guest, which may have answered whatever since.
        if let Some(failure) = over {
            return (Outcome::Failure(failure), Vec::new());
        }
        let outcome = match answer {
            Some(Ok(Ok(()))) => {
                self.keep(instance);
                let mut emits = under_way.map(|u| u.emits).unwrap_or_default();
                inherit_key(&mut emits, call.event.event.partitionkey.as_deref());
                return (Outcome::Success, emits);
            }
            Some(Ok(Err(failure))) => Outcome::Failure(guest_failure(failure)),
            Some(Err((error, phase))) => ending::outcome(&error, phase, &self.profile),
            None => {
                let limits = &self.profile.limits;
                // A store that hangs is not the handler's fault; one that is
                // asked all the time is.
                let waited = under_way.and_then(|u| u.store_asked).map(|since| since.elapsed());
                if waited.is_some_and(|waited| waited >= limits.timeout / 2) {
                    Outcome::NotRun("the store did not answer a read of state in time".to_owned())
                } else {
                    Outcome::Failure(Failure::new(FailureKind::Timeout, &timeout_text(limits)))
                }
            }
        };
        (outcome, Vec::new())
    }

    fn keep(&mut self, mut instance: Instance) {
        instance.handled = instance.handled.saturating_add(1);
        let lives_on = match self.reuse {
            Reuse::Batch => true,
            Reuse::Event => false,
            Reuse::Events(most) => instance.handled < most,
        };
        if lives_on {
            self.kept = Some(instance);
        }
    }
}

/// An instance, and how many events it has handled.
struct Instance {
    store: Store<Side>,
    /// `None` until its first attempt has made it: start functions run within
    /// an attempt's limits too.
    handler: Option<EventHandler>,
    handled: u32,
}

impl Instance {
    fn new(program: &Program, profile: &Arc<Profile>, log: &Arc<GuestLog>) -> Self {
        let side = Side::new(Arc::clone(profile), Arc::clone(log));
        let mut store = Store::new(program.pre.engine(), side);
        store.limiter(|side| &mut side.limiter);
        store.set_hostcall_fuel(profile.limits.host_call_bytes);
        store.set_max_component_handles(COMPONENT_HANDLES);
        store.epoch_deadline_callback(|mut store| {
            let side = store.data_mut();
            // The timer may be starved by guests on every thread; this is not.
            if side.under_way()?.deadline <= Instant::now() {
                return Err(Ending::timeout(&side.profile.limits));
            }
            // Its text is the failure's, which is told in the end.
            if let Some(over) = side.http.over() {
                return Err(Ending::limit(over.kind, over.text.clone()));
            }
            // tokio's own yield lets timers and I/O have their turn; wasmtime's
            // would go to the front of the queue.
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
        Self { store, handler: None, handled: 0 }
    }

    /// Gives the guest the fuel of an attempt, if it is limited.
    fn refuel(&mut self) -> wasmtime::Result<()> {
        match self.store.data().profile.limits.fuel {
            Some(fuel) => self.store.set_fuel(fuel),
            None => Ok(()),
        }
    }

    async fn run(
        &mut self,
        program: &Program,
        call: &Call<'_>,
        time: &str,
    ) -> Result<Result<(), GuestFailure>, (wasmtime::Error, Phase)> {
        // A store begins with its deadline in the past.
        self.store.set_epoch_deadline(1);
        self.refuel().map_err(|error| (error, Phase::Start))?;
        let handler = match &self.handler {
            Some(handler) => handler,
            None => {
                let handler = program
                    .pre
                    .instantiate_async(&mut self.store)
                    .await
                    .map_err(|error| (error, Phase::Start))?;
                // So that an attempt has the same whether its instance is fresh.
                self.refuel().map_err(|error| (error, Phase::Start))?;
                self.handler.insert(handler)
            }
        };
        let deliver_after = call.event.event.deliver_after.map(|time| time.to_string());
        let mut extensions: Vec<(&str, ExtensionValueParam<'_>)> =
            call.event.event.extensions.iter().map(extension).collect();
        if let Some(time) = &deliver_after {
            let place = extensions.partition_point(|(name, _)| *name < DELIVER_AFTER);
            extensions.insert(place, (DELIVER_AFTER, ExtensionValueParam::Text(time)));
        }
        let event = guest_event(call, time, &extensions);
        let (answer,) = bindings::handle(handler)
            .call_async(&mut self.store, (&event,))
            .await
            .map_err(|error| (error, Phase::Call))?;
        Ok(answer)
    }
}

fn guest_event<'a>(
    call: &'a Call<'_>,
    time: &'a str,
    extensions: &'a [(&'a str, ExtensionValueParam<'a>)],
) -> GuestEvent<'a> {
    let event = &call.event.event;
    GuestEvent {
        id: &event.id,
        source: &event.source,
        type_: &event.event_type,
        subject: event.subject.as_deref(),
        time,
        datacontenttype: event.datacontenttype.as_deref(),
        dataschema: event.dataschema.as_deref(),
        extensions,
        data: event.data.as_deref().unwrap_or_default(),
        partitionkey: event.partitionkey.as_deref(),
        // Positions begin at 1.
        position: call.event.position.0.unsigned_abs(),
        attempt: call.attempt.0,
    }
}

fn extension<'a>(
    (name, value): (&'a String, &'a ExtensionValue),
) -> (&'a str, ExtensionValueParam<'a>) {
    let value = match value {
        ExtensionValue::Boolean(value) => ExtensionValueParam::Boolean(*value),
        ExtensionValue::Integer(value) => ExtensionValueParam::Integer(*value),
        ExtensionValue::Text(value) => ExtensionValueParam::Text(value),
    };
    (name, value)
}

/// Emits are of the handled event's key unless they say otherwise.
fn inherit_key(emits: &mut [Event], key: Option<&str>) {
    let Some(key) = key else { return };
    for emit in emits {
        emit.partitionkey.get_or_insert_with(|| key.to_owned());
    }
}

fn guest_failure(failure: GuestFailure) -> Failure {
    match failure {
        GuestFailure::Retry(retry) => Failure {
            retry_after: retry.after_ms.map(Duration::from_millis),
            ..Failure::new(FailureKind::Retry, &retry.reason)
        },
        GuestFailure::Reject(reason) => Failure::new(FailureKind::Reject, &reason),
    }
}

/// Waits for the future until the deadline. The timer is only made for a future
/// that is not ready at once, because most are, and it would be a good part of
/// their cost.
///
/// The future is pinned by the caller: handed over, it would stand twice in the
/// caller's own, which is allocated for every event.
async fn within<F: Future>(deadline: Instant, mut future: Pin<&mut F>) -> Option<F::Output> {
    let mut timer = None;
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        let timer =
            timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.into())));
        timer.as_mut().poll(cx).map(|()| None)
    })
    .await
}
