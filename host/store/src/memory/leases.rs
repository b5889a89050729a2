//! Locks and leaderships in memory.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use jiff::Timestamp;

use super::operation::Operation;
use super::{Group, Log, MemoryStore, locked};
use crate::driver::refusals;
use crate::{
    Claim, Duty, FailureCounts, GroupControl, GroupRegistration, GroupRow, GroupState,
    HostIdentity, Leader, Leadership, Leases, LockSession, Mark, Release, Roster, Runners, Settled,
    StoreError, UndecidedRanges,
};
use event_host_core::event::{Epoch, GroupName};

#[allow(missing_docs, reason = "each is the call of the same name")]
impl Operation {
    pub const LOCK_SESSION: Self = Self::reading("lock_session");
    pub const CLAIM: Self = Self::writing("claim");
    pub const RELEASE: Self = Self::writing("release");
    pub const CLAIM_DUTY: Self = Self::writing("claim_duty");
    pub const RELEASE_DUTY: Self = Self::writing("release_duty");
    pub const HEARTBEAT: Self = Self::reading("heartbeat");
    pub const ANNOUNCE: Self = Self::reading("announce");
    pub const ROSTER: Self = Self::reading("roster");
    pub const ENSURE_GROUP: Self = Self::writing("ensure_group");
    pub const BEGIN_LEADERSHIP: Self = Self::writing("begin_leadership");
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
            let session = log.last_session;
            locked(&self.handle.sessions).push(session);
            log.announced.insert(session, (host.id.clone(), BTreeSet::new()));
            let (store, host) = (self.clone(), host.clone());
            Ok(Box::new(MemoryLocks { store, session, host }) as Box<dyn LockSession>)
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
            let of_another = log.locks.get(group).and_then(|session| log.announced.get(session));
            if of_another.is_some_and(|(holder, _)| *holder != host.id) {
                return Err(refusals::led_by_another(group));
            }
            Ok(log.group_mut(group)?.begin(host))
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

impl Group {
    /// Begins a leadership.
    fn begin(&mut self, host: &HostIdentity) -> Leadership {
        self.epoch.0 += 1;
        self.leader = Some(Leader { host: host.clone(), since: Timestamp::now() });
        Leadership {
            epoch: self.epoch,
            settled: self.settled,
            position: self.position,
            head: self.head.clone(),
            mark: self.mark,
            state: self.state,
            fruitless: self.fruitless,
            failures: self.failures.clone(),
            begun_by: None,
            undecided: self.undecided.clone(),
            may_have_redeliveries: !self.redeliveries.is_empty() || self.mark.is_some(),
            may_have_deferred: !self.deferred.is_empty(),
            registered: GroupRow {
                tenant: self.tenant.as_str().to_owned(),
                subscribe: self.subscription.patterns().to_vec(),
                partitions: self.partitions,
            },
        }
    }
}

/// The session of one host in memory.
struct MemoryLocks {
    store: MemoryStore,
    session: u64,
    host: HostIdentity,
}

impl MemoryLocks {
    fn alive(&self, log: &Log) -> Result<(), StoreError> {
        if log.severed.contains(&self.session) {
            return Err(StoreError::Unavailable("the lock session is gone".to_owned()));
        }
        Ok(())
    }

    fn claim_one(&self, log: &mut Log, group: &GroupName) -> Claim {
        if log.locks.get(group).is_some_and(|holder| *holder != self.session) {
            return Claim::LedElsewhere;
        }
        let Some(row) = log.groups.get_mut(group) else { return Claim::Missing };
        let leadership = row.begin(&self.host);
        log.locks.insert(group.clone(), self.session);
        Claim::Led(Box::new(leadership))
    }

    fn release_one(&self, log: &mut Log, release: &Release) {
        if log.locks.get(&release.group) == Some(&self.session) {
            log.locks.remove(&release.group);
        }
        let ended = release.ended.and_then(|epoch| log.led(&release.group, epoch));
        if let Some(group) = ended {
            group.leader = None;
            group.fruitless = 0;
            group.mark = None;
        }
    }

    fn runners(&self, log: &Log, group: &GroupName) -> Runners {
        let others = log
            .announced
            .iter()
            .filter(|(one, (_, groups))| **one != self.session && groups.contains(group));
        let mut others: Vec<String> = others.map(|(_, (host, _))| host.clone()).collect();
        others.sort();
        let leader = log.locks.get(group).and_then(|session| log.announced.get(session));
        Runners {
            group: group.clone(),
            others: others.into(),
            leader: leader.map(|(host, _)| host.clone()),
            is_free: leader.is_none(),
        }
    }
}

impl Log {
    /// What a session had is free.
    pub(super) fn end_session(&mut self, session: u64) {
        self.locks.retain(|_, holder| *holder != session);
        self.duties.retain(|_, holder| *holder != session);
        self.announced.remove(&session);
    }
}

#[async_trait]
impl LockSession for MemoryLocks {
    async fn claim(&mut self, groups: &[GroupName]) -> Result<Vec<Claim>, StoreError> {
        self.store
            .call(Operation::CLAIM, |log| {
                self.alive(log)?;
                Ok(groups.iter().map(|group| self.claim_one(log, group)).collect())
            })
            .await
    }

    async fn release(&mut self, groups: &[Release]) -> Result<Vec<GroupName>, StoreError> {
        self.store
            .call(Operation::RELEASE, |log| {
                self.alive(log)?;
                groups.iter().for_each(|release| self.release_one(log, release));
                Ok(Vec::new())
            })
            .await
    }

    async fn claim_duty(&mut self, duty: Duty) -> Result<bool, StoreError> {
        self.store
            .call(Operation::CLAIM_DUTY, |log| {
                self.alive(log)?;
                Ok(*log.duties.entry(duty).or_insert(self.session) == self.session)
            })
            .await
    }

    async fn release_duty(&mut self, duty: Duty) -> Result<(), StoreError> {
        self.store
            .call(Operation::RELEASE_DUTY, |log| {
                self.alive(log)?;
                log.duties.retain(|one, holder| *one != duty || *holder != self.session);
                Ok(())
            })
            .await
    }

    async fn heartbeat(&mut self, _: bool) -> Result<(), StoreError> {
        self.store.call(Operation::HEARTBEAT, |log| self.alive(log)).await
    }

    async fn announce(&mut self, groups: &[GroupName]) -> Result<(), StoreError> {
        self.store
            .call(Operation::ANNOUNCE, |log| {
                self.alive(log)?;
                let announced = groups.iter().cloned().collect();
                log.announced.insert(self.session, (self.host.id.clone(), announced));
                Ok(())
            })
            .await
    }

    async fn roster(&mut self) -> Result<Option<Roster>, StoreError> {
        self.store
            .call(Operation::ROSTER, |log| {
                self.alive(log)?;
                let announced = log.announced.get(&self.session).map(|(_, groups)| groups);
                let there = announced.into_iter().flatten();
                let groups = there
                    .filter(|group| log.groups.contains_key(*group))
                    .map(|group| self.runners(log, group))
                    .collect();
                Ok(Some(Roster { groups }))
            })
            .await
    }
}

impl Drop for MemoryLocks {
    fn drop(&mut self) {
        let mut log = locked(&self.store.shared.log);
        log.end_session(self.session);
        log.severed.remove(&self.session);
        drop(log);
        self.store.changed();
    }
}
