//! Groups that go on past open transactions: nothing that those commit is lost or
//! handled twice, whoever dies meanwhile (promises 1 and 2), and whatever is open is
//! named (promise 19).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tests::{Client, Handler, PATIENCE, Rig, Running, Settings, Store, wait_until};

/// A handler that waits for no transaction for longer than a moment.
fn overtaking() -> Handler {
    Handler::new("fast", "chaos", &["command"])
        .set("ordering = \"key\"")
        .set("overtake = \"100ms\"")
}

fn rig() -> Rig {
    Rig::on(Store::Postgres, &Settings::of([overtaking()]))
}

fn leading(rig: &Rig) -> Running {
    let host = rig.spawn_run();
    host.wait_until_leading("fast");
    host
}

/// An event whose handler reports what it saw, and counts in the state of its key.
fn insert(key: &str) -> String {
    format!(
        r#"INSERT INTO events (type, partitionkey, data) VALUES ('command', '{key}',
           '[{{"do":"count","key":"n"}},{{"do":"report","type":"seen"}}]')"#
    )
}

/// Position and whether it was late, of everything that a group handled, in the order
/// in which it was settled.
fn handled(rig: &Rig, group: &str) -> Vec<(i64, bool)> {
    let seen = rig.data_of("seen").into_iter().filter(|report| report["group"] == group);
    seen.map(|report| {
        let position = report["position"].as_i64().expect("a number");
        (position, report["is-late"].as_bool().expect("a boolean"))
    })
    .collect()
}

fn wait_until_handled(rig: &Rig, group: &str, expected: &[(i64, bool)]) {
    wait_until(&format!("{expected:?} are handled"), PATIENCE, || {
        handled(rig, group).len() >= expected.len()
    });
    assert_eq!(handled(rig, group), expected);
}

/// Waits until nothing is open any more, and gives how many events were late.
fn late_once_nothing_is_open(rig: &Rig) -> i64 {
    wait_until("nothing is open", PATIENCE, || {
        rig.number("SELECT count(*) FROM consumer_groups WHERE open_ranges IS NOT NULL") == 0
    });
    let group = rig.group("fast");
    assert_eq!((&group["open_ranges"], &group["parked"]), (&json!([]), &json!(0)));
    group["late_events"].as_i64().expect("a number")
}

#[test]
fn an_open_transaction_holds_up_no_group_that_overtakes_it_and_is_delivered_late() {
    let steady = Handler::new("steady", "chaos", &["command"]);
    let rig = Rig::on(Store::Postgres, &Settings::of([overtaking(), steady]));
    let host = leading(&rig);
    host.wait_until_leading("steady");
    let [mut early, mut second, mut late] =
        [Client::new(&rig), Client::new(&rig), Client::new(&rig)];
    early.execute("BEGIN");
    early.execute(&insert("a"));
    second.execute("BEGIN");
    second.execute(&insert("b"));
    late.execute(&insert("a"));
    wait_until_handled(&rig, "fast", &[(3, false)]);
    assert_eq!(handled(&rig, "steady"), [], "it waits for all of them");
    let pid = early.number("SELECT pg_backend_pid()::bigint");
    wait_until("who holds it is named", PATIENCE, || {
        let holders = &rig.group("fast")["open_ranges_held_by"];
        let is_named = |by: &Value| by["pid"] == pid && by["age_seconds"].as_f64() > Some(1.0);
        holders.as_array().is_some_and(|holders| holders.iter().any(is_named))
    });
    let status = rig.group("fast");
    assert_eq!(status["open_ranges"], json!([{ "first": 1, "last": 2 }]));
    let text = rig.host(["status"]).ok();
    let said = format!("the transaction of server process {pid}");
    assert!(text.contains("fast: ") && text.contains("positions 1 to 2"), "{text}");
    assert!(text.contains(&said), "{text}");
    // In the reverse order.
    second.execute("COMMIT");
    wait_until_handled(&rig, "fast", &[(3, false), (2, true)]);
    early.execute("COMMIT");
    wait_until_handled(&rig, "fast", &[(3, false), (2, true), (1, true)]);
    wait_until("the other handles them, too", PATIENCE, || handled(&rig, "steady").len() == 3);
    assert_eq!(handled(&rig, "steady"), [(1, false), (2, false), (3, false)]);
    assert_eq!(late_once_nothing_is_open(&rig), 2);
    assert_eq!(rig.group("steady")["late_events"], 0);
    host.stop();
}

#[test]
fn a_transaction_that_was_overtaken_and_is_rolled_back_leaves_nothing() {
    let rig = rig();
    let host = leading(&rig);
    let [mut early, mut killed, mut late] =
        [Client::new(&rig), Client::new(&rig), Client::new(&rig)];
    for session in [&mut early, &mut killed] {
        session.execute("BEGIN");
        session.execute(&insert("a"));
    }
    late.execute(&insert("a"));
    wait_until_handled(&rig, "fast", &[(3, false)]);
    let pid = killed.number("SELECT pg_backend_pid()::bigint");
    late.execute(&format!("SELECT pg_terminate_backend({pid})"));
    early.execute("ROLLBACK");
    assert_eq!(late_once_nothing_is_open(&rig), 0);
    late.execute(&insert("a"));
    wait_until("what comes then is handled", PATIENCE, || handled(&rig, "fast").len() == 2);
    host.stop();
    assert_eq!(rig.number("SELECT count(*) FROM dead_letters"), 0);
}

