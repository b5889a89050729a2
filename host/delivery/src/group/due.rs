//! Reads deferred events once they are due, and no sooner.

use std::sync::Arc;

use tokio::time::Instant;

use super::GroupLoop;
use super::background::{BackgroundCall, is_over};
use super::outages::Operation;
use super::shared::Shared;
use crate::ordering::DueRead;
use event_host_store::{Due, DueFetch, StoreError};

/// The answer to a read of deferred events.
pub(super) struct DueAnswer {
    asked: DueRead,
    answer: Result<Due, StoreError>,
}

/// Reads the deferred events that are due. Only this reader writes its fields.
pub(super) struct DueReader {
    shared: Arc<Shared>,
    /// The read under way.
    pub(super) reading: Option<BackgroundCall<DueAnswer>>,
    /// No read before this, because the last one failed.
    pub(super) read_after: Option<Instant>,
}

impl DueReader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, reading: None, read_after: None }
    }

    /// Reads the deferred events that are due, if there are any. They are parked, and loaded
    /// when their turn comes.
    pub(super) fn read(&mut self) {
        if self.reading.is_some() || !is_over(self.read_after) {
            return;
        }
        let now = self.shared.group.clock.now();
        let Some(asked) = self.shared.lock().schedule.read_due(now) else { return };
        let shared = Arc::clone(&self.shared);
        self.reading = Some(BackgroundCall::spawn(async move {
            let GroupLoop { settings, store, admission, .. } = &shared.group;
            let _permit = admission.acquire_read(store.limits().reads).await;
            let DueRead { after, up_to, max_events } = asked;
            let due = DueFetch { group: &settings.name, now, after, up_to, max_events };
            DueAnswer { asked, answer: store.due(due).await }
        }));
    }

    pub(super) fn answered(&mut self, DueAnswer { asked, answer }: DueAnswer) {
        let name = &self.shared.group.settings.name;
        match answer {
            Ok(due) => {
                self.shared.outages.recovered(name, Operation::Read);
                self.shared.lock().schedule.due_is_read(asked, due);
            }
            Err(error) => {
                let delay = self.shared.outages.failed(name, Operation::Read, &error);
                self.shared.lock().schedule.due_is_not_read();
                self.read_after = Some(Instant::now() + delay);
            }
        }
    }
}
