//! Who waits, in the order in which they are served: the tenant that has used
//! least, and of its groups the one that has.
//!
//! This is start-time fair queueing, once over tenants and once over the groups of
//! each. What somebody has used is his account. Whoever comes to wait after a rest
//! begins where those are that are served just then: nobody saves up what he did
//! not use, and whoever uses little comes before those who always want more. Of
//! equal accounts comes first the one that was served longest ago.
//!
//! Pure bookkeeping over small numbers that stand for tenants and groups. Every
//! operation costs the logarithm of those that wait, save that those who do not
//! fit are passed one by one.

use std::collections::{BTreeSet, VecDeque};

/// Whether the one that is looked at may be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// It may.
    Yes,
    /// It may not; another group of its tenant perhaps.
    NotThisGroup,
    /// Nobody of its tenant may.
    NotThisTenant,
}

/// Those that wait.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    /// How often anybody was served.
    served: u64,
    tenants: Vec<Tenant>,
    groups: Vec<Group<T>>,
    among_tenants: Line,
}

#[derive(Debug, Default)]
struct Tenant {
    account: Account,
    among_groups: Line,
}

#[derive(Debug)]
struct Group<T> {
    account: Account,
    waiting: VecDeque<T>,
}

/// What somebody has used, and when he was last served, as a number that grows.
/// Their order is the order in which they are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Account {
    used: u64,
    served: u64,
}

/// Some of equal rank, of whom some wait.
#[derive(Debug, Default)]
struct Line {
    /// What the one had used, when he was served, that had used most by then.
    level: u64,
    waiting: BTreeSet<(Account, usize)>,
}

impl Line {
    /// Somebody comes to wait.
    fn join(&mut self, account: &mut Account, who: usize) {
        account.used = account.used.max(self.level);
        self.waiting.insert((*account, who));
    }

    /// Somebody waits no more.
    fn leave(&mut self, account: Account, who: usize) {
        self.waiting.remove(&(account, who));
    }

    /// Somebody was served, whether he waits or not.
    fn serve(&mut self, account: &mut Account, who: usize, cost: u64, served: u64) {
        let waits = self.waiting.remove(&(*account, who));
        self.level = self.level.max(account.used);
        *account = Account { used: self.level.saturating_add(cost), served };
        if waits {
            self.waiting.insert((*account, who));
        }
    }

    /// What somebody used is more or less than he was charged.
    fn correct(&mut self, account: &mut Account, who: usize, charged: u64, cost: u64) {
        let waits = self.waiting.remove(&(*account, who));
        account.used = account.used.saturating_sub(charged).saturating_add(cost);
        if waits {
            self.waiting.insert((*account, who));
        }
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { served: 0, tenants: Vec::new(), groups: Vec::new(), among_tenants: Line::default() }
    }
}

impl<T> FairQueue<T> {
    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.among_tenants.waiting.is_empty()
    }

    /// Makes room for a group, with nothing of one that had its number before.
    pub(super) fn enter(&mut self, tenant: usize, group: usize) {
        if self.tenants.len() <= tenant {
            self.tenants.resize_with(tenant + 1, Tenant::default);
        }
        while self.groups.len() <= group {
            self.groups.push(Group { account: Account::default(), waiting: VecDeque::new() });
        }
        self.groups[group].account = Account::default();
    }

    /// Somebody waits from now on: behind the others of his group, or before them.
    pub(super) fn push(&mut self, tenant: usize, group: usize, waiter: T, before: bool) {
        let (owner, line) = (&mut self.tenants[tenant], &mut self.groups[group]);
        if line.waiting.is_empty() {
            if owner.among_groups.waiting.is_empty() {
                self.among_tenants.join(&mut owner.account, tenant);
            }
            owner.among_groups.join(&mut line.account, group);
        }
        if before {
            line.waiting.push_front(waiter);
        } else {
            line.waiting.push_back(waiter);
        }
    }

    /// Somebody waits no more. Whether he did.
    pub(super) fn remove(
        &mut self,
        tenant: usize,
        group: usize,
        is_meant: impl Fn(&T) -> bool,
    ) -> bool {
        let Some(at) = self.groups[group].waiting.iter().position(is_meant) else { return false };
        self.groups[group].waiting.remove(at);
        self.settle(tenant, group);
        true
    }

    /// Somebody was served, whether he had waited or not, at a cost: more than
    /// nothing, or he would always be first.
    pub(super) fn serve(&mut self, tenant: usize, group: usize, cost: u64) {
        self.served += 1;
        let owner = &mut self.tenants[tenant];
        self.among_tenants.serve(&mut owner.account, tenant, cost, self.served);
        let account = &mut self.groups[group].account;
        owner.among_groups.serve(account, group, cost, self.served);
    }

    /// Tells what somebody really cost who was served.
    pub(super) fn correct(&mut self, tenant: usize, group: usize, charged: u64, cost: u64) {
        let owner = &mut self.tenants[tenant];
        self.among_tenants.correct(&mut owner.account, tenant, charged, cost);
        let account = &mut self.groups[group].account;
        owner.among_groups.correct(account, group, charged, cost);
    }

    /// The first in order that fits; he is served, at that cost.
    pub(super) fn take_first(
        &mut self,
        cost: u64,
        mut fits: impl FnMut(usize, usize, &T) -> Fit,
    ) -> Option<(usize, usize, T)> {
        let (tenant, group) = self.among_tenants.waiting.iter().find_map(|&(_, tenant)| {
            for &(_, group) in &self.tenants[tenant].among_groups.waiting {
                // Those that wait are in the sets only while they do.
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
        self.settle(tenant, group);
        Some((tenant, group, waiter))
    }

    /// Takes a group out of the sets if nobody of it waits any more, and its
    /// tenant with the last one.
    fn settle(&mut self, tenant: usize, group: usize) {
        let (owner, line) = (&mut self.tenants[tenant], &self.groups[group]);
        if line.waiting.is_empty() {
            owner.among_groups.leave(line.account, group);
            if owner.among_groups.waiting.is_empty() {
                self.among_tenants.leave(owner.account, tenant);
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
            queue.enter(*tenant, *group);
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
        /// Whatever comes, goes and is served: nobody is lost or served twice, and
        /// nobody waits longer than a turn of everybody else of his tenant times a
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
