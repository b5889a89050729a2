//! The session that holds the locks, lost in every way, and the hand-over from
//! one host to another (promises 3, 8, 10, 11, 12 and 19).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_postgres::Server;
use tests::{Client, Handler, PATIENCE, Rig, Running, Settings, Store, event, wait_until};

use super::{
    end_lock_session_of, end_lock_sessions, expect_no_lock, expect_settlements_in_order,
    record_settlements, says, stands_by, times_said,
};

/// A group that gives up on the first failure.
fn chaos() -> Settings {
    Settings::of([Handler::new("chaos", "chaos", &["command"])
        .attempts(1)
        .set("batch.max_time = \"1m\"")
        .set("limits.timeout = \"60s\"")])
}

fn leads(line: &Value) -> bool {
    line["message"] == "leading"
}

/// An event that is counted and emits, and takes so long once it says so.
fn slow(n: usize, ms: u64) -> Value {
    let data = json!([
        { "do": "count", "key": "count" },
        { "do": "report", "type": "seen" },
        { "do": "log", "line": "begun" },
        { "do": "sleep", "ms": ms },
    ]);
    event("command", n, data)
}

/// An event that is counted and emits at once.
fn quick(n: usize) -> Value {
    let data = json!([{ "do": "count", "key": "count" }, { "do": "report", "type": "seen" }]);
    event("command", n, data)
}

/// Up to where a leadership settled.
fn last_settled(rig: &Rig, epoch: i64) -> i64 {
    rig.number(&format!("SELECT max(position) FROM public.settlements WHERE epoch = {epoch}"))
}

/// A leader in mid-batch, with `before` events done and one under way, and a host
/// that stands by.
fn leader_and_standby(rig: &Rig, before: usize, ms: u64) -> (Running, Running) {
    let _ = rig.host(["migrate"]).ok();
    record_settlements(rig);
    let leader = rig.spawn_run();
    leader.wait_until_leading("chaos");
    let standby = rig.spawn_run();
    standby.wait_for_log("it stands by", stands_by);
    // In one transaction, and so in one batch, save that the first few may be seen
    // by themselves.
    let events: Vec<Value> =
        (0..before).map(quick).chain([slow(before, ms), quick(before + 1)]).collect();
    rig.publish(&events);
    leader.wait_for_message("begun");
    (leader, standby)
}

/// So many events were handled, each once as far as the database can tell, by
/// leaders of which none moved the cursor back.
fn expect_each_once(rig: &Rig, events: usize) {
    let events = events as i64;
    assert_eq!(rig.state("chaos", "count"), events);
    let seen = "SELECT count(*), count(DISTINCT convert_from(data, 'UTF8')::jsonb ->> 'id')
                FROM events WHERE type = 'seen'";
    assert_eq!(rig.numbers(seen), [events, events]);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    expect_settlements_in_order(rig);
}

// Promises 3 and 11.
#[test]
fn a_leader_whose_lock_session_ends_in_mid_batch_commits_nothing_more_and_says_so() {
    let rig = Rig::on(Store::Postgres, &chaos());
    let (leader, standby) = leader_and_standby(&rig, 20, 2_000);
    assert_eq!(end_lock_sessions(&mut Client::new(&rig)), 1);
    leader.wait_for_log_within(Duration::from_secs(2), "it steps down", |line| {
        says(line, &["no longer leader; nothing more was committed"])
    });
    leader.wait_for_log("it says why", |line| says(line, &["the lock session is lost"]));
    // Whichever of the two is faster.
    wait_until("one of them leads anew", PATIENCE, || {
        [&leader, &standby]
            .iter()
            .any(|host| host.log().iter().any(|line| leads(line) && line["epoch"] == 2))
    });
    rig.wait_until_handled("chaos", 22);
    for host in [leader, standby] {
        host.stop();
    }
    expect_each_once(&rig, 22);
    assert!(last_settled(&rig, 1) < 21, "it was under way when the lock was lost");
}

