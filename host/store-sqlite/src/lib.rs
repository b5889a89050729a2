//! The embedded store: SQLite.
//!
//! One file, in write-ahead mode, shared by as many processes as like. Every
//! write takes the write lock before it reads (`BEGIN IMMEDIATE`, or a single
//! statement, which does the same), so it never finds what it read outdated,
//! and reaches the disk before it is told of (`synchronous = FULL`).
//!
//! `open` finds and checks the file, `connection` shares the connections out
//! and bounds everything in time, `files` notices when they are not those at the path
//! any more, `schema` holds the migrations, `locks` says
//! who leads; the rest is SQL, by subject.

mod columns;
mod connection;
mod dead_letters;
mod deferred;
mod deployments;
mod error;
mod event_log;
mod files;
mod group_columns;
mod group_row;
mod groups;
mod ingest;
mod lag;
mod leadership_row;
mod leases;
mod locks;
mod log;
mod modes;
mod open;
mod redeliveries;
mod repartition;
mod retention;
mod schedules;
mod schema;
mod settlements;
mod state;
mod status;
#[cfg(test)]
mod tests;
mod unpin;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use connection::{Connections, LONG_DEADLINE, on_reader};

use event_host_core::event::GroupName;
use event_host_store::driver::unreadable::Said;
use event_host_store::{Counting, StoreError};

pub use open::{OpenOptions, database_path};

/// How long it may take to close the database at the end: a process shall not hang then.
const CLOSING: Duration = Duration::from_secs(5);

/// How long a lock session that is asked for waits at most for the watcher to forget what
/// it knew of another database.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(2);

/// Deadline of a status with exact numbers, which takes as long as there is to count.
const EXACT_DEADLINE: Duration = Duration::from_secs(3_600);

/// Exact numbers take as long as there is to count.
fn deadline(counting: Counting) -> Duration {
    if counting == Counting::EXACT { EXACT_DEADLINE } else { LONG_DEADLINE }
}

/// The store in a SQLite file. A clone shares its connections.
#[derive(Clone)]
pub struct SqliteStore {
    connections: Arc<Connections>,
    said: Arc<Said>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the database that a URL or a path names; see [`database_path`].
    ///
    /// # Errors
    /// [`StoreError::Unusable`] for what is not a usable database file: a folder,
    /// a file of another kind, a missing or read-only file or folder, a schema
    /// that is newer than this version or, with
    /// [`OpenOptions::require_schema`], missing or older.
    pub async fn open(database: &str, options: OpenOptions) -> Result<Self, StoreError> {
        let connections = open::open(database, options).await?;
        Ok(Self { connections: Arc::new(connections), said: Arc::default() })
    }

    /// The database file: absolute, and without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.connections.path()
    }

    async fn led_parts(&self, group: &GroupName) -> Result<Vec<GroupName>, StoreError> {
        on_reader!(self.connections, "read a group", |c| groups::led_parts(c, group))
    }

    /// Closes the connections, so that SQLite tidies up the files beside the
    /// database. What is asked for afterwards opens them again.
    ///
    /// # Errors
    /// When SQLite cannot, within the usual time.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.connections.within("close the database", CLOSING, self.connections.close()).await
    }
}

impl SqliteStore {
    /// Waits until the watcher has been told that another database is open, a moment at
    /// most: the next session is asked for again anyway.
    async fn wait_until_forgotten(&self) {
        let deadline = tokio::time::Instant::now() + FORGOTTEN_WITHIN;
        while self.connections.has_change() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
