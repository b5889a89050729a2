//! Delayed events: delivered not before their time and soon after, whatever
//! happens meanwhile, and holding up nothing until then.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tests::{Client, Handler, PATIENCE, Rig, Settings, Store, event, wait_until, with};

tests::on_both_stores! {
    a_delayed_event_is_delivered_not_before_its_time_and_soon_after,
    a_delayed_event_holds_up_no_other_whatever_the_ordering,
    a_delayed_event_survives_a_kill_and_another_leader,
    an_emit_can_be_delayed,
    host_publish_delays_by_a_time_or_a_duration,
    a_delayed_event_is_inserted_by_its_column,
    a_drained_host_does_not_wait_for_what_is_to_be_delivered_later,
}

fn later(time: Duration) -> Timestamp {
    Timestamp::now().checked_add(time).expect("a time")
}

fn delayed(event: Value, until: Timestamp) -> Value {
    with(event, "deliverafter", until.to_string())
}

/// A handler that gives up on everything, so that it is known when.
fn rejecting(store: Store) -> Rig {
    Rig::on(store, &Settings::of([Handler::new("orders", "chaos", &["command"])]))
}

fn reject() -> Value {
    json!({ "do": "reject", "text": "no" })
}

/// When the event with this id was given up on.
fn given_up(rig: &Rig, id: &str) -> Option<Timestamp> {
    let letters = rig.dead_letters();
    let letter = letters.iter().find(|letter| letter["event"]["id"] == id)?;
    Some(letter["dead_at"].as_str()?.parse().expect("a time"))
}

/// Waits for an event, and looks at when it was attempted.
fn came_in_time(rig: &Rig, id: &str, until: Timestamp) {
    wait_until(&format!("{id} is delivered"), PATIENCE, || given_up(rig, id).is_some());
    let late = given_up(rig, id).expect("it was").duration_since(until);
    assert!(!late.is_negative(), "{id} came {late:#} early");
    assert!(late.as_secs() < 5, "{id} came {late:#} late");
}

fn parked(rig: &Rig) -> i64 {
    rig.number("SELECT count(*) FROM redeliveries")
}

fn a_delayed_event_is_delivered_not_before_its_time_and_soon_after(store: Store) {
    let rig = rejecting(store);
    let (soon, past) = (later(Duration::from_secs(6)), later(Duration::ZERO));
    rig.publish(&[
        delayed(event("command", "soon", reject()), soon),
        delayed(event("command", "past", reject()), past),
    ]);
    let host = rig.spawn_run();
    wait_until("it waits", PATIENCE, || parked(&rig) == 1);
    let status = rig.group("orders");
    assert_eq!((&status["parked"], &status["retries_pending"]), (&json!(1), &json!(0)));
    let due: Timestamp = status["next_due_at"].as_str().expect("a time").parse().expect("a time");
    assert_eq!(due.as_microsecond(), soon.as_microsecond());
    came_in_time(&rig, "past", past);
    came_in_time(&rig, "soon", soon);
    assert_eq!(parked(&rig), 0);
    host.stop();
}

fn a_delayed_event_holds_up_no_other_whatever_the_ordering(store: Store) {
    for ordering in ["total", "key", "none"] {
        let rig = Rig::on(
            store,
            &Settings::of([Handler::new("orders", "fickle", &["command"])
                .set(&format!("ordering = \"{ordering}\""))]),
        );
        let keyed =
            |n: i64| with(event("command", n, json!({ "attempt": 1 })), "partitionkey", "a");
        let seen = || -> Vec<i64> {
            let seen = rig.data_of("seen");
            seen.iter().map(|seen| seen["position"].as_i64().expect("a position")).collect()
        };
        rig.publish(&[delayed(keyed(1), later(Duration::from_secs(4))), keyed(2), keyed(3)]);
        let host = rig.spawn_run();
        wait_until("the others are handled", PATIENCE, || seen().len() >= 2);
        assert_eq!(seen(), [2, 3], "{ordering}");
        wait_until("it is handled", PATIENCE, || seen().len() == 3);
        assert_eq!(seen(), [2, 3, 1], "{ordering}");
        host.stop();
    }
}

