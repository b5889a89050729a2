//! What is true of the database: of its log, and of every group, whether a host runs it or
//! not. One host looks ([`Database::show`]) and exports it for all; the others export
//! nothing of it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};

use crate::family::{Named, Source, describe};
use crate::metric::{Kind, Metric};
use crate::names::{OTHER, SeriesNames};
use crate::table::Table;
use crate::values::as_float;
use event_host_core::failure::FailureKind;

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
        for (metric, values) in TABLE {
            table.add_source(Box::new(Exported {
                metric,
                values: *values,
                database: Arc::clone(&database),
            }));
        }
        database
    }

    /// How often somebody looks.
    pub fn set_interval(&self, interval: Duration) {
        let millis = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        self.interval_millis.store(millis, Relaxed);
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

/// How the values of a metric come out of a look.
#[derive(Clone, Copy)]
enum Values {
    /// Of the look itself; also of one that is too old to be exported.
    Look(fn(&Look) -> f64),
    /// Of the log.
    Log(fn(&LogSample) -> Option<f64>),
    /// Of each group, by its name.
    Group(fn(&GroupSample) -> Option<f64>),
    /// Of each group, by its name and tenant.
    Tenant(fn(&GroupSample) -> Option<f64>),
    /// Counters of each group, by its name and tenant.
    Total(fn(&GroupSample) -> u64),
    /// The states of each group.
    States,
    /// The failures of each group, by kind.
    Failures,
}

const STATES: [&str; 3] = ["running", "paused", "tripped"];

/// What a failure kind of a newer host counts as.
const OTHER_KIND: &str = "other";

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric::database(Kind::Gauge, name, labels, help)
}

const fn total(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric::database(Kind::Counter, name, labels, help)
}

const GROUP: &[&str] = &["group"];
const TENANT: &[&str] = &["group", "tenant"];

static TABLE: &[(Metric, Values)] = &[
    (
        Metric::process(
            Kind::Gauge,
            "event_host_overview_age_seconds",
            &[],
            "How long ago this host looked at the database for all; grows while that is away",
        ),
        Values::Look(|look| look.at.elapsed().as_secs_f64()),
    ),
    (
        Metric::process(
            Kind::Gauge,
            "event_host_overview_duration_seconds",
            &[],
            "How long that look took",
        ),
        Values::Look(|look| look.took.as_secs_f64()),
    ),
    (
        gauge("event_host_log_events", &[], "Events in the log, estimated where they are many"),
        Values::Log(|log| Some(as_float(log.events))),
    ),
    (
        gauge("event_host_log_bytes", &[], "What the log takes in the database"),
        Values::Log(|log| log.bytes.map(as_float)),
    ),
    (
        gauge("event_host_log_last_position", &[], "The highest position in the log"),
        Values::Log(|log| Some(position(log.last_position))),
    ),
    (
        gauge("event_host_log_safe_position", &[], "The position up to which the log is decided"),
        Values::Log(|log| Some(position(log.safe_position))),
    ),
    (
        gauge("event_host_log_holders", &[], "Transactions that have held the log up for a second"),
        Values::Log(|log| Some(as_float(log.holders))),
    ),
    (
        gauge("event_host_log_holder_age_seconds", &[], "The age of the oldest of them; 0 without"),
        Values::Log(|log| Some(log.holder_age_seconds)),
    ),
    (
        gauge(
            "event_host_log_pinned_bytes",
            GROUP,
            "What the group that is furthest behind keeps in the log beyond its retention",
        ),
        Values::Group(|group| (group.pinned_bytes > 0).then(|| as_float(group.pinned_bytes))),
    ),
    (
        gauge("event_host_hosts", &[], "Hosts that are connected, in a store that knows"),
        Values::Log(|log| log.hosts.map(as_float)),
    ),
    (
        gauge(
            "event_host_group_lag_seconds",
            TENANT,
            "The age of the oldest event that the group has not passed; 0 without one",
        ),
        Values::Tenant(|group| Some(group.lag_seconds)),
    ),
    (
        gauge(
            "event_host_group_lag_events",
            TENANT,
            "Events that the group has not passed, as far as they were counted",
        ),
        Values::Tenant(|group| Some(as_float(group.lag_events))),
    ),
    (
        gauge(
            "event_host_group_lag_is_at_least",
            TENANT,
            "1 while the group has more events before it than were counted",
        ),
        Values::Tenant(|group| Some(f64::from(u8::from(group.lag_is_at_least)))),
    ),
    (
        gauge("event_host_group_position", GROUP, "The group's cursor"),
        Values::Group(|group| is_one(group).then(|| position(group.position))),
    ),
    (
        gauge(
            "event_host_group_state",
            &["group", "state"],
            "1 for the state that the group is in: running, paused, tripped",
        ),
        Values::States,
    ),
    (
        gauge(
            "event_host_group_partitions",
            GROUP,
            "Partitions of the group; 1 if it is not split",
        ),
        Values::Group(|group| Some(as_float(group.partitions))),
    ),
    (
        gauge("event_host_group_leaders", GROUP, "How many of them a host leads"),
        Values::Group(|group| Some(as_float(group.leaders))),
    ),
    (
        gauge("event_host_group_retries_pending", TENANT, "Retries that wait"),
        Values::Tenant(|group| Some(as_float(group.retries_pending))),
    ),
    (
        gauge(
            "event_host_group_parked",
            TENANT,
            "Events that the cursor has passed and that come again",
        ),
        Values::Tenant(|group| Some(as_float(group.parked))),
    ),
    (
        gauge("event_host_group_dead_letters", TENANT, "Dead letters, as far as they were counted"),
        Values::Tenant(|group| Some(as_float(group.dead_letters))),
    ),
    (
        gauge(
            "event_host_group_open_ranges",
            TENANT,
            "Ranges that the group has passed and in which transactions may still commit",
        ),
        Values::Tenant(|group| Some(as_float(group.open_ranges))),
    ),
    (
        gauge(
            "event_host_group_head_attempt",
            GROUP,
            "The attempt that the group waits for before it goes on",
        ),
        Values::Group(|group| group.head.map(|(attempt, _)| as_float(attempt))),
    ),
    (
        gauge("event_host_group_head_due_seconds", GROUP, "In how many seconds it is due"),
        Values::Group(|group| group.head.map(|(_, due)| due)),
    ),
    (
        total(
            "event_host_group_failures",
            &["group", "kind"],
            "Failed attempts since the group was created, by the kind of the failure",
        ),
        Values::Failures,
    ),
    (
        total(
            "event_host_group_handled",
            TENANT,
            "Events that were handled successfully since the group was created",
        ),
        Values::Total(|group| group.handled_total),
    ),
    (
        total(
            "event_host_group_dead",
            TENANT,
            "Events that became dead letters since the group was created",
        ),
        Values::Total(|group| group.dead_total),
    ),
    (
        total(
            "event_host_group_late",
            TENANT,
            "Events that were committed after the group had passed them, since it was created",
        ),
        Values::Total(|group| group.late_total),
    ),
];

