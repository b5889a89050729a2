//! What a host counts and measures, and how Prometheus reads it.
//!
//! Whoever counts resolves a handle once, when a group, a source or a listener starts; from
//! then on to count is one atomic addition. Nothing here asks anybody for anything: what is
//! read at a scrape is in memory, so that it is answered while the database is away.
//!
//! Two kinds of values are told apart ([`Scope`]): those of this process, which are summed
//! over hosts, and those of the database, which one host exports for all, and of which the
//! highest is taken.
//!
//! The number of series is bounded: groups beyond a limit share the label `_other`
//! (`names`), every other label has a closed list of values or those of the settings.
//!
//! | file | duty |
//! | --- | --- |
//! | `metric` | what a metric is called, and means |
//! | `values` | counters, gauges and histograms |
//! | `family` | the values of one metric, by their labels |
//! | `table` | the metrics of one registry |
//! | `names` | which groups have series of their own |
//! | `families` | every metric of the process, a file a subject |
//! | `database` | every metric of the database |
//! | `process` | what the operating system tells of the process |
//! | `registry` | all of it, in both text formats |

mod database;
mod families;
mod family;
mod metric;
mod names;
mod process;
mod registry;
mod table;
#[cfg(test)]
mod tests;
mod values;

pub use database::{Database, GroupSample, LogSample, Sample};
pub use families::{
    AliveInstance, Attempted, Compiled, CountedLeadership, Deliveries, Denied, GroupMetrics,
    GuestHttp, HandlerMetrics, HostMetrics, HttpMetrics, IngestMetrics, IngestMode, IngestSource,
    Ingested, Leaderships, Permits, Redelivered, Refused, SandboxMetrics, SettledAs, StoreMetrics,
    StoreOperation, Swap, TenantPermits, Trip,
};
pub use family::Family;
pub use metric::{Kind, Metric, Scope};
pub use names::{OTHER, SeriesNames};
pub use registry::{Format, Metrics, Settings};
pub use values::{Buckets, Counter, Gauge, Histogram, Level, Seconds};
