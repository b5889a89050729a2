//! What a tenant may keep in the database: looked at when it is about to grow.
//!
//! Nothing is ever lost to a ceiling. An attempt that would write more state than
//! its tenant may keep fails; an event that would become one dead letter too many
//! stays where it is, and its group is paused with the reason.

use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::flow::Flow;
use super::slot::Work;
use super::trouble::Doing;
use super::{GroupLoop, Signals};
use crate::delivery::ordering::{Job, Ordering};
use crate::delivery::permits::Ceilings;
use crate::delivery::settlement::gives_up;
use crate::delivery::state::AttemptState;
use crate::delivery::{Outcome, Report};
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

/// What is to become of a report.
#[derive(Debug)]
pub(super) enum Checked {
    /// It may be recorded.
    Within(Report),
    /// It must not: the event would become a dead letter, and the tenant keeps as
    /// many as it may.
    Full(u64),
}

/// Whether there is anything to look at: most attempts of most tenants are passed
/// by this alone.
pub(super) fn may_exceed(ceilings: &Ceilings, state: &AttemptState, report: &Report) -> bool {
    match report.outcome {
        Outcome::Success => ceilings.state_bytes.is_some() && state.written() > 0,
        Outcome::Failure(_) => ceilings.dead_letters.is_some(),
        Outcome::NotRun(_) => false,
    }
}

impl Work {
    /// Holds what an attempt did against what its tenant may keep. `known` is what
    /// the tenant's state comes to; whoever has it is the only one who looks.
    pub(super) async fn within_ceilings(
        &self,
        known: &mut Option<KnownState>,
        ceilings: &Ceilings,
        job: &Job,
        state: &AttemptState,
        mut report: Report,
    ) -> Checked {
        if let Some(most) = ceilings.state_bytes
            && report.outcome == Outcome::Success
        {
            match self.exceeds_state(known, most, state).await {
                Ok(None) => {}
                Ok(Some(failure)) => report.outcome = Outcome::Failure(failure),
                Err(why) => {
                    report.outcome =
                        Outcome::NotRun(format!("the tenant's state could not be measured: {why}"));
                }
            }
        }
        // Whether it failed by itself, or just now because of the state.
        if let Some(most) = ceilings.dead_letters
            && gives_up(&report.outcome, job.attempt, &self.group.settings.retry)
        {
            match self.has_no_room(most).await {
                Ok(true) => return Checked::Full(most),
                Ok(false) => {}
                Err(why) => {
                    report.outcome =
                        Outcome::NotRun(format!("the dead letters could not be counted: {why}"));
                }
            }
        }
        Checked::Within(report)
    }

    /// Whether the tenant has no room for one dead letter more.
    async fn has_no_room(&self, most: u64) -> Result<bool, StoreError> {
        loop {
            let mut commits = self.commits();
            let kept = self.group.store.tenant_dead_letters(&self.group.settings.tenant).await?;
            let (open, on_their_way) = {
                let book = self.book();
                (book.schedule.dead_letters(), book.on_their_way.dead_letters)
            };
            let kept = kept.unsigned_abs().saturating_add((open + on_their_way) as u64);
            if kept < most {
                return Ok(false);
            }
            // What is on its way may have been counted twice.
            if on_their_way == 0 && !commits.has_changed().unwrap_or(false) {
                return Ok(true);
            }
            self.next_commit(&mut commits).await;
        }
    }

    /// The failure of an attempt whose writes would take the tenant's state beyond
    /// its ceiling.
    async fn exceeds_state(
        &self,
        known_state: &mut Option<KnownState>,
        most: usize,
        state: &AttemptState,
    ) -> Result<Option<Failure>, StoreError> {
        let GroupLoop { settings, store, .. } = &self.group;
        let written = i64::try_from(state.written()).unwrap_or(i64::MAX);
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let now = Instant::now();
        let known = match known_state.filter(|known| now - known.at < STATE_LOOK) {
            Some(known) => known,
            None => {
                let bytes = store.tenant_state_bytes(&settings.tenant).await?;
                let open = self.book().open_writes();
                KnownState { bytes: bytes.saturating_add(open), at: now }
            }
        };
        let at_most = known.bytes.saturating_add(written);
        if at_most <= most {
            *known_state = Some(KnownState { bytes: at_most, ..known });
            return Ok(None);
        }
        // Near the ceiling it is worth to know exactly, because most writes replace
        // a value.
        loop {
            let mut commits = self.commits();
            let growth = state.growth().await?;
            let bytes = store.tenant_state_bytes(&settings.tenant).await?;
            // What other lanes wrote is not committed, and nobody knows what it
            // comes to; with one lane there is nothing of others.
            let others = match settings.ordering {
                Ordering::Total => 0,
                Ordering::Key | Ordering::None => self.book().open_writes(),
            };
            let own = bytes.saturating_add(growth.whole);
            let wanted = own.saturating_add(others);
            if wanted > most && growth.own > 0 {
                if others > 0 {
                    self.next_commit(&mut commits).await;
                    continue;
                }
                *known_state = Some(KnownState { bytes, at: now });
                let tenant = &settings.tenant;
                let text = format!(
                    "the state of tenant `{tenant}` would be {own} bytes, `state` in [tenants.{tenant}] is {most}"
                );
                return Ok(Some(Failure::new(FailureKind::StateLimit, &text)));
            }
            *known_state = Some(KnownState { bytes: wanted, at: now });
            return Ok(None);
        }
    }
}

impl Flow<'_> {
    /// Pauses the group at an event that its tenant has no room for, and waits
    /// until the leader sees that.
    pub(super) async fn pause_because_full(&mut self, most: u64, signals: &mut Signals) {
        let GroupLoop { settings, store, .. } = &self.work.group;
        let (group, tenant) = (&settings.name, &settings.tenant);
        let letters = if most == 1 { "dead letter" } else { "dead letters" };
        let reason = format!(
            "tenant `{tenant}` keeps {most} {letters}, as many as it may, and the next event would be one more: replay or discard some, then `host groups resume {group}`"
        );
        let Some(paused) = signals.answer(store.pause(group, &reason)).await else { return };
        match paused {
            Ok(()) => {
                self.led.trouble.over(group, Doing::Pause);
                warn!(%group, "paused: {reason}");
                signals.halted(self.led.epoch, PAUSE_SEEN).await;
            }
            Err(why) => {
                let delay = self.led.trouble.met(group, Doing::Pause, &why);
                signals.changed(Some(delay)).await;
            }
        }
    }
}
