//! Outcomes of a batch -> what to commit. Pure.
//!
//! An [`OpenBatch`] takes one outcome after the other, in position order, and
//! becomes the [`Settlement`] that records all of them. It decides three things:
//! how far the cursor moves, what waits at the head, and what is given up.

use std::time::Duration;

use jiff::Timestamp;

use super::backoff::RetryPolicy;
use super::{Outcome, Report};
use crate::event::json::to_microseconds;
use crate::event::{Attempt, Epoch, GroupName, LogEvent, Position};
use crate::failure::{Failure, FailureKind};
use crate::store::{FailureCounts, FailureRecord, Head, NewDeadLetter, Settlement, StateWrite};

/// Whether the batch may go on with its next event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The event is done: handled, or a dead letter.
    Continue,
    /// The event waits at the head for its next attempt: settle, and wait so
    /// long.
    Wait(Duration),
    /// The handler could not be run; the event is as if it had not been tried.
    NotRun(String),
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

/// What a batch of attempts has done so far.
#[derive(Debug, Clone)]
pub struct OpenBatch {
    settlement: Settlement,
    cursor_before: Position,
    head_before: Option<Head>,
    failed: Vec<FailureKind>,
}

impl OpenBatch {
    /// Nothing done yet, with the cursor and the head as they are committed, and
    /// the number that its settlement will have.
    #[must_use]
    pub fn new(
        group: GroupName,
        epoch: Epoch,
        number: i64,
        cursor: Position,
        head: Option<Head>,
    ) -> Self {
        Self {
            settlement: Settlement {
                group,
                epoch,
                number,
                position: cursor,
                head: head.clone(),
                dead_letters: Vec::new(),
                emits: Vec::new(),
                state: Vec::new(),
                redeliveries: Vec::new(),
                redelivered: Vec::new(),
                failures: None,
            },
            cursor_before: cursor,
            head_before: head,
            failed: Vec::new(),
        }
    }

    /// The attempt that comes next for an event: what the head says if the event
    /// is the head, else the first.
    #[must_use]
    pub fn attempt_of(&self, event: &LogEvent) -> Attempt {
        match &self.settlement.head {
            Some(head) if head.position == event.position => head.attempt,
            _ => Attempt::FIRST,
        }
    }

    /// Whether an outcome would make a dead letter of the event.
    #[must_use]
    pub fn gives_up(outcome: &Outcome, attempt: Attempt, retry: &RetryPolicy) -> bool {
        let Outcome::Failure(failure) = outcome else { return false };
        failure.kind.is_final() || retry.is_last(attempt)
    }

    /// Dead letters so far.
    #[must_use]
    pub fn dead_letters(&self) -> usize {
        self.settlement.dead_letters.len()
    }

    /// Takes the outcome of an attempt. Events come in position order, each
    /// once; after anything but [`Next::Continue`] no further event may come.
    pub fn record(
        &mut self,
        event: &LogEvent,
        attempt: Attempt,
        report: Report,
        circumstances: Circumstances<'_>,
    ) -> Next {
        match report.outcome {
            Outcome::Success => {
                self.settlement.emits.extend(report.emits);
                self.done(event.position);
                Next::Continue
            }
            Outcome::NotRun(why) => Next::NotRun(why),
            Outcome::Failure(failure) => self.failed(event, attempt, failure, circumstances),
        }
    }

    fn failed(
        &mut self,
        event: &LogEvent,
        attempt: Attempt,
        failure: Failure,
        circumstances: Circumstances<'_>,
    ) -> Next {
        self.failed.push(failure.kind);
        let retry = circumstances.retry;
        let record = FailureRecord::new(failure.kind, failure.text);
        if failure.kind.is_final() || retry.is_last(attempt) {
            self.settlement.dead_letters.push(NewDeadLetter {
                event: event.clone(),
                attempts: attempt.0,
                failure: record,
                digest: circumstances.digest.to_owned(),
                dead_at: circumstances.now,
            });
            self.done(event.position);
            return Next::Continue;
        }
        let delay = retry.delay(attempt, failure.retry_after, circumstances.random);
        self.settlement.head = Some(Head {
            position: event.position,
            attempt: attempt.next(),
            // What stores keep, or a head that is read back would not be equal to
            // the one that was committed.
            due_at: to_microseconds(after(circumstances.now, delay)),
            failure: Some(record),
            in_flight: false,
        });
        Next::Wait(delay)
    }

    fn done(&mut self, position: Position) {
        self.settlement.position = position;
        self.settlement.head = None;
    }

    /// Moves the cursor to a position at or below which the log holds nothing
    /// more for this group. Only once every fetched event is done.
    pub fn pass(&mut self, scanned_to: Position) {
        if scanned_to > self.settlement.position {
            self.settlement.position = scanned_to;
        }
        // A head that was not among the fetched events is no longer subscribed.
        if self.settlement.head.as_ref().is_some_and(|head| head.position <= scanned_to) {
            self.settlement.head = None;
        }
    }

