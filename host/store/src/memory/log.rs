//! The log in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::operation::Operation;
use super::{Group, Kept, Log, MemoryStore, Stored, locked, microseconds};
use crate::driver::gone::Beginning;
use crate::driver::{refusals, unpinned_reason};
use crate::{
    Enforced, EventLog, Fetch, Fetched, FetchedLate, Found, GroupState, LateEvent, LateFetch,
    LogPin, OvertakingFetch, Retention, Sketch, Start, StoreError, StoreLimits, Subscription,
    UndecidedRange, UndecidedRanges,
};
use event_host_core::digest::Digest;
use event_host_core::event::{Event, GroupName, LogEvent, Position, Tenant};

#[allow(missing_docs, reason = "each is the call of the same name, or of its kind")]
impl Operation {
    pub const PUBLISH: Self = Self::writing("publish");
    pub const SAFE_POSITION: Self = Self::reading("safe_position");
    pub const ENFORCE_RETENTION: Self = Self::writing("enforce_retention");
    pub const FETCH: Self = Self::reading("fetch");
    pub const FETCH_AT: Self = Self::reading("fetch_at");
}

impl MemoryStore {
    /// Every event in the log, in its order, whosever it is.
    #[must_use]
    pub fn published(&self) -> Vec<Event> {
        let log = locked(&self.shared.log);
        log.events.values().map(|stored| stored.event.event.clone()).collect()
    }
}

#[async_trait]
impl EventLog for MemoryStore {
    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn publish(
        &self,
        tenant: &Tenant,
        events: &[Event],
    ) -> Result<Vec<Position>, StoreError> {
        self.call(Operation::PUBLISH, |log| {
            well_formed(events)?;
            Ok(events.iter().map(|event| log.append(tenant, event.clone())).collect())
        })
        .await
    }

    async fn safe_position(&self) -> Result<Position, StoreError> {
        self.call(Operation::SAFE_POSITION, |log| Ok(log.safe_position())).await
    }

    async fn enforce_retention(&self, retention: &Retention) -> Result<Enforced, StoreError> {
        self.call(Operation::ENFORCE_RETENTION, |log| Ok(log.enforce_retention(*retention))).await
    }

    async fn unpin(
        &self,
        tenant: &Tenant,
        retention: &Retention,
        most: u64,
    ) -> Result<Option<LogPin>, StoreError> {
        self.call(Operation::ENFORCE_RETENTION, |log| {
            log.retention = *retention;
            let Some(pin) = log.pinned_by(Some(tenant)).filter(|pin| pin.bytes > most) else {
                return Ok(None);
            };
            let reason = unpinned_reason(tenant, &pin, most);
            for row in log.rows_of_mut(&pin.group.group()) {
                row.state = GroupState::Paused;
                row.reason = Some(reason.clone());
                row.unpinned = true;
                row.epoch.0 += 1;
            }
            Ok(Some(pin))
        })
        .await
    }

    fn limits(&self) -> StoreLimits {
        let reads = *self.handle.reads.lock().unwrap_or_else(PoisonError::into_inner);
        StoreLimits { reads: reads.unwrap_or(usize::MAX), writes: usize::MAX }
    }

    async fn fetch(&self, fetch: Fetch<'_>) -> Result<Fetched, StoreError> {
        self.call(Operation::FETCH, |log| log.fetch(&fetch)).await
    }

    async fn sketch(&self, fetch: Fetch<'_>) -> Result<Option<Sketch>, StoreError> {
        self.call(Operation::FETCH, |log| {
            let Fetch { group, tenant, subscription, partition, after, up_to, .. } = fetch;
            let mut theirs = log.for_group(group, tenant, subscription, after, up_to);
            let Some(next) = theirs.find(|stored| stored.is_in(partition)) else { return Ok(None) };
            let is_large = log.unreadable.contains(&next.event.position.0);
            let bytes = if is_large { 8 << 20 } else { next.event.bytes() as u64 };
            let mut event = next.event.clone();
            event.event.data = None;
            Ok(Some(Sketch { event, bytes }))
        })
        .await
    }

    async fn fetch_at(
        &self,
        group: &GroupName,
        positions: &[Position],
        max_bytes: usize,
    ) -> Result<Found, StoreError> {
        self.call(Operation::FETCH_AT, |log| {
            let looked_to = positions.iter().max().copied().unwrap_or_default();
            let mut found = Found { events: Vec::new(), looked_to };
            let Some(Group { tenant, deferred, .. }) = log.groups.get(group) else {
                return Ok(found);
            };
            let positions: BTreeSet<Position> = positions.iter().copied().collect();
            let stored = positions.iter().filter_map(|position| log.events.get(&position.0));
            let theirs = stored.filter(|stored| {
                stored.tenant == *tenant
                    && stored
                        .event
                        .deliver_to
                        .as_ref()
                        .is_none_or(|only| only.as_str() == group.whole())
            });
            let mut all: BTreeMap<Position, &LogEvent> =
                theirs.map(|stored| (stored.event.position, &stored.event)).collect();
            let kept = positions.iter().filter_map(|position| deferred.get(position));
            for Kept { event, .. } in kept {
                all.entry(event.position).or_insert(event);
            }
            let mut bytes = 0;
            for event in all.into_values() {
                if log.unreadable.contains(&event.position.0) {
                    let Some(last) = found.events.last() else { return Err(unreadable(event)) };
                    found.looked_to = last.position;
                    break;
                }
                bytes += event.bytes();
                found.events.push(event.clone());
                if bytes >= max_bytes {
                    found.looked_to = event.position;
                    break;
                }
            }
            Ok(found)
        })
        .await
    }

