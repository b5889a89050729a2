//! Loading: from a source to a handler that is ready to make attempts.
//!
//! Everything that can be known without running the component is checked, in the
//! order in which its author can put it right: the file; in the process that
//! compiles its form, the names it imports and exports, and its code; here its
//! types and its limits. What loads can be called; what does not is refused with a
//! sentence. The component's own bytes are not parsed here.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::{Semaphore, watch};
use wasmtime::Engine;

use super::cache::{self, Cache};
use super::compiler::output;
use super::compiler::{self, Compiler, Compiling, Job};
use super::engine::{Allocation, Code, EngineError, EngineSettings};
use super::guest_log::LineRate;
use super::http::{Client, Egress};
use super::imports::{ConfigValues, HandlerProfile};
use super::load_error::{LoadError, LoadReason};
use super::program::{Inspection, Program, fit_limits, link};
use super::runtime::Runtime;
use super::settings::{Grants, HttpPath, Limits, Reuse, names};
use super::source::{self, Source, SourceBytes};
use super::worker::LoadedHandler;
use event_host_core::event::{GroupName, Tenant};
use event_host_metrics::{Compiled, HandlerMetrics, SandboxMetrics};

/// The place where components are loaded: an engine, and everything that
/// handlers may import. One serves a whole host; clones share it.
#[derive(Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
    /// Whose components it loads.
    tenant: Tenant,
    /// Where they get their events, if they take them as HTTP requests.
    http_path: HttpPath,
    /// Whether compiling is to be fast, rather than the code.
    is_worked_on: bool,
    /// What loading counts with.
    metrics: SandboxMetrics,
    /// What the handlers that it loads count with.
    handler_metrics: HandlerMetrics,
}

struct Inner {
    runtime: Runtime,
    /// For handlers that limit their fuel; made for the first of them.
    metered: OnceLock<Result<Runtime, String>>,
    /// For handlers that are being worked on; made for the first of them.
    baseline: OnceLock<Result<Runtime, String>>,
    cache: Option<Cache>,
    compiler: Compiler,
    /// One component is read, or taken from the cache, at a time: it takes memory.
    reading: Semaphore,
    /// What is loaded now, by the file's digest and the kind of its code:
    /// handlers of one component share its code.
    programs: Mutex<HashMap<(String, Code), Weak<Program>>>,
    /// What the HTTP requests of all handlers share.
    client: Arc<Client>,
    settings: EngineSettings,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("settings", &self.inner.settings)
            .field("allocation", &self.inner.runtime.allocation)
            .finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Starts an engine, and the thread that interrupts its guests; the thread
    /// ends when the sandbox and all that it loaded are dropped. Takes a few
    /// milliseconds, and some more to find out whether another process can compile.
    ///
    /// # Errors
    /// When the machine can run no engine at all.
    pub fn new(settings: EngineSettings) -> Result<Self, EngineError> {
        Self::with_client(settings, Client::new())
    }

    /// The same, with a client that looks names up elsewhere.
    pub(super) fn with_client(
        settings: EngineSettings,
        client: Client,
    ) -> Result<Self, EngineError> {
        let runtime = Runtime::start(&settings, Code::Optimized)?;
        let compiler = Compiler::start(&settings, &runtime.engine, runtime.allocation)?;
        Ok(Self {
            inner: Arc::new(Inner {
                runtime,
                metered: OnceLock::new(),
                baseline: OnceLock::new(),
                cache: cache::open(&settings.cache),
                compiler,
                reading: Semaphore::new(1),
                programs: Mutex::default(),
                client: Arc::new(client),
                settings,
            }),
            tenant: Tenant::none(),
            http_path: HttpPath::default(),
            is_worked_on: false,
            metrics: SandboxMetrics::default(),
            handler_metrics: HandlerMetrics::default(),
        })
    }

    /// The same sandbox, counted.
    #[must_use]
    pub fn counted(&self, metrics: &SandboxMetrics) -> Self {
        Self { metrics: metrics.clone(), ..self.clone() }
    }

    /// The same sandbox, for a handler of this group, which counts as its own.
    #[must_use]
    pub fn for_group(&self, group: &GroupName) -> Self {
        let handler_metrics = self.metrics.handler(group.whole(), self.tenant.as_str());
        Self { handler_metrics, ..self.clone() }
    }

    /// The same sandbox, for the components of one tenant, which take turns with those
    /// of others. Without it a component is no tenant's.
    #[must_use]
    pub fn for_tenant(&self, tenant: &Tenant) -> Self {
        Self { tenant: tenant.clone(), ..self.clone() }
    }

