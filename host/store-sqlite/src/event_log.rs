//! The log as delivery and publishers see it; the statements lie in `log`.

use async_trait::async_trait;

use super::connection::{READERS, on_reader, on_writer};
use super::{SqliteStore, log, redeliveries, retention, unpin};
use event_host_core::event::{Event, GroupName, Position, Tenant};
use event_host_store::{
    Counting, Enforced, EventLog, Fetch, Fetched, Found, LogPin, Retention, StoreError, StoreLimits,
};

#[async_trait]
impl EventLog for SqliteStore {
    /// The log is one file, which is wherever it is, and its locks and positions
    /// are the system's and SQLite's own. A cursor beyond it is refused with its
    /// group.
    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn publish(
        &self,
        tenant: &Tenant,
        events: &[Event],
    ) -> Result<Vec<Position>, StoreError> {
        on_writer!(self.connections, "publish", |c| log::publish(c, tenant, events))
    }

    async fn safe_position(&self) -> Result<Position, StoreError> {
        if let Some(why) = self.connections.take_change() {
            return Err(StoreError::Changed(why));
        }
        on_reader!(self.connections, "read the safe position", |c| log::last_position(c))
    }

    async fn enforce_retention(&self, retention: &Retention) -> Result<Enforced, StoreError> {
        retention::enforce_retention(&self.connections, retention).await
    }

    async fn unpin(
        &self,
        tenant: &Tenant,
        retention: &Retention,
        most: u64,
    ) -> Result<Option<LogPin>, StoreError> {
        // Most looks find nothing, and have no need of the write lock for that.
        let pin = on_reader!(self.connections, "see what a tenant keeps in the log", |c| {
            retention::pin_of(c, retention, Some(tenant), Counting::EXACT)
        })?;
        if pin.is_none_or(|pin| pin.bytes <= most) {
            return Ok(None);
        }
        on_writer!(self.connections, "have a group keep nothing in the log", |c| {
            unpin::unpin(c, tenant, retention, most)
        })
    }

    fn limits(&self) -> StoreLimits {
        StoreLimits { reads: READERS, writes: 1 }
    }

    async fn fetch(&self, fetch: Fetch<'_>) -> Result<Fetched, StoreError> {
        // The log that was replaced by this one may have been longer.
        let is_first = self.connections.times_replaced() == 0;
        on_reader!(self.connections, "fetch events", |c| async {
            if is_first {
                return log::fetch(c, &fetch).await;
            }
            let up_to = fetch.up_to.min(log::last_position(c).await?);
            log::fetch(c, &Fetch { up_to, ..fetch.clone() }).await
        })
    }

    async fn fetch_at(
        &self,
        group: &GroupName,
        positions: &[Position],
        max_bytes: usize,
    ) -> Result<Found, StoreError> {
        on_reader!(self.connections, "fetch events again", |c| {
            redeliveries::events(c, group, positions, max_bytes)
        })
    }
}
