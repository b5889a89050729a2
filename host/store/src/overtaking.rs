//! What is asked and told of the log past the safe position.

use jiff::Timestamp;

use super::{Fetched, Subscription, UndecidedRanges};
use event_host_core::event::{GroupName, Partition, Position, Tenant};

/// A part of the log that was read past the safe position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OvertakingFetch {
    /// What was there.
    pub fetched: Fetched,
    /// What may still appear in it: of the part that was read and is above the safe
    /// position, every position that held no event of anybody's in the very snapshot
    /// in which it was read.
    pub undecided: UndecidedRanges,
}

/// What a leader asks of what it has passed and what was open then.
#[derive(Debug, Clone)]
pub struct LateFetch<'a> {
    /// Events that are addressed to this group alone are included.
    pub group: &'a GroupName,
    /// Whose events.
    pub tenant: &'a Tenant,
    /// Which of them; what is addressed to the group is always included.
    pub subscription: &'a Subscription,
    /// Those of this partition alone; `None` for all. What is another's is no longer
    /// open either.
    pub partition: Option<Partition>,
    /// Where they may have appeared.
    pub undecided: &'a UndecidedRanges,
    /// Nothing can appear any more at or below this position, which was safe before
    /// the call. The store may know of more.
    pub safe: Position,
    /// Maximum number of events. At least 1.
    pub max_events: usize,
}

/// An event that appeared where a group had passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateEvent {
    /// The event's position.
    pub position: Position,
    /// Its `partitionkey`.
    pub key: Option<String>,
    /// When it is delivered at the earliest; `None` for at once.
    pub deliver_after: Option<Timestamp>,
}

/// What has become of positions that were open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedLate {
    /// Events for the group, in position order.
    pub events: Vec<LateEvent>,
    /// Where something may still appear, or where something was not looked at.
    pub undecided: UndecidedRanges,
    /// Whether there may be more at this moment than was looked at.
    pub has_more: bool,
}

/// What a settlement changes of what is open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UndecidedChange {
    /// What the cursor has passed from now on and what may still appear: at or below
    /// it.
    pub undecided: UndecidedRanges,
    /// How many late events the settlement takes over from it, as redeliveries or
    /// as handled.
    pub late: u64,
}
