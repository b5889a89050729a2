//! From a URL to a database file that is fit for use, or to the reason why it
//! is not.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteConnectOptions;
use tracing::info;

use super::connection::{Connections, DEADLINE, PATIENCE};
use super::error::SqliteError;
use super::files::network_file_system_of;
use super::{locks, modes, schema};
use event_host_store::StoreError;

/// How a database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// Makes the file if there is none.
    pub create: bool,
    /// Refuses a database whose schema is missing or older than this version.
    /// Without it, the next call should be
    /// [`Schema::migrate`](event_host_store::Schema::migrate).
    pub require_schema: bool,
}

impl OpenOptions {
    /// For whoever brings the schema up to date next: makes the file if there
    /// is none.
    #[must_use]
    pub fn to_migrate() -> Self {
        Self { create: true, require_schema: false }
    }

    /// For whoever works with a database that is there.
    #[must_use]
    pub fn existing() -> Self {
        Self { create: false, require_schema: true }
    }
}

/// The file that a URL such as `sqlite:host.db` names, or a bare path.
///
/// | form | file |
/// | --- | --- |
/// | `sqlite:host.db`, `sqlite://host.db`, `host.db` | relative to the working folder |
/// | `sqlite:///var/lib/host.db`, `/var/lib/host.db` | absolute |
/// | `sqlite:host.db?mode=rw`, `?mode=rwc` | the same; whether it is made is not the URL's to say |
///
/// In a URL, `%` begins an encoded byte.
///
/// # Errors
/// [`StoreError::Unusable`] for a database in memory, which no second process
/// could reach, for one to be opened read-only, and for a parameter that is not
/// known.
pub fn database_path(database: &str) -> Result<PathBuf, StoreError> {
    let refused = |why: String| Err(StoreError::Unusable(why));
    let Some(url) = database.strip_prefix("sqlite:") else {
        if database.is_empty() || database == ":memory:" {
            return refused(in_memory(database));
        }
        return Ok(PathBuf::from(database));
    };
    let (file, parameters) = url.split_once('?').unwrap_or((url, ""));
    let file = file.strip_prefix("//").unwrap_or(file);
    if file.is_empty() || file == ":memory:" {
        return refused(in_memory(database));
    }
    for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter {
            "mode=rw" | "mode=rwc" => {}
            "mode=memory" => return refused(in_memory(database)),
            "mode=ro" => {
                return refused(format!(
                    "`{database}` asks for a read-only database: event-host records what it does, so leave `mode=ro` out"
                ));
            }
            _ => {
                return refused(format!(
                    "`{parameter}` in `{database}` is not known: a SQLite URL may carry `mode=rw` or `mode=rwc`"
                ));
            }
        }
    }
    match SqliteConnectOptions::from_str(&format!("sqlite://{file}")) {
        Ok(options) => Ok(options.get_filename().to_owned()),
        Err(error) => refused(format!("`{database}` is not a SQLite URL: {error}")),
    }
}

fn in_memory(database: &str) -> String {
    format!(
        "`{database}` would be a database in memory, which no other process could see and which would be gone with this one: name a file, such as `sqlite:host.db`"
    )
}

/// Opens the file and checks that it can be worked with.
pub(super) async fn open(database: &str, options: OpenOptions) -> Result<Connections, StoreError> {
    let path = database_path(database)?;
    let path = settled_path(&path, options.create)?;
    locks::make_folder(&path)?;
    let connections = Connections::new(path);
    prepare(&connections, options).await?;
    modes::warn_of_others(connections.path(), &locks::folder(connections.path()));
    Ok(connections)
}

/// Opens what is at the path now, where that is not what was opened: another file, or
/// the same without what SQLite kept beside it.
pub(super) async fn again(connections: &Connections) -> Result<(), StoreError> {
    let path = connections.path();
    if let Err(StoreError::Unavailable(why)) = connections.check_files()
        && let Err(error) = fs::metadata(path)
    {
        return Err(StoreError::Unavailable(format!(
            "{why}, and nothing is there now ({error}): put the database in its place, which is waited for, or stop the host; it makes no new one"
        )));
    }
    if connections.let_go().await? {
        prepare(connections, OpenOptions::existing()).await?;
        info!("the database that is at {} now is open", path.display());
    }
    Ok(())
}

/// Opens the connection that writes, refuses what is not fit for use, and holds the files
/// open from then on.
async fn prepare(connections: &Connections, options: OpenOptions) -> Result<(), StoreError> {
    let path = connections.path();
    let work = async {
        let mut writer = connections.any_writer().await;
        let begun = tokio::time::Instant::now();
        loop {
            // Each step reads the file, and so may meet another process that
            // switches it to WAL, or migrates it, at this moment.
            let opened = async {
                let connection = writer.connection().await?;
                check_encoding(connection, path).await?;
                enter_wal(connection).await?;
                schema::check(connection, path, options.require_schema).await?;
                connections.hold_open().await
            };
            match opened.await {
                Err(broken) if broken.is_busy() && begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(broken) => {
                    writer.discard_if_spoilt(&broken);
                    return Err(broken);
                }
                Ok(_) => return Ok(()),
            }
        }
    };
    connections.within("open the database", DEADLINE, work).await
}

