//! The event: a CloudEvent 1.0, its place in the log, and the names that
//! delivery is told in.
//!
//! Newtypes keep positions, epochs and attempts from being mixed up. The rules
//! of the CloudEvents specification are in [`Event::check`], how large an event may be in
//! [`bounds`], the JSON form in
//! [`json`], files of events in [`jsonl`].

pub mod bounds;
mod check;
mod draft;
pub mod json;
pub mod jsonl;
mod key_hash;
pub mod time;

pub use check::quoted;
pub use draft::Draft;

/// The extension attribute that [`Event::deliver_after`] is.
pub const DELIVER_AFTER: &str = "deliverafter";

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// A place in the log. Grows along the log; gaps are normal. 0 is before the
/// first event.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(pub i64);

impl Position {
    /// Before the first event.
    pub const ZERO: Self = Self(0);
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A group's fencing token: goes up by one with each new leader, and with
/// whoever else moves the cursor.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub i64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One call of the handler with one event, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(pub u32);

impl Attempt {
    /// The first attempt of an event.
    pub const FIRST: Self = Self(1);

    /// The attempt after this one; saturates.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A name that is not allowed, with the rule it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` is not a name: use 1 to 128 letters, digits, `_`, `-` and `.`, beginning with a letter or a digit"
)]
pub struct InvalidName {
    /// What was given, cut to a printable length.
    pub name: String,
}

fn checked_name(name: &str) -> Result<Arc<str>, InvalidName> {
    let fits = !name.is_empty()
        && name.len() <= 128
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
    if fits {
        Ok(name.into())
    } else {
        Err(InvalidName { name: name.chars().take(64).filter(|c| !c.is_control()).collect() })
    }
}

/// The name of a consumer group, also safe as a file name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct GroupName(Arc<str>);

impl GroupName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GroupName {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        checked_name(name).map(Self)
    }
}

/// What stands between a group's name and the number of one of its partitions. No
/// name has it.
const PARTITION: char = '#';

impl GroupName {
    /// Reads a name as stores keep it: a group's, or that of one of its partitions.
    ///
    /// # Errors
    /// When it is neither.
    pub fn stored(name: &str) -> Result<Self, InvalidName> {
        if let Some((group, number)) = name.split_once(PARTITION)
            && let Ok(group) = group.parse::<Self>()
            && let Ok(number) = number.parse()
            && group.partition(number).as_str() == name
        {
            return Ok(group.partition(number));
        }
        name.parse()
    }

    /// A name to show, for what stores keep as one: `?` where it is none.
    #[must_use]
    pub fn shown(name: &str) -> Self {
        Self::stored(name).unwrap_or_else(|_| Self("?".into()))
    }

    /// The name under which a partition of the group has its cursor and its leader.
    #[must_use]
    pub fn partition(&self, number: u32) -> Self {
        Self(format!("{}{PARTITION}{number}", self.whole()).into())
    }

    /// The name of the group, if this is that of one of its partitions; else itself.
    #[must_use]
    pub fn whole(&self) -> &str {
        self.0.split_once(PARTITION).map_or(&*self.0, |(group, _)| group)
    }

    /// The number of the partition, if this is the name of one.
    #[must_use]
    pub fn partition_number(&self) -> Option<u32> {
        self.0.split_once(PARTITION).and_then(|(_, number)| number.parse().ok())
    }

    /// The group that it is, or is a partition of.
    #[must_use]
    pub fn group(&self) -> Self {
        if self.partition_number().is_none() { self.clone() } else { Self(self.whole().into()) }
    }
}

/// A part of a group's events, which has a cursor and a leader of its own. A key is
/// in one of them, and an event without a key where its position puts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Which one, from 0.
    pub number: u32,
    /// Of how many. At least 1.
    pub of: u32,
}

impl Partition {
    /// Whether an event is in it. What stores compute in their databases is the same: a
    /// hash of the key, of 32 bits, which PostgreSQL calls `hashtext`, or the position,
    /// modulo the number of partitions.
    #[must_use]
    pub fn holds(self, key: Option<&str>, position: Position) -> bool {
        self.number == Self::number_of(key, position, self.of)
    }

    /// The number of the partition that an event is in, of so many.
    #[must_use]
    pub fn number_of(key: Option<&str>, position: Position, of: u32) -> u32 {
        // Below `of`, and so in range.
        u32::try_from(Self::hash(key, position) % u64::from(of.max(1))).unwrap_or(0)
    }

