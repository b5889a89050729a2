//! A fair queue: first comes the tenant that has used least, and of its groups the one
//! that has.
//!
//! This is start-time fair queueing, once over tenants and once over the groups of
//! each. What a tenant or a group has used is its account. One that comes to wait after
//! a rest begins at the level of those that are served just then: unused time is not
//! saved up, and one that uses little comes before those that always want more. Of
//! equal accounts, the one that was served longest ago comes first.
//!
//! Pure bookkeeping over small numbers that identify tenants and groups. Every
//! operation costs the logarithm of the number that waits, except that waiters that do
//! not fit are passed one by one.

use std::collections::{BTreeSet, VecDeque};

/// Whether a waiter may be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// It may.
    Yes,
    /// It may not; another group of its tenant perhaps.
    NotThisGroup,
    /// No group of its tenant may.
    NotThisTenant,
}

/// The waiters of all groups.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    /// How many waiters were served.
    served: u64,
    tenants: Vec<Tenant>,
    groups: Vec<Group<T>>,
    among_tenants: Contenders,
}

#[derive(Debug, Default)]
struct Tenant {
    account: Account,
    among_groups: Contenders,
}

#[derive(Debug)]
struct Group<T> {
    account: Account,
    waiting: VecDeque<T>,
}

/// What a tenant or a group has used, and when it was last served, as a number that
/// grows. Their order is the order in which they are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Account {
    used: u64,
    served: u64,
}

/// The tenants of the queue, or the groups of one tenant, that compete with one another.
#[derive(Debug, Default)]
struct Contenders {
    /// The largest account, before it was charged, of those that were served so far.
    virtual_time: u64,
    waiting: BTreeSet<(Account, usize)>,
}

impl Contenders {
    /// One comes to wait.
    fn join(&mut self, account: &mut Account, number: usize) {
        account.used = account.used.max(self.virtual_time);
        self.waiting.insert((*account, number));
    }

    /// One waits no more.
    fn leave(&mut self, account: Account, number: usize) {
        self.waiting.remove(&(account, number));
    }

    /// One was served, whether it waits or not.
    fn serve(&mut self, account: &mut Account, number: usize, cost: u64, served: u64) {
        let waits = self.waiting.remove(&(*account, number));
        self.virtual_time = self.virtual_time.max(account.used);
        *account = Account { used: self.virtual_time.saturating_add(cost), served };
        if waits {
            self.waiting.insert((*account, number));
        }
    }

    /// One used more or less than it was charged.
    fn correct(&mut self, account: &mut Account, number: usize, charged: u64, cost: u64) {
        let waits = self.waiting.remove(&(*account, number));
        account.used = account.used.saturating_sub(charged).saturating_add(cost);
        if waits {
            self.waiting.insert((*account, number));
        }
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            served: 0,
            tenants: Vec::new(),
            groups: Vec::new(),
            among_tenants: Contenders::default(),
        }
    }
}

impl<T> FairQueue<T> {
    /// How many waiters a tenant has.
    pub(super) fn waiting_of(&self, tenant: usize) -> usize {
        let groups = self.tenants.get(tenant).map(|tenant| &tenant.among_groups.waiting);
        let groups = groups.into_iter().flatten().filter_map(|(_, group)| self.groups.get(*group));
        groups.map(|group| group.waiting.len()).sum()
    }

    /// Whether no group waits.
    pub(super) fn is_empty(&self) -> bool {
        self.among_tenants.waiting.is_empty()
    }

    /// Registers a group, with an account of its own even if another had its number
    /// before.
    pub(super) fn register(&mut self, tenant: usize, group: usize) {
        if self.tenants.len() <= tenant {
            self.tenants.resize_with(tenant + 1, Tenant::default);
        }
        while self.groups.len() <= group {
            self.groups.push(Group { account: Account::default(), waiting: VecDeque::new() });
        }
        self.groups[group].account = Account::default();
    }

