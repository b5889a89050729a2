//! Crashes: `kill -9` at any moment (promises 1 and 2), and an event that kills
//! the process (promise 8).

use std::time::Duration;

use serde_json::{Value, json};
use tests::{Handler, PATIENCE, Rig, Running, Settings, Store, event, wait_until, with};

tests::on_both_stores! {
    kills_at_any_moment_lose_nothing_and_repeat_nothing_in_the_database,
    kills_among_failing_events_make_no_dead_letter_twice_and_lose_none,
    an_event_that_kills_the_process_becomes_a_dead_letter_and_bystanders_do_not_suffer,
    once_an_event_is_suspected_each_death_counts_as_an_attempt,
    a_group_that_is_careful_after_crashes_says_so_in_status,
    a_death_in_a_delayed_event_changes_nothing_of_the_retry_behind_it,
    a_group_that_was_idle_is_not_suspected_after_crashes,
    after_crashes_of_an_idle_host_no_group_waits_for_another,
    a_crash_is_not_counted_against_an_event_that_was_merely_under_way,
    a_publisher_that_is_killed_has_published_the_first_lines_of_its_file,
}

/// So many events are published in the test of kills at any moment.
const EVENTS: i64 = 5_000;

/// Counts, events up to the cursor and `seen` events, as they are committed.
fn check_what_is_committed(rig: &Rig) -> i64 {
    let [cursor, count, seen, distinct] = rig.numbers(&format!(
        "SELECT (SELECT position FROM consumer_groups),
                (SELECT CAST({} AS BIGINT) FROM state WHERE key = 'count'),
                (SELECT count(*) FROM events WHERE type = 'seen'),
                (SELECT count(DISTINCT subject) FROM events WHERE type = 'seen')",
        rig.as_text("value")
    ));
    // It goes on beyond them, to the end of what was emitted.
    let cursor = cursor.min(EVENTS);
    assert_eq!((count, seen, distinct), (cursor, cursor, cursor));
    cursor
}

fn kills_at_any_moment_lose_nothing_and_repeat_nothing_in_the_database(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("tally", "tally", &["a", "b"])
            .attempts(100)
            .set("batch.max_events = 50")]),
    );
    let events: Vec<Value> = (0..EVENTS)
        .map(|n| {
            with(event(if n % 2 == 0 { "a" } else { "b" }, n, json!({ "n": n })), "seen", true)
        })
        .collect();
    rig.publish(&events);

    let mut at = 0;
    for _ in 0..12 {
        let host = rig.spawn_run();
        host.wait_until_leading("tally");
        // At random, before the first settlement or after some.
        let further = at + fastrand::i64(0..400);
        rig.wait_until_handled("tally", further.min(EVENTS - 1));
        // The moment of the kill is what is random here, so nothing is waited for.
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..15)));
        host.kill9();
        let now = check_what_is_committed(&rig);
        assert!(now >= further.min(EVENTS - 1), "the cursor went back, to {now}");
        at = now;
    }
    rig.drain();

    assert_eq!(check_what_is_committed(&rig), EVENTS);
    assert_eq!(rig.state("tally", "type/a"), EVENTS / 2);
    assert_eq!(rig.number("SELECT count(DISTINCT id) FROM events WHERE type = 'seen'"), EVENTS);
    assert_eq!(
        rig.number("SELECT count(DISTINCT subject) FROM events WHERE type = 'seen'"),
        EVENTS
    );
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn kills_among_failing_events_make_no_dead_letter_twice_and_lose_none(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("chaos", "chaos", &["command"])
            .attempts(100)
            .set("batch.max_events = 20")]),
    );
    let events: Vec<Value> = (0..1_000)
        .map(|n| {
            let end =
                if n % 3 == 0 { json!({ "do": "reject" }) } else { json!({ "do": "succeed" }) };
            event("command", n, json!([{ "do": "count", "key": "count" }, end]))
        })
        .collect();
    rig.publish(&events);
    for _ in 0..6 {
        let host = rig.spawn_run();
        host.wait_until_leading("chaos");
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..60)));
        host.kill9();
    }
    rig.drain();
    let [letters, distinct] =
        rig.numbers("SELECT count(*), count(DISTINCT event_id) FROM dead_letters");
    assert_eq!((letters, distinct), (334, 334));
    assert_eq!(rig.state("chaos", "count"), 666);
}

