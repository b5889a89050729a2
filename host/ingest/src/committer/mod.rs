//! Group commit: while one transaction commits, the next one gathers.
//!
//! The dispatcher begins a commit as soon as one may begin and something waits, with what
//! waits by then. So a lone request waits for nobody, and under load one commit has hundreds.
//! There is no timer, unless `linger` says so.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use event_host_core::event::Tenant;
use event_host_core::repeats::Repeats;
use event_host_store::{Incoming, Ingested, Placed, StoreError};

use crate::budget::Room;
use crate::intake::{Shared, draining};
use crate::queue::{Queue, Size};
use crate::refusal::{Reason, Refusal};

/// The most of one commit. On SQLite a settlement waits for one such commit at most.
const MOST: Size = Size { events: 1_000, bytes: 8 << 20 };

/// A request that waits for its commit.
#[derive(Debug)]
struct Request {
    incoming: Incoming,
    answer: oneshot::Sender<Result<Vec<Placed>, Refusal>>,
    /// After it nobody waits for the answer.
    deadline: Instant,
    /// Held until the answer is given.
    _room: Room,
}

/// The requests that wait, and the commits that are under way.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    queue: Mutex<Queue<Request>>,
    /// Something waits, or it stops.
    changed: Notify,
    stopping: AtomicBool,
    /// Nothing waits or is under way any more.
    done: Notify,
    /// How many requests wait or are being committed.
    under_way: AtomicUsize,
    failures: Mutex<Repeats>,
}

impl Commits {
    /// Enqueues a request and waits for its answer.
    pub(crate) async fn publish(
        &self,
        incoming: Incoming,
        room: Room,
        deadline: Instant,
    ) -> Result<Vec<Placed>, Refusal> {
        let (answer, answered) = oneshot::channel();
        let tenant = incoming.tenant.clone();
        let bytes = incoming.events.iter().map(|event| event.bytes()).sum();
        let size = Size { events: incoming.events.len(), bytes };
        let number = {
            let mut queue = self.queue();
            // Looked at under the lock, so that whoever stops sees all that is enqueued.
            if self.is_stopping() {
                return Err(draining());
            }
            self.under_way.fetch_add(1, Ordering::SeqCst);
            queue.push(&tenant, size, Request { incoming, answer, deadline, _room: room })
        };
        self.changed.notify_one();
        match tokio::time::timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            // The commit broke off, in a panic or with the runtime.
            Ok(Err(_)) => Err(Refusal::unknown_outcome()),
            Err(_) => Err(self.too_late(&tenant, number)),
        }
    }

    /// What is told to a request that has waited too long.
    fn too_late(&self, tenant: &Tenant, number: u64) -> Refusal {
        let withdrawn = self.queue().withdraw(tenant, number);
        if withdrawn.is_none() {
            return Refusal::unknown_outcome();
        }
        self.over(1);
        Refusal::new(
            Reason::Busy,
            "the request has waited too long for its turn, and left the queue; nothing of it was published: send it again",
        )
    }

    /// Takes nothing more, and returns when everything is answered.
    pub(crate) async fn stop(&self) {
        {
            let _queue = self.queue();
            self.stopping.store(true, Ordering::SeqCst);
        }
        // Ends a wait for more.
        self.changed.notify_one();
        loop {
            let done = self.done.notified();
            if self.under_way.load(Ordering::SeqCst) == 0 {
                return;
            }
            done.await;
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// How many events wait, and their bytes.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let Size { events, bytes } = self.queue().size();
        (events, bytes)
    }

    fn queue(&self) -> MutexGuard<'_, Queue<Request>> {
        // Nothing panics while it is changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn over(&self, requests: usize) {
        if self.under_way.fetch_sub(requests, Ordering::SeqCst) == requests {
            self.done.notify_waiters();
        }
    }

    /// Says why publishing fails, each reason once in a while, and when it works again.
    fn said(&self, outcome: Result<(), &StoreError>) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(()) if failures.over() => info!("events are published again"),
            Ok(()) => {}
            Err(why @ StoreError::Unusable(_)) if failures.is_news(why) => {
                error!("cannot publish what comes in: {why}");
            }
            Err(why) if failures.is_news(why) => warn!("cannot publish what comes in: {why}"),
            Err(why) => debug!("cannot publish what comes in: {why}"),
        }
    }
}

