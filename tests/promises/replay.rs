//! Replay: promise 9.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Client, Finished, Handler, PATIENCE, Rig, Settings, Store, event, wait_until, with};

tests::on_both_stores! {
    of_two_who_replay_one_dead_letter_at_once_one_is_told_that_it_is_not_found,
    two_who_replay_all_split_the_work,
    with_json_a_replay_of_nothing_is_an_empty_list,
    with_json_a_dry_run_lists_what_it_would_replay,
    a_replay_that_is_killed_leaves_each_letter_dead_or_queued,
    a_replay_that_is_interrupted_says_what_it_did,
    a_replay_that_fails_in_the_middle_says_what_it_did,
    of_several_that_are_discarded_the_others_go_on_and_the_count_is_said,
    a_rate_spreads_a_replay_over_time,
    a_replay_reaches_only_the_group_that_failed_with_the_event_as_it_was,
    what_fails_again_after_a_replay_is_a_new_dead_letter,
    a_payload_can_be_edited_when_it_is_replayed,
    a_dry_run_says_what_it_would_do_and_changes_nothing,
    dead_letters_are_listed_replayed_and_discarded_while_the_host_runs,
}

fn rejecting() -> Settings {
    Settings::of([Handler::new("chaos", "chaos", &["command"])
        .attempts(1)
        .set("breaker.events = 0")])
}

/// A rig whose group `chaos` gave up on so many events. No host runs.
fn with_dead_letters(store: Store, count: usize) -> Rig {
    let rig = Rig::on(store, &rejecting());
    let events: Vec<Value> =
        (0..count).map(|n| event("command", n, json!({ "do": "reject", "text": "no" }))).collect();
    rig.publish(&events);
    rig.drain();
    assert_eq!(rig.number("SELECT count(*) FROM dead_letters") as usize, count);
    rig
}

/// Runs one command in two processes at once.
fn twice(rig: &Rig, arguments: &[&str]) -> [Finished; 2] {
    thread::scope(|scope| {
        let other = scope.spawn(|| rig.host(arguments));
        let one = rig.host(arguments);
        [one, other.join().expect("the command ends")]
    })
}

