//! What `status` tells, read in one snapshot, and bounded in what it reads.

use std::collections::HashMap;
use std::path::Path;

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection, Row, SqliteConnection};

use super::columns::{count, optional_text, optional_time, text, time};
use super::error::SqliteError;
use super::group_columns::head_columns;
use super::group_columns::mark_columns;
use super::group_columns::read_head;
use super::group_columns::read_leader;
use super::group_columns::read_mark;
use super::group_row::stored_subscription;
use super::lag::{self, Reads};
use super::{locks, log, retention};
use event_host_core::event::{Epoch, GroupName, Partition, Position};
use event_host_store::driver::backlog::{Backlog, Counted};
use event_host_store::driver::repartition::whole;
use event_host_store::driver::unreadable::Sifted;
use event_host_store::driver::{refusals, stored};
use event_host_store::{Counting, GroupStatus, Leader, LogStatus, StoreError, Subscription};

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT name, tenant, subscribe, state, reason, epoch, position,
                    created_at, settled_at, partitions,
                    hosts.id, hosts.hostname, hosts.pid, leader_since, remark, failures, ",
            head_columns!(),
            ", ",
            mark_columns!(),
            ", unpinned, handled_events, dead_events FROM consumer_groups LEFT JOIN hosts ON hosts.id = leader ",
            $rest
        )
    };
}

pub(super) async fn log_and_groups(
    connection: &mut SqliteConnection,
    database: &Path,
    counting: Counting,
) -> Result<LogStatus, SqliteError> {
    let mut snapshot = connection.begin().await?;
    let last = log::last_position(&mut snapshot).await?;
    let (events, events_is_estimate) = count_events(&mut snapshot, counting).await?;
    // With what the file has besides: the pages of one table are not told apart for nothing.
    let bytes: i64 = sqlx::query_scalar(
        "SELECT p.page_count * s.page_size FROM pragma_page_count p, pragma_page_size s",
    )
    .fetch_one(&mut *snapshot)
    .await?;
    let pinned_by = retention::pinned_by(&mut snapshot, counting).await?;
    let rows = sqlx::query(select!(
        "WHERE part_of IS NULL OR (partitions > 1 AND partition < partitions) ORDER BY name"
    ))
    .fetch_all(&mut *snapshot)
    .await?;
    let Sifted { read: groups, unreadable } =
        statuses(&mut snapshot, database, &rows, counting).await?;
    snapshot.rollback().await?;
    Ok(LogStatus {
        last_position: last,
        safe_position: last,
        events,
        events_is_estimate,
        bytes: bytes.unsigned_abs(),
        held_up_by: Vec::new(),
        pinned_by,
        groups: whole(groups),
        unreadable,
        hosts: Vec::new(),
    })
}

/// How many events the log holds, and whether that is an estimate: positions have no
/// gaps but those that a client made.
async fn count_events(
    connection: &mut SqliteConnection,
    counting: Counting,
) -> Result<(i64, bool), SqliteError> {
    let most = counting.most.unwrap_or(i64::MAX - 1);
    let counted: i64 =
        sqlx::query_scalar("SELECT count(*) FROM (SELECT 1 FROM events LIMIT ? + 1)")
            .bind(most)
            .fetch_one(&mut *connection)
            .await?;
    if counted <= most {
        return Ok((counted, false));
    }
    let span = sqlx::query_scalar(
        "SELECT (SELECT max(position) FROM events) - (SELECT min(position) FROM events) + 1",
    )
    .fetch_one(connection)
    .await?;
    Ok((span, true))
}

pub(super) async fn group(
    connection: &mut SqliteConnection,
    database: &Path,
    group: &GroupName,
    counting: Counting,
) -> Result<GroupStatus, SqliteError> {
    let mut snapshot = connection.begin().await?;
    let rows = sqlx::query(select!(
        "WHERE name = ?1 OR (part_of = ?1 AND partitions > 1 AND partition < partitions)"
    ))
    .bind(group.as_str())
    .fetch_all(&mut *snapshot)
    .await?;
    let Sifted { read, unreadable } = statuses(&mut snapshot, database, &rows, counting).await?;
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
    connection: &mut SqliteConnection,
    database: &Path,
    rows: &[SqliteRow],
    counting: Counting,
) -> Result<Sifted<GroupStatus>, SqliteError> {
    let whose = |row: &SqliteRow| stored::row_of(text(row, 0).ok().as_deref());
    let rows = rows.iter().map(|row| (whose(row), read(row, database)));
    let Sifted { read, unreadable } = Sifted::of(rows);
    let mut backlog = Backlog::new(counting);
    let mut readers = HashMap::new();
    for Read { status, reads } in &read {
        if let Some((subscription, partition)) = reads {
            let GroupStatus { name, tenant, position, .. } = status;
            let (partition, after) = (*partition, *position);
            backlog.add(name, tenant, subscription, partition, after);
            let reads = Reads { name, tenant, subscription, partition, after };
            readers.insert(name.as_str(), reads);
        }
    }
    lag::read(connection, &mut backlog, &readers, counting).await?;
    let names: Vec<&str> = read.iter().map(|row| row.status.name.as_str()).collect();
    let (dead, waiting) = (
        count_dead_letters(connection, &names, counting).await?,
        count_redeliveries(connection, &names, counting).await?,
    );
    let statuses = read.into_iter().map(|Read { mut status, .. }| {
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
        status
    });
    Ok(Sifted { read: statuses.collect(), unreadable })
}