/// Begins commits, for as long as it is not dropped.
pub(crate) async fn dispatch(shared: Arc<Shared>) {
    let commits = &shared.commits;
    let mut running = JoinSet::new();
    loop {
        while commits.queue().is_empty() {
            commits.changed.notified().await;
        }
        let settings = shared.settings();
        let at_once = settings.connections.min(shared.store.ingests_at_once()).max(1);
        while running.try_join_next().is_some() {}
        while running.len() >= at_once {
            running.join_next().await;
        }
        if !settings.linger.is_zero() && !commits.is_stopping() {
            linger(commits, settings.linger).await;
        }
        let requests = commits.queue().take(MOST);
        let (events, bytes) = commits.waiting();
        shared.metrics.queue_events.set_count(events as u64);
        shared.metrics.queue_bytes.set_count(bytes as u64);
        if !requests.is_empty() {
            let shared = Arc::clone(&shared);
            running.spawn(async move { commit(&shared, requests).await });
        }
    }
}

/// Waits for more, until a commit is full.
async fn linger(commits: &Commits, most: Duration) {
    let filling = async {
        loop {
            let (events, bytes) = commits.waiting();
            if events >= MOST.events || bytes >= MOST.bytes || commits.is_stopping() {
                return;
            }
            commits.changed.notified().await;
        }
    };
    // Either way what waits is taken.
    let _ = tokio::time::timeout(most, filling).await;
}

/// Counts requests as over when it is dropped, whatever ended their commit.
struct UnderWay<'a> {
    commits: &'a Commits,
    requests: usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.commits.over(self.requests);
    }
}

/// Commits requests together. Where the database refuses, nothing has happened: they are tried
/// again in halves, so that one which it refuses spoils nobody's, and costs few commits.
async fn commit(shared: &Shared, requests: Vec<Request>) {
    let commits = &shared.commits;
    // Answers first, then the count: whoever waits for the end finds every answer given.
    let _under_way = UnderWay { commits, requests: requests.len() };
    let mut groups = vec![requests];
    let mut is_first = true;
    while let Some(mut group) = groups.pop() {
        if !is_first {
            // Nobody waits for those any more, and nothing of them was published.
            let now = Instant::now();
            group.retain(|request| request.deadline > now);
        }
        is_first = false;
        if group.is_empty() {
            continue;
        }
        let (incoming, answers): (Vec<_>, Vec<_>) = group
            .into_iter()
            .map(|request| {
                let Request { incoming, answer, deadline, _room } = request;
                (incoming, (answer, deadline, _room))
            })
            .unzip();
        let begun = Instant::now();
        let ingested = shared.store.ingest(&incoming).await;
        commits.said(ingested.as_ref().map(|_| ()));
        match ingested {
            Ok(ingested) => {
                shared.metrics.commit.observe(begun.elapsed());
                let events = incoming.iter().map(|request| request.events.len()).sum();
                shared.metrics.commit_events.observe_len(events);
                for ((answer, ..), ingested) in answers.into_iter().zip(ingested) {
                    // Whoever has gone away is not told.
                    let _ = answer.send(told(ingested));
                }
            }
            Err(StoreError::Refused(_) | StoreError::Unstorable(_) | StoreError::Busy(_))
                if incoming.len() > 1 =>
            {
                let mut group: Vec<Request> = incoming
                    .into_iter()
                    .zip(answers)
                    .map(|(incoming, (answer, deadline, _room))| Request {
                        incoming,
                        answer,
                        deadline,
                        _room,
                    })
                    .collect();
                let second = group.split_off(group.len() / 2);
                groups.push(second);
                groups.push(group);
            }
            Err(error) => {
                let refusal = Refusal::of_store(&error);
                for (answer, ..) in answers {
                    let _ = answer.send(Err(refusal.clone()));
                }
            }
        }
    }
}

/// The answer to a request.
fn told(ingested: Ingested) -> Result<Vec<Placed>, Refusal> {
    match ingested {
        Ingested::Committed(placed) => Ok(placed),
        Ingested::Reused { event, position } => {
            let other = match position {
                Some(position) => format!("another event, at position {position}"),
                None => "another event of the request".to_owned(),
            };
            let refusal = Refusal::new(
                Reason::IdReused,
                format!(
                    "{other} has the same `source` and `id`, and another type, subject, content type or data; nothing of the request was published: give each event an id of its own"
                ),
            );
            Err(Refusal { position, ..refusal.event(event).attribute("id") })
        }
    }
}

#[cfg(test)]
mod tests;
