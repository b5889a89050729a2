//! The rules of the CloudEvents specification for the attributes of an event.
//!
//! One place for every way in: the JSON form, the command line, what handlers
//! emit. An error names the attribute, what is wrong and what would be right.

use jiff::{SignedDuration, Timestamp};

use super::bounds::{EXTENSIONS_BYTES, LONG_BYTES, SHORT_BYTES, json_bytes};
use super::{DELIVER_AFTER, Event, ExtensionValue};
use crate::failure::storable;
use crate::foreign::one_line;

/// Names that the specification or the host gives a meaning of their own, so no
/// extension can have them.
pub(super) const RESERVED: [&str; 11] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "partitionkey",
    DELIVER_AFTER,
    "data",
];

/// The first instant that RFC 3339 can write: the beginning of year 0.
const FIRST_SECOND: i64 = -62_167_219_200;

/// The last second of which stores keep the beginning, and nothing after it.
const LAST_SECOND: i64 = 253_402_207_200;

/// For so long an event may be delayed at most, in hours: 366 days. Whatever is delayed is
/// kept until it is delivered.
const LONGEST_DELAY: i64 = 366 * 24;

/// Text that is not a CloudEvents 1.0 event, in one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct InvalidEvent {
    pub(super) sentence: String,
    attribute: Option<String>,
}

impl InvalidEvent {
    /// Something is wrong with this attribute.
    pub(super) fn new(attribute: &str, problem: impl AsRef<str>) -> Self {
        let attribute = quoted(attribute);
        let sentence = format!("{attribute} {}", problem.as_ref());
        Self { sentence, attribute: Some(attribute.trim_matches('`').to_owned()) }
    }

    /// Something is wrong with all of it, or with several attributes together.
    pub(super) fn of_all(sentence: String) -> Self {
        Self { sentence, attribute: None }
    }

    /// The attribute that it is about, if it is about one: cut and cleaned, to be shown.
    #[must_use]
    pub fn attribute(&self) -> Option<&str> {
        self.attribute.as_deref()
    }
}

/// A name or value from outside, cut and cleaned, for a message.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("`{}`", storable(&one_line(text), 64))
}

impl Event {
    /// Checks every attribute against the specification. What
    /// [`Event::from_json`] gives has passed.
    ///
    /// # Errors
    /// At the first attribute that breaks a rule.
    pub fn check(&self) -> Result<(), InvalidEvent> {
        text("id", &self.id, SHORT_BYTES)?;
        text("source", &self.source, SHORT_BYTES)?;
        uri_reference(&self.source).map_err(|problem| {
            InvalidEvent::new(
                "source",
                format!("is {}, which is no URI-reference: {problem}", quoted(&self.source)),
            )
        })?;
        text("type", &self.event_type, SHORT_BYTES)?;
        if let Some(subject) = &self.subject {
            text("subject", subject, LONG_BYTES)?;
        }
        time("time", self.time)?;
        if let Some(content_type) = &self.datacontenttype {
            size("datacontenttype", content_type.len(), LONG_BYTES)?;
            media_type(content_type)?;
        }
        if let Some(schema) = &self.dataschema {
            size("dataschema", schema.len(), LONG_BYTES)?;
            absolute_uri("dataschema", schema)?;
        }
        if let Some(key) = &self.partitionkey {
            text("partitionkey", key, SHORT_BYTES)?;
        }
        if let Some(deliver_after) = self.deliver_after {
            time(DELIVER_AFTER, deliver_after)?;
        }
        self.check_extensions()
    }

    fn check_extensions(&self) -> Result<(), InvalidEvent> {
        for (name, value) in &self.extensions {
            extension_name(name)?;
            if let ExtensionValue::Text(value) = value {
                characters(name, value)?;
            }
        }
        let bytes = json_bytes(&self.extensions);
        if bytes > EXTENSIONS_BYTES {
            return Err(InvalidEvent::of_all(format!(
                "the extension attributes are {bytes} bytes of JSON together; the most is {EXTENSIONS_BYTES}: what is large belongs in `data`"
            )));
        }
        Ok(())
    }
}

impl Event {
    /// Checks that the event, published at this time, is not to be delivered later than
    /// 366 days from then. Not a rule of the specification, so [`Event::check`] leaves it
    /// to whoever publishes.
    ///
    /// # Errors
    /// When it is.
    pub fn check_delay(&self, now: Timestamp) -> Result<(), InvalidEvent> {
        let Some(deliver_after) = self.deliver_after else { return Ok(()) };
        let last = now.checked_add(SignedDuration::from_hours(LONGEST_DELAY));
        if last.is_ok_and(|last| deliver_after > last) {
            return Err(InvalidEvent::new(
                DELIVER_AFTER,
                format!(
                    "is {deliver_after}, which is more than 366 days from now: give a time within 366 days, and delay the event again when it is delivered"
                ),
            ));
        }
        Ok(())
    }
}

