//! Leaderships as the rows of groups have them: begun, ended, and what a new leader finds.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection, Row, SqliteConnection};

use super::columns::{count, text};
use super::error::SqliteError;
use super::group_columns::{head_columns, mark_columns, read_head, read_mark};
use event_host_core::event::{Epoch, GroupName, Position};
use event_host_store::driver::{refusals, stored};
use event_host_store::{GroupRow, HostIdentity, Leadership, UndecidedRanges};

pub(super) async fn begin_leadership(
    connection: &mut SqliteConnection,
    group: &GroupName,
    host: &HostIdentity,
) -> Result<Leadership, SqliteError> {
    let begun = begin_leaderships(connection, std::slice::from_ref(group), host).await?;
    begun.into_iter().flatten().next().unwrap_or_else(|| Err(refusals::no_group(group).into()))
}

/// Begins to lead groups, in one transaction. Nothing for one that is not there, and what is
/// wrong with a row that cannot be read.
pub(super) async fn begin_leaderships(
    connection: &mut SqliteConnection,
    groups: &[GroupName],
    host: &HostIdentity,
) -> Result<Vec<Option<Result<Leadership, SqliteError>>>, SqliteError> {
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
    let since = Timestamp::now().as_microsecond();
    let mut begun = Vec::with_capacity(groups.len());
    for group in groups {
        let row = sqlx::query(concat!(
            "UPDATE consumer_groups
             SET epoch = epoch + 1, leader = ?, leader_since = ?
             WHERE name = ?
             RETURNING epoch, position, state, fruitless, settled, failures, tenant, subscribe,
                       partitions, ",
            head_columns!(),
            ", ",
            mark_columns!(),
            ", mark_position IS NOT NULL
               OR EXISTS (SELECT 1 FROM redeliveries r WHERE r.group_name = consumer_groups.name),
               EXISTS (SELECT 1 FROM deferred d WHERE d.group_name = consumer_groups.name)"
        ))
        .bind(&host.id)
        .bind(since)
        .bind(group.as_str())
        .fetch_optional(&mut *transaction)
        .await?;
        begun.push(row.as_ref().map(read_leadership));
    }
    forget_idle_hosts(&mut transaction).await?;
    transaction.commit().await?;
    Ok(begun)
}

fn read_leadership(row: &SqliteRow) -> Result<Leadership, SqliteError> {
    Ok(Leadership {
        epoch: Epoch(row.try_get_unchecked(0)?),
        position: Position(row.try_get_unchecked(1)?),
        state: stored::group_state(&text(row, 2)?)?,
        fruitless: count(row, 3)?,
        begun_by: None,
        settled: row.try_get_unchecked(4)?,
        failures: stored::failures(&text(row, 5)?),
        registered: GroupRow {
            tenant: text(row, 6)?,
            subscribe: stored::patterns(&text(row, 7)?)?,
            partitions: count(row, 8)?,
        },
        head: read_head(row, 9)?,
        mark: read_mark(row, 14)?,
        undecided: UndecidedRanges::NONE,
        may_have_redeliveries: row.try_get_unchecked(16)?,
        may_have_deferred: row.try_get_unchecked(17)?,
    })
}

/// The id of the host that leads a group, as its row says: it may be gone.
pub(super) async fn leader(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<Option<String>, SqliteError> {
    let row = sqlx::query("SELECT leader FROM consumer_groups WHERE name = ?")
        .bind(group.as_str())
        .fetch_optional(connection)
        .await?;
    row.map_or(Ok(None), |row| Ok(row.try_get_unchecked(0)?))
}

/// Of these groups those that are there, with the ids of the hosts that lead them, as their
/// rows say.
pub(super) async fn leaders(
    connection: &mut SqliteConnection,
    groups: &[GroupName],
) -> Result<BTreeMap<GroupName, Option<String>>, SqliteError> {
    let mut leaders = BTreeMap::new();
    for group in groups {
        let row = sqlx::query("SELECT leader FROM consumer_groups WHERE name = ?")
            .bind(group.as_str())
            .fetch_optional(&mut *connection)
            .await?;
        if let Some(row) = row {
            leaders.insert(group.clone(), row.try_get_unchecked(0)?);
        }
    }
    Ok(leaders)
}

/// Records clean ends, in one transaction. A stale epoch is ignored.
pub(super) async fn end_leaderships(
    connection: &mut SqliteConnection,
    ended: &[(&GroupName, Epoch)],
) -> Result<(), SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    for (group, epoch) in ended {
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
    }
    forget_idle_hosts(&mut transaction).await?;
    transaction.commit().await?;
    Ok(())
}

/// Keeps only those hosts that some group names.
pub(super) async fn forget_idle_hosts(
    connection: &mut SqliteConnection,
) -> Result<(), SqliteError> {
    sqlx::query(
        "DELETE FROM hosts WHERE id NOT IN
             (SELECT leader FROM consumer_groups WHERE leader IS NOT NULL)",
    )
    .execute(connection)
    .await?;
    Ok(())
}
