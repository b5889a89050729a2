//! Who holds the log up, or the row or the lock of a group.

use sqlx::postgres::PgRow;
use std::time::Duration;

use sqlx::{PgConnection, Row};

use super::error::PostgresError;
use event_host_store::Blocker;

/// How long a transaction holds the log up before it is reported.
pub(super) const HELD_UP_AFTER: Duration = Duration::from_secs(1);

/// Reads process, name of a prepared transaction, application, user and age, the first
/// of which stands at `first`.
pub(super) fn read_holder(row: &PgRow, first: usize) -> Result<Option<Blocker>, PostgresError> {
    // Null where nobody was found.
    let Some(application) = row.try_get_unchecked::<Option<String>, _>(first + 2)? else {
        return Ok(None);
    };
    Ok(Some(Blocker {
        pid: row.try_get_unchecked(first)?,
        prepared: row.try_get_unchecked(first + 1)?,
        application,
        user: row.try_get_unchecked(first + 3)?,
        age_seconds: row.try_get_unchecked(first + 4)?,
    }))
}

/// Who may hold the log up: every transaction that has held the lock of an
/// insert on the log for more than a second, the oldest first.
pub(super) async fn holders(connection: &mut PgConnection) -> Result<Vec<Blocker>, PostgresError> {
    let rows = sqlx::query(
        "WITH locks AS (SELECT * FROM pg_lock_status() WHERE granted),
         writers AS (
             SELECT DISTINCT pid, virtualtransaction FROM locks
             WHERE locktype = 'relation'
               AND (relation = 'event_host.events'::regclass
                    OR relation IN (SELECT p.relation FROM event_host.partitions p))
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND mode = 'RowExclusiveLock')
         SELECT w.pid::bigint, p.gid,
                coalesce(a.application_name, ''),
                coalesce(a.usename, p.owner, '')::text,
                extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8
         FROM writers w
         LEFT JOIN pg_stat_activity a ON a.pid = w.pid
         -- Every transaction that writes holds a lock on its own number, by which
         -- a prepared one is known.
         LEFT JOIN locks own
                ON w.pid IS NULL AND own.locktype = 'transactionid'
               AND own.virtualtransaction = w.virtualtransaction
         LEFT JOIN pg_prepared_xacts p ON p.transaction = own.transactionid
         ORDER BY 5 DESC NULLS LAST",
    )
    .fetch_all(connection)
    .await?;
    let mut holders = Vec::new();
    for row in &rows {
        // Since when another role's session has a transaction open is shown to
        // those alone who may read all statistics.
        let Some(holder) = read_holder(row, 0)? else { continue };
        if holder.age_seconds.is_none_or(|age| age >= HELD_UP_AFTER.as_secs_f64()) {
            holders.push(holder);
        }
    }
    Ok(holders)
}

/// Which tables of the schema are locked as wholes, so that whoever works with their rows
/// waits, and by whom.
pub(super) async fn locked_tables(
    connection: &mut PgConnection,
) -> Result<Vec<(String, Blocker)>, PostgresError> {
    let rows = sqlx::query(
        "WITH locks AS MATERIALIZED (SELECT * FROM pg_lock_status() WHERE granted)
         SELECT l.pid::bigint, p.gid, coalesce(a.application_name, ''),
                coalesce(a.usename, p.owner, '')::text,
                extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8,
                'event_host.' || c.relname
         FROM locks l
         JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
         JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'event_host'
         LEFT JOIN pg_stat_activity a ON a.pid = l.pid
         LEFT JOIN locks own
                ON l.pid IS NULL AND own.locktype = 'transactionid'
               AND own.virtualtransaction = l.virtualtransaction
         LEFT JOIN pg_prepared_xacts p ON p.transaction = own.transactionid
         WHERE l.locktype = 'relation'
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
           AND l.pid IS DISTINCT FROM pg_backend_pid()
         ORDER BY 5 DESC NULLS LAST, 6 LIMIT 5",
    )
    .fetch_all(connection)
    .await?;
    let mut locked = Vec::with_capacity(rows.len());
    for row in &rows {
        if let Some(holder) = read_holder(row, 0)? {
            locked.push((row.try_get_unchecked(5)?, holder));
        }
    }
    Ok(locked)
}
