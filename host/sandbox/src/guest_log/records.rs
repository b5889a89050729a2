//! Lines of a guest that are one record of the host's log.
//!
//! A traceback is a dozen lines, each of them a write: with the host's prefix before each,
//! nobody can read it. So lines of one stream that follow one another within a moment are
//! one record, whose further lines the host's own log keeps apart from
//! its own. The record is written once something else is to be logged, the moment is
//! over, it is large, or the attempt ends. Blank lines are left out; each other line counts
//! against the handler's rate.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::{Level, Span};

use super::{LineOrigin, LineRate};

/// How long it is waited for further lines, from the first one on.
const MOMENT: Duration = Duration::from_millis(100);

/// Bytes of a record.
const RECORD_BYTES: usize = 16 << 10;

/// The records of one worker's attempts.
pub(super) struct Records {
    line_rate: Arc<LineRate>,
    open: Arc<Mutex<Open>>,
}

/// What is not written yet.
#[derive(Default)]
struct Open {
    burst: Option<Burst>,
    /// Whether a task waits for the end of a moment: one a worker, however many lines its
    /// attempts write.
    is_waited_for: bool,
}

/// Lines that are not written yet.
struct Burst {
    level: Level,
    origin: LineOrigin,
    text: String,
    /// When the first line was written.
    since: Instant,
    /// Where it was written: the attempt.
    span: Span,
}

impl Records {
    pub(super) fn new(line_rate: Arc<LineRate>) -> Self {
        Self { line_rate, open: Arc::default() }
    }

    /// Adds a line, which is clean, to those before it, if they are of one stream.
    pub(super) fn add(&self, level: Level, origin: LineOrigin, line: &str) {
        if line.trim().is_empty() || !is_enabled(level) {
            return;
        }
        let mut open = lock(&self.open);
        if let Some(burst) = &mut open.burst {
            let fits = burst.text.len() + 1 + line.len() <= RECORD_BYTES;
            if fits && burst.level == level && burst.origin == origin {
                burst.text.push('\n');
                burst.text.push_str(line);
                return;
            }
        }
        open.write(&self.line_rate);
        let (text, since, span) = (line.to_owned(), Instant::now(), Span::current());
        open.burst = Some(Burst { level, origin, text, since, span });
        self.write_soon(&mut open);
    }

    /// Writes a text, which is clean, as one record, after what came before it.
    pub(super) fn write(&self, level: Level, text: &str) {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let mut open = lock(&self.open);
        open.write(&self.line_rate);
        write(&self.line_rate, level, &lines);
    }

    /// Writes what is not written yet.
    pub(super) fn flush(&self) {
        lock(&self.open).write(&self.line_rate);
    }

    /// Writes it once the moment is over, for a guest that then does something else.
    fn write_soon(&self, open: &mut Open) {
        if open.is_waited_for {
            return;
        }
        // Attempts are made on a runtime. Elsewhere their end writes it.
        let Ok(runtime) = Handle::try_current() else { return };
        open.is_waited_for = true;
        let (line_rate, open) = (Arc::clone(&self.line_rate), Arc::clone(&self.open));
        runtime.spawn(async move {
            let mut over = Instant::now() + MOMENT;
            loop {
                tokio::time::sleep_until(over).await;
                let mut open = lock(&open);
                match &open.burst {
                    // One that began meanwhile.
                    Some(burst) if burst.since + MOMENT > over => over = burst.since + MOMENT,
                    _ => {
                        open.write(&line_rate);
                        open.is_waited_for = false;
                        return;
                    }
                }
            }
        });
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    // Whole after each statement.
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Open {
    /// Under the lock, so that records come in the order of their lines.
    fn write(&mut self, line_rate: &Arc<LineRate>) {
        if let Some(Burst { level, text, span, .. }) = self.burst.take() {
            let lines: Vec<&str> = text.split('\n').collect();
            span.in_scope(|| write(line_rate, level, &lines));
        }
    }
}

/// Writes lines as one record, unless the log is not to have it; those beyond the
/// handler's rate are dropped, and counted.
fn write(line_rate: &Arc<LineRate>, level: Level, lines: &[&str]) {
    if lines.is_empty() || !is_enabled(level) {
        return;
    }
    let lines = &lines[..line_rate.allows_of(lines.len())];
    if lines.is_empty() {
        return;
    }
    let (handler, text) = (line_rate.handler(), lines.join("\n"));
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
