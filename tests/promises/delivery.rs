//! Delivery: promises 1, 2, 4, 6 and 7.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Handler, Rig, Settings, Store, event, wait_for, wait_until, with};

tests::on_both_stores! {
    every_subscribed_event_is_handled_or_a_dead_letter_and_no_other_is,
    what_a_failed_attempt_emitted_and_wrote_is_dropped,
    cursor_emits_and_state_are_seen_to_move_together_or_not_at_all,
    a_group_that_fails_hangs_or_is_paused_slows_no_other,
    a_failing_event_is_retried_with_backoff_and_becomes_a_whole_dead_letter,
    a_rejected_event_becomes_a_dead_letter_at_once,
    data_that_is_not_json_comes_back_from_the_dead_letters_byte_for_byte,
    a_pending_retry_survives_a_restart_and_is_not_early,
    what_a_handler_asks_for_is_waited_for_and_no_number_is_too_large,
    a_stop_a_kill_and_a_restart_burn_no_attempt,
    a_component_that_is_missing_counts_no_attempt_and_leaves_the_cursor,
}

/// Whether a line is one that a guest logged.
fn guest_says<'a>(text: &'a str) -> impl Fn(&Value) -> bool + 'a {
    move |line| line["target"] == "guest" && line["message"] == text
}

// Promise 1.
fn every_subscribed_event_is_handled_or_a_dead_letter_and_no_other_is(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([
            Handler::new("tally", "tally", &["count.*"]),
            Handler::new("chaos", "chaos", &["command"])
                .attempts(3)
                .set("limits.timeout = \"300ms\""),
        ]),
    );
    let mut events = Vec::new();
    let (mut good, mut bad) = (BTreeSet::new(), BTreeSet::new());
    for n in 0..300 {
        let (command, succeeds) = match n % 30 {
            5 => (json!({ "do": "trap" }), false),
            7 => (json!({ "do": "panic", "text": "no" }), false),
            11 => (json!({ "do": "reject", "text": "no" }), false),
            13 => (json!({ "do": "fail-until-attempt", "attempt": 3 }), true),
            17 => (json!({ "do": "fail-until-attempt", "attempt": 4 }), false),
            19 => (json!("no command"), false),
            23 => (json!({ "do": "exit", "successfully": true }), false),
            _ => (json!({ "do": "succeed" }), true),
        };
        let id = format!("command-{n}");
        let done = json!({ "do": "emit", "type": "done", "data": &id });
        let data = if command.is_object() { json!([done, command]) } else { command };
        events.push(event("command", &id, data));
        if succeeds {
            good.insert(id)
        } else {
            bad.insert(id)
        };
        events.push(event("count.a", format!("a-{n}"), json!(null)));
        events.push(event("count.b", format!("b-{n}"), json!({ "n": n })));
        events.push(event("counter", format!("c-{n}"), json!(null)));
    }
    rig.publish(&events);
    rig.drain();

    assert_eq!(rig.state("tally", "count"), 600);
    assert_eq!(rig.state("tally", "type/count.a"), 300);
    let done: Vec<Value> = rig.data_of("done");
    let handled: BTreeSet<String> =
        done.iter().map(|id| id.as_str().expect("an id").to_owned()).collect();
    assert_eq!(handled.len(), done.len(), "nothing twice");
    assert_eq!(handled, good);
    let letters = rig.dead_letters();
    let dead: BTreeSet<String> = letters
        .iter()
        .map(|letter| letter["event"]["id"].as_str().expect("an id").to_owned())
        .collect();
    assert_eq!(dead.len(), letters.len(), "none twice");
    assert_eq!(dead, bad);
    assert!(letters.iter().all(|letter| letter["group"] == "chaos"));
    for group in ["tally", "chaos"] {
        let status = rig.group(group);
        assert_eq!((&status["lag_events"], &status["head"]), (&json!(0), &Value::Null));
    }
}

