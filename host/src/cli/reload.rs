//! What a host runs, loaded anew while it runs: at SIGHUP, and with `--watch`
//! when a file changes.
//!
//! Everything is read, checked and compiled before anything is switched. What
//! does not load leaves what runs in place, and so does a file whose bytes are
//! the same as before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::loading::Loaded;
use super::watch::Watch;
use crate::config::{Config, HandlerSettings, Overrides};
use crate::delivery::Handler as _;
use crate::delivery::group::GroupSettings;
use crate::delivery::permits::Permits;
use crate::event::GroupName;
use crate::sandbox::Sandbox;
use crate::supervisor::{Change, Group};

/// When is tried again what the database did not take.
const AGAIN: Duration = Duration::from_secs(5);

/// What a host runs, and where it comes from.
pub(super) struct Reloader {
    /// The settings file.
    pub(super) path: PathBuf,
    pub(super) overrides: Overrides,
    pub(super) sandbox: Sandbox,
    /// The settings as a whole, as they were read last.
    pub(super) config: Config,
    /// What runs, by the name of the handler.
    pub(super) running: BTreeMap<String, Loaded>,
    /// What bounds the handlers together.
    pub(super) permits: Arc<Permits>,
    /// Where changes go.
    pub(super) changes: mpsc::Sender<Change>,
}

/// What makes a host look at its files again.
pub(super) struct Triggers {
    pub(super) hangup: Signal,
    /// `None` without `--watch`.
    pub(super) files: Option<Watch>,
}

impl Triggers {
    /// Waits for the next one. Whether somebody asked for it in so many words.
    async fn next(&mut self) -> bool {
        let changed = async {
            match &mut self.files {
                Some(files) => files.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(()) = self.hangup.recv() => true,
            () = changed => false,
        }
    }
}

impl Reloader {
    /// Follows the triggers until the stop.
    pub(super) async fn run(mut self, mut triggers: Triggers, stop: CancellationToken) {
        let mut again = false;
        loop {
            self.watch(&mut triggers);
            let asked = tokio::select! {
                () = stop.cancelled() => return,
                asked = triggers.next() => asked,
                () = tokio::time::sleep(AGAIN), if again => false,
            };
            let reloaded = tokio::select! {
                () = stop.cancelled() => return,
                reloaded = self.reload(asked) => reloaded,
            };
            again = !reloaded;
        }
    }

    fn watch(&self, triggers: &mut Triggers) {
        let Some(files) = &mut triggers.files else { return };
        let components = self.config.handlers.iter().map(|handler| handler.component.as_path());
        files.follow(components.chain([self.path.as_path()]));
    }

    /// Loads what changed, and has the host run it. Whether there is nothing to
    /// try again.
    async fn reload(&mut self, asked: bool) -> bool {
        let config = match Config::load(&self.path, &self.overrides) {
            Ok(config) => config,
            Err(errors) => {
                error!("the settings are refused, and everything goes on as before: {errors}");
                return true;
            }
        };
        self.say_what_takes_a_restart(&config);
        let mut wanted = BTreeMap::new();
        for settings in &config.handlers {
            let before = self.running.get(&settings.name);
            match self.load(settings, before).await {
                Ok(loaded) => {
                    wanted.insert(settings.name.clone(), loaded);
                }
                Err(why) => match before {
                    Some(before) => {
                        error!(
                            handler = settings.name,
                            running = before.handler.digest(),
                            "does not load, and goes on as before: {why}"
                        );
                        wanted.insert(settings.name.clone(), before.clone());
                    }
                    None => {
                        error!(handler = settings.name, "does not load, and is not run: {why}");
                    }
                },
            }
        }
        bound(&self.permits, &config);
        self.config = config;
        drop_displaced(&mut wanted, &self.running);
        let unchanged = wanted.len() == self.running.len()
            && wanted.iter().all(|(name, loaded)| {
                self.running.get(name).is_some_and(|before| before.is_same_as(loaded))
            });
        if unchanged {
            if asked {
                info!("nothing changed");
            } else {
                debug!("nothing changed");
            }
            return true;
        }
        self.switch(wanted).await
    }

