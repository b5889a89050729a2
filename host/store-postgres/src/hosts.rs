//! The hosts that are connected, and what does not work for them.

use std::collections::BTreeSet;

use sqlx::{PgConnection, Row};

use super::columns::{count, kept, time};
use super::error::PostgresError;
use event_host_core::event::GroupName;
use event_host_store::driver::stored;
use event_host_store::{HostIdentity, HostStatus};

/// In the row of the host, which may be the first that is said of it: its trouble may be
/// that it gets no lock session.
pub(super) async fn record_outages(
    connection: &mut PgConnection,
    host: &HostIdentity,
    trouble: Option<&str>,
) -> Result<(), PostgresError> {
    sqlx::query(
        "INSERT INTO event_host.hosts (id, hostname, pid, trouble, troubled_at)
         VALUES ($1, $2, $3, $4, clock_timestamp())
         ON CONFLICT (id) DO UPDATE
         SET trouble = excluded.trouble, troubled_at = excluded.troubled_at",
    )
    .bind(&host.id)
    .bind(&host.hostname)
    .bind(i64::from(host.pid))
    .bind(trouble.map(kept))
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn hosts(connection: &mut PgConnection) -> Result<Vec<HostStatus>, PostgresError> {
    // The lock session's backend tells whether a host is there; its own word
    // tells how long ago it was well. When a session of another role began is
    // hidden from a role that may not read all statistics: it takes the host's
    // word for it.
    let rows = sqlx::query(
        "SELECT h.id, h.hostname, h.pid, h.seen_at,
                -- What others lead of the groups that it would lead.
                ARRAY(SELECT r.group_name FROM event_host.host_groups r
                      JOIN event_host.consumer_groups g ON g.name = r.group_name
                      JOIN event_host.hosts o ON o.lock_key = g.leader_key AND o.id <> h.id
                      WHERE r.host = h.id AND a.pid IS NOT NULL
                        AND EXISTS (SELECT FROM pg_stat_get_activity(o.backend_pid))),
                CASE WHEN h.troubled_at > clock_timestamp() - interval '1 minute' THEN h.trouble END
         FROM event_host.hosts h
         LEFT JOIN pg_stat_get_activity(NULL) a
           ON a.pid = h.backend_pid
          AND coalesce(a.backend_start = h.backend_start,
                       h.seen_at > clock_timestamp() - interval '1 minute')
         WHERE a.pid IS NOT NULL
            OR h.trouble IS NOT NULL AND h.troubled_at > clock_timestamp() - interval '1 minute'
         ORDER BY h.hostname, h.pid",
    )
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let names: Vec<String> = row.try_get_unchecked(4)?;
            // One that is no name is another host's, of another version.
            let standing_by: BTreeSet<GroupName> =
                names.iter().filter_map(|name| stored::group_name(name).ok()).collect();
            Ok(HostStatus {
                host: HostIdentity {
                    id: row.try_get_unchecked(0)?,
                    hostname: row.try_get_unchecked(1)?,
                    pid: count(row, 2)?,
                },
                seen_at: time(row, 3)?,
                standing_by: standing_by.into_iter().collect(),
                trouble: row.try_get_unchecked(5)?,
            })
        })
        .collect()
}
