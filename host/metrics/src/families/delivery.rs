//! Of groups: attempts, settlements, leaderships, and what admits them.

use std::sync::OnceLock;
use std::time::Duration;

use super::{BATCHES, DURATIONS, MEMORY, WAITS, each, labels};
use crate::family::Family;
use crate::metric::{Kind, Metric};
use crate::names::SeriesNames;
use crate::table::Table;
use crate::values::{Counter, Gauge, Histogram, Level, Seconds};
use event_host_core::event::{GroupName, Tenant};
use event_host_core::handler::Usage;

use super::host::One;
use super::store::StoreMetrics;

static LEADING: Metric = Metric::process(
    Kind::Gauge,
    "event_host_leading",
    &["group"],
    "Partitions of the group that this host leads; 1 for a group that is not split",
);
static LEADERSHIPS: Metric = Metric::process(
    Kind::Counter,
    "event_host_leaderships",
    &["group", "event"],
    "Leaderships that began here, ended in order, or were lost",
);
static ATTEMPTS: Metric = Metric::process(
    Kind::Counter,
    "event_host_attempts",
    &["group", "tenant", "outcome"],
    "Attempts, by what became of the event; interrupted ones count for nothing",
);
static ATTEMPT_DURATION: Metric = Metric::process(
    Kind::Histogram,
    "event_host_attempt_duration_seconds",
    &["group"],
    "How long calls of the handler took, the making of an instance included",
);
static ATTEMPT_MEMORY: Metric = Metric::process(
    Kind::Histogram,
    "event_host_attempt_memory_bytes",
    &["group"],
    "All memories of the instance together at the end of a call",
);
static EVENT_AGE: Metric = Metric::process(
    Kind::Histogram,
    "event_host_event_age_seconds",
    &["group"],
    "From an event's `time` to when it was read, for the first of each fetch",
);
static REDELIVERIES: Metric = Metric::process(
    Kind::Counter,
    "event_host_redeliveries",
    &["group", "reason"],
    "Attempts of events that came again: retry, delayed, replay, late, alone",
);
static EMITS: Metric =
    Metric::process(Kind::Counter, "event_host_emits", &["group"], "Emits that were committed");
static SETTLEMENTS: Metric = Metric::process(
    Kind::Counter,
    "event_host_settlements",
    &["group", "result"],
    "Settlements, each try of one: committed, not_leader, refused, error",
);
static SETTLEMENT_DURATION: Metric = Metric::process(
    Kind::Histogram,
    "event_host_settlement_duration_seconds",
    &[],
    "How long settlements took, the wait for their turn included",
);
static SETTLEMENT_EVENTS: Metric = Metric::process(
    Kind::Histogram,
    "event_host_settlement_events",
    &[],
    "Events of one settlement, those that go on waiting for an attempt not counted",
);
static FETCH_DURATION: Metric = Metric::process(
    Kind::Histogram,
    "event_host_fetch_duration_seconds",
    &[],
    "How long reads of the log took, the wait for their turn included",
);
static FETCHED_EVENTS: Metric = Metric::process(
    Kind::Counter,
    "event_host_fetched_events",
    &["group"],
    "Events that were read from the log",
);
static SWAPS: Metric = Metric::process(
    Kind::Counter,
    "event_host_swaps",
    &["group", "result"],
    "Components that took over from others: swapped, rolled_back",
);
static TRIPS: Metric = Metric::process(
    Kind::Counter,
    "event_host_trips",
    &["group", "result"],
    "Groups that stopped because everything failed, and that went on: tripped, over",
);
static COMPONENT: Metric = Metric::process(
    Kind::Info,
    "event_host_component",
    &["group", "digest", "version"],
    "The component that this host runs for the group; a version if it is deployed",
);
static PERMITS: Metric = Metric::process(
    Kind::Gauge,
    "event_host_permits",
    &["tenant"],
    "Attempts that may run at once",
);
static PERMITS_IN_USE: Metric = Metric::process(
    Kind::Gauge,
    "event_host_permits_in_use",
    &["tenant"],
    "Attempts that hold a permit",
);
static PERMITS_WAITING: Metric = Metric::process(
    Kind::Gauge,
    "event_host_permits_waiting",
    &["tenant"],
    "Tasks that wait for a permit",
);
static PERMIT_WAIT: Metric = Metric::process(
    Kind::Histogram,
    "event_host_permit_wait_seconds",
    &["tenant"],
    "How long tasks waited for a permit that was not free at once",
);
static HANDLER_CPU: Metric = Metric::process(
    Kind::Counter,
    "event_host_handler_cpu_seconds",
    &["tenant"],
    "CPU time of handlers, counted for tenants that have a ceiling of it",
);