/// Killed while transactions are open, and while what they committed is looked for.
#[test]
fn what_is_open_outlives_its_host_and_is_delivered_by_the_next_leader() {
    let rig = rig();
    let host = leading(&rig);
    let [mut early, mut prepared, mut late] =
        [Client::new(&rig), Client::new(&rig), Client::new(&rig)];
    let name = format!("open-{:x}", late.number("SELECT (random() * 1e15)::bigint"));
    for session in [&mut early, &mut prepared] {
        session.execute("BEGIN");
        session.execute(&insert("a"));
    }
    prepared.execute(&format!("PREPARE TRANSACTION '{name}'"));
    late.execute(&insert("a"));
    wait_until_handled(&rig, "fast", &[(3, false)]);
    host.kill9();
    // While nobody leads.
    early.execute("COMMIT");
    let first = leading(&rig);
    wait_until_handled(&rig, "fast", &[(3, false), (1, true)]);
    // Another takes over from one that lives.
    let second = rig.spawn_run();
    second.wait_for_log("it stands by", super::stands_by);
    first.kill9();
    second.wait_until_leading("fast");
    late.execute(&format!("COMMIT PREPARED '{name}'"));
    wait_until("the prepared one is handled", PATIENCE, || handled(&rig, "fast").len() == 3);
    assert_eq!(late_once_nothing_is_open(&rig), 2);
    let mut positions: Vec<_> = handled(&rig, "fast").into_iter().map(|(at, _)| at).collect();
    positions.sort_unstable();
    assert_eq!(positions, [1, 2, 3]);
    second.stop();
}

#[test]
fn a_drained_host_takes_what_was_committed_late_and_waits_for_no_open_transaction() {
    let rig = rig();
    let host = leading(&rig);
    let [mut early, mut late] = [Client::new(&rig), Client::new(&rig)];
    early.execute("BEGIN");
    early.execute(&insert("a"));
    late.execute(&insert("b"));
    wait_until_handled(&rig, "fast", &[(2, false)]);
    host.stop();
    let _ = rig.drain();
    assert_eq!(handled(&rig, "fast"), [(2, false)]);
    early.execute("COMMIT");
    let _ = rig.drain();
    assert_eq!(handled(&rig, "fast"), [(2, false), (1, true)]);
}

#[test]
fn settings_that_overtake_no_longer_lose_nothing_of_what_is_open() {
    let rig = rig();
    let host = leading(&rig);
    let [mut early, mut late] = [Client::new(&rig), Client::new(&rig)];
    early.execute("BEGIN");
    early.execute(&insert("a"));
    late.execute(&insert("a"));
    wait_until_handled(&rig, "fast", &[(2, false)]);
    host.stop();
    rig.configure(&Settings::of([Handler::new("fast", "chaos", &["command"])]));
    let host = leading(&rig);
    early.execute("COMMIT");
    wait_until_handled(&rig, "fast", &[(2, false), (1, true)]);
    assert_eq!(late_once_nothing_is_open(&rig), 1);
    host.stop();
}

/// A settlement that takes over a late event waits for an operator's lock, is given up,
/// and tried again.
#[test]
fn a_settlement_that_is_stuck_delivers_what_is_late_once() {
    let rig = rig();
    let host = leading(&rig);
    let [mut early, mut late, mut operator] =
        [Client::new(&rig), Client::new(&rig), Client::new(&rig)];
    early.execute("BEGIN");
    early.execute(&insert("a"));
    late.execute(&insert("b"));
    wait_until_handled(&rig, "fast", &[(2, false)]);
    operator.execute("BEGIN");
    operator.execute("SELECT FROM consumer_groups WHERE name = 'fast' FOR UPDATE");
    early.execute("COMMIT");
    host.wait_for_log("it cannot settle", |line| {
        line["group"] == "fast" && super::says(line, &["cannot "])
    });
    assert_eq!(handled(&rig, "fast").len(), 1);
    operator.execute("COMMIT");
    wait_until_handled(&rig, "fast", &[(2, false), (1, true)]);
    assert_eq!(late_once_nothing_is_open(&rig), 1);
    host.stop();
}

