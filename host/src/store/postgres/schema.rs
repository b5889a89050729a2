//! The schema and its migrations, which are embedded in the program.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::migrate::{Migrate, MigrateError, Migration, Migrator};
use sqlx::{Connection, Executor, PgConnection};
use tokio::time::Instant;

use super::error::Broken;
use crate::store::StoreError;

/// Which migrations a database has had.
const APPLIED: &str = "event_host.migrations";

/// The advisory lock of whoever migrates: `evhostmg` in ASCII.
const MIGRATING: i64 = 0x6576_686f_7374_6d67;

/// How long another host is given for its migration.
const PATIENCE: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(50);

fn embedded() -> Migrator {
    let mut migrator = sqlx::migrate!("../migrations/postgres");
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

pub(super) async fn applied(connection: &mut PgConnection) -> Result<BTreeSet<i64>, Broken> {
    // Read as any other rows, and not by `to_regclass`: that goes by what the
    // session has cached, and does not see what another has made since this
    // transaction began.
    let exists: bool = sqlx::query_scalar(
        "SELECT EXISTS (
             SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname || '.' || c.relname = $1)",
    )
    .bind(APPLIED)
    .fetch_one(&mut *connection)
    .await?;
    if !exists {
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
) -> Result<(), Broken> {
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

/// Applies what is pending, all of it in one transaction. Of many who want to,
/// one does at a time; the others look again until nothing is left to do.
pub(super) async fn migrate(
    connection: &mut PgConnection,
    server: &str,
) -> Result<Vec<String>, Broken> {
    let embedded = embedded();
    let begun = Instant::now();
    loop {
        let before = applied(connection).await?;
        if embedded.iter().all(|migration| before.contains(&migration.version)) {
            check(connection, server, true).await?;
            return Ok(Vec::new());
        }
        let mut transaction = connection.begin().await?;
        let ours: bool = sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)")
            .bind(MIGRATING)
            .fetch_one(&mut *transaction)
            .await?;
        if ours {
            // Whoever had the lock before may have done it all.
            let before = applied(&mut transaction).await?;
            transaction
                .execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
                .await?;
            if let Err(error) = embedded.run_direct(None, &mut *transaction, false).await {
                return Err(worded(error, server, &embedded));
            }
            transaction.commit().await?;
            let new = embedded.iter().filter(|migration| !before.contains(&migration.version));
            return Ok(new.map(name).collect());
        }
        transaction.rollback().await?;
        if begun.elapsed() >= PATIENCE {
            return Err(StoreError::Unavailable(format!(
                "somebody else has been migrating {server} for {} s",
                PATIENCE.as_secs()
            ))
            .into());
        }
        tokio::time::sleep(POLL.mul_f64(0.5 + fastrand::f64())).await;
    }
}

fn worded(error: MigrateError, server: &str, embedded: &Migrator) -> Broken {
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
