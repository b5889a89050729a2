//! How many lines one handler may write to the host's log in a second.
//!
//! What was not written is kept for a second. Lines beyond are dropped, because an attempt
//! is not to wait for a log, nor to fail because others of its handler wrote much; how many
//! were dropped is said within a second.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::settings::names;

/// For how long what was not written is kept, and dropped lines are not told.
const SECOND: Duration = Duration::from_secs(1);

/// The lines of one handler, over all its attempts.
#[derive(Debug)]
pub(crate) struct LineRate {
    handler: String,
    a_second: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Lines that may be written since then.
    left: f64,
    since: Instant,
    /// Lines that were dropped and not told yet.
    dropped: u64,
}

impl LineRate {
    /// Number of lines a second; at least one.
    pub(crate) fn new(handler: &str, a_second: u32) -> Self {
        let state = State { left: f64::from(a_second), since: Instant::now(), dropped: 0 };
        Self { handler: handler.to_owned(), a_second, state: Mutex::new(state) }
    }

    /// The name of the handler.
    pub(super) fn handler(&self) -> &str {
        &self.handler
    }

    /// Whether a line may be written now; one that may not is counted.
    pub(super) fn allows(self: &Arc<Self>) -> bool {
        self.allows_of(1) == 1
    }

    /// How many of these lines may be written now; the others are counted.
    pub(super) fn allows_of(self: &Arc<Self>, lines: usize) -> usize {
        let mut state = self.state();
        let now = Instant::now();
        let allowed = (0..lines).take_while(|_| state.take(self.a_second, now)).count();
        let was_told = state.dropped == 0;
        state.dropped += (lines - allowed) as u64;
        if was_told && state.dropped > 0 {
            drop(state);
            self.tell_soon();
        }
        allowed
    }

    /// Says how many lines were dropped, once there may be no more of the same second.
    fn tell_soon(self: &Arc<Self>) {
        let rate = Arc::clone(self);
        // Attempts are made on a runtime. Elsewhere the end of the handler tells.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(SECOND).await;
                rate.tell();
            });
        }
    }

    fn tell(&self) {
        let dropped = std::mem::take(&mut self.state().dropped);
        if dropped > 0 {
            tracing::warn!(
                handler = self.handler,
                lines = dropped,
                "lines of the handler were dropped: it may log {} a second, {}",
                self.a_second,
                names::LOG_LINES
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Numbers: whole after each statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes one line, if it is there.
    fn take(&mut self, a_second: u32, now: Instant) -> bool {
        let most = f64::from(a_second);
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.left = passed.mul_add(most, self.left).min(most);
        self.since = now;
        if self.left < 1.0 {
            return false;
        }
        self.left -= 1.0;
        true
    }
}

impl Drop for LineRate {
    fn drop(&mut self) {
        self.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seconds_worth_goes_at_once_and_the_rest_at_the_rate() {
        let now = Instant::now();
        let mut state = State { left: 10.0, since: now, dropped: 0 };
        let mut taken = |after: u64, asked: usize| {
            let at = now + Duration::from_millis(after);
            (0..asked).filter(|_| state.take(10, at)).count()
        };
        assert_eq!(taken(0, 50), 10);
        assert_eq!(taken(500, 50), 5);
        assert_eq!(taken(100_000, 50), 10, "no more than a second's worth is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_lines_are_counted_until_they_are_told() {
        let rate = Arc::new(LineRate::new("h", 2));
        let written = (0..50).filter(|_| rate.allows()).count();
        assert_eq!((written, rate.state().dropped), (2, 48));
        tokio::time::sleep(SECOND * 2).await;
        assert_eq!(rate.state().dropped, 0);
    }
}
