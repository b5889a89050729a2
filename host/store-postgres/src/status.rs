//! What `status` tells, read in one snapshot, and bounded in what it reads.

use std::collections::HashMap;

use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{Executor, PgConnection, Row};

use super::blockers::HELD_UP_AFTER;
use super::blockers::{holders, read_holder};
use super::columns::{count, optional_time, time};
use super::error::PostgresError;
use super::group_columns::{
    head_columns, mark_columns, open_columns, read_head, read_leader, read_mark, read_open,
};
use super::hosts::hosts;
use super::lag::Reads;
use super::piece::{LONG_STATEMENT, begin, snapshot};
use super::safe_position::SafePosition;
use super::{lag, retention, sample};
use event_host_core::event::{Epoch, GroupName, Partition, Position};
use event_host_store::driver::backlog::{Backlog, Counted};
use event_host_store::driver::repartition::whole;
use event_host_store::driver::unreadable::Sifted;
use event_host_store::driver::{refusals, stored};
use event_host_store::{Counting, GroupStatus, LogStatus, StoreError, Subscription};

/// A leader is shown while its own session holds its lock: a process that was killed
/// leaves its name behind, and the server lets go of the lock. An advisory lock with a
/// bigint key shows as its two halves, with `objsubid` 1.
///
/// Whoever else keeps a group from being led is shown as well: a session that holds the lock
/// of its leader and is no host's; and a transaction that has its row, which is the one whose
/// number the row shows, while that runs. So does each settlement for a moment, and who
/// has had it for less than a second is left out where that can be seen.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "WITH locks AS MATERIALIZED (SELECT * FROM pg_lock_status() WHERE granted),
             held AS (
                 SELECT (classid::bigint << 32) | objid::bigint AS key,
                        array_agg(coalesce(pid, 0)) AS pids, min(virtualtransaction) AS by
                 FROM locks
                 WHERE locktype = 'advisory' AND objsubid = 1
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                 GROUP BY 1),
             prepared AS (
                 SELECT l.virtualtransaction, l.transactionid, p.gid, p.owner, p.prepared AS since
                 FROM locks l JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
                 WHERE l.locktype = 'transactionid'),
             strangers AS (
                 SELECT held.key, nullif(held.pids[1], 0)::bigint AS pid, p.gid,
                        coalesce(a.application_name, '') AS application,
                        coalesce(a.usename, p.owner, '')::text AS role,
                        extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.since))::float8 AS age
                 FROM held
                 LEFT JOIN pg_stat_activity a ON a.pid = held.pids[1]
                 LEFT JOIN prepared p ON held.pids[1] = 0 AND p.virtualtransaction = held.by
                 WHERE NOT EXISTS (SELECT FROM event_host.hosts s
                                   WHERE s.backend_pid = ANY (held.pids))),
             writers AS (
                 SELECT l.transactionid, l.pid::bigint AS pid, p.gid,
                        coalesce(a.application_name, '') AS application,
                        coalesce(a.usename, p.owner, '')::text AS role,
                        extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.since))::float8 AS age
                 FROM locks l
                 LEFT JOIN pg_stat_activity a ON a.pid = l.pid
                 LEFT JOIN prepared p ON l.pid IS NULL AND p.transactionid = l.transactionid
                 WHERE l.locktype = 'transactionid')
             SELECT g.name, g.tenant, g.subscribe, g.state, g.reason, g.epoch, g.position,
                    g.created_at, g.settled_at, g.late_events,
                    CASE WHEN h.backend_pid = ANY (led.pids) THEN h.id END, h.hostname, h.pid,
                    g.leader_since, g.remark, g.failures::text, g.partitions::bigint, ",
            head_columns!(),
            ", ",
            open_columns!(),
            ", s.pid, s.gid, s.application, s.role, s.age,
               w.pid, w.gid, w.application, w.role, w.age, ",
            mark_columns!(),
            ", g.unpinned, g.handled_events, g.dead_events FROM event_host.consumer_groups g
              LEFT JOIN event_host.hosts h ON h.id = g.leader AND h.lock_key = g.leader_key
              LEFT JOIN held led ON led.key = g.leader_key
              LEFT JOIN strangers s ON s.key = g.leader_key
              LEFT JOIN writers w ON w.transactionid = g.xmax ",
            $rest
        )
    };
}

