//! Groups that are split into partitions: what stores have in common there.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::{FailureCounts, GroupStatus, Head, Leader, Mark, is_exact};
use event_host_core::event::{Epoch, GroupName, Partition, Position};

/// Maximum number of events that may come again when a group is repartitioned.
pub const MOST_AGAIN: i64 = 100_000;

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
    /// There may be more of them.
    #[serde(skip_serializing_if = "is_exact")]
    pub lag_events_is_at_least: bool,
    /// Age in seconds of the oldest of them, by the time it was published.
    pub lag_seconds: f64,
    /// An older one may be where nobody has looked.
    #[serde(skip_serializing_if = "is_exact")]
    pub lag_seconds_is_at_least: bool,
    /// Its retries that wait.
    pub retries_pending: i64,
    /// Its redeliveries.
    pub parked: i64,
    /// There may be more of them, and more retries.
    #[serde(skip_serializing_if = "is_exact")]
    pub parked_is_at_least: bool,
    /// Its deferred events.
    pub deferred: i64,
    /// There may be more of them.
    #[serde(skip_serializing_if = "is_exact")]
    pub deferred_is_at_least: bool,
    /// The retry that holds it up, where events are handled one at a time.
    pub head: Option<Head>,
    /// The attempt that is recorded as begun, after crashes.
    pub in_flight: Option<Mark>,
    /// When it last settled something.
    pub settled_at: Option<Timestamp>,
}

/// The names of a group's parts that are led: its partitions, or the group itself.
pub fn parts(group: &GroupName, partitions: u32) -> Vec<GroupName> {
    if partitions <= 1 {
        return vec![group.clone()];
    }
    (0..partitions).map(|number| group.partition(number)).collect()
}

/// What the row of a group, or of one of its partitions, says when the group is
/// repartitioned.
pub struct Part {
    /// Its name, a partition's with its number.
    pub name: GroupName,
    /// Its cursor.
    pub position: Position,
    /// Its epoch.
    pub epoch: Epoch,
    /// How many events it was given late.
    pub late_events: i64,
    /// How many it handled.
    pub handled_events: i64,
    /// How many became dead letters.
    pub dead_events: i64,
    /// How often its attempts failed, by kind.
    pub failures: FailureCounts,
    /// The event at its head, while that waits for another attempt.
    pub head: Option<Head>,
}

/// The rows of a group that is repartitioned, and what they come to.
pub struct Parts {
    /// All of them.
    pub rows: Vec<Part>,
    /// Into how many partitions the group was split.
    before: u32,
    /// The highest cursor, past what is retried at one.
    pub highest: Position,
    /// One that is above all that there were.
    pub epoch: Epoch,
    /// How many events they were given late, together.
    pub late_events: i64,
    /// How many they handled, together.
    pub handled_events: i64,
    /// How many became dead letters, together.
    pub dead_events: i64,
    /// How often their attempts failed, together.
    pub failures: FailureCounts,
}

impl Parts {
    /// Of these rows, of a group that was split into so many partitions before.
    pub fn new(rows: Vec<Part>, before: u32) -> Self {
        let mut failures = FailureCounts::new();
        rows.iter().for_each(|part| add_failures(&mut failures, &part.failures));
        let sum = |of: fn(&Part) -> i64| rows.iter().map(of).fold(0, i64::saturating_add);
        let mut parts = Self {
            before,
            highest: Position::ZERO,
            epoch: Epoch(rows.iter().map(|part| part.epoch.0).max().unwrap_or(0) + 1),
            late_events: sum(|part| part.late_events),
            handled_events: sum(|part| part.handled_events),
            dead_events: sum(|part| part.dead_events),
            failures,
            rows,
        };
        let read_to = |part: &Part| match &part.head {
            Some(head) => head.position.max(part.position),
            None => part.position,
        };
        parts.highest = parts.in_use().map(read_to).max().unwrap_or(Position::ZERO);
        parts
    }

    /// Those whose cursors are in use.
    pub fn in_use(&self) -> impl Iterator<Item = &Part> {
        let is_split = self.before > 1;
        self.rows.iter().filter(move |part| part.name.partition_number().is_some() == is_split)
    }

    /// The highest cursor, where what is retried at one is above it: what is between the
    /// two may not be decided yet.
    pub fn leaps_from(&self) -> Option<Position> {
        let cursor = self.in_use().map(|part| part.position).max()?;
        (cursor < self.highest).then_some(cursor)
    }

