//! `host status`: what is stuck, and why.

use std::fmt::Display;

use bytesize::ByteSize;
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use super::output::{self, seconds, short};
use super::{Global, database, schedules};
use event_host_core::foreign::one_line;
use event_host_store::{
    Blocker, Counting, GroupState, GroupStatus, HostIdentity, HostStatus, Leader, LogPin, LogStatus,
};

#[derive(Debug, Args)]
pub(super) struct Status {
    /// Count everything, however long that takes; without it counting stops at
    /// 100,000 events, dead letters or retries
    #[arg(long)]
    exact: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let store = database::open(global).await?;
        let status = store.status_counted(counting(self.exact)).await?;
        let now = Timestamp::now();
        let known = store.schedules().await?.into_iter();
        let schedules: Vec<_> = known.map(|one| schedules::Shown::of(one, now)).collect();
        if self.json {
            output::json(&Shown { status, schedules })?;
        } else {
            print(&status)?;
            schedules::print(&schedules)?;
        }
        Ok(())
    }
}

/// What is shown as JSON.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    status: LogStatus,
    schedules: Vec<schedules::Shown>,
}

/// How exact numbers are to be.
pub(super) fn counting(is_exact: bool) -> Counting {
    if is_exact { Counting::EXACT } else { Counting::BOUNDED }
}

/// A number, of which there may be more.
pub(super) fn at_least(number: impl Display, is_at_least: bool) -> String {
    if is_at_least { format!("≥ {number}") } else { number.to_string() }
}

fn print(status: &LogStatus) -> std::io::Result<()> {
    let about = if status.events_is_estimate { "about " } else { "" };
    let (events, last) = (status.events, status.last_position);
    output::line(format!("log: {about}{events} events, last position {last}"))?;
    for holder in &status.held_up_by {
        output::line(format!("the log is held up by {holder}"))?;
    }
    if let Some(LogPin { group, position, bytes, bytes_is_at_least }) = &status.pinned_by {
        output::line(format!(
            "the log is pinned by group {group}, which stands at {position}: without it {} of old events would go",
            at_least(ByteSize::b(*bytes).display().iec(), *bytes_is_at_least)
        ))?;
    }
    for row in &status.unreadable {
        output::line(format!("{}: it is not shown", short(row, 400)))?;
    }
    if status.groups.is_empty() {
        return output::line("no group yet: `host run` creates one for each handler");
    }
    output::line("")?;
    print_groups(&status.groups)?;
    let held = status.groups.iter().filter_map(held_up);
    let waiting = status.hosts.iter().filter_map(|host| standing_by(host, &status.groups));
    let parked = status.groups.iter().filter_map(parked);
    let open = status.groups.iter().filter_map(open);
    let remarks = status.groups.iter().filter_map(remark);
    let troubles = status.hosts.iter().flat_map(troubles);
    let lines: Vec<String> =
        troubles.chain(held).chain(parked).chain(open).chain(remarks).chain(waiting).collect();
    if !lines.is_empty() {
        output::line("")?;
        for line in lines {
            output::line(line)?;
        }
    }
    Ok(())
}

/// A host, in a few words: another role of the database may have written them.
fn process(host: &HostIdentity) -> String {
    format!("{} (pid {})", one_line(&host.hostname), host.pid)
}

/// What does not work for a host.
fn troubles(host: &HostStatus) -> Vec<String> {
    let name = process(&host.host);
    let lines = host.trouble.iter().flat_map(|trouble| trouble.lines());
    lines.map(|line| format!("{name}: {}", one_line(line))).collect()
}

/// Whom a host waits for, if it waits for anybody.
fn standing_by(host: &HostStatus, groups: &[GroupStatus]) -> Option<String> {
    /// More are only counted.
    const NAMED: usize = 5;
    let waits: Vec<String> = host
        .standing_by
        .iter()
        .take(NAMED)
        .map(|name| match groups.iter().find(|group| group.name == *name) {
            Some(group) if group.leader.is_some() => format!("{name} (led by {})", leader(group)),
            _ => name.to_string(),
        })
        .collect();
    if waits.is_empty() {
        return None;
    }
    let more = match host.standing_by.len() - waits.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("{} stands by for {}{more}", process(&host.host), waits.join(", ")))
}

/// The table of `status` and `groups list`.
pub(super) fn print_groups(groups: &[GroupStatus]) -> std::io::Result<()> {
    let mut table = output::table([
        "group", "state", "leader", "led for", "epoch", "position", "lag", "lag time", "retries",
        "dead",
    ]);
    for group in groups {
        table.add_row([
            group.name.to_string(),
            group.state.as_str().to_owned(),
            leader(group),
            led_for(group),
            group.epoch.to_string(),
            group.position.to_string(),
            at_least(group.lag_events, group.lag_events_is_at_least),
            at_least(seconds(group.lag_seconds), group.lag_seconds_is_at_least),
            at_least(group.retries_pending, group.parked_is_at_least),
            at_least(group.dead_letters, group.dead_letters_is_at_least),
        ]);
    }
    output::print_table(&table)
}

