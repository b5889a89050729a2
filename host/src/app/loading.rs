//! Loads the components that the settings name.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use tokio_util::task::AbortOnDropHandle;

use super::wanted::Wanted;
use super::{Say, Show, engine};
use crate::config::{Compilation, Component, Config, HandlerSettings};
use event_host_core::digest::Digest;
use event_host_core::event::{HandlerName, Tenant};
use event_host_core::handler::Handler;
use event_host_delivery::ordering::Ordering;
use event_host_delivery::replay_component::{ReplayComponentError, ReplayComponents};
use event_host_metrics::SandboxMetrics;
use event_host_sandbox::settings::{Grants, Limits, Reuse};
use event_host_sandbox::{
    EngineError, Interface, LoadError, LoadReason, LoadedHandler, Sandbox, Source,
};
use event_host_store::{Deployed, Deployments, Missing, StoreError};

/// Handlers that are loaded at once to be checked; each takes its component's size of
/// memory meanwhile.
const AT_ONCE: usize = 4;

/// A handler with its code.
#[derive(Clone)]
pub(crate) struct Loaded {
    /// What handlers.toml says of it.
    pub(crate) settings: HandlerSettings,
    /// The version that is deployed, if its component comes from the database.
    pub(crate) deployed: Option<Deployed>,
    /// Its component.
    pub(crate) handler: Arc<LoadedHandler>,
}

impl Loaded {
    /// How its component is called.
    pub(crate) fn interface(&self) -> Interface {
        self.handler.inspection().interface
    }
}

/// Why a handler is not loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotLoaded {
    /// Its component cannot be run, or not with these settings.
    #[error(transparent)]
    Component(#[from] LoadError),
    /// Its component is another than the one that is pinned.
    #[error(
        "`digest` pins its component to {pinned}, and {found} is what it would run: bring back the one that is pinned, or pin this one"
    )]
    Pinned {
        /// What handlers.toml says.
        pinned: Digest,
        /// What there is.
        found: String,
    },
    /// Its component imports what its ordering does not have.
    #[error(
        "its component imports the state, and with `ordering = \"none\"` there is none: choose `ordering = \"key\"`, which has one for each `partitionkey`"
    )]
    StateWithoutOrder,
    /// Its component takes single events, and the settings speak of several.
    #[error(
        "its component takes one event a call, because it does not export `batch-handler`: leave `batch.size` and `batch.wait` out, or build it as a handler of batches"
    )]
    TakesNoBatches,
    /// Its component takes no HTTP requests, and the settings say where they go.
    #[error(
        "its component takes no HTTP requests, because it does not export `wasi:http/incoming-handler`: leave `http_path` out"
    )]
    TakesNoRequests,
    /// Its component comes from the database, where none is.
    #[error("nothing is deployed for it yet: `host deploy {0} FILE` does that")]
    NotDeployed(HandlerName),
    /// The task that loads it broke.
    #[error("loading it broke off: {0}")]
    BrokeOff(String),
    /// The database does not give its component.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Not all handlers were loaded. Which and why was said.
#[derive(Debug, thiserror::Error)]
#[error("not all handlers were loaded")]
pub(crate) struct NotAllLoaded;

/// Loads components, all with one engine. Clones share it.
#[derive(Clone)]
pub(crate) struct Loader {
    sandbox: Sandbox,
    component_bytes: u64,
    /// Whether those that say how they are built are compiled fast rather than to fast
    /// code.
    #[cfg_attr(not(feature = "build"), expect(dead_code, reason = "nothing is built"))]
    is_for_work: bool,
    /// Shows what is being compiled.
    _shown: Arc<AbortOnDropHandle<()>>,
}

impl NotLoaded {
    /// Whether it may be over when it is tried again, though nothing is changed.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Store(_) => true,
            Self::Component(error) => error.reason.is_passing(),
            _ => false,
        }
    }

    /// Whether a host that starts waits until it is over, as another host's fault or the
    /// system's is, and does not end because of it.
    pub(crate) fn is_waited_for(&self) -> bool {
        match self {
            Self::Store(error) => {
                matches!(error, StoreError::Unavailable(_) | StoreError::Busy(_))
            }
            _ => self.is_passing(),
        }
    }

    /// What is said of a handler that is not loaded.
    pub(crate) fn message(&self, config: &Config, settings: &HandlerSettings) -> String {
        let path = config.path.display();
        let is_missing =
            matches!(self, Self::Component(LoadError { reason: LoadReason::Missing, .. }));
        let cure = match settings.build {
            Some(_) if is_missing => format!(": `host build {}` makes it", settings.name),
            _ => String::new(),
        };
        format!("error: {path}: handler `{}`: {self}{cure}", settings.name)
    }
}

