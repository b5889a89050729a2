//! `host dlq replay`: hands dead letters to their groups again.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;

use super::Which;
use super::show::to_json;
use super::tally::Tally;
use crate::app::named_component::{DigestPrefix, NamedComponent};
use crate::cli::interrupt::Interrupt;
use crate::cli::named_component::named_component;
use crate::cli::output::{self, Said, short};
use crate::cli::{AlreadySaid, Global, UsageError};
use crate::telemetry;
use event_host_core::digest::Digest;
use event_host_core::event::GroupName;
use event_host_store::{
    DeadLetter, DeadLetterFilter, DeadLetterId, DeadLetters, Missing, Replayed, Store, StoreError,
};

/// What a dry run did, however it ended.
const NOTHING_REPLAYED: &str = "this is a dry run, and nothing was replayed";

/// How many dead letters one transaction replays.
const REPLAY_BATCH: usize = 100;

#[derive(Debug, Args)]
pub(in crate::cli) struct Replay {
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

impl Replay {
    pub(super) async fn run(self, global: &Global, store: &dyn Store) -> anyhow::Result<()> {
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
        store: &dyn DeadLetters,
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
    store: &dyn DeadLetters,
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
    store: &dyn DeadLetters,
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
    store: &dyn DeadLetters,
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