    /// The same sandbox, for components that get their events at this path, if they take
    /// them as HTTP requests.
    #[must_use]
    pub fn with_http_path(&self, http_path: HttpPath) -> Self {
        Self { http_path, ..self.clone() }
    }

    /// The same sandbox, for components that somebody is working on: they are compiled in
    /// a fifth of the time, and run slower. What the fast compiler does not know, and what
    /// limits its fuel, is compiled as ever.
    #[cfg(feature = "winch")]
    #[must_use]
    pub fn for_work(&self) -> Self {
        Self { is_worked_on: true, ..self.clone() }
    }

    /// How instances get their memory on this machine.
    #[must_use]
    pub fn allocation(&self) -> Allocation {
        self.inner.runtime.allocation
    }

    /// The engine, for benchmarks that compare with bare calls.
    #[doc(hidden)]
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.inner.runtime.engine
    }

    /// Sets how many connections each tenant's handlers may have open at once; those of a
    /// tenant that is not named have as many as there are for it.
    pub fn bound_connections<'a>(&self, tenants: impl Iterator<Item = (&'a Tenant, usize)>) {
        self.inner.client.bound(tenants);
    }

    /// Loads a handler. The name is the one that its log lines carry.
    ///
    /// Compiling happens in a process of its own, for one component of a tenant at a
    /// time; a first compilation takes milliseconds to half a minute by the language it
    /// was written in, later ones come from the cache.
    ///
    /// # Errors
    /// When the component cannot be run, or not with these settings: see
    /// [`LoadReason`].
    pub async fn load(
        &self,
        name: &str,
        source: impl Into<Source>,
        limits: Limits,
        grants: Grants,
        reuse: Reuse,
    ) -> Result<Arc<LoadedHandler>, LoadError> {
        let source = source.into();
        let origin = source.origin();
        let at = |reason| LoadError { origin: origin.clone(), reason };
        let program = self.program(Some(name), source, Some(limits.clone())).await.map_err(at)?;
        let stack_bytes = self.inner.settings.wasm_stack_bytes;
        let client = Arc::clone(&self.inner.client);
        let metrics = self.handler_metrics.clone();
        let egress = Egress::new(name, grants.http.clone(), limits.clone(), client);
        let egress = Arc::new(egress.counted(metrics.clone()));
        let config = ConfigValues::from(&grants.config);
        let line_rate = Arc::new(LineRate::new(name, limits.log_lines_per_second));
        let (name, http_path) = (name.to_owned(), self.http_path.clone());
        let profile = HandlerProfile {
            name,
            limits,
            grants,
            config,
            egress,
            line_rate,
            http_path,
            stack_bytes,
            metrics,
        };
        Ok(Arc::new(LoadedHandler::new(program, Arc::new(profile), reuse)))
    }

    /// Tells what a component is, if it can be loaded at all.
    ///
    /// # Errors
    /// When the component cannot be run, whatever its settings.
    pub async fn inspect(&self, source: impl Into<Source>) -> Result<Inspection, LoadError> {
        let source = source.into();
        let origin = source.origin();
        match self.program(None, source, None).await {
            Ok(program) => Ok(program.inspection.clone()),
            Err(reason) => Err(LoadError { origin, reason }),
        }
    }

    /// The digest that a handler loaded from there would have, and the size of its file
    /// in bytes, without looking at what it is.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn digest(&self, source: impl Into<Source>) -> Result<(String, u64), LoadError> {
        let source = source.into();
        let origin = source.origin();
        let limit = self.inner.settings.component_bytes;
        let raw = self.inner.reading(move || source::read(source, limit)).await;
        raw.map(|raw| (raw.digest, raw.bytes.len() as u64))
            .map_err(|reason| LoadError { origin, reason })
    }

    /// Whether a component of this digest can be loaded with these limits without being
    /// compiled: it is loaded already, or in the cache.
    #[must_use]
    pub fn is_compiled(&self, digest: &str, limits: &Limits) -> bool {
        let code = self.code(Some(limits));
        let Ok(runtime) = self.inner.runtime(code) else { return false };
        let key = (digest.to_owned(), code);
        let is_loaded =
            self.inner.programs().get(&key).is_some_and(|program| program.strong_count() > 0);
        let in_cache = |cache: &Cache| cache.contains(&entry_name(runtime, digest));
        is_loaded || self.inner.cache.as_ref().is_some_and(in_cache)
    }

    /// What is being compiled, now and from now on.
    #[must_use]
    pub fn compiling(&self) -> watch::Receiver<Vec<Compiling>> {
        self.inner.compiler.compiling()
    }

    /// Has compiling give way to handlers from now on, because some run: at a lower
    /// priority, also what is under way.
    pub fn give_way(&self) {
        self.inner.compiler.give_way();
    }

    /// What code is made for a handler with these limits.
    fn code(&self, limits: Option<&Limits>) -> Code {
        match limits {
            Some(Limits { fuel: Some(_), .. }) => Code::Metered,
            _ if self.is_worked_on => Code::Baseline,
            _ => Code::Optimized,
        }
    }

    /// Without limits, whether it can be run under them is left open.
    async fn program(
        &self,
        handler: Option<&str>,
        source: Source,
        limits: Option<Limits>,
    ) -> Result<Arc<Program>, LoadReason> {
        let code = self.code(limits.as_ref());
        if code != Code::Baseline {
            return self.program_of(code, handler, source, limits).await;
        }
        let quick = self.program_of(code, handler, source.clone(), limits.clone()).await;
        match quick {
            // What is wrong with it anyway is found out once more.
            Err(why) if !why.is_passing() => {
                tracing::debug!("{} gets optimized code: {why}", source.origin());
                self.program_of(Code::Optimized, handler, source, limits).await
            }
            quick => quick,
        }
    }

    async fn program_of(
        &self,
        code: Code,
        handler: Option<&str>,
        source: Source,
        limits: Option<Limits>,
    ) -> Result<Arc<Program>, LoadReason> {
        let inner = &self.inner;
        let (origin, text, limit) =
            (source.origin(), source.text(), inner.settings.component_bytes);
        let (raw, known) = {
            let inner = Arc::clone(inner);
            let limits = limits.clone();
            let look = move || {
                let runtime = inner.runtime(code)?;
                if let Some(limits) = &limits {
                    fit_engine(runtime.allocation, &inner.settings, limits)?;
                }
                let raw = source::read(source, limit)?;
                let known = inner.known(runtime, code, &raw)?;
                Ok((raw, known))
            };
            self.inner.reading(look).await?
        };
        let program = match known {
            Some(program) => {
                self.metrics.loaded(Compiled::Cached, None);
                program
            }
            None => self.compiled(handler, origin, text, code, raw).await?,
        };
        if let Some(limits) = &limits {
            fit_limits(&program, limits)?;
        }
        Ok(program)
    }

    /// A program that has to be compiled, unless somebody else did meanwhile.
    async fn compiled(
        &self,
        handler: Option<&str>,
        origin: String,
        text: source::TextForm,
        code: Code,
        raw: SourceBytes,
    ) -> Result<Arc<Program>, LoadReason> {
        let inner = &self.inner;
        let permit = inner.compiler.acquire(&self.tenant, &origin).await?;
        let (raw, known) = {
            let inner = Arc::clone(inner);
            let look = move || {
                let known = inner.known(inner.runtime(code)?, code, &raw)?;
                Ok((raw, known))
            };
            self.inner.reading(look).await?
        };
        if let Some(program) = known {
            return Ok(program);
        }
        let SourceBytes { digest, bytes } = raw;
        let size = bytes.len() as u64;
        let runtime = inner.runtime(code)?;
        let job = Job {
            handler: handler.map(str::to_owned),
            origin,
            source: bytes.into(),
            text,
            engine: runtime.engine.clone(),
            code,
            allocation: runtime.allocation,
        };
        let began = Instant::now();
        let compiled = inner.compiler.compile(job, permit).await;
        let how = match &compiled {
            Ok(_) => Compiled::Compiled,
            Err(why) if why.was_killed() => Compiled::Killed,
            Err(_) => Compiled::Failed,
        };
        self.metrics.loaded(how, Some(began.elapsed()));
        let compiled = compiled?;
        let inner = Arc::clone(inner);
        let take = move || {
            let runtime = inner.runtime(code)?;
            inner.keep(runtime, &digest, &compiled);
            inner.insert(runtime, code, digest, size, &compiled)
        };
        self.inner.reading(take).await
    }
}

