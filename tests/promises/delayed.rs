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
    more_delayed_events_than_may_be_parked_hold_back_neither_the_cursor_nor_a_drain,
    failing_events_beyond_max_parked_end_the_reading_and_not_the_settling,
    delayed_events_need_no_place_in_the_log,
    a_hundred_thousand_events_for_next_month_cost_an_idle_leader_nothing,
    an_event_for_later_than_a_year_is_refused_wherever_it_comes_from,
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

/// How many events wait for their time.
fn waiting(rig: &Rig) -> i64 {
    rig.number("SELECT count(*) FROM deferred")
}

fn a_delayed_event_is_delivered_not_before_its_time_and_soon_after(store: Store) {
    let rig = rejecting(store);
    let (soon, past) = (later(Duration::from_secs(6)), later(Duration::ZERO));
    rig.publish(&[
        delayed(event("command", "soon", reject()), soon),
        delayed(event("command", "past", reject()), past),
    ]);
    let host = rig.spawn_run();
    wait_until("it waits", PATIENCE, || waiting(&rig) == 1);
    let status = rig.group("orders");
    assert_eq!((&status["parked"], &status["retries_pending"]), (&json!(0), &json!(0)));
    assert_eq!(status["deferred"], json!(1));
    let said = rig.host(["status"]).ok();
    assert!(said.contains("orders: 1 event waits for a later time, the next in "), "{said}");
    let due: Timestamp = status["next_due_at"].as_str().expect("a time").parse().expect("a time");
    assert_eq!(due.as_microsecond(), soon.as_microsecond());
    came_in_time(&rig, "past", past);
    came_in_time(&rig, "soon", soon);
    assert_eq!(waiting(&rig), 0);
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
    wait_until("it waits", PATIENCE, || waiting(&rig) == 1);
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
    assert_eq!(waiting(&rig), 2);
}

fn cursor(rig: &Rig) -> i64 {
    rig.number("SELECT position FROM consumer_groups")
}

/// Two events for tomorrow where one may be parked, and many others behind them.
fn more_delayed_events_than_may_be_parked_hold_back_neither_the_cursor_nor_a_drain(store: Store) {
    const OTHERS: i64 = 5_000;
    for ordering in ["total", "key"] {
        let rig = Rig::on(
            store,
            &Settings::of([Handler::new("orders", "chaos", &["command"])
                .set(&format!("ordering = \"{ordering}\""))
                .set("max_parked = 1")]),
        );
        let day = later(Duration::from_hours(24));
        let count = json!({ "do": "count", "key": "count" });
        let keyed = |event| with(event, "partitionkey", "k");
        let mut events: Vec<Value> = (0..OTHERS)
            .map(|n| keyed(event("command", format!("other {n}"), count.clone())))
            .collect();
        for n in 0..2 {
            events.insert(0, keyed(delayed(event("command", n, reject()), day)));
        }
        rig.publish(&events);
        let host = rig.spawn_run();
        wait_until("all others are committed", PATIENCE, || cursor(&rig) == OTHERS + 2);
        assert_eq!(rig.group("orders")["remark"], Value::Null, "nothing is held back");
        host.stop();
        assert_eq!(cursor(&rig), OTHERS + 2);
        assert_eq!(rig.state("orders", "count"), OTHERS);
        let said = rig.drain();
        assert!(said.contains("delayed=2"), "{said}");
        assert_eq!(rig.state("orders", "count"), OTHERS);
    }
}

fn failing_events_beyond_max_parked_end_the_reading_and_not_the_settling(store: Store) {
    const EVENTS: i64 = 60;
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("orders", "chaos", &["command"])
            .set("ordering = \"key\"")
            .set("max_parked = 1")
            .set("retry.initial = \"4m\"")
            .set("breaker.events = 0")]),
    );
    let fails = json!([{ "do": "retry", "text": "never" }]);
    let count = json!({ "do": "count", "key": "count" });
    let events: Vec<Value> = (0..EVENTS)
        .map(|n| {
            let commands = if n < 10 { fails.clone() } else { count.clone() };
            with(event("command", n, commands), "partitionkey", format!("k{n}"))
        })
        .collect();
    rig.publish(&events);
    let host = rig.spawn_run();
    // What was read with them is settled, however many of them fail.
    wait_until("the others are committed", PATIENCE, || cursor(&rig) == EVENTS);
    rig.publish(&[event("command", "behind", count)]);
    wait_until("it is said that nothing more is read", PATIENCE, || {
        rig.group("orders")["remark"].as_str().is_some_and(|remark| remark.contains("max_parked"))
    });
    assert_eq!(cursor(&rig), EVENTS, "it reads on");
    assert_eq!(rig.number("SELECT count(*) FROM redeliveries"), 10);
    host.stop();
    assert_eq!(rig.number("SELECT count(*) FROM state WHERE key = 'count'"), EVENTS - 10);
}

