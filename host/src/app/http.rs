//! What a host serves by HTTP: puts the routes together, opens the listeners, and takes over
//! what the settings say of them.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info};

use super::Say;
use super::health::HostHealth;
use super::parts::Parts;
use super::problems::{Problem, Problems, Trigger};
use super::service_manager;
use crate::config::{Config, DatabaseUrl};
use event_host_http::routes::{events, hooks};
use event_host_http::{CannotListen, Exposition, Hooks, Inherited, Refused, Routes, Server};
use event_host_ingest::Intake;
use event_host_metrics::{Format, Metrics};
use event_host_store::Store;

/// Requests that are under way at the stop have so long to end, and as long as handlers have.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// The sockets that the service manager opened, until the host takes them.
static INHERITED: std::sync::Mutex<Option<Inherited>> = std::sync::Mutex::new(None);

/// Takes the sockets that the service manager opened. To be called before the process has
/// threads.
pub(crate) fn take_inherited() {
    *INHERITED.lock().unwrap_or_else(PoisonError::into_inner) = Some(Inherited::take());
}

/// What the host measures, as it is asked for.
struct Exposed(Arc<Metrics>);

impl Exposition for Exposed {
    fn expose(&self, accept: &str) -> (&'static str, String) {
        let format = Format::accepted(accept);
        (format.content_type(), self.0.encode(format))
    }
}

/// What a host serves by HTTP; nothing, while the settings have no listener.
pub(crate) struct Http {
    /// `None` once it was stopped.
    server: Mutex<Option<Server>>,
    health: Arc<HostHealth>,
    intake: Intake,
    hooks: Hooks,
    /// What the host counts with.
    pub(crate) metrics: Arc<Metrics>,
    /// How long a stop waits before anything is closed.
    drain_delay: std::sync::Mutex<Duration>,
    /// What the listeners serve.
    serving_parts: watch::Sender<Parts>,
    /// The addresses of the listeners that are open.
    serving: std::sync::Mutex<Vec<String>>,
    say: Say,
    _looking: [AbortOnDropHandle<()>; 2],
}

impl Http {
    /// Opens the listeners of the settings. Each part of the host adds its routes here.
    ///
    /// # Errors
    /// With the first listener that cannot be opened; then none is.
    pub(crate) async fn start(
        config: &Config,
        store: &Arc<dyn Store>,
        metrics: &Arc<Metrics>,
        say: &Say,
    ) -> Result<Arc<Self>, CannotListen> {
        let serving_parts = watch::Sender::new(parts(config));
        let log_folder = match &config.database {
            DatabaseUrl::Sqlite(file) => file.parent().map(|folder| match folder {
                here if here.as_os_str().is_empty() => PathBuf::from("."),
                folder => folder.to_owned(),
            }),
            DatabaseUrl::Postgres(_) => None,
        };
        let intake =
            Intake::start(store.clone(), log_folder, config.ingest.clone(), metrics.ingest.clone());
        let served = serving_parts.subscribe();
        let (health, looking) = HostHealth::start(store.clone(), intake.clone(), served);
        let mut routes = Routes::new(health.clone());
        routes.add_metrics(Arc::new(Exposed(Arc::clone(metrics))));
        events::add(&mut routes, &intake);
        let hooks = Hooks::new(&intake, &config.sources);
        hooks::add(&mut routes, &hooks);
        let inherited = INHERITED.lock().unwrap_or_else(PoisonError::into_inner).take();
        let inherited = inherited.unwrap_or_default();
        let server = Server::start(&config.http, routes, inherited, metrics.http.clone()).await?;
        let http = Self {
            server: Mutex::new(None),
            health,
            intake,
            hooks,
            metrics: Arc::clone(metrics),
            drain_delay: config.drain_delay.into(),
            serving_parts,
            serving: addresses(&server).into(),
            say: Arc::clone(say),
            _looking: looking,
        };
        http.show_token(&server, None);
        service_manager::watch(http.health.clone());
        *http.server.lock().await = Some(server);
        Ok(Arc::new(http))
    }