/// Whether the series are those of one group.
fn is_one(group: &GroupSample) -> bool {
    group.name != OTHER
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, which positions stay below")]
fn position(position: i64) -> f64 {
    position as f64
}

/// A metric of the database.
struct Exported {
    metric: &'static Metric,
    values: Values,
    database: Arc<Database>,
}

impl Source for Exported {
    fn metric(&self) -> &'static Metric {
        self.metric
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(look) = self.database.look() else { return Ok(()) };
        let interval = Duration::from_millis(self.database.interval_millis.load(Relaxed));
        let is_of_the_look = matches!(self.values, Values::Look(_));
        if !is_of_the_look && look.at.elapsed() > interval.saturating_mul(SHOWN_FOR) {
            return Ok(());
        }
        let (log, groups) = (&look.sample.log, &look.sample.groups);
        match self.values {
            Values::Look(value) => self.alone(encoder, Some(value(&look))),
            Values::Log(value) => self.alone(encoder, value(log)),
            Values::Group(value) => self.gauges(encoder, groups, |group| {
                value(group).into_iter().map(|value| (vec![group.name.as_str()], value)).collect()
            }),
            Values::Tenant(value) => self.gauges(encoder, groups, |group| {
                let labels = || vec![group.name.as_str(), group.tenant.as_str()];
                value(group).into_iter().map(|value| (labels(), value)).collect()
            }),
            Values::States => self.gauges(encoder, groups, |group| {
                let states = STATES.iter().filter(|_| is_one(group));
                let is = |state: &str| f64::from(u8::from(group.state == state));
                states.map(|state| (vec![group.name.as_str(), state], is(state))).collect()
            }),
            Values::Total(value) => self.counters(encoder, groups, |group| {
                vec![(vec![group.name.as_str(), group.tenant.as_str()], value(group))]
            }),
            Values::Failures => self.counters(encoder, groups, |group| {
                let mut unknown = 0;
                let mut known = Vec::with_capacity(group.failures.len());
                for (kind, count) in &group.failures {
                    match kind.parse::<FailureKind>() {
                        Ok(kind) => known.push((vec![group.name.as_str(), kind.label()], *count)),
                        Err(_) => unknown += count,
                    }
                }
                if unknown > 0 {
                    known.push((vec![group.name.as_str(), OTHER_KIND], unknown));
                }
                known
            }),
        }
    }
}

/// Values with the values of their labels.
type Series<'a, V> = Vec<(Vec<&'a str>, V)>;

impl Exported {
    fn alone(&self, encoder: &mut DescriptorEncoder<'_>, value: Option<f64>) -> fmt::Result {
        let Some(value) = value else { return Ok(()) };
        describe(encoder, self.metric, |encoder| encoder.encode_gauge(&value))
    }

    fn gauges<'a>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        groups: &'a [GroupSample],
        series: impl Fn(&'a GroupSample) -> Series<'a, f64>,
    ) -> fmt::Result {
        self.all(encoder, groups, series, |mut encoder, value| encoder.encode_gauge(&value))
    }

    fn counters<'a>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        groups: &'a [GroupSample],
        series: impl Fn(&'a GroupSample) -> Series<'a, u64>,
    ) -> fmt::Result {
        self.all(encoder, groups, series, |mut encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    fn all<'a, V>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        groups: &'a [GroupSample],
        series: impl Fn(&'a GroupSample) -> Series<'a, V>,
        encode: impl Fn(MetricEncoder<'_>, V) -> fmt::Result,
    ) -> fmt::Result {
        let mut all = groups.iter().flat_map(series).peekable();
        if all.peek().is_none() {
            return Ok(());
        }
        describe(encoder, self.metric, |encoder| {
            for (values, value) in all {
                let labels = Named { names: self.metric.labels, values: &values };
                encode(encoder.encode_family(&labels)?, value)?;
            }
            Ok(())
        })
    }
}
