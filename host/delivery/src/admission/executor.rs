//! The executor: threads that compute, with one fair run queue before them.
//!
//! A handler computes for milliseconds at a time. The order in which threads take tasks
//! decides how long a tenant waits, so it must be the order of everything else here: the
//! [`FairQueue`], by what each tenant has computed. A
//! task that waits for something occupies no thread, and is queued again when it is
//! woken; one that is interrupted while it computes is queued again at once. A runtime
//! that keeps queues of its own, one per thread, would choose another order.
//!
//! There are as many threads as cores. The tasks that read the log, settle and watch run
//! on other threads, in short steps: on Linux, the executor's threads have a lower
//! priority than those.
//!
//! A step takes milliseconds, for guests are interrupted that often. So each thread has a
//! [`Pulse`], which beats before each step and rests after it: one that stays silent for long
//! is stuck.

use std::collections::VecDeque;
#[cfg(test)]
use std::future::poll_fn;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread, available_parallelism};
use std::time::Duration;

use async_task::{Builder, FallibleTask, Runnable, ScheduleInfo, WithInfo};
use tokio::runtime::Handle;

use super::permit::thread_time;
use super::queue::{FairQueue, Fit};
use super::{Admission, GroupAdmission, RegisteredGroup, nanoseconds};
use event_host_core::pulse::Pulse;
use event_host_core::restart::with_restart;

/// The cost that a step is charged until it has ended.
const EXPECTED: Duration = super::TIME_SLICE;

/// A task of the [`FairExecutor`]. Resolves to its result, or to `None` if it was
/// cancelled, as it is when this is dropped; [`FallibleTask::cancel`] waits until it has
/// ended. Awaiting a task that panics panics too.
pub type Task<T> = FallibleTask<T>;

/// Computes what the groups of a host spawn, until it is dropped: tasks that are left
/// by then are cancelled.
#[derive(Debug)]
pub struct FairExecutor {
    admission: Arc<Admission>,
    pulses: Vec<Arc<Pulse>>,
}

impl FairExecutor {
    /// Starts a thread for each core. Timers and connections are those of the
    /// runtime that calls this.
    ///
    /// # Errors
    /// When the system gives no more threads.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn start(admission: Arc<Admission>) -> io::Result<Self> {
        let mut executor = Self { admission, pulses: Vec::new() };
        for number in 0..available_parallelism().map_or(1, NonZeroUsize::get) {
            let (admission, runtime) = (Arc::clone(&executor.admission), Handle::current());
            let pulse = Arc::<Pulse>::default();
            executor.pulses.push(Arc::clone(&pulse));
            thread::Builder::new().name(format!("attempts-{number}")).spawn(move || {
                lower_priority();
                let _in_runtime = runtime.enter();
                with_restart("a thread that runs handlers", || {
                    admission.run_queue.compute(number, &pulse);
                });
            })?;
        }
        Ok(executor)
    }

    /// Has the runtime that calls this compute, one step after the other: for tests,
    /// whose time the runtime keeps.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[cfg(test)]
    pub(crate) fn on_this_runtime(admission: Arc<Admission>) -> Self {
        let executor = Self { admission, pulses: Vec::new() };
        let admission = Arc::clone(&executor.admission);
        tokio::spawn(async move {
            let queue = &admission.run_queue;
            while let Some(step) = poll_fn(|cx| queue.poll_next(0, cx.waker())).await {
                queue.run(step);
                tokio::task::yield_now().await;
            }
        });
        executor
    }

    /// The admission control of the groups whose tasks this computes.
    #[must_use]
    pub fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    /// The pulse of each thread.
    #[must_use]
    pub fn pulses(&self) -> &[Arc<Pulse>] {
        &self.pulses
    }
}

impl Drop for FairExecutor {
    fn drop(&mut self) {
        self.admission.run_queue.close();
    }
}

