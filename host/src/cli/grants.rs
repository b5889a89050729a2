//! `host grants`: the SQL that gives a role what it needs.

use clap::{Args, ValueEnum};

use super::output;
use event_host_store_postgres::{Purpose, grants};

#[derive(Debug, Args)]
pub(super) struct Grants {
    /// The role
    #[arg(long)]
    role: String,
    /// What it is for
    #[arg(long = "as")]
    purpose: For,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum For {
    /// Publishes events by `event_host.publish`, and sees nothing
    Publisher,
    /// Publishes by INSERT as well, for data that is not JSON; can draw positions and
    /// publish nothing
    Inserter,
    /// Takes events in by HTTP, for all tenants, and sees none of them
    Ingest,
    /// Looks at everything, moves cursors, replays dead letters, deploys
    Operator,
    /// Runs handlers; the schema's owner migrates
    Host,
}

impl Grants {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let purpose = match self.purpose {
            For::Publisher => Purpose::Publisher,
            For::Inserter => Purpose::Inserter,
            For::Ingest => Purpose::Ingest,
            For::Operator => Purpose::Operator,
            For::Host => Purpose::Host,
        };
        output::line(grants(&self.role, purpose).trim_end())?;
        Ok(())
    }
}
