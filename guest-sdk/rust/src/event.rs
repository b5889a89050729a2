//! The event that a handler gets, and reading it.

use std::error::Error;
use std::fmt;

use serde::de::DeserializeOwned;

use crate::Message;
use crate::bindings::event_host::handler::types as raw;

/// The value of a CloudEvents extension attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtensionValue {
    /// A CloudEvents Boolean.
    Boolean(bool),
    /// A CloudEvents Integer.
    Integer(i32),
    /// Every other type, in its canonical text form.
    Text(String),
}

impl From<bool> for ExtensionValue {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl From<i32> for ExtensionValue {
    fn from(value: i32) -> Self {
        Self::Integer(value)
    }
}

impl From<String> for ExtensionValue {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<&str> for ExtensionValue {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<raw::ExtensionValue> for ExtensionValue {
    fn from(value: raw::ExtensionValue) -> Self {
        match value {
            raw::ExtensionValue::Boolean(value) => Self::Boolean(value),
            raw::ExtensionValue::Integer(value) => Self::Integer(value),
            raw::ExtensionValue::Text(value) => Self::Text(value),
        }
    }
}

impl From<ExtensionValue> for raw::ExtensionValue {
    fn from(value: ExtensionValue) -> Self {
        match value {
            ExtensionValue::Boolean(value) => Self::Boolean(value),
            ExtensionValue::Integer(value) => Self::Integer(value),
            ExtensionValue::Text(value) => Self::Text(value),
        }
    }
}

/// A type that [`Event::extension`] can give: `bool`, `i32`, `&str`, `String`
/// and [`ExtensionValue`].
pub trait FromExtension<'a>: Sized {
    /// What the type is called in an error.
    const NAME: &'static str;

    /// The value as this type, or `None` if it is of another.
    fn from_extension(value: &'a ExtensionValue) -> Option<Self>;
}

impl FromExtension<'_> for bool {
    const NAME: &'static str = "a Boolean";

    fn from_extension(value: &ExtensionValue) -> Option<Self> {
        match value {
            ExtensionValue::Boolean(value) => Some(*value),
            _ => None,
        }
    }
}

impl FromExtension<'_> for i32 {
    const NAME: &'static str = "an Integer";

    fn from_extension(value: &ExtensionValue) -> Option<Self> {
        match value {
            ExtensionValue::Integer(value) => Some(*value),
            _ => None,
        }
    }
}

impl<'a> FromExtension<'a> for &'a str {
    const NAME: &'static str = "a text";

    fn from_extension(value: &'a ExtensionValue) -> Option<Self> {
        match value {
            ExtensionValue::Text(value) => Some(value),
            _ => None,
        }
    }
}

impl FromExtension<'_> for String {
    const NAME: &'static str = "a text";

    fn from_extension(value: &ExtensionValue) -> Option<Self> {
        <&str>::from_extension(value).map(str::to_owned)
    }
}

impl FromExtension<'_> for ExtensionValue {
    const NAME: &'static str = "any value";

    fn from_extension(value: &ExtensionValue) -> Option<Self> {
        Some(value.clone())
    }
}

/// A CloudEvents 1.0 event, with its place in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    id: String,
    source: String,
    event_type: String,
    subject: Option<String>,
    time: String,
    datacontenttype: Option<String>,
    dataschema: Option<String>,
    extensions: Vec<(String, ExtensionValue)>,
    data: Vec<u8>,
    partitionkey: Option<String>,
    position: u64,
    attempt: u32,
}

impl Event {
    /// The event that a handler would get if this message were emitted, for
    /// tests: position 1, attempt 1, and `test`, `/test` and the year 2026
    /// where the message leaves id, source and time to the host.
    #[must_use]
    pub fn for_test(message: Message) -> Self {
        let message = message.into_raw();
        Self {
            id: message.id.unwrap_or_else(|| "test".to_owned()),
            source: message.source.unwrap_or_else(|| "/test".to_owned()),
            event_type: message.type_,
            subject: message.subject,
            time: message.time.unwrap_or_else(|| "2026-01-01T00:00:00Z".to_owned()),
            datacontenttype: message.datacontenttype,
            dataschema: message.dataschema,
            extensions: own_extensions(message.extensions),
            data: message.data,
            partitionkey: message.partitionkey,
            position: 1,
            attempt: 1,
        }
    }

    /// The same event on another attempt, for tests.
    #[must_use]
    pub fn on_attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// Identifies the event together with [`source`](Self::source).
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The context in which the event happened; a URI-reference.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The kind of event: CloudEvents' `type`.
    #[must_use]
    pub fn event_type(&self) -> &str {
        &self.event_type
    }

    /// What the event is about, within its source.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// When the event happened: RFC 3339 text in UTC.
    #[must_use]
    pub fn time(&self) -> &str {
        &self.time
    }

    /// The media type of the data; absent means `application/json`.
    #[must_use]
    pub fn datacontenttype(&self) -> Option<&str> {
        self.datacontenttype.as_deref()
    }

    /// A URI that identifies the schema of the data.
    #[must_use]
    pub fn dataschema(&self) -> Option<&str> {
        self.dataschema.as_deref()
    }

    /// CloudEvents' partitioning extension: events of one key are ordered.
    #[must_use]
    pub fn partitionkey(&self) -> Option<&str> {
        self.partitionkey.as_deref()
    }

