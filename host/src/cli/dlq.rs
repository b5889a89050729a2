//! `host dlq`: look at dead letters, reproduce, replay or discard them.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgGroup, Args, Subcommand};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::interrupt::Interrupt;
use super::named_component::named_component;
use super::output::{self, Said, field, short};
use super::{AlreadySaid, Global, UsageError, database, reproduce};
use crate::app::named_component::{DigestPrefix, NamedComponent};
use crate::digest::Digest;
use crate::event::GroupName;
use crate::foreign;
use crate::store::{
    DeadLetter, DeadLetterFilter, DeadLetterId, Missing, Replayed, Store, StoreError,
};
use crate::telemetry;

/// What a dry run did, however it ended.
const NOTHING_REPLAYED: &str = "this is a dry run, and nothing was replayed";

/// How many dead letters one transaction replays.
const REPLAY_BATCH: usize = 100;

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
pub(super) struct Replay {
    #[command(flatten)]
    which: Which,
    /// Only say what would be replayed
    #[arg(long)]
    dry_run: bool,
    /// At most so many a second
    #[arg(long, value_name = "N", requires = "all")]
    rate: Option<f64>,
    /// Replay with this payload instead; one ID
    #[arg(long, value_name = "DATA", conflicts_with = "all")]
    data: Option<String>,
    /// Replay with the payload in this file instead; one ID
    #[arg(long, value_name = "FILE", conflicts_with_all = ["all", "data"])]
    data_file: Option<PathBuf>,
    /// Handle it with this component of the database instead of the active one;
    /// the first few digits will do
    #[arg(long, value_name = "SHA256")]
    digest: Option<DigestPrefix>,
    /// Print JSON
    #[arg(long)]
    json: bool,
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
    async fn run(self, store: &dyn Store) -> anyhow::Result<()> {
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

impl Replay {
    async fn run(self, global: &Global, store: &dyn Store) -> anyhow::Result<()> {
        let mut named = self.digest.as_ref().map(|start| named_component(start, store, global));
        // Which goes with --all, and only with it.
        if let Some(group) = &self.which.group {
            return self.all(store, group, named.as_mut()).await;
        }
        let data = self.data()?;
        if data.is_some() && self.which.ids.len() != 1 {
            return Err(UsageError("another payload goes with one ID".to_owned()).into());
        }
        if self.dry_run {
            let ids: Vec<_> = self.which.ids.into_iter().map(DeadLetterId).collect();
            return dry_run(store, &ids, self.json, named.as_mut()).await;
        }
        let mut replays = Vec::new();
        for id in self.which.ids.into_iter().map(DeadLetterId) {
            let digest = match &mut named {
                Some(named) => digest_for(named, store, id).await?,
                None => None,
            };
            replays.push((id, digest));
        }
        let mut tally = Tally::of("replayed", replays.len())?;
        let mut done = Vec::new();
        let mut lines = Said::nothing();
        for (id, digest) in replays {
            if !tally.goes_on() {
                tally.not_tried(id);
                continue;
            }
            match store.replay(id, data.as_deref(), digest.as_ref()).await {
                Ok(replayed) => {
                    tally.done += 1;
                    if self.json {
                        done.push(replayed);
                    } else {
                        lines.line(said(&replayed));
                    }
                }
                Err(error) => tally.failed(id, &error),
            }
        }
        let written = if self.json { output::json(&done) } else { lines.end() };
        tally.end()?;
        Ok(written?)
    }

    fn data(&self) -> anyhow::Result<Option<Vec<u8>>> {
        match (&self.data, &self.data_file) {
            (Some(text), _) => Ok(Some(text.clone().into_bytes())),
            (None, Some(file)) => std::fs::read(file)
                .with_context(|| format!("cannot read {}", file.display()))
                .map(Some),
            (None, None) => Ok(None),
        }
    }

    async fn all(
        &self,
        store: &dyn Store,
        group: &GroupName,
        mut named: Option<&mut NamedComponent<'_>>,
    ) -> anyhow::Result<()> {
        let rate = self.rate.map(valid_rate).transpose()?;
        let ids = store.dead_letter_ids(group).await?;
        let Some(&last) = ids.last() else {
            if self.json {
                output::json(&Vec::<Replayed>::new())?;
            } else {
                output::line(format!("group {group} has no dead letters"))?;
            }
            return Ok(());
        };
        if self.dry_run {
            return dry_run(store, &ids, self.json, named).await;
        }
        let digest = match &mut named {
            Some(named) => digest_for_all(named, store, group).await?,
            None => None,
        };
        let bar = ProgressBar::new(ids.len() as u64);
        let batch = if rate.is_some() { 1 } else { REPLAY_BATCH };
        let mut pace = rate.map(|rate| tokio::time::interval(Duration::from_secs_f64(1.0 / rate)));
        let interrupt = Interrupt::listen()?;
        let mut after = DeadLetterId(0);
        let mut done = Vec::new();
        let ended = loop {
            if let Some(pace) = &mut pace {
                tokio::select! {
                    _ = pace.tick() => {}
                    () = interrupt.comes() => {}
                }
            }
            if interrupt.came() {
                break Err(None);
            }
            match store.replay_some(group, after, last, batch, digest.as_ref()).await {
                Ok(replayed) => {
                    let Some(newest) = replayed.last() else { break Ok(()) };
                    after = newest.id;
                    bar.inc(replayed.len() as u64);
                    done.extend(replayed);
                }
                Err(error) => break Err(Some(error)),
            }
        };
        bar.finish_and_clear();
        let written = if self.json { output::json(&done) } else { Ok(()) };
        match ended {
            Ok(()) if self.json => Ok(written?),
            Ok(()) => Ok(output::line(format!(
                "{} dead letters of group {group} replayed{}",
                done.len(),
                with(digest.as_ref())
            ))?),
            Err(why) => {
                let so_far = replayed_so_far(group, ids.len(), &done, why.as_ref());
                Err(match why {
                    Some(error) => anyhow::Error::new(error).context(so_far),
                    None => anyhow::anyhow!("interrupted: {so_far}"),
                })
            }
        }
    }
}

/// What a replay of all of a group's dead letters did before it broke off.
fn replayed_so_far(
    group: &GroupName,
    of: usize,
    done: &[Replayed],
    why: Option<&StoreError>,
) -> String {
    let up_to = match done.last() {
        Some(last) => format!(
            "{} of {of} dead letters of group {group} are replayed, the last one with id {}",
            done.len(),
            last.id
        ),
        None => format!("none of {of} dead letters of group {group} is replayed"),
    };
    let next = match why {
        Some(StoreError::Unavailable(_)) => {
            "what became of the next few is not known; the same command goes on with what is left"
        }
        _ => "the others are as they were, and the same command goes on with them",
    };
    format!("{up_to}; {next}")
}

/// What became of several dead letters that are dealt with one after the other.
struct Tally {
    /// What is done to them, as in "3 of 5 were …".
    what: &'static str,
    of: usize,
    done: usize,
    failures: usize,
    /// Why the others are not tried.
    stopped: Option<&'static str>,
    not_tried: Vec<DeadLetterId>,
    interrupt: Interrupt,
}

impl Tally {
    fn of(what: &'static str, of: usize) -> anyhow::Result<Self> {
        let (done, failures, stopped, not_tried) = (0, 0, None, Vec::new());
        Ok(Self { what, of, done, failures, stopped, not_tried, interrupt: Interrupt::listen()? })
    }

    /// Whether the next one is to be tried.
    fn goes_on(&mut self) -> bool {
        if self.stopped.is_none() && self.interrupt.came() {
            self.stopped = Some("interrupted");
        }
        self.stopped.is_none()
    }

    fn not_tried(&mut self, id: DeadLetterId) {
        self.not_tried.push(id);
    }

    fn failed(&mut self, id: DeadLetterId, error: &StoreError) {
        self.failures += 1;
        let said = match error {
            StoreError::Unavailable(_) => {
                format!("whether dead letter {id} was {} is not known: {error}", self.what)
            }
            StoreError::Busy(_) => format!("dead letter {id} was not {}: {error}", self.what),
            error => error.to_string(),
        };
        if matches!(error, StoreError::Unavailable(_) | StoreError::Busy(_)) {
            // What comes next would fail alike, each after its deadline.
            self.stopped = Some("stopped");
        }
        telemetry::say(&format!("error: {said}"));
    }

    fn end(self) -> anyhow::Result<()> {
        /// More are only counted.
        const NAMED: usize = 10;
        let Self { what, of, done, failures, stopped, not_tried, .. } = self;
        if failures == 0 && stopped.is_none() {
            return Ok(());
        }
        if of > 1 {
            let named: Vec<String> =
                not_tried.iter().take(NAMED).map(ToString::to_string).collect();
            let more = match not_tried.len() - named.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let left = match named.is_empty() {
                true => String::new(),
                false => format!("; not tried: {}{more}", named.join(", ")),
            };
            let why = stopped.map(|why| format!("{why}: ")).unwrap_or_default();
            telemetry::say(&format!("error: {why}{done} of {of} dead letters were {what}{left}"));
        }
        Err(AlreadySaid.into())
    }
}

impl Discard {
    async fn run(self, store: &dyn Store) -> anyhow::Result<()> {
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

fn valid_rate(rate: f64) -> Result<f64, UsageError> {
    if rate.is_finite() && (0.001..=1e6).contains(&rate) {
        Ok(rate)
    } else {
        Err(UsageError("--rate is a number of dead letters a second, 0.001 to 1000000".to_owned()))
    }
}

/// The component for a dead letter. None for one that is not there, which its
/// replay says: no other will ever have its number.
async fn digest_for(
    named: &mut NamedComponent<'_>,
    store: &dyn Store,
    id: DeadLetterId,
) -> anyhow::Result<Option<Digest>> {
    match store.dead_letter(id).await {
        Ok(letter) => named.of(&letter).await.map(Some),
        Err(StoreError::NotFound(Missing::DeadLetter(_))) => Ok(None),
        Err(other) => Err(other.into()),
    }
}

/// The component for all dead letters of a group, which are of one tenant. None
/// if somebody else has replayed them meanwhile.
async fn digest_for_all(
    named: &mut NamedComponent<'_>,
    store: &dyn Store,
    group: &GroupName,
) -> anyhow::Result<Option<Digest>> {
    let first = DeadLetterFilter { group: Some(group.clone()), after: None, limit: Some(1) };
    match store.dead_letters(&first).await?.first() {
        Some(letter) => named.of(letter).await.map(Some),
        None => Ok(None),
    }
}

/// Says what a replay would do.
async fn dry_run(
    store: &dyn Store,
    ids: &[DeadLetterId],
    json: bool,
    mut named: Option<&mut NamedComponent<'_>>,
) -> anyhow::Result<()> {
    let mut letters = Vec::new();
    let mut found = 0;
    for id in ids {
        let letter = match store.dead_letter(*id).await {
            Ok(letter) => letter,
            // As the replay would: the others go on.
            Err(error @ StoreError::NotFound(_)) => {
                telemetry::say(&format!("error: {error}"));
                continue;
            }
            Err(other) => return Err(anyhow::Error::new(other).context(NOTHING_REPLAYED)),
        };
        let digest = match &mut named {
            Some(named) => Some(named.of(&letter).await.context(NOTHING_REPLAYED)?),
            None => None,
        };
        found += 1;
        if json {
            let mut letter = to_json(&letter);
            if let Some(digest) = digest {
                letter["replay_digest"] = json!(digest);
            }
            letters.push(letter);
        } else {
            output::line(would_replay(&letter) + &with(digest.as_ref()))?;
        }
    }
    if json {
        output::json(&letters)?;
    } else {
        let of = ids.len();
        output::line(format!(
            "{found} of {of} dead letters would be replayed; {NOTHING_REPLAYED}"
        ))?;
    }
    if found == ids.len() { Ok(()) } else { Err(AlreadySaid.into()) }
}

fn said(replayed: &Replayed) -> String {
    format!(
        "dead letter {} goes back to group {}, at position {}{}",
        replayed.id,
        replayed.group,
        replayed.position,
        with(replayed.digest.as_ref())
    )
}

fn with(digest: Option<&Digest>) -> String {
    digest.map_or_else(String::new, |digest| format!(", with {digest}"))
}

fn would_replay(letter: &DeadLetter) -> String {
    format!(
        "would replay dead letter {}: {} {} to group {}",
        letter.id,
        short(&letter.event.event.event_type, 60),
        short(&letter.event.event.id, 60),
        letter.group
    )
}

fn to_json(letter: &DeadLetter) -> Value {
    let mut value = json!({
        "id": letter.id,
        "group": letter.group,
        "position": letter.event.position,
        "event": letter.event.event,
        "attempts": letter.attempts,
        "failure": letter.failure,
        "digest": letter.digest,
        "dead_at": letter.dead_at,
    });
    if !letter.tenant.is_none() {
        value["tenant"] = json!(letter.tenant);
    }
    value
}

fn print(letter: &DeadLetter) -> io::Result<()> {
    let event = &letter.event.event;
    field("dead letter", &letter.id.to_string())?;
    field("group", letter.group.as_str())?;
    if !letter.tenant.is_none() {
        field("tenant", letter.tenant.as_str())?;
    }
    field("failure", &format!("{}: {}", letter.failure.kind, letter.failure.text))?;
    field("attempts", &letter.attempts.to_string())?;
    field("component", &letter.digest)?;
    field("dead since", &letter.dead_at.to_string())?;
    field("position", &letter.event.position.to_string())?;
    output::line("")?;
    let mut json = event.to_json();
    let data = json.remove("data").or_else(|| json.remove("data_base64"));
    for (name, value) in &json {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        field(name, &short(&text, 200))?;
    }
    let data = match data {
        None => return output::line("\nno data"),
        Some(Value::String(text)) => text,
        Some(value) => serde_json::to_string_pretty(&value).map_err(io::Error::other)?,
    };
    output::line(format!("\n  {}", foreign::with_further_lines(&data, "  ")))
}
