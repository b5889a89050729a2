//! Redeliveries, and the events that they are of.

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Row, SqliteConnection};

use super::columns::{Statement, count, event_columns, optional_text, read_log_event, time};
use super::deferred;
use super::error::SqliteError;
use event_host_core::event::{Attempt, GroupName, Position};
use event_host_store::driver::redelivery::Changes;
use event_host_store::{FailureRecord, Found, Redelivery};

/// How many redeliveries one statement sets.
const SET_BY_A_STATEMENT: usize = 64;

/// Within a transaction that has the write lock.
pub(super) async fn write(
    connection: &mut SqliteConnection,
    group: &GroupName,
    changes: &Changes<'_>,
) -> Result<(), SqliteError> {
    let Changes { set, over, deferred } = changes;
    deferred::write(connection, group, deferred).await?;
    if !over.is_empty() {
        let over = as_json(over.iter().copied());
        deferred::end(connection, group, &over).await?;
        sqlx::query(
            "DELETE FROM redeliveries
             WHERE group_name = ? AND position IN (SELECT value FROM json_each(?))",
        )
        .bind(group.as_str())
        .bind(over)
        .execute(&mut *connection)
        .await?;
    }
    let (chunks, rest) = set.as_chunks::<SET_BY_A_STATEMENT>();
    for chunk in chunks.iter().map(|chunk| &chunk[..]).chain(rest.chunks(1)) {
        let mut statement: Statement<'_> = sqlx::query(AssertSqlSafe(upsert_of(chunk.len())));
        for redelivery in chunk {
            // Nothing is late where one writes after the other.
            let Redelivery { position, attempt, due_at, key, failure, late: _ } = redelivery;
            statement = statement
                .bind(group.as_str())
                .bind(position.0)
                .bind(i64::from(attempt.0))
                .bind(due_at.as_microsecond())
                .bind(key.as_deref())
                .bind(failure.as_ref().map(|failure| failure.kind.as_str()))
                .bind(failure.as_ref().map(|failure| failure.text.as_str()));
        }
        statement.execute(&mut *connection).await?;
    }
    Ok(())
}

fn upsert_of(rows: usize) -> String {
    let rows = vec!["(?, ?, ?, ?, ?, ?, ?)"; rows].join(", ");
    format!(
        "INSERT INTO redeliveries (
             group_name, position, attempt, due_at, partitionkey, failure_kind, failure_text)
         VALUES {rows}
         ON CONFLICT (group_name, position) DO UPDATE
         SET attempt = excluded.attempt, due_at = excluded.due_at,
             partitionkey = excluded.partitionkey,
             failure_kind = excluded.failure_kind, failure_text = excluded.failure_text"
    )
}

/// Positions as `json_each` takes them.
pub(super) fn as_json(positions: impl Iterator<Item = i64>) -> String {
    serde_json::Value::from_iter(positions).to_string()
}

pub(super) async fn list(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<Vec<Redelivery>, SqliteError> {
    let rows = sqlx::query(
        "SELECT position, attempt, due_at, partitionkey, failure_kind, failure_text
         FROM redeliveries WHERE group_name = ?1
         UNION ALL
         -- An event whose marked attempt was its first is no redelivery yet.
         SELECT d.position, g.mark_attempt, d.due_at, d.partitionkey, NULL, NULL
         FROM consumer_groups g
         JOIN deferred d ON d.group_name = g.name AND d.position = g.mark_position
         WHERE g.name = ?1
           AND NOT EXISTS (SELECT 1 FROM redeliveries r
                           WHERE r.group_name = d.group_name AND r.position = d.position)
         ORDER BY position",
    )
    .bind(group.as_str())
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Redelivery {
                position: Position(row.try_get_unchecked(0)?),
                attempt: Attempt(count(row, 1)?),
                due_at: time(row, 2)?,
                key: optional_text(row, 3)?,
                failure: optional_text(row, 4)?
                    .zip(optional_text(row, 5)?)
                    .map(|(kind, text)| FailureRecord { kind, text }),
                late: false,
            })
        })
        .collect()
}

/// The first of them, as many as make up so many bytes. What the log does not have any
/// more may be deferred.
pub(super) async fn events(
    connection: &mut SqliteConnection,
    group: &GroupName,
    positions: &[Position],
    max_bytes: usize,
) -> Result<Found, SqliteError> {
    let Some(last) = positions.iter().max() else { return Ok(Found::default()) };
    let mut rows = sqlx::query(concat!(
        "SELECT position, deliver_to, digest, ",
        event_columns!(),
        " FROM events
         WHERE position IN (SELECT value FROM json_each(?2))
           AND tenant = (SELECT tenant FROM consumer_groups WHERE name = ?1)
           AND (deliver_to IS NULL OR deliver_to = ?3)
         UNION ALL
         SELECT position, deliver_to, digest, ",
        event_columns!(),
        " FROM deferred
         WHERE group_name = ?1 AND position IN (SELECT value FROM json_each(?2))
           AND NOT EXISTS (SELECT 1 FROM events e WHERE e.position = deferred.position)
         ORDER BY position"
    ))
    .bind(group.as_str())
    .bind(as_json(positions.iter().map(|position| position.0)))
    .bind(group.whole())
    .fetch(connection);
    let (mut events, mut bytes) = (Vec::with_capacity(positions.len()), 0_usize);
    while let Some(row) = rows.try_next().await? {
        let event = read_log_event(&row, 0, 1, Some(2), 3)?;
        let looked_to = event.position;
        bytes = bytes.saturating_add(event.bytes());
        events.push(event);
        if bytes >= max_bytes {
            return Ok(Found { events, looked_to });
        }
    }
    Ok(Found { events, looked_to: *last })
}
