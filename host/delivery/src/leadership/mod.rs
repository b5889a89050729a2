//! Which host runs which group: one leader a group, through the store's lock session.
//!
//! One task, the `owner`, has the host's lock session, and no other task touches it; the rest
//! of the host asks it through [`Locks`]. A [`Lease`] is a group that the session leads. When
//! the session can no longer prove that it lives, every lease is lost at once: the leader that
//! works under one is told to stop and to commit nothing. The session decides who works; the
//! epoch in each settlement decides who may commit.
//!
//! Hosts that would lead the same groups lead as many as each other: which of them each is to
//! lead, all compute alike (`assignment`). A group that another host is to lead is
//! [wanted back](Lease::wanted_back), and that host claims it once it is free (`places`).
//!
//! What one host does on behalf of all, and belongs to no group, is a [`Duty`]: the session
//! has it as it leads groups.

mod assignment;
mod duty;
mod owner;
mod places;
mod session;
#[cfg(test)]
mod tests;
mod waiters;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub use duty::DutyLease;
use owner::{Owner, Request};
use waiters::{DutyWaiter, Waiter};

use event_host_core::event::{Epoch, GroupName};
use event_host_core::leadership_proof::LeadershipProof;
use event_host_core::troubles::Troubles;
use event_host_metrics::StoreMetrics;
use event_host_store::{Duty, HostIdentity, Leadership, Leases, Release};

/// How often the session proves its locks.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// Time after the last proof was asked for within which the host steps down from every group,
/// if no other proof comes.
pub const STEP_DOWN_AFTER: Duration = Duration::from_secs(5);

/// How often a host that waits for groups looks whether they are free.
pub const LOCK_POLL: Duration = Duration::from_millis(100);

/// The way to the task that owns the lock session. The task ends, and gives back
/// every group, when every clone and every [`Lease`] is gone.
#[derive(Debug, Clone)]
pub struct Locks {
    requests: mpsc::UnboundedSender<Request>,
    leaderships: Leaderships,
}

/// What every leadership ends with, whatever becomes of its lock.
#[derive(Debug, Clone, Default)]
struct Leaderships(Arc<Mutex<CancellationToken>>);

impl Leaderships {
    /// One that begins now.
    fn begin(&self) -> CancellationToken {
        self.locked().child_token()
    }

