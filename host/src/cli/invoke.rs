//! `host invoke`: one event through a handler, with no database.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;

use super::{AlreadySaid, UsageError, attempt, output, progress};
use crate::app::attempt::Attempt;
use crate::app::engine::engine_settings;
use crate::config::Compilation;
use event_host_core::event::{Event, LogEvent, Position, Tenant};
use event_host_core::handler::state::EmptyState;
use event_host_sandbox::Sandbox;
use event_host_sandbox::settings::{Clocks, Grants, HttpRule, Limits, Reuse};

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
    /// A host that the handler may send HTTP requests to, such as https://api.example.com, again
    /// and again
    #[arg(long, value_name = "HOST")]
    http: Vec<HttpRule>,
    /// How exactly it is told the time: coarse, to the millisecond, or fine
    #[arg(long, value_name = "RESOLUTION", default_value = "coarse")]
    clocks: Clocks,
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

impl Invoke {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let event = Event::from_json(read(&self.event)?)
            .with_context(|| self.event.display().to_string())?;
        let (limits, grants) = (self.limits()?, self.grants()?);
        let sandbox = Sandbox::new(engine_settings(&Compilation::default()))?;
        let _told = progress::follow(&sandbox, progress::Called::ByOrigin);
        let handler =
            sandbox.load("invoke", self.component.clone(), limits, grants, Reuse::Event).await?;
        let event = LogEvent { position: Position(1), deliver_to: None, digest: None, event };
        let attempted = Attempt {
            group: &"invoke".parse()?,
            tenant: &Tenant::none(),
            event: &event,
            number: self.attempt,
            state: Arc::new(EmptyState),
        }
        .run(&handler)
        .await?;
        if self.json {
            output::json(&attempt::to_json(&attempted))?;
        } else {
            attempt::print(&attempted)?;
        }
        if attempted.succeeded() { Ok(()) } else { Err(AlreadySaid.into()) }
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
        let http = self.http.iter().cloned().collect();
        let mut grants = Grants { clocks: self.clocks, http, ..Grants::default() };
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
