//! Components that reach the hosts through the database: the versions of a
//! handler, of which one is active.
//!
//! A component is stored once, by its digest, whoever deploys it; a tenant
//! reaches those alone that were deployed for it.

use std::fmt;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;

use super::StoreError;
use event_host_core::digest::Digest;
use event_host_core::event::{HandlerName, Tenant};

/// The number of a version: 1 for a handler's first deployment, and one more
/// with each further one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct VersionNumber(pub i64);

impl fmt::Display for VersionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What is to be deployed.
#[derive(Debug, Clone, Copy)]
pub struct NewVersion<'a> {
    /// Whose handler.
    pub tenant: &'a Tenant,
    /// Which.
    pub handler: &'a HandlerName,
    /// The component's file, as it is.
    pub component: &'a [u8],
    /// By whom, in a form that people know: `user@machine`.
    pub deployed_by: &'a str,
}

/// What a deployment did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deployment {
    /// This version is new, and active.
    Activated(Version),
    /// This version was active already, with the same bytes. Nothing changed.
    WasActive(Version),
}

/// A version of a handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Version {
    /// Its number.
    pub version: VersionNumber,
    /// Its component.
    pub digest: Digest,
    /// The component's size in bytes.
    pub bytes: u64,
    /// When it was deployed.
    pub deployed_at: Timestamp,
    /// By whom.
    pub deployed_by: String,
    /// Whether it runs.
    pub state: VersionState,
}

/// Whether a version runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VersionState {
    /// It is what the hosts run.
    Active,
    /// A later one was deployed. A rollback goes to the latest of these.
    Previous,
    /// It was rolled back, and no rollback goes to it.
    RolledBack,
}

impl VersionState {
    /// The stored form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Previous => "previous",
            Self::RolledBack => "rolled-back",
        }
    }
}

/// What is active for one handler: the little that a running host watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployed {
    /// Whose handler.
    pub tenant: Tenant,
    /// Which.
    pub handler: HandlerName,
    /// The version that is active.
    pub version: VersionNumber,
    /// Its component; [`Deployments::component`] gives the bytes.
    pub digest: Digest,
}

/// The versions of handlers, and their components.
#[async_trait]
pub trait Deployments: Send + Sync + 'static {
    /// Keeps a component and makes it the active version of a handler, in one
    /// transaction. Of two at once one comes after the other. What is active
    /// already is not deployed again, so that one whose outcome is unknown can
    /// be repeated.
    async fn deploy(&self, new: NewVersion<'_>) -> Result<Deployment, StoreError>;

    /// Makes the version before the active one active again, and gives it: the
    /// latest that was not rolled back itself.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when there is none, when nothing is deployed, and
    /// when `from` is given and is not the active version.
    async fn rollback(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
        from: Option<VersionNumber>,
    ) -> Result<Version, StoreError>;

    /// Every version of a handler, the newest first; none if nothing is
    /// deployed.
    async fn versions(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
    ) -> Result<Vec<Version>, StoreError>;

    /// What is active, of every handler of every tenant, by tenant and handler,
    /// in one cheap query.
    async fn deployed(&self) -> Result<Vec<Deployed>, StoreError>;

    /// The bytes of a component that was once deployed for one of the tenant's
    /// handlers. They are those of the digest.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] also for what was deployed for other tenants
    /// alone; [`StoreError::Unusable`] when what is stored is not what was
    /// deployed.
    async fn component(&self, tenant: &Tenant, digest: &Digest) -> Result<Vec<u8>, StoreError>;

    /// The digests that begin with this text, of components that were once
    /// deployed for one of the tenant's handlers: the first `limit`, in their
    /// order.
    async fn digests(
        &self,
        tenant: &Tenant,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Digest>, StoreError>;
}
