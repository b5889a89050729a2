//! Looks into the database, beside the host and without its code.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};
use tokio::runtime::{Builder, Runtime};

use crate::Rig;

/// Runs a query and gives its rows.
pub(crate) fn rows(file: &Path, sql: &str) -> Vec<SqliteRow> {
    runtime().block_on(async {
        let mut connection = options(file).connect().await.expect("the database opens");
        // Tests write their own SQL.
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await;
        rows.unwrap_or_else(|error| panic!("{sql}: {error}"))
    })
}

/// One integer; NULL, and no row, are 0.
pub(crate) fn number(row: Option<&SqliteRow>, column: usize) -> i64 {
    row.map_or(0, |row| row.get::<Option<i64>, _>(column).unwrap_or(0))
}

/// A client of the database that is not the host: what it does is SQL, in as
/// many statements and transactions as it likes.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    connection: SqliteConnection,
}

impl Client {
    /// Connects to a rig's database.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn new(rig: &Rig) -> Self {
        let runtime = runtime();
        let connection = runtime.block_on(options(&rig.database()).connect());
        Self { connection: connection.expect("the database opens"), runtime }
    }

    /// Executes one statement.
    ///
    /// # Panics
    /// When it fails.
    pub fn execute(&mut self, sql: &str) {
        let work = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.connection);
        self.runtime.block_on(work).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}

fn options(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(20))
}