/// What stands in a group's row; what other tables say comes later.
fn read(row: &SqliteRow, database: &Path) -> Result<Read, SqliteError> {
    let name = stored::group_name(&text(row, 0)?)?;
    let tenant = stored::tenant(&text(row, 1)?)?;
    let subscription = stored_subscription(&name, &text(row, 2)?)?;
    let of = count(row, 9)?;
    let partition = name.partition_number().map(|number| Partition { number, of });
    let head = read_head(row, 16)?;
    let status = GroupStatus {
        subscribe: subscription.patterns().to_vec(),
        state: stored::group_state(&text(row, 3)?)?,
        reason: optional_text(row, 4)?,
        unpinned: row.try_get_unchecked(23)?,
        note: optional_text(row, 14)?,
        failures: stored::failures(&text(row, 15)?),
        lock_held_by: None,
        row_held_by: None,
        leader: if_alive(database, &name, read_leader(row, 10)?)?,
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
        in_flight: read_mark(row, 21)?,
        next_due_at: head.as_ref().map(|head| head.due_at),
        head,
        dead_letters: 0,
        dead_letters_is_at_least: false,
        // Nobody writes while somebody else does.
        open_ranges: Vec::new(),
        open_ranges_held_by: Vec::new(),
        late_events: 0,
        handled_events: row.try_get_unchecked(24)?,
        dead_events: row.try_get_unchecked(25)?,
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

/// A few dead letters of each group are counted, and of those that have more as many as
/// all may be counted together.
async fn count_dead_letters(
    connection: &mut SqliteConnection,
    names: &[&str],
    counting: Counting,
) -> Result<HashMap<String, Counted>, SqliteError> {
    let mut counts = HashMap::with_capacity(names.len());
    let few = counting.few(names.len());
    for name in names {
        let dead = dead_letters(connection, name, few).await?;
        counts.insert((*name).to_owned(), dead);
    }
    let full: Vec<String> = counts
        .iter()
        .filter(|(_, counted)| counted.is_at_least)
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(more) = counting.more(full.len(), few) {
        for name in full {
            let dead = dead_letters(connection, &name, more).await?;
            counts.insert(name, dead);
        }
    }
    Ok(counts)
}

async fn dead_letters(
    connection: &mut SqliteConnection,
    name: &str,
    most: i64,
) -> Result<Counted, SqliteError> {
    let counted = sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT 1 FROM dead_letters WHERE group_name = ?1 LIMIT ?2 + 1)",
    )
    .bind(name)
    .bind(most)
    .fetch_one(connection)
    .await?;
    Ok(Counted::of(counted, most))
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

/// In the same two steps.
async fn count_redeliveries(
    connection: &mut SqliteConnection,
    names: &[&str],
    counting: Counting,
) -> Result<HashMap<String, Waiting>, SqliteError> {
    let mut counts = HashMap::with_capacity(names.len());
    let few = counting.few(names.len());
    for name in names {
        let waiting = redeliveries(connection, name, few).await?;
        counts.insert((*name).to_owned(), waiting);
    }
    let full: Vec<String> = counts
        .iter()
        .filter(|(_, waiting)| waiting.parked.is_at_least || waiting.deferred.is_at_least)
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(more) = counting.more(full.len(), few) {
        for name in full {
            let waiting = redeliveries(connection, &name, more).await?;
            counts.insert(name, waiting);
        }
    }
    Ok(counts)
}

async fn redeliveries(
    connection: &mut SqliteConnection,
    name: &str,
    most: i64,
) -> Result<Waiting, SqliteError> {
    let row = sqlx::query(
        "SELECT count(*),
                count(*) FILTER (WHERE attempt = 1 AND failure_kind IS NULL AND due_at > 0),
                min(due_at) FILTER (WHERE due_at > 0)
         FROM (SELECT attempt, failure_kind, due_at FROM redeliveries
               WHERE group_name = ?1 ORDER BY position LIMIT ?2 + 1)",
    )
    .bind(name)
    .bind(most)
    .fetch_one(&mut *connection)
    .await?;
    let later = sqlx::query(
        "SELECT count(*), min(due_at)
         FROM (SELECT d.due_at FROM deferred d
               WHERE d.group_name = ?1
                 AND NOT EXISTS (SELECT 1 FROM redeliveries r
                                 WHERE r.group_name = d.group_name AND r.position = d.position)
               ORDER BY d.due_at LIMIT ?2 + 1)",
    )
    .bind(name)
    .bind(most)
    .fetch_one(connection)
    .await?;
    let parked = Counted::of(row.try_get_unchecked(0)?, most);
    let delayed: i64 = row.try_get_unchecked(1)?;
    let deferred = Counted::of(later.try_get_unchecked(0)?, most);
    let due_at = optional_time(&row, 2)?.into_iter().chain(optional_time(&later, 1)?).min();
    Ok(Waiting { parked, delayed: delayed.min(parked.rows), deferred, due_at })
}

/// The leader that a group's row names, if its lock is held: a process that was
/// killed leaves its name behind, and lets go of the lock.
pub(super) fn if_alive(
    database: &Path,
    group: &GroupName,
    leader: Option<Leader>,
) -> Result<Option<Leader>, StoreError> {
    match leader {
        Some(leader) if locks::is_held(database, group)? => Ok(Some(leader)),
        _ => Ok(None),
    }
}
