//! The outcome of an attempt -> what becomes of its event. Pure.
//!
//! Three things are decided here: that an event is done, that it is given up, or
//! when it is tried again. How far the cursor may move for it is the
//! [`Schedule`](super::ordering::Schedule)'s to say.

use std::time::Duration;

use jiff::Timestamp;

use event_host_core::clock::after;
use event_host_core::event::time::to_microseconds;
use event_host_core::event::{Attempt, Event, LogEvent};
use event_host_core::failure::{Failure, FailureKind};
use event_host_core::handler::state::Accepted;
use event_host_core::handler::{Outcome, Report};
use event_host_core::retry::RetryPolicy;
use event_host_store::{FailureCounts, FailureRecord, NewDeadLetter, dead_letter_bytes};

/// What becomes of an event after an attempt.
#[derive(Debug)]
pub enum Resolution {
    /// The event is handled.
    Handled(Effects),
    /// The event is given up: a dead letter.
    GivenUp(FailureKind, Effects),
    /// The event is tried again, after this delay.
    Retry(FailureKind, NextAttempt, Duration),
    /// The handler could not be run; the event is as if it had not been tried.
    NotRun(String),
}

/// Which attempt of an event comes next, when, and why the one before failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextAttempt {
    /// The attempt that comes next.
    pub attempt: Attempt,
    /// When it may begin.
    pub due_at: Timestamp,
    /// Why the one before failed; `None` while there was none.
    pub failure: Option<FailureRecord>,
}

/// What an event came to that is handled or given up.
#[derive(Debug, Default)]
pub struct Effects {
    /// What it emitted.
    pub emits: Vec<Event>,
    /// What it wrote.
    pub writes: Vec<Accepted>,
    /// What is kept of it when it was given up.
    pub dead_letter: Option<Box<NewDeadLetter>>,
}

impl Effects {
    pub(super) fn is_empty(&self) -> bool {
        self.emits.is_empty() && self.writes.is_empty() && self.dead_letter.is_none()
    }

    /// What its dead letter takes, if it has one.
    pub(super) fn dead_letter_bytes(&self) -> usize {
        self.dead_letter.as_ref().map_or(0, |dead| dead_letter_bytes(&dead.event, &dead.failure))
    }

    pub(super) fn bytes(&self) -> usize {
        let emitted = self.emits.iter().map(Event::bytes);
        let dead = self.dead_letter_bytes();
        let writes = self.writes.iter().map(|Accepted { write, .. }| {
            write.scope.len() + write.key.len() + write.value.as_ref().map_or(0, Vec::len)
        });
        emitted.sum::<usize>() + writes.sum::<usize>() + dead
    }
}

/// When an outcome was seen, and by whom it was caused.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances<'a> {
    /// The group's retry settings.
    pub retry: &'a RetryPolicy,
    /// The component's digest.
    pub digest: &'a str,
    /// The time of day.
    pub now: Timestamp,
    /// Uniform in 0 to 1, for the jitter.
    pub random: f64,
}

/// Whether an outcome makes a dead letter of the event.
#[must_use]
pub fn gives_up(outcome: &Outcome, attempt: Attempt, retry: &RetryPolicy) -> bool {
    matches!(outcome, Outcome::Failure(failure) if is_last(failure, attempt, retry))
}

/// Whether no further attempt follows a failure.
fn is_last(failure: &Failure, attempt: Attempt, retry: &RetryPolicy) -> bool {
    failure.kind.is_final() || retry.is_last(attempt)
}

/// What becomes of an event after this attempt. Emits of a failed one are dropped. The
/// circumstances are those of a failure, and not asked for without one.
#[must_use]
pub fn resolve<'a>(
    event: &LogEvent,
    attempt: Attempt,
    report: Report,
    circumstances: impl FnOnce() -> Circumstances<'a>,
) -> Resolution {
    let Report { outcome, emits, .. } = report;
    let failure = match outcome {
        Outcome::Success => {
            return Resolution::Handled(Effects { emits, ..Effects::default() });
        }
        Outcome::NotRun(why) => return Resolution::NotRun(why),
        Outcome::Failure(failure) => failure,
    };
    let circumstances = circumstances();
    let retry = circumstances.retry;
    let given_up = is_last(&failure, attempt, retry);
    let record = FailureRecord::new(failure.kind, failure.text);
    if given_up {
        let dead_letter = NewDeadLetter {
            event: event.clone(),
            attempts: attempt.0,
            failure: record,
            digest: circumstances.digest.to_owned(),
            dead_at: circumstances.now,
        };
        let effects = Effects { dead_letter: Some(Box::new(dead_letter)), ..Effects::default() };
        return Resolution::GivenUp(failure.kind, effects);
    }
    let delay = retry.delay(attempt, failure.retry_after, circumstances.random);
    let again = NextAttempt {
        attempt: attempt.next(),
        // What stores keep, or what is read back would not be equal to what was
        // committed.
        due_at: to_microseconds(after(circumstances.now, delay)),
        failure: Some(record),
    };
    Resolution::Retry(failure.kind, again, delay)
}

