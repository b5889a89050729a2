//! Compiling what others wrote: beside the executor, at a lower priority where handlers
//! run, and with an end to how long it is waited for.
//!
//! Everything from a component's bytes on happens in a process of its own
//! ([`process`]), which is limited and answers with what it found. Where the machine
//! can start none, which is found out when the host starts, it happens in this
//! process, where nothing can break it off: then one that takes too long is refused
//! to the load that waits for it, and its thread goes on to its end; until then nothing
//! else is compiled, so that any number of such components costs the host no more
//! than one of them does.

mod child;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod confinement;
pub(super) mod output;
mod process;
mod progress;
mod queue;

use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};
use tokio::sync::watch;
use tokio::time::timeout;
use wasmtime::Engine;

use super::engine::{Allocation, Code, EngineError, EngineSettings};
use super::load_error::LoadReason;
use super::source::TextForm;
pub use child::{Order, obey};
use event_host_core::event::Tenant;
use output::Compiled;
pub(super) use output::fingerprint;
use process::Processes;
pub use progress::Compiling;
use progress::Progress;
pub(super) use queue::CompilePermit;
use queue::CompileQueue;

/// A compilation that takes longer is worth a line in the log.
const SLOW_COMPILATION: Duration = Duration::from_secs(2);

/// Tenants whose components are compiled at once, each in a process of its own. Two, so
/// that one that takes long does not hold up the rest; each may take
/// [`EngineSettings::compile_memory_bytes`].
const AT_ONCE: usize = 2;

/// Compiles.
#[derive(Debug)]
pub(super) struct Compiler {
    way: Way,
    queue: Arc<CompileQueue>,
    patience: Duration,
    /// What is being compiled.
    progress: Progress,
    /// Whether handlers run, which processes that compile give way to.
    gives_way: watch::Sender<bool>,
}

#[derive(Debug)]
enum Way {
    /// In processes of their own.
    Processes(Processes),
    /// On these threads of this process, which share the work on one component.
    Here(Arc<ThreadPool>),
}

/// A component to compile.
#[derive(Debug)]
pub(super) struct Job {
    /// The handler that it is loaded for, if it is known.
    pub(super) handler: Option<String>,
    /// What messages call it.
    pub(super) origin: String,
    /// The file.
    pub(super) source: Arc<[u8]>,
    pub(super) text: TextForm,
    /// What the code is for.
    pub(super) engine: Engine,
    pub(super) code: Code,
    pub(super) allocation: Allocation,
}

impl Compiler {
    /// Finds out whether the machine can start processes that compile, if there is a
    /// program for them, and says so if it cannot. The engine is the one that most code
    /// will be for.
    pub(super) fn start(
        settings: &EngineSettings,
        engine: &Engine,
        allocation: Allocation,
    ) -> Result<Self, EngineError> {
        let patience = settings.compile_timeout;
        let new = |way, queue| Self {
            way,
            queue,
            patience,
            progress: Progress::default(),
            gives_way: watch::Sender::new(false),
        };
        if let Some(program) = settings.compile_program.clone() {
            match Processes::find_out(program, settings, engine, allocation) {
                Ok(processes) => {
                    return Ok(new(Way::Processes(processes), CompileQueue::new(AT_ONCE)));
                }
                Err(why) => tracing::warn!(
                    "components are compiled in this process, where nothing limits their memory or can break them off: this machine cannot start another one: {why}"
                ),
            }
        }
        let threads = ThreadPoolBuilder::new()
            .num_threads(threads())
            .thread_name(|number| format!("compiler-{number}"))
            .start_handler(|_| give_way())
            .build()
            .map_err(|error| EngineError::NoCompiler(error.to_string()))?;
        Ok(new(Way::Here(Arc::new(threads)), CompileQueue::new(1)))
    }

    /// What is being compiled, now and from now on.
    pub(super) fn compiling(&self) -> watch::Receiver<Vec<Compiling>> {
        self.progress.follow()
    }

    /// From now on processes that compile have a lower priority than handlers, those under
    /// way too. Threads of this process that compile always do.
    pub(super) fn give_way(&self) {
        self.gives_way.send_replace(true);
    }

    /// Waits until a component of a tenant may be compiled.
    ///
    /// # Errors
    /// When what is compiled before it in this process takes too long.
    pub(super) async fn acquire(
        &self,
        tenant: &Tenant,
        origin: &str,
    ) -> Result<CompilePermit, LoadReason> {
        let taking = self.queue.acquire(tenant, origin);
        match &self.way {
            // What takes too long there is ended.
            Way::Processes(_) => taking.await,
            Way::Here(_) => match timeout(self.patience, taking).await {
                Ok(permit) => permit,
                Err(_) => Err(LoadReason::CompilerBusy {
                    waited: self.patience,
                    whom: self.queue.describe(),
                }),
            },
        }
    }

