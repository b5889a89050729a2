//! Consumer groups: their rows, their leaders, and what an operator does to
//! them.
//!
//! Whoever moves a cursor without being the leader raises the epoch in the same
//! statement, so that what the leader has open is refused. Every write to a
//! group begins with its row, so that two wait for each other there and never
//! deadlock.

use sqlx::postgres::PgRow;
use sqlx::{Connection, Executor, PgConnection, Row};

use super::columns::{Statement, Time, count, kept, optional_time, time};
use super::connection::{LONG_STATEMENT, begin_long};
use super::error::PostgresError;
use super::{deferred, log, repartition};
use crate::event::{Attempt, Epoch, GroupName, Position, Tenant};
use crate::store::gone::{self, Sought};
use crate::store::lock_key::LockKey;
use crate::store::repartition::parts;
use crate::store::unreadable::Sifted;
use crate::store::{
    Cursor, FailureRecord, GroupControl, GroupRegistration, GroupState, Head, HostIdentity, Leader,
    Leadership, Mark, Removed, Settled, Start, UndecidedRange, UndecidedRanges, refusals, stored,
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

/// What a group's row says of it, as far as settings go.
pub(super) struct Known {
    tenant: Tenant,
    subscribe: Vec<String>,
    /// The highest of its cursors.
    position: Position,
    partitions: u32,
}

pub(super) async fn known(
    connection: &mut PgConnection,
    group: &GroupName,
) -> Result<Option<Known>, PostgresError> {
    let row = sqlx::query(
        "SELECT g.tenant, g.subscribe, g.partitions::bigint,
                greatest(g.position, (SELECT max(p.position) FROM event_host.consumer_groups p
                                      WHERE p.part_of = g.name))
         FROM event_host.consumer_groups g WHERE g.name = $1",
    )
    .bind(group.as_str())
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(Known {
        tenant: stored::tenant(row.try_get_unchecked(0)?)?,
        subscribe: row.try_get_unchecked(1)?,
        partitions: count(&row, 2)?,
        position: Position(row.try_get_unchecked(3)?),
    }))
}

pub(super) async fn ensure(
    connection: &mut PgConnection,
    settings: &GroupRegistration,
) -> Result<(), PostgresError> {
    let GroupRegistration { name, tenant, subscription, partitions, .. } = settings;
    let subscribe = subscription.patterns();
    make(connection, settings).await?;
    let known = known(connection, name).await?.ok_or_else(|| refusals::no_group(name))?;
    if known.tenant != *tenant {
        return Err(refusals::other_tenant(settings, &known.tenant).into());
    }
    // Read after the cursor: the log never shrinks.
    let last = log::last_drawn(connection).await?;
    if known.position > last {
        return Err(refusals::cursor_beyond_the_log(name, known.position, last).into());
    }
    if known.partitions != *partitions {
        let mut transaction = keep_all_events(connection).await?;
        transaction.execute(LONG_STATEMENT).await?;
        repartition::repartition(&mut transaction, settings).await?;
        transaction.commit().await?;
    }
    if known.subscribe != subscribe {
        sqlx::query(
            "UPDATE event_host.consumer_groups SET subscribe = $1 WHERE name = $2 OR part_of = $2",
        )
        .bind(subscribe)
        .bind(name.as_str())
        .execute(connection)
        .await?;
    }
    Ok(())
}

/// Makes a group that is not there.
pub(super) async fn make(
    connection: &mut PgConnection,
    settings: &GroupRegistration,
) -> Result<(), PostgresError> {
    let GroupRegistration { name, tenant, subscription, start, partitions } = settings;
    if known(connection, name).await?.is_some() {
        return Ok(());
    }
    let mut transaction = keep_all_events(connection).await?;
    let position = log::place(&mut transaction, *start).await?;
    let gone = log::beginning(&mut transaction).await?.gone_above(*start, position);
    // Another host may be first with the same group; then it is as it is.
    let made = sqlx::query(
        "INSERT INTO event_host.consumer_groups (
             name, tenant, subscribe, lock_key, position, partitions)
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (name) DO NOTHING",
    )
    .bind(name.as_str())
    .bind(tenant.as_str())
    .bind(subscription.patterns())
    .bind(LockKey::of(name).0)
    .bind(position.0)
    .bind(i64::from(*partitions))
    .execute(&mut *transaction)
    .await?;
    if made.rows_affected() > 0 {
        repartition::make_parts(&mut transaction, name, *partitions).await?;
    }
    transaction.commit().await?;
    if made.rows_affected() > 0 {
        gone::say_of_new_group(name, *start, gone.as_ref());
    }
    Ok(())
}

