//! What each group and tenant holds. Pure bookkeeping: each request is decided at once
//! for handler, tenant and host together, and a grant wakes the task that waits for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::bucket::Rates;
use super::occupancy::{Occupancy, StoreQueue};
use super::queue::{FairQueue, Fit};
use super::ticket::Ticket;
use super::{Demand, TenantQuota};
use event_host_core::event::Tenant;

/// A group that is registered, by its number in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupId(pub(super) usize);

/// What a slot costs in the fair queue: each is held for a time slice, so all cost the
/// same.
const SLOT_COST: u64 = 1;

/// A request for a slot, with what it asks for besides.
type Waiter = (Arc<Ticket>, Memory);

/// What a request for a slot does about the handler's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// It acquires it together with the slot.
    Wanted,
    /// The handler needs none.
    Free,
    /// The permit holds it already.
    Held,
}

#[derive(Debug)]
struct TenantUsage {
    quota: TenantQuota,
    rates: Arc<Rates>,
    /// Groups that are registered.
    groups: usize,
    /// Attempts that hold a slot.
    slots: usize,
    /// Bytes.
    memory: usize,
}

#[derive(Debug)]
struct Group {
    tenant: usize,
    demand: Demand,
    slots: usize,
}

/// Everything that is held and waited for.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Slots of the host.
    max_slots: usize,
    /// Slots that are held.
    slots: usize,
    tenants: Vec<TenantUsage>,
    by_name: HashMap<Tenant, usize>,
    groups: Vec<Group>,
    /// Numbers of groups that were deregistered.
    free_groups: Vec<usize>,
    /// Tenants with groups and without slots.
    idle_tenants: usize,
    slot_queue: FairQueue<Waiter>,
    /// By the numbers of [`StoreQueue`].
    store: [Occupancy; StoreQueue::ALL.len()],
}

impl Ledger {
    pub(super) fn new(max_slots: usize) -> Self {
        Self {
            max_slots,
            slots: 0,
            tenants: Vec::new(),
            by_name: HashMap::new(),
            groups: Vec::new(),
            free_groups: Vec::new(),
            idle_tenants: 0,
            slot_queue: FairQueue::default(),
            store: Default::default(),
        }
    }

