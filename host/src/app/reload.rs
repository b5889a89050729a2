//! What a host runs, loaded again while it runs: at SIGHUP, with `--watch` when a
//! file changes, and when another version of a handler is deployed.
//!
//! What takes long to load when the host starts is followed here too. If such a
//! component is refused, the host ends, as it does where all are refused at once. One
//! that was changed meanwhile is no longer what the host was started with: it is
//! treated as in every other change.
//!
//! Everything is read, checked and compiled before anything is switched. What
//! does not load leaves what runs in place, and so does a file whose bytes are
//! the same as before. Each group changes whole or not at all, with all its partitions.
//!
//! What is wrong is said when it begins, when it changes, at each SIGHUP, and once it is
//! over: not at each look.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::signal::unix::Signal;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

use super::Say;
use super::deployments::watch_deployments;
use super::http::Http;
use super::loading::{Loaded, Loader, NotAllLoaded, NotLoaded, deployed_ones};
use super::loads::{Loads, Progress, is_loaded_alike};
use super::notes::Notes;
use super::plan::{Plan, UNDER_WAY};
use super::problems::{Problem, Problems, Trigger};
#[cfg(feature = "build")]
use super::rebuild::Rebuilder;
use super::running::{
    apply_quotas, changed, changed_handlers, drop_displaced, files, groups, restart_settings,
    retention, says_what_runs, schedules,
};
use super::service_manager;
use super::starting::{self, Starting};
use super::wanted::Wanted;
use super::watch::Watch;
use crate::config::{Config, HandlerSettings, Overrides};
use event_host_core::event::{GroupName, HandlerName};
use event_host_core::handler::Handler as _;
use event_host_core::restart::spawn_with_restart;
use event_host_delivery::admission::Admission;
use event_host_delivery::supervisor::{Change, RetentionSettings};
use event_host_metrics::Metrics;
use event_host_schedules::Schedule;
use event_host_store::{Deployed, Store};

/// When is tried again what the database did not take or did not give, and a listener that
/// could not be opened.
pub(crate) const AGAIN: Duration = Duration::from_secs(5);

/// How long a reload waits for what it loads; what takes longer is switched to once it
/// is loaded.
const MOMENT: Duration = Duration::from_secs(2);

/// What a host runs, and where it comes from.
pub(crate) struct Reloader {
    /// The settings file.
    pub(crate) path: PathBuf,
    pub(crate) overrides: Overrides,
    /// Receives why something is refused that the host was started with.
    pub(crate) say: Say,
    pub(crate) loader: Loader,
    /// What is being loaded.
    pub(crate) loads: Loads,
    pub(crate) store: Arc<dyn Store>,
    /// The settings that the host started with.
    pub(crate) started: Config,
    /// The settings as a whole, as they were read last.
    pub(crate) config: Config,
    /// What runs.
    pub(crate) running: BTreeMap<HandlerName, Loaded>,
    /// What bounds the handlers together.
    pub(crate) admission: Arc<Admission>,
    /// What the host counts with.
    pub(crate) metrics: Arc<Metrics>,
    /// Where changes go.
    pub(crate) changes: mpsc::Sender<Change>,
    /// Where goes how long events are kept.
    pub(crate) retention: watch::Sender<RetentionSettings>,
    /// Where the schedules go.
    pub(crate) schedules: watch::Sender<Arc<[Schedule]>>,
    /// What `status` shows of the groups that do not run as the files say.
    pub(crate) notes: Notes,
    /// The files, if they are watched.
    pub(crate) watch: Option<Watch>,
    /// What builds handlers when their sources change, if files are watched.
    #[cfg(feature = "build")]
    pub(crate) rebuilder: Option<Rebuilder>,
    /// What is wrong.
    pub(crate) problems: Problems,
    /// What of the start is still being loaded.
    pub(crate) starting: Starting,
    /// What is served by HTTP.
    pub(crate) http: Arc<Http>,
}

