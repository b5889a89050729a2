//! Operation: bad input, stop and start, status, commands beside a running host
//! (promises 16, 17 and 19).

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tests::{Client, Handler, PATIENCE, Rig, Settings, Store, event, wait_until};

tests::on_both_stores! {
    what_does_not_exist_is_said_by_name,
    a_broken_line_on_stdin_says_how_far_it_got_and_from_line_goes_on_there,
    a_publish_that_is_interrupted_says_how_far_it_got,
    a_publish_that_is_interrupted_while_it_checks_its_file_says_so,
    a_write_that_waits_in_vain_for_a_lock_was_not_done,
    a_publish_that_fails_in_the_middle_says_how_far_it_got,
    what_is_published_comes_out_as_it_went_in,
    a_stop_lets_the_event_under_way_finish_and_settles_it,
    the_grace_period_ends_what_still_runs_and_counts_no_attempt,
    a_second_signal_exits_at_once,
    an_idle_host_stops_at_once_also_by_ctrl_c,
    status_says_who_leads_how_far_it_is_and_what_holds_it_up,
    a_pause_a_resume_and_a_seek_reach_the_running_host_within_a_second,
    a_pause_outlives_a_restart_and_drain_does_not_wait_for_it,
    a_group_is_not_removed_while_it_has_dead_letters_or_a_leader,
    the_log_is_quiet_while_events_flow,
}

fn tally() -> Settings {
    Settings::of([Handler::new("tally", "tally", &["a"])])
}

/// Expects a complaint of one sentence that says all of this.
fn complains(complaint: &str, fragments: &[&str]) {
    assert!(complaint.starts_with("error: "), "{complaint}");
    assert_eq!(complaint.trim_end().lines().count(), 1, "{complaint}");
    for fragment in fragments {
        assert!(complaint.contains(fragment), "`{fragment}` is not in: {complaint}");
    }
    let mut parts: Vec<&str> = complaint.split(": ").map(str::trim).collect();
    let said = parts.len();
    parts.sort_unstable();
    parts.dedup();
    assert_eq!(parts.len(), said, "something is said twice: {complaint}");
}

// Promise 16.
#[test]
fn a_bad_configuration_is_refused_with_its_place_before_anything_runs() {
    let rig = Rig::new(&tally());
    let good = tally().to_toml();
    let cases: &[(String, &[&str])] = &[
        (
            format!("{good}suscribe = [\"b\"]\n"),
            &["handlers.toml:5:1: unknown key `suscribe`", "`subscribe`?"],
        ),
        (format!("{good}limits.timeout = 5\n"), &["handlers.toml:5:", "`timeout` needs a unit"]),
        (
            format!("{good}limits.timeout = \"soon\"\n"),
            &["handlers.toml:5:", "`soon`", "not a duration"],
        ),
        (
            format!("{good}limits.memory = \"many\"\n"),
            &["handlers.toml:5:", "`many`", "not a size"],
        ),
        (format!("{good}ordering = \"fifo\"\n"), &["handlers.toml:5:", "\"key\""]),
        (format!("{good}group = \n"), &["handlers.toml:5:"]),
        (
            format!(
                "{good}[handlers.copy]\ncomponent = \"c.wasm\"\nsubscribe = [\"a\"]\ngroup = \"tally\"\n"
            ),
            &["handlers.toml:8:", "`tally` (line 2) and `copy`", "group"],
        ),
        (good.replace("[\"a\"]", "[]"), &["handlers.toml:4:", "subscri"]),
        (good.replace("[\"a\"]", "[\"\"]"), &["handlers.toml:4:", "no event type"]),
        (good.replace("subscribe = [\"a\"]", ""), &["handlers.toml:2:", "`subscribe`"]),
        (format!("database = \"mysql://x\"\n{good}"), &["handlers.toml:1:", "sqlite:host.db"]),
        (
            format!("{good}allow.env = {{ A = \"${{NOT_SET_ANYWHERE}}\" }}\n"),
            &["handlers.toml:5:", "NOT_SET_ANYWHERE"],
        ),
        (String::new(), &["handlers.toml:1:1", "no handlers"]),
        ("[handlers".to_owned(), &["handlers.toml:1:"]),
    ];
    for (toml, fragments) in cases {
        rig.write("handlers.toml", toml);
        for command in ["run", "check"] {
            complains(&rig.host([command]).failed(1), fragments);
        }
    }
    rig.write("handlers.toml", b"a = \"\xff\"");
    complains(&rig.host(["run"]).failed(1), &["handlers.toml", "UTF-8"]);
    std::fs::remove_file(rig.path("handlers.toml")).expect("the file is there");
    complains(&rig.host(["run"]).failed(1), &["handlers.toml"]);
    complains(&rig.host(["run", "elsewhere.toml"]).failed(1), &["elsewhere.toml"]);
    assert!(!rig.database().exists(), "nothing was made");
}

