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
//!
//! And anybody may take them who may log in, so they keep nobody from leading: a host
//! that stands by looks with each heartbeat who holds what it waits for, and where that
//! is no live host it has the group's lock replaced (`contest_locks` in the schema).

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection, Executor, PgConnection, Row};
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

use super::connection::{Connections, DEADLINE};
use super::error::PostgresError;
use super::incarnation::{self, Known};
use super::keys::HeldKeys;
use super::{guards, pooler};
use event_host_core::event::GroupName;
use event_host_store::driver::lock_key::LockKey;
use event_host_store::driver::stored;
use event_host_store::{HostIdentity, LockSession, StoreError};

/// A leader whose last heartbeat is older than this, in seconds, has stepped
/// down by itself if it can still do anything: its session may be ended.
const SILENT_AFTER: f64 = 7.0;

/// A host whose last heartbeat is older than this, in seconds, takes no share of any
/// group's partitions.
const NO_SHARE_AFTER: f64 = 3.0;

/// How long the row of a host that is gone is kept, in seconds.
const FORGOTTEN_AFTER: f64 = 3_600.0;

/// How long a session waits until whoever reads the log has found the server on which
/// it is.
const FINDS_OUT_WITHIN: Duration = Duration::from_secs(2);

/// The session that holds a host's locks.
pub(super) struct AdvisoryLocks {
    connections: Arc<Connections>,
    connection: PgConnection,
    host: HostIdentity,
    /// The server's process for this session, and a value that only this session
    /// has: behind a pooler both may turn out to be another's.
    backend: i32,
    token: String,
    /// What it holds, and what the store has to know of that.
    held: BTreeMap<GroupName, LockKey>,
    keys: Arc<HeldKeys>,
    /// The keys of groups that it does not hold, as they were last read.
    known: BTreeMap<GroupName, LockKey>,
    /// The holders of locks of which was said what was done about them.
    said: BTreeSet<(Option<i32>, Option<String>, bool)>,
}

impl Drop for AdvisoryLocks {
    fn drop(&mut self) {
        for group in self.held.keys() {
            self.keys.give_back(&self.host.id, &self.token, group);
        }
    }
}

