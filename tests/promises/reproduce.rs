//! A dead letter's event, run again with nothing recorded of it.

use serde_json::{Value, json};
use tests::{Handler, Rig, Settings, Store, event, guest_file};

tests::on_both_stores! {
    a_dead_letter_fails_again_as_it_did_and_nothing_is_recorded,
    a_dead_letters_handler_keeps_its_limits_and_permissions,
    a_component_that_is_nowhere_is_asked_for,
}

/// Every row of every table, and how far each sequence is.
fn contents(rig: &Rig, store: Store) -> Vec<String> {
    let tables = rig.texts(match store {
        Store::Sqlite => "SELECT name FROM sqlite_schema WHERE type = 'table'",
        Store::Postgres => {
            "SELECT relname::text FROM pg_class
             WHERE relnamespace = 'event_host'::regnamespace AND relkind IN ('r', 'S')"
        }
    });
    assert!(tables.len() >= 8, "{tables:?}");
    let mut rows = Vec::new();
    for table in tables {
        let row = match store {
            Store::Sqlite => rig
                .texts(&format!("SELECT 'quote(' || name || ')' FROM pragma_table_info('{table}')"))
                .join(" || ',' || "),
            Store::Postgres if table.ends_with("_seq") => "last_value::text".to_owned(),
            Store::Postgres => "t::text".to_owned(),
        };
        let of_table = rig.texts(&format!("SELECT {row} FROM {table} t"));
        rows.extend(of_table.into_iter().map(|row| format!("{table}: {row}")));
    }
    rows.sort();
    rows
}

/// `host dlq reproduce`: exit code and answer.
fn reproduce(rig: &Rig, more: &[&str]) -> (Option<i32>, Value) {
    let finished = rig.host(["dlq", "reproduce", "--json"].iter().chain(more));
    let answer = serde_json::from_str(&finished.stdout);
    (finished.code, answer.unwrap_or_else(|error| panic!("{error}: {finished:?}")))
}

fn guest(name: &str) -> String {
    guest_file(name).to_str().expect("a path that is text").to_owned()
}

