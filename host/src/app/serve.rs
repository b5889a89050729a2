//! A host that serves by HTTP and runs no handler: it leads no group and compiles nothing.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use tokio::signal::unix::Signal;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info};

use super::Say;
use super::database::{self, Expected};
use super::host::identity;
use super::http::Http;
use super::overview::OverviewTask;
use super::parts::Parts;
use super::problems::{Problem, Problems, Trigger};
use super::reload::AGAIN;
use super::running::says_what_runs;
use super::running::{changed, files, restart_settings};
use super::service_manager;
use super::watch::Watch;
use crate::config::{Config, Overrides};
use event_host_core::troubles::Troubles;
use event_host_delivery::leadership::Locks;
use event_host_http::Part;
use event_host_metrics::Metrics;
use event_host_store::Store;

/// What a host that serves is started with.
pub(crate) struct ServingHost {
    /// The settings file.
    pub(crate) path: PathBuf,
    /// What is said over the settings.
    pub(crate) overrides: Overrides,
    /// How long it waits for a database that is not there yet.
    pub(crate) wait: Duration,
    /// Whether it follows the settings file.
    pub(crate) watch: bool,
    /// Says lines to the person who started it.
    pub(crate) say: Say,
}

impl ServingHost {
    /// Runs until `stop` is cancelled. `hangup` has the settings read again.
    ///
    /// # Errors
    /// When the settings are refused or have nothing to serve, when the database cannot be
    /// opened, and when a listener cannot.
    pub(crate) async fn run(
        mut self,
        stop: CancellationToken,
        stopper: AbortOnDropHandle<Infallible>,
        mut hangup: Signal,
    ) -> anyhow::Result<()> {
        self.overrides.needs_no_handlers = true;
        let mut watch = self.watch.then(Watch::new);
        if let Some(watch) = &mut watch {
            // Before it is read, so that no change is missed.
            watch.follow([self.path.as_path()].into_iter()).await;
        }
        let started = Config::load(&self.path, &self.overrides)?;
        if let Some(watch) = &mut watch {
            watch.follow(files(&self.path, &started)).await;
        }
        if started.http.listeners.is_empty() {
            bail!(
                "{}: there is nothing to serve: write a table [listen.NAME], or start with `--http`",
                self.path.display()
            );
        }
        let databases = started.databases();
        let store = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            opened = service_manager::asking_for_time(database::connect_within(
                &databases,
                Expected::Tables,
                self.wait,
            )) => opened?,
        };
        info!(version = env!("CARGO_PKG_VERSION"), database = %started.database, "serving");
        let metrics = Arc::new(Metrics::new(&started.metrics));
        metrics.host.built(env!("CARGO_PKG_VERSION"), started.database.kind());
        says_what_runs(&metrics, &started, std::iter::empty());
        let http = Http::start(&started, &store, &metrics, &self.say).await?;
        // Everything is served until listeners close, which is after the stop.
        let halt = CancellationToken::new();
        let _looking = look(&store, &metrics, http.parts(), &halt);
        service_manager::ready(&http.status());
        let pulse = http.health().watch_task("what follows the settings");
        let following = pulse.beat_during(self.follow(&http, &started, watch, &mut hangup));
        let broken = tokio::select! {
            () = stop.cancelled() => None,
            Err(why) = stopper => Some(why),
            () = following => None,
        };
        http.drain(started.grace).await;
        halt.cancel();
        http.stop(started.grace).await;
        if let Some(why) = broken {
            bail!("what waits for signals broke: {why}");
        }
        info!("stopped");
        Ok(())
    }

    /// Takes over the settings again and again.
    async fn follow(
        &self,
        http: &Http,
        started: &Config,
        mut watch: Option<Watch>,
        hangup: &mut Signal,
    ) {
        let mut problems = Problems::default();
        let mut config = started.clone();
        // Listeners were refused: what is in the way may go.
        let mut again = false;
        loop {
            let on_disk = async {
                match &mut watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            let trigger = tokio::select! {
                Some(()) = hangup.recv() => Trigger::Hangup,
                () = on_disk => Trigger::Files,
                () = tokio::time::sleep(AGAIN), if again => Trigger::Again,
            };
            if trigger != Trigger::Again {
                service_manager::reloading();
            }
            let all =
                self.take_over(http, started, &mut config, &mut watch, &mut problems, trigger);
            again = !all.await;
            if trigger != Trigger::Again || !again {
                service_manager::ready(&http.status());
            }
        }
    }

    /// Takes over the settings as they are now. Whether there is nothing to try again.
    async fn take_over(
        &self,
        http: &Http,
        started: &Config,
        config: &mut Config,
        watch: &mut Option<Watch>,
        problems: &mut Problems,
        trigger: Trigger,
    ) -> bool {
        let now = match Config::load(&self.path, &self.overrides) {
            Ok(now) => now,
            Err(errors) => {
                http.metrics.host.reload_success.set(0.0);
                if problems.begins(Problem::Settings, errors.to_string(), trigger) {
                    error!("the settings are refused, and everything goes on as before: {errors}");
                }
                return true;
            }
        };
        if problems.is_over(&Problem::Settings) {
            info!("the settings are right again");
        }
        if let Some(watch) = watch {
            watch.follow(files(&self.path, &now)).await;
        }
        problems.say_what_takes_a_restart(restart_settings(started, &now), trigger);
        let refused = http.change(&now, problems, trigger).await;
        if refused.is_empty() {
            says_what_runs(&http.metrics, &now, std::iter::empty());
        }
        let changed = changed(config, &now, &refused);
        if !changed.is_empty() || trigger != Trigger::Again {
            info!(changed = changed.join(", "), "reloaded");
        }
        *config = now;
        refused.is_empty()
    }
}

/// Competes for the look at the database with the other hosts: it may be the only one.
/// Once a listener serves metrics: a host that only takes events in may have no right to more.
fn look(
    store: &Arc<dyn Store>,
    metrics: &Arc<Metrics>,
    mut served: watch::Receiver<Parts>,
    stop: &CancellationToken,
) -> AbortOnDropHandle<()> {
    let (store, metrics, stop) = (Arc::clone(store), Arc::clone(metrics), stop.clone());
    AbortOnDropHandle::new(tokio::spawn(async move {
        // An error is that nothing is served any more.
        if served.wait_for(|parts| parts.contains(&Part::Metrics)).await.is_err() {
            return;
        }
        let locks =
            Locks::start(store.clone(), identity(), Troubles::default(), metrics.store.clone());
        let (give, given) = oneshot::channel();
        // The one who receives it is right below.
        let _ = give.send(locks);
        OverviewTask { store, metrics, served }.run(given, stop).await;
    }))
}
