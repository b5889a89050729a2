//! What PostgreSQL promises: the suite, and what it must do beyond it, with a
//! real server and sessions that are held at known points.

mod connections;
mod deployments;
mod errors;
mod generated;
mod guards;
mod incarnations;
mod ingest;
mod large;
mod limits;
mod locks;
mod migrations;
mod overtaking;
mod plans;
mod publishing;
mod replays;
mod retention;
mod roles;
mod rows;
mod safe_position;
mod sessions;
mod settling;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use test_databases::Database;
use test_postgres::Server;

use super::PostgresStore;
use super::connection::{Address, Connections};
use event_host_core::event::{Event, GroupName, LogEvent, Position, Tenant};
use event_host_core::failure::FailureKind;
use event_host_store::suite::{DeliveryDatabase, TestDatabase};
use event_host_store::traits::*;
use event_host_store::{
    Claim, FailureRecord, Fetch, GroupRegistration, HostIdentity, LockSession, NewDeadLetter,
    Redelivery, Release, Settlement, StoreError, Subscription,
};

/// How long whatever is waited for may take.
const PATIENCE: Duration = Duration::from_secs(20);

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
            store_at(&url).migrate().await.unwrap();
        })
        .await;
        Self { database }
    }

    fn store(&self) -> PostgresStore {
        store_at(self.database.url())
    }

    /// A store whose statements wait for locks for as long as it takes, so that a
    /// test can hold them.
    fn patient_store(&self) -> PostgresStore {
        let address = Address::read(self.database.url().into()).unwrap();
        let connections = Connections::new(address, None).wait_for_ever();
        PostgresStore { connections: Arc::new(connections), ..self.store() }
    }

    /// A store whose sessions are not its own, as behind a pooler, but for the one that
    /// holds its locks.
    fn pooled_store(&self) -> PostgresStore {
        let url = self.database.url();
        PostgresStore::new(url.into(), Some(url.into())).unwrap()
    }

    /// A session as any other program would open it.
    async fn raw(&self) -> PgConnection {
        session_at(self.database.url()).await
    }
}

#[async_trait]
impl DeliveryDatabase for PostgresDatabase {
    async fn delivery(&self) -> Arc<dyn DeliveryStore> {
        self.handle().await
    }

    async fn drawn_up_to(&self, position: i64) {
        draw(&mut self.raw().await, position).await;
    }

    fn sees_what_is_wrong_with(&self, event: &Event) -> bool {
        // U+FFFD stands for a NUL.
        !format!("{event:?}").contains("\\0")
    }

    fn kept(&self, text: &str) -> String {
        text.replace('\0', "\u{fffd}")
    }
}

#[async_trait]
impl TestDatabase for PostgresDatabase {
    async fn handle(&self) -> Arc<dyn Store> {
        Arc::new(self.store())
    }
}

event_host_store::store_suite!(PostgresDatabase::new().await);

fn store_at(url: &str) -> PostgresStore {
    PostgresStore::new(url.into(), None).unwrap()
}

async fn session_at(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap()
}

/// A server of the test's own, with the schema in its database `postgres`.
async fn server_of_its_own() -> (Server, PostgresStore) {
    let server = Server::start(&[]).unwrap();
    let store = store_at(&server.url("postgres"));
    store.migrate().await.unwrap();
    (server, store)
}

/// Runs statements, as they stand.
async fn run(session: &mut PgConnection, sql: impl Into<String>) {
    let sql = sql.into();
    try_to_run(session, &sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn try_to_run(session: &mut PgConnection, sql: impl Into<String>) -> sqlx::Result<()> {
    session.execute(sqlx::raw_sql(AssertSqlSafe(sql.into()))).await.map(drop)
}

/// The only value of the only row.
async fn value<T>(session: &mut PgConnection, sql: impl Into<String>) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    sqlx::query_scalar(AssertSqlSafe(sql.into())).fetch_one(session).await.unwrap()
}

async fn pid(session: &mut PgConnection) -> i32 {
    value(session, "SELECT pg_backend_pid()").await
}

/// Looks again and again until it is so, for what another session does a little
/// later.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let looked = tokio::time::timeout(PATIENCE, looking).await;
    assert!(looked.is_ok(), "not within {PATIENCE:?}: {what}");
}

/// Waits until so many sessions of the host wait for a lock of somebody else's.
async fn until_waiting(session: &mut PgConnection, count: i64) {
    until(&format!("{count} wait for a lock"), async || {
        // A transaction sees the activity of its first look.
        run(session, "SELECT pg_stat_clear_snapshot()").await;
        let waiting: i64 = value(
            session,
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'event-host'
               AND wait_event_type = 'Lock'",
        )
        .await;
        waiting == count
    })
    .await;
}

