//! What all of a host's ingest shares.

use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::SetOnce;

use event_host_metrics::IngestMetrics;
use event_host_store::Ingest;

use crate::budget::Budget;
use crate::commits::Commits;
use crate::disk::Disk;
use crate::rate::Rates;
use crate::settings::Settings;

/// What the requests, the dispatcher and the keeper share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Ingest>,
    pub(crate) settings: RwLock<Arc<Settings>>,
    pub(crate) commits: Commits,
    pub(crate) budget: Arc<Budget>,
    pub(crate) rates: Rates,
    pub(crate) disk: Disk,
    pub(crate) metrics: IngestMetrics,
    /// Something came in.
    pub(crate) begun: Begun,
}

/// Whether something has come in yet.
#[derive(Debug, Default)]
pub(crate) struct Begun(SetOnce<()>);

impl Begun {
    pub(crate) fn set(&self) {
        if !self.0.initialized() {
            // Another request may have been first.
            let _ = self.0.set(());
        }
    }

    pub(crate) async fn wait(&self) {
        self.0.wait().await;
    }
}

impl Shared {
    pub(crate) fn settings(&self) -> Arc<Settings> {
        // Replaced in one go, so a poisoned one is whole.
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }
}
