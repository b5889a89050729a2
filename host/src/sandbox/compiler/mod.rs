//! Compiling what others wrote: one component at a time, beside the executor,
//! at a low priority, and with an end to how long it is waited for.
//!
//! What a host was never given before is compiled in a process of its own
//! ([`process`]), which is ended when it takes too long. Without a cache to put
//! the code into, or a program to run, it is compiled in this process, where
//! nothing can break it off: then one that takes too long is refused to whoever
//! waits for it, and its thread goes on to its end; until then nothing else is
//! compiled, so that any number of such components costs the host no more than
//! one of them does.

pub mod process;

use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::load_error::LoadReason;

/// Threads that compile.
#[derive(Debug)]
pub(super) struct Compiler {
    /// They share the work on one component.
    threads: Arc<ThreadPool>,
    /// Whether one is being compiled.
    free: Arc<Semaphore>,
    patience: Duration,
}

impl Compiler {
    /// Threads for half of the machine. `patience` is how long a compilation is
    /// waited for, and how long for the one before it.
    pub(super) fn start(patience: Duration) -> Result<Self, ThreadPoolBuildError> {
        let threads = ThreadPoolBuilder::new()
            .num_threads(threads())
            .thread_name(|number| format!("compiler-{number}"))
            .start_handler(|_| give_way())
            .build()?;
        Ok(Self { threads: Arc::new(threads), free: Arc::new(Semaphore::new(1)), patience })
    }

    /// Does the work of loading one component.
    ///
    /// # Errors
    /// Those of the work; and when it, or another before it, takes too long.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, LoadReason> + Send + 'static,
    ) -> Result<T, LoadReason> {
        let patience = self.patience;
        let turn = timeout(patience, Arc::clone(&self.free).acquire_owned())
            .await
            .map_err(|_| LoadReason::CompilerBusy(patience))?
            .map_err(|closed| LoadReason::Internal(closed.to_string()))?;
        let threads = Arc::clone(&self.threads);
        let work = tokio::task::spawn_blocking(move || {
            // Given back by the work, not by whoever waits for it.
            let _turn = turn;
            threads.install(work)
        });
        timeout(patience, work)
            .await
            .map_err(|_| LoadReason::SlowCompilation(patience))?
            // The compiler panicked, or the runtime is being shut down.
            .unwrap_or_else(|error| Err(LoadReason::Internal(error.to_string())))
    }
}

/// The most threads that compile; each takes memory.
const MOST_THREADS: usize = 16;

/// How many threads compile: as many as half of the machine.
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

    #[tokio::test]
    async fn one_component_is_compiled_at_a_time() {
        let compiler = Compiler::start(LONG).unwrap();
        let under_way = Arc::new(AtomicUsize::new(0));
        let work = || {
            let under_way = Arc::clone(&under_way);
            compiler.run(move || {
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
        let compiler = Compiler::start(Duration::from_millis(50)).unwrap();
        let (end, ended) = mpsc::channel::<()>();
        let slow = compiler.run(move || {
            let _ = ended.recv();
            Ok(())
        });
        let refused = slow.await.unwrap_err();
        assert!(matches!(refused, LoadReason::SlowCompilation(_)), "{refused}");
        let refused = compiler.run(|| Ok(())).await.unwrap_err();
        assert!(matches!(refused, LoadReason::CompilerBusy(_)), "{refused}");
        drop(end);
        let again = async { while compiler.run(|| Ok(())).await.is_err() {} };
        timeout(LONG, again).await.unwrap();
    }

    #[tokio::test]
    async fn a_compiler_that_panics_fails_one_load() {
        let compiler = Compiler::start(LONG).unwrap();
        let refused = compiler.run::<()>(|| panic!("on purpose")).await.unwrap_err();
        assert!(matches!(refused, LoadReason::Internal(_)), "{refused}");
        compiler.run(|| Ok(())).await.unwrap();
    }
}