/// A transaction in which no event goes: retention wants a partition for itself before
/// it looks at the cursors. So an event that is above a cursor, wherever the transaction
/// puts it, is still there when it commits, or was gone before.
pub(super) async fn keep_all_events(
    connection: &mut PgConnection,
) -> Result<sqlx::Transaction<'_, sqlx::Postgres>, PostgresError> {
    let mut transaction = connection.begin().await?;
    transaction.execute("LOCK TABLE event_host.events IN ACCESS SHARE MODE").await?;
    Ok(transaction)
}

/// One statement: the row's lock orders it against every settlement, and against whoever
/// replaces the group's lock. Nothing where the group has another lock than the one
/// that is held, if it is known which that is.
pub(super) async fn begin_leadership(
    connection: &mut PgConnection,
    group: &GroupName,
    host: &HostIdentity,
    held: Option<LockKey>,
) -> Result<Option<Leadership>, PostgresError> {
    let row = sqlx::query(concat!(
        "WITH host AS (
             INSERT INTO event_host.hosts (id, hostname, pid) VALUES ($1, $2, $3)
             ON CONFLICT (id) DO NOTHING)
         UPDATE event_host.consumer_groups
         SET epoch = epoch + 1, leader = $1, leader_since = clock_timestamp()
         WHERE name = $4 AND lock_key = coalesce($5, lock_key)
         RETURNING epoch, position, state, fruitless, settled, mark_begun_by, failures::text, ",
        head_columns!(),
        ", ",
        open_columns!(),
        ", ",
        mark_columns!()
    ))
    .bind(&host.id)
    .bind(&host.hostname)
    .bind(i64::from(host.pid))
    .bind(group.as_str())
    .bind(held.map(|key| key.0))
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else {
        return match known(connection, group).await? {
            Some(_) => Ok(None),
            None => Err(refusals::no_group(group).into()),
        };
    };
    Ok(Some(Leadership {
        epoch: Epoch(row.try_get_unchecked(0)?),
        position: Position(row.try_get_unchecked(1)?),
        state: stored::group_state(row.try_get_unchecked(2)?)?,
        fruitless: count(&row, 3)?,
        settled: row.try_get_unchecked(4)?,
        begun_by: row.try_get_unchecked(5)?,
        failures: stored::failures(row.try_get_unchecked(6)?),
        head: read_head(&row, 7)?,
        undecided: read_open(&row, 12)?,
        mark: read_mark(&row, 14)?,
    }))
}

/// Both times are the server's.
pub(super) async fn is_alive_since(
    connection: &mut PgConnection,
    host: &str,
    group: &GroupName,
) -> Result<bool, PostgresError> {
    Ok(sqlx::query_scalar(
        "SELECT EXISTS (
             SELECT FROM event_host.hosts h, event_host.consumer_groups g
             WHERE h.id = $1 AND g.name = $2 AND h.seen_at > g.leader_since)",
    )
    .bind(host)
    .bind(group.as_str())
    .fetch_one(connection)
    .await?)
}

