//! The connections to one server: a few that all groups share, and those that
//! have one owner. A deadline on everything.
//!
//! A connection is given back only after an answer that leaves nothing open.
//! One whose work failed, or whose caller went away in the middle, is closed
//! instead: nobody knows what is still under way on it, and the server undoes
//! what it had open. A general pool would hand it out again.
//!
//! All that are shared lead to the [`Incarnation`] that the log is looked at in, once
//! one is known: a new connection is asked, and those that are idle are closed when
//! that changes. A session has one incarnation for its life, so none is asked again.
//! Through a pooler the next transaction may be another session's, so each is asked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex as StdMutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;
use tracing::debug;

use super::blockers;
use super::error::PostgresError;
use super::incarnation::{self, Incarnation, Known};
use super::piece::Piece;
use super::session::{FIRST, Patience, Reads, SESSION, begin_text};
use event_host_store::StoreError;

/// The connections that ingest uses at most, besides those that the groups share.
pub const MOST_INGESTING: usize = 16;

/// How long an operation may take in all.
pub(super) const DEADLINE: Duration = Duration::from_secs(15);

/// The same for one that reads the whole log.
pub(super) const LONG_DEADLINE: Duration = Duration::from_secs(120);

/// How long it may take to connect, unless the URL says otherwise.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// How long a connection may have been idle that is used without a word before, where
/// its session is a pooler's.
const TRUSTED_FOR: Duration = Duration::from_millis(500);

/// How long it may take to find out who holds tables locked.
const LOOK_AT_LOCKS: Duration = Duration::from_secs(1);

/// How many connections all groups of a host share.
pub const POOL_SIZE: usize = 8;

/// Where a server is and how to get in. It may hold a password, so it is neither
/// shown nor kept.
#[derive(Clone, Copy)]
pub struct ServerUrl<'a> {
    /// A URL as libpq takes it.
    pub url: &'a str,
    /// How long it may take to connect; 5 s if it is not said.
    pub connect_timeout: Option<Duration>,
}

impl<'a> From<&'a str> for ServerUrl<'a> {
    fn from(url: &'a str) -> Self {
        Self { url, connect_timeout: None }
    }
}

/// A [`ServerUrl`] that was read.
#[derive(Clone)]
pub(super) struct Address {
    options: PgConnectOptions,
    connect_timeout: Duration,
}

impl Address {
    /// # Errors
    /// The sentence never repeats the URL.
    pub(super) fn read(server: ServerUrl<'_>) -> Result<Self, StoreError> {
        let options: PgConnectOptions = server.url.parse().map_err(|error| {
            StoreError::Unusable(format!("this is no URL of a PostgreSQL database: {error}"))
        })?;
        // Poolers refuse parameters of the start that they do not know.
        let options = options.extra_float_digits(None).disable_statement_logging();
        let options = match options.get_application_name() {
            Some(_) => options,
            None => options.application_name("event-host"),
        };
        let connect_timeout = server.connect_timeout.unwrap_or(CONNECT_DEADLINE);
        Ok(Self { options, connect_timeout })
    }
}

/// The connections to one server.
pub(super) struct Connections {
    /// For the connections that are shared.
    shared: Address,
    /// For those that must be a session of their own.
    direct: Address,
    /// The shared ones go through a pooler, which would keep what a session sets
    /// for whoever comes next.
    through_a_pooler: bool,
    /// Statements wait for locks for as long as it takes, so that a test can hold them.
    #[cfg(test)]
    waits_for_ever: bool,
    permits: Semaphore,
    /// For those who take events in, besides.
    ingest_permits: Semaphore,
    idle: StdMutex<Idle>,
    /// Which incarnation of the server they lead to.
    known: watch::Sender<Known>,
    /// A connection led elsewhere: the watcher connects again.
    is_suspect: AtomicBool,
}

/// Connections that nobody uses.
#[derive(Default)]
struct Idle {
    /// Since when each has been idle.
    connections: Vec<(PgConnection, Instant)>,
    /// How often it changed where they lead. One that was lent before the last time
    /// does not come back.
    generation: u64,
}

impl Connections {
    /// Nothing is opened yet.
    pub(super) fn new(shared: Address, direct: Option<Address>) -> Self {
        Self {
            through_a_pooler: direct.is_some(),
            direct: direct.unwrap_or_else(|| shared.clone()),
            #[cfg(test)]
            waits_for_ever: false,
            shared,
            permits: Semaphore::new(POOL_SIZE),
            ingest_permits: Semaphore::new(MOST_INGESTING),
            idle: StdMutex::default(),
            known: watch::Sender::new(Known::Nothing),
            is_suspect: AtomicBool::new(false),
        }
    }