pub(super) async fn log_and_groups(
    connection: &mut PgConnection,
    counting: Counting,
) -> Result<LogStatus, PostgresError> {
    // Outside of the snapshot: it looks at what is open now.
    let mut now = begin(connection).await?;
    let mut safe_position = SafePosition::default();
    let sample = sample::sample_log_end(&mut now, &safe_position, true).await?.sample;
    let safe_position = safe_position
        .observe(sample)
        .map_err(|_| StoreError::Unusable("the log's sequence stands below zero".to_owned()))?;
    let held_up_by = holders(&mut now).await?;
    let pinned_by = retention::pinned_by(&mut now).await?;
    now.commit().await?;

    let mut snapshot = begin_snapshot(connection).await?;
    let last: Option<i64> = sqlx::query_scalar("SELECT max(position) FROM event_host.events")
        .fetch_one(&mut *snapshot)
        .await?;
    let (events, events_is_estimate) = count_events(&mut snapshot, counting).await?;
    let bytes = size(&mut snapshot).await?;
    let rows = sqlx::query(select!("WHERE g.part_of IS NULL OR (g.partitions > 1 AND g.partition < g.partitions) ORDER BY g.name")).fetch_all(&mut *snapshot).await?;
    let Sifted { read: groups, unreadable } = statuses(&mut snapshot, &rows, counting).await?;
    let groups = whole(groups);
    let hosts = hosts(&mut snapshot).await?;
    snapshot.rollback().await?;
    // Where somebody writes, one sample cannot tell what is safe; what a group has
    // settled is.
    let decided = |group: &GroupStatus| match group.open_ranges.first() {
        Some(open) => Position(open.first.0 - 1),
        None => group.position,
    };
    let settled = groups.iter().map(decided).max().unwrap_or(Position::ZERO);
    // The last event may have gone; then the log ends with what was settled.
    let last = last.map_or(settled, Position);
    Ok(LogStatus {
        last_position: last,
        safe_position: safe_position.max(settled).min(last),
        events,
        events_is_estimate,
        bytes,
        held_up_by,
        pinned_by,
        groups,
        unreadable,
        hosts,
    })
}

/// How many events the log holds, and whether that is an estimate: positions do not
/// tell, for they jump.
async fn count_events(
    connection: &mut PgConnection,
    counting: Counting,
) -> Result<(i64, bool), PostgresError> {
    let most = counting.most.unwrap_or(i64::MAX - 1);
    let counted: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT FROM event_host.events LIMIT $1 + 1) first",
    )
    .bind(most)
    .fetch_one(&mut *connection)
    .await?;
    if counted <= most {
        return Ok((counted, false));
    }
    let estimated: i64 = sqlx::query_scalar(
        "SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint
         FROM event_host.partitions p JOIN pg_class c ON c.oid = p.relation",
    )
    .fetch_one(connection)
    .await?;
    // A log that grows fast has more than the server has noticed.
    Ok((estimated.max(counted), true))
}

/// What the log takes, with its indexes. A table partition that is dropped meanwhile takes
/// nothing.
async fn size(connection: &mut PgConnection) -> Result<u64, PostgresError> {
    let bytes: i64 = sqlx::query_scalar(
        "SELECT coalesce(sum(pg_total_relation_size(p.relation)), 0)::bigint
         FROM event_host.partitions p",
    )
    .fetch_one(connection)
    .await?;
    Ok(bytes.unsigned_abs())
}

async fn begin_snapshot(
    connection: &mut PgConnection,
) -> Result<sqlx::Transaction<'_, sqlx::Postgres>, PostgresError> {
    let mut snapshot = snapshot(connection).await?;
    snapshot.execute(LONG_STATEMENT).await?;
    Ok(snapshot)
}

pub(super) async fn group(
    connection: &mut PgConnection,
    group: &GroupName,
    counting: Counting,
) -> Result<GroupStatus, PostgresError> {
    let mut snapshot = begin_snapshot(connection).await?;
    let rows = sqlx::query(select!(
        "WHERE g.name = $1 OR (g.part_of = $1 AND g.partitions > 1 AND g.partition < g.partitions)"
    ))
    .bind(group.as_str())
    .fetch_all(&mut *snapshot)
    .await?;
    let Sifted { read, unreadable } = statuses(&mut snapshot, &rows, counting).await?;
    snapshot.rollback().await?;
    match (whole(read).pop(), unreadable.into_iter().next()) {
        (Some(status), _) => Ok(status),
        (None, Some(why)) => Err(StoreError::Unusable(why).into()),
        (None, None) => Err(refusals::no_group(group).into()),
    }
}

/// A row of a group, or of a partition, as far as it stands there.
struct Read {
    status: GroupStatus,
    /// How it reads the log, unless its cursor is not in use.
    reads: Option<(Subscription, Option<Partition>)>,
}

