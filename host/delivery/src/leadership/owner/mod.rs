//! The task that owns the lock session.
//!
//! It promises that every lease is lost at the latest [`STEP_DOWN_AFTER`] after the last
//! proof was *sent*: the database let no other session have the groups when it answered, which
//! was after that moment, and nothing is known of any later one.
//!
//! So no call to the session is waited for any longer than the last proof holds, and none has
//! a shorter limit of its own. To give up on a call earlier would gain nothing: the session
//! is then in an unknown state and can be used no more, and closing it is what makes the
//! database let others have the groups. Until the deadline an answer may still come, and while
//! none does the groups are as much ours as before. Once a call has failed, the session is
//! dropped, and every lease is lost before that: a database may give the groups to another
//! session as soon as it sees this one end, or has done so already if that is why the call
//! failed.
//!
//! What one turn asks of the database, it asks for all groups at once.

mod competing;
mod duties;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, error, info};

use super::Leaderships;
use super::session::{Session, within};
use super::waiters::{Duties, DutyWaiter, Waiter};
use event_host_core::event::{Attempt, GroupName};
use event_host_core::leadership_proof::LeadershipProof;
use event_host_core::repeats::Repeats;
use event_host_core::retry::RetryPolicy;
use event_host_core::troubles::Troubles;
use event_host_metrics::{StoreMetrics, StoreOperation};
use event_host_store::{Duty, HostIdentity, Leases, Release, StoreError};

/// How long the making of a session may take.
const CONNECT: Duration = Duration::from_secs(5);

/// How many groups are claimed or given back at once: fewer than the database takes long for.
const AT_ONCE: usize = 2_000;

/// What `status` shows.
const NO_SESSION: &str = "no lock session";

/// What the rest of the host asks for.
#[derive(Debug)]
pub(super) enum Request {
    Lead(GroupName, Waiter),
    Release { release: Release, returns: bool, proof: LeadershipProof, done: oneshot::Sender<()> },
    TakeDuty(Duty, DutyWaiter),
    ReleaseDuty(Duty, LeadershipProof),
    Prove { done: oneshot::Sender<()> },
    StepDown { why: String },
}

/// The task's state.
pub(super) struct Owner {
    store: Arc<dyn Leases>,
    host: HostIdentity,
    /// For the leases. Weak, so that this task ends when no other can ask.
    requests: mpsc::WeakUnboundedSender<Request>,
    leaderships: Leaderships,
    /// Each tells its lease that it is lost when it is dropped, and so also
    /// if this task breaks. Before the session, because fields are dropped in
    /// this order.
    held: HashMap<GroupName, Held>,
    /// As above.
    duties: Duties,
    session: Option<Session>,
    waiting: BTreeMap<GroupName, Vec<Waiter>>,
    /// Those that are to be given back, and who is to be told.
    releasing: BTreeMap<GroupName, (Release, Vec<oneshot::Sender<()>>)>,
    /// Those that were given back and will be waited for again, and since when.
    returning: BTreeMap<GroupName, Instant>,
    /// When all that is waited for is looked for again.
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

/// A group that is leased.
struct Held {
    _told: DropGuard,
    wanted_back: CancellationToken,
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
            host,
            requests,
            leaderships,
            held: HashMap::new(),
            duties: Duties::new(),
            session: None,
            waiting: BTreeMap::new(),
            releasing: BTreeMap::new(),
            returning: BTreeMap::new(),
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
            // What is wanted together is asked for together.
            while let Ok(request) = inbox.try_recv() {
                self.prove_if_due().await;
                self.serve(request).await;
            }
            self.prove_if_due().await;
            self.give_back().await;
            self.compete().await;
            self.do_duties().await;
        }
    }

    fn next_due(&self) -> Instant {
        match &self.session {
            None => self.connect_at,
            Some(session) => {
                let is_idle = self.waiting.is_empty() && self.releasing.is_empty();
                let ask_at = (!is_idle).then_some(self.ask_at);
                let due = ask_at.into_iter().chain(self.duties.due_at());
                due.fold(session.beat_at, Instant::min)
            }
        }
    }

    async fn serve(&mut self, request: Request) {
        match request {
            Request::Lead(group, waiter) => {
                self.returning.remove(&group);
                self.waiting.entry(group).or_default().push(waiter);
            }
            Request::Release { release, returns, proof, done } => {
                // What is lost is not held any more, or by a later lease.
                if proof.is_lost() {
                    let _ = done.send(());
                    return;
                }
                if returns {
                    self.returning.insert(release.group.clone(), Instant::now());
                }
                let group = release.group.clone();
                let (before, tell) =
                    self.releasing.entry(group).or_insert_with(|| (release.clone(), Vec::new()));
                before.ended = before.ended.or(release.ended);
                tell.push(done);
            }
            Request::TakeDuty(duty, waiter) => self.duties.wait(duty, waiter),
            Request::ReleaseDuty(duty, proof) => {
                // What is lost is not held any more, or by a later lease.
                if !proof.is_lost() {
                    self.duties.releasing.insert(duty);
                }
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

    /// Gives back what is to be given back. What somebody else's transaction has stays until
    /// the next time.
    async fn give_back(&mut self) {
        let releases: Vec<Release> =
            self.releasing.values().map(|(release, _)| release.clone()).collect();
        for releases in releases.chunks(AT_ONCE) {
            self.prove_if_due().await;
            let Some(session) = &mut self.session else { return };
            match session.release(releases).await {
                Ok(locked) => {
                    let locked: BTreeSet<GroupName> = locked.into_iter().collect();
                    let freed = releases.iter().map(|release| &release.group);
                    for group in freed.filter(|group| !locked.contains(*group)) {
                        self.held.remove(group);
                        let tell = self.releasing.remove(group);
                        for done in tell.into_iter().flat_map(|(_, tell)| tell) {
                            // The task that asked may have been cancelled; it is free anyway.
                            let _ = done.send(());
                        }
                    }
                }
                Err(why) => return self.end_session(&why),
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
        let stands_by = !self.waiting.is_empty() || self.duties.stands_by();
        let Some(session) = &mut self.session else { return };
        let asked = Instant::now();
        let proved = session.prove(stands_by).await;
        self.metrics.called(StoreOperation::Lock, asked.elapsed(), proved.is_ok());
        match proved {
            // Not at the first proof: one that fails whenever it claims groups would be made
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
        self.look_around().await;
    }

    /// Steps down from every group, and drops the session.
    fn end_session(&mut self, why: &StoreError) {
        let led = self.held.len();
        // First of all, while the session still keeps others from the groups.
        self.held.clear();
        self.duties.held.clear();
        self.session = None;
        // Their leases are lost, and so their tasks wait for nothing.
        self.releasing.clear();
        self.duties.releasing.clear();
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
}

fn retry_delay(failures: u32) -> Duration {
    let policy = RetryPolicy {
        initial: Duration::from_millis(100),
        max: Duration::from_secs(5),
        ..RetryPolicy::default()
    };
    policy.delay(Attempt(failures), None, fastrand::f64())
}
