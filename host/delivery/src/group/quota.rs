//! What a group and its tenant may keep in the store: checked before it grows.
//!
//! No event is ever lost to a quota. An attempt that would write more state than
//! its tenant may keep, or leave more keys than its group may have, fails; an event
//! that would become one dead letter too many stays where it is, and its group is
//! paused with the reason.
//!
//! What other attempts wrote and is not committed counts at its largest possible size. No
//! attempt is refused for that: an attempt near a limit waits until the others' writes are
//! committed, and is checked again.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::GroupLoop;
use super::room::{KnownKeys, KnownState, NoRoom};
use super::shared::{Shared, Uncommitted};
use crate::admission::{StorePermit, TenantQuota};
use crate::ordering::{Job, Ordering};
use crate::settlement::gives_up;
use event_host_core::failure::{Failure, FailureKind};
use event_host_core::handler::state::{AttemptState, StateUnreadable, Touched};
use event_host_core::handler::{Outcome, Report};
use event_host_store::StoreError;

/// How long the measured size of a tenant's state is used, plus what this group has added
/// since. An attempt is refused only after a new measurement.
const STATE_LOOK: Duration = Duration::from_secs(10);

/// Within this part of the limit, each key is looked up instead of being counted as new.
/// Otherwise a group near its limit would have all of its keys counted again and again.
const NEARLY_FULL: i64 = 16;

/// Whether a report may be recorded.
#[derive(Debug)]
pub(super) enum QuotaCheck {
    /// It may be recorded.
    Within(Report),
    /// It must not: the event would become a dead letter for which the tenant has no
    /// room.
    QuotaExceeded(NoRoom),
}

/// Why an attempt that waits for a settlement is cancelled, to be made again later.
fn no_settlement_possible() -> StoreError {
    StoreError::Busy(
        "what others wrote cannot be settled while as many events are parked as may be".to_owned(),
    )
}

impl Shared {
    /// Whether a quota applies at all. For most attempts of most tenants none does.
    pub(super) fn may_exceed(
        &self,
        quota: &TenantQuota,
        state: &AttemptState,
        report: &Report,
    ) -> bool {
        match report.outcome {
            Outcome::Success => {
                let Touched { set, deleted } = state.touched();
                set + deleted > 0
                    && (set > 0 && quota.state_bytes.is_some()
                        || !self.has_room_for_keys(set + deleted))
            }
            Outcome::Failure(_) => {
                quota.dead_letters.is_some() || quota.dead_letter_bytes.is_some()
            }
            Outcome::NotRun(_) => false,
        }
    }

    /// Reserves room for this number of keys, as if all were new, while the limit is far.
    /// False near the limit.
    fn has_room_for_keys(&self, touched: usize) -> bool {
        let Some(most) = self.most_keys() else { return true };
        let mut locked = self.lock();
        let Some(known) = locked.known_keys else { return false };
        let at_most = known.at_most.saturating_add_unsigned(touched as u64);
        if at_most > most - most / NEARLY_FULL {
            return false;
        }
        locked.known_keys = Some(KnownKeys { at_most, counted: None });
        true
    }

    fn most_keys(&self) -> Option<i64> {
        self.group.handler.state_keys().map(|most| i64::try_from(most).unwrap_or(i64::MAX))
    }

    /// Checks what an attempt did against its tenant's quota. `known` is the size of the
    /// tenant's state; the attempt that has it locked is the only one that is checked.
    pub(super) async fn within_quota(
        &self,
        known: &mut Option<KnownState>,
        quota: &TenantQuota,
        job: &Job,
        state: &AttemptState,
        mut report: Report,
    ) -> QuotaCheck {
        if report.outcome == Outcome::Success {
            report.outcome = self.within_state_quota(known, quota, state).await;
        }
        // This covers a failure of the handler's and one for the state just above.
        if let Outcome::Failure(failure) = &report.outcome
            && gives_up(&report.outcome, job.attempt, &self.group.settings.retry)
        {
            let bytes = job.event.bytes() + failure.text.len();
            match self.no_room(quota, bytes).await {
                Ok(Some(no_room)) => return QuotaCheck::QuotaExceeded(no_room),
                Ok(None) => {}
                Err(why) => {
                    report.outcome =
                        Outcome::NotRun(format!("the dead letters could not be counted: {why}"));
                }
            }
        }
        QuotaCheck::Within(report)
    }