fn delayed_events_need_no_place_in_the_log(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([Handler::new("orders", "chaos", &["command"])]).top("retention = \"1s\""),
    );
    let until = later(Duration::from_secs(12));
    let report = json!([
        { "do": "fail-until-attempt", "attempt": 2 },
        { "do": "report", "type": "seen" },
    ]);
    rig.publish(&[
        delayed(event("command", "far", reject()), later(Duration::from_hours(24 * 30))),
        delayed(event("command", "soon", report), until),
        event("command", "now", reject()),
    ]);
    let host = rig.spawn_run();
    wait_until("the log is empty", PATIENCE, || rig.number("SELECT count(*) FROM events") == 0);
    assert!(Timestamp::now() < until, "the machine is too slow for this test");
    assert_eq!(rig.json(&["status"])["pinned_by"], Value::Null);
    // It comes, fails, and comes again, though the log does not have it.
    wait_until("the delayed event is handled", PATIENCE, || {
        rig.number("SELECT count(*) FROM redeliveries") == 0
            && rig.group("orders")["deferred"] == json!(1)
    });
    assert_eq!(rig.group("orders")["dead_letters"], json!(1));
    host.stop();
}

/// How often a table, or an index of it, was scanned.
fn scans(client: &mut Client, table: &str) -> i64 {
    client.number(&format!(
        "SELECT coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_user_tables
         WHERE schemaname = 'event_host' AND relname = '{table}'"
    ))
}

fn a_hundred_thousand_events_for_next_month_cost_an_idle_leader_nothing(store: Store) {
    const MANY: i64 = 100_000;
    let rig = Rig::on(store, &Settings::of([Handler::new("tally", "tally", &["a"])]));
    rig.publish(&[]);
    let month = later(Duration::from_hours(24 * 30));
    let mut client = Client::new(&rig);
    match store {
        Store::Sqlite => client.execute(&format!(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {MANY})
             INSERT INTO events (type, id, data, deliver_after)
             SELECT 'a', n, '{{}}', {} FROM n",
            month.as_microsecond()
        )),
        Store::Postgres => client.execute(&format!(
            "INSERT INTO events (type, id, data, deliver_after)
             SELECT 'a', n::text, '{{}}', '{month}' FROM generate_series(1, {MANY}) n"
        )),
    }
    let host = rig.spawn_run();
    wait_until("the cursor has passed them", PATIENCE, || cursor(&rig) == MANY);
    host.stop();
    assert_eq!(rig.number("SELECT count(*) FROM redeliveries"), 0);

    // The next leader begins at once, and then has nothing to look at.
    let host = rig.spawn_run();
    host.wait_until_leading("tally");
    rig.publish(&[event("a", "first", json!({}))]);
    wait_until("an event is handled", PATIENCE, || rig.state("tally", "count") == 1);
    if store == Store::Postgres {
        // The server may count what the begin took, four scans, as late as ten seconds
        // after it: the claim looks whether there are any. A read each second would be at least ten more.
        let before = scans(&mut client, "deferred");
        let idle = later(Duration::from_secs(12));
        let mut n = 1;
        while Timestamp::now() < idle {
            n += 1;
            rig.publish(&[event("a", n, json!({}))]);
            wait_until("an event is handled", PATIENCE, || rig.state("tally", "count") == n);
        }
        let more = scans(&mut client, "deferred") - before;
        assert!(more <= 4, "they are read again and again: {more} scans in 12 s");
    }
    assert_eq!(rig.group("tally")["deferred"], json!(MANY));
    host.stop();
}

fn an_event_for_later_than_a_year_is_refused_wherever_it_comes_from(store: Store) {
    let rig = rejecting(store);
    let far = later(Duration::from_hours(24 * 369));
    let near = later(Duration::from_hours(24 * 360));
    let line = delayed(event("command", "far", reject()), far).to_string();
    let said = rig.host_reading(&["publish", "--file", "-"], &line).failed(1);
    assert!(said.contains("line 1") && said.contains("366 days"), "{said}");
    let far_text = far.to_string();
    let publish = ["publish", "--type", "command", "--deliver-after"];
    let said = rig.host(publish.iter().chain([&far_text.as_str()])).failed(1);
    assert!(said.contains("`deliverafter`") && said.contains("366 days"), "{said}");
    let said = rig.host(publish.iter().chain([&"9000h"])).failed(1);
    assert!(said.contains("366 days"), "{said}");

    let mut client = Client::new(&rig);
    let insert = |until: Timestamp| match store {
        Store::Sqlite => format!(
            "INSERT INTO events (type, deliver_after) VALUES ('command', {})",
            until.as_microsecond()
        ),
        Store::Postgres => {
            format!("INSERT INTO events (type, deliver_after) VALUES ('command', '{until}')")
        }
    };
    let refused = client.try_execute(&insert(far)).expect_err("it is taken").to_string();
    assert!(refused.contains("deliver_after_is_within_a_year"), "{refused}");
    client.execute(&insert(near));

    // A handler is told, and goes on.
    let emit = |until: Timestamp| json!({ "do": "emit", "type": "command", "data": {}, "deliver_after": until.to_string() });
    rig.publish(&[
        event("command", "emits too far", emit(far)),
        event("command", "emits", emit(near)),
    ]);
    let said = rig.drain();
    assert!(said.contains("delayed=2"), "{said}");
    let letters = rig.dead_letters();
    let texts: Vec<&str> =
        letters.iter().filter_map(|letter| letter["failure"]["text"].as_str()).collect();
    assert!(texts.iter().all(|text| text.contains("366 days")) && texts.len() == 1, "{texts:?}");
}
