//! Asks the server for a look at the end of the log.

use std::collections::BTreeSet;

use sqlx::{PgConnection, Row};

use super::columns::time;
use super::error::Broken;
use super::horizon::{Horizon, Look};
use super::incarnation::Incarnation;

/// A look, and the incarnation that it is a look at: `None` where no host has begun it.
pub(super) struct Looked {
    pub(super) incarnation: Option<Incarnation>,
    pub(super) look: Look,
}

/// One round trip; the function's statements run one after the other.
pub(super) async fn look(
    connection: &mut PgConnection,
    horizon: &Horizon,
) -> Result<Looked, Broken> {
    let row = sqlx::query(
        "SELECT last_position, writers, last_event, token, started_at
         FROM event_host.look_at_the_end($1)",
    )
    .bind(horizon.decided())
    .fetch_one(connection)
    .await?;
    let writers: Vec<String> = row.try_get_unchecked(1)?;
    let token: Option<String> = row.try_get_unchecked(3)?;
    let started_at = time(&row, 4)?;
    Ok(Looked {
        incarnation: token.map(|token| Incarnation { token, started_at }),
        look: Look {
            last_position: row.try_get_unchecked(0)?,
            writers: BTreeSet::from_iter(writers),
            last_event: row.try_get_unchecked(2)?,
        },
    })
}
