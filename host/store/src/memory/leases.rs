//! Locks and leaderships in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;

use super::operation::Operation;
use super::{Group, Log, MemoryStore, locked};
use crate::driver::refusals;
use crate::{
    FailureCounts, GroupControl, GroupRegistration, GroupState, HostIdentity, Leader, Leadership,
    Leases, LockSession, Mark, Settled, StoreError, UndecidedRanges,
};
use event_host_core::event::{Epoch, GroupName};

#[allow(missing_docs, reason = "each is the call of the same name")]
impl Operation {
    pub const LOCK_SESSION: Self = Self::reading("lock_session");
    pub const TRY_LOCKS: Self = Self::writing("try_locks");
    pub const UNLOCK: Self = Self::writing("unlock");
    pub const HEARTBEAT: Self = Self::reading("heartbeat");
    pub const SHARERS: Self = Self::reading("sharers");
    pub const ENSURE_GROUP: Self = Self::writing("ensure_group");
    pub const BEGIN_LEADERSHIP: Self = Self::writing("begin_leadership");
    pub const END_LEADERSHIP: Self = Self::writing("end_leadership");
    pub const RECORD_WORK_STARTED: Self = Self::writing("record_work_started");
    pub const RECORD_ATTEMPT_STARTED: Self = Self::writing("record_attempt_started");
    pub const WITHDRAW_ATTEMPT: Self = Self::writing("withdraw_attempt");
    pub const GROUP_STATES: Self = Self::reading("group_states");
}

#[async_trait]
impl Leases for MemoryStore {
    async fn lock_session(&self, host: &HostIdentity) -> Result<Box<dyn LockSession>, StoreError> {
        self.call(Operation::LOCK_SESSION, |log| {
            log.last_session += 1;
            let (session, host) = (log.last_session, host.id.clone());
            locked(&self.handle.sessions).push(session);
            Ok(Box::new(MemoryLocks { store: self.clone(), session, host }) as Box<dyn LockSession>)
        })
        .await
    }

    async fn ensure_group(&self, settings: &GroupRegistration) -> Result<(), StoreError> {
        self.call(Operation::ENSURE_GROUP, |log| {
            let last = log.last_position();
            if let Some(group) = log.groups.get(&settings.name) {
                if group.tenant != settings.tenant {
                    return Err(refusals::other_tenant(settings, &group.tenant));
                }
                let highest = log.rows_of(&settings.name).map(|(_, row)| row.position).max();
                if let Some(position) = highest.filter(|position| *position > last) {
                    return Err(refusals::cursor_beyond_the_log(&settings.name, position, last));
                }
                if group.partitions != settings.partitions {
                    log.repartition(&settings.name, settings.partitions, &settings.subscription)?;
                }
                for row in log.rows_of_mut(&settings.name) {
                    row.subscription = settings.subscription.clone();
                }
                return Ok(());
            }
            let group = Group {
                tenant: settings.tenant.clone(),
                subscription: settings.subscription.clone(),
                position: log.place(settings.start)?,
                epoch: Epoch(0),
                settled: 0,
                leader: None,
                state: GroupState::Running,
                reason: None,
                unpinned: false,
                note: None,
                failures: FailureCounts::new(),
                head: None,
                mark: None,
                redeliveries: BTreeMap::new(),
                deferred: BTreeMap::new(),
                undecided: UndecidedRanges::NONE,
                late_events: 0,
                handled_events: 0,
                dead_events: 0,
                fruitless: 0,
                created_at: Timestamp::now(),
                settled_at: None,
                partitions: settings.partitions,
            };
            log.groups.insert(settings.name.clone(), group);
            log.make_parts(&settings.name);
            Ok(())
        })
        .await
    }

    async fn group_states(&self) -> Result<Vec<GroupControl>, StoreError> {
        self.call(Operation::GROUP_STATES, |log| {
            let control = |(name, group): (&GroupName, &Group)| GroupControl {
                name: name.clone(),
                epoch: group.epoch,
                state: group.state,
                position: group.position,
            };
            Ok(log.groups.iter().map(control).collect())
        })
        .await
    }

