//! What the leader does next: pure functions of what it sees.
//!
//! Once a turn the leader, unless its leadership is over, takes a [`View`] and does the one
//! [`Step`] that follows:
//!
//! | the leader sees | nothing is under way | something is under way |
//! | --- | --- | --- |
//! | the attempts were halted | handle the halt | wait |
//! | a stop, or another version | end | wait |
//! | a trip that is not recorded, while not paused | record it | wait |
//! | a pause, the time until a probe or another try | wait | wait |
//! | events that go one at a time | handle one | read |
//! | none of these | dispatch | dispatch |
//!
//! "Under way" are attempts and a settlement. What comes first in the table counts.
//! [`Backlog::settlement`] says the same of settlements.

use std::time::Duration;

use super::{BATCH_BYTES, End};

/// What the leader sees at the start of a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct View {
    /// The leader is to stop.
    pub(super) stops: bool,
    /// Another version is to take over.
    pub(super) is_replaced: bool,
    /// The group is paused.
    pub(super) is_paused: bool,
    /// An attempt gave a reason to begin no other.
    pub(super) is_halted: bool,
    /// The group tripped, and its next probe is not due.
    pub(super) awaits_probe: bool,
    /// The group's row does not say yet that the group tripped, or that this is over.
    pub(super) has_unrecorded_trip: bool,
    /// The handler could not be run, and is not tried again yet.
    pub(super) awaits_retry: bool,
    /// Events are handled and settled one at a time.
    pub(super) goes_one_at_a_time: bool,
    /// Attempts are under way.
    pub(super) has_attempts: bool,
    /// A settlement is under way.
    pub(super) is_settling: bool,
}

/// What the leader does in a turn, before it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It ends.
    End(End),
    /// It does what the attempts were halted for.
    HandleHalt,
    /// It records that the group tripped, or that this is over.
    RecordTrip,
    /// Nothing: it reads no events and begins no attempt.
    Idle,
    /// It reads events.
    Read,
    /// It reads events, and handles one of them by itself.
    OneEvent,
    /// It reads events, and has as many tasks make attempts as there are events for.
    Dispatch,
}

impl View {
    /// Whether the leader neither reads events nor begins attempts.
    pub(super) fn idles(&self) -> bool {
        self.stops
            || self.is_replaced
            || self.is_paused
            || self.is_halted
            || self.awaits_probe
            || self.has_unrecorded_trip
            || self.awaits_retry
    }

    /// Whether the tasks may begin attempts.
    pub(super) fn lets_attempts_begin(&self) -> bool {
        !self.idles() && !self.goes_one_at_a_time
    }

    /// Whether a cursor is settled that only passed events of others: the leader may not
    /// come to it for long.
    pub(super) fn settles_passed(&self) -> bool {
        self.stops || self.is_replaced || self.is_paused || self.awaits_probe
    }
}

/// What follows from what the leader sees.
pub(super) fn decide(view: &View) -> Step {
    let is_at_rest = !view.has_attempts && !view.is_settling;
    if is_at_rest {
        if view.is_halted {
            return Step::HandleHalt;
        }
        if view.stops {
            return Step::End(End::Stopped);
        }
        if view.is_replaced {
            return Step::End(End::Replaced);
        }
        if view.has_unrecorded_trip && !view.is_paused {
            return Step::RecordTrip;
        }
    }
    if view.idles() {
        Step::Idle
    } else if !view.goes_one_at_a_time {
        Step::Dispatch
    } else if is_at_rest {
        Step::OneEvent
    } else {
        Step::Read
    }
}

