//! Components that are deployed, and the versions of handlers.
//!
//! Whoever adds a version of a handler or changes one's state locks its version
//! 1 first, which is never removed, so that of two at once the second finds what
//! the first has done. The component comes before that lock: it takes a while,
//! and whoever waits for the same component holds nothing that others wait for.

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Connection, Executor, PgConnection, Row};

use super::PostgresStore;
use super::columns::{kept, time};
use super::connection::{DEADLINE, LONG_DEADLINE};
use super::error::PostgresError;
use super::on_shared::{on_shared, on_shared_patiently};
use super::piece::LONG_STATEMENT;
use super::watch::on_watch;
use event_host_core::digest::Digest;
use event_host_core::event::{HandlerName, Tenant};
use event_host_store::driver::intact;
use event_host_store::driver::prefix::after_prefix;
use event_host_store::driver::unreadable::Sifted;
use event_host_store::driver::{refusals, stored};
use event_host_store::{
    Deployed, Deployment, Deployments, NewVersion, StoreError, Version, VersionNumber, VersionState,
};

#[async_trait]
impl Deployments for PostgresStore {
    async fn deploy(&self, new: NewVersion<'_>) -> Result<Deployment, StoreError> {
        let digest = Digest::of(new.component);
        on_shared_patiently!(self.connections, "deploy a component", LONG_DEADLINE, |c| {
            deploy(c, new, &digest)
        })
    }

    async fn rollback(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
        from: Option<VersionNumber>,
    ) -> Result<Version, StoreError> {
        on_shared_patiently!(self.connections, "roll a handler back", DEADLINE, |c| {
            rollback(c, tenant, handler, from)
        })
    }

    async fn versions(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
    ) -> Result<Vec<Version>, StoreError> {
        on_shared!(self.connections, "list the versions of a handler", |c| {
            versions(c, tenant, handler)
        })
    }

    async fn deployed(&self) -> Result<Vec<Deployed>, StoreError> {
        let read = on_watch!(self, "see what is deployed", |c, _watch| deployed(c))?;
        Ok(self.said.tell("deployments", read))
    }

    async fn component(&self, tenant: &Tenant, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        let bytes = on_shared!(self.connections, "read a component", LONG_DEADLINE, |c| {
            component(c, tenant, digest)
        })?;
        intact(digest, bytes).await
    }

    async fn digests(
        &self,
        tenant: &Tenant,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Digest>, StoreError> {
        on_shared!(self.connections, "look for components", |c| {
            digests(c, tenant, prefix, limit)
        })
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT d.version, d.digest, c.size, d.deployed_at, d.deployed_by, d.state
             FROM event_host.deployments d
             JOIN event_host.components c ON c.digest = d.digest
             WHERE d.tenant = $1 AND d.handler = $2 ",
            $rest
        )
    };
}

fn read(row: &PgRow) -> Result<Version, PostgresError> {
    Ok(Version {
        version: VersionNumber(row.try_get_unchecked(0)?),
        digest: stored::digest(row.try_get_unchecked(1)?)?,
        bytes: stored::size(row.try_get_unchecked(2)?)?,
        deployed_at: time(row, 3)?,
        deployed_by: row.try_get_unchecked(4)?,
        state: stored::version_state(row.try_get_unchecked(5)?)?,
    })
}

