//! Redeliveries: events that a group's cursor has passed, and that come again.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use super::refusals;
use crate::{Deferral, FailureRecord, Settlement, StoreError};
use event_host_core::event::{Attempt, Position};

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
    /// attempted: nothing waits for it, and it need be no redelivery.
    #[must_use]
    pub fn is_delayed(&self, now: Timestamp) -> bool {
        self.attempt == Attempt::FIRST && self.failure.is_none() && self.due_at > now
    }
}

/// What a settlement changes of its group's redeliveries and deferred events: each
/// position is in one of the three, once, because a statement must not touch a row
/// twice.
#[derive(Debug)]
pub struct Changes<'a> {
    /// Redeliveries as they are from now on, by position.
    pub set: Vec<&'a Redelivery>,
    /// The positions of those that are over, ascending.
    pub over: Vec<i64>,
    /// Events that are deferred, by position.
    pub deferred: Vec<&'a Deferral>,
}

impl Settlement {
    /// What it changes of the group's redeliveries and deferred events.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for one above the cursor: the log would bring the event
    /// too, and it would be handled twice.
    pub fn redelivery_changes(&self) -> Result<Changes<'_>, StoreError> {
        let over: BTreeSet<i64> = self.redelivered.iter().map(|position| position.0).collect();
        let (mut set, mut deferred) = (BTreeMap::new(), BTreeMap::new());
        for deferral in &self.deferred {
            self.is_passed(deferral.position)?;
            if !over.contains(&deferral.position.0) {
                deferred.insert(deferral.position, deferral);
            }
        }
        for redelivery in &self.redeliveries {
            let Redelivery { position, .. } = redelivery;
            self.is_passed(*position)?;
            if !over.contains(&position.0) && !deferred.contains_key(position) {
                set.insert(*position, redelivery);
            }
        }
        Ok(Changes {
            set: set.into_values().collect(),
            over: over.into_iter().collect(),
            deferred: deferred.into_values().collect(),
        })
    }

    fn is_passed(&self, position: Position) -> Result<(), StoreError> {
        if position > self.position {
            let (group, cursor) = (&self.group, self.position);
            return Err(refusals::redelivery_above_the_cursor(group, position, cursor));
        }
        Ok(())
    }
}