/// Waits until a guest says that it has begun with the deadly event, or until
/// the host has given up on it.
fn wait_until_deadly(host: &Running) -> Value {
    host.wait_for_log("the deadly event is under way, or dead", |line| {
        line["message"] == "deadly"
            || (line["message"] == "dead letter" && line["group"] == "poisoned")
    })
}

// Promise 8.
fn an_event_that_kills_the_process_becomes_a_dead_letter_and_bystanders_do_not_suffer(
    store: Store,
) {
    const BEFORE: usize = 10;
    let rig = Rig::on(
        store,
        &Settings::of([
            Handler::new("poisoned", "chaos", &["command"])
                .attempts(2)
                .set("limits.timeout = \"1h\"")
                .set("batch.max_events = 3"),
            Handler::new("bystander", "tally", &["command", "more"]).attempts(2),
            Handler::new("idle", "tally", &["nothing"]),
        ]),
    );
    let count = json!({ "do": "count", "key": "count" });
    let deadly = json!([{ "do": "log", "line": "deadly" }, { "do": "sleep", "ms": 3_000_000 }]);
    let events: Vec<Value> = (0..21)
        .map(|n| event("command", n, if n == BEFORE { deadly.clone() } else { count.clone() }))
        .collect();
    rig.publish(&events);

    let mut deaths = 0;
    loop {
        let host = rig.spawn_run();
        if wait_until_deadly(&host)["message"] == "dead letter" {
            rig.wait_until_handled("poisoned", 21);
            host.stop();
            break;
        }
        // It goes on in each life. One that comes no further in two is suspected as
        // well, and may have to answer for a death while the other is not yet.
        rig.publish(&[event("more", deaths, json!(null))]);
        deaths += 1;
        rig.wait_until_handled("bystander", 21 + deaths);
        host.kill9();
        // A host may die before it has settled anything, or after one event; one that
        // follows two that settled nothing comes as far as the deadly event.
        assert!(deaths <= 2 * BEFORE as i64 + 2 + 2, "it loops for ever");
    }
    // Without counting: the settlements before it, and two fruitless leaderships.
    assert!(deaths >= 2, "it was given up after {deaths} deaths, with 2 attempts");
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0]["group"], "poisoned");
    assert_eq!(letters[0]["event"]["id"], "10");
    assert_eq!(letters[0]["attempts"], 2);
    assert_eq!(letters[0]["failure"]["kind"], "crash");
    assert_eq!(rig.state("poisoned", "count"), 20);
    rig.drain();
    assert_eq!(rig.state("bystander", "count"), 21 + deaths);
}

// Promise 8.
fn once_an_event_is_suspected_each_death_counts_as_an_attempt(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("poisoned", "chaos", &["command"])
            .attempts(3)
            .set("limits.timeout = \"1h\"")]),
    );
    let deadly = json!([{ "do": "log", "line": "deadly" }, { "do": "sleep", "ms": 3_000_000 }]);
    rig.publish(&[event("command", 1, deadly)]);
    let mut deaths = 0;
    loop {
        let host = rig.spawn_run();
        if wait_until_deadly(&host)["message"] == "dead letter" {
            host.stop();
            break;
        }
        host.kill9();
        deaths += 1;
        assert!(deaths <= 2 + 3, "it was not given up after {deaths} deaths, with 3 attempts");
    }
    assert_eq!(rig.dead_letters()[0]["attempts"], 3);
}

