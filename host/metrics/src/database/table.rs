//! The metrics of the database, and how each comes out of a look.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};

use super::{Database, GroupSample, LogSample, Look, SHOWN_FOR};
use crate::family::{Named, Source, describe};
use crate::metric::{Kind, Metric};
use crate::names::OTHER;
use crate::table::Table;
use crate::values::as_float;
use event_host_core::failure::FailureKind;

/// Adds all of them.
pub(super) fn register(table: &mut Table, database: &Arc<Database>) {
    for (metric, values) in TABLE {
        let database = Arc::clone(database);
        table.add_source(Box::new(Exported { metric, values: *values, database }));
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
        let interval = self.database.interval();
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