// Promise 16.
#[test]
fn every_mistake_in_a_configuration_is_said_at_once() {
    let rig = Rig::new(&tally());
    rig.write(
        "handlers.toml",
        tally().to_toml() + "suscribe = []\nlimits.timeout = 5\nreuse = 0\n",
    );
    let complaint = rig.host(["check"]).failed(1);
    for line in [5, 6, 7] {
        assert!(complaint.contains(&format!("handlers.toml:{line}:")), "{complaint}");
    }
}

// Promise 16.
#[test]
fn a_component_that_cannot_be_run_is_refused_before_anything_runs() {
    let rig = Rig::new(&tally());
    let tally = std::fs::read(tests::guest_file("tally")).expect("the guest can be read");
    rig.write("truncated.wasm", &tally[..tally.len() / 2]);
    rig.write("empty.wasm", "");
    rig.write("text.wasm", "#!/bin/sh\necho no\n");
    rig.write("core.wasm", b"\0asm\x01\0\0\0");
    rig.write("nothing.wasm", b"\0asm\x0d\0\x01\0");
    std::fs::create_dir(rig.path("folder.wasm")).expect("a folder can be made");
    for (file, fragment) in [
        ("missing.wasm", "there is no such file"),
        ("folder.wasm", "directory"),
        ("truncated.wasm", "cut short"),
        ("empty.wasm", "the file is empty"),
        ("text.wasm", "not WebAssembly"),
        ("core.wasm", "without component metadata"),
        ("nothing.wasm", "it exports nothing; wanted is"),
    ] {
        let bad = Handler::of_file("bad", file, &["a"]);
        rig.configure(&Settings::of([Handler::new("good", "tally", &["a"]), bad]));
        for command in ["run", "check"] {
            let complaint = rig.host([command]).failed(1);
            let complaint = complaint.lines().last().expect("a line").to_owned();
            complains(&complaint, &[file, fragment]);
        }
    }
    assert!(!rig.database().exists(), "nothing was made");
}

// Promise 16.
#[test]
fn a_component_that_imports_what_the_host_does_not_have_is_refused_by_name() {
    let rig = Rig::new(&tally());
    // Components in the text format, which the host reads too.
    for (name, fragments) in [
        ("wasi:sockets/tcp@0.2.0", &["wasi:sockets/tcp@0.2.0"][..]),
        ("wasi:http/outgoing-handler@0.2.0", &["wasi:http/outgoing-handler@0.2.0"]),
        ("acme:thing/secrets@1.0.0", &["acme:thing/secrets@1.0.0", "does not have"]),
        ("event-host:handler/outbox@7.0.0", &["event-host:handler/outbox@7.0.0", "0.1.0"]),
    ] {
        let import = format!("(import {name:?} (instance $i (export \"get\" (func))))");
        let handler = r#"(component $c
                (core module $m (func (export "f") (param i32) (result i32) i32.const 0))
                (core instance $i (instantiate $m)))
            (instance $e (instantiate $c))
            (export "event-host:handler/handler@0.1.0" (instance $e))"#;
        rig.write("bad.wasm", format!("(component {import} {handler})"));
        rig.configure(&Settings::of([Handler::of_file("bad", "bad.wasm", &["a"])]));
        let complaint = rig.host(["check"]).failed(1);
        complains(&complaint, fragments);
        complains(&complaint, &["bad.wasm"]);
    }
    assert!(!rig.database().exists(), "nothing was made");
}

// Promise 16.
#[test]
fn a_component_in_text_that_does_not_parse_is_refused_with_its_place() {
    let rig = Rig::new(&Settings::of([Handler::of_file("bad", "bad.wat", &["a"])]));
    rig.write("bad.wat", "(component\n  (import 5))");
    let complaint = rig.host(["check"]).failed(1);
    assert!(complaint.contains("bad.wat") && complaint.contains("2:"), "{complaint}");
}

