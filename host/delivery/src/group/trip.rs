//! A group that trips because its handler fails everything: what its leader does then, and
//! what its row says.

use tokio::time::Instant;
use tracing::{error, info};

use super::leader::Leader;
use super::outages::Operation;
use super::{End, GroupLoop, Signals};
use crate::breaker::{Breaker, OnTrip, Verdict};
use event_host_core::event::Attempt;
use event_host_metrics::Trip;
use event_host_store::{GroupState, Settled};

/// A group that handles one event now and then, because all fail.
pub(super) struct Tripped {
    /// Number of probes that failed since.
    pub(super) probes: u32,
    /// When the next one is tried.
    pub(super) due: Instant,
    /// The group's row was seen to say so. When it says otherwise after that, the group was
    /// resumed.
    pub(super) seen: bool,
}

/// A change that is to be written to the group's row.
pub(super) enum TripChange {
    Tripped(String),
    Over,
}

impl GroupLoop {
    /// Tripped, after this number of failed probes.
    pub(super) fn tripped(&self, probes: u32) -> Tripped {
        let probing = self.settings.breaker.probing();
        let wait = probing.delay(Attempt(probes.saturating_add(1)), None, fastrand::f64());
        Tripped { probes, due: Instant::now() + wait, seen: false }
    }
}

impl Leader<'_> {
    /// Stops handling everything but probes, or leaves the group to the version
    /// before this one.
    pub(super) fn trip(&mut self, why: String) -> Result<(), End> {
        let GroupLoop { settings, handler, .. } = self.group();
        let is_unproven = self.shared.lock().breaker.is_unproven();
        if is_unproven && settings.breaker.on_trip == OnTrip::Rollback {
            error!(
                group = %settings.name,
                handler = handler.digest(),
                "{why}: the version before it goes on"
            );
            return Err(End::RolledBack);
        }
        self.progress.tripped = Some(self.group().tripped(0));
        self.progress.unrecorded = Some(TripChange::Tripped(why));
        Ok(())
    }

    /// Takes the verdict of a probe.
    pub(super) fn probed(&mut self, verdict: Verdict) {
        let Some(before) = self.progress.tripped.take() else { return };
        if verdict == Verdict::Success {
            self.progress.unrecorded = Some(TripChange::Over);
            return;
        }
        let (seen, probes) = (before.seen, before.probes.saturating_add(1));
        self.progress.tripped = Some(Tripped { seen, ..self.group().tripped(probes) });
    }

    /// Follows what the group's row says, which an operator or another leader may have
    /// changed.
    pub(super) fn follow_trip(&mut self, state: GroupState) {
        match (state, &mut self.progress.tripped) {
            // Another leader tripped it, or no operator has resumed it.
            (GroupState::Tripped, None) => {
                self.progress.tripped = Some(Tripped { seen: true, ..self.group().tripped(0) });
            }
            (GroupState::Tripped, Some(tripped)) => tripped.seen = true,
            (GroupState::Running, Some(tripped)) if tripped.seen => {
                self.progress.tripped = None;
                self.shared.lock().breaker = Breaker::default();
            }
            _ => {}
        }
    }

    /// Records that the group tripped, or that this is over. True once it is recorded.
    pub(super) async fn record_trip(&mut self, signals: &mut Signals) -> Result<bool, End> {
        let GroupLoop { settings, store, handler, metrics, .. } = &self.shared.group;
        let (group, epoch) = (&settings.name, self.progress.epoch);
        let recording = async {
            match &self.progress.unrecorded {
                Some(TripChange::Tripped(why)) => store.record_trip(group, epoch, Some(why)).await,
                Some(TripChange::Over) => store.record_trip(group, epoch, None).await,
                None => Ok(Settled::Committed),
            }
        };
        let Some(recorded) = signals.answer(recording).await else { return Ok(false) };
        match recorded {
            Ok(Settled::Committed) => {
                self.progress.outages.recovered(group, Operation::Trip);
                match self.progress.unrecorded.take() {
                    Some(TripChange::Tripped(why)) => {
                        metrics.tripped(Trip::Tripped);
                        error!(
                            group = %group,
                            handler = handler.digest(),
                            "the group trips: {why}; it tries one event now and then, until one succeeds, `host groups resume {group}`, or another version"
                        );
                    }
                    Some(TripChange::Over) => {
                        metrics.tripped(Trip::Over);
                        info!(group = %group, "a probe succeeded: the group goes on");
                    }
                    None => {}
                }
                Ok(true)
            }
            Ok(Settled::NotLeader) => Err(End::Superseded),
            Err(error) => {
                let delay = self.progress.outages.failed(group, Operation::Trip, &error);
                signals.changed(Some(delay)).await;
                Ok(false)
            }
        }
    }
}
