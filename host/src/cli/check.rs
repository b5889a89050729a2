//! `host check`: everything that `run` would refuse, without running.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::database::Expected;
use super::loading::{Loaded, Loader, deployed_ones};
use super::{Global, database, output};
use crate::config::Config;
use crate::delivery::Handler as _;
use crate::sandbox::Interface;

#[derive(Debug, Args)]
pub(super) struct Check {
    /// The settings [default: handlers.toml]
    #[arg(conflicts_with = "config")]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let path = self.file.unwrap_or_else(|| global.config_path());
        let config = Config::load(&path, &database::overrides(global))?;
        let loader = Loader::new(&config.compilation)?;
        let files = loader.files(&config).await;
        // What is wrong with the files is said by now: it must not hide the rest.
        let mut handlers = deployed(&loader, &config).await?;
        handlers.extend(files?);
        handlers.sort_by_key(|loaded| {
            config.handlers.iter().position(|settings| settings.name == loaded.settings.name)
        });
        if self.json {
            let list: Vec<_> = handlers
                .iter()
                .map(|loaded| {
                    let mut handler = json!({
                        "handler": loaded.settings.name,
                        "group": loaded.settings.group,
                        "component": loaded.settings.component.to_string(),
                        "digest": loaded.handler.digest(),
                        "interface": loaded.interface().to_string(),
                        "subscribe": loaded.settings.subscription.patterns(),
                    });
                    if loaded.interface() == Interface::BatchHandler {
                        handler["batch_size"] = json!(loaded.settings.batch.calls().size);
                    }
                    if !loaded.settings.tenant.is_none() {
                        handler["tenant"] = json!(loaded.settings.tenant);
                    }
                    handler
                })
                .collect();
            output::json(&list)?;
            return Ok(());
        }
        // Where nobody is a tenant the word says nothing, and so where all are called alike.
        let tenants = handlers.iter().any(|loaded| !loaded.settings.tenant.is_none());
        let owner = tenants.then_some("tenant");
        let others = handlers.iter().any(|loaded| loaded.interface() != Interface::Handler);
        let called = others.then_some("interface");
        let headers = ["handler", "group"].into_iter().chain(owner).chain(called);
        let mut table = output::table(headers.chain(["subscribe", "component", "digest"]));
        for loaded in &handlers {
            let settings = &loaded.settings;
            let owner = tenants.then(|| settings.tenant.to_string());
            let called = others.then(|| loaded.interface().to_string());
            let named = [settings.name.to_string(), settings.group.to_string()];
            table.add_row(named.into_iter().chain(owner).chain(called).chain([
                settings.subscription.patterns().join(", "),
                settings.component.to_string(),
                loaded.handler.digest().chars().take(19).collect(),
            ]));
        }
        output::print_table(&table)?;
        output::line(format!("\n{}: all well", path.display()))?;
        Ok(())
    }
}

/// Loads what comes from the database, and looks into none where nothing does.
async fn deployed(loader: &Loader, config: &Config) -> anyhow::Result<Vec<Loaded>> {
    if deployed_ones(config).next().is_none() {
        return Ok(Vec::new());
    }
    let store = database::connect(&config.databases(), Expected::Tables).await?;
    loader.deployed(config, &*store).await
}