// Promises 3 and 10.
#[test]
fn a_leader_that_has_not_noticed_the_loss_of_its_lock_does_not_take_the_group_back() {
    const EVENTS: i64 = 3_000;
    let rig = Rig::on(
        Store::Postgres,
        &Settings::of([Handler::new("tally", "tally", &["a"])
            .attempts(1)
            .set("batch.max_events = 2")]),
    );
    let events: Vec<Value> = (0..EVENTS).map(|n| event("a", n, json!(null))).collect();
    rig.publish(&events);
    record_settlements(&rig);
    let hosts = [rig.spawn_run(), rig.spawn_run()];
    let mut client = Client::new(&rig);
    const LOSSES: usize = 3;
    for loss in 1..=LOSSES {
        // It settles all the time, and so is refused before its next heartbeat.
        rig.wait_until_handled("tally", loss as i64 * 400);
        assert_eq!(end_lock_sessions(&mut client), 1);
        let one_of_them = || hosts.iter().map(|host| host.count_messages("leading")).sum::<usize>();
        wait_until("another leadership begins", PATIENCE, || one_of_them() > loss);
    }
    rig.wait_until_handled("tally", EVENTS);
    let epochs = rig.number("SELECT epoch FROM consumer_groups");
    assert_eq!(epochs as usize, 1 + LOSSES, "one leadership for each loss");
    for host in hosts {
        host.stop();
    }
    assert_eq!(rig.state("tally", "count"), EVENTS);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    expect_settlements_in_order(&rig);
}

// Promises 3 and 11.
#[test]
fn a_leader_that_was_frozen_while_another_took_over_commits_nothing_and_stands_by() {
    let rig = Rig::on(Store::Postgres, &chaos());
    // The handler is done by the time the process goes on.
    let (leader, standby) = leader_and_standby(&rig, 20, 1_000);
    leader.freeze();
    let frozen = Instant::now();
    let bound = Duration::from_secs(15);
    standby.wait_for_log_within(bound, "it ends the silent leader's session", |line| {
        says(line, &["ended the lock session of a host that has been silent"])
            && line["pid"] == leader.pid()
    });
    standby.wait_for_log_within(bound, "it leads", leads);
    println!("took over {:?} after the freeze", frozen.elapsed());
    assert!(frozen.elapsed() < bound, "{:?}", frozen.elapsed());
    rig.wait_until_handled("chaos", 22);

    leader.thaw();
    leader.wait_for_log("it steps down", |line| {
        says(line, &["no longer leader; nothing more was committed"])
    });
    leader.wait_for_log("it stands by", stands_by);
    let group = rig.group("chaos");
    assert_eq!(
        (&group["leader"]["host"]["pid"], &group["epoch"]),
        (&json!(standby.pid()), &json!(2))
    );
    rig.publish(&[quick(22)]);
    wait_until("the new leader goes on", PATIENCE, || rig.state("chaos", "count") == 23);
    assert_eq!(leader.count_messages("leading"), 1);
    assert!(last_settled(&rig, 1) < 21, "it was under way when the process was frozen");
    // And it takes over in its turn.
    standby.stop();
    leader.wait_for_log("it leads again", |line| leads(line) && line["epoch"] == 3);
    leader.stop();
    expect_each_once(&rig, 23);
}

// Promise 10.
#[test]
fn after_a_kill_the_other_host_leads_within_two_seconds() {
    let rig = Rig::on(Store::Postgres, &chaos());
    let (leader, standby) = leader_and_standby(&rig, 20, 1_500);
    let killed = Instant::now();
    leader.kill9();
    standby.wait_for_log_within(Duration::from_secs(2), "it leads", leads);
    println!("led {:?} after the kill", killed.elapsed());
    rig.wait_until_handled("chaos", 22);
    standby.stop();
    expect_each_once(&rig, 22);
}