    /// Enqueues a waiter, behind the others of its group or `before` them.
    pub(super) fn push(&mut self, tenant: usize, group: usize, waiter: T, before: bool) {
        let (tenant_entry, group_entry) = (&mut self.tenants[tenant], &mut self.groups[group]);
        if group_entry.waiting.is_empty() {
            if tenant_entry.among_groups.waiting.is_empty() {
                self.among_tenants.join(&mut tenant_entry.account, tenant);
            }
            tenant_entry.among_groups.join(&mut group_entry.account, group);
        }
        if before {
            group_entry.waiting.push_front(waiter);
        } else {
            group_entry.waiting.push_back(waiter);
        }
    }

    /// Removes the waiter that `is_meant`. False when it is not there.
    pub(super) fn remove(
        &mut self,
        tenant: usize,
        group: usize,
        is_meant: impl Fn(&T) -> bool,
    ) -> bool {
        let Some(at) = self.groups[group].waiting.iter().position(is_meant) else { return false };
        self.groups[group].waiting.remove(at);
        self.leave_if_empty(tenant, group);
        true
    }

    /// Charges a group that was served, whether it had waited or not. `cost` is above 0,
    /// or the group would always be first.
    pub(super) fn serve(&mut self, tenant: usize, group: usize, cost: u64) {
        self.served += 1;
        let entry = &mut self.tenants[tenant];
        self.among_tenants.serve(&mut entry.account, tenant, cost, self.served);
        let account = &mut self.groups[group].account;
        entry.among_groups.serve(account, group, cost, self.served);
    }

    /// Replaces what a group that was served was charged by what it really cost.
    pub(super) fn correct(&mut self, tenant: usize, group: usize, charged: u64, cost: u64) {
        let entry = &mut self.tenants[tenant];
        self.among_tenants.correct(&mut entry.account, tenant, charged, cost);
        let account = &mut self.groups[group].account;
        entry.among_groups.correct(account, group, charged, cost);
    }

    /// Serves the first waiter in order that fits, at this cost.
    pub(super) fn take_first(
        &mut self,
        cost: u64,
        mut fits: impl FnMut(usize, usize, &T) -> Fit,
    ) -> Option<(usize, usize, T)> {
        let (tenant, group) = self.among_tenants.waiting.iter().find_map(|&(_, tenant)| {
            for &(_, group) in &self.tenants[tenant].among_groups.waiting {
                // A group is in the set only while it has a waiter.
                let first = self.groups[group].waiting.front()?;
                match fits(tenant, group, first) {
                    Fit::Yes => return Some((tenant, group)),
                    Fit::NotThisGroup => {}
                    Fit::NotThisTenant => return None,
                }
            }
            None
        })?;
        let waiter = self.groups[group].waiting.pop_front()?;
        self.serve(tenant, group, cost);
        self.leave_if_empty(tenant, group);
        Some((tenant, group, waiter))
    }

