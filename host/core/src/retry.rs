//! How long to wait before the next attempt. Pure.

use std::time::Duration;

use crate::clock::LONGEST_WAIT;
use crate::event::Attempt;

/// When to give up, and how long to wait until then.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// The event becomes a dead letter after this many failed attempts. At least 1.
    pub max_attempts: u32,
    /// The delay after the first attempt.
    pub initial: Duration,
    /// What each further delay is multiplied by. At least 1.
    pub multiplier: f64,
    /// The longest delay.
    pub max: Duration,
    /// The delay is moved up or down by up to this part of it; 0 to 1.
    pub jitter: f64,
}

impl Default for RetryPolicy {
    /// 5 attempts, from 1 s doubling to 5 min, with 20 % jitter.
    fn default() -> Self {
        Self {
            max_attempts: 5,
            initial: Duration::from_secs(1),
            multiplier: 2.0,
            max: Duration::from_secs(300),
            jitter: 0.2,
        }
    }
}

impl RetryPolicy {
    /// Whether the event is given up after this attempt failed.
    #[must_use]
    pub fn is_last(&self, attempt: Attempt) -> bool {
        attempt.0 >= self.max_attempts
    }

    /// The delay between the failed `attempt` and the next one. `random` is
    /// uniform in 0 to 1. What the handler asked for is a lower bound, up to
    /// [`LONGEST_WAIT`]. Saturates; never panics, whatever the settings.
    #[must_use]
    pub fn delay(&self, attempt: Attempt, asked: Option<Duration>, random: f64) -> Duration {
        let exponent = i32::try_from(attempt.0.saturating_sub(1)).unwrap_or(i32::MAX);
        let grown = self.initial.as_secs_f64() * self.multiplier.max(1.0).powi(exponent);
        let capped = grown.min(self.max.as_secs_f64());
        let jittered = capped * (1.0 + self.jitter * (2.0 * random - 1.0));
        let delay = Duration::try_from_secs_f64(jittered.min(LONGEST_WAIT.as_secs_f64()))
            .unwrap_or(if jittered > 0.0 { LONGEST_WAIT } else { Duration::ZERO });
        delay.max(asked.unwrap_or_default()).min(LONGEST_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn delays_double_from_one_second_to_five_minutes() {
        let policy = RetryPolicy::default();
        let seconds: Vec<u64> =
            (1..=10).map(|n| policy.delay(Attempt(n), None, 0.5).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
    }

    #[test]
    fn jitter_spreads_a_delay_by_twenty_percent() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.delay(Attempt(1), None, 0.0), Duration::from_millis(800));
        assert_eq!(policy.delay(Attempt(1), None, 1.0), Duration::from_millis(1200));
    }

    #[test]
    fn what_the_handler_asks_for_is_a_lower_bound() {
        let policy = RetryPolicy::default();
        let asked = Some(Duration::from_secs(30));
        assert_eq!(policy.delay(Attempt(1), asked, 0.5), Duration::from_secs(30));
        assert_eq!(policy.delay(Attempt(9), asked, 0.5), Duration::from_secs(256));
        assert_eq!(policy.delay(Attempt(1), Some(Duration::MAX), 0.5), LONGEST_WAIT);
    }

    proptest! {
        #[test]
        fn a_delay_saturates_whatever_the_settings(
            attempt in any::<u32>(),
            initial in any::<u64>(),
            multiplier in any::<f64>(),
            max in any::<u64>(),
            jitter in 0.0..=1.0_f64,
            asked in proptest::option::of(any::<u64>()),
            random in 0.0..=1.0_f64,
        ) {
            let policy = RetryPolicy {
                max_attempts: 5,
                initial: Duration::from_secs(initial),
                multiplier,
                max: Duration::from_secs(max),
                jitter,
            };
            let delay = policy.delay(Attempt(attempt), asked.map(Duration::from_secs), random);
            prop_assert!(delay <= LONGEST_WAIT);
            if let Some(asked) = asked {
                prop_assert!(delay >= Duration::from_secs(asked).min(LONGEST_WAIT));
            }
        }

        #[test]
        fn a_delay_never_shrinks_from_one_attempt_to_the_next(
            attempt in 1..100_u32,
            multiplier in 1.0..10.0_f64,
        ) {
            let policy = RetryPolicy { multiplier, jitter: 0.0, ..RetryPolicy::default() };
            let this = policy.delay(Attempt(attempt), None, 0.5);
            let next = policy.delay(Attempt(attempt).next(), None, 0.5);
            prop_assert!(next >= this);
        }
    }
}
