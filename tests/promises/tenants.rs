//! Tenants: nothing crosses from one to another (promise 14), and each is bounded
//! by its own ceilings (promise 13).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Handler, PATIENCE, Rig, Settings, Store, event, guest_file, wait_until};

use super::grants::Server;

tests::on_both_stores! {
    what_one_tenant_does_shows_nowhere_at_another,
    a_tenant_that_keeps_all_the_dead_letters_it_may_is_paused_and_loses_none,
    a_tenant_whose_dead_letters_take_all_the_bytes_they_may_is_paused_and_loses_none,
    state_is_bounded_over_all_handlers_of_a_tenant,
    attempts_a_second_are_bounded_over_all_handlers_of_a_tenant,
}

/// A handler of a tenant.
fn of(tenant: &str, name: &str, guest: &str, subscribe: &[&str]) -> Handler {
    Handler::new(name, guest, subscribe).attempts(1).set(&format!("tenant = \"{tenant}\""))
}

/// Tenants with what is in their tables, and these handlers.
fn settings<const N: usize>(tenants: &[(&str, &str)], handlers: [Handler; N]) -> Settings {
    tenants.iter().fold(Settings::of(handlers), |settings, (name, ceilings)| {
        settings.top(&format!("tenants.{name} = {{ {ceilings} }}"))
    })
}

/// Publishes one event for a tenant.
fn publish(rig: &Rig, tenant: &str, event_type: &str, id: &str, data: &Value) {
    let data = data.to_string();
    let _ = rig
        .host(["publish", "--tenant", tenant, "--type", event_type, "--id", id, "--data", &data])
        .ok();
}

const SECRET: &str = "acme's own business";

fn what_one_tenant_does_shows_nowhere_at_another(store: Store) {
    let rig = Rig::on(
        store,
        &settings(
            &[("acme", ""), ("other", "")],
            [
                of("acme", "theirs", "chaos", &["command"]),
                of("other", "spy", "chaos", &["*"]),
                Handler::new("nobodys", "tally", &["*"]).attempts(1),
            ],
        ),
    );
    let act = json!([
        { "do": "log", "line": SECRET },
        { "do": "print", "text": SECRET },
        { "do": "count", "key": "shared" },
        { "do": "emit", "type": "command", "data": [{ "do": "reject", "text": SECRET }] },
    ]);
    publish(&rig, "acme", "command", "theirs-1", &act);
    publish(&rig, "acme", "command", "theirs-2", &json!({ "do": "panic", "text": SECRET }));
    let look = json!([{ "do": "count", "key": "shared" }, { "do": "report", "type": "seen" }]);
    publish(&rig, "other", "command", "others-1", &look);
    let host = rig.spawn_run();
    wait_until("both have failed", PATIENCE, || rig.dead_letters().len() >= 3);
    wait_until("the spy has seen all it may", PATIENCE, || rig.group("spy")["lag_events"] == 0);

    // What the spy received: its own event, and its own emit, which is no command.
    let letters = rig.dead_letters();
    let of_group = |group: &str| -> Vec<&Value> {
        letters.iter().filter(|letter| letter["group"] == group).collect()
    };
    assert_eq!(of_group("theirs").len(), 2, "{letters:?}");
    assert_eq!(of_group("spy").len(), 1, "{letters:?}");
    assert!(of_group("theirs").iter().all(|letter| letter["tenant"] == "acme"), "{letters:?}");
    assert!(!of_group("spy")[0].to_string().contains(SECRET));
    assert_eq!(rig.data_of("seen").len(), 1);
    assert_eq!(rig.data_of("seen")[0]["tenant"], "other");
    assert!(!rig.data_of("seen")[0].to_string().contains(SECRET));
    assert_eq!((rig.state("theirs", "shared"), rig.state("spy", "shared")), (1, 1));
    assert_eq!(rig.state("nobodys", "count"), 0);
    let crossed = "SELECT count(*) FROM events WHERE source LIKE '%theirs%' AND tenant <> 'acme'";
    assert_eq!(rig.number(crossed), 0);
    // No replay takes it elsewhere either.
    let _ = rig.host(["dlq", "replay", "--group", "theirs", "--all"]).ok();
    wait_until("they failed again", PATIENCE, || rig.dead_letters().len() == 3);
    assert_eq!(rig.state("spy", "shared"), 1);

    // Whatever the host says of it, it says of the group that it is about.
    let told: Vec<Value> =
        host.log().into_iter().filter(|line| line.to_string().contains(SECRET)).collect();
    assert!(told.len() >= 3, "{told:?}");
    for line in &told {
        let line = line.to_string();
        assert!(
            line.contains("theirs") && !line.contains("spy") && !line.contains("nobodys"),
            "{line}"
        );
    }
    host.stop();
}

