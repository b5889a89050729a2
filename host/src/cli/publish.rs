//! `host publish`: appends events to the log.
//!
//! A file is read twice: once to check every line, so that a broken one is said
//! before anything is published, and once to publish, in transactions of
//! [`CHUNK`] events. Standard input is published as it comes. Whatever stops it
//! says how far it got and from which line to go on.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::Context as _;
use clap::{ArgGroup, Args};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::interrupt::Interrupt;
use super::{Global, UsageError, database, output};
use crate::config::duration;
use event_host_core::event::json::InvalidEvent;
use event_host_core::event::jsonl::{EventLines, Line, LineError};
use event_host_core::event::time::parse_time;
use event_host_core::event::{Event, ExtensionValue, Position, Tenant};
use event_host_store::{EventLog, StoreError};

/// How many lines one transaction publishes.
const CHUNK: usize = 1_000;

/// How large the events of one transaction are, in bytes, after which no further line
/// joins it.
const CHUNK_BYTES: usize = 16 << 20;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["event_type", "file"])))]
pub(super) struct Publish {
    /// Publish one event of this type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Its payload; JSON unless --datacontenttype says otherwise
    #[arg(long, requires = "event_type", value_name = "DATA")]
    data: Option<String>,
    /// Its payload, from a file
    #[arg(long, requires = "event_type", conflicts_with = "data", value_name = "FILE")]
    data_file: Option<PathBuf>,
    /// Its id [default: a random uuid]
    #[arg(long, requires = "event_type")]
    id: Option<String>,
    /// Its source
    #[arg(long, requires = "event_type", default_value = "/cli")]
    source: String,
    /// Its subject
    #[arg(long, requires = "event_type")]
    subject: Option<String>,
    /// Its time, RFC 3339 [default: now]
    #[arg(long, requires = "event_type", value_parser = time)]
    time: Option<Timestamp>,
    /// The media type of its payload
    #[arg(long, requires = "event_type", value_name = "TYPE")]
    datacontenttype: Option<String>,
    /// The URI of its payload's schema
    #[arg(long, requires = "event_type", value_name = "URI")]
    dataschema: Option<String>,
    /// Its partition key
    #[arg(long, requires = "event_type", value_name = "KEY")]
    partitionkey: Option<String>,
    /// Deliver it not before this time, RFC 3339, or after so long, such as 90s; at most
    /// 366 days from now
    #[arg(long, requires = "event_type", value_name = "TIME|DURATION", value_parser = not_before)]
    deliver_after: Option<Timestamp>,
    /// An extension attribute, again and again
    #[arg(long = "extension", requires = "event_type", value_name = "NAME=VALUE")]
    extensions: Vec<String>,
    /// Publish a file with a CloudEvent in JSON on each line; - is stdin
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Begin with this line of the file
    #[arg(long, requires = "file", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    from_line: u64,
    /// Publish for this tenant
    #[arg(long, default_value = "", hide_default_value = true)]
    tenant: Tenant,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Publish {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let one = self.event_type.as_ref().map(|event_type| self.event(event_type)).transpose()?;
        let file = self.file.as_deref().filter(|file| *file != Path::new("-"));
        let interrupt = match &self.file {
            Some(_) => Some(Interrupt::listen()?),
            None => None,
        };
        if let (Some(file), Some(interrupt)) = (file, &interrupt) {
            tokio::select! {
                checked = check_lines(file, self.from_line) => checked?,
                () = interrupt.comes() => {
                    let why = anyhow::anyhow!("interrupted");
                    return self.broke_off(&Published::default(), self.from_line, why);
                }
            }
        }
        let store = database::open_or_create(global).await?;
        store.migrate().await?;
        if let Some(event) = one {
            let published = store.publish(&self.tenant, &[event]).await;
            let positions = published.map_err(|error| match error {
                StoreError::Unavailable(_) => anyhow::Error::new(error)
                    .context("whether the event was published is not known"),
                error => error.into(),
            })?;
            return self.report(Published::of(&positions));
        }
        let Some(interrupt) = interrupt else {
            // clap asks for one of the two.
            return Err(UsageError("there is nothing to publish".to_owned()).into());
        };
        let lines = match file {
            Some(file) => {
                let bar = bar_for(file)?;
                let reader = bar.wrap_read(open(file)?);
                read_lines(BufReader::new(reader), self.from_line)
            }
            None => read_lines(BufReader::new(io::stdin()), self.from_line),
        };
        self.lines(&*store, lines, &interrupt).await
    }

