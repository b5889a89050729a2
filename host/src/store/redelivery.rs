//! Redeliveries: events that a group's cursor has passed, and that come again.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use super::{FailureRecord, Settlement, StoreError, refusals};
use crate::event::{Attempt, Position};

/// An event that the cursor has passed and that comes again for the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Redelivery {
    /// The event's position.
    pub position: Position,
    /// The attempt that comes next.
    pub attempt: Attempt,
    /// When it may begin: whole microseconds, as stores keep them. 1970-01-01
    /// 00:00 UTC of an event that waits for no time, only for others.
    pub due_at: Timestamp,
    /// Its `partitionkey`.
    pub key: Option<String>,
    /// Why the attempt before failed; `None` while there was none.
    pub failure: Option<FailureRecord>,
    /// It was committed after the group had passed it.
    pub late: bool,
}

impl Redelivery {
    /// Whether it is of an event that is to be delivered later and was never
    /// attempted: nothing waits for it.
    #[must_use]
    pub fn is_delayed(&self, now: Timestamp) -> bool {
        self.attempt == Attempt::FIRST && self.failure.is_none() && self.due_at > now
    }
}

/// What a settlement changes of its group's redeliveries: each position is in one
/// of the two, once, because a statement must not touch a row twice.
#[derive(Debug)]
pub(super) struct Changes<'a> {
    /// As they are from now on, by position.
    pub(super) set: Vec<&'a Redelivery>,
    /// The positions of those that are over, ascending.
    pub(super) over: Vec<i64>,
}

impl Settlement {
    /// What it changes of the group's redeliveries.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for a redelivery above the cursor: the log would
    /// bring the event too, and it would be handled twice.
    pub(super) fn redelivery_changes(&self) -> Result<Changes<'_>, StoreError> {
        let over: BTreeSet<i64> = self.redelivered.iter().map(|position| position.0).collect();
        let mut set = BTreeMap::new();
        for redelivery in &self.redeliveries {
            let Redelivery { position, .. } = redelivery;
            if *position > self.position {
                return Err(refusals::redelivery_above_the_cursor(
                    &self.group,
                    *position,
                    self.position,
                ));
            }
            if !over.contains(&position.0) {
                set.insert(*position, redelivery);
            }
        }
        Ok(Changes { set: set.into_values().collect(), over: over.into_iter().collect() })
    }
}
