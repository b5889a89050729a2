//! The log: appending to it and reading from it.
//!
//! SQLite has one writer at a time, so position order is commit order: no event
//! can still appear below the last one, and that is the safe position.

use std::sync::Arc;

use futures_util::TryStreamExt;
use jiff::Timestamp;
use sqlx::{AssertSqlSafe, Connection, Row, SqliteConnection};

use super::columns::{
    EVENT_COLUMNS, Statement, bind_event, event_columns, optional_text, read_log_event,
};
use super::error::SqliteError;
use super::redeliveries::as_json;
use event_host_core::event::{Event, GroupName, Partition, Position, Tenant};
use event_host_store::driver::gone::Beginning;
use event_host_store::driver::prefix::after_prefix;
use event_host_store::driver::refusals;
use event_host_store::{Fetch, Fetched, Start, StoreError, Subscription};

/// How far along the log one fetch looks. A subscription that few events match
/// would otherwise read a long log in one go, run into its deadline, and begin
/// again at the same place.
const MOST_SCANNED: i64 = 50_000;

/// How many events one statement appends.
const EVENTS_A_STATEMENT: usize = 32;

/// The last position that was handed out, whether its event is still there or
/// not: AUTOINCREMENT remembers it.
pub(super) async fn last_position(
    connection: &mut SqliteConnection,
) -> Result<Position, SqliteError> {
    let last: Option<i64> =
        sqlx::query_scalar("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
            .fetch_optional(connection)
            .await?;
    Ok(Position(last.unwrap_or(0)))
}

pub(super) async fn publish(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
    events: &[Event],
) -> Result<Vec<Position>, SqliteError> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let positions = append(&mut transaction, tenant, events).await?;
    transaction.commit().await?;
    Ok(positions)
}

/// Appends events within a transaction that has the write lock.
pub(super) async fn append(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
    events: &[Event],
) -> Result<Vec<Position>, SqliteError> {
    let events: Vec<(&Tenant, &Event)> = events.iter().map(|event| (tenant, event)).collect();
    append_of_tenants(connection, &events).await
}

/// Like [`append`], for events of several tenants.
pub(super) async fn append_of_tenants(
    connection: &mut SqliteConnection,
    events: &[(&Tenant, &Event)],
) -> Result<Vec<Position>, SqliteError> {
    let now = Timestamp::now().as_microsecond();
    let mut positions = Vec::with_capacity(events.len());
    let (chunks, rest) = events.as_chunks::<EVENTS_A_STATEMENT>();
    for chunk in chunks.iter().map(|chunk| &chunk[..]).chain(rest.chunks(1)) {
        let mut statement: Statement<'_> = sqlx::query(AssertSqlSafe(insert_of(chunk.len())));
        for (tenant, event) in chunk {
            statement = bind_event(statement.bind(tenant.as_str()).bind(now), event);
        }
        let last = statement.execute(&mut *connection).await?.last_insert_rowid();
        // Nobody else can insert in between, and a position is one above the
        // last: those of one statement stand in a row.
        let first = last - i64::try_from(chunk.len()).unwrap_or(i64::MAX) + 1;
        positions.extend((first..=last).map(Position));
    }
    Ok(positions)
}

fn insert_of(rows: usize) -> String {
    let row = format!("(?, ?{})", ", ?".repeat(EVENT_COLUMNS));
    let rows = vec![row; rows].join(", ");
    format!(
        concat!("INSERT INTO events (tenant, published_at, ", event_columns!(), ") VALUES {}"),
        rows
    )
}

/// What a group receives: a condition on the columns of `events`, and the
/// parameters that it needs, which are all text.
pub(super) struct Receives<'a> {
    pub(super) condition: String,
    pub(super) parameters: Vec<std::borrow::Cow<'a, str>>,
}

impl<'a> Receives<'a> {
    pub(super) fn new(
        group: &'a GroupName,
        tenant: &'a Tenant,
        subscription: &'a Subscription,
    ) -> Self {
        let mut parameters = vec![tenant.as_str().into(), group.whole().into()];
        let mut condition = "tenant = ? AND (deliver_to = ? OR (deliver_to IS NULL".to_owned();
        if !subscription.is_all() {
            condition.push_str(" AND (");
            let (prefixes, types): (Vec<&str>, Vec<&str>) =
                subscription.patterns().iter().map(String::as_str).partition(|p| p.ends_with('*'));
            let mut terms = Vec::with_capacity(prefixes.len() + 1);
            if !types.is_empty() {
                terms.push(format!("type IN (?{})", ", ?".repeat(types.len() - 1)));
                parameters.extend(types.into_iter().map(Into::into));
            }
            for prefix in prefixes {
                let prefix = prefix.trim_end_matches('*');
                parameters.push(prefix.into());
                match after_prefix(prefix) {
                    Some(end) => {
                        terms.push("(type >= ? AND type < ?)".to_owned());
                        parameters.push(end.into());
                    }
                    None => terms.push("type >= ?".to_owned()),
                }
            }
            any_of(&terms, &mut condition);
            condition.push(')');
        }
        condition.push_str("))");
        Self { condition, parameters }
    }

