//! The loop of one group: fetch, handle, settle.
//!
//! [`GroupLoop::lead`] runs for one leadership, from the epoch it was given to
//! its end. What it promises:
//! - every event is handed to the handler in position order, and the cursor
//!   passes it only together with what the attempt did;
//! - nothing is committed after the leadership is lost, and an attempt that was
//!   interrupted, or that could not be run, counts for nothing;
//! - an unavailable database is waited for, with backoff, and said once.
//!
//! Who leads is decided elsewhere ([`crate::leadership`]); what a batch commits
//! is decided in [`super::settlement`].

mod ceilings;
mod signals;
#[cfg(test)]
mod tests;
mod trip;
mod trouble;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::{Instrument, debug, error, warn};

use ceilings::{Checked, KnownState, may_exceed};
use signals::{Interrupt, Interrupts};
use trip::{TripChange, Tripped};
use trouble::{Doing, Trouble};

use super::backoff::RetryPolicy;
use super::breaker::{Breaker, BreakerSettings, Verdict};
use super::clock::Clock;
use super::permits::{Permit, Share};
use super::settlement::{Circumstances, Next, OpenBatch};
use super::state::{BatchState, CommittedState, StoredState};
use super::{Call, Handler, Outcome, Report, Usage, Worker};
use crate::digest::Digest;
use crate::event::{Attempt, Epoch, GroupName, LogEvent, Position, Tenant};
use crate::failure::{Failure, FailureKind};
use crate::store::{
    FailureCounts, Fetch, Fetched, GroupState, Head, Leadership, NewDeadLetter, Settled,
    Settlement, Store, StoreError, Subscription,
};

pub use signals::{Control, LAST_ANSWER, Lost, Signals};

/// After so many leaderships in a row without progress a group goes on one event
/// at a time, and a crash counts as an attempt.
pub const FRUITLESS_LEADERSHIPS: u32 = 2;

/// The data of a batch, in bytes, after which no further event is fetched; and
/// the data that it emitted, after which no further event is begun.
const BATCH_BYTES: usize = 16 << 20;

/// How often a cursor that only passed events of others is committed, usually.
pub const PASS_INTERVAL: Duration = Duration::from_secs(1);

/// How large a batch gets, and how long it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSettings {
    /// At most so many events. At least 1.
    pub max_events: usize,
    /// No further event is begun once the batch was handled for so long.
    pub max_time: Duration,
}

impl Default for BatchSettings {
    fn default() -> Self {
        Self { max_events: 1_000, max_time: Duration::from_millis(500) }
    }
}

/// What a group is, for delivery.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSettings {
    /// Its name.
    pub name: GroupName,
    /// Whose events it receives.
    pub tenant: Tenant,
    /// Which of them.
    pub subscription: Subscription,
    /// When to try again, and when to give up.
    pub retry: RetryPolicy,
    /// How large a batch gets.
    pub batch: BatchSettings,
    /// When it trips, because the handler fails everything.
    pub breaker: BreakerSettings,
}

/// How a leadership ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was asked to stop; everything handled is settled.
    Stopped,
    /// Another epoch took over: a seek, or another leader. Nothing was committed
    /// since.
    Superseded,
    /// The lock is lost. Nothing was committed since.
    Lost,
    /// Another version of the group takes over, under the same leadership;
    /// everything handled is settled.
    Replaced,
    /// The version fails everything and took over from another a short while
    /// ago, which is to go on; everything handled is settled.
    RolledBack,
}

/// Runs one group, one leadership after the other.
pub struct GroupLoop {
    /// What the group is.
    pub settings: GroupSettings,
    /// The database.
    pub store: Arc<dyn Store>,
    /// The code.
    pub handler: Arc<dyn Handler>,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// One permit, shared by all groups of the process: only one of those that
    /// may be killing the process handles an event at any time, so that a crash
    /// is not counted against all that were under way.
    pub suspects: Arc<Semaphore>,
    /// The group's share of the host: an attempt needs a permit.
    pub share: Share,
    /// Told when a settlement published events.
    pub published: Arc<Notify>,
    /// A cursor that only passed events of others is committed this often.
    pub pass_interval: Duration,
}