    /// Every transaction that is open is a slow one.
    async fn overtake_limit(&self, _: Duration) -> Position {
        locked(&self.shared.log).last_position()
    }

    async fn fetch_overtaking(
        &self,
        fetch: Fetch<'_>,
        safe: Position,
        max_ranges: usize,
    ) -> Result<OvertakingFetch, StoreError> {
        self.call(Operation::FETCH, |log| {
            let mut fetched = log.fetch(&fetch)?;
            let from = fetch.after.max(safe);
            let read = UndecidedRange { first: Position(from.0 + 1), last: fetched.scanned_to };
            let mut undecided = UndecidedRanges::of([read]).without(&log.positions());
            if let Some(beyond) = undecided.as_slice().get(max_ranges) {
                fetched.scanned_to = Position(beyond.first.0 - 1);
                fetched.events.retain(|event| event.position <= fetched.scanned_to);
                undecided = undecided.up_to(fetched.scanned_to);
            }
            Ok(OvertakingFetch { fetched, undecided })
        })
        .await
    }

    async fn fetch_late(&self, late: LateFetch<'_>) -> Result<FetchedLate, StoreError> {
        self.call(Operation::FETCH, |log| {
            let LateFetch { group, tenant, subscription, partition, .. } = late;
            let LateFetch { undecided, safe, max_events, .. } = late;
            let mut events = Vec::new();
            let mut looked_to = Position(i64::MAX);
            for range in undecided.as_slice() {
                let before = Position(range.first.0 - 1);
                let theirs = log.for_group(group, tenant, subscription, before, range.last);
                for stored in theirs.filter(|stored| stored.is_in(partition)) {
                    let LogEvent { position, event, .. } = &stored.event;
                    if events.len() < max_events {
                        events.push(LateEvent {
                            position: *position,
                            key: event.partitionkey.clone(),
                            deliver_after: event.deliver_after,
                        });
                    } else {
                        looked_to = looked_to.min(Position(position.0 - 1));
                    }
                }
            }
            let seen = undecided.up_to(looked_to).without(&log.positions());
            let undecided = seen.and(undecided.above(looked_to)).above(safe.min(looked_to));
            Ok(FetchedLate { events, undecided, has_more: looked_to < Position(i64::MAX) })
        })
        .await
    }
}

impl Log {
    pub(super) fn append(&mut self, tenant: &Tenant, event: Event) -> Position {
        self.append_for(tenant, None, None, event)
    }

    pub(super) fn append_for(
        &mut self,
        tenant: &Tenant,
        deliver_to: Option<GroupName>,
        digest: Option<Digest>,
        event: Event,
    ) -> Position {
        self.last_position += 1;
        let position = self.last_position();
        let event = LogEvent { position, deliver_to, digest, event: whole_microseconds(event) };
        let stored = Stored { tenant: tenant.clone(), published_at: Timestamp::now(), event };
        self.events.insert(position.0, stored);
        position
    }

    pub(super) fn place(&self, start: Start) -> Result<Position, StoreError> {
        let last = self.last_position();
        match start {
            Start::Earliest => Ok(Position::ZERO),
            Start::Latest => Ok(last),
            Start::Position(position) if position > last => {
                Err(refusals::place_beyond_the_log(position, last))
            }
            Start::Position(position) => Ok(position),
            Start::Time(time) => Ok(self
                .events
                .values()
                .find(|stored| stored.event.event.time >= microseconds(time))
                .map_or(last, |stored| Position(stored.event.position.0 - 1))),
        }
    }

    pub(super) fn beginning(&self) -> Beginning {
        let (gone, events) = self.gone;
        let first = self.events.keys().next().map(|first| Position(*first));
        Beginning { gone, events, first }
    }

    pub(super) fn safe_position(&self) -> Position {
        self.held.keys().next().map_or(self.last_position(), |first| Position(first - 1))
    }

    /// Where an event is that can be seen.
    pub(super) fn positions(&self) -> Vec<Position> {
        self.events.keys().copied().map(Position).collect()
    }

