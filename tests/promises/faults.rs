//! The database beside other programs, and hosts that freeze (promises 3, 5, 7 and
//! 18).

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tests::{Client, Handler, PATIENCE, Rig, Settings, Store, event, wait_until};

tests::on_both_stores! {
    what_sql_clients_commit_is_handled_and_what_they_roll_back_is_not,
    an_open_transaction_that_wrote_nothing_holds_nothing_up,
    events_of_many_publishers_at_once_are_each_handled_once,
    a_batch_that_is_open_when_the_cursor_is_moved_commits_nothing,
    a_host_that_was_frozen_goes_on_and_the_freeze_counts_no_attempt,
    a_cursor_beyond_the_log_is_an_error_that_says_what_to_do,
    a_line_that_is_typed_is_published_while_the_input_is_still_open,
    hosts_with_different_handlers_share_a_database_and_leave_each_other_alone,
}

fn tally() -> Settings {
    Settings::of([Handler::new("tally", "tally", &["a"]).attempts(1)])
}

/// A rig with an idle host, whose group has handled one event.
fn idle(store: Store) -> (Rig, tests::Running) {
    let rig = Rig::on(store, &tally());
    rig.publish(&[event("a", 0, json!(null))]);
    let host = rig.spawn_run();
    wait_until("the first is handled", PATIENCE, || rig.state("tally", "count") == 1);
    (rig, host)
}

const INSERT: &str = "INSERT INTO events (type, data) VALUES ('a', '{}')";

// Promises 1 and 5.
fn what_sql_clients_commit_is_handled_and_what_they_roll_back_is_not(store: Store) {
    let (rig, host) = idle(store);
    let mut client = Client::new(&rig);
    for round in 0..20 {
        client.execute("BEGIN");
        client.execute(INSERT);
        client.execute(INSERT);
        client.execute(if round % 2 == 0 { "ROLLBACK" } else { "COMMIT" });
    }
    client.execute(INSERT);
    wait_until("all that is committed is handled", Duration::from_secs(5), || {
        rig.state("tally", "count") == 1 + 20 + 1
    });
    assert_eq!(rig.number("SELECT count(*) FROM events"), 22);
    assert_eq!(rig.group("tally")["lag_events"], 0);
    host.stop();
}

// Promise 5.
fn an_open_transaction_that_wrote_nothing_holds_nothing_up(store: Store) {
    let (rig, host) = idle(store);
    let mut reader = Client::new(&rig);
    reader.execute("BEGIN");
    reader.execute("SELECT count(*) FROM events");
    for n in 1..=5 {
        rig.publish(&[event("a", n, json!(null))]);
        wait_until("it is handled", Duration::from_secs(5), || {
            rig.state("tally", "count") == n + 1
        });
    }
    reader.execute("COMMIT");
    host.stop();
}

// Promise 1.
fn events_of_many_publishers_at_once_are_each_handled_once(store: Store) {
    let (rig, host) = idle(store);
    let file: String = (0..200).map(|n| format!("{}\n", event("a", n, json!(null)))).collect();
    rig.write("many.jsonl", file);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..3 {
                    let _ = rig.host(["publish", "--file", "many.jsonl"]).ok();
                }
            });
        }
    });
    let all = 1 + 8 * 3 * 200;
    wait_until("all are handled", PATIENCE, || rig.state("tally", "count") >= all);
    assert_eq!(rig.state("tally", "count"), all);
    assert_eq!(rig.number("SELECT count(*) FROM events"), all);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    host.stop();
}

// Promises 7 and 18.
#[test]
fn a_database_that_another_program_locks_is_waited_for_and_counts_no_attempt() {
    let (rig, host) = idle(Store::Sqlite);
    let mut other = Client::new(&rig);
    other.execute("BEGIN IMMEDIATE");
    other.execute(INSERT);
    other.execute("COMMIT");
    other.execute("BEGIN IMMEDIATE");
    host.wait_for_log("the host says what it waits for", |line| {
        line["level"] == "ERROR" && line["group"] == "tally"
    });
    assert_eq!(rig.state("tally", "count"), 1);
    let complaint = rig.host(["publish", "--type", "a"]).failed(1);
    assert!(complaint.contains("locked"), "{complaint}");
    other.execute("COMMIT");
    wait_until("it goes on", Duration::from_secs(15), || rig.state("tally", "count") == 2);
    host.wait_for_log("the host says that it is over", |line| {
        line["group"] == "tally"
            && line["message"].as_str().is_some_and(|said| said.ends_with(" again"))
    });
    assert_eq!(rig.group("tally")["epoch"], 1);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    host.stop();
}