/// The progress of one leadership, whichever versions of the group serve it.
pub struct Led {
    epoch: Epoch,
    /// The number of the group's last settlement.
    settled: i64,
    /// Everything at or below is done or concerns others.
    cursor: Position,
    /// The cursor as it is committed.
    committed: Position,
    head: Option<Head>,
    /// How often attempts have failed, as it is committed.
    failures: FailureCounts,
    /// So many events are still handled one at a time, because the process may
    /// have died of one of them.
    cautious: usize,
    /// The leadership counts as fruitless until its first settlement.
    begun: bool,
    /// The head may be recorded as in flight.
    marked: bool,
    last_commit: Instant,
    /// How many events are fetched at once.
    appetite: usize,
    /// What the tenant's state comes to.
    known_state: Option<KnownState>,
    worker: Box<dyn Worker>,
    trouble: Trouble,
    breaker: Breaker,
    tripped: Option<Tripped>,
    /// What the group's row does not say yet.
    unrecorded: Option<TripChange>,
}

/// What a batch came to.
struct Worked {
    open: OpenBatch,
    state: BatchState,
    /// Events that are handled or dead letters.
    done: usize,
    /// The data of everything emitted, in bytes.
    emitted_bytes: usize,
    /// The handler could not be run.
    not_run: Option<String>,
    /// How the last attempt ended.
    verdict: Option<Verdict>,
    /// Why the group trips.
    trip: Option<String>,
    /// The next event would become a dead letter, and its tenant has no room for
    /// one more than so many.
    full: Option<u64>,
    /// Held until what the suspect did is settled.
    suspect: Option<OwnedSemaphorePermit>,
}

impl Led {
    /// Whether the version that runs took over from another and has not
    /// succeeded yet.
    #[must_use]
    pub fn is_unproven(&self) -> bool {
        self.breaker.is_unproven()
    }
}

impl GroupLoop {
    /// What a new leader begins with.
    #[must_use]
    pub fn begin_leading(&self, leadership: Leadership) -> Led {
        let mut led = Led {
            epoch: leadership.epoch,
            settled: leadership.settled,
            cursor: leadership.position,
            committed: leadership.position,
            head: leadership.head,
            failures: leadership.failures,
            cautious: 0,
            begun: false,
            marked: false,
            last_commit: Instant::now(),
            appetite: self.settings.batch.max_events,
            known_state: None,
            worker: self.handler.worker(),
            trouble: Trouble::default(),
            breaker: Breaker::default(),
            tripped: None,
            unrecorded: None,
        };
        if leadership.fruitless >= FRUITLESS_LEADERSHIPS {
            led.cautious = self.settings.batch.max_events;
            warn!(
                group = %self.settings.name,
                leaderships = leadership.fruitless,
                "no progress over several leaderships: one event at a time, and a crash counts as an attempt"
            );
        }
        if leadership.state == GroupState::Tripped {
            led.tripped = Some(self.tripped(0));
        }
        if led.head.as_ref().is_some_and(|head| head.in_flight) {
            // The process died in a marked attempt: what comes next is marked too,
            // or the next death of the same event would not be counted.
            led.cautious = self.settings.batch.max_events;
        }
        led
    }

    /// Goes on where a version with another component was replaced. Whether this
    /// one works is to be seen.
    pub fn take_over(&self, led: &mut Led) {
        self.take_back(led);
        led.breaker = Breaker::after_swap();
    }

    /// Goes on where a version with the same component was replaced, or one that
    /// failed everything. A group that tripped tries it at once.
    pub fn take_back(&self, led: &mut Led) {
        led.worker = self.handler.worker();
        led.trouble.over(&self.settings.name, Doing::Run);
        led.breaker = Breaker::default();
        if let Some(tripped) = &mut led.tripped {
            tripped.due = Instant::now();
        }
    }

