//! Values as people write them: durations, sizes, numbers.

use std::time::Duration;

use bytesize::ByteSize;
use jiff::SpanRelativeTo;
use jiff::fmt::friendly::{SpanParser, SpanPrinter};

use event_host_core::clock::LONGEST_WAIT;

/// The longest duration that any setting takes.
pub(super) const YEAR: Duration = LONGEST_WAIT;

/// The shortest time in which anything can be done.
pub(super) const MILLISECOND: Duration = Duration::from_millis(1);

/// The rule of all names, for a message.
pub(super) const NAME_RULE: &str =
    "use 1 to 128 letters, digits, `_`, `-` and `.`, beginning with a letter or a digit";

/// Reads a duration such as `5s`, `1m 30s`, `250ms` or `7d`. A day has 24 hours.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let span = SpanParser::new().parse_span(text).ok()?;
    span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?.try_into().ok()
}

/// Writes a duration as [`duration`] reads it.
pub(super) fn show_duration(duration: Duration) -> String {
    SpanPrinter::new().unsigned_duration_to_string(&duration)
}

/// Reads a size in bytes, such as `64MiB` or `1.5 GB`. A unit must be there.
pub(super) fn size(text: &str) -> Option<u64> {
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    text.parse::<ByteSize>().ok().filter(|_| has_unit).map(|size| size.as_u64())
}

/// Writes a size for people, such as `64.0 MiB`.
pub(super) fn show_size(bytes: usize) -> String {
    ByteSize::b(bytes as u64).display().iec().to_string()
}

/// Whether text is a number and nothing else, so that a unit is missing.
pub(super) fn is_bare_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, milliseconds) in [
            ("5s", 5_000),
            ("250ms", 250),
            ("1m 30s", 90_000),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("0.5s", 500),
            ("1 minute", 60_000),
            ("0s", 0),
            ("7d", 604_800_000),
            ("1w 12h", 648_000_000),
        ] {
            assert_eq!(duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "-5s",
            "5s ago",
            "1mo",
            "1y",
            "5 parsecs",
            "1e3s",
            "99999999999999999999h",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("64MiB", 64 << 20),
            ("64 MiB", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("10KB", 10_000),
            ("512B", 512),
            ("64kib", 64 << 10),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "64", "MiB", "-1MiB", "64 potatoes", "1.2.3MiB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