// Promise 2.
fn what_a_failed_attempt_emitted_and_wrote_is_dropped(store: Store) {
    let rig =
        Rig::on(store, &Settings::of([Handler::new("chaos", "chaos", &["command"]).attempts(3)]));
    let effects = |name: &str, end: Value| json!([{ "do": "emit", "type": name, "count": 2 }, { "do": "count", "key": name }, end]);
    rig.publish(&[
        event("command", 1, effects("late", json!({ "do": "fail-until-attempt", "attempt": 3 }))),
        event("command", 2, effects("rejected", json!({ "do": "reject" }))),
        event("command", 3, effects("trapped", json!({ "do": "trap" }))),
        event("command", 4, effects("good", json!({ "do": "succeed" }))),
    ]);
    rig.drain();

    for (name, emits, count) in
        [("late", 2, 1), ("rejected", 0, 0), ("trapped", 0, 0), ("good", 2, 1)]
    {
        assert_eq!(rig.data_of(name).len(), emits, "{name}");
        assert_eq!(rig.state("chaos", name), count, "{name}");
    }
}

// Promise 2.
fn cursor_emits_and_state_are_seen_to_move_together_or_not_at_all(store: Store) {
    const EVENTS: i64 = 1_500;
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("tally", "tally", &["a"]).set("batch.max_events = 7")]),
    );
    let events: Vec<Value> =
        (0..EVENTS).map(|n| with(event("a", n, json!(null)), "seen", true)).collect();
    rig.publish(&events);
    let host = rig.spawn_run();
    host.wait_until_leading("tally");
    let look = format!(
        "SELECT (SELECT position FROM consumer_groups),
                (SELECT CAST({} AS BIGINT) FROM state WHERE key = 'count'),
                (SELECT count(*) FROM events WHERE type = 'seen')",
        rig.as_text("value")
    );
    let mut looks = 0;
    wait_until("all are handled", tests::PATIENCE, || {
        let [cursor, count, seen] = rig.numbers(&look);
        // It goes on beyond them, to the end of what was emitted.
        let cursor = cursor.min(EVENTS);
        assert_eq!((count, seen), (cursor, cursor));
        looks += i64::from(cursor > 0 && cursor < EVENTS);
        cursor == EVENTS
    });
    assert!(looks > 2, "seen under way only {looks} times");
    host.stop();
}

// Promise 4.
fn a_group_that_fails_hangs_or_is_paused_slows_no_other(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([
            Handler::new("failing", "chaos", &["bad"])
                .set("retry = { max_attempts = 1000000, initial = \"1ms\", max = \"1ms\" }"),
            Handler::new("waiting", "chaos", &["bad"])
                .set("retry = { initial = \"1h\", max = \"1h\" }"),
            Handler::new("hanging", "hold", &["hold"]).set("limits.timeout = \"1h\""),
            Handler::new("spinning", "chaos", &["spin"]).set("limits.timeout = \"1h\""),
            Handler::new("paused", "tally", &["good"]),
            Handler::new("innocent", "tally", &["good"]),
        ])
        .top("grace = \"0s\""),
    );
    rig.publish(&[event("nothing", 0, json!(null))]);
    let host = rig.spawn_run();
    host.wait_until_leading("paused");
    let _ = rig.host(["groups", "pause", "paused"]).ok();
    host.wait_for_log("paused", |line| line["message"] == "state changed");

    let mut events = vec![
        event("bad", "bad", json!({ "do": "trap" })),
        event("hold", "hold", json!(3_600_000)),
        event("spin", "spin", json!({ "do": "spin" })),
    ];
    events.extend((0..200).map(|n| event("good", n, json!(null))));
    rig.publish(&events);
    let begun = Instant::now();
    wait_until("the innocent group handles all", Duration::from_secs(10), || {
        rig.state("innocent", "count") == 200
    });
    // Later ones too, while all the others stay as they are.
    for n in 200..220 {
        rig.publish(&[event("good", n, json!(null))]);
        wait_until("the innocent group handles one more", Duration::from_secs(5), || {
            rig.state("innocent", "count") == n + 1
        });
    }
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    assert_eq!(rig.state("paused", "count"), 0);
    assert_eq!(rig.group("paused")["lag_events"], 220);
    for stuck in ["hanging", "spinning"] {
        assert_eq!(rig.group(stuck)["lag_events"], 1, "{stuck}");
    }
    assert_eq!(rig.group("waiting")["head"]["attempt"], 2);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    host.stop();
}

