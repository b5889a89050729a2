//! The store: everything that must outlive a process, in the glossary's words.
//!
//! [`Store`] is what delivery needs of a database. Each database has a folder
//! of its own here, and SQL appears nowhere else. A store decides nothing: it
//! records settlements that delivery computed, and guards them by the epoch
//! and by their numbers.
//!
//! Whatever the store, these hold, and the module `suite` tests them:
//! - a settlement commits whole or not at all, only under the group's current
//!   epoch, and only as the one after the group's last;
//! - nothing at or below the safe position can appear in the log any more;
//! - a group that read past it remembers, with its cursor, where something still can;
//! - a redelivery stands at or below its group's cursor: the log brings what is
//!   above it;
//! - an event that is deferred is kept whole until it is handled or given up, though
//!   the log lets it go;
//! - no event goes that a group has not settled, and no position comes again;
//! - a dead letter is replayed or discarded once, whoever asks at once;
//! - of a handler's versions one is active from the first deployment on, its
//!   component is there, whole, and no other tenant's.

mod backlog;
mod dead_letter_pages;
mod deferred;
mod deployment;
mod gone;
pub mod lock_key;
#[cfg(test)]
pub mod memory;
mod overtaking;
pub mod postgres;
mod prefix;
mod redelivery;
mod refusals;
mod repartition;
mod retention;
pub mod sqlite;
mod stored;
#[cfg(test)]
pub mod suite;
mod undecided;
mod unreadable;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;

use crate::digest::Digest;
use crate::event::json::parse_time;
use crate::event::{
    Attempt, Epoch, Event, GroupName, HandlerName, LogEvent, Partition, Position, Tenant,
};
use crate::failure::FailureKind;
use crate::foreign::one_line;
use crate::handler::state::StateUnreadable;

pub use backlog::Counting;
pub use deferred::{Deferral, Due, DueFetch, MOST_COUNTED};
pub use deployment::{Deployed, Deployment, NewVersion, Version, VersionNumber, VersionState};
pub use gone::{Gone, Sought};
pub use overtaking::{FetchedLate, LateEvent, LateFetch, OvertakingFetch, UndecidedChange};
pub use redelivery::Redelivery;
pub use repartition::PartitionStatus;
pub(crate) use retention::unpinned_reason;
pub use retention::{Enforced, LogPin, Retention};
pub use undecided::{UndecidedRange, UndecidedRanges};

pub use crate::handler::state::StateWrite;
pub use crate::subscription::Subscription;

/// What a store can answer instead of doing what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database did not answer, was busy too long, or broke off. Whether a
    /// write that was under way happened is unknown. Trying again may help.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// What it takes was not to be had: a lock, a connection, room. Nothing was done.
    /// Trying again may help.
    #[error("the database is not available: {0}")]
    Busy(String),
    /// The database answered, but what it holds or says makes no sense to this
    /// program. Trying again will not help.
    #[error("{0}")]
    Unusable(String),
    /// The database refuses what a settlement holds of what its events came to: what
    /// they emitted or wrote, or their dead letters. Nothing of the settlement is
    /// recorded. Trying the same again will not help.
    #[error("{0}")]
    Unstorable(String),
    /// The thing that was named does not exist.
    #[error("{0} not found")]
    NotFound(Missing),
    /// The request does not fit the state of things; the text says what would.
    #[error("{0}")]
    Refused(String),
    /// The log is not the one that it was: the server or the file was replaced, put
    /// back, or lost what it had committed. Whatever is remembered of it is void.
    #[error("{0}")]
    Changed(String),
}

impl From<StoreError> for StateUnreadable {
    fn from(error: StoreError) -> Self {
        Self(error.to_string())
    }
}

/// What was not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// A consumer group.
    Group(GroupName),
    /// A dead letter; also one that somebody else replays at this moment.
    DeadLetter(DeadLetterId),
    /// A component; also one that is another tenant's alone.
    Component(Digest),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(name) => write!(f, "group `{name}`"),
            Self::DeadLetter(id) => write!(f, "dead letter {id}"),
            Self::Component(digest) => write!(f, "component {digest}"),
        }
    }
}

/// The number of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct DeadLetterId(pub i64);

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a cursor is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Before the first event.
    Earliest,
    /// After the last event that is there now.
    Latest,
    /// After this position: the next event handled is the first one above it.
    Position(Position),
    /// Before the first event whose `time` attribute is at or after this.
    Time(Timestamp),
}

/// A text that says no place in the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no place in the log: use `earliest`, `latest`, a position such as `1200`, or a time such as `2026-01-31T12:00:00Z`"
)]
pub struct InvalidStart(pub String);

