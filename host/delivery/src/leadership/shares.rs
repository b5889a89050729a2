//! How many partitions of a group this host may lead.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use event_host_core::event::{GroupName, Partition};

/// The groups that are split, by their names.
#[derive(Debug)]
pub(super) struct Shares {
    /// The id of this host.
    host: String,
    groups: BTreeMap<GroupName, Share>,
}

#[derive(Debug, Default)]
struct Share {
    /// Into how many partitions the group is split.
    of: usize,
    /// How many of them are this host's; `None` before that is known.
    most: Option<usize>,
}

impl Shares {
    pub(super) fn new(host: &str) -> Self {
        Self { host: host.to_owned(), groups: BTreeMap::new() }
    }

    /// Records that this host would lead a partition.
    pub(super) fn wants(&mut self, group: &GroupName, partition: Partition) {
        let share = self.groups.entry(group.group()).or_default();
        let of = usize::try_from(partition.of).unwrap_or(usize::MAX);
        if share.of != of {
            *share = Share { of, most: None };
        }
    }

    /// Forgets the groups of which this host runs nothing any more.
    pub(super) fn retain(&mut self, is_run: impl Fn(&GroupName) -> bool) {
        self.groups.retain(|group, _| is_run(group));
    }

    pub(super) fn groups(&self) -> Vec<GroupName> {
        self.groups.keys().cloned().collect()
    }

    /// Whether every share is known.
    pub(super) fn are_known(&self) -> bool {
        self.groups.values().all(|share| share.most.is_some())
    }

    /// Records which other hosts run the groups, in the order of [`Shares::groups`].
    pub(super) fn know(&mut self, groups: &[GroupName], others: &[Vec<String>]) {
        for (group, others) in groups.iter().zip(others) {
            if let Some(share) = self.groups.get_mut(group) {
                share.most = Some(most(share.of, group, &self.host, others));
            }
        }
    }

    /// Nothing is known any more.
    pub(super) fn forget(&mut self) {
        self.groups.values_mut().for_each(|share| share.most = None);
    }

    /// How many partitions of a group this host may lead.
    pub(super) fn most(&self, group: &GroupName) -> usize {
        self.groups.get(group).and_then(|share| share.most).unwrap_or(0)
    }
}

/// The share of a host: all shares together are the partitions, and no two of them differ by
/// more than one. Which hosts have one more differs from group to group, and is the same for
/// all hosts that know of the same hosts.
fn most(of: usize, group: &GroupName, host: &str, others: &[String]) -> usize {
    let place = |host: &str| {
        let mut hash = Sha256::new_with_prefix(group.as_str());
        hash.update(host);
        (hash.finalize(), host.to_owned())
    };
    let own = place(host);
    let before = others.iter().filter(|other| place(other) < own).count();
    let hosts = others.len() + 1;
    of / hosts + usize::from(before < of % hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_differ_by_at_most_one() {
        let hosts: Vec<String> = (0..9).map(|n| format!("host {n}")).collect();
        for count in 1..=hosts.len() {
            for of in 1..40 {
                for group in ["g", "h", "another"] {
                    let group: GroupName = group.parse().unwrap();
                    let share = |host: &String| {
                        let mut others = hosts[..count].to_vec();
                        others.retain(|other| other != host);
                        others.reverse();
                        most(of, &group, host, &others)
                    };
                    let shares: Vec<usize> = hosts[..count].iter().map(share).collect();
                    assert_eq!(shares.iter().sum::<usize>(), of);
                    assert!(
                        shares.iter().all(|share| *share == of / count || *share == of / count + 1)
                    );
                }
            }
        }
    }

    #[test]
    fn who_has_one_more_is_another_host_for_other_groups() {
        let more = |n: u32| {
            let group: GroupName = format!("group-{n}").parse().unwrap();
            most(3, &group, "one", &["two".to_owned()]) == 2
        };
        let ones = (0..1_000).filter(|n| more(*n)).count();
        assert!((400..600).contains(&ones), "{ones} of 1,000");
    }
}
