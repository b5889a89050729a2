//! `host run --watch` for handlers that say how they are built: builds again when their
//! sources change.
//!
//! Each such handler has a task that watches its sources. One build runs at a time in the
//! whole host, at low priority, so that handlers keep most of the machine; a change while
//! a handler is built ends that build and begins another. What was built takes the
//! component's place on disk, and from there on it is a changed file like any other. A
//! build that fails leaves the file, and what runs, as they are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, info, warn};

use super::Say;
use super::build::{NotBuilt, build_one, builder, describe, describe_failure};
use super::loading::Loader;
use super::loads::is_loaded_alike;
use crate::build::{BuildError, Inputs, Job, Look, Output};
use crate::config::{BuildSettings, Component, Config, HandlerSettings};
use event_host_core::event::HandlerName;

/// A build begins once nothing changed for so long.
const QUIET: Duration = Duration::from_millis(100);

/// But not later than this after the first change.
const LATEST: Duration = Duration::from_secs(2);

/// How often the sources are looked at, whatever the system tells of.
const POLL: Duration = Duration::from_secs(2);

/// How many changed files are named.
const NAMED: usize = 3;

/// Builds handlers when their sources change.
pub(crate) struct Rebuilder {
    builds: Builds,
    followed: BTreeMap<HandlerName, Followed>,
    tasks: TaskTracker,
}

/// A handler whose sources are watched.
struct Followed {
    settings: HandlerSettings,
    stop: CancellationToken,
}

/// What all builds of a host share.
#[derive(Clone)]
struct Builds {
    loader: Loader,
    /// Receives what compilers print; `None` logs it.
    say: Option<Say>,
    /// One build runs at a time.
    running: Arc<Semaphore>,
}

impl Rebuilder {
    pub(crate) fn new(loader: Loader, say: Option<Say>) -> Self {
        let builds = Builds { loader, say, running: Arc::new(Semaphore::new(1)) };
        Self { builds, followed: BTreeMap::new(), tasks: TaskTracker::new() }
    }

    /// Builds the components that are not there, before a host loads them. What is not
    /// built is said, and the load then refuses its handler.
    pub(crate) async fn build_missing(&self, config: &Config, stop: &CancellationToken) {
        for settings in &config.handlers {
            let (Some(build), Component::File(file)) = (&settings.build, &settings.component)
            else {
                continue;
            };
            if !file.exists() && !stop.is_cancelled() {
                info!(handler = %settings.name, "{} is not there yet: building it", file.display());
                let job = Job::new(&settings.name, build);
                match job {
                    Ok(job) => drop(self.builds.build(&job, settings, build, stop).await),
                    Err(why) => error!(handler = %settings.name, "is not built: {why}"),
                }
            }
        }
    }

    /// Follows the sources of these handlers, and of no others any more. A handler whose
    /// table `build` changed is built.
    pub(crate) fn follow(&mut self, config: &Config) {
        self.followed.retain(|name, followed| {
            let now = config.handlers.iter().find(|settings| settings.name == *name);
            let stays = now.is_some_and(|now| {
                now.build == followed.settings.build && is_loaded_alike(now, &followed.settings)
            });
            if !stays {
                followed.stop.cancel();
            }
            stays || now.is_some_and(|now| now.build.is_some())
        });
        let components: Vec<PathBuf> = config
            .handlers
            .iter()
            .filter_map(|settings| match &settings.component {
                Component::File(file) => std::path::absolute(file).ok(),
                Component::Deployed => None,
            })
            .collect();
        for settings in &config.handlers {
            let Some(build) = &settings.build else { continue };
            let before = self.followed.get(&settings.name);
            if before.is_some_and(|before| !before.stop.is_cancelled()) {
                continue;
            }
            let builds_now = before.is_some_and(|before| before.settings.build != settings.build);
            let stop = CancellationToken::new();
            let followed = Followed { settings: settings.clone(), stop: stop.clone() };
            self.followed.insert(settings.name.clone(), followed);
            match sources(settings, build, &components) {
                Ok(Some((job, inputs))) => {
                    let (settings, build) = (settings.clone(), build.clone());
                    let task = Sources::new(inputs, job, settings, build, self.builds.clone());
                    self.tasks.spawn(task.follow(builds_now, stop));
                }
                Ok(None) => info!(
                    handler = %settings.name,
                    "its table `build` has no `watch`, so that only `host build` builds it"
                ),
                Err(why) => error!(handler = %settings.name, "its sources are not watched: {why}"),
            }
        }
    }

