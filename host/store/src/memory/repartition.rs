//! Groups that are split into partitions.

use jiff::Timestamp;

use super::{Group, Log, Stored};
use crate::driver::refusals;
use crate::driver::repartition::{MOST_AGAIN, add_failures, parts};
use crate::{FailureCounts, Redelivery, StoreError, Subscription, UndecidedRanges};
use event_host_core::event::{Attempt, Epoch, GroupName, Partition, Position};

impl Stored {
    pub(super) fn is_in(&self, partition: Option<Partition>) -> bool {
        let key = self.event.event.partitionkey.as_deref();
        partition.is_none_or(|partition| partition.holds(key, self.event.position))
    }

    /// A redelivery of an event that was never attempted.
    fn again(&self) -> Redelivery {
        let event = &self.event.event;
        Redelivery {
            position: self.event.position,
            attempt: Attempt::FIRST,
            due_at: event.deliver_after.unwrap_or(Timestamp::UNIX_EPOCH),
            key: event.partitionkey.clone(),
            failure: None,
            late: false,
        }
    }
}

impl Log {
    /// The rows of a group and of its partitions.
    pub(super) fn rows_of(&self, group: &GroupName) -> impl Iterator<Item = (&GroupName, &Group)> {
        self.groups.iter().filter(move |(name, _)| {
            *name == group || group.partition_number().is_none() && name.whole() == group.as_str()
        })
    }

    pub(super) fn rows_of_mut(&mut self, group: &GroupName) -> impl Iterator<Item = &mut Group> {
        let rows = self.groups.iter_mut();
        rows.filter(move |(name, _)| name.whole() == group.as_str()).map(|(_, row)| row)
    }

    pub(super) fn make_parts(&mut self, name: &GroupName) {
        let Some(group) = self.groups.get(name).filter(|group| group.partitions > 1) else {
            return;
        };
        let part = Group {
            tenant: group.tenant.clone(),
            subscription: group.subscription.clone(),
            position: group.position,
            epoch: group.epoch,
            settled: 0,
            leader: None,
            state: group.state,
            reason: group.reason.clone(),
            unpinned: group.unpinned,
            note: None,
            failures: FailureCounts::new(),
            head: None,
            mark: None,
            redeliveries: std::collections::BTreeMap::new(),
            deferred: std::collections::BTreeMap::new(),
            undecided: UndecidedRanges::NONE,
            late_events: 0,
            handled_events: 0,
            dead_events: 0,
            fruitless: 0,
            created_at: Timestamp::now(),
            settled_at: None,
            partitions: group.partitions,
        };
        for name in parts(name, group.partitions) {
            self.groups.entry(name).or_insert_with(|| part.clone());
        }
    }

    pub(super) fn repartition(
        &mut self,
        name: &GroupName,
        partitions: u32,
        subscription: &Subscription,
    ) -> Result<(), StoreError> {
        let before = self.group(name)?.partitions;
        let mut affected = parts(name, before);
        affected.extend(parts(name, partitions));
        if affected.iter().any(|part| self.locks.contains_key(part)) {
            return Err(refusals::still_led_somewhere(name));
        }
        let old: Vec<(GroupName, Group)> =
            self.rows_of(name).map(|(name, row)| (name.clone(), row.clone())).collect();
        for (name, row) in &old {
            if !row.undecided.is_empty() {
                return Err(refusals::part_with_open_ranges(name));
            }
        }
        let in_use =
            |part: &&(GroupName, Group)| part.0.partition_number().is_some() == (before > 1);
        let read_to = |(_, row): &(GroupName, Group)| {
            row.head.as_ref().map_or(row.position, |head| head.position.max(row.position))
        };
        let highest = old.iter().filter(in_use).map(read_to).max();
        let highest = highest.unwrap_or(Position::ZERO);
        let (mut again, mut deferred) = (Vec::new(), Vec::new());
        let mut failures = FailureCounts::new();
        for (_, row) in &old {
            again.extend(row.redeliveries.values().cloned());
            deferred.extend(row.deferred.values().cloned());
            add_failures(&mut failures, &row.failures);
        }
        let parked = again.len();
        for (name, row) in old.iter().filter(in_use) {
            let number = name.partition_number();
            let partition = number.map(|number| Partition { number, of: before });
            let behind = self.for_group(name, &row.tenant, subscription, row.position, highest);
            again.extend(behind.filter(|stored| stored.is_in(partition)).map(Stored::again));
        }
        if again.len() - parked > usize::try_from(MOST_AGAIN).unwrap_or(usize::MAX) {
            return Err(refusals::too_far_apart(name, MOST_AGAIN));
        }
        for head in old.iter().filter(in_use).filter_map(|(_, row)| row.head.as_ref()) {
            if !again.iter().any(|one| one.position == head.position) {
                // Received once, though the group's subscription is another now.
                again.extend(self.events.get(&head.position.0).map(Stored::again));
            }
            if let Some(one) = again.iter_mut().find(|one| one.position == head.position) {
                one.attempt = head.attempt;
                one.due_at = head.due_at;
                one.failure.clone_from(&head.failure);
            }
        }
        let epoch = old.iter().map(|(_, row)| row.epoch.0).max().unwrap_or(0) + 1;
        let late_events = old.iter().map(|(_, row)| row.late_events).sum();
        let handled_events = old.iter().map(|(_, row)| row.handled_events).sum();
        let dead_events = old.iter().map(|(_, row)| row.dead_events).sum();
        self.groups.retain(|row, _| {
            row.whole() != name.as_str()
                || row.partition_number().is_none_or(|number| partitions > 1 && number < partitions)
        });
        let group = self.group(name)?;
        let (state, reason, unpinned) = (group.state, group.reason.clone(), group.unpinned);
        for row in self.rows_of_mut(name) {
            (row.state, row.reason, row.unpinned) = (state, reason.clone(), unpinned);
            row.partitions = partitions;
            row.position = highest;
            row.epoch = Epoch(epoch);
            row.fruitless = 0;
            row.head = None;
            row.mark = None;
            row.deferred.clear();
            row.failures.clear();
            (row.late_events, row.handled_events, row.dead_events) = (0, 0, 0);
            row.redeliveries.clear();
        }
        let group = self.group_mut(name)?;
        (group.failures, group.late_events) = (failures, late_events);
        (group.handled_events, group.dead_events) = (handled_events, dead_events);
        self.make_parts(name);
        let place = |key: Option<&str>, position| match partitions {
            0 | 1 => name.clone(),
            of => name.partition(Partition::number_of(key, position, of)),
        };
        for redelivery in again {
            let place = place(redelivery.key.as_deref(), redelivery.position);
            self.group_mut(&place)?.redeliveries.insert(redelivery.position, redelivery);
        }
        for kept in deferred {
            let place = place(kept.event.event.partitionkey.as_deref(), kept.event.position);
            self.group_mut(&place)?.deferred.insert(kept.event.position, kept);
        }
        Ok(())
    }
}
