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
//!
//! Nothing is done with files that are no longer those at their paths, see `files`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex as StdMutex, MutexGuard as StdMutexGuard, PoisonError};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};
use tracing::{debug, warn};

use super::error::SqliteError;
use super::files::{Change, Opened};
use event_host_store::StoreError;

/// How long a write waits for other programs to let go of the write lock.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How long SQLite itself waits before it says that the database is busy. It
/// polls ever more slowly, up to each 100 ms, so that a program that writes
/// without pause would win against it for seconds; asking it again keeps the
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

/// What is known of the files.
#[derive(Debug)]
enum Files {
    /// No connection holds them open.
    Closed,
    /// They are those that were at their paths when they were opened.
    Open(Opened),
    /// They were not there any more, and what was there instead is not open yet.
    Lost {
        why: String,
        /// What has become of them, until it is seen to: the same database is opened again
        /// only when nothing of it is open, and another only when nothing of the one before
        /// lies beside it.
        before: Option<(Change, Opened)>,
    },
}

/// The files, and how often others were opened in their place.
#[derive(Debug)]
struct Opening {
    files: Files,
    number: u64,
    /// Another database took the place of the one before, which has not been told yet.
    changed: Option<String>,
}

/// The connections to one database file.
pub(super) struct Connections {
    path: PathBuf,
    opening: StdMutex<Opening>,
    /// Holds the files open, and does nothing else: so SQLite replaces none of them,
    /// whatever becomes of the other connections.
    holder: Mutex<Option<SqliteConnection>>,
    writer: Mutex<Option<SqliteConnection>>,
    has_written: AtomicBool,
    permits: Semaphore,
    idle_readers: StdMutex<Vec<SqliteConnection>>,
}

impl Connections {
    /// Nothing is opened yet. The path is absolute and without links, so that
    /// all processes mean the same file by it.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            opening: StdMutex::new(Opening { files: Files::Closed, number: 0, changed: None }),
            holder: Mutex::new(None),
            writer: Mutex::new(None),
            has_written: AtomicBool::new(false),
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

    async fn open_writer(&self) -> Result<SqliteConnection, SqliteError> {
        Ok(self.options().busy_timeout(POLLED_BY_SQLITE).connect().await?)
    }

    async fn open_reader(&self) -> Result<SqliteConnection, SqliteError> {
        let options = self.options().busy_timeout(PATIENCE).pragma("query_only", "ON");
        Ok(options.connect().await?)
    }

    /// Whether somebody of this process writes at this moment.
    pub(super) fn is_writing(&self) -> bool {
        self.writer.try_lock().is_err()
    }

