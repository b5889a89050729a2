//! Bytes that are not what they are called.

use sqlx::Executor;

use super::SqliteDatabase;
use event_host_core::digest::Digest;
use event_host_core::event::{HandlerName, Tenant};
use event_host_store::traits::*;
use event_host_store::{Deployment, NewVersion, StoreError};

#[tokio::test]
async fn bytes_that_are_not_those_of_their_digest_are_refused_and_put_right() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let (tenant, handler): (_, HandlerName) = (Tenant::none(), "h".parse().unwrap());
    let (component, deployed_by) = (&b"one"[..], "ada@here");
    let new = NewVersion { tenant: &tenant, handler: &handler, component, deployed_by };
    store.deploy(new).await.unwrap();

    database.raw().await.execute("UPDATE components SET bytes = x'656e6f'").await.unwrap();
    let digest = Digest::of(component);
    let error = store.component(&tenant, &digest).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    assert!(error.to_string().contains("is damaged"), "{error}");

    assert!(matches!(store.deploy(new).await.unwrap(), Deployment::WasActive(_)));
    assert_eq!(store.component(&tenant, &digest).await.unwrap(), component);
}
