//! The state of the handlers in memory.

use async_trait::async_trait;

use super::MemoryStore;
use super::operation::Operation;
use crate::{StateStore, StoreError};
use event_host_core::event::{GroupName, Tenant};

#[allow(missing_docs, reason = "each is the call of the same name")]
impl Operation {
    pub const STATE_GET: Self = Self::reading("state_get");
    pub const STATE_KEYS: Self = Self::reading("state_keys");
    pub const TENANT_STATE_BYTES: Self = Self::reading("tenant_state_bytes");
    pub const STATE_KEY_COUNT: Self = Self::reading("state_key_count");
}

#[async_trait]
impl StateStore for MemoryStore {
    async fn state_get(
        &self,
        group: &GroupName,
        scope: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.call(Operation::STATE_GET, |log| {
            let key = (group.group(), scope.to_owned(), key.to_owned());
            Ok(log.state.get(&key).cloned())
        })
        .await
    }

    async fn state_keys(
        &self,
        group: &GroupName,
        scope: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        self.call(Operation::STATE_KEYS, |log| {
            let group = &group.group();
            let from = (group.clone(), scope.to_owned(), prefix.to_owned());
            let keys = log.state.range(from..).map(|(key, _)| key).take_while(
                |(of_group, of_scope, key)| {
                    of_group == group && of_scope == scope && key.starts_with(prefix)
                },
            );
            Ok(keys.take(limit).map(|(_, _, key)| key.clone()).collect())
        })
        .await
    }

    async fn state_key_count(&self, group: &GroupName) -> Result<i64, StoreError> {
        self.call(Operation::STATE_KEY_COUNT, |log| {
            let keys = log.state.keys().filter(|(of_group, ..)| of_group.as_str() == group.whole());
            Ok(i64::try_from(keys.count()).unwrap_or(i64::MAX))
        })
        .await
    }

    async fn tenant_state_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        self.call(Operation::TENANT_STATE_BYTES, |log| {
            let theirs = log.state.iter().filter(|((group, ..), _)| {
                log.groups.get(group).is_some_and(|group| group.tenant == *tenant)
            });
            let bytes: usize = theirs.map(|((_, _, key), value)| key.len() + value.len()).sum();
            Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
        })
        .await
    }
}
