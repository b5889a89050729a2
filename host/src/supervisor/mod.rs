//! Runs the groups of a config: start, swap, stop.
//!
//! One watcher asks the database for the safe position and the groups' rows, on
//! behalf of all groups. Each group has a task of its own, which competes for
//! the lock, leads, and competes again; a task that panics is started anew.
//! Which groups there are, and which version of each, may change meanwhile:
//! those that stay as they are never notice. Nothing here decides what is
//! delivered.

mod drain;
mod keeper;
mod reporter;
mod task;
#[cfg(test)]
mod tests;
mod watcher;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::delivery::Handler;
use crate::delivery::by_digest::{ByDigest, Components};
use crate::delivery::group::{Awaited, Control, GroupLoop, GroupSettings, PASS_INTERVAL};
use crate::delivery::permits::{Cores, Demand};
use crate::event::{Attempt, Epoch, GroupName, Position};
use crate::leadership::Locks;
use crate::restart::spawn_with_restart;
use crate::retry::RetryPolicy;
use crate::store::{self, Deployed, GroupState, HostIdentity, Start, Store, StoreError};
use crate::troubles::Troubles;
use drain::drained;
pub use keeper::{Keeper, Keeping};
use reporter::Reporter;
use task::{GroupTask, Version};
use watcher::{Controls, Passable, Watcher};

/// A group to run.
#[derive(Clone)]
pub struct Group {
    /// What it is, for delivery.
    pub settings: GroupSettings,
    /// Where it begins if it is new.
    pub start: Start,
    /// The version of its handler, if that is deployed: the one before it is
    /// made active for all hosts, where this one fails everything and the
    /// settings say so.
    pub deployed: Option<Deployed>,
    /// The code.
    pub handler: Arc<dyn Handler>,
    /// Where the code of replays comes from that name a component.
    pub components: Arc<dyn Components>,
}

/// What a host runs, and on what.
pub struct Supervisor {
    /// The database, with its schema up to date.
    pub store: Arc<dyn Store>,
    /// This process.
    pub host: HostIdentity,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// Which attempts may run at once, and where.
    pub cores: Cores,
    /// The groups; no two of one name. Of one that is split, all partitions, one after
    /// the other.
    pub groups: Vec<Group>,
    /// How long an attempt may go on after the stop.
    pub grace: Duration,
    /// End once nothing is left to do.
    pub drain: bool,
}

/// What a host is to run from now on.
pub struct Change {
    /// All of its groups, as [`Supervisor::groups`] has them. One whose settings are
    /// equal to those that run, with the very same handler, is left alone.
    pub groups: Vec<Group>,
    /// Gets the groups that go on as before, by their whole names, because the
    /// database did not take the change, with the reason.
    pub refused: oneshot::Sender<Vec<(GroupName, StoreError)>>,
}