    /// Takes over other settings.
    ///
    /// # Errors
    /// With the listeners that cannot be as the settings say. They stay as they are, but for
    /// who may enter, and everything else is taken over.
    async fn apply(&self, config: &Config) -> Result<(), Refused> {
        let mut server = self.server.lock().await;
        // After the stop there is nothing to change.
        let Some(server) = server.as_mut() else { return Ok(()) };
        let before = server.ephemeral().map(|(token, _)| token.to_owned());
        let applied = server.apply(&config.http).await;
        self.intake.set(config.ingest.clone());
        self.hooks.set(&config.sources);
        *self.drain_delay.lock().unwrap_or_else(PoisonError::into_inner) = config.drain_delay;
        self.serving_parts.send_replace(server.parts().collect());
        *self.serving.lock().unwrap_or_else(PoisonError::into_inner) = addresses(server);
        self.show_token(server, before.as_deref());
        applied
    }

    /// Takes over other settings at a reload, and tells how that goes. Gives the listeners that
    /// are not as the settings say, for which it is to be tried again.
    pub(crate) async fn change(
        &self,
        config: &Config,
        problems: &mut Problems,
        trigger: Trigger,
    ) -> Vec<String> {
        match self.apply(config).await {
            Ok(()) => {
                if problems.is_over(&Problem::Listeners) {
                    info!("the listeners are as the settings say");
                }
                Vec::new()
            }
            Err(why) => {
                self.metrics.host.reload_success.set(0.0);
                if problems.begins(Problem::Listeners, why.to_string(), trigger) {
                    error!("not all listeners are as the settings say: {why}");
                }
                why.0.iter().map(|one| one.name().to_owned()).collect()
            }
        }
    }

    /// What the listeners serve, from now on.
    pub(crate) fn parts(&self) -> watch::Receiver<Parts> {
        self.serving_parts.subscribe()
    }

    /// How the host is.
    pub(crate) fn health(&self) -> &HostHealth {
        &self.health
    }

    /// One line for the service manager.
    pub(crate) fn status(&self) -> String {
        match &*self.serving.lock().unwrap_or_else(PoisonError::into_inner) {
            serving if serving.is_empty() => "running".to_owned(),
            serving => format!("running, serving at {}", serving.join(", ")),
        }
    }

    /// Tells load balancers to send nothing more, and waits until they have had the time to
    /// learn it. Everything is served meanwhile.
    /// `grace` is how long handlers may go on after it.
    pub(crate) async fn drain(&self, grace: Duration) {
        self.health.drain();
        let delay = *self.drain_delay.lock().unwrap_or_else(PoisonError::into_inner);
        service_manager::stopping(delay.saturating_add(grace.max(LAST_ANSWERS)) + LAST_ANSWERS);
        if !delay.is_zero() {
            info!(
                seconds = delay.as_secs_f64(),
                "serving on, so that load balancers learn of the stop"
            );
        }
        tokio::time::sleep(delay).await;
    }

    /// Closes the listeners, and waits until what is under way has been answered: 10 s at
    /// most, or as long as handlers may go on.
    pub(crate) async fn stop(&self, grace: Duration) {
        self.health.drain();
        let deadline = Instant::now() + grace.max(LAST_ANSWERS);
        let server = self.server.lock().await.take();
        if let Some(server) = server {
            server.stop(deadline).await;
        }
        self.intake.stop().await;
    }

    /// Shows the person who started the host the token that stands for those that the
    /// settings do not have. Never in the log, which others may read.
    fn show_token(&self, server: &Server, before: Option<&str>) {
        let Some((token, urls)) = server.ephemeral() else { return };
        if before != Some(token) {
            (self.say)(&format!(
                "no [tokens] in the settings: until the host ends, {} takes `Authorization: Bearer {token}`",
                urls.join(", ")
            ));
        }
    }
}

fn parts(config: &Config) -> Parts {
    config.http.listeners.iter().flat_map(|listener| listener.serve.iter().copied()).collect()
}

fn addresses(server: &Server) -> Vec<String> {
    server.addresses().map(|(_, address)| address.to_string()).collect()
}
