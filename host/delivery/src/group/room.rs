//! What is known of the room that a group and its tenant have in the store.

use tokio::time::Instant;

/// The measured size of a tenant's state plus what this group may have added since. Too low
/// only by what other groups added.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownState {
    pub(super) bytes: i64,
    pub(super) at: Instant,
}

/// Upper bound of the number of keys in this group's state, uncommitted ones included. Nobody
/// but its leader writes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownKeys {
    pub(super) at_most: i64,
    /// When they were counted, while every change since is known exactly.
    pub(super) counted: Option<Instant>,
}

/// Why a tenant has no room for a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// It keeps this number of dead letters, the most that it may.
    Letters(u64),
    /// They would take more bytes than it may keep.
    Bytes {
        /// What those take that it keeps.
        kept: u64,
        /// What the next one would.
        next: u64,
        /// What all may.
        most: u64,
    },
}
