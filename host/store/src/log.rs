//! The log: one sequence of events for all tenants.
//!
//! Positions grow, may have gaps, and are never used again. At or below the safe position
//! nothing can appear any more; [`EventLog::fetch_overtaking`] reads past it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use super::{
    Enforced, FetchedLate, LateFetch, LogPin, OvertakingFetch, Retention, StoreError, Subscription,
    UndecidedRanges,
};
use event_host_core::event::{Event, GroupName, LogEvent, Partition, Position, Tenant};
use event_host_core::foreign::one_line;

/// What a leader asks the log for.
#[derive(Debug, Clone)]
pub struct Fetch<'a> {
    /// Events that are addressed to this group alone, or to the one that it is a
    /// partition of, are included.
    pub group: &'a GroupName,
    /// Whose events.
    pub tenant: &'a Tenant,
    /// Which of them; what is addressed to the group is always included.
    pub subscription: &'a Subscription,
    /// Those of this partition alone; `None` for all.
    pub partition: Option<Partition>,
    /// Positions above this one.
    pub after: Position,
    /// Positions up to and including this one, which is safe.
    pub up_to: Position,
    /// Maximum number of events.
    pub max_events: usize,
    /// Maximum size of all of them with their attributes, in bytes: the event that reaches
    /// it is the last one.
    pub max_bytes: usize,
}

/// A part of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The events, in position order. Each by itself from the start: it is shared as
    /// long as it is under way, and to move it costs as much as to read a column.
    pub events: Vec<Arc<LogEvent>>,
    /// Everything for this group at or below this position, and above the
    /// cursor, is in `events`.
    pub scanned_to: Position,
}

/// Events of the log at positions that were asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The events, in position order.
    pub events: Vec<LogEvent>,
    /// Those of the positions at or below this one were looked at: what is not among the
    /// events is not there.
    pub looked_to: Position,
}

/// What can be said of an event without reading what may be large of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sketch {
    /// The event without its data, with texts that are cut or left out.
    pub event: LogEvent,
    /// How large all of it is, in bytes, as far as the store knows without reading it.
    pub bytes: u64,
}

/// A transaction that may have drawn positions and is still open: nothing above
/// them is delivered until it ends.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Blocker {
    /// The server's process; none for a prepared transaction.
    pub pid: Option<i64>,
    /// The name of a prepared transaction, which only `COMMIT PREPARED` or
    /// `ROLLBACK PREPARED` ends.
    pub prepared: Option<String>,
    /// What the client calls itself; empty where this role may not see it.
    pub application: String,
    /// The role; empty where this role may not see it.
    pub user: String,
    /// For how many seconds the transaction has been open, where this role may
    /// see it.
    pub age_seconds: Option<f64>,
}

impl Blocker {
    /// Which transaction, in a few words.
    #[must_use]
    pub fn name(&self) -> String {
        match (&self.prepared, self.pid) {
            (Some(name), _) => format!("the prepared transaction `{}`", one_line(name)),
            (None, Some(pid)) => format!("the transaction of server process {pid}"),
            (None, None) => "a prepared transaction".to_owned(),
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        if !self.application.is_empty() {
            write!(f, " ({})", one_line(&self.application))?;
        }
        if !self.user.is_empty() {
            write!(f, " of role {}", one_line(&self.user))?;
        }
        if let Some(age) = self.age_seconds {
            write!(f, ", open for {age:.0} s")?;
        }
        Ok(())
    }
}

/// What a store carries out at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Fetches. At least 1.
    pub reads: usize,
    /// Settlements. At least 1.
    pub writes: usize,
}