impl FromStr for Start {
    type Err = InvalidStart;

    fn from_str(text: &str) -> Result<Self, InvalidStart> {
        match text {
            "earliest" => Ok(Self::Earliest),
            "latest" => Ok(Self::Latest),
            _ => {
                if let Ok(position) = text.parse::<i64>()
                    && position >= 0
                {
                    return Ok(Self::Position(Position(position)));
                }
                let time = parse_time("start", text);
                time.map(Self::Time).map_err(|_| InvalidStart(text.to_owned()))
            }
        }
    }
}

/// The host process, as the `hosts` table and `status` show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostIdentity {
    /// A random uuid, new with each process.
    pub id: String,
    /// The machine's name.
    pub hostname: String,
    /// The process.
    pub pid: u32,
}

/// What a new group begins with. An existing group keeps its cursor, and takes
/// over the subscription.
#[derive(Debug, Clone)]
pub struct GroupRegistration {
    /// Its name.
    pub name: GroupName,
    /// Whose events it receives.
    pub tenant: Tenant,
    /// Which of them.
    pub subscription: Subscription,
    /// Where a new group begins.
    pub start: Start,
    /// Into how many partitions its events are split; 1 where they are not. Each of
    /// several has a cursor and a leader, under [`GroupName::partition`].
    pub partitions: u32,
}

impl GroupRegistration {
    /// A group that receives every event of its tenant from the first one on, in one
    /// partition.
    #[must_use]
    pub fn new(name: GroupName, tenant: Tenant) -> Self {
        Self {
            name,
            tenant,
            subscription: Subscription::all(),
            start: Start::Earliest,
            partitions: 1,
        }
    }
}

/// Whether a group is to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupState {
    /// It is.
    Running,
    /// An operator paused it.
    Paused,
    /// The host paused it, because everything fails.
    Tripped,
}

impl GroupState {
    /// The stored form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Tripped => "tripped",
        }
    }
}

/// A failed attempt as it is kept with the head or a dead letter. The kind is
/// text, because a newer host may have written it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureRecord {
    /// A label of [`FailureKind`].
    pub kind: String,
    /// What happened.
    pub text: String,
}

impl FailureRecord {
    /// Pairs a kind with its text.
    #[must_use]
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self { kind: kind.label().to_owned(), text: text.into() }
    }
}

/// The event at the head of a group that has been attempted before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Head {
    /// The event's position.
    pub position: Position,
    /// The attempt that comes next.
    pub attempt: Attempt,
    /// When it may begin: whole microseconds, as stores keep them.
    pub due_at: Timestamp,
    /// Why the attempt before failed; `None` while there was none.
    pub failure: Option<FailureRecord>,
}

/// An attempt that was recorded as begun, by a group that goes on one event at a time
/// after crashes. A new leader that finds it knows that the process died in it. It says
/// nothing of the head, and the head nothing of it: they may be of two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// The event's position.
    pub position: Position,
    /// The attempt.
    pub attempt: Attempt,
}

/// What a new leader begins with.
#[derive(Debug, Clone)]
pub struct Leadership {
    /// The fencing token of this leadership.
    pub epoch: Epoch,
    /// The number of the group's last settlement, under whichever epoch; 0
    /// before the first.
    pub settled: i64,
    /// The cursor.
    pub position: Position,
    /// The retry that was pending.
    pub head: Option<Head>,
    /// The attempt that was recorded as begun and of which nothing was settled.
    pub mark: Option<Mark>,
    /// Whether the group is to be run.
    pub state: GroupState,
    /// How many leaderships in a row, before this one, began work and ended
    /// without a settlement and without a clean end.
    pub fruitless: u32,
    /// The host that recorded the marked attempt as begun, in a store where a
    /// host can lose its lock and live on: [`Store::is_alive_since`] tells
    /// whether it does.
    pub begun_by: Option<String>,
    /// How often attempts have failed so far.
    pub failures: FailureCounts,
    /// What the cursor has passed and what may still appear: at or below it.
    pub undecided: UndecidedRanges,
}

/// What a leader asks the log for.
#[derive(Debug, Clone)]
pub struct Fetch<'a> {
    /// Events that are addressed to this group alone, or to the one that it is a
    /// partition of, are included.
    pub group: &'a GroupName,
    /// Whose events.
    pub tenant: &'a Tenant,
    /// Which of them; what is addressed to the group is always included.
    pub subscription: &'a Subscription,
    /// Those of this partition alone; `None` for all.
    pub partition: Option<Partition>,
    /// Positions above this one.
    pub after: Position,
    /// Positions up to and including this one, which is safe.
    pub up_to: Position,
    /// At most so many events.
    pub max_events: usize,
    /// Stop after the event that brings all of them, with their attributes, to so many
    /// bytes.
    pub max_bytes: usize,
}

