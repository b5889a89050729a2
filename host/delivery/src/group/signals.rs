//! What a leader watches while it works, and what ends an attempt.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use event_host_core::event::{Epoch, Position};
use event_host_core::leadership_proof::LeadershipProof;
use event_host_store::GroupState;

/// How long the store may take to answer once attempts are interrupted.
pub const LAST_ANSWER: Duration = Duration::from_secs(2);

/// What a leader watches while it works.
#[derive(Debug, Clone)]
pub struct Signals {
    /// Stop after the event that is handled now, settle, and return.
    pub stop: CancellationToken,
    /// Drop the event that is handled now, settle the others, and return.
    pub interrupt: CancellationToken,
    /// Another version of the group is ready: settle, and return. The event that
    /// is handled now is handled to its end.
    pub replaced: CancellationToken,
    /// Once it is lost: drop everything, commit nothing, and return.
    pub leadership: LeadershipProof,
    /// The safe position.
    pub safe: watch::Receiver<Position>,
    /// Whether a newer safe position is waited for.
    pub awaited: Arc<Awaited>,
    /// How far a group may read that does not wait for slow transactions; stays below
    /// the safe position for one that waits for all.
    pub overtake_limit: watch::Receiver<Position>,
    /// The group's row.
    pub control: watch::Receiver<Control>,
}

/// Number of leaders of a host that wait for a newer safe position. A leader that still has
/// much to read does not wait for one.
#[derive(Debug, Default)]
pub struct Awaited {
    waiting: AtomicUsize,
    begun: Notify,
}

impl Awaited {
    /// Whether any leader waits.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits until a leader begins to wait.
    pub async fn begun(&self) {
        self.begun.notified().await;
    }
}

/// One leader among those that may wait; it no longer does once this is dropped.
#[derive(Debug)]
pub(super) struct Waits {
    awaited: Arc<Awaited>,
    waits: bool,
}

impl Waits {
    /// One that does not wait yet.
    pub(super) fn new(awaited: &Arc<Awaited>) -> Self {
        Self { awaited: Arc::clone(awaited), waits: false }
    }

