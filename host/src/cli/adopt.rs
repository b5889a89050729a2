//! `host adopt`: accepts a database that was restored from elsewhere.

use clap::Args;

use super::output::{self, print_table, table};
use super::{Global, database};

#[derive(Debug, Args)]
pub(super) struct Adopt {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Adopt {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let adopted = database::open(global).await?.adopt().await?;
        if self.json {
            return Ok(output::json(&adopted)?);
        }
        let Some(from) = adopted.from else {
            output::line(format!("nothing to do: the log is at home in cluster {}", adopted.here))?;
            return Ok(());
        };
        output::line(format!(
            "the log came from cluster {from}, and is at home in cluster {} from now on",
            adopted.here
        ))?;
        if adopted.groups.is_empty() {
            return Ok(());
        }
        output::line("every group goes on after its position; what was open before is refused:")?;
        let mut rows = table(["group", "position"]);
        for (group, position) in &adopted.groups {
            rows.add_row([group.to_string(), position.to_string()]);
        }
        print_table(&rows)?;
        Ok(())
    }
}
