//! Opens the store that the arguments or the settings name.

use std::sync::Arc;

use anyhow::bail;

use super::Global;
use crate::config::{Config, DatabaseUrl, Overrides};
use crate::store::Store;
use crate::store::sqlite::{OpenOptions, SqliteStore};

/// Opens a database that must be there.
pub(super) async fn open(global: &Global) -> anyhow::Result<Arc<dyn Store>> {
    connect(&url(global)?, OpenOptions::existing()).await
}

/// Opens a database, and creates an embedded one that is not there.
pub(super) async fn open_or_create(global: &Global) -> anyhow::Result<Arc<dyn Store>> {
    connect(&url(global)?, OpenOptions::to_migrate()).await
}

/// What the command line says over the settings.
pub(super) fn overrides(global: &Global) -> Overrides {
    Overrides { database: global.database.clone() }
}

fn url(global: &Global) -> anyhow::Result<DatabaseUrl> {
    Ok(Config::load_database(&global.config_path(), &overrides(global))?)
}

/// Opens the database at `url`.
pub(super) async fn connect(
    url: &DatabaseUrl,
    options: OpenOptions,
) -> anyhow::Result<Arc<dyn Store>> {
    match url {
        DatabaseUrl::Sqlite(path) => {
            Ok(Arc::new(SqliteStore::open(&path.to_string_lossy(), options).await?))
        }
        // The one place where the store of PostgreSQL is still to be opened.
        DatabaseUrl::Postgres(url) => bail!("{url}: this build has no store for PostgreSQL"),
    }
}