/// A part of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The events, in position order. Each by itself from the start: it is shared as
    /// long as it is under way, and to move it costs as much as to read a column.
    pub events: Vec<Arc<LogEvent>>,
    /// Everything for this group at or below this position, and above the
    /// cursor, is in `events`.
    pub scanned_to: Position,
}

/// Events of the log at positions that were asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The events, in position order.
    pub events: Vec<LogEvent>,
    /// Those of the positions at or below this one were looked at: what is not among the
    /// events is not there.
    pub looked_to: Position,
}

/// What can be said of an event without reading what may be large of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sketch {
    /// The event without its data, with texts that are cut or left out.
    pub event: LogEvent,
    /// How large all of it is, in bytes, as far as the store knows without reading it.
    pub bytes: u64,
}

/// An event that the group gives up on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// The event and its position.
    pub event: LogEvent,
    /// How many attempts were made.
    pub attempts: u32,
    /// Why the last one failed.
    pub failure: FailureRecord,
    /// The component that failed: `sha256:` and hex digits.
    pub digest: String,
    /// When.
    pub dead_at: Timestamp,
}

/// What a dead letter takes: its event, and why it failed.
#[must_use]
pub fn dead_letter_bytes(event: &LogEvent, failure: &FailureRecord) -> usize {
    event.bytes() + failure.text.len()
}

/// Everything that a batch of attempts did, to be recorded in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// Whose.
    pub group: GroupName,
    /// Under which leadership.
    pub epoch: Epoch,
    /// Which settlement of the group it is: one more than the group's last. The
    /// epoch fences other leaders; this fences the leader's own settlements that
    /// are late, because a database carries out what it has received even when
    /// the leader has given it up and gone on.
    pub number: i64,
    /// The cursor after; never below the cursor before.
    pub position: Position,
    /// The retry that is pending after it.
    pub head: Option<Head>,
    /// The attempt that is marked after it: the one that was marked before, or none.
    pub mark: Option<Mark>,
    /// Events given up on.
    pub dead_letters: Vec<NewDeadLetter>,
    /// Events to publish, in this order, for the group's tenant.
    pub emits: Vec<Event>,
    /// State writes, the last one of a key wins.
    pub state: Vec<StateWrite>,
    /// Events at or below the cursor that come again: new ones, or as they are
    /// now. The last one of a position wins.
    pub redeliveries: Vec<Redelivery>,
    /// Positions of redeliveries and of deferred events that are over: handled, or
    /// dead letters. A position that is also in `redeliveries` is over.
    pub redelivered: Vec<Position>,
    /// Events at or below the cursor that are to be delivered later: the store takes
    /// them over from the log. One that was a redelivery is none any more.
    pub deferred: Vec<Deferral>,
    /// How often attempts have failed so far, if any did since the settlement
    /// before.
    pub failures: Option<FailureCounts>,
    /// What is open, if that is not as it was.
    pub undecided: Option<UndecidedChange>,
}

/// How many attempts of a group have failed, by the label of the failure's kind.
pub type FailureCounts = BTreeMap<String, u64>;

/// What became of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It is committed.
    Committed,
    /// The epoch is no longer the group's, or the group has settled something
    /// else since: nothing was recorded.
    NotLeader,
}

/// How far a group is, as it is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The fencing token.
    pub epoch: Epoch,
    /// The number of the last settlement; 0 before the first.
    pub settled: i64,
    /// The cursor.
    pub position: Position,
    /// The retry that is pending.
    pub head: Option<Head>,
    /// The attempt that is recorded as begun.
    pub mark: Option<Mark>,
    /// What the cursor has passed and what may still appear.
    pub undecided: UndecidedRanges,
}

/// The little of a group that a running host watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupControl {
    /// Which group.
    pub name: GroupName,
    /// Its epoch: higher than the leader's own after a seek or a takeover.
    pub epoch: Epoch,
    /// Whether it is to be run.
    pub state: GroupState,
    /// Its cursor, as it was committed when this was read.
    pub position: Position,
}

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

/// What went with a group that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// How many redeliveries waited: the log still has the events of those that were
    /// not deferred.
    pub parked: i64,
    /// How many deferred events waited, and are gone.
    pub deferred: i64,
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

