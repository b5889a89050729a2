//! A semaphore that is fair among tenants: for connections, look-ups of names, and the
//! instance pool, of which all handlers of a host have a limited amount together.
//!
//! A handler acquires a [`FairPermit`] and holds it until it is dropped. Three limits keep
//! one from taking all: the handler's own, its tenant's, and this one: after an
//! acquisition, a tenant holds at most as much as is still free. So a tenant that wants
//! everything gets half, the next one half of the rest, and there is always something for
//! one that holds nothing. A claim that does not fit waits; of those that then fit, the
//! one whose tenant holds least comes first.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use event_host_core::event::Tenant;

/// An amount of each of `N` things.
pub(super) type Amounts<const N: usize> = [usize; N];

/// Which handler acquires.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct HandlerId {
    /// The tenant that owns the handler.
    pub(super) tenant: Tenant,
    /// The handler's name, whatever its version.
    pub(super) handler: String,
}

/// What a handler wants to acquire.
#[derive(Debug, Clone)]
pub(super) struct Claim<const N: usize> {
    /// The handler.
    pub(super) handler_id: Arc<HandlerId>,
    /// The amount.
    pub(super) wanted: Amounts<N>,
    /// How many permits the handler may hold at once.
    pub(super) most: usize,
}

/// Who holds what a claim waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeldBy {
    /// The handler itself: as many permits as it may.
    Handler,
    /// Its tenant: as much as it may.
    Tenant,
    /// Other tenants.
    Others,
}

/// The semaphore.
#[derive(Debug)]
pub(super) struct FairSemaphore<const N: usize>(
    Mutex<Balance<N>>,
    /// Whether any claim waits.
    AtomicBool,
);

#[derive(Debug)]
struct Balance<const N: usize> {
    /// How much there is.
    all: Amounts<N>,
    taken: Amounts<N>,
    tenants: HashMap<Tenant, TenantUsage<N>>,
    /// How many permits each handler holds that holds any.
    handlers: HashMap<Arc<HandlerId>, usize>,
    waiting: HashMap<Arc<HandlerId>, VecDeque<Waiter<N>>>,
    /// The number of the last claim that came to wait.
    number: u64,
}

#[derive(Debug)]
struct TenantUsage<const N: usize> {
    taken: Amounts<N>,
    /// The tenant's limit on the first of the things.
    limit: Option<usize>,
}

impl<const N: usize> Default for TenantUsage<N> {
    fn default() -> Self {
        Self { taken: [0; N], limit: None }
    }
}

#[derive(Debug)]
struct Waiter<const N: usize> {
    number: u64,
    claim: Claim<N>,
    ticket: oneshot::Sender<FairPermit<N>>,
}

/// What a handler holds, until this is dropped.
#[derive(Debug)]
pub(super) struct FairPermit<const N: usize> {
    semaphore: Arc<FairSemaphore<N>>,
    handler_id: Arc<HandlerId>,
    taken: Amounts<N>,
}

impl<const N: usize> FairSemaphore<N> {
    /// A semaphore over this amount.
    pub(super) fn new(all: Amounts<N>) -> Self {
        let balance = Balance {
            all,
            taken: [0; N],
            tenants: HashMap::new(),
            handlers: HashMap::new(),
            waiting: HashMap::new(),
            number: 0,
        };
        Self(Mutex::new(balance), AtomicBool::new(false))
    }

    /// How much there is of each, held or free.
    pub(super) fn all(&self) -> Amounts<N> {
        self.balance().all
    }

    /// Sets every tenant's limit on the first thing; a tenant that is not named has none
    /// from now on.
    pub(super) fn set_limits<'a>(
        self: &Arc<Self>,
        tenants: impl Iterator<Item = (&'a Tenant, usize)>,
    ) {
        {
            let mut balance = self.balance();
            for tenant in balance.tenants.values_mut() {
                tenant.limit = None;
            }
            for (tenant, limit) in tenants {
                balance.tenants.entry(tenant.clone()).or_default().limit = Some(limit);
            }
        }
        self.grant();
    }