    /// Compiles one component.
    ///
    /// # Errors
    /// When it cannot be run, whatever its settings; and when it takes too long.
    pub(super) async fn compile(
        &self,
        job: Job,
        permit: CompilePermit,
    ) -> Result<Compiled, LoadReason> {
        let started = Instant::now();
        let origin = job.origin.clone();
        let _told = self.progress.begin(&job, started);
        let compiled = match &self.way {
            Way::Processes(processes) => {
                let compiled = processes.compile(&job, self.gives_way.subscribe()).await;
                drop(permit);
                compiled
            }
            Way::Here(threads) => {
                let work = move || output::compile(&job.engine, &job.source, job.text);
                self.here(threads, permit, work).await
            }
        };
        let took = started.elapsed();
        if took > SLOW_COMPILATION && compiled.is_ok() {
            tracing::info!("compiling {origin} took {took:.1?}");
        }
        compiled
    }

    async fn here<T: Send + 'static>(
        &self,
        threads: &Arc<ThreadPool>,
        permit: CompilePermit,
        work: impl FnOnce() -> Result<T, LoadReason> + Send + 'static,
    ) -> Result<T, LoadReason> {
        let threads = Arc::clone(threads);
        let work = tokio::task::spawn_blocking(move || {
            // Released by the work, not by the task that waits for it.
            let _permit = permit;
            threads.install(work)
        });
        timeout(self.patience, work)
            .await
            .map_err(|_| LoadReason::SlowCompilation(self.patience))?
            // The compiler panicked, or the runtime is being shut down.
            .unwrap_or_else(|error| Err(LoadReason::Internal(error.to_string())))
    }
}

/// The most threads that compile; each takes memory.
const MOST_THREADS: usize = 16;

/// How many threads compile one component: as many as half of the machine.
fn threads() -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    (cores / 2).clamp(1, MOST_THREADS)
}

/// Lets the threads that run handlers go first. On Linux a priority belongs to a
/// thread; elsewhere it would be the whole host's.
#[cfg(target_os = "linux")]
fn give_way() {
    if let Err(error) = rustix::process::nice(10) {
        tracing::debug!("compiling at the priority of everything else: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn give_way() {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// One that compiles in this process.
    fn compiler(patience: Duration) -> Compiler {
        let settings = EngineSettings { compile_timeout: patience, ..EngineSettings::default() };
        Compiler::start(&settings, &Engine::default(), Allocation::OnDemand).unwrap()
    }

    async fn run<T: Send + 'static>(
        compiler: &Compiler,
        work: impl FnOnce() -> Result<T, LoadReason> + Send + 'static,
    ) -> Result<T, LoadReason> {
        let permit = compiler.acquire(&Tenant::none(), "a.wasm").await?;
        let Way::Here(threads) = &compiler.way else { panic!("there is no program") };
        compiler.here(threads, permit, work).await
    }

    #[tokio::test]
    async fn one_component_is_compiled_at_a_time_in_this_process() {
        let compiler = compiler(LONG);
        let under_way = Arc::new(AtomicUsize::new(0));
        let work = || {
            let under_way = Arc::clone(&under_way);
            run(&compiler, move || {
                let others = under_way.fetch_add(1, Ordering::SeqCst);
                thread::yield_now();
                under_way.fetch_sub(1, Ordering::SeqCst);
                Ok(others)
            })
        };
        let all = futures_util::future::join_all((0..50).map(|_| work())).await;
        assert!(all.into_iter().all(|others| others.is_ok_and(|others| others == 0)));
    }

    /// On the only thread of an executor, which therefore must not be held.
    #[tokio::test]
    async fn what_takes_too_long_is_refused_and_holds_up_the_next_until_it_ends() {
        let compiler = compiler(Duration::from_millis(50));
        let (end, ended) = mpsc::channel::<()>();
        let slow = run(&compiler, move || {
            let _ = ended.recv();
            Ok(())
        });
        let refused = slow.await.unwrap_err();
        assert!(matches!(refused, LoadReason::SlowCompilation(_)), "{refused}");
        let refused = run(&compiler, || Ok(())).await.unwrap_err();
        assert!(refused.is_passing(), "{refused}");
        assert!(
            refused.to_string().contains("a.wasm of no tenant has been compiling"),
            "{refused}"
        );
        drop(end);
        let again = async { while run(&compiler, || Ok(())).await.is_err() {} };
        timeout(LONG, again).await.unwrap();
    }

    #[tokio::test]
    async fn a_compiler_that_panics_fails_one_load() {
        let compiler = compiler(LONG);
        let refused = run::<()>(&compiler, || panic!("on purpose")).await.unwrap_err();
        assert!(matches!(refused, LoadReason::Internal(_)), "{refused}");
        run(&compiler, || Ok(())).await.unwrap();
    }
}