fn of_two_who_replay_one_dead_letter_at_once_one_is_told_that_it_is_not_found(store: Store) {
    const ROUNDS: usize = 20;
    let rig = with_dead_letters(store, ROUNDS);
    for id in 1..=ROUNDS {
        let mut both = twice(&rig, &["dlq", "replay", &id.to_string()]);
        both.sort_by_key(|finished| finished.code);
        let [winner, loser] = both;
        let said = winner.ok();
        assert!(said.contains(&format!("dead letter {id} goes back to group chaos")), "{said}");
        let complaint = loser.failed(1);
        assert!(complaint.contains(&format!("dead letter {id} not found")), "{complaint}");
    }
    let copies = "SELECT count(*), count(DISTINCT id) FROM events WHERE deliver_to = 'chaos'";
    assert_eq!(rig.numbers(copies), [ROUNDS as i64, ROUNDS as i64]);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn two_who_replay_all_split_the_work(store: Store) {
    const LETTERS: usize = 600;
    let rig = with_dead_letters(store, LETTERS);
    let both = twice(&rig, &["dlq", "replay", "--group", "chaos", "--all", "--json"]);
    let mut ids = Vec::new();
    for finished in both {
        let stdout = finished.ok();
        let replayed: Vec<Value> = serde_json::from_str(&stdout).expect("a list");
        ids.extend(replayed.iter().map(|one| one["id"].as_i64().expect("an id")));
    }
    ids.sort_unstable();
    assert_eq!(ids, (1..=LETTERS as i64).collect::<Vec<_>>());
    let copies = "SELECT count(*), count(DISTINCT id) FROM events WHERE deliver_to = 'chaos'";
    assert_eq!(rig.numbers(copies), [LETTERS as i64, LETTERS as i64]);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn with_json_a_replay_of_nothing_is_an_empty_list(store: Store) {
    let rig = with_dead_letters(store, 1);
    let all = ["dlq", "replay", "--group", "chaos", "--all"];
    assert_eq!(rig.json(&all).as_array().map(Vec::len), Some(1));
    assert_eq!(rig.json(&all), json!([]));
}

fn with_json_a_dry_run_lists_what_it_would_replay(store: Store) {
    let rig = with_dead_letters(store, 2);
    let ids = |arguments: &[&str]| -> Vec<Value> {
        let list = rig.json(arguments);
        list.as_array().expect("a list").iter().map(|one| one["id"].clone()).collect()
    };
    assert_eq!(ids(&["dlq", "replay", "2", "--dry-run"]), [2]);
    assert_eq!(ids(&["dlq", "replay", "--group", "chaos", "--all", "--dry-run"]), [1, 2]);
}

fn a_replay_that_is_killed_leaves_each_letter_dead_or_queued(store: Store) {
    const LETTERS: i64 = 2_000;
    let rig = with_dead_letters(store, LETTERS as usize);
    let mut before = LETTERS;
    let mut broken_off = 0;
    for _ in 0..10 {
        let replay = rig.spawn(&["dlq", "replay", "--group", "chaos", "--all"]);
        // Killed once it has begun, at whatever moment that turns out to be.
        wait_until("the replay has begun", Duration::from_secs(30), || {
            rig.number("SELECT count(*) FROM dead_letters") < before
        });
        replay.kill9();
        let [dead, queued, both] = rig.numbers(
            "SELECT (SELECT count(*) FROM dead_letters),
                    (SELECT count(*) FROM events WHERE deliver_to = 'chaos'),
                    (SELECT count(*) FROM dead_letters JOIN events ON events.id = event_id
                     WHERE events.deliver_to = 'chaos')",
        );
        assert_eq!((dead + queued, both), (LETTERS, 0));
        broken_off += i64::from(dead > 0 && dead < before);
        before = dead;
        if dead == 0 {
            break;
        }
    }
    assert!(broken_off > 0, "no kill came in the middle");
    let _ = rig.host(["dlq", "replay", "--group", "chaos", "--all"]).ok();
    let copies = "SELECT count(*), count(DISTINCT id) FROM events WHERE deliver_to = 'chaos'";
    assert_eq!(rig.numbers(copies), [LETTERS, LETTERS]);
}

fn a_replay_that_is_interrupted_says_what_it_did(store: Store) {
    const LETTERS: i64 = 200;
    let rig = with_dead_letters(store, LETTERS as usize);
    let all = ["dlq", "replay", "--group", "chaos", "--all", "--rate", "20"];
    let mut dead = LETTERS;
    for signal in ["-INT", "-TERM"] {
        let replay = rig
            .command(all.iter().chain(&["--json"]))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let left = || rig.number("SELECT count(*) FROM dead_letters");
        wait_until("some are replayed", PATIENCE, || left() < dead);
        let sent = Command::new("kill").args([signal, &replay.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        let output = replay.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let replayed: Vec<Value> = serde_json::from_slice(&output.stdout).expect("a list");
        let done = dead - left();
        assert_eq!(replayed.len() as i64, done);
        let last = &replayed.last().expect("some")["id"];
        let complaint = String::from_utf8(output.stderr).expect("text");
        let said = format!(
            "error: interrupted: {done} of {dead} dead letters of group chaos are replayed, the last one with id {last}"
        );
        assert!(complaint.contains(&said), "{complaint}");
        assert!(complaint.contains("goes on with them"), "{complaint}");
        dead -= done;
    }
    let _ = rig.host(["dlq", "replay", "--group", "chaos", "--all"]).ok();
    assert_eq!(rig.number("SELECT count(*) FROM events WHERE deliver_to = 'chaos'"), LETTERS);
}

fn a_replay_that_fails_in_the_middle_says_what_it_did(store: Store) {
    let rig = with_dead_letters(store, 150);
    // The copy of this one cannot be written: its batch of 100 is undone.
    refuse_copies(&rig, "120");
    let all = ["dlq", "replay", "--group", "chaos", "--all"];
    let complaint = rig.host(all).failed(1);
    let said = "100 of 150 dead letters of group chaos are replayed, the last one with id 100; the others are as they were";
    assert!(complaint.contains(said) && complaint.contains("no room"), "{complaint}");
    assert_eq!(rig.dead_letters().len(), 50);
    let finished = rig.host(all.iter().chain(&["--json"]));
    assert_eq!(serde_json::from_str::<Value>(&finished.stdout).expect("JSON"), json!([]));
    let complaint = finished.failed(1);
    assert!(complaint.contains("none of 50 dead letters"), "{complaint}");
    // By numbers, each by itself.
    let complaint = rig.host(["dlq", "replay", "119", "121", "122", "999"]).failed(1);
    assert!(complaint.contains("dead letter 999 not found"), "{complaint}");
    assert!(complaint.contains("no room"), "{complaint}");
    assert!(complaint.contains("error: 2 of 4 dead letters were replayed\n"), "{complaint}");
    assert_eq!(rig.dead_letters().len(), 48);
}

/// Has the database refuse a copy of the event with this id.
fn refuse_copies(rig: &Rig, id: &str) {
    let mut client = Client::new(rig);
    if rig.database_is_a_file() {
        client.execute(&format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON events
             WHEN NEW.id = '{id}' AND NEW.deliver_to IS NOT NULL
             BEGIN SELECT RAISE(ABORT, 'no room'); END"
        ));
    } else {
        client.execute(&format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no room'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON event_host.events
             FOR EACH ROW WHEN (NEW.id = '{id}' AND NEW.deliver_to IS NOT NULL)
             EXECUTE FUNCTION refuse()"
        ));
    }
}

fn of_several_that_are_discarded_the_others_go_on_and_the_count_is_said(store: Store) {
    let rig = with_dead_letters(store, 3);
    let finished = rig.host(["dlq", "discard", "1", "9", "3"]);
    assert!(finished.stdout.contains("dead letter 3 is discarded"), "{finished:?}");
    let complaint = finished.failed(1);
    assert!(complaint.contains("dead letter 9 not found"), "{complaint}");
    assert!(complaint.contains("error: 2 of 3 dead letters were discarded\n"), "{complaint}");
    assert_eq!(rig.dead_letters().len(), 1);
}

fn a_rate_spreads_a_replay_over_time(store: Store) {
    let rig = with_dead_letters(store, 6);
    let begun = Instant::now();
    let _ = rig.host(["dlq", "replay", "--group", "chaos", "--all", "--rate", "5"]).ok();
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(990), "{took:?}");
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn a_replay_reaches_only_the_group_that_failed_with_the_event_as_it_was(store: Store) {
    let settings = |env: &str| {
        Settings::of([
            Handler::new("failed", "chaos", &["command"]).attempts(1).set(env),
            Handler::new("good", "chaos", &["command"]).attempts(1),
            Handler::new("all", "tally", &["command"]),
        ])
    };
    let rig = Rig::on(store, &settings("allow.env = { BROKEN = \"yes\" }"));
    let mut published = event(
        "command",
        "the id",
        json!([{ "do": "abort-if-env", "name": "BROKEN" }, { "do": "report", "type": "seen" }]),
    );
    for (attribute, value) in [
        ("time", json!("2021-03-04T05:06:07.000008Z")),
        ("source", json!("/somewhere/else")),
        ("subject", json!("it")),
        ("flag", json!(false)),
        ("number", json!(2_147_483_647)),
    ] {
        published[attribute] = value;
    }
    rig.publish([&published]);
    rig.drain();
    assert_eq!(rig.dead_letters().len(), 1);
    let seen = rig.data_of("seen");
    assert_eq!(seen.len(), 1);
    assert_eq!((&seen[0]["group"], &seen[0]["is-replay"]), (&json!("good"), &json!(false)));

    // The handler is mended, and the dead letter goes back.
    rig.configure(&settings(""));
    let cursor = rig.group("failed")["position"].clone();
    let _ = rig.host(["dlq", "replay", "1"]).ok();
    assert_eq!(rig.group("failed")["position"], cursor, "a replay moves no cursor");
    assert_eq!(rig.group("failed")["lag_events"], 1);
    assert_eq!(rig.group("good")["lag_events"], 0);
    rig.drain();

    let seen = rig.data_of("seen");
    assert_eq!(seen.len(), 2);
    let replayed = &seen[1];
    assert_eq!((&replayed["group"], &replayed["is-replay"]), (&json!("failed"), &json!(true)));
    for attribute in ["id", "source", "time", "subject", "type"] {
        assert_eq!(replayed[attribute], published[attribute], "{attribute}");
    }
    assert_eq!(replayed["extensions"], json!({ "flag": false, "number": 2_147_483_647 }));
    assert_eq!(replayed["attempt"], 1);
    let data = "SELECT count(*) FROM (SELECT data, source, time FROM events
                WHERE id = 'the id' GROUP BY data, source, time) AS copies";
    assert_eq!(rig.number(data), 1, "the copy is the same");
    assert_eq!(rig.state("all", "count"), 1);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn what_fails_again_after_a_replay_is_a_new_dead_letter(store: Store) {
    let rig = with_dead_letters(store, 1);
    let _ = rig.host(["dlq", "replay", "1"]).ok();
    rig.drain();
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0]["id"], 2);
    assert_eq!(letters[0]["event"]["id"], "0");
    assert!(rig.host(["dlq", "replay", "1"]).failed(1).contains("dead letter 1 not found"));
}

