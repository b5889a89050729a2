//! The window above the cursor and the parked events below it.

mod batching;
mod deferred;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use batching::Batching;
use deferred::Deferred;
pub use deferred::DueRead;

use super::lanes::{LaneId, Lanes};
use super::{CallBatching, Ordering};
use crate::clock::after;
use crate::delivery::settlement::{Effects, NextAttempt};
use crate::event::{Attempt, LogEvent, Position};
use crate::failure::FailureKind;
use crate::handler::state::{Accepted, BatchState};
use crate::store::{
    Deferral, FailureRecord, Fetched, FetchedLate, Head, Mark, OvertakingFetch, Redelivery,
    Settlement, UndecidedChange, UndecidedRanges,
};

/// So many parked events are held in memory at most because they are due, however
/// large they are.
const LOADED: usize = 64;

/// When an event may begin that is parked and waits for no time, but for others. Long
/// ago by every host's clock: the next leader must not take it for a delayed one.
const AT_ONCE: Timestamp = Timestamp::UNIX_EPOCH;

/// When an event that the log does not give is asked for again.
const MISSING: std::time::Duration = std::time::Duration::from_secs(60);

/// One event that is to be handled now. To be given back to the schedule in one of
/// three ways, unless the schedule is given up: [`Schedule::done`],
/// [`Schedule::retry`] or [`Schedule::cancel`].
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
    /// Kept until a settlement has taken it, so that whoever read it frees it, and not
    /// whoever handled it on another core.
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

/// What a settlement takes.
#[derive(Debug, Default)]
pub struct Cut {
    /// The cursor after it.
    pub position: Position,
    /// The retry that is pending after it.
    pub head: Option<Head>,
    /// The attempt that is marked after it.
    pub mark: Option<Mark>,
    /// Events that are handled or given up.
    pub done: usize,
    /// Whether there is more in it than the cursor.
    pub has_work: bool,
    /// Events that have left the window. To free them takes a while, which nobody is to
    /// wait for.
    pub retired: Vec<Arc<LogEvent>>,
    redeliveries: Vec<Redelivery>,
    redelivered: Vec<Position>,
    deferred: Vec<Deferral>,
    finished: Vec<Finished>,
    /// Where what is finished stands, if it is one event.
    only: Option<Position>,
    failed: Vec<FailureKind>,
    overtaking: Option<UndecidedChange>,
}

/// What an event came to, and where.
#[derive(Debug)]
struct Finished {
    effects: Effects,
    state: BatchState,
    lane: Option<LaneId>,
}

/// What is to be done once a settlement is committed: its writes are to be forgotten,
/// and what it deferred is to be read when it is due.
#[derive(Debug, Default)]
pub struct CommittedWrites {
    writes: Vec<(BatchState, Option<LaneId>, String, u64)>,
    /// The first of what it deferred.
    deferred: Option<(Timestamp, Position)>,
}

/// Which events of a group may run now, and what of it a settlement may take.
#[derive(Debug)]
pub struct Schedule {
    ordering: Ordering,
    /// With so many events parked the log is read no further.
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
    /// Numbers of events in the window that may run. May hold some that no longer
    /// may.
    fresh: BinaryHeap<Reverse<u64>>,
    /// Parked events that may run. May hold some that no longer may.
    due_now: BinaryHeap<Reverse<Position>>,
    /// Everything that waits for its time.
    due: BTreeSet<(Timestamp, Position)>,
    /// The numbers of events in no lane that wait for others to go with them.
    lingering: BTreeSet<u64>,
    /// Up to when the last of those waits that wait for others.
    lingers_until: Timestamp,
    /// Events of the window that are done in one call with others.
    done_in_batches: usize,
    /// Events that the cursor passed and that are done in one call with others, the
    /// last of which, which stands first, it has not.
    held: Vec<(Position, Position)>,
    parked: BTreeMap<Position, Parked>,
    /// Those of them that run since before the cursor passed them.
    passed: usize,
    /// Events that the store keeps until their time.
    deferred: Deferred,
    /// Parked events that are loaded, or are to be.
    loaded: usize,
    /// Parked events of which the store does not know the latest.
    changed: BTreeSet<Position>,
    /// Parked events that are over, which the store does not know.
    over: Vec<Position>,
    /// What is done and not taken, where it is more than nothing.
    finished: BTreeMap<Position, Finished>,
    failed: Vec<FailureKind>,
    /// Lanes of which something is done and not taken.
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
    /// Events of the window that are done, and parked ones that are over.
    done: usize,
    /// Events of the window that failed before and are not done.
    retried: usize,
    /// Something waits for its time that may have come.
    woken: bool,
    /// Events of the window that neither run nor are done.
    waiting: usize,
    running_fresh: usize,
    running_parked: usize,
    last_was_parked: bool,
    /// What the window's events take, in bytes.
    window_bytes: usize,
    /// What that takes which is done and not taken, in bytes.
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