    /// Waits for the turn to write, whatever the files are.
    pub(super) async fn any_writer(&self) -> Writer<'_> {
        Writer { connections: self, slot: self.writer.lock().await }
    }

    /// Waits for the turn to write, in the files that are open now.
    pub(super) async fn writer(&self) -> Result<Writer<'_>, SqliteError> {
        let number = self.opening().number;
        let writer = self.any_writer().await;
        if self.vouch().await? != number {
            // What was to be written was decided by what the others held.
            let why = format!("another file is in the place of {} now", self.path.display());
            return Err(StoreError::Unavailable(why).into());
        }
        self.has_written.store(true, Ordering::Relaxed);
        Ok(writer)
    }

    /// Waits for a connection to read with.
    pub(super) async fn reader(&self) -> Result<Reader<'_>, SqliteError> {
        let permit = self.permits.acquire().await.map_err(|_| {
            StoreError::Unavailable(format!("{} has been closed", self.path.display()))
        })?;
        let opening = self.vouch().await?;
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.open_reader().await?,
        };
        Ok(Reader { connections: self, connection, opening, _permit: permit })
    }

    fn opening(&self) -> StdMutexGuard<'_, Opening> {
        // Every change of it is whole.
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often other files were opened in the place of those that were.
    pub(super) fn times_replaced(&self) -> u64 {
        self.opening().number
    }

    /// What became of the database that was open before, once.
    pub(super) fn take_change(&self) -> Option<String> {
        let mut opening = self.opening();
        // What is lost is told by whatever is asked for, until something is open again.
        if matches!(opening.files, Files::Lost { .. }) { None } else { opening.changed.take() }
    }

    /// Whether nobody has been told yet what became of the database before.
    pub(super) fn has_change(&self) -> bool {
        self.opening().changed.is_some()
    }

    /// Whether the files that are open are at their paths, as far as any are open.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] with what has become of them.
    pub(super) fn check_files(&self) -> Result<(), StoreError> {
        let why = match &self.opening().files {
            Files::Closed => None,
            Files::Open(opened) => opened.change().map(|change| change.told(&self.path)),
            Files::Lost { why, .. } => Some(why.clone()),
        };
        why.map_or(Ok(()), |why| Err(StoreError::Unavailable(why)))
    }

    /// Refuses to work with files that are not at their paths any more, and opens them
    /// where none are open. Gives how often others took their place.
    async fn vouch(&self) -> Result<u64, SqliteError> {
        self.check_files()?;
        {
            let opening = self.opening();
            if matches!(opening.files, Files::Open(_)) {
                return Ok(opening.number);
            }
        }
        self.hold_open().await
    }

    /// Holds the files open from now on.
    pub(super) async fn hold_open(&self) -> Result<u64, SqliteError> {
        let mut holder = self.holder.lock().await;
        if holder.is_none() {
            let mut connection = self.open_reader().await?;
            // Only who has read something has the files beside the database open.
            sqlx::query("SELECT count(*) FROM sqlite_schema").fetch_one(&mut connection).await?;
            let opened = Opened::look(&self.path).ok_or_else(|| {
                StoreError::Unavailable(format!(
                    "{} or a file beside it was moved or deleted while it was opened",
                    self.path.display()
                ))
            })?;
            *holder = Some(connection);
            self.opening().files = Files::Open(opened);
        }
        Ok(self.opening().number)
    }

    /// Closes files that are not at their paths any more, so that what is there now can
    /// be opened. Whether there was any need; false where all is well.
    ///
    /// # Errors
    /// When something still uses them; asked again, it goes on there. So it does when
    /// somebody gives up on it in the middle.
    pub(super) async fn let_go(&self) -> Result<bool, StoreError> {
        if !self.find_lost() {
            return Ok(false);
        }
        self.close_all().await;
        let before = match &self.opening().files {
            Files::Lost { before, .. } => before.clone(),
            Files::Closed | Files::Open(_) => None,
        };
        match before {
            Some((Change::Beside(_), opened)) if !opened.until_closed().await => {
                return Err(StoreError::Unavailable(format!(
                    "something of this process still uses {}",
                    self.path.display()
                )));
            }
            Some((Change::Gone | Change::Replaced, opened)) => self.put_aside(&opened)?,
            Some((Change::Beside(_), _)) | None => {}
        }
        if let Files::Lost { before, .. } = &mut self.opening().files {
            *before = None;
        }
        Ok(true)
    }

    /// Looks whether the files are lost, and notes what has become of them.
    fn find_lost(&self) -> bool {
        let mut opening = self.opening();
        let change = match &opening.files {
            Files::Closed => return false,
            Files::Lost { .. } => return true,
            Files::Open(opened) => opened.change(),
        };
        let Some(change) = change else { return false };
        let why = change.told(&self.path);
        opening.number += 1;
        if !matches!(change, Change::Beside(_)) {
            opening.changed = Some(why.clone());
        }
        let before = match std::mem::replace(&mut opening.files, Files::Closed) {
            Files::Open(opened) => Some((change, opened)),
            Files::Closed | Files::Lost { .. } => None,
        };
        opening.files = Files::Lost { why, before };
        true
    }

    fn put_aside(&self, opened: &Opened) -> Result<(), StoreError> {
        let aside = opened.put_aside().map_err(|error| {
            StoreError::Unavailable(format!(
                "cannot rename what the database that was at {} has left beside it: {error}",
                self.path.display()
            ))
        })?;
        for file in aside {
            warn!("{} belongs to the database that was there before", file.display());
        }
        Ok(())
    }

    /// Nothing that is done on a connection is worth an answer any more.
    async fn close_all(&self) {
        let readers = std::mem::take(&mut *self.idle());
        let writer = self.writer.lock().await.take();
        let holder = self.holder.lock().await.take();
        for connection in readers.into_iter().chain(writer).chain(holder) {
            if let Err(error) = connection.close().await {
                debug!("closing a connection to {}: {error}", self.path.display());
            }
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<SqliteConnection>> {
        // Each critical section is one push or pop, so a poisoned list is whole.
        self.idle_readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what is open, so that SQLite folds the write-ahead log into the
    /// database file; also where others have it open, if anything was written here.
    /// Whatever is asked for later opens connections again.
    pub(super) async fn close(&self) -> Result<(), SqliteError> {
        let mut folded = Ok(());
        {
            let mut writer = self.any_writer().await;
            if self.has_written.swap(false, Ordering::Relaxed) && self.check_files().is_ok() {
                // Without waiting for anybody who reads: then the rest stays there.
                let fold = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)");
                folded = fold.execute(writer.connection().await?).await.map(drop);
            }
        }
        self.close_all().await;
        self.opening().files = Files::Closed;
        Ok(folded?)
    }

    /// Bounds an operation in time, and words its failure.
    pub(super) async fn within<T>(
        &self,
        what: &str,
        deadline: Duration,
        work: impl Future<Output = Result<T, SqliteError>>,
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
    /// The connection; opened again after one that broke.
    pub(super) async fn connection(&mut self) -> Result<&mut SqliteConnection, SqliteError> {
        let connection = match self.slot.take() {
            Some(connection) => connection,
            None => self.connections.open_writer().await?,
        };
        Ok(self.slot.insert(connection))
    }

    /// Closes a connection that an error has left in an unknown state. Nothing
    /// is under way on it, since the error was its answer.
    pub(super) fn discard_if_spoilt(&mut self, broken: &SqliteError) {
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
    opening: u64,
    _permit: SemaphorePermit<'a>,
}

impl Reader<'_> {
    /// The connection.
    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }

    /// Gives the connection back, unless the result says that it broke, or its file is
    /// none that anybody wants any more.
    pub(super) fn give_back<T>(self, result: Result<T, SqliteError>) -> Result<T, SqliteError> {
        let is_well = !matches!(&result, Err(broken) if broken.spoils_connection());
        if is_well && self.connections.times_replaced() == self.opening {
            self.connections.idle().push(self.connection);
        }
        result
    }
}

/// Does something on the write connection. Where another program has the write
/// lock, nothing has happened, and it is done again until [`PATIENCE`] ends.
macro_rules! on_writer {
    ($connections:expr, $what:expr, |$connection:ident| $work:expr) => {
        on_writer!($connections, $what, $crate::connection::DEADLINE, |$connection| $work)
    };
    ($connections:expr, $what:expr, $deadline:expr, |$connection:ident| $work:expr) => {{
        let connections: &$crate::connection::Connections = &$connections;
        let work = async {
            let mut writer = connections.writer().await?;
            let begun = tokio::time::Instant::now();
            loop {
                let $connection = writer.connection().await?;
                match $work.await {
                    Err(broken)
                        if broken.is_busy() && begun.elapsed() < $crate::connection::PATIENCE =>
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
        connections.within($what, $deadline, work).await
    }};
}

/// Does something on a connection that reads.
macro_rules! on_reader {
    ($connections:expr, $what:expr, |$connection:ident| $work:expr) => {
        on_reader!($connections, $what, $crate::connection::DEADLINE, |$connection| $work)
    };
    ($connections:expr, $what:expr, $deadline:expr, |$connection:ident| $work:expr) => {{
        let connections: &$crate::connection::Connections = &$connections;
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
