//! Groups that are split into partitions. Which one an event is in, the database does
//! not know: it is found out here.

use jiff::Timestamp;
use sqlx::{AssertSqlSafe, Row, SqliteConnection};

use super::columns::{optional_text, optional_time, text};
use super::error::SqliteError;
use super::group_columns::head_columns;
use super::group_columns::read_head;
use super::log::Receives;
use event_host_core::event::{Epoch, GroupName, Partition, Position, Tenant};
use event_host_store::driver::repartition::{MOST_AGAIN, Part, Parts, parts};
use event_host_store::driver::{refusals, stored};
use event_host_store::{Head, Subscription};

/// Makes the rows of a group's partitions that are not there yet, with the epoch, the
/// cursor and the state of the group's own. Without partitions there are none.
pub(super) async fn make_parts(
    connection: &mut SqliteConnection,
    group: &GroupName,
    partitions: u32,
) -> Result<(), SqliteError> {
    if partitions <= 1 {
        return Ok(());
    }
    for part in parts(group, partitions) {
        sqlx::query(
            "INSERT INTO consumer_groups (
                 name, tenant, subscribe, position, epoch, state, reason, unpinned, created_at, partitions,
                 part_of, partition)
             SELECT ?2, tenant, subscribe, position, epoch, state, reason, unpinned, ?3, partitions,
                    name, ?4
             FROM consumer_groups WHERE name = ?1
             ON CONFLICT (name) DO NOTHING",
        )
        .bind(group.as_str())
        .bind(part.as_str())
        .bind(Timestamp::now().as_microsecond())
        .bind(part.partition_number().map(i64::from))
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// Forgets the redeliveries of a group and of its partitions above a position, within
/// a transaction that has the write lock. Gives how many they were.
pub(super) async fn forget_redeliveries(
    connection: &mut SqliteConnection,
    group: &GroupName,
    above: Position,
) -> Result<i64, SqliteError> {
    let done = sqlx::query(
        "DELETE FROM redeliveries
         WHERE position > ?2
           AND group_name IN (SELECT name FROM consumer_groups WHERE name = ?1 OR part_of = ?1)",
    )
    .bind(group.as_str())
    .bind(above.0)
    .execute(connection)
    .await?;
    Ok(i64::try_from(done.rows_affected()).unwrap_or(i64::MAX))
}

/// A group that is to be repartitioned.
#[derive(Clone, Copy)]
pub(super) struct Split<'a> {
    pub(super) group: &'a GroupName,
    pub(super) tenant: &'a Tenant,
    /// What it receives from now on, which may not be what it received so far.
    pub(super) subscription: &'a Subscription,
}

/// Repartitions a group, within a transaction that has the write lock. Its cursors come
/// together at the highest; what was parked, what was retried at a cursor, and what a
/// part had before it of the subscription as it is now, comes again in the part where it
/// belongs now. Where an attempt was marked as begun, that is forgotten: it begins once
/// more. So is what tripped.
pub(super) async fn repartition(
    connection: &mut SqliteConnection,
    split: Split<'_>,
    before: u32,
    partitions: u32,
) -> Result<(), SqliteError> {
    let group = split.group;
    let parts_before = Parts::new(rows_of(connection, group).await?, before);
    let highest = parts_before.highest;

    // What all of it has done so far is the group's own from now on.
    sqlx::query(
        "UPDATE consumer_groups
         SET partitions = ?2, position = ?3, epoch = ?4, fruitless = 0,
             head_position = NULL, head_attempt = NULL, head_due_at = NULL,
             head_failure_kind = NULL, head_failure_text = NULL,
             mark_position = NULL, mark_attempt = NULL,
             failures = CASE WHEN part_of IS NULL THEN ?5 ELSE '{}' END,
             handled_events = CASE WHEN part_of IS NULL THEN ?6 ELSE 0 END,
             dead_events = CASE WHEN part_of IS NULL THEN ?7 ELSE 0 END,
             remark = CASE WHEN part_of IS NULL THEN remark END,
             (state, reason, unpinned) = (SELECT g.state, g.reason, g.unpinned FROM consumer_groups g
                                WHERE g.name = ?1)
         WHERE name = ?1 OR part_of = ?1",
    )
    .bind(group.as_str())
    .bind(i64::from(partitions))
    .bind(highest.0)
    .bind(parts_before.epoch.0)
    .bind(stored::failures_json(&parts_before.failures))
    .bind(parts_before.handled_events)
    .bind(parts_before.dead_events)
    .execute(&mut *connection)
    .await?;
    make_parts(connection, group, partitions).await?;
    let place = |key: Option<&str>, position| match partitions {
        0 | 1 => group.clone(),
        of => group.partition(Partition::number_of(key, position, of)),
    };
    for part in &parts_before.rows {
        for table in ["redeliveries", "deferred"] {
            move_rows(connection, table, &part.name, place).await?;
        }
    }
    let mut again = 0;
    for (partition, after) in parts_before.behind() {
        again += bring_again(connection, split, partition, (after, highest), place).await?;
        if again > MOST_AGAIN {
            return Err(refusals::too_far_apart(group, MOST_AGAIN).into());
        }
    }
    for head in parts_before.heads() {
        retry_again(connection, split, head, place).await?;
    }
    Ok(())
}

