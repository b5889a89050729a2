//! The schema and its migrations, which are embedded in the program.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row, SqlSafeStr as _};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::connection::{Connections, LONG_DEADLINE};
use super::error::PostgresError;
use super::on_shared::{on_shared, on_shared_in_its_own};
use super::owner::Owner;
use super::piece::begin;
use super::{PostgresStore, guards, owner};
use event_host_core::foreign::one_line;
use event_host_store::driver::migrations::Embedded;
use event_host_store::{Adopted, Schema, StoreError};

#[async_trait]
impl Schema for PostgresStore {
    async fn migrate(&self) -> Result<Vec<String>, StoreError> {
        let server = self.connections.server();
        on_shared_in_its_own!(self.connections, "bring the schema up to date", LONG_DEADLINE, |c| {
            migrate(&self.connections, c, &server)
        })
    }

    async fn adopt(&self) -> Result<Adopted, StoreError> {
        on_shared!(self.connections, "adopt the database", |c| guards::adopt(c))
    }
}

/// Which migrations a database has had.
const APPLIED: &str = "event_host.migrations";

/// How long a migration is tried while others hold what it needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one attempt waits for a lock: whoever wants the same table, such as every
/// producer, waits behind it meanwhile.
const WAIT_FOR_A_LOCK: &str = "SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = 0";

/// Between two attempts: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often is looked whom an attempt waits for: a few times while it does.
const LOOK: Duration = Duration::from_millis(20);

/// The files of `migrations/postgres`.
const MIGRATIONS: &[Embedded] = &[Embedded {
    version: 1,
    description: "log and groups",
    sql: include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../migrations/postgres/0001_log_and_groups.sql"
    )),
}];

pub(super) fn embedded() -> Migrator {
    let migrations = MIGRATIONS.iter().map(|file| {
        let (description, sql) = (file.description.into(), file.sql.into_sql_str());
        // sqlx's own macro would read the folder, and have the whole of sqlx compiled a second
        // time, for the compiler's use.
        Migration::new(file.version, description, MigrationType::Simple, sql, false)
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    migrator.dangerous_set_table_name(APPLIED);
    migrator.create_schema("event_host");
    // sqlx would wait inside the server for its lock, and a statement that waits
    // keeps a snapshot open, which can stand in the way of the very migration
    // that it waits for.
    migrator.set_locking(false);
    migrator
}

/// The name of a migration's file.
fn name(migration: &Migration) -> String {
    format!("{:04}_{}", migration.version, migration.description.replace(' ', "_"))
}

async fn has_schema(connection: &mut PgConnection) -> Result<bool, PostgresError> {
    Ok(sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'event_host')")
        .fetch_one(connection)
        .await?)
}

/// Whether the table of the migrations is there.
async fn has_table(connection: &mut PgConnection) -> Result<bool, PostgresError> {
    // Read as any other rows, and not by `to_regclass`: that goes by what the
    // session has cached, and does not see what another has made since this
    // transaction began.
    Ok(sqlx::query_scalar(
        "SELECT EXISTS (
             SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname || '.' || c.relname = $1)",
    )
    .bind(APPLIED)
    .fetch_one(connection)
    .await?)
}

pub(super) async fn applied(connection: &mut PgConnection) -> Result<BTreeSet<i64>, PostgresError> {
    if !has_table(&mut *connection).await? {
        return Ok(BTreeSet::new());
    }
    let listed =
        connection.list_applied_migrations(APPLIED).await.map_err(|error| match error {
            MigrateError::Execute(error) => error,
            other => other.into(),
        })?;
    Ok(listed.into_iter().map(|migration| migration.version).collect())
}

/// Refuses a schema that is newer than this program, and one that is missing or
/// older if it is `required`.
pub(super) async fn check(
    connection: &mut PgConnection,
    server: &str,
    required: bool,
) -> Result<(), PostgresError> {
    let applied = applied(connection).await?;
    let embedded = embedded();
    if let Some(unknown) = applied.iter().find(|version| !embedded.version_exists(**version)) {
        return Err(newer(server, *unknown, &embedded).into());
    }
    let pending = embedded.iter().find(|migration| !applied.contains(&migration.version));
    match pending {
        Some(_) if required && applied.is_empty() => Err(StoreError::Unusable(format!(
            "{server} has no schema `event_host` yet: run `host migrate`"
        ))
        .into()),
        Some(pending) if required => Err(StoreError::Unusable(format!(
            "the schema `event_host` of {server} is older than this version, which also needs {}: run `host migrate`",
            name(pending)
        ))
        .into()),
        _ => Ok(()),
    }
}

