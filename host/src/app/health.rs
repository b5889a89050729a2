//! How the host is, for `/livez`, `/readyz` and the service manager's watchdog: kept up to
//! date by a task, so that an answer costs nothing and waits for nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::http::Parts;
use event_host_core::restart::spawn_with_restart;
use event_host_http::{Health, Part};
use event_host_store::Ingest;

/// How often the database is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// An answer of the database counts for so long.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// The runtime proves so often that it runs tasks.
const BEAT: Duration = Duration::from_secs(1);

/// A runtime that ran no task for so long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// How the host is.
pub(crate) struct HostHealth {
    since: Instant,
    /// The last beat, in milliseconds since the start.
    beat: AtomicU64,
    is_draining: AtomicBool,
    /// When the database answered last, and why it does not.
    database: Mutex<(Option<Instant>, Option<String>)>,
}

impl HostHealth {
    /// Begins to look, until the handles are dropped: at the database only while a listener
    /// serves health, for else nobody asks.
    pub(crate) fn start(
        store: Arc<dyn Ingest>,
        served: watch::Receiver<Parts>,
    ) -> (Arc<Self>, [AbortOnDropHandle<()>; 2]) {
        let health = Arc::new(Self {
            since: Instant::now(),
            beat: AtomicU64::new(0),
            is_draining: AtomicBool::new(false),
            // It was opened just now.
            database: Mutex::new((Some(Instant::now()), None)),
        });
        let beating = {
            let health = Arc::clone(&health);
            spawn_with_restart("the heartbeat of the host", move || {
                let health = Arc::clone(&health);
                async move { health.keep_beating().await }
            })
        };
        let looking = {
            let health = Arc::clone(&health);
            spawn_with_restart("the look at the database for /readyz", move || {
                let (health, store) = (Arc::clone(&health), Arc::clone(&store));
                let served = served.clone();
                async move { health.keep_looking(&*store, served).await }
            })
        };
        (health, [beating, looking])
    }

    /// The host stops: it is not ready from now on.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    async fn keep_beating(&self) {
        loop {
            let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.beat.store(now, Ordering::Release);
            tokio::time::sleep(BEAT).await;
        }
    }

    async fn keep_looking(&self, store: &dyn Ingest, mut served: watch::Receiver<Parts>) {
        // An error is that the listeners are gone.
        while served.wait_for(|parts| parts.contains(&Part::Health)).await.is_ok() {
            let looked = tokio::time::timeout(ANSWERED_WITHIN, store.log_bytes()).await;
            let why = match looked {
                Ok(Ok(_)) => None,
                Ok(Err(why)) => Some(why.to_string()),
                Err(_) => Some("it does not answer".to_owned()),
            };
            {
                let mut known = self.database.lock().unwrap_or_else(PoisonError::into_inner);
                if why.is_none() {
                    known.0 = Some(Instant::now());
                }
                known.1 = why;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Health for HostHealth {
    fn live(&self) -> Result<(), String> {
        let beat = Duration::from_millis(self.beat.load(Ordering::Acquire));
        let silent = self.since.elapsed().saturating_sub(beat);
        if silent < STUCK_AFTER {
            return Ok(());
        }
        Err(format!("no task has run for {} s", silent.as_secs()))
    }

    fn ready(&self) -> Result<(), String> {
        self.live()?;
        if self.is_draining.load(Ordering::Acquire) {
            return Err("the host stops".to_owned());
        }
        let (answered, why) = &*self.database.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            // The reason may name the server: only those get it who may know.
            Some(why) => Err(format!("the database: {why}")),
            None if answered.is_some_and(|at| at.elapsed() < LOOK + ANSWERED_WITHIN) => Ok(()),
            None => Err("the database did not answer lately".to_owned()),
        }
    }
}