/// Has what was retried at a cursor come again as it was, whatever the group receives now.
async fn retry_again(
    connection: &mut SqliteConnection,
    split: Split<'_>,
    head: &Head,
    place: impl Fn(Option<&str>, Position) -> GroupName,
) -> Result<(), SqliteError> {
    // There, unless the group no longer receives it.
    let event = sqlx::query(
        "SELECT partitionkey FROM events
         WHERE position = ? AND tenant = ? AND (deliver_to IS NULL OR deliver_to = ?)",
    )
    .bind(head.position.0)
    .bind(split.tenant.as_str())
    .bind(split.group.as_str())
    .fetch_optional(&mut *connection)
    .await?;
    if let Some(row) = event {
        let key = optional_text(&row, 0)?;
        sqlx::query(
            "INSERT INTO redeliveries (group_name, position, attempt, due_at, partitionkey)
             SELECT ?1, ?2, 1, 0, ?3
             WHERE NOT EXISTS (
                 SELECT 1 FROM redeliveries
                 WHERE position = ?2
                   AND group_name IN (SELECT name FROM consumer_groups
                                      WHERE name = ?4 OR part_of = ?4))",
        )
        .bind(place(key.as_deref(), head.position).as_str())
        .bind(head.position.0)
        .bind(key.as_deref())
        .bind(split.group.as_str())
        .execute(&mut *connection)
        .await?;
    }
    let failure = head.failure.as_ref();
    sqlx::query(
        "UPDATE redeliveries
         SET attempt = ?3, due_at = ?4, failure_kind = ?5, failure_text = ?6
         WHERE position = ?2
           AND group_name IN (SELECT name FROM consumer_groups
                              WHERE name = ?1 OR part_of = ?1)",
    )
    .bind(split.group.as_str())
    .bind(head.position.0)
    .bind(i64::from(head.attempt.0))
    .bind(head.due_at.as_microsecond())
    .bind(failure.map(|failure| failure.kind.as_str()))
    .bind(failure.map(|failure| failure.text.as_str()))
    .execute(connection)
    .await?;
    Ok(())
}

/// The rows of a group and of its partitions.
async fn rows_of(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<Vec<Part>, SqliteError> {
    let rows = sqlx::query(concat!(
        "SELECT name, position, epoch, failures, handled_events, dead_events, ",
        head_columns!(),
        " FROM consumer_groups WHERE name = ?1 OR part_of = ?1 ORDER BY name"
    ))
    .bind(group.as_str())
    .fetch_all(connection)
    .await?;
    let mut parts = Vec::with_capacity(rows.len());
    for row in &rows {
        parts.push(Part {
            name: stored::group_name(&text(row, 0)?)?,
            position: Position(row.try_get_unchecked(1)?),
            epoch: Epoch(row.try_get_unchecked(2)?),
            // Nothing is late where one writes after the other.
            late_events: 0,
            failures: stored::failures(&text(row, 3)?),
            handled_events: row.try_get_unchecked(4)?,
            dead_events: row.try_get_unchecked(5)?,
            head: read_head(row, 6)?,
        });
    }
    Ok(parts)
}

/// Moves the redeliveries, or what is deferred, of a part to where they belong.
async fn move_rows(
    connection: &mut SqliteConnection,
    table: &str,
    part: &GroupName,
    place: impl Fn(Option<&str>, Position) -> GroupName,
) -> Result<(), SqliteError> {
    let all = format!("SELECT position, partitionkey FROM {table} WHERE group_name = ?");
    let moved = format!("UPDATE {table} SET group_name = ? WHERE group_name = ? AND position = ?");
    let rows =
        sqlx::query(AssertSqlSafe(all)).bind(part.as_str()).fetch_all(&mut *connection).await?;
    for row in &rows {
        let position = Position(row.try_get_unchecked(0)?);
        let to = place(optional_text(row, 1)?.as_deref(), position);
        sqlx::query(AssertSqlSafe(moved.as_str()))
            .bind(to.as_str())
            .bind(part.as_str())
            .bind(position.0)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Has the events of a part above its cursor, up to another, come again where they
/// belong. Gives how many they are: at most one more than may be.
async fn bring_again(
    connection: &mut SqliteConnection,
    split: Split<'_>,
    partition: Option<Partition>,
    (after, up_to): (Position, Position),
    place: impl Fn(Option<&str>, Position) -> GroupName,
) -> Result<i64, SqliteError> {
    let receives = Receives::new(split.group, split.tenant, split.subscription);
    let sql = format!(
        "SELECT position, partitionkey, deliver_after FROM events
         WHERE position > ? AND position <= ? AND {} ORDER BY position",
        receives.condition
    );
    let statement = sqlx::query(AssertSqlSafe(sql)).bind(after.0).bind(up_to.0);
    let rows = receives.bind(statement).fetch_all(&mut *connection).await?;
    let mut again = 0;
    for row in &rows {
        let position = Position(row.try_get_unchecked(0)?);
        let key = optional_text(row, 1)?;
        if partition.is_some_and(|partition| !partition.holds(key.as_deref(), position)) {
            continue;
        }
        again += 1;
        if again > MOST_AGAIN {
            break;
        }
        let due_at = optional_time(row, 2)?.unwrap_or(Timestamp::UNIX_EPOCH);
        sqlx::query(
            "INSERT INTO redeliveries (group_name, position, attempt, due_at, partitionkey)
             VALUES (?, ?, 1, ?, ?)",
        )
        .bind(place(key.as_deref(), position).as_str())
        .bind(position.0)
        .bind(due_at.as_microsecond())
        .bind(key.as_deref())
        .execute(&mut *connection)
        .await?;
    }
    Ok(again)
}