    /// Waits for what is claimed. The future may be dropped at any await.
    pub(super) async fn acquire(self: &Arc<Self>, claim: &Claim<N>) -> FairPermit<N> {
        self.acquire_and(claim, || {}).await
    }

    /// Waits for what is claimed; where it is not free, calls `before_waiting` first. The
    /// future may be dropped at any await.
    pub(super) async fn acquire_and(
        self: &Arc<Self>,
        claim: &Claim<N>,
        before_waiting: impl Fn(),
    ) -> FairPermit<N> {
        loop {
            let granted = {
                let mut balance = self.balance();
                let waits = balance.waiting.contains_key(&claim.handler_id);
                if !waits && balance.held_by(claim).is_none() {
                    balance.acquire(claim);
                    return self.permit(claim);
                }
                self.1.store(true, Ordering::Relaxed);
                balance.wait(claim)
            };
            before_waiting();
            // A cancelled claim of the same handler may still be queued; `grant` skips it.
            self.grant();
            if let Ok(permit) = granted.await {
                return permit;
            }
        }
    }

    /// Whether any claim waits. A change that is made after a claim began to wait sees
    /// that it waits.
    pub(super) fn has_waiters(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }

    /// Whether a claim of the same handler waits.
    pub(super) fn waits(&self, claim: &Claim<N>) -> bool {
        self.balance().waiting.contains_key(&claim.handler_id)
    }

    /// Who holds what is claimed; `None` if it is free.
    pub(super) fn held_by(&self, claim: &Claim<N>) -> Option<HeldBy> {
        self.balance().held_by(claim)
    }

    /// Grants what is free to the claims that wait and fit.
    fn grant(self: &Arc<Self>) {
        loop {
            let next = {
                let mut balance = self.balance();
                let next = balance.next();
                self.1.store(!balance.waiting.is_empty(), Ordering::Relaxed);
                next
            };
            let Some(waiting) = next else { return };
            // A permit that its claim no longer waits for is released when it is dropped.
            drop(waiting.ticket.send(self.permit(&waiting.claim)));
        }
    }

    fn permit(self: &Arc<Self>, claim: &Claim<N>) -> FairPermit<N> {
        FairPermit {
            semaphore: Arc::clone(self),
            handler_id: Arc::clone(&claim.handler_id),
            taken: claim.wanted,
        }
    }

    fn balance(&self) -> MutexGuard<'_, Balance<N>> {
        // Sums of numbers; one permit too many or too few is better than a host that stops.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<const N: usize> Balance<N> {
    fn held_by(&self, claim: &Claim<N>) -> Option<HeldBy> {
        if self.handlers.get(&claim.handler_id).is_some_and(|held| *held >= claim.most) {
            return Some(HeldBy::Handler);
        }
        let none = TenantUsage::default();
        let tenant = self.tenants.get(&claim.handler_id.tenant).unwrap_or(&none);
        let over = |(taken, wanted): (usize, usize)| {
            tenant.limit.is_some_and(|most| taken.saturating_add(wanted) > most)
        };
        if tenant.taken.first().copied().zip(claim.wanted.first().copied()).is_some_and(over) {
            return Some(HeldBy::Tenant);
        }
        let is_short = (0..N).any(|thing| {
            let wanted = claim.wanted[thing];
            let free = self.all[thing].saturating_sub(self.taken[thing]);
            let own = tenant.taken[thing];
            wanted > free || own > 0 && own.saturating_add(wanted) > free
        });
        if !is_short {
            return None;
        }
        // A tenant that holds an equal part of what all tenants hold waits for itself.
        let holders = self.tenants.values().filter(|tenant| tenant.taken != [0; N]).count();
        let has_equal_part = (0..N).any(|thing| {
            let own = tenant.taken[thing];
            own > 0 && own.saturating_mul(holders) >= self.taken[thing]
        });
        Some(if has_equal_part { HeldBy::Tenant } else { HeldBy::Others })
    }

