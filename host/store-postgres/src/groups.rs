//! Consumer groups: their rows, their leaders, and what an operator does to
//! them.
//!
//! Whoever moves a cursor without being the leader raises the epoch in the same
//! statement, so that what the leader has open is refused. Every write to a
//! group begins with its row, so that two wait for each other there and never
//! deadlock.

use async_trait::async_trait;
use sqlx::{Executor, PgConnection};

use super::columns::kept;
use super::connection::{DEADLINE, LONG_DEADLINE};
use super::error::PostgresError;
use super::group_columns::read_leader;
use super::group_row::{keep_all_events, known};
use super::on_shared::{on_shared_in_its_own, on_shared_patiently};
use super::piece::{LONG_STATEMENT, begin_long};
use super::{PostgresStore, deadline, deferred, log, repartition, status, unpin};
use event_host_core::event::{GroupName, Position};
use event_host_store::driver::gone::Sought;
use event_host_store::driver::lock_key::LockKey;
use event_host_store::driver::repartition::parts;
use event_host_store::driver::{gone, refusals};
use event_host_store::{
    Counting, Gone, GroupRegistration, GroupState, GroupStatus, Groups, Leader, LogStatus, Removed,
    Start, StoreError,
};

#[async_trait]
impl Groups for PostgresStore {
    async fn status_counted(&self, counting: Counting) -> Result<LogStatus, StoreError> {
        on_shared_in_its_own!(self.connections, "read the status", deadline(counting), |c| {
            status::log_and_groups(c, counting)
        })
    }

    async fn group_status_counted(
        &self,
        group: &GroupName,
        counting: Counting,
    ) -> Result<GroupStatus, StoreError> {
        on_shared_in_its_own!(self.connections, "read a group", deadline(counting), |c| {
            status::group(c, group, counting)
        })
    }

    async fn resume(&self, group: &GroupName) -> Result<(), StoreError> {
        on_shared_patiently!(self.connections, "resume a group", DEADLINE, |c| {
            unpin::resume(c, group, false)
        })
        .map(drop)
    }

    async fn resume_without_what_is_gone(
        &self,
        group: &GroupName,
    ) -> Result<Option<Gone>, StoreError> {
        on_shared_patiently!(self.connections, "resume a group", LONG_DEADLINE, |c| {
            unpin::resume(c, group, true)
        })
    }

    async fn seek_to(
        &self,
        group: &GroupName,
        to: Start,
        exactly: bool,
    ) -> Result<Sought, StoreError> {
        on_shared_patiently!(self.connections, "move a cursor", LONG_DEADLINE, |c| {
            seek(c, group, to, exactly)
        })
    }

    async fn remove_group(
        &self,
        group: &GroupName,
        with_dead_letters: bool,
    ) -> Result<Removed, StoreError> {
        on_shared_patiently!(self.connections, "remove a group", LONG_DEADLINE, |c| {
            remove(c, group, with_dead_letters)
        })
    }
}

pub(super) async fn ensure(
    connection: &mut PgConnection,
    settings: &GroupRegistration,
) -> Result<(), PostgresError> {
    let GroupRegistration { name, tenant, subscription, partitions, .. } = settings;
    let subscribe = subscription.patterns();
    make(connection, settings).await?;
    let known = known(connection, name).await?.ok_or_else(|| refusals::no_group(name))?;
    if known.tenant != *tenant {
        return Err(refusals::other_tenant(settings, &known.tenant).into());
    }
    // Read after the cursor: the log never shrinks.
    let last = log::last_drawn(connection).await?;
    if known.position > last {
        return Err(refusals::cursor_beyond_the_log(name, known.position, last).into());
    }
    if known.partitions != *partitions {
        let mut transaction = keep_all_events(connection).await?;
        transaction.execute(LONG_STATEMENT).await?;
        repartition::repartition(&mut transaction, settings).await?;
        transaction.commit().await?;
    }
    if known.subscribe != subscribe {
        sqlx::query(
            "UPDATE event_host.consumer_groups SET subscribe = $1 WHERE name = $2 OR part_of = $2",
        )
        .bind(subscribe)
        .bind(name.as_str())
        .execute(connection)
        .await?;
    }
    Ok(())
}

/// Makes a group that is not there.
pub(super) async fn make(
    connection: &mut PgConnection,
    settings: &GroupRegistration,
) -> Result<(), PostgresError> {
    let GroupRegistration { name, tenant, subscription, start, partitions } = settings;
    if known(connection, name).await?.is_some() {
        return Ok(());
    }
    let mut transaction = keep_all_events(connection).await?;
    let position = log::place(&mut transaction, *start).await?;
    let gone = log::beginning(&mut transaction).await?.gone_above(*start, position);
    // Another host may be first with the same group; then it is as it is.
    let made = sqlx::query(
        "INSERT INTO event_host.consumer_groups (
             name, tenant, subscribe, lock_key, position, partitions)
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (name) DO NOTHING",
    )
    .bind(name.as_str())
    .bind(tenant.as_str())
    .bind(subscription.patterns())
    .bind(LockKey::of(name).0)
    .bind(position.0)
    .bind(i64::from(*partitions))
    .execute(&mut *transaction)
    .await?;
    if made.rows_affected() > 0 {
        repartition::make_parts(&mut transaction, name, *partitions).await?;
    }
    transaction.commit().await?;
    if made.rows_affected() > 0 {
        gone::say_of_new_group(name, *start, gone.as_ref());
    }
    Ok(())
}

