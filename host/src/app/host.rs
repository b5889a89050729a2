//! A running host: the first load, the supervisor, the retention of the log, and the
//! reloads, from the start to the stop.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use super::database::{self, Expected};
use super::http::Http;
use super::loading::{Loaded, Loader, deployed_ones};
use super::loads::Loads;
use super::notes::Notes;
use super::overview::OverviewTask;
use super::problems::Problems;
#[cfg(feature = "build")]
use super::rebuild::Rebuilder;
use super::reload::Reloader;
use super::running::{
    apply_quotas, files, groups, registration, retention, says_what_runs, schedules,
};
use super::service_manager;
use super::starting::{self, Starting};
use super::watch::Watch;
use super::{Say, Show};
use crate::config::{Component, Config, Overrides};
use event_host_core::clock::SystemClock;
use event_host_core::event::HandlerName;
use event_host_core::restart::spawn_with_restart;
use event_host_core::troubles::Troubles;
use event_host_delivery::admission::{Admission, FairExecutor};
use event_host_delivery::leadership::Locks;
use event_host_delivery::supervisor::{Change, Later, RetentionTask, Supervisor};
use event_host_metrics::Metrics;
use event_host_schedules::Scheduler;
use event_host_store::{HostIdentity, Store};

/// What a host is started with.
pub(crate) struct Host {
    /// The settings file.
    pub(crate) path: PathBuf,
    /// What is said over the settings.
    pub(crate) overrides: Overrides,
    /// Whether it ends once nothing is left to do but what is to be delivered later.
    pub(crate) drain: bool,
    /// How long it waits for a database that is not there yet when it starts.
    pub(crate) wait: Duration,
    /// Whether it follows its files, and builds handlers when their sources change.
    pub(crate) watch: bool,
    /// Receives why something is refused that it was started with.
    pub(crate) say: Say,
    /// Shows what is compiled.
    pub(crate) show: Show,
    /// Receives what compilers print; `None` logs it.
    #[cfg(feature = "build")]
    pub(crate) build_output: Option<Say>,
}

/// What a host has before it opens the database.
struct Prepared {
    config: Config,
    metrics: Arc<Metrics>,
    watch: Option<Watch>,
    loader: Loader,
    loads: Loads,
    #[cfg(feature = "build")]
    rebuilder: Option<Rebuilder>,
}

/// What runs side by side in a host, before any of it runs.
struct Parts {
    supervisor: Supervisor,
    later: Later,
    changes: mpsc::Receiver<Change>,
    retention: RetentionTask,
    scheduler: Option<Scheduler>,
    reloader: Reloader,
    http: Arc<Http>,
    overview: OverviewTask,
    locks: oneshot::Receiver<Locks>,
}

impl Host {
    /// Runs until `stop` is cancelled, or, if it drains, until nothing is left to do.
    /// `stopper` is the task that cancels `stop`: if it breaks, the groups are stopped in
    /// order. `hangup` has the settings read again.
    ///
    /// # Errors
    /// When something is refused that the host was started with, when the database cannot
    /// be opened, and when a task breaks that the host cannot do without.
    pub(crate) async fn run(
        self,
        stop: CancellationToken,
        stopper: AbortOnDropHandle<Infallible>,
        hangup: Signal,
    ) -> anyhow::Result<()> {
        let mut prepared = self.prepare(&stop).await?;
        if stop.is_cancelled() {
            info!("stopped before anything ran");
            return Ok(());
        }
        let (store, handlers) = tokio::select! {
            biased;
            () = stop.cancelled() => {
                info!("stopped before anything ran");
                return Ok(());
            }
            opened = service_manager::asking_for_time(self.open(&mut prepared)) => opened?,
        };
        // Before any group runs: a host that cannot be reached as it is told to does nothing.
        let http = Http::start(&prepared.config, &store, &prepared.metrics, &self.say).await?;
        self.assemble(prepared, store, handlers, http)?.run(stop, stopper, hangup).await
    }

