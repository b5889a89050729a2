//! What a tenant keeps, over all its groups.

use sqlx::SqliteConnection;

use super::error::SqliteError;
use crate::event::Tenant;

pub(super) async fn dead_letters(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
) -> Result<i64, SqliteError> {
    Ok(sqlx::query_scalar(
        "SELECT count(*) FROM consumer_groups
         JOIN dead_letters ON dead_letters.group_name = consumer_groups.name
         WHERE consumer_groups.tenant = ?",
    )
    .bind(tenant.as_str())
    .fetch_one(connection)
    .await?)
}

pub(super) async fn dead_letter_bytes(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
) -> Result<i64, SqliteError> {
    // The length of data stands in its row: none is read.
    Ok(sqlx::query_scalar(
        "SELECT coalesce(sum(
                    coalesce(octet_length(d.data), 0) + octet_length(d.failure_text)
                    + octet_length(d.type) + octet_length(d.event_id) + octet_length(d.source)
                    + coalesce(octet_length(d.subject), 0)
                    + coalesce(octet_length(d.datacontenttype), 0)
                    + coalesce(octet_length(d.dataschema), 0)
                    + coalesce(octet_length(d.partitionkey), 0)
                    + coalesce(octet_length(d.extensions), 0)
                    + coalesce(octet_length(d.deliver_to), 0)), 0)
         FROM consumer_groups
         JOIN dead_letters d ON d.group_name = consumer_groups.name
         WHERE consumer_groups.tenant = ?",
    )
    .bind(tenant.as_str())
    .fetch_one(connection)
    .await?)
}

pub(super) async fn state_bytes(
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
