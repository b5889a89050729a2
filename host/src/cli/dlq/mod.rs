//! `host dlq`: look at dead letters, reproduce, replay or discard them.

mod replay;
mod show;
mod tally;

use std::io::{self, IsTerminal as _};

use clap::{ArgGroup, Args, Subcommand};

use replay::Replay;
use show::{print, to_json};
use tally::Tally;

use super::output::{self, Said, short};
use super::{Global, UsageError, database, reproduce};
use event_host_core::event::GroupName;
use event_host_store::{DeadLetterFilter, DeadLetterId, DeadLetters};

#[derive(Debug, Subcommand)]
pub(super) enum Dlq {
    /// Dead letters, the oldest first
    List(List),
    /// One dead letter, whole
    Show(Show),
    /// Run a dead letter's event through its handler again, here, and record
    /// nothing
    ///
    /// The component is the one that failed: from the database if it was
    /// deployed, or else the handler's file if it is still the same. Limits and
    /// permissions are those of handlers.toml; the state is the group's as it is
    /// now. Outcome, logs, emits, state writes, time, memory and the functions
    /// in which a trap happened are shown. No cursor, dead letter, event or state
    /// changes. What the handler does elsewhere does happen: requests that
    /// `allow.http` permits are sent. Exits with 0 if the event is handled, and
    /// with 1 if it fails again.
    Reproduce(reproduce::Reproduce),
    /// Give dead letters back to their group, each exactly once
    ///
    /// The group handles the event again, as it handles others: with the
    /// component that is active when its turn comes, or with the one that
    /// `--digest` names, which must have been deployed for the tenant. The group's
    /// other events stay with the active one. If the event fails again it is a
    /// dead letter again.
    ///
    /// Ctrl-C and SIGTERM stop it between two dead letters. It then exits with 1
    /// and says how many are replayed, as it does after an error; with --json it
    /// lists them.
    Replay(Replay),
    /// Remove dead letters for good
    Discard(Discard),
}

#[derive(Debug, Args)]
pub(super) struct List {
    /// Only this group's
    #[arg(long)]
    group: Option<GroupName>,
    /// Only ids above this one
    #[arg(long, value_name = "ID")]
    after: Option<i64>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// Its number
    id: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the event's data alone, byte for byte, for another program to read.
    /// Without it, what a terminal would obey is not shown
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

/// Which dead letters: some by number, or all of a group.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("these").required(true).args(["ids", "all"])))]
struct Which {
    /// Their numbers
    #[arg(value_name = "ID")]
    ids: Vec<i64>,
    /// Every dead letter of a group that is there now
    #[arg(long, requires = "group")]
    all: bool,
    /// The group, with --all
    #[arg(long, requires = "all", conflicts_with = "ids")]
    group: Option<GroupName>,
}

#[derive(Debug, Args)]
pub(super) struct Discard {
    #[command(flatten)]
    which: Which,
}

impl Dlq {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let store = database::open(global).await?;
        match self {
            Self::List(list) => list.run(&*store).await,
            Self::Show(show) => {
                let letter = store.dead_letter(DeadLetterId(show.id)).await?;
                if show.raw {
                    if io::stdout().is_terminal() {
                        let way = "--raw is for another program: without it `dlq show` prints the data so that no terminal obeys it";
                        return Err(UsageError(way.to_owned()).into());
                    }
                    output::raw(letter.event.event.data.as_deref().unwrap_or_default())?;
                } else if show.json {
                    output::json(&to_json(&letter))?;
                } else {
                    print(&letter)?;
                }
                Ok(())
            }
            Self::Reproduce(reproduce) => reproduce.run(global, store).await,
            Self::Replay(replay) => replay.run(global, &*store).await,
            Self::Discard(discard) => discard.run(&*store).await,
        }
    }
}

impl List {
    async fn run(self, store: &dyn DeadLetters) -> anyhow::Result<()> {
        let filter = DeadLetterFilter {
            group: self.group,
            after: self.after.map(DeadLetterId),
            limit: Some(self.limit.saturating_add(1)),
        };
        let mut letters = store.dead_letters(&filter).await?;
        let more = letters.len() > self.limit;
        letters.truncate(self.limit);
        if self.json {
            output::json(&letters.iter().map(to_json).collect::<Vec<_>>())?;
            return Ok(());
        }
        if letters.is_empty() {
            output::line("no dead letters")?;
            return Ok(());
        }
        let mut table = output::table([
            "id",
            "group",
            "position",
            "type",
            "event id",
            "attempts",
            "kind",
            "dead since",
            "text",
        ]);
        for letter in &letters {
            table.add_row([
                letter.id.to_string(),
                letter.group.to_string(),
                letter.event.position.to_string(),
                short(&letter.event.event.event_type, 40),
                short(&letter.event.event.id, 40),
                letter.attempts.to_string(),
                short(&letter.failure.kind, 20),
                format!("{:.0}", letter.dead_at),
                short(&letter.failure.text, 60),
            ]);
        }
        output::print_table(&table)?;
        if let Some(last) = letters.last().filter(|_| more) {
            output::line(format!("more: host dlq list --after {}", last.id))?;
        }
        Ok(())
    }
}

impl Discard {
    async fn run(self, store: &dyn DeadLetters) -> anyhow::Result<()> {
        let ids = match &self.which.group {
            Some(group) => store.dead_letter_ids(group).await?,
            None => self.which.ids.into_iter().map(DeadLetterId).collect(),
        };
        let mut tally = Tally::of("discarded", ids.len())?;
        let mut lines = Said::nothing();
        for id in ids {
            if !tally.goes_on() {
                tally.not_tried(id);
                continue;
            }
            match store.discard(id).await {
                Ok(()) => {
                    tally.done += 1;
                    lines.line(format!("dead letter {id} is discarded"));
                }
                Err(error) => tally.failed(id, &error),
            }
        }
        tally.end()?;
        Ok(lines.end()?)
    }
}
