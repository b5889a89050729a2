//! `host run`: runs the handlers.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::database::Expected;
use super::reload::{self, Reloader, Triggers};
use super::watch::Watch;
use super::{Global, database, loading};
use crate::config::Config;
use crate::delivery::clock::SystemClock;
use crate::delivery::permits::Permits;
use crate::sandbox::{EngineSettings, Sandbox};
use crate::store::HostIdentity;
use crate::supervisor::Supervisor;

#[derive(Debug, Args)]
pub(super) struct Run {
    /// The settings [default: handlers.toml]
    #[arg(conflicts_with = "config")]
    file: Option<PathBuf>,
    /// Exit once nothing is left to do
    #[arg(long)]
    drain: bool,
    /// Follow the settings and the components as they change on disk; without
    /// it, they are read again at SIGHUP
    #[arg(long)]
    watch: bool,
}

impl Run {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        // Before anything is started, so that a signal is never missed.
        let stop = stop_on_signals()?;
        let hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
        let files = if self.watch {
            Some(Watch::new().context("cannot watch files; run without `--watch`")?)
        } else {
            None
        };
        let path = self.file.unwrap_or_else(|| global.config_path());
        let overrides = database::overrides(global);
        let config = Config::load(&path, &overrides)?;
        let sandbox = Sandbox::new(EngineSettings::default())?;
        let handlers = loading::load(&sandbox, &config).await?;
        let expected = if config.migrate { Expected::Nothing } else { Expected::Tables };
        let opening = async {
            let store = database::connect(&config.databases(), expected).await?;
            if config.migrate {
                for name in store.migrate().await? {
                    info!(migration = name, "migrated");
                }
            }
            Ok::<_, anyhow::Error>(store)
        };
        let store = tokio::select! {
            biased;
            () = stop.cancelled() => {
                info!("stopped before anything ran");
                return Ok(());
            }
            store = opening => store?,
        };
        let host = identity();
        info!(
            version = env!("CARGO_PKG_VERSION"),
            host = host.id,
            handlers = handlers.len(),
            database = %config.database,
            "starting"
        );
        let permits = Arc::new(Permits::default());
        reload::bound(&permits, &config);
        let supervisor = Supervisor {
            store,
            host,
            clock: Arc::new(SystemClock),
            permits: Arc::clone(&permits),
            groups: handlers.iter().map(reload::group).collect(),
            grace: config.grace,
            drain: self.drain,
        };
        let (changes, to_follow) = mpsc::channel(1);
        let running =
            handlers.into_iter().map(|loaded| (loaded.settings.name.clone(), loaded)).collect();
        let reloader = Reloader { path, overrides, sandbox, config, running, permits, changes };
        let reloading = reloader.run(Triggers { hangup, files }, stop.clone());
        let (result, ()) = tokio::join!(supervisor.run_and_follow(stop, to_follow), reloading);
        result?;
        info!("stopped");
        Ok(())
    }
}

fn identity() -> HostIdentity {
    let name = rustix::system::uname();
    HostIdentity {
        id: uuid::Uuid::new_v4().to_string(),
        hostname: name.nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
    }
}

/// The first SIGTERM or Ctrl-C stops in order; a second one exits at once.
fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        let mut first = true;
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if !first {
                warn!("second signal: exiting at once; what was not settled comes again");
                std::process::exit(1);
            }
            first = false;
            info!("stopping: finishing and settling what runs; a second signal exits at once");
            stopping.cancel();
        }
    });
    Ok(stop)
}
