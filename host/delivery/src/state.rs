//! A group's committed state, read from the store.

use std::sync::Arc;

use async_trait::async_trait;

use crate::admission::{GroupAdmission, StorePermit};
use event_host_core::event::GroupName;
use event_host_core::handler::state::{CommittedState, StateUnreadable};
use event_host_store::DeliveryStore;

/// The committed state of one group, as a store has it.
pub struct StoredState {
    /// The store.
    pub store: Arc<dyn DeliveryStore>,
    /// The group.
    pub group: GroupName,
    /// The group's admission, which orders its reads among those of other groups; `None`
    /// where there are no others.
    pub admission: Option<GroupAdmission>,
}

impl StoredState {
    /// Permission to read: state is read in the same fair order as the log.
    async fn store_permit(&self) -> Option<StorePermit> {
        match &self.admission {
            Some(admission) => Some(admission.acquire_read(self.store.limits().reads).await),
            None => None,
        }
    }
}

#[async_trait]
impl CommittedState for StoredState {
    async fn get(&self, scope: &str, key: &str) -> Result<Option<Vec<u8>>, StateUnreadable> {
        let _permit = self.store_permit().await;
        Ok(self.store.state_get(&self.group, scope, key).await?)
    }

    async fn keys(
        &self,
        scope: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<String>, StateUnreadable> {
        let _permit = self.store_permit().await;
        Ok(self.store.state_keys(&self.group, scope, prefix, limit).await?)
    }
}
