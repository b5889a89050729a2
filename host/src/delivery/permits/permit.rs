//! What one batch of a group holds, and how it waits for it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::book::Memory;
use super::lane::Hold;
use super::{Member, SLICE};
use crate::delivery::Usage;

/// What one batch of a group may do now. Gives everything back when it is
/// dropped, also in the middle of a wait.
#[derive(Debug)]
pub struct Permit {
    member: Arc<Member>,
    place: Hold,
    /// Bytes that were taken out of what the tenant may use; `None` before.
    memory: Option<usize>,
    /// An attempt that was taken out of the tenant's rate and has not begun, and
    /// when it may.
    event: Option<Instant>,
    /// Work since it last made room for others.
    worked: Duration,
}

impl Permit {
    pub(super) fn new(member: Arc<Member>) -> Self {
        Self { member, place: Hold::Not, memory: None, event: None, worked: Duration::ZERO }
    }

    /// Whether the next attempt may begin at once; if not, [`Permit::ready`] waits
    /// until it may. Cheap, because it is asked before every attempt.
    #[must_use]
    pub fn is_ready(&mut self) -> bool {
        matches!(self.place, Hold::Held)
            && self.worked < SLICE
            && (!self.member.rates.are_limited() || self.rates_allow(Instant::now()).is_none())
    }

    /// Whether nobody waits for the place that this has, or for a core: if it makes way, it
    /// goes on at once.
    #[must_use]
    pub fn goes_on_at_once(&self) -> bool {
        let Member { permits, rates, .. } = &*self.member;
        matches!(self.place, Hold::Held)
            && !rates.are_limited()
            && permits.line.is_empty()
            && !permits.book().places_are_waited_for()
    }

    /// Waits until the next attempt may begin. False once it is known that it may
    /// not before `until`. May be dropped at any await, and called again.
    pub async fn ready(&mut self, until: Option<Instant>) -> bool {
        if self.worked >= SLICE {
            self.make_room();
            if !self.member.rates.are_limited() {
                // In line before others run, or it would miss a round.
                poll_fn(|cx| Poll::Ready(self.poll_place(cx).is_ready())).await;
            }
            make_way().await;
        }
        while self.member.rates.are_limited()
            && let Some(at) = self.rates_allow(Instant::now())
        {
            // Whoever waits for a rate keeps nobody else from running.
            self.leave_place();
            if until.is_some_and(|until| at > until) {
                return false;
            }
            sleep_until(at).await;
        }
        let place = poll_fn(|cx| self.poll_place(cx));
        match until {
            Some(until) => timeout_at(until, place).await.is_ok(),
            None => {
                place.await;
                true
            }
        }
    }

    /// Runs an attempt. To be called once ready.
    pub async fn run<R: AsRef<Usage>>(&mut self, attempt: impl Future<Output = R>) -> R {
        // From here on it counts.
        self.event = None;
        let rates = &self.member.rates;
        let report = if rates.count_cpu() {
            let mut attempt = pin!(attempt);
            poll_fn(|cx| {
                let before = thread_time();
                let polled = attempt.as_mut().poll(cx);
                rates.use_cpu(thread_time().saturating_sub(before));
                polled
            })
            .await
        } else {
            attempt.await
        };
        if rates.are_limited() {
            rates.use_up(report.as_ref());
        }
        self.worked = self.worked.saturating_add(report.as_ref().duration);
        report
    }

    /// Counts further events against the attempts a second, which go into the next
    /// call: they are there, and whoever comes next waits for that.
    pub fn take_along(&mut self, events: usize) {
        let rates = &self.member.rates;
        if rates.are_limited() {
            rates.take_events(events, Instant::now());
        }
    }

    /// Whether it holds memory out of what the tenant may use at once.
    #[must_use]
    pub fn holds_memory(&self) -> bool {
        self.memory.is_some_and(|bytes| bytes > 0)
    }

    /// Takes the next attempt out of the rates. When it may begin, unless at once.
    fn rates_allow(&mut self, now: Instant) -> Option<Instant> {
        let rates = &self.member.rates;
        let event = *self.event.get_or_insert_with(|| rates.take_event(now));
        let at = event.max(rates.debts_are_paid_at(now));
        (at > now).then_some(at)
    }

    /// After a slice of work: lets those who wait come first.
    fn make_room(&mut self) {
        self.worked = Duration::ZERO;
        if self.member.permits.book().places_are_waited_for() {
            self.leave_place();
        }
    }

    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Member { permits, group, .. } = &*self.member;
        if matches!(self.place, Hold::Not) {
            let memory = match self.memory {
                None => Memory::Wanted,
                Some(0) => Memory::Free,
                Some(_) => Memory::Held,
            };
            self.place = match permits.book().ask_for_place(*group, memory) {
                Err(ticket) => Hold::Waiting(ticket),
                Ok(memory) => {
                    self.memory.get_or_insert(memory);
                    Hold::Held
                }
            };
        }
        if let Hold::Waiting(ticket) = &self.place {
            if !ticket.is_granted(cx.waker()) {
                return Poll::Pending;
            }
            self.memory.get_or_insert(ticket.memory());
            self.place = Hold::Held;
        }
        Poll::Ready(())
    }

    /// Gives everything back, as between two batches. What was worked since it last made
    /// room still counts: batches may be short.
    pub fn give_back(&mut self) {
        self.leave_place();
        let Member { permits, group, rates, .. } = &*self.member;
        if let Some(bytes) = self.memory.take().filter(|bytes| *bytes > 0) {
            permits.book().give_back(*group, false, bytes);
        }
        if self.event.take().is_some() {
            rates.give_back_event();
        }
    }

    /// Gives back the place, or gives up waiting for one. The memory stays: the
    /// instance lives on.
    fn leave_place(&mut self) {
        let Member { permits, group, .. } = &*self.member;
        match std::mem::take(&mut self.place) {
            Hold::Not => {}
            Hold::Waiting(ticket) => {
                let mut book = permits.book();
                if !book.give_up_place(*group, &ticket) {
                    // With the memory that was granted besides.
                    self.memory.get_or_insert(ticket.memory());
                    book.give_back(*group, true, 0);
                }
            }
            Hold::Held => permits.book().give_back(*group, true, 0),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Goes back into the line for a core. The runtime's own way to make way would put
/// the task aside until the runtime has looked at everything else.
pub(super) async fn make_way() {
    let mut made = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut made, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// How long this thread has computed.
pub(super) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither is negative, and a second has fewer nanoseconds than a u32 holds.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
