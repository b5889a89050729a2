//! Dead letters: events that a group has given up on.

use std::fmt;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;

use super::{FailureRecord, StoreError};
use event_host_core::digest::Digest;
use event_host_core::event::{GroupName, LogEvent, Position, Tenant};

/// The number of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct DeadLetterId(pub i64);

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
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
    /// Maximum number of dead letters; the lowest ids come first.
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

/// Dead letters, which settlements add: listing, replaying and discarding them.
#[async_trait]
pub trait DeadLetters: Send + Sync + 'static {
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
    /// digest as [`DeadLetters::replay`] has it.
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
}
