//! Who holds what. Pure bookkeeping: what it decides is decided at once, for
//! handler, tenant and host together, and whoever was granted something is told.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use futures_util::task::AtomicWaker;

use super::bucket::Rates;
use super::lane::{Lane, Users};
use super::queue::{FairQueue, Fit};
use super::{Demand, TenantQuota};
use crate::event::Tenant;

/// A group that is entered, by its place in the book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupId(pub(super) usize);

/// Somebody who waits for one thing.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    granted: AtomicBool,
    /// The memory that was granted besides, in bytes.
    memory: AtomicUsize,
    waker: AtomicWaker,
}

impl Ticket {
    /// Whether it was granted; whoever is told no is woken when it is.
    pub(super) fn is_granted(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        self.granted.load(Ordering::Acquire)
    }

    /// The memory that came with it, in bytes, once it is granted.
    pub(super) fn memory(&self) -> usize {
        self.memory.load(Ordering::Acquire)
    }

    pub(super) fn grant(&self, memory: usize) {
        self.memory.store(memory, Ordering::Release);
        self.granted.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// What a place costs: whoever has one makes room after a slice, so all cost the
/// same.
const A_PLACE: u64 = 1;

/// What is asked for beside a place.
type Waiter = (Arc<Ticket>, Memory);

/// What is to become of the handler's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// It is to be taken together with the place.
    Wanted,
    /// There is none to take.
    Free,
    /// It was taken already.
    Held,
}

#[derive(Debug)]
struct Owner {
    quota: TenantQuota,
    rates: Arc<Rates>,
    /// Groups that are entered.
    groups: usize,
    /// Attempts that hold a place.
    places: usize,
    /// Bytes.
    memory: usize,
}

#[derive(Debug)]
struct Group {
    owner: usize,
    demand: Demand,
    places: usize,
}

/// Everything that is held and waited for.
#[derive(Debug)]
pub(super) struct Book {
    /// Attempts at once that the host has to give.
    attempts: usize,
    places: usize,
    owners: Vec<Owner>,
    by_name: HashMap<Tenant, usize>,
    groups: Vec<Group>,
    /// Numbers of groups that have left.
    free: Vec<usize>,
    /// Owners with groups and without places.
    resting: usize,
    for_places: FairQueue<Waiter>,
    /// What is used in turn, by the numbers of [`Lane`].
    lanes: [Users; Lane::ALL.len()],
}

impl Book {
    pub(super) fn new(attempts: usize) -> Self {
        Self {
            attempts,
            places: 0,
            owners: Vec::new(),
            by_name: HashMap::new(),
            groups: Vec::new(),
            free: Vec::new(),
            resting: 0,
            for_places: FairQueue::default(),
            lanes: Default::default(),
        }
    }

    pub(super) fn configure<'a>(
        &mut self,
        attempts: usize,
        tenants: impl IntoIterator<Item = (&'a Tenant, &'a TenantQuota)>,
    ) {
        self.attempts = attempts;
        let mut named: HashMap<&Tenant, &TenantQuota> = tenants.into_iter().collect();
        for (tenant, owner) in &self.by_name {
            let owner = &mut self.owners[*owner];
            owner.quota = named.remove(tenant).cloned().unwrap_or_default();
            owner.rates.set(&owner.quota);
        }
        for (tenant, quota) in named {
            self.add_owner(tenant.clone(), quota.clone());
        }
        self.give_places();
    }

    fn add_owner(&mut self, tenant: Tenant, quota: TenantQuota) -> usize {
        let rates = Arc::new(Rates::default());
        rates.set(&quota);
        self.owners.push(Owner { quota, rates, groups: 0, places: 0, memory: 0 });
        self.by_name.insert(tenant, self.owners.len() - 1);
        self.owners.len() - 1
    }

