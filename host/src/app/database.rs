//! Opens the store that the settings name, and closes it at the end.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::warn;

use crate::config::{DatabaseUrl, Databases, PostgresUrl};
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