fn a_payload_can_be_edited_when_it_is_replayed(store: Store) {
    let rig = with_dead_letters(store, 2);
    let good = r#"{"do":"report","type":"seen"}"#;
    let _ = rig.host(["dlq", "replay", "1", "--data", good]).ok();
    rig.write("good.json", good);
    let _ = rig.host(["dlq", "replay", "2", "--data-file", "good.json"]).ok();
    rig.drain();
    let seen = rig.data_of("seen");
    let ids: Vec<&Value> = seen.iter().map(|report| &report["id"]).collect();
    assert_eq!(ids, ["0", "1"]);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn a_dry_run_says_what_it_would_do_and_changes_nothing(store: Store) {
    let rig = with_dead_letters(store, 3);
    let (before, events) = (rig.dead_letters(), "SELECT count(*) FROM events");
    let published = rig.number(events);
    let said = rig.host(["dlq", "replay", "--group", "chaos", "--all", "--dry-run"]).ok();
    assert_eq!(said.matches("would replay dead letter").count(), 3, "{said}");
    let end = "3 of 3 dead letters would be replayed; this is a dry run, and nothing was replayed";
    assert!(said.ends_with(&format!("{end}\n")), "{said}");
    // As the replay would, it goes on after one that is not there.
    let finished = rig.host(["dlq", "replay", "9", "3", "--dry-run"]);
    assert!(finished.stdout.contains("1 of 2 dead letters would be replayed"), "{finished:?}");
    assert!(finished.failed(1).contains("dead letter 9 not found"));
    let said = rig.host(["dlq", "replay", "2", "--dry-run"]).ok();
    assert!(said.contains("would replay dead letter 2"), "{said}");
    assert!(
        rig.host(["dlq", "replay", "9", "--dry-run"]).failed(1).contains("dead letter 9 not found")
    );
    assert_eq!(rig.dead_letters(), before);
    assert_eq!(rig.number(events), published);
}

fn dead_letters_are_listed_replayed_and_discarded_while_the_host_runs(store: Store) {
    let rig = Rig::on(store, &rejecting());
    rig.publish(&[event("nothing", 0, json!(null))]);
    let host = rig.spawn_run();
    host.wait_until_leading("chaos");
    let events: Vec<Value> =
        (0..4).map(|n| with(event("command", n, json!({ "do": "reject" })), "n", n)).collect();
    rig.publish(&events);
    rig.wait_until_handled("chaos", 5);
    assert_eq!(rig.dead_letters().len(), 4);
    let _ = rig.host(["dlq", "replay", "1", "--data", r#"{"do":"count","key":"mended"}"#]).ok();
    rig.wait_until_handled("chaos", 6);
    assert_eq!(rig.state("chaos", "mended"), 1);
    let said = rig.host(["dlq", "discard", "2"]).ok();
    assert!(said.contains("dead letter 2 is discarded"), "{said}");
    let complaint = rig.host(["dlq", "discard", "2"]).failed(1);
    assert!(complaint.contains("dead letter 2 not found"), "{complaint}");
    let left: BTreeSet<i64> =
        rig.dead_letters().iter().map(|letter| letter["id"].as_i64().expect("an id")).collect();
    assert_eq!(left, [3, 4].into());
    host.stop();
}
