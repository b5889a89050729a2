//! What `host check` and `host status` print of schedules.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::output::{self, short};
use event_host_core::event::Tenant;
use event_host_schedules::plan::MISSED_AFTER;
use event_host_schedules::{Schedule, Timetable};
use event_host_store::ScheduleStatus;

/// How many of the ticks that come `host check` shows.
const SHOWN: usize = 3;

/// The ticks of a schedule that come next.
fn next_ticks(schedule: &Schedule, now: Timestamp) -> Vec<Timestamp> {
    let mut after = now;
    let ticks = std::iter::from_fn(|| {
        after = schedule.timetable.next_after(after)?;
        Some(after)
    });
    ticks.take(SHOWN).collect()
}

/// The schedules of the settings, for JSON.
pub(super) fn checked(schedules: &[Schedule]) -> Vec<Value> {
    let now = Timestamp::now();
    let to_json = |schedule: &Schedule| {
        let mut json = json!({
            "schedule": schedule.name,
            "cron": schedule.timetable.cron(),
            "timezone": schedule.timetable.zone(),
            "type": schedule.payload.event_type,
            "next_ticks": next_ticks(schedule, now),
        });
        if !schedule.tenant.is_none() {
            json["tenant"] = json!(schedule.tenant);
        }
        json
    };
    schedules.iter().map(to_json).collect()
}

/// Prints the schedules of the settings, each with the ticks that come next.
pub(super) fn print_checked(schedules: &[Schedule]) -> std::io::Result<()> {
    if schedules.is_empty() {
        return Ok(());
    }
    let now = Timestamp::now();
    let tenants = schedules.iter().any(|schedule| !schedule.tenant.is_none());
    let owner = tenants.then_some("tenant");
    let headers = ["schedule"].into_iter().chain(owner);
    let mut table = output::table(headers.chain(["type", "cron", "timezone", "next"]));
    for schedule in schedules {
        let timetable = &schedule.timetable;
        let owner = tenants.then(|| schedule.tenant.to_string());
        let ticks = next_ticks(schedule, now).into_iter().map(|tick| timetable.in_zone(tick));
        table.add_row([schedule.name.to_string()].into_iter().chain(owner).chain([
            schedule.payload.event_type.clone(),
            timetable.cron(),
            timetable.zone().to_owned(),
            ticks.collect::<Vec<_>>().join("\n"),
        ]));
    }
    output::line("")?;
    output::print_table(&table)
}

/// A schedule of the database, and what follows from where it stands.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    #[serde(flatten)]
    status: ScheduleStatus,
    /// The tick that comes next; none where this machine does not know the zone.
    next_tick: Option<Timestamp>,
    /// The tick that is due and that no host has published in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    due_since: Option<Timestamp>,
    #[serde(skip)]
    timetable: Option<Timetable>,
}

impl Shown {
    pub(super) fn of(status: ScheduleStatus, now: Timestamp) -> Self {
        let timetable = Timetable::new(&status.cron, &status.timezone).ok();
        let after = |instant| timetable.as_ref()?.next_after(instant);
        let late = now.saturating_sub(MISSED_AFTER).unwrap_or(now);
        let due_since = after(status.done_to).filter(|tick| *tick < late);
        let next_tick = after(status.done_to.max(late));
        Self { due_since, next_tick, status, timetable }
    }

    /// An instant in the zone of the schedule, or in UTC where that is not known here.
    fn time(&self, instant: Option<Timestamp>) -> String {
        match (instant, &self.timetable) {
            (None, _) => "-".to_owned(),
            (Some(instant), Some(timetable)) => timetable.in_zone(instant),
            (Some(instant), None) => instant.to_string(),
        }
    }

    /// What is wrong with it, if anything is.
    fn trouble(&self) -> Option<String> {
        let ScheduleStatus { name, timezone, .. } = &self.status;
        if self.timetable.is_none() {
            return Some(format!(
                "{name}: this machine does not know its times in the zone {}",
                short(timezone, 100)
            ));
        }
        let due = self.due_since?;
        Some(format!(
            "{name}: a tick is due since {}, and no host runs it; `host run` does",
            self.time(Some(due))
        ))
    }
}

/// Prints the schedules of the database, and what is wrong with them.
pub(super) fn print(schedules: &[Shown]) -> std::io::Result<()> {
    if schedules.is_empty() {
        return Ok(());
    }
    let tenants = schedules.iter().any(|shown| shown.status.tenant != Tenant::none());
    let owner = tenants.then_some("tenant");
    let headers = ["schedule"].into_iter().chain(owner);
    let mut table = output::table(headers.chain(["cron", "timezone", "last tick", "next tick"]));
    for shown in schedules {
        let ScheduleStatus { name, tenant, cron, timezone, last_tick, .. } = &shown.status;
        let owner = tenants.then(|| tenant.to_string());
        table.add_row([name.to_string()].into_iter().chain(owner).chain([
            short(cron, 100),
            short(timezone, 100),
            shown.time(*last_tick),
            shown.time(shown.next_tick),
        ]));
    }
    output::line("")?;
    output::print_table(&table)?;
    let troubles: Vec<String> = schedules.iter().filter_map(Shown::trouble).collect();
    if !troubles.is_empty() {
        output::line("")?;
        for trouble in troubles {
            output::line(trouble)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(cron: &str, zone: &str, done_to: &str, now: &str) -> Shown {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let status = ScheduleStatus {
            name: "report".parse().unwrap(),
            tenant: Tenant::none(),
            cron: cron.to_owned(),
            timezone: zone.to_owned(),
            done_to: at(done_to),
            last_tick: None,
            seen_at: at(done_to),
        };
        Shown::of(status, at(now))
    }

    #[test]
    fn the_next_tick_is_shown_and_one_that_nobody_publishes() {
        let of = |done_to, now| {
            let shown = shown("0 9 * * *", "Europe/Berlin", done_to, now);
            (shown.time(shown.next_tick), shown.trouble())
        };
        let next = |day| format!("2026-07-0{day} 09:00:00 +02");
        assert_eq!(of("2026-07-01T07:00:00Z", "2026-07-01T12:00:00Z"), (next(2), None));
        assert_eq!(of("2026-07-01T07:00:00Z", "2026-07-02T07:00:30Z"), (next(2), None));
        let (later, trouble) = of("2026-07-01T07:00:00Z", "2026-07-04T12:00:00Z");
        assert_eq!(later, next(5));
        let told = "report: a tick is due since 2026-07-02 09:00:00 +02, and no host runs it";
        assert!(trouble.is_some_and(|trouble| trouble.starts_with(told)));
    }

    #[test]
    fn a_zone_that_is_not_known_here_is_said() {
        let shown = shown("0 9 * * *", "Mars/Base", "2026-07-01T07:00:00Z", "2026-07-01T12:00:00Z");
        assert_eq!(shown.time(shown.next_tick), "-");
        let trouble = shown.trouble().unwrap();
        assert_eq!(trouble, "report: this machine does not know its times in the zone Mars/Base");
    }
}
