//! The component of a replay that names one, beside the group's own.
//!
//! [`ReplayHandler`] is the handler of a group, and looks at each event: one that
//! names a digest goes to that component, with the group's settings, and every
//! other to the group's own. Only a few other components are kept loaded.
//!
//! One that cannot be run makes a dead letter of its event at once, under
//! [`FailureKind::NotLoaded`]: to wait for it would hold up the group for the
//! sake of one replay. A database that is away is waited for, as ever.
//!
//! A component is loaded before its event is attempted ([`Handler::prepare`]): it may
//! have to be compiled, which takes long, and an attempt holds a permit and memory.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::Mutex as AsyncMutex;
use tracing::info;

use event_host_core::digest::Digest;
use event_host_core::failure::{Failure, FailureKind};
use event_host_core::handler::{
    BatchCall, BatchReport, Call, Handler, Outcome, Report, Usage, Worker,
};

/// Maximum number of other components that a handler keeps loaded, or remembers as not
/// loadable.
const MAX_CACHED: usize = 2;

/// Loads components for one handler of one tenant, with the handler's settings.
#[async_trait]
pub trait ReplayComponents: Send + Sync + 'static {
    /// Loads a component; may take as long as it takes to compile one. The
    /// future may be dropped at any await.
    ///
    /// # Errors
    /// See [`ReplayComponentError`].
    async fn load(&self, digest: &Digest) -> Result<Arc<dyn Handler>, ReplayComponentError>;
}

/// Why there is no component to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayComponentError {
    /// It is not known at this moment, as when the store is away.
    NotNow(String),
    /// It is not there, or loading it broke off. The next time it may work.
    Failed(String),
    /// It cannot be run, and the next time neither.
    Refused(String),
}

/// Nothing but the handler's own component.
#[derive(Debug, Clone, Copy)]
pub struct NoReplayComponents;

#[async_trait]
impl ReplayComponents for NoReplayComponents {
    async fn load(&self, _: &Digest) -> Result<Arc<dyn Handler>, ReplayComponentError> {
        Err(ReplayComponentError::Failed(
            "this host runs no component but the handler's own".to_owned(),
        ))
    }
}

/// A handler that runs each event with the component that the event names, or
/// else with its own.
pub struct ReplayHandler {
    cache: Arc<ComponentCache>,
}

struct ComponentCache {
    own: Arc<dyn Handler>,
    components: Arc<dyn ReplayComponents>,
    /// The one that was asked for last is the last.
    cached: Mutex<Vec<CachedComponent>>,
    /// Held while one is loaded: another attempt that needs the same waits for it.
    loading: AsyncMutex<()>,
}

/// A component that was asked for, or why it does not load.
struct CachedComponent {
    digest: Digest,
    handler: Result<Arc<dyn Handler>, String>,
}

impl ReplayHandler {
    /// Puts other components beside a handler's own.
    #[must_use]
    pub fn new(own: Arc<dyn Handler>, components: Arc<dyn ReplayComponents>) -> Self {
        let (cached, loading) = (Mutex::default(), AsyncMutex::default());
        Self { cache: Arc::new(ComponentCache { own, components, cached, loading }) }
    }
}

#[async_trait]
impl Handler for ReplayHandler {
    fn digest(&self) -> &str {
        self.cache.own.digest()
    }

    fn memory_bytes(&self) -> usize {
        self.cache.own.memory_bytes()
    }

    fn state_keys(&self) -> Option<u64> {
        self.cache.own.state_keys()
    }

    fn takes_batches(&self) -> bool {
        self.cache.own.takes_batches()
    }

    fn has(&self, digest: &Digest) -> bool {
        let ComponentCache { own, .. } = &*self.cache;
        digest.as_str() == own.digest()
            || self.cache.cached().iter().any(|other| other.digest == *digest)
    }

    async fn prepare(&self, digest: &Digest) -> Result<(), String> {
        match self.cache.load(digest).await {
            Err(ReplayComponentError::NotNow(why)) => Err(why),
            // The attempt makes a dead letter of it.
            Err(ReplayComponentError::Failed(_) | ReplayComponentError::Refused(_)) | Ok(_) => {
                Ok(())
            }
        }
    }

    fn worker(&self) -> Box<dyn Worker> {
        let worker = self.cache.own.worker();
        Box::new(ReplayWorker { cache: Arc::clone(&self.cache), digest: None, worker })
    }
}

