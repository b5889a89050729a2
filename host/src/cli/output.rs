//! Results on stdout: text, tables, JSON.
//!
//! A reader that goes away, such as `head`, ends the program quietly. Work that changes
//! something does not depend on who reads of it: it goes on ([`Said`]).

use std::io::{self, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use serde::Serialize;

use event_host_core::failure::storable;
use event_host_core::foreign;

/// Stdout cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to stdout: {0}")]
struct NotWritten(io::Error);

/// Whether it failed because the reader of stdout is gone.
pub(super) fn reader_is_gone(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| {
        error.kind() == io::ErrorKind::BrokenPipe
            && error.get_ref().is_some_and(|inner| inner.is::<NotWritten>())
    })
}

/// Writes one line to stdout, or several, [clean](foreign::clean).
///
/// # Errors
/// When stdout cannot be written.
pub(super) fn line(text: impl AsRef<str>) -> io::Result<()> {
    write(foreign::clean(text.as_ref()).as_bytes(), b"\n")
}

/// Writes bytes to stdout as they are, for another program to read.
///
/// # Errors
/// When stdout cannot be written.
pub(super) fn raw(bytes: &[u8]) -> io::Result<()> {
    write(bytes, b"").and_then(|()| io::stdout().flush())
}

fn write(bytes: &[u8], end: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    // All of it at the end of the line, which is when stdout is written.
    let written = out.write_all(bytes).and_then(|()| out.write_all(end));
    written.map_err(|error| io::Error::new(error.kind(), NotWritten(error)))
}

/// Writes a field of a listing: its name, and its value from column 16 on. The further
/// lines of a value begin there too, so none passes for a field.
///
/// # Errors
/// When stdout cannot be written.
pub(super) fn field(name: &str, value: &str) -> io::Result<()> {
    line(format!("{name:<16}{}", foreign::with_further_lines(value, &" ".repeat(16))))
}

/// What is said of work while it is done. That it cannot be said does not end the work:
/// it is an error at the end of it.
#[derive(Debug)]
#[must_use]
pub(super) struct Said(io::Result<()>);

impl Said {
    /// Nothing yet.
    pub(super) fn nothing() -> Self {
        Self(Ok(()))
    }

    /// Writes one line to stdout, unless one before could not be written.
    pub(super) fn line(&mut self, text: impl AsRef<str>) {
        if self.0.is_ok() {
            self.0 = line(text);
        }
    }

    /// The work is done.
    ///
    /// # Errors
    /// When stdout could not be written.
    pub(super) fn end(self) -> io::Result<()> {
        self.0
    }
}

/// Writes a value as JSON, in which what a terminal obeys is [escaped](foreign::json).
///
/// # Errors
/// When stdout cannot be written.
pub(super) fn json(value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
    line(foreign::json(&text))
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
    let clean = foreign::one_line(&storable(text, 4 * max)).into_owned();
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
