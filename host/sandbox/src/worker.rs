//! Attempts: one event through one instance, or several in one call, whatever the
//! guest does.
//!
//! The path of an event through an instance that is alive already is a few
//! microseconds, of which the guest has most; what is done for every event is
//! therefore little, and what can wait until something goes wrong waits.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Instant;

use async_trait::async_trait;
use wasmtime::{Store, UpdateDeadline};
use wasmtime_wasi_http::p2::bindings::Proxy;

use super::bindings::{self, BatchEventHandler, EventHandler};
use super::call_input::CallInput;
use super::call_result::{CallResult, EventResult};
use super::contract::Interface;
use super::ending::{self, Abort, Phase, timeout_text};
use super::entry_point::EntryPoint;
use super::fair_semaphore::HandlerId;
use super::guest_event::{deliver_after, extensions, guest_event, write_time};
use super::guest_log::{GuestLog, LogSink, LogSummary};
use super::imports::{HandlerProfile, HostState};
use super::incoming;
use super::instance_pool::{Evict, InstancePermit};
use super::program::{Inspection, Program};
use super::settings::{COMPONENT_HANDLES, Reuse};
use event_host_core::clock::LONGEST_WAIT;
use event_host_core::event::{Attempt, Event, LogEvent};
use event_host_core::failure::{Failure, FailureKind};
use event_host_core::handler::{
    BatchCall, BatchReport, Call, Handler, Outcome, Report, Usage, Worker,
};
use event_host_metrics::AliveInstance;