    pub(super) fn bind<'q>(&'q self, mut statement: Statement<'q>) -> Statement<'q> {
        for parameter in &self.parameters {
            statement = statement.bind(parameter.as_ref());
        }
        statement
    }
}

/// Joins terms by OR, as a tree of little depth: SQLite refuses an expression
/// that is 1,000 deep, which a plain chain of 1,000 terms is.
fn any_of(terms: &[String], sql: &mut String) {
    if let [term] = terms {
        sql.push_str(term);
        return;
    }
    let (left, right) = terms.split_at(terms.len() / 2);
    sql.push('(');
    any_of(left, sql);
    sql.push_str(" OR ");
    any_of(right, sql);
    sql.push(')');
}

pub(super) async fn fetch(
    connection: &mut SqliteConnection,
    fetch: &Fetch<'_>,
) -> Result<Fetched, SqliteError> {
    let &Fetch { group, tenant, subscription, partition, after, up_to, max_events, max_bytes } =
        fetch;
    if after >= up_to || max_events == 0 {
        return Ok(Fetched { events: Vec::new(), scanned_to: after });
    }
    let scan_to = Position(after.0.saturating_add(MOST_SCANNED)).min(up_to);
    let receives = Receives::new(group, tenant, subscription);
    // Data larger than this are fetched one by one afterwards: the connection's thread reads
    // ahead, and would hold many of them. Their length is known without reading them.
    let inline_max = i64::try_from(max_bytes / max_events).unwrap_or(i64::MAX);
    let span = (after, scan_to);
    let in_partition = match partition {
        Some(partition) => {
            Some(positions_of(connection, &receives, partition, span, max_events).await?)
        }
        None => None,
    };
    let statement = match &in_partition {
        Some(positions) => {
            sqlx::query(AT).bind(inline_max).bind(as_json(positions.iter().copied()))
        }
        None => {
            let limit = i64::try_from(max_events).unwrap_or(i64::MAX);
            let sql = AssertSqlSafe(within(&receives));
            let statement = sqlx::query(sql).bind(inline_max).bind(after.0).bind(scan_to.0);
            receives.bind(statement).bind(limit)
        }
    };
    let mut events = Vec::with_capacity(max_events.min(1_024));
    let mut bytes = 0_usize;
    let mut withheld = Vec::new();
    let mut is_full = false;
    {
        let mut rows = statement.fetch(&mut *connection);
        while let Some(row) = rows.try_next().await? {
            let event = read_log_event(&row, 0, 1, Some(2), 3)?;
            bytes = bytes.saturating_add(event.bytes());
            let length: Option<i64> = row.try_get_unchecked(LENGTH)?;
            if let Some(length) = length.filter(|length| *length > inline_max) {
                bytes = bytes.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
                withheld.push(events.len());
            }
            events.push(event);
            is_full = bytes >= max_bytes || events.len() >= max_events;
            if is_full {
                break;
            }
        }
    }
    for index in withheld {
        if let Some(event) = events.get_mut(index) {
            event.event.data = data_at(connection, event.position).await?;
        }
    }
    let events: Vec<_> = events.into_iter().map(Arc::new).collect();
    if let Some(last) = events.last().filter(|_| is_full) {
        let scanned_to = last.position;
        return Ok(Fetched { events, scanned_to });
    }
    if let Some(positions) = in_partition
        && positions.len() >= max_events
        && let Some(last) = positions.last()
    {
        return Ok(Fetched { events, scanned_to: Position(*last) });
    }
    let scanned_to =
        if scan_to == up_to { up_to } else { beyond_the_gap(connection, scan_to, up_to).await? };
    Ok(Fetched { events, scanned_to })
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT position, deliver_to, digest, type, time, id, source, subject,
                    datacontenttype, dataschema, partitionkey, deliver_after, extensions,
                    CASE WHEN octet_length(data) <= ? THEN data END, octet_length(data)
             FROM events ",
            $rest
        )
    };
}