/// What is known of the groups and partitions of these rows.
async fn statuses(
    connection: &mut PgConnection,
    rows: &[PgRow],
    counting: Counting,
) -> Result<Sifted<GroupStatus>, PostgresError> {
    let whose = |row: &PgRow| stored::row_of(row.try_get_unchecked(0).ok());
    let Sifted { read, unreadable } = Sifted::of(rows.iter().map(|row| (whose(row), read(row))));
    let mut backlog = Backlog::new(counting);
    for Read { status, reads } in &read {
        if let Some((subscription, partition)) = reads {
            let GroupStatus { name, tenant, position, .. } = status;
            backlog.add(name, tenant, subscription, *partition, *position);
        }
    }
    lag::read(connection, &mut backlog, &read_by_name(&read), counting).await?;
    let names: Vec<&str> = read.iter().map(|row| row.status.name.as_str()).collect();
    let dead = count_dead_letters(connection, &names, counting).await?;
    let waiting = count_redeliveries(connection, &names, counting).await?;
    // As it is now, and not in the snapshot: transactions are in none.
    let is_open = read.iter().any(|row| !row.status.open_ranges.is_empty());
    let held_by = if is_open { holders(connection).await? } else { Vec::new() };
    let mut statuses = Vec::with_capacity(read.len());
    for Read { mut status, .. } in read {
        let lag = backlog.lag(&status.name);
        status.lag_events = lag.events;
        status.lag_events_is_at_least = lag.is_at_least;
        status.lag_seconds = lag.seconds();
        status.lag_seconds_is_at_least = lag.may_be_older;
        status.unread_seconds = lag.unread_seconds();
        if let Some(waiting) = waiting.get(status.name.as_str()) {
            status.parked = waiting.parked.rows;
            status.parked_is_at_least = waiting.parked.is_at_least;
            status.deferred = waiting.deferred.rows;
            status.deferred_is_at_least = waiting.deferred.is_at_least;
            status.retries_pending += waiting.parked.rows - waiting.delayed;
            status.next_due_at = status.next_due_at.into_iter().chain(waiting.due_at).min();
        }
        if let Some(dead) = dead.get(status.name.as_str()) {
            status.dead_letters = dead.rows;
            status.dead_letters_is_at_least = dead.is_at_least;
        }
        if !status.open_ranges.is_empty() {
            status.open_ranges_held_by.clone_from(&held_by);
        }
        statuses.push(status);
    }
    Ok(Sifted { read: statuses, unreadable })
}

fn read_by_name(read: &[Read]) -> HashMap<&str, Reads<'_>> {
    let reads = read.iter().filter_map(|Read { status, reads }| {
        let (subscription, partition) = reads.as_ref()?;
        let GroupStatus { name, tenant, position, .. } = status;
        let partition = *partition;
        Some((name.as_str(), Reads { name, tenant, subscription, partition, after: *position }))
    });
    reads.collect()
}

/// What stands in a group's row; what other tables say comes later.
fn read(row: &PgRow) -> Result<Read, PostgresError> {
    let name = stored::group_name(row.try_get_unchecked(0)?)?;
    let tenant = stored::tenant(row.try_get_unchecked(1)?)?;
    let subscription = stored::subscription(&name, row.try_get_unchecked(2)?)?;
    let of = count(row, 16)?;
    let partition = name.partition_number().map(|number| Partition { number, of });
    let head = read_head(row, 17)?;
    let leader = read_leader(row, 10)?;
    let lock_held_by = read_holder(row, 24)?;
    // A leader's own transactions are over in a moment, or hold nobody up.
    let row_held_by = read_holder(row, 29)?.filter(|holder| match holder.age_seconds {
        Some(age) => age >= HELD_UP_AFTER.as_secs_f64(),
        None => holder.prepared.is_some() || leader.is_none(),
    });
    let status = GroupStatus {
        subscribe: subscription.patterns().to_vec(),
        state: stored::group_state(row.try_get_unchecked(3)?)?,
        reason: row.try_get_unchecked(4)?,
        unpinned: row.try_get_unchecked(36)?,
        note: row.try_get_unchecked(14)?,
        failures: stored::failures(row.try_get_unchecked(15)?),
        leader,
        lock_held_by,
        row_held_by,
        epoch: Epoch(row.try_get_unchecked(5)?),
        position: Position(row.try_get_unchecked(6)?),
        lag_events: 0,
        lag_events_is_at_least: false,
        lag_seconds: 0.0,
        lag_seconds_is_at_least: false,
        unread_seconds: 0.0,
        retries_pending: i64::from(head.as_ref().is_some_and(|head| head.failure.is_some())),
        parked: 0,
        parked_is_at_least: false,
        deferred: 0,
        deferred_is_at_least: false,
        in_flight: read_mark(row, 34)?,
        next_due_at: head.as_ref().map(|head| head.due_at),
        head,
        dead_letters: 0,
        dead_letters_is_at_least: false,
        open_ranges: read_open(row, 22)?.as_slice().to_vec(),
        open_ranges_held_by: Vec::new(),
        late_events: row.try_get_unchecked(9)?,
        handled_events: row.try_get_unchecked(37)?,
        dead_events: row.try_get_unchecked(38)?,
        partitions: Vec::new(),
        created_at: time(row, 7)?,
        settled_at: optional_time(row, 8)?,
        name,
        tenant,
    };
    // The row of a group that is split has no cursor in use.
    let is_in_use = of <= 1 || partition.is_some();
    Ok(Read { status, reads: is_in_use.then_some((subscription, partition)) })
}