    /// Ends all builds, and waits for their end.
    pub(crate) async fn stop(&mut self) {
        for followed in self.followed.values() {
            followed.stop.cancel();
        }
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Rebuilder {
    fn drop(&mut self) {
        for followed in self.followed.values() {
            followed.stop.cancel();
        }
    }
}

/// What is to be watched of a handler, if anything.
fn sources(
    settings: &HandlerSettings,
    build: &BuildSettings,
    components: &[PathBuf],
) -> Result<Option<(Job, Inputs)>, BuildError> {
    let job = Job::new(&settings.name, build)?;
    let inputs = Inputs::of(&job, build, components.iter().cloned())?;
    Ok(inputs.map(|inputs| (job, inputs)))
}

impl Builds {
    /// Builds a handler, and says how that went.
    async fn build(
        &self,
        job: &Job,
        settings: &HandlerSettings,
        build: &BuildSettings,
        cancelled: &CancellationToken,
    ) -> Result<(), NotBuilt> {
        let permit = tokio::select! {
            permit = self.running.acquire() => permit,
            () = cancelled.cancelled() => return Err(BuildError::Cancelled.into()),
        };
        let name = settings.name.clone();
        let output = self.output(&name);
        let note = |what: &str| info!(handler = %name, "{what}");
        let built = build_one(job, settings, &self.loader, &output, cancelled, &note).await;
        // The semaphore is never closed.
        drop(permit.ok());
        match &built {
            Ok(built) => info!(handler = %name, "built: {}", describe(settings, build, built)),
            Err(NotBuilt::Build(BuildError::Cancelled)) => {
                debug!(handler = %name, "the build was cancelled");
            }
            Err(why) => {
                let (by, why) = (builder(build), describe_failure(why));
                error!(handler = %name, "{name} ({by}) {why}");
            }
        }
        built.map(drop)
    }

    /// Passes on what compilers print, with the name of the handler before each line.
    fn output(&self, name: &HandlerName) -> Output {
        let (name, say) = (name.clone(), self.say.clone());
        Output::Lines(Arc::new(move |line| match &say {
            Some(say) => say(&format!("{name} | {line}")),
            None => info!(handler = %name, output = line, "building"),
        }))
    }
}

/// The sources of one handler.
struct Sources {
    job: Job,
    inputs: Arc<Inputs>,
    settings: HandlerSettings,
    build: BuildSettings,
    builds: Builds,
    /// Without, they are only looked at.
    watcher: Option<RecommendedWatcher>,
    happened: Arc<Notify>,
    /// Something happened that was not looked at yet: who waits may stop waiting at any
    /// moment, and ask again.
    is_untold: bool,
    /// What they were when they were looked at last.
    seen: Arc<Look>,
}

impl Sources {
    fn new(
        inputs: Inputs,
        job: Job,
        settings: HandlerSettings,
        build: BuildSettings,
        builds: Builds,
    ) -> Self {
        let (inputs, happened) = (Arc::new(inputs), Arc::new(Notify::new()));
        let (wanted, happening) = (Arc::clone(&inputs), Arc::clone(&happened));
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // What was missed is unknown, so everything is looked at.
            if event.map_or(true, |event| matters(&event, &wanted)) {
                happening.notify_one();
            }
        });
        let watcher = watcher
            .inspect_err(|why| {
                warn!("the system tells of no changes, so sources are looked at every 2 s: {why}");
            })
            .ok();
        let seen = Arc::new(Look::default());
        Self { job, inputs, settings, build, builds, watcher, happened, is_untold: false, seen }
    }

