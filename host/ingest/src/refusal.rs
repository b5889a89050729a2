//! Why a request was not published, in one sentence and in what a program needs of it.

use std::fmt;
use std::time::Duration;

use event_host_core::event::Position;
use event_host_core::event::json::InvalidEvent;
use event_host_store::StoreError;

/// The kind of a refusal. Its slug and its status never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// What came breaks CloudEvents, or is none.
    InvalidEvent,
    /// The request itself has a mistake in it.
    InvalidRequest,
    /// Who sent it may not send that.
    Forbidden,
    /// A body, an event or a batch is above its limit.
    TooLarge,
    /// A format, charset or coding that is not taken.
    Unsupported,
    /// An id that another event has.
    IdReused,
    /// Above a rate.
    Rate,
    /// What the host can hold at once is full, or the request waited too long. Nothing was
    /// published.
    Busy,
    /// The database does not answer. Whether it was published may be unknown.
    Database,
    /// The host stops, and takes nothing more.
    Draining,
    /// No room for events is left.
    Full,
    /// A fault of the host or of what its database holds.
    Internal,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 12] = [
        Self::InvalidEvent,
        Self::InvalidRequest,
        Self::Forbidden,
        Self::TooLarge,
        Self::Unsupported,
        Self::IdReused,
        Self::Rate,
        Self::Busy,
        Self::Database,
        Self::Draining,
        Self::Full,
        Self::Internal,
    ];

    /// Its name.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::InvalidEvent => "invalid-event",
            Self::InvalidRequest => "invalid-request",
            Self::Forbidden => "forbidden",
            Self::TooLarge => "too-large",
            Self::Unsupported => "unsupported",
            Self::IdReused => "id-reused",
            Self::Rate => "rate",
            Self::Busy => "busy",
            Self::Database => "database",
            Self::Draining => "draining",
            Self::Full => "full",
            Self::Internal => "internal",
        }
    }

    /// The status of the answer.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidEvent | Self::InvalidRequest => 400,
            Self::Forbidden => 403,
            Self::TooLarge => 413,
            Self::Unsupported => 415,
            Self::IdReused => 422,
            Self::Rate => 429,
            Self::Internal => 500,
            Self::Busy | Self::Database | Self::Draining => 503,
            Self::Full => 507,
        }
    }
}

/// Why a request was not published.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The kind.
    pub reason: Reason,
    /// What is wrong, and what would be right.
    pub detail: String,
    /// Which event of the request, from 0.
    pub event: Option<usize>,
    /// Which attribute of it.
    pub attribute: Option<String>,
    /// The limit that was met.
    pub limit: Option<u64>,
    /// How long to wait, if that is known.
    pub retry_after: Option<Duration>,
    /// Where the other event with the same id is.
    pub position: Option<Position>,
}

impl Refusal {
    /// What is said of a host that stops.
    pub(crate) fn draining() -> Self {
        Self::new(
            Reason::Draining,
            "the host stops and takes no more events; nothing of the request was published: send it again, to another host or later",
        )
    }

    /// A refusal.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
            event: None,
            attribute: None,
            limit: None,
            retry_after: None,
            position: None,
        }
    }

    /// Of an event that breaks CloudEvents.
    #[must_use]
    pub fn invalid(error: &InvalidEvent) -> Self {
        let attribute = error.attribute().map(str::to_owned);
        Self { attribute, ..Self::new(Reason::InvalidEvent, error.to_string()) }
    }

    /// The attribute that is wrong.
    #[must_use]
    pub fn attribute(self, name: &str) -> Self {
        Self { attribute: Some(name.to_owned()), ..self }
    }

    /// Which event of the request it is about.
    #[must_use]
    pub fn event(self, index: usize) -> Self {
        Self { event: Some(index), ..self }
    }

    /// The limit that was met.
    #[must_use]
    pub fn limit(self, limit: usize) -> Self {
        Self { limit: Some(limit as u64), ..self }
    }

    /// How long to wait.
    #[must_use]
    pub fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// What a store's error means for the request that it is of. The database's own words are
    /// for the log, but for what it refuses of the events.
    #[must_use]
    pub fn of_store(error: &StoreError) -> Self {
        match error {
            StoreError::Refused(why) | StoreError::Unstorable(why) => Self::new(
                Reason::InvalidEvent,
                format!("the database refuses an event of the request: {why}"),
            ),
            StoreError::Busy(_) => Self::new(
                Reason::Busy,
                "the database has no room for the request now; nothing of it was published: send it again",
            ),
            StoreError::Unavailable(_) | StoreError::Changed(_) => Self::unknown_outcome(),
            StoreError::Unusable(_) | StoreError::NotFound(_) => Self::new(
                Reason::Internal,
                "the host cannot publish: its log says why; send the request again later, with the same ids",
            ),
        }
    }

    /// Nobody knows whether it was published.
    #[must_use]
    pub fn unknown_outcome() -> Self {
        Self::new(
            Reason::Database,
            "the database has not answered in time, so whether the request was published is not known: send it again with the same ids, and what is there already stays once",
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.event {
            write!(f, "event {index}: ")?;
        }
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Refusal {}
