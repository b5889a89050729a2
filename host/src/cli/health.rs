//! `host health`: asks a host on this machine whether it is well, for where there is no other
//! client.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;

use super::http::Serving;
use super::{AlreadySaid, Global, database, output};
use crate::app::asking::{self, Asked};
use crate::config::{Config, Overrides};

/// An answer that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct Health {
    /// The settings [default: handlers.toml]
    #[arg(conflicts_with = "config")]
    file: Option<PathBuf>,
    /// Ask whether it is ready for work, not only alive
    #[arg(long)]
    ready: bool,
    #[command(flatten)]
    serving: Serving,
}

impl Health {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let path = self.file.unwrap_or_else(|| global.config_path());
        let overrides =
            Overrides { needs_no_handlers: true, ..self.serving.over(database::overrides(global)) };
        let listeners = match self.serving.http {
            // Then the settings are not needed.
            Some(address) => vec![asking::at(address)],
            None => Config::load(&path, &overrides)?.http.listeners,
        };
        let Some(listener) = asking::for_health(&listeners) else {
            bail!(
                "{}: no listener that can be asked serves `health`: name one by `--http=ADDRESS`, or add \"health\" to its `serve`",
                path.display()
            );
        };
        let what = if self.ready { "/readyz" } else { "/livez" };
        let asked = tokio::time::timeout(PATIENCE, asking::get(listener, what)).await;
        let Asked { status, body } = asked
            .with_context(|| format!("{} does not answer within 10 s", listener.url()))?
            .with_context(|| format!("cannot ask {}", listener.url()))?;
        output::line(body.trim_end())?;
        if status == 200 { Ok(()) } else { Err(AlreadySaid.into()) }
    }
}