// Promise 8.
fn a_group_that_is_careful_after_crashes_says_so_in_status(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([
            Handler::new("poisoned", "chaos", &["command"]).set("limits.timeout = \"1h\"")
        ]),
    );
    let deadly = json!([{ "do": "log", "line": "deadly" }, { "do": "sleep", "ms": 3_000_000 }]);
    rig.publish(&[event("command", 1, deadly)]);
    for _ in 0..2 {
        let host = rig.spawn_run();
        wait_until_deadly(&host);
        host.kill9();
    }
    let host = rig.spawn_run();
    wait_until_deadly(&host);
    let mut group = Value::Null;
    wait_until("the event is marked", PATIENCE, || {
        group = rig.group("poisoned");
        !group["in_flight"].is_null()
    });
    assert_eq!(group["in_flight"], json!({ "position": 1, "attempt": 1 }));
    assert_eq!(group["head"], Value::Null, "nothing is retried");
    let status = rig.host(["status"]).ok();
    assert!(status.contains("one event at a time after crashes"), "{status}");
    host.kill9();
}

// Promise 8: a delayed event runs before one that waits for its next attempt, and the
// process dies of it.
fn a_death_in_a_delayed_event_changes_nothing_of_the_retry_behind_it(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("orders", "chaos", &["command"])
            .set("limits.timeout = \"1h\"")
            .set("retry.initial = \"1h\"")
            .set("retry.max = \"1h\"")]),
    );
    let deadly = json!([{ "do": "log", "line": "deadly" }, { "do": "sleep", "ms": 3_000_000 }]);
    let fails = json!([{ "do": "log", "line": "fails" }, { "do": "retry", "text": "later" }]);
    // Later than the other event fails, however slow the machine is.
    let soon = jiff::Timestamp::now() + Duration::from_secs(12);
    rig.publish(&[
        with(event("command", 1, deadly), "deliverafter", soon.to_string()),
        event("command", 2, fails),
    ]);
    let retry = |group: &Value| {
        let head = &group["head"];
        (head["position"].clone(), head["attempt"].clone(), head["due_at"].clone())
    };
    // The first leader settles that the second event failed; two that follow settle
    // nothing, and the fourth marks its attempt.
    let mut before = None;
    for _ in 0..3 {
        let host = rig.spawn_run();
        wait_until_deadly(&host);
        before = Some(retry(&rig.group("orders")));
        host.kill9();
    }
    let before = before.expect("a retry");
    assert_eq!((&before.0, &before.1), (&json!(2), &json!(2)));
    let host = rig.spawn_run();
    wait_until_deadly(&host);
    let mark = json!({ "position": 1, "attempt": 1 });
    wait_until("its attempt is marked", PATIENCE, || rig.group("orders")["in_flight"] == mark);
    host.kill9();
    assert_eq!(retry(&rig.group("orders")), before, "the retry is lost");

    // The death is counted, and the other event waits on.
    let host = rig.spawn_run();
    wait_until("the death is counted", PATIENCE, || {
        rig.number("SELECT count(*) FROM redeliveries WHERE position = 1 AND attempt = 2") == 1
    });
    host.stop();
    assert_eq!(retry(&rig.group("orders")), before);
    assert_eq!(rig.group("orders")["in_flight"], Value::Null);
}

// Promise 8.
fn a_group_that_was_idle_is_not_suspected_after_crashes(store: Store) {
    let rig = Rig::on(store, &Settings::of([Handler::new("idle", "tally", &["a"])]));
    rig.publish(&[event("nothing", 0, json!(null))]);
    rig.drain();
    for _ in 0..3 {
        let host = rig.spawn_run();
        host.wait_until_leading("idle");
        host.kill9();
    }
    let log = rig.drain();
    assert!(!log.contains("no progress"), "{log}");
}

