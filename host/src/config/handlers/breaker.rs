//! `[handlers.NAME.breaker]`: when the group trips, because the handler fails everything.

use crate::config::section::Section;
use crate::config::value::{MILLISECOND, YEAR};
use event_host_delivery::breaker::{BreakerSettings, OnTrip};

/// Reads the table.
pub(super) fn breaker(mut section: Section<'_>) -> BreakerSettings {
    let defaults = BreakerSettings::default();
    let on_trip = section.entry("on_trip").and_then(|entry| {
        let text = section.text_of(entry, "\"pause\"")?;
        match text.value.as_str() {
            "pause" => Some(OnTrip::Pause),
            "rollback" => Some(OnTrip::Rollback),
            _ => {
                section.problem(
                    text.at,
                    format!("`on_trip` is {}: write \"pause\" or \"rollback\"", text.quoted()),
                );
                None
            }
        }
    });
    let breaker = BreakerSettings {
        events: section.integer("events", 0..=1_000_000_000).unwrap_or(defaults.events),
        attempts_after_swap: section
            .integer("attempts_after_swap", 0..=1_000_000_000)
            .unwrap_or(defaults.attempts_after_swap),
        probe_after: section
            .duration("probe_after", MILLISECOND..=YEAR)
            .unwrap_or(defaults.probe_after),
        on_trip: on_trip.unwrap_or(defaults.on_trip),
    };
    section.finish();
    breaker
}