fn a_tenant_that_keeps_all_the_dead_letters_it_may_is_paused_and_loses_none(store: Store) {
    let rig = Rig::on(
        store,
        &settings(
            &[("acme", "dead_letters = 3"), ("other", "dead_letters = 100")],
            [
                of("acme", "theirs", "chaos", &["command"]),
                of("other", "others", "chaos", &["command"]),
            ],
        ),
    );
    for n in 1..=5 {
        for tenant in ["acme", "other"] {
            publish(&rig, tenant, "command", &format!("{tenant}-{n}"), &json!({ "do": "reject" }));
        }
    }
    let ids = |group: &str| -> Vec<String> {
        let letters = rig.dead_letters();
        let theirs = letters.iter().filter(|letter| letter["group"] == group);
        theirs.map(|letter| letter["event"]["id"].as_str().expect("an id").to_owned()).collect()
    };
    rig.drain();
    assert_eq!(ids("theirs"), ["acme-1", "acme-2", "acme-3"]);
    assert_eq!(ids("others").len(), 5);
    let group = rig.group("theirs");
    assert_eq!(group["state"], "paused", "{group}");
    let reason = group["reason"].as_str().expect("a reason");
    assert!(reason.contains("tenant `acme` keeps 3 dead letters"), "{reason}");
    assert!(rig.host(["status"]).ok().contains("host groups resume theirs"));

    let letters = rig.dead_letters();
    let first = letters.iter().find(|letter| letter["event"]["id"] == "acme-1");
    let _ = rig.host(["dlq", "discard", &first.expect("it is kept")["id"].to_string()]).ok();
    let _ = rig.host(["groups", "resume", "theirs"]).ok();
    rig.drain();
    assert_eq!(ids("theirs"), ["acme-2", "acme-3", "acme-4"]);
    assert_eq!(rig.group("theirs")["lag_events"], 1);
    assert_eq!(ids("others").len(), 5);
}