impl Reloader {
    /// Follows the triggers until the stop: SIGHUP, and the files if they are
    /// watched.
    ///
    /// # Errors
    /// When something is refused that the host was started with; that is said by then.
    pub(crate) async fn run(
        mut self,
        mut hangup: Signal,
        stop: CancellationToken,
    ) -> Result<(), NotAllLoaded> {
        let (takes_deployed, wanted) = watch::channel(false);
        let deployed = Arc::new(Notify::new());
        let _looking = {
            let (store, deployed) = (self.store.clone(), Arc::clone(&deployed));
            spawn_with_restart("the look for deployments", move || {
                watch_deployments(store.clone(), wanted.clone(), Arc::clone(&deployed))
            })
        };
        let following = async {
            // What a host said that ran these before is over: all is loaded.
            let groups: Vec<GroupName> =
                self.running.values().map(|loaded| loaded.settings.group.clone()).collect();
            self.notes.clear(&groups).await;
            self.follow_sources();
            // What is said of a group that is not there is lost.
            self.starting.registered().cancelled().await;
            self.notes.set(self.starting.notes(&self.config, UNDER_WAY)).await;
            // Something of the start may have to be tried again.
            let mut again = !self.starting.is_over();
            let ended = self.loads.ended();
            if self.starting.is_over() {
                // What was loaded before this began is no news.
                let _ = ended.notified().now_or_never();
            }
            loop {
                takes_deployed.send_replace(deployed_ones(&self.config).next().is_some());
                let changed = async {
                    match &mut self.watch {
                        Some(watch) => watch.changed().await,
                        None => std::future::pending().await,
                    }
                };
                let trigger = tokio::select! {
                    Some(()) = hangup.recv() => Trigger::Hangup,
                    () = changed => Trigger::Files,
                    () = deployed.notified() => Trigger::Deployment,
                    () = ended.notified() => Trigger::Again,
                    () = tokio::time::sleep(AGAIN), if again => Trigger::Again,
                };
                if trigger == Trigger::Hangup {
                    service_manager::reloading();
                }
                let reloaded = self.reload(trigger).await;
                if trigger == Trigger::Hangup {
                    service_manager::ready(&self.http.status());
                }
                again = !reloaded?;
            }
        };
        let ended = tokio::select! {
            () = stop.cancelled() => Ok(()),
            refused = following => refused,
        };
        #[cfg(feature = "build")]
        if let Some(rebuilder) = &mut self.rebuilder {
            rebuilder.stop().await;
        }
        ended
    }

    /// Watches the sources of the handlers that the settings have now.
    fn follow_sources(&mut self) {
        #[cfg(feature = "build")]
        if let Some(rebuilder) = &mut self.rebuilder {
            rebuilder.follow(&self.config);
        }
    }

    /// Loads what changed, and has the host run it. Whether there is nothing to
    /// try again.
    async fn reload(&mut self, trigger: Trigger) -> Result<bool, NotAllLoaded> {
        let Some(config) = self.read_settings(trigger).await else { return Ok(true) };
        let settings = restart_settings(&self.started, &config);
        self.problems.say_what_takes_a_restart(settings, trigger);
        if let Some(watch) = &mut self.watch {
            // Before the components are read, so that no change is missed.
            watch.follow(files(&self.path, &config)).await;
        }
        // Tokens go also while the database is away, which tells what is deployed.
        let refused_listeners = self.http.change(&config, &mut self.problems, trigger).await;
        let Some(active) = self.read_deployments(&config, trigger).await else { return Ok(false) };
        let (same, refused) = self.begin(&config, &active, trigger).await;
        self.loads.keep(|name| config.handlers.iter().any(|handler| handler.name == *name));
        if trigger == Trigger::Again {
            // Something has ended, or is tried again: the rest tells when it ends.
            if starting::is_refused(&self.starting, &mut self.loads, &config, &self.say).await {
                return Err(NotAllLoaded);
            }
        } else {
            self.loads.wait(MOMENT).await;
        }
        let Plan { mut wanted, notes, mut all } = self.plan(&config, same, refused, trigger).await;
        let mut changed = changed(&self.config, &config, &refused_listeners);
        apply_quotas(&self.admission, &self.loader, &config);
        self.retention.send_replace(retention(&config));
        self.schedules.send_replace(schedules(&config));
        all &= refused_listeners.is_empty();
        self.config = config;
        self.follow_sources();
        self.forget_what_is_gone();
        drop_displaced(&mut wanted, &self.running);
        let before = self.running.clone();
        let unchanged = wanted.len() == self.running.len()
            && wanted.iter().all(|(name, loaded)| {
                self.running.get(name).is_some_and(|before| before.is_same_as(loaded))
            });
        if !unchanged {
            all &= self.switch(wanted, trigger).await;
            changed.extend(changed_handlers(&before, &self.running));
        }
        if all {
            says_what_runs(&self.metrics, &self.config, self.running.values());
        } else {
            self.metrics.host.reload_success.set(0.0);
        }
        let is_wanted =
            |name: &HandlerName| self.config.handlers.iter().any(|settings| settings.name == *name);
        let was_starting = !self.starting.is_over();
        self.starting.keep(|name| is_wanted(name) && !self.running.contains_key(name));
        // Last, for what is said must not hold up what is done.
        self.notes.set(notes).await;
        if !changed.is_empty() {
            let did = if was_starting && trigger == Trigger::Again { "loaded" } else { "reloaded" };
            info!(handlers = self.running.len(), changed = changed.join(", "), "{did}");
        } else if trigger == Trigger::Hangup {
            info!("nothing changed");
        } else {
            debug!(?trigger, "nothing changed");
        }
        Ok(all)
    }

