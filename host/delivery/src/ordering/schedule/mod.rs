//! The window above the cursor and the parked events below it.
//!
//! `reading` takes what comes in, `running` says what runs and takes what it came to,
//! `cutting` gives a settlement what it may take; `batching` and `deferred` keep the events
//! that share a call and those that the store keeps until their time.

mod batching;
mod cutting;
mod deferred;
mod reading;
mod running;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use batching::Batching;
use cutting::Finished;
pub use cutting::{CommittedWrites, Cut};
use deferred::Deferred;
pub use deferred::DueRead;

use super::lanes::{LaneId, Lanes};
use super::{CallBatching, Ordering};
use crate::settlement::NextAttempt;
use event_host_core::event::{Attempt, LogEvent, Position};
use event_host_core::failure::FailureKind;
use event_host_core::handler::state::BatchState;
use event_host_store::{FailureRecord, Head, Mark, Redelivery, UndecidedRanges};

/// Due time of a parked event that waits for others, not for a time. Long ago by every host's
/// clock, so that the next leader does not take it for a delayed one.
const AT_ONCE: Timestamp = Timestamp::UNIX_EPOCH;

/// One event that is to be handled now. It is returned to the schedule in one of three ways,
/// unless the schedule is dropped: [`Schedule::done`], [`Schedule::retry`] or
/// [`Schedule::cancel`].
#[derive(Debug)]
pub struct Job {
    /// The event.
    pub event: Arc<LogEvent>,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// What its lane wrote so far.
    pub state: BatchState,
    /// Why the attempt before this one failed.
    pub failure: Option<FailureRecord>,
    /// The process died in this very attempt: it must not be made once more.
    pub died: bool,
    /// The event was committed after the group had passed it.
    pub late: bool,
    lane: Option<LaneId>,
    /// Its number in the window; `None` for one that the cursor had passed.
    number: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryState {
    /// It is to be delivered later, and nothing waits for it.
    Delayed,
    /// Others of its lane come first.
    Waiting,
    /// It may run, and waits for others that go into the same call.
    Lingering,
    /// It may run.
    Offered,
    Running,
    /// It failed and waits for its next attempt.
    Failed,
    Done,
}

/// An event of the window.
#[derive(Debug)]
struct Entry {
    position: Position,
    state: EntryState,
    /// Where it waits and runs; `None` while it is delayed.
    lane: Option<LaneId>,
    /// Kept until a settlement has taken it, so that the leader that read it frees it, and
    /// not the attempt on another core.
    event: Arc<LogEvent>,
    bytes: usize,
    again: Option<Box<NextAttempt>>,
    batching: Batching,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParkedState {
    /// For its time.
    Due,
    /// For those before it in its lane.
    Behind,
    /// To be read from the log.
    Loading,
    /// It may run.
    Offered,
    Running,
    /// It runs since before the cursor passed it, and counts among the fresh ones.
    Passed,
    /// It is done, in one call with others that no settlement can take yet.
    Held,
}

/// An event that the cursor has passed.
#[derive(Debug)]
struct Parked {
    state: ParkedState,
    lane: Option<LaneId>,
    key: Option<String>,
    event: Option<Arc<LogEvent>>,
    again: NextAttempt,
    late: bool,
}

/// Which events of a group may run now, and what of it a settlement may take.
#[derive(Debug)]
pub struct Schedule {
    ordering: Ordering,
    /// Number of parked events at which the log is read no further.
    max_parked: usize,
    call_batching: CallBatching,
    window: VecDeque<Entry>,
    /// The number of the window's first event.
    first: u64,
    /// The log was read up to here.
    scanned_to: Position,
    /// A settlement has taken everything up to here.
    cursor: Position,
    lanes: Lanes,
    /// Numbers of window entries that may run. Some may no longer.
    fresh: BinaryHeap<Reverse<u64>>,
    /// Parked events that may run. Some may no longer.
    due_now: BinaryHeap<Reverse<Position>>,
    /// Everything that waits for its time.
    due: BTreeSet<(Timestamp, Position)>,
    /// Numbers of the entries in no lane that linger.
    lingering: BTreeSet<u64>,
    /// When the last entry that lingers is offered.
    lingers_until: Timestamp,
    /// Number of window entries that are done in batch calls.
    done_in_batches: usize,
    /// Events that the cursor passed and that are done in a batch call whose last event it
    /// has not passed: that last one, and the event.
    held: Vec<(Position, Position)>,
    parked: BTreeMap<Position, Parked>,
    /// Number of parked events that run since before the cursor passed them.
    passed: usize,
    /// Events that the store keeps until their time.
    deferred: Deferred,
    /// Number of parked events that are loaded, or are being loaded.
    loaded: usize,
    /// Parked events whose latest state is not committed.
    changed: BTreeSet<Position>,
    /// Parked events that are done or given up, which is not committed.
    over: Vec<Position>,
    /// Effects of done events that no cut has taken, where there are any.
    finished: BTreeMap<Position, Finished>,
    failed: Vec<FailureKind>,
    /// Lanes with done events that no cut has taken.
    lanes_to_settle: Vec<LaneId>,
    /// What was read past and may still appear.
    undecided: UndecidedRanges,
    /// The same, up to the cursor, as settlements have it.
    undecided_taken: UndecidedRanges,
    /// Events that have appeared there, which come into their lanes with the
    /// settlement that takes them over.
    arrived: Vec<Redelivery>,
    /// The event that the process may have died of, and whether it did.
    suspect: Option<Position>,
    /// The mark as settlements have it.
    mark: Option<Mark>,
    /// A head that the log has not come to yet.
    head_ahead: Option<Head>,
    /// The head as settlements have it.
    head_taken: Option<Head>,
    /// Number of window entries that are done, and of parked events that are over.
    done: usize,
    /// Number of window entries that failed before and are not done.
    retried: usize,
    /// The leader is to look again, because an event may be due, or may be read.
    woken: bool,
    /// Number of window entries that neither run nor are done.
    waiting: usize,
    running_fresh: usize,
    running_parked: usize,
    last_was_parked: bool,
    /// Size of the window's events, in bytes.
    window_bytes: usize,
    /// Size of the effects that no cut has taken, in bytes.
    done_bytes: usize,
}

impl Schedule {
    /// The schedule of a group whose cursor, head, mark and redeliveries are committed
    /// so, at this time.
    #[must_use]
    pub fn new(
        ordering: Ordering,
        max_parked: usize,
        cursor: Position,
        head: Option<Head>,
        mark: Option<Mark>,
        redeliveries: Vec<Redelivery>,
        now: Timestamp,
    ) -> Self {
        let mut schedule = Self {
            ordering,
            max_parked,
            call_batching: CallBatching::default(),
            window: VecDeque::new(),
            first: 0,
            scanned_to: cursor,
            cursor,
            lanes: Lanes::new(ordering),
            fresh: BinaryHeap::new(),
            due_now: BinaryHeap::new(),
            due: BTreeSet::new(),
            lingering: BTreeSet::new(),
            lingers_until: Timestamp::MIN,
            done_in_batches: 0,
            held: Vec::new(),
            parked: BTreeMap::new(),
            passed: 0,
            deferred: Deferred::default(),
            loaded: 0,
            changed: BTreeSet::new(),
            over: Vec::new(),
            finished: BTreeMap::new(),
            failed: Vec::new(),
            lanes_to_settle: Vec::new(),
            undecided: UndecidedRanges::NONE,
            undecided_taken: UndecidedRanges::NONE,
            arrived: Vec::new(),
            suspect: mark.map(|mark| mark.position),
            mark,
            head_taken: head.clone(),
            head_ahead: head,
            done: 0,
            retried: 0,
            woken: false,
            waiting: 0,
            running_fresh: 0,
            running_parked: 0,
            last_was_parked: false,
            window_bytes: 0,
            done_bytes: 0,
        };
        for redelivery in redeliveries {
            schedule.adopt(redelivery, now);
        }
        schedule.head_ahead.take_if(|head| head.position <= cursor);
        if let Some(Mark { position, attempt }) = mark
            && let Some(parked) = schedule.parked.get_mut(&position)
        {
            // What it says of the attempt is newer than the redelivery.
            parked.again.attempt = attempt;
        }
        if schedule
            .suspect
            .is_some_and(|position| position <= cursor && !schedule.parked.contains_key(&position))
        {
            schedule.suspect = None;
        }
        schedule
    }

