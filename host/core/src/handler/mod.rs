//! Handlers, as those who call them know them: what runs them implements [`Handler`], and
//! delivery knows no more of it.
//!
//! An attempt is given a [`Call`], which brings the group's [`state`], and answers with a
//! [`Report`].

pub mod state;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::digest::Digest;
use crate::event::{Attempt, Event, GroupName, LogEvent, Tenant};
use crate::failure::{Failure, FailureKind};
use state::AttemptState;

/// Code that handles events, loaded and ready. Shared by everything that runs
/// the same component with the same settings.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// The component's digest: `sha256:` and hex digits.
    fn digest(&self) -> &str;

    /// The memory that one instance may take, in bytes; 0 for code that takes
    /// none of its own.
    fn memory_bytes(&self) -> usize {
        0
    }

    /// How many keys the state of its group may have; none for code that is
    /// trusted with it.
    fn state_keys(&self) -> Option<u64> {
        None
    }

    /// Whether one call may handle several events.
    fn takes_batches(&self) -> bool {
        false
    }

    /// Whether an event that names this component can be attempted as it is. If not,
    /// [`Handler::prepare`] comes first.
    fn has(&self, _digest: &Digest) -> bool {
        true
    }

    /// Gets ready for events that name this component, or finds out that it cannot be
    /// run, which the attempt then says. May take as long as it takes to compile one: to
    /// be waited for while nothing is held that others wait for. The future may be
    /// dropped at any await.
    ///
    /// # Errors
    /// When nobody can tell at this moment, as when the database is away.
    async fn prepare(&self, _digest: &Digest) -> Result<(), String> {
        Ok(())
    }

    /// Something that makes attempts, one at a time. Cheap: instances are made
    /// when they are needed.
    fn worker(&self) -> Box<dyn Worker>;
}

/// Makes attempts, one at a time, and keeps the instance between them for as
/// long as its settings say.
///
/// A future of [`Worker::attempt`] or [`Worker::attempt_all`] may be dropped at any
/// await: the attempt then never happened, and the next one gets a fresh instance.
#[async_trait]
pub trait Worker: Send {
    /// Calls the handler with one event.
    async fn attempt(&mut self, call: Call<'_>) -> Report;

    /// Calls the handler once with several events. To be asked only of the workers
    /// of a handler that [takes batches](Handler::takes_batches); others refuse, and
    /// have each event attempted by itself.
    async fn attempt_all(&mut self, call: BatchCall<'_>) -> BatchReport {
        let refused = Failure::new(FailureKind::BadAnswer, "the handler takes one event a call");
        BatchReport {
            outcomes: vec![Outcome::Failure(refused); call.events.len()],
            emits: Vec::new(),
            usage: Usage::default(),
        }
    }

    /// Tells that a batch has ended.
    fn end_batch(&mut self);
}

/// What one attempt is given.
#[derive(Clone)]
pub struct Call<'a> {
    /// The group on whose behalf.
    pub group: &'a GroupName,
    /// Who owns the event and the handler.
    pub tenant: &'a Tenant,
    /// The event. An event that is addressed to the group is a replay.
    pub event: &'a LogEvent,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// The event was committed after the group had passed it.
    pub is_late: bool,
    /// The group's state as this attempt sees it; takes its writes.
    pub state: Arc<AttemptState>,
}

/// What one call with several events is given.
#[derive(Clone)]
pub struct BatchCall<'a> {
    /// The group on whose behalf.
    pub group: &'a GroupName,
    /// Who owns the events and the handler.
    pub tenant: &'a Tenant,
    /// The events, at least one, in the order of the log. For each it is the first
    /// attempt, and none of them is a replay.
    pub events: &'a [&'a LogEvent],
    /// The group's state as this call sees it; takes its writes.
    pub state: Arc<AttemptState>,
}

/// What one attempt did.
#[derive(Debug)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// What it emitted, complete with id, source and time. To be dropped unless
    /// the outcome is success.
    pub emits: Vec<Event>,
    /// What it used.
    pub usage: Usage,
}

impl AsRef<Usage> for Report {
    fn as_ref(&self) -> &Usage {
        &self.usage
    }
}

/// What one call with several events did.
#[derive(Debug)]
pub struct BatchReport {
    /// How it ended for each event, in their order. A call that broke off ended
    /// alike for all of them.
    pub outcomes: Vec<Outcome>,
    /// What it emitted, complete with id, source and time. To be dropped unless
    /// every outcome is success, because nobody can tell which event caused it.
    pub emits: Vec<Event>,
    /// What the call used.
    pub usage: Usage,
}

impl AsRef<Usage> for BatchReport {
    fn as_ref(&self) -> &Usage {
        &self.usage
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The event is handled.
    Success,
    /// The handler failed; counts as an attempt.
    Failure(Failure),
    /// The handler could not be run, or not to its end, for a reason that is
    /// not its own, such as a database that is gone. Counts for nothing.
    NotRun(String),
}

/// What an attempt used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Wall-clock time of the call, with the making of an instance if it was
    /// fresh.
    pub duration: Duration,
    /// The instance's memories together, in bytes, at the end.
    pub memory_bytes: usize,
    /// Whether the instance was made for this attempt.
    pub fresh: bool,
    /// Lines that the guest logged.
    pub log_lines: u32,
    /// Events that it emitted, whatever became of them.
    pub emits: usize,
    /// Their data and attributes together, in bytes.
    pub emit_bytes: usize,
    /// HTTP requests that it made, those that were denied included.
    pub http_requests: usize,
}
