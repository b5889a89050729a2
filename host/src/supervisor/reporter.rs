//! Tells the database what this host is troubled by, for `status`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::debug;

use crate::store::{HostIdentity, Store};
use crate::troubles::Troubles;

/// What is over so soon is not worth a word.
const SETTLES: Duration = Duration::from_millis(500);

/// How often it is told that it is still so; what is older than a minute is not shown.
const AGAIN: Duration = Duration::from_secs(20);

/// How long it waits where the database did not take it.
const RETRY: Duration = Duration::from_secs(2);

/// How long the host waits at its end.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The reporter of one host.
#[derive(Clone)]
pub(super) struct Reporter {
    store: Arc<dyn Store>,
    host: HostIdentity,
    troubles: Troubles,
    /// The database was told of something.
    told: Arc<AtomicBool>,
}

impl Reporter {
    pub(super) fn new(store: &Arc<dyn Store>, host: &HostIdentity, troubles: &Troubles) -> Self {
        Self {
            store: Arc::clone(store),
            host: host.clone(),
            troubles: troubles.clone(),
            told: Arc::default(),
        }
    }

    /// Tells it again and again, until it is aborted.
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
                // Most troubles are that the database cannot be reached; then
                // `status` says so itself.
                Err(why) => {
                    debug!("`status` is not told: {why}");
                    tokio::time::sleep(RETRY).await;
                    changes.mark_changed();
                }
            }
        }
    }

    /// A host that ends is troubled by nothing.
    pub(super) async fn end(self) {
        if self.told.load(Ordering::Relaxed) {
            let told = self.store.record_outages(&self.host, None);
            if let Ok(Err(why)) = tokio::time::timeout(LAST_WORD, told).await {
                debug!("`status` is not told: {why}");
            }
        }
    }
}
