//! Opens the store that the settings name, and closes it at the end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use crate::config::{DatabaseUrl, Databases, PostgresUrl};
use event_host_store::StoreError;
use event_host_store::traits::*;
use event_host_store_postgres::{Owner, PostgresStore, ServerUrl};
use event_host_store_sqlite::{OpenOptions, SqliteStore};

/// What must be there when a database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The tables, of this version.
    Tables,
    /// Nothing: what is missing is made next.
    Nothing,
    /// Nothing, or a schema that is this role's own: what is missing is made next, and
    /// what is there runs with its rights.
    Ours,
}

/// What this process has opened, and closes however it ends.
static OPENED: Mutex<Vec<Arc<dyn Store>>> = Mutex::new(Vec::new());

/// How long a host waits between two attempts to open a database that is not there yet.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// How often it says that it still waits.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Opens the database, and waits for one that is not there yet, such as a server that is
/// started together with the host. What says no is not waited for: a wrong password, an
/// unknown database, a file of another kind.
///
/// # Errors
/// As [`connect`], and with what it said last where it is not there in time.
pub(crate) async fn connect_within(
    databases: &Databases,
    expected: Expected,
    wait: Duration,
) -> anyhow::Result<Arc<dyn Store>> {
    let begun = Instant::now();
    let mut say_at = begun;
    loop {
        let why = match connect(databases, expected).await {
            Ok(store) => {
                if say_at > begun {
                    info!(after = ?rounded(begun.elapsed()), "the database is there");
                }
                return Ok(store);
            }
            Err(why) if is_not_there_yet(&why) && begun.elapsed() < wait => why,
            Err(why) if say_at > begun => {
                let waited = rounded(begun.elapsed());
                return Err(why.context(format!("the database did not come within {waited:?}")));
            }
            Err(why) => return Err(why),
        };
        if say_at <= Instant::now() {
            let first = say_at == begun;
            let waits = if first { "waits for it" } else { "still waits for it" };
            warn!(
                waited = ?rounded(begun.elapsed()),
                up_to = ?wait,
                "the database is not there yet, and the host {waits}: {why:#}"
            );
            say_at = Instant::now() + SAY_EVERY;
        }
        let left = wait.saturating_sub(begun.elapsed());
        tokio::time::sleep(AGAIN_AFTER.min(left)).await;
    }
}

/// Whether trying again may help.
fn is_not_there_yet(why: &anyhow::Error) -> bool {
    let why = why.downcast_ref::<StoreError>();
    why.is_some_and(|why| matches!(why, StoreError::Unavailable(_) | StoreError::Busy(_)))
}

/// As people say it.
fn rounded(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

/// Opens the database.
///
/// # Errors
/// When it cannot be opened, or does not have what is expected.
pub(crate) async fn connect(
    databases: &Databases,
    expected: Expected,
) -> anyhow::Result<Arc<dyn Store>> {
    let store: Arc<dyn Store> = match &databases.database {
        DatabaseUrl::Sqlite(path) => {
            let options = match expected {
                Expected::Tables => OpenOptions::existing(),
                Expected::Nothing | Expected::Ours => OpenOptions::to_migrate(),
            };
            Arc::new(SqliteStore::open(&path.to_string_lossy(), options).await?)
        }
        DatabaseUrl::Postgres(url) => {
            let direct = databases.lock_database.as_ref().map(server_url);
            let store = PostgresStore::new(server_url(url), direct)?;
            match expected {
                Expected::Tables => {}
                Expected::Nothing => store.check_owner(Owner::Anybodys).await?,
                Expected::Ours => store.check_owner(Owner::Ours).await?,
            }
            store.check_schema(expected == Expected::Tables).await?;
            Arc::new(store)
        }
    };
    OPENED.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&store));
    Ok(store)
}

/// Closes what was opened, at the end of the process.
pub(crate) async fn close() {
    let opened = std::mem::take(&mut *OPENED.lock().unwrap_or_else(PoisonError::into_inner));
    for store in opened {
        if let Err(why) = store.close().await {
            warn!("{why}; nothing is lost by it");
        }
    }
}

fn server_url(url: &PostgresUrl) -> ServerUrl<'_> {
    ServerUrl { url: url.expose(), connect_timeout: url.connect_timeout() }
}
