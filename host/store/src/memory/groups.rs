//! What an operator asks and does of groups in memory.

use std::collections::BTreeSet;

use async_trait::async_trait;
use jiff::Timestamp;

use super::operation::Operation;
use super::{Group, Log, MemoryStore, Stored};
use crate::driver::backlog::{Backlog, Class, Counted, Part, Seen};
use crate::driver::gone::{Gone, without_what_is_gone};
use crate::driver::repartition::whole;
use crate::driver::{gone, refusals};
use crate::{
    Counting, GroupState, GroupStatus, Groups, LogStatus, Redelivery, Removed, Sought, Start,
    StoreError,
};
use event_host_core::event::{GroupName, LogEvent, Partition, Position};

#[allow(missing_docs, reason = "each is the call of the same name")]
impl Operation {
    pub const STATUS: Self = Self::reading("status");
    pub const GROUP_STATUS: Self = Self::reading("group_status");
    pub const RESUME: Self = Self::writing("resume");
    pub const SEEK: Self = Self::writing("seek");
    pub const REMOVE_GROUP: Self = Self::writing("remove_group");
}

#[async_trait]
impl Groups for MemoryStore {
    async fn status_counted(&self, counting: Counting) -> Result<LogStatus, StoreError> {
        self.call(Operation::STATUS, |log| {
            let backlog = log.backlog(log.groups.iter(), counting);
            let groups = log
                .groups
                .iter()
                .map(|(name, group)| log.status_of(name, group, &backlog, counting));
            Ok(LogStatus {
                last_position: log.last_position(),
                safe_position: log.last_position(),
                events: i64::try_from(log.events.len()).unwrap_or(i64::MAX),
                events_is_estimate: false,
                bytes: log.events.values().map(|stored| stored.event.bytes() as u64).sum(),
                unreadable: Vec::new(),
                held_up_by: Vec::new(),
                pinned_by: log.pinned_by(None),
                groups: whole(groups.collect()),
                hosts: Vec::new(),
            })
        })
        .await
    }

    async fn group_status_counted(
        &self,
        group: &GroupName,
        counting: Counting,
    ) -> Result<GroupStatus, StoreError> {
        self.call(Operation::GROUP_STATUS, |log| {
            let backlog = log.backlog(log.rows_of(group), counting);
            let rows =
                log.rows_of(group).map(|(name, row)| log.status_of(name, row, &backlog, counting));
            whole(rows.collect()).pop().ok_or_else(|| refusals::no_group(group))
        })
        .await
    }

    async fn resume(&self, group: &GroupName) -> Result<(), StoreError> {
        self.call(Operation::RESUME, |log| log.resume(group, false).map(drop)).await
    }

    async fn resume_without_what_is_gone(
        &self,
        group: &GroupName,
    ) -> Result<Option<Gone>, StoreError> {
        self.call(Operation::RESUME, |log| log.resume(group, true)).await
    }

    async fn seek_to(
        &self,
        group: &GroupName,
        to: Start,
        exactly: bool,
    ) -> Result<Sought, StoreError> {
        self.call(Operation::SEEK, |log| {
            log.group(group)?;
            let position = log.place(to)?;
            let gone = log.beginning().gone_above(to, position);
            if exactly {
                gone::exactly(to, gone.as_ref())?;
            }
            let there: BTreeSet<Position> = log.events.keys().copied().map(Position).collect();
            let mut last = None;
            for row in log.rows_of_mut(group) {
                row.deferred.retain(|kept, _| *kept <= position || !there.contains(kept));
                last = last.max(row.deferred.keys().next_back().copied());
            }
            let first = there.range(Position(position.0 + 1)..).next();
            let first = first.map_or(Position(i64::MAX), |first| Position(first.0 - 1));
            let position = position.max(last.unwrap_or(position).min(first));
            for row in log.rows_of_mut(group) {
                row.position = position;
                row.epoch.0 += 1;
                row.head = None;
                row.mark = None;
                row.redeliveries.retain(|redelivered, _| *redelivered <= position);
                row.undecided = row.undecided.up_to(position);
                row.fruitless = 0;
            }
            Ok(Sought { position, gone })
        })
        .await
    }

