//! Deferred events: those that are to be delivered later. The store keeps them whole,
//! beside the log, until they are over, so that they hold back no cursor and keep no
//! event in the log.

use jiff::Timestamp;

use super::Redelivery;
use event_host_core::event::{GroupName, Position};

/// How many deferred events of a group are counted. A group that has more is said to
/// have so many.
pub const MOST_COUNTED: i64 = 100_000;

/// An event that a settlement defers: at or below the cursor, and in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deferral {
    /// The event's position.
    pub position: Position,
    /// When it is due: whole microseconds, as stores keep them.
    pub due_at: Timestamp,
    /// It was committed after the group had passed it.
    pub late: bool,
}

/// What a leader asks of its group's deferred events.
#[derive(Debug, Clone, Copy)]
pub struct DueFetch<'a> {
    /// The group, or one of its partitions.
    pub group: &'a GroupName,
    /// Those that are due at or before this time.
    pub now: Timestamp,
    /// Those that come after this one, by their times and then by their positions;
    /// `None` for all.
    pub after: Option<(Timestamp, Position)>,
    /// Those at or below this position: the cursor, because the settlement that ends
    /// one must not have to stand above it.
    pub up_to: Position,
    /// Maximum number of events. At least 1.
    pub max_events: usize,
}

/// Deferred events whose time has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Due {
    /// Those that are no redeliveries yet, by their times and then by their positions:
    /// each as the redelivery that it would be, with its first attempt to come.
    pub events: Vec<Redelivery>,
    /// When the first of those is due that are not due yet.
    pub next: Option<Timestamp>,
}
