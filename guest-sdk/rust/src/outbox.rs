//! Emitting events.

use std::error::Error;
use std::fmt;

use serde::Serialize;

use crate::bindings::event_host::handler::outbox as raw;
use crate::{ExtensionValue, host};

/// An event to emit.
///
/// Only the type is needed. What is left out is filled in by the host: an id
/// that is the same on each attempt, the group as source, the time of the
/// settlement, and the partition key of the handled event, or of a whole batch.
///
/// ```
/// # use event_host_sdk::{Message, emit, testing};
/// let labels = ["bug", "urgent"];
/// emit(Message::new("triage.labelled").subject("octo/repo#7").json(&labels)?)?;
/// # assert_eq!(testing::emitted()[0].data(), br#"["bug","urgent"]"#);
/// # Ok::<(), event_host_sdk::Failure>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a message is published only by `emit`"]
pub struct Message(raw::Message);

impl Message {
    /// A message of this type, without data.
    pub fn new(event_type: impl Into<String>) -> Self {
        Self(raw::Message {
            type_: event_type.into(),
            data: Vec::new(),
            id: None,
            source: None,
            subject: None,
            time: None,
            datacontenttype: None,
            dataschema: None,
            partitionkey: None,
            extensions: Vec::new(),
        })
    }

    /// Gives it a payload of JSON.
    ///
    /// # Errors
    /// The value has no JSON form, such as a map whose keys are no texts.
    pub fn json<T: Serialize + ?Sized>(mut self, value: &T) -> Result<Self, EmitError> {
        self.0.data = serde_json::to_vec(value).map_err(|error| {
            EmitError::Invalid(format!("the data of `{}` has no JSON form: {error}", self.0.type_))
        })?;
        self.0.datacontenttype = Some("application/json".to_owned());
        Ok(self)
    }

    /// Gives it a payload of plain text.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.data(text.into(), "text/plain; charset=utf-8")
    }

    /// Gives it a payload of bytes and their media type.
    pub fn data(mut self, data: impl Into<Vec<u8>>, datacontenttype: impl Into<String>) -> Self {
        self.0.data = data.into();
        self.0.datacontenttype = Some(datacontenttype.into());
        self
    }

    /// Sets the id, instead of one that is the same on each attempt.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.0.id = Some(id.into());
        self
    }

    /// Sets the source, a URI-reference.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Sets what the event is about.
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.0.subject = Some(subject.into());
        self
    }

    /// Sets when it happened: RFC 3339 text, such as an event's
    /// [`time`](crate::Event::time).
    pub fn time(mut self, time: impl Into<String>) -> Self {
        self.0.time = Some(time.into());
        self
    }

    /// Sets the URI of the data's schema.
    pub fn dataschema(mut self, dataschema: impl Into<String>) -> Self {
        self.0.dataschema = Some(dataschema.into());
        self
    }

    /// Sets the key within which events stay in order.
    pub fn partitionkey(mut self, partitionkey: impl Into<String>) -> Self {
        self.0.partitionkey = Some(partitionkey.into());
        self
    }

    /// Sets when it is delivered at the earliest: RFC 3339 text, such as
    /// `2026-01-31T12:00:00Z`, at most 366 days from now. It is the extension attribute
    /// `deliverafter`.
    ///
    /// ```
    /// # use event_host_sdk::{Message, emit};
    /// emit(Message::new("order.reminder").deliver_after("2026-01-31T12:00:00Z"))?;
    /// # Ok::<(), event_host_sdk::EmitError>(())
    /// ```
    pub fn deliver_after(self, time: impl Into<String>) -> Self {
        self.extension("deliverafter", time.into())
    }

    /// Sets an extension attribute; names are lower-case letters and digits. A
    /// later value of the same name replaces the earlier.
    pub fn extension(mut self, name: &str, value: impl Into<ExtensionValue>) -> Self {
        let extensions = &mut self.0.extensions;
        let value = value.into().into();
        match extensions.binary_search_by(|(own, _)| own.as_str().cmp(name)) {
            Ok(place) => extensions[place].1 = value,
            Err(place) => extensions.insert(place, (name.to_owned(), value)),
        }
        self
    }

    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn from_raw(message: raw::Message) -> Self {
        Self(message)
    }

    pub(crate) fn into_raw(self) -> raw::Message {
        self.0
    }
}

/// Publishes an event when, and only when, this call of the handler succeeds: that of
/// a [`batch_handler`](crate::batch_handler) for every event.
///
/// ```
/// # use event_host_sdk::{Message, emit};
/// emit(Message::new("stock.low").text("9 left"))?;
/// # Ok::<(), event_host_sdk::EmitError>(())
/// ```
///
/// # Errors
/// An attribute breaks the CloudEvents specification, or the handler may not
/// emit this type. Going over the limit of emits is no error that returns: it
/// ends the attempt.
pub fn emit(message: Message) -> Result<(), EmitError> {
    host::emit(&message.into_raw()).map_err(EmitError::from)
}

/// Why a message was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmitError {
    /// The message is no CloudEvent; the text says which attribute, and how.
    Invalid(String),
    /// The handler's settings do not let it emit this type.
    Denied(String),
    /// Anything else.
    Other(String),
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text) => write!(f, "cannot emit an invalid event: {text}"),
            Self::Denied(text) => write!(f, "not allowed to emit: {text}"),
            Self::Other(text) => write!(f, "cannot emit: {text}"),
        }
    }
}

impl Error for EmitError {}

impl From<raw::EmitError> for EmitError {
    fn from(error: raw::EmitError) -> Self {
        match error {
            raw::EmitError::Invalid(text) => Self::Invalid(text),
            raw::EmitError::Denied(text) => Self::Denied(text),
            raw::EmitError::Other(text) => Self::Other(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Event, Failure};

    #[test]
    fn a_message_carries_what_it_was_given() {
        let message = Message::new("t")
            .id("i")
            .source("/s")
            .subject("about")
            .time("2026-02-03T04:05:06Z")
            .dataschema("https://example.com/schema")
            .partitionkey("k")
            .deliver_after("2026-03-04T05:06:07Z")
            .extension("b", 1)
            .extension("a", true)
            .extension("b", "later")
            .json(&[1, 2])
            .unwrap();
        let event = Event::for_test(message);
        assert_eq!((event.id(), event.source(), event.event_type()), ("i", "/s", "t"));
        assert_eq!((event.subject(), event.partitionkey()), (Some("about"), Some("k")));
        assert_eq!(event.time(), "2026-02-03T04:05:06Z");
        assert_eq!(event.dataschema(), Some("https://example.com/schema"));
        assert_eq!(event.datacontenttype(), Some("application/json"));
        assert_eq!(event.data(), b"[1,2]");
        let extensions: Vec<_> = event.extensions().collect();
        let (flag, text) = (ExtensionValue::Boolean(true), ExtensionValue::Text("later".into()));
        let later = ExtensionValue::Text("2026-03-04T05:06:07Z".into());
        assert_eq!(extensions, [("a", &flag), ("b", &text), ("deliverafter", &later)]);
    }

    #[test]
    fn a_value_without_a_json_form_is_an_error_that_names_the_message() {
        let keys_are_no_texts = BTreeMap::from([((1, 2), 3)]);
        let error = Message::new("stock.low").json(&keys_are_no_texts).unwrap_err();
        assert!(error.to_string().contains("`stock.low` has no JSON form"), "{error}");
        assert!(Failure::from(error).is_retry());
    }
}
