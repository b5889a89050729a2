//! Order by key and no order: what a failing event holds up, and that every count
//! is exact, whatever is killed.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tests::{Handler, PATIENCE, Rig, Settings, Store, event, wait_until, with};

tests::on_both_stores! {
    a_key_that_fails_holds_up_no_other_and_comes_in_order_once_it_recovers,
    what_is_parked_survives_a_kill_and_is_due_when_it_was,
    a_pipeline_of_three_handlers_killed_a_hundred_times_ends_with_every_count_exact,
    keys_run_at_the_same_time_up_to_the_concurrency,
    a_counter_of_each_key_is_exact_under_64_attempts_at_once_crashes_and_redeliveries,
    without_order_an_event_that_fails_holds_up_nothing,
    a_component_that_imports_the_state_is_refused_without_order,
    with_too_many_parked_the_group_holds_back_and_status_says_so,
    another_ordering_goes_on_with_what_is_parked,
}

fn keyed(n: i64, key: &str, commands: Value) -> Value {
    with(event("command", n, commands), "partitionkey", key)
}

/// Each key's counter, by the scope of its state.
fn counts(rig: &Rig, group: &str) -> BTreeMap<String, i64> {
    let value = rig.as_text("value");
    let rows = rig.texts(&format!(
        "SELECT scope || '=' || {value} FROM state WHERE group_name = '{group}' AND key = 'n'"
    ));
    let parse = |row: &String| {
        let (scope, count) = row.rsplit_once('=').expect("a scope and a count");
        (scope.to_owned(), count.parse().expect("a count"))
    };
    rows.iter().map(parse).collect()
}

fn parked(rig: &Rig, group: &str) -> i64 {
    rig.number(&format!("SELECT count(*) FROM redeliveries WHERE group_name = '{group}'"))
}

fn count() -> Value {
    json!({ "do": "count", "key": "n" })
}

fn a_key_that_fails_holds_up_no_other_and_comes_in_order_once_it_recovers(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("orders", "chaos", &["command"])
            .set("ordering = \"key\"")
            .set("retry.initial = \"300ms\"")]),
    );
    let report = json!({ "do": "report", "type": "seen" });
    let fails = json!([{ "do": "fail-until-attempt", "attempt": 3 }, count(), report]);
    let succeeds = json!([count(), report]);
    rig.publish(&[
        keyed(1, "a", fails),
        keyed(2, "b", succeeds.clone()),
        keyed(3, "a", succeeds.clone()),
        keyed(4, "b", succeeds.clone()),
        keyed(5, "a", succeeds),
    ]);
    rig.drain();
    let expected = BTreeMap::from([("key:a".to_owned(), 3), ("key:b".to_owned(), 2)]);
    assert_eq!(counts(&rig, "orders"), expected);
    let seen: Vec<i64> = rig
        .data_of("seen")
        .iter()
        .map(|seen| seen["position"].as_i64().expect("a position"))
        .collect();
    let at = |position: i64| seen.iter().position(|seen| *seen == position).expect("it was seen");
    assert!(at(1) < at(3) && at(3) < at(5), "the order of key a: {seen:?}");
    assert!(at(4) < at(1), "key b waited: {seen:?}");
    assert_eq!(parked(&rig, "orders"), 0);
}

fn what_is_parked_survives_a_kill_and_is_due_when_it_was(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("orders", "chaos", &["command"])
            .set("ordering = \"key\"")
            .set("retry.initial = \"3s\"")
            .set("retry.jitter = 0.0")]),
    );
    let fails = json!([{ "do": "fail-until-attempt", "attempt": 2 }, count()]);
    rig.publish(&[keyed(1, "a", fails), keyed(2, "a", count()), keyed(3, "b", count())]);
    let host = rig.spawn_run();
    wait_until("two events are parked", PATIENCE, || parked(&rig, "orders") == 2);
    let status = rig.group("orders");
    assert_eq!((&status["parked"], &status["position"]), (&json!(2), &json!(3)), "{status}");
    assert_eq!(status["retries_pending"], json!(2), "{status}");
    host.kill9();
    rig.drain();
    let expected = BTreeMap::from([("key:a".to_owned(), 2), ("key:b".to_owned(), 1)]);
    assert_eq!(counts(&rig, "orders"), expected);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    assert_eq!(rig.group("orders")["failures"], json!({ "retry": 1 }));
}

