//! A store in memory, for tests: those of `delivery`, and those of other crates.
//!
//! It keeps every promise of a store save the one that its name rules out:
//! nothing outlives the process. Tests script its failures with
//! [`MemoryStore::fail`], before or after the effect, so that a commit whose
//! outcome is unknown is as easy to stage as one that never happened; what a
//! leader writes can also be delayed, and happen when its writer has given it up.
//!
//! A clone is the same handle. [`MemoryStore::another_host`] is a second
//! handle on the same log, with faults of its own: two hosts that compete.
#![allow(clippy::panic, reason = "it is for tests, which fail where they script what cannot be")]

mod dead_letters;
mod deployments;
mod groups;
mod ingest;
mod leases;
mod log;
mod operation;
mod repartition;
mod schedules;
mod schema;
mod settlements;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

use crate::driver::ledger::LedgerKey;
use crate::driver::refusals;
use crate::{
    DeadLetter, Duty, FailureCounts, GroupState, Head, Leader, Mark, Redelivery, Retention,
    ScheduleStatus, Settled, Settlement, StoreError, Subscription, UndecidedRanges, Version,
};
use event_host_core::clock::{Clock, SystemClock};
use event_host_core::digest::Digest;
use event_host_core::event::{
    Attempt, Epoch, Event, GroupName, HandlerName, LogEvent, Position, ScheduleName, Tenant,
};

pub use operation::Operation;

/// Where in a call the database fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing of it happens.
    Before,
    /// All of it happens, and the caller is not told.
    After,
    /// It is on its way when the caller gives up on it, and happens when
    /// [`MemoryStore::deliver_delayed`] or [`Fault::AfterDelayed`] says. Only for what a
    /// leader writes under its epoch.
    Delayed,
    /// What is delayed happens just before it; then it happens, and its caller is
    /// told what came of it.
    AfterDelayed,
    /// It happens at once, and the caller is told after this time.
    Slow(Duration),
}

/// A statement that is on its way to the database.
type Statement = Box<dyn FnOnce(&mut Log) -> Result<Settled, StoreError> + Send>;

/// A store in memory. See the module's documentation.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    handle: Arc<Handle>,
}

/// What all handles see.
struct Shared {
    log: Mutex<Log>,
    changes: watch::Sender<u64>,
    clock: Mutex<Arc<dyn Clock>>,
}

/// What belongs to one handle.
#[derive(Default)]
struct Handle {
    faults: Mutex<HashMap<Operation, VecDeque<Fault>>>,
    calls: Mutex<HashMap<Operation, u64>>,
    delayed: Mutex<Vec<Statement>>,
    sessions: Mutex<Vec<u64>>,
    /// How many reads it carries out at once; `None` for any number.
    reads: Mutex<Option<usize>>,
}

#[derive(Default)]
struct Log {
    events: BTreeMap<i64, Stored>,
    /// Events of transactions that are open.
    held: BTreeMap<i64, Stored>,
    last_position: i64,
    /// The last event that went, and how many did.
    gone: (Position, i64),
    retention: Retention,
    groups: BTreeMap<GroupName, Group>,
    dead_letters: BTreeMap<i64, DeadLetter>,
    last_dead_letter: i64,
    state: BTreeMap<(GroupName, String, String), Vec<u8>>,
    schedules: BTreeMap<ScheduleName, ScheduleStatus>,
    components: HashMap<Digest, Vec<u8>>,
    /// In the order of their numbers, which begin with 1 and have no gaps.
    deployments: BTreeMap<(Tenant, HandlerName), Vec<Version>>,
    locks: HashMap<GroupName, u64>,
    duties: HashMap<Duty, u64>,
    last_session: u64,
    severed: HashSet<u64>,
    /// Of each session that lives, its host and the groups that it announced.
    announced: HashMap<u64, (String, BTreeSet<GroupName>)>,
    ledger: HashMap<LedgerKey, ingest::Entered>,
    /// What it does not store.
    refuses: Option<Box<Refuses>>,
    /// Events that nobody can read.
    unreadable: HashSet<i64>,
}

/// Why a settlement is refused for what it holds, if it is.
type Refuses = dyn Fn(&Settlement) -> Option<String> + Send;

struct Stored {
    tenant: Tenant,
    published_at: Timestamp,
    event: LogEvent,
}

/// A deferred event.
#[derive(Clone)]
struct Kept {
    due_at: Timestamp,
    late: bool,
    event: LogEvent,
}