/// Who leads, in a few words.
pub(super) fn leader(group: &GroupStatus) -> String {
    if !group.partitions.is_empty() {
        let led = group.partitions.iter().filter(|partition| partition.leader.is_some()).count();
        return format!("{led} of {} partitions", group.partitions.len());
    }
    named(group.leader.as_ref())
}

/// A leader, in a few words.
pub(super) fn named(leader: Option<&Leader>) -> String {
    match leader {
        Some(leader) => process(&leader.host),
        None => "-".to_owned(),
    }
}

/// Whether something of it has events before it and no leader.
fn is_abandoned(group: &GroupStatus) -> bool {
    // One that is further behind than was counted has something before it, whether it
    // is events that it receives or not.
    if group.partitions.is_empty() {
        let is_behind = group.lag_events > 0 || group.lag_events_is_at_least;
        return is_behind && group.leader.is_none();
    }
    group.partitions.iter().any(|part| {
        let is_behind = part.lag_events > 0 || part.lag_events_is_at_least;
        is_behind && part.leader.is_none()
    })
}

/// For how long its leader has led.
fn led_for(group: &GroupStatus) -> String {
    match &group.leader {
        Some(leader) => {
            seconds(Timestamp::now().duration_since(leader.since).as_secs_f64().max(0.0))
        }
        None => "-".to_owned(),
    }
}

/// What a host has to say of what a group is to run, if anything.
pub(super) fn remark(group: &GroupStatus) -> Option<String> {
    let remark = group.note.as_deref()?;
    let (name, remark) = (&group.name, short(remark, 400));
    // One without a leader may be waiting for its first load.
    let goes_on = if group.leader.is_some() { "; it goes on as before" } else { "" };
    Some(format!("{name}: {remark}{goes_on}"))
}

/// What comes again for a group that goes on meanwhile, or is to be delivered later, if
/// anything is.
pub(super) fn parked(group: &GroupStatus) -> Option<String> {
    let (count, later) = (group.parked, group.deferred);
    let parked = at_least(count, group.parked_is_at_least);
    let deferred = at_least(later, group.deferred_is_at_least);
    let waits = |events: i64| if events == 1 { "event waits" } else { "events wait" };
    let events = match (count, later) {
        (0, 0) => return None,
        (0, _) => format!("{deferred} {} for a later time", waits(later)),
        (_, 0) => format!("{parked} {} to come again", waits(count)),
        _ => format!("{parked} {} to come again, and {deferred} for a later time", waits(count)),
    };
    let when = group.next_due_at.map(|at| {
        let wait = at.duration_since(Timestamp::now()).as_secs_f64();
        if wait > 0.0 {
            format!(", the next in {}", seconds(wait))
        } else {
            ", the next now".to_owned()
        }
    });
    Some(format!("{}: {events}{}", group.name, when.unwrap_or_default()))
}

/// What a group has passed that open transactions may still commit, if there is such
/// a thing.
pub(super) fn open(group: &GroupStatus) -> Option<String> {
    /// More are only counted.
    const NAMED: usize = 5;
    let first = group.open_ranges.first()?;
    let positions = if first.first == first.last {
        format!("position {}", first.first)
    } else {
        format!("positions {} to {}", first.first, first.last)
    };
    let more = match group.open_ranges.len() - 1 {
        0 => String::new(),
        1 => " and 1 more range".to_owned(),
        more => format!(" and {more} more ranges"),
    };
    let holders: Vec<String> =
        group.open_ranges_held_by.iter().take(NAMED).map(ToString::to_string).collect();
    let holders = match group.open_ranges_held_by.len() - holders.len() {
        _ if holders.is_empty() => "transactions that have begun or ended just now".to_owned(),
        0 => holders.join(" or "),
        more => format!("{} or {more} more", holders.join(" or ")),
    };
    Some(format!(
        "{}: went on past {positions}{more}, where {holders} may still commit an event",
        group.name
    ))
}

/// A session of the server's, in a few words.
fn session(holder: &Blocker) -> String {
    let Blocker { pid, application, user, .. } = holder;
    match pid {
        Some(pid) => {
            format!("server process {pid} ({}) of role {}", one_line(application), one_line(user))
        }
        None => holder.to_string(),
    }
}

