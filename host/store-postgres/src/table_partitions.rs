//! What becomes of the log's partitions: pure, from one reading of them.
//!
//! The partition that events are appended to is ended when it is old or large
//! enough, so that what may go can go by whole partitions. A fraction of what is
//! kept is enough: then the log is kept by that fraction too long, and there are
//! few partitions, which every statement that reads the log has to lock. A group
//! that is behind makes that no worse, because the fraction is one of what is
//! there.

use std::time::Duration;

use jiff::Timestamp;

use event_host_core::event::{GroupName, Position};
use event_host_store::{LogPin, Retention};

/// How many positions a partition has room for, as in the schema.
pub(super) const WIDTH: i64 = 10_000_000_000;

/// How many parts the kept log has.
const PARTS: u64 = 8;

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Partition {
    /// Which; none for the default one.
    pub(super) number: Option<i64>,
    /// What it takes on disk, in all.
    pub(super) bytes: u64,
    /// What it holds, if it holds anything.
    pub(super) events: Option<Span>,
}

/// The events of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    /// When the first one was published.
    pub(super) since: Timestamp,
    /// When the last one was.
    pub(super) until: Timestamp,
    /// The last one.
    pub(super) last: Position,
}

/// What the log is like.
#[derive(Debug, Clone)]
pub(super) struct LogState {
    /// The server's time.
    pub(super) now: Timestamp,
    /// The position that is drawn next.
    pub(super) coming: i64,
    /// In any order.
    pub(super) partitions: Vec<Partition>,
    /// The group that is furthest behind, and the position at or below which it
    /// needs nothing; none without groups.
    pub(super) behind: Option<(GroupName, Position)>,
}

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Make this partition, to have it when it is to begin.
    pub(super) make: Option<i64>,
    /// Have events stand in this one from now on.
    pub(super) begin: Option<i64>,
    /// Empty these, in this order, each with the position of its last event.
    pub(super) empty: Vec<(Option<i64>, Position)>,
    /// Drop these, which are empty, or will be by then.
    pub(super) drop: Vec<i64>,
    /// What cannot go yet.
    pub(super) pinned: Option<LogPin>,
}

impl LogState {
    /// What is to be done under a retention.
    pub(super) fn plan(&self, retention: &Retention) -> Plan {
        if retention.is_forever() {
            return Plan::default();
        }
        let current = self.coming.div_euclid(WIDTH);
        let is_there = self.has(current);
        let mut plan =
            Plan { make: (!self.has(current + 1)).then_some(current + 1), ..Plan::default() };
        let in_use = if is_there { Some(current) } else { None };
        let used = self.partitions.iter().find(|partition| partition.number == in_use);
        if !is_there || used.is_some_and(|partition| self.is_to_end(partition, retention)) {
            plan.begin = Some(current + 1);
        }
        // Nothing more is drawn in these.
        let is_over = |number: Option<i64>| match number {
            Some(number) => number < current,
            None => is_there,
        };
        let mut over: Vec<(&Partition, Span)> = self
            .partitions
            .iter()
            .filter(|partition| is_over(partition.number))
            .filter_map(|partition| Some((partition, partition.events?)))
            .collect();
        over.sort_by_key(|(_, events)| events.last);
        let mut bytes = self.bytes();
        for (partition, events) in over {
            let is_old = retention.max_age.is_some_and(|age| self.age(events.until) >= age);
            if !is_old && retention.max_bytes.is_none_or(|most| bytes <= most) {
                break;
            }
            bytes = bytes.saturating_sub(partition.bytes);
            match (&mut plan.pinned, &self.behind) {
                // The oldest go first, or none.
                (Some(pin), _) => pin.bytes += partition.bytes,
                (pinned, Some((group, position))) if *position < events.last => {
                    let (group, position) = (group.clone(), *position);
                    let bytes = partition.bytes;
                    *pinned = Some(LogPin { group, position, bytes, bytes_is_at_least: false });
                }
                _ => plan.empty.push((partition.number, events.last)),
            }
        }
        let emptied = |number| plan.empty.iter().any(|(emptied, _)| *emptied == number);
        let is_empty =
            |partition: &&Partition| partition.events.is_none() || emptied(partition.number);
        let empty = self.partitions.iter().filter(is_empty).filter_map(|p| p.number);
        plan.drop = empty.filter(|number| *number < current).collect();
        plan
    }

