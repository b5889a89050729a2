//! A store in memory, for the tests of `delivery` alone.
//!
//! It keeps every promise of [`Store`] save the one that its name rules out:
//! nothing outlives the process. Tests script its failures with
//! [`MemoryStore::fail`], before or after the effect, so that a commit whose
//! outcome is unknown is as easy to stage as one that never happened; what a
//! leader writes can also be delayed, and happen when its writer has given it up.
//!
//! A clone is the same handle. [`MemoryStore::another_host`] is a second
//! handle on the same log, with faults of its own: two hosts that compete.

mod repartition;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::watch;

use super::backlog::{Backlog, Class, Counted, Part, Seen};
use super::gone::{self, Beginning, Gone, without_what_is_gone};
use super::{
    Adopted, Counting, Cursor, DeadLetter, DeadLetterFilter, DeadLetterId, Deployed, Deployment,
    Due, DueFetch, Enforced, FailureCounts, Fetch, Fetched, FetchedLate, Found, GroupControl,
    GroupRegistration, GroupState, GroupStatus, Head, HostIdentity, LateEvent, LateFetch, Leader,
    Leadership, LockSession, LogPin, LogStatus, MOST_COUNTED, Mark, NewVersion, OvertakingFetch,
    Redelivery, Removed, Replayed, Retention, Settled, Settlement, Sketch, Sought, Start, Store,
    StoreError, StoreLimits, Subscription, UndecidedChange, UndecidedRange, UndecidedRanges,
    Version, VersionNumber, VersionState, dead_letter_bytes, refusals, unpinned_reason,
};
use crate::digest::Digest;
use crate::event::{
    Attempt, Epoch, Event, GroupName, HandlerName, LogEvent, Partition, Position, Tenant,
};
use crate::failure::FailureKind;
use crate::store::repartition::whole;

/// An operation of [`Store`] or [`LockSession`] that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the method of the same name")]
pub enum Operation {
    Publish,
    SafePosition,
    EnforceRetention,
    Fetch,
    LockSession,
    TryLocks,
    Unlock,
    Heartbeat,
    Sharers,
    EnsureGroup,
    BeginLeadership,
    EndLeadership,
    RecordWorkStarted,
    RecordAttemptStarted,
    WithdrawAttempt,
    Settle,
    Redeliveries,
    Due,
    Deferred,
    FetchAt,
    Cursor,
    GroupStates,
    StateGet,
    StateKeys,
    Status,
    GroupStatus,
    SetNote,
    RecordTrip,
    Pause,
    Resume,
    Seek,
    RemoveGroup,
    DeadLetters,
    DeadLetterIds,
    DeadLetter,
    Replay,
    ReplaySome,
    Discard,
    Deploy,
    Rollback,
    Versions,
    Deployed,
    Component,
    Digests,
    TenantDeadLetters,
    TenantStateBytes,
    StateKeyCount,
}

impl Operation {
    /// Whether it changes what others can see.
    fn writes(self) -> bool {
        !matches!(
            self,
            Self::SafePosition
                | Self::Fetch
                | Self::LockSession
                | Self::Heartbeat
                | Self::Sharers
                | Self::Redeliveries
                | Self::Due
                | Self::Deferred
                | Self::FetchAt
                | Self::Cursor
                | Self::GroupStates
                | Self::StateGet
                | Self::StateKeys
                | Self::Status
                | Self::GroupStatus
                | Self::DeadLetters
                | Self::DeadLetterIds
                | Self::DeadLetter
                | Self::Versions
                | Self::Deployed
                | Self::Component
                | Self::Digests
                | Self::TenantDeadLetters
                | Self::TenantStateBytes
                | Self::StateKeyCount
        )
    }
}

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
    /// It happens at once, and the caller is told so long after.
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
}

/// What belongs to one handle.
#[derive(Default)]
struct Handle {
    faults: Mutex<HashMap<Operation, VecDeque<Fault>>>,
    calls: Mutex<HashMap<Operation, u64>>,
    delayed: Mutex<Vec<Statement>>,
    standing_by: Mutex<Vec<GroupName>>,
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
    components: HashMap<Digest, Vec<u8>>,
    /// In the order of their numbers, which begin with 1 and have no gaps.
    deployments: BTreeMap<(Tenant, HandlerName), Vec<Version>>,
    locks: HashMap<GroupName, u64>,
    last_session: u64,
    severed: HashSet<u64>,
    /// Of whose partitions sessions take a share.
    shares: HashMap<u64, (String, Vec<GroupName>)>,
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
    fruitless: u32,
    created_at: Timestamp,
    settled_at: Option<Timestamp>,
    /// 1 where the group is not split, in its row and in those of its partitions.
    partitions: u32,
}

impl Part {
    fn add_stored(&mut self, stored: &Stored) {
        let LogEvent { position, deliver_to, event, .. } = &stored.event;
        let class = Class {
            tenant: stored.tenant.as_str().to_owned(),
            deliver_to: deliver_to.as_ref().map(|only| only.as_str().to_owned()),
            event_type: event.event_type.clone(),
        };
        let hash = Partition::hash(event.partitionkey.as_deref(), *position);
        let published_at = stored.published_at;
        self.add(class, Seen { position: *position, published_at, hash });
    }
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
        let shared = Arc::new(Shared { log: Mutex::default(), changes: watch::Sender::new(0) });
        Self { shared, handle: Arc::default() }
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

    /// Has nobody read an event any more, through any handle, as one that is too large.
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
            log.locks.retain(|_, holder| *holder != session);
            log.shares.remove(&session);
            log.severed.insert(session);
        }
        drop(log);
        self.changed();
    }

    /// The groups that this handle's host stands by for, as its last heartbeat
    /// said.
    #[must_use]
    pub fn standing_by(&self) -> Vec<GroupName> {
        locked(&self.handle.standing_by).clone()
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
            Some(Fault::Delayed) => panic!("{operation:?} is not what a leader writes"),
            Some(Fault::AfterDelayed) => self.deliver_delayed(),
            Some(Fault::After | Fault::Slow(_)) | None => {}
        }
        let result = effect(&mut locked(&self.shared.log));
        if operation.writes() {
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
    StoreError::Unavailable(format!("{operation:?} fails as the test says"))
}

/// Stores keep microseconds.
fn microseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

/// What a database's constraints refuse.
fn well_formed(events: &[Event]) -> Result<(), StoreError> {
    // A day more than the host allows, for clocks that differ.
    let most = Timestamp::now().checked_add(Duration::from_hours(367 * 24));
    for event in events {
        event.check().map_err(|error| StoreError::Refused(error.to_string()))?;
        if event.deliver_after.is_some_and(|time| most.as_ref().is_ok_and(|most| time > *most)) {
            let broken = "CHECK constraint failed: deliver_after_is_within_a_year";
            return Err(StoreError::Refused(broken.to_owned()));
        }
    }
    Ok(())
}

fn unreadable(event: &LogEvent) -> StoreError {
    StoreError::Unavailable(format!("the event at {} cannot be read", event.position))
}

