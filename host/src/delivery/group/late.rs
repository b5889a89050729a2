//! What the group has passed while transactions were open: looking whether something
//! has appeared there, and waiting where too much of it is open.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::leader::{BackgroundCall, Leader, is_over};
use super::outages::Operation;
use super::{GroupLoop, HeldBack, Signals};
use crate::event::Position;
use crate::store::{FetchedLate, LateFetch, StoreError, UndecidedRanges};

/// How often is looked whether something has appeared where the group had passed.
/// Nobody tells: whoever holds it may be gone before anybody has seen it.
const LATE_POLL: Duration = Duration::from_millis(100);

/// How many late events are taken over at once, so that a transaction of a million
/// comes in parts.
const LATE_AT_ONCE: usize = 1_000;

/// So many ranges of positions a group leaves open; then it waits. They are written
/// with each settlement that changes them.
pub(super) const MAX_UNDECIDED_RANGES: usize = 1_000;

/// A look at what the group had passed and what was open then.
pub(super) struct Looked {
    at: UndecidedRanges,
    answer: Result<FetchedLate, StoreError>,
}

impl Leader<'_> {
    /// Looks whether something has appeared where the group had passed.
    pub(super) fn look_for_late(&mut self, safe: Position) {
        if self.looking.is_some() || !is_over(self.look_after) {
            return;
        }
        let Some((at, room)) = self.shared.lock().schedule.late_search(safe, MAX_UNDECIDED_RANGES)
        else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        self.looking = Some(BackgroundCall::spawn(async move {
            let GroupLoop { settings, store, admission, .. } = &shared.group;
            let _permit = admission.acquire_read(store.limits().reads).await;
            let late = LateFetch {
                group: &settings.name,
                tenant: &settings.tenant,
                subscription: &settings.subscription,
                partition: settings.partition,
                undecided: &at,
                safe,
                max_events: room.min(LATE_AT_ONCE),
            };
            let answer = store.fetch_late(late).await;
            Looked { at, answer }
        }));
    }

    pub(super) fn looked(&mut self, Looked { at, answer }: Looked) {
        let shared = Arc::clone(&self.shared);
        let (name, now) = (&shared.group.settings.name, shared.group.clock.now());
        match answer {
            Ok(late) => {
                self.progress.outages.recovered(name, Operation::Read);
                if !late.events.is_empty() {
                    info!(group = %name, events = late.events.len(), "events were committed late");
                }
                self.look_after = (!late.has_more).then(|| Instant::now() + LATE_POLL);
                let schedule = &mut shared.lock().schedule;
                schedule.admit_late(&at, late, now);
                if schedule.undecided_ranges() == 0 {
                    info!(group = %name, "nothing is open any more of what was passed");
                }
            }
            Err(error) => {
                let delay = self.progress.outages.failed(name, Operation::Read, &error);
                self.look_after = Some(Instant::now() + delay);
            }
        }
    }

    /// Says so when as many events are parked, or as much is open, as may be, and
    /// when that is over.
    pub(super) async fn say_whether_held_back(
        &mut self,
        safe: Position,
        overtake_limit: Position,
        signals: &Signals,
    ) {
        let now = self.group().clock.now();
        let held_back = {
            let schedule = &self.shared.lock().schedule;
            if schedule.is_held_back(safe.max(overtake_limit), now) {
                Some(HeldBack::Parked)
            } else if schedule.undecided_ranges() >= MAX_UNDECIDED_RANGES
                && schedule.scanned_to() < overtake_limit
            {
                Some(HeldBack::Open)
            } else {
                None
            }
        };
        if held_back == self.progress.held_back {
            return;
        }
        let GroupLoop { settings, store, .. } = &self.shared.group;
        let remark = held_back.map(|held_back| match held_back {
            HeldBack::Parked => format!(
                "{} events or more wait for their next attempt, or behind one that does, as many as `max_parked` lets: the group reads no further until some are handled or given up",
                settings.max_parked
            ),
            HeldBack::Open => format!(
                "open transactions may still commit something in {MAX_UNDECIDED_RANGES} places that the group has passed, as many as it leaves behind: it waits until some of them end"
            ),
        });
        match (&remark, self.progress.held_back) {
            (Some(remark), _) => warn!(group = %settings.name, "{remark}"),
            (None, Some(HeldBack::Open)) => {
                info!(group = %settings.name, "less is open: the group reads on");
            }
            (None, _) => info!(group = %settings.name, "fewer events wait: the group reads on"),
        }
        self.progress.held_back = held_back;
        let names = [settings.name.clone()];
        if let Some(Err(why)) = signals.answer(store.set_note(&names, remark.as_deref())).await {
            debug!(group = %settings.name, "`status` is not told: {why}");
        }
    }
}
