//! The log: appending to it and reading from it.

use std::sync::Arc;

use futures_util::TryStreamExt;
use jiff::Timestamp;
use sqlx::{Connection, Executor, PgConnection, Row};

use super::columns::{
    Events, Statement, Time, event_columns, nothing_read, read_log_event_over, unnest_events,
};
use super::connection::LONG_STATEMENT;
use super::error::Broken;
use super::spares::Spares;
use crate::event::{Event, LogEvent, Partition, Position, Tenant};
use crate::store::{Fetch, Fetched, Start, StoreError, Subscription, refusals};

/// How far along the log one fetch looks. A subscription that few events match
/// would otherwise read a long log in one go, run into its deadline, and begin
/// again at the same place.
const HORIZON: i64 = 50_000;

/// What one statement appends at most, in events and in bytes of data: a
/// message to the server ends at 1 GB.
const EVENTS_A_STATEMENT: usize = 1_000;
const BYTES_A_STATEMENT: usize = 64 << 20;

/// The last position that was drawn, whether it holds an event or not.
pub(super) async fn last_drawn(connection: &mut PgConnection) -> Result<Position, Broken> {
    let last: i64 =
        sqlx::query_scalar("SELECT event_host.last_drawn()").fetch_one(connection).await?;
    Ok(Position(last))
}

/// Appends events, within a transaction if they are more than one statement's.
pub(super) async fn append(
    connection: &mut PgConnection,
    tenant: &Tenant,
    events: &[Event],
) -> Result<Vec<Position>, Broken> {
    let mut positions = Vec::with_capacity(events.len());
    for part in statements(events) {
        // Rows are inserted, and so draw their positions, in the order of the
        // SELECT.
        let statement = sqlx::query(concat!(
            "INSERT INTO event_host.events (tenant, ",
            event_columns!(),
            ") SELECT $12, type, time, id, source, subject, datacontenttype, dataschema,
                      partitionkey, deliver_after, extensions::jsonb, data
               FROM ",
            unnest_events!(),
            " ORDER BY ordinality RETURNING position"
        ));
        let rows = Events::new(part.iter())
            .bind(statement)
            .bind(tenant.as_str())
            .fetch_all(&mut *connection)
            .await?;
        for row in &rows {
            positions.push(Position(row.try_get_unchecked(0)?));
        }
    }
    Ok(positions)
}

/// Whether [`append`] needs a transaction around it.
pub(super) fn is_one_statement(events: &[Event]) -> bool {
    statements(events).nth(1).is_none()
}

fn statements(events: &[Event]) -> impl Iterator<Item = &[Event]> {
    let mut rest = events;
    std::iter::from_fn(move || {
        let mut bytes = 0_usize;
        let count = rest
            .iter()
            .take(EVENTS_A_STATEMENT)
            .take_while(|event| {
                let first = bytes == 0;
                bytes = bytes.saturating_add(event.data.as_ref().map_or(1, |data| data.len() + 1));
                first || bytes <= BYTES_A_STATEMENT
            })
            .count();
        let (part, others) = rest.split_at_checked(count)?;
        rest = others;
        (!part.is_empty()).then_some(part)
    })
}

/// What a group receives. `$1` is its name, `$2` its tenant; what [`Types`] binds comes
/// next. `LIKE` compares the bytes where `^@` first takes a text apart, character by
/// character: the filter of a row costs a third as much. What most rows are is asked
/// first.
macro_rules! receives {
    () => {
        "tenant = $2 AND (deliver_to IS NULL
             AND (type LIKE $3 OR type = ANY ($4) OR type LIKE ANY ($5)) OR deliver_to = $1)"
    };
}
pub(super) use receives;

/// The number by which an event's partition is found: its remainder is that of the
/// partition, as [`Partition::number_of`] has it.
///
/// Computed whenever a row is read, and not stored: a fetch of a partition takes no
/// longer for a row than one of all events (0.25 us; with SHA-256 it was 1.25). A stored
/// column would save 0.03 us of that and cost producers 8 % of each insert, an index by
/// it 75 %.
///
/// [`Partition::number_of`]: crate::event::Partition::number_of
macro_rules! partition_hash {
    () => {
        "CASE WHEN partitionkey IS NULL THEN position
              ELSE hashtext(partitionkey COLLATE \"C\")::bigint & 4294967295
         END"
    };
}
pub(super) use partition_hash;

/// Whether an event is in a partition: the parameters are its number, and of how many
/// it is one; null for all events.
macro_rules! in_partition {
    ($number:literal, $of:literal) => {
        concat!(
            "(",
            $of,
            "::bigint IS NULL OR (",
            crate::store::postgres::log::partition_hash!(),
            ") % ",
            $of,
            " = ",
            $number,
            "::bigint)"
        )
    };
}
pub(super) use in_partition;

/// Binds the parameters of [`in_partition`].
pub(super) fn bind_partition(
    statement: Statement<'_>,
    partition: Option<Partition>,
) -> Statement<'_> {
    statement
        .bind(partition.map(|partition| i64::from(partition.number)))
        .bind(partition.map(|partition| i64::from(partition.of)))
}

