//! The groups that run on this host: starts each, replaces its version and stops it.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::drain::drained;
use super::task::{GroupTask, GroupVersion};
use super::watcher::{Controls, OvertakeLimits};
use super::{Change, Group, Later, registration};
use crate::admission::{Demand, FairExecutor};
use crate::group::{Awaited, Control, GroupLoop};
use crate::leadership::Locks;
use crate::replay_component::ReplayHandler;
use event_host_core::clock::Clock;
use event_host_core::event::{Epoch, GroupName, Position};
use event_host_core::troubles::Troubles;
use event_host_metrics::Metrics;
use event_host_store::{DeliveryStore, Deployments, GroupState, HostIdentity, StoreError};

/// The groups that run, and what their tasks are given.
pub(super) struct RunningGroups {
    pub(super) metrics: Arc<Metrics>,
    pub(super) store: Arc<dyn DeliveryStore>,
    pub(super) deployments: Option<Arc<dyn Deployments>>,
    pub(super) host: HostIdentity,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) executor: FairExecutor,
    pub(super) locks: Locks,
    pub(super) troubles: Troubles,
    pub(super) stop: CancellationToken,
    pub(super) interrupt: CancellationToken,
    pub(super) grace: Duration,
    pub(super) safe: watch::Receiver<Position>,
    pub(super) awaited: Arc<Awaited>,
    pub(super) overtake_limit: Arc<OvertakeLimits>,
    pub(super) controls: Arc<Controls>,
    pub(super) published: Arc<Notify>,
    pub(super) crash_guard: Arc<Semaphore>,
    pub(super) pass_interval: Duration,
    pub(super) running: HashMap<GroupName, RunningGroup>,
    /// Groups that were stopped, until their tasks have ended.
    pub(super) leaving: HashMap<GroupName, CancellationToken>,
    pub(super) tasks: JoinSet<()>,
}

/// One group, or one partition, that runs.
pub(super) struct RunningGroup {
    group: Group,
    version: watch::Sender<Arc<GroupVersion>>,
    stop: CancellationToken,
    interrupt: CancellationToken,
    /// Cancelled when its task has ended.
    ended: CancellationToken,
}

impl RunningGroups {
    /// Follows the changes until the stop, or until nothing is left to do if the host
    /// drains. Returns what broke, if anything did.
    pub(super) async fn serve(
        &mut self,
        stop: &CancellationToken,
        watcher: &mut JoinHandle<Infallible>,
        changes: &mut mpsc::Receiver<Change>,
        later: &Later,
        drain: bool,
    ) -> Option<String> {
        let locks = self.locks.clone();
        loop {
            let drain = async {
                if drain {
                    later.all_given.cancelled().await;
                    drained(&*self.store, &self.controls, &*self.clock).await
                } else {
                    std::future::pending().await
                }
            };
            let change = tokio::select! {
                () = stop.cancelled() => return None,
                delayed = drain => {
                    match delayed {
                        0 => info!("nothing is left to do"),
                        delayed => info!(
                            delayed,
                            "nothing is left to do but what is to be delivered later"
                        ),
                    }
                    return None;
                }
                Err(why) = &mut *watcher => return Some(watcher_broke(&why)),
                () = locks.broken() => return Some(LOCKS_BROKE.to_owned()),
                Some(ended) = self.tasks.join_next() => match ended {
                    // The group was stopped.
                    Ok(()) => continue,
                    Err(why) => return Some(format!("what supervises a group broke: {why}")),
                },
                Some(change) = changes.recv() => change,
            };
            tokio::select! {
                () = stop.cancelled() => return None,
                Err(why) = &mut *watcher => return Some(watcher_broke(&why)),
                () = locks.broken() => return Some(LOCKS_BROKE.to_owned()),
                refused = self.follow(change.groups) => {
                    // The sender of the change may be gone.
                    let _ = change.refused.send(refused);
                }
            }
        }
    }

    /// Changes what runs to what is wanted. Returns the groups that go on as before,
    /// because the store did not take the change, each with the reason.
    pub(super) async fn follow(&mut self, wanted: Vec<Group>) -> Vec<(GroupName, StoreError)> {
        self.leaving.retain(|_, ended| !ended.is_cancelled());
        let mut by_group: BTreeMap<GroupName, Vec<Group>> = BTreeMap::new();
        for group in wanted {
            by_group.entry(group.settings.group()).or_default().push(group);
        }
        let gone: Vec<GroupName> = self
            .running
            .keys()
            .filter(|name| !by_group.contains_key(&name.group()))
            .cloned()
            .collect();
        for name in gone {
            self.stop(&name);
        }
        let mut refused = Vec::new();
        for (name, parts) in by_group {
            let taken = if self.is_repartitioned(&name, &parts) {
                self.repartition(&name, parts).await
            } else {
                self.replace_all(&name, parts).await
            };
            if let Err(why) = taken {
                refused.push((name, why));
            }
        }
        refused
    }

    /// Starts the partitions of a group, or replaces the version of each: all of them, or
    /// none. What can fail comes first, once for all of them.
    async fn replace_all(&mut self, name: &GroupName, parts: Vec<Group>) -> Result<(), StoreError> {
        let runs = |part: &Group| {
            let running = self.running.get(&part.settings.name);
            running.is_some_and(|running| running.runs(part))
        };
        let changed: Vec<Group> = parts.into_iter().filter(|part| !runs(part)).collect();
        let Some(first) = changed.first() else { return Ok(()) };
        self.store.ensure_group(&registration(first)).await?;
        if !changed.iter().any(|part| self.running.contains_key(&part.settings.name)) {
            info!(group = %name, "the group is new here");
        }
        for part in changed {
            self.replace(part);
        }
        Ok(())
    }

