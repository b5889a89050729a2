//! Settlements that the database refuses for what they hold.
//!
//! To try such a settlement again is of no use, and which of its events is the cause the
//! database does not say. So the leader forgets all that is not committed and begins
//! again from there, under the same epoch: it handles and settles one event at a time,
//! until a settlement is refused that has the effects of one event alone. What that event
//! came to is dropped, and its attempt failed, in the database's words. Where not even
//! the failure can be stored, the group is paused and says why.

use std::collections::BTreeMap;

use super::{GroupLoop, Progress};
use event_host_core::event::Position;
use event_host_core::failure::{Failure, FailureKind};
use event_host_core::handler::{Outcome, Report, Usage};

/// What a leader knows of settlements that were refused.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Events of which the database refuses what they came to.
    events: BTreeMap<Position, Refusal>,
    /// Why the group is to be paused.
    pause: Option<String>,
    /// A settlement was refused just now: everything begins again from what is committed.
    begins_again: bool,
}

#[derive(Debug)]
struct Refusal {
    /// In the database's words.
    why: String,
    /// An attempt was failed for it.
    is_told: bool,
}

impl Refused {
    /// A settlement was refused that holds what these events came to, as far as they
    /// are known.
    pub(super) fn settlement(&mut self, only: Option<Position>, why: String) {
        self.begins_again = true;
        let Some(position) = only else { return };
        if self.events.remove(&position).is_some_and(|refusal| refusal.is_told) {
            self.pause = Some(format!(
                "the database stores neither what the event at position {position} came to nor its failure: {why}; put that right, then resume the group"
            ));
            return;
        }
        self.events.insert(position, Refusal { why, is_told: false });
    }

    /// The failure of an event's attempt, if the database refused what it came to.
    pub(super) fn failure(&mut self, position: Position) -> Option<Report> {
        let refusal = self.events.get_mut(&position)?;
        refusal.is_told = true;
        let text = format!("the database refuses what the attempt came to: {}", refusal.why);
        Some(Report {
            outcome: Outcome::Failure(Failure::new(FailureKind::NotStored, &text)),
            emits: Vec::new(),
            usage: Usage::default(),
        })
    }

    /// A settlement is committed, and with it the failures that were told. Whether there
    /// was one.
    pub(super) fn committed(&mut self) -> bool {
        let before = self.events.len();
        self.events.retain(|_, refusal| !refusal.is_told);
        self.events.len() < before
    }

    /// Why the group is to be paused, once.
    pub(super) fn pause(&mut self) -> Option<String> {
        self.pause.take()
    }
}

impl GroupLoop {
    /// After a leader has ended: whether that was for a settlement that was refused, so
    /// that the leader begins again from what is committed.
    pub(super) fn begins_again(&self, progress: &mut Progress) -> bool {
        if !std::mem::take(&mut progress.refused.begins_again) {
            return false;
        }
        progress.refusal_search_left = self.most_under_way();
        progress.redeliveries = None;
        progress.known_state = None;
        progress.known_keys = None;
        // Their instances believe that what they wrote is kept.
        progress.idle.clear();
        true
    }
}
