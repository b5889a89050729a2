//! Databases whose administrators have settings of their own (promises 1 and 19).

use std::time::{Duration, Instant};

use serde_json::json;
use tests::{Client, Handler, Rig, Settings, Store, event, wait_until};

/// What each of them would do to a host that relied on the server's own defaults: see
/// events late, lose its sessions, wait for ever, read another thing than was written.
const CHANGED: &[&str] = &[
    "default_transaction_isolation = 'serializable'",
    "default_transaction_deferrable = on",
    "idle_session_timeout = '1s'",
    "statement_timeout = '1s'",
    "lock_timeout = '1s'",
    "synchronous_commit = off",
    "search_path = trap, pg_catalog",
    "DateStyle = 'German'",
    "IntervalStyle = 'sql_standard'",
    "TimeZone = 'Asia/Kathmandu'",
    "bytea_output = 'escape'",
    "extra_float_digits = -15",
    "standard_conforming_strings = off",
    "array_nulls = off",
    "transform_null_equals = on",
    "exit_on_error = on",
    "enable_indexscan = off",
    "enable_nestloop = off",
    "plan_cache_mode = 'force_custom_plan'",
    "jit_above_cost = 0",
    "work_mem = '64kB'",
    "client_min_messages = 'debug1'",
];

// Promises 1 and 19.
#[test]
fn whatever_an_administrator_has_set_each_event_is_handled_at_once() {
    let settings = Settings::of([Handler::new("tally", "tally", &["a"])]);
    for lock_database in [false, true] {
        let rig = Rig::on(Store::Postgres, &settings);
        let mut owner = Client::new(&rig);
        owner.execute(
            "CREATE SCHEMA trap;
             CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz
             LANGUAGE sql AS $$ SELECT '-infinity'::timestamptz $$",
        );
        for changed in CHANGED {
            owner.execute(&format!(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET {}', current_database()); END $$",
                changed.replace('\'', "''")
            ));
        }
        if lock_database {
            // As behind a pooler, the host sets nothing on the sessions that it shares.
            rig.configure(&settings.clone().top(&format!("lock_database = \"{}\"", rig.url())));
        }
        let host = rig.spawn_run();
        host.wait_until_leading("tally");
        for n in 1..=20 {
            rig.publish(&[event("a", n, json!({ "n": n }))]);
            let published = Instant::now();
            wait_until("it is handled", Duration::from_secs(10), || {
                rig.state("tally", "count") == n
            });
            assert!(published.elapsed() < Duration::from_secs(2), "{:?}", published.elapsed());
        }
        let status = rig.json(&["status"]);
        assert_eq!(status["events"], 20, "{status}");
        assert_eq!(status["groups"][0]["leader"]["host"]["pid"], host.pid());
        let lost = host.log().iter().any(|line| line["level"] == "ERROR");
        assert!(!lost, "{:#?}", host.log());
        host.stop();
    }
}
