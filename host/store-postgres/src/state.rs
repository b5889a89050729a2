//! The state of the handlers.

use async_trait::async_trait;
use sqlx::PgConnection;

use super::PostgresStore;
use super::columns::kept;
use super::connection::LONG_DEADLINE;
use super::error::PostgresError;
use super::on_shared::on_shared;
use super::piece::begin_long;
use event_host_core::event::{GroupName, Tenant};
use event_host_store::driver::prefix::after_prefix;
use event_host_store::{StateStore, StoreError};

#[async_trait]
impl StateStore for PostgresStore {
    async fn state_get(
        &self,
        group: &GroupName,
        scope: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        on_shared!(self.connections, "read state", |c| state_get(c, group, scope, key))
    }

    async fn state_keys(
        &self,
        group: &GroupName,
        scope: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        on_shared!(self.connections, "list state", |c| {
            state_keys(c, group, scope, prefix, limit)
        })
    }

    async fn state_key_count(&self, group: &GroupName) -> Result<i64, StoreError> {
        on_shared!(self.connections, "count the keys of a state", LONG_DEADLINE, |c| {
            state_key_count(c, group)
        })
    }

    async fn tenant_state_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        on_shared!(self.connections, "measure state", LONG_DEADLINE, |c| {
            tenant_state_bytes(c, tenant)
        })
    }
}

pub(super) async fn state_get(
    connection: &mut PgConnection,
    group: &GroupName,
    scope: &str,
    key: &str,
) -> Result<Option<Vec<u8>>, PostgresError> {
    Ok(sqlx::query_scalar(
        "SELECT value FROM event_host.state WHERE group_name = $1 AND scope = $2 AND key = $3",
    )
    .bind(group.whole())
    .bind(kept(scope))
    .bind(kept(key))
    .fetch_optional(connection)
    .await?)
}

pub(super) async fn state_keys(
    connection: &mut PgConnection,
    group: &GroupName,
    scope: &str,
    prefix: &str,
    limit: usize,
) -> Result<Vec<String>, PostgresError> {
    // The primary key serves both the range and the order, which is that of the
    // bytes because the columns' collation is "C".
    let prefix = kept(prefix);
    Ok(sqlx::query_scalar(
        "SELECT key FROM event_host.state
         WHERE group_name = $1 AND scope = $2 AND key >= $3 AND ($4::text IS NULL OR key < $4)
         ORDER BY key LIMIT $5",
    )
    .bind(group.whole())
    .bind(kept(scope))
    .bind(&*prefix)
    .bind(after_prefix(&prefix))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await?)
}

pub(super) async fn state_key_count(
    connection: &mut PgConnection,
    group: &GroupName,
) -> Result<i64, PostgresError> {
    let mut transaction = begin_long(connection).await?;
    let keys = sqlx::query_scalar("SELECT count(*) FROM event_host.state WHERE group_name = $1")
        .bind(group.whole())
        .fetch_one(&mut *transaction)
        .await?;
    transaction.rollback().await?;
    Ok(keys)
}

async fn tenant_state_bytes(
    connection: &mut PgConnection,
    tenant: &Tenant,
) -> Result<i64, PostgresError> {
    let mut transaction = begin_long(connection).await?;
    // The length of a large value stands in its row: none is read. A sum of
    // bigints would be a numeric.
    let bytes = sqlx::query_scalar(
        "SELECT coalesce(sum(octet_length(s.key) + octet_length(s.value)), 0)::bigint
         FROM event_host.consumer_groups g
         JOIN event_host.state s ON s.group_name = g.name
         WHERE g.tenant = $1",
    )
    .bind(tenant.as_str())
    .fetch_one(&mut *transaction)
    .await?;
    transaction.rollback().await?;
    Ok(bytes)
}