fn a_delayed_event_survives_a_kill_and_another_leader(store: Store) {
    let rig = rejecting(store);
    let until = later(Duration::from_secs(5));
    rig.publish(&[delayed(event("command", "later", reject()), until)]);
    let host = rig.spawn_run();
    wait_until("it waits", PATIENCE, || parked(&rig) == 1);
    host.kill9();
    let host = rig.spawn_run();
    came_in_time(&rig, "later", until);
    assert_eq!(rig.dead_letters().len(), 1);
    host.stop();
}

fn an_emit_can_be_delayed(store: Store) {
    let rig = rejecting(store);
    let until = later(Duration::from_secs(3));
    let emit = json!({
        "do": "emit", "type": "command", "data": reject(), "deliver_after": until.to_string(),
    });
    rig.publish(&[event("command", "first", emit)]);
    let host = rig.spawn_run();
    came_in_time(&rig, "orders:1:1", until);
    let letter = &rig.dead_letters()[0];
    let shown = letter["event"]["deliverafter"].as_str().expect("a text");
    let shown: Timestamp = shown.parse().expect("a time");
    assert_eq!(shown.as_microsecond(), until.as_microsecond());
    host.stop();
}

fn host_publish_delays_by_a_time_or_a_duration(store: Store) {
    let rig = rejecting(store);
    let publish = |id: &str, delay: &str| {
        let data = reject().to_string();
        rig.host([
            "publish",
            "--type",
            "command",
            "--id",
            id,
            "--data",
            &data,
            "--deliver-after",
            delay,
        ])
    };
    let until = later(Duration::from_secs(2));
    let _ = publish("time", &until.to_string()).ok();
    let _ = publish("duration", "3s").ok();
    let at_least = later(Duration::from_millis(500));
    let said = publish("neither", "soon").failed(2);
    assert!(said.contains("2026-01-31T12:00:00Z") && said.contains("90s"), "{said}");
    let host = rig.spawn_run();
    came_in_time(&rig, "time", until);
    came_in_time(&rig, "duration", at_least);
    host.stop();
}

fn a_delayed_event_is_inserted_by_its_column(store: Store) {
    let rig = rejecting(store);
    rig.publish(&[]);
    let until = later(Duration::from_secs(2));
    let data = reject();
    let mut client = Client::new(&rig);
    let host = rig.spawn_run();
    match store {
        Store::Sqlite => {
            let microseconds = until.as_microsecond();
            client.execute(&format!(
                "INSERT INTO events (type, id, data, deliver_after)
                 VALUES ('command', 'row', '{data}', {microseconds})"
            ));
        }
        Store::Postgres => {
            client.execute(&format!(
                "INSERT INTO events (type, id, data, deliver_after)
                 VALUES ('command', 'row', convert_to('{data}', 'UTF8'), '{until}');
                 SELECT publish('command', '{data}', id => 'function', deliver_after => '{until}')"
            ));
            came_in_time(&rig, "function", microseconds(until));
        }
    }
    came_in_time(&rig, "row", microseconds(until));
    host.stop();
}

/// As the database keeps it.
fn microseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).expect("a time")
}

fn a_drained_host_does_not_wait_for_what_is_to_be_delivered_later(store: Store) {
    let rig = rejecting(store);
    let day = later(Duration::from_hours(24));
    rig.publish(&[
        delayed(event("command", "tomorrow", reject()), day),
        delayed(event("command", "tomorrow too", reject()), day),
        event("command", "now", reject()),
    ]);
    let said = rig.drain();
    assert!(said.contains("to be delivered later") && said.contains("delayed=2"), "{said}");
    assert_eq!(rig.dead_letters().len(), 1);
    assert_eq!(parked(&rig), 2);
}
