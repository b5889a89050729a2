//! Groups whose partitions several hosts share.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use tests::{Handler, PATIENCE, Rig, Running, Settings, Store, event, wait_until, with};

tests::on_both_stores! {
    hosts_that_start_stop_and_die_share_the_partitions_within_five_seconds,
    a_key_runs_at_one_host_at_a_time_while_hosts_come_and_go,
    every_count_is_exact_whatever_hosts_are_killed_and_however_the_group_is_split,
    what_partitions_give_up_on_is_the_groups_and_is_replayed_where_its_key_is,
    another_number_of_partitions_is_refused_while_another_host_runs_the_group,
    a_host_that_reads_its_settings_again_splits_its_group_anew,
    a_drain_ends_once_every_partition_is_through,
}

/// How soon shares change.
const SOON: Duration = Duration::from_secs(5);

fn orders(partitions: u32) -> Handler {
    Handler::new("orders", "chaos", &["command"])
        .set("ordering = \"key\"")
        .set(&format!("partitions = {partitions}"))
}

fn settings(partitions: u32) -> Settings {
    Settings::of([orders(partitions)])
}

fn keyed(n: usize, keys: usize, commands: &Value) -> Value {
    with(event("command", n, commands.clone()), "partitionkey", format!("k{}", n % keys))
}

fn count() -> Value {
    json!({ "do": "count", "key": "n" })
}

/// The sum of all keys' counters, and their number.
fn counted(rig: &Rig) -> [i64; 2] {
    let value = rig.as_text("value");
    rig.numbers(&format!(
        "SELECT coalesce(sum(CAST({value} AS integer)), 0), count(*)
         FROM state WHERE group_name = 'orders' AND key = 'n'"
    ))
}

/// How many partitions each process leads.
fn led(rig: &Rig) -> BTreeMap<u64, usize> {
    let group = rig.group("orders");
    let partitions = group["partitions"].as_array().expect("it has partitions");
    let mut led = BTreeMap::new();
    for partition in partitions {
        if let Some(pid) = partition["leader"]["host"]["pid"].as_u64() {
            *led.entry(pid).or_insert(0) += 1;
        }
    }
    led
}

fn wait_until_shared(rig: &Rig, hosts: &[&Running], partitions: usize, deadline: Duration) {
    let (least, most) = (partitions / hosts.len(), partitions.div_ceil(hosts.len()));
    let pids: BTreeSet<u64> = hosts.iter().map(|host| u64::from(host.pid())).collect();
    let began = Instant::now();
    for host in hosts {
        host.wait_for_log_within(deadline, "it leads a part", |line| line["message"] == "leading");
    }
    wait_until("the partitions are shared", deadline.saturating_sub(began.elapsed()), || {
        let led = led(rig);
        led.values().sum::<usize>() == partitions
            && led.keys().copied().eq(pids.iter().copied())
            && led.values().all(|led| (least..=most).contains(led))
    });
}

fn hosts_that_start_stop_and_die_share_the_partitions_within_five_seconds(store: Store) {
    let rig = Rig::on(store, &settings(7));
    let run = || {
        let host = rig.spawn_run();
        host.wait_for_message("starting");
        host
    };
    let one = run();
    wait_until_shared(&rig, &[&one], 7, PATIENCE);
    let two = run();
    wait_until_shared(&rig, &[&one, &two], 7, SOON);
    let three = run();
    wait_until_shared(&rig, &[&one, &two, &three], 7, SOON);
    one.kill9();
    wait_until_shared(&rig, &[&two, &three], 7, SOON);
    two.stop();
    wait_until_shared(&rig, &[&three], 7, SOON);
    assert_eq!(rig.group("orders")["leader"], Value::Null, "of all of it there is none");
    three.stop();
    assert_eq!(led(&rig), BTreeMap::new());
}

