//! Components that are deployed, and the versions of handlers.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Barrier;

use super::TestDatabase;
use super::samples::tenant;
use crate::{
    Deployed, Deployment, Missing, NewVersion, Store, StoreError, Version, VersionNumber,
    VersionState,
};
use event_host_core::digest::Digest;
use event_host_core::event::{HandlerName, Tenant};

fn handler(name: &str) -> HandlerName {
    name.parse().unwrap()
}

/// Deploys what is not active yet.
async fn deploy(store: &Arc<dyn Store>, name: &str, component: &[u8]) -> Version {
    deploy_for(store, &Tenant::none(), name, component).await
}

pub(super) async fn deploy_for(
    store: &Arc<dyn Store>,
    tenant: &Tenant,
    name: &str,
    component: &[u8],
) -> Version {
    let handler = handler(name);
    let new = NewVersion { tenant, handler: &handler, component, deployed_by: "ada@here" };
    match store.deploy(new).await.unwrap() {
        Deployment::Activated(version) => version,
        Deployment::WasActive(version) => panic!("version {} was active", version.version),
    }
}

async fn rollback(store: &Arc<dyn Store>, name: &str) -> Result<i64, StoreError> {
    let version = store.rollback(&Tenant::none(), &handler(name), None).await?;
    assert_eq!(version.state, VersionState::Active);
    Ok(version.version.0)
}

/// Number and state of each version, the newest first.
async fn versions(store: &Arc<dyn Store>, name: &str) -> Vec<(i64, VersionState)> {
    let versions = store.versions(&Tenant::none(), &handler(name)).await.unwrap();
    versions.iter().map(|version| (version.version.0, version.state)).collect()
}

/// The active version of a handler without a tenant.
async fn active(store: &Arc<dyn Store>, name: &str) -> i64 {
    let deployed = store.deployed().await.unwrap();
    let mut of_handler = deployed
        .iter()
        .filter(|deployed| deployed.tenant.is_none() && deployed.handler == handler(name));
    let active = of_handler.next().expect("one is active");
    assert_eq!(of_handler.next(), None, "and no other");
    active.version.0
}

fn refused(result: Result<impl std::fmt::Debug, StoreError>, parts: &[&str]) {
    let error = result.unwrap_err();
    assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
    for part in parts {
        assert!(error.to_string().contains(part), "`{part}` is missing in: {error}");
    }
}

pub async fn a_component_comes_back_as_it_was_deployed(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let large: Vec<u8> = (0..3_000_000_u32).flat_map(|n| n.wrapping_mul(n).to_le_bytes()).collect();
    for (n, component) in [&b"\0asm"[..], b"", &[0; 100_000], &large].into_iter().enumerate() {
        let version = deploy(&store, &format!("h{n}"), component).await;
        let other = database.handle().await;
        let bytes = other.component(&Tenant::none(), &version.digest).await.unwrap();
        assert!(bytes == component, "{n}");
        assert_eq!(version.digest, Digest::of(component));
        assert_eq!(version.bytes, component.len() as u64);
        assert_eq!(version.deployed_by, "ada@here");
        let listed = store.versions(&Tenant::none(), &handler(&format!("h{n}"))).await.unwrap();
        assert_eq!(listed, [version]);
    }
    let never = Digest::of(b"never deployed");
    let error = store.component(&Tenant::none(), &never).await.unwrap_err();
    assert_eq!(error.to_string(), format!("component {never} not found"));
    assert!(matches!(error, StoreError::NotFound(Missing::Component(digest)) if digest == never));
}

pub async fn versions_count_up_and_the_newest_is_active(database: &dyn TestDatabase) {
    use VersionState::{Active, Previous};
    let store = database.handle().await;
    assert_eq!(versions(&store, "h").await, []);
    assert_eq!(store.deployed().await.unwrap(), []);
    for (n, component) in [b"one", b"two", b"one", b"six"].into_iter().enumerate() {
        let version = deploy(&store, "h", component).await;
        assert_eq!(version.version.0, n as i64 + 1);
        assert_eq!(version.state, Active);
        assert_eq!(active(&store, "h").await, n as i64 + 1);
    }
    // Another handler counts for itself, with the same component.
    assert_eq!(deploy(&store, "other", b"one").await.version, VersionNumber(1));
    assert_eq!(
        versions(&store, "h").await,
        [(4, Active), (3, Previous), (2, Previous), (1, Previous)]
    );
    let deployed = store.deployed().await.unwrap();
    let of = |name, version, component: &[u8]| Deployed {
        tenant: Tenant::none(),
        handler: handler(name),
        version: VersionNumber(version),
        digest: Digest::of(component),
    };
    assert_eq!(deployed, [of("h", 4, b"six"), of("other", 1, b"one")]);
}

