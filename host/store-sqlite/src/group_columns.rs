//! The columns of a group that several statements read: its head, its mark and its leader.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::columns::{Statement, count, optional_text, optional_time, text, time};
use super::error::SqliteError;
use event_host_core::event::{Attempt, Position};
use event_host_store::{FailureRecord, Head, HostIdentity, Leader, Mark};

/// The columns of a head, in the order of [`read_head`] and [`bind_head`].
macro_rules! head_columns {
    () => {
        "head_position, head_attempt, head_due_at, head_failure_kind, head_failure_text"
    };
}

pub(super) use head_columns;

/// Reads the columns of [`head_columns`], the first of which stands at `first`.
pub(super) fn read_head(row: &SqliteRow, first: usize) -> Result<Option<Head>, SqliteError> {
    let Some(position) = row.try_get_unchecked::<Option<i64>, _>(first)? else {
        return Ok(None);
    };
    let failure = optional_text(row, first + 3)?
        .zip(optional_text(row, first + 4)?)
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
pub(super) fn read_mark(row: &SqliteRow, first: usize) -> Result<Option<Mark>, SqliteError> {
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
        .bind(head.map(|head| head.due_at.as_microsecond()))
        .bind(failure.map(|failure| failure.kind.as_str()))
        .bind(failure.map(|failure| failure.text.as_str()))
}

/// Reads hostname, pid, id and since, the first of which stands at `first`.
pub(super) fn read_leader(row: &SqliteRow, first: usize) -> Result<Option<Leader>, SqliteError> {
    let (Some(id), Some(since)) = (optional_text(row, first)?, optional_time(row, first + 3)?)
    else {
        return Ok(None);
    };
    let host = HostIdentity { id, hostname: text(row, first + 1)?, pid: count(row, first + 2)? };
    Ok(Some(Leader { host, since }))
}
