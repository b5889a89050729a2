//! What a group and its tenant may keep in the database: looked at when it is
//! about to grow.
//!
//! Nothing is ever lost to a ceiling. An attempt that would write more state than
//! its tenant may keep, or leave more keys than its group may have, fails; an event that would become one dead letter too many
//! stays where it is, and its group is paused with the reason.

use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::trouble::Doing;
use super::{GroupLoop, Led, Signals};
use crate::delivery::permits::Ceilings;
use crate::delivery::settlement::OpenBatch;
use crate::delivery::state::{AttemptState, Touched};
use crate::delivery::{Outcome, Report};
use crate::event::Attempt;
use crate::failure::{Failure, FailureKind};
use crate::store::StoreError;

/// For how long a tenant's state is taken to be as it was, but for what this group
/// has added since. An attempt is refused only after a new look.
const STATE_LOOK: Duration = Duration::from_secs(10);

/// How long is waited to be told of one's own pause: a few looks at the group's row.
const PAUSE_SEEN: Duration = Duration::from_secs(2);

/// What a tenant's state came to when it was last looked at, and what this group
/// may have added since: never less than it is, but for what others added.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownState {
    bytes: i64,
    at: Instant,
}

/// How many keys the state of this group has at most, the open batch included.
/// Nobody but its leader writes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownKeys {
    at_most: i64,
    /// When they were counted, while every change since is known exactly.
    counted: Option<Instant>,
}

/// Below the limit by this part of it, each key is looked up rather than taken for
/// a new one: a group that keeps nearly as many as it may would else have all of
/// them counted again and again.
const NEARLY_FULL: i64 = 16;

/// What is to become of a report.
#[derive(Debug)]
pub(super) enum Checked {
    /// It may be recorded.
    Within(Report),
    /// It must not: the event would become a dead letter, and the tenant keeps as
    /// many as it may.
    Full(u64),
}

impl GroupLoop {
    /// Whether there is anything to look at: most attempts of most tenants are
    /// passed by this alone.
    pub(super) fn may_exceed(
        &self,
        led: &mut Led,
        ceilings: &Ceilings,
        state: &AttemptState,
        report: &Report,
    ) -> bool {
        match report.outcome {
            Outcome::Success => {
                let Touched { set, deleted } = state.touched();
                set + deleted > 0
                    && ((set > 0 && ceilings.state_bytes.is_some())
                        || !self.has_room_for_keys(led, set + deleted))
            }
            Outcome::Failure(_) => ceilings.dead_letters.is_some(),
            Outcome::NotRun(_) => false,
        }
    }

    /// Takes room for so many keys as if they were all new, where there is plenty.
    fn has_room_for_keys(&self, led: &mut Led, touched: usize) -> bool {
        let Some(most) = self.most_keys() else { return true };
        let Some(known) = led.known_keys else { return false };
        let at_most = known.at_most.saturating_add_unsigned(touched as u64);
        if at_most > most - most / NEARLY_FULL {
            return false;
        }
        led.known_keys = Some(KnownKeys { at_most, counted: None });
        true
    }

    fn most_keys(&self) -> Option<i64> {
        self.handler.state_keys().map(|most| i64::try_from(most).unwrap_or(i64::MAX))
    }

    /// Holds what an attempt did against what its tenant may keep.
    pub(super) async fn within_ceilings(
        &self,
        led: &mut Led,
        ceilings: &Ceilings,
        open: &OpenBatch,
        attempt: Attempt,
        state: &AttemptState,
        mut report: Report,
    ) -> Checked {
        let succeeded = report.outcome == Outcome::Success;
        if let Some(most) = ceilings.state_bytes
            && succeeded
        {
            match self.exceeds_state(led, most, state).await {
                Ok(None) => {}
                Ok(Some(failure)) => report.outcome = Outcome::Failure(failure),
                Err(why) => {
                    report.outcome =
                        Outcome::NotRun(format!("the tenant's state could not be measured: {why}"));
                }
            }
        }
        if let Some(most) = self.most_keys()
            && report.outcome == Outcome::Success
        {
            match self.exceeds_keys(led, most, state).await {
                Ok(None) => {}
                Ok(Some(failure)) => report.outcome = Outcome::Failure(failure),
                Err(why) => {
                    report.outcome = Outcome::NotRun(format!(
                        "the keys of the state could not be counted: {why}"
                    ));
                }
            }
        }
        // Whether it failed by itself, or just now because of the state.
        if let Some(most) = ceilings.dead_letters
            && OpenBatch::gives_up(&report.outcome, attempt, &self.settings.retry)
        {
            match self.store.tenant_dead_letters(&self.settings.tenant).await {
                Ok(kept) => {
                    let kept = kept.unsigned_abs().saturating_add(open.dead_letters() as u64);
                    if kept >= most {
                        return Checked::Full(most);
                    }
                }
                Err(why) => {
                    report.outcome =
                        Outcome::NotRun(format!("the dead letters could not be counted: {why}"));
                }
            }
        }
        if succeeded && report.outcome != Outcome::Success {
            // The instance believes that what it wrote is kept.
            led.worker = self.handler.worker();
        }
        Checked::Within(report)
    }

