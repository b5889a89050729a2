//! Handlers of batches: several events in one call, and what becomes of them when one
//! fails.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Handler, Rig, Settings, Store, event, with};

tests::on_both_stores! {
    a_batch_of_many_is_one_call,
    one_failing_event_among_a_hundred_is_handled_alone_and_the_others_succeed,
    an_event_that_traps_takes_no_other_of_its_call_with_it,
    the_state_is_exact_though_hosts_are_killed_in_the_middle_of_batches,
    batches_of_a_key_keep_its_order_whatever_fails_and_is_killed,
    a_call_waits_for_its_events_and_no_longer_than_until_they_have_come,
}

fn batches() -> Handler {
    Handler::new("batches", "batch", &["a"])
}

fn events<'a>(count: i64, wish: impl Fn(i64) -> Value + 'a) -> Vec<Value> {
    (1..=count).map(|n| event("a", n, wish(n))).collect()
}

/// The positions of each call that succeeded, in the log's order.
fn calls(rig: &Rig) -> Vec<Vec<i64>> {
    let positions = |call: &Value| {
        let positions = call["positions"].as_array().expect("positions");
        positions.iter().map(|position| position.as_i64().expect("a position")).collect()
    };
    rig.data_of("call").iter().map(positions).collect()
}

/// Runs a host and kills it some time after a settlement: leaders that settle nothing
/// would make the next one go on one event at a time.
fn kill_at_random(rig: &Rig, last: i64) {
    let at = rig.number("SELECT position FROM consumer_groups WHERE name = 'batches'");
    let host = rig.spawn_run();
    host.wait_until_leading("batches");
    let further = at + fastrand::i64(1..200);
    rig.wait_until_handled("batches", further.min(last - 1));
    // The moment of the kill is what is random here, so nothing is waited for.
    std::thread::sleep(Duration::from_millis(fastrand::u64(0..15)));
    host.kill9();
}

fn a_batch_of_many_is_one_call(store: Store) {
    let rig = Rig::on(store, &Settings::of([batches()]));
    rig.publish(&events(250, |_| json!(null)));
    rig.drain();
    let sizes: Vec<usize> = calls(&rig).iter().map(Vec::len).collect();
    assert_eq!(sizes, [100, 100, 50]);
    assert_eq!(calls(&rig).concat(), (1..=250).collect::<Vec<_>>());
    assert_eq!(rig.state("batches", "count"), 250);
}

fn one_failing_event_among_a_hundred_is_handled_alone_and_the_others_succeed(store: Store) {
    let rig = Rig::on(store, &Settings::of([batches().attempts(5)]));
    let fails = json!({ "fail_until": 3 });
    rig.publish(&events(200, |n| if n == 50 { fails.clone() } else { json!(null) }));
    rig.drain();
    let mut expected: Vec<Vec<i64>> = (1..=100).map(|position| vec![position]).collect();
    expected.push((101..=200).collect());
    assert_eq!(calls(&rig), expected);
    assert_eq!(rig.state("batches", "count"), 200);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    assert_eq!(rig.group("batches")["failures"], json!({ "retry": 2 }));
}

fn an_event_that_traps_takes_no_other_of_its_call_with_it(store: Store) {
    let rig = Rig::on(store, &Settings::of([batches().attempts(2)]));
    let traps = json!({ "trap": true });
    rig.publish(&events(60, |n| if n % 20 == 7 { traps.clone() } else { json!(null) }));
    rig.drain();
    let letters = rig.dead_letters();
    let dead: Vec<&Value> = letters.iter().map(|letter| &letter["event"]["id"]).collect();
    assert_eq!(dead, ["7", "27", "47"]);
    for letter in &letters {
        assert_eq!((&letter["failure"]["kind"], &letter["attempts"]), (&json!("trap"), &json!(2)));
    }
    assert_eq!(rig.state("batches", "count"), 57);
    assert_eq!(rig.group("batches")["failures"], json!({ "trap": 6 }));
}

fn the_state_is_exact_though_hosts_are_killed_in_the_middle_of_batches(store: Store) {
    const EVENTS: i64 = 5_000;
    let rig = Rig::on(
        store,
        &Settings::of([batches()
            .attempts(100)
            .set("batch.max_events = 60")
            .set("batch.size = 25")]),
    );
    let wish = |n: i64| match n % 97 {
        0 => json!({ "reject": true }),
        1 => json!({ "fail_until": 2 }),
        _ => json!(null),
    };
    rig.publish(&events(EVENTS, wish));
    for _ in 0..10 {
        kill_at_random(&rig, EVENTS);
        rig.wait_until_let_go();
        // What is committed is whole.
        let handled = i64::try_from(calls(&rig).concat().len()).expect("a count");
        assert_eq!(rig.state("batches", "count"), handled);
    }
    rig.drain();
    let rejected = EVENTS / 97;
    let mut handled = calls(&rig).concat();
    handled.sort_unstable();
    assert!(handled.is_sorted_by(|one, next| one < next), "handled twice");
    assert_eq!(i64::try_from(handled.len()), Ok(EVENTS - rejected));
    assert_eq!(rig.state("batches", "count"), EVENTS - rejected);
    assert_eq!(i64::try_from(rig.dead_letters().len()), Ok(rejected));
}

