//! Of components, and of what handlers ask for.

use std::time::Duration;

use super::{DURATIONS, each, labels};
use crate::family::Family;
use crate::metric::{Kind, Metric};
use crate::names::SeriesNames;
use crate::table::Table;
use crate::values::{Counter, Histogram, Level};

static COMPILES: Metric = Metric::process(
    Kind::Counter,
    "event_host_compiles",
    &["result"],
    "Components that were loaded: compiled, cached, failed, or killed for what they took",
);
static COMPILE_DURATION: Metric = Metric::process(
    Kind::Histogram,
    "event_host_compile_duration_seconds",
    &[],
    "How long the compilation of a component took",
);
static INSTANCES: Metric = Metric::process(
    Kind::Gauge,
    "event_host_sandbox_instances",
    &["tenant"],
    "Instances of components that are alive",
);
static RESERVED: Metric = Metric::process(
    Kind::Gauge,
    "event_host_sandbox_reserved_bytes",
    &["tenant"],
    "What the memory limits of the instances that are alive come to",
);
static HTTP_REQUESTS: Metric = Metric::process(
    Kind::Counter,
    "event_host_guest_http_requests",
    &["group", "outcome"],
    "HTTP requests of handlers, by the class of their answer or why there was none",
);
static HTTP_DURATION: Metric = Metric::process(
    Kind::Histogram,
    "event_host_guest_http_duration_seconds",
    &["group"],
    "From a handler's HTTP request to the headers of its answer",
);
static DENIED: Metric = Metric::process(
    Kind::Counter,
    "event_host_denied",
    &["group", "what"],
    "What handlers asked for and may not have, or not so much of",
);

labels! {
    /// How a component was had.
    Compiled {
        /// It was compiled.
        Compiled = "compiled",
        /// Its code was kept.
        Cached = "cached",
        /// It cannot be run.
        Failed = "failed",
        /// It took too long, or too much memory.
        Killed = "killed",
    }
}

labels! {
    /// How a handler's HTTP request ended.
    GuestHttp {
        /// It was answered with 1xx or 2xx.
        Success = "2xx",
        /// It was answered with 3xx.
        Redirect = "3xx",
        /// It was answered with 4xx.
        ClientError = "4xx",
        /// It was answered with 5xx.
        ServerError = "5xx",
        /// It was not sent, because the handler may not.
        Denied = "denied",
        /// No answer came in time.
        Timeout = "timeout",
        /// The other server could not be reached, or broke off.
        Error = "error",
    }
}

labels! {
    /// What was not granted.
    Denied {
        /// An HTTP request.
        Http = "http",
        /// An emit.
        Emit = "emit",
        /// A state write.
        State = "state",
    }
}

/// Metrics of components, and of what handlers ask for.
#[derive(Debug, Clone)]
pub struct SandboxMetrics {
    names: SeriesNames,
    compiles: [Counter; Compiled::LABELS.len()],
    compile_duration: Histogram,
    instances: Family<Level>,
    reserved: Family<Level>,
    http_requests: Family<Counter>,
    http_duration: Family<Histogram>,
    denied: Family<Counter>,
}

impl Default for SandboxMetrics {
    /// Counts for nobody.
    fn default() -> Self {
        Self::register(&mut Table::default(), SeriesNames::new(0))
    }
}

impl SandboxMetrics {
    pub(crate) fn register(table: &mut Table, names: SeriesNames) -> Self {
        let compiles = table.add(Family::new(&COMPILES));
        let compile_duration = table.add(Family::of(&COMPILE_DURATION, DURATIONS)).with(&[]);
        let instances = table.add(Family::new(&INSTANCES));
        let reserved = table.add(Family::new(&RESERVED));
        let http_requests = table.add(Family::new(&HTTP_REQUESTS));
        let http_duration = table.add(Family::of(&HTTP_DURATION, DURATIONS));
        let denied = table.add(Family::new(&DENIED));
        Self {
            names,
            compiles: each(&compiles, &[], Compiled::LABELS),
            compile_duration,
            instances,
            reserved,
            http_requests,
            http_duration,
            denied,
        }
    }

    /// Counts a component that was loaded, or was not, and how long its compilation took if
    /// there was one.
    pub fn loaded(&self, how: Compiled, took: Option<Duration>) {
        self.compiles[how as usize].inc();
        if let Some(took) = took {
            self.compile_duration.observe(took);
        }
    }

    /// What the handler of a group counts with, resolved.
    #[must_use]
    pub fn handler(&self, group: &str, tenant: &str) -> HandlerMetrics {
        let group = self.names.label(group);
        HandlerMetrics {
            instances: self.instances.with(&[tenant]),
            reserved: self.reserved.with(&[tenant]),
            http: each(&self.http_requests, &[group], GuestHttp::LABELS),
            http_duration: self.http_duration.with(&[group]),
            denied: each(&self.denied, &[group], Denied::LABELS),
        }
    }
}

/// What the handler of one group counts with.
#[derive(Debug, Clone)]
pub struct HandlerMetrics {
    instances: Level,
    reserved: Level,
    http: [Counter; GuestHttp::LABELS.len()],
    http_duration: Histogram,
    denied: [Counter; Denied::LABELS.len()],
}

impl Default for HandlerMetrics {
    /// Counts for nobody, for handlers that are run apart from a host's groups.
    fn default() -> Self {
        SandboxMetrics::default().handler("", "")
    }
}

impl HandlerMetrics {
    /// Counts a request, with the time to its answer if there was one.
    pub fn requested(&self, outcome: GuestHttp, took: Option<Duration>) {
        self.http[outcome as usize].inc();
        if let Some(took) = took {
            self.http_duration.observe(took);
        }
    }

    /// Counts what was not granted.
    pub fn denied(&self, what: Denied) {
        self.denied[what as usize].inc();
    }

    /// Counts an instance for as long as the answer lives. Its memory limit is what it
    /// reserves.
    #[must_use]
    pub fn instance(&self, memory_bytes: usize) -> AliveInstance {
        let bytes = i64::try_from(memory_bytes).unwrap_or(i64::MAX);
        self.instances.add(1);
        self.reserved.add(bytes);
        AliveInstance { instances: self.instances.clone(), reserved: self.reserved.clone(), bytes }
    }
}

/// An instance that is counted.
#[derive(Debug)]
pub struct AliveInstance {
    instances: Level,
    reserved: Level,
    bytes: i64,
}

impl Drop for AliveInstance {
    fn drop(&mut self) {
        self.instances.sub(1);
        self.reserved.sub(self.bytes);
    }
}

impl GuestHttp {
    /// The outcome of a request that was answered with this status.
    #[must_use]
    pub fn answered(status: u16) -> Self {
        match status {
            0..=299 => Self::Success,
            300..=399 => Self::Redirect,
            400..=499 => Self::ClientError,
            _ => Self::ServerError,
        }
    }
}
