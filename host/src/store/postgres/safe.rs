//! Asks the server for a look at the end of the log.

use std::collections::BTreeSet;

use sqlx::{PgConnection, Row};

use super::error::Broken;
use super::horizon::{Horizon, Look};

/// One round trip; the function's statements run one after the other.
pub(super) async fn look(connection: &mut PgConnection, horizon: &Horizon) -> Result<Look, Broken> {
    let row = sqlx::query(
        "SELECT last_position, writers, last_event FROM event_host.look_at_the_end($1)",
    )
    .bind(horizon.decided())
    .fetch_one(connection)
    .await?;
    let writers: Vec<String> = row.try_get_unchecked(1)?;
    Ok(Look {
        last_position: row.try_get_unchecked(0)?,
        writers: BTreeSet::from_iter(writers),
        last_event: row.try_get_unchecked(2)?,
    })
}
