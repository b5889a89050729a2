//! Threads and tasks that the host cannot do without, which start again if they panic; and
//! a sleep for less than a millisecond.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;
use tracing::error;

/// The first wait before what panicked is started again; it doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// The longest.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Sleeps on a thread of its own, to less than a millisecond. The runtime's timer has steps
/// of 1 ms, and so takes up to 2 ms for 1.
pub async fn sleep_precisely(time: Duration) {
    if tokio::task::spawn_blocking(move || thread::sleep(time)).await.is_err() {
        // The runtime takes no more work of this kind: it is going down.
        tokio::time::sleep(time).await;
    }
}

/// Does some work on the calling thread, and starts it again, after a wait, whenever it
/// panics.
pub fn with_restart(what: &str, mut work: impl FnMut()) {
    let mut wait = FIRST_WAIT;
    // The work starts again with the state that the panic left behind: it has to cope.
    while catch_unwind(AssertUnwindSafe(&mut work)).is_err() {
        error!("{what} broke, and begins anew");
        thread::sleep(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// Spawns a task, and spawns it again, after a wait, whenever it panics. It ends when the
/// returned handle is dropped.
pub fn spawn_with_restart<T>(
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
        with_restart("a test", || {
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
        let task = spawn_with_restart("a test", move || {
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
