//! What a handler may know of the call it is in.

use std::time::Duration;

use crate::host;

/// The consumer group's name.
#[must_use]
pub fn group() -> String {
    host::group()
}

/// The tenant that owns the handler and the event, if there is one.
#[must_use]
pub fn tenant() -> Option<String> {
    Some(host::tenant()).filter(|tenant| !tenant.is_empty())
}

/// How long the host lets this attempt go on.
#[must_use]
pub fn remaining() -> Duration {
    Duration::from_millis(host::remaining_ms())
}

/// Whether this event is a dead letter that an operator replayed.
#[must_use]
pub fn is_replay() -> bool {
    host::is_replay()
}

/// Whether this event comes after later events of the log were already handed
/// to this group.
#[must_use]
pub fn is_late() -> bool {
    host::is_late()
}
