//! The shared store: PostgreSQL, for as many hosts as like.
//!
//! Everything lies in the schema `event_host`. Producers append to the log in
//! transactions of their own, so positions become visible in another order than
//! they were drawn in: `safe_position` knows up to where the log is decided, in one
//! `incarnation` of the server.
//!
//! The log lies in partitions, which `retention` ends and lets go of. `overtaking` reads it
//! past what is decided.
//!
//! `connection` shares the connections out and bounds everything in time,
//! `session` sets what is relied on, whoever had a session before, `schema` holds
//! the migrations, `guards` refuses a database that would lose or repeat events,
//! `locks` says who leads, `listen` brings hints; the rest is SQL, by subject. What
//! a host opens: the session for the locks, the listener, the watcher's connection
//! at most [`POOL_SIZE`] for its groups, however many they are, and where it takes events in,
//! at most [`MOST_INGESTING`] for those.

mod blockers;
mod columns;
mod connection;
mod dead_letters;
mod deferred;
mod deployments;
mod error;
mod event_log;
mod event_pool;
mod grants;
mod group_columns;
mod group_row;
mod groups;
mod guards;
mod hosts;
mod incarnation;
mod ingest;
mod lag;
mod leadership_row;
mod leases;
mod listen;
mod locks;
mod log;
mod on_shared;
mod overtaking;
mod owner;
mod piece;
mod pooler;
mod reading;
mod redeliveries;
mod repartition;
mod retention;
mod safe_position;
mod sample;
mod schedules;
mod schema;
mod session;
mod settlements;
mod state;
mod status;
mod table_partitions;
#[cfg(test)]
mod tests;
mod unpin;
mod watch;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use connection::{Address, Connections, LONG_DEADLINE};
use event_pool::EventPool;
use listen::Listener;
use on_shared::on_shared;
use tokio::sync::Mutex;
use watch::Watch;

use event_host_store::driver::unreadable::Said;
use event_host_store::{Counting, StoreError};

pub use connection::{MOST_INGESTING, POOL_SIZE, ServerUrl};
pub use grants::{Purpose, grants};
pub use owner::Owner;

/// Deadline of a status with exact numbers, which takes as long as there is to count.
const EXACT_DEADLINE: Duration = Duration::from_secs(3_600);

/// The store on a PostgreSQL server. A clone shares its connections.
#[derive(Clone)]
pub struct PostgresStore {
    connections: Arc<Connections>,
    said: Arc<Said>,
    watch: Arc<Mutex<Watch>>,
    listener: Arc<OnceLock<Listener>>,
    pool: Arc<EventPool>,
    ahead: Arc<Mutex<retention::Ahead>>,
    hints: Arc<ingest::Hints>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore")
            .field("server", &self.connections.server())
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Names a database by its URL, as libpq takes it, and, where that one leads
    /// through a pooler, by a direct one. Connects when it is first needed.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] for what is no URL of a PostgreSQL database. The
    /// sentence never repeats it.
    pub fn new(
        database: ServerUrl<'_>,
        lock_database: Option<ServerUrl<'_>>,
    ) -> Result<Self, StoreError> {
        let shared = Address::read(database)?;
        let direct = lock_database.map(Address::read).transpose()?;
        Ok(Self {
            connections: Arc::new(Connections::new(shared, direct)),
            said: Arc::default(),
            watch: Arc::default(),
            listener: Arc::default(),
            pool: Arc::default(),
            ahead: Arc::default(),
            hints: Arc::default(),
        })
    }

    /// Refuses a schema that is newer than this program and, if it is
    /// `required`, one that is missing or older.
    ///
    /// # Errors
    /// Also when the server cannot be reached, or lets nobody in.
    pub async fn check_schema(&self, required: bool) -> Result<(), StoreError> {
        let server = self.connections.server();
        on_shared!(self.connections, "read the schema", |c| schema::check(c, &server, required))
    }

    /// Refuses a schema that is somebody else's, or in which others have a hand, before
    /// anything in it is read.
    ///
    /// # Errors
    /// Also when the server cannot be reached, or lets nobody in.
    pub async fn check_owner(&self, owner: Owner) -> Result<(), StoreError> {
        let server = self.connections.server();
        on_shared!(self.connections, "see whose the schema is", |c| owner::check(c, &server, owner))
    }
}

/// Exact numbers take as long as there is to count; each statement is still bounded.
fn deadline(counting: Counting) -> Duration {
    if counting == Counting::EXACT { EXACT_DEADLINE } else { LONG_DEADLINE }
}
