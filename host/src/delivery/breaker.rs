//! Outcomes of attempts -> whether the handler fails everything. Pure.
//!
//! A handler that fails everything would empty the log into the dead letters.
//! So its group trips: it handles nothing more but a probe now and then, until
//! one succeeds, somebody resumes it, or another version takes over.

use std::time::Duration;

use super::backoff::RetryPolicy;

/// The longest time between two probes, unless the first wait is longer.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

/// When a group trips, and what then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerSettings {
    /// So many events in a row that became dead letters trip the group; 0 is
    /// never.
    pub events: u32,
    /// So many attempts in a row that failed trip a version that took over
    /// while the group ran and has not succeeded yet; 0 is never. Fewer than a
    /// single event is given, so that none is lost to a broken version.
    pub attempts_after_swap: u32,
    /// How long after it tripped one event is tried; doubles with each that
    /// fails, to an hour.
    pub probe_after: Duration,
    /// What follows when a version trips that took over while the group ran.
    pub on_trip: OnTrip,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            events: 20,
            attempts_after_swap: 3,
            probe_after: Duration::from_secs(60),
            on_trip: OnTrip::default(),
        }
    }
}

impl BreakerSettings {
    /// When the probe after so many failed ones is due.
    #[must_use]
    pub fn probing(&self) -> RetryPolicy {
        RetryPolicy {
            max_attempts: u32::MAX,
            initial: self.probe_after,
            multiplier: 2.0,
            max: self.probe_after.max(LONGEST_WAIT),
            jitter: 0.2,
        }
    }
}

/// What follows when a new version trips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnTrip {
    /// The group waits.
    #[default]
    Pause,
    /// The version before it goes on.
    Rollback,
}

/// How an attempt ended, for the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It succeeded.
    Success,
    /// It failed, and the event is tried again.
    Failed,
    /// It failed, and the event is a dead letter.
    GaveUp,
}

/// What a handler did of late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Breaker {
    /// Dead letters since the last success.
    given_up: u32,
    /// Failed attempts since the version took over; `None` once it succeeded,
    /// and for the version that the leadership began with.
    unproven: Option<u32>,
}

impl Breaker {
    /// Another version takes over: what the one before it did says nothing.
    #[must_use]
    pub fn after_swap() -> Self {
        Self { given_up: 0, unproven: Some(0) }
    }

    /// Whether the version took over from another and has not succeeded yet.
    #[must_use]
    pub fn is_unproven(&self) -> bool {
        self.unproven.is_some()
    }

    /// Takes the end of an attempt; gives the reason if the group trips.
    pub fn record(&mut self, verdict: Verdict, settings: &BreakerSettings) -> Option<String> {
        if verdict == Verdict::Success {
            *self = Self::default();
            return None;
        }
        if verdict == Verdict::GaveUp {
            self.given_up = self.given_up.saturating_add(1);
        }
        if let Some(failed) = &mut self.unproven {
            *failed = failed.saturating_add(1);
            if settings.attempts_after_swap > 0 && *failed >= settings.attempts_after_swap {
                let attempts = counted(*failed, "attempt");
                return Some(format!(
                    "the version that took over failed {attempts} and none succeeded"
                ));
            }
        }
        (settings.events > 0 && self.given_up >= settings.events).then(|| {
            let events = counted(self.given_up, "event");
            format!("{events} in a row became dead letters")
        })
    }
}

fn counted(count: u32, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> BreakerSettings {
        BreakerSettings::default()
    }

    /// How many of these it takes to trip, up to a hundred.
    fn trips_after(
        mut breaker: Breaker,
        verdict: Verdict,
        settings: &BreakerSettings,
    ) -> Option<usize> {
        (1..=100).find(|_| breaker.record(verdict, settings).is_some())
    }

    #[test]
    fn so_many_dead_letters_in_a_row_trip_it() {
        assert_eq!(trips_after(Breaker::default(), Verdict::GaveUp, &settings()), Some(20));
        let one = BreakerSettings { events: 1, ..settings() };
        assert_eq!(trips_after(Breaker::default(), Verdict::GaveUp, &one), Some(1));
    }

    #[test]
    fn one_success_begins_the_count_anew() {
        let mut breaker = Breaker::default();
        for _ in 0..19 {
            assert_eq!(breaker.record(Verdict::GaveUp, &settings()), None);
        }
        assert_eq!(breaker.record(Verdict::Success, &settings()), None);
        assert_eq!(trips_after(breaker, Verdict::GaveUp, &settings()), Some(20));
    }

    #[test]
    fn retries_alone_never_trip_a_version_that_ran_from_the_start() {
        assert_eq!(trips_after(Breaker::default(), Verdict::Failed, &settings()), None);
    }

    #[test]
    fn a_version_that_took_over_trips_before_it_costs_an_event() {
        let breaker = Breaker::after_swap();
        assert_eq!(trips_after(breaker, Verdict::Failed, &settings()), Some(3));
        let mut proven = breaker;
        assert_eq!(proven.record(Verdict::Success, &settings()), None);
        assert!(!proven.is_unproven());
        assert_eq!(trips_after(proven, Verdict::Failed, &settings()), None);
        assert_eq!(trips_after(proven, Verdict::GaveUp, &settings()), Some(20));
    }

    #[test]
    fn zero_is_never() {
        let never = BreakerSettings { events: 0, attempts_after_swap: 0, ..settings() };
        assert_eq!(trips_after(Breaker::default(), Verdict::GaveUp, &never), None);
        assert_eq!(trips_after(Breaker::after_swap(), Verdict::GaveUp, &never), None);
    }

    #[test]
    fn probes_get_rarer_to_once_an_hour() {
        let probing = settings().probing();
        let after = |failed| probing.delay(crate::event::Attempt(failed), None, 0.5);
        assert_eq!(after(1), Duration::from_secs(60));
        assert_eq!(after(2), Duration::from_secs(120));
        assert_eq!(after(100), Duration::from_secs(3_600));
        let rare = BreakerSettings { probe_after: Duration::from_secs(86_400), ..settings() };
        assert_eq!(
            rare.probing().delay(crate::event::Attempt(9), None, 0.5),
            Duration::from_secs(86_400)
        );
    }
}
