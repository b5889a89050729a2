//! Who leads a group: session-level advisory locks, on one connection that a
//! host keeps for them alone.
//!
//! The server holds the locks for as long as the session lives and not an
//! instant longer. So the session proves, with each heartbeat, that it is still
//! the same; and the server is asked to end the session of a host that is gone
//! (see `connection`). Where it cannot know, because a process is frozen or a
//! network swallows what is sent, the heartbeats of `hosts` stop, and whoever
//! stands by for one of its groups ends that session.
//!
//! Advisory locks nest, so what is held is never asked for again, and only what
//! is held is given back.

use std::collections::BTreeSet;

use async_trait::async_trait;
use sqlx::{Connection, Executor, PgConnection, Row};
use std::sync::Arc;
use tracing::warn;

use super::connection::{Connections, DEADLINE};
use super::error::Broken;
use super::{guards, pooler};
use crate::event::GroupName;
use crate::store::lock_key::LockKey;
use crate::store::{HostIdentity, LockSession, StoreError};

/// A leader whose last heartbeat is older than this, in seconds, has stepped
/// down by itself if it can still do anything: its session may be ended.
const SILENT_AFTER: f64 = 7.0;

/// A host whose last heartbeat is older than this, in seconds, takes no share of any
/// group's partitions.
const NO_SHARE_AFTER: f64 = 3.0;

/// How long the row of a host that is gone is kept, in seconds.
const FORGOTTEN_AFTER: f64 = 3_600.0;

/// The session that holds a host's locks.
pub(super) struct AdvisoryLocks {
    connections: Arc<Connections>,
    connection: PgConnection,
    host: HostIdentity,
    /// The server's process for this session, and a value that only this session
    /// has: behind a pooler both may turn out to be another's.
    backend: i32,
    token: String,
    held: BTreeSet<GroupName>,
    /// The server's processes that this role may not end, as was said.
    out_of_reach: BTreeSet<i32>,
}

impl AdvisoryLocks {
    pub(super) async fn begin(
        connections: Arc<Connections>,
        host: &HostIdentity,
    ) -> Result<Self, StoreError> {
        let opening = async {
            let mut connection = connections.connect_directly().await?;
            let token = uuid::Uuid::new_v4().to_string();
            connection
                .execute(
                    sqlx::query("SELECT set_config('event_host.session', $1, false)").bind(&token),
                )
                .await?;
            let backend: i32 =
                sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await?;
            let is_shared = if connections.through_a_pooler() {
                let mut other = connections.connect_directly().await?;
                let is_shared = pooler::by_the_transaction(&mut connection, &mut other).await?;
                // A goodbye is a courtesy: the server notices without it.
                let _ = other.close().await;
                is_the_same_database(&connections, &mut connection).await?;
                is_shared
            } else {
                let mut other = connections.shared().await?;
                let probed = pooler::by_the_transaction(&mut connection, other.connection()).await;
                other.give_back(probed).await?
            };
            if is_shared {
                return Err(pooler::locks_change_hands().into());
            }
            guards::check(&mut connection, &connections.direct_server()).await?;
            announce(&mut connection, host).await?;
            Ok::<_, Broken>(Self {
                connections: Arc::clone(&connections),
                connection,
                host: host.clone(),
                backend,
                token,
                held: BTreeSet::new(),
                out_of_reach: BTreeSet::new(),
            })
        };
        connections.within("open the session for the locks", DEADLINE, opening).await
    }

    async fn beat(&mut self, standing_by: &[GroupName]) -> Result<(), Broken> {
        let names: Vec<&str> = standing_by.iter().map(GroupName::as_str).collect();
        let row = sqlx::query(
            "UPDATE event_host.hosts SET seen_at = clock_timestamp(), standing_by = $2
             WHERE id = $1
             RETURNING pg_backend_pid(), current_setting('event_host.session', true)",
        )
        .bind(&self.host.id)
        .bind(&names)
        .fetch_optional(&mut self.connection)
        .await?;
        let Some(row) = row else {
            return Err(StoreError::Unavailable(
                "the row of this host in event_host.hosts is gone".to_owned(),
            )
            .into());
        };
        let backend: i32 = row.try_get_unchecked(0)?;
        let token: Option<String> = row.try_get_unchecked(1)?;
        if backend != self.backend || token.as_deref() != Some(&*self.token) {
            return Err(pooler::locks_change_hands().into());
        }
        if !standing_by.is_empty() {
            self.end_silent_leaders(standing_by).await?;
        }
        Ok(())
    }