    /// The parked events, for another schedule of the group, which reads the deferred ones
    /// from the store. To be called only while nothing runs and everything is settled.
    #[must_use]
    pub fn into_redeliveries(self) -> Vec<Redelivery> {
        self.parked.iter().map(|(position, parked)| parked.redelivery(*position)).collect()
    }

    /// Where an event of the window is.
    fn index_of(&self, position: Position) -> Option<usize> {
        // Most often the first.
        match self.window.front() {
            Some(first) if first.position == position => Some(0),
            _ => self.window.binary_search_by_key(&position, |entry| entry.position).ok(),
        }
    }

    /// Where an event of the window is that was given to be run, unless the cursor has
    /// passed it since. Without a search: this is asked for each event.
    fn index_of_job(&self, job: &Job) -> Option<usize> {
        self.index_at(job.number?)
    }

    fn index_at(&self, number: u64) -> Option<usize> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        (index < self.window.len()).then_some(index)
    }

    /// Number of window entries that run as soon as a task takes them.
    #[must_use]
    pub fn ready(&self) -> usize {
        match self.ordering {
            Ordering::Total => self.waiting,
            Ordering::Key | Ordering::None => self.fresh.len(),
        }
    }

    /// Whether the log is to be read on: fewer than `fetch_size` events are ready, and the
    /// window is below `most` entries and `most_bytes`.
    #[must_use]
    pub fn should_fetch(&self, fetch_size: usize, most: usize, most_bytes: usize) -> bool {
        // Before the one that the process died of is read, nothing runs.
        self.suspect.is_some_and(|position| position > self.scanned_to)
            || self.ready() < fetch_size.max(self.call_batching.max_size)
                && self.window.len() < most
                && self.window_bytes < most_bytes
                && !self.is_full()
    }