// Promises 4 and 8.
fn after_crashes_of_an_idle_host_no_group_waits_for_another(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([
            Handler::new("hanging", "hold", &["hold"]).set("limits.timeout = \"1h\""),
            Handler::new("innocent", "tally", &["a"]),
        ])
        .top("grace = \"0s\""),
    );
    rig.publish(&[event("nothing", 0, json!(null))]);
    for _ in 0..3 {
        let host = rig.spawn_run();
        host.wait_until_leading("hanging");
        host.wait_until_leading("innocent");
        host.kill9();
    }
    let host = rig.spawn_run();
    host.wait_until_leading("innocent");
    rig.publish(&[event("hold", 1, json!(3_600_000))]);
    wait_until("the hanging group has had the time to begin", PATIENCE, || {
        rig.group("hanging")["lag_seconds"].as_f64().is_some_and(|age| age > 0.5)
    });
    rig.publish(&[event("a", 2, json!(null))]);
    wait_until("the innocent group handles its event", PATIENCE, || {
        rig.state("innocent", "count") == 1
    });
    host.stop();
}

/// An event of one group kills the process while an event of another group, which
/// had nothing to do until then, is under way.
// Promises 4 and 8.
fn a_crash_is_not_counted_against_an_event_that_was_merely_under_way(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([
            Handler::new("poisoned", "chaos", &["command"])
                .attempts(2)
                .set("limits.timeout = \"1h\"")
                .set("batch.max_events = 1"),
            Handler::new("bystander", "chaos", &["slow"]).attempts(1),
        ]),
    );
    let deadly = json!([{ "do": "log", "line": "deadly" }, { "do": "sleep", "ms": 3_000_000 }]);
    rig.publish(&[
        event("command", 1, json!({ "do": "count", "key": "count" })),
        event("command", 2, deadly),
    ]);
    // Twice, with nothing to do for the bystander.
    for _ in 0..2 {
        let host = rig.spawn_run();
        host.wait_until_leading("bystander");
        wait_until_deadly(&host);
        host.kill9();
    }
    let slow = json!([
        { "do": "log", "line": "slow" },
        { "do": "sleep", "ms": 2000 },
        { "do": "report", "type": "seen" },
    ]);
    rig.publish(&[event("slow", 3, slow)]);
    for _ in 0..10 {
        let host = rig.spawn_run();
        let line = host.wait_for_log("the deadly event is under way, or dead", |line| {
            line["message"] == "deadly"
                || (line["message"] == "dead letter" && line["group"] == "poisoned")
        });
        if line["message"] == "dead letter" {
            host.stop();
            break;
        }
        // Not in every run: those that are suspected wait for one another.
        let _ = host.look_for_log_within(Duration::from_secs(1), |line| line["message"] == "slow");
        host.kill9();
    }
    rig.drain();
    let letters: Vec<(Value, Value)> = rig
        .dead_letters()
        .iter()
        .map(|letter| (letter["group"].clone(), letter["failure"]["kind"].clone()))
        .collect();
    assert_eq!(letters, [(json!("poisoned"), json!("crash"))]);
    let seen = rig.data_of("seen");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0]["attempt"], 1);
}

fn a_publisher_that_is_killed_has_published_the_first_lines_of_its_file(store: Store) {
    let rig = Rig::on(store, &Settings::of([Handler::new("tally", "tally", &["a"])]));
    let events: String =
        (0..30_000).map(|n| format!("{}\n", event("a", n, json!({ "n": n })))).collect();
    rig.write("many.jsonl", events);
    let _ = rig.host(["migrate"]).ok();
    let publisher = rig.spawn(&["publish", "--file", "many.jsonl"]);
    wait_until("some are published", PATIENCE, || rig.number("SELECT count(*) FROM events") > 0);
    publisher.kill9();
    rig.wait_until_let_go();
    let [count, last] = rig.numbers("SELECT count(*), max(CAST(id AS BIGINT)) FROM events");
    assert!(count < 30_000, "the kill came too late");
    assert_eq!(last, count - 1, "there is a gap");
    rig.drain();
    assert_eq!(rig.state("tally", "count"), count);
}
