//! Publishing for many at once: one transaction with the write lock, which reads the ledger,
//! appends to the log and enters what it appended.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use sqlx::{Connection, Row, SqliteConnection};

use super::connection::{LONG_DEADLINE, on_reader, on_writer};
use super::error::SqliteError;
use super::{SqliteStore, log};
use event_host_core::event::{Event, Position, Tenant};
use event_host_store::driver::ledger::{Asked, ENTRIES_A_ROUND, Entry, LedgerKey, New, Requests};
use event_host_store::{Incoming, Ingest, Ingested, Pruned, StoreError};

#[async_trait]
impl Ingest for SqliteStore {
    async fn ingest(&self, requests: &[Incoming]) -> Result<Vec<Ingested>, StoreError> {
        if requests.iter().all(|request| request.events.is_empty()) {
            return Ok(vec![Ingested::Committed(Vec::new()); requests.len()]);
        }
        // Hashed before the only writer is held.
        let requests = Requests::new(requests);
        let asked = requests.asked();
        on_writer!(self.connections, "publish", |c| ingest(c, &requests, &asked))
    }

    async fn prune_ledger(&self, most: Option<u64>) -> Result<Pruned, StoreError> {
        // Most rounds find nothing, and have no need of the write lock for that.
        let over = on_reader!(self.connections, "look at the ledger", |c| expired(c))?;
        let mut pruned = Pruned::default();
        if over > 0 {
            pruned.removed =
                on_writer!(self.connections, "prune the ledger", |c| { remove_expired(c) })?;
            pruned.has_more = over > i64::from(ENTRIES_A_ROUND);
        }
        // What has expired goes before the others are counted, which takes seconds.
        let Some(most) = most.filter(|_| !pruned.has_more) else { return Ok(pruned) };
        let left = on_reader!(self.connections, "count the ledger", LONG_DEADLINE, |c| async {
            let left: i64 =
                sqlx::query_scalar("SELECT count(*) FROM published").fetch_one(c).await?;
            Ok::<_, SqliteError>(left.unsigned_abs())
        })?;
        let (excess, mut oldest) = (left.saturating_sub(most), 0);
        while oldest < excess {
            let some = (excess - oldest).min(u64::from(ENTRIES_A_ROUND));
            let removed =
                on_writer!(self.connections, "prune the ledger", |c| remove_oldest(c, some))?;
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
        on_reader!(self.connections, "see how large the log is", |c| async {
            // Free pages count for nothing: events to come use them.
            let bytes: i64 = sqlx::query_scalar(
                "SELECT (p.page_count - f.freelist_count) * s.page_size
                 FROM pragma_page_count p, pragma_freelist_count f, pragma_page_size s",
            )
            .fetch_one(c)
            .await?;
            Ok::<_, SqliteError>(bytes.unsigned_abs())
        })
    }
}

async fn ingest(
    connection: &mut SqliteConnection,
    requests: &Requests<'_>,
    asked: &BTreeMap<LedgerKey, Asked>,
) -> Result<Vec<Ingested>, SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let now = Timestamp::now();
    let known = if asked.is_empty() {
        HashMap::new()
    } else {
        known(&mut transaction, asked.keys(), now).await?
    };
    let resolved = requests.resolve(&known);
    let events: Vec<(&Tenant, &Event)> =
        resolved.new.iter().map(|new| (new.tenant, new.event)).collect();
    let positions = log::append_of_tenants(&mut transaction, &events).await?;
    enter(&mut transaction, &resolved.new, &positions, now).await?;
    transaction.commit().await?;
    Ok(resolved.answers(&positions)?)
}

/// What the ledger knows of these keys.
async fn known(
    connection: &mut SqliteConnection,
    keys: impl Iterator<Item = &LedgerKey>,
    now: Timestamp,
) -> Result<HashMap<LedgerKey, Entry>, SqliteError> {
    let keys = Value::from_iter(keys.map(LedgerKey::hex)).to_string();
    // Each key is looked up, however large the ledger is: CROSS JOIN keeps the order, and a
    // plus keeps the index by time out of it.
    let rows = sqlx::query(
        "SELECT p.key, p.fingerprint, p.position
         FROM json_each(?1) k CROSS JOIN published p ON p.key = unhex(k.value)
         WHERE +p.expires_at > ?2",
    )
    .bind(keys)
    .bind(now.as_microsecond())
    .fetch_all(connection)
    .await?;
    let mut known = HashMap::with_capacity(rows.len());
    for row in rows {
        let key: &[u8] = row.try_get_unchecked(0)?;
        // A constraint has it.
        let Ok(key) = <[u8; 16]>::try_from(key) else { continue };
        let position = Position(row.try_get_unchecked(2)?);
        let entry = Entry { fingerprint: row.try_get_unchecked(1)?, position };
        known.insert(LedgerKey(key), entry);
    }
    Ok(known)
}

/// Enters what is new; an entry whose window is over gives its place.
async fn enter(
    connection: &mut SqliteConnection,
    new: &[New<'_>],
    positions: &[Position],
    now: Timestamp,
) -> Result<(), SqliteError> {
    let all = new.iter().zip(positions);
    let all = all.flat_map(|(new, position)| new.entries().map(move |entry| (entry, position)));
    let entries = all.map(|((key, asked), position)| {
        let window = SignedDuration::try_from(asked.window).unwrap_or(SignedDuration::MAX);
        let expires_at = now.checked_add(window).unwrap_or(Timestamp::MAX).as_microsecond();
        Value::from(vec![
            Value::from(key.hex()),
            asked.fingerprint.into(),
            position.0.into(),
            expires_at.into(),
        ])
    });
    let entries: Vec<Value> = entries.collect();
    if entries.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT OR REPLACE INTO published (key, fingerprint, position, expires_at)
         SELECT unhex(value ->> 0), value ->> 1, value ->> 2, value ->> 3 FROM json_each(?1)",
    )
    .bind(Value::from(entries).to_string())
    .execute(connection)
    .await?;
    Ok(())
}

/// How many entries are over, up to one more than a round removes.
async fn expired(connection: &mut SqliteConnection) -> Result<i64, SqliteError> {
    let over = sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT 1 FROM published WHERE expires_at <= ?1 LIMIT ?2)",
    )
    .bind(Timestamp::now().as_microsecond())
    .bind(i64::from(ENTRIES_A_ROUND) + 1)
    .fetch_one(connection)
    .await?;
    Ok(over)
}

async fn remove_expired(connection: &mut SqliteConnection) -> Result<u64, SqliteError> {
    let removed = sqlx::query(
        "DELETE FROM published WHERE key IN (
             SELECT key FROM published WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
    )
    .bind(Timestamp::now().as_microsecond())
    .bind(i64::from(ENTRIES_A_ROUND))
    .execute(connection)
    .await?;
    Ok(removed.rows_affected())
}

async fn remove_oldest(connection: &mut SqliteConnection, count: u64) -> Result<u64, SqliteError> {
    let removed = sqlx::query(
        "DELETE FROM published WHERE key IN (
             SELECT key FROM published ORDER BY expires_at LIMIT ?1)",
    )
    .bind(i64::try_from(count).unwrap_or(i64::MAX))
    .execute(connection)
    .await?;
    Ok(removed.rows_affected())
}
