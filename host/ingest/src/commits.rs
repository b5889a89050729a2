//! The requests that wait for their commit, and how many are under way.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use event_host_core::event::Tenant;
use event_host_core::repeats::Repeats;
use event_host_store::{Incoming, Placed, StoreError};

use crate::budget::Room;
use crate::queue::{Queue, Size};
use crate::refusal::{Reason, Refusal};

/// A request that waits for its commit.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) incoming: Incoming,
    pub(crate) answer: oneshot::Sender<Result<Vec<Placed>, Refusal>>,
    /// After it nobody waits for the answer.
    pub(crate) deadline: Instant,
    /// Held until the answer is given.
    pub(crate) _room: Room,
}

/// The requests that wait, and the commits that are under way.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    queue: Mutex<Queue<Request>>,
    /// Something waits, or it stops.
    pub(crate) changed: Notify,
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
                return Err(Refusal::draining());
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

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue<Request>> {
        // Nothing panics while it is changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn over(&self, requests: usize) {
        if self.under_way.fetch_sub(requests, Ordering::SeqCst) == requests {
            self.done.notify_waiters();
        }
    }

    /// Says why publishing fails, each reason once in a while, and when it works again.
    pub(crate) fn said(&self, outcome: Result<(), &StoreError>) {
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
