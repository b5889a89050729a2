//! Components that a host loads beside what it runs, and at its start.
//!
//! One that has to be compiled may take minutes. So each is loaded by a task of its
//! own, and the host waits for a moment only: what is loaded by then is
//! switched to, and the rest when it is. What has to be compiled waits for what was
//! begun before it of the same tenant; what was compiled before waits for none of that.
//! What was refused is not tried again until it, or its settings, change, or somebody
//! asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::loading::{Loaded, Loader, NotLoaded};
use super::wanted::Wanted;
use crate::config::HandlerSettings;
use event_host_core::event::{HandlerName, Tenant};
use event_host_store::Deployments;

/// Components at once that were compiled before: each takes its size of memory meanwhile.
const KNOWN_AT_ONCE: usize = 4;

/// How far a load is.
pub(crate) enum Progress<'a> {
    /// Done.
    Loaded(Box<Loaded>),
    /// Refused.
    Refused(&'a NotLoaded),
    /// Not done yet.
    UnderWay,
}

/// Loads that are under way, and what was refused.
pub(crate) struct Loads {
    loader: Loader,
    /// Where deployed components come from, once it is open.
    store: Option<Arc<dyn Deployments>>,
    loads: BTreeMap<HandlerName, Load>,
    /// One permit a tenant: what waits to be compiled is in memory meanwhile.
    tenants: BTreeMap<Tenant, Arc<Semaphore>>,
    /// For those that need not be compiled.
    known: Arc<Semaphore>,
    /// Told of each that ends.
    ended: Arc<Notify>,
}

struct Load {
    settings: HandlerSettings,
    wanted: Wanted,
    state: State,
}

enum State {
    UnderWay { task: AbortOnDropHandle<()>, outcome: oneshot::Receiver<Result<Loaded, NotLoaded>> },
    Loaded(Box<Loaded>),
    Refused(NotLoaded),
}

impl Load {
    /// Waits for its end.
    async fn end(&mut self) {
        if let State::UnderWay { task, outcome } = &mut self.state {
            self.state = match outcome.await {
                Ok(outcome) => State::from(outcome),
                Err(_) => broke_off(task).await,
            };
        }
    }

    /// Takes note of its end, if it has ended.
    async fn look(&mut self) {
        if let State::UnderWay { task, outcome } = &mut self.state {
            self.state = match outcome.try_recv() {
                Ok(outcome) => State::from(outcome),
                Err(TryRecvError::Closed) => broke_off(task).await,
                Err(TryRecvError::Empty) => return,
            };
        }
    }
}

impl From<Result<Loaded, NotLoaded>> for State {
    fn from(outcome: Result<Loaded, NotLoaded>) -> Self {
        match outcome {
            Ok(loaded) => Self::Loaded(Box::new(loaded)),
            Err(why) => Self::Refused(why),
        }
    }
}

/// A task that gave no outcome has panicked.
async fn broke_off(task: &mut AbortOnDropHandle<()>) -> State {
    let why = task.await.map_or_else(|why| why.to_string(), |()| "without a reason".to_owned());
    State::Refused(NotLoaded::BrokeOff(why))
}

/// Tells when it is dropped.
struct Ended(Arc<Notify>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Whether a handler with the one settings is loaded as with the others.
pub(crate) fn is_loaded_alike(one: &HandlerSettings, other: &HandlerSettings) -> bool {
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
    /// Loads files, until it is given a store.
    pub(crate) fn new(loader: Loader) -> Self {
        let (loads, tenants) = (BTreeMap::new(), BTreeMap::new());
        let known = Arc::new(Semaphore::new(KNOWN_AT_ONCE));
        Self { loader, store: None, loads, tenants, known, ended: Arc::default() }
    }

    /// Loads from there what is deployed.
    pub(crate) fn take_deployed_from(&mut self, store: Arc<dyn Deployments>) {
        self.store = Some(store);
    }

    /// Notified when a load ends.
    pub(crate) fn ended(&self) -> Arc<Notify> {
        Arc::clone(&self.ended)
    }

    /// Begins to load a handler, unless that is under way, or was refused and `again` does
    /// not say to try again. Those of a tenant that have to be compiled are loaded in the
    /// order in which they are begun. Whether it is something else than was begun before.
    pub(crate) fn begin(
        &mut self,
        settings: &HandlerSettings,
        wanted: Wanted,
        again: bool,
    ) -> bool {
        let before = self
            .loads
            .get(&settings.name)
            .filter(|load| load.wanted == wanted && is_loaded_alike(&load.settings, settings));
        let is_another = before.is_none();
        if let Some(load) = before
            && match &load.state {
                State::UnderWay { .. } | State::Loaded(_) => true,
                State::Refused(why) => !again && !why.is_passing(),
            }
        {
            return false;
        }
        let (turn, ended) = (self.turn(settings, &wanted), Arc::clone(&self.ended));
        let (loader, store) = (self.loader.clone(), self.store.clone());
        let (of, what) = (settings.clone(), wanted.clone());
        let (sender, outcome) = oneshot::channel();
        let task = tokio::spawn(async move {
            // Dropped in the opposite order: when it is told, the outcome is there.
            let _ended = Ended(ended);
            let sender = sender;
            let _turn = turn.await;
            // Nobody may wait for it any more.
            let _ = sender.send(loader.wanted(&of, &what, store.as_deref()).await);
        });
        let state = State::UnderWay { task: AbortOnDropHandle::new(task), outcome };
        let load = Load { settings: settings.clone(), wanted, state };
        self.loads.insert(settings.name.clone(), load);
        is_another
    }

    /// What a load waits for before it begins. Its place in the line is taken at once.
    fn turn(
        &mut self,
        settings: &HandlerSettings,
        wanted: &Wanted,
    ) -> impl Future<Output = Option<OwnedSemaphorePermit>> + Send + use<> {
        let line = if self.loader.is_compiled(settings, wanted.digest()) {
            &self.known
        } else {
            let one = || Arc::new(Semaphore::new(1));
            self.tenants.entry(settings.tenant.clone()).or_insert_with(one)
        };
        let mut turn = Box::pin(Arc::clone(line).acquire_owned());
        let at_once = turn.as_mut().now_or_never();
        async move {
            match at_once {
                Some(turn) => turn,
                None => turn.await,
            }
            // Nobody closes it.
            .ok()
        }
    }

    /// Waits until nothing is under way, and so long at most.
    pub(crate) async fn wait(&mut self, patience: Duration) {
        let all = async {
            for load in self.loads.values_mut() {
                load.end().await;
            }
        };
        // Those that are not done by then tell it when they are.
        let _ = tokio::time::timeout(patience, all).await;
    }

    /// How far the load of a handler is. What is loaded is given once.
    pub(crate) async fn progress(&mut self, settings: &HandlerSettings) -> Progress<'_> {
        let name = &settings.name;
        if let Some(load) = self.loads.get_mut(name) {
            load.look().await;
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

    /// Why a handler was refused, if it was.
    pub(crate) async fn refused(&mut self, name: &HandlerName) -> Option<&NotLoaded> {
        let load = self.loads.get_mut(name)?;
        load.look().await;
        match &load.state {
            State::Refused(why) => Some(why),
            State::UnderWay { .. } | State::Loaded(_) => None,
        }
    }

    /// Lets go of all but these handlers.
    pub(crate) fn keep(&mut self, mut wanted: impl FnMut(&HandlerName) -> bool) {
        self.loads.retain(|name, _| wanted(name));
        self.tenants.retain(|_, turn| Arc::strong_count(turn) > 1);
    }
}