/// A handler that is loaded: its component, compiled and linked, and its
/// settings.
pub struct LoadedHandler {
    program: Arc<Program>,
    profile: Arc<HandlerProfile>,
    /// Never [`Reuse::Usual`].
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
    pub(super) fn new(program: Arc<Program>, profile: Arc<HandlerProfile>, reuse: Reuse) -> Self {
        let reuse = match (reuse, program.inspection.interface) {
            (Reuse::Usual, Interface::Http) => Reuse::Event,
            (Reuse::Usual, Interface::Handler | Interface::BatchHandler) => Reuse::Batch,
            (chosen, _) => chosen,
        };
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
        let HandlerProfile { line_rate, limits, .. } = &*self.profile;
        let log = GuestLog::new(Arc::clone(line_rate), limits.log_bytes, sink);
        SandboxWorker {
            program: Arc::clone(&self.program),
            log: Arc::new(log),
            profile: Arc::clone(&self.profile),
            reuse: self.reuse,
            idle: Arc::default(),
            handler_id: None,
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

    fn takes_batches(&self) -> bool {
        self.program.inspection.interface == Interface::BatchHandler
    }

    fn worker(&self) -> Box<dyn Worker> {
        Box::new(self.new_worker(None))
    }
}

struct SandboxWorker {
    program: Arc<Program>,
    profile: Arc<HandlerProfile>,
    log: Arc<GuestLog>,
    reuse: Reuse,
    /// The instance between two attempts. Empty during one, so that an attempt
    /// whose future is dropped leaves none behind.
    idle: Arc<IdleCell>,
    /// The handler of its attempts, once it has made one.
    handler_id: Option<Arc<HandlerId>>,
    /// Holds the text of an event's time; kept for its allocation.
    time: String,
}

#[async_trait]
impl Worker for SandboxWorker {
    async fn attempt(&mut self, call: Call<'_>) -> Report {
        let events = [call.event];
        let (ended, usage) = self.call(CallInput::one(&call, &events)).await;
        let (outcome, emits) = match ended {
            Ok((answer, emits)) => (answer.into_outcome(), emits),
            Err(outcome) => (outcome, Vec::new()),
        };
        Report { outcome, emits, usage }
    }

    async fn attempt_all(&mut self, call: BatchCall<'_>) -> BatchReport {
        let (ended, usage) = self.call(CallInput::all(&call)).await;
        let (outcomes, emits) = match ended {
            Ok((answer, emits)) => (answer.into_outcomes(), emits),
            Err(outcome) => (vec![outcome; call.events.len()], Vec::new()),
        };
        BatchReport { outcomes, emits, usage }
    }

    fn end_batch(&mut self) {
        if self.reuse == Reuse::Batch {
            self.idle.evict();
        }
    }
}

/// Holds an idle instance between two attempts.
#[derive(Default)]
struct IdleCell(Mutex<Option<Instance>>);

impl IdleCell {
    fn take(&self) -> Option<Instance> {
        // Whatever panicked did so outside.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn keep(&self, instance: Instance) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(instance);
    }
}

impl Evict for IdleCell {
    fn evict(&self) -> bool {
        self.take().is_some()
    }
}

/// The result of a call; `None` when it took too long.
type Called = Option<Result<CallResult, (wasmtime::Error, Phase)>>;

/// How a call ended: with an answer and what was emitted, or alike for all events.
type Ended = Result<(CallResult, Vec<Event>), Outcome>;

impl SandboxWorker {
    async fn call(&mut self, input: CallInput<'_>) -> (Ended, Usage) {
        let kept = self.idle.take();
        let permit = match &kept {
            // Before its time begins: a worker that waits for others' instances does nothing.
            None => self.acquire_instance(&input).await,
            Some(_) => None,
        };
        let started = Instant::now();
        // Kept representable, whatever the settings.
        let deadline = started + self.profile.limits.timeout.min(LONGEST_WAIT);

        let mut instance = match kept {
            Some(instance) => instance,
            None => {
                // What an attempt that was dropped had written.
                self.log.discard();
                Instance::new(&self.program, &self.profile, &self.log, permit)
            }
        };
        let fresh = instance.handler.is_none();
        instance.store.data_mut().begin(&input, deadline);

        let called = {
            let _ticking = self.program.ticker.guest_runs();
            let running = pin!(instance.run(&self.program, &input, &mut self.time));
            within(deadline, running).await
        };

        let LogSummary { lines: log_lines, last } = self.log.end();
        let host = instance.store.data();
        let memory_bytes = host.limiter.memory_bytes();
        let ((emits, emit_bytes), http_requests) = (host.emitted(), host.http.requests());
        let ended = self.settle(called, instance, &input, &last);
        let duration = started.elapsed();
        let usage =
            Usage { duration, memory_bytes, fresh, log_lines, emits, emit_bytes, http_requests };
        (ended, usage)
    }

    /// Waits for room in the instance pool, where there is one.
    async fn acquire_instance(&mut self, input: &CallInput<'_>) -> Option<InstancePermit> {
        let pool = self.program.pool.as_ref()?;
        let handler_id = match &self.handler_id {
            Some(handler_id) => handler_id,
            None => {
                let (tenant, handler) = (input.tenant.clone(), self.profile.name.clone());
                let handler_id = self.handler_id.insert(Arc::new(HandlerId { tenant, handler }));
                let idle: Arc<dyn Evict> = Arc::<IdleCell>::clone(&self.idle);
                pool.register(handler_id, Arc::downgrade(&idle));
                handler_id
            }
        };
        Some(pool.acquire(handler_id, self.program.needs).await)
    }

    /// Tells how a call ended, and keeps its instance if it may live on.
    fn settle(
        &mut self,
        called: Called,
        mut instance: Instance,
        input: &CallInput<'_>,
        last: &[u8],
    ) -> Ended {
        let host = instance.store.data_mut();
        let abort = host.http.abort().cloned();
        let attempt = host.end();
        // Requests run beside the guest, which may have answered whatever since.
        if let Some(abort) = abort {
            return Err(abort.outcome());
        }
        let failed = |kind, text: &str| Err(Outcome::Failure(Failure::new(kind, text)));
        match called {
            Some(Ok(CallResult::Each(all))) if all.len() != input.events.len() => {
                let (results, events) = (all.len(), input.events.len());
                failed(
                    FailureKind::BadAnswer,
                    &format!("answered {results} results for {events} events"),
                )
            }
            Some(Ok(answer)) if answer.is_success() => {
                self.keep(instance, input.events.len());
                let mut emits = attempt.map(|u| u.emits).unwrap_or_default();
                inherit_key(&mut emits, input.common_key());
                Ok((answer, emits))
            }
            Some(Ok(answer)) => Ok((answer, Vec::new())),
            Some(Err((error, phase))) => {
                let HandlerProfile { limits, stack_bytes, .. } = &*self.profile;
                let outcome = ending::outcome(&error, phase, limits, *stack_bytes);
                Err(ending::with_last_words(outcome, last))
            }
            None => {
                let limits = &self.profile.limits;
                // A store that hangs is not the handler's fault; one that is
                // asked all the time is.
                let waited = attempt.and_then(|u| u.store_asked).map(|since| since.elapsed());
                if waited.is_some_and(|waited| waited >= limits.timeout / 2) {
                    let why = "the store did not answer a read of state in time";
                    Err(Outcome::NotRun(why.to_owned()))
                } else {
                    failed(FailureKind::Timeout, &timeout_text(limits))
                }
            }
        }
    }

    fn keep(&mut self, mut instance: Instance, events: usize) {
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        instance.handled = instance.handled.saturating_add(events);
        let lives_on = match self.reuse {
            Reuse::Usual | Reuse::Batch => true,
            Reuse::Event => false,
            Reuse::Events(most) => instance.handled < most,
        };
        let is_crowded = matches!(instance.handler, Some(Exports::Http(_)))
            && incoming::is_crowded(instance.store.data_mut());
        if lives_on && !is_crowded {
            self.idle.keep(instance);
            // A worker that began to wait before this one was idle has not seen it.
            if self.program.pool.as_ref().is_some_and(|pool| pool.has_waiters()) {
                self.idle.evict();
            }
        }
    }
}

/// An instance, and how many events it has handled.
struct Instance {
    store: Store<HostState>,
    /// `None` until its first attempt has made it: start functions run within
    /// an attempt's limits too.
    handler: Option<Exports>,
    handled: u32,
    _counted: AliveInstance,
    /// Released once the rest is gone.
    _permit: Option<InstancePermit>,
}

/// The functions of an instance.
enum Exports {
    Handler(EventHandler),
    BatchHandler(BatchEventHandler),
    Http(Proxy),
}

impl Exports {
    async fn of(program: &Program, store: &mut Store<HostState>) -> wasmtime::Result<Self> {
        Ok(match &program.entry_point {
            EntryPoint::Handler(pre) => Self::Handler(pre.instantiate_async(store).await?),
            EntryPoint::BatchHandler(pre) => {
                Self::BatchHandler(pre.instantiate_async(store).await?)
            }
            EntryPoint::Http(pre) => Self::Http(pre.instantiate_async(store).await?),
        })
    }
}

impl Instance {
    fn new(
        program: &Program,
        profile: &Arc<HandlerProfile>,
        log: &Arc<GuestLog>,
        permit: Option<InstancePermit>,
    ) -> Self {
        let host = HostState::new(Arc::clone(profile), Arc::clone(log));
        let mut store = Store::new(program.entry_point.engine(), host);
        store.limiter(|host| host);
        store.set_hostcall_fuel(profile.limits.host_call_bytes);
        store.set_max_component_handles(COMPONENT_HANDLES);
        store.epoch_deadline_callback(|mut store| {
            let host = store.data_mut();
            // The timer may be starved by guests on every thread; this is not.
            if host.running()?.deadline <= Instant::now() {
                return Err(Abort::timeout(&host.profile.limits));
            }
            // Its text is the failure's, which is told in the end.
            if let Some(abort) = host.http.abort() {
                return Err(abort.clone().into());
            }
            // tokio's own yield lets timers and I/O have their turn; wasmtime's
            // would go to the front of the queue.
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
        let counted = profile.metrics.instance(profile.limits.memory_bytes);
        Self { store, handler: None, handled: 0, _counted: counted, _permit: permit }
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
        input: &CallInput<'_>,
        time: &mut String,
    ) -> Result<CallResult, (wasmtime::Error, Phase)> {
        // A store begins with its deadline in the past.
        self.store.set_epoch_deadline(1);
        self.refuel().map_err(|error| (error, Phase::Start))?;
        let handler = match &self.handler {
            Some(handler) => handler,
            None => {
                let handler = Exports::of(program, &mut self.store)
                    .await
                    .map_err(|error| (error, Phase::Start))?;
                // So that an attempt has the same whether its instance is fresh.
                self.refuel().map_err(|error| (error, Phase::Start))?;
                self.handler.insert(handler)
            }
        };
        let in_call = |error| (error, Phase::Call);
        match (handler, input.events) {
            (Exports::Handler(handler), [event]) => {
                write_time(time, event);
                let deliver_after = deliver_after(event);
                let extensions = extensions(event, deliver_after.as_deref());
                let event = guest_event(event, input.attempt, time, &extensions);
                let (answer,) = bindings::handle(handler)
                    .call_async(&mut self.store, (&event,))
                    .await
                    .map_err(in_call)?;
                Ok(CallResult::One(answer))
            }
            // Apart, so that the future of a single event does not carry it.
            (Exports::BatchHandler(handler), events) => {
                let answers = call_batch(&mut self.store, handler, events, input.attempt);
                Box::pin(answers).await.map(CallResult::Each).map_err(in_call)
            }
            (Exports::Http(guest), [event]) => {
                let answer = incoming::call(&mut self.store, guest, input, event);
                Box::pin(answer).await.map(CallResult::One).map_err(in_call)
            }
            // Nobody asks for it: `Handler::takes_batches` says no.
            (Exports::Handler(_) | Exports::Http(_), _) => Err(in_call(Abort::limit(
                FailureKind::BadAnswer,
                "the handler takes one event a call".to_owned(),
            ))),
        }
    }
}

async fn call_batch(
    store: &mut Store<HostState>,
    handler: &BatchEventHandler,
    events: &[&LogEvent],
    attempt: Attempt,
) -> wasmtime::Result<Vec<EventResult>> {
    let texts: Vec<_> =
        events.iter().map(|event| (event.event.time.to_string(), deliver_after(event))).collect();
    let extensions: Vec<_> = events
        .iter()
        .zip(&texts)
        .map(|(event, (_, deliver_after))| extensions(event, deliver_after.as_deref()))
        .collect();
    let events: Vec<_> = events
        .iter()
        .zip(texts.iter().zip(&extensions))
        .map(|(event, ((time, _), extensions))| guest_event(event, attempt, time, extensions))
        .collect();
    handler.event_host_handler_batch_handler().call_handle_batch(store, &events).await
}

/// Emits are of the handled event's key, or of all events' of a batch, unless they
/// say otherwise.
fn inherit_key(emits: &mut [Event], key: Option<&str>) {
    let Some(key) = key else { return };
    for emit in emits {
        emit.partitionkey.get_or_insert_with(|| key.to_owned());
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
