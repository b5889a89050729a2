//! Looks into the database, beside the host and without its code.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row, SqliteConnection};
use tokio::runtime::{Builder, Runtime};

use crate::Rig;

/// Which database a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// The embedded one.
    Sqlite,
    /// The shared one, on the server that `DATABASE_URL` names.
    Postgres,
}

/// Makes a test of each function for each store: `fn promise(store: Store)`
/// becomes `sqlite::promise` and `postgres::promise`.
#[macro_export]
macro_rules! on_both_stores {
    ($($promise:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[test]
                fn $promise() {
                    super::$promise($crate::Store::Sqlite);
                }
            )*
        }
        mod postgres {
            $(
                #[test]
                fn $promise() {
                    super::$promise($crate::Store::Postgres);
                }
            )*
        }
    };
}

/// Where a test's database is.
#[derive(Debug)]
pub(crate) enum Place {
    /// A file.
    File(PathBuf),
    /// A database of the test's own.
    Server(test_databases::Database),
    /// A database on a server of the test's own.
    Url(String),
}

impl Place {
    pub(crate) fn of(store: Store, folder: &Path) -> Self {
        match store {
            Store::Sqlite => Self::File(folder.join("host.db")),
            Store::Postgres => Self::Server(runtime().block_on(test_databases::Database::create())),
        }
    }

    /// What the settings name it; nothing where the default will do.
    pub(crate) fn setting(&self) -> Option<String> {
        self.url().map(|url| format!("database = \"{url}\"\n"))
    }

    /// Its URL, if it is on a server.
    pub(crate) fn url(&self) -> Option<&str> {
        match self {
            Self::File(_) => None,
            Self::Server(database) => Some(database.url()),
            Self::Url(url) => Some(url),
        }
    }
}

/// A row of numbers or texts, from either database.
#[derive(Debug)]
pub(crate) enum AnyRow {
    Sqlite(sqlx::sqlite::SqliteRow),
    Postgres(sqlx::postgres::PgRow),
}

impl AnyRow {
    /// One integer; NULL is 0.
    pub(crate) fn number(&self, column: usize) -> i64 {
        match self {
            Self::Sqlite(row) => row.get::<Option<i64>, _>(column),
            Self::Postgres(row) => row.get::<Option<i64>, _>(column),
        }
        .unwrap_or(0)
    }

    /// One text.
    pub(crate) fn text(&self, column: usize) -> String {
        match self {
            Self::Sqlite(row) => row.get(column),
            Self::Postgres(row) => row.get(column),
        }
    }
}

#[derive(Debug)]
enum Session {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

/// A client of the database that is not the host: what it does is SQL, in as
/// many statements and transactions as it likes. Names need no schema.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    session: Session,
}

impl Client {
    /// Connects to a rig's database.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn new(rig: &Rig) -> Self {
        Self::connect(rig.place())
    }

    /// Connects to a PostgreSQL database.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn of_url(url: &str) -> Self {
        Self::connect(&Place::Url(url.to_owned()))
    }

    /// Connects to a PostgreSQL database as a pooler's client: with no parameters
    /// that one would refuse, so names need their schema.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn of_pooler(url: &str) -> Self {
        let runtime = runtime();
        let options: PgConnectOptions = url.parse().expect("a URL");
        let options = options.extra_float_digits(None);
        let session = runtime.block_on(options.connect()).expect("the database opens");
        Self { runtime, session: Session::Postgres(session) }
    }

    fn connect(place: &Place) -> Self {
        let runtime = runtime();
        let session = runtime.block_on(async {
            match place {
                Place::File(file) => Session::Sqlite(
                    SqliteConnectOptions::new()
                        .filename(file)
                        .busy_timeout(Duration::from_secs(20))
                        .connect()
                        .await
                        .expect("the database opens"),
                ),
                Place::Server(_) | Place::Url(_) => {
                    let url = place.url().expect("it is on a server");
                    let options: PgConnectOptions = url.parse().expect("a URL");
                    let options = options.options([("search_path", "event_host,public")]);
                    Session::Postgres(options.connect().await.expect("the database opens"))
                }
            }
        });
        Self { runtime, session }
    }

    /// Executes statements, one after the other.
    ///
    /// # Panics
    /// When one fails.
    pub fn execute(&mut self, sql: &str) {
        self.try_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Executes statements, one after the other, of which one may fail.
    ///
    /// # Errors
    /// With what the database said.
    pub fn try_execute(&mut self, sql: &str) -> Result<(), sqlx::Error> {
        let statement = sqlx::raw_sql(AssertSqlSafe(sql));
        match &mut self.session {
            Session::Sqlite(session) => {
                self.runtime.block_on(statement.execute(session)).map(|_| ())
            }
            Session::Postgres(session) => {
                self.runtime.block_on(statement.execute(session)).map(|_| ())
            }
        }
    }

    pub(crate) fn rows(&mut self, sql: &str) -> Vec<AnyRow> {
        // Tests write their own SQL.
        let query = AssertSqlSafe(sql);
        let rows = match &mut self.session {
            Session::Sqlite(session) => self
                .runtime
                .block_on(sqlx::query(query).fetch_all(session))
                .map(|rows| rows.into_iter().map(AnyRow::Sqlite).collect()),
            Session::Postgres(session) => self
                .runtime
                .block_on(sqlx::query(query).fetch_all(session))
                .map(|rows| rows.into_iter().map(AnyRow::Postgres).collect()),
        };
        rows.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// [`Client::texts`], without preparing a statement, which some poolers
    /// cannot carry.
    ///
    /// # Panics
    /// When the query fails, or the client is not of a PostgreSQL database.
    pub fn texts_unprepared(&mut self, sql: &str) -> Vec<String> {
        let Session::Postgres(session) = &mut self.session else {
            panic!("SQLite has no poolers");
        };
        let rows = self.runtime.block_on(sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(session));
        let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error}"));
        rows.into_iter().map(|row| AnyRow::Postgres(row).text(0)).collect()
    }

    /// The one number that a query gives; none, and NULL, are 0. In PostgreSQL
    /// it must be a `bigint`, as a count is.
    ///
    /// # Panics
    /// When the query fails.
    pub fn number(&mut self, sql: &str) -> i64 {
        self.rows(sql).first().map_or(0, |row| row.number(0))
    }

    /// The texts in the first column that a query gives.
    ///
    /// # Panics
    /// When the query fails.
    pub fn texts(&mut self, sql: &str) -> Vec<String> {
        self.rows(sql).iter().map(|row| row.text(0)).collect()
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}
