//! Publishing for many at once: one transaction that waits, if it must, before it draws the
//! first position.
//!
//! Whoever has inserted into the log holds the safe position up, for all groups, until its
//! transaction ends. So nothing that can wait for another transaction comes after the first
//! insert into the log. In this order:
//!
//! 1. The entries of the ledger, in the order of their keys. Who enters the same at the same
//!    time waits here for the other to end; and as all take their locks in that order, no two
//!    wait for each other. An entry that is there is locked too, so that nobody removes it.
//! 2. What the ledger knew, in a statement of its own, which sees what was committed while the
//!    first waited. Then it is decided what is new, and what was entered in vain goes.
//! 3. The events, in the order of the requests, as any publisher inserts them, and their
//!    positions into the entries, which are this transaction's own by then.
//!
//! It has connections of its own: those that the groups share are not held by who waits for
//! another sender.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Connection, PgConnection, Row};
use tracing::debug;

use super::columns::{Events, event_columns, unnest_events};
use super::connection::{LONG_DEADLINE, MOST_INGESTING};
use super::error::PostgresError;
use super::log::statements;
use super::on_shared::{on_ingesting, on_shared, on_shared_in_its_own};
use super::piece::begin_long;
use super::{PostgresStore, listen};
use event_host_core::event::Position;
use event_host_store::driver::ledger::{Asked, ENTRIES_A_ROUND, Entry, LedgerKey, New, Requests};
use event_host_store::{Incoming, Ingest, Ingested, Pruned, StoreError};

/// The longest window that is kept, in microseconds: a hundred years.
const LONGEST_WINDOW: i64 = 100 * 366 * 24 * 3_600 * 1_000_000;

/// Hints of what was ingested, one at a time: a NOTIFY makes the commits of others wait.
#[derive(Debug, Default)]
pub(super) struct Hints {
    is_under_way: AtomicBool,
    is_wanted: AtomicBool,
}

#[async_trait]
impl Ingest for PostgresStore {
    async fn ingest(&self, requests: &[Incoming]) -> Result<Vec<Ingested>, StoreError> {
        if requests.iter().all(|request| request.events.is_empty()) {
            return Ok(vec![Ingested::Committed(Vec::new()); requests.len()]);
        }
        // Hashed before a connection is held.
        let requests = Requests::new(requests);
        let asked = requests.asked();
        let ingested =
            on_ingesting!(self.connections, "publish", |c| ingest(c, &requests, &asked))?;
        self.hint();
        Ok(ingested)
    }

    fn ingests_at_once(&self) -> usize {
        MOST_INGESTING
    }

    async fn prune_ledger(&self, most: Option<u64>) -> Result<Pruned, StoreError> {
        let a_round = u64::from(ENTRIES_A_ROUND);
        let removed = on_shared!(self.connections, "prune the ledger", |c| remove(
            c,
            "SELECT key FROM event_host.published WHERE expires_at <= clock_timestamp()
             ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED",
            a_round
        ))?;
        let mut pruned = Pruned { removed, left: None, has_more: removed >= a_round };
        // What has expired goes before the others are counted, which takes seconds.
        let Some(most) = most.filter(|_| !pruned.has_more) else { return Ok(pruned) };
        let left = on_shared_in_its_own!(
            self.connections,
            "count the ledger",
            LONG_DEADLINE,
            |c| async {
                let mut counting = begin_long(c).await?;
                let left: i64 = sqlx::query_scalar("SELECT count(*) FROM event_host.published")
                    .fetch_one(&mut *counting)
                    .await?;
                counting.commit().await?;
                Ok::<_, PostgresError>(left.unsigned_abs())
            }
        )?;
        let (excess, mut oldest) = (left.saturating_sub(most), 0);
        while oldest < excess {
            let some = (excess - oldest).min(a_round);
            let removed = on_shared!(self.connections, "prune the ledger", |c| remove(
                c,
                "SELECT key FROM event_host.published
                 ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED",
                some
            ))?;
            if removed == 0 {
                break;
            }
            oldest += removed;
        }
        pruned.removed += oldest;
        pruned.left = Some(left.saturating_sub(oldest));
        Ok(pruned)
    }

