//! What a host runs, loaded anew while it runs: at SIGHUP, with `--watch` when a
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
use tracing::{debug, error, info, warn};

use super::loading::{Loaded, Loader, NotLoaded, deployed_ones};
use super::loads::{Loads, Progress, Wanted, is_loaded_alike};
#[cfg(feature = "build")]
use super::rebuild::Rebuilder;
use super::running::{bound, changed, changed_handlers, drop_displaced, files, groups, keeping};
use super::said::{About, Said, Trigger};
use super::starting::{self, NotAllLoaded, Starting};
use super::watch::Watch;
use crate::config::{Config, HandlerSettings, Overrides};
use crate::delivery::admission::Admission;
use crate::event::{GroupName, HandlerName};
use crate::handler::Handler as _;
use crate::restart::spawn_with_restart;
use crate::store::{Deployed, Store};
use crate::supervisor::{Change, RetentionSettings};

/// When is tried again what the database did not take or did not give.
const AGAIN: Duration = Duration::from_secs(5);

/// How long a reload waits for what it loads; what takes longer is switched to once it
/// is loaded.
const MOMENT: Duration = Duration::from_secs(2);

/// What is said of a handler while its component is loaded.
const UNDER_WAY: &str = "what it is to run now is being loaded";

/// How often is looked for deployments, by a host that has a handler for them.
const DEPLOYED_POLL: Duration = Duration::from_millis(250);

/// What a host runs, and where it comes from.
pub(super) struct Reloader {
    /// The settings file.
    pub(super) path: PathBuf,
    pub(super) overrides: Overrides,
    pub(super) loader: Loader,
    /// What is being loaded.
    pub(super) loads: Loads,
    pub(super) store: Arc<dyn Store>,
    /// The settings that the host started with.
    pub(super) started: Config,
    /// The settings as a whole, as they were read last.
    pub(super) config: Config,
    /// What runs.
    pub(super) running: BTreeMap<HandlerName, Loaded>,
    /// What bounds the handlers together.
    pub(super) admission: Arc<Admission>,
    /// Where changes go.
    pub(super) changes: mpsc::Sender<Change>,
    /// Where goes how long events are kept.
    pub(super) keeping: watch::Sender<RetentionSettings>,
    /// What `status` shows of the groups that do not run as the files say.
    pub(super) remarks: BTreeMap<GroupName, String>,
    /// The files, if they are watched.
    pub(super) watch: Option<Watch>,
    /// What builds handlers when their sources change, if files are watched.
    #[cfg(feature = "build")]
    pub(super) rebuilder: Option<Rebuilder>,
    /// What is wrong.
    pub(super) said: Said,
    /// What of the start is still being loaded.
    pub(super) starting: Starting,
}

