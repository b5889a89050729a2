//! Reports to the store what does not work on this host, for `status`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::debug;

use event_host_core::troubles::Troubles;
use event_host_store::{HostIdentity, Leases};

/// An outage that is over within this time is not reported.
const SETTLES: Duration = Duration::from_millis(500);

/// How often an outage that goes on is reported again; `status` does not show what is older
/// than a minute.
const AGAIN: Duration = Duration::from_secs(20);

/// Delay after a report that failed.
const RETRY: Duration = Duration::from_secs(2);

/// How long the host waits for its last report.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The reporter of one host.
#[derive(Clone)]
pub(super) struct Reporter {
    store: Arc<dyn Leases>,
    host: HostIdentity,
    troubles: Troubles,
    /// The store has a report that is not cleared.
    told: Arc<AtomicBool>,
}

impl Reporter {
    pub(super) fn new(store: Arc<dyn Leases>, host: &HostIdentity, troubles: &Troubles) -> Self {
        Self { store, host: host.clone(), troubles: troubles.clone(), told: Arc::default() }
    }

    /// Reports until it is aborted.
    pub(super) async fn run(self) -> Infallible {
        let mut changes = self.troubles.follow();
        loop {
            let again = async {
                if self.told.load(Ordering::Relaxed) {
                    tokio::time::sleep(AGAIN).await;
                } else {
                    std::future::pending().await
                }
            };
            tokio::select! {
                Ok(()) = changes.changed() => tokio::time::sleep(SETTLES).await,
                () = again => {}
            }
            changes.mark_unchanged();
            let told = self.troubles.told();
            if told.is_none() && !self.told.load(Ordering::Relaxed) {
                continue;
            }
            match self.store.record_outages(&self.host, told.as_deref()).await {
                Ok(()) => self.told.store(told.is_some(), Ordering::Relaxed),
                // Most outages are that the database cannot be reached; then `status` says so
                // itself.
                Err(why) => {
                    debug!("`status` is not told: {why}");
                    tokio::time::sleep(RETRY).await;
                    changes.mark_changed();
                }
            }
        }
    }

    /// Clears the report of a host that ends.
    pub(super) async fn end(self) {
        if self.told.load(Ordering::Relaxed) {
            let told = self.store.record_outages(&self.host, None);
            if let Ok(Err(why)) = tokio::time::timeout(LAST_WORD, told).await {
                debug!("`status` is not told: {why}");
            }
        }
    }
}