fn whole_microseconds(mut event: Event) -> Event {
    event.time = microseconds(event.time);
    event.deliver_after = event.deliver_after.map(microseconds);
    event
}

fn stored_head(head: &Head) -> Head {
    Head { due_at: microseconds(head.due_at), ..head.clone() }
}

impl Log {
    fn last_position(&self) -> Position {
        Position(self.last_position)
    }

    fn append(&mut self, tenant: &Tenant, event: Event) -> Position {
        self.append_for(tenant, None, None, event)
    }

    fn append_for(
        &mut self,
        tenant: &Tenant,
        deliver_to: Option<GroupName>,
        digest: Option<Digest>,
        event: Event,
    ) -> Position {
        self.last_position += 1;
        let position = self.last_position();
        let event = LogEvent { position, deliver_to, digest, event: whole_microseconds(event) };
        let stored = Stored { tenant: tenant.clone(), published_at: Timestamp::now(), event };
        self.events.insert(position.0, stored);
        position
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

    fn place(&self, start: Start) -> Result<Position, StoreError> {
        let last = self.last_position();
        match start {
            Start::Earliest => Ok(Position::ZERO),
            Start::Latest => Ok(last),
            Start::Position(position) if position > last => {
                Err(refusals::place_beyond_the_log(position, last))
            }
            Start::Position(position) => Ok(position),
            Start::Time(time) => Ok(self
                .events
                .values()
                .find(|stored| stored.event.event.time >= microseconds(time))
                .map_or(last, |stored| Position(stored.event.position.0 - 1))),
        }
    }

    fn beginning(&self) -> Beginning {
        let (gone, events) = self.gone;
        let first = self.events.keys().next().map(|first| Position(*first));
        Beginning { gone, events, first }
    }

    fn safe_position(&self) -> Position {
        self.held.keys().next().map_or(self.last_position(), |first| Position(first - 1))
    }

    /// Where an event is that can be seen.
    fn positions(&self) -> Vec<Position> {
        self.events.keys().copied().map(Position).collect()
    }

    fn fetch(&self, fetch: &Fetch<'_>) -> Result<Fetched, StoreError> {
        let Fetch { group, tenant, subscription, partition, after, up_to, .. } = *fetch;
        let Fetch { max_events, max_bytes, .. } = *fetch;
        let (mut events, mut bytes) = (Vec::<Arc<LogEvent>>::new(), 0_usize);
        if max_events == 0 {
            return Ok(Fetched { events, scanned_to: after });
        }
        let theirs = self.for_group(group, tenant, subscription, after, up_to);
        for stored in theirs.filter(|stored| stored.is_in(partition)) {
            if self.unreadable.contains(&stored.event.position.0) {
                let last = events.last().ok_or_else(|| unreadable(&stored.event))?;
                let scanned_to = last.position;
                return Ok(Fetched { events, scanned_to });
            }
            bytes += stored.event.bytes();
            events.push(Arc::new(stored.event.clone()));
            if events.len() >= max_events || bytes >= max_bytes {
                return Ok(Fetched { events, scanned_to: stored.event.position });
            }
        }
        Ok(Fetched { events, scanned_to: up_to.max(after) })
    }

    /// What a group receives of a part of the log.
    fn for_group<'a>(
        &'a self,
        name: &'a GroupName,
        tenant: &'a Tenant,
        subscription: &'a Subscription,
        after: Position,
        up_to: Position,
    ) -> impl Iterator<Item = &'a Stored> {
        let range = (after < up_to).then(|| self.events.range(after.0 + 1..=up_to.0));
        range.into_iter().flatten().map(|(_, stored)| stored).filter(move |stored| {
            stored.tenant == *tenant
                && match &stored.event.deliver_to {
                    Some(only) => only.as_str() == name.whole(),
                    None => subscription.matches(&stored.event.event.event_type),
                }
        })
    }

    /// How much the retention wants to go, and the group that is furthest behind, of a
    /// tenant's or of all.
    fn due(&self, tenant: Option<&Tenant>) -> (usize, Option<(&GroupName, Position)>) {
        let Retention { max_age, max_bytes } = self.retention;
        let now = Timestamp::now();
        let length = |stored: &Stored| stored.event.event.data.as_ref().map_or(0, Vec::len) as u64;
        let mut bytes: u64 = self.events.values().map(length).sum();
        let due = self.events.values().take_while(|stored| {
            let age = now.duration_since(stored.published_at).unsigned_abs();
            let is_due = max_age.is_some_and(|most| age >= most)
                || max_bytes.is_some_and(|most| bytes > most);
            bytes -= length(stored);
            is_due
        });
        let due = due.count();
        // What is split has no cursor of its own.
        let in_use = |(name, group): &(&GroupName, &Group)| {
            !group.unpinned
                && tenant.is_none_or(|tenant| group.tenant == *tenant)
                && (group.partitions <= 1 || name.partition_number().is_some())
        };
        let behind = self.groups.iter().filter(in_use).map(|(name, group)| {
            let mut redeliveries = group.redeliveries.keys();
            let first = redeliveries.find(|position| !group.deferred.contains_key(position));
            let again = first.map_or(group.position, |first| Position(first.0 - 1));
            (name, group.position.min(again))
        });
        (due, behind.min_by_key(|(_, position)| *position))
    }

    fn pinned_by(&self, tenant: Option<&Tenant>) -> Option<LogPin> {
        let (due, behind) = self.due(tenant);
        let (group, position) = behind?;
        let pinned = self.events.values().take(due).filter(|s| s.event.position > position);
        let lengths: Vec<usize> =
            pinned.map(|s| s.event.event.data.as_ref().map_or(0, Vec::len)).collect();
        let bytes = lengths.iter().sum::<usize>() as u64;
        (!lengths.is_empty()).then(|| LogPin {
            group: group.clone(),
            position,
            bytes,
            bytes_is_at_least: false,
        })
    }

    /// Has a group run again, without what is gone if that is accepted.
    fn resume(&mut self, group: &GroupName, accepted: bool) -> Result<Option<Gone>, StoreError> {
        self.group(group)?;
        let rows = || self.rows_of(group).map(|(_, row)| row);
        let mut gone = None;
        if rows().any(|row| row.unpinned) {
            let places = rows().map(|row| {
                let mut again = row.redeliveries.keys();
                let first = again.find(|position| !row.deferred.contains_key(position));
                first.map_or(row.position, |first| Position(first.0 - 1).min(row.position))
            });
            let place = places.min().unwrap_or(Position::ZERO);
            gone = self.beginning().gone_above(Start::Position(place), place);
            without_what_is_gone(group, gone.as_ref(), accepted)?;
        }
        let up_to = gone.as_ref().map_or(Position::ZERO, |gone| gone.up_to);
        for row in self.rows_of_mut(group) {
            row.state = GroupState::Running;
            row.reason = None;
            row.epoch.0 += i64::from(row.unpinned);
            row.unpinned = false;
            row.undecided = row.undecided.above(up_to);
            row.head.take_if(|head| head.position <= up_to);
            let deferred = &row.deferred;
            row.redeliveries.retain(|at, _| *at > up_to || deferred.contains_key(at));
        }
        Ok(gone)
    }

    fn enforce_retention(&mut self, retention: Retention) -> Enforced {
        self.retention = retention;
        let (due, behind) = self.due(None);
        let needed = behind.map_or(Position(i64::MAX), |(_, position)| position);
        let due: Vec<i64> = self.events.keys().take(due).copied().collect();
        let pinned = self.pinned_by(None);
        let mut enforced =
            Enforced { pinned_by: pinned.map(|pin| pin.group), ..Enforced::default() };
        for position in due.into_iter().filter(|position| *position <= needed.0) {
            self.gone = (Position(position), self.gone.1 + 1);
            self.events.remove(&position);
            enforced.dropped_up_to = Some(Position(position));
        }
        enforced
    }

    fn dead_letters_of(&self, name: &GroupName) -> usize {
        self.dead_letters.values().filter(|letter| letter.group == *name).count()
    }

    /// What these groups and partitions have before them.
    fn backlog<'a>(
        &self,
        rows: impl Iterator<Item = (&'a GroupName, &'a Group)>,
        counting: Counting,
    ) -> Backlog {
        let mut backlog = Backlog::new(counting);
        for (name, group) in rows {
            let number = name.partition_number();
            let partition = number.map(|number| Partition { number, of: group.partitions });
            if group.partitions <= 1 || partition.is_some() {
                backlog.add(name, &group.tenant, &group.subscription, partition, group.position);
            }
        }
        while let Some((after, up_to, most)) = backlog.next() {
            let mut part = Part::default();
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            for stored in self.events.range(after.0 + 1..=up_to.0).rev().take(most) {
                part.add_stored(stored.1);
            }
            backlog.take(part);
            if counting != Counting::EXACT {
                break;
            }
        }
        let far = backlog.far();
        let looked_at = usize::try_from(counting.first(far.len())).unwrap_or(usize::MAX);
        for name in far {
            let Some(group) = self.groups.get(&name) else { continue };
            let number = name.partition_number();
            let partition = number.map(|number| Partition { number, of: group.partitions });
            let looked_at = self.events.range(group.position.0 + 1..).take(looked_at);
            let up_to =
                looked_at.last().map_or(Position::ZERO, |(position, _)| Position(*position));
            let first = self
                .for_group(&name, &group.tenant, &group.subscription, group.position, up_to)
                .find(|stored| stored.is_in(partition));
            backlog.begins(&name, first.map(|stored| stored.published_at));
        }
        backlog
    }

    fn status_of(
        &self,
        name: &GroupName,
        group: &Group,
        backlog: &Backlog,
        counting: Counting,
    ) -> GroupStatus {
        let lag = backlog.lag(name);
        let most = counting.most.unwrap_or(i64::MAX - 1);
        let counted = |rows: usize| Counted::of(i64::try_from(rows).unwrap_or(i64::MAX), most);
        let (all_parked, dead) =
            (counted(group.redeliveries.len()), counted(self.dead_letters_of(name)));
        let parked = all_parked.rows;
        let head = group.head.iter().map(|head| head.due_at);
        let looked_at = usize::try_from(parked).unwrap_or(usize::MAX);
        let looked_at = || group.redeliveries.values().take(looked_at);
        let redeliveries = looked_at().map(|redelivery| redelivery.due_at);
        let redeliveries = redeliveries.filter(|due_at| *due_at > Timestamp::UNIX_EPOCH);
        let later = counted(group.waiting().count());
        let deferred = group.waiting().map(|(_, kept)| kept.due_at);
        let waits = |one: &&Redelivery| one.is_delayed(Timestamp::UNIX_EPOCH);
        let delayed = looked_at().filter(waits).count();
        GroupStatus {
            name: name.clone(),
            tenant: group.tenant.clone(),
            subscribe: group.subscription.patterns().to_vec(),
            state: group.state,
            reason: group.reason.clone(),
            unpinned: group.unpinned,
            note: group.note.clone(),
            failures: group.failures.clone(),
            lock_held_by: None,
            row_held_by: None,
            leader: group.leader.clone().filter(|_| self.locks.contains_key(name)),
            epoch: group.epoch,
            position: group.position,
            lag_events: lag.events,
            lag_events_is_at_least: lag.is_at_least,
            lag_seconds: lag.seconds(),
            lag_seconds_is_at_least: lag.may_be_older,
            retries_pending: parked - i64::try_from(delayed).unwrap_or(i64::MAX)
                + i64::from(group.head.as_ref().is_some_and(|head| head.failure.is_some())),
            parked,
            parked_is_at_least: all_parked.is_at_least,
            deferred: later.rows,
            deferred_is_at_least: later.is_at_least,
            next_due_at: head.chain(redeliveries).chain(deferred).min(),
            head: group.head.clone(),
            in_flight: group.mark,
            dead_letters: dead.rows,
            dead_letters_is_at_least: dead.is_at_least,
            open_ranges: group.undecided.as_slice().to_vec(),
            open_ranges_held_by: Vec::new(),
            late_events: i64::try_from(group.late_events).unwrap_or(i64::MAX),
            partitions: Vec::new(),
            created_at: group.created_at,
            settled_at: group.settled_at,
        }
    }

    fn settle(&mut self, settlement: &Settlement) -> Result<Settled, StoreError> {
        let redeliveries = settlement.redelivery_changes()?;
        let Settlement { group, epoch, number, .. } = settlement;
        if self.led_after(group, *epoch, number - 1).is_none() {
            return Ok(Settled::NotLeader);
        }
        let unstorable = |error: StoreError| StoreError::Unstorable(error.to_string());
        well_formed(&settlement.emits).map_err(unstorable)?;
        if let Some(why) = self.refuses.as_ref().and_then(|refuses| refuses(settlement)) {
            return Err(StoreError::Unstorable(why));
        }
        let taken_over: Vec<Kept> = redeliveries
            .deferred
            .iter()
            .filter_map(|one| {
                let event = self.events.get(&one.position.0)?.event.clone();
                Some(Kept { due_at: microseconds(one.due_at), late: one.late, event })
            })
            .collect();
        let Some(group) = self.led_after(group, *epoch, number - 1) else {
            return Ok(Settled::NotLeader);
        };
        for kept in taken_over {
            group.deferred.entry(kept.event.position).or_insert(kept);
        }
        for one in redeliveries.deferred {
            if group.deferred.contains_key(&one.position) {
                group.redeliveries.remove(&one.position);
            }
        }
        group.settled = *number;
        group.position = settlement.position;
        group.head = settlement.head.as_ref().map(stored_head);
        group.mark = settlement.mark;
        for position in redeliveries.over {
            group.redeliveries.remove(&Position(position));
            group.deferred.remove(&Position(position));
        }
        for redelivery in redeliveries.set {
            let stored =
                Redelivery { due_at: microseconds(redelivery.due_at), ..redelivery.clone() };
            group.redeliveries.insert(stored.position, stored);
        }
        group.fruitless = 0;
        if let Some(failures) = &settlement.failures {
            group.failures.clone_from(failures);
        }
        if let Some(UndecidedChange { undecided, late }) = &settlement.undecided {
            group.undecided.clone_from(undecided);
            group.late_events = group.late_events.saturating_add(*late);
        }
        group.settled_at = Some(Timestamp::now());
        let tenant = group.tenant.clone();
        for dead in &settlement.dead_letters {
            self.last_dead_letter += 1;
            let id = DeadLetterId(self.last_dead_letter);
            let letter = DeadLetter {
                id,
                group: settlement.group.group(),
                tenant: tenant.clone(),
                event: LogEvent {
                    event: whole_microseconds(dead.event.event.clone()),
                    digest: None,
                    ..dead.event.clone()
                },
                attempts: dead.attempts,
                failure: dead.failure.clone(),
                digest: dead.digest.clone(),
                dead_at: microseconds(dead.dead_at),
            };
            self.dead_letters.insert(id.0, letter);
        }
        for event in &settlement.emits {
            self.append(&tenant, event.clone());
        }
        for write in &settlement.state {
            let key = (settlement.group.group(), write.scope.clone(), write.key.clone());
            match &write.value {
                Some(value) => self.state.insert(key, value.clone()),
                None => self.state.remove(&key),
            };
        }
        Ok(Settled::Committed)
    }

    fn replay(
        &mut self,
        id: DeadLetterId,
        data: Option<&[u8]>,
        digest: Option<&Digest>,
    ) -> Result<Replayed, StoreError> {
        self.may_run(id, digest)?;
        let letter = self.dead_letters.remove(&id.0).ok_or_else(|| refusals::no_dead_letter(id))?;
        let mut event = Event { deliver_after: None, ..letter.event.event };
        if let Some(data) = data {
            event.data = Some(data.to_vec());
        }
        let addressee = Some(letter.group.clone());
        let position = self.append_for(&letter.tenant, addressee, digest.cloned(), event);
        Ok(Replayed { id, group: letter.group, position, digest: digest.cloned() })
    }

    /// Whether the dead letter is there, and this component its tenant's.
    fn may_run(&self, id: DeadLetterId, digest: Option<&Digest>) -> Result<(), StoreError> {
        let letter = self.dead_letters.get(&id.0).ok_or_else(|| refusals::no_dead_letter(id))?;
        if letter.failure.kind == FailureKind::TooLarge.label() {
            return Err(refusals::not_whole(id));
        }
        match digest {
            Some(digest) if self.digests_of(&letter.tenant).all(|theirs| theirs != digest) => {
                Err(refusals::no_component(digest))
            }
            _ => Ok(()),
        }
    }

    /// Those of all versions of a tenant's handlers.
    fn digests_of(&self, tenant: &Tenant) -> impl Iterator<Item = &Digest> {
        let theirs = self.deployments.iter().filter(move |((owner, _), _)| owner == tenant);
        theirs.flat_map(|(_, versions)| versions.iter().map(|version| &version.digest))
    }

    fn deploy(&mut self, new: NewVersion<'_>) -> Deployment {
        let digest = Digest::of(new.component);
        self.components.insert(digest.clone(), new.component.to_vec());
        let of_handler = (new.tenant.clone(), new.handler.clone());
        let versions = self.deployments.entry(of_handler).or_default();
        if let Some(active) = active_of(versions) {
            if active.digest == digest {
                return Deployment::WasActive(active.clone());
            }
            active.state = VersionState::Previous;
        }
        let version = Version {
            version: VersionNumber(i64::try_from(versions.len()).unwrap_or(i64::MAX) + 1),
            digest,
            bytes: new.component.len() as u64,
            deployed_at: microseconds(Timestamp::now()),
            deployed_by: new.deployed_by.to_owned(),
            state: VersionState::Active,
        };
        versions.push(version.clone());
        Deployment::Activated(version)
    }

    fn rollback(
        &mut self,
        tenant: &Tenant,
        handler: &HandlerName,
        from: Option<VersionNumber>,
    ) -> Result<Version, StoreError> {
        let versions = self.deployments.get_mut(&(tenant.clone(), handler.clone()));
        let versions = versions.ok_or_else(|| refusals::nothing_deployed(handler))?;
        let active = active_of(versions).ok_or_else(|| refusals::nothing_deployed(handler))?;
        let current = active.version;
        if let Some(from) = from
            && from != current
        {
            return Err(refusals::other_version_active(handler, from, current));
        }
        let before = versions.iter().rposition(|v| v.state == VersionState::Previous);
        let before = before.ok_or_else(|| refusals::no_version_before(handler, current))?;
        if let Some(active) = active_of(versions) {
            active.state = VersionState::RolledBack;
        }
        versions[before].state = VersionState::Active;
        Ok(versions[before].clone())
    }

    fn component(&self, tenant: &Tenant, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        let is_theirs = self.digests_of(tenant).any(|theirs| theirs == digest);
        let bytes = self.components.get(digest).filter(|_| is_theirs).cloned();
        bytes.ok_or_else(|| refusals::no_component(digest))
    }
}

