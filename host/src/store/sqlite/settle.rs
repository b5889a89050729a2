//! Settlements, and the state that they write.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sqlx::{Connection, SqliteConnection};

use super::columns::{bind_event, text};
use super::error::SqliteError;
use super::groups::bind_head;
use super::{log, redeliveries};
use crate::event::{GroupName, Tenant};
use crate::store::prefix::after_prefix;
use crate::store::{NewDeadLetter, Settled, Settlement, StateWrite, stored};

/// The cursor's row, under the epoch, and only as the settlement after the last.
/// Written first in every settlement: from then on nobody else can move the
/// cursor, settle, or raise the epoch until it ends.
const MOVE_CURSOR: &str = "UPDATE consumer_groups
     SET head_position = ?, head_attempt = ?, head_due_at = ?,
         head_failure_kind = ?, head_failure_text = ?, mark_position = ?, mark_attempt = ?,
         position = ?, settled_at = ?, settled = settled + 1, fruitless = 0,
         failures = coalesce(?, failures)
     WHERE name = ? AND epoch = ? AND settled + 1 = ?";

pub(super) async fn settle(
    connection: &mut SqliteConnection,
    settlement: &Settlement,
) -> Result<Settled, SqliteError> {
    let Settlement { dead_letters, emits, state, .. } = settlement;
    let changes = settlement.redelivery_changes()?;
    let nothing_else = dead_letters.is_empty()
        && emits.is_empty()
        && state.is_empty()
        && settlement.redeliveries.is_empty()
        && settlement.redelivered.is_empty()
        && settlement.deferred.is_empty();
    if nothing_else {
        // The common case, in one round trip: a single statement takes the write
        // lock before it reads, like an immediate transaction, and commits by
        // itself.
        return move_cursor(connection, settlement).await;
    }
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    if move_cursor(&mut transaction, settlement).await? == Settled::NotLeader {
        return Ok(Settled::NotLeader);
    }
    let tenant = tenant_of(&mut transaction, &settlement.group).await?;
    redeliveries::write(&mut transaction, &settlement.group, &changes).await?;
    let stored = async {
        for dead_letter in dead_letters {
            insert_dead_letters(&mut transaction, &settlement.group, &tenant, dead_letter).await?;
        }
        log::append(&mut transaction, &tenant, emits).await?;
        write_state(&mut transaction, &settlement.group, state).await
    };
    stored.await.map_err(SqliteError::of_what_is_stored)?;
    transaction.commit().await?;
    Ok(Settled::Committed)
}

async fn move_cursor(
    connection: &mut SqliteConnection,
    settlement: &Settlement,
) -> Result<Settled, SqliteError> {
    let done = bind_head(sqlx::query(MOVE_CURSOR), settlement.head.as_ref())
        .bind(settlement.mark.map(|mark| mark.position.0))
        .bind(settlement.mark.map(|mark| i64::from(mark.attempt.0)))
        .bind(settlement.position.0)
        .bind(Timestamp::now().as_microsecond())
        .bind(settlement.failures.as_ref().map(stored::failures_json))
        .bind(settlement.group.as_str())
        .bind(settlement.epoch.0)
        .bind(settlement.number)
        .execute(connection)
        .await?;
    Ok(if done.rows_affected() == 0 { Settled::NotLeader } else { Settled::Committed })
}

async fn tenant_of(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<Tenant, SqliteError> {
    let row = sqlx::query("SELECT tenant FROM consumer_groups WHERE name = ?")
        .bind(group.as_str())
        .fetch_one(connection)
        .await?;
    Ok(stored::tenant(&text(&row, 0)?)?)
}

async fn insert_dead_letters(
    connection: &mut SqliteConnection,
    group: &GroupName,
    tenant: &Tenant,
    dead: &NewDeadLetter,
) -> Result<(), SqliteError> {
    let statement = sqlx::query(
        "INSERT INTO dead_letters (
             group_name, tenant, position, deliver_to, attempts,
             failure_kind, failure_text, digest, dead_at,
             type, time, event_id, source, subject,
             datacontenttype, dataschema, partitionkey, deliver_after, extensions, data)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(group.whole())
    .bind(tenant.as_str())
    .bind(dead.event.position.0)
    .bind(dead.event.deliver_to.as_ref().map(GroupName::as_str))
    .bind(i64::from(dead.attempts))
    .bind(&dead.failure.kind)
    .bind(&dead.failure.text)
    .bind(&dead.digest)
    .bind(dead.dead_at.as_microsecond());
    bind_event(statement, &dead.event.event).execute(connection).await?;
    Ok(())
}

async fn write_state(
    connection: &mut SqliteConnection,
    group: &GroupName,
    writes: &[StateWrite],
) -> Result<(), SqliteError> {
    let last_of_each_key: BTreeMap<(&str, &str), Option<&[u8]>> = writes
        .iter()
        .map(|write| ((write.scope.as_str(), write.key.as_str()), write.value.as_deref()))
        .collect();
    for ((scope, key), value) in last_of_each_key {
        let statement = match value {
            Some(_) => {
                "INSERT INTO state (group_name, scope, key, value) VALUES (?, ?, ?, ?)
                 ON CONFLICT (group_name, scope, key) DO UPDATE SET value = excluded.value"
            }
            None => "DELETE FROM state WHERE group_name = ? AND scope = ? AND key = ?",
        };
        let mut statement = sqlx::query(statement).bind(group.whole()).bind(scope).bind(key);
        if let Some(value) = value {
            statement = statement.bind(value);
        }
        statement.execute(&mut *connection).await?;
    }
    Ok(())
}

pub(super) async fn state_get(
    connection: &mut SqliteConnection,
    group: &GroupName,
    scope: &str,
    key: &str,
) -> Result<Option<Vec<u8>>, SqliteError> {
    Ok(sqlx::query_scalar("SELECT value FROM state WHERE group_name = ? AND scope = ? AND key = ?")
        .bind(group.whole())
        .bind(scope)
        .bind(key)
        .fetch_optional(connection)
        .await?)
}

pub(super) async fn state_keys(
    connection: &mut SqliteConnection,
    group: &GroupName,
    scope: &str,
    prefix: &str,
    limit: usize,
) -> Result<Vec<String>, SqliteError> {
    let end = after_prefix(prefix);
    // The index on (group_name, scope, key) serves both the range and the order.
    let statement = match &end {
        Some(end) => sqlx::query_scalar(
            "SELECT key FROM state
             WHERE group_name = ? AND scope = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?",
        )
        .bind(group.whole())
        .bind(scope)
        .bind(prefix)
        .bind(end),
        None => sqlx::query_scalar(
            "SELECT key FROM state
             WHERE group_name = ? AND scope = ? AND key >= ? ORDER BY key LIMIT ?",
        )
        .bind(group.whole())
        .bind(scope)
        .bind(prefix),
    };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    Ok(statement.bind(limit).fetch_all(connection).await?)
}

pub(super) async fn state_key_count(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<i64, SqliteError> {
    // The index alone is read.
    Ok(sqlx::query_scalar("SELECT count(*) FROM state WHERE group_name = ?")
        .bind(group.whole())
        .fetch_one(connection)
        .await?)
}