#[derive(Clone)]
struct Group {
    tenant: Tenant,
    subscription: Subscription,
    position: Position,
    epoch: Epoch,
    settled: i64,
    leader: Option<Leader>,
    state: GroupState,
    reason: Option<String>,
    /// It keeps nothing in the log.
    unpinned: bool,
    note: Option<String>,
    failures: FailureCounts,
    head: Option<Head>,
    mark: Option<Mark>,
    redeliveries: BTreeMap<Position, Redelivery>,
    deferred: BTreeMap<Position, Kept>,
    undecided: UndecidedRanges,
    late_events: u64,
    handled_events: i64,
    dead_events: i64,
    fruitless: u32,
    created_at: Timestamp,
    settled_at: Option<Timestamp>,
    /// 1 where the group is not split, in its row and in those of its partitions.
    partitions: u32,
}

impl Group {
    /// The deferred events that are no redeliveries.
    fn waiting(&self) -> impl Iterator<Item = (&Position, &Kept)> {
        self.deferred.iter().filter(|(position, _)| !self.redeliveries.contains_key(position))
    }
}

impl Kept {
    fn redelivery(&self, position: Position) -> Redelivery {
        Redelivery {
            position,
            attempt: Attempt::FIRST,
            due_at: self.due_at,
            key: self.event.event.partitionkey.clone(),
            failure: None,
            late: self.late,
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

/// Every critical section leaves the data whole or panics in a test, which
/// then fails for that reason.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryStore {
    /// An empty log without groups.
    #[must_use]
    pub fn new() -> Self {
        let shared = Arc::new(Shared {
            log: Mutex::default(),
            changes: watch::Sender::new(0),
            clock: Mutex::new(Arc::new(SystemClock)),
        });
        Self { shared, handle: Arc::default() }
    }

    /// Gives the database another clock than the system's: the one by which schedules tick.
    pub fn set_clock(&self, clock: Arc<dyn Clock>) {
        *locked(&self.shared.clock) = clock;
    }

    fn now(&self) -> Timestamp {
        locked(&self.shared.clock).now()
    }

    /// Lets this handle carry out no more reads at once.
    pub fn reads_at_once(&self, reads: usize) {
        *self.handle.reads.lock().unwrap_or_else(PoisonError::into_inner) = Some(reads);
    }

    /// A second handle on the same log, with faults and calls of its own.
    #[must_use]
    pub fn another_host(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), handle: Arc::default() }
    }

    /// Makes the next `times` calls of an operation through this handle fail
    /// with [`StoreError::Unavailable`]. Adds to what is scripted already.
    pub fn fail(&self, operation: Operation, fault: Fault, times: usize) {
        locked(&self.handle.faults)
            .entry(operation)
            .or_default()
            .extend(std::iter::repeat_n(fault, times));
    }

    /// Forgets all scripted faults of this handle: its database is back.
    pub fn heal(&self) {
        locked(&self.handle.faults).clear();
    }

    /// Makes an event unreadable, through any handle, as one that is too large is.
    pub fn cannot_read(&self, position: Position) {
        locked(&self.shared.log).unreadable.insert(position.0);
    }

    /// Refuses settlements for what they hold, through every handle, as a constraint does.
    pub fn refuse(&self, refuses: impl Fn(&Settlement) -> Option<String> + Send + 'static) {
        locked(&self.shared.log).refuses = Some(Box::new(refuses));
    }

    /// Writes an event in a transaction that stays open, and gives its position.
    pub fn hold(&self, tenant: &Tenant, event: Event) -> Position {
        let mut log = locked(&self.shared.log);
        let position = log.append(tenant, event);
        let held = log.events.remove(&position.0);
        log.held.extend(held.map(|held| (position.0, held)));
        position
    }

    /// Ends the transaction of an event that is held: commits it, or rolls it back.
    pub fn end_transaction(&self, position: Position, commits: bool) {
        let mut log = locked(&self.shared.log);
        let held = log.held.remove(&position.0).filter(|_| commits);
        log.events.extend(held.map(|held| (position.0, held)));
        drop(log);
        self.changed();
    }

    /// What is delayed reaches the database: all of it, in the order of the calls.
    pub fn deliver_delayed(&self) {
        let delayed = std::mem::take(&mut *locked(&self.handle.delayed));
        let mut log = locked(&self.shared.log);
        for statement in delayed {
            // Whoever would be told of it has given up.
            let _ = statement(&mut log);
        }
        drop(log);
        self.changed();
    }

    /// How many scripted faults of an operation have not happened yet.
    #[must_use]
    pub fn faults_left(&self, operation: Operation) -> usize {
        locked(&self.handle.faults).get(&operation).map_or(0, VecDeque::len)
    }

