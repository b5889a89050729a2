//! The server restarts, crashes and stays away, while hosts run (promises 7, 17
//! and 18).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_postgres::{Server, Stop};
use tests::{Client, Handler, PATIENCE, Rig, Running, Settings, event, wait_until};

use super::{expect_no_lock, says, stands_by};

/// One group whose event is under way for long, and one that is idle; neither
/// gives an event a second attempt.
fn settings() -> Settings {
    Settings::of([
        Handler::new("chaos", "chaos", &["command"]).attempts(1).set("limits.timeout = \"60s\""),
        Handler::new("tally", "tally", &["a"]).attempts(1),
    ])
}

fn rig(server: &Server) -> Rig {
    let rig = Rig::at(&server.url("postgres"), &settings().top("grace = \"2s\""));
    let _ = rig.host(["migrate"]).ok();
    rig
}

/// Publishes an event that counts, says that it has begun, and takes so long.
fn publish_slow(rig: &Rig, id: &str, ms: u64) {
    let data = json!([
        { "do": "count", "key": "count" },
        { "do": "report", "type": "seen" },
        { "do": "log", "line": id },
        { "do": "sleep", "ms": ms },
    ]);
    rig.publish(&[event("command", id, data)]);
}

fn stop(server: &mut Server, rig: &Rig, how: Stop) {
    rig.hang_up();
    server.stop(how).expect("the server stops");
}

/// Waits until a host knows that the server is away, and for long enough that it
/// has tried again many times.
fn stay_away(host: &Running) {
    host.wait_for_log("it steps down", |line| says(line, &["the lock session is lost"]));
    let known = Instant::now();
    wait_until("it has been away for a while", PATIENCE, || {
        known.elapsed() > Duration::from_secs(3)
    });
}

/// Waits until hosts have come as far: one that is only starting ends with an error
/// when the server goes.
fn all_lead_or_stand_by(hosts: &[&Running]) {
    for host in hosts {
        host.wait_for_log("it leads or stands by", |line| {
            line["message"] == "leading" || stands_by(line)
        });
    }
}

/// Each reason is said once for each group and thing that does not work, however often
/// it is met, and there are few.
fn expect_few_words(log: &[Value]) {
    let mut said = BTreeMap::<(String, String), usize>::new();
    for line in log.iter().filter(|line| line["level"] == "ERROR" || line["level"] == "WARN") {
        let message = line["message"].as_str().unwrap_or_default().to_owned();
        *said.entry((line["group"].to_string(), message)).or_default() += 1;
    }
    let again: Vec<_> = said.iter().filter(|(_, times)| **times > 1).collect();
    assert!(again.is_empty(), "{again:?} in {log:#?}");
    assert!(said.len() <= 20, "{said:#?}");
}

fn goes_on_after(how: Stop) {
    let mut server = Server::start(&[]).expect("a server starts");
    let rig = rig(&server);
    let host = rig.spawn_run();
    publish_slow(&rig, "before", 0);
    rig.wait_until_handled("chaos", 1);
    assert_eq!(rig.state("chaos", "count"), 1);
    publish_slow(&rig, "under way", 2_000);
    host.wait_for_message("under way");

    stop(&mut server, &rig, how);
    stay_away(&host);
    let before = host.log().len();
    server.resume().expect("the server starts");
    host.wait_for_message("the lock session is back");
    rig.publish(&[event("a", "after", json!(null))]);
    wait_until("all is handled", PATIENCE, || {
        rig.state("chaos", "count") == 2 && rig.state("tally", "count") == 1
    });
    expect_few_words(&host.log());
    assert!(host.log().len() - before < 30, "{:#?}", host.log());
    host.stop();

    let seen: Vec<(Value, Value)> = rig
        .data_of("seen")
        .iter()
        .map(|report| (report["id"].clone(), report["attempt"].clone()))
        .collect();
    assert_eq!(seen, [(json!("before"), json!(1)), (json!("under way"), json!(1))]);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    expect_no_lock(&mut Client::new(&rig));
}

// Promises 7 and 18.
#[test]
fn a_restart_of_the_server_loses_nothing_and_counts_no_attempt() {
    goes_on_after(Stop::Fast);
}

// Promises 7 and 18.
#[test]
fn a_crash_of_the_server_loses_nothing_and_counts_no_attempt() {
    goes_on_after(Stop::Immediate);
}