    fn event(&self, event_type: &str) -> anyhow::Result<Event> {
        let data = match (&self.data, &self.data_file) {
            (Some(text), _) => Some(text.clone().into_bytes()),
            (None, Some(file)) => Some(
                std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?,
            ),
            (None, None) => None,
        };
        let extensions =
            self.extensions.iter().map(|text| extension(text)).collect::<Result<_, _>>()?;
        let event = Event {
            id: self.id.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
            source: self.source.clone(),
            event_type: event_type.to_owned(),
            subject: self.subject.clone(),
            time: self.time.unwrap_or_else(Timestamp::now),
            datacontenttype: self.datacontenttype.clone(),
            dataschema: self.dataschema.clone(),
            partitionkey: self.partitionkey.clone(),
            deliver_after: self.deliver_after,
            extensions,
            data,
        };
        event.check()?;
        event.check_delay(Timestamp::now())?;
        if event.datacontenttype.is_none()
            && let Some(data) = &event.data
            && let Err(why) = serde_json::from_slice::<serde::de::IgnoredAny>(data)
        {
            return Err(UsageError(format!(
                "the data is not JSON ({why}); say what it is, such as `--datacontenttype text/plain`"
            ))
            .into());
        }
        Ok(event)
    }

    /// Publishes lines as they come, in chunks.
    async fn lines(
        &self,
        store: &dyn EventLog,
        mut lines: Lines,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let mut done = Published::default();
        let mut next_line = self.from_line;
        let mut open = true;
        while open {
            if interrupt.came() {
                return self.broke_off(&done, next_line, anyhow::anyhow!("interrupted"));
            }
            let mut chunk = Vec::new();
            let mut bytes = 0;
            let mut broken = None;
            let mut last_line = next_line;
            while chunk.len() < CHUNK && bytes < CHUNK_BYTES {
                // What is in the channel joins; an empty channel ends the chunk,
                // so that what is typed is published at once.
                let line = match lines.received.try_recv() {
                    Ok(line) => Some(line),
                    Err(_) if !chunk.is_empty() => break,
                    Err(_) => tokio::select! {
                        line = lines.received.recv() => line,
                        () = interrupt.comes() => break,
                    },
                };
                match line {
                    None => {
                        open = false;
                        break;
                    }
                    Some(Ok(line)) => {
                        last_line = line.number;
                        bytes += line.events.iter().map(Event::bytes).sum::<usize>();
                        chunk.extend(line.events);
                    }
                    Some(Err(error)) => {
                        broken = Some(error);
                        break;
                    }
                }
            }
            if !chunk.is_empty() {
                match store.publish(&self.tenant, &chunk).await {
                    Ok(positions) => {
                        done.add(&positions);
                        next_line = last_line + 1;
                    }
                    Err(error) => {
                        let is_open = matches!(error, StoreError::Unavailable(_));
                        let error = anyhow::Error::new(error);
                        let error = match is_open {
                            true => error.context(format!(
                                "whether lines {next_line} to {last_line} were published is not known"
                            )),
                            false => error,
                        };
                        return self.broke_off(&done, next_line, error);
                    }
                }
            }
            if let Some(error) = broken {
                let line = error.number;
                return self.broke_off(&done, line, error.into());
            }
        }
        if lines.broke() {
            return self.broke_off(&done, next_line, anyhow::anyhow!("reading the lines broke"));
        }
        self.report(done)
    }

    /// Says how far it got before it ended for this reason.
    fn broke_off(
        &self,
        done: &Published,
        next_line: u64,
        why: anyhow::Error,
    ) -> anyhow::Result<()> {
        if self.json {
            let mut answer = done.to_json();
            answer["next_line"] = json!(next_line);
            // Whether somebody reads it or not, it broke off, and that is the error.
            drop(output::json(&answer));
        }
        Err(why.context(done.so_far(next_line)))
    }

    fn report(&self, done: Published) -> anyhow::Result<()> {
        if self.json {
            output::json(&done.to_json())?;
            return Ok(());
        }
        output::line(match (done.events, done.first, done.last) {
            (1, Some(position), _) => format!("1 event published, position {position}"),
            (events, Some(first), Some(last)) => {
                format!("{events} events published, positions {first} to {last}")
            }
            _ => "no events published".to_owned(),
        })?;
        Ok(())
    }
}

/// What is in the log so far.
#[derive(Debug, Default)]
struct Published {
    events: usize,
    first: Option<Position>,
    last: Option<Position>,
}

