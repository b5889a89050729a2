//! What must be true of a database before anything is delivered from it. Each
//! fault would lose or repeat events in silence.

use sqlx::{Connection, PgConnection, Row};

use super::error::PostgresError;
use event_host_core::event::{GroupName, Position};
use event_host_store::driver::refusals;
use event_host_store::{Adopted, StoreError};

/// Refuses a standby server, a database that cannot keep every text, a log that
/// hands its positions out ahead or again, cursors beyond the log, and a database
/// that was restored from elsewhere.
pub(super) async fn check(
    connection: &mut PgConnection,
    server: &str,
) -> Result<(), PostgresError> {
    let row = sqlx::query(
        "SELECT pg_is_in_recovery(),
                current_setting('server_version_num')::int,
                (SELECT q.seqcache FROM pg_sequence q
                 WHERE q.seqrelid = 'event_host.events_position_seq'::regclass),
                (SELECT max(position) FROM event_host.events),
                event_host.last_drawn(),
                current_setting('server_encoding')",
    )
    .fetch_one(&mut *connection)
    .await?;
    let unusable = |why: String| Err(StoreError::Unusable(why).into());
    if row.try_get_unchecked::<bool, _>(0)? {
        return unusable(format!(
            "{server} is a standby server, which only reads: connect to the primary"
        ));
    }
    let version: i32 = row.try_get_unchecked(1)?;
    if version < 140_000 {
        return unusable(format!(
            "{server} runs PostgreSQL {}, and the host needs 14 or later",
            version / 10_000
        ));
    }
    let encoding: String = row.try_get_unchecked(5)?;
    if encoding != "UTF8" {
        return unusable(format!(
            "{server} keeps texts in {encoding}, in which those of events and failures cannot all be stored: make a database with `CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`"
        ));
    }
    let cache: i64 = row.try_get_unchecked(2)?;
    if cache != 1 {
        return unusable(format!(
            "the sequence event_host.events_position_seq of {server} has a cache of {cache}: a session would use positions that it drew before events which were handled long ago; run `ALTER SEQUENCE event_host.events_position_seq CACHE 1`, and restart the sessions that publish"
        ));
    }
    let last: Option<i64> = row.try_get_unchecked(3)?;
    let drawn: i64 = row.try_get_unchecked(4)?;
    if let Some(last) = last.filter(|last| *last > drawn) {
        return unusable(format!(
            "the sequence event_host.events_position_seq of {server} stands at {drawn}, and the log has an event at position {last}: positions would be handed out again; run `SELECT setval('event_host.events_position_seq', {last})`"
        ));
    }
    // The cursors are those of the statement's snapshot, and the sequence is read
    // after that: the log may grow meanwhile, and a cursor with it.
    let beyond = sqlx::query(
        "SELECT g.name, g.position, s.drawn
         FROM event_host.consumer_groups g,
              (SELECT event_host.last_drawn() AS drawn) s
         WHERE g.position > s.drawn ORDER BY g.name LIMIT 1",
    )
    .fetch_optional(&mut *connection)
    .await?;
    if let Some(row) = beyond {
        let group = GroupName::shown(row.try_get_unchecked(0)?);
        let cursor = Position(row.try_get_unchecked(1)?);
        let drawn = Position(row.try_get_unchecked(2)?);
        return Err(refusals::cursor_beyond_the_log(&group, cursor, drawn).into());
    }
    is_at_home(connection, server).await
}

/// The first host that looks makes the place where it finds the log its home.
async fn is_at_home(connection: &mut PgConnection, server: &str) -> Result<(), PostgresError> {
    let row = sqlx::query(
        "WITH here AS (SELECT system_identifier FROM pg_control_system()),
              settled AS (
                  INSERT INTO event_host.home (system_identifier) SELECT system_identifier FROM here
                  ON CONFLICT (only_one) DO NOTHING)
         SELECT here.system_identifier, home.system_identifier
         FROM here LEFT JOIN event_host.home ON true",
    )
    .fetch_one(connection)
    .await?;
    let here: i64 = row.try_get_unchecked(0)?;
    let home: Option<i64> = row.try_get_unchecked(1)?;
    match home {
        Some(home) if home != here => Err(StoreError::Unusable(format!(
            "{server} was restored from another one: its log was written in cluster {home}, and this is cluster {here}. What its groups have not settled may have been handled there since. If this database takes over, run `host adopt`; if it is a copy, run nothing on it"
        ))
        .into()),
        _ => Ok(()),
    }
}

/// Makes this cluster the log's home and raises every group's epoch, so that
/// nothing that was open before can still be settled here. Gives the cluster it
/// came from, if it came from another one, and the groups with their cursors.
pub(super) async fn adopt(connection: &mut PgConnection) -> Result<Adopted, PostgresError> {
    let mut transaction = connection.begin().await?;
    let before: Option<i64> =
        sqlx::query_scalar("SELECT system_identifier FROM event_host.home FOR UPDATE")
            .fetch_optional(&mut *transaction)
            .await?;
    let here: i64 = sqlx::query_scalar(
        "INSERT INTO event_host.home (system_identifier)
         SELECT system_identifier FROM pg_control_system()
         ON CONFLICT (only_one) DO UPDATE
         SET system_identifier = excluded.system_identifier, adopted_at = clock_timestamp()
         RETURNING system_identifier",
    )
    .fetch_one(&mut *transaction)
    .await?;
    let mut groups = Vec::new();
    if before.is_some_and(|before| before != here) {
        let rows = sqlx::query(
            "UPDATE event_host.consumer_groups
             SET epoch = epoch + 1, leader = NULL, leader_since = NULL, leader_key = NULL
             RETURNING name, position,
                       CASE WHEN part_of IS NULL THEN partitions = 1
                            ELSE partitions > 1 AND partition < partitions END",
        )
        .fetch_all(&mut *transaction)
        .await?;
        for row in &rows {
            if row.try_get_unchecked(2)? {
                let name = GroupName::shown(row.try_get_unchecked(0)?);
                groups.push((name, Position(row.try_get_unchecked(1)?)));
            }
        }
        groups.sort();
    }
    transaction.commit().await?;
    Ok(Adopted { from: before.filter(|before| *before != here), here, groups })
}
