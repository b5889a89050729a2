//! `host build`: makes components of the sources that handlers.toml names.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{AlreadySaid, Global, UsageError, database, output, progress};
use crate::app::build::{build_one, builder, describe, describe_failure};
use crate::app::loading::Loader;
use crate::build::{self, Job, Output};
use crate::config::{BuildBy, BuildSettings, Config, HandlerSettings};
use crate::language::Language;
use crate::nearest::nearest;
use crate::telemetry;

#[derive(Debug, Args)]
pub(super) struct Build {
    /// The handlers to build [default: all that have a table `build`]
    #[arg(value_name = "NAME", conflicts_with = "doctor")]
    names: Vec<String>,
    /// Say which tools each language needs and which are there, and build nothing
    #[arg(long)]
    doctor: bool,
}

impl Build {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let path = global.config_path();
        let overrides = database::overrides(global);
        if self.doctor {
            return doctor(&path, Config::load(&path, &overrides).ok().as_ref()).await;
        }
        let config = Config::load(&path, &overrides)?;
        let handlers = self.chosen(&config)?;
        let loader = Loader::new(&config.compilation, progress::by_handler)?;
        let interrupt = super::interrupt::Interrupt::listen()?;
        let cancelled = CancellationToken::new();
        let mut failed = false;
        for (settings, build) in handlers {
            let note = |what: &str| telemetry::say(&format!("{}: {what}", settings.name));
            let built = async {
                let job = Job::new(&settings.name, build)?;
                build_one(&job, settings, &loader, &Output::Inherited, &cancelled, &note).await
            };
            tokio::pin!(built);
            let built = tokio::select! {
                built = &mut built => built,
                () = interrupt.comes() => {
                    cancelled.cancel();
                    built.await
                }
            };
            match built {
                Ok(built) => output::line(describe(settings, build, &built))?,
                Err(why) => {
                    let by = builder(build);
                    telemetry::say(&format!(
                        "error: {} ({by}) {}",
                        settings.name,
                        describe_failure(&why)
                    ));
                    failed = true;
                }
            }
            if interrupt.came() {
                bail!("interrupted: what was not built yet stays as it is");
            }
        }
        if failed { Err(AlreadySaid.into()) } else { Ok(()) }
    }

    /// The handlers that are to be built, with how.
    fn chosen<'a>(
        &self,
        config: &'a Config,
    ) -> anyhow::Result<Vec<(&'a HandlerSettings, &'a BuildSettings)>> {
        const HINT: &str = "add a table [handlers.NAME.build] with `lang = \"python\"` or another language, or with `command`";
        let file = config.path.display();
        let with_build = |settings: &'a HandlerSettings| Some((settings, settings.build.as_ref()?));
        if self.names.is_empty() {
            let all: Vec<_> = config.handlers.iter().filter_map(with_build).collect();
            if all.is_empty() {
                bail!(UsageError(format!("{file}: no handler says how it is built: {HINT}")));
            }
            return Ok(all);
        }
        let mut chosen = Vec::new();
        for name in &self.names {
            let Some(settings) = config.handlers.iter().find(|one| one.name.as_str() == name)
            else {
                let known = config.handlers.iter().map(|one| one.name.as_str());
                let near = nearest(name, known)
                    .map_or_else(String::new, |near| format!("; is `{near}` meant?"));
                bail!(UsageError(format!("{file} has no handler `{name}`{near}")));
            };
            let Some(one) = with_build(settings) else {
                bail!(UsageError(format!(
                    "{file} does not say how the handler `{name}` is built: {HINT}"
                )));
            };
            if !chosen.iter().any(|(other, _): &(&HandlerSettings, _)| other.name == one.0.name) {
                chosen.push(one);
            }
        }
        Ok(chosen)
    }
}

/// Prints which tools there are: for the folder of a handler in each language, or for the
/// folder of the settings.
async fn doctor(path: &Path, config: Option<&Config>) -> anyhow::Result<()> {
    let root = path.parent().unwrap_or(Path::new(""));
    let root = std::path::absolute(if root == Path::new("") { Path::new(".") } else { root })?;
    let mut table =
        output::table(["language", "tool", "needed", "found", "where, or what installs it"]);
    for language in Language::ALL {
        let folder = folder_of(language, config).unwrap_or_else(|| root.clone());
        let needs = build::needs(language, &std::path::absolute(folder)?, &root).await;
        if needs.is_empty() {
            table.add_row([language.name(), "-", "-", "-", "nothing is needed"].map(str::to_owned));
        }
        for need in needs {
            let (found, place) = match need.found {
                Ok(found) => found,
                Err(other) if other == "-" => ("missing".to_owned(), need.install),
                Err(other) => (other, need.install),
            };
            let name = language.name().to_owned();
            table.add_row([name, need.tool.to_owned(), need.wanted, found, place]);
        }
    }
    output::print_table(&table)?;
    Ok(())
}

/// The folder of the first handler in a language.
fn folder_of(language: Language, config: Option<&Config>) -> Option<PathBuf> {
    let builds = config?.handlers.iter().filter_map(|handler| handler.build.as_ref());
    let mut of_language = builds.filter(|build| build.by == BuildBy::Recipe(language));
    of_language.next().map(|build| build.folder.clone())
}
