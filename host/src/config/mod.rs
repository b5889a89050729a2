//! handlers.toml: read, checked whole, and turned into typed settings.
//!
//! Nothing runs on a file with a mistake in it. [`Config::load`] collects every
//! problem that it can find, each with its line, what is wrong and what would be
//! right; a secret from the environment never shows in a message. Whether the
//! components exist and fit is left to the sandbox.

mod build;
mod component;
mod database;
mod document;
mod error;
mod event_types;
mod grants;
mod handlers;
mod ingest;
mod keys;
mod listen;
mod postgres;
mod schedules;
mod section;
mod sources;
mod telemetry;
mod tenants;
mod tokens;
mod value;
mod variables;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::{DeTable, DeValue};

pub use build::{BuildBy, BuildSettings};
pub use component::Component;
pub use database::{DatabaseUrl, GivenUrl, InvalidDatabase};
use document::Document;
pub use error::{ConfigErrors, Problem};
pub use handlers::HandlerSettings;
pub use postgres::{InvalidPostgresUrl, PostgresUrl};
use section::Section;
pub use tenants::TenantSettings;
use tenants::Tenants;
pub(crate) use value::duration;
use variables::{Environment, Variables};

use event_host_core::clock::LONGEST_WAIT;
use event_host_core::digest::Digest;
use event_host_delivery::admission::MAX_CONCURRENCY;
use event_host_http::Hook;
use event_host_schedules::Schedule;
use event_host_store::Retention;

/// How long handlers may go on after a stop, unless the file says otherwise.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// The shortest and the longest time that compiling a component may be allowed.
const COMPILE_TIMEOUT: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);

/// The shortest and the longest time for which events can be kept.
const RETENTION: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(100 * 365 * 86_400);

/// A checked handlers.toml.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The file.
    pub path: PathBuf,
    /// The database.
    pub database: DatabaseUrl,
    /// A direct connection for the lock session, where `database` leads through
    /// a pooler. Only with PostgreSQL.
    pub lock_database: Option<PostgresUrl>,
    /// How long a handler may go on after a stop was asked for.
    pub grace: Duration,
    /// Whether the host brings the schema up to date before it runs.
    pub migrate: bool,
    /// How many attempts run at once, of all handlers; `None` leaves it to the
    /// machine.
    pub concurrency: Option<usize>,
    /// What compiling a component may take.
    pub compilation: Compilation,
    /// How long events are kept once no group needs them any more.
    pub retention: Retention,
    /// What events that come in by HTTP may come to, and how they are published.
    pub ingest: event_host_ingest::Settings,
    /// The tenants that the file knows, in its order. Without any, a handler's
    /// tenant is no more than a name.
    pub tenants: Vec<TenantSettings>,
    /// How the host is measured.
    pub metrics: event_host_metrics::Settings,
    /// What tells the file from others.
    pub digest: FileDigest,
    /// Who sends webhooks, in the order of the file.
    pub sources: Vec<Hook>,
    /// What comes by the clock, in the order of the file.
    pub schedules: Vec<Schedule>,
    /// At least one, unless none is needed, in the order of the file; no two in one group.
    pub handlers: Vec<HandlerSettings>,
    /// Where the host is reached by HTTP, and by whom.
    pub http: event_host_http::Settings,
    /// How long a stop that was asked for waits before anything is closed.
    pub drain_delay: Duration,
}

/// The digest of a settings file. It is no part of what the file says, which two files may say
/// alike: so any two are equal.
#[derive(Debug, Clone)]
pub struct FileDigest(Digest);

impl FileDigest {
    /// As much of it as tells one from another at a glance.
    #[must_use]
    pub fn short(&self) -> &str {
        self.0.short()
    }
}

impl PartialEq for FileDigest {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// What compiling one component may take; `None` leaves it to the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compilation {
    /// Bytes of memory of the process that compiles (`compile_memory`).
    pub memory_bytes: Option<u64>,
    /// Its time of processors (`compile_timeout`).
    pub timeout: Option<Duration>,
}

/// Which databases to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Databases {
    /// The database.
    pub database: DatabaseUrl,
    /// A direct connection for the lock session, where `database` leads through
    /// a pooler. Only with PostgreSQL.
    pub lock_database: Option<PostgresUrl>,
}

/// What the command line says over the file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// A database URL; relative paths are taken from the working directory. The
    /// file's `database` and `lock_database` then count for nothing.
    pub database: Option<GivenUrl>,
    /// The loopback address to serve at, beside what the file says.
    pub http: Option<SocketAddr>,
    /// Whether a file without handlers will do.
    pub needs_no_handlers: bool,
}

