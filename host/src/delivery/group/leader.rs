//! The loop itself: what it looks at, what it begins, and what it waits for.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{Instrument as _, debug, error, info, warn};

use super::due::DueAnswer;
use super::large::{OneByOne, Unread, read_alone};
use super::late::{Looked, MAX_UNDECIDED_RANGES};
use super::outages::Operation;
use super::settle::NotCommitted;
use super::shared::{Halt, InFlight, Shared, Uncommitted};
use super::signals::{Interrupt, Interrupts, Seen, Waits};
use super::{BATCH_BYTES, BATCHES_AT_ONCE, End, GroupLoop, Progress, Signals, fetch_size};
use crate::clock::after;
use crate::delivery::admission::{Permit, Task};
use crate::delivery::ordering::{CommittedWrites, Cut, Job};
use crate::delivery::settlement::with_failures;
use crate::digest::Digest;
use crate::event::Position;
use crate::handler::Worker;
use crate::store::{
    Fetch, Fetched, Found, GroupState, Mark, OvertakingFetch, Settled, Settlement, UndecidedRanges,
};
use crate::subscription::Subscription;

/// How long is waited at most without a look at the time of day, which may be set.
const LONGEST_NAP: Duration = Duration::from_secs(60);

/// When parked events are asked for that were due with others, for which there was no
/// room.
const NEXT_PART: Duration = Duration::from_millis(100);

/// How many events of those that were read are admitted under one lock.
const ADMITTED_AT_ONCE: usize = 32;

/// A call of the store, which goes on whatever the leader waits for meanwhile: it has
/// a turn, and a connection, that others wait for, and perhaps the leader itself. It
/// is given up when this is dropped.
pub(super) struct BackgroundCall<T>(JoinHandle<T>);

impl<T: Send + 'static> BackgroundCall<T> {
    pub(super) fn spawn(call: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(call.in_current_span()))
    }

    async fn answer(&mut self) -> T {
        match (&mut self.0).await {
            Ok(answer) => answer,
            Err(why) => match why.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime goes down, and the leader with it.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

impl<T> BackgroundCall<T> {
    /// Gives it up, and waits until nothing of it runs.
    async fn end(call: Option<Self>) {
        let Some(mut call) = call else { return };
        call.0.abort();
        if let Err(why) = (&mut call.0).await
            && let Ok(panic) = why.try_into_panic()
        {
            resume_unwind(panic);
        }
    }
}

impl<T> Drop for BackgroundCall<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A settlement on its way, with its outcome.
struct Committed {
    settlement: Settlement,
    written: CommittedWrites,
    /// The one event of which it holds what it came to, if it is one.
    only: Option<Position>,
    outcome: Result<(), NotCommitted>,
}

/// Parked events that are read from the log.
struct Loaded {
    asked: Vec<Position>,
    answer: Result<Found, Unread>,
}

/// The component that a replay names: whether it is known to be there, or not to run.
struct Prepared {
    digest: Digest,
    answer: Result<(), String>,
}

/// A part of the log that was read.
struct Read {
    overtaken: OvertakingFetch,
    /// It was read past the safe position.
    overtakes: bool,
}

/// What the leader has begun and not seen the end of.
pub(super) struct Leader<'a> {
    pub(super) shared: Arc<Shared>,
    pub(super) progress: &'a mut Progress,
    tasks: FuturesUnordered<Task<Option<Box<dyn Worker>>>>,
    fetching: Option<BackgroundCall<Result<Read, Unread>>>,
    loading: Option<BackgroundCall<Loaded>>,
    pub(super) looking: Option<BackgroundCall<Looked>>,
    pub(super) reading_due: Option<BackgroundCall<DueAnswer>>,
    settling: Option<BackgroundCall<Committed>>,
    /// Whether events are read one by one, and parked ones are.
    one_by_one: OneByOne,
    load_one_by_one: OneByOne,
    /// At most so many events are read past open transactions.
    overtake_most: usize,
    /// More parked events are due than are held at once for their size.
    loads_in_parts: bool,
    preparing: Option<BackgroundCall<Prepared>>,
    /// When something is tried again that did not work.
    fetch_after: Option<Instant>,
    load_after: Option<Instant>,
    pub(super) look_after: Option<Instant>,
    pub(super) due_after: Option<Instant>,
    run_after: Option<Instant>,
    prepare_after: Option<Instant>,
    /// When the log was last read, how many events came, and how many had been
    /// handled before.
    last_fetch: Option<(Instant, usize, u64)>,
    /// Whether a newer safe position is waited for.
    waits: Waits,
}

/// What happened while the leader waited.
enum Happened {
    Something,
    TaskEnded(Option<Box<dyn Worker>>),
    Fetched(Result<Read, Unread>),
    Loaded(Loaded),
    Looked(Looked),
    DueRead(DueAnswer),
    Committed(Box<Committed>),
    Prepared(Prepared),
}

/// Waits for something that may not have been begun.
async fn ended<T: Send + 'static>(call: &mut Option<BackgroundCall<T>>) -> T {
    match call {
        Some(under_way) => {
            let answer = under_way.answer().await;
            *call = None;
            answer
        }
        None => std::future::pending().await,
    }
}

