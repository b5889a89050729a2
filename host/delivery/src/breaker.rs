//! Outcomes of attempts -> whether the handler fails everything. Pure.
//!
//! A handler that fails everything would empty the log into the dead letters. So its group
//! trips: it handles nothing more but a probe now and then, until one succeeds, an operator
//! resumes it, or another version takes over.
//!
//! What is counted are events, not attempts: one event that no version can handle says
//! nothing of a version, however often it is tried. And of a version that took over, only
//! events say something that it had first: one that had failed before may fail again
//! whatever the version does.

use std::collections::HashSet;
use std::time::Duration;

use event_host_core::event::{Attempt, Position};
use event_host_core::retry::RetryPolicy;

/// The longest time between two probes, unless the first wait is longer.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

/// When a group trips, and what then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Number of events in a row that become dead letters and so trip the group; 0 is never.
    pub events: u32,
    /// Number of events whose first attempt fails and so trips a version that took over while
    /// the group ran and has not succeeded yet; 0 is never.
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
    /// The delays between probes.
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

/// What was tried, for the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tried {
    /// The event.
    pub position: Position,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// It is a replay: it had failed before.
    pub is_replay: bool,
}

/// What a handler did of late.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Breaker {
    /// Dead letters since the last success.
    given_up: u32,
    /// What a version did that took over; `None` once it succeeded, and for the
    /// version that the leadership began with.
    unproven: Option<Unproven>,
}

/// What a version did that took over and has not succeeded yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Unproven {
    /// Events whose first attempt failed.
    failed: u32,
    /// Events that had failed before it took over.
    failed_before: HashSet<Position>,
}

impl Breaker {
    /// Another version takes over: what the one before it did says nothing, nor do
    /// these events, which had failed by then, unless they succeed.
    #[must_use]
    pub fn after_swap(failed_before: HashSet<Position>) -> Self {
        Self { given_up: 0, unproven: Some(Unproven { failed: 0, failed_before }) }
    }

    /// Whether the version took over from another and has not succeeded yet.
    #[must_use]
    pub fn is_unproven(&self) -> bool {
        self.unproven.is_some()
    }

    /// A handler handled something.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Takes the end of an attempt; gives the reason if the group trips.
    pub fn record(
        &mut self,
        verdict: Verdict,
        tried: Tried,
        settings: &BreakerSettings,
    ) -> Option<String> {
        if verdict == Verdict::Success {
            self.succeeded();
            return None;
        }
        if let Some(unproven) = &mut self.unproven {
            if tried.is_replay || unproven.failed_before.contains(&tried.position) {
                return None;
            }
            if tried.attempt == Attempt::FIRST {
                unproven.failed = unproven.failed.saturating_add(1);
                let most = settings.attempts_after_swap;
                if most > 0 && unproven.failed >= most {
                    let events = counted(unproven.failed, "event");
                    return Some(format!(
                        "the version that took over failed {events} and handled none"
                    ));
                }
            }
        }
        if verdict == Verdict::GaveUp {
            self.given_up = self.given_up.saturating_add(1);
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

    /// An attempt of an event of the log.
    fn tried(position: i64, attempt: u32) -> Tried {
        Tried { position: Position(position), attempt: Attempt(attempt), is_replay: false }
    }

    /// A version that took over where none of the events had failed.
    fn after_swap() -> Breaker {
        Breaker::after_swap(HashSet::new())
    }

    /// How many events of this kind it takes to trip, up to a hundred: the first attempt
    /// of each.
    fn trips_after(
        mut breaker: Breaker,
        verdict: Verdict,
        settings: &BreakerSettings,
    ) -> Option<i64> {
        (1..=100).find(|event| breaker.record(verdict, tried(*event, 1), settings).is_some())
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
        for event in 1..20 {
            assert_eq!(breaker.record(Verdict::GaveUp, tried(event, 5), &settings()), None);
        }
        assert_eq!(breaker.record(Verdict::Success, tried(20, 1), &settings()), None);
        assert_eq!(trips_after(breaker, Verdict::GaveUp, &settings()), Some(20));
    }

    #[test]
    fn retries_alone_never_trip_a_version_that_ran_from_the_start() {
        assert_eq!(trips_after(Breaker::default(), Verdict::Failed, &settings()), None);
    }

    #[test]
    fn a_version_that_took_over_trips_after_a_few_events() {
        let breaker = after_swap();
        assert_eq!(trips_after(breaker.clone(), Verdict::Failed, &settings()), Some(3));
        assert_eq!(trips_after(breaker.clone(), Verdict::GaveUp, &settings()), Some(3));
        let mut proven = breaker;
        assert_eq!(proven.record(Verdict::Success, tried(1, 1), &settings()), None);
        assert!(!proven.is_unproven());
        assert_eq!(trips_after(proven.clone(), Verdict::Failed, &settings()), None);
        assert_eq!(trips_after(proven, Verdict::GaveUp, &settings()), Some(20));
    }

    #[test]
    fn one_event_trips_no_version_however_often_it_fails() {
        let mut breaker = after_swap();
        for attempt in 1..=1_000 {
            assert_eq!(breaker.record(Verdict::Failed, tried(1, attempt), &settings()), None);
        }
        assert_eq!(breaker.record(Verdict::GaveUp, tried(1, 1_001), &settings()), None);
        assert_eq!(breaker.record(Verdict::Failed, tried(2, 1), &settings()), None);
        assert!(breaker.record(Verdict::Failed, tried(3, 1), &settings()).is_some());
    }

    #[test]
    fn what_had_failed_before_says_nothing_of_a_version_unless_it_succeeds() {
        let mut breaker = Breaker::after_swap((1..=100).map(Position).collect());
        for event in 1..=100 {
            for (verdict, attempt) in [(Verdict::Failed, 2), (Verdict::GaveUp, 5)] {
                assert_eq!(breaker.record(verdict, tried(event, attempt), &settings()), None);
            }
            let replay = Tried { is_replay: true, ..tried(1_000 + event, 1) };
            assert_eq!(breaker.record(Verdict::GaveUp, replay, &settings()), None);
        }
        assert!(breaker.is_unproven());
        let mut proven = breaker.clone();
        assert_eq!(proven.record(Verdict::Success, tried(7, 3), &settings()), None);
        assert!(!proven.is_unproven());
        let fresh = (101..)
            .find(|event| breaker.record(Verdict::Failed, tried(*event, 1), &settings()).is_some());
        assert_eq!(fresh, Some(103));
    }

    #[test]
    fn zero_is_never() {
        let never = BreakerSettings { events: 0, attempts_after_swap: 0, ..settings() };
        assert_eq!(trips_after(Breaker::default(), Verdict::GaveUp, &never), None);
        assert_eq!(trips_after(after_swap(), Verdict::GaveUp, &never), None);
    }

    #[test]
    fn probes_get_rarer_to_once_an_hour() {
        let probing = settings().probing();
        let after = |failed| probing.delay(Attempt(failed), None, 0.5);
        assert_eq!(after(1), Duration::from_secs(60));
        assert_eq!(after(2), Duration::from_secs(120));
        assert_eq!(after(100), Duration::from_secs(3_600));
        let rare = BreakerSettings { probe_after: Duration::from_secs(86_400), ..settings() };
        assert_eq!(rare.probing().delay(Attempt(9), None, 0.5), Duration::from_secs(86_400));
    }
}
