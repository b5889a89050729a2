//! Logs: text or JSON on stderr, quiet by default.
//!
//! At the default level the host says that it starts, leads, stops, and what
//! became a dead letter, and handlers' own lines from `info` on. Each attempt is
//! one span with group, position, event id and attempt, so that every line
//! written in it carries them.

use std::io::IsTerminal;

use tracing::Metadata;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

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
/// whom the host says itself, once.
fn from_level_on(level: &str) -> EnvFilter {
    EnvFilter::new(format!(
        "warn,sqlx::postgres::notice=error,sqlx_core::pool=error,event_host={level},guest={level}"
    ))
}

/// A log filter that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{filter}` is no log filter: {reason}; use a level such as `debug`, or `event_host=debug,guest=warn`"
)]
pub struct InvalidFilter {
    filter: String,
    reason: String,
}

/// Starts logging to stderr, for the whole process. A second call does nothing.
///
/// # Errors
/// When the filter cannot be parsed.
pub fn start(format: LogFormat, filter: Option<&str>) -> Result<(), InvalidFilter> {
    let filter = match filter {
        None => from_level_on("info"),
        Some(level) if level.parse::<tracing::Level>().is_ok() => from_level_on(level),
        Some(text) => EnvFilter::try_new(text).map_err(|reason| InvalidFilter {
            filter: text.to_owned(),
            reason: reason.to_string(),
        })?,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(FmtSpan::NONE)
        .with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder
            .with_ansi(std::io::stderr().is_terminal())
            .finish()
            .with(filter_fn(is_no_secret))
            .try_init(),
        LogFormat::Json => {
            builder.json().flatten_event(true).finish().with(filter_fn(is_no_secret)).try_init()
        }
    };
    // Somebody else, such as a test, logs already: their choice stands.
    drop(started);
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