impl ComponentCache {
    async fn load(&self, digest: &Digest) -> Result<Arc<dyn Handler>, ReplayComponentError> {
        if digest.as_str() == self.own.digest() {
            return Ok(Arc::clone(&self.own));
        }
        if let Some(known) = self.known(digest) {
            return known;
        }
        let _turn = self.loading.lock().await;
        if let Some(known) = self.known(digest) {
            return known;
        }
        let handler = match self.components.load(digest).await {
            Ok(handler) => {
                info!(%digest, "a component is loaded for a replay that names it");
                Ok(handler)
            }
            // It may take long to find out, and a replay of all may ask for it
            // thousands of times.
            Err(ReplayComponentError::Refused(why)) => Err(why),
            Err(passing) => return Err(passing),
        };
        let mut cached = self.cached();
        if cached.len() >= MAX_CACHED {
            cached.remove(0);
        }
        cached.push(CachedComponent { digest: digest.clone(), handler: handler.clone() });
        handler.map_err(ReplayComponentError::Refused)
    }

    /// A component that was asked for before, if it is kept.
    fn known(&self, digest: &Digest) -> Option<Result<Arc<dyn Handler>, ReplayComponentError>> {
        let mut cached = self.cached();
        let at = cached.iter().position(|other| other.digest == *digest)?;
        let other = cached.remove(at);
        let handler = other.handler.clone();
        cached.push(other);
        Some(handler.map_err(ReplayComponentError::Refused))
    }

    fn cached(&self) -> MutexGuard<'_, Vec<CachedComponent>> {
        // Every change of it is whole, so a poisoned lock is fine.
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct ReplayWorker {
    cache: Arc<ComponentCache>,
    /// The component that `worker` runs; `None` for the handler's own.
    digest: Option<Digest>,
    /// The only one there is, so that no two instances take the memory of one.
    worker: Box<dyn Worker>,
}

impl ReplayWorker {
    async fn attempt_after_switch(&mut self, call: Call<'_>) -> Report {
        let not_loaded = |digest: &Digest, why: &str| {
            let text = format!("the replay named component {digest}, which cannot be run: {why}");
            Outcome::Failure(Failure::new(FailureKind::NotLoaded, &text))
        };
        let wanted = call.event.digest.as_ref();
        let outcome = match wanted {
            None => {
                self.switch_to(None, self.cache.own.worker());
                return self.worker.attempt(call).await;
            }
            Some(digest) => match self.cache.load(digest).await {
                Ok(handler) => {
                    self.switch_to(Some(digest.clone()), handler.worker());
                    return self.worker.attempt(call).await;
                }
                Err(ReplayComponentError::NotNow(why)) => Outcome::NotRun(why),
                Err(ReplayComponentError::Failed(why) | ReplayComponentError::Refused(why)) => {
                    not_loaded(digest, &why)
                }
            },
        };
        Report { outcome, emits: Vec::new(), usage: Usage::default() }
    }

    fn switch_to(&mut self, digest: Option<Digest>, worker: Box<dyn Worker>) {
        self.digest = digest;
        self.worker = worker;
    }
}

impl Worker for ReplayWorker {
    // Written out, because nearly every attempt is the worker's own, and would
    // else be allocated twice.
    fn attempt<'worker, 'call, 'attempt>(
        &'worker mut self,
        call: Call<'call>,
    ) -> Pin<Box<dyn Future<Output = Report> + Send + 'attempt>>
    where
        'worker: 'attempt,
        'call: 'attempt,
        Self: 'attempt,
    {
        if call.event.digest == self.digest {
            self.worker.attempt(call)
        } else {
            Box::pin(self.attempt_after_switch(call))
        }
    }

    fn attempt_all<'worker, 'call, 'attempt>(
        &'worker mut self,
        call: BatchCall<'call>,
    ) -> Pin<Box<dyn Future<Output = BatchReport> + Send + 'attempt>>
    where
        'worker: 'attempt,
        'call: 'attempt,
        Self: 'attempt,
    {
        // No replay is in a batch, so all of it is for the handler's own component.
        if self.digest.is_some() {
            self.switch_to(None, self.cache.own.worker());
        }
        self.worker.attempt_all(call)
    }

    fn end_batch(&mut self) {
        if self.digest.is_some() {
            // One that waits for events must not keep another's code.
            self.switch_to(None, self.cache.own.worker());
        } else {
            self.worker.end_batch();
        }
    }
}
