//! What a store answers instead of doing what was asked.

use std::fmt;

use super::DeadLetterId;
use event_host_core::digest::Digest;
use event_host_core::event::GroupName;
use event_host_core::handler::state::StateUnreadable;

/// What a store can answer instead of doing what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database did not answer, was busy too long, or broke off. Whether a
    /// write that was under way happened is unknown. Trying again may help.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// What it takes was not to be had: a lock, a connection, room. Nothing was done.
    /// Trying again may help.
    #[error("the database is not available: {0}")]
    Busy(String),
    /// The database answered, but what it holds or says makes no sense to this
    /// program. Trying again will not help.
    #[error("{0}")]
    Unusable(String),
    /// The database refuses what a settlement holds of what its events came to: what
    /// they emitted or wrote, or their dead letters. Nothing of the settlement is
    /// recorded. Trying the same again will not help.
    #[error("{0}")]
    Unstorable(String),
    /// The thing that was named does not exist.
    #[error("{0} not found")]
    NotFound(Missing),
    /// The request does not fit the state of things; the text says what would.
    #[error("{0}")]
    Refused(String),
    /// The log is not the one that it was: the server or the file was replaced, put
    /// back, or lost what it had committed. Whatever is remembered of it is void.
    #[error("{0}")]
    Changed(String),
}

impl From<StoreError> for StateUnreadable {
    fn from(error: StoreError) -> Self {
        Self(error.to_string())
    }
}

/// What was not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// A consumer group.
    Group(GroupName),
    /// A dead letter; also one that somebody else replays at this moment.
    DeadLetter(DeadLetterId),
    /// A component; also one that is another tenant's alone.
    Component(Digest),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(name) => write!(f, "group `{name}`"),
            Self::DeadLetter(id) => write!(f, "dead letter {id}"),
            Self::Component(digest) => write!(f, "component {digest}"),
        }
    }
}
