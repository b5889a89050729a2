//! Components that a running host loads beside what it runs.
//!
//! One that has to be compiled may take minutes. So each is loaded by a task of its
//! own, one of a tenant at a time, and whoever begins them waits for a moment only:
//! what is loaded by then is switched to, and the rest when it is. What was refused
//! is not tried again until it, or its settings, change, or somebody asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use super::loading::{Loaded, Loader, NotLoaded};
use crate::config::HandlerSettings;
use crate::event::{HandlerName, Tenant};
use crate::store::{Deployed, Store};

/// What a handler is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The handler's file, whose digest was this.
    File(String),
    /// A version that is deployed.
    Deployed(Deployed),
}

/// How far a load is.
pub(super) enum Progress<'a> {
    /// Done.
    Loaded(Box<Loaded>),
    /// Refused.
    Refused(&'a NotLoaded),
    /// Not done yet.
    UnderWay,
}

/// Loads that are under way, and what was refused.
pub(super) struct Loads {
    loader: Loader,
    store: Arc<dyn Store>,
    loads: BTreeMap<HandlerName, Load>,
    /// One permit a tenant: what waits to be compiled is in memory meanwhile.
    tenants: BTreeMap<Tenant, Arc<Semaphore>>,
    /// Told of each that ends.
    ended: Arc<Notify>,
}

struct Load {
    settings: HandlerSettings,
    wanted: Wanted,
    state: State,
}

enum State {
    UnderWay(AbortOnDropHandle<Result<Loaded, NotLoaded>>),
    Loaded(Box<Loaded>),
    Refused(NotLoaded),
}

impl Load {
    /// Waits for the end of the task.
    async fn end(&mut self) {
        if let State::UnderWay(task) = &mut self.state {
            self.state = match task.await {
                Ok(Ok(loaded)) => State::Loaded(Box::new(loaded)),
                Ok(Err(why)) => State::Refused(why),
                Err(why) => State::Refused(NotLoaded::BrokeOff(why.to_string())),
            };
        }
    }
}

/// Tells when it is dropped.
struct Ended(Arc<Notify>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Whether a handler with the one settings is loaded as with the others.
pub(super) fn is_loaded_alike(one: &HandlerSettings, other: &HandlerSettings) -> bool {
    one.component == other.component
        && one.digest == other.digest
        && one.limits == other.limits
        && one.grants == other.grants
        && one.reuse == other.reuse
        && one.http_path == other.http_path
        // What these are may be refused to a component.
        && one.ordering == other.ordering
        && one.batch == other.batch
}

impl Loads {
    pub(super) fn new(loader: Loader, store: Arc<dyn Store>) -> Self {
        let (loads, tenants) = (BTreeMap::new(), BTreeMap::new());
        Self { loader, store, loads, tenants, ended: Arc::default() }
    }

    /// Told when one ends that nobody waited for.
    pub(super) fn ended(&self) -> Arc<Notify> {
        Arc::clone(&self.ended)
    }

    /// Begins to load a handler, unless that is under way, or was refused and `anew` does
    /// not say to try again.
    pub(super) fn begin(&mut self, settings: &HandlerSettings, wanted: Wanted, anew: bool) {
        if let Some(load) = self.loads.get(&settings.name)
            && load.wanted == wanted
            && is_loaded_alike(&load.settings, settings)
            && match &load.state {
                State::UnderWay(_) | State::Loaded(_) => true,
                State::Refused(why) => !anew && !why.is_passing(),
            }
        {
            return;
        }
        let one = || Arc::new(Semaphore::new(1));
        let turn = self.tenants.entry(settings.tenant.clone()).or_insert_with(one);
        let (turn, ended) = (Arc::clone(turn), Arc::clone(&self.ended));
        let (loader, store) = (self.loader.clone(), Arc::clone(&self.store));
        let (of, what) = (settings.clone(), wanted.clone());
        let task = tokio::spawn(async move {
            let _ended = Ended(ended);
            // Nobody closes it.
            let _turn = turn.acquire_owned().await.ok();
            loader.wanted(&of, &what, &*store).await
        });
        let state = State::UnderWay(AbortOnDropHandle::new(task));
        let load = Load { settings: settings.clone(), wanted, state };
        self.loads.insert(settings.name.clone(), load);
    }

    /// Waits until nothing is under way, and so long at most.
    pub(super) async fn wait(&mut self, patience: Duration) {
        let all = async {
            for load in self.loads.values_mut() {
                load.end().await;
            }
        };
        // Those that are not done by then tell it when they are.
        let _ = tokio::time::timeout(patience, all).await;
    }

    /// How far the load of a handler is. What is loaded is given once.
    pub(super) async fn progress(&mut self, settings: &HandlerSettings) -> Progress<'_> {
        let name = &settings.name;
        match self.loads.get_mut(name) {
            None => return Progress::UnderWay,
            Some(load) => match &load.state {
                State::UnderWay(task) if !task.is_finished() => return Progress::UnderWay,
                _ => load.end().await,
            },
        }
        let is_loaded =
            self.loads.get(name).is_some_and(|load| matches!(load.state, State::Loaded(_)));
        if is_loaded
            && let Some(Load { state: State::Loaded(loaded), .. }) = self.loads.remove(name)
        {
            // What does not matter for loading may have changed meanwhile.
            return Progress::Loaded(Box::new(Loaded { settings: settings.clone(), ..*loaded }));
        }
        match self.loads.get(name).map(|load| &load.state) {
            Some(State::Refused(why)) => Progress::Refused(why),
            _ => Progress::UnderWay,
        }
    }

    /// Lets go of all but these handlers.
    pub(super) fn keep(&mut self, mut wanted: impl FnMut(&HandlerName) -> bool) {
        self.loads.retain(|name, _| wanted(name));
        self.tenants.retain(|_, turn| Arc::strong_count(turn) > 1);
    }
}