/// Each dead letter takes about 100 kB, and 250 kB may be kept.
fn a_tenant_whose_dead_letters_take_all_the_bytes_they_may_is_paused_and_loses_none(store: Store) {
    let rig = Rig::on(
        store,
        &settings(
            &[("acme", "dead_letter_bytes = \"250kB\""), ("other", "")],
            [
                of("acme", "theirs", "chaos", &["command"]),
                of("acme", "also-theirs", "tally", &["command"]),
                of("other", "others", "chaos", &["command"]),
            ],
        ),
    );
    let large = json!({ "do": "reject", "text": "x".repeat(100_000) });
    for n in 1..=5 {
        for tenant in ["acme", "other"] {
            let data = large.to_string();
            rig.write("data.json", data);
            let id = format!("{tenant}-{n}");
            let file = ["--data-file", "data.json", "--id", &id];
            let event = ["publish", "--tenant", tenant, "--type", "command"];
            let _ = rig.host(event.iter().chain(&file)).ok();
        }
    }
    let kept = |group: &str| {
        rig.number(&format!("SELECT count(*) FROM dead_letters WHERE group_name = '{group}'"))
    };
    rig.drain();
    // The first 16 KiB of a failure's text are kept beside the event.
    assert_eq!((kept("theirs"), kept("others")), (2, 5));
    assert_eq!(rig.state("also-theirs", "count"), 5, "what makes no dead letter goes on");
    let group = rig.group("theirs");
    assert_eq!(group["state"], "paused", "{group}");
    let reason = group["reason"].as_str().expect("a reason");
    assert!(reason.contains("`dead_letter_bytes` in [tenants.acme] is 250000"), "{reason}");
    assert!(rig.host(["status"]).ok().contains("host groups resume theirs"));

    let id = rig.number("SELECT min(id) FROM dead_letters WHERE group_name = 'theirs'");
    let _ = rig.host(["dlq", "discard", &id.to_string()]).ok();
    let _ = rig.host(["groups", "resume", "theirs"]).ok();
    rig.drain();
    assert_eq!((kept("theirs"), rig.group("theirs")["lag_events"].clone()), (2, json!(2)));
}

fn state_is_bounded_over_all_handlers_of_a_tenant(store: Store) {
    let rig = Rig::on(
        store,
        &settings(
            &[("acme", "state = \"10KB\""), ("other", "")],
            [
                of("acme", "one", "chaos", &["one"]),
                of("acme", "two", "chaos", &["two"]),
                of("other", "others", "chaos", &["one", "two"]),
            ],
        ),
    );
    let keep = |bytes: u32| json!({ "do": "huge-state", "bytes": bytes });
    let steps = [("one", 6_000), ("two", 6_000), ("two", 3_000), ("one", 6_900), ("one", 7_100)];
    for (n, (event_type, bytes)) in steps.into_iter().enumerate() {
        for tenant in ["acme", "other"] {
            publish(&rig, tenant, event_type, &format!("{tenant}-{n}"), &keep(bytes));
        }
        rig.drain();
    }
    let refused: Vec<(Value, Value)> = rig
        .dead_letters()
        .iter()
        .map(|letter| (letter["event"]["id"].clone(), letter["failure"]["kind"].clone()))
        .collect();
    let expected = ["acme-1", "acme-4"].map(|id| (json!(id), json!("state-limit")));
    assert_eq!(refused, expected);
    let text = rig.dead_letters()[0]["failure"]["text"].clone();
    assert_eq!(
        text,
        "the state of tenant `acme` would be 12008 bytes, `state` in [tenants.acme] is 10000"
    );
    let bytes = "SELECT CAST(sum(length(value)) AS BIGINT) FROM state WHERE group_name";
    assert_eq!(rig.number(&format!("{bytes} IN ('one', 'two')")), 6_900 + 3_000);
    assert_eq!(rig.number(&format!("{bytes} = 'others'")), 7_100);
}

