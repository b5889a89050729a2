//! What a host runs, loaded anew while it runs: at SIGHUP, with `--watch` when a
//! file changes, and when another version of a handler is deployed.
//!
//! Everything is read, checked and compiled before anything is switched. What
//! does not load leaves what runs in place, and so does a file whose bytes are
//! the same as before. Each group changes whole or not at all, with all its partitions.
//!
//! What is wrong is said when it begins, when it changes, at each SIGHUP, and once it is
//! over: not at each look.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::loading::{Loaded, Loader, NotLoaded, Replays, active_of, deployed_ones};
use super::loads::{Loads, Progress, Wanted, is_loaded_alike};
#[cfg(feature = "build")]
use super::rebuild::Rebuilder;
use super::watch::Watch;
use crate::config::{Component, Config, HandlerSettings, Overrides, TenantSettings};
use crate::delivery::Handler as _;
use crate::delivery::group::GroupSettings;
use crate::delivery::permits::Permits;
use crate::event::{GroupName, HandlerName, Partition};
use crate::runtime::spawn_again_if_it_panics;
use crate::store::{Deployed, Store};
use crate::supervisor::{Change, Group, Keeping};

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
    pub(super) permits: Arc<Permits>,
    /// Where changes go.
    pub(super) changes: mpsc::Sender<Change>,
    /// Where goes how long events are kept.
    pub(super) keeping: watch::Sender<Keeping>,
    /// What `status` shows of the groups that do not run as the files say.
    pub(super) remarks: BTreeMap<GroupName, String>,
    /// The files, if they are watched.
    pub(super) watch: Option<Watch>,
    /// What builds handlers when their sources change, if files are watched.
    #[cfg(feature = "build")]
    pub(super) rebuilder: Option<Rebuilder>,
    /// What is wrong.
    pub(super) said: Said,
}

/// What can be wrong with what a host is to run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    Settings,
    Deployments,
    Handler(HandlerName),
    Group(GroupName),
    Restart(&'static str),
}

/// What was said to be wrong and is still so.
#[derive(Debug, Default)]
pub(super) struct Said(BTreeMap<About, String>);

impl Said {
    /// Something is wrong. Whether that is to be said: it was not, or not so, or somebody
    /// asks.
    fn begins(&mut self, about: About, what: String, trigger: Trigger) -> bool {
        let is_new = self.0.get(&about) != Some(&what);
        self.0.insert(about, what);
        is_new || trigger == Trigger::Hangup
    }

    /// Something is right. Whether it was said to be wrong.
    fn is_over(&mut self, about: &About) -> bool {
        self.0.remove(about).is_some()
    }
}

/// Why a host looks at its files again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trigger {
    Hangup,
    Files,
    Deployment,
    Again,
}

