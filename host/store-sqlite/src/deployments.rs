//! Components that are deployed, and the versions of handlers.
//!
//! Each change is one immediate transaction, so of two at once the second finds
//! what the first has done.

use async_trait::async_trait;
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection, Row, SqliteConnection};

use super::SqliteStore;
use super::columns::{text, time};
use super::connection::{LONG_DEADLINE, on_reader, on_writer};
use super::error::SqliteError;
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
impl Deployments for SqliteStore {
    async fn deploy(&self, new: NewVersion<'_>) -> Result<Deployment, StoreError> {
        let digest = Digest::of(new.component);
        on_writer!(self.connections, "deploy a component", LONG_DEADLINE, |c| {
            deploy(c, new, &digest)
        })
    }

    async fn rollback(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
        from: Option<VersionNumber>,
    ) -> Result<Version, StoreError> {
        on_writer!(self.connections, "roll a handler back", |c| {
            rollback(c, tenant, handler, from)
        })
    }

    async fn versions(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
    ) -> Result<Vec<Version>, StoreError> {
        on_reader!(self.connections, "list the versions of a handler", |c| {
            versions(c, tenant, handler)
        })
    }

    async fn deployed(&self) -> Result<Vec<Deployed>, StoreError> {
        let read = on_reader!(self.connections, "see what is deployed", |c| deployed(c))?;
        Ok(self.said.tell("deployments", read))
    }

