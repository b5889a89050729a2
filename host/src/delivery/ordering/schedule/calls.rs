//! Several events in one call: which go together, and what that means for a cut.
//!
//! A call's events are fresh ones of one lane, or of no lane where there is no
//! order, as they come next. What the call did is told of its last event, and counts
//! for all of them or for none; so a cut takes them all, or none.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{Effects, Job, LaneId, Schedule, Slot, SlotState, Wait};
use crate::clock::after;
use crate::delivery::ordering::{Calls, Ordering};
use crate::event::Position;

/// What the events of one call take, in bytes: it stands in the guest's memory at
/// once. A larger event goes alone.
const CALL_BYTES: usize = 4 << 20;

/// What an event of the window has to do with others.
#[derive(Debug, Default)]
pub(super) struct Company {
    /// Up to when it waits for others that go into the same call; `None` where it
    /// does not.
    until: Option<Timestamp>,
    /// It was in a call with others, which failed.
    alone: bool,
    /// The number after the last event of the call that it was done in; 0 where it
    /// was in none with others.
    call_end: u64,
}

impl Slot {
    /// Whether its event may go into one call with others. One that failed goes
    /// alone, and so does a replay, which did too.
    fn goes_along(&self) -> bool {
        let is_replay = self.event.deliver_to.is_some() || self.event.digest.is_some();
        self.again.is_none() && !self.company.alone && !is_replay
    }

    /// One for an event that was done in one call with others.
    pub(super) fn in_joint_call(&self) -> usize {
        usize::from(self.company.call_end > 0)
    }

    /// Whether it waits for nothing but its turn.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, SlotState::Waiting | SlotState::Gathering | SlotState::Offered)
    }
}

impl Schedule {
    /// The same, with so many events in one call.
    #[must_use]
    pub fn with_calls(mut self, calls: Calls) -> Self {
        self.calls = calls;
        self
    }

    /// What an event has to do with others that was read from the log at this time.
    pub(super) fn company(&self, now: Timestamp) -> Company {
        let Calls { size, wait } = self.calls;
        let waits = size > 1 && !wait.is_zero();
        Company { until: waits.then(|| after(now, wait)), ..Company::default() }
    }

    /// An event that was delayed has waited enough.
    pub(super) fn gathers_no_more(&mut self, index: usize) {
        self.window[index].company.until = None;
    }

    /// Further events that go into one call with this one, which was just given to
    /// be run; in order.
    pub fn fellows(&mut self, first: &Job) -> Vec<Job> {
        let mut fellows = Vec::new();
        if self.calls.size <= 1 || first.died {
            return fellows;
        }
        // With keys, an event without one has a state of its own.
        if first.lane.is_none() && self.ordering != Ordering::None {
            return fellows;
        }
        let Some(index) = self.slot(first.event.position) else { return fellows };
        let slot = &self.window[index];
        if !slot.goes_along() {
            return fellows;
        }
        let mut bytes = slot.bytes;
        while fellows.len() + 1 < self.calls.size {
            let Some(index) = self.next_fellow(first.lane) else { break };
            let slot = &self.window[index];
            bytes = bytes.saturating_add(slot.bytes);
            if !slot.goes_along() || bytes > CALL_BYTES {
                break;
            }
            if first.lane.is_none() {
                self.fresh.pop();
            }
            fellows.extend(self.run_slot(index));
        }
        fellows
    }

    /// The event that runs next in a lane, or in none.
    fn next_fellow(&mut self, lane: Option<LaneId>) -> Option<usize> {
        if let Some(id) = lane {
            let lane = self.lanes.get(id)?;
            let index = self.at(*lane.queue.front()?)?;
            let slot = &self.window[index];
            let may_run =
                slot.is_ready() && lane.parked.is_empty() && !lane.is_overtaken(slot.position);
            return may_run.then_some(index);
        }
        loop {
            let Reverse(number) = *self.fresh.peek()?;
            match self.at(number) {
                Some(index) if self.window[index].state == SlotState::Offered => {
                    return Some(index);
                }
                _ => self.fresh.pop(),
            };
        }
    }

    /// Lets an event of the window run, or wait for others to come: it is the next of
    /// its lane, where so many wait, or is in none.
    pub(super) fn offer_or_gather(&mut self, number: u64, waiting: usize) {
        let Some(index) = self.at(number) else { return };
        let slot = &self.window[index];
        let is_alone = slot.lane.is_none() && self.ordering != Ordering::None;
        let goes_along = slot.goes_along() && !is_alone;
        let Some(until) = slot.company.until.filter(|_| goes_along) else {
            return self.offer_slot(number);
        };
        let (position, lane) = (slot.position, slot.lane);
        if lane.is_some() && waiting >= self.calls.size {
            return self.offer_slot(number);
        }
        self.window[index].state = SlotState::Gathering;
        self.due.insert((until, position));
        self.gathers_to = self.gathers_to.max(until);
        self.woken = true;
        if lane.is_none() {
            self.gathering.insert(number);
            if self.gathering.len() >= self.calls.size {
                self.offer_gathered();
            }
        }
    }

