//! Which groups the owner claims, which it leaves to others, and which it wants back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{AT_ONCE, Held, Owner};
use crate::leadership::places::Place;
use crate::leadership::{HEARTBEAT, LOCK_POLL, Lease, Locks, Missing, Obstacle};
use event_host_core::event::GroupName;
use event_host_core::leadership_proof::LeadershipProof;
use event_host_store::{Claim, Leadership};

/// How many groups that are not split are wanted back at once.
const WANTED_BACK_AT_ONCE: usize = 500;

/// For how long a group cannot be had before that is told: a settlement that is late, or a
/// claim of another host, is over sooner.
const UNAVAILABLE_IS_TOLD_AFTER: Duration = Duration::from_secs(1);

/// For how long a host counts as one that would lead a group which it gave back or missed, and
/// does not wait for: its task may have been stopped meanwhile, or be unable to make the group.
const RETURNS_WITHIN: Duration = Duration::from_secs(10);

impl Owner {
    /// Claims what is waited for and is this host's to lead: at once what is new, and the
    /// rest when something has changed.
    pub(super) async fn compete(&mut self) {
        self.waiting.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.grant.is_closed());
            !waiters.is_empty()
        });
        self.returning.retain(|_, since| since.elapsed() < RETURNS_WITHIN);
        let runs = self.waiting.keys().chain(self.held.keys()).chain(self.returning.keys());
        let runs: BTreeSet<&GroupName> = runs.collect();
        let all = Instant::now() >= self.ask_at;
        if all {
            self.ask_at = Instant::now() + LOCK_POLL;
        }
        let Some(session) = &mut self.session else { return };
        match session.announce(runs).await {
            Ok(is_news) => {
                if is_news || (all && !self.waiting.is_empty()) {
                    self.look_around().await;
                }
            }
            Err(why) => return self.end_session(&why),
        }
        for groups in self.claimable().chunks(AT_ONCE) {
            self.prove_if_due().await;
            let Some(session) = &mut self.session else { return };
            match session.claim(groups).await {
                Ok(claims) => {
                    for (group, claim) in groups.iter().zip(claims) {
                        self.take(group.clone(), claim);
                    }
                }
                Err(why) => return self.end_session(&why),
            }
        }
    }

    /// The groups to claim now.
    fn claimable(&mut self) -> Vec<GroupName> {
        let Some(session) = &mut self.session else { return Vec::new() };
        let now = Instant::now();
        let all = std::mem::take(&mut session.is_news) || now >= session.claim_at;
        if all {
            session.claim_at = now + HEARTBEAT;
        }
        let mut groups = Vec::new();
        for (group, waiters) in &mut self.waiting {
            // What this host leads already belongs to its lease.
            if self.held.contains_key(group) {
                continue;
            }
            let is_due = match session.places.get(group) {
                Some(Place::Here) => all || waiters.iter().any(|waiter| !waiter.asked),
                Some(Place::Left { .. }) => session.places.was_left_for_long(group),
                Some(Place::LedElsewhere) => {
                    waiters.iter_mut().for_each(|waiter| waiter.meets(Obstacle::LedElsewhere));
                    false
                }
                Some(Place::Owed(_)) | None => false,
            };
            if is_due {
                groups.push(group.clone());
                waiters.iter_mut().for_each(|waiter| waiter.asked = true);
            }
        }
        groups
    }

    /// Does what came of the claim of a group.
    fn take(&mut self, group: GroupName, claim: Claim) {
        let waiters = self.waiting.get_mut(&group).into_iter().flatten();
        match claim {
            Claim::Led(leadership) => self.grant(group, leadership),
            Claim::LedElsewhere => waiters.for_each(|waiter| {
                waiter.unavailable_since = None;
                waiter.meets(Obstacle::LedElsewhere);
            }),
            Claim::Unavailable(why) => waiters.for_each(|waiter| {
                let since = *waiter.unavailable_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= UNAVAILABLE_IS_TOLD_AFTER {
                    waiter.meets(Obstacle::Unavailable(why.clone()));
                }
            }),
            Claim::Missing => {
                self.returning.insert(group.clone(), Instant::now());
                for waiter in self.waiting.remove(&group).into_iter().flatten() {
                    // The task that waited may have gone.
                    let _ = waiter.grant.send(Err(Missing));
                }
            }
        }
    }

    /// Finds who else runs what this host runs, and who is to lead it, if that has changed;
    /// and wants back what another host is to lead.
    pub(super) async fn look_around(&mut self) {
        let Some(session) = &mut self.session else { return };
        if session.announced.is_empty() {
            return;
        }
        match session.roster().await {
            Ok(None) => {}
            Ok(Some(roster)) => {
                let holds = |group: &GroupName| self.held.contains_key(group);
                session.places.learn(&roster, &session.announced, holds, &self.host.id);
                session.is_news = true;
            }
            Err(why) => return self.end_session(&why),
        }
        self.want_back();
    }

    /// Wants back what another host is to lead: of a group that is split one partition after
    /// the other, of all others many at once.
    fn want_back(&self) {
        let Some(session) = self.session.as_ref().filter(|session| session.places.owes()) else {
            return;
        };
        let is_recalled = |held: &Held| held.wanted_back.is_cancelled();
        let mut recalled: BTreeMap<Option<&str>, usize> = BTreeMap::new();
        for (group, _) in self.held.iter().filter(|(_, held)| is_recalled(held)) {
            *recalled.entry(class(group)).or_default() += 1;
        }
        for (group, held) in self.held.iter().filter(|(_, held)| !is_recalled(held)) {
            if !session.places.is_wanted_back(group) {
                continue;
            }
            let class = class(group);
            let most = if class.is_some() { 1 } else { WANTED_BACK_AT_ONCE };
            let recalled = recalled.entry(class).or_default();
            if *recalled < most {
                *recalled += 1;
                debug!(%group, "another host is to lead it: giving it back");
                held.wanted_back.cancel();
            }
        }
    }

    fn grant(&mut self, group: GroupName, leadership: Box<Leadership>) {
        // No task is left to lead; this task ends, and the session with it.
        let Some(requests) = self.requests.upgrade() else { return };
        let Some(session) = &mut self.session else { return };
        session.places.led_here(&group);
        let told = self.leaderships.begin();
        let proof = LeadershipProof::new(told.clone(), session.proven_until.subscribe());
        let wanted_back = CancellationToken::new();
        let held = Held { _told: told.drop_guard(), wanted_back: wanted_back.clone() };
        self.held.insert(group.clone(), held);
        let locks = Locks { requests, leaderships: self.leaderships.clone() };
        let leadership = Some(leadership);
        // A lease that no task takes is dropped, and so gives its group back.
        let lease = Lease { group: group.clone(), leadership, proof, wanted_back, locks };
        if let Some(waiters) = self.waiting.get_mut(&group)
            && !waiters.is_empty()
        {
            let _ = waiters.remove(0).grant.send(Ok(lease));
        }
    }
}

/// The group of a partition; what is not split is of one class.
fn class(group: &GroupName) -> Option<&str> {
    group.partition_number().map(|_| group.whole())
}