    fn acquire(&mut self, claim: &Claim<N>) {
        let tenant = self.tenants.entry(claim.handler_id.tenant.clone()).or_default();
        for (sum, wanted) in self.taken.iter_mut().zip(&claim.wanted) {
            *sum += wanted;
        }
        for (sum, wanted) in tenant.taken.iter_mut().zip(&claim.wanted) {
            *sum += wanted;
        }
        *self.handlers.entry(Arc::clone(&claim.handler_id)).or_default() += 1;
    }

    fn release(&mut self, handler_id: &Arc<HandlerId>, taken: &Amounts<N>) {
        for (sum, back) in self.taken.iter_mut().zip(taken) {
            *sum = sum.saturating_sub(*back);
        }
        if let Entry::Occupied(mut tenant) = self.tenants.entry(handler_id.tenant.clone()) {
            let its = tenant.get_mut();
            for (sum, back) in its.taken.iter_mut().zip(taken) {
                *sum = sum.saturating_sub(*back);
            }
            if its.taken == [0; N] && its.limit.is_none() {
                tenant.remove();
            }
        }
        if let Entry::Occupied(mut held) = self.handlers.entry(Arc::clone(handler_id)) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }

    /// Enqueues a claim.
    fn wait(&mut self, claim: &Claim<N>) -> oneshot::Receiver<FairPermit<N>> {
        let (ticket, granted) = oneshot::channel();
        self.number += 1;
        let waiting = Waiter { number: self.number, claim: claim.clone(), ticket };
        self.waiting.entry(Arc::clone(&claim.handler_id)).or_default().push_back(waiting);
        granted
    }

    /// Acquires for the next claim that waits and fits.
    fn next(&mut self) -> Option<Waiter<N>> {
        self.waiting.retain(|_, queue| {
            while queue.front().is_some_and(|first| first.ticket.is_closed()) {
                queue.pop_front();
            }
            !queue.is_empty()
        });
        let held = |claim: &Claim<N>| {
            let tenant = self.tenants.get(&claim.handler_id.tenant);
            tenant.map_or(0, |tenant| tenant.taken.iter().copied().max().unwrap_or(0))
        };
        let heads = self.waiting.values().filter_map(VecDeque::front);
        let first = heads
            .filter(|first| self.held_by(&first.claim).is_none())
            .min_by_key(|first| (held(&first.claim), first.number))?;
        let handler_id = Arc::clone(&first.claim.handler_id);
        let queue = self.waiting.get_mut(&handler_id)?;
        let waiting = queue.pop_front()?;
        if queue.is_empty() {
            self.waiting.remove(&handler_id);
        }
        self.acquire(&waiting.claim);
        Some(waiting)
    }
}