    /// Reads the settings. `None` where they are refused, and all is loaded that the host
    /// was started with.
    async fn read_settings(&mut self, trigger: Trigger) -> Option<Config> {
        match Config::load(&self.path, &self.overrides) {
            Ok(config) => {
                if self.problems.is_over(&Problem::Settings) {
                    info!("the settings are right again");
                }
                Some(config)
            }
            Err(errors) => {
                self.metrics.host.reload_success.set(0.0);
                if self.problems.begins(Problem::Settings, errors.to_string(), trigger) {
                    error!("the settings are refused, and everything goes on as before: {errors}");
                }
                let said = format!("the changed settings are refused: {errors}");
                let groups = self.running.values().map(|loaded| loaded.settings.group.clone());
                self.notes.set(groups.map(|group| (group, said.clone())).collect()).await;
                if self.starting.is_over() {
                    return None;
                }
                // What the host was started with is begun all the same.
                Some(self.config.clone())
            }
        }
    }

    /// Reads what is deployed. `None` where the database does not give it.
    async fn read_deployments(
        &mut self,
        config: &Config,
        trigger: Trigger,
    ) -> Option<Vec<Deployed>> {
        let active = match self.active(config).await {
            Ok(active) => active,
            Err(why) => {
                self.metrics.host.reload_success.set(0.0);
                if self.problems.begins(Problem::Deployments, why.to_string(), trigger) {
                    error!("cannot read what is deployed, and everything goes on as before: {why}");
                }
                return None;
            }
        };
        if self.problems.is_over(&Problem::Deployments) {
            info!("what is deployed can be read again");
        }
        Some(active)
    }

    /// What is to run, by how far the load of each handler is.
    async fn plan(
        &mut self,
        config: &Config,
        mut same: BTreeMap<HandlerName, Loaded>,
        mut refused: BTreeMap<HandlerName, NotLoaded>,
        trigger: Trigger,
    ) -> Plan {
        let mut plan = Plan::new();
        for settings in &config.handlers {
            let outcome = match (same.remove(&settings.name), refused.remove(&settings.name)) {
                (Some(loaded), _) => Ok(loaded),
                (None, Some(why)) => Err((why.to_string(), why.is_passing())),
                (None, None) => match self.loads.progress(settings).await {
                    Progress::Loaded(loaded) => Ok(*loaded),
                    Progress::Refused(why) => Err((why.to_string(), why.is_passing())),
                    Progress::UnderWay => {
                        plan.keep_while_loading(settings, config, &self.running);
                        continue;
                    }
                },
            };
            match outcome {
                Ok(loaded) => {
                    plan.wanted.insert(settings.name.clone(), loaded);
                    if self.problems.is_over(&Problem::Handler(settings.name.clone())) {
                        info!(handler = %settings.name, "loads again");
                    }
                }
                Err((why, is_passing)) => {
                    plan.all &= !is_passing;
                    let name = settings.name.clone();
                    let is_news =
                        self.problems.begins(Problem::Handler(name), why.clone(), trigger);
                    plan.keep_where_refused(settings, &why, is_news, &self.running);
                }
            }
        }
        plan
    }

