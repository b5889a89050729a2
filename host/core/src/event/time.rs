//! Times of CloudEvents: RFC 3339, in the microseconds that stores keep.

use jiff::Timestamp;

use super::check::{InvalidEvent, quoted};

/// Reads an attribute that is a time of RFC 3339 with any offset, cut to
/// microseconds.
///
/// # Errors
/// When it is no such time.
pub fn parse_time(attribute: &str, text: &str) -> Result<Timestamp, InvalidEvent> {
    let parsed = rfc3339_in_microseconds(text).and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| {
        InvalidEvent::new(
            attribute,
            format!(
                "is {}, which is no time of RFC 3339: write one such as `2026-01-31T12:00:00Z`",
                quoted(text)
            ),
        )
    })
}

/// The same time with at most six digits of a second, if the text has the shape
/// that RFC 3339 asks for. The values are left to the parser, which knows the
/// calendar, but also takes shapes of other standards.
fn rfc3339_in_microseconds(text: &str) -> Option<String> {
    const SHAPE: &[u8] = b"0000-00-00T00:00:00";
    let shaped = |text: &str, shape: &[u8]| {
        text.len() == shape.len()
            && text.bytes().zip(shape).all(|(b, wanted)| match wanted {
                b'0' => b.is_ascii_digit(),
                _ => b.eq_ignore_ascii_case(wanted),
            })
    };
    let (date_time, rest) = text.split_at_checked(SHAPE.len())?;
    let (fraction, offset) = match rest.strip_prefix('.') {
        Some(rest) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            (Some(&rest[..digits]), &rest[digits..])
        }
        None => (None, rest),
    };
    let well_formed = shaped(date_time, SHAPE)
        && fraction.is_none_or(|digits| !digits.is_empty())
        && (shaped(offset, b"Z")
            || (shaped(offset, b"+00:00") || shaped(offset, b"-00:00")) && is_of_a_day(offset));
    well_formed.then(|| match fraction {
        Some(digits) => format!("{date_time}.{}{offset}", &digits[..digits.len().min(6)]),
        None => text.to_owned(),
    })
}

/// Whether an offset such as `+05:30` is less than a day, with minutes of an hour: the
/// parser takes larger ones too.
fn is_of_a_day(offset: &str) -> bool {
    let number = |part: Option<&str>| part.and_then(|digits| digits.parse::<u8>().ok());
    number(offset.get(1..3)).is_some_and(|hours| hours < 24)
        && number(offset.get(4..6)).is_some_and(|minutes| minutes < 60)
}

/// Cuts a time to the microseconds that stores keep.
#[must_use]
pub fn to_microseconds(time: Timestamp) -> Timestamp {
    let microseconds = time.as_nanosecond().div_euclid(1000);
    // Only the first 999 ns of all of jiff's range would fall outside it.
    i64::try_from(microseconds)
        .ok()
        .and_then(|us| Timestamp::from_microsecond(us).ok())
        .unwrap_or(time)
}
