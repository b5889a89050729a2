//! Leases: groups, the locks on them, and the leaderships that a lock allows.
//!
//! The lock says who may lead; the epoch, which each leadership raises, refuses what a
//! former leader still sends.

use std::str::FromStr;
use std::sync::Arc;

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
    /// What is written down of the group.
    pub registered: GroupRow,
    /// Whether it may have redeliveries: only then they need be read.
    pub may_have_redeliveries: bool,
    /// The same of deferred events.
    pub may_have_deferred: bool,
}

/// What is written down of a group that does not change while it is led.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRow {
    /// Its tenant.
    pub tenant: String,
    /// The patterns of its subscription.
    pub subscribe: Vec<String>,
    /// Into how many partitions it is split.
    pub partitions: u32,
}

impl GroupRow {
    /// Whether it is what these settings would write down.
    #[must_use]
    pub fn is_as(&self, settings: &GroupRegistration) -> bool {
        self.tenant == settings.tenant.as_str()
            && self.subscribe == settings.subscription.patterns()
            && self.partitions == settings.partitions
    }
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

/// What came of the claim of a group.
#[derive(Debug, Clone)]
pub enum Claim {
    /// The session leads it now.
    Led(Box<Leadership>),
    /// Another session leads it, or its lock cannot be had, which is said in the log.
    LedElsewhere,
    /// Nobody leads it, and for now this session cannot either: for this reason, which is no
    /// trouble of any other group.
    Unavailable(String),
    /// There is no such group.
    Missing,
}

/// A group that a session gives back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Which group.
    pub group: GroupName,
    /// The epoch of a leadership that ended cleanly: nothing is in flight, and it was not
    /// fruitless. `None` where nothing is said of that.
    pub ended: Option<Epoch>,
}

/// Who runs the groups of a host, and who leads them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roster {
    /// The groups that the host announced and that are there, in the order of their names.
    pub groups: Vec<Runners>,
}

/// Who runs a group beside the host that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runners {
    /// The group.
    pub group: GroupName,
    /// The ids of the other hosts that announced it and live, in their order.
    pub others: Arc<[String]>,
    /// The one of all hosts that live that leads it, as far as is known.
    pub leader: Option<String>,
    /// No session that is there leads it: whoever claims it may have it.
    pub is_free: bool,
}

/// What one host at a time does on behalf of all, and what belongs to no group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Duty {
    /// To look at everything that is true of the database, for its metrics.
    Overview,
}

impl Duty {
    /// Every one.
    pub const ALL: [Self; 1] = [Self::Overview];

    /// What it is called in the database.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
        }
    }
}

/// The session by which a host leads. Owned by one task.
///
/// A group is led by one session at a time: by the one that claimed it, until that gives it
/// back or ends. The database sees the end of a session; no clock decides it.
///
/// Dropping it gives back every group, at once or as soon as the database sees it;
/// so does the end of the process. A call may be given up before it answers: the
/// session is then dropped, without another call. So it is after any error: what
/// the session leads is then in doubt, and no leadership of it is relied on any more.
#[async_trait]
pub trait LockSession: Send {
    /// Claims those of these groups, no two of one name, that no other session leads, and
    /// says of each, in the same order, what came of it. Never waits for another session
    /// or for a row. Each leadership that begins raises the epoch of its group, also where
    /// this session leads it already.
    async fn claim(&mut self, groups: &[GroupName]) -> Result<Vec<Claim>, StoreError>;

    /// Gives groups back, so that others may claim them. What this session does not lead, and
    /// a clean end under a stale epoch, is left alone. Gives those whose rows somebody else
    /// has: they are still led, and to be given back again.
    async fn release(&mut self, groups: &[Release]) -> Result<Vec<GroupName>, StoreError>;

    /// Claims a duty, unless another session has it. Whether this session has it now. As with
    /// groups: whoever has a duty keeps it until it gives it back or its session ends, which
    /// the database sees; and no other session or row is waited for.
    async fn claim_duty(&mut self, duty: Duty) -> Result<bool, StoreError>;

    /// Gives a duty back, so that others may claim it. One that this session does not have is
    /// left alone.
    async fn release_duty(&mut self, duty: Duty) -> Result<(), StoreError>;

    /// Proves that the session still leads. Where it stands by for what others have,
    /// and anybody can hold their locks, those that no live host holds are got free, or got
    /// round.
    async fn heartbeat(&mut self, stands_by: bool) -> Result<(), StoreError>;

    /// Says which groups this host leads or would lead, in place of what it said before.
    async fn announce(&mut self, groups: &[GroupName]) -> Result<(), StoreError>;

    /// Who else announced these groups, and who leads them; `None` where nothing of that has
    /// changed since this session was told last.
    async fn roster(&mut self) -> Result<Option<Roster>, StoreError>;
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

    /// Does the same for many groups, no two of one name. Those that are there as they are
    /// wanted, and those that are not there at all, cost a store that can do so no statement
    /// each.
    ///
    /// # Errors
    /// As [`Leases::ensure_group`], for the first group that is refused. Others may be made.
    async fn ensure_groups(&self, settings: &[GroupRegistration]) -> Result<(), StoreError> {
        for group in settings {
            self.ensure_group(group).await?;
        }
        Ok(())
    }

    /// Epoch, state and cursor of every group and partition, in one cheap query.
    async fn group_states(&self) -> Result<Vec<GroupControl>, StoreError>;

    /// A number that changes whenever the epoch or the state of a group does, unless by a
    /// settlement that moves a cursor; to be read before [`Leases::group_states`], which then
    /// need not be read again while it stays. `None` where the store keeps none.
    async fn control_version(&self) -> Result<Option<i64>, StoreError> {
        Ok(None)
    }

    /// Begins another leadership of a group that a session of this host leads, or nobody:
    /// raises the epoch and records the leader.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where another session leads it.
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
