//! The clocks that a guest without a grant reads: true to the millisecond.
//!
//! What one guest does shows in how long others take: caches, branch predictors
//! and a busy core are shared by all guests of a host, and so is the memory that
//! speculation reads. Telling such differences, tens of nanoseconds each, takes a
//! fine clock, so guests get a coarse one. Browsers came to the same after Spectre:
//! Firefox and Safari round `performance.now()` to a millisecond, Chrome to 100 µs
//! (<https://developer.chrome.com/blog/cross-origin-isolated-hr-timers>). It makes
//! an attack slow rather than impossible, because enough repetitions add up to a
//! millisecond. A handler that stamps and measures what it does loses nothing: a
//! millisecond is also what the contract's `remaining-ms` and the host's timers
//! have.

use std::time::{Duration, Instant, SystemTime};

use wasmtime_wasi::{HostMonotonicClock, HostWallClock};

/// How far apart two times are at least that a coarse clock gives. Divides a
/// second.
const STEP: Duration = Duration::from_millis(1);

/// The last step at or before a time, so that a clock never runs ahead.
fn coarse(time: Duration) -> Duration {
    time - Duration::from_nanos((time.subsec_nanos() % STEP.subsec_nanos()).into())
}

/// A number of nanoseconds, which lasts for 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The time of day.
pub(super) struct CoarseWallClock;

impl HostWallClock for CoarseWallClock {
    fn resolution(&self) -> Duration {
        STEP
    }

    fn now(&self) -> Duration {
        // WASI knows no time before 1970; a clock that is wrong to there tells 1970.
        coarse(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }
}

/// The time since one step before it was made: it never tells 0, which runtimes take for
/// a clock that is broken (Go's ends with "nanotime returning zero").
pub(super) struct CoarseMonotonicClock {
    began: Instant,
}

impl CoarseMonotonicClock {
    pub(super) fn new() -> Self {
        Self { began: Instant::now() }
    }
}

impl HostMonotonicClock for CoarseMonotonicClock {
    fn resolution(&self) -> u64 {
        nanoseconds(STEP)
    }

    fn now(&self) -> u64 {
        nanoseconds(coarse(STEP + self.began.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_coarse_time_is_a_whole_step_and_less_than_one_behind(
            time in (0..=u64::MAX / 1_000, 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n)),
            later in 0..10_000_000_u64,
        ) {
            let told = coarse(time);
            prop_assert_eq!(told.as_nanos() % STEP.as_nanos(), 0);
            prop_assert!(told <= time && time - told < STEP);
            prop_assert!(coarse(time + Duration::from_nanos(later)) >= told);
        }
    }

    #[test]
    fn coarse_clocks_go_on_and_say_how_coarse_they_are() {
        let (monotonic, wall) = (CoarseMonotonicClock::new(), CoarseWallClock);
        assert_eq!((monotonic.resolution(), wall.resolution()), (1_000_000, STEP));
        let began = (monotonic.now(), wall.now());
        assert!(began.0 > 0, "0 is no time");
        let mut last = began.0;
        while last < began.0 + 3_000_000 {
            let now = monotonic.now();
            assert!(now >= last && now % 1_000_000 == 0, "{now} after {last}");
            last = now;
        }
        assert!(wall.now() > began.1);
        let real = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert!(real - wall.now() < Duration::from_secs(10));
    }
}
