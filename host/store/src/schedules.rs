//! Schedules: up to which tick each is done.
//!
//! A schedule has a row, and the row moves over its ticks in the transactions that append
//! their events. Whoever moves it says from where, so of hosts that publish one tick at
//! once one does. No lock is held between two ticks, and no host is asked to lead.

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::StoreError;
use event_host_core::event::{Event, ScheduleName, Tenant};

/// A schedule of which this much lies behind is not believed: the clock was wrong when it
/// was done that far. A day, as no host is further ahead that has the right day.
pub const FURTHEST_AHEAD: SignedDuration = SignedDuration::from_hours(24);

/// For how long a schedule that no host has is remembered: 7 days. What was missed is made
/// up for less far back than that.
pub const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_hours(7 * 24);

/// A schedule as a host has it in its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleRegistration {
    /// Its name.
    pub name: ScheduleName,
    /// Whose events it publishes.
    pub tenant: Tenant,
    /// When its ticks are: a cron expression.
    pub cron: String,
    /// In which time zone.
    pub timezone: String,
}

/// Where a schedule stands that was registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// Each tick up to here is done.
    pub done_to: Timestamp,
    /// Expression and zone that it had, if they were others.
    pub before: Option<(String, String)>,
}

/// Ticks of a schedule, with the events that they publish.
#[derive(Debug, Clone, Copy)]
pub struct Ticks<'a> {
    /// Which schedule.
    pub schedule: &'a ScheduleName,
    /// Whose events.
    pub tenant: &'a Tenant,
    /// Up to where the schedule is done, as far as the host knows.
    pub after: Timestamp,
    /// Up to where it is done then.
    pub done_to: Timestamp,
    /// The last tick that publishes an event, if one does.
    pub last: Option<Timestamp>,
    /// The events, in the order of their ticks. None for ticks that are left out.
    pub events: &'a [Event],
}

/// What became of ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ticked {
    /// Their events are in the log.
    Published,
    /// Nothing was done: the schedule is done up to here.
    WasAt(Timestamp),
    /// Nothing was done: by the clock of the database it is this much too early.
    Early(SignedDuration),
    /// Nothing was done: the schedule is not registered.
    NotRegistered,
}

/// A schedule in the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScheduleStatus {
    /// Its name.
    pub name: ScheduleName,
    /// Whose events it publishes.
    pub tenant: Tenant,
    /// Its cron expression, as the host that registered it last has it.
    pub cron: String,
    /// Its time zone.
    pub timezone: String,
    /// Each tick up to here is done.
    pub done_to: Timestamp,
    /// The last tick that was published.
    pub last_tick: Option<Timestamp>,
    /// When a host last had it.
    pub seen_at: Timestamp,
}

/// Schedules, and the events of their ticks.
#[async_trait]
pub trait Schedules: Send + Sync + 'static {
    /// Registers a schedule, or one with another expression or zone, as done up to now.
    /// One that is as it was goes on where it stood, unless that is more than
    /// [`FURTHEST_AHEAD`] from now: then it is done up to now as well. Never moves a
    /// schedule back otherwise.
    async fn register_schedule(
        &self,
        schedule: &ScheduleRegistration,
    ) -> Result<Registered, StoreError>;

    /// Appends the events of ticks to the log and moves their schedule, in one transaction,
    /// if the schedule is done up to [`Ticks::after`], and not before the database's clock
    /// has reached [`Ticks::done_to`]. Waits for nothing once a position is drawn.
    async fn tick(&self, ticks: Ticks<'_>) -> Result<Ticked, StoreError>;

    /// Records that a host has these schedules, and forgets those that no host has had for
    /// [`FORGOTTEN_AFTER`].
    async fn record_schedules(&self, schedules: &[ScheduleName]) -> Result<(), StoreError>;

    /// Every schedule that is registered, by name.
    async fn schedules(&self) -> Result<Vec<ScheduleStatus>, StoreError>;
}

impl Ticks<'_> {
    /// What to say of ticks that were not published, by what the database has and its
    /// clock.
    #[must_use]
    pub fn refused(&self, done_to: Option<Timestamp>, now: Timestamp) -> Ticked {
        match done_to {
            None => Ticked::NotRegistered,
            Some(done_to) if done_to != self.after => Ticked::WasAt(done_to),
            Some(_) => Ticked::Early(self.done_to.duration_since(now)),
        }
    }
}

/// Up to where a schedule is done that is registered and stood somewhere before.
#[must_use]
pub fn registered_to(stood_at: Timestamp, is_same: bool, now: Timestamp) -> Timestamp {
    if stood_at.duration_since(now) > FURTHEST_AHEAD {
        now
    } else if is_same {
        stood_at
    } else {
        stood_at.max(now)
    }
}
