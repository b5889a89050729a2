//! Consumer groups: their rows, their leaders, and what an operator does to
//! them.
//!
//! Whoever moves a cursor without being the leader raises the epoch in the same
//! statement, so that what the leader has open is refused.

use async_trait::async_trait;
use jiff::Timestamp;
use sqlx::{Connection, SqliteConnection};

use super::connection::{LONG_DEADLINE, on_reader, on_writer};
use super::error::SqliteError;
use super::group_columns::read_leader;
use super::group_row::known;
use super::leadership_row::forget_idle_hosts;
use super::{SqliteStore, deadline, deferred, locks, log, repartition, status, unpin};
use event_host_core::event::{GroupName, Position};
use event_host_store::driver::gone::Sought;
use event_host_store::driver::repartition::parts;
use event_host_store::driver::{gone, refusals, stored};
use event_host_store::{
    Counting, Gone, GroupRegistration, GroupState, GroupStatus, Groups, Leader, LogStatus, Removed,
    Start, StoreError,
};

#[async_trait]
impl Groups for SqliteStore {
    async fn status_counted(&self, counting: Counting) -> Result<LogStatus, StoreError> {
        on_reader!(self.connections, "read the status", deadline(counting), |c| {
            status::log_and_groups(c, self.path(), counting)
        })
    }

    async fn group_status_counted(
        &self,
        group: &GroupName,
        counting: Counting,
    ) -> Result<GroupStatus, StoreError> {
        on_reader!(self.connections, "read a group", deadline(counting), |c| {
            status::group(c, self.path(), group, counting)
        })
    }

    async fn resume(&self, group: &GroupName) -> Result<(), StoreError> {
        on_writer!(self.connections, "resume a group", |c| { unpin::resume(c, group, false) })
            .map(drop)
    }

    async fn resume_without_what_is_gone(
        &self,
        group: &GroupName,
    ) -> Result<Option<Gone>, StoreError> {
        on_writer!(self.connections, "resume a group", |c| unpin::resume(c, group, true))
    }

    async fn seek_to(
        &self,
        group: &GroupName,
        to: Start,
        exactly: bool,
    ) -> Result<Sought, StoreError> {
        on_writer!(self.connections, "move a cursor", LONG_DEADLINE, |c| {
            seek(c, group, to, exactly)
        })
    }

    async fn remove_group(
        &self,
        group: &GroupName,
        with_dead_letters: bool,
    ) -> Result<Removed, StoreError> {
        let leader = on_reader!(self.connections, "read a group", |c| leader(c, group))?;
        let parts = self.led_parts(group).await?;
        let Some(_vacancies) = locks::Vacancy::of_all(self.path(), &parts).await? else {
            return Err(refusals::still_led(group, leader.as_ref()));
        };
        on_writer!(self.connections, "remove a group", LONG_DEADLINE, |c| {
            remove(c, group, with_dead_letters)
        })
    }
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
    let subscribe = stored::patterns_json(subscription);
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