    /// The number by which an event's partition is found, whatever their number: its
    /// remainder is that of the partition.
    #[must_use]
    pub fn hash(key: Option<&str>, position: Position) -> u64 {
        match key {
            Some(key) => u64::from(key_hash::of(key.as_bytes())),
            None => position.0.unsigned_abs(),
        }
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The name of a handler: that of its table in handlers.toml.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct HandlerName(Arc<str>);

impl HandlerName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HandlerName {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        checked_name(name).map(Self)
    }
}

impl fmt::Display for HandlerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The name of a schedule: that of its table in handlers.toml.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ScheduleName(Arc<str>);

impl ScheduleName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ScheduleName {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        checked_name(name).map(Self)
    }
}

impl fmt::Display for ScheduleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// An owner of events and handlers. The empty tenant owns what names none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Tenant(Arc<str>);

impl Tenant {
    /// The tenant of events and handlers that name none.
    #[must_use]
    pub fn none() -> Self {
        Self("".into())
    }

    /// The name as text; empty for [`Tenant::none`].
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is [`Tenant::none`].
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self::none()
    }
}

impl FromStr for Tenant {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        if name.is_empty() { Ok(Self::none()) } else { checked_name(name).map(Self) }
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The value of a CloudEvents extension attribute, as JSON can tell them apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ExtensionValue {
    /// A CloudEvents Boolean.
    Boolean(bool),
    /// A CloudEvents Integer.
    Integer(i32),
    /// Every other type, in its canonical text form.
    Text(String),
}

/// A CloudEvents 1.0 event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Identifies the event together with `source`. Not empty.
    pub id: String,
    /// A URI-reference. Not empty.
    pub source: String,
    /// The CloudEvents attribute `type`. Not empty.
    pub event_type: String,
    /// What the event is about, within `source`.
    pub subject: Option<String>,
    /// When it happened; stores keep microseconds.
    pub time: Timestamp,
    /// The media type of `data`; absent means `application/json`.
    pub datacontenttype: Option<String>,
    /// A URI of the schema of `data`.
    pub dataschema: Option<String>,
    /// CloudEvents' partitioning extension.
    pub partitionkey: Option<String>,
    /// When it is delivered at the earliest; `None` for at once. Stores keep
    /// microseconds. In CloudEvents it is the extension attribute `deliverafter`,
    /// a time of RFC 3339 as text.
    pub deliver_after: Option<Timestamp>,
    /// Every other extension attribute.
    pub extensions: BTreeMap<String, ExtensionValue>,
    /// The payload as bytes; `None` for an event without one.
    pub data: Option<Vec<u8>>,
}

impl Event {
    /// An event with the attributes that every event has, and nothing else.
    ///
    /// ```
    /// use event_host_core::event::Event;
    /// use jiff::Timestamp;
    ///
    /// let event = Event {
    ///     data: Some(b"{}".to_vec()),
    ///     ..Event::new("1842", "/orders", "order.paid", Timestamp::UNIX_EPOCH)
    /// };
    /// assert_eq!(event.check(), Ok(()));
    /// ```
    #[must_use]
    pub fn new(
        id: impl Into<String>,
        source: impl Into<String>,
        event_type: impl Into<String>,
        time: Timestamp,
    ) -> Self {
        Self {
            id: id.into(),
            source: source.into(),
            event_type: event_type.into(),
            subject: None,
            time,
            datacontenttype: None,
            dataschema: None,
            partitionkey: None,
            deliver_after: None,
            extensions: BTreeMap::new(),
            data: None,
        }
    }
}

/// An event in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEvent {
    /// Its place.
    pub position: Position,
    /// The one group that receives it, or `None` for all. Only a replay sets it.
    pub deliver_to: Option<GroupName>,
    /// The component that handles it instead of the group's own; only a replay
    /// that names one sets it. `None` in a dead letter, which says itself what
    /// failed.
    pub digest: Option<Digest>,
    /// The event.
    pub event: Event,
}

impl LogEvent {
    /// An event for every group, to be handled by each group's own component.
    #[must_use]
    pub fn new(position: Position, event: Event) -> Self {
        Self { position, deliver_to: None, digest: None, event }
    }
}