/// How large an attribute may be, in bytes.
fn size(attribute: &str, bytes: usize, most: usize) -> Result<(), InvalidEvent> {
    if bytes > most {
        return Err(InvalidEvent::new(
            attribute,
            format!("has {bytes} bytes; the most is {most}: what is large belongs in `data`"),
        ));
    }
    Ok(())
}

/// A string attribute that must not be empty, nor have more than so many bytes.
fn text(attribute: &str, value: &str, most: usize) -> Result<(), InvalidEvent> {
    if value.is_empty() {
        return Err(InvalidEvent::new(
            attribute,
            "is empty: give it at least one character, or leave it out if it is optional",
        ));
    }
    size(attribute, value.len(), most)?;
    characters(attribute, value)
}

/// The characters that a CloudEvents String may hold.
fn characters(attribute: &str, value: &str) -> Result<(), InvalidEvent> {
    let refused = |c: &char| {
        let code = u32::from(*c);
        c.is_control() || (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
    };
    match value.chars().find(refused) {
        None => Ok(()),
        Some(c) => Err(InvalidEvent::new(
            attribute,
            format!(
                "holds the character U+{:04X}: CloudEvents allows neither control characters nor noncharacters in an attribute",
                u32::from(c)
            ),
        )),
    }
}

fn time(attribute: &str, time: Timestamp) -> Result<(), InvalidEvent> {
    // Not by its second, which is cut towards 1970 and so is that of the year 0 already.
    if time < Timestamp::from_second(FIRST_SECOND).unwrap_or(Timestamp::MIN) {
        return Err(InvalidEvent::new(
            attribute,
            "is before the year 0 in UTC, which RFC 3339 cannot write",
        ));
    }
    if time > Timestamp::from_second(LAST_SECOND).unwrap_or(Timestamp::MAX) {
        return Err(InvalidEvent::new(
            attribute,
            "is after 9999-12-30T22:00:00Z, the last moment that can be kept",
        ));
    }
    Ok(())
}

/// Checks the name of an extension attribute.
pub(super) fn extension_name(name: &str) -> Result<(), InvalidEvent> {
    let rule =
        "is not the name of an extension attribute: use only lower-case letters a to z and digits";
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
        return Err(InvalidEvent::new(name, rule));
    }
    if RESERVED.contains(&name) {
        return Err(InvalidEvent::new(name, "is no extension: it is an attribute of its own"));
    }
    Ok(())
}

/// Whether a byte may stand in a token of RFC 9110, such as `json`.
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

fn media_type(value: &str) -> Result<(), InvalidEvent> {
    let essence = value.split(';').next().unwrap_or_default().trim_end_matches([' ', '\t']);
    let token = |part: &str| !part.is_empty() && part.bytes().all(is_token);
    let named = essence.split_once('/').is_some_and(|(main, sub)| token(main) && token(sub));
    if named && parameters_are_well_formed(value) {
        return Ok(());
    }
    Err(InvalidEvent::new(
        "datacontenttype",
        format!(
            "is {}, which is no media type: write one such as `application/json`",
            quoted(value)
        ),
    ))
}

/// Whether what follows the first `;` is `name=value` pairs, with values that
/// are tokens or quoted strings.
fn parameters_are_well_formed(value: &str) -> bool {
    let Some((_, mut rest)) = value.split_once(';') else { return true };
    loop {
        rest = rest.trim_start_matches([' ', '\t']);
        let name = rest.bytes().take_while(|b| is_token(*b)).count();
        let Some(after) = rest[name..].strip_prefix('=').filter(|_| name > 0) else {
            return false;
        };
        rest = if let Some(inside) = after.strip_prefix('"') {
            let Some(after) = after_quoted_string(inside) else { return false };
            after
        } else {
            let length = after.bytes().take_while(|b| is_token(*b)).count();
            if length == 0 {
                return false;
            }
            &after[length..]
        };
        rest = rest.trim_start_matches([' ', '\t']);
        match rest.strip_prefix(';') {
            Some(next) => rest = next,
            None => return rest.is_empty(),
        }
    }
}

