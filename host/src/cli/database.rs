//! Opens the store that the arguments or the settings name.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::Global;
use crate::app::database::{Expected, connect};
use crate::config::{Config, Databases, Overrides, duration};
use event_host_core::clock::LONGEST_WAIT;
use event_host_store::Store;

/// How long to wait for the database, of commands that go on for long.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Wait {
    /// How long to wait for a database that is not there yet, such as 30s; 0s fails at
    /// once
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_wait)]
    pub(super) wait: Duration,
}

fn parse_wait(text: &str) -> Result<Duration, String> {
    duration(text)
        .filter(|wait| *wait <= LONGEST_WAIT)
        .ok_or_else(|| "write a duration such as 30s, 2m or 0s, at most 365d".to_owned())
}

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
