//! Who leads a group: the session that a host keeps for that alone.
//!
//! The session draws a key that no other ever has, takes the advisory lock of it, and
//! writes it down in the row of its host. The server holds the lock for as long as the
//! session lives and not an instant longer, and the session never gives it back. So the
//! session is over for ever once its lock is free, or somebody else's, and then whatever
//! it led may be claimed. Who leads a group stands in the group's row, with that key: a
//! host needs one lock, however many groups it leads.
//!
//! The session proves with each heartbeat that it is still the same, and that its host's
//! row names its key; and the server is asked to end the session of a host that is gone
//! (see `connection`). Where it cannot know, because a process is frozen or a network
//! swallows what is sent, the heartbeats of `hosts` stop, and whoever stands by for one of
//! its groups ends that session, or takes its key from the row (`contest_hosts` in the
//! schema). So does whoever stands by where somebody else holds the lock: anybody may take
//! it who may log in, and it keeps nobody from leading.

mod claims;
mod contest;
mod duties;
mod opening;
mod roster;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{Connection, Executor, PgConnection, Row};

#[cfg(test)]
pub(super) use claims::OVER;
use contest::HolderKey;
use roster::Seen;

use super::connection::{Connections, DEADLINE};
use super::error::PostgresError;
use super::{guards, pooler};
use event_host_core::event::GroupName;
use event_host_store::{Claim, Duty, HostIdentity, LockSession, Release, Roster, StoreError};

/// The session by which a host leads.
pub(super) struct HostSession {
    connections: Arc<Connections>,
    connection: PgConnection,
    host: HostIdentity,
    /// The server's process for this session, and a value that only this session
    /// has: behind a pooler both may turn out to be another's.
    backend: i32,
    token: String,
    /// Of its lock.
    key: i64,
    /// What it said that it leads or would lead.
    announced: BTreeSet<GroupName>,
    /// As of which the roster was told last.
    told: Option<Seen>,
    /// The holders of locks of which was said what was done about them.
    said: BTreeSet<HolderKey>,
}

impl HostSession {
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
                opening::is_the_same_database(&connections, &mut connection).await?;
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
            opening::leads_to_what_is_read(&connections, &mut connection).await?;
            let key = opening::own_lock(&mut connection).await?;
            opening::write_down(&mut connection, host, key).await?;
            Ok::<_, PostgresError>(Self {
                connections: Arc::clone(&connections),
                connection,
                host: host.clone(),
                backend,
                token,
                key,
                announced: BTreeSet::new(),
                told: None,
                said: BTreeSet::new(),
            })
        };
        connections.within("open the session for the locks", DEADLINE, opening).await
    }

    async fn beat(&mut self, stands_by: bool) -> Result<(), PostgresError> {
        let row = sqlx::query(
            "UPDATE event_host.hosts SET seen_at = clock_timestamp()
             WHERE id = $1 AND lock_key = $2
             RETURNING pg_backend_pid(), current_setting('event_host.session', true)",
        )
        .bind(&self.host.id)
        .bind(self.key)
        .fetch_optional(&mut self.connection)
        .await?;
        let row = row.ok_or_else(is_over)?;
        let backend: i32 = row.try_get_unchecked(0)?;
        let token: Option<String> = row.try_get_unchecked(1)?;
        if backend != self.backend || token.as_deref() != Some(&*self.token) {
            return Err(pooler::locks_change_hands().into());
        }
        if stands_by {
            return self.contest().await;
        }
        self.said.clear();
        Ok(())
    }
}

/// The session is over, whatever the server knows of it.
fn is_over() -> PostgresError {
    StoreError::Unavailable(
        "the row of this host in event_host.hosts is gone, or names another session".to_owned(),
    )
    .into()
}

#[async_trait]
impl LockSession for HostSession {
    async fn claim(&mut self, groups: &[GroupName]) -> Result<Vec<Claim>, StoreError> {
        let connections = Arc::clone(&self.connections);
        connections.within("claim groups", DEADLINE, self.claim_all(groups)).await
    }

    async fn release(&mut self, groups: &[Release]) -> Result<Vec<GroupName>, StoreError> {
        let connections = Arc::clone(&self.connections);
        connections.within("give groups back", DEADLINE, self.release_all(groups)).await
    }

    async fn claim_duty(&mut self, duty: Duty) -> Result<bool, StoreError> {
        let connections = Arc::clone(&self.connections);
        connections.within("claim a duty", DEADLINE, self.claim_a_duty(duty)).await
    }

    async fn release_duty(&mut self, duty: Duty) -> Result<(), StoreError> {
        let connections = Arc::clone(&self.connections);
        connections.within("give a duty back", DEADLINE, self.release_a_duty(duty)).await
    }

    async fn heartbeat(&mut self, stands_by: bool) -> Result<(), StoreError> {
        let connections = Arc::clone(&self.connections);
        connections.within("prove the lock", DEADLINE, self.beat(stands_by)).await
    }

    async fn announce(&mut self, groups: &[GroupName]) -> Result<(), StoreError> {
        let connections = Arc::clone(&self.connections);
        let saying = self.say_what_it_runs(groups);
        connections.within("say what this host runs", DEADLINE, saying).await
    }

    async fn roster(&mut self) -> Result<Option<Roster>, StoreError> {
        let connections = Arc::clone(&self.connections);
        connections.within("find the other hosts", DEADLINE, self.read_roster()).await
    }
}
