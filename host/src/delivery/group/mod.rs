//! The loop of one group: fetch, handle, settle, all three at once.
//!
//! [`GroupLoop::lead`] runs for one leadership, from the epoch it was given to
//! its end. What it promises:
//! - events are handed to the handler in the group's order, and the cursor passes
//!   one only together with what the attempt did, or with its redelivery;
//! - settlements are committed one after the other, and after one that cannot be
//!   committed none is, and no attempt begins;
//! - nothing is committed after the leadership is lost, and an attempt that was
//!   interrupted, or that could not be run, counts for nothing;
//! - an unavailable database is waited for, with backoff, and said once;
//! - what the database refuses to store costs the event an attempt of which it is, and no
//!   other anything;
//! - where the group goes on past open transactions, what they commit is found and
//!   taken over in a settlement, once, whatever the settings say by then.
//!
//! Who leads is decided elsewhere ([`crate::leadership`]); which events may run and
//! be settled in [`super::ordering`]; what becomes of one in [`super::settlement`].
//! `leader` is the loop itself and `decide` what it does next, `reader` reads the log, `late` finds what open transactions committed late, `due`
//! what was deferred and is due, `attempts` makes the attempts, `batch_call` those of several
//! events in one call, `settler` cuts settlements and
//! `commit` commits them, `one_at_a_time` handles events by themselves,
//! `refused` finds the event for which a settlement is refused, `large` reads what is too
//! large to be read with others.

mod attempts;
mod background;
mod batch_call;
mod commit;
mod component;
mod decide;
mod due;
mod large;
mod late;
mod leader;
mod one_at_a_time;
mod outages;
mod quota;
mod reader;
mod refused;
mod settler;
mod shared;
mod signals;
#[cfg(test)]
mod tests;
mod trip;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tracing::warn;

use leader::Leader;
use outages::{Operation, Outages};
use quota::{KnownKeys, KnownState};
use refused::Refused;
use shared::Shared;
use trip::{TripChange, Tripped};

use super::admission::GroupAdmission;
use super::breaker::{Breaker, BreakerSettings};
use super::ordering::{CallBatching, Ordering, Schedule};
use crate::clock::Clock;
use crate::event::{Attempt, Epoch, GroupName, Partition, Position, Tenant};
use crate::handler::{Handler, Worker};
use crate::retry::RetryPolicy;
use crate::store::{
    FailureCounts, GroupState, Head, Leadership, Mark, Redelivery, Store, UndecidedRanges,
};
use crate::subscription::Subscription;
use crate::troubles::Troubles;

pub use signals::{Awaited, Control, LAST_ANSWER, Signals};

/// After so many leaderships in a row without progress a group goes on one event
/// at a time, and a crash counts as an attempt.
pub const LEADERSHIPS_WITHOUT_PROGRESS: u32 = 2;

/// What the events of a batch take, in bytes, after which no further one is fetched; and
/// what they came to, after which it is settled.
const BATCH_BYTES: usize = 16 << 20;

/// How often a cursor that only passed events of others is committed, usually.
pub const PASS_INTERVAL: Duration = Duration::from_secs(1);

/// How large a settlement gets, and how long it is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSettings {
    /// At most so many events. At least 1.
    pub max_events: usize,
    /// What is done is settled after so long at the latest.
    pub max_time: Duration,
    /// At most so many events go into one call of a handler that takes batches.
    /// Without, [`CALL_SIZE`].
    pub size: Option<usize>,
    /// So long an event waits for others to come that go into the same call.
    pub wait: Duration,
}

/// Events in one call of a handler that takes batches, where nobody says how many.
pub const CALL_SIZE: usize = 100;

impl Default for BatchSettings {
    fn default() -> Self {
        let max_time = Duration::from_millis(500);
        Self { max_events: 1_000, max_time, size: None, wait: Duration::ZERO }
    }
}

impl BatchSettings {
    /// How many events go into one call of a handler that takes batches.
    #[must_use]
    pub fn call_batching(&self) -> CallBatching {
        let size = self.size.unwrap_or(CALL_SIZE).min(self.max_events).max(1);
        CallBatching { max_size: size, linger: self.wait }
    }
}

/// What a group is, for delivery.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSettings {
    /// Its name, or that of its partition.
    pub name: GroupName,
    /// Which part of its events this is about; `None` for all.
    pub partition: Option<Partition>,
    /// Whose events it receives.
    pub tenant: Tenant,
    /// Which of them.
    pub subscription: Subscription,
    /// In which order.
    pub ordering: Ordering,
    /// Attempts at once. At least 1; 1 where the order is total.
    pub concurrency: usize,
    /// Events that wait for their next attempt, or behind one that does, while
    /// others pass; with so many the group reads no further.
    pub max_parked: usize,
    /// Transactions that have been about to publish for longer than this are not
    /// waited for; `None` where all are.
    pub overtake: Option<Duration>,
    /// When to try again, and when to give up.
    pub retry: RetryPolicy,
    /// How large a batch gets.
    pub batch: BatchSettings,
    /// When it trips, because the handler fails everything.
    pub breaker: BreakerSettings,
}

