//! Retention: events go once every group has settled them, and never before,
//! while hosts run, stop, and die.

use std::time::Duration;

use serde_json::{Value, json};
use tests::{Handler, PATIENCE, Rig, Settings, Store, event, wait_until};

tests::on_both_stores! {
    what_was_handled_goes_and_the_log_stays_short,
    a_paused_group_pins_the_log_and_status_names_it,
    hosts_that_are_killed_while_they_keep_the_log_lose_nothing,
    a_retention_that_is_set_while_the_host_runs_counts_from_then_on,
    a_place_of_which_events_are_gone_is_told_with_what_is_missing,
    a_group_that_keeps_more_of_the_log_than_its_tenant_may_lets_go_loudly_and_no_other_does,
}

fn settings() -> Settings {
    Settings::of([Handler::new("tally", "tally", &["a"])])
}

fn events(range: std::ops::Range<i64>) -> Vec<Value> {
    range.map(|n| event("a", n, json!({ "n": n }))).collect()
}

fn wait_until_the_log_is_empty(rig: &Rig) {
    wait_until("the log is empty", PATIENCE, || rig.number("SELECT count(*) FROM events") == 0);
}

fn what_was_handled_goes_and_the_log_stays_short(store: Store) {
    let rig = Rig::on(store, &settings().top("retention = \"1s\""));
    rig.publish(&events(0..10));
    let host = rig.spawn_run();
    host.wait_until_leading("tally");
    for round in 1..=3 {
        wait_until("they are handled", PATIENCE, || rig.state("tally", "count") == round * 10);
        wait_until_the_log_is_empty(&rig);
        rig.publish(&events(round * 10..(round + 1) * 10));
    }
    host.wait_for_log("what went", |line| line["message"] == "old events were dropped");
    host.stop();
    // And it starts again on a log of which the beginning is gone.
    rig.drain();
    assert_eq!(rig.state("tally", "count"), 40);
}

fn a_paused_group_pins_the_log_and_status_names_it(store: Store) {
    let settings = Settings::of([
        Handler::new("tally", "tally", &["a"]),
        Handler::new("held", "tally", &["a"]),
    ]);
    let rig = Rig::on(store, &settings.top("retention = \"1s\""));
    rig.drain();
    let _ = rig.host(["groups", "pause", "held"]).ok();
    rig.publish(&events(0..10));
    let host = rig.spawn_run();
    wait_until("they are handled by the other", PATIENCE, || rig.state("tally", "count") == 10);
    wait_until("the pin is shown", PATIENCE, || {
        rig.json(&["status"])["pinned_by"]["group"] == "held"
    });
    let said = rig.host(["status"]).ok();
    assert!(
        said.contains("the log is pinned by group held, which stands at 0: without it "),
        "{said}"
    );
    host.wait_for_log("the pin", |line| {
        line["group"] == "held"
            && line["message"].as_str().is_some_and(|m| m.contains("old events stay"))
    });
    assert_eq!(rig.number("SELECT count(*) FROM events"), 10);

    let _ = rig.host(["groups", "resume", "held"]).ok();
    wait_until("they are handled", PATIENCE, || rig.state("held", "count") == 10);
    wait_until_the_log_is_empty(&rig);
    wait_until("the pin is gone", PATIENCE, || rig.json(&["status"])["pinned_by"].is_null());
    host.stop();
}

fn hosts_that_are_killed_while_they_keep_the_log_lose_nothing(store: Store) {
    const ROUNDS: i64 = 8;
    const EACH: i64 = 100;
    let rig = Rig::on(store, &settings().top("retention = \"1s\""));
    for round in 0..ROUNDS {
        let hosts = [rig.spawn_run(), rig.spawn_run()];
        rig.publish(&events(round * EACH..(round + 1) * EACH));
        wait_until("some are handled", PATIENCE, || rig.state("tally", "count") > round * EACH);
        // Several looks of the keepers fall into it; the moment of the kill is what
        // is random here, so nothing is waited for.
        std::thread::sleep(Duration::from_millis(fastrand::u64(300..1_500)));
        for host in hosts {
            host.kill9();
        }
    }
    rig.drain();
    assert_eq!(rig.state("tally", "count"), ROUNDS * EACH, "each was handled once");
    let host = rig.spawn_run();
    host.wait_until_leading("tally");
    wait_until_the_log_is_empty(&rig);
    host.stop();
}

fn a_retention_that_is_set_while_the_host_runs_counts_from_then_on(store: Store) {
    let rig = Rig::on(store, &settings());
    rig.publish(&events(0..10));
    let host = rig.spawn_run();
    wait_until("they are handled", PATIENCE, || rig.state("tally", "count") == 10);
    assert_eq!(rig.number("SELECT count(*) FROM events"), 10);
    rig.configure(&settings().top("retention = \"1s\""));
    host.hangup();
    wait_until_the_log_is_empty(&rig);
    host.stop();
}

/// Within which an innocent tenant's events are handled meanwhile.
const HANDLED_WITHIN: Duration = Duration::from_secs(30);

