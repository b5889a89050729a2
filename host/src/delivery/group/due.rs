//! What was deferred: reading what of it is due, when its time has come and no sooner.

use std::sync::Arc;

use tokio::time::Instant;

use super::GroupLoop;
use super::leader::{BackgroundCall, Leader, is_over};
use super::outages::Operation;
use crate::delivery::ordering::DueRead;
use crate::store::{Due, DueFetch, StoreError};

/// Deferred events that were asked for.
pub(super) struct DueAnswer {
    asked: DueRead,
    answer: Result<Due, StoreError>,
}

impl Leader<'_> {
    /// Reads the deferred events whose time has come, if there are any. They join what is
    /// parked, and are loaded when their turn comes.
    pub(super) fn read_due(&mut self) {
        if self.reading_due.is_some() || !is_over(self.due_after) {
            return;
        }
        let now = self.group().clock.now();
        let Some(asked) = self.shared.lock().schedule.read_due(now) else { return };
        let shared = Arc::clone(&self.shared);
        self.reading_due = Some(BackgroundCall::spawn(async move {
            let GroupLoop { settings, store, admission, .. } = &shared.group;
            let _permit = admission.acquire_read(store.limits().reads).await;
            let DueRead { after, up_to, max_events } = asked;
            let due = DueFetch { group: &settings.name, now, after, up_to, max_events };
            DueAnswer { asked, answer: store.due(due).await }
        }));
    }

    pub(super) fn due_is_read(&mut self, DueAnswer { asked, answer }: DueAnswer) {
        let name = &self.group().settings.name;
        match answer {
            Ok(due) => {
                self.progress.outages.recovered(name, Operation::Read);
                self.shared.lock().schedule.due_is_read(asked, due);
            }
            Err(error) => {
                let delay = self.progress.outages.failed(name, Operation::Read, &error);
                self.shared.lock().schedule.due_is_not_read();
                self.due_after = Some(Instant::now() + delay);
            }
        }
    }
}
