//! What SQLite can answer, told so that somebody can act on it.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use event_host_store::StoreError;

/// Why an operation broke off: by an answer that is ready for the caller, or
/// by an error that still lacks the words of where and what.
#[derive(Debug)]
pub(super) enum SqliteError {
    /// An answer for the caller.
    Told(StoreError),
    /// What sqlx said.
    Sql(sqlx::Error),
}

impl fmt::Display for SqliteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(told) => told.fmt(f),
            Self::Sql(error) => error.fmt(f),
        }
    }
}

impl From<StoreError> for SqliteError {
    fn from(error: StoreError) -> Self {
        Self::Told(error)
    }
}

impl From<sqlx::Error> for SqliteError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

// SQLite's primary result codes: https://www.sqlite.org/rescode.html
const ERROR: i64 = 1;
const BUSY: i64 = 5;
const LOCKED: i64 = 6;
const READONLY: i64 = 8;
const IOERR: i64 = 10;
const CORRUPT: i64 = 11;
const FULL: i64 = 13;
const CANTOPEN: i64 = 14;
const TOOBIG: i64 = 18;
const CONSTRAINT: i64 = 19;
const MISMATCH: i64 = 20;
const NOTADB: i64 = 26;
// An extended one.
const READONLY_DBMOVED: i64 = READONLY | (4 << 8);

fn extended_code(error: &sqlx::Error) -> Option<i64> {
    error.as_database_error()?.code()?.parse().ok()
}

fn primary_code(error: &sqlx::Error) -> Option<i64> {
    extended_code(error).map(|code| code & 0xff)
}

impl SqliteError {
    /// Whether somebody else had the write lock, so that nothing happened.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Sql(error) if matches!(primary_code(error), Some(BUSY | LOCKED)))
    }

    /// Whether the connection may be left in a state that nobody knows. After a
    /// broken constraint it is not: SQLite undid the statement, and the
    /// transaction rolls back when it is dropped.
    pub(super) fn spoils_connection(&self) -> bool {
        matches!(self, Self::Sql(error) if primary_code(error) != Some(CONSTRAINT))
    }

    /// Of a statement that stores what events came to: an error for what it holds is
    /// told as that.
    pub(super) fn of_what_is_stored(self) -> Self {
        match self {
            Self::Sql(error)
                if matches!(primary_code(&error), Some(TOOBIG | CONSTRAINT | MISMATCH)) =>
            {
                StoreError::Unstorable(message(&error).into_owned()).into()
            }
            other => other,
        }
    }

    /// The answer for the caller: `what` was to be done with the database at
    /// `path`, whose write lock was waited for as long as `patience`.
    pub(super) fn told(self, what: &str, path: &Path, patience: Duration) -> StoreError {
        let error = match self {
            Self::Told(told) => return told,
            Self::Sql(error) => error,
        };
        let path = path.display();
        let unavailable = |why: String| StoreError::Unavailable(format!("cannot {what}: {why}"));
        let unusable = |why: String| StoreError::Unusable(format!("cannot {what}: {why}"));
        let message = message(&error);
        match primary_code(&error) {
            Some(BUSY | LOCKED) => StoreError::Busy(format!(
                "cannot {what}: another program has kept {path} locked for {} s",
                patience.as_secs()
            )),
            Some(READONLY) if extended_code(&error) == Some(READONLY_DBMOVED) => {
                unusable(format!("{path} was moved or deleted while it was open"))
            }
            Some(READONLY) => {
                unusable(format!("{path} is read-only, or the folder that it lies in is"))
            }
            Some(FULL) => unavailable(format!("the disk that holds {path} is full")),
            Some(IOERR) => unavailable(format!("reading or writing {path} failed ({message})")),
            Some(CANTOPEN) => unavailable(format!(
                "SQLite cannot open {path}, or the files that it keeps beside it ({message})"
            )),
            Some(CORRUPT) => unusable(format!(
                "{path} is damaged ({message}); `PRAGMA integrity_check` in sqlite3 shows where"
            )),
            Some(NOTADB) => unusable(format!("{path} is not a SQLite database")),
            Some(TOOBIG) => StoreError::Refused(format!(
                "cannot {what}: a value is larger than the 1 GB that SQLite can hold"
            )),
            Some(CONSTRAINT) => StoreError::Refused(format!("cannot {what}: {message}")),
            Some(ERROR) if message.contains("no such table") => unusable(format!(
                "{path} has no tables of event-host, or older ones ({message}): run `host migrate`"
            )),
            Some(ERROR) if message.contains("no such column") => unusable(format!(
                "the tables in {path} are older than this version ({message}): run `host migrate`"
            )),
            Some(_) => unusable(format!("SQLite says of {path}: {message}")),
            None => match error {
                sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
                    unusable(format!("{path} holds what this version cannot read: {message}"))
                }
                _ => unavailable(format!("the connection to {path} broke ({message})")),
            },
        }
    }
}

/// SQLite's own words, without the number that sqlx puts before them.
fn message(error: &sqlx::Error) -> Cow<'_, str> {
    match error.as_database_error() {
        Some(database) => database.message().into(),
        None => error.to_string().into(),
    }
}
