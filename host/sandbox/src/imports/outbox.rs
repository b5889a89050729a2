//! `outbox`: the events that an attempt publishes if it succeeds.
//!
//! What is taken here is settled without another check, so everything that
//! CloudEvents or a store would refuse is refused here.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use jiff::Timestamp;

use super::{HostState, RunningAttempt};
use crate::bindings::event_host::handler::outbox::{EmitError, Host, Message};
use crate::bindings::event_host::handler::types::ExtensionValueResult;
use crate::ending::{Abort, size};
use crate::guest_log::toml_string;
use crate::settings::{Limits, names};
use event_host_core::event::time::{parse_time, to_microseconds};
use event_host_core::event::{DELIVER_AFTER, Event, ExtensionValue, quoted};
use event_host_core::failure::{FailureKind, storable};
use event_host_metrics::Denied;

/// What the host keeps of each emit besides its data and attributes, in bytes: an
/// [`Event`], the id and the source that it is given, and a node of its extensions.
const EMIT_BYTES: usize = 1_024;

/// Bytes of an event's type in what is said of a denial.
const TYPE_BYTES: usize = 200;

impl Host for HostState {
    fn emit(&mut self, message: Message) -> wasmtime::Result<Result<(), EmitError>> {
        let (attempt, limits) = self.limited()?;
        let bytes = attempt.count_emit(&message, limits)?;
        self.charge(bytes.saturating_add(EMIT_BYTES))?;
        if !self.profile.grants.emit.allows(&message.type_) {
            return Ok(Err(self.denied_emit(&message.type_)));
        }
        let attempt = self.running()?;
        Ok(match attempt.event(message) {
            Ok(event) => {
                attempt.emits.push(event);
                Ok(())
            }
            Err(text) => Err(EmitError::Invalid(text)),
        })
    }
}

impl HostState {
    #[cold]
    fn denied_emit(&self, event_type: &str) -> EmitError {
        let event_type = storable(event_type, TYPE_BYTES);
        let value = format!("[{}]", toml_string(&event_type));
        self.profile.metrics.denied(Denied::Emit);
        self.log.denied(&format!("emitting {}", quoted(&event_type)), "emit", &value);
        EmitError::Denied(format!("the handler may not emit {}", quoted(&event_type)))
    }
}

impl RunningAttempt {
    /// Counts a message against the limits before it is looked at, and gives its size:
    /// one that is refused later has cost the host that too.
    fn count_emit(&mut self, message: &Message, limits: &Limits) -> wasmtime::Result<usize> {
        if self.emits.len() >= limits.emits {
            return Err(Abort::limit(
                FailureKind::EmitLimit,
                format!("wanted more than {} emits, {}", limits.emits, names::EMITS),
            ));
        }
        let bytes = message_bytes(message);
        if bytes > limits.emit_bytes {
            return Err(Abort::limit(
                FailureKind::EmitLimit,
                format!(
                    "wanted to emit {} at once, {} is {}",
                    size(bytes),
                    names::EMIT,
                    size(limits.emit_bytes)
                ),
            ));
        }
        self.emit_bytes = self.emit_bytes.saturating_add(bytes);
        if self.emit_bytes > limits.emit_total_bytes {
            return Err(Abort::limit(
                FailureKind::EmitLimit,
                format!(
                    "wanted to emit {} in all, {} is {}",
                    size(self.emit_bytes),
                    names::EMIT_TOTAL,
                    size(limits.emit_total_bytes)
                ),
            ));
        }
        Ok(bytes)
    }

    /// The event that a message stands for, but for the partition key that it
    /// inherits, or what is wrong with it.
    fn event(&self, message: Message) -> Result<Event, String> {
        let mut extensions = extensions(message.extensions)?;
        let deliver_after = deliver_after(&mut extensions)?;
        let event = Event {
            id: match message.id {
                Some(id) => id,
                None => format!("{}:{}:{}", self.group, self.position, self.emits.len() + 1),
            },
            source: match message.source {
                Some(source) => source,
                None => format!("/groups/{}", self.group),
            },
            event_type: message.type_,
            subject: message.subject,
            time: match message.time {
                Some(time) => parse_time("time", &time).map_err(|error| error.to_string())?,
                None => to_microseconds(Timestamp::now()),
            },
            datacontenttype: message.datacontenttype,
            dataschema: message.dataschema,
            partitionkey: message.partitionkey,
            deliver_after,
            extensions,
            data: if message.data.is_empty() { None } else { Some(message.data) },
        };
        event.check().map_err(|error| error.to_string())?;
        event.check_delay(Timestamp::now()).map_err(|error| error.to_string())?;
        Ok(event)
    }
}

