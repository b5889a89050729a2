//! The safe position: which positions can no longer come to hold an event.
//!
//! A sample at the end of the log gives the last position that was drawn, and
//! after it the transactions that hold the lock of an insert. An insert takes
//! that lock before it draws, and keeps it until its event is visible, or gone.
//! So once none of those transactions is left, everything at or below that
//! position is decided. No clock decides anything here, and a transaction that
//! writes something else holds nothing up.
//!
//! The last position is what `pg_sequence_last_value()` says, and never `last_value`
//! as a table's column. A scan lets go of the buffer's lock before it reads the row,
//! and `nextval()` writes `last_value + 32` into that row until its WAL record is
//! inserted: once in 33 draws, and after each checkpoint. A sample that sees such a value
//! holds positions for drawn that are drawn later, by transactions that it does not
//! list; it would call them decided, and they would be passed while they are open.
//!
//! Where every position holds an event that is visible, no more than that is needed:
//! nothing else can appear there. So while transactions commit one after the other,
//! which they mostly do within milliseconds, nobody's locks are looked at.
//!
//! [`SafePosition::overtake_limit`] is for groups that go on past slow transactions: what would
//! be safe if those never came to write. It only says where to read to. What is still
//! open of what is read there is found by that read itself, so nothing is lost
//! whatever it says.

use std::collections::{BTreeSet, VecDeque};

use event_host_core::event::Position;

/// How many samples are remembered that wait for their writers. More would only
/// tell a little sooner that a part of the log is safe.
const MOST_PENDING: usize = 64;

/// One sample at the end of the log, of one incarnation of the server: what is known of
/// another one says nothing of this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sample {
    /// The last position that was drawn.
    pub(super) last_position: i64,
    /// The highest position such that every one above what was decided, up to it, held a
    /// visible event when the sample was taken.
    pub(super) filled_to: i64,
    /// The transactions that held the lock of an insert after that, by their
    /// virtual ids; `None` if it was not looked at.
    pub(super) writers: Option<BTreeSet<String>>,
    /// A position up to there above which none holds an event, if it was asked
    /// for and nobody was writing: the last event's, or, where that is far below,
    /// one in between.
    pub(super) last_event: Option<i64>,
}

/// The sequence of positions stands below where it stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WentBack {
    pub(super) from: i64,
    pub(super) to: i64,
}

#[derive(Debug)]
struct Pending {
    last_position: i64,
    writers: BTreeSet<String>,
}

/// What the samples so far tell.
#[derive(Debug, Default)]
pub(super) struct SafePosition {
    safe: i64,
    /// Up to here everything is decided, and nothing above `safe` holds an event.
    decided: i64,
    seen: i64,
    pending: VecDeque<Pending>,
}

/// Whether a transaction was prepared before the server was last started. A prepared
/// transaction keeps its virtual id until the server restarts; afterwards it appears under
/// process -1.
fn is_prepared(writer: &str) -> bool {
    writer.starts_with("-1/")
}

impl SafePosition {
    /// The safe position.
    pub(super) fn safe(&self) -> Position {
        Position(self.safe)
    }

    /// A last position for which a sample need not search the last event.
    pub(super) fn decided(&self) -> i64 {
        self.decided
    }

    /// How many positions of the last sample are not decided.
    pub(super) fn undecided(&self) -> i64 {
        self.seen - self.decided
    }