// Promise 10.
#[test]
fn after_a_clean_stop_the_other_host_leads_at_once() {
    let rig = Rig::on(Store::Postgres, &chaos());
    let (mut leader, standby) = leader_and_standby(&rig, 20, 1_000);
    leader.sigterm();
    let leading = standby.wait_for_log("it leads", leads);
    let leading = leading["timestamp"].as_str().expect("a timestamp");
    assert!(leader.wait().success());
    // The stop let the event under way finish and settled it.
    let [position, waited] = rig.numbers(&format!(
        "SELECT max(position),
                (extract(epoch FROM timestamptz '{leading}' - max(at)) * 1000)::bigint
         FROM public.settlements WHERE epoch = 1"
    ));
    println!("led {waited} ms after the last settlement");
    assert_eq!(position, 21);
    assert!((0..1_000).contains(&waited), "{waited} ms");
    rig.wait_until_handled("chaos", 22);
    standby.stop();
    expect_each_once(&rig, 22);
}

// Promise 19.
#[test]
fn status_says_who_leads_since_when_and_who_stands_by_for_whom() {
    let rig = Rig::on(Store::Postgres, &chaos());
    let leader = rig.spawn_run();
    leader.wait_until_leading("chaos");
    let standby = rig.spawn_run();
    standby.wait_for_log("it stands by", stands_by);
    // It tells the others with its next heartbeat.
    let waits = format!("(pid {}) stands by for chaos (led by ", standby.pid());
    wait_until("the status names the standby", PATIENCE, || {
        rig.host(["status"]).ok().contains(&waits)
    });
    let text = rig.host(["status"]).ok();
    let led_by = format!("(pid {})", leader.pid());
    let line = text.lines().find(|line| line.contains(&waits)).expect("the standby's line");
    assert!(line.ends_with(&format!("{led_by})")), "{text}");
    let row = text.lines().find(|line| line.trim_start().starts_with("chaos ")).expect("a row");
    let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    let [group, state, led, since, epoch, ..] = &cells[..] else { panic!("{text}") };
    assert_eq!((*group, *state, *epoch), ("chaos", "running", "1"), "{text}");
    assert!(led.ends_with(&led_by) && since.ends_with('s'), "{text}");

    let status = rig.json(&["status"]);
    let group = &status["groups"][0];
    assert_eq!(
        (&group["leader"]["host"]["pid"], &group["epoch"]),
        (&json!(leader.pid()), &json!(1))
    );
    let since = group["leader"]["since"].as_str().expect("a time");
    let age = rig.number(&format!(
        "SELECT (extract(epoch FROM clock_timestamp() - timestamptz '{since}') * 1000)::bigint"
    ));
    assert!((0..60_000).contains(&age), "{age} ms");
    let hosts = status["hosts"].as_array().expect("a list");
    let waiting = |pid: u32| {
        let host = hosts.iter().find(|host| host["pid"] == pid);
        host.map(|host| host["standing_by"].clone())
    };
    assert_eq!(waiting(leader.pid()), Some(json!([])));
    assert_eq!(waiting(standby.pid()), Some(json!(["chaos"])));
    leader.stop();
    standby.wait_until_leading("chaos");
    standby.stop();
    assert_eq!(rig.json(&["status"])["hosts"], json!([]));
}

// Promise 12.
#[test]
fn whatever_happens_to_hosts_no_lock_is_left_and_the_server_is_not_warned() {
    const ROUNDS: usize = 8;
    let server = Server::start(&[]).expect("a server starts");
    let handlers = (0..20).map(|n| {
        let (guest, events) = if n % 2 == 0 { ("tally", ["a"]) } else { ("chaos", ["a"]) };
        Handler::new(&format!("group-{n}"), guest, &events).attempts(1)
    });
    let rig = Rig::at(&server.url("postgres"), &Settings::of(handlers).top("grace = \"1s\""));
    let _ = rig.host(["migrate"]).ok();
    let mut client = Client::new(&rig);
    let mut standby = rig.spawn_run();
    for round in 0..ROUNDS {
        // What failing handlers take they give back.
        rig.publish(&[event("a", round, json!(null))]);
        standby.wait_for_message("leading");
        let leader = std::mem::replace(&mut standby, rig.spawn_run());
        standby.wait_for_log("it stands by", stands_by);
        match round % 4 {
            0 => leader.stop(),
            1 => leader.kill9(),
            2 => {
                // That of the leader: the standby may lead some of the groups by now.
                assert_eq!(end_lock_session_of(&mut client, &leader), 1);
                leader.wait_for_log("it steps down", |line| says(line, &["stepping down"]));
                leader.stop();
            }
            _ => {
                leader.sigterm();
                leader.kill9();
            }
        }
    }
    wait_until("all is handled", PATIENCE, || {
        rig.number("SELECT min(position) FROM consumer_groups") >= ROUNDS as i64
    });
    standby.stop();
    expect_no_lock(&mut client);
    assert_eq!(rig.state("group-0", "count"), ROUNDS as i64);
    assert_eq!(rig.dead_letters().len(), 10 * ROUNDS);
    let log = server.log().expect("the server has a log");
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARNING")).collect();
    assert_eq!(warnings, Vec::<&str>::new());
}

