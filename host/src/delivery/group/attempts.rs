//! What makes attempts: as many tasks as a group makes attempts at once, each with
//! an instance of its own, for as long as there is something to run.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::Instant;
use tracing::{Instrument, debug};

use super::ceilings::{Checked, KnownKeys, KnownState, NoRoom};
use super::large::TooLarge;
use super::outages::{Operation, Outages};
use super::refused::Refused;
use super::{BATCH_BYTES, BATCHES_AT_ONCE, GroupLoop, Progress};
use crate::delivery::breaker::{Breaker, Tried, Verdict};
use crate::delivery::ordering::{Job, Schedule};
use crate::delivery::permits::{Ceilings, Permit};
use crate::delivery::settlement::{Circumstances, Resolution, resolve};
use crate::delivery::state::{Accepted, AttemptState, CommittedState, StoredState};
use crate::delivery::{Call, Outcome, Report, Usage, Worker};
use crate::digest::Digest;
use crate::event::{Event, GroupName, Position};
use crate::failure::{Failure, FailureKind, storable};
use crate::foreign::clean;
use crate::store::StateWrite;

/// What the leader and the tasks that make its attempts share.
pub(super) struct Shared {
    pub(super) group: GroupLoop,
    /// The group's own name, of which this may lead but a partition.
    pub(super) name: GroupName,
    pub(super) committed: Arc<dyn CommittedState>,
    state: Mutex<SharedState>,
    /// Tasks that make one attempt after the other, and wait for nobody between them.
    active_tasks: AtomicUsize,
    /// What the tenant's state comes to. One attempt after the other is held
    /// against it.
    pub(super) known_state: AsyncMutex<Option<KnownState>>,
    pub(super) outages: Arc<Outages>,
    /// Events that no handler gets.
    pub(super) too_large: TooLarge,
    /// No further attempt is begun.
    halted: watch::Sender<bool>,
    /// Told of each settlement that is committed: true; and when one that is waited
    /// for cannot be made: false.
    commits: watch::Sender<bool>,
    /// There is something for the leader to look at.
    pub(super) wakeup: Notify,
}

/// What changes with every attempt.
pub(super) struct SharedState {
    pub(super) schedule: Schedule,
    pub(super) breaker: Breaker,
    /// Why no further attempt is begun; the first reason stands.
    pub(super) halt: Option<Halt>,
    /// Since when something is done, or failed, that no settlement has taken.
    pub(super) done_since: Option<Instant>,
    /// Below so many events that wait the log is read on.
    pub(super) fetch_size: usize,
    /// How the last attempt ended that counts.
    pub(super) verdict: Option<Verdict>,
    /// Events that were handled or given up.
    pub(super) handled: u64,
    /// What a settlement on its way has taken.
    pub(super) in_flight: InFlight,
    /// What was written and no settlement has taken.
    pub(super) open: Uncommitted,
    /// How many keys the group's state has.
    pub(super) known_keys: Option<KnownKeys>,
    /// What is known of settlements that were refused.
    pub(super) refused: Refused,
    /// Somebody waits for the next settlement.
    pub(super) is_waited_for: bool,
    /// The leader handles an event itself, and settles nothing meanwhile.
    pub(super) is_alone: bool,
    /// A settlement is on its way.
    pub(super) is_settling: bool,
    /// Events that wait for the component that they name, and hold nothing meanwhile.
    aside: Vec<Job>,
    /// Where the component is there by now.
    prepared: HashSet<Position>,
}

/// For as long as a task waits for nobody between its attempts.
struct ActiveTask<'a>(&'a Shared);

impl<'a> ActiveTask<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.active_tasks.fetch_add(1, AcqRel);
        Self(shared)
    }
}

impl Drop for ActiveTask<'_> {
    fn drop(&mut self) {
        self.0.active_tasks.fetch_sub(1, AcqRel);
    }
}

/// What a settlement on its way adds to what a tenant keeps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InFlight {
    pub(super) dead_letters: usize,
    pub(super) dead_letter_bytes: usize,
    pub(super) written: Uncommitted,
}