impl Loader {
    /// Starts the engine, with these limits on compiling. `show` shows what is being
    /// compiled until its answer is dropped.
    ///
    /// # Errors
    /// When the machine can run no engine.
    pub(crate) fn new(limits: &Compilation, show: Show) -> Result<Self, EngineError> {
        let settings = engine::engine_settings(limits);
        let component_bytes = settings.component_bytes;
        let sandbox = Sandbox::new(settings)?;
        let shown = Arc::new(show(&sandbox));
        Ok(Self { sandbox, component_bytes, is_for_work: false, _shown: shown })
    }

    /// Has handlers that say how they are built compiled fast rather than to fast code,
    /// because somebody is working on them.
    #[cfg(feature = "build")]
    pub(crate) fn for_work(self) -> Self {
        Self { is_for_work: true, ..self }
    }

    /// The same, counted.
    pub(crate) fn counted(self, metrics: &SandboxMetrics) -> Self {
        Self { sandbox: self.sandbox.counted(metrics), ..self }
    }

    /// Where a handler's component is loaded.
    fn sandbox_of(&self, settings: &HandlerSettings) -> Sandbox {
        let sandbox = self.sandbox.for_tenant(&settings.tenant).for_group(&settings.group);
        #[cfg(feature = "build")]
        if self.is_for_work && settings.build.is_some() {
            return sandbox.for_work();
        }
        sandbox
    }