pub(super) fn is_over(moment: Option<Instant>) -> bool {
    moment.is_none_or(|moment| moment <= Instant::now())
}

impl<'a> Leader<'a> {
    pub(super) fn new(shared: Arc<Shared>, progress: &'a mut Progress, signals: &Signals) -> Self {
        Self {
            shared,
            progress,
            tasks: FuturesUnordered::new(),
            fetching: None,
            loading: None,
            looking: None,
            reading_due: None,
            settling: None,
            one_by_one: OneByOne::default(),
            load_one_by_one: OneByOne::default(),
            overtake_most: usize::MAX,
            loads_in_parts: false,
            preparing: None,
            fetch_after: None,
            load_after: None,
            look_after: None,
            due_after: None,
            run_after: None,
            prepare_after: None,
            last_fetch: None,
            waits: Waits::new(&signals.awaited),
        }
    }

    pub(super) fn group(&self) -> &GroupLoop {
        &self.shared.group
    }

    /// Leads until something ends it. Nothing of it runs on afterwards.
    pub(super) async fn run(mut self, signals: &mut Signals) -> End {
        let end = loop {
            match self.turn(signals).await {
                Ok(()) => {}
                Err(end) => break end,
            }
        };
        self.shared.set_halted(true);
        self.interrupt().await;
        BackgroundCall::end(self.settling.take()).await;
        BackgroundCall::end(self.fetching.take()).await;
        BackgroundCall::end(self.loading.take()).await;
        BackgroundCall::end(self.looking.take()).await;
        BackgroundCall::end(self.reading_due.take()).await;
        BackgroundCall::end(self.preparing.take()).await;
        end
    }

    /// Looks at everything once, begins what can begin, and waits.
    async fn turn(&mut self, signals: &mut Signals) -> Result<(), End> {
        let looked_at = Instant::now();
        if signals.leadership.is_lost() {
            return Err(End::Lost);
        }
        let control = *signals.control.borrow_and_update();
        if control.epoch > self.progress.epoch {
            return Err(End::Superseded);
        }
        let state = self.progress.state(control);
        let safe = *signals.safe.borrow_and_update();
        let overtake_limit = *signals.overtake_limit.borrow_and_update();
        self.waits.set(self.is_through_soon(safe));
        let seen = signals.seen();
        if seen.interrupt && !self.tasks.is_empty() {
            self.interrupt().await;
        }
        if self.progress.unrecorded.is_none() {
            self.follow_trip(state);
        }
        let leaving = seen.stop || seen.replaced;
        let paused = state == GroupState::Paused;
        let halted = self.shared.lock().halt.is_some();
        let trip_waits = self.progress.tripped.as_ref().is_some_and(|t| t.due > Instant::now());
        let idles = leaving
            || paused
            || halted
            || trip_waits
            || self.progress.unrecorded.is_some()
            || !is_over(self.run_after);
        let one_at_a_time = self.is_one_at_a_time();
        self.shared.set_halted(idles || one_at_a_time);
        if idles {
            self.shared.requeue_awaiting_component();
        }
        self.settle(idles || one_at_a_time, leaving || paused || trip_waits, signals);
        if self.tasks.is_empty() && self.settling.is_none() {
            if halted {
                return self.after_halt(signals).await;
            }
            if seen.stop {
                return Err(End::Stopped);
            }
            if seen.replaced {
                return Err(End::Replaced);
            }
            if self.progress.unrecorded.is_some() && !paused {
                self.record_trip(signals).await?;
                return Ok(());
            }
        }
        if !idles {
            self.say_whether_held_back(safe, overtake_limit, signals).await;
            self.fetch(safe, overtake_limit);
            self.look_for_late(safe);
            self.read_due();
            self.load();
            self.prepare();
            if !one_at_a_time {
                if !self.dispatch(signals).await? {
                    return Ok(());
                }
            } else if self.tasks.is_empty()
                && self.settling.is_none()
                && self.one_event(signals).await?
            {
                return Ok(());
            }
        }
        self.wait(self.next_look(looked_at, idles), seen, signals).await
    }

