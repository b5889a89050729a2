//! The log as delivery and publishers see it; the statements lie beside it, by subject.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Connection, PgConnection};
use tokio::time::Instant;
use tracing::debug;

use super::blockers::HELD_UP_AFTER;
use super::connection::{DEADLINE, LONG_DEADLINE};
use super::error::PostgresError;
use super::listen::Listener;
use super::on_shared::{on_shared, on_shared_in_its_own, on_shared_in_parts};
use super::piece::begin_long;
use super::reading::Reading;
use super::watch::{on_watch, went_back};
use super::{
    POOL_SIZE, PostgresStore, blockers, guards, listen, log, overtaking, pooler, redeliveries,
    retention, sample, session, unpin,
};
use event_host_core::event::{Event, GroupName, LogEvent, Position, Tenant};
use event_host_store::{
    Blocker, Enforced, EventLog, Fetch, Fetched, FetchedLate, Found, LateFetch, LogPin,
    OvertakingFetch, Retention, Sketch, StoreError, StoreLimits,
};

#[async_trait]
impl EventLog for PostgresStore {
    async fn check(&self) -> Result<(), StoreError> {
        let server = self.connections.server();
        let poolers = pooler::check(&self.connections, &server);
        self.connections.within("look for a pooler", DEADLINE, poolers).await?;
        on_shared!(self.connections, "read the settings", |c| session::check(c, &server))?;
        on_shared!(self.connections, "check the database", |c| guards::check(c, &server))
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
                Some(since) if since.elapsed() >= HELD_UP_AFTER => blockers::holders(c).await,
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
