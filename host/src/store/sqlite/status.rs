//! What `status` tells, read in one snapshot.

use std::path::Path;

use futures_util::TryStreamExt;
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Connection, Row, SqliteConnection};

use super::columns::{count, optional_text, optional_time, text, time};
use super::error::Broken;
use super::groups::{head_columns, if_alive, read_head, read_leader, stored_subscription};
use super::log::{self, Receives};
use super::retention;
use crate::event::{Epoch, GroupName, Partition, Position, Tenant};
use crate::store::split::whole;
use crate::store::{GroupStatus, LogStatus, Subscription, refusals, stored};

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT name, tenant, subscribe, state, reason, epoch, position,
                    created_at, settled_at,
                    (SELECT count(*) FROM dead_letters WHERE group_name = name),
                    hosts.id, hosts.hostname, hosts.pid, leader_since, remark, failures,
                    (SELECT count(*) FROM redeliveries WHERE group_name = name),
                    (SELECT min(due_at) FROM redeliveries WHERE group_name = name AND due_at > 0),
                    (SELECT count(*) FROM redeliveries
                     WHERE group_name = name AND attempt = 1 AND failure_kind IS NULL AND due_at > 0), ",
            head_columns!(),
            ", partitions FROM consumer_groups LEFT JOIN hosts ON hosts.id = leader ",
            $rest
        )
    };
}

pub(super) async fn log_and_groups(
    connection: &mut SqliteConnection,
    database: &Path,
) -> Result<LogStatus, Broken> {
    let mut snapshot = connection.begin().await?;
    let last = log::last_position(&mut snapshot).await?;
    let events: i64 =
        sqlx::query_scalar("SELECT count(*) FROM events").fetch_one(&mut *snapshot).await?;
    let pinned_by = retention::pinned_by(&mut snapshot).await?;
    let rows = sqlx::query(select!(
        "WHERE part_of IS NULL OR (partitions > 1 AND partition < partitions) ORDER BY name"
    ))
    .fetch_all(&mut *snapshot)
    .await?;
    let mut groups = Vec::with_capacity(rows.len());
    for row in &rows {
        groups.push(read(&mut snapshot, database, row).await?);
    }
    snapshot.rollback().await?;
    let groups = whole(groups);
    Ok(LogStatus {
        last_position: last,
        safe_position: last,
        events,
        held_up_by: Vec::new(),
        pinned_by,
        groups,
        hosts: Vec::new(),
    })
}

pub(super) async fn group(
    connection: &mut SqliteConnection,
    database: &Path,
    group: &GroupName,
) -> Result<GroupStatus, Broken> {
    let mut snapshot = connection.begin().await?;
    let rows = sqlx::query(select!(
        "WHERE name = ?1 OR (part_of = ?1 AND partitions > 1 AND partition < partitions)"
    ))
    .bind(group.as_str())
    .fetch_all(&mut *snapshot)
    .await?;
    let mut statuses = Vec::with_capacity(rows.len());
    for row in &rows {
        statuses.push(read(&mut snapshot, database, row).await?);
    }
    snapshot.rollback().await?;
    Ok(whole(statuses).pop().ok_or_else(|| refusals::no_group(group))?)
}

async fn read(
    connection: &mut SqliteConnection,
    database: &Path,
    row: &SqliteRow,
) -> Result<GroupStatus, Broken> {
    let name = stored::group_name(&text(row, 0)?)?;
    let tenant = stored::tenant(&text(row, 1)?)?;
    let subscribe = stored_subscription(&name, &text(row, 2)?)?;
    let position = Position(row.try_get_unchecked(6)?);
    let of = count(row, 25)?;
    let (lag_events, lag_seconds) = match name.partition_number() {
        // The row of a group that is split has no cursor in use.
        None if of > 1 => (0, 0.0),
        None => lag(connection, &name, &tenant, &subscribe, position).await?,
        Some(number) => {
            let receives = Receives::new(&name, &tenant, &subscribe);
            lag_of_a_partition(connection, &receives, position, Partition { number, of }).await?
        }
    };
    let head = read_head(row, 19)?;
    let parked: i64 = row.try_get_unchecked(16)?;
    Ok(GroupStatus {
        subscribe: subscribe.patterns().to_vec(),
        state: stored::group_state(&text(row, 3)?)?,
        reason: optional_text(row, 4)?,
        remark: optional_text(row, 14)?,
        failures: stored::failures(&text(row, 15)?),
        lock_held_by: None,
        row_held_by: None,
        leader: if_alive(database, &name, read_leader(row, 10)?)?,
        epoch: Epoch(row.try_get_unchecked(5)?),
        position,
        lag_events,
        lag_seconds,
        retries_pending: parked - row.try_get_unchecked::<i64, _>(18)?
            + i64::from(head.as_ref().is_some_and(|head| head.failure.is_some())),
        parked,
        next_due_at: head.iter().map(|head| head.due_at).chain(optional_time(row, 17)?).min(),
        head,
        dead_letters: row.try_get_unchecked(9)?,
        // Nobody writes while somebody else does.
        open_ranges: Vec::new(),
        open_ranges_held_by: Vec::new(),
        late_events: 0,
        partitions: Vec::new(),
        created_at: time(row, 7)?,
        settled_at: optional_time(row, 8)?,
        name,
        tenant,
    })
}

/// How many events the group has before it, and the age of the oldest in
/// seconds.
async fn lag(
    connection: &mut SqliteConnection,
    group: &GroupName,
    tenant: &Tenant,
    subscription: &Subscription,
    cursor: Position,
) -> Result<(i64, f64), Broken> {
    let receives = Receives::new(group, tenant, subscription);
    let sql = format!(
        "SELECT count(*), min(published_at) FROM events WHERE position > ? AND {}",
        receives.condition
    );
    let statement = sqlx::query(AssertSqlSafe(sql)).bind(cursor.0);
    let row = receives.bind(statement).fetch_one(connection).await?;
    let age = optional_time(&row, 1)?
        .map_or(0.0, |oldest| Timestamp::now().duration_since(oldest).as_secs_f64());
    Ok((row.try_get_unchecked(0)?, age.max(0.0)))
}

/// The same of a partition. Which one an event is in, the database does not know.
async fn lag_of_a_partition(
    connection: &mut SqliteConnection,
    receives: &Receives<'_>,
    cursor: Position,
    partition: Partition,
) -> Result<(i64, f64), Broken> {
    let sql = format!(
        "SELECT position, partitionkey, published_at FROM events WHERE position > ? AND {}
         ORDER BY position",
        receives.condition
    );
    let statement = sqlx::query(AssertSqlSafe(sql)).bind(cursor.0);
    let mut rows = receives.bind(statement).fetch(connection);
    let (mut events, mut oldest) = (0, None);
    while let Some(row) = rows.try_next().await? {
        let position = Position(row.try_get_unchecked(0)?);
        if partition.holds(optional_text(&row, 1)?.as_deref(), position) {
            events += 1;
            let published_at = time(&row, 2)?;
            oldest =
                Some(oldest.map_or(published_at, |oldest: Timestamp| oldest.min(published_at)));
        }
    }
    let age = oldest.map_or(0.0, |oldest| Timestamp::now().duration_since(oldest).as_secs_f64());
    Ok((events, age.max(0.0)))
}
