//! What the host relies on in a session, whatever an administrator has set and
//! whoever had the session before.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinSet;

use super::{
    PostgresDatabase, PostgresStore, claims, first_settlement, group, host, led, publish, run,
    says, until, value,
};
use event_host_core::event::{Event, Position};
use event_host_store::suite::{DeliveryDatabase, TestDatabase};
use event_host_store::traits::*;
use event_host_store::{Settled, Settlement, StoreError};

/// Settings that mean something else to the host's statements, or that end its sessions.
pub(super) const CHANGED: &[(&str, &str)] = &[
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_deferrable", "on"),
    ("idle_session_timeout", "1s"),
    ("idle_in_transaction_session_timeout", "0"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("synchronous_commit", "off"),
    ("search_path", "trap, pg_catalog"),
    ("row_security", "on"),
    ("DateStyle", "German"),
    ("IntervalStyle", "sql_standard"),
    ("TimeZone", "Asia/Kathmandu"),
    ("client_encoding", "LATIN1"),
    ("bytea_output", "escape"),
    ("extra_float_digits", "-15"),
    ("standard_conforming_strings", "off"),
    ("backslash_quote", "on"),
    ("array_nulls", "off"),
    ("transform_null_equals", "on"),
    ("quote_all_identifiers", "on"),
    ("xmlbinary", "hex"),
    ("exit_on_error", "on"),
    ("enable_seqscan", "on"),
    ("enable_indexscan", "off"),
    ("enable_indexonlyscan", "off"),
    ("enable_nestloop", "off"),
    ("enable_partition_pruning", "off"),
    ("plan_cache_mode", "force_custom_plan"),
    ("jit", "on"),
    ("jit_above_cost", "0"),
    ("work_mem", "64kB"),
    ("from_collapse_limit", "1"),
    ("check_function_bodies", "off"),
    ("client_min_messages", "debug1"),
];

/// What the host's transactions have, whatever was set.
const WANTED: &[(&str, &str)] = &[
    ("transaction_isolation", "read committed"),
    ("statement_timeout", "15s"),
    ("lock_timeout", "200ms"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("synchronous_commit", "on"),
    ("search_path", "\"pg_catalog\", \"pg_temp\""),
    ("row_security", "off"),
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
    ("exit_on_error", "off"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_indexscan", "on"),
    ("enable_nestloop", "on"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
];

/// Changes what an administrator can change, for the database.
async fn change_settings(database: &PostgresDatabase) {
    let mut owner = database.raw().await;
    run(
        &mut owner,
        "CREATE SCHEMA trap;
         CREATE FUNCTION trap.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '-infinity'::timestamptz $$;
         CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz
         LANGUAGE sql AS $$ SELECT '-infinity'::timestamptz $$;
         CREATE FUNCTION trap.pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
         CREATE FUNCTION trap.pg_try_advisory_xact_lock_shared(bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
         CREATE FUNCTION trap.unnest(anyarray) RETURNS SETOF anyelement LANGUAGE sql AS $$ SELECT $1[1] WHERE false $$;",
    )
    .await;
    let name = database.database.name().to_owned();
    for (setting, changed) in CHANGED {
        run(
            &mut owner,
            format!("ALTER DATABASE {name} SET {setting} = {}", literal(setting, changed)),
        )
        .await;
    }
}

/// A list of names is no text.
fn literal(setting: &str, changed: &str) -> String {
    if setting == "search_path" { changed.to_owned() } else { format!("'{changed}'") }
}

/// Has every write to these tables noted down, with the settings that it had.
async fn note_settings(database: &PostgresDatabase) {
    let mut owner = database.raw().await;
    let names: Vec<String> = WANTED.iter().map(|(name, _)| format!("'{name}'")).collect();
    run(
        &mut owner,
        format!(
            "CREATE TABLE public.had (what text, name text, setting text);
             CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 INSERT INTO public.had
                 SELECT TG_TABLE_NAME, n, current_setting(n) FROM pg_catalog.unnest(ARRAY[{}]) AS n;
                 RETURN NULL;
             END $$",
            names.join(", ")
        ),
    )
    .await;
    for table in ["events", "consumer_groups", "redeliveries", "state", "hosts"] {
        run(
            &mut owner,
            format!(
                "CREATE TRIGGER note AFTER INSERT OR UPDATE ON event_host.{table}
                 FOR EACH STATEMENT EXECUTE FUNCTION public.note()"
            ),
        )
        .await;
    }
}

async fn writes_everything(store: &PostgresStore) {
    store.check().await.unwrap();
    let mut session = store.lock_session(&host("one")).await.unwrap();
    led(store, "g").await;
    publish(store, "a").await;
    let alone = first_settlement("g", 1);
    assert_eq!(store.settle(&alone).await.unwrap(), Settled::Committed);
    let whole = Settlement {
        number: 2,
        emits: vec![super::event("emitted")],
        redeliveries: vec![super::redelivery(1, 2)],
        state: vec![event_host_store::StateWrite {
            scope: String::new(),
            key: "k".into(),
            value: Some(vec![1]),
        }],
        ..alone
    };
    assert_eq!(store.settle(&whole).await.unwrap(), Settled::Committed);
    assert_eq!(claims(&mut session, &["g"]).await, [true]);
    session.heartbeat(false).await.unwrap();
    until("both events are safe", async || store.safe_position().await.unwrap() == Position(2))
        .await;
    store.pause(&group("g"), "a reason").await.unwrap();
    store.status().await.unwrap();
}

async fn every_write_brings_its_settings_along(pooled: bool) {
    let database = PostgresDatabase::new().await;
    change_settings(&database).await;
    note_settings(&database).await;
    let store = if pooled { database.pooled_store() } else { database.store() };
    writes_everything(&store).await;
    let mut owner = database.raw().await;
    run(&mut owner, "SET search_path = pg_catalog").await;
    let written: i64 = value(&mut owner, "SELECT count(DISTINCT what) FROM public.had").await;
    assert_eq!(written, 5, "each of the tables was written");
    let wanted: Vec<String> =
        WANTED.iter().map(|(name, setting)| format!("('{name}', '{setting}')")).collect();
    let others: Option<Vec<String>> = value(
        &mut owner,
        format!(
            "SELECT array_agg(DISTINCT h.what || ': ' || h.name || ' = ' || h.setting)
             FROM public.had h JOIN (VALUES {}) w (name, setting) ON w.name = h.name
             WHERE h.setting <> w.setting
               -- What an operator asks for waits longer.
               AND NOT (h.name = 'lock_timeout' AND h.setting = '10s' AND h.what = 'consumer_groups')",
            wanted.join(", ")
        ),
    )
    .await;
    assert_eq!(others, None);
}

#[tokio::test]
async fn every_write_on_a_session_of_ones_own_has_the_settings_that_are_relied_on() {
    every_write_brings_its_settings_along(false).await;
}

#[tokio::test]
async fn every_write_through_a_pooler_has_the_settings_that_are_relied_on() {
    every_write_brings_its_settings_along(true).await;
}

#[tokio::test]
async fn a_transaction_through_a_pooler_leaves_nothing_in_its_session() {
    let database = PostgresDatabase::new().await;
    let store = database.pooled_store();
    writes_everything(&store).await;
    // The same session, as the next client finds it.
    let mut shared = store.connections.shared().await.unwrap();
    let left: Option<Vec<String>> = value(
        shared.connection(),
        "SELECT array_agg(name || ' = ' || setting) FROM pg_settings WHERE source = 'session'",
    )
    .await;
    assert_eq!(left, None);
}

#[tokio::test]
async fn sessions_that_only_read_or_let_references_be_are_refused_by_name() {
    for (setting, changed) in
        [("default_transaction_read_only", "on"), ("session_replication_role", "replica")]
    {
        let database = PostgresDatabase::new().await;
        let name = database.database.name();
        let alter = format!("ALTER DATABASE {name} SET {setting} = {changed}");
        run(&mut database.raw().await, alter).await;
        for store in [database.store(), database.pooled_store()] {
            let error = store.check().await.unwrap_err();
            assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
            says(&error, &[setting, changed, "set by: database", "ALTER DATABASE"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_event_of_a_burst_is_safe_at_once_whatever_the_isolation_level() {
    for isolation in ["repeatable read", "serializable"] {
        let database = PostgresDatabase::new().await;
        let name = database.database.name();
        let alter =
            format!("ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'");
        run(&mut database.raw().await, alter).await;
        for store in [database.store(), database.pooled_store()] {
            for _ in 0..20 {
                let mut writers = JoinSet::new();
                for _ in 0..8 {
                    let store = store.clone();
                    writers.spawn(async move { publish(&store, "a").await });
                }
                let looking = async {
                    while !writers.is_empty() {
                        store.safe_position().await.unwrap();
                        while writers.try_join_next().is_some() {}
                    }
                };
                tokio::time::timeout(super::PATIENCE, looking).await.unwrap();
                let last: i64 =
                    value(&mut database.raw().await, "SELECT max(position) FROM event_host.events")
                        .await;
                let safe = async {
                    while store.safe_position().await.unwrap() < Position(last) {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                let soon = tokio::time::timeout(Duration::from_secs(5), safe).await;
                assert!(soon.is_ok(), "{isolation}: {last} is not safe");
            }
        }
    }
}

/// A database whose stores have no session of their own but for the locks, as behind a
/// pooler.
struct Pooled(PostgresDatabase);

#[async_trait]
impl DeliveryDatabase for Pooled {
    async fn delivery(&self) -> Arc<dyn DeliveryStore> {
        self.handle().await
    }

    async fn drawn_up_to(&self, position: i64) {
        self.0.drawn_up_to(position).await;
    }

    fn sees_what_is_wrong_with(&self, event: &Event) -> bool {
        self.0.sees_what_is_wrong_with(event)
    }

    fn kept(&self, text: &str) -> String {
        self.0.kept(text)
    }
}

#[async_trait]
impl TestDatabase for Pooled {
    async fn handle(&self) -> Arc<dyn Store> {
        Arc::new(self.0.pooled_store())
    }
}

mod suite {
    event_host_store::store_suite!(super::Pooled(super::PostgresDatabase::new().await));
}
