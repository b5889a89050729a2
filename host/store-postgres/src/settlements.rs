//! Settlements, and what else a leader records of its group.

use std::borrow::Cow;
use std::collections::BTreeMap;

use async_trait::async_trait;
use sqlx::{Connection, PgConnection, Row};

use super::columns::{Events, Time, kept, unnest_events};
use super::connection::{DEADLINE, LONG_DEADLINE};
use super::error::PostgresError;
use super::group_columns::bind_head;
use super::group_columns::{
    head_columns, mark_columns, open_columns, read_head, read_mark, read_open,
};
use super::on_shared::{on_shared, on_shared_patiently};
use super::piece::begin_long;
use super::{PostgresStore, deferred, groups, log, redeliveries};
use event_host_core::event::{Epoch, GroupName, Position, Tenant};
use event_host_store::driver::{refusals, stored};
use event_host_store::{
    Cursor, Due, DueFetch, GroupState, NewDeadLetter, Redelivery, Settled, Settlement, Settlements,
    StateWrite, StoreError, UndecidedChange,
};

#[async_trait]
impl Settlements for PostgresStore {
    async fn settle(&self, settlement: &Settlement) -> Result<Settled, StoreError> {
        on_shared!(self.connections, "settle", |c| settle(c, settlement))
    }

    async fn cursor(&self, group: &GroupName) -> Result<Cursor, StoreError> {
        on_shared!(self.connections, "read a cursor", |c| cursor(c, group))
    }

    async fn redeliveries(&self, group: &GroupName) -> Result<Vec<Redelivery>, StoreError> {
        on_shared!(self.connections, "list redeliveries", |c| redeliveries::list(c, group))
    }

    async fn due(&self, due: DueFetch<'_>) -> Result<Due, StoreError> {
        on_shared!(self.connections, "read what is due", |c| deferred::due(c, &due))
    }

    async fn deferred(&self, group: &GroupName) -> Result<i64, StoreError> {
        on_shared!(self.connections, "count what is deferred", LONG_DEADLINE, |c| {
            deferred::count(c, group)
        })
    }

    async fn record_trip(
        &self,
        group: &GroupName,
        epoch: Epoch,
        reason: Option<&str>,
    ) -> Result<Settled, StoreError> {
        on_shared!(self.connections, "record that a group tripped", |c| {
            record_trip(c, group, epoch, reason)
        })
    }

    async fn pause(&self, group: &GroupName, reason: &str) -> Result<(), StoreError> {
        on_shared_patiently!(self.connections, "pause a group", DEADLINE, |c| {
            groups::set_state(c, group, GroupState::Paused, Some(reason))
        })
    }

    async fn set_note(&self, groups: &[GroupName], note: Option<&str>) -> Result<(), StoreError> {
        on_shared_patiently!(self.connections, "say something of groups", DEADLINE, |c| {
            set_note(c, groups, note)
        })
    }

    async fn tenant_dead_letters(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        on_shared!(self.connections, "count dead letters", LONG_DEADLINE, |c| {
            tenant_dead_letters(c, tenant)
        })
    }

    async fn tenant_dead_letter_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        on_shared!(self.connections, "measure dead letters", LONG_DEADLINE, |c| {
            tenant_dead_letter_bytes(c, tenant)
        })
    }
}

/// The cursor's row, under the epoch and after the settlement before this one.
/// Written first in every settlement: from then on nobody else can move the
/// cursor or raise the epoch until it ends.
///
/// Never above the last position that was drawn, because what is drawn next would be
/// passed; and never in an incarnation of the server that no host has begun, because
/// the epochs are those of the one before.
const MOVE_CURSOR: &str = "UPDATE event_host.consumer_groups
     SET head_position = $1, head_attempt = $2, head_due_at = $3,
         head_failure_kind = $4, head_failure_text = $5,
         mark_position = $6, mark_attempt = $7,
         position = $8, settled = $9, settled_at = clock_timestamp(), fruitless = 0,
         failures = coalesce($12::jsonb, failures),
         handled_events = least(handled_events, 9223372036854775807 - $13) + $13,
         dead_events = least(dead_events, 9223372036854775807 - $14) + $14
     WHERE name = $10 AND epoch = $11 AND settled = $9 - 1
       AND EXISTS (SELECT FROM event_host.incarnation)
       AND $8 <= coalesce(pg_sequence_last_value('event_host.events_position_seq'::regclass),
                          event_host.last_drawn())
     RETURNING tenant";