/// Makes the file if it may, and gives the one path that all processes derive
/// from whatever way they were told of it: locks are kept beside it.
fn settled_path(path: &Path, create: bool) -> Result<PathBuf, StoreError> {
    let unusable = |why: String| Err(StoreError::Unusable(why));
    let shown = path.display();
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            return unusable(format!(
                "{shown} is a folder: name a database file in it, such as {}",
                path.join("host.db").display()
            ));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound && !folder.is_dir() => {
            return unusable(format!(
                "there is no folder {} for the database {shown}: make it first",
                folder.display()
            ));
        }
        Err(error) if error.kind() == ErrorKind::NotFound && !create => {
            return unusable(format!(
                "there is no database at {shown}: `host migrate` makes one, or check the path"
            ));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return unusable(format!("cannot reach the database {shown}: {error}")),
    }
    if let Err(error) = make_or_try(path, create) {
        return unusable(match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                format!("the database {shown} cannot be written ({error})")
            }
            _ => format!("cannot open the database {shown}: {error}"),
        });
    }
    let path = fs::canonicalize(path)
        .or_else(|error| unusable(format!("cannot reach the database {shown}: {error}")))?;
    if let Some(name) = path.parent().and_then(network_file_system_of) {
        return unusable(format!(
            "{} is on a network file system ({name}), where SQLite's locks and its write-ahead log cannot be relied on: keep the database on a disk of this machine, or use PostgreSQL",
            path.display()
        ));
    }
    Ok(path)
}

/// Makes a file that is not there, and asks whether one that is there may be written:
/// refused at once where SQLite would refuse at the first write. One that is there is not
/// opened for that, because to close it would release the locks that this process has on
/// it.
fn make_or_try(path: &Path, create: bool) -> std::io::Result<()> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    if create && !path.exists() {
        match modes::make_database(path) {
            // Somebody else was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made,
        }
    }
    Ok(accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS)?)
}

/// Data is handed to handlers as the bytes that are stored, so text must be
/// stored as UTF-8.
async fn check_encoding(connection: &mut SqliteConnection, path: &Path) -> Result<(), SqliteError> {
    let encoding: String =
        sqlx::query_scalar("PRAGMA encoding").fetch_one(&mut *connection).await?;
    if encoding == "UTF-8" {
        return Ok(());
    }
    Err(StoreError::Unusable(format!(
        "{} stores text as {encoding}, and event-host needs UTF-8, which SQLite fixes when it makes a database: use another file",
        path.display()
    ))
    .into())
}

/// Changing the journal needs the database for oneself alone, and SQLite does
/// not wait for that: where several processes open a new file at once, all but
/// one are told that it is busy.
async fn enter_wal(connection: &mut SqliteConnection) -> Result<(), SqliteError> {
    let mode: String =
        sqlx::query_scalar("PRAGMA journal_mode = WAL").fetch_one(connection).await?;
    if mode == "wal" {
        return Ok(());
    }
    Err(StoreError::Unusable(format!(
        "SQLite keeps its journal in mode `{mode}` here, and cannot change to `wal`: the file system may not support shared memory"
    ))
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_or_a_path_names_a_file() {
        for (text, path) in [
            ("host.db", "host.db"),
            ("sqlite:host.db", "host.db"),
            ("sqlite://host.db", "host.db"),
            ("sqlite:data/host.db", "data/host.db"),
            ("sqlite:///var/lib/host.db", "/var/lib/host.db"),
            ("sqlite:/var/lib/host.db", "/var/lib/host.db"),
            ("/var/lib/host.db", "/var/lib/host.db"),
            ("sqlite:host.db?mode=rwc", "host.db"),
            ("sqlite:my%20host%3F.db", "my host?.db"),
        ] {
            assert_eq!(database_path(text).ok(), Some(PathBuf::from(path)), "{text}");
        }
    }

    #[test]
    fn what_names_no_shared_file_is_refused_with_the_reason() {
        for (text, reason) in [
            (":memory:", "in memory"),
            ("sqlite::memory:", "in memory"),
            ("sqlite://:memory:", "in memory"),
            ("sqlite:", "in memory"),
            ("", "in memory"),
            ("sqlite:host.db?mode=memory", "in memory"),
            ("sqlite:host.db?mode=ro", "read-only"),
            ("sqlite:host.db?cache=shared", "`cache=shared`"),
        ] {
            let error = database_path(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
