//! Who runs which group: one leader a group, through the store's locks.
//!
//! One task owns the host's lock session and nobody else touches it; the rest of
//! the host asks it through [`Locks`]. A [`Lease`] is a lock that is held. When
//! the session can no longer prove its locks, every lease is lost at once: its
//! token tells whoever works under it to stop and commit nothing. The lock
//! decides who works; the epoch in each settlement decides who may commit.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, info};

use crate::delivery::backoff::RetryPolicy;
use crate::event::{Attempt, GroupName};
use crate::store::{HostIdentity, LockSession, Store, StoreError};

/// How often the session proves its locks.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// Without a proof for so long, the host steps down from every group.
pub const STEP_DOWN_AFTER: Duration = Duration::from_secs(5);

enum Request {
    TryLock(GroupName, oneshot::Sender<Option<CancellationToken>>),
    Unlock(GroupName, oneshot::Sender<()>),
}

/// The way to the task that owns the lock session. Dropping every clone ends the
/// task and releases every lock.
#[derive(Debug, Clone)]
pub struct Locks {
    requests: mpsc::Sender<Request>,
}

/// A group's lock, held by this host. Dropping it gives the lock back too, a
/// little later.
#[derive(Debug)]
pub struct Lease {
    group: GroupName,
    lost: CancellationToken,
    locks: Locks,
    released: bool,
}

impl Lease {
    /// Cancelled when the lock can no longer be proved.
    #[must_use]
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Gives the lock back, and returns once it is free.
    pub async fn release(mut self) {
        self.released = true;
        let (done, released) = oneshot::channel();
        let request = Request::Unlock(self.group.clone(), done);
        if self.locks.requests.send(request).await.is_ok() {
            // An owner that ended has released everything.
            let _ = released.await;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        let (done, _) = oneshot::channel();
        let request = Request::Unlock(self.group.clone(), done);
        if let Err(mpsc::error::TrySendError::Full(request)) = self.locks.requests.try_send(request)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let requests = self.locks.requests.clone();
            runtime.spawn(async move { requests.send(request).await });
        }
    }
}

impl Locks {
    /// Starts the task that owns the lock session.
    #[must_use]
    pub fn start(store: Arc<dyn Store>, host: HostIdentity) -> Self {
        let (requests, inbox) = mpsc::channel(64);
        tokio::spawn(Owner { store, host, held: HashMap::new(), session: None }.run(inbox));
        Self { requests }
    }

    /// Takes a group's lock if nobody holds it, and the session is well.
    pub async fn try_lock(&self, group: &GroupName) -> Option<Lease> {
        let (answer, lost) = oneshot::channel();
        self.requests.send(Request::TryLock(group.clone(), answer)).await.ok()?;
        let lost = lost.await.ok()??;
        Some(Lease { group: group.clone(), lost, locks: self.clone(), released: false })
    }
}

struct Owner {
    store: Arc<dyn Store>,
    host: HostIdentity,
    session: Option<Box<dyn LockSession>>,
    /// Each tells its lease that the lock is lost when it is dropped, and so also
    /// if this task breaks.
    held: HashMap<GroupName, DropGuard>,
}

impl Owner {
    async fn run(mut self, mut inbox: mpsc::Receiver<Request>) {
        let mut beat = tokio::time::interval(HEARTBEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut proved = Instant::now();
        let mut failures = 0_u32;
        let mut next_try = Instant::now();
        loop {
            tokio::select! {
                request = inbox.recv() => match request {
                    None => return,
                    Some(request) => self.serve(request).await,
                },
                _ = beat.tick() => {
                    if self.session.is_none() && Instant::now() < next_try {
                        continue;
                    }
                    match self.prove().await {
                        Ok(()) => {
                            if failures > 0 {
                                info!("the lock session is back");
                                failures = 0;
                            }
                            proved = Instant::now();
                        }
                        Err(why) => {
                            if failures == 0 {
                                error!("the lock session does not answer: {why}");
                            }
                            failures = failures.saturating_add(1);
                            next_try = Instant::now() + reconnect_delay(failures);
                            if proved.elapsed() >= STEP_DOWN_AFTER {
                                self.step_down();
                            }
                        }
                    }
                }
            }
        }
    }

    /// Proves the session, or makes one where there is none.
    async fn prove(&mut self) -> Result<(), StoreError> {
        if let Some(session) = &mut self.session {
            return within(STEP_DOWN_AFTER, session.heartbeat()).await;
        }
        self.session = Some(within(STEP_DOWN_AFTER, self.store.lock_session(&self.host)).await?);
        Ok(())
    }

    fn step_down(&mut self) {
        for group in std::mem::take(&mut self.held).keys() {
            error!(%group, "leadership lost: the lock session did not answer");
        }
        self.session = None;
    }

    async fn serve(&mut self, request: Request) {
        match request {
            Request::TryLock(group, answer) => {
                let lost = self.try_lock(&group).await;
                if let Err(Some(_unwanted)) = answer.send(lost) {
                    self.unlock(&group).await;
                }
            }
            Request::Unlock(group, done) => {
                self.unlock(&group).await;
                // Whoever asked may have been cancelled; the lock is free anyway.
                let _ = done.send(());
            }
        }
    }

    async fn try_lock(&mut self, group: &GroupName) -> Option<CancellationToken> {
        if self.session.is_none()
            && let Err(why) = self.prove().await
        {
            error!(%group, "no lock session: {why}");
            return None;
        }
        let session = self.session.as_mut()?;
        match within(STEP_DOWN_AFTER, session.try_lock(group)).await {
            Ok(true) => {
                let lost = CancellationToken::new();
                self.held.insert(group.clone(), lost.clone().drop_guard());
                Some(lost)
            }
            Ok(false) => None,
            Err(why) => {
                error!(%group, "cannot ask for the lock: {why}");
                None
            }
        }
    }

    async fn unlock(&mut self, group: &GroupName) {
        if self.held.remove(group).is_none() {
            return;
        }
        let Some(session) = self.session.as_mut() else { return };
        if let Err(why) = within(STEP_DOWN_AFTER, session.unlock(group)).await {
            // A session in doubt holds no lock that anybody could rely on.
            error!(%group, "cannot release the lock, ending the lock session: {why}");
            self.step_down();
        }
    }
}

fn reconnect_delay(failures: u32) -> Duration {
    let policy = RetryPolicy { max: Duration::from_secs(5), ..RetryPolicy::default() };
    policy.delay(Attempt(failures), None, fastrand::f64())
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(StoreError::Unavailable(format!("no answer within {limit:?}"))),
    }
}

#[cfg(test)]
mod tests;