/// A transaction that may have drawn positions and is still open: nothing above
/// them is delivered until it ends.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Blocker {
    /// The server's process; none for a prepared transaction.
    pub pid: Option<i64>,
    /// The name of a prepared transaction, which only `COMMIT PREPARED` or
    /// `ROLLBACK PREPARED` ends.
    pub prepared: Option<String>,
    /// What the client calls itself; empty where this role may not see it.
    pub application: String,
    /// The role; empty where this role may not see it.
    pub user: String,
    /// For how many seconds the transaction has been open, where this role may
    /// see it.
    pub age_seconds: Option<f64>,
}

impl Blocker {
    /// Which transaction, in a few words.
    #[must_use]
    pub fn name(&self) -> String {
        match (&self.prepared, self.pid) {
            (Some(name), _) => format!("the prepared transaction `{}`", one_line(name)),
            (None, Some(pid)) => format!("the transaction of server process {pid}"),
            (None, None) => "a prepared transaction".to_owned(),
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        if !self.application.is_empty() {
            write!(f, " ({})", one_line(&self.application))?;
        }
        if !self.user.is_empty() {
            write!(f, " of role {}", one_line(&self.user))?;
        }
        if let Some(age) = self.age_seconds {
            write!(f, ", open for {age:.0} s")?;
        }
        Ok(())
    }
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

/// What an adoption did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Adopted {
    /// The cluster that the log came from, by its system identifier; none if it
    /// was at home already.
    pub from: Option<i64>,
    /// The cluster that it is in.
    pub here: i64,
    /// The groups whose epochs were raised, with their cursors: where each goes
    /// on.
    pub groups: Vec<(GroupName, Position)>,
}

/// A dead letter.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// Its number.
    pub id: DeadLetterId,
    /// The group that gave up.
    pub group: GroupName,
    /// Whose event it is.
    pub tenant: Tenant,
    /// The event and its position.
    pub event: LogEvent,
    /// How many attempts were made.
    pub attempts: u32,
    /// Why the last one failed.
    pub failure: FailureRecord,
    /// The component that failed.
    pub digest: String,
    /// When the group gave up.
    pub dead_at: Timestamp,
}

/// Which dead letters.
#[derive(Debug, Clone, Default)]
pub struct DeadLetterFilter {
    /// Only this group's.
    pub group: Option<GroupName>,
    /// Only ids above this one.
    pub after: Option<DeadLetterId>,
    /// At most so many; the lowest ids come first.
    pub limit: Option<usize>,
}

/// A dead letter that went back to its group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// The dead letter, which no longer exists.
    pub id: DeadLetterId,
    /// The group that will receive it.
    pub group: GroupName,
    /// Where its copy stands in the log.
    pub position: Position,
    /// The component that is to handle it, where the replay named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

/// The locks of one host. Owned by one task.
///
/// Dropping it releases every lock, at once or as soon as the database sees it;
/// so does the end of the process. A call may be given up before it answers: the
/// session is then dropped, without another call. So it is after any error: what
/// the session holds is then in doubt, and no lock of it is relied on any more.
#[async_trait]
pub trait LockSession: Send {
    /// Takes the lock of each group, no two of one name, that nobody holds, and
    /// says of each, in the same order, whether this session has its lock now.
    /// Never waits for one. Taking what this session holds already is `true` and
    /// changes nothing: one release is enough. A lock that cannot be asked for,
    /// while others can, is `false`, and said in the log.
    async fn try_locks(&mut self, groups: &[GroupName]) -> Result<Vec<bool>, StoreError>;

    /// Releases the group's lock. One that this session does not hold is left
    /// alone.
    async fn unlock(&mut self, group: &GroupName) -> Result<(), StoreError>;

    /// Proves that the locks are still held, and says for which groups the host
    /// waits while others hold their locks, where the store shows that. Where anybody
    /// can hold a lock, those that no live host holds are got free, or got round.
    async fn heartbeat(&mut self, standing_by: &[GroupName]) -> Result<(), StoreError>;

    /// Says of whose partitions this host takes a share, and gives, in the same order,
    /// the ids of the other hosts that have said so of each of them and live.
    async fn sharers(&mut self, groups: &[GroupName]) -> Result<Vec<Vec<String>>, StoreError>;
}

/// How much a store does at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Fetches. At least 1.
    pub reads: usize,
    /// Settlements. At least 1.
    pub writes: usize,
}

