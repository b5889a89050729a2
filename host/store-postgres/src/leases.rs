//! Leaderships: the rows that say who leads a group, and what a new leader finds.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::connection::LONG_DEADLINE;
use super::error::PostgresError;
use super::group_columns::{head_columns, mark_columns, open_columns};
use super::group_row::known;
use super::leadership_row::{leadership_columns, read_leadership};
use super::on_shared::on_shared;
use super::watch::on_watch;
use super::{PostgresStore, groups, hosts, locks};
use event_host_core::event::{Epoch, GroupName, Position};
use event_host_store::driver::unreadable::Sifted;
use event_host_store::driver::{refusals, stored};
use event_host_store::{
    GroupControl, GroupRegistration, HostIdentity, Leadership, Leases, LockSession, Mark, Settled,
    StoreError,
};

#[async_trait]
impl Leases for PostgresStore {
    async fn lock_session(&self, host: &HostIdentity) -> Result<Box<dyn LockSession>, StoreError> {
        Ok(Box::new(locks::HostSession::begin(Arc::clone(&self.connections), host).await?))
    }

    async fn record_outages(
        &self,
        host: &HostIdentity,
        trouble: Option<&str>,
    ) -> Result<(), StoreError> {
        on_shared!(self.connections, "tell what troubles this host", |c| {
            hosts::record_outages(c, host, trouble)
        })
    }

    async fn ensure_group(&self, settings: &GroupRegistration) -> Result<(), StoreError> {
        on_shared!(self.connections, "make a group", LONG_DEADLINE, |c| {
            groups::ensure(c, settings)
        })
    }

    async fn ensure_groups(&self, settings: &[GroupRegistration]) -> Result<(), StoreError> {
        on_shared!(self.connections, "make groups", LONG_DEADLINE, |c| {
            groups::ensure_all(c, settings)
        })
    }

    async fn control_version(&self) -> Result<Option<i64>, StoreError> {
        on_watch!(self, "see whether groups have changed", |c, _watch| control_version(c)).map(Some)
    }

    async fn group_states(&self) -> Result<Vec<GroupControl>, StoreError> {
        let read = on_watch!(self, "read the states of the groups", |c, _watch| group_states(c))?;
        Ok(self.said.tell("groups", read))
    }

    async fn begin_leadership(
        &self,
        group: &GroupName,
        host: &HostIdentity,
    ) -> Result<Leadership, StoreError> {
        on_shared!(self.connections, "lead a group", |c| begin_leadership(c, group, host))
    }

    async fn is_alive_since(&self, host: &str, group: &GroupName) -> Result<bool, StoreError> {
        on_shared!(self.connections, "see whether a host lives", |c| {
            is_alive_since(c, host, group)
        })
    }

    async fn record_work_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
    ) -> Result<Settled, StoreError> {
        on_shared!(self.connections, "record the begin of work", |c| {
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
        on_shared!(self.connections, "record the begin of an attempt", |c| {
            record_attempt_started(c, group, epoch, settled, mark)
        })
    }

    async fn withdraw_attempt(
        &self,
        group: &GroupName,
        epoch: Epoch,
    ) -> Result<Settled, StoreError> {
        on_shared!(self.connections, "forget the begin of an attempt", |c| {
            withdraw_attempt(c, group, epoch)
        })
    }
}

/// One statement: the row's lock orders it against every settlement, and against whoever
/// claims the group. The key that the host's row names is its present session's, and NULL
/// for a host that has none.
pub(super) async fn begin_leadership(
    connection: &mut PgConnection,
    group: &GroupName,
    host: &HostIdentity,
) -> Result<Leadership, PostgresError> {
    let row = sqlx::query(concat!(
        "WITH host AS (
             INSERT INTO event_host.hosts (id, hostname, pid) VALUES ($1, $2, $3)
             ON CONFLICT (id) DO NOTHING)
         UPDATE event_host.consumer_groups
         SET epoch = epoch + 1, leader = $1, leader_since = clock_timestamp(),
             leader_key = (SELECT h.lock_key FROM event_host.hosts h WHERE h.id = $1)
         WHERE name = $4
           AND (leader_key IS NULL
                OR leader_key = (SELECT h.lock_key FROM event_host.hosts h WHERE h.id = $1))
         RETURNING ",
        leadership_columns!()
    ))
    .bind(&host.id)
    .bind(&host.hostname)
    .bind(i64::from(host.pid))
    .bind(group.as_str())
    .fetch_optional(&mut *connection)
    .await?;
    match row {
        Some(row) => read_leadership(&row, 0),
        None => match known(connection, group).await? {
            Some(_) => Err(refusals::led_by_another(group).into()),
            None => Err(refusals::no_group(group).into()),
        },
    }
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

pub(super) async fn control_version(connection: &mut PgConnection) -> Result<i64, PostgresError> {
    Ok(sqlx::query_scalar("SELECT version FROM event_host.control_version")
        .fetch_one(connection)
        .await?)
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