/// What follows the quoted string whose opening quote has been read.
fn after_quoted_string(inside: &str) -> Option<&str> {
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        match c {
            _ if c.is_control() && c != '\t' => return None,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(&inside[at + 1..]),
            _ => {}
        }
    }
    None
}

fn absolute_uri(attribute: &str, value: &str) -> Result<(), InvalidEvent> {
    let problem = match uri_reference(value) {
        Ok(Some(_)) => return Ok(()),
        Ok(None) => "it has no scheme".to_owned(),
        Err(problem) => problem,
    };
    Err(InvalidEvent::new(
        attribute,
        format!(
            "is {}, which is no absolute URI: {problem}; write one such as `https://example.com/schema.json`",
            quoted(value)
        ),
    ))
}

/// Checks a URI-reference of RFC 3986, section 4.1, and gives its scheme if it
/// has one. Of an authority, only its characters are checked.
fn uri_reference(value: &str) -> Result<Option<&str>, String> {
    for (at, c) in value.char_indices() {
        let rest = &value.as_bytes()[at + 1..];
        match c {
            '%' if rest.iter().take(2).filter(|b| b.is_ascii_hexdigit()).count() < 2 => {
                return Err("`%` must be followed by two hex digits".to_owned());
            }
            '#' if rest.contains(&b'#') => {
                return Err("it has more than one `#`".to_owned());
            }
            ' ' => return Err("a space is written `%20`".to_owned()),
            _ if c.is_ascii_alphanumeric() || "-._~:/?#[]@!$&'()*+,;=%".contains(c) => {}
            _ => {
                let code = u32::from(c);
                return Err(if c.is_ascii() {
                    format!("`{}` is written `%{code:02X}`", c.escape_default())
                } else {
                    "characters outside ASCII are percent-encoded".to_owned()
                });
            }
        }
    }
    let head = value.split(['/', '?', '#']).next().unwrap_or_default();
    let Some((scheme, _)) = head.split_once(':') else { return Ok(None) };
    let well_formed = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    if well_formed {
        Ok(Some(scheme))
    } else {
        Err("what stands before the first `:` is no scheme".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_references_are_told_from_other_text() {
        for good in [
            "https://example.com",
            "https://[2001:db8::1]:8080/a?b=c#d",
            "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66",
            "mailto:cncf-wg-serverless@lists.cncf.io",
            "/cloudevents/spec/pull/123",
            "//authority/path",
            "#fragment",
            "?q",
            "a/b:c",
            "1-555-123-4567",
            "%C3%A9",
        ] {
            assert!(uri_reference(good).is_ok(), "{good}");
        }
        for bad in ["a b", "\n", "a\\b", "<a>", "%", "%4", "%zz", "a#b#c", "é", "1x:y", ":", "a|b"]
        {
            assert!(uri_reference(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_event_is_delayed_by_366_days_at_most() {
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let delayed = |by: i64| {
            let json = br#"{"specversion":"1.0","id":"1","source":"/t","type":"t"}"#;
            let deliver_after = now.checked_add(SignedDuration::from_secs(by)).ok();
            Event { deliver_after, ..Event::from_json(json).unwrap() }
        };
        let most = LONGEST_DELAY * 3_600;
        for fine in [-1, 0, 1, most] {
            assert_eq!(delayed(fine).check_delay(now), Ok(()), "{fine}");
        }
        let refused = delayed(most + 1).check_delay(now).unwrap_err().to_string();
        assert!(refused.starts_with("`deliverafter` is 2027-02-01T12:00:01Z, which"), "{refused}");
        assert_eq!(delayed(most).check_delay(Timestamp::MAX), Ok(()), "no time is later");
    }

    #[test]
    fn media_types_are_told_from_other_text() {
        for good in [
            "application/json",
            "Application/JSON",
            "application/cloudevents+json; charset=utf-8",
            "text/plain;charset=\"utf-8\" ; q=1",
            "text/plain; note=\"a \\\" ; b\"",
            "application/vnd.a.b+xml",
        ] {
            assert!(media_type(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "xyz",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "a b/c",
            "text/plain;",
            "text/plain; charset",
            "text/plain; charset=",
            "text/plain; charset=\"utf-8",
            "text/plain; =x",
            "text/plain; a=b c",
        ] {
            assert!(media_type(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_text_from_outside_breaks_a_message() {
        let message = InvalidEvent::new("x\u{1b}[31m\n", "is wrong").to_string();
        assert_eq!(message, "`x\u{fffd}[31m ` is wrong");
        let long = "y".repeat(1000);
        assert_eq!(quoted(&long), format!("`{}… (1000 bytes in all)`", &long[..64]));
    }
}
