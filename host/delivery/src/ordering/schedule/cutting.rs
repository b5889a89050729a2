//! What a settlement takes from a schedule, and what becomes of the rest.

use std::sync::Arc;

use jiff::Timestamp;

use super::{AT_ONCE, Entry, EntryState, Parked, ParkedState, Schedule};
use crate::ordering::lanes::LaneId;
use crate::settlement::{Effects, NextAttempt};
use event_host_core::event::{Attempt, LogEvent, Position};
use event_host_core::failure::FailureKind;
use event_host_core::handler::state::{Accepted, BatchState};
use event_host_store::{Deferral, Head, Mark, Redelivery, Settlement, UndecidedChange};

/// What a settlement takes.
#[derive(Debug, Default)]
pub struct Cut {
    /// The cursor after it.
    pub position: Position,
    /// The retry that is pending after it.
    pub head: Option<Head>,
    /// The attempt that is marked after it.
    pub mark: Option<Mark>,
    /// Events that are handled or given up.
    pub done: usize,
    /// Whether there is more in it than the cursor.
    pub has_work: bool,
    /// Events that have left the window. Freeing them takes a while, so it is done while the
    /// store commits.
    pub retired: Vec<Arc<LogEvent>>,
    redeliveries: Vec<Redelivery>,
    redelivered: Vec<Position>,
    deferred: Vec<Deferral>,
    finished: Vec<Finished>,
    /// The event whose effects it has, if it is one alone.
    only: Option<Position>,
    failed: Vec<FailureKind>,
    overtaking: Option<UndecidedChange>,
}

/// What an event came to, and where.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) effects: Effects,
    pub(super) state: BatchState,
    pub(super) lane: Option<LaneId>,
}

/// What is to be done once a settlement is committed: its writes are to be forgotten,
/// and what it deferred is to be read when it is due.
#[derive(Debug, Default)]
pub struct CommittedWrites {
    writes: Vec<(BatchState, Option<LaneId>, String, u64)>,
    /// The first of what it deferred.
    deferred: Option<(Timestamp, Position)>,
}

impl Schedule {
    /// Takes what a settlement may take: at most `most` window entries, or those of one batch
    /// call where they are more. What is delayed is deferred. What waits for its next
    /// attempt, or behind what does, is parked, also beyond `max_parked`, because what is
    /// done behind it is to be settled; with `over_gaps`, also what runs or waits where
    /// something behind it is done or failed.
    ///
    /// The schedule goes on as if the cut were committed; if it cannot be, the schedule is to
    /// be dropped.
    pub fn cut(&mut self, most: usize, over_gaps: bool) -> Cut {
        let reach = (self.done_in_batches > 0).then(|| self.reach(most, over_gaps));
        let most = reach.unwrap_or(most);
        let mut behind = self.done - self.over.len() + self.retried;
        let mut end = 0;
        let mut touched = Vec::new();
        while end < most && end < self.window.len() {
            let entry = &self.window[end];
            match entry.state {
                EntryState::Done => behind -= 1,
                EntryState::Delayed => self.defer_entry(end),
                _ => {
                    let parks =
                        self.is_to_park(entry) || self.ordering.parks() && over_gaps && behind > 0;
                    if reach.is_none() && !parks {
                        break;
                    }
                    touched.extend(entry.lane);
                    behind -= usize::from(entry.again.is_some());
                    self.park(end);
                }
            }
            end += 1;
        }
        let mut position = self.cursor;
        let mut done = 0;
        let mut retired = Vec::with_capacity(end);
        for entry in self.window.drain(..end) {
            position = entry.position;
            self.done_in_batches -= entry.in_batch();
            done += usize::from(entry.state == EntryState::Done);
            self.window_bytes -= entry.bytes;
            retired.push(entry.event);
        }
        self.first += end as u64;
        if self.window.is_empty() {
            position = position.max(self.scanned_to);
        }
        for id in std::mem::take(&mut self.lanes_to_settle) {
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            if lane.settle_up_to(position) {
                touched.push(id);
            } else {
                self.lanes_to_settle.push(id);
            }
        }
        for lane in touched {
            self.offer(lane);
        }
        self.release_held(position);
        let overtaking = self.adopt_late(position);
        let redelivered = std::mem::take(&mut self.over);
        let deferred = self.deferred.take(&redelivered);
        done += redelivered.len();
        self.done -= done;
        let kept = self.finished.split_off(&Position(position.0.saturating_add(1)));
        let finished = std::mem::replace(&mut self.finished, kept);
        let only = finished.first_key_value().filter(|_| finished.len() == 1).map(|(at, _)| *at);
        let finished: Vec<Finished> = finished.into_values().collect();
        self.done_bytes -= finished.iter().map(|f| f.effects.bytes()).sum::<usize>();
        let changed = std::mem::take(&mut self.changed);
        let redelivery = |position| Some(self.parked.get(&position)?.redelivery(position));
        let (head, mark) = (self.head(), self.marked());
        let cut = Cut {
            position,
            done,
            has_work: done > 0
                || !changed.is_empty()
                || !deferred.is_empty()
                || !self.failed.is_empty()
                || overtaking.is_some()
                || head != self.head_taken
                || mark != self.mark,
            redeliveries: changed.into_iter().filter_map(redelivery).collect(),
            redelivered,
            deferred,
            finished,
            only,
            failed: std::mem::take(&mut self.failed),
            overtaking,
            head,
            mark,
            retired,
        };
        self.cursor = position;
        self.head_taken = cut.head.clone();
        self.mark = mark;
        cut
    }

