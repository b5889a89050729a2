//! Operations that may take long have the time for it, at the server as here.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::{PostgresDatabase, dead, event, first_settlement, group, host, run, seen, settings};
use event_host_core::event::{Position, Tenant};
use event_host_store::traits::*;
use event_host_store::{
    DeadLetterFilter, DeadLetterId, GroupRegistration, Settlement, Start, StateWrite,
};

/// Has a statement fail that reads or changes a table and that the server would end
/// after less than 100 s.
async fn ask_for_time(owner: &mut PgConnection) {
    run(
        owner,
        "CREATE FUNCTION public.has_time() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
         BEGIN
             IF current_setting('statement_timeout')::interval < '100 s' THEN
                 RAISE 'it has %', current_setting('statement_timeout');
             END IF;
             RETURN true;
         END $$;
         CREATE FUNCTION public.must_have_time() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN PERFORM public.has_time(); RETURN NULL; END $$;
         GRANT EXECUTE ON FUNCTION public.has_time() TO PUBLIC",
    )
    .await;
}

async fn ask_readers(owner: &mut PgConnection, table: &str) {
    run(
        owner,
        format!(
            "ALTER TABLE event_host.{table} RENAME TO {table}_itself;
             CREATE VIEW event_host.{table} AS
             SELECT * FROM event_host.{table}_itself WHERE public.has_time()"
        ),
    )
    .await;
}

async fn ask_readers_no_more(owner: &mut PgConnection, table: &str) {
    run(
        owner,
        format!(
            "DROP VIEW event_host.{table};
             ALTER TABLE event_host.{table}_itself RENAME TO {table}"
        ),
    )
    .await;
}

#[tokio::test]
async fn what_may_take_long_is_not_ended_early_by_the_server() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let events: Vec<_> = (0..20).map(|_| event("a")).collect();
    store.publish(&Tenant::none(), &events).await.unwrap();
    let split = |partitions| GroupRegistration { partitions, ..settings("g") };
    store.ensure_group(&split(2)).await.unwrap();
    let part = group("g").partition(0);
    store.begin_leadership(&part, &host("one")).await.unwrap();
    let events = seen(&store).await;
    let settled = Settlement {
        group: part.clone(),
        dead_letters: events.iter().take(3).cloned().map(dead).collect(),
        state: vec![StateWrite { scope: String::new(), key: "k".to_owned(), value: Some(vec![1]) }],
        failures: Some(BTreeMap::new()),
        ..first_settlement("g", events[9].position.0)
    };
    store.settle(&settled).await.unwrap();

    let mut owner = database.raw().await;
    ask_for_time(&mut owner).await;
    for table in ["state", "dead_letters"] {
        ask_readers(&mut owner, table).await;
    }
    let tenant = Tenant::none();
    assert_eq!(store.state_key_count(&group("g")).await.unwrap(), 1);
    assert_eq!(store.tenant_state_bytes(&tenant).await.unwrap(), 2);
    assert_eq!(store.tenant_dead_letters(&tenant).await.unwrap(), 3);
    let ids = store.dead_letter_ids(&group("g")).await.unwrap();
    assert_eq!(ids.len(), 3);
    assert_eq!(store.dead_letters(&DeadLetterFilter::default()).await.unwrap().len(), 3);
    assert_eq!(store.status().await.unwrap().groups[0].dead_letters, 3);
    assert_eq!(store.group_status(&group("g")).await.unwrap().dead_letters, 3);
    for table in ["state", "dead_letters"] {
        ask_readers_no_more(&mut owner, table).await;
        run(
            &mut owner,
            format!(
                "CREATE TRIGGER must_have_time BEFORE DELETE ON event_host.{table}
                 FOR EACH STATEMENT EXECUTE FUNCTION public.must_have_time()"
            ),
        )
        .await;
    }
    run(
        &mut owner,
        "CREATE TRIGGER must_have_time BEFORE INSERT OR UPDATE OR DELETE ON event_host.redeliveries
         FOR EACH STATEMENT EXECUTE FUNCTION public.must_have_time()",
    )
    .await;
    store.ensure_group(&split(3)).await.unwrap();
    let waiting = store.group_status(&group("g")).await.unwrap().parked;
    assert!(waiting > 0, "something was brought over");
    store.seek(&group("g"), Start::Position(Position(5))).await.unwrap();
    store.seek(&group("g"), Start::Time(jiff::Timestamp::UNIX_EPOCH)).await.unwrap();
    let replayed = store.replay_some(&group("g"), DeadLetterId(0), ids[0], 100, None).await;
    assert_eq!(replayed.unwrap().len(), 1);
    store.remove_group(&group("g"), true).await.unwrap();
}
