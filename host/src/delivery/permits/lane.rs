//! What the store does for the groups in turn, so much at once.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::book::Ticket;
use super::queue::{FairQueue, Fit};
use super::{Member, SLICE, nanoseconds};

/// What is used in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// A look into the log.
    Read,
    /// A settlement.
    Write,
}

impl Lane {
    /// Every lane, each at its own number.
    pub(super) const ALL: [Self; 2] = [Self::Read, Self::Write];
}

/// What a turn is taken to cost until it is over, in nanoseconds.
const EXPECTED: u64 = nanoseconds(SLICE);

/// Who uses a lane, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Users {
    pub(super) at_once: usize,
    pub(super) waiting: FairQueue<Arc<Ticket>>,
}

impl Users {
    /// Takes a turn if fewer than so many are taken. `None` when it was there; else
    /// who waits now.
    pub(super) fn ask(&mut self, owner: usize, group: usize, most: usize) -> Option<Arc<Ticket>> {
        if self.at_once < most {
            self.waiting.serve(owner, group, EXPECTED);
            self.at_once += 1;
            return None;
        }
        let ticket = Arc::new(Ticket::default());
        self.waiting.push(owner, group, Arc::clone(&ticket), false);
        Some(ticket)
    }

    /// Gives up waiting. False when the turn was granted meanwhile.
    pub(super) fn give_up(&mut self, owner: usize, group: usize, ticket: &Arc<Ticket>) -> bool {
        self.waiting.remove(owner, group, |waiting| Arc::ptr_eq(waiting, ticket))
    }

    /// Gives back a turn that took so long, to whoever comes next.
    pub(super) fn end(&mut self, owner: usize, group: usize, took: Duration) {
        self.waiting.correct(owner, group, EXPECTED, nanoseconds(took));
        match self.waiting.take_first(EXPECTED, |_, _, _| Fit::Yes) {
            Some((_, _, ticket)) => ticket.grant(0),
            None => self.at_once -= 1,
        }
    }
}

/// A thing that is not held, waited for, or held.
#[derive(Debug, Default)]
pub(super) enum Hold {
    #[default]
    Not,
    Waiting(Arc<Ticket>),
    Held,
}

/// A turn, which ends when it is dropped.
#[derive(Debug)]
pub struct Turn {
    member: Arc<Member>,
    lane: Lane,
    hold: Hold,
    /// When it began, while it is held.
    began: Option<Instant>,
}

impl Turn {
    fn new(member: Arc<Member>, lane: Lane) -> Self {
        Self { member, lane, hold: Hold::Not, began: None }
    }

    /// Waits for a turn of which there are so many at once. May be dropped in the
    /// middle.
    pub(super) async fn wait(member: &Arc<Member>, lane: Lane, at_once: usize) -> Self {
        let mut turn = Self::new(Arc::clone(member), lane);
        poll_fn(|cx| turn.poll(cx, at_once)).await;
        turn
    }

    /// Takes the turn, or waits for it.
    fn poll(&mut self, cx: &mut Context<'_>, at_once: usize) -> Poll<()> {
        if matches!(self.hold, Hold::Not) {
            let Member { permits, group, .. } = &*self.member;
            self.hold = match permits.book().ask_for_turn(self.lane, *group, at_once) {
                Some(ticket) => Hold::Waiting(ticket),
                None => Hold::Held,
            };
        }
        if let Hold::Waiting(ticket) = &self.hold {
            if !ticket.is_granted(cx.waker()) {
                return Poll::Pending;
            }
            self.hold = Hold::Held;
        }
        self.began.get_or_insert_with(Instant::now);
        Poll::Ready(())
    }

    /// Ends the turn, or the wait for it.
    fn end(&mut self) {
        let Member { permits, group, .. } = &*self.member;
        let held = match std::mem::take(&mut self.hold) {
            Hold::Not => return,
            Hold::Waiting(ticket) => !permits.book().give_up_turn(self.lane, *group, &ticket),
            Hold::Held => true,
        };
        if held {
            let took = self.began.take().map_or(Duration::ZERO, |began| began.elapsed());
            permits.book().end_turn(self.lane, *group, took);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end();
    }
}
