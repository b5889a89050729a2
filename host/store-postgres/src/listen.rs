//! Hints that something was published: `NOTIFY event_host`.
//!
//! A hint only saves the wait for the next poll. Nobody has to send one and
//! nothing relies on one, so a listener that broke is replaced without a message
//! to anybody.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Executor, PgConnection};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::connection::Connections;
use super::error::PostgresError;
use super::session::SESSION;
use event_host_core::restart::spawn_with_restart;

/// The channel.
const CHANNEL: &str = "event_host";

const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// Gives a hint.
pub(super) async fn send_hint(connection: &mut PgConnection) -> Result<(), PostgresError> {
    sqlx::query("SELECT pg_notify($1, '')").bind(CHANNEL).execute(connection).await?;
    Ok(())
}

/// Listens until it is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    hints: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
}

impl Listener {
    pub(super) fn start(connections: Arc<Connections>) -> Self {
        let hints = Arc::new(Notify::new());
        let theirs = Arc::clone(&hints);
        let listening = move || listen(Arc::clone(&connections), Arc::clone(&theirs));
        Self { hints, _task: spawn_with_restart("the listener for hints", listening) }
    }

    /// Returns after the next hint, or at once if there was one since the last
    /// time.
    pub(super) async fn wait_for_hint(&self) {
        self.hints.notified().await;
    }
}

async fn listen(connections: Arc<Connections>, hints: Arc<Notify>) {
    let mut delay = FIRST_DELAY;
    loop {
        match listen_once(&connections, &hints, &mut delay).await {
            Ok(()) => debug!("the listener's connection ended; making another"),
            Err(why) => debug!("no hints for now: {why}"),
        }
        tokio::time::sleep(delay.mul_f64(0.5 + fastrand::f64())).await;
        delay = (delay * 2).min(LONGEST_DELAY);
    }
}

async fn listen_once(
    connections: &Connections,
    hints: &Notify,
    delay: &mut Duration,
) -> Result<(), sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(5))
        .max_lifetime(None)
        .idle_timeout(None)
        // Above all, that it may be idle.
        .after_connect(|connection, _| {
            Box::pin(async move { connection.execute(SESSION).await.map(drop) })
        })
        .connect_lazy_with(connections.direct().clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    *delay = FIRST_DELAY;
    while listener.try_recv().await?.is_some() {
        hints.notify_one();
    }
    Ok(())
}
