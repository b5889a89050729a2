//! Schedules: up to which tick each is done, and the events of their ticks.
//!
//! A host that publishes a tick updates the row of the schedule first, and waits there, if
//! another does so at this moment, with no position drawn: nobody's log is held up.

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};

use super::columns::{Time, kept, optional_time, time};
use super::error::PostgresError;
use super::on_shared::on_shared;
use super::{PostgresStore, log};
use event_host_core::event::ScheduleName;
use event_host_store::driver::stored;
use event_host_store::driver::unreadable::Sifted;
use event_host_store::schedules::{FORGOTTEN_AFTER, registered_to};
use event_host_store::{
    Registered, ScheduleRegistration, ScheduleStatus, Schedules, StoreError, Ticked, Ticks,
};

#[async_trait]
impl Schedules for PostgresStore {
    async fn register_schedule(
        &self,
        schedule: &ScheduleRegistration,
    ) -> Result<Registered, StoreError> {
        on_shared!(self.connections, "register a schedule", |c| register(c, schedule))
    }

    async fn tick(&self, ticks: Ticks<'_>) -> Result<Ticked, StoreError> {
        let ticked =
            on_shared!(self.connections, "publish the tick of a schedule", |c| tick(c, ticks))?;
        if ticked == Ticked::Published && !ticks.events.is_empty() {
            // After the commit, as for every publisher.
            self.hint();
        }
        Ok(ticked)
    }

    async fn record_schedules(&self, schedules: &[ScheduleName]) -> Result<(), StoreError> {
        on_shared!(self.connections, "record which schedules run", |c| record(c, schedules))
    }

    async fn schedules(&self) -> Result<Vec<ScheduleStatus>, StoreError> {
        let read = on_shared!(self.connections, "read the schedules", |c| schedules(c))?;
        Ok(self.said.tell("schedules", read))
    }
}

async fn register(
    connection: &mut PgConnection,
    schedule: &ScheduleRegistration,
) -> Result<Registered, PostgresError> {
    let ScheduleRegistration { name, tenant, cron, timezone } = schedule;
    let mut transaction = connection.begin().await?;
    // A row that is there is locked by this statement already, and one that is not is made:
    // what is read below is what the update finds.
    let made = sqlx::query(
        "INSERT INTO event_host.schedules AS s (name, tenant, cron, timezone)
         VALUES ($1, $2, $3, $4)
         ON CONFLICT (name) DO UPDATE SET seen_at = clock_timestamp()
         RETURNING cron, timezone, done_to, clock_timestamp(), xmax = 0",
    )
    .bind(name.as_str())
    .bind(tenant.as_str())
    .bind(kept(cron))
    .bind(kept(timezone))
    .fetch_one(&mut *transaction)
    .await?;
    let before: (String, String) = (made.try_get_unchecked(0)?, made.try_get_unchecked(1)?);
    let (stood_at, now) = (time(&made, 2)?, time(&made, 3)?);
    let is_same = before.0 == *cron && before.1 == *timezone;
    let is_new: bool = made.try_get_unchecked(4)?;
    let done_to = if is_new { stood_at } else { registered_to(stood_at, is_same, now) };
    if !is_new {
        sqlx::query(
            "UPDATE event_host.schedules SET tenant = $2, cron = $3, timezone = $4, done_to = $5
             WHERE name = $1",
        )
        .bind(name.as_str())
        .bind(tenant.as_str())
        .bind(kept(cron))
        .bind(kept(timezone))
        .bind(Time(done_to))
        .execute(&mut *transaction)
        .await?;
    }
    transaction.commit().await?;
    Ok(Registered { done_to, before: (!is_same).then_some(before) })
}

async fn tick(connection: &mut PgConnection, ticks: Ticks<'_>) -> Result<Ticked, PostgresError> {
    let mut transaction = connection.begin().await?;
    // Of two at once the second waits for the first, and finds the row moved.
    let moved = sqlx::query(
        "UPDATE event_host.schedules
         SET done_to = $3, last_tick = coalesce($4, last_tick), seen_at = clock_timestamp()
         WHERE name = $1 AND done_to = $2 AND $3 <= clock_timestamp()",
    )
    .bind(ticks.schedule.as_str())
    .bind(Time(ticks.after))
    .bind(Time(ticks.done_to))
    .bind(ticks.last.map(Time))
    .execute(&mut *transaction)
    .await?;
    if moved.rows_affected() == 0 {
        let found = sqlx::query(
            "SELECT (SELECT done_to FROM event_host.schedules WHERE name = $1), clock_timestamp()",
        )
        .bind(ticks.schedule.as_str())
        .fetch_one(&mut *transaction)
        .await?;
        transaction.rollback().await?;
        let done_to = optional_time(&found, 0)?;
        return Ok(ticks.refused(done_to, time(&found, 1)?));
    }
    log::append(&mut transaction, ticks.tenant, ticks.events).await?;
    transaction.commit().await?;
    Ok(Ticked::Published)
}

async fn record(
    connection: &mut PgConnection,
    schedules: &[ScheduleName],
) -> Result<(), PostgresError> {
    let names: Vec<&str> = schedules.iter().map(ScheduleName::as_str).collect();
    // By name, so that hosts that do so at once do not wait for each other in a circle.
    sqlx::query(
        "UPDATE event_host.schedules s SET seen_at = clock_timestamp()
         FROM (SELECT name FROM event_host.schedules WHERE name = ANY ($1)
               ORDER BY name FOR UPDATE) theirs
         WHERE s.name = theirs.name",
    )
    .bind(names)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "DELETE FROM event_host.schedules
         WHERE seen_at < clock_timestamp() - make_interval(secs => $1)",
    )
    .bind(FORGOTTEN_AFTER.as_secs_f64())
    .execute(connection)
    .await?;
    Ok(())
}

async fn schedules(connection: &mut PgConnection) -> Result<Sifted<ScheduleStatus>, PostgresError> {
    let rows = sqlx::query(
        "SELECT name, tenant, cron, timezone, done_to, last_tick, seen_at
         FROM event_host.schedules ORDER BY name",
    )
    .fetch_all(connection)
    .await?;
    let whose =
        |row: &PgRow| stored::schedule_of(row.try_get_unchecked::<String, _>(0).ok().as_deref());
    Ok(Sifted::of(rows.iter().map(|row| (whose(row), read(row)))))
}

fn read(row: &PgRow) -> Result<ScheduleStatus, PostgresError> {
    Ok(ScheduleStatus {
        name: stored::schedule_name(row.try_get_unchecked(0)?)?,
        tenant: stored::tenant(row.try_get_unchecked(1)?)?,
        cron: row.try_get_unchecked(2)?,
        timezone: row.try_get_unchecked(3)?,
        done_to: time(row, 4)?,
        last_tick: optional_time(row, 5)?,
        seen_at: time(row, 6)?,
    })
}
