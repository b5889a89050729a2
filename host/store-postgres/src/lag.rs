//! What groups have before them: reads the parts of the log that
//! [`backlog`](event_host_store::driver::backlog) asks for.
//!
//! The server puts together what is alike, so that a part takes no more of the network
//! than its positions and times do.

use std::collections::HashMap;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::columns::{Time, optional_time};
use super::error::PostgresError;
use super::log::{Types, bind_partition, in_partition, partition_hash, receives};
use event_host_core::event::{GroupName, Partition, Position, Tenant};
use event_host_store::driver::backlog::{Backlog, Class, Part, Seen};
use event_host_store::{Counting, Subscription};

/// How a group or a partition reads the log.
#[derive(Clone, Copy)]
pub(super) struct Reads<'a> {
    pub(super) name: &'a GroupName,
    pub(super) tenant: &'a Tenant,
    pub(super) subscription: &'a Subscription,
    pub(super) partition: Option<Partition>,
    pub(super) after: Position,
}

/// Reads as much of the log as is wanted. In one snapshot, so that all of it is of one
/// moment.
pub(super) async fn read(
    connection: &mut PgConnection,
    backlog: &mut Backlog,
    groups: &HashMap<&str, Reads<'_>>,
    counting: Counting,
) -> Result<(), PostgresError> {
    while let Some(wanted) = backlog.next() {
        let part = part(connection, wanted, backlog.is_split()).await?;
        backlog.take(part);
        if counting != Counting::EXACT {
            break;
        }
    }
    let far = backlog.far();
    if !far.is_empty() {
        for (name, first) in beginnings(connection, far, backlog.is_split()).await? {
            backlog.first(&name, first);
        }
    }
    let unknown = backlog.unknown();
    let looked_at = counting.search(unknown.len());
    for name in unknown {
        if let Some(group) = groups.get(name.as_str()) {
            let first = first(connection, group, looked_at).await?;
            let published_at = first.map(|row| optional_time(&row, 0)).transpose()?.flatten();
            backlog.begins(&name, published_at);
        }
    }
    Ok(())
}

/// The last so many events above a position, and at or below another.
async fn part(
    connection: &mut PgConnection,
    (after, up_to, most): (Position, Position, i64),
    is_split: bool,
) -> Result<Part, PostgresError> {
    let rows = sqlx::query(concat!(
        "SELECT tenant, deliver_to, type,
                array_agg(position), array_agg(published_at), array_agg(hash)
         -- A client may have said any time, and infinity.
         FROM (SELECT tenant, deliver_to, type, position,
                      greatest(least(published_at, now()), 'epoch') AS published_at,
                      CASE WHEN $4 THEN ",
        partition_hash!(),
        " ELSE 0 END AS hash
               FROM event_host.events WHERE position > $1 AND position <= $2
               ORDER BY position DESC LIMIT $3) part
         GROUP BY tenant, deliver_to, type"
    ))
    .bind(after.0)
    .bind(up_to.0)
    .bind(most)
    .bind(is_split)
    .fetch_all(connection)
    .await?;
    let mut part = Part::default();
    for row in &rows {
        let class = Class {
            tenant: row.try_get_unchecked(0)?,
            deliver_to: row.try_get_unchecked(1)?,
            event_type: row.try_get_unchecked(2)?,
        };
        let positions: Vec<i64> = row.try_get_unchecked(3)?;
        let times: Vec<Time> = row.try_get_unchecked(4)?;
        let hashes: Vec<i64> = row.try_get_unchecked(5)?;
        let events = positions.into_iter().zip(times).zip(hashes);
        let seen = |((position, Time(published_at)), hash): ((i64, Time), i64)| Seen {
            position: Position(position),
            published_at,
            hash: hash.unsigned_abs(),
        };
        part.add_all(class, events.map(seen));
    }
    Ok(part)
}

/// The first event above each of these cursors, whoever receives it.
pub(crate) const BEGINNINGS: &str = concat!(
    "SELECT e.tenant, e.deliver_to, e.type, e.position,
            greatest(least(e.published_at, now()), 'epoch'), CASE WHEN $2 THEN ",
    partition_hash!(),
    " ELSE 0 END
     FROM unnest($1::bigint[]) WITH ORDINALITY AS c (after, place)
     LEFT JOIN LATERAL (
         SELECT * FROM event_host.events WHERE position > c.after ORDER BY position LIMIT 1) e
       ON true
     ORDER BY c.place"
);

/// The first event above the cursor of each of these, whoever receives it: one look at an
/// index each, in one statement.
async fn beginnings(
    connection: &mut PgConnection,
    far: Vec<(GroupName, Position)>,
    is_split: bool,
) -> Result<Vec<(GroupName, Option<(Class, Seen)>)>, PostgresError> {
    let cursors: Vec<i64> = far.iter().map(|(_, cursor)| cursor.0).collect();
    let rows = sqlx::query(BEGINNINGS).bind(cursors).bind(is_split).fetch_all(connection).await?;
    let mut beginnings = Vec::with_capacity(far.len());
    for ((name, _), row) in far.into_iter().zip(&rows) {
        let position: Option<i64> = row.try_get_unchecked(3)?;
        let first = match position {
            None => None,
            Some(position) => {
                let class = Class {
                    tenant: row.try_get_unchecked(0)?,
                    deliver_to: row.try_get_unchecked(1)?,
                    event_type: row.try_get_unchecked(2)?,
                };
                let Time(published_at) = row.try_get_unchecked(4)?;
                let hash: i64 = row.try_get_unchecked(5)?;
                let hash = hash.unsigned_abs();
                Some((class, Seen { position: Position(position), published_at, hash }))
            }
        };
        beginnings.push((name, first));
    }
    Ok(beginnings)
}

/// When the first event was published that one receives of the next so many in the log.
async fn first(
    connection: &mut PgConnection,
    group: &Reads<'_>,
    looked_at: i64,
) -> Result<Option<PgRow>, PostgresError> {
    let statement = sqlx::query(concat!(
        "SELECT greatest(least(published_at, now()), 'epoch') FROM (
             SELECT * FROM event_host.events WHERE position > $6 ORDER BY position LIMIT $9) ahead
         WHERE ",
        receives!(),
        " AND ",
        in_partition!("$7", "$8"),
        " ORDER BY position LIMIT 1"
    ))
    .bind(group.name.whole())
    .bind(group.tenant.as_str());
    let statement = Types::of(group.subscription).bind(statement).bind(group.after.0);
    let statement = bind_partition(statement, group.partition).bind(looked_at);
    Ok(statement.fetch_optional(connection).await?)
}