    /// Whether a transaction that is still open may hold a position that is not
    /// safe.
    pub(super) fn is_held(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The highest position at or below which nothing can appear any more but of
    /// transactions that are slow.
    pub(super) fn overtake_limit(&self, is_slow: impl Fn(&str) -> bool) -> Position {
        let overtake_limit = self
            .pending
            .iter()
            .rev()
            .find(|pending| pending.writers.iter().all(|writer| is_slow(writer)));
        Position(overtake_limit.map_or(self.safe, |pending| pending.last_position.max(self.safe)))
    }

    /// Takes one more sample into account. Samples must be observed in
    /// the order in which they were taken.
    pub(super) fn observe(&mut self, sample: Sample) -> Result<Position, WentBack> {
        let Sample { last_position, filled_to, writers, last_event } = sample;
        if last_position < self.seen {
            return Err(WentBack { from: self.seen, to: last_position });
        }
        self.seen = last_position;
        if filled_to > self.decided {
            self.pending.retain(|pending| pending.last_position > filled_to);
            self.decide(filled_to, filled_to);
        }
        let Some(writers) = writers else { return Ok(self.safe()) };
        if writers.is_empty() {
            // Everything that was drawn is decided. Without a last event it was
            // so before this sample.
            self.pending.clear();
            if let Some(event) = last_event {
                self.decide(last_position, event);
            }
            return Ok(self.safe());
        }
        for pending in &mut self.pending {
            let mut gone_ordinary = false;
            pending.writers.retain(|writer| {
                let here = writers.contains(writer);
                gone_ordinary |= !here && !is_prepared(writer);
                here
            });
            if gone_ordinary {
                // It may have ended, or it may be any of those that were prepared
                // before a restart.
                pending.writers.extend(writers.iter().filter(|w| is_prepared(w)).cloned());
            }
        }
        // Writers end in any order, so a later sample may be through first; what
        // it covers includes all before it.
        if let Some(done) = self.pending.iter().rposition(|pending| pending.writers.is_empty()) {
            let decided = self.pending[done].last_position;
            self.pending.drain(..=done);
            self.decide(decided, decided);
        }
        if last_position > self.decided {
            // Where nothing was drawn since the newest, who came meanwhile is no
            // matter.
            let is_news =
                self.pending.back().is_none_or(|newest| newest.last_position < last_position);
            if is_news {
                if self.pending.len() >= MOST_PENDING {
                    self.thin_out();
                }
                if self.pending.len() >= MOST_PENDING {
                    self.pending.pop_back();
                }
                self.pending.push_back(Pending { last_position, writers });
            }
        }
        Ok(self.safe())
    }

    /// Forgets samples that a later one is not behind: whoever is gone from among the
    /// writers of the earlier is gone from among those of the later, which covers
    /// more. So where a slow transaction holds up everything, one sample is left of
    /// those that wait for it alone, and there is room for new ones.
    fn thin_out(&mut self) {
        let mut later: Option<BTreeSet<String>> = None;
        let mut kept = VecDeque::with_capacity(self.pending.len());
        while let Some(pending) = self.pending.pop_back() {
            if later.as_ref().is_some_and(|later| later.is_subset(&pending.writers)) {
                continue;
            }
            later = Some(pending.writers.clone());
            kept.push_front(pending);
        }
        self.pending = kept;
    }

    fn decide(&mut self, decided: i64, safe: i64) {
        self.decided = self.decided.max(decided);
        self.safe = self.safe.max(safe);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(last_position: i64, writers: &[&str]) -> Sample {
        let last_event = writers.is_empty().then_some(last_position);
        let writers = Some(writers.iter().map(|&writer| writer.to_owned()).collect());
        Sample { last_position, filled_to: 0, writers, last_event }
    }

    fn observed(tracked: &mut SafePosition, last_position: i64, writers: &[&str]) -> i64 {
        tracked.observe(sample(last_position, writers)).unwrap().0
    }

    #[test]
    fn a_position_is_safe_once_none_of_those_who_wrote_is_left() {
        let mut tracked = SafePosition::default();
        assert_eq!(observed(&mut tracked, 5, &["3/1", "4/1"]), 0);
        assert!(tracked.is_held());
        assert_eq!(observed(&mut tracked, 9, &["4/1", "5/1"]), 0);
        assert_eq!(observed(&mut tracked, 9, &["5/1"]), 5, "who came later does not count");
        assert_eq!(observed(&mut tracked, 9, &["5/2"]), 9);
        assert!(!tracked.is_held());
    }

    #[test]
    fn a_later_sample_may_be_through_first() {
        let mut tracked = SafePosition::default();
        observed(&mut tracked, 5, &["3/1"]);
        observed(&mut tracked, 7, &["3/1", "4/1"]);
        // Nobody is left of the second sample's, so nobody of the first's.
        assert_eq!(observed(&mut tracked, 8, &["5/1"]), 7);
    }

    #[test]
    fn a_prepared_transaction_still_holds_what_it_held_after_a_restart() {
        let mut tracked = SafePosition::default();
        observed(&mut tracked, 5, &["3/1"]);
        assert_eq!(observed(&mut tracked, 6, &["-1/700"]), 0, "it may be the one");
        assert_eq!(observed(&mut tracked, 6, &["-1/700", "-1/701"]), 0);
        assert_eq!(observed(&mut tracked, 6, &["-1/701"]), 6);
    }

    #[test]
    fn a_transaction_seen_under_both_its_names_still_holds_what_it_held() {
        let mut tracked = SafePosition::default();
        observed(&mut tracked, 5, &["3/1"]);
        observed(&mut tracked, 5, &["-1/700", "3/1"]);
        assert_eq!(observed(&mut tracked, 5, &["-1/700"]), 0);
        assert_eq!(observed(&mut tracked, 5, &[]), 5);
    }

    #[test]
    fn prepared_transactions_that_come_later_hold_nothing_up() {
        let mut tracked = SafePosition::default();
        observed(&mut tracked, 5, &["-1/700"]);
        assert_eq!(observed(&mut tracked, 5, &["-1/701"]), 5);
    }

    #[test]
    fn where_nobody_writes_the_last_event_is_safe_and_no_position_above_it() {
        let mut tracked = SafePosition::default();
        let quiet = Sample { last_event: Some(4), ..sample(9, &[]) };
        assert_eq!(tracked.observe(quiet).unwrap(), Position(4));
        assert_eq!(tracked.decided(), 9, "and need not be searched again");
        assert_eq!(observed(&mut tracked, 9, &["3/1"]), 4);
        assert!(!tracked.is_held(), "whoever writes now draws above 9");
    }

    #[test]
    fn where_every_position_holds_an_event_nobody_is_asked_who_writes() {
        let mut tracked = SafePosition::default();
        let filled = |last_position, filled_to| Sample {
            filled_to,
            writers: None,
            ..sample(last_position, &["nobody is asked"])
        };
        assert_eq!(tracked.observe(filled(3, 2)).unwrap(), Position(2));
        assert_eq!(tracked.undecided(), 1);
        assert_eq!(observed(&mut tracked, 5, &["3/1"]), 2);
        assert!(tracked.is_held());
        assert_eq!(tracked.observe(filled(9, 5)).unwrap(), Position(5), "3/1 has drawn none of it");
        assert!(!tracked.is_held());
        assert_eq!(tracked.observe(filled(9, 5)).unwrap(), Position(5));
        assert_eq!(tracked.observe(filled(9, 9)).unwrap(), Position(9));
        assert_eq!(tracked.undecided(), 0);
    }

    #[test]
    fn a_log_that_goes_back_is_never_believed() {
        let mut tracked = SafePosition::default();
        observed(&mut tracked, 5, &[]);
        assert_eq!(tracked.observe(sample(4, &[])), Err(WentBack { from: 5, to: 4 }));
    }

    #[test]
    fn any_number_of_samples_takes_little_memory_and_loses_none_of_the_oldest() {
        let mut tracked = SafePosition::default();
        for last in 1..10_000 {
            assert_eq!(observed(&mut tracked, last, &["3/1", &format!("4/{last}")]), 0);
        }
        assert!(tracked.pending.len() <= MOST_PENDING);
        assert_eq!(observed(&mut tracked, 10_000, &["5/1"]), 9_999);
    }

    #[test]
    fn the_overtake_limit_waits_for_all_but_the_slow() {
        let mut tracked = SafePosition::default();
        let overtake_limit =
            |tracked: &SafePosition| tracked.overtake_limit(|writer| writer == "3/1").0;
        observed(&mut tracked, 5, &["3/1", "4/1"]);
        assert_eq!(overtake_limit(&tracked), 0, "4/1 may have drawn one of them");
        observed(&mut tracked, 7, &["3/1", "5/1"]);
        assert_eq!(overtake_limit(&tracked), 5);
        assert_eq!(observed(&mut tracked, 8, &["3/1"]), 0);
        assert_eq!(overtake_limit(&tracked), 8, "nobody else was there when 8 was drawn");
        assert_eq!(tracked.overtake_limit(|_| false).0, 0);
        assert_eq!(observed(&mut tracked, 9, &[]), 9);
        assert_eq!(overtake_limit(&tracked), 9);
    }

    #[test]
    fn a_slow_transaction_never_keeps_the_overtake_limit_from_moving() {
        let mut tracked = SafePosition::default();
        for last in 2..10_000_i64 {
            // Each of the others is seen at three samples.
            let others = [last - 1, last, last + 1].map(|n| format!("4/{n}"));
            let writers = ["3/1", &others[0], &others[1], &others[2]];
            assert_eq!(observed(&mut tracked, last, &writers), 0);
            let overtake_limit = tracked.overtake_limit(|writer| writer == "3/1").0;
            assert!(overtake_limit >= last - 3 || last < 6, "at {last}: {overtake_limit}");
        }
        assert!(tracked.pending.len() <= MOST_PENDING);
        assert_eq!(observed(&mut tracked, 10_000, &["5/1"]), 9_999);
    }

    /// What a transaction of the model does next.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Insert(usize),
        Prepare(usize),
        Commit(usize),
        RollBack(usize),
        Sample,
        SampleWithoutLocks,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..6_usize).prop_map(Step::Insert),
            1 => (0..6_usize).prop_map(Step::Prepare),
            2 => (0..6_usize).prop_map(Step::Commit),
            1 => (0..6_usize).prop_map(Step::RollBack),
            3 => Just(Step::Sample),
            3 => Just(Step::SampleWithoutLocks),
        ];
        proptest::collection::vec(step, 1..80)
    }

    #[derive(Debug, Default, Clone)]
    struct Session {
        transaction: u32,
        prepared: bool,
        drawn: Vec<i64>,
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        /// A log with writers, as the server shows it: nothing at or below a
        /// position that was called safe may still be open.
        #[test]
        fn nothing_open_is_ever_at_or_below_the_safe_position(steps in steps()) {
            let mut sessions = vec![Session::default(); 6];
            let mut drawn = 0_i64;
            let mut visible = BTreeSet::new();
            let mut tracked = SafePosition::default();
            let name = |n: usize, session: &Session| if session.prepared {
                format!("-1/{}", 700 + n as u32 + 10 * session.transaction)
            } else {
                format!("{n}/{}", session.transaction)
            };
            for step in steps {
                match step {
                    Step::Insert(n) if !sessions[n].prepared => {
                        drawn += 1;
                        sessions[n].drawn.push(drawn);
                    }
                    Step::Prepare(n) if !sessions[n].drawn.is_empty() => sessions[n].prepared = true,
                    Step::Commit(n) | Step::RollBack(n) => {
                        if matches!(step, Step::Commit(_)) {
                            visible.extend(sessions[n].drawn.iter().copied());
                        }
                        let transaction = sessions[n].transaction + 1;
                        sessions[n] = Session { transaction, ..Session::default() };
                    }
                    Step::Insert(_) | Step::Prepare(_) | Step::Sample | Step::SampleWithoutLocks => {}
                }
                let writers: BTreeSet<String> = sessions.iter().enumerate()
                    .filter(|(_, session)| !session.drawn.is_empty())
                    .map(|(n, session)| name(n, session))
                    .collect();
                if matches!(step, Step::Sample | Step::SampleWithoutLocks) {
                    let nobody = writers.is_empty() && matches!(step, Step::Sample);
                    let mut filled_to = tracked.decided();
                    while visible.contains(&(filled_to + 1)) {
                        filled_to += 1;
                    }
                    let sample = Sample {
                        last_position: drawn,
                        filled_to,
                        writers: matches!(step, Step::Sample).then_some(writers),
                        last_event: (nobody && drawn != tracked.decided()).then_some(drawn),
                    };
                    let safe = tracked.observe(sample).unwrap();
                    let open = sessions.iter().flat_map(|session| &session.drawn).min();
                    prop_assert!(open.is_none_or(|open| *open > safe.0), "{open:?} {safe}");
                    if nobody {
                        prop_assert_eq!(safe.0, drawn);
                    }
                }
            }
        }
    }
}