    /// Waits for locks for as long as it takes.
    #[cfg(test)]
    pub(super) fn wait_for_ever(self) -> Self {
        Self { waits_for_ever: true, ..self }
    }

    /// Where the server is, for messages: never with a password.
    pub(super) fn server(&self) -> String {
        place(&self.shared.options)
    }

    /// Where sessions of one's own lead, for messages.
    pub(super) fn direct_server(&self) -> String {
        place(&self.direct.options)
    }

    /// Whether the shared connections may go through a pooler.
    pub(super) fn through_a_pooler(&self) -> bool {
        self.through_a_pooler
    }

    /// A session of one's own.
    pub(super) async fn connect_directly(&self) -> Result<PgConnection, PostgresError> {
        self.connect(&self.direct, true).await
    }

    /// The way to a session of one's own, for those that connect by themselves.
    pub(super) fn direct(&self) -> &PgConnectOptions {
        &self.direct.options
    }

    /// A connection like those that are shared, for one owner that keeps it.
    pub(super) async fn connect_as_shared(&self) -> Result<PgConnection, PostgresError> {
        self.connect(&self.shared, !self.through_a_pooler).await
    }

    async fn connect(&self, address: &Address, ours: bool) -> Result<PgConnection, PostgresError> {
        let connecting = async {
            let mut connection = address.options.connect().await?;
            if ours {
                // By itself first: a limit that an administrator has set holds for all that
                // is sent with it.
                connection.execute(FIRST).await?;
                connection.execute(SESSION).await?;
            }
            #[cfg(test)]
            if self.waits_for_ever {
                connection.execute("SET lock_timeout = 0; SET statement_timeout = 0").await?;
            }
            Ok::<_, sqlx::Error>(connection)
        };
        match tokio::time::timeout(address.connect_timeout, connecting).await {
            Ok(connected) => Ok(connected?),
            Err(_) => Err(StoreError::Busy(format!(
                "{} has let nobody in for {} s",
                place(&address.options),
                address.connect_timeout.as_secs()
            ))
            .into()),
        }
    }

