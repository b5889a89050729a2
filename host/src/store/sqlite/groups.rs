//! Consumer groups: their rows, their leaders, and what an operator does to
//! them.
//!
//! Whoever moves a cursor without being the leader raises the epoch in the same
//! statement, so that what the leader has open is refused.

use std::path::Path;

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection, Row, SqliteConnection};

use super::columns::{Statement, count, optional_text, optional_time, text, time};
use super::error::SqliteError;
use super::{deferred, locks, log, repartition};
use crate::event::{Attempt, Epoch, GroupName, Position, Tenant};
use crate::store::gone::{self, Sought};
use crate::store::repartition::parts;
use crate::store::unreadable::Sifted;
use crate::store::{
    Cursor, FailureRecord, GroupControl, GroupRegistration, GroupState, Head, HostIdentity, Leader,
    Leadership, Mark, Removed, Settled, Start, StoreError, Subscription, UndecidedRanges, refusals,
    stored,
};

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

fn patterns_to_json(subscription: &Subscription) -> String {
    serde_json::Value::from(subscription.patterns()).to_string()
}

/// What a group's row says of it, as far as settings go.
pub(super) struct Known {
    tenant: Tenant,
    subscribe: String,
    /// The highest of its cursors.
    position: Position,
    partitions: u32,
}

pub(super) async fn known(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<Option<Known>, SqliteError> {
    let row = sqlx::query(
        "SELECT tenant, subscribe, partitions,
                (SELECT max(position) FROM consumer_groups p
                 WHERE p.name = g.name OR p.part_of = g.name)
         FROM consumer_groups g WHERE name = ?",
    )
    .bind(group.as_str())
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(Known {
        tenant: stored::tenant(&text(&row, 0)?)?,
        subscribe: text(&row, 1)?,
        partitions: count(&row, 2)?,
        position: Position(row.try_get_unchecked(3)?),
    }))
}

/// The parts of a group that are led; none of one that does not exist.
pub(super) async fn led_parts(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<Vec<GroupName>, SqliteError> {
    let known = known(connection, group).await?;
    Ok(known.map_or_else(Vec::new, |known| parts(group, known.partitions)))
}

/// Whether a group would have to be repartitioned, for which nobody may lead a part of it.
pub(super) async fn is_split_otherwise(
    connection: &mut SqliteConnection,
    settings: &GroupRegistration,
) -> Result<bool, SqliteError> {
    let known = known(connection, &settings.name).await?;
    Ok(known.is_some_and(|known| {
        known.tenant == settings.tenant && known.partitions != settings.partitions
    }))
}

/// Repartitions a group only where the caller sees to it that nobody leads a part of
/// it, and that nobody begins.
pub(super) async fn ensure(
    connection: &mut SqliteConnection,
    settings: &GroupRegistration,
    is_vacant: bool,
) -> Result<(), SqliteError> {
    let GroupRegistration { name, tenant, subscription, start, partitions } = settings;
    let subscribe = patterns_to_json(subscription);
    let mut made = None;
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    match known(&mut transaction, name).await? {
        Some(known) if known.tenant != *tenant => {
            return Err(refusals::other_tenant(settings, &known.tenant).into());
        }
        Some(known) => {
            let last = log::last_position(&mut transaction).await?;
            if known.position > last {
                return Err(refusals::cursor_beyond_the_log(name, known.position, last).into());
            }
            if known.partitions != *partitions {
                if !is_vacant {
                    return Err(refusals::still_led_somewhere(name).into());
                }
                let split = repartition::Split { group: name, tenant, subscription };
                repartition::repartition(&mut transaction, split, known.partitions, *partitions)
                    .await?;
            }
            if known.subscribe != subscribe {
                sqlx::query(
                    "UPDATE consumer_groups SET subscribe = ?1 WHERE name = ?2 OR part_of = ?2",
                )
                .bind(&subscribe)
                .bind(name.as_str())
                .execute(&mut *transaction)
                .await?;
            }
        }
        None => {
            let position = log::place(&mut transaction, *start).await?;
            made = Some(log::beginning(&mut transaction).await?.gone_above(*start, position));
            sqlx::query(
                "INSERT INTO consumer_groups (
                     name, tenant, subscribe, position, created_at, partitions)
                 VALUES (?, ?, ?, ?, ?, ?)",
            )
            .bind(name.as_str())
            .bind(tenant.as_str())
            .bind(&subscribe)
            .bind(position.0)
            .bind(Timestamp::now().as_microsecond())
            .bind(i64::from(*partitions))
            .execute(&mut *transaction)
            .await?;
            repartition::make_parts(&mut transaction, name, *partitions).await?;
        }
    }
    transaction.commit().await?;
    if let Some(gone) = made {
        gone::say_of_new_group(name, *start, gone.as_ref());
    }
    Ok(())
}

