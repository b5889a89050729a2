//! What runs now: the events whose time has come, the next job, and the end of each job.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::{EntryState, Finished, Job, ParkedState, Schedule};
use crate::ordering::lanes::LaneId;
use crate::settlement::{Effects, NextAttempt};
use event_host_core::clock::after;
use event_host_core::event::{Attempt, LogEvent, Position};
use event_host_core::failure::FailureKind;
use event_host_core::handler::state::BatchState;

/// Maximum number of due parked events kept in memory, however large they are.
const LOADED: usize = 64;

/// When an event that the log does not give is asked for again.
const MISSING: Duration = Duration::from_secs(60);

impl Schedule {
    pub(super) fn offer_entry(&mut self, number: u64) {
        let Some(index) = self.index_at(number) else { return };
        self.window[index].state = EntryState::Offered;
        self.fresh.push(Reverse(number));
    }

    /// Offers the next event of a lane, if one may run.
    pub(super) fn offer(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get(id) else { return };
        if lane.busy {
            return;
        }
        if let Some(position) = lane.first_parked(self.suspect) {
            if !lane.is_overtaken(position)
                && let Some(parked) = self.parked.get_mut(&position)
                && parked.state == ParkedState::Behind
            {
                parked.state = ParkedState::Due;
                self.due.insert((parked.again.due_at, position));
                self.woken = true;
            }
        } else if let Some(number) = lane.queue.front().copied() {
            let waiting = lane.queue.len();
            let Some(entry) = self.index_at(number).map(|index| &self.window[index]) else {
                return;
            };
            match entry.state {
                EntryState::Waiting if !lane.is_overtaken(entry.position) => {
                    self.offer_or_linger(number, waiting);
                }
                EntryState::Lingering => self.offer_if_enough(number, waiting),
                _ => {}
            }
        } else {
            self.lanes.tidy(id);
        }
    }

