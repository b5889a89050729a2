//! Admission: which attempt may run now.
//!
//! A group holds a [`Permit`] for each task that makes attempts, asks it before each
//! of them, and releases with each batch what it holds. A permit grants:
//! - a slot, one of the attempts that run at once: of the handler, of its tenant and
//!   of the host, acquired together or not at all, so that no task waits for one of
//!   the three while it holds another;
//! - the handler's memory, out of what its tenant may use, acquired together with the
//!   first slot and kept until the batch ends. So a task that has a slot never waits
//!   for memory, and one that has memory waits only for running attempts.
//!
//! An attempt computes on one of the machine's cores, in fair order with the others:
//! see [`FairExecutor`]. Groups read and settle in fair order too: see [`StorePermit`].
//! In the store's own first-come queues, a hundred settlements of one tenant would come
//! before one of another.
//!
//! The tenant that has used least is served first, and within a tenant the group that
//! has (`queue`). So the wait of a tenant with one event grows neither with the backlog
//! of another tenant nor with the number of its handlers. A permit lasts for
//! [`TIME_SLICE`] of work and then yields to others.
//!
//! A tenant's rates are token buckets (`bucket`) on tokio's clock. Waiting for
//! any of this happens before an attempt, does not count as one, and may be cancelled at
//! any moment. Parts of a tenant's quota that do not concern running, such as how
//! much state it may keep, are checked where that grows.

mod bucket;
mod executor;
mod ledger;
mod occupancy;
mod permit;
mod queue;
mod store_permit;
#[cfg(test)]
mod tests;
mod ticket;

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;

use bucket::Rates;
use executor::RunQueue;
pub use executor::{FairExecutor, Task};
use ledger::{GroupId, Ledger};
use occupancy::StoreQueue;
pub use permit::Permit;
pub use store_permit::StorePermit;

use event_host_core::event::Tenant;
use event_host_metrics::{Permits, TenantPermits};

/// The largest limit on attempts at once: as many instances as the sandbox's pool has
/// for one tenant.
pub const MAX_CONCURRENCY: usize = 1_000;

/// Attempts at once per core where the settings give no number: enough to keep the
/// cores busy while most attempts wait for something.
const ATTEMPTS_PER_CORE: usize = 64;

/// The largest default of attempts at once: a quarter of the sandbox's pool, so that
/// instances which outlive a batch have room too.
const MAX_DEFAULT_CONCURRENCY: usize = 500;

/// How much work a group does before it yields to others. Long against the cost of the
/// change, short against what a person or a network notices.
pub const TIME_SLICE: Duration = Duration::from_millis(2);

/// What the handlers of one tenant may use together; `None` is unbounded. All but
/// the last three hold for each host separately.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TenantQuota {
    /// Memory in use at once, in bytes: each batch that runs counts with all that
    /// its handler may use.
    pub memory_bytes: Option<usize>,
    /// Attempts at once. At least 1.
    pub concurrency: Option<usize>,
    /// Attempts begun per second. Above 0.
    pub events_per_second: Option<f64>,
    /// Seconds of CPU per second. Above 0.
    pub cpu: Option<f64>,
    /// Events emitted per second. Above 0.
    pub emits_per_second: Option<f64>,
    /// Bytes of data and attributes emitted per second. Above 0.
    pub emit_bytes_per_second: Option<f64>,
    /// HTTP requests per second. Above 0.
    pub http_requests_per_second: Option<f64>,
    /// HTTP connections open at once. At least 1.
    pub http_connections: Option<usize>,
    /// Lines logged per second. Above 0.
    pub log_lines_per_second: Option<f64>,
    /// Dead letters kept.
    pub dead_letters: Option<u64>,
    /// Bytes of all dead letters kept.
    pub dead_letter_bytes: Option<u64>,
    /// Bytes of all keys and values in the state of its groups.
    pub state_bytes: Option<usize>,
}

/// What one group asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Attempts at once. At least 1.
    pub concurrency: usize,
    /// The memory that an instance may use, in bytes.
    pub memory_bytes: usize,
}

/// The admission control of one host, for all its groups.
#[derive(Debug)]
pub struct Admission {
    metrics: Permits,
    ledger: Mutex<Ledger>,
    /// Steps of tasks that wait for a core.
    run_queue: RunQueue,
}

