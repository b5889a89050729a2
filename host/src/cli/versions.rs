//! `host versions`: what was deployed for a handler.

use clap::Args;
use serde_json::{Value, json};

use super::output::{self, short};
use super::{Global, UsageError, database};
use event_host_core::event::{HandlerName, Tenant};
use event_host_store::{Deployments, Version};

#[derive(Debug, Args)]
pub(super) struct Versions {
    /// The handler
    handler: HandlerName,
    /// Whose handler it is, where several have one of this name
    #[arg(long, value_name = "NAME")]
    tenant: Option<Tenant>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Versions {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let store = database::open(global).await?;
        let tenant = owner(&*store, &self.handler, self.tenant).await?;
        let versions = store.versions(&tenant, &self.handler).await?;
        if self.json {
            let list: Vec<Value> =
                versions.iter().map(|version| to_json(&self.handler, &tenant, version)).collect();
            return Ok(output::json(&list)?);
        }
        if versions.is_empty() {
            output::line(format!(
                "nothing is deployed for handler {0}: `host deploy {0} FILE` does that",
                self.handler
            ))?;
            return Ok(());
        }
        let mut table = output::table(["version", "state", "digest", "size", "deployed", "by"]);
        for version in &versions {
            table.add_row([
                version.version.to_string(),
                version.state.as_str().to_owned(),
                version.digest.short().to_owned(),
                bytesize::ByteSize::b(version.bytes).display().iec().to_string(),
                format!("{:.0}", version.deployed_at),
                short(&version.deployed_by, 60),
            ]);
        }
        output::print_table(&table)?;
        Ok(())
    }
}

/// Whose handler is meant: the only one of this name for which something is
/// deployed, unless it is said.
pub(super) async fn owner(
    store: &dyn Deployments,
    handler: &HandlerName,
    given: Option<Tenant>,
) -> anyhow::Result<Tenant> {
    if let Some(tenant) = given {
        return Ok(tenant);
    }
    let deployed = store.deployed().await?;
    let owners: Vec<&Tenant> = deployed
        .iter()
        .filter(|deployed| deployed.handler == *handler)
        .map(|deployed| &deployed.tenant)
        .collect();
    match owners[..] {
        [] => Ok(Tenant::none()),
        [owner] => Ok(owner.clone()),
        [..] => {
            let owners: Vec<String> = owners.into_iter().map(named).collect();
            Err(UsageError(format!(
                "there is a handler `{handler}` for {}: say with --tenant whose is meant",
                owners.join(", for ")
            ))
            .into())
        }
    }
}

/// A tenant in a sentence.
pub(super) fn named(tenant: &Tenant) -> String {
    if tenant.is_none() {
        "no tenant (--tenant '')".to_owned()
    } else {
        format!("tenant `{tenant}`")
    }
}

/// A version, with whose it is.
pub(super) fn to_json(handler: &HandlerName, tenant: &Tenant, version: &Version) -> Value {
    let mut value = json!(version);
    value["handler"] = json!(handler);
    if !tenant.is_none() {
        value["tenant"] = json!(tenant);
    }
    value
}