fn active_of(versions: &mut [Version]) -> Option<&mut Version> {
    versions.iter_mut().find(|version| version.state == VersionState::Active)
}

#[async_trait]
impl Store for MemoryStore {
    async fn migrate(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn adopt(&self) -> Result<Adopted, StoreError> {
        Err(StoreError::Refused("there is nothing to adopt in memory".to_owned()))
    }

    async fn publish(
        &self,
        tenant: &Tenant,
        events: &[Event],
    ) -> Result<Vec<Position>, StoreError> {
        self.call(Operation::Publish, |log| {
            well_formed(events)?;
            Ok(events.iter().map(|event| log.append(tenant, event.clone())).collect())
        })
        .await
    }

    async fn safe_position(&self) -> Result<Position, StoreError> {
        self.call(Operation::SafePosition, |log| Ok(log.safe_position())).await
    }

    /// Every transaction that is open is a slow one.
    async fn overtake_limit(&self, _: Duration) -> Position {
        locked(&self.shared.log).last_position()
    }

    async fn fetch_overtaking(
        &self,
        fetch: Fetch<'_>,
        safe: Position,
        max_ranges: usize,
    ) -> Result<OvertakingFetch, StoreError> {
        self.call(Operation::Fetch, |log| {
            let mut fetched = log.fetch(&fetch)?;
            let from = fetch.after.max(safe);
            let read = UndecidedRange { first: Position(from.0 + 1), last: fetched.scanned_to };
            let mut undecided = UndecidedRanges::of([read]).without(&log.positions());
            if let Some(beyond) = undecided.as_slice().get(max_ranges) {
                fetched.scanned_to = Position(beyond.first.0 - 1);
                fetched.events.retain(|event| event.position <= fetched.scanned_to);
                undecided = undecided.up_to(fetched.scanned_to);
            }
            Ok(OvertakingFetch { fetched, undecided })
        })
        .await
    }

    async fn fetch_late(&self, late: LateFetch<'_>) -> Result<FetchedLate, StoreError> {
        self.call(Operation::Fetch, |log| {
            let LateFetch { group, tenant, subscription, partition, .. } = late;
            let LateFetch { undecided, safe, max_events, .. } = late;
            let mut events = Vec::new();
            let mut looked_to = Position(i64::MAX);
            for range in undecided.as_slice() {
                let before = Position(range.first.0 - 1);
                let theirs = log.for_group(group, tenant, subscription, before, range.last);
                for stored in theirs.filter(|stored| stored.is_in(partition)) {
                    let LogEvent { position, event, .. } = &stored.event;
                    if events.len() < max_events {
                        events.push(LateEvent {
                            position: *position,
                            key: event.partitionkey.clone(),
                            deliver_after: event.deliver_after,
                        });
                    } else {
                        looked_to = looked_to.min(Position(position.0 - 1));
                    }
                }
            }
            let seen = undecided.up_to(looked_to).without(&log.positions());
            let undecided = seen.and(undecided.above(looked_to)).above(safe.min(looked_to));
            Ok(FetchedLate { events, undecided, has_more: looked_to < Position(i64::MAX) })
        })
        .await
    }

    async fn enforce_retention(&self, retention: &Retention) -> Result<Enforced, StoreError> {
        self.call(Operation::EnforceRetention, |log| Ok(log.enforce_retention(*retention))).await
    }

    fn limits(&self) -> StoreLimits {
        let reads = *self.handle.reads.lock().unwrap_or_else(PoisonError::into_inner);
        StoreLimits { reads: reads.unwrap_or(usize::MAX), writes: usize::MAX }
    }

    async fn fetch(&self, fetch: Fetch<'_>) -> Result<Fetched, StoreError> {
        self.call(Operation::Fetch, |log| log.fetch(&fetch)).await
    }

    async fn sketch(&self, fetch: Fetch<'_>) -> Result<Option<Sketch>, StoreError> {
        self.call(Operation::Fetch, |log| {
            let Fetch { group, tenant, subscription, partition, after, up_to, .. } = fetch;
            let mut theirs = log.for_group(group, tenant, subscription, after, up_to);
            let Some(next) = theirs.find(|stored| stored.is_in(partition)) else { return Ok(None) };
            let is_large = log.unreadable.contains(&next.event.position.0);
            let bytes = if is_large { 8 << 20 } else { next.event.bytes() as u64 };
            let mut event = next.event.clone();
            event.event.data = None;
            Ok(Some(Sketch { event, bytes }))
        })
        .await
    }

    async fn lock_session(&self, host: &HostIdentity) -> Result<Box<dyn LockSession>, StoreError> {
        self.call(Operation::LockSession, |log| {
            log.last_session += 1;
            let (session, host) = (log.last_session, host.id.clone());
            locked(&self.handle.sessions).push(session);
            Ok(Box::new(MemoryLocks { store: self.clone(), session, host }) as Box<dyn LockSession>)
        })
        .await
    }

    async fn ensure_group(&self, settings: &GroupRegistration) -> Result<(), StoreError> {
        self.call(Operation::EnsureGroup, |log| {
            let last = log.last_position();
            if let Some(group) = log.groups.get(&settings.name) {
                if group.tenant != settings.tenant {
                    return Err(refusals::other_tenant(settings, &group.tenant));
                }
                let highest = log.rows_of(&settings.name).map(|(_, row)| row.position).max();
                if let Some(position) = highest.filter(|position| *position > last) {
                    return Err(refusals::cursor_beyond_the_log(&settings.name, position, last));
                }
                if group.partitions != settings.partitions {
                    log.repartition(&settings.name, settings.partitions, &settings.subscription)?;
                }
                for row in log.rows_of_mut(&settings.name) {
                    row.subscription = settings.subscription.clone();
                }
                return Ok(());
            }
            let group = Group {
                tenant: settings.tenant.clone(),
                subscription: settings.subscription.clone(),
                position: log.place(settings.start)?,
                epoch: Epoch(0),
                settled: 0,
                leader: None,
                state: GroupState::Running,
                reason: None,
                unpinned: false,
                note: None,
                failures: FailureCounts::new(),
                head: None,
                mark: None,
                redeliveries: BTreeMap::new(),
                deferred: BTreeMap::new(),
                undecided: UndecidedRanges::NONE,
                late_events: 0,
                fruitless: 0,
                created_at: Timestamp::now(),
                settled_at: None,
                partitions: settings.partitions,
            };
            log.groups.insert(settings.name.clone(), group);
            log.make_parts(&settings.name);
            Ok(())
        })
        .await
    }

    async fn begin_leadership(
        &self,
        group: &GroupName,
        host: &HostIdentity,
    ) -> Result<Leadership, StoreError> {
        self.call(Operation::BeginLeadership, |log| {
            let group = log.group_mut(group)?;
            group.epoch.0 += 1;
            group.leader = Some(Leader { host: host.clone(), since: Timestamp::now() });
            Ok(Leadership {
                epoch: group.epoch,
                settled: group.settled,
                position: group.position,
                head: group.head.clone(),
                mark: group.mark,
                state: group.state,
                fruitless: group.fruitless,
                failures: group.failures.clone(),
                begun_by: None,
                undecided: group.undecided.clone(),
            })
        })
        .await
    }

    async fn end_leadership(&self, group: &GroupName, epoch: Epoch) -> Result<(), StoreError> {
        self.call(Operation::EndLeadership, |log| {
            if let Some(group) = log.led(group, epoch) {
                group.leader = None;
                group.fruitless = 0;
                group.mark = None;
            }
            Ok(())
        })
        .await
    }

    async fn record_work_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
    ) -> Result<Settled, StoreError> {
        let group = group.clone();
        self.write(Operation::RecordWorkStarted, move |log| {
            let Some(group) = log.led_after(&group, epoch, settled) else {
                return Ok(Settled::NotLeader);
            };
            group.fruitless = group.fruitless.saturating_add(1);
            Ok(Settled::Committed)
        })
        .await
    }

