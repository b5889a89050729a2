//! Runs the groups of a config: start, swap, stop.
//!
//! One watcher asks the database for the safe position and the groups' rows, on behalf of all
//! groups. Each group has a task of its own, which competes for the lock, leads, and competes
//! again; a task that panics is started again. Which groups there are, and which version of
//! each, may change meanwhile. Groups that stay as they are do not notice. Nothing here
//! decides what is delivered.

mod drain;
mod reporter;
mod retention;
mod running;
mod task;
#[cfg(test)]
mod tests;
mod watcher;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::admission::FairExecutor;
use crate::group::{Control, GroupSettings, PASS_INTERVAL};
use crate::leadership::Locks;
use crate::replay_component::ReplayComponents;
use event_host_core::clock::Clock;
use event_host_core::event::{Attempt, Epoch, GroupName, Position};
use event_host_core::handler::Handler;
use event_host_core::restart::spawn_with_restart;
use event_host_core::retry::RetryPolicy;
use event_host_core::troubles::Troubles;
use event_host_metrics::Metrics;
use event_host_store::{
    self, DeliveryStore, Deployed, Deployments, GroupState, HostIdentity, Start, StoreError,
};
use reporter::Reporter;
pub use retention::{RetentionSettings, RetentionTask};
use running::RunningGroups;
use watcher::{Controls, OvertakeLimits, Watcher};

/// A group to run.
#[derive(Clone)]
pub struct Group {
    /// What it is, for delivery.
    pub settings: GroupSettings,
    /// Where it begins if it is new.
    pub start: Start,
    /// The deployed version of its handler, if it is deployed. The host goes back to the one
    /// before it where this one fails everything and the settings say so.
    pub deployed: Option<Deployed>,
    /// The code.
    pub handler: Arc<dyn Handler>,
    /// Where the code of replays comes from that name a component.
    pub components: Arc<dyn ReplayComponents>,
}

/// What a host runs, and on what.
pub struct Supervisor {
    /// The database, with its schema up to date.
    pub store: Arc<dyn DeliveryStore>,
    /// Where components are deployed, so that a version that fails everything is rolled
    /// back for all hosts; `None` where none are.
    pub deployments: Option<Arc<dyn Deployments>>,
    /// This process.
    pub host: HostIdentity,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// Which attempts may run at once, and where.
    pub executor: FairExecutor,
    /// The groups; no two of one name. Of one that is split, all partitions, one after
    /// the other.
    pub groups: Vec<Group>,
    /// How long an attempt may go on after the stop.
    pub grace: Duration,
    /// End once nothing is left to do.
    pub drain: bool,
    /// The outages of this host. Shared with other tasks; the supervisor adds its own.
    pub troubles: Troubles,
    /// What its groups count with.
    pub metrics: Arc<Metrics>,
    /// Hands out this host's lock session, for other tasks that one host of a database does at
    /// a time.
    pub locks: oneshot::Sender<Locks>,
}

/// What a host is to run from now on.
pub struct Change {
    /// All of its groups, as [`Supervisor::groups`] has them. One whose settings are
    /// equal to those that run, with the very same handler, is left alone.
    pub groups: Vec<Group>,
    /// Gets the groups that go on as before, by their whole names and with the reason,
    /// because the store did not take the change.
    pub refused: oneshot::Sender<Vec<(GroupName, StoreError)>>,
}

/// Groups that a host gets by changes, because their handlers are still being loaded when it
/// starts.
pub struct Later {
    /// Their registrations. They are registered before the first group runs, so that what it
    /// emits reaches them all.
    pub groups: Vec<event_host_store::GroupRegistration>,
    /// Is cancelled once that is done.
    pub registered: CancellationToken,
    /// Cancelled once all of them were given. A host that drains does not end before.
    pub all_given: CancellationToken,
}

impl Later {
    /// All groups are there from the start.
    #[must_use]
    pub fn nothing() -> Self {
        let all_given = CancellationToken::new();
        all_given.cancel();
        Self { groups: Vec::new(), registered: CancellationToken::new(), all_given }
    }
}

impl Supervisor {
    /// Runs every group until `stop` is cancelled, or until nothing is left to do
    /// if it drains; then settles, releases the locks and returns.
    ///
    /// # Errors
    /// When a group cannot be registered in the database at the start, and when the watcher
    /// or the owner of the locks breaks: the groups are then stopped in order, because they
    /// would wait for signals that no longer come.
    pub async fn run(self, stop: CancellationToken) -> Result<(), StoreError> {
        let (_never, changes) = mpsc::channel(1);
        self.run_and_follow(stop, changes, Later::nothing()).await
    }