    pub(super) fn configure<'a>(
        &mut self,
        max_slots: usize,
        tenants: impl IntoIterator<Item = (&'a Tenant, &'a TenantQuota)>,
    ) {
        self.max_slots = max_slots;
        let mut named: HashMap<&Tenant, &TenantQuota> = tenants.into_iter().collect();
        for (name, number) in &self.by_name {
            let tenant = &mut self.tenants[*number];
            tenant.quota = named.remove(name).cloned().unwrap_or_default();
            tenant.rates.set(&tenant.quota);
        }
        for (name, quota) in named {
            self.add_tenant(name.clone(), quota.clone());
        }
        self.grant_slots();
    }

    fn add_tenant(&mut self, name: Tenant, quota: TenantQuota) -> usize {
        let rates = Arc::new(Rates::default());
        rates.set(&quota);
        self.tenants.push(TenantUsage { quota, rates, groups: 0, slots: 0, memory: 0 });
        self.by_name.insert(name, self.tenants.len() - 1);
        self.tenants.len() - 1
    }

    /// Registers a group; returns the numbers of its tenant and its own, and the tenant's
    /// rates.
    pub(super) fn register(
        &mut self,
        tenant: &Tenant,
        demand: Demand,
    ) -> (usize, GroupId, Arc<Rates>) {
        let tenant = match self.by_name.get(tenant) {
            Some(number) => *number,
            None => self.add_tenant(tenant.clone(), TenantQuota::default()),
        };
        let registered = Group { tenant, demand, slots: 0 };
        let group = match self.free_groups.pop() {
            Some(group) => {
                self.groups[group] = registered;
                group
            }
            None => {
                self.groups.push(registered);
                self.groups.len() - 1
            }
        };
        self.slot_queue.register(tenant, group);
        for occupancy in &mut self.store {
            occupancy.waiting.register(tenant, group);
        }
        let usage = &mut self.tenants[tenant];
        self.idle_tenants += usize::from(usage.groups == 0);
        usage.groups += 1;
        (tenant, GroupId(group), Arc::clone(&usage.rates))
    }

    /// Deregisters a group that holds nothing and waits for nothing.
    pub(super) fn deregister(&mut self, GroupId(group): GroupId) {
        let tenant = &mut self.tenants[self.groups[group].tenant];
        tenant.groups -= 1;
        self.idle_tenants -= usize::from(tenant.groups == 0);
        self.free_groups.push(group);
        // The slot that was reserved for its tenant may be granted now.
        self.grant_slots();
    }

    pub(super) fn quota(&self, GroupId(group): GroupId) -> &TenantQuota {
        &self.tenants[self.groups[group].tenant].quota
    }

    /// Of each tenant that has or had groups: how many attempts may run at once, how many slots it
    /// holds, and how many tasks wait for one.
    pub(super) fn by_tenant(&self) -> Vec<(Tenant, usize, usize, usize)> {
        self.by_name
            .iter()
            .map(|(name, number)| {
                let TenantUsage { quota, slots, .. } = &self.tenants[*number];
                let most = quota.concurrency.unwrap_or(self.max_slots).min(self.max_slots);
                (name.clone(), most, *slots, self.slot_queue.waiting_of(*number))
            })
            .collect()
    }

    pub(super) fn in_use(&self) -> usize {
        self.slots
    }

    /// Whether any task waits for a slot.
    pub(super) fn has_slot_waiters(&self) -> bool {
        !self.slot_queue.is_empty()
    }

    /// Occupies a slot, with the handler's memory if that is wanted. Returns the bytes
    /// of that memory, or the ticket to wait with.
    pub(super) fn request_slot(
        &mut self,
        GroupId(group): GroupId,
        memory: Memory,
    ) -> Result<usize, Arc<Ticket>> {
        let tenant = self.groups[group].tenant;
        if self.slot_queue.is_empty() && self.fits(tenant, group, memory) == Fit::Yes {
            self.slot_queue.serve(tenant, group, SLOT_COST);
            return Ok(self.occupy_slot(group, memory));
        }
        let ticket = Arc::new(Ticket::default());
        // A waiter that already holds memory goes first: others may be waiting for that
        // memory.
        let first = memory == Memory::Held;
        self.slot_queue.push(tenant, group, (Arc::clone(&ticket), memory), first);
        self.grant_slots();
        if ticket.is_granted() { Ok(ticket.memory()) } else { Err(ticket) }
    }

    /// Cancels a request for a slot. False when it has been granted meanwhile.
    pub(super) fn cancel_slot_request(
        &mut self,
        GroupId(group): GroupId,
        ticket: &Arc<Ticket>,
    ) -> bool {
        let tenant = self.groups[group].tenant;
        let cancelled =
            self.slot_queue.remove(tenant, group, |(waiting, _)| Arc::ptr_eq(waiting, ticket));
        if cancelled {
            // Requests behind it may have waited for it alone.
            self.grant_slots();
        }
        cancelled
    }

    /// Releases a slot, or memory, or both.
    pub(super) fn release(&mut self, GroupId(group): GroupId, slot: bool, memory: usize) {
        let tenant = self.groups[group].tenant;
        self.tenants[tenant].memory -= memory;
        if slot {
            self.slots -= 1;
            self.groups[group].slots -= 1;
            self.tenants[tenant].slots -= 1;
            self.idle_tenants += usize::from(self.tenants[tenant].slots == 0);
        }
        if slot || memory > 0 {
            self.grant_slots();
        }
    }

    /// The bytes that a handler's memory counts as: at most the quota, or the handler
    /// would wait for ever.
    fn memory_of(&self, group: usize) -> usize {
        let Group { tenant, demand, .. } = &self.groups[group];
        self.tenants[*tenant].quota.memory_bytes.map_or(0, |most| demand.memory_bytes.min(most))
    }

    fn fits(&self, tenant: usize, group: usize, memory: Memory) -> Fit {
        let (tenant, its) = (&self.tenants[tenant], &self.groups[group]);
        let free = self.max_slots.saturating_sub(self.slots);
        let reserved =
            if tenant.slots == 0 { 0 } else { self.idle_tenants.min(self.max_slots / 2) };
        if free <= reserved || tenant.quota.concurrency.is_some_and(|most| tenant.slots >= most) {
            return Fit::NotThisTenant;
        }
        let lacks_memory = memory == Memory::Wanted
            && tenant
                .quota
                .memory_bytes
                .is_some_and(|most| tenant.memory.saturating_add(self.memory_of(group)) > most);
        if lacks_memory || its.slots >= its.demand.concurrency {
            return Fit::NotThisGroup;
        }
        Fit::Yes
    }

    /// Returns the bytes of memory that were acquired with the slot.
    fn occupy_slot(&mut self, group: usize, memory: Memory) -> usize {
        let bytes = if memory == Memory::Wanted { self.memory_of(group) } else { 0 };
        let its = &mut self.groups[group];
        its.slots += 1;
        let tenant = &mut self.tenants[its.tenant];
        self.idle_tenants -= usize::from(tenant.slots == 0);
        tenant.slots += 1;
        tenant.memory += bytes;
        self.slots += 1;
        bytes
    }

    /// Grants free slots to the requests that fit, in fair order.
    fn grant_slots(&mut self) {
        while self.slots < self.max_slots && !self.slot_queue.is_empty() {
            let mut queue = std::mem::take(&mut self.slot_queue);
            // Memory is granted in order: otherwise a large handler would wait for as
            // long as small ones come.
            let mut out_of_memory = None;
            let first = queue.take_first(SLOT_COST, |tenant, group, (_, memory)| {
                if *memory == Memory::Wanted && out_of_memory == Some(tenant) {
                    return Fit::NotThisGroup;
                }
                let fit = self.fits(tenant, group, *memory);
                if *memory == Memory::Wanted && fit == Fit::NotThisGroup {
                    out_of_memory = Some(tenant);
                }
                fit
            });
            self.slot_queue = queue;
            let Some((_, group, (ticket, memory))) = first else { return };
            let memory = self.occupy_slot(group, memory);
            ticket.grant(memory);
        }
    }

    /// Begins an operation of the store if fewer than `limit` run; `None` if it may run,
    /// else the ticket to wait with.
    pub(super) fn request_store(
        &mut self,
        queue: StoreQueue,
        GroupId(group): GroupId,
        limit: usize,
    ) -> Option<Arc<Ticket>> {
        self.store[queue as usize].request(self.groups[group].tenant, group, limit)
    }

    /// Cancels a request for the store. False when it has been granted meanwhile.
    pub(super) fn cancel_store_request(
        &mut self,
        queue: StoreQueue,
        GroupId(group): GroupId,
        ticket: &Arc<Ticket>,
    ) -> bool {
        let tenant = self.groups[group].tenant;
        self.store[queue as usize].cancel(tenant, group, ticket)
    }

    /// Ends an operation of the store that took `took`.
    pub(super) fn release_store(
        &mut self,
        queue: StoreQueue,
        GroupId(group): GroupId,
        took: Duration,
    ) {
        let tenant = self.groups[group].tenant;
        self.store[queue as usize].release(tenant, group, took);
    }

    /// Slots, operations of the store and bytes of memory that are held, and whether any
    /// task waits: tests check that all of it is released.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize, usize, bool) {
        let memory = self.tenants.iter().map(|tenant| tenant.memory).sum();
        let has_waiters =
            !self.slot_queue.is_empty() || self.store.iter().any(|store| !store.waiting.is_empty());
        let operations = self.store.iter().map(|store| store.in_use).sum();
        (self.slots, operations, memory, has_waiters)
    }

    /// Panics where a group or a tenant holds more than it may.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let fine = self.slots <= self.max_slots
            && self.slots == self.tenants.iter().map(|tenant| tenant.slots).sum::<usize>()
            && self.slots == self.groups.iter().map(|group| group.slots).sum::<usize>()
            && self.idle_tenants
                == self.tenants.iter().filter(|t| t.groups > 0 && t.slots == 0).count()
            && self.groups.iter().all(|group| group.slots <= group.demand.concurrency)
            && self.tenants.iter().all(|tenant| {
                tenant.quota.concurrency.is_none_or(|most| tenant.slots <= most)
                    && tenant.quota.memory_bytes.is_none_or(|most| tenant.memory <= most)
            });
        if !fine {
            panic!("{self:#?}");
        }
    }
}