    async fn record_attempt_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
        mark: Mark,
    ) -> Result<Settled, StoreError> {
        let group = group.clone();
        self.write(Operation::RecordAttemptStarted, move |log| {
            let Some(group) = log.led_after(&group, epoch, settled) else {
                return Ok(Settled::NotLeader);
            };
            group.mark = Some(mark);
            Ok(Settled::Committed)
        })
        .await
    }

    async fn withdraw_attempt(
        &self,
        group: &GroupName,
        epoch: Epoch,
    ) -> Result<Settled, StoreError> {
        let group = group.clone();
        self.write(Operation::WithdrawAttempt, move |log| {
            let Some(group) = log.led(&group, epoch) else { return Ok(Settled::NotLeader) };
            group.mark = None;
            Ok(Settled::Committed)
        })
        .await
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, StoreError> {
        let settlement = settlement.clone();
        self.write(Operation::Settle, move |log| log.settle(&settlement)).await
    }

    async fn redeliveries(&self, group: &GroupName) -> Result<Vec<Redelivery>, StoreError> {
        self.call(Operation::Redeliveries, |log| {
            let Some(group) = log.groups.get(group) else { return Ok(Vec::new()) };
            let mut all = group.redeliveries.clone();
            let marked = group.mark.and_then(|mark| group.deferred.get_key_value(&mark.position));
            if let (Some(mark), Some((position, kept))) = (group.mark, marked) {
                let first = || Redelivery { attempt: mark.attempt, ..kept.redelivery(*position) };
                all.entry(*position).or_insert_with(first);
            }
            Ok(all.into_values().collect())
        })
        .await
    }

    async fn due(&self, due: DueFetch<'_>) -> Result<Due, StoreError> {
        self.call(Operation::Due, |log| {
            let Some(group) = log.groups.get(due.group) else { return Ok(Due::default()) };
            let now = microseconds(due.now);
            let mut events: Vec<Redelivery> = group
                .waiting()
                .filter(|(position, kept)| kept.due_at <= now && **position <= due.up_to)
                .filter(|(position, kept)| Some((kept.due_at, **position)) > due.after)
                .map(|(position, kept)| kept.redelivery(*position))
                .collect();
            events.sort_by_key(|event| (event.due_at, event.position));
            events.truncate(due.max_events);
            let next = group.deferred.values().map(|kept| kept.due_at).filter(|at| *at > now).min();
            Ok(Due { events, next })
        })
        .await
    }

    async fn deferred(&self, group: &GroupName) -> Result<i64, StoreError> {
        self.call(Operation::Deferred, |log| {
            let count = log.groups.get(group).map_or(0, |group| group.waiting().count());
            Ok(i64::try_from(count).unwrap_or(i64::MAX).min(MOST_COUNTED))
        })
        .await
    }

    async fn fetch_at(
        &self,
        group: &GroupName,
        positions: &[Position],
        max_bytes: usize,
    ) -> Result<Found, StoreError> {
        self.call(Operation::FetchAt, |log| {
            let looked_to = positions.iter().max().copied().unwrap_or_default();
            let mut found = Found { events: Vec::new(), looked_to };
            let Some(Group { tenant, deferred, .. }) = log.groups.get(group) else {
                return Ok(found);
            };
            let positions: BTreeSet<Position> = positions.iter().copied().collect();
            let stored = positions.iter().filter_map(|position| log.events.get(&position.0));
            let theirs = stored.filter(|stored| {
                stored.tenant == *tenant
                    && stored
                        .event
                        .deliver_to
                        .as_ref()
                        .is_none_or(|only| only.as_str() == group.whole())
            });
            let mut all: BTreeMap<Position, &LogEvent> =
                theirs.map(|stored| (stored.event.position, &stored.event)).collect();
            let kept = positions.iter().filter_map(|position| deferred.get(position));
            for Kept { event, .. } in kept {
                all.entry(event.position).or_insert(event);
            }
            let mut bytes = 0;
            for event in all.into_values() {
                if log.unreadable.contains(&event.position.0) {
                    let Some(last) = found.events.last() else { return Err(unreadable(event)) };
                    found.looked_to = last.position;
                    break;
                }
                bytes += event.bytes();
                found.events.push(event.clone());
                if bytes >= max_bytes {
                    found.looked_to = event.position;
                    break;
                }
            }
            Ok(found)
        })
        .await
    }

    async fn cursor(&self, group: &GroupName) -> Result<Cursor, StoreError> {
        self.call(Operation::Cursor, |log| {
            let group = log.group(group)?;
            Ok(Cursor {
                epoch: group.epoch,
                settled: group.settled,
                position: group.position,
                head: group.head.clone(),
                mark: group.mark,
                undecided: group.undecided.clone(),
            })
        })
        .await
    }

    async fn group_states(&self) -> Result<Vec<GroupControl>, StoreError> {
        self.call(Operation::GroupStates, |log| {
            let control = |(name, group): (&GroupName, &Group)| GroupControl {
                name: name.clone(),
                epoch: group.epoch,
                state: group.state,
                position: group.position,
            };
            Ok(log.groups.iter().map(control).collect())
        })
        .await
    }

    async fn state_get(
        &self,
        group: &GroupName,
        scope: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.call(Operation::StateGet, |log| {
            let key = (group.group(), scope.to_owned(), key.to_owned());
            Ok(log.state.get(&key).cloned())
        })
        .await
    }

    async fn state_keys(
        &self,
        group: &GroupName,
        scope: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        self.call(Operation::StateKeys, |log| {
            let group = &group.group();
            let from = (group.clone(), scope.to_owned(), prefix.to_owned());
            let keys = log.state.range(from..).map(|(key, _)| key).take_while(
                |(of_group, of_scope, key)| {
                    of_group == group && of_scope == scope && key.starts_with(prefix)
                },
            );
            Ok(keys.take(limit).map(|(_, _, key)| key.clone()).collect())
        })
        .await
    }

    async fn status_counted(&self, counting: Counting) -> Result<LogStatus, StoreError> {
        self.call(Operation::Status, |log| {
            let backlog = log.backlog(log.groups.iter(), counting);
            let groups = log
                .groups
                .iter()
                .map(|(name, group)| log.status_of(name, group, &backlog, counting));
            Ok(LogStatus {
                last_position: log.last_position(),
                safe_position: log.last_position(),
                events: i64::try_from(log.events.len()).unwrap_or(i64::MAX),
                events_is_estimate: false,
                unreadable: Vec::new(),
                held_up_by: Vec::new(),
                pinned_by: log.pinned_by(None),
                groups: whole(groups.collect()),
                hosts: Vec::new(),
            })
        })
        .await
    }

    async fn group_status_counted(
        &self,
        group: &GroupName,
        counting: Counting,
    ) -> Result<GroupStatus, StoreError> {
        self.call(Operation::GroupStatus, |log| {
            let backlog = log.backlog(log.rows_of(group), counting);
            let rows =
                log.rows_of(group).map(|(name, row)| log.status_of(name, row, &backlog, counting));
            whole(rows.collect()).pop().ok_or_else(|| refusals::no_group(group))
        })
        .await
    }

    async fn set_note(&self, groups: &[GroupName], note: Option<&str>) -> Result<(), StoreError> {
        self.call(Operation::SetNote, |log| {
            for group in groups {
                match note {
                    Some(note) => {
                        if let Ok(group) = log.group_mut(group) {
                            group.note = Some(note.to_owned());
                        }
                    }
                    None => {
                        log.rows_of_mut(group).for_each(|row| row.note = None);
                        if let Ok(row) = log.group_mut(group) {
                            row.note = None;
                        }
                    }
                }
            }
            Ok(())
        })
        .await
    }

    async fn record_trip(
        &self,
        group: &GroupName,
        epoch: Epoch,
        reason: Option<&str>,
    ) -> Result<Settled, StoreError> {
        self.call(Operation::RecordTrip, |log| {
            let led = log.group_mut(group).ok().filter(|group| group.epoch == epoch);
            let Some(group) = led else { return Ok(Settled::NotLeader) };
            let (from, to) = match reason {
                Some(_) => (GroupState::Running, GroupState::Tripped),
                None => (GroupState::Tripped, GroupState::Running),
            };
            if group.state == from {
                group.state = to;
                group.reason = reason.map(str::to_owned);
            }
            Ok(Settled::Committed)
        })
        .await
    }

    async fn pause(&self, group: &GroupName, reason: &str) -> Result<(), StoreError> {
        self.call(Operation::Pause, |log| {
            log.group(group)?;
            for row in log.rows_of_mut(group) {
                row.state = GroupState::Paused;
                row.reason = Some(reason.to_owned());
            }
            Ok(())
        })
        .await
    }

    async fn resume(&self, group: &GroupName) -> Result<(), StoreError> {
        self.call(Operation::Resume, |log| log.resume(group, false).map(drop)).await
    }

    async fn resume_without_what_is_gone(
        &self,
        group: &GroupName,
    ) -> Result<Option<Gone>, StoreError> {
        self.call(Operation::Resume, |log| log.resume(group, true)).await
    }

    async fn unpin(
        &self,
        tenant: &Tenant,
        retention: &Retention,
        most: u64,
    ) -> Result<Option<LogPin>, StoreError> {
        self.call(Operation::EnforceRetention, |log| {
            log.retention = *retention;
            let Some(pin) = log.pinned_by(Some(tenant)).filter(|pin| pin.bytes > most) else {
                return Ok(None);
            };
            let reason = unpinned_reason(tenant, &pin, most);
            for row in log.rows_of_mut(&pin.group.group()) {
                row.state = GroupState::Paused;
                row.reason = Some(reason.clone());
                row.unpinned = true;
                row.epoch.0 += 1;
            }
            Ok(Some(pin))
        })
        .await
    }

    async fn seek_to(
        &self,
        group: &GroupName,
        to: Start,
        exactly: bool,
    ) -> Result<Sought, StoreError> {
        self.call(Operation::Seek, |log| {
            log.group(group)?;
            let position = log.place(to)?;
            let gone = log.beginning().gone_above(to, position);
            if exactly {
                gone::exactly(to, gone.as_ref())?;
            }
            let there: BTreeSet<Position> = log.events.keys().copied().map(Position).collect();
            let mut last = None;
            for row in log.rows_of_mut(group) {
                row.deferred.retain(|kept, _| *kept <= position || !there.contains(kept));
                last = last.max(row.deferred.keys().next_back().copied());
            }
            let first = there.range(Position(position.0 + 1)..).next();
            let first = first.map_or(Position(i64::MAX), |first| Position(first.0 - 1));
            let position = position.max(last.unwrap_or(position).min(first));
            for row in log.rows_of_mut(group) {
                row.position = position;
                row.epoch.0 += 1;
                row.head = None;
                row.mark = None;
                row.redeliveries.retain(|redelivered, _| *redelivered <= position);
                row.undecided = row.undecided.up_to(position);
                row.fruitless = 0;
            }
            Ok(Sought { position, gone })
        })
        .await
    }

    async fn remove_group(
        &self,
        group: &GroupName,
        with_dead_letters: bool,
    ) -> Result<Removed, StoreError> {
        self.call(Operation::RemoveGroup, |log| {
            log.group(group)?;
            let leader = log.rows_of(group).find_map(|(_, row)| row.leader.clone());
            if log.rows_of(group).any(|(name, _)| log.locks.contains_key(name)) {
                return Err(refusals::still_led(group, leader.as_ref()));
            }
            let dead = log.dead_letters_of(group);
            if dead > 0 && !with_dead_letters {
                return Err(refusals::dead_letters_remain(
                    group,
                    i64::try_from(dead).unwrap_or(i64::MAX),
                ));
            }
            let parked: usize = log.rows_of(group).map(|(_, row)| row.redeliveries.len()).sum();
            let deferred: usize = log.rows_of(group).map(|(_, row)| row.waiting().count()).sum();
            log.groups.retain(|name, _| name.whole() != group.as_str());
            log.dead_letters.retain(|_, letter| letter.group != *group);
            log.state.retain(|(of_group, _, _), _| of_group != group);
            let count = |count| i64::try_from(count).unwrap_or(i64::MAX);
            Ok(Removed { parked: count(parked), deferred: count(deferred) })
        })
        .await
    }

    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        self.call(Operation::DeadLetters, |log| {
            if let Some(group) = &filter.group {
                log.group(group)?;
            }
            let letters = log.dead_letters.values().filter(|letter| {
                filter.group.as_ref().is_none_or(|group| letter.group == *group)
                    && filter.after.is_none_or(|after| letter.id > after)
            });
            Ok(letters.take(filter.limit.unwrap_or(usize::MAX)).cloned().collect())
        })
        .await
    }

    async fn dead_letter_ids(&self, group: &GroupName) -> Result<Vec<DeadLetterId>, StoreError> {
        self.call(Operation::DeadLetterIds, |log| {
            log.group(group)?;
            let letters = log.dead_letters.values().filter(|letter| letter.group == *group);
            Ok(letters.map(|letter| letter.id).collect())
        })
        .await
    }

    async fn dead_letter(&self, id: DeadLetterId) -> Result<DeadLetter, StoreError> {
        self.call(Operation::DeadLetter, |log| {
            log.dead_letters.get(&id.0).cloned().ok_or_else(|| refusals::no_dead_letter(id))
        })
        .await
    }

    async fn replay(
        &self,
        id: DeadLetterId,
        data: Option<&[u8]>,
        digest: Option<&Digest>,
    ) -> Result<Replayed, StoreError> {
        self.call(Operation::Replay, |log| log.replay(id, data, digest)).await
    }

    async fn replay_some(
        &self,
        group: &GroupName,
        after: DeadLetterId,
        up_to: DeadLetterId,
        limit: usize,
        digest: Option<&Digest>,
    ) -> Result<Vec<Replayed>, StoreError> {
        self.call(Operation::ReplaySome, |log| {
            log.group(group)?;
            let ids: Vec<DeadLetterId> = log
                .dead_letters
                .values()
                .filter(|letter| letter.group == *group && letter.id > after && letter.id <= up_to)
                .filter(|letter| letter.failure.kind != FailureKind::TooLarge.label())
                .map(|letter| letter.id)
                .take(limit)
                .collect();
            ids.iter().try_for_each(|id| log.may_run(*id, digest))?;
            ids.into_iter().map(|id| log.replay(id, None, digest)).collect()
        })
        .await
    }

    async fn discard(&self, id: DeadLetterId) -> Result<(), StoreError> {
        self.call(Operation::Discard, |log| {
            log.dead_letters.remove(&id.0).map(|_| ()).ok_or_else(|| refusals::no_dead_letter(id))
        })
        .await
    }

    async fn deploy(&self, new: NewVersion<'_>) -> Result<Deployment, StoreError> {
        self.call(Operation::Deploy, |log| Ok(log.deploy(new))).await
    }

    async fn rollback(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
        from: Option<VersionNumber>,
    ) -> Result<Version, StoreError> {
        self.call(Operation::Rollback, |log| log.rollback(tenant, handler, from)).await
    }

    async fn versions(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
    ) -> Result<Vec<Version>, StoreError> {
        self.call(Operation::Versions, |log| {
            let versions = log.deployments.get(&(tenant.clone(), handler.clone()));
            Ok(versions.into_iter().flatten().rev().cloned().collect())
        })
        .await
    }

    async fn deployed(&self) -> Result<Vec<Deployed>, StoreError> {
        self.call(Operation::Deployed, |log| {
            let active = log.deployments.iter().flat_map(|((tenant, handler), versions)| {
                let active = versions.iter().filter(|v| v.state == VersionState::Active);
                active.map(|version| Deployed {
                    tenant: tenant.clone(),
                    handler: handler.clone(),
                    version: version.version,
                    digest: version.digest.clone(),
                })
            });
            Ok(active.collect())
        })
        .await
    }

    async fn component(&self, tenant: &Tenant, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        self.call(Operation::Component, |log| log.component(tenant, digest)).await
    }

    async fn digests(
        &self,
        tenant: &Tenant,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Digest>, StoreError> {
        self.call(Operation::Digests, |log| {
            let fitting: BTreeSet<&Digest> = log
                .digests_of(tenant)
                .filter(|digest| digest.as_str().starts_with(prefix))
                .collect();
            Ok(fitting.into_iter().take(limit).cloned().collect())
        })
        .await
    }

    async fn tenant_dead_letters(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        self.call(Operation::TenantDeadLetters, |log| {
            let theirs = log.dead_letters.values().filter(|letter| letter.tenant == *tenant);
            Ok(i64::try_from(theirs.count()).unwrap_or(i64::MAX))
        })
        .await
    }

    async fn tenant_dead_letter_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        self.call(Operation::TenantDeadLetters, |log| {
            let theirs = log.dead_letters.values().filter(|letter| letter.tenant == *tenant);
            let bytes: usize =
                theirs.map(|letter| dead_letter_bytes(&letter.event, &letter.failure)).sum();
            Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
        })
        .await
    }

    async fn state_key_count(&self, group: &GroupName) -> Result<i64, StoreError> {
        self.call(Operation::StateKeyCount, |log| {
            let keys = log.state.keys().filter(|(of_group, ..)| of_group.as_str() == group.whole());
            Ok(i64::try_from(keys.count()).unwrap_or(i64::MAX))
        })
        .await
    }

    async fn tenant_state_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        self.call(Operation::TenantStateBytes, |log| {
            let theirs = log.state.iter().filter(|((group, ..), _)| {
                log.groups.get(group).is_some_and(|group| group.tenant == *tenant)
            });
            let bytes: usize = theirs.map(|((_, _, key), value)| key.len() + value.len()).sum();
            Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
        })
        .await
    }
}

