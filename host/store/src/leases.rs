//! Leases: groups, the locks on them, and the leaderships that a lock allows.
//!
//! The lock says who may lead; the epoch, which each leadership raises, refuses what a
//! former leader still sends.

use std::str::FromStr;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;

use super::{FailureCounts, Head, Settled, StoreError, Subscription, UndecidedRanges};
use event_host_core::event::time::parse_time;
use event_host_core::event::{Attempt, Epoch, GroupName, Position, Tenant};

/// Where a cursor is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Before the first event.
    Earliest,
    /// After the last event that is there now.
    Latest,
    /// After this position: the next event handled is the first one above it.
    Position(Position),
    /// Before the first event whose `time` attribute is at or after this.
    Time(Timestamp),
}

/// A text that says no place in the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no place in the log: use `earliest`, `latest`, a position such as `1200`, or a time such as `2026-01-31T12:00:00Z`"
)]
pub struct InvalidStart(pub String);

impl FromStr for Start {
    type Err = InvalidStart;

    fn from_str(text: &str) -> Result<Self, InvalidStart> {
        match text {
            "earliest" => Ok(Self::Earliest),
            "latest" => Ok(Self::Latest),
            _ => {
                if let Ok(position) = text.parse::<i64>()
                    && position >= 0
                {
                    return Ok(Self::Position(Position(position)));
                }
                let time = parse_time("start", text);
                time.map(Self::Time).map_err(|_| InvalidStart(text.to_owned()))
            }
        }
    }
}

/// The host process, as the `hosts` table and `status` show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostIdentity {
    /// A random uuid, new with each process.
    pub id: String,
    /// The machine's name.
    pub hostname: String,
    /// The process.
    pub pid: u32,
}

/// What a new group begins with. An existing group keeps its cursor, and takes
/// over the subscription.
#[derive(Debug, Clone)]
pub struct GroupRegistration {
    /// Its name.
    pub name: GroupName,
    /// Whose events it receives.
    pub tenant: Tenant,
    /// Which of them.
    pub subscription: Subscription,
    /// Where a new group begins.
    pub start: Start,
    /// Into how many partitions its events are split; 1 where they are not. Each of
    /// several has a cursor and a leader, under [`GroupName::partition`].
    pub partitions: u32,
}

impl GroupRegistration {
    /// A group that receives every event of its tenant from the first one on, in one
    /// partition.
    #[must_use]
    pub fn new(name: GroupName, tenant: Tenant) -> Self {
        Self {
            name,
            tenant,
            subscription: Subscription::all(),
            start: Start::Earliest,
            partitions: 1,
        }
    }
}

/// Whether a group is to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupState {
    /// It is.
    Running,
    /// An operator paused it.
    Paused,
    /// The host paused it, because everything fails.
    Tripped,
}

impl GroupState {
    /// The stored form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Tripped => "tripped",
        }
    }
}

/// An attempt that was recorded as begun, by a group that goes on one event at a time
/// after crashes. A new leader that finds it knows that the process died in it. It says
/// nothing of the head, and the head nothing of it: they may be of two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// The event's position.
    pub position: Position,
    /// The attempt.
    pub attempt: Attempt,
}

/// What a new leader begins with.
#[derive(Debug, Clone)]
pub struct Leadership {
    /// The fencing token of this leadership.
    pub epoch: Epoch,
    /// The number of the group's last settlement, under whichever epoch; 0
    /// before the first.
    pub settled: i64,
    /// The cursor.
    pub position: Position,
    /// The retry that was pending.
    pub head: Option<Head>,
    /// The attempt that was recorded as begun and of which nothing was settled.
    pub mark: Option<Mark>,
    /// Whether the group is to be run.
    pub state: GroupState,
    /// How many leaderships in a row, before this one, began work and ended
    /// without a settlement and without a clean end.
    pub fruitless: u32,
    /// The host that recorded the marked attempt as begun, in a store where a
    /// host can lose its lock and live on: [`Leases::is_alive_since`] tells
    /// whether it does.
    pub begun_by: Option<String>,
    /// How often attempts have failed so far.
    pub failures: FailureCounts,
    /// What the cursor has passed and what may still appear: at or below it.
    pub undecided: UndecidedRanges,
}

/// The little of a group that a running host watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupControl {
    /// Which group.
    pub name: GroupName,
    /// Its epoch: higher than the leader's own after a seek or a takeover.
    pub epoch: Epoch,
    /// Whether it is to be run.
    pub state: GroupState,
    /// Its cursor, as it was committed when this was read.
    pub position: Position,
}

