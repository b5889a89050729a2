//! The schedule against a model: a plain program that says which orders and
//! outcomes are allowed, and nothing of how they come about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::settlement::{Effects, NextAttempt};
use event_host_core::clock::after;
use event_host_core::event::{Attempt, Epoch, Event, LogEvent, Position};
use event_host_core::failure::FailureKind;
use event_host_core::handler::state::EmptyState;
use event_host_store::{
    Deferral, Due, FailureRecord, Fetched, Head, Mark, NewDeadLetter, Redelivery, Settlement,
};

/// Events as the log gives them, which was read up to there.
fn fetched(events: impl IntoIterator<Item = LogEvent>, scanned_to: i64) -> Fetched {
    let events = events.into_iter().map(Arc::new).collect();
    Fetched { events, scanned_to: Position(scanned_to) }
}

/// An event at a position, of a key.
pub(crate) fn event(position: i64, key: Option<&str>) -> LogEvent {
    LogEvent {
        position: Position(position),
        deliver_to: None,
        digest: None,
        event: Event {
            partitionkey: key.map(str::to_owned),
            ..Event::new(format!("e{position}"), "/test", "t", Timestamp::UNIX_EPOCH)
        },
    }
}

const MAX_ATTEMPTS: u32 = 3;

/// When a case begins.
fn beginning() -> Timestamp {
    after(Timestamp::UNIX_EPOCH, Duration::from_hours(1))
}

/// An event of the log, and what comes of it.
#[derive(Debug, Clone)]
struct Fate {
    key: Option<u8>,
    /// Number of attempts that fail.
    failures: u32,
    /// It is delivered so many seconds after the beginning.
    delay: Option<u32>,
}

fn fate() -> impl Strategy<Value = Fate> {
    let failures = prop_oneof![6 => Just(0_u32), 2 => 1..3_u32, 1 => Just(9_u32)];
    let delay = proptest::option::weighted(0.25, 0..8_u32);
    (proptest::option::weighted(0.8, 0..4_u8), failures, delay)
        .prop_map(|(key, failures, delay)| Fate { key, failures, delay })
}

/// What the driver does next.
#[derive(Debug, Clone)]
enum Step {
    /// Reads so many events of the log.
    Fetch(usize),
    /// Runs events while there is room.
    Run,
    /// The attempt with this number, among those under way, ends.
    Finish(usize),
    /// An attempt is given up and counts for nothing.
    Abandon(usize),
    /// Settles, perhaps over gaps, at most so many.
    Settle(bool, usize),
    /// Time passes, in seconds, and what is due is loaded.
    Pass(u32),
    /// What is due cannot be loaded.
    FailToLoad,
    /// The store is asked for deferred events that are due, and answers later.
    AskForDue,
    /// It answers, or fails.
    AnswerWithDue(bool),
    /// Another leader goes on with what is committed, and its clock is so many
    /// seconds behind.
    Crash(u32),
    /// The same, and the process died of the attempt with this number.
    Die(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..6_usize).prop_map(Step::Fetch),
        4 => Just(Step::Run),
        5 => (0..8_usize).prop_map(Step::Finish),
        1 => (0..8_usize).prop_map(Step::Abandon),
        3 => (any::<bool>(), 1..12_usize).prop_map(|(gaps, most)| Step::Settle(gaps, most)),
        2 => (0..4_u32).prop_map(Step::Pass),
        1 => Just(Step::FailToLoad),
        1 => Just(Step::AskForDue),
        1 => any::<bool>().prop_map(Step::AnswerWithDue),
        1 => prop_oneof![3 => Just(0), 1 => 1..4_u32].prop_map(Step::Crash),
        1 => (0..3_usize).prop_map(Step::Die),
    ]
}

/// What is committed.
#[derive(Debug, Clone, Default)]
struct Committed {
    cursor: Position,
    head: Option<Head>,
    mark: Option<Mark>,
    redeliveries: BTreeMap<Position, Redelivery>,
    deferred: BTreeMap<Position, Deferral>,
    handled: BTreeSet<i64>,
    dead: BTreeSet<i64>,
}

struct Driver {
    ordering: Ordering,
    concurrency: usize,
    max_parked: usize,
    call_batching: CallBatching,
    fates: Vec<Fate>,
    now: Timestamp,
    committed: Committed,
    schedule: Schedule,
    /// The calls under way, each with its events.
    running: Vec<Vec<Job>>,
    /// Events that were in a call with others which failed, as far as this leader
    /// knows.
    alone: BTreeSet<i64>,
    /// What the store was asked for and has not answered: what it found then.
    asked: Option<(DueRead, Due)>,
    /// When events were read from the log by this leader.
    read_at: BTreeMap<i64, Timestamp>,
    /// Handled or given up, as far as this leader knows.
    done: BTreeSet<i64>,
    /// When each event's next attempt may begin, and which it is, as far as this
    /// leader knows.
    next: BTreeMap<i64, (Attempt, Timestamp)>,
    /// Read from the log by this leader, or redeliveries that were loaded.
    ready: BTreeSet<i64>,
    /// The process died of its last attempt, which has not been counted.
    suspect: Option<i64>,
    /// How many of an event's attempts ended so.
    deaths: BTreeMap<i64, u32>,
}

impl Driver {
    fn new(
        ordering: Ordering,
        concurrency: usize,
        max_parked: usize,
        call_batching: CallBatching,
        fates: Vec<Fate>,
    ) -> Self {
        let now = beginning();
        let schedule =
            Schedule::new(ordering, max_parked, Position::ZERO, None, None, Vec::new(), now);
        Self {
            ordering,
            concurrency: if ordering == Ordering::Total { 1 } else { concurrency },
            max_parked,
            call_batching,
            fates,
            now,
            committed: Committed::default(),
            schedule: schedule.with_call_batching(call_batching),
            running: Vec::new(),
            alone: BTreeSet::new(),
            asked: None,
            read_at: BTreeMap::new(),
            done: BTreeSet::new(),
            next: BTreeMap::new(),
            ready: BTreeSet::new(),
            suspect: None,
            deaths: BTreeMap::new(),
        }
    }

    fn last(&self) -> i64 {
        i64::try_from(self.fates.len()).unwrap()
    }