// Promises 7 and 8.
#[test]
fn a_leader_that_loses_its_lock_again_and_again_is_not_taken_for_one_that_crashes() {
    let rig = Rig::on(
        Store::Postgres,
        &Settings::of([Handler::new("chaos", "chaos", &["command"]).attempts(1)]),
    );
    let slow = json!([
        { "do": "log", "line": "begun" },
        { "do": "sleep", "ms": 2500 },
        { "do": "report", "type": "seen" },
    ]);
    rig.publish(&[event("command", 1, slow)]);
    let host = rig.spawn_run();
    let mut client = Client::new(&rig);
    // The third loss is that of a leadership that goes carefully, because the two
    // before it settled nothing.
    for loss in 1..=4 {
        wait_until("the event is under way again, or dead", PATIENCE, || {
            times_said(&host, "begun") >= loss || host.count_messages("dead letter") > 0
        });
        assert_eq!(rig.dead_letters(), Vec::<Value>::new(), "after loss {}", loss - 1);
        assert_eq!(end_lock_sessions(&mut client), 1, "at loss {loss}");
    }
    rig.wait_until_handled("chaos", 1);
    host.stop();
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    let seen = rig.data_of("seen");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0]["attempt"], 1);
}

/// A host that began an attempt and lost its lock, and lives, as the next leader sees.
/// That leader dies before it has settled anything, and the first host stops. The leader
/// after it has nobody to ask any more, and must count no crash all the same.
#[test]
fn an_attempt_whose_host_lived_is_counted_by_no_later_leader() {
    let rig = Rig::on(
        Store::Postgres,
        &Settings::of([Handler::new("orders", "chaos", &["command"]).attempts(1)]),
    );
    rig.publish(&[event("command", 1, json!({ "do": "report", "type": "seen" }))]);
    let mut client = Client::new(&rig);
    let first = rig.spawn_run();
    rig.wait_until_handled("orders", 1);
    let _ = rig.host(["groups", "pause", "orders"]).ok();
    first.wait_for_log("the leader knows of the pause", |line| says(line, &["state changed"]));
    rig.publish(&[event("command", 2, json!({ "do": "report", "type": "seen" }))]);
    let position = rig.number("SELECT max(position) FROM events WHERE type = 'command'");
    let second = rig.spawn_run();
    second.wait_for_log("standing by", stands_by);
    // The first host loses its lock in the midst of a marked attempt.
    client.execute(&format!(
        "UPDATE consumer_groups
         SET mark_position = {position}, mark_attempt = 1, mark_begun_by = leader"
    ));
    assert_eq!(rig.number("SELECT count(mark_position) FROM consumer_groups"), 1);
    assert_eq!(end_lock_sessions(&mut client), 1);
    wait_until("a leader sees that the host lives", PATIENCE, || {
        [&first, &second]
            .into_iter()
            .any(|host| host.log().iter().any(|line| says(line, &["lost its lock and lives"])))
    });
    wait_until("that is recorded", PATIENCE, || {
        rig.number("SELECT count(mark_position) FROM consumer_groups") == 0
    });
    first.kill9();
    second.kill9();
    let _ = rig.host(["groups", "resume", "orders"]).ok();
    let third = rig.spawn_run();
    rig.wait_until_handled("orders", position);
    third.stop();
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    assert_eq!(rig.data_of("seen").len(), 2);
}