/// Writes that are not committed, whatever they replace.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Uncommitted {
    /// Keys that were set or deleted.
    pub(super) keys: i64,
    /// The bytes of keys and values that were set.
    pub(super) bytes: i64,
}

impl Uncommitted {
    pub(super) fn of(writes: &[Accepted]) -> Self {
        let bytes = writes.iter().map(|accepted| {
            let StateWrite { key, value, .. } = &accepted.write;
            value.as_ref().map_or(0, |value| key.len() + value.len())
        });
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        Self { keys: signed(writes.len()), bytes: signed(bytes.sum()) }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            keys: self.keys.saturating_add(other.keys),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self { keys: self.keys - other.keys, bytes: self.bytes - other.bytes }
    }
}

impl SharedState {
    /// Whether so much is done already that the settlement on its way is waited for.
    fn is_full(&self) -> bool {
        self.is_settling && self.schedule.done_bytes() >= BATCH_BYTES
    }

    /// Everything written that is not committed.
    pub(super) fn uncommitted(&self) -> Uncommitted {
        self.open.plus(self.in_flight.written)
    }
}

/// What ended the making of attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Halt {
    /// The handler could not be run.
    NotRun(String),
    /// The handler fails everything.
    Tripped(String),
    /// An event would become a dead letter for which its tenant has no room.
    Full(NoRoom),
    /// The database stores neither what an event came to nor its failure.
    Unstorable(String),
}

impl Shared {
    /// Goes on with what a leader has reached.
    pub(super) fn new(group: GroupLoop, schedule: Schedule, progress: &mut Progress) -> Self {
        let name = group.settings.group();
        let store = Arc::clone(&group.store);
        let share = Some(group.share.clone());
        let committed = StoredState { store, group: name.clone(), share };
        Self {
            committed: Arc::new(committed),
            group,
            name,
            state: Mutex::new(SharedState {
                schedule,
                breaker: std::mem::take(&mut progress.breaker),
                halt: progress.refused.pause().map(Halt::Unstorable),
                done_since: None,
                fetch_size: progress.fetch_size,
                verdict: None,
                handled: 0,
                in_flight: InFlight::default(),
                open: Uncommitted::default(),
                known_keys: progress.known_keys,
                refused: std::mem::take(&mut progress.refused),
                is_waited_for: false,
                is_alone: false,
                is_settling: false,
                aside: Vec::new(),
                prepared: HashSet::new(),
            }),
            active_tasks: AtomicUsize::new(0),
            commits: watch::Sender::new(true),
            known_state: AsyncMutex::new(progress.known_state),
            outages: Arc::clone(&progress.outages),
            too_large: TooLarge::default(),
            halted: watch::Sender::new(false),
            wakeup: Notify::new(),
        }
    }