labels! {
    /// What became of the event of an attempt.
    Attempted {
        /// It is handled.
        Success = "success",
        /// It is tried again.
        Retry = "retry",
        /// It is a dead letter.
        DeadLetter = "dead_letter",
        /// The attempt counts for nothing.
        Interrupted = "interrupted",
    }
}

labels! {
    /// Why an event came again.
    Redelivered {
        /// An attempt of it failed.
        Retry = "retry",
        /// It was to be delivered later.
        Delayed = "delayed",
        /// It was a dead letter.
        Replay = "replay",
        /// It was committed after the group had passed it.
        Late = "late",
        /// A call with several events failed, and each is tried by itself.
        Alone = "alone",
    }
}

labels! {
    /// What came of a try to settle.
    SettledAs {
        /// It is committed.
        Committed = "committed",
        /// Another epoch has taken over.
        NotLeader = "not_leader",
        /// The database refuses what it holds.
        Refused = "refused",
        /// It failed, or nobody knows.
        Error = "error",
    }
}

labels! {
    /// What became of a leadership.
    Leaderships {
        /// It began.
        Began = "began",
        /// It ended in order, or another took over.
        Ended = "ended",
        /// Its lock was lost.
        Lost = "lost",
    }
}

labels! {
    /// How one component took over from another.
    Swap {
        /// As it was wanted.
        Swapped = "swapped",
        /// Because it failed everything, the one before it took over again.
        RolledBack = "rolled_back",
    }
}

labels! {
    /// What a group does whose handler fails everything.
    Trip {
        /// It stopped.
        Tripped = "tripped",
        /// It goes on.
        Over = "over",
    }
}

/// Metrics of groups.
#[derive(Debug, Clone)]
pub struct Deliveries {
    names: SeriesNames,
    leading: Family<Level>,
    leaderships: Family<Counter>,
    attempts: Family<Counter>,
    attempt_duration: Family<Histogram>,
    attempt_memory: Family<Histogram>,
    event_age: Family<Histogram>,
    redeliveries: Family<Counter>,
    emits: Family<Counter>,
    settlements: Family<Counter>,
    settlement_duration: Histogram,
    settlement_events: Histogram,
    fetch_duration: Histogram,
    fetched_events: Family<Counter>,
    swaps: Family<Counter>,
    trips: Family<Counter>,
    component: Family<One>,
    permits: Permits,
    store: StoreMetrics,
}

impl Deliveries {
    pub(crate) fn register(table: &mut Table, names: SeriesNames, store: StoreMetrics) -> Self {
        Self {
            names,
            store,
            leading: table.add(Family::new(&LEADING)),
            leaderships: table.add(Family::new(&LEADERSHIPS)),
            attempts: table.add(Family::new(&ATTEMPTS)),
            attempt_duration: table.add(Family::of(&ATTEMPT_DURATION, DURATIONS)),
            attempt_memory: table.add(Family::of(&ATTEMPT_MEMORY, MEMORY)),
            event_age: table.add(Family::of(&EVENT_AGE, WAITS)),
            redeliveries: table.add(Family::new(&REDELIVERIES)),
            emits: table.add(Family::new(&EMITS)),
            settlements: table.add(Family::new(&SETTLEMENTS)),
            settlement_duration: table.add(Family::of(&SETTLEMENT_DURATION, DURATIONS)).with(&[]),
            settlement_events: table.add(Family::of(&SETTLEMENT_EVENTS, BATCHES)).with(&[]),
            fetch_duration: table.add(Family::of(&FETCH_DURATION, DURATIONS)).with(&[]),
            fetched_events: table.add(Family::new(&FETCHED_EVENTS)),
            swaps: table.add(Family::new(&SWAPS)),
            trips: table.add(Family::new(&TRIPS)),
            component: table.add(Family::new(&COMPONENT)),
            permits: Permits::register(table),
        }
    }

