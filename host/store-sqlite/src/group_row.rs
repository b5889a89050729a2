//! What the row of a consumer group says of it, as far as settings go.

use sqlx::{Row, SqliteConnection};

use super::columns::{count, text};
use super::error::SqliteError;
use event_host_core::event::{GroupName, Position, Tenant};
use event_host_core::subscription::Subscription;
use event_host_store::StoreError;
use event_host_store::driver::stored;

/// What a group's row says of it, as far as settings go.
pub(super) struct Known {
    pub(super) tenant: Tenant,
    pub(super) subscribe: String,
    /// The highest of its cursors.
    pub(super) position: Position,
    pub(super) partitions: u32,
}

pub(super) async fn known(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<Option<Known>, SqliteError> {
    let row = sqlx::query(
        "SELECT tenant, subscribe, partitions,
                (SELECT max(position) FROM consumer_groups p
                 WHERE p.name = g.name OR p.part_of = g.name)
         FROM consumer_groups g WHERE name = ?",
    )
    .bind(group.as_str())
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(Known {
        tenant: stored::tenant(&text(&row, 0)?)?,
        subscribe: text(&row, 1)?,
        partitions: count(&row, 2)?,
        position: Position(row.try_get_unchecked(3)?),
    }))
}

/// The patterns of a group's row.
pub(super) fn stored_subscription(
    group: &GroupName,
    json: &str,
) -> Result<Subscription, StoreError> {
    let patterns = serde_json::from_str(json).map_err(|error| {
        StoreError::Unusable(format!("the stored subscription of group `{group}`: {error}"))
    })?;
    stored::subscription(group, patterns)
}