    /// Enough have come to a lane whose next event waits for others, if so many are
    /// enough.
    pub(super) fn offer_if_enough(&mut self, number: u64, waiting: usize) {
        if waiting >= self.calls.size
            && let Some(index) = self.at(number)
        {
            self.stop_gathering(index);
            self.offer_slot(number);
        }
    }

    /// The time is over of an event that waits for others.
    pub(super) fn wake_gathering(&mut self, index: usize) {
        self.window[index].company.until = None;
        if self.window[index].lane.is_none() {
            // Whatever has come goes with it.
            return self.offer_gathered();
        }
        self.offer_slot(self.first + index as u64);
    }

    /// Where the clock was set back, nobody waits for others until it has caught up.
    pub(super) fn follow_clock(&mut self, now: Timestamp) {
        if self.gathers_to <= after(now, self.calls.wait) {
            return;
        }
        self.gathers_to = Timestamp::MIN;
        for index in 0..self.window.len() {
            if self.window[index].state == SlotState::Gathering {
                self.stop_gathering(index);
                self.window[index].company.until = None;
                self.offer_slot(self.first + index as u64);
            }
        }
    }

    /// Lets all events run that wait in no lane.
    fn offer_gathered(&mut self) {
        for number in std::mem::take(&mut self.gathering) {
            let Some(index) = self.at(number) else { continue };
            self.stop_gathering(index);
            self.offer_slot(number);
        }
    }

    /// An event waits no longer for others, whatever becomes of it.
    pub(super) fn stop_gathering(&mut self, index: usize) {
        let slot = &mut self.window[index];
        if slot.state != SlotState::Gathering {
            return;
        }
        slot.state = SlotState::Waiting;
        if let Some(until) = slot.company.until {
            self.due.remove(&(until, slot.position));
        }
        self.gathering.remove(&(self.first + index as u64));
    }

    /// The events of one call are handled: all of them, in order, with what the call
    /// did.
    pub fn done_together(&mut self, jobs: Vec<Job>, effects: Effects) {
        let Some(last) = jobs.last().map(|job| job.event.position) else { return };
        // None where the cursor has passed them all.
        let end = self.slot(last).map(|index| self.first + index as u64 + 1);
        let mut effects = Some(effects);
        // The last one first: what was delayed and stands between them comes after all.
        for job in jobs.into_iter().rev() {
            let position = job.event.position;
            match (end, self.slot(position)) {
                (Some(_), None) => {
                    self.hold(&job, last);
                    continue;
                }
                (Some(end), Some(index)) => {
                    self.window[index].company.call_end = end;
                    self.joint += 1;
                }
                (None, _) => {}
            }
            let own = effects.take_if(|_| position == last).unwrap_or_default();
            self.done(job, None, own);
        }
    }

    /// An event is done that the cursor has passed while it ran, and not the last of
    /// its call: the store must not forget the one before it takes the other.
    fn hold(&mut self, job: &Job, last: Position) {
        let position = job.event.position;
        self.leave(job);
        self.unload(true);
        if let Some(parked) = self.parked.get_mut(&position) {
            parked.wait = Wait::Held;
        }
        self.held.push((last, position));
        let Some(id) = job.lane else { return };
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.parked.remove(&position);
            if lane.is_done(position) {
                self.to_take.push(id);
            }
        }
        self.offer(id);
    }

    /// The call failed: nothing of it counts, and each of its events runs by itself.
    pub fn apart(&mut self, jobs: Vec<Job>) {
        for job in &jobs {
            if let Some(index) = self.slot(job.event.position) {
                self.window[index].company.alone = true;
            }
        }
        self.give_back_all(jobs);
    }

    /// The call was not made, or not to its end, which counts for nothing.
    pub fn give_back_all(&mut self, jobs: Vec<Job>) {
        for job in jobs {
            self.give_back(job);
        }
    }

    /// How many events of the window a cut may take of so many: none of a call
    /// without all others. It takes more than so many only where it could else take
    /// none.
    pub(super) fn reach(&self, most: usize, over_gaps: bool) -> usize {
        let mut behind = self.done - self.over.len() + self.retried;
        // Lanes in which something would be parked by then.
        let mut lanes = BTreeSet::new();
        let (mut call_end, mut reached) = (0, 0);
        for (index, slot) in self.window.iter().enumerate() {
            if index >= most && reached > 0 {
                break;
            }
            if slot.state == SlotState::Done {
                behind -= 1;
                call_end = call_end.max(slot.company.call_end);
            } else {
                let is_behind = self.ordering.parks()
                    && slot.is_ready()
                    && slot.lane.is_some_and(|lane| lanes.contains(&lane));
                let leaves = is_behind
                    || slot.state == SlotState::Delayed
                    || self.is_to_park(slot)
                    || self.ordering.parks() && over_gaps && behind > 0;
                if !leaves {
                    break;
                }
                behind -= usize::from(slot.again.is_some());
                lanes.extend(slot.lane);
            }
            if self.first + index as u64 + 1 >= call_end {
                reached = index + 1;
            }
        }
        reached
    }

    /// Whether a cut can take the window's first event, which is done.
    pub(super) fn takes_first(&self, slot: &Slot) -> bool {
        slot.company.call_end == 0 || self.reach(1, false) > 0
    }

    /// A cut has taken everything up to there: the store may forget what waited for
    /// that.
    pub(super) fn let_go(&mut self, position: Position) {
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