impl AdvisoryLocks {
    pub(super) async fn begin(
        connections: Arc<Connections>,
        keys: Arc<HeldKeys>,
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
            leads_to_what_is_read(&connections, &mut connection).await?;
            announce(&mut connection, host).await?;
            Ok::<_, PostgresError>(Self {
                connections: Arc::clone(&connections),
                connection,
                host: host.clone(),
                backend,
                token,
                held: BTreeMap::new(),
                keys,
                known: BTreeMap::new(),
                said: BTreeSet::new(),
            })
        };
        connections.within("open the session for the locks", DEADLINE, opening).await
    }

    async fn beat(&mut self, standing_by: &[GroupName]) -> Result<(), PostgresError> {
        if let Some(group) = self.keys.held_in_vain(&self.host.id) {
            return Err(StoreError::Unavailable(format!(
                "group `{group}` has another lock than the one that this session holds"
            ))
            .into());
        }
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
        if standing_by.is_empty() {
            self.said.clear();
            return Ok(());
        }
        self.contest(&names).await?;
        self.read_keys(&names).await
    }

    /// Sees to it that these groups, which others lead, are led by hosts that live.
    async fn contest(&mut self, groups: &[&str]) -> Result<(), PostgresError> {
        let rows = sqlx::query(
            "SELECT group_name, pid, prepared, application, username,
                    hostname, host_pid, silent_seconds, ended, replaced
             FROM event_host.contest_locks($1, $2)",
        )
        .bind(groups)
        .bind(SILENT_AFTER)
        .fetch_all(&mut self.connection)
        .await?;
        let mut held = BTreeMap::<_, Holder>::new();
        for row in &rows {
            let holder = Holder::read(row)?;
            held.entry(holder.key()).or_insert(holder).groups += 1;
        }
        self.said.retain(|said| held.contains_key(said));
        for (key, holder) in held {
            if self.said.insert(key) {
                holder.tell();
            }
        }
        Ok(())
    }

    /// Reads the keys of groups. One that is not made yet has the key that it is made
    /// with.
    async fn read_keys(&mut self, groups: &[&str]) -> Result<(), PostgresError> {
        let rows = sqlx::query(
            "SELECT g.name, g.lock_key FROM unnest($1::text[]) AS n (name)
             JOIN event_host.consumer_groups g ON g.name = n.name",
        )
        .bind(groups)
        .fetch_all(&mut self.connection)
        .await?;
        for row in &rows {
            let name = stored::group_name(row.try_get_unchecked(0)?)?;
            self.known.insert(name, LockKey(row.try_get_unchecked(1)?));
        }
        Ok(())
    }

    /// A host is there while its session is, and shows itself. One that is silent has
    /// no share any more, long before its locks can be taken from it: the others are
    /// to be ready for them.
    async fn find_sharers(
        &mut self,
        groups: &[GroupName],
    ) -> Result<Vec<Vec<String>>, PostgresError> {
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

    async fn take(&mut self, groups: &[GroupName]) -> Result<Vec<bool>, PostgresError> {
        let wanted: Vec<&GroupName> =
            groups.iter().filter(|group| !self.held.contains_key(*group)).collect();
        let unknown = wanted.iter().filter(|group| !self.known.contains_key(**group));
        let unknown: Vec<&str> = unknown.map(|group| group.as_str()).collect();
        if !unknown.is_empty() {
            self.read_keys(&unknown).await?;
        }
        if !wanted.is_empty() {
            let key = |group| self.known.get(group).copied().unwrap_or_else(|| LockKey::of(group));
            let keys: Vec<i64> = wanted.iter().map(|group| key(*group).0).collect();
            // Called once for each row and nowhere else: no condition and no
            // limit that could drop a row whose lock was taken.
            let rows = sqlx::query(
                "SELECT pg_try_advisory_lock(key)
                 FROM unnest($1::bigint[]) WITH ORDINALITY AS k (key, place) ORDER BY place",
            )
            .bind(&keys)
            .fetch_all(&mut self.connection)
            .await?;
            for ((group, key), row) in wanted.into_iter().zip(keys).zip(&rows) {
                if row.try_get_unchecked(0)? {
                    let key = LockKey(key);
                    self.keys.take(&self.host.id, &self.token, group, key);
                    self.held.insert(group.clone(), key);
                    // By the next time it may be another one.
                    self.known.remove(group);
                }
            }
        }
        Ok(groups.iter().map(|group| self.held.contains_key(group)).collect())
    }

    async fn give_back(&mut self, group: &GroupName) -> Result<(), PostgresError> {
        let Some(key) = self.held.remove(group) else { return Ok(()) };
        self.keys.give_back(&self.host.id, &self.token, group);
        let was_held: bool = sqlx::query_scalar("SELECT pg_advisory_unlock($1)")
            .bind(key.0)
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

/// Whoever holds locks of groups and is no live host.
struct Holder {
    /// One of the groups, and how many they are.
    group: String,
    groups: usize,
    process: Option<i32>,
    prepared: Option<String>,
    application: String,
    user: String,
    /// The host that it was: its machine, its process, and for how many seconds it has
    /// been silent.
    host: Option<(String, i64, f64)>,
    ended: bool,
    replaced: bool,
}

impl Holder {
    fn read(row: &PgRow) -> Result<Self, PostgresError> {
        let hostname: Option<String> = row.try_get_unchecked(5)?;
        let host = match hostname {
            Some(hostname) => {
                Some((hostname, row.try_get_unchecked(6)?, row.try_get_unchecked(7)?))
            }
            None => None,
        };
        Ok(Self {
            group: row.try_get_unchecked(0)?,
            groups: 0,
            process: row.try_get_unchecked(1)?,
            prepared: row.try_get_unchecked(2)?,
            application: row.try_get_unchecked(3)?,
            user: row.try_get_unchecked(4)?,
            host,
            ended: row.try_get_unchecked(8)?,
            replaced: row.try_get_unchecked(9)?,
        })
    }

    /// By which it is told from others, and from itself once something else was done
    /// about it.
    fn key(&self) -> (Option<i32>, Option<String>, bool) {
        (self.process, self.prepared.clone(), self.ended || self.replaced)
    }

    fn tell(self) {
        let Self { group, groups, process, prepared, application, user, .. } = self;
        let done = match (self.ended, self.replaced) {
            (true, _) => "its session was ended",
            (false, true) => {
                "this role may not end its session, so the groups have other locks now; if hosts connect as several roles, grant them each other or pg_signal_backend"
            }
            (false, false) => {
                "this role may not end its session, and the rows of the groups are locked, too: end it as a superuser with pg_terminate_backend"
            }
        };
        match self.host {
            Some((hostname, pid, silent_seconds)) if self.ended => warn!(
                hostname,
                pid,
                backend = process,
                silent_seconds,
                group,
                groups,
                "ended the lock session of a host that has been silent for too long"
            ),
            Some((hostname, pid, silent_seconds)) => warn!(
                hostname,
                pid,
                backend = process,
                silent_seconds,
                user,
                group,
                groups,
                "a host that has been silent for too long holds the locks of groups: {done}"
            ),
            None => warn!(
                process,
                prepared,
                application,
                user,
                group,
                groups,
                "somebody who is no host holds the locks of groups: {done}"
            ),
        }
    }
}

/// Writes down which session holds this host's locks.
async fn announce(connection: &mut PgConnection, host: &HostIdentity) -> Result<(), PostgresError> {
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

/// Refuses locks on another server than the log is read from, as there may be for a
/// moment when one takes the place of another: there they would keep nobody away. Who
/// reads it may only have to find out, and connects again to do so.
async fn leads_to_what_is_read(
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
async fn is_the_same_database(
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
