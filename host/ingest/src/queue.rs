//! What waits for a commit: whole requests, those of each tenant in their order, and one of
//! each tenant in turn.

use std::collections::{HashMap, VecDeque};

use event_host_core::event::Tenant;

/// How large a request is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

/// A request that waits, with its number.
#[derive(Debug)]
struct Waiting<T> {
    number: u64,
    size: Size,
    request: T,
}

/// The queue. A tenant stands in `turn` exactly once while something of it waits.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    of: HashMap<Tenant, VecDeque<Waiting<T>>>,
    turn: VecDeque<Tenant>,
    size: Size,
    last_number: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { of: HashMap::new(), turn: VecDeque::new(), size: Size::default(), last_number: 0 }
    }
}

impl<T> Queue<T> {
    /// Enqueues a request, and gives its number.
    pub(crate) fn push(&mut self, tenant: &Tenant, size: Size, request: T) -> u64 {
        self.last_number += 1;
        self.size.events += size.events;
        self.size.bytes += size.bytes;
        let waiting = Waiting { number: self.last_number, size, request };
        match self.of.get_mut(tenant) {
            Some(theirs) => theirs.push_back(waiting),
            None => {
                self.of.insert(tenant.clone(), [waiting].into());
                self.turn.push_back(tenant.clone());
            }
        }
        self.last_number
    }

    /// Takes a request out that waits; `None` where it does not any more.
    pub(crate) fn withdraw(&mut self, tenant: &Tenant, number: u64) -> Option<T> {
        let theirs = self.of.get_mut(tenant)?;
        let at = theirs.binary_search_by_key(&number, |waiting| waiting.number).ok()?;
        let taken = theirs.remove(at)?;
        if theirs.is_empty() {
            self.of.remove(tenant);
            self.turn.retain(|other| other != tenant);
        }
        self.less(taken.size);
        Some(taken.request)
    }

    /// Takes the requests of one commit: one of each tenant in turn, as long as all of them
    /// are within `most`, and at least one.
    pub(crate) fn take(&mut self, most: Size) -> Vec<T> {
        let mut taken = Vec::new();
        let mut sum = Size::default();
        while let Some(tenant) = self.turn.front() {
            let Some(theirs) = self.of.get_mut(tenant) else {
                self.turn.pop_front();
                continue;
            };
            let Some(next) = theirs.front().map(|waiting| waiting.size) else {
                self.of.remove(tenant);
                self.turn.pop_front();
                continue;
            };
            sum.events += next.events;
            sum.bytes += next.bytes;
            let fits = sum.events <= most.events && sum.bytes <= most.bytes;
            if !fits && !taken.is_empty() {
                break;
            }
            if let Some(waiting) = theirs.pop_front() {
                taken.push(waiting.request);
            }
            let has_more = !theirs.is_empty();
            self.less(next);
            if let Some(tenant) = self.turn.pop_front() {
                if has_more {
                    self.turn.push_back(tenant);
                } else {
                    self.of.remove(&tenant);
                }
            }
            if !fits {
                break;
            }
        }
        taken
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.turn.is_empty()
    }

    /// How much waits.
    pub(crate) fn size(&self) -> Size {
        self.size
    }

    fn less(&mut self, size: Size) {
        self.size.events -= size.events;
        self.size.bytes -= size.bytes;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(name: &str) -> Tenant {
        name.parse().unwrap()
    }

    fn size(events: usize) -> Size {
        Size { events, bytes: events * 10 }
    }

    #[test]
    fn tenants_take_turns_and_each_keeps_its_order() {
        let mut queue = Queue::default();
        for n in 0..4 {
            queue.push(&tenant("loud"), size(1), format!("loud {n}"));
        }
        queue.push(&tenant("quiet"), size(1), "quiet 0".to_owned());
        queue.push(&tenant("other"), size(1), "other 0".to_owned());
        let most = Size { events: 4, bytes: 1_000 };
        assert_eq!(queue.take(most), ["loud 0", "quiet 0", "other 0", "loud 1"]);
        queue.push(&tenant("quiet"), size(1), "quiet 1".to_owned());
        assert_eq!(queue.take(most), ["loud 2", "quiet 1", "loud 3"]);
        assert!(queue.is_empty());
        assert_eq!(queue.take(most), Vec::<String>::new());
    }

    #[test]
    fn a_commit_has_whole_requests_within_its_bounds_and_one_in_any_case() {
        let mut queue = Queue::default();
        let most = Size { events: 10, bytes: 100 };
        queue.push(&tenant("a"), size(50), 1);
        queue.push(&tenant("b"), size(6), 2);
        queue.push(&tenant("a"), size(6), 3);
        queue.push(&tenant("c"), size(4), 4);
        assert_eq!(queue.take(most), [1]);
        assert_eq!(queue.take(most), [2, 4], "the tenants' turns, not the smallest");
        assert_eq!(queue.take(most), [3]);
        assert_eq!(queue.size(), Size::default());
    }

    #[test]
    fn what_is_withdrawn_is_not_taken_and_what_was_taken_is_not_withdrawn() {
        let mut queue = Queue::default();
        let most = Size { events: 10, bytes: 100 };
        let first = queue.push(&tenant("a"), size(1), 1);
        let second = queue.push(&tenant("b"), size(1), 2);
        assert_eq!(queue.withdraw(&tenant("a"), first), Some(1));
        assert_eq!(queue.withdraw(&tenant("a"), first), None);
        assert_eq!(queue.take(most), [2]);
        assert_eq!(queue.withdraw(&tenant("b"), second), None);
        assert_eq!(queue.size(), Size::default());
    }

    proptest! {
        #[test]
        fn everything_is_taken_once_and_nobody_waits_longer_than_the_tenants_are(
            pushes in proptest::collection::vec((0..4_usize, 1..30_usize), 0..60)
        ) {
            let names = ["a", "b", "c", "d"].map(tenant);
            let mut queue = Queue::default();
            for (n, (of, events)) in pushes.iter().enumerate() {
                queue.push(&names[*of], size(*events), (*of, n));
            }
            let mut all = Vec::new();
            while !queue.is_empty() {
                let taken = queue.take(Size { events: 20, bytes: 200 });
                prop_assert!(!taken.is_empty());
                let sum: usize = taken.iter().map(|(_, n)| pushes[*n].1).sum();
                prop_assert!(sum <= 20 || taken.len() == 1);
                all.extend(taken);
            }
            prop_assert_eq!(all.len(), pushes.len());
            for of in 0..4 {
                let theirs: Vec<usize> = all.iter().filter(|one| one.0 == of).map(|one| one.1).collect();
                prop_assert!(theirs.is_sorted());
                // Between two of a tenant, no other has more than one, and one at either end.
                let at: Vec<usize> = (0..all.len()).filter(|at| all[*at].0 == of).collect();
                for pair in at.windows(2) {
                    for other in (0..4).filter(|other| *other != of) {
                        let between = all[pair[0]..pair[1]].iter().filter(|one| one.0 == other).count();
                        prop_assert!(between <= 1, "{all:?}");
                    }
                }
            }
            prop_assert_eq!(queue.size(), Size::default());
        }
    }
}
