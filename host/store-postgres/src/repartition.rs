//! Groups that are split into partitions.

use sqlx::{PgConnection, Row};

use super::columns::{Time, count, kept};
use super::error::PostgresError;
use super::group_columns::head_columns;
use super::group_columns::read_head;
use super::log::{Types, in_partition, partition_hash, receives};
use event_host_core::event::{Epoch, GroupName, Partition, Position};
use event_host_store::driver::repartition::{MOST_AGAIN, Part, Parts, parts};
use event_host_store::driver::{refusals, stored};
use event_host_store::{GroupRegistration, Head};

/// Makes the rows of the partitions of these groups that are not there yet, with the epoch,
/// the cursor and the state of the group's own. Without partitions there are none.
pub(super) async fn make_parts(
    connection: &mut PgConnection,
    groups: &[&str],
) -> Result<(), PostgresError> {
    if groups.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO event_host.consumer_groups (
             name, tenant, subscribe, position, epoch, state, reason, unpinned, partitions,
             part_of, partition)
         SELECT g.name || '#' || p.number, g.tenant, g.subscribe, g.position, g.epoch, g.state,
                g.reason, g.unpinned, g.partitions, g.name, p.number
         FROM unnest($1::text[]) n (name)
         JOIN event_host.consumer_groups g ON g.name = n.name AND g.partitions > 1
         CROSS JOIN LATERAL generate_series(0, g.partitions - 1) p (number)
         ON CONFLICT (name) DO NOTHING",
    )
    .bind(groups)
    .execute(connection)
    .await?;
    Ok(())
}

/// The sessions of hosts that lead one of these parts, by the server's processes, within
/// a transaction that has their rows: whoever claims one from now on waits for the row, or
/// leaves it. A session leads while it holds its own lock; somebody else who holds that
/// leads nothing.
pub(super) async fn leading_sessions(
    connection: &mut PgConnection,
    parts: &[GroupName],
) -> Result<Vec<i32>, PostgresError> {
    Ok(sqlx::query_scalar(
        "WITH leaders AS MATERIALIZED (
             SELECT DISTINCT h.backend_pid, h.lock_key
             FROM unnest($1::text[]) n (name)
             JOIN event_host.consumer_groups g ON g.name = n.name
             JOIN event_host.hosts h ON h.lock_key = g.leader_key)
         SELECT backend_pid FROM leaders
         WHERE EXISTS (
             SELECT FROM pg_lock_status() l
             WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
               AND l.pid = leaders.backend_pid
               AND (l.classid::bigint << 32) | l.objid::bigint = leaders.lock_key
               AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
    )
    .bind(parts.iter().map(GroupName::as_str).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?)
}

/// Takes the rows of a group and of its partitions, in the order in which everybody
/// does who wants several. Not for their keys: a settlement that has a partition's row
/// may still come to refer to the group's.
pub(super) async fn lock_rows(
    connection: &mut PgConnection,
    group: &GroupName,
) -> Result<(), PostgresError> {
    sqlx::query(
        "SELECT FROM event_host.consumer_groups
         WHERE name = $1 OR part_of = $1 ORDER BY name FOR NO KEY UPDATE",
    )
    .bind(group.as_str())
    .execute(connection)
    .await?;
    Ok(())
}

/// Forgets the redeliveries of a group and of its partitions above a position, within
/// a transaction that has their rows. Gives how many they were.
pub(super) async fn forget_redeliveries(
    connection: &mut PgConnection,
    group: &GroupName,
    above: Position,
) -> Result<i64, PostgresError> {
    let done = sqlx::query(
        "DELETE FROM event_host.redeliveries
         WHERE position > $2
           AND group_name IN (SELECT name FROM event_host.consumer_groups
                              WHERE name = $1 OR part_of = $1)",
    )
    .bind(group.as_str())
    .bind(above.0)
    .execute(connection)
    .await?;
    Ok(i64::try_from(done.rows_affected()).unwrap_or(i64::MAX))
}

/// Moves the rows of the parts `$3` of a group to where they belong: the group `$1` is
/// split into `$2` partitions, or into none.
macro_rules! move_rows {
    ($table:literal) => {
        concat!(
            "UPDATE event_host.",
            $table,
            " SET group_name = $1 || coalesce('#' || (",
            partition_hash!(),
            ") % $2::bigint, '')
             WHERE group_name = ANY ($3)"
        )
    };
}

/// Repartitions a group, within a transaction in which no event goes. Its cursors come
/// together at the highest; what was parked, what was retried at a cursor, and what a
/// part had before it of the subscription as it is now, comes again in the part where it
/// belongs now. Where an attempt was marked as begun, that is forgotten: it begins once
/// more. So is what tripped.
pub(super) async fn repartition(
    connection: &mut PgConnection,
    settings: &GroupRegistration,
) -> Result<(), PostgresError> {
    let GroupRegistration { name: group, partitions, .. } = settings;
    // First the group's row alone, so that of two who do this one does it.
    let row = sqlx::query(
        "SELECT partitions::bigint FROM event_host.consumer_groups
         WHERE name = $1 FOR NO KEY UPDATE",
    )
    .bind(group.as_str())
    .fetch_optional(&mut *connection)
    .await?
    .ok_or_else(|| refusals::no_group(group))?;
    let before: u32 = count(&row, 0)?;
    if before == *partitions {
        return Ok(());
    }
    let mut affected = parts(group, before);
    affected.extend(parts(group, *partitions));
    let parts_before = Parts::new(locked_rows(connection, group).await?, before);
    if !leading_sessions(connection, &affected).await?.is_empty() {
        return Err(refusals::still_led_somewhere(group).into());
    }
    refuse_a_leap(connection, &parts_before).await?;
    join_cursors(connection, settings, &parts_before).await?;
    make_parts(connection, &[group.as_str()]).await?;
    move_redeliveries(connection, settings, &parts_before).await?;
    let mut again = 0;
    for (partition, after) in parts_before.behind() {
        let span = (after, parts_before.highest);
        again += bring_again(connection, settings, partition, span).await?;
        if again > MOST_AGAIN {
            return Err(refusals::too_far_apart(group, MOST_AGAIN).into());
        }
    }
    for head in parts_before.heads() {
        retry_again(connection, settings, head).await?;
    }
    Ok(())
}

/// Refuses to go on past what is retried above all cursors while a transaction may still
/// commit something between: a group that reads past open transactions may have come
/// there, and only its cursor remembers what it passed.
async fn refuse_a_leap(connection: &mut PgConnection, before: &Parts) -> Result<(), PostgresError> {
    let Some(cursor) = before.leaps_from() else { return Ok(()) };
    let may_appear: bool = sqlx::query_scalar(
        "SELECT (SELECT count(*) FROM event_host.events
                 WHERE position > $1 AND position <= $2) < $2 - $1
            AND EXISTS (
                SELECT FROM pg_lock_status() l
                WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'RowExclusiveLock'
                  AND (l.relation = 'event_host.events'::regclass
                       OR l.relation IN (SELECT p.relation FROM event_host.partitions p))
                  AND l.database = (SELECT oid FROM pg_database
                                    WHERE datname = current_database()))",
    )
    .bind(cursor.0)
    .bind(before.highest.0)
    .fetch_one(connection)
    .await?;
    let part = before.in_use().find(|part| part.head.is_some());
    match part {
        Some(part) if may_appear => Err(refusals::part_with_open_ranges(&part.name).into()),
        _ => Ok(()),
    }
}

