//! The task of a host that waits for the ticks of its schedules and publishes them.
//!
//! It looks at the time of day again and again, and at least every 10 seconds: the clock
//! of a machine may be put right, and stand still with the machine. Where the database is
//! not there it tries again, and publishes what is due then.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::plan::{Plan, plan};
use crate::schedule::Schedule;
use event_host_core::clock::Clock;
use event_host_core::event::{Event, ScheduleName};
use event_host_core::repeats::Repeats;
use event_host_core::troubles::Troubles;
use event_host_store::schedules::FURTHEST_AHEAD;
use event_host_store::{Registered, Schedules, StoreError, Ticked, Ticks};

/// The task waits no longer than this before it looks at the clock.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How often the task records which schedules this host has: each 10 minutes.
const RECORD_EVERY: Duration = Duration::from_secs(600);

/// How long the task waits after a failure: at first, and at most.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// A schedule that failed by itself is tried again after this.
const RETRY: Duration = Duration::from_secs(1);

/// How much too early the clock of a host may be, by the database's, before that is said.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(5);

/// What `status` calls it when the schedules do not run.
const TROUBLE: &str = "cannot run the schedules";

/// Runs the schedules of one host.
#[derive(Clone)]
pub struct Scheduler {
    /// The database.
    pub store: Arc<dyn Schedules>,
    /// Tells the time of day.
    pub clock: Arc<dyn Clock>,
    /// What this host is troubled by.
    pub troubles: Troubles,
    /// The schedules, as the settings have them now.
    pub schedules: watch::Receiver<Arc<[Schedule]>>,
}

/// How far a schedule is.
struct Standing {
    schedule: Schedule,
    /// Each tick up to here is done; `None` before the schedule is registered.
    done_to: Option<Timestamp>,
    /// When the next tick is due.
    next: Option<Timestamp>,
    /// Not before this: the database's clock is behind, or it failed.
    not_before: Option<Instant>,
}

