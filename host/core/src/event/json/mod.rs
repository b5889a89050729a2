//! The JSON form of a CloudEvent, as its JSON event format says.
//!
//! Reading is strict, and keeps the payload byte for byte: numbers, the order
//! of keys and whitespace inside the payload survive. Writing is the reverse:
//! what [`Event::to_json_string`] gives, [`Event::from_json`] reads back as the
//! same event.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub use super::check::InvalidEvent;
use super::check::{extension_name, quoted};
use super::draft::{Draft, missing};
use super::time::parse_time;
use super::{DELIVER_AFTER, Event, ExtensionValue};

/// The sentence for text that ends in mid-value.
pub(super) const INCOMPLETE: &str = "not JSON: it ends before it is complete";

/// The version of the specification, the only one there is an event format for.
pub const SPEC_VERSION: &str = "1.0";

impl Event {
    /// Reads one event.
    ///
    /// `null` means absent for an attribute, and for `data` beside
    /// `data_base64`. An event without `time` happens now. Times are kept in
    /// UTC and cut to microseconds, because that is what stores keep.
    ///
    /// # Errors
    /// When the text is not JSON or breaks the specification; the sentence names
    /// the attribute, what is wrong and what would be right.
    pub fn from_json(json: impl AsRef<[u8]>) -> Result<Self, InvalidEvent> {
        let json = utf8(json.as_ref())?;
        match first_byte(json) {
            Some(b'[') => Err(InvalidEvent::of_all(
                "a list stands where one event is expected, a JSON object".to_owned(),
            )),
            _ => event(json),
        }
    }

    /// Reads one event, or a batch: a JSON array of events, possibly empty.
    ///
    /// # Errors
    /// As [`Event::from_json`]; a sentence about a batch also says which of its
    /// events it is about, counted from 1.
    pub fn list_from_json(json: impl AsRef<[u8]>) -> Result<Vec<Self>, InvalidEvent> {
        let json = utf8(json.as_ref())?;
        if first_byte(json) != Some(b'[') {
            return Ok(vec![event(json)?]);
        }
        let batch: Vec<&RawValue> = serde_json::from_str(json).map_err(|e| not_json(&e))?;
        numbered(&batch, event)
    }

    /// The event as JSON text, without loss. One line, unless the payload is
    /// JSON with line breaks of its own.
    #[must_use]
    pub fn to_json_string(&self) -> String {
        // A map with text keys and values that are text, numbers and checked
        // JSON cannot fail to be written to memory.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The event as a JSON object, to be shown or put into a larger one. Numbers
    /// in the payload become 64-bit integers or floats, and keys are sorted;
    /// [`Event::to_json_string`], or serialising the event itself, loses nothing.
    #[must_use]
    pub fn to_json(&self) -> Map<String, Value> {
        let whole = |event: &Self| match serde_json::to_value(event) {
            Ok(Value::Object(map)) => Some(map),
            _ => None,
        };
        whole(self).unwrap_or_else(|| {
            // A payload whose numbers or depth no `Value` can hold.
            let bare = Self { data: None, ..self.clone() };
            let mut map = whole(&bare).unwrap_or_default();
            if let Some(data) = &self.data {
                map.insert("data_base64".to_owned(), STANDARD.encode(data).into());
            }
            map
        })
    }
}

impl Draft {
    /// Reads one, as [`Event::from_json`] does, but for what is left out. What the
    /// attributes hold is checked with the whole event.
    ///
    /// # Errors
    /// As [`Event::from_json`].
    pub fn from_json(json: &[u8]) -> Result<Self, InvalidEvent> {
        draft(utf8(json)?)
    }