impl Config {
    /// Reads and checks a file, with the variables of the environment.
    ///
    /// # Errors
    /// With everything that is wrong.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Self, ConfigErrors> {
        let text = read(path)?;
        Self::parse(&text, path, overrides, &|name| std::env::var(name))
    }

    /// The databases alone.
    #[must_use]
    pub fn databases(&self) -> Databases {
        Databases { database: self.database.clone(), lock_database: self.lock_database.clone() }
    }

    /// Reads only which database to use, for commands that run no handler: they
    /// work while a handler's settings are broken, and without a file if the
    /// command line names the database.
    ///
    /// # Errors
    /// When the file is needed and cannot be read or is not TOML, or the
    /// database is named wrongly.
    pub fn load_databases(path: &Path, overrides: &Overrides) -> Result<Databases, ConfigErrors> {
        match &overrides.database {
            Some(url) => Ok(Databases {
                database: override_database(path, url, &|name| std::env::var(name))?,
                lock_database: None,
            }),
            None => {
                let text = read(path)?;
                parse_databases(&text, path, &|name| std::env::var(name))
            }
        }
    }

    fn parse(
        text: &str,
        path: &Path,
        overrides: &Overrides,
        environment: &Environment<'_>,
    ) -> Result<Self, ConfigErrors> {
        let table = syntax(text, path)?;
        let document = Document::new(text, Variables { environment, directory: directory(path) });
        let mut top = Section::top(&document, &table);
        let directory = directory(path);
        let (database, lock_database) = match &overrides.database {
            Some(url) => {
                for key in ["database", "lock_database"] {
                    top.entry(key);
                }
                (override_database(path, url, environment)?, None)
            }
            None => databases(&mut top, directory, environment),
        };
        let migrate = top.boolean("migrate").unwrap_or(true);
        let grace = top.duration("grace", Duration::ZERO..=LONGEST_WAIT).unwrap_or(DEFAULT_GRACE);
        let concurrency = top.integer("concurrency", 1..=MAX_CONCURRENCY);
        let compilation = Compilation {
            memory_bytes: top.size("compile_memory", "256MiB"..="64GiB").map(|bytes| bytes as u64),
            timeout: top.duration("compile_timeout", COMPILE_TIMEOUT),
        };
        let retention = Retention {
            max_age: top.duration("retention", RETENTION),
            max_bytes: top.size("retention_size", "1MiB"..="1PiB").map(|bytes| bytes as u64),
        };
        let mut ingest = ingest::ingest(top.section("ingest", &keys::INGEST));
        let metrics = telemetry::metrics(&mut top);
        let tenants = Tenants::read(&mut top, &document);
        let schedules = schedules::schedules(&mut top, &document, &tenants);
        let handlers = handlers_of(&mut top, &document, &tenants, directory, overrides);
        let listeners = listen::listeners(&mut top, &document, overrides.http, directory);
        let sources = sources::sources(&mut top, &document, &tenants, &listeners, &ingest);
        let http = event_host_http::Settings {
            listeners,
            tokens: tokens::tokens(&mut top, &document, &tenants),
            tenants: tenants.names(),
        };
        let drain_delay = top.duration("drain_delay", Duration::ZERO..=LONGEST_WAIT);
        top.finish();
        let tenants = tenants.into_settings();
        ingest.tenant_rates = tenants
            .iter()
            .filter_map(|tenant| Some((tenant.name.clone(), tenant.ingested_per_second?)))
            .collect();
        let problems = document.into_problems();
        if !problems.is_empty() {
            return Err(ConfigErrors { path: path.to_owned(), problems });
        }
        Ok(Self {
            path: path.to_owned(),
            database,
            lock_database,
            grace,
            migrate,
            concurrency,
            compilation,
            retention,
            ingest,
            metrics,
            digest: FileDigest(Digest::of(text.as_bytes())),
            tenants,
            sources,
            schedules,
            handlers,
            http,
            drain_delay: drain_delay.unwrap_or_default(),
        })
    }
}

fn read(path: &Path) -> Result<String, ConfigErrors> {
    let fail = |message: String| {
        ConfigErrors::whole(path.to_owned(), format!("{}: {message}", path.display()))
    };
    let bytes = std::fs::read(path).map_err(|e| {
        if e.kind() == std::io::ErrorKind::NotFound {
            fail("there is no such file: name another with `--config FILE`".to_owned())
        } else {
            fail(format!("cannot be read: {e}"))
        }
    })?;
    String::from_utf8(bytes).map_err(|e| {
        let valid = e.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(&e.as_bytes()[..valid]);
        let problem = Problem {
            place: Some(error::place(&text, valid)),
            message: "not UTF-8 from here on, which TOML must be".to_owned(),
        };
        ConfigErrors { path: path.to_owned(), problems: vec![problem] }
    })
}

