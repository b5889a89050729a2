//! What a tenant keeps, over all its groups.

use sqlx::PgConnection;

use super::connection::begin_long;
use super::error::PostgresError;
use crate::event::Tenant;

pub(super) async fn dead_letters(
    connection: &mut PgConnection,
    tenant: &Tenant,
) -> Result<i64, PostgresError> {
    let mut transaction = begin_long(connection).await?;
    let letters = sqlx::query_scalar(
        "SELECT count(*) FROM event_host.consumer_groups g
         JOIN event_host.dead_letters d ON d.group_name = g.name
         WHERE g.tenant = $1",
    )
    .bind(tenant.as_str())
    .fetch_one(&mut *transaction)
    .await?;
    transaction.rollback().await?;
    Ok(letters)
}

pub(super) async fn dead_letter_bytes(
    connection: &mut PgConnection,
    tenant: &Tenant,
) -> Result<i64, PostgresError> {
    let mut transaction = begin_long(connection).await?;
    // The length of large data stands in its row: none is read.
    let bytes = sqlx::query_scalar(
        "SELECT coalesce(sum(
                    coalesce(octet_length(d.data), 0) + octet_length(d.failure_text)
                    + octet_length(d.type) + octet_length(d.event_id) + octet_length(d.source)
                    + coalesce(octet_length(d.subject), 0)
                    + coalesce(octet_length(d.datacontenttype), 0)
                    + coalesce(octet_length(d.dataschema), 0)
                    + coalesce(octet_length(d.partitionkey), 0)
                    + coalesce(octet_length(d.extensions::text), 0)
                    + coalesce(octet_length(d.deliver_to), 0)), 0)::bigint
         FROM event_host.consumer_groups g
         JOIN event_host.dead_letters d ON d.group_name = g.name
         WHERE g.tenant = $1",
    )
    .bind(tenant.as_str())
    .fetch_one(&mut *transaction)
    .await?;
    transaction.rollback().await?;
    Ok(bytes)
}

pub(super) async fn state_bytes(
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
