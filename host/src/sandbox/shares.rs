//! What all handlers of a host share and there is only so much of: connections, look-ups
//! of names, the slots of the instance pool.
//!
//! Whoever takes of it holds a [`Share`] until he drops it. Three bounds keep one from
//! taking all: a handler's own, its tenant's, and this one: a tenant takes no more than
//! would then be as much as is free. So a tenant that wants everything gets half, the
//! next one half of the rest, and there is always something for one that comes with
//! nothing. Who does not fit waits; of those who then fit, the one whose tenant holds
//! least comes first.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::event::Tenant;

/// So much of each of `N` things.
pub(super) type Amounts<const N: usize> = [usize; N];

/// Who takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Member {
    /// Owns the handler.
    pub(super) tenant: Tenant,
    /// The handler's name, whatever its version.
    pub(super) handler: String,
}

/// What somebody wants.
#[derive(Debug, Clone)]
pub(super) struct Claim<const N: usize> {
    /// Who.
    pub(super) member: Arc<Member>,
    /// How much.
    pub(super) wanted: Amounts<N>,
    /// How many shares the handler may hold at once.
    pub(super) most: usize,
}

/// Who holds what somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// The handler itself, as many shares as it may.
    Handler,
    /// Its tenant, as much as it may.
    Tenant,
    /// Other tenants.
    Others,
}

/// Something that is shared.
#[derive(Debug)]
pub(super) struct Shares<const N: usize>(
    Mutex<Book<N>>,
    /// Whether anybody waits.
    AtomicBool,
);

#[derive(Debug)]
struct Book<const N: usize> {
    /// How much there is.
    all: Amounts<N>,
    taken: Amounts<N>,
    tenants: HashMap<Tenant, Owner<N>>,
    /// How many shares each handler holds that holds any.
    members: HashMap<Arc<Member>, usize>,
    waiting: HashMap<Arc<Member>, VecDeque<Waiting<N>>>,
    /// Of whoever comes to wait next.
    number: u64,
}

#[derive(Debug)]
struct Owner<const N: usize> {
    taken: Amounts<N>,
    /// Of the first thing.
    ceiling: Option<usize>,
}

impl<const N: usize> Default for Owner<N> {
    fn default() -> Self {
        Self { taken: [0; N], ceiling: None }
    }
}

#[derive(Debug)]
struct Waiting<const N: usize> {
    number: u64,
    claim: Claim<N>,
    ticket: oneshot::Sender<Share<N>>,
}

/// What somebody holds, until it is dropped.
#[derive(Debug)]
pub(super) struct Share<const N: usize> {
    shares: Arc<Shares<N>>,
    member: Arc<Member>,
    taken: Amounts<N>,
}

impl<const N: usize> Shares<N> {
    /// So much.
    pub(super) fn new(all: Amounts<N>) -> Self {
        let book = Book {
            all,
            taken: [0; N],
            tenants: HashMap::new(),
            members: HashMap::new(),
            waiting: HashMap::new(),
            number: 0,
        };
        Self(Mutex::new(book), AtomicBool::new(false))
    }

    /// How much there is of each in all.
    pub(super) fn all(&self) -> Amounts<N> {
        self.book().all
    }

