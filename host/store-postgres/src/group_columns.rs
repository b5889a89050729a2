//! The columns of a group that several statements read: its head, its mark, its leader, and
//! what is undecided.

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::columns::{Statement, Time, count, kept, optional_time, time};
use super::error::PostgresError;
use event_host_core::event::{Attempt, Position};
use event_host_store::{
    FailureRecord, Head, HostIdentity, Leader, Mark, UndecidedRange, UndecidedRanges,
};

/// The columns of a head, in the order of [`read_head`] and [`bind_head`].
macro_rules! head_columns {
    () => {
        "head_position, head_attempt, head_due_at, head_failure_kind, head_failure_text"
    };
}

pub(super) use head_columns;

/// Reads the columns of [`head_columns`], the first of which stands at `first`.
pub(super) fn read_head(row: &PgRow, first: usize) -> Result<Option<Head>, PostgresError> {
    let Some(position) = row.try_get_unchecked::<Option<i64>, _>(first)? else {
        return Ok(None);
    };
    let failure = row
        .try_get_unchecked::<Option<String>, _>(first + 3)?
        .zip(row.try_get_unchecked::<Option<String>, _>(first + 4)?)
        .map(|(kind, text)| FailureRecord { kind, text });
    Ok(Some(Head {
        position: Position(position),
        attempt: Attempt(count(row, first + 1)?),
        due_at: time(row, first + 2)?,
        failure,
    }))
}

/// The columns of a mark, in the order of [`read_mark`].
macro_rules! mark_columns {
    () => {
        "mark_position, mark_attempt"
    };
}

pub(super) use mark_columns;

/// Reads the columns of [`mark_columns`], the first of which stands at `first`.
pub(super) fn read_mark(row: &PgRow, first: usize) -> Result<Option<Mark>, PostgresError> {
    let Some(position) = row.try_get_unchecked::<Option<i64>, _>(first)? else {
        return Ok(None);
    };
    Ok(Some(Mark { position: Position(position), attempt: Attempt(count(row, first + 1)?) }))
}

/// Binds the columns of a head, in the order of [`head_columns`].
pub(super) fn bind_head<'q>(statement: Statement<'q>, head: Option<&'q Head>) -> Statement<'q> {
    let failure = head.and_then(|head| head.failure.as_ref());
    statement
        .bind(head.map(|head| head.position.0))
        .bind(head.map(|head| i64::from(head.attempt.0)))
        .bind(head.map(|head| Time(head.due_at)))
        .bind(failure.map(|failure| kept(&failure.kind)))
        .bind(failure.map(|failure| kept(&failure.text)))
}

/// Reads id, hostname, pid and since, the first of which stands at `first`.
pub(super) fn read_leader(row: &PgRow, first: usize) -> Result<Option<Leader>, PostgresError> {
    let (Some(id), Some(since)) = (row.try_get_unchecked(first)?, optional_time(row, first + 3)?)
    else {
        return Ok(None);
    };
    let hostname = row.try_get_unchecked(first + 1)?;
    Ok(Some(Leader { host: HostIdentity { id, hostname, pid: count(row, first + 2)? }, since }))
}

/// What is open of a group: the first and the last positions of its ranges.
macro_rules! open_columns {
    () => {
        "(SELECT array_agg(lower(r) ORDER BY r) FROM unnest(open_ranges) AS r),
         (SELECT array_agg(upper(r) - 1 ORDER BY r) FROM unnest(open_ranges) AS r)"
    };
}

pub(super) use open_columns;

/// Reads the columns of [`open_columns`], the first of which stands at `first`.
pub(super) fn read_open(row: &PgRow, first: usize) -> Result<UndecidedRanges, PostgresError> {
    let firsts: Option<Vec<i64>> = row.try_get_unchecked(first)?;
    let lasts: Option<Vec<i64>> = row.try_get_unchecked(first + 1)?;
    let ends = firsts.unwrap_or_default().into_iter().zip(lasts.unwrap_or_default());
    let range = |(first, last)| UndecidedRange { first: Position(first), last: Position(last) };
    Ok(UndecidedRanges::of(ends.map(range)))
}
