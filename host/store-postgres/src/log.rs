//! The log: appending to it and reading from it.

use std::sync::Arc;

use jiff::Timestamp;
use sqlx::{Connection, Executor, PgConnection, Row};

use super::columns::{
    Events, Statement, Time, event_columns, nothing_read, read_log_event_over, unnest_events,
};
use super::error::PostgresError;
use super::event_pool::EventPool;
use super::piece::LONG_STATEMENT;
use super::reading::{Next, Part, Reading};
use event_host_core::event::{Event, LogEvent, Partition, Position, Tenant};
use event_host_store::driver::gone::Beginning;
use event_host_store::driver::refusals;
use event_host_store::{Fetch, Fetched, Sketch, Start, StoreError, Subscription};

/// How far along the log one fetch looks. A subscription that few events match
/// would otherwise read a long log in one go, run into its deadline, and begin
/// again at the same place.
const MOST_SCANNED: i64 = 50_000;

/// What one statement appends at most, in events and in their bytes: a message to the
/// server ends at 1 GB.
const EVENTS_A_STATEMENT: usize = 1_000;
const BYTES_A_STATEMENT: usize = 64 << 20;

/// The last position that was drawn, whether it holds an event or not.
pub(super) async fn last_drawn(connection: &mut PgConnection) -> Result<Position, PostgresError> {
    let last: i64 =
        sqlx::query_scalar("SELECT event_host.last_drawn()").fetch_one(connection).await?;
    Ok(Position(last))
}

