//! What SQLite promises beyond the suite, with real files and real processes.

mod children;
mod clients;
mod crashes;
mod deployments;
mod files;
mod floor;
mod generated;
mod opening;
mod retention;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, SqliteConnection};

use super::{OpenOptions, SqliteStore};
use event_host_core::event::{Event, GroupName, Tenant};
use event_host_store::suite::{DeliveryDatabase, TestDatabase};
use event_host_store::traits::*;
use event_host_store::{Claim, GroupRegistration, HostIdentity, LockSession, Release};

/// A database file in a folder of its own, which goes with this value.
struct SqliteDatabase {
    folder: tempfile::TempDir,
}

impl SqliteDatabase {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("host.db")
    }

    async fn store(&self) -> SqliteStore {
        let path = self.path();
        let store =
            SqliteStore::open(path.to_str().unwrap(), OpenOptions::to_migrate()).await.unwrap();
        store.migrate().await.unwrap();
        store
    }

    /// A connection as any other program would open it.
    async fn raw(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path());
        options.busy_timeout(std::time::Duration::from_secs(60)).connect().await.unwrap()
    }
}

#[async_trait]
impl DeliveryDatabase for SqliteDatabase {
    async fn delivery(&self) -> Arc<dyn DeliveryStore> {
        self.handle().await
    }

    fn sees_what_is_wrong_with(&self, event: &Event) -> bool {
        // The parameters of a media type are not looked at.
        event.datacontenttype.as_ref().is_none_or(|media_type| !media_type.contains(';'))
    }
}

#[async_trait]
impl TestDatabase for SqliteDatabase {
    async fn handle(&self) -> Arc<dyn Store> {
        Arc::new(self.store().await)
    }
}

event_host_store::store_suite!(SqliteDatabase::new());

fn group(name: &str) -> GroupName {
    name.parse().unwrap()
}

/// Of which of these groups the session leads each now.
async fn claims(session: &mut Box<dyn LockSession>, names: &[&str]) -> Vec<bool> {
    let groups: Vec<GroupName> = names.iter().copied().map(group).collect();
    let claims = session.claim(&groups).await.unwrap();
    claims.iter().map(|claim| matches!(claim, Claim::Led(_))).collect()
}

async fn give_back(session: &mut Box<dyn LockSession>, group: &GroupName) {
    let release = Release { group: group.clone(), ended: None };
    assert!(session.release(&[release]).await.unwrap().is_empty());
}

fn settings(name: &str) -> GroupRegistration {
    GroupRegistration::new(group(name), Tenant::none())
}

fn this_host() -> HostIdentity {
    HostIdentity { id: "host".into(), hostname: "here".into(), pid: std::process::id() }
}

fn event(event_type: &str, id: &str) -> Event {
    Event {
        data: Some(id.as_bytes().to_vec()),
        ..Event::new(id, "/tests", event_type, jiff::Timestamp::UNIX_EPOCH)
    }
}
