//! `host run`: runs the handlers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::database::Expected;
use super::loading::Loader;
use super::loads::Loads;
#[cfg(feature = "build")]
use super::rebuild::Rebuilder;
use super::reload::{self, Reloader, Said};
use super::watch::Watch;
use super::{Global, database};
use crate::config::Config;
use crate::delivery::clock::SystemClock;
use crate::delivery::permits::{Cores, Permits};
use crate::runtime::{self, spawn_again_if_it_panics};
use crate::store::HostIdentity;
use crate::supervisor::{Keeper, Supervisor};
use crate::telemetry;

#[derive(Debug, Args)]
pub(super) struct Run {
    /// The settings [default: handlers.toml]
    #[arg(conflicts_with = "config")]
    file: Option<PathBuf>,
    /// Exit once nothing is left to do but what is to be delivered later
    #[arg(long)]
    drain: bool,
    /// Follow the settings and the components as they change on disk, and build
    /// handlers with a table `build` when their sources change; without it, the
    /// files are read again at SIGHUP
    #[arg(long)]
    watch: bool,
}

impl Run {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        // Before anything is counted by it.
        runtime::raise_file_limit();
        // Before anything is started, so that a signal is never missed.
        let stop = CancellationToken::new();
        let signals = stop_on_signals(stop.clone())?;
        let hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
        let path = self.file.unwrap_or_else(|| global.config_path());
        let overrides = database::overrides(global);
        // Before they are read, so that no change is missed.
        let mut watch = self.watch.then(Watch::new);
        if let Some(watch) = &mut watch {
            watch.follow([path.as_path()].into_iter()).await;
        }
        let config = Config::load(&path, &overrides)?;
        if let Some(watch) = &mut watch {
            watch.follow(reload::files(&path, &config)).await;
        }
        let loader = Loader::new(&config.compilation)?;
        #[cfg(feature = "build")]
        let rebuilder = match self.watch {
            true => {
                let rebuilder = Rebuilder::new(loader.clone(), global.log_format);
                rebuilder.build_missing(&config, &stop).await;
                Some(rebuilder)
            }
            false => None,
        };
        if stop.is_cancelled() {
            info!("stopped before anything ran");
            return Ok(());
        }
        let mut handlers = loader.files(&config).await?;
        let expected = if config.migrate { Expected::Ours } else { Expected::Tables };
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
        reload::bound(&permits, &loader, &config);
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
        let (keeping, kept) = watch::channel(reload::keeping(&config));
        let keeper = Keeper { store: Arc::clone(&store), keeping: kept };
        let upkeep = {
            let stop = stop.clone();
            let keep = move || keeper.clone().run(stop.clone());
            spawn_again_if_it_panics("what keeps the log as long as it is to be kept", keep)
        };
        let reloader = Reloader {
            path,
            overrides,
            loads: Loads::new(loader.clone(), Arc::clone(&store)),
            loader,
            store,
            started: config.clone(),
            config,
            running,
            permits,
            changes,
            keeping,
            remarks: BTreeMap::new(),
            watch,
            #[cfg(feature = "build")]
            rebuilder,
            said: Said::default(),
        };
        let reloading = reloader.run(hangup, stop.clone());
        let reloading = AbortOnDropHandle::new(tokio::spawn(reloading));
        let reloading = async {
            let ended = reloading.await;
            // It ends before the stop only if it breaks. Then the groups end in order.
            stop.cancel();
            ended
        };
        let working = async { tokio::join!(supervising, reloading) };
        tokio::pin!(working);
        let (result, reloaded) = tokio::select! {
            ended = &mut working => ended,
            Err(why) = signals => {
                stop.cancel();
                working.await.0?;
                bail!("what waits for signals broke: {why}; the groups were stopped in order");
            }
        };
        // It ends with the stop.
        drop(upkeep.await);
        result?;
        if let Err(why) = reloaded {
            bail!("what follows the settings broke: {why}; the groups were stopped in order");
        }
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

/// The first SIGTERM or Ctrl-C stops in order; a second one exits at once. The task that
/// sees to it ends only if it breaks.
fn stop_on_signals(stop: CancellationToken) -> anyhow::Result<AbortOnDropHandle<Infallible>> {
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
