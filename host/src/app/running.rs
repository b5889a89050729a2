//! Handlers as the supervisor runs them, and what changes of that.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use tracing::error;

use super::loading::{Loaded, Loader, Replays};
use crate::config::{Component, Config, HandlerSettings, TenantSettings};
use event_host_core::event::{GroupName, HandlerName, Partition};
use event_host_core::handler::Handler as _;
use event_host_delivery::admission::Admission;
use event_host_delivery::group::GroupSettings;
use event_host_delivery::supervisor::{Group, RetentionSettings};
use event_host_metrics::Metrics;
use event_host_schedules::Schedule;
use event_host_store::{self, Store};

impl Loaded {
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        self.settings == other.settings
            && self.deployed == other.deployed
            && Arc::ptr_eq(&self.handler, &other.handler)
    }
}

/// How the group of a handler is registered in the database.
pub(crate) fn registration(settings: &HandlerSettings) -> event_host_store::GroupRegistration {
    event_host_store::GroupRegistration {
        name: settings.group.clone(),
        partitions: settings.partitions.max(1),
        tenant: settings.tenant.clone(),
        subscription: settings.subscription.clone(),
        start: settings.start,
    }
}

/// A handler as the supervisor runs it: its group, or the group's partitions.
pub(crate) fn groups(loaded: &Loaded, loader: &Loader, store: &Arc<dyn Store>) -> Vec<Group> {
    let of = loaded.settings.partitions;
    if of <= 1 {
        return vec![group(loaded, None, loader, store)];
    }
    let partitions = (0..of).map(|number| Partition { number, of });
    partitions.map(|partition| group(loaded, Some(partition), loader, store)).collect()
}

fn group(
    loaded: &Loaded,
    partition: Option<Partition>,
    loader: &Loader,
    store: &Arc<dyn Store>,
) -> Group {
    let settings = &loaded.settings;
    let name = match partition {
        Some(partition) => settings.group.partition(partition.number),
        None => settings.group.clone(),
    };
    Group {
        settings: GroupSettings {
            name,
            partition,
            tenant: settings.tenant.clone(),
            subscription: settings.subscription.clone(),
            ordering: settings.ordering,
            concurrency: settings.concurrency,
            max_parked: settings.max_parked,
            overtake: settings.overtake,
            retry: settings.retry.clone(),
            batch: settings.batch,
            breaker: settings.breaker.clone(),
        },
        start: settings.start,
        deployed: loaded.deployed.clone(),
        handler: Arc::clone(&loaded.handler) as Arc<dyn event_host_core::handler::Handler>,
        components: Arc::new(Replays {
            loader: loader.clone(),
            settings: settings.clone(),
            store: store.clone(),
        }),
    }
}

/// How long events stay in the log.
pub(crate) fn retention(config: &Config) -> RetentionSettings {
    let pinned = |tenant: &TenantSettings| Some((tenant.name.clone(), tenant.pinned_log?));
    RetentionSettings {
        retention: config.retention,
        pinned_log: config.tenants.iter().filter_map(pinned).collect(),
    }
}

/// The files that a change of would matter.
pub(crate) fn files<'a>(path: &'a Path, config: &'a Config) -> impl Iterator<Item = &'a Path> {
    let components = config.handlers.iter().filter_map(|handler| match &handler.component {
        Component::File(path) => Some(path.as_path()),
        Component::Deployed => None,
    });
    let certificates = config.http.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let certificates = certificates.flat_map(|tls| [tls.cert.as_path(), tls.key.as_path()]);
    components.chain(certificates).chain([path])
}

/// What the settings say of all handlers otherwise than before, in their own words; but for
/// listeners that are refused and stay as they are.
pub(crate) fn changed(before: &Config, now: &Config, refused: &[String]) -> Vec<String> {
    let mut changed = Vec::new();
    for (setting, is_changed) in [
        ("concurrency", before.concurrency != now.concurrency),
        ("retention", before.retention.max_age != now.retention.max_age),
        ("retention_size", before.retention.max_bytes != now.retention.max_bytes),
        ("ingest", before.ingest != now.ingest),
        ("drain_delay", before.drain_delay != now.drain_delay),
        ("telemetry.metrics", before.metrics != now.metrics),
    ] {
        changed.extend(is_changed.then(|| setting.to_owned()));
    }
    changed.extend(differing("tenants", &before.tenants, &now.tenants, |tenant| &tenant.name));
    changed.extend(differing("schedules", &before.schedules, &now.schedules, |one| &one.name));
    changed.extend(differing("sources", &before.sources, &now.sources, |source| &source.name));
    let listeners = differing("listen", &before.http.listeners, &now.http.listeners, |l| &l.name);
    let is_refused = |what: &String| {
        what.strip_prefix("listen.").is_some_and(|name| refused.iter().any(|one| one == name))
    };
    changed.extend(listeners.into_iter().filter(|what| !is_refused(what)));
    changed.extend(differing("tokens", &before.http.tokens, &now.http.tokens, |t| &t.name));
    changed
}

