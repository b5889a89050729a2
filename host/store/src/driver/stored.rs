//! What every store keeps as text, and reads back.
//!
//! Names, states and subscriptions are written by this program alone, so one
//! that cannot be read is an error. What stands in an event comes from any client:
//! reading it never fails, because an event that could not be read would hold up every
//! group for ever.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{FailureCounts, GroupState, StoreError, Subscription, VersionState};
use event_host_core::digest::Digest;
use event_host_core::event::{ExtensionValue, GroupName, HandlerName, ScheduleName, Tenant};

/// A group's name.
pub fn group_name(name: &str) -> Result<GroupName, StoreError> {
    GroupName::stored(name).map_err(|error| StoreError::Unusable(error.to_string()))
}

/// A tenant.
pub fn tenant(tenant: &str) -> Result<Tenant, StoreError> {
    tenant.parse::<Tenant>().map_err(|error| StoreError::Unusable(error.to_string()))
}

/// A handler's name.
pub fn handler_name(name: &str) -> Result<HandlerName, StoreError> {
    name.parse::<HandlerName>().map_err(|error| StoreError::Unusable(error.to_string()))
}

/// A schedule's name.
pub fn schedule_name(name: &str) -> Result<ScheduleName, StoreError> {
    name.parse::<ScheduleName>().map_err(|error| StoreError::Unusable(error.to_string()))
}

/// Which row this is, of those of schedules: in words, for whatever stands in it.
pub fn schedule_of(name: Option<&str>) -> String {
    format!("the schedule {}", quoted(name))
}

/// Whose row this is, of those that say what is deployed: in words, for whatever
/// stands in it.
pub fn deployment_of(tenant: Option<&str>, handler: Option<&str>) -> String {
    let of_tenant = match tenant {
        Some("") => String::new(),
        tenant => format!(" of tenant {}", quoted(tenant)),
    };
    format!("what is deployed for handler {}{of_tenant}", quoted(handler))
}

/// Whose row this is, of those of groups.
pub fn row_of(group: Option<&str>) -> String {
    format!("the row of group {}", quoted(group))
}

/// A text that may be anything, of which a message shows a part.
fn quoted(text: Option<&str>) -> String {
    const SHOWN: usize = 100;
    let Some(text) = text else { return "(unreadable)".to_owned() };
    let part: String = text.chars().take(SHOWN).collect();
    format!("{part:?}")
}

/// A component's digest.
pub fn digest(digest: &str) -> Result<Digest, StoreError> {
    digest
        .parse::<Digest>()
        .map_err(|error| StoreError::Unusable(format!("a stored digest is none: {error}")))
}

/// The digest that stands in an event of the log. One that cannot be read becomes that of
/// no bytes, which are no component: the event then is like one whose component is gone.
pub fn digest_of_an_event(digest: &str) -> Digest {
    digest.parse().unwrap_or_else(|_| Digest::of(&[]))
}

/// The last moment that can be read, in microseconds since 1970: of a whole second, like
/// the constraints of the databases.
const LAST_TIME: i64 = 253_402_207_200_000_000;

/// The first one.
const FIRST_TIME: i64 = -377_705_023_201_000_000;