/// When the handler began and ended with each event, by the event's key.
fn runs(logs: &[Vec<Value>], keys: usize) -> BTreeMap<usize, Vec<(String, String)>> {
    let mut begun = BTreeMap::new();
    let mut runs: BTreeMap<usize, Vec<(String, String)>> = BTreeMap::new();
    for log in logs {
        for line in log {
            let (Some(message), Some(id)) = (line["message"].as_str(), event_id(line)) else {
                continue;
            };
            let time = line["timestamp"].as_str().expect("every line has a time").to_owned();
            match message {
                "begun" => drop(begun.insert(id, time)),
                "ended" => {
                    let from = begun.remove(&id).expect("it began");
                    runs.entry(id % keys).or_default().push((from, time));
                }
                _ => {}
            }
        }
    }
    runs
}

fn event_id(line: &Value) -> Option<usize> {
    let span = line.get("span").unwrap_or(line);
    span["event_id"].as_str().and_then(|id| id.parse().ok())
}

fn a_key_runs_at_one_host_at_a_time_while_hosts_come_and_go(store: Store) {
    const KEYS: usize = 12;
    const EVENTS: usize = 2_400;
    let rig = Rig::on(store, &settings(6));
    let log = |line: &str| json!({ "do": "log", "line": line });
    let commands = json!([log("begun"), count(), { "do": "sleep", "ms": 20 }, log("ended")]);
    let events: Vec<Value> = (0..EVENTS).map(|n| keyed(n, KEYS, &commands)).collect();
    rig.publish(&events);
    let mut hosts = vec![rig.spawn_run()];
    wait_until_shared(&rig, &[&hosts[0]], 6, PATIENCE);
    let mut logs = Vec::new();
    let mut ends = |host: Running| {
        host.sigterm();
        host.wait_for_message("stopped");
        logs.push(host.log());
    };
    for _ in 0..2 {
        hosts.push(rig.spawn_run());
        wait_until_shared(&rig, &hosts.iter().collect::<Vec<_>>(), 6, PATIENCE);
        hosts.push(rig.spawn_run());
        wait_until_shared(&rig, &hosts.iter().collect::<Vec<_>>(), 6, PATIENCE);
        ends(hosts.remove(0));
        wait_until_shared(&rig, &hosts.iter().collect::<Vec<_>>(), 6, PATIENCE);
        ends(hosts.remove(0));
    }
    wait_until("all is handled", PATIENCE, || {
        let group = rig.group("orders");
        (&group["lag_events"], &group["parked"]) == (&json!(0), &json!(0))
    });
    hosts.into_iter().for_each(&mut ends);
    assert_eq!(counted(&rig), [EVENTS, KEYS].map(|n| i64::try_from(n).expect("it is small")));
    let mut handled_by = 0;
    for log in &logs {
        handled_by += usize::from(log.iter().any(|line| line["message"] == "ended"));
    }
    assert!(handled_by >= 3, "{handled_by} hosts handled something: this shows nothing");
    for (key, mut runs) in runs(&logs, KEYS) {
        runs.sort();
        for pair in runs.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "key {key} ran twice at once: {pair:?}");
        }
    }
}

fn every_count_is_exact_whatever_hosts_are_killed_and_however_the_group_is_split(store: Store) {
    const KEYS: usize = 50;
    const EVENTS: usize = 400;
    let rig = Rig::on(store, &settings(1));
    let settled = |partitions: u32| {
        Settings::of([orders(partitions)
            .set("batch.max_events = 20")
            .set("limits.concurrency = 8")
            .attempts(1_000)])
    };
    let mut published = 0;
    for partitions in [1, 4, 3, 8, 1, 5] {
        rig.configure(&settled(partitions));
        let events: Vec<Value> = (published..published + EVENTS)
            .map(|n| {
                let attempt = if n % 13 == 0 { 2 } else { 1 };
                let fails = json!({ "do": "fail-until-attempt", "attempt": attempt });
                keyed(n, KEYS, &json!([count(), fails]))
            })
            .collect();
        rig.publish(&events);
        published += EVENTS;
        for _ in 0..3 {
            let hosts = [rig.spawn_run(), rig.spawn_run()];
            for host in &hosts {
                host.wait_for_message("starting");
            }
            // The moment of the kill is what is random here, so nothing is waited for.
            std::thread::sleep(Duration::from_millis(fastrand::u64(0..500)));
            hosts.into_iter().for_each(Running::kill9);
        }
    }
    rig.drain();
    assert_eq!(counted(&rig), [published, KEYS].map(|n| i64::try_from(n).expect("it is small")));
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    assert_eq!(rig.number("SELECT count(*) FROM redeliveries"), 0);
}