// Promise 6.
fn a_failing_event_is_retried_with_backoff_and_becomes_a_whole_dead_letter(store: Store) {
    let rig = Rig::on(store, &Settings::of([Handler::new("chaos", "chaos", &["command"]).set(
        "retry = { max_attempts = 4, initial = \"200ms\", multiplier = 2, max = \"400ms\", jitter = 0 }",
    )]));
    let mut bad = event(
        "command",
        "id with spaces and ä",
        json!([{ "do": "log", "line": "attempt" }, { "do": "retry", "text": "still no" }]),
    );
    for (attribute, value) in [
        ("subject", json!("a/subject")),
        ("time", json!("2020-02-29T23:59:59.123456Z")),
        ("datacontenttype", json!("application/json")),
        ("dataschema", json!("https://example.com/schema")),
        ("partitionkey", json!("key")),
        ("flag", json!(true)),
        ("number", json!(-7)),
        ("text", json!("ü\u{1f600}")),
    ] {
        bad[attribute] = value;
    }
    let later = json!({ "do": "count", "key": "later" });
    rig.publish(&[bad.clone(), event("command", "later", later)]);
    let host = rig.spawn_run();
    let last = host.wait_for_message("dead letter");
    rig.wait_until_handled("chaos", 2);

    let begun: Vec<(i64, f64)> = host
        .log()
        .into_iter()
        .filter(guest_says("attempt"))
        .map(|line| (line["span"]["attempt"].as_i64().expect("a number"), seconds(&line)))
        .collect();
    assert_eq!(begun.iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3, 4]);
    for (pair, wait) in begun.windows(2).zip([0.2, 0.4, 0.4]) {
        let waited = (pair[1].1 - pair[0].1).rem_euclid(3600.0);
        assert!(waited >= wait - 0.005 && waited < wait + 2.0, "{waited} instead of {wait}");
    }
    assert_eq!((&last["attempts"], &last["event_id"]), (&json!(4), &bad["id"]));
    assert_eq!(rig.state("chaos", "later"), 1, "later events flow");

    let letter = rig.json(&["dlq", "show", "1"]);
    assert_eq!(letter["event"], bad);
    assert_eq!(letter["position"], 1);
    assert_eq!(letter["attempts"], 4);
    assert_eq!(letter["failure"], json!({ "kind": "retry", "text": "still no" }));
    assert_eq!(letter["digest"], rig.json(&["check"])[0]["digest"]);
    assert_eq!(letter["group"], "chaos");
    assert!(letter["dead_at"].is_string());
    host.stop();
}

/// When a line was written, in seconds of its hour.
fn seconds(line: &Value) -> f64 {
    let timestamp = line["timestamp"].as_str().expect("a timestamp");
    let minute: f64 = timestamp[14..16].parse().expect("minutes");
    let second: f64 = timestamp[17..26].parse().expect("seconds");
    minute * 60.0 + second
}

// Promise 6.
fn a_rejected_event_becomes_a_dead_letter_at_once(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("chaos", "chaos", &["command"])
            .set("retry = { initial = \"1h\", max = \"1h\" }")]),
    );
    rig.publish(&[
        event("command", "bad", json!({ "do": "reject", "text": "never" })),
        event("command", "good", json!({ "do": "count", "key": "later" })),
    ]);
    rig.drain();
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0]["attempts"], 1);
    assert_eq!(letters[0]["failure"], json!({ "kind": "reject", "text": "never" }));
    assert_eq!(rig.state("chaos", "later"), 1);
}

// Promise 6.
fn data_that_is_not_json_comes_back_from_the_dead_letters_byte_for_byte(store: Store) {
    let rig =
        Rig::on(store, &Settings::of([Handler::new("chaos", "chaos", &["command"]).attempts(1)]));
    let mut binary = event("command", "binary", json!(null));
    binary.as_object_mut().expect("an object").remove("data");
    let binary = with(
        with(binary, "data_base64", "AAH//hsA"),
        "datacontenttype",
        "application/octet-stream",
    );
    let text = with(event("command", "text", json!("a\u{0}b")), "datacontenttype", "text/plain");
    rig.publish(&[binary.clone(), text.clone()]);
    rig.drain();
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 2);
    for (letter, published) in letters.iter().zip([binary, text]) {
        for (attribute, value) in published.as_object().expect("an object") {
            assert_eq!(&letter["event"][attribute], value, "{letter}");
        }
    }
}