#[test]
fn a_file_that_is_no_usable_database_is_refused_and_left_as_it_is() {
    let rig = Rig::new(&tally());
    let text = "this is no database, but a text that is long enough to be looked at. ".repeat(20);
    rig.write("host.db", &text);
    for command in [&["run"][..], &["status"], &["publish", "--type", "a"], &["migrate"]] {
        let complaint = rig.host(command).failed(1);
        let complaint = complaint.lines().last().expect("a line").to_owned();
        complains(&complaint, &["host.db", "not a SQLite database"]);
    }
    assert_eq!(std::fs::read_to_string(rig.database()).expect("the file is there"), text);

    std::fs::remove_file(rig.database()).expect("the file is there");
    complains(&rig.host(["status"]).failed(1), &["host.db", "host migrate"]);
    assert!(!rig.database().exists(), "looking makes no database");
    complains(
        &rig.host(["status", "--database", "sqlite:no/such/host.db"]).failed(1),
        &["no/such"],
    );
    complains(&rig.host(["status", "--database", "sqlite:."]).failed(1), &["folder"]);
    let complaint = rig.host(["status", "--database", "mysql://x"]);
    assert!(matches!(complaint.code, Some(1 | 2)), "{complaint:?}");
    assert!(complaint.stderr.contains("sqlite:host.db"), "{complaint:?}");
}

#[test]
fn a_database_of_a_newer_version_is_refused_and_left_as_it_is() {
    let rig = Rig::new(&tally());
    rig.publish(&[event("a", 1, json!(null))]);
    let migrations = "SELECT count(*) FROM event_host_migrations";
    let _ = rig.number(
        "INSERT INTO event_host_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'of the future', 1, x'00', 0) RETURNING 1",
    );
    let before = rig.number(migrations);
    for command in [&["run", "--drain"][..], &["status"], &["publish", "--type", "a"], &["migrate"]]
    {
        let complaint = rig.host(command).failed(1);
        let complaint = complaint.lines().last().expect("a line").to_owned();
        complains(&complaint, &["host.db", "newer"]);
    }
    assert_eq!(rig.number(migrations), before);
    assert_eq!(rig.number("SELECT count(*) FROM events"), 1);
}

fn what_does_not_exist_is_said_by_name(store: Store) {
    let rig = Rig::on(store, &tally());
    rig.publish(&[event("a", 1, json!(null))]);
    rig.drain();
    for arguments in [
        &["groups", "show", "nobody"][..],
        &["groups", "pause", "nobody"],
        &["groups", "resume", "nobody"],
        &["groups", "seek", "nobody", "--to", "latest"],
        &["groups", "remove", "nobody"],
        &["dlq", "list", "--group", "nobody"],
        &["dlq", "replay", "--group", "nobody", "--all"],
        &["dlq", "discard", "--group", "nobody", "--all"],
    ] {
        complains(&rig.host(arguments).failed(1), &["group `nobody` not found"]);
    }
    for command in ["show", "replay", "discard"] {
        complains(&rig.host(["dlq", command, "42"]).failed(1), &["dead letter 42 not found"]);
    }
}

#[test]
fn what_is_used_wrongly_exits_with_2() {
    let rig = Rig::new(&tally());
    rig.publish(&[event("a", 1, json!(null))]);
    rig.drain();
    for arguments in [
        &["frobnicate"][..],
        &["run", "--frobnicate"],
        &["publish"],
        &["publish", "--type", "a", "--file", "-", "--data", "1"],
        &["groups", "seek", "tally", "--to", "yesterday"],
        &["groups", "show", "no group"],
        &["dlq", "show", "x"],
        &["dlq", "replay"],
        &["dlq", "replay", "--all"],
        &["status", "--log", "x=y=z"],
        &["publish", "--type", "a", "--data", "not json"],
        &["publish", "--type", "a", "--extension", "novalue"],
    ] {
        let complaint = rig.host(arguments).failed(2);
        assert!(!complaint.is_empty(), "{arguments:?}");
    }
    assert_eq!(rig.number("SELECT count(*) FROM events"), 1, "nothing was published");
}