    /// The failed attempts so far, in all, if there are any in this batch.
    fn failures_after(&self, before: &FailureCounts) -> Option<FailureCounts> {
        if self.failed.is_empty() {
            return None;
        }
        let mut counts = before.clone();
        for kind in &self.failed {
            let count = counts.entry(kind.label().to_owned()).or_default();
            *count = count.saturating_add(1);
        }
        Some(counts)
    }

    /// Whether committing it would change anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settlement.position == self.cursor_before && self.settlement.head == self.head_before
    }

    /// Whether it does no more than move the cursor over events of others.
    #[must_use]
    pub fn only_passes(&self, handled: usize) -> bool {
        handled == 0 && self.settlement.head.is_none() && self.head_before.is_none()
    }

    /// What to commit, by a group whose attempts have failed so often before.
    #[must_use]
    pub fn into_settlement(
        mut self,
        state: Vec<StateWrite>,
        failures: &FailureCounts,
    ) -> Settlement {
        self.settlement.failures = self.failures_after(failures);
        self.settlement.state = state;
        self.settlement
    }
}

/// `now` plus a delay; saturates.
#[must_use]
pub fn after(now: Timestamp, delay: Duration) -> Timestamp {
    now.saturating_add(delay).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::delivery::Usage;
    use crate::event::Event;

    fn event(position: i64) -> LogEvent {
        LogEvent {
            position: Position(position),
            deliver_to: None,
            digest: None,
            event: Event {
                id: format!("e{position}"),
                source: "/test".into(),
                event_type: "t".into(),
                subject: None,
                time: Timestamp::UNIX_EPOCH,
                datacontenttype: None,
                dataschema: None,
                partitionkey: None,
                extensions: BTreeMap::new(),
                data: None,
            },
        }
    }

    fn report(outcome: Outcome, emits: usize) -> Report {
        Report {
            outcome,
            emits: (0..emits).map(|n| event(1_000 + n as i64).event).collect(),
            usage: Usage::default(),
        }
    }

    fn failure(kind: FailureKind) -> Outcome {
        Outcome::Failure(Failure::new(kind, "because"))
    }

    fn batch(cursor: i64, head: Option<Head>) -> OpenBatch {
        OpenBatch::new("g".parse().unwrap(), Epoch(7), 3, Position(cursor), head)
    }

    fn circumstances(retry: &RetryPolicy) -> Circumstances<'_> {
        Circumstances { retry, digest: "sha256:00", now: Timestamp::UNIX_EPOCH, random: 0.5 }
    }

    #[test]
    fn a_success_moves_the_cursor_and_keeps_the_emits() {
        let retry = RetryPolicy::default();
        let mut batch = batch(4, None);
        let next =
            batch.record(&event(9), Attempt(1), report(Outcome::Success, 2), circumstances(&retry));
        assert_eq!(next, Next::Continue);
        let settlement = batch.into_settlement(vec![], &FailureCounts::new());
        assert_eq!((settlement.number, settlement.position), (3, Position(9)));
        assert_eq!(settlement.emits.len(), 2);
        assert_eq!(settlement.head, None);
    }

    #[test]
    fn failed_attempts_are_added_to_those_before_by_kind() {
        let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
        let before = FailureCounts::from([("trap".to_owned(), 4)]);
        let mut untroubled = batch(0, None);
        untroubled.record(
            &event(1),
            Attempt(1),
            report(Outcome::Success, 0),
            circumstances(&retry),
        );
        assert_eq!(untroubled.into_settlement(vec![], &before).failures, None);
        let mut troubled = batch(0, None);
        for (position, kind) in
            (1..).zip([FailureKind::Trap, FailureKind::Timeout, FailureKind::Trap])
        {
            troubled.record(
                &event(position),
                Attempt(1),
                report(failure(kind), 0),
                circumstances(&retry),
            );
        }
        let after = FailureCounts::from([("trap".to_owned(), 6), ("timeout".to_owned(), 1)]);
        assert_eq!(troubled.into_settlement(vec![], &before).failures, Some(after));
    }

    #[test]
    fn a_failure_waits_at_the_head_and_drops_the_emits() {
        let retry = RetryPolicy::default();
        let mut batch = batch(4, None);
        let next = batch.record(
            &event(9),
            Attempt(2),
            report(failure(FailureKind::Trap), 2),
            circumstances(&retry),
        );
        assert_eq!(next, Next::Wait(Duration::from_secs(2)));
        let settlement = batch.into_settlement(vec![], &FailureCounts::new());
        assert_eq!(settlement.position, Position(4));
        assert!(settlement.emits.is_empty());
        let head = settlement.head.unwrap();
        assert_eq!((head.position, head.attempt), (Position(9), Attempt(3)));
        assert_eq!(head.due_at, Timestamp::from_second(2).unwrap());
        assert_eq!(head.failure.unwrap().kind, "trap");
    }

    #[test]
    fn the_last_attempt_and_a_reject_become_dead_letters_and_the_batch_goes_on() {
        let retry = RetryPolicy::default();
        let mut batch = batch(0, None);
        for (position, attempt, kind) in [
            (1, Attempt(5), FailureKind::Timeout),
            (2, Attempt(1), FailureKind::Reject),
            (3, Attempt(1), FailureKind::NotLoaded),
        ] {
            let next = batch.record(
                &event(position),
                attempt,
                report(failure(kind), 1),
                circumstances(&retry),
            );
            assert_eq!(next, Next::Continue);
        }
        let settlement = batch.into_settlement(vec![], &FailureCounts::new());
        assert_eq!(settlement.position, Position(3));
        assert!(settlement.emits.is_empty());
        let attempts: Vec<u32> = settlement.dead_letters.iter().map(|d| d.attempts).collect();
        assert_eq!(attempts, [5, 1, 1]);
        assert_eq!(settlement.dead_letters[0].failure.kind, "timeout");
        assert_eq!(settlement.dead_letters[0].digest, "sha256:00");
    }

    #[test]
    fn what_could_not_be_run_changes_nothing() {
        let retry = RetryPolicy::default();
        let head = Head {
            position: Position(9),
            attempt: Attempt(3),
            due_at: Timestamp::UNIX_EPOCH,
            failure: None,
            in_flight: false,
        };
        let mut batch = batch(4, Some(head));
        let attempt = batch.attempt_of(&event(9));
        assert_eq!(attempt, Attempt(3));
        let report = report(Outcome::NotRun("gone".into()), 1);
        let next = batch.record(&event(9), attempt, report, circumstances(&retry));
        assert_eq!(next, Next::NotRun("gone".into()));
        assert!(batch.is_empty());
    }

    #[test]
    fn a_head_counts_only_for_its_own_event() {
        let head = Head {
            position: Position(9),
            attempt: Attempt(3),
            due_at: Timestamp::UNIX_EPOCH,
            failure: None,
            in_flight: false,
        };
        assert_eq!(batch(4, Some(head)).attempt_of(&event(10)), Attempt(1));
    }

    #[derive(Debug, Clone)]
    enum Scripted {
        Success(usize),
        Fail(FailureKind),
        NotRun,
    }

    fn scripted() -> impl Strategy<Value = Scripted> {
        prop_oneof![
            4 => (0..4_usize).prop_map(Scripted::Success),
            2 => (0..FailureKind::ALL.len()).prop_map(|i| Scripted::Fail(FailureKind::ALL[i])),
            1 => Just(Scripted::NotRun),
        ]
    }

    proptest! {
        /// Whatever the outcomes, each event up to the new cursor is either
        /// handled or a dead letter, none is both, and none beyond it is either.
        #[test]
        fn every_event_below_the_cursor_is_accounted_for(
            outcomes in proptest::collection::vec(scripted(), 0..30),
            gaps in proptest::collection::vec(1..5_i64, 30),
            first_attempt in 1..8_u32,
            max_attempts in 1..6_u32,
        ) {
            let retry = RetryPolicy { max_attempts, ..RetryPolicy::default() };
            let mut position = 10;
            let mut open = batch(10, None);
            let (mut handled, mut emitted, mut stopped) = (Vec::new(), 0, false);
            for (i, outcome) in outcomes.iter().enumerate() {
                position += gaps[i];
                let attempt = if i == 0 { Attempt(first_attempt) } else { Attempt::FIRST };
                let (outcome, emits) = match outcome {
                    Scripted::Success(emits) => (Outcome::Success, *emits),
                    Scripted::Fail(kind) => (failure(*kind), 3),
                    Scripted::NotRun => (Outcome::NotRun("x".into()), 3),
                };
                let succeeded = outcome == Outcome::Success;
                let next = open.record(
                    &event(position), attempt, report(outcome, emits), circumstances(&retry));
                match next {
                    Next::Continue => {
                        if succeeded { handled.push(position); emitted += emits; }
                    }
                    Next::Wait(_) | Next::NotRun(_) => { stopped = true; break; }
                }
            }
            if !stopped {
                open.pass(Position(position + 100));
            }
            let settlement = open.into_settlement(vec![], &FailureCounts::new());
            let dead: Vec<i64> =
                settlement.dead_letters.iter().map(|d| d.event.position.0).collect();
            let mut accounted: Vec<i64> = handled.iter().chain(&dead).copied().collect();
            accounted.sort_unstable();
            let mut expected = Vec::new();
            let mut at = 10;
            for gap in &gaps[..outcomes.len()] {
                at += gap;
                if Position(at) <= settlement.position { expected.push(at); }
            }
            prop_assert_eq!(accounted, expected);
            prop_assert_eq!(settlement.emits.len(), emitted);
            prop_assert!(settlement.position >= Position(10));
            if let Some(head) = &settlement.head {
                prop_assert!(head.position > settlement.position);
            }
        }
    }
}
