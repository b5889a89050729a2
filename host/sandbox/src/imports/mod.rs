//! What a handler may call: one file a capability.
//!
//! Each capability answers from the attempt that is under way, and keeps what
//! it collects there, so that nothing of one attempt reaches the next.

mod clocks;
mod config;
mod context;
mod http;
mod log;
mod memory;
mod outbox;
mod state;
pub(super) mod wasi;

pub(super) use config::ConfigValues;
pub(super) use outbox::empty_message;
#[cfg(test)]
pub(super) use outbox::tests::event_of;

use std::sync::Arc;
use std::time::Instant;

use wasmtime::component::{HasSelf, Linker, ResourceTable};
use wasmtime_wasi::WasiCtx;

use super::bindings::EventHandler;
use super::call_input::CallInput;
use super::ending::Abort;
use super::guest_log::{GuestLog, LineRate};
use super::http::{Egress, Http};
use super::limits::{InstanceLimits, resource_table};
use super::settings::{Grants, HttpPath, Limits};
use event_host_core::event::{Event, GroupName, Position, Tenant};
use event_host_core::handler::state::AttemptState;
use event_host_metrics::HandlerMetrics;

/// One handler's name, and what it may use and reach.
#[derive(Debug)]
pub(super) struct HandlerProfile {
    pub(super) name: String,
    pub(super) limits: Limits,
    pub(super) grants: Grants,
    /// What it reads through `wasi:config`.
    pub(super) config: ConfigValues,
    /// The way out for its HTTP requests.
    pub(super) egress: Arc<Egress>,
    /// How many lines it may write.
    pub(super) line_rate: Arc<LineRate>,
    /// Where it gets its events, if it takes them as HTTP requests.
    pub(super) http_path: HttpPath,
    /// The guest's stack, which is the engine's setting.
    pub(super) stack_bytes: usize,
    /// What it counts with.
    pub(super) metrics: HandlerMetrics,
}

/// The host's state of one instance.
pub(super) struct HostState {
    pub(super) profile: Arc<HandlerProfile>,
    pub(super) limiter: InstanceLimits,
    pub(super) log: Arc<GuestLog>,
    /// Made when the guest first asks for it: most handlers never do.
    wasi: Option<WasiCtx>,
    pub(super) http: Http,
    pub(super) resources: ResourceTable,
    attempt: Option<RunningAttempt>,
}

/// The attempt that runs.
pub(super) struct RunningAttempt {
    group: GroupName,
    tenant: Tenant,
    /// Of its last event: no other call that is settled has it too.
    position: Position,
    is_replay: bool,
    is_late: bool,
    pub(super) deadline: Instant,
    state: Arc<AttemptState>,
    state_writes: usize,
    state_bytes: usize,
    /// Since when the guest waits for the store.
    pub(super) store_asked: Option<Instant>,
    pub(super) emits: Vec<Event>,
    emit_bytes: usize,
}

impl HostState {
    pub(super) fn new(profile: Arc<HandlerProfile>, log: Arc<GuestLog>) -> Self {
        Self {
            limiter: InstanceLimits::new(&profile.limits),
            http: Http::new(Arc::clone(&profile.egress), Arc::clone(&log)),
            log,
            wasi: None,
            resources: resource_table(),
            attempt: None,
            profile,
        }
    }

    /// Begins an attempt. What an attempt before left behind is gone.
    pub(super) fn begin(&mut self, input: &CallInput<'_>, deadline: Instant) {
        self.limiter.begin();
        self.http.begin(input);
        self.attempt = Some(RunningAttempt {
            group: input.group.clone(),
            tenant: input.tenant.clone(),
            position: input.events.last().map_or(Position::ZERO, |event| event.position),
            is_replay: input.events.iter().any(|event| event.deliver_to.is_some()),
            is_late: input.is_late,
            deadline,
            state: Arc::clone(input.state),
            state_writes: 0,
            state_bytes: 0,
            store_asked: None,
            emits: Vec::new(),
            emit_bytes: 0,
        });
    }

    /// Ends the attempt and gives what it collected.
    pub(super) fn end(&mut self) -> Option<RunningAttempt> {
        self.http.end();
        self.attempt.take()
    }

    /// How many events the attempt has emitted, and how many bytes they have.
    pub(super) fn emitted(&self) -> (usize, usize) {
        self.attempt.as_ref().map_or((0, 0), |attempt| (attempt.emits.len(), attempt.emit_bytes))
    }

    /// The attempt that runs.
    pub(super) fn running(&mut self) -> wasmtime::Result<&mut RunningAttempt> {
        self.attempt.as_mut().ok_or_else(outside_of_an_attempt)
    }

    /// The attempt that runs, with its limits.
    fn limited(&mut self) -> wasmtime::Result<(&mut RunningAttempt, &Limits)> {
        let attempt = self.attempt.as_mut().ok_or_else(outside_of_an_attempt)?;
        Ok((attempt, &self.profile.limits))
    }
}

#[cold]
fn outside_of_an_attempt() -> wasmtime::Error {
    Abort::not_run("the guest ran outside of an attempt".to_owned())
}

/// Links everything that a handler may import.
pub(super) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    EventHandler::add_to_linker::<_, HasSelf<HostState>>(linker, |host| host)?;
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    config::link(linker)?;
    http::link(linker)
}

impl super::bindings::event_host::handler::types::Host for HostState {}
