//! Of events that come in by HTTP.

use std::array;
use std::sync::{Arc, OnceLock};

use super::http::{CODE_LABELS, code_label};
use super::{BATCHES, DURATIONS, labels};
use crate::family::Family;
use crate::metric::{Kind, Metric};
use crate::table::Table;
use crate::values::{Counter, Gauge, Histogram};

static REQUESTS: Metric = Metric::process(
    Kind::Counter,
    "event_host_ingest_requests",
    &["source", "mode", "code"],
    "Requests that brought events, by how they were encoded and answered",
);
static EVENTS: Metric = Metric::process(
    Kind::Counter,
    "event_host_ingest_events",
    &["source", "result"],
    "Events that came in: new ones, duplicates, and those of refused requests",
);
static BYTES: Metric = Metric::process(
    Kind::Counter,
    "event_host_ingest_bytes",
    &["source"],
    "Bytes of the bodies of requests, as they were sent",
);
static DURATION: Metric = Metric::process(
    Kind::Histogram,
    "event_host_ingest_duration_seconds",
    &["source"],
    "From the end of a request's body to its answer, the commit included",
);
static REFUSED: Metric = Metric::process(
    Kind::Counter,
    "event_host_ingest_refused",
    &["source", "reason"],
    "Requests that were refused, by the reason",
);
static QUEUE_EVENTS: Metric = Metric::process(
    Kind::Gauge,
    "event_host_ingest_queue_events",
    &[],
    "Events that wait for their commit",
);
static QUEUE_BYTES: Metric = Metric::process(
    Kind::Gauge,
    "event_host_ingest_queue_bytes",
    &[],
    "Bytes of the events that wait for their commit",
);
static COMMIT: Metric = Metric::process(
    Kind::Histogram,
    "event_host_ingest_commit_seconds",
    &[],
    "How long the database took to commit events of one or several requests",
);
static COMMIT_EVENTS: Metric = Metric::process(
    Kind::Histogram,
    "event_host_ingest_commit_events",
    &[],
    "Events in one commit",
);
static DEDUP_ROWS: Metric = Metric::process(
    Kind::Gauge,
    "event_host_ingest_dedup_rows",
    &[],
    "Events that are remembered to recognise their duplicates, as last counted or estimated",
);
static DEDUP_WINDOW: Metric = Metric::process(
    Kind::Gauge,
    "event_host_ingest_dedup_window_seconds",
    &[],
    "For how long events are remembered to recognise their duplicates",
);

labels! {
    /// How a request carried its events.
    IngestMode {
        /// One event, its attributes in headers.
        Binary = "binary",
        /// One event as JSON.
        Structured = "structured",
        /// Several events as JSON.
        Batched = "batched",
        /// Another provider's webhook.
        Webhook = "webhook",
        /// It could not be told.
        Unknown = "unknown",
    }
}

labels! {
    /// Why a request was refused.
    Refused {
        /// Its signature is missing or wrong.
        Signature = "signature",
        /// Its timestamp is outside of the tolerance.
        Stale = "stale",
        /// Its sender is above a limit.
        Rate = "rate",
        /// The queue is full, the database does not answer, or the host stops.
        Busy = "busy",
        /// It is larger than it may be.
        TooLarge = "too_large",
        /// It is no event, or not a good one.
        Invalid = "invalid",
        /// An event's id stands for another event.
        IdReused = "id_reused",
    }
}

labels! {
    /// What became of an event that came in.
    Ingested {
        /// It is committed.
        New = "new",
        /// It had been committed before.
        Duplicate = "duplicate",
        /// Its request was refused.
        Refused = "refused",
    }
}

/// Metrics of events that come in by HTTP.
#[derive(Debug, Clone)]
pub struct IngestMetrics {
    requests: Family<Counter>,
    events: Family<Counter>,
    bytes: Family<Counter>,
    duration: Family<Histogram>,
    refused: Family<Counter>,
    /// Events that wait for their commit.
    pub queue_events: Gauge,
    /// Their bytes.
    pub queue_bytes: Gauge,
    /// How long the database took for one commit.
    pub commit: Histogram,
    /// How many events it had.
    pub commit_events: Histogram,
    /// Events that are remembered to recognise their duplicates.
    pub dedup_rows: Gauge,
    /// For how long, in seconds.
    pub dedup_window: Gauge,
}

