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
//! and at most [`POOL_SIZE`] for its groups, however many they are.

mod columns;
mod connection;
mod dead_letters;
mod deferred;
mod deployments;
mod error;
mod event_pool;
mod grants;
mod groups;
mod guards;
mod incarnation;
mod keys;
mod lag;
mod listen;
mod locks;
mod log;
mod overtaking;
mod owner;
mod pooler;
mod reading;
mod redeliveries;
mod repartition;
mod retention;
mod safe_position;
mod sample;
mod schema;
mod session;
mod settle;
mod status;
mod table_partitions;
mod tenants;
#[cfg(test)]
mod tests;
mod unpin;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Connection, PgConnection};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::debug;

use super::unreadable::Said;
use super::{
    Adopted, Blocker, Counting, Cursor, DeadLetter, DeadLetterFilter, DeadLetterId, Deployed,
    Deployment, Due, DueFetch, Enforced, Fetch, Fetched, FetchedLate, Found, Gone, GroupControl,
    GroupRegistration, GroupState, GroupStatus, HostIdentity, LateFetch, Leadership, LockSession,
    LogPin, LogStatus, Mark, NewVersion, OvertakingFetch, Redelivery, Removed, Replayed, Retention,
    Settled, Settlement, Sketch, Sought, Start, Store, StoreError, StoreLimits, Version,
    VersionNumber, deployment,
};
use crate::digest::Digest;
use crate::event::{Epoch, Event, GroupName, HandlerName, LogEvent, Position, Tenant};
use connection::{
    Address, Connections, DEADLINE, LONG_DEADLINE, begin_long, on_shared, on_shared_in_its_own,
    on_shared_in_parts, on_shared_patiently,
};
use error::PostgresError;
use event_pool::EventPool;
use incarnation::{Incarnation, Known};
use keys::HeldKeys;
use listen::Listener;
use reading::Reading;
use safe_position::{SafePosition, WentBack};
use session::Patience;

pub use connection::{POOL_SIZE, ServerUrl};
pub use grants::{Purpose, grants};
pub use owner::Owner;

/// Whoever holds the log up for less is no news.
const HELD_UP_AFTER: Duration = Duration::from_secs(1);

/// Whoever asks for exact numbers waits for them.
const EXACT_DEADLINE: Duration = Duration::from_secs(3_600);

/// What a transaction that has drawn a position usually needs at most until it is
/// committed.
const COMMIT_TAKES: Duration = Duration::from_millis(5);

/// So long after a position was drawn it is asked who writes, and no more often.
const ASKS_AFTER: Duration = Duration::from_millis(2);

/// How many times as long as it took is waited before it is asked again.
const ASKS_COST: u32 = 10;

/// With so many positions that are undecided it is asked without waiting: a sample finds
/// 1,000 that hold an event at most.
const FAR_BEHIND: i64 = 1_000;

/// The store on a PostgreSQL server. A clone shares its connections.
#[derive(Clone)]
pub struct PostgresStore {
    connections: Arc<Connections>,
    said: Arc<Said>,
    watch: Arc<Mutex<Watch>>,
    listener: Arc<OnceLock<Listener>>,
    pool: Arc<EventPool>,
    keys: Arc<HeldKeys>,
    ahead: Arc<Mutex<retention::Ahead>>,
}

/// What samples the end of the log, with a connection of its own: groups whose
/// statements wait for something must not keep the others from seeing events.
#[derive(Default)]
struct Watch {
    connection: Option<PgConnection>,
    /// What the rest is known of.
    incarnation: Option<Incarnation>,
    safe_position: SafePosition,
    /// Above which position it has been undecided what comes, and since when.
    undecided: Option<(i64, Instant)>,
    /// When it was last asked who writes, and how long that took.
    asked: Option<(Instant, Duration)>,
    /// Since when each transaction has been seen that may hold it up.
    writing_since: BTreeMap<String, Instant>,
    /// Since when the safe position has stood still because somebody holds it.
    held_since: Option<Instant>,
    /// Since when somebody has held it without a break, whether it moved or not.
    contended_since: Option<Instant>,
}