    /// Sets how many connections each tenant's handlers may have open at once.
    pub(crate) fn limit_connections<'a>(&self, tenants: impl Iterator<Item = (&'a Tenant, usize)>) {
        self.sandbox.bound_connections(tenants);
    }

    /// The largest component that is loaded, in bytes.
    pub(crate) fn component_bytes(&self) -> u64 {
        self.component_bytes
    }

    /// Loads the handlers whose component is a file, and says everything that is
    /// wrong with any of them.
    ///
    /// # Errors
    /// When one is refused.
    pub(crate) async fn files(
        &self,
        config: &Config,
        say: &Say,
    ) -> Result<Vec<Loaded>, NotAllLoaded> {
        let files = config.handlers.iter().filter_map(|settings| match &settings.component {
            Component::File(path) => Some((settings, path)),
            Component::Deployed => None,
        });
        let loads =
            files.map(async |(settings, path)| (settings, self.load_file(settings, path).await));
        let outcomes = stream::iter(loads).buffered(AT_ONCE).collect().await;
        all_or_said(config, outcomes, say)
    }

    /// Loads the handlers whose component is deployed, and says everything that
    /// is wrong with any of them.
    ///
    /// # Errors
    /// When one is refused, or the store cannot be read.
    pub(crate) async fn deployed(
        &self,
        config: &Config,
        store: &dyn Deployments,
        say: &Say,
    ) -> anyhow::Result<Vec<Loaded>> {
        let mut handlers = deployed_ones(config).peekable();
        if handlers.peek().is_none() {
            return Ok(Vec::new());
        }
        let active = store.deployed().await?;
        let loads = handlers.map(async |settings| {
            let outcome = match active_of(settings, &active) {
                Ok(deployed) => self.load_deployed(settings, deployed, store).await,
                Err(why) => Err(why),
            };
            (settings, outcome)
        });
        let outcomes = stream::iter(loads).buffered(AT_ONCE).collect().await;
        Ok(all_or_said(config, outcomes, say)?)
    }

    /// Loads what a handler is to run. Without a store nothing is deployed.
    pub(crate) async fn wanted(
        &self,
        settings: &HandlerSettings,
        wanted: &Wanted,
        store: Option<&dyn Deployments>,
    ) -> Result<Loaded, NotLoaded> {
        match (wanted, store, &settings.component) {
            (Wanted::Deployed(deployed), Some(store), _) => {
                self.load_deployed(settings, deployed, store).await
            }
            (Wanted::File(_), _, Component::File(path)) => self.load_file(settings, path).await,
            (Wanted::Deployed(_), None, _) | (Wanted::File(_), _, Component::Deployed) => {
                Err(NotLoaded::NotDeployed(settings.name.clone()))
            }
        }
    }

    /// Loads a handler whose component is a file.
    pub(crate) async fn load_file(
        &self,
        settings: &HandlerSettings,
        path: &Path,
    ) -> Result<Loaded, NotLoaded> {
        let handler = self.load(settings, path).await?;
        Ok(Loaded { settings: settings.clone(), deployed: None, handler })
    }

    /// Loads a handler whose component is deployed.
    pub(crate) async fn load_deployed(
        &self,
        settings: &HandlerSettings,
        deployed: &Deployed,
        store: &dyn Deployments,
    ) -> Result<Loaded, NotLoaded> {
        let handler = self.version(settings, deployed, store).await?;
        Ok(Loaded { settings: settings.clone(), deployed: Some(deployed.clone()), handler })
    }

    /// What a handler is to run, and how many bytes that has where it is a file.
    pub(crate) async fn look(
        &self,
        settings: &HandlerSettings,
        active: &[Deployed],
    ) -> Result<(Wanted, Option<u64>), NotLoaded> {
        match &settings.component {
            Component::File(path) => {
                let (digest, bytes) = self.sandbox.digest(path.as_path()).await?;
                Ok((Wanted::File(digest), Some(bytes)))
            }
            Component::Deployed => {
                Ok((Wanted::Deployed(active_of(settings, active)?.clone()), None))
            }
        }
    }

    /// Whether a component is loaded for a handler without being compiled.
    pub(crate) fn is_compiled(&self, settings: &HandlerSettings, digest: &str) -> bool {
        self.sandbox_of(settings).is_compiled(digest, &settings.limits)
    }

    /// Lowers the priority of compiling from now on, because handlers run.
    pub(crate) fn lower_compile_priority(&self) {
        self.sandbox.give_way();
    }

    /// Loads a version that is deployed.
    pub(crate) async fn version(
        &self,
        settings: &HandlerSettings,
        deployed: &Deployed,
        store: &dyn Deployments,
    ) -> Result<Arc<LoadedHandler>, NotLoaded> {
        let Deployed { tenant, version, digest, .. } = deployed;
        let bytes = store.component(tenant, digest).await?;
        let name = format!("version {version} ({})", digest.short());
        self.load(settings, Source::Deployed { name, bytes }).await
    }

    /// Loads a component of the handler's tenant that lies in the database.
    pub(crate) async fn replay_component(
        &self,
        settings: &HandlerSettings,
        digest: &Digest,
        store: &dyn Deployments,
    ) -> Result<Arc<LoadedHandler>, NotLoaded> {
        let bytes = store.component(&settings.tenant, digest).await?;
        let name = format!("component {}", digest.short());
        self.load_any(settings, Source::Deployed { name, bytes }).await
    }

    /// Loads a component for a handler of which nothing is known: with the
    /// default limits, and without permissions.
    pub(crate) async fn unknown(
        &self,
        name: &HandlerName,
        source: impl Into<Source>,
    ) -> Result<Arc<LoadedHandler>, LoadError> {
        let (limits, grants) = (Limits::default(), Grants::default());
        self.sandbox.load(name.as_str(), source, limits, grants, Reuse::default()).await
    }

    /// Loads one component as the settings have it.
    pub(crate) async fn load(
        &self,
        settings: &HandlerSettings,
        source: impl Into<Source>,
    ) -> Result<Arc<LoadedHandler>, NotLoaded> {
        let handler = self.load_any(settings, source).await?;
        let speaks_of_several =
            settings.batch.size.is_some_and(|size| size > 1) || !settings.batch.wait.is_zero();
        if speaks_of_several && !handler.takes_batches() {
            return Err(NotLoaded::TakesNoBatches);
        }
        if settings.http_path.is_some() && handler.inspection().interface != Interface::Http {
            return Err(NotLoaded::TakesNoRequests);
        }
        Ok(handler)
    }

    /// The same for a component of any kind, which is called with one event whatever the
    /// settings say of calls.
    pub(crate) async fn load_any(
        &self,
        settings: &HandlerSettings,
        source: impl Into<Source>,
    ) -> Result<Arc<LoadedHandler>, NotLoaded> {
        let handler = self
            .sandbox_of(settings)
            .with_http_path(settings.http_path.clone().unwrap_or_default())
            .load(
                settings.name.as_str(),
                source,
                settings.limits.clone(),
                settings.grants.clone(),
                settings.reuse,
            )
            .await?;
        let imports = &handler.inspection().imports;
        if settings.ordering == Ordering::None
            && imports.iter().any(|import| import.starts_with("event-host:handler/state@"))
        {
            return Err(NotLoaded::StateWithoutOrder);
        }
        match &settings.digest {
            Some(pinned) if pinned.as_str() != handler.digest() => {
                let found = handler.digest().to_owned();
                Err(NotLoaded::Pinned { pinned: pinned.clone(), found })
            }
            _ => Ok(handler),
        }
    }
}