    /// What a group counts with, resolved. A partition counts with its group.
    #[must_use]
    pub fn group(&self, group: &GroupName, tenant: &Tenant) -> GroupMetrics {
        let label = self.names.label(group.whole());
        let tenant = if label == group.whole() { tenant.as_str() } else { "" };
        GroupMetrics {
            leading: self.leading.with(&[label]),
            leaderships: each(&self.leaderships, &[label], Leaderships::LABELS),
            attempts: each(&self.attempts, &[label, tenant], Attempted::LABELS),
            duration: self.attempt_duration.with(&[label]),
            memory: self.attempt_memory.with(&[label]),
            event_age: self.event_age.with(&[label]),
            redeliveries: each(&self.redeliveries, &[label], Redelivered::LABELS),
            emits: self.emits.with(&[label]),
            settlements: each(&self.settlements, &[label], SettledAs::LABELS),
            settlement_duration: self.settlement_duration.clone(),
            settlement_events: self.settlement_events.clone(),
            fetch_duration: self.fetch_duration.clone(),
            fetched_events: self.fetched_events.with(&[label]),
            swaps: each(&self.swaps, &[label], Swap::LABELS),
            trips: each(&self.trips, &[label], Trip::LABELS),
            store: self.store.clone(),
        }
    }

    /// Says which components this host runs: of each group its digest, and its version if
    /// it is deployed. Those that were said before and are not any more are forgotten.
    pub fn components<'a>(&self, runs: impl Iterator<Item = (&'a str, &'a str, String)>) {
        let runs: Vec<[String; 3]> = runs
            .map(|(group, digest, version)| {
                [self.names.label(group).to_owned(), digest.to_owned(), version]
            })
            // What several groups share says nothing of one.
            .filter(|[group, ..]| group != crate::names::OTHER)
            .collect();
        self.component.retain(|labels| runs.iter().any(|run| run[..] == *labels));
        for [group, digest, version] in &runs {
            let One = self.component.with(&[group, digest, version]);
        }
    }

    /// What admission tells.
    #[must_use]
    pub fn permits(&self) -> &Permits {
        &self.permits
    }
}

/// What one group counts with.
#[derive(Debug, Clone)]
pub struct GroupMetrics {
    leading: Level,
    leaderships: [Counter; Leaderships::LABELS.len()],
    attempts: [Counter; Attempted::LABELS.len()],
    duration: Histogram,
    memory: Histogram,
    /// How old the first event of a fetch was.
    pub event_age: Histogram,
    redeliveries: [Counter; Redelivered::LABELS.len()],
    /// Emits that were committed.
    pub emits: Counter,
    settlements: [Counter; SettledAs::LABELS.len()],
    /// How long settlements took.
    pub settlement_duration: Histogram,
    /// How many events they had.
    pub settlement_events: Histogram,
    /// How long reads of the log took.
    pub fetch_duration: Histogram,
    /// Events that were read from the log.
    pub fetched_events: Counter,
    swaps: [Counter; Swap::LABELS.len()],
    trips: [Counter; Trip::LABELS.len()],
    /// Calls of the database, of all groups together.
    pub store: StoreMetrics,
}

impl Default for GroupMetrics {
    /// Counts for nobody, for groups that are run apart from a host.
    fn default() -> Self {
        let names = SeriesNames::new(0);
        let mut table = Table::default();
        let store = StoreMetrics::register(&mut table);
        let nobody = Deliveries::register(&mut table, names, store);
        nobody.group(&GroupName::shown(crate::names::OTHER), &Tenant::none())
    }
}

impl GroupMetrics {
    /// Observes what a call of the handler used.
    #[inline]
    pub fn ran(&self, usage: &Usage) {
        self.duration.observe(usage.duration);
        self.memory.observe_len(usage.memory_bytes);
    }