impl Inner {
    /// Does something that takes memory and is over soon, beside the executor.
    async fn reading<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, LoadReason> + Send + 'static,
    ) -> Result<T, LoadReason> {
        let internal = |why: String| LoadReason::Internal(why);
        let _permit =
            self.reading.acquire().await.map_err(|closed| internal(closed.to_string()))?;
        tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|error| Err(internal(error.to_string())))
    }

    /// A program that is loaded now, or that the cache has.
    fn known(
        &self,
        runtime: &Runtime,
        code: Code,
        raw: &SourceBytes,
    ) -> Result<Option<Arc<Program>>, LoadReason> {
        let key = (raw.digest.clone(), code);
        if let Some(program) = self.programs().get(&key).and_then(Weak::upgrade) {
            return Ok(Some(program));
        }
        let Some(cache) = &self.cache else { return Ok(None) };
        let name = entry_name(runtime, &raw.digest);
        let Some(entry) = cache.get(&name) else { return Ok(None) };
        match output::from_bytes(&entry) {
            Ok(Ok(compiled)) => {
                let size = raw.bytes.len() as u64;
                self.insert(runtime, code, raw.digest.clone(), size, &compiled).map(Some)
            }
            // It is signed: another version of this program wrote it so.
            Ok(Err(why)) => Err(why),
            Err(why) => {
                tracing::warn!("the compiled code of {} is made anew: {why}", raw.digest);
                Ok(None)
            }
        }
    }

    /// Puts code into the cache. Without it nothing is lost but time.
    fn keep(&self, runtime: &Runtime, digest: &str, compiled: &output::Compiled) {
        let Some(cache) = &self.cache else { return };
        let kept = output::to_bytes(Ok(compiled))
            .map_err(std::io::Error::from)
            .and_then(|entry| cache.put(&entry_name(runtime, digest), &entry));
        if let Err(error) = kept {
            tracing::warn!("the compiled code of {digest} cannot be kept: {error}");
        }
    }

    fn insert(
        &self,
        runtime: &Runtime,
        code: Code,
        digest: String,
        size: u64,
        compiled: &output::Compiled,
    ) -> Result<Arc<Program>, LoadReason> {
        let key = (digest.clone(), code);
        let program = Arc::new(link(runtime, digest, size, compiled)?);
        let mut programs = self.programs();
        programs.retain(|_, program| program.strong_count() > 0);
        programs.insert(key, Arc::downgrade(&program));
        Ok(program)
    }

    fn programs(&self) -> MutexGuard<'_, HashMap<(String, Code), Weak<Program>>> {
        // Whole after each statement.
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runtime(&self, code: Code) -> Result<&Runtime, LoadReason> {
        let runtime = match code {
            Code::Optimized => return Ok(&self.runtime),
            Code::Metered => &self.metered,
            Code::Baseline => &self.baseline,
        };
        let start = || Runtime::start(&self.settings, code).map_err(|error| error.to_string());
        runtime.get_or_init(start).as_ref().map_err(|error| LoadReason::Internal(error.clone()))
    }
}

