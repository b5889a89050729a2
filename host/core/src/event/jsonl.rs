//! Files of events: JSON Lines, a CloudEvent (or a batch of them) a line.
//!
//! Errors carry the line's number, so that whoever publishes a long file can
//! say where it stopped and go on from there.

use std::io::{self, BufRead};

use jiff::Timestamp;

use super::Event;
use super::json::{INCOMPLETE, InvalidEvent};

/// The longest line that is read, in bytes, unless another limit is set.
pub const MAX_LINE_BYTES: usize = 16 << 20;

/// The events of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The line's number in the file, from 1.
    pub number: u64,
    /// Its events: one, or as many as the batch that stands there holds.
    pub events: Vec<Event>,
}

/// A line that gives no events.
#[derive(Debug, thiserror::Error)]
#[error("line {number}: {problem}")]
pub struct LineError {
    /// The line's number in the file, from 1.
    pub number: u64,
    /// What is wrong with it.
    pub problem: LineProblem,
}

/// What can be wrong with a line.
#[derive(Debug, thiserror::Error)]
pub enum LineProblem {
    /// It breaks the rules of JSON or CloudEvents.
    #[error(transparent)]
    Invalid(InvalidEvent),
    /// It ends in mid-value, as the first line of JSON over several lines does.
    #[error("{INCOMPLETE}; a line holds one whole event")]
    Incomplete,
    /// It is too long to be read.
    #[error("longer than {0} bytes, the most that a line may have")]
    TooLong(usize),
    /// The file cannot be read on.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
}

impl From<InvalidEvent> for LineProblem {
    fn from(error: InvalidEvent) -> Self {
        if error.sentence == INCOMPLETE { Self::Incomplete } else { Self::Invalid(error) }
    }
}

/// Reads lines of events, skipping blank ones.
///
/// A byte order mark at the beginning and carriage returns before line ends are
/// ignored; the last line needs no end. After an error the next line can still
/// be read, except when the reader itself failed: then the iterator ends.
#[derive(Debug)]
pub struct EventLines<R> {
    reader: R,
    number: u64,
    first: u64,
    max_bytes: usize,
    failed: bool,
    line: Vec<u8>,
}

impl<R: BufRead> EventLines<R> {
    /// Reads from the first line on.
    pub fn new(reader: R) -> Self {
        Self {
            reader,
            number: 0,
            first: 1,
            max_bytes: MAX_LINE_BYTES,
            failed: false,
            line: Vec::new(),
        }
    }

    /// Skips the lines before this number without looking at what they hold.
    #[must_use]
    pub fn from_line(mut self, number: u64) -> Self {
        self.first = number;
        self
    }

    /// Refuses lines of more bytes than this, not counting the line's end.
    #[must_use]
    pub fn max_line_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Reads the next line into `self.line`, without its end, and no more of it
    /// than shows that it is too long. Gives its length, or `None` at the end
    /// of the file.
    fn read_line(&mut self) -> io::Result<Option<usize>> {
        self.line.clear();
        let skipped = self.number + 1 < self.first;
        let mut length = 0_usize;
        loop {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let end = available.iter().position(|b| *b == b'\n');
            let piece = &available[..end.unwrap_or(available.len())];
            if available.is_empty() && length == 0 {
                return Ok(None);
            }
            length = length.saturating_add(piece.len());
            // One byte more than the limit: it may be a carriage return.
            let room = self.max_bytes.saturating_add(1).saturating_sub(self.line.len());
            if !skipped {
                self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            }
            let done = end.is_some() || available.is_empty();
            let consumed = piece.len() + usize::from(end.is_some());
            self.reader.consume(consumed);
            if done {
                return Ok(Some(length));
            }
        }
    }

