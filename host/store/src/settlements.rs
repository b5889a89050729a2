//! Settlements: everything that a batch of attempts did, in one transaction.
//!
//! Two fences guard it: the epoch refuses other leaders, the number refuses the leader's
//! own settlements that arrive late or twice.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;

use super::{
    Deferral, Due, DueFetch, Mark, Redelivery, StateWrite, StoreError, UndecidedChange,
    UndecidedRanges,
};
use event_host_core::event::{Attempt, Epoch, Event, GroupName, LogEvent, Position, Tenant};
use event_host_core::failure::FailureKind;

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
    /// How many events it settles that were handled successfully.
    pub handled: u64,
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

/// What a leader records of its group, and reads back: settlements, redeliveries,
/// deferred events, trips and notes.
#[async_trait]
pub trait Settlements: Send + Sync + 'static {
    /// Records a settlement: cursor, head, redeliveries, dead letters, emits and
    /// state in one transaction, or none of them; the leadership is fruitful from now on. The
    /// group's last settlement has the settlement's number from then on, and had
    /// the number before it until then.
    ///
    /// # Errors
    /// [`StoreError::Unstorable`] for what its events came to, and for nothing else.
    /// After [`StoreError::Unavailable`] the outcome may be unknown, and may even be
    /// open: [`Settlements::cursor`] tells whether it is committed, and the number sees to it
    /// that, tried again, it is committed once.
    async fn settle(&self, settlement: &Settlement) -> Result<Settled, StoreError>;

    /// How far a group is, as it is committed.
    async fn cursor(&self, group: &GroupName) -> Result<Cursor, StoreError>;

    /// Every redelivery of a group, by position; among them the deferred event that an
    /// attempt of is marked, as the redelivery that it would be. A group that does not
    /// exist has none.
    async fn redeliveries(&self, group: &GroupName) -> Result<Vec<Redelivery>, StoreError>;

    /// A group's deferred events whose time has come. Costs the same however many
    /// wait for a later time.
    async fn due(&self, due: DueFetch<'_>) -> Result<Due, StoreError>;

    /// How many deferred events of a group wait that are no redeliveries, counted up
    /// to [`MOST_COUNTED`](super::MOST_COUNTED).
    async fn deferred(&self, group: &GroupName) -> Result<i64, StoreError>;

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

    /// Says something of groups for `status`, though they go on; `None` takes it
    /// back, and what was said of their partitions with it. A group that does not exist is passed over.
    async fn set_note(&self, groups: &[GroupName], note: Option<&str>) -> Result<(), StoreError>;

    /// How many dead letters all groups of a tenant have together.
    async fn tenant_dead_letters(&self, tenant: &Tenant) -> Result<i64, StoreError>;

    /// The bytes of all dead letters of a tenant's groups: of each, about as many as
    /// [`dead_letter_bytes`] says. Reads every one of their rows, though no data.
    async fn tenant_dead_letter_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError>;
}
