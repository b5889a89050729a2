//! What the row of a consumer group says of it, as far as settings go, and the transaction
//! in which its cursor is moved.

use sqlx::postgres::PgRow;
use sqlx::{Connection, Executor, PgConnection, Row};

use super::columns::count;
use super::error::PostgresError;
use event_host_core::event::{GroupName, Position, Tenant};
use event_host_store::GroupRegistration;
use event_host_store::driver::stored;

/// What a group's row says of it, as far as settings go.
pub(super) struct Known {
    pub(super) tenant: Tenant,
    pub(super) subscribe: Vec<String>,
    /// The highest of its cursors.
    pub(super) position: Position,
    pub(super) partitions: u32,
}

impl Known {
    /// Reads tenant, subscription, partitions and position, the first of which stands at
    /// `first`.
    pub(super) fn read(row: &PgRow, first: usize) -> Result<Self, PostgresError> {
        Ok(Self {
            tenant: stored::tenant(row.try_get_unchecked(first)?)?,
            subscribe: row.try_get_unchecked(first + 1)?,
            partitions: count(row, first + 2)?,
            position: Position(row.try_get_unchecked(first + 3)?),
        })
    }

    /// Whether it is as these settings want it, in a log that ends there.
    pub(super) fn is_as(&self, settings: &GroupRegistration, last: Position) -> bool {
        self.tenant == settings.tenant
            && self.subscribe == settings.subscription.patterns()
            && self.partitions == settings.partitions
            && self.position <= last
    }
}

pub(super) async fn known(
    connection: &mut PgConnection,
    group: &GroupName,
) -> Result<Option<Known>, PostgresError> {
    let row = sqlx::query(
        "SELECT g.tenant, g.subscribe, g.partitions::bigint,
                greatest(g.position, (SELECT max(p.position) FROM event_host.consumer_groups p
                                      WHERE p.part_of = g.name))
         FROM event_host.consumer_groups g WHERE g.name = $1",
    )
    .bind(group.as_str())
    .fetch_optional(connection)
    .await?;
    row.as_ref().map(|row| Known::read(row, 0)).transpose()
}

/// A transaction in which no event goes: retention wants a partition for itself before
/// it looks at the cursors. So an event that is above a cursor, wherever the transaction
/// puts it, is still there when it commits, or was gone before.
pub(super) async fn keep_all_events(
    connection: &mut PgConnection,
) -> Result<sqlx::Transaction<'_, sqlx::Postgres>, PostgresError> {
    let mut transaction = connection.begin().await?;
    transaction.execute("LOCK TABLE event_host.events IN ACCESS SHARE MODE").await?;
    Ok(transaction)
}