/// Groups that a host is given by changes, because what runs in them is still being
/// loaded when it starts.
pub struct Later {
    /// How they are registered, which is done before the first group runs: what that one
    /// emits reaches them all.
    pub groups: Vec<store::GroupSettings>,
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
    /// When a group cannot be registered in the database at the start, and when
    /// the watcher or the owner of the locks breaks: the groups are then stopped
    /// in order, because they would wait for what nobody tells them of.
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
        let registering = async {
            self.store.check().await?;
            for group in self.groups.iter().filter(|group| is_first(group)) {
                self.store.ensure_group(&registration(group)).await?;
            }
            for group in &later.groups {
                self.store.ensure_group(group).await?;
            }
            Ok::<_, StoreError>(())
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            registered = registering => registered?,
        }
        later.registered.cancel();
        let interrupt = CancellationToken::new();
        let published = Arc::new(Notify::new());
        let (safe, safe_seen) = watch::channel(Position::ZERO);
        let awaited = Arc::default();
        let passable = Arc::new(Passable::default());
        let controls = Arc::new(Controls::default());
        let troubles = Troubles::default();
        let locks = Locks::start(Arc::clone(&self.store), self.host.clone(), troubles.clone());
        let reporter = Reporter::new(&self.store, &self.host, &troubles);
        let watcher = Watcher {
            store: Arc::clone(&self.store),
            safe,
            awaited: Arc::clone(&awaited),
            passable: Arc::clone(&passable),
            controls: Arc::clone(&controls),
            published: Arc::clone(&published),
            locks: locks.clone(),
            troubles: troubles.clone(),
        };
        let mut crew = Crew {
            locks,
            troubles,
            store: self.store,
            host: self.host,
            clock: Arc::clone(&self.clock),
            cores: self.cores,
            stop: stop.clone(),
            interrupt: interrupt.clone(),
            grace: self.grace,
            safe: safe_seen,
            awaited,
            passable,
            controls,
            published,
            crash_guard: Arc::new(Semaphore::new(1)),
            pass_interval: if self.drain { Duration::ZERO } else { PASS_INTERVAL },
            members: HashMap::new(),
            leaving: HashMap::new(),
            tasks: JoinSet::new(),
        };
        for group in self.groups {
            crew.start(group, Control { epoch: Epoch(0), state: GroupState::Running });
        }
        // It tells all that are there before it tells of the first event.
        let mut watcher = tokio::spawn(watcher.run());
        let reporting = {
            let reporter = reporter.clone();
            spawn_with_restart("what tells `status` of troubles", move || {
                let reporter = reporter.clone();
                async move { match reporter.run().await {} }
            })
        };
        let locks = crew.locks.clone();
        let broken = loop {
            let drain = async {
                if self.drain {
                    later.all_given.cancelled().await;
                    drained(&*crew.store, &crew.controls, &*self.clock).await
                } else {
                    std::future::pending().await
                }
            };
            let change = tokio::select! {
                () = stop.cancelled() => break None,
                delayed = drain => {
                    match delayed {
                        0 => info!("nothing is left to do"),
                        delayed => info!(
                            delayed,
                            "nothing is left to do but what is to be delivered later"
                        ),
                    }
                    break None;
                }
                Err(why) = &mut watcher => break Some(watcher_broke(&why)),
                () = locks.broken() => break Some(LOCKS_BROKE.to_owned()),
                Some(ended) = crew.tasks.join_next() => match ended {
                    // It was asked to.
                    Ok(()) => continue,
                    Err(why) => break Some(format!("what supervises a group broke: {why}")),
                },
                Some(change) = changes.recv() => change,
            };
            tokio::select! {
                () = stop.cancelled() => break None,
                Err(why) = &mut watcher => break Some(watcher_broke(&why)),
                () = locks.broken() => break Some(LOCKS_BROKE.to_owned()),
                refused = crew.follow(change.groups) => {
                    // Whoever asked for it may be gone.
                    let _ = change.refused.send(refused);
                }
            }
        };
        stop.cancel();
        let all = async { while crew.tasks.join_next().await.is_some() {} };
        tokio::pin!(all);
        if tokio::time::timeout(self.grace, &mut all).await.is_err() {
            warn!("the grace period is over: interrupting the attempts that still run");
            interrupt.cancel();
            all.await;
        }
        watcher.abort();
        drop(reporting);
        reporter.end().await;
        broken.map_or(Ok(()), |what| Err(StoreError::Unusable(what)))
    }
}

const LOCKS_BROKE: &str = "the owner of the locks broke";

fn watcher_broke(why: &JoinError) -> String {
    format!("the watcher of the log broke: {why}")
}

fn registration(group: &Group) -> store::GroupSettings {
    store::GroupSettings {
        name: group.settings.group(),
        partitions: group.settings.partition.map_or(1, |partition| partition.of),
        tenant: group.settings.tenant.clone(),
        subscription: group.settings.subscription.clone(),
        start: group.start,
    }
}

/// Whether it is the first partition of its group, or all of it: what is done once a
/// group is done with that.
fn is_first(group: &Group) -> bool {
    group.settings.partition.is_none_or(|partition| partition.number == 0)
}

