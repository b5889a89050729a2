//! What was deferred: reading what of it is due, when its time has come and no sooner.

use std::sync::Arc;

use tokio::time::Instant;

use super::GroupLoop;
use super::flow::{Flow, UnderWay, is_over};
use super::trouble::Doing;
use crate::delivery::ordering::DueRead;
use crate::store::{Due, DueFetch, StoreError};

/// Deferred events that were asked for.
pub(super) struct DueAnswer {
    asked: DueRead,
    answer: Result<Due, StoreError>,
}

impl Flow<'_> {
    /// Reads the deferred events whose time has come, if there are any. They join what is
    /// parked, and are loaded when their turn comes.
    pub(super) fn read_due(&mut self) {
        if self.reading_due.is_some() || !is_over(self.due_after) {
            return;
        }
        let now = self.group().clock.now();
        let Some(asked) = self.work.book().schedule.read_due(now) else { return };
        let work = Arc::clone(&self.work);
        self.reading_due = Some(UnderWay::begin(async move {
            let GroupLoop { settings, store, share, .. } = &work.group;
            let _turn = share.read_turn(store.at_once().reads).await;
            let DueRead { after, up_to, max_events } = asked;
            let due = DueFetch { group: &settings.name, now, after, up_to, max_events };
            DueAnswer { asked, answer: store.due(due).await }
        }));
    }

    pub(super) fn due_is_read(&mut self, DueAnswer { asked, answer }: DueAnswer) {
        let name = &self.group().settings.name;
        match answer {
            Ok(due) => {
                self.led.trouble.over(name, Doing::Read);
                self.work.book().schedule.due_is_read(asked, due);
            }
            Err(error) => {
                let delay = self.led.trouble.met(name, Doing::Read, &error);
                self.work.book().schedule.due_is_not_read();
                self.due_after = Some(Instant::now() + delay);
            }
        }
    }
}
