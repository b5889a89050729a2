//! Which host runs which group: one leader a group, through the store's locks.
//!
//! One task, the `owner`, has the host's lock session, and no other task touches it; the rest
//! of the host asks it through [`Locks`]. A [`Lease`] is a lock that is held. When the
//! session can no longer prove its locks, every lease is lost at once: the leader that works
//! under one is told to stop and to commit nothing. The lock decides who works; the epoch in
//! each settlement decides who may commit.
//!
//! Of a group that is split, each host leads at most its share of the partitions, so that no
//! two hosts that run it differ by more than one. When the share gets smaller, partitions are
//! [wanted back](Lease::wanted_back), one after the other, and a host that has less than its
//! share finds them free.

mod owner;
mod shares;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use owner::{Owner, Request, Waiter};

use event_host_core::event::{GroupName, Partition};
use event_host_core::leadership_proof::LeadershipProof;
use event_host_core::troubles::Troubles;
use event_host_metrics::StoreMetrics;
use event_host_store::{HostIdentity, Leases};

/// How often the session proves its locks.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// Time after the last proof was asked for within which the host steps down from every group,
/// if no other proof comes.
pub const STEP_DOWN_AFTER: Duration = Duration::from_secs(5);

/// How often a host asks for the locks that it waits for.
pub const LOCK_POLL: Duration = Duration::from_millis(100);

/// The way to the task that owns the lock session. The task ends, and releases
/// every lock, when every clone and every [`Lease`] is gone.
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

/// A group's lock, held by this host. Dropping it releases the lock too, a little later.
#[derive(Debug)]
pub struct Lease {
    group: GroupName,
    proof: LeadershipProof,
    wanted_back: CancellationToken,
    locks: Locks,
}

impl Lease {
    /// The proof of the lock. It is lost too when the lock was given back.
    #[must_use]
    pub fn proof(&self) -> &LeadershipProof {
        &self.proof
    }

    /// Cancelled when the host leads more than its share: the holder of the lease is to
    /// finish its work, and to release it.
    #[must_use]
    pub fn wanted_back(&self) -> &CancellationToken {
        &self.wanted_back
    }

    /// Asks for a proof of the lock, and returns once it is there or the lock is lost. A
    /// leader that finds that another has led must not begin again on an older proof: the
    /// lock may have gone with its session since, and two leaders would take the group from
    /// each other until the next proof is due.
    pub async fn prove(&self) {
        let (done, proved) = oneshot::channel();
        // Fails only when the owner has ended, and every lease is lost.
        let _ = self.locks.requests.send(Request::Prove { done });
        tokio::select! {
            _ = proved => {}
            () = self.proof.lost() => {}
        }
    }

    /// Releases the lock, and returns once it is free, or lost.
    pub async fn release(self) {
        let released = self.request_unlock();
        tokio::select! {
            // An owner that ended has released everything.
            _ = released => {}
            // An owner that waits in vain for its session's answer, and steps down at last.
            () = self.proof.lost() => {}
        }
    }

    fn request_unlock(&self) -> oneshot::Receiver<()> {
        let (done, released) = oneshot::channel();
        let (group, proof) = (self.group.clone(), self.proof.clone());
        // Fails only when the owner has ended, and has released everything.
        let _ = self.locks.requests.send(Request::Unlock { group, proof, done });
        released
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.proof.is_lost() {
            drop(self.request_unlock());
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

    /// Loses every lease at once, before this returns, and has the session for the locks be
    /// made again: the log is not the one whose locks were taken.
    pub fn step_down(&self, why: &str) {
        self.leaderships.end_all();
        // Fails only when the owner has ended, and has released everything.
        let _ = self.requests.send(Request::StepDown { why: why.to_owned() });
    }

    /// Waits for a group's lock. `standing_by` is called once, if another session has the
    /// lock when it is first asked for. Dropping the future ends the wait.
    ///
    /// `None` when the owner of the lock session has broken, and there will be
    /// no lock any more.
    pub async fn lock(&self, group: &GroupName, standing_by: impl FnOnce()) -> Option<Lease> {
        self.lock_part(group, None, standing_by).await
    }

    /// Does the same for a part of a group, as far as this host's share goes.
    pub async fn lock_part(
        &self,
        group: &GroupName,
        partition: Option<Partition>,
        standing_by: impl FnOnce(),
    ) -> Option<Lease> {
        let (grant, mut granted) = oneshot::channel();
        let (refuse, refused) = oneshot::channel();
        let waiter = Waiter::new(partition, grant, refuse);
        self.requests.send(Request::Lock(group.clone(), waiter)).ok()?;
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