pub async fn what_is_active_is_not_deployed_again(database: &dyn TestDatabase) {
    let store = database.handle().await;
    deploy(&store, "h", b"one").await;
    let second = deploy(&store, "h", b"two").await;
    let (tenant, handler) = (Tenant::none(), handler("h"));
    let again = NewVersion {
        tenant: &tenant,
        handler: &handler,
        component: b"two",
        deployed_by: "bob@there",
    };
    assert_eq!(store.deploy(again).await.unwrap(), Deployment::WasActive(second));
    assert_eq!(versions(&store, "h").await.len(), 2);
    // What was active once is, because something else is active now.
    let again = NewVersion { component: b"one", ..again };
    assert!(matches!(
        store.deploy(again).await.unwrap(),
        Deployment::Activated(version)
            if version.version == VersionNumber(3) && version.deployed_by == "bob@there"
    ));
}

pub async fn a_rollback_never_goes_to_what_was_rolled_back(database: &dyn TestDatabase) {
    use VersionState::{Active, Previous, RolledBack};
    let store = database.handle().await;
    for component in [b"1", b"2", b"3"] {
        deploy(&store, "h", component).await;
    }
    assert_eq!(rollback(&store, "h").await.unwrap(), 2);
    assert_eq!(active(&store, "h").await, 2);
    assert_eq!(versions(&store, "h").await, [(3, RolledBack), (2, Active), (1, Previous)]);

    let fourth = deploy(&store, "h", b"4").await;
    assert_eq!(fourth.version.0, 4, "no number is used twice");
    assert_eq!(rollback(&store, "h").await.unwrap(), 2, "and not to 3");
    assert_eq!(rollback(&store, "h").await.unwrap(), 1);
    assert_eq!(
        versions(&store, "h").await,
        [(4, RolledBack), (3, RolledBack), (2, RolledBack), (1, Active)]
    );
    // What was rolled back can be deployed again, as a version of its own.
    assert_eq!(deploy(&store, "h", b"4").await.version.0, 5);
    assert_eq!(rollback(&store, "h").await.unwrap(), 1);
}

pub async fn a_rollback_that_has_nowhere_to_go_changes_nothing(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let none = Tenant::none();
    refused(rollback(&store, "h").await, &["nothing is deployed", "host deploy h FILE"]);
    deploy(&store, "h", b"1").await;
    deploy(&store, "other", b"1").await;
    deploy(&store, "other", b"2").await;
    refused(rollback(&store, "h").await, &["`h` has no version before version 1"]);

    deploy(&store, "h", b"2").await;
    let from = |from| Some(VersionNumber(from));
    for wrong in [1, 3] {
        let result = store.rollback(&none, &handler("h"), from(wrong)).await;
        refused(result, &["runs version 2, not version", "nothing was rolled back"]);
        assert_eq!(active(&store, "h").await, 2);
    }
    let back = store.rollback(&none, &handler("h"), from(2)).await.unwrap();
    assert_eq!(back.version, VersionNumber(1));
    assert_eq!(active(&store, "other").await, 2);
}

pub async fn a_tenant_sees_nothing_of_anothers_components(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let (acme, other) = (tenant("acme"), tenant("other"));
    let secret = deploy_for(&store, &acme, "h", b"acme's own").await.digest;
    deploy_for(&store, &acme, "h", b"acme's next").await;

    assert_eq!(store.component(&acme, &secret).await.unwrap(), b"acme's own");
    let unknown = Digest::of(b"nobody's");
    for stranger in [&other, &Tenant::none()] {
        // In the same words as of one that does not exist.
        for digest in [&secret, &unknown] {
            let error = store.component(stranger, digest).await.unwrap_err();
            assert_eq!(error.to_string(), format!("component {digest} not found"));
        }
        assert_eq!(store.versions(stranger, &handler("h")).await.unwrap(), []);
        refused(store.rollback(stranger, &handler("h"), None).await, &["nothing is deployed"]);
    }

    // A handler of the same name is another one, also with the same component.
    assert_eq!(deploy_for(&store, &other, "h", b"acme's own").await.version.0, 1);
    assert_eq!(store.component(&other, &secret).await.unwrap(), b"acme's own");
    let of_tenants: Vec<(Tenant, i64)> = store
        .deployed()
        .await
        .unwrap()
        .into_iter()
        .map(|deployed| (deployed.tenant, deployed.version.0))
        .collect();
    assert_eq!(of_tenants, [(acme.clone(), 2), (other, 1)]);
    assert_eq!(store.rollback(&acme, &handler("h"), None).await.unwrap().version.0, 1);
}

