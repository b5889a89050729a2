//! Why a request is not taken.

use event_host_core::event::json::InvalidEvent;

/// Why a request is not taken, in a sentence for whoever sent it: it tells what is wrong and
/// what would be right, and nothing of a secret or of what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The signature, or the shared token, is missing or wrong.
    #[error("{0}")]
    Signature(String),
    /// The signature is right, and of another time.
    #[error("{0}")]
    Stale(String),
    /// It shows no token that may publish.
    #[error("this source takes requests with a token that may publish, and the request shows none")]
    Token,
    /// A template finds nothing in it, or what it finds is nothing to make an attribute of.
    #[error("{0}")]
    Invalid(String),
    /// What the templates give breaks CloudEvents.
    #[error("the request makes no event: {0}")]
    Event(InvalidEvent),
}

impl Refusal {
    /// The reason in one word, for counters.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Signature(_) => "signature",
            Self::Stale(_) => "stale",
            Self::Token => "unauthenticated",
            Self::Invalid(_) | Self::Event(_) => "invalid",
        }
    }
}