    /// Ends the sessions of hosts that hold the lock of one of these groups and
    /// have been silent for longer than they may be. Of one that this role may
    /// not end it says so once: to try would be an error, which would cost this
    /// host what it leads.
    async fn end_silent_leaders(&mut self, groups: &[GroupName]) -> Result<(), Broken> {
        let keys: Vec<i64> = groups.iter().map(|group| LockKey::of(group).0).collect();
        let rows = sqlx::query(
            "SELECT h.hostname, h.pid, h.backend_pid,
                    extract(epoch FROM clock_timestamp() - h.seen_at)::float8,
                    CASE WHEN (me.rolsuper OR NOT theirs.rolsuper)
                          AND (pg_has_role(theirs.oid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE'))
                         THEN pg_terminate_backend(h.backend_pid) END
             FROM event_host.hosts h
             JOIN pg_stat_get_activity(NULL) a
               ON a.pid = h.backend_pid AND a.backend_start = h.backend_start
             JOIN pg_roles theirs ON theirs.oid = a.usesysid
             JOIN pg_roles me ON me.rolname = current_user
             WHERE h.seen_at < clock_timestamp() - make_interval(secs => $2)
               AND h.backend_pid IN (
                   SELECT pid FROM pg_lock_status()
                   WHERE locktype = 'advisory' AND objsubid = 1 AND granted
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                     AND (classid::bigint << 32) | objid::bigint = ANY ($1))",
        )
        .bind(&keys)
        .bind(SILENT_AFTER)
        .fetch_all(&mut self.connection)
        .await?;
        for row in &rows {
            let hostname: String = row.try_get_unchecked(0)?;
            let pid: i64 = row.try_get_unchecked(1)?;
            let backend: i32 = row.try_get_unchecked(2)?;
            let silent_seconds: f64 = row.try_get_unchecked(3)?;
            match row.try_get_unchecked::<Option<bool>, _>(4)? {
                Some(true) => warn!(
                    hostname,
                    pid,
                    backend,
                    silent_seconds,
                    "ended the lock session of a host that has been silent for too long"
                ),
                // It ended by itself.
                Some(false) => {}
                None if self.out_of_reach.insert(backend) => warn!(
                    hostname,
                    pid,
                    backend,
                    silent_seconds,
                    "a host that has been silent for too long holds the lock of a group, and this role may not end its session: let all hosts connect as one role, or grant pg_signal_backend"
                ),
                None => {}
            }
        }
        Ok(())
    }

    /// A host is there while its session is, and shows itself. One that is silent has
    /// no share any more, long before its locks can be taken from it: the others are
    /// to be ready for them.
    async fn find_sharers(&mut self, groups: &[GroupName]) -> Result<Vec<Vec<String>>, Broken> {
        let names: Vec<&str> = groups.iter().map(GroupName::as_str).collect();
        sqlx::query(
            "UPDATE event_host.hosts SET shares = $2 WHERE id = $1 AND shares IS DISTINCT FROM $2",
        )
        .bind(&self.host.id)
        .bind(&names)
        .execute(&mut self.connection)
        .await?;
        let rows = sqlx::query(
            "SELECT ARRAY(SELECT h.id FROM event_host.hosts h
                          WHERE h.id <> $1 AND g.name = ANY (h.shares)
                            AND h.seen_at > clock_timestamp() - make_interval(secs => $3)
                            AND EXISTS (
                                SELECT FROM pg_stat_get_activity(h.backend_pid) a
                                WHERE coalesce(a.backend_start = h.backend_start, true)))
             FROM unnest($2::text[]) WITH ORDINALITY AS g (name, place) ORDER BY g.place",
        )
        .bind(&self.host.id)
        .bind(&names)
        .bind(NO_SHARE_AFTER)
        .fetch_all(&mut self.connection)
        .await?;
        rows.iter().map(|row| Ok(row.try_get_unchecked(0)?)).collect()
    }

    async fn take(&mut self, groups: &[GroupName]) -> Result<Vec<bool>, Broken> {
        let wanted: Vec<&GroupName> =
            groups.iter().filter(|group| !self.held.contains(*group)).collect();
        if !wanted.is_empty() {
            let keys: Vec<i64> = wanted.iter().map(|group| LockKey::of(group).0).collect();
            // Called once for each row and nowhere else: no condition and no
            // limit that could drop a row whose lock was taken.
            let rows = sqlx::query(
                "SELECT pg_try_advisory_lock(key)
                 FROM unnest($1::bigint[]) WITH ORDINALITY AS k (key, place) ORDER BY place",
            )
            .bind(&keys)
            .fetch_all(&mut self.connection)
            .await?;
            for (group, row) in wanted.into_iter().zip(&rows) {
                if row.try_get_unchecked(0)? {
                    self.held.insert(group.clone());
                }
            }
        }
        Ok(groups.iter().map(|group| self.held.contains(group)).collect())
    }

    async fn give_back(&mut self, group: &GroupName) -> Result<(), Broken> {
        if !self.held.remove(group) {
            return Ok(());
        }
        let was_held: bool = sqlx::query_scalar("SELECT pg_advisory_unlock($1)")
            .bind(LockKey::of(group).0)
            .fetch_one(&mut self.connection)
            .await?;
        if was_held {
            Ok(())
        } else {
            Err(StoreError::Unavailable(format!(
                "the session does not hold the lock of group `{group}` any more"
            ))
            .into())
        }
    }
}

/// Writes down which session holds this host's locks.
async fn announce(connection: &mut PgConnection, host: &HostIdentity) -> Result<(), Broken> {
    sqlx::query(
        "INSERT INTO event_host.hosts (id, hostname, pid, backend_pid, backend_start)
         SELECT $1, $2, $3, a.pid, a.backend_start FROM pg_stat_get_activity(pg_backend_pid()) a
         ON CONFLICT (id) DO UPDATE
         SET backend_pid = excluded.backend_pid, backend_start = excluded.backend_start,
             seen_at = clock_timestamp(), standing_by = '{}', shares = '{}'",
    )
    .bind(&host.id)
    .bind(&host.hostname)
    .bind(i64::from(host.pid))
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

/// Refuses locks in another database than the one that they are to guard: there
/// they would keep nobody away.
async fn is_the_same_database(
    connections: &Connections,
    connection: &mut PgConnection,
) -> Result<(), Broken> {
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
async fn identity(connection: &mut PgConnection) -> Result<(i64, i64), Broken> {
    let row = sqlx::query(
        "SELECT c.system_identifier, d.oid::bigint
         FROM pg_control_system() c, pg_database d WHERE d.datname = current_database()",
    )
    .fetch_one(connection)
    .await?;
    Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?))
}

#[async_trait]
impl LockSession for AdvisoryLocks {
    async fn try_locks(&mut self, groups: &[GroupName]) -> Result<Vec<bool>, StoreError> {
        let connections = Arc::clone(&self.connections);
        connections.within("ask for locks", DEADLINE, self.take(groups)).await
    }

    async fn unlock(&mut self, group: &GroupName) -> Result<(), StoreError> {
        let connections = Arc::clone(&self.connections);
        connections.within("give a lock back", DEADLINE, self.give_back(group)).await
    }

    async fn heartbeat(&mut self, standing_by: &[GroupName]) -> Result<(), StoreError> {
        let connections = Arc::clone(&self.connections);
        connections.within("prove the locks", DEADLINE, self.beat(standing_by)).await
    }

    async fn sharers(&mut self, groups: &[GroupName]) -> Result<Vec<Vec<String>>, StoreError> {
        let connections = Arc::clone(&self.connections);
        connections.within("find the other hosts", DEADLINE, self.find_sharers(groups)).await
    }
}
