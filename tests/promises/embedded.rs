//! The embedded database as a file: what is in it at the end, and what becomes of a host
//! whose file goes away.

use std::fs;

use serde_json::{Value, json};
use tests::{Client, Handler, PATIENCE, Rig, Settings, event, wait_until};

fn tally() -> Settings {
    Settings::of([Handler::new("tally", "tally", &["a"])])
}

fn publish(rig: &Rig, ids: impl IntoIterator<Item = usize>) {
    let events: Vec<Value> = ids.into_iter().map(|id| event("a", id, json!(null))).collect();
    rig.publish(&events);
}

/// Waits by commands, and not by a session of the test's own, which would have the
/// database open too.
fn wait_until_handled(rig: &Rig, position: i64) {
    wait_until("it is handled", PATIENCE, || {
        let status = rig.json(&["status"]);
        status["groups"][0]["position"] == json!(position)
    });
}

/// What lies beside the database, apart from the locks.
fn beside(rig: &Rig) -> Vec<String> {
    let files = fs::read_dir(rig.path(".")).expect("the rig's folder");
    let names = files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("host.db-") && name != "host.db-locks").collect()
}

#[test]
fn a_command_or_a_host_that_ends_leaves_everything_in_one_file() {
    let rig = Rig::new(&tally());
    let is_one_file = |what: &str| assert_eq!(beside(&rig), [""; 0], "after {what}");
    let _ = rig.host(["migrate"]).ok();
    is_one_file("migrate");
    publish(&rig, 0..5);
    is_one_file("publish");
    let host = rig.spawn_run();
    wait_until_handled(&rig, 5);
    host.stop();
    is_one_file("run");
    rig.drain();
    is_one_file("run --drain");
    let _ = rig.json(&["status"]);
    is_one_file("status");
    let _ = rig.host(["groups", "show", "nobody"]).failed(1);
    is_one_file("what failed");

    // A copy of it is the whole of it, also where others have it open at the end.
    let mut other = Client::new(&rig);
    assert_eq!(other.number("SELECT count(*) FROM events"), 5);
    let host = rig.spawn_run();
    publish(&rig, 5..9);
    wait_until_handled(&rig, 9);
    host.stop();
    let copy = Rig::new(&tally());
    fs::copy(rig.path("host.db"), copy.path("host.db")).expect("it can be copied");
    let group = copy.group("tally");
    assert_eq!((&group["position"], &group["lag_events"]), (&json!(9), &json!(0)));
}

#[test]
fn a_database_that_vanishes_is_missed_and_what_is_put_in_its_place_is_led() {
    let rig = Rig::new(&tally());
    publish(&rig, 0..3);
    let host = rig.spawn_run();
    wait_until_handled(&rig, 3);
    let backup = rig.path("backup.db");
    Client::new(&rig).execute(&format!("VACUUM INTO '{}'", backup.display()));
    publish(&rig, 3..8);
    wait_until_handled(&rig, 8);

    fs::remove_file(rig.path("host.db")).expect("it can be deleted");
    host.wait_for_log("it steps down", |line| {
        let said = line["message"].as_str().unwrap_or_default();
        said.contains("stepping down") && said.contains("moved or deleted")
    });
    assert!(!rig.path("host.db").exists(), "no new one came into being");

    // Older than what the host has read: the positions from 4 on are used again.
    fs::rename(&backup, rig.path("host.db")).expect("it can be put there");
    host.wait_for_log("it leads again", |line| {
        line["message"] == "leading" && line["position"] == json!(3)
    });
    publish(&rig, 20..22);
    wait_until("all that is there now is handled", PATIENCE, || {
        let group = rig.group("tally");
        group["position"] == json!(5) && group["lag_events"] == json!(0)
    });
    assert_eq!(rig.state("tally", "count"), 5, "three before the backup, and two since");
    host.stop();
    assert_eq!(rig.number("SELECT count(*) FROM events"), 5);
}