    /// Reads the settings, starts the engine, and builds the components that are not there.
    async fn prepare(&self, stop: &CancellationToken) -> anyhow::Result<Prepared> {
        // Before they are read, so that no change is missed.
        let mut watch = self.watch.then(Watch::new);
        if let Some(watch) = &mut watch {
            watch.follow([self.path.as_path()].into_iter()).await;
        }
        let config = Config::load(&self.path, &self.overrides)?;
        if let Some(watch) = &mut watch {
            watch.follow(files(&self.path, &config)).await;
        }
        let metrics = Arc::new(Metrics::new(&config.metrics));
        let loader = Loader::new(&config.compilation, self.show)?.counted(&metrics.sandbox);
        #[cfg(feature = "build")]
        let loader = if self.watch { loader.for_work() } else { loader };
        #[cfg(feature = "build")]
        let rebuilder = match self.watch {
            true => {
                let rebuilder = Rebuilder::new(loader.clone(), self.build_output.clone());
                rebuilder.build_missing(&config, stop).await;
                Some(rebuilder)
            }
            false => None,
        };
        #[cfg(not(feature = "build"))]
        let _ = stop;
        Ok(Prepared {
            config,
            metrics,
            watch,
            loads: Loads::new(loader.clone()),
            loader,
            #[cfg(feature = "build")]
            rebuilder,
        })
    }

    /// Loads the files, opens the database, and loads what is deployed.
    async fn open(&self, prepared: &mut Prepared) -> anyhow::Result<(Arc<dyn Store>, Vec<Loaded>)> {
        let Prepared { config, loader, loads, .. } = prepared;
        let (config, loader) = (&*config, &*loader);
        // Before the database is opened: what is refused makes none.
        let of_files = config
            .handlers
            .iter()
            .filter(|settings| matches!(settings.component, Component::File(_)));
        let mut handlers = starting::load(of_files, &[], loader, loads, config, &self.say).await?;
        let expected = if config.migrate { Expected::Ours } else { Expected::Tables };
        let store = database::connect_within(&config.databases(), expected, self.wait).await?;
        if config.migrate {
            for name in store.migrate().await? {
                info!(migration = name, "migrated");
            }
        }
        loads.take_deployed_from(store.clone());
        let deployed = deployed_ones(config);
        if deployed.clone().next().is_some() {
            let active = store.deployed().await?;
            let loaded =
                starting::load(deployed, &active, loader, loads, config, &self.say).await?;
            handlers.extend(loaded);
        }
        Ok((store, handlers))
    }

    /// Puts together what runs side by side.
    fn assemble(
        self,
        prepared: Prepared,
        store: Arc<dyn Store>,
        handlers: Vec<Loaded>,
        http: Arc<Http>,
    ) -> anyhow::Result<Parts> {
        let Prepared { config, metrics, watch, loader, loads, .. } = prepared;
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
            loader.lower_compile_priority();
        }
        let host = introduce(&config, &metrics, &handlers);
        let admission = Admission::default().counted(metrics.deliveries.permits().clone());
        let admission = Arc::new(admission);
        {
            let admission = Arc::clone(&admission);
            metrics.before_scrape(move || admission.tell());
        }
        apply_quotas(&admission, &loader, &config);
        let executor = FairExecutor::start(Arc::clone(&admission))
            .context("cannot start the handlers' threads")?;
        http.health().watch_threads(executor.pulses());
        let troubles = Troubles::default();
        let (to_share, locks) = oneshot::channel();
        let supervisor = Supervisor {
            store: store.clone(),
            deployments: Some(store.clone()),
            host,
            clock: Arc::new(SystemClock),
            executor,
            groups: handlers.iter().flat_map(|loaded| groups(loaded, &loader, &store)).collect(),
            grace: config.grace,
            drain: self.drain,
            troubles: troubles.clone(),
            metrics: Arc::clone(&metrics),
            locks: to_share,
        };
        let (to_schedule, wanted) = watch::channel(schedules(&config));
        // A host that drains ends, and the clock does not.
        let scheduler = (!self.drain).then(|| Scheduler {
            store: store.clone(),
            clock: Arc::new(SystemClock),
            troubles,
            schedules: wanted,
        });
        let (changes, to_follow) = mpsc::channel(1);
        let (to_keep, kept) = watch::channel(retention(&config));
        let reloader = Reloader {
            path: self.path,
            overrides: self.overrides,
            say: self.say,
            loads,
            loader,
            store: Arc::clone(&store),
            started: config.clone(),
            config,
            running: handlers
                .into_iter()
                .map(|loaded| (loaded.settings.name.clone(), loaded))
                .collect(),
            admission,
            metrics: Arc::clone(&metrics),
            changes,
            retention: to_keep,
            schedules: to_schedule,
            notes: Notes::new(store.clone()),
            watch,
            #[cfg(feature = "build")]
            rebuilder: prepared.rebuilder,
            problems: Problems::default(),
            starting,
            http: Arc::clone(&http),
        };
        let served = http.parts();
        let overview = OverviewTask { store: store.clone(), metrics, served };
        let retention = RetentionTask { store, settings: kept };
        let changes = to_follow;
        Ok(Parts {
            supervisor,
            later,
            changes,
            retention,
            scheduler,
            reloader,
            http,
            overview,
            locks,
        })
    }
}