fn attempts_a_second_are_bounded_over_all_handlers_of_a_tenant(store: Store) {
    let handlers = ["one", "two"].map(|name| of("acme", name, "tally", &["a"]));
    let rig = Rig::on(store, &settings(&[("acme", "events_per_second = 10")], handlers));
    for n in 0..12 {
        publish(&rig, "acme", "a", &n.to_string(), &json!(null));
    }
    let begun = Instant::now();
    rig.drain();
    // 24 attempts: ten at once, and ten a second.
    assert!(begun.elapsed() >= Duration::from_millis(1_400), "{:?}", begun.elapsed());
    assert_eq!((rig.state("one", "count"), rig.state("two", "count")), (12, 12));
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

// Promise 16.
#[test]
fn a_limit_above_its_tenants_is_refused_with_both_numbers_and_both_lines() {
    let greedy = of("acme", "greedy", "noop", &["a"]).set("limits.memory = \"1GiB\"");
    let rig = Rig::new(&settings(&[("acme", "memory = \"64MiB\"")], [greedy]));
    let said = "handlers.toml:8:17: `memory` is 1.0 GiB, more than the `memory` of its tenant `acme`, 64.0 MiB (line 1): lower the one or raise the other";
    for command in ["check", "run"] {
        let refused = rig.host([command]).failed(1);
        assert!(refused.contains(said), "{refused}");
    }
}

#[test]
fn a_tenant_is_shown_by_check_only_where_there_is_one() {
    let rig = Rig::new(&settings(&[("acme", "")], [of("acme", "theirs", "noop", &["a"])]));
    assert_eq!(rig.json(&["check"])[0]["tenant"], "acme");
    let table = rig.host(["check"]).ok();
    assert!(table.contains("TENANT") && table.contains("acme"), "{table}");

    rig.configure(&Settings::of([Handler::new("nobodys", "chaos", &["command"]).attempts(1)]));
    rig.publish(&[event("command", 1, json!({ "do": "reject" }))]);
    let log = rig.drain();
    let mut said = vec![log];
    for command in [
        &["check"][..],
        &["status"],
        &["groups", "list"],
        &["groups", "show", "nobodys"],
        &["dlq", "list"],
        &["dlq", "show", "1"],
    ] {
        said.push(rig.host(command).ok());
        said.push(rig.json(command).to_string());
    }
    let guest = guest_file("chaos");
    for said in said {
        // Wherever the tests lie.
        let said = said.replace(&*guest.to_string_lossy(), "");
        assert!(!said.to_lowercase().contains("tenant"), "{said}");
    }
}

// Promise 13.
#[test]
fn what_a_tenant_emits_requests_and_logs_in_a_second_is_bounded() {
    let server = Server::start();
    let emit = json!({ "do": "emit", "type": "out", "count": 20 });
    let huge = json!({ "do": "huge-emit", "bytes": 20_000 });
    let request = json!({ "do": "request", "url": server.url("/"), "type": "out" });
    let ceilings = [
        ("emits_per_second = 20", emit),
        ("emit_bytes_per_second = \"20KB\"", huge),
        ("http_requests_per_second = 5", Value::Array(vec![request; 5])),
        ("log_lines_per_second = 10", json!({ "do": "print", "text": "line\n".repeat(10) })),
    ];
    let allowed = format!("allow.http = [\"{}\"]", server.url(""));
    let names = ["emits", "bytes", "requests", "lines"];
    let tenants: Vec<(&str, &str)> = names
        .iter()
        .zip(&ceilings)
        .map(|(name, (ceiling, _))| (*name, *ceiling))
        .chain([("innocent", "")])
        .collect();
    let handlers = ["emits", "bytes", "requests", "lines", "innocent"]
        .map(|name| of(name, name, "chaos", &["command"]).set(&allowed));
    let rig = Rig::new(&settings(&tenants, handlers));
    for (name, (ceiling, command)) in names.into_iter().zip(&ceilings) {
        // A second's worth each: the first begins at once, and so does the second; the
        // fifth waits for what the four before it used.
        for n in 0..5 {
            publish(&rig, name, "command", &n.to_string(), command);
            publish(&rig, "innocent", "command", &format!("{name}-{n}"), command);
        }
        let host = rig.spawn_run();
        let begun = Instant::now();
        let last = rig.number("SELECT max(position) FROM events WHERE type = 'command'");
        rig.wait_until_handled("innocent", last);
        let innocent = begun.elapsed();
        let handled = format!("SELECT position FROM consumer_groups WHERE name = '{name}'");
        let late = rig.number(&handled) < last - 1;
        assert!(late, "{ceiling}: not bounded when the innocent was done, after {innocent:?}");
        rig.wait_until_handled(name, last - 1);
        assert!(begun.elapsed() >= Duration::from_secs(3), "{ceiling}: {:?}", begun.elapsed());
        host.stop();
    }
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}