pub(super) async fn end_leadership(
    connection: &mut PgConnection,
    group: &GroupName,
    epoch: Epoch,
) -> Result<(), PostgresError> {
    sqlx::query(
        "UPDATE event_host.consumer_groups
         SET leader = NULL, leader_since = NULL, fruitless = 0,
             mark_position = NULL, mark_attempt = NULL
         WHERE name = $1 AND epoch = $2",
    )
    .bind(group.as_str())
    .bind(epoch.0)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn record_work_started(
    connection: &mut PgConnection,
    group: &GroupName,
    epoch: Epoch,
    settled: i64,
) -> Result<Settled, PostgresError> {
    let done = sqlx::query(
        "UPDATE event_host.consumer_groups SET fruitless = least(fruitless, 2147483647) + 1
         WHERE name = $1 AND epoch = $2 AND settled = $3",
    )
    .bind(group.as_str())
    .bind(epoch.0)
    .bind(settled)
    .execute(connection)
    .await?;
    Ok(if done.rows_affected() == 0 { Settled::NotLeader } else { Settled::Committed })
}

pub(super) async fn set_note(
    connection: &mut PgConnection,
    groups: &[GroupName],
    note: Option<&str>,
) -> Result<(), PostgresError> {
    sqlx::query(
        "UPDATE event_host.consumer_groups SET remark = $2
         WHERE (name = ANY ($1) OR ($2 IS NULL AND part_of = ANY ($1)))
           AND remark IS DISTINCT FROM $2",
    )
    .bind(groups.iter().map(GroupName::as_str).collect::<Vec<_>>())
    .bind(note.map(kept))
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn record_trip(
    connection: &mut PgConnection,
    group: &GroupName,
    epoch: Epoch,
    reason: Option<&str>,
) -> Result<Settled, PostgresError> {
    let (from, to) = match reason {
        Some(_) => (GroupState::Running, GroupState::Tripped),
        None => (GroupState::Tripped, GroupState::Running),
    };
    let done = sqlx::query(
        "UPDATE event_host.consumer_groups
         SET state = CASE state WHEN $3 THEN $4 ELSE state END,
             reason = CASE state WHEN $3 THEN $5 ELSE reason END
         WHERE name = $1 AND epoch = $2",
    )
    .bind(group.as_str())
    .bind(epoch.0)
    .bind(from.as_str())
    .bind(to.as_str())
    .bind(reason.map(kept))
    .execute(connection)
    .await?;
    Ok(if done.rows_affected() == 0 { Settled::NotLeader } else { Settled::Committed })
}

pub(super) async fn record_attempt_started(
    connection: &mut PgConnection,
    group: &GroupName,
    epoch: Epoch,
    settled: i64,
    mark: Mark,
) -> Result<Settled, PostgresError> {
    let done = sqlx::query(
        "UPDATE event_host.consumer_groups
         SET mark_position = $1, mark_attempt = $2, mark_begun_by = leader
         WHERE name = $3 AND epoch = $4 AND settled = $5",
    )
    .bind(mark.position.0)
    .bind(i64::from(mark.attempt.0))
    .bind(group.as_str())
    .bind(epoch.0)
    .bind(settled)
    .execute(connection)
    .await?;
    Ok(if done.rows_affected() == 0 { Settled::NotLeader } else { Settled::Committed })
}

pub(super) async fn withdraw_attempt(
    connection: &mut PgConnection,
    group: &GroupName,
    epoch: Epoch,
) -> Result<Settled, PostgresError> {
    let done = sqlx::query(
        "UPDATE event_host.consumer_groups SET mark_position = NULL, mark_attempt = NULL
         WHERE name = $1 AND epoch = $2",
    )
    .bind(group.as_str())
    .bind(epoch.0)
    .execute(connection)
    .await?;
    Ok(if done.rows_affected() == 0 { Settled::NotLeader } else { Settled::Committed })
}

/// `FOR UPDATE`, so that a settlement that is still under way on a connection
/// that its host has given up is over by then, one way or the other.
pub(super) async fn cursor(
    connection: &mut PgConnection,
    group: &GroupName,
) -> Result<Cursor, PostgresError> {
    let row = sqlx::query(concat!(
        "SELECT epoch, position, settled, ",
        head_columns!(),
        ", ",
        open_columns!(),
        ", ",
        mark_columns!(),
        " FROM event_host.consumer_groups WHERE name = $1 FOR UPDATE"
    ))
    .bind(group.as_str())
    .fetch_optional(connection)
    .await?
    .ok_or_else(|| refusals::no_group(group))?;
    Ok(Cursor {
        epoch: Epoch(row.try_get_unchecked(0)?),
        position: Position(row.try_get_unchecked(1)?),
        settled: row.try_get_unchecked(2)?,
        head: read_head(&row, 3)?,
        undecided: read_open(&row, 8)?,
        mark: read_mark(&row, 10)?,
    })
}

pub(super) async fn group_states(
    connection: &mut PgConnection,
) -> Result<Sifted<GroupControl>, PostgresError> {
    let rows = sqlx::query(
        "SELECT name, epoch, state, position FROM event_host.consumer_groups ORDER BY name",
    )
    .fetch_all(connection)
    .await?;
    let whose = |row: &PgRow| stored::row_of(row.try_get_unchecked(0).ok());
    Ok(Sifted::of(rows.iter().map(|row| (whose(row), read_control(row)))))
}

fn read_control(row: &PgRow) -> Result<GroupControl, PostgresError> {
    Ok(GroupControl {
        name: stored::group_name(row.try_get_unchecked(0)?)?,
        epoch: Epoch(row.try_get_unchecked(1)?),
        state: stored::group_state(row.try_get_unchecked(2)?)?,
        position: Position(row.try_get_unchecked(3)?),
    })
}

pub(super) async fn set_state(
    connection: &mut PgConnection,
    group: &GroupName,
    state: GroupState,
    reason: Option<&str>,
) -> Result<(), PostgresError> {
    let done = sqlx::query(
        "UPDATE event_host.consumer_groups SET state = $1, reason = $2
         WHERE name IN (SELECT name FROM event_host.consumer_groups
                        WHERE name = $3 OR part_of = $3 ORDER BY name FOR NO KEY UPDATE)",
    )
    .bind(state.as_str())
    .bind(reason.map(kept))
    .bind(group.as_str())
    .execute(connection)
    .await?;
    if done.rows_affected() == 0 { Err(refusals::no_group(group).into()) } else { Ok(()) }
}

pub(super) async fn seek(
    connection: &mut PgConnection,
    group: &GroupName,
    to: Start,
    exactly: bool,
) -> Result<Sought, PostgresError> {
    if known(connection, group).await?.is_none() {
        return Err(refusals::no_group(group).into());
    }
    let mut transaction = keep_all_events(connection).await?;
    transaction.execute(LONG_STATEMENT).await?;
    let position = log::place(&mut transaction, to).await?;
    let gone = log::beginning(&mut transaction).await?.gone_above(to, position);
    if exactly {
        gone::exactly(to, gone.as_ref())?;
    }
    repartition::lock_rows(&mut transaction, group).await?;
    // After the rows, so that what was settled meanwhile is seen.
    deferred::forget(&mut transaction, group, position).await?;
    let position = deferred::past_kept(&mut transaction, group, position).await?;
    // The crashes that a new leader would count belong to the old place.
    let done = sqlx::query(
        "UPDATE event_host.consumer_groups
         SET position = $1, epoch = epoch + 1, fruitless = 0,
             open_ranges = nullif(open_ranges * int8multirange(int8range(1, $1 + 1)), '{}'),
             head_position = NULL, head_attempt = NULL, head_due_at = NULL,
             head_failure_kind = NULL, head_failure_text = NULL,
             mark_position = NULL, mark_attempt = NULL
         WHERE name = $2 OR part_of = $2",
    )
    .bind(position.0)
    .bind(group.as_str())
    .execute(&mut *transaction)
    .await?;
    if done.rows_affected() == 0 {
        return Err(refusals::no_group(group).into());
    }
    // A statement of its own, which sees what was settled while the one before
    // waited for the row.
    repartition::forget_redeliveries(&mut transaction, group, position).await?;
    transaction.commit().await?;
    Ok(Sought { position, gone })
}

/// Has the rows meanwhile, so that nobody begins to lead.
pub(super) async fn remove(
    connection: &mut PgConnection,
    group: &GroupName,
    with_dead_letters: bool,
) -> Result<Removed, PostgresError> {
    let Some(known) = known(connection, group).await? else {
        return Err(refusals::no_group(group).into());
    };
    let mut transaction = begin_long(connection).await?;
    let parts = parts(group, known.partitions);
    repartition::lock_rows(&mut transaction, group).await?;
    let leading = repartition::leading_sessions(&mut transaction, &parts).await?;
    if !leading.is_empty() {
        let leader = leader(&mut transaction, group, &leading).await?;
        return Err(refusals::still_led(group, leader.as_ref()).into());
    }
    let dead: i64 =
        sqlx::query_scalar("SELECT count(*) FROM event_host.dead_letters WHERE group_name = $1")
            .bind(group.as_str())
            .fetch_one(&mut *transaction)
            .await?;
    if dead > 0 && !with_dead_letters {
        return Err(refusals::dead_letters_remain(group, dead).into());
    }
    let deferred = deferred::remove(&mut transaction, group).await?;
    let parked = repartition::forget_redeliveries(&mut transaction, group, Position::ZERO).await?;
    for statement in [
        "DELETE FROM event_host.dead_letters WHERE group_name = $1",
        "DELETE FROM event_host.state WHERE group_name = $1",
    ] {
        sqlx::query(statement).bind(group.as_str()).execute(&mut *transaction).await?;
    }
    let gone = sqlx::query("DELETE FROM event_host.consumer_groups WHERE name = $1")
        .bind(group.as_str())
        .execute(&mut *transaction)
        .await?;
    if gone.rows_affected() == 0 {
        return Err(refusals::no_group(group).into());
    }
    transaction.commit().await?;
    Ok(Removed { parked, deferred })
}

/// Who leads a group, or one of its partitions, with one of these sessions. A row may
/// still name a host that is gone, while another that has the lock begins to lead.
async fn leader(
    connection: &mut PgConnection,
    group: &GroupName,
    sessions: &[i32],
) -> Result<Option<Leader>, PostgresError> {
    let row = sqlx::query(
        "SELECT h.id, h.hostname, h.pid, g.leader_since
         FROM event_host.consumer_groups g
         LEFT JOIN event_host.hosts h ON h.id = g.leader AND h.backend_pid = ANY ($2)
         WHERE g.name = $1 OR g.part_of = $1
         ORDER BY h.id IS NULL, g.name LIMIT 1",
    )
    .bind(group.as_str())
    .bind(sessions)
    .fetch_optional(connection)
    .await?
    .ok_or_else(|| refusals::no_group(group))?;
    read_leader(&row, 0)
}