    /// Whether what is left to read up to the safe position may be in the next few
    /// reads, so that a newer one is wanted before they are done.
    fn is_through_soon(&self, safe: Position) -> bool {
        let most = self.group().settings.batch.max_events.saturating_mul(BATCHES_AT_ONCE);
        let soon = i64::try_from(most).unwrap_or(i64::MAX);
        safe.0.saturating_sub(self.shared.lock().schedule.scanned_to().0) <= soon
    }

    /// Whether events are handled and settled one by one.
    fn is_one_at_a_time(&self) -> bool {
        self.progress.crash_guard_left > 0
            || self.progress.refusal_search_left > 0
            || self.progress.tripped.is_some()
            || self.progress.mark.is_some()
    }

    /// Ends all attempts that are under way; they count for nothing.
    async fn interrupt(&mut self) {
        let tasks = std::mem::take(&mut self.tasks);
        if tasks.is_empty() {
            return;
        }
        debug!(group = %self.group().settings.name, "interrupted");
        let ended = join_all(tasks.into_iter().map(Task::cancel)).await;
        self.progress.idle.extend(ended.into_iter().flatten().flatten());
    }

    /// Waits until there may be something to do, and takes it.
    async fn wait(
        &mut self,
        until: Option<Instant>,
        seen: Seen,
        signals: &mut Signals,
    ) -> Result<(), End> {
        let Self {
            shared,
            tasks,
            fetching,
            loading,
            looking,
            reading_due,
            settling,
            preparing,
            ..
        } = self;
        let happened = tokio::select! {
            () = signals.news(seen, until) => Happened::Something,
            () = shared.wakeup.notified() => Happened::Something,
            Some(ended) = tasks.next() => Happened::TaskEnded(ended.flatten()),
            fetched = ended(fetching) => Happened::Fetched(fetched),
            loaded = ended(loading) => Happened::Loaded(loaded),
            looked = ended(looking) => Happened::Looked(looked),
            due = ended(reading_due) => Happened::DueRead(due),
            committed = ended(settling) => Happened::Committed(Box::new(committed)),
            prepared = ended(preparing) => Happened::Prepared(prepared),
        };
        match happened {
            Happened::Something => {}
            Happened::TaskEnded(worker) => self.progress.idle.extend(worker),
            Happened::Fetched(fetched) => self.fetched(fetched),
            Happened::Loaded(loaded) => self.loaded(loaded),
            Happened::Looked(looked) => self.looked(looked),
            Happened::DueRead(due) => self.due_is_read(due),
            Happened::Committed(committed) => self.committed(*committed)?,
            Happened::Prepared(prepared) => self.prepared(prepared),
        }
        Ok(())
    }

    /// When there may be something to do though nobody says so, after a look that
    /// began then. What was due by that time was seen; whatever has become due since
    /// was perhaps not, and is looked at at once.
    fn next_look(&self, looked_at: Instant, idles: bool) -> Option<Instant> {
        let locked = self.shared.lock();
        let batch = self.group().settings.batch;
        // Nobody says when the first of a settlement is done.
        let done_since = locked.done_since.or((!self.tasks.is_empty()).then_some(looked_at));
        let moments = [
            done_since.map(|since| since + batch.max_time),
            locked
                .schedule
                .passes()
                .then(|| self.progress.last_commit + self.group().pass_interval),
            self.progress.tripped.as_ref().map(|tripped| tripped.due),
            self.run_after,
            self.fetch_after,
            self.load_after,
            self.due_after,
            self.prepare_after,
            self.look_after
                .filter(|_| self.looking.is_none() && locked.schedule.undecided_ranges() > 0),
        ];
        let news = moments.into_iter().flatten().filter(|moment| *moment > looked_at);
        // Those that were due when the look came to them run or are loaded.
        let waits = !idles && self.loading.is_none() && is_over(self.load_after);
        let due = waits.then(|| locked.schedule.next_due()).flatten();
        let reads = !idles && is_over(self.due_after);
        let deferred = reads.then(|| locked.schedule.next_deferred()).flatten();
        let due = [due, deferred].into_iter().flatten().min().map(|due| {
            let wait = Duration::try_from(due.duration_since(self.group().clock.now()));
            Instant::now() + wait.unwrap_or_default().min(LONGEST_NAP)
        });
        news.chain(due).min()
    }