pub(super) async fn deploy(
    connection: &mut PgConnection,
    new: NewVersion<'_>,
    digest: &Digest,
) -> Result<Deployment, PostgresError> {
    let NewVersion { tenant, handler, component, .. } = new;
    let mut transaction = connection.begin().await?;
    transaction.execute(LONG_STATEMENT).await?;
    keep(&mut transaction, digest, component).await?;
    if !lock(&mut transaction, tenant, handler).await? {
        if add(&mut transaction, new, digest).await? {
            let version = active(&mut transaction, tenant, handler).await?;
            transaction.commit().await?;
            return Ok(Deployment::Activated(version));
        }
        // Somebody else's first version came before this one, so it is there now.
        lock(&mut transaction, tenant, handler).await?;
    }
    let current = active(&mut transaction, tenant, handler).await?;
    if current.digest == *digest {
        transaction.commit().await?;
        return Ok(Deployment::WasActive(current));
    }
    set_state(&mut transaction, new.tenant, handler, current.version, VersionState::Previous)
        .await?;
    add(&mut transaction, new, digest).await?;
    let version = active(&mut transaction, tenant, handler).await?;
    transaction.commit().await?;
    Ok(Deployment::Activated(version))
}

/// Puts a component there, and puts one right that was damaged.
async fn keep(
    connection: &mut PgConnection,
    digest: &Digest,
    component: &[u8],
) -> Result<(), PostgresError> {
    sqlx::query(
        "INSERT INTO event_host.components AS c (digest, size, bytes)
         VALUES ($1, octet_length($2), $2)
         ON CONFLICT (digest) DO UPDATE SET size = excluded.size, bytes = excluded.bytes
         WHERE c.bytes <> excluded.bytes",
    )
    .bind(digest.as_str())
    .bind(component)
    .execute(connection)
    .await?;
    Ok(())
}

/// Waits for the turn to change a handler's versions. False if it has none yet.
async fn lock(
    connection: &mut PgConnection,
    tenant: &Tenant,
    handler: &HandlerName,
) -> Result<bool, PostgresError> {
    let locked = sqlx::query(
        "SELECT FROM event_host.deployments
         WHERE tenant = $1 AND handler = $2 AND version = 1 FOR UPDATE",
    )
    .bind(tenant.as_str())
    .bind(handler.as_str())
    .fetch_optional(connection)
    .await?;
    Ok(locked.is_some())
}

/// Adds a version that is active. False if another came first, which whoever has
/// locked the handler's first version need not fear.
async fn add(
    connection: &mut PgConnection,
    new: NewVersion<'_>,
    digest: &Digest,
) -> Result<bool, PostgresError> {
    let done = sqlx::query(
        "INSERT INTO event_host.deployments (tenant, handler, version, digest, deployed_by, state)
         SELECT $1, $2, coalesce(max(version), 0) + 1, $3, $4, 'active'
         FROM event_host.deployments WHERE tenant = $1 AND handler = $2
         ON CONFLICT DO NOTHING",
    )
    .bind(new.tenant.as_str())
    .bind(new.handler.as_str())
    .bind(digest.as_str())
    .bind(kept(new.deployed_by))
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// The active version of a handler that has versions.
async fn active(
    connection: &mut PgConnection,
    tenant: &Tenant,
    handler: &HandlerName,
) -> Result<Version, PostgresError> {
    let row = sqlx::query(select!("AND d.state = 'active'"))
        .bind(tenant.as_str())
        .bind(handler.as_str())
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| {
            StoreError::Unusable(format!("handler `{handler}` has versions and none is active"))
        })?;
    read(&row)
}