/// What delivery needs of a database.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Brings the schema up to date; safe when many do it at once. Gives the
    /// names of the migrations that were applied.
    async fn migrate(&self) -> Result<Vec<String>, StoreError>;

    /// Lets go of everything that is open, at a clean end: an embedded store has all of
    /// its data in one file then. Whatever is asked for afterwards opens it again.
    ///
    /// # Errors
    /// When that could not be done. Nothing is lost by it.
    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Refuses a database from which nothing must be delivered, because events
    /// would be lost or repeated in silence.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] or [`StoreError::Refused`] with what is wrong and
    /// what puts it right.
    async fn check(&self) -> Result<(), StoreError>;

    /// Makes the place where the log is found its home, after it was restored
    /// there from elsewhere.
    ///
    /// # Errors
    /// [`StoreError::Refused`] by a store that has no such notion.
    async fn adopt(&self) -> Result<Adopted, StoreError>;

    /// Appends events to the log, all or none, and gives their positions.
    async fn publish(&self, tenant: &Tenant, events: &[Event])
    -> Result<Vec<Position>, StoreError>;

    /// The highest position at or below which no event can still appear.
    ///
    /// # Errors
    /// [`StoreError::Changed`], once, when the log is not the one that it was at the
    /// call before. The store has forgotten what it knew of it by then; whoever asked
    /// is to forget what it remembers, and every leadership, before it asks again.
    /// Only then does the store lend connections to the new one.
    async fn safe_position(&self) -> Result<Position, StoreError>;

    /// Who holds the log up, and has for more than a second. Cheap while nobody
    /// does.
    async fn blockers(&self) -> Result<Vec<Blocker>, StoreError> {
        Ok(Vec::new())
    }

    /// Returns when the database hints that something was published. Only saves
    /// time: hints may be missing, late, or for nothing.
    async fn wait_for_hint(&self) {
        std::future::pending().await
    }

    /// One round of upkeep: lets go of what the retention says may go and no group
    /// needs any more, of which a shared store may leave a part for later rounds.
    /// What is left is the end of the log, without a gap; positions are never used
    /// again. Nobody who publishes, fetches or settles has to wait for it for long.
    /// Safe when several hosts do it at once.
    ///
    /// An event that goes is at or below every cursor at that moment, those of
    /// paused groups and of groups that no host runs included. A cursor that is
    /// moved back, and a new group, begin with what is left.
    async fn enforce_retention(&self, retention: &Retention) -> Result<Enforced, StoreError>;

    /// Looks whether the groups of a tenant keep more than `most` bytes of events in the log
    /// that would go without them. If so, pauses the one that is furthest behind, with all
    /// its partitions, has it keep nothing in the log from then on, and gives what it kept;
    /// what its leader has read and not settled is refused. Once for each group: to be
    /// called until there is none.
    async fn unpin(
        &self,
        tenant: &Tenant,
        retention: &Retention,
        most: u64,
    ) -> Result<Option<LogPin>, StoreError>;

    /// How much it does at once. What is beyond that stands in line here, in the
    /// order in which it came.
    fn limits(&self) -> StoreLimits;

    /// Reads a part of the log: as much of it as comes in time, and at least one event
    /// if there is one.
    async fn fetch(&self, fetch: Fetch<'_>) -> Result<Fetched, StoreError>;

    /// Reads the next event alone, and takes its time, where others failed to read
    /// several.
    async fn fetch_one(&self, fetch: Fetch<'_>) -> Result<Fetched, StoreError> {
        self.fetch(Fetch { max_events: 1, ..fetch }).await
    }

    /// What can be said of the next event that [`Store::fetch`] would read, without
    /// reading what may be large of it; none where there is no event, or where the store
    /// reads every event in no time.
    async fn sketch(&self, fetch: Fetch<'_>) -> Result<Option<Sketch>, StoreError> {
        let _ = fetch;
        Ok(None)
    }

    /// Takes back events that were read and that nobody needs any more: their memory may
    /// be used for those that are read next.
    fn recycle(&self, events: Vec<Arc<LogEvent>>) {
        drop(events);
    }

    /// The highest position at or below which nothing can appear any more but of
    /// transactions that have been about to publish for longer than this, as of the
    /// last [`Store::safe_position`] of this handle. Asks the database nothing. At or
    /// below the safe position in a store where nothing is ever held up.
    async fn overtake_limit(&self, longer_than: Duration) -> Position {
        let _ = longer_than;
        Position::ZERO
    }

    /// Reads a part of the log whose end need not be safe, and tells what of it may
    /// still appear above `safe`, which is. In at most so many ranges, at least 1:
    /// what was read ends before there would be more.
    ///
    /// Every event that the group receives is in what was read, or will appear in
    /// what is open, or is above what was read; and of these it is one.
    async fn fetch_overtaking(
        &self,
        fetch: Fetch<'_>,
        safe: Position,
        max_ranges: usize,
    ) -> Result<OvertakingFetch, StoreError> {
        let _ = max_ranges;
        let up_to = fetch.up_to.min(safe);
        Ok(OvertakingFetch {
            fetched: self.fetch(Fetch { up_to, ..fetch }).await?,
            undecided: UndecidedRanges::NONE,
        })
    }

    /// Looks whether something has appeared where a group had passed. What has is no
    /// longer open, whoever receives it; nor is what is safe and holds nothing.
    async fn fetch_late(&self, late: LateFetch<'_>) -> Result<FetchedLate, StoreError> {
        let _ = late;
        Ok(FetchedLate { events: Vec::new(), undecided: UndecidedRanges::NONE, has_more: false })
    }

    /// Writes down what this host is troubled by, one thing a line, for `status`;
    /// `None` for nothing. To be repeated while it is so: `status` shows it for a
    /// minute. A store without a list of hosts has no place for it.
    async fn record_outages(
        &self,
        host: &HostIdentity,
        trouble: Option<&str>,
    ) -> Result<(), StoreError> {
        let _ = (host, trouble);
        Ok(())
    }

    /// A session for this host's locks.
    async fn lock_session(&self, host: &HostIdentity) -> Result<Box<dyn LockSession>, StoreError>;

    /// Makes a group that is not there, and leaves one that is as it is, whatever it is
    /// like. For a store in which a group's lock stands in the group.
    async fn make_group(&self, settings: &GroupRegistration) -> Result<(), StoreError> {
        let _ = settings;
        Ok(())
    }

    /// Creates the group if it does not exist, with its partitions, and records its
    /// subscription.
    ///
    /// A group that is split in another way is repartitioned: each partition begins at
    /// the highest cursor that there was, and what one had before it, what was parked and
    /// what was retried comes again, in the partitions where it now belongs. What one had
    /// before it is what the group receives by these settings: an event that is above the
    /// cursor of its partition is as new to a changed subscription as one above all of them.
    /// What is parked or retried comes again also where it is no longer subscribed to.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for a group of another tenant, and when it cannot be
    /// repartitioned: while somebody leads a part of it, while what it has passed is open,
    /// and where a part is more than 100,000 events behind another.
    async fn ensure_group(&self, settings: &GroupRegistration) -> Result<(), StoreError>;

    /// Raises the epoch and records the leader. The caller holds the group's
    /// lock.
    async fn begin_leadership(
        &self,
        group: &GroupName,
        host: &HostIdentity,
    ) -> Result<Leadership, StoreError>;

    /// Whether a host, by its id, has shown itself since the group's present
    /// leadership began. One that has did not die before that, whatever became of
    /// its lock.
    async fn is_alive_since(&self, host: &str, group: &GroupName) -> Result<bool, StoreError> {
        let _ = (host, group);
        Ok(false)
    }

    /// Records a clean end: no leader, nothing in flight, not fruitless. A
    /// stale epoch is ignored.
    async fn end_leadership(&self, group: &GroupName, epoch: Epoch) -> Result<(), StoreError>;

    /// Counts the leadership as fruitless until something is settled. Called
    /// once, before the first attempt of a leadership, so that a leader that had
    /// nothing to do is not counted.
    ///
    /// Only while `settled` is the number of the group's last settlement: one
    /// that is late must not take back what a settlement has proved. One that is
    /// tried again after an unknown outcome may count twice, which makes a group
    /// careful a crash too early and costs nothing else.
    async fn record_work_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
    ) -> Result<Settled, StoreError>;

    /// Records, before it begins, the attempt that a crash would leave behind,
    /// beside the retry that is pending, which stays as it is.
    /// Not progress: it does not end a run of fruitless leaderships.
    ///
    /// Only while `settled` is the number of the group's last settlement: one
    /// that is late would mark an attempt that is long over.
    async fn record_attempt_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
        mark: Mark,
    ) -> Result<Settled, StoreError>;

    /// Forgets the attempt that was recorded as begun, because the host that began it
    /// lives: no later leader counts it either.
    async fn withdraw_attempt(
        &self,
        group: &GroupName,
        epoch: Epoch,
    ) -> Result<Settled, StoreError>;

    /// Records a settlement: cursor, head, redeliveries, dead letters, emits and
    /// state in one transaction, or none of them; the leadership is fruitful from now on. The
    /// group's last settlement has the settlement's number from then on, and had
    /// the number before it until then.
    ///
    /// # Errors
    /// [`StoreError::Unstorable`] for what its events came to, and for nothing else.
    /// After [`StoreError::Unavailable`] the outcome may be unknown, and may even be
    /// open: [`Store::cursor`] tells whether it is committed, and the number sees to it
    /// that, tried again, it is committed once.
    async fn settle(&self, settlement: &Settlement) -> Result<Settled, StoreError>;

    /// Every redelivery of a group, by position; among them the deferred event that an
    /// attempt of is marked, as the redelivery that it would be. A group that does not
    /// exist has none.
    async fn redeliveries(&self, group: &GroupName) -> Result<Vec<Redelivery>, StoreError>;

    /// A group's deferred events whose time has come. Costs the same however many
    /// wait for a later time.
    async fn due(&self, due: DueFetch<'_>) -> Result<Due, StoreError>;

    /// How many deferred events of a group wait that are no redeliveries, counted up
    /// to [`MOST_COUNTED`].
    async fn deferred(&self, group: &GroupName) -> Result<i64, StoreError>;

    /// The events at these positions, in position order, whether the log has them or
    /// they are deferred; one that is
    /// not there is left out, and so is one of another tenant or for another group
    /// alone. The subscription does not matter: it may have changed since the
    /// group received them.
    ///
    /// They come with their data, so nobody should ask for more than is to be
    /// handled next. The first of them, as many as come in time, up to the one that
    /// brings all of them to so many bytes; at least one if there is one.
    async fn fetch_at(
        &self,
        group: &GroupName,
        positions: &[Position],
        max_bytes: usize,
    ) -> Result<Found, StoreError>;

    /// How far a group is, as it is committed.
    async fn cursor(&self, group: &GroupName) -> Result<Cursor, StoreError>;

    /// Epoch, state and cursor of every group and partition, in one cheap query.
    async fn group_states(&self) -> Result<Vec<GroupControl>, StoreError>;

    /// One value of a group's state.
    async fn state_get(
        &self,
        group: &GroupName,
        scope: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError>;

    /// The first `limit` keys of a scope that start with `prefix`, by bytes.
    async fn state_keys(
        &self,
        group: &GroupName,
        scope: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<String>, StoreError>;

    /// How many keys a group's state has, over all its scopes. Reads an entry of
    /// the index for each: not to be asked for each event.
    async fn state_key_count(&self, group: &GroupName) -> Result<i64, StoreError>;

    /// The log and all groups, in one snapshot, at a cost that does not grow with what
    /// they have before them.
    async fn status(&self) -> Result<LogStatus, StoreError> {
        self.status_counted(Counting::BOUNDED).await
    }

    /// The log and all groups, in one snapshot, with numbers that are as exact as is
    /// said.
    async fn status_counted(&self, counting: Counting) -> Result<LogStatus, StoreError>;

    /// One group, as [`Store::status`] has it.
    async fn group_status(&self, group: &GroupName) -> Result<GroupStatus, StoreError> {
        self.group_status_counted(group, Counting::BOUNDED).await
    }

    /// One group, with numbers that are as exact as is said.
    async fn group_status_counted(
        &self,
        group: &GroupName,
        counting: Counting,
    ) -> Result<GroupStatus, StoreError>;

    /// Says something of groups for `status`, though they go on; `None` takes it
    /// back, and what was said of their partitions with it. A group that does not exist is passed over.
    async fn set_note(&self, groups: &[GroupName], note: Option<&str>) -> Result<(), StoreError>;

    /// The leader's: marks a running group as tripped, for this reason, or
    /// without one a tripped group as running again. A group that an operator
    /// paused stays paused.
    async fn record_trip(
        &self,
        group: &GroupName,
        epoch: Epoch,
        reason: Option<&str>,
    ) -> Result<Settled, StoreError>;

    /// Stops the running of a group; takes effect between two events.
    async fn pause(&self, group: &GroupName, reason: &str) -> Result<(), StoreError>;

    /// Ends a pause, or a trip.
    async fn resume(&self, group: &GroupName) -> Result<(), StoreError>;

    /// The same for a group that keeps nothing in the log ([`Store::unpin`]), and keeps
    /// what it has before it from now on. Gives what is gone of that. [`Store::resume`]
    /// refuses it where something is.
    async fn resume_without_what_is_gone(
        &self,
        group: &GroupName,
    ) -> Result<Option<Gone>, StoreError>;

    /// Moves the cursor and raises the epoch, in one statement, so that an open
    /// batch is refused. Forgets the pending retry, and the redeliveries, deferred events
    /// and what is
    /// open above the new cursor, whose events the log brings again; no settlement, so the number
    /// of the last one stays. A deferred event that the log does not have any more is
    /// kept, and the cursor put no lower than it. Gives the new cursor.
    async fn seek(&self, group: &GroupName, to: Start) -> Result<Position, StoreError> {
        Ok(self.seek_to(group, to, false).await?.position)
    }

    /// The same, and says what is gone of the events that would come next there.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where something is gone, if the place is to be had
    /// exactly. Nothing is changed then.
    async fn seek_to(
        &self,
        group: &GroupName,
        to: Start,
        exactly: bool,
    ) -> Result<Sought, StoreError>;

    /// Removes a group with its cursors, redeliveries and state.
    ///
    /// # Errors
    /// [`StoreError::Refused`] while it has dead letters and
    /// `with_dead_letters` is false, or while somebody leads it.
    async fn remove_group(
        &self,
        group: &GroupName,
        with_dead_letters: bool,
    ) -> Result<Removed, StoreError>;

    /// Dead letters, the lowest id first.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the filter names a group that does not
    /// exist.
    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError>;

    /// The numbers of all dead letters of a group, the lowest first.
    async fn dead_letter_ids(&self, group: &GroupName) -> Result<Vec<DeadLetterId>, StoreError>;

    /// One dead letter.
    async fn dead_letter(&self, id: DeadLetterId) -> Result<DeadLetter, StoreError>;

    /// Gives one dead letter back to its group: removes it and appends a copy
    /// that only this group receives, with id, source, time and data as they
    /// were, or with `data` instead. With a digest that component handles the
    /// copy, instead of the group's own.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] also for the loser of two at once, and for a
    /// component that was not deployed for the dead letter's tenant. Nothing is
    /// changed then.
    async fn replay(
        &self,
        id: DeadLetterId,
        data: Option<&[u8]>,
        digest: Option<&Digest>,
    ) -> Result<Replayed, StoreError>;

    /// Replays up to `limit` of a group's dead letters with ids above `after`
    /// and at or below `up_to`, skipping those that somebody else replays at
    /// this moment. Fewer than `limit`, or none, when no more are left. With a
    /// digest as [`Store::replay`] has it.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] also when one of them is of a tenant that the
    /// component was not deployed for. None of them is replayed then.
    async fn replay_some(
        &self,
        group: &GroupName,
        after: DeadLetterId,
        up_to: DeadLetterId,
        limit: usize,
        digest: Option<&Digest>,
    ) -> Result<Vec<Replayed>, StoreError>;

    /// Removes a dead letter for good.
    async fn discard(&self, id: DeadLetterId) -> Result<(), StoreError>;

    /// Keeps a component and makes it the active version of a handler, in one
    /// transaction. Of two at once one comes after the other. What is active
    /// already is not deployed again, so that one whose outcome is unknown can
    /// be repeated.
    async fn deploy(&self, new: NewVersion<'_>) -> Result<Deployment, StoreError>;

    /// Makes the version before the active one active again, and gives it: the
    /// latest that was not rolled back itself.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when there is none, when nothing is deployed, and
    /// when `from` is given and is not the active version.
    async fn rollback(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
        from: Option<VersionNumber>,
    ) -> Result<Version, StoreError>;

    /// Every version of a handler, the newest first; none if nothing is
    /// deployed.
    async fn versions(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
    ) -> Result<Vec<Version>, StoreError>;

    /// What is active, of every handler of every tenant, by tenant and handler,
    /// in one cheap query.
    async fn deployed(&self) -> Result<Vec<Deployed>, StoreError>;

    /// The bytes of a component that was once deployed for one of the tenant's
    /// handlers. They are those of the digest.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] also for what was deployed for other tenants
    /// alone; [`StoreError::Unusable`] when what is stored is not what was
    /// deployed.
    async fn component(&self, tenant: &Tenant, digest: &Digest) -> Result<Vec<u8>, StoreError>;

    /// The digests that begin with this text, of components that were once
    /// deployed for one of the tenant's handlers: the first `limit`, in their
    /// order.
    async fn digests(
        &self,
        tenant: &Tenant,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Digest>, StoreError>;

    /// How many dead letters all groups of a tenant have together.
    async fn tenant_dead_letters(&self, tenant: &Tenant) -> Result<i64, StoreError>;

    /// The bytes of all dead letters of a tenant's groups: of each, about as many as
    /// [`dead_letter_bytes`] says. Reads every one of their rows, though no data.
    async fn tenant_dead_letter_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError>;

    /// The bytes of all keys and values in the state of a tenant's groups. Reads
    /// every one of its rows, though no large value: not to be asked for each
    /// event.
    async fn tenant_state_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError>;
}