    /// Sets the ceilings of every tenant on the first thing; one that is not named has
    /// none from now on.
    pub(super) fn bound<'a>(self: &Arc<Self>, tenants: impl Iterator<Item = (&'a Tenant, usize)>) {
        {
            let mut book = self.book();
            for owner in book.tenants.values_mut() {
                owner.ceiling = None;
            }
            for (tenant, ceiling) in tenants {
                book.tenants.entry(tenant.clone()).or_default().ceiling = Some(ceiling);
            }
        }
        self.give();
    }

    /// Waits for what is wanted. May be dropped in the middle.
    pub(super) async fn acquire(self: &Arc<Self>, claim: &Claim<N>) -> Share<N> {
        self.acquire_and(claim, || {}).await
    }

    /// Waits for what is wanted; where it is not there, something is done about it first.
    /// May be dropped in the middle.
    pub(super) async fn acquire_and(
        self: &Arc<Self>,
        claim: &Claim<N>,
        make_room: impl Fn(),
    ) -> Share<N> {
        loop {
            let granted = {
                let mut book = self.book();
                let waits = book.waiting.contains_key(&claim.member);
                if !waits && book.holder(claim).is_none() {
                    book.take(claim);
                    return self.share(claim);
                }
                self.1.store(true, Ordering::Relaxed);
                book.wait(claim)
            };
            make_room();
            // Those before it may have given up.
            self.give();
            if let Ok(share) = granted.await {
                return share;
            }
        }
    }

    /// Whether anybody waits; whoever came to wait just now is seen by those who changed
    /// something after he looked at it.
    pub(super) fn are_waited_for(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }

    /// Whether anybody of the same handler waits.
    pub(super) fn waits(&self, claim: &Claim<N>) -> bool {
        self.book().waiting.contains_key(&claim.member)
    }

    /// Who holds what is wanted; `None` if it is there.
    pub(super) fn holder(&self, claim: &Claim<N>) -> Option<Holder> {
        self.book().holder(claim)
    }

    /// Gives what is free to those who wait and fit.
    fn give(self: &Arc<Self>) {
        loop {
            let next = {
                let mut book = self.book();
                let next = book.next();
                self.1.store(!book.waiting.is_empty(), Ordering::Relaxed);
                next
            };
            let Some(waiting) = next else { return };
            // One that is not taken any more comes back when it is dropped.
            drop(waiting.ticket.send(self.share(&waiting.claim)));
        }
    }

    fn share(self: &Arc<Self>, claim: &Claim<N>) -> Share<N> {
        Share { shares: Arc::clone(self), member: Arc::clone(&claim.member), taken: claim.wanted }
    }

    fn book(&self) -> MutexGuard<'_, Book<N>> {
        // Sums of numbers; a share too many or too few is better than a host that stands
        // still.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<const N: usize> Book<N> {
    fn holder(&self, claim: &Claim<N>) -> Option<Holder> {
        if self.members.get(&claim.member).is_some_and(|held| *held >= claim.most) {
            return Some(Holder::Handler);
        }
        let none = Owner::default();
        let owner = self.tenants.get(&claim.member.tenant).unwrap_or(&none);
        let over = |(taken, wanted): (usize, usize)| {
            owner.ceiling.is_some_and(|most| taken.saturating_add(wanted) > most)
        };
        if owner.taken.first().copied().zip(claim.wanted.first().copied()).is_some_and(over) {
            return Some(Holder::Tenant);
        }
        let is_short = (0..N).any(|thing| {
            let wanted = claim.wanted[thing];
            let free = self.all[thing].saturating_sub(self.taken[thing]);
            let own = owner.taken[thing];
            wanted > free || own > 0 && own.saturating_add(wanted) > free
        });
        if !is_short {
            return None;
        }
        // Whoever holds what is one's due among those who hold something waits for himself.
        let holders = self.tenants.values().filter(|owner| owner.taken != [0; N]).count();
        let has_its_due = (0..N).any(|thing| {
            let own = owner.taken[thing];
            own > 0 && own.saturating_mul(holders) >= self.taken[thing]
        });
        Some(if has_its_due { Holder::Tenant } else { Holder::Others })
    }

    fn take(&mut self, claim: &Claim<N>) {
        let owner = self.tenants.entry(claim.member.tenant.clone()).or_default();
        for (sum, wanted) in self.taken.iter_mut().zip(&claim.wanted) {
            *sum += wanted;
        }
        for (sum, wanted) in owner.taken.iter_mut().zip(&claim.wanted) {
            *sum += wanted;
        }
        *self.members.entry(Arc::clone(&claim.member)).or_default() += 1;
    }

    fn give_back(&mut self, member: &Arc<Member>, taken: &Amounts<N>) {
        for (sum, back) in self.taken.iter_mut().zip(taken) {
            *sum = sum.saturating_sub(*back);
        }
        if let Entry::Occupied(mut owner) = self.tenants.entry(member.tenant.clone()) {
            let its = owner.get_mut();
            for (sum, back) in its.taken.iter_mut().zip(taken) {
                *sum = sum.saturating_sub(*back);
            }
            if its.taken == [0; N] && its.ceiling.is_none() {
                owner.remove();
            }
        }
        if let Entry::Occupied(mut held) = self.members.entry(Arc::clone(member)) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }

    /// Somebody waits from now on.
    fn wait(&mut self, claim: &Claim<N>) -> oneshot::Receiver<Share<N>> {
        let (ticket, granted) = oneshot::channel();
        self.number += 1;
        let waiting = Waiting { number: self.number, claim: claim.clone(), ticket };
        self.waiting.entry(Arc::clone(&claim.member)).or_default().push_back(waiting);
        granted
    }

    /// Takes for the next one who waits and fits.
    fn next(&mut self) -> Option<Waiting<N>> {
        self.waiting.retain(|_, line| {
            while line.front().is_some_and(|first| first.ticket.is_closed()) {
                line.pop_front();
            }
            !line.is_empty()
        });
        let held = |claim: &Claim<N>| {
            let owner = self.tenants.get(&claim.member.tenant);
            owner.map_or(0, |owner| owner.taken.iter().copied().max().unwrap_or(0))
        };
        let heads = self.waiting.values().filter_map(VecDeque::front);
        let first = heads
            .filter(|first| self.holder(&first.claim).is_none())
            .min_by_key(|first| (held(&first.claim), first.number))?;
        let member = Arc::clone(&first.claim.member);
        let line = self.waiting.get_mut(&member)?;
        let waiting = line.pop_front()?;
        if line.is_empty() {
            self.waiting.remove(&member);
        }
        self.take(&waiting.claim);
        Some(waiting)
    }
}