fn a_dead_letter_fails_again_as_it_did_and_nothing_is_recorded(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::of_file("h", "deployed", &["command"]).attempts(2)]),
    );
    let failed = rig.json(&["deploy", "h", &guest("chaos")])["digest"].clone();
    rig.publish(&[
        event("command", 1, json!({ "do": "count", "key": "k" })),
        event(
            "command",
            2,
            json!([
                { "do": "log", "line": "here it comes", "level": "warn" },
                { "do": "count", "key": "k" },
                { "do": "trap" },
            ]),
        ),
    ]);
    rig.drain();
    let letter = rig.dead_letters().remove(0);
    // Another version is active by now.
    let _ = rig.json(&["deploy", "h", &guest("tally")]);
    let before = contents(&rig, store);

    let (code, answer) = reproduce(&rig, &["1"]);
    assert_eq!((code, &answer["outcome"]), (Some(1), &json!("failure")));
    assert_eq!(answer["failure"]["kind"], "trap");
    assert_eq!(answer["failure"]["text"], letter["failure"]["text"], "with the functions in it");
    assert!(answer["failure"]["text"].as_str().is_some_and(|text| text.contains("\n  in ")));
    assert_eq!((&answer["digest"], &letter["digest"]), (&failed, &failed));
    assert_eq!(answer["failed_then"]["failure"], letter["failure"]);
    assert_eq!(answer["logs"], json!([{ "level": "warn", "message": "here it comes" }]));
    assert_eq!(answer["state"], json!([{ "key": "k", "value": "2" }]), "over the group's own");
    assert!(answer["duration_ms"].as_f64().is_some_and(|took| took > 0.0));
    assert!(answer["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 65_536));

    let finished = rig.host(["dlq", "reproduce", "1"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    for part in ["trap: ", "\n         in ", "here it comes", "state  \"k\"", "the one that failed"]
    {
        assert!(finished.stdout.contains(part), "`{part}` is missing in: {finished:?}");
    }

    let (code, answer) = reproduce(&rig, &["1", "--component", &guest("tally")]);
    assert_eq!((code, &answer["outcome"]), (Some(0), &json!("success")));
    assert_eq!(answer["failure"], Value::Null);
    assert_ne!(answer["digest"], failed);

    assert_eq!(contents(&rig, store), before);
    assert!(before.iter().any(|row| row.starts_with("dead_letters: ")), "{before:?}");
    let complaint = rig.host(["dlq", "reproduce", "7"]).failed(1);
    assert_eq!(complaint, "error: dead letter 7 not found\n");
}

fn a_dead_letters_handler_keeps_its_limits_and_permissions(store: Store) {
    let chaos = || Handler::new("chaos", "chaos", &["command"]).attempts(1);
    let rig = Rig::on(
        store,
        &Settings::of([chaos().set("allow.env = { A = \"1\" }").set("tenant = \"acme\"")]),
    );
    let publish = |data: Value| {
        let data = data.to_string();
        let arguments = ["publish", "--tenant", "acme", "--type", "command", "--data", &data];
        let _ = rig.host(arguments).ok();
    };
    publish(json!([
        { "do": "abort-if-env", "name": "A" },
        { "do": "report", "type": "seen" },
    ]));
    publish(json!({ "do": "allocate" }));
    rig.drain();
    let (_, answer) = reproduce(&rig, &["1"]);
    assert_eq!(answer["failure"]["kind"], "trap", "{answer}");
    let (_, answer) = reproduce(&rig, &["2"]);
    assert_eq!(answer["failure"]["kind"], "memory-limit", "{answer}");

    // Other settings, another outcome.
    rig.configure(&Settings::of([chaos()
        .set("tenant = \"acme\"")
        .set("limits.memory = \"32MiB\"")]));
    let (code, answer) = reproduce(&rig, &["1"]);
    assert_eq!(code, Some(0), "{answer}");
    let seen = &answer["emits"][0]["data"];
    assert_eq!((&seen["group"], &seen["tenant"]), (&json!("chaos"), &json!("acme")));
    assert_eq!((&seen["position"], &seen["attempt"]), (&json!(1), &json!(1)));
    assert_eq!(rig.number("SELECT count(*) FROM events WHERE type = 'seen'"), 0);
    let (_, answer) = reproduce(&rig, &["2"]);
    let text = answer["failure"]["text"].as_str().expect("a text");
    assert!(text.contains("limits.memory is 32.0 MiB"), "{text}");

    // Another tenant's handler is not the one that failed.
    rig.configure(&Settings::of([chaos()]));
    let complaint = rig.host(["dlq", "reproduce", "1"]).failed(1);
    assert!(complaint.contains("no handler in it"), "{complaint}");
}

fn a_component_that_is_nowhere_is_asked_for(store: Store) {
    let handler = |name: &str, file: &str| Handler::of_file(name, file, &["command"]).attempts(1);
    let rig = Rig::on(store, &Settings::of([handler("h", "h.wasm")]));
    let chaos = std::fs::read(guest_file("chaos")).expect("the guest can be read");
    rig.write("h.wasm", &chaos);
    rig.publish(&[event("command", 1, json!({ "do": "trap" }))]);
    rig.drain();
    let letter = rig.dead_letters().remove(0);
    assert_eq!(reproduce(&rig, &["1"]).1["digest"], letter["digest"], "from its file");

    let expect = |parts: &[&str]| {
        let complaint = rig.host(["dlq", "reproduce", "1"]).failed(1);
        for part in
            [&[letter["digest"].as_str().expect("a text"), "--component FILE"], parts].concat()
        {
            assert!(complaint.contains(part), "`{part}` is missing in: {complaint}");
        }
    };
    rig.write("h.wasm", std::fs::read(guest_file("tally")).expect("the guest can be read"));
    expect(&["h.wasm is sha256:"]);
    std::fs::remove_file(rig.path("h.wasm")).expect("it was written");
    expect(&["h.wasm: there is no such file"]);
    rig.configure(&Settings::of([handler("h", "deployed")]));
    expect(&["not in the database"]);

    rig.write("kept.wasm", &chaos);
    let (code, answer) = reproduce(&rig, &["1", "--component", "kept.wasm"]);
    assert_eq!((code, &answer["digest"]), (Some(1), &letter["digest"]));
    // Once it is deployed, for this handler or another of its owner, it is there.
    let _ = rig.json(&["deploy", "h", "kept.wasm"]);
    assert_eq!(reproduce(&rig, &["1"]).1["digest"], letter["digest"]);
    rig.configure(&Settings::of([handler("other", "deployed")]));
    let complaint = rig.host(["dlq", "reproduce", "1"]).failed(1);
    assert!(complaint.contains("group `h`") && complaint.contains("no handler"), "{complaint}");
}