fn extensions(
    given: Vec<(String, ExtensionValueResult)>,
) -> Result<BTreeMap<String, ExtensionValue>, String> {
    let mut extensions = BTreeMap::new();
    for (name, value) in given {
        let value = match value {
            ExtensionValueResult::Boolean(value) => ExtensionValue::Boolean(value),
            ExtensionValueResult::Integer(value) => ExtensionValue::Integer(value),
            ExtensionValueResult::Text(value) => ExtensionValue::Text(value),
        };
        match extensions.entry(name) {
            Entry::Vacant(entry) => entry.insert(value),
            Entry::Occupied(entry) => {
                return Err(format!("{} is given twice", quoted(entry.key())));
            }
        };
    }
    Ok(extensions)
}

/// Takes the extension that says when an event is delivered at the earliest.
fn deliver_after(
    extensions: &mut BTreeMap<String, ExtensionValue>,
) -> Result<Option<Timestamp>, String> {
    match extensions.remove(DELIVER_AFTER) {
        None => Ok(None),
        Some(ExtensionValue::Text(text)) => {
            parse_time(DELIVER_AFTER, &text).map(Some).map_err(|error| error.to_string())
        }
        Some(ExtensionValue::Boolean(_) | ExtensionValue::Integer(_)) => Err(format!(
            "{} is no text: give it as a time of RFC 3339, such as `2026-01-31T12:00:00Z`",
            quoted(DELIVER_AFTER)
        )),
    }
}

/// What a message makes the host hold.
fn message_bytes(message: &Message) -> usize {
    let optional = [
        &message.id,
        &message.source,
        &message.subject,
        &message.time,
        &message.datacontenttype,
        &message.dataschema,
        &message.partitionkey,
    ];
    let extensions = message.extensions.iter().map(|(name, value)| {
        name.len()
            + match value {
                ExtensionValueResult::Text(text) => text.len(),
                ExtensionValueResult::Boolean(_) | ExtensionValueResult::Integer(_) => 4,
            }
    });
    message.type_.len()
        + message.data.len()
        + optional.into_iter().flatten().map(String::len).sum::<usize>()
        + extensions.sum::<usize>()
}

