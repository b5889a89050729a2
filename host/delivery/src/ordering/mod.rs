//! Which events may run now, and what a settlement may take. Pure.
//!
//! A group keeps a [`Schedule`]: a *window* of events that were read from the log
//! and are not settled, and the *parked* events, which the cursor has passed and
//! which come again. Events of one lane run one at a time and in position order;
//! what a lane is, is the whole difference between the orderings:
//!
//! | ordering | lane | an event that waits for its next attempt |
//! | --- | --- | --- |
//! | total | the group | holds the group up |
//! | key | the events of one `partitionkey`; an event without one is alone | is parked, and the later events of its key behind it |
//! | none | every event by itself | is parked alone |
//!
//! An event that is to be delivered later is *delayed* until its time, whatever the ordering:
//! it is in no lane, and no event waits for it. The settlement that comes to it *defers* it:
//! the store keeps it, and the schedule knows no more of it than when the next one is due.
//! Then it joins its lane in position order. Where later events of the lane were done
//! meanwhile, it waits until a settlement has taken them, because it builds on what they
//! wrote.
//!
//! The cursor may pass an event that is done or parked. So the window is cut at the
//! first event that is neither; where that one takes long and others after it are
//! done, it is parked while it runs, and what it does is settled when it ends.
//!
//! A handler of batches is called with several events of one lane, or of none where there is
//! no order: fresh ones, which were never attempted. They run, and are done, together: what
//! the call did is one, so no settlement takes some of them alone. If the call fails, each of
//! them runs again by itself.

mod lanes;
mod schedule;
#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

use serde::Serialize;

pub use schedule::{CommittedWrites, Cut, DueRead, Job, Schedule};

/// How many events go into one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallBatching {
    /// Maximum number of events in one call. At least 1.
    pub max_size: usize,
    /// How long an event waits for others, while there are fewer.
    pub linger: Duration,
}

impl Default for CallBatching {
    /// One event a call.
    fn default() -> Self {
        Self { max_size: 1, linger: Duration::ZERO }
    }
}

/// In which order a group's events are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ordering {
    /// One at a time, in position order. An event that waits for its next
    /// attempt holds up the group.
    #[default]
    Total,
    /// Events of one `partitionkey` one at a time, in position order; others
    /// beside them. An event that waits for its next attempt holds up its key.
    Key,
    /// As many at a time as may be, in any order. An event that waits for its
    /// next attempt holds up nothing.
    None,
}

impl Ordering {
    /// Default number of attempts at once.
    #[must_use]
    pub fn default_concurrency(self) -> usize {
        match self {
            Self::Total => 1,
            Self::Key | Self::None => 16,
        }
    }

    /// Whether an event that waits for its next attempt lets others pass.
    #[must_use]
    pub fn parks(self) -> bool {
        self != Self::Total
    }
}
