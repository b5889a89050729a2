//! A piece of work on a connection: a session's statements, or a transaction that brings
//! its limits along.

use sqlx::{Connection, Executor, PgConnection, Postgres, Transaction};

use super::error::PostgresError;
use super::session::{Patience, Reads, begin_text};

/// A piece of work on a connection.
///
/// A session of the host's own is set up for all that comes, and a statement that
/// stands alone commits by itself, in one round trip. Through a pooler there is nothing
/// to rely on, and each piece of work is one transaction, which brings its limits
/// along; a transaction within it is a savepoint.
pub(super) enum Piece<'c> {
    Session(&'c mut PgConnection, Patience),
    Transaction(Transaction<'c, Postgres>),
}

impl Piece<'_> {
    /// The connection.
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        match self {
            Self::Session(connection, _) => connection,
            Self::Transaction(transaction) => transaction,
        }
    }

    /// Ends it: commits what went well; what did not is undone with the next word on
    /// the connection. And whether the connection is of further use.
    pub(super) async fn end<T>(
        self,
        result: Result<T, PostgresError>,
    ) -> (Result<T, PostgresError>, bool) {
        match self {
            Self::Session(_, Patience::Short) => (result, true),
            // The work has its answer, whatever becomes of the connection.
            Self::Session(connection, _) => {
                let reset = connection.execute(Patience::Short.set_text()).await;
                (result, reset.is_ok())
            }
            Self::Transaction(transaction) => match result {
                Ok(answer) => match transaction.commit().await {
                    Ok(()) => (Ok(answer), true),
                    Err(error) => (Err(error.into()), true),
                },
                Err(broken) => (Err(broken), true),
            },
        }
    }
}

/// Begins a transaction that brings its limits along, whatever connection it is on.
pub(super) async fn begin(
    connection: &mut PgConnection,
) -> Result<Transaction<'_, Postgres>, PostgresError> {
    let text = begin_text(connection, Reads::Committed, Patience::Short);
    Ok(connection.begin_with(text).await?)
}

/// The same of one that reads in one snapshot, and writes nothing.
pub(super) async fn snapshot(
    connection: &mut PgConnection,
) -> Result<Transaction<'_, Postgres>, PostgresError> {
    let text = begin_text(connection, Reads::Snapshot, Patience::Short);
    Ok(connection.begin_with(text).await?)
}

/// For a transaction with a statement that may take as long as [`LONG_DEADLINE`](super::connection::LONG_DEADLINE), such as
/// one that reads the whole log. Every operation with that deadline has one.
pub(super) const LONG_STATEMENT: &str = "SET LOCAL statement_timeout = '115s'";

/// Begins such a transaction.
pub(super) async fn begin_long(
    connection: &mut PgConnection,
) -> Result<Transaction<'_, Postgres>, PostgresError> {
    let mut transaction = connection.begin().await?;
    transaction.execute(LONG_STATEMENT).await?;
    Ok(transaction)
}