#[test]
fn a_file_with_a_broken_line_is_refused_with_the_lines_number_and_published_not_at_all() {
    let rig = Rig::new(&tally());
    let good: Vec<String> = (0..1_500).map(|n| event("a", n, json!(null)).to_string()).collect();
    for (bad, fragment) in [
        ("{\"specversion\": \"1.0\"", "one whole event"),
        ("not json", ""),
        ("[1]", ""),
        (r#"{"specversion":"1.0","id":"1","source":"/t"}"#, "`type`"),
        (r#"{"specversion":"1.0","id":"","source":"/t","type":"a"}"#, "`id`"),
        (r#"{"specversion":"0.3","id":"1","source":"/t","type":"a"}"#, "specversion"),
        (r#"{"specversion":"1.0","id":"1","source":"/t","type":"a","time":"today"}"#, "`time`"),
        (r#"{"specversion":"1.0","id":"1","source":"/t","type":"a","Bad-Name":"x"}"#, "Bad-Name"),
        (r#"{"specversion":"1.0","id":"1","source":"/t","type":"a","ext":{"a":1}}"#, "ext"),
        (
            r#"{"specversion":"1.0","id":"1","source":"/t","type":"a","data_base64":"%%%"}"#,
            "data_base64",
        ),
    ] {
        let mut lines = good.clone();
        lines[1_200] = bad.to_owned();
        rig.write("broken.jsonl", lines.join("\n"));
        let complaint = rig.host(["publish", "--file", "broken.jsonl"]).failed(1);
        complains(&complaint, &["broken.jsonl", "nothing was published", "line 1201", fragment]);
    }
    if rig.database().exists() {
        assert_eq!(rig.number("SELECT count(*) FROM events"), 0);
    }
    complains(&rig.host(["publish", "--file", "none.jsonl"]).failed(1), &["none.jsonl"]);
    complains(&rig.host(["publish", "--file", "."]).failed(1), &["directory"]);
}

fn a_broken_line_on_stdin_says_how_far_it_got_and_from_line_goes_on_there(store: Store) {
    let rig = Rig::on(store, &tally());
    let mut lines: Vec<String> =
        (0..2_500).map(|n| event("a", n, json!(null)).to_string()).collect();
    let good = std::mem::replace(&mut lines[2_200], "{".to_owned());
    let complaint = rig.host_reading(&["publish", "--file", "-"], lines.join("\n")).failed(1);
    complains(&complaint, &["line 2201", "--from-line 2201", "2200 events"]);
    assert_eq!(rig.number("SELECT count(*) FROM events"), 2_200);

    lines[2_200] = good;
    let arguments = ["publish", "--file", "-", "--from-line", "2201", "--json"];
    let answer = rig.host_reading(&arguments, lines.join("\n")).ok();
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(answer, json!({ "events": 300, "first_position": 2_201, "last_position": 2_500 }));
    let distinct = "SELECT count(*), count(DISTINCT id) FROM events";
    assert_eq!(rig.numbers(distinct), [2_500, 2_500]);
}

fn a_publish_that_is_interrupted_says_how_far_it_got(store: Store) {
    let rig = Rig::on(store, &tally());
    let lines: Vec<String> = (0..1_500).map(|n| event("a", n, json!(null)).to_string()).collect();
    for (signal, begins_with) in [("-INT", 0), ("-TERM", 1_500)] {
        let mut publish = rig
            .command(["publish", "--file", "-", "--json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        // Stays open, so that it waits for more.
        let mut stdin = publish.stdin.take().expect("stdin is piped");
        stdin.write_all((lines.join("\n") + "\n").as_bytes()).expect("it reads");
        let events = || match rig.host(["status"]).code {
            Some(0) => rig.number("SELECT count(*) FROM events"),
            _ => 0,
        };
        wait_until("they are published", PATIENCE, || events() == begins_with + 1_500);
        let sent = Command::new("kill").args([signal, &publish.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        let output = publish.wait_with_output().expect("it ends");
        drop(stdin);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&answer["events"], &answer["next_line"]), (&json!(1_500), &json!(1_501)));
        let complaint = String::from_utf8(output.stderr).expect("text");
        complains(&complaint, &["interrupted", "after 1500 events", "--from-line 1501"]);
    }
}

fn a_publish_that_is_interrupted_while_it_checks_its_file_says_so(store: Store) {
    let rig = Rig::on(store, &tally());
    let _ = rig.host(["migrate"]).ok();
    let pipe = rig.path("lines.jsonl");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo runs").success());
    let publish = rig
        .command(["publish", "--file", "lines.jsonl"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // Opened once it reads, and open for more: it is in the middle of its check.
    let mut writer = std::fs::OpenOptions::new().write(true).open(&pipe).expect("it reads");
    writeln!(writer, "{}", event("a", 1, json!(null))).expect("it reads");
    let sent = Command::new("kill").args(["-INT", &publish.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    let output = publish.wait_with_output().expect("it ends");
    drop(writer);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let complaint = String::from_utf8(output.stderr).expect("text");
    complains(&complaint, &["interrupted", "nothing was published", "--from-line 1"]);
    assert_eq!(rig.number("SELECT count(*) FROM events"), 0);
}

fn a_write_that_waits_in_vain_for_a_lock_was_not_done(store: Store) {
    let rig = Rig::on(store, &tally());
    let _ = rig.host(["migrate"]).ok();
    rig.publish([&event("a", 0, json!(null))]);
    rig.drain();
    let mut other = Client::new(&rig);
    other.execute(if rig.database_is_a_file() {
        "BEGIN IMMEDIATE"
    } else {
        "BEGIN; LOCK TABLE event_host.events, event_host.consumer_groups IN EXCLUSIVE MODE"
    });
    for arguments in [&["publish", "--type", "a"][..], &["groups", "pause", "tally"]] {
        let complaint = rig.host(arguments).failed(1);
        assert!(complaint.contains("locked"), "{complaint}");
        assert!(!complaint.contains("is not known"), "{complaint}");
    }
    other.execute("ROLLBACK");
    assert_eq!(rig.number("SELECT count(*) FROM events"), 1);
    assert_eq!(rig.group("tally")["state"], "running");
}

fn a_publish_that_fails_in_the_middle_says_how_far_it_got(store: Store) {
    let rig = Rig::on(store, &tally());
    let _ = rig.host(["migrate"]).ok();
    refuse_event(&rig, "1200");
    let lines: Vec<String> = (0..1_500).map(|n| event("a", n, json!(null)).to_string()).collect();
    rig.write("long.jsonl", lines.join("\n"));
    let finished = rig.host(["publish", "--file", "long.jsonl", "--json"]);
    let answer: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let published = answer["events"].as_i64().expect("a number");
    assert!(published <= 1_200, "{answer}");
    assert_eq!(rig.number("SELECT count(*) FROM events"), published);
    assert_eq!(answer["next_line"], published + 1);
    let complaint = finished.failed(1);
    complains(&complaint, &["no room", &format!("--from-line {}", published + 1)]);
}

/// Has the database refuse an event with this id.
fn refuse_event(rig: &Rig, id: &str) {
    let mut client = Client::new(rig);
    if rig.database_is_a_file() {
        client.execute(&format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON events WHEN NEW.id = '{id}'
             BEGIN SELECT RAISE(ABORT, 'no room'); END"
        ));
    } else {
        client.execute(&format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no room'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON event_host.events
             FOR EACH ROW WHEN (NEW.id = '{id}') EXECUTE FUNCTION refuse()"
        ));
    }
}

fn what_is_published_comes_out_as_it_went_in(store: Store) {
    let rig = Rig::on(store, &Settings::of([Handler::new("chaos", "chaos", &["*"]).attempts(1)]));
    let mut whole = event("a", "1", json!({ "do": "reject" }));
    for (attribute, value) in [
        ("time", json!("2020-02-29T23:59:59Z")),
        ("subject", json!("s")),
        ("boolean", json!(true)),
        ("integer", json!(i32::MIN)),
        ("string", json!("42")),
        ("empty", json!("")),
    ] {
        whole[attribute] = value;
    }
    let mut nulls = whole.clone();
    nulls["id"] = json!("2");
    for attribute in ["subject", "datacontenttype", "dataschema", "boolean"] {
        nulls[attribute] = Value::Null;
    }
    rig.publish([&whole, &nulls]);
    let said = rig.host([
        "publish",
        "--type",
        "a",
        "--id",
        "3",
        "--subject",
        "s",
        "--time",
        "2020-02-29T23:59:59Z",
        "--source",
        "/tests",
        "--data",
        r#"{"do":"reject"}"#,
        "--extension",
        "boolean=true",
        "--extension",
        "integer=-2147483648",
        "--extension",
        "string=text",
    ]);
    assert_eq!(said.ok(), "1 event published, position 3\n");
    rig.drain();
    let events: Vec<Value> =
        rig.dead_letters().iter().map(|letter| letter["event"].clone()).collect();
    assert_eq!(events.len(), 3);
    assert_eq!(events[0], whole);
    assert_eq!(events[1]["subject"], Value::Null);
    assert_eq!(events[1]["boolean"], Value::Null);
    assert_eq!(events[1]["integer"], whole["integer"]);
    whole["id"] = json!("3");
    whole["string"] = json!("text");
    whole.as_object_mut().expect("an object").remove("empty");
    assert_eq!(events[2], whole);
}

// Promise 17.
fn a_stop_lets_the_event_under_way_finish_and_settles_it(store: Store) {
    let rig = Rig::on(store, &Settings::of([Handler::new("chaos", "chaos", &["command"])]));
    let slow = json!([
        { "do": "log", "line": "begun" },
        { "do": "sleep", "ms": 1500 },
        { "do": "count", "key": "count" },
    ]);
    rig.publish(&[event("command", 1, slow.clone()), event("command", 2, slow)]);
    let host = rig.spawn_run();
    host.wait_for_message("begun");
    host.stop();
    let group = rig.group("chaos");
    assert_eq!((&group["position"], &group["lag_events"]), (&json!(1), &json!(1)));
    assert_eq!((&group["leader"], &group["head"]), (&Value::Null, &Value::Null));
    assert_eq!(rig.state("chaos", "count"), 1);
}

/// A rig whose handler is under way for an hour, if nobody stops it.
fn under_way(store: Store, grace: &str) -> (Rig, tests::Running) {
    let handler =
        Handler::new("chaos", "chaos", &["command"]).set("limits.timeout = \"1h\"").attempts(1);
    let rig = Rig::on(store, &Settings::of([handler]).top(&format!("grace = {grace:?}")));
    let done = json!({ "do": "count", "key": "before" });
    let long = json!([{ "do": "log", "line": "begun" }, { "do": "sleep", "ms": 3_000_000 }]);
    rig.publish(&[event("command", 1, done), event("command", 2, long)]);
    let host = rig.spawn_run();
    host.wait_for_message("begun");
    (rig, host)
}

// Promise 17.
fn the_grace_period_ends_what_still_runs_and_counts_no_attempt(store: Store) {
    let (rig, mut host) = under_way(store, "1s");
    host.sigterm();
    let stopping = std::time::Instant::now();
    let status = host.wait_within(Duration::from_secs(10));
    assert_eq!(status.code(), Some(0), "{:#?}", host.log());
    assert!(stopping.elapsed() >= Duration::from_millis(900), "{:?}", stopping.elapsed());
    let group = rig.group("chaos");
    assert_eq!((&group["position"], &group["head"]), (&json!(1), &Value::Null));
    assert_eq!((&group["dead_letters"], &group["leader"]), (&json!(0), &Value::Null));
    assert_eq!(rig.state("chaos", "before"), 1, "what was done before is settled");
}

// Promise 17.
fn a_second_signal_exits_at_once(store: Store) {
    let (rig, mut host) = under_way(store, "1h");
    host.sigterm();
    host.wait_for_log("it stops", |line| {
        line["message"].as_str().is_some_and(|text| text.starts_with("stopping"))
    });
    assert_eq!(host.ended(), None);
    host.sigterm();
    let status = host.wait_within(Duration::from_secs(2));
    assert_eq!(status.code(), Some(1));
    assert_eq!(rig.group("chaos")["dead_letters"], 0);
}

// Promise 17.
fn an_idle_host_stops_at_once_also_by_ctrl_c(store: Store) {
    let rig = Rig::on(store, &tally());
    let mut host = rig.spawn_run();
    host.wait_until_leading("tally");
    host.interrupt();
    assert_eq!(host.wait_within(Duration::from_secs(3)).code(), Some(0), "{:#?}", host.log());
}

// Promise 19.
fn status_says_who_leads_how_far_it_is_and_what_holds_it_up(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([
            Handler::new("waiting", "chaos", &["command"])
                .set("retry = { initial = \"1h\", max = \"1h\", jitter = 0 }"),
            Handler::new("tally", "tally", &["command"]),
            Handler::new("paused", "tally", &["command"]),
        ]),
    );
    rig.publish(&[event("nothing", 0, json!(null))]);
    let host = rig.spawn_run();
    host.wait_until_leading("paused");
    let _ = rig.host(["groups", "pause", "paused", "--reason", "maintenance"]).ok();
    host.wait_for_message("state changed");
    let commands = [json!({ "do": "reject" }), json!({ "do": "trap" }), json!({ "do": "succeed" })];
    let events: Vec<Value> =
        commands.iter().enumerate().map(|(n, data)| event("command", n, data.clone())).collect();
    rig.publish(&events);
    rig.wait_until_handled("tally", 4);
    wait_until("a retry is pending", PATIENCE, || {
        rig.number("SELECT count(*) FROM consumer_groups WHERE head_attempt = 2") == 1
    });

    let status = rig.json(&["status"]);
    assert_eq!((&status["events"], &status["last_position"]), (&json!(4), &json!(4)));
    let names: Vec<&Value> =
        status["groups"].as_array().expect("a list").iter().map(|group| &group["name"]).collect();
    assert_eq!(names, ["paused", "tally", "waiting"]);
    let [paused, tally, waiting] = [0, 1, 2].map(|n| &status["groups"][n]);
    for group in [paused, tally, waiting] {
        assert_eq!(group["leader"]["host"]["pid"], host.pid());
        assert_eq!(group["epoch"], 1);
        assert_eq!(group["subscribe"], json!(["command"]));
    }
    assert_eq!((&tally["position"], &tally["lag_events"]), (&json!(4), &json!(0)));
    assert_eq!((&tally["lag_seconds"], &tally["state"]), (&json!(0.0), &json!("running")));
    assert_eq!((&paused["state"], &paused["reason"]), (&json!("paused"), &json!("maintenance")));
    assert_eq!(paused["lag_events"], 3);
    assert!(paused["lag_seconds"].as_f64().is_some_and(|age| age > 0.0 && age < 600.0));
    assert_eq!((&waiting["position"], &waiting["lag_events"]), (&json!(2), &json!(2)));
    assert_eq!((&waiting["retries_pending"], &waiting["dead_letters"]), (&json!(1), &json!(1)));
    assert_eq!((&waiting["head"]["position"], &waiting["head"]["attempt"]), (&json!(3), &json!(2)));
    assert_eq!(waiting["head"]["failure"]["kind"], "trap");

    let text = rig.host(["status"]).ok();
    assert!(
        text.contains("paused: paused: maintenance; `host groups resume paused` goes on"),
        "{text}"
    );
    assert!(text.contains("waiting: the event at position 3 waits for attempt 2"), "{text}");
    assert_eq!(rig.json(&["groups", "list"]).as_array().map(Vec::len), Some(3));
    host.stop();
}

// Promise 19.
#[test]
fn what_status_reads_does_not_grow_with_the_backlog() {
    const EVENTS: i64 = 250_000;
    let tally = Handler::new("tally", "tally", &["a"]).set("ordering = \"key\"");
    let rig = Rig::on(Store::Postgres, &Settings::of([tally.set("partitions = 64")]));
    rig.drain();
    Client::new(&rig).execute(&format!(
        "INSERT INTO events (type, partitionkey)
         SELECT 'a', 'key ' || n % 1000 FROM generate_series(1, {EVENTS}) n"
    ));
    // Of all sessions, once they have ended.
    let read = || {
        rig.number(
            "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint
             FROM pg_stat_user_tables WHERE schemaname = 'event_host'",
        )
    };
    for arguments in [&["status"][..], &["groups", "list"], &["groups", "show", "tally"]] {
        let before = read();
        let mut answer = rig.json(arguments);
        let group = match arguments {
            ["status"] => &mut answer["groups"][0],
            ["groups", "list"] => &mut answer[0],
            _ => &mut answer,
        };
        let lag = (&group["lag_events"], &group["lag_events_is_at_least"]);
        assert_eq!(lag, (&json!(100_000), &json!(true)), "{arguments:?}");
        let partitions = group["partitions"].as_array().expect("it has partitions");
        assert_eq!(partitions.len(), 64);
        for partition in partitions {
            assert!(partition["lag_seconds"].as_f64().is_some_and(|age| age > 0.0), "{partition}");
        }
        wait_until("the server has counted", PATIENCE, || read() >= before + 100_000);
        let rows = read() - before;
        assert!(rows < 400_000, "{arguments:?} read {rows} rows");
    }
    let text = rig.host(["status"]).ok();
    assert!(text.contains("≥ 100000") && text.contains("log: about "), "{text}");
    let exact = rig.json(&["status", "--exact"]);
    assert_eq!((&exact["events"], &exact["events_is_estimate"]), (&json!(EVENTS), &Value::Null));
    let group = &exact["groups"][0];
    assert_eq!(group["lag_events"], EVENTS);
    assert_eq!(group["lag_events_is_at_least"], Value::Null);
    let text = rig.host(["groups", "show", "tally", "--exact"]).ok();
    assert!(text.contains(&format!("{EVENTS} events, ")), "{text}");
}

fn a_pause_a_resume_and_a_seek_reach_the_running_host_within_a_second(store: Store) {
    const SOON: Duration = Duration::from_millis(1_500);
    let rig = Rig::on(store, &tally());
    rig.publish(&[event("a", 1, json!(null)), event("a", 2, json!(null))]);
    let host = rig.spawn_run();
    rig.wait_until_handled("tally", 2);
    let _ = rig.host(["groups", "pause", "tally"]).ok();
    host.wait_for_log_within(SOON, "the pause", |line| line["state"] == "paused");
    rig.publish(&[event("a", 3, json!(null))]);
    let _ = rig.host(["groups", "resume", "tally"]).ok();
    wait_until("it goes on", SOON, || rig.state("tally", "count") == 3);

    let _ = rig.host(["groups", "seek", "tally", "--to", "earliest"]).ok();
    wait_until("all come again", SOON, || rig.state("tally", "count") == 6);
    let _ = rig.host(["groups", "seek", "tally", "--to", "2"]).ok();
    wait_until("the third comes again", SOON, || rig.state("tally", "count") == 7);
    let _ = rig.host(["groups", "seek", "tally", "--to", "latest"]).ok();
    rig.publish(&[event("a", 4, json!(null))]);
    rig.wait_until_handled("tally", 4);
    assert_eq!(rig.state("tally", "count"), 8);
    host.stop();
}

fn a_pause_outlives_a_restart_and_drain_does_not_wait_for_it(store: Store) {
    let rig = Rig::on(store, &tally());
    rig.publish(&[event("a", 1, json!(null))]);
    rig.drain();
    let _ = rig.host(["groups", "pause", "tally"]).ok();
    rig.publish(&[event("a", 2, json!(null))]);
    rig.drain();
    assert_eq!(rig.state("tally", "count"), 1);
    let _ = rig.host(["groups", "resume", "tally"]).ok();
    rig.drain();
    assert_eq!(rig.state("tally", "count"), 2);
}

fn a_group_is_not_removed_while_it_has_dead_letters_or_a_leader(store: Store) {
    let rig = Rig::on(store, &Settings::of([Handler::new("chaos", "chaos", &["command"])]));
    let count = json!({ "do": "count", "key": "count" });
    rig.publish(&[event("command", 1, json!({ "do": "reject" })), event("command", 2, count)]);
    let host = rig.spawn_run();
    rig.wait_until_handled("chaos", 2);
    let complaint = rig.host(["groups", "remove", "chaos", "--with-dead-letters"]).failed(1);
    complains(&complaint, &["chaos"]);
    host.stop();
    complains(&rig.host(["groups", "remove", "chaos"]).failed(1), &["chaos", "dead letter"]);
    assert_eq!((rig.state("chaos", "count"), rig.dead_letters().len()), (1, 1));
    let _ = rig.host(["groups", "remove", "chaos", "--with-dead-letters"]).ok();
    assert_eq!(
        rig.number("SELECT (SELECT count(*) FROM dead_letters) + (SELECT count(*) FROM state)"),
        0
    );
    complains(&rig.host(["groups", "show", "chaos"]).failed(1), &["group `chaos` not found"]);
}

fn the_log_is_quiet_while_events_flow(store: Store) {
    let rig = Rig::on(store, &tally());
    let events: Vec<Value> = (0..500).map(|n| event("a", n, json!(null))).collect();
    rig.publish(&events);
    let log = rig.drain();
    assert!(log.lines().count() <= 6, "{log}");
    assert_eq!(rig.state("tally", "count"), 500);
    let publish = rig.host(["publish", "--type", "a"]);
    assert_eq!(publish.stderr, "", "a command without trouble says nothing on stderr");
}

// Logs.
#[test]
fn a_guests_line_carries_its_handler_and_the_attempt_it_was_written_in() {
    let rig = Rig::new(&Settings::of([
        Handler::new("chaos", "chaos", &["command"]).set("group = \"other\"")
    ]));
    rig.publish(&[event(
        "command",
        "the id",
        json!({ "do": "log", "line": "hello", "level": "warn" }),
    )]);
    let mut host = rig.spawn(&["run", "--drain"]);
    assert!(host.wait().success());
    let line = host.wait_for_message("hello");
    assert_eq!((&line["handler"], &line["level"]), (&json!("chaos"), &json!("WARN")));
    let span = json!({
        "name": "attempt", "group": "other", "position": 1, "event_id": "the id", "attempt": 1,
    });
    assert_eq!(line["span"], span);
}
