//! The slots of the engine's pool: how many instances there may be, and of whom.
//!
//! An instance comes with all that its component declares: memories and tables too. They
//! are taken before it is made, and given back when it is gone, so that no component can
//! take all tables while others have instances to spare. An instance that is kept for its
//! handler's next event ends where somebody else would have to wait for its slots.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::engine::PoolSettings;
use super::shares::{Claim, Holder, Member, Share, Shares};

/// Instances, memories and tables.
const THINGS: usize = 3;

/// What one instance takes: instances, memories and tables.
pub(super) type Needs = [usize; THINGS];

/// What one instance holds until it is gone.
pub(super) type Held = Share<THINGS>;

/// Where a worker keeps an instance between two attempts.
pub(super) trait Kept: Send + Sync {
    /// Ends the instance if it is there. Whether it was.
    fn end(&self) -> bool;
}

/// Of one engine.
pub(super) struct Slots {
    shares: Arc<Shares<THINGS>>,
    kept: Mutex<Places>,
}

/// Where instances are kept.
#[derive(Default)]
struct Places {
    places: Vec<(Arc<Member>, Weak<dyn Kept>)>,
    /// With so many, those that are gone are forgotten.
    clean_at: usize,
}

impl Slots {
    pub(super) fn new(pool: &PoolSettings) -> Self {
        let all = [pool.instances, pool.memories, pool.tables];
        let all = all.map(|many| usize::try_from(many).unwrap_or(usize::MAX));
        Self { shares: Arc::new(Shares::new(all)), kept: Mutex::default() }
    }

    /// Waits until there is room for an instance. May be dropped in the middle.
    pub(super) async fn acquire(&self, member: &Arc<Member>, needs: Needs) -> Held {
        let claim = Claim { member: Arc::clone(member), wanted: needs, most: usize::MAX };
        self.shares.acquire_and(&claim, || self.make_room(&claim)).await
    }

    /// Whether somebody waits for an instance, so that none is to be kept.
    pub(super) fn are_waited_for(&self) -> bool {
        self.shares.are_waited_for()
    }

    /// From now on, an instance that is kept there may be ended.
    pub(super) fn register(&self, member: &Arc<Member>, place: Weak<dyn Kept>) {
        let mut kept = self.kept();
        if kept.places.len() >= kept.clean_at {
            kept.places.retain(|(_, place)| place.strong_count() > 0);
            kept.clean_at = 2 * kept.places.len() + 16;
        }
        kept.places.push((Arc::clone(member), place));
    }

    /// Ends instances that are kept until nobody of the same handler waits: first those of
    /// its own tenant, then, if it is they who are in the way, those of others.
    fn make_room(&self, claim: &Claim<THINGS>) {
        let places: Vec<_> = self.kept().places.clone();
        let (own, others): (Vec<_>, Vec<_>) =
            places.into_iter().partition(|(member, _)| member.tenant == claim.member.tenant);
        for (_, place) in own {
            if place.upgrade().is_some_and(|place| place.end()) && !self.shares.waits(claim) {
                return;
            }
        }
        for (_, place) in others {
            if self.shares.holder(claim) != Some(Holder::Others) || !self.shares.waits(claim) {
                return;
            }
            if let Some(place) = place.upgrade() {
                place.end();
            }
        }
    }

    fn kept(&self) -> MutexGuard<'_, Places> {
        // Whole after each statement.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
