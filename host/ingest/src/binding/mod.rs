//! The HTTP protocol binding of CloudEvents, version 1.0.2: a request's headers and body as
//! events.
//!
//! Three content modes, told by `Content-Type`: binary, where attributes are headers and the
//! body is the data as it is; structured and batched, where the body is JSON and is read by
//! [`event_host_core::event::json`]. Nothing is changed on the way: data are kept byte for byte.

mod binary;
mod header_value;
mod json;
mod media_type;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use jiff::Timestamp;

use event_host_core::event::Event;

use crate::refusal::{Reason, Refusal};
use media_type::MediaType;

pub use header_value::{decode, encode};

/// What every header of an attribute begins with.
const PREFIX: &str = "ce-";

/// The content mode of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Attributes in headers, data in the body.
    Binary,
    /// One event in the body, as JSON.
    Structured,
    /// A JSON array of events in the body.
    Batched,
}

impl Mode {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Binary => "binary",
            Self::Structured => "structured",
            Self::Batched => "batched",
        }
    }

    /// The mode of a request, by its headers.
    ///
    /// # Errors
    /// For a format that is not taken, and for what is no CloudEvent.
    pub fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let content_type = content_type(headers)?;
        let media_type = content_type.map(MediaType::read);
        match media_type.as_ref().map(|media_type| media_type.essence.as_str()) {
            Some("application/cloudevents+json") => {
                charset(media_type.as_ref()).map(|()| Self::Structured)
            }
            Some("application/cloudevents-batch+json") => {
                charset(media_type.as_ref()).map(|()| Self::Batched)
            }
            Some(other) if other.starts_with("application/cloudevents") => Err(Refusal::new(
                Reason::Unsupported,
                "the host reads CloudEvents as JSON alone: send `application/cloudevents+json` or `application/cloudevents-batch+json`, or attributes in `ce-` headers with the type of the data",
            )),
            _ if headers.keys().any(|name| name.as_str().starts_with(PREFIX)) => Ok(Self::Binary),
            _ => Err(Refusal::new(
                Reason::InvalidRequest,
                "no CloudEvent: send `application/cloudevents+json`, or the headers `ce-id`, `ce-source`, `ce-type` and `ce-specversion`; for another provider's webhook use `/hooks/NAME`",
            )),
        }
    }
}

/// What events may come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest event, in bytes with all its attributes.
    pub max_event: usize,
    /// The most events of a request.
    pub max_events: usize,
}

/// Reads the events of a request. What it gives has passed [`Event::check`] and is within the
/// limits.
///
/// # Errors
/// At the first mistake, with its place.
pub fn events(
    mode: Mode,
    headers: &HeaderMap,
    body: Vec<u8>,
    limits: Limits,
) -> Result<Vec<Event>, Refusal> {
    let events = match mode {
        Mode::Binary => vec![binary::event(headers, content_type(headers)?, body)?],
        Mode::Structured => {
            vec![Event::from_json(&body).map_err(|error| Refusal::invalid(&error))?]
        }
        Mode::Batched => json::batch(&body, limits.max_events)?,
    };
    let now = Timestamp::now();
    for (index, event) in events.iter().enumerate() {
        let placed = |refusal: Refusal| match mode {
            Mode::Batched => refusal.event(index),
            Mode::Binary | Mode::Structured => refusal,
        };
        event.check_delay(now).map_err(|error| placed(Refusal::invalid(&error)))?;
        check_size(event, limits.max_event).map_err(placed)?;
    }
    Ok(events)
}

/// Refuses an event that is too large.
///
/// # Errors
/// [`Reason::TooLarge`].
pub fn check_size(event: &Event, most: usize) -> Result<(), Refusal> {
    let bytes = event.bytes();
    if bytes <= most {
        return Ok(());
    }
    Err(Refusal::new(
        Reason::TooLarge,
        format!(
            "the event has {bytes} bytes; the most is {most}: send less, or where the rest is to be found"
        ),
    )
    .limit(most))
}

/// Whether the body is packed.
///
/// # Errors
/// For a coding that is not taken.
pub fn is_gzip(headers: &HeaderMap) -> Result<bool, Refusal> {
    let mut is_gzip = false;
    let codings = headers.get_all(CONTENT_ENCODING).iter();
    for coding in codings.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')) {
        match coding.trim_ascii().to_ascii_lowercase().as_slice() {
            b"gzip" | b"x-gzip" if !is_gzip => is_gzip = true,
            b"" | b"identity" => {}
            _ => {
                return Err(Refusal::new(
                    Reason::Unsupported,
                    "`Content-Encoding` is not one that the host takes: send `gzip`, once, or none",
                ));
            }
        }
    }
    Ok(is_gzip)
}

/// The only `Content-Type`, as it was sent.
fn content_type(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut all = headers.get_all(CONTENT_TYPE).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(Refusal::new(
            Reason::InvalidRequest,
            "`Content-Type` is there twice: send it once",
        ));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| {
        Refusal::new(
            Reason::InvalidRequest,
            "`Content-Type` is no text: write a media type such as `application/json`",
        )
    })?;
    let text = text.trim_matches([' ', '\t']);
    Ok((!text.is_empty()).then_some(text))
}

/// JSON is UTF-8.
fn charset(media_type: Option<&MediaType>) -> Result<(), Refusal> {
    match media_type.and_then(|media_type| media_type.charset.as_deref()) {
        None | Some("utf-8" | "utf8") => Ok(()),
        Some(_) => Err(Refusal::new(
            Reason::Unsupported,
            "the charset of `Content-Type` is not UTF-8: CloudEvents as JSON are sent in UTF-8",
        )),
    }
}

#[cfg(test)]
mod tests;
