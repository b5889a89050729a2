//! The thread that moves an engine's epoch on, so that guests notice the time
//! even when all of the executor's threads run guests.
//!
//! It rests while no guest runs: a host with nothing to do would wake up a
//! hundred times a second for nothing but this.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use event_host_core::restart::with_restart;

/// Ticks while guests run, and ends when it is dropped.
pub(super) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
}

// Whoever changes one of these wakes the thread afterwards, and that orders what
// each of them sees: nothing here needs more than the values.
#[derive(Default)]
struct Shared {
    guests: AtomicUsize,
    over: AtomicBool,
}

/// A guest that runs, until it is dropped.
pub(super) struct Running<'a>(&'a Shared);

impl Ticker {
    /// Starts the thread. While a guest runs it calls `tick` once in each
    /// `period`, until that is false.
    pub(super) fn start(
        period: Duration,
        mut tick: impl FnMut() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let ticking = move || {
            while !theirs.over.load(Ordering::Relaxed) {
                if theirs.guests.load(Ordering::Relaxed) == 0 {
                    // Returns at once if it was woken since that look.
                    thread::park();
                    continue;
                }
                thread::sleep(period);
                if !tick() {
                    return;
                }
            }
        };
        let handle = thread::Builder::new()
            .name("guest-ticker".to_owned())
            .spawn(move || with_restart("the clock of the handlers", ticking))?;
        Ok(Self { shared, thread: handle.thread().clone() })
    }

    /// Ticks for a guest for as long as the answer is kept.
    pub(super) fn guest_runs(&self) -> Running<'_> {
        if self.shared.guests.fetch_add(1, Ordering::Relaxed) == 0 {
            self.thread.unpark();
        }
        Running(&self.shared)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.guests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn ticker() -> (Ticker, Receiver<()>) {
        let (tick, ticks) = channel();
        let ticker = Ticker::start(Duration::from_millis(1), move || tick.send(()).is_ok());
        (ticker.unwrap(), ticks)
    }

    fn wait_for(ticks: &Receiver<()>, count: usize) {
        for _ in 0..count {
            ticks.recv_timeout(PATIENCE).unwrap();
        }
    }

    #[test]
    fn it_ticks_while_a_guest_runs_and_rests_while_none_does() {
        let (one, ticks_of_one) = ticker();
        let (other, ticks_of_other) = ticker();
        let guest = one.guest_runs();
        wait_for(&ticks_of_one, 20);
        assert_eq!(ticks_of_other.try_iter().count(), 0);
        drop(guest);
        let _first = other.guest_runs();
        drop(other.guest_runs());
        wait_for(&ticks_of_other, 20);
        // The one that was due when the guest ended, and those before it.
        let late = ticks_of_one.try_iter().count();
        wait_for(&ticks_of_other, 20);
        assert!(late < 20 && ticks_of_one.try_iter().count() == 0, "{late} late ticks");
    }

    #[test]
    fn it_ends_when_it_is_dropped() {
        let (ticker, ticks) = ticker();
        drop(ticker);
        assert_eq!(ticks.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    }
}
