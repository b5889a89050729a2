//! What the operating system tells of the process, under the names that every exporter uses.

use std::fmt;
use std::fs;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::family::{Source, describe};
use crate::metric::{Kind, Metric};
use crate::table::Table;
use crate::values::as_float;

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric::process(Kind::Gauge, name, &[], help)
}

/// Looks a value up; none where the system does not tell.
type LookUp = fn() -> Option<f64>;

static TABLE: &[(Metric, LookUp)] = &[
    (
        Metric::process(
            Kind::Counter,
            "process_cpu_seconds",
            &[],
            "CPU time of the process, of user and system together",
        ),
        cpu_seconds,
    ),
    (gauge("process_resident_memory_bytes", "Memory that the process has in RAM"), resident_bytes),
    (gauge("process_open_fds", "Files and sockets that are open"), open_files),
    (gauge("process_max_fds", "Files and sockets that may be open"), max_files),
    (
        gauge("process_start_time_seconds", "When the process began, in seconds since 1970"),
        start_time,
    ),
];

/// Adds them. Where the system has no such files, as outside of Linux, they are left out.
pub(crate) fn register(table: &mut Table) {
    for (metric, value) in TABLE {
        table.add_source(Box::new(OfProcess { metric, value: *value }));
    }
}

struct OfProcess {
    metric: &'static Metric,
    value: LookUp,
}

impl Source for OfProcess {
    fn metric(&self) -> &'static Metric {
        self.metric
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(value) = (self.value)() else { return Ok(()) };
        describe(encoder, self.metric, |encoder| match self.metric.kind {
            Kind::Counter => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
            _ => encoder.encode_gauge(&value),
        })
    }
}

/// A field of `/proc/self/stat`, counted as proc(5) counts them, from the third on: the
/// second is a name in parentheses, which may have spaces.
fn stat(field: usize) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, after) = text.rsplit_once(')')?;
    after.split_ascii_whitespace().nth(field.checked_sub(3)?)?.parse().ok()
}

fn ticks(ticks: u64) -> f64 {
    as_float(ticks) / as_float(clock_ticks_per_second().max(1))
}

fn cpu_seconds() -> Option<f64> {
    Some(ticks(stat(14)?.checked_add(stat(15)?)?))
}

fn resident_bytes() -> Option<f64> {
    let pages: u64 = stat(24)?;
    Some(as_float(pages.checked_mul(u64::try_from(page_size()).ok()?)?))
}

fn open_files() -> Option<f64> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    // One of them is the folder that was just read.
    Some(as_float(u64::try_from(open.saturating_sub(1)).ok()?))
}

fn max_files() -> Option<f64> {
    getrlimit(Resource::Nofile).current.map(as_float)
}

fn start_time() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let boot = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    let boot: u64 = boot.trim().parse().ok()?;
    Some(as_float(boot) + ticks(stat(22)?))
}