impl GroupSettings {
    /// The group, whose name its handler knows and its state has, whichever part of
    /// it this is about.
    #[must_use]
    pub fn group(&self) -> GroupName {
        self.name.group()
    }
}

/// The log is read on while fewer batches than so many wait or are handled. With two
/// there is often no room to read for while one is handled, and a core is idle.
const BATCHES_AT_ONCE: usize = 3;

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
#[derive(Clone)]
pub struct GroupLoop {
    /// What the group is.
    pub settings: GroupSettings,
    /// The database.
    pub store: Arc<dyn Store>,
    /// The code.
    pub handler: Arc<dyn Handler>,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// One permit, shared by all groups of the process: of those that may be killing
    /// the process, only one handles an event at any time, so that a crash is not
    /// counted against all that were running.
    pub crash_guard: Arc<Semaphore>,
    /// The group's admission: an attempt needs a permit of it.
    pub admission: GroupAdmission,
    /// Told when a settlement published events.
    pub published: Arc<Notify>,
    /// A cursor that only passed events of others is committed this often.
    pub pass_interval: Duration,
    /// Where all troubles of the host are told of.
    pub troubles: Troubles,
}

/// The progress of one leadership, whichever versions of the group serve it.
pub struct Progress {
    epoch: Epoch,
    /// Whether the group was to be run when the leadership began.
    initial_state: GroupState,
    /// The number of the group's last settlement.
    settlement_number: i64,
    /// The cursor, as it is committed.
    cursor: Position,
    /// The head, as it is committed.
    head: Option<Head>,
    /// The mark that the leadership began with, until its death is counted.
    mark: Option<Mark>,
    /// The redeliveries, as they are committed; `None` before they were read.
    redeliveries: Option<Vec<Redelivery>>,
    /// What the cursor has passed and what may still appear, as it is committed.
    undecided: UndecidedRanges,
    /// How often attempts have failed, as it is committed.
    failures: FailureCounts,
    /// So many events are still handled one at a time, because the process may
    /// have died of one of them.
    crash_guard_left: usize,
    /// So many events are still handled and settled one at a time, because the database
    /// refused a settlement with several.
    refusal_search_left: usize,
    /// What is known of settlements that were refused.
    refused: Refused,
    /// The leadership counts as fruitless until its first settlement.
    work_recorded: bool,
    /// An attempt may be recorded as begun.
    marked: bool,
    last_commit: Instant,
    /// How many events are fetched at once.
    fetch_size: usize,
    /// What the tenant's state comes to.
    known_state: Option<KnownState>,
    /// How many keys the group's state has.
    known_keys: Option<KnownKeys>,
    /// Workers that make no attempt now.
    idle: Vec<Box<dyn Worker>>,
    outages: Arc<Outages>,
    breaker: Breaker,
    tripped: Option<Tripped>,
    /// What the group's row does not say yet.
    unrecorded: Option<TripChange>,
    /// What was said that holds the group back.
    held_back: Option<HeldBack>,
}

/// What keeps a group from reading on though it could.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldBack {
    /// As many events are parked as may be.
    Parked,
    /// As much is undecided of what was passed as may be.
    Undecided,
}

impl Progress {
    /// Whether the version that runs took over from another and has not
    /// succeeded yet.
    #[must_use]
    pub fn is_unproven(&self) -> bool {
        self.breaker.is_unproven()
    }

    /// The events that have failed and wait for their next attempt.
    fn failed(&self) -> HashSet<Position> {
        let head = self.head.iter().filter(|head| head.attempt > Attempt::FIRST);
        let redeliveries = self.redeliveries.iter().flatten();
        let redeliveries = redeliveries.filter(|one| one.attempt > Attempt::FIRST);
        head.map(|head| head.position).chain(redeliveries.map(|one| one.position)).collect()
    }

    /// Whether the group is to be run, as its row said last: when the leadership
    /// began, or since.
    fn state(&self, control: Control) -> GroupState {
        if control.epoch < self.epoch { self.initial_state } else { control.state }
    }
}

impl GroupLoop {
    /// How many events go into one call.
    fn call_batching(&self) -> CallBatching {
        if self.handler.takes_batches() {
            self.settings.batch.call_batching()
        } else {
            CallBatching::default()
        }
    }

    /// Events that may have begun and not be settled when a process dies: those of
    /// the settlement on its way, and those that were read.
    fn most_under_way(&self) -> usize {
        let GroupSettings { batch, concurrency, .. } = &self.settings;
        let running = concurrency.saturating_mul(self.call_batching().max_size);
        batch.max_events.saturating_mul(BATCHES_AT_ONCE + 2).saturating_add(running)
    }