    async fn component(&self, tenant: &Tenant, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        let bytes = on_reader!(self.connections, "read a component", LONG_DEADLINE, |c| {
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
        on_reader!(self.connections, "look for components", |c| {
            digests(c, tenant, prefix, limit)
        })
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT d.version, d.digest, c.size, d.deployed_at, d.deployed_by, d.state
             FROM deployments d JOIN components c ON c.digest = d.digest
             WHERE d.tenant = ? AND d.handler = ? ",
            $rest
        )
    };
}

fn read(row: &SqliteRow) -> Result<Version, SqliteError> {
    Ok(Version {
        version: VersionNumber(row.try_get_unchecked(0)?),
        digest: stored::digest(&text(row, 1)?)?,
        bytes: stored::size(row.try_get_unchecked(2)?)?,
        deployed_at: time(row, 3)?,
        deployed_by: text(row, 4)?,
        state: stored::version_state(&text(row, 5)?)?,
    })
}

pub(super) async fn deploy(
    connection: &mut SqliteConnection,
    new: NewVersion<'_>,
    digest: &Digest,
) -> Result<Deployment, SqliteError> {
    let NewVersion { tenant, handler, component, deployed_by } = new;
    let now = Timestamp::now().as_microsecond();
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    // Bytes that are there are written again only if they differ: they were damaged.
    sqlx::query(
        "INSERT INTO components (digest, size, added_at, bytes) VALUES (?1, length(?2), ?3, ?2)
         ON CONFLICT (digest) DO UPDATE SET size = excluded.size, bytes = excluded.bytes
         WHERE bytes <> excluded.bytes",
    )
    .bind(digest.as_str())
    .bind(component)
    .bind(now)
    .execute(&mut *transaction)
    .await?;
    if let Some(current) = active(&mut transaction, tenant, handler).await? {
        if current.digest == *digest {
            transaction.commit().await?;
            return Ok(Deployment::WasActive(current));
        }
        set_state(&mut transaction, tenant, handler, current.version, VersionState::Previous)
            .await?;
    }
    sqlx::query(
        "INSERT INTO deployments (tenant, handler, version, digest, deployed_at, deployed_by, state)
         SELECT ?1, ?2, coalesce(max(version), 0) + 1, ?3, ?4, ?5, 'active'
         FROM deployments WHERE tenant = ?1 AND handler = ?2",
    )
    .bind(tenant.as_str())
    .bind(handler.as_str())
    .bind(digest.as_str())
    .bind(now)
    .bind(deployed_by)
    .execute(&mut *transaction)
    .await?;
    let version = now_active(&mut transaction, tenant, handler).await?;
    transaction.commit().await?;
    Ok(Deployment::Activated(version))
}

/// The active version of a handler; none if nothing is deployed.
async fn active(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
    handler: &HandlerName,
) -> Result<Option<Version>, SqliteError> {
    let row = sqlx::query(select!("AND d.state = 'active'"))
        .bind(tenant.as_str())
        .bind(handler.as_str())
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(read).transpose()
}

/// The version that this transaction has made active.
async fn now_active(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
    handler: &HandlerName,
) -> Result<Version, SqliteError> {
    let version = active(connection, tenant, handler).await?;
    Ok(version.ok_or_else(|| {
        StoreError::Unusable(format!("handler `{handler}` has versions and none is active"))
    })?)
}

async fn set_state(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
    handler: &HandlerName,
    version: VersionNumber,
    state: VersionState,
) -> Result<(), SqliteError> {
    sqlx::query(
        "UPDATE deployments SET state = ? WHERE tenant = ? AND handler = ? AND version = ?",
    )
    .bind(state.as_str())
    .bind(tenant.as_str())
    .bind(handler.as_str())
    .bind(version.0)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn rollback(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
    handler: &HandlerName,
    from: Option<VersionNumber>,
) -> Result<Version, SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let current = active(&mut transaction, tenant, handler)
        .await?
        .ok_or_else(|| refusals::nothing_deployed(handler))?
        .version;
    if let Some(from) = from
        && from != current
    {
        return Err(refusals::other_version_active(handler, from, current).into());
    }
    let before: Option<i64> = sqlx::query_scalar(
        "SELECT max(version) FROM deployments
         WHERE tenant = ? AND handler = ? AND state = 'previous'",
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
    let version = now_active(&mut transaction, tenant, handler).await?;
    transaction.commit().await?;
    Ok(version)
}

pub(super) async fn versions(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
    handler: &HandlerName,
) -> Result<Vec<Version>, SqliteError> {
    let rows = sqlx::query(select!("ORDER BY d.version DESC"))
        .bind(tenant.as_str())
        .bind(handler.as_str())
        .fetch_all(connection)
        .await?;
    rows.iter().map(read).collect()
}

pub(super) async fn deployed(
    connection: &mut SqliteConnection,
) -> Result<Sifted<Deployed>, SqliteError> {
    let rows = sqlx::query(
        "SELECT tenant, handler, version, digest FROM deployments
         WHERE state = 'active' ORDER BY tenant, handler",
    )
    .fetch_all(connection)
    .await?;
    let whose = |row: &SqliteRow| {
        let (tenant, handler) = (text(row, 0).ok(), text(row, 1).ok());
        stored::deployment_of(tenant.as_deref(), handler.as_deref())
    };
    Ok(Sifted::of(rows.iter().map(|row| (whose(row), read_deployed(row)))))
}

fn read_deployed(row: &SqliteRow) -> Result<Deployed, SqliteError> {
    Ok(Deployed {
        tenant: stored::tenant(&text(row, 0)?)?,
        handler: stored::handler_name(&text(row, 1)?)?,
        version: VersionNumber(row.try_get_unchecked(2)?),
        digest: stored::digest(&text(row, 3)?)?,
    })
}

pub(super) async fn digests(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
    prefix: &str,
    limit: usize,
) -> Result<Vec<Digest>, SqliteError> {
    let rows = sqlx::query(
        "SELECT DISTINCT digest FROM deployments
         WHERE tenant = ?1 AND digest >= ?2 AND (?3 IS NULL OR digest < ?3)
         ORDER BY digest LIMIT ?4",
    )
    .bind(tenant.as_str())
    .bind(prefix)
    .bind(after_prefix(prefix))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| Ok(stored::digest(&text(row, 0)?)?)).collect()
}

/// What is stored, which may be damaged.
pub(super) async fn component(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
    digest: &Digest,
) -> Result<Vec<u8>, SqliteError> {
    let bytes: Option<Vec<u8>> = sqlx::query_scalar(
        "SELECT bytes FROM components
         WHERE digest = ?2 AND EXISTS (
             SELECT 1 FROM deployments d WHERE d.tenant = ?1 AND d.digest = components.digest)",
    )
    .bind(tenant.as_str())
    .bind(digest.as_str())
    .fetch_optional(connection)
    .await?;
    Ok(bytes.ok_or_else(|| refusals::no_component(digest))?)
}
