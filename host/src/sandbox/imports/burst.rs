//! Lines of a guest that are one record of the host's log.
//!
//! A traceback is a dozen lines, each of them a write: with the host's prefix before each,
//! nobody can read it. So lines of one stream that follow one another within a moment are
//! one record, whose further lines [`telemetry`](crate::telemetry) keeps apart from the
//! host's own. The record is written once something else is to be logged, the moment is
//! over, it is large, or the attempt ends. Blank lines are left out; each other line counts
//! against the handler's rate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::{Level, Span};

use super::Profile;
use super::log::LineOrigin;

/// How long it is waited for further lines, from the first one on.
const MOMENT: Duration = Duration::from_millis(100);

/// Bytes of a record.
const RECORD_BYTES: usize = 16 << 10;

/// The records of one worker's attempts.
pub(super) struct Records {
    profile: Arc<Profile>,
    open: Arc<Mutex<Option<Burst>>>,
    last: AtomicU64,
}

/// Lines that are not written yet.
struct Burst {
    /// No other one of the worker has it.
    number: u64,
    level: Level,
    origin: LineOrigin,
    text: String,
    /// Where the first line was written: the attempt.
    span: Span,
}

impl Records {
    pub(super) fn new(profile: Arc<Profile>) -> Self {
        Self { profile, open: Arc::default(), last: AtomicU64::new(0) }
    }

    /// Adds a line, which is clean, to those before it, if they are of one stream.
    pub(super) fn add(&self, level: Level, origin: LineOrigin, line: &str) {
        if line.trim().is_empty() || !is_enabled(level) {
            return;
        }
        let mut open = lock(&self.open);
        if let Some(burst) = &mut *open {
            let fits = burst.text.len() + 1 + line.len() <= RECORD_BYTES;
            if fits && burst.level == level && burst.origin == origin {
                burst.text.push('\n');
                burst.text.push_str(line);
                return;
            }
        }
        write_open(&self.profile, &mut open);
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (text, span) = (line.to_owned(), Span::current());
        *open = Some(Burst { number, level, origin, text, span });
        drop(open);
        self.write_soon(number);
    }

    /// Writes a text, which is clean, as one record, after what came before it.
    pub(super) fn write(&self, level: Level, text: &str) {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let mut open = lock(&self.open);
        write_open(&self.profile, &mut open);
        write(&self.profile, level, &lines);
    }

    /// Writes what is not written yet.
    pub(super) fn flush(&self) {
        write_open(&self.profile, &mut lock(&self.open));
    }

    /// Writes it once the moment is over, for a guest that then does something else.
    fn write_soon(&self, number: u64) {
        // Attempts are made on a runtime. Elsewhere their end writes it.
        let Ok(runtime) = Handle::try_current() else { return };
        let (profile, open) = (Arc::clone(&self.profile), Arc::clone(&self.open));
        runtime.spawn(async move {
            tokio::time::sleep(MOMENT).await;
            let mut open = lock(&open);
            if open.as_ref().is_some_and(|burst| burst.number == number) {
                write_open(&profile, &mut open);
            }
        });
    }
}

fn lock(open: &Mutex<Option<Burst>>) -> MutexGuard<'_, Option<Burst>> {
    // Whole after each statement.
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Under the lock, so that records come in the order of their lines.
fn write_open(profile: &Profile, open: &mut Option<Burst>) {
    if let Some(Burst { level, text, span, .. }) = open.take() {
        let lines: Vec<&str> = text.split('\n').collect();
        span.in_scope(|| write(profile, level, &lines));
    }
}

/// Writes lines as one record, unless the log is not to have it; those beyond the
/// handler's rate are dropped, and counted.
fn write(profile: &Profile, level: Level, lines: &[&str]) {
    if lines.is_empty() || !is_enabled(level) {
        return;
    }
    let lines = &lines[..profile.line_rate.allows_of(lines.len())];
    if lines.is_empty() {
        return;
    }
    let (handler, text) = (profile.name.as_str(), lines.join("\n"));
    match level {
        Level::TRACE => tracing::trace!(target: "guest", handler, "{text}"),
        Level::DEBUG => tracing::debug!(target: "guest", handler, "{text}"),
        Level::INFO => tracing::info!(target: "guest", handler, "{text}"),
        Level::WARN => tracing::warn!(target: "guest", handler, "{text}"),
        Level::ERROR => tracing::error!(target: "guest", handler, "{text}"),
    }
}

/// Whether the log is to have what guests write at this level.
fn is_enabled(level: Level) -> bool {
    match level {
        Level::TRACE => tracing::enabled!(target: "guest", Level::TRACE),
        Level::DEBUG => tracing::enabled!(target: "guest", Level::DEBUG),
        Level::INFO => tracing::enabled!(target: "guest", Level::INFO),
        Level::WARN => tracing::enabled!(target: "guest", Level::WARN),
        Level::ERROR => tracing::enabled!(target: "guest", Level::ERROR),
    }
}