async fn set_state(
    connection: &mut PgConnection,
    tenant: &Tenant,
    handler: &HandlerName,
    version: VersionNumber,
    state: VersionState,
) -> Result<(), PostgresError> {
    sqlx::query(
        "UPDATE event_host.deployments SET state = $4
         WHERE tenant = $1 AND handler = $2 AND version = $3",
    )
    .bind(tenant.as_str())
    .bind(handler.as_str())
    .bind(version.0)
    .bind(state.as_str())
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn rollback(
    connection: &mut PgConnection,
    tenant: &Tenant,
    handler: &HandlerName,
    from: Option<VersionNumber>,
) -> Result<Version, PostgresError> {
    let mut transaction = connection.begin().await?;
    if !lock(&mut transaction, tenant, handler).await? {
        return Err(refusals::nothing_deployed(handler).into());
    }
    let current = active(&mut transaction, tenant, handler).await?.version;
    if let Some(from) = from
        && from != current
    {
        return Err(refusals::other_version_active(handler, from, current).into());
    }
    let before: Option<i64> = sqlx::query_scalar(
        "SELECT max(version) FROM event_host.deployments
         WHERE tenant = $1 AND handler = $2 AND state = 'previous'",
    )
    .bind(tenant.as_str())
    .bind(handler.as_str())
    .fetch_one(&mut *transaction)
    .await?;
    let before = before.ok_or_else(|| refusals::no_version_before(handler, current))?;
    // One after the other: at no time are two of them active.
    set_state(&mut transaction, tenant, handler, current, VersionState::RolledBack).await?;
    set_state(&mut transaction, tenant, handler, VersionNumber(before), VersionState::Active)
        .await?;
    let version = active(&mut transaction, tenant, handler).await?;
    transaction.commit().await?;
    Ok(version)
}

pub(super) async fn versions(
    connection: &mut PgConnection,
    tenant: &Tenant,
    handler: &HandlerName,
) -> Result<Vec<Version>, PostgresError> {
    let rows = sqlx::query(select!("ORDER BY d.version DESC"))
        .bind(tenant.as_str())
        .bind(handler.as_str())
        .fetch_all(connection)
        .await?;
    rows.iter().map(read).collect()
}

/// From the index alone, as long as the table is vacuumed.
pub(super) async fn deployed(
    connection: &mut PgConnection,
) -> Result<Sifted<Deployed>, PostgresError> {
    let rows = sqlx::query(
        "SELECT tenant, handler, version, digest FROM event_host.deployments
         WHERE state = 'active' ORDER BY tenant, handler",
    )
    .fetch_all(connection)
    .await?;
    let whose = |row: &PgRow| {
        stored::deployment_of(row.try_get_unchecked(0).ok(), row.try_get_unchecked(1).ok())
    };
    Ok(Sifted::of(rows.iter().map(|row| (whose(row), read_deployed(row)))))
}

fn read_deployed(row: &PgRow) -> Result<Deployed, PostgresError> {
    Ok(Deployed {
        tenant: stored::tenant(row.try_get_unchecked(0)?)?,
        handler: stored::handler_name(row.try_get_unchecked(1)?)?,
        version: VersionNumber(row.try_get_unchecked(2)?),
        digest: stored::digest(row.try_get_unchecked(3)?)?,
    })
}

pub(super) async fn digests(
    connection: &mut PgConnection,
    tenant: &Tenant,
    prefix: &str,
    limit: usize,
) -> Result<Vec<Digest>, PostgresError> {
    let rows = sqlx::query(
        "SELECT DISTINCT digest FROM event_host.deployments
         WHERE tenant = $1 AND digest >= $2 AND ($3::text IS NULL OR digest < $3)
         ORDER BY digest LIMIT $4",
    )
    .bind(tenant.as_str())
    .bind(prefix)
    .bind(after_prefix(prefix))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| Ok(stored::digest(row.try_get_unchecked(0)?)?)).collect()
}

/// What is stored, which may be damaged.
pub(super) async fn component(
    connection: &mut PgConnection,
    tenant: &Tenant,
    digest: &Digest,
) -> Result<Vec<u8>, PostgresError> {
    let mut transaction = connection.begin().await?;
    transaction.execute(LONG_STATEMENT).await?;
    let bytes: Option<Vec<u8>> = sqlx::query_scalar(
        "SELECT c.bytes FROM event_host.components c
         WHERE c.digest = $2 AND EXISTS (
             SELECT FROM event_host.deployments d WHERE d.tenant = $1 AND d.digest = c.digest)",
    )
    .bind(tenant.as_str())
    .bind(digest.as_str())
    .fetch_optional(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(bytes.ok_or_else(|| refusals::no_component(digest))?)
}
