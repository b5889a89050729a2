//! Settlements in memory.

use async_trait::async_trait;
use jiff::Timestamp;

use super::log::{well_formed, whole_microseconds};
use super::operation::Operation;
use super::{Kept, Log, MemoryStore, microseconds};
use crate::{
    Cursor, DeadLetter, DeadLetterId, Due, DueFetch, GroupState, Head, MOST_COUNTED, Redelivery,
    Settled, Settlement, Settlements, StoreError, UndecidedChange, dead_letter_bytes,
};
use event_host_core::event::{Epoch, GroupName, LogEvent, Position, Tenant};

#[allow(missing_docs, reason = "each is the call of the same name")]
impl Operation {
    pub const SETTLE: Self = Self::writing("settle");
    pub const REDELIVERIES: Self = Self::reading("redeliveries");
    pub const DUE: Self = Self::reading("due");
    pub const DEFERRED: Self = Self::reading("deferred");
    pub const CURSOR: Self = Self::reading("cursor");
    pub const SET_NOTE: Self = Self::writing("set_note");
    pub const PAUSE: Self = Self::writing("pause");
    pub const RECORD_TRIP: Self = Self::writing("record_trip");
    pub const TENANT_DEAD_LETTERS: Self = Self::reading("tenant_dead_letters");
}

#[async_trait]
impl Settlements for MemoryStore {
    async fn settle(&self, settlement: &Settlement) -> Result<Settled, StoreError> {
        let settlement = settlement.clone();
        self.write(Operation::SETTLE, move |log| log.settle(&settlement)).await
    }

    async fn cursor(&self, group: &GroupName) -> Result<Cursor, StoreError> {
        self.call(Operation::CURSOR, |log| {
            let group = log.group(group)?;
            Ok(Cursor {
                epoch: group.epoch,
                settled: group.settled,
                position: group.position,
                head: group.head.clone(),
                mark: group.mark,
                undecided: group.undecided.clone(),
            })
        })
        .await
    }

    async fn redeliveries(&self, group: &GroupName) -> Result<Vec<Redelivery>, StoreError> {
        self.call(Operation::REDELIVERIES, |log| {
            let Some(group) = log.groups.get(group) else { return Ok(Vec::new()) };
            let mut all = group.redeliveries.clone();
            let marked = group.mark.and_then(|mark| group.deferred.get_key_value(&mark.position));
            if let (Some(mark), Some((position, kept))) = (group.mark, marked) {
                let first = || Redelivery { attempt: mark.attempt, ..kept.redelivery(*position) };
                all.entry(*position).or_insert_with(first);
            }
            Ok(all.into_values().collect())
        })
        .await
    }

    async fn due(&self, due: DueFetch<'_>) -> Result<Due, StoreError> {
        self.call(Operation::DUE, |log| {
            let Some(group) = log.groups.get(due.group) else { return Ok(Due::default()) };
            let now = microseconds(due.now);
            let mut events: Vec<Redelivery> = group
                .waiting()
                .filter(|(position, kept)| kept.due_at <= now && **position <= due.up_to)
                .filter(|(position, kept)| Some((kept.due_at, **position)) > due.after)
                .map(|(position, kept)| kept.redelivery(*position))
                .collect();
            events.sort_by_key(|event| (event.due_at, event.position));
            events.truncate(due.max_events);
            let next = group.deferred.values().map(|kept| kept.due_at).filter(|at| *at > now).min();
            Ok(Due { events, next })
        })
        .await
    }

    async fn deferred(&self, group: &GroupName) -> Result<i64, StoreError> {
        self.call(Operation::DEFERRED, |log| {
            let count = log.groups.get(group).map_or(0, |group| group.waiting().count());
            Ok(i64::try_from(count).unwrap_or(i64::MAX).min(MOST_COUNTED))
        })
        .await
    }

    async fn record_trip(
        &self,
        group: &GroupName,
        epoch: Epoch,
        reason: Option<&str>,
    ) -> Result<Settled, StoreError> {
        self.call(Operation::RECORD_TRIP, |log| {
            let led = log.group_mut(group).ok().filter(|group| group.epoch == epoch);
            let Some(group) = led else { return Ok(Settled::NotLeader) };
            let (from, to) = match reason {
                Some(_) => (GroupState::Running, GroupState::Tripped),
                None => (GroupState::Tripped, GroupState::Running),
            };
            if group.state == from {
                group.state = to;
                group.reason = reason.map(str::to_owned);
            }
            Ok(Settled::Committed)
        })
        .await
    }

    async fn pause(&self, group: &GroupName, reason: &str) -> Result<(), StoreError> {
        self.call(Operation::PAUSE, |log| {
            log.group(group)?;
            for row in log.rows_of_mut(group) {
                row.state = GroupState::Paused;
                row.reason = Some(reason.to_owned());
            }
            Ok(())
        })
        .await
    }

