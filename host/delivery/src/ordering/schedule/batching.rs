//! Several events in one call: which go together, and what that means for a cut.
//!
//! A call's events are fresh ones of one lane, or of no lane where there is no order, as they
//! come next. The effects of the call are kept with its last event, and count for all of them
//! or for none. So a cut takes all of them, or none.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{Entry, EntryState, Job, LaneId, ParkedState, Schedule};
use crate::ordering::{CallBatching, Ordering};
use crate::settlement::Effects;
use event_host_core::clock::after;
use event_host_core::event::Position;

/// Maximum size of the events of one call, in bytes, because all of them are in the guest's
/// memory at once. A larger event goes alone.
const CALL_BYTES: usize = 4 << 20;

/// Batching state of a window entry.
#[derive(Debug, Default)]
pub(super) struct Batching {
    /// Until when it lingers for others that go into the same call; `None` where it does not.
    until: Option<Timestamp>,
    /// It was in a batch call that failed, and goes alone.
    alone: bool,
    /// The number after the last event of the call that it was done in; 0 where it
    /// was in none with others.
    call_end: u64,
}

impl Entry {
    /// Whether its event may go into one call with others. One that failed goes alone, and so
    /// does a replay, because it had failed.
    fn may_share_a_call(&self) -> bool {
        let is_replay = self.event.deliver_to.is_some() || self.event.digest.is_some();
        self.again.is_none() && !self.batching.alone && !is_replay
    }

    /// 1 for an event that was done in a batch call, else 0.
    pub(super) fn in_batch(&self) -> usize {
        usize::from(self.batching.call_end > 0)
    }

    /// Whether it could run if it were the next of its lane.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, EntryState::Waiting | EntryState::Lingering | EntryState::Offered)
    }
}

impl Schedule {
    /// The same schedule, with this batching of calls.
    #[must_use]
    pub fn with_call_batching(mut self, call_batching: CallBatching) -> Self {
        self.call_batching = call_batching;
        self
    }

    /// The batching state of an event that is read from the log now.
    pub(super) fn new_batching(&self, now: Timestamp) -> Batching {
        let CallBatching { max_size, linger } = self.call_batching;
        let waits = max_size > 1 && !linger.is_zero();
        Batching { until: waits.then(|| after(now, linger)), ..Batching::default() }
    }

    /// An event that was delayed does not linger.
    pub(super) fn end_lingering(&mut self, index: usize) {
        self.window[index].batching.until = None;
    }

    /// Further events that go into one call with this job, in order.
    pub fn batch_mates(&mut self, first: &Job) -> Vec<Job> {
        let mut batch_mates = Vec::new();
        if self.call_batching.max_size <= 1 || first.died {
            return batch_mates;
        }
        // With keys, an event without one has a state of its own.
        if first.lane.is_none() && self.ordering != Ordering::None {
            return batch_mates;
        }
        let Some(index) = self.index_of(first.event.position) else { return batch_mates };
        let entry = &self.window[index];
        if !entry.may_share_a_call() {
            return batch_mates;
        }
        let mut bytes = entry.bytes;
        while batch_mates.len() + 1 < self.call_batching.max_size {
            let Some(index) = self.next_batch_mate(first.lane) else { break };
            let entry = &self.window[index];
            bytes = bytes.saturating_add(entry.bytes);
            if !entry.may_share_a_call() || bytes > CALL_BYTES {
                break;
            }
            if first.lane.is_none() {
                self.fresh.pop();
            }
            batch_mates.extend(self.run_entry(index));
        }
        batch_mates
    }

    /// The event that runs next in a lane, or in none.
    fn next_batch_mate(&mut self, lane: Option<LaneId>) -> Option<usize> {
        if let Some(id) = lane {
            let lane = self.lanes.get(id)?;
            let index = self.index_at(*lane.queue.front()?)?;
            let entry = &self.window[index];
            let may_run =
                entry.is_ready() && lane.parked.is_empty() && !lane.is_overtaken(entry.position);
            return may_run.then_some(index);
        }
        loop {
            let Reverse(number) = *self.fresh.peek()?;
            match self.index_at(number) {
                Some(index) if self.window[index].state == EntryState::Offered => {
                    return Some(index);
                }
                _ => self.fresh.pop(),
            };
        }
    }

    /// Offers an entry, or has it linger for others. It is the next of its lane, in which
    /// `waiting` entries wait, or is in no lane.
    pub(super) fn offer_or_linger(&mut self, number: u64, waiting: usize) {
        let Some(index) = self.index_at(number) else { return };
        let entry = &self.window[index];
        let is_alone = entry.lane.is_none() && self.ordering != Ordering::None;
        let may_share_a_call = entry.may_share_a_call() && !is_alone;
        let Some(until) = entry.batching.until.filter(|_| may_share_a_call) else {
            return self.offer_entry(number);
        };
        let (position, lane) = (entry.position, entry.lane);
        if lane.is_some() && waiting >= self.call_batching.max_size {
            return self.offer_entry(number);
        }
        self.window[index].state = EntryState::Lingering;
        self.due.insert((until, position));
        self.lingers_until = self.lingers_until.max(until);
        self.woken = true;
        if lane.is_none() {
            self.lingering.insert(number);
            if self.lingering.len() >= self.call_batching.max_size {
                self.offer_lingering();
            }
        }
    }

    /// Offers the next entry of a lane, which lingers, if `waiting` entries fill a call.
    pub(super) fn offer_if_enough(&mut self, number: u64, waiting: usize) {
        if waiting >= self.call_batching.max_size
            && let Some(index) = self.index_at(number)
        {
            self.stop_lingering(index);
            self.offer_entry(number);
        }
    }

