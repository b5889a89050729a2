//! Retention: ends the log's partitions, and lets go of those whose time is
//! over.
//!
//! `table_partitions` says what is to be done, and the schema's functions do it, each in
//! a transaction of its own, and refuse what would hurt. No producer and no leader
//! shall wait for any of it: what needs a lock is not even tried where somebody
//! has held on to one that is in the way for a while, and gives up soon otherwise.
//! Then a later round does it.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::{PgConnection, Row};
use tokio::sync::Mutex;

use super::columns::{optional_time, time};
use super::connection::Connections;
use super::error::PostgresError;
use super::incarnation::Known;
use super::on_shared::on_shared;
use super::table_partitions::{LogState, Partition, Plan, Span};
use event_host_core::event::{GroupName, Position, Tenant};
use event_host_store::{Enforced, LogPin, Retention, StoreError};

/// A lock that was held for so long may be held for much longer, and whoever waits
/// for it has others wait behind.
const HOLDS_ON: Duration = Duration::from_millis(100);

/// A partition may have to be made before another can begin, and after that the
/// next one.
const ROUNDS: usize = 3;

const MAKE: &str = "SELECT event_host.make_partition($1)";
const BEGIN: &str = "SELECT event_host.begin_partition($1)";
const EMPTY: &str = "SELECT event_host.empty_partition($1)";
const DROP: &str = "SELECT event_host.drop_partition($1)";

/// The last partition that the schema makes before anybody can write to the log.
const MADE_WITH_THE_LOG: i64 = 1;

/// The partition that is to begin next, and who may not know of it.
///
/// A transaction looks at the partitions when it first takes its lock on the log, and need
/// not look again. One that drew a position of a partition that it does not know would fail.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    number: i64,
    /// Where that is so: another server may be behind, and make it again.
    of: Known,
    /// The transactions that held a lock on the log once the partition was there.
    unaware: BTreeSet<String>,
}

impl Ahead {
    /// Whether everybody who uses the log knows of a partition that is there.
    async fn is_known_to_all(
        ahead: &Mutex<Self>,
        connections: &Connections,
        (number, of): (i64, &Known),
    ) -> Result<bool, StoreError> {
        if number <= MADE_WITH_THE_LOG {
            return Ok(true);
        }
        let look = async || on_shared!(connections, "see who uses the log", |c| users(c, "events"));
        let mut ahead = ahead.lock().await;
        let mut users = look().await?;
        if (ahead.number, &ahead.of) != (number, of) {
            *ahead = Self { number, of: of.clone(), unaware: users };
            if ahead.unaware.is_empty() {
                return Ok(true);
            }
            tokio::time::sleep(HOLDS_ON).await;
            users = look().await?;
        }
        ahead.unaware.retain(|transaction| users.contains(transaction));
        Ok(ahead.unaware.is_empty())
    }
}

pub(super) async fn enforce_retention(
    connections: &Connections,
    ahead: &Mutex<Ahead>,
    retention: &Retention,
) -> Result<Enforced, StoreError> {
    on_shared!(connections, "record how long events are kept", |c| record(c, retention))?;
    if retention.is_forever() {
        return Ok(Enforced::default());
    }
    let mut enforced = Enforced::default();
    let mut plan = Plan::default();
    for _ in 0..ROUNDS {
        let here = connections.known().borrow().clone();
        let state =
            on_shared!(connections, "look at the log's partitions", |c| log_state(c, None))?;
        plan = state.plan(retention);
        let mut changed = false;
        if let Some(number) = plan.make {
            let made = Step { sql: MAKE, number: Some(number), needs: "events_elsewhere" };
            changed |= made.take(connections, &mut enforced).await?;
        }
        // Where it is not there yet, the next round finds it.
        if let Some(number) = plan.begin.filter(|number| state.has(*number)) {
            if Ahead::is_known_to_all(ahead, connections, (number, &here)).await? {
                changed |= on_shared!(connections, "begin a partition of the log", |c| {
                    call(c, BEGIN, Some(number))
                })?;
            } else {
                enforced.postponed = true;
            }
        }
        if !changed {
            break;
        }
    }
    for (number, last) in plan.empty {
        let partition = name(number);
        let emptied = Step { sql: EMPTY, number, needs: &partition };
        if !emptied.take(connections, &mut enforced).await? {
            // The oldest go first.
            break;
        }
        enforced.dropped_up_to = Some(last);
    }
    for number in plan.drop {
        let dropped = Step { sql: DROP, number: Some(number), needs: "events" };
        dropped.take(connections, &mut enforced).await?;
    }
    enforced.pinned_by = plan.pinned.map(|pin| pin.group);
    Ok(enforced)
}