/// The failed attempts in all, if any are added.
#[must_use]
pub fn with_failures(before: &FailureCounts, added: &[FailureKind]) -> Option<FailureCounts> {
    if added.is_empty() {
        return None;
    }
    let mut counts = before.clone();
    for kind in added {
        let count = counts.entry(kind.label().to_owned()).or_default();
        *count = count.saturating_add(1);
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ordering::tests::event;
    use event_host_core::handler::Usage;

    fn report(outcome: Outcome, emits: usize) -> Report {
        let emits = (0..emits).map(|_| event(1_000, None).event).collect();
        Report { outcome, emits, usage: Usage::default() }
    }

    fn failure(kind: FailureKind) -> Outcome {
        Outcome::Failure(Failure::new(kind, "because"))
    }

    fn resolved(attempt: u32, report: Report) -> Resolution {
        let retry = RetryPolicy::default();
        let circumstances = Circumstances {
            retry: &retry,
            digest: "sha256:00",
            now: Timestamp::UNIX_EPOCH,
            random: 0.5,
        };
        resolve(&event(9, None), Attempt(attempt), report, || circumstances)
    }

    #[test]
    fn a_success_keeps_the_emits() {
        let Resolution::Handled(effects) = resolved(1, report(Outcome::Success, 2)) else {
            panic!("not handled")
        };
        assert_eq!(effects.emits.len(), 2);
        assert!(effects.dead_letter.is_none());
    }

    #[test]
    fn a_failure_waits_for_its_next_attempt_and_drops_the_emits() {
        let resolution = resolved(2, report(failure(FailureKind::Trap), 2));
        let Resolution::Retry(kind, again, delay) = resolution else { panic!("{resolution:?}") };
        assert_eq!((kind, delay), (FailureKind::Trap, Duration::from_secs(2)));
        assert_eq!(again.attempt, Attempt(3));
        assert_eq!(again.due_at, Timestamp::from_second(2).unwrap());
        assert_eq!(again.failure.unwrap().kind, "trap");
    }

    #[test]
    fn the_last_attempt_and_a_reject_become_dead_letters_and_drop_the_emits() {
        for (attempt, kind) in
            [(5, FailureKind::Timeout), (1, FailureKind::Reject), (1, FailureKind::NotLoaded)]
        {
            let resolution = resolved(attempt, report(failure(kind), 1));
            let Resolution::GivenUp(given_up, effects) = resolution else {
                panic!("{resolution:?}")
            };
            assert_eq!(given_up, kind);
            assert!(effects.emits.is_empty());
            let dead = effects.dead_letter.unwrap();
            assert_eq!((dead.attempts, &*dead.failure.kind), (attempt, kind.label()));
            assert_eq!((dead.event.position.0, &*dead.digest), (9, "sha256:00"));
        }
    }

    #[test]
    fn what_could_not_be_run_counts_for_nothing() {
        let resolution = resolved(5, report(Outcome::NotRun("gone".into()), 1));
        assert!(matches!(resolution, Resolution::NotRun(why) if why == "gone"));
    }

    #[test]
    fn failed_attempts_are_added_to_those_before_by_kind() {
        let before = FailureCounts::from([("trap".to_owned(), 4)]);
        assert_eq!(with_failures(&before, &[]), None);
        let added = [FailureKind::Trap, FailureKind::Timeout, FailureKind::Trap];
        let after = FailureCounts::from([("trap".to_owned(), 6), ("timeout".to_owned(), 1)]);
        assert_eq!(with_failures(&before, &added), Some(after));
    }
}