/// The groups that run, and what they share.
struct Crew {
    store: Arc<dyn Store>,
    host: HostIdentity,
    clock: Arc<dyn Clock>,
    cores: Cores,
    locks: Locks,
    troubles: Troubles,
    stop: CancellationToken,
    interrupt: CancellationToken,
    grace: Duration,
    safe: watch::Receiver<Position>,
    awaited: Arc<Awaited>,
    passable: Arc<Passable>,
    controls: Arc<Controls>,
    published: Arc<Notify>,
    crash_guard: Arc<Semaphore>,
    pass_interval: Duration,
    members: HashMap<GroupName, Member>,
    /// Groups that were stopped, until their tasks have ended.
    leaving: HashMap<GroupName, CancellationToken>,
    tasks: JoinSet<()>,
}

/// A group that runs.
struct Member {
    group: Group,
    version: watch::Sender<Arc<Version>>,
    stop: CancellationToken,
    interrupt: CancellationToken,
    /// Cancelled when its task has ended.
    ended: CancellationToken,
}

impl Crew {
    /// Changes what runs to what is wanted. Gives those that go on as before,
    /// because the database did not take the change.
    async fn follow(&mut self, wanted: Vec<Group>) -> Vec<(GroupName, StoreError)> {
        self.leaving.retain(|_, ended| !ended.is_cancelled());
        let mut by_group: BTreeMap<GroupName, Vec<Group>> = BTreeMap::new();
        for group in wanted {
            by_group.entry(group.settings.group()).or_default().push(group);
        }
        let gone: Vec<GroupName> = self
            .members
            .keys()
            .filter(|name| !by_group.contains_key(&name.group()))
            .cloned()
            .collect();
        for name in gone {
            self.dismiss(&name);
        }
        let mut refused = Vec::new();
        for (name, parts) in by_group {
            let taken = if self.is_split_otherwise(&name, &parts) {
                self.split_anew(&name, parts).await
            } else {
                self.take_all(&name, parts).await
            };
            if let Err(why) = taken {
                refused.push((name, why));
            }
        }
        refused
    }

    /// Starts the parts of a group, or has another version of each take over: all of
    /// them at once, or none. What can fail comes first, and is done once for all.
    async fn take_all(&mut self, name: &GroupName, parts: Vec<Group>) -> Result<(), StoreError> {
        let runs = |part: &Group| {
            let member = self.members.get(&part.settings.name);
            member.is_some_and(|member| member.runs(part))
        };
        let changed: Vec<Group> = parts.into_iter().filter(|part| !runs(part)).collect();
        let Some(first) = changed.first() else { return Ok(()) };
        self.store.ensure_group(&registration(first)).await?;
        if !changed.iter().any(|part| self.members.contains_key(&part.settings.name)) {
            info!(group = %name, "the group is new here");
        }
        for part in changed {
            self.take(part);
        }
        Ok(())
    }

    /// What runs of a group, whichever parts that are.
    fn parts_of(&self, group: &GroupName) -> Vec<Group> {
        let members = self.members.iter();
        let parts = members.filter(|(name, _)| name.whole() == group.as_str());
        parts.map(|(_, member)| member.group.clone()).collect()
    }

    /// Whether what runs of a group are other parts than these.
    fn is_split_otherwise(&self, group: &GroupName, parts: &[Group]) -> bool {
        let of = |group: &Group| group.settings.partition.map(|partition| partition.of);
        let running = self.parts_of(group);
        running.first().zip(parts.first()).is_some_and(|(before, now)| of(before) != of(now))
    }

    /// Stops the parts of a group that run here, has the group split anew, and starts
    /// the parts that there are then. Where the database refuses it, because another
    /// host runs the group still, those that ran before go on.
    async fn split_anew(&mut self, name: &GroupName, parts: Vec<Group>) -> Result<(), StoreError> {
        let Some(registration) = parts.first().map(registration) else { return Ok(()) };
        let mut before = Vec::new();
        for part in self.parts_of(name) {
            let control = self.controls.of(&part.settings.name);
            self.dismiss(&part.settings.name);
            before.push((part, control));
        }
        for (part, _) in &before {
            if let Some(ended) = self.leaving.get(&part.settings.name) {
                ended.cancelled().await;
            }
        }
        info!(group = %name, partitions = registration.partitions, "splitting the group anew");
        if let Err(why) = self.store.ensure_group(&registration).await {
            for (part, control) in before {
                self.start(part, control);
            }
            return Err(why);
        }
        for part in parts {
            self.take(part);
        }
        Ok(())
    }

