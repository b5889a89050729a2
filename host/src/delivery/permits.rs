//! Permits: which attempt may run now.
//!
//! A group takes a [`Permit`] for each task that makes attempts, asks it before each
//! of them, and gives back with each batch what it holds.
//! What a permit grants:
//! - a place among the attempts that run at once: of the handler, then of its
//!   tenant, then of the host, taken together or not at all, so that nobody ever
//!   waits for one while he holds another;
//! - the handler's memory, out of what its tenant may use, taken together with the
//!   first place and kept until the batch ends. So whoever has a place never waits
//!   for memory, and whoever has memory waits only for those who run.
//!
//! An attempt computes on one of the machine's cores, in turn with the others: see
//! [`Cores`]. What the store does for the groups, it does in turn too: [`Turn`]. In
//! its own lines a hundred settlements of one tenant would stand before one of another.
//!
//! Whoever has used least comes first: among tenants, and within a tenant
//! among its groups (`queue`). So what a tenant with one event waits does not
//! grow with the backlog of another, nor with the number of its handlers. A permit
//! that is held lasts for [`SLICE`] of work and then makes room for others.
//!
//! A tenant's rates are token buckets (`bucket`) on tokio's clock. Waiting for
//! any of this happens before an attempt, counts as none, and may be given up at
//! any moment. What is in a tenant's quota and not about running, such as how
//! much state it may keep, is looked at where it grows.

mod book;
mod bucket;
mod cores;
mod lane;
mod permit;
mod queue;
#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;

use book::{Book, GroupId};
use bucket::Rates;
use cores::Line;
pub use cores::{Cores, Task};
use lane::Lane;
pub use lane::Turn;
pub use permit::Permit;

use crate::event::Tenant;

/// The most that a quota of attempts at once may be: as many instances as the
/// sandbox has room for of one tenant.
pub const MAX_CONCURRENCY: usize = 1_000;

/// Attempts at once for each core, where nobody says how many: enough to keep the
/// cores busy while most attempts wait for something.
const ATTEMPTS_A_CORE: usize = 64;

/// The most attempts at once that is chosen for a machine: a quarter of the sandbox's
/// room, so that instances which outlive a batch have room too.
const MAX_DEFAULT_CONCURRENCY: usize = 500;

/// How much work a group does before it makes room for others. Long against what
/// the change costs, short against what a person or a network notices.
pub const SLICE: Duration = Duration::from_millis(2);

/// What the handlers of one tenant may use together; `None` is unbounded. All but
/// the last three are of each host by itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TenantQuota {
    /// Memory in use at once, in bytes: each batch under way counts with all that
    /// its handler may take.
    pub memory_bytes: Option<usize>,
    /// Attempts at once. At least 1.
    pub concurrency: Option<usize>,
    /// Attempts begun in a second. Above 0.
    pub events_per_second: Option<f64>,
    /// Seconds of CPU in a second. Above 0.
    pub cpu: Option<f64>,
    /// Events emitted in a second. Above 0.
    pub emits_per_second: Option<f64>,
    /// Bytes of data and attributes emitted in a second. Above 0.
    pub emit_bytes_per_second: Option<f64>,
    /// HTTP requests in a second. Above 0.
    pub http_requests_per_second: Option<f64>,
    /// HTTP connections open at once. At least 1.
    pub http_connections: Option<usize>,
    /// Lines logged in a second. Above 0.
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
    /// The memory that an instance may take, in bytes.
    pub memory_bytes: usize,
}

/// The permits of one host. One for all its groups.
#[derive(Debug)]
pub struct Permits {
    book: Mutex<Book>,
    /// What is to be computed.
    line: Line,
}

impl Default for Permits {
    /// As many attempts at once as suit the machine, and no quota of tenants.
    fn default() -> Self {
        Self::new(None)
    }
}

impl Permits {
    /// Permits for so many attempts at once, or for as many as suit the machine.
    #[must_use]
    pub fn new(concurrency: Option<usize>) -> Self {
        let book = Book::new(concurrency.unwrap_or_else(default_concurrency));
        Self { book: Mutex::new(book), line: Line::default() }
    }

    /// Sets how many attempts run at once, and the quota of every tenant; one
    /// that is not named has none from now on. What runs already goes on.
    pub fn configure<'a>(
        &self,
        concurrency: Option<usize>,
        tenants: impl IntoIterator<Item = (&'a Tenant, &'a TenantQuota)>,
    ) {
        self.book().configure(concurrency.unwrap_or_else(default_concurrency), tenants);
    }

    /// Enters a group. It has left once the answer, and every permit of it, is
    /// dropped.
    #[must_use]
    pub fn share(self: &Arc<Self>, tenant: &Tenant, demand: Demand) -> Share {
        let (owner, group, rates) = self.book().enter(tenant, demand);
        self.line.enter(owner, group.0);
        let member = Member { permits: Arc::clone(self), owner, group, rates };
        Share(Arc::new(member))
    }

    /// How many attempts may be running now.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.book().in_use()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing that is called under the lock panics; if it did, a permit too
        // many or too few is better than a host that stands still.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A cost in the fair queues.
const fn nanoseconds(time: Duration) -> u64 {
    // Five hundred years of it are enough.
    time.as_nanos() as u64
}

/// As many attempts at once as suit the machine.
fn default_concurrency() -> usize {
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    cores.saturating_mul(ATTEMPTS_A_CORE).min(MAX_DEFAULT_CONCURRENCY)
}

/// A group's share of the host.
#[derive(Debug, Clone)]
pub struct Share(Arc<Member>);

impl Share {
    /// A permit for one batch, that grants nothing yet.
    #[must_use]
    pub fn permit(&self) -> Permit {
        Permit::new(Arc::clone(&self.0))
    }

    /// Waits for the group's turn to read the log, from a store that carries out so
    /// many reads at once.
    pub async fn read_turn(&self, at_once: usize) -> Turn {
        Turn::wait(&self.0, Lane::Read, at_once).await
    }

    /// Waits for the group's turn to settle, with a store that carries out so many
    /// settlements at once.
    pub async fn write_turn(&self, at_once: usize) -> Turn {
        Turn::wait(&self.0, Lane::Write, at_once).await
    }

    /// The quota of the group's tenant, as they are now.
    #[must_use]
    pub fn quota(&self) -> TenantQuota {
        self.0.permits.book().quota(self.0.group).clone()
    }
}

/// A group that is entered.
#[derive(Debug)]
struct Member {
    permits: Arc<Permits>,
    /// The number of its tenant.
    owner: usize,
    group: GroupId,
    /// The tenant's rates.
    rates: Arc<Rates>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.permits.book().leave(self.group);
    }
}
