//! What a guest writes by `log`, to `stdout` and to `stderr`: lines in the host's log,
//! counted against one limit. What is written at once is [one record](records).

mod line_rate;
mod records;

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::Level;

pub(super) use line_rate::LineRate;
use records::Records;

use crate::ending::{Abort, size};
use crate::settings::names;
use event_host_core::failure::{FailureKind, storable};
use event_host_core::foreign::{clean, one_line};

/// What each line costs besides its text, in bytes: the time, the level, the group, the
/// position, the attempt, the event's id, and the handler's name.
const PREFIX_BYTES: usize = 160;

/// Bytes of a line that was begun and is kept until its end comes. A longer one is
/// written in pieces.
const BEGUN_BYTES: usize = 16 << 10;

/// Bytes of what an attempt last wrote to stderr or as an error, which are kept until it
/// ends: a runtime that gives up says there why.
const LAST_BYTES: usize = 4 << 10;

/// Denials that are said of one attempt.
const DENIALS_SAID: usize = 8;

/// Bytes of a guest's text in what is said of a denial.
const DENIAL_BYTES: usize = 300;

/// How a guest came to write a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineOrigin {
    /// The import `log`.
    Log,
    /// WASI's standard output.
    Stdout,
    /// WASI's standard error.
    Stderr,
}

/// A line that a guest wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestLine<'a> {
    /// How much it matters.
    pub level: Level,
    /// How it came.
    pub origin: LineOrigin,
    /// The line, without its end and without control characters.
    pub text: &'a str,
}

/// Receives every line that a guest writes, besides the host's log. Called
/// while the guest waits.
pub type LogSink = Arc<dyn Fn(GuestLine<'_>) + Send + Sync>;

/// The lines of one worker's attempts.
pub(crate) struct GuestLog {
    line_rate: Arc<LineRate>,
    /// Bytes that one attempt may write.
    log_bytes: usize,
    sink: Option<LogSink>,
    written: Mutex<Written>,
    records: Records,
}

impl fmt::Debug for GuestLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestLog")
            .field("handler", &self.line_rate.handler())
            .finish_non_exhaustive()
    }
}

/// What the attempt under way wrote.
#[derive(Debug, Default)]
struct Written {
    bytes: usize,
    lines: u32,
    /// What was denied, so that it is said once.
    denied: Vec<String>,
    /// Beginnings of lines whose ends are still to come.
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// The end of what went to stderr and to the log as an error.
    last: Vec<u8>,
}

impl Written {
    fn remember(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(LAST_BYTES)..];
        let over = (self.last.len() + bytes.len()).saturating_sub(LAST_BYTES);
        self.last.drain(..over);
        self.last.extend_from_slice(bytes);
    }
}

/// What an attempt wrote, at its end.
#[derive(Debug)]
pub(super) struct LogSummary {
    /// How many lines.
    pub(super) lines: u32,
    /// The end of what went to stderr and to the log as an error.
    pub(super) last: Vec<u8>,
}

