//! The store in memory passes the suite, and fails as it is told.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Fault, MemoryStore, Operation};
use crate::suite::{DeliveryDatabase, TestDatabase};
use crate::traits::*;
use crate::{Claim, GroupRegistration, HostIdentity};
use event_host_core::event::{GroupName, Tenant};

#[async_trait]
impl DeliveryDatabase for MemoryStore {
    async fn delivery(&self) -> Arc<dyn DeliveryStore> {
        self.handle().await
    }
}

#[async_trait]
impl TestDatabase for MemoryStore {
    async fn handle(&self) -> Arc<dyn Store> {
        Arc::new(self.another_host())
    }
}

crate::store_suite!(MemoryStore::new());

#[tokio::test]
async fn a_fault_happens_before_or_after_the_effect_and_then_it_is_over() {
    let store = MemoryStore::new();
    let group: GroupName = "g".parse().unwrap();
    let settings = GroupRegistration::new(group.clone(), Tenant::none());
    let other = store.another_host();
    store.fail(Operation::ENSURE_GROUP, Fault::Before, 1);
    store.fail(Operation::ENSURE_GROUP, Fault::After, 1);
    store.ensure_group(&settings).await.unwrap_err();
    assert!(other.group_status(&group).await.is_err());
    store.ensure_group(&settings).await.unwrap_err();
    assert!(other.group_status(&group).await.is_ok());
    store.ensure_group(&settings).await.unwrap();
    assert_eq!(store.calls(Operation::ENSURE_GROUP), 3);
    assert_eq!(other.calls(Operation::ENSURE_GROUP), 0);
}

#[tokio::test]
async fn a_severed_session_has_lost_its_locks_and_says_so() {
    let store = MemoryStore::new();
    let group: GroupName = "g".parse().unwrap();
    let host = HostIdentity { id: "1".into(), hostname: "one".into(), pid: 1 };
    let groups = [group];
    let mut session = store.lock_session(&host).await.unwrap();
    let is_led = |claims: Vec<Claim>| matches!(claims[..], [Claim::Led(_)]);
    store.ensure_group(&GroupRegistration::new(groups[0].clone(), Tenant::none())).await.unwrap();
    assert!(is_led(session.claim(&groups).await.unwrap()));
    let mut other = store.another_host().lock_session(&host).await.unwrap();
    assert!(!is_led(other.claim(&groups).await.unwrap()));
    store.sever_lock_sessions();
    assert!(is_led(other.claim(&groups).await.unwrap()));
    session.heartbeat(false).await.unwrap_err();
    session.claim(&groups).await.unwrap_err();
    other.heartbeat(false).await.unwrap();
}