    pub(super) fn fetch(&self, fetch: &Fetch<'_>) -> Result<Fetched, StoreError> {
        let Fetch { group, tenant, subscription, partition, after, up_to, .. } = *fetch;
        let Fetch { max_events, max_bytes, .. } = *fetch;
        let (mut events, mut bytes) = (Vec::<Arc<LogEvent>>::new(), 0_usize);
        if max_events == 0 {
            return Ok(Fetched { events, scanned_to: after });
        }
        let theirs = self.for_group(group, tenant, subscription, after, up_to);
        for stored in theirs.filter(|stored| stored.is_in(partition)) {
            if self.unreadable.contains(&stored.event.position.0) {
                let last = events.last().ok_or_else(|| unreadable(&stored.event))?;
                let scanned_to = last.position;
                return Ok(Fetched { events, scanned_to });
            }
            bytes += stored.event.bytes();
            events.push(Arc::new(stored.event.clone()));
            if events.len() >= max_events || bytes >= max_bytes {
                return Ok(Fetched { events, scanned_to: stored.event.position });
            }
        }
        Ok(Fetched { events, scanned_to: up_to.max(after) })
    }

    /// What a group receives of a part of the log.
    pub(super) fn for_group<'a>(
        &'a self,
        name: &'a GroupName,
        tenant: &'a Tenant,
        subscription: &'a Subscription,
        after: Position,
        up_to: Position,
    ) -> impl Iterator<Item = &'a Stored> {
        let range = (after < up_to).then(|| self.events.range(after.0 + 1..=up_to.0));
        range.into_iter().flatten().map(|(_, stored)| stored).filter(move |stored| {
            stored.tenant == *tenant
                && match &stored.event.deliver_to {
                    Some(only) => only.as_str() == name.whole(),
                    None => subscription.matches(&stored.event.event.event_type),
                }
        })
    }

    /// How much the retention wants to go, and the group that is furthest behind, of a
    /// tenant's or of all.
    pub(super) fn due(&self, tenant: Option<&Tenant>) -> (usize, Option<(&GroupName, Position)>) {
        let Retention { max_age, max_bytes } = self.retention;
        let now = Timestamp::now();
        let length = |stored: &Stored| stored.event.event.data.as_ref().map_or(0, Vec::len) as u64;
        let mut bytes: u64 = self.events.values().map(length).sum();
        let due = self.events.values().take_while(|stored| {
            let age = now.duration_since(stored.published_at).unsigned_abs();
            let is_due = max_age.is_some_and(|most| age >= most)
                || max_bytes.is_some_and(|most| bytes > most);
            bytes -= length(stored);
            is_due
        });
        let due = due.count();
        // What is split has no cursor of its own.
        let in_use = |(name, group): &(&GroupName, &Group)| {
            !group.unpinned
                && tenant.is_none_or(|tenant| group.tenant == *tenant)
                && (group.partitions <= 1 || name.partition_number().is_some())
        };
        let behind = self.groups.iter().filter(in_use).map(|(name, group)| {
            let mut redeliveries = group.redeliveries.keys();
            let first = redeliveries.find(|position| !group.deferred.contains_key(position));
            let again = first.map_or(group.position, |first| Position(first.0 - 1));
            (name, group.position.min(again))
        });
        (due, behind.min_by_key(|(_, position)| *position))
    }

    pub(super) fn pinned_by(&self, tenant: Option<&Tenant>) -> Option<LogPin> {
        let (due, behind) = self.due(tenant);
        let (group, position) = behind?;
        let pinned = self.events.values().take(due).filter(|s| s.event.position > position);
        let lengths: Vec<usize> =
            pinned.map(|s| s.event.event.data.as_ref().map_or(0, Vec::len)).collect();
        let bytes = lengths.iter().sum::<usize>() as u64;
        (!lengths.is_empty()).then(|| LogPin {
            group: group.clone(),
            position,
            bytes,
            bytes_is_at_least: false,
        })
    }

    pub(super) fn enforce_retention(&mut self, retention: Retention) -> Enforced {
        self.retention = retention;
        let (due, behind) = self.due(None);
        let needed = behind.map_or(Position(i64::MAX), |(_, position)| position);
        let due: Vec<i64> = self.events.keys().take(due).copied().collect();
        let pinned = self.pinned_by(None);
        let mut enforced =
            Enforced { pinned_by: pinned.map(|pin| pin.group), ..Enforced::default() };
        for position in due.into_iter().filter(|position| *position <= needed.0) {
            self.gone = (Position(position), self.gone.1 + 1);
            self.events.remove(&position);
            enforced.dropped_up_to = Some(Position(position));
        }
        enforced
    }
}

/// What a database's constraints refuse.
pub(super) fn well_formed(events: &[Event]) -> Result<(), StoreError> {
    // A day more than the host allows, for clocks that differ.
    let most = Timestamp::now().checked_add(Duration::from_hours(367 * 24));
    for event in events {
        event.check().map_err(|error| StoreError::Refused(error.to_string()))?;
        if event.deliver_after.is_some_and(|time| most.as_ref().is_ok_and(|most| time > *most)) {
            let broken = "CHECK constraint failed: deliver_after_is_within_a_year";
            return Err(StoreError::Refused(broken.to_owned()));
        }
    }
    Ok(())
}

pub(super) fn unreadable(event: &LogEvent) -> StoreError {
    StoreError::Unavailable(format!("the event at {} cannot be read", event.position))
}

pub(super) fn whole_microseconds(mut event: Event) -> Event {
    event.time = microseconds(event.time);
    event.deliver_after = event.deliver_after.map(microseconds);
    event
}
