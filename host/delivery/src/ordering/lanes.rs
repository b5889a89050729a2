//! The lanes of a schedule: by their keys, and each with what waits in it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::Ordering;
use event_host_core::event::Position;
use event_host_core::handler::state::BatchState;

/// A lane, by its index in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaneId(usize);

/// Events that run one at a time, in position order.
#[derive(Debug)]
pub(super) struct Lane {
    key: Arc<str>,
    /// One of its events runs.
    pub(super) busy: bool,
    /// Parked events, which come before all that are queued.
    pub(super) parked: BTreeSet<Position>,
    /// The numbers of the events in the window that wait, in order.
    pub(super) queue: VecDeque<u64>,
    /// What its events wrote and is not committed.
    pub(super) state: BatchState,
    /// The last of its events, by position, that is done and that no settlement has
    /// taken.
    done_to: Option<Position>,
}

impl Lane {
    /// An event of the window waits, by its number. One that was delayed may come
    /// before others that wait already.
    pub(super) fn enqueue(&mut self, number: u64) {
        if self.queue.back().is_none_or(|last| *last < number) {
            return self.queue.push_back(number);
        }
        let place = self.queue.partition_point(|other| *other < number);
        self.queue.insert(place, number);
    }

    /// An event of the window waits no longer.
    pub(super) fn dequeue(&mut self, number: u64) {
        if self.queue.front() == Some(&number) {
            self.queue.pop_front();
        } else if let Ok(place) = self.queue.binary_search(&number) {
            self.queue.remove(place);
        }
    }

    /// Whether the event with this number in the queue comes next.
    pub(super) fn may_run_queued(&self, number: u64) -> bool {
        !self.busy && self.parked.is_empty() && self.queue.front() == Some(&number)
    }

    /// An event is done. Whether it is the first that no settlement has taken.
    pub(super) fn is_done(&mut self, position: Position) -> bool {
        let was = self.done_to;
        self.done_to = was.max(Some(position));
        was.is_none()
    }

    /// A settlement has taken what is done up to there. Whether that is all.
    pub(super) fn settle_up_to(&mut self, position: Position) -> bool {
        self.done_to.take_if(|done_to| *done_to <= position);
        self.done_to.is_none()
    }

    /// Whether an event after this one is done and not taken, so that this one was
    /// delayed. It builds on what the other wrote, so it must not be settled before.
    pub(super) fn is_overtaken(&self, position: Position) -> bool {
        self.done_to.is_some_and(|done_to| done_to > position)
    }

    /// The parked event that comes first. That is the one of which the process may have died,
    /// as it was then: what is before it was delayed.
    pub(super) fn first_parked(&self, suspect: Option<Position>) -> Option<Position> {
        let suspect = suspect.filter(|position| self.parked.contains(position));
        suspect.or_else(|| self.parked.first().copied())
    }
}

/// The lanes that are in use.
#[derive(Debug)]
pub(super) struct Lanes {
    ordering: Ordering,
    all: Vec<Option<Lane>>,
    free: Vec<LaneId>,
    by_key: HashMap<Arc<str>, LaneId>,
    /// The lane of all events, where they have one.
    of_all: Option<LaneId>,
}

impl Lanes {
    pub(super) fn new(ordering: Ordering) -> Self {
        Self { ordering, all: Vec::new(), free: Vec::new(), by_key: HashMap::new(), of_all: None }
    }

    /// The lane of an event, or `None` where it has none to share.
    pub(super) fn of(&mut self, key: Option<&str>) -> Option<LaneId> {
        let key = match self.ordering {
            // Found without its key, because this is asked for each event.
            Ordering::Total if self.of_all.is_some() => return self.of_all,
            Ordering::Total => "",
            Ordering::Key => key?,
            Ordering::None => return None,
        };
        if let Some(id) = self.by_key.get(key) {
            return Some(*id);
        }
        let shared: Arc<str> = key.into();
        let lane = Lane {
            key: Arc::clone(&shared),
            busy: false,
            parked: BTreeSet::new(),
            queue: VecDeque::new(),
            state: BatchState::new(self.scope_of(key)),
            done_to: None,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.all[id.0] = Some(lane);
                id
            }
            None => {
                self.all.push(Some(lane));
                LaneId(self.all.len() - 1)
            }
        };
        self.by_key.insert(shared, id);
        if self.ordering == Ordering::Total {
            self.of_all = Some(id);
        }
        Some(id)
    }

    /// The state scope of a lane.
    fn scope_of(&self, key: &str) -> String {
        match self.ordering {
            Ordering::Total | Ordering::None => String::new(),
            Ordering::Key => format!("key:{key}"),
        }
    }

    /// The state of an event that has no lane to share.
    pub(super) fn own_state(&self) -> BatchState {
        match self.ordering {
            Ordering::Total | Ordering::None => BatchState::new(""),
            Ordering::Key => BatchState::of_one_event(),
        }
    }

    pub(super) fn get(&self, id: LaneId) -> Option<&Lane> {
        self.all.get(id.0)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.all.get_mut(id.0)?.as_mut()
    }

    /// Forgets a lane with nothing in it, so that a group holds as many as it has
    /// keys under way, not as many as it ever saw.
    pub(super) fn tidy(&mut self, id: LaneId) {
        let is_idle = self.get(id).is_some_and(|lane| {
            !lane.busy
                && lane.parked.is_empty()
                && lane.queue.is_empty()
                && lane.state.is_empty()
                && lane.done_to.is_none()
        });
        if is_idle && let Some(lane) = self.all[id.0].take() {
            self.by_key.remove(&lane.key);
            self.of_all = None;
            self.free.push(id);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }
}