/// The patterns of a group's row.
pub(super) fn stored_subscription(
    group: &GroupName,
    json: &str,
) -> Result<Subscription, StoreError> {
    let patterns = serde_json::from_str(json).map_err(|error| {
        StoreError::Unusable(format!("the stored subscription of group `{group}`: {error}"))
    })?;
    stored::subscription(group, patterns)
}

pub(super) async fn begin_leadership(
    connection: &mut SqliteConnection,
    group: &GroupName,
    host: &HostIdentity,
) -> Result<Leadership, SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query(
        "INSERT INTO hosts (id, hostname, pid) VALUES (?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET hostname = excluded.hostname, pid = excluded.pid",
    )
    .bind(&host.id)
    .bind(&host.hostname)
    .bind(i64::from(host.pid))
    .execute(&mut *transaction)
    .await?;
    let row = sqlx::query(concat!(
        "UPDATE consumer_groups
         SET epoch = epoch + 1, leader = ?, leader_since = ?
         WHERE name = ?
         RETURNING epoch, position, state, fruitless, settled, failures, ",
        head_columns!(),
        ", ",
        mark_columns!()
    ))
    .bind(&host.id)
    .bind(Timestamp::now().as_microsecond())
    .bind(group.as_str())
    .fetch_optional(&mut *transaction)
    .await?
    .ok_or_else(|| refusals::no_group(group))?;
    forget_idle_hosts(&mut transaction).await?;
    transaction.commit().await?;
    Ok(Leadership {
        epoch: Epoch(row.try_get_unchecked(0)?),
        position: Position(row.try_get_unchecked(1)?),
        state: stored::group_state(&text(&row, 2)?)?,
        fruitless: count(&row, 3)?,
        begun_by: None,
        settled: row.try_get_unchecked(4)?,
        failures: stored::failures(&text(&row, 5)?),
        head: read_head(&row, 6)?,
        mark: read_mark(&row, 11)?,
        undecided: UndecidedRanges::NONE,
    })
}

/// Keeps only those hosts that some group names.
async fn forget_idle_hosts(connection: &mut SqliteConnection) -> Result<(), SqliteError> {
    sqlx::query(
        "DELETE FROM hosts WHERE id NOT IN
             (SELECT leader FROM consumer_groups WHERE leader IS NOT NULL)",
    )
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn end_leadership(
    connection: &mut SqliteConnection,
    group: &GroupName,
    epoch: Epoch,
) -> Result<(), SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query(
        "UPDATE consumer_groups
         SET leader = NULL, leader_since = NULL, fruitless = 0,
             mark_position = NULL, mark_attempt = NULL
         WHERE name = ? AND epoch = ?",
    )
    .bind(group.as_str())
    .bind(epoch.0)
    .execute(&mut *transaction)
    .await?;
    forget_idle_hosts(&mut transaction).await?;
    transaction.commit().await?;
    Ok(())
}

/// One statement, which takes the write lock before it reads anything, like an
/// immediate transaction, and commits by itself.
pub(super) async fn record_work_started(
    connection: &mut SqliteConnection,
    group: &GroupName,
    epoch: Epoch,
    settled: i64,
) -> Result<Settled, SqliteError> {
    let done = sqlx::query(
        "UPDATE consumer_groups SET fruitless = min(fruitless, 2147483647) + 1
         WHERE name = ? AND epoch = ? AND settled = ?",
    )
    .bind(group.as_str())
    .bind(epoch.0)
    .bind(settled)
    .execute(connection)
    .await?;
    Ok(if done.rows_affected() == 0 { Settled::NotLeader } else { Settled::Committed })
}

