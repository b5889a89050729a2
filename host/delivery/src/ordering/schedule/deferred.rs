//! What a schedule knows of its group's deferred events: not the events, which the
//! store keeps, but when the next of them is due, so that none is asked for before.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::Schedule;
use event_host_core::event::Position;
use event_host_store::{Deferral, Due, Redelivery};

/// Maximum number of due events read at once. Their content is read when their turn comes.
const READ_AT_ONCE: usize = 1_000;

/// Maximum number of redeliveries that one settlement defers: the store copies their events
/// from the log, and there may be as many as a group had when it was repartitioned.
const DEFERRED_AT_ONCE: usize = 1_000;

/// What is to be read of the deferred events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueRead {
    /// Those after this one, by time and position.
    pub after: Option<(Timestamp, Position)>,
    /// Those at or below this position.
    pub up_to: Position,
    /// Maximum number of events.
    pub max_events: usize,
}

/// What is known of the deferred events.
#[derive(Debug)]
pub(super) struct Deferred {
    /// What the next settlement defers.
    to_defer: Vec<Deferral>,
    /// Redeliveries that are to be delivered later and were never attempted. The next
    /// settlements defer them.
    redeliveries: Vec<Deferral>,
    /// When the first of those is due that were not read; `None` without any.
    next: Option<Timestamp>,
    /// The last one that was read.
    read_to: Option<(Timestamp, Position)>,
    is_read: bool,
    /// The first of those that were deferred since the read began that is under way.
    meanwhile: Option<(Timestamp, Position)>,
    /// Events that the settlement on its way ends. The store still has them.
    leaving: Vec<Position>,
    /// The same of settlements that were committed since the read began.
    left: Vec<Position>,
}

impl Default for Deferred {
    /// The store is asked first.
    fn default() -> Self {
        Self {
            to_defer: Vec::new(),
            redeliveries: Vec::new(),
            next: Some(Timestamp::MIN),
            read_to: None,
            is_read: false,
            meanwhile: None,
            leaving: Vec::new(),
            left: Vec::new(),
        }
    }
}

impl Deferred {
    /// The store has none: it is not asked.
    pub(super) fn not_in_the_store(&mut self) {
        self.next = None;
    }

    /// Has the next settlement defer an event.
    pub(super) fn defer(&mut self, event: &Redelivery) {
        let Redelivery { position, due_at, late, .. } = *event;
        self.to_defer.push(Deferral { position, due_at, late });
    }

    /// Has one of the next settlements defer an event that is a redelivery.
    pub(super) fn defer_redelivery(&mut self, event: &Redelivery) {
        let Redelivery { position, due_at, late, .. } = *event;
        self.redeliveries.push(Deferral { position, due_at, late });
    }

    /// Whether the next settlement defers something.
    pub(super) fn has_some(&self) -> bool {
        !self.to_defer.is_empty() || !self.redeliveries.is_empty()
    }

    /// Whether an event is known to be due and is not read.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.next.is_some_and(|next| next <= now && next > Timestamp::MIN)
    }

    /// Takes what the settlement defers that ends the events `over`.
    pub(super) fn take(&mut self, over: &[Position]) -> Vec<Deferral> {
        self.leaving.extend_from_slice(over);
        let mut taken = std::mem::take(&mut self.to_defer);
        let rest = self.redeliveries.len().saturating_sub(DEFERRED_AT_ONCE);
        taken.extend(self.redeliveries.drain(rest..));
        taken
    }

    /// The settlement on its way is committed; the first that it deferred is this one.
    pub(super) fn committed(&mut self, first: Option<(Timestamp, Position)>) {
        if self.is_read {
            self.left.append(&mut self.leaving);
            self.meanwhile = [self.meanwhile, first].into_iter().flatten().min();
        } else {
            self.leaving.clear();
            self.note(first);
        }
    }

    /// An event is in the store, and is to be read when it is due.
    fn note(&mut self, first: Option<(Timestamp, Position)>) {
        let Some((due_at, position)) = first else { return };
        self.next = Some(self.next.map_or(due_at, |next| next.min(due_at)));
        // Others at that time may have been read before it came.
        let before = (due_at, Position(position.0 - 1));
        self.read_to = self.read_to.map(|read_to| read_to.min(before));
    }

    fn ends_read(&mut self) {
        self.is_read = false;
        self.left.clear();
        let meanwhile = self.meanwhile.take();
        self.note(meanwhile);
    }
}

impl Schedule {
    /// When the next deferred event is due that is to be read; `None` while one is read
    /// or no more may be parked.
    #[must_use]
    pub fn next_deferred(&self) -> Option<Timestamp> {
        let reads = !self.deferred.is_read && self.room() > 0;
        self.deferred.next.filter(|_| reads)
    }

    /// What is to be read of the deferred events at this time, if anything. Until
    /// [`Schedule::due_is_read`] or [`Schedule::due_is_not_read`] nothing more is.
    pub fn read_due(&mut self, now: Timestamp) -> Option<DueRead> {
        self.next_deferred().filter(|next| *next <= now)?;
        self.deferred.is_read = true;
        Some(DueRead {
            after: self.deferred.read_to,
            up_to: self.cursor,
            max_events: self.room().min(READ_AT_ONCE),
        })
    }

    /// Takes deferred events whose time has come.
    pub fn due_is_read(&mut self, asked: DueRead, due: Due) {
        let Due { events, next } = due;
        let has_more = events.len() >= asked.max_events;
        let deferred = &mut self.deferred;
        let last = events.last().map(|event| (event.due_at, event.position));
        deferred.read_to = last.or(deferred.read_to);
        deferred.next = last.filter(|_| has_more).map(|(due_at, _)| due_at).or(next);
        // The store may have been asked before it knew that these are over.
        let known: BTreeSet<Position> =
            self.over.iter().chain(&deferred.leaving).chain(&deferred.left).copied().collect();
        deferred.ends_read();
        for event in events {
            if !self.parked.contains_key(&event.position) && !known.contains(&event.position) {
                self.park_again(event);
            }
        }
    }

    /// What was to be read of the deferred events could not be.
    pub fn due_is_not_read(&mut self) {
        self.deferred.ends_read();
    }

    /// Has the next settlement defer a delayed entry of the window.
    pub(super) fn defer_entry(&mut self, index: usize) {
        let entry = &self.window[index];
        let position = entry.position;
        let Some(due_at) = entry.event.event.deliver_after else { return };
        self.due.remove(&(due_at, position));
        self.deferred.to_defer.push(Deferral { position, due_at, late: false });
    }
}
