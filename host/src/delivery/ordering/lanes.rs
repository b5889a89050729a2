//! The lanes of a schedule: by their keys, and each with what waits in it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::Ordering;
use crate::delivery::state::BatchState;
use crate::event::Position;

/// A lane, by its place in the table.
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
}

impl Lane {
    /// The key of its events.
    pub(super) fn key(&self) -> &str {
        &self.key
    }
}

/// The lanes that are in use.
#[derive(Debug)]
pub(super) struct Lanes {
    ordering: Ordering,
    all: Vec<Option<Lane>>,
    free: Vec<LaneId>,
    by_key: HashMap<Arc<str>, LaneId>,
}

impl Lanes {
    pub(super) fn new(ordering: Ordering) -> Self {
        Self { ordering, all: Vec::new(), free: Vec::new(), by_key: HashMap::new() }
    }

    /// The lane of an event, or `None` where it has none to share.
    pub(super) fn of(&mut self, key: Option<&str>) -> Option<LaneId> {
        let key = match self.ordering {
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
    pub(super) fn state_alone(&self, position: Position) -> BatchState {
        match self.ordering {
            Ordering::Total | Ordering::None => BatchState::new(""),
            // Its own key, and no text that could be another's.
            Ordering::Key => BatchState::new(format!("event:{position}")),
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
            !lane.busy && lane.parked.is_empty() && lane.queue.is_empty() && lane.state.is_empty()
        });
        if is_idle && let Some(lane) = self.all[id.0].take() {
            self.by_key.remove(&lane.key);
            self.free.push(id);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }
}
