//! A test's own folder, settings, database and host.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sqlx::Row;
use tempfile::TempDir;

use crate::handlers::Settings;
use crate::process::{self, Finished, Running};
use crate::{PATIENCE, database, wait_until};

/// A CloudEvent.
#[must_use]
pub fn event(event_type: &str, id: impl ToString, data: Value) -> Value {
    json!({
        "specversion": "1.0",
        "id": id.to_string(),
        "source": "/tests",
        "type": event_type,
        "data": data,
    })
}

/// An event with one more attribute.
#[must_use]
pub fn with(mut event: Value, attribute: &str, value: impl Into<Value>) -> Value {
    event[attribute] = value.into();
    event
}

/// A folder with a handlers.toml and a database, `host.db`. Commands run in it.
#[derive(Debug)]
pub struct Rig {
    folder: TempDir,
}

impl Rig {
    /// A folder with these settings.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let rig = Self { folder: TempDir::new().expect("a folder can be made") };
        rig.configure(settings);
        rig
    }

    /// Other settings from the next command on.
    pub fn configure(&self, settings: &Settings) {
        self.write("handlers.toml", settings.to_toml());
    }

    /// A place in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file into the folder.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), contents).expect("a file can be written");
    }

    /// A command that runs in the folder, with nothing of the tests' own
    /// settings in its environment.
    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(process::binary());
        command.args(arguments).current_dir(self.folder.path()).env_remove("HOST_LOG");
        command
    }

    /// Runs a command to its end.
    pub fn host<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Finished {
        process::finish(&mut self.command(arguments), None)
    }

    /// Runs a command that reads this from stdin.
    pub fn host_reading(&self, arguments: &[&str], stdin: impl AsRef<[u8]>) -> Finished {
        process::finish(&mut self.command(arguments), Some(stdin.as_ref()))
    }

    /// Runs a command with `--json` to its end, which must be a good one.
    ///
    /// # Panics
    /// When the answer is not JSON.
    #[must_use]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let answer = self.host(arguments.iter().chain(&["--json"])).ok();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// Publishes events.
    pub fn publish<'a>(&self, events: impl IntoIterator<Item = &'a Value>) {
        let lines: String = events.into_iter().map(|event| format!("{event}\n")).collect();
        self.write("events.jsonl", lines);
        let _ = self.host(["publish", "--file", "events.jsonl"]).ok();
    }

    /// `host run --drain`, to its good end; gives its log.
    pub fn drain(&self) -> String {
        let finished = self.host(["run", "--drain"]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        finished.stderr
    }

    /// Starts `host run`.
    #[must_use]
    pub fn spawn_run(&self) -> Running {
        self.spawn(&["run"])
    }

    /// Starts a command, with its log as JSON.
    #[must_use]
    pub fn spawn(&self, arguments: &[&str]) -> Running {
        let arguments = arguments.iter().chain(&["--log-format", "json"]);
        Running::start(&mut self.command(arguments))
    }

    /// A group, as `groups show` tells it.
    #[must_use]
    pub fn group(&self, name: &str) -> Value {
        self.json(&["groups", "show", name])
    }

    /// Every dead letter.
    ///
    /// # Panics
    /// When the answer is no list.
    #[must_use]
    pub fn dead_letters(&self) -> Vec<Value> {
        let list = self.json(&["dlq", "list", "--limit", "100000"]);
        list.as_array().expect("a list").clone()
    }

    /// Waits until a group has handled everything up to a position.
    pub fn wait_until_handled(&self, group: &str, position: i64) {
        let sql = format!("SELECT position FROM consumer_groups WHERE name = '{group}'");
        wait_until(&format!("{group} is at {position}"), PATIENCE, || {
            self.number(&sql) >= position
        });
    }

    /// The database file.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.path("host.db")
    }

    /// The one number that a query gives; none is 0.
    #[must_use]
    pub fn number(&self, sql: &str) -> i64 {
        database::number(database::rows(&self.database(), sql).first(), 0)
    }

    /// The numbers in the first row that a query gives; NULL is 0.
    #[must_use]
    pub fn numbers<const N: usize>(&self, sql: &str) -> [i64; N] {
        let rows = database::rows(&self.database(), sql);
        std::array::from_fn(|column| database::number(rows.first(), column))
    }

    /// The texts in the first column that a query gives.
    #[must_use]
    pub fn texts(&self, sql: &str) -> Vec<String> {
        database::rows(&self.database(), sql).iter().map(|row| row.get(0)).collect()
    }

    /// An integer in a group's state; none is 0.
    #[must_use]
    pub fn state(&self, group: &str, key: &str) -> i64 {
        self.number(&format!(
            "SELECT CAST(CAST(value AS TEXT) AS INTEGER) FROM state
             WHERE group_name = '{group}' AND key = '{key}'"
        ))
    }

    /// The JSON data of every event of a type, in the log's order.
    #[must_use]
    pub fn data_of(&self, event_type: &str) -> Vec<Value> {
        let sql = format!(
            "SELECT CAST(data AS TEXT) FROM events WHERE type = '{event_type}' ORDER BY position"
        );
        let texts = self.texts(&sql);
        texts.iter().map(|text| serde_json::from_str(text).expect("data is JSON")).collect()
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