fn what_partitions_give_up_on_is_the_groups_and_is_replayed_where_its_key_is(store: Store) {
    let rig = Rig::on(store, &Settings::of([orders(4).attempts(1).set("breaker.events = 0")]));
    let events: Vec<Value> =
        (0..20).map(|n| keyed(n, 20, &json!([{ "do": "reject", "text": "no" }]))).collect();
    rig.publish(&events);
    rig.drain();
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 20);
    assert!(letters.iter().all(|letter| letter["group"] == "orders"), "{letters:?}");
    let data = count().to_string();
    for letter in &letters[..5] {
        let id = letter["id"].to_string();
        let _ = rig.host(["dlq", "replay", &id, "--data", &data]).ok();
    }
    let _ = rig.host(["dlq", "replay", "--group", "orders", "--all"]).ok();
    rig.drain();
    assert_eq!(counted(&rig), [5, 5]);
    assert_eq!(rig.dead_letters().len(), 15, "the others are rejected again");
}

fn another_number_of_partitions_is_refused_while_another_host_runs_the_group(store: Store) {
    let rig = Rig::on(store, &settings(2));
    let host = rig.spawn_run();
    wait_until_shared(&rig, &[&host], 2, PATIENCE);
    rig.configure(&settings(3));
    let said = rig.host(["run", "--drain"]).failed(1);
    assert!(said.contains("group `orders` cannot be split into another number of partitions while a part of it is led"), "{said}");
    rig.publish(&[keyed(1, 1, &count())]);
    wait_until("it goes on", PATIENCE, || counted(&rig) == [1, 1]);
    host.stop();
    rig.drain();
    assert_eq!(rig.group("orders")["partitions"].as_array().map(Vec::len), Some(3));
}

fn a_host_that_reads_its_settings_again_splits_its_group_anew(store: Store) {
    let rig = Rig::on(store, &settings(2));
    let host = rig.spawn_run();
    wait_until_shared(&rig, &[&host], 2, PATIENCE);
    let commands = json!([{ "do": "sleep", "ms": 5 }, count()]);
    let events: Vec<Value> = (0..200).map(|n| keyed(n, 10, &commands)).collect();
    rig.publish(&events);
    for partitions in [5, 3] {
        rig.configure(&settings(partitions));
        host.hangup();
        wait_until("it has so many", PATIENCE, || {
            let group = rig.group("orders");
            group["partitions"].as_array().map(Vec::len) == usize::try_from(partitions).ok()
        });
        wait_until_shared(&rig, &[&host], usize::try_from(partitions).expect("small"), PATIENCE);
    }
    // While another host has a part of it, what runs goes on, and `status` says so.
    let other = rig.spawn_run();
    wait_until_shared(&rig, &[&host, &other], 3, PATIENCE);
    rig.configure(&settings(4));
    host.hangup();
    host.wait_for_log("it is refused", |line| {
        line["message"].as_str().is_some_and(|said| said.contains("while a part of it is led"))
    });
    wait_until("all is counted", PATIENCE, || counted(&rig) == [200, 10]);
    wait_until_shared(&rig, &[&host, &other], 3, PATIENCE);
    other.stop();
    host.stop();
}

fn a_drain_ends_once_every_partition_is_through(store: Store) {
    let rig = Rig::on(store, &settings(16));
    let events: Vec<Value> = (0..500).map(|n| keyed(n, 40, &count())).collect();
    rig.publish(&events);
    let began = Instant::now();
    rig.drain();
    assert_eq!(counted(&rig), [500, 40]);
    let group = rig.group("orders");
    let partitions = group["partitions"].as_array().expect("it has partitions");
    assert!(partitions.iter().all(|partition| partition["position"] == json!(500)), "{group}");
    assert!(began.elapsed() < PATIENCE);
}
