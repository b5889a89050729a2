//! Handlers of HTTP requests: components that export `wasi:http/incoming-handler`.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tests::{Handler, PATIENCE, Rig, Settings, Store, event, guest_file, wait_until, with};

tests::on_both_stores! {
    what_an_answer_holds_is_emitted_and_settled_with_all_else,
    an_attempt_that_fails_keeps_nothing_of_its_answer,
    a_mebibyte_and_attributes_in_any_script_come_back_as_they_were,
    a_group_takes_requests_from_one_version_to_the_next_and_loses_no_count,
}

fn http(name: &str) -> Handler {
    Handler::new(name, "http", &["wish"])
}

fn wish(id: impl ToString, wish: Value) -> Value {
    event("wish", id, wish)
}

/// The type and the id of every event that a group emitted.
fn emitted(rig: &Rig) -> Vec<(String, String)> {
    let texts = |column: &str| {
        rig.texts(&format!("SELECT {column} FROM events WHERE type <> 'wish' ORDER BY position"))
    };
    texts("type").into_iter().zip(texts("id")).collect()
}

fn what_an_answer_holds_is_emitted_and_settled_with_all_else(store: Store) {
    let rig = Rig::on(store, &Settings::of([http("web").attempts(1)]));
    let batch = json!([
        { "specversion": "1.0", "type": "three.a", "data": { "n": 1 } },
        { "specversion": "1.0", "type": "three.b", "id": "own", "source": "/own", "data": 2 },
        { "specversion": "1.0", "type": "three.c", "data_base64": "AP8=" },
    ]);
    let structured = json!({ "specversion": "1.0", "type": "one", "data": [1, 2] });
    rig.publish(&[
        wish(1, json!({ "status": 204, "count": "count" })),
        wish(2, json!({ "body": "plain words", "count": "count" })),
        wish(
            3,
            json!({ "status": 202, "body": "{}", "headers": [["ce-type", "binary"], ["ce-subject", "Z%C3%BC"]],
                    "emit": "before", "emit_after": "after", "sleep_ms": 5, "count": "count" }),
        ),
        wish(
            4,
            json!({ "body": structured.to_string(), "headers": [["content-type", "application/cloudevents+json"]] }),
        ),
        wish(
            5,
            json!({ "body": batch.to_string(), "headers": [["content-type", "application/cloudevents-batch+json"]] }),
        ),
    ]);
    rig.drain();
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    let expected = [
        ("before", "web:3:1"),
        ("after", "web:3:2"),
        ("binary", "web:3:3"),
        ("one", "web:4:1"),
        ("three.a", "web:5:1"),
        ("three.b", "own"),
        ("three.c", "web:5:3"),
    ];
    assert_eq!(
        emitted(&rig),
        expected.map(|(event_type, id)| (event_type.to_owned(), id.to_owned()))
    );
    assert_eq!(rig.texts("SELECT subject FROM events WHERE type = 'binary'"), ["Zü"]);
    assert_eq!(rig.data_of("one"), [json!([1, 2])]);
    assert_eq!(
        rig.number("SELECT count(*) FROM events WHERE length(data) = 2 AND type = 'three.c'"),
        1
    );
    assert_eq!(rig.state("web", "count"), 3);
}

fn an_attempt_that_fails_keeps_nothing_of_its_answer(store: Store) {
    let rig = Rig::on(store, &Settings::of([http("web").attempts(3)]));
    let answer = json!([["ce-type", "answer"]]);
    rig.publish(&[
        wish(1, json!({ "until_attempt": 3, "count": "count", "emit": "own", "headers": answer })),
        wish(2, json!({ "panic_after": "too late", "count": "count", "headers": answer })),
        wish(3, json!({ "count": "count" })),
    ]);
    rig.drain();
    let types: Vec<String> = emitted(&rig).into_iter().map(|(event_type, _)| event_type).collect();
    assert_eq!(types, ["own", "answer"]);
    assert_eq!(rig.state("web", "count"), 2);
    assert_eq!(rig.group("web")["failures"], json!({ "retry": 2, "trap": 3 }));
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 1);
    let said = letters[0]["failure"]["text"].as_str().expect("a text");
    assert!(said.contains("it last wrote:") && said.ends_with("too late"), "{said}");
}