    /// Enters a group, and gives the number and the rates of its tenant.
    pub(super) fn enter(
        &mut self,
        tenant: &Tenant,
        demand: Demand,
    ) -> (usize, GroupId, Arc<Rates>) {
        let owner = match self.by_name.get(tenant) {
            Some(owner) => *owner,
            None => self.add_owner(tenant.clone(), TenantQuota::default()),
        };
        let entered = Group { owner, demand, places: 0 };
        let group = match self.free.pop() {
            Some(group) => {
                self.groups[group] = entered;
                group
            }
            None => {
                self.groups.push(entered);
                self.groups.len() - 1
            }
        };
        self.for_places.enter(owner, group);
        for lane in &mut self.lanes {
            lane.waiting.enter(owner, group);
        }
        let entered = &mut self.owners[owner];
        self.resting += usize::from(entered.groups == 0);
        entered.groups += 1;
        (owner, GroupId(group), Arc::clone(&entered.rates))
    }

    /// A group leaves that holds nothing and waits for nothing.
    pub(super) fn leave(&mut self, GroupId(group): GroupId) {
        let owner = &mut self.owners[self.groups[group].owner];
        owner.groups -= 1;
        self.resting -= usize::from(owner.groups == 0);
        self.free.push(group);
        // What was kept free for its tenant.
        self.give_places();
    }

    pub(super) fn quota(&self, GroupId(group): GroupId) -> &TenantQuota {
        &self.owners[self.groups[group].owner].quota
    }

    pub(super) fn in_use(&self) -> usize {
        self.places
    }

    /// Whether anybody waits for a place.
    pub(super) fn places_are_waited_for(&self) -> bool {
        !self.for_places.is_empty()
    }

    /// Takes a place, with the handler's memory if that is wanted, and says how
    /// much; else who waits now.
    pub(super) fn ask_for_place(
        &mut self,
        GroupId(group): GroupId,
        memory: Memory,
    ) -> Result<usize, Arc<Ticket>> {
        let owner = self.groups[group].owner;
        if self.for_places.is_empty() && self.fits(owner, group, memory) == Fit::Yes {
            self.for_places.serve(owner, group, A_PLACE);
            return Ok(self.take_place(group, memory));
        }
        let ticket = Arc::new(Ticket::default());
        // Who holds memory needs none, and those behind him may wait for his.
        let before = memory == Memory::Held;
        self.for_places.push(owner, group, (Arc::clone(&ticket), memory), before);
        self.give_places();
        if ticket.granted.load(Ordering::Relaxed) { Ok(ticket.memory()) } else { Err(ticket) }
    }

    /// Gives up waiting for a place. False when it was granted meanwhile.
    pub(super) fn give_up_place(&mut self, GroupId(group): GroupId, ticket: &Arc<Ticket>) -> bool {
        let owner = self.groups[group].owner;
        let gave_up =
            self.for_places.remove(owner, group, |(waiting, _)| Arc::ptr_eq(waiting, ticket));
        if gave_up {
            // Those behind it may have waited for nothing else.
            self.give_places();
        }
        gave_up
    }

    /// Gives back a place, or memory, or both.
    pub(super) fn give_back(&mut self, GroupId(group): GroupId, place: bool, memory: usize) {
        let owner = self.groups[group].owner;
        self.owners[owner].memory -= memory;
        if place {
            self.places -= 1;
            self.groups[group].places -= 1;
            self.owners[owner].places -= 1;
            self.resting += usize::from(self.owners[owner].places == 0);
        }
        if place || memory > 0 {
            self.give_places();
        }
    }

    /// What a handler's memory counts as: within the quota, or it would wait for
    /// ever.
    fn memory_of(&self, group: usize) -> usize {
        let Group { owner, demand, .. } = &self.groups[group];
        self.owners[*owner].quota.memory_bytes.map_or(0, |most| demand.memory_bytes.min(most))
    }

