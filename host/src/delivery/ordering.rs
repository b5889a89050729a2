//! Which events may run now. Pure.

use serde::Serialize;

/// In which order a group's events are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ordering {
    /// One at a time, in position order. An event that waits for its next
    /// attempt holds up the group.
    #[default]
    Total,
}