pub(super) async fn set_note(
    connection: &mut SqliteConnection,
    groups: &[GroupName],
    note: Option<&str>,
) -> Result<(), SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    for group in groups {
        sqlx::query(
            "UPDATE consumer_groups SET remark = ?2
             WHERE (name = ?1 OR (?2 IS NULL AND part_of = ?1)) AND remark IS NOT ?2",
        )
        .bind(group.as_str())
        .bind(note)
        .execute(&mut *transaction)
        .await?;
    }
    transaction.commit().await?;
    Ok(())
}

pub(super) async fn record_trip(
    connection: &mut SqliteConnection,
    group: &GroupName,
    epoch: Epoch,
    reason: Option<&str>,
) -> Result<Settled, SqliteError> {
    let (from, to) = match reason {
        Some(_) => (GroupState::Running, GroupState::Tripped),
        None => (GroupState::Tripped, GroupState::Running),
    };
    let done = sqlx::query(
        "UPDATE consumer_groups
         SET state = CASE state WHEN ?3 THEN ?4 ELSE state END,
             reason = CASE state WHEN ?3 THEN ?5 ELSE reason END
         WHERE name = ?1 AND epoch = ?2",
    )
    .bind(group.as_str())
    .bind(epoch.0)
    .bind(from.as_str())
    .bind(to.as_str())
    .bind(reason)
    .execute(connection)
    .await?;
    Ok(if done.rows_affected() == 0 { Settled::NotLeader } else { Settled::Committed })
}

