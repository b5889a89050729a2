//! `host invoke`: one event through a handler, with no database.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::output::{self, short};
use super::{AlreadySaid, UsageError};
use crate::delivery::state::{BatchState, EmptyState};
use crate::delivery::{Call, Handler, Outcome};
use crate::event::{Attempt, Event, GroupName, LogEvent, Position, Tenant};
use crate::sandbox::settings::{Grants, Limits, Reuse};
use crate::sandbox::{EngineSettings, GuestLine, Sandbox};

#[derive(Debug, Args)]
pub(super) struct Invoke {
    /// The component
    component: PathBuf,
    /// A file with a CloudEvent in JSON; - is stdin
    #[arg(long, value_name = "FILE")]
    event: PathBuf,
    /// The attempt that the handler is told
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    attempt: u32,
    /// An environment variable that the handler may read, again and again
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// How long it may take, such as 5s
    #[arg(long, value_name = "DURATION")]
    timeout: Option<jiff::SignedDuration>,
    /// How much memory it may use, such as 64MiB
    #[arg(long, value_name = "SIZE")]
    memory: Option<bytesize::ByteSize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Logged {
    level: String,
    message: String,
}

impl Invoke {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let event = Event::from_json(read(&self.event)?)
            .with_context(|| self.event.display().to_string())?;
        let (limits, grants) = (self.limits()?, self.grants()?);
        let sandbox = Sandbox::new(EngineSettings::default())?;
        let handler =
            sandbox.load("invoke", self.component.clone(), limits, grants, Reuse::Event).await?;
        let lines: Arc<Mutex<Vec<Logged>>> = Arc::default();
        let sink = Arc::clone(&lines);
        let mut worker = handler.worker_with_log(Arc::new(move |line: GuestLine<'_>| {
            sink.lock().unwrap_or_else(PoisonError::into_inner).push(Logged {
                level: line.level.as_str().to_lowercase(),
                message: line.text.to_owned(),
            });
        }));
        let group: GroupName = "invoke".parse()?;
        let tenant = Tenant::none();
        let event = LogEvent { position: Position(1), deliver_to: None, event };
        let batch = BatchState::new("");
        let state = batch.attempt(Arc::new(EmptyState));
        let call = Call {
            group: &group,
            tenant: &tenant,
            event: &event,
            attempt: Attempt(self.attempt),
            state: Arc::clone(&state),
        };
        let report = worker.attempt(call).await;
        let mut written = batch;
        written.accept(&state);
        let writes: Vec<_> = written
            .into_writes()
            .into_iter()
            .map(|write| {
                let value = write.value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                json!({ "key": write.key, "value": value })
            })
            .collect();
        let lines = std::mem::take(&mut *lines.lock().unwrap_or_else(PoisonError::into_inner));
        let (outcome, failure) = match &report.outcome {
            Outcome::Success => ("success", None),
            Outcome::Failure(failure) => ("failure", Some(failure)),
            Outcome::NotRun(why) => anyhow::bail!("the handler could not be run: {why}"),
        };
        let milliseconds = report.usage.duration.as_secs_f64() * 1e3;
        if self.json {
            output::json(&json!({
                "outcome": outcome,
                "failure": failure.map(|failure| json!({
                    "kind": failure.kind.label(),
                    "text": failure.text,
                    "retry_after_ms": failure.retry_after.map(|after| after.as_millis() as u64),
                })),
                "emits": report.emits,
                "state": writes,
                "logs": lines,
                "duration_ms": milliseconds,
                "memory_bytes": report.usage.memory_bytes,
                "digest": handler.digest(),
            }))?;
        } else {
            match failure {
                None => output::line(outcome)?,
                Some(failure) => output::line(format!("{}: {}", failure.kind, failure.text))?,
            }
            for line in lines {
                output::line(format!("log    {:<5} {}", line.level, short(&line.message, 400)))?;
            }
            for emit in &report.emits {
                output::line(format!("emit   {}", emit.to_json_string()))?;
            }
            for write in writes {
                output::line(format!(
                    "state  {} = {}",
                    write["key"],
                    short(&write["value"].to_string(), 200)
                ))?;
            }
            output::line(format!(
                "took   {milliseconds:.2} ms, {}",
                bytesize::ByteSize(report.usage.memory_bytes as u64)
            ))?;
        }
        if failure.is_some() { Err(AlreadySaid.into()) } else { Ok(()) }
    }

    fn limits(&self) -> Result<Limits, UsageError> {
        let mut limits = Limits::default();
        if let Some(timeout) = self.timeout {
            limits.timeout = timeout
                .try_into()
                .map_err(|_| UsageError("--timeout is a duration such as 5s".to_owned()))?;
        }
        if let Some(memory) = self.memory {
            limits.memory_bytes = usize::try_from(memory.as_u64())
                .map_err(|_| UsageError("--memory is a size such as 64MiB".to_owned()))?;
        }
        Ok(limits)
    }

    fn grants(&self) -> Result<Grants, UsageError> {
        let mut grants = Grants::default();
        for text in &self.env {
            let Some((name, value)) = text.split_once('=') else {
                return Err(UsageError(format!("`{text}` is no variable: write NAME=VALUE")));
            };
            grants.env.insert(name.to_owned(), value.to_owned());
        }
        Ok(grants)
    }
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("cannot read stdin")?;
        return Ok(bytes);
    }
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}
