//! CloudEvents in the headers of HTTP: the binary mode of its HTTP binding, version 1.0.2.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};

use crate::bindings::event_host::handler::outbox::Message;
use crate::bindings::event_host::handler::types::ExtensionValueResult;
use crate::imports::empty_message;
use event_host_core::event::json::{SPEC_VERSION, spec_version};
use event_host_core::event::{DELIVER_AFTER, Event, ExtensionValue, quoted};

/// What the names of attributes begin with.
const PREFIX: &str = "ce-";

/// What an attribute's value is escaped in: everything but printable ASCII, and the space,
/// the double quote and the percent sign.
const ESCAPES: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// The media type of data whose event names none.
const JSON: &str = "application/json";

/// The headers of an event.
///
/// # Errors
/// When there are more of them than a request may have. No event of the log has as many.
pub(super) fn headers(event: &Event) -> Result<HeaderMap, http::Error> {
    let mut headers = HeaderMap::new();
    let content_type = match (&event.datacontenttype, &event.data) {
        (Some(content_type), _) => Some(content_type.as_str()),
        (None, Some(_)) => Some(JSON),
        (None, None) => None,
    };
    if let Some(content_type) = content_type {
        headers.try_insert(header::CONTENT_TYPE, as_it_is(content_type)?)?;
    }
    let time = event.time.to_string();
    let deliver_after = event.deliver_after.map(|time| time.to_string());
    let attributes = [
        ("specversion", Some(SPEC_VERSION)),
        ("id", Some(&event.id)),
        ("source", Some(&event.source)),
        ("type", Some(&event.event_type)),
        ("subject", event.subject.as_deref()),
        ("time", Some(&time)),
        ("dataschema", event.dataschema.as_deref()),
        ("partitionkey", event.partitionkey.as_deref()),
        (DELIVER_AFTER, deliver_after.as_deref()),
    ];
    for (name, value) in attributes {
        if let Some(value) = value {
            insert(&mut headers, name, value)?;
        }
    }
    for (name, value) in &event.extensions {
        match value {
            ExtensionValue::Boolean(value) => insert(&mut headers, name, &value.to_string())?,
            ExtensionValue::Integer(value) => insert(&mut headers, name, &value.to_string())?,
            ExtensionValue::Text(value) => insert(&mut headers, name, value)?,
        }
    }
    Ok(headers)
}

fn insert(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), http::Error> {
    // A name of the log has letters and digits alone; whatever else somebody wrote into a
    // row must not end the attempt.
    let name = format!("{PREFIX}{}", utf8_percent_encode(name, NON_ALPHANUMERIC));
    headers.try_insert(HeaderName::from_bytes(name.as_bytes())?, encoded(value)?)?;
    Ok(())
}

/// A value as a header has it.
pub(super) fn encoded(value: &str) -> Result<HeaderValue, http::Error> {
    Ok(HeaderValue::from_str(&utf8_percent_encode(value, ESCAPES).to_string())?)
}

/// A media type, which is a header's value already; escaped where a row of the log has one
/// that is not.
fn as_it_is(content_type: &str) -> Result<HeaderValue, http::Error> {
    HeaderValue::from_bytes(content_type.as_bytes()).or_else(|_| encoded(content_type))
}

/// Whether these are the headers of an event in binary mode.
pub(super) fn is_event(headers: &HeaderMap) -> bool {
    headers.contains_key("ce-type") || headers.contains_key("ce-specversion")
}

/// The event that headers and a body stand for, without what is left to the host.
///
/// # Errors
/// When they stand for none; what the attributes hold is checked when it is emitted.
pub(super) fn message(headers: &HeaderMap, data: Vec<u8>) -> Result<Message, String> {
    let mut message = Message { data, ..empty_message() };
    message.datacontenttype =
        headers.get(header::CONTENT_TYPE).map(|value| text("content-type", value)).transpose()?;
    for name in headers.keys() {
        let Some(attribute) = name.as_str().strip_prefix(PREFIX) else { continue };
        let mut values = headers.get_all(name).iter();
        let value = values.next().map(|value| decoded(name.as_str(), value));
        let value = value.transpose()?.unwrap_or_default();
        if values.next().is_some() {
            return Err(format!("the header {} stands twice", quoted(name.as_str())));
        }
        match attribute {
            "specversion" => spec_version(&value).map_err(|error| error.to_string())?,
            "id" => message.id = Some(value),
            "source" => message.source = Some(value),
            "type" => message.type_ = value,
            "subject" => message.subject = Some(value),
            "time" => message.time = Some(value),
            "dataschema" => message.dataschema = Some(value),
            "partitionkey" => message.partitionkey = Some(value),
            _ => {
                let value = ExtensionValueResult::Text(value);
                message.extensions.push((attribute.to_owned(), value));
            }
        }
    }
    if !headers.contains_key("ce-type") {
        return Err("`ce-type` is missing: every event has one, such as `order.paid`".to_owned());
    }
    Ok(message)
}

