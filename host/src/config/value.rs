//! Values as people write them: variables of the environment, durations, sizes.

use std::env::VarError;
use std::time::Duration;

use bytesize::ByteSize;
use jiff::SpanRelativeTo;
use jiff::fmt::friendly::{SpanParser, SpanPrinter};

use event_host_core::clock::LONGEST_WAIT;
use event_host_core::event::quoted;

/// The longest duration that any setting takes.
pub(super) const YEAR: Duration = LONGEST_WAIT;

/// The shortest time in which anything can be done.
pub(super) const MILLISECOND: Duration = Duration::from_millis(1);

/// The rule of all names, for a message.
pub(super) const NAME_RULE: &str =
    "use 1 to 128 letters, digits, `_`, `-` and `.`, beginning with a letter or a digit";

/// Where variables come from.
pub(super) type Environment<'a> = dyn Fn(&str) -> Result<String, VarError> + 'a;

/// Replaces each `${NAME}` by the variable of that name; `$${` stands for `${`.
/// An error names the variable, never a value.
pub(super) fn expand(text: &str, environment: &Environment<'_>) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        expanded.push_str(&rest[..dollar]);
        rest = &rest[dollar..];
        if let Some(after) = rest.strip_prefix("$${") {
            expanded.push_str("${");
            rest = after;
        } else if let Some(after) = rest.strip_prefix("${") {
            let Some((name, after)) = after.split_once('}') else {
                return Err("`${` has no `}`: write `${NAME}` for a variable of the environment, or `$${` for these two characters".to_owned());
            };
            expanded.push_str(&variable(name, environment)?);
            rest = after;
        } else {
            expanded.push('$');
            rest = &rest[1..];
        }
    }
    expanded.push_str(rest);
    Ok(expanded)
}

fn variable(name: &str, environment: &Environment<'_>) -> Result<String, String> {
    let well_formed = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !well_formed {
        return Err(format!(
            "{} names no variable: use letters, digits and `_`, or write `$${{` for a literal `${{`",
            quoted(&format!("${{{name}}}"))
        ));
    }
    environment(name).map_err(|e| match e {
        VarError::NotPresent => {
            format!("the environment has no variable `{name}`: set it before the host starts")
        }
        VarError::NotUnicode(_) => format!("the variable `{name}` is not UTF-8"),
    })
}

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

    fn environment(name: &str) -> Result<String, VarError> {
        match name {
            "HOME_1" => Ok("a${NOT}b".to_owned()),
            "EMPTY" => Ok(String::new()),
            _ => Err(VarError::NotPresent),
        }
    }

    #[test]
    fn variables_are_replaced_once_and_dollars_stay() {
        for (text, expected) in [
            ("", ""),
            ("no variable", "no variable"),
            ("${HOME_1}", "a${NOT}b"),
            ("x${EMPTY}y${EMPTY}", "xy"),
            ("$${HOME_1}", "${HOME_1}"),
            ("$$${HOME_1}", "$${HOME_1}"),
            ("5$ $x $$ $", "5$ $x $$ $"),
            ("ü${EMPTY}ü$ü", "üü$ü"),
        ] {
            assert_eq!(expand(text, &environment).as_deref(), Ok(expected), "{text}");
        }
        for text in ["${", "a${HOME_1", "${}", "${1A}", "${A B}", "${A:-b}", "${ü}", "${MISSING}"]
        {
            assert!(expand(text, &environment).is_err(), "{text}");
        }
    }

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