    /// Whether a partition is there.
    pub(super) fn has(&self, number: i64) -> bool {
        self.partitions.iter().any(|partition| partition.number == Some(number))
    }

    /// Whether the partition that is in use is large or old enough.
    fn is_to_end(&self, partition: &Partition, retention: &Retention) -> bool {
        let Some(events) = partition.events else { return false };
        let is_old = retention.max_age.is_some_and(|age| {
            let oldest = self.partitions.iter().filter_map(|p| p.events).map(|e| e.since).min();
            let kept = oldest.map_or(age, |oldest| age.max(self.age(oldest)));
            let part = kept.checked_div(PARTS as u32).unwrap_or_default();
            self.age(events.since) >= part
        });
        let is_large = retention
            .max_bytes
            .is_some_and(|most| partition.bytes >= most.max(self.bytes()) / PARTS);
        is_old || is_large
    }

    /// What the events take on disk; not what a partition takes that has none.
    fn bytes(&self) -> u64 {
        let with_events = self.partitions.iter().filter(|partition| partition.events.is_some());
        with_events.map(|partition| partition.bytes).sum()
    }

    fn age(&self, then: Timestamp) -> Duration {
        self.now.duration_since(then).try_into().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1_000_000;
    const WEEK: Duration = Duration::from_secs(100);

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    /// A partition whose events were published from so many seconds ago on.
    fn partition(number: i64, bytes: u64, ages: Option<(i64, i64)>) -> Partition {
        let last = Position(number * WIDTH + 9);
        let events = ages.map(|(since, until)| Span {
            since: at(NOW - since),
            until: at(NOW - until),
            last,
        });
        Partition { number: Some(number), bytes, events }
    }

    fn elsewhere(events: Option<Span>) -> Partition {
        Partition { number: None, bytes: 1, events }
    }

    fn log_state(coming: i64, partitions: Vec<Partition>, behind: Option<(&str, i64)>) -> LogState {
        let behind = behind.map(|(name, at)| (name.parse().unwrap(), Position(at)));
        LogState { now: at(NOW), coming, partitions, behind }
    }

    fn by_age(age: Duration) -> Retention {
        Retention { max_age: Some(age), max_bytes: None }
    }

    fn by_bytes(bytes: u64) -> Retention {
        Retention { max_age: None, max_bytes: Some(bytes) }
    }

    #[test]
    fn a_log_that_is_kept_for_ever_is_left_alone() {
        let old = vec![partition(0, 5, Some((900, 800))), partition(1, 5, Some((700, 0)))];
        assert_eq!(log_state(WIDTH + 10, old, None).plan(&Retention::FOREVER), Plan::default());
    }

    #[test]
    fn what_all_groups_are_through_with_goes_when_its_last_event_is_old_enough() {
        let log = |until| {
            let over = partition(0, 5, Some((300, until)));
            let rest = vec![partition(1, 5, Some((1, 0))), partition(2, 1, None), elsewhere(None)];
            log_state(WIDTH + 10, [vec![over], rest].concat(), Some(("g", WIDTH + 3)))
        };
        assert_eq!(log(99).plan(&by_age(WEEK)), Plan::default());
        let plan = log(100).plan(&by_age(WEEK));
        let gone = Plan { empty: vec![(Some(0), Position(9))], drop: vec![0], ..Plan::default() };
        assert_eq!(plan, gone);
    }

    #[test]
    fn a_group_that_is_behind_keeps_what_it_needs_and_all_above() {
        let partitions = vec![
            partition(0, 5, Some((900, 800))),
            partition(1, 7, Some((800, 700))),
            partition(2, 11, Some((700, 600))),
            partition(3, 13, Some((1, 0))),
            partition(4, 1, None),
        ];
        let plan =
            log_state(3 * WIDTH + 10, partitions, Some(("slow", WIDTH + 8))).plan(&by_age(WEEK));
        assert_eq!(plan.empty, [(Some(0), Position(9))]);
        let pin = LogPin {
            group: "slow".parse().unwrap(),
            position: Position(WIDTH + 8),
            bytes: 18,
            bytes_is_at_least: false,
        };
        assert_eq!(plan.pinned, Some(pin));
    }

    #[test]
    fn a_log_that_is_too_large_loses_as_much_as_it_must() {
        let partitions = vec![
            partition(0, 40, Some((9, 8))),
            partition(1, 40, Some((8, 7))),
            partition(2, 40, Some((7, 6))),
            partition(3, 1, Some((1, 0))),
            partition(4, 1_000, None),
        ];
        let log = log_state(3 * WIDTH + 10, partitions, None);
        let empty = |most| log.plan(&by_bytes(most)).empty.len();
        assert_eq!([121, 120, 81, 80, 0].map(empty), [0, 1, 1, 2, 3]);
    }

    #[test]
    fn a_partition_ends_at_an_eighth_of_what_is_kept() {
        let ends = |since, bytes, retention: &Retention| {
            let partitions = vec![partition(0, bytes, Some((since, 0))), partition(1, 1, None)];
            log_state(10, partitions, None).plan(retention).begin
        };
        assert_eq!(ends(12, 0, &by_age(WEEK)), None);
        assert_eq!(ends(13, 0, &by_age(WEEK)), Some(1));
        assert_eq!(ends(1, 99, &by_bytes(800)), None);
        assert_eq!(ends(1, 100, &by_bytes(800)), Some(1));
        // Where a group has kept eight times as much, partitions are that much
        // larger.
        let partitions = vec![
            partition(0, 1, Some((800, 700))),
            partition(1, 1, Some((99, 0))),
            partition(2, 1, None),
        ];
        assert_eq!(log_state(WIDTH + 10, partitions, None).plan(&by_age(WEEK)).begin, None);
    }

    #[test]
    fn an_empty_partition_never_ends_and_the_next_one_is_always_there() {
        let plan =
            log_state(1, vec![partition(0, 1, None), elsewhere(None)], None).plan(&by_age(WEEK));
        assert_eq!(plan, Plan { make: Some(1), ..Plan::default() });
    }

    #[test]
    fn a_sequence_that_somebody_moved_comes_back_into_a_partition() {
        let span =
            Span { since: at(NOW - 900), until: at(NOW - 800), last: Position(7 * WIDTH + 3) };
        let partitions = vec![partition(0, 5, Some((950, 900))), elsewhere(Some(span))];
        let moved = log_state(7 * WIDTH + 4, partitions.clone(), None).plan(&by_age(WEEK));
        assert_eq!((moved.make, moved.begin), (Some(8), Some(8)));
        assert_eq!(moved.empty, [(Some(0), Position(9))], "what is in use stays");
        let back = [partitions, vec![partition(8, 1, None)]].concat();
        let plan = log_state(8 * WIDTH, back, None).plan(&by_age(WEEK));
        assert_eq!(plan.empty, [(Some(0), Position(9)), (None, span.last)]);
        assert_eq!((plan.make, plan.begin, plan.drop), (Some(9), None, vec![0]));
    }

    proptest! {
        /// Whatever the log looks like, what goes is what no group needs, and its
        /// oldest part.
        #[test]
        fn never_an_event_above_a_cursor(
            ages in proptest::collection::vec((0..300_i64, 0..50_u64), 1..12),
            cursor in 0..12_i64,
            most in proptest::option::of(0..300_u64),
            age in proptest::option::of(0..300_u64),
        ) {
            let mut oldest = 300;
            let mut partitions = Vec::new();
            for (number, (age, bytes)) in (0_i64..).zip(&ages) {
                oldest = oldest.min(*age);
                partitions.push(partition(number, *bytes, Some((oldest, oldest))));
            }
            let current = partitions.len() as i64 - 1;
            let behind = cursor * WIDTH + 5;
            let retention = Retention { max_age: age.map(Duration::from_secs), max_bytes: most };
            let plan = log_state(current * WIDTH + 10, partitions.clone(), Some(("g", behind))).plan(&retention);
            for (index, (number, last)) in plan.empty.iter().enumerate() {
                prop_assert!(last.0 <= behind);
                prop_assert_eq!(*number, Some(index as i64), "the oldest first, and none left out");
                prop_assert!(number.unwrap() < current);
            }
            for number in plan.drop {
                prop_assert!(plan.empty.iter().any(|(emptied, _)| *emptied == Some(number)));
            }
        }
    }
}