    fn key(&self, position: i64) -> Option<u8> {
        self.fates[usize::try_from(position - 1).unwrap()].key
    }

    fn failures(&self, position: i64) -> u32 {
        self.fates[usize::try_from(position - 1).unwrap()].failures
    }

    /// When an event is delivered at the earliest, if it is to be later.
    fn deliver_after(&self, position: i64) -> Option<Timestamp> {
        let delay = self.fates[usize::try_from(position - 1).unwrap()].delay?;
        Some(after(beginning(), Duration::from_secs(delay.into())))
    }

    fn event(&self, position: i64) -> LogEvent {
        let mut event = event(position, self.key(position).map(|key| key.to_string()).as_deref());
        event.event.deliver_after = self.deliver_after(position);
        event
    }

    /// The redelivery that a deferred event would be.
    fn due(&self, Deferral { position, due_at, late }: Deferral) -> Redelivery {
        let key = self.key(position.0).map(|key| key.to_string());
        Redelivery { position, attempt: Attempt::FIRST, due_at, key, failure: None, late }
    }

    /// What the store finds.
    fn find_due(&self, DueRead { after, up_to, max_events }: DueRead) -> Due {
        let waits = |one: &&Deferral| !self.committed.redeliveries.contains_key(&one.position);
        let mut all: Vec<Deferral> =
            self.committed.deferred.values().filter(waits).copied().collect();
        all.sort_by_key(|one| (one.due_at, one.position));
        let (due, later): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|one| one.due_at <= self.now);
        let due = due.into_iter().filter(|one| Some((one.due_at, one.position)) > after);
        let due = due.filter(|one| one.position <= up_to).take(max_events);
        Due {
            events: due.map(|one| self.due(one)).collect(),
            next: later.first().map(|one| one.due_at),
        }
    }

    /// The model: whether an event is to be delivered later, and was not attempted. One
    /// that is deferred, or is about to be by a leader whose clock is behind, is until the
    /// store has given it back.
    fn is_delayed(&self, position: i64) -> bool {
        let is_away = self.is_kept(position) && !self.schedule.holds(Position(position));
        if is_away && !self.done.contains(&position) {
            return true;
        }
        let redelivery = self.committed.redeliveries.get(&Position(position));
        let due_at = redelivery.map(|redelivery| redelivery.due_at);
        due_at.or(self.deliver_after(position)).is_some_and(|time| time > self.now)
            && self.next.get(&position).is_none_or(|(attempt, _)| *attempt == Attempt::FIRST)
            && !self.done.contains(&position)
    }

    /// The model: whether two events run one at a time.
    fn share_a_lane(&self, one: i64, other: i64) -> bool {
        match self.ordering {
            Ordering::Total => true,
            Ordering::Key => self.key(one).is_some() && self.key(one) == self.key(other),
            Ordering::None => false,
        }
    }

    /// The model: the events before this one that must be done before it may run.
    /// One that is delayed is before nobody.
    fn before(&self, position: i64) -> Vec<i64> {
        let is_before =
            |other: &i64| self.share_a_lane(position, *other) && !self.is_delayed(*other);
        (1..position).filter(is_before).collect()
    }

    /// The model: whether an event may run now, as far as its order is concerned, in
    /// one call with these before it. One that was delayed comes after what is done
    /// of those behind it, and is settled after them.
    fn may_run(&self, position: i64, call: &[Job]) -> bool {
        let is_settled = |other: &i64| {
            self.committed.handled.contains(other) || self.committed.dead.contains(other)
        };
        let mut behind = (position + 1..=self.last())
            .filter(|other| self.share_a_lane(position, *other) && self.done.contains(other));
        let mut running = self.running.iter().flatten().map(|job| job.event.position.0);
        let in_call = |other: &i64| call.iter().any(|job| job.event.position.0 == *other);
        self.before(position).iter().all(|other| self.done.contains(other) || in_call(other))
            && behind.all(|other| is_settled(&other))
            && !running.any(|other| self.share_a_lane(position, other))
            && !self.is_delayed(position)
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Fetch(count) => self.fetch(*count),
            Step::Run => self.run(),
            Step::Finish(nth) => self.finish(*nth),
            Step::Abandon(nth) => {
                if let Some(call) = self.nth(*nth) {
                    self.schedule.cancel_all(call);
                }
            }
            Step::Settle(over_gaps, most) => self.settle(*over_gaps, *most),
            Step::Pass(seconds) => {
                self.now = after(self.now, Duration::from_secs((*seconds).into()));
                self.load();
            }
            Step::FailToLoad => {
                let asked = self.schedule.wake(self.now);
                let until = after(self.now, Duration::from_secs(1));
                assert_eq!(self.schedule.not_loaded(&asked, until), asked);
                for position in asked {
                    let next = self.next.entry(position.0);
                    next.and_modify(|next| next.1 = until).or_insert((Attempt::FIRST, until));
                }
            }
            Step::AskForDue => {
                if self.asked.is_none()
                    && let Some(asked) = self.schedule.read_due(self.now)
                {
                    self.asked = Some((asked, self.find_due(asked)));
                }
            }
            Step::AnswerWithDue(succeeds) => {
                match self.asked.take() {
                    Some((asked, due)) if *succeeds => self.schedule.due_is_read(asked, due),
                    Some(_) => self.schedule.due_is_not_read(),
                    None => {}
                }
                self.load();
            }
            Step::Crash(behind) => self.crash(*behind),
            Step::Die(nth) => self.die(*nth),
        }
    }

    fn fetch(&mut self, count: usize) {
        if !self.schedule.should_fetch(usize::MAX, usize::MAX, usize::MAX) {
            return self.load();
        }
        // One that is about to be deferred again is not held.
        let waits = |position: &&Position| {
            let mut running = self.running.iter().flatten();
            self.schedule.holds(**position)
                && !self.done.contains(&position.0)
                && running.all(|job| job.event.position != **position)
        };
        let parked = self.committed.redeliveries.keys().filter(waits).count();
        let is_suspect_ahead = self.suspect.is_some_and(|at| at > self.schedule.scanned_to().0);
        assert!(parked < self.max_parked || is_suspect_ahead, "it reads on with {parked} parked");
        let after = self.schedule.scanned_to().0;
        let up_to = (after + i64::try_from(count).unwrap()).min(self.last());
        let events: Vec<LogEvent> =
            (after + 1..=up_to).map(|position| self.event(position)).collect();
        self.ready.extend(after + 1..=up_to);
        self.read_at.extend((after + 1..=up_to).map(|position| (position, self.now)));
        self.schedule.admit(fetched(events, up_to), self.now);
        self.load();
    }

    fn load(&mut self) {
        while self.asked.is_none()
            && let Some(asked) = self.schedule.read_due(self.now)
        {
            let due = self.find_due(asked);
            self.schedule.due_is_read(asked, due);
        }
        loop {
            let asked = self.schedule.wake(self.now);
            if asked.is_empty() {
                return;
            }
            let events = asked.iter().map(|position| self.event(position.0)).collect();
            self.ready.extend(asked.iter().map(|position| position.0));
            let missing = self.schedule.loaded(&asked, events, self.now);
            assert!(missing.is_empty(), "nobody took {missing:?}");
        }
    }

    fn run(&mut self) {
        while self.running.len() < self.concurrency {
            let Some(job) = self.schedule.next(self.concurrency) else {
                self.nothing_could_run();
                return;
            };
            let batch_mates = self.schedule.batch_mates(&job);
            let mut call = Vec::new();
            for job in std::iter::once(job).chain(batch_mates) {
                self.check_begins(&job, &call);
                call.push(job);
            }
            self.check_call(&call);
            self.running.push(call);
        }
    }

    /// The model: what may begin, in one call with these before it.
    fn check_begins(&self, job: &Job, call: &[Job]) {
        let position = job.event.position.0;
        assert!(
            job.died || self.may_run(position, call),
            "{position} runs before {:?}",
            self.before(position)
        );
        assert!(!self.done.contains(&position), "{position} runs again");
        let mut running = self.running.iter().flatten().chain(call);
        assert!(running.all(|other| other.event.position.0 != position), "{position} runs twice");
        let (attempt, due) =
            self.next.get(&position).copied().unwrap_or((Attempt::FIRST, Timestamp::MIN));
        assert_eq!(job.attempt, attempt, "of {position}");
        assert!(due <= self.now, "{position} runs before it is due");
        assert_eq!(job.died, self.suspect == Some(position), "of {position}");
    }

    /// The model: what may go into one call.
    fn check_call(&self, call: &[Job]) {
        assert!(call.len() <= self.call_batching.max_size, "{} in one call", call.len());
        if call.len() == 1 {
            return;
        }
        let first = call[0].event.position.0;
        for job in call {
            let position = job.event.position.0;
            assert!(!job.died && job.attempt == Attempt::FIRST, "{position} goes with others");
            assert!(!self.alone.contains(&position), "{position} goes with others again");
            assert!(!self.is_kept(position), "{position} was parked");
            let share = position == first || self.share_a_lane(first, position);
            assert!(share || self.ordering == Ordering::None, "{position} goes with {first}");
        }
    }

    /// Whether the cursor has passed an event that is not over, as it is committed.
    fn is_kept(&self, position: i64) -> bool {
        let position = Position(position);
        self.committed.redeliveries.contains_key(&position)
            || self.committed.deferred.contains_key(&position)
    }

    /// The model: whether an event may wait for others to go into one call with it.
    fn may_wait(&self, position: i64) -> bool {
        let until = self.read_at.get(&position).map(|at| after(*at, self.call_batching.linger));
        self.call_batching.max_size > 1
            && until.is_some_and(|until| until > self.now)
            && self.next.get(&position).is_none_or(|(attempt, _)| *attempt == Attempt::FIRST)
    }

    /// There is room, and nothing was given to run: the model must know nothing
    /// either.
    fn nothing_could_run(&self) {
        if let Some(position) = self.suspect {
            let is_ahead = position > self.schedule.scanned_to().0;
            assert!(!is_ahead || self.schedule.should_fetch(0, 0, 0), "it is never read");
            // Others may wait for it: that all comes to an end is seen when drained.
            return;
        }
        for position in &self.ready {
            let mut running = self.running.iter().flatten();
            let runs = running.any(|job| job.event.position.0 == *position);
            let waits = self.next.get(position).is_some_and(|(_, due)| *due > self.now);
            // One that was parked behind others is loaded when its turn comes.
            let is_parked = self.is_kept(*position);
            if !runs && !waits && !is_parked && !self.done.contains(position) {
                let may_run = self.may_run(*position, &[]) && !self.may_wait(*position);
                assert!(!may_run, "{position} could run: {:#?}", self.schedule);
            }
        }
    }

    fn nth(&mut self, nth: usize) -> Option<Vec<Job>> {
        (nth < self.running.len()).then(|| self.running.remove(nth))
    }

    fn finish(&mut self, nth: usize) {
        let Some(mut call) = self.nth(nth) else { return };
        if call.len() > 1 {
            return self.finish_batch(call);
        }
        let Some(job) = call.pop() else { return };
        let position = job.event.position.0;
        if job.died {
            self.suspect = None;
            *self.deaths.entry(position).or_default() += 1;
        }
        if !job.died && job.attempt.0 > self.failures(position) {
            self.done.insert(position);
            let emits = vec![Event { id: position.to_string(), ..job.event.event.clone() }];
            self.schedule.done(job, None, Effects { emits, ..Effects::default() });
        } else if job.attempt.0 >= MAX_ATTEMPTS {
            self.done.insert(position);
            let dead = NewDeadLetter {
                event: LogEvent::clone(&job.event),
                attempts: job.attempt.0,
                failure: FailureRecord::new(FailureKind::Trap, "no"),
                digest: String::new(),
                dead_at: self.now,
            };
            let effects = Effects { dead_letter: Some(Box::new(dead)), ..Effects::default() };
            self.schedule.done(job, Some(FailureKind::Trap), effects);
        } else {
            let again = NextAttempt {
                attempt: job.attempt.next(),
                due_at: after(self.now, Duration::from_secs(job.attempt.0.into())),
                failure: Some(FailureRecord::new(FailureKind::Trap, "no")),
            };
            self.next.insert(position, (again.attempt, again.due_at));
            self.schedule.retry(job, FailureKind::Trap, again);
        }
        self.load();
    }

    /// A call with several events ends: it succeeds where every one of them would.
    fn finish_batch(&mut self, call: Vec<Job>) {
        let positions: Vec<i64> = call.iter().map(|job| job.event.position.0).collect();
        if positions.iter().any(|position| self.failures(*position) > 0) {
            self.alone.extend(positions);
            self.schedule.split_batch(call);
        } else {
            self.done.extend(positions);
            let emit =
                |job: &Job| Event { id: job.event.position.to_string(), ..job.event.event.clone() };
            let emits = call.iter().map(emit).collect();
            self.schedule.batch_done(call, Effects { emits, ..Effects::default() });
        }
        self.load();
    }

    fn settle(&mut self, over_gaps: bool, most: usize) {
        let takes_all = over_gaps && most >= self.schedule.window();
        let cut = self.schedule.cut(most, over_gaps);
        assert!(
            !takes_all || self.schedule.done_so_far() == 0,
            "what is done is not settled: {:#?}",
            self.schedule
        );
        let mut settlement = settlement();
        let done = cut.done;
        let written = cut.fill(&mut settlement);
        self.check(&settlement, done);
        self.schedule.committed(written);
        self.load();
    }

    /// The model: what a settlement may record.
    fn check(&mut self, settlement: &Settlement, done: usize) {
        let committed = &mut self.committed;
        assert!(settlement.position >= committed.cursor, "the cursor moves back");
        assert_eq!(done, settlement.emits.len() + settlement.dead_letters.len());
        let handled: Vec<i64> = settlement.emits.iter().map(|e| e.id.parse().unwrap()).collect();
        // A call's emits are those of its last event.
        assert!(
            self.call_batching.max_size > 1 || handled.is_sorted(),
            "emits out of order: {handled:?}"
        );
        let dead: Vec<i64> = settlement.dead_letters.iter().map(|d| d.event.position.0).collect();
        for position in handled.iter().chain(&dead) {
            assert!(self.done.contains(position), "{position} is not done");
            assert!(Position(*position) <= settlement.position, "{position} is above the cursor");
            assert!(
                !committed.handled.contains(position) && !committed.dead.contains(position),
                "{position} is settled twice"
            );
        }
        committed.handled.extend(handled);
        committed.dead.extend(dead);
        for position in &settlement.redelivered {
            let was_parked = committed.redeliveries.remove(position).is_some();
            let was_deferred = committed.deferred.remove(position).is_some();
            assert!(was_parked || was_deferred, "{position} was not parked");
        }
        for one in &settlement.deferred {
            assert!(one.position <= settlement.position, "deferred above the cursor");
            committed.redeliveries.remove(&one.position);
            assert!(committed.deferred.insert(one.position, *one).is_none(), "deferred twice");
        }
        for again in &settlement.redeliveries {
            assert!(again.position <= settlement.position, "parked above the cursor");
            committed.redeliveries.insert(again.position, again.clone());
        }
        committed.cursor = settlement.position;
        committed.head.clone_from(&settlement.head);
        committed.mark = settlement.mark;
        let marked = committed.mark.map(|mark| mark.position.0);
        assert_eq!(marked, self.suspect, "the mark lasts as long as nobody has counted it");
        for position in 1..=settlement.position.0 {
            let is_done =
                committed.handled.contains(&position) || committed.dead.contains(&position);
            let is_parked = committed.redeliveries.contains_key(&Position(position))
                || committed.deferred.contains_key(&Position(position));
            assert!(is_done != is_parked, "{position}: done {is_done}, parked {is_parked}");
        }
        let parked: Vec<i64> =
            self.committed.redeliveries.keys().map(|position| position.0).collect();
        if self.ordering == Ordering::Total {
            let all = parked.iter().all(|position| self.deliver_after(*position).is_some());
            assert!(all, "parked in a group with total order: {parked:?}");
        }
    }

    fn crash(&mut self, behind: u32) {
        self.now -= jiff::SignedDuration::from_secs(behind.into());
        self.running.clear();
        self.alone.clear();
        self.read_at.clear();
        self.done = self.committed.handled.union(&self.committed.dead).copied().collect();
        self.ready.clear();
        self.next.clear();
        for again in self.committed.redeliveries.values() {
            self.next.insert(again.position.0, (again.attempt, again.due_at));
        }
        if let Some(head) = &self.committed.head {
            self.next.insert(head.position.0, (head.attempt, head.due_at));
        }
        if let Some(mark) = self.committed.mark {
            self.next.insert(mark.position.0, (mark.attempt, Timestamp::MIN));
        }
        self.suspect = self.committed.mark.map(|mark| mark.position.0);
        self.asked = None;
        let mut redeliveries = self.committed.redeliveries.clone();
        if let Some(mark) = self.committed.mark
            && let Some(one) = self.committed.deferred.get(&mark.position)
        {
            let marked = Redelivery { attempt: mark.attempt, ..self.due(*one) };
            redeliveries.entry(mark.position).or_insert(marked);
        }
        self.schedule = Schedule::new(
            self.ordering,
            self.max_parked,
            self.committed.cursor,
            self.committed.head.clone(),
            self.committed.mark,
            redeliveries.into_values().collect(),
            self.now,
        )
        .with_call_batching(self.call_batching);
        self.load();
    }

    /// The attempt is marked before it begins, and the process dies of it.
    fn die(&mut self, nth: usize) {
        // Whoever marks an attempt makes no other.
        if let Some([job]) = self.running.get(nth).map(Vec::as_slice)
            && !job.died
        {
            self.committed.mark = Some(Mark { position: job.event.position, attempt: job.attempt });
        }
        self.crash(0);
    }

    /// Without further crashes everything comes to an end.
    fn drain(&mut self) {
        self.take(&Step::AnswerWithDue(true));
        for _ in 0..self.fates.len() * 20 + 100 {
            self.fetch(3);
            self.run();
            while !self.running.is_empty() {
                self.finish(0);
            }
            self.settle(true, 5);
            self.now = after(self.now, Duration::from_secs(1));
            self.load();
            if self.committed.cursor.0 == self.last()
                && self.committed.redeliveries.is_empty()
                && self.committed.deferred.is_empty()
            {
                break;
            }
        }
        let all = self.committed.handled.union(&self.committed.dead);
        assert_eq!(all.count(), self.fates.len(), "not all came to an end: {:#?}", self.schedule);
        for dead in &self.committed.dead {
            let deaths = self.deaths.get(dead).copied().unwrap_or_default();
            assert!(self.failures(*dead) + deaths >= MAX_ATTEMPTS, "{dead} was given up too early");
        }
        assert_eq!(self.schedule.lanes(), 0, "lanes are left behind");
    }
}

