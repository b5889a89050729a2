//! The component that `--digest` names, with the settings that the command line gives.

use super::{Global, database, progress, say};
use crate::app::named_component::{DigestPrefix, NamedComponent};
use crate::config::Config;
use crate::telemetry;
use event_host_store::Deployments;

/// What finds the component, and checks it where there are settings.
pub(super) fn named_component<'a>(
    start: &'a DigestPrefix,
    store: &'a dyn Deployments,
    global: &Global,
) -> NamedComponent<'a> {
    let path = global.config_path();
    let config = match Config::load(&path, &database::overrides(global)) {
        Ok(config) => Some(config),
        Err(_) if !path.exists() => None,
        Err(errors) => {
            telemetry::say(&format!(
                "note: whether the component can run is not checked: {errors}"
            ));
            None
        }
    };
    NamedComponent::new(start, store, config, say(), progress::by_handler)
}
