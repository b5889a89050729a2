//! `host rollback`: goes back to the version before.

use clap::Args;

use super::{Global, database, outcome_known, output, versions};
use event_host_core::event::{HandlerName, Tenant};
use event_host_store::VersionNumber;

#[derive(Debug, Args)]
pub(super) struct Rollback {
    /// The handler
    handler: HandlerName,
    /// Only if this version is active
    #[arg(long, value_name = "VERSION")]
    from: Option<i64>,
    /// Whose handler it is, where several have one of this name
    #[arg(long, value_name = "NAME")]
    tenant: Option<Tenant>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Rollback {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let store = database::open(global).await?;
        let tenant = versions::owner(&*store, &self.handler, self.tenant).await?;
        let from = self.from.map(VersionNumber);
        let version = store.rollback(&tenant, &self.handler, from).await;
        let version = outcome_known(version, "host versions", self.handler.as_str())?;
        if self.json {
            return Ok(output::json(&versions::to_json(&self.handler, &tenant, &version))?);
        }
        output::line(format!(
            "handler {} goes back to version {}, {}",
            self.handler, version.version, version.digest
        ))?;
        Ok(())
    }
}
