//! What comes into a schedule: events that were read from the log, redeliveries, and what
//! open transactions committed late.

use std::sync::Arc;

use jiff::Timestamp;

use super::{AT_ONCE, Entry, EntryState, Parked, ParkedState, Schedule};
use crate::settlement::NextAttempt;
use event_host_core::event::{Attempt, LogEvent, Position};
use event_host_store::{
    Fetched, FetchedLate, Head, Mark, OvertakingFetch, Redelivery, UndecidedRanges,
};

impl Schedule {
    /// Takes a redelivery that the store has committed.
    pub(super) fn adopt(&mut self, redelivery: Redelivery, now: Timestamp) {
        // One that was attempted was due then, whatever this host's clock says.
        if redelivery.is_delayed(now) && self.suspect != Some(redelivery.position) {
            return self.deferred.defer_redelivery(&redelivery);
        }
        self.park_again(redelivery);
    }

    /// Parks a redelivery.
    pub(super) fn park_again(&mut self, redelivery: Redelivery) {
        let Redelivery { position, attempt, due_at, key, failure, late } = redelivery;
        let again = NextAttempt { attempt, due_at, failure };
        let state = ParkedState::Behind;
        self.parked.insert(position, Parked { state, lane: None, key, event: None, again, late });
        self.join(position);
    }

    /// A parked event comes into its lane, before everything newer there.
    fn join(&mut self, position: Position) {
        let Some(parked) = self.parked.get_mut(&position) else { return };
        parked.lane = self.lanes.of(parked.key.as_deref());
        match parked.lane {
            None => {
                parked.state = ParkedState::Due;
                self.due.insert((parked.again.due_at, position));
            }
            Some(id) => {
                parked.state = ParkedState::Behind;
                if let Some(lane) = self.lanes.get_mut(id) {
                    lane.parked.insert(position);
                }
                self.offer(id);
            }
        }
    }