    /// When the next event is due that waits for its time.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        if self.loaded >= LOADED {
            return None;
        }
        self.due.first().map(|(due_at, _)| *due_at)
    }

    /// Wakes everything whose time has come. Returns the positions of parked events that are
    /// to be read from the log first: [`Schedule::loaded`].
    pub fn wake(&mut self, now: Timestamp) -> Vec<Position> {
        self.follow_clock(now);
        let mut to_load = Vec::new();
        while let Some((due_at, position)) = self.due.first().copied()
            && due_at <= now
            && self.loaded < LOADED
        {
            self.due.pop_first();
            if self.parked.contains_key(&position) {
                to_load.extend(self.wake_parked(position));
            } else if let Some(index) = self.index_of(position) {
                self.wake_entry(index);
            }
        }
        to_load
    }

    /// The time of a parked event has come. Returns its position if it is to be read first.
    fn wake_parked(&mut self, position: Position) -> Option<Position> {
        let is_first = self.is_first_parked(position);
        let parked = self.parked.get_mut(&position)?;
        match parked.state {
            // One that was delayed has come before it.
            ParkedState::Due if !is_first => {
                parked.state = ParkedState::Behind;
                parked.event = None;
                None
            }
            ParkedState::Due if parked.event.is_some() => {
                self.loaded += 1;
                parked.state = ParkedState::Offered;
                self.due_now.push(Reverse(position));
                None
            }
            ParkedState::Due => {
                self.loaded += 1;
                parked.state = ParkedState::Loading;
                Some(position)
            }
            ParkedState::Behind
            | ParkedState::Loading
            | ParkedState::Offered
            | ParkedState::Running
            | ParkedState::Passed
            | ParkedState::Held => None,
        }
    }

    /// The time of an event of the window has come.
    fn wake_entry(&mut self, index: usize) {
        let entry = &mut self.window[index];
        match (entry.state, entry.lane) {
            (EntryState::Delayed, _) => self.join_in_window(index),
            (EntryState::Lingering, _) => self.wake_lingering(index),
            (EntryState::Failed, Some(lane)) => {
                entry.state = EntryState::Waiting;
                self.offer(lane);
            }
            (EntryState::Failed, None) => self.offer_entry(self.first + index as u64),
            _ => {}
        }
    }

    /// Whether nothing that is parked comes before this parked event.
    fn is_first_parked(&self, position: Position) -> bool {
        let lane = self.parked.get(&position).and_then(|parked| self.lanes.get(parked.lane?));
        lane.is_none_or(|lane| lane.first_parked(self.suspect) == Some(position))
    }

    /// Takes parked events that were read. Returns those that the log does not have: they
    /// stay parked, because it is not known what became of them.
    pub fn loaded(
        &mut self,
        asked: &[Position],
        events: Vec<LogEvent>,
        now: Timestamp,
    ) -> Vec<Position> {
        for event in events {
            let position = event.position;
            if let Some(parked) = self.parked.get_mut(&position)
                && parked.state == ParkedState::Loading
            {
                parked.event = Some(Arc::new(event));
                parked.state = ParkedState::Offered;
                self.due_now.push(Reverse(position));
            }
        }
        let missing = self.not_loaded(asked, after(now, MISSING));
        self.suspect.take_if(|suspect| missing.contains(suspect));
        missing
    }

    /// Parked events that are loaded, or are to be, and do not run.
    #[must_use]
    pub fn loaded_and_waiting(&self) -> usize {
        self.loaded.saturating_sub(self.running_parked)
    }

    /// Has parked events that could not be read from the log wait until then. Returns them.
    pub fn not_loaded(&mut self, asked: &[Position], until: Timestamp) -> Vec<Position> {
        let mut missing = Vec::new();
        for position in asked {
            if let Some(parked) = self.parked.get_mut(position)
                && parked.state == ParkedState::Loading
            {
                parked.state = ParkedState::Due;
                self.loaded -= 1;
                self.due.insert((until, *position));
                missing.push(*position);
            }
        }
        missing
    }

    /// The event that runs next, of a group with this number of attempts at once.
    pub fn next(&mut self, concurrency: usize) -> Option<Job> {
        if let Some(position) = self.suspect {
            let job = self.next_suspect(position);
            if job.is_some() || self.is_to_come(position) {
                return job;
            }
            // Others of its lane come first, or its time has not come.
        }
        // Parked and fresh events each get half of the attempts while there are both.
        let parked_first = if concurrency == 1 {
            !self.last_was_parked
        } else {
            self.running_parked < concurrency / 2
        };
        if parked_first {
            self.next_parked().or_else(|| self.next_fresh())
        } else {
            self.next_fresh().or_else(|| self.next_parked())
        }
    }

    /// Number of events that may run; some may no longer.
    #[must_use]
    pub fn may_run(&self) -> usize {
        self.fresh.len() + self.due_now.len()
    }

    fn next_suspect(&mut self, position: Position) -> Option<Job> {
        if self.parked.get(&position).is_some_and(|p| p.state == ParkedState::Offered) {
            return self.run_parked(position);
        }
        let index = self.index_of(position)?;
        let entry = &self.window[index];
        let is_busy = entry.lane.and_then(|id| self.lanes.get(id)).is_some_and(|lane| lane.busy);
        // It ran before all others then. What is before it now was delayed.
        (entry.is_ready() && !is_busy).then(|| self.run_entry(index))?
    }

    /// Whether an event is about to be read.
    fn is_to_come(&self, position: Position) -> bool {
        position > self.scanned_to
            || self.parked.get(&position).is_some_and(|p| p.state == ParkedState::Loading)
    }

    fn next_fresh(&mut self) -> Option<Job> {
        while let Some(Reverse(number)) = self.fresh.pop() {
            let Some(index) = self.index_at(number) else { continue };
            if self.window[index].state != EntryState::Offered {
                continue;
            }
            let lane = self.window[index].lane.and_then(|lane| self.lanes.get(lane));
            if lane.is_some_and(|lane| !lane.may_run_queued(number)) {
                self.window[index].state = EntryState::Waiting;
                continue;
            }
            if let Some(job) = self.run_entry(index) {
                self.last_was_parked = false;
                return Some(job);
            }
        }
        None
    }

    pub(super) fn run_entry(&mut self, index: usize) -> Option<Job> {
        self.stop_lingering(index);
        let number = self.first + index as u64;
        let entry = &mut self.window[index];
        let event = Arc::clone(&entry.event);
        entry.state = EntryState::Running;
        let lane = entry.lane;
        let (attempt, failure) = match &entry.again {
            Some(again) => (again.attempt, again.failure.clone()),
            None => (Attempt::FIRST, None),
        };
        self.waiting -= 1;
        self.running_fresh += 1;
        let state = self.enter(lane, Some(number));
        let died = self.suspect == Some(event.position);
        let number = Some(number);
        Some(Job { event, attempt, state, failure, died, late: false, lane, number })
    }

    fn next_parked(&mut self) -> Option<Job> {
        while let Some(Reverse(position)) = self.due_now.pop() {
            let is_first = self.is_first_parked(position);
            let Some(parked) = self.parked.get_mut(&position) else { continue };
            if parked.state != ParkedState::Offered {
                continue;
            }
            let lane = parked.lane.and_then(|lane| self.lanes.get(lane));
            if !is_first || lane.is_some_and(|lane| lane.busy) {
                // One that was delayed has come before it.
                parked.state = ParkedState::Behind;
                parked.event = None;
                self.loaded = self.loaded.saturating_sub(1);
                continue;
            }
            if let Some(job) = self.run_parked(position) {
                self.last_was_parked = true;
                return Some(job);
            }
        }
        None
    }

    fn run_parked(&mut self, position: Position) -> Option<Job> {
        let parked = self.parked.get_mut(&position)?;
        let event = parked.event.take()?;
        parked.state = ParkedState::Running;
        let lane = parked.lane;
        let (attempt, failure) = (parked.again.attempt, parked.again.failure.clone());
        let late = parked.late;
        self.running_parked += 1;
        let state = self.enter(lane, None);
        let died = self.suspect == Some(position);
        Some(Job { event, attempt, state, failure, died, late, lane, number: None })
    }

    /// An event of a lane begins to run; `queued` is its number in the queue. Returns the
    /// lane's state.
    fn enter(&mut self, id: Option<LaneId>, queued: Option<u64>) -> BatchState {
        let Some(lane) = id.and_then(|id| self.lanes.get_mut(id)) else {
            return self.lanes.own_state();
        };
        lane.busy = true;
        if let Some(number) = queued {
            lane.dequeue(number);
        }
        lane.state.clone()
    }

    /// The death in an attempt is counted.
    fn death_counted(&mut self, job: &Job) {
        self.suspect.take_if(|suspect| *suspect == job.event.position);
    }

    /// An event of a lane runs no longer.
    pub(super) fn leave(&mut self, job: &Job) {
        if let Some(lane) = job.lane.and_then(|id| self.lanes.get_mut(id)) {
            lane.busy = false;
        }
    }

    /// An event is handled, or given up.
    pub fn done(&mut self, job: Job, failed: Option<FailureKind>, effects: Effects) {
        self.leave(&job);
        self.death_counted(&job);
        self.failed.extend(failed);
        let position = job.event.position;
        self.done += 1;
        if !effects.is_empty() {
            self.done_bytes += effects.bytes();
            let finished = Finished { effects, state: job.state.clone(), lane: job.lane };
            self.finished.insert(position, finished);
        }
        if let Some(index) = self.index_of_job(&job) {
            self.running_fresh -= 1;
            let entry = &mut self.window[index];
            entry.state = EntryState::Done;
            self.retried -= usize::from(entry.again.take().is_some());
        } else {
            let parked = self.parked.remove(&position);
            self.unload(parked.is_some_and(|parked| parked.state == ParkedState::Passed));
            self.changed.remove(&position);
            self.over.push(position);
            if let Some(lane) = job.lane.and_then(|id| self.lanes.get_mut(id)) {
                lane.parked.remove(&position);
            }
        }
        if let Some(id) = job.lane {
            if let Some(lane) = self.lanes.get_mut(id)
                && lane.is_done(position)
            {
                self.lanes_to_settle.push(id);
            }
            self.offer(id);
        }
    }

    /// A parked event runs no longer.
    pub(super) fn unload(&mut self, passed: bool) {
        if passed {
            self.running_fresh -= 1;
            self.passed -= 1;
        } else {
            // The leader may have room to read on.
            self.woken |= self.waits_parked() + 1 >= self.max_parked;
            self.running_parked -= 1;
            self.woken |= self.loaded >= LOADED;
            self.loaded -= 1;
        }
    }

    /// An event failed and waits for its next attempt.
    pub fn retry(&mut self, job: Job, failed: FailureKind, again: NextAttempt) {
        self.failed.push(failed);
        self.death_counted(&job);
        self.requeue(job, Some(again));
    }

    /// An event was not run, or not to its end, which counts for nothing.
    pub fn cancel(&mut self, job: Job) {
        self.requeue(job, None);
    }

    fn requeue(&mut self, job: Job, again: Option<NextAttempt>) {
        self.leave(&job);
        let index = self.index_of_job(&job);
        let Job { event, lane, .. } = job;
        let position = event.position;
        if let Some(index) = index {
            self.running_fresh -= 1;
            self.waiting += 1;
            let number = self.first + index as u64;
            let entry = &mut self.window[index];
            entry.state = EntryState::Waiting;
            if let Some(again) = again {
                entry.state = EntryState::Failed;
                self.due.insert((again.due_at, position));
                let before = entry.again.replace(Box::new(again));
                self.retried += usize::from(before.is_none());
            }
            match lane {
                Some(id) => {
                    if let Some(lane) = self.lanes.get_mut(id) {
                        lane.enqueue(number);
                    }
                    self.offer(id);
                }
                None if entry.state == EntryState::Waiting => self.offer_entry(number),
                None => {}
            }
            return;
        }
        let passed = self.parked.get(&position).is_some_and(|p| p.state == ParkedState::Passed);
        self.unload(passed);
        let Some(parked) = self.parked.get_mut(&position) else { return };
        match again {
            Some(again) => {
                parked.state = ParkedState::Due;
                self.due.insert((again.due_at, position));
                parked.again = again;
                self.changed.insert(position);
            }
            None => {
                self.loaded += 1;
                parked.event = Some(event);
                parked.state = ParkedState::Offered;
                self.due_now.push(Reverse(position));
            }
        }
        // One that was delayed may have come before it meanwhile.
        if let Some(lane) = lane {
            self.offer(lane);
        }
    }
}