impl IngestMetrics {
    pub(crate) fn register(table: &mut Table) -> Self {
        let requests = table.add(Family::new(&REQUESTS));
        let events = table.add(Family::new(&EVENTS));
        let bytes = table.add(Family::new(&BYTES));
        let duration = table.add(Family::of(&DURATION, DURATIONS));
        let refused = table.add(Family::new(&REFUSED));
        let queue_events = table.add(Family::<Gauge>::new(&QUEUE_EVENTS)).with(&[]);
        let queue_bytes = table.add(Family::<Gauge>::new(&QUEUE_BYTES)).with(&[]);
        let commit = table.add(Family::of(&COMMIT, DURATIONS)).with(&[]);
        let commit_events = table.add(Family::of(&COMMIT_EVENTS, BATCHES)).with(&[]);
        let dedup_rows = table.add(Family::<Gauge>::new(&DEDUP_ROWS)).with(&[]);
        let dedup_window = table.add(Family::<Gauge>::new(&DEDUP_WINDOW)).with(&[]);
        Self {
            requests,
            events,
            bytes,
            duration,
            refused,
            queue_events,
            queue_bytes,
            commit,
            commit_events,
            dedup_rows,
            dedup_window,
        }
    }

    /// What requests of a source count with, by its name in the settings; `events` for
    /// those that bring CloudEvents.
    #[must_use]
    pub fn source(&self, source: &str) -> IngestSource {
        let events = super::each(&self.events, &[source], Ingested::LABELS);
        IngestSource(Arc::new(Resolved {
            name: source.to_owned(),
            family: self.requests.clone(),
            requests: array::from_fn(|_| array::from_fn(|_| OnceLock::new())),
            refused: super::each(&self.refused, &[source], Refused::LABELS),
            bytes: self.bytes.with(&[source]),
            duration: self.duration.with(&[source]),
            events,
        }))
    }
}

#[derive(Debug)]
struct Resolved {
    name: String,
    family: Family<Counter>,
    /// By mode and code. Made when they are first needed: few of the pairs ever are.
    requests: [[OnceLock<Counter>; CODE_LABELS.len()]; IngestMode::LABELS.len()],
    events: [Counter; Ingested::LABELS.len()],
    refused: [Counter; Refused::LABELS.len()],
    bytes: Counter,
    duration: Histogram,
}

/// What requests of one source count with.
#[derive(Debug, Clone)]
pub struct IngestSource(Arc<Resolved>);

impl IngestSource {
    /// Counts a request that was answered with this status.
    pub fn answered(&self, mode: IngestMode, status: u16) {
        let Resolved { name, family, requests, .. } = &*self.0;
        let code = code_label(status);
        let place = CODE_LABELS.iter().position(|label| *label == code).unwrap_or(0);
        requests[mode as usize][place]
            .get_or_init(|| family.with(&[name, mode.label(), code]))
            .inc();
    }

    /// Counts events that are committed, and those that had been before.
    pub fn committed(&self, new: usize, duplicates: usize) {
        self.0.events[Ingested::New as usize].add_len(new);
        self.0.events[Ingested::Duplicate as usize].add_len(duplicates);
    }

    /// Counts a request that was refused, with as many events as were found in it.
    pub fn refused(&self, reason: Refused, events: usize) {
        self.0.refused[reason as usize].inc();
        self.0.events[Ingested::Refused as usize].add_len(events);
    }

    /// The bytes of requests' bodies, as they were sent.
    #[must_use]
    pub fn bytes(&self) -> &Counter {
        &self.0.bytes
    }

    /// From the end of a request's body to its answer.
    #[must_use]
    pub fn duration(&self) -> &Histogram {
        &self.0.duration
    }
}
