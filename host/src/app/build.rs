//! Builds a handler's component, and takes it if a host would load it.

use std::time::Duration;

use bytesize::ByteSize;
use tokio_util::sync::CancellationToken;

use super::loading::{Loader, NotLoaded};
use crate::build::{self, BuildError, Job, Output};
use crate::config::{BuildBy, BuildSettings, HandlerSettings};
use event_host_sandbox::Source;

/// A component that was built.
pub(crate) struct Built {
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
}

/// Why a handler was not built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotBuilt {
    #[error(transparent)]
    Build(#[from] BuildError),
    /// It was built, and a host would not run it.
    #[error("what was built does not load, and the old file stays: {0}")]
    NotLoaded(#[from] NotLoaded),
}

/// Builds one handler, loads it as a host would, and puts it in place.
///
/// # Errors
/// When it is not built, or does not load; then the file stays as it was.
pub(crate) async fn build_one(
    job: &Job,
    settings: &HandlerSettings,
    loader: &Loader,
    output: &Output,
    cancelled: &CancellationToken,
    note: &(dyn Fn(&str) + Sync),
) -> Result<Built, NotBuilt> {
    let made = build::make(job, output, cancelled, note).await?;
    let loaded = loader.load(settings, Source::File(made.file.clone()));
    tokio::select! {
        loaded = loaded => drop(loaded?),
        () = cancelled.cancelled() => return Err(BuildError::Cancelled.into()),
    }
    let took = made.took;
    Ok(Built { bytes: made.install()?, took })
}

/// What builds a handler: a language, or `command`.
pub(crate) fn builder(build: &BuildSettings) -> &'static str {
    match &build.by {
        BuildBy::Recipe(language) => language.name(),
        BuildBy::Command(_) => "command",
    }
}

/// The line of a handler that was built.
pub(crate) fn describe(settings: &HandlerSettings, build: &BuildSettings, built: &Built) -> String {
    let size = ByteSize(built.bytes).display().si();
    format!(
        "{}  {}  {size}  built in {:.1} s",
        settings.name,
        builder(build),
        built.took.as_secs_f64()
    )
}

/// Why a handler was not built, as a sentence that begins with its name.
pub(crate) fn describe_failure(why: &NotBuilt) -> String {
    match why {
        NotBuilt::Build(BuildError::Missing(_)) => why.to_string(),
        why => format!("is not built: {why}"),
    }
}
