//! The time of day, as something that tests own, and how to reckon with it.

use std::time::Duration;

use jiff::Timestamp;

/// The longest time that anything waits for: one year. Times further off could not be told.
pub const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Tells the time of day. Waiting goes through `tokio::time`; a clock for paused
/// time moves with it.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// `now` plus a delay; saturates.
#[must_use]
pub fn after(now: Timestamp, delay: Duration) -> Timestamp {
    now.saturating_add(delay).unwrap_or(Timestamp::MAX)
}