    /// Reads a batch: a JSON array, possibly empty.
    ///
    /// # Errors
    /// As [`Event::list_from_json`], and when it is no array.
    pub fn batch_from_json(json: &[u8]) -> Result<Vec<Self>, InvalidEvent> {
        let batch: Vec<&RawValue> =
            serde_json::from_str(utf8(json)?).map_err(|error| not_json(&error))?;
        numbered(&batch, draft)
    }
}

/// Reads each of a batch, and says of which one a problem is, counted from 1.
fn numbered<T>(
    batch: &[&RawValue],
    read: impl Fn(&str) -> Result<T, InvalidEvent>,
) -> Result<Vec<T>, InvalidEvent> {
    let numbered = (1_usize..).zip(batch);
    numbered
        .map(|(number, one)| {
            read(one.get())
                .map_err(|e| InvalidEvent::of_all(format!("event {number} of the batch: {e}")))
        })
        .collect()
}

/// How a payload is written.
enum Payload<'a> {
    /// `data`, as it stands.
    Json(&'a RawValue),
    /// `data`, a string.
    Text(&'a str),
    /// `data_base64`.
    Binary(&'a [u8]),
}

impl<'a> Payload<'a> {
    /// Chooses the most readable form that reads back as the same bytes.
    fn of(data: &'a [u8], content_type: Option<&str>) -> Self {
        let readable = std::str::from_utf8(data).ok().and_then(|text| {
            if is_json(content_type) {
                let raw: &RawValue = serde_json::from_str(text).ok()?;
                (raw.get().len() == text.len()).then_some(Self::Json(raw))
            } else {
                is_text(content_type).then_some(Self::Text(text))
            }
        });
        readable.unwrap_or(Self::Binary(data))
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("specversion", SPEC_VERSION)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("source", &self.source)?;
        map.serialize_entry("type", &self.event_type)?;
        if let Some(subject) = &self.subject {
            map.serialize_entry("subject", subject)?;
        }
        map.serialize_entry("time", &self.time)?;
        if let Some(content_type) = &self.datacontenttype {
            map.serialize_entry("datacontenttype", content_type)?;
        }
        if let Some(schema) = &self.dataschema {
            map.serialize_entry("dataschema", schema)?;
        }
        if let Some(key) = &self.partitionkey {
            map.serialize_entry("partitionkey", key)?;
        }
        if let Some(deliver_after) = &self.deliver_after {
            map.serialize_entry(DELIVER_AFTER, deliver_after)?;
        }
        for (name, value) in &self.extensions {
            map.serialize_entry(name, value)?;
        }
        if let Some(data) = &self.data {
            match Payload::of(data, self.datacontenttype.as_deref()) {
                Payload::Json(raw) => map.serialize_entry("data", raw)?,
                Payload::Text(text) => map.serialize_entry("data", text)?,
                Payload::Binary(bytes) => {
                    map.serialize_entry("data_base64", &STANDARD.encode(bytes))?;
                }
            }
        }
        map.end()
    }
}

/// The media type without its parameters, in lower case.
#[must_use]
pub fn essence(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether `data` is JSON. It is by default.
#[must_use]
pub fn is_json(content_type: Option<&str>) -> bool {
    content_type.map(essence).is_none_or(|e| e.ends_with("/json") || e.ends_with("+json"))
}

/// Whether a payload of this type that is UTF-8 can be shown as text.
fn is_text(content_type: Option<&str>) -> bool {
    content_type
        .map(essence)
        .is_some_and(|e| e.starts_with("text/") || e.ends_with("/xml") || e.ends_with("+xml"))
}

/// JSON, which is text.
///
/// # Errors
/// With the first byte that is none.
pub fn utf8(bytes: &[u8]) -> Result<&str, InvalidEvent> {
    std::str::from_utf8(bytes).map_err(|e| {
        InvalidEvent::of_all(format!(
            "not UTF-8 from byte {} on: JSON is UTF-8 text",
            e.valid_up_to() + 1
        ))
    })
}

fn first_byte(json: &str) -> Option<u8> {
    json.trim_start_matches([' ', '\t', '\r', '\n']).bytes().next()
}

/// The sentence for what serde_json refuses. Its messages hold nothing of the
/// input.
#[must_use]
pub fn not_json(error: &serde_json::Error) -> InvalidEvent {
    if error.is_eof() {
        return InvalidEvent::of_all(INCOMPLETE.to_owned());
    }
    let whole = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let what = whole.strip_suffix(&place).unwrap_or(&whole);
    let line = if error.line() > 1 { format!("line {}, ", error.line()) } else { String::new() };
    InvalidEvent::of_all(format!("not JSON: {what} ({line}column {})", error.column()))
}

/// The members of a JSON object as they stand, duplicates included.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;

        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(ObjectVisitor)
    }
}

/// Reads a JSON object as an event.
fn event(json: &str) -> Result<Event, InvalidEvent> {
    let event = draft(json)?.whole()?;
    event.check()?;
    Ok(event)
}

/// Reads a JSON object as an event that may leave things out.
fn draft(json: &str) -> Result<Draft, InvalidEvent> {
    if first_byte(json) != Some(b'{') {
        // Broken JSON first; otherwise it is a value of another kind.
        let value: &RawValue = serde_json::from_str(json).map_err(|e| not_json(&e))?;
        return Err(InvalidEvent::of_all(format!(
            "{} stands where an event is expected, a JSON object",
            kind(value)
        )));
    }
    let Members(members) = serde_json::from_str(json).map_err(|e| not_json(&e))?;
    let mut named = BTreeMap::new();
    for (name, value) in members {
        match named.entry(name) {
            Entry::Vacant(free) => free.insert(value),
            Entry::Occupied(taken) => {
                return Err(InvalidEvent::new(
                    taken.key(),
                    "stands twice in the event: keep one of them",
                ));
            }
        };
    }
    Attributes(named).into_draft()
}

/// What kind of JSON value this is, for a sentence.
fn kind(value: &RawValue) -> &'static str {
    match value.get().as_bytes().first() {
        Some(b'"') => "a string",
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

fn string(name: &str, value: &RawValue) -> Result<String, InvalidEvent> {
    match kind(value) {
        // The text is JSON already, so what can be wrong is half a surrogate pair.
        "a string" => serde_json::from_str(value.get()).map_err(|_| {
            InvalidEvent::new(name, "holds half of a surrogate pair, which is no character")
        }),
        other => Err(InvalidEvent::new(name, format!("is {other}: give it as a string in quotes"))),
    }
}

/// The members of an event that have not been read yet, each once.
struct Attributes<'a>(BTreeMap<String, &'a RawValue>);

impl<'a> Attributes<'a> {
    /// Takes a member; `null` counts as absent.
    fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        self.0.remove(name).filter(|value| kind(value) != "null")
    }

    fn optional(&mut self, name: &str) -> Result<Option<String>, InvalidEvent> {
        self.take(name).map(|value| string(name, value)).transpose()
    }

    fn required(&mut self, name: &str, example: &str) -> Result<String, InvalidEvent> {
        self.optional(name)?.ok_or_else(|| missing(name, example))
    }

    fn into_draft(mut self) -> Result<Draft, InvalidEvent> {
        let version = self.required("specversion", SPEC_VERSION)?;
        spec_version(&version)?;
        let id = self.optional("id")?;
        let source = self.optional("source")?;
        let event_type = self.required("type", "order.paid")?;
        let subject = self.optional("subject")?;
        let time = self.optional("time")?.map(|text| parse_time("time", &text)).transpose()?;
        let datacontenttype = self.optional("datacontenttype")?;
        let dataschema = self.optional("dataschema")?;
        let partitionkey = self.optional("partitionkey")?;
        let deliver_after = self.optional(DELIVER_AFTER)?;
        let deliver_after =
            deliver_after.map(|text| parse_time(DELIVER_AFTER, &text)).transpose()?;
        let data = self.data(datacontenttype.as_deref())?;
        let extensions = self.extensions()?;
        Ok(Draft {
            id,
            source,
            event_type,
            subject,
            time,
            datacontenttype,
            dataschema,
            partitionkey,
            deliver_after,
            extensions,
            data,
        })
    }

    fn data(&mut self, content_type: Option<&str>) -> Result<Option<Vec<u8>>, InvalidEvent> {
        let base64 = self.optional("data_base64")?;
        // The specification makes null absent for attributes, and `data` is
        // none: in JSON, null is a payload.
        let data = self
            .0
            .remove("data")
            .filter(|value| kind(value) != "null" || (base64.is_none() && is_json(content_type)));
        match (data, base64) {
            (Some(_), Some(_)) => Err(InvalidEvent::new(
                "data",
                "and `data_base64` exclude one another: keep the one that holds the payload",
            )),
            (None, Some(text)) => STANDARD.decode(&text).map(Some).map_err(|e| {
                InvalidEvent::new("data_base64", format!("is not Base64 with padding: {e}"))
            }),
            (Some(value), None) if !is_json(content_type) && kind(value) == "a string" => {
                string("data", value).map(|text| Some(text.into_bytes()))
            }
            (Some(value), None) => Ok(Some(value.get().as_bytes().to_vec())),
            (None, None) => Ok(None),
        }
    }

    /// Reads what is left.
    fn extensions(self) -> Result<BTreeMap<String, ExtensionValue>, InvalidEvent> {
        let mut extensions = BTreeMap::new();
        for (name, value) in self.0 {
            extension_name(&name)?;
            let value = match kind(value) {
                "null" => continue,
                "a string" => ExtensionValue::Text(string(&name, value)?),
                "a boolean" => ExtensionValue::Boolean(value.get() == "true"),
                "a number" => ExtensionValue::Integer(value.get().parse().map_err(|_| {
                    InvalidEvent::new(
                        &name,
                        format!(
                            "is {}, which is no whole number of 32 bits: give it as a string in quotes",
                            quoted(value.get())
                        ),
                    )
                })?),
                other => {
                    return Err(InvalidEvent::new(
                        &name,
                        format!(
                            "is {other}: an extension attribute is a boolean, an integer or a string; what has a structure belongs in `data`"
                        ),
                    ));
                }
            };
            extensions.insert(name, value);
        }
        Ok(extensions)
    }
}

/// Checks the version of the specification that an event names.
///
/// # Errors
/// When it is not [`SPEC_VERSION`].
pub fn spec_version(version: &str) -> Result<(), InvalidEvent> {
    if version == SPEC_VERSION {
        return Ok(());
    }
    Err(InvalidEvent::new(
        "specversion",
        format!("is {}: only `{SPEC_VERSION}` is known", quoted(version)),
    ))
}

#[cfg(test)]
mod tests;
