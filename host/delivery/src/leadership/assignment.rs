//! Which host is to lead which group. Pure.
//!
//! Every host computes it from what all of them read in the database, and so they agree. No
//! host leads two groups more than another that would lead the same ones, and of a group
//! that is split no two partitions more; and a leader keeps what it leads as far as that
//! allows, so only as many groups move as must.

use std::collections::BTreeMap;
use std::sync::Arc;

use event_host_core::event::GroupName;

/// A group, or one partition of a group.
#[derive(Debug, Clone)]
pub(super) struct Candidate<'a> {
    pub(super) group: &'a GroupName,
    /// The ids of the hosts that live and would lead it, in their order: at least one.
    pub(super) hosts: Arc<[String]>,
    /// The one of them that leads it.
    pub(super) leader: Option<&'a str>,
}

/// For each group, in the same order, the place of the host that is to lead it among its
/// `hosts`. The groups are given in the order of their names.
pub(super) fn assignment(groups: &[Candidate<'_>]) -> Vec<usize> {
    let mut classes: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (place, candidate) in groups.iter().enumerate() {
        let split = candidate.group.partition_number().map(|_| candidate.group.whole());
        // Those that are split first: the others even out what they leave.
        classes.entry((split.is_none(), split, &candidate.hosts)).or_default().push(place);
    }
    let mut assigned = vec![0; groups.len()];
    let mut totals: BTreeMap<&str, usize> = BTreeMap::new();
    for ((_, _, hosts), class) in classes {
        let led_by = |place: &usize| {
            let leader = groups.get(*place)?.leader?;
            hosts.iter().position(|host| host == leader)
        };
        let mut led: Vec<Vec<usize>> = vec![Vec::new(); hosts.len()];
        let mut free = Vec::new();
        for place in class.iter().copied() {
            match led_by(&place).and_then(|host| led.get_mut(host)) {
                Some(led) => led.push(place),
                None => free.push(place),
            }
        }
        let counts: Vec<usize> = led.iter().map(Vec::len).collect();
        let quotas = quotas(class.len(), &counts, hosts, &totals);
        for (led, quota) in led.iter_mut().zip(&quotas) {
            free.extend(led.drain(led.len().min(*quota)..));
        }
        free.sort_unstable();
        let mut free = free.into_iter();
        for (host, (mut led, quota)) in led.into_iter().zip(&quotas).enumerate() {
            led.extend(free.by_ref().take(quota.saturating_sub(led.len())));
            for place in led {
                if let Some(assigned) = assigned.get_mut(place) {
                    *assigned = host;
                }
            }
        }
        for (host, quota) in hosts.iter().zip(quotas) {
            *totals.entry(host).or_default() += quota;
        }
    }
    assigned
}

/// How many of so many groups each host is to lead. Where they do not divide evenly, one more
/// for the hosts that have least of the other groups, and of those for the ones that lead
/// most of these already.
fn quotas(
    groups: usize,
    led: &[usize],
    hosts: &[String],
    totals: &BTreeMap<&str, usize>,
) -> Vec<usize> {
    let count = hosts.len().max(1);
    let mut quotas = vec![groups / count; hosts.len()];
    let total = |host: &usize| hosts.get(*host).and_then(|id| totals.get(id.as_str())).copied();
    let mut order: Vec<usize> = (0..hosts.len()).collect();
    order.sort_by_key(|host| {
        let led = led.get(*host).copied().unwrap_or_default();
        (total(host).unwrap_or_default(), std::cmp::Reverse(led), *host)
    });
    for host in order.into_iter().take(groups % count) {
        if let Some(quota) = quotas.get_mut(host) {
            *quota += 1;
        }
    }
    quotas
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Groups that are whole, and partitions of groups, with the hosts that lead them.
    #[derive(Debug, Clone)]
    struct World {
        names: Vec<GroupName>,
        hosts: Vec<String>,
        leaders: Vec<Option<String>>,
    }

    impl World {
        fn new(whole: usize, split: &[u32], hosts: usize) -> Self {
            let group = |n: usize| format!("group-{n}").parse::<GroupName>().unwrap();
            let parts = split.iter().enumerate().flat_map(|(n, of)| {
                let group: GroupName = format!("split-{n}").parse().unwrap();
                (0..*of).map(move |number| group.partition(number))
            });
            let mut names: Vec<GroupName> = (0..whole).map(group).chain(parts).collect();
            names.sort();
            let leaders = vec![None; names.len()];
            let mut world = Self { names, hosts: Vec::new(), leaders };
            for n in 0..hosts {
                world.comes(n);
            }
            world
        }

        /// A host comes, whose id has nothing to do with when.
        fn comes(&mut self, n: usize) {
            self.hosts.push(format!("{:x}", n.wrapping_mul(2_654_435_761) % 65_521));
            self.hosts.sort();
        }

        fn goes(&mut self, n: usize) {
            let gone = self.hosts.remove(n % self.hosts.len());
            for leader in &mut self.leaders {
                leader.take_if(|leader| *leader == gone);
            }
        }

        fn assigned(&self) -> Vec<String> {
            let hosts: Arc<[String]> = self.hosts.clone().into();
            let candidates: Vec<Candidate<'_>> = self
                .names
                .iter()
                .zip(&self.leaders)
                .map(|(group, leader)| Candidate {
                    group,
                    hosts: Arc::clone(&hosts),
                    leader: leader.as_deref(),
                })
                .collect();
            assignment(&candidates).into_iter().map(|host| self.hosts[host].clone()).collect()
        }

        /// Has everything led as it is to be. Gives how many groups changed their leader
        /// though it lives.
        fn settle(&mut self) -> usize {
            let assigned: Vec<Option<String>> = self.assigned().into_iter().map(Some).collect();
            let moved = self.leaders.iter().zip(&assigned);
            let moved = moved.filter(|(before, now)| before.is_some() && before != now).count();
            self.leaders = assigned;
            moved
        }

        /// The most and the fewest that a host leads of some.
        fn spread(&self, is_counted: impl Fn(&GroupName) -> bool) -> (usize, usize) {
            let led = |host: &String| {
                let led = self.names.iter().zip(&self.leaders);
                led.filter(|(name, leader)| is_counted(name) && leader.as_ref() == Some(host))
                    .count()
            };
            let counts: Vec<usize> = self.hosts.iter().map(led).collect();
            (*counts.iter().max().unwrap(), *counts.iter().min().unwrap())
        }

        fn is_balanced(&self) -> bool {
            let wholes: BTreeSet<&str> = self.names.iter().map(GroupName::whole).collect();
            let within_one = |(most, least): (usize, usize)| most - least <= 1;
            within_one(self.spread(|_| true))
                && wholes.iter().all(|whole| within_one(self.spread(|name| name.whole() == *whole)))
        }
    }

    proptest! {
        #[test]
        fn hosts_that_come_and_go_lead_as_many_as_each_other_and_keep_what_they_may(
            whole in 0_usize..60,
            split in proptest::collection::vec(2_u32..20, 0..5),
            hosts in 1_usize..7,
            changes in proptest::collection::vec(0_usize..1_000, 0..12),
        ) {
            let mut world = World::new(whole, &split, hosts);
            world.settle();
            prop_assert!(world.is_balanced(), "{world:?}");
            let mut next = hosts;
            for change in changes {
                prop_assert_eq!(world.settle(), 0, "nothing moves while nobody comes or goes");
                let n = world.names.len();
                let comes = change % 2 == 0 || world.hosts.len() == 1;
                if comes {
                    world.comes(next);
                    next += 1;
                } else {
                    world.goes(change / 2);
                }
                let moved = world.settle();
                prop_assert!(world.is_balanced(), "{world:?}");
                // Its share of each class, and where they do not divide evenly what evens
                // that out over the classes.
                let classes = split.len() + 1;
                let share = n.div_ceil(world.hosts.len());
                let most = if comes { share + 2 * classes } else { 2 * classes };
                prop_assert!(moved <= most, "{moved} of {n} moved, at most {most} must");
            }
        }

        #[test]
        fn a_group_is_led_by_a_host_that_would_lead_it(
            runs in proptest::collection::vec((1_u8..16, 0_usize..6), 1..50),
        ) {
            let all: Vec<String> = (0..4).map(|n| format!("host-{n}")).collect();
            let names: Vec<GroupName> =
                (0..runs.len()).map(|n| format!("g{n:02}").parse().unwrap()).collect();
            let candidates: Vec<Candidate<'_>> = names.iter().zip(&runs).map(|(group, (by, led))| {
                let hosts = all.iter().enumerate().filter(|(n, _)| by >> n & 1 == 1);
                let hosts: Vec<String> = hosts.map(|(_, id)| id.clone()).collect();
                Candidate { group, leader: all.get(*led).map(String::as_str), hosts: hosts.into() }
            }).collect();
            for (candidate, host) in candidates.iter().zip(assignment(&candidates)) {
                prop_assert!(host < candidate.hosts.len());
            }
        }
    }

    #[test]
    fn a_host_that_comes_gets_its_share_and_no_other_group_moves() {
        let mut world = World::new(10_000, &[], 2);
        world.settle();
        world.comes(2);
        assert_eq!(world.settle(), 3_333);
        assert_eq!(world.spread(|_| true), (3_334, 3_333));
        world.goes(0);
        assert_eq!(world.settle(), 0, "those of the host that is gone are led by nobody");
        assert_eq!(world.spread(|_| true), (5_000, 5_000));
    }

    #[test]
    fn a_host_alone_keeps_its_one_group_whoever_comes() {
        let mut world = World::new(1, &[], 1);
        world.settle();
        for n in 1..20 {
            world.comes(n);
            assert_eq!(world.settle(), 0);
        }
    }
}