// Promise 3.
fn a_batch_that_is_open_when_the_cursor_is_moved_commits_nothing(store: Store) {
    let rig = Rig::on(store, &Settings::of([Handler::new("chaos", "chaos", &["command"])]));
    let slow = json!([
        { "do": "log", "line": "begun" },
        { "do": "count", "key": "count" },
        { "do": "emit", "type": "out" },
        { "do": "sleep", "ms": 2000 },
    ]);
    rig.publish(&[event("command", 1, slow), event("nothing", 2, json!(null))]);
    let host = rig.spawn_run();
    host.wait_for_message("begun");
    let _ = rig.host(["groups", "seek", "chaos", "--to", "latest"]).ok();
    host.wait_for_log("it reads the cursor anew", |line| {
        line["message"] == "leading" && line["epoch"] == 3
    });
    host.stop();
    assert_eq!(rig.state("chaos", "count"), 0);
    assert_eq!(rig.data_of("out"), Vec::<Value>::new());
    assert_eq!(rig.group("chaos")["position"], 2);
}

// Promises 3 and 7.
fn a_host_that_was_frozen_goes_on_and_the_freeze_counts_no_attempt(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("chaos", "chaos", &["command"])
            .attempts(1)
            .set("limits.timeout = \"60s\"")]),
    );
    let slow = json!([
        { "do": "log", "line": "begun" },
        { "do": "sleep", "ms": 500 },
        { "do": "report", "type": "seen" },
    ]);
    rig.publish(&[event("command", 1, slow)]);
    let host = rig.spawn_run();
    host.wait_for_message("begun");
    host.freeze();
    let standby = rig.spawn_run();
    standby.wait_for_message("another host leads; standing by");
    // Longer than a host may be without a proof of its locks.
    std::thread::sleep(Duration::from_secs(7));
    host.thaw();
    wait_until("one of the two handles it", Duration::from_secs(20), || {
        !rig.data_of("seen").is_empty()
    });
    host.stop();
    standby.stop();
    let seen = rig.data_of("seen");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0]["attempt"], 1);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn a_cursor_beyond_the_log_is_an_error_that_says_what_to_do(store: Store) {
    let rig = Rig::on(store, &tally());
    rig.publish(&[event("a", 1, json!(null))]);
    rig.drain();
    // As after the log was put back to an older state.
    Client::new(&rig).execute("UPDATE consumer_groups SET position = 1000");
    let complaint = rig.host(["run", "--drain"]).failed(1);
    assert!(complaint.contains("beyond the log"), "{complaint}");
    assert!(complaint.contains("host groups seek tally"), "{complaint}");
    let _ = rig.host(["groups", "seek", "tally", "--to", "latest"]).ok();
    rig.publish(&[event("a", 2, json!(null))]);
    rig.drain();
    assert_eq!(rig.state("tally", "count"), 2);
}

fn a_line_that_is_typed_is_published_while_the_input_is_still_open(store: Store) {
    let (rig, host) = idle(store);
    let mut publish = rig
        .command(["publish", "--file", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the program starts");
    let mut stdin = publish.stdin.take().expect("stdin is piped");
    for n in 1..=3 {
        writeln!(stdin, "{}", event("a", n, json!(null))).expect("the program reads");
        wait_until("the line is handled", Duration::from_secs(10), || {
            rig.state("tally", "count") == n + 1
        });
    }
    drop(stdin);
    assert!(publish.wait().expect("it ends").success());
    host.stop();
}

fn hosts_with_different_handlers_share_a_database_and_leave_each_other_alone(store: Store) {
    let rig = Rig::on(store, &tally());
    let other = Settings::of([Handler::new("other", "tally", &["a"])]);
    let other = match store {
        Store::Sqlite => other,
        Store::Postgres => other.top(&format!("database = {:?}", rig.url())),
    };
    rig.write("other.toml", other.to_toml());
    let events: Vec<Value> = (0..500).map(|n| event("a", n, json!(null))).collect();
    rig.publish(&events);
    let one = rig.spawn(&["run"]);
    let two = rig.spawn(&["run", "other.toml"]);
    wait_until("both groups handle all", PATIENCE, || {
        rig.state("tally", "count") == 500 && rig.state("other", "count") == 500
    });
    assert_eq!(rig.group("tally")["leader"]["host"]["pid"], one.pid());
    assert_eq!(rig.group("other")["leader"]["host"]["pid"], two.pid());
    one.stop();
    two.stop();
}