/// One event a call, or several, with a wait for others or without.
fn call_batching() -> impl Strategy<Value = CallBatching> {
    let several =
        (2..8_usize, prop_oneof![2 => Just(0), 1 => 1..3_u64]).prop_map(|(max_size, linger)| {
            CallBatching { max_size, linger: Duration::from_secs(linger) }
        });
    prop_oneof![1 => Just(CallBatching::default()), 2 => several]
}

fn ordering() -> impl Strategy<Value = Ordering> {
    prop_oneof![
        1 => Just(Ordering::Total),
        3 => Just(Ordering::Key),
        1 => Just(Ordering::None),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    /// Whatever fails, in whatever order attempts end, are settled and broken off:
    /// the schedule does what the model allows, and comes to an end.
    #[test]
    fn the_schedule_does_what_the_model_allows(
        ordering in ordering(),
        concurrency in 1..6_usize,
        max_parked in 1..8_usize,
        call_batching in call_batching(),
        fates in proptest::collection::vec(fate(), 1..24),
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        let mut driver = Driver::new(ordering, concurrency, max_parked, call_batching, fates);
        for step in &steps {
            driver.take(step);
        }
        driver.drain();
    }
}

/// A settlement with nothing in it.
fn settlement() -> Settlement {
    Settlement {
        group: "g".parse().unwrap(),
        epoch: Epoch(1),
        number: 1,
        position: Position::ZERO,
        head: None,
        dead_letters: Vec::new(),
        emits: Vec::new(),
        state: Vec::new(),
        failures: None,
        undecided: None,
        handled: 0,
        mark: None,
        deferred: Vec::new(),
        redeliveries: Vec::new(),
        redelivered: Vec::new(),
    }
}

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn parked(position: i64, key: Option<&str>, due_in: u64) -> Redelivery {
    Redelivery {
        position: Position(position),
        attempt: Attempt(2),
        due_at: after(NOW, Duration::from_secs(due_in)),
        key: key.map(str::to_owned),
        failure: None,
        late: false,
    }
}

/// The mark of an attempt that the process died in.
fn mark(position: i64) -> Mark {
    Mark { position: Position(position), attempt: Attempt(2) }
}

/// Loads what is due, and gives what runs then.
fn next(schedule: &mut Schedule, now: Timestamp) -> Option<Job> {
    let asked = schedule.wake(now);
    let events = asked.iter().map(|position| event(position.0, None)).collect();
    assert!(schedule.loaded(&asked, events, now).is_empty());
    schedule.next(1)
}

#[test]
fn a_death_is_counted_though_others_of_the_key_come_first() {
    // As after a change of the order from `none`.
    let redeliveries = vec![parked(1, Some("a"), 5), parked(2, Some("a"), 0)];
    let (cursor, mark) = (Position(2), Some(mark(2)));
    let later = after(NOW, Duration::from_secs(5));
    let mut schedule = Schedule::new(Ordering::Key, 10, cursor, None, mark, redeliveries, later);
    assert_eq!(schedule.cut(10, true).mark, mark, "the mark is erased");
    let second = next(&mut schedule, later).expect("nothing runs");
    assert_eq!((second.event.position, second.died), (Position(2), true));
    schedule.done(second, None, Effects::default());
    assert_eq!(schedule.cut(10, true).mark, None);
    let first = next(&mut schedule, later).expect("nothing runs");
    assert_eq!((first.event.position, first.died), (Position(1), false));
}

#[test]
fn an_event_that_the_process_died_of_is_read_however_many_are_at_hand() {
    let mut schedule =
        Schedule::new(Ordering::None, 1, Position::ZERO, None, Some(mark(3)), vec![], NOW);
    let events = (1..=2).map(|position| event(position, None));
    schedule.admit(fetched(events, 2), NOW);
    assert!(schedule.next(1).is_none());
    assert!(schedule.should_fetch(2, 2, 1), "nothing ever runs");
    schedule.admit(fetched(vec![event(3, None)], 3), NOW);
    assert!(!schedule.should_fetch(2, 2, 1));
    assert!(schedule.next(1).is_some_and(|job| job.died));
}

#[test]
fn more_events_that_are_due_than_are_loaded_do_not_hide_the_one_the_process_died_of() {
    let mut redeliveries: Vec<Redelivery> =
        (1..=200).map(|position| parked(position, None, 0)).collect();
    redeliveries.push(parked(201, None, 1));
    let now = after(NOW, Duration::from_secs(1));
    let (cursor, mark) = (Position(201), Some(mark(201)));
    let mut schedule = Schedule::new(Ordering::None, 1_000, cursor, None, mark, redeliveries, NOW);
    let mut died = 0;
    while let Some(job) = next(&mut schedule, now) {
        died += usize::from(job.died);
        schedule.done(job, None, Effects::default());
    }
    assert_eq!((died, schedule.parked()), (1, 0));
}

#[test]
fn a_death_that_could_not_be_counted_is_counted_the_next_time() {
    for parks in [false, true] {
        let redeliveries = if parks { vec![parked(1, None, 0)] } else { Vec::new() };
        let cursor = Position(i64::from(parks));
        let mut schedule =
            Schedule::new(Ordering::Key, 10, cursor, None, Some(mark(1)), redeliveries, NOW);
        if !parks {
            let events = vec![event(1, None)];
            schedule.admit(fetched(events, 1), NOW);
        }
        for _ in 0..2 {
            assert!(!schedule.has_work(), "its mark would be erased");
            let job = next(&mut schedule, NOW).expect("nothing runs");
            assert!(job.died);
            schedule.cancel(job);
        }
    }
}

#[test]
fn an_event_the_process_died_of_that_the_log_no_longer_has_holds_up_nothing() {
    let redeliveries = vec![parked(1, None, 0), parked(2, None, 0)];
    let mut schedule =
        Schedule::new(Ordering::None, 10, Position(2), None, Some(mark(1)), redeliveries, NOW);
    let asked = schedule.wake(NOW);
    assert_eq!(schedule.loaded(&asked, vec![event(2, None)], NOW), [Position(1)]);
    let other = schedule.next(1).expect("nothing runs");
    assert_eq!((other.event.position, other.died), (Position(2), false));
    assert_eq!(schedule.cut(10, true).mark, None);
}

#[test]
fn what_a_lane_wrote_is_kept_until_it_is_committed_and_no_longer() {
    let mut schedule =
        Schedule::new(Ordering::Key, 10, Position::ZERO, None, None, Vec::new(), NOW);
    let events = vec![event(1, Some("a"))];
    schedule.admit(fetched(events, 1), NOW);
    let job = schedule.next(1).unwrap();
    let attempt = job.state.attempt(Arc::new(EmptyState));
    attempt.set("k".to_owned(), vec![1]);
    let (state, writes) = (job.state.clone(), job.state.accept(&attempt));
    schedule.done(job, None, Effects { writes, ..Effects::default() });
    let written = schedule.cut(10, false).fill(&mut settlement());
    assert!(!state.is_empty() && schedule.lanes() == 1, "the next attempt reads what is stale");
    schedule.committed(written);
    assert!(state.is_empty() && schedule.lanes() == 0, "as many lanes as there ever were keys");
}

#[test]
fn one_attempt_at_a_time_is_of_either_kind_in_turn() {
    let redeliveries = (1..=3).map(|position| parked(position, None, 0)).collect();
    let mut schedule =
        Schedule::new(Ordering::None, 10, Position(3), None, None, redeliveries, NOW);
    let events = (4..=6).map(|position| event(position, None));
    schedule.admit(fetched(events, 6), NOW);
    let mut order = Vec::new();
    while let Some(job) = next(&mut schedule, NOW) {
        order.push(job.event.position.0);
        schedule.done(job, None, Effects::default());
    }
    assert_eq!(order, [1, 4, 2, 5, 3, 6]);
}

#[test]
fn so_much_data_is_read_on_once_what_was_there_is_settled() {
    let mut schedule =
        Schedule::new(Ordering::Key, 10, Position::ZERO, None, None, Vec::new(), NOW);
    let mut large = event(1, None);
    large.event.data = Some(vec![0; 10]);
    schedule.admit(fetched(vec![large], 1), NOW);
    let should_fetch = |schedule: &Schedule| schedule.should_fetch(5, 5, 10);
    assert!(!should_fetch(&schedule));
    let job = schedule.next(1).unwrap();
    schedule.done(job, None, Effects::default());
    assert!(!should_fetch(&schedule));
    schedule.cut(10, false);
    assert!(should_fetch(&schedule));
}

#[test]
fn so_many_redeliveries_are_loaded_at_once_and_the_next_one_when_there_is_room() {
    let redeliveries = (1..=200).map(|position| parked(position, None, 0)).collect();
    let mut schedule =
        Schedule::new(Ordering::None, 1_000, Position(200), None, None, redeliveries, NOW);
    let asked = schedule.wake(NOW);
    assert!(asked.len() < 100 && schedule.next_due().is_none());
    let events = asked.iter().map(|position| event(position.0, None)).collect();
    schedule.loaded(&asked, events, NOW);
    assert_eq!(schedule.wake(NOW), []);
    schedule.take_woken();
    let job = schedule.next(1).unwrap();
    schedule.done(job, None, Effects::default());
    assert!(schedule.take_woken(), "nobody looks");
    assert_eq!(schedule.wake(NOW).len(), 1);
}

/// A schedule of these keys, whose calls take so many events.
fn in_calls(ordering: Ordering, size: usize, keys: &[Option<&str>]) -> Schedule {
    let call_batching = CallBatching { max_size: size, linger: Duration::ZERO };
    let mut schedule = Schedule::new(ordering, 10, Position::ZERO, None, None, Vec::new(), NOW)
        .with_call_batching(call_batching);
    let events: Vec<LogEvent> = (1..).zip(keys).map(|(at, key)| event(at, *key)).collect();
    let scanned_to = events.last().unwrap().position;
    schedule.admit(fetched(events, scanned_to.0), NOW);
    schedule
}

fn next_call(schedule: &mut Schedule) -> Vec<Job> {
    let first = schedule.next(16).expect("nothing runs");
    let batch_mates = schedule.batch_mates(&first);
    std::iter::once(first).chain(batch_mates).collect()
}

fn positions(call: &[Job]) -> Vec<i64> {
    call.iter().map(|job| job.event.position.0).collect()
}

#[test]
fn a_call_takes_the_next_events_of_its_lane() {
    let (a, b) = (Some("a"), Some("b"));
    for (ordering, calls) in [
        (Ordering::Total, vec![vec![1, 2, 3]]),
        (Ordering::Key, vec![vec![1, 3, 6], vec![2, 4], vec![5]]),
        (Ordering::None, vec![vec![1, 2, 3], vec![4, 5, 6], vec![7]]),
    ] {
        let mut schedule = in_calls(ordering, 3, &[a, b, a, b, None, a, a]);
        for expected in calls {
            assert_eq!(positions(&next_call(&mut schedule)), expected, "{ordering:?}");
        }
        assert!(schedule.next(16).is_none());
    }
}

#[test]
fn a_call_holds_so_much_data_and_a_larger_event_goes_alone() {
    let mut schedule = in_calls(Ordering::Total, 10, &[None]);
    let sized = |(position, mebibytes): (i64, usize)| {
        let mut event = event(position, None);
        // With room for its attributes, which count too.
        event.event.data = Some(vec![0; (mebibytes << 20) - 100]);
        event
    };
    let events = (2..).zip([1, 2, 1, 9, 1]).map(sized);
    schedule.admit(fetched(events, 6), NOW);
    for expected in [vec![1, 2, 3, 4], vec![5], vec![6]] {
        let call = next_call(&mut schedule);
        assert_eq!(positions(&call), expected);
        schedule.batch_done(call, Effects::default());
    }
}

#[test]
fn a_replay_goes_alone() {
    let mut schedule = in_calls(Ordering::None, 10, &[None]);
    let mut replay = event(2, None);
    replay.deliver_to = Some("g".parse().unwrap());
    let events = vec![replay, event(3, None), event(4, None)];
    schedule.admit(fetched(events, 4), NOW);
    for expected in [vec![1], vec![2], vec![3, 4]] {
        assert_eq!(positions(&next_call(&mut schedule)), expected);
    }
}

#[test]
fn a_cut_takes_no_event_of_a_call_without_the_others() {
    let (a, b) = (Some("a"), Some("b"));
    let mut schedule = in_calls(Ordering::Key, 3, &[a, b, a, b, a, b, a]);
    let [of_a, of_b] = [(); 2].map(|()| next_call(&mut schedule));
    schedule.batch_done(of_a, Effects::default());
    assert!(!schedule.has_work(), "there is nothing to take yet");
    assert_eq!(schedule.cut(10, false).position, Position::ZERO);
    schedule.batch_done(of_b, Effects::default());
    assert!(schedule.has_work());
    // More than three, because no fewer can be taken.
    let cut = schedule.cut(3, false);
    assert_eq!((cut.position, cut.done), (Position(6), 6));
}

#[test]
fn a_cut_ends_before_a_call_that_would_be_too_much() {
    let mut schedule = in_calls(Ordering::Total, 3, &[None; 9]);
    for _ in 0..3 {
        let call = next_call(&mut schedule);
        schedule.batch_done(call, Effects::default());
    }
    assert_eq!(schedule.cut(8, false).position, Position(6));
    assert_eq!(schedule.cut(8, false).position, Position(9));
}

#[test]
fn what_the_cursor_passed_of_a_call_is_kept_until_the_rest_is_taken() {
    let (a, b) = (Some("a"), Some("b"));
    let mut schedule = in_calls(Ordering::Key, 3, &[a, b, a, b, a, b]);
    let [of_a, of_b] = [(); 2].map(|()| next_call(&mut schedule));
    schedule.batch_done(of_b, Effects::default());
    // The whole window is no more than one call: it is taken over what runs.
    let cut = schedule.cut(10, true);
    assert_eq!((cut.position, cut.done), (Position(6), 3));
    schedule.batch_done(of_a, Effects::default());
    let cut = schedule.cut(10, false);
    assert_eq!((cut.done, cut.has_work), (3, true));

    // One of it was passed, the others were not, and one in between fails.
    let mut schedule = in_calls(Ordering::Key, 3, &[a, b, a, Some("c"), a]);
    let [of_a, of_b, of_c] = [(); 3].map(|()| next_call(&mut schedule));
    assert_eq!(positions(&of_b), [2]);
    for job in of_b {
        schedule.done(job, None, Effects::default());
    }
    assert_eq!(schedule.cut(10, true).position, Position(2));
    let emits = vec![event(1, a).event];
    schedule.batch_done(of_a, Effects { emits, ..Effects::default() });
    assert!(!schedule.has_work(), "the store would forget the first");
    let mut settled = settlement();
    schedule.cut(10, false).fill(&mut settled);
    assert!(settled.emits.is_empty() && settled.redelivered.is_empty(), "{settled:?}");
    let is_kept = |schedule: &Schedule| schedule.parked() == 1;
    assert!(is_kept(&schedule), "another schedule would not know of it");
    for job in of_c {
        schedule.done(job, None, Effects::default());
    }
    schedule.cut(10, false).fill(&mut settled);
    assert_eq!((settled.emits.len(), settled.redelivered), (1, vec![Position(1)]));
    assert_eq!((settled.position, schedule.parked()), (Position(5), 0));
}

#[test]
fn an_event_waits_so_long_for_others_and_not_once_enough_have_come() {
    let call_batching = CallBatching { max_size: 3, linger: Duration::from_secs(1) };
    for ordering in [Ordering::Total, Ordering::Key, Ordering::None] {
        let new = || {
            Schedule::new(ordering, 10, Position::ZERO, None, None, Vec::new(), NOW)
                .with_call_batching(call_batching)
        };
        let admit = |schedule: &mut Schedule, position: i64, now| {
            let events = vec![event(position, Some("a"))];
            schedule.admit(fetched(events, position), now);
        };
        let (soon, later) =
            (after(NOW, call_batching.linger / 2), after(NOW, call_batching.linger));
        let mut schedule = new();
        admit(&mut schedule, 1, NOW);
        admit(&mut schedule, 2, soon);
        schedule.wake(soon);
        assert!(schedule.next(16).is_none(), "{ordering:?}");
        assert_eq!(schedule.next_due(), Some(later));
        schedule.wake(later);
        assert_eq!(positions(&next_call(&mut schedule)), [1, 2]);
        assert_eq!(schedule.next_due(), None, "nobody waits");

        let mut schedule = new();
        for position in 1..=3 {
            assert!(schedule.next(16).is_none(), "{ordering:?}");
            admit(&mut schedule, position, NOW);
        }
        assert_eq!(positions(&next_call(&mut schedule)), [1, 2, 3]);
        assert_eq!(schedule.next_due(), None, "nobody waits");
    }
}

#[test]
fn a_clock_that_is_set_back_lets_nobody_wait_longer() {
    let call_batching = CallBatching { max_size: 3, linger: Duration::from_secs(1) };
    let now = after(NOW, Duration::from_hours(1));
    for ordering in [Ordering::Total, Ordering::None] {
        let mut schedule = Schedule::new(ordering, 10, Position::ZERO, None, None, Vec::new(), now)
            .with_call_batching(call_batching);
        let events = (1..=2).map(|position| event(position, None));
        schedule.admit(fetched(events, 2), now);
        schedule.wake(now);
        assert!(schedule.next(16).is_none(), "{ordering:?}");
        schedule.wake(NOW);
        assert_eq!(positions(&next_call(&mut schedule)), [1, 2], "{ordering:?}");
    }
}

#[test]
fn an_event_of_a_call_that_failed_waits_for_nobody() {
    let call_batching = CallBatching { max_size: 2, linger: Duration::from_secs(1) };
    for ordering in [Ordering::Total, Ordering::None] {
        let mut schedule = Schedule::new(ordering, 10, Position::ZERO, None, None, Vec::new(), NOW)
            .with_call_batching(call_batching);
        let events = (1..=2).map(|position| event(position, None));
        schedule.admit(fetched(events, 2), NOW);
        let call = next_call(&mut schedule);
        assert_eq!(positions(&call), [1, 2]);
        schedule.split_batch(call);
        for expected in 1..=2 {
            let mut call = next_call(&mut schedule);
            assert_eq!(positions(&call), [expected]);
            schedule.done(call.pop().unwrap(), None, Effects::default());
        }
    }
}

/// An event that is delivered so many seconds from [`NOW`] on.
fn delayed(position: i64, seconds: u64) -> LogEvent {
    let mut event = event(position, Some("a"));
    event.event.deliver_after = Some(after(NOW, Duration::from_secs(seconds)));
    event
}

/// Has the store say that nothing is deferred yet.
fn nothing_is_deferred(schedule: &mut Schedule) {
    let asked = schedule.read_due(NOW).expect("the store is asked first");
    schedule.due_is_read(asked, Due::default());
    assert_eq!(schedule.next_deferred(), None);
}

#[test]
fn a_delayed_event_leaves_with_a_cut_and_is_asked_for_when_it_is_due_and_not_before() {
    for ordering in [Ordering::Total, Ordering::Key, Ordering::None] {
        let mut schedule = Schedule::new(ordering, 1, Position::ZERO, None, None, Vec::new(), NOW);
        nothing_is_deferred(&mut schedule);
        let events = vec![delayed(1, 9), delayed(2, 5), event(3, Some("a"))];
        schedule.admit(fetched(events, 3), NOW);
        let job = schedule.next(1).expect("nothing runs");
        schedule.done(job, None, Effects::default());
        let mut settled = settlement();
        let written = schedule.cut(10, false).fill(&mut settled);
        let at = |seconds| after(NOW, Duration::from_secs(seconds));
        assert_eq!((settled.position, settled.redeliveries.len()), (Position(3), 0));
        let deferral = |position, seconds| Deferral {
            position: Position(position),
            due_at: at(seconds),
            late: false,
        };
        assert_eq!(settled.deferred, [deferral(1, 9), deferral(2, 5)], "{ordering:?}");
        // The store does not have it before it is committed.
        assert_eq!((schedule.next_deferred(), schedule.next_due()), (None, None));
        schedule.committed(written);
        assert_eq!(schedule.next_deferred(), Some(at(5)));
        assert_eq!(schedule.read_due(at(4)), None);
        let asked = schedule.read_due(at(5)).expect("it is due");
        assert_eq!((asked.after, asked.up_to), (None, Position(3)));
        assert_eq!(schedule.next_deferred(), None, "it is asked for");
        let due = Redelivery { attempt: Attempt::FIRST, ..parked(2, Some("a"), 5) };
        schedule.due_is_read(asked, Due { events: vec![due], next: Some(at(9)) });
        // No more may be parked, of what is due or of the log.
        assert_eq!(schedule.next_deferred(), None);
        assert!(!schedule.should_fetch(10, 10, 10));
        let job = next(&mut schedule, at(5)).expect("nothing runs");
        assert_eq!((job.event.position, job.attempt), (Position(2), Attempt::FIRST));
        schedule.done(job, None, Effects::default());
        assert!(schedule.take_woken() && schedule.should_fetch(10, 10, 10));
        // As many came as there was room for: there may be more.
        assert_eq!(schedule.next_deferred(), Some(at(5)));
        let asked = schedule.read_due(at(5)).expect("there may be more");
        assert_eq!(asked.after, Some((at(5), Position(2))));
        schedule.due_is_read(asked, Due { events: vec![], next: Some(at(9)) });
        assert_eq!(schedule.next_deferred(), Some(at(9)));
        schedule.cut(10, false).fill(&mut settled);
        assert_eq!(settled.redelivered, [Position(2)]);
    }
}

#[test]
fn an_answer_that_is_older_than_what_was_settled_brings_nothing_again() {
    for is_committed in [false, true] {
        // What was handed over by the schedule before.
        let first = Redelivery { attempt: Attempt::FIRST, ..parked(1, None, 0) };
        let mut schedule =
            Schedule::new(Ordering::Total, 10, Position(1), None, None, vec![first.clone()], NOW);
        let asked = schedule.read_due(NOW).unwrap();
        let job = next(&mut schedule, NOW).expect("nothing runs");
        schedule.done(job, None, Effects::default());
        if is_committed {
            let written = schedule.cut(10, true).fill(&mut settlement());
            schedule.committed(written);
        }
        schedule.due_is_read(asked, Due { events: vec![first], next: None });
        assert_eq!(schedule.parked(), 0, "it is handled twice");
    }
}

#[test]
fn what_is_deferred_while_the_store_is_asked_is_asked_for_all_the_same() {
    let mut schedule =
        Schedule::new(Ordering::Key, 10, Position::ZERO, None, None, Vec::new(), NOW);
    let asked = schedule.read_due(NOW).unwrap();
    schedule.admit(fetched(vec![delayed(1, 5)], 1), NOW);
    let written = schedule.cut(10, false).fill(&mut settlement());
    schedule.committed(written);
    let later = after(NOW, Duration::from_secs(9));
    schedule.due_is_read(asked, Due { events: vec![], next: Some(later) });
    assert_eq!(schedule.next_deferred(), Some(after(NOW, Duration::from_secs(5))));
}

#[test]
fn redeliveries_that_wait_for_a_later_time_are_deferred_a_thousand_at_a_time() {
    let delayed = |position| Redelivery { attempt: Attempt::FIRST, ..parked(position, None, 9) };
    let redeliveries = (1..=2_500).map(delayed).collect();
    let mut schedule =
        Schedule::new(Ordering::Key, 10, Position(2_500), None, None, redeliveries, NOW);
    assert_eq!(schedule.parked(), 0);
    let mut deferred = Vec::new();
    while schedule.has_work() {
        let mut settled = settlement();
        let written = schedule.cut(10, false).fill(&mut settled);
        schedule.committed(written);
        assert!((1..=1_000).contains(&settled.deferred.len()));
        deferred.extend(settled.deferred.iter().map(|one| one.position.0));
    }
    deferred.sort_unstable();
    assert_eq!(deferred, (1..=2_500).collect::<Vec<_>>());
}