    /// Builds at each change, until the stop.
    async fn follow(mut self, builds_now: bool, stop: CancellationToken) {
        let name = self.settings.name.clone();
        self.seen = self.look().await;
        self.be_told();
        // Changes from before the host was started.
        let is_stale = self.seen.is_newer_than(&self.build.component);
        let mut is_due = builds_now || is_stale;
        while !stop.is_cancelled() {
            if !is_due {
                tokio::select! {
                    () = stop.cancelled() => return,
                    changed = self.changed() => say_changed(&name, &changed, &self.job),
                }
            }
            is_due = false;
            let cancelled = stop.child_token();
            let (job, settings) = (self.job.clone(), self.settings.clone());
            let (build, builds) = (self.build.clone(), self.builds.clone());
            let building = builds.build(&job, &settings, &build, &cancelled);
            tokio::pin!(building);
            tokio::select! {
                biased;
                changed = self.changed() => {
                    cancelled.cancel();
                    // Its programs are gone when it ends.
                    let _ = building.await;
                    say_changed(&name, &changed, &self.job);
                    is_due = true;
                }
                // It has said how it went.
                _ = &mut building => {}
            }
        }
    }

    /// Waits until the content of a source is another, and for the end of the changes
    /// that come with it; gives the sources that changed.
    async fn changed(&mut self) -> Vec<PathBuf> {
        loop {
            if !self.is_untold {
                let told = tokio::time::timeout(POLL, self.happened.notified()).await.is_ok();
                // Beside what the system tells of: a network's file system tells of nothing.
                self.is_untold = told || !self.seen.changed(&*self.look().await).is_empty();
                if !self.is_untold {
                    continue;
                }
            }
            let latest = Instant::now() + LATEST;
            while Instant::now() < latest
                && tokio::time::timeout(QUIET, self.happened.notified()).await.is_ok()
            {}
            let now = self.look().await;
            let changed = self.seen.changed(&now);
            let is_elsewhere = now.folders() != self.seen.folders();
            self.seen = now;
            self.is_untold = false;
            if is_elsewhere {
                self.be_told();
            }
            if !changed.is_empty() {
                return changed;
            }
        }
    }

    /// Looks at all sources, on a thread of its own: a file system may not answer.
    async fn look(&self) -> Arc<Look> {
        let (inputs, seen) = (Arc::clone(&self.inputs), Arc::clone(&self.seen));
        let look = tokio::task::spawn_blocking(move || Arc::new(inputs.look(&seen))).await;
        // It does not panic; and a runtime that goes down needs no answer.
        look.unwrap_or_else(|_| Arc::clone(&self.seen))
    }

    /// Has the system tell of changes in the folders that there are now.
    fn be_told(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        for folder in self.seen.folders() {
            // Once more is no harm, and a folder may have been replaced.
            if let Err(why) = watcher.watch(folder, RecursiveMode::NonRecursive) {
                debug!("looking at {} every 2 s: {why}", folder.display());
            }
        }
    }
}

/// Whether something happened to a source, or to a folder of some.
fn matters(event: &notify::Event, inputs: &Inputs) -> bool {
    // Reading a file is no change of it.
    let is_read = event.kind.is_access()
        && event.kind != EventKind::Access(AccessKind::Close(AccessMode::Write));
    let is_wanted = |path: &PathBuf| inputs.matches(path) || path.is_dir();
    event.need_rescan() || !is_read && (event.kind.is_remove() || event.paths.iter().any(is_wanted))
}

fn say_changed(name: &HandlerName, changed: &[PathBuf], job: &Job) {
    let shown = |file: &PathBuf| job.relative(file).display().to_string();
    let named: Vec<String> = changed.iter().take(NAMED).map(shown).collect();
    let more = changed.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} others") } else { String::new() };
    info!(handler = %name, "{}{more} changed: building", named.join(", "));
}
