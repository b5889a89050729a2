//! What an operator asks and does of groups.
//!
//! Whatever moves a cursor here raises the epoch too, so that what the leader has under
//! way is refused.

use async_trait::async_trait;

use super::{Counting, Gone, GroupStatus, LogStatus, Sought, Start, StoreError};
use event_host_core::event::{GroupName, Position};

/// What went with a group that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// How many redeliveries waited: the log still has the events of those that were
    /// not deferred.
    pub parked: i64,
    /// How many deferred events waited, and are gone.
    pub deferred: i64,
}

/// What an operator asks and does of groups.
#[async_trait]
pub trait Groups: Send + Sync + 'static {
    /// The log and all groups, in one snapshot, at a cost that does not grow with what
    /// they have before them.
    async fn status(&self) -> Result<LogStatus, StoreError> {
        self.status_counted(Counting::BOUNDED).await
    }

    /// The log and all groups, in one snapshot, with numbers that are as exact as is
    /// said.
    async fn status_counted(&self, counting: Counting) -> Result<LogStatus, StoreError>;

    /// One group, as [`Groups::status`] has it.
    async fn group_status(&self, group: &GroupName) -> Result<GroupStatus, StoreError> {
        self.group_status_counted(group, Counting::BOUNDED).await
    }

    /// One group, with numbers that are as exact as is said.
    async fn group_status_counted(
        &self,
        group: &GroupName,
        counting: Counting,
    ) -> Result<GroupStatus, StoreError>;

    /// Ends a pause, or a trip.
    async fn resume(&self, group: &GroupName) -> Result<(), StoreError>;

    /// The same for a group that keeps nothing in the log ([`EventLog::unpin`](super::EventLog::unpin)), and keeps
    /// what it has before it from now on. Gives what is gone of that. [`Groups::resume`]
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
}