    /// Reads the log on, if that is worth while: up to the safe position, and past it
    /// where only transactions are open that the group does not wait for.
    fn fetch(&mut self, safe: Position, overtake_limit: Position) {
        if self.fetching.is_some() || !is_over(self.fetch_after) {
            return;
        }
        let mut locked = self.shared.lock();
        let after = locked.schedule.scanned_to();
        let overtakes = after >= safe;
        let max_ranges = MAX_UNDECIDED_RANGES.saturating_sub(locked.schedule.undecided_ranges());
        let up_to = if overtakes { overtake_limit } else { safe };
        if after >= up_to || overtakes && max_ranges == 0 || !self.shared.should_fetch(&locked) {
            return;
        }
        let (now, batch) = (Instant::now(), self.group().settings.batch);
        if let Some((at, fetched, handled)) = self.last_fetch {
            let elapsed = (now - at).max(Duration::from_millis(1));
            let done = usize::try_from(locked.handled - handled).unwrap_or(usize::MAX);
            let done = if elapsed <= batch.max_time {
                fetched
            } else {
                // In the time of one batch.
                (done as f64 * batch.max_time.as_secs_f64() / elapsed.as_secs_f64()) as usize
            };
            locked.fetch_size = fetch_size(locked.fetch_size, fetched, done, batch.max_events);
        }
        self.last_fetch = Some((now, 0, locked.handled));
        // A call takes what is there: one that is slow is to have as many all the same.
        let max_events = locked.fetch_size.max(self.group().call_batching().max_size);
        drop(locked);
        if overtakes {
            // Halved when that fails: it comes whole, or not at all.
            self.overtake_most = self.overtake_most.min(max_events);
        }
        let max_events = if overtakes { self.overtake_most } else { max_events };
        let is_alone = self.one_by_one.is_on();
        let shared = Arc::clone(&self.shared);
        self.fetching = Some(BackgroundCall::spawn(async move {
            let GroupLoop { settings, store, admission, .. } = &shared.group;
            let _permit = admission.acquire_read(store.limits().reads).await;
            let fetch = Fetch {
                group: &settings.name,
                tenant: &settings.tenant,
                subscription: &settings.subscription,
                partition: settings.partition,
                after,
                up_to,
                max_events,
                max_bytes: BATCH_BYTES,
            };
            let overtaken = if overtakes {
                store.fetch_overtaking(fetch, safe, max_ranges).await?
            } else {
                let fetched = if is_alone {
                    read_alone(&**store, fetch).await?
                } else {
                    store.fetch(fetch).await?
                };
                OvertakingFetch { fetched, undecided: UndecidedRanges::NONE }
            };
            Ok(Read { overtaken, overtakes })
        }));
    }

    fn fetched(&mut self, read: Result<Read, Unread>) {
        match read {
            Ok(Read { overtaken, overtakes }) => {
                self.progress.outages.recovered(&self.group().settings.name, Operation::Read);
                if let Some((_, events, _)) = &mut self.last_fetch {
                    *events = overtaken.fetched.events.len();
                }
                let now = self.group().clock.now();
                if !overtakes {
                    self.one_by_one.read();
                    return self.admit(overtaken.fetched, now);
                }
                self.overtake_most = self.overtake_most.saturating_mul(2);
                let schedule = &mut self.shared.lock().schedule;
                if schedule.undecided_ranges() == 0 && !overtaken.undecided.is_empty() {
                    info!(
                        group = %self.group().settings.name,
                        "going on past open transactions; what they commit is delivered late"
                    );
                }
                schedule.admit_overtaken(overtaken, now);
            }
            Err(unread) => {
                self.overtake_most = (self.overtake_most / 2).max(1);
                if let Some(event) = self.one_by_one.failed(&unread) {
                    let (scanned_to, now) = (event.position, self.group().clock.now());
                    let events = vec![self.shared.give_up_reading(event, &unread.why)];
                    return self.admit(Fetched { events, scanned_to }, now);
                }
                let name = &self.group().settings.name;
                let delay = self.progress.outages.failed(name, Operation::Read, &unread.why);
                self.fetch_after = Some(Instant::now() + delay);
            }
        }
    }

    /// Takes events a few at a time, but those of one call together: attempts that end
    /// meanwhile want the lock too.
    fn admit(&self, Fetched { events, scanned_to }: Fetched, now: Timestamp) {
        let at_once = self.group().call_batching().max_size.max(ADMITTED_AT_ONCE);
        let mut events = events.into_iter();
        loop {
            let part: Vec<_> = events.by_ref().take(at_once).collect();
            let last = part.last().filter(|_| events.len() > 0).map(|event| event.position);
            self.shared.lock().schedule.admit_part(part, last.unwrap_or(scanned_to), now);
            if last.is_none() {
                return;
            }
        }
    }

