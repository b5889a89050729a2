//! `host deploy`: makes a component what all hosts of the database run for a
//! handler.
//!
//! It is checked first as the host would load it, with the handler's own limits
//! and permissions where handlers.toml has the handler. What was checked is what
//! is stored: the file is read once.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::{Global, UsageError, database, outcome_known, output, progress, versions};
use crate::app::database::{Expected, connect};
use crate::app::loading::Loader;
use crate::config::{Compilation, Component, Config, HandlerSettings};
use crate::telemetry;
use event_host_core::event::{HandlerName, Tenant};
use event_host_sandbox::Source;
use event_host_store::{Deployment, NewVersion, Store};

#[derive(Debug, Args)]
pub(super) struct Deploy {
    /// The handler, as handlers.toml names it
    handler: HandlerName,
    /// The component's file
    component: PathBuf,
    /// Whose handler it is, where handlers.toml does not have it
    #[arg(long, value_name = "NAME")]
    tenant: Option<Tenant>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Deploy {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let config = config(global)?;
        let settings = config.as_ref().and_then(|config| self.settings(config));
        let tenant = self.tenant(settings)?;
        let compilation = config.as_ref().map(|config| config.compilation).unwrap_or_default();
        let bytes = self.checked(&compilation, settings).await?;
        if let Some(config) = &config {
            self.note(config, settings);
        }
        let store = store(global, config.as_ref()).await?;
        let deployed_by = by();
        let new = NewVersion {
            tenant: &tenant,
            handler: &self.handler,
            component: &bytes,
            deployed_by: &deployed_by,
        };
        let deployed = store.deploy(new).await;
        let deployment = outcome_known(deployed, "host versions", self.handler.as_str())?;
        let (version, is_new) = match &deployment {
            Deployment::Activated(version) => (version, true),
            Deployment::WasActive(version) => (version, false),
        };
        if self.json {
            let mut answer = versions::to_json(&self.handler, &tenant, version);
            answer["new"] = json!(is_new);
            return Ok(output::json(&answer)?);
        }
        let runs = if is_new { "runs" } else { "has been running" };
        output::line(format!(
            "handler {} {runs} version {}, {}",
            self.handler, version.version, version.digest
        ))?;
        Ok(())
    }

    fn settings<'a>(&self, config: &'a Config) -> Option<&'a HandlerSettings> {
        config.handlers.iter().find(|settings| settings.name == self.handler)
    }

    /// Whose handler it is.
    fn tenant(&self, settings: Option<&HandlerSettings>) -> Result<Tenant, UsageError> {
        match (settings, &self.tenant) {
            (Some(settings), Some(given)) if settings.tenant != *given => Err(UsageError(format!(
                "handlers.toml has handler `{}` for {}, and not for {}: leave --tenant out",
                self.handler,
                versions::named(&settings.tenant),
                versions::named(given)
            ))),
            (Some(settings), _) => Ok(settings.tenant.clone()),
            (None, given) => Ok(given.clone().unwrap_or_default()),
        }
    }

    /// The file, if the host would run it.
    async fn checked(
        &self,
        compilation: &Compilation,
        settings: Option<&HandlerSettings>,
    ) -> anyhow::Result<Vec<u8>> {
        let loader = Loader::new(compilation, progress::by_handler)?;
        let bytes = Source::File(self.component.clone()).into_bytes(loader.component_bytes())?;
        let name = self.component.display().to_string();
        let source = Source::Deployed { name, bytes: bytes.clone() };
        match settings {
            Some(settings) => loader
                .load(settings, source)
                .await
                .with_context(|| format!("handler `{}`", self.handler))?,
            None => loader.unknown(&self.handler, source).await?,
        };
        Ok(bytes)
    }

    /// Says where the deployment is not likely to do what was meant.
    fn note(&self, config: &Config, settings: Option<&HandlerSettings>) {
        let path = config.path.display();
        let name = &self.handler;
        match settings.map(|settings| &settings.component) {
            Some(Component::Deployed) => {}
            Some(Component::File(file)) => telemetry::say(&format!(
                "note: {path}: handler `{name}` runs {}; it runs what is deployed with `component = \"deployed\"`",
                file.display()
            )),
            None => telemetry::say(&format!(
                "note: {path} has no handler `{name}`: the component was checked against the default limits"
            )),
        }
    }
}

/// The settings; none where there is no file and the command line names the
/// database.
fn config(global: &Global) -> anyhow::Result<Option<Config>> {
    let path = global.config_path();
    let needed = global.config.is_some() || global.database.is_none();
    if !needed && !path.exists() {
        return Ok(None);
    }
    Ok(Some(Config::load(&path, &database::overrides(global))?))
}

/// Opens the database, and makes what is missing in it, as `run` would.
async fn store(global: &Global, config: Option<&Config>) -> anyhow::Result<Arc<dyn Store>> {
    let store = match config {
        Some(config) if !config.migrate => {
            return connect(&config.databases(), Expected::Tables).await;
        }
        Some(config) => connect(&config.databases(), Expected::Nothing).await?,
        None => database::open_or_create(global).await?,
    };
    store.migrate().await?;
    Ok(store)
}

/// Who deploys: `user@machine`.
fn by() -> String {
    let id = rustix::process::getuid().as_raw();
    // The environment names no user in a timer's job or a container.
    let listed = std::fs::read_to_string("/etc/passwd").ok();
    let user = listed
        .and_then(|list| name_of(id, &list).map(str::to_owned))
        .or_else(|| std::env::var("USER").ok().filter(|user| !user.is_empty()))
        .unwrap_or_else(|| format!("user {id}"));
    let system = rustix::system::uname();
    format!("{user}@{}", system.nodename().to_string_lossy())
}

/// The name of a user in the system's list, whose lines are
/// `name:password:id:…`.
fn name_of(id: u32, list: &str) -> Option<&str> {
    list.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(id)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_number_in_the_systems_list() {
        let list =
            "root:x:0:0:root:/root:/bin/sh\n# no line\n:x:7::\nada:x:1000:1000:Ada:/:/bin/sh";
        assert_eq!(name_of(0, list), Some("root"));
        assert_eq!(name_of(1000, list), Some("ada"));
        for nobody in [7, 1, 100, u32::MAX] {
            assert_eq!(name_of(nobody, list), None);
        }
    }
}
