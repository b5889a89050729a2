//! The connections to one database file: a single one that writes, a few that
//! read, and a deadline on everything.
//!
//! SQLite lets one connection write at a time. Writers of one process queue
//! for theirs here, in order, instead of polling SQLite's lock; only other
//! processes are met there.
//!
//! The write connection outlives a caller that gives up on it: what the caller
//! left under way is finished or rolled back before the next command, because
//! a connection works its commands off in order. So a read on that connection
//! tells for certain what became of an earlier write.

use std::path::{Path, PathBuf};
use std::sync::{Mutex as StdMutex, PoisonError};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};

use super::error::Broken;
use crate::store::StoreError;

/// How long a write waits for other programs to let go of the write lock.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How long SQLite itself waits before it says that the database is busy. It
/// polls ever more slowly, up to each 100 ms, so that a program that writes
/// without pause would win against it for seconds; asking it anew keeps the
/// polls close together.
const POLLED_BY_SQLITE: Duration = Duration::from_millis(50);

/// How long an operation may take in all.
pub(super) const DEADLINE: Duration = Duration::from_secs(15);

/// The same for one that reads the whole log.
pub(super) const LONG_DEADLINE: Duration = Duration::from_secs(120);

/// How many connections read at once. Each is a thread.
pub(super) const READERS: usize = 4;

/// How many rows the thread of a connection reads ahead of whoever takes them.
/// It bounds what is read beyond a byte budget, and costs a thread switch when
/// it runs full.
const ROWS_AHEAD: usize = 128;

/// What the write-ahead log is cut to after it has grown, in bytes.
const KEPT_WRITE_AHEAD_LOG: u64 = 64 << 20;

/// The connections to one database file.
pub(super) struct Connections {
    path: PathBuf,
    writer: Mutex<Option<SqliteConnection>>,
    permits: Semaphore,
    idle_readers: StdMutex<Vec<SqliteConnection>>,
}

impl Connections {
    /// Nothing is opened yet. The path is absolute and without links, so that
    /// all processes mean the same file by it.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            writer: Mutex::new(None),
            permits: Semaphore::new(READERS),
            idle_readers: StdMutex::default(),
        }
    }

    /// The database file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn options(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(&self.path)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .pragma("journal_size_limit", KEPT_WRITE_AHEAD_LOG.to_string())
            .row_buffer_size(ROWS_AHEAD)
            .disable_statement_logging()
    }

    async fn open_writer(&self) -> Result<SqliteConnection, Broken> {
        Ok(self.options().busy_timeout(POLLED_BY_SQLITE).connect().await?)
    }

    async fn open_reader(&self) -> Result<SqliteConnection, Broken> {
        let options = self.options().busy_timeout(PATIENCE).pragma("query_only", "ON");
        Ok(options.connect().await?)
    }

    /// Whether somebody of this process writes at this moment.
    pub(super) fn is_writing(&self) -> bool {
        self.writer.try_lock().is_err()
    }

    /// Waits for the turn to write.
    pub(super) async fn writer(&self) -> Writer<'_> {
        Writer { connections: self, slot: self.writer.lock().await }
    }

    /// Waits for a connection to read with.
    pub(super) async fn reader(&self) -> Result<Reader<'_>, Broken> {
        let permit = self.permits.acquire().await.map_err(|_| {
            StoreError::Unavailable(format!("{} has been closed", self.path.display()))
        })?;
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.open_reader().await?,
        };
        Ok(Reader { connections: self, connection, _permit: permit })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<SqliteConnection>> {
        // Each critical section is one push or pop, so a poisoned list is whole.
        self.idle_readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what is open, so that SQLite folds the write-ahead log into the
    /// database file. Whatever is asked for later opens connections again.
    pub(super) async fn close(&self) -> Result<(), Broken> {
        let readers = std::mem::take(&mut *self.idle());
        for reader in readers {
            reader.close().await?;
        }
        if let Some(writer) = self.writer.lock().await.take() {
            writer.close().await?;
        }
        Ok(())
    }

    /// Bounds an operation in time, and words its failure.
    pub(super) async fn within<T>(
        &self,
        what: &str,
        deadline: Duration,
        work: impl Future<Output = Result<T, Broken>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(deadline, work).await {
            Ok(result) => result.map_err(|broken| broken.told(what, &self.path, PATIENCE)),
            Err(_) => Err(StoreError::Unavailable(format!(
                "cannot {what}: {} has not answered for {} s",
                self.path.display(),
                deadline.as_secs()
            ))),
        }
    }
}

/// The turn to write.
pub(super) struct Writer<'a> {
    connections: &'a Connections,
    slot: MutexGuard<'a, Option<SqliteConnection>>,
}

impl Writer<'_> {
    /// The connection; opened anew after one that broke.
    pub(super) async fn connection(&mut self) -> Result<&mut SqliteConnection, Broken> {
        let connection = match self.slot.take() {
            Some(connection) => connection,
            None => self.connections.open_writer().await?,
        };
        Ok(self.slot.insert(connection))
    }

    /// Closes a connection that an error has left in an unknown state. Nothing
    /// is under way on it, since the error was its answer.
    pub(super) fn discard_if_spoilt(&mut self, broken: &Broken) {
        if broken.spoils_connection() {
            *self.slot = None;
        }
    }
}

/// A connection to read with. One that is dropped, and not given back, is
/// closed: a read that nobody waits for any more can be left to run out.
pub(super) struct Reader<'a> {
    connections: &'a Connections,
    connection: SqliteConnection,
    _permit: SemaphorePermit<'a>,
}

impl Reader<'_> {
    /// The connection.
    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }

    /// Gives the connection back, unless the result says that it broke.
    pub(super) fn give_back<T>(self, result: Result<T, Broken>) -> Result<T, Broken> {
        if !matches!(&result, Err(broken) if broken.spoils_connection()) {
            self.connections.idle().push(self.connection);
        }
        result
    }
}

/// Does something on the write connection. Where another program has the write
/// lock, nothing has happened, and it is done again until [`PATIENCE`] ends.
macro_rules! on_writer {
    ($connections:expr, $what:expr, |$connection:ident| $work:expr) => {{
        let connections: &$crate::store::sqlite::connection::Connections = &$connections;
        let work = async {
            let mut writer = connections.writer().await;
            let begun = tokio::time::Instant::now();
            loop {
                let $connection = writer.connection().await?;
                match $work.await {
                    Err(broken)
                        if broken.is_busy()
                            && begun.elapsed() < $crate::store::sqlite::connection::PATIENCE =>
                    {
                        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                    }
                    Err(broken) => {
                        writer.discard_if_spoilt(&broken);
                        return Err(broken);
                    }
                    Ok(value) => return Ok(value),
                }
            }
        };
        connections.within($what, $crate::store::sqlite::connection::DEADLINE, work).await
    }};
}

/// Does something on a connection that reads.
macro_rules! on_reader {
    ($connections:expr, $what:expr, |$connection:ident| $work:expr) => {
        on_reader!(
            $connections,
            $what,
            $crate::store::sqlite::connection::DEADLINE,
            |$connection| $work
        )
    };
    ($connections:expr, $what:expr, $deadline:expr, |$connection:ident| $work:expr) => {{
        let connections: &$crate::store::sqlite::connection::Connections = &$connections;
        let work = async {
            let mut reader = connections.reader().await?;
            let $connection = reader.connection();
            let result = $work.await;
            reader.give_back(result)
        };
        connections.within($what, $deadline, work).await
    }};
}

pub(super) use {on_reader, on_writer};