    /// Does the same, and follows changes: a group that is no longer wanted
    /// stops and keeps its cursor; one that changed finishes its batch and goes
    /// on as the new version.
    ///
    /// # Errors
    /// As [`Supervisor::run`].
    pub async fn run_and_follow(
        self,
        stop: CancellationToken,
        mut changes: mpsc::Receiver<Change>,
        later: Later,
    ) -> Result<(), StoreError> {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            registered = self.register(&later) => registered?,
        }
        later.registered.cancel();
        let (grace, drain) = (self.grace, self.drain);
        let (mut groups, watcher, reporter) = self.start(&stop);
        // The watcher wakes all groups that run by now at the first event.
        let mut watcher = tokio::spawn(watcher.run());
        let reporting = {
            let reporter = reporter.clone();
            spawn_with_restart("what tells `status` of troubles", move || {
                let reporter = reporter.clone();
                async move { match reporter.run().await {} }
            })
        };
        let broken = groups.serve(&stop, &mut watcher, &mut changes, &later, drain).await;
        stop.cancel();
        let interrupt = groups.interrupt.clone();
        let all = async { while groups.tasks.join_next().await.is_some() {} };
        tokio::pin!(all);
        if tokio::time::timeout(grace, &mut all).await.is_err() {
            warn!("the grace period is over: interrupting the attempts that still run");
            interrupt.cancel();
            all.await;
        }
        watcher.abort();
        drop(reporting);
        reporter.end().await;
        broken.map_or(Ok(()), |what| Err(StoreError::Unusable(what)))
    }

    /// Registers the groups, those included that come later.
    async fn register(&self, later: &Later) -> Result<(), StoreError> {
        self.store.check().await?;
        let now = self.groups.iter().filter(|group| is_first(group)).map(registration);
        let all: Vec<_> = now.chain(later.groups.iter().cloned()).collect();
        self.store.ensure_groups(&all).await
    }

    /// Starts the groups, and makes the watcher and the reporter, which do not run yet.
    fn start(self, stop: &CancellationToken) -> (RunningGroups, Watcher, Reporter) {
        let published = Arc::new(Notify::new());
        let (safe, safe_seen) = watch::channel(Position::ZERO);
        let awaited = Arc::default();
        let overtake_limit = Arc::new(OvertakeLimits::default());
        let controls = Arc::new(Controls::default());
        let troubles = self.troubles;
        let (store, host) = (self.store.clone(), self.host.clone());
        let locks = Locks::start(store, host, troubles.clone(), self.metrics.store.clone());
        // The receiver may have been dropped.
        let _ = self.locks.send(locks.clone());
        let reporter = Reporter::new(self.store.clone(), &self.host, &troubles);
        let watcher = Watcher {
            store: Arc::clone(&self.store),
            safe,
            awaited: Arc::clone(&awaited),
            overtake_limit: Arc::clone(&overtake_limit),
            controls: Arc::clone(&controls),
            published: Arc::clone(&published),
            locks: locks.clone(),
            troubles: troubles.clone(),
            metrics: self.metrics.store.clone(),
        };
        let mut groups = RunningGroups {
            metrics: self.metrics,
            locks,
            troubles,
            store: self.store,
            deployments: self.deployments,
            host: self.host,
            clock: self.clock,
            executor: self.executor,
            stop: stop.clone(),
            interrupt: CancellationToken::new(),
            grace: self.grace,
            safe: safe_seen,
            awaited,
            overtake_limit,
            controls,
            published,
            crash_guard: Arc::new(Semaphore::new(1)),
            pass_interval: if self.drain { Duration::ZERO } else { PASS_INTERVAL },
            running: HashMap::new(),
            leaving: HashMap::new(),
            tasks: JoinSet::new(),
        };
        for group in self.groups {
            groups.start(group, Control { epoch: Epoch(0), state: GroupState::Running });
        }
        (groups, watcher, reporter)
    }
}

/// What the store registers of a group.
fn registration(group: &Group) -> event_host_store::GroupRegistration {
    event_host_store::GroupRegistration {
        name: group.settings.group(),
        partitions: group.settings.partition.map_or(1, |partition| partition.of),
        tenant: group.settings.tenant.clone(),
        subscription: group.settings.subscription.clone(),
        start: group.start,
    }
}

/// Whether it is the first partition of its group, or the whole group: what is done once per
/// group is done with that.
fn is_first(group: &Group) -> bool {
    group.settings.partition.is_none_or(|partition| partition.number == 0)
}

/// How long to wait before something that broke this number of times is started again.
fn restart_delay(times: u32) -> Duration {
    let policy = RetryPolicy {
        initial: Duration::from_millis(100),
        max: Duration::from_secs(5),
        ..RetryPolicy::default()
    };
    policy.delay(Attempt(times), None, fastrand::f64())
}
