//! The sandbox: what bad guests cost (promise 13), and what they reach
//! (promise 14).

use std::time::Duration;

use serde_json::{Value, json};
use tests::{Client, Handler, Rig, Settings, Store, event, wait_until};

tests::on_both_stores! {
    a_thousand_handlers_run_in_one_host,
    an_event_that_is_larger_than_its_handlers_memory_is_a_dead_letter_and_later_ones_flow,
    a_handler_reaches_no_state_of_another_group,
    nothing_crosses_between_tenants,
    a_group_keeps_as_many_keys_as_it_may_and_not_one_more,
}

/// Requests by HTTP, none of which is granted.
fn denied_requests(count: usize) -> Value {
    let request = json!({ "do": "request", "url": "http://169.254.169.254/", "type": "answer" });
    Value::Array(vec![request; count])
}

/// What a bad guest is told to do, and the failure that must come of it.
fn misdeeds() -> Vec<(Value, &'static str, &'static str)> {
    vec![
        (json!({ "do": "trap" }), "trap", "unreachable"),
        (json!({ "do": "panic", "text": "on purpose" }), "trap", "on purpose"),
        (json!({ "do": "spin" }), "timeout", "limits.timeout"),
        (json!({ "do": "sleep", "ms": 3_600_000 }), "timeout", "limits.timeout, 2s"),
        (json!({ "do": "allocate" }), "memory-limit", "limits.memory is 64.0 MiB"),
        (json!({ "do": "recurse" }), "stack-limit", "stack"),
        (json!({ "do": "flood-logs" }), "log-limit", "limits.log"),
        (json!({ "do": "huge-log", "bytes": 1_000_000 }), "log-limit", "limits.log"),
        (
            json!({ "do": "print", "text": "x".repeat(100_000), "to": "stderr" }),
            "log-limit",
            "limits.log",
        ),
        (json!({ "do": "flood-emits" }), "emit-limit", "limits.emits"),
        (json!({ "do": "huge-emit", "bytes": 5_000_000 }), "emit-limit", "limits.emit"),
        (json!({ "do": "huge-emit", "bytes": 20_000_000 }), "host-call-limit", "limits.host_call"),
        (json!({ "do": "flood-state" }), "state-limit", "limits.state_writes"),
        (json!({ "do": "huge-state", "bytes": 5_000_000 }), "state-limit", "limits.state_value"),
        (json!({ "do": "leak-resources", "count": 1_000_000 }), "host-call-limit", "resources"),
        (
            json!({ "do": "own-resources", "count": 100_000, "keep": true }),
            "host-call-limit",
            "open handles",
        ),
        (json!({ "do": "exit", "successfully": true }), "exit", "status 0"),
        (json!({ "do": "exit", "successfully": false }), "exit", "status 1"),
        (json!({ "do": "reject", "text": "nul \u{0} and \u{1b}[31m" }), "reject", "nul \u{fffd}"),
        (json!({ "do": "reject", "bytes": 10_000_000 }), "reject", "(10000000 bytes in all)"),
        (json!({ "do": "retry", "bytes": 10_000_000 }), "retry", "(10000000 bytes in all)"),
        (denied_requests(101), "http-request-limit", "limits.http_requests"),
        (json!(["no", "commands"]), "reject", "not the JSON"),
    ]
}