/// The types of a subscription, as [`receives`] has them.
pub(super) struct Types<'a> {
    /// One pattern of `LIKE`, apart, because most subscriptions have but one.
    first: String,
    types: Vec<&'a str>,
    prefixes: Vec<String>,
}

impl<'a> Types<'a> {
    pub(super) fn of(subscription: &'a Subscription) -> Self {
        let mut patterns = subscription.patterns().iter();
        let first = patterns.next().map(|pattern| like(pattern)).unwrap_or_default();
        let (prefixes, types): (Vec<_>, Vec<_>) = patterns.partition(|p| p.ends_with('*'));
        Self {
            first,
            types: types.into_iter().map(String::as_str).collect(),
            prefixes: prefixes.into_iter().map(|pattern| like(pattern)).collect(),
        }
    }

    /// Binds three parameters.
    pub(super) fn bind<'q>(self, statement: Statement<'q>) -> Statement<'q>
    where
        'a: 'q,
    {
        statement.bind(self.first).bind(self.types).bind(self.prefixes)
    }
}

/// What `LIKE` has for a pattern of a subscription, which has a `*` at its end or none.
fn like(pattern: &str) -> String {
    let mut like = String::with_capacity(pattern.len() + 1);
    for character in pattern.chars() {
        match character {
            '*' => like.push('%'),
            '%' | '_' | '\\' => like.extend(['\\', character]),
            _ => like.push(character),
        }
    }
    like
}

/// `$9` is the most data of one event that is sent at once. Of what has more only
/// the length comes, so that no statement brings more than `$8` times that
/// much; a running sum in the server would do it with one statement less, and
/// takes longer than to read the row. The length of a stored value is known
/// without reading it.
macro_rules! fetch {
    ($and:expr) => {
        concat!(
            "SELECT position, deliver_to, digest, type, time, id, source, subject,
                    datacontenttype, dataschema, partitionkey, deliver_after, extensions::text,
                    CASE WHEN octet_length(data) <= $9 THEN data END, octet_length(data)
             FROM event_host.events
             WHERE position > $6 AND position <= $7 AND ",
            receives!(),
            $and,
            " ORDER BY position LIMIT $8"
        )
    };
}

pub(super) const FETCH: &str = fetch!("");

/// The same of one partition. Apart, because to ask of each row whether that is asked
/// costs a group that is not split a twentieth of what the server does for it.
pub(super) const FETCH_OF_PARTITION: &str = fetch!(concat!(" AND ", in_partition!("$10", "$11")));

/// How many spare events a fetch takes when it has none: few, because it may need one.
const SPARES_AT_ONCE: usize = 32;

/// Where [`fetch!`] has the length of the data, whether it sends them or not.
const LENGTH: usize = 14;

