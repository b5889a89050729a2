//! `host migrate`: brings the schema up to date.

use clap::Args;

use super::{Global, database, output};

#[derive(Debug, Args)]
pub(super) struct Migrate {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Migrate {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let store = database::open_to_migrate(global).await?;
        let applied = store.migrate().await?;
        if self.json {
            output::json(&serde_json::json!({ "applied": applied }))?;
        } else if applied.is_empty() {
            output::line("the schema is up to date")?;
        } else {
            for name in applied {
                output::line(format!("applied {name}"))?;
            }
        }
        Ok(())
    }
}
