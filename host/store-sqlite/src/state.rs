//! The state of the handlers.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::SqliteStore;
use super::connection::{LONG_DEADLINE, on_reader};
use super::error::SqliteError;
use event_host_core::event::{GroupName, Tenant};
use event_host_store::driver::prefix::after_prefix;
use event_host_store::{StateStore, StoreError};

#[async_trait]
impl StateStore for SqliteStore {
    async fn state_get(
        &self,
        group: &GroupName,
        scope: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        on_reader!(self.connections, "read state", |c| state_get(c, group, scope, key))
    }

    async fn state_keys(
        &self,
        group: &GroupName,
        scope: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        on_reader!(self.connections, "list state", |c| {
            state_keys(c, group, scope, prefix, limit)
        })
    }

    async fn state_key_count(&self, group: &GroupName) -> Result<i64, StoreError> {
        on_reader!(self.connections, "count the keys of a state", LONG_DEADLINE, |c| {
            state_key_count(c, group)
        })
    }

    async fn tenant_state_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        on_reader!(self.connections, "measure state", LONG_DEADLINE, |c| {
            tenant_state_bytes(c, tenant)
        })
    }
}

pub(super) async fn state_get(
    connection: &mut SqliteConnection,
    group: &GroupName,
    scope: &str,
    key: &str,
) -> Result<Option<Vec<u8>>, SqliteError> {
    Ok(sqlx::query_scalar("SELECT value FROM state WHERE group_name = ? AND scope = ? AND key = ?")
        .bind(group.whole())
        .bind(scope)
        .bind(key)
        .fetch_optional(connection)
        .await?)
}

pub(super) async fn state_keys(
    connection: &mut SqliteConnection,
    group: &GroupName,
    scope: &str,
    prefix: &str,
    limit: usize,
) -> Result<Vec<String>, SqliteError> {
    let end = after_prefix(prefix);
    // The index on (group_name, scope, key) serves both the range and the order.
    let statement = match &end {
        Some(end) => sqlx::query_scalar(
            "SELECT key FROM state
             WHERE group_name = ? AND scope = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?",
        )
        .bind(group.whole())
        .bind(scope)
        .bind(prefix)
        .bind(end),
        None => sqlx::query_scalar(
            "SELECT key FROM state
             WHERE group_name = ? AND scope = ? AND key >= ? ORDER BY key LIMIT ?",
        )
        .bind(group.whole())
        .bind(scope)
        .bind(prefix),
    };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    Ok(statement.bind(limit).fetch_all(connection).await?)
}

pub(super) async fn state_key_count(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<i64, SqliteError> {
    // The index alone is read.
    Ok(sqlx::query_scalar("SELECT count(*) FROM state WHERE group_name = ?")
        .bind(group.whole())
        .fetch_one(connection)
        .await?)
}

async fn tenant_state_bytes(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
) -> Result<i64, SqliteError> {
    // The length of a value stands in its row: none is read.
    Ok(sqlx::query_scalar(
        "SELECT coalesce(sum(length(CAST(key AS BLOB)) + length(value)), 0) FROM consumer_groups
         JOIN state ON state.group_name = consumer_groups.name
         WHERE consumer_groups.tenant = ?",
    )
    .bind(tenant.as_str())
    .fetch_one(connection)
    .await?)
}