/// Has inserts into a table wait, in the middle of their statements, for as long
/// as somebody holds the advisory lock 42.
async fn hold_inserts_into(session: &mut PgConnection, table: &str) {
    run(
        session,
        format!(
            "CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NEW; END $$;
             CREATE TRIGGER hold BEFORE INSERT ON event_host.{table}
             FOR EACH ROW EXECUTE FUNCTION public.hold();
             SELECT pg_advisory_lock(42)"
        ),
    )
    .await;
}

async fn let_inserts_go(session: &mut PgConnection) {
    run(session, "SELECT pg_advisory_unlock(42)").await;
}

fn says(error: &StoreError, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
}

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

fn host(name: &str) -> HostIdentity {
    HostIdentity { id: format!("id of {name}"), hostname: name.to_owned(), pid: 4_711 }
}

fn event(event_type: &str) -> Event {
    Event {
        data: Some(b"data".to_vec()),
        ..Event::new("1", "/tests", event_type, jiff::Timestamp::UNIX_EPOCH)
    }
}

/// Has positions be drawn up to there, as by whoever rolls back.
async fn draw(session: &mut PgConnection, up_to: i64) {
    run(session, format!("SELECT setval('event_host.events_position_seq', {up_to})")).await;
}

async fn publish(store: &PostgresStore, event_type: &str) -> Position {
    store.publish(&Tenant::none(), &[event(event_type)]).await.unwrap()[0]
}

/// The safe position once it stands still: a look gives what it knows already while it
/// still waits for the rest.
async fn safe(store: &PostgresStore) -> Position {
    let mut safe = store.safe_position().await.unwrap();
    loop {
        let next = store.safe_position().await.unwrap();
        if next == safe {
            return safe;
        }
        safe = next;
    }
}

/// What a group of all events is given, from the log's beginning, up to the
/// position that is safe now.
async fn seen(store: &PostgresStore) -> Vec<LogEvent> {
    let up_to = safe(store).await;
    let mut events = Vec::new();
    let mut after = Position::ZERO;
    while after < up_to {
        let fetched = store.fetch(all_after(&group("g"), after, up_to)).await.unwrap();
        assert!(fetched.scanned_to > after, "it goes on");
        after = fetched.scanned_to;
        events.extend(fetched.events.into_iter().map(Arc::unwrap_or_clone));
    }
    events
}

fn all_after(group: &GroupName, after: Position, up_to: Position) -> Fetch<'_> {
    static ALL: std::sync::LazyLock<Subscription> = std::sync::LazyLock::new(Subscription::all);
    static NONE: std::sync::LazyLock<Tenant> = std::sync::LazyLock::new(Tenant::none);
    let (max_events, max_bytes) = (1_000, usize::MAX);
    Fetch {
        group,
        tenant: &NONE,
        subscription: &ALL,
        partition: None,
        after,
        up_to,
        max_events,
        max_bytes,
    }
}

/// The types of what [`seen`] gives.
async fn types(store: &PostgresStore) -> Vec<String> {
    seen(store).await.into_iter().map(|event| event.event.event_type).collect()
}

/// The first settlement of a group that has just got its first leader.
fn first_settlement(name: &str, position: i64) -> Settlement {
    Settlement {
        group: group(name),
        epoch: event_host_core::event::Epoch(1),
        number: 1,
        position: Position(position),
        head: None,
        dead_letters: Vec::new(),
        emits: Vec::new(),
        state: Vec::new(),
        redeliveries: Vec::new(),
        redelivered: Vec::new(),
        failures: None,
        undecided: None,
        handled: 0,
        mark: None,
        deferred: Vec::new(),
    }
}

fn redelivery(position: i64, attempt: u32) -> Redelivery {
    Redelivery {
        position: Position(position),
        attempt: event_host_core::event::Attempt(attempt),
        due_at: jiff::Timestamp::UNIX_EPOCH,
        key: Some("customer-7".to_owned()),
        failure: Some(FailureRecord::new(FailureKind::Retry, "no answer")),
        late: false,
    }
}

/// Makes a group of all events and leads it for the first time.
async fn led(store: &PostgresStore, name: &str) {
    store.ensure_group(&settings(name)).await.unwrap();
    let leadership = store.begin_leadership(&group(name), &host("one")).await.unwrap();
    assert_eq!(leadership.epoch.0, 1);
}

fn dead(event: LogEvent) -> NewDeadLetter {
    NewDeadLetter {
        event,
        attempts: 5,
        failure: FailureRecord::new(FailureKind::Reject, "no such customer"),
        digest: "sha256:0123".to_owned(),
        dead_at: jiff::Timestamp::UNIX_EPOCH,
    }
}
