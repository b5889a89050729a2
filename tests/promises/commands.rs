//! Commands that other topics do not use: `invoke`, `migrate`, and where a new
//! group begins.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};
use tests::{Handler, Rig, Settings, Store, event, guest_file};

tests::on_both_stores! {
    migrate_makes_a_database_once_and_run_can_be_told_to_leave_that_to_it,
    a_new_group_begins_where_it_is_told_and_an_old_one_goes_on_where_it_was,
    a_subscription_that_grew_reaches_later_events_and_no_earlier_ones,
    a_listing_is_cut_at_its_limit_and_says_how_to_go_on,
}

fn tally() -> Settings {
    Settings::of([Handler::new("tally", "tally", &["a"])])
}

/// `host invoke` of a guest, with this event on stdin: exit code and answer.
fn invoke(rig: &Rig, guest: &str, event: &Value, more: &[&str]) -> (Option<i32>, Value) {
    let file = guest_file(guest);
    let file = file.to_str().expect("a path that is text");
    let mut arguments = vec!["invoke", file, "--event", "-", "--json"];
    arguments.extend(more);
    let finished = rig.host_reading(&arguments, event.to_string());
    let answer = serde_json::from_str(&finished.stdout);
    (finished.code, answer.unwrap_or_else(|error| panic!("{error}: {finished:?}")))
}