    /// Lets everything run whose time has come; what is parked is read first.
    fn load(&mut self) {
        if self.loading.is_some() || !is_over(self.load_after) {
            return;
        }
        let now = self.group().clock.now();
        let asked = {
            let mut locked = self.shared.lock();
            if locked.schedule.next_due().is_some_and(|due| due <= now) {
                // It may have to be settled first what others did.
                self.shared.wakeup.notify_one();
            }
            locked.schedule.wake(now)
        };
        let Some(asked) = self.asked_now(asked, now) else { return };
        let is_alone = self.load_one_by_one.is_on();
        let shared = Arc::clone(&self.shared);
        self.loading = Some(BackgroundCall::spawn(async move {
            let GroupLoop { settings, store, admission, .. } = &shared.group;
            let _permit = admission.acquire_read(store.limits().reads).await;
            let answer = match asked.as_slice() {
                [position] if is_alone => {
                    let all = Subscription::all();
                    let fetch = Fetch {
                        group: &settings.name,
                        tenant: &settings.tenant,
                        subscription: &all,
                        partition: None,
                        after: Position(position.0 - 1),
                        up_to: *position,
                        max_events: 1,
                        max_bytes: BATCH_BYTES,
                    };
                    read_alone(&**store, fetch).await.map(|fetched| Found {
                        events: fetched.events.into_iter().map(Arc::unwrap_or_clone).collect(),
                        looked_to: *position,
                    })
                }
                _ => {
                    let found = store.fetch_at(&settings.name, &asked, BATCH_BYTES).await;
                    found.map_err(Unread::from)
                }
            };
            Loaded { asked, answer }
        }));
    }

    /// Which of the parked events that are due are read now. Of those that are too large
    /// to be read, what is known is taken.
    fn asked_now(&mut self, mut asked: Vec<Position>, now: Timestamp) -> Option<Vec<Position>> {
        let shared = Arc::clone(&self.shared);
        asked.retain(|position| match shared.too_large.known(*position) {
            Some(event) => {
                shared.lock().schedule.loaded(&[*position], vec![event], now);
                false
            }
            None => true,
        });
        asked.sort_unstable();
        let schedule = &mut shared.lock().schedule;
        let is_full = self.loads_in_parts && schedule.loaded_and_waiting() > asked.len();
        let at_most = if is_full {
            0
        } else if self.load_one_by_one.is_on() {
            1
        } else {
            usize::MAX
        };
        let later = asked.split_off(at_most.min(asked.len()));
        if !later.is_empty() {
            schedule.not_loaded(&later, after(now, NEXT_PART));
        }
        (!asked.is_empty()).then_some(asked)
    }

    fn loaded(&mut self, Loaded { mut asked, answer }: Loaded) {
        let shared = Arc::clone(&self.shared);
        let (name, now) = (&shared.group.settings.name, shared.group.clock.now());
        match answer {
            Ok(Found { events, looked_to }) => {
                self.progress.outages.recovered(name, Operation::Read);
                self.load_one_by_one.read();
                let is_looked_at = |position: &Position| *position <= looked_to;
                let later = asked.split_off(asked.partition_point(is_looked_at));
                self.loads_in_parts = !later.is_empty();
                let schedule = &mut shared.lock().schedule;
                schedule.not_loaded(&later, after(now, NEXT_PART));
                let missing = schedule.loaded(&asked, events, now);
                for position in missing {
                    error!(
                        group = %name,
                        position = position.0,
                        "the log does not have an event that is to be redelivered: was it removed by hand? It stays parked"
                    );
                }
            }
            Err(unread) => {
                if let Some(event) = self.load_one_by_one.failed(&unread) {
                    let event = shared.give_up_reading(event, &unread.why);
                    let events = vec![Arc::unwrap_or_clone(event)];
                    shared.lock().schedule.loaded(&asked, events, now);
                    return;
                }
                let delay = self.progress.outages.failed(name, Operation::Read, &unread.why);
                shared.lock().schedule.not_loaded(&asked, after(now, delay));
                self.load_after = Some(Instant::now() + delay);
            }
        }
    }

    /// Has the component loaded that an event waits for, while nothing is held that
    /// others wait for: one after the other, because only a few are kept.
    fn prepare(&mut self) {
        if self.preparing.is_some() || !is_over(self.prepare_after) {
            return;
        }
        let Some(digest) = self.shared.wanted_component() else { return };
        let handler = Arc::clone(&self.group().handler);
        self.preparing = Some(BackgroundCall::spawn(async move {
            let answer = handler.prepare(&digest).await;
            Prepared { digest, answer }
        }));
    }

    fn prepared(&mut self, Prepared { digest, answer }: Prepared) {
        let name = &self.shared.group.settings.name;
        match answer {
            Ok(()) => {
                self.progress.outages.recovered(name, Operation::Prepare);
                self.shared.component_is_ready(&digest);
            }
            Err(why) => {
                let delay = self.progress.outages.failed(name, Operation::Prepare, &why);
                self.prepare_after = Some(Instant::now() + delay);
            }
        }
    }