fn a_pipeline_of_three_handlers_killed_a_hundred_times_ends_with_every_count_exact(store: Store) {
    const KILLS: i64 = 100;
    const EVENTS: i64 = 20;
    const KEYS: i64 = 7;
    let stage = |name: &str, ordering: &str| {
        Handler::new(name, "chaos", &[name])
            .set(&format!("ordering = \"{ordering}\""))
            .set("batch.max_events = 30")
            .attempts(1_000)
    };
    let rig = Rig::on(
        store,
        &Settings::of([stage("first", "key"), stage("second", "key"), stage("third", "total")]),
    );
    let key = |n: i64| format!("k{}", n % KEYS);
    for kill in 0..KILLS {
        let events: Vec<Value> = (0..EVENTS)
            .map(|n| {
                let n = kill * EVENTS + n;
                let third = json!([count()]);
                let second = json!([count(), { "do": "emit", "type": "third", "data": third }]);
                let attempt = if n % 11 == 0 { 2 } else { 1 };
                let first = json!([
                    count(),
                    { "do": "emit", "type": "second", "data": second },
                    { "do": "fail-until-attempt", "attempt": attempt },
                ]);
                with(event("first", n, first), "partitionkey", key(n))
            })
            .collect();
        rig.publish(&events);
        let host = rig.spawn_run();
        host.wait_until_leading("first");
        // The moment of the kill is what is random here, so nothing is waited for.
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..60)));
        host.kill9();
    }
    rig.drain();
    let mut expected = BTreeMap::new();
    for n in 0..KILLS * EVENTS {
        *expected.entry(format!("key:{}", key(n))).or_insert(0) += 1;
    }
    assert_eq!(counts(&rig, "first"), expected);
    assert_eq!(counts(&rig, "second"), expected);
    assert_eq!(counts(&rig, "third"), BTreeMap::from([(String::new(), KILLS * EVENTS)]));
    for stage in ["second", "third"] {
        let [all, distinct] = rig.numbers(&format!(
            "SELECT count(*), count(DISTINCT id) FROM events WHERE type = '{stage}'"
        ));
        assert_eq!((all, distinct), (KILLS * EVENTS, KILLS * EVENTS), "{stage}");
    }
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn keys_run_at_the_same_time_up_to_the_concurrency(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("orders", "chaos", &["command"])
            .set("ordering = \"key\"")
            .set("limits.concurrency = 8")]),
    );
    let slow = json!([{ "do": "log", "line": "begun" }, { "do": "sleep", "ms": 600_000 }]);
    let events: Vec<Value> = (0..20).map(|n| keyed(n, &format!("k{n}"), slow.clone())).collect();
    rig.publish(&events);
    let host = rig.spawn_run();
    wait_until("eight attempts run", PATIENCE, || host.count_messages("begun") == 8);
    // What else is to come would come at once.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(host.count_messages("begun"), 8);
    host.kill9();
}

