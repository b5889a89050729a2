//! Of requests that the host answers.

use super::DURATIONS;
use crate::family::Family;
use crate::metric::{Kind, Metric};
use crate::table::Table;
use crate::values::{Counter, Histogram, Level};

static REQUESTS: Metric = Metric::process(
    Kind::Histogram,
    "http_server_request_duration_seconds",
    &["method", "route", "code"],
    "How long requests took, by the route's pattern and the class of the status",
);
static CONNECTIONS: Metric = Metric::process(
    Kind::Gauge,
    "event_host_http_connections",
    &["listener"],
    "Connections that are open",
);
static AUTH_FAILURES: Metric = Metric::process(
    Kind::Counter,
    "event_host_auth_failures",
    &["reason"],
    "Requests that were refused for who sent them: unknown, expired, role, tenant",
);

/// The label of a request that fits no route.
const UNMATCHED: &str = "_unmatched";

/// Status codes that have series of their own; others are counted as their class.
const CODES: [u16; 6] = [401, 413, 422, 429, 503, 507];

/// The label of a status.
pub(super) fn code_label(status: u16) -> &'static str {
    match status {
        401 => "401",
        413 => "413",
        422 => "422",
        429 => "429",
        503 => "503",
        507 => "507",
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}

/// Every label of a status.
pub(super) const CODE_LABELS: [&str; 5 + CODES.len()] =
    ["1xx", "2xx", "3xx", "4xx", "5xx", "401", "413", "422", "429", "503", "507"];

/// Metrics of requests that the host answers.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    requests: Family<Histogram>,
    connections: Family<Level>,
    auth_failures: Family<Counter>,
}

impl Default for HttpMetrics {
    /// Counts for nobody.
    fn default() -> Self {
        Self::register(&mut Table::default())
    }
}

impl HttpMetrics {
    pub(crate) fn register(table: &mut Table) -> Self {
        let requests = table.add(Family::of(&REQUESTS, DURATIONS));
        let connections = table.add(Family::new(&CONNECTIONS));
        let auth_failures = table.add(Family::new(&AUTH_FAILURES));
        Self { requests, connections, auth_failures }
    }

    /// Where the time of a request is observed. The route is its pattern, never its path;
    /// `None` for a request that fits none.
    #[must_use]
    pub fn request(&self, method: &str, route: Option<&str>, status: u16) -> Histogram {
        // Whatever a client writes there is no label.
        let method = match method {
            "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS" => method,
            _ => "_other",
        };
        self.requests.with(&[method, route.unwrap_or(UNMATCHED), code_label(status)])
    }

    /// The open connections of a listener, by its name in the settings.
    #[must_use]
    pub fn connections(&self, listener: &str) -> Level {
        self.connections.with(&[listener])
    }

    /// Refusals for who sent a request. The reason is a word of the caller's code.
    #[must_use]
    pub fn auth_failures(&self, reason: &'static str) -> Counter {
        self.auth_failures.with(&[reason])
    }
}
