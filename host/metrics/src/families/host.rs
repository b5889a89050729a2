//! Of the host itself: what it is, which settings it runs by, and whether it is the one
//! that looks at the database.

use crate::family::Family;
use crate::metric::{Kind, Metric};
use crate::table::Table;
use crate::values::Gauge;

static BUILD: Metric = Metric::process(
    Kind::Info,
    "event_host_build",
    &["version", "store"],
    "The version of the program, and the kind of its database",
);
static CONFIG: Metric = Metric::process(
    Kind::Info,
    "event_host_config",
    &["digest"],
    "The digest of the settings that the host runs by: hosts of one database should agree",
);
static RELOAD_SUCCESS: Metric = Metric::process(
    Kind::Gauge,
    "event_host_config_last_reload_success",
    &[],
    "1 while the settings that were read last are those that run",
);
static RELOAD_TIMESTAMP: Metric = Metric::process(
    Kind::Gauge,
    "event_host_config_last_reload_timestamp_seconds",
    &[],
    "When settings were last taken over, in seconds since 1970",
);
static OVERVIEW_HERE: Metric = Metric::process(
    Kind::Gauge,
    "event_host_overview_here",
    &[],
    "1 on the host that looks at the database for all, and exports what is true of it",
);

/// Metrics of the host itself.
#[derive(Debug, Clone)]
pub struct HostMetrics {
    build: Family<One>,
    config: Family<One>,
    /// 1 while the settings that were read last are those that run.
    pub reload_success: Gauge,
    /// When settings were last taken over.
    pub reload_timestamp: Gauge,
    /// 1 while this host exports what is true of the database.
    pub overview_here: Gauge,
}

/// The value of an info, which says all in its labels.
#[derive(Debug, Clone, Default)]
pub(crate) struct One;

impl crate::values::Value for One {
    fn encode(
        &self,
        mut encoder: prometheus_client::encoding::MetricEncoder<'_>,
    ) -> std::fmt::Result {
        // The labels are those of its family.
        encoder.encode_info(&[] as &[(&str, &str); 0])
    }
}

impl HostMetrics {
    pub(crate) fn register(table: &mut Table) -> Self {
        let build = table.add(Family::new(&BUILD));
        let config = table.add(Family::new(&CONFIG));
        let reload_success = table.add(Family::<Gauge>::new(&RELOAD_SUCCESS)).with(&[]);
        let reload_timestamp = table.add(Family::<Gauge>::new(&RELOAD_TIMESTAMP)).with(&[]);
        let overview_here = table.add(Family::<Gauge>::new(&OVERVIEW_HERE)).with(&[]);
        Self { build, config, reload_success, reload_timestamp, overview_here }
    }

    /// Says which program this is, and on which kind of database it runs.
    pub fn built(&self, version: &str, store: &str) {
        self.build.retain(|_| false);
        let One = self.build.with(&[version, store]);
    }

    /// Says by which settings it runs.
    pub fn configured(&self, digest: &str) {
        self.config.retain(|labels| labels.iter().any(|label| label == digest));
        let One = self.config.with(&[digest]);
    }
}