fn a_mebibyte_and_attributes_in_any_script_come_back_as_they_were(store: Store) {
    let echo = Handler::new("echo", "http_echo", &["großes.Ereignis"])
        .set("limits = { emit = \"2MiB\", memory = \"16MiB\" }");
    let rig = Rig::on(store, &Settings::of([echo]));
    let data = json!({ "text": "€é\u{1f980}\"\\".repeat((1 << 20) / 11) });
    let big = with(event("großes.Ereignis", "№ 1 \"100%\"", data), "subject", "Zürich, 東京 50%20");
    let big = with(with(big, "partitionkey", "k\u{1f980} y"), "trace", "a b\"c");
    rig.publish([&big]);
    let host = rig.spawn_run();
    wait_until("it is echoed", PATIENCE, || rig.number("SELECT count(*) FROM events") >= 2);
    host.kill9();
    for column in ["id", "source", "type", "subject", "partitionkey", &rig.as_text("data")] {
        let [first, second, ..] =
            &rig.texts(&format!("SELECT {column} FROM events ORDER BY position LIMIT 2"))[..]
        else {
            panic!("two events")
        };
        assert_eq!(first, second, "{column}");
    }
    let extensions =
        if rig.database_is_a_file() { "extensions" } else { "CAST(extensions AS text)" };
    let extensions =
        rig.texts(&format!("SELECT {extensions} FROM events ORDER BY position LIMIT 2"));
    let extensions: Vec<Value> =
        extensions.iter().map(|text| serde_json::from_str(text).expect("JSON")).collect();
    assert_eq!(extensions, [json!({ "trace": "a b\"c" }), json!({ "trace": "a b\"c" })]);
}

fn a_group_takes_requests_from_one_version_to_the_next_and_loses_no_count(store: Store) {
    let settings = Settings::of([Handler::of_file("web", "web.wasm", &["wish"]).attempts(1)]);
    let rig = Rig::on(store, &settings);
    let versions = ["tally", "http", "tally", "http"];
    rig.write("web.wasm", std::fs::read(guest_file(versions[0])).expect("a guest"));
    let host = rig.spawn_run();
    host.wait_until_leading("web");
    let mut last = 0;
    for (round, version) in versions.iter().enumerate() {
        let events: Vec<Value> =
            (0..20).map(|n| wish(format!("{round}-{n}"), json!({ "count": "count" }))).collect();
        rig.publish(&events);
        if round > 0 {
            rig.write("web.wasm", std::fs::read(guest_file(version)).expect("a guest"));
            host.hangup();
            let swaps = || host.count_messages("another version takes over");
            wait_until("the version is there", PATIENCE, || swaps() >= round);
        }
        rig.publish(&events);
        last += 2 * events.len() as i64;
        rig.wait_until_handled("web", last);
    }
    host.stop();
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    assert_eq!(rig.state("web", "count"), last);
}

/// What a handler is told to answer, and the failure that must come of it.
fn bad_answers() -> Vec<(Value, &'static str, &'static str)> {
    let header = |name: &str, value: &str| json!([[name, value]]);
    vec![
        (json!({ "status": 503, "body": "busy" }), "retry", "HTTP 503: busy"),
        (json!({ "status": 429 }), "retry", "HTTP 429 Too Many Requests"),
        (json!({ "status": 422, "body": "no such order" }), "reject", "HTTP 422: no such order"),
        (json!({ "status": 404, "body": "\u{1b}[31m" }), "reject", "HTTP 404: \u{fffd}[31m"),
        (json!({ "status": 400, "body": "x", "repeat": 50_000 }), "reject", "(50000 bytes in all)"),
        (json!({ "status": 302 }), "reject", "HTTP 302 is no answer for an event"),
        (
            json!({ "error": "no luck" }),
            "retry",
            "answered with the error InternalError(Some(\"no luck\"))",
        ),
        (json!({ "panic": "on purpose" }), "trap", "on purpose"),
        (json!({ "panic_after": "after all" }), "trap", "after all"),
        (json!({ "silent": "kept" }), "no-answer", "returned without an answer"),
        (json!({ "silent": "dropped" }), "no-answer", "returned without an answer"),
        (json!({ "sleep_ms": 60_000 }), "timeout", "limits.timeout, 1s"),
        (
            json!({ "body": "slow", "repeat": 1_000, "pause_ms": 10 }),
            "timeout",
            "limits.timeout, 1s",
        ),
        (
            json!({ "body": "x".repeat(10_000), "repeat": 1_000_000 }),
            "emit-limit",
            "answered with a body of more than 2.0 MiB, limits.emit_total",
        ),
        (
            json!({ "body": "x".repeat(10_000), "repeat": 110, "headers": header("ce-type", "big") }),
            "emit-limit",
            "limits.emit is 1.0 MiB",
        ),
        (
            json!({ "headers": header("ce-type", "denied") }),
            "bad-answer",
            "the answer cannot be emitted: the handler may not emit `denied`",
        ),
        (
            json!({ "headers": [["ce-type", "good"], ["ce-id", ""]], "body": "{}" }),
            "bad-answer",
            "the answer holds what is no event: `id` is empty",
        ),
        (
            json!({ "headers": header("content-type", "application/cloudevents+json"), "body": "{" }),
            "bad-answer",
            "the answer holds what is no event: not JSON",
        ),
        (
            json!({ "headers": header("content-type", "application/cloudevents-batch+json"),
                    "body": json!([{ "specversion": "1.0", "type": "good" },
                                   { "specversion": "1.0", "type": "good", "id": "" }]).to_string() }),
            "bad-answer",
            "event 2 of the answer holds what is no event: `id` is empty",
        ),
        (
            json!({ "headers": header("ce-type", "good"), "body": "{}", "end": "kept" }),
            "bad-answer",
            "its body was not finished",
        ),
        (
            json!({ "headers": header("ce-type", "good"), "body": "{}", "end": "dropped" }),
            "bad-answer",
            "its body was broken off",
        ),
    ]
}

