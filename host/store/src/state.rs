//! The state of the handlers.

use async_trait::async_trait;

use super::StoreError;
use event_host_core::event::{GroupName, Tenant};

/// The state of the handlers, by group, scope and key. Only settlements write it.
#[async_trait]
pub trait StateStore: Send + Sync + 'static {
    /// One value of a group's state.
    async fn state_get(
        &self,
        group: &GroupName,
        scope: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError>;

    /// The first `limit` keys of a scope that start with `prefix`, by bytes.
    async fn state_keys(
        &self,
        group: &GroupName,
        scope: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<String>, StoreError>;

    /// How many keys a group's state has, over all its scopes. Reads an entry of
    /// the index for each: not to be asked for each event.
    async fn state_key_count(&self, group: &GroupName) -> Result<i64, StoreError>;

    /// The bytes of all keys and values in the state of a tenant's groups. Reads
    /// every one of its rows, though no large value: not to be asked for each
    /// event.
    async fn tenant_state_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError>;
}