/// Counts of rows by the names of groups: a few of each, and of those that have more as
/// many as all may be counted together.
macro_rules! by_few {
    ($names:expr, $counting:expr, |$some:ident, $most:ident| $look:expr, $is_full:expr) => {{
        let counting: Counting = $counting;
        let few = counting.few($names.len());
        let mut counts = {
            let ($some, $most) = ($names, few);
            $look
        };
        let is_full = $is_full;
        let full: Vec<&str> =
            $names.iter().copied().filter(|name| counts.get(*name).is_some_and(is_full)).collect();
        if let Some(more) = counting.more(full.len(), few) {
            let ($some, $most) = (&full[..], more);
            counts.extend($look);
        }
        counts
    }};
}

async fn count_dead_letters(
    connection: &mut PgConnection,
    names: &[&str],
    counting: Counting,
) -> Result<HashMap<String, Counted>, PostgresError> {
    Ok(by_few!(
        names,
        counting,
        |some, most| dead_letters(connection, some, most).await?,
        |counted: &Counted| counted.is_at_least
    ))
}

async fn dead_letters(
    connection: &mut PgConnection,
    names: &[&str],
    most: i64,
) -> Result<HashMap<String, Counted>, PostgresError> {
    let rows = sqlx::query(
        "SELECT g.name, (SELECT count(*) FROM (
                             SELECT FROM event_host.dead_letters d
                             WHERE d.group_name = g.name LIMIT $2 + 1) few)
         FROM unnest($1::text[]) AS g (name)",
    )
    .bind(names)
    .bind(most)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| Ok((row.try_get_unchecked(0)?, Counted::of(row.try_get_unchecked(1)?, most))))
        .collect()
}

/// What comes again for a group.
struct Waiting {
    parked: Counted,
    /// How many of those are to be delivered later, and were never attempted.
    delayed: i64,
    /// What is deferred and was never attempted.
    deferred: Counted,
    /// When the earliest of all of them is due.
    due_at: Option<Timestamp>,
}

async fn count_redeliveries(
    connection: &mut PgConnection,
    names: &[&str],
    counting: Counting,
) -> Result<HashMap<String, Waiting>, PostgresError> {
    Ok(by_few!(
        names,
        counting,
        |some, most| redeliveries(connection, some, most).await?,
        |waiting: &Waiting| waiting.parked.is_at_least || waiting.deferred.is_at_least
    ))
}

async fn redeliveries(
    connection: &mut PgConnection,
    names: &[&str],
    most: i64,
) -> Result<HashMap<String, Waiting>, PostgresError> {
    let rows = sqlx::query(
        "SELECT g.name, r.parked, r.delayed, least(r.due_at, d.due_at), d.deferred
         FROM unnest($1::text[]) AS g (name)
         CROSS JOIN LATERAL (
             SELECT count(*) AS parked,
                    count(*) FILTER (
                        WHERE attempt = 1 AND failure_kind IS NULL AND due_at > 'epoch'
                    ) AS delayed,
                    min(due_at) FILTER (WHERE due_at > 'epoch') AS due_at
             FROM (SELECT attempt, failure_kind, due_at FROM event_host.redeliveries
                   WHERE group_name = g.name ORDER BY position LIMIT $2 + 1) few) r
         CROSS JOIN LATERAL (
             SELECT count(*) AS deferred, min(few.due_at) AS due_at
             FROM (SELECT d.due_at FROM event_host.deferred d
                   WHERE d.group_name = g.name
                     AND NOT EXISTS (SELECT FROM event_host.redeliveries r
                                     WHERE r.group_name = d.group_name
                                       AND r.position = d.position)
                   ORDER BY d.due_at LIMIT $2 + 1) few) d",
    )
    .bind(names)
    .bind(most)
    .fetch_all(connection)
    .await?;
    let waiting = |row: &PgRow| {
        let delayed: i64 = row.try_get_unchecked(2)?;
        let parked = Counted::of(row.try_get_unchecked(1)?, most);
        let (delayed, due_at) = (delayed.min(parked.rows), optional_time(row, 3)?);
        let deferred = Counted::of(row.try_get_unchecked(4)?, most);
        Ok((row.try_get_unchecked(0)?, Waiting { parked, delayed, deferred, due_at }))
    };
    rows.iter().map(waiting).collect()
}
