//! Loading: from a source to a handler that is ready to make attempts.
//!
//! Everything that can be known without running the component is checked here,
//! in the order in which its author can put it right: the file, its form, the
//! names it imports and exports, its code, its types, its limits. What loads
//! can be called; what does not is refused with a sentence.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, ComponentNamedList, InstancePre, Lift, Linker, Lower};
use wasmtime::{Cache, Engine};

use super::bindings::event_host::handler::types::{Event, Failure};
use super::bindings::{BatchEventHandlerPre, EventHandlerPre};
use super::cache;
use super::compiler::Compiler;
use super::compiler::process::Processes;
use super::contract::{self, Interface, Surface};
use super::ending::{chain, size};
use super::engine::{self, Allocation, EngineError, EngineSettings};
use super::http::{Client, Outlet};
use super::imports::{self, ConfigValues, LineRate, Profile, Side};
use super::load_error::{LoadError, LoadReason};
use super::settings::{Grants, Limits, Reuse, names};
use super::slots::{Needs, Slots};
use super::source::{self, Binary, Form, Source};
use super::ticker::Ticker;
use super::worker::LoadedHandler;
use crate::event::Tenant;

/// A compilation that takes longer is worth a line in the log.
const SLOW_COMPILATION: Duration = Duration::from_secs(2);

/// The size of a page of WebAssembly memory.
const PAGE_BYTES: u64 = 64 << 10;

/// The place where components are loaded: an engine, and everything that
/// handlers may import. One serves a whole host; clones share it.
#[derive(Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    /// For handlers that limit their fuel; made for the first of them.
    counting: OnceLock<Result<Runtime, String>>,
    cache: Option<Cache>,
    compiler: Compiler,
    /// Where what was never compiled here is compiled first.
    processes: Option<Processes>,
    /// What is loaded now, by the file's digest and whether it counts fuel:
    /// handlers of one component share its code.
    programs: Mutex<HashMap<(String, bool), Weak<Program>>>,
    /// What the HTTP requests of all handlers share.
    client: Arc<Client>,
    settings: EngineSettings,
}

/// An engine, and everything that handlers may import.
struct Runtime {
    engine: Engine,
    ticker: Arc<Ticker>,
    linker: Linker<Side>,
    allocation: Allocation,
    /// `None` where instances come from no pool.
    slots: Option<Arc<Slots>>,
}

impl Runtime {
    fn start(
        settings: &EngineSettings,
        cache: Option<&Cache>,
        fuel: bool,
    ) -> Result<Self, EngineError> {
        let (engine, ticker, allocation) = engine::start(settings, cache, fuel)?;
        let mut linker = Linker::new(&engine);
        imports::link(&mut linker).map_err(|error| EngineError::Unusable(chain(&error)))?;
        let slots =
            (allocation == Allocation::Pooling).then(|| Arc::new(Slots::new(&settings.pool)));
        Ok(Self { engine, ticker: Arc::new(ticker), linker, allocation, slots })
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("settings", &self.inner.settings)
            .field("allocation", &self.inner.runtime.allocation)
            .finish_non_exhaustive()
    }
}

/// What is known of a component without running it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// `sha256:` and hex digits, of the file's bytes.
    pub digest: String,
    /// The file's size in bytes.
    pub bytes: u64,
    /// How it was given.
    pub form: Form,
    /// How it is called.
    pub interface: Interface,
    /// What it imports.
    pub imports: Vec<String>,
    /// What it exports.
    pub exports: Vec<String>,
}

/// A component that fits the contract, compiled and linked.
pub(super) struct Program {
    pub(super) entry: Entry,
    pub(super) inspection: Inspection,
    /// Where its instances get their slots, if there is a pool.
    pub(super) slots: Option<Arc<Slots>>,
    /// What each of them takes.
    pub(super) needs: Needs,
    /// To be told of each call.
    pub(super) ticker: Arc<Ticker>,
}

/// What instances are made of, by how they are called.
pub(super) enum Entry {
    Handler(EventHandlerPre<Side>),
    BatchHandler(BatchEventHandlerPre<Side>),
}

impl Entry {
    fn new(interface: Interface, pre: InstancePre<Side>) -> wasmtime::Result<Self> {
        Ok(match interface {
            Interface::Handler => Self::Handler(EventHandlerPre::new(pre)?),
            Interface::BatchHandler => Self::BatchHandler(BatchEventHandlerPre::new(pre)?),
        })
    }