/// The locks of one host in memory.
struct MemoryLocks {
    store: MemoryStore,
    session: u64,
    /// The host's id.
    host: String,
}

impl MemoryLocks {
    fn alive(&self, log: &Log) -> Result<(), StoreError> {
        if log.severed.contains(&self.session) {
            return Err(StoreError::Unavailable("the lock session is gone".to_owned()));
        }
        Ok(())
    }
}

#[async_trait]
impl LockSession for MemoryLocks {
    async fn try_locks(&mut self, groups: &[GroupName]) -> Result<Vec<bool>, StoreError> {
        self.store
            .call(Operation::TryLocks, |log| {
                self.alive(log)?;
                let holders = groups
                    .iter()
                    .map(|group| *log.locks.entry(group.clone()).or_insert(self.session));
                Ok(holders.map(|holder| holder == self.session).collect())
            })
            .await
    }

    async fn unlock(&mut self, group: &GroupName) -> Result<(), StoreError> {
        self.store
            .call(Operation::Unlock, |log| {
                self.alive(log)?;
                if log.locks.get(group) == Some(&self.session) {
                    log.locks.remove(group);
                }
                Ok(())
            })
            .await
    }

    async fn heartbeat(&mut self, standing_by: &[GroupName]) -> Result<(), StoreError> {
        self.store
            .call(Operation::Heartbeat, |log| {
                self.alive(log)?;
                *locked(&self.store.handle.standing_by) = standing_by.to_vec();
                Ok(())
            })
            .await
    }

