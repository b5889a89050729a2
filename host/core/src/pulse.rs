//! Signs of life of what the host cannot do without: a task or a thread beats while it runs,
//! and whoever asks learns for how long it has not.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a task beats.
const BEAT: Duration = Duration::from_secs(1);

/// What stands for the last beat while none is due.
const RESTS: u64 = u64::MAX;

/// The beats of one task or thread. It begins at rest.
#[derive(Debug)]
pub struct Pulse {
    since: Instant,
    /// The last beat, in milliseconds after `since`; [`RESTS`] while none is due.
    last: AtomicU64,
}

/// Has a pulse rest when it is dropped.
struct Beating<'a>(&'a Pulse);

impl Drop for Beating<'_> {
    fn drop(&mut self) {
        self.0.rest();
    }
}

impl Default for Pulse {
    fn default() -> Self {
        Self { since: Instant::now(), last: AtomicU64::new(RESTS) }
    }
}

impl Pulse {
    /// It runs now, and beats again soon.
    pub fn beat(&self) {
        let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(RESTS - 1);
        self.last.store(now, Ordering::Release);
    }

    /// It has nothing to do, or has ended: no beat is due.
    pub fn rest(&self) {
        self.last.store(RESTS, Ordering::Release);
    }

    /// For how long a beat has been due; zero while none is.
    #[must_use]
    pub fn silence(&self) -> Duration {
        match self.last.load(Ordering::Acquire) {
            RESTS => Duration::ZERO,
            last => self.since.elapsed().saturating_sub(Duration::from_millis(last)),
        }
    }

    /// Does some work, and beats once a second for as long as the task that does it is
    /// polled. Work that waits does not stop the beats; work that blocks its thread does.
    pub async fn beat_during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let _beating = Beating(self);
        loop {
            self.beat();
            if let Ok(done) = tokio::time::timeout(BEAT, &mut work).await {
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_beats_while_its_work_waits_and_rests_when_that_has_ended() {
        let pulse = Pulse::default();
        assert_eq!(pulse.silence(), Duration::ZERO);
        let ended = pulse.beat_during(tokio::time::sleep(Duration::from_secs(3_600))).await;
        assert_eq!((ended, pulse.silence()), ((), Duration::ZERO));
        assert_eq!(pulse.last.load(Ordering::Acquire), RESTS);
        // A task that is dropped has ended too.
        {
            let mut work = pin!(pulse.beat_during(std::future::pending::<()>()));
            let mut context = Context::from_waker(Waker::noop());
            assert!(work.as_mut().poll(&mut context).is_pending());
            assert_ne!(pulse.last.load(Ordering::Acquire), RESTS);
        }
        assert_eq!(pulse.last.load(Ordering::Acquire), RESTS);
    }

    #[test]
    fn what_has_not_beaten_is_silent_until_it_does() {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        let pulse = Pulse { since: long_ago, last: AtomicU64::new(1_000) };
        assert!(pulse.silence() >= Duration::from_secs(59), "{:?}", pulse.silence());
        pulse.beat();
        assert!(pulse.silence() < Duration::from_secs(30), "{:?}", pulse.silence());
    }
}
