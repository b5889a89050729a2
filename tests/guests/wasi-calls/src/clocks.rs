//! What WASI's clocks tell.

use std::time::Duration;

use crate::bindings::wasi::clocks::{monotonic_clock, wall_clock};

/// What a clock says of itself and what it was seen to give, in nanoseconds.
#[derive(Debug)]
pub struct Seen {
    /// Its `resolution`.
    pub resolution: u64,
    /// Different times, one after the other.
    pub times: Vec<u64>,
}

/// Looks at `wasi:clocks/monotonic-clock` until it has given so many times.
#[must_use]
pub fn monotonic(count: usize) -> Seen {
    Seen {
        resolution: monotonic_clock::resolution(),
        times: different(count, monotonic_clock::now),
    }
}

/// The same with `wasi:clocks/wall-clock`.
#[must_use]
pub fn wall(count: usize) -> Seen {
    let nanoseconds =
        |time: wall_clock::Datetime| time.seconds * 1_000_000_000 + u64::from(time.nanoseconds);
    Seen {
        resolution: nanoseconds(wall_clock::resolution()),
        times: different(count, || nanoseconds(wall_clock::now())),
    }
}

/// By how much the monotonic clock goes on while the host blocks for so long.
#[must_use]
pub fn sleep_measured(duration: Duration) -> u64 {
    let before = monotonic_clock::now();
    super::sleep(duration);
    monotonic_clock::now() - before
}

/// The same while it blocks until the clock tells a time that is so much later.
#[must_use]
pub fn wait_measured(duration: Duration) -> u64 {
    let before = monotonic_clock::now();
    let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    monotonic_clock::subscribe_instant(before + nanoseconds).block();
    monotonic_clock::now() - before
}

fn different(count: usize, now: impl Fn() -> u64) -> Vec<u64> {
    let mut times = vec![now()];
    while times.len() < count {
        let time = now();
        if times.last() != Some(&time) {
            times.push(time);
        }
    }
    times
}