    /// Has as many tasks make attempts as there are events to handle. False when
    /// there is something else to look at first.
    async fn dispatch(&mut self, signals: &mut Signals) -> Result<bool, End> {
        // Whoever cannot commit does not go on.
        if self.progress.outages.is_failing(Operation::Settle) {
            return Ok(true);
        }
        let ready = self.shared.may_run();
        let free = self.group().settings.concurrency.saturating_sub(self.tasks.len());
        let mut wanted = ready.min(free);
        if wanted > 0 && !self.progress.work_recorded {
            // It names the last settlement.
            if self.settling.is_some() {
                return Ok(true);
            }
            let mut permit = self.group().admission.permit();
            if !signals.let_begin(self.progress.epoch, permit.ready(None)).await
                || !self.record_work_started(signals).await?
            {
                return Ok(false);
            }
            self.spawn(permit);
            wanted -= 1;
        }
        for _ in 0..wanted {
            let permit = self.group().admission.permit();
            self.spawn(permit);
        }
        Ok(true)
    }

    fn spawn(&mut self, permit: Permit) {
        let worker = self.worker();
        let attempts = Arc::clone(&self.shared).make_attempts(permit, worker);
        self.tasks.push(self.group().admission.spawn(attempts));
    }

    fn worker(&mut self) -> Box<dyn Worker> {
        self.progress.idle.pop().unwrap_or_else(|| self.group().handler.worker())
    }

    /// Before the first attempt of the leadership: leaves a trace, so that
    /// leaderships that end in a crash can be counted. Whether that worked.
    async fn record_work_started(&mut self, signals: &mut Signals) -> Result<bool, End> {
        if self.progress.work_recorded {
            return Ok(true);
        }
        if signals.leadership.is_lost() {
            return Err(End::Lost);
        }
        let GroupLoop { settings, store, .. } = &self.shared.group;
        let begin = store.record_work_started(
            &settings.name,
            self.progress.epoch,
            self.progress.settlement_number,
        );
        let Some(begun) = signals.answer(begin).await else { return Ok(false) };
        match begun {
            Ok(Settled::Committed) => {
                self.progress.outages.recovered(&settings.name, Operation::RecordWork);
                self.progress.work_recorded = true;
                Ok(true)
            }
            Ok(Settled::NotLeader) => Err(End::Superseded),
            Err(error) => {
                let delay =
                    self.progress.outages.failed(&settings.name, Operation::RecordWork, &error);
                signals.changed(Some(delay)).await;
                Ok(false)
            }
        }
    }

    /// Handles one event and settles it, before anything else begins. Whether
    /// there was one.
    async fn one_event(&mut self, signals: &mut Signals) -> Result<bool, End> {
        if self.shared.lock().schedule.may_run() == 0 {
            return Ok(false);
        }
        let mut permit = self.group().admission.permit();
        if !signals.let_begin(self.progress.epoch, permit.ready(None)).await
            || !self.record_work_started(signals).await?
        {
            return Ok(true);
        }
        let next = {
            let mut locked = self.shared.lock();
            self.shared.next_ready(&mut locked)
        };
        let Some(job) = next else { return Ok(false) };
        let mut interrupts = Interrupts::new(signals);
        let mut guard = None;
        if self.progress.crash_guard_left > 0 && !job.died {
            match self.record_attempt_started(&job, &mut interrupts).await? {
                Some(permit) => guard = Some(permit),
                None => {
                    self.shared.lock().schedule.cancel(job);
                    self.settle_one(signals).await?;
                    return Ok(true);
                }
            }
        }
        let mut worker = self.worker();
        {
            let mut locked = self.shared.lock();
            (locked.last_verdict, locked.is_alone) = (None, true);
        }
        let job = Arc::new(job);
        let mut attempting = {
            let (shared, job) = (Arc::clone(&self.shared), Arc::clone(&job));
            self.group().admission.spawn(async move {
                let attempted = shared.attempt_alone(&job, &mut worker, &mut permit).await;
                (attempted, worker, permit)
            })
        };
        let attempted = tokio::select! {
            biased;
            attempted = &mut attempting => attempted,
            interrupt = interrupts.next() => {
                attempting.cancel().await;
                if interrupt == Interrupt::Lost {
                    return Err(End::Lost);
                }
                None
            }
        };
        // Nobody else has it any more.
        let Some(job) = Arc::into_inner(job) else { return Err(End::Stopped) };
        match attempted {
            Some((attempted, mut worker, permit)) => {
                let quota = self.group().admission.quota();
                let concluding = self.shared.conclude(job, attempted, &quota, &mut worker);
                match interrupts.answer(concluding).await {
                    Ok(()) => {
                        worker.end_batch();
                        if !permit.holds_memory() {
                            self.progress.idle.push(worker);
                        }
                    }
                    Err(Interrupt::Lost) => return Err(End::Lost),
                    Err(Interrupt::Now) => {}
                }
            }
            None => {
                debug!(group = %self.group().settings.name, "interrupted");
                self.shared.lock().schedule.cancel(job);
            }
        }
        self.shared.lock().is_alone = false;
        self.settle_one(signals).await?;
        drop(guard);
        if self.progress.tripped.is_some() {
            let verdict = {
                let mut locked = self.shared.lock();
                locked.halt.take_if(|halt| matches!(halt, Halt::Tripped(_)));
                locked.last_verdict.take()
            };
            if let Some(verdict) = verdict {
                self.probed(verdict);
            }
        }
        Ok(true)
    }

