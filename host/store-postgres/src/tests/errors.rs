//! What the server's errors come to mean, by real ones, and that none of them
//! tells a password.

use sqlx::PgConnection;
use test_postgres::Server;

use super::{
    PostgresDatabase, first_settlement, led, pid, run, says, session_at, store_at, try_to_run,
    until,
};
use crate::error::PostgresError;
use event_host_store::StoreError;
use event_host_store::traits::*;

/// Which of the answers.
#[derive(Debug, PartialEq)]
enum Answer {
    Unavailable,
    Busy,
    Unusable,
    Refused,
}
use Answer::{Busy, Refused, Unavailable, Unusable};

fn told(error: sqlx::Error) -> (Answer, String) {
    match PostgresError::from(error).told("do this", "database d at h:1") {
        StoreError::Unavailable(text) => (Unavailable, text),
        StoreError::Busy(text) => (Busy, text),
        StoreError::Unusable(text) => (Unusable, text),
        StoreError::Refused(text) => (Refused, text),
        StoreError::NotFound(_) | StoreError::Unstorable(_) | StoreError::Changed(_) => {
            panic!("told of no settlement")
        }
    }
}

async fn answer(session: &mut PgConnection, sql: &str) -> (Answer, String) {
    told(try_to_run(session, sql).await.expect_err(sql))
}

fn raised(code: &str) -> String {
    format!("DO $$ BEGIN RAISE EXCEPTION 'the reason' USING ERRCODE = '{code}'; END $$")
}

#[tokio::test]
async fn every_kind_of_error_is_told_so_that_somebody_can_act_on_it() {
    let database = PostgresDatabase::new().await;
    let mut session = database.raw().await;
    let mut other = database.raw().await;
    run(&mut other, "BEGIN; LOCK TABLE event_host.home").await;
    for (sql, kind, part) in [
        // Trying again may help.
        ("SET statement_timeout = '1ms'; SELECT pg_sleep(10)", Busy, "took too long"),
        ("BEGIN; LOCK TABLE event_host.home NOWAIT", Busy, "locked"),
        (&raised("40001"), Busy, "stood in the way"),
        (&raised("40P01"), Busy, "stood in the way"),
        (&raised("53300"), Busy, "the reason"),
        (&raised("53100"), Busy, "the reason"),
        (&raised("57P03"), Unavailable, "the reason"),
        (&raised("58030"), Unavailable, "the reason"),
        (&raised("08006"), Unavailable, "the reason"),
        ("BEGIN READ ONLY; CREATE TABLE public.t (id int)", Busy, "only reads"),
        ("SELECT * FROM event_host.nothing", Unusable, "host migrate"),
        ("CREATE TABLE nowhere.t (id int)", Unusable, "host migrate"),
        ("SELECT event_host.nothing()", Unusable, "host migrate"),
        ("SELECT nothing FROM event_host.events", Unusable, "host migrate"),
        ("EXECUTE nothing", Unusable, "max_prepared_statements"),
        (&raised("XX000"), Unusable, "the reason"),
        ("SELECT 1 +", Unusable, "syntax error"),
        // The request is at fault.
        ("INSERT INTO event_host.events (type) VALUES ('')", Refused, "type_is_not_empty"),
        ("INSERT INTO event_host.events (type) VALUES (NULL)", Refused, "null value"),
        ("INSERT INTO event_host.events (type, time) VALUES ('a', 'x')", Refused, "invalid input"),
        (&raised("54000"), Refused, "too large"),
        (&raised("P0001"), Refused, "the reason"),
    ] {
        let (answer, text) = answer(&mut session, sql).await;
        run(&mut session, "ROLLBACK; RESET ALL").await;
        assert_eq!(answer, kind, "{sql}: {text}");
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
    let mut another = database.raw().await;
    let ended = answer(&mut another, "SELECT pg_terminate_backend(pg_backend_pid())").await;
    assert_eq!(ended.0, Unavailable, "{}", ended.1);
}

#[tokio::test]
async fn who_holds_a_table_locked_is_named_by_whatever_waited_for_it() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    led(&store, "g").await;
    let mut other = database.raw().await;
    let pid = pid(&mut other).await;
    run(&mut other, "BEGIN; LOCK TABLE event_host.consumer_groups").await;
    let table = "event_host.consumer_groups";
    let named = format!("{table} is locked by the transaction of server process {pid}");
    says(&store.status().await.unwrap_err(), &["cannot read the status", &named]);
    says(&store.settle(&first_settlement("g", 1)).await.unwrap_err(), &[&named]);
    run(&mut other, "COMMIT").await;
    store.status().await.unwrap();
}

#[tokio::test]
async fn who_is_not_let_in_is_told_why_and_never_with_a_password() {
    let server = Server::start(&[("password_encryption", "scram-sha-256")]).unwrap();
    let mut owner = session_at(&server.url("postgres")).await;
    run(&mut owner, "CREATE ROLE app LOGIN PASSWORD 'hunter2'").await;
    server
        .put(
            "pg_hba.conf",
            "host all app 127.0.0.1/32 scram-sha-256\nhost postgres postgres 127.0.0.1/32 trust\n",
        )
        .unwrap();
    run(&mut owner, "SELECT pg_reload_conf()").await;
    let port = server.port();
    let at = |user: &str, database: &str| {
        store_at(&format!("postgres://{user}@127.0.0.1:{port}/{database}"))
    };
    until("the server asks for passwords", async || {
        at("app:wrong", "postgres").check_schema(false).await.is_err()
    })
    .await;
    at("app:hunter2", "postgres").check_schema(false).await.unwrap();

    let nobody = store_at("postgres://app:hunter3@127.0.0.1:1/postgres");
    for (store, parts) in [
        (at("app:hunter3", "postgres"), &["lets nobody in", "password authentication failed"][..]),
        (at("app:hunter2", "missing"), &["lets nobody in", "\"missing\" does not exist"]),
        (at("nobody:hunter3", "postgres"), &["lets nobody in"]),
        (nobody, &["127.0.0.1:1", "cannot be reached"]),
    ] {
        let errors = [
            store.check_schema(true).await.unwrap_err(),
            store.lock_session(&super::host("one")).await.err().unwrap(),
            store.safe_position().await.unwrap_err(),
        ];
        for error in errors {
            says(&error, parts);
            for text in [error.to_string(), format!("{error:?}"), format!("{store:?}")] {
                assert!(!text.contains("hunter"), "{text}");
            }
        }
    }
    for url in ["postgres://app:hunter3@h:port/d", "mysql://app:hunter3@h/d", "app:hunter3"] {
        let Err(error) = super::PostgresStore::new(url.into(), None) else { continue };
        assert!(!error.to_string().contains("hunter"), "{error}");
    }
}