/// A message that says nothing.
pub(crate) fn empty_message() -> Message {
    Message {
        type_: String::new(),
        data: Vec::new(),
        id: None,
        source: None,
        subject: None,
        time: None,
        datacontenttype: None,
        dataschema: None,
        partitionkey: None,
        extensions: Vec::new(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use event_host_core::event::{Position, Tenant};
    use event_host_core::handler::state::{BatchState, EmptyState};

    fn running() -> RunningAttempt {
        RunningAttempt {
            group: "triage".parse().unwrap(),
            tenant: Tenant::none(),
            position: Position(42),
            is_replay: false,
            is_late: false,
            deadline: Instant::now(),
            state: BatchState::new("").attempt(Arc::new(EmptyState)),
            state_writes: 0,
            state_bytes: 0,
            store_asked: None,
            emits: Vec::new(),
            emit_bytes: 0,
        }
    }

    /// The event that an attempt emits for a message.
    pub(crate) fn event_of(message: Message) -> Result<Event, String> {
        running().event(message)
    }

    fn message() -> Message {
        Message { type_: "t".into(), data: b"{}".to_vec(), ..empty_message() }
    }

    #[test]
    fn what_a_message_leaves_out_is_the_same_in_every_attempt() {
        let mut attempt = running();
        let first = attempt.event(message()).unwrap();
        assert_eq!((first.id.as_str(), first.source.as_str()), ("triage:42:1", "/groups/triage"));
        attempt.emits.push(first);
        assert_eq!(attempt.event(message()).unwrap().id, "triage:42:2");
    }

    #[test]
    fn a_message_that_breaks_cloudevents_is_told_which_attribute_and_how() {
        let text = |value: &str| ExtensionValueResult::Text(value.into());
        let ext = |name: &str, value| vec![(name.to_owned(), value)];
        let cases: Vec<(Message, &str)> = vec![
            (Message { type_: String::new(), ..message() }, "`type` is empty"),
            (Message { id: Some(String::new()), ..message() }, "`id` is empty"),
            (Message { source: Some(String::new()), ..message() }, "`source` is empty"),
            (Message { subject: Some(String::new()), ..message() }, "`subject` is empty"),
            (Message { partitionkey: Some(String::new()), ..message() }, "`partitionkey` is empty"),
            (Message { time: Some("yesterday".into()), ..message() }, "no time of RFC 3339"),
            (Message { datacontenttype: Some("json".into()), ..message() }, "no media type"),
            (
                Message { subject: Some("a\0b".into()), ..message() },
                "`subject` holds the character U+0000",
            ),
            (Message { type_: "a\u{ffff}".into(), ..message() }, "U+FFFF"),
            (
                Message { partitionkey: Some("é".repeat(513)), ..message() },
                "`partitionkey` has 1026 bytes; the most is 1024",
            ),
            (
                Message { subject: Some("s".repeat(8_193)), ..message() },
                "`subject` has 8193 bytes; the most is 8192",
            ),
            (
                Message { extensions: ext("trace", text(&"x".repeat(65_536))), ..message() },
                "the extension attributes are 65549 bytes of JSON together; the most is 65536",
            ),
            (
                Message { time: Some("2026-01-01T00:00:00+24:00".into()), ..message() },
                "no time of RFC 3339",
            ),
            (
                Message { extensions: ext("Trace", text("a")), ..message() },
                "`Trace` is not the name",
            ),
            (Message { extensions: ext("", text("a")), ..message() }, "`` is not the name"),
            (Message { extensions: ext("time", text("a")), ..message() }, "`time` is no extension"),
            (
                Message { extensions: ext("partitionkey", text("a")), ..message() },
                "`partitionkey` is no extension",
            ),
            (
                Message { extensions: ext("deliverafter", text("in an hour")), ..message() },
                "`deliverafter` is `in an hour`, which is no time of RFC 3339",
            ),
            (
                Message {
                    extensions: ext("deliverafter", ExtensionValueResult::Integer(60)),
                    ..message()
                },
                "`deliverafter` is no text",
            ),
            (
                Message {
                    extensions: ext("deliverafter", text("9999-01-01T00:00:00Z")),
                    ..message()
                },
                "`deliverafter` is 9999-01-01T00:00:00Z, which is more than 366 days from now",
            ),
            (
                Message { extensions: ext("trace", text("a\nb")), ..message() },
                "`trace` holds the character U+000A",
            ),
            (
                Message {
                    extensions: [ext("a", text("1")), ext("a", text("2"))].concat(),
                    ..message()
                },
                "`a` is given twice",
            ),
        ];
        for (message, expected) in cases {
            let error = running().event(message).unwrap_err();
            assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        }
    }

    #[test]
    fn every_attribute_and_every_extension_type_is_kept() {
        let full = Message {
            id: Some("i".into()),
            source: Some("/s".into()),
            subject: Some("sub".into()),
            time: Some("2026-01-01T01:00:00+01:00".into()),
            datacontenttype: Some("text/plain".into()),
            dataschema: Some("https://example.com/s".into()),
            partitionkey: Some("k".into()),
            extensions: vec![
                ("a".into(), ExtensionValueResult::Boolean(true)),
                ("b".into(), ExtensionValueResult::Integer(-7)),
                ("c".into(), ExtensionValueResult::Text(String::new())),
                (
                    "deliverafter".into(),
                    ExtensionValueResult::Text("2026-02-01T01:00:00+01:00".into()),
                ),
            ],
            ..message()
        };
        let event = running().event(full).unwrap();
        assert_eq!(event.time.to_string(), "2026-01-01T00:00:00Z");
        assert_eq!(event.partitionkey.as_deref(), Some("k"));
        assert_eq!(event.deliver_after, Some("2026-02-01T00:00:00Z".parse().unwrap()));
        assert_eq!(event.extensions.len(), 3);
        assert_eq!(event.extensions["a"], ExtensionValue::Boolean(true));
        assert_eq!(event.extensions["b"], ExtensionValue::Integer(-7));
        assert_eq!(event.extensions["c"], ExtensionValue::Text(String::new()));
    }

    #[test]
    fn attributes_count_to_the_size_of_an_emit() {
        let limits = Limits { emit_bytes: 100, emit_total_bytes: 150, ..Limits::default() };
        let mut attempt = running();
        let sized = |bytes: usize| Message { subject: Some("s".repeat(bytes - 3)), ..message() };
        attempt.count_emit(&sized(100), &limits).unwrap();
        let single = attempt.count_emit(&sized(101), &limits).unwrap_err().to_string();
        assert_eq!(single, "wanted to emit 101 B at once, limits.emit is 100 B");
        let total = attempt.count_emit(&sized(51), &limits).unwrap_err().to_string();
        assert_eq!(total, "wanted to emit 151 B in all, limits.emit_total is 150 B");
    }
}
