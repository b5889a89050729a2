//! How much of the store the groups use at once, and which of them wait for it.

use std::sync::Arc;
use std::time::Duration;

use super::queue::{FairQueue, Fit};
use super::ticket::Ticket;
use super::{TIME_SLICE, nanoseconds};

/// What groups ask of the store in fair order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreQueue {
    /// Reads, of the log and of state.
    Read,
    /// Settlements.
    Write,
}

impl StoreQueue {
    /// All of them, each at its own number.
    pub(super) const ALL: [Self; 2] = [Self::Read, Self::Write];
}

/// The cost that an operation is charged until it has ended, in nanoseconds.
const EXPECTED: u64 = nanoseconds(TIME_SLICE);

/// The operations that run, and the groups that wait to begin one.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    pub(super) in_use: usize,
    pub(super) waiting: FairQueue<Arc<Ticket>>,
}

impl Occupancy {
    /// Begins an operation if fewer than `limit` run; `None` if it may run, else the
    /// ticket to wait with.
    pub(super) fn request(
        &mut self,
        tenant: usize,
        group: usize,
        limit: usize,
    ) -> Option<Arc<Ticket>> {
        if self.in_use < limit {
            self.waiting.serve(tenant, group, EXPECTED);
            self.in_use += 1;
            return None;
        }
        let ticket = Arc::new(Ticket::default());
        self.waiting.push(tenant, group, Arc::clone(&ticket), false);
        Some(ticket)
    }

    /// Cancels a request. False when it has been granted meanwhile.
    pub(super) fn cancel(&mut self, tenant: usize, group: usize, ticket: &Arc<Ticket>) -> bool {
        self.waiting.remove(tenant, group, |waiting| Arc::ptr_eq(waiting, ticket))
    }

    /// Ends an operation that took `took`, and grants the first request that waits.
    pub(super) fn release(&mut self, tenant: usize, group: usize, took: Duration) {
        self.waiting.correct(tenant, group, EXPECTED, nanoseconds(took));
        match self.waiting.take_first(EXPECTED, |_, _, _| Fit::Yes) {
            Some((_, _, ticket)) => ticket.grant(0),
            None => self.in_use -= 1,
        }
    }
}