    /// Removes a group without waiters from its set, and its tenant with the last one.
    fn leave_if_empty(&mut self, tenant: usize, group: usize) {
        let (tenant_entry, group_entry) = (&mut self.tenants[tenant], &self.groups[group]);
        if group_entry.waiting.is_empty() {
            tenant_entry.among_groups.leave(group_entry.account, group);
            if tenant_entry.among_groups.waiting.is_empty() {
                self.among_tenants.leave(tenant_entry.account, tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queue(groups: &[(usize, usize)]) -> FairQueue<u32> {
        let mut queue = FairQueue::default();
        for (tenant, group) in groups {
            queue.register(*tenant, *group);
        }
        queue
    }

    fn order(queue: &mut FairQueue<u32>) -> Vec<(usize, usize)> {
        std::iter::from_fn(|| queue.take_first(1, |_, _, _| Fit::Yes))
            .map(|(tenant, group, _)| (tenant, group))
            .collect()
    }

    #[test]
    fn a_tenant_with_hundreds_of_waiters_lets_the_other_through_after_one() {
        let groups: Vec<(usize, usize)> =
            (0..500).map(|group| (0, group)).chain([(1, 500)]).collect();
        let mut queue = queue(&groups);
        for round in 0..3 {
            for group in 0..500 {
                queue.push(0, group, round, false);
            }
        }
        assert_eq!(queue.take_first(1, |_, _, _| Fit::Yes).map(|(tenant, ..)| tenant), Some(0));
        queue.push(1, 500, 0, false);
        assert_eq!(queue.take_first(1, |_, _, _| Fit::Yes).map(|(tenant, ..)| tenant), Some(1));
    }

    #[test]
    fn tenants_take_turns_and_within_one_its_groups_do() {
        let mut queue = queue(&[(0, 0), (0, 1), (1, 2)]);
        for _ in 0..2 {
            for (tenant, group) in [(0, 0), (0, 1), (1, 2)] {
                queue.push(tenant, group, 0, false);
            }
        }
        assert_eq!(order(&mut queue), [(0, 0), (1, 2), (0, 1), (1, 2), (0, 0), (0, 1)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn those_who_do_not_fit_are_passed_and_keep_their_place() {
        let mut queue = queue(&[(0, 0), (0, 1), (1, 2)]);
        for (tenant, group) in [(0, 0), (0, 1), (1, 2)] {
            queue.push(tenant, group, 0, false);
        }
        let first = queue
            .take_first(1, |_, group, _| if group == 0 { Fit::NotThisGroup } else { Fit::Yes });
        assert_eq!(first.map(|(_, group, _)| group), Some(1));
        let first = queue
            .take_first(1, |tenant, _, _| if tenant == 1 { Fit::NotThisTenant } else { Fit::Yes });
        assert_eq!(first.map(|(_, group, _)| group), Some(0));
        assert_eq!(order(&mut queue), [(1, 2)]);
    }

    proptest! {
        /// Whatever comes, goes and is served: no waiter is lost or served twice, and
        /// none waits longer than one turn of every other group of its tenant times one
        /// turn of every other tenant.
        #[test]
        fn everybody_is_served_once_and_soon(
            steps in proptest::collection::vec((0..3_u8, 0..12_usize), 1..200),
        ) {
            let groups: Vec<(usize, usize)> = (0..12).map(|group| (group % 4, group)).collect();
            let mut queue = queue(&groups);
            let mut waiting: Vec<(u32, usize, usize)> = Vec::new();
            for (number, (what, group)) in steps.into_iter().enumerate() {
                let (tenant, number) = (group % 4, number as u32);
                match what {
                    0 => {
                        queue.push(tenant, group, number, false);
                        waiting.push((number, group, 0));
                    }
                    1 => {
                        let meant = waiting.iter().find(|(_, of, _)| *of == group).copied();
                        let was = queue.remove(tenant, group, |waiter| {
                            meant.is_some_and(|(number, ..)| *waiter == number)
                        });
                        prop_assert_eq!(was, meant.is_some());
                        waiting.retain(|waiter| Some(waiter.0) != meant.map(|(number, ..)| number));
                    }
                    _ => match queue.take_first(1, |_, _, _| Fit::Yes) {
                        Some((_, group, number)) => {
                            let at = waiting.iter().position(|waiter| waiter.0 == number);
                            prop_assert!(at.is_some_and(|at| waiting[at].1 == group));
                            waiting.retain(|waiter| waiter.0 != number);
                            for at in 0..waiting.len() {
                                let (number, of, passed) = waiting[at];
                                let is_next = !waiting[..at].iter().any(|before| before.1 == of);
                                if is_next && of != group {
                                    // Twice another group of its tenant, and three
                                    // times each of the three other tenants.
                                    prop_assert!(passed < 2 + 3 * 3, "{number}");
                                    waiting[at].2 += 1;
                                }
                            }
                        }
                        None => prop_assert!(waiting.is_empty()),
                    },
                }
                prop_assert_eq!(queue.is_empty(), waiting.is_empty());
            }
            let mut left: Vec<u32> =
                std::iter::from_fn(|| queue.take_first(1, |_, _, _| Fit::Yes)).map(|w| w.2).collect();
            left.sort_unstable();
            prop_assert_eq!(left, waiting.iter().map(|waiter| waiter.0).collect::<Vec<_>>());
        }
    }
}