impl Scheduler {
    /// Runs until the stop. What is under way then is committed whole or not at all.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(mut self) {
        let mut standings = HashMap::new();
        let mut failures = Repeats::default();
        let mut delay = FIRST_DELAY;
        let mut record_at = Instant::now();
        loop {
            let schedules = Arc::clone(&self.schedules.borrow_and_update());
            take_over(&mut standings, &schedules);
            let (wait, failed) = match self.step(&mut standings, &mut record_at).await {
                Ok((wait, failed)) => {
                    delay = FIRST_DELAY;
                    (wait, failed)
                }
                Err(why) => {
                    let wait = delay;
                    delay = (delay * 2).min(LONGEST_DELAY);
                    (wait, Some(why))
                }
            };
            match failed {
                None => {
                    self.troubles.clear(TROUBLE);
                    if failures.over() {
                        info!("the schedules run again");
                    }
                }
                Some(why) => {
                    self.troubles.set(TROUBLE, &why);
                    if failures.is_news(&why) {
                        warn!("{TROUBLE}, and tries again: {why}");
                    }
                }
            }
            tokio::select! {
                // Once they cannot change any more, the wait is all there is.
                Ok(()) = self.schedules.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Does what is due, and gives how long to wait for what comes next, with what failed of
    /// one schedule alone, and does not delay the others.
    async fn step(
        &self,
        standings: &mut HashMap<ScheduleName, Standing>,
        record_at: &mut Instant,
    ) -> Result<(Duration, Option<StoreError>), StoreError> {
        let mut failed = None;
        for standing in standings.values_mut() {
            match self.publish_what_is_due(standing).await {
                // Such as a row that a frozen host holds.
                Err(why @ (StoreError::Busy(_) | StoreError::Refused(_))) => {
                    standing.not_before = Some(Instant::now() + RETRY);
                    failed.get_or_insert(why);
                }
                outcome => outcome?,
            }
        }
        if !standings.is_empty() && *record_at <= Instant::now() {
            let names: Vec<ScheduleName> = standings.keys().cloned().collect();
            self.store.record_schedules(&names).await?;
            *record_at = Instant::now() + RECORD_EVERY;
        }
        let now = self.clock.now();
        let waits = standings.values().filter_map(|standing| {
            let until = standing.next.map(|next| next.duration_since(now));
            let until = until.map(|until| Duration::try_from(until).unwrap_or_default());
            let not_before = standing.not_before.map(|at| at.duration_since(Instant::now()));
            // The later of the two that are there.
            until.max(not_before)
        });
        Ok((waits.min().unwrap_or(LOOK_EVERY).min(LOOK_EVERY), failed))
    }

    /// Publishes what is due of one schedule, until nothing is.
    async fn publish_what_is_due(&self, standing: &mut Standing) -> Result<(), StoreError> {
        if standing.not_before.is_some_and(|at| at > Instant::now()) {
            return Ok(());
        }
        standing.not_before = None;
        // The time by the database's clock, once it has turned out that this one is ahead.
        let mut by_database: Option<Timestamp> = None;
        loop {
            let Standing { schedule, done_to, .. } = &*standing;
            let now = by_database.take().unwrap_or_else(|| self.clock.now());
            let after = match *done_to {
                // The row is of a time that is not there any more.
                Some(at) if at.duration_since(now) <= FURTHEST_AHEAD => at,
                _ => {
                    let registered = self.register(schedule).await?;
                    standing.done_to = Some(registered);
                    continue_at(standing, registered);
                    if registered.duration_since(now) > FURTHEST_AHEAD {
                        // The database's clock is as far ahead as that.
                        return Ok(());
                    }
                    continue;
                }
            };
            if standing.next.is_none_or(|next| next > now) {
                return Ok(());
            }
            let Some(plan) = plan(&schedule.timetable, after, now, schedule.missed) else {
                continue_at(standing, after);
                return Ok(());
            };
            match self.publish(schedule, after, &plan).await? {
                Ticked::Published => continue_at(standing, plan.done_to),
                Ticked::WasAt(at) => {
                    debug!(schedule = %schedule.name, "another host has published the tick");
                    continue_at(standing, at);
                }
                Ticked::NotRegistered => standing.done_to = None,
                Ticked::Early(by) => {
                    if by > CLOCKS_DIFFER {
                        warn!(
                            schedule = %schedule.name,
                            "the clock of this machine is {} s ahead of the database's, by which \
                             schedules tick",
                            by.as_secs()
                        );
                    }
                    let there = plan.done_to.saturating_sub(by).unwrap_or(plan.done_to);
                    let due = standing.next.unwrap_or(plan.done_to);
                    if due <= there {
                        // The plan went too far: some of it is due there too.
                        by_database = Some(there);
                        continue;
                    }
                    let wait = Duration::try_from(due.duration_since(there)).unwrap_or_default();
                    standing.not_before = Some(Instant::now() + wait.max(Duration::from_millis(1)));
                    return Ok(());
                }
            }
        }
    }

    async fn register(&self, schedule: &Schedule) -> Result<Timestamp, StoreError> {
        let registration = schedule.registration();
        let Registered { done_to, before } = self.store.register_schedule(&registration).await?;
        if let Some((cron, timezone)) = before {
            info!(
                schedule = %schedule.name,
                now = %schedule.timetable,
                before = format!("`{cron}` {timezone}"),
                "the schedule has other times, from now on"
            );
        }
        Ok(done_to)
    }

    async fn publish(
        &self,
        schedule: &Schedule,
        after: Timestamp,
        plan: &Plan,
    ) -> Result<Ticked, StoreError> {
        let events: Vec<Event> = plan.ticks.iter().map(|tick| schedule.event(*tick)).collect();
        let ticks = Ticks {
            schedule: &schedule.name,
            tenant: &schedule.tenant,
            after,
            done_to: plan.done_to,
            last: plan.ticks.last().copied(),
            events: &events,
        };
        let ticked = self.store.tick(ticks).await?;
        if ticked == Ticked::Published {
            let name = &schedule.name;
            for tick in &plan.ticks {
                debug!(schedule = %name, %tick, "published");
            }
            if plan.made_up > 0 || plan.leaves_out {
                info!(
                    schedule = %name,
                    since = %after,
                    published = plan.made_up,
                    left_out = plan.leaves_out,
                    "no host ran the schedule for a while: ticks were missed"
                );
            }
        }
        Ok(ticked)
    }
}

fn continue_at(standing: &mut Standing, done_to: Timestamp) {
    standing.done_to = Some(done_to);
    standing.next = standing.schedule.timetable.next_after(done_to);
}

/// Takes over the schedules that the settings have now. What has the times that it had
/// goes on where it is.
fn take_over(standings: &mut HashMap<ScheduleName, Standing>, schedules: &[Schedule]) {
    let mut before = std::mem::take(standings);
    for schedule in schedules {
        let known = before.remove(&schedule.name).filter(|known| {
            known.schedule.timetable == schedule.timetable
                && known.schedule.tenant == schedule.tenant
        });
        let standing = match known {
            Some(known) => Standing { schedule: schedule.clone(), ..known },
            None => {
                Standing { schedule: schedule.clone(), done_to: None, next: None, not_before: None }
            }
        };
        standings.insert(schedule.name.clone(), standing);
    }
}

#[cfg(test)]
mod tests;
