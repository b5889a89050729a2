//! One attempt that nothing is recorded of.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use event_host_core::event::{self, Event, GroupName, LogEvent, Tenant};
use event_host_core::failure::Failure;
use event_host_core::handler::state::{BatchState, CommittedState};
use event_host_core::handler::{Call, Handler, Outcome, Usage};
use event_host_sandbox::{GuestLine, LoadedHandler};
use event_host_store::StateWrite;

/// The input of one attempt.
pub(crate) struct Attempt<'a> {
    /// The group that it is told.
    pub(crate) group: &'a GroupName,
    /// The tenant that it is told.
    pub(crate) tenant: &'a Tenant,
    /// The event.
    pub(crate) event: &'a LogEvent,
    /// Which attempt of it, from 1 on.
    pub(crate) number: u32,
    /// The state that it finds.
    pub(crate) state: Arc<dyn CommittedState>,
}

/// What the handler did.
pub(crate) struct Attempted {
    /// The component's digest.
    pub(crate) digest: String,
    /// `None` for a success.
    pub(crate) failure: Option<Failure>,
    pub(crate) logs: Vec<LoggedLine>,
    pub(crate) emits: Vec<Event>,
    pub(crate) writes: Vec<StateWrite>,
    pub(crate) usage: Usage,
}

/// A line that the handler logged.
#[derive(Debug, Serialize)]
pub(crate) struct LoggedLine {
    pub(crate) level: String,
    pub(crate) message: String,
}

impl Attempt<'_> {
    /// Makes the attempt.
    ///
    /// # Errors
    /// When the handler could not be run, or not to its end, for a reason that is
    /// not its own.
    pub(crate) async fn run(self, handler: &LoadedHandler) -> anyhow::Result<Attempted> {
        let logs: Arc<Mutex<Vec<LoggedLine>>> = Arc::default();
        let sink = Arc::clone(&logs);
        let mut worker = handler.worker_with_log(Arc::new(move |line: GuestLine<'_>| {
            sink.lock().unwrap_or_else(PoisonError::into_inner).push(LoggedLine {
                level: line.level.as_str().to_lowercase(),
                message: line.text.to_owned(),
            });
        }));
        let batch = BatchState::new("");
        let state = batch.attempt(self.state);
        let call = Call {
            group: self.group,
            tenant: self.tenant,
            event: self.event,
            attempt: event::Attempt(self.number),
            is_late: false,
            state: Arc::clone(&state),
        };
        let report = worker.attempt(call).await;
        let written = batch.accept(&state);
        let failure = match report.outcome {
            Outcome::Success => None,
            Outcome::Failure(failure) => Some(failure),
            Outcome::NotRun(why) => anyhow::bail!("the handler could not be run: {why}"),
        };
        let logs = std::mem::take(&mut *logs.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Attempted {
            digest: handler.digest().to_owned(),
            failure,
            logs,
            emits: report.emits,
            writes: written.into_iter().map(|accepted| accepted.write).collect(),
            usage: report.usage,
        })
    }
}

impl Attempted {
    /// Whether the handler handled the event.
    pub(crate) fn succeeded(&self) -> bool {
        self.failure.is_none()
    }
}