/// The components of replays that name one, for one handler: from the database.
pub(crate) struct Replays {
    pub(crate) loader: Loader,
    pub(crate) settings: HandlerSettings,
    pub(crate) store: Arc<dyn Deployments>,
}

#[async_trait]
impl ReplayComponents for Replays {
    async fn load(&self, digest: &Digest) -> Result<Arc<dyn Handler>, ReplayComponentError> {
        match self.loader.replay_component(&self.settings, digest, &*self.store).await {
            Ok(handler) => Ok(handler),
            Err(why) => Err(no_component(&why)),
        }
    }
}

fn no_component(why: &NotLoaded) -> ReplayComponentError {
    let said = why.to_string();
    match why {
        NotLoaded::Store(StoreError::Unavailable(_) | StoreError::Busy(_)) => {
            ReplayComponentError::NotNow(said)
        }
        NotLoaded::Store(StoreError::NotFound(Missing::Component(_))) => {
            ReplayComponentError::Failed(
                "it is no longer in the database: `host deploy` stores its file".to_owned(),
            )
        }
        NotLoaded::Component(LoadError { reason, .. }) if reason.is_passing() => {
            ReplayComponentError::NotNow(said)
        }
        NotLoaded::Component(LoadError { reason: LoadReason::Internal(_), .. })
        | NotLoaded::BrokeOff(_)
        | NotLoaded::Store(_)
        | NotLoaded::NotDeployed(_) => ReplayComponentError::Failed(said),
        NotLoaded::Component(_)
        | NotLoaded::Pinned { .. }
        | NotLoaded::StateWithoutOrder
        | NotLoaded::TakesNoBatches
        | NotLoaded::TakesNoRequests => ReplayComponentError::Refused(said),
    }
}

/// The handlers whose component is deployed.
pub(crate) fn deployed_ones(config: &Config) -> impl Iterator<Item = &HandlerSettings> + Clone {
    config.handlers.iter().filter(|settings| settings.component == Component::Deployed)
}

/// The version of a handler that is active in the database.
pub(crate) fn active_of<'a>(
    settings: &HandlerSettings,
    active: &'a [Deployed],
) -> Result<&'a Deployed, NotLoaded> {
    let of_handler = |deployed: &&Deployed| {
        deployed.tenant == settings.tenant && deployed.handler == settings.name
    };
    active.iter().find(of_handler).ok_or_else(|| NotLoaded::NotDeployed(settings.name.clone()))
}

fn all_or_said(
    config: &Config,
    outcomes: Vec<(&HandlerSettings, Result<Loaded, NotLoaded>)>,
    say: &Say,
) -> Result<Vec<Loaded>, NotAllLoaded> {
    let mut loaded = Vec::new();
    let mut failed = false;
    for (settings, outcome) in outcomes {
        match outcome {
            Ok(handler) => loaded.push(handler),
            Err(why) => {
                say(&why.message(config, settings));
                failed = true;
            }
        }
    }
    if failed { Err(NotAllLoaded) } else { Ok(loaded) }
}
