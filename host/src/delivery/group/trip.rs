//! A group that trips, because its handler fails everything: what it does then,
//! and what its row says of it.

use tokio::time::Instant;
use tracing::{error, info};

use super::trouble::Doing;
use super::{End, GroupLoop, Led, Signals};
use crate::delivery::breaker::{Breaker, OnTrip, Verdict};
use crate::event::Attempt;
use crate::store::{GroupState, Settled};

/// A group that handles one event now and then, because all fail.
pub(super) struct Tripped {
    /// Events that failed meanwhile.
    pub(super) probes: u32,
    /// When the next one is tried.
    pub(super) due: Instant,
    /// The group's row was seen to say so: when it says otherwise, somebody
    /// resumed the group.
    pub(super) seen: bool,
}

/// What the group's row is to say of it.
pub(super) enum TripChange {
    Tripped(String),
    Over,
}

impl GroupLoop {
    /// Stops handling everything but probes, or leaves the group to the version
    /// before this one.
    pub(super) fn trip(&self, led: &mut Led, why: String) -> Result<(), End> {
        if led.breaker.is_unproven() && self.settings.breaker.on_trip == OnTrip::Rollback {
            error!(
                group = %self.settings.name,
                handler = self.handler.digest(),
                "{why}: the version before it goes on"
            );
            return Err(End::RolledBack);
        }
        led.tripped = Some(self.tripped(0));
        led.unrecorded = Some(TripChange::Tripped(why));
        Ok(())
    }

    /// Tripped, with so many probes that failed.
    pub(super) fn tripped(&self, probes: u32) -> Tripped {
        let probing = self.settings.breaker.probing();
        let wait = probing.delay(Attempt(probes.saturating_add(1)), None, fastrand::f64());
        Tripped { probes, due: Instant::now() + wait, seen: false }
    }

    /// Takes the end of a probe.
    pub(super) fn probed(&self, led: &mut Led, verdict: Verdict) {
        let Some(before) = led.tripped.take() else { return };
        if verdict == Verdict::Success {
            led.unrecorded = Some(TripChange::Over);
            return;
        }
        let seen = before.seen;
        led.tripped = Some(Tripped { seen, ..self.tripped(before.probes.saturating_add(1)) });
    }

    /// Follows what the group's row says, which somebody else may have changed.
    pub(super) fn follow_trip(&self, led: &mut Led, state: GroupState) {
        match (state, &mut led.tripped) {
            // Another leader tripped it, or an operator did not resume it yet.
            (GroupState::Tripped, None) => {
                led.tripped = Some(Tripped { seen: true, ..self.tripped(0) });
            }
            (GroupState::Tripped, Some(tripped)) => tripped.seen = true,
            (GroupState::Running, Some(tripped)) if tripped.seen => {
                led.tripped = None;
                led.breaker = Breaker::default();
            }
            _ => {}
        }
    }

    /// Writes down that the group tripped, or that this is over. Whether that
    /// worked.
    pub(super) async fn record_trip(
        &self,
        led: &mut Led,
        signals: &mut Signals,
    ) -> Result<bool, End> {
        let (group, store) = (&self.settings.name, &self.store);
        let recording = async {
            match &led.unrecorded {
                Some(TripChange::Tripped(why)) => store.trip(group, led.epoch, Some(why)).await,
                Some(TripChange::Over) => store.trip(group, led.epoch, None).await,
                None => Ok(Settled::Committed),
            }
        };
        let Some(recorded) = signals.answer(recording).await else { return Ok(false) };
        match recorded {
            Ok(Settled::Committed) => {
                led.trouble.over(group, Doing::Trip);
                match led.unrecorded.take() {
                    Some(TripChange::Tripped(why)) => error!(
                        group = %group,
                        handler = self.handler.digest(),
                        "the group trips: {why}; it tries one event now and then, until one succeeds, `host groups resume {group}`, or another version"
                    ),
                    Some(TripChange::Over) => info!(
                        group = %group,
                        "a probe succeeded: the group goes on"
                    ),
                    None => {}
                }
                Ok(true)
            }
            Ok(Settled::NotLeader) => Err(End::Superseded),
            Err(error) => {
                let delay = led.trouble.met(group, Doing::Trip, &error);
                signals.changed(Some(delay)).await;
                Ok(false)
            }
        }
    }
}
