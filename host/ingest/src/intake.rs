//! Where events go in: limits first, then the queue, then an answer once they are committed.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use event_host_core::event::{Event, Tenant};
use event_host_core::restart::spawn_with_restart;
use event_host_metrics::IngestMetrics;
use event_host_store::{Incoming, Ingest, Placed};

use crate::binding::{Limits, check_size};
use crate::budget::{Budget, Room};
use crate::commits::Commits;
use crate::committer;
use crate::disk::Disk;
use crate::keeper;
use crate::rate::{Rate, RateOf, Rates};
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::shared::{Begun, Shared};

/// What an event takes in memory besides its bytes, about.
const BYTES_AN_EVENT: usize = 512;

/// A request of usual size, in bytes: an event of some KiB, and what it takes in memory.
const USUAL: usize = 16 << 10;

/// The events of one request, to be published together or not at all.
#[derive(Debug)]
pub struct Submission {
    /// Whose they are.
    pub tenant: Tenant,
    /// In the order in which they come to stand in the log.
    pub events: Vec<Event>,
    /// For how long they are known when they are sent again; `None` for not at all.
    pub window: Option<Duration>,
    /// What each is known by besides its id: empty, or one for each event.
    pub also_known_as: Vec<String>,
    /// How large each may be, in bytes; `None` is what the settings say.
    pub max_event: Option<usize>,
    /// The rates that they are subject to, besides that of all senders.
    pub rates: Vec<Rate>,
    /// The part of the memory that the request has.
    pub room: Room,
}

/// Takes events in, on behalf of one host. A clone is the same.
#[derive(Clone)]
pub struct Intake {
    shared: Arc<Shared>,
    _tasks: Arc<[AbortOnDropHandle<()>; 2]>,
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intake").field("settings", &self.settings()).finish_non_exhaustive()
    }
}

impl Intake {
    /// Begins to take events in. `log_folder` is where the log lies, if that is on a disk of
    /// the host's. Must be called within a runtime.
    pub fn start(
        store: Arc<dyn Ingest>,
        log_folder: Option<PathBuf>,
        settings: Settings,
        metrics: IngestMetrics,
    ) -> Self {
        remember(&metrics, &settings);
        let shared = Arc::new(Shared {
            store,
            budget: Budget::new(settings.queue),
            settings: RwLock::new(Arc::new(settings)),
            commits: Commits::default(),
            rates: Rates::default(),
            disk: Disk::new(log_folder),
            metrics,
            begun: Begun::default(),
        });
        let (dispatched, kept) = (Arc::clone(&shared), Arc::clone(&shared));
        let tasks = [
            spawn_with_restart("the dispatcher of commits", move || {
                committer::dispatch(Arc::clone(&dispatched))
            }),
            spawn_with_restart("the keeper of the ledger", move || keeper::keep(Arc::clone(&kept))),
        ];
        Self { shared, _tasks: Arc::new(tasks) }
    }

    /// The settings as they are now.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.shared.settings()
    }

    /// What it counts with.
    #[must_use]
    pub fn metrics(&self) -> &IngestMetrics {
        &self.shared.metrics
    }

    /// Has other settings from now on.
    pub fn set(&self, settings: Settings) {
        self.shared.budget.resize(settings.queue);
        remember(&self.shared.metrics, &settings);
        *self.shared.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Room for a body of so many bytes, before it is read.
    ///
    /// # Errors
    /// [`Reason::Busy`](crate::refusal::Reason::Busy) without room, [`Reason::Draining`](crate::refusal::Reason::Draining) once it stops.
    pub fn room(&self, bytes: usize) -> Result<Room, Refusal> {
        if self.shared.commits.is_stopping() {
            return Err(Refusal::draining());
        }
        self.shared.begun.set();
        self.shared.budget.take(bytes)
    }

    /// Whether a request of usual size would find room now: 16 KiB, or a quarter of a small
    /// queue.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let queue = self.settings().queue;
        let left = queue.saturating_sub(self.shared.budget.used());
        !self.shared.commits.is_stopping() && left >= USUAL.min(queue / 4)
    }

    /// What events may come to.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let settings = self.settings();
        Limits { max_event: settings.max_event, max_events: settings.max_events }
    }

    /// How many events wait for a commit, and their bytes.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        self.shared.commits.waiting()
    }

    /// Publishes, and gives the place of each event once they are committed. To go away before
    /// that changes nothing: what stands in the queue is published.
    ///
    /// # Errors
    /// When nothing of it was published; after [`Reason::Database`](crate::refusal::Reason::Database) that is not known.
    pub async fn publish(&self, submission: Submission) -> Result<Vec<Placed>, Refusal> {
        let Submission { tenant, events, window, also_known_as, max_event, mut rates, mut room } =
            submission;
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let settings = self.settings();
        for (index, event) in events.iter().enumerate() {
            event.check().map_err(|error| Refusal::invalid(&error).event(index))?;
            check_size(event, max_event.unwrap_or(settings.max_event))
                .map_err(|refusal| refusal.event(index))?;
        }
        self.shared.disk.check(&settings)?;
        room.grow_to(events.iter().map(|event| event.bytes() + BYTES_AN_EVENT).sum())?;
        if let Some(per_second) = settings.rate {
            rates.push(Rate { of: RateOf::All, per_second });
        }
        if let Some(per_second) = settings.tenant_rates.get(&tenant) {
            rates.push(Rate { of: RateOf::Tenant(tenant.clone()), per_second: *per_second });
        }
        self.shared.rates.take(&rates, events.len())?;
        let deadline = Instant::now() + settings.timeout;
        let incoming = Incoming { tenant, events, window, also_known_as };
        self.shared.commits.publish(incoming, room, deadline).await
    }

    /// Takes nothing more, and returns when all that stood in the queue has its answer.
    pub async fn stop(&self) {
        self.shared.commits.stop().await;
    }
}

/// Shows for how long what comes again is known.
fn remember(metrics: &IngestMetrics, settings: &Settings) {
    metrics.dedup_window.set(settings.dedup.unwrap_or_default().as_secs_f64());
}
