//! The task that owns the lock session.
//!
//! It promises that every lease is lost at the latest [`STEP_DOWN_AFTER`] after the last
//! proof was *sent*: the database let no other session have the locks when it answered, which
//! was after that moment, and nothing is known of any later one.
//!
//! So no call to the session is waited for any longer than the last proof holds, and none has
//! a shorter limit of its own. To give up on a call earlier would gain nothing: the session
//! is then in an unknown state and can be used no more, and closing it is what makes the
//! database release the locks. Until the deadline an answer may still come, and while none
//! does the locks are as much ours as before. Once a call has failed, the session is dropped,
//! and every lease is lost before that: a database may give the locks to another session as
//! soon as it sees this one end, or has done so already if that is why the call failed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, error, info};

use super::shares::Shares;
use super::{HEARTBEAT, LOCK_POLL, Leaderships, Lease, Locks, STEP_DOWN_AFTER};
use event_host_core::event::{Attempt, GroupName, Partition};
use event_host_core::leadership_proof::LeadershipProof;
use event_host_core::repeats::Repeats;
use event_host_core::retry::RetryPolicy;
use event_host_core::troubles::Troubles;
use event_host_metrics::{StoreMetrics, StoreOperation};
use event_host_store::{HostIdentity, Leases, LockSession, StoreError};

/// How long the making of a session may take.
const CONNECT: Duration = Duration::from_secs(5);

/// What `status` shows.
const NO_SESSION: &str = "no lock session";

/// What the rest of the host asks for.
#[derive(Debug)]
pub(super) enum Request {
    Lock(GroupName, Waiter),
    Unlock { group: GroupName, proof: LeadershipProof, done: oneshot::Sender<()> },
    Prove { done: oneshot::Sender<()> },
    StepDown { why: String },
}

/// A task that waits for a lock.
#[derive(Debug)]
pub(super) struct Waiter {
    /// What part of a group it is, if it is one.
    partition: Option<Partition>,
    grant: oneshot::Sender<Lease>,
    /// Told, once, that another session has the lock.
    refuse: Option<oneshot::Sender<()>>,
    /// The lock was asked for on its behalf at least once.
    asked: bool,
}

impl Waiter {
    pub(super) fn new(
        partition: Option<Partition>,
        grant: oneshot::Sender<Lease>,
        refuse: oneshot::Sender<()>,
    ) -> Self {
        Self { partition, grant, refuse: Some(refuse), asked: false }
    }
}

/// The task's state.
pub(super) struct Owner {
    store: Arc<dyn Leases>,
    host: HostIdentity,
    /// For the leases. Weak, so that this task ends when no other can ask.
    requests: mpsc::WeakUnboundedSender<Request>,
    leaderships: Leaderships,
    /// Each tells its lease that the lock is lost when it is dropped, and so also
    /// if this task breaks. Before the session, because fields are dropped in
    /// this order.
    held: HashMap<GroupName, Held>,
    session: Option<Session>,
    waiting: BTreeMap<GroupName, Vec<Waiter>>,
    /// Of groups that are split.
    shares: Shares,
    /// When all locks that are waited for are asked for again.
    ask_at: Instant,
    /// When a session may be made, if there is none.
    connect_at: Instant,
    /// How often in a row a session could not be made, or did not last from one
    /// proof to the next.
    failures: u32,
    /// Why.
    reasons: Repeats,
    troubles: Troubles,
    /// What its calls of the database count with.
    metrics: StoreMetrics,
}

/// A lock that is leased.
struct Held {
    _told: DropGuard,
    wanted_back: CancellationToken,
}

struct Session {
    locks: Box<dyn LockSession>,
    /// Until then the last proof holds; every lease watches it.
    proven_until: watch::Sender<Instant>,
    /// When the next proof is due: always before `proven_until`.
    beat_at: Instant,
    /// How often it was proved.
    proofs: u64,
    /// It was said that this host takes a share of some group.
    shares: bool,
}

impl Session {
    /// One that has taken no lock yet: there is nothing that it could have lost
    /// so far.
    fn new(locks: Box<dyn LockSession>) -> Self {
        let now = Instant::now();
        let proven_until = watch::Sender::new(now + STEP_DOWN_AFTER);
        Self { locks, proven_until, beat_at: now, proofs: 0, shares: false }
    }

    async fn prove(&mut self, standing_by: &[GroupName]) -> Result<(), StoreError> {
        let sent = Instant::now();
        let until = *self.proven_until.borrow();
        within(until, self.locks.heartbeat(standing_by)).await?;
        self.proven_until.send_replace(sent + STEP_DOWN_AFTER);
        self.beat_at = sent + HEARTBEAT;
        self.proofs += 1;
        Ok(())
    }

    async fn try_locks(&mut self, groups: &[GroupName]) -> Result<Vec<bool>, StoreError> {
        let until = *self.proven_until.borrow();
        within(until, self.locks.try_locks(groups)).await
    }

    async fn sharers(&mut self, groups: &[GroupName]) -> Result<Vec<Vec<String>>, StoreError> {
        let until = *self.proven_until.borrow();
        self.shares = !groups.is_empty();
        within(until, self.locks.sharers(groups)).await
    }