fn batches_of_a_key_keep_its_order_whatever_fails_and_is_killed(store: Store) {
    const EVENTS: i64 = 2_000;
    const KEYS: i64 = 7;
    let rig = Rig::on(
        store,
        &Settings::of([batches()
            .attempts(1_000)
            .set("ordering = \"key\"")
            .set("batch.max_events = 100")
            .set("batch.size = 20")]),
    );
    let wish = |n: i64| if n % 53 == 0 { json!({ "fail_until": 3 }) } else { json!(null) };
    let keyed = |event: Value, n: i64| with(event, "partitionkey", format!("k{}", n % KEYS));
    let events: Vec<Value> =
        events(EVENTS, wish).into_iter().zip(1..).map(|(event, n)| keyed(event, n)).collect();
    rig.publish(&events);
    for _ in 0..6 {
        kill_at_random(&rig, EVENTS);
    }
    rig.drain();
    let mut by_key: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    let mut largest = 0;
    for call in calls(&rig) {
        let key = call[0] % KEYS;
        assert!(call.iter().all(|position| position % KEYS == key), "of several keys: {call:?}");
        largest = largest.max(call.len());
        by_key.entry(key).or_default().extend(call);
    }
    assert!(largest > 1 && largest <= 20, "{largest} in one call");
    for (key, handled) in by_key {
        let expected: Vec<i64> = (1..=EVENTS).filter(|n| n % KEYS == key).collect();
        assert_eq!(handled, expected, "of key {key}");
    }
    let value = rig.as_text("value");
    let [sum, keys] = rig.numbers(&format!(
        "SELECT CAST(sum(CAST({value} AS BIGINT)) AS BIGINT), count(*)
         FROM state WHERE key = 'count'"
    ));
    assert_eq!((sum, keys), (EVENTS, KEYS));
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn a_call_waits_for_its_events_and_no_longer_than_until_they_have_come(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([batches()
            .set("batch.wait = \"30s\"")
            .set("batch.max_time = \"30s\"")
            .set("batch.size = 4")]),
    );
    let host = rig.spawn_run();
    host.wait_until_leading("batches");
    rig.publish(&events(2, |_| json!(null)));
    rig.publish(&events(2, |_| json!(null)));
    let began = Instant::now();
    rig.wait_until_handled("batches", 4);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(calls(&rig), [[1, 2, 3, 4]]);
    host.stop();
}

#[test]
fn check_says_how_a_component_is_called_and_refuses_batches_of_single_events() {
    let tally = || Handler::new("tally", "tally", &["a"]);
    let rig = Rig::new(&Settings::of([batches().set("batch.size = 7"), tally()]));
    let checked = rig.json(&["check"]);
    assert_eq!(
        (&checked[0]["interface"], &checked[0]["batch_size"]),
        (&json!("batch-handler"), &json!(7))
    );
    assert_eq!(
        (&checked[1]["interface"], &checked[1]["batch_size"]),
        (&json!("handler"), &Value::Null)
    );
    assert!(rig.host(["check"]).ok().contains("batch-handler"));
    for line in ["batch.size = 2", "batch.wait = \"1ms\""] {
        rig.configure(&Settings::of([tally().set(line)]));
        for command in ["check", "run"] {
            let said = rig.host([command]).failed(1);
            assert!(
                said.contains("takes one event a call") && said.contains("`batch.size`"),
                "{said}"
            );
        }
    }
    rig.configure(&Settings::of([tally().set("batch.size = 1")]));
    let _ = rig.host(["check"]).ok();
}

#[test]
fn settings_for_batches_that_the_component_does_not_fit_leave_the_old_ones_in_place() {
    let tally = || Handler::new("tally", "tally", &["a"]);
    let rig = Rig::new(&Settings::of([tally()]));
    let host = rig.spawn_run();
    host.wait_until_leading("tally");
    rig.configure(&Settings::of([tally().set("batch.size = 2")]));
    host.hangup();
    host.wait_for_log("the settings are refused", |line| {
        line["message"].as_str().is_some_and(|said| said.contains("takes one event a call"))
    });
    rig.publish(&events(3, |_| json!(null)));
    rig.wait_until_handled("tally", 3);
    host.stop();
    assert_eq!(rig.state("tally", "count"), 3);
}