/// Into how many partitions, where there are several.
fn of(settings: &GroupRegistration) -> Option<i64> {
    (settings.partitions > 1).then(|| i64::from(settings.partitions))
}

/// Has all parts go on at the highest cursor. What all of it has done so far is the
/// group's own from now on.
async fn join_cursors(
    connection: &mut PgConnection,
    settings: &GroupRegistration,
    before: &Parts,
) -> Result<(), PostgresError> {
    sqlx::query(
        "UPDATE event_host.consumer_groups
         SET partitions = $2, position = $3, epoch = $4, fruitless = 0,
             head_position = NULL, head_attempt = NULL, head_due_at = NULL,
             head_failure_kind = NULL, head_failure_text = NULL,
             mark_position = NULL, mark_attempt = NULL,
             failures = CASE WHEN part_of IS NULL THEN $5::jsonb ELSE '{}' END,
             late_events = CASE WHEN part_of IS NULL THEN $6 ELSE 0 END,
             handled_events = CASE WHEN part_of IS NULL THEN $7 ELSE 0 END,
             dead_events = CASE WHEN part_of IS NULL THEN $8 ELSE 0 END,
             remark = CASE WHEN part_of IS NULL THEN remark END,
             (state, reason, unpinned) = (SELECT g.state, g.reason, g.unpinned FROM event_host.consumer_groups g
                                WHERE g.name = $1)
         WHERE name = $1 OR part_of = $1",
    )
    .bind(settings.name.as_str())
    .bind(i64::from(settings.partitions))
    .bind(before.highest.0)
    .bind(before.epoch.0)
    .bind(stored::failures_json(&before.failures))
    .bind(before.late_events)
    .bind(before.handled_events)
    .bind(before.dead_events)
    .execute(connection)
    .await?;
    Ok(())
}