    /// Takes an event that the cursor has passed.
    fn adopt(&mut self, redelivery: Redelivery, now: Timestamp) {
        // One that was attempted was due then, whatever this host's clock says.
        if redelivery.is_delayed(now) && self.suspect != Some(redelivery.position) {
            return self.deferred.defer_redelivery(&redelivery);
        }
        self.park_again(redelivery);
    }

    /// Parks an event that the cursor has passed.
    fn park_again(&mut self, redelivery: Redelivery) {
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
    fn join_in_window(&mut self, index: usize) {
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

    /// What is known of the parked events, for another schedule of the group: it reads
    /// the others that are due from the store. Only while nothing runs and everything
    /// is settled.
    #[must_use]
    pub fn into_redeliveries(self) -> Vec<Redelivery> {
        self.parked.iter().map(|(position, parked)| parked.redelivery(*position)).collect()
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

    /// Where late events are to be looked for, and how many there is room for; none
    /// while there is nothing to look for, or no room. At or below the cursor: what
    /// appears above it is parked no sooner than the cursor has passed it. With more
    /// than so many ranges only where it is safe: there a look leaves nothing open,
    /// while elsewhere it may leave many ranges of one.
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
    fn room(&self) -> usize {
        self.max_parked.saturating_sub(self.waits_parked() + self.arrived.len())
    }

    /// Takes what has become of the positions that were to be looked at, at this time.
    pub fn admit_late(&mut self, looked_at: &UndecidedRanges, late: FetchedLate, now: Timestamp) {
        let Some(last) = looked_at.last() else { return };
        // What was passed since the look began stands above all of them.
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

    fn offer_entry(&mut self, number: u64) {
        let Some(index) = self.index_at(number) else { return };
        self.window[index].state = EntryState::Offered;
        self.fresh.push(Reverse(number));
    }

    /// Has the next event of a lane run, if one may.
    fn offer(&mut self, id: LaneId) {
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

    /// Lets everything run whose time has come. Gives the positions of parked
    /// events that are to be read from the log first: [`Schedule::loaded`].
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

    /// The time of a parked event has come. Gives it where it is to be read first.
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

    /// Takes parked events that were asked for. Gives those that the log does not
    /// have: they stay parked, because nobody knows what became of them.
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

    /// Parked events that could not be read from the log wait until then. Gives
    /// them.
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

    /// The event that runs next, of a group that makes so many attempts at once.
    pub fn next(&mut self, concurrency: usize) -> Option<Job> {
        if let Some(position) = self.suspect {
            let job = self.next_suspect(position);
            if job.is_some() || self.is_to_come(position) {
                return job;
            }
            // Others of its lane come first, or it waits for its time.
        }
        // Each kind gets half of the room while there are events of both.
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

    /// Whether there may be an event to run.
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
        // It ran before all others then. What stands before it now was delayed.
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

    fn run_entry(&mut self, index: usize) -> Option<Job> {
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

    /// An event of a lane begins to run, which has this number in its queue. Gives
    /// the lane's state.
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
    fn leave(&mut self, job: &Job) {
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
    fn unload(&mut self, passed: bool) {
        if passed {
            self.running_fresh -= 1;
            self.passed -= 1;
        } else {
            // There may be room to read on.
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

    /// Takes what a settlement may take: at most so many events of the window, or
    /// those that one call had together where they are more. What is delayed is
    /// deferred. What waits for its next attempt, or behind what does, is parked, also
    /// beyond `max_parked`, because what is done behind it is to be settled; with
    /// `over_gaps`, also what runs or waits where something behind it is done or failed.
    ///
    /// The schedule goes on as if it were committed; if it cannot be, the schedule
    /// is worth nothing any more.
    pub fn cut(&mut self, most: usize, over_gaps: bool) -> Cut {
        let reach = (self.done_in_batches > 0).then(|| self.reach(most, over_gaps));
        let most = reach.unwrap_or(most);
        let mut behind = self.done - self.over.len() + self.retried;
        let mut end = 0;
        let mut touched = Vec::new();
        while end < most && end < self.window.len() {
            let entry = &self.window[end];
            match entry.state {
                EntryState::Done => behind -= 1,
                EntryState::Delayed => self.defer_entry(end),
                _ => {
                    let parks =
                        self.is_to_park(entry) || self.ordering.parks() && over_gaps && behind > 0;
                    if reach.is_none() && !parks {
                        break;
                    }
                    touched.extend(entry.lane);
                    behind -= usize::from(entry.again.is_some());
                    self.park(end);
                }
            }
            end += 1;
        }
        let mut position = self.cursor;
        let mut done = 0;
        let mut retired = Vec::with_capacity(end);
        for entry in self.window.drain(..end) {
            position = entry.position;
            self.done_in_batches -= entry.in_batch();
            done += usize::from(entry.state == EntryState::Done);
            self.window_bytes -= entry.bytes;
            retired.push(entry.event);
        }
        self.first += end as u64;
        if self.window.is_empty() {
            position = position.max(self.scanned_to);
        }
        for id in std::mem::take(&mut self.lanes_to_settle) {
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            if lane.settle_up_to(position) {
                touched.push(id);
            } else {
                self.lanes_to_settle.push(id);
            }
        }
        for lane in touched {
            self.offer(lane);
        }
        self.release_held(position);
        let overtaking = self.adopt_late(position);
        let redelivered = std::mem::take(&mut self.over);
        let deferred = self.deferred.take(&redelivered);
        done += redelivered.len();
        self.done -= done;
        let kept = self.finished.split_off(&Position(position.0.saturating_add(1)));
        let finished = std::mem::replace(&mut self.finished, kept);
        let only = finished.first_key_value().filter(|_| finished.len() == 1).map(|(at, _)| *at);
        let finished: Vec<Finished> = finished.into_values().collect();
        self.done_bytes -= finished.iter().map(|f| f.effects.bytes()).sum::<usize>();
        let changed = std::mem::take(&mut self.changed);
        let redelivery = |position| Some(self.parked.get(&position)?.redelivery(position));
        let (head, mark) = (self.head(), self.marked());
        let cut = Cut {
            position,
            done,
            has_work: done > 0
                || !changed.is_empty()
                || !deferred.is_empty()
                || !self.failed.is_empty()
                || overtaking.is_some()
                || head != self.head_taken
                || mark != self.mark,
            redeliveries: changed.into_iter().filter_map(redelivery).collect(),
            redelivered,
            deferred,
            finished,
            only,
            failed: std::mem::take(&mut self.failed),
            overtaking,
            head,
            mark,
            retired,
        };
        self.cursor = position;
        self.head_taken = cut.head.clone();
        self.mark = mark;
        cut
    }

    /// What of the positions that are open a settlement with this cursor changes. What
    /// has appeared there comes into its lane: from now on nobody finds it again.
    fn adopt_late(&mut self, position: Position) -> Option<UndecidedChange> {
        let open = self.undecided.up_to(position);
        let late = self.arrived.len() as u64;
        for redelivery in std::mem::take(&mut self.arrived) {
            if redelivery.is_delayed(AT_ONCE) {
                self.deferred.defer(&redelivery);
                continue;
            }
            self.changed.insert(redelivery.position);
            self.park_again(redelivery);
        }
        if late == 0 && open == self.undecided_taken {
            return None;
        }
        self.undecided_taken.clone_from(&open);
        Some(UndecidedChange { undecided: open, late })
    }

    /// Whether an event of the window waits for something that lets others pass: its
    /// next attempt, or a parked event of its lane.
    fn is_to_park(&self, entry: &Entry) -> bool {
        match entry.state {
            EntryState::Failed => self.ordering.parks(),
            EntryState::Waiting | EntryState::Lingering | EntryState::Offered => {
                let lane = entry.lane.and_then(|id| self.lanes.get(id));
                let is_behind = lane.is_some_and(|lane| !lane.parked.is_empty());
                self.ordering.parks() && is_behind || self.is_overtaken(entry)
            }
            EntryState::Delayed | EntryState::Running | EntryState::Done => false,
        }
    }

    /// Whether an event that was delayed waits for later ones of its lane to be
    /// taken, which the cursor only reaches past it.
    fn is_overtaken(&self, entry: &Entry) -> bool {
        entry.is_ready()
            && entry
                .lane
                .and_then(|id| self.lanes.get(id))
                .is_some_and(|lane| lane.is_overtaken(entry.position))
    }

    /// Parks an event of the window.
    fn park(&mut self, index: usize) {
        self.stop_lingering(index);
        let number = self.first + index as u64;
        let entry = &mut self.window[index];
        let position = entry.position;
        let event = Arc::clone(&entry.event);
        self.retried -= usize::from(entry.again.is_some());
        let deliver_after = event.event.deliver_after;
        let again = entry.again.take().map_or_else(
            || NextAttempt {
                attempt: Attempt::FIRST,
                due_at: deliver_after.unwrap_or(AT_ONCE),
                failure: None,
            },
            |again| *again,
        );
        let lane = entry.lane.and_then(|id| self.lanes.get_mut(id));
        // Whatever the ordering: another one may want it.
        let key = event.event.partitionkey.clone();
        let (state, late) = (ParkedState::Due, false);
        let mut parked = Parked { state, lane: entry.lane, key, event: None, again, late };
        match entry.state {
            EntryState::Running => {
                parked.state = ParkedState::Passed;
                self.passed += 1;
            }
            // It stands among those that wait for their time.
            EntryState::Failed => self.waiting -= 1,
            EntryState::Waiting
            | EntryState::Lingering
            | EntryState::Offered
            | EntryState::Delayed
            | EntryState::Done => {
                self.waiting -= 1;
                if lane.is_some() {
                    parked.state = ParkedState::Behind;
                } else {
                    parked.event = Some(event);
                    self.due.insert((parked.again.due_at, position));
                }
            }
        }
        if let Some(lane) = lane {
            lane.dequeue(number);
            lane.parked.insert(position);
        }
        entry.state = EntryState::Waiting;
        self.parked.insert(position, parked);
        self.changed.insert(position);
    }

    /// The event at the head that was attempted before, of a group whose events
    /// wait for it.
    fn head(&self) -> Option<Head> {
        if self.ordering.parks() {
            return self.head_ahead.clone();
        }
        // What is delayed is deferred by the settlement that comes to it.
        let first = self.window.front().filter(|entry| entry.state != EntryState::Delayed);
        let first = first.or_else(|| {
            let mut entries = self.window.iter();
            entries.find(|entry| !matches!(entry.state, EntryState::Delayed | EntryState::Done))
        });
        let Some((position, again)) =
            first.and_then(|entry| Some((entry.position, entry.again.as_ref()?)))
        else {
            return self.head_ahead.clone();
        };
        let NextAttempt { attempt, due_at, failure } = (**again).clone();
        Some(Head { position, attempt, due_at, failure })
    }

    /// The mark, which stays until the death is counted.
    fn marked(&self) -> Option<Mark> {
        self.mark.filter(|_| self.suspect.is_some())
    }

    /// What a settlement wrote is committed.
    pub fn committed(&mut self, written: CommittedWrites) {
        self.deferred.committed(written.deferred);
        for (state, lane, key, by) in written.writes {
            state.forget(&key, by);
            if let Some(lane) = lane {
                self.lanes.tidy(lane);
            }
        }
    }

    /// Events of the window that run as soon as somebody is there to run them.
    #[must_use]
    pub fn ready(&self) -> usize {
        match self.ordering {
            Ordering::Total => self.waiting,
            Ordering::Key | Ordering::None => self.fresh.len(),
        }
    }

    /// Whether the log is to be read on: fewer than so many events wait.
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

    /// Whether there was something since the last time for [`Schedule::wake`].
    pub fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    /// What that takes which is done and not taken, in bytes.
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

impl Cut {
    /// Failed attempts, by kind.
    #[must_use]
    pub fn failed(&self) -> &[FailureKind] {
        &self.failed
    }

    /// Dead letters.
    #[must_use]
    pub fn dead_letters(&self) -> usize {
        self.finished.iter().filter(|f| f.effects.dead_letter.is_some()).count()
    }

    /// What these take, in bytes.
    #[must_use]
    pub fn dead_letter_bytes(&self) -> usize {
        self.finished.iter().map(|f| f.effects.dead_letter_bytes()).sum()
    }

    /// The event of which it has what it came to, if it is one.
    #[must_use]
    pub fn only(&self) -> Option<Position> {
        self.only
    }

    /// What was written, an event at a time.
    pub fn writes(&self) -> impl Iterator<Item = &[Accepted]> {
        self.finished.iter().map(|finished| &*finished.effects.writes)
    }

    /// Puts everything but the counts into a settlement, and gives the writes to be
    /// forgotten once it is committed.
    pub fn fill(self, settlement: &mut Settlement) -> CommittedWrites {
        settlement.position = self.position;
        settlement.head = self.head;
        settlement.redeliveries = self.redeliveries;
        settlement.redelivered = self.redelivered;
        settlement.mark = self.mark;
        settlement.undecided = self.overtaking;
        let first = self.deferred.iter().map(|one| (one.due_at, one.position)).min();
        let mut written = CommittedWrites { writes: Vec::new(), deferred: first };
        settlement.deferred = self.deferred;
        for Finished { effects, state, lane } in self.finished {
            settlement.emits.extend(effects.emits);
            settlement.dead_letters.extend(effects.dead_letter.map(|dead| *dead));
            // In position order, so that of a key's writes the last one counts.
            for Accepted { by, write } in effects.writes {
                written.writes.push((state.clone(), lane, write.key.clone(), by));
                settlement.state.push(write);
            }
        }
        written
    }
}
