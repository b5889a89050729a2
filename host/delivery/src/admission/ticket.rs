//! The state of one acquisition, shared by the task that waits and the ledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;

/// A request that waits until it is granted.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    granted: AtomicBool,
    /// The memory that was granted with the slot, in bytes.
    memory: AtomicUsize,
    waker: AtomicWaker,
}

impl Ticket {
    /// Whether it is granted; if not, the grant wakes `waker`.
    pub(super) fn poll_granted(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        self.granted.load(Ordering::Acquire)
    }

    /// Whether it is granted. For the ledger, which grants under its lock.
    pub(super) fn is_granted(&self) -> bool {
        self.granted.load(Ordering::Relaxed)
    }

    /// The memory that was granted with the slot, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.memory.load(Ordering::Acquire)
    }

    pub(super) fn grant(&self, memory: usize) {
        self.memory.store(memory, Ordering::Release);
        self.granted.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// State of an acquisition: none, waiting, held.
#[derive(Debug, Default)]
pub(super) enum Acquisition {
    #[default]
    None,
    Waiting(Arc<Ticket>),
    Held,
}