pub(super) async fn settle(
    connection: &mut PgConnection,
    settlement: &Settlement,
) -> Result<Settled, PostgresError> {
    let Settlement { group, dead_letters, emits, state, undecided, .. } = settlement;
    let changes = settlement.redelivery_changes()?;
    let nothing_else = dead_letters.is_empty()
        && emits.is_empty()
        && state.is_empty()
        && settlement.redeliveries.is_empty()
        && settlement.redelivered.is_empty()
        && settlement.deferred.is_empty()
        && undecided.is_none();
    if nothing_else {
        // The common case: a single statement, which commits by itself, in one
        // round trip.
        return Ok(match move_cursor(connection, settlement).await? {
            Some(_) => Settled::Committed,
            None => why_not(connection, settlement).await?,
        });
    }
    let mut transaction = connection.begin().await?;
    let Some(tenant) = move_cursor(&mut transaction, settlement).await? else {
        transaction.rollback().await?;
        return why_not(connection, settlement).await;
    };
    if let Some(undecided) = undecided {
        write_open(&mut transaction, group, undecided).await?;
    }
    redeliveries::write(&mut transaction, group, &changes).await?;
    let stored = async {
        insert_dead_letters(&mut transaction, group, &tenant, dead_letters).await?;
        log::append(&mut transaction, &tenant, emits).await?;
        write_state(&mut transaction, group, state).await
    };
    stored.await.map_err(PostgresError::of_what_is_stored)?;
    transaction.commit().await?;
    Ok(Settled::Committed)
}

/// Gives the group's tenant, or nothing where the settlement must not be.
async fn move_cursor(
    connection: &mut PgConnection,
    settlement: &Settlement,
) -> Result<Option<Tenant>, PostgresError> {
    let row = bind_head(sqlx::query(MOVE_CURSOR), settlement.head.as_ref())
        .bind(settlement.mark.map(|mark| mark.position.0))
        .bind(settlement.mark.map(|mark| i64::from(mark.attempt.0)))
        .bind(settlement.position.0)
        .bind(settlement.number)
        .bind(settlement.group.as_str())
        .bind(settlement.epoch.0)
        .bind(settlement.failures.as_ref().map(stored::failures_json))
        .bind(i64::try_from(settlement.handled).unwrap_or(i64::MAX))
        .bind(i64::try_from(settlement.dead_letters.len()).unwrap_or(i64::MAX))
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(stored::tenant(row.try_get_unchecked(0)?)?))
}

/// Why a settlement was refused: somebody else leads, or the log is not the one that
/// was read.
async fn why_not(
    connection: &mut PgConnection,
    settlement: &Settlement,
) -> Result<Settled, PostgresError> {
    let row = sqlx::query(
        "SELECT event_host.last_drawn() FROM event_host.consumer_groups
         WHERE name = $1 AND epoch = $2 AND settled = $3 - 1
           AND EXISTS (SELECT FROM event_host.incarnation)",
    )
    .bind(settlement.group.as_str())
    .bind(settlement.epoch.0)
    .bind(settlement.number)
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(Settled::NotLeader) };
    let last = Position(row.try_get_unchecked(0)?);
    if settlement.position <= last {
        return Ok(Settled::NotLeader);
    }
    Err(refusals::settled_beyond_the_log(&settlement.group, settlement.position, last).into())
}

/// What is open from now on. A statement of its own: hardly any settlement has one.
async fn write_open(
    connection: &mut PgConnection,
    group: &GroupName,
    UndecidedChange { undecided, late }: &UndecidedChange,
) -> Result<(), PostgresError> {
    let ranges = undecided.as_slice();
    sqlx::query(
        "UPDATE event_host.consumer_groups
         SET late_events = CASE WHEN late_events > 9223372036854775807 - $4
                                THEN 9223372036854775807 ELSE late_events + $4 END,
             open_ranges = (SELECT range_agg(int8range(r.first, r.last, '[]'))
                            FROM unnest($2::bigint[], $3::bigint[]) AS r (first, last))
         WHERE name = $1",
    )
    .bind(group.as_str())
    .bind(ranges.iter().map(|range| range.first.0).collect::<Vec<_>>())
    .bind(ranges.iter().map(|range| range.last.0).collect::<Vec<_>>())
    .bind(i64::try_from(*late).unwrap_or(i64::MAX))
    .execute(connection)
    .await?;
    Ok(())
}

