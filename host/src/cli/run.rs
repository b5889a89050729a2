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
use super::loading::{Loader, deployed_ones};
use super::loads::Loads;
#[cfg(feature = "build")]
use super::rebuild::Rebuilder;
use super::reload::Reloader;
use super::running::{bound, files, groups, keeping, registration};
use super::said::Said;
use super::starting::{self, Starting};
use super::watch::Watch;
use super::{AlreadySaid, Global, database};
use crate::clock::SystemClock;
use crate::config::{Component, Config};
use crate::delivery::admission::{Admission, FairExecutor};
use crate::event::HandlerName;
use crate::restart::spawn_with_restart;
use crate::runtime;
use crate::store::HostIdentity;
use crate::supervisor::{Later, RetentionTask, Supervisor};
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
            watch.follow(files(&path, &config)).await;
        }
        let loader = Loader::new(&config.compilation)?;
        #[cfg(feature = "build")]
        let loader = if self.watch { loader.for_work() } else { loader };
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
        let mut loads = Loads::new(loader.clone());
        let expected = if config.migrate { Expected::Ours } else { Expected::Tables };
        let opening = async {
            // Before the database is opened: what is refused makes none.
            let of_files = config
                .handlers
                .iter()
                .filter(|settings| matches!(settings.component, Component::File(_)));
            let mut handlers = starting::load(of_files, &[], &loader, &mut loads, &config).await?;
            let store = database::connect(&config.databases(), expected).await?;
            if config.migrate {
                for name in store.migrate().await? {
                    info!(migration = name, "migrated");
                }
            }
            loads.take_deployed_from(Arc::clone(&store));
            let deployed = deployed_ones(&config);
            if deployed.clone().next().is_some() {
                let active = store.deployed().await?;
                handlers
                    .extend(starting::load(deployed, &active, &loader, &mut loads, &config).await?);
            }
            Ok::<_, anyhow::Error>((store, handlers))
        };
        let (store, handlers) = tokio::select! {
            biased;
            () = stop.cancelled() => {
                info!("stopped before anything ran");
                return Ok(());
            }
            opened = opening => match opened {
                Err(why) if why.is::<starting::NotAllLoaded>() => bail!(AlreadySaid),
                opened => opened?,
            },
        };
        let is_loaded =
            |name: &HandlerName| handlers.iter().any(|loaded| loaded.settings.name == *name);
        let left = config.handlers.iter().filter(|settings| !is_loaded(&settings.name));
        let starting = Starting::new(left.clone().map(|settings| settings.name.clone()));
        let later = Later {
            groups: left.map(registration).collect(),
            registered: starting.registered(),
            all_given: starting.over(),
        };
        if !handlers.is_empty() {
            loader.give_way();
        }
        let host = identity();
        info!(
            version = env!("CARGO_PKG_VERSION"),
            host = host.id,
            handlers = config.handlers.len(),
            database = %config.database,
            "starting"
        );
        let admission = Arc::new(Admission::default());
        bound(&admission, &loader, &config);
        let executor = FairExecutor::start(Arc::clone(&admission))
            .context("cannot start the handlers' threads")?;
        let supervisor = Supervisor {
            store: Arc::clone(&store),
            host,
            clock: Arc::new(SystemClock),
            executor,
            groups: handlers.iter().flat_map(|loaded| groups(loaded, &loader, &store)).collect(),
            grace: config.grace,
            drain: self.drain,
        };
        let (changes, to_follow) = mpsc::channel(1);
        let supervising = async {
            let result = supervisor.run_and_follow(stop.clone(), to_follow, later).await;
            stop.cancel();
            result
        };
        let running =
            handlers.into_iter().map(|loaded| (loaded.settings.name.clone(), loaded)).collect();
        let (to_keep, kept) = watch::channel(keeping(&config));
        let retention = RetentionTask { store: Arc::clone(&store), settings: kept };
        let upkeep = {
            let stop = stop.clone();
            let keep = move || retention.clone().run(stop.clone());
            spawn_with_restart("what keeps the log as long as it is to be kept", keep)
        };
        let reloader = Reloader {
            path,
            overrides,
            loads,
            loader,
            store,
            started: config.clone(),
            config,
            running,
            admission,
            changes,
            keeping: to_keep,
            remarks: BTreeMap::new(),
            watch,
            #[cfg(feature = "build")]
            rebuilder,
            said: Said::default(),
            starting,
        };
        let reloading = reloader.run(hangup, stop.clone());
        let reloading = AbortOnDropHandle::new(tokio::spawn(reloading));
        let reloading = async {
            let ended = reloading.await;
            // It ends before the stop only if something is refused that this host was
            // started with, or if it breaks. Then the groups end in order.
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
        match reloaded {
            Ok(Ok(())) => {}
            Ok(Err(starting::NotAllLoaded)) => bail!(AlreadySaid),
            Err(why) => {
                bail!("what follows the settings broke: {why}; the groups were stopped in order")
            }
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