/// The events at positions that a JSON array has, each with its data where those are no
/// larger than the first parameter.
const AT: &str = select!("WHERE position IN (SELECT value FROM json_each(?)) ORDER BY position");

/// What a group receives between two positions.
fn within(receives: &Receives<'_>) -> String {
    format!(
        select!("WHERE position > ? AND position <= ? AND {} ORDER BY position LIMIT ?"),
        receives.condition
    )
}

/// Where the first events of a partition are that a group receives of a part of the log.
///
/// The database does not know which partition an event is in. So the keys alone are read
/// of all of them, and the events of the one partition then: to read all of each event
/// would cost every partition as much as the whole group.
async fn positions_of(
    connection: &mut SqliteConnection,
    receives: &Receives<'_>,
    partition: Partition,
    (after, up_to): (Position, Position),
    most: usize,
) -> Result<Vec<i64>, SqliteError> {
    let sql = format!(
        "SELECT position, partitionkey FROM events
         WHERE position > ? AND position <= ? AND {} ORDER BY position",
        receives.condition
    );
    let statement = sqlx::query(AssertSqlSafe(sql)).bind(after.0).bind(up_to.0);
    let mut rows = receives.bind(statement).fetch(connection);
    let mut positions = Vec::new();
    while positions.len() < most
        && let Some(row) = rows.try_next().await?
    {
        let position = row.try_get_unchecked(0)?;
        if partition.holds(optional_text(&row, 1)?.as_deref(), Position(position)) {
            positions.push(position);
        }
    }
    Ok(positions)
}

/// Where [`fetch`] has the length of the data.
const LENGTH: usize = 14;

/// The data of one event.
async fn data_at(
    connection: &mut SqliteConnection,
    position: Position,
) -> Result<Option<Vec<u8>>, SqliteError> {
    let row = sqlx::query("SELECT data FROM events WHERE position = ?")
        .bind(position.0)
        .fetch_optional(connection)
        .await?;
    match row {
        Some(row) => Ok(row.try_get_unchecked(0)?),
        None => Err(StoreError::Unusable(
            "an event was deleted from the log while it was read".to_owned(),
        )
        .into()),
    }
}

/// The last position before the next event above `scan_to`. Positions may jump
/// by any number, and no fetch should have to walk there.
async fn beyond_the_gap(
    connection: &mut SqliteConnection,
    scan_to: Position,
    up_to: Position,
) -> Result<Position, SqliteError> {
    let next: Option<i64> =
        sqlx::query_scalar("SELECT min(position) FROM events WHERE position > ?")
            .bind(scan_to.0)
            .fetch_one(connection)
            .await?;
    Ok(next.map_or(up_to, |next| Position(next - 1).min(up_to)))
}

/// The position that a place in the log means now.
pub(super) async fn place(
    connection: &mut SqliteConnection,
    start: Start,
) -> Result<Position, SqliteError> {
    let last = last_position(connection).await?;
    match start {
        Start::Earliest => Ok(Position::ZERO),
        Start::Latest => Ok(last),
        Start::Position(position) if position > last => {
            Err(refusals::place_beyond_the_log(position, last).into())
        }
        Start::Position(position) => Ok(position),
        Start::Time(time) => {
            let first: Option<i64> = sqlx::query_scalar(
                "SELECT position FROM events WHERE time >= ? ORDER BY position LIMIT 1",
            )
            .bind(time.as_microsecond())
            .fetch_optional(connection)
            .await?;
            Ok(first.map_or(last, |first| Position(first - 1)))
        }
    }
}

/// What is known of the beginning of the log.
pub(super) async fn beginning(connection: &mut SqliteConnection) -> Result<Beginning, SqliteError> {
    let row = sqlx::query("SELECT position, events, (SELECT min(position) FROM events) FROM gone")
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(Beginning::default()) };
    Ok(Beginning {
        gone: Position(row.try_get_unchecked(0)?),
        events: row.try_get_unchecked(1)?,
        first: row.try_get_unchecked::<Option<i64>, _>(2)?.map(Position),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_terms_makes_a_shallow_tree() {
        let terms: Vec<String> = (0..5).map(|n| n.to_string()).collect();
        let mut sql = String::new();
        any_of(&terms, &mut sql);
        assert_eq!(sql, "((0 OR 1) OR (2 OR (3 OR 4)))");
    }
}
