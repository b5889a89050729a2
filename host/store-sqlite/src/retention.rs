//! Retention: deletes the oldest events, a few at a time.
//!
//! Each step is one short transaction, taken when nobody of this process writes,
//! with a rest after it that is as long, in which other processes get their turn.
//! The pages that become free are used again for the events that come.

use std::time::Duration;

use jiff::Timestamp;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};
use tokio::time::Instant;

use super::columns::text;
use super::connection::{Connections, on_reader, on_writer};
use super::error::SqliteError;
use event_host_core::event::{GroupName, Position, Tenant};
use event_host_store::{Counting, Enforced, LogPin, Retention, StoreError};

/// What one step deletes at most, in events and in bytes of data, so that it takes
/// a few milliseconds.
const EVENTS_A_STEP: i64 = 1_000;
const BYTES_A_STEP: i64 = 4 << 20;

/// How long a step waits for a moment in which nobody writes, before it stands in
/// line like anybody else. Where somebody always writes, events must still go
/// faster than they come.
const WAITS_FOR_QUIET: Duration = Duration::from_millis(10);

/// What a step did.
#[derive(Debug, Default)]
struct Step {
    dropped_up_to: Option<Position>,
    pinned_by: Option<GroupName>,
    /// There may be more to delete.
    more: bool,
}

pub(super) async fn enforce_retention(
    connections: &Connections,
    retention: &Retention,
) -> Result<Enforced, StoreError> {
    let recorded = on_reader!(connections, "read how long events are kept", |c| recorded(c))?;
    if recorded.to_stored() != retention.to_stored() {
        on_writer!(connections, "record how long events are kept", |c| record(c, retention))?;
    }
    let mut enforced = Enforced::default();
    // Most rounds find nothing, and have no need of the write lock for that.
    while !retention.is_forever()
        && on_reader!(connections, "see what may go", |c| is_due(c, retention))?
    {
        wait_for_quiet(connections).await;
        let begun = Instant::now();
        let step = on_writer!(connections, "delete old events", |c| step(c, retention))?;
        enforced.dropped_up_to = step.dropped_up_to.or(enforced.dropped_up_to);
        enforced.pinned_by = step.pinned_by;
        if !step.more {
            break;
        }
        tokio::time::sleep(begun.elapsed().max(Duration::from_millis(1))).await;
    }
    Ok(enforced)
}