    /// The partitions of a group that run here.
    fn parts_of(&self, group: &GroupName) -> Vec<Group> {
        let running = self.running.iter();
        let parts = running.filter(|(name, _)| name.whole() == group.as_str());
        parts.map(|(_, running)| running.group.clone()).collect()
    }

    /// Whether these partitions are others than those that run.
    fn is_repartitioned(&self, group: &GroupName, parts: &[Group]) -> bool {
        let of = |group: &Group| group.settings.partition.map(|partition| partition.of);
        let running = self.parts_of(group);
        running.first().zip(parts.first()).is_some_and(|(before, now)| of(before) != of(now))
    }

    /// Stops the partitions of a group that run here, has the store repartition the group,
    /// and starts its new partitions. Where the store refuses, because another host still
    /// runs the group, the partitions that ran before go on.
    async fn repartition(&mut self, name: &GroupName, parts: Vec<Group>) -> Result<(), StoreError> {
        let Some(registration) = parts.first().map(registration) else { return Ok(()) };
        let mut before = Vec::new();
        for part in self.parts_of(name) {
            let control = self.controls.of(&part.settings.name);
            self.stop(&part.settings.name);
            before.push((part, control));
        }
        for (part, _) in &before {
            if let Some(ended) = self.leaving.get(&part.settings.name) {
                ended.cancelled().await;
            }
        }
        info!(group = %name, partitions = registration.partitions, "repartitioning the group");
        if let Err(why) = self.store.ensure_group(&registration).await {
            for (part, control) in before {
                self.start(part, control);
            }
            return Err(why);
        }
        for part in parts {
            self.replace(part);
        }
        Ok(())
    }

    /// Starts a partition of a group, or replaces its version. That cannot fail: the leader
    /// reads whether it is to run when it begins.
    fn replace(&mut self, group: Group) {
        let name = group.settings.name.clone();
        let version = self.version(&group);
        if let Some(running) = self.running.get_mut(&name) {
            running.group = group;
            running.version.send_replace(version).replaced.cancel();
            return;
        }
        self.start(group, Control { epoch: Epoch(0), state: GroupState::Running });
    }

    pub(super) fn start(&mut self, group: Group, control: Control) {
        let name = group.settings.name.clone();
        let (version, versions) = watch::channel(self.version(&group));
        let running = RunningGroup {
            group,
            version,
            stop: self.stop.child_token(),
            interrupt: self.interrupt.child_token(),
            ended: CancellationToken::new(),
        };
        let task = Arc::new(GroupTask {
            name: name.clone(),
            store: Arc::clone(&self.store),
            deployments: self.deployments.clone(),
            host: self.host.clone(),
            locks: self.locks.clone(),
            stop: running.stop.clone(),
            interrupt: running.interrupt.clone(),
            safe: self.safe.clone(),
            awaited: Arc::clone(&self.awaited),
            overtake_limit: Arc::clone(&self.overtake_limit),
            control: self.controls.add(name.clone(), control),
            versions,
            rolled_back: Mutex::default(),
            troubles: self.troubles.clone(),
        });
        let ended = running.ended.clone().drop_guard();
        let before = self.leaving.remove(&name);
        self.tasks.spawn(async move {
            let _ended = ended;
            // Two tasks of one group would compete for one lock in one process.
            if let Some(before) = before {
                before.cancelled().await;
            }
            task.supervised().await;
        });
        self.running.insert(name, running);
    }

    /// Stops a group; its cursor stays where it is.
    fn stop(&mut self, name: &GroupName) {
        let Some(running) = self.running.remove(name) else { return };
        info!(group = %name, "the group is no longer run here; its cursor is kept");
        self.controls.remove(name);
        running.stop.cancel();
        self.leaving.insert(name.clone(), running.ended.clone());
        let (ended, grace, interrupt) = (running.ended, self.grace, running.interrupt);
        self.tasks.spawn(async move {
            if tokio::time::timeout(grace, ended.cancelled()).await.is_err() {
                interrupt.cancel();
            }
        });
    }

    fn version(&self, group: &Group) -> Arc<GroupVersion> {
        let own = Arc::clone(&group.handler);
        let handler = Arc::new(ReplayHandler::new(own, Arc::clone(&group.components)));
        let demand = Demand {
            concurrency: group.settings.concurrency,
            memory_bytes: group.handler.memory_bytes(),
        };
        Arc::new(GroupVersion {
            registration: registration(group),
            replaced: CancellationToken::new(),
            deployed: group.deployed.clone(),
            group: GroupLoop {
                settings: group.settings.clone(),
                store: Arc::clone(&self.store),
                handler,
                clock: Arc::clone(&self.clock),
                crash_guard: Arc::clone(&self.crash_guard),
                admission: self.executor.admission().register(&group.settings.tenant, demand),
                published: Arc::clone(&self.published),
                pass_interval: self.pass_interval,
                troubles: self.troubles.clone(),
                metrics: self.metrics.group(&group.settings.name, &group.settings.tenant),
            },
        })
    }
}

impl RunningGroup {
    /// Whether it runs this version already. Where a new group would begin does not matter
    /// to one that runs.
    fn runs(&self, group: &Group) -> bool {
        self.group.settings == group.settings
            && self.group.deployed == group.deployed
            && Arc::ptr_eq(&self.group.handler, &group.handler)
    }
}

const LOCKS_BROKE: &str = "the owner of the locks broke";

fn watcher_broke(why: &JoinError) -> String {
    format!("the watcher of the log broke: {why}")
}
