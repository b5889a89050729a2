//! Opens the store that the arguments or the settings name.

use std::sync::Arc;

use super::Global;
use crate::app::database::{Expected, connect};
use crate::config::{Config, Databases, Overrides};
use event_host_store::Store;

/// Opens a database that must be there.
pub(super) async fn open(global: &Global) -> anyhow::Result<Arc<dyn Store>> {
    connect(&databases(global)?, Expected::Tables).await
}

/// Opens a database, and creates an embedded one that is not there.
pub(super) async fn open_or_create(global: &Global) -> anyhow::Result<Arc<dyn Store>> {
    connect(&databases(global)?, Expected::Nothing).await
}

/// What the command line says over the settings.
pub(super) fn overrides(global: &Global) -> Overrides {
    Overrides { database: global.database.clone(), ..Overrides::default() }
}

fn databases(global: &Global) -> anyhow::Result<Databases> {
    Ok(Config::load_databases(&global.config_path(), &overrides(global))?)
}

/// Opens a database to migrate it, and creates an embedded one that is not there.
pub(super) async fn open_to_migrate(global: &Global) -> anyhow::Result<Arc<dyn Store>> {
    connect(&databases(global)?, Expected::Ours).await
}