    /// How many events are parked and do not run.
    fn waits_parked(&self) -> usize {
        self.parked.len() - self.passed
    }

    /// Whether as many events are parked as may be.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.waits_parked() + self.arrived.len() >= self.max_parked
    }

    /// Up to where the log was read.
    #[must_use]
    pub fn scanned_to(&self) -> Position {
        self.scanned_to
    }

    /// Events that are handled or given up and that no settlement has taken.
    #[must_use]
    pub fn done_so_far(&self) -> usize {
        self.done
    }

    /// Whether something of the window is to be recorded, perhaps over gaps.
    #[must_use]
    pub fn has_gaps(&self) -> bool {
        self.ordering.parks() && self.done - self.over.len() + self.retried > 0
    }

    /// Whether the leader is to look again; resets that.
    pub fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    /// Size of the effects that no cut has taken, in bytes.
    #[must_use]
    pub fn done_bytes(&self) -> usize {
        self.done_bytes
    }

    /// Dead letters that no settlement has taken.
    #[must_use]
    pub fn dead_letters(&self) -> usize {
        self.finished.values().filter(|f| f.effects.dead_letter.is_some()).count()
    }

    /// What these take, in bytes.
    #[must_use]
    pub fn dead_letter_bytes(&self) -> usize {
        self.finished.values().map(|f| f.effects.dead_letter_bytes()).sum()
    }

    /// Whether a settlement would record more than a cursor, without looking over
    /// gaps.
    #[must_use]
    pub fn has_work(&self) -> bool {
        let passes_first = self.window.front().is_some_and(|entry| {
            entry.state == EntryState::Done && self.takes_first(entry)
                || entry.state == EntryState::Delayed
                || self.is_to_park(entry)
        });
        passes_first
            || !self.over.is_empty()
            || !self.changed.is_empty()
            || !self.failed.is_empty()
            || self.has_overtaking()
            || self.deferred.has_some()
            || self.head() != self.head_taken
            || self.marked() != self.mark
    }

    /// Whether the cursor can pass events of others.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.window.is_empty() && self.scanned_to > self.cursor
    }

    /// Whether something waits to be read because as many events are parked as may be:
    /// the log, which could be read up to there, what may be late, or what is due.
    #[must_use]
    pub fn is_held_back(&self, up_to: Position, now: Timestamp) -> bool {
        self.is_full()
            && (self.scanned_to < up_to
                || !self.undecided_taken.is_empty()
                || self.deferred.is_due(now))
    }

    #[cfg(test)]
    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }

    #[cfg(test)]
    pub(super) fn holds(&self, position: Position) -> bool {
        self.parked.contains_key(&position)
    }

    #[cfg(test)]
    pub(super) fn window(&self) -> usize {
        self.window.len()
    }

    #[cfg(test)]
    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }
}

impl Parked {
    fn redelivery(&self, position: Position) -> Redelivery {
        Redelivery {
            position,
            attempt: self.again.attempt,
            due_at: self.again.due_at,
            key: self.key.clone(),
            failure: self.again.failure.clone(),
            late: self.late,
        }
    }
}