    /// How often an operation was called through this handle, failures
    /// included.
    #[must_use]
    pub fn calls(&self, operation: Operation) -> u64 {
        locked(&self.handle.calls).get(&operation).copied().unwrap_or(0)
    }

    /// Ends every lock session of this handle, as a database that cuts its
    /// connections does: their locks are free, and the sessions are of no more
    /// use.
    pub fn sever_lock_sessions(&self) {
        let mut log = locked(&self.shared.log);
        for session in locked(&self.handle.sessions).drain(..) {
            log.end_session(session);
            log.severed.insert(session);
        }
        drop(log);
        self.changed();
    }

    /// The groups that the sessions of this handle announced and others lead.
    #[must_use]
    pub fn standing_by(&self) -> Vec<GroupName> {
        let log = locked(&self.shared.log);
        let sessions = locked(&self.handle.sessions);
        let announced = sessions.iter().filter_map(|session| log.announced.get(session));
        let groups = announced.flat_map(|(_, groups)| groups);
        let led_elsewhere = groups
            .filter(|group| log.locks.get(*group).is_some_and(|holder| !sessions.contains(holder)));
        led_elsewhere.cloned().collect()
    }

    /// Changes with each call that may have changed the log, a group or a lock,
    /// through any handle, and with none that only reads; what to wait on in a
    /// test.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    fn changed(&self) {
        self.shared.changes.send_modify(|count| *count += 1);
    }

    /// Runs one operation, with the fault that is scripted for it.
    async fn call<T>(
        &self,
        operation: Operation,
        effect: impl FnOnce(&mut Log) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let fault = self.called(operation).await;
        let result = self.run(operation, fault, effect);
        told(fault, result).await
    }

    /// Runs what a leader writes under its epoch: it may also be delayed.
    async fn write(
        &self,
        operation: Operation,
        effect: impl FnOnce(&mut Log) -> Result<Settled, StoreError> + Send + 'static,
    ) -> Result<Settled, StoreError> {
        let fault = self.called(operation).await;
        if fault == Some(Fault::Delayed) {
            locked(&self.handle.delayed).push(Box::new(effect));
            return Err(scripted(operation));
        }
        let result = self.run(operation, fault, effect);
        told(fault, result).await
    }

    /// Counts a call, and gives the fault that is scripted for it.
    async fn called(&self, operation: Operation) -> Option<Fault> {
        // A real store lets others run here, and so must this one.
        tokio::task::yield_now().await;
        *locked(&self.handle.calls).entry(operation).or_default() += 1;
        locked(&self.handle.faults).get_mut(&operation).and_then(VecDeque::pop_front)
    }

    fn run<T>(
        &self,
        operation: Operation,
        fault: Option<Fault>,
        effect: impl FnOnce(&mut Log) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match fault {
            Some(Fault::Before) => return Err(scripted(operation)),
            Some(Fault::Delayed) => panic!("`{operation}` is not what a leader writes"),
            Some(Fault::AfterDelayed) => self.deliver_delayed(),
            Some(Fault::After | Fault::Slow(_)) | None => {}
        }
        let result = effect(&mut locked(&self.shared.log));
        if operation.writes {
            self.changed();
        }
        if fault == Some(Fault::After) { Err(scripted(operation)) } else { result }
    }
}

/// Tells the caller what came of a call, when it is time.
async fn told<T>(fault: Option<Fault>, result: T) -> T {
    if let Some(Fault::Slow(delay)) = fault {
        tokio::time::sleep(delay).await;
    }
    result
}

fn scripted(operation: Operation) -> StoreError {
    StoreError::Unavailable(format!("`{operation}` fails as the test says"))
}

/// Stores keep microseconds.
fn microseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

impl Log {
    fn last_position(&self) -> Position {
        Position(self.last_position)
    }

    fn group(&self, name: &GroupName) -> Result<&Group, StoreError> {
        self.groups.get(name).ok_or_else(|| refusals::no_group(name))
    }

    fn group_mut(&mut self, name: &GroupName) -> Result<&mut Group, StoreError> {
        self.groups.get_mut(name).ok_or_else(|| refusals::no_group(name))
    }

    fn led(&mut self, name: &GroupName, epoch: Epoch) -> Option<&mut Group> {
        self.groups.get_mut(name).filter(|group| group.epoch == epoch)
    }

    /// The group, if `settled` is the number of its last settlement too.
    fn led_after(&mut self, name: &GroupName, epoch: Epoch, settled: i64) -> Option<&mut Group> {
        self.led(name, epoch).filter(|group| group.settled == settled)
    }
}