fn text(name: &str, value: &HeaderValue) -> Result<String, String> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map(str::to_owned).map_err(|_| format!("the header {} is not UTF-8", quoted(name)))
}

/// The value that a header has, as the binding says: in quotes or not, with percent signs
/// before what is escaped.
fn decoded(name: &str, value: &HeaderValue) -> Result<String, String> {
    let written = text(name, value)?;
    let inside = written.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let written = inside.map_or(written.clone(), unquoted);
    let decoded = percent_decode(written.as_bytes()).decode_utf8();
    decoded.map(|text| text.into_owned()).map_err(|_| {
        format!("the header {} is {}, which decodes to no UTF-8", quoted(name), quoted(&written))
    })
}

/// What stands in a quoted string of RFC 9110: without the backslashes before what they
/// escape.
fn unquoted(inside: &str) -> String {
    let mut text = String::with_capacity(inside.len());
    let mut escaped = false;
    for c in inside.chars() {
        if c == '\\' && !escaped {
            escaped = true;
            continue;
        }
        escaped = false;
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(value: &str) -> Result<String, String> {
        decoded("ce-subject", &HeaderValue::from_bytes(value.as_bytes()).unwrap())
    }

    #[test]
    fn values_are_escaped_as_the_binding_says_and_no_further() {
        for (value, written) in [
            ("plain!~#&'()*+,-./:;<=>?@[]^_`{|}", "plain!~#&'()*+,-./:;<=>?@[]^_`{|}"),
            ("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ("\"100%\"", "%22100%25%22"),
            ("a\u{7f}b", "a%7Fb"),
            ("", ""),
        ] {
            assert_eq!(encoded(value).unwrap(), written);
            assert_eq!(decode(written).unwrap(), value);
        }
    }

    #[test]
    fn what_others_write_is_read_too() {
        for (written, value) in [
            ("\"in quotes\"", "in quotes"),
            (r#""a \"b\" \\ c%20d""#, r#"a "b" \ c d"#),
            ("%41bc", "Abc"),
            ("100%", "100%"),
            ("é", "é"),
            ("\"", "\""),
        ] {
            assert_eq!(decode(written).unwrap(), value, "{written}");
        }
        let error = decode("a%FFb").unwrap_err();
        assert_eq!(error, "the header `ce-subject` is `a%FFb`, which decodes to no UTF-8");
    }

    #[test]
    fn headers_that_are_no_event_are_told_why() {
        let cases = [
            (vec![("ce-specversion", "1.0")], "`ce-type` is missing"),
            (vec![("ce-type", "a"), ("ce-specversion", "0.3")], "`specversion` is `0.3`: only"),
            (vec![("ce-type", "a"), ("ce-type", "b")], "the header `ce-type` stands twice"),
        ];
        for (given, expected) in cases {
            let mut headers = HeaderMap::new();
            for (name, value) in given {
                headers.append(name, HeaderValue::from_static(value));
            }
            assert!(is_event(&headers));
            let error = message(&headers, Vec::new()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn whatever_a_row_holds_makes_headers() {
        let odd = br#"{"specversion":"1.0","id":"1","source":"/t","type":"t"}"#;
        let mut event = Event::from_json(odd).unwrap();
        event.datacontenttype = Some("text/plain; a=\"\n\"".to_owned());
        event.id = "a\r\nce-type: forged".to_owned();
        event.extensions.insert("É: x\n".to_owned(), ExtensionValue::Text("\0".to_owned()));
        let headers = headers(&event).unwrap();
        assert_eq!(headers["ce-id"], "a%0D%0Ace-type:%20forged");
        assert_eq!(headers["ce-type"], "t");
        assert_eq!(headers["content-type"], "text/plain;%20a=%22%0A%22");
        assert_eq!(headers["ce-%c3%89%3a%20x%0a"], "%00");
    }
}
