//! `[ingest]`: what events that come in by HTTP may come to, and how they are published.

use std::time::Duration;

use super::section::Section;
use super::value::{MILLISECOND, YEAR, show_size};
use event_host_ingest::Settings;
use event_host_store_postgres::MOST_INGESTING;

/// The longest wait for an answer, and for more requests of a commit.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);
const LONGEST_LINGER: Duration = Duration::from_secs(1);

/// Reads the table.
pub(super) fn ingest(mut section: Section<'_>) -> Settings {
    let defaults = Settings::default();
    let [max_event_at, queue_at, require_origin_at] = ["max_event", "queue", "require_origin"]
        .map(|key| section.entry(key).map(|entry| entry.at));
    let max_body = section.size("max_body", "1KiB"..="1GiB");
    let max_event = section.size("max_event", "1KiB"..="1GiB");
    let queue = section.size("queue", "1KiB"..="64GiB");
    let origins = section.texts("origins", "[\"https://sender.example.com\"]");
    let origins: Vec<String> = origins
        .into_iter()
        .flat_map(|(_, origins)| origins.into_iter().flatten())
        .map(|origin| origin.value)
        .collect();
    let settings = Settings {
        max_body: max_body.unwrap_or(defaults.max_body),
        max_event: max_event.unwrap_or(defaults.max_event),
        max_events: section.integer("max_events", 1..=10_000).unwrap_or(defaults.max_events),
        queue: queue.unwrap_or(defaults.queue),
        timeout: section
            .duration("timeout", MILLISECOND * 100..=LONGEST_TIMEOUT)
            .unwrap_or(defaults.timeout),
        linger: section
            .duration("linger", Duration::ZERO..=LONGEST_LINGER)
            .unwrap_or(defaults.linger),
        connections: section
            .integer("connections", 1..=MOST_INGESTING)
            .unwrap_or(defaults.connections),
        dedup: section.duration("dedup", Duration::ZERO..=YEAR).map_or(defaults.dedup, known_for),
        dedup_max: section.integer("dedup_max", 1..=1_000_000_000).unwrap_or(defaults.dedup_max),
        rate: section.number("rate", 0.001..=1_000_000_000.0, "1000"),
        require_origin: section.boolean("require_origin").unwrap_or(defaults.require_origin),
        min_free: section
            .size("min_free", "0B"..="1PiB")
            .map_or(defaults.min_free, |bytes| bytes as u64),
        max_log: section.size("max_log", "1MiB"..="1PiB").map(|bytes| bytes as u64),
        stamp: section.boolean("stamp").unwrap_or(defaults.stamp),
        origins,
        ..defaults
    };
    if let Some(at) = max_event_at.or(section.has("max_body").then(|| section.at()))
        && settings.max_event > settings.max_body
    {
        section.problem(
            at,
            format!(
                "`max_event` ({}) is larger than `max_body` ({}), which is all that a request may have: lower `max_event` or raise `max_body`",
                show_size(settings.max_event),
                show_size(settings.max_body)
            ),
        );
    }
    if let Some(at) = queue_at.or(section.has("max_body").then(|| section.at()))
        && settings.max_body > settings.queue
    {
        section.problem(
            at,
            format!(
                "`max_body` ({}) is larger than `queue` ({}), which is all that requests take together: lower `max_body` or raise `queue`",
                show_size(settings.max_body),
                show_size(settings.queue)
            ),
        );
    }
    if let Some(at) = require_origin_at
        && settings.require_origin
        && settings.origins.is_empty()
    {
        section.problem(
            at,
            "`require_origin` lets nobody send without `origins`: write those that may, such as `origins = [\"https://sender.example.com\"]`",
        );
    }
    section.finish();
    settings
}

/// Nothing is known for no time.
fn known_for(window: Duration) -> Option<Duration> {
    (!window.is_zero()).then_some(window)
}
