//! Poolers between the host and the server, found out at the start.
//!
//! A pooler that shares its sessions out by the transaction may give each
//! transaction of a connection to another session. Locks then belong to
//! whoever comes next, and a prepared statement may be missing where it is
//! executed, or be another client's of the same name. Nothing here relies on a
//! prepared statement until it is known that they are carried.

use sqlx::{Connection, Executor, PgConnection, Row};

use super::connection::Connections;
use super::error::{PostgresError, statements_are_lost};
use event_host_store::StoreError;

/// How often it is looked whether two connections share their sessions. While
/// others come and go, one look may find each where it would be anyhow.
const LOOKS: usize = 10;

/// Refuses a pooler that the host cannot work behind.
pub(super) async fn check(connections: &Connections, server: &str) -> Result<(), PostgresError> {
    let mut one = connections.connect_directly().await?;
    let mut two = connections.connect_directly().await?;
    let is_shared = by_the_transaction(&mut one, &mut two).await?;
    close(one, two).await;
    if is_shared {
        return Err(locks_change_hands().into());
    }
    if connections.through_a_pooler() {
        let mut one = connections.connect_as_shared().await?;
        let mut two = connections.connect_as_shared().await?;
        let fits = !by_the_transaction(&mut one, &mut two).await?
            || carries_statements(&mut one, &mut two).await?;
        close(one, two).await;
        if !fits {
            return Err(StoreError::Unusable(statements_are_lost(server)).into());
        }
    }
    Ok(())
}

/// The session for the locks is served by the transaction.
pub(super) fn locks_change_hands() -> StoreError {
    StoreError::Unusable(
        "the session for the locks changes hands: a pooler shares it out by the transaction; give a direct connection to the server as `lock_database`".to_owned(),
    )
}

/// Whether a transaction of `two` is served by the session that served `one`, or
/// moves `one` to another.
pub(super) async fn by_the_transaction(
    one: &mut PgConnection,
    two: &mut PgConnection,
) -> Result<bool, PostgresError> {
    for _ in 0..LOOKS {
        let before = session(one).await?;
        two.execute("BEGIN").await?;
        let theirs = session(two).await?;
        let after = session(one).await?;
        two.execute("ROLLBACK").await?;
        if theirs == before || after != before {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn session(connection: &mut PgConnection) -> Result<i32, PostgresError> {
    let row = connection.fetch_one(sqlx::raw_sql("SELECT pg_backend_pid()")).await?;
    Ok(row.try_get_unchecked(0)?)
}

/// Whether `one` can execute what it has prepared once `two` has taken the
/// session in which it did. It may execute a statement of the same name that
/// somebody else has prepared there, so the answer is compared, too.
async fn carries_statements(
    one: &mut PgConnection,
    two: &mut PgConnection,
) -> Result<bool, PostgresError> {
    let token = fastrand::i64(..);
    for take_the_session in [false, true] {
        if take_the_session {
            two.execute("BEGIN").await?;
            session(two).await?;
        }
        match sqlx::query("SELECT $1::bigint").bind(token).fetch_one(&mut *one).await {
            Ok(row) if row.try_get_unchecked::<i64, _>(0).is_ok_and(|got| got == token) => {}
            Ok(_) | Err(sqlx::Error::Database(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    two.execute("ROLLBACK").await?;
    Ok(true)
}

async fn close(one: PgConnection, two: PgConnection) {
    // A goodbye is a courtesy: the server notices without it.
    let _ = tokio::join!(one.close(), two.close());
}
