//! `host groups`: look at consumer groups, pause them, move their cursors.

use clap::{Args, Subcommand};

use super::output::{self, seconds, short};
use super::status::at_least;
use super::{Global, database, outcome_known, status};
use event_host_core::event::GroupName;
use event_host_core::foreign::one_line;
use event_host_store::{GroupStatus, Removed, Sought, Start};

#[derive(Debug, Subcommand)]
pub(super) enum Groups {
    /// Every group
    List(List),
    /// One group, with everything known of it
    Show(Show),
    /// Stop a group between two events, until `resume`
    Pause(Pause),
    /// Let a paused or tripped group go on
    ///
    /// A group that was paused because it kept more of the log from its retention than
    /// `pinned_log` of its tenant allows goes on only with --accept-loss, once events are
    /// gone that it has not handled.
    Resume(Resume),
    /// Move a group's cursor
    Seek(Seek),
    /// Remove a group with its cursor and its state
    Remove(Remove),
}

#[derive(Debug, Args)]
pub(super) struct List {
    /// Count everything, however long that takes; without it counting stops at
    /// 100,000 events, dead letters or retries
    #[arg(long)]
    exact: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// The group
    name: GroupName,
    /// Count everything, however long that takes; without it counting stops at
    /// 100,000 events, dead letters or retries
    #[arg(long)]
    exact: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Resume {
    /// The group
    name: GroupName,
    /// Go on without the events that are gone from the log
    #[arg(long)]
    accept_loss: bool,
}

#[derive(Debug, Args)]
pub(super) struct Pause {
    /// The group
    name: GroupName,
    /// Why, for `status`
    #[arg(long, default_value = "by an operator")]
    reason: String,
}

#[derive(Debug, Args)]
pub(super) struct Seek {
    /// The group
    name: GroupName,
    /// earliest, latest, a position (the next event is the first one above it),
    /// or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "PLACE")]
    to: Start,
    /// Move nothing if retention has let go of events that would come next there
    #[arg(long)]
    exact: bool,
}

#[derive(Debug, Args)]
pub(super) struct Remove {
    /// The group
    name: GroupName,
    /// Remove its dead letters too, for good
    #[arg(long)]
    with_dead_letters: bool,
}

impl Groups {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let store = database::open(global).await?;
        match self {
            Self::List(list) => {
                let groups = store.status_counted(status::counting(list.exact)).await?.groups;
                if list.json {
                    output::json(&groups)?;
                } else if groups.is_empty() {
                    output::line("no group yet: `host run` creates one for each handler")?;
                } else {
                    status::print_groups(&groups)?;
                }
            }
            Self::Show(show) => {
                let group =
                    store.group_status_counted(&show.name, status::counting(show.exact)).await?;
                if show.json {
                    output::json(&group)?;
                } else {
                    print(&group)?;
                }
            }
            Self::Pause(pause) => {
                let paused = store.pause(&pause.name, &pause.reason).await;
                outcome_known(paused, "host groups show", pause.name.as_str())?;
                output::line(format!("group {} is paused", pause.name))?;
            }
            Self::Resume(Resume { name, accept_loss }) => {
                let resumed = match accept_loss {
                    true => store.resume_without_what_is_gone(&name).await,
                    false => store.resume(&name).await.map(|()| None),
                };
                let gone = outcome_known(resumed, "host groups show", name.as_str())?;
                let gone = gone.map(|gone| format!("; {gone}")).unwrap_or_default();
                output::line(format!("group {name} is running{gone}"))?;
            }
            Self::Seek(seek) => {
                let name = &seek.name;
                let sought = store.seek_to(name, seek.to, seek.exact).await;
                let Sought { position, gone } =
                    outcome_known(sought, "host groups show", name.as_str())?;
                let gone = gone.map(|gone| format!("; {gone}")).unwrap_or_default();
                output::line(format!("group {name} goes on after position {position}{gone}"))?;
            }
            Self::Remove(remove) => {
                let removed = store.remove_group(&remove.name, remove.with_dead_letters).await;
                let removed = outcome_known(removed, "host groups show", remove.name.as_str())?;
                output::line(removal(&remove.name, removed))?;
            }
        }
        Ok(())
    }
}

