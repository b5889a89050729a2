//! `[handlers.NAME.retry]`: when to try again, and when to give up.

use std::time::Duration;

use crate::config::section::Section;
use crate::config::value::{YEAR, show_duration};
use event_host_core::retry::RetryPolicy;

/// Reads the table.
pub(super) fn retry(mut section: Section<'_>) -> RetryPolicy {
    let defaults = RetryPolicy::default();
    let initial_at = section.entry("initial").map(|entry| entry.at);
    let max_at = section.entry("max").map(|entry| entry.at);
    let initial = section.duration("initial", Duration::ZERO..=YEAR);
    let max = section.duration("max", Duration::ZERO..=YEAR);
    let policy = RetryPolicy {
        max_attempts: section
            .integer("max_attempts", 1..=u32::MAX)
            .unwrap_or(defaults.max_attempts),
        initial: initial.unwrap_or(defaults.initial),
        multiplier: section
            .number("multiplier", 1.0..=1_000_000.0, "2.0")
            .unwrap_or(defaults.multiplier),
        max: max.unwrap_or(defaults.max),
        jitter: section.number("jitter", 0.0..=1.0, "0.2").unwrap_or(defaults.jitter),
    };
    // Where one of them is wrong by itself, its default says nothing.
    let known = initial.is_some() == initial_at.is_some() && max.is_some() == max_at.is_some();
    if let Some(at) = initial_at.or(max_at).filter(|_| known && policy.initial > policy.max) {
        let shown = |duration, given: bool| {
            format!("{}{}", show_duration(duration), if given { "" } else { " by default" })
        };
        section.problem(
            at,
            format!(
                "`initial` ({}) is longer than `max` ({}): lower `initial` or raise `max`",
                shown(policy.initial, initial.is_some()),
                shown(policy.max, max.is_some())
            ),
        );
    }
    section.finish();
    policy
}
