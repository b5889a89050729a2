//! Redeliveries, and the events that they are of.

use std::borrow::Cow;

use sqlx::{PgConnection, Row};

use super::columns::{Time, count, kept, read_log_event, time};
use super::deferred;
use super::error::PostgresError;
use super::reading::{Next, Part, Reading};
use event_host_core::event::{Attempt, GroupName, Position};
use event_host_store::driver::redelivery::Changes;
use event_host_store::{FailureRecord, Found, Redelivery};

/// Writes a settlement's changes: one statement for redeliveries, one for deferred events.
/// Must run in the transaction that holds the row of the group's cursor. `set` and `over` are
/// disjoint.
pub(super) async fn write(
    connection: &mut PgConnection,
    group: &GroupName,
    changes: &Changes<'_>,
) -> Result<(), PostgresError> {
    let Changes { set, over, deferred } = changes;
    deferred::write(connection, group, deferred).await?;
    let failures = |part: fn(&FailureRecord) -> &str| -> Vec<Option<Cow<'_, str>>> {
        set.iter().map(|r| r.failure.as_ref().map(|failure| kept(part(failure)))).collect()
    };
    if set.is_empty() && over.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "WITH settled_redeliveries AS (
             DELETE FROM event_host.redeliveries WHERE group_name = $1 AND position = ANY ($2)),
         settled_deferred AS (
             DELETE FROM event_host.deferred WHERE group_name = $1 AND position = ANY ($2))
         INSERT INTO event_host.redeliveries (
             group_name, position, attempt, due_at, partitionkey, failure_kind, failure_text, late)
         SELECT $1, r.* FROM unnest($3::bigint[], $4::bigint[], $5::timestamptz[], $6::text[],
                                    $7::text[], $8::text[], $9::boolean[]) AS r
         ON CONFLICT (group_name, position) DO UPDATE
         SET attempt = excluded.attempt, due_at = excluded.due_at,
             partitionkey = excluded.partitionkey,
             failure_kind = excluded.failure_kind, failure_text = excluded.failure_text,
             late = excluded.late",
    )
    .bind(group.as_str())
    .bind(over)
    .bind(set.iter().map(|r| r.position.0).collect::<Vec<_>>())
    .bind(set.iter().map(|r| i64::from(r.attempt.0)).collect::<Vec<_>>())
    .bind(set.iter().map(|r| Time(r.due_at)).collect::<Vec<_>>())
    .bind(set.iter().map(|r| r.key.as_deref().map(kept)).collect::<Vec<_>>())
    .bind(failures(|failure| &failure.kind))
    .bind(failures(|failure| &failure.text))
    .bind(set.iter().map(|r| r.late).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn list(
    connection: &mut PgConnection,
    group: &GroupName,
) -> Result<Vec<Redelivery>, PostgresError> {
    let rows = sqlx::query(
        "SELECT position, attempt, due_at, partitionkey, failure_kind, failure_text, late
         FROM event_host.redeliveries WHERE group_name = $1
         UNION ALL
         -- An event whose marked attempt was its first is no redelivery yet.
         SELECT d.position, g.mark_attempt, d.due_at, d.partitionkey, NULL, NULL, d.late
         FROM event_host.consumer_groups g
         JOIN event_host.deferred d ON d.group_name = g.name AND d.position = g.mark_position
         WHERE g.name = $1
           AND NOT EXISTS (SELECT FROM event_host.redeliveries r
                           WHERE r.group_name = d.group_name AND r.position = d.position)
         ORDER BY position",
    )
    .bind(group.as_str())
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let failure = row
                .try_get_unchecked::<Option<String>, _>(4)?
                .zip(row.try_get_unchecked::<Option<String>, _>(5)?)
                .map(|(kind, text)| FailureRecord { kind, text });
            Ok(Redelivery {
                position: Position(row.try_get_unchecked(0)?),
                attempt: Attempt(count(row, 1)?),
                due_at: time(row, 2)?,
                key: row.try_get_unchecked(3)?,
                failure,
                late: row.try_get_unchecked(6)?,
            })
        })
        .collect()
}

/// The events at the positions of `$2`, for the group or the partition `$1` of the
/// group `$3`.
pub(super) const EVENTS: &str =
    "SELECT position, deliver_to, digest, type, time, id, source, subject, datacontenttype,
            dataschema, partitionkey, deliver_after, extensions::text, data
     FROM event_host.events
     WHERE position = ANY ($2)
       AND tenant = (SELECT tenant FROM event_host.consumer_groups WHERE name = $1)
       AND (deliver_to IS NULL OR deliver_to = $3)
     ORDER BY position";

/// The same of what is deferred.
const DEFERRED_EVENTS: &str =
    "SELECT position, deliver_to, digest, type, time, id, source, subject, datacontenttype,
            dataschema, partitionkey, deliver_after, extensions::text, data
     FROM event_host.deferred
     WHERE group_name = $1 AND position = ANY ($2)
     ORDER BY position";

/// At which of the positions of `$2` the log has nothing any more, and an event of the
/// group `$1` is deferred.
const ONLY_DEFERRED: &str = "SELECT d.position FROM event_host.deferred d
     WHERE d.group_name = $1 AND d.position = ANY ($2)
       AND NOT EXISTS (SELECT FROM event_host.events e WHERE e.position = d.position)";

/// The longest prefix of the positions whose events lie in one table, up to `max_bytes` or
/// until the time is up. One statement for both tables would sort their rows, and so read all of them
/// before it gives the first.
pub(super) async fn events(
    connection: &mut PgConnection,
    group: &GroupName,
    positions: &[Position],
    max_bytes: usize,
    reading: Reading,
) -> Result<Part<Found>, PostgresError> {
    let mut asked: Vec<i64> = positions.iter().map(|position| position.0).collect();
    asked.sort_unstable();
    let deferred: Vec<i64> = sqlx::query_scalar(ONLY_DEFERRED)
        .bind(group.as_str())
        .bind(&asked)
        .fetch_all(&mut *connection)
        .await?;
    let Some(first) = asked.first() else { return Ok(Part::whole(Found::default())) };
    let is_deferred = deferred.contains(first);
    let run = asked.iter().take_while(|position| deferred.contains(position) == is_deferred);
    asked.truncate(run.count());
    let last = asked.last().map_or(Position::ZERO, |last| Position(*last));
    let statement = if is_deferred {
        sqlx::query(DEFERRED_EVENTS).bind(group.as_str()).bind(asked)
    } else {
        sqlx::query(EVENTS).bind(group.as_str()).bind(asked).bind(group.whole())
    };
    let mut rows = reading.rows(statement.fetch(connection));
    let (mut events, mut bytes) = (Vec::new(), 0_usize);
    loop {
        match rows.next(events.is_empty()).await {
            Next::Row(row) => {
                let event = read_log_event(&row, 0, 1, Some(2), 3)?;
                bytes = bytes.saturating_add(event.bytes());
                events.push(event);
                if bytes < max_bytes {
                    continue;
                }
            }
            Next::End => return Ok(Part::whole(Found { events, looked_to: last })),
            Next::Late => {}
            Next::PostgresError(why) => return Err(why.into()),
        }
        let looked_to = events.last().map_or(last, |event| event.position);
        return Ok(Part { read: Found { events, looked_to }, is_whole: false });
    }
}
