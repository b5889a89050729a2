//! What one batch of a group holds, and how it waits for it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::ledger::Memory;
use super::ticket::Acquisition;
use super::{RegisteredGroup, TIME_SLICE};
use event_host_core::handler::Usage;

/// What one batch of a group may do now. Releases everything when it is
/// dropped, also while it waits.
#[derive(Debug)]
pub struct Permit {
    group: Arc<RegisteredGroup>,
    slot: Acquisition,
    /// Bytes that were acquired out of the tenant's quota; `None` before.
    memory: Option<usize>,
    /// When an attempt that has been charged to the tenant's rate and has not begun may
    /// begin.
    event: Option<Instant>,
    /// Work since it last yielded.
    worked: Duration,
}

impl Permit {
    pub(super) fn new(group: Arc<RegisteredGroup>) -> Self {
        Self { group, slot: Acquisition::None, memory: None, event: None, worked: Duration::ZERO }
    }

    /// Whether the next attempt may begin at once; if not, [`Permit::ready`] waits
    /// until it may. Cheap, because it is asked before every attempt.
    #[must_use]
    pub fn is_ready(&mut self) -> bool {
        matches!(self.slot, Acquisition::Held)
            && self.worked < TIME_SLICE
            && (!self.group.rates.are_limited() || self.rates_allow_at(Instant::now()).is_none())
    }

    /// Whether no other task waits for a slot or for a core: if this one yields, it
    /// goes on at once.
    #[must_use]
    pub fn is_uncontended(&self) -> bool {
        let RegisteredGroup { admission, rates, .. } = &*self.group;
        matches!(self.slot, Acquisition::Held)
            && !rates.are_limited()
            && admission.run_queue.is_empty()
            && !admission.ledger().has_slot_waiters()
    }

    /// Waits until the next attempt may begin. False once it is known that it may
    /// not before `until`. The future may be dropped at any await, and this called again.
    pub async fn ready(&mut self, until: Option<Instant>) -> bool {
        let began = Instant::now();
        let is_ready = self.wait(until).await;
        self.group.metrics.waited(began.elapsed());
        is_ready
    }

    async fn wait(&mut self, until: Option<Instant>) -> bool {
        if self.worked >= TIME_SLICE {
            self.yield_slot();
            if !self.group.rates.are_limited() {
                // Requested before others run, or it would miss a round.
                poll_fn(|cx| Poll::Ready(self.poll_slot(cx).is_ready())).await;
            }
            yield_now().await;
        }
        while self.group.rates.are_limited()
            && let Some(at) = self.rates_allow_at(Instant::now())
        {
            // A task that waits for a rate leaves its slot to others.
            self.release_slot();
            if until.is_some_and(|until| at > until) {
                return false;
            }
            sleep_until(at).await;
        }
        let slot = poll_fn(|cx| self.poll_slot(cx));
        match until {
            Some(until) => timeout_at(until, slot).await.is_ok(),
            None => {
                slot.await;
                true
            }
        }
    }

    /// Runs an attempt. To be called once ready.
    pub async fn run<R: AsRef<Usage>>(&mut self, attempt: impl Future<Output = R>) -> R {
        // From here on it counts.
        self.event = None;
        let RegisteredGroup { rates, metrics, .. } = &*self.group;
        let report = if rates.count_cpu() {
            let mut attempt = pin!(attempt);
            poll_fn(|cx| {
                let before = thread_time();
                let polled = attempt.as_mut().poll(cx);
                let took = thread_time().saturating_sub(before);
                rates.charge_cpu(took);
                metrics.took_cpu(took);
                polled
            })
            .await
        } else {
            attempt.await
        };
        if rates.are_limited() {
            rates.charge(report.as_ref());
        }
        self.worked = self.worked.saturating_add(report.as_ref().duration);
        report
    }

    /// Charges further events of the next call to the attempts per second. They do not
    /// wait; later attempts do.
    pub fn charge_events(&mut self, events: usize) {
        let rates = &self.group.rates;
        if rates.are_limited() {
            rates.take_events(events, Instant::now());
        }
    }

    /// Whether it holds memory out of the tenant's quota.
    #[must_use]
    pub fn holds_memory(&self) -> bool {
        self.memory.is_some_and(|bytes| bytes > 0)
    }

    /// Charges the next attempt to the rates, once. When it may begin, unless at once.
    fn rates_allow_at(&mut self, now: Instant) -> Option<Instant> {
        let rates = &self.group.rates;
        let event = *self.event.get_or_insert_with(|| rates.take_event(now));
        let at = event.max(rates.debts_paid_at(now));
        (at > now).then_some(at)
    }

    /// After a time slice of work: releases the slot if others wait for one.
    fn yield_slot(&mut self) {
        self.worked = Duration::ZERO;
        if self.group.admission.ledger().has_slot_waiters() {
            self.release_slot();
        }
    }

    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let RegisteredGroup { admission, group, .. } = &*self.group;
        if matches!(self.slot, Acquisition::None) {
            let memory = match self.memory {
                None => Memory::Wanted,
                Some(0) => Memory::Free,
                Some(_) => Memory::Held,
            };
            self.slot = match admission.ledger().request_slot(*group, memory) {
                Err(ticket) => Acquisition::Waiting(ticket),
                Ok(memory) => {
                    self.memory.get_or_insert(memory);
                    Acquisition::Held
                }
            };
        }
        if let Acquisition::Waiting(ticket) = &self.slot {
            if !ticket.poll_granted(cx.waker()) {
                return Poll::Pending;
            }
            self.memory.get_or_insert(ticket.memory());
            self.slot = Acquisition::Held;
        }
        Poll::Ready(())
    }

    /// Releases everything, as between two batches. The work since it last yielded
    /// still counts: batches may be short.
    pub fn release(&mut self) {
        self.release_slot();
        let RegisteredGroup { admission, group, rates, .. } = &*self.group;
        if let Some(bytes) = self.memory.take().filter(|bytes| *bytes > 0) {
            admission.ledger().release(*group, false, bytes);
        }
        if self.event.take().is_some() {
            rates.refund_event();
        }
    }

    /// Releases the slot, or cancels the request for one. The memory stays: the
    /// instance lives on.
    fn release_slot(&mut self) {
        let RegisteredGroup { admission, group, .. } = &*self.group;
        match std::mem::take(&mut self.slot) {
            Acquisition::None => {}
            Acquisition::Waiting(ticket) => {
                let mut ledger = admission.ledger();
                if !ledger.cancel_slot_request(*group, &ticket) {
                    // The memory that was granted with the slot stays.
                    self.memory.get_or_insert(ticket.memory());
                    ledger.release(*group, true, 0);
                }
            }
            Acquisition::Held => admission.ledger().release(*group, true, 0),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.release();
    }
}

/// Yields the core: the task is queued again in the run queue. The runtime's own
/// `yield_now` would defer it until the runtime has polled everything else.
pub(super) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The CPU time of this thread.
pub(super) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither is negative, and a second has fewer nanoseconds than a u32 holds.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