impl<const N: usize> Drop for FairPermit<N> {
    fn drop(&mut self) {
        let is_waited_for = {
            let mut balance = self.semaphore.balance();
            balance.release(&self.handler_id, &self.taken);
            // A claim that begins to wait after this has seen what was released.
            self.semaphore.has_waiters()
        };
        if is_waited_for {
            self.semaphore.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn claim(tenant: &str, handler: &str, most: usize) -> Claim<1> {
        let tenant = if tenant.is_empty() { Tenant::none() } else { tenant.parse().unwrap() };
        Claim {
            handler_id: Arc::new(HandlerId { tenant, handler: handler.to_owned() }),
            wanted: [1],
            most,
        }
    }

    fn try_take<const N: usize>(
        semaphore: &Arc<FairSemaphore<N>>,
        claim: &Claim<N>,
    ) -> Option<FairPermit<N>> {
        semaphore.acquire(claim).now_or_never()
    }

    fn take_all<const N: usize>(
        semaphore: &Arc<FairSemaphore<N>>,
        claim: &Claim<N>,
    ) -> Vec<FairPermit<N>> {
        std::iter::from_fn(|| try_take(semaphore, claim)).collect()
    }

    #[test]
    fn whoever_wants_everything_leaves_half_of_what_is_free_for_the_next() {
        let semaphore = Arc::new(FairSemaphore::new([64]));
        let greedy = claim("greedy", "a", 1_000);
        let held = take_all(&semaphore, &greedy);
        assert_eq!(held.len(), 32);
        assert_eq!(semaphore.held_by(&greedy), Some(HeldBy::Tenant), "it waits for itself");
        assert!(try_take(&semaphore, &claim("greedy", "b", 1_000)).is_none());
        let second = take_all(&semaphore, &claim("second", "a", 1_000));
        assert_eq!(second.len(), 16);
        let third = take_all(&semaphore, &claim("third", "a", 1_000));
        assert_eq!(third.len(), 8);
        drop((second, third, held));
        assert_eq!(take_all(&semaphore, &greedy).len(), 32, "everything comes back");
    }

    #[test]
    fn a_handler_and_a_tenant_hold_what_they_may_and_are_told_apart() {
        let semaphore = Arc::new(FairSemaphore::new([64]));
        let acme: Tenant = "acme".parse().unwrap();
        semaphore.set_limits([(&acme, 5)].into_iter());
        let (one, other) = (claim("acme", "one", 3), claim("acme", "other", 3));
        let held = take_all(&semaphore, &one);
        assert_eq!((held.len(), semaphore.held_by(&one)), (3, Some(HeldBy::Handler)));
        let others = take_all(&semaphore, &other);
        assert_eq!((others.len(), semaphore.held_by(&other)), (2, Some(HeldBy::Tenant)));
        drop(held);
        assert_eq!(take_all(&semaphore, &other).len(), 1);
    }

    #[tokio::test]
    async fn who_waits_is_served_when_something_comes_back_and_least_holders_first() {
        let semaphore = Arc::new(FairSemaphore::new([8]));
        let (greedy, meek) = (claim("greedy", "a", 100), claim("meek", "a", 100));
        let mut held = take_all(&semaphore, &greedy);
        held.extend(take_all(&semaphore, &claim("second", "a", 100)));
        held.extend(take_all(&semaphore, &claim("third", "a", 100)));
        held.extend(take_all(&semaphore, &claim("fourth", "a", 100)));
        assert_eq!(held.len(), 8);
        assert_eq!(semaphore.held_by(&meek), Some(HeldBy::Others));
        let mut first = Box::pin(semaphore.acquire(&greedy));
        let mut second = Box::pin(semaphore.acquire(&meek));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        drop(held.pop());
        assert!(first.as_mut().now_or_never().is_none(), "it holds more than the other");
        let _meek = second.await;
        drop(held);
        drop(first.await);
    }

    #[tokio::test]
    async fn who_gives_up_waiting_holds_up_nobody_and_loses_nothing() {
        let semaphore = Arc::new(FairSemaphore::new([2]));
        let one = claim("", "one", 1);
        let held = try_take(&semaphore, &one);
        let mut gone = Box::pin(semaphore.acquire(&one));
        assert!(gone.as_mut().now_or_never().is_none());
        let mut next = Box::pin(semaphore.acquire(&one));
        assert!(next.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        drop(next.await);
        // One that was granted and never looked at.
        let held = try_take(&semaphore, &one);
        let mut never = Box::pin(semaphore.acquire(&one));
        assert!(never.as_mut().now_or_never().is_none());
        drop(held);
        drop(never);
        assert!(try_take(&semaphore, &one).is_some());
        assert_eq!(semaphore.balance().taken, [0]);
    }

    #[test]
    fn whoever_lacks_one_of_several_things_takes_none() {
        let semaphore = Arc::new(FairSemaphore::new([100, 10]));
        let handler_id = |tenant: &str| claim(tenant, "a", 1_000).handler_id;
        let wide = Claim { handler_id: handler_id("wide"), wanted: [1, 4], most: 1_000 };
        let slim = Claim { handler_id: handler_id("slim"), wanted: [1, 1], most: 1_000 };
        let held = take_all(&semaphore, &wide);
        assert_eq!(held.len(), 1);
        assert_eq!(take_all(&semaphore, &slim).len(), 3);
        assert_eq!(semaphore.balance().taken, [1, 4]);
    }
}