    async fn set_note(&self, groups: &[GroupName], note: Option<&str>) -> Result<(), StoreError> {
        self.call(Operation::SET_NOTE, |log| {
            for group in groups {
                match note {
                    Some(note) => {
                        if let Ok(group) = log.group_mut(group) {
                            group.note = Some(note.to_owned());
                        }
                    }
                    None => {
                        log.rows_of_mut(group).for_each(|row| row.note = None);
                        if let Ok(row) = log.group_mut(group) {
                            row.note = None;
                        }
                    }
                }
            }
            Ok(())
        })
        .await
    }

    async fn tenant_dead_letters(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        self.call(Operation::TENANT_DEAD_LETTERS, |log| {
            let theirs = log.dead_letters.values().filter(|letter| letter.tenant == *tenant);
            Ok(i64::try_from(theirs.count()).unwrap_or(i64::MAX))
        })
        .await
    }

    async fn tenant_dead_letter_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        self.call(Operation::TENANT_DEAD_LETTERS, |log| {
            let theirs = log.dead_letters.values().filter(|letter| letter.tenant == *tenant);
            let bytes: usize =
                theirs.map(|letter| dead_letter_bytes(&letter.event, &letter.failure)).sum();
            Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
        })
        .await
    }
}

impl Log {
    pub(super) fn settle(&mut self, settlement: &Settlement) -> Result<Settled, StoreError> {
        let redeliveries = settlement.redelivery_changes()?;
        let Settlement { group, epoch, number, .. } = settlement;
        if self.led_after(group, *epoch, number - 1).is_none() {
            return Ok(Settled::NotLeader);
        }
        let unstorable = |error: StoreError| StoreError::Unstorable(error.to_string());
        well_formed(&settlement.emits).map_err(unstorable)?;
        if let Some(why) = self.refuses.as_ref().and_then(|refuses| refuses(settlement)) {
            return Err(StoreError::Unstorable(why));
        }
        let taken_over: Vec<Kept> = redeliveries
            .deferred
            .iter()
            .filter_map(|one| {
                let event = self.events.get(&one.position.0)?.event.clone();
                Some(Kept { due_at: microseconds(one.due_at), late: one.late, event })
            })
            .collect();
        let Some(group) = self.led_after(group, *epoch, number - 1) else {
            return Ok(Settled::NotLeader);
        };
        for kept in taken_over {
            group.deferred.entry(kept.event.position).or_insert(kept);
        }
        for one in redeliveries.deferred {
            if group.deferred.contains_key(&one.position) {
                group.redeliveries.remove(&one.position);
            }
        }
        group.settled = *number;
        group.position = settlement.position;
        group.head = settlement.head.as_ref().map(stored_head);
        group.mark = settlement.mark;
        for position in redeliveries.over {
            group.redeliveries.remove(&Position(position));
            group.deferred.remove(&Position(position));
        }
        for redelivery in redeliveries.set {
            let stored =
                Redelivery { due_at: microseconds(redelivery.due_at), ..redelivery.clone() };
            group.redeliveries.insert(stored.position, stored);
        }
        group.fruitless = 0;
        if let Some(failures) = &settlement.failures {
            group.failures.clone_from(failures);
        }
        if let Some(UndecidedChange { undecided, late }) = &settlement.undecided {
            group.undecided.clone_from(undecided);
            group.late_events = group.late_events.saturating_add(*late);
        }
        let sum = |sum: i64, more: usize| sum.saturating_add_unsigned(more as u64);
        group.handled_events = group.handled_events.saturating_add_unsigned(settlement.handled);
        group.dead_events = sum(group.dead_events, settlement.dead_letters.len());
        group.settled_at = Some(Timestamp::now());
        let tenant = group.tenant.clone();
        for dead in &settlement.dead_letters {
            self.last_dead_letter += 1;
            let id = DeadLetterId(self.last_dead_letter);
            let letter = DeadLetter {
                id,
                group: settlement.group.group(),
                tenant: tenant.clone(),
                event: LogEvent {
                    event: whole_microseconds(dead.event.event.clone()),
                    digest: None,
                    ..dead.event.clone()
                },
                attempts: dead.attempts,
                failure: dead.failure.clone(),
                digest: dead.digest.clone(),
                dead_at: microseconds(dead.dead_at),
            };
            self.dead_letters.insert(id.0, letter);
        }
        for event in &settlement.emits {
            self.append(&tenant, event.clone());
        }
        for write in &settlement.state {
            let key = (settlement.group.group(), write.scope.clone(), write.key.clone());
            match &write.value {
                Some(value) => self.state.insert(key, value.clone()),
                None => self.state.remove(&key),
            };
        }
        Ok(Settled::Committed)
    }
}

fn stored_head(head: &Head) -> Head {
    Head { due_at: microseconds(head.due_at), ..head.clone() }
}