    /// The handler with these settings; the one that runs, if it is the same.
    async fn load(
        &self,
        settings: &HandlerSettings,
        before: Option<&Loaded>,
    ) -> anyhow::Result<Loaded> {
        if let Some(before) = before
            && is_loaded_alike(&before.settings, settings)
            && self.sandbox.digest(settings.component.clone()).await? == before.handler.digest()
        {
            return Ok(Loaded { settings: settings.clone(), handler: Arc::clone(&before.handler) });
        }
        let handler = super::loading::load_one(&self.sandbox, settings).await?;
        Ok(Loaded { settings: settings.clone(), handler })
    }

    /// Has the host run this. Whether the database took all of it.
    async fn switch(&mut self, wanted: BTreeMap<String, Loaded>) -> bool {
        let (refused, refusals) = oneshot::channel();
        let groups = wanted.values().map(group).collect();
        if self.changes.send(Change { groups, refused }).await.is_err() {
            // The host is going down.
            return true;
        }
        let Ok(refusals) = refusals.await else { return true };
        let refusals: HashMap<GroupName, _> = refusals.into_iter().collect();
        let mut running = BTreeMap::new();
        for (name, loaded) in wanted {
            match refusals.get(&loaded.settings.group) {
                None => {
                    running.insert(name, loaded);
                }
                Some(why) => {
                    error!(group = %loaded.settings.group, "goes on as before: {why}");
                    if let Some(before) = self.running.remove(&name) {
                        running.insert(name, before);
                    }
                }
            }
        }
        self.running = running;
        info!(handlers = self.running.len(), "reloaded");
        refusals.is_empty()
    }

    fn say_what_takes_a_restart(&self, now: &Config) {
        let changed = [
            ("database", self.config.database != now.database),
            ("lock_database", self.config.lock_database != now.lock_database),
            ("grace", self.config.grace != now.grace),
        ];
        for (setting, _) in changed.iter().filter(|(_, changed)| *changed) {
            warn!("`{setting}` changed: that takes a restart of the host");
        }
    }
}

/// Sets what the settings say of all handlers and of each tenant's.
pub(super) fn bound(permits: &Permits, config: &Config) {
    let tenants = config.tenants.iter().map(|tenant| (&tenant.name, &tenant.ceilings));
    permits.configure(config.concurrency, tenants);
}

/// Whether one loaded component serves both settings.
fn is_loaded_alike(one: &HandlerSettings, other: &HandlerSettings) -> bool {
    one.component == other.component
        && one.limits == other.limits
        && one.grants == other.grants
        && one.reuse == other.reuse
}

/// What goes on as before may be in a group that the settings have given to
/// another handler by now, and a group has one.
fn drop_displaced(wanted: &mut BTreeMap<String, Loaded>, running: &BTreeMap<String, Loaded>) {
    let goes_on = |name: &String, loaded: &Loaded| {
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
                handler = name,
                group = %loaded.settings.group,
                "stops: its group is another handler's now"
            );
        }
        !displaced
    });
}

impl Loaded {
    fn is_same_as(&self, other: &Self) -> bool {
        self.settings == other.settings && Arc::ptr_eq(&self.handler, &other.handler)
    }
}

/// A handler as the supervisor runs it.
pub(super) fn group(loaded: &Loaded) -> Group {
    let settings = &loaded.settings;
    Group {
        settings: GroupSettings {
            name: settings.group.clone(),
            tenant: settings.tenant.clone(),
            subscription: settings.subscription.clone(),
            retry: settings.retry.clone(),
            batch: settings.batch,
            breaker: settings.breaker.clone(),
        },
        start: settings.start,
        handler: Arc::clone(&loaded.handler) as Arc<dyn crate::delivery::Handler>,
    }
}