pub(super) async fn set_state(
    connection: &mut PgConnection,
    group: &GroupName,
    state: GroupState,
    reason: Option<&str>,
) -> Result<(), PostgresError> {
    let done = sqlx::query(
        "UPDATE event_host.consumer_groups SET state = $1, reason = $2
         WHERE name IN (SELECT name FROM event_host.consumer_groups
                        WHERE name = $3 OR part_of = $3 ORDER BY name FOR NO KEY UPDATE)",
    )
    .bind(state.as_str())
    .bind(reason.map(kept))
    .bind(group.as_str())
    .execute(connection)
    .await?;
    if done.rows_affected() == 0 { Err(refusals::no_group(group).into()) } else { Ok(()) }
}

pub(super) async fn seek(
    connection: &mut PgConnection,
    group: &GroupName,
    to: Start,
    exactly: bool,
) -> Result<Sought, PostgresError> {
    if known(connection, group).await?.is_none() {
        return Err(refusals::no_group(group).into());
    }
    let mut transaction = keep_all_events(connection).await?;
    transaction.execute(LONG_STATEMENT).await?;
    let position = log::place(&mut transaction, to).await?;
    let gone = log::beginning(&mut transaction).await?.gone_above(to, position);
    if exactly {
        gone::exactly(to, gone.as_ref())?;
    }
    repartition::lock_rows(&mut transaction, group).await?;
    // After the rows, so that what was settled meanwhile is seen.
    deferred::forget(&mut transaction, group, position).await?;
    let position = deferred::past_kept(&mut transaction, group, position).await?;
    // The crashes that a new leader would count belong to the old place.
    let done = sqlx::query(
        "UPDATE event_host.consumer_groups
         SET position = $1, epoch = epoch + 1, fruitless = 0,
             open_ranges = nullif(open_ranges * int8multirange(int8range(1, $1 + 1)), '{}'),
             head_position = NULL, head_attempt = NULL, head_due_at = NULL,
             head_failure_kind = NULL, head_failure_text = NULL,
             mark_position = NULL, mark_attempt = NULL
         WHERE name = $2 OR part_of = $2",
    )
    .bind(position.0)
    .bind(group.as_str())
    .execute(&mut *transaction)
    .await?;
    if done.rows_affected() == 0 {
        return Err(refusals::no_group(group).into());
    }
    // A statement of its own, which sees what was settled while the one before
    // waited for the row.
    repartition::forget_redeliveries(&mut transaction, group, position).await?;
    transaction.commit().await?;
    Ok(Sought { position, gone })
}

/// Has the rows meanwhile, so that nobody begins to lead.
pub(super) async fn remove(
    connection: &mut PgConnection,
    group: &GroupName,
    with_dead_letters: bool,
) -> Result<Removed, PostgresError> {
    let Some(known) = known(connection, group).await? else {
        return Err(refusals::no_group(group).into());
    };
    let mut transaction = begin_long(connection).await?;
    let parts = parts(group, known.partitions);
    repartition::lock_rows(&mut transaction, group).await?;
    let leading = repartition::leading_sessions(&mut transaction, &parts).await?;
    if !leading.is_empty() {
        let leader = leader(&mut transaction, group, &leading).await?;
        return Err(refusals::still_led(group, leader.as_ref()).into());
    }
    let dead: i64 =
        sqlx::query_scalar("SELECT count(*) FROM event_host.dead_letters WHERE group_name = $1")
            .bind(group.as_str())
            .fetch_one(&mut *transaction)
            .await?;
    if dead > 0 && !with_dead_letters {
        return Err(refusals::dead_letters_remain(group, dead).into());
    }
    let deferred = deferred::remove(&mut transaction, group).await?;
    let parked = repartition::forget_redeliveries(&mut transaction, group, Position::ZERO).await?;
    for statement in [
        "DELETE FROM event_host.dead_letters WHERE group_name = $1",
        "DELETE FROM event_host.state WHERE group_name = $1",
    ] {
        sqlx::query(statement).bind(group.as_str()).execute(&mut *transaction).await?;
    }
    let gone = sqlx::query("DELETE FROM event_host.consumer_groups WHERE name = $1")
        .bind(group.as_str())
        .execute(&mut *transaction)
        .await?;
    if gone.rows_affected() == 0 {
        return Err(refusals::no_group(group).into());
    }
    transaction.commit().await?;
    Ok(Removed { parked, deferred })
}

/// Who leads a group, or one of its partitions, with one of these sessions. A row may
/// still name a host that is gone, while another that has the lock begins to lead.
async fn leader(
    connection: &mut PgConnection,
    group: &GroupName,
    sessions: &[i32],
) -> Result<Option<Leader>, PostgresError> {
    let row = sqlx::query(
        "SELECT h.id, h.hostname, h.pid, g.leader_since
         FROM event_host.consumer_groups g
         LEFT JOIN event_host.hosts h ON h.id = g.leader AND h.backend_pid = ANY ($2)
         WHERE g.name = $1 OR g.part_of = $1
         ORDER BY h.id IS NULL, g.name LIMIT 1",
    )
    .bind(group.as_str())
    .bind(sessions)
    .fetch_optional(connection)
    .await?
    .ok_or_else(|| refusals::no_group(group))?;
    read_leader(&row, 0)
}
