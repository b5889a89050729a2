//! Deferred events: taken over from the log, found again when they are due, and gone
//! with the settlement that ends them.

use sqlx::{Row, SqliteConnection};

use super::columns::{event_columns, optional_text, time};
use super::error::SqliteError;
use event_host_core::event::{Attempt, GroupName, Position};
use event_host_store::{Deferral, Due, DueFetch, MOST_COUNTED, Redelivery};

/// Takes events over from the log, within a transaction that has the write lock.
///
/// `CROSS JOIN`, so that each event is looked up by its position.
const DEFER: &str = concat!(
    "INSERT INTO deferred (group_name, position, due_at, deliver_to, digest, ",
    event_columns!(),
    ") SELECT ?1, e.position, json_extract(d.value, '$[1]'), e.deliver_to, e.digest,
              e.type, e.time, e.id, e.source, e.subject, e.datacontenttype, e.dataschema,
              e.partitionkey, e.deliver_after, e.extensions, e.data
       FROM json_each(?2) d CROSS JOIN events e ON e.position = json_extract(d.value, '$[0]')
       WHERE true
       ON CONFLICT (group_name, position) DO NOTHING"
);

/// What was a redelivery is none any more, but only where its event is kept here from now
/// on.
const NO_REDELIVERIES: &str = "DELETE FROM redeliveries
     WHERE group_name = ?1
       AND position IN (SELECT json_extract(value, '$[0]') FROM json_each(?2))
       AND EXISTS (SELECT 1 FROM deferred d
                   WHERE d.group_name = redeliveries.group_name
                     AND d.position = redeliveries.position)";

/// Within a transaction that has the write lock.
pub(super) async fn write(
    connection: &mut SqliteConnection,
    group: &GroupName,
    deferred: &[&Deferral],
) -> Result<(), SqliteError> {
    if deferred.is_empty() {
        return Ok(());
    }
    // Nothing is late where one writes after the other.
    let deferred: serde_json::Value = deferred
        .iter()
        .map(|one| serde_json::json!([one.position.0, one.due_at.as_microsecond()]))
        .collect();
    let deferred = deferred.to_string();
    for statement in [DEFER, NO_REDELIVERIES] {
        sqlx::query(statement)
            .bind(group.as_str())
            .bind(&deferred)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Forgets those that are over, whose positions come in JSON, within a transaction that
/// has the write lock.
pub(super) async fn end(
    connection: &mut SqliteConnection,
    group: &GroupName,
    over: &str,
) -> Result<(), SqliteError> {
    sqlx::query(
        "DELETE FROM deferred
         WHERE group_name = ? AND position IN (SELECT value FROM json_each(?))",
    )
    .bind(group.as_str())
    .bind(over)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn due(
    connection: &mut SqliteConnection,
    due: &DueFetch<'_>,
) -> Result<Due, SqliteError> {
    // Before all of them: no event is to be delivered later than a time that is over.
    let (at, position) = due.after.unwrap_or((jiff::Timestamp::UNIX_EPOCH, Position::ZERO));
    let rows = sqlx::query(
        "SELECT position, due_at, partitionkey FROM deferred d
         WHERE group_name = ?1 AND (due_at, position) > (?2, ?3) AND due_at <= ?4
           AND position <= ?5
           AND NOT EXISTS (SELECT 1 FROM redeliveries r
                           WHERE r.group_name = d.group_name AND r.position = d.position)
         ORDER BY due_at, position LIMIT ?6",
    )
    .bind(due.group.as_str())
    .bind(at.as_microsecond())
    .bind(position.0)
    .bind(due.now.as_microsecond())
    .bind(due.up_to.0)
    .bind(i64::try_from(due.max_events).unwrap_or(i64::MAX))
    .fetch_all(&mut *connection)
    .await?;
    let mut events = Vec::with_capacity(rows.len());
    for row in &rows {
        events.push(Redelivery {
            position: Position(row.try_get_unchecked(0)?),
            attempt: Attempt::FIRST,
            due_at: time(row, 1)?,
            key: optional_text(row, 2)?,
            failure: None,
            late: false,
        });
    }
    let next = sqlx::query(
        "SELECT due_at FROM deferred WHERE group_name = ? AND due_at > ?
         ORDER BY due_at LIMIT 1",
    )
    .bind(due.group.as_str())
    .bind(due.now.as_microsecond())
    .fetch_optional(connection)
    .await?;
    let next = next.map(|row| time(&row, 0)).transpose()?;
    Ok(Due { events, next })
}

/// Those that are no redeliveries.
pub(super) async fn count(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<i64, SqliteError> {
    Ok(sqlx::query_scalar(
        "SELECT count(*) FROM (
             SELECT 1 FROM deferred d
             WHERE group_name = ?
               AND NOT EXISTS (SELECT 1 FROM redeliveries r
                               WHERE r.group_name = d.group_name AND r.position = d.position)
             LIMIT ?)",
    )
    .bind(group.as_str())
    .bind(MOST_COUNTED)
    .fetch_one(connection)
    .await?)
}

/// Forgets those of a group and of its partitions above a position whose events the log
/// brings again, within a transaction that has the write lock.
pub(super) async fn forget(
    connection: &mut SqliteConnection,
    group: &GroupName,
    above: Position,
) -> Result<(), SqliteError> {
    sqlx::query(
        "DELETE FROM deferred
         WHERE position > ?2
           AND group_name IN (SELECT name FROM consumer_groups WHERE name = ?1 OR part_of = ?1)
           AND EXISTS (SELECT 1 FROM events e WHERE e.position = deferred.position)",
    )
    .bind(group.as_str())
    .bind(above.0)
    .execute(connection)
    .await?;
    Ok(())
}

/// Where a cursor is to stand that is put at a position: past what is still deferred
/// above it, because the log does not bring that again, and before the first event that
/// the log has.
pub(super) async fn past_kept(
    connection: &mut SqliteConnection,
    group: &GroupName,
    position: Position,
) -> Result<Position, SqliteError> {
    let last: Option<i64> = sqlx::query_scalar(
        "SELECT max(position) FROM deferred
         WHERE position > ?2
           AND group_name IN (SELECT name FROM consumer_groups WHERE name = ?1 OR part_of = ?1)",
    )
    .bind(group.as_str())
    .bind(position.0)
    .fetch_one(&mut *connection)
    .await?;
    let Some(last) = last else { return Ok(position) };
    let first: Option<i64> =
        sqlx::query_scalar("SELECT min(position) FROM events WHERE position > ?")
            .bind(position.0)
            .fetch_one(connection)
            .await?;
    Ok(Position(first.map_or(last, |first| last.min(first - 1))))
}

/// Removes those of a group and of its partitions, within a transaction that has the
/// write lock. Gives how many they were that were no redeliveries.
pub(super) async fn remove(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<i64, SqliteError> {
    let count: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM deferred d
         WHERE group_name IN (SELECT name FROM consumer_groups WHERE name = ?1 OR part_of = ?1)
           AND NOT EXISTS (SELECT 1 FROM redeliveries r
                           WHERE r.group_name = d.group_name AND r.position = d.position)",
    )
    .bind(group.as_str())
    .fetch_one(&mut *connection)
    .await?;
    sqlx::query(
        "DELETE FROM deferred
         WHERE group_name IN (SELECT name FROM consumer_groups WHERE name = ?1 OR part_of = ?1)",
    )
    .bind(group.as_str())
    .execute(connection)
    .await?;
    Ok(count)
}
