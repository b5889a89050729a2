//! Groups that are split into partitions: what stores have in common there.

use jiff::Timestamp;
use serde::Serialize;

use super::{FailureCounts, GroupStatus, Head, Leader};
use crate::event::{Epoch, GroupName, Position};

/// How many events may come again when a group is split anew.
pub(super) const MOST_AGAIN: i64 = 100_000;

/// A partition of a group, as `status` and `groups show` tell of it.
#[derive(Debug, Clone, Serialize)]
pub struct PartitionStatus {
    /// Its number.
    pub partition: u32,
    /// Who leads it now.
    pub leader: Option<Leader>,
    /// Its fencing token.
    pub epoch: Epoch,
    /// Its cursor.
    pub position: Position,
    /// Subscribed events of its keys above the cursor.
    pub lag_events: i64,
    /// Age in seconds of the oldest of them, by the time it was published.
    pub lag_seconds: f64,
    /// Its retries that wait.
    pub retries_pending: i64,
    /// Its redeliveries.
    pub parked: i64,
    /// The retry that holds it up, where events are handled one at a time.
    pub head: Option<Head>,
    /// When it last settled something.
    pub settled_at: Option<Timestamp>,
}

/// The names of a group's parts that are led: its partitions, or the group itself.
pub(super) fn parts(group: &GroupName, partitions: u32) -> Vec<GroupName> {
    if partitions <= 1 {
        return vec![group.clone()];
    }
    (0..partitions).map(|number| group.partition(number)).collect()
}

/// Makes one of a group and its partitions, wherever they stand among others.
pub(super) fn whole(statuses: Vec<GroupStatus>) -> Vec<GroupStatus> {
    let mut groups: Vec<GroupStatus> = Vec::with_capacity(statuses.len());
    let (parts, wholes): (Vec<_>, Vec<_>) =
        statuses.into_iter().partition(|status| status.name.partition_number().is_some());
    groups.extend(wholes);
    for part in parts {
        let group = groups.iter_mut().find(|group| group.name.as_str() == part.name.whole());
        if let Some(group) = group {
            add(group, part);
        }
    }
    for group in &mut groups {
        group.partitions.sort_by_key(|partition| partition.partition);
    }
    groups
}

fn add(group: &mut GroupStatus, part: GroupStatus) {
    let partition = PartitionStatus {
        partition: part.name.partition_number().unwrap_or_default(),
        leader: part.leader,
        epoch: part.epoch,
        position: part.position,
        lag_events: part.lag_events,
        lag_seconds: part.lag_seconds,
        retries_pending: part.retries_pending,
        parked: part.parked,
        head: part.head,
        settled_at: part.settled_at,
    };
    if group.partitions.is_empty() {
        // What its own row says is not in use.
        group.leader = None;
        group.head = None;
        group.position = part.position;
        group.lag_events = 0;
        group.lag_seconds = 0.0;
        group.retries_pending = 0;
        group.parked = 0;
        group.next_due_at = None;
    }
    group.epoch = group.epoch.max(part.epoch);
    group.position = group.position.min(part.position);
    group.lag_events += part.lag_events;
    group.lag_seconds = group.lag_seconds.max(part.lag_seconds);
    group.retries_pending += part.retries_pending;
    group.parked += part.parked;
    group.next_due_at = [group.next_due_at, part.next_due_at].into_iter().flatten().min();
    group.late_events += part.late_events;
    group.settled_at = group.settled_at.max(part.settled_at);
    add_failures(&mut group.failures, &part.failures);
    if group.state < part.state {
        // One that tripped.
        group.state = part.state;
        group.reason = part.reason.map(|reason| format!("{}: {reason}", part.name));
    }
    if group.remark.is_none() {
        group.remark = part.remark.map(|remark| format!("{}: {remark}", part.name));
    }
    if !part.open_ranges.is_empty() {
        group.open_ranges.extend(part.open_ranges);
        group.open_ranges.sort_by_key(|range| (range.first, range.last));
        group.open_ranges.dedup();
        group.open_ranges_held_by = part.open_ranges_held_by;
    }
    group.partitions.push(partition);
}

/// Adds counts to others.
pub(super) fn add_failures(to: &mut FailureCounts, more: &FailureCounts) {
    for (kind, count) in more {
        let sum = to.entry(kind.clone()).or_default();
        *sum = sum.saturating_add(*count);
    }
}