impl GuestLog {
    /// The log of a handler that may write `log_bytes` an attempt.
    pub(super) fn new(line_rate: Arc<LineRate>, log_bytes: usize, sink: Option<LogSink>) -> Self {
        let records = Records::new(Arc::clone(&line_rate));
        Self { line_rate, log_bytes, sink, written: Mutex::default(), records }
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        // Counters and buffers: whole after each statement.
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the attempt's output. A line that was begun is written as it is.
    pub(super) fn end(&self) -> LogSummary {
        let written = mem::take(&mut *self.written());
        let mut lines = written.lines;
        for (origin, rest) in
            [(LineOrigin::Stdout, written.stdout), (LineOrigin::Stderr, written.stderr)]
        {
            if !rest.is_empty() {
                lines = lines.saturating_add(1);
                self.write(origin.level(), origin, &rest);
            }
        }
        self.records.flush();
        LogSummary { lines, last: written.last }
    }

    /// Forgets an attempt that never came to its end.
    pub(super) fn discard(&self) {
        self.records.flush();
        *self.written() = Written::default();
    }

    /// Takes a message of the import `log`.
    pub(super) fn message(&self, level: Level, message: &str) -> wasmtime::Result<()> {
        self.count(message.len(), newlines(message.as_bytes()) + 1)?;
        if level == Level::ERROR {
            let mut written = self.written();
            written.remember(message.as_bytes());
            written.remember(b"\n");
        }
        self.records.write(level, &clean(message));
        for line in message.split('\n') {
            let line = line.strip_suffix('\r').unwrap_or(line);
            self.tell_sink(level, LineOrigin::Log, &clean(line));
        }
        Ok(())
    }

    /// Takes bytes of a stream, of any length, cut anywhere.
    pub(super) fn bytes(&self, origin: LineOrigin, bytes: &[u8]) -> wasmtime::Result<()> {
        self.count(bytes.len(), newlines(bytes))?;
        let (complete, is_ended) = {
            let mut written = self.written();
            if origin == LineOrigin::Stderr {
                written.remember(bytes);
            }
            let begun = match origin {
                LineOrigin::Stderr => &mut written.stderr,
                LineOrigin::Stdout | LineOrigin::Log => &mut written.stdout,
            };
            match bytes.iter().rposition(|b| *b == b'\n') {
                None if begun.len().saturating_add(bytes.len()) <= BEGUN_BYTES => {
                    begun.extend_from_slice(bytes);
                    return Ok(());
                }
                None => {
                    let mut complete = mem::take(begun);
                    complete.extend_from_slice(bytes);
                    (complete, false)
                }
                Some(end) => {
                    let mut complete = mem::replace(begun, bytes[end + 1..].to_vec());
                    complete.extend_from_slice(&bytes[..end]);
                    (complete, true)
                }
            }
        };
        if !is_ended {
            self.count(0, 1)?;
        }
        for line in complete.split(|b| *b == b'\n') {
            self.write(origin.level(), origin, line);
        }
        Ok(())
    }

    /// Says in the host's log what was denied, and the entry of `allow.KEY` in
    /// handlers.toml that would allow it: `value` is its value as TOML writes it.
    ///
    /// Says each thing once an attempt, and no more than a few things: a guest
    /// may ask for whatever it likes.
    #[cold]
    pub(super) fn denied(&self, what: &str, key: &str, value: &str) {
        let mut written = self.written();
        let denied = &mut written.denied;
        if denied.len() >= DENIALS_SAID || denied.iter().any(|said| said == what) {
            return;
        }
        denied.push(what.to_owned());
        drop(written);
        self.records.flush();
        if !self.line_rate.allows() {
            return;
        }
        let handler = self.line_rate.handler();
        let what = storable(&one_line(what), DENIAL_BYTES);
        let value = storable(&one_line(value), DENIAL_BYTES);
        let table = match handler.contains('.') {
            true => toml_string(handler),
            false => handler.to_owned(),
        };
        tracing::warn!(
            handler,
            "denied to the handler: {what}; to allow it, add to handlers.toml: [handlers.{table}.allow] {key} = {value}"
        );
    }

    fn count(&self, bytes: usize, lines: u32) -> wasmtime::Result<()> {
        let limit = self.log_bytes;
        let mut written = self.written();
        // An empty line costs the host a line all the same.
        let cost = bytes.saturating_add(PREFIX_BYTES.saturating_mul(lines as usize));
        written.bytes = written.bytes.saturating_add(cost);
        if written.bytes > limit {
            return Err(Abort::limit(
                FailureKind::LogLimit,
                format!("wanted to log more than {}, {}", names::LOG, size(limit)),
            ));
        }
        written.lines = written.lines.saturating_add(lines);
        Ok(())
    }

    fn write(&self, level: Level, origin: LineOrigin, line: &[u8]) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = String::from_utf8_lossy(line);
        let text = clean(&text);
        self.records.add(level, origin, &text);
        self.tell_sink(level, origin, &text);
    }

