//! How fast the store drains a log, beside a loop that does no more than must
//! be done. Not a test that can fail: it prints.
//!
//! `cargo test --release -p event-host-store-sqlite drains_a_log -- --ignored --nocapture`

use std::time::{Duration, Instant};

use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Row};

use super::{SqliteDatabase, SqliteStore, event, group, settings, this_host};
use event_host_core::event::{Event, Position, Tenant};
use event_host_store::traits::*;
use event_host_store::{Fetch, Settled, Settlement, Start, Subscription};

const EVENTS: usize = 20_000;
const ROUNDS: usize = 21;

/// Reads the same columns after the cursor, moves the cursor, commits.
async fn native(database: &SqliteDatabase, batch: usize) -> Duration {
    let mut connection = SqliteConnectOptions::new()
        .filename(database.path())
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
        .connect()
        .await
        .unwrap();
    let begun = Instant::now();
    let (mut cursor, mut seen) = (0_i64, 0);
    while seen < EVENTS {
        let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let rows = sqlx::query(
            "SELECT position, deliver_to, type, time, id, source, subject, datacontenttype,
                    dataschema, partitionkey, extensions, data
             FROM events WHERE position > ? ORDER BY position LIMIT ?",
        )
        .bind(cursor)
        .bind(i64::try_from(batch).unwrap())
        .fetch_all(&mut *transaction)
        .await
        .unwrap();
        for row in &rows {
            cursor = row.get(0);
            let _: (String, i64, String, String) = (row.get(2), row.get(3), row.get(4), row.get(5));
            for optional in [1, 6, 7, 8, 9, 10] {
                let _: Option<String> = row.get(optional);
            }
            let data: Option<Vec<u8>> = row.get(11);
            std::hint::black_box(data);
        }
        seen += rows.len();
        sqlx::query("UPDATE consumer_groups SET position = ? WHERE name = 'native'")
            .bind(cursor)
            .execute(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
    }
    begun.elapsed()
}

async fn store_alone(store: &SqliteStore, batch: usize) -> Duration {
    let (name, tenant, subscription) = (group("g"), Tenant::none(), Subscription::all());
    store.seek(&name, Start::Earliest).await.unwrap();
    let leadership = store.begin_leadership(&name, &this_host()).await.unwrap();
    let begun = Instant::now();
    let up_to = store.safe_position().await.unwrap();
    let (mut cursor, mut seen, mut settled) = (Position::ZERO, 0, leadership.settled);
    while cursor < up_to {
        let fetch = Fetch {
            partition: None,
            group: &name,
            tenant: &tenant,
            subscription: &subscription,
            after: cursor,
            up_to,
            max_events: batch,
            max_bytes: 16 << 20,
        };
        let fetched = store.fetch(fetch).await.unwrap();
        seen += fetched.events.len();
        let settlement = Settlement {
            group: name.clone(),
            epoch: leadership.epoch,
            number: settled + 1,
            position: fetched.scanned_to,
            head: None,
            dead_letters: vec![],
            emits: vec![],
            state: vec![],
            redeliveries: vec![],
            redelivered: vec![],
            failures: None,
            undecided: None,
            handled: 0,
            mark: None,
            deferred: Vec::new(),
        };
        assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
        cursor = fetched.scanned_to;
        settled += 1;
    }
    assert_eq!(seen, EVENTS);
    begun.elapsed()
}

fn median_per_second(mut times: Vec<Duration>) -> f64 {
    times.sort();
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let events = EVENTS as f64;
    events / times[times.len() / 2].as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement; see the module's documentation"]
async fn drains_a_log_at_least_nearly_as_fast_as_a_native_loop() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let payload = vec![b'x'; 200];
    let events: Vec<Event> = (0..EVENTS)
        .map(|n| Event {
            data: Some(payload.clone()),
            ..event("bench.event", &format!("{n:032x}"))
        })
        .collect();
    let begun = Instant::now();
    for chunk in events.chunks(1_000) {
        store.publish(&Tenant::none(), chunk).await.unwrap();
    }
    println!("publish, 1,000 a transaction: {:.0}/s", median_per_second(vec![begun.elapsed()]));
    for name in ["g", "native"] {
        store.ensure_group(&settings(name)).await.unwrap();
    }
    for batch in [1_000, 100] {
        // In turns, so that whatever else the machine does meets both.
        let (mut native_times, mut store_times) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            native_times.push(native(&database, batch).await);
            store_times.push(store_alone(&store, batch).await);
        }
        let (native, store) = (median_per_second(native_times), median_per_second(store_times));
        println!("batch {batch}: native {native:.0}/s, store {store:.0}/s: {:.2}", store / native);
    }
}
