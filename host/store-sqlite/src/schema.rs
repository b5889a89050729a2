//! The schema and its migrations, which are embedded in the program.

use std::collections::BTreeSet;
use std::path::Path;

use async_trait::async_trait;
use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};
use sqlx::{Connection, SqlSafeStr as _, SqliteConnection};

use super::SqliteStore;
use super::connection::on_writer;
use super::error::SqliteError;
use event_host_store::driver::migrations::Embedded;
use event_host_store::{Adopted, Schema, StoreError};

#[async_trait]
impl Schema for SqliteStore {
    async fn migrate(&self) -> Result<Vec<String>, StoreError> {
        on_writer!(self.connections, "bring the schema up to date", |c| migrate(c, self.path()))
    }

    async fn adopt(&self) -> Result<Adopted, StoreError> {
        Err(StoreError::Refused(format!(
            "{} is a file of SQLite's, which is at home wherever it lies: there is nothing to adopt",
            self.path().display()
        )))
    }

    async fn close(&self) -> Result<(), StoreError> {
        Self::close(self).await
    }
}

/// Which migrations a database has had. A name of our own, because the
/// database may be that of an application which uses sqlx too.
const APPLIED: &str = "event_host_migrations";

/// The files of `migrations/sqlite`.
const MIGRATIONS: &[Embedded] = &[Embedded {
    version: 1,
    description: "log and groups",
    sql: include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../migrations/sqlite/0001_log_and_groups.sql"
    )),
}];

fn embedded() -> Migrator {
    let migrations = MIGRATIONS.iter().map(|file| {
        let (description, sql) = (file.description.into(), file.sql.into_sql_str());
        // sqlx's own macro would read the folder, and have the whole of sqlx compiled a second
        // time, for the compiler's use.
        Migration::new(file.version, description, MigrationType::Simple, sql, false)
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    migrator.dangerous_set_table_name(APPLIED);
    migrator
}

/// The name of a migration's file.
fn name(migration: &Migration) -> String {
    format!("{:04}_{}", migration.version, migration.description.replace(' ', "_"))
}

async fn applied(connection: &mut SqliteConnection) -> Result<BTreeSet<i64>, SqliteError> {
    let exists: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?)",
    )
    .bind(APPLIED)
    .fetch_one(&mut *connection)
    .await?;
    if !exists {
        return Ok(BTreeSet::new());
    }
    let listed = connection.list_applied_migrations(APPLIED).await.map_err(sqlx::Error::from)?;
    Ok(listed.into_iter().map(|migration| migration.version).collect())
}

/// Refuses a schema that is newer than this program, and one that is missing or
/// older if it is `required`.
pub(super) async fn check(
    connection: &mut SqliteConnection,
    path: &Path,
    required: bool,
) -> Result<(), SqliteError> {
    let applied = applied(connection).await?;
    let embedded = embedded();
    if let Some(unknown) = applied.iter().find(|version| !embedded.version_exists(**version)) {
        return Err(newer(path, *unknown, &embedded).into());
    }
    let pending = embedded.iter().find(|migration| !applied.contains(&migration.version));
    match pending {
        Some(_) if required && applied.is_empty() => Err(StoreError::Unusable(format!(
            "{} has no tables of event-host yet: run `host migrate`",
            path.display()
        ))
        .into()),
        Some(pending) if required => Err(StoreError::Unusable(format!(
            "the tables in {} are older than this version, which also needs {}: run `host migrate`",
            path.display(),
            name(pending)
        ))
        .into()),
        _ => Ok(()),
    }
}

fn newer(path: &Path, unknown: i64, embedded: &Migrator) -> StoreError {
    let known = embedded.iter().map(|migration| migration.version).max().unwrap_or(0);
    StoreError::Unusable(format!(
        "{} was written by a newer version of host: it has migration {unknown}, and this version knows those up to {known}; use the newer version",
        path.display()
    ))
}

/// Applies what is pending. sqlx takes no lock on SQLite, so that two processes
/// could both begin with the first migration: here all of it is one immediate
/// transaction, and whoever comes second finds nothing left to do.
pub(super) async fn migrate(
    connection: &mut SqliteConnection,
    path: &Path,
) -> Result<Vec<String>, SqliteError> {
    let embedded = embedded();
    let complete = |applied: &BTreeSet<i64>| {
        embedded.iter().all(|migration| applied.contains(&migration.version))
    };
    if complete(&applied(connection).await?) {
        check(connection, path, true).await?;
        return Ok(Vec::new());
    }
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let before = applied(&mut transaction).await?;
    embedded
        .run_direct(None, &mut *transaction, false)
        .await
        .map_err(|error| worded(error, path, &embedded))?;
    transaction.commit().await?;
    let new = embedded.iter().filter(|migration| !before.contains(&migration.version));
    Ok(new.map(name).collect())
}

fn worded(error: MigrateError, path: &Path, embedded: &Migrator) -> SqliteError {
    let shown = path.display();
    match error {
        MigrateError::VersionMissing(unknown) => newer(path, unknown, embedded).into(),
        MigrateError::VersionMismatch(version) => StoreError::Unusable(format!(
            "{shown} was made by another build of host, whose migration {version} differs from this one's: use that build, or a new database"
        ))
        .into(),
        MigrateError::ExecuteMigration(sqlx::Error::Database(database), version) => {
            StoreError::Unusable(format!(
                "migration {version} does not fit the tables that {shown} has already: {}",
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
    fn every_migration_of_sqlite_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/sqlite");
        assert_complete(MIGRATIONS, Path::new(folder));
    }
}