/// One statement, as in [`record_work_started`].
pub(super) async fn record_attempt_started(
    connection: &mut SqliteConnection,
    group: &GroupName,
    epoch: Epoch,
    settled: i64,
    mark: Mark,
) -> Result<Settled, SqliteError> {
    let done = sqlx::query(
        "UPDATE consumer_groups SET mark_position = ?, mark_attempt = ?
         WHERE name = ? AND epoch = ? AND settled = ?",
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

/// One statement, as in [`record_work_started`].
pub(super) async fn withdraw_attempt(
    connection: &mut SqliteConnection,
    group: &GroupName,
    epoch: Epoch,
) -> Result<Settled, SqliteError> {
    let done = sqlx::query(
        "UPDATE consumer_groups SET mark_position = NULL, mark_attempt = NULL
         WHERE name = ? AND epoch = ?",
    )
    .bind(group.as_str())
    .bind(epoch.0)
    .execute(connection)
    .await?;
    Ok(if done.rows_affected() == 0 { Settled::NotLeader } else { Settled::Committed })
}

pub(super) async fn cursor(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<Cursor, SqliteError> {
    let row = sqlx::query(concat!(
        "SELECT epoch, settled, position, ",
        head_columns!(),
        ", ",
        mark_columns!(),
        " FROM consumer_groups WHERE name = ?"
    ))
    .bind(group.as_str())
    .fetch_optional(connection)
    .await?
    .ok_or_else(|| refusals::no_group(group))?;
    Ok(Cursor {
        epoch: Epoch(row.try_get_unchecked(0)?),
        settled: row.try_get_unchecked(1)?,
        position: Position(row.try_get_unchecked(2)?),
        head: read_head(&row, 3)?,
        mark: read_mark(&row, 8)?,
        undecided: UndecidedRanges::NONE,
    })
}

pub(super) async fn group_states(
    connection: &mut SqliteConnection,
) -> Result<Sifted<GroupControl>, SqliteError> {
    let rows =
        sqlx::query("SELECT name, epoch, state, position FROM consumer_groups ORDER BY name")
            .fetch_all(connection)
            .await?;
    let whose = |row: &SqliteRow| stored::row_of(text(row, 0).ok().as_deref());
    Ok(Sifted::of(rows.iter().map(|row| (whose(row), read_control(row)))))
}

fn read_control(row: &SqliteRow) -> Result<GroupControl, SqliteError> {
    Ok(GroupControl {
        name: stored::group_name(&text(row, 0)?)?,
        epoch: Epoch(row.try_get_unchecked(1)?),
        state: stored::group_state(&text(row, 2)?)?,
        position: Position(row.try_get_unchecked(3)?),
    })
}

pub(super) async fn set_state(
    connection: &mut SqliteConnection,
    group: &GroupName,
    state: GroupState,
    reason: Option<&str>,
) -> Result<(), SqliteError> {
    let update = "UPDATE consumer_groups SET state = ?1, reason = ?2
                  WHERE name = ?3 OR part_of = ?3";
    let done = sqlx::query(update)
        .bind(state.as_str())
        .bind(reason)
        .bind(group.as_str())
        .execute(connection)
        .await?;
    if done.rows_affected() == 0 { Err(refusals::no_group(group).into()) } else { Ok(()) }
}

pub(super) async fn seek(
    connection: &mut SqliteConnection,
    group: &GroupName,
    to: Start,
    exactly: bool,
) -> Result<Sought, SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    if known(&mut transaction, group).await?.is_none() {
        return Err(refusals::no_group(group).into());
    }
    let position = log::place(&mut transaction, to).await?;
    let gone = log::beginning(&mut transaction).await?.gone_above(to, position);
    if exactly {
        gone::exactly(to, gone.as_ref())?;
    }
    deferred::forget(&mut transaction, group, position).await?;
    let position = deferred::past_kept(&mut transaction, group, position).await?;
    // The crashes that a new leader would count belong to the old place.
    sqlx::query(
        "UPDATE consumer_groups
         SET position = ?1, epoch = epoch + 1, fruitless = 0,
             head_position = NULL, head_attempt = NULL, head_due_at = NULL,
             head_failure_kind = NULL, head_failure_text = NULL,
             mark_position = NULL, mark_attempt = NULL
         WHERE name = ?2 OR part_of = ?2",
    )
    .bind(position.0)
    .bind(group.as_str())
    .execute(&mut *transaction)
    .await?;
    repartition::forget_redeliveries(&mut transaction, group, position).await?;
    transaction.commit().await?;
    Ok(Sought { position, gone })
}

/// The caller sees to it that nobody leads a part of the group, and that nobody
/// begins.
pub(super) async fn remove(
    connection: &mut SqliteConnection,
    group: &GroupName,
    with_dead_letters: bool,
) -> Result<Removed, SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let dead: i64 = sqlx::query_scalar("SELECT count(*) FROM dead_letters WHERE group_name = ?")
        .bind(group.as_str())
        .fetch_one(&mut *transaction)
        .await?;
    if dead > 0 && !with_dead_letters {
        return Err(refusals::dead_letters_remain(group, dead).into());
    }
    let deferred = deferred::remove(&mut transaction, group).await?;
    let parked = repartition::forget_redeliveries(&mut transaction, group, Position::ZERO).await?;
    for statement in
        ["DELETE FROM dead_letters WHERE group_name = ?", "DELETE FROM state WHERE group_name = ?"]
    {
        sqlx::query(statement).bind(group.as_str()).execute(&mut *transaction).await?;
    }
    let gone = sqlx::query("DELETE FROM consumer_groups WHERE name = ?")
        .bind(group.as_str())
        .execute(&mut *transaction)
        .await?;
    if gone.rows_affected() == 0 {
        return Err(refusals::no_group(group).into());
    }
    forget_idle_hosts(&mut transaction).await?;
    transaction.commit().await?;
    Ok(Removed { parked, deferred })
}

/// The leader that a group's row names, if its lock is held: a process that was
/// killed leaves its name behind, and lets go of the lock.
pub(super) fn if_alive(
    database: &Path,
    group: &GroupName,
    leader: Option<Leader>,
) -> Result<Option<Leader>, StoreError> {
    match leader {
        Some(leader) if locks::is_held(database, group)? => Ok(Some(leader)),
        _ => Ok(None),
    }
}

pub(super) async fn leader(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<Option<Leader>, SqliteError> {
    let row = sqlx::query(
        "SELECT hosts.id, hosts.hostname, hosts.pid, leader_since
         FROM consumer_groups LEFT JOIN hosts ON hosts.id = leader
         WHERE name = ?1 OR part_of = ?1
         ORDER BY hosts.id IS NULL, name LIMIT 1",
    )
    .bind(group.as_str())
    .fetch_optional(connection)
    .await?
    .ok_or_else(|| refusals::no_group(group))?;
    read_leader(&row, 0)
}
