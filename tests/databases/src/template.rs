//! Templates: databases that are prepared once and copied for each test.
//!
//! A template has its final name only when it is whole, so its existence is all
//! that anybody needs to look at.

use sqlx::PgConnection;
use tokio::time::timeout;

use crate::{PATIENCE, execute, with_database};

/// Held while a template is prepared. The key is a number of no meaning; it
/// counts in the database that `DATABASE_URL` names.
const LOCK: i64 = 0x7465_6d70_6c61_7465;

/// The name of the template for `key`, which exists now.
pub(crate) async fn find_or_prepare(
    key: &str,
    server: &str,
    connection: &mut PgConnection,
    prepare: impl AsyncFnOnce(String),
) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    assert!(
        (1..=40).contains(&key.len()) && key.chars().all(plain),
        "a template's key is 1 to 40 of a to z, 0 to 9 and _, and not {key:?}"
    );
    let template = format!("test_template_{key}");
    if exists(&template, connection).await {
        return template;
    }
    execute(connection, format!("SELECT pg_advisory_lock({LOCK})")).await;
    if !exists(&template, connection).await {
        prepare_as(&template, server, connection, prepare).await;
    }
    execute(connection, format!("SELECT pg_advisory_unlock({LOCK})")).await;
    template
}

/// Whoever prepares has the lock; who loses the connection, loses that too.
async fn prepare_as(
    template: &str,
    server: &str,
    connection: &mut PgConnection,
    prepare: impl AsyncFnOnce(String),
) {
    let unfinished = format!("{template}_unfinished");
    // Of somebody who did not come to an end.
    execute(connection, format!("DROP DATABASE IF EXISTS {unfinished} WITH (FORCE)")).await;
    execute(connection, format!("CREATE DATABASE {unfinished} TEMPLATE template0")).await;
    prepare(with_database(server, &unfinished)).await;
    // Neither the renaming nor a copy works while somebody is connected, so from
    // here on nobody can be. Both wait a few seconds for a session that ends.
    execute(connection, format!("ALTER DATABASE {unfinished} ALLOW_CONNECTIONS false")).await;
    execute(
        connection,
        format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{unfinished}'"
        ),
    )
    .await;
    execute(connection, format!("ALTER DATABASE {unfinished} RENAME TO {template}")).await;
}

async fn exists(database: &str, connection: &mut PgConnection) -> bool {
    let question = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)");
    timeout(PATIENCE, question.bind(database).fetch_one(connection))
        .await
        .unwrap_or_else(|_| panic!("the server of DATABASE_URL did not answer in {PATIENCE:?}"))
        .unwrap_or_else(|error| panic!("cannot look for database {database}: {error}"))
}
