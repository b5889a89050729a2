//! A cron expression in a time zone: the instants of its ticks.
//!
//! An expression names civil times, and a zone says which instants those are. Where the
//! zone puts its clock forward or back they are none or two, and then:
//! - An expression whose hours begin with `*`, such as `*/15 * * * *`, goes on as time
//!   elapses. It has no tick at a time that is skipped, and two at a time that comes
//!   twice.
//! - Any other names hours of the day. All its times that one change skips have one tick,
//!   at the first instant after the change, and a time that comes twice has a tick when it
//!   comes first.
//!
//! A change of any length is treated so: 30 minutes on Lord Howe Island, a day in Samoa.

use std::fmt;

use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use crate::cron::{CronExpression, InvalidCron};

/// When the ticks of a schedule are. Two are alike if expression and zone are.
#[derive(Debug, Clone, PartialEq)]
pub struct Timetable {
    cron: CronExpression,
    zone_name: String,
    zone: TimeZone,
}

/// What is wrong with a timetable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTimetable {
    /// The expression.
    #[error(transparent)]
    Cron(#[from] InvalidCron),
    /// The zone: it is unknown here.
    #[error(
        "there is no such time zone: write a name of the IANA database, such as \"Europe/Berlin\", \
         or \"UTC\""
    )]
    Zone,
}

/// A stretch of time in which the clock of a zone is neither put forward nor back.
struct Stretch {
    offset: Offset,
    /// The change with which it began: its instant, and the offset before it.
    begin: Option<(Timestamp, Offset)>,
    /// The instant of the change that ends it.
    end: Option<Timestamp>,
}

impl Timetable {
    /// A cron expression in a zone of the IANA database.
    ///
    /// # Errors
    /// With what is wrong, and what would be right.
    pub fn new(cron: &str, zone: &str) -> Result<Self, InvalidTimetable> {
        let cron = cron.parse()?;
        let zone_name = zone.to_owned();
        // `Etc/Unknown` is how jiff calls a zone that it does not know.
        let zone = TimeZone::get(zone).map_err(|_| InvalidTimetable::Zone)?;
        if zone.is_unknown() {
            return Err(InvalidTimetable::Zone);
        }
        Ok(Self { cron, zone_name, zone })
    }

    /// The expression, as it was written but for its case and its spaces.
    #[must_use]
    pub fn cron(&self) -> String {
        self.cron.to_string()
    }

    /// The name of the zone.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.zone_name
    }

    /// An instant as the zone writes it.
    #[must_use]
    pub fn in_zone(&self, instant: Timestamp) -> String {
        let offset = self.zone.to_offset(instant);
        let civil = offset.to_datetime(instant);
        format!("{} {offset}", civil.strftime("%Y-%m-%d %H:%M:%S"))
    }

    /// The first tick after an instant; `None` if there is none before the year 5000.
    #[must_use]
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let mut from = whole_second_after(after)?;
        loop {
            let stretch = self.stretch(from);
            if let Some(tick) = self.first_in(&stretch, from) {
                return Some(tick);
            }
            from = stretch.end?;
        }
    }

    /// The first tick of a stretch, at or after an instant of it.
    fn first_in(&self, stretch: &Stretch, from: Timestamp) -> Option<Timestamp> {
        let &Stretch { offset, begin, end } = stretch;
        let mut civil = offset.to_datetime(from);
        if let Some((change, before)) = begin.filter(|_| !self.cron.is_elapsed()) {
            // What the clock would show at the change, had it not been changed.
            let unchanged = before.to_datetime(change);
            if from == change && self.cron.first_from(unchanged).is_some_and(|next| next < civil) {
                return Some(change);
            }
            // Until then it shows, if it was put back, what it has shown already.
            civil = civil.max(unchanged);
        }
        let next = self.cron.first_from(civil)?;
        let tick = offset.to_timestamp(next).ok()?;
        end.is_none_or(|end| tick < end).then_some(tick)
    }

    /// The stretch of an instant.
    fn stretch(&self, instant: Timestamp) -> Stretch {
        let offset = self.zone.to_offset(instant);
        // Names and rules of a zone change also while its clock goes on as before.
        let end = self.zone.following(instant).find(|change| change.offset() != offset);
        let begin = whole_second_after(instant).and_then(|after| {
            self.zone.preceding(after).find_map(|change| {
                let change = change.timestamp();
                let before = change.checked_sub(SignedDuration::from_nanos(1)).ok()?;
                let before = self.zone.to_offset(before);
                (before != offset).then_some((change, before))
            })
        });
        Stretch { offset, begin, end: end.map(|change| change.timestamp()) }
    }
}

impl fmt::Display for Timetable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.cron, self.zone_name)
    }
}

/// The first instant after this one that is a whole second.
fn whole_second_after(instant: Timestamp) -> Option<Timestamp> {
    let second = instant.as_nanosecond().div_euclid(1_000_000_000) + 1;
    Timestamp::from_second(i64::try_from(second).ok()?).ok()
}

#[cfg(test)]
mod tests;