    async fn log_bytes(&self) -> Result<u64, StoreError> {
        on_shared!(self.connections, "see how large the log is", |c| async {
            let bytes: i64 = sqlx::query_scalar(
                "SELECT coalesce(sum(pg_total_relation_size(i.inhrelid)), 0)::bigint
                 FROM pg_inherits i WHERE i.inhparent = 'event_host.events'::regclass",
            )
            .fetch_one(c)
            .await?;
            Ok::<_, PostgresError>(bytes.unsigned_abs())
        })
    }
}

impl PostgresStore {
    /// Hints that something was published, and waits for nobody: where a hint is under way,
    /// one more follows it, however many ask for one meanwhile.
    pub(super) fn hint(&self) {
        self.hints.is_wanted.store(true, Ordering::SeqCst);
        if self.hints.is_under_way.swap(true, Ordering::SeqCst) {
            return;
        }
        let (connections, hints) = (Arc::clone(&self.connections), Arc::clone(&self.hints));
        tokio::spawn(async move {
            loop {
                while hints.is_wanted.swap(false, Ordering::SeqCst) {
                    let hinted =
                        on_shared!(connections, "hint that something was published", |c| {
                            listen::send_hint(c)
                        });
                    if let Err(why) = hinted {
                        debug!("no hint was given: {why}");
                    }
                }
                hints.is_under_way.store(false, Ordering::SeqCst);
                // Whoever asked in between has seen one under way.
                let is_wanted = hints.is_wanted.load(Ordering::SeqCst);
                if !is_wanted || hints.is_under_way.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        });
    }
}

async fn ingest(
    connection: &mut PgConnection,
    requests: &Requests<'_>,
    asked: &BTreeMap<LedgerKey, Asked>,
) -> Result<Vec<Ingested>, PostgresError> {
    let mut transaction = connection.begin().await?;
    let mut known = HashMap::new();
    let mut entered = HashSet::new();
    if !asked.is_empty() {
        entered = enter(&mut transaction, asked).await?;
        let there: Vec<LedgerKey> =
            asked.keys().filter(|key| !entered.contains(*key)).copied().collect();
        if !there.is_empty() {
            known = read(&mut transaction, &there).await?;
        }
    }
    let resolved = requests.resolve(&known);
    for new in &resolved.new {
        for (key, _) in new.entries() {
            entered.remove(&key);
        }
    }
    if !entered.is_empty() {
        forget(&mut transaction, &entered).await?;
    }
    let positions = append(&mut transaction, &resolved.new).await?;
    transaction.commit().await?;
    Ok(resolved.answers(&positions)?)
}

/// Enters these keys, in their order, and gives those that were not there, or whose window
/// was over.
async fn enter(
    connection: &mut PgConnection,
    asked: &BTreeMap<LedgerKey, Asked>,
) -> Result<HashSet<LedgerKey>, PostgresError> {
    let keys: Vec<&[u8]> = asked.keys().map(|key| &key.0[..]).collect();
    let fingerprints: Vec<i64> = asked.values().map(|asked| asked.fingerprint).collect();
    let windows: Vec<i64> = asked.values().map(|asked| microseconds(asked.window)).collect();
    let rows = sqlx::query(
        "INSERT INTO event_host.published AS p (key, fingerprint, expires_at)
         SELECT a.key, a.fingerprint, clock_timestamp() + a.window_us * interval '1 microsecond'
         FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) a (key, fingerprint, window_us)
         ORDER BY a.key
         ON CONFLICT (key) DO UPDATE
         SET fingerprint = excluded.fingerprint, expires_at = excluded.expires_at, position = NULL
         WHERE p.expires_at <= clock_timestamp()
         RETURNING key",
    )
    .bind(keys)
    .bind(fingerprints)
    .bind(windows)
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| key(row.try_get_unchecked(0)?)).collect()
}

fn microseconds(window: Duration) -> i64 {
    i64::try_from(window.as_micros()).unwrap_or(i64::MAX).min(LONGEST_WINDOW)
}

fn key(bytes: &[u8]) -> Result<LedgerKey, PostgresError> {
    let key = <[u8; 16]>::try_from(bytes).map_err(|_| {
        StoreError::Unusable(format!("a key of the ledger has {} bytes, not 16", bytes.len()))
    })?;
    Ok(LedgerKey(key))
}

