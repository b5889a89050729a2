//! The engine's instance pool: how many instances, memories and tables each handler has.
//!
//! An instance takes everything that its component declares: memories and tables too. A
//! worker acquires them before it makes the instance, and they are released when the
//! instance is gone, so that no component can take all tables while others have instances
//! to spare. An idle instance, which is kept for its handler's next event, is evicted
//! where another handler would have to wait for the pool.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::engine::PoolSettings;
use super::fair_semaphore::{Claim, FairPermit, FairSemaphore, HandlerId, HeldBy};

/// How many kinds of things the pool has: instances, memories and tables.
const POOLED: usize = 3;

/// What one instance takes out of the pool: instances, memories and tables.
pub(super) type InstanceNeeds = [usize; POOLED];

/// What one instance holds of the pool until it is gone.
pub(super) type InstancePermit = FairPermit<POOLED>;

/// Where a worker keeps an idle instance between two attempts.
pub(super) trait Evict: Send + Sync {
    /// Drops the instance. False where there is none.
    fn evict(&self) -> bool;
}

/// The pool of one engine.
pub(super) struct InstancePool {
    semaphore: Arc<FairSemaphore<POOLED>>,
    idle: Mutex<IdleInstances>,
}

/// Where idle instances are kept.
#[derive(Default)]
struct IdleInstances {
    cells: Vec<(Arc<HandlerId>, Weak<dyn Evict>)>,
    /// At this length the list is cleaned of workers that are gone.
    clean_at: usize,
}

impl InstancePool {
    pub(super) fn new(pool: &PoolSettings) -> Self {
        let all = [pool.instances, pool.memories, pool.tables];
        let all = all.map(|many| usize::try_from(many).unwrap_or(usize::MAX));
        Self { semaphore: Arc::new(FairSemaphore::new(all)), idle: Mutex::default() }
    }

    /// Waits until there is room for an instance. The future may be dropped at any await.
    pub(super) async fn acquire(
        &self,
        handler_id: &Arc<HandlerId>,
        needs: InstanceNeeds,
    ) -> InstancePermit {
        let claim = Claim { handler_id: Arc::clone(handler_id), wanted: needs, most: usize::MAX };
        self.semaphore.acquire_and(&claim, || self.evict_idle(&claim)).await
    }

    /// Whether a worker waits for an instance, so that no idle one is to be kept.
    pub(super) fn has_waiters(&self) -> bool {
        self.semaphore.has_waiters()
    }

    /// From now on, an idle instance that is kept there may be evicted.
    pub(super) fn register(&self, handler_id: &Arc<HandlerId>, cell: Weak<dyn Evict>) {
        let mut idle = self.idle();
        if idle.cells.len() >= idle.clean_at {
            idle.cells.retain(|(_, cell)| cell.strong_count() > 0);
            idle.clean_at = 2 * idle.cells.len() + 16;
        }
        idle.cells.push((Arc::clone(handler_id), cell));
    }

    /// Evicts idle instances until no worker of the same handler waits: first those of its
    /// own tenant, then, if other tenants hold what it waits for, those of others.
    fn evict_idle(&self, claim: &Claim<POOLED>) {
        let cells: Vec<_> = self.idle().cells.clone();
        let (own, others): (Vec<_>, Vec<_>) = cells
            .into_iter()
            .partition(|(handler_id, _)| handler_id.tenant == claim.handler_id.tenant);
        for (_, cell) in own {
            if cell.upgrade().is_some_and(|cell| cell.evict()) && !self.semaphore.waits(claim) {
                return;
            }
        }
        for (_, cell) in others {
            if self.semaphore.held_by(claim) != Some(HeldBy::Others) || !self.semaphore.waits(claim)
            {
                return;
            }
            if let Some(cell) = cell.upgrade() {
                cell.evict();
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, IdleInstances> {
        // Whole after each statement.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
