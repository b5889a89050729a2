//! Which run of which server the log is on, and what is believed of it.
//!
//! A server that crashes, or a standby that takes its place, may have lost the last of
//! what it had committed: events of producers who did not wait for their commits, and
//! with asynchronous replication those of everybody. Then it hands positions out again
//! that this host has read, and everything that the host remembers of the log is about
//! another log: up to where it is decided, what a leader has read and handled, under
//! which epoch. So all of it belongs to one incarnation, which is three things together:
//!
//! - the token in `event_host.incarnation`, a table that is not WAL-logged: every
//!   recovery empties it, be it that of a crash, of a backend that was killed (which
//!   ends no postmaster), of a standby that is promoted or of a base backup. A clean
//!   stop keeps it, and loses nothing;
//! - when the postmaster started, which tells two servers apart that were copied with
//!   their token, and a disk that was put back to an older state;
//! - the numbers (oid) of that table and of its database, which tell a database from the
//!   one that was restored from its dump, token included, in its place.
//!
//! Whoever finds the table empty begins the incarnation, and raises all epochs in the
//! same statement. While it is empty nothing can be settled. So what a leader began in
//! one incarnation can never be committed in the next, through whichever connection,
//! a pooler's included; a look tells its incarnation in its own statement; and a
//! connection that leads to another one than the look is not used (see `connection`).
//! During a failover behind one address a host may be connected to two servers at
//! once: it believes the one that it looks at, and as soon as any other connection
//! finds another incarnation, it connects again to look.
//!
//! The cursors need no such care. They are WAL-logged after the sequence's values that
//! they come from, and a recovery keeps a beginning of the WAL and nothing else, so no
//! server comes back with a cursor above its sequence, however little was flushed.

use std::fmt;

use jiff::Timestamp;
use sqlx::{Connection, PgConnection, Row};

use super::columns::time;
use super::error::PostgresError;
use event_host_store::StoreError;

/// One run of one server, from one recovery to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Incarnation {
    pub(super) token: String,
    pub(super) started_at: Timestamp,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, started_at } = self;
        let token = token.get(..8).unwrap_or(token);
        write!(f, "{token} of the server that started at {started_at:.0}")
    }
}

/// What all connections of a host go by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Known {
    /// Nobody has looked yet: any server is as good as another.
    #[default]
    Nothing,
    /// It is another one than before, and the host is about to forget what it knew.
    Changing,
    /// This one.
    Is(Incarnation),
}

/// Where a connection leads to. `None` in an incarnation that no host has begun yet.
pub(super) async fn of(
    connection: &mut PgConnection,
) -> Result<Option<Incarnation>, PostgresError> {
    let row = sqlx::query(
        "SELECT (SELECT i.token || '/' || i.tableoid || '/' || d.oid
                 FROM event_host.incarnation i, pg_database d
                 WHERE d.datname = current_database()),
                pg_postmaster_start_time()",
    )
    .fetch_one(connection)
    .await?;
    let token: Option<String> = row.try_get_unchecked(0)?;
    let started_at = time(&row, 1)?;
    Ok(token.map(|token| Incarnation { token, started_at }))
}

/// Begins the incarnation, unless somebody else has, or does at this moment.
pub(super) async fn begin(connection: &mut PgConnection) -> Result<(), PostgresError> {
    // Not one that began beside a snapshot taken before: see the insert.
    let mut transaction = connection.begin().await?;
    let begun = sqlx::query(
        "INSERT INTO event_host.incarnation DEFAULT VALUES ON CONFLICT (only_one) DO NOTHING",
    )
    .execute(&mut *transaction)
    .await?;
    if begun.rows_affected() > 0 {
        sqlx::query(
            "UPDATE event_host.consumer_groups
             SET epoch = epoch + 1, leader = NULL, leader_since = NULL",
        )
        .execute(&mut *transaction)
        .await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Where a connection leads to, after having begun it if nobody had.
pub(super) async fn found(connection: &mut PgConnection) -> Result<Incarnation, PostgresError> {
    if let Some(incarnation) = of(connection).await? {
        return Ok(incarnation);
    }
    begin(connection).await?;
    of(connection).await?.ok_or_else(|| {
        StoreError::Unavailable("event_host.incarnation is emptied again and again".to_owned())
            .into()
    })
}

/// A connection leads elsewhere than the look at the log.
pub(super) fn elsewhere(here: Option<&Incarnation>, known: &Known) -> StoreError {
    let here = here.map_or_else(|| "one that no host has begun".to_owned(), ToString::to_string);
    StoreError::Unavailable(match known {
        Known::Is(known) => format!(
            "a connection leads to incarnation {here}, and the log is read in incarnation {known}: the server was restarted or replaced"
        ),
        Known::Nothing | Known::Changing => format!(
            "the server was restarted or replaced ({here}): what was known of the log is forgotten first"
        ),
    })
}

/// The log is not the one that it was.
pub(super) fn changed(from: &Incarnation, to: &Incarnation, server: &str) -> StoreError {
    StoreError::Changed(format!(
        "{server} was restarted or replaced: the log was in incarnation {from}, and is in incarnation {to}; what is not in it any more was lost by the server, and all groups go on from the cursors that it has"
    ))
}