/// What keeps events in the log beyond the time that the hosts were told last.
pub(super) async fn pinned_by(
    connection: &mut PgConnection,
) -> Result<Option<LogPin>, PostgresError> {
    let retention = recorded(connection).await?;
    if retention.is_forever() {
        return Ok(None);
    }
    pin_of(connection, &retention, None).await
}

/// What a tenant's groups keep in the log beyond a retention, or all groups do.
pub(super) async fn pin_of(
    connection: &mut PgConnection,
    retention: &Retention,
    tenant: Option<&Tenant>,
) -> Result<Option<LogPin>, PostgresError> {
    Ok(log_state(connection, tenant).await?.plan(retention).pinned)
}

fn name(number: Option<i64>) -> String {
    number.map_or("events_elsewhere".to_owned(), |number| format!("events_{number}"))
}

/// A call of a function that waits for a lock.
struct Step<'a> {
    sql: &'static str,
    number: Option<i64>,
    /// The table that nobody else may use meanwhile.
    needs: &'a str,
}

impl Step<'_> {
    /// Takes the step, if nobody is in the way. Whether it did.
    async fn take(
        &self,
        connections: &Connections,
        enforced: &mut Enforced,
    ) -> Result<bool, StoreError> {
        if !self.is_free(connections).await? {
            enforced.postponed = true;
            return Ok(false);
        }
        let taken = on_shared!(connections, "keep the log", |c| async {
            match call(c, self.sql, self.number).await {
                Err(broken) if broken.waited_in_vain() => Ok(None),
                answer => answer.map(Some),
            }
        })?;
        enforced.postponed |= taken.is_none();
        Ok(taken.unwrap_or(false))
    }

    /// Whether nobody holds on to a lock that would be in the way.
    async fn is_free(&self, connections: &Connections) -> Result<bool, StoreError> {
        let look =
            async || on_shared!(connections, "see who uses the log", |c| users(c, self.needs));
        let before = look().await?;
        if before.is_empty() {
            return Ok(true);
        }
        tokio::time::sleep(HOLDS_ON).await;
        Ok(look().await?.is_disjoint(&before))
    }
}

/// The transactions that hold a lock on a table of the log.
async fn users(
    connection: &mut PgConnection,
    table: &str,
) -> Result<BTreeSet<String>, PostgresError> {
    let users: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT l.virtualtransaction FROM pg_lock_status() l
         WHERE l.locktype = 'relation' AND l.granted
           AND l.relation = to_regclass('event_host.' || $1)
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .bind(table)
    .fetch_all(connection)
    .await?;
    Ok(users.into_iter().collect())
}

/// Calls one of the schema's functions that take a partition's number and say
/// whether they did anything.
async fn call(
    connection: &mut PgConnection,
    sql: &'static str,
    number: Option<i64>,
) -> Result<bool, PostgresError> {
    Ok(sqlx::query_scalar(sql).bind(number).fetch_one(connection).await?)
}

