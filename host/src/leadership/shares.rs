//! How many partitions of a group this host may lead.

use std::collections::BTreeMap;

use crate::event::{GroupName, Partition};

/// The groups that are split, by their names.
#[derive(Debug, Default)]
pub(super) struct Shares(BTreeMap<GroupName, Share>);

#[derive(Debug, Default)]
struct Share {
    /// Into how many partitions the group is split.
    of: u32,
    /// How many hosts run it, this one included; `None` before that is known.
    sharers: Option<u32>,
}

impl Shares {
    /// Takes note that this host would lead a partition.
    pub(super) fn wants(&mut self, group: &GroupName, partition: Partition) {
        self.0.entry(group.group()).or_default().of = partition.of;
    }

    /// Forgets the groups of which this host runs nothing any more.
    pub(super) fn retain(&mut self, is_run: impl Fn(&GroupName) -> bool) {
        self.0.retain(|group, _| is_run(group));
    }

    pub(super) fn groups(&self) -> Vec<GroupName> {
        self.0.keys().cloned().collect()
    }

    /// Whether it is known of all how many hosts run them.
    pub(super) fn are_known(&self) -> bool {
        self.0.values().all(|share| share.sharers.is_some())
    }

    /// Takes note of how many hosts there are, for groups in the order of
    /// [`Shares::groups`].
    pub(super) fn know(&mut self, groups: &[GroupName], sharers: &[u32]) {
        for (group, sharers) in groups.iter().zip(sharers) {
            if let Some(share) = self.0.get_mut(group) {
                share.sharers = Some(*sharers);
            }
        }
    }

    /// Nothing is known any more.
    pub(super) fn forget(&mut self) {
        self.0.values_mut().for_each(|share| share.sharers = None);
    }

    /// How many partitions of a group this host may lead.
    pub(super) fn most(&self, group: &GroupName) -> usize {
        let share = self.0.get(group);
        let most = share.map_or(0, |share| {
            share.sharers.map_or(0, |sharers| share.of.div_ceil(sharers.max(1)))
        });
        usize::try_from(most).unwrap_or(usize::MAX)
    }
}