// Promise 13.
#[test]
fn each_misdeed_costs_one_attempt_of_one_event_and_names_its_limit() {
    let bad = |name: &str, reuse: &str| {
        Handler::new(name, "chaos", &["command"])
            .attempts(1)
            .set(reuse)
            .set("limits = { timeout = \"2s\", memory = \"64MiB\" }")
    };
    let rig = Rig::new(&Settings::of([
        bad("kept", "reuse = \"batch\""),
        bad("fresh", "reuse = \"event\""),
        Handler::new("innocent", "tally", &["good", "command"]).attempts(1),
    ]));
    let misdeeds = misdeeds();
    let mut events = Vec::new();
    for (n, (command, ..)) in misdeeds.iter().enumerate() {
        events.push(event("command", format!("bad-{n}"), command.clone()));
        // The next event finds the handler in order, with all that it may have.
        let good = json!([
            { "do": "own-resources", "count": 20_000, "keep": false },
            { "do": "own-resources", "count": 5_000, "keep": true },
            { "do": "count", "key": "good" },
        ]);
        events.push(event("command", format!("good-{n}"), good));
        events.push(event("good", n, json!(null)));
    }
    rig.publish(&events);
    let host = rig.spawn_run();
    for group in ["innocent", "kept", "fresh"] {
        rig.wait_until_handled(group, events.len() as i64);
    }
    host.stop();

    let letters = rig.dead_letters();
    for group in ["kept", "fresh"] {
        let letters: Vec<&Value> =
            letters.iter().filter(|letter| letter["group"] == group).collect();
        assert_eq!(letters.len(), misdeeds.len(), "{group}");
        for (letter, (n, (command, kind, text))) in letters.iter().zip(misdeeds.iter().enumerate())
        {
            let said = letter["failure"]["text"].as_str().expect("a text");
            let what = short(command);
            assert_eq!(letter["event"]["id"], format!("bad-{n}"), "{what}");
            assert_eq!(letter["failure"]["kind"], *kind, "{what}: {said}");
            assert!(said.contains(text), "{what}: {said}");
            assert!(said.len() < 20_000, "{what}: a text of {} bytes", said.len());
            assert!(!said.contains(['\u{0}', '\u{1b}']), "{what}: {said:?}");
            assert_eq!(letter["attempts"], 1, "{what}");
        }
        assert_eq!(rig.state(group, "good"), misdeeds.len() as i64, "{group}");
    }
    assert!(letters.iter().all(|letter| letter["group"] != "innocent"));
    assert_eq!(rig.state("innocent", "count"), events.len() as i64);
    assert_eq!(rig.number("SELECT count(*) FROM events WHERE type IN ('huge', 'answer')"), 0);
    assert_eq!(
        rig.number(
            "SELECT count(*) FROM state WHERE key NOT IN ('good', 'count')
                           AND key NOT LIKE 'type/%'"
        ),
        0
    );
}

// Promise 13.
#[test]
fn a_handler_that_limits_its_fuel_ends_at_the_same_place_in_each_attempt() {
    let rig = Rig::new(&Settings::of([
        Handler::new("spinner", "chaos", &["command"])
            .attempts(3)
            .set("limits = { fuel = 10_000_000, timeout = \"60s\" }"),
        Handler::new("innocent", "tally", &["command"]).attempts(1),
    ]));
    rig.publish(&[
        event("command", 1, json!({ "do": "spin" })),
        event("command", 2, json!({ "do": "count", "key": "good" })),
    ]);
    rig.drain();
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (&letters[0]["failure"]["kind"], &letters[0]["attempts"]),
        (&json!("fuel"), &json!(3))
    );
    assert_eq!(letters[0]["failure"]["text"], "used up its fuel, limits.fuel is 10000000");
    assert_eq!((rig.state("spinner", "good"), rig.state("innocent", "count")), (1, 2));
}

fn short(command: &Value) -> String {
    command.to_string().chars().take(80).collect()
}

// Promise 13.
#[test]
fn guests_that_spin_and_hang_by_the_dozen_do_not_hold_up_another_group() {
    let mut handlers: Vec<Handler> = (0..12)
        .map(|n| {
            Handler::new(&format!("bad-{n}"), "chaos", &["command"])
                .set("retry = { max_attempts = 1000, initial = \"1ms\", max = \"1ms\" }")
                .set("limits.timeout = \"3s\"")
        })
        .collect();
    handlers.push(Handler::new("innocent", "tally", &["good"]).attempts(1));
    let rig = Rig::new(&Settings::of(handlers).top("grace = \"0s\""));
    rig.publish(&[event("command", "spin", json!({ "do": "spin" }))]);
    let host = rig.spawn_run();
    host.wait_until_leading("innocent");
    for n in 0..10 {
        rig.publish(&[event("good", n, json!(null))]);
        wait_until("the innocent group handles it", Duration::from_secs(10), || {
            rig.state("innocent", "count") == n + 1
        });
    }
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    host.stop();
}

