//! `host metrics`: which metrics a host exports.

use clap::{Args, Subcommand};
use serde_json::json;

use super::output;
use event_host_metrics::Metrics;

#[derive(Debug, Subcommand)]
pub(super) enum MetricsCommand {
    /// List every metric that a host exports, with what it means
    List(List),
}

#[derive(Debug, Args)]
pub(super) struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl MetricsCommand {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let Self::List(List { json }) = self;
        let metrics = Metrics::default();
        if json {
            let all: Vec<_> = metrics
                .table()
                .iter()
                .map(|metric| {
                    json!({
                        "name": metric.full_name(),
                        "type": metric.kind.as_str(),
                        "labels": metric.labels,
                        "scope": metric.scope.as_str(),
                        "meaning": metric.help,
                    })
                })
                .collect();
            output::json(&all)?;
            return Ok(());
        }
        let mut table = output::table(["name", "type", "labels", "scope", "meaning"]);
        for metric in metrics.table() {
            table.add_row([
                metric.full_name(),
                metric.kind.as_str().to_owned(),
                metric.labels.join(", "),
                metric.scope.as_str().to_owned(),
                metric.help.to_owned(),
            ]);
        }
        output::print_table(&table)?;
        Ok(())
    }
}
