//! What PostgreSQL promises: the suite, and what it must do beyond it, on a
//! real server.

use std::sync::Arc;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use sqlx::{Connection, PgConnection};
use test_databases::Database;

use super::PostgresStore;
use crate::store::Store;
use crate::store::suite::TestDatabase;

/// A database of one test's own, with the schema in it.
struct PostgresDatabase {
    database: Database,
}

impl PostgresDatabase {
    async fn new() -> Self {
        let migrations = include_bytes!("../../../../migrations/postgres/0001_log_and_groups.sql");
        let digest = Sha256::digest(migrations);
        let key: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let database = Database::from_template(&key, async |url: String| {
            PostgresStore::new(url.as_str().into(), None).unwrap().migrate().await.unwrap();
        })
        .await;
        Self { database }
    }

    fn store(&self) -> PostgresStore {
        PostgresStore::new(self.database.url().into(), None).unwrap()
    }

    /// A session as any other program would open it.
    #[expect(dead_code)]
    async fn raw(&self) -> PgConnection {
        PgConnection::connect(self.database.url()).await.unwrap()
    }
}

#[async_trait]
impl TestDatabase for PostgresDatabase {
    async fn handle(&self) -> Arc<dyn Store> {
        Arc::new(self.store())
    }

    fn kept(&self, text: &str) -> String {
        text.replace('\0', "\u{fffd}")
    }
}

crate::store_suite!(PostgresDatabase::new().await);