    async fn sharers(&mut self, groups: &[GroupName]) -> Result<Vec<Vec<String>>, StoreError> {
        self.store
            .call(Operation::Sharers, |log| {
                self.alive(log)?;
                log.shares.insert(self.session, (self.host.clone(), groups.to_vec()));
                let others = |group| {
                    let others = log.shares.iter().filter(|(one, _)| **one != self.session);
                    let sharing = others.filter(|(_, (_, groups))| groups.contains(group));
                    sharing.map(|(_, (host, _))| host.clone()).collect()
                };
                Ok(groups.iter().map(others).collect())
            })
            .await
    }
}

impl Drop for MemoryLocks {
    fn drop(&mut self) {
        let mut log = locked(&self.store.shared.log);
        log.locks.retain(|_, holder| *holder != self.session);
        log.shares.remove(&self.session);
        log.severed.remove(&self.session);
        drop(log);
        self.store.changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::suite::TestDatabase;

    #[async_trait]
    impl TestDatabase for MemoryStore {
        async fn handle(&self) -> Arc<dyn Store> {
            Arc::new(self.another_host())
        }
    }

    crate::store_suite!(MemoryStore::new());

    #[tokio::test]
    async fn a_fault_happens_before_or_after_the_effect_and_then_it_is_over() {
        let store = MemoryStore::new();
        let group: GroupName = "g".parse().unwrap();
        let settings = GroupRegistration::new(group.clone(), Tenant::none());
        let other = store.another_host();
        store.fail(Operation::EnsureGroup, Fault::Before, 1);
        store.fail(Operation::EnsureGroup, Fault::After, 1);
        store.ensure_group(&settings).await.unwrap_err();
        assert!(other.group_status(&group).await.is_err());
        store.ensure_group(&settings).await.unwrap_err();
        assert!(other.group_status(&group).await.is_ok());
        store.ensure_group(&settings).await.unwrap();
        assert_eq!(store.calls(Operation::EnsureGroup), 3);
        assert_eq!(other.calls(Operation::EnsureGroup), 0);
    }

    #[tokio::test]
    async fn a_severed_session_has_lost_its_locks_and_says_so() {
        let store = MemoryStore::new();
        let group: GroupName = "g".parse().unwrap();
        let host = HostIdentity { id: "1".into(), hostname: "one".into(), pid: 1 };
        let groups = [group];
        let mut session = store.lock_session(&host).await.unwrap();
        assert_eq!(session.try_locks(&groups).await.unwrap(), [true]);
        let mut other = store.another_host().lock_session(&host).await.unwrap();
        store.sever_lock_sessions();
        assert_eq!(other.try_locks(&groups).await.unwrap(), [true]);
        session.heartbeat(&[]).await.unwrap_err();
        session.try_locks(&groups).await.unwrap_err();
        other.heartbeat(&[]).await.unwrap();
    }
}
