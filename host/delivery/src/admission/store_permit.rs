//! Permission for one read or one settlement in the store.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::RegisteredGroup;
use super::occupancy::StoreQueue;
use super::ticket::Acquisition;

/// Permission for one operation of the store, which is released when this is dropped.
#[derive(Debug)]
pub struct StorePermit {
    group: Arc<RegisteredGroup>,
    queue: StoreQueue,
    acquisition: Acquisition,
    /// When it was granted, while it is held.
    began: Option<Instant>,
}

impl StorePermit {
    /// Waits until one of `limit` operations at once may begin. The future may be
    /// dropped at any await.
    pub(super) async fn acquire(
        group: &Arc<RegisteredGroup>,
        queue: StoreQueue,
        limit: usize,
    ) -> Self {
        let group = Arc::clone(group);
        let mut permit = Self { group, queue, acquisition: Acquisition::None, began: None };
        poll_fn(|cx| permit.poll_acquire(cx, limit)).await;
        permit
    }

    fn poll_acquire(&mut self, cx: &mut Context<'_>, limit: usize) -> Poll<()> {
        if matches!(self.acquisition, Acquisition::None) {
            let RegisteredGroup { admission, group, .. } = &*self.group;
            let ticket = admission.ledger().request_store(self.queue, *group, limit);
            self.acquisition = ticket.map_or(Acquisition::Held, Acquisition::Waiting);
        }
        if let Acquisition::Waiting(ticket) = &self.acquisition {
            if !ticket.poll_granted(cx.waker()) {
                return Poll::Pending;
            }
            self.acquisition = Acquisition::Held;
        }
        self.began.get_or_insert_with(Instant::now);
        Poll::Ready(())
    }

    /// Releases it, or cancels its request.
    fn release(&mut self) {
        let RegisteredGroup { admission, group, .. } = &*self.group;
        let held = match std::mem::take(&mut self.acquisition) {
            Acquisition::None => return,
            Acquisition::Waiting(ticket) => {
                !admission.ledger().cancel_store_request(self.queue, *group, &ticket)
            }
            Acquisition::Held => true,
        };
        if held {
            let took = self.began.take().map_or(Duration::ZERO, |began| began.elapsed());
            admission.ledger().release_store(self.queue, *group, took);
        }
    }
}

impl Drop for StorePermit {
    fn drop(&mut self) {
        self.release();
    }
}
