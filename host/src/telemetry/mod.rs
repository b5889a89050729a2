//! Logs: text or JSON on stderr, quiet by default.
//!
//! At the default level the host says that it starts, leads, stops, and what
//! became a dead letter, and handlers' own lines from `info` on. Each attempt is
//! one span with group, position, event id and attempt, so that every line
//! written in it carries them.
//!
//! No foreign text can pass for the host's: what a terminal obeys is replaced (in JSON
//! escaped), and the further lines of a message begin with `    | `, as no entry does.
//!
//! Everything that this process writes to stderr goes through here, the words of panics
//! and the errors of commands too, and is written by a thread of its own (`lines`): a
//! stderr that is full, closed, or read by nobody costs the lines and nothing else.

mod lines;
mod spinner;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lines::Lines;
use spinner::Before;
use tracing::field::Field;
use tracing::{Level, Metadata, enabled, error, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{self, FmtSpan};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use event_host_core::foreign;

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged unless a filter says otherwise: the host and the handlers from
/// a level on (`info`, unless it is said), and of the libraries below them
/// warnings. Without those of a PostgreSQL server that goes down, which come on
/// each connection, and of the listener that loses its own: what they mean for
/// whom the host says itself, once. And without those of watched folders that are gone,
/// which are looked at by their paths.
fn from_level_on(level: &str) -> EnvFilter {
    EnvFilter::new(format!(
        "warn,sqlx::postgres::notice=error,sqlx_core::pool=off,notify=error,event_host={level},guest={level}"
    ))
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum NoLog {
    /// A log filter that cannot be parsed.
    #[error(
        "`{filter}` is no log filter: {reason}; use a level such as `debug`, or `event_host=debug,guest=warn`"
    )]
    InvalidFilter {
        /// The filter.
        filter: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The system gives no thread to write it.
    #[error("cannot start the thread that writes the log: {0}")]
    NoThread(#[from] io::Error),
}

/// How long the end of the process waits at most until what it said is written: as long
/// as this only where stderr takes nothing.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long a thread that panics waits for that.
const WORDS_OF_A_PANIC: Duration = Duration::from_millis(200);

/// Whether somebody watches a terminal.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// What is to be written to stderr.
static STDERR: OnceLock<Lines> = OnceLock::new();

/// What comes before each line but the first of an entry's message.
const FURTHER_LINES: &str = "    | ";

/// Writes one line to stderr, or several, [clean](foreign::clean), as soon as it takes
/// them. Waits for nobody, and is lost where stderr cannot be written.
pub fn say(text: &str) {
    say_styled(&foreign::clean(text));
}

/// Writes lines to stderr whose styles are the host's own, and no text of anybody else.
pub fn say_styled(text: &str) {
    let line = format!("{text}\n");
    // A reader that stalls holds up that thread alone, also before the log begins. Where
    // the system gives no thread, the line is written here.
    let _ = start_writing();
    match STDERR.get() {
        Some(lines) => lines.push(line.as_bytes()),
        None => drop(io::stderr().write_all(line.as_bytes())),
    }
}

/// Waits until everything is written that was said, and a second at most: to be called
/// before the process ends.
pub fn flush() {
    spinner::end();
    flush_within(LAST_WORDS);
}

/// Whether stderr is a terminal, and the log is for people: then [`show`] shows what is
/// under way.
#[must_use]
pub fn is_watched() -> bool {
    WATCHED.load(Ordering::Relaxed)
}

/// Shows on the last line of the terminal what is under way, with a sign that turns, until
/// it is called again. Waits for nobody, and does nothing where nobody
/// [watches](is_watched). The text is one line of the host's own words.
pub fn show(under_way: Option<String>) {
    if is_watched() {
        spinner::show(under_way);
    }
}

fn flush_within(patience: Duration) {
    if let Some(lines) = STDERR.get() {
        lines.flush(patience);
    }
}

/// Where lines of the log go: each of its entries in one call.
struct Stderr(LogFormat);

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let entry = match self.0 {
            // Whose fields are clean, and which may have styles.
            LogFormat::Text => Cow::Borrowed(bytes),
            LogFormat::Json => match foreign::json(&String::from_utf8_lossy(bytes)) {
                Cow::Borrowed(_) => Cow::Borrowed(bytes),
                Cow::Owned(escaped) => Cow::Owned(escaped.into_bytes()),
            },
        };
        match STDERR.get() {
            Some(lines) => lines.push(&entry),
            None => drop(io::stderr().write_all(&entry)),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How the text format writes the fields of an entry and of a span: without anything that
/// a terminal obeys, and so that no line of theirs begins as an entry does.
fn clean_fields() -> impl for<'a> FormatFields<'a> + 'static {
    let write = |out: &mut format::Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        let value = format!("{value:?}");
        let value = foreign::with_further_lines(&value, FURTHER_LINES);
        match field.name() {
            "message" => write!(out, "{value}"),
            name => write!(out, "{}={value}", name.strip_prefix("r#").unwrap_or(name)),
        }
    };
    format::debug_fn(write).delimited(" ")
}

/// Starts the thread that writes to stderr.
fn start_writing() -> io::Result<()> {
    if STDERR.get().is_none() {
        let lines = Lines::to(Before(io::stderr()), |lost| {
            warn!(
                lines = lost,
                "lines of this log were lost: stderr did not take them, or not as fast as they came"
            );
        })?;
        // Whoever was faster has a thread too.
        drop(STDERR.set(lines));
    }
    Ok(())
}

/// What a thread says that panics. The standard library would write it at once, and wait
/// for a stderr that nobody reads.
fn say_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let message = panic.payload_as_str().unwrap_or("a panic without words");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    // Only where the environment asks for it.
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    if enabled!(Level::ERROR) {
        error!(thread, place, backtrace, "panicked: {message}");
    } else {
        say(&format!("thread `{thread}` panicked at {place}: {message}"));
    }
    // What follows may be the end of the process.
    flush_within(WORDS_OF_A_PANIC);
}