fn newer(server: &str, unknown: i64, embedded: &Migrator) -> StoreError {
    let known = embedded.iter().map(|migration| migration.version).max().unwrap_or(0);
    StoreError::Unusable(format!(
        "{server} was migrated by a newer version of host: it has migration {unknown}, and this version knows those up to {known}; use the newer version"
    ))
}

/// Applies what is pending, all of it in one transaction. Of many who want to, one does
/// at a time; the others look again until nothing is left to do.
///
/// What keeps them apart is what they make: the schema, and then the table of the
/// migrations, whose lock takes the rights of its owner. An advisory lock could be held
/// by anybody who may log in. No attempt waits for a lock for long, and there is a pause
/// after each that did, in which those go on who waited behind it.
pub(super) async fn migrate(
    connections: &Connections,
    connection: &mut PgConnection,
    server: &str,
) -> Result<Vec<String>, PostgresError> {
    let embedded = embedded();
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut said = None;
    loop {
        let before = applied(connection).await?;
        if embedded.iter().all(|migration| before.contains(&migration.version)) {
            check(connection, server, true).await?;
            return Ok(Vec::new());
        }
        let in_the_way = match attempt_watched(connections, connection, server, &embedded).await? {
            (Ok(new), _) => return Ok(new),
            (Err(error), in_the_way) => {
                let code = code(&error);
                let is_another_ones_doing = CONFLICTS.contains(&&*code)
                    && (code == LOCK_NOT_AVAILABLE || applied(connection).await? != before);
                if !is_another_ones_doing && code != UNIQUE_VIOLATION {
                    return Err(worded(error, server, &embedded));
                }
                in_the_way
            }
        };
        let who = in_the_way.unwrap_or_else(|| "somebody else".to_owned());
        if begun.elapsed() >= PATIENCE {
            return Err(StoreError::Unavailable(format!(
                "the schema of {server} is not migrated: {who} has held what that needs for {} s; end that session, or try again when it is done",
                PATIENCE.as_secs()
            ))
            .into());
        }
        // Another host that migrates is soon done.
        if pause >= LONGEST_PAUSE && said.as_ref() != Some(&who) {
            warn!("the migration waits for {who}; nobody is held up by it meanwhile");
            said = Some(who);
        }
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

const LOCK_NOT_AVAILABLE: &str = "55P03";

const UNIQUE_VIOLATION: &str = "23505";

/// What an attempt meets that another one was faster than: its lock, and then what it
/// has made.
const CONFLICTS: &[&str] =
    &[LOCK_NOT_AVAILABLE, UNIQUE_VIOLATION, "42P06", "42P07", "42723", "42710", "40P01"];

/// The SQLSTATE of a failure; empty if the server did not answer.
fn code(error: &MigrateError) -> String {
    let error = match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error,
        _ => return String::new(),
    };
    let code = error.as_database_error().and_then(|answer| answer.code());
    code.map(Cow::into_owned).unwrap_or_default()
}

/// One attempt, and who was in its way if it waited for somebody.
pub(super) async fn attempt_watched(
    connections: &Connections,
    connection: &mut PgConnection,
    server: &str,
    embedded: &Migrator,
) -> Result<(Result<Vec<String>, MigrateError>, Option<String>), PostgresError> {
    let mut watcher = connections.connect_as_shared().await?;
    let backend = OnceLock::new();
    let in_the_way = Mutex::new(None);
    let attempt = attempt(connection, server, embedded, &backend);
    let watch = async {
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(&backend) = backend.get() else { continue };
            match blockers(&mut watcher, backend).await {
                Ok(None) => {}
                Ok(who) => *in_the_way.lock().unwrap_or_else(PoisonError::into_inner) = who,
                // The attempt itself has the word.
                Err(why) => {
                    debug!("cannot see whom the migration waits for: {why:?}");
                    std::future::pending::<()>().await;
                }
            }
        }
    };
    let attempted = tokio::select! {
        biased;
        attempted = attempt => attempted?,
        () = watch => return Ok((Ok(Vec::new()), None)),
    };
    let who = in_the_way.lock().unwrap_or_else(PoisonError::into_inner).take();
    // A goodbye is a courtesy: the server notices without it.
    let _ = watcher.close().await;
    Ok((attempted, who))
}

