//! Migrations, as they are embedded in the program.
//!
//! A store names its files of `migrations/`; sqlx runs them. sqlx's own macro would read the
//! folder, and have the whole of sqlx compiled a second time, for the compiler's use.

use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// One file of a folder of `migrations/`: `VERSION_DESCRIPTION.sql`.
pub(super) struct Embedded {
    /// The number that the name begins with.
    pub(super) version: i64,
    /// The rest of the name, with spaces.
    pub(super) description: &'static str,
    /// What is in the file.
    pub(super) sql: &'static str,
}

/// Runs these, in the order of their versions, each in a transaction.
pub(super) fn migrator(embedded: &[Embedded]) -> Migrator {
    let migrations = embedded.iter().map(|file| {
        let (description, sql) = (file.description.into(), file.sql.into_sql_str());
        Migration::new(file.version, description, MigrationType::Simple, sql, false)
    });
    Migrator::with_migrations(migrations.collect())
}

/// That these are the files of a folder of `migrations/`, and no others.
#[cfg(test)]
#[track_caller]
pub(super) fn assert_complete(embedded: &[Embedded], folder: &str) {
    use std::collections::BTreeMap;
    use std::path::Path;

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations").join(folder);
    let files: BTreeMap<String, String> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|file| {
            let name = file.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(file).unwrap())
        })
        .collect();
    let embedded: BTreeMap<String, String> = embedded
        .iter()
        .map(|file| {
            let description = file.description.replace(' ', "_");
            (format!("{:04}_{description}.sql", file.version), file.sql.to_owned())
        })
        .collect();
    assert_eq!(embedded, files);
}
