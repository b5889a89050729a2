//! Places in the log whose events are gone: what an operator is told of them.

use std::fmt;

use tracing::{info, warn};

use crate::{Start, StoreError};
use event_host_core::event::{GroupName, Position};

/// Where a cursor was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sought {
    /// The cursor: the next event is the first one above it.
    pub position: Position,
    /// What retention has let go of that would have come next.
    pub gone: Option<Gone>,
}

/// Events that a place in the log would bring, and that are no longer there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// Every event at or below this position is gone.
    pub up_to: Position,
    /// How many of them stood above the place, at most; 0 where that is not known. A
    /// shared store may have estimated it.
    pub events: i64,
    /// The first event that is there above the place; none while there is none.
    pub first: Option<Position>,
    /// The place was given as a time, and only what is gone could tell whether
    /// something of it belongs there.
    pub is_uncertain: bool,
}

/// What a store knows of the beginning of its log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beginning {
    /// Up to where events went, and how many: 0 and 0 while none did.
    pub gone: Position,
    /// The number of events that are gone.
    pub events: i64,
    /// The first event that is there.
    pub first: Option<Position>,
}

impl Beginning {
    /// What is gone of what a place would bring, where a cursor is put for it.
    pub fn gone_above(&self, start: Start, place: Position) -> Option<Gone> {
        let before_first = self.first.map_or(Position(i64::MAX), |first| Position(first.0 - 1));
        let up_to = self.gone.min(before_first);
        if up_to == Position::ZERO {
            return None;
        }
        let is_uncertain = match start {
            Start::Latest => return None,
            // Something older than the time is there, and so what is gone was older still.
            Start::Time(_) if place > before_first => return None,
            Start::Time(_) => place >= up_to,
            Start::Earliest | Start::Position(_) if place >= up_to => return None,
            Start::Earliest | Start::Position(_) => false,
        };
        let events = self.events.min(up_to.0 - place.0).max(0);
        Some(Gone { up_to, events, first: self.first, is_uncertain })
    }
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "retention let go of every event up to position {}", self.up_to)?;
        match (self.is_uncertain, self.events) {
            (true, _) => f.write_str(", of which some may belong there")?,
            (false, 0) => {}
            (false, 1) => f.write_str(", of which at most 1 was after this place")?,
            (false, events) => {
                write!(f, ", of which at most {events} were after this place")?;
            }
        }
        match self.first {
            Some(first) => write!(f, "; the first that is there stands at {first}"),
            None => f.write_str("; none is there now"),
        }
    }
}

/// Refuses a place of which something is gone, where the place itself is wanted. The
/// earliest is whatever is there.
pub fn exactly(to: Start, gone: Option<&Gone>) -> Result<(), StoreError> {
    match gone {
        Some(gone) if to != Start::Earliest => Err(StoreError::Refused(format!(
            "the log no longer has what comes next there: {gone}; nothing was moved; use `earliest`, a position from {} on, or leave `--exact` out",
            gone.up_to
        ))),
        _ => Ok(()),
    }
}

/// Refuses to have a group go on that kept nothing in the log, where events are gone that
/// it has not handled and nobody has accepted that.
pub fn without_what_is_gone(
    group: &GroupName,
    gone: Option<&Gone>,
    accepted: bool,
) -> Result<(), StoreError> {
    match gone {
        Some(gone) if !accepted => Err(StoreError::Refused(format!(
            "group `{group}` kept nothing in the log, and something is gone that it has not handled: {gone}; `host groups resume {group} --accept-loss` goes on without that"
        ))),
        _ => Ok(()),
    }
}

/// Says where a new group begins, if that is not where it was told to.
pub fn say_of_new_group(name: &GroupName, start: Start, gone: Option<&Gone>) {
    match gone {
        None => {}
        Some(gone) if start == Start::Earliest => {
            info!(group = %name, "the group is new, and begins with what is left of the log: {gone}");
        }
        Some(gone) => {
            warn!(group = %name, "the group is new, and cannot begin where `start` says: {gone}");
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    const TIME: Start = Start::Time(Timestamp::UNIX_EPOCH);

    fn gone(start: Start, place: i64, first: Option<i64>) -> Option<(i64, i64, bool)> {
        let beginning = Beginning { gone: Position(10), events: 8, first: first.map(Position) };
        let gone = beginning.gone_above(start, Position(place))?;
        assert_eq!(gone.first, first.map(Position));
        Some((gone.up_to.0, gone.events, gone.is_uncertain))
    }

    #[test]
    fn a_place_below_what_is_left_is_told_with_what_is_gone_above_it() {
        let at = |place| Start::Position(Position(place));
        assert_eq!(gone(at(3), 3, Some(12)), Some((10, 7, false)));
        assert_eq!(gone(Start::Earliest, 0, Some(12)), Some((10, 8, false)));
        assert_eq!(gone(at(9), 9, None), Some((10, 1, false)));
        assert_eq!(gone(at(10), 10, Some(12)), None);
        assert_eq!(gone(at(11), 11, Some(12)), None);
        assert_eq!(gone(Start::Latest, 10, None), None);
        // As after somebody put an event back: what is there is not gone.
        assert_eq!(gone(at(3), 3, Some(5)), Some((4, 1, false)));
        assert_eq!(Beginning::default().gone_above(Start::Earliest, Position::ZERO), None);
    }

    #[test]
    fn a_time_is_uncertain_where_nothing_older_is_left() {
        assert_eq!(gone(TIME, 11, Some(12)), Some((10, 0, true)), "before the first one");
        assert_eq!(gone(TIME, 12, Some(12)), None, "one that is older is there");
        assert_eq!(gone(TIME, 10, None), Some((10, 0, true)), "nothing is left");
    }

    #[test]
    fn the_earliest_is_whatever_is_there() {
        let beginning = Beginning { gone: Position(10), events: 8, first: Some(Position(12)) };
        let gone = beginning.gone_above(Start::Earliest, Position::ZERO);
        assert!(exactly(Start::Earliest, gone.as_ref()).is_ok());
        let refused = exactly(Start::Position(Position(3)), gone.as_ref()).unwrap_err().to_string();
        assert!(refused.contains("up to position 10") && refused.contains("at 12"), "{refused}");
    }
}