impl Default for Admission {
    /// As many attempts at once as suit the machine, and no quotas.
    fn default() -> Self {
        Self::new(None)
    }
}

impl Admission {
    /// Admits `concurrency` attempts at once, or as many as suit the machine.
    #[must_use]
    pub fn new(concurrency: Option<usize>) -> Self {
        let ledger = Ledger::new(concurrency.unwrap_or_else(default_concurrency));
        let metrics = Permits::default();
        Self { metrics, ledger: Mutex::new(ledger), run_queue: RunQueue::default() }
    }

    /// The same, counted.
    #[must_use]
    pub fn counted(self, metrics: Permits) -> Self {
        Self { metrics, ..self }
    }

    /// Tells what is held and waited for at this moment.
    pub fn tell(&self) {
        // Its lock ends with this line: attempts wait for it.
        let tenants = self.ledger().by_tenant();
        for (tenant, most, held, waiting) in tenants {
            self.metrics.set(&tenant, most, held, waiting);
        }
    }

    /// Sets how many attempts run at once, and the quota of every tenant; a tenant that
    /// is not named has none from now on. Attempts that run already go on.
    pub fn configure<'a>(
        &self,
        concurrency: Option<usize>,
        tenants: impl IntoIterator<Item = (&'a Tenant, &'a TenantQuota)>,
    ) {
        self.ledger().configure(concurrency.unwrap_or_else(default_concurrency), tenants);
    }

    /// Registers a group. It is deregistered once the answer, and every permit of it, is
    /// dropped.
    #[must_use]
    pub fn register(self: &Arc<Self>, tenant: &Tenant, demand: Demand) -> GroupAdmission {
        let metrics = self.metrics.tenant(tenant);
        let (tenant, group, rates) = self.ledger().register(tenant, demand);
        self.run_queue.register(tenant, group.0);
        let admission = Arc::clone(self);
        let registered = RegisteredGroup { admission, tenant, group, rates, metrics };
        GroupAdmission(Arc::new(registered))
    }

    /// How many slots are held.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.ledger().in_use()
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // No code under the lock panics; if it did, one slot too many or too few is
        // better than a host that stops.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A cost in the fair queues.
const fn nanoseconds(time: Duration) -> u64 {
    // 64 bits hold 584 years.
    time.as_nanos() as u64
}

/// As many attempts at once as suit the machine.
fn default_concurrency() -> usize {
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    cores.saturating_mul(ATTEMPTS_PER_CORE).min(MAX_DEFAULT_CONCURRENCY)
}

/// How one group is admitted: to slots, cores and the store.
#[derive(Debug, Clone)]
pub struct GroupAdmission(Arc<RegisteredGroup>);

impl GroupAdmission {
    /// A permit for one batch, that grants nothing yet.
    #[must_use]
    pub fn permit(&self) -> Permit {
        Permit::new(Arc::clone(&self.0))
    }

    /// Waits until the group may read, from a store that carries out `limit` reads at
    /// once.
    pub async fn acquire_read(&self, limit: usize) -> StorePermit {
        StorePermit::acquire(&self.0, StoreQueue::Read, limit).await
    }

    /// Waits until the group may settle, in a store that carries out `limit`
    /// settlements at once.
    pub async fn acquire_write(&self, limit: usize) -> StorePermit {
        StorePermit::acquire(&self.0, StoreQueue::Write, limit).await
    }

    /// The quota of the group's tenant, as it is now.
    #[must_use]
    pub fn quota(&self) -> TenantQuota {
        self.0.admission.ledger().quota(self.0.group).clone()
    }
}

/// A group that is registered until this is dropped.
#[derive(Debug)]
struct RegisteredGroup {
    admission: Arc<Admission>,
    /// The number of its tenant.
    tenant: usize,
    group: GroupId,
    /// The tenant's rates.
    rates: Arc<Rates>,
    /// What the tenant counts with.
    metrics: TenantPermits,
}

impl Drop for RegisteredGroup {
    fn drop(&mut self) {
        self.admission.ledger().deregister(self.group);
    }
}