#[test]
fn each_bad_answer_costs_one_attempt_of_one_event_and_says_why() {
    let bad = |name: &str, reuse: &str| {
        http(name).attempts(1).set(reuse).set("allow.emit = [\"good\", \"big\"]").set(
            "limits = { timeout = \"1s\", memory = \"16MiB\", emit_total = \"2MiB\", emit = \"1MiB\" }",
        )
    };
    let rig = Rig::new(&Settings::of([
        bad("fresh", "reuse = \"event\""),
        bad("kept", "reuse = \"batch\""),
    ]));
    let answers = bad_answers();
    let mut events = Vec::new();
    for (n, (answer, ..)) in answers.iter().enumerate() {
        events.push(wish(format!("bad-{n}"), answer.clone()));
        events.push(wish(format!("good-{n}"), json!({ "count": "good" })));
    }
    rig.publish(&events);
    rig.drain();
    let letters = rig.dead_letters();
    for group in ["fresh", "kept"] {
        let letters: Vec<&Value> = letters.iter().filter(|one| one["group"] == group).collect();
        for (letter, (n, (answer, kind, text))) in letters.iter().zip(answers.iter().enumerate()) {
            let said = letter["failure"]["text"].as_str().expect("a text");
            let what: String = answer.to_string().chars().take(80).collect();
            assert_eq!(letter["event"]["id"], format!("bad-{n}"), "{what}");
            assert_eq!(letter["failure"]["kind"], *kind, "{what}: {said}");
            assert!(said.contains(text), "{what}: {said}");
            assert!(said.len() < 20_000, "{what}: {} bytes", said.len());
            assert_eq!(letter["attempts"], 1, "{what}");
        }
        assert_eq!(letters.len(), answers.len(), "{group}");
        assert_eq!(rig.state(group, "good"), answers.len() as i64, "{group}");
        assert_eq!(rig.group(group)["failures"]["no-answer"], 2);
    }
    assert_eq!(rig.number("SELECT count(*) FROM events WHERE type <> 'wish'"), 0);
}

#[test]
fn a_handler_says_by_retry_after_when_it_is_to_be_tried_again() {
    let in_seconds = || "2".to_owned();
    // A date has whole seconds.
    let by_date = || httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3));
    for header in [&in_seconds as &dyn Fn() -> String, &by_date] {
        let header = header();
        let rig = Rig::new(&Settings::of([http("web").attempts(2)]));
        let wait =
            json!({ "until_attempt": 2, "headers": [["retry-after", header]], "count": "count" });
        rig.publish([&wish(1, wait)]);
        let began = Instant::now();
        rig.drain();
        assert_eq!(rig.state("web", "count"), 1);
        assert!(began.elapsed() > Duration::from_secs(1), "{header}: {:?}", began.elapsed());
    }
}

/// What a handler saw of its requests, by the text of its rejections.
fn seen(rig: &Rig) -> Vec<Value> {
    let letters = rig.dead_letters();
    let texts = letters.iter().map(|letter| letter["failure"]["text"].as_str().expect("a text"));
    texts
        .map(|text| {
            let json = text.strip_prefix("HTTP 400: ").expect("a status");
            serde_json::from_str(json).expect("JSON")
        })
        .collect()
}

fn header<'a>(seen: &'a Value, name: &str) -> Option<&'a str> {
    let headers = seen["headers"].as_array().expect("headers");
    headers.iter().find(|header| header[0] == name).and_then(|header| header[1].as_str())
}