    /// The line that was read, without what is not part of it.
    fn content(&self, length: usize) -> Result<&[u8], LineProblem> {
        let mut line = self.line.as_slice();
        let mut length = length;
        if let Some(rest) = line.strip_suffix(b"\r").filter(|_| line.len() == length) {
            line = rest;
            length -= 1;
        }
        if length > self.max_bytes {
            return Err(LineProblem::TooLong(self.max_bytes));
        }
        if self.number == 1 {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        Ok(line)
    }
}

impl<R: BufRead> Iterator for EventLines<R> {
    type Item = Result<Line, LineError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed {
            let read = self.read_line();
            let number = self.number + 1;
            let length = match read {
                Ok(length) => length?,
                Err(error) => {
                    self.failed = true;
                    return Some(Err(LineError { number, problem: error.into() }));
                }
            };
            self.number = number;
            if number < self.first {
                continue;
            }
            let events = self.content(length).and_then(|content| {
                if content.iter().all(u8::is_ascii_whitespace) {
                    return Ok(None);
                }
                let events = Event::list_from_json(content)?;
                let now = Timestamp::now();
                events.iter().try_for_each(|event| event.check_delay(now))?;
                Ok(Some(events))
            });
            match events {
                Ok(None) => {}
                Ok(Some(events)) => return Some(Ok(Line { number, events })),
                Err(problem) => return Some(Err(LineError { number, problem })),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::*;

    fn line(id: &str) -> String {
        format!(r#"{{"specversion":"1.0","id":"{id}","source":"/t","type":"t"}}"#)
    }

    /// What each line gave: `number:ids`, or the error.
    fn read(lines: impl Iterator<Item = Result<Line, LineError>>) -> Vec<String> {
        lines
            .map(|line| match line {
                Ok(Line { number, events }) => {
                    let ids: Vec<&str> = events.iter().map(|e| e.id.as_str()).collect();
                    format!("{number}:{}", ids.join(","))
                }
                Err(e) => e.to_string(),
            })
            .collect()
    }

    #[test]
    fn lines_keep_their_numbers_past_blank_ones_and_whatever_ends_them() {
        let file = format!("\u{feff}{}\r\n\n  \t\r\n{}\n{}", line("a"), line("b"), line("c"));
        assert_eq!(read(EventLines::new(file.as_bytes())), ["1:a", "4:b", "5:c"]);
        assert!(read(EventLines::new(&b""[..])).is_empty());
        assert!(read(EventLines::new(&b"\n\n"[..])).is_empty());
    }

    #[test]
    fn a_broken_line_is_named_and_the_lines_after_it_can_be_read() {
        let file = format!("{}\n{{\"id\":\n{}\n", line("a"), line("c"));
        assert_eq!(
            read(EventLines::new(file.as_bytes())),
            [
                "1:a",
                "line 2: not JSON: it ends before it is complete; a line holds one whole event",
                "3:c"
            ]
        );
    }

    #[test]
    fn a_line_that_is_not_utf8_is_named() {
        let file = b"{\"id\":\"\xff\"}";
        assert_eq!(
            read(EventLines::new(&file[..])),
            ["line 1: not UTF-8 from byte 8 on: JSON is UTF-8 text"]
        );
    }

    #[test]
    fn a_line_over_the_limit_is_refused_and_not_kept_in_memory() {
        let long = "x".repeat(100_000);
        let file = format!("{}\n{long}\n{}\n", line("a"), line("c"));
        let mut lines =
            EventLines::new(BufReader::with_capacity(7, file.as_bytes())).max_line_bytes(100);
        assert_eq!(
            read(lines.by_ref()),
            ["1:a", "line 2: longer than 100 bytes, the most that a line may have", "3:c"]
        );
        assert!(lines.line.capacity() < 1000);
    }

    #[test]
    fn the_limit_does_not_count_the_lines_end() {
        let one = line("a");
        for end in ["", "\n", "\r\n"] {
            let file = format!("{one}{end}");
            let lines = EventLines::new(file.as_bytes()).max_line_bytes(one.len());
            assert_eq!(read(lines), ["1:a"], "{end:?}");
            let lines = EventLines::new(file.as_bytes()).max_line_bytes(one.len() - 1);
            assert_eq!(read(lines).len(), 1);
            assert!(
                read(EventLines::new(file.as_bytes()).max_line_bytes(one.len() - 1))[0]
                    .contains("longer")
            );
        }
    }

    #[test]
    fn reading_from_a_line_on_does_not_look_at_the_lines_before() {
        let file = format!("broken\n{}\n{}\n", "x".repeat(1000), line("c"));
        let lines = EventLines::new(file.as_bytes()).max_line_bytes(100).from_line(3);
        assert_eq!(read(lines), ["3:c"]);
        assert!(read(EventLines::new(file.as_bytes()).from_line(9)).is_empty());
    }

    #[test]
    fn a_line_may_hold_a_batch() {
        let file = format!("[{},{}]\n[]\n[{{}}]\n", line("a"), line("b"));
        assert_eq!(
            read(EventLines::new(file.as_bytes())),
            [
                "1:a,b",
                "2:",
                "line 3: event 1 of the batch: `specversion` is missing: every event has one, such as `1.0`"
            ]
        );
    }

    #[test]
    fn a_reader_that_fails_ends_the_lines() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("the disk is gone"))
            }
        }
        let file = format!("{}\n", line("a"));
        let lines = EventLines::new(BufReader::new(file.as_bytes().chain(Broken)));
        assert_eq!(read(lines), ["1:a", "line 2: cannot be read: the disk is gone"]);
    }
}
