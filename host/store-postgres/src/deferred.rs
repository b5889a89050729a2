//! Deferred events: taken over from the log, found again when they are due, and gone
//! with the settlement that ends them.

use sqlx::{PgConnection, Row};

use super::columns::{Time, event_columns, time};
use super::error::PostgresError;
use event_host_core::event::{Attempt, GroupName, Position};
use event_host_store::{Deferral, Due, DueFetch, MOST_COUNTED, Redelivery};

/// Takes events over from the log, within a transaction that has the row of the group's
/// cursor: it keeps them in the log until it commits, because they are above the cursor
/// that others see, or are redeliveries. What was a redelivery is none any more, but only
/// where its event is kept here from now on.
pub(super) const DEFER: &str = concat!(
    "WITH kept AS (
         INSERT INTO event_host.deferred (group_name, position, due_at, late, deliver_to, digest, ",
    event_columns!(),
    ") SELECT $1, e.position, d.due_at, d.late, e.deliver_to, e.digest,
                e.type, e.time, e.id, e.source, e.subject, e.datacontenttype, e.dataschema,
                e.partitionkey, e.deliver_after, e.extensions, e.data
         FROM event_host.events e
         JOIN unnest($2::bigint[], $3::timestamptz[], $4::boolean[]) AS d (position, due_at, late)
              ON d.position = e.position
         WHERE e.position = ANY ($2)
         ON CONFLICT (group_name, position) DO NOTHING
         RETURNING position)
     DELETE FROM event_host.redeliveries r
     WHERE r.group_name = $1 AND r.position = ANY ($2)
       AND (r.position IN (SELECT position FROM kept)
            OR EXISTS (SELECT FROM event_host.deferred d
                       WHERE d.group_name = r.group_name AND d.position = r.position))"
);

/// Within a transaction that has the row of the group's cursor.
pub(super) async fn write(
    connection: &mut PgConnection,
    group: &GroupName,
    deferred: &[&Deferral],
) -> Result<(), PostgresError> {
    if deferred.is_empty() {
        return Ok(());
    }
    sqlx::query(DEFER)
        .bind(group.as_str())
        .bind(deferred.iter().map(|one| one.position.0).collect::<Vec<_>>())
        .bind(deferred.iter().map(|one| Time(one.due_at)).collect::<Vec<_>>())
        .bind(deferred.iter().map(|one| one.late).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Those of the group `$1` that are due by `$4`, after the one that is due at `$2` at the
/// position `$3`, up to the position `$5`: the first `$6` of them. And without a position,
/// when the first of those is due that are not due yet.
pub(super) const DUE: &str = "(SELECT d.position, d.due_at, d.partitionkey, d.late
      FROM event_host.deferred d
      WHERE d.group_name = $1 AND (d.due_at, d.position) > ($2, $3) AND d.due_at <= $4
        AND d.position <= $5
        AND NOT EXISTS (SELECT FROM event_host.redeliveries r
                        WHERE r.group_name = d.group_name AND r.position = d.position)
      ORDER BY d.due_at, d.position LIMIT $6)
     UNION ALL
     (SELECT NULL, d.due_at, NULL, NULL
      FROM event_host.deferred d
      WHERE d.group_name = $1 AND d.due_at > $4
      ORDER BY d.due_at LIMIT 1)";

pub(super) async fn due(
    connection: &mut PgConnection,
    due: &DueFetch<'_>,
) -> Result<Due, PostgresError> {
    let (at, position) = match due.after {
        Some((at, position)) => (Some(Time(at)), position),
        None => (None, Position::ZERO),
    };
    // Before all of them: no event is to be delivered later than a time that is over.
    let at = at.unwrap_or(Time(jiff::Timestamp::UNIX_EPOCH));
    let rows = sqlx::query(DUE)
        .bind(due.group.as_str())
        .bind(at)
        .bind(position.0)
        .bind(Time(due.now))
        .bind(due.up_to.0)
        .bind(i64::try_from(due.max_events).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await?;
    let mut read = Due::default();
    for row in &rows {
        let due_at = time(row, 1)?;
        let Some(position) = row.try_get_unchecked::<Option<i64>, _>(0)? else {
            read.next = Some(due_at);
            continue;
        };
        read.events.push(Redelivery {
            position: Position(position),
            attempt: Attempt::FIRST,
            due_at,
            key: row.try_get_unchecked(2)?,
            failure: None,
            late: row.try_get_unchecked(3)?,
        });
    }
    Ok(read)
}

/// Those that are no redeliveries.
pub(super) async fn count(
    connection: &mut PgConnection,
    group: &GroupName,
) -> Result<i64, PostgresError> {
    Ok(sqlx::query_scalar(
        "SELECT count(*) FROM (
             SELECT FROM event_host.deferred d
             WHERE d.group_name = $1
               AND NOT EXISTS (SELECT FROM event_host.redeliveries r
                               WHERE r.group_name = d.group_name AND r.position = d.position)
             LIMIT $2) AS first",
    )
    .bind(group.as_str())
    .bind(MOST_COUNTED)
    .fetch_one(connection)
    .await?)
}

/// Forgets those of a group and of its partitions above a position whose events the log
/// brings again, within a transaction that has their rows and in which no event goes.
pub(super) async fn forget(
    connection: &mut PgConnection,
    group: &GroupName,
    above: Position,
) -> Result<(), PostgresError> {
    sqlx::query(
        "DELETE FROM event_host.deferred d
         WHERE d.position > $2
           AND d.group_name IN (SELECT name FROM event_host.consumer_groups
                                WHERE name = $1 OR part_of = $1)
           AND EXISTS (SELECT FROM event_host.events e WHERE e.position = d.position)",
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
    connection: &mut PgConnection,
    group: &GroupName,
    position: Position,
) -> Result<Position, PostgresError> {
    let past: i64 = sqlx::query_scalar(
        "SELECT greatest($2, least(
             (SELECT max(d.position) FROM event_host.deferred d
              WHERE d.position > $2
                AND d.group_name IN (SELECT name FROM event_host.consumer_groups
                                     WHERE name = $1 OR part_of = $1)),
             (SELECT min(e.position) - 1 FROM event_host.events e WHERE e.position > $2)))
         FROM (VALUES (1)) one
         WHERE EXISTS (SELECT FROM event_host.deferred d
                       WHERE d.position > $2
                         AND d.group_name IN (SELECT name FROM event_host.consumer_groups
                                              WHERE name = $1 OR part_of = $1))",
    )
    .bind(group.as_str())
    .bind(position.0)
    .fetch_optional(connection)
    .await?
    .unwrap_or(position.0);
    Ok(Position(past))
}

/// Removes those of a group and of its partitions, within a transaction that has their
/// rows. Gives how many they were that were no redeliveries.
pub(super) async fn remove(
    connection: &mut PgConnection,
    group: &GroupName,
) -> Result<i64, PostgresError> {
    Ok(sqlx::query_scalar(
        "WITH gone AS (
             DELETE FROM event_host.deferred
             WHERE group_name IN (SELECT name FROM event_host.consumer_groups
                                  WHERE name = $1 OR part_of = $1)
             RETURNING group_name, position)
         SELECT count(*) FROM gone
         WHERE NOT EXISTS (SELECT FROM event_host.redeliveries r
                           WHERE r.group_name = gone.group_name AND r.position = gone.position)",
    )
    .bind(group.as_str())
    .fetch_one(connection)
    .await?)
}
