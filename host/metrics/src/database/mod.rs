//! What is true of the database: of its log, and of every group, whether a host runs it or
//! not. One host looks ([`Database::show`]) and exports it for all; the others export
//! nothing of it.

mod table;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::names::{OTHER, SeriesNames};
use crate::table::Table;

/// How many intervals a look is exported for, if no other follows.
const SHOWN_FOR: u32 = 3;

/// What is known of a group of the database.
#[derive(Debug, Clone, Default)]
pub struct GroupSample {
    /// Its name.
    pub name: String,
    /// Its tenant; empty without one.
    pub tenant: String,
    /// The age of the oldest event that it has not passed.
    pub lag_seconds: f64,
    /// How many events it has not passed.
    pub lag_events: u64,
    /// There may be more of them.
    pub lag_is_at_least: bool,
    /// Its cursor; of a group that is split, the lowest.
    pub position: i64,
    /// `running`, `paused` or `tripped`.
    pub state: &'static str,
    /// Its partitions; 1 where it is not split.
    pub partitions: u64,
    /// How many of them somebody leads.
    pub leaders: u64,
    /// Retries that wait.
    pub retries_pending: u64,
    /// Events that the cursor has passed and that come again.
    pub parked: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Ranges that it has passed and in which open transactions may still commit.
    pub open_ranges: u64,
    /// The attempt that holds it up at its head, and in how many seconds it is due.
    pub head: Option<(u64, f64)>,
    /// Failed attempts by kind.
    pub failures: Vec<(String, u64)>,
    /// Events that were handled successfully since the group was created.
    pub handled_total: u64,
    /// Events that became dead letters since then.
    pub dead_total: u64,
    /// Events that were committed after the group had passed them, since then.
    pub late_total: u64,
    /// Bytes that it alone keeps in the log.
    pub pinned_bytes: u64,
}

/// What is known of the log.
#[derive(Debug, Clone, Default)]
pub struct LogSample {
    /// How many events it holds.
    pub events: u64,
    /// The size of its table.
    pub bytes: Option<u64>,
    /// Its last position.
    pub last_position: i64,
    /// The safe position.
    pub safe_position: i64,
    /// Transactions that hold it up.
    pub holders: u64,
    /// The age of the oldest of them.
    pub holder_age_seconds: f64,
    /// Hosts that are connected; `None` in a store that has no list of them.
    pub hosts: Option<u64>,
}

/// One look at the database.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// The log.
    pub log: LogSample,
    /// Every group, by name.
    pub groups: Vec<GroupSample>,
}

/// A look, and when it was taken.
#[derive(Debug)]
struct Look {
    sample: Sample,
    at: Instant,
    took: Duration,
}

/// What is true of the database, as this host saw it last, while it is the one that looks.
#[derive(Debug)]
pub struct Database {
    look: RwLock<Option<Arc<Look>>>,
    names: SeriesNames,
    interval_millis: AtomicU64,
}

impl Database {
    pub(crate) fn register(table: &mut Table, names: SeriesNames, interval: Duration) -> Arc<Self> {
        let interval_millis = AtomicU64::new(0);
        let database = Arc::new(Self { look: RwLock::new(None), names, interval_millis });
        database.set_interval(interval);
        table::register(table, &database);
        database
    }

    /// Changes how often somebody looks.
    pub fn set_interval(&self, interval: Duration) {
        let millis = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        self.interval_millis.store(millis, Relaxed);
    }

    /// How often somebody looks.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_millis.load(Relaxed))
    }

    /// Exports what was seen, in the time that it took. Groups for which there is no room
    /// are put together.
    pub fn show(&self, mut sample: Sample, took: Duration) {
        let named = self.names.admit_all(sample.groups.iter().map(|group| group.name.as_str()));
        let mut named = named.into_iter();
        let (kept, others): (Vec<_>, Vec<_>) =
            sample.groups.into_iter().partition(|_| named.next().unwrap_or_default());
        sample.groups = kept;
        sample.groups.extend(others.into_iter().reduce(together));
        let look = Arc::new(Look { sample, at: Instant::now(), took });
        *self.look.write().unwrap_or_else(PoisonError::into_inner) = Some(look);
    }

    /// Exports nothing any more: another host looks.
    pub fn leave_out(&self) {
        *self.look.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn look(&self) -> Option<Arc<Look>> {
        self.look.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Groups that share series.
fn together(one: GroupSample, other: GroupSample) -> GroupSample {
    let mut failures = one.failures;
    for (kind, count) in other.failures {
        match failures.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, known)) => *known += count,
            None => failures.push((kind, count)),
        }
    }
    GroupSample {
        name: OTHER.to_owned(),
        tenant: String::new(),
        lag_seconds: one.lag_seconds.max(other.lag_seconds),
        lag_events: one.lag_events + other.lag_events,
        lag_is_at_least: one.lag_is_at_least || other.lag_is_at_least,
        // No one of them, and so no cursor, state or head.
        position: 0,
        state: "",
        head: None,
        partitions: one.partitions + other.partitions,
        leaders: one.leaders + other.leaders,
        retries_pending: one.retries_pending + other.retries_pending,
        parked: one.parked + other.parked,
        dead_letters: one.dead_letters + other.dead_letters,
        open_ranges: one.open_ranges + other.open_ranges,
        failures,
        handled_total: one.handled_total + other.handled_total,
        dead_total: one.dead_total + other.dead_total,
        late_total: one.late_total + other.late_total,
        pinned_bytes: one.pinned_bytes + other.pinned_bytes,
    }
}
