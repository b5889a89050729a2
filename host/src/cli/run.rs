//! `host run`: runs the handlers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::database::Expected;
use super::loading::Loader;
use super::reload::{self, Reloader};
use super::watch::Watch;
use super::{Global, database};
use crate::config::Config;
use crate::delivery::clock::SystemClock;
use crate::delivery::permits::{Cores, Permits};
use crate::store::HostIdentity;
use crate::supervisor::{Keeper, Supervisor};

#[derive(Debug, Args)]
pub(super) struct Run {
    /// The settings [default: handlers.toml]
    #[arg(conflicts_with = "config")]
    file: Option<PathBuf>,
    /// Exit once nothing is left to do but what is to be delivered later
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
        let loader = Loader::new()?;
        let mut handlers = loader.files(&config).await?;
        let expected = if config.migrate { Expected::Nothing } else { Expected::Tables };
        let opening = async {
            let store = database::connect(&config.databases(), expected).await?;
            if config.migrate {
                for name in store.migrate().await? {
                    info!(migration = name, "migrated");
                }
            }
            let deployed = loader.deployed(&config, &*store).await?;
            Ok::<_, anyhow::Error>((store, deployed))
        };
        let (store, deployed) = tokio::select! {
            biased;
            () = stop.cancelled() => {
                info!("stopped before anything ran");
                return Ok(());
            }
            opened = opening => opened?,
        };
        handlers.extend(deployed);
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
        let cores =
            Cores::start(Arc::clone(&permits)).context("cannot start the handlers' threads")?;
        let supervisor = Supervisor {
            store: Arc::clone(&store),
            host,
            clock: Arc::new(SystemClock),
            cores,
            groups: handlers
                .iter()
                .flat_map(|loaded| reload::groups(loaded, &loader, &store))
                .collect(),
            grace: config.grace,
            drain: self.drain,
        };
        let (changes, to_follow) = mpsc::channel(1);
        let supervising = async {
            let result = supervisor.run_and_follow(stop.clone(), to_follow).await;
            stop.cancel();
            result
        };
        let running =
            handlers.into_iter().map(|loaded| (loaded.settings.name.clone(), loaded)).collect();
        let (retention, kept) = watch::channel(config.retention);
        let keeping = Keeper { store: Arc::clone(&store), retention: kept }.run(stop.clone());
        let reloader = Reloader {
            path,
            overrides,
            loader,
            store,
            config,
            running,
            permits,
            changes,
            retention,
            remarks: BTreeMap::new(),
        };
        let reloading = reloader.run(hangup, files, stop.clone());
        let (result, (), ()) = tokio::join!(supervising, reloading, keeping);
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
