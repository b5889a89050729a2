//! An event as columns, and back.
//!
//! Reading never fails on what another SQLite client may have inserted, in whatever
//! column and of whatever type: SQLite converts numbers and texts, text that is no UTF-8
//! is made so, a time that cannot be read becomes the nearest that can, and an extension
//! of a type that CloudEvents does not have becomes text. An event that could not be read would hold up
//! every group for ever.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Row, Sqlite};

use super::error::SqliteError;
use event_host_core::event::bounds::SHORT_BYTES;
use event_host_core::event::{Event, LogEvent, Position};
use event_host_store::driver::stored::{
    self, extensions_from_json, extensions_to_json, group_name,
};

/// A statement that parameters are bound to.
pub(super) type Statement<'q> = Query<'q, Sqlite, SqliteArguments>;

/// The columns of an event that [`bind_event`] gives values to, in its order.
macro_rules! event_columns {
    () => {
        "type, time, id, source, subject, datacontenttype, dataschema, partitionkey, deliver_after, \
         extensions, data"
    };
}
pub(super) use event_columns;

/// How many columns [`event_columns`] names.
pub(super) const EVENT_COLUMNS: usize = 11;

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
        .bind(event.deliver_after.map(Timestamp::as_microsecond))
        .bind(extensions_to_json(&event.extensions, str::to_owned))
        .bind(event.data.as_deref())
}

/// Reads the columns of [`event_columns`], the first of which stands at `first`.
pub(super) fn read_event(row: &SqliteRow, first: usize) -> Result<Event, SqliteError> {
    Ok(Event {
        event_type: text(row, first)?,
        time: time(row, first + 1)?,
        id: text(row, first + 2)?,
        source: text(row, first + 3)?,
        subject: optional_text(row, first + 4)?,
        datacontenttype: optional_text(row, first + 5)?,
        dataschema: optional_text(row, first + 6)?,
        partitionkey: optional_text(row, first + 7)?,
        deliver_after: optional_time(row, first + 8)?,
        extensions: match row.try_get_unchecked::<Option<&[u8]>, _>(first + 9)? {
            Some(json) => extensions_from_json(&lossy(json)),
            None => BTreeMap::new(),
        },
        data: row.try_get_unchecked::<Option<Vec<u8>>, _>(first + 10)?,
    })
}

/// Reads position, addressee and event from three places, and from a fourth
/// the digest that a replay named, where there is such a column.
pub(super) fn read_log_event(
    row: &SqliteRow,
    position: usize,
    deliver_to: usize,
    digest: Option<usize>,
    event: usize,
) -> Result<LogEvent, SqliteError> {
    Ok(LogEvent {
        position: Position(row.try_get_unchecked(position)?),
        deliver_to: optional_text(row, deliver_to)?.map(|name| group_name(&name)).transpose()?,
        digest: match digest {
            Some(digest) => {
                optional_text(row, digest)?.map(|text| stored::digest_of_an_event(&text))
            }
            None => None,
        },
        event: read_event(row, event)?,
    })
}

pub(super) fn text(row: &SqliteRow, index: usize) -> Result<String, SqliteError> {
    Ok(lossy(row.try_get_unchecked(index)?))
}

pub(super) fn optional_text(row: &SqliteRow, index: usize) -> Result<Option<String>, SqliteError> {
    Ok(row.try_get_unchecked::<Option<&[u8]>, _>(index)?.map(lossy))
}

/// Text of whatever stands there. U+FFFD stands for what is no UTF-8, or `?` where that
/// would make more than [`SHORT_BYTES`] of it: a text that the constraints let in must not
/// be one that they refuse when a replay or a handler puts it into the log again.
fn lossy(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if text.len() <= bytes.len().max(SHORT_BYTES) {
        return text.into_owned();
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push('?');
        }
    }
    text
}

pub(super) fn time(row: &SqliteRow, index: usize) -> Result<Timestamp, SqliteError> {
    Ok(stored::time(row.try_get_unchecked(index)?))
}

pub(super) fn optional_time(
    row: &SqliteRow,
    index: usize,
) -> Result<Option<Timestamp>, SqliteError> {
    match row.try_get_unchecked::<Option<i64>, _>(index)? {
        Some(_) => time(row, index).map(Some),
        None => Ok(None),
    }
}

/// A count or an attempt: what does not fit is as good as the largest.
pub(super) fn count(row: &SqliteRow, index: usize) -> Result<u32, SqliteError> {
    let count: i64 = row.try_get_unchecked(index)?;
    Ok(u32::try_from(count.max(0)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_utf_8_gets_no_longer_than_an_attribute_may_be() {
        assert_eq!(lossy(b"a\xffb\xe2\x82"), "a\u{fffd}b\u{fffd}");
        assert_eq!(lossy(&[0xff; 341]), "\u{fffd}".repeat(341));
        assert_eq!(lossy(&[0xff; 342]), "?".repeat(342));
        assert_eq!(lossy(&[0xff; 1_024]), "?".repeat(1_024));
        let long = [&b"x".repeat(2_000)[..], "\u{20ac}\u{fffd}".as_bytes(), b"\xff"].concat();
        assert_eq!(lossy(&long), "x".repeat(2_000) + "\u{20ac}\u{fffd}?");
    }
}