/// Where relative paths of the file begin.
fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Parses TOML. What a broken file seems to say is not looked at.
fn syntax<'a>(text: &'a str, path: &Path) -> Result<DeTable<'a>, ConfigErrors> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(table.into_inner());
    }
    let mut problems: Vec<Problem> = errors
        .iter()
        .map(|e| Problem {
            place: Some(error::place(text, e.span().map_or(text.len(), |span| span.start))),
            message: format!("not TOML: {}", e.message()),
        })
        .collect();
    problems.sort_by_key(|problem| problem.place);
    // The rest of a line makes no sense after its first error.
    problems.dedup_by_key(|problem| problem.place.map(|(line, _)| line));
    Err(ConfigErrors { path: path.to_owned(), problems })
}

fn override_database(
    path: &Path,
    url: &GivenUrl,
    environment: &Environment<'_>,
) -> Result<DatabaseUrl, ConfigErrors> {
    DatabaseUrl::read(url.expose(), Path::new(""), environment)
        .map_err(|e| ConfigErrors::whole(path.to_owned(), format!("`--database`: {e}")))
}

fn parse_databases(
    text: &str,
    path: &Path,
    environment: &Environment<'_>,
) -> Result<Databases, ConfigErrors> {
    let table = syntax(text, path)?;
    let document = Document::new(text, Variables { environment, directory: directory(path) });
    let mut top = Section::top(&document, &table);
    let (database, lock_database) = databases(&mut top, directory(path), environment);
    drop(top);
    let problems = document.into_problems();
    if problems.is_empty() {
        Ok(Databases { database, lock_database })
    } else {
        Err(ConfigErrors { path: path.to_owned(), problems })
    }
}

/// Reads the database and the one for locks; after a problem, the default stands
/// in for the former, and nothing for the latter.
fn databases(
    top: &mut Section<'_>,
    directory: &Path,
    environment: &Environment<'_>,
) -> (DatabaseUrl, Option<PostgresUrl>) {
    let fallback = DatabaseUrl::default_in(directory);
    // `None` where it is not known which.
    let database = match top.text("database", "\"sqlite:host.db\"") {
        None => top.entry("database").is_none().then(|| fallback.clone()),
        Some(text) => match DatabaseUrl::read(&text.value, directory, environment) {
            Ok(database) => Some(database),
            Err(e) => {
                top.problem(text.at, format!("`database`: {e}"));
                None
            }
        },
    };
    let lock_database = match (top.entry("lock_database"), &database) {
        (Some(entry), Some(DatabaseUrl::Sqlite(_))) => {
            top.problem(
                entry.at,
                "`lock_database` goes with PostgreSQL behind a pooler: with SQLite, leave it out",
            );
            None
        }
        (Some(entry), _) => {
            top.text_of(entry, "\"postgres://user@server/database\"").and_then(|text| {
                PostgresUrl::read(&text.value, directory, environment)
                    .map_err(|e| top.problem(text.at, format!("`lock_database`: {e}")))
                    .ok()
            })
        }
        (None, _) => None,
    };
    (database.unwrap_or(fallback), lock_database)
}

fn handlers_of(
    top: &mut Section<'_>,
    document: &Document<'_>,
    tenants: &Tenants<'_>,
    directory: &Path,
    overrides: &Overrides,
) -> Vec<HandlerSettings> {
    const HINT: &str =
        "add a table [handlers.NAME] with `component` and `subscribe`, and a name of your own";
    match top.entry("handlers") {
        None => {
            if !overrides.needs_no_handlers && top.lacks("handlers") {
                top.problem(0, format!("the file has no handlers: {HINT}"));
            }
            Vec::new()
        }
        Some(entry) => {
            let DeValue::Table(table) = entry.value else {
                top.problem(entry.at, format!("`handlers` is no table of handlers: {HINT}"));
                return Vec::new();
            };
            let entries = document::entries(table);
            if entries.is_empty() {
                top.problem(entry.at, format!("`handlers` is empty: {HINT}"));
            }
            handlers::handlers(document, &entries, tenants, directory)
        }
    }
}

#[cfg(test)]
mod tests;