/// Appends events, within a transaction if they are more than one statement's.
pub(super) async fn append(
    connection: &mut PgConnection,
    tenant: &Tenant,
    events: &[Event],
) -> Result<Vec<Position>, PostgresError> {
    let mut positions = Vec::with_capacity(events.len());
    for part in statements(events, Event::bytes) {
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
    statements(events, Event::bytes).nth(1).is_none()
}

/// What is appended, in parts that one statement takes; `size` is the bytes of one.
pub(super) fn statements<T>(
    events: &[T],
    size: impl Fn(&T) -> usize,
) -> impl Iterator<Item = &[T]> {
    let mut rest = events;
    std::iter::from_fn(move || {
        let mut bytes = 0_usize;
        let count = rest
            .iter()
            .take(EVENTS_A_STATEMENT)
            .take_while(|event| {
                let first = bytes == 0;
                bytes = bytes.saturating_add(size(event));
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
/// [`Partition::number_of`]: event_host_core::event::Partition::number_of
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
            crate::log::partition_hash!(),
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
/// without reading it. Attributes come whole: how large they may be, the log's
/// constraints say, and where they are larger all the same, the reading ends early.
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

/// How much is read in vain, in bytes, to keep a connection, however small the budget is.
const LEAST_IN_VAIN: usize = 1 << 20;

/// Where [`fetch!`] has the length of the data, whether it sends them or not.
const LENGTH: usize = 14;

pub(super) async fn fetch(
    connection: &mut PgConnection,
    fetch: &Fetch<'_>,
    pool: &EventPool,
    reading: Reading,
) -> Result<Part<Fetched>, PostgresError> {
    let &Fetch { group, tenant, subscription, partition, after, up_to, max_events, max_bytes } =
        fetch;
    if after >= up_to || max_events == 0 {
        return Ok(Part::whole(Fetched { events: Vec::new(), scanned_to: after }));
    }
    let scan_to = Position(after.0.saturating_add(MOST_SCANNED)).min(up_to);
    let at_once = max_bytes / max_events;
    let sql = if partition.is_some() { FETCH_OF_PARTITION } else { FETCH };
    let statement = sqlx::query(sql).bind(group.whole()).bind(tenant.as_str());
    let mut statement = Types::of(subscription)
        .bind(statement)
        .bind(after.0)
        .bind(scan_to.0)
        .bind(i64::try_from(max_events).unwrap_or(i64::MAX))
        .bind(i64::try_from(at_once).unwrap_or(i64::MAX));
    if partition.is_some() {
        statement = bind_partition(statement, partition);
    }
    let mut rows = reading.rows(statement.fetch(&mut *connection));
    let mut spare = Vec::new();
    let mut events = Vec::with_capacity(max_events.min(1_000));
    let mut withheld = Vec::new();
    let (mut bytes, mut in_vain) = (0_usize, 0_usize);
    let mut is_whole = true;
    loop {
        let row = match rows.next(events.is_empty()).await {
            Next::Row(row) => row,
            Next::End => break,
            Next::Late => {
                is_whole = false;
                break;
            }
            Next::PostgresError(why) => return Err(why.into()),
        };
        if spare.is_empty() {
            spare = pool.take(SPARES_AT_ONCE);
        }
        let mut event = spare.pop().unwrap_or_else(|| Arc::new(nothing_read()));
        read_log_event_over(&row, 0, 1, Some(2), 3, Arc::make_mut(&mut event))?;
        if !events.is_empty() && bytes >= max_bytes {
            // Read to the end, whatever is of use: the connection is for others then.
            // But not at any price.
            in_vain = in_vain.saturating_add(event.bytes());
            if in_vain > max_bytes.max(LEAST_IN_VAIN) {
                is_whole = false;
                break;
            }
            continue;
        }
        bytes = bytes.saturating_add(event.bytes());
        if event.event.data.is_none() {
            let length = row.try_get_unchecked::<Option<i32>, _>(LENGTH)?.unwrap_or(0);
            let length = usize::try_from(length).unwrap_or(0);
            if length > 0 {
                withheld.push((events.len(), event.position));
                bytes = bytes.saturating_add(length);
            }
        }
        events.push(event);
    }
    drop(rows);
    pool.recycle(spare);
    if is_whole {
        is_whole = read_withheld(connection, &mut events, &withheld, reading).await?;
    } else if let Some((first, _)) = withheld.first() {
        events.truncate(*first);
    }
    if (bytes >= max_bytes || events.len() >= max_events || !is_whole)
        && let Some(last) = events.last()
    {
        let scanned_to = last.position;
        return Ok(Part { read: Fetched { events, scanned_to }, is_whole });
    }
    if !is_whole {
        return Err(too_slow().into());
    }
    let scanned_to =
        if scan_to == up_to { up_to } else { beyond_the_gap(connection, scan_to, up_to).await? };
    Ok(Part::whole(Fetched { events, scanned_to }))
}

fn too_slow() -> StoreError {
    StoreError::Unavailable("the next event takes too long to be read".to_owned())
}

/// Reads the data that did not come with the events at these indices, in order. Where
/// it takes too long, the events end before the first whose data is missing. Whether
/// all came.
async fn read_withheld(
    connection: &mut PgConnection,
    events: &mut Vec<Arc<LogEvent>>,
    withheld: &[(usize, Position)],
    reading: Reading,
) -> Result<bool, PostgresError> {
    if withheld.is_empty() {
        return Ok(true);
    }
    let positions: Vec<i64> = withheld.iter().map(|(_, position)| position.0).collect();
    let statement = sqlx::query(
        "SELECT position, data FROM event_host.events
         WHERE position = ANY ($1) ORDER BY position",
    );
    let mut rows = reading.rows(statement.bind(positions).fetch(connection));
    for (index, position) in withheld {
        match rows.next(*index == 0).await {
            Next::Row(row) if row.try_get_unchecked::<i64, _>(0)? == position.0 => {
                // Nobody else has it yet.
                let event = events.get_mut(*index).and_then(Arc::get_mut).ok_or_else(gone)?;
                event.event.data = row.try_get_unchecked(1)?;
            }
            Next::Row(_) | Next::End => return Err(gone().into()),
            Next::Late => {
                events.truncate(*index);
                return Ok(false);
            }
            Next::PostgresError(why) => return Err(why.into()),
        }
    }
    Ok(true)
}

fn gone() -> StoreError {
    StoreError::Unusable("an event was deleted from the log while it was read".to_owned())
}

/// What can be said of the next event that a group receives without what may be large:
/// it comes without data, and texts are cut. And how large it is.
pub(super) async fn sketch(
    connection: &mut PgConnection,
    fetch: &Fetch<'_>,
) -> Result<Option<Sketch>, PostgresError> {
    let &Fetch { group, tenant, subscription, partition, after, up_to, .. } = fetch;
    let scan_to = Position(after.0.saturating_add(MOST_SCANNED)).min(up_to);
    let statement = sqlx::query(SKETCH).bind(group.whole()).bind(tenant.as_str());
    let statement = Types::of(subscription).bind(statement).bind(after.0).bind(scan_to.0);
    let statement = bind_partition(statement, partition);
    let Some(row) = statement.fetch_optional(connection).await? else { return Ok(None) };
    let mut event = nothing_read();
    read_log_event_over(&row, 0, 1, Some(2), 3, &mut event)?;
    let bytes: i64 = row.try_get_unchecked(LENGTH)?;
    Ok(Some(Sketch { event, bytes: bytes.unsigned_abs() }))
}

/// Texts are cut to what the log's constraints let in. The columns are those of
/// [`fetch!`].
const SKETCH: &str = concat!(
    "SELECT position, deliver_to, digest, left(type, 1024), time, left(id, 1024),
            left(source, 1024), NULL::text, NULL::text, NULL::text, left(partitionkey, 1024),
            deliver_after, NULL::text, NULL::bytea,
            octet_length(type)::bigint + octet_length(id) + octet_length(source)
                + coalesce(octet_length(subject), 0) + coalesce(octet_length(datacontenttype), 0)
                + coalesce(octet_length(dataschema), 0) + coalesce(octet_length(partitionkey), 0)
                + coalesce(pg_column_size(extensions), 0) + coalesce(octet_length(data), 0)
     FROM event_host.events
     WHERE position > $6 AND position <= $7 AND ",
    receives!(),
    " AND ",
    in_partition!("$8", "$9"),
    " ORDER BY position LIMIT 1"
);

/// The last position before the next event above `safe_position`. Positions may jump
/// by any number, and no fetch should have to walk there.
async fn beyond_the_gap(
    connection: &mut PgConnection,
    scan_to: Position,
    up_to: Position,
) -> Result<Position, PostgresError> {
    let next: Option<i64> = sqlx::query_scalar(
        "SELECT min(position) FROM event_host.events WHERE position > $1 AND position <= $2",
    )
    .bind(scan_to.0)
    .bind(up_to.0)
    .fetch_one(connection)
    .await?;
    Ok(next.map_or(up_to, |next| Position(next - 1)))
}

/// The position that a place in the log means now. What is being written at
/// this moment counts as there.
pub(super) async fn place(
    connection: &mut PgConnection,
    start: Start,
) -> Result<Position, PostgresError> {
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

/// What is known of the beginning of the log.
pub(super) async fn beginning(connection: &mut PgConnection) -> Result<Beginning, PostgresError> {
    let row = sqlx::query(
        "SELECT g.position, g.events, (SELECT min(e.position) FROM event_host.events e)
         FROM event_host.gone g",
    )
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(Beginning::default()) };
    Ok(Beginning {
        gone: Position(row.try_get_unchecked(0)?),
        events: row.try_get_unchecked(1)?,
        first: row.try_get_unchecked::<Option<i64>, _>(2)?.map(Position),
    })
}

/// Nobody asks for times often enough to be worth an index in every producer's
/// way, so this may read the whole log.
async fn first_since(
    connection: &mut PgConnection,
    time: Timestamp,
) -> Result<Option<Position>, PostgresError> {
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