    fn pre(&self) -> &InstancePre<Side> {
        match self {
            Self::Handler(pre) => pre.instance_pre(),
            Self::BatchHandler(pre) => pre.instance_pre(),
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        self.pre().engine()
    }

    fn component(&self) -> &Component {
        self.pre().component()
    }

    /// The bindings look the function up by name and leave its type to the first
    /// call; an operator wants to know before.
    fn check(&self) -> Result<(), LoadReason> {
        let pre = self.pre();
        match self {
            Self::Handler(_) => check_export::<(Event<'_>,), (Result<(), Failure>,)>(
                pre,
                Interface::Handler,
                "handle",
            ),
            Self::BatchHandler(_) => check_export::<(&[Event<'_>],), (Vec<Result<(), Failure>>,)>(
                pre,
                Interface::BatchHandler,
                "handle-batch",
            ),
        }
    }
}

impl Sandbox {
    /// Starts an engine, and the thread that interrupts its guests; the thread
    /// ends when the sandbox and all that it loaded are dropped. Takes a few
    /// milliseconds.
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
        let (cache, directory) = cache::open(&settings.cache).unzip();
        let runtime = Runtime::start(&settings, cache.as_ref(), false)?;
        let processes = settings
            .compile_program
            .clone()
            .zip(directory)
            .map(|(program, cache)| Processes::new(program, cache, &settings));
        let compiler = Compiler::start(settings.compile_timeout)
            .map_err(|error| EngineError::NoCompiler(error.to_string()))?;
        let (counting, client) = (OnceLock::new(), Arc::new(client));
        let programs = Mutex::default();
        Ok(Self {
            inner: Arc::new(Inner {
                runtime,
                counting,
                cache,
                compiler,
                processes,
                programs,
                client,
                settings,
            }),
        })
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
    /// Reading and compiling happen on threads of their own, for one component
    /// at a time; a first compilation takes milliseconds to half a minute by the
    /// language it was written in, later ones come from the cache.
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
        let program = self.program(source, Some(limits.clone())).await.map_err(at)?;
        let stack_bytes = self.inner.settings.wasm_stack_bytes;
        let client = Arc::clone(&self.inner.client);
        let outlet = Arc::new(Outlet::new(name, grants.http.clone(), client));
        let config = ConfigValues::from(&grants.config);
        let line_rate = Arc::new(LineRate::new(name, limits.log_lines_per_second));
        let name = name.to_owned();
        let profile = Profile { name, limits, grants, config, outlet, line_rate, stack_bytes };
        Ok(Arc::new(LoadedHandler::new(program, Arc::new(profile), reuse)))
    }

    /// Tells what a component is, if it can be loaded at all.
    ///
    /// # Errors
    /// When the component cannot be run, whatever its settings.
    pub async fn inspect(&self, source: impl Into<Source>) -> Result<Inspection, LoadError> {
        let source = source.into();
        let origin = source.origin();
        match self.program(source, None).await {
            Ok(program) => Ok(program.inspection.clone()),
            Err(reason) => Err(LoadError { origin, reason }),
        }
    }

    /// The digest that a handler loaded from there would have, without compiling
    /// it.
    ///
    /// # Errors
    /// When it cannot be read, or is nothing that could be a component.
    pub async fn digest(&self, source: impl Into<Source>) -> Result<String, LoadError> {
        let source = source.into();
        let origin = source.origin();
        let limit = self.inner.settings.component_bytes;
        tokio::task::spawn_blocking(move || source::read(&source, limit))
            .await
            .unwrap_or_else(|error| Err(LoadReason::Internal(error.to_string())))
            .map(|binary| binary.digest)
            .map_err(|reason| LoadError { origin, reason })
    }

    async fn program(
        &self,
        source: Source,
        limits: Option<Limits>,
    ) -> Result<Arc<Program>, LoadReason> {
        let inner = Arc::clone(&self.inner);
        self.inner.compiler.run(move || inner.program(&source, limits.as_ref())).await
    }
}

impl Inner {
    /// Without limits, whether it can be run under them is left open.
    fn program(
        &self,
        source: &Source,
        limits: Option<&Limits>,
    ) -> Result<Arc<Program>, LoadReason> {
        let fuel = limits.is_some_and(|limits| limits.fuel.is_some());
        let runtime = self.runtime(fuel)?;
        if let Some(limits) = limits {
            fit_engine(runtime.allocation, &self.settings, limits)?;
        }
        let binary = source::read(source, self.settings.component_bytes)?;
        let key = (binary.digest.clone(), fuel);
        let loaded = self.programs().get(&key).and_then(Weak::upgrade);
        let program = match loaded {
            Some(program) => program,
            None => {
                let program = Arc::new(self.make(runtime, fuel, source, binary)?);
                let mut programs = self.programs();
                programs.retain(|_, program| program.strong_count() > 0);
                programs.insert(key, Arc::downgrade(&program));
                program
            }
        };
        if let Some(limits) = limits {
            fit_limits(program.entry.component(), limits)?;
        }
        Ok(program)
    }