#[test]
fn a_request_says_what_the_call_is() {
    let reflect = |id: i32| wish(id, json!({ "status": 400, "reflect": true }));
    let settings = |line: &str| Settings::of([http("web").set("tenant = \"acme\"").set(line)]);
    let rig = Rig::new(&settings(""));
    let tenant_s = rig.host_reading(
        &["publish", "--file", "-", "--tenant", "acme"],
        reflect(1).to_string() + "\n",
    );
    let _ = tenant_s.ok();
    rig.drain();
    let [first] = &seen(&rig)[..] else { panic!("one dead letter") };
    assert_eq!((&first["post"], &first["http"]), (&json!(true), &json!(true)));
    assert_eq!((&first["path"], &first["group"]), (&json!("/wish"), &json!("web")));
    assert_eq!(first["authority"], "event-host.internal");
    for (name, value) in [
        ("ce-id", "1"),
        ("ce-type", "wish"),
        ("content-type", "application/json"),
        ("eh-group", "web"),
        ("eh-tenant", "acme"),
        ("eh-attempt", "1"),
        ("eh-position", "1"),
    ] {
        assert_eq!(header(first, name), Some(value), "{name}");
    }
    assert_eq!(header(first, "eh-replay"), None);

    rig.configure(&settings("http_path = \"/hooks/{type}?from=host\""));
    let _ = rig.host(["dlq", "replay", "1"]).ok();
    rig.drain();
    let [second] = &seen(&rig)[..] else { panic!("one dead letter") };
    assert_eq!(second["path"], "/hooks/wish?from=host");
    assert_eq!(header(second, "eh-replay"), Some("true"));
}

#[test]
fn each_request_gets_an_instance_of_its_own_unless_the_settings_say_otherwise() {
    for (line, expected) in [("", [1, 1, 1]), ("reuse = \"batch\"", [1, 2, 3])] {
        let rig = Rig::new(&Settings::of([http("web").set(line)]));
        let count = json!({ "reflect": true, "headers": [["ce-type", "seen"]] });
        rig.publish(&[1, 2, 3].map(|id| wish(id, count.clone())));
        rig.drain();
        let calls: Vec<i64> = rig
            .data_of("seen")
            .iter()
            .map(|seen| seen["calls"].as_i64().expect("a number"))
            .collect();
        assert_eq!(calls, expected, "{line}");
    }
}

/// What was written for a host that makes an instance for each request may leave its
/// resources to the host.
#[test]
fn an_instance_that_leaves_its_resources_open_is_replaced_before_there_are_too_many() {
    let rig = Rig::new(&Settings::of([http("web").attempts(1).set("reuse = \"batch\"")]));
    let leaves = json!({ "end": "kept", "count": "count" });
    let wishes: Vec<Value> = (0..1_200).map(|id| wish(id, leaves.clone())).collect();
    rig.publish(&wishes);
    rig.drain();
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    assert_eq!(rig.state("web", "count"), 1_200);
}

#[test]
fn a_request_counts_for_the_handlers_memory() {
    let handler = http("web").attempts(1).set("limits.memory = \"2MiB\"");
    let rig = Rig::new(&Settings::of([handler]));
    rig.publish(&[
        wish(1, json!({ "body": "x".repeat(1_500_000) })),
        wish(2, json!({ "count": "count" })),
    ]);
    rig.drain();
    let letters = rig.dead_letters();
    let [letter] = &letters[..] else { panic!("one dead letter") };
    assert_eq!(letter["failure"]["kind"], "memory-limit");
    let said = letter["failure"]["text"].as_str().expect("a text");
    assert!(said.contains("had the host keep") && said.contains("limits.memory"), "{said}");
    assert_eq!(rig.state("web", "count"), 1);
}

#[test]
fn check_says_that_a_component_takes_requests_and_where_a_path_goes_nowhere() {
    let rig = Rig::new(&Settings::of([http("web").set("http_path = \"/events\"")]));
    assert_eq!(rig.json(&["check"])[0]["interface"], "wasi:http/incoming-handler");
    assert!(rig.host(["check"]).ok().contains("wasi:http/incoming-handler"));
    rig.configure(&Settings::of(
        [Handler::new("tally", "tally", &["a"]).set("http_path = \"/a\"")],
    ));
    for command in ["check", "run"] {
        let said = rig.host([command]).failed(1);
        assert!(said.contains("takes no HTTP requests") && said.contains("`http_path`"), "{said}");
    }
    rig.configure(&Settings::of([http("web").set("batch.size = 2")]));
    let said = rig.host(["check"]).failed(1);
    assert!(said.contains("takes one event a call"), "{said}");
}
