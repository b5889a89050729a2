//! Which events are too large to be read.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use event_host_core::event::{LogEvent, Position};

/// Events that are too large to be read, and what is known of them.
#[derive(Debug, Default)]
pub(super) struct TooLarge {
    /// Whether there are any. Read for each attempt, and nearly always false.
    any: AtomicBool,
    events: Mutex<BTreeMap<Position, (LogEvent, String)>>,
}

impl TooLarge {
    fn events(&self) -> MutexGuard<'_, BTreeMap<Position, (LogEvent, String)>> {
        // Each critical section is one map operation, so a poisoned map is whole.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this event is among them.
    pub(super) fn has(&self, position: Position) -> bool {
        self.any.load(Relaxed) && self.events().contains_key(&position)
    }

    /// What is known of an event that is among them.
    pub(super) fn known(&self, position: Position) -> Option<LogEvent> {
        if !self.any.load(Relaxed) {
            return None;
        }
        self.events().get(&position).map(|(event, _)| event.clone())
    }

    /// Adds one, with the text of its failure.
    pub(super) fn insert(&self, event: LogEvent, failure: String) {
        self.events().insert(event.position, (event, failure));
        self.any.store(true, Relaxed);
    }

    /// The text of the failure of an event that is among them.
    pub(super) fn failure(&self, position: Position) -> Option<String> {
        if !self.has(position) {
            return None;
        }
        self.events().get(&position).map(|(_, failure)| failure.clone())
    }
}
