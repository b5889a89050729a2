//! The threads that read, settle and watch; and threads and tasks that the host cannot
//! do without, which begin anew if they panic.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, warn};

/// The first wait before something that broke begins anew; it doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// The longest.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Starts the runtime of a host, with a thread for each core.
///
/// Nothing that runs on it computes for long: handlers have threads of their own, as many
/// again, which make way for these. With more of these, work goes from one to another that
/// sleeps, and the handlers' threads lose their cores to both. With fewer, what is due
/// waits behind other groups' reads: on two cores, one of these drained a log by a tenth
/// faster, and had the slowest hundredth of a light tenant's events wait twice as long
/// beside tenants that saturate the machine.
///
/// # Errors
/// When the system gives no threads.
pub fn start() -> io::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build()
}

/// Lets the process have as many files open as the system allows it at most. The limit
/// that it begins with is for programs that cannot tell more than 1,024 apart.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!("the limit on open files stays at {:?}: {error}", limit.current);
    }
}

/// Sleeps for less than the runtime's timer can, whose step is a millisecond and
/// which so takes up to two for one.
pub(crate) async fn nap(time: Duration) {
    if tokio::task::spawn_blocking(move || thread::sleep(time)).await.is_err() {
        // The runtime takes no more work of this kind: it is going down.
        tokio::time::sleep(time).await;
    }
}

/// Does some work on the thread that calls this, and begins it anew, after a wait,
/// whenever it panics.
pub(crate) fn again_if_it_panics(what: &str, mut work: impl FnMut()) {
    let mut wait = FIRST_WAIT;
    // What the work left behind is its own matter: it is to begin anew with that.
    while catch_unwind(AssertUnwindSafe(&mut work)).is_err() {
        error!("{what} broke, and begins anew");
        thread::sleep(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// Spawns a task, and spawns it anew, after a wait, whenever it panics. It ends when the
/// answer is dropped.
pub(crate) fn spawn_again_if_it_panics<T>(
    what: &'static str,
    mut task: impl FnMut() -> T + Send + 'static,
) -> AbortOnDropHandle<()>
where
    T: Future<Output = ()> + Send + 'static,
{
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut wait = FIRST_WAIT;
        while let Err(why) = AbortOnDropHandle::new(tokio::spawn(task())).await {
            if why.is_cancelled() {
                // The runtime goes down.
                return;
            }
            error!("{what} broke, and begins anew: {why}");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn work_that_panics_begins_anew_and_ends_when_it_ends() {
        let mut times = 0;
        again_if_it_panics("a test", || {
            times += 1;
            assert!(times == 3, "on purpose");
        });
        assert_eq!(times, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_spawned_anew_and_ends_with_its_handle() {
        let (began, begun) = channel();
        let (alive, gone) = (std::sync::Arc::new(()), |alive: &std::sync::Arc<()>| {
            std::sync::Arc::strong_count(alive) == 1
        });
        let theirs = std::sync::Arc::clone(&alive);
        let mut times = 0;
        let task = spawn_again_if_it_panics("a test", move || {
            times += 1;
            let (times, began, kept) = (times, began.clone(), std::sync::Arc::clone(&theirs));
            async move {
                let _kept = kept;
                began.send(times).unwrap();
                assert!(times == 3, "on purpose");
                std::future::pending::<()>().await;
            }
        });
        while begun.try_recv() != Ok(3) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(task);
        while !gone(&alive) {
            tokio::task::yield_now().await;
        }
    }
}