#[test]
fn a_late_event_that_kills_the_process_becomes_a_dead_letter() {
    let handler = overtaking().attempts(2).set("limits.timeout = \"1h\"");
    let rig = Rig::on(Store::Postgres, &Settings::of([handler]));
    let host = leading(&rig);
    let [mut early, mut late] = [Client::new(&rig), Client::new(&rig)];
    early.execute("BEGIN");
    early.execute(
        r#"INSERT INTO events (type, data) VALUES
           ('command', '[{"do":"log","line":"deadly"},{"do":"sleep","ms":3000000}]')"#,
    );
    late.execute(&insert("b"));
    wait_until_handled(&rig, "fast", &[(2, false)]);
    early.execute("COMMIT");
    let mut host = host;
    let mut deaths = 0;
    loop {
        let line = host.wait_for_log("it is under way, or dead", |line| {
            line["message"] == "deadly" || line["message"] == "dead letter"
        });
        if line["message"] == "dead letter" {
            break;
        }
        deaths += 1;
        assert!(deaths < 12, "no death is counted");
        host.kill9();
        host = rig.spawn_run();
    }
    host.stop();
    let letters = rig.dead_letters();
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!((&letter["position"], &letter["failure"]["kind"]), (&json!(1), &json!("crash")));
    assert_eq!(late_once_nothing_is_open(&rig), 1);
}

/// A producer that publishes in transactions of all kinds until it is told to stop, and
/// some of which stay open for longer than any group waits. Gives how many events of
/// each key it committed.
fn produce(rig: &Rig, producer: usize, stop: &AtomicBool) -> BTreeMap<String, i64> {
    let mut client = Client::new(rig);
    let mut committed = BTreeMap::new();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut written: Vec<String> = Vec::new();
        client.execute("BEGIN");
        for _ in 0..fastrand::usize(1..4) {
            let key = format!("k{}", fastrand::usize(0..5));
            let is_kept = fastrand::u32(0..4) > 0;
            client.execute("SAVEPOINT s");
            client.execute(&insert(&key));
            client.execute(if is_kept { "RELEASE s" } else { "ROLLBACK TO s" });
            written.extend(is_kept.then_some(key));
            let pause = if fastrand::u32(0..8) == 0 { 500 } else { 10 };
            thread::sleep(Duration::from_millis(fastrand::u64(0..pause)));
        }
        number += 1;
        let name = format!("p{producer}-{number}-{:x}", fastrand::u64(..));
        match fastrand::u32(0..6) {
            0 => {
                client.execute("ROLLBACK");
                continue;
            }
            1 => {
                client.execute(&format!("PREPARE TRANSACTION '{name}'"));
                thread::sleep(Duration::from_millis(fastrand::u64(0..500)));
                client.execute(&format!("COMMIT PREPARED '{name}'"));
            }
            _ => client.execute("COMMIT"),
        }
        for key in written {
            *committed.entry(key).or_default() += 1;
        }
    }
    committed
}

/// Eight producers, of whose transactions many are overtaken, and hosts that are killed
/// at random.
#[test]
fn each_committed_event_is_handled_once_whatever_is_overtaken_and_whoever_is_killed() {
    const PRODUCERS: usize = 8;
    let rig = rig();
    let _ = rig.host(["migrate"]).ok();
    let stop = AtomicBool::new(false);
    let committed = thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let (rig, stop) = (&rig, &stop);
                scope.spawn(move || produce(rig, producer, stop))
            })
            .collect();
        for _ in 0..4 {
            let host = leading(&rig);
            // The moment is what is random here, so nothing is waited for.
            thread::sleep(Duration::from_millis(fastrand::u64(800..2_500)));
            host.kill9();
        }
        stop.store(true, Ordering::Relaxed);
        let mut committed: BTreeMap<String, i64> = BTreeMap::new();
        for producer in producers {
            for (key, count) in producer.join().expect("no producer fails") {
                *committed.entry(format!("key:{key}")).or_default() += count;
            }
        }
        committed
    });
    let host = leading(&rig);
    let all: i64 = committed.values().sum();
    assert_eq!(rig.number("SELECT count(*) FROM events WHERE type = 'command'"), all);
    wait_until("all is handled", PATIENCE, || {
        rig.number("SELECT count(*) FROM events WHERE type = 'seen'") >= all
    });
    let late = late_once_nothing_is_open(&rig);
    host.stop();
    assert!(late > 0, "nothing was overtaken");
    let mut positions: Vec<_> = handled(&rig, "fast").into_iter().map(|(at, _)| at).collect();
    positions.sort_unstable();
    let of_log = rig
        .texts("SELECT position::text FROM events WHERE type = 'command' ORDER BY events.position");
    let of_log: Vec<i64> = of_log.iter().map(|at| at.parse().expect("a position")).collect();
    assert_eq!(positions, of_log);
    let value = rig.as_text("value");
    let counts = rig.texts(&format!("SELECT scope || '=' || {value} FROM state"));
    let counts: BTreeMap<String, i64> = counts
        .iter()
        .map(|row| {
            let (scope, count) = row.rsplit_once('=').expect("a scope and a count");
            (scope.to_owned(), count.parse().expect("a count"))
        })
        .collect();
    assert_eq!(counts, committed, "one at a time of a key, each once");
    assert_eq!(rig.number("SELECT count(*) FROM dead_letters"), 0);
}
