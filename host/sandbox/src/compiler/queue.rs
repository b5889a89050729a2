//! The queue of components to compile.
//!
//! One component of a tenant is compiled at a time, and those of a few tenants at once; the
//! others wait in the order in which they came. So a component that takes long
//! holds up the others of its tenant, and another tenant's only where the
//! maximum of tenants compile at once. No component is refused for waiting; after 5 s the
//! log says which compilations it waits for.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::load_error::LoadReason;
use event_host_core::event::Tenant;

/// How long a component waits before the log says what it waits for; then twice that, and
/// so on.
const LONG: Duration = Duration::from_secs(5);

/// The queue of one engine's compiler.
#[derive(Debug)]
pub(super) struct CompileQueue {
    /// One permit for each tenant that may compile at once.
    max_tenants: Arc<Semaphore>,
    state: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    /// A semaphore of one permit for each tenant that compiles or waits.
    tenants: HashMap<Tenant, Arc<Semaphore>>,
    /// The compilations that run, in the order in which they began.
    running: BTreeMap<u64, Compilation>,
    last: u64,
}

#[derive(Debug)]
struct Compilation {
    tenant: Tenant,
    origin: String,
    since: Instant,
}

/// Permission to compile one component, which is released when this is dropped.
#[derive(Debug)]
pub(crate) struct CompilePermit {
    queue: Arc<CompileQueue>,
    number: u64,
    tenant: Tenant,
    // Released before the tenant's, so that another tenant comes next.
    running_permit: Option<OwnedSemaphorePermit>,
    tenant_permit: Option<OwnedSemaphorePermit>,
}

impl CompileQueue {
    /// A queue that lets `max_tenants` tenants compile at once.
    pub(super) fn new(max_tenants: usize) -> Arc<Self> {
        Arc::new(Self {
            max_tenants: Arc::new(Semaphore::new(max_tenants)),
            state: Mutex::default(),
        })
    }

    /// Waits until a component may be compiled, which messages call `origin`.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        tenant: &Tenant,
        origin: &str,
    ) -> Result<CompilePermit, LoadReason> {
        let taking = async {
            let of_tenant =
                Arc::clone(self.state().tenants.entry(tenant.clone()).or_insert_with(one));
            let tenant_permit = of_tenant.acquire_owned().await?;
            let running_permit = Arc::clone(&self.max_tenants).acquire_owned().await?;
            Ok((tenant_permit, running_permit))
        };
        let mut taking = std::pin::pin!(taking);
        let (mut patience, started) = (LONG, Instant::now());
        let taken = loop {
            match tokio::time::timeout(patience, &mut taking).await {
                Ok(taken) => break taken,
                Err(_) => tracing::info!(
                    "{origin} of {} has been waiting for {:.0?} to be compiled, while {}",
                    named(tenant),
                    started.elapsed(),
                    self.describe()
                ),
            }
            patience = patience.saturating_mul(2);
        };
        let (tenant_permit, running_permit) = taken
            // The semaphores are never closed.
            .map_err(|closed: tokio::sync::AcquireError| {
                LoadReason::Internal(closed.to_string())
            })?;
        let mut state = self.state();
        state.last += 1;
        let number = state.last;
        let (tenant, origin) = (tenant.clone(), origin.to_owned());
        let running = Compilation { tenant: tenant.clone(), origin, since: Instant::now() };
        state.running.insert(number, running);
        drop(state);
        Ok(CompilePermit {
            queue: Arc::clone(self),
            number,
            tenant,
            running_permit: Some(running_permit),
            tenant_permit: Some(tenant_permit),
        })
    }

    /// What is being compiled, in words.
    pub(super) fn describe(&self) -> String {
        let mut said = String::new();
        for Compilation { tenant, origin, since } in self.state().running.values() {
            let and = if said.is_empty() { "" } else { ", and " };
            let (tenant, so_long) = (named(tenant), since.elapsed());
            // Writing to a string cannot fail.
            let _ = write!(said, "{and}{origin} of {tenant} has been compiling for {so_long:.0?}");
        }
        if said.is_empty() { "nothing compiles".to_owned() } else { said }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        // Whole after each statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CompilePermit {
    fn drop(&mut self) {
        self.running_permit.take();
        self.tenant_permit.take();
        let mut state = self.queue.state();
        state.running.remove(&self.number);
        // A component that waits for the semaphore holds it too.
        if state.tenants.get(&self.tenant).is_some_and(|own| Arc::strong_count(own) == 1) {
            state.tenants.remove(&self.tenant);
        }
    }
}

fn one() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

fn named(tenant: &Tenant) -> String {
    if tenant.is_none() { "no tenant".to_owned() } else { format!("tenant `{tenant}`") }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn tenant(name: &str) -> Tenant {
        name.parse().unwrap()
    }

    #[tokio::test]
    async fn a_tenant_that_compiles_holds_up_itself_and_no_other() {
        let queue = CompileQueue::new(2);
        let (slow, innocent) = (tenant("mallory"), tenant("acme"));
        let held = queue.acquire(&slow, "slow.wasm").await.unwrap();
        let mut next = std::pin::pin!(queue.acquire(&slow, "next.wasm"));
        assert!(next.as_mut().now_or_never().is_none());
        // Neither the one that compiles nor the one that waits is in its way.
        drop(queue.acquire(&innocent, "good.wasm").now_or_never().unwrap().unwrap());
        assert!(queue.describe().starts_with("slow.wasm of tenant `mallory` has been compiling"));
        drop(held);
        drop(next.now_or_never().unwrap().unwrap());
        assert_eq!(queue.describe(), "nothing compiles");
        assert!(queue.state().tenants.is_empty(), "what is not needed is dropped");
    }

    #[tokio::test]
    async fn tenants_take_turns_however_much_one_of_them_wants() {
        let queue = CompileQueue::new(1);
        let (greedy, innocent) = (tenant("mallory"), tenant("acme"));
        let held = queue.acquire(&greedy, "1").await.unwrap();
        let mut more: Vec<_> = (0..100).map(|_| Box::pin(queue.acquire(&greedy, "more"))).collect();
        assert!(more.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        let mut good = std::pin::pin!(queue.acquire(&innocent, "good"));
        assert!(good.as_mut().now_or_never().is_none());
        drop(held);
        // The next of the greedy one came first, and then it is the other's turn.
        let mut taken = more.iter_mut().filter_map(|one| one.as_mut().now_or_never());
        let second = match good.as_mut().now_or_never() {
            Some(turn) => return drop(turn.unwrap()),
            None => taken.next().unwrap().unwrap(),
        };
        assert!(taken.next().is_none());
        drop(second);
        drop(good.now_or_never().unwrap().unwrap());
    }
}
