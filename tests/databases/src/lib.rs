//! A PostgreSQL database for each test, on the server that `DATABASE_URL`
//! names; `cargo xtask test` starts one and names it.
//!
//! Tests run at the same time, in many processes, and share nothing but the
//! server. A database that many of them need in the same state is brought there
//! once, as a template, and copied.
//!
//! Nothing here stays tied to the runtime that awaits it, so a test without one
//! may block on it with one of the moment.

// A library of tests: it says what it expects by failing, as a test does.
#![allow(clippy::expect_used, clippy::panic)]

mod template;

use std::env;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::runtime::Builder;
use tokio::time::timeout;

/// How long one step on the server may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A database of one test's own. Dropping it removes it, with whoever is still
/// connected and with its prepared transactions.
#[derive(Debug)]
pub struct Database {
    name: String,
    url: String,
    server: String,
}

impl Database {
    /// Creates an empty database.
    ///
    /// # Panics
    /// When `DATABASE_URL` is not set, or the server does not create one.
    pub async fn create() -> Self {
        Self::create_on(&server()).await
    }

    /// [`Database::create`], on a server that a URL of one of its databases names.
    ///
    /// # Panics
    /// When the server does not create one.
    pub async fn create_on(server: &str) -> Self {
        let mut connection = connect(server).await;
        let database = Self::copy_of("template0", server, &mut connection).await;
        close(connection).await;
        database
    }

    /// Creates a copy of the template that belongs to `key`: what `prepare` made
    /// of an empty database, given its URL.
    ///
    /// One process prepares it, while others that want it wait; later ones find
    /// it ready, also after another build. So the key must change with everything
    /// that `prepare` does: a hash of the migrations will do. A session that
    /// `prepare` leaves behind is ended.
    ///
    /// # Panics
    /// When `DATABASE_URL` is not set, the server does not create a database, or
    /// the key is not 1 to 40 of `a` to `z`, `0` to `9` and `_`. When `prepare`
    /// panics, nothing is left of the template.
    pub async fn from_template(key: &str, prepare: impl AsyncFnOnce(String)) -> Self {
        let server = server();
        let mut connection = connect(&server).await;
        let template = template::find_or_prepare(key, &server, &mut connection, prepare).await;
        let database = Self::copy_of(&template, &server, &mut connection).await;
        close(connection).await;
        database
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    async fn copy_of(template: &str, server: &str, connection: &mut PgConnection) -> Self {
        // A process may leave a database behind when it is killed, and its id to
        // another.
        let name = format!("test_{}_{:016x}", std::process::id(), fastrand::u64(..));
        execute(connection, format!("CREATE DATABASE {name} TEMPLATE {template}")).await;
        Self { url: with_database(server, &name), name, server: server.to_owned() }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Within a runtime one cannot block on another, except in another thread.
        let dropped = std::thread::scope(|scope| {
            scope
                .spawn(|| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
                    let runtime = Builder::new_current_thread().enable_all().build()?;
                    runtime.block_on(async { timeout(PATIENCE, remove(self)).await })??;
                    Ok(())
                })
                .join()
        });
        match dropped {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("database {} is left behind: {error}", self.name),
            Err(_) => eprintln!("database {} is left behind: its removal panicked", self.name),
        }
    }
}

async fn remove(database: &Database) -> sqlx::Result<()> {
    let mut server = PgConnection::connect(&database.server).await?;
    // These keep a database from being dropped, by force too, and only a session
    // in the database itself ends them.
    let prepared: Vec<String> =
        sqlx::query_scalar("SELECT gid FROM pg_prepared_xacts WHERE database = $1")
            .bind(&database.name)
            .fetch_all(&mut server)
            .await?;
    if !prepared.is_empty() {
        let mut inside = PgConnection::connect(&database.url).await?;
        for gid in prepared {
            let sql = format!("ROLLBACK PREPARED '{}'", gid.replace('\'', "''"));
            inside.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
        }
        inside.close().await?;
    }
    // Its own sessions may have dropped it.
    let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", database.name);
    server.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
    server.close().await
}

fn server() -> String {
    match env::var("DATABASE_URL") {
        Ok(url) if is_postgres(&url) => url,
        _ => panic!(
            "this test needs a PostgreSQL server: run it with `cargo xtask test`, or name \
             one in DATABASE_URL (postgres://…)"
        ),
    }
}

fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}

/// The URL of another database of the same server.
fn with_database(server: &str, name: &str) -> String {
    let authority = server.find("://").map_or(0, |at| at + "://".len());
    let rest = &server[authority..];
    let path = authority + rest.find(['/', '?']).unwrap_or(rest.len());
    let query = server[path..].find('?').map_or("", |at| &server[path + at..]);
    format!("{}/{name}{query}", &server[..path])
}

async fn connect(url: &str) -> PgConnection {
    timeout(PATIENCE, PgConnection::connect(url))
        .await
        .unwrap_or_else(|_| panic!("the server of DATABASE_URL did not answer in {PATIENCE:?}"))
        .unwrap_or_else(|error| panic!("cannot connect to the server of DATABASE_URL: {error}"))
}

/// Executes a statement made of names that are identifiers as they stand.
async fn execute(connection: &mut PgConnection, sql: String) {
    timeout(PATIENCE, connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.clone()))))
        .await
        .unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {sql}"))
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn close(connection: PgConnection) {
    // The session ends with the socket, too; to say so is only faster.
    let _ = timeout(PATIENCE, connection.close()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_keeps_everything_else_of_a_url() {
        for (server, wanted) in [
            ("postgres://postgres@127.0.0.1:5432/postgres", "postgres://postgres@127.0.0.1:5432/d"),
            ("postgresql://u:p%2F@h/a?sslmode=require", "postgresql://u:p%2F@h/d?sslmode=require"),
            ("postgres://h", "postgres://h/d"),
            ("postgres://h?host=/run/x", "postgres://h/d?host=/run/x"),
            ("postgres:///a?host=/run/x", "postgres:///d?host=/run/x"),
        ] {
            assert_eq!(with_database(server, "d"), wanted, "{server}");
        }
    }
}
