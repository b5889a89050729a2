//! A schedule: its name, its timetable, and the event of each tick.

use jiff::Timestamp;

use crate::plan::Missed;
use crate::timetable::Timetable;
use event_host_core::event::json::InvalidEvent;
use event_host_core::event::{Event, ScheduleName, Tenant};
use event_host_store::ScheduleRegistration;

/// A schedule as the settings have it.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Its name.
    pub name: ScheduleName,
    /// Whose events it publishes.
    pub tenant: Tenant,
    /// When its ticks are.
    pub timetable: Timetable,
    /// What becomes of ticks that no host has published in time.
    pub missed: Missed,
    /// What stands in each event.
    pub payload: Payload,
}

/// What stands in the event of each tick of a schedule, whichever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// The attribute `type`.
    pub event_type: String,
    /// The attribute `source`.
    pub source: String,
    /// The attribute `subject`.
    pub subject: Option<String>,
    /// The attribute `partitionkey`.
    pub partitionkey: Option<String>,
    /// The attribute `datacontenttype`.
    pub datacontenttype: Option<String>,
    /// The data.
    pub data: Option<Vec<u8>>,
}

impl Payload {
    /// The source of a schedule's events that names none.
    #[must_use]
    pub fn default_source(name: &ScheduleName) -> String {
        format!("/schedules/{name}")
    }
}

impl Schedule {
    /// The event of a tick. Its id names the schedule and the tick, and its time is the
    /// tick, however late it is published.
    #[must_use]
    pub fn event(&self, tick: Timestamp) -> Event {
        let Payload { event_type, source, subject, partitionkey, datacontenttype, data } =
            &self.payload;
        Event {
            subject: subject.clone(),
            partitionkey: partitionkey.clone(),
            datacontenttype: datacontenttype.clone(),
            data: data.clone(),
            ..Event::new(
                format!("{}:{tick}", self.name),
                source.as_str(),
                event_type.as_str(),
                tick,
            )
        }
    }

    /// Refuses a schedule whose events no store would take.
    ///
    /// # Errors
    /// With the rule that its events break.
    pub fn check(&self) -> Result<(), InvalidEvent> {
        self.event(Timestamp::UNIX_EPOCH).check()
    }

    /// What a store is told of it.
    #[must_use]
    pub fn registration(&self) -> ScheduleRegistration {
        ScheduleRegistration {
            name: self.name.clone(),
            tenant: self.tenant.clone(),
            cron: self.timetable.cron(),
            timezone: self.timetable.zone().to_owned(),
        }
    }
}
