//! Events that no task holds any more, kept so that their memory is used again.
//!
//! To have an event's texts and data allocated when it is read, and freed when it is
//! settled, takes a third of the time that goes into reading and settling it.

use std::sync::{Arc, Mutex, PoisonError};

use event_host_core::event::LogEvent;

/// Maximum number of events kept: what one group has read and not settled, at a
/// thousand a batch.
const MOST: usize = 3_000;

/// Maximum size of an event that is kept, in bytes; so all of them take at most 12 MB.
const MOST_BYTES: usize = 4 << 10;

/// Events whose memory may be used for others, by whatever group.
#[derive(Default)]
pub(super) struct EventPool(Mutex<Vec<Arc<LogEvent>>>);

impl EventPool {
    /// Keeps what is worth it.
    pub(super) fn recycle(&self, mut events: Vec<Arc<LogEvent>>) {
        // Both are looked at before the lock is taken, and what is left is freed after it.
        events.retain_mut(|event| Arc::get_mut(event).is_some_and(|event| is_small(event)));
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST.saturating_sub(pool.len()).min(events.len());
        pool.extend(events.drain(..room));
    }

    /// Gives at most this many, each of which nothing else refers to.
    pub(super) fn take(&self, most: usize) -> Vec<Arc<LogEvent>> {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = pool.len().saturating_sub(most);
        pool.split_off(left)
    }
}

/// Whether what an event has allocated is little.
fn is_small(LogEvent { event, .. }: &LogEvent) -> bool {
    let texts = [&event.id, &event.source, &event.event_type];
    let optional = [&event.subject, &event.datacontenttype, &event.dataschema, &event.partitionkey];
    let texts = texts.into_iter().chain(optional.into_iter().flatten()).map(String::capacity);
    let data = event.data.as_ref().map_or(0, Vec::capacity);
    texts.sum::<usize>() + data <= MOST_BYTES
}

#[cfg(test)]
mod tests {
    use super::super::columns::nothing_read;
    use super::*;

    fn event(bytes: usize) -> Arc<LogEvent> {
        let mut event = nothing_read();
        event.event.data = Some(vec![7; bytes]);
        Arc::new(event)
    }

    #[test]
    fn what_is_large_or_shared_or_too_many_is_not_kept() {
        let pool = EventPool::default();
        let shared = event(1);
        pool.recycle(vec![event(1), event(MOST_BYTES + 1), Arc::clone(&shared)]);
        assert_eq!(pool.take(10).len(), 1);
        pool.recycle((0..MOST + 1).map(|_| event(1)).collect());
        assert_eq!(pool.take(1_000).len(), 1_000);
        assert_eq!(pool.take(usize::MAX).len(), MOST - 1_000);
    }
}