    async fn begin_leadership(
        &self,
        group: &GroupName,
        host: &HostIdentity,
    ) -> Result<Leadership, StoreError> {
        self.call(Operation::BEGIN_LEADERSHIP, |log| {
            let group = log.group_mut(group)?;
            group.epoch.0 += 1;
            group.leader = Some(Leader { host: host.clone(), since: Timestamp::now() });
            Ok(Leadership {
                epoch: group.epoch,
                settled: group.settled,
                position: group.position,
                head: group.head.clone(),
                mark: group.mark,
                state: group.state,
                fruitless: group.fruitless,
                failures: group.failures.clone(),
                begun_by: None,
                undecided: group.undecided.clone(),
            })
        })
        .await
    }

    async fn end_leadership(&self, group: &GroupName, epoch: Epoch) -> Result<(), StoreError> {
        self.call(Operation::END_LEADERSHIP, |log| {
            if let Some(group) = log.led(group, epoch) {
                group.leader = None;
                group.fruitless = 0;
                group.mark = None;
            }
            Ok(())
        })
        .await
    }

    async fn record_work_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
    ) -> Result<Settled, StoreError> {
        let group = group.clone();
        self.write(Operation::RECORD_WORK_STARTED, move |log| {
            let Some(group) = log.led_after(&group, epoch, settled) else {
                return Ok(Settled::NotLeader);
            };
            group.fruitless = group.fruitless.saturating_add(1);
            Ok(Settled::Committed)
        })
        .await
    }

    async fn record_attempt_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
        mark: Mark,
    ) -> Result<Settled, StoreError> {
        let group = group.clone();
        self.write(Operation::RECORD_ATTEMPT_STARTED, move |log| {
            let Some(group) = log.led_after(&group, epoch, settled) else {
                return Ok(Settled::NotLeader);
            };
            group.mark = Some(mark);
            Ok(Settled::Committed)
        })
        .await
    }

    async fn withdraw_attempt(
        &self,
        group: &GroupName,
        epoch: Epoch,
    ) -> Result<Settled, StoreError> {
        let group = group.clone();
        self.write(Operation::WITHDRAW_ATTEMPT, move |log| {
            let Some(group) = log.led(&group, epoch) else { return Ok(Settled::NotLeader) };
            group.mark = None;
            Ok(Settled::Committed)
        })
        .await
    }
}

/// The locks of one host in memory.
struct MemoryLocks {
    store: MemoryStore,
    session: u64,
    /// The host's id.
    host: String,
}

impl MemoryLocks {
    fn alive(&self, log: &Log) -> Result<(), StoreError> {
        if log.severed.contains(&self.session) {
            return Err(StoreError::Unavailable("the lock session is gone".to_owned()));
        }
        Ok(())
    }
}

#[async_trait]
impl LockSession for MemoryLocks {
    async fn try_locks(&mut self, groups: &[GroupName]) -> Result<Vec<bool>, StoreError> {
        self.store
            .call(Operation::TRY_LOCKS, |log| {
                self.alive(log)?;
                let holders = groups
                    .iter()
                    .map(|group| *log.locks.entry(group.clone()).or_insert(self.session));
                Ok(holders.map(|holder| holder == self.session).collect())
            })
            .await
    }

    async fn unlock(&mut self, group: &GroupName) -> Result<(), StoreError> {
        self.store
            .call(Operation::UNLOCK, |log| {
                self.alive(log)?;
                if log.locks.get(group) == Some(&self.session) {
                    log.locks.remove(group);
                }
                Ok(())
            })
            .await
    }

    async fn heartbeat(&mut self, standing_by: &[GroupName]) -> Result<(), StoreError> {
        self.store
            .call(Operation::HEARTBEAT, |log| {
                self.alive(log)?;
                *locked(&self.store.handle.standing_by) = standing_by.to_vec();
                Ok(())
            })
            .await
    }

    async fn sharers(&mut self, groups: &[GroupName]) -> Result<Vec<Vec<String>>, StoreError> {
        self.store
            .call(Operation::SHARERS, |log| {
                self.alive(log)?;
                log.shares.insert(self.session, (self.host.clone(), groups.to_vec()));
                let others = |group| {
                    let others = log.shares.iter().filter(|(one, _)| **one != self.session);
                    let sharing = others.filter(|(_, (_, groups))| groups.contains(group));
                    sharing.map(|(_, (host, _))| host.clone()).collect()
                };
                Ok(groups.iter().map(others).collect())
            })
            .await
    }
}

impl Drop for MemoryLocks {
    fn drop(&mut self) {
        let mut log = locked(&self.store.shared.log);
        log.locks.retain(|_, holder| *holder != self.session);
        log.shares.remove(&self.session);
        log.severed.remove(&self.session);
        drop(log);
        self.store.changed();
    }
}