/// The log: appending to it, reading it, and letting go of its beginning.
#[async_trait]
pub trait EventLog: Send + Sync + 'static {
    /// Refuses a database from which nothing must be delivered, because events
    /// would be lost or repeated in silence.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] or [`StoreError::Refused`] with what is wrong and
    /// what puts it right.
    async fn check(&self) -> Result<(), StoreError>;

    /// Appends events to the log, all or none, and gives their positions.
    async fn publish(&self, tenant: &Tenant, events: &[Event])
    -> Result<Vec<Position>, StoreError>;

    /// The highest position at or below which no event can still appear.
    ///
    /// # Errors
    /// [`StoreError::Changed`], once, when the log is not the one that it was at the
    /// call before. The store has forgotten what it knew of it by then; whoever asked
    /// is to forget what it remembers, and every leadership, before it asks again.
    /// Only then does the store lend connections to the new one.
    async fn safe_position(&self) -> Result<Position, StoreError>;

    /// Who holds the log up, and has for more than a second. Cheap while nobody
    /// does.
    async fn blockers(&self) -> Result<Vec<Blocker>, StoreError> {
        Ok(Vec::new())
    }

    /// Returns when the database hints that something was published. Only saves
    /// time: hints may be missing, late, or for nothing.
    async fn wait_for_hint(&self) {
        std::future::pending().await
    }

    /// One round of upkeep: lets go of what the retention says may go and no group
    /// needs any more, of which a shared store may leave a part for later rounds.
    /// What is left is the end of the log, without a gap; positions are never used
    /// again. Publishing, fetching and settling do not wait for it for long.
    /// Safe when several hosts do it at once.
    ///
    /// An event that goes is at or below every cursor at that moment, those of
    /// paused groups and of groups that no host runs included. A cursor that is
    /// moved back, and a new group, begin with what is left.
    async fn enforce_retention(&self, retention: &Retention) -> Result<Enforced, StoreError>;

    /// Looks whether the groups of a tenant keep more than `most` bytes of events in the log
    /// that would go without them. If so, pauses the one that is furthest behind, with all
    /// its partitions, has it keep nothing in the log from then on, and gives what it kept;
    /// what its leader has read and not settled is refused. Once for each group: to be
    /// called until there is none.
    async fn unpin(
        &self,
        tenant: &Tenant,
        retention: &Retention,
        most: u64,
    ) -> Result<Option<LogPin>, StoreError>;

    /// What it carries out at once. The host shares that out among groups; calls beyond
    /// it wait in the store, in the order in which they came.
    fn limits(&self) -> StoreLimits;

    /// Reads a part of the log: as much of it as comes in time, and at least one event
    /// if there is one.
    async fn fetch(&self, fetch: Fetch<'_>) -> Result<Fetched, StoreError>;

    /// Reads the next event alone, and takes its time, where others failed to read
    /// several.
    async fn fetch_one(&self, fetch: Fetch<'_>) -> Result<Fetched, StoreError> {
        self.fetch(Fetch { max_events: 1, ..fetch }).await
    }

    /// What can be said of the next event that [`EventLog::fetch`] would read, without
    /// reading what may be large of it; none where there is no event, or where the store
    /// reads every event in no time.
    async fn sketch(&self, fetch: Fetch<'_>) -> Result<Option<Sketch>, StoreError> {
        let _ = fetch;
        Ok(None)
    }

    /// The events at these positions, in position order, whether the log has them or
    /// they are deferred; one that is
    /// not there is left out, and so is one of another tenant or for another group
    /// alone. The subscription does not matter: it may have changed since the
    /// group received them.
    ///
    /// They come with their data, so a leader asks for no more than it handles
    /// next. The first of them, as many as come in time, up to the one that
    /// brings all of them to so many bytes; at least one if there is one.
    async fn fetch_at(
        &self,
        group: &GroupName,
        positions: &[Position],
        max_bytes: usize,
    ) -> Result<Found, StoreError>;

    /// Takes events that were read and are settled: their memory may be used for those
    /// that are read next.
    fn recycle(&self, events: Vec<Arc<LogEvent>>) {
        drop(events);
    }

    /// The highest position at or below which nothing can appear any more but of
    /// transactions that have been about to publish for longer than this, as of the
    /// last [`EventLog::safe_position`] of this handle. Asks the database nothing. At or
    /// below the safe position in a store where nothing is ever held up.
    async fn overtake_limit(&self, longer_than: Duration) -> Position {
        let _ = longer_than;
        Position::ZERO
    }

    /// Reads a part of the log whose end need not be safe, and tells what of it may
    /// still appear above `safe`, which is. In at most so many ranges, at least 1:
    /// what was read ends before there would be more.
    ///
    /// Every event that the group receives is in exactly one of these: what was read, what
    /// is undecided, where it will appear, and what is above both.
    async fn fetch_overtaking(
        &self,
        fetch: Fetch<'_>,
        safe: Position,
        max_ranges: usize,
    ) -> Result<OvertakingFetch, StoreError> {
        let _ = max_ranges;
        let up_to = fetch.up_to.min(safe);
        Ok(OvertakingFetch {
            fetched: self.fetch(Fetch { up_to, ..fetch }).await?,
            undecided: UndecidedRanges::NONE,
        })
    }

    /// Looks whether something has appeared where a group had passed. What has is no
    /// longer undecided, whichever group receives it; nor is what is safe and holds nothing.
    async fn fetch_late(&self, late: LateFetch<'_>) -> Result<FetchedLate, StoreError> {
        let _ = late;
        Ok(FetchedLate { events: Vec::new(), undecided: UndecidedRanges::NONE, has_more: false })
    }
}