    /// Ends all that have begun.
    fn end_all(&self) {
        let ended = std::mem::take(&mut *self.locked());
        ended.cancel();
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, CancellationToken> {
        // Each change of it is whole, so a poisoned lock is fine.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a group is not led yet that a task waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// Another host leads it.
    LedElsewhere,
    /// Nobody does, and this host could not either for a while: for this reason.
    Unavailable(String),
}

/// There is no such group in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing;

/// A group that this host leads. Dropping it gives the group back too, a little later.
#[derive(Debug)]
pub struct Lease {
    group: GroupName,
    leadership: Option<Box<Leadership>>,
    proof: LeadershipProof,
    wanted_back: CancellationToken,
    locks: Locks,
}

impl Lease {
    /// What the first leadership under it begins with: once.
    pub fn take_leadership(&mut self) -> Option<Leadership> {
        self.leadership.take().map(|leadership| *leadership)
    }

    /// The proof that the session leads. It is lost too when the group was given back.
    #[must_use]
    pub fn proof(&self) -> &LeadershipProof {
        &self.proof
    }

    /// Cancelled when another host is to lead the group: the holder of the lease is to
    /// finish its work, and to release it.
    #[must_use]
    pub fn wanted_back(&self) -> &CancellationToken {
        &self.wanted_back
    }

    /// Asks for a proof, and returns once it is there or the lease is lost. A leader that
    /// finds that another has led must not begin again on an older proof: the session may be
    /// over since, and two leaders would take the group from each other until the next proof
    /// is due.
    pub async fn prove(&self) {
        let (done, proved) = oneshot::channel();
        // Fails only when the owner has ended, and every lease is lost.
        let _ = self.locks.requests.send(Request::Prove { done });
        tokio::select! {
            _ = proved => {}
            () = self.proof.lost() => {}
        }
    }

    /// Gives the group back, and returns once it is free, or lost. `ended` is the epoch of
    /// the last leadership under it, if that ended cleanly; `returns` says that this host will
    /// wait for the group again, and so counts as one that would lead it meanwhile.
    pub async fn release(self, ended: Option<Epoch>, returns: bool) {
        let released = self.request_release(ended, returns);
        tokio::select! {
            // An owner that ended has released everything.
            _ = released => {}
            // An owner that waits in vain for its session's answer, and steps down at last.
            () = self.proof.lost() => {}
        }
    }

    fn request_release(&self, ended: Option<Epoch>, returns: bool) -> oneshot::Receiver<()> {
        let (done, released) = oneshot::channel();
        let release = Release { group: self.group.clone(), ended };
        let proof = self.proof.clone();
        // Fails only when the owner has ended, and has released everything.
        let _ = self.locks.requests.send(Request::Release { release, returns, proof, done });
        released
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.proof.is_lost() {
            drop(self.request_release(None, false));
        }
    }
}

impl Locks {
    /// Starts the task that owns the lock session.
    #[must_use]
    pub fn start(
        store: Arc<dyn Leases>,
        host: HostIdentity,
        troubles: Troubles,
        metrics: StoreMetrics,
    ) -> Self {
        // Unbounded, so that dropping a lease can release it. The number of groups bounds
        // what can be in it.
        let (requests, inbox) = mpsc::unbounded_channel();
        let leaderships = Leaderships::default();
        let watched = (troubles, metrics);
        let owner = Owner::new(store, host, requests.downgrade(), leaderships.clone(), watched);
        tokio::spawn(owner.run(inbox));
        Self { requests, leaderships }
    }

    /// Loses every lease at once, before this returns, and has the lock session be made
    /// again: the log is not the one whose groups were claimed.
    pub fn step_down(&self, why: &str) {
        self.leaderships.end_all();
        // Fails only when the owner has ended, and has released everything.
        let _ = self.requests.send(Request::StepDown { why: why.to_owned() });
    }

    /// Waits until this host leads a group. `told` is called at most once for each obstacle.
    /// Dropping the future ends the wait.
    ///
    /// `None` when the owner of the lock session has broken, and nothing will be led any more.
    ///
    /// # Errors
    /// [`Missing`] if the group has no row yet: it is to be made, and waited for again.
    pub async fn lead(
        &self,
        group: &GroupName,
        mut told: impl FnMut(Obstacle),
    ) -> Option<Result<Lease, Missing>> {
        let (grant, mut granted) = oneshot::channel();
        let (tell, mut obstacles) = mpsc::unbounded_channel();
        let waiter = Waiter::new(grant, tell);
        self.requests.send(Request::Lead(group.clone(), waiter)).ok()?;
        loop {
            tokio::select! {
                biased;
                lease = &mut granted => return lease.ok(),
                Some(obstacle) = obstacles.recv() => told(obstacle),
            }
        }
    }

    /// Waits until this host has a duty. `standing_by` is called at most once, when another
    /// host has it. Dropping the future ends the wait.
    ///
    /// `None` when the owner of the lock session has broken, and nothing will be had any more.
    pub async fn take_duty(&self, duty: Duty, standing_by: impl FnOnce()) -> Option<DutyLease> {
        let (grant, mut granted) = oneshot::channel();
        let (refuse, refused) = oneshot::channel();
        self.requests.send(Request::TakeDuty(duty, DutyWaiter::new(grant, refuse))).ok()?;
        tokio::select! {
            biased;
            lease = &mut granted => return lease.ok(),
            Ok(()) = refused => standing_by(),
        }
        granted.await.ok()
    }

    /// Waits until the owner of the lock session has ended, which it does only if
    /// it breaks: every lease is lost by then.
    pub async fn broken(&self) {
        self.requests.closed().await;
    }
}