    async fn unlock(&mut self, group: &GroupName) -> Result<(), StoreError> {
        let until = *self.proven_until.borrow();
        within(until, self.locks.unlock(group)).await
    }
}

impl Owner {
    pub(super) fn new(
        store: Arc<dyn Leases>,
        host: HostIdentity,
        requests: mpsc::WeakUnboundedSender<Request>,
        leaderships: Leaderships,
        (troubles, metrics): (Troubles, StoreMetrics),
    ) -> Self {
        let now = Instant::now();
        Self {
            store,
            shares: Shares::new(&host.id),
            host,
            requests,
            leaderships,
            held: HashMap::new(),
            session: None,
            waiting: BTreeMap::new(),
            ask_at: now,
            connect_at: now,
            failures: 0,
            reasons: Repeats::default(),
            troubles,
            metrics,
        }
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Request>) {
        loop {
            tokio::select! {
                request = inbox.recv() => match request {
                    None => return,
                    Some(request) => self.serve(request).await,
                },
                () = tokio::time::sleep_until(self.next_due()) => {}
            }
            // Locks that are wanted together are asked for together.
            while let Ok(request) = inbox.try_recv() {
                self.prove_if_due().await;
                self.serve(request).await;
            }
            self.prove_if_due().await;
            self.ask_if_due().await;
        }
    }

    fn next_due(&self) -> Instant {
        match &self.session {
            None => self.connect_at,
            Some(session) if self.waiting.is_empty() => session.beat_at,
            Some(session) => session.beat_at.min(self.ask_at),
        }
    }

    async fn serve(&mut self, request: Request) {
        match request {
            Request::Lock(group, waiter) => {
                if let Some(partition) = waiter.partition {
                    self.shares.wants(&group, partition);
                }
                self.waiting.entry(group).or_default().push(waiter);
            }
            Request::Unlock { group, proof, done } => {
                // What is lost is not held any more, or by a later lease.
                if !proof.is_lost() {
                    self.unlock(&group).await;
                }
                // The task that asked may have been cancelled; the lock is free anyway.
                let _ = done.send(());
            }
            Request::Prove { done } => {
                self.prove().await;
                // The task that asked may have been cancelled.
                let _ = done.send(());
            }
            Request::StepDown { why } => {
                if self.session.is_some() {
                    self.end_session(&StoreError::Changed(why));
                }
            }
        }
    }

    async fn unlock(&mut self, group: &GroupName) {
        if let Some(session) = &mut self.session
            && self.held.contains_key(group)
        {
            match session.unlock(group).await {
                Ok(()) => drop(self.held.remove(group)),
                Err(why) => return self.end_session(&why),
            }
            self.want_back();
        }
    }

    /// Finds the hosts that share groups with this one, and wants back what it leads
    /// beyond its share.
    async fn find_sharers(&mut self) {
        let (held, waiting) = (&self.held, &self.waiting);
        self.shares.retain(|group| {
            let is_of_it = |part: &GroupName| part.whole() == group.as_str();
            held.keys().any(is_of_it) || waiting.keys().any(is_of_it)
        });
        let groups = self.shares.groups();
        let Some(session) = &mut self.session else { return };
        if groups.is_empty() && !session.shares {
            return;
        }
        match session.sharers(&groups).await {
            Ok(others) => {
                self.shares.know(&groups, &others);
                self.want_back();
            }
            Err(why) => self.end_session(&why),
        }
    }

    /// Wants one partition back of each group of which this host leads too many,
    /// unless it wants one back already.
    fn want_back(&self) {
        for group in self.shares.groups() {
            let held = || self.held.iter().filter(|(name, _)| name.whole() == group.as_str());
            let is_over = held().count() > self.shares.most(&group);
            if is_over && !held().any(|(_, held)| held.wanted_back.is_cancelled()) {
                let last = held().max_by_key(|(name, _)| name.partition_number());
                if let Some((name, held)) = last {
                    debug!(group = %name, "another host is to lead it: giving it back");
                    held.wanted_back.cancel();
                }
            }
        }
    }

    /// Makes a session where there is none, and proves the one that there is.
    async fn prove_if_due(&mut self) {
        if self.session.is_none() {
            if Instant::now() < self.connect_at {
                return;
            }
            let deadline = Instant::now() + CONNECT;
            match within(deadline, self.store.lock_session(&self.host)).await {
                Ok(locks) => self.session = Some(Session::new(locks)),
                Err(why) => return self.end_session(&why),
            }
        }
        if self.session.as_ref().is_some_and(|session| Instant::now() >= session.beat_at) {
            self.prove().await;
        }
    }

    /// Proves the session that there is, or ends it.
    async fn prove(&mut self) {
        let standing_by = self.standing_by();
        let Some(session) = &mut self.session else { return };
        let asked = Instant::now();
        let proved = session.prove(&standing_by).await;
        self.metrics.called(StoreOperation::Lock, asked.elapsed(), proved.is_ok());
        match proved {
            // Not at the first proof: one that fails whenever it asks for locks would be made
            // again without a pause, and be logged as back each time.
            Ok(()) if session.proofs > 1 && self.failures > 0 => {
                info!("the lock session is back");
                self.failures = 0;
                self.reasons.over();
                self.troubles.clear(NO_SESSION);
            }
            Ok(()) => {}
            Err(why) => return self.end_session(&why),
        }
        self.find_sharers().await;
    }