#[test]
fn invoke_tells_what_a_handler_did_and_needs_no_database() {
    let rig = Rig::new(&tally());
    let commands = json!([
        { "do": "log", "line": "hello", "level": "warn" },
        { "do": "count", "key": "k" },
        { "do": "report", "type": "seen" },
    ]);
    let arguments = ["--attempt", "3"];
    let (code, answer) = invoke(&rig, "chaos", &event("a", "the id", commands), &arguments);
    assert_eq!((code, &answer["outcome"]), (Some(0), &json!("success")));
    assert_eq!(answer["logs"], json!([{ "level": "warn", "message": "hello" }]));
    assert_eq!(answer["state"], json!([{ "key": "k", "value": "1" }]));
    let seen = &answer["emits"][0];
    assert_eq!((&seen["type"], &seen["data"]["id"]), (&json!("seen"), &json!("the id")));
    assert_eq!(seen["data"]["attempt"], 3);
    assert!(answer["duration_ms"].as_f64().is_some_and(|took| took > 0.0));
    assert!(answer["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 65_536));
    assert_eq!(answer["failure"], Value::Null);
    assert!(!rig.database().exists());
}

#[test]
fn invoke_grants_fine_clocks_where_it_is_told_to() {
    let rig = Rig::new(&tally());
    let resolution = |more: &[&str]| {
        let look = event("a", 1, json!({ "do": "clocks", "type": "times" }));
        let (_, answer) = invoke(&rig, "chaos", &look, more);
        answer["emits"][0]["data"]["monotonic"]["resolution"].as_u64().expect("a number")
    };
    assert_eq!(resolution(&[]), 1_000_000);
    assert_eq!(resolution(&["--clocks", "coarse"]), 1_000_000);
    assert!(resolution(&["--clocks", "fine"]) < 1_000_000);
    let complaint = rig.host(["invoke", "c.wasm", "--event", "-", "--clocks", "exact"]).failed(2);
    assert!(complaint.contains("write \"coarse\" or \"fine\""), "{complaint}");
}

#[test]
fn invoke_of_a_failing_handler_exits_with_1_and_tells_the_failure() {
    let rig = Rig::new(&tally());
    let failure = |commands: Value, more: &[&str]| {
        let (code, answer) = invoke(&rig, "chaos", &event("a", 1, commands), more);
        assert_eq!((code, &answer["outcome"]), (Some(1), &json!("failure")), "{answer}");
        answer["failure"].clone()
    };
    let retry = failure(json!({ "do": "retry", "text": "later", "after-ms": 1500 }), &[]);
    assert_eq!(retry, json!({ "kind": "retry", "text": "later", "retry_after_ms": 1500 }));
    assert_eq!(failure(json!({ "do": "trap" }), &[])["kind"], "trap");
    let spin = failure(json!({ "do": "spin" }), &["--timeout", "300ms"]);
    assert_eq!(spin["kind"], "timeout");
    let memory = failure(json!({ "do": "allocate" }), &["--memory", "8MiB"]);
    assert_eq!(memory["kind"], "memory-limit");
    let granted = json!({ "do": "abort-if-env", "name": "A" });
    assert_eq!(failure(granted.clone(), &["--env", "A=1"])["kind"], "trap");
    assert_eq!(invoke(&rig, "chaos", &event("a", 1, granted), &[]).0, Some(0));
}

#[test]
fn invoke_calls_a_handler_of_batches_with_a_batch_of_one() {
    let rig = Rig::new(&tally());
    let (code, answer) = invoke(&rig, "batch", &event("a", 1, json!(null)), &[]);
    assert_eq!((code, &answer["outcome"]), (Some(0), &json!("success")), "{answer}");
    assert_eq!(answer["state"], json!([{ "key": "count", "value": "1" }]));
    assert_eq!(answer["emits"][0]["data"], json!({ "positions": [1] }));
    let rejected = event("a", 1, json!({ "reject": true }));
    let (code, answer) = invoke(&rig, "batch", &rejected, &[]);
    assert_eq!((code, &answer["failure"]["text"]), (Some(1), &json!("as it was told")));
    assert_eq!(answer["emits"], json!([]));
}

#[test]
fn invoke_refuses_what_is_no_event_or_no_component() {
    let rig = Rig::new(&tally());
    let file = guest_file("noop");
    let file = file.to_str().expect("a path that is text");
    rig.write("bad.json", r#"{"specversion":"1.0","id":"1","source":"/t"}"#);
    rig.write("good.json", event("a", 1, json!(null)).to_string());
    let complaint = rig.host(["invoke", file, "--event", "bad.json"]).failed(1);
    assert!(complaint.contains("bad.json") && complaint.contains("`type`"), "{complaint}");
    let complaint = rig.host(["invoke", file, "--event", "none.json"]).failed(1);
    assert!(complaint.contains("none.json"), "{complaint}");
    let complaint = rig.host(["invoke", "none.wasm", "--event", "good.json"]).failed(1);
    assert_eq!(complaint, "error: none.wasm: there is no such file\n");
}

/// What the settings grant of what a component imports, how it was built, and how large
/// it is.
#[test]
fn check_says_what_a_component_is_and_what_it_may_use() {
    let granted = "allow = { http = [\"https://api.example.com\"], emit = [\"seen\"] }";
    let open = Handler::of_file("open", "built.wasm", &["a"]).set(granted);
    let rig = Rig::new(&Settings::of([open, Handler::new("closed", "chaos", &["a"])]));
    let mut built = std::fs::read(guest_file("chaos")).expect("the guest is there");
    // What compilers write: one field, and one value of it with a version.
    built.extend(b"\0\x1f\x09producers\x01\x08language\x01\x04Rust\x042021");
    let size = built.len();
    rig.write("built.wasm", built);
    let checked = rig.json(&["check"]);
    let granted = |handler: usize, package: &str| {
        let imports = checked[handler]["imports"].as_array().expect("a list");
        let import = imports.iter().find(|import| import["package"] == package);
        import.unwrap_or_else(|| panic!("{package}: {checked:#}"))["granted"].clone()
    };
    assert_eq!(checked[0]["bytes"], size);
    assert!(checked[0]["memory_bytes"].as_u64() >= Some(64 << 10), "{checked:#}");
    let rust = json!({ "kind": "language", "name": "Rust", "version": "2021" });
    assert!(checked[0]["built_with"].as_array().is_some_and(|with| with.contains(&rust)));
    assert_eq!(granted(0, "wasi:http"), json!(["https://api.example.com"]));
    assert_eq!(granted(1, "wasi:http"), json!([]));
    assert!(granted(0, "event-host:handler").to_string().contains("outbox (seen)"));
    let text = rig.host(["check"]).ok();
    for line in
        ["wasi:http: granted https://api.example.com", "granted nothing", "Rust 2021", "of memory"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
}

fn migrate_makes_a_database_once_and_run_can_be_told_to_leave_that_to_it(store: Store) {
    let rig = Rig::on(store, &tally().top("migrate = false"));
    let complaint = rig.host(["run", "--drain"]).failed(1);
    assert!(complaint.contains("host migrate"), "{complaint}");
    if store == Store::Sqlite {
        assert!(!rig.database().exists());
    }
    let said = rig.host(["migrate"]).ok();
    assert!(said.contains("0001"), "{said}");
    let again = rig.host(["migrate"]).ok();
    assert!(!again.contains("0001"), "{again}");
    rig.publish(&[event("a", 1, json!(null))]);
    rig.drain();
    assert_eq!(rig.state("tally", "count"), 1);
}

fn a_new_group_begins_where_it_is_told_and_an_old_one_goes_on_where_it_was(store: Store) {
    let at = |name: &str, start: &str| {
        Handler::new(name, "tally", &["a"]).set(&format!("start = {start}"))
    };
    let settings = Settings::of([
        at("earliest", "\"earliest\""),
        at("latest", "\"latest\""),
        at("position", "3"),
        at("time", "2026-01-04T00:00:00Z"),
    ]);
    let rig = Rig::on(store, &settings);
    let dated = |day: i64| {
        tests::with(event("a", day, json!(null)), "time", format!("2026-01-0{day}T00:00:00Z"))
    };
    rig.publish((1..=5).map(dated).collect::<Vec<_>>().iter());
    rig.drain();
    let counts = || ["earliest", "latest", "position", "time"].map(|name| rig.state(name, "count"));
    assert_eq!(counts(), [5, 0, 2, 2]);
    rig.publish(&[dated(6)]);
    rig.drain();
    assert_eq!(counts(), [6, 1, 3, 3]);
}

fn a_subscription_that_grew_reaches_later_events_and_no_earlier_ones(store: Store) {
    let rig = Rig::on(store, &tally());
    rig.publish(&[event("a", 1, json!(null)), event("b", 2, json!(null))]);
    rig.drain();
    assert_eq!(rig.group("tally")["position"], 2, "what concerns others is passed");
    rig.configure(&Settings::of([Handler::new("tally", "tally", &["a", "b*"])]));
    rig.publish(&[event("bb", 3, json!(null))]);
    rig.drain();
    assert_eq!(rig.state("tally", "count"), 2);
    assert_eq!(rig.group("tally")["subscribe"], json!(["a", "b*"]));
}

#[test]
fn a_reader_that_leaves_early_is_no_trouble() {
    let rig = Rig::new(&Settings::of([Handler::new("chaos", "chaos", &["a"])]));
    let events: Vec<Value> = (0..3_000).map(|n| event("a", n, json!({ "do": "reject" }))).collect();
    rig.publish(&events);
    rig.drain();
    let mut list = rig
        .command(["dlq", "list", "--limit", "3000", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut first = String::new();
    let stdout = list.stdout.take().expect("stdout is piped");
    BufReader::new(stdout).read_line(&mut first).expect("it writes");
    let output = list.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

fn a_listing_is_cut_at_its_limit_and_says_how_to_go_on(store: Store) {
    let rig = Rig::on(store, &Settings::of([Handler::new("chaos", "chaos", &["a"])]));
    let events: Vec<Value> = (0..5).map(|n| event("a", n, json!({ "do": "reject" }))).collect();
    rig.publish(&events);
    rig.drain();
    let said = rig.host(["dlq", "list", "--limit", "2"]).ok();
    assert!(said.contains("host dlq list --after 2"), "{said}");
    let rest = rig.json(&["dlq", "list", "--after", "2", "--group", "chaos"]);
    let ids: Vec<&Value> =
        rest.as_array().expect("a list").iter().map(|letter| &letter["id"]).collect();
    assert_eq!(ids, [3, 4, 5]);
}

#[test]
fn a_password_on_the_command_line_is_never_repeated() {
    let rig = Rig::new(&tally());
    let url = "postgres://u:hunter2@h/d";
    let query = "postgres://h/d?password=hunter2";
    for arguments in [
        // Where it belongs, with a mistake in it.
        &["--database", "postgres://u:hunter2@h:port/d", "status"][..],
        &["--database", "postgres://u:hun#ter2@h/d", "status"],
        &["--database", "postgres://h/d?password=hunter2&hunter2=x", "run"],
        &["--database", "mysql://u:hunter2@h/d", "check"],
        // Where it does not.
        &[url],
        &["status", url],
        &["run", url],
        &["check", query],
        &["--databse", url, "status"],
        &["status", "--databse=postgres://u:hunter2@h/d"],
        &["--config", url, "status"],
        &["--log", url, "status"],
        &["--log-format", query, "status"],
        &["groups", "show", url],
        &["groups", "pause", query],
        &["dlq", "show", url],
        &["invoke", url],
        &["publish", "--file", query],
    ] {
        let finished = rig.host(arguments);
        let said = format!("{}{}", finished.stdout, finished.stderr);
        assert!(matches!(finished.code, Some(1 | 2)), "{arguments:?}: {finished:?}");
        assert!(!said.is_empty() && !said.contains("hun"), "{arguments:?}: {said}");
    }
}
