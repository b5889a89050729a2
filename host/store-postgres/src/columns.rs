//! An event as columns, and back.
//!
//! PostgreSQL's text holds no NUL. No attribute of an event, key of a state or
//! text of a failure has one when it comes here through the host's own checks;
//! one that does all the same is kept as U+FFFD, because what cannot be stored
//! would hold up its group for ever.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{
    PgArgumentBuffer, PgArguments, PgHasArrayType, PgRow, PgTypeInfo, PgValueRef,
};
use sqlx::query::Query;
use sqlx::{Decode, Encode, Postgres, Row, Type};

use super::error::PostgresError;
use event_host_core::event::{Event, LogEvent, Position};
use event_host_store::driver::stored::{
    self, extensions_from_json, extensions_to_json, group_name,
};

/// A statement that parameters are bound to.
pub(super) type Statement<'q> = Query<'q, Postgres, PgArguments>;

/// A `timestamptz`, which is a number of microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time(pub(super) Timestamp);

impl Time {
    // Both from `pg_type.dat` of PostgreSQL's sources; they are part of its
    // protocol and never change.
    const OID: Oid = Oid(1_184);
    const ARRAY_OID: Oid = Oid(1_185);

    /// PostgreSQL counts from 2000-01-01 00:00 UTC.
    const EPOCH: i64 = 946_684_800_000_000;
}

impl Type<Postgres> for Time {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Self::OID)
    }
}

impl PgHasArrayType for Time {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Self::ARRAY_OID)
    }
}

impl Encode<'_, Postgres> for Time {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        // Every time that this program knows is far from the ends of i64.
        let microseconds = self.0.as_microsecond() - Self::EPOCH;
        <i64 as Encode<'_, Postgres>>::encode_by_ref(&microseconds, buffer)
    }
}

impl Decode<'_, Postgres> for Time {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        // Infinity is the largest number that there is.
        let microseconds = <i64 as Decode<'_, Postgres>>::decode(value)?;
        Ok(Self(stored::time(microseconds.saturating_add(Self::EPOCH))))
    }
}

/// A text as PostgreSQL can hold it.
pub(super) fn kept(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// The columns of an event that [`Events`] gives values to, in its order.
macro_rules! event_columns {
    () => {
        "type, time, id, source, subject, datacontenttype, dataschema, partitionkey, deliver_after, \
         extensions, data"
    };
}
pub(super) use event_columns;

/// Events column by column, as `unnest` takes them.
pub(super) struct Events<'a> {
    types: Vec<Cow<'a, str>>,
    times: Vec<Time>,
    ids: Vec<Cow<'a, str>>,
    sources: Vec<Cow<'a, str>>,
    subjects: Vec<Option<Cow<'a, str>>>,
    datacontenttypes: Vec<Option<Cow<'a, str>>>,
    dataschemas: Vec<Option<Cow<'a, str>>>,
    partitionkeys: Vec<Option<Cow<'a, str>>>,
    deliver_afters: Vec<Option<Time>>,
    extensions: Vec<Option<String>>,
    data: Vec<Option<&'a [u8]>>,
}

/// The parameters that [`Events::bind`] binds, as a row source with the columns
/// of [`event_columns`] and `ordinality`; `$1` is the first of them.
macro_rules! unnest_events {
    () => {
        "unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[],
                $6::text[], $7::text[], $8::text[], $9::timestamptz[], $10::text[],
                $11::bytea[])
         WITH ORDINALITY AS e (type, time, id, source, subject, datacontenttype,
                dataschema, partitionkey, deliver_after, extensions, data, ordinality)"
    };
}
pub(super) use unnest_events;

impl<'a> Events<'a> {
    pub(super) fn new(events: impl ExactSizeIterator<Item = &'a Event>) -> Self {
        let count = events.len();
        let mut columns = Self {
            types: Vec::with_capacity(count),
            times: Vec::with_capacity(count),
            ids: Vec::with_capacity(count),
            sources: Vec::with_capacity(count),
            subjects: Vec::with_capacity(count),
            datacontenttypes: Vec::with_capacity(count),
            dataschemas: Vec::with_capacity(count),
            partitionkeys: Vec::with_capacity(count),
            deliver_afters: Vec::with_capacity(count),
            extensions: Vec::with_capacity(count),
            data: Vec::with_capacity(count),
        };
        for event in events {
            columns.types.push(kept(&event.event_type));
            columns.times.push(Time(event.time));
            columns.ids.push(kept(&event.id));
            columns.sources.push(kept(&event.source));
            columns.subjects.push(event.subject.as_deref().map(kept));
            columns.datacontenttypes.push(event.datacontenttype.as_deref().map(kept));
            columns.dataschemas.push(event.dataschema.as_deref().map(kept));
            columns.partitionkeys.push(event.partitionkey.as_deref().map(kept));
            columns.deliver_afters.push(event.deliver_after.map(Time));
            columns
                .extensions
                .push(extensions_to_json(&event.extensions, |text| kept(text).into_owned()));
            columns.data.push(event.data.as_deref());
        }
        columns
    }

