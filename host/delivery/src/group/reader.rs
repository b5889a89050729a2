//! Reads events for the schedule: the log, and the parked events that are due.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use tracing::{error, info};

use super::background::{BackgroundCall, is_over};
use super::large::{OneByOne, Unread, read_alone};
use super::late::MAX_UNDECIDED_RANGES;
use super::outages::Operation;
use super::shared::Shared;
use super::{BATCH_BYTES, GroupLoop, next_fetch_size};
use event_host_core::clock::after;
use event_host_core::event::Position;
use event_host_core::subscription::Subscription;
use event_host_metrics::StoreOperation;
use event_host_store::{Fetch, Fetched, Found, OvertakingFetch, UndecidedRanges};

/// Delay before parked events are read that were due with others, and for which there was no
/// room.
const NEXT_PART: Duration = Duration::from_millis(100);

/// Number of events that are admitted under one lock.
const ADMITTED_AT_ONCE: usize = 32;

/// Reads the log on, and the parked events that are due. Only the reader writes its fields.
pub(super) struct Reader {
    shared: Arc<Shared>,
    /// The part of the log that is read now.
    pub(super) fetching: Option<BackgroundCall<Result<Read, Unread>>>,
    /// The parked events that are read now.
    pub(super) loading: Option<BackgroundCall<Loaded>>,
    /// Whether events of the log are read one at a time.
    reads_singly: OneByOne,
    /// Whether parked events are.
    loads_singly: OneByOne,
    /// Maximum number of events to read past open transactions.
    overtake_most: usize,
    /// More parked events are due than the store reads at once, for their size.
    loads_in_parts: bool,
    /// No read of the log before this, because the last one failed.
    pub(super) fetch_after: Option<Instant>,
    /// No read of parked events before this, because the last one failed.
    pub(super) load_after: Option<Instant>,
    /// When the log was last read, how many events came, and how many events had been
    /// handled before.
    last_fetch: Option<(Instant, usize, u64)>,
}

/// Parked events that are read from the log.
pub(super) struct Loaded {
    asked: Vec<Position>,
    answer: Result<Found, Unread>,
}

