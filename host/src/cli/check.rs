//! `host check`: everything that `run` would refuse, without running.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::Args;
use serde_json::{Value, json};

use super::{AlreadySaid, Global, database, exposure, output, progress, say, schedules};
use crate::app::database::{Expected, connect};
use crate::app::loading::{Loaded, Loader, deployed_ones};
use crate::app::permissions::{self, Imported};
use crate::config::Config;
use crate::telemetry;
use event_host_core::handler::Handler as _;
use event_host_http::Hook;
use event_host_sandbox::Interface;

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
        // What is wrong with a certificate must not hide the rest, nor the rest that.
        let exposed = exposure::of(&config.http);
        let loader = Loader::new(&config.compilation, progress::by_handler)?;
        let files = loader.files(&config, &say()).await;
        // What is wrong with the files is said by now: it must not hide the rest.
        for wrong in &exposed.wrong {
            telemetry::say(wrong);
        }
        let mut handlers = deployed(&loader, &config).await?;
        handlers.extend(files?);
        if !exposed.wrong.is_empty() {
            return Err(AlreadySaid.into());
        }
        handlers.sort_by_key(|loaded| {
            config.handlers.iter().position(|settings| settings.name == loaded.settings.name)
        });
        if self.json {
            let mut list: Vec<_> = handlers
                .iter()
                .map(|loaded| {
                    let inspection = loaded.handler.inspection();
                    let mut handler = json!({
                        "handler": loaded.settings.name,
                        "group": loaded.settings.group,
                        "component": loaded.settings.component.to_string(),
                        "digest": loaded.handler.digest(),
                        "interface": loaded.interface().to_string(),
                        "subscribe": loaded.settings.subscription.patterns(),
                        "bytes": inspection.bytes,
                        "memory_bytes": inspection.memory_bytes,
                        "built_with": inspection.producers,
                        "imports": imported(loaded),
                    });
                    if loaded.interface() == Interface::BatchHandler {
                        handler["batch_size"] =
                            json!(loaded.settings.batch.call_batching().max_size);
                    }
                    if !loaded.settings.tenant.is_none() {
                        handler["tenant"] = json!(loaded.settings.tenant);
                    }
                    handler
                })
                .collect();
            list.extend(schedules::checked(&config.schedules));
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
        for loaded in &handlers {
            about(loaded)?;
        }
        schedules::print_checked(&config.schedules)?;
        for source in &config.sources {
            about_source(source)?;
        }
        for line in exposed.lines {
            output::line(line)?;
        }
        output::line(format!("\n{}: all well", path.display()))?;
        Ok(())
    }
}

/// What a component imports, for JSON.
fn imported(loaded: &Loaded) -> Vec<Value> {
    let imported =
        permissions::imported(&loaded.handler.inspection().imports, &loaded.settings.grants);
    let to_json = |imported: &Imported<'_>| {
        let Imported { package, interfaces, granted } = imported;
        json!({ "package": package, "interfaces": interfaces, "granted": granted })
    };
    imported.iter().map(to_json).collect()
}

/// Prints what is known of a handler's component: its size, how it was built, and what it
/// may use of what it imports.
fn about(loaded: &Loaded) -> anyhow::Result<()> {
    let (settings, inspection) = (&loaded.settings, loaded.handler.inspection());
    output::line(format!("\n{}", settings.name))?;
    let bytes = |bytes: u64| ByteSize::b(bytes).display();
    let memory = inspection.memory_bytes;
    let size = bytes(inspection.bytes).si();
    output::field(
        "  size",
        &match memory {
            0 => size.to_string(),
            _ => format!("{size}; begins with {} of memory", bytes(memory).iec()),
        },
    )?;
    let built_with: Vec<String> = inspection.producers.iter().map(ToString::to_string).collect();
    if !built_with.is_empty() {
        output::field("  built with", &built_with.join(", "))?;
    }
    let imports = permissions::imported(&inspection.imports, &settings.grants);
    if !imports.is_empty() {
        output::field("  imports", &permissions::lines(&imports).join("\n"))?;
    }
    Ok(())
}

/// Prints how a source's requests are verified, and how an event is made of them.
fn about_source(source: &Hook) -> anyhow::Result<()> {
    let retired = if source.retired { ", which is retired" } else { "" };
    output::line(format!("\nsource {}{retired}", source.name))?;
    output::field("  address", &format!("/hooks/{}", source.name))?;
    output::field("  verify", source.source.preset().name())?;
    if !source.tenant.is_none() {
        output::field("  tenant", source.tenant.as_str())?;
    }
    if !source.allow_from.is_empty() {
        let networks: Vec<_> = source.allow_from.iter().map(ToString::to_string).collect();
        output::field("  from", &networks.join(", "))?;
    }
    for (attribute, template) in source.source.attributes() {
        output::field(&format!("  {attribute}"), &template)?;
    }
    if let Some(key) = source.source.duplicate_key() {
        output::field("  repetitions", &format!("by id, or by {key}"))?;
    }
    Ok(())
}

/// Loads what comes from the database, and looks into none where nothing does.
async fn deployed(loader: &Loader, config: &Config) -> anyhow::Result<Vec<Loaded>> {
    if deployed_ones(config).next().is_none() {
        return Ok(Vec::new());
    }
    let store = connect(&config.databases(), Expected::Tables).await?;
    loader.deployed(config, &*store, &say()).await
}
