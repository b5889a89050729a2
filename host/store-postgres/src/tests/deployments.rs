//! Deployments that are cut off in the middle, and bytes that are not what they
//! are called.

use super::{
    PostgresDatabase, hold_inserts_into, let_inserts_go, run, says, try_to_run, until_waiting,
    value,
};
use crate::PostgresStore;
use event_host_core::digest::Digest;
use event_host_core::event::{HandlerName, Tenant};
use event_host_store::traits::*;
use event_host_store::{Deployment, NewVersion, StoreError};

async fn deploy(store: &PostgresStore, component: &[u8]) -> Result<Deployment, StoreError> {
    let (tenant, handler): (_, HandlerName) = (Tenant::none(), "h".parse().unwrap());
    let deployed_by = "ada@here";
    store.deploy(NewVersion { tenant: &tenant, handler: &handler, component, deployed_by }).await
}

fn number(deployment: &Deployment) -> i64 {
    match deployment {
        Deployment::Activated(version) | Deployment::WasActive(version) => version.version.0,
    }
}

#[tokio::test]
async fn a_deployment_that_is_cut_off_leaves_neither_version_nor_component() {
    let database = PostgresDatabase::new().await;
    let mut owner = database.raw().await;
    hold_inserts_into(&mut owner, "deployments").await;
    let store = database.patient_store();
    let deploying = {
        let store = store.clone();
        tokio::spawn(async move { deploy(&store, b"one").await })
    };
    until_waiting(&mut owner, 1).await;
    run(
        &mut owner,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'event-host'",
    )
    .await;
    let error = deploying.await.unwrap().unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let_inserts_go(&mut owner).await;
    let left: i64 = value(
        &mut owner,
        "SELECT (SELECT count(*) FROM event_host.components)
              + (SELECT count(*) FROM event_host.deployments)",
    )
    .await;
    assert_eq!(left, 0);
    assert_eq!(number(&deploy(&store, b"one").await.unwrap()), 1, "again, and it is there");
}

#[tokio::test]
async fn of_two_first_deployments_the_second_waits_and_comes_after() {
    let database = PostgresDatabase::new().await;
    let mut owner = database.raw().await;
    hold_inserts_into(&mut owner, "deployments").await;
    let store = database.patient_store();
    let mut both = Vec::new();
    for component in [&b"one"[..], b"two"] {
        let store = store.clone();
        both.push(tokio::spawn(async move { deploy(&store, component).await.unwrap() }));
    }
    // Neither has seen a version of the other's.
    until_waiting(&mut owner, 2).await;
    let_inserts_go(&mut owner).await;
    let mut numbers = Vec::new();
    for deploying in both {
        numbers.push(number(&deploying.await.unwrap()));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(store.deployed().await.unwrap()[0].version.0, 2);
}

#[tokio::test]
async fn bytes_that_are_not_those_of_their_digest_are_refused_and_put_right() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    deploy(&store, b"one").await.unwrap();
    let mut owner = database.raw().await;
    let damage = "UPDATE event_host.components SET bytes = 'eno'";
    let error = try_to_run(&mut owner, damage).await.unwrap_err();
    assert!(error.to_string().contains("digest_is_that_of_the_bytes"), "{error}");

    run(
        &mut owner,
        "ALTER TABLE event_host.components DROP CONSTRAINT digest_is_that_of_the_bytes",
    )
    .await;
    run(&mut owner, damage).await;
    let digest = Digest::of(b"one");
    let error = store.component(&Tenant::none(), &digest).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    says(&error, &[digest.as_str(), "is damaged", "deploy the same file again"]);
    assert_eq!(number(&deploy(&store, b"one").await.unwrap()), 1);
    assert_eq!(store.component(&Tenant::none(), &digest).await.unwrap(), b"one");
}

#[tokio::test]
async fn what_is_deployed_is_read_without_the_table() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    for n in 0..50 {
        deploy(&store, format!("{n}").as_bytes()).await.unwrap();
    }
    let mut owner = database.raw().await;
    // As the host's sessions do.
    run(&mut owner, "SET enable_seqscan = off; SET enable_bitmapscan = off").await;
    run(&mut owner, "VACUUM event_host.deployments").await;
    let plan: Vec<String> = sqlx::query_scalar(
        "EXPLAIN SELECT tenant, handler, version, digest FROM event_host.deployments
         WHERE state = 'active' ORDER BY tenant, handler",
    )
    .fetch_all(&mut owner)
    .await
    .unwrap();
    let plan = plan.join("\n");
    assert!(plan.contains("Index Only Scan using one_version_is_active"), "{plan}");
    assert!(!plan.contains("Sort"), "{plan}");
}
