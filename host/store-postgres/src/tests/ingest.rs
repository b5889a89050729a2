//! Ingest on PostgreSQL: what waits, and for whom nobody waits.

use std::sync::Arc;
use std::time::Duration;

use super::{PostgresDatabase, pid, run, until, until_waiting, value};
use event_host_core::event::{Event, Position, Tenant};
use event_host_store::traits::*;
use event_host_store::{Incoming, Ingested, StoreError};

fn event(id: &str) -> Event {
    Event { id: id.to_owned(), ..super::event("t") }
}

fn request(events: &[Event]) -> Incoming {
    let window = Some(Duration::from_secs(3_600));
    Incoming { tenant: Tenant::none(), events: events.to_vec(), window, also_known_as: Vec::new() }
}

fn placed(ingested: &[Ingested]) -> Vec<(i64, bool)> {
    let placed = ingested.iter().flat_map(|one| match one {
        Ingested::Committed(placed) => placed.clone(),
        Ingested::Reused { .. } => panic!("{one:?}"),
    });
    placed.map(|placed| (placed.position.0, placed.is_duplicate)).collect()
}

/// A session that has entered an event in the ledger and not yet committed, as an ingest
/// that is held before its first insert into the log. Gives the position to come.
async fn hold_entry(database: &PostgresDatabase, of: &Event) -> sqlx::PgConnection {
    let key = event_host_store::driver::ledger::LedgerKey::of(&Tenant::none(), of).hex();
    let fingerprint = event_host_store::driver::ledger::fingerprint(of);
    let mut session = database.raw().await;
    run(
        &mut session,
        format!(
            "BEGIN; INSERT INTO event_host.published (key, fingerprint, expires_at)
             VALUES ('\\x{key}', {fingerprint}, now() + interval '1 hour')"
        ),
    )
    .await;
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ingest_that_waits_for_anothers_ledger_row_holds_up_no_group() {
    let database = PostgresDatabase::new().await;
    let mut other = hold_entry(&database, &event("both")).await;
    let waiting = database.patient_store();
    let sending = tokio::spawn(async move {
        let events = [event("mine"), event("both")];
        waiting.ingest(&[request(&events)]).await
    });
    let mut looking = database.raw().await;
    until_waiting(&mut looking, 1).await;

    // Whoever publishes meanwhile is delivered at once.
    let store = database.store();
    for n in 0..3 {
        let at = store.publish(&Tenant::none(), &[event(&n.to_string())]).await.unwrap()[0];
        until("the safe position moves on", async || store.safe_position().await.unwrap() >= at)
            .await;
    }
    let ingesting = database.store();
    let more = ingesting.ingest(&[request(&[event("more")])]).await.unwrap();
    let at = Position(placed(&more)[0].0);
    until("the safe position moves on", async || store.safe_position().await.unwrap() >= at).await;
    assert!(!sending.is_finished());

    run(
        &mut other,
        "WITH e AS (INSERT INTO event_host.events (type, id, source, data)
                    VALUES ('t', 'both', '/tests', 'both') RETURNING position)
         UPDATE event_host.published SET position = e.position FROM e WHERE published.position IS NULL;
         COMMIT",
    )
    .await;
    let ingested = placed(&sending.await.unwrap().unwrap());
    assert_eq!(ingested.iter().map(|(_, there)| *there).collect::<Vec<_>>(), [false, true]);
    let count: i64 = value(&mut looking, "SELECT count(*) FROM event_host.events").await;
    assert_eq!(count, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ingest_gives_up_on_anothers_ledger_row_and_leaves_nothing() {
    let database = PostgresDatabase::new().await;
    let mut other = hold_entry(&database, &event("both")).await;
    let store = database.store();
    let events = [event("mine"), event("both")];
    let refused = store.ingest(&[request(&events)]).await;
    assert!(matches!(refused, Err(StoreError::Busy(_))), "{refused:?}");
    assert_eq!(placed(&store.ingest(&[request(&events[..1])]).await.unwrap()).len(), 1);
    run(&mut other, "ROLLBACK").await;
    let ingested = placed(&store.ingest(&[request(&events)]).await.unwrap());
    assert_eq!(ingested.iter().map(|(_, there)| *there).collect::<Vec<_>>(), [true, false]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_can_wait_comes_after_the_first_insert_into_the_log() {
    let database = PostgresDatabase::new().await;
    let store = database.patient_store();
    let before = store.ingest(&[request(&[event("old")])]).await.unwrap();
    // Held within its insert into the log, an ingest has all that it waits for.
    let mut holder = database.raw().await;
    super::hold_inserts_into(&mut holder, "events").await;
    let theirs = store.clone();
    let sending = tokio::spawn(async move {
        let events = [event("new"), event("old")];
        theirs.ingest(&[request(&events)]).await
    });
    let mut looking = database.raw().await;
    until_waiting(&mut looking, 1).await;
    // Others want all the rows of the ledger, and would be in the way of what it still does.
    let mut others = database.raw().await;
    let theirs = pid(&mut others).await;
    let wanting = tokio::spawn(async move {
        run(&mut others, "BEGIN; SELECT FROM event_host.published FOR UPDATE").await;
        others
    });
    let waits = format!("SELECT cardinality(pg_blocking_pids({theirs})) > 0");
    until("the other waits for the ingest", async || value(&mut looking, waits.as_str()).await)
        .await;
    run(&mut holder, "SELECT pg_advisory_unlock(42)").await;
    let ingested = placed(&sending.await.unwrap().unwrap());
    assert_eq!(ingested[1], (placed(&before)[0].0, true));
    drop(wanting.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_opposite_orders_from_many_hosts_never_deadlock() {
    let database = PostgresDatabase::new().await;
    let mut looking = database.raw().await;
    let mut sending = tokio::task::JoinSet::new();
    for sender in 0..6_usize {
        let store = Arc::new(database.store());
        sending.spawn(async move {
            for batch in 0..60 {
                let mut events: Vec<Event> =
                    (batch * 5..batch * 5 + 30).map(|id| event(&id.to_string())).collect();
                // Each sender has an order of its own.
                events.rotate_left(sender * 5);
                if sender % 2 == 0 {
                    events.reverse();
                }
                while let Err(error) = store.ingest(&[request(&events)]).await {
                    assert!(matches!(error, StoreError::Busy(_)), "{error}");
                    assert!(!error.to_string().contains("deadlock"), "{error}");
                }
            }
        });
    }
    sending.join_all().await;
    let count: i64 = value(&mut looking, "SELECT count(*) FROM event_host.events").await;
    assert_eq!(count, 59 * 5 + 30);
    // The server's counts come a little later.
    run(&mut looking, "SELECT pg_stat_force_next_flush()").await;
    let deadlocks: i64 = value(
        &mut looking,
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
    )
    .await;
    assert_eq!(deadlocks, 0);
}
