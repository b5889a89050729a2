//! Settlements, and what else a leader records of its group.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use sqlx::{Connection, Row, SqliteConnection};

use super::columns::{bind_event, text};
use super::connection::{LONG_DEADLINE, on_reader, on_writer};
use super::error::SqliteError;
use super::group_columns::bind_head;
use super::group_columns::{head_columns, mark_columns, read_head, read_mark};
use super::{SqliteStore, deferred, groups, log, redeliveries};
use event_host_core::event::{Epoch, GroupName, Position, Tenant};
use event_host_store::driver::{refusals, stored};
use event_host_store::{
    Cursor, Due, DueFetch, GroupState, NewDeadLetter, Redelivery, Settled, Settlement, Settlements,
    StateWrite, StoreError, UndecidedRanges,
};

#[async_trait]
impl Settlements for SqliteStore {
    async fn settle(&self, settlement: &Settlement) -> Result<Settled, StoreError> {
        on_writer!(self.connections, "settle", |c| settle(c, settlement))
    }

    /// Read on the connection that writes: a settlement whose outcome is unknown
    /// is over by then, one way or the other.
    async fn cursor(&self, group: &GroupName) -> Result<Cursor, StoreError> {
        on_writer!(self.connections, "read a cursor", |c| cursor(c, group))
    }

    async fn redeliveries(&self, group: &GroupName) -> Result<Vec<Redelivery>, StoreError> {
        on_reader!(self.connections, "list redeliveries", |c| redeliveries::list(c, group))
    }

    async fn due(&self, due: DueFetch<'_>) -> Result<Due, StoreError> {
        on_reader!(self.connections, "read what is due", |c| deferred::due(c, &due))
    }

    async fn deferred(&self, group: &GroupName) -> Result<i64, StoreError> {
        on_reader!(self.connections, "count what is deferred", LONG_DEADLINE, |c| {
            deferred::count(c, group)
        })
    }

    async fn record_trip(
        &self,
        group: &GroupName,
        epoch: Epoch,
        reason: Option<&str>,
    ) -> Result<Settled, StoreError> {
        on_writer!(self.connections, "record that a group tripped", |c| {
            record_trip(c, group, epoch, reason)
        })
    }

    async fn pause(&self, group: &GroupName, reason: &str) -> Result<(), StoreError> {
        on_writer!(self.connections, "pause a group", |c| {
            groups::set_state(c, group, GroupState::Paused, Some(reason))
        })
    }

    async fn set_note(&self, groups: &[GroupName], note: Option<&str>) -> Result<(), StoreError> {
        on_writer!(self.connections, "say something of groups", |c| { set_note(c, groups, note) })
    }

    async fn tenant_dead_letters(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        on_reader!(self.connections, "count dead letters", LONG_DEADLINE, |c| {
            tenant_dead_letters(c, tenant)
        })
    }

    async fn tenant_dead_letter_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        on_reader!(self.connections, "measure dead letters", LONG_DEADLINE, |c| {
            tenant_dead_letter_bytes(c, tenant)
        })
    }
}

/// The cursor's row, under the epoch, and only as the settlement after the last.
/// Written first in every settlement: from then on nobody else can move the
/// cursor, settle, or raise the epoch until it ends.
const MOVE_CURSOR: &str = "UPDATE consumer_groups
     SET head_position = ?, head_attempt = ?, head_due_at = ?,
         head_failure_kind = ?, head_failure_text = ?, mark_position = ?, mark_attempt = ?,
         position = ?, settled_at = ?, settled = settled + 1, fruitless = 0,
         failures = coalesce(?, failures),
         handled_events = min(handled_events, 9223372036854775807 - ?) + ?,
         dead_events = min(dead_events, 9223372036854775807 - ?) + ?
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
    let handled = i64::try_from(settlement.handled).unwrap_or(i64::MAX);
    let dead = i64::try_from(settlement.dead_letters.len()).unwrap_or(i64::MAX);
    let done = bind_head(sqlx::query(MOVE_CURSOR), settlement.head.as_ref())
        .bind(settlement.mark.map(|mark| mark.position.0))
        .bind(settlement.mark.map(|mark| i64::from(mark.attempt.0)))
        .bind(settlement.position.0)
        .bind(Timestamp::now().as_microsecond())
        .bind(settlement.failures.as_ref().map(stored::failures_json))
        .bind(handled)
        .bind(handled)
        .bind(dead)
        .bind(dead)
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

async fn tenant_dead_letters(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
) -> Result<i64, SqliteError> {
    Ok(sqlx::query_scalar(
        "SELECT count(*) FROM consumer_groups
         JOIN dead_letters ON dead_letters.group_name = consumer_groups.name
         WHERE consumer_groups.tenant = ?",
    )
    .bind(tenant.as_str())
    .fetch_one(connection)
    .await?)
}

async fn tenant_dead_letter_bytes(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
) -> Result<i64, SqliteError> {
    // The length of data stands in its row: none is read.
    Ok(sqlx::query_scalar(
        "SELECT coalesce(sum(
                    coalesce(octet_length(d.data), 0) + octet_length(d.failure_text)
                    + octet_length(d.type) + octet_length(d.event_id) + octet_length(d.source)
                    + coalesce(octet_length(d.subject), 0)
                    + coalesce(octet_length(d.datacontenttype), 0)
                    + coalesce(octet_length(d.dataschema), 0)
                    + coalesce(octet_length(d.partitionkey), 0)
                    + coalesce(octet_length(d.extensions), 0)
                    + coalesce(octet_length(d.deliver_to), 0)), 0)
         FROM consumer_groups
         JOIN dead_letters d ON d.group_name = consumer_groups.name
         WHERE consumer_groups.tenant = ?",
    )
    .bind(tenant.as_str())
    .fetch_one(connection)
    .await?)
}