    /// Starts a part of a group, or has another version of it take over. That cannot
    /// fail: whether it is to run a leader reads when it begins.
    fn take(&mut self, group: Group) {
        let name = group.settings.name.clone();
        let version = self.version(&group);
        if let Some(member) = self.members.get_mut(&name) {
            member.group = group;
            member.version.send_replace(version).replaced.cancel();
            return;
        }
        self.start(group, Control { epoch: Epoch(0), state: GroupState::Running });
    }

    fn start(&mut self, group: Group, control: Control) {
        let name = group.settings.name.clone();
        let (version, versions) = watch::channel(self.version(&group));
        let member = Member {
            group,
            version,
            stop: self.stop.child_token(),
            interrupt: self.interrupt.child_token(),
            ended: CancellationToken::new(),
        };
        let task = Arc::new(GroupTask {
            name: name.clone(),
            partition: member.group.settings.partition,
            store: Arc::clone(&self.store),
            host: self.host.clone(),
            locks: self.locks.clone(),
            stop: member.stop.clone(),
            interrupt: member.interrupt.clone(),
            safe: self.safe.clone(),
            awaited: Arc::clone(&self.awaited),
            passable: Arc::clone(&self.passable),
            control: self.controls.add(name.clone(), control),
            versions,
            rolled_back: Mutex::default(),
            troubles: self.troubles.clone(),
        });
        let ended = member.ended.clone().drop_guard();
        let before = self.leaving.remove(&name);
        self.tasks.spawn(async move {
            let _ended = ended;
            // Two tasks of one group would compete for one lock in one process.
            if let Some(before) = before {
                before.cancelled().await;
            }
            task.supervised().await;
        });
        self.members.insert(name, member);
    }

    /// Stops a group; its cursor stays where it is.
    fn dismiss(&mut self, name: &GroupName) {
        let Some(member) = self.members.remove(name) else { return };
        info!(group = %name, "the group is no longer run here; its cursor is kept");
        self.controls.remove(name);
        member.stop.cancel();
        self.leaving.insert(name.clone(), member.ended.clone());
        let (ended, grace, interrupt) = (member.ended, self.grace, member.interrupt);
        self.tasks.spawn(async move {
            if tokio::time::timeout(grace, ended.cancelled()).await.is_err() {
                interrupt.cancel();
            }
        });
    }

    fn version(&self, group: &Group) -> Arc<Version> {
        let own = Arc::clone(&group.handler);
        let handler = Arc::new(ByDigest::new(own, Arc::clone(&group.components)));
        let demand = Demand {
            concurrency: group.settings.concurrency,
            memory_bytes: group.handler.memory_bytes(),
        };
        Arc::new(Version {
            registration: registration(group),
            replaced: CancellationToken::new(),
            deployed: group.deployed.clone(),
            group: GroupLoop {
                settings: group.settings.clone(),
                store: Arc::clone(&self.store),
                handler,
                clock: Arc::clone(&self.clock),
                crash_guard: Arc::clone(&self.crash_guard),
                share: self.cores.permits().share(&group.settings.tenant, demand),
                published: Arc::clone(&self.published),
                pass_interval: self.pass_interval,
                troubles: self.troubles.clone(),
            },
        })
    }
}

impl Member {
    /// Whether it runs this already. Where a new group would begin is of no
    /// concern to one that runs.
    fn runs(&self, group: &Group) -> bool {
        self.group.settings == group.settings
            && self.group.deployed == group.deployed
            && Arc::ptr_eq(&self.group.handler, &group.handler)
    }
}

fn restart_delay(times: u32) -> Duration {
    let policy = RetryPolicy {
        initial: Duration::from_millis(100),
        max: Duration::from_secs(5),
        ..RetryPolicy::default()
    };
    policy.delay(Attempt(times), None, fastrand::f64())
}
