//! `[handlers.NAME.batch]`: how large a batch gets, and how many events one call has.

use std::time::Duration;

use crate::config::section::Section;
use crate::config::value::{MILLISECOND, YEAR, show_duration};
use event_host_delivery::group::BatchSettings;

/// Reads the table.
pub(super) fn batch(mut section: Section<'_>) -> BatchSettings {
    let defaults = BatchSettings::default();
    let [max_events_at, max_time_at, size_at, wait_at] = ["max_events", "max_time", "size", "wait"]
        .map(|key| section.entry(key).map(|entry| entry.at));
    let max_events = section.integer("max_events", 1..=100_000);
    let max_time = section.duration("max_time", MILLISECOND..=YEAR);
    let batch = BatchSettings {
        max_events: max_events.unwrap_or(defaults.max_events),
        max_time: max_time.unwrap_or(defaults.max_time),
        size: section.integer("size", 1..=10_000),
        wait: section.duration("wait", Duration::ZERO..=YEAR).unwrap_or(defaults.wait),
    };
    let by_default = |given: bool| if given { "" } else { " by default" };
    // Where one of them is wrong by itself, its default says nothing.
    let is_known = max_events.is_some() == max_events_at.is_some();
    if let (Some(at), Some(size)) = (size_at, batch.size)
        && is_known
        && size > batch.max_events
    {
        section.problem(
            at,
            format!(
                "`size` is {size}, and no more than `max_events` ({}{}) are settled at once: lower `size` or raise `max_events`",
                batch.max_events,
                by_default(max_events.is_some())
            ),
        );
    }
    let is_known = max_time.is_some() == max_time_at.is_some();
    if let Some(at) = wait_at.filter(|_| is_known && batch.wait > batch.max_time) {
        section.problem(
            at,
            format!(
                "`wait` ({}) is longer than `max_time` ({}{}), after which what is done is settled: lower `wait` or raise `max_time`",
                show_duration(batch.wait),
                show_duration(batch.max_time),
                by_default(max_time.is_some())
            ),
        );
    }
    section.finish();
    batch
}