/// The locks of one host. Owned by one task.
///
/// Dropping it releases every lock, at once or as soon as the database sees it;
/// so does the end of the process. A call may be given up before it answers: the
/// session is then dropped, without another call. So it is after any error: what
/// the session holds is then in doubt, and no lock of it is relied on any more.
#[async_trait]
pub trait LockSession: Send {
    /// Takes the lock of each group, no two of one name, that nobody holds, and
    /// says of each, in the same order, whether this session has its lock now.
    /// Never waits for one. Taking what this session holds already is `true` and
    /// changes nothing: one release is enough. A lock that cannot be asked for,
    /// while others can, is `false`, and said in the log.
    async fn try_locks(&mut self, groups: &[GroupName]) -> Result<Vec<bool>, StoreError>;

    /// Releases the group's lock. One that this session does not hold is left
    /// alone.
    async fn unlock(&mut self, group: &GroupName) -> Result<(), StoreError>;

    /// Proves that the locks are still held, and says for which groups the host
    /// waits while others hold their locks, where the store shows that. Where anybody
    /// can hold a lock, those that no live host holds are got free, or got round.
    async fn heartbeat(&mut self, standing_by: &[GroupName]) -> Result<(), StoreError>;

    /// Says of whose partitions this host takes a share, and gives, in the same order,
    /// the ids of the other hosts that have said so of each of them and live.
    async fn sharers(&mut self, groups: &[GroupName]) -> Result<Vec<Vec<String>>, StoreError>;
}

/// Who may lead a group, and what a new leader finds.
#[async_trait]
pub trait Leases: Send + Sync + 'static {
    /// A session for this host's locks.
    async fn lock_session(&self, host: &HostIdentity) -> Result<Box<dyn LockSession>, StoreError>;

    /// Writes down what this host is troubled by, one thing a line, for `status`;
    /// `None` for nothing. To be repeated while it is so: `status` shows it for a
    /// minute. A store without a list of hosts has no place for it.
    async fn record_outages(
        &self,
        host: &HostIdentity,
        trouble: Option<&str>,
    ) -> Result<(), StoreError> {
        let _ = (host, trouble);
        Ok(())
    }

    /// Makes a group that is not there, and leaves one that is as it is, whatever it is
    /// like. For a store in which a group's lock stands in the group.
    async fn make_group(&self, settings: &GroupRegistration) -> Result<(), StoreError> {
        let _ = settings;
        Ok(())
    }

    /// Creates the group if it does not exist, with its partitions, and records its
    /// subscription.
    ///
    /// A group that is split in another way is repartitioned: each partition begins at
    /// the highest cursor that there was, and what one had before it, what was parked and
    /// what was retried comes again, in the partitions where it now belongs. What one had
    /// before it is what the group receives by these settings: an event that is above the
    /// cursor of its partition is as new to a changed subscription as one above all of them.
    /// What is parked or retried comes again also where it is no longer subscribed to.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for a group of another tenant, and when it cannot be
    /// repartitioned: while somebody leads a part of it, while what it has passed is open,
    /// and where a part is more than 100,000 events behind another.
    async fn ensure_group(&self, settings: &GroupRegistration) -> Result<(), StoreError>;

    /// Epoch, state and cursor of every group and partition, in one cheap query.
    async fn group_states(&self) -> Result<Vec<GroupControl>, StoreError>;

    /// Raises the epoch and records the leader. The caller holds the group's
    /// lock.
    async fn begin_leadership(
        &self,
        group: &GroupName,
        host: &HostIdentity,
    ) -> Result<Leadership, StoreError>;

    /// Whether a host, by its id, has shown itself since the group's present
    /// leadership began. One that has did not die before that, whatever became of
    /// its lock.
    async fn is_alive_since(&self, host: &str, group: &GroupName) -> Result<bool, StoreError> {
        let _ = (host, group);
        Ok(false)
    }

    /// Records a clean end: no leader, nothing in flight, not fruitless. A
    /// stale epoch is ignored.
    async fn end_leadership(&self, group: &GroupName, epoch: Epoch) -> Result<(), StoreError>;

    /// Counts the leadership as fruitless until something is settled. Called
    /// once, before the first attempt of a leadership, so that a leader that had
    /// nothing to do is not counted.
    ///
    /// Only while `settled` is the number of the group's last settlement: one
    /// that is late must not take back what a settlement has proved. One that is
    /// tried again after an unknown outcome may count twice, which makes a group
    /// careful a crash too early and costs nothing else.
    async fn record_work_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
    ) -> Result<Settled, StoreError>;

    /// Records, before it begins, the attempt that a crash would leave behind,
    /// beside the retry that is pending, which stays as it is.
    /// Not progress: it does not end a run of fruitless leaderships.
    ///
    /// Only while `settled` is the number of the group's last settlement: one
    /// that is late would mark an attempt that is long over.
    async fn record_attempt_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
        mark: Mark,
    ) -> Result<Settled, StoreError>;

    /// Forgets the attempt that was recorded as begun, because the host that began it
    /// lives: no later leader counts it either.
    async fn withdraw_attempt(
        &self,
        group: &GroupName,
        epoch: Epoch,
    ) -> Result<Settled, StoreError>;
}