/// What the ledger knows of keys that are there, and that this transaction has locked.
async fn read(
    connection: &mut PgConnection,
    keys: &[LedgerKey],
) -> Result<HashMap<LedgerKey, Entry>, PostgresError> {
    let bytes: Vec<&[u8]> = keys.iter().map(|key| &key.0[..]).collect();
    let rows = sqlx::query(
        "SELECT key, fingerprint, position FROM event_host.published WHERE key = ANY ($1)",
    )
    .bind(bytes)
    .fetch_all(connection)
    .await?;
    let mut known = HashMap::with_capacity(rows.len());
    for row in &rows {
        let position: Option<i64> = row.try_get_unchecked(2)?;
        // Only who enters one sees it without its position.
        let Some(position) = position else { continue };
        let entry = Entry { fingerprint: row.try_get_unchecked(1)?, position: Position(position) };
        known.insert(key(row.try_get_unchecked(0)?)?, entry);
    }
    if known.len() < keys.len() {
        let gone = keys.len() - known.len();
        return Err(StoreError::Busy(format!(
            "{gone} entries of the ledger went while they were read"
        ))
        .into());
    }
    Ok(known)
}

/// Removes what this transaction has entered for requests that are refused.
async fn forget(
    connection: &mut PgConnection,
    entered: &HashSet<LedgerKey>,
) -> Result<(), PostgresError> {
    let keys: Vec<&[u8]> = entered.iter().map(|key| &key.0[..]).collect();
    sqlx::query("DELETE FROM event_host.published WHERE key = ANY ($1)")
        .bind(keys)
        .execute(connection)
        .await?;
    Ok(())
}

/// Appends events of several tenants, within a transaction, and writes their positions into
/// the entries that it has made: in one statement, because every round trip holds the log up.
/// The fingerprint too: the first who asked for a key may have been refused, and another taken.
///
/// Rows are inserted, and so draw their positions, in the order of the SELECT: the order of
/// the positions is that of the events.
async fn append(
    connection: &mut PgConnection,
    new: &[New<'_>],
) -> Result<Vec<Position>, PostgresError> {
    let mut positions = Vec::with_capacity(new.len());
    for part in statements(new, |new| new.event.bytes()) {
        let statement = sqlx::query(concat!(
            "WITH appended AS (
                 INSERT INTO event_host.events (tenant, ",
            event_columns!(),
            ")   SELECT t.tenant, type, time, id, source, subject, datacontenttype, dataschema,
                        partitionkey, deliver_after, extensions::jsonb, data
                 FROM ",
            unnest_events!(),
            "    JOIN unnest($12::text[]) WITH ORDINALITY AS t (tenant, ordinality)
                 USING (ordinality)
                 ORDER BY ordinality RETURNING position),
             placed AS (
                 UPDATE event_host.published p
                 SET position = a.position, fingerprint = k.fingerprint
                 FROM (SELECT position, row_number() OVER (ORDER BY position) AS nth
                       FROM appended) a
                 JOIN unnest($13::bytea[], $14::bigint[], $15::bigint[])
                          k (key, fingerprint, nth) USING (nth)
                 -- The array is what has the rows looked up by their keys.
                 WHERE p.key = ANY ($13) AND p.key = k.key)
             SELECT position FROM appended ORDER BY position"
        ));
        let tenants: Vec<&str> = part.iter().map(|new| new.tenant.as_str()).collect();
        let (mut keys, mut fingerprints, mut nths) = (Vec::new(), Vec::new(), Vec::new());
        for (nth, new) in (1_i64..).zip(part) {
            for (key, asked) in new.entries() {
                keys.push(key.0.to_vec());
                fingerprints.push(asked.fingerprint);
                nths.push(nth);
            }
        }
        let rows = Events::new(part.iter().map(|new| new.event))
            .bind(statement)
            .bind(tenants)
            .bind(keys)
            .bind(fingerprints)
            .bind(nths)
            .fetch_all(&mut *connection)
            .await?;
        for row in &rows {
            positions.push(Position(row.try_get_unchecked(0)?));
        }
    }
    Ok(positions)
}

/// Removes the entries that a query finds and locks.
async fn remove(
    connection: &mut PgConnection,
    found: &'static str,
    most: u64,
) -> Result<u64, PostgresError> {
    let sql = format!("DELETE FROM event_host.published WHERE key = ANY (ARRAY({found}))");
    let removed = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(i64::try_from(most).unwrap_or(i64::MAX))
        .execute(connection)
        .await?;
    Ok(removed.rows_affected())
}
