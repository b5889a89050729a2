//! What a metric is called, and means: the rows of the table in the documents.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// What its values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows, until the process ends or, for what is of the database,
    /// until the group is removed.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Counts by size, in fixed buckets.
    Histogram,
    /// 1, with what is to be told in its labels.
    Info,
}

impl Kind {
    /// As the documents and Prometheus call it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    pub(crate) fn encoded(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
            Self::Histogram => MetricType::Histogram,
            Self::Info => MetricType::Info,
        }
    }
}

/// Of what a value is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Of this process: `sum` over hosts.
    Process,
    /// Of the database: one host exports it; `max` over hosts.
    Database,
}

impl Scope {
    /// As the documents call it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Database => "database",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name without the suffix that its kind adds.
    pub name: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// The names of its labels. A label with an empty value is left out, as `tenant` is of
    /// a group without one.
    pub labels: &'static [&'static str],
    /// Of what it is true.
    pub scope: Scope,
    /// What it means, in one sentence.
    pub help: &'static str,
}

impl Metric {
    /// A metric of this process.
    pub(crate) const fn process(
        kind: Kind,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind, labels, scope: Scope::Process, help }
    }

    /// A metric of the database.
    pub(crate) const fn database(
        kind: Kind,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind, labels, scope: Scope::Database, help }
    }

    /// Its name as queries have it: that of a counter ends in `_total`, that of an info in
    /// `_info`; a histogram's has three suffixes, which are left out here.
    #[must_use]
    pub fn full_name(&self) -> String {
        match self.kind {
            Kind::Counter => format!("{}_total", self.name),
            Kind::Info => format!("{}_info", self.name),
            Kind::Gauge | Kind::Histogram => self.name.to_owned(),
        }
    }

    /// Its name without its unit, and the unit, which OpenMetrics says on a line of its own.
    pub(crate) fn split_unit(&self) -> (&'static str, Option<Unit>) {
        for (suffix, unit) in [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)] {
            if let Some(stem) = self.name.strip_suffix(suffix) {
                return (stem, Some(unit));
            }
        }
        (self.name, None)
    }
}