fn a_group_that_keeps_more_of_the_log_than_its_tenant_may_lets_go_loudly_and_no_other_does(
    store: Store,
) {
    let of = |tenant: &str, name: &str| {
        Handler::new(name, "tally", &["a"]).set(&format!("tenant = \"{tenant}\""))
    };
    let handlers = [of("acme", "theirs"), of("acme", "also-theirs"), of("other", "others")];
    let settings = Settings::of(handlers)
        .top("retention = \"1s\"")
        .top("tenants.acme = { pinned_log = \"200KB\" }")
        .top("tenants.other = {}");
    let rig = Rig::on(store, &settings);
    rig.drain();
    for group in ["theirs", "others"] {
        let _ = rig.host(["groups", "pause", group]).ok();
    }
    let publish = |tenant: &str, ids: std::ops::Range<i64>, bytes: usize| {
        let lines = ids.map(|n| {
            let data: String = std::iter::repeat_with(fastrand::alphanumeric).take(bytes).collect();
            format!("{}\n", event("a", n, json!(data)))
        });
        rig.write("events.jsonl", lines.collect::<String>());
        let _ = rig.host(["publish", "--tenant", tenant, "--file", "events.jsonl"]).ok();
    };
    publish("acme", 0..20, 20_000);
    publish("other", 0..20, 20_000);
    let host = rig.spawn_run();
    wait_until("the group lets go", PATIENCE, || rig.group("theirs")["unpinned"] == true);
    host.wait_for_log("it is said loudly", |line| {
        line["level"] == "WARN" && line["group"] == "theirs" && line["position"] == 0
    });
    let group = rig.group("theirs");
    let reason = group["reason"].as_str().expect("a reason");
    assert!(reason.contains("`pinned_log` in [tenants.acme] is 200000"), "{reason}");
    assert!(rig.host(["status"]).ok().contains("--accept-loss"));
    assert_eq!(group["state"], "paused");
    wait_until("its sister goes on", HANDLED_WITHIN, || rig.state("also-theirs", "count") == 20);
    // Who has no such setting keeps all that it has not handled.
    assert_eq!(rig.group("others")["unpinned"], Value::Null);
    wait_until("the other pins the log", PATIENCE, || {
        rig.json(&["status"])["pinned_by"]["group"] == "others"
    });
    let theirs = "SELECT count(*) FROM events WHERE tenant = 'other'";
    assert_eq!(rig.number(theirs), 20);
    let _ = rig.host(["groups", "resume", "others"]).ok();
    wait_until("the other handles its own", HANDLED_WITHIN, || rig.state("others", "count") == 20);

    wait_until_the_log_is_empty(&rig);
    let refused = rig.host(["groups", "resume", "theirs"]).failed(1);
    assert!(refused.contains("let go of every event up to position "), "{refused}");
    assert!(refused.contains("`host groups resume theirs --accept-loss`"), "{refused}");
    assert_eq!(rig.group("theirs")["state"], "paused");
    let resumed = rig.host(["groups", "resume", "theirs", "--accept-loss"]).ok();
    assert!(resumed.contains("let go of every event up to position "), "{resumed}");
    publish("acme", 20..21, 10);
    wait_until("it goes on with what comes", PATIENCE, || rig.state("theirs", "count") == 1);
    let group = rig.group("theirs");
    assert_eq!((&group["state"], &group["unpinned"]), (&json!("running"), &Value::Null));
    host.stop();
}

fn a_place_of_which_events_are_gone_is_told_with_what_is_missing(store: Store) {
    let settings = settings().top("retention = \"1s\"");
    let rig = Rig::on(store, &settings);
    rig.publish(&events(0..10));
    let host = rig.spawn_run();
    host.wait_until_leading("tally");
    wait_until_the_log_is_empty(&rig);
    host.stop();
    let seek = |to: &str, more: &[&str]| {
        rig.host(["groups", "seek", "tally", "--to", to].iter().chain(more))
    };
    let cursor = rig.group("tally")["position"].clone();
    let refused = seek("3", &["--exact"]).failed(1);
    for part in ["up to position 10,", "at most 7 were after this place", "nothing was moved"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(rig.group("tally")["position"], cursor);
    let said = seek("3", &[]).ok();
    let begins =
        "group tally goes on after position 3; retention let go of every event up to position 10";
    assert!(said.starts_with(begins) && said.contains("none is there now"), "{said}");
    let said = seek("earliest", &["--exact"]).ok();
    assert!(said.contains("of which at most 10 were after this place"), "{said}");
    let said = seek("latest", &["--exact"]).ok();
    assert!(!said.contains("retention"), "{said}");
    let said = seek("2020-01-01T00:00:00Z", &[]).ok();
    assert!(said.contains("of which some may belong there"), "{said}");

    // So is where a new group begins.
    let late = Handler::new("late", "tally", &["a"]).set("start = 4");
    rig.configure(&Settings::of([Handler::new("tally", "tally", &["a"]), late]));
    let mut host = rig.spawn(&["run", "--drain"]);
    assert!(host.wait().success());
    let line = host.wait_for_log("where it cannot begin", |line| {
        line["level"] == "WARN"
            && line["message"].as_str().is_some_and(|said| said.contains("cannot begin where"))
    });
    assert_eq!(line["group"], "late");
}
