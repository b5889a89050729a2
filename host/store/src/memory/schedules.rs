//! Schedules in memory.

use async_trait::async_trait;
use jiff::Timestamp;

use super::log::well_formed;
use super::operation::Operation;
use super::{Log, MemoryStore, microseconds};
use crate::schedules::{FORGOTTEN_AFTER, registered_to};
use crate::{
    Registered, ScheduleRegistration, ScheduleStatus, Schedules, StoreError, Ticked, Ticks,
};
use event_host_core::event::ScheduleName;

#[allow(missing_docs, reason = "each is the call of the same name")]
impl Operation {
    pub const REGISTER_SCHEDULE: Self = Self::writing("register_schedule");
    pub const TICK: Self = Self::writing("tick");
    pub const RECORD_SCHEDULES: Self = Self::writing("record_schedules");
    pub const SCHEDULES: Self = Self::reading("schedules");
}

#[async_trait]
impl Schedules for MemoryStore {
    async fn register_schedule(
        &self,
        schedule: &ScheduleRegistration,
    ) -> Result<Registered, StoreError> {
        let now = microseconds(self.now());
        self.call(Operation::REGISTER_SCHEDULE, |log| Ok(log.register(schedule, now))).await
    }

    async fn tick(&self, ticks: Ticks<'_>) -> Result<Ticked, StoreError> {
        let now = self.now();
        self.call(Operation::TICK, |log| {
            well_formed(ticks.events)?;
            let found = log.schedules.get_mut(ticks.schedule);
            let Some(schedule) =
                found.filter(|found| found.done_to == ticks.after && ticks.done_to <= now)
            else {
                let done_to = log.schedules.get(ticks.schedule).map(|found| found.done_to);
                return Ok(ticks.refused(done_to, now));
            };
            schedule.done_to = microseconds(ticks.done_to);
            schedule.last_tick = ticks.last.or(schedule.last_tick);
            schedule.seen_at = microseconds(now);
            for event in ticks.events {
                log.append(ticks.tenant, event.clone());
            }
            Ok(Ticked::Published)
        })
        .await
    }

    async fn record_schedules(&self, schedules: &[ScheduleName]) -> Result<(), StoreError> {
        let now = microseconds(self.now());
        self.call(Operation::RECORD_SCHEDULES, |log| {
            for name in schedules {
                if let Some(schedule) = log.schedules.get_mut(name) {
                    schedule.seen_at = now;
                }
            }
            log.schedules.retain(|_, one| now.duration_since(one.seen_at) < FORGOTTEN_AFTER);
            Ok(())
        })
        .await
    }

    async fn schedules(&self) -> Result<Vec<ScheduleStatus>, StoreError> {
        self.call(Operation::SCHEDULES, |log| Ok(log.schedules.values().cloned().collect())).await
    }
}

impl Log {
    fn register(&mut self, schedule: &ScheduleRegistration, now: Timestamp) -> Registered {
        let ScheduleRegistration { name, tenant, cron, timezone } = schedule;
        let before = self.schedules.get(name);
        let is_same = before.is_some_and(|b| b.cron == *cron && b.timezone == *timezone);
        let done_to = before.map_or(now, |before| registered_to(before.done_to, is_same, now));
        let status = ScheduleStatus {
            name: name.clone(),
            tenant: tenant.clone(),
            cron: cron.clone(),
            timezone: timezone.clone(),
            done_to,
            last_tick: before.and_then(|before| before.last_tick),
            seen_at: now,
        };
        let before = self.schedules.insert(name.clone(), status);
        let before = before.filter(|_| !is_same).map(|before| (before.cron, before.timezone));
        Registered { done_to, before }
    }
}