    /// Checks what a successful attempt wrote against the quotas of its group and its tenant.
    pub(super) async fn within_state_quota(
        &self,
        known: &mut Option<KnownState>,
        quota: &TenantQuota,
        state: &AttemptState,
    ) -> Outcome {
        if let Some(most) = quota.state_bytes {
            match self.exceeds_state(known, most, state).await {
                Ok(None) => {}
                Ok(Some(failure)) => return Outcome::Failure(failure),
                Err(why) => {
                    return Outcome::NotRun(format!(
                        "the tenant's state could not be measured: {why}"
                    ));
                }
            }
        }
        if let Some(most) = self.most_keys() {
            match self.exceeds_keys(most, state).await {
                Ok(None) => {}
                Ok(Some(failure)) => return Outcome::Failure(failure),
                Err(why) => {
                    return Outcome::NotRun(format!(
                        "the keys of the state could not be counted: {why}"
                    ));
                }
            }
        }
        Outcome::Success
    }

    /// Permission to read what the tenant keeps.
    async fn store_permit(&self) -> StorePermit {
        self.group.admission.acquire_read(self.group.store.limits().reads).await
    }

    /// Why the tenant has no room for one more dead letter of this size in bytes; `None` if
    /// it has.
    async fn no_room(
        &self,
        quota: &TenantQuota,
        bytes: usize,
    ) -> Result<Option<NoRoom>, StoreError> {
        let GroupLoop { settings, store, .. } = &self.group;
        let next = bytes as u64;
        loop {
            let mut commits = self.commits();
            let (mut letters, mut bytes) = (0, 0);
            {
                let _permit = self.store_permit().await;
                if quota.dead_letters.is_some() {
                    letters = store.tenant_dead_letters(&settings.tenant).await?.unsigned_abs();
                }
                if quota.dead_letter_bytes.is_some() {
                    let kept = store.tenant_dead_letter_bytes(&settings.tenant).await?;
                    bytes = kept.unsigned_abs();
                }
            }
            let is_on_its_way = {
                let locked = self.lock();
                let (schedule, in_flight) = (&locked.schedule, locked.in_flight);
                let uncommitted = schedule.dead_letters() + in_flight.dead_letters;
                letters = letters.saturating_add(uncommitted as u64);
                let uncommitted = schedule.dead_letter_bytes() + in_flight.dead_letter_bytes;
                bytes = bytes.saturating_add(uncommitted as u64);
                in_flight.dead_letters > 0
            };
            // What was committed in between may not have been counted at all.
            if commits.has_changed().unwrap_or(false) {
                continue;
            }
            let too_many = quota.dead_letters.filter(|most| letters >= *most);
            let too_large =
                quota.dead_letter_bytes.filter(|most| bytes.saturating_add(next) > *most);
            let no_room = match (too_many, too_large) {
                (None, None) => return Ok(None),
                (Some(most), _) => NoRoom::Letters(most),
                (None, Some(most)) => NoRoom::Bytes { kept: bytes, next, most },
            };
            // What the settlement under way takes may have been counted twice.
            if !is_on_its_way {
                return Ok(Some(no_room));
            }
            if !self.next_commit(&mut commits).await {
                return Err(no_settlement_possible());
            }
        }
    }

