//! How much of requests is in the process at once: a budget of bytes, of which each request
//! takes its part before its body is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::refusal::{Reason, Refusal};

/// The budget of all requests.
#[derive(Debug)]
pub(crate) struct Budget {
    size: AtomicUsize,
    used: AtomicUsize,
}

/// A request's part of the budget, which it has until this is dropped.
#[derive(Debug)]
pub struct Room {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { size: AtomicUsize::new(size), used: AtomicUsize::new(0) })
    }

    /// Has another size from now on. What is above it stays until it is given back.
    pub(crate) fn resize(&self, size: usize) {
        self.size.store(size, Ordering::Relaxed);
    }

    /// How much is taken.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes a part, or refuses.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<Room, Refusal> {
        let mut room = Room { budget: Arc::clone(self), bytes: 0 };
        room.grow(bytes)?;
        Ok(room)
    }
}

impl Room {
    /// Takes more.
    ///
    /// # Errors
    /// [`Reason::Busy`] when that is not there.
    pub fn grow(&mut self, more: usize) -> Result<(), Refusal> {
        let size = self.budget.size.load(Ordering::Relaxed);
        let grown = self.budget.used.try_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(more).filter(|used| *used <= size)
        });
        if grown.is_err() {
            return Err(Refusal::new(
                Reason::Busy,
                format!(
                    "the requests that are under way take the {size} bytes that the host has for them; nothing of this one was published: send it again"
                ),
            )
            .limit(size));
        }
        self.bytes += more;
        Ok(())
    }

    /// Takes more until it has so much.
    ///
    /// # Errors
    /// As [`Room::grow`].
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.grow(bytes.saturating_sub(self.bytes))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_again_and_no_more_than_there_is() {
        let budget = Budget::new(100);
        let mut first = budget.take(60).unwrap();
        let refused = budget.take(41).unwrap_err();
        assert_eq!((refused.reason, refused.limit), (Reason::Busy, Some(100)));
        first.grow_to(70).unwrap();
        first.grow_to(10).unwrap();
        first.grow(31).unwrap_err();
        assert_eq!(budget.used(), 70);
        let second = budget.take(30).unwrap();
        drop(first);
        assert_eq!(budget.used(), 30);
        budget.resize(20);
        budget.take(1).unwrap_err();
        drop(second);
        budget.take(20).unwrap();
        assert_eq!(budget.used(), 0);
    }
}
