//! What the leader and the tasks that make its attempts share, behind one lock.

use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::Instant;

use super::outages::Outages;
use super::refused::Refused;
use super::room::{KnownKeys, KnownState, NoRoom};
use super::too_large::TooLarge;
use super::{BATCH_BYTES, GroupLoop, Progress};
use crate::breaker::{Breaker, Verdict};
use crate::ordering::{Job, Schedule};
use crate::state::StoredState;
use event_host_core::event::{GroupName, Position};
use event_host_core::handler::state::{Accepted, CommittedState};
use event_host_store::StateWrite;

/// What the leader and the tasks that make its attempts share.
pub(super) struct Shared {
    /// Set once.
    pub(super) group: GroupLoop,
    /// The group's own name, of which the leader may lead only a partition. Set once.
    pub(super) name: GroupName,
    /// The group's state as the store has it. Set once.
    pub(super) committed_state: Arc<dyn CommittedState>,
    state: Mutex<SharedState>,
    /// Number of tasks that make one attempt after the other without waiting. Written by
    /// the attempts.
    active_tasks: AtomicUsize,
    /// The size of the tenant's state. Written by the attempts; one of them at a time is
    /// held against the quota.
    pub(super) known_state: AsyncMutex<Option<KnownState>>,
    /// Written by the leader, its settlement and its attempts.
    pub(super) outages: Arc<Outages>,
    /// Events that no handler gets. Written by the leader.
    pub(super) too_large: TooLarge,
    /// No further attempt begins. Written by the leader.
    halted: watch::Sender<bool>,
    /// Written by the leader: true for each settlement that is committed, false when one
    /// that an attempt waits for cannot be made.
    commits: watch::Sender<bool>,
    /// Wakes the leader. Notified by the attempts, and by the leader itself.
    pub(super) wakeup: Notify,
}

/// What changes with every attempt. Each field says who writes it.
pub(super) struct SharedState {
    /// The leader admits, cuts and commits; the attempts take events and return them.
    pub(super) schedule: Schedule,
    /// The attempts record; the leader resets it when the group is resumed.
    pub(super) breaker: Breaker,
    /// Why no further attempt begins: the first reason counts. Set by the attempts, taken
    /// by the leader.
    pub(super) halt: Option<Halt>,
    /// When the first event was done, or failed, that no settlement has taken. Set by the
    /// attempts, reset by the leader with each cut.
    pub(super) done_since: Option<Instant>,
    /// Number of events to fetch; with fewer waiting, the leader reads on. Written by the
    /// leader.
    pub(super) fetch_size: usize,
    /// How the last attempt that counts ended. Set by the attempts, cleared by the leader
    /// before a probe.
    pub(super) last_verdict: Option<Verdict>,
    /// Number of events that were handled or given up. Written by the attempts.
    pub(super) concluded: u64,
    /// What the settlement under way has taken. Written by the leader.
    pub(super) in_flight: InFlight,
    /// What was written and no settlement has taken. The attempts add, the leader
    /// subtracts with each cut.
    pub(super) unsettled: Uncommitted,
    /// Number of keys in the group's state. Written by the attempts.
    pub(super) known_keys: Option<KnownKeys>,
    /// Settlements that the store refused. Written by the leader; the attempt that is
    /// failed for one says so.
    pub(super) refused: Refused,
    /// An attempt waits for the next settlement. Set by the attempt, reset by both.
    pub(super) is_waited_for: bool,
    /// The leader handles an event itself, and settles nothing meanwhile. Written by the
    /// leader.
    pub(super) is_alone: bool,
    /// A settlement is under way. Written by the leader.
    pub(super) is_settling: bool,
    /// Events that wait for the component that they name, and hold nothing meanwhile.
    /// The attempts add, the leader removes.
    pub(super) awaiting_component: Vec<Job>,
    /// Events whose component is loaded by now. The leader adds, the attempts remove.
    pub(super) component_ready: HashSet<Position>,
}

/// Held while a task makes one attempt after the other without waiting.
pub(super) struct ActiveTask<'a>(&'a Shared);