    /// The failure of an attempt whose writes would take the tenant's state beyond
    /// its quota.
    async fn exceeds_state(
        &self,
        known_state: &mut Option<KnownState>,
        most: usize,
        state: &AttemptState,
    ) -> Result<Option<Failure>, StateUnreadable> {
        let GroupLoop { settings, store, .. } = &self.group;
        let written = i64::try_from(state.written()).unwrap_or(i64::MAX);
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let now = Instant::now();
        let known = match known_state.filter(|known| now - known.at < STATE_LOOK) {
            Some(known) => known,
            None => {
                // What is committed meanwhile counts twice rather than not at all.
                let uncommitted = self.lock().uncommitted().bytes;
                let _permit = self.store_permit().await;
                let bytes = store.tenant_state_bytes(&settings.tenant).await?;
                KnownState { bytes: bytes.saturating_add(uncommitted), at: now }
            }
        };
        let at_most = known.bytes.saturating_add(written);
        if at_most <= most {
            *known_state = Some(KnownState { bytes: at_most, ..known });
            return Ok(None);
        }
        // Near the limit the exact size is worth a query, because most writes replace
        // a value.
        loop {
            let mut commits = self.commits();
            let growth = state.growth().await?;
            let bytes = {
                let _permit = self.store_permit().await;
                store.tenant_state_bytes(&settings.tenant).await?
            };
            let own = bytes.saturating_add(growth.whole);
            let wanted = own.saturating_add(self.of_other_lanes().bytes);
            if commits.has_changed().unwrap_or(false) {
                continue;
            }
            if wanted <= most || growth.own <= 0 {
                *known_state = Some(KnownState { bytes: wanted, at: now });
                return Ok(None);
            }
            if self.may_be_counted_twice(&commits) {
                if !self.next_commit(&mut commits).await {
                    return Err(no_settlement_possible().into());
                }
                continue;
            }
            *known_state = Some(KnownState { bytes, at: now });
            let tenant = &settings.tenant;
            let text = format!(
                "the state of tenant `{tenant}` would be {own} bytes, `state` in [tenants.{tenant}] is {most}"
            );
            return Ok(Some(Failure::new(FailureKind::StateLimit, &text)));
        }
    }

    /// The failure of an attempt that would leave the group's state with more keys
    /// than it may have.
    async fn exceeds_keys(
        &self,
        most: i64,
        state: &AttemptState,
    ) -> Result<Option<Failure>, StateUnreadable> {
        let now = Instant::now();
        let new = state.new_keys().await?;
        let is_enough = |known: &KnownKeys| {
            // Even where there are too many, as after the limit was lowered.
            new <= 0
                || known.at_most.saturating_add(new) <= most
                || known.counted.is_some_and(|at| now - at < STATE_LOOK)
        };
        let mut known = self.lock().known_keys.filter(is_enough);
        loop {
            let mut commits = self.commits();
            let found = match known.take() {
                Some(known) => known,
                None => {
                    let group = self.group.settings.group();
                    let committed = {
                        let _permit = self.store_permit().await;
                        self.group.store.state_key_count(&group).await?
                    };
                    let own = state.new_keys_of_the_batch().await?;
                    let at_most = committed.saturating_add(own);
                    let at_most = at_most.saturating_add(self.of_other_lanes().keys);
                    if commits.has_changed().unwrap_or(false) {
                        continue;
                    }
                    KnownKeys {
                        at_most,
                        counted: (!self.may_be_counted_twice(&commits)).then_some(now),
                    }
                }
            };
            let wanted = found.at_most.saturating_add(new);
            if new <= 0 || wanted <= most {
                self.lock().known_keys = Some(KnownKeys { at_most: wanted, ..found });
                return Ok(None);
            }
            if found.counted.is_none() {
                if self.may_be_counted_twice(&commits) && !self.next_commit(&mut commits).await {
                    return Err(no_settlement_possible().into());
                }
                continue;
            }
            self.lock().known_keys = Some(found);
            let text = format!(
                "the state of the group would have {wanted} keys, limits.state_keys is {most}"
            );
            return Ok(Some(Failure::new(FailureKind::StateKeysLimit, &text)));
        }
    }

    /// Uncommitted writes of other lanes, at their largest possible size. With a single lane
    /// there are none.
    fn of_other_lanes(&self) -> Uncommitted {
        match self.group.settings.ordering {
            Ordering::Total => Uncommitted::default(),
            Ordering::Key | Ordering::None => self.lock().uncommitted(),
        }
    }

    /// Whether the last measurement may count something twice, or at more than its size.
    fn may_be_counted_twice(&self, commits: &watch::Receiver<bool>) -> bool {
        let is_uncommitted = {
            let locked = self.lock();
            locked.in_flight.written.keys > 0
                || self.group.settings.ordering.parks() && locked.uncommitted().keys > 0
        };
        is_uncommitted || commits.has_changed().unwrap_or(false)
    }
}
