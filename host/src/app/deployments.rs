//! Tells when another version of a handler is deployed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tracing::debug;

use event_host_store::Deployments;

/// How often a host that has a deployed handler reads what is deployed.
const DEPLOYED_POLL: Duration = Duration::from_millis(250);

/// Notifies `changed` when something else is deployed than before, while `wanted` is true.
pub(super) async fn watch_deployments(
    store: Arc<dyn Deployments>,
    mut wanted: watch::Receiver<bool>,
    changed: Arc<Notify>,
) {
    let mut last = None;
    // The sender is dropped once the host has ended.
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        match store.deployed().await {
            Ok(now) => {
                // Also at the first look: something may have been deployed since the
                // host was loaded.
                if last.as_ref() != Some(&now) {
                    changed.notify_one();
                }
                last = Some(now);
            }
            // The supervisor says so.
            Err(why) => debug!("cannot see what is deployed: {why}"),
        }
        tokio::time::sleep(DEPLOYED_POLL).await;
    }
}