/// Moves what is parked and what is deferred to where it belongs now.
async fn move_redeliveries(
    connection: &mut PgConnection,
    settings: &GroupRegistration,
    before: &Parts,
) -> Result<(), PostgresError> {
    for statement in [move_rows!("redeliveries"), move_rows!("deferred")] {
        sqlx::query(statement)
            .bind(settings.name.as_str())
            .bind(of(settings))
            .bind(before.rows.iter().map(|part| part.name.as_str()).collect::<Vec<_>>())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Has the events of a part above its cursor, up to another, come again where they
/// belong. Gives how many they are: at most one more than may be.
async fn bring_again(
    connection: &mut PgConnection,
    settings: &GroupRegistration,
    partition: Option<Partition>,
    (after, up_to): (Position, Position),
) -> Result<i64, PostgresError> {
    let statement = sqlx::query(concat!(
        "INSERT INTO event_host.redeliveries (
             group_name, position, attempt, due_at, partitionkey)
         SELECT $1 || coalesce('#' || (",
        partition_hash!(),
        ") % $8::bigint, ''), position, 1, coalesce(deliver_after, 'epoch'), partitionkey
         FROM event_host.events
         WHERE position > $6 AND position <= $7 AND ",
        receives!(),
        " AND ",
        in_partition!("$10", "$11"),
        " LIMIT $9"
    ))
    .bind(settings.name.as_str())
    .bind(settings.tenant.as_str());
    let statement = Types::of(&settings.subscription)
        .bind(statement)
        .bind(after.0)
        .bind(up_to.0)
        .bind(of(settings))
        .bind(MOST_AGAIN + 1);
    let came = super::log::bind_partition(statement, partition).execute(connection).await?;
    Ok(i64::try_from(came.rows_affected()).unwrap_or(i64::MAX))
}

/// Has what was retried at a cursor come again as it was, whatever the group receives now.
async fn retry_again(
    connection: &mut PgConnection,
    settings: &GroupRegistration,
    head: &Head,
) -> Result<(), PostgresError> {
    // There, unless the group no longer receives it.
    sqlx::query(concat!(
        "INSERT INTO event_host.redeliveries (
             group_name, position, attempt, due_at, partitionkey)
         SELECT $1 || coalesce('#' || (",
        partition_hash!(),
        ") % $3::bigint, ''), position, 1, 'epoch', partitionkey
         FROM event_host.events
         WHERE position = $2 AND tenant = $4 AND (deliver_to IS NULL OR deliver_to = $1)
           AND NOT EXISTS (
               SELECT FROM event_host.redeliveries r
               WHERE r.position = $2
                 AND r.group_name IN (SELECT g.name FROM event_host.consumer_groups g
                                      WHERE g.name = $1 OR g.part_of = $1))"
    ))
    .bind(settings.name.as_str())
    .bind(head.position.0)
    .bind(of(settings))
    .bind(settings.tenant.as_str())
    .execute(&mut *connection)
    .await?;
    let failure = head.failure.as_ref();
    sqlx::query(
        "UPDATE event_host.redeliveries
         SET attempt = $3, due_at = $4, failure_kind = $5, failure_text = $6
         WHERE position = $2
           AND group_name IN (SELECT name FROM event_host.consumer_groups
                              WHERE name = $1 OR part_of = $1)",
    )
    .bind(settings.name.as_str())
    .bind(head.position.0)
    .bind(i64::from(head.attempt.0))
    .bind(Time(head.due_at))
    .bind(failure.map(|failure| kept(&failure.kind)))
    .bind(failure.map(|failure| kept(&failure.text)))
    .execute(connection)
    .await?;
    Ok(())
}

/// Takes the rows of a group and of its partitions, and refuses what only they can
/// hold.
async fn locked_rows(
    connection: &mut PgConnection,
    group: &GroupName,
) -> Result<Vec<Part>, PostgresError> {
    let rows = sqlx::query(concat!(
        "SELECT name, position, epoch, late_events, failures::text, open_ranges IS NOT NULL,
                handled_events, dead_events, ",
        head_columns!(),
        " FROM event_host.consumer_groups
         WHERE name = $1 OR part_of = $1 ORDER BY name FOR NO KEY UPDATE"
    ))
    .bind(group.as_str())
    .fetch_all(connection)
    .await?;
    let mut parts = Vec::with_capacity(rows.len());
    for row in &rows {
        let name = stored::group_name(row.try_get_unchecked(0)?)?;
        if row.try_get_unchecked(5)? {
            return Err(refusals::part_with_open_ranges(&name).into());
        }
        parts.push(Part {
            name,
            position: Position(row.try_get_unchecked(1)?),
            epoch: Epoch(row.try_get_unchecked(2)?),
            late_events: row.try_get_unchecked(3)?,
            failures: stored::failures(row.try_get_unchecked(4)?),
            handled_events: row.try_get_unchecked(6)?,
            dead_events: row.try_get_unchecked(7)?,
            head: read_head(row, 8)?,
        });
    }
    Ok(parts)
}
