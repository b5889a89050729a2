//! A test's own folder, settings, database and host.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::database::{Client, Place, Store};
use crate::handlers::Settings;
use crate::namespace::Namespace;
use crate::process::{self, Finished, Running};
use crate::{PATIENCE, wait_until};

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

/// A folder with a handlers.toml, and a database: `host.db`, or one on a server.
/// Commands run in the folder.
#[derive(Debug)]
pub struct Rig {
    folder: TempDir,
    place: Place,
    /// For what the test asks, opened when it first does.
    client: Mutex<Option<Client>>,
}

impl Rig {
    /// A folder with these settings, and an embedded database.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self::on(Store::Sqlite, settings)
    }

    /// A folder with these settings, and a database of one of the stores.
    #[must_use]
    pub fn on(store: Store, settings: &Settings) -> Self {
        let folder = TempDir::new().expect("a folder can be made");
        let place = Place::of(store, folder.path());
        Self::with(folder, place, settings)
    }

    /// A folder in another one, with these settings and an embedded database.
    #[must_use]
    pub fn within(above: &Path, settings: &Settings) -> Self {
        let folder = TempDir::new_in(above).expect("a folder can be made");
        let place = Place::of(Store::Sqlite, folder.path());
        Self::with(folder, place, settings)
    }

    /// A folder with these settings, and a PostgreSQL database that is the
    /// caller's.
    #[must_use]
    pub fn at(url: &str, settings: &Settings) -> Self {
        let folder = TempDir::new().expect("a folder can be made");
        Self::with(folder, Place::Url(url.to_owned()), settings)
    }

    fn with(folder: TempDir, place: Place, settings: &Settings) -> Self {
        let rig = Self { folder, place, client: Mutex::default() };
        rig.configure(settings);
        rig
    }

    /// Other settings from the next command on. A line `database = …` of their
    /// own stands for the rig's.
    pub fn configure(&self, settings: &Settings) {
        let settings = settings.to_toml();
        let own = settings.lines().any(|line| line.starts_with("database"));
        let database = self.place.setting().filter(|_| !own).unwrap_or_default();
        self.write("handlers.toml", format!("{database}{settings}"));
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The URL of the rig's PostgreSQL database.
    ///
    /// # Panics
    /// When it has an embedded one.
    #[must_use]
    pub fn url(&self) -> &str {
        self.place.url().expect("the database is on a server")
    }

    /// Asks the database. The session is kept, and made anew after a test that
    /// failed in the middle.
    fn ask<T>(&self, question: impl FnOnce(&mut Client) -> T) -> T {
        let mut client = self.client.lock().expect("no other question failed");
        question(client.get_or_insert_with(|| Client::new(self)))
    }

    /// Ends the session for what the test asks: the next question opens another.
    pub fn hang_up(&self) {
        self.client.lock().expect("no question failed").take();
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

    /// [`Rig::spawn`], with the network of a namespace.
    #[must_use]
    pub fn spawn_inside(&self, namespace: &Namespace, arguments: &[&str]) -> Running {
        let mut command = namespace.command(process::binary());
        command.args(arguments).args(["--log-format", "json"]);
        Running::start(command.current_dir(self.folder.path()).env_remove("HOST_LOG"))
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

    /// Waits until the server has let go of every process of the host, of which none
    /// may live: until then it may still commit what it had from one that was killed.
    /// An embedded store has let go when the process is gone.
    pub fn wait_until_let_go(&self) {
        if matches!(self.place, Place::File(_)) {
            return;
        }
        let sessions = "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'event-host'";
        wait_until("the server has let go of the dead", PATIENCE, || self.number(sessions) == 0);
    }

    /// Whether the database is a file, and not on a server.
    #[must_use]
    pub fn database_is_a_file(&self) -> bool {
        self.place().url().is_none()
    }

    /// The database file of a rig with an embedded store.
    ///
    /// # Panics
    /// When its database is on a server.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        match &self.place {
            Place::File(file) => file.clone(),
            Place::Server(_) | Place::Url(_) => panic!("the database is on a server"),
        }
    }

    /// The one number that a query gives; none is 0. In PostgreSQL it must be a
    /// `bigint`, as a count is.
    #[must_use]
    pub fn number(&self, sql: &str) -> i64 {
        self.ask(|client| client.number(sql))
    }

    /// The numbers in the first row that a query gives; NULL is 0.
    #[must_use]
    pub fn numbers<const N: usize>(&self, sql: &str) -> [i64; N] {
        let rows = self.ask(|client| client.rows(sql));
        std::array::from_fn(|column| rows.first().map_or(0, |row| row.number(column)))
    }

    /// The texts in the first column that a query gives.
    #[must_use]
    pub fn texts(&self, sql: &str) -> Vec<String> {
        self.ask(|client| client.texts(sql))
    }

    /// Bytes as text, in the SQL of the rig's database.
    #[must_use]
    pub fn as_text(&self, column: &str) -> String {
        match self.place {
            Place::File(_) => format!("CAST({column} AS TEXT)"),
            Place::Server(_) | Place::Url(_) => format!("convert_from({column}, 'UTF8')"),
        }
    }

    /// An integer in a group's state; none is 0.
    #[must_use]
    pub fn state(&self, group: &str, key: &str) -> i64 {
        let value = self.as_text("value");
        self.number(&format!(
            "SELECT CAST({value} AS BIGINT) FROM state
             WHERE group_name = '{group}' AND key = '{key}'"
        ))
    }

    /// The JSON data of every event of a type, in the log's order.
    #[must_use]
    pub fn data_of(&self, event_type: &str) -> Vec<Value> {
        let data = self.as_text("data");
        let sql =
            format!("SELECT {data} FROM events WHERE type = '{event_type}' ORDER BY position");
        let texts = self.texts(&sql);
        texts.iter().map(|text| serde_json::from_str(text).expect("data is JSON")).collect()
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
