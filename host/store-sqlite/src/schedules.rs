//! Schedules: up to which tick each is done, and the events of their ticks.

use async_trait::async_trait;
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection, Row, SqliteConnection};

use super::SqliteStore;
use super::columns::{text, time};
use super::connection::{on_reader, on_writer};
use super::error::SqliteError;
use super::log;
use event_host_core::event::ScheduleName;
use event_host_store::driver::stored;
use event_host_store::driver::unreadable::Sifted;
use event_host_store::schedules::{FORGOTTEN_AFTER, registered_to};
use event_host_store::{
    Registered, ScheduleRegistration, ScheduleStatus, Schedules, StoreError, Ticked, Ticks,
};

#[async_trait]
impl Schedules for SqliteStore {
    async fn register_schedule(
        &self,
        schedule: &ScheduleRegistration,
    ) -> Result<Registered, StoreError> {
        on_writer!(self.connections, "register a schedule", |c| register(c, schedule))
    }

    async fn tick(&self, ticks: Ticks<'_>) -> Result<Ticked, StoreError> {
        on_writer!(self.connections, "publish the tick of a schedule", |c| tick(c, ticks))
    }

    async fn record_schedules(&self, schedules: &[ScheduleName]) -> Result<(), StoreError> {
        on_writer!(self.connections, "record which schedules run", |c| record(c, schedules))
    }

    async fn schedules(&self) -> Result<Vec<ScheduleStatus>, StoreError> {
        let read = on_reader!(self.connections, "read the schedules", |c| schedules(c))?;
        Ok(self.said.tell("schedules", read))
    }
}

async fn register(
    connection: &mut SqliteConnection,
    schedule: &ScheduleRegistration,
) -> Result<Registered, SqliteError> {
    let ScheduleRegistration { name, tenant, cron, timezone } = schedule;
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let now = now();
    let before = sqlx::query("SELECT cron, timezone, done_to FROM schedules WHERE name = ?")
        .bind(name.as_str())
        .fetch_optional(&mut *transaction)
        .await?;
    let before = match before {
        Some(row) => Some((text(&row, 0)?, text(&row, 1)?, time(&row, 2)?)),
        None => None,
    };
    let is_same = before.as_ref().is_some_and(|(c, z, _)| c == cron && z == timezone);
    let done_to = before.as_ref().map_or(now, |(_, _, at)| registered_to(*at, is_same, now));
    sqlx::query(
        "INSERT INTO schedules (name, tenant, cron, timezone, done_to, seen_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (name) DO UPDATE SET tenant = ?2, cron = ?3, timezone = ?4, done_to = ?5,
                                          seen_at = ?6",
    )
    .bind(name.as_str())
    .bind(tenant.as_str())
    .bind(cron.as_str())
    .bind(timezone.as_str())
    .bind(done_to.as_microsecond())
    .bind(now.as_microsecond())
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    let before = before.filter(|_| !is_same).map(|(cron, timezone, _)| (cron, timezone));
    Ok(Registered { done_to, before })
}

async fn tick(connection: &mut SqliteConnection, ticks: Ticks<'_>) -> Result<Ticked, SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let now = now();
    // Who has the write lock has it alone: what is read here stays so until the commit.
    let done_to: Option<i64> = sqlx::query_scalar("SELECT done_to FROM schedules WHERE name = ?")
        .bind(ticks.schedule.as_str())
        .fetch_optional(&mut *transaction)
        .await?;
    let done_to = done_to.map(stored::time);
    if done_to != Some(ticks.after) || ticks.done_to > now {
        return Ok(ticks.refused(done_to, now));
    }
    sqlx::query(
        "UPDATE schedules SET done_to = ?2, last_tick = coalesce(?3, last_tick), seen_at = ?4
         WHERE name = ?1",
    )
    .bind(ticks.schedule.as_str())
    .bind(ticks.done_to.as_microsecond())
    .bind(ticks.last.map(Timestamp::as_microsecond))
    .bind(now.as_microsecond())
    .execute(&mut *transaction)
    .await?;
    log::append(&mut transaction, ticks.tenant, ticks.events).await?;
    transaction.commit().await?;
    Ok(Ticked::Published)
}

async fn record(
    connection: &mut SqliteConnection,
    schedules: &[ScheduleName],
) -> Result<(), SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let now = now();
    for name in schedules {
        sqlx::query("UPDATE schedules SET seen_at = ? WHERE name = ?")
            .bind(now.as_microsecond())
            .bind(name.as_str())
            .execute(&mut *transaction)
            .await?;
    }
    let forgotten = now.saturating_sub(FORGOTTEN_AFTER).unwrap_or(Timestamp::MIN);
    sqlx::query("DELETE FROM schedules WHERE seen_at < ?")
        .bind(forgotten.as_microsecond())
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(())
}

async fn schedules(
    connection: &mut SqliteConnection,
) -> Result<Sifted<ScheduleStatus>, SqliteError> {
    let rows = sqlx::query(
        "SELECT name, tenant, cron, timezone, done_to, last_tick, seen_at
         FROM schedules ORDER BY name",
    )
    .fetch_all(connection)
    .await?;
    let whose = |row: &SqliteRow| stored::schedule_of(text(row, 0).ok().as_deref());
    Ok(Sifted::of(rows.iter().map(|row| (whose(row), read(row)))))
}

fn read(row: &SqliteRow) -> Result<ScheduleStatus, SqliteError> {
    Ok(ScheduleStatus {
        name: stored::schedule_name(&text(row, 0)?)?,
        tenant: stored::tenant(&text(row, 1)?)?,
        cron: text(row, 2)?,
        timezone: text(row, 3)?,
        done_to: time(row, 4)?,
        last_tick: row.try_get_unchecked::<Option<i64>, _>(5)?.map(stored::time),
        seen_at: time(row, 6)?,
    })
}

/// Now, as it is kept.
fn now() -> Timestamp {
    stored::time(Timestamp::now().as_microsecond())
}