    /// Handlers and groups that the settings do not have any more are not wrong.
    fn forget_what_is_gone(&mut self) {
        let handlers = &self.config.handlers;
        self.problems.0.retain(|about, _| match about {
            Problem::Handler(name) => handlers.iter().any(|handler| handler.name == *name),
            Problem::Group(group) => handlers.iter().any(|handler| handler.group == *group),
            Problem::Settings | Problem::Deployments | Problem::Listeners | Problem::Restart(_) => {
                true
            }
        });
    }

    /// What is deployed, if a handler wants to know.
    async fn active(&self, config: &Config) -> Result<Vec<Deployed>, event_host_store::StoreError> {
        match deployed_ones(config).next() {
            Some(_) => self.store.deployed().await,
            None => Ok(Vec::new()),
        }
    }

    /// Begins to load what is to run. Gives the handlers that run already, and those of
    /// which it is known at once that they cannot.
    async fn begin(
        &mut self,
        config: &Config,
        active: &[Deployed],
        trigger: Trigger,
    ) -> (BTreeMap<HandlerName, Loaded>, BTreeMap<HandlerName, NotLoaded>) {
        let (mut same, mut refused) = (BTreeMap::new(), BTreeMap::new());
        let mut wanted = Vec::new();
        let mut changed = BTreeSet::new();
        for settings in &config.handlers {
            match self.loader.look(settings, active).await {
                Err(why) => {
                    if !why.is_waited_for() {
                        changed.insert(&settings.name);
                    }
                    refused.insert(settings.name.clone(), why);
                }
                Ok(look) => match self.as_it_runs(settings, &look.0) {
                    Some(loaded) => drop(same.insert(settings.name.clone(), loaded)),
                    None => wanted.push((settings, look)),
                },
            }
        }
        starting::begin(wanted, |settings, wanted| {
            if self.loads.begin(settings, wanted, trigger == Trigger::Hangup) {
                changed.insert(&settings.name);
            }
        });
        self.starting.keep(|name| !changed.contains(name));
        (same, refused)
    }

    /// A handler as it runs, if that is what it is to run, with these settings.
    fn as_it_runs(&self, settings: &HandlerSettings, wanted: &Wanted) -> Option<Loaded> {
        let before = self.running.get(&settings.name).filter(|before| {
            is_loaded_alike(&before.settings, settings)
                && before.handler.digest() == wanted.digest()
        })?;
        let deployed = match wanted {
            Wanted::File(_) => None,
            Wanted::Deployed(deployed) => Some(deployed.clone()),
        };
        let (settings, handler) = (settings.clone(), Arc::clone(&before.handler));
        Some(Loaded { settings, deployed, handler })
    }

    /// Has the host run this. Whether the database took all of it.
    async fn switch(&mut self, wanted: BTreeMap<HandlerName, Loaded>, trigger: Trigger) -> bool {
        let (refused, refusals) = oneshot::channel();
        let groups =
            wanted.values().flat_map(|loaded| groups(loaded, &self.loader, &self.store)).collect();
        if self.changes.send(Change { groups, refused }).await.is_err() {
            // The host is going down.
            return true;
        }
        let Ok(refusals) = refusals.await else { return true };
        let refusals: HashMap<GroupName, _> = refusals.into_iter().collect();
        let mut running = BTreeMap::new();
        for (name, loaded) in wanted {
            let group = loaded.settings.group.clone();
            let problem = Problem::Group(group.clone());
            match refusals.get(&group) {
                None => {
                    running.insert(name, loaded);
                    if self.problems.is_over(&problem) {
                        info!(%group, "the database took the change");
                    }
                }
                Some(why) => {
                    let is_news = self.problems.begins(problem, why.to_string(), trigger);
                    match self.running.remove(&name) {
                        Some(before) if before.settings.group == group => {
                            if is_news {
                                error!(%group, "goes on as before: {why}");
                            }
                            running.insert(name, before);
                        }
                        _ if is_news => error!(%group, "is not run yet: {why}"),
                        _ => {}
                    }
                }
            }
        }
        self.running = running;
        if !self.running.is_empty() {
            self.loader.lower_compile_priority();
        }
        refusals.is_empty()
    }
}
