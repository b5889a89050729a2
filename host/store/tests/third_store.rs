//! A store from outside of the crate, with the four traits that delivery needs and no
//! other, passes the suites of those four.
//!
//! It keeps its events where the store in memory does; that it is a type of its own, made
//! of what the crate shows to everybody, is what is tried here.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use event_host_core::event::{Epoch, Event, GroupName, LogEvent, Position, Tenant};
use event_host_store::memory::MemoryStore;
use event_host_store::suite::DeliveryDatabase;
use event_host_store::{
    Blocker, Cursor, DeliveryStore, Due, DueFetch, Enforced, EventLog, Fetch, Fetched, FetchedLate,
    Found, GroupControl, GroupRegistration, HostIdentity, LateFetch, Leadership, Leases,
    LockSession, LogPin, Mark, OvertakingFetch, Redelivery, Retention, Settled, Settlement,
    Settlements, Sketch, StateStore, StoreError, StoreLimits,
};

struct ThirdStore(MemoryStore);

#[async_trait]
impl DeliveryDatabase for ThirdStore {
    async fn delivery(&self) -> Arc<dyn DeliveryStore> {
        Arc::new(Self(self.0.another_host()))
    }
}

event_host_store::delivery_suite!(ThirdStore(MemoryStore::new()));

#[async_trait]
impl EventLog for ThirdStore {
    async fn check(&self) -> Result<(), StoreError> {
        self.0.check().await
    }

    async fn publish(
        &self,
        tenant: &Tenant,
        events: &[Event],
    ) -> Result<Vec<Position>, StoreError> {
        self.0.publish(tenant, events).await
    }

    async fn safe_position(&self) -> Result<Position, StoreError> {
        self.0.safe_position().await
    }

    async fn blockers(&self) -> Result<Vec<Blocker>, StoreError> {
        self.0.blockers().await
    }

    async fn wait_for_hint(&self) {
        self.0.wait_for_hint().await
    }

    async fn enforce_retention(&self, retention: &Retention) -> Result<Enforced, StoreError> {
        self.0.enforce_retention(retention).await
    }

    async fn unpin(
        &self,
        tenant: &Tenant,
        retention: &Retention,
        most: u64,
    ) -> Result<Option<LogPin>, StoreError> {
        self.0.unpin(tenant, retention, most).await
    }

    fn limits(&self) -> StoreLimits {
        self.0.limits()
    }

    async fn fetch(&self, fetch: Fetch<'_>) -> Result<Fetched, StoreError> {
        self.0.fetch(fetch).await
    }

    async fn fetch_one(&self, fetch: Fetch<'_>) -> Result<Fetched, StoreError> {
        self.0.fetch_one(fetch).await
    }

    async fn sketch(&self, fetch: Fetch<'_>) -> Result<Option<Sketch>, StoreError> {
        self.0.sketch(fetch).await
    }

    async fn fetch_at(
        &self,
        group: &GroupName,
        positions: &[Position],
        max_bytes: usize,
    ) -> Result<Found, StoreError> {
        self.0.fetch_at(group, positions, max_bytes).await
    }

    fn recycle(&self, events: Vec<Arc<LogEvent>>) {
        self.0.recycle(events);
    }

    async fn overtake_limit(&self, longer_than: Duration) -> Position {
        self.0.overtake_limit(longer_than).await
    }

    async fn fetch_overtaking(
        &self,
        fetch: Fetch<'_>,
        safe: Position,
        max_ranges: usize,
    ) -> Result<OvertakingFetch, StoreError> {
        self.0.fetch_overtaking(fetch, safe, max_ranges).await
    }

    async fn fetch_late(&self, late: LateFetch<'_>) -> Result<FetchedLate, StoreError> {
        self.0.fetch_late(late).await
    }
}

#[async_trait]
impl Leases for ThirdStore {
    async fn lock_session(&self, host: &HostIdentity) -> Result<Box<dyn LockSession>, StoreError> {
        self.0.lock_session(host).await
    }

    async fn record_outages(
        &self,
        host: &HostIdentity,
        trouble: Option<&str>,
    ) -> Result<(), StoreError> {
        self.0.record_outages(host, trouble).await
    }

    async fn ensure_group(&self, settings: &GroupRegistration) -> Result<(), StoreError> {
        self.0.ensure_group(settings).await
    }

    async fn group_states(&self) -> Result<Vec<GroupControl>, StoreError> {
        self.0.group_states().await
    }

    async fn begin_leadership(
        &self,
        group: &GroupName,
        host: &HostIdentity,
    ) -> Result<Leadership, StoreError> {
        self.0.begin_leadership(group, host).await
    }

    async fn is_alive_since(&self, host: &str, group: &GroupName) -> Result<bool, StoreError> {
        self.0.is_alive_since(host, group).await
    }

    async fn record_work_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
    ) -> Result<Settled, StoreError> {
        self.0.record_work_started(group, epoch, settled).await
    }

    async fn record_attempt_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
        mark: Mark,
    ) -> Result<Settled, StoreError> {
        self.0.record_attempt_started(group, epoch, settled, mark).await
    }

    async fn withdraw_attempt(
        &self,
        group: &GroupName,
        epoch: Epoch,
    ) -> Result<Settled, StoreError> {
        self.0.withdraw_attempt(group, epoch).await
    }
}

#[async_trait]
impl Settlements for ThirdStore {
    async fn settle(&self, settlement: &Settlement) -> Result<Settled, StoreError> {
        self.0.settle(settlement).await
    }

    async fn cursor(&self, group: &GroupName) -> Result<Cursor, StoreError> {
        self.0.cursor(group).await
    }

    async fn redeliveries(&self, group: &GroupName) -> Result<Vec<Redelivery>, StoreError> {
        self.0.redeliveries(group).await
    }

    async fn due(&self, due: DueFetch<'_>) -> Result<Due, StoreError> {
        self.0.due(due).await
    }

    async fn deferred(&self, group: &GroupName) -> Result<i64, StoreError> {
        self.0.deferred(group).await
    }

    async fn record_trip(
        &self,
        group: &GroupName,
        epoch: Epoch,
        reason: Option<&str>,
    ) -> Result<Settled, StoreError> {
        self.0.record_trip(group, epoch, reason).await
    }

    async fn pause(&self, group: &GroupName, reason: &str) -> Result<(), StoreError> {
        self.0.pause(group, reason).await
    }

    async fn set_note(&self, groups: &[GroupName], note: Option<&str>) -> Result<(), StoreError> {
        self.0.set_note(groups, note).await
    }

    async fn tenant_dead_letters(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        self.0.tenant_dead_letters(tenant).await
    }

    async fn tenant_dead_letter_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        self.0.tenant_dead_letter_bytes(tenant).await
    }
}

#[async_trait]
impl StateStore for ThirdStore {
    async fn state_get(
        &self,
        group: &GroupName,
        scope: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.state_get(group, scope, key).await
    }

    async fn state_keys(
        &self,
        group: &GroupName,
        scope: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        self.0.state_keys(group, scope, prefix, limit).await
    }

    async fn state_key_count(&self, group: &GroupName) -> Result<i64, StoreError> {
        self.0.state_key_count(group).await
    }

    async fn tenant_state_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        self.0.tenant_state_bytes(tenant).await
    }
}
