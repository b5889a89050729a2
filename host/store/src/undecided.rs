//! What a group has passed though it is not decided: positions that open
//! transactions may have drawn.
//!
//! A group that overtakes reads the log past the safe position. What that read saw
//! is handled like any other event; every other position of what it read is *undecided*, or
//! *open* for short:
//! it will hold an event of a transaction that commits late, or never hold one.
//! Positions alone tell which, whichever transaction drew them: an event that shows at an
//! open position is late, and no other is. A position is no longer open once its
//! event was seen, or once the safe position is past it and it still holds none.

use serde::Serialize;

use event_host_core::event::Position;

/// Positions next to each other that are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct UndecidedRange {
    /// The first of them.
    pub first: Position,
    /// The last of them; never below the first.
    pub last: Position,
}

/// Every position that is open: ranges in order, of which no two touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UndecidedRanges(Vec<UndecidedRange>);

impl UndecidedRanges {
    /// Nothing is open.
    pub const NONE: Self = Self(Vec::new());

    /// The positions of all these ranges, in whichever order they come. One whose
    /// last position is below its first is none.
    #[must_use]
    pub fn of(ranges: impl IntoIterator<Item = UndecidedRange>) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().filter(|r| r.first <= r.last).collect();
        sorted.sort_unstable_by_key(|range| range.first);
        let mut merged: Vec<UndecidedRange> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match merged.last_mut() {
                Some(before) if range.first.0 <= before.last.0.saturating_add(1) => {
                    before.last = before.last.max(range.last);
                }
                _ => merged.push(range),
            }
        }
        Self(merged)
    }

    /// Whether nothing is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many ranges they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The ranges, in order.
    #[must_use]
    pub fn as_slice(&self) -> &[UndecidedRange] {
        &self.0
    }

    /// The first open position.
    #[must_use]
    pub fn first(&self) -> Option<Position> {
        self.0.first().map(|range| range.first)
    }

    /// The last open position.
    #[must_use]
    pub fn last(&self) -> Option<Position> {
        self.0.last().map(|range| range.last)
    }

    /// What of it is at or below a position.
    #[must_use]
    pub fn up_to(&self, position: Position) -> Self {
        let below = self.0.iter().take_while(|range| range.first <= position);
        Self(
            below
                .map(|range| UndecidedRange { last: range.last.min(position), ..*range })
                .collect(),
        )
    }

    /// What of it is above a position.
    #[must_use]
    pub fn above(&self, position: Position) -> Self {
        let next = Position(position.0.saturating_add(1));
        let above = self.0.iter().skip_while(|range| range.last <= position);
        Self(above.map(|range| UndecidedRange { first: range.first.max(next), ..*range }).collect())
    }

    /// The positions that are open in either.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        Self::of(self.0.into_iter().chain(other.0))
    }

    /// Without these positions, which are in order.
    #[must_use]
    pub fn without(&self, positions: &[Position]) -> Self {
        let mut positions = positions.iter().copied().peekable();
        let mut left = Vec::with_capacity(self.0.len());
        for range in &self.0 {
            let mut first = range.first;
            while let Some(position) = positions.next_if(|position| *position <= range.last) {
                if position < first {
                    continue;
                }
                left.push(UndecidedRange { first, last: Position(position.0 - 1) });
                first = Position(position.0.saturating_add(1));
            }
            left.push(UndecidedRange { first, last: range.last });
        }
        left.retain(|range| range.first <= range.last);
        Self(left)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn ranges(pairs: &[(i64, i64)]) -> UndecidedRanges {
        let range =
            |&(first, last)| UndecidedRange { first: Position(first), last: Position(last) };
        UndecidedRanges::of(pairs.iter().map(range))
    }

    fn positions(ranges: &UndecidedRanges) -> BTreeSet<i64> {
        ranges.as_slice().iter().flat_map(|range| range.first.0..=range.last.0).collect()
    }

    #[test]
    fn ranges_that_touch_are_one() {
        assert_eq!(ranges(&[(5, 6), (1, 2), (3, 3), (9, 8)]), ranges(&[(1, 3), (5, 6)]));
        assert_eq!(ranges(&[(1, 9), (2, 3)]), ranges(&[(1, 9)]));
        assert_eq!(ranges(&[(2, 1)]), UndecidedRanges::NONE);
    }

    #[test]
    fn what_was_seen_is_no_longer_open_and_all_else_is() {
        let seen = [3, 5, 8, 30].map(Position);
        let open = ranges(&[(3, 8), (20, 21)]);
        assert_eq!(open.without(&seen), ranges(&[(4, 4), (6, 7), (20, 21)]));
        assert_eq!(open.without(&[]), open);
        assert_eq!(ranges(&[(7, 7)]).without(&[Position(7)]), UndecidedRanges::NONE);
    }

    fn some_ranges() -> impl Strategy<Value = UndecidedRanges> {
        proptest::collection::vec((1..40_i64, 0..5_i64), 0..8).prop_map(|pairs| {
            ranges(&pairs.iter().map(|(first, more)| (*first, first + more)).collect::<Vec<_>>())
        })
    }

    proptest! {
        /// Held against sets of single positions.
        #[test]
        fn ranges_are_the_positions_in_them(
            one in some_ranges(),
            other in some_ranges(),
            cut in 0..45_i64,
            seen in proptest::collection::btree_set(0..45_i64, 0..20),
        ) {
            let is_whole = |ranges: &UndecidedRanges| {
                ranges.as_slice().windows(2).all(|two| two[0].last.0 + 1 < two[1].first.0)
            };
            let (set, of_other) = (positions(&one), positions(&other));
            let and = one.clone().and(other);
            prop_assert!(is_whole(&and));
            prop_assert_eq!(positions(&and), set.union(&of_other).copied().collect());
            let seen_positions: Vec<_> = seen.iter().copied().map(Position).collect();
            let without = one.without(&seen_positions);
            prop_assert!(is_whole(&without));
            prop_assert_eq!(positions(&without), set.difference(&seen).copied().collect());
            let (below, above) = (one.up_to(Position(cut)), one.above(Position(cut)));
            prop_assert!(positions(&below).iter().all(|position| *position <= cut));
            prop_assert!(positions(&above).iter().all(|position| *position > cut));
            prop_assert_eq!(below.and(above), one);
        }
    }
}