impl Published {
    fn of(positions: &[Position]) -> Self {
        let mut published = Self::default();
        published.add(positions);
        published
    }

    fn add(&mut self, positions: &[Position]) {
        self.events += positions.len();
        self.first = self.first.or(positions.first().copied());
        self.last = positions.last().copied().or(self.last);
    }

    fn to_json(&self) -> Value {
        json!({
            "events": self.events,
            "first_position": self.first,
            "last_position": self.last,
        })
    }

    fn so_far(&self, next_line: u64) -> String {
        match self.last {
            None => {
                format!("nothing was published up to here; go on with `--from-line {next_line}`")
            }
            Some(last) => format!(
                "stopped after {} events, the last at position {last}; go on with `--from-line {next_line}`",
                self.events
            ),
        }
    }
}

fn open(file: &Path) -> anyhow::Result<File> {
    let opened = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    anyhow::ensure!(!opened.metadata()?.is_dir(), "{} is a directory", file.display());
    Ok(opened)
}

/// Reads a file once and publishes nothing: any broken line is an error here. On a thread
/// of its own, so that the command need not wait for a large one.
async fn check_lines(file: &Path, from_line: u64) -> anyhow::Result<()> {
    let (checked, answer) = oneshot::channel();
    let (opened, path) = (BufReader::new(open(file)?), file.to_owned());
    let checking = std::thread::spawn(move || {
        for line in EventLines::new(opened).from_line(from_line) {
            if checked.is_closed() {
                return;
            }
            if let Err(wrong) = line {
                let wrong = anyhow::Error::new(wrong);
                drop(checked.send(Err(
                    wrong.context(format!("{}: nothing was published", path.display())),
                )));
                return;
            }
        }
        drop(checked.send(Ok(())));
    });
    match answer.await {
        Ok(checked) => checked,
        Err(_) => {
            drop(checking.join());
            anyhow::bail!("reading {} broke off: nothing was published", file.display())
        }
    }
}

/// A bar on a terminal, for a file that takes a while.
fn bar_for(file: &Path) -> anyhow::Result<ProgressBar> {
    let bytes = open(file)?.metadata()?.len();
    if !io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let style = ProgressStyle::with_template(
        "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left",
    )?;
    Ok(ProgressBar::new(bytes).with_style(style))
}

/// Lines that a thread reads.
struct Lines {
    received: mpsc::Receiver<Result<Line, LineError>>,
    reading: Option<JoinHandle<()>>,
}

impl Lines {
    /// Whether the thread panicked: that there are no more lines then does not mean that
    /// the input has no more. To be asked once there are no more.
    fn broke(&mut self) -> bool {
        self.reading.take().is_some_and(|reading| reading.join().is_err())
    }
}

/// Reads lines on a thread of its own, because stdin blocks.
fn read_lines<R: Read + Send + 'static>(reader: BufReader<R>, from_line: u64) -> Lines
where
    BufReader<R>: BufRead,
{
    let (lines, received) = mpsc::channel(CHUNK);
    let reading = std::thread::spawn(move || {
        for line in EventLines::new(reader).from_line(from_line) {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    Lines { received, reading: Some(reading) }
}

/// Reads a time.
fn time(text: &str) -> Result<Timestamp, InvalidEvent> {
    parse_time("time", text)
}

/// Reads a time, or how long it is until then.
fn not_before(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = parse_time("deliverafter", text) {
        return Ok(time);
    }
    match duration(text).map(|wait| Timestamp::now().checked_add(wait)) {
        Some(Ok(time)) => Ok(time),
        Some(Err(_)) => Err("that is beyond the year 9999".to_owned()),
        None => Err("write a time such as 2026-01-31T12:00:00Z, or a duration such as 90s".into()),
    }
}

/// Parses `NAME=VALUE`; `true`, `false` and 32-bit integers keep their type.
fn extension(text: &str) -> anyhow::Result<(String, ExtensionValue)> {
    let Some((name, value)) = text.split_once('=') else {
        let wrong = format!("`{text}` is no extension attribute: write NAME=VALUE");
        return Err(UsageError(wrong).into());
    };
    let value = match value {
        "true" => ExtensionValue::Boolean(true),
        "false" => ExtensionValue::Boolean(false),
        _ => value
            .parse()
            .map_or_else(|_| ExtensionValue::Text(value.to_owned()), ExtensionValue::Integer),
    };
    Ok((name.to_owned(), value))
}