    /// What a settlement with this cursor changes of the undecided positions. Late events
    /// come into their lanes: from now on no look finds them again.
    fn adopt_late(&mut self, position: Position) -> Option<UndecidedChange> {
        let open = self.undecided.up_to(position);
        let late = self.arrived.len() as u64;
        for redelivery in std::mem::take(&mut self.arrived) {
            if redelivery.is_delayed(AT_ONCE) {
                self.deferred.defer(&redelivery);
                continue;
            }
            self.changed.insert(redelivery.position);
            self.park_again(redelivery);
        }
        if late == 0 && open == self.undecided_taken {
            return None;
        }
        self.undecided_taken.clone_from(&open);
        Some(UndecidedChange { undecided: open, late })
    }

    /// Whether an event of the window waits for something that lets others pass: its
    /// next attempt, or a parked event of its lane.
    pub(super) fn is_to_park(&self, entry: &Entry) -> bool {
        match entry.state {
            EntryState::Failed => self.ordering.parks(),
            EntryState::Waiting | EntryState::Lingering | EntryState::Offered => {
                let lane = entry.lane.and_then(|id| self.lanes.get(id));
                let is_behind = lane.is_some_and(|lane| !lane.parked.is_empty());
                self.ordering.parks() && is_behind || self.is_overtaken(entry)
            }
            EntryState::Delayed | EntryState::Running | EntryState::Done => false,
        }
    }

    /// Whether an event that was delayed waits for later ones of its lane to be
    /// taken, which the cursor only reaches past it.
    fn is_overtaken(&self, entry: &Entry) -> bool {
        entry.is_ready()
            && entry
                .lane
                .and_then(|id| self.lanes.get(id))
                .is_some_and(|lane| lane.is_overtaken(entry.position))
    }

    /// Parks an event of the window.
    fn park(&mut self, index: usize) {
        self.stop_lingering(index);
        let number = self.first + index as u64;
        let entry = &mut self.window[index];
        let position = entry.position;
        let event = Arc::clone(&entry.event);
        self.retried -= usize::from(entry.again.is_some());
        let deliver_after = event.event.deliver_after;
        let again = entry.again.take().map_or_else(
            || NextAttempt {
                attempt: Attempt::FIRST,
                due_at: deliver_after.unwrap_or(AT_ONCE),
                failure: None,
            },
            |again| *again,
        );
        let lane = entry.lane.and_then(|id| self.lanes.get_mut(id));
        // Whatever the ordering: another one may want it.
        let key = event.event.partitionkey.clone();
        let (state, late) = (ParkedState::Due, false);
        let mut parked = Parked { state, lane: entry.lane, key, event: None, again, late };
        match entry.state {
            EntryState::Running => {
                parked.state = ParkedState::Passed;
                self.passed += 1;
            }
            // It is in `due` already.
            EntryState::Failed => self.waiting -= 1,
            EntryState::Waiting
            | EntryState::Lingering
            | EntryState::Offered
            | EntryState::Delayed
            | EntryState::Done => {
                self.waiting -= 1;
                if lane.is_some() {
                    parked.state = ParkedState::Behind;
                } else {
                    parked.event = Some(event);
                    self.due.insert((parked.again.due_at, position));
                }
            }
        }
        if let Some(lane) = lane {
            lane.dequeue(number);
            lane.parked.insert(position);
        }
        entry.state = EntryState::Waiting;
        self.parked.insert(position, parked);
        self.changed.insert(position);
    }

