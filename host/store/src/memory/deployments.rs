//! Versions and components in memory.

use std::collections::BTreeSet;

use async_trait::async_trait;
use jiff::Timestamp;

use super::operation::Operation;
use super::{Log, MemoryStore, microseconds};
use crate::driver::refusals;
use crate::{
    Deployed, Deployment, Deployments, NewVersion, StoreError, Version, VersionNumber, VersionState,
};
use event_host_core::digest::Digest;
use event_host_core::event::{HandlerName, Tenant};

#[allow(missing_docs, reason = "each is the call of the same name")]
impl Operation {
    pub const DEPLOY: Self = Self::writing("deploy");
    pub const ROLLBACK: Self = Self::writing("rollback");
    pub const VERSIONS: Self = Self::reading("versions");
    pub const DEPLOYED: Self = Self::reading("deployed");
    pub const COMPONENT: Self = Self::reading("component");
    pub const DIGESTS: Self = Self::reading("digests");
}

#[async_trait]
impl Deployments for MemoryStore {
    async fn deploy(&self, new: NewVersion<'_>) -> Result<Deployment, StoreError> {
        self.call(Operation::DEPLOY, |log| Ok(log.deploy(new))).await
    }

    async fn rollback(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
        from: Option<VersionNumber>,
    ) -> Result<Version, StoreError> {
        self.call(Operation::ROLLBACK, |log| log.rollback(tenant, handler, from)).await
    }

    async fn versions(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
    ) -> Result<Vec<Version>, StoreError> {
        self.call(Operation::VERSIONS, |log| {
            let versions = log.deployments.get(&(tenant.clone(), handler.clone()));
            Ok(versions.into_iter().flatten().rev().cloned().collect())
        })
        .await
    }

    async fn deployed(&self) -> Result<Vec<Deployed>, StoreError> {
        self.call(Operation::DEPLOYED, |log| {
            let active = log.deployments.iter().flat_map(|((tenant, handler), versions)| {
                let active = versions.iter().filter(|v| v.state == VersionState::Active);
                active.map(|version| Deployed {
                    tenant: tenant.clone(),
                    handler: handler.clone(),
                    version: version.version,
                    digest: version.digest.clone(),
                })
            });
            Ok(active.collect())
        })
        .await
    }

    async fn component(&self, tenant: &Tenant, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        self.call(Operation::COMPONENT, |log| log.component(tenant, digest)).await
    }

    async fn digests(
        &self,
        tenant: &Tenant,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Digest>, StoreError> {
        self.call(Operation::DIGESTS, |log| {
            let fitting: BTreeSet<&Digest> = log
                .digests_of(tenant)
                .filter(|digest| digest.as_str().starts_with(prefix))
                .collect();
            Ok(fitting.into_iter().take(limit).cloned().collect())
        })
        .await
    }
}

impl Log {
    /// Those of all versions of a tenant's handlers.
    pub(super) fn digests_of(&self, tenant: &Tenant) -> impl Iterator<Item = &Digest> {
        let theirs = self.deployments.iter().filter(move |((owner, _), _)| owner == tenant);
        theirs.flat_map(|(_, versions)| versions.iter().map(|version| &version.digest))
    }

    pub(super) fn deploy(&mut self, new: NewVersion<'_>) -> Deployment {
        let digest = Digest::of(new.component);
        self.components.insert(digest.clone(), new.component.to_vec());
        let of_handler = (new.tenant.clone(), new.handler.clone());
        let versions = self.deployments.entry(of_handler).or_default();
        if let Some(active) = active_of(versions) {
            if active.digest == digest {
                return Deployment::WasActive(active.clone());
            }
            active.state = VersionState::Previous;
        }
        let version = Version {
            version: VersionNumber(i64::try_from(versions.len()).unwrap_or(i64::MAX) + 1),
            digest,
            bytes: new.component.len() as u64,
            deployed_at: microseconds(Timestamp::now()),
            deployed_by: new.deployed_by.to_owned(),
            state: VersionState::Active,
        };
        versions.push(version.clone());
        Deployment::Activated(version)
    }

    pub(super) fn rollback(
        &mut self,
        tenant: &Tenant,
        handler: &HandlerName,
        from: Option<VersionNumber>,
    ) -> Result<Version, StoreError> {
        let versions = self.deployments.get_mut(&(tenant.clone(), handler.clone()));
        let versions = versions.ok_or_else(|| refusals::nothing_deployed(handler))?;
        let active = active_of(versions).ok_or_else(|| refusals::nothing_deployed(handler))?;
        let current = active.version;
        if let Some(from) = from
            && from != current
        {
            return Err(refusals::other_version_active(handler, from, current));
        }
        let before = versions.iter().rposition(|v| v.state == VersionState::Previous);
        let before = before.ok_or_else(|| refusals::no_version_before(handler, current))?;
        if let Some(active) = active_of(versions) {
            active.state = VersionState::RolledBack;
        }
        versions[before].state = VersionState::Active;
        Ok(versions[before].clone())
    }

    pub(super) fn component(
        &self,
        tenant: &Tenant,
        digest: &Digest,
    ) -> Result<Vec<u8>, StoreError> {
        let is_theirs = self.digests_of(tenant).any(|theirs| theirs == digest);
        let bytes = self.components.get(digest).filter(|_| is_theirs).cloned();
        bytes.ok_or_else(|| refusals::no_component(digest))
    }
}

fn active_of(versions: &mut [Version]) -> Option<&mut Version> {
    versions.iter_mut().find(|version| version.state == VersionState::Active)
}
