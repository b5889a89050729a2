//! `host run`: runs the handlers.

use std::convert::Infallible;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::database::Wait;
use super::http::Serving;
use super::{Global, database, progress, say};
use crate::app::host::Host;
use crate::runtime;
use crate::telemetry;
#[cfg(feature = "build")]
use crate::telemetry::LogFormat;

#[derive(Debug, Args)]
pub(super) struct Run {
    /// The settings [default: handlers.toml]
    #[arg(conflicts_with = "config")]
    file: Option<PathBuf>,
    /// Exit once nothing is left to do but what is to be delivered later
    #[arg(long)]
    drain: bool,
    #[command(flatten)]
    wait: Wait,
    /// Follow the settings and the components as they change on disk, and build
    /// handlers with a table `build` when their sources change; without it, the
    /// files are read again at SIGHUP
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    serving: Serving,
}

impl Run {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        // Before anything is counted by it.
        runtime::raise_file_limit();
        // Before anything is started, so that a signal is never missed.
        let stop = CancellationToken::new();
        let stopper = stop_on_signals(stop.clone())?;
        let hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
        let host = Host {
            path: self.file.unwrap_or_else(|| global.config_path()),
            overrides: self.serving.over(database::overrides(global)),
            drain: self.drain,
            wait: self.wait.wait,
            watch: self.watch,
            say: say(),
            show: progress::by_handler,
            #[cfg(feature = "build")]
            build_output: match global.log_format {
                LogFormat::Text => Some(say()),
                LogFormat::Json => None,
            },
        };
        host.run(stop, stopper, hangup).await
    }
}

/// The first SIGTERM or Ctrl-C stops in order; a second one exits at once. The task that
/// sees to it ends only if it breaks.
pub(super) fn stop_on_signals(
    stop: CancellationToken,
) -> anyhow::Result<AbortOnDropHandle<Infallible>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        let mut first = true;
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if !first {
                warn!("second signal: exiting at once; what was not settled comes again");
                #[cfg(feature = "build")]
                crate::build::kill_all();
                telemetry::flush();
                std::process::exit(1);
            }
            first = false;
            info!("stopping: finishing and settling what runs; a second signal exits at once");
            stop.cancel();
        }
    })))
}