    /// The groups that a task waits for, and whose locks other sessions have.
    fn standing_by(&self) -> Vec<GroupName> {
        let refused = |waiters: &Vec<Waiter>| {
            waiters.iter().any(|waiter| waiter.refuse.is_none() && !waiter.grant.is_closed())
        };
        let waiting = self.waiting.iter().filter(|(_, waiters)| refused(waiters));
        waiting.map(|(group, _)| group.clone()).collect()
    }

    /// Steps down from every group, and drops the session.
    fn end_session(&mut self, why: &StoreError) {
        let led = self.held.len();
        // First of all, while the session still keeps others from the locks.
        self.held.clear();
        self.session = None;
        self.shares.forget();
        self.troubles.set(NO_SESSION, why);
        let is_news = self.reasons.is_news(why);
        if led > 0 {
            error!(groups = led, "the lock session is lost, stepping down: {why}");
        } else if is_news {
            error!("no lock session: {why}; trying again");
        } else {
            debug!("still no lock session: {why}");
        }
        self.failures = self.failures.saturating_add(1);
        self.connect_at = Instant::now() + retry_delay(self.failures);
    }

    /// Asks for the locks that are waited for: at once for those that are new, for
    /// all of them when it is time.
    async fn ask_if_due(&mut self) {
        self.waiting.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.grant.is_closed());
            !waiters.is_empty()
        });
        if !self.shares.are_known() {
            self.find_sharers().await;
        }
        let Some(session) = &mut self.session else { return };
        let all = Instant::now() >= self.ask_at;
        let mut groups = Vec::new();
        for (group, waiters) in &mut self.waiting {
            let new = waiters.iter().any(|waiter| !waiter.asked);
            // A lock that this host holds already belongs to its lease.
            if (all || new)
                && !self.held.contains_key(group)
                && has_room(&self.shares, &self.held, group)
            {
                groups.push(group.clone());
                waiters.iter_mut().for_each(|waiter| waiter.asked = true);
            }
        }
        let asked = if groups.is_empty() { Ok(vec![]) } else { session.try_locks(&groups).await };
        match asked {
            Ok(taken) => {
                for (group, taken) in groups.into_iter().zip(taken) {
                    if !taken {
                        self.refuse(&group);
                    } else if has_room(&self.shares, &self.held, &group) {
                        self.grant(group);
                    } else {
                        // All that may be free are asked for at once, and some may be
                        // beyond the share by now.
                        self.unlock_unleased(&group).await;
                    }
                }
            }
            Err(why) => self.end_session(&why),
        }
        if all {
            self.ask_at = Instant::now() + LOCK_POLL;
        }
    }

    /// Releases a lock that was not leased.
    async fn unlock_unleased(&mut self, group: &GroupName) {
        if let Some(session) = &mut self.session
            && let Err(why) = session.unlock(group).await
        {
            self.end_session(&why);
        }
    }

    fn refuse(&mut self, group: &GroupName) {
        for waiter in self.waiting.get_mut(group).into_iter().flatten() {
            if let Some(refuse) = waiter.refuse.take() {
                // The task that waited may have gone.
                let _ = refuse.send(());
            }
        }
    }

    fn grant(&mut self, group: GroupName) {
        // No task is left to lead; this task ends, and the session with it.
        let Some(requests) = self.requests.upgrade() else { return };
        let Some(session) = &self.session else { return };
        let told = self.leaderships.begin();
        let proof = LeadershipProof::new(told.clone(), session.proven_until.subscribe());
        let wanted_back = CancellationToken::new();
        let held = Held { _told: told.drop_guard(), wanted_back: wanted_back.clone() };
        self.held.insert(group.clone(), held);
        let locks = Locks { requests, leaderships: self.leaderships.clone() };
        // A lease that no task takes is dropped, and so releases its lock.
        let lease = Lease { group: group.clone(), proof, wanted_back, locks };
        if let Some(waiters) = self.waiting.get_mut(&group)
            && !waiters.is_empty()
        {
            let _ = waiters.remove(0).grant.send(lease);
        }
    }
}

/// Whether this host may lead one more part of the group that it is one of.
fn has_room(shares: &Shares, held: &HashMap<GroupName, Held>, part: &GroupName) -> bool {
    if part.partition_number().is_none() {
        return true;
    }
    let led = held.keys().filter(|name| name.whole() == part.whole()).count();
    led < shares.most(&part.group())
}

/// Waits for an answer, until a deadline.
async fn within<T>(
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

fn retry_delay(failures: u32) -> Duration {
    let policy = RetryPolicy {
        initial: Duration::from_millis(100),
        max: Duration::from_secs(5),
        ..RetryPolicy::default()
    };
    policy.delay(Attempt(failures), None, fastrand::f64())
}