/// Starts logging to stderr, for the whole process, and has panics logged. A second call
/// does nothing.
///
/// # Errors
/// When the filter cannot be parsed, and when there is no thread to write.
pub fn start(format: LogFormat, filter: Option<&str>) -> Result<(), NoLog> {
    let filter = match filter {
        None => from_level_on("info"),
        Some(level) if level.parse::<Level>().is_ok() => from_level_on(level),
        Some(text) => EnvFilter::try_new(text).map_err(|reason| NoLog::InvalidFilter {
            filter: text.to_owned(),
            reason: reason.to_string(),
        })?,
    };
    start_writing()?;
    WATCHED.store(format == LogFormat::Text && io::stderr().is_terminal(), Ordering::Relaxed);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(FmtSpan::NONE)
        .with_writer(move || Stderr(format));
    let started = match format {
        LogFormat::Text => builder
            .with_ansi(io::stderr().is_terminal())
            .fmt_fields(clean_fields())
            .finish()
            .with(filter_fn(is_no_secret))
            .try_init(),
        LogFormat::Json => {
            builder.json().flatten_event(true).finish().with(filter_fn(is_no_secret)).try_init()
        }
    };
    if started.is_ok() {
        std::panic::set_hook(Box::new(say_panic));
    }
    // Else somebody logs already, such as a test: their choice stands.
    Ok(())
}

/// Whether an event may be logged at all, whatever the filter says. `sqlx` warns
/// of a malformed line in a password file with the whole line, password included.
fn is_no_secret(event: &Metadata<'_>) -> bool {
    !(event.target().starts_with("sqlx_postgres::options::pgpass")
        && event.fields().field("line").is_some())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use sqlx::postgres::PgConnectOptions;

    use super::*;

    /// Runs itself in a process of its own, whose environment names the file.
    #[test]
    fn a_malformed_password_file_is_not_quoted_in_the_log() {
        const NAME: &str = "telemetry::tests::a_malformed_password_file_is_not_quoted_in_the_log";
        if std::env::var_os("IN_CHILD").is_some() {
            start(LogFormat::Text, Some("sqlx=trace,sqlx_postgres=trace")).unwrap();
            "postgres://u@h/d".parse::<PgConnectOptions>().unwrap();
            flush();
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pgpass");
        // A line with a field too few, and one whose escape is warned of.
        std::fs::write(&file, "h:5432:d:hunter2\nh:5432:d:u:pass\\word\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME])
            .env("IN_CHILD", "1")
            .env("PGPASSFILE", &file)
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        assert!(log.contains("Superfluous escape"), "other warnings stay: {log}");
        assert!(!log.contains("hunter2"), "{log}");
    }
}
