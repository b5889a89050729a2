//! Who runs what: says it of this host, and finds it of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sqlx::Row;

use super::HostSession;
use crate::error::PostgresError;
use event_host_core::event::GroupName;
use event_host_store::driver::stored;
use event_host_store::{Roster, Runners};

/// A host whose last heartbeat is older than this, in seconds, takes no share of any
/// groups.
const NO_SHARE_AFTER: f64 = 3.0;

/// What tells whether a roster is as it was.
#[derive(PartialEq)]
pub(super) struct Seen {
    version: i64,
    hosts: Vec<SeenHost>,
}

/// Another host.
#[derive(PartialEq)]
struct SeenHost {
    id: String,
    key: i64,
    /// Its session's process is there.
    is_there: bool,
    /// And it shows itself.
    lives: bool,
}

impl HostSession {
    pub(super) async fn say_what_it_runs(
        &mut self,
        groups: &[GroupName],
    ) -> Result<(), PostgresError> {
        let groups: BTreeSet<GroupName> = groups.iter().cloned().collect();
        let gone: Vec<&str> = self.announced.difference(&groups).map(GroupName::as_str).collect();
        if !gone.is_empty() {
            sqlx::query(
                "DELETE FROM event_host.host_groups r USING unnest($2::text[]) n (name)
                 WHERE r.host = $1 AND r.group_name = n.name",
            )
            .bind(&self.host.id)
            .bind(&gone)
            .execute(&mut self.connection)
            .await?;
        }
        let new: Vec<&str> = groups.difference(&self.announced).map(GroupName::as_str).collect();
        if !new.is_empty() {
            sqlx::query(
                "INSERT INTO event_host.host_groups (host, group_name)
                 SELECT $1, name FROM unnest($2::text[]) n (name) ON CONFLICT DO NOTHING",
            )
            .bind(&self.host.id)
            .bind(&new)
            .execute(&mut self.connection)
            .await?;
        }
        self.announced = groups;
        Ok(())
    }

    /// A host is there while its session is, and shows itself. One that is silent has
    /// no share any more, long before its groups can be taken from it: the others are
    /// to be ready for them.
    async fn look(&mut self) -> Result<Seen, PostgresError> {
        let rows = sqlx::query(
            "SELECT v.version, h.id, h.lock_key, h.is_there,
                    h.is_there AND h.seen_at > clock_timestamp() - make_interval(secs => $2)
             FROM event_host.control_version v
             LEFT JOIN LATERAL (
                 SELECT h.id, h.lock_key, h.seen_at,
                        EXISTS (SELECT FROM pg_stat_get_activity(h.backend_pid) a
                                WHERE coalesce(a.backend_start = h.backend_start, true)) AS is_there
                 FROM event_host.hosts h WHERE h.id <> $1 AND h.lock_key IS NOT NULL) h ON true
             ORDER BY h.id",
        )
        .bind(&self.host.id)
        .bind(NO_SHARE_AFTER)
        .fetch_all(&mut self.connection)
        .await?;
        let mut seen = Seen { version: 0, hosts: Vec::with_capacity(rows.len()) };
        for row in &rows {
            seen.version = row.try_get_unchecked(0)?;
            if let Some(id) = row.try_get_unchecked(1)? {
                seen.hosts.push(SeenHost {
                    id,
                    key: row.try_get_unchecked(2)?,
                    is_there: row.try_get_unchecked(3)?,
                    lives: row.try_get_unchecked(4)?,
                });
            }
        }
        Ok(seen)
    }

    pub(super) async fn read_roster(&mut self) -> Result<Option<Roster>, PostgresError> {
        let seen = self.look().await?;
        if self.told.as_ref() == Some(&seen) {
            return Ok(None);
        }
        let live: Vec<&str> =
            seen.hosts.iter().filter(|host| host.lives).map(|host| &*host.id).collect();
        let gone: Vec<i64> =
            seen.hosts.iter().filter(|host| !host.is_there).map(|host| host.key).collect();
        let rows = sqlx::query(
            "SELECT m.group_name, CASE WHEN h.id = $1 OR h.id = ANY ($2) THEN h.id END,
                    h.id IS NULL OR h.lock_key = ANY ($3),
                    ARRAY(SELECT r.host FROM event_host.host_groups r
                          WHERE r.group_name = m.group_name AND r.host = ANY ($2)
                          ORDER BY r.host)
             FROM event_host.host_groups m
             JOIN event_host.consumer_groups g ON g.name = m.group_name
             LEFT JOIN event_host.hosts h ON h.lock_key = g.leader_key
             WHERE m.host = $1 ORDER BY m.group_name",
        )
        .bind(&self.host.id)
        .bind(&live)
        .bind(&gone)
        .fetch_all(&mut self.connection)
        .await?;
        let mut roster = Roster { groups: Vec::with_capacity(rows.len()) };
        // Nearly all groups are run by the same hosts.
        let mut others: BTreeMap<Vec<String>, Arc<[String]>> = BTreeMap::new();
        for row in &rows {
            let run_by: Vec<String> = row.try_get_unchecked(3)?;
            let run_by = others.entry(run_by).or_insert_with_key(|hosts| hosts.clone().into());
            roster.groups.push(Runners {
                group: stored::group_name(row.try_get_unchecked(0)?)?,
                others: Arc::clone(run_by),
                leader: row.try_get_unchecked(1)?,
                is_free: row.try_get_unchecked(2)?,
            });
        }
        self.told = Some(seen);
        Ok(Some(roster))
    }
}