/// What is done and not settled, as the leader sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    /// No further attempt begins before a settlement.
    pub(super) attempts_end: bool,
    /// A cursor that only passed events of others is settled too.
    pub(super) settles_passed: bool,
    /// Attempts are under way.
    pub(super) has_attempts: bool,
    /// Each of them waits for a permit.
    pub(super) attempts_wait: bool,
    /// An attempt is recorded as begun.
    pub(super) is_marked: bool,
    /// How long ago the first event was done, or failed, that no settlement has taken.
    pub(super) oldest: Option<Duration>,
    /// How long ago the last settlement was.
    pub(super) since_settled: Duration,
    /// Number of events that are ready to run.
    pub(super) ready: usize,
    /// Number of events that are done.
    pub(super) done: usize,
    /// What they came to, in bytes.
    pub(super) done_bytes: usize,
    /// An attempt waits for a settlement.
    pub(super) is_waited_for: bool,
    /// Late events wait to be adopted, or what is undecided has changed.
    pub(super) has_overtaking: bool,
    /// Something is to be recorded beyond events that are not done.
    pub(super) has_gaps: bool,
    /// The cursor can pass events of others.
    pub(super) passes: bool,
}

/// When the leader settles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Number of done events that are settled at once.
    pub(super) max_events: usize,
    /// How long a done event waits for its settlement.
    pub(super) max_time: Duration,
    /// How often a cursor is settled that only passed events of others.
    pub(super) pass_interval: Duration,
}

/// Whether the leader settles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settle {
    /// It does not.
    No,
    /// It does.
    Yes {
        /// Events that are not done are parked where later ones are.
        over_gaps: bool,
    },
}

