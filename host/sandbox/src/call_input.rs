//! The input of one call of a guest.

use std::sync::Arc;

use event_host_core::event::{Attempt, GroupName, LogEvent, Tenant};
use event_host_core::handler::state::AttemptState;
use event_host_core::handler::{BatchCall, Call};

/// The input of one call of a guest.
pub(super) struct CallInput<'a> {
    pub(super) group: &'a GroupName,
    pub(super) tenant: &'a Tenant,
    /// At least one.
    pub(super) events: &'a [&'a LogEvent],
    /// Which attempt of each.
    pub(super) attempt: Attempt,
    /// Whether it was committed after others that the group had gone on to.
    pub(super) is_late: bool,
    pub(super) state: &'a Arc<AttemptState>,
}

impl<'a> CallInput<'a> {
    /// One event, which is `events` alone.
    pub(super) fn one(call: &'a Call<'_>, events: &'a [&'a LogEvent; 1]) -> Self {
        let Call { group, tenant, attempt, is_late, state, .. } = call;
        Self { group, tenant, events, attempt: *attempt, is_late: *is_late, state }
    }

    /// All events of a batch.
    pub(super) fn all(call: &'a BatchCall<'_>) -> Self {
        let BatchCall { group, tenant, events, state } = call;
        // A late event goes by itself.
        Self { group, tenant, events, attempt: Attempt::FIRST, is_late: false, state }
    }

    /// The partition key that all its events have.
    pub(super) fn common_key(&self) -> Option<&'a str> {
        let mut keys = self.events.iter().map(|event| event.event.partitionkey.as_deref());
        let first = keys.next()??;
        keys.all(|key| key == Some(first)).then_some(first)
    }
}
