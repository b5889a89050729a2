//! `host check`: everything that `run` would refuse, without running.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::database::Expected;
use super::loading::{Loaded, Loader, deployed_ones};
use super::{Global, database, output};
use crate::config::Config;
use crate::delivery::Handler as _;

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
        let loader = Loader::new()?;
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
                    json!({
                        "handler": loaded.settings.name,
                        "group": loaded.settings.group,
                        "component": loaded.settings.component.to_string(),
                        "digest": loaded.handler.digest(),
                        "subscribe": loaded.settings.subscription.patterns(),
                    })
                })
                .collect();
            output::json(&list)?;
            return Ok(());
        }
        let mut table = output::table(["handler", "group", "subscribe", "component", "digest"]);
        for loaded in &handlers {
            table.add_row([
                loaded.settings.name.to_string(),
                loaded.settings.group.to_string(),
                loaded.settings.subscription.patterns().join(", "),
                loaded.settings.component.to_string(),
                loaded.handler.digest().chars().take(19).collect(),
            ]);
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