    /// Leaves what was reached to whoever goes on, once no attempt is made any more
    /// and everything is settled.
    pub(super) fn return_to(self, progress: &mut Progress) {
        let locked = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        progress.breaker = locked.breaker;
        progress.fetch_size = locked.fetch_size;
        progress.known_keys = locked.known_keys;
        progress.refused = locked.refused;
        progress.known_state = self.known_state.into_inner();
        progress.redeliveries = Some(locked.schedule.into_redeliveries());
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SharedState> {
        // What is done under the lock does not panic; if it did, the leader's task
        // would be told by the task that did, and begin anew.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settlements that are committed from now on.
    pub(super) fn commits(&self) -> watch::Receiver<bool> {
        self.commits.subscribe()
    }

    /// Waits for a settlement that has not been seen. False when none can be made
    /// now: whoever waits holds up what it would take.
    pub(super) async fn next_commit(&self, commits: &mut watch::Receiver<bool>) -> bool {
        {
            let mut locked = self.lock();
            if locked.is_alone {
                return false;
            }
            locked.is_waited_for = true;
        }
        self.wakeup.notify_one();
        // The sender lives as long as this.
        let _ = commits.changed().await;
        self.lock().is_waited_for = false;
        *commits.borrow_and_update()
    }

    /// A settlement is committed, or one that is waited for cannot be made.
    pub(super) fn settled(&self, committed: bool) {
        self.commits.send_replace(committed);
    }

    /// Lets attempts begin, or no longer.
    pub(super) fn set_halted(&self, halted: bool) {
        self.halted.send_if_modified(|was| std::mem::replace(was, halted) != halted);
    }

    /// Whether no attempt is made, nor will the next one be at once.
    pub(super) fn is_at_rest(&self) -> bool {
        self.active_tasks.load(Acquire) == 0
    }

    fn is_halted(&self) -> bool {
        *self.halted.borrow()
    }

    /// The next event, if one may run now, and those that go into the same call.
    fn next(&self) -> Option<(Job, Vec<Job>)> {
        // Whoever cannot commit does not go on: it would all be to do again.
        if self.is_halted() || self.outages.is_failing(Operation::Settle) {
            return None;
        }
        let mut locked = self.lock();
        if locked.halt.is_some() || locked.is_full() {
            return None;
        }
        let had_enough = !self.should_fetch(&locked);
        let job = self.next_ready(&mut locked)?;
        let fellows = locked.schedule.fellows(&job);
        if had_enough && self.should_fetch(&locked) {
            // The leader is to read on while these events are handled.
            self.wakeup.notify_one();
        }
        Some((job, fellows))
    }

    /// The next event that may run and whose component is there. Those that wait for
    /// theirs are put aside.
    #[inline]
    pub(super) fn next_ready(&self, locked: &mut SharedState) -> Option<Job> {
        loop {
            let job = locked.schedule.next(self.group.settings.concurrency)?;
            let waits = match &job.event.digest {
                None => false,
                Some(digest) => {
                    // One that was prepared and is no longer kept is loaded once more,
                    // and comes to its turn.
                    !locked.prepared.remove(&job.event.position) && !self.group.handler.has(digest)
                }
            };
            // The process died in this attempt, or there is no event to make it with: it
            // is not made.
            if !waits || job.died || self.is_too_large(job.event.position) {
                return Some(job);
            }
            locked.aside.push(job);
            // The leader is to have it loaded.
            self.wakeup.notify_one();
        }
    }

    /// The component that an event waits for, the first one of several.
    pub(super) fn wanted_component(&self) -> Option<Digest> {
        self.lock().aside.first()?.event.digest.clone()
    }

    /// A component is there: the events that wait for it may run.
    pub(super) fn prepared(&self, digest: &Digest) {
        let mut locked = self.lock();
        let aside = std::mem::take(&mut locked.aside);
        for job in aside {
            if job.event.digest.as_ref() == Some(digest) {
                locked.prepared.insert(job.event.position);
                locked.schedule.give_back(job);
            } else {
                locked.aside.push(job);
            }
        }
    }

    /// Nothing is to wait for a component any more: what does has not begun.
    pub(super) fn give_back_aside(&self) {
        let mut locked = self.lock();
        for job in std::mem::take(&mut locked.aside) {
            locked.schedule.give_back(job);
        }
    }

    /// How many events may be there to run.
    pub(super) fn may_run(&self) -> usize {
        let locked = self.lock();
        if locked.is_full() { 0 } else { locked.schedule.may_run() }
    }

    /// Whether the log is to be read on.
    pub(super) fn should_fetch(&self, locked: &SharedState) -> bool {
        let most = self.group.settings.batch.max_events;
        locked.schedule.should_fetch(
            locked.fetch_size.saturating_mul(BATCHES_AT_ONCE - 1),
            most.saturating_mul(BATCHES_AT_ONCE),
            2 * BATCH_BYTES,
        )
    }

    /// Makes attempts, batch after batch, until nothing is left to run.
    pub(super) async fn make_attempts(
        self: Arc<Self>,
        mut permit: Permit,
        mut worker: Box<dyn Worker>,
    ) -> Option<Box<dyn Worker>> {
        let mut halted = self.halted.subscribe();
        loop {
            let is_more = self.batch(&mut permit, &mut worker, &mut halted).await;
            worker.end_batch();
            let outlives_its_memory = permit.holds_memory();
            if !is_more {
                return (!outlives_its_memory).then_some(worker);
            }
            if outlives_its_memory {
                worker = self.group.handler.worker();
            }
            permit.give_back();
        }
    }

    /// Makes the attempts of one batch. Whether there may be more when it is over.
    async fn batch(
        &self,
        permit: &mut Permit,
        worker: &mut Box<dyn Worker>,
        halted: &mut watch::Receiver<bool>,
    ) -> bool {
        let ceilings = &self.group.share.ceilings();
        let began = Instant::now();
        let batch = self.group.settings.batch;
        let mut left = batch.max_events;
        let mut active_tasks = None;
        while left > 0 && began.elapsed() < batch.max_time {
            if !permit.is_ready() {
                if !permit.goes_on_at_once() {
                    // What is done is not held up by what waits here.
                    active_tasks = None;
                    self.wakeup.notify_one();
                }
                let is_ready = tokio::select! {
                    biased;
                    _ = halted.wait_for(|halted| *halted) => false,
                    ready = permit.ready(None) => ready,
                };
                if !is_ready {
                    return false;
                }
            }
            active_tasks.get_or_insert_with(|| ActiveTask::begin(self));
            let Some((job, fellows)) = self.next() else { return false };
            left = left.saturating_sub(1 + fellows.len());
            if fellows.is_empty() {
                let report = self.attempt(&job, worker, permit).await;
                self.conclude(job, report, ceilings, worker).await;
            } else {
                let jobs = std::iter::once(job).chain(fellows).collect();
                // Apart, so that other handlers' tasks do not carry its future.
                Box::pin(self.handle_together(jobs, ceilings, worker, permit)).await;
            }
        }
        true
    }

    /// Makes one attempt.
    pub(super) async fn attempt(
        &self,
        job: &Job,
        worker: &mut Box<dyn Worker>,
        permit: &mut Permit,
    ) -> (Report, Arc<AttemptState>) {
        let settings = &self.group.settings;
        let state = job.state.attempt(Arc::clone(&self.committed));
        if job.died {
            return (crash_report(), state);
        }
        if let Some(report) = self.too_large(job.event.position) {
            return (report, state);
        }
        let span = tracing::error_span!(
            "attempt",
            group = %settings.name,
            position = job.event.position.0,
            event_id = %shown_id(&job.event.event),
            attempt = job.attempt.0,
        );
        let call = Call {
            group: &self.name,
            tenant: &settings.tenant,
            event: &job.event,
            attempt: job.attempt,
            is_late: job.late,
            state: Arc::clone(&state),
        };
        (permit.run(worker.attempt(call).instrument(span)).await, state)
    }

    /// Makes one attempt, unless the database refused what the event came to before.
    pub(super) async fn attempt_alone(
        &self,
        job: &Job,
        worker: &mut Box<dyn Worker>,
        permit: &mut Permit,
    ) -> (Report, Arc<AttemptState>) {
        let refused = self.lock().refused.failure(job.event.position);
        match refused {
            Some(report) => (report, job.state.attempt(Arc::clone(&self.committed))),
            None => self.attempt(job, worker, permit).await,
        }
    }

    /// Takes the end of an attempt.
    pub(super) async fn conclude(
        &self,
        job: Job,
        (mut report, state): (Report, Arc<AttemptState>),
        ceilings: &Ceilings,
        worker: &mut Box<dyn Worker>,
    ) {
        // Held until what was found to fit is in the shared state.
        let mut known = None;
        if self.may_exceed(ceilings, &state, &report) {
            let known = known.insert(self.known_state.lock().await);
            let succeeded = report.outcome == Outcome::Success;
            match self.within_ceilings(known, ceilings, &job, &state, report).await {
                Checked::Within(checked) => report = checked,
                Checked::Full(no_room) => {
                    *worker = self.group.handler.worker();
                    let mut locked = self.lock();
                    locked.schedule.give_back(job);
                    locked.halt.get_or_insert(Halt::Full(no_room));
                    return;
                }
            }
            if succeeded && report.outcome != Outcome::Success {
                // The instance believes that what it wrote is kept.
                *worker = self.group.handler.worker();
            }
        }
        let succeeded = report.outcome == Outcome::Success;
        let circumstances = || Circumstances {
            retry: &self.group.settings.retry,
            digest: job.event.digest.as_ref().map_or(self.group.handler.digest(), Digest::as_str),
            now: self.group.clock.now(),
            random: fastrand::f64(),
        };
        let resolution = resolve(&job.event, job.attempt, report, circumstances);
        let writes = if succeeded { job.state.accept(&state) } else { Vec::new() };
        // Nor does it say anything of the handler that an event cannot be read.
        let is_own = job.event.digest.is_none() && !self.is_too_large(job.event.position);
        let tried = Tried {
            position: job.event.position,
            attempt: job.attempt,
            is_replay: job.event.deliver_to.is_some(),
        };
        let mut locked = self.lock();
        let verdict = match resolution {
            Resolution::Handled(mut effects) => {
                locked.open = locked.open.plus(Uncommitted::of(&writes));
                effects.writes = writes;
                locked.schedule.done(job, None, effects);
                Verdict::Success
            }
            Resolution::GivenUp(kind, effects) => {
                locked.schedule.done(job, Some(kind), effects);
                Verdict::GaveUp
            }
            Resolution::Again(kind, again, delay) => {
                debug!(
                    group = %self.group.settings.name,
                    position = job.event.position.0,
                    attempt = job.attempt.0,
                    ?delay,
                    "failed, waits for its next attempt"
                );
                locked.schedule.again(job, kind, again);
                // It is due at a time of which nobody knows yet.
                self.wakeup.notify_one();
                Verdict::Failed
            }
            Resolution::NotRun(why) => {
                locked.schedule.give_back(job);
                locked.halt.get_or_insert(Halt::NotRun(why));
                return;
            }
        };
        self.note(&mut locked, verdict, 1);
        // How another component does says nothing of the group's own.
        if is_own {
            locked.verdict = Some(verdict);
            let settings = &self.group.settings.breaker;
            if let Some(why) = locked.breaker.record(verdict, tried, settings) {
                locked.halt.get_or_insert(Halt::Tripped(why));
            }
        }
    }

    /// The handler could be run.
    pub(super) fn is_run(&self) {
        self.outages.recovered(&self.group.settings.name, Operation::Run);
    }

    /// Takes note of how an attempt ended, or one call for so many events.
    pub(super) fn note(&self, locked: &mut SharedState, verdict: Verdict, events: u64) {
        self.is_run();
        if verdict != Verdict::Failed {
            locked.handled += events;
        }
        if locked.done_since.is_none() && (verdict != Verdict::Failed || locked.schedule.has_gaps())
        {
            locked.done_since = Some(Instant::now());
        }
        if locked.schedule.take_woken() {
            self.wakeup.notify_one();
        }
        let (done, most) =
            (locked.schedule.done_so_far() as u64, self.group.settings.batch.max_events);
        // Those that were done before did not come so far.
        let is_enough = done >= most as u64 && done - events.min(done) < most as u64;
        if is_enough || locked.schedule.done_bytes() >= BATCH_BYTES {
            self.wakeup.notify_one();
        }
    }
}

/// Bytes of an event's id in the log: each line of an attempt carries it.
const ID_BYTES: usize = 64;

/// An event's id as the log shows it. The position names the event where it is cut.
pub(super) fn shown_id(event: &Event) -> Cow<'_, str> {
    match clean(&event.id) {
        // Nearly all of them, for each attempt.
        Cow::Borrowed(id) if id.len() <= ID_BYTES => Cow::Borrowed(id),
        _ => Cow::Owned(storable(&event.id, ID_BYTES)),
    }
}

fn crash_report() -> Report {
    Report {
        outcome: Outcome::Failure(Failure::new(
            FailureKind::Crash,
            "the host process died while it handled this event",
        )),
        emits: Vec::new(),
        usage: Usage::default(),
    }
}
