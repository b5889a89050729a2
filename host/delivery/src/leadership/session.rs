//! The lock session as its owner uses it: no call takes longer than the last proof holds.

use std::collections::BTreeSet;

use tokio::sync::watch;
use tokio::time::Instant;

use super::places::Places;
use super::{HEARTBEAT, STEP_DOWN_AFTER};
use event_host_core::event::GroupName;
use event_host_store::{Claim, Duty, LockSession, Release, Roster, StoreError};

pub(super) struct Session {
    locks: Box<dyn LockSession>,
    /// Until then the last proof holds; every lease watches it.
    pub(super) proven_until: watch::Sender<Instant>,
    /// When the next proof is due: always before `proven_until`.
    pub(super) beat_at: Instant,
    /// How often it was proved.
    pub(super) proofs: u64,
    /// What it said that this host leads or would lead.
    pub(super) announced: BTreeSet<GroupName>,
    /// Who is to lead each of them, as of the last roster.
    pub(super) places: Places,
    /// The roster was told anew since groups were claimed last.
    pub(super) is_news: bool,
    /// When groups are claimed again though nothing is new.
    pub(super) claim_at: Instant,
}

impl Session {
    /// One that has claimed nothing yet: there is nothing that it could have lost
    /// so far.
    pub(super) fn new(locks: Box<dyn LockSession>) -> Self {
        let now = Instant::now();
        let proven_until = watch::Sender::new(now + STEP_DOWN_AFTER);
        Self {
            locks,
            proven_until,
            beat_at: now,
            proofs: 0,
            announced: BTreeSet::new(),
            places: Places::default(),
            is_news: false,
            claim_at: now,
        }
    }

    pub(super) async fn prove(&mut self, stands_by: bool) -> Result<(), StoreError> {
        let sent = Instant::now();
        let until = *self.proven_until.borrow();
        within(until, self.locks.heartbeat(stands_by)).await?;
        self.proven_until.send_replace(sent + STEP_DOWN_AFTER);
        self.beat_at = sent + HEARTBEAT;
        self.proofs += 1;
        Ok(())
    }

    pub(super) async fn claim(&mut self, groups: &[GroupName]) -> Result<Vec<Claim>, StoreError> {
        let until = *self.proven_until.borrow();
        within(until, self.locks.claim(groups)).await
    }

    pub(super) async fn release(
        &mut self,
        groups: &[Release],
    ) -> Result<Vec<GroupName>, StoreError> {
        let until = *self.proven_until.borrow();
        within(until, self.locks.release(groups)).await
    }

    pub(super) async fn claim_duty(&mut self, duty: Duty) -> Result<bool, StoreError> {
        let until = *self.proven_until.borrow();
        within(until, self.locks.claim_duty(duty)).await
    }

    pub(super) async fn release_duty(&mut self, duty: Duty) -> Result<(), StoreError> {
        let until = *self.proven_until.borrow();
        within(until, self.locks.release_duty(duty)).await
    }

    /// Says which groups this host leads or would lead. Whether that is news.
    pub(super) async fn announce(
        &mut self,
        groups: BTreeSet<&GroupName>,
    ) -> Result<bool, StoreError> {
        // Asked at each turn, and nearly always as before.
        if groups.iter().copied().eq(&self.announced) {
            return Ok(false);
        }
        let until = *self.proven_until.borrow();
        let list: Vec<GroupName> = groups.into_iter().cloned().collect();
        within(until, self.locks.announce(&list)).await?;
        self.announced = list.into_iter().collect();
        Ok(true)
    }

    pub(super) async fn roster(&mut self) -> Result<Option<Roster>, StoreError> {
        let until = *self.proven_until.borrow();
        within(until, self.locks.roster()).await
    }
}

/// Waits for an answer, until a deadline.
pub(super) async fn within<T>(
    deadline: Instant,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    // Looked at before and after, because a process that was frozen finds the
    // answer there when it wakes, however late it is.
    if Instant::now() < deadline
        && let Ok(answer) = tokio::time::timeout_at(deadline, call).await
        && Instant::now() < deadline
    {
        return answer;
    }
    Err(StoreError::Unavailable("no answer in time".to_owned()))
}
