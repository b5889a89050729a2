//! Asks the server for a sample of the end of the log.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::{PgConnection, Row};

use super::columns::time;
use super::error::PostgresError;
use super::incarnation::Incarnation;
use super::safe_position::{SafePosition, Sample};
use event_host_core::restart::sleep_precisely;

/// A sample, and the incarnation that it is of: `None` where no host has begun it.
pub(super) struct LogEnd {
    pub(super) incarnation: Option<Incarnation>,
    pub(super) sample: Sample,
}

/// One round trip; the function's statements run one after the other. Who writes is
/// asked only where it is wanted: that reads the locks of the whole server.
pub(super) async fn sample_log_end(
    connection: &mut PgConnection,
    safe_position: &SafePosition,
    with_writers: bool,
) -> Result<LogEnd, PostgresError> {
    let row = sqlx::query(
        "SELECT last_position, writers, last_event, token, started_at, filled_to
         FROM event_host.look_at_the_end($1, $2)",
    )
    .bind(safe_position.decided())
    .bind(with_writers)
    .fetch_one(connection)
    .await?;
    let writers: Option<Vec<String>> = row.try_get_unchecked(1)?;
    let token: Option<String> = row.try_get_unchecked(3)?;
    let started_at = time(&row, 4)?;
    Ok(LogEnd {
        incarnation: token.map(|token| Incarnation { token, started_at }),
        sample: Sample {
            last_position: row.try_get_unchecked(0)?,
            filled_to: row.try_get_unchecked(5)?,
            writers: writers.map(BTreeSet::from_iter),
            last_event: row.try_get_unchecked(2)?,
        },
    })
}

/// Waits before the next sample, if that is worth a thread.
pub(super) async fn pause(time: Duration) {
    const SHORTEST: Duration = Duration::from_micros(50);
    if time >= SHORTEST {
        sleep_precisely(time).await;
    }
}
