//! `host dlq reproduce`: a dead letter's event through its handler again, with
//! nothing recorded of it.
//!
//! The handler finds what it would find in the group: its settings, and the
//! state that is committed now. What it emits and writes is shown and dropped.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::{AlreadySaid, Global, attempt, database, output, progress};
use crate::app::attempt::Attempt;
use crate::app::loading::Loader;
use crate::config::{Component, Config, HandlerSettings};
use event_host_core::digest::Digest;
use event_host_core::handler::Handler as _;
use event_host_delivery::state::StoredState;
use event_host_sandbox::Source;
use event_host_store::{DeadLetter, DeadLetterId, Deployments, Missing, Store, StoreError};

#[derive(Debug, Args)]
pub(super) struct Reproduce {
    /// Its number
    id: i64,
    /// Try this component instead of the one that failed
    #[arg(long, value_name = "FILE")]
    component: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Reproduce {
    pub(super) async fn run(self, global: &Global, store: Arc<dyn Store>) -> anyhow::Result<()> {
        let letter = store.dead_letter(DeadLetterId(self.id)).await?;
        let config = Config::load(&global.config_path(), &database::overrides(global))?;
        let settings = settings(&config, &letter)?;
        let loader = Loader::new(&config.compilation, progress::by_handler)?;
        let source = match self.component {
            Some(file) => Source::File(file),
            None => failed_one(&letter, settings, &*store, loader.component_bytes()).await?,
        };
        // The pin is for what runs; here anything may be tried.
        let settings = HandlerSettings { digest: None, ..settings.clone() };
        let handler = loader.load_any(&settings, source).await?;
        let state = Arc::new(StoredState { store, group: letter.group.clone(), admission: None });
        let attempted = Attempt {
            group: &letter.group,
            tenant: &letter.tenant,
            event: &letter.event,
            number: letter.attempts.max(1),
            state,
        }
        .run(&handler)
        .await?;
        if self.json {
            let mut answer = attempt::to_json(&attempted);
            answer["dead_letter"] = json!(letter.id);
            answer["failed_then"] = json!({ "digest": letter.digest, "failure": letter.failure });
            output::json(&answer)?;
        } else {
            attempt::print(&attempted)?;
            let same = handler.digest() == letter.digest;
            output::line(format!(
                "with   {}, {}",
                handler.digest(),
                if same { "the one that failed" } else { "another than the one that failed" }
            ))?;
        }
        if attempted.succeeded() { Ok(()) } else { Err(AlreadySaid.into()) }
    }
}

/// The handler of the group that gave up.
fn settings<'a>(config: &'a Config, letter: &DeadLetter) -> anyhow::Result<&'a HandlerSettings> {
    let of_group = |settings: &&HandlerSettings| {
        settings.group == letter.group && settings.tenant == letter.tenant
    };
    let Some(settings) = config.handlers.iter().find(of_group) else {
        bail!(
            "dead letter {} is of group `{}`, and {} has no handler in it, so its limits and permissions are not known",
            letter.id,
            letter.group,
            config.path.display()
        );
    };
    Ok(settings)
}

/// The component that failed: from the database, or the handler's file as long
/// as it is the same.
async fn failed_one(
    letter: &DeadLetter,
    settings: &HandlerSettings,
    store: &dyn Deployments,
    limit: u64,
) -> anyhow::Result<Source> {
    if let Ok(digest) = letter.digest.parse::<Digest>() {
        match store.component(&letter.tenant, &digest).await {
            Ok(bytes) => return Ok(Source::Deployed { name: digest.to_string(), bytes }),
            Err(StoreError::NotFound(Missing::Component(_))) => {}
            Err(other) => return Err(other.into()),
        }
    }
    let now = match &settings.component {
        Component::Deployed => "it is not in the database".to_owned(),
        Component::File(path) => match Source::File(path.clone()).into_bytes(limit) {
            Ok(bytes) => {
                let digest = Digest::of(&bytes);
                if digest.as_str() == letter.digest {
                    return Ok(Source::Bytes { name: path.display().to_string(), bytes });
                }
                format!("{} is {digest} now", path.display())
            }
            Err(why) => why.to_string(),
        },
    };
    bail!(
        "dead letter {} failed in component {}, which is not to be found ({now}): name its file, or another to try, with --component FILE",
        letter.id,
        letter.digest
    )
}
