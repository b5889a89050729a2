//! What does not work is said with each new reason, and shown while it is so.

use serde_json::Value;
use tests::{Client, Handler, PATIENCE, Rig, Settings, Store, wait_until};

use super::{end_lock_sessions, says};

// Promises 16 and 19.
#[test]
fn each_new_reason_is_said_and_status_shows_the_present_one() {
    let rig = Rig::on(Store::Postgres, &Settings::of([Handler::new("tally", "tally", &["a"])]));
    let host = rig.spawn_run();
    host.wait_until_leading("tally");
    let mut client = Client::new(&rig);
    client.execute("ALTER SEQUENCE events_position_seq CACHE 50");
    assert!(end_lock_sessions(&mut client) > 0);
    // That the session ended is the first reason, that none may be made the next.
    host.wait_for_log("the first", |line| says(line, &["the lock session is lost"]));
    host.wait_for_log("the next", |line| says(line, &["no lock session", "a cache of 50"]));
    let shown = || rig.host(["status"]).ok();
    wait_until("it is shown", PATIENCE, || {
        shown().lines().any(|line| line.contains("no lock session") && line.contains("cache of 50"))
    });
    let status = rig.json(&["status"]);
    let trouble = status["hosts"][0]["trouble"].as_str().unwrap_or_default();
    assert!(trouble.contains("a cache of 50"), "{status:#}");
    let said = |host: &tests::Running| {
        let lines: Vec<Value> = host.log();
        lines.iter().filter(|line| says(line, &["no lock session"])).count()
    };
    assert_eq!(said(&host), 1, "{:#?}", host.log());

    client.execute("ALTER SEQUENCE events_position_seq CACHE 1");
    host.wait_for_message("the lock session is back");
    wait_until("it is no longer shown", PATIENCE, || !shown().contains("no lock session"));
    host.stop();
}
