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
//! - an unavailable store is waited for, with backoff, and logged once;
//! - what the store refuses costs its event an attempt, and no other event anything;
//! - where the group goes on past open transactions, what they commit is found and
//!   adopted in a settlement, once, whatever the settings say by then.
//!
//! Which host leads is decided in the module `leadership`; which events may run and
//! be settled in [`super::ordering`]; what becomes of one in [`super::settlement`].
//!
//! | file | duty |
//! | --- | --- |
//! | `leader` | the loop: looks, decides, begins, waits. Within it, `settler` cuts a settlement, `pause` pauses the group |
//! | `decide` | what the leader does next, and when it settles. Pure |
//! | `shared` | what the leader and its attempts share, behind one lock |
//! | `attempts` | the tasks that make attempts |
//! | `batch_call` | one call for several events |
//! | `reader` | reads the log, and the parked events that are due |
//! | `late` | finds what open transactions committed late |
//! | `due` | reads the deferred events that are due |
//! | `large`, `too_large` | reads what is too large to be read with others; which are too large to be read at all |
//! | `component` | loads the components that replays name |
//! | `commit` | commits a settlement until its outcome is known |
//! | `one_at_a_time` | handles and settles single events, under the crash guard |
//! | `refused` | finds the event for which the store refuses a settlement |
//! | `quota`, `room` | checks what is about to be kept; what is known of the room for it |
//! | `trip` | what a group does whose handler fails everything |
//! | `background` | calls of the store that the leader does not wait for |
//! | `outages` | operations that fail and are repeated |
//! | `settings` | what a group is |
//! | `signals` | what a leader watches |

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
mod room;
mod settings;
mod shared;
mod signals;
#[cfg(test)]
mod tests;
mod too_large;
mod trip;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tracing::warn;

use leader::Leader;
use outages::{Operation, Outages};
use refused::Refused;
use room::{KnownKeys, KnownState};
use shared::Shared;
use trip::{TripChange, Tripped};

use super::admission::GroupAdmission;
use super::breaker::Breaker;
use super::ordering::{CallBatching, Schedule};
use event_host_core::clock::Clock;
use event_host_core::event::{Attempt, Epoch, Position};
use event_host_core::handler::{Handler, Worker};
use event_host_core::troubles::Troubles;
use event_host_metrics::GroupMetrics;
use event_host_store::{
    DeliveryStore, FailureCounts, GroupState, Head, Leadership, Mark, Redelivery, UndecidedRanges,
};

pub use settings::{BatchSettings, CALL_SIZE, DEFAULT_MAX_PARKED, GroupSettings};
pub use signals::{Awaited, Control, LAST_ANSWER, Signals};

/// Number of leaderships in a row without progress after which a group goes on one event at a
/// time, and a crash counts as an attempt.
pub const LEADERSHIPS_WITHOUT_PROGRESS: u32 = 2;

/// Maximum size, in bytes, of the events that are fetched at once, and of the effects that
/// are settled at once.
const BATCH_BYTES: usize = 16 << 20;

/// How often a cursor that only passed events of others is committed by default.
pub const PASS_INTERVAL: Duration = Duration::from_secs(1);

/// Number of batches that wait or are handled before the log is read no further. With 2 there
/// is often no room to read while one is handled, and a core is idle.
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
    pub store: Arc<dyn DeliveryStore>,
    /// The code.
    pub handler: Arc<dyn Handler>,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// One permit, shared by all groups of the process. A group whose events may kill the
    /// process needs it for each attempt, so that a crash is counted against one event only.
    pub crash_guard: Arc<Semaphore>,
    /// The group's admission: an attempt needs a permit of it.
    pub admission: GroupAdmission,
    /// Told when a settlement published events.
    pub published: Arc<Notify>,
    /// A cursor that only passed events of others is committed this often.
    pub pass_interval: Duration,
    /// Where the host's outages are shown.
    pub troubles: Troubles,
    /// What it counts with.
    pub metrics: GroupMetrics,
}

/// The progress of one leadership, whichever versions of the group serve it. Only the
/// leader writes it; some fields come from the `SharedState` when a
/// version ends.
pub struct Progress {
    /// The epoch of the leadership.
    epoch: Epoch,
    /// Whether the group was to be run when the leadership began.
    initial_state: GroupState,
    /// The number of the group's last settlement, as it is committed.
    settlement_number: i64,
    /// The cursor, as it is committed.
    cursor: Position,
    /// The head, as it is committed.
    head: Option<Head>,
    /// The mark that the leadership began with, until its death is counted.
    mark: Option<Mark>,
    /// The redeliveries, as they are committed; `None` before they were read.
    redeliveries: Option<Vec<Redelivery>>,
    /// Whether the store may have deferred events: what it had when the leadership began, and
    /// since then whatever was settled.
    may_have_deferred: bool,
    /// Undecided ranges that the cursor has passed, as they are committed.
    undecided: UndecidedRanges,
    /// Number of failed attempts by kind, as it is committed.
    failures: FailureCounts,
    /// Number of events still to be handled one at a time, because the process may have died
    /// of one of them.
    crash_guard_left: usize,
    /// Number of events still to be handled and settled one at a time, because the store
    /// refused a settlement with several.
    refusal_search_left: usize,
    /// Settlements that the store refused. From the shared state.
    refused: Refused,
    /// The store knows that the leadership handles events: it counts as one without progress
    /// until its first settlement.
    work_recorded: bool,
    /// An attempt may be recorded as begun.
    marked: bool,
    /// When the last settlement was committed.
    last_commit: Instant,
    /// Number of events to fetch. From the shared state.
    fetch_size: usize,
    /// Size of the tenant's state. From the shared state.
    known_state: Option<KnownState>,
    /// Number of keys in the group's state. From the shared state.
    known_keys: Option<KnownKeys>,
    /// Workers that make no attempt now, with the instances that they keep.
    idle: Vec<Box<dyn Worker>>,
    /// Operations that fail and are repeated.
    outages: Arc<Outages>,
    /// Whether the handler fails everything. From the shared state.
    breaker: Breaker,
    /// Set while the group is tripped.
    tripped: Option<Tripped>,
    /// A change of `tripped` that the group's row does not say yet.
    unrecorded: Option<TripChange>,
    /// Why the group reads no further, as it was reported last.
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
    /// How the group's calls are batched.
    fn call_batching(&self) -> CallBatching {
        if self.handler.takes_batches() {
            self.settings.batch.call_batching()
        } else {
            CallBatching::default()
        }
    }

    /// Maximum number of events that may have begun and not be settled when a process dies:
    /// those of the settlement under way, and those that were read.
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
            redeliveries: (!leadership.may_have_redeliveries).then(Vec::new),
            may_have_deferred: leadership.may_have_deferred,
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

    /// Goes on where a version with another component was replaced, and watches whether this
    /// one works.
    pub fn swap_component(&self, progress: &mut Progress) {
        self.resume(progress);
        progress.breaker = Breaker::after_swap(progress.failed());
    }

    /// Goes on where a version with the same component was replaced, or one that failed
    /// everything. A tripped group tries it at once.
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
        let may_have_deferred = std::mem::replace(&mut progress.may_have_deferred, true);
        let mut schedule = Schedule::new(
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
        if !may_have_deferred {
            schedule = schedule.without_deferred();
        }
        let shared = Arc::new(Shared::new(self.clone(), schedule, progress));
        let end = Leader::new(Arc::clone(&shared), progress, signals).run(signals).await;
        // A leader that was cut off leaves nothing to go on with.
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
