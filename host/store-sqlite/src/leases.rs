//! Leaderships: the rows that say who leads a group, and what a new leader finds.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::columns::text;
use super::connection::{LONG_DEADLINE, on_reader, on_writer};
use super::error::SqliteError;
use super::leadership_row::{begin_leadership, leader};
use super::{SqliteStore, groups, locks, open};
use event_host_core::event::{Epoch, GroupName, Position};
use event_host_store::driver::repartition::parts as parts_of;
use event_host_store::driver::unreadable::Sifted;
use event_host_store::driver::{refusals, stored};
use event_host_store::{
    GroupControl, GroupRegistration, HostIdentity, Leadership, Leases, LockSession, Mark, Settled,
    StoreError,
};

#[async_trait]
impl Leases for SqliteStore {
    async fn lock_session(&self, host: &HostIdentity) -> Result<Box<dyn LockSession>, StoreError> {
        // A host that lost its session comes here: the files may be why.
        open::again(&self.connections).await?;
        if self.connections.has_change() {
            // Whoever led before that would read the new log up to where the old one was safe.
            self.wait_until_forgotten().await;
            return Err(StoreError::Unavailable(format!(
                "another database is at {} now: what was known of the one before is forgotten first",
                self.path().display()
            )));
        }
        Ok(Box::new(locks::FileLocks::new(Arc::clone(&self.connections), host)))
    }

    async fn ensure_group(&self, settings: &GroupRegistration) -> Result<(), StoreError> {
        // Held, if at all, until the group is repartitioned.
        let mut vacancies = None;
        if on_reader!(self.connections, "read a group", |c| {
            groups::is_split_otherwise(c, settings)
        })? {
            let mut affected = self.led_parts(&settings.name).await?;
            affected.extend(parts_of(&settings.name, settings.partitions));
            vacancies = locks::Vacancy::of_all(self.path(), &affected).await?;
            if vacancies.is_none() {
                return Err(refusals::still_led_somewhere(&settings.name));
            }
        }
        let is_vacant = vacancies.is_some();
        on_writer!(self.connections, "make a group", LONG_DEADLINE, |c| {
            groups::ensure(c, settings, is_vacant)
        })
    }

    async fn group_states(&self) -> Result<Vec<GroupControl>, StoreError> {
        let read =
            on_reader!(self.connections, "read the states of the groups", |c| { group_states(c) })?;
        Ok(self.said.tell("groups", read))
    }

    async fn begin_leadership(
        &self,
        group: &GroupName,
        host: &HostIdentity,
    ) -> Result<Leadership, StoreError> {
        if let (true, leader) = (
            locks::is_held(self.path(), group)?,
            on_reader!(self.connections, "read a group", |c| leader(c, group))?,
        ) && leader.is_some_and(|leader| leader != host.id)
        {
            return Err(refusals::led_by_another(group));
        }
        on_writer!(self.connections, "lead a group", |c| begin_leadership(c, group, host))
    }

    async fn record_work_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
    ) -> Result<Settled, StoreError> {
        on_writer!(self.connections, "record the begin of work", |c| {
            record_work_started(c, group, epoch, settled)
        })
    }

    async fn record_attempt_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
        mark: Mark,
    ) -> Result<Settled, StoreError> {
        on_writer!(self.connections, "record the begin of an attempt", |c| {
            record_attempt_started(c, group, epoch, settled, mark)
        })
    }

    async fn withdraw_attempt(
        &self,
        group: &GroupName,
        epoch: Epoch,
    ) -> Result<Settled, StoreError> {
        on_writer!(self.connections, "forget the begin of an attempt", |c| {
            withdraw_attempt(c, group, epoch)
        })
    }
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
