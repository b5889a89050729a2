//! `[handlers.NAME.limits]`: what an instance or an attempt may use.

use crate::config::section::Section;
use crate::config::value::{MILLISECOND, YEAR};
use event_host_delivery::ordering::Ordering;
use event_host_sandbox::settings::Limits;

/// The limits, and how many attempts are made at once.
pub(super) fn limits(mut section: Section<'_>, ordering: Option<Ordering>) -> (Limits, usize) {
    let defaults = Limits::default();
    let concurrency_at = section.entry("concurrency").map(|entry| entry.at);
    let concurrency: Option<usize> = section.integer("concurrency", 1..=1_000);
    if let (Some(at), Some(2..), Some(Ordering::Total)) = (concurrency_at, concurrency, ordering) {
        section.problem(
            at,
            "`concurrency` must be 1, because with `ordering = \"total\"` events are handled one after the other: leave it out, or choose `ordering = \"key\"`",
        );
    }
    let limits = Limits {
        // Less than a page of WebAssembly is no memory.
        memory_bytes: section.size("memory", "64KiB"..="1TiB").unwrap_or(defaults.memory_bytes),
        timeout: section.duration("timeout", MILLISECOND..=YEAR).unwrap_or(defaults.timeout),
        fuel: section.integer("fuel", 1..=i64::MAX.unsigned_abs()),
        table_elements: section
            .integer("table_elements", 0..=1_000_000_000)
            .unwrap_or(defaults.table_elements),
        host_call_bytes: section
            .size("host_call", "1KiB"..="1TiB")
            .unwrap_or(defaults.host_call_bytes),
        log_bytes: section.size("log", "0B"..="1TiB").unwrap_or(defaults.log_bytes),
        log_lines_per_second: section
            .integer("log_lines_per_second", 1..=1_000_000_000)
            .unwrap_or(defaults.log_lines_per_second),
        emits: section.integer("emits", 0..=1_000_000_000).unwrap_or(defaults.emits),
        emit_bytes: section.size("emit", "0B"..="1TiB").unwrap_or(defaults.emit_bytes),
        emit_total_bytes: section
            .size("emit_total", "0B"..="1TiB")
            .unwrap_or(defaults.emit_total_bytes),
        state_value_bytes: section
            .size("state_value", "0B"..="1TiB")
            .unwrap_or(defaults.state_value_bytes),
        state_total_bytes: section
            .size("state_total", "0B"..="1TiB")
            .unwrap_or(defaults.state_total_bytes),
        state_writes: section
            .integer("state_writes", 0..=1_000_000_000)
            .unwrap_or(defaults.state_writes),
        state_keys: section
            .integer("state_keys", 0..=1_000_000_000_000)
            .unwrap_or(defaults.state_keys),
        http_requests: section
            .integer("http_requests", 0..=1_000_000_000)
            .unwrap_or(defaults.http_requests),
        http_bytes: section.size("http_bytes", "0B"..="1TiB").unwrap_or(defaults.http_bytes),
        http_connections: section
            .integer("http_connections", 1..=1_000_000)
            .unwrap_or(defaults.http_connections),
        http_timeout: section
            .duration("http_timeout", MILLISECOND..=YEAR)
            .unwrap_or(defaults.http_timeout),
    };
    section.finish();
    let ordering = ordering.unwrap_or_default();
    (limits, concurrency.unwrap_or_else(|| ordering.default_concurrency()))
}