    /// Counts attempts by what became of their events.
    #[inline]
    pub fn attempted(&self, outcome: Attempted, events: u64) {
        self.attempts[outcome as usize].add(events);
    }

    /// Counts an attempt of an event that came again.
    #[inline]
    pub fn redelivered(&self, reason: Redelivered) {
        self.redeliveries[reason as usize].inc();
    }

    /// Counts a try to settle.
    pub fn settled(&self, result: SettledAs) {
        self.settlements[result as usize].inc();
    }

    /// Counts a component that took over.
    pub fn swapped(&self, how: Swap) {
        self.swaps[how as usize].inc();
    }

    /// Counts a trip, or the end of one.
    pub fn tripped(&self, what: Trip) {
        self.trips[what as usize].inc();
    }

    /// Counts a leadership for as long as the answer lives.
    #[must_use]
    pub fn leads(&self) -> CountedLeadership {
        self.leading.add(1);
        self.leaderships[Leaderships::Began as usize].inc();
        CountedLeadership { group: self.clone(), ending: Leaderships::Ended }
    }
}

/// A leadership that is counted.
#[derive(Debug)]
pub struct CountedLeadership {
    group: GroupMetrics,
    ending: Leaderships,
}

impl CountedLeadership {
    /// Its lock was lost.
    pub fn lost(mut self) {
        self.ending = Leaderships::Lost;
    }
}

impl Drop for CountedLeadership {
    fn drop(&mut self) {
        self.group.leading.sub(1);
        self.group.leaderships[self.ending as usize].inc();
    }
}

/// What admission tells.
#[derive(Debug, Clone)]
pub struct Permits {
    most: Family<Gauge>,
    in_use: Family<Gauge>,
    waiting: Family<Gauge>,
    wait: Family<Histogram>,
    cpu: Family<Seconds>,
}

impl Permits {
    fn register(table: &mut Table) -> Self {
        Self {
            most: table.add(Family::new(&PERMITS)),
            in_use: table.add(Family::new(&PERMITS_IN_USE)),
            waiting: table.add(Family::new(&PERMITS_WAITING)),
            wait: table.add(Family::of(&PERMIT_WAIT, WAITS)),
            cpu: table.add(Family::new(&HANDLER_CPU)),
        }
    }

    /// What a tenant counts with, resolved.
    #[must_use]
    pub fn tenant(&self, tenant: &Tenant) -> TenantPermits {
        TenantPermits {
            wait: self.wait.with(&[tenant.as_str()]),
            cpu: OnceLock::new(),
            cpu_of_all: self.cpu.clone(),
            tenant: tenant.clone(),
        }
    }

    /// What is held at this moment: of each tenant, how many attempts may run at once, how
    /// many do, and how many tasks wait.
    pub fn set(&self, tenant: &Tenant, most: usize, in_use: usize, waiting: usize) {
        let count = |count| u64::try_from(count).unwrap_or(u64::MAX);
        let tenant = [tenant.as_str()];
        self.most.with(&tenant).set_count(count(most));
        self.in_use.with(&tenant).set_count(count(in_use));
        self.waiting.with(&tenant).set_count(count(waiting));
    }
}

impl Default for Permits {
    /// Tells nobody.
    fn default() -> Self {
        Self::register(&mut Table::default())
    }
}

/// What the attempts of one tenant count with.
#[derive(Debug, Clone)]
pub struct TenantPermits {
    wait: Histogram,
    /// Resolved when CPU time is first counted. Without a ceiling it never is, and a series
    /// would say 0 of a tenant whose handlers may compute all day.
    cpu: OnceLock<Seconds>,
    cpu_of_all: Family<Seconds>,
    tenant: Tenant,
}

impl TenantPermits {
    /// A task waited so long for a permit.
    pub fn waited(&self, time: Duration) {
        self.wait.observe(time);
    }

    /// Handlers took so much CPU time.
    pub fn took_cpu(&self, time: Duration) {
        self.cpu.get_or_init(|| self.cpu_of_all.with(&[self.tenant.as_str()])).add(time);
    }
}