impl GroupAdmission {
    /// Runs a task on the executor, in fair order with those of other groups and tenants.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        // The group stays registered for as long as it has tasks.
        let group = Arc::clone(&self.0);
        let schedule = WithInfo(move |runnable, info: ScheduleInfo| {
            group.admission.run_queue.push(&group, runnable, !info.woken_while_running);
        });
        let (runnable, task) = Builder::new().propagate_panic(true).spawn(|()| task, schedule);
        runnable.schedule();
        task.fallible()
    }
}

/// The steps that wait for a thread, and the threads that wait for a step.
#[derive(Debug, Default)]
pub(super) struct RunQueue(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    steps: FairQueue<Runnable>,
    idle: VecDeque<(usize, Waker)>,
    closed: bool,
}

/// One step of a task.
struct TaskStep {
    tenant: usize,
    group: usize,
    runnable: Runnable,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl RunQueue {
    pub(super) fn register(&self, tenant: usize, group: usize) {
        self.waiting().steps.register(tenant, group);
    }

    /// Whether no step waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting().steps.is_empty()
    }

    /// Enqueues a step. `wakes`: an idle thread is woken; not needed where this thread
    /// takes its next step right after this.
    fn push(&self, group: &RegisteredGroup, runnable: Runnable, wakes: bool) {
        let mut waiting = self.waiting();
        if waiting.closed {
            drop(waiting);
            // That cancels it.
            drop(runnable);
            return;
        }
        waiting.steps.push(group.tenant, group.group.0, runnable, false);
        let idle = if wakes { waiting.idle.pop_back() } else { None };
        drop(waiting);
        if let Some((_, waker)) = idle {
            waker.wake();
        }
    }

    /// Computes on this thread until the queue is closed.
    fn compute(&self, number: usize, pulse: &Pulse) {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        // A step before this may have ended in a panic.
        pulse.rest();
        loop {
            match self.poll_next(number, &waker) {
                Poll::Ready(Some(step)) => {
                    pulse.beat();
                    self.run(step);
                    pulse.rest();
                }
                Poll::Ready(None) => return,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// The first step; `None` once the queue is closed. While there is none, `waker` is
    /// woken by the next one.
    fn poll_next(&self, number: usize, waker: &Waker) -> Poll<Option<TaskStep>> {
        let mut waiting = self.waiting();
        // A thread may poll without having been woken.
        waiting.idle.retain(|(idle, _)| *idle != number);
        if waiting.closed {
            return Poll::Ready(None);
        }
        match waiting.steps.take_first(nanoseconds(EXPECTED), |_, _, _| Fit::Yes) {
            Some((tenant, group, runnable)) => {
                Poll::Ready(Some(TaskStep { tenant, group, runnable }))
            }
            None => {
                waiting.idle.push_back((number, waker.clone()));
                Poll::Pending
            }
        }
    }

    /// Computes one step, and charges its tenant for the CPU time of this thread: the time
    /// for which the system suspends the thread is not charged.
    fn run(&self, TaskStep { tenant, group, runnable }: TaskStep) {
        let began = thread_time();
        runnable.run();
        let took = thread_time().saturating_sub(began);
        let cost = nanoseconds(took).max(1);
        self.waiting().steps.correct(tenant, group, nanoseconds(EXPECTED), cost);
    }

    fn close(&self) {
        let mut waiting = self.waiting();
        waiting.closed = true;
        let left = std::mem::take(&mut waiting.steps);
        let idle = std::mem::take(&mut waiting.idle);
        drop(waiting);
        // Dropped outside of the lock: each is cancelled by that, and may wake others.
        drop(left);
        for (_, waker) in idle {
            waker.wake();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // No code under the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The executor's threads are lower in priority by this step of `nice`. With 10 they had
/// no core while a database on the same machine sent events, and the database had nothing
/// to do while they caught up; a light tenant waited as long.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 4;

/// Gives this thread a lower priority than the others of the process. Only on Linux:
/// elsewhere it would be the priority of the whole process.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Ok(now) = rustix::process::getpriority_process(None)
        && let Err(why) = rustix::process::setpriority_process(None, now + NICENESS)
    {
        tracing::debug!("a thread that computes has the priority of all others: {why}");
    }
}
