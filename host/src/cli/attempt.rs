//! One attempt that nothing is recorded of, and what it did: for `invoke` and
//! `dlq reproduce`.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};

use super::output::{self, short};
use crate::event::{self, Event, GroupName, LogEvent, Tenant};
use crate::failure::Failure;
use crate::foreign;
use crate::handler::state::{BatchState, CommittedState};
use crate::handler::{Call, Handler, Outcome, Usage};
use crate::sandbox::{GuestLine, LoadedHandler};
use crate::store::StateWrite;

/// What comes before each line but the first of a failure's text.
const FURTHER: &str = "       ";

/// What the handler is given.
pub(super) struct Attempt<'a> {
    /// The group that it is told.
    pub(super) group: &'a GroupName,
    /// The tenant that it is told.
    pub(super) tenant: &'a Tenant,
    /// The event.
    pub(super) event: &'a LogEvent,
    /// Which attempt of it, from 1 on.
    pub(super) number: u32,
    /// The state that it finds.
    pub(super) state: Arc<dyn CommittedState>,
}

/// What the handler did.
pub(super) struct Attempted {
    digest: String,
    /// None for a success.
    failure: Option<Failure>,
    logs: Vec<Logged>,
    emits: Vec<Event>,
    writes: Vec<StateWrite>,
    usage: Usage,
}

#[derive(Debug, Serialize)]
struct Logged {
    level: String,
    message: String,
}

impl Attempt<'_> {
    /// Makes it.
    ///
    /// # Errors
    /// When the handler could not be run, or not to its end, for a reason that is
    /// not its own.
    pub(super) async fn of(self, handler: &LoadedHandler) -> anyhow::Result<Attempted> {
        let logs: Arc<Mutex<Vec<Logged>>> = Arc::default();
        let sink = Arc::clone(&logs);
        let mut worker = handler.worker_with_log(Arc::new(move |line: GuestLine<'_>| {
            sink.lock().unwrap_or_else(PoisonError::into_inner).push(Logged {
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
    pub(super) fn succeeded(&self) -> bool {
        self.failure.is_none()
    }

    fn outcome(&self) -> &'static str {
        if self.succeeded() { "success" } else { "failure" }
    }

    fn milliseconds(&self) -> f64 {
        self.usage.duration.as_secs_f64() * 1e3
    }

    /// All of it.
    pub(super) fn to_json(&self) -> Value {
        let state = |write: &StateWrite| json!({ "key": write.key, "value": text(write) });
        json!({
            "outcome": self.outcome(),
            "failure": self.failure.as_ref().map(|failure| json!({
                "kind": failure.kind.label(),
                "text": failure.text,
                "retry_after_ms": failure.retry_after.map(|after| after.as_millis() as u64),
            })),
            "emits": self.emits,
            "state": self.writes.iter().map(state).collect::<Vec<_>>(),
            "logs": self.logs,
            "duration_ms": self.milliseconds(),
            "memory_bytes": self.usage.memory_bytes,
            "digest": self.digest,
        })
    }

    /// All of it, a line for each thing.
    pub(super) fn print(&self) -> io::Result<()> {
        match &self.failure {
            None => output::line(self.outcome())?,
            Some(failure) => {
                let text = foreign::with_further_lines(&failure.text, FURTHER);
                output::line(format!("{}: {text}", failure.kind))?;
            }
        }
        for line in &self.logs {
            output::line(format!("log    {:<5} {}", line.level, short(&line.message, 400)))?;
        }
        for emit in &self.emits {
            output::line(format!("emit   {}", foreign::json(&emit.to_json_string())))?;
        }
        for write in &self.writes {
            output::line(format!(
                "state  {} = {}",
                foreign::json(&json!(write.key).to_string()),
                short(&foreign::json(&json!(text(write)).to_string()), 200)
            ))?;
        }
        output::line(format!(
            "took   {:.2} ms, {}",
            self.milliseconds(),
            bytesize::ByteSize(self.usage.memory_bytes as u64)
        ))
    }
}

fn text(write: &StateWrite) -> Option<String> {
    write.value.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}