// Promise 13.
fn an_event_that_is_larger_than_its_handlers_memory_is_a_dead_letter_and_later_ones_flow(
    store: Store,
) {
    let rig = Rig::on(
        store,
        &Settings::of([
            Handler::new("small", "noop", &["a"]).attempts(2).set("limits.memory = \"16MiB\""),
            Handler::new("large", "noop", &["a"]).attempts(2),
        ]),
    );
    rig.publish(&[event("a", 1, json!(null))]);
    let zeros = match store {
        Store::Sqlite => "zeroblob(20000000)",
        Store::Postgres => "decode(repeat('00', 20000000), 'hex')",
    };
    Client::new(&rig).execute(&format!("INSERT INTO events (type, data) VALUES ('a', {zeros})"));
    rig.publish(&[event("a", 3, json!(null))]);
    rig.drain();
    let letters = rig.json(&["dlq", "list", "--limit", "10"]);
    assert_eq!(letters.as_array().map(Vec::len), Some(1));
    let letter = &letters[0];
    assert_eq!((&letter["group"], &letter["position"]), (&json!("small"), &json!(2)));
    assert_eq!(letter["failure"]["kind"], "memory-limit");
    let data = rig.number("SELECT CAST(length(data) AS BIGINT) FROM dead_letters");
    assert_eq!(data, 20_000_000, "it is kept whole");
    for group in ["small", "large"] {
        assert_eq!(rig.group(group)["lag_events"], 0);
    }
}

// Promise 14.
#[test]
fn a_handler_sees_the_variables_that_it_is_granted_and_no_others() {
    let rig = Rig::new(&Settings::of([Handler::new("chaos", "chaos", &["command"])
        .attempts(1)
        .set("allow.env = { GRANTED = \"${HOST_SECRET}\", EMPTY = \"\" }")]));
    let names = ["PATH", "HOME", "HOST_SECRET", "GRANTED", "EMPTY"];
    let events: Vec<Value> = names
        .iter()
        .map(|name| event("command", name, json!({ "do": "abort-if-env", "name": name })))
        .collect();
    rig.publish(&events);
    let run = rig.command(["run", "--drain"]).env("HOST_SECRET", "hunter2").output();
    let run = run.expect("the host runs");
    assert!(run.status.success(), "{run:?}");
    assert!(!String::from_utf8_lossy(&run.stderr).contains("hunter2"), "{run:?}");
    let seen: Vec<Value> =
        rig.dead_letters().iter().map(|letter| letter["event"]["id"].clone()).collect();
    assert_eq!(seen, ["GRANTED", "EMPTY"]);
}

// Promise 14.
fn a_handler_reaches_no_state_of_another_group(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([
            Handler::new("one", "chaos", &["command", "one"]),
            Handler::new("two", "chaos", &["command"]),
        ]),
    );
    let count = || json!({ "do": "count", "key": "shared" });
    rig.publish(&[
        event("command", 1, count()),
        event("one", 2, count()),
        event("one", 3, count()),
    ]);
    rig.drain();
    assert_eq!((rig.state("one", "shared"), rig.state("two", "shared")), (3, 1));
}