pub async fn of_deployments_at_once_each_is_a_version(database: &dyn TestDatabase) {
    const CALLERS: usize = 4;
    const ROUNDS: usize = 8;
    let barrier = Arc::new(Barrier::new(CALLERS));
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let store = database.handle().await;
        let barrier = Arc::clone(&barrier);
        callers.push(tokio::spawn(async move {
            let mut own = Vec::new();
            for round in 0..ROUNDS {
                barrier.wait().await;
                // Each round has a handler of its own, so that its first versions
                // meet too; every second one has one component for all of them.
                let component = if round % 2 == 0 { caller } else { 0 };
                let component = format!("{round} {component}");
                let (tenant, handler) = (Tenant::none(), handler(&format!("h{round}")));
                let new = NewVersion {
                    tenant: &tenant,
                    handler: &handler,
                    component: component.as_bytes(),
                    deployed_by: "ada@here",
                };
                own.push(store.deploy(new).await.unwrap());
            }
            own
        }));
    }
    let mut outcomes: BTreeMap<usize, Vec<Deployment>> = BTreeMap::new();
    for caller in callers {
        for (round, outcome) in caller.await.unwrap().into_iter().enumerate() {
            outcomes.entry(round).or_default().push(outcome);
        }
    }
    let store = database.handle().await;
    for (round, outcomes) in outcomes {
        let name = format!("h{round}");
        let mut numbers: Vec<i64> = outcomes
            .iter()
            .filter_map(|outcome| match outcome {
                Deployment::Activated(version) => Some(version.version.0),
                Deployment::WasActive(_) => None,
            })
            .collect();
        numbers.sort_unstable();
        let count = if round % 2 == 0 { CALLERS as i64 } else { 1 };
        assert_eq!(numbers, (1..=count).collect::<Vec<_>>(), "round {round}");
        assert_eq!(active(&store, &name).await, count);
        assert_eq!(versions(&store, &name).await.len(), numbers.len());
    }
}

pub async fn deployments_and_rollbacks_at_once_leave_one_version_active(
    database: &dyn TestDatabase,
) {
    const ROUNDS: usize = 25;
    let store = database.handle().await;
    deploy(&store, "h", b"first").await;
    let barrier = Arc::new(Barrier::new(3));
    let mut callers = Vec::new();
    for caller in 0..3 {
        let store = database.handle().await;
        let barrier = Arc::clone(&barrier);
        callers.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                barrier.wait().await;
                if caller == 0 {
                    deploy(&store, "h", format!("{round}").as_bytes()).await;
                } else if let Err(error) = rollback(&store, "h").await {
                    let text = error.to_string();
                    assert!(text.contains("no version before"), "{text}");
                }
                active(&store, "h").await;
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let versions = versions(&store, "h").await;
    let numbers: Vec<i64> = versions.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=ROUNDS as i64 + 1).rev().collect::<Vec<_>>());
    let current = active(&store, "h").await;
    for (number, state) in versions {
        // Nothing above the active version is waiting to be gone back to.
        let expected: &[VersionState] = match number.cmp(&current) {
            std::cmp::Ordering::Less => &[VersionState::Previous, VersionState::RolledBack],
            std::cmp::Ordering::Equal => &[VersionState::Active],
            std::cmp::Ordering::Greater => &[VersionState::RolledBack],
        };
        assert!(expected.contains(&state), "version {number} is {state:?} below {current}");
    }
}

pub async fn components_are_found_by_how_their_digests_begin(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let acme = tenant("acme");
    let mut theirs = Vec::new();
    for n in 0..40_u8 {
        theirs.push(deploy_for(&store, &acme, &format!("h{}", n % 3), &[n]).await.digest);
    }
    let others = deploy_for(&store, &Tenant::none(), "h", b"others").await.digest;
    // Deployed twice, and found once.
    deploy_for(&store, &acme, "again", &[7]).await;
    theirs.sort();
    assert_eq!(store.digests(&acme, "", usize::MAX).await.unwrap(), theirs);
    assert_eq!(store.digests(&acme, "", 3).await.unwrap(), theirs[..3]);
    assert_eq!(
        store.digests(&Tenant::none(), "sha256:", 9).await.unwrap(),
        std::slice::from_ref(&others)
    );
    for digest in &theirs {
        for length in [8, 9, 70, 71] {
            let prefix = &digest.as_str()[..length];
            let fitting = theirs.iter().filter(|d| d.as_str().starts_with(prefix));
            let found = store.digests(&acme, prefix, usize::MAX).await.unwrap();
            assert_eq!(found, fitting.cloned().collect::<Vec<_>>(), "{prefix}");
        }
    }
    for nothing in [others.as_str(), "sha256:%", "sha256:_", "SHA256:", "\u{10FFFF}"] {
        assert_eq!(store.digests(&acme, nothing, 9).await.unwrap(), [], "{nothing}");
    }
}