async fn wait_for_quiet(connections: &Connections) {
    let begun = Instant::now();
    while connections.is_writing() && begun.elapsed() < WAITS_FOR_QUIET {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The group that is furthest behind, of a tenant's or of all, with the position at or below which it
/// needs nothing; none without groups.
async fn behind(
    connection: &mut SqliteConnection,
    tenant: Option<&Tenant>,
) -> Result<Option<(GroupName, Position)>, SqliteError> {
    let row = sqlx::query(
        "SELECT group_name, position FROM log_pins WHERE ?1 IS NULL OR tenant = ?1
         ORDER BY position, group_name LIMIT 1",
    )
    .bind(tenant.map(Tenant::as_str))
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    // Whatever it is called, what it needs is kept.
    let group = GroupName::shown(&text(&row, 0)?);
    Ok(Some((group, Position(row.try_get_unchecked(1)?))))
}

/// By how many bytes the database is larger than it may be.
async fn excess(
    connection: &mut SqliteConnection,
    retention: &Retention,
) -> Result<i64, SqliteError> {
    let Some(most) = retention.max_bytes else { return Ok(0) };
    // Free pages count for nothing: events to come use them.
    let used: i64 = sqlx::query_scalar(
        "SELECT (p.page_count - f.freelist_count) * s.page_size
         FROM pragma_page_count p, pragma_freelist_count f, pragma_page_size s",
    )
    .fetch_one(connection)
    .await?;
    Ok(used.saturating_sub(i64::try_from(most).unwrap_or(i64::MAX)).max(0))
}

/// Events that were published before this are too old, in microseconds.
fn too_old(retention: &Retention) -> Option<i64> {
    let age = i64::try_from(retention.max_age?.as_micros()).unwrap_or(i64::MAX);
    Some(Timestamp::now().as_microsecond().saturating_sub(age))
}

/// Whether the oldest event may go, as far as the retention is concerned.
async fn is_due(
    connection: &mut SqliteConnection,
    retention: &Retention,
) -> Result<bool, SqliteError> {
    let oldest: Option<i64> =
        sqlx::query_scalar("SELECT published_at FROM events ORDER BY position LIMIT 1")
            .fetch_optional(&mut *connection)
            .await?;
    let Some(oldest) = oldest else { return Ok(false) };
    let is_old = too_old(retention).is_some_and(|too_old| oldest <= too_old);
    Ok(is_old || excess(connection, retention).await? > 0)
}

/// Deletes the first few events, up to the first that stays.
async fn step(
    connection: &mut SqliteConnection,
    retention: &Retention,
) -> Result<Step, SqliteError> {
    // A writer's transaction: no cursor moves and no group is made meanwhile.
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let behind = behind(&mut transaction, None).await?;
    let too_old = too_old(retention);
    let mut excess = excess(&mut transaction, retention).await?;
    let rows = sqlx::query(
        "SELECT position, published_at, coalesce(octet_length(data), 0)
         FROM events ORDER BY position LIMIT ?",
    )
    .bind(EVENTS_A_STEP)
    .fetch_all(&mut *transaction)
    .await?;
    let mut step = Step::default();
    let mut bytes = 0_i64;
    for row in &rows {
        let position = Position(row.try_get_unchecked(0)?);
        let published_at: i64 = row.try_get_unchecked(1)?;
        let length: i64 = row.try_get_unchecked(2)?;
        let is_old = too_old.is_some_and(|too_old| published_at <= too_old);
        if !is_old && excess <= 0 {
            break;
        }
        if let Some((group, cursor)) = &behind
            && position > *cursor
        {
            step.pinned_by = Some(group.clone());
            break;
        }
        step.dropped_up_to = Some(position);
        bytes += length;
        // Bytes of the data only; those of attributes and indexes show in the next step.
        excess -= length;
        if bytes >= BYTES_A_STEP {
            break;
        }
    }
    if let Some(last) = step.dropped_up_to {
        // A trigger refuses to delete events above what `letting_go` names.
        sqlx::query("INSERT INTO letting_go (up_to) VALUES (?1)")
            .bind(last.0)
            .execute(&mut *transaction)
            .await?;
        let deleted = sqlx::query("DELETE FROM events WHERE position <= ?1")
            .bind(last.0)
            .execute(&mut *transaction)
            .await?;
        sqlx::query("DELETE FROM letting_go WHERE up_to <= ?1")
            .bind(last.0)
            .execute(&mut *transaction)
            .await?;
        sqlx::query(
            "INSERT INTO gone (only_one, position, events) VALUES (1, ?1, ?2)
             ON CONFLICT (only_one) DO UPDATE
             SET position = max(position, excluded.position), events = events + excluded.events",
        )
        .bind(last.0)
        .bind(i64::try_from(deleted.rows_affected()).unwrap_or(i64::MAX))
        .execute(&mut *transaction)
        .await?;
        step.more = step.pinned_by.is_none();
    }
    transaction.commit().await?;
    Ok(step)
}

/// What keeps events in the log beyond the time that the hosts were told last.
pub(super) async fn pinned_by(
    connection: &mut SqliteConnection,
    counting: Counting,
) -> Result<Option<LogPin>, SqliteError> {
    let retention = recorded(connection).await?;
    pin_of(connection, &retention, None, counting).await
}

/// What a tenant's groups keep in the log beyond a retention, or all groups do.
pub(super) async fn pin_of(
    connection: &mut SqliteConnection,
    retention: &Retention,
    tenant: Option<&Tenant>,
    counting: Counting,
) -> Result<Option<LogPin>, SqliteError> {
    if retention.is_forever() {
        return Ok(None);
    }
    // The query reads one row more.
    let most = counting.most.unwrap_or(i64::MAX - 1);
    let Some((group, position)) = behind(connection, tenant).await? else { return Ok(None) };
    let excess = excess(connection, retention).await?;
    let too_old = too_old(retention).unwrap_or(i64::MIN);
    // From the oldest event on, up to the first that is young enough.
    let row = sqlx::query(
        "WITH few AS MATERIALIZED (
             SELECT position, published_at, octet_length(data) AS bytes FROM events
             WHERE position > ?1 ORDER BY position LIMIT ?3 + 1)
         SELECT count(*), coalesce(sum(bytes), 0) FROM few
         WHERE position < coalesce(
             (SELECT min(position) FROM few WHERE published_at > ?2), 9223372036854775807)",
    )
    .bind(position.0)
    .bind(too_old)
    .bind(most)
    .fetch_one(&mut *connection)
    .await?;
    let (old, bytes): (i64, i64) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
    let is_next: bool = sqlx::query_scalar("SELECT coalesce(min(position), 0) > ? FROM events")
        .bind(position.0)
        .fetch_one(connection)
        .await?;
    if old == 0 && (excess == 0 || !is_next) {
        return Ok(None);
    }
    let bytes = bytes.max(if is_next { excess } else { 0 }).unsigned_abs();
    Ok(Some(LogPin { group, position, bytes, bytes_is_at_least: old > most }))
}

async fn recorded(connection: &mut SqliteConnection) -> Result<Retention, SqliteError> {
    let row = sqlx::query("SELECT max_age_in_microseconds, max_bytes FROM retention")
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(Retention::FOREVER) };
    Ok(Retention::from_stored((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?)))
}

async fn record(
    connection: &mut SqliteConnection,
    retention: &Retention,
) -> Result<(), SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("DELETE FROM retention").execute(&mut *transaction).await?;
    if !retention.is_forever() {
        let (age, bytes) = retention.to_stored();
        sqlx::query("INSERT INTO retention (max_age_in_microseconds, max_bytes) VALUES (?, ?)")
            .bind(age)
            .bind(bytes)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(())
}