    async fn remove_group(
        &self,
        group: &GroupName,
        with_dead_letters: bool,
    ) -> Result<Removed, StoreError> {
        self.call(Operation::REMOVE_GROUP, |log| {
            log.group(group)?;
            let leader = log.rows_of(group).find_map(|(_, row)| row.leader.clone());
            if log.rows_of(group).any(|(name, _)| log.locks.contains_key(name)) {
                return Err(refusals::still_led(group, leader.as_ref()));
            }
            let dead = log.dead_letters_of(group);
            if dead > 0 && !with_dead_letters {
                return Err(refusals::dead_letters_remain(
                    group,
                    i64::try_from(dead).unwrap_or(i64::MAX),
                ));
            }
            let parked: usize = log.rows_of(group).map(|(_, row)| row.redeliveries.len()).sum();
            let deferred: usize = log.rows_of(group).map(|(_, row)| row.waiting().count()).sum();
            log.groups.retain(|name, _| name.whole() != group.as_str());
            log.dead_letters.retain(|_, letter| letter.group != *group);
            log.state.retain(|(of_group, _, _), _| of_group != group);
            let count = |count| i64::try_from(count).unwrap_or(i64::MAX);
            Ok(Removed { parked: count(parked), deferred: count(deferred) })
        })
        .await
    }
}

impl Stored {
    /// What the lag of groups is told by.
    fn seen(&self) -> (Class, Seen) {
        let LogEvent { position, deliver_to, event, .. } = &self.event;
        let class = Class {
            tenant: self.tenant.as_str().to_owned(),
            deliver_to: deliver_to.as_ref().map(|only| only.as_str().to_owned()),
            event_type: event.event_type.clone(),
        };
        let hash = Partition::hash(event.partitionkey.as_deref(), *position);
        (class, Seen { position: *position, published_at: self.published_at, hash })
    }
}

impl Log {
    /// Has a group run again, without what is gone if that is accepted.
    pub(super) fn resume(
        &mut self,
        group: &GroupName,
        accepted: bool,
    ) -> Result<Option<Gone>, StoreError> {
        self.group(group)?;
        let rows = || self.rows_of(group).map(|(_, row)| row);
        let mut gone = None;
        if rows().any(|row| row.unpinned) {
            let places = rows().map(|row| {
                let mut again = row.redeliveries.keys();
                let first = again.find(|position| !row.deferred.contains_key(position));
                first.map_or(row.position, |first| Position(first.0 - 1).min(row.position))
            });
            let place = places.min().unwrap_or(Position::ZERO);
            gone = self.beginning().gone_above(Start::Position(place), place);
            without_what_is_gone(group, gone.as_ref(), accepted)?;
        }
        let up_to = gone.as_ref().map_or(Position::ZERO, |gone| gone.up_to);
        for row in self.rows_of_mut(group) {
            row.state = GroupState::Running;
            row.reason = None;
            row.epoch.0 += i64::from(row.unpinned);
            row.unpinned = false;
            row.undecided = row.undecided.above(up_to);
            row.head.take_if(|head| head.position <= up_to);
            let deferred = &row.deferred;
            row.redeliveries.retain(|at, _| *at > up_to || deferred.contains_key(at));
        }
        Ok(gone)
    }

