//! Loads the components that the settings name, as `run` and `check` do.

use std::sync::Arc;

use super::AlreadySaid;
use crate::config::{Config, HandlerSettings};
use crate::sandbox::{LoadError, LoadedHandler, Sandbox};

/// A handler with its code.
#[derive(Clone)]
pub(super) struct Loaded {
    /// What handlers.toml says of it.
    pub(super) settings: HandlerSettings,
    /// Its component.
    pub(super) handler: Arc<LoadedHandler>,
}

/// Loads every component, and says everything that is wrong with any of them.
pub(super) async fn load(sandbox: &Sandbox, config: &Config) -> anyhow::Result<Vec<Loaded>> {
    let mut loaded = Vec::new();
    let mut failed = false;
    for settings in &config.handlers {
        match load_one(sandbox, settings).await {
            Ok(handler) => loaded.push(Loaded { settings: settings.clone(), handler }),
            Err(why) => {
                eprintln!("error: {}: handler `{}`: {why}", config.path.display(), settings.name);
                failed = true;
            }
        }
    }
    if failed { Err(AlreadySaid.into()) } else { Ok(loaded) }
}

/// Loads the component of one handler.
pub(super) async fn load_one(
    sandbox: &Sandbox,
    settings: &HandlerSettings,
) -> Result<Arc<LoadedHandler>, LoadError> {
    sandbox
        .load(
            settings.name.as_str(),
            settings.component.clone(),
            settings.limits.clone(),
            settings.grants.clone(),
            settings.reuse,
        )
        .await
}