impl Parts {
    async fn run(
        self,
        stop: CancellationToken,
        stopper: AbortOnDropHandle<Infallible>,
        hangup: Signal,
    ) -> anyhow::Result<()> {
        let Self {
            supervisor,
            later,
            changes,
            retention,
            scheduler,
            reloader,
            http,
            overview,
            locks,
        } = self;
        let grace = supervisor.grace;
        // `stop` is that somebody asked for it, `halt` that it begins: in between, load
        // balancers learn of it.
        let halt = CancellationToken::new();
        let registered = later.registered.clone();
        let looking = AbortOnDropHandle::new(tokio::spawn(overview.run(locks, halt.clone())));
        let pulse = http.health().watch_task("the supervisor");
        let supervising = async {
            let running = supervisor.run_and_follow(halt.clone(), changes, later);
            let result = pulse.beat_during(running).await;
            halt.cancel();
            result
        };
        service_manager::ready(&http.status());
        let closing = async {
            tokio::select! {
                () = halt.cancelled() => {}
                () = async {
                    stop.cancelled().await;
                    http.drain(grace).await;
                } => halt.cancel(),
            }
            http.stop(grace).await;
        };
        let upkeep = {
            let stop = halt.clone();
            let keep = move || retention.clone().run(stop.clone());
            spawn_with_restart("what keeps the log as long as it is to be kept", keep)
        };
        let scheduling = {
            let halt = halt.clone();
            let schedule =
                move || run_schedules(scheduler.clone(), registered.clone(), halt.clone());
            spawn_with_restart("what runs the schedules", schedule)
        };
        let reloading = reloader.run(hangup, halt.clone());
        let reloading = AbortOnDropHandle::new(tokio::spawn(reloading));
        let reloading = async {
            let ended = reloading.await;
            // It ends before the stop only if something is refused that this host was
            // started with, or if it breaks. Then the groups end in order.
            halt.cancel();
            ended
        };
        let working = async {
            let (result, reloaded, ()) = tokio::join!(supervising, reloading, closing);
            (result, reloaded)
        };
        tokio::pin!(working);
        let (result, reloaded) = tokio::select! {
            ended = &mut working => ended,
            Err(why) = stopper => {
                stop.cancel();
                working.await.0?;
                bail!("what waits for signals broke: {why}; the groups were stopped in order");
            }
        };
        // They end with the stop.
        drop(upkeep.await);
        drop(scheduling.await);
        drop(looking.await);
        result?;
        match reloaded {
            Ok(ended) => ended?,
            Err(why) => {
                bail!("what follows the settings broke: {why}; the groups were stopped in order")
            }
        }
        info!("stopped");
        Ok(())
    }
}

/// Runs the schedules until the stop, once the groups are registered that are to receive
/// their events.
async fn run_schedules(
    scheduler: Option<Scheduler>,
    registered: CancellationToken,
    stop: CancellationToken,
) {
    let Some(scheduler) = scheduler else { return };
    tokio::select! {
        () = stop.cancelled() => return,
        () = registered.cancelled() => {}
    }
    scheduler.run(stop).await;
}

/// Says what begins, and by which settings; gives what the host is known by.
fn introduce(config: &Config, metrics: &Metrics, handlers: &[Loaded]) -> HostIdentity {
    let host = identity();
    info!(
        version = env!("CARGO_PKG_VERSION"),
        host = host.id,
        handlers = config.handlers.len(),
        database = %config.database,
        "starting"
    );
    metrics.host.built(env!("CARGO_PKG_VERSION"), config.database.kind());
    says_what_runs(metrics, config, handlers.iter());
    host
}

pub(super) fn identity() -> HostIdentity {
    let name = rustix::system::uname();
    HostIdentity {
        id: uuid::Uuid::new_v4().to_string(),
        hostname: name.nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
    }
}