    /// What these groups and partitions have before them.
    pub(super) fn backlog<'a>(
        &self,
        rows: impl Iterator<Item = (&'a GroupName, &'a Group)>,
        counting: Counting,
    ) -> Backlog {
        let mut backlog = Backlog::new(counting);
        for (name, group) in rows {
            let number = name.partition_number();
            let partition = number.map(|number| Partition { number, of: group.partitions });
            if group.partitions <= 1 || partition.is_some() {
                backlog.add(name, &group.tenant, &group.subscription, partition, group.position);
            }
        }
        while let Some((after, up_to, most)) = backlog.next() {
            let mut part = Part::default();
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            for stored in self.events.range(after.0 + 1..=up_to.0).rev().take(most) {
                let (class, seen) = stored.1.seen();
                part.add(class, seen);
            }
            backlog.take(part);
            if counting != Counting::EXACT {
                break;
            }
        }
        for (name, after) in backlog.far() {
            let first = self.events.range(after.0 + 1..).next();
            backlog.first(&name, first.map(|(_, stored)| stored.seen()));
        }
        let unknown = backlog.unknown();
        let looked_at = usize::try_from(counting.search(unknown.len())).unwrap_or(usize::MAX);
        for name in unknown {
            let Some(group) = self.groups.get(&name) else { continue };
            let number = name.partition_number();
            let partition = number.map(|number| Partition { number, of: group.partitions });
            let looked_at = self.events.range(group.position.0 + 1..).take(looked_at);
            let up_to =
                looked_at.last().map_or(Position::ZERO, |(position, _)| Position(*position));
            let first = self
                .for_group(&name, &group.tenant, &group.subscription, group.position, up_to)
                .find(|stored| stored.is_in(partition));
            backlog.begins(&name, first.map(|stored| stored.published_at));
        }
        backlog
    }

    pub(super) fn status_of(
        &self,
        name: &GroupName,
        group: &Group,
        backlog: &Backlog,
        counting: Counting,
    ) -> GroupStatus {
        let lag = backlog.lag(name);
        let most = counting.most.unwrap_or(i64::MAX - 1);
        let counted = |rows: usize| Counted::of(i64::try_from(rows).unwrap_or(i64::MAX), most);
        let (all_parked, dead) =
            (counted(group.redeliveries.len()), counted(self.dead_letters_of(name)));
        let parked = all_parked.rows;
        let head = group.head.iter().map(|head| head.due_at);
        let looked_at = usize::try_from(parked).unwrap_or(usize::MAX);
        let looked_at = || group.redeliveries.values().take(looked_at);
        let redeliveries = looked_at().map(|redelivery| redelivery.due_at);
        let redeliveries = redeliveries.filter(|due_at| *due_at > Timestamp::UNIX_EPOCH);
        let later = counted(group.waiting().count());
        let deferred = group.waiting().map(|(_, kept)| kept.due_at);
        let waits = |one: &&Redelivery| one.is_delayed(Timestamp::UNIX_EPOCH);
        let delayed = looked_at().filter(waits).count();
        GroupStatus {
            name: name.clone(),
            tenant: group.tenant.clone(),
            subscribe: group.subscription.patterns().to_vec(),
            state: group.state,
            reason: group.reason.clone(),
            unpinned: group.unpinned,
            note: group.note.clone(),
            failures: group.failures.clone(),
            lock_held_by: None,
            row_held_by: None,
            leader: group.leader.clone().filter(|_| self.locks.contains_key(name)),
            epoch: group.epoch,
            position: group.position,
            lag_events: lag.events,
            lag_events_is_at_least: lag.is_at_least,
            lag_seconds: lag.seconds(),
            lag_seconds_is_at_least: lag.may_be_older,
            unread_seconds: lag.unread_seconds(),
            retries_pending: parked - i64::try_from(delayed).unwrap_or(i64::MAX)
                + i64::from(group.head.as_ref().is_some_and(|head| head.failure.is_some())),
            parked,
            parked_is_at_least: all_parked.is_at_least,
            deferred: later.rows,
            deferred_is_at_least: later.is_at_least,
            next_due_at: head.chain(redeliveries).chain(deferred).min(),
            head: group.head.clone(),
            in_flight: group.mark,
            dead_letters: dead.rows,
            dead_letters_is_at_least: dead.is_at_least,
            open_ranges: group.undecided.as_slice().to_vec(),
            open_ranges_held_by: Vec::new(),
            late_events: i64::try_from(group.late_events).unwrap_or(i64::MAX),
            handled_events: group.handled_events,
            dead_events: group.dead_events,
            partitions: Vec::new(),
            created_at: group.created_at,
            settled_at: group.settled_at,
        }
    }
}
