//! The time of day, as something that tests own.

use jiff::Timestamp;

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