/// What the cache calls the code of a component for an engine.
fn entry_name(runtime: &Runtime, digest: &str) -> String {
    let digits = digest.rsplit(':').next().unwrap_or_default();
    format!("{digits}-{:016x}", compiler::fingerprint(&runtime.engine))
}

/// Whether the engine can enforce these limits.
fn fit_engine(
    allocation: Allocation,
    settings: &EngineSettings,
    limits: &Limits,
) -> Result<(), LoadReason> {
    let most = settings.pool.table_elements;
    if allocation == Allocation::Pooling && limits.table_elements > most {
        return Err(LoadReason::OverLimit(format!(
            "{} is {}, and the engine's tables hold {most}",
            names::TABLE_ELEMENTS,
            limits.table_elements
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CacheSettings;
    use crate::tests::guests;

    #[tokio::test]
    async fn handlers_of_one_component_share_its_code_for_as_long_as_one_is_there() {
        let settings = EngineSettings { cache: CacheSettings::Off, ..EngineSettings::default() };
        let sandbox = Sandbox::new(settings).unwrap();
        let load = |wasm: Vec<u8>, fuel| {
            let source = Source::Bytes { name: "guest.wasm".to_owned(), bytes: wasm };
            sandbox.program(None, source, Some(Limits { fuel, ..Limits::default() }))
        };
        let one = load(guests::noop(), None).await.unwrap();
        let other = load(guests::noop(), None).await.unwrap();
        assert!(Arc::ptr_eq(&one, &other));
        let counting = load(guests::noop(), Some(1)).await.unwrap();
        let different = load(guests::handling("unreachable"), None).await.unwrap();
        assert!(!Arc::ptr_eq(&one, &counting) && !Arc::ptr_eq(&one, &different));
        drop((one, other, counting));
        let _new = load(guests::handling("(call $ok) (return)"), None).await.unwrap();
        assert_eq!(sandbox.inner.programs().len(), 2, "what nobody uses is let go");
    }
}