impl Reloader {
    /// Follows the triggers until the stop: SIGHUP, and the files if they are
    /// watched.
    pub(super) async fn run(mut self, mut hangup: Signal, stop: CancellationToken) {
        let (takes_deployed, wanted) = watch::channel(false);
        let deployed = Arc::new(Notify::new());
        let _looking = {
            let (store, deployed) = (Arc::clone(&self.store), Arc::clone(&deployed));
            spawn_again_if_it_panics("the look for deployments", move || {
                look_for_deployments(Arc::clone(&store), wanted.clone(), Arc::clone(&deployed))
            })
        };
        let following = async {
            // What a host said that ran these before is over: all is loaded.
            let groups: Vec<GroupName> =
                self.running.values().map(|loaded| loaded.settings.group.clone()).collect();
            self.tell(&groups, None).await;
            self.follow_sources();
            let mut again = false;
            let ended = self.loads.ended();
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
                again = !self.reload(trigger).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = following => {}
        }
        #[cfg(feature = "build")]
        if let Some(rebuilder) = &mut self.rebuilder {
            rebuilder.stop().await;
        }
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
    async fn reload(&mut self, trigger: Trigger) -> bool {
        let config = match Config::load(&self.path, &self.overrides) {
            Ok(config) => config,
            Err(errors) => {
                if self.said.begins(About::Settings, errors.to_string(), trigger) {
                    error!("the settings are refused, and everything goes on as before: {errors}");
                }
                let said = format!("the changed settings are refused: {errors}");
                let groups = self.running.values().map(|loaded| loaded.settings.group.clone());
                self.remark(groups.map(|group| (group, said.clone())).collect()).await;
                return true;
            }
        };
        if self.said.is_over(&About::Settings) {
            info!("the settings are right again");
        }
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
                return false;
            }
        };
        if self.said.is_over(&About::Deployments) {
            info!("what is deployed can be read again");
        }
        let mut wanted = BTreeMap::new();
        let mut remarks = BTreeMap::new();
        let mut all = true;
        let mut begun = BTreeMap::new();
        for settings in &config.handlers {
            let outcome = self.begin(settings, &active, trigger).await;
            begun.insert(settings.name.clone(), outcome);
        }
        self.loads.keep(|name| begun.contains_key(name));
        self.loads.wait(MOMENT).await;
        for settings in &config.handlers {
            let before = self.running.get(&settings.name);
            let outcome = match begun.remove(&settings.name) {
                Some(Err(why)) => Err((why.to_string(), why.is_passing())),
                Some(Ok(Some(loaded))) => Ok(loaded),
                Some(Ok(None)) | None => match self.loads.progress(settings).await {
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
                        if let Some(before) = before {
                            remarks.insert(before.settings.group.clone(), UNDER_WAY.to_owned());
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
        bound(&self.permits, &self.loader, &config);
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
        // Last, for what is said must not hold up what is done.
        self.remark(remarks).await;
        if !changed.is_empty() {
            info!(handlers = self.running.len(), changed = changed.join(", "), "reloaded");
        } else if trigger == Trigger::Hangup {
            info!("nothing changed");
        } else {
            debug!(?trigger, "nothing changed");
        }
        all
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
        let told = self.store.remark(groups, remark).await;
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

    /// Begins to load a handler with these settings; gives the one that runs, if it is
    /// the same.
    async fn begin(
        &mut self,
        settings: &HandlerSettings,
        active: &[Deployed],
        trigger: Trigger,
    ) -> Result<Option<Loaded>, NotLoaded> {
        let wanted = match &settings.component {
            Component::File(path) => Wanted::File(self.loader.digest(path).await?),
            Component::Deployed => Wanted::Deployed(active_of(settings, active)?.clone()),
        };
        let (digest, deployed) = match &wanted {
            Wanted::File(digest) => (digest.as_str(), None),
            Wanted::Deployed(deployed) => (deployed.digest.as_str(), Some(deployed.clone())),
        };
        let before = self.running.get(&settings.name);
        match before.filter(|before| {
            is_loaded_alike(&before.settings, settings) && before.handler.digest() == digest
        }) {
            Some(before) => {
                let (settings, handler) = (settings.clone(), Arc::clone(&before.handler));
                Ok(Some(Loaded { settings, deployed, handler }))
            }
            None => {
                self.loads.begin(settings, wanted, trigger == Trigger::Hangup);
                Ok(None)
            }
        }
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

/// How long events stay in the log.
pub(super) fn keeping(config: &Config) -> Keeping {
    let pinned = |tenant: &TenantSettings| Some((tenant.name.clone(), tenant.pinned_log?));
    Keeping {
        retention: config.retention,
        pinned_log: config.tenants.iter().filter_map(pinned).collect(),
    }
}

/// The files that a change of would matter.
pub(super) fn files<'a>(path: &'a Path, config: &'a Config) -> impl Iterator<Item = &'a Path> {
    let components = config.handlers.iter().filter_map(|handler| match &handler.component {
        Component::File(path) => Some(path.as_path()),
        Component::Deployed => None,
    });
    components.chain([path])
}

/// What the settings say of all handlers otherwise than before, in their own words.
fn changed(before: &Config, now: &Config) -> Vec<String> {
    let mut changed = Vec::new();
    for (setting, is_changed) in [
        ("concurrency", before.concurrency != now.concurrency),
        ("retention", before.retention.max_age != now.retention.max_age),
        ("retention_size", before.retention.max_bytes != now.retention.max_bytes),
    ] {
        changed.extend(is_changed.then(|| setting.to_owned()));
    }
    let of = |config: &Config, name| config.tenants.iter().find(|one| one.name == name).cloned();
    let names = before.tenants.iter().chain(&now.tenants).map(|tenant| tenant.name.clone());
    for name in names.collect::<BTreeSet<_>>() {
        if of(before, name.clone()) != of(now, name.clone()) {
            changed.push(format!("tenants.{name}"));
        }
    }
    changed
}

/// The handlers that run otherwise than before, or no longer.
fn changed_handlers(
    before: &BTreeMap<HandlerName, Loaded>,
    now: &BTreeMap<HandlerName, Loaded>,
) -> Vec<String> {
    let is_same = |name: &&HandlerName| match (before.get(*name), now.get(*name)) {
        (Some(before), Some(now)) => before.is_same_as(now),
        _ => false,
    };
    let names: BTreeSet<&HandlerName> = before.keys().chain(now.keys()).collect();
    names.into_iter().filter(|name| !is_same(name)).map(|name| format!("handlers.{name}")).collect()
}

/// Sets what the settings say of all handlers and of each tenant's.
pub(super) fn bound(permits: &Permits, loader: &Loader, config: &Config) {
    let tenants = config.tenants.iter().map(|tenant| (&tenant.name, &tenant.ceilings));
    loader.bound_connections(
        tenants.clone().filter_map(|(name, ceilings)| Some((name, ceilings.http_connections?))),
    );
    permits.configure(config.concurrency, tenants);
}

/// What goes on as before may be in a group that the settings have given to
/// another handler by now, and a group has one.
fn drop_displaced(
    wanted: &mut BTreeMap<HandlerName, Loaded>,
    running: &BTreeMap<HandlerName, Loaded>,
) {
    let goes_on = |name: &HandlerName, loaded: &Loaded| {
        running.get(name).is_some_and(|before| before.is_same_as(loaded))
    };
    let taken: HashSet<GroupName> = wanted
        .iter()
        .filter(|(name, loaded)| !goes_on(name, loaded))
        .map(|(_, loaded)| loaded.settings.group.clone())
        .collect();
    wanted.retain(|name, loaded| {
        let displaced = goes_on(name, loaded) && taken.contains(&loaded.settings.group);
        if displaced {
            error!(
                handler = %name,
                group = %loaded.settings.group,
                "stops: its group is another handler's now"
            );
        }
        !displaced
    });
}

impl Loaded {
    fn is_same_as(&self, other: &Self) -> bool {
        self.settings == other.settings
            && self.deployed == other.deployed
            && Arc::ptr_eq(&self.handler, &other.handler)
    }
}

/// A handler as the supervisor runs it: its group, or the group's partitions.
pub(super) fn groups(loaded: &Loaded, loader: &Loader, store: &Arc<dyn Store>) -> Vec<Group> {
    let of = loaded.settings.partitions;
    if of <= 1 {
        return vec![group(loaded, None, loader, store)];
    }
    let partitions = (0..of).map(|number| Partition { number, of });
    partitions.map(|partition| group(loaded, Some(partition), loader, store)).collect()
}

fn group(
    loaded: &Loaded,
    partition: Option<Partition>,
    loader: &Loader,
    store: &Arc<dyn Store>,
) -> Group {
    let settings = &loaded.settings;
    let name = match partition {
        Some(partition) => settings.group.partition(partition.number),
        None => settings.group.clone(),
    };
    Group {
        settings: GroupSettings {
            name,
            partition,
            tenant: settings.tenant.clone(),
            subscription: settings.subscription.clone(),
            ordering: settings.ordering,
            concurrency: settings.concurrency,
            max_parked: settings.max_parked,
            overtake: settings.overtake,
            retry: settings.retry.clone(),
            batch: settings.batch,
            breaker: settings.breaker.clone(),
        },
        start: settings.start,
        deployed: loaded.deployed.clone(),
        handler: Arc::clone(&loaded.handler) as Arc<dyn crate::delivery::Handler>,
        components: Arc::new(Replays {
            loader: loader.clone(),
            settings: settings.clone(),
            store: Arc::clone(store),
        }),
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
