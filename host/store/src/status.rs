//! What `status` and `groups show` tell: the log, its groups, and the hosts.

use jiff::Timestamp;
use serde::Serialize;

use super::{
    Blocker, FailureCounts, GroupState, Head, HostIdentity, LogPin, Mark, PartitionStatus,
    UndecidedRange,
};
use event_host_core::event::{Epoch, GroupName, Position, Tenant};

/// A leader, as `status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leader {
    /// The process.
    pub host: HostIdentity,
    /// Since when.
    pub since: Timestamp,
}

/// Everything that `status` and `groups show` tell of a group.
#[derive(Debug, Clone, Serialize)]
pub struct GroupStatus {
    /// Its name.
    pub name: GroupName,
    /// Whose events it receives; left out of JSON without tenants.
    #[serde(skip_serializing_if = "Tenant::is_none")]
    pub tenant: Tenant,
    /// The patterns of its subscription.
    pub subscribe: Vec<String>,
    /// Whether it is to be run.
    pub state: GroupState,
    /// Why it is paused or tripped.
    pub reason: Option<String>,
    /// It keeps nothing in the log, because it kept more than its tenant may. Left out of
    /// JSON where it keeps what it has not handled.
    #[serde(skip_serializing_if = "is_exact")]
    pub unpinned: bool,
    /// What a host has to say of it though it goes on, such as that its new
    /// component does not load.
    #[serde(rename = "remark")]
    pub note: Option<String>,
    /// Who leads it now.
    pub leader: Option<Leader>,
    /// The session that holds its lock and is no host's; left out where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_held_by: Option<Blocker>,
    /// The transaction that has had its row for a while, so that nobody begins to lead
    /// it, or settles; left out where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_held_by: Option<Blocker>,
    /// Its fencing token.
    pub epoch: Epoch,
    /// Its cursor.
    pub position: Position,
    /// Subscribed events above the cursor.
    pub lag_events: i64,
    /// There may be more of them: counting stopped there. Left out of JSON where the
    /// number is exact, and so with each of its kind.
    #[serde(skip_serializing_if = "is_exact")]
    pub lag_events_is_at_least: bool,
    /// Age in seconds of the oldest of them, by the time it was published; of a group
    /// that is far behind, of the first.
    pub lag_seconds: f64,
    /// An older one may be where nobody has looked.
    #[serde(skip_serializing_if = "is_exact")]
    pub lag_seconds_is_at_least: bool,
    /// Age in seconds of the first event above the cursor, whoever receives it: no event
    /// that the group has not passed is older, unless a client said an older time.
    #[serde(skip)]
    pub unread_seconds: f64,
    /// Retries that wait: the one at the head, and all that are parked but those
    /// that are to be delivered later and were never attempted.
    pub retries_pending: i64,
    /// Redeliveries: events that the cursor has passed and that come again.
    pub parked: i64,
    /// There may be more of them, and more retries, and one that is due earlier.
    #[serde(skip_serializing_if = "is_exact")]
    pub parked_is_at_least: bool,
    /// Events that the cursor has passed, that are to be delivered later and were
    /// never attempted.
    pub deferred: i64,
    /// There may be more of them.
    #[serde(skip_serializing_if = "is_exact")]
    pub deferred_is_at_least: bool,
    /// When the earliest of the head, of what is parked and of what is deferred may
    /// begin.
    pub next_due_at: Option<Timestamp>,
    /// The retry at the head, which holds the group up.
    pub head: Option<Head>,
    /// The attempt that is recorded as begun, while the group goes on one event at a
    /// time after crashes.
    pub in_flight: Option<Mark>,
    /// Dead letters.
    pub dead_letters: i64,
    /// There may be more of them.
    #[serde(skip_serializing_if = "is_exact")]
    pub dead_letters_is_at_least: bool,
    /// Failed attempts since the group was created, by the kind of the failure:
    /// they only ever grow.
    pub failures: FailureCounts,
    /// What its cursor has passed and what open transactions may still commit.
    pub open_ranges: Vec<UndecidedRange>,
    /// The transactions that may hold something of it, while there is such a thing.
    pub open_ranges_held_by: Vec<Blocker>,
    /// Events that were committed after the group had passed them, since it was
    /// created: they only ever grow.
    pub late_events: i64,
    /// Events that were handled successfully, since the group was created: they only ever
    /// grow.
    pub handled_events: i64,
    /// Events that became dead letters, since the group was created: they only ever grow.
    pub dead_events: i64,
    /// Its partitions, by their numbers; left out where it has none. What is said
    /// above is said of all of them: their sums, the lowest cursor, the highest epoch,
    /// and no leader.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<PartitionStatus>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last settled something.
    pub settled_at: Option<Timestamp>,
}

/// Whether a number is what it says, and so needs no note.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(crate) fn is_exact(is_at_least: &bool) -> bool {
    !is_at_least
}

/// Everything that `status` tells.
#[derive(Debug, Clone, Serialize)]
pub struct LogStatus {
    /// The highest position in the log; of one that is empty now, the last that was
    /// handed out or, on a shared store, settled.
    pub last_position: Position,
    /// The safe position.
    pub safe_position: Position,
    /// How many events the log holds.
    pub events: i64,
    /// The number is estimated: the log has more events than were counted.
    #[serde(skip_serializing_if = "is_exact")]
    pub events_is_estimate: bool,
    /// What it takes in the database, in bytes; of an embedded one, the whole file.
    pub bytes: u64,
    /// Who holds the log up, and has for more than a second.
    pub held_up_by: Vec<Blocker>,
    /// The group, if there is one, that keeps events in the log which would have
    /// gone otherwise.
    pub pinned_by: Option<LogPin>,
    /// The groups, by name.
    pub groups: Vec<GroupStatus>,
    /// The rows of groups that cannot be read, a sentence for each: they are missing
    /// among the groups. Left out of JSON where there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    /// The hosts that are connected, by machine and process. An embedded store
    /// has no such list.
    pub hosts: Vec<HostStatus>,
}

/// A host that is connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostStatus {
    /// The process.
    #[serde(flatten)]
    pub host: HostIdentity,
    /// Its last heartbeat.
    pub seen_at: Timestamp,
    /// The groups that it would lead if their leaders were gone.
    pub standing_by: Vec<GroupName>,
    /// What does not work for it at present, one thing a line, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}