impl Backlog {
    /// Whether the leader settles now, which has no settlement under way. `has_work`: whether
    /// a settlement would record more than the cursor, without going past gaps. It is asked
    /// only once it is time, because it may look through the window.
    pub(super) fn settlement(&self, limits: &Limits, has_work: impl FnOnce() -> bool) -> Settle {
        let ends = self.attempts_end && !self.has_attempts;
        let is_overdue = self.oldest.is_some_and(|oldest| oldest >= limits.max_time);
        let is_time = ends
            || is_overdue
            || self.attempts_wait
            || self.ready == 0
            || self.done >= limits.max_events
            || self.is_waited_for
            || self.has_overtaking
            || self.done_bytes >= BATCH_BYTES;
        let over_gaps = ends || is_overdue || self.is_waited_for;
        let settles_passed = self.settles_passed || self.since_settled >= limits.pass_interval;
        let is_worth =
            is_time && (over_gaps && self.has_gaps || has_work()) || self.passes && settles_passed;
        let clears_mark = ends && self.is_marked;
        if is_worth || clears_mark { Settle::Yes { over_gaps } } else { Settle::No }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn view() -> impl Strategy<Value = View> {
        any::<[bool; 10]>().prop_map(|bits| {
            let [stops, is_replaced, is_paused, is_halted, ..] = bits;
            let [.., awaits_probe, has_unrecorded_trip, awaits_retry, one, running, settling] =
                bits;
            View {
                stops,
                is_replaced,
                is_paused,
                is_halted,
                awaits_probe,
                has_unrecorded_trip,
                awaits_retry,
                goes_one_at_a_time: one,
                has_attempts: running,
                is_settling: settling,
            }
        })
    }

    const LIMITS: Limits = Limits {
        max_events: 10,
        max_time: Duration::from_millis(500),
        pass_interval: Duration::from_secs(1),
    };

    /// A backlog, and whether a settlement would record more than the cursor.
    fn backlog() -> impl Strategy<Value = (Backlog, bool)> {
        let bits = any::<[bool; 10]>();
        let oldest = proptest::option::of(0..1_000_u64);
        (bits, oldest, 0..2_000_u64, 0..3_usize, 0..20_usize, 0..2 * BATCH_BYTES).prop_map(
            |(bits, oldest, since_settled, ready, done, done_bytes)| {
                let [attempts_end, settles_passed, has_attempts, attempts_wait, is_marked, ..] =
                    bits;
                let [.., is_waited_for, has_overtaking, has_work, has_gaps, passes] = bits;
                let backlog = Backlog {
                    attempts_end,
                    settles_passed,
                    has_attempts,
                    attempts_wait,
                    is_marked,
                    oldest: oldest.map(Duration::from_millis),
                    since_settled: Duration::from_millis(since_settled),
                    ready,
                    done,
                    done_bytes,
                    is_waited_for,
                    has_overtaking,
                    has_gaps,
                    passes,
                };
                (backlog, has_work)
            },
        )
    }

    #[test]
    fn the_table_says_what_follows() {
        let base = View::default();
        let busy = |view: View| View { has_attempts: true, ..view };
        let stops = View { stops: true, ..base };
        let replaced = View { is_replaced: true, ..base };
        let halted = View { is_halted: true, ..base };
        let trip = View { has_unrecorded_trip: true, ..base };
        let one = View { goes_one_at_a_time: true, ..base };
        for (view, at_rest, under_way) in [
            (halted, Step::HandleHalt, Step::Idle),
            (View { is_halted: true, ..stops }, Step::HandleHalt, Step::Idle),
            (stops, Step::End(End::Stopped), Step::Idle),
            (View { is_replaced: true, ..stops }, Step::End(End::Stopped), Step::Idle),
            (replaced, Step::End(End::Replaced), Step::Idle),
            (trip, Step::RecordTrip, Step::Idle),
            (View { is_paused: true, ..trip }, Step::Idle, Step::Idle),
            (View { is_paused: true, ..base }, Step::Idle, Step::Idle),
            (View { awaits_probe: true, ..base }, Step::Idle, Step::Idle),
            (View { awaits_retry: true, ..base }, Step::Idle, Step::Idle),
            (one, Step::OneEvent, Step::Read),
            (base, Step::Dispatch, Step::Dispatch),
        ] {
            assert_eq!(decide(&view), at_rest, "{view:?}");
            assert_eq!(decide(&busy(view)), under_way, "{view:?}");
            assert_eq!(decide(&View { is_settling: true, ..view }), under_way, "{view:?}");
        }
    }

    proptest! {
        #[test]
        fn a_leader_hands_over_only_once_nothing_is_under_way(view in view()) {
            let is_at_rest = !view.has_attempts && !view.is_settling;
            let step = decide(&view);
            if matches!(step, Step::End(_) | Step::HandleHalt) {
                prop_assert!(is_at_rest);
            }
            if matches!(step, Step::RecordTrip | Step::OneEvent) {
                prop_assert!(is_at_rest && !view.is_paused);
            }
        }

        #[test]
        fn a_leader_that_idles_begins_no_attempt(view in view()) {
            let begins = matches!(decide(&view), Step::Dispatch | Step::OneEvent);
            prop_assert!(!(begins && view.idles()));
            if view.lets_attempts_begin() {
                prop_assert_eq!(decide(&view), Step::Dispatch);
            }
            prop_assert!(!view.settles_passed() || view.idles());
        }

        #[test]
        fn what_is_done_is_settled_when_it_is_due((backlog, has_work) in backlog()) {
            let is_due = backlog.oldest.is_some_and(|oldest| oldest >= LIMITS.max_time)
                || backlog.done >= LIMITS.max_events
                || backlog.done_bytes >= BATCH_BYTES
                || backlog.is_waited_for;
            if is_due && has_work {
                let settles = backlog.settlement(&LIMITS, || has_work) != Settle::No;
                prop_assert!(settles);
            }
        }

        #[test]
        fn gaps_are_gone_over_only_where_something_would_wait_for_long((backlog, has_work) in backlog()) {
            let ends = backlog.attempts_end && !backlog.has_attempts;
            let is_overdue = backlog.oldest.is_some_and(|oldest| oldest >= LIMITS.max_time);
            let may = ends || is_overdue || backlog.is_waited_for;
            if let Settle::Yes { over_gaps } = backlog.settlement(&LIMITS, || has_work) {
                prop_assert_eq!(over_gaps, may);
            }
        }

        #[test]
        fn nothing_is_settled_without_a_reason((backlog, has_work) in backlog()) {
            let has_reason = has_work
                || backlog.has_gaps
                || backlog.passes
                || backlog.is_marked && backlog.attempts_end && !backlog.has_attempts;
            if !has_reason {
                prop_assert_eq!(backlog.settlement(&LIMITS, || has_work), Settle::No);
            }
        }
    }
}
