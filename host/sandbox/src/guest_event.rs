//! An event as the contract has it: borrowed from the log's, so that it is copied once,
//! into the guest's memory.

use std::fmt::Write as _;

use super::bindings::event_host::handler::types::{Event as GuestEvent, ExtensionValueParam};
use event_host_core::event::{Attempt, DELIVER_AFTER, ExtensionValue, LogEvent};

/// Writes when an event happened over what the text held.
pub(super) fn write_time(text: &mut String, event: &LogEvent) {
    text.clear();
    // Writing to a string cannot fail.
    let _ = write!(text, "{}", event.event.time);
}

pub(super) fn deliver_after(event: &LogEvent) -> Option<String> {
    event.event.deliver_after.map(|time| time.to_string())
}

/// The extension attributes of an event, with when it is delivered among them.
pub(super) fn extensions<'a>(
    event: &'a LogEvent,
    deliver_after: Option<&'a str>,
) -> Vec<(&'a str, ExtensionValueParam<'a>)> {
    let mut extensions: Vec<_> = event.event.extensions.iter().map(extension).collect();
    if let Some(time) = deliver_after {
        let place = extensions.partition_point(|(name, _)| *name < DELIVER_AFTER);
        extensions.insert(place, (DELIVER_AFTER, ExtensionValueParam::Text(time)));
    }
    extensions
}

pub(super) fn guest_event<'a>(
    event: &'a LogEvent,
    attempt: Attempt,
    time: &'a str,
    extensions: &'a [(&'a str, ExtensionValueParam<'a>)],
) -> GuestEvent<'a> {
    let LogEvent { position, event, .. } = event;
    GuestEvent {
        id: &event.id,
        source: &event.source,
        type_: &event.event_type,
        subject: event.subject.as_deref(),
        time,
        datacontenttype: event.datacontenttype.as_deref(),
        dataschema: event.dataschema.as_deref(),
        extensions,
        data: event.data.as_deref().unwrap_or_default(),
        partitionkey: event.partitionkey.as_deref(),
        // Positions begin at 1.
        position: position.0.unsigned_abs(),
        attempt: attempt.0,
    }
}

fn extension<'a>(
    (name, value): (&'a String, &'a ExtensionValue),
) -> (&'a str, ExtensionValueParam<'a>) {
    let value = match value {
        ExtensionValue::Boolean(value) => ExtensionValueParam::Boolean(*value),
        ExtensionValue::Integer(value) => ExtensionValueParam::Integer(*value),
        ExtensionValue::Text(value) => ExtensionValueParam::Text(value),
    };
    (name, value)
}