    /// The linger time of an entry is over.
    pub(super) fn wake_lingering(&mut self, index: usize) {
        self.window[index].batching.until = None;
        if self.window[index].lane.is_none() {
            // Whatever has come goes with it.
            return self.offer_lingering();
        }
        self.offer_entry(self.first + index as u64);
    }

    /// Where the clock was set back, no entry lingers until the clock has caught up.
    pub(super) fn follow_clock(&mut self, now: Timestamp) {
        if self.lingers_until <= after(now, self.call_batching.linger) {
            return;
        }
        self.lingers_until = Timestamp::MIN;
        for index in 0..self.window.len() {
            if self.window[index].state == EntryState::Lingering {
                self.stop_lingering(index);
                self.window[index].batching.until = None;
                self.offer_entry(self.first + index as u64);
            }
        }
    }

    /// Offers all entries that linger in no lane.
    fn offer_lingering(&mut self) {
        for number in std::mem::take(&mut self.lingering) {
            let Some(index) = self.index_at(number) else { continue };
            self.stop_lingering(index);
            self.offer_entry(number);
        }
    }

    /// An entry lingers no longer, whatever becomes of it.
    pub(super) fn stop_lingering(&mut self, index: usize) {
        let entry = &mut self.window[index];
        if entry.state != EntryState::Lingering {
            return;
        }
        entry.state = EntryState::Waiting;
        if let Some(until) = entry.batching.until {
            self.due.remove(&(until, entry.position));
        }
        self.lingering.remove(&(self.first + index as u64));
    }

    /// The events of one call are handled: all of them, in order, with what the call
    /// did.
    pub fn batch_done(&mut self, jobs: Vec<Job>, effects: Effects) {
        let Some(last) = jobs.last().map(|job| job.event.position) else { return };
        // None where the cursor has passed them all.
        let end = self.index_of(last).map(|index| self.first + index as u64 + 1);
        let mut effects = Some(effects);
        // The last one first: an event between them that was delayed comes after all of them.
        for job in jobs.into_iter().rev() {
            let position = job.event.position;
            match (end, self.index_of(position)) {
                (Some(_), None) => {
                    self.hold(&job, last);
                    continue;
                }
                (Some(end), Some(index)) => {
                    self.window[index].batching.call_end = end;
                    self.done_in_batches += 1;
                }
                (None, _) => {}
            }
            let own = effects.take_if(|_| position == last).unwrap_or_default();
            self.done(job, None, own);
        }
    }

    /// An event of a batch call is done that the cursor passed while it ran, and it is not
    /// the last of its call: the store must not forget it before it takes the last one.
    fn hold(&mut self, job: &Job, last: Position) {
        let position = job.event.position;
        self.leave(job);
        self.unload(true);
        if let Some(parked) = self.parked.get_mut(&position) {
            parked.state = ParkedState::Held;
        }
        self.held.push((last, position));
        let Some(id) = job.lane else { return };
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.parked.remove(&position);
            if lane.is_done(position) {
                self.lanes_to_settle.push(id);
            }
        }
        self.offer(id);
    }

    /// The batch call failed: nothing of it counts, and each of its events runs by itself.
    pub fn split_batch(&mut self, jobs: Vec<Job>) {
        for job in &jobs {
            if let Some(index) = self.index_of(job.event.position) {
                self.window[index].batching.alone = true;
            }
        }
        self.cancel_all(jobs);
    }

    /// The call was not made, or not to its end, which counts for nothing.
    pub fn cancel_all(&mut self, jobs: Vec<Job>) {
        for job in jobs {
            self.cancel(job);
        }
    }

    /// Number of entries that a cut of `most` may take: of a batch call all or none. It takes
    /// more than `most` only where it could take none otherwise.
    pub(super) fn reach(&self, most: usize, over_gaps: bool) -> usize {
        let mut behind = self.done - self.over.len() + self.retried;
        // Lanes in which something would be parked by then.
        let mut lanes = BTreeSet::new();
        let (mut call_end, mut reached) = (0, 0);
        for (index, entry) in self.window.iter().enumerate() {
            if index >= most && reached > 0 {
                break;
            }
            if entry.state == EntryState::Done {
                behind -= 1;
                call_end = call_end.max(entry.batching.call_end);
            } else {
                let is_behind = self.ordering.parks()
                    && entry.is_ready()
                    && entry.lane.is_some_and(|lane| lanes.contains(&lane));
                let leaves = is_behind
                    || entry.state == EntryState::Delayed
                    || self.is_to_park(entry)
                    || self.ordering.parks() && over_gaps && behind > 0;
                if !leaves {
                    break;
                }
                behind -= usize::from(entry.again.is_some());
                lanes.extend(entry.lane);
            }
            if self.first + index as u64 + 1 >= call_end {
                reached = index + 1;
            }
        }
        reached
    }

    /// Whether a cut can take the window's first event, which is done.
    pub(super) fn takes_first(&self, entry: &Entry) -> bool {
        entry.batching.call_end == 0 || self.reach(1, false) > 0
    }

    /// Releases the events that are held for the last one of their call, after a cut up to
    /// `position`: the store may forget them.
    pub(super) fn release_held(&mut self, position: Position) {
        let mut held = std::mem::take(&mut self.held);
        held.retain(|(last, member)| {
            let waits = *last > position;
            if !waits {
                self.parked.remove(member);
                self.over.push(*member);
                self.done += 1;
            }
            waits
        });
        self.held = held;
    }
}
