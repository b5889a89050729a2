//! The engine: every setting of wasmtime, in one place.
//!
//! An engine that suits the machine is found by trying: the pooling allocator
//! reserves terabytes of address space, which a container may not have. What is
//! tried in its place costs time, not safety, and is said once.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use wasmtime::{
    Config, Enabled, Engine, Instance, InstanceAllocationStrategy, Module, PoolingAllocationConfig,
    Store, Strategy, WasmBacktraceDetails,
};

use super::ticker::Ticker;

/// Everything that can be set about the engine. One engine serves all handlers
/// of a host, another one those that limit their fuel, and a third those that are being
/// worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSettings {
    /// How long a guest may run before it yields to others, and how finely
    /// the timeout of one that never calls the host is measured. Default 2 ms, a
    /// time slice of the threads that run handlers.
    pub tick: Duration,
    /// Stack of a guest, in bytes (`stack-limit`). Default 1 MiB.
    pub wasm_stack_bytes: usize,
    /// Stack for the host's functions below the guest's, in bytes. At least
    /// 512 KiB, because running over it ends the process. Default 1 MiB.
    pub host_stack_bytes: usize,
    /// The largest component file that is read, in bytes. Default 64 MiB:
    /// Python makes 18 MB, JavaScript 12 MB.
    pub component_bytes: u64,
    /// How much time of processors compiling one component may take, in whole seconds;
    /// by the clock it may take ten times as long, because it gives way to handlers
    /// (`compile_timeout`). In this process it is what is waited for by the clock.
    /// Default 5 minutes: Python takes half a minute.
    pub compile_timeout: Duration,
    /// Memory that a process which compiles may take, in bytes; there are two at most
    /// (`compile_memory`). Default 4 GiB: Python and JavaScript take less than half of
    /// it.
    pub compile_memory_bytes: u64,
    /// The program `host`, another run of which compiles. Default none: everything is
    /// compiled in this process, where nothing can break it off.
    pub compile_program: Option<PathBuf>,
    /// How instances get their memory.
    pub pool: PoolSettings,
    /// Where compiled code is kept between runs.
    pub cache: CacheSettings,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(2),
            wasm_stack_bytes: 1 << 20,
            host_stack_bytes: 1 << 20,
            component_bytes: 64 << 20,
            compile_timeout: Duration::from_secs(300),
            compile_memory_bytes: 4 << 30,
            compile_program: None,
            pool: PoolSettings::default(),
            cache: CacheSettings::default(),
        }
    }
}

/// The pooling allocator: slots that are reserved once and used in turn.
///
/// A slot that was used stays in the host's memory, up to what the
/// `keep_resident` settings say. A Python handler takes 38 core instances,
/// QuickJS 3 memories, SpiderMonkey 7,700 table elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    /// Whether to try it at all. Default true.
    pub enabled: bool,
    /// Instances of handlers at once, of which one tenant has half at most. Default
    /// 2,000.
    pub instances: u32,
    /// Memories of all instances at once; each one reserves 4 GiB of address
    /// space. Default 4,000.
    pub memories: u32,
    /// Tables of all instances at once. Default 8,000.
    pub tables: u32,
    /// Elements of the largest table, and the most that `limits.table_elements`
    /// may be. Default 100,000.
    pub table_elements: usize,
    /// Core instances of one component. Default 100.
    pub core_instances_per_component: u32,
    /// Memories of one component. Default 16.
    pub memories_per_component: u32,
    /// Tables of one component. Default 64.
    pub tables_per_component: u32,
    /// Slots that are not in use and still keep the pages of their last user,
    /// so that it starts fast. Default 100.
    pub warm_slots: u32,
    /// Bytes of a memory that stay resident in a slot that is not in use. Counts
    /// only where Linux can tell which pages were touched (6.7 or later);
    /// elsewhere it would cost more than it gains. Default 1 MiB.
    pub memory_keep_resident: usize,
    /// The same for a table. Default 1 MiB.
    pub table_keep_resident: usize,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            instances: 2_000,
            memories: 4_000,
            tables: 8_000,
            table_elements: 100_000,
            core_instances_per_component: 100,
            memories_per_component: 16,
            tables_per_component: 64,
            warm_slots: 100,
            memory_keep_resident: 1 << 20,
            table_keep_resident: 1 << 20,
        }
    }
}

/// Where compiled code is kept between runs. Its files are native code that is run, so
/// they are signed, the directory must belong to this user alone, and those above it to
/// this user or root; one that does not is not used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CacheSettings {
    /// `event-host` in the directory that `HOST_CACHE` names, of which the directories above
    /// are not looked at; else in the user's cache directory.
    #[default]
    UserDefault,
    /// This directory.
    Directory(PathBuf),
    /// Nowhere: compile at each start.
    Off,
}

