//! `[telemetry.metrics]`: how often the database is looked at, and how many groups have
//! series of their own.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::keys;
use super::section::Section;
use event_host_metrics::Settings;

/// The shortest and the longest time between two looks at the database.
const INTERVAL: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3_600);

/// Reads the tables.
pub(super) fn metrics(top: &mut Section<'_>) -> Settings {
    let mut telemetry = top.section("telemetry", &keys::TELEMETRY);
    let mut metrics = telemetry.section("metrics", &keys::METRICS);
    let defaults = Settings::default();
    let settings = Settings {
        interval: metrics.duration("interval", INTERVAL).unwrap_or(defaults.interval),
        max_groups: metrics.integer("max_groups", 1..=100_000).unwrap_or(defaults.max_groups),
    };
    metrics.finish();
    telemetry.finish();
    settings
}