/// What holds a group up, if anything does.
pub(super) fn held_up(group: &GroupStatus) -> Option<String> {
    if group.state != GroupState::Running {
        let reason = group.reason.as_deref().map(|why| format!(": {}", short(why, 500)));
        let way = match group.unpinned {
            true => "it keeps nothing in the log".to_owned(),
            false => format!("`host groups resume {}` goes on", group.name),
        };
        return Some(format!(
            "{}: {}{}; {way}",
            group.name,
            group.state.as_str(),
            reason.unwrap_or_default()
        ));
    }
    // Before all else: nothing of it goes on meanwhile.
    if let Some(holder) = &group.row_held_by {
        return Some(format!(
            "{}: {holder} has its row in event_host.consumer_groups locked: nobody begins to lead it, and nothing of it is settled",
            group.name
        ));
    }
    if let Some(holder) = &group.lock_held_by {
        return Some(format!(
            "{}: the lock of its last leader is held by {}, which is no host's; a host that runs it leads it all the same",
            group.name,
            session(holder)
        ));
    }
    if let Some(mark) = &group.in_flight {
        return Some(format!(
            "{}: the event at position {} is under way, one event at a time after crashes",
            group.name, mark.position
        ));
    }
    if let Some(head) = &group.head {
        let wait = head.due_at.duration_since(Timestamp::now()).as_secs_f64();
        let when = if wait > 0.0 {
            format!("waits for attempt {}, due in {}", head.attempt, seconds(wait))
        } else {
            format!("waits for attempt {}, due now", head.attempt)
        };
        let why = head.failure.as_ref().map(|failure| {
            format!("; the last one failed: {}: {}", failure.kind, short(&failure.text, 200))
        });
        let why = why.unwrap_or_default();
        return Some(format!(
            "{}: the event at position {} {when}{why}",
            group.name, head.position
        ));
    }
    if is_abandoned(group) {
        let what = if group.partitions.is_empty() { "it" } else { "some of its partitions" };
        return Some(format!("{}: no host runs {what}; `host run` does", group.name));
    }
    None
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use event_host_core::event::{Attempt, Epoch, Position, Tenant};
    use event_host_store::memory::MemoryStore;
    use event_host_store::traits::*;
    use event_host_store::{GroupRegistration, Redelivery, Settled, Settlement, UndecidedRange};

    /// What is said of a group whose redeliveries are due so many seconds from
    /// now.
    async fn said(due: &[i64]) -> Option<String> {
        let store = MemoryStore::new();
        let settings = GroupRegistration::new("g".parse().unwrap(), Tenant::none());
        store.ensure_group(&settings).await.unwrap();
        let redelivery = |(position, seconds): (i64, &i64)| Redelivery {
            position: Position(position),
            attempt: Attempt(2),
            due_at: Timestamp::now() + SignedDuration::from_secs(*seconds),
            key: None,
            failure: None,
            late: false,
        };
        let settlement = Settlement {
            group: settings.name.clone(),
            epoch: Epoch(0),
            number: 1,
            position: Position(9),
            head: None,
            dead_letters: Vec::new(),
            emits: Vec::new(),
            state: Vec::new(),
            redeliveries: (1..).zip(due).map(redelivery).collect(),
            redelivered: Vec::new(),
            failures: None,
            undecided: None,
            handled: 0,
            mark: None,
            deferred: Vec::new(),
        };
        assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
        parked(&store.group_status(&settings.name).await.unwrap())
    }

    #[tokio::test]
    async fn what_is_parked_is_said_with_when_the_next_of_it_comes() {
        assert_eq!(said(&[]).await, None);
        assert_eq!(said(&[-1]).await.unwrap(), "g: 1 event waits to come again, the next now");
        let later = said(&[90_000, 7_300, 90_000]).await.unwrap();
        assert_eq!(later, "g: 3 events wait to come again, the next in 2h");
    }

    #[tokio::test]
    async fn what_is_open_is_said_with_who_holds_it() {
        let store = MemoryStore::new();
        let settings = GroupRegistration::new("g".parse().unwrap(), Tenant::none());
        store.ensure_group(&settings).await.unwrap();
        let mut group = store.group_status(&settings.name).await.unwrap();
        assert_eq!(open(&group), None);
        let range = |first, last| UndecidedRange { first: Position(first), last: Position(last) };
        group.open_ranges = vec![range(7, 7)];
        assert_eq!(
            open(&group).unwrap(),
            "g: went on past position 7, where transactions that have begun or ended just now may still commit an event"
        );
        group.open_ranges = vec![range(3, 5), range(7, 7), range(9, 9)];
        let holder = Blocker {
            pid: Some(42),
            prepared: None,
            application: "shop".to_owned(),
            user: String::new(),
            age_seconds: Some(3.2),
        };
        group.open_ranges_held_by = vec![holder; 6];
        let said = open(&group).unwrap();
        let begins = "g: went on past positions 3 to 5 and 2 more ranges, where the transaction of server process 42 (shop), open for 3 s or the transaction";
        assert!(said.starts_with(begins), "{said}");
        assert!(said.ends_with("open for 3 s or 1 more may still commit an event"), "{said}");
    }
}