    /// Binds the eleven parameters of [`unnest_events`], which come first in the
    /// statement.
    pub(super) fn bind<'q>(self, statement: Statement<'q>) -> Statement<'q>
    where
        'a: 'q,
    {
        statement
            .bind(self.types)
            .bind(self.times)
            .bind(self.ids)
            .bind(self.sources)
            .bind(self.subjects)
            .bind(self.datacontenttypes)
            .bind(self.dataschemas)
            .bind(self.partitionkeys)
            .bind(self.deliver_afters)
            .bind(self.extensions)
            .bind(self.data)
    }
}

/// Reads the columns of [`event_columns`], with `extensions` as text; the first
/// stands at `first`. What the event held is gone, and its memory used.
fn read_event(row: &PgRow, first: usize, event: &mut Event) -> Result<(), PostgresError> {
    let Event {
        id,
        source,
        event_type,
        subject,
        time: at,
        datacontenttype,
        dataschema,
        partitionkey,
        deliver_after,
        extensions,
        data,
    } = event;
    row.try_get_unchecked::<&str, _>(first)?.clone_into(event_type);
    *at = time(row, first + 1)?;
    row.try_get_unchecked::<&str, _>(first + 2)?.clone_into(id);
    row.try_get_unchecked::<&str, _>(first + 3)?.clone_into(source);
    read_over::<str>(row.try_get_unchecked(first + 4)?, subject);
    read_over::<str>(row.try_get_unchecked(first + 5)?, datacontenttype);
    read_over::<str>(row.try_get_unchecked(first + 6)?, dataschema);
    read_over::<str>(row.try_get_unchecked(first + 7)?, partitionkey);
    *deliver_after = optional_time(row, first + 8)?;
    *extensions = match row.try_get_unchecked::<Option<&str>, _>(first + 9)? {
        Some(json) => extensions_from_json(json),
        None => BTreeMap::new(),
    };
    read_over::<[u8]>(row.try_get_unchecked(first + 10)?, data);
    Ok(())
}

fn read_over<T>(read: Option<&T>, over: &mut Option<T::Owned>)
where
    T: ToOwned<Owned: Default> + ?Sized,
{
    match read {
        Some(read) => read.clone_into(over.get_or_insert_default()),
        None => *over = None,
    }
}

/// Reads position, addressee and event from three places, and from a fourth
/// the digest that a replay named, where there is such a column.
pub(super) fn read_log_event(
    row: &PgRow,
    position: usize,
    deliver_to: usize,
    digest: Option<usize>,
    event: usize,
) -> Result<LogEvent, PostgresError> {
    let mut read = nothing_read();
    read_log_event_over(row, position, deliver_to, digest, event, &mut read)?;
    Ok(read)
}

/// What [`read_log_event_over`] can read over.
pub(super) fn nothing_read() -> LogEvent {
    LogEvent {
        position: Position::ZERO,
        deliver_to: None,
        digest: None,
        event: Event {
            id: String::new(),
            source: String::new(),
            event_type: String::new(),
            subject: None,
            time: Timestamp::UNIX_EPOCH,
            datacontenttype: None,
            dataschema: None,
            partitionkey: None,
            deliver_after: None,
            extensions: BTreeMap::new(),
            data: None,
        },
    }
}

/// The same, with the memory of an event from the pool.
pub(super) fn read_log_event_over(
    row: &PgRow,
    position: usize,
    deliver_to: usize,
    digest: Option<usize>,
    event: usize,
    over: &mut LogEvent,
) -> Result<(), PostgresError> {
    over.position = Position(row.try_get_unchecked(position)?);
    over.deliver_to =
        row.try_get_unchecked::<Option<&str>, _>(deliver_to)?.map(group_name).transpose()?;
    over.digest = match digest {
        Some(digest) => {
            row.try_get_unchecked::<Option<&str>, _>(digest)?.map(stored::digest_of_an_event)
        }
        None => None,
    };
    read_event(row, event, &mut over.event)
}

pub(super) fn time(row: &PgRow, index: usize) -> Result<Timestamp, PostgresError> {
    Ok(row.try_get_unchecked::<Time, _>(index)?.0)
}

pub(super) fn optional_time(row: &PgRow, index: usize) -> Result<Option<Timestamp>, PostgresError> {
    Ok(row.try_get_unchecked::<Option<Time>, _>(index)?.map(|time| time.0))
}

/// A count or an attempt: what does not fit is as good as the largest.
pub(super) fn count(row: &PgRow, index: usize) -> Result<u32, PostgresError> {
    let count: i64 = row.try_get_unchecked(index)?;
    Ok(u32::try_from(count.max(0)).unwrap_or(u32::MAX))
}
