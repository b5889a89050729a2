//! How long events are kept, and what keeps them longer.

use std::time::Duration;

use serde::Serialize;

use event_host_core::event::{GroupName, Position, Tenant};

/// Which events may go, once no group needs them any more. The oldest go first,
/// so what is left is always the end of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Those that were published longer ago than this.
    pub max_age: Option<Duration>,
    /// The oldest, while the log takes more bytes than this.
    pub max_bytes: Option<u64>,
}

impl Retention {
    /// Nothing ever goes.
    pub const FOREVER: Self = Self { max_age: None, max_bytes: None };

    /// The age in microseconds and the size, as stores keep them: what does not fit
    /// is as good as the largest.
    pub fn to_stored(self) -> (Option<i64>, Option<i64>) {
        let age = self.max_age.map(|age| i64::try_from(age.as_micros()).unwrap_or(i64::MAX));
        let bytes = self.max_bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        (age, bytes)
    }

    /// Back from [`Retention::to_stored`].
    pub fn from_stored((age, bytes): (Option<i64>, Option<i64>)) -> Self {
        Self {
            max_age: age.map(|age| Duration::from_micros(age.unsigned_abs())),
            max_bytes: bytes.map(i64::unsigned_abs),
        }
    }

    /// Whether nothing ever goes.
    #[must_use]
    pub fn is_forever(&self) -> bool {
        *self == Self::FOREVER
    }
}

/// What one round of upkeep did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Enforced {
    /// Events up to this position went.
    pub dropped_up_to: Option<Position>,
    /// The group that keeps the oldest of the events that would have gone.
    pub pinned_by: Option<GroupName>,
    /// Others were in the way of a part of it, which a later round does.
    pub postponed: bool,
}

/// Why a group is paused that kept more in the log than its tenant may.
pub fn unpinned_reason(tenant: &Tenant, pin: &LogPin, most: u64) -> String {
    let LogPin { group, position, bytes, .. } = pin;
    let group = group.group();
    format!(
        "it stood at position {position} and kept {bytes} bytes of old events in the log, and `pinned_log` in [tenants.{tenant}] is {most}: it keeps none any more, and what it has not handled goes; `host groups resume {group}` says what is gone, and goes on without it with `--accept-loss`"
    )
}

/// A group that keeps events in the log beyond their time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogPin {
    /// The one that is furthest behind.
    pub group: GroupName,
    /// It needs what is above this position.
    pub position: Position,
    /// What would be free without it: on PostgreSQL with all that belongs to it on
    /// disk, on SQLite the data of the events alone.
    pub bytes: u64,
    /// There may be more: not all of it was looked at. Left out of JSON where it was.
    #[serde(skip_serializing_if = "super::is_exact")]
    pub bytes_is_at_least: bool,
}