    /// Settles what one event came to; a mark must not outlive its attempt, or the
    /// next crash would count it.
    async fn settle_one(&mut self, signals: &Signals) -> Result<(), End> {
        let has_work = self.progress.marked || self.shared.lock().schedule.has_work();
        if !has_work {
            return Ok(());
        }
        let cut = self.cut(true);
        let done = cut.done;
        let committed = self.commit(cut, signals).answer().await;
        self.committed(committed)?;
        // One that waits for its next attempt may still kill the process.
        self.progress.crash_guard_left = self.progress.crash_guard_left.saturating_sub(done);
        self.progress.refusal_search_left = self.progress.refusal_search_left.saturating_sub(done);
        Ok(())
    }

    /// Before an event that may kill the process: waits for the one permit and
    /// records the attempt, so that a crash leaves a trace. `None` when there is
    /// something more urgent.
    async fn record_attempt_started(
        &mut self,
        job: &Job,
        interrupts: &mut Interrupts,
    ) -> Result<Option<OwnedSemaphorePermit>, End> {
        let GroupLoop { settings, store, crash_guard, .. } = &self.shared.group;
        let permit = tokio::select! {
            biased;
            interrupt = interrupts.next() => {
                return if interrupt == Interrupt::Lost { Err(End::Lost) } else { Ok(None) };
            }
            permit = Arc::clone(crash_guard).acquire_owned() => permit,
        };
        // Nobody closes the semaphore; if somebody did, nothing would be marked.
        let Ok(permit) = permit else { return Ok(None) };
        if interrupts.is_lost() {
            return Err(End::Lost);
        }
        let mark = Mark { position: job.event.position, attempt: job.attempt };
        self.progress.marked = true;
        let begin = store.record_attempt_started(
            &settings.name,
            self.progress.epoch,
            self.progress.settlement_number,
            mark,
        );
        let begun = match interrupts.answer(begin).await {
            Ok(begun) => begun,
            Err(Interrupt::Lost) => return Err(End::Lost),
            Err(Interrupt::Now) => return Ok(None),
        };
        match begun {
            Ok(Settled::Committed) => {
                self.progress.outages.recovered(&settings.name, Operation::RecordAttempt);
                Ok(Some(permit))
            }
            Ok(Settled::NotLeader) => Err(End::Superseded),
            Err(error) => {
                let delay =
                    self.progress.outages.failed(&settings.name, Operation::RecordAttempt, &error);
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

    /// Begins to commit what is done, if it is time. `all`: nothing more is begun
    /// before. `passes`: also a cursor that only passed events of others.
    fn settle(&mut self, all: bool, passes: bool, signals: &Signals) {
        if self.settling.is_some() {
            return;
        }
        let batch = self.group().settings.batch;
        let (over_gaps, is_waited_for) = {
            let locked = self.shared.lock();
            let schedule = &locked.schedule;
            let done = schedule.done_so_far();
            let ends = all && self.tasks.is_empty();
            let is_late = locked.done_since.is_some_and(|since| since.elapsed() >= batch.max_time);
            let is_time = ends
                || is_late
                || self.shared.is_at_rest()
                || schedule.ready() == 0
                || done >= batch.max_events
                || locked.is_waited_for
                || schedule.has_overtaking()
                || schedule.done_bytes() >= BATCH_BYTES;
            let over_gaps = ends || is_late || locked.is_waited_for;
            let parks_gap = over_gaps && schedule.has_gaps();
            let passed = schedule.passes()
                && (passes || self.progress.last_commit.elapsed() >= self.group().pass_interval);
            let is_worth = is_time && (schedule.has_work() || parks_gap) || passed;
            let is_marked = ends && self.progress.marked;
            let is_waited_for = locked.is_waited_for;
            if !is_worth && !is_marked {
                drop(locked);
                if is_waited_for {
                    self.no_settlement_possible();
                }
                return;
            }
            (over_gaps, is_waited_for)
        };
        let cut = self.cut(over_gaps);
        if !cut.has_work && cut.position == self.progress.cursor && !self.progress.marked {
            if is_waited_for {
                self.no_settlement_possible();
            }
            return;
        }
        self.shared.lock().is_settling = true;
        self.settling = Some(self.commit(cut, signals));
    }

    /// Whoever waits for a settlement is told that there is none.
    fn no_settlement_possible(&self) {
        self.shared.lock().is_waited_for = false;
        self.shared.announce_settlement(false);
    }

    fn cut(&self, over_gaps: bool) -> Cut {
        let mut locked = self.shared.lock();
        let most = self.group().settings.batch.max_events;
        let cut = locked.schedule.cut(most, over_gaps);
        let is_left = locked.schedule.done_so_far() > 0 || locked.schedule.has_gaps();
        locked.done_since = is_left.then(Instant::now);
        locked.is_waited_for = false;
        let written =
            cut.writes().map(Uncommitted::of).fold(Uncommitted::default(), Uncommitted::plus);
        locked.in_flight = InFlight {
            dead_letters: cut.dead_letters(),
            dead_letter_bytes: cut.dead_letter_bytes(),
            written,
        };
        locked.unsettled = locked.unsettled.minus(written);
        cut
    }

    fn commit(&self, mut cut: Cut, signals: &Signals) -> BackgroundCall<Committed> {
        let mut settlement = Settlement {
            group: self.group().settings.name.clone(),
            epoch: self.progress.epoch,
            number: self.progress.settlement_number + 1,
            position: self.progress.cursor,
            head: None,
            mark: None,
            dead_letters: Vec::new(),
            emits: Vec::new(),
            state: Vec::new(),
            failures: with_failures(&self.progress.failures, cut.failed()),
            redeliveries: Vec::new(),
            redelivered: Vec::new(),
            deferred: Vec::new(),
            undecided: None,
        };
        let retired = std::mem::take(&mut cut.retired);
        let only = cut.only();
        let written = cut.fill(&mut settlement);
        let (shared, signals) = (Arc::clone(&self.shared), signals.clone());
        BackgroundCall::spawn(async move {
            let commit = shared.group.commit(&settlement, &shared.outages, &signals);
            // While the database commits.
            let (outcome, ()) = tokio::join!(commit, async { shared.group.store.recycle(retired) });
            Committed { settlement, written, only, outcome }
        })
    }

    fn committed(&mut self, committed: Committed) -> Result<(), End> {
        let Committed { settlement, written, only, outcome } = committed;
        match outcome {
            Ok(()) => {}
            Err(NotCommitted::Ended(end)) => return Err(end),
            Err(NotCommitted::Refused(why)) => {
                let group = &self.group().settings.name;
                match only {
                    Some(position) => warn!(
                        %group,
                        position = position.0,
                        "the database refuses what the event came to: {why}"
                    ),
                    None => warn!(
                        %group,
                        "the database refuses what several events came to: they are handled and committed one at a time, to find the one that is the cause: {why}"
                    ),
                }
                self.shared.lock().refused.settlement(only, why);
                // What was done so far is worth nothing.
                return Err(End::Superseded);
            }
        }
        self.progress.marked = false;
        self.progress.settlement_number = settlement.number;
        self.progress.cursor = settlement.position;
        self.progress.head = settlement.head;
        self.progress.mark = settlement.mark;
        if let Some(failures) = settlement.failures {
            self.progress.failures = failures;
        }
        if let Some(overtaking) = settlement.undecided {
            self.progress.undecided = overtaking.undecided;
        }
        self.progress.last_commit = Instant::now();
        let mut locked = self.shared.lock();
        if locked.refused.committed() {
            // The one that was looked for.
            self.progress.refusal_search_left = 0;
        }
        locked.schedule.committed(written);
        locked.in_flight = InFlight::default();
        locked.is_settling = false;
        // An attempt that takes the lock next knows of it, and one that waited has it.
        locked.is_waited_for = false;
        self.shared.announce_settlement(true);
        drop(locked);
        Ok(())
    }

    /// Does what the end of all attempts was for.
    async fn after_halt(&mut self, signals: &mut Signals) -> Result<(), End> {
        let halt = self.shared.lock().halt.take();
        match halt {
            Some(Halt::NotRun(why)) => {
                let delay =
                    self.progress.outages.failed(&self.group().settings.name, Operation::Run, &why);
                self.run_after = Some(Instant::now() + delay);
                Ok(())
            }
            Some(Halt::Tripped(why)) => self.trip(why),
            Some(Halt::QuotaExceeded(no_room)) => {
                let reason = self.quota_reason(no_room);
                self.pause(&reason, signals).await;
                Ok(())
            }
            Some(Halt::Unstorable(reason)) => {
                self.pause(&reason, signals).await;
                Ok(())
            }
            None => Ok(()),
        }
    }
}
