//! An event before the host has filled in what its author left out.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::check::InvalidEvent;
use super::time::to_microseconds;
use super::{Event, ExtensionValue};

/// An event of a handler, which may leave out what the host then fills in: `id`,
/// `source` and `time`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// [`Event::id`].
    pub id: Option<String>,
    /// [`Event::source`].
    pub source: Option<String>,
    /// [`Event::event_type`].
    pub event_type: String,
    /// [`Event::subject`].
    pub subject: Option<String>,
    /// [`Event::time`].
    pub time: Option<Timestamp>,
    /// [`Event::datacontenttype`].
    pub datacontenttype: Option<String>,
    /// [`Event::dataschema`].
    pub dataschema: Option<String>,
    /// [`Event::partitionkey`].
    pub partitionkey: Option<String>,
    /// [`Event::deliver_after`].
    pub deliver_after: Option<Timestamp>,
    /// [`Event::extensions`].
    pub extensions: BTreeMap<String, ExtensionValue>,
    /// [`Event::data`].
    pub data: Option<Vec<u8>>,
}

impl Draft {
    /// The event, which leaves nothing out.
    ///
    /// # Errors
    /// When `id` or `source` is missing.
    pub(super) fn whole(self) -> Result<Event, InvalidEvent> {
        Ok(Event {
            id: self.id.ok_or_else(|| missing("id", "order-1842-paid"))?,
            source: self.source.ok_or_else(|| missing("source", "/orders"))?,
            event_type: self.event_type,
            subject: self.subject,
            time: self.time.unwrap_or_else(|| to_microseconds(Timestamp::now())),
            datacontenttype: self.datacontenttype,
            dataschema: self.dataschema,
            partitionkey: self.partitionkey,
            deliver_after: self.deliver_after,
            extensions: self.extensions,
            data: self.data,
        })
    }
}

/// What is said of an attribute that is missing.
pub(super) fn missing(name: &str, example: &str) -> InvalidEvent {
    InvalidEvent::new(name, format!("is missing: every event has one, such as `{example}`"))
}