    /// A delayed event of the window comes into its lane.
    pub(super) fn join_in_window(&mut self, index: usize) {
        self.end_lingering(index);
        let number = self.first + index as u64;
        let entry = &mut self.window[index];
        entry.lane = self.lanes.of(entry.event.event.partitionkey.as_deref());
        entry.state = EntryState::Waiting;
        self.waiting += 1;
        let Some(id) = entry.lane else { return self.offer_entry(number) };
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.enqueue(number);
        }
        self.offer(id);
    }

    /// Takes events that were read from the log: those after all that were read
    /// before. One that is to be delivered after `now` is delayed.
    pub fn admit(&mut self, Fetched { events, scanned_to }: Fetched, now: Timestamp) {
        self.admit_part(events, scanned_to, now);
    }

    /// Takes the first of those events, up to this position.
    pub fn admit_part(
        &mut self,
        events: impl IntoIterator<Item = Arc<LogEvent>>,
        scanned_to: Position,
        now: Timestamp,
    ) {
        for event in events {
            self.push(event, now);
        }
        self.scanned_to = self.scanned_to.max(scanned_to);
        let scanned_to = self.scanned_to;
        // A head that the log does not give is no longer subscribed.
        self.head_ahead.take_if(|head| head.position <= scanned_to);
        if self.suspect.is_some_and(|position| {
            position <= scanned_to
                && self.index_of(position).is_none()
                && !self.parked.contains_key(&position)
        }) {
            self.suspect = None;
        }
    }

    /// What the group had passed and what was open then, as it is committed.
    #[must_use]
    pub fn with_undecided(mut self, open: UndecidedRanges) -> Self {
        self.undecided_taken.clone_from(&open);
        self.undecided = open;
        self
    }

    /// The store has no deferred events of the group yet: it is not asked for them.
    #[must_use]
    pub fn without_deferred(mut self) -> Self {
        self.deferred.not_in_the_store();
        self
    }

    /// Takes events that were read past the safe position.
    pub fn admit_overtaken(
        &mut self,
        OvertakingFetch { fetched, undecided: open }: OvertakingFetch,
        now: Timestamp,
    ) {
        self.undecided = std::mem::take(&mut self.undecided).and(open);
        self.admit(fetched, now);
    }

    /// How many ranges of positions are open.
    #[must_use]
    pub fn undecided_ranges(&self) -> usize {
        self.undecided.len()
    }

    /// Where late events are to be looked for, and how many there is room for; none while
    /// there is nothing to look for, or no room. At or below the cursor: what appears above
    /// it is parked no sooner than the cursor has passed it. With more ranges than
    /// `most_ranges` only below the safe position: there a look decides every position, while
    /// elsewhere it may split one range into many.
    #[must_use]
    pub fn late_search(
        &self,
        safe: Position,
        most_ranges: usize,
    ) -> Option<(UndecidedRanges, usize)> {
        let is_too_much = self.undecided.len() > most_ranges;
        let up_to = if is_too_much { self.cursor.min(safe) } else { self.cursor };
        let open = self.undecided.up_to(up_to);
        let room = self.room();
        (!open.is_empty() && room > 0).then_some((open, room))
    }

    /// How many more events may be parked.
    pub(super) fn room(&self) -> usize {
        self.max_parked.saturating_sub(self.waits_parked() + self.arrived.len())
    }

    /// Takes what has become of the positions that were to be looked at, at this time.
    pub fn admit_late(&mut self, looked_at: &UndecidedRanges, late: FetchedLate, now: Timestamp) {
        let Some(last) = looked_at.last() else { return };
        // What was passed since the look began is above all of them.
        self.undecided = late.undecided.and(self.undecided.above(last));
        self.arrived.extend(late.events.into_iter().map(|event| Redelivery {
            position: event.position,
            attempt: Attempt::FIRST,
            due_at: event.deliver_after.filter(|time| *time > now).unwrap_or(AT_ONCE),
            key: event.key,
            failure: None,
            late: true,
        }));
    }

    /// Whether a settlement would take over late events, or forget what is no longer
    /// open.
    #[must_use]
    pub fn has_overtaking(&self) -> bool {
        !self.arrived.is_empty()
            || !self.undecided_taken.is_empty()
                && self.undecided.up_to(self.cursor) != self.undecided_taken
    }

    fn push(&mut self, event: Arc<LogEvent>, now: Timestamp) {
        let position = event.position;
        let number = self.first + self.window.len() as u64;
        let again = self.pending(position);
        let mut state = EntryState::Waiting;
        let is_suspect = self.suspect == Some(position);
        // The attempt in which the process died is not waited for.
        if let Some(again) = &again
            && !is_suspect
        {
            state = EntryState::Failed;
            self.due.insert((again.due_at, position));
        }
        let bytes = event.bytes();
        self.window_bytes += bytes;
        let batching = self.new_batching(now);
        // One that was attempted was due then, whatever this host's clock says.
        if again.is_none()
            && !is_suspect
            && let Some(deliver_after) = event.event.deliver_after.filter(|time| *time > now)
        {
            self.due.insert((deliver_after, position));
            let (state, lane) = (EntryState::Delayed, None);
            self.window.push_back(Entry { position, state, lane, event, bytes, again, batching });
            return;
        }
        let lane = self.lanes.of(event.event.partitionkey.as_deref());
        self.waiting += 1;
        self.retried += usize::from(again.is_some());
        self.window.push_back(Entry { position, state, lane, event, bytes, again, batching });
        match lane {
            Some(id) => {
                if let Some(lane) = self.lanes.get_mut(id) {
                    lane.enqueue(number);
                }
                self.offer(id);
            }
            None if state == EntryState::Waiting => self.offer_or_linger(number, 0),
            None => {}
        }
    }

    /// The attempt of an event that is pending as it is read from the log: its retry, or
    /// a later one that is marked.
    fn pending(&mut self, position: Position) -> Option<Box<NextAttempt>> {
        let head = self.head_ahead.take_if(|head| head.position == position);
        let head = head.map(|head| {
            let Head { attempt, due_at, failure, .. } = head;
            NextAttempt { attempt, due_at, failure }
        });
        let marked = self.mark.filter(|mark| {
            mark.position == position
                && self.suspect == Some(position)
                && mark.attempt > head.as_ref().map_or(Attempt::FIRST, |again| again.attempt)
        });
        let again = match marked {
            Some(Mark { attempt, .. }) => {
                let failure = head.and_then(|again| again.failure);
                Some(NextAttempt { attempt, due_at: AT_ONCE, failure })
            }
            None => head,
        };
        again.map(Box::new)
    }
}
