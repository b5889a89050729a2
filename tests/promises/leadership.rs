//! Leadership: one leader a group (promises 3, 10 and 12).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Handler, PATIENCE, Rig, Settings, Store, event, wait_until};

tests::on_both_stores! {
    two_hosts_on_one_database_handle_each_event_once_and_one_leads,
    a_standby_leads_within_two_seconds_of_a_crash_and_at_once_after_a_stop,
    a_dead_hosts_lock_is_gone_and_status_shows_no_leader,
    starts_and_stops_in_a_row_leave_no_lock_behind,
    ten_hosts_that_start_together_on_an_empty_database_all_run,
}

fn tally() -> Settings {
    Settings::of([Handler::new("tally", "tally", &["a"]).set("batch.max_events = 100")])
}

fn leads(line: &Value) -> bool {
    line["message"] == "leading"
}

fn stands_by(line: &Value) -> bool {
    line["message"] == "another host leads; standing by"
}

fn two_hosts_on_one_database_handle_each_event_once_and_one_leads(store: Store) {
    const EVENTS: i64 = 10_000;
    let rig = Rig::on(store, &tally());
    let events: Vec<Value> = (0..EVENTS).map(|n| event("a", n, json!(null))).collect();
    rig.publish(&events);
    let hosts = [rig.spawn_run(), rig.spawn_run()];
    rig.wait_until_handled("tally", EVENTS);
    let standby = "another host leads; standing by";
    let leading: Vec<usize> = hosts.iter().map(|host| host.count_messages("leading")).collect();
    let (leader, other) =
        if leading[0] == 1 { (&hosts[0], &hosts[1]) } else { (&hosts[1], &hosts[0]) };
    other.wait_for_message(standby);
    assert_eq!((leader.count_messages("leading"), other.count_messages("leading")), (1, 0));
    assert_eq!(leader.count_messages(standby), 0);

    assert_eq!(rig.state("tally", "count"), EVENTS);
    let group = rig.group("tally");
    assert_eq!(group["leader"]["host"]["pid"], leader.pid());
    assert_eq!(group["epoch"], 1);
    for host in hosts {
        host.stop();
    }
    let group = rig.group("tally");
    assert_eq!(group["leader"], Value::Null, "nobody leads after the stop");
    assert_eq!(group["lag_events"], 0);
}

// Promise 10.
fn a_standby_leads_within_two_seconds_of_a_crash_and_at_once_after_a_stop(store: Store) {
    let rig = Rig::on(store, &tally());
    rig.publish(&[event("a", 1, json!(null))]);
    let first = rig.spawn_run();
    first.wait_until_leading("tally");
    let second = rig.spawn_run();
    second.wait_for_message("another host leads; standing by");
    first.kill9();
    second.wait_for_log_within(Duration::from_secs(2), "the second leads", leads);
    rig.publish(&[event("a", 2, json!(null))]);
    rig.wait_until_handled("tally", 2);

    let third = rig.spawn_run();
    third.wait_for_message("another host leads; standing by");
    let asked = Instant::now();
    second.stop();
    third.wait_for_log_within(Duration::from_secs(1), "the third leads", leads);
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    rig.publish(&[event("a", 3, json!(null))]);
    rig.wait_until_handled("tally", 3);
    assert_eq!(rig.state("tally", "count"), 3);
    assert_eq!(rig.group("tally")["epoch"], 3);
    third.stop();
}

// Promise 12.
fn a_dead_hosts_lock_is_gone_and_status_shows_no_leader(store: Store) {
    let rig = Rig::on(store, &tally());
    rig.publish(&[event("a", 1, json!(null))]);
    let host = rig.spawn_run();
    host.wait_until_leading("tally");
    assert_eq!(rig.group("tally")["leader"]["host"]["pid"], host.pid());
    host.kill9();
    // A server notices a little later.
    wait_until("nobody leads", PATIENCE, || rig.group("tally")["leader"] == Value::Null);
    // So a group can be removed, too.
    let _ = rig.host(["groups", "remove", "tally"]).ok();
}

// Promise 12.
fn starts_and_stops_in_a_row_leave_no_lock_behind(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([
            Handler::new("tally", "tally", &["a"]),
            Handler::new("failing", "chaos", &["a"]).attempts(1),
        ]),
    );
    for round in 1..=15 {
        rig.publish(&[event("a", round, json!(null))]);
        rig.drain();
        for name in ["tally", "failing"] {
            let group = rig.group(name);
            assert_eq!((&group["leader"], &group["epoch"]), (&Value::Null, &json!(round)));
        }
    }
    assert_eq!(rig.state("tally", "count"), 15);
    assert_eq!(rig.dead_letters().len(), 15);
}

// Promise 3.
fn ten_hosts_that_start_together_on_an_empty_database_all_run(store: Store) {
    let rig = Rig::on(store, &tally());
    let hosts: Vec<_> = (0..10).map(|_| rig.spawn_run()).collect();
    for host in &hosts {
        host.wait_for_log("it leads or stands by", |line| leads(line) || stands_by(line));
    }
    let leaders: usize = hosts.iter().map(|host| host.count_messages("leading")).sum();
    assert_eq!(leaders, 1);
    for host in hosts {
        host.stop();
    }
}