    /// The event's place in the log. Grows along the log, with gaps.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Which call this is for this event, counted from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The extension attributes, sorted by name, without `partitionkey`.
    pub fn extensions(&self) -> impl Iterator<Item = (&str, &ExtensionValue)> {
        self.extensions.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// An extension attribute as the type that is asked for, or `None` if the
    /// event does not have it.
    ///
    /// ```
    /// # use event_host_sdk::{Event, Message};
    /// let event = Event::for_test(Message::new("t").extension("severity", 3));
    /// assert_eq!(event.extension::<i32>("severity")?, Some(3));
    /// assert_eq!(event.extension::<&str>("traceparent")?, None);
    /// # Ok::<(), event_host_sdk::InvalidEvent>(())
    /// ```
    ///
    /// # Errors
    /// The attribute has another type.
    pub fn extension<'a, T: FromExtension<'a>>(
        &'a self,
        name: &str,
    ) -> Result<Option<T>, InvalidEvent> {
        let Some((_, value)) = self.extensions.iter().find(|(own, _)| own == name) else {
            return Ok(None);
        };
        match T::from_extension(value) {
            Some(value) => Ok(Some(value)),
            None => Err(InvalidEvent::extension(name, T::NAME, value)),
        }
    }

    /// The payload, as the bytes that were published. Empty if it has none.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The payload, without a copy.
    #[must_use]
    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// The payload as text.
    ///
    /// # Errors
    /// It is not UTF-8.
    pub fn text(&self) -> Result<&str, InvalidEvent> {
        str::from_utf8(&self.data).map_err(|error| InvalidEvent {
            what: "the data is not UTF-8 text".to_owned(),
            source: Some(Box::new(error)),
        })
    }

    /// The payload, decoded from JSON, whatever its media type says.
    ///
    /// # Errors
    /// There is none, it is not JSON, or it is not what `T` wants.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, InvalidEvent> {
        if self.data.is_empty() {
            return Err(InvalidEvent { what: "the event has no data".to_owned(), source: None });
        }
        serde_json::from_slice(&self.data).map_err(|error| InvalidEvent {
            what: "the data is not the JSON that this handler takes".to_owned(),
            source: Some(Box::new(error)),
        })
    }
}

impl From<raw::Event> for Event {
    fn from(event: raw::Event) -> Self {
        Self {
            id: event.id,
            source: event.source,
            event_type: event.type_,
            subject: event.subject,
            time: event.time,
            datacontenttype: event.datacontenttype,
            dataschema: event.dataschema,
            extensions: own_extensions(event.extensions),
            data: event.data,
            partitionkey: event.partitionkey,
            position: event.position,
            attempt: event.attempt,
        }
    }
}

fn own_extensions(extensions: Vec<(String, raw::ExtensionValue)>) -> Vec<(String, ExtensionValue)> {
    extensions.into_iter().map(|(name, value)| (name, value.into())).collect()
}

/// The event is not what the handler takes: its payload does not decode, or an
/// extension attribute has another type.
///
/// Another attempt would meet the same event, so a handler that returns this
/// error, or one that was caused by it, rejects the event.
#[derive(Debug)]
pub struct InvalidEvent {
    what: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl InvalidEvent {
    /// For a check of the handler's own; `what` says what is wrong.
    ///
    /// ```
    /// # use event_host_sdk::{Failure, InvalidEvent};
    /// let failure = Failure::from(InvalidEvent::new("the total is negative"));
    /// assert_eq!(failure, Failure::reject("the total is negative"));
    /// ```
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), source: None }
    }

    fn extension(name: &str, wanted: &str, value: &ExtensionValue) -> Self {
        Self::new(format!("the extension `{name}` is not {wanted}: {value:?}"))
    }
}

impl fmt::Display for InvalidEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for InvalidEvent {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|error| error as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;

    #[test]
    fn an_extension_comes_in_its_type_or_says_that_it_has_another() {
        let event = Event::for_test(
            Message::new("t").extension("flag", true).extension("n", -3).extension("s", "text"),
        );
        assert_eq!(event.extension("flag").unwrap(), Some(true));
        assert_eq!(event.extension("n").unwrap(), Some(-3));
        assert_eq!(event.extension("s").unwrap(), Some("text"));
        assert_eq!(event.extension("s").unwrap(), Some("text".to_owned()));
        assert_eq!(event.extension("n").unwrap(), Some(ExtensionValue::Integer(-3)));
        assert_eq!(event.extension::<bool>("absent").unwrap(), None);
        let error = event.extension::<i32>("s").unwrap_err();
        assert_eq!(error.to_string(), r#"the extension `s` is not an Integer: Text("text")"#);
    }

    #[test]
    fn data_that_does_not_decode_is_a_rejection_that_says_where() {
        let broken = Event::for_test(Message::new("t").data(br#"{"n": "#, "application/json"));
        let failure = Failure::from(broken.json::<serde_json::Value>().unwrap_err());
        assert_eq!(
            failure,
            Failure::reject(
                "the data is not the JSON that this handler takes: EOF while parsing a value at \
                 line 1 column 6"
            )
        );
        let empty = Event::for_test(Message::new("t"));
        assert_eq!(empty.text().unwrap(), "");
        let failure = Failure::from(empty.json::<serde_json::Value>().unwrap_err());
        assert_eq!(failure, Failure::reject("the event has no data"));
        let binary = Event::for_test(Message::new("t").data([0xff], "image/png"));
        assert!(binary.text().is_err());
        assert_eq!(binary.data(), [0xff]);
    }
}