/// A part of the log that was read.
pub(super) struct Read {
    overtaken: OvertakingFetch,
    /// It was read past the safe position.
    overtakes: bool,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            fetching: None,
            loading: None,
            reads_singly: OneByOne::default(),
            loads_singly: OneByOne::default(),
            overtake_most: usize::MAX,
            loads_in_parts: false,
            fetch_after: None,
            load_after: None,
            last_fetch: None,
        }
    }

    /// Aborts what is read now, and waits until nothing of it runs.
    pub(super) async fn end(&mut self) {
        BackgroundCall::end(self.fetching.take()).await;
        BackgroundCall::end(self.loading.take()).await;
    }

    /// Reads the log on where the schedule has room: up to the safe position, and past it
    /// where only transactions are open that the group does not wait for.
    pub(super) fn fetch(&mut self, safe: Position, overtake_limit: Position) {
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
        let (now, batch) = (Instant::now(), self.shared.group.settings.batch);
        if let Some((at, fetched, handled)) = self.last_fetch {
            let elapsed = (now - at).max(Duration::from_millis(1));
            let done = usize::try_from(locked.concluded - handled).unwrap_or(usize::MAX);
            let done = if elapsed <= batch.max_time {
                fetched
            } else {
                // In the time of one batch.
                (done as f64 * batch.max_time.as_secs_f64() / elapsed.as_secs_f64()) as usize
            };
            locked.fetch_size = next_fetch_size(locked.fetch_size, fetched, done, batch.max_events);
        }
        self.last_fetch = Some((now, 0, locked.concluded));
        // A batch call takes the events that are ready: a slow handler's calls are to be as
        // large.
        let max_events = locked.fetch_size.max(self.shared.group.call_batching().max_size);
        drop(locked);
        if overtakes {
            // Halved after a failure: an overtaking fetch comes whole, or not at all.
            self.overtake_most = self.overtake_most.min(max_events);
        }
        let max_events = if overtakes { self.overtake_most } else { max_events };
        let is_alone = self.reads_singly.is_on();
        let shared = Arc::clone(&self.shared);
        self.fetching = Some(BackgroundCall::spawn(async move {
            let GroupLoop { settings, store, admission, metrics, .. } = &shared.group;
            let began = Instant::now();
            let _permit = admission.acquire_read(store.limits().reads).await;
            let called = Instant::now();
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
                store.fetch_overtaking(fetch, safe, max_ranges).await.map_err(Unread::from)
            } else {
                let fetched = if is_alone {
                    read_alone(&**store, fetch).await
                } else {
                    store.fetch(fetch).await.map_err(Unread::from)
                };
                fetched.map(|fetched| OvertakingFetch { fetched, undecided: UndecidedRanges::NONE })
            };
            metrics.store.called(StoreOperation::Fetch, called.elapsed(), overtaken.is_ok());
            metrics.fetch_duration.observe(began.elapsed());
            Ok(Read { overtaken: overtaken?, overtakes })
        }));
    }

    pub(super) fn fetched(&mut self, read: Result<Read, Unread>) {
        match read {
            Ok(Read { overtaken, overtakes }) => {
                self.shared.outages.recovered(&self.shared.group.settings.name, Operation::Read);
                if let Some((_, events, _)) = &mut self.last_fetch {
                    *events = overtaken.fetched.events.len();
                }
                let now = self.shared.group.clock.now();
                self.count(&overtaken.fetched, now);
                if !overtakes {
                    self.reads_singly.read();
                    return self.admit(overtaken.fetched, now);
                }
                self.overtake_most = self.overtake_most.saturating_mul(2);
                let schedule = &mut self.shared.lock().schedule;
                if schedule.undecided_ranges() == 0 && !overtaken.undecided.is_empty() {
                    info!(
                        group = %self.shared.group.settings.name,
                        "going on past open transactions; what they commit is delivered late"
                    );
                }
                schedule.admit_overtaken(overtaken, now);
            }
            Err(unread) => {
                self.overtake_most = (self.overtake_most / 2).max(1);
                if let Some(event) = self.reads_singly.failed(&unread) {
                    let (scanned_to, now) = (event.position, self.shared.group.clock.now());
                    let events = vec![self.shared.give_up_reading(event, &unread.why)];
                    return self.admit(Fetched { events, scanned_to }, now);
                }
                let name = &self.shared.group.settings.name;
                let delay = self.shared.outages.failed(name, Operation::Read, &unread.why);
                self.fetch_after = Some(Instant::now() + delay);
            }
        }
    }

    /// Counts what was read.
    fn count(&self, Fetched { events, .. }: &Fetched, now: Timestamp) {
        let metrics = &self.shared.group.metrics;
        metrics.fetched_events.add_len(events.len());
        if let Some(first) = events.first() {
            let age = now.duration_since(first.event.time);
            // One from the future is as new as can be.
            metrics.event_age.observe(Duration::try_from(age).unwrap_or_default());
        }
    }

    /// Admits 32 events per lock, or one call's events where those are more, because attempts
    /// that end meanwhile need the lock too.
    fn admit(&self, Fetched { events, scanned_to }: Fetched, now: Timestamp) {
        let at_once = self.shared.group.call_batching().max_size.max(ADMITTED_AT_ONCE);
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

    /// Wakes all events whose time has come, and reads the parked ones of them.
    pub(super) fn load(&mut self) {
        if self.loading.is_some() || !is_over(self.load_after) {
            return;
        }
        let now = self.shared.group.clock.now();
        let asked = {
            let mut locked = self.shared.lock();
            if locked.schedule.next_due().is_some_and(|due| due <= now) {
                // Events that others of its lane came to may have to be settled first.
                self.shared.wakeup.notify_one();
            }
            locked.schedule.wake(now)
        };
        let Some(asked) = self.asked_now(asked, now) else { return };
        let is_alone = self.loads_singly.is_on();
        let shared = Arc::clone(&self.shared);
        self.loading = Some(BackgroundCall::spawn(async move {
            let GroupLoop { settings, store, admission, metrics, .. } = &shared.group;
            let _permit = admission.acquire_read(store.limits().reads).await;
            let called = Instant::now();
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
            metrics.store.called(StoreOperation::Fetch, called.elapsed(), answer.is_ok());
            Loaded { asked, answer }
        }));
    }

    /// Which of the due parked events are read now. For those that are too large to be read,
    /// the schedule gets what is known of them.
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
        } else if self.loads_singly.is_on() {
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

    pub(super) fn loaded(&mut self, Loaded { mut asked, answer }: Loaded) {
        let shared = Arc::clone(&self.shared);
        let (name, now) = (&shared.group.settings.name, shared.group.clock.now());
        match answer {
            Ok(Found { events, looked_to }) => {
                self.shared.outages.recovered(name, Operation::Read);
                self.loads_singly.read();
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
                if let Some(event) = self.loads_singly.failed(&unread) {
                    let event = shared.give_up_reading(event, &unread.why);
                    let events = vec![Arc::unwrap_or_clone(event)];
                    shared.lock().schedule.loaded(&asked, events, now);
                    return;
                }
                let delay = self.shared.outages.failed(name, Operation::Read, &unread.why);
                shared.lock().schedule.not_loaded(&asked, after(now, delay));
                self.load_after = Some(Instant::now() + delay);
            }
        }
    }
}