/// What a removal did, in a sentence.
fn removal(name: &GroupName, Removed { parked, deferred }: Removed) -> String {
    let along = match parked {
        0 => String::new(),
        1 => ", and with it 1 event that was to come again".to_owned(),
        many => format!(", and with it {many} events that were to come again"),
    };
    let later = match deferred {
        0 => String::new(),
        1 => ", and with it 1 event that was to be delivered later".to_owned(),
        many => format!(", and with it {many} events that were to be delivered later"),
    };
    let where_they_are = match parked + deferred {
        0 => "",
        1 => ": the log still has it, unless its retention is over",
        _ => ": the log still has them, unless their retention is over",
    };
    format!("group {name} is removed{along}{later}{where_they_are}")
}

fn print(group: &GroupStatus) -> std::io::Result<()> {
    let field = |name: &str, value: String| output::line(format!("{name:<14}{}", one_line(&value)));
    field("group", group.name.to_string())?;
    if !group.tenant.is_none() {
        field("tenant", group.tenant.to_string())?;
    }
    field("subscribe", short(&group.subscribe.join(", "), 500))?;
    field("state", group.state.as_str().to_owned())?;
    let since = group.leader.as_ref().map(|leader| format!(" since {}", leader.since));
    field("leader", status::leader(group) + &since.unwrap_or_default())?;
    field("epoch", group.epoch.to_string())?;
    field("position", group.position.to_string())?;
    let lag = at_least(group.lag_events, group.lag_events_is_at_least);
    let age = at_least(seconds(group.lag_seconds), group.lag_seconds_is_at_least);
    field("lag", format!("{lag} events, {age}"))?;
    field("retries", at_least(group.retries_pending, group.parked_is_at_least))?;
    if group.parked > 0 {
        let parked = at_least(group.parked, group.parked_is_at_least);
        field("parked", format!("{parked} events that the cursor has passed"))?;
    }
    if group.deferred > 0 {
        let deferred = at_least(group.deferred, group.deferred_is_at_least);
        field("deferred", format!("{deferred} events for a later time"))?;
    }
    if group.late_events > 0 {
        field("late", format!("{} events so far", group.late_events))?;
    }
    if let Some(at) = group.next_due_at {
        field("next due", at.to_string())?;
    }
    field("dead letters", at_least(group.dead_letters, group.dead_letters_is_at_least))?;
    let failures: Vec<String> =
        group.failures.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    if !failures.is_empty() {
        field("failures", failures.join(", "))?;
    }
    field("created", group.created_at.to_string())?;
    let settled = group.settled_at.map_or_else(|| "never".to_owned(), |at| at.to_string());
    field("settled", settled)?;
    if !group.partitions.is_empty() {
        output::line("")?;
        let mut table = output::table([
            "partition",
            "leader",
            "epoch",
            "position",
            "lag",
            "lag time",
            "retries",
            "parked",
            "deferred",
        ]);
        for part in &group.partitions {
            table.add_row([
                part.partition.to_string(),
                status::named(part.leader.as_ref()),
                part.epoch.to_string(),
                part.position.to_string(),
                at_least(part.lag_events, part.lag_events_is_at_least),
                at_least(seconds(part.lag_seconds), part.lag_seconds_is_at_least),
                at_least(part.retries_pending, part.parked_is_at_least),
                at_least(part.parked, part.parked_is_at_least),
                at_least(part.deferred, part.deferred_is_at_least),
            ]);
        }
        output::print_table(&table)?;
    }
    let lines =
        [status::held_up(group), status::parked(group), status::open(group), status::remark(group)];
    if group.unpinned {
        output::line("\nit keeps nothing in the log: what it has not handled goes")?;
    }
    for line in lines.into_iter().flatten() {
        output::line(format!("\n{line}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_says_what_waited() {
        let name = "g".parse().unwrap();
        let said = |parked| removal(&name, Removed { parked, deferred: 0 });
        assert_eq!(said(0), "group g is removed");
        assert_eq!(
            said(1),
            "group g is removed, and with it 1 event that was to come again: the log still has it, unless its retention is over"
        );
        assert_eq!(
            said(12),
            "group g is removed, and with it 12 events that were to come again: the log still has them, unless their retention is over"
        );
        assert_eq!(
            removal(&name, Removed { parked: 1, deferred: 2 }),
            "group g is removed, and with it 1 event that was to come again, and with it 2 events that were to be delivered later: the log still has them, unless their retention is over"
        );
    }
}