impl Reloader {
    /// Follows the triggers until the stop: SIGHUP, and the files if they are
    /// watched.
    ///
    /// # Errors
    /// When something is refused that the host was started with; that is said by then.
    pub(super) async fn run(
        mut self,
        mut hangup: Signal,
        stop: CancellationToken,
    ) -> Result<(), NotAllLoaded> {
        let (takes_deployed, wanted) = watch::channel(false);
        let deployed = Arc::new(Notify::new());
        let _looking = {
            let (store, deployed) = (Arc::clone(&self.store), Arc::clone(&deployed));
            spawn_with_restart("the look for deployments", move || {
                look_for_deployments(Arc::clone(&store), wanted.clone(), Arc::clone(&deployed))
            })
        };
        let following = async {
            // What a host said that ran these before is over: all is loaded.
            let groups: Vec<GroupName> =
                self.running.values().map(|loaded| loaded.settings.group.clone()).collect();
            self.tell(&groups, None).await;
            self.follow_sources();
            // What is said of a group that is not there is lost.
            self.starting.registered().cancelled().await;
            self.remark(self.starting.remarks(&self.config, UNDER_WAY)).await;
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
                again = !self.reload(trigger).await?;
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
        let config = match Config::load(&self.path, &self.overrides) {
            Ok(config) => {
                if self.said.is_over(&About::Settings) {
                    info!("the settings are right again");
                }
                config
            }
            Err(errors) => {
                if self.said.begins(About::Settings, errors.to_string(), trigger) {
                    error!("the settings are refused, and everything goes on as before: {errors}");
                }
                let said = format!("the changed settings are refused: {errors}");
                let groups = self.running.values().map(|loaded| loaded.settings.group.clone());
                self.remark(groups.map(|group| (group, said.clone())).collect()).await;
                if self.starting.is_over() {
                    return Ok(true);
                }
                // What the host was started with is begun all the same.
                self.config.clone()
            }
        };
        self.say_what_takes_a_restart(&config, trigger);
        if let Some(watch) = &mut self.watch {
            // Before the components are read, so that no change is missed.
            watch.follow(files(&self.path, &config)).await;
        }
        let active = match self.active(&config).await {
            Ok(active) => active,
            Err(why) => {
                if self.said.begins(About::Deployments, why.to_string(), trigger) {
                    error!("cannot read what is deployed, and everything goes on as before: {why}");
                }
                return Ok(false);
            }
        };
        if self.said.is_over(&About::Deployments) {
            info!("what is deployed can be read again");
        }
        let mut wanted = BTreeMap::new();
        let mut remarks = BTreeMap::new();
        let mut all = true;
        let (mut same, mut refused) = self.begin(&config, &active, trigger).await;
        self.loads.keep(|name| config.handlers.iter().any(|handler| handler.name == *name));
        if trigger == Trigger::Again {
            // Something has ended, or is tried again: the rest tells when it ends.
            if starting::is_refused(&self.starting, &mut self.loads, &config).await {
                return Err(NotAllLoaded);
            }
        } else {
            self.loads.wait(MOMENT).await;
        }
        for settings in &config.handlers {
            let before = self.running.get(&settings.name);
            let outcome = match (same.remove(&settings.name), refused.remove(&settings.name)) {
                (Some(loaded), _) => Ok(loaded),
                (None, Some(why)) => Err((why.to_string(), why.is_passing())),
                (None, None) => match self.loads.progress(settings).await {
                    Progress::Loaded(loaded) => Ok(*loaded),
                    Progress::Refused(why) => Err((why.to_string(), why.is_passing())),
                    Progress::UnderWay => {
                        debug!(handler = %settings.name, "{UNDER_WAY}");
                        // Under another name, if the settings have it no more.
                        let is_gone = |one: &&Loaded| {
                            one.settings.group == settings.group
                                && config.handlers.iter().all(|kept| kept.name != one.settings.name)
                        };
                        let before = before.or_else(|| self.running.values().find(is_gone));
                        let group = before.map_or(&settings.group, |before| &before.settings.group);
                        remarks.insert(group.clone(), UNDER_WAY.to_owned());
                        if let Some(before) = before {
                            wanted.insert(before.settings.name.clone(), before.clone());
                        }
                        continue;
                    }
                },
            };
            match outcome {
                Ok(loaded) => {
                    wanted.insert(settings.name.clone(), loaded);
                    if self.said.is_over(&About::Handler(settings.name.clone())) {
                        info!(handler = %settings.name, "loads again");
                    }
                }
                Err((why, is_passing)) => {
                    all &= !is_passing;
                    let about = About::Handler(settings.name.clone());
                    let is_news = self.said.begins(about, why.clone(), trigger);
                    match before {
                        Some(before) => {
                            if is_news {
                                error!(
                                    handler = %settings.name,
                                    running = before.handler.digest(),
                                    "does not load, and goes on as before: {why}"
                                );
                            }
                            remarks.insert(
                                before.settings.group.clone(),
                                format!("what it is to run now does not load: {why}"),
                            );
                            wanted.insert(settings.name.clone(), before.clone());
                        }
                        None if is_news => {
                            error!(
                                handler = %settings.name,
                                "does not load, and is not run: {why}"
                            );
                        }
                        None => {}
                    }
                }
            }
        }
        let mut changed = changed(&self.config, &config);
        bound(&self.admission, &self.loader, &config);
        self.keeping.send_replace(keeping(&config));
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
        let is_wanted =
            |name: &HandlerName| self.config.handlers.iter().any(|settings| settings.name == *name);
        let was_starting = !self.starting.is_over();
        self.starting.keep(|name| is_wanted(name) && !self.running.contains_key(name));
        // Last, for what is said must not hold up what is done.
        self.remark(remarks).await;
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

    /// Handlers and groups that the settings do not have any more are not wrong.
    fn forget_what_is_gone(&mut self) {
        let handlers = &self.config.handlers;
        self.said.0.retain(|about, _| match about {
            About::Handler(name) => handlers.iter().any(|handler| handler.name == *name),
            About::Group(group) => handlers.iter().any(|handler| handler.group == *group),
            About::Settings | About::Deployments | About::Restart(_) => true,
        });
    }

    /// Has `status` show this of these groups, and of no others any more. What
    /// cannot be told is told at the next reload.
    async fn remark(&mut self, remarks: BTreeMap<GroupName, String>) {
        let mut changes: BTreeMap<Option<&str>, Vec<GroupName>> = BTreeMap::new();
        for group in self.remarks.keys().filter(|group| !remarks.contains_key(*group)) {
            changes.entry(None).or_default().push(group.clone());
        }
        for (group, remark) in &remarks {
            if self.remarks.get(group) != Some(remark) {
                changes.entry(Some(remark)).or_default().push(group.clone());
            }
        }
        let mut told = Vec::new();
        for (remark, groups) in changes {
            if self.tell(&groups, remark).await {
                told.extend(groups.into_iter().map(|group| (group, remark.map(str::to_owned))));
            }
        }
        for (group, remark) in told {
            match remark {
                Some(remark) => self.remarks.insert(group, remark),
                None => self.remarks.remove(&group),
            };
        }
    }

    async fn tell(&self, groups: &[GroupName], remark: Option<&str>) -> bool {
        let told = self.store.set_note(groups, remark).await;
        if let Err(why) = &told {
            warn!("`host status` cannot be told: {why}");
        }
        told.is_ok()
    }

    /// What is deployed, if a handler wants to know.
    async fn active(&self, config: &Config) -> Result<Vec<Deployed>, crate::store::StoreError> {
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
            let about = About::Group(group.clone());
            match refusals.get(&group) {
                None => {
                    running.insert(name, loaded);
                    if self.said.is_over(&about) {
                        info!(%group, "the database took the change");
                    }
                }
                Some(why) => {
                    let is_news = self.said.begins(about, why.to_string(), trigger);
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
            self.loader.give_way();
        }
        refusals.is_empty()
    }

    fn say_what_takes_a_restart(&mut self, now: &Config, trigger: Trigger) {
        let Config { database, lock_database, grace, compilation, .. } = now;
        let was = &self.started.compilation;
        let settings = [
            ("database", self.started.database != *database, format!("{database:?}")),
            (
                "lock_database",
                self.started.lock_database != *lock_database,
                format!("{lock_database:?}"),
            ),
            ("grace", self.started.grace != *grace, format!("{grace:?}")),
            (
                "compile_memory",
                was.memory_bytes != compilation.memory_bytes,
                format!("{:?}", compilation.memory_bytes),
            ),
            (
                "compile_timeout",
                was.timeout != compilation.timeout,
                format!("{:?}", compilation.timeout),
            ),
        ];
        for (setting, is_another, value) in settings {
            let about = About::Restart(setting);
            if !is_another {
                if self.said.is_over(&about) {
                    info!("`{setting}` is again what this host runs with");
                }
            } else if self.said.begins(about, value, trigger) {
                warn!("`{setting}` changed: that takes a restart of the host");
            }
        }
    }
}

/// Tells when something else is deployed than before, while it is wanted.
async fn look_for_deployments(
    store: Arc<dyn Store>,
    mut wanted: watch::Receiver<bool>,
    changed: Arc<Notify>,
) {
    let mut last = None;
    // Else nobody is left to be told.
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        match store.deployed().await {
            Ok(now) => {
                // Also at the first look: something may have been deployed since the
                // host was loaded.
                if last.as_ref() != Some(&now) {
                    changed.notify_one();
                }
                last = Some(now);
            }
            // The supervisor says so.
            Err(why) => debug!("cannot see what is deployed: {why}"),
        }
        tokio::time::sleep(DEPLOYED_POLL).await;
    }
}
