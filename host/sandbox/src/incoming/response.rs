//! From the answer of a handler of `wasi:http` to what becomes of the event.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header};

use super::binary;
use crate::bindings::event_host::handler::outbox::Message;
use crate::bindings::event_host::handler::types::ExtensionValueResult;
use event_host_core::event::json::essence;
use event_host_core::event::{DELIVER_AFTER, Draft, ExtensionValue, quoted};
use event_host_core::failure::MAX_TEXT_BYTES;

/// Bytes of a body that a reason keeps: with the status before it, as much as a failure's
/// text holds.
const REASON_BYTES: usize = MAX_TEXT_BYTES - 128;

/// The media type of one event in structured mode.
const ONE: &str = "application/cloudevents+json";

/// The media type of several.
const BATCH: &str = "application/cloudevents-batch+json";

/// What the media types of events in structured mode begin with.
const STRUCTURED: &str = "application/cloudevents";

/// An answer's body, as far as it was kept.
#[derive(Debug, Default)]
pub(super) struct Body {
    /// Its beginning, or all of it, as [`kept_bytes`] says.
    pub(super) kept: Vec<u8>,
    /// How many bytes there were.
    pub(super) total: usize,
    /// Why it did not come to its end, if so.
    pub(super) broken: Option<&'static str>,
}

/// What becomes of the event.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It is handled, and these events are emitted.
    Done(Vec<Message>),
    /// It is to be tried again, not before this time has passed.
    Retry(String, Option<Duration>),
    /// It can never be handled.
    Reject(String),
    /// The answer is none.
    Bad(String),
}

/// How many bytes of the body say something.
pub(super) fn kept_bytes(status: StatusCode, headers: &HeaderMap) -> usize {
    if !status.is_success() {
        return REASON_BYTES;
    }
    let has_events = binary::is_event(headers) || content_type(headers).starts_with(STRUCTURED);
    if has_events { usize::MAX } else { 0 }
}

/// What an answer says of the event.
pub(super) fn verdict(
    status: StatusCode,
    headers: &HeaderMap,
    body: Body,
    now: SystemTime,
) -> Verdict {
    match status.as_u16() {
        200..300 => match events(headers, body) {
            Ok(messages) => Verdict::Done(messages),
            Err(why) => Verdict::Bad(why),
        },
        408 | 425 | 429 | 500..600 => {
            Verdict::Retry(reason(status, headers, &body), retry_after(headers, now))
        }
        400..500 => Verdict::Reject(reason(status, headers, &body)),
        code => Verdict::Reject(format!(
            "HTTP {code} is no answer for an event: 2xx says that it is handled, 408, 425, 429 and 5xx that it is to be tried again, every other 4xx that it never can be"
        )),
    }
}

/// The media type of the body, without its parameters; empty for none.
fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    essence(value.unwrap_or_default())
}

/// The events that an answer holds.
fn events(headers: &HeaderMap, body: Body) -> Result<Vec<Message>, String> {
    let content_type = content_type(headers);
    let is_structured = content_type.starts_with(STRUCTURED);
    if !is_structured && !binary::is_event(headers) {
        if body.total > 0 {
            tracing::debug!(
                "the answer's body of {} bytes is ignored: it holds no event",
                body.total
            );
        }
        return Ok(Vec::new());
    }
    if let Some(broken) = body.broken {
        return Err(format!("the answer holds an event, and {broken}"));
    }
    let invalid = |error: event_host_core::event::json::InvalidEvent| {
        format!("the answer holds what is no event: {error}")
    };
    match content_type.as_str() {
        ONE | BATCH if body.total == 0 => Ok(Vec::new()),
        ONE => Draft::from_json(&body.kept).map(|draft| vec![message(draft)]).map_err(invalid),
        BATCH => {
            let drafts = Draft::batch_from_json(&body.kept).map_err(invalid)?;
            Ok(drafts.into_iter().map(message).collect())
        }
        other if is_structured => Err(format!(
            "the answer is {}, and events are read as `{ONE}` or `{BATCH}`, or in headers `ce-…`",
            quoted(other)
        )),
        _ => binary::message(headers, body.kept)
            .map(|message| vec![message])
            .map_err(|error| format!("the answer holds what is no event: {error}")),
    }
}

/// An event as the outbox takes it.
fn message(draft: Draft) -> Message {
    let extensions = draft.extensions.into_iter().map(|(name, value)| {
        let value = match value {
            ExtensionValue::Boolean(value) => ExtensionValueResult::Boolean(value),
            ExtensionValue::Integer(value) => ExtensionValueResult::Integer(value),
            ExtensionValue::Text(value) => ExtensionValueResult::Text(value),
        };
        (name, value)
    });
    let deliver_after = draft
        .deliver_after
        .map(|time| (DELIVER_AFTER.to_owned(), ExtensionValueResult::Text(time.to_string())));
    Message {
        type_: draft.event_type,
        data: draft.data.unwrap_or_default(),
        id: draft.id,
        source: draft.source,
        subject: draft.subject,
        time: draft.time.map(|time| time.to_string()),
        datacontenttype: draft.datacontenttype,
        dataschema: draft.dataschema,
        partitionkey: draft.partitionkey,
        extensions: extensions.chain(deliver_after).collect(),
    }
}

/// Why an event was not handled: the status, and what a body of text says.
fn reason(status: StatusCode, headers: &HeaderMap, body: &Body) -> String {
    let code = status.as_u16();
    let text = if is_text(&content_type(headers)) { readable(&body.kept) } else { String::new() };
    let text = text.trim();
    if text.is_empty() {
        let name = status.canonical_reason().unwrap_or("without a text");
        return format!("HTTP {code} {name}");
    }
    let cut = if body.total > body.kept.len() {
        format!("… ({} bytes in all)", body.total)
    } else {
        String::new()
    };
    format!("HTTP {code}: {text}{cut}")
}

/// Whether a body of this type is for people; one that names no type may be.
fn is_text(content_type: &str) -> bool {
    let kinds = ["json", "xml", "yaml", "x-www-form-urlencoded"];
    content_type.is_empty()
        || content_type.starts_with("text/")
        || kinds.iter().any(|kind| content_type.ends_with(kind))
}

/// The text that bytes are, which may have been cut in the middle of a character; empty
/// where they are no text.
fn readable(bytes: &[u8]) -> String {
    let whole = match std::str::from_utf8(bytes) {
        Ok(text) => text.len(),
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => 0,
    };
    String::from_utf8_lossy(&bytes[..whole]).into_owned()
}

/// How long the handler wants the next attempt to wait: RFC 9110, section 10.2.3. What is
/// neither seconds nor a date says nothing.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?;
    let text = value.to_str().unwrap_or_default().trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than a number has are a longer time than any that is waited for.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    match httpdate::parse_http_date(text) {
        // A time that has passed asks for no wait.
        Ok(time) => Some(time.duration_since(now).unwrap_or_default()),
        Err(_) => {
            tracing::debug!(
                "`Retry-After: {}` is ignored: it is neither a number of seconds nor a date",
                quoted(text)
            );
            None
        }
    }
}

#[cfg(test)]
mod tests;