    /// Leads the group until it is stopped, replaced, or no longer the leader.
    pub async fn lead(&self, led: &mut Led, mut signals: Signals) -> End {
        match self.run(led, &mut signals).await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn run(&self, led: &mut Led, signals: &mut Signals) -> Result<Infallible, End> {
        loop {
            if signals.lost.is_cancelled() {
                return Err(End::Lost);
            }
            if signals.stop.is_cancelled() {
                self.commit_passed(led, signals).await?;
                return Err(End::Stopped);
            }
            if signals.replaced.is_cancelled() {
                return Err(End::Replaced);
            }
            let control = *signals.control.borrow_and_update();
            if control.epoch > led.epoch {
                return Err(End::Superseded);
            }
            let safe = *signals.safe.borrow_and_update();
            if control.state == GroupState::Paused {
                self.commit_passed(led, signals).await?;
                signals.changed(None).await;
                continue;
            }
            if led.unrecorded.is_some() && !self.record_trip(led, signals).await? {
                continue;
            }
            self.follow_trip(led, control.state);
            if let Some(due) = led.tripped.as_ref().map(|tripped| tripped.due)
                && due > Instant::now()
            {
                self.commit_passed(led, signals).await?;
                signals.changed(Some(due - Instant::now())).await;
                continue;
            }
            if let Some(due) = led.head.as_ref().filter(|head| !head.in_flight).map(|h| h.due_at) {
                let now = self.clock.now();
                if due > now {
                    let wait = Duration::try_from(due.duration_since(now)).unwrap_or_default();
                    // In steps, because the time of day may be set.
                    signals.changed(Some(wait.min(Duration::from_secs(60)))).await;
                    continue;
                }
            }
            if led.cursor >= safe {
                self.idle(led, signals).await?;
                continue;
            }
            let one_at_a_time = led.cautious > 0
                || led.tripped.is_some()
                || led.head.as_ref().is_some_and(|head| head.in_flight);
            let most = self.settings.batch.max_events;
            let max_events = if one_at_a_time { 1 } else { led.appetite.min(most) };
            let Some(fetched) = signals.answer(self.fetch(led.cursor, safe, max_events)).await
            else {
                continue;
            };
            match fetched {
                Ok(fetched) => {
                    led.trouble.over(&self.settings.name, Doing::Read);
                    let mut permit = self.share.permit();
                    if !fetched.events.is_empty()
                        && (!signals.let_begin(led.epoch, permit.ready(None)).await
                            || !self.begin(led, signals).await?)
                    {
                        continue;
                    }
                    let worked = self.work(led, &fetched, &mut permit, signals).await?;
                    self.end_batch(led, permit);
                    if !one_at_a_time {
                        led.appetite =
                            appetite(max_events, fetched.events.len(), worked.done, most);
                    }
                    let full = worked.full;
                    self.finish(led, worked, signals).await?;
                    if let Some(most) = full {
                        self.pause_because_full(led, most, signals).await;
                    }
                }
                Err(error) => {
                    let delay = led.trouble.met(&self.settings.name, Doing::Read, &error);
                    signals.changed(Some(delay)).await;
                }
            }
        }
    }

    /// Waits until there may be something to do.
    async fn idle(&self, led: &mut Led, signals: &mut Signals) -> Result<(), End> {
        if led.cursor == led.committed {
            signals.changed(None).await;
            return Ok(());
        }
        let since = led.last_commit.elapsed();
        if since >= self.pass_interval {
            self.commit_passed(led, signals).await
        } else {
            signals.changed(Some(self.pass_interval - since)).await;
            Ok(())
        }
    }

    async fn fetch(
        &self,
        after: Position,
        up_to: Position,
        max_events: usize,
    ) -> Result<Fetched, StoreError> {
        let _turn = self.share.read_turn(self.store.at_once().reads).await;
        self.store
            .fetch(Fetch {
                group: &self.settings.name,
                tenant: &self.settings.tenant,
                subscription: &self.settings.subscription,
                after,
                up_to,
                max_events,
                max_bytes: BATCH_BYTES,
            })
            .await
    }

    /// Before the first attempt of the leadership: leaves a trace, so that
    /// leaderships that end in a crash can be counted. Whether that worked.
    async fn begin(&self, led: &mut Led, signals: &mut Signals) -> Result<bool, End> {
        if led.begun {
            return Ok(true);
        }
        if signals.lost.is_cancelled() {
            return Err(End::Lost);
        }
        let begin = self.store.begin_work(&self.settings.name, led.epoch, led.settled);
        let Some(begun) = signals.answer(begin).await else { return Ok(false) };
        match begun {
            Ok(Settled::Committed) => {
                led.trouble.over(&self.settings.name, Doing::BeginWork);
                led.begun = true;
                Ok(true)
            }
            Ok(Settled::NotLeader) => Err(End::Superseded),
            Err(error) => {
                let delay = led.trouble.met(&self.settings.name, Doing::BeginWork, &error);
                signals.changed(Some(delay)).await;
                Ok(false)
            }
        }
    }

    /// Hands the fetched events to the handler, one after the other.
    async fn work(
        &self,
        led: &mut Led,
        fetched: &Fetched,
        permit: &mut Permit,
        signals: &Signals,
    ) -> Result<Worked, End> {
        let mut worked = Worked {
            open: self.open_batch(led),
            state: BatchState::new(""),
            done: 0,
            emitted_bytes: 0,
            not_run: None,
            verdict: None,
            trip: None,
            full: None,
            suspect: None,
        };
        let committed: Arc<dyn CommittedState> = Arc::new(StoredState {
            store: Arc::clone(&self.store),
            group: self.settings.name.clone(),
        });
        let mut interrupts = Interrupts::new(signals);
        let ceilings = self.share.ceilings();
        let started = Instant::now();
        let mut all = true;
        for event in &fetched.events {
            if worked.done > 0
                && (signals.wants_another_turn(led.epoch)
                    || started.elapsed() >= self.settings.batch.max_time
                    || worked.emitted_bytes >= BATCH_BYTES)
            {
                all = false;
                break;
            }
            if !permit.is_ready() {
                // What is done is not held up for longer than a batch may last.
                let until = (worked.done > 0).then(|| started + self.settings.batch.max_time);
                if !signals.let_begin(led.epoch, permit.ready(until)).await {
                    all = false;
                    break;
                }
            }
            let attempt = worked.open.attempt_of(event);
            let state = worked.state.attempt(Arc::clone(&committed));
            let mut report = if died_in_flight(led.head.as_ref(), event) {
                crash_report()
            } else {
                if led.cautious > 0 {
                    let Some(permit) = self.mark(led, event, attempt, &mut interrupts).await?
                    else {
                        all = false;
                        break;
                    };
                    worked.suspect = Some(permit);
                }
                let span = tracing::error_span!(
                    "attempt",
                    group = %self.settings.name,
                    position = event.position.0,
                    event_id = event.event.id,
                    attempt = attempt.0,
                );
                let call = Call {
                    group: &self.settings.name,
                    tenant: &self.settings.tenant,
                    event,
                    attempt,
                    state: Arc::clone(&state),
                };
                tokio::select! {
                    biased;
                    report = permit.run(led.worker.attempt(call).instrument(span)) => report,
                    interrupt = interrupts.next() => {
                        led.worker = self.handler.worker();
                        if interrupt == Interrupt::Lost {
                            return Err(End::Lost);
                        }
                        debug!(group = %self.settings.name, position = event.position.0, "interrupted");
                        all = false;
                        break;
                    }
                }
            };
            if may_exceed(&ceilings, &state, &report) {
                permit.rest();
                let open = &worked.open;
                let checked = self.within_ceilings(led, &ceilings, open, attempt, &state, report);
                report = match interrupts.answer(checked).await {
                    Ok(Checked::Within(report)) => report,
                    Ok(Checked::Full(most)) => {
                        worked.full = Some(most);
                        all = false;
                        break;
                    }
                    Err(Interrupt::Lost) => return Err(End::Lost),
                    Err(Interrupt::Now) => {
                        all = false;
                        break;
                    }
                };
            }
            if report.outcome == Outcome::Success {
                worked.state.accept(&state);
                let emitted = report.emits.iter().filter_map(|event| event.data.as_ref());
                worked.emitted_bytes += emitted.map(Vec::len).sum::<usize>();
            }
            let circumstances = Circumstances {
                retry: &self.settings.retry,
                digest: event.digest.as_ref().map_or(self.handler.digest(), Digest::as_str),
                now: self.clock.now(),
                random: fastrand::f64(),
            };
            let succeeded = report.outcome == Outcome::Success;
            let next = worked.open.record(event, attempt, report, circumstances);
            worked.verdict = match next {
                Next::Continue if succeeded => Some(Verdict::Success),
                Next::Continue => Some(Verdict::GaveUp),
                Next::Wait(_) => Some(Verdict::Failed),
                Next::NotRun(_) => None,
            };
            if event.digest.is_some() {
                // How another component does says nothing of the group's own.
                worked.verdict = None;
            }
            if let Some(verdict) = worked.verdict {
                worked.trip = led.breaker.record(verdict, &self.settings.breaker);
            }
            match next {
                Next::Continue if worked.trip.is_some() => {
                    worked.done += 1;
                    all = false;
                    break;
                }
                Next::Continue => worked.done += 1,
                Next::Wait(delay) => {
                    debug!(
                        group = %self.settings.name,
                        position = event.position.0,
                        attempt = attempt.0,
                        ?delay,
                        "failed, waits for its next attempt"
                    );
                    all = false;
                    break;
                }
                Next::NotRun(why) => {
                    worked.not_run = Some(why);
                    all = false;
                    break;
                }
            }
        }
        if all {
            worked.open.pass(fetched.scanned_to);
        }
        Ok(worked)
    }

    /// Ends the life of the batch's instance before its memory is given back.
    fn end_batch(&self, led: &mut Led, permit: Permit) {
        led.worker.end_batch();
        if permit.holds_memory() {
            // One that outlives its batch would outlive its memory.
            led.worker = self.handler.worker();
        }
        drop(permit);
    }

    /// Before an event that may kill the process: waits for the one permit and
    /// records the attempt, so that a crash leaves a trace. `None` when there is
    /// something more urgent.
    async fn mark(
        &self,
        led: &mut Led,
        event: &LogEvent,
        attempt: Attempt,
        interrupts: &mut Interrupts,
    ) -> Result<Option<OwnedSemaphorePermit>, End> {
        let permit = tokio::select! {
            biased;
            interrupt = interrupts.next() => {
                return if interrupt == Interrupt::Lost { Err(End::Lost) } else { Ok(None) };
            }
            permit = Arc::clone(&self.suspects).acquire_owned() => permit,
        };
        // Nobody closes the semaphore; if somebody did, nothing would be marked.
        let Ok(permit) = permit else { return Ok(None) };
        if interrupts.is_lost() {
            return Err(End::Lost);
        }
        let head = Head {
            position: event.position,
            attempt,
            due_at: self.clock.now(),
            failure: led.head.as_ref().and_then(|head| head.failure.clone()),
            in_flight: true,
        };
        led.marked = true;
        let (group, store) = (&self.settings.name, &self.store);
        let begin = store.begin_attempt(group, led.epoch, led.settled, &head);
        let begun = match interrupts.answer(begin).await {
            Ok(begun) => begun,
            Err(Interrupt::Lost) => return Err(End::Lost),
            Err(Interrupt::Now) => return Ok(None),
        };
        match begun {
            Ok(Settled::Committed) => {
                led.trouble.over(&self.settings.name, Doing::Mark);
                Ok(Some(permit))
            }
            Ok(Settled::NotLeader) => Err(End::Superseded),
            Err(error) => {
                let delay = led.trouble.met(&self.settings.name, Doing::Mark, &error);
                tokio::select! {
                    () = tokio::time::sleep(delay) => Ok(None),
                    interrupt = interrupts.next() => match interrupt {
                        Interrupt::Lost => Err(End::Lost),
                        Interrupt::Now => Ok(None),
                    },
                }
            }
        }
    }

    /// Commits what a batch did.
    async fn finish(
        &self,
        led: &mut Led,
        worked: Worked,
        signals: &mut Signals,
    ) -> Result<(), End> {
        let Worked { open, state, done, not_run, verdict, trip, suspect, .. } = worked;
        // A mark must not outlive its attempt: the next crash would count it.
        if !led.marked && open.only_passes(done) && led.last_commit.elapsed() < self.pass_interval {
            led.cursor = open.into_settlement(Vec::new(), &led.failures).position;
        } else if led.marked || !open.is_empty() {
            let settlement = open.into_settlement(state.into_writes(), &led.failures);
            self.settle(led, settlement, signals).await?;
        }
        drop(suspect);
        // One that waits for its next attempt may still kill the process.
        led.cautious = led.cautious.saturating_sub(done);
        if let Some(why) = not_run {
            let delay = led.trouble.met(&self.settings.name, Doing::Run, &why);
            signals.changed(Some(delay)).await;
        } else if done > 0 || led.head.is_some() {
            led.trouble.over(&self.settings.name, Doing::Run);
        }
        match (verdict, trip) {
            (Some(verdict), _) if led.tripped.is_some() => {
                self.probed(led, verdict);
                Ok(())
            }
            (_, Some(why)) => self.trip(led, why),
            _ => Ok(()),
        }
    }

    fn open_batch(&self, led: &Led) -> OpenBatch {
        let mut open = OpenBatch::new(
            self.settings.name.clone(),
            led.epoch,
            led.settled + 1,
            led.committed,
            led.head.clone(),
        );
        if led.cursor > led.committed {
            open.pass(led.cursor);
        }
        open
    }

    /// Commits a cursor that passed events of others.
    async fn commit_passed(&self, led: &mut Led, signals: &Signals) -> Result<(), End> {
        if led.cursor == led.committed {
            return Ok(());
        }
        let settlement = self.open_batch(led).into_settlement(Vec::new(), &led.failures);
        self.settle(led, settlement, signals).await
    }

    /// Commits a settlement: again and again while the database is away, until
    /// it is known to be committed or the leadership is over.
    async fn settle(
        &self,
        led: &mut Led,
        settlement: Settlement,
        signals: &Signals,
    ) -> Result<(), End> {
        let mut interrupts = Interrupts::new(signals);
        let mut unknown = false;
        loop {
            if signals.lost.is_cancelled() {
                return Err(End::Lost);
            }
            let settling = async {
                let _turn = self.share.write_turn(self.store.at_once().writes).await;
                if unknown {
                    self.settle_unless_committed(&settlement).await
                } else {
                    self.store.settle(&settlement).await
                }
            };
            let interrupt = match interrupts.answer(settling).await {
                Ok(Ok(Settled::Committed)) => break,
                Ok(Ok(Settled::NotLeader)) => return Err(End::Superseded),
                Ok(Err(error)) => {
                    unknown = true;
                    let delay = led.trouble.met(&self.settings.name, Doing::Settle, &error);
                    tokio::select! {
                        () = tokio::time::sleep(delay) => continue,
                        interrupt = interrupts.next() => interrupt,
                    }
                }
                Err(interrupt) => interrupt,
            };
            if interrupt == Interrupt::Lost {
                return Err(End::Lost);
            }
            error!(
                group = %self.settings.name,
                position = led.committed.0,
                "stopping without the last settlement: its events come again"
            );
            return Err(End::Stopped);
        }
        led.trouble.over(&self.settings.name, Doing::Settle);
        led.marked = false;
        led.settled = settlement.number;
        led.cursor = settlement.position;
        led.committed = settlement.position;
        led.head = settlement.head;
        if let Some(failures) = settlement.failures {
            led.failures = failures;
        }
        led.last_commit = Instant::now();
        if !settlement.emits.is_empty() {
            self.published.notify_one();
        }
        for dead in &settlement.dead_letters {
            self.log_dead_letter(dead);
        }
        Ok(())
    }

    /// After a failed settlement: whether it was committed all the same, else
    /// once more.
    async fn settle_unless_committed(
        &self,
        settlement: &Settlement,
    ) -> Result<Settled, StoreError> {
        if let Some(known) = self.what_became_of(settlement).await? {
            return Ok(known);
        }
        match self.store.settle(settlement).await? {
            Settled::Committed => Ok(Settled::Committed),
            // Perhaps because its earlier try came in between, which was on its
            // way all the time.
            Settled::NotLeader => {
                Ok(self.what_became_of(settlement).await?.unwrap_or(Settled::NotLeader))
            }
        }
    }

    /// What is known of a settlement, if anything: while the one before it is the
    /// group's last, it may still be on its way. Nobody else settles under this
    /// epoch, so the number tells.
    async fn what_became_of(&self, settlement: &Settlement) -> Result<Option<Settled>, StoreError> {
        let cursor = self.store.cursor(&settlement.group).await?;
        Ok(if cursor.epoch != settlement.epoch {
            Some(Settled::NotLeader)
        } else if cursor.settled == settlement.number {
            Some(Settled::Committed)
        } else if cursor.settled == settlement.number - 1 {
            None
        } else {
            // The database was put back, or its row was changed by hand: what the
            // leader holds of it is of no use.
            Some(Settled::NotLeader)
        })
    }

    fn log_dead_letter(&self, dead: &NewDeadLetter) {
        warn!(
            group = %self.settings.name,
            position = dead.event.position.0,
            event_id = dead.event.event.id,
            attempts = dead.attempts,
            kind = dead.failure.kind,
            reason = crate::failure::storable(&dead.failure.text, 200),
            "dead letter"
        );
    }
}

/// How many events to fetch after a batch. A handler that does a few in the time
/// of a batch would else read a thousand for each of them, at the cost of all.
fn appetite(before: usize, fetched: usize, done: usize, most: usize) -> usize {
    const LEAST: usize = 16;
    if done < fetched {
        done.saturating_mul(2).max(LEAST).min(before)
    } else if fetched == before {
        before.saturating_mul(2).min(most)
    } else {
        before
    }
}

fn died_in_flight(head: Option<&Head>, event: &LogEvent) -> bool {
    head.is_some_and(|head| head.in_flight && head.position == event.position)
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
