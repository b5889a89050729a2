//! Consumer groups: their rows, their leaders, and what an operator does to
//! them.
//!
//! Whoever moves a cursor without being the leader raises the epoch in the same
//! statement, so that what the leader has open is refused. Every write to a
//! group begins with its row, so that two wait for each other there and never
//! deadlock.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use sqlx::{Executor, PgConnection, Row};

use super::columns::kept;
use super::connection::{DEADLINE, LONG_DEADLINE};
use super::error::PostgresError;
use super::group_columns::read_leader;
use super::group_row::{Known, keep_all_events, known};
use super::on_shared::{on_shared_in_its_own, on_shared_patiently};
use super::piece::{LONG_STATEMENT, begin_long};
use super::{PostgresStore, deadline, deferred, log, repartition, status, unpin};
use event_host_core::event::{GroupName, Position};
use event_host_store::driver::gone::Sought;
use event_host_store::driver::repartition::parts;
use event_host_store::driver::{gone, refusals, stored};
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

/// The same for many groups: in a few statements, but for those that are there and are to
/// be changed.
pub(super) async fn ensure_all(
    connection: &mut PgConnection,
    settings: &[GroupRegistration],
) -> Result<(), PostgresError> {
    let mut groups: Vec<&GroupRegistration> = settings.iter().collect();
    while !groups.is_empty() {
        let (new, changed) = compare(connection, &groups).await?;
        for group in changed {
            ensure(connection, group).await?;
        }
        // Those that another host made meanwhile are compared in their turn.
        groups = make_all(connection, new).await?;
    }
    Ok(())
}

/// Which of these groups are not there, and which are otherwise than they are wanted.
async fn compare<'g>(
    connection: &mut PgConnection,
    groups: &[&'g GroupRegistration],
) -> Result<(Vec<&'g GroupRegistration>, Vec<&'g GroupRegistration>), PostgresError> {
    let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    let rows = sqlx::query(
        "SELECT n.name, g.tenant, g.subscribe, g.partitions::bigint,
                greatest(g.position, (SELECT max(p.position) FROM event_host.consumer_groups p
                                      WHERE p.part_of = g.name))
         FROM unnest($1::text[]) n (name)
         JOIN event_host.consumer_groups g ON g.name = n.name",
    )
    .bind(&names)
    .fetch_all(&mut *connection)
    .await?;
    let mut there = HashMap::with_capacity(rows.len());
    for row in &rows {
        let name: String = row.try_get_unchecked(0)?;
        there.insert(name, Known::read(row, 1)?);
    }
    // Read after the cursors: the log never shrinks.
    let last = log::last_drawn(connection).await?;
    let (mut new, mut changed) = (Vec::new(), Vec::new());
    for group in groups {
        match there.get(group.name.as_str()) {
            None => new.push(*group),
            Some(known) if known.is_as(group, last) => {}
            Some(_) => changed.push(*group),
        }
    }
    Ok((new, changed))
}

/// Makes a group that is not there.
pub(super) async fn make(
    connection: &mut PgConnection,
    settings: &GroupRegistration,
) -> Result<(), PostgresError> {
    if known(connection, &settings.name).await?.is_none() {
        make_all(connection, vec![settings]).await?;
    }
    Ok(())
}

/// Makes groups that are not there, and gives those that another host made meanwhile: they
/// are as they are. Groups that begin at the same place do so in one transaction.
async fn make_all<'g>(
    connection: &mut PgConnection,
    mut groups: Vec<&'g GroupRegistration>,
) -> Result<Vec<&'g GroupRegistration>, PostgresError> {
    let mut made_elsewhere = Vec::new();
    while let Some(start) = groups.first().map(|group| group.start) {
        let (mut now, later): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.start == start);
        groups = later;
        // In the order of their names, as whoever makes several does: two that make the same
        // ones wait for each other once.
        now.sort_by(|one, other| one.name.cmp(&other.name));
        let mut transaction = keep_all_events(connection).await?;
        let position = log::place(&mut transaction, start).await?;
        let gone = log::beginning(&mut transaction).await?.gone_above(start, position);
        let made: Vec<String> = sqlx::query_scalar(
            "INSERT INTO event_host.consumer_groups (name, tenant, subscribe, position, partitions)
             SELECT s.name, s.tenant,
                    ARRAY(SELECT p.pattern
                          FROM jsonb_array_elements_text(s.subscribe::jsonb)
                               WITH ORDINALITY AS p (pattern, place) ORDER BY p.place),
                    $1, s.partitions
             FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[])
                  WITH ORDINALITY AS s (name, tenant, subscribe, partitions, place)
             ORDER BY s.place
             ON CONFLICT (name) DO NOTHING
             RETURNING name",
        )
        .bind(position.0)
        .bind(now.iter().map(|group| group.name.as_str()).collect::<Vec<_>>())
        .bind(now.iter().map(|group| group.tenant.as_str()).collect::<Vec<_>>())
        .bind(
            now.iter().map(|group| stored::patterns_json(&group.subscription)).collect::<Vec<_>>(),
        )
        .bind(now.iter().map(|group| i64::from(group.partitions)).collect::<Vec<_>>())
        .fetch_all(&mut *transaction)
        .await?;
        let made: HashSet<String> = made.into_iter().collect();
        let (made, elsewhere): (Vec<_>, Vec<_>) =
            now.into_iter().partition(|group| made.contains(group.name.as_str()));
        let split = made.iter().filter(|group| group.partitions > 1);
        let split: Vec<&str> = split.map(|group| group.name.as_str()).collect();
        repartition::make_parts(&mut transaction, &split).await?;
        transaction.commit().await?;
        for group in made {
            gone::say_of_new_group(&group.name, start, gone.as_ref());
        }
        made_elsewhere.extend(elsewhere);
    }
    Ok(made_elsewhere)
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
