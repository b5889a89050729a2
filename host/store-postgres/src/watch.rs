//! What watches the end of the log: one connection of the host, and what its samples tell.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::Instant;

use super::error::PostgresError;
use super::incarnation::{Incarnation, Known};
use super::safe_position::{SafePosition, WentBack};
use super::{PostgresStore, incarnation, safe_position, sample};
use event_host_core::event::Position;
use event_host_store::StoreError;

/// What a transaction that has drawn a position usually needs at most until it is
/// committed.
const COMMIT_TAKES: Duration = Duration::from_millis(5);

/// How long after a position was drawn the watcher asks who writes, and how long it waits
/// between two such questions.
const ASKS_AFTER: Duration = Duration::from_millis(2);

/// How many times as long as the last question took the watcher waits before the next.
const ASKS_COST: u32 = 10;

/// Number of undecided positions above which the watcher asks without waiting: a sample
/// finds at most 1,000 that hold an event.
const FAR_BEHIND: i64 = 1_000;

/// What samples the end of the log, with a connection of its own: groups whose
/// statements wait for something must not keep the others from seeing events.
#[derive(Default)]
pub(super) struct Watch {
    pub(super) connection: Option<PgConnection>,
    /// What the rest is known of.
    pub(super) incarnation: Option<Incarnation>,
    pub(super) safe_position: SafePosition,
    /// Above which position it has been undecided what comes, and since when.
    pub(super) undecided: Option<(i64, Instant)>,
    /// When it was last asked who writes, and how long that took.
    pub(super) asked: Option<(Instant, Duration)>,
    /// Since when each transaction has been seen that may hold it up.
    pub(super) writing_since: BTreeMap<String, Instant>,
    /// Since when the safe position has stood still because somebody holds it.
    pub(super) held_since: Option<Instant>,
    /// Since when somebody has held it without a break, whether it moved or not.
    pub(super) contended_since: Option<Instant>,
}

impl Watch {
    pub(super) fn observe(&mut self, sample: safe_position::Sample) -> Result<Position, WentBack> {
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
    pub(super) fn asks_in(&self) -> Option<Duration> {
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
    pub(super) fn is_about_to_move(&self) -> bool {
        self.contended_since.is_some_and(|since| since.elapsed() < COMMIT_TAKES)
    }
}

/// Does something on the watcher's connection.
macro_rules! on_watch {
    ($store:expr, $what:expr, |$connection:ident, $watch:ident| $work:expr) => {{
        let store: &$crate::PostgresStore = $store;
        let work = async {
            let mut watch = store.watch.lock().await;
            // Taken out, so that a caller that is dropped in the middle closes it.
            let mut connection = match watch.connection.take() {
                Some(connection) => connection,
                None => store.connections.connect_as_shared().await?,
            };
            let (result, _) = match store
                .connections
                .begin_on(&mut connection, $crate::session::Patience::Short)
                .await
            {
                Err(broken) => (Err(broken), false),
                Ok(mut piece) => {
                    let result: Result<_, $crate::error::PostgresError> = {
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
        store.connections.within($what, $crate::connection::DEADLINE, work).await
    }};
}
pub(super) use on_watch;

impl PostgresStore {
    /// Samples the end of the log, and begins the incarnation that it is in, if nobody
    /// has.
    ///
    /// In another one than before nothing is known of it: it says so once, and lends no
    /// connection until it is asked again, so that whoever asks has forgotten what it
    /// knew, too.
    pub(super) async fn sample(
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
    pub(super) fn forget(&self, watch: &mut Watch, why: StoreError) -> PostgresError {
        *watch = Watch::default();
        self.connections.know(Known::Changing);
        why.into()
    }
}

pub(super) fn went_back(WentBack { from, to }: WentBack) -> StoreError {
    StoreError::Changed(format!(
        "the log's sequence stands at {to} and stood at {from} before: somebody moved it back, or the server was put back to an older state; what was known of the log is forgotten, and the database is checked before anything more is delivered"
    ))
}
