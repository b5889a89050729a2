//! What groups have before them: reads the parts of the log that
//! [`backlog`](event_host_store::driver::backlog) asks for.

use std::collections::HashMap;

use futures_util::TryStreamExt;
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row, SqliteConnection};

use super::columns::{optional_text, text};
use super::error::SqliteError;
use super::log::Receives;
use event_host_core::event::{GroupName, Partition, Position, Tenant};
use event_host_store::driver::backlog::{Backlog, Class, Part, Seen};
use event_host_store::{Counting, Subscription};

/// How a group or a partition reads the log.
#[derive(Clone, Copy)]
pub(super) struct Reads<'a> {
    pub(super) name: &'a GroupName,
    pub(super) tenant: &'a Tenant,
    pub(super) subscription: &'a Subscription,
    pub(super) partition: Option<Partition>,
    pub(super) after: Position,
}

/// Reads as much of the log as is wanted. In one snapshot, so that all of it is of one
/// moment.
pub(super) async fn read(
    connection: &mut SqliteConnection,
    backlog: &mut Backlog,
    groups: &HashMap<&str, Reads<'_>>,
    counting: Counting,
) -> Result<(), SqliteError> {
    while let Some(wanted) = backlog.next() {
        let part = part(connection, wanted, backlog.is_split()).await?;
        backlog.take(part);
        if counting != Counting::EXACT {
            break;
        }
    }
    for (name, cursor) in backlog.far() {
        let first = beginning(connection, cursor, backlog.is_split()).await?;
        backlog.first(&name, first);
    }
    let unknown = backlog.unknown();
    let looked_at = counting.search(unknown.len());
    for name in unknown {
        if let Some(group) = groups.get(name.as_str()) {
            let published_at = first(connection, group, looked_at).await?;
            backlog.begins(&name, published_at);
        }
    }
    Ok(())
}

/// The last so many events above a position, and at or below another.
async fn part(
    connection: &mut SqliteConnection,
    (after, up_to, most): (Position, Position, i64),
    is_split: bool,
) -> Result<Part, SqliteError> {
    let mut rows = sqlx::query(
        "SELECT tenant, deliver_to, type, position, published_at, iif(?4, partitionkey, NULL)
         FROM events WHERE position > ?1 AND position <= ?2 ORDER BY position DESC LIMIT ?3",
    )
    .bind(after.0)
    .bind(up_to.0)
    .bind(most)
    .bind(is_split)
    .fetch(connection);
    let mut part = Part::default();
    while let Some(row) = rows.try_next().await? {
        let (class, seen) = seen(&row, is_split)?;
        part.add(class, seen);
    }
    Ok(part)
}

/// The first event above a cursor, whoever receives it: one look at an index.
async fn beginning(
    connection: &mut SqliteConnection,
    after: Position,
    is_split: bool,
) -> Result<Option<(Class, Seen)>, SqliteError> {
    let row = sqlx::query(
        "SELECT tenant, deliver_to, type, position, published_at, iif(?2, partitionkey, NULL)
         FROM events WHERE position > ?1 ORDER BY position LIMIT 1",
    )
    .bind(after.0)
    .bind(is_split)
    .fetch_optional(connection)
    .await?;
    row.map(|row| seen(&row, is_split)).transpose()
}

/// An event, as far as it matters for the lag of groups.
fn seen(row: &SqliteRow, is_split: bool) -> Result<(Class, Seen), SqliteError> {
    let class = Class {
        tenant: text(row, 0)?,
        deliver_to: optional_text(row, 1)?,
        event_type: text(row, 2)?,
    };
    let position = Position(row.try_get_unchecked(3)?);
    let hash = match is_split {
        true => Partition::hash(optional_text(row, 5)?.as_deref(), position),
        false => 0,
    };
    let published_at = published_at(row.try_get_unchecked(4)?);
    Ok((class, Seen { position, published_at, hash }))
}

/// When the first event was published that one receives of the next so many in the log.
async fn first(
    connection: &mut SqliteConnection,
    group: &Reads<'_>,
    looked_at: i64,
) -> Result<Option<Timestamp>, SqliteError> {
    let receives = Receives::new(group.name, group.tenant, group.subscription);
    let sql = format!(
        "SELECT position, partitionkey, published_at FROM events
         WHERE position > ? AND position <= coalesce(
             (SELECT position FROM events WHERE position > ? ORDER BY position LIMIT 1 OFFSET ?),
             9223372036854775807)
           AND {} ORDER BY position",
        receives.condition
    );
    let statement =
        sqlx::query(AssertSqlSafe(sql)).bind(group.after.0).bind(group.after.0).bind(looked_at - 1);
    let mut rows = receives.bind(statement).fetch(connection);
    while let Some(row) = rows.try_next().await? {
        let position = Position(row.try_get_unchecked(0)?);
        let is_in = match group.partition {
            Some(partition) => partition.holds(optional_text(&row, 1)?.as_deref(), position),
            None => true,
        };
        if is_in {
            return Ok(Some(published_at(row.try_get_unchecked(2)?)));
        }
    }
    Ok(None)
}

/// A time that a client may have said.
fn published_at(microseconds: i64) -> Timestamp {
    Timestamp::from_microsecond(microseconds).unwrap_or(Timestamp::UNIX_EPOCH)
}