/// The tables that are not the same as before.
fn differing<'a, T: PartialEq, N: Ord + Display + 'a>(
    table: &str,
    before: &'a [T],
    now: &'a [T],
    name: impl Fn(&'a T) -> &'a N,
) -> Vec<String> {
    let of = |all: &'a [T], wanted: &N| all.iter().find(|one| name(one) == wanted);
    let names: BTreeSet<&N> = before.iter().chain(now).map(&name).collect();
    let differs = |wanted: &&N| of(before, wanted) != of(now, wanted);
    names.into_iter().filter(differs).map(|name| format!("{table}.{name}")).collect()
}

/// The schedules as their task is told them.
pub(crate) fn schedules(config: &Config) -> Arc<[Schedule]> {
    config.schedules.iter().cloned().collect()
}

/// The settings that take a restart: their names, whether each is another than the host was
/// started with, and its value.
pub(crate) fn restart_settings(
    started: &Config,
    now: &Config,
) -> [(&'static str, bool, String); 5] {
    let Config { database, lock_database, grace, compilation, .. } = now;
    let was = &started.compilation;
    [
        ("database", started.database != *database, format!("{database:?}")),
        ("lock_database", started.lock_database != *lock_database, format!("{lock_database:?}")),
        ("grace", started.grace != *grace, format!("{grace:?}")),
        (
            "compile_memory",
            was.memory_bytes != compilation.memory_bytes,
            format!("{:?}", compilation.memory_bytes),
        ),
        (
            "compile_timeout",
            was.timeout != compilation.timeout,
            format!("{:?}", compilation.timeout),
        ),
    ]
}

/// The handlers that run otherwise than before, or no longer.
pub(crate) fn changed_handlers(
    before: &BTreeMap<HandlerName, Loaded>,
    now: &BTreeMap<HandlerName, Loaded>,
) -> Vec<String> {
    let is_same = |name: &&HandlerName| match (before.get(*name), now.get(*name)) {
        (Some(before), Some(now)) => before.is_same_as(now),
        _ => false,
    };
    let names: BTreeSet<&HandlerName> = before.keys().chain(now.keys()).collect();
    names.into_iter().filter(|name| !is_same(name)).map(|name| format!("handlers.{name}")).collect()
}

/// Sets what the settings say of all handlers and of each tenant's.
pub(crate) fn apply_quotas(admission: &Admission, loader: &Loader, config: &Config) {
    let tenants = config.tenants.iter().map(|tenant| (&tenant.name, &tenant.quota));
    loader.limit_connections(
        tenants.clone().filter_map(|(name, quota)| Some((name, quota.http_connections?))),
    );
    admission.configure(config.concurrency, tenants);
}

/// What goes on as before may be in a group that the settings have given to
/// another handler by now, and a group has one.
pub(crate) fn drop_displaced(
    wanted: &mut BTreeMap<HandlerName, Loaded>,
    running: &BTreeMap<HandlerName, Loaded>,
) {
    let goes_on = |name: &HandlerName, loaded: &Loaded| {
        running.get(name).is_some_and(|before| before.is_same_as(loaded))
    };
    let taken: HashSet<GroupName> = wanted
        .iter()
        .filter(|(name, loaded)| !goes_on(name, loaded))
        .map(|(_, loaded)| loaded.settings.group.clone())
        .collect();
    wanted.retain(|name, loaded| {
        let displaced = goes_on(name, loaded) && taken.contains(&loaded.settings.group);
        if displaced {
            error!(
                handler = %name,
                group = %loaded.settings.group,
                "stops: its group is another handler's now"
            );
        }
        !displaced
    });
}

/// Says by which settings the host runs, and which components.
pub(super) fn says_what_runs<'a>(
    metrics: &Metrics,
    config: &Config,
    runs: impl Iterator<Item = &'a Loaded>,
) {
    metrics.change(&config.metrics);
    metrics.host.configured(config.digest.short());
    metrics.host.reload_success.set(1.0);
    metrics.host.reload_timestamp.set(jiff::Timestamp::now().as_second() as f64);
    let runs = runs.map(|loaded| {
        let version = loaded.deployed.as_ref().map(|one| one.version.to_string());
        (loaded.settings.group.as_str(), loaded.handler.digest(), version.unwrap_or_default())
    });
    metrics.deliveries.components(runs);
}