impl<'a> ActiveTask<'a> {
    pub(super) fn begin(shared: &'a Shared) -> Self {
        shared.active_tasks.fetch_add(1, AcqRel);
        Self(shared)
    }
}

impl Drop for ActiveTask<'_> {
    fn drop(&mut self) {
        self.0.active_tasks.fetch_sub(1, AcqRel);
    }
}

/// What the settlement under way adds to what the tenant keeps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InFlight {
    pub(super) dead_letters: usize,
    pub(super) dead_letter_bytes: usize,
    pub(super) written: Uncommitted,
}

/// Size of writes that are not committed, whatever they replace.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Uncommitted {
    /// Number of keys that were set or deleted.
    pub(super) keys: i64,
    /// Bytes of the keys and values that were set.
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
    /// Whether the attempts wait for the settlement under way, because as much is done
    /// as the next one may take.
    pub(super) fn is_full(&self) -> bool {
        self.is_settling && self.schedule.done_bytes() >= BATCH_BYTES
    }

    /// Everything written that is not committed.
    pub(super) fn uncommitted(&self) -> Uncommitted {
        self.unsettled.plus(self.in_flight.written)
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
    QuotaExceeded(NoRoom),
    /// The database stores neither what an event came to nor its failure.
    Unstorable(String),
}

impl Shared {
    /// Begins with the progress of the leadership.
    pub(super) fn new(group: GroupLoop, schedule: Schedule, progress: &mut Progress) -> Self {
        let name = group.settings.group();
        let store = Arc::clone(&group.store);
        let admission = Some(group.admission.clone());
        let committed_state = StoredState { store, group: name.clone(), admission };
        Self {
            committed_state: Arc::new(committed_state),
            group,
            name,
            state: Mutex::new(SharedState {
                schedule,
                breaker: std::mem::take(&mut progress.breaker),
                halt: progress.refused.pause().map(Halt::Unstorable),
                done_since: None,
                fetch_size: progress.fetch_size,
                last_verdict: None,
                concluded: 0,
                in_flight: InFlight::default(),
                unsettled: Uncommitted::default(),
                known_keys: progress.known_keys,
                refused: std::mem::take(&mut progress.refused),
                is_waited_for: false,
                is_alone: false,
                is_settling: false,
                awaiting_component: Vec::new(),
                component_ready: HashSet::new(),
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

    /// Returns what was reached to the progress of the leadership, once no attempt runs
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
        // Nothing panics under the lock; if something did, its task would tell the
        // leader's task, which would start again.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives each settlement that is committed from now on.
    pub(super) fn commits(&self) -> watch::Receiver<bool> {
        self.commits.subscribe()
    }

    /// Waits for a settlement that the receiver has not seen. False when none can be made
    /// now, because the attempt that waits holds up what it would take.
    pub(super) async fn next_commit(&self, commits: &mut watch::Receiver<bool>) -> bool {
        {
            let mut locked = self.lock();
            if locked.is_alone {
                return false;
            }
            locked.is_waited_for = true;
        }
        self.wakeup.notify_one();
        // Never fails: `self` has the sender.
        let _ = commits.changed().await;
        self.lock().is_waited_for = false;
        *commits.borrow_and_update()
    }

    /// Tells the attempts that wait: a settlement is committed, or cannot be made.
    pub(super) fn announce_settlement(&self, committed: bool) {
        self.commits.send_replace(committed);
    }

    /// Lets attempts begin, or stops them from it.
    pub(super) fn set_halted(&self, halted: bool) {
        self.halted.send_if_modified(|was| std::mem::replace(was, halted) != halted);
    }

    /// Follows whether attempts may begin.
    pub(super) fn follow_halted(&self) -> watch::Receiver<bool> {
        self.halted.subscribe()
    }

    /// Whether no task makes attempts, or each of them waits for a permit.
    pub(super) fn is_at_rest(&self) -> bool {
        self.active_tasks.load(Acquire) == 0
    }

    pub(super) fn is_halted(&self) -> bool {
        *self.halted.borrow()
    }
}
