//! Looks into the database, beside the host and without its code.

use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};

/// Runs a query and gives its rows.
pub(crate) fn rows(file: &Path, sql: &str) -> Vec<SqliteRow> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .busy_timeout(std::time::Duration::from_secs(20));
        let mut connection = options.connect().await.expect("the database opens");
        // Tests write their own SQL.
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await;
        rows.unwrap_or_else(|error| panic!("{sql}: {error}"))
    })
}

/// One integer; NULL, and no row, are 0.
pub(crate) fn number(row: Option<&SqliteRow>, column: usize) -> i64 {
    row.map_or(0, |row| row.get::<Option<i64>, _>(column).unwrap_or(0))
}