/// A moment in microseconds since 1970. One that is too early or too late to be read is
/// taken for the first or the last that can be.
pub fn time(microseconds: i64) -> Timestamp {
    let microseconds = microseconds.clamp(FIRST_TIME, LAST_TIME);
    Timestamp::from_microsecond(microseconds).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A component's size in bytes.
pub fn size(bytes: i64) -> Result<u64, StoreError> {
    u64::try_from(bytes)
        .map_err(|_| StoreError::Unusable(format!("a component of {bytes} bytes is stored")))
}

/// The form that [`VersionState::as_str`] gives.
pub fn version_state(state: &str) -> Result<VersionState, StoreError> {
    match state {
        "active" => Ok(VersionState::Active),
        "previous" => Ok(VersionState::Previous),
        "rolled-back" => Ok(VersionState::RolledBack),
        other => Err(StoreError::Unusable(format!(
            "`{other}` is not a state of a deployed version that this version of host knows"
        ))),
    }
}

/// The form that [`GroupState::as_str`] gives.
pub fn group_state(state: &str) -> Result<GroupState, StoreError> {
    match state {
        "running" => Ok(GroupState::Running),
        "paused" => Ok(GroupState::Paused),
        "tripped" => Ok(GroupState::Tripped),
        other => Err(StoreError::Unusable(format!(
            "`{other}` is not a state of a group that this version knows"
        ))),
    }
}

/// The patterns of a group's subscription.
pub fn subscription(group: &GroupName, patterns: Vec<String>) -> Result<Subscription, StoreError> {
    Subscription::new(patterns).map_err(|error| {
        StoreError::Unusable(format!("the stored subscription of group `{group}`: {error}"))
    })
}

/// A JSON object, or nothing where there are none; `kept` is how the store keeps
/// a text.
pub fn extensions_to_json(
    extensions: &BTreeMap<String, ExtensionValue>,
    kept: impl Fn(&str) -> String,
) -> Option<String> {
    if extensions.is_empty() {
        return None;
    }
    let object = extensions.iter().map(|(name, value)| {
        let value = match value {
            ExtensionValue::Boolean(value) => Value::Bool(*value),
            ExtensionValue::Integer(value) => Value::from(*value),
            ExtensionValue::Text(value) => Value::String(kept(value)),
        };
        (name.clone(), value)
    });
    Some(Value::Object(object.collect()).to_string())
}

/// A value of a type that CloudEvents does not have becomes text; null means that
/// the attribute is not there; what is no object holds none. One that cannot be read hides
/// no other: half a surrogate pair, which JSON may write and no text can hold, is U+FFFD.
pub fn extensions_from_json(json: &str) -> BTreeMap<String, ExtensionValue> {
    let Ok(object) = serde_json::from_str::<BTreeMap<String, &RawValue>>(json) else {
        return BTreeMap::new();
    };
    object.into_iter().filter_map(|(name, found)| Some((name, extension(found.get())?))).collect()
}

/// The value of one extension.
fn extension(json: &str) -> Option<ExtensionValue> {
    let text = |text: &str| Some(ExtensionValue::Text(text.to_owned()));
    match serde_json::from_str(json) {
        Ok(Value::Null) => None,
        Ok(Value::Bool(value)) => Some(ExtensionValue::Boolean(value)),
        Ok(Value::String(value)) => Some(ExtensionValue::Text(value)),
        // JSON has one kind of number: `1.0` is an integer.
        Ok(Value::Number(number)) => {
            let integer = number.as_f64().filter(|number| {
                number.fract() == 0.0
                    && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(number)
            });
            match integer {
                // In range, and whole.
                #[expect(clippy::cast_possible_truncation)]
                Some(integer) => Some(ExtensionValue::Integer(integer as i32)),
                None => text(&number.to_string()),
            }
        }
        Ok(nested @ (Value::Array(_) | Value::Object(_))) => text(&nested.to_string()),
        // A number or a depth that no `Value` has, or a text with half a surrogate pair.
        Err(_) => match serde_json::from_str::<Wtf8>(json) {
            Ok(Wtf8(value)) => Some(ExtensionValue::Text(value)),
            Err(_) => text(json),
        },
    }
}

/// A text of JSON, with U+FFFD for each half of a surrogate pair that stands alone.
struct Wtf8(String);

impl<'de> Deserialize<'de> for Wtf8 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Wtf8;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            // Asked for bytes, serde_json writes a lone surrogate as if it were a character.
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Wtf8, E> {
                // Such a one has three bytes, each of which is no UTF-8 by itself.
                let mut text = String::with_capacity(bytes.len());
                for chunk in bytes.utf8_chunks() {
                    text.push_str(chunk.valid());
                    if chunk.invalid().first() == Some(&0xed) {
                        text.push(char::REPLACEMENT_CHARACTER);
                    }
                }
                Ok(Wtf8(text))
            }
        }

        deserializer.deserialize_bytes(Bytes)
    }
}

/// Counts of failures, as they are stored: a JSON object. Somebody may have changed it
/// by hand, and `status` reads it for all groups at once: what is no count is left out,
/// and one that is too large is the largest.
pub fn failures(json: &str) -> FailureCounts {
    let Ok(Value::Object(object)) = serde_json::from_str(json) else {
        return FailureCounts::new();
    };
    let count = |value: &Value| {
        value.as_u64().or_else(|| {
            let number = value.as_f64().filter(|number| *number >= 1.0)?;
            // Saturates, and cuts a fraction off.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            Some(number as u64)
        })
    };
    object.iter().filter_map(|(kind, value)| Some((kind.clone(), count(value)?))).collect()
}