    fn fits(&self, owner: usize, group: usize, memory: Memory) -> Fit {
        let (theirs, its) = (&self.owners[owner], &self.groups[group]);
        let free = self.attempts.saturating_sub(self.places);
        let kept = if theirs.places == 0 { 0 } else { self.resting.min(self.attempts / 2) };
        if free <= kept || theirs.quota.concurrency.is_some_and(|most| theirs.places >= most) {
            return Fit::NotThisTenant;
        }
        let lacks_memory = memory == Memory::Wanted
            && theirs
                .quota
                .memory_bytes
                .is_some_and(|most| theirs.memory.saturating_add(self.memory_of(group)) > most);
        if lacks_memory || its.places >= its.demand.concurrency {
            return Fit::NotThisGroup;
        }
        Fit::Yes
    }

    /// Gives the memory that was taken besides.
    fn take_place(&mut self, group: usize, memory: Memory) -> usize {
        let bytes = if memory == Memory::Wanted { self.memory_of(group) } else { 0 };
        let its = &mut self.groups[group];
        its.places += 1;
        let owner = &mut self.owners[its.owner];
        self.resting -= usize::from(owner.places == 0);
        owner.places += 1;
        owner.memory += bytes;
        self.places += 1;
        bytes
    }

    /// Gives every place that is free to somebody who waits, if one fits.
    fn give_places(&mut self) {
        while self.places < self.attempts && !self.for_places.is_empty() {
            let mut queue = std::mem::take(&mut self.for_places);
            // Memory goes in order: else a large handler would wait for as long as
            // small ones come.
            let mut out_of_memory = None;
            let first = queue.take_first(A_PLACE, |owner, group, (_, memory)| {
                if *memory == Memory::Wanted && out_of_memory == Some(owner) {
                    return Fit::NotThisGroup;
                }
                let fit = self.fits(owner, group, *memory);
                if *memory == Memory::Wanted && fit == Fit::NotThisGroup {
                    out_of_memory = Some(owner);
                }
                fit
            });
            self.for_places = queue;
            let Some((_, group, (ticket, memory))) = first else { return };
            let memory = self.take_place(group, memory);
            ticket.grant(memory);
        }
    }

    /// Takes a turn, of which there are so many at once. `None` when it was there;
    /// else who waits now.
    pub(super) fn ask_for_turn(
        &mut self,
        lane: Lane,
        GroupId(group): GroupId,
        at_once: usize,
    ) -> Option<Arc<Ticket>> {
        self.lanes[lane as usize].ask(self.groups[group].owner, group, at_once)
    }

    /// Gives up waiting for a turn. False when it was granted meanwhile.
    pub(super) fn give_up_turn(
        &mut self,
        lane: Lane,
        GroupId(group): GroupId,
        ticket: &Arc<Ticket>,
    ) -> bool {
        let owner = self.groups[group].owner;
        self.lanes[lane as usize].give_up(owner, group, ticket)
    }

    /// Gives back a turn that took so long.
    pub(super) fn end_turn(&mut self, lane: Lane, GroupId(group): GroupId, took: Duration) {
        let owner = self.groups[group].owner;
        self.lanes[lane as usize].end(owner, group, took);
    }

    /// Places, turns, bytes of memory, and waiters: for tests that all come back.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize, usize, bool) {
        let memory = self.owners.iter().map(|owner| owner.memory).sum();
        let waited_for =
            !self.for_places.is_empty() || self.lanes.iter().any(|lane| !lane.waiting.is_empty());
        let turns = self.lanes.iter().map(|lane| lane.at_once).sum();
        (self.places, turns, memory, waited_for)
    }

    /// Panics where somebody has more than he may.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let fine = self.places <= self.attempts
            && self.places == self.owners.iter().map(|owner| owner.places).sum::<usize>()
            && self.places == self.groups.iter().map(|group| group.places).sum::<usize>()
            && self.resting == self.owners.iter().filter(|o| o.groups > 0 && o.places == 0).count()
            && self.groups.iter().all(|group| group.places <= group.demand.concurrency)
            && self.owners.iter().all(|owner| {
                owner.quota.concurrency.is_none_or(|most| owner.places <= most)
                    && owner.quota.memory_bytes.is_none_or(|most| owner.memory <= most)
            });
        if !fine {
            panic!("{self:#?}");
        }
    }
}
