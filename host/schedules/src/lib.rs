//! Schedules: events that come by the clock.
//!
//! A schedule is a cron expression in a time zone, and the event that each of its ticks
//! publishes. Three parts, each below the next:
//! - [`Timetable`] says when the ticks are. Pure.
//! - [`plan`](plan::plan) says which of them are to be published now, and which were
//!   missed. Pure.
//! - [`Scheduler`] is the one task of a host that waits for them and publishes them.
//!
//! Every host that has a schedule runs it, and none leads it: the store moves the row of
//! the schedule from the ticks that a host has seen to those that it publishes, and
//! appends their events in the same transaction. Of hosts that do so at once one finds the
//! row as it expects it. So each tick is published once, whichever hosts die, and no tick
//! waits for another leader. How a row is kept is the store's business
//! ([`event_host_store::Schedules`]).

mod cron;
pub mod plan;
mod schedule;
mod scheduler;
mod timetable;

pub use cron::InvalidCron;
pub use plan::Missed;
pub use schedule::{Payload, Schedule};
pub use scheduler::Scheduler;
pub use timetable::{InvalidTimetable, Timetable};
