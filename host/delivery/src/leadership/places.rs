//! Who is to lead the groups that a host runs, as that host sees it.
//!
//! The `assignment` says which host is to lead each group. What a host does about it depends
//! on the others:
//! - A leader gives a whole group to a host that has been there for [`THERE_AFTER`] and no
//!   sooner: one that dies again and again soon after it starts would take its share along
//!   each time.
//! - A group that has been free for [`FREE_FOR`] is claimed by whoever waits for it, unless the
//!   host that is to lead it has claimed others meanwhile: that host may be unable to. It is
//!   given nothing more by a leader for a while, which grows each time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::assignment::{Candidate, assignment};
use event_host_core::event::{Attempt, GroupName};
use event_host_core::retry::RetryPolicy;
use event_host_store::Roster;

/// How long another host has to be there before a leader gives it a group that is not split.
pub(super) const THERE_AFTER: Duration = Duration::from_secs(5);

/// How long a group is left to the host that is to lead it, while that claims nothing: longer
/// than a host on a loaded machine takes, which claims what it is to lead at once.
pub(super) const FREE_FOR: Duration = Duration::from_secs(5);

/// Who is to lead a group.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// This host.
    Here,
    /// Another host leads it, and lives.
    LedElsewhere,
    /// Another host is to lead it, and this one does.
    Owed(Heir),
    /// Another host is to lead it, and no host that lives does.
    Left {
        heir: Heir,
        /// Since when it is free, if it is: a host that is silent still has what it led.
        free_since: Option<Instant>,
    },
}

/// Another host that is to lead a group.
#[derive(Debug, Clone)]
pub(super) struct Heir {
    hosts: Arc<[String]>,
    place: usize,
}

impl Heir {
    fn id(&self) -> &str {
        self.hosts.get(self.place).map_or("", String::as_str)
    }
}

/// How long a host has been there, and whether it claims what it is to lead.
#[derive(Debug)]
struct Known {
    since: Instant,
    /// When it was seen last that it leads more than before.
    claimed_at: Instant,
    /// How often it left to others what it was to lead.
    failed: u32,
    /// It is given nothing before.
    given_from: Instant,
}

/// The places of the groups that a host runs.
#[derive(Debug, Default)]
pub(super) struct Places {
    of: HashMap<GroupName, Place>,
    /// The other hosts that run some of them.
    hosts: BTreeMap<String, Known>,
    /// This host leads something that another one is to lead.
    owes: bool,
}

impl Places {
    /// Learns who runs and who leads what. A group that is not in the roster has no row yet,
    /// which its claim tells.
    pub(super) fn learn(
        &mut self,
        roster: &Roster,
        announced: &BTreeSet<GroupName>,
        holds: impl Fn(&GroupName) -> bool,
        here: &str,
    ) {
        let now = Instant::now();
        let mut with_this_one: BTreeMap<&[String], Arc<[String]>> = BTreeMap::new();
        let candidates: Vec<Candidate<'_>> = roster
            .groups
            .iter()
            .map(|runners| {
                let hosts = with_this_one.entry(&runners.others).or_insert_with(|| {
                    let mut hosts = runners.others.to_vec();
                    hosts.push(here.to_owned());
                    hosts.sort();
                    hosts.dedup();
                    hosts.into()
                });
                // Of itself a host knows better.
                let leader = runners.leader.as_deref().filter(|leader| *leader != here);
                let leader = if holds(&runners.group) { Some(here) } else { leader };
                Candidate { group: &runners.group, hosts: Arc::clone(hosts), leader }
            })
            .collect();
        let mut of: HashMap<GroupName, Place> =
            announced.iter().map(|group| (group.clone(), Place::Here)).collect();
        let assigned = candidates.iter().zip(assignment(&candidates));
        for ((candidate, place), runners) in assigned.zip(&roster.groups) {
            let heir = Heir { hosts: Arc::clone(&candidate.hosts), place };
            let place = match candidate.leader {
                Some(leader) if leader != here => Place::LedElsewhere,
                _ if heir.id() == here => Place::Here,
                Some(_) => Place::Owed(heir),
                None => {
                    let before = match self.of.get(candidate.group) {
                        Some(Place::Left { free_since, .. }) => *free_since,
                        _ => None,
                    };
                    let free_since = runners.is_free.then(|| before.unwrap_or(now));
                    Place::Left { heir, free_since }
                }
            };
            of.insert(candidate.group.clone(), place);
        }
        let of_before = std::mem::replace(&mut self.of, of);
        self.owes = self.of.values().any(|place| matches!(place, Place::Owed(_)));
        let others: BTreeSet<&String> = with_this_one.keys().copied().flatten().collect();
        self.hosts.retain(|host, _| others.contains(host));
        for host in others.into_iter().filter(|host| *host != here) {
            let new = || Known { since: now, claimed_at: now, failed: 0, given_from: now };
            self.hosts.entry(host.clone()).or_insert_with(new);
        }
        // A host that leads what it was left lately is at work.
        for candidate in &candidates {
            let was_left = matches!(of_before.get(candidate.group), Some(Place::Left { .. }));
            if let Some(host) = candidate.leader.filter(|leader| was_left && *leader != here)
                && let Some(known) = self.hosts.get_mut(host)
            {
                known.claimed_at = now;
            }
        }
    }

    pub(super) fn get(&self, group: &GroupName) -> Option<&Place> {
        self.of.get(group)
    }

    /// Whether this host leads something that another one is to lead.
    pub(super) fn owes(&self) -> bool {
        self.owes
    }

    /// Whether a group that this host leads is to be given to another now.
    pub(super) fn is_wanted_back(&self, group: &GroupName) -> bool {
        let Some(Place::Owed(heir)) = self.of.get(group) else { return false };
        let Some(host) = self.hosts.get(heir.id()) else { return false };
        // The partitions of a group are shared as soon as a host is there.
        let grace = if group.partition_number().is_some() { Duration::ZERO } else { THERE_AFTER };
        let now = Instant::now();
        now >= host.since + grace && now >= host.given_from
    }

    /// Whether a group has been left to another host for long enough, which is counted anew
    /// from now on.
    pub(super) fn was_left_for_long(&mut self, group: &GroupName) -> bool {
        let now = Instant::now();
        let Some(Place::Left { heir, free_since: Some(since) }) = self.of.get_mut(group) else {
            return false;
        };
        let at_work = self.hosts.get(heir.id()).map(|host| host.claimed_at);
        if now < at_work.map_or(*since, |at_work| at_work.max(*since)) + FREE_FOR {
            return false;
        }
        *since = now;
        true
    }

    /// This host leads a group now. The host that was to lead it has not claimed it.
    pub(super) fn led_here(&mut self, group: &GroupName) {
        let now = Instant::now();
        let Some(place) = self.of.get_mut(group) else { return };
        if let Place::Left { heir, .. } = std::mem::replace(place, Place::Here)
            && let Some(host) = self.hosts.get_mut(heir.id())
            // Many groups are claimed at once.
            && now >= host.given_from
        {
            host.failed = host.failed.saturating_add(1);
            let policy = RetryPolicy {
                initial: Duration::from_secs(10),
                max: Duration::from_secs(600),
                ..RetryPolicy::default()
            };
            warn!(
                host = heir.id(),
                "a host claims none of the groups that it is to lead: this one leads them"
            );
            host.given_from = now + policy.delay(Attempt(host.failed), None, fastrand::f64());
        }
    }
}