impl Watch {
    fn observe(&mut self, sample: safe_position::Sample) -> Result<Position, WentBack> {
        let before = self.safe_position.safe();
        if let Some(writers) = &sample.writers {
            self.writing_since.retain(|writer, _| writers.contains(writer));
            for writer in writers {
                if !self.writing_since.contains_key(writer) {
                    self.writing_since.insert(writer.clone(), Instant::now());
                }
            }
        }
        let safe = self.safe_position.observe(sample)?;
        let decided = self.safe_position.decided();
        self.undecided = match self.undecided {
            _ if self.safe_position.undecided() == 0 => None,
            Some((above, since)) if above == decided => Some((above, since)),
            _ => Some((decided, Instant::now())),
        };
        self.held_since = match self.held_since {
            _ if !self.safe_position.is_held() => None,
            Some(since) if safe == before => Some(since),
            _ => Some(Instant::now()),
        };
        self.contended_since = match self.contended_since {
            _ if !self.safe_position.is_held() => None,
            Some(since) => Some(since),
            None => Some(Instant::now()),
        };
        Ok(safe)
    }

    /// How long it is worth to wait before it is asked who writes. Who has just drawn a
    /// position mostly commits soon, and then nobody needs to be asked: what they hold
    /// is visible. `None` where there is nothing to ask for.
    fn asks_in(&self) -> Option<Duration> {
        let (_, since) = self.undecided?;
        let far = self.safe_position.undecided() > FAR_BEHIND;
        let mut due = if far { since } else { since + ASKS_AFTER };
        if let Some((asked, took)) = self.asked {
            due = due.max(asked + (took * ASKS_COST).max(ASKS_AFTER));
        }
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Whether somebody is likely to be committing at this moment, so that it is
    /// worth another sample at once. Not where there is always somebody: then each
    /// sample finds something anyway.
    fn is_about_to_move(&self) -> bool {
        self.contended_since.is_some_and(|since| since.elapsed() < COMMIT_TAKES)
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore")
            .field("server", &self.connections.server())
            .finish_non_exhaustive()
    }
}

/// Does something on the watcher's connection.
macro_rules! on_watch {
    ($store:expr, $what:expr, |$connection:ident, $watch:ident| $work:expr) => {{
        let store: &PostgresStore = $store;
        let work = async {
            let mut watch = store.watch.lock().await;
            // Taken out, so that whoever goes away in the middle closes it.
            let mut connection = match watch.connection.take() {
                Some(connection) => connection,
                None => store.connections.connect_as_shared().await?,
            };
            let (result, _) =
                match store.connections.begin_on(&mut connection, Patience::Short).await {
                    Err(broken) => (Err(broken), false),
                    Ok(mut piece) => {
                        let result: Result<_, PostgresError> = {
                            let $connection = piece.connection();
                            let $watch = &mut *watch;
                            $work.await
                        };
                        piece.end(result).await
                    }
                };
            if result.is_ok() {
                watch.connection = Some(connection);
            }
            result
        };
        store.connections.within($what, DEADLINE, work).await
    }};
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
            keys: Arc::default(),
            ahead: Arc::default(),
        })
    }

    /// Samples the end of the log, and begins the incarnation that it is in, if nobody
    /// has.
    ///
    /// In another one than before nothing is known of it: it says so once, and lends no
    /// connection until it is asked again, so that whoever asks has forgotten what it
    /// knew, too.
    async fn sample(
        &self,
        connection: &mut PgConnection,
        watch: &mut Watch,
        with_writers: bool,
    ) -> Result<safe_position::Sample, PostgresError> {
        let mut end =
            sample::sample_log_end(connection, &watch.safe_position, with_writers).await?;
        if end.incarnation.is_none() {
            incarnation::begin(connection).await?;
            end = sample::sample_log_end(connection, &watch.safe_position, with_writers).await?;
        }
        let Some(here) = end.incarnation else {
            return Err(incarnation::elsewhere(None, &Known::Changing).into());
        };
        if watch.incarnation.as_ref() == Some(&here) {
            return Ok(end.sample);
        }
        let known = self.connections.known().borrow().clone();
        let before = match (&watch.incarnation, known) {
            (Some(before), _) => before.clone(),
            (None, Known::Is(other)) if other != here => other,
            // It is new to whoever asks, or was said before.
            (None, _) => {
                self.connections.know(Known::Is(here.clone()));
                watch.incarnation = Some(here);
                return Ok(end.sample);
            }
        };
        let why = incarnation::changed(&before, &here, &self.connections.server());
        Err(self.forget(watch, why))
    }

    /// Forgets what is known of the log, and lends no connection until somebody looks
    /// again.
    fn forget(&self, watch: &mut Watch, why: StoreError) -> PostgresError {
        *watch = Watch::default();
        self.connections.know(Known::Changing);
        why.into()
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

#[async_trait]
impl Store for PostgresStore {
    async fn migrate(&self) -> Result<Vec<String>, StoreError> {
        let server = self.connections.server();
        on_shared_in_its_own!(self.connections, "bring the schema up to date", LONG_DEADLINE, |c| {
            schema::migrate(&self.connections, c, &server)
        })
    }

    async fn check(&self) -> Result<(), StoreError> {
        let server = self.connections.server();
        let poolers = pooler::check(&self.connections, &server);
        self.connections.within("look for a pooler", DEADLINE, poolers).await?;
        on_shared!(self.connections, "read the settings", |c| session::check(c, &server))?;
        on_shared!(self.connections, "check the database", |c| guards::check(c, &server))
    }

    async fn adopt(&self) -> Result<Adopted, StoreError> {
        on_shared!(self.connections, "adopt the database", |c| guards::adopt(c))
    }

    async fn publish(
        &self,
        tenant: &Tenant,
        events: &[Event],
    ) -> Result<Vec<Position>, StoreError> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let positions = on_shared!(self.connections, "publish", |c| publish(c, tenant, events))?;
        // After the commit and not within it: a NOTIFY makes commits wait for
        // each other. It is a hint, and they are published without it.
        let hinted = on_shared!(self.connections, "hint that something was published", |c| {
            listen::send_hint(c)
        });
        if let Err(why) = hinted {
            debug!("no hint was given: {why}");
        }
        Ok(positions)
    }

    async fn safe_position(&self) -> Result<Position, StoreError> {
        if self.connections.take_suspicion() {
            self.watch.lock().await.connection = None;
        }
        on_watch!(self, "read the safe position", |c, watch| async {
            loop {
                let before = watch.safe_position.safe();
                let asks = watch.asks_in() == Some(Duration::ZERO);
                let began = Instant::now();
                let sample = self.sample(c, watch, asks).await?;
                let asked = asks && sample.filled_to < sample.last_position;
                let safe =
                    watch.observe(sample).map_err(|back| self.forget(watch, went_back(back)))?;
                if asked {
                    watch.asked = Some((began, began.elapsed()));
                }
                let Some(wait) = watch.asks_in() else { return Ok(safe) };
                if safe > before || asked && !watch.is_about_to_move() {
                    return Ok(safe);
                }
                // The longer it takes, the less a sample sooner is worth.
                let since = watch.undecided.map_or(Duration::ZERO, |(_, since)| since.elapsed());
                sample::pause((since / 8).min(wait)).await;
            }
        })
    }

    async fn blockers(&self) -> Result<Vec<Blocker>, StoreError> {
        on_watch!(self, "see who holds the log up", |c, watch| async {
            match watch.held_since {
                Some(since) if since.elapsed() >= HELD_UP_AFTER => status::holders(c).await,
                _ => Ok(Vec::new()),
            }
        })
    }

    async fn wait_for_hint(&self) {
        let listener = self.listener.get_or_init(|| Listener::start(Arc::clone(&self.connections)));
        listener.wait_for_hint().await;
    }

    async fn enforce_retention(&self, retention: &Retention) -> Result<Enforced, StoreError> {
        retention::enforce_retention(&self.connections, &self.ahead, retention).await
    }

    async fn unpin(
        &self,
        tenant: &Tenant,
        retention: &Retention,
        most: u64,
    ) -> Result<Option<LogPin>, StoreError> {
        on_shared!(self.connections, "see what a tenant keeps in the log", |c| {
            unpin::unpin(c, tenant, retention, most)
        })
    }

    fn limits(&self) -> StoreLimits {
        StoreLimits { reads: POOL_SIZE, writes: POOL_SIZE }
    }

    async fn fetch(&self, fetch: Fetch<'_>) -> Result<Fetched, StoreError> {
        on_shared_in_parts!(self.connections, "fetch events", DEADLINE, |c| {
            log::fetch(c, &fetch, &self.pool, Reading::begin())
        })
    }

    async fn fetch_one(&self, fetch: Fetch<'_>) -> Result<Fetched, StoreError> {
        let fetch = Fetch { max_events: 1, ..fetch };
        on_shared!(self.connections, "fetch one event", LONG_DEADLINE, |c| async {
            let mut alone = begin_long(c).await?;
            let part = log::fetch(&mut alone, &fetch, &self.pool, Reading::begin()).await?;
            alone.commit().await?;
            Ok(part.read)
        })
    }

    async fn sketch(&self, fetch: Fetch<'_>) -> Result<Option<Sketch>, StoreError> {
        on_shared!(self.connections, "look at an event", |c| log::sketch(c, &fetch))
    }

    fn recycle(&self, events: Vec<Arc<LogEvent>>) {
        self.pool.recycle(events);
    }

    async fn overtake_limit(&self, longer_than: Duration) -> Position {
        let watch = self.watch.lock().await;
        watch.safe_position.overtake_limit(|writer| {
            watch.writing_since.get(writer).is_some_and(|since| since.elapsed() >= longer_than)
        })
    }

    async fn fetch_overtaking(
        &self,
        fetch: Fetch<'_>,
        safe: Position,
        max_ranges: usize,
    ) -> Result<OvertakingFetch, StoreError> {
        on_shared_in_its_own!(
            self.connections,
            "fetch events past open transactions",
            DEADLINE,
            |c| {
                overtaking::fetch_overtaking(
                    c,
                    &fetch,
                    safe,
                    max_ranges,
                    &self.pool,
                    Reading::begin(),
                )
            }
        )
    }

    async fn fetch_late(&self, late: LateFetch<'_>) -> Result<FetchedLate, StoreError> {
        // Where nobody writes, more is decided than the safe position says, which stops
        // at the last event.
        let decided = Position(self.watch.lock().await.safe_position.decided());
        let late = LateFetch { safe: late.safe.max(decided), ..late };
        on_shared!(self.connections, "look for late events", |c| overtaking::fetch_late(c, &late))
    }

    async fn record_outages(
        &self,
        host: &HostIdentity,
        trouble: Option<&str>,
    ) -> Result<(), StoreError> {
        on_shared!(self.connections, "tell what troubles this host", |c| {
            status::record_outages(c, host, trouble)
        })
    }

    async fn lock_session(&self, host: &HostIdentity) -> Result<Box<dyn LockSession>, StoreError> {
        let (connections, keys) = (Arc::clone(&self.connections), Arc::clone(&self.keys));
        Ok(Box::new(locks::AdvisoryLocks::begin(connections, keys, host).await?))
    }

    async fn make_group(&self, settings: &GroupRegistration) -> Result<(), StoreError> {
        on_shared!(self.connections, "make a group", |c| groups::make(c, settings))
    }

    async fn ensure_group(&self, settings: &GroupRegistration) -> Result<(), StoreError> {
        on_shared!(self.connections, "make a group", LONG_DEADLINE, |c| {
            groups::ensure(c, settings)
        })
    }

    async fn begin_leadership(
        &self,
        group: &GroupName,
        host: &HostIdentity,
    ) -> Result<Leadership, StoreError> {
        let key = self.keys.of(&host.id, group);
        let begun = on_shared!(self.connections, "lead a group", |c| {
            groups::begin_leadership(c, group, host, key)
        })?;
        begun.ok_or_else(|| {
            // Where no key was named, there was none that could not fit.
            if let Some(key) = key {
                self.keys.is_replaced(&host.id, group, key);
            }
            StoreError::Unavailable(format!(
                "cannot lead a group: `{group}` has another lock than the one that this host holds"
            ))
        })
    }

    async fn is_alive_since(&self, host: &str, group: &GroupName) -> Result<bool, StoreError> {
        on_shared!(self.connections, "see whether a host lives", |c| {
            groups::is_alive_since(c, host, group)
        })
    }

    async fn end_leadership(&self, group: &GroupName, epoch: Epoch) -> Result<(), StoreError> {
        on_shared!(self.connections, "end the leadership of a group", |c| {
            groups::end_leadership(c, group, epoch)
        })
    }

    async fn record_work_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
    ) -> Result<Settled, StoreError> {
        on_shared!(self.connections, "record the begin of work", |c| {
            groups::record_work_started(c, group, epoch, settled)
        })
    }

    async fn record_attempt_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
        mark: Mark,
    ) -> Result<Settled, StoreError> {
        on_shared!(self.connections, "record the begin of an attempt", |c| {
            groups::record_attempt_started(c, group, epoch, settled, mark)
        })
    }

    async fn withdraw_attempt(
        &self,
        group: &GroupName,
        epoch: Epoch,
    ) -> Result<Settled, StoreError> {
        on_shared!(self.connections, "forget the begin of an attempt", |c| {
            groups::withdraw_attempt(c, group, epoch)
        })
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, StoreError> {
        on_shared!(self.connections, "settle", |c| settle::settle(c, settlement))
    }

    async fn cursor(&self, group: &GroupName) -> Result<Cursor, StoreError> {
        on_shared!(self.connections, "read a cursor", |c| groups::cursor(c, group))
    }

    async fn redeliveries(&self, group: &GroupName) -> Result<Vec<Redelivery>, StoreError> {
        on_shared!(self.connections, "list redeliveries", |c| redeliveries::list(c, group))
    }

    async fn due(&self, due: DueFetch<'_>) -> Result<Due, StoreError> {
        on_shared!(self.connections, "read what is due", |c| deferred::due(c, &due))
    }

    async fn deferred(&self, group: &GroupName) -> Result<i64, StoreError> {
        on_shared!(self.connections, "count what is deferred", LONG_DEADLINE, |c| {
            deferred::count(c, group)
        })
    }

    async fn fetch_at(
        &self,
        group: &GroupName,
        positions: &[Position],
        max_bytes: usize,
    ) -> Result<Found, StoreError> {
        on_shared_in_parts!(self.connections, "fetch events again", DEADLINE, |c| {
            redeliveries::events(c, group, positions, max_bytes, Reading::begin())
        })
    }

    async fn group_states(&self) -> Result<Vec<GroupControl>, StoreError> {
        let read =
            on_watch!(self, "read the states of the groups", |c, _watch| groups::group_states(c))?;
        Ok(self.said.tell("groups", read))
    }

    async fn state_get(
        &self,
        group: &GroupName,
        scope: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        on_shared!(self.connections, "read state", |c| settle::state_get(c, group, scope, key))
    }

    async fn state_keys(
        &self,
        group: &GroupName,
        scope: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        on_shared!(self.connections, "list state", |c| {
            settle::state_keys(c, group, scope, prefix, limit)
        })
    }

    async fn state_key_count(&self, group: &GroupName) -> Result<i64, StoreError> {
        on_shared!(self.connections, "count the keys of a state", LONG_DEADLINE, |c| {
            settle::state_key_count(c, group)
        })
    }

    async fn status_counted(&self, counting: Counting) -> Result<LogStatus, StoreError> {
        on_shared_in_its_own!(self.connections, "read the status", deadline(counting), |c| {
            status::log_and_groups(c, counting)
        })
    }

    async fn group_status_counted(
        &self,
        group: &GroupName,
        counting: Counting,
    ) -> Result<GroupStatus, StoreError> {
        on_shared_in_its_own!(self.connections, "read a group", deadline(counting), |c| {
            status::group(c, group, counting)
        })
    }

    async fn set_note(&self, groups: &[GroupName], note: Option<&str>) -> Result<(), StoreError> {
        on_shared_patiently!(self.connections, "say something of groups", DEADLINE, |c| {
            groups::set_note(c, groups, note)
        })
    }

    async fn record_trip(
        &self,
        group: &GroupName,
        epoch: Epoch,
        reason: Option<&str>,
    ) -> Result<Settled, StoreError> {
        on_shared!(self.connections, "record that a group tripped", |c| {
            groups::record_trip(c, group, epoch, reason)
        })
    }

    async fn pause(&self, group: &GroupName, reason: &str) -> Result<(), StoreError> {
        on_shared_patiently!(self.connections, "pause a group", DEADLINE, |c| {
            groups::set_state(c, group, GroupState::Paused, Some(reason))
        })
    }

    async fn resume(&self, group: &GroupName) -> Result<(), StoreError> {
        on_shared_patiently!(self.connections, "resume a group", DEADLINE, |c| {
            unpin::resume(c, group, false)
        })
        .map(drop)
    }

    async fn resume_without_what_is_gone(
        &self,
        group: &GroupName,
    ) -> Result<Option<Gone>, StoreError> {
        on_shared_patiently!(self.connections, "resume a group", LONG_DEADLINE, |c| {
            unpin::resume(c, group, true)
        })
    }

    async fn seek_to(
        &self,
        group: &GroupName,
        to: Start,
        exactly: bool,
    ) -> Result<Sought, StoreError> {
        on_shared_patiently!(self.connections, "move a cursor", LONG_DEADLINE, |c| {
            groups::seek(c, group, to, exactly)
        })
    }

    async fn remove_group(
        &self,
        group: &GroupName,
        with_dead_letters: bool,
    ) -> Result<Removed, StoreError> {
        on_shared_patiently!(self.connections, "remove a group", LONG_DEADLINE, |c| {
            groups::remove(c, group, with_dead_letters)
        })
    }

    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        let read = on_shared!(self.connections, "list dead letters", LONG_DEADLINE, |c| {
            dead_letters::list(c, filter)
        })?;
        Ok(self.said.tell("dead letters", read))
    }

    async fn dead_letter_ids(&self, group: &GroupName) -> Result<Vec<DeadLetterId>, StoreError> {
        on_shared!(self.connections, "list dead letters", LONG_DEADLINE, |c| {
            dead_letters::ids(c, group)
        })
    }

    async fn dead_letter(&self, id: DeadLetterId) -> Result<DeadLetter, StoreError> {
        on_shared!(self.connections, "read a dead letter", |c| dead_letters::one(c, id))
    }

    async fn replay(
        &self,
        id: DeadLetterId,
        data: Option<&[u8]>,
        digest: Option<&Digest>,
    ) -> Result<Replayed, StoreError> {
        on_shared_patiently!(self.connections, "replay a dead letter", DEADLINE, |c| {
            dead_letters::replay(c, id, data, digest)
        })
    }

    async fn replay_some(
        &self,
        group: &GroupName,
        after: DeadLetterId,
        up_to: DeadLetterId,
        limit: usize,
        digest: Option<&Digest>,
    ) -> Result<Vec<Replayed>, StoreError> {
        on_shared_patiently!(self.connections, "replay dead letters", LONG_DEADLINE, |c| {
            dead_letters::replay_some(c, group, after, up_to, limit, digest)
        })
    }

    async fn discard(&self, id: DeadLetterId) -> Result<(), StoreError> {
        on_shared_patiently!(self.connections, "discard a dead letter", DEADLINE, |c| {
            dead_letters::discard(c, id)
        })
    }

    async fn deploy(&self, new: NewVersion<'_>) -> Result<Deployment, StoreError> {
        let digest = Digest::of(new.component);
        on_shared_patiently!(self.connections, "deploy a component", LONG_DEADLINE, |c| {
            deployments::deploy(c, new, &digest)
        })
    }

    async fn rollback(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
        from: Option<VersionNumber>,
    ) -> Result<Version, StoreError> {
        on_shared_patiently!(self.connections, "roll a handler back", DEADLINE, |c| {
            deployments::rollback(c, tenant, handler, from)
        })
    }

    async fn versions(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
    ) -> Result<Vec<Version>, StoreError> {
        on_shared!(self.connections, "list the versions of a handler", |c| {
            deployments::versions(c, tenant, handler)
        })
    }

    async fn deployed(&self) -> Result<Vec<Deployed>, StoreError> {
        let read = on_watch!(self, "see what is deployed", |c, _watch| deployments::deployed(c))?;
        Ok(self.said.tell("deployments", read))
    }

    async fn component(&self, tenant: &Tenant, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        let bytes = on_shared!(self.connections, "read a component", LONG_DEADLINE, |c| {
            deployments::component(c, tenant, digest)
        })?;
        deployment::intact(digest, bytes).await
    }

    async fn digests(
        &self,
        tenant: &Tenant,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Digest>, StoreError> {
        on_shared!(self.connections, "look for components", |c| {
            deployments::digests(c, tenant, prefix, limit)
        })
    }

    async fn tenant_dead_letters(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        on_shared!(self.connections, "count dead letters", LONG_DEADLINE, |c| {
            tenants::dead_letters(c, tenant)
        })
    }

    async fn tenant_dead_letter_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        on_shared!(self.connections, "measure dead letters", LONG_DEADLINE, |c| {
            tenants::dead_letter_bytes(c, tenant)
        })
    }

    async fn tenant_state_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        on_shared!(self.connections, "measure state", LONG_DEADLINE, |c| {
            tenants::state_bytes(c, tenant)
        })
    }
}

async fn publish(
    connection: &mut PgConnection,
    tenant: &Tenant,
    events: &[Event],
) -> Result<Vec<Position>, PostgresError> {
    if log::is_one_statement(events) {
        return log::append(connection, tenant, events).await;
    }
    let mut transaction = connection.begin().await?;
    let positions = log::append(&mut transaction, tenant, events).await?;
    transaction.commit().await?;
    Ok(positions)
}

/// Exact numbers take as long as there is to count; each statement is still bounded.
fn deadline(counting: Counting) -> Duration {
    if counting == Counting::EXACT { EXACT_DEADLINE } else { LONG_DEADLINE }
}

fn went_back(WentBack { from, to }: WentBack) -> StoreError {
    StoreError::Changed(format!(
        "the log's sequence stands at {to} and stood at {from} before: somebody moved it back, or the server was put back to an older state; what was known of the log is forgotten, and the database is checked before anything more is delivered"
    ))
}
