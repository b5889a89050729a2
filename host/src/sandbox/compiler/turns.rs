//! Who compiles now, and who waits for whom.
//!
//! A tenant has one turn at a time, and a few tenants have theirs at once; the
//! others wait in the order in which they came. So a component that takes long
//! holds up the others of its tenant, and another tenant's only where as many
//! tenants as there are places compile at once. Nobody is refused for waiting; who
//! waits for long is told whom for.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::event::Tenant;
use crate::sandbox::load_error::LoadReason;

/// After how long it is said whom somebody waits for; then after twice that, and so on.
const LONG: Duration = Duration::from_secs(5);

/// Gives turns.
#[derive(Debug)]
pub(super) struct Turns {
    /// Places for tenants.
    places: Arc<Semaphore>,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// One permit a tenant that has a turn or waits for one.
    tenants: HashMap<Tenant, Arc<Semaphore>>,
    /// Whose turn it is, by when it began.
    under_way: BTreeMap<u64, UnderWay>,
    last: u64,
}

#[derive(Debug)]
struct UnderWay {
    tenant: Tenant,
    origin: String,
    since: Instant,
}

/// A turn, which ends when it is dropped.
#[derive(Debug)]
pub(in crate::sandbox) struct Turn {
    turns: Arc<Turns>,
    number: u64,
    tenant: Tenant,
    // Gone before the tenant's, so that the next of another tenant comes first.
    place: Option<OwnedSemaphorePermit>,
    own: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Turns for so many tenants at once.
    pub(super) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self { places: Arc::new(Semaphore::new(places)), book: Mutex::default() })
    }

    /// Waits for a turn to compile what messages call `origin`.
    pub(super) async fn take(
        self: &Arc<Self>,
        tenant: &Tenant,
        origin: &str,
    ) -> Result<Turn, LoadReason> {
        let taking = async {
            let of_tenant =
                Arc::clone(self.book().tenants.entry(tenant.clone()).or_insert_with(one));
            let own = of_tenant.acquire_owned().await?;
            let place = Arc::clone(&self.places).acquire_owned().await?;
            Ok((own, place))
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
                    self.under_way()
                ),
            }
            patience = patience.saturating_mul(2);
        };
        let (own, place) = taken
            // Nobody closes them.
            .map_err(|closed: tokio::sync::AcquireError| {
                LoadReason::Internal(closed.to_string())
            })?;
        let mut book = self.book();
        book.last += 1;
        let number = book.last;
        let (tenant, origin) = (tenant.clone(), origin.to_owned());
        let under_way = UnderWay { tenant: tenant.clone(), origin, since: Instant::now() };
        book.under_way.insert(number, under_way);
        drop(book);
        Ok(Turn { turns: Arc::clone(self), number, tenant, place: Some(place), own: Some(own) })
    }

    /// What is being compiled, in words.
    pub(super) fn under_way(&self) -> String {
        let mut said = String::new();
        for UnderWay { tenant, origin, since } in self.book().under_way.values() {
            let and = if said.is_empty() { "" } else { ", and " };
            let (tenant, so_long) = (named(tenant), since.elapsed());
            // Writing to a string cannot fail.
            let _ = write!(said, "{and}{origin} of {tenant} has been compiling for {so_long:.0?}");
        }
        if said.is_empty() { "nothing compiles".to_owned() } else { said }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Whole after each statement.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.place.take();
        self.own.take();
        let mut book = self.turns.book();
        book.under_way.remove(&self.number);
        // Who waits for it has it too.
        if book.tenants.get(&self.tenant).is_some_and(|own| Arc::strong_count(own) == 1) {
            book.tenants.remove(&self.tenant);
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
        let turns = Turns::new(2);
        let (slow, innocent) = (tenant("mallory"), tenant("acme"));
        let held = turns.take(&slow, "slow.wasm").await.unwrap();
        let mut next = std::pin::pin!(turns.take(&slow, "next.wasm"));
        assert!(next.as_mut().now_or_never().is_none());
        // Neither the one that compiles nor the one that waits is in its way.
        drop(turns.take(&innocent, "good.wasm").now_or_never().unwrap().unwrap());
        assert!(turns.under_way().starts_with("slow.wasm of tenant `mallory` has been compiling"));
        drop(held);
        drop(next.now_or_never().unwrap().unwrap());
        assert_eq!(turns.under_way(), "nothing compiles");
        assert!(turns.book().tenants.is_empty(), "what nobody needs is let go");
    }

    #[tokio::test]
    async fn tenants_take_turns_however_much_one_of_them_wants() {
        let turns = Turns::new(1);
        let (greedy, innocent) = (tenant("mallory"), tenant("acme"));
        let held = turns.take(&greedy, "1").await.unwrap();
        let mut more: Vec<_> = (0..100).map(|_| Box::pin(turns.take(&greedy, "more"))).collect();
        assert!(more.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        let mut good = std::pin::pin!(turns.take(&innocent, "good"));
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