    /// What a new leader begins with.
    #[must_use]
    pub fn begin_leading(&self, leadership: Leadership) -> Progress {
        let mut progress = Progress {
            epoch: leadership.epoch,
            initial_state: leadership.state,
            settlement_number: leadership.settled,
            cursor: leadership.position,
            head: leadership.head,
            mark: leadership.mark,
            redeliveries: None,
            undecided: leadership.undecided,
            failures: leadership.failures,
            crash_guard_left: 0,
            refusal_search_left: 0,
            refused: Refused::default(),
            work_recorded: false,
            marked: false,
            last_commit: Instant::now(),
            fetch_size: self.settings.batch.max_events,
            known_state: None,
            known_keys: None,
            idle: Vec::new(),
            outages: Arc::new(Outages::of(&self.settings.name, &self.troubles)),
            breaker: Breaker::default(),
            tripped: None,
            unrecorded: None,
            held_back: None,
        };
        if leadership.fruitless >= LEADERSHIPS_WITHOUT_PROGRESS {
            progress.crash_guard_left = self.most_under_way();
            warn!(
                group = %self.settings.name,
                leaderships = leadership.fruitless,
                "no progress over several leaderships: one event at a time, and a crash counts as an attempt"
            );
        }
        if leadership.state == GroupState::Tripped {
            progress.tripped = Some(self.tripped(0));
        }
        if progress.mark.is_some() {
            // The process died in a marked attempt: what comes next is marked too,
            // or the next death of the same event would not be counted.
            progress.crash_guard_left = self.most_under_way();
        }
        progress
    }

    /// Goes on where a version with another component was replaced. Whether this
    /// one works is to be seen.
    pub fn swap_component(&self, progress: &mut Progress) {
        self.resume(progress);
        progress.breaker = Breaker::after_swap(progress.failed());
    }

    /// Goes on where a version with the same component was replaced, or one that
    /// failed everything. A group that tripped tries it at once.
    pub fn resume(&self, progress: &mut Progress) {
        progress.idle.clear();
        progress.outages.recovered(&self.settings.name, Operation::Run);
        progress.breaker = Breaker::default();
        if let Some(tripped) = &mut progress.tripped {
            tripped.due = Instant::now();
        }
    }

    /// Leads the group until it is stopped, replaced, or no longer the leader.
    pub async fn lead(&self, progress: &mut Progress, mut signals: Signals) -> End {
        loop {
            let end = self.lead_from_what_is_committed(progress, &mut signals).await;
            if !self.begins_again(progress) {
                return end;
            }
        }
    }

    async fn lead_from_what_is_committed(
        &self,
        progress: &mut Progress,
        signals: &mut Signals,
    ) -> End {
        let redeliveries = match self.redeliveries(progress, signals).await {
            Ok(redeliveries) => redeliveries,
            Err(end) => return end,
        };
        let schedule = Schedule::new(
            self.settings.ordering,
            self.settings.max_parked,
            progress.cursor,
            progress.head.clone(),
            progress.mark,
            redeliveries,
            self.clock.now(),
        )
        .with_undecided(progress.undecided.clone())
        .with_call_batching(self.call_batching());
        let shared = Arc::new(Shared::new(self.clone(), schedule, progress));
        let end = Leader::new(Arc::clone(&shared), progress, signals).run(signals).await;
        // Whoever ends otherwise leaves nothing to go on with.
        if let Some(shared) = Arc::into_inner(shared) {
            shared.return_to(progress);
        }
        end
    }

    /// The redeliveries as they are committed.
    async fn redeliveries(
        &self,
        progress: &mut Progress,
        signals: &mut Signals,
    ) -> Result<Vec<Redelivery>, End> {
        loop {
            if let Some(redeliveries) = progress.redeliveries.take() {
                return Ok(redeliveries);
            }
            if signals.leadership.is_lost() {
                return Err(End::Lost);
            }
            if signals.stop.is_cancelled() {
                return Err(End::Stopped);
            }
            if signals.replaced.is_cancelled() {
                return Err(End::Replaced);
            }
            if signals.control.borrow_and_update().epoch > progress.epoch {
                return Err(End::Superseded);
            }
            let reading = self.store.redeliveries(&self.settings.name);
            match signals.answer(reading).await {
                Some(Ok(redeliveries)) => {
                    progress.outages.recovered(&self.settings.name, Operation::Read);
                    progress.redeliveries = Some(redeliveries);
                }
                Some(Err(error)) => {
                    let delay =
                        progress.outages.failed(&self.settings.name, Operation::Read, &error);
                    signals.changed(Some(delay)).await;
                }
                None => {}
            }
        }
    }
}

/// Number of events to fetch next. Without this a handler that does a few events in the time
/// of a batch would have a thousand read for it, at the cost of all groups.
fn next_fetch_size(before: usize, fetched: usize, done: usize, most: usize) -> usize {
    const LEAST: usize = 16;
    if done < fetched {
        done.saturating_mul(2).max(LEAST).min(before)
    } else if fetched == before {
        before.saturating_mul(2).min(most)
    } else {
        before
    }
}