    /// Those that are behind the highest, with what they have of the log.
    pub fn behind(&self) -> impl Iterator<Item = (Option<Partition>, Position)> {
        let behind = self.in_use().filter(|part| part.position < self.highest);
        behind.map(|part| {
            let number = part.name.partition_number();
            (number.map(|number| Partition { number, of: self.before }), part.position)
        })
    }

    /// What is retried at their cursors, whether or not the group still receives it: like
    /// a parked retry, it was received once and comes again until it is decided.
    pub fn heads(&self) -> impl Iterator<Item = &Head> {
        self.in_use().filter_map(|part| part.head.as_ref())
    }
}

/// Makes one of a group and its partitions, wherever they stand among others.
pub fn whole(statuses: Vec<GroupStatus>) -> Vec<GroupStatus> {
    let (parts, mut groups): (Vec<_>, Vec<_>) =
        statuses.into_iter().partition(|status| status.name.partition_number().is_some());
    let by_name: HashMap<GroupName, usize> =
        groups.iter().enumerate().map(|(index, group)| (group.name.clone(), index)).collect();
    for part in parts {
        let index = by_name.get(&part.name.group());
        if let Some(group) = index.and_then(|index| groups.get_mut(*index)) {
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
        lag_events_is_at_least: part.lag_events_is_at_least,
        lag_seconds: part.lag_seconds,
        lag_seconds_is_at_least: part.lag_seconds_is_at_least,
        retries_pending: part.retries_pending,
        parked: part.parked,
        parked_is_at_least: part.parked_is_at_least,
        deferred: part.deferred,
        deferred_is_at_least: part.deferred_is_at_least,
        in_flight: part.in_flight,
        head: part.head,
        settled_at: part.settled_at,
    };
    if group.partitions.is_empty() {
        // What its own row says is not in use.
        group.leader = None;
        group.head = None;
        group.in_flight = None;
        group.position = part.position;
        group.lag_events = 0;
        group.lag_events_is_at_least = false;
        group.lag_seconds = 0.0;
        group.lag_seconds_is_at_least = false;
        group.unread_seconds = 0.0;
        group.retries_pending = 0;
        group.parked = 0;
        group.parked_is_at_least = false;
        group.deferred = 0;
        group.deferred_is_at_least = false;
        group.next_due_at = None;
    }
    group.epoch = group.epoch.max(part.epoch);
    group.position = group.position.min(part.position);
    group.lag_events += part.lag_events;
    group.lag_seconds = group.lag_seconds.max(part.lag_seconds);
    group.retries_pending += part.retries_pending;
    group.parked += part.parked;
    group.lag_events_is_at_least |= part.lag_events_is_at_least;
    group.lag_seconds_is_at_least |= part.lag_seconds_is_at_least;
    group.parked_is_at_least |= part.parked_is_at_least;
    group.deferred = group.deferred.saturating_add(part.deferred);
    group.deferred_is_at_least |= part.deferred_is_at_least;
    group.next_due_at = [group.next_due_at, part.next_due_at].into_iter().flatten().min();
    group.unread_seconds = group.unread_seconds.max(part.unread_seconds);
    group.late_events = group.late_events.saturating_add(part.late_events);
    group.handled_events = group.handled_events.saturating_add(part.handled_events);
    group.dead_events = group.dead_events.saturating_add(part.dead_events);
    group.settled_at = group.settled_at.max(part.settled_at);
    add_failures(&mut group.failures, &part.failures);
    if group.state < part.state {
        // One that tripped.
        group.state = part.state;
        group.reason = part.reason.map(|reason| format!("{}: {reason}", part.name));
    }
    if group.note.is_none() {
        group.note = part.note.map(|note| format!("{}: {note}", part.name));
    }
    group.lock_held_by = group.lock_held_by.take().or(part.lock_held_by);
    group.row_held_by = group.row_held_by.take().or(part.row_held_by);
    if !part.open_ranges.is_empty() {
        group.open_ranges.extend(part.open_ranges);
        group.open_ranges.sort_by_key(|range| (range.first, range.last));
        group.open_ranges.dedup();
        group.open_ranges_held_by = part.open_ranges_held_by;
    }
    group.partitions.push(partition);
}

/// Adds counts to others.
pub fn add_failures(to: &mut FailureCounts, more: &FailureCounts) {
    for (kind, count) in more {
        let sum = to.entry(kind.clone()).or_default();
        *sum = sum.saturating_add(*count);
    }
}
