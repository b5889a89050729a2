//! Results on stdout: text, tables, JSON.
//!
//! A reader that goes away, such as `head`, ends the program quietly.

use std::io::{self, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use serde::Serialize;

use crate::failure::storable;

/// Writes one line to stdout.
///
/// # Errors
/// When stdout cannot be written.
pub(super) fn line(text: impl AsRef<str>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref().as_bytes())?;
    out.write_all(b"\n")
}

/// Writes a value as JSON, one line for people to pipe.
///
/// # Errors
/// When stdout cannot be written.
pub(super) fn json(value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
    line(text)
}

/// A table with these columns.
#[must_use]
pub(super) fn table<'a>(columns: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(columns.into_iter().map(str::to_uppercase));
    table
}

/// Writes a table without the blanks that pad its last column.
///
/// # Errors
/// When stdout cannot be written.
pub(super) fn print_table(table: &Table) -> io::Result<()> {
    for row in table.lines() {
        line(row.trim_end())?;
    }
    Ok(())
}

/// One line of a text that a guest or an event brought, safe for a terminal.
#[must_use]
pub(super) fn short(text: &str, max: usize) -> String {
    let clean = storable(text, 4 * max).replace(['\n', '\t'], " ");
    if clean.chars().count() <= max {
        return clean;
    }
    clean.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

/// A number of seconds as people say it.
#[must_use]
pub(super) fn seconds(seconds: f64) -> String {
    if seconds < 10.0 {
        return format!("{seconds:.1}s");
    }
    let whole = seconds as u64;
    match whole {
        0..120 => format!("{whole}s"),
        120..7_200 => format!("{}m", whole / 60),
        7_200..172_800 => format!("{}h", whole / 3_600),
        _ => format!("{}d", whole / 86_400),
    }
}