    /// The event at the head that was attempted before, of a group whose events
    /// wait for it.
    pub(super) fn head(&self) -> Option<Head> {
        if self.ordering.parks() {
            return self.head_ahead.clone();
        }
        // What is delayed is deferred by the settlement that comes to it.
        let first = self.window.front().filter(|entry| entry.state != EntryState::Delayed);
        let first = first.or_else(|| {
            let mut entries = self.window.iter();
            entries.find(|entry| !matches!(entry.state, EntryState::Delayed | EntryState::Done))
        });
        let Some((position, again)) =
            first.and_then(|entry| Some((entry.position, entry.again.as_ref()?)))
        else {
            return self.head_ahead.clone();
        };
        let NextAttempt { attempt, due_at, failure } = (**again).clone();
        Some(Head { position, attempt, due_at, failure })
    }

    /// The mark, which stays until the death is counted.
    pub(super) fn marked(&self) -> Option<Mark> {
        self.mark.filter(|_| self.suspect.is_some())
    }

    /// What a settlement wrote is committed.
    pub fn committed(&mut self, written: CommittedWrites) {
        self.deferred.committed(written.deferred);
        for (state, lane, key, by) in written.writes {
            state.forget(&key, by);
            if let Some(lane) = lane {
                self.lanes.tidy(lane);
            }
        }
    }
}

impl Cut {
    /// Failed attempts, by kind.
    #[must_use]
    pub fn failed(&self) -> &[FailureKind] {
        &self.failed
    }

    /// Dead letters.
    #[must_use]
    pub fn dead_letters(&self) -> usize {
        self.finished.iter().filter(|f| f.effects.dead_letter.is_some()).count()
    }

    /// What these take, in bytes.
    #[must_use]
    pub fn dead_letter_bytes(&self) -> usize {
        self.finished.iter().map(|f| f.effects.dead_letter_bytes()).sum()
    }

    /// The event of which it has what it came to, if it is one.
    #[must_use]
    pub fn only(&self) -> Option<Position> {
        self.only
    }

    /// The writes, an event at a time.
    pub fn writes(&self) -> impl Iterator<Item = &[Accepted]> {
        self.finished.iter().map(|finished| &*finished.effects.writes)
    }

    /// Puts everything but the counts into a settlement, and returns the writes that are
    /// forgotten once it is committed.
    pub fn fill(self, settlement: &mut Settlement) -> CommittedWrites {
        settlement.handled = self.done.saturating_sub(self.dead_letters()) as u64;
        settlement.position = self.position;
        settlement.head = self.head;
        settlement.redeliveries = self.redeliveries;
        settlement.redelivered = self.redelivered;
        settlement.mark = self.mark;
        settlement.undecided = self.overtaking;
        let first = self.deferred.iter().map(|one| (one.due_at, one.position)).min();
        let mut written = CommittedWrites { writes: Vec::new(), deferred: first };
        settlement.deferred = self.deferred;
        for Finished { effects, state, lane } in self.finished {
            settlement.emits.extend(effects.emits);
            settlement.dead_letters.extend(effects.dead_letter.map(|dead| *dead));
            // In position order, so that of a key's writes the last one counts.
            for Accepted { by, write } in effects.writes {
                written.writes.push((state.clone(), lane, write.key.clone(), by));
                settlement.state.push(write);
            }
        }
        written
    }
}