async fn insert_dead_letters(
    connection: &mut PgConnection,
    group: &GroupName,
    tenant: &Tenant,
    dead: &[NewDeadLetter],
) -> Result<(), PostgresError> {
    if dead.is_empty() {
        return Ok(());
    }
    let statement = sqlx::query(concat!(
        "INSERT INTO event_host.dead_letters (
             group_name, tenant, position, deliver_to, attempts,
             failure_kind, failure_text, digest, dead_at,
             type, time, event_id, source, subject,
             datacontenttype, dataschema, partitionkey, deliver_after, extensions, data)
         SELECT $12, $13, d.position, d.deliver_to, d.attempts,
                d.failure_kind, d.failure_text, d.digest, d.dead_at,
                e.type, e.time, e.id, e.source, e.subject,
                e.datacontenttype, e.dataschema, e.partitionkey, e.deliver_after,
                e.extensions::jsonb, e.data
         FROM ",
        unnest_events!(),
        " JOIN unnest($14::bigint[], $15::text[], $16::bigint[], $17::text[], $18::text[],
                      $19::text[], $20::timestamptz[])
               WITH ORDINALITY AS d (position, deliver_to, attempts, failure_kind, failure_text,
                                     digest, dead_at, ordinality)
               USING (ordinality)
         ORDER BY ordinality"
    ));
    let column = |value: fn(&NewDeadLetter) -> &str| -> Vec<Cow<'_, str>> {
        dead.iter().map(|dead| kept(value(dead))).collect()
    };
    Events::new(dead.iter().map(|dead| &dead.event.event))
        .bind(statement)
        .bind(group.whole())
        .bind(tenant.as_str())
        .bind(dead.iter().map(|dead| dead.event.position.0).collect::<Vec<_>>())
        .bind(
            dead.iter()
                .map(|dead| dead.event.deliver_to.as_ref().map(GroupName::as_str))
                .collect::<Vec<_>>(),
        )
        .bind(dead.iter().map(|dead| i64::from(dead.attempts)).collect::<Vec<_>>())
        .bind(column(|dead| &dead.failure.kind))
        .bind(column(|dead| &dead.failure.text))
        .bind(column(|dead| &dead.digest))
        .bind(dead.iter().map(|dead| Time(dead.dead_at)).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

async fn write_state(
    connection: &mut PgConnection,
    group: &GroupName,
    writes: &[StateWrite],
) -> Result<(), PostgresError> {
    // A statement must not touch a row twice, so the last write of a key is
    // picked here.
    let last_of_each_key: BTreeMap<_, _> = writes
        .iter()
        .map(|write| ((kept(&write.scope), kept(&write.key)), write.value.as_deref()))
        .collect();
    let mut set = (Vec::<&str>::new(), Vec::<&str>::new(), Vec::<&[u8]>::new());
    let mut delete = (Vec::<&str>::new(), Vec::<&str>::new());
    for ((scope, key), value) in &last_of_each_key {
        match value {
            Some(value) => {
                set.0.push(scope);
                set.1.push(key);
                set.2.push(value);
            }
            None => {
                delete.0.push(scope);
                delete.1.push(key);
            }
        }
    }
    if !set.0.is_empty() {
        sqlx::query(
            "INSERT INTO event_host.state (group_name, scope, key, value)
             SELECT $1, scope, key, value
             FROM unnest($2::text[], $3::text[], $4::bytea[]) AS s (scope, key, value)
             ON CONFLICT (group_name, scope, key) DO UPDATE SET value = excluded.value",
        )
        .bind(group.whole())
        .bind(set.0)
        .bind(set.1)
        .bind(set.2)
        .execute(&mut *connection)
        .await?;
    }
    if !delete.0.is_empty() {
        sqlx::query(
            "DELETE FROM event_host.state s
             USING unnest($2::text[], $3::text[]) AS d (scope, key)
             WHERE s.group_name = $1 AND s.scope = d.scope AND s.key = d.key",
        )
        .bind(group.whole())
        .bind(delete.0)
        .bind(delete.1)
        .execute(connection)
        .await?;
    }
    Ok(())
}

pub(super) async fn set_note(
    connection: &mut PgConnection,
    groups: &[GroupName],
    note: Option<&str>,
) -> Result<(), PostgresError> {
    sqlx::query(
        "UPDATE event_host.consumer_groups SET remark = $2
         WHERE (name = ANY ($1) OR ($2 IS NULL AND part_of = ANY ($1)))
           AND remark IS DISTINCT FROM $2",
    )
    .bind(groups.iter().map(GroupName::as_str).collect::<Vec<_>>())
    .bind(note.map(kept))
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn record_trip(
    connection: &mut PgConnection,
    group: &GroupName,
    epoch: Epoch,
    reason: Option<&str>,
) -> Result<Settled, PostgresError> {
    let (from, to) = match reason {
        Some(_) => (GroupState::Running, GroupState::Tripped),
        None => (GroupState::Tripped, GroupState::Running),
    };
    let done = sqlx::query(
        "UPDATE event_host.consumer_groups
         SET state = CASE state WHEN $3 THEN $4 ELSE state END,
             reason = CASE state WHEN $3 THEN $5 ELSE reason END
         WHERE name = $1 AND epoch = $2",
    )
    .bind(group.as_str())
    .bind(epoch.0)
    .bind(from.as_str())
    .bind(to.as_str())
    .bind(reason.map(kept))
    .execute(connection)
    .await?;
    Ok(if done.rows_affected() == 0 { Settled::NotLeader } else { Settled::Committed })
}

/// `FOR UPDATE`, so that a settlement that is still under way on a connection
/// that its host has given up is over by then, one way or the other.
pub(super) async fn cursor(
    connection: &mut PgConnection,
    group: &GroupName,
) -> Result<Cursor, PostgresError> {
    let row = sqlx::query(concat!(
        "SELECT epoch, position, settled, ",
        head_columns!(),
        ", ",
        open_columns!(),
        ", ",
        mark_columns!(),
        " FROM event_host.consumer_groups WHERE name = $1 FOR UPDATE"
    ))
    .bind(group.as_str())
    .fetch_optional(connection)
    .await?
    .ok_or_else(|| refusals::no_group(group))?;
    Ok(Cursor {
        epoch: Epoch(row.try_get_unchecked(0)?),
        position: Position(row.try_get_unchecked(1)?),
        settled: row.try_get_unchecked(2)?,
        head: read_head(&row, 3)?,
        undecided: read_open(&row, 8)?,
        mark: read_mark(&row, 10)?,
    })
}

async fn tenant_dead_letters(
    connection: &mut PgConnection,
    tenant: &Tenant,
) -> Result<i64, PostgresError> {
    let mut transaction = begin_long(connection).await?;
    let letters = sqlx::query_scalar(
        "SELECT count(*) FROM event_host.consumer_groups g
         JOIN event_host.dead_letters d ON d.group_name = g.name
         WHERE g.tenant = $1",
    )
    .bind(tenant.as_str())
    .fetch_one(&mut *transaction)
    .await?;
    transaction.rollback().await?;
    Ok(letters)
}

async fn tenant_dead_letter_bytes(
    connection: &mut PgConnection,
    tenant: &Tenant,
) -> Result<i64, PostgresError> {
    let mut transaction = begin_long(connection).await?;
    // The length of large data stands in its row: none is read.
    let bytes = sqlx::query_scalar(
        "SELECT coalesce(sum(
                    coalesce(octet_length(d.data), 0) + octet_length(d.failure_text)
                    + octet_length(d.type) + octet_length(d.event_id) + octet_length(d.source)
                    + coalesce(octet_length(d.subject), 0)
                    + coalesce(octet_length(d.datacontenttype), 0)
                    + coalesce(octet_length(d.dataschema), 0)
                    + coalesce(octet_length(d.partitionkey), 0)
                    + coalesce(octet_length(d.extensions::text), 0)
                    + coalesce(octet_length(d.deliver_to), 0)), 0)::bigint
         FROM event_host.consumer_groups g
         JOIN event_host.dead_letters d ON d.group_name = g.name
         WHERE g.tenant = $1",
    )
    .bind(tenant.as_str())
    .fetch_one(&mut *transaction)
    .await?;
    transaction.rollback().await?;
    Ok(bytes)
}
