//! Asks the server for a look at the end of the log.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::{PgConnection, Row};

use super::columns::time;
use super::error::Broken;
use super::horizon::{Horizon, Look};
use super::incarnation::Incarnation;
use crate::restart::sleep_precisely;

/// A look, and the incarnation that it is a look at: `None` where no host has begun it.
pub(super) struct Looked {
    pub(super) incarnation: Option<Incarnation>,
    pub(super) look: Look,
}

/// One round trip; the function's statements run one after the other. Who writes is
/// asked only where it is wanted: that reads the locks of the whole server.
pub(super) async fn look(
    connection: &mut PgConnection,
    horizon: &Horizon,
    with_writers: bool,
) -> Result<Looked, Broken> {
    let row = sqlx::query(
        "SELECT last_position, writers, last_event, token, started_at, filled_to
         FROM event_host.look_at_the_end($1, $2)",
    )
    .bind(horizon.decided())
    .bind(with_writers)
    .fetch_one(connection)
    .await?;
    let writers: Option<Vec<String>> = row.try_get_unchecked(1)?;
    let token: Option<String> = row.try_get_unchecked(3)?;
    let started_at = time(&row, 4)?;
    Ok(Looked {
        incarnation: token.map(|token| Incarnation { token, started_at }),
        look: Look {
            last_position: row.try_get_unchecked(0)?,
            filled_to: row.try_get_unchecked(5)?,
            writers: writers.map(BTreeSet::from_iter),
            last_event: row.try_get_unchecked(2)?,
        },
    })
}

/// Waits before the next look, if that is worth a thread.
pub(super) async fn pause(time: Duration) {
    const SHORTEST: Duration = Duration::from_micros(50);
    if time >= SHORTEST {
        sleep_precisely(time).await;
    }
}