async fn attempt(
    connection: &mut PgConnection,
    server: &str,
    embedded: &Migrator,
    backend: &OnceLock<i32>,
) -> Result<Result<Vec<String>, MigrateError>, PostgresError> {
    let mut transaction = begin(connection).await?;
    transaction.execute(WAIT_FOR_A_LOCK).await?;
    let pid = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *transaction).await?;
    backend.get_or_init(|| pid);
    // Whose it is, is asked once it is there, so that nobody can be faster.
    if !has_schema(&mut transaction).await?
        && let Err(error) = transaction.execute("CREATE SCHEMA event_host").await
    {
        return Ok(Err(error.into()));
    }
    owner::check(&mut transaction, server, Owner::Ours).await?;
    // Where it is there, whoever migrates has it; where not, whoever makes it.
    if has_table(&mut transaction).await? {
        let lock = format!("LOCK TABLE {APPLIED} IN EXCLUSIVE MODE");
        if let Err(error) = transaction.execute(AssertSqlSafe(lock)).await {
            return Ok(Err(error.into()));
        }
    }
    // Whoever had it before may have done it all.
    let before = applied(&mut transaction).await?;
    if let Err(error) = embedded.run_direct(None, &mut *transaction, false).await {
        return Ok(Err(error));
    }
    transaction.commit().await?;
    let new = embedded.iter().filter(|migration| !before.contains(&migration.version));
    Ok(Ok(new.map(name).collect()))
}

/// Whom a process of the server's waits for.
async fn blockers(
    watcher: &mut PgConnection,
    backend: i32,
) -> Result<Option<String>, PostgresError> {
    let rows = sqlx::query(
        "SELECT b.pid, coalesce(a.application_name, ''), coalesce(a.usename, '')::text
         FROM unnest(pg_blocking_pids($1)) AS b (pid)
         LEFT JOIN pg_stat_activity a ON a.pid = b.pid
         ORDER BY b.pid LIMIT 5",
    )
    .bind(backend)
    .fetch_all(watcher)
    .await?;
    let mut names = Vec::with_capacity(rows.len());
    for row in &rows {
        let pid: i32 = row.try_get_unchecked(0)?;
        let (application, user): (&str, &str) =
            (row.try_get_unchecked(1)?, row.try_get_unchecked(2)?);
        names.push(match pid {
            0 => "a prepared transaction".to_owned(),
            pid => format!(
                "server process {pid} ({}) of role {}",
                one_line(application),
                one_line(user)
            ),
        });
    }
    Ok((!names.is_empty()).then(|| names.join(" and ")))
}

fn worded(error: MigrateError, server: &str, embedded: &Migrator) -> PostgresError {
    match error {
        MigrateError::VersionMissing(unknown) => newer(server, unknown, embedded).into(),
        MigrateError::VersionMismatch(version) => StoreError::Unusable(format!(
            "{server} was migrated by another build of host, whose migration {version} differs from this one's: use that build, or a new database"
        ))
        .into(),
        MigrateError::Execute(sqlx::Error::Database(database))
        | MigrateError::ExecuteMigration(sqlx::Error::Database(database), _)
            if database.code().as_deref() == Some("42501") =>
        {
            StoreError::Unusable(format!(
                "this role may not make or change the schema `event_host` at {server} ({}): run `host migrate` as its owner; for a new one, as a role that has CREATE on the database",
                database.message()
            ))
            .into()
        }
        MigrateError::Execute(error) => error.into(),
        MigrateError::ExecuteMigration(sqlx::Error::Database(database), version) => {
            StoreError::Unusable(format!(
                "migration {version} does not fit what {server} has already: {}",
                database.message()
            ))
            .into()
        }
        other => sqlx::Error::from(other).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use event_host_store::driver::migrations::assert_complete;

    use super::*;

    #[test]
    fn every_migration_of_postgres_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/postgres");
        assert_complete(MIGRATIONS, Path::new(folder));
    }
}
