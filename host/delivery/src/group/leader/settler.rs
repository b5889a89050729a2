//! Settles what is done: cuts the schedule, commits the cut, and takes the outcome.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::warn;

use super::Leader;
use crate::group::background::BackgroundCall;
use crate::group::commit::NotCommitted;
use crate::group::decide::{Backlog, Limits, Settle};
use crate::group::shared::{InFlight, Uncommitted};
use crate::group::{End, Signals};
use crate::ordering::{CommittedWrites, Cut};
use crate::settlement::with_failures;
use event_host_core::event::Position;
use event_host_store::Settlement;

/// A settlement with its outcome.
pub(in crate::group) struct Committed {
    settlement: Settlement,
    written: CommittedWrites,
    /// The event whose effects it holds, if it is one alone.
    only: Option<Position>,
    outcome: Result<(), NotCommitted>,
}

impl Leader<'_> {
    /// Begins to settle what is done, if it is time. `attempts_end`: no further attempt
    /// begins before. `settles_passed`: also a cursor that only passed events of others.
    pub(in crate::group) fn settle(
        &mut self,
        attempts_end: bool,
        settles_passed: bool,
        signals: &Signals,
    ) {
        if self.settling.is_some() {
            return;
        }
        let (settle, is_waited_for) = {
            let locked = self.shared.lock();
            let schedule = &locked.schedule;
            let backlog = Backlog {
                attempts_end,
                settles_passed,
                has_attempts: !self.tasks.is_empty(),
                attempts_wait: self.shared.is_at_rest(),
                is_marked: self.progress.marked,
                oldest: locked.done_since.map(|since| since.elapsed()),
                since_settled: self.progress.last_commit.elapsed(),
                ready: schedule.ready(),
                done: schedule.done_so_far(),
                done_bytes: schedule.done_bytes(),
                is_waited_for: locked.is_waited_for,
                has_overtaking: schedule.has_overtaking(),
                has_gaps: schedule.has_gaps(),
                passes: schedule.passes(),
            };
            let limits = Limits {
                max_events: self.group().settings.batch.max_events,
                max_time: self.group().settings.batch.max_time,
                pass_interval: self.group().pass_interval,
            };
            (backlog.settlement(&limits, || schedule.has_work()), backlog.is_waited_for)
        };
        let cut = match settle {
            Settle::Yes { over_gaps } => Some(self.cut(over_gaps)),
            Settle::No => None,
        };
        let has_any = |cut: &Cut| {
            cut.has_work || cut.position != self.progress.cursor || self.progress.marked
        };
        match cut.filter(has_any) {
            Some(cut) => {
                self.shared.lock().is_settling = true;
                self.settling = Some(self.commit(cut, signals));
            }
            None if is_waited_for => self.no_settlement_possible(),
            None => {}
        }
    }

    /// Tells the attempts that wait for a settlement that there is none.
    pub(in crate::group) fn no_settlement_possible(&self) {
        self.shared.lock().is_waited_for = false;
        self.shared.announce_settlement(false);
    }

    pub(in crate::group) fn cut(&self, over_gaps: bool) -> Cut {
        let mut locked = self.shared.lock();
        let most = self.group().settings.batch.max_events;
        let cut = locked.schedule.cut(most, over_gaps);
        let is_left = locked.schedule.done_so_far() > 0 || locked.schedule.has_gaps();
        locked.done_since = is_left.then(Instant::now);
        locked.is_waited_for = false;
        let written =
            cut.writes().map(Uncommitted::of).fold(Uncommitted::default(), Uncommitted::plus);
        locked.in_flight = InFlight {
            dead_letters: cut.dead_letters(),
            dead_letter_bytes: cut.dead_letter_bytes(),
            written,
        };
        locked.unsettled = locked.unsettled.minus(written);
        cut
    }

    pub(in crate::group) fn commit(
        &self,
        mut cut: Cut,
        signals: &Signals,
    ) -> BackgroundCall<Committed> {
        let mut settlement = Settlement {
            group: self.group().settings.name.clone(),
            epoch: self.progress.epoch,
            number: self.progress.settlement_number + 1,
            position: self.progress.cursor,
            head: None,
            mark: None,
            dead_letters: Vec::new(),
            emits: Vec::new(),
            state: Vec::new(),
            failures: with_failures(&self.progress.failures, cut.failed()),
            redeliveries: Vec::new(),
            redelivered: Vec::new(),
            deferred: Vec::new(),
            undecided: None,
            handled: 0,
        };
        let retired = std::mem::take(&mut cut.retired);
        let only = cut.only();
        let written = cut.fill(&mut settlement);
        let (shared, signals) = (Arc::clone(&self.shared), signals.clone());
        BackgroundCall::spawn(async move {
            let commit = shared.group.commit(&settlement, &shared.outages, &signals);
            // While the database commits.
            let (outcome, ()) = tokio::join!(commit, async { shared.group.store.recycle(retired) });
            Committed { settlement, written, only, outcome }
        })
    }

    pub(in crate::group) fn committed(&mut self, committed: Committed) -> Result<(), End> {
        let Committed { settlement, written, only, outcome } = committed;
        match outcome {
            Ok(()) => {}
            Err(NotCommitted::Ended(end)) => return Err(end),
            Err(NotCommitted::Refused(why)) => {
                let group = &self.group().settings.name;
                match only {
                    Some(position) => warn!(
                        %group,
                        position = position.0,
                        "the database refuses what the event came to: {why}"
                    ),
                    None => warn!(
                        %group,
                        "the database refuses what several events came to: they are handled and committed one at a time, to find the one that is the cause: {why}"
                    ),
                }
                self.shared.lock().refused.settlement(only, why);
                // What was done since the last settlement is lost.
                return Err(End::Superseded);
            }
        }
        self.progress.marked = false;
        self.progress.settlement_number = settlement.number;
        self.progress.cursor = settlement.position;
        self.progress.head = settlement.head;
        self.progress.mark = settlement.mark;
        if let Some(failures) = settlement.failures {
            self.progress.failures = failures;
        }
        if let Some(overtaking) = settlement.undecided {
            self.progress.undecided = overtaking.undecided;
        }
        self.progress.last_commit = Instant::now();
        let mut locked = self.shared.lock();
        if locked.refused.committed() {
            // The cause of the refusal is found.
            self.progress.refusal_search_left = 0;
        }
        locked.schedule.committed(written);
        locked.in_flight = InFlight::default();
        locked.is_settling = false;
        // An attempt that takes the lock next sees this settlement, and one that waited for
        // it is told.
        locked.is_waited_for = false;
        self.shared.announce_settlement(true);
        drop(locked);
        Ok(())
    }
}
