//! What SQLite promises beyond the suite, with real files and real processes.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use super::{OpenOptions, SqliteStore};
use crate::store::Store;
use crate::store::suite::TestDatabase;

/// A database file in a folder of its own, which goes with this value.
pub(super) struct SqliteDatabase {
    folder: tempfile::TempDir,
}

impl SqliteDatabase {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("host.db")
    }

    pub(super) async fn store(&self) -> SqliteStore {
        let path = self.path();
        let store =
            SqliteStore::open(path.to_str().unwrap(), OpenOptions::to_migrate()).await.unwrap();
        store.migrate().await.unwrap();
        store
    }
}

#[async_trait]
impl TestDatabase for SqliteDatabase {
    async fn handle(&self) -> Arc<dyn Store> {
        Arc::new(self.store().await)
    }
}

crate::store_suite!(SqliteDatabase::new());