impl<const N: usize> Drop for Share<N> {
    fn drop(&mut self) {
        let is_waited_for = {
            let mut book = self.shares.book();
            book.give_back(&self.member, &self.taken);
            // Whoever comes to wait after this has seen what was given back.
            self.shares.are_waited_for()
        };
        if is_waited_for {
            self.shares.give();
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
            member: Arc::new(Member { tenant, handler: handler.to_owned() }),
            wanted: [1],
            most,
        }
    }

    fn try_take<const N: usize>(shares: &Arc<Shares<N>>, claim: &Claim<N>) -> Option<Share<N>> {
        shares.acquire(claim).now_or_never()
    }

    fn take_all<const N: usize>(shares: &Arc<Shares<N>>, claim: &Claim<N>) -> Vec<Share<N>> {
        std::iter::from_fn(|| try_take(shares, claim)).collect()
    }

    #[test]
    fn whoever_wants_everything_leaves_half_of_what_is_free_for_the_next() {
        let shares = Arc::new(Shares::new([64]));
        let greedy = claim("greedy", "a", 1_000);
        let held = take_all(&shares, &greedy);
        assert_eq!(held.len(), 32);
        assert_eq!(shares.holder(&greedy), Some(Holder::Tenant), "it waits for itself");
        assert!(try_take(&shares, &claim("greedy", "b", 1_000)).is_none());
        let second = take_all(&shares, &claim("second", "a", 1_000));
        assert_eq!(second.len(), 16);
        let third = take_all(&shares, &claim("third", "a", 1_000));
        assert_eq!(third.len(), 8);
        drop((second, third, held));
        assert_eq!(take_all(&shares, &greedy).len(), 32, "everything comes back");
    }

    #[test]
    fn a_handler_and_a_tenant_hold_what_they_may_and_are_told_apart() {
        let shares = Arc::new(Shares::new([64]));
        let acme: Tenant = "acme".parse().unwrap();
        shares.bound([(&acme, 5)].into_iter());
        let (one, other) = (claim("acme", "one", 3), claim("acme", "other", 3));
        let held = take_all(&shares, &one);
        assert_eq!((held.len(), shares.holder(&one)), (3, Some(Holder::Handler)));
        let others = take_all(&shares, &other);
        assert_eq!((others.len(), shares.holder(&other)), (2, Some(Holder::Tenant)));
        drop(held);
        assert_eq!(take_all(&shares, &other).len(), 1);
    }

    #[tokio::test]
    async fn who_waits_is_served_when_something_comes_back_and_least_holders_first() {
        let shares = Arc::new(Shares::new([8]));
        let (greedy, meek) = (claim("greedy", "a", 100), claim("meek", "a", 100));
        let mut held = take_all(&shares, &greedy);
        held.extend(take_all(&shares, &claim("second", "a", 100)));
        held.extend(take_all(&shares, &claim("third", "a", 100)));
        held.extend(take_all(&shares, &claim("fourth", "a", 100)));
        assert_eq!(held.len(), 8);
        assert_eq!(shares.holder(&meek), Some(Holder::Others));
        let mut first = Box::pin(shares.acquire(&greedy));
        let mut second = Box::pin(shares.acquire(&meek));
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
        let shares = Arc::new(Shares::new([2]));
        let one = claim("", "one", 1);
        let held = try_take(&shares, &one);
        let mut gone = Box::pin(shares.acquire(&one));
        assert!(gone.as_mut().now_or_never().is_none());
        let mut next = Box::pin(shares.acquire(&one));
        assert!(next.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        drop(next.await);
        // One that was granted and never looked at.
        let held = try_take(&shares, &one);
        let mut never = Box::pin(shares.acquire(&one));
        assert!(never.as_mut().now_or_never().is_none());
        drop(held);
        drop(never);
        assert!(try_take(&shares, &one).is_some());
        assert_eq!(shares.book().taken, [0]);
    }

    #[test]
    fn whoever_lacks_one_of_several_things_takes_none() {
        let shares = Arc::new(Shares::new([100, 10]));
        let member = |tenant: &str| claim(tenant, "a", 1_000).member;
        let wide = Claim { member: member("wide"), wanted: [1, 4], most: 1_000 };
        let slim = Claim { member: member("slim"), wanted: [1, 1], most: 1_000 };
        let held = take_all(&shares, &wide);
        assert_eq!(held.len(), 1);
        assert_eq!(take_all(&shares, &slim).len(), 3);
        assert_eq!(shares.book().taken, [1, 4]);
    }
}
