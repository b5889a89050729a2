//! The tasks that wait for a group or a duty.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::{DutyLease, HEARTBEAT, Lease, Missing, Obstacle};
use event_host_store::Duty;

/// A task that waits for a group.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) grant: oneshot::Sender<Result<Lease, Missing>>,
    tell: mpsc::UnboundedSender<Obstacle>,
    told: Vec<Obstacle>,
    /// The group was claimed on its behalf at least once.
    pub(super) asked: bool,
    /// Since when nobody leads the group, and this host cannot.
    pub(super) unavailable_since: Option<Instant>,
}

impl Waiter {
    pub(super) fn new(
        grant: oneshot::Sender<Result<Lease, Missing>>,
        tell: mpsc::UnboundedSender<Obstacle>,
    ) -> Self {
        Self { grant, tell, told: Vec::new(), asked: false, unavailable_since: None }
    }

    /// Tells it of an obstacle, once.
    pub(super) fn meets(&mut self, obstacle: Obstacle) {
        if !self.told.contains(&obstacle) {
            self.told.push(obstacle.clone());
            // The task that waited may have gone.
            let _ = self.tell.send(obstacle);
        }
    }
}

/// A task that waits for a duty.
#[derive(Debug)]
pub(super) struct DutyWaiter {
    grant: oneshot::Sender<DutyLease>,
    /// Told, once, that another host has it.
    refuse: Option<oneshot::Sender<()>>,
}

impl DutyWaiter {
    pub(super) fn new(grant: oneshot::Sender<DutyLease>, refuse: oneshot::Sender<()>) -> Self {
        Self { grant, refuse: Some(refuse) }
    }
}

/// The duties that this host has, waits for, and is to give back.
pub(super) struct Duties {
    /// Each tells its lease that it is lost when it is dropped.
    pub(super) held: BTreeMap<Duty, DropGuard>,
    waiting: BTreeMap<Duty, Vec<DutyWaiter>>,
    pub(super) releasing: BTreeSet<Duty>,
    /// When those that are waited for are claimed again.
    claim_at: Instant,
}

impl Duties {
    pub(super) fn new() -> Self {
        Self {
            held: BTreeMap::new(),
            waiting: BTreeMap::new(),
            releasing: BTreeSet::new(),
            claim_at: Instant::now(),
        }
    }

    /// A task waits for a duty: it is claimed at once.
    pub(super) fn wait(&mut self, duty: Duty, waiter: DutyWaiter) {
        self.waiting.entry(duty).or_default().push(waiter);
        self.claim_at = Instant::now();
    }

    /// Whether another host has what a task of this one waits for.
    pub(super) fn stands_by(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// When those that are waited for are claimed next, if there are any.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.stands_by().then_some(self.claim_at)
    }

    /// Those to claim now.
    pub(super) fn claimable(&mut self) -> Vec<Duty> {
        self.waiting.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.grant.is_closed());
            !waiters.is_empty()
        });
        let now = Instant::now();
        if self.waiting.is_empty() || now < self.claim_at {
            return Vec::new();
        }
        self.claim_at = now + HEARTBEAT;
        // What this host has already belongs to its lease.
        self.waiting.keys().filter(|duty| !self.held.contains_key(duty)).copied().collect()
    }

    /// The first who waits gets it.
    pub(super) fn grant(&mut self, lease: DutyLease) {
        let waiters = self.waiting.get_mut(&lease.duty());
        if let Some(waiters) = waiters
            && !waiters.is_empty()
        {
            // A lease that no task takes is dropped, and so gives its duty back.
            let _ = waiters.remove(0).grant.send(lease);
        }
    }

    /// Another host has it.
    pub(super) fn refuse(&mut self, duty: Duty) {
        for waiter in self.waiting.get_mut(&duty).into_iter().flatten() {
            if let Some(refuse) = waiter.refuse.take() {
                // The task that waited may have gone.
                let _ = refuse.send(());
            }
        }
    }
}