/// First and last of each partition come by its index. The default one has no
/// bounds to ask by. With a tenant, no other's groups count as behind.
async fn log_state(
    connection: &mut PgConnection,
    tenant: Option<&Tenant>,
) -> Result<LogState, PostgresError> {
    let rows = sqlx::query(
        "SELECT p.number, coalesce(pg_total_relation_size(p.relation), 0),
                first.published_at, last.published_at, last.position
         FROM event_host.partitions p
         LEFT JOIN LATERAL (
             SELECT e.published_at FROM event_host.events e
             WHERE e.position >= p.first_position AND e.position <= p.last_position
             ORDER BY e.position LIMIT 1) first ON true
         LEFT JOIN LATERAL (
             SELECT e.position, e.published_at FROM event_host.events e
             WHERE e.position >= p.first_position AND e.position <= p.last_position
             ORDER BY e.position DESC LIMIT 1) last ON true
         WHERE p.number IS NOT NULL
         UNION ALL
         SELECT NULL, pg_total_relation_size('event_host.events_elsewhere'),
                first.published_at, last.published_at, last.position
         FROM (VALUES (1)) one
         LEFT JOIN LATERAL (
             SELECT e.published_at FROM event_host.events_elsewhere e
             ORDER BY e.position LIMIT 1) first ON true
         LEFT JOIN LATERAL (
             SELECT e.position, e.published_at FROM event_host.events_elsewhere e
             ORDER BY e.position DESC LIMIT 1) last ON true",
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut partitions = Vec::with_capacity(rows.len());
    for row in &rows {
        let last: Option<i64> = row.try_get_unchecked(4)?;
        let (since, until) = (optional_time(row, 2)?, optional_time(row, 3)?);
        let events = match (since, until, last) {
            (Some(since), Some(until), Some(last)) => {
                Some(Span { since, until, last: Position(last) })
            }
            _ => None,
        };
        let bytes: i64 = row.try_get_unchecked(1)?;
        let bytes = bytes.unsigned_abs();
        partitions.push(Partition { number: row.try_get_unchecked(0)?, bytes, events });
    }
    let row = sqlx::query(
        "SELECT clock_timestamp(), s.drawn + 1, behind.group_name, behind.position
         FROM (SELECT event_host.last_drawn() AS drawn) s
         LEFT JOIN (
             SELECT group_name, position FROM event_host.log_pins
             WHERE $1::text IS NULL OR tenant = $1
             ORDER BY position, group_name LIMIT 1) behind ON true",
    )
    .bind(tenant.map(Tenant::as_str))
    .fetch_one(connection)
    .await?;
    let group: Option<&str> = row.try_get_unchecked(2)?;
    let behind = match (group, row.try_get_unchecked::<Option<i64>, _>(3)?) {
        // Whatever it is called, what it needs is kept.
        (Some(group), Some(position)) => Some((GroupName::shown(group), Position(position))),
        _ => None,
    };
    Ok(LogState { now: time(&row, 0)?, coming: row.try_get_unchecked(1)?, partitions, behind })
}

async fn recorded(connection: &mut PgConnection) -> Result<Retention, PostgresError> {
    let row = sqlx::query("SELECT max_age_in_microseconds, max_bytes FROM event_host.retention")
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(Retention::FOREVER) };
    Ok(Retention::from_stored((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?)))
}

/// Written only where it is news.
async fn record(connection: &mut PgConnection, retention: &Retention) -> Result<(), PostgresError> {
    if recorded(connection).await?.to_stored() == retention.to_stored() {
        return Ok(());
    }
    if retention.is_forever() {
        sqlx::query("DELETE FROM event_host.retention").execute(connection).await?;
        return Ok(());
    }
    let (age, bytes) = retention.to_stored();
    sqlx::query(
        "INSERT INTO event_host.retention (max_age_in_microseconds, max_bytes) VALUES ($1, $2)
         ON CONFLICT (only_one) DO UPDATE
         SET max_age_in_microseconds = excluded.max_age_in_microseconds,
             max_bytes = excluded.max_bytes",
    )
    .bind(age)
    .bind(bytes)
    .execute(connection)
    .await?;
    Ok(())
}
