//! Pauses a group whose tenant has no room for what comes next.

use std::time::Duration;

use tracing::warn;

use super::Leader;
use crate::group::outages::Operation;
use crate::group::room::NoRoom;
use crate::group::{GroupLoop, Signals};

/// How long a leader waits to see its own pause: a few reads of the group's row.
const PAUSE_SEEN: Duration = Duration::from_secs(2);

impl Leader<'_> {
    /// Why the group is paused at an event that its tenant has no room for.
    pub(in crate::group) fn quota_reason(&self, no_room: NoRoom) -> String {
        let GroupLoop { settings, .. } = &self.shared.group;
        let (group, tenant) = (&settings.group(), &settings.tenant);
        let why = match no_room {
            NoRoom::Letters(most) => {
                let letters = if most == 1 { "dead letter" } else { "dead letters" };
                format!(
                    "keeps {most} {letters}, as many as it may, and the next event would be one more"
                )
            }
            NoRoom::Bytes { kept, next, most } => format!(
                "keeps {kept} bytes of dead letters, the next event would add {next}, and `dead_letter_bytes` in [tenants.{tenant}] is {most}"
            ),
        };
        format!(
            "tenant `{tenant}` {why}: replay or discard some, then `host groups resume {group}`"
        )
    }

    /// Pauses the group for a reason, and waits until the leader sees that.
    pub(in crate::group) async fn pause(&mut self, reason: &str, signals: &mut Signals) {
        let GroupLoop { settings, store, .. } = &self.shared.group;
        let group = &settings.group();
        let Some(paused) = signals.answer(store.pause(group, reason)).await else { return };
        match paused {
            Ok(()) => {
                self.progress.outages.recovered(group, Operation::Pause);
                warn!(%group, "paused: {reason}");
                signals.halted(self.progress.epoch, PAUSE_SEEN).await;
            }
            Err(why) => {
                let delay = self.progress.outages.failed(group, Operation::Pause, &why);
                signals.changed(Some(delay)).await;
            }
        }
    }
}