/// Counts of failures, to be stored.
pub fn failures_json(failures: &FailureCounts) -> String {
    // Texts and numbers alone, which always have a form in JSON.
    serde_json::to_value(failures).unwrap_or_default().to_string()
}

/// The patterns of a subscription, as they are stored, whether they are any or not.
///
/// # Errors
/// [`StoreError::Unusable`] for what is no list of texts.
pub fn patterns(json: &str) -> Result<Vec<String>, StoreError> {
    serde_json::from_str(json)
        .map_err(|error| StoreError::Unusable(format!("a subscription is no list: {error}")))
}

/// The patterns of a subscription, to be stored.
pub fn patterns_json(subscription: &Subscription) -> String {
    Value::from(subscription.patterns()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_of_another_client_are_read_as_far_as_they_go() {
        let read = extensions_from_json(
            r#"{"a": 1.5, "b": 5000000000, "c": null, "d": [1], "e": true, "f": -3, "g": "x", "h": 2.0}"#,
        );
        let text = |value: &str| ExtensionValue::Text(value.to_owned());
        assert_eq!(
            read.into_iter().collect::<Vec<_>>(),
            [
                ("a".to_owned(), text("1.5")),
                ("b".to_owned(), text("5000000000")),
                ("d".to_owned(), text("[1]")),
                ("e".to_owned(), ExtensionValue::Boolean(true)),
                ("f".to_owned(), ExtensionValue::Integer(-3)),
                ("g".to_owned(), text("x")),
                ("h".to_owned(), ExtensionValue::Integer(2)),
            ]
        );
        assert!(extensions_from_json("[1]").is_empty());
    }

    #[test]
    fn one_extension_that_cannot_be_read_hides_no_other() {
        let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
        let json = format!(
            r#"{{"a": "x", "b": "\ud800y\udc00\ud83e\udd80é", "c": 1e400, "d": {deep}, "e": 1, "a": "z"}}"#
        );
        let text = |value: &str| ExtensionValue::Text(value.to_owned());
        let expected = [
            ("a", text("z")),
            ("b", text("\u{fffd}y\u{fffd}\u{1f980}é")),
            ("c", text("1e400")),
            ("d", text(&deep)),
            ("e", ExtensionValue::Integer(1)),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(extensions_from_json(&json).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_moment_can_be_read_whatever_it_is() {
        for microseconds in [i64::MIN, FIRST_TIME - 1, FIRST_TIME, 0, LAST_TIME, i64::MAX] {
            let read = time(microseconds).as_microsecond();
            assert_eq!(read, microseconds.clamp(FIRST_TIME, LAST_TIME));
        }
        Timestamp::from_microsecond(FIRST_TIME - 1).unwrap_err();
        Timestamp::from_microsecond(LAST_TIME + 1).unwrap_err();
    }

    #[test]
    fn counts_that_somebody_changed_are_read_as_far_as_they_go() {
        let json =
            r#"{"trap": 3, "fuel": -1, "exit": 2.9, "retry": "7", "crash": 1e30, "reject": null}"#;
        let read: Vec<(String, u64)> = failures(json).into_iter().collect();
        let expected = [("crash", u64::MAX), ("exit", 2), ("trap", 3)];
        assert_eq!(read, expected.map(|(kind, count)| (kind.to_owned(), count)));
        assert!(failures("[1]").is_empty());
        assert_eq!(failures(&failures_json(&failures(json))), failures(json));
    }

    #[test]
    fn each_state_is_read_back() {
        for state in [GroupState::Running, GroupState::Paused, GroupState::Tripped] {
            assert_eq!(group_state(state.as_str()).unwrap(), state);
        }
        group_state("Running").unwrap_err();
        for state in [VersionState::Active, VersionState::Previous, VersionState::RolledBack] {
            assert_eq!(version_state(state.as_str()).unwrap(), state);
        }
        version_state("rolled back").unwrap_err();
    }
}