    /// Begins a piece of work on a connection that is like the shared ones.
    pub(super) async fn begin_on<'c>(
        &self,
        connection: &'c mut PgConnection,
        patience: Patience,
    ) -> Result<Piece<'c>, PostgresError> {
        if self.through_a_pooler {
            let text = begin_text(connection, Reads::Committed, patience);
            return Ok(Piece::Transaction(connection.begin_with(text).await?));
        }
        #[cfg(test)]
        let patience = if self.waits_for_ever { Patience::Short } else { patience };
        if patience != Patience::Short {
            connection.execute(patience.set_text()).await?;
        }
        Ok(Piece::Session(connection, patience))
    }

    /// Waits for a shared connection.
    pub(super) async fn shared(&self) -> Result<Shared<'_>, PostgresError> {
        self.lend(&self.permits).await
    }

    /// The same for who takes events in, besides those of the groups.
    pub(super) async fn for_ingest(&self) -> Result<Shared<'_>, PostgresError> {
        self.lend(&self.ingest_permits).await
    }

    async fn lend<'a>(&'a self, permits: &'a Semaphore) -> Result<Shared<'a>, PostgresError> {
        // Nobody closes the semaphore.
        let permit = permits
            .acquire()
            .await
            .map_err(|_| StoreError::Unavailable("the connections are closed".to_owned()))?;
        let (idle, generation) = {
            let mut idle = self.idle();
            (idle.connections.pop(), idle.generation)
        };
        let idle = match idle {
            // A session that is not the host's own may be ended for being idle.
            Some((mut connection, since))
                if self.through_a_pooler && since.elapsed() >= TRUSTED_FOR =>
            {
                connection.ping().await.is_ok().then_some(connection)
            }
            idle => idle.map(|(connection, _)| connection),
        };
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let mut connection = self.connect_as_shared().await?;
                if !self.through_a_pooler {
                    self.verify(&mut connection).await?;
                }
                connection
            }
        };
        Ok(Shared { connections: self, connection, generation, _permit: permit })
    }

    /// What is known of where they lead.
    pub(super) fn known(&self) -> watch::Receiver<Known> {
        self.known.subscribe()
    }

    /// Takes note of where they lead from now on.
    pub(super) fn know(&self, known: Known) {
        let mut idle = self.idle();
        idle.connections.clear();
        idle.generation += 1;
        self.known.send_replace(known);
    }

    /// Does so where nothing was known.
    pub(super) fn know_if_nothing(&self, incarnation: &Incarnation) {
        let nothing = *self.known.borrow() == Known::Nothing;
        if nothing {
            self.know(Known::Is(incarnation.clone()));
        }
    }

    /// Refuses a piece of work through a pooler that is done elsewhere: its transaction
    /// is one session's, and the next may be another's.
    pub(super) async fn verify_piece(&self, piece: &mut Piece<'_>) -> Result<(), PostgresError> {
        match piece {
            Piece::Session(..) => Ok(()),
            Piece::Transaction(transaction) => self.verify(transaction).await,
        }
    }

    /// Refuses one that leads elsewhere, by what it says in this moment.
    pub(super) async fn verify_pooled(
        &self,
        connection: &mut PgConnection,
    ) -> Result<(), PostgresError> {
        if self.through_a_pooler { self.verify(connection).await } else { Ok(()) }
    }

    /// Refuses a connection that leads elsewhere.
    async fn verify(&self, connection: &mut PgConnection) -> Result<(), PostgresError> {
        let known = self.known.borrow().clone();
        if known == Known::Nothing {
            return Ok(());
        }
        let here = incarnation::of(connection).await?;
        self.expect(here.as_ref(), &known)
    }

    /// The same of one that is known to lead there.
    pub(super) fn expect(
        &self,
        here: Option<&Incarnation>,
        known: &Known,
    ) -> Result<(), PostgresError> {
        match (here, known) {
            (_, Known::Nothing) => Ok(()),
            (Some(here), Known::Is(known)) if here == known => Ok(()),
            _ => {
                self.is_suspect.store(true, Ordering::Relaxed);
                Err(incarnation::elsewhere(here, known).into())
            }
        }
    }

    /// Whether a connection led elsewhere since this was last asked.
    pub(super) fn take_suspicion(&self) -> bool {
        self.is_suspect.swap(false, Ordering::Relaxed)
    }

    /// Who holds whole tables locked, for the end of an error; empty where nobody does, or
    /// where that cannot be told soon.
    async fn locked_tables(&self) -> String {
        let looking = async {
            let mut shared = self.shared().await?;
            let found = blockers::locked_tables(shared.connection()).await;
            shared.give_back(found).await
        };
        let found = match tokio::time::timeout(LOOK_AT_LOCKS, looking).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                debug!("who holds tables locked is not known: {error}");
                return String::new();
            }
            Err(_) => return String::new(),
        };
        let told = found.iter().map(|(table, holder)| format!("; {table} is locked by {holder}"));
        told.collect()
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Idle> {
        // Each critical section leaves it whole, so a poisoned one is whole, too.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bounds an operation in time, and words its failure.
    pub(super) async fn within<T>(
        &self,
        what: &str,
        deadline: Duration,
        work: impl Future<Output = Result<T, PostgresError>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(deadline, work).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(broken)) => {
                let waited_in_vain = broken.waited_in_vain();
                match broken.told(what, &self.server()) {
                    StoreError::Busy(why) if waited_in_vain => {
                        Err(StoreError::Busy(why + &self.locked_tables().await))
                    }
                    told => Err(told),
                }
            }
            Err(_) => Err(StoreError::Unavailable(format!(
                "cannot {what}: {} has not answered for {} s",
                self.server(),
                deadline.as_secs()
            ))),
        }
    }
}

fn place(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    match options.get_socket() {
        Some(socket) => format!("database {database} at {}", socket.display()),
        None => format!("database {database} at {}:{}", options.get_host(), options.get_port()),
    }
}

/// A shared connection, for one piece of work.
pub(super) struct Shared<'a> {
    connections: &'a Connections,
    connection: PgConnection,
    generation: u64,
    _permit: SemaphorePermit<'a>,
}

impl Shared<'_> {
    /// The connection.
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Gives the connection back if the work went well, and closes it if not.
    /// Where the connection itself broke, those that lie idle are likely to be
    /// broken, too: each would cost somebody a failure of their own.
    pub(super) async fn give_back<T>(
        mut self,
        result: Result<T, PostgresError>,
    ) -> Result<T, PostgresError> {
        match &result {
            Ok(_) => self.keep(),
            // Many may wait in vain at once. A transaction that was dropped is
            // undone with the next word on its connection, so there must be one.
            Err(broken) if broken.waited_in_vain() => {
                if self.connection.ping().await.is_ok() {
                    self.keep();
                }
            }
            Err(broken) if broken.ended_the_session() => {
                self.connections.idle().connections.clear();
            }
            Err(_) => {}
        }
        result
    }

    /// Has it wait for whoever comes next, if it still leads where it should.
    fn keep(self) {
        let mut idle = self.connections.idle();
        if idle.generation == self.generation {
            idle.connections.push((self.connection, Instant::now()));
        }
    }
}
