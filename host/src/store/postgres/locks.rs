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
}

impl AdvisoryLocks {
    pub(super) async fn begin(
        connections: Arc<Connections>,
        host: &HostIdentity,
    ) -> Result<Self, StoreError> {
        let server = connections.server();
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
            let mut other = connections.connect_directly().await?;
            is_a_session_of_its_own(&mut connection, &mut other, backend, &token).await?;
            // A goodbye is a courtesy: the server notices without it.
            let _ = other.close().await;
            guards::check(&mut connection, &server).await?;
            announce(&mut connection, host).await?;
            Ok::<_, Broken>(Self {
                connections: Arc::clone(&connections),
                connection,
                host: host.clone(),
                backend,
                token,
                held: BTreeSet::new(),
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
    /// have been silent for longer than they may be.
    async fn end_silent_leaders(&mut self, groups: &[GroupName]) -> Result<(), Broken> {
        let keys: Vec<i64> = groups.iter().map(|group| LockKey::of(group).0).collect();
        let rows = sqlx::query(
            "SELECT h.hostname, h.pid, h.backend_pid,
                    extract(epoch FROM clock_timestamp() - h.seen_at)::float8,
                    pg_terminate_backend(h.backend_pid)
             FROM event_host.hosts h
             JOIN pg_stat_get_activity(NULL) a
               ON a.pid = h.backend_pid AND a.backend_start = h.backend_start
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
            warn!(
                hostname = row.try_get_unchecked::<String, _>(0)?,
                pid = row.try_get_unchecked::<i64, _>(1)?,
                backend = row.try_get_unchecked::<i32, _>(2)?,
                silent_seconds = row.try_get_unchecked::<f64, _>(3)?,
                "ended the lock session of a host that has been silent for too long"
            );
        }
        Ok(())
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
             seen_at = clock_timestamp(), standing_by = '{}'",
    )
    .bind(&host.id)
    .bind(&host.hostname)
    .bind(i64::from(host.pid))
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "DELETE FROM event_host.hosts h
         WHERE h.seen_at < clock_timestamp() - make_interval(secs => $1)
           AND NOT EXISTS (SELECT FROM event_host.consumer_groups g WHERE g.leader = h.id)",
    )
    .bind(FORGOTTEN_AFTER)
    .execute(connection)
    .await?;
    Ok(())
}

/// Refuses a session that a pooler shares out by the transaction. While `other`
/// has a transaction open, such a pooler must serve `connection` with another
/// session than before, or serve `other` with this one.
async fn is_a_session_of_its_own(
    connection: &mut PgConnection,
    other: &mut PgConnection,
    backend: i32,
    token: &str,
) -> Result<(), Broken> {
    let mut transaction = other.begin().await?;
    let theirs: Option<String> =
        sqlx::query_scalar("SELECT current_setting('event_host.session', true)")
            .fetch_one(&mut *transaction)
            .await?;
    let now: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(connection).await?;
    transaction.rollback().await?;
    if theirs.as_deref() == Some(token) || now != backend {
        return Err(pooler::locks_change_hands().into());
    }
    Ok(())
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
}