/// How the engine gives memory to instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// From a pool.
    Pooling,
    /// From the operating system, each time.
    OnDemand,
    /// From the operating system, without the reservation that makes bounds
    /// checks free.
    Compact,
}

impl Allocation {
    /// What it costs, against the one before it.
    fn costs(self) -> &'static str {
        match self {
            Self::Pooling => "nothing",
            Self::OnDemand => "a fresh instance takes about three times as long",
            Self::Compact => {
                "a fresh instance takes about three times as long, and guests run up to 1.8 times slower"
            }
        }
    }
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pooling => "pooling",
            Self::OnDemand => "on demand",
            Self::Compact => "on demand without reservation",
        })
    }
}

/// An engine that this machine cannot run, whatever is tried.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// wasmtime refuses.
    #[error("the WebAssembly engine does not start: {0}")]
    Unusable(String),
    /// The thread that interrupts guests does not start.
    #[error("the thread that interrupts guests does not start: {0}")]
    NoTicker(#[from] io::Error),
    /// The threads that compile do not start.
    #[error("the threads that compile components do not start: {0}")]
    NoCompiler(String),
}

/// What code is made of a component. Each kind has an engine of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Code {
    /// The fastest code.
    Optimized,
    /// The same, which counts fuel and is slower for it.
    Metered,
    /// Code that is made fast, by Winch: in a fifth of the time. It runs slower, and Winch
    /// does not know everything that the optimizing compiler does.
    Baseline,
}

/// Makes the fastest engine that works here, and what interrupts its guests.
pub(super) fn start(
    settings: &EngineSettings,
    code: Code,
) -> Result<(Engine, Ticker, Allocation), EngineError> {
    let mut refusals: Vec<String> = Vec::new();
    for allocation in [Allocation::Pooling, Allocation::OnDemand, Allocation::Compact] {
        if allocation == Allocation::Pooling && !settings.pool.enabled {
            continue;
        }
        let config = config(settings, allocation, code);
        match Engine::new(&config).and_then(|engine| probe(&engine).map(|()| engine)) {
            Ok(engine) => {
                if !refusals.is_empty() {
                    tracing::warn!(
                        "memory for handlers comes {allocation}, so {}; the faster way failed: {}",
                        allocation.costs(),
                        refusals.join("; ")
                    );
                }
                let ticked = engine.weak();
                let ticker = Ticker::start(settings.tick, move || {
                    ticked.upgrade().inspect(Engine::increment_epoch).is_some()
                })?;
                return Ok((engine, ticker, allocation));
            }
            Err(error) => refusals.push(format!("{allocation}: {}", super::ending::chain(&error))),
        }
    }
    Err(EngineError::Unusable(refusals.join("; ")))
}

pub(super) fn config(settings: &EngineSettings, allocation: Allocation, code: Code) -> Config {
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        // Exports are synchronous, and the machinery for concurrent ones doubles
        // the price of a fresh instance.
        .concurrency_support(false)
        .epoch_interruption(true)
        .consume_fuel(code == Code::Metered)
        .max_wasm_stack(settings.wasm_stack_bytes)
        .async_stack_size(settings.wasm_stack_bytes + settings.host_stack_bytes)
        // Names of functions are enough for a dead letter; lines would keep the
        // guest's debug information in memory.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable);
    if code == Code::Baseline {
        config.strategy(Strategy::Winch);
    }
    match allocation {
        Allocation::Pooling => {
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(&settings.pool)));
        }
        Allocation::OnDemand => {}
        Allocation::Compact => {
            config.memory_reservation(0).memory_reservation_for_growth(1 << 20);
            config.memory_guard_size(64 << 10);
        }
    }
    config
}

fn pool(settings: &PoolSettings) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(settings.instances)
        .total_core_instances(
            settings.instances.saturating_mul(settings.core_instances_per_component),
        )
        .total_stacks(settings.instances)
        .total_memories(settings.memories)
        .total_tables(settings.tables)
        .table_elements(settings.table_elements)
        .max_core_instances_per_component(settings.core_instances_per_component)
        .max_memories_per_component(settings.memories_per_component)
        .max_memories_per_module(settings.memories_per_component)
        .max_tables_per_component(settings.tables_per_component)
        .max_tables_per_module(settings.tables_per_component)
        .max_unused_warm_slots(settings.warm_slots);
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        pool.pagemap_scan(Enabled::Yes)
            .linear_memory_keep_resident(settings.memory_keep_resident)
            .table_keep_resident(settings.table_keep_resident);
    }
    pool
}

/// Whether an instance can be made at all: some limits on address space show
/// only then.
fn probe(engine: &Engine) -> wasmtime::Result<()> {
    let module = Module::new(engine, "(module (memory 1) (table 1 funcref))")?;
    Instance::new(&mut Store::new(engine, ()), &module, &[])?;
    Ok(())
}