    fn tell_sink(&self, level: Level, origin: LineOrigin, text: &str) {
        if let Some(sink) = &self.sink {
            sink(GuestLine { level, origin, text });
        }
    }
}

impl LineOrigin {
    /// The level of a line that comes without one.
    fn level(self) -> Level {
        match self {
            Self::Log | Self::Stdout => Level::INFO,
            Self::Stderr => Level::WARN,
        }
    }
}

/// A text as TOML writes it.
pub(super) fn toml_string(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn newlines(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.iter().filter(|b| **b == b'\n').count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    type Lines = Arc<Mutex<Vec<(Level, LineOrigin, String)>>>;

    /// Keeps what guests write to the log: the level and the message of each record.
    #[derive(Clone, Default)]
    struct Recorder(Arc<Mutex<Vec<String>>>);

    impl Recorder {
        fn take(&self) -> Vec<String> {
            mem::take(&mut *self.0.lock().unwrap())
        }
    }

    impl tracing::Subscriber for Recorder {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target() == "guest"
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            struct Message(String);
            impl tracing::field::Visit for Message {
                fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
                    if field.name() == "message" {
                        self.0 = format!("{value:?}");
                    }
                }
            }
            let mut message = Message(String::new());
            event.record(&mut message);
            self.0.lock().unwrap().push(format!("{} {}", event.metadata().level(), message.0));
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    fn log(log_bytes: usize) -> (GuestLog, Lines) {
        log_at_rate(log_bytes, 1_000)
    }

    fn log_at_rate(log_bytes: usize, lines_per_second: u32) -> (GuestLog, Lines) {
        let lines = Lines::default();
        let sink: LogSink = {
            let lines = Arc::clone(&lines);
            Arc::new(move |line| {
                lines.lock().unwrap().push((line.level, line.origin, line.text.to_owned()));
            })
        };
        let line_rate = Arc::new(LineRate::new("h", lines_per_second));
        (GuestLog::new(line_rate, log_bytes, Some(sink)), lines)
    }

    #[test]
    fn a_stream_becomes_lines_wherever_its_writes_are_cut() {
        let (log, lines) = log(10_000);
        for part in ["a", "b\r\nc\n", "\n", "d"] {
            log.bytes(LineOrigin::Stdout, part.as_bytes()).unwrap();
        }
        log.bytes(LineOrigin::Stderr, b"\xffe\x1b[31m\n").unwrap();
        assert_eq!(log.end().lines, 5);
        let lines: Vec<(Level, String)> =
            lines.lock().unwrap().iter().map(|(l, _, t)| (*l, t.clone())).collect();
        let info = |text: &str| (Level::INFO, text.to_owned());
        assert_eq!(
            lines,
            [
                info("ab"),
                info("c"),
                info(""),
                (Level::WARN, "\u{fffd}e\u{fffd}[31m".to_owned()),
                info("d"),
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn lines_that_are_written_at_once_are_one_record_of_the_log() {
        let records = Recorder::default();
        let _on_this_thread = tracing::subscriber::set_default(records.clone());
        let (log, lines) = log(1 << 20);
        log.bytes(LineOrigin::Stdout, b"out\n").unwrap();
        for part in ["Traceback:\r\n", "\n", "  at ", "app.py\n   \nError: \x1b[31mno\n"] {
            log.bytes(LineOrigin::Stderr, part.as_bytes()).unwrap();
        }
        log.message(Level::ERROR, "one\n\ntwo\n").unwrap();
        log.bytes(LineOrigin::Stdout, b"last").unwrap();
        log.end();
        assert_eq!(
            records.take(),
            [
                "INFO out",
                "WARN Traceback:\n  at app.py\nError: \u{fffd}[31mno",
                "ERROR one\ntwo",
                "INFO last",
            ]
        );
        // Whoever asks for lines gets each of them.
        assert_eq!(lines.lock().unwrap().len(), 11);
        // A guest that goes on to do something else is not waited for.
        log.bytes(LineOrigin::Stdout, b"begun\nmore\n").unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(records.take(), ["INFO begun\nmore"]);
        log.bytes(LineOrigin::Stdout, b"later\n").unwrap();
        // Nor is one whose attempt was dropped forgotten.
        log.discard();
        assert_eq!(records.take(), ["INFO later"]);
    }

    #[test]
    fn a_record_has_as_many_lines_and_bytes_as_it_may() {
        let records = Recorder::default();
        let _on_this_thread = tracing::subscriber::set_default(records.clone());
        let (log, _) = log_at_rate(1 << 20, 7);
        log.bytes(LineOrigin::Stdout, "line\n".repeat(10).as_bytes()).unwrap();
        log.end();
        assert_eq!(records.take(), [format!("INFO {}", ["line"; 7].join("\n"))]);
        let (log, _) = log_at_rate(1 << 20, 1_000);
        log.bytes(LineOrigin::Stdout, format!("{}\n", "x".repeat(999)).repeat(40).as_bytes())
            .unwrap();
        log.end();
        let lengths: Vec<usize> = records.take().iter().map(String::len).collect();
        assert_eq!(lengths.len(), 3);
        assert!(lengths.iter().all(|length| *length <= 16 << 10), "{lengths:?}");
    }

    #[test]
    fn a_message_cannot_forge_a_line_of_the_host() {
        let (log, lines) = log(10_000);
        log.message(Level::ERROR, "one\ntwo\0").unwrap();
        assert_eq!(log.end().lines, 2);
        let texts: Vec<String> = lines.lock().unwrap().iter().map(|(_, _, t)| t.clone()).collect();
        assert_eq!(texts, ["one", "two\u{fffd}"]);
    }

    #[test]
    fn streams_and_messages_share_one_limit_and_each_attempt_begins_anew() {
        let (log, _) = log(10 + PREFIX_BYTES);
        log.message(Level::INFO, "1234").unwrap();
        log.bytes(LineOrigin::Stderr, b"12345").unwrap();
        let refused = log.message(Level::INFO, "").unwrap_err();
        assert_eq!(refused.to_string(), "wanted to log more than limits.log, 170 B");
        log.end();
        log.message(Level::INFO, "123456789").unwrap();
    }

    #[test]
    fn the_end_of_what_went_to_stderr_or_was_an_error_is_kept_for_one_attempt() {
        let (log, _) = log(1 << 20);
        log.bytes(LineOrigin::Stdout, b"out\n").unwrap();
        log.message(Level::WARN, "warning").unwrap();
        log.bytes(LineOrigin::Stderr, b"in two ").unwrap();
        log.bytes(LineOrigin::Stderr, b"parts\n").unwrap();
        log.message(Level::ERROR, "error").unwrap();
        assert_eq!(log.end().last, b"in two parts\nerror\n");
        assert_eq!(log.end().last, b"", "the next one wrote nothing");
        for _ in 0..10 {
            log.bytes(LineOrigin::Stderr, &[b'x'; 1_000]).unwrap();
        }
        log.bytes(LineOrigin::Stderr, &[b'y'; 10_000]).unwrap();
        log.bytes(LineOrigin::Stderr, b"z").unwrap();
        let last = log.end().last;
        assert_eq!((last.len(), &last[LAST_BYTES - 2..]), (LAST_BYTES, &b"yz"[..]));
    }

    #[test]
    fn empty_lines_are_not_free() {
        let (log, _) = log(100);
        let refused = (0..1_000).find_map(|_| log.bytes(LineOrigin::Stdout, b"\n").err());
        assert!(refused.is_some());
    }

    #[test]
    fn a_line_without_an_end_is_written_in_pieces_and_not_kept() {
        let (log, lines) = log(1 << 20);
        for _ in 0..20 {
            log.bytes(LineOrigin::Stdout, &[b'x'; 4096]).unwrap();
        }
        assert!(log.written().stdout.len() <= BEGUN_BYTES);
        log.end();
        let lines = lines.lock().unwrap();
        assert_eq!(lines.iter().map(|(_, _, text)| text.len()).sum::<usize>(), 20 * 4096);
        assert_eq!(lines.len(), 4);
    }
}