    /// Says whether it waits now.
    pub(super) fn set(&mut self, waits: bool) {
        match (std::mem::replace(&mut self.waits, waits), waits) {
            (false, true) => {
                self.awaited.waiting.fetch_add(1, Ordering::Relaxed);
                self.awaited.begun.notify_one();
            }
            (true, false) => {
                self.awaited.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// The part of a group's row that a leader obeys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Above the leader's own epoch where a seek or another leader moved the cursor.
    pub epoch: Epoch,
    /// Whether the group is to be run.
    pub state: GroupState,
}

/// Which tokens a leader saw cancelled when it looked. One that is cancelled between
/// a look and the wait after it is news.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) stop: bool,
    pub(super) interrupt: bool,
    pub(super) replaced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interrupt {
    /// Stop working; what is done may be settled.
    Now,
    /// Stop working; nothing may be settled.
    Lost,
}

/// The two tokens that end an attempt. The waits are kept, so that no event registers them
/// again.
pub(super) struct Interrupts {
    leadership: LeadershipProof,
    lost: Pin<Box<WaitForCancellationFutureOwned>>,
    interrupt: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Interrupts {
    pub(super) fn new(signals: &Signals) -> Self {
        Self {
            leadership: signals.leadership.clone(),
            lost: Box::pin(signals.leadership.lost_owned()),
            interrupt: Box::pin(signals.interrupt.clone().cancelled_owned()),
        }
    }

    /// Whether nothing may be committed any more.
    pub(super) fn is_lost(&self) -> bool {
        self.leadership.is_lost()
    }

    pub(super) async fn next(&mut self) -> Interrupt {
        tokio::select! {
            biased;
            () = &mut self.lost => Interrupt::Lost,
            () = &mut self.interrupt => Interrupt::Now,
        }
    }

    /// The database's answer, unless the leadership is lost first, or the stop
    /// has waited for it long enough. A database that never answers must hold up
    /// neither.
    pub(super) async fn answer<T>(
        &mut self,
        call: impl Future<Output = T>,
    ) -> Result<T, Interrupt> {
        let patience = async {
            (&mut self.interrupt).await;
            tokio::time::sleep(LAST_ANSWER).await;
        };
        tokio::select! {
            biased;
            () = &mut self.lost => Err(Interrupt::Lost),
            answer = call => Ok(answer),
            () = patience => Err(Interrupt::Now),
        }
    }
}

impl Signals {
    /// Waits until something may have changed, or the time is over.
    pub(super) async fn changed(&mut self, at_most: Option<Duration>) {
        let limit = async {
            match at_most {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        // A closed channel means that the host is going down; the stop token says
        // so too.
        tokio::select! {
            () = self.leadership.lost() => {}
            () = self.stop.cancelled() => {}
            () = self.replaced.cancelled() => {}
            Ok(()) = self.control.changed() => {}
            Ok(()) = self.safe.changed() => {}
            Ok(()) = self.overtake_limit.changed() => {}
            () = limit => {}
        }
    }

    /// Which tokens are cancelled by now.
    pub(super) fn seen(&self) -> Seen {
        Seen {
            stop: self.stop.is_cancelled(),
            interrupt: self.interrupt.is_cancelled(),
            replaced: self.replaced.is_cancelled(),
        }
    }

    /// Waits until something has changed since it was seen, or for that moment.
    pub(super) async fn news(&mut self, seen: Seen, until: Option<Instant>) {
        let Self {
            stop,
            interrupt,
            replaced,
            leadership,
            safe,
            overtake_limit,
            control,
            awaited: _,
        } = self;
        let moment = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = leadership.lost() => {}
            () = stop.cancelled(), if !seen.stop => {}
            () = replaced.cancelled(), if !seen.replaced => {}
            () = interrupt.cancelled(), if !seen.interrupt => {}
            Ok(()) = control.changed() => {}
            Ok(()) = safe.changed() => {}
            Ok(()) = overtake_limit.changed() => {}
            () = moment => {}
        }
    }

    /// The database's answer, unless the leadership is lost, the host stops or
    /// another version takes over first: for what may be left undone.
    pub(crate) async fn answer<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.leadership.lost() => None,
            () = self.stop.cancelled() => None,
            () = self.replaced.cancelled() => None,
            answer = call => Some(answer),
        }
    }

    /// Waits until the group's row says that it is paused, or the time is over.
    pub(super) async fn halted(&mut self, epoch: Epoch, at_most: Duration) {
        let halted = async {
            let is_halted =
                |control: &Control| control.epoch > epoch || control.state == GroupState::Paused;
            if self.control.wait_for(is_halted).await.is_err() {
                // The host is going down; the stop token says so too.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.leadership.lost() => {}
            () = self.stop.cancelled() => {}
            () = halted => {}
            () = tokio::time::sleep(at_most) => {}
        }
    }

    /// Waits until an attempt may begin, and tells whether it may. It may not when
    /// the leader has something more urgent to do first: the leadership is lost,
    /// the host stops, another version takes over, or the group is paused or moved.
    pub(super) async fn let_begin(&self, epoch: Epoch, ready: impl Future<Output = bool>) -> bool {
        let mut control = self.control.clone();
        let urgent = async {
            let is_urgent =
                |control: &Control| control.epoch > epoch || control.state == GroupState::Paused;
            if control.wait_for(is_urgent).await.is_err() {
                // The host is going down; the stop token says so too.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = self.leadership.lost() => false,
            () = self.stop.cancelled() => false,
            () = self.replaced.cancelled() => false,
            () = urgent => false,
            ready = ready => ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_begins_to_wait_for_a_newer_safe_position_is_told_of_and_counted() {
        let awaited = Arc::default();
        let (mut one, mut other) = (Waits::new(&awaited), Waits::new(&awaited));
        assert!(!awaited.is_any());
        one.set(true);
        one.set(true);
        awaited.begun().await;
        other.set(true);
        one.set(false);
        assert!(awaited.is_any(), "the other waits");
        drop(other);
        assert!(!awaited.is_any());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_between_a_look_and_the_wait_after_it_is_news() {
        for token in [0, 1, 2] {
            let (_, proven_until) = watch::channel(Instant::now() + Duration::from_secs(3_600));
            let (_safe, safe) = watch::channel(Position::ZERO);
            let (_overtake_limit, overtake_limit) = watch::channel(Position::ZERO);
            let running = Control { epoch: Epoch(1), state: GroupState::Running };
            let (_control, control) = watch::channel(running);
            let mut signals = Signals {
                stop: CancellationToken::new(),
                interrupt: CancellationToken::new(),
                replaced: CancellationToken::new(),
                leadership: LeadershipProof::new(CancellationToken::new(), proven_until),
                safe,
                overtake_limit,
                control,
                awaited: Arc::default(),
            };
            let before = signals.seen();
            [&signals.stop, &signals.interrupt, &signals.replaced][token].cancel();
            let second = Duration::from_secs(1);
            let told = tokio::time::timeout(second, signals.news(before, None)).await;
            assert!(told.is_ok(), "it is missed");
            let seen = signals.seen();
            let told = tokio::time::timeout(second, signals.news(seen, None)).await;
            assert!(told.is_err(), "it is told again and again");
        }
    }
}
