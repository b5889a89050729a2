//! Reading past open transactions, and finding what they commit afterwards.
//!
//! Nothing here asks who wrote what. A read past the safe position takes one
//! snapshot for the events and for the positions that hold none: so each event that
//! is ever committed there was either seen, or stands at a position that is open.
//! Subtransactions, prepared ones, positions that were drawn long before they are
//! used, and restored dumps make no difference to that, and events need no column
//! that says who wrote them.

use sqlx::{PgConnection, Row};

use super::columns::optional_time;
use super::error::PostgresError;
use super::event_pool::EventPool;
use super::log::{self, Types, in_partition, receives};
use super::reading::{Part, Reading};
use event_host_core::event::Position;
use event_host_store::{
    Fetch, Fetched, FetchedLate, LateEvent, LateFetch, OvertakingFetch, StoreError, UndecidedRange,
    UndecidedRanges,
};

/// How many events one look for late ones reads, whoever receives them.
const EVENTS_A_LOOK: usize = 10_000;

/// The positions between `$1` and `$2` that hold no event, in ranges: the first
/// `$3` of them. What was drawn and what was not is all the same.
pub(super) const GAPS: &str = "SELECT before + 1, position - 1
     FROM (SELECT position, lag(position, 1, $1) OVER (ORDER BY position) AS before
           FROM (SELECT position FROM event_host.events WHERE position > $1 AND position <= $2
                 UNION ALL SELECT $2 + 1) AS bounds) AS neighbours
     WHERE position > before + 1
     ORDER BY position LIMIT $3";

/// In one snapshot, which is what it is all about.
pub(super) async fn fetch_overtaking(
    connection: &mut PgConnection,
    fetch: &Fetch<'_>,
    safe: Position,
    max_ranges: usize,
    pool: &EventPool,
    reading: Reading,
) -> Result<OvertakingFetch, PostgresError> {
    let mut snapshot = super::piece::snapshot(connection).await?;
    let Part { read: mut fetched, is_whole } =
        log::fetch(&mut snapshot, fetch, pool, reading).await?;
    if !is_whole {
        // The gaps would come behind all that is left of it.
        return Err(StoreError::Unavailable(
            "the events past open transactions are too large to be read at once".to_owned(),
        )
        .into());
    }
    let from = fetch.after.max(safe);
    // One more than there is room for: what was read ends before it.
    let most = max_ranges.saturating_add(1);
    let rows = sqlx::query(GAPS)
        .bind(from.0)
        .bind(fetched.scanned_to.0)
        .bind(i64::try_from(most).unwrap_or(i64::MAX))
        .fetch_all(&mut *snapshot)
        .await?;
    snapshot.commit().await?;
    let mut gaps = Vec::with_capacity(rows.len());
    for row in &rows {
        let [first, last] = [row.try_get_unchecked(0)?, row.try_get_unchecked(1)?].map(Position);
        gaps.push(UndecidedRange { first, last });
    }
    if let Some(beyond) = gaps.get(max_ranges).copied() {
        gaps.truncate(max_ranges);
        cut(&mut fetched, Position(beyond.first.0 - 1));
    }
    Ok(OvertakingFetch { fetched, undecided: UndecidedRanges::of(gaps) })
}

/// As if no more had been read.
fn cut(fetched: &mut Fetched, up_to: Position) {
    fetched.events.retain(|event| event.position <= up_to);
    fetched.scanned_to = up_to;
}

/// What stands at open positions, whoever receives it: `$6` and `$7` are the ends of
/// the ranges, `$8` is how much is read of one and in all. Of each range by itself,
/// so that one that has come to hold a million events does not have all of them read.
pub(super) const LATE: &str = concat!(
    "SELECT e.position, e.partitionkey, e.deliver_after, e.is_received
     FROM unnest($6::bigint[], $7::bigint[]) AS r (first, last)
     CROSS JOIN LATERAL (
         SELECT position, partitionkey, deliver_after, (",
    receives!(),
    " AND ",
    in_partition!("$9", "$10"),
    ") IS TRUE AS is_received
         FROM event_host.events
         WHERE position >= r.first AND position <= r.last
         ORDER BY position LIMIT $8) AS e
     ORDER BY e.position LIMIT $8"
);

/// One statement, and so one snapshot, after everything up to `safe` was decided.
pub(super) async fn fetch_late(
    connection: &mut PgConnection,
    late: &LateFetch<'_>,
) -> Result<FetchedLate, PostgresError> {
    let &LateFetch { group, tenant, subscription, partition, undecided, safe, max_events } = late;
    let ranges = undecided.as_slice();
    let statement = sqlx::query(LATE).bind(group.whole()).bind(tenant.as_str());
    let statement = Types::of(subscription)
        .bind(statement)
        .bind(ranges.iter().map(|range| range.first.0).collect::<Vec<_>>())
        .bind(ranges.iter().map(|range| range.last.0).collect::<Vec<_>>())
        .bind(i64::try_from(EVENTS_A_LOOK).unwrap_or(i64::MAX));
    let rows = log::bind_partition(statement, partition).fetch_all(connection).await?;
    let mut seen = Vec::with_capacity(rows.len());
    let mut events = Vec::new();
    let mut has_more = rows.len() >= EVENTS_A_LOOK;
    for row in &rows {
        let position = Position(row.try_get_unchecked(0)?);
        if row.try_get_unchecked(3)? {
            if events.len() >= max_events {
                has_more = true;
                break;
            }
            events.push(LateEvent {
                position,
                key: row.try_get_unchecked(1)?,
                deliver_after: optional_time(row, 2)?,
            });
        }
        seen.push(position);
    }
    // Where the look ended early, what lies behind was not looked at.
    let looked_to =
        if has_more { seen.last().copied().unwrap_or(Position::ZERO) } else { Position(i64::MAX) };
    let undecided = undecided.without(&seen).above(safe.min(looked_to));
    Ok(FetchedLate { events, undecided, has_more })
}