pub(super) async fn fetch(
    connection: &mut PgConnection,
    fetch: &Fetch<'_>,
    spares: &Spares,
) -> Result<Fetched, Broken> {
    let &Fetch { group, tenant, subscription, partition, after, up_to, max_events, max_bytes } =
        fetch;
    if after >= up_to || max_events == 0 {
        return Ok(Fetched { events: Vec::new(), scanned_to: after });
    }
    let horizon = Position(after.0.saturating_add(HORIZON)).min(up_to);
    let at_once = max_bytes / max_events;
    let sql = if partition.is_some() { FETCH_OF_PARTITION } else { FETCH };
    let statement = sqlx::query(sql).bind(group.whole()).bind(tenant.as_str());
    let mut statement = Types::of(subscription)
        .bind(statement)
        .bind(after.0)
        .bind(horizon.0)
        .bind(i64::try_from(max_events).unwrap_or(i64::MAX))
        .bind(i64::try_from(at_once).unwrap_or(i64::MAX));
    if partition.is_some() {
        statement = bind_partition(statement, partition);
    }
    let mut rows = statement.fetch(&mut *connection);
    let mut spare = Vec::new();
    let mut events = Vec::with_capacity(max_events.min(1_000));
    let mut withheld = Vec::new();
    let mut bytes = 0_usize;
    // Read to the end, whatever is of use: the connection is for others then.
    while let Some(row) = rows.try_next().await? {
        if !events.is_empty() && bytes >= max_bytes {
            continue;
        }
        if spare.is_empty() {
            spare = spares.take(SPARES_AT_ONCE);
        }
        let mut event = spare.pop().unwrap_or_else(|| Arc::new(nothing_read()));
        read_log_event_over(&row, 0, 1, Some(2), 3, Arc::make_mut(&mut event))?;
        let length = row.try_get_unchecked::<Option<i32>, _>(LENGTH)?.unwrap_or(0);
        if length > 0 && event.event.data.is_none() {
            withheld.push(events.len());
        }
        bytes = bytes.saturating_add(usize::try_from(length).unwrap_or(0));
        events.push(event);
    }
    drop(rows);
    spares.put(spare);
    read_withheld(connection, &mut events, &withheld).await?;
    if (bytes >= max_bytes || events.len() >= max_events)
        && let Some(last) = events.last()
    {
        let scanned_to = last.position;
        return Ok(Fetched { events, scanned_to });
    }
    let scanned_to =
        if horizon == up_to { up_to } else { beyond_the_gap(connection, horizon, up_to).await? };
    Ok(Fetched { events, scanned_to })
}

/// Reads the data that did not come with the events at these indices.
async fn read_withheld(
    connection: &mut PgConnection,
    events: &mut [Arc<LogEvent>],
    withheld: &[usize],
) -> Result<(), Broken> {
    if withheld.is_empty() {
        return Ok(());
    }
    let at = |&index: &usize| events.get(index).map(|event| event.position.0);
    let positions: Vec<i64> = withheld.iter().filter_map(at).collect();
    let rows = sqlx::query(
        "SELECT position, data FROM event_host.events
         WHERE position = ANY ($1) ORDER BY position",
    )
    .bind(positions)
    .fetch_all(connection)
    .await?;
    let mut rows = rows.iter();
    for &index in withheld {
        // Nobody else has it yet.
        let event = events.get_mut(index).and_then(Arc::get_mut);
        let (Some(event), Some(row)) = (event, rows.next()) else {
            return Err(gone().into());
        };
        if row.try_get_unchecked::<i64, _>(0)? != event.position.0 {
            return Err(gone().into());
        }
        event.event.data = row.try_get_unchecked(1)?;
    }
    Ok(())
}

fn gone() -> StoreError {
    StoreError::Unusable("an event was deleted from the log while it was read".to_owned())
}

/// The last position before the next event above `horizon`. Positions may jump
/// by any number, and no fetch should have to walk there.
async fn beyond_the_gap(
    connection: &mut PgConnection,
    horizon: Position,
    up_to: Position,
) -> Result<Position, Broken> {
    let next: Option<i64> = sqlx::query_scalar(
        "SELECT min(position) FROM event_host.events WHERE position > $1 AND position <= $2",
    )
    .bind(horizon.0)
    .bind(up_to.0)
    .fetch_one(connection)
    .await?;
    Ok(next.map_or(up_to, |next| Position(next - 1)))
}

/// The position that a place in the log means now. What is being written at
/// this moment counts as there.
pub(super) async fn place(connection: &mut PgConnection, start: Start) -> Result<Position, Broken> {
    let last = last_drawn(connection).await?;
    match start {
        Start::Earliest => Ok(Position::ZERO),
        Start::Latest => Ok(last),
        Start::Position(position) if position > last => {
            Err(refusals::place_beyond_the_log(position, last).into())
        }
        Start::Position(position) => Ok(position),
        Start::Time(time) => {
            let first = first_since(connection, time).await?;
            Ok(first.map_or(last, |first| Position(first.0 - 1)))
        }
    }
}

/// Nobody asks for times often enough to be worth an index in every producer's
/// way, so this may read the whole log.
async fn first_since(
    connection: &mut PgConnection,
    time: Timestamp,
) -> Result<Option<Position>, Broken> {
    let mut transaction = connection.begin().await?;
    transaction.execute(LONG_STATEMENT).await?;
    let first: Option<i64> = sqlx::query_scalar(
        "SELECT position FROM event_host.events WHERE time >= $1 ORDER BY position LIMIT 1",
    )
    .bind(Time(time))
    .fetch_optional(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(first.map(Position))
}
