//! Opens the session by which a host leads: where it may, under which lock, and what is
//! written down of it.

use std::time::Duration;

use sqlx::{PgConnection, Row};

use crate::connection::Connections;
use crate::error::PostgresError;
use crate::incarnation::{self, Known};
use event_host_store::{HostIdentity, StoreError};

/// How long the row of a host that is gone is kept, in seconds.
const FORGOTTEN_AFTER: f64 = 3_600.0;

/// How long a session waits until whoever reads the log has found the server on which
/// it is.
const FINDS_OUT_WITHIN: Duration = Duration::from_secs(2);

/// Takes the lock of a key that no session had before, and none will have again.
pub(super) async fn own_lock(connection: &mut PgConnection) -> Result<i64, PostgresError> {
    loop {
        // Another lock of this database may happen to have it.
        let key = fastrand::i64(..);
        let taken: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
            .bind(key)
            .fetch_one(&mut *connection)
            .await?;
        if taken {
            return Ok(key);
        }
    }
}

/// Writes down which session is this host's, in place of the one before: that is over,
/// whatever the server knows of it. What it led and announced is free.
pub(super) async fn write_down(
    connection: &mut PgConnection,
    host: &HostIdentity,
    key: i64,
) -> Result<(), PostgresError> {
    sqlx::query(
        "INSERT INTO event_host.hosts (id, hostname, pid, backend_pid, backend_start, lock_key)
         SELECT $1, $2, $3, a.pid, a.backend_start, $4
         FROM pg_stat_get_activity(pg_backend_pid()) a
         ON CONFLICT (id) DO UPDATE
         SET backend_pid = excluded.backend_pid, backend_start = excluded.backend_start,
             lock_key = excluded.lock_key, seen_at = clock_timestamp()",
    )
    .bind(&host.id)
    .bind(&host.hostname)
    .bind(i64::from(host.pid))
    .bind(key)
    .execute(&mut *connection)
    .await?;
    sqlx::query("DELETE FROM event_host.host_groups WHERE host = $1")
        .bind(&host.id)
        .execute(&mut *connection)
        .await?;
    // While its session is there, the row says whose it is.
    sqlx::query(
        "DELETE FROM event_host.hosts h
         WHERE h.seen_at < clock_timestamp() - make_interval(secs => $1)
           AND NOT EXISTS (SELECT FROM event_host.consumer_groups g WHERE g.leader = h.id)
           AND NOT EXISTS (
               SELECT FROM pg_stat_get_activity(NULL) a
               WHERE a.pid = h.backend_pid AND coalesce(a.backend_start = h.backend_start, true))",
    )
    .bind(FORGOTTEN_AFTER)
    .execute(connection)
    .await?;
    Ok(())
}

/// Refuses locks on another server than the log is read from, as there may be for a
/// moment when one takes the place of another: there they would keep nobody away. Who
/// reads it may only have to find out, and connects again to do so.
pub(super) async fn leads_to_what_is_read(
    connections: &Connections,
    connection: &mut PgConnection,
) -> Result<(), PostgresError> {
    let here = incarnation::found(connection).await?;
    connections.know_if_nothing(&here);
    let mut known = connections.known();
    let mut is_here = known.borrow().clone();
    if connections.expect(Some(&here), &is_here).is_err() {
        let found_out = known.wait_for(|known| *known == Known::Is(here.clone()));
        if let Ok(Ok(known)) = tokio::time::timeout(FINDS_OUT_WITHIN, found_out).await {
            is_here = known.clone();
        }
    }
    connections.expect(Some(&here), &is_here)
}

/// Refuses locks in another database than the one that they are to guard: there
/// they would keep nobody away.
pub(super) async fn is_the_same_database(
    connections: &Connections,
    connection: &mut PgConnection,
) -> Result<(), PostgresError> {
    let mut shared = connections.shared().await?;
    let guarded = identity(shared.connection()).await;
    let guarded = shared.give_back(guarded).await?;
    if guarded == identity(connection).await? {
        return Ok(());
    }
    Err(StoreError::Unusable(format!(
        "`lock_database` leads to {}, which is not the database that `database` leads to, {}: name the same database of the same server in both",
        connections.direct_server(),
        connections.server(),
    ))
    .into())
}

/// What no other database anywhere has: its cluster and its number there.
async fn identity(connection: &mut PgConnection) -> Result<(i64, i64), PostgresError> {
    let row = sqlx::query(
        "SELECT c.system_identifier, d.oid::bigint
         FROM pg_control_system() c, pg_database d WHERE d.datname = current_database()",
    )
    .fetch_one(connection)
    .await?;
    Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?))
}
