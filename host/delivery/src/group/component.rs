//! Loads the components that replays name, before they are attempted.

use std::sync::Arc;

use tokio::time::Instant;

use super::background::{BackgroundCall, is_over};
use super::outages::Operation;
use super::shared::Shared;
use event_host_core::digest::Digest;

/// The component that a replay names: whether it is known to be there, or not to run.
pub(super) struct Prepared {
    digest: Digest,
    answer: Result<(), String>,
}

/// Loads one component after the other. Only the loader writes its fields.
pub(super) struct ComponentLoader {
    shared: Arc<Shared>,
    /// The component that is loaded now.
    pub(super) preparing: Option<BackgroundCall<Prepared>>,
    /// No load before this, because the last one failed.
    pub(super) prepare_after: Option<Instant>,
}

impl ComponentLoader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, preparing: None, prepare_after: None }
    }

    /// Loads the component that an event waits for, while the group holds no permit and no
    /// memory. One after the other, because the handler keeps only a few.
    pub(super) fn prepare(&mut self) {
        if self.preparing.is_some() || !is_over(self.prepare_after) {
            return;
        }
        let Some(digest) = self.shared.wanted_component() else { return };
        let handler = Arc::clone(&self.shared.group.handler);
        self.preparing = Some(BackgroundCall::spawn(async move {
            let answer = handler.prepare(&digest).await;
            Prepared { digest, answer }
        }));
    }

    pub(super) fn prepared(&mut self, Prepared { digest, answer }: Prepared) {
        let name = &self.shared.group.settings.name;
        match answer {
            Ok(()) => {
                self.shared.outages.recovered(name, Operation::Prepare);
                self.shared.component_is_ready(&digest);
            }
            Err(why) => {
                let delay = self.shared.outages.failed(name, Operation::Prepare, &why);
                self.prepare_after = Some(Instant::now() + delay);
            }
        }
    }
}