// Promise 6.
fn a_pending_retry_survives_a_restart_and_is_not_early(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("chaos", "chaos", &["command"])
            .set("retry = { initial = \"2s\", max = \"2s\", jitter = 0 }")]),
    );
    let data =
        json!([{ "do": "fail-until-attempt", "attempt": 2 }, { "do": "report", "type": "seen" }]);
    rig.publish(&[event("command", 1, data)]);
    let host = rig.spawn_run();
    let head = wait_for("a retry is pending", tests::PATIENCE, || {
        (rig.number("SELECT count(*) FROM consumer_groups WHERE head_attempt = 2") == 1)
            .then(|| rig.group("chaos")["head"].clone())
    });
    assert_eq!(head["failure"], json!({ "kind": "retry", "text": "attempt 1 fails" }));
    host.stop();
    let group = rig.group("chaos");
    assert_eq!(group["head"], head);
    assert_eq!((&group["retries_pending"], &group["position"]), (&json!(1), &json!(0)));

    rig.drain();
    let seen = rig.data_of("seen");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0]["attempt"], 2);
    let due = head["due_at"].as_str().expect("a time");
    let early = match store {
        Store::Sqlite => {
            format!("julianday(time / 1e6, 'unixepoch') < julianday('{due}') - 0.01 / 86400")
        }
        Store::Postgres => format!("time < timestamptz '{due}' - interval '10 ms'"),
    };
    let early = rig.number(&format!("SELECT count(*) FROM events WHERE type = 'seen' AND {early}"));
    assert_eq!(early, 0, "it ran before {head}");
    assert_eq!(rig.group("chaos")["head"], Value::Null);
}

// Promise 6.
fn what_a_handler_asks_for_is_waited_for_and_no_number_is_too_large(store: Store) {
    let rig = Rig::on(store, &Settings::of([
        Handler::new("soon", "chaos", &["soon"]).attempts(2),
        Handler::new("never", "chaos", &["never"]).set(
            "retry = { max_attempts = 4294967295, initial = \"1ms\", multiplier = 1000000, max = \"8760h\" }",
        ),
    ]));
    rig.publish(&[
        event("soon", 1, json!({ "do": "retry", "after-ms": 700 })),
        event("never", 2, json!({ "do": "retry", "after-ms": u64::MAX })),
    ]);
    let host = rig.spawn_run();
    let dead = host.wait_for_message("dead letter");
    let leading = host.wait_for_message("leading");
    let waited = (seconds(&dead) - seconds(&leading)).rem_euclid(3600.0);
    assert!(waited >= 0.7, "{waited}");
    wait_until("the other waits", tests::PATIENCE, || rig.group("never")["head"]["attempt"] == 2);
    let wait = match store {
        Store::Sqlite => "(head_due_at - settled_at) / 1000000",
        Store::Postgres => "extract(epoch FROM head_due_at - settled_at)::bigint",
    };
    let wait = rig.number(&format!("SELECT {wait} FROM consumer_groups WHERE name = 'never'"));
    assert!(wait > 300 * 24 * 3600, "{wait} seconds");
    host.stop();
}

// Promise 7.
fn a_stop_a_kill_and_a_restart_burn_no_attempt(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("chaos", "chaos", &["command"]).attempts(1)])
            .top("grace = \"0s\""),
    );
    let data = json!([
        { "do": "log", "line": "begun" },
        { "do": "sleep", "ms": 3000 },
        { "do": "report", "type": "seen" },
    ]);
    rig.publish(&[event("command", 1, data)]);
    for way in ["stop", "kill", "stop"] {
        let host = rig.spawn_run();
        let line = host.wait_for_log("the event is under way", guest_says("begun"));
        assert_eq!(line["span"]["attempt"], 1);
        if way == "kill" {
            host.kill9()
        } else {
            host.stop()
        }
        let group = rig.group("chaos");
        assert_eq!((&group["position"], &group["dead_letters"]), (&json!(0), &json!(0)), "{way}");
    }
    rig.drain();
    let seen = rig.data_of("seen");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0]["attempt"], 1);
}

// Promise 7.
fn a_component_that_is_missing_counts_no_attempt_and_leaves_the_cursor(store: Store) {
    let settings = Settings::of([Handler::new("chaos", "chaos", &["command"]).attempts(1)]);
    let rig = Rig::on(store, &settings);
    rig.publish(&[event("command", 1, json!({ "do": "count", "key": "handled" }))]);
    rig.configure(&Settings::of(
        [Handler::of_file("chaos", "gone.wasm", &["command"]).attempts(1)],
    ));
    let complaint = rig.host(["run", "--drain"]).failed(1);
    assert!(complaint.contains("gone.wasm"), "{complaint}");
    rig.configure(&settings);
    rig.drain();
    assert_eq!(rig.state("chaos", "handled"), 1);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}