fn a_counter_of_each_key_is_exact_under_64_attempts_at_once_crashes_and_redeliveries(store: Store) {
    const EVENTS: i64 = 2_000;
    const KEYS: i64 = 100;
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("orders", "chaos", &["command"])
            .set("ordering = \"key\"")
            .set("limits.concurrency = 64")
            .set("batch.max_events = 100")
            .attempts(1_000)]),
    );
    let events: Vec<Value> = (0..EVENTS)
        .map(|n| {
            let attempt = if n % 17 == 0 { 3 } else { 1 };
            let commands =
                json!([count(), { "do": "sleep", "ms": 1 }, { "do": "fail-until-attempt", "attempt": attempt }]);
            keyed(n, &format!("k{}", n % KEYS), commands)
        })
        .collect();
    rig.publish(&events);
    for _ in 0..8 {
        let host = rig.spawn_run();
        host.wait_until_leading("orders");
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..150)));
        host.kill9();
    }
    rig.drain();
    let counts = counts(&rig, "orders");
    assert_eq!(counts.len(), 100);
    assert!(counts.values().all(|count| *count == EVENTS / KEYS), "{counts:?}");
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn without_order_an_event_that_fails_holds_up_nothing(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("orders", "fickle", &["command"])
            .set("ordering = \"none\"")
            .set("retry.initial = \"300ms\"")]),
    );
    let events: Vec<Value> =
        (1..=50).map(|n| keyed(n, "a", json!({ "attempt": if n == 1 { 3 } else { 1 } }))).collect();
    rig.publish(&events);
    rig.drain();
    let seen: Vec<i64> = rig
        .data_of("seen")
        .iter()
        .map(|seen| seen["position"].as_i64().expect("a position"))
        .collect();
    assert_eq!(seen.len(), 50);
    assert_eq!(seen.last(), Some(&1), "{seen:?}");
}

fn a_component_that_imports_the_state_is_refused_without_order(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("orders", "chaos", &["command"]).set("ordering = \"none\"")]),
    );
    for command in ["check", "run"] {
        let said = rig.host([command]).failed(1);
        assert!(
            said.contains("imports the state") && said.contains("ordering = \"key\""),
            "{said}"
        );
    }
}

fn with_too_many_parked_the_group_holds_back_and_status_says_so(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("orders", "chaos", &["command"])
            .set("ordering = \"key\"")
            .set("max_parked = 5")
            .set("batch.max_events = 1")
            .set("retry.initial = \"4m\"")
            .set("breaker.events = 0")]),
    );
    let fails = json!([{ "do": "retry", "text": "never" }]);
    let events: Vec<Value> = (0..100)
        .map(|n| keyed(n, &format!("k{n}"), if n < 90 { fails.clone() } else { count() }))
        .collect();
    rig.publish(&events);
    let host = rig.spawn_run();
    host.wait_until_leading("orders");
    wait_until("the group holds back", PATIENCE, || {
        rig.group("orders")["remark"].as_str().is_some_and(|remark| remark.contains("max_parked"))
    });
    // What was read when the fifth was parked is parked too.
    wait_until("what was read is parked", PATIENCE, || parked(&rig, "orders") >= 5);
    host.stop();
    let position = rig.group("orders")["position"].as_i64().expect("a position");
    assert_eq!(parked(&rig, "orders"), position);
    assert!(position < 30, "it has read on to {position}");
}

fn another_ordering_goes_on_with_what_is_parked(store: Store) {
    let settings = |ordering: &str| {
        Settings::of([Handler::new("orders", "chaos", &["command"])
            .set(&format!("ordering = \"{ordering}\""))
            .set("retry.initial = \"1s\"")])
    };
    let rig = Rig::on(store, &settings("key"));
    let fails = json!([{ "do": "fail-until-attempt", "attempt": 2 }, count()]);
    rig.publish(&[keyed(1, "a", fails), keyed(2, "a", count()), keyed(3, "b", count())]);
    let host = rig.spawn_run();
    wait_until("two events are parked", PATIENCE, || parked(&rig, "orders") == 2);
    rig.configure(&settings("total"));
    host.hangup();
    wait_until("nothing is parked", PATIENCE, || parked(&rig, "orders") == 0);
    host.stop();
    let expected = BTreeMap::from([(String::new(), 2), ("key:b".to_owned(), 1)]);
    assert_eq!(counts(&rig, "orders"), expected);
}
