//! All metrics of a process, and the two text formats that Prometheus reads.

use event_host_core::event::json::essence;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;

use crate::database::Database;
use crate::families::{
    Deliveries, GroupMetrics, HostMetrics, HttpMetrics, IngestMetrics, SandboxMetrics, StoreMetrics,
};
use crate::metric::Metric;
use crate::names::SeriesNames;
use crate::process;
use crate::table::Table;
use event_host_core::event::{GroupName, Tenant};

/// What the settings say of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How often the database is looked at.
    pub interval: Duration,
    /// How many groups have series of their own.
    pub max_groups: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { interval: Duration::from_secs(15), max_groups: 1_000 }
    }
}

/// One of the formats of an answer to Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format 0.0.4, which everything reads.
    Text,
}

impl Format {
    /// The format that an `Accept` header asks for: OpenMetrics where it weighs no less than
    /// plain text and is named, text else.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let weight = |part: &str| {
            let weights = part.split(';').skip(1).filter_map(|parameter| {
                let (name, value) = parameter.split_once('=')?;
                name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse::<f64>().ok())?
            });
            weights.last().unwrap_or(1.0)
        };
        let best = |is_asked: fn(&str, &str) -> bool| {
            let asked = accept
                .split(',')
                .filter(|part| is_asked(&essence(part), &part.to_ascii_lowercase()));
            asked
                .map(weight)
                .fold(None, |best: Option<f64>, one| Some(best.map_or(one, |b| b.max(one))))
        };
        let open = best(|media, part| {
            let is_known = !part.contains("version=")
                || part.contains("version=1.0.0")
                || part.contains("version=0.0.1");
            media == "application/openmetrics-text" && is_known
        });
        let plain = best(|media, _| media == "text/plain").unwrap_or(0.0);
        match open {
            Some(open) if open > 0.0 && open >= plain => Self::OpenMetrics,
            _ => Self::Text,
        }
    }

    /// The value of `Content-Type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// What is looked up right before a scrape is answered.
type Refresh = Box<dyn Fn() + Send + Sync>;

/// All metrics of this process. One of them is made when the process starts; whoever counts
/// takes what it needs of it.
pub struct Metrics {
    registry: Registry,
    table: Vec<&'static Metric>,
    names: SeriesNames,
    refresh: Mutex<Vec<Refresh>>,
    /// Of groups: attempts, settlements, leaderships.
    pub deliveries: Deliveries,
    /// Of components, and of what handlers ask for.
    pub sandbox: SandboxMetrics,
    /// Of calls of the database.
    pub store: StoreMetrics,
    /// Of events that come in.
    pub ingest: IngestMetrics,
    /// Of requests of any kind.
    pub http: HttpMetrics,
    /// Of the host itself.
    pub host: HostMetrics,
    /// What is true of the database, while this host is the one that looks.
    pub database: Arc<Database>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("metrics", &self.table.len()).finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl Metrics {
    /// Metrics of which nothing is counted yet.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let mut table = Table::default();
        let names = SeriesNames::new(settings.max_groups);
        let host = HostMetrics::register(&mut table);
        let database = Database::register(&mut table, names.clone(), settings.interval);
        let store = StoreMetrics::register(&mut table);
        let deliveries = Deliveries::register(&mut table, names.clone(), store.clone());
        let sandbox = SandboxMetrics::register(&mut table, names.clone());
        let ingest = IngestMetrics::register(&mut table);
        let http = HttpMetrics::register(&mut table);
        process::register(&mut table);
        let described = table.metrics();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(table));
        Self {
            registry,
            table: described,
            names,
            refresh: Mutex::default(),
            deliveries,
            sandbox,
            store,
            ingest,
            http,
            host,
            database,
        }
    }

    /// Every metric, in the order in which they are answered.
    #[must_use]
    pub fn table(&self) -> &[&'static Metric] {
        &self.table
    }

    /// What a group counts with, resolved. A partition counts with its group.
    #[must_use]
    pub fn group(&self, group: &GroupName, tenant: &Tenant) -> GroupMetrics {
        self.deliveries.group(group, tenant)
    }

    /// Takes over changed settings.
    pub fn change(&self, settings: &Settings) {
        self.names.set_most(settings.max_groups);
        self.database.set_interval(settings.interval);
    }

    /// Has something looked up whenever a scrape is answered: for values that are known
    /// anyway, and would have to be kept twice otherwise. It must not wait.
    pub fn before_scrape(&self, refresh: impl Fn() + Send + Sync + 'static) {
        let mut all = self.refresh.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Box::new(refresh));
    }

    /// The answer to a scrape.
    #[must_use]
    pub fn encode(&self, format: Format) -> String {
        for refresh in &*self.refresh.lock().unwrap_or_else(PoisonError::into_inner) {
            refresh();
        }
        let mut answer = String::new();
        let written = match format {
            Format::OpenMetrics => text::encode(&mut answer, &self.registry),
            Format::Text => prometheus_text::encode(&mut answer, &self.registry),
        };
        // To write into memory does not fail, and no value here refuses to be written.
        debug_assert!(written.is_ok());
        answer
    }
}