    /// The failure of an attempt whose writes would take the tenant's state beyond
    /// its ceiling.
    async fn exceeds_state(
        &self,
        led: &mut Led,
        most: usize,
        state: &AttemptState,
    ) -> Result<Option<Failure>, StoreError> {
        let written = i64::try_from(state.written()).unwrap_or(i64::MAX);
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let now = Instant::now();
        let known = match led.known_state.filter(|known| now - known.at < STATE_LOOK) {
            Some(known) => known,
            None => {
                let bytes = self.store.tenant_state_bytes(&self.settings.tenant).await?;
                KnownState { bytes, at: now }
            }
        };
        let at_most = known.bytes.saturating_add(written);
        if at_most <= most {
            led.known_state = Some(KnownState { bytes: at_most, ..known });
            return Ok(None);
        }
        // Near the ceiling it is worth to know exactly, because most writes replace
        // a value.
        let growth = state.growth().await?;
        let bytes = self.store.tenant_state_bytes(&self.settings.tenant).await?;
        let wanted = bytes.saturating_add(growth.whole);
        if wanted > most && growth.own > 0 {
            led.known_state = Some(KnownState { bytes, at: now });
            let tenant = &self.settings.tenant;
            let text = format!(
                "the state of tenant `{tenant}` would be {wanted} bytes, `state` in [tenants.{tenant}] is {most}"
            );
            return Ok(Some(Failure::new(FailureKind::StateLimit, &text)));
        }
        led.known_state = Some(KnownState { bytes: wanted, at: now });
        Ok(None)
    }

    /// The failure of an attempt that would leave the group's state with more keys
    /// than it may have.
    async fn exceeds_keys(
        &self,
        led: &mut Led,
        most: i64,
        state: &AttemptState,
    ) -> Result<Option<Failure>, StoreError> {
        let new = state.new_keys().await?;
        let now = Instant::now();
        let is_enough = |known: &KnownKeys| {
            // Even where there are too many, as after the limit was lowered.
            new <= 0
                || known.at_most.saturating_add(new) <= most
                || known.counted.is_some_and(|at| now - at < STATE_LOOK)
        };
        let known = match led.known_keys.filter(is_enough) {
            Some(known) => known,
            None => {
                let committed = self.store.state_key_count(&self.settings.name).await?;
                let at_most = committed.saturating_add(state.new_keys_of_the_batch().await?);
                KnownKeys { at_most, counted: Some(now) }
            }
        };
        let wanted = known.at_most.saturating_add(new);
        if new > 0 && wanted > most {
            led.known_keys = Some(known);
            let text = format!(
                "the state of the group would have {wanted} keys, limits.state_keys is {most}"
            );
            return Ok(Some(Failure::new(FailureKind::StateKeysLimit, &text)));
        }
        led.known_keys = Some(KnownKeys { at_most: wanted, ..known });
        Ok(None)
    }

    /// Pauses the group at an event that its tenant has no room for, and waits
    /// until the leader sees that.
    pub(super) async fn pause_because_full(&self, led: &mut Led, most: u64, signals: &mut Signals) {
        let (group, tenant) = (&self.settings.name, &self.settings.tenant);
        let letters = if most == 1 { "dead letter" } else { "dead letters" };
        let reason = format!(
            "tenant `{tenant}` keeps {most} {letters}, as many as it may, and the next event would be one more: replay or discard some, then `host groups resume {group}`"
        );
        let Some(paused) = signals.answer(self.store.pause(group, &reason)).await else { return };
        match paused {
            Ok(()) => {
                led.trouble.over(group, Doing::Pause);
                warn!(%group, "paused: {reason}");
                signals.halted(led.epoch, PAUSE_SEEN).await;
            }
            Err(why) => {
                let delay = led.trouble.met(group, Doing::Pause, &why);
                signals.changed(Some(delay)).await;
            }
        }
    }
}
