//! `host serve`: serves by HTTP, without running handlers.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::database::Wait;
use super::http::Serving;
use super::run::stop_on_signals;
use super::{Global, database, say};
use crate::app::serve::ServingHost;
use crate::runtime;

#[derive(Debug, Args)]
pub(super) struct Serve {
    /// The settings [default: handlers.toml]
    #[arg(conflicts_with = "config")]
    file: Option<PathBuf>,
    #[command(flatten)]
    serving: Serving,
    #[command(flatten)]
    wait: Wait,
    /// Follow the settings as they change on disk; without it, they are read again at
    /// SIGHUP
    #[arg(long)]
    watch: bool,
}

impl Serve {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        // Before anything is counted by it.
        runtime::raise_file_limit();
        // Before anything is started, so that a signal is never missed.
        let stop = CancellationToken::new();
        let stopper = stop_on_signals(stop.clone())?;
        let hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
        let host = ServingHost {
            path: self.file.unwrap_or_else(|| global.config_path()),
            overrides: self.serving.over(database::overrides(global)),
            wait: self.wait.wait,
            watch: self.watch,
            say: say(),
        };
        host.run(stop, stopper, hangup).await
    }
}
