//! The cores of the machine: threads that compute, with one fair line before them.
//!
//! A handler computes for milliseconds at a time. Whatever decides who is next for
//! a thread decides what a tenant waits, so it must be the same that decides
//! everything else here: the [`FairQueue`], by what each tenant has computed. A
//! task that waits for something is on no thread, and comes back into the line
//! when it goes on; one that is interrupted in the middle does at once. A runtime
//! that keeps lines of its own, one a thread, would decide otherwise.
//!
//! There are as many threads as cores. What reads the log, settles and watches runs
//! elsewhere, in steps that are short: on Linux, these threads make way for it.

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
use super::{Member, Permits, Share, nanoseconds};
use crate::restart::with_restart;

/// What a step is taken to cost until it is over.
const EXPECTED: Duration = super::SLICE;

/// A task on the [`Cores`]. Gives what it came to, or `None` if it was cancelled, as
/// it is when this is dropped; [`FallibleTask::cancel`] waits until it has ended.
/// Whoever waits for one that panics panics too.
pub type Task<T> = FallibleTask<T>;

/// Computes what the groups of a host spawn, until it is dropped: what is left by
/// then is cancelled.
#[derive(Debug)]
pub struct Cores {
    permits: Arc<Permits>,
}

impl Cores {
    /// Starts a thread for each core. Timers and connections are those of the
    /// runtime that calls this.
    ///
    /// # Errors
    /// When the system gives no more threads.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn start(permits: Arc<Permits>) -> io::Result<Self> {
        let cores = Self { permits };
        for number in 0..available_parallelism().map_or(1, NonZeroUsize::get) {
            let (permits, runtime) = (Arc::clone(&cores.permits), Handle::current());
            thread::Builder::new().name(format!("attempts-{number}")).spawn(move || {
                make_way_for_others();
                let _in_runtime = runtime.enter();
                with_restart("a thread that runs handlers", || permits.line.compute(number));
            })?;
        }
        Ok(cores)
    }

    /// Has the runtime that calls this compute, one step after the other: for tests,
    /// whose time the runtime keeps.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[cfg(test)]
    pub(crate) fn on_this_runtime(permits: Arc<Permits>) -> Self {
        let cores = Self { permits };
        let permits = Arc::clone(&cores.permits);
        tokio::spawn(async move {
            while let Some(step) = poll_fn(|cx| permits.line.poll_next(0, cx.waker())).await {
                permits.line.run(step);
                tokio::task::yield_now().await;
            }
        });
        cores
    }

    /// Which attempts may run.
    #[must_use]
    pub fn permits(&self) -> &Arc<Permits> {
        &self.permits
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        self.permits.line.end();
    }
}

impl Share {
    /// Runs a task on the cores, in turn with those of other groups and tenants.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        // The group stays entered for as long as it has tasks.
        let member = Arc::clone(&self.0);
        let schedule = WithInfo(move |runnable, info: ScheduleInfo| {
            member.permits.line.push(&member, runnable, !info.woken_while_running);
        });
        let (runnable, task) = Builder::new().propagate_panic(true).spawn(|()| task, schedule);
        runnable.schedule();
        task.fallible()
    }
}

/// What is to be computed, and who waits for something to compute.
#[derive(Debug, Default)]
pub(super) struct Line(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    steps: FairQueue<Runnable>,
    idle: VecDeque<(usize, Waker)>,
    ended: bool,
}

/// One step of a task.
struct Step {
    owner: usize,
    group: usize,
    runnable: Runnable,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Line {
    pub(super) fn enter(&self, owner: usize, group: usize) {
        self.waiting().steps.enter(owner, group);
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting().steps.is_empty()
    }

    /// Puts a step in line. `wakes`: a thread that has nothing to do is told; one
    /// that looks next anyhow need not be.
    fn push(&self, member: &Member, runnable: Runnable, wakes: bool) {
        let mut waiting = self.waiting();
        if waiting.ended {
            drop(waiting);
            // That cancels it.
            drop(runnable);
            return;
        }
        waiting.steps.push(member.owner, member.group.0, runnable, false);
        let idle = if wakes { waiting.idle.pop_back() } else { None };
        drop(waiting);
        if let Some((_, waker)) = idle {
            waker.wake();
        }
    }

    /// Computes on this thread until the end.
    fn compute(&self, number: usize) {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match self.poll_next(number, &waker) {
                Poll::Ready(Some(step)) => self.run(step),
                Poll::Ready(None) => return,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// The first step; `None` at the end. Whoever gets none is woken when there is
    /// one.
    fn poll_next(&self, number: usize, waker: &Waker) -> Poll<Option<Step>> {
        let mut waiting = self.waiting();
        // It may look without having been woken.
        waiting.idle.retain(|(idle, _)| *idle != number);
        if waiting.ended {
            return Poll::Ready(None);
        }
        match waiting.steps.take_first(nanoseconds(EXPECTED), |_, _, _| Fit::Yes) {
            Some((owner, group, runnable)) => Poll::Ready(Some(Step { owner, group, runnable })),
            None => {
                waiting.idle.push_back((number, waker.clone()));
                Poll::Pending
            }
        }
    }

    /// Computes one step, and charges its owner for what this thread computed: while
    /// the system has it wait for another, that is nobody's doing.
    fn run(&self, Step { owner, group, runnable }: Step) {
        let began = thread_time();
        runnable.run();
        let took = thread_time().saturating_sub(began);
        let cost = nanoseconds(took).max(1);
        self.waiting().steps.correct(owner, group, nanoseconds(EXPECTED), cost);
    }

    fn end(&self) {
        let mut waiting = self.waiting();
        waiting.ended = true;
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
        // Nothing that is called under the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much the threads that compute stand back: a step of `nice`. With 10 they had no
/// core while a database on the same machine sent events, and the database had nothing to
/// do while they caught up; a light tenant waited as long.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 4;

/// Has this thread give way to the others of the process. Elsewhere than on Linux
/// the whole process would.
fn make_way_for_others() {
    #[cfg(target_os = "linux")]
    if let Ok(now) = rustix::process::getpriority_process(None)
        && let Err(why) = rustix::process::setpriority_process(None, now + NICENESS)
    {
        tracing::debug!("a thread that computes has the priority of all others: {why}");
    }
}