    fn programs(&self) -> MutexGuard<'_, HashMap<(String, bool), Weak<Program>>> {
        // Whole after each statement.
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(
        &self,
        runtime: &Runtime,
        fuel: bool,
        source: &Source,
        binary: Binary,
    ) -> Result<Program, LoadReason> {
        let Binary { digest, size, form, component } = binary;
        let surface = contract::surface(&component)?;
        let interface = contract::check(&surface, &component)?;
        if let Some(processes) = &self.processes {
            processes.prepare(&runtime.engine, fuel, runtime.allocation, &component)?;
        }
        let component = compile(&runtime.engine, source, &component)?;
        let pre = runtime.linker.instantiate_pre(&component).map_err(|e| import_type(&e))?;
        let entry =
            Entry::new(interface, pre).map_err(|error| export_type(interface, chain(&error)))?;
        entry.check()?;
        let Surface { imports, exports } = surface;
        let inspection = Inspection { digest, bytes: size, form, interface, imports, exports };
        let (ticker, slots) = (Arc::clone(&runtime.ticker), runtime.slots.clone());
        // The engine refuses a component that declares more than the pool has for one.
        let [memories, tables] = entry.component().resources_required().map_or([0, 0], |needs| {
            [needs.num_memories, needs.num_tables]
                .map(|many| usize::try_from(many).unwrap_or(usize::MAX))
        });
        Ok(Program { entry, inspection, slots, needs: [1, memories, tables], ticker })
    }

    fn runtime(&self, fuel: bool) -> Result<&Runtime, LoadReason> {
        if !fuel {
            return Ok(&self.runtime);
        }
        let start = || {
            Runtime::start(&self.settings, self.cache.as_ref(), true)
                .map_err(|error| error.to_string())
        };
        let counting = self.counting.get_or_init(start);
        counting.as_ref().map_err(|error| LoadReason::Internal(error.clone()))
    }
}

fn compile(engine: &Engine, source: &Source, component: &[u8]) -> Result<Component, LoadReason> {
    let started = Instant::now();
    let compiled = Component::from_binary(engine, component)
        .map_err(|error| LoadReason::Invalid(chain(&error)))?;
    let took = started.elapsed();
    if took > SLOW_COMPILATION {
        tracing::info!("compiling {} took {took:.1?}", source.origin());
    }
    Ok(compiled)
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

/// Whether an instance can be made at all within the limits.
fn fit_limits(component: &Component, limits: &Limits) -> Result<(), LoadReason> {
    // Unknown only for components that import code, which none of ours may.
    let Some(needs) = component.resources_required() else { return Ok(()) };
    let memory = needs.max_initial_memory_size.unwrap_or(0).saturating_mul(PAGE_BYTES);
    if memory > limits.memory_bytes as u64 {
        return Err(LoadReason::OverLimit(format!(
            "it begins with a memory of {}, and {} is {}",
            size(usize::try_from(memory).unwrap_or(usize::MAX)),
            names::MEMORY,
            size(limits.memory_bytes)
        )));
    }
    let elements = needs.max_initial_table_size.unwrap_or(0);
    if elements > limits.table_elements as u64 {
        return Err(LoadReason::OverLimit(format!(
            "it begins with a table of {elements} elements, and {} is {}",
            names::TABLE_ELEMENTS,
            limits.table_elements
        )));
    }
    Ok(())
}

/// Whether the function that is called has this type.
fn check_export<Params, Answer>(
    pre: &InstancePre<Side>,
    interface: Interface,
    name: &str,
) -> Result<(), LoadReason>
where
    Params: ComponentNamedList + Lower,
    Answer: ComponentNamedList + Lift,
{
    let wrong = |detail: String| export_type(interface, format!("`{name}` {detail}"));
    let component = pre.component();
    let function = component
        .get_export_index(None, interface.name())
        .and_then(|interface| component.get_export(Some(&interface), name));
    let Some((ComponentItem::ComponentFunc(function), _)) = function else {
        return Err(wrong("is not a function".to_owned()));
    };
    if function.async_() {
        return Err(wrong("is asynchronous".to_owned()));
    }
    function
        .typecheck::<Params, Answer>(&pre.instance_type())
        .map_err(|error| wrong(format!("has another type: {}", chain(&error))))
}

fn export_type(interface: Interface, detail: String) -> LoadReason {
    LoadReason::ExportType { name: interface.name().to_owned(), detail }
}

/// wasmtime says of every import that does not fit that it was not found, and
/// what is wrong with it in the causes.
fn import_type(error: &wasmtime::Error) -> LoadReason {
    let mut texts = error.chain().map(ToString::to_string);
    let first = texts.next().unwrap_or_default();
    let name = first.split('`').nth(1).unwrap_or(&first).to_owned();
    let causes: Vec<String> = texts.map(|text| text.replace("instance export ", "")).collect();
    LoadReason::ImportType(format!("`{name}`: {}", causes.join(": ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::CacheSettings;
    use crate::sandbox::tests::guests;

    #[tokio::test]
    async fn handlers_of_one_component_share_its_code_for_as_long_as_one_is_there() {
        let settings = EngineSettings { cache: CacheSettings::Off, ..EngineSettings::default() };
        let sandbox = Sandbox::new(settings).unwrap();
        let load = |wasm: Vec<u8>, fuel| {
            let source = Source::Bytes { name: "guest.wasm".to_owned(), bytes: wasm };
            sandbox.program(source, Some(Limits { fuel, ..Limits::default() }))
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