// Promises 7 and 18.
#[test]
fn restarts_in_a_row_while_two_hosts_work_lose_nothing_and_repeat_nothing() {
    const EVENTS: i64 = 3_000;
    let mut server = Server::start(&[]).expect("a server starts");
    let rig = Rig::at(
        &server.url("postgres"),
        &Settings::of([Handler::new("tally", "tally", &["a"])
            .attempts(1)
            .set("batch.max_events = 10")]),
    );
    let _ = rig.host(["migrate"]).ok();
    let hosts = [rig.spawn_run(), rig.spawn_run()];
    all_lead_or_stand_by(&hosts.each_ref());
    let events: Vec<Value> =
        (0..EVENTS).map(|n| tests::with(event("a", n, json!(null)), "seen", true)).collect();
    rig.publish(&events);
    for how in [Stop::Fast, Stop::Immediate, Stop::Fast] {
        // In the middle of the work, and at whatever moment of a settlement.
        let before = rig.number("SELECT position FROM consumer_groups");
        rig.wait_until_handled("tally", (before + 300).min(EVENTS - 300));
        stop(&mut server, &rig, how);
        server.resume().expect("the server starts");
    }
    rig.wait_until_handled("tally", EVENTS);
    wait_until("all is handled", PATIENCE, || rig.state("tally", "count") >= EVENTS);
    let seen = "SELECT count(*), count(DISTINCT subject) FROM events WHERE type = 'seen'";
    assert_eq!(rig.numbers(seen), [EVENTS, EVENTS]);
    assert_eq!(rig.state("tally", "count"), EVENTS);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    for host in hosts {
        host.stop();
    }
}

// Promises 1 and 18.
#[test]
fn an_event_of_a_prepared_transaction_keeps_its_place_over_a_restart() {
    let mut server = Server::start(&[]).expect("a server starts");
    let rig = rig(&server);
    let host = rig.spawn_run();
    host.wait_until_leading("chaos");
    let insert =
        r#"INSERT INTO events (type, data) VALUES ('command', '{"do":"report","type":"seen"}')"#;
    let mut client = Client::new(&rig);
    for sql in ["BEGIN", insert, "PREPARE TRANSACTION 'late'", insert] {
        client.execute(sql);
    }
    drop(client);
    host.wait_for_log("it is held up", |line| says(line, &["the log is held up by"]));
    stop(&mut server, &rig, Stop::Immediate);
    host.wait_for_log("it steps down", |line| says(line, &["the lock session is lost"]));
    server.resume().expect("the server starts");
    host.wait_for_message("the lock session is back");
    let named = "the log is held up by the prepared transaction `late` of role postgres";
    wait_until("the status names it", PATIENCE, || rig.host(["status"]).ok().contains(named));
    assert_eq!(rig.data_of("seen"), Vec::<Value>::new());
    Client::new(&rig).execute("COMMIT PREPARED 'late'");
    wait_until("both are handled", PATIENCE, || rig.data_of("seen").len() == 2);
    let seen = rig.data_of("seen");
    assert_eq!([&seen[0]["position"], &seen[1]["position"]], [1, 2]);
    host.stop();
}

// Promises 7, 17 and 18.
#[test]
fn a_stop_while_the_server_is_away_ends_within_the_grace_period() {
    let mut server = Server::start(&[]).expect("a server starts");
    let rig = rig(&server);
    let [mut idle, mut busy] = [rig.spawn_run(), rig.spawn_run()];
    wait_until("one leads each group", PATIENCE, || {
        idle.count_messages("leading") + busy.count_messages("leading") == 2
    });
    all_lead_or_stand_by(&[&idle, &busy]);
    publish_slow(&rig, "under way", 5_000);
    let begun = |host: &Running| host.count_messages("under way") == 1;
    wait_until("the event is under way", PATIENCE, || begun(&idle) || begun(&busy));
    if begun(&idle) {
        std::mem::swap(&mut idle, &mut busy);
    }
    stop(&mut server, &rig, Stop::Fast);
    // At once for one of them, before it knows of anything.
    busy.sigterm();
    let asked = Instant::now();
    let status = busy.wait_within(Duration::from_secs(4));
    println!("stopped in {:?}", asked.elapsed());
    assert_eq!(status.code(), Some(0), "{:#?}", busy.log());
    // The other has found out, and tries to come back.
    wait_until("it knows", PATIENCE, || idle.log().iter().any(|line| line["level"] == "ERROR"));
    idle.sigterm();
    let status = idle.wait_within(Duration::from_secs(4));
    assert_eq!(status.code(), Some(0), "{:#?}", idle.log());

    server.resume().expect("the server starts");
    rig.drain();
    let seen = rig.data_of("seen");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0]["attempt"], 1);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}
