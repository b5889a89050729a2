//! An event as columns, and back.
//!
//! Reading never fails on what another SQLite client may have inserted: text
//! that is no UTF-8 is made so, and an extension of a type that CloudEvents
//! does not have becomes text. An event that could not be read would hold up
//! every group for ever.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Row, Sqlite};

use super::error::Broken;
use crate::event::{Event, ExtensionValue, GroupName, LogEvent, Position};
use crate::store::StoreError;

/// A statement that parameters are bound to.
pub(super) type Statement<'q> = Query<'q, Sqlite, SqliteArguments>;

/// The columns of an event that [`bind_event`] gives values to, in its order.
macro_rules! event_columns {
    () => {
        "type, time, id, source, subject, datacontenttype, dataschema, partitionkey, extensions, data"
    };
}
pub(super) use event_columns;

/// How many columns [`event_columns`] names.
pub(super) const EVENT_COLUMNS: usize = 10;

/// Binds an event's columns, in the order of [`event_columns`].
pub(super) fn bind_event<'q>(statement: Statement<'q>, event: &'q Event) -> Statement<'q> {
    statement
        .bind(event.event_type.as_str())
        .bind(event.time.as_microsecond())
        .bind(event.id.as_str())
        .bind(event.source.as_str())
        .bind(event.subject.as_deref())
        .bind(event.datacontenttype.as_deref())
        .bind(event.dataschema.as_deref())
        .bind(event.partitionkey.as_deref())
        .bind(extensions_to_json(&event.extensions))
        .bind(event.data.as_deref())
}

/// Reads the columns of [`event_columns`], the first of which stands at `first`.
pub(super) fn read_event(row: &SqliteRow, first: usize) -> Result<Event, Broken> {
    Ok(Event {
        event_type: text(row, first)?,
        time: time(row, first + 1)?,
        id: text(row, first + 2)?,
        source: text(row, first + 3)?,
        subject: optional_text(row, first + 4)?,
        datacontenttype: optional_text(row, first + 5)?,
        dataschema: optional_text(row, first + 6)?,
        partitionkey: optional_text(row, first + 7)?,
        extensions: match row.try_get_unchecked::<Option<&[u8]>, _>(first + 8)? {
            Some(json) => extensions_from_json(json),
            None => BTreeMap::new(),
        },
        data: row.try_get_unchecked::<Option<Vec<u8>>, _>(first + 9)?,
    })
}

/// Reads position, addressee and event from three places.
pub(super) fn read_log_event(
    row: &SqliteRow,
    position: usize,
    deliver_to: usize,
    event: usize,
) -> Result<LogEvent, Broken> {
    Ok(LogEvent {
        position: Position(row.try_get_unchecked(position)?),
        deliver_to: optional_text(row, deliver_to)?.map(|name| group_name(&name)).transpose()?,
        event: read_event(row, event)?,
    })
}

/// A stored group name. Only this program writes them.
pub(super) fn group_name(name: &str) -> Result<GroupName, Broken> {
    name.parse::<GroupName>().map_err(|error| StoreError::Unusable(error.to_string()).into())
}

pub(super) fn text(row: &SqliteRow, index: usize) -> Result<String, Broken> {
    Ok(lossy(row.try_get_unchecked(index)?))
}

pub(super) fn optional_text(row: &SqliteRow, index: usize) -> Result<Option<String>, Broken> {
    Ok(row.try_get_unchecked::<Option<&[u8]>, _>(index)?.map(lossy))
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn time(row: &SqliteRow, index: usize) -> Result<Timestamp, Broken> {
    let microseconds: i64 = row.try_get_unchecked(index)?;
    Timestamp::from_microsecond(microseconds).map_err(|error| {
        StoreError::Unusable(format!("{microseconds} is no time in microseconds: {error}")).into()
    })
}

pub(super) fn optional_time(row: &SqliteRow, index: usize) -> Result<Option<Timestamp>, Broken> {
    match row.try_get_unchecked::<Option<i64>, _>(index)? {
        Some(_) => time(row, index).map(Some),
        None => Ok(None),
    }
}

/// A count or an attempt: what does not fit is as good as the largest.
pub(super) fn count(row: &SqliteRow, index: usize) -> Result<u32, Broken> {
    let count: i64 = row.try_get_unchecked(index)?;
    Ok(u32::try_from(count.max(0)).unwrap_or(u32::MAX))
}

fn extensions_to_json(extensions: &BTreeMap<String, ExtensionValue>) -> Option<String> {
    if extensions.is_empty() {
        return None;
    }
    let object = extensions.iter().map(|(name, value)| {
        let value = match value {
            ExtensionValue::Boolean(value) => Value::Bool(*value),
            ExtensionValue::Integer(value) => Value::from(*value),
            ExtensionValue::Text(value) => Value::String(value.clone()),
        };
        (name.clone(), value)
    });
    Some(Value::Object(object.collect()).to_string())
}

fn extensions_from_json(json: &[u8]) -> BTreeMap<String, ExtensionValue> {
    let Ok(Value::Object(object)) = serde_json::from_str(&String::from_utf8_lossy(json)) else {
        // The table refuses anything else, save what SQLite calls JSON and
        // serde_json does not, such as JSON5.
        return BTreeMap::new();
    };
    let value = |value: Value| match value {
        Value::Null => None,
        Value::Bool(value) => Some(ExtensionValue::Boolean(value)),
        Value::String(value) => Some(ExtensionValue::Text(value)),
        Value::Number(number) => {
            Some(match number.as_i64().and_then(|number| i32::try_from(number).ok()) {
                Some(integer) => ExtensionValue::Integer(integer),
                None => ExtensionValue::Text(number.to_string()),
            })
        }
        nested @ (Value::Array(_) | Value::Object(_)) => {
            Some(ExtensionValue::Text(nested.to_string()))
        }
    };
    object.into_iter().filter_map(|(name, found)| Some((name, value(found)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_of_another_client_are_read_as_far_as_they_go() {
        let read = extensions_from_json(
            br#"{"a": 1.5, "b": 5000000000, "c": null, "d": [1], "e": true, "f": -3, "g": "x"}"#,
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
            ]
        );
    }
}