// Promise 14.
fn nothing_crosses_between_tenants(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([
            Handler::new("nobodys", "chaos", &["command"]),
            Handler::new("acmes", "chaos", &["command"]).set("tenant = \"acme\""),
            Handler::new("others", "chaos", &["command", "seen"]).set("tenant = \"other\""),
            // Would receive what the tenants' handlers emit, if it crossed.
            Handler::new("listener", "tally", &["seen"]),
        ]),
    );
    let publish = |tenant: Option<&str>, id: &str| {
        let mut arguments = vec![
            "publish",
            "--type",
            "command",
            "--id",
            id,
            "--data",
            r#"{"do":"report","type":"seen"}"#,
        ];
        arguments.extend(tenant.iter().flat_map(|tenant| ["--tenant", tenant]));
        let _ = rig.host(arguments).ok();
    };
    publish(None, "nobody's");
    publish(Some("acme"), "acme's");
    publish(Some("acme"), "acme's too");
    rig.drain();
    let seen: Vec<(Value, Value, Value)> = rig
        .data_of("seen")
        .iter()
        .map(|report| (report["group"].clone(), report["tenant"].clone(), report["id"].clone()))
        .collect();
    let expected = |group: &str, tenant: Value, id: &str| (json!(group), tenant, json!(id));
    assert_eq!(seen.len(), 3, "{seen:?}");
    for wanted in [
        expected("nobodys", Value::Null, "nobody's"),
        expected("acmes", json!("acme"), "acme's"),
        expected("acmes", json!("acme"), "acme's too"),
    ] {
        assert!(seen.contains(&wanted), "{wanted:?} in {seen:?}");
    }
    assert_eq!(rig.state("listener", "count"), 1);
    assert_eq!(
        rig.number("SELECT count(*) FROM events WHERE type = 'seen' AND tenant = 'acme'"),
        2
    );
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

// Promise 13.
fn a_group_keeps_as_many_keys_as_it_may_and_not_one_more(store: Store) {
    let bounded = |name: &str| Handler::new(name, "chaos", &["command"]).attempts(1);
    let handlers = [bounded("bounded").set("limits.state_keys = 2"), bounded("innocent")];
    let rig = Rig::on(store, &Settings::of(handlers));
    let count = |key: &str| json!({ "do": "count", "key": key });
    let steps = [
        (json!([count("a"), count("b")]), true),
        (json!([count("a"), count("b"), count("c")]), false),
        (count("b"), true),
        (count("c"), false),
        (json!([count("c"), { "do": "forget", "key": "a" }]), true),
        (count("d"), false),
        (json!({ "do": "forget", "key": "b" }), true),
        (count("d"), true),
    ];
    let events: Vec<Value> =
        steps.iter().enumerate().map(|(n, step)| event("command", n, step.0.clone())).collect();
    // What is committed counts, and what the batch under way adds.
    for events in events.chunks(5) {
        rig.publish(events);
        rig.drain();
    }
    let letters = rig.dead_letters();
    let refused: Vec<&str> =
        letters.iter().filter_map(|letter| letter["event"]["id"].as_str()).collect();
    assert_eq!(refused, ["1", "3", "5"], "{letters:?}");
    for letter in &letters {
        assert_eq!((&letter["group"], &letter["attempts"]), (&json!("bounded"), &json!(1)));
        assert_eq!(letter["failure"]["kind"], "state-keys-limit");
        let said = "the state of the group would have 3 keys, limits.state_keys is 2";
        assert_eq!(letter["failure"]["text"], said);
    }
    assert_eq!(rig.group("bounded")["failures"]["state-keys-limit"], 3);
    let keys = |group: &str| {
        rig.texts(&format!("SELECT key FROM state WHERE group_name = '{group}' ORDER BY key"))
    };
    assert_eq!(
        (keys("bounded"), keys("innocent")),
        (vec!["c".into(), "d".into()], vec!["c".into(), "d".into()])
    );
    assert_eq!((rig.state("bounded", "d"), rig.state("innocent", "d")), (1, 2));
}

fn a_thousand_handlers_run_in_one_host(store: Store) {
    const HANDLERS: i64 = 1_000;
    let handlers = (0..HANDLERS).map(|n| Handler::new(&format!("h{n}"), "tally", &["a"]));
    let rig = Rig::on(store, &Settings::of(handlers));
    rig.publish(&[event("a", 1, json!({})), event("a", 2, json!({}))]);
    rig.drain();
    let value = rig.as_text("value");
    let counted =
        rig.number(&format!("SELECT count(*) FROM state WHERE key = 'count' AND {value} = '2'"));
    assert_eq!(counted, HANDLERS, "each handled both");
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}
