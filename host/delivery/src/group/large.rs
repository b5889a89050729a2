//! Events that are too large to be read as others are.
//!
//! A read brings what comes in time, so it fails only where not even its first event
//! does. Then events are read one by one for a while, each with much more time. One that
//! cannot be read even so, again and again, though the store says at once how large it
//! is, becomes a dead letter of what is known of it, and all others go on. One that is
//! not large is never given up: whatever keeps it from being read is not its size.

use std::sync::Arc;

use tracing::warn;

use super::shared::Shared;
use event_host_core::event::{LogEvent, Position};
use event_host_core::failure::{Failure, FailureKind};
use event_host_core::handler::{Outcome, Report, Usage};
use event_host_store::{EventLog, Fetch, Fetched, Sketch, StoreError};

/// Smallest size, in bytes, of an event that may be too large to be read.
const LARGE: u64 = 1 << 20;

/// Number of times that a large event is read alone before it is given up.
const TRIES: u32 = 3;

/// Number of events that are read one at a time after a read that failed: the next ones may
/// be as large.
const ONE_BY_ONE: u32 = 16;

/// A read that failed, with what is known of the event that it begins with, if that
/// could be asked for.
#[derive(Debug)]
pub(super) struct Unread {
    sketch: Option<Box<Sketch>>,
    pub(super) why: StoreError,
}

impl From<StoreError> for Unread {
    fn from(why: StoreError) -> Self {
        Self { sketch: None, why }
    }
}

/// Reads the next event alone. First it is asked what event that is: so that a database
/// that is away says nothing of the event.
pub(super) async fn read_alone(store: &dyn EventLog, fetch: Fetch<'_>) -> Result<Fetched, Unread> {
    let Some(sketch) = store.sketch(fetch.clone()).await? else {
        return Ok(store.fetch(fetch).await?);
    };
    let read = store.fetch_one(fetch).await;
    read.map_err(|why| Unread { sketch: Some(Box::new(sketch)), why })
}

/// Whether events are read one by one.
#[derive(Debug, Default)]
pub(super) struct OneByOne {
    left: u32,
    failed: Option<(Position, u32)>,
}

impl OneByOne {
    pub(super) fn is_on(&self) -> bool {
        self.left > 0
    }

    /// A read went well.
    pub(super) fn read(&mut self) {
        self.failed = None;
        self.left = self.left.saturating_sub(1);
    }

    /// A read failed. Gives the event that it is for which no other try is made.
    pub(super) fn failed(&mut self, unread: &Unread) -> Option<LogEvent> {
        self.left = ONE_BY_ONE;
        // A store that refuses it has said itself that it is too large.
        let is_refused = matches!(unread.why, StoreError::Refused(_));
        let is_large = |sketch: &&Sketch| is_refused || sketch.bytes >= LARGE;
        let sketch = unread.sketch.as_deref().filter(is_large)?;
        let position = sketch.event.position;
        let before = self.failed.filter(|(failed, _)| *failed == position);
        let times = before.map_or(1, |(_, times)| times + 1);
        self.failed = Some((position, times));
        (times >= TRIES).then(|| sketch.event.clone())
    }
}

impl Shared {
    /// Gives up reading an event that is too large, and returns what is known of it.
    pub(super) fn give_up_reading(&self, event: LogEvent, why: &StoreError) -> Arc<LogEvent> {
        let position = event.position;
        let group = &self.group.settings.name;
        warn!(%group, position = position.0, "an event is too large to be read: {why}");
        let text = format!(
            "the event is too large to be read ({why}); its data is left out here, and so is what else is large of it: all of it stands at position {position} of the log"
        );
        self.too_large.insert(event.clone(), text);
        Arc::new(event)
    }

    /// Whether this event is too large for a handler.
    pub(super) fn is_too_large(&self, position: Position) -> bool {
        self.too_large.has(position)
    }

    /// The report for an event that is too large to be read: no attempt is made.
    pub(super) fn too_large(&self, position: Position) -> Option<Report> {
        let text = self.too_large.failure(position)?;
        Some(Report {
            outcome: Outcome::Failure(Failure::new(FailureKind::TooLarge, &text)),
            emits: Vec::new(),
            usage: Usage::default(),
        })
    }
}
