//! Replay while sessions hold what it needs (promise 9).

use std::thread;

use serde_json::{Value, json};
use tests::{Client, Finished, Handler, PATIENCE, Rig, Settings, Store, event, wait_until};

/// A rig whose group `chaos` gave up on so many events. No host runs.
fn with_dead_letters(count: i64) -> Rig {
    let rig = Rig::on(
        Store::Postgres,
        &Settings::of([Handler::new("chaos", "chaos", &["command"]).attempts(1)]),
    );
    let events: Vec<Value> =
        (0..count).map(|n| event("command", n, json!({ "do": "reject" }))).collect();
    rig.publish(&events);
    rig.drain();
    assert_eq!(rig.number("SELECT count(*) FROM dead_letters"), count);
    rig
}

/// A session that holds the row of a dead letter until it ends its transaction.
fn holder(rig: &Rig, id: i64) -> Client {
    let mut client = Client::new(rig);
    client.execute("BEGIN");
    client.execute(&format!("SELECT FROM dead_letters WHERE id = {id} FOR UPDATE"));
    client
}

/// A query of the sessions of hosts that wait for a lock.
fn waiting(what: &str) -> String {
    format!(
        "SELECT {what} FROM pg_stat_activity WHERE datname = current_database()
         AND application_name = 'event-host' AND wait_event_type = 'Lock'"
    )
}

/// Waits until so many sessions of hosts wait for a row.
fn wait_for_waiting(rig: &Rig, sessions: i64) {
    wait_until(&format!("{sessions} sessions wait"), PATIENCE, || {
        rig.number(&waiting("count(*)")) == sessions
    });
}

/// How often each dead letter is dead, and how often it is queued again.
fn dead_and_queued(rig: &Rig) -> [i64; 2] {
    rig.numbers(
        "SELECT (SELECT count(*) FROM dead_letters),
                (SELECT count(*) FROM events WHERE deliver_to = 'chaos')",
    )
}

/// Runs two commands at once, does something once both wait for a lock, and gives
/// how they ended, the one that did well first.
fn both_waiting(rig: &Rig, commands: [&[&str]; 2], then: impl FnOnce()) -> [Finished; 2] {
    let mut ends = thread::scope(|scope| {
        let running = commands.map(|arguments| scope.spawn(move || rig.host(arguments)));
        wait_for_waiting(rig, 2);
        then();
        running.map(|command| command.join().expect("the command ends"))
    });
    ends.sort_by_key(|finished| finished.code);
    ends
}

#[test]
fn of_two_replays_that_wait_for_the_same_row_one_replays_it_and_one_does_not_find_it() {
    let rig = with_dead_letters(1);
    let mut holder = holder(&rig, 1);
    let replay: &[&str] = &["dlq", "replay", "1"];
    let [winner, loser] = both_waiting(&rig, [replay, replay], || holder.execute("ROLLBACK"));
    assert!(winner.ok().contains("dead letter 1 goes back to group chaos"));
    let complaint = loser.failed(1);
    assert!(complaint.contains("dead letter 1 not found"), "{complaint}");
    assert_eq!(dead_and_queued(&rig), [0, 1]);
}

#[test]
fn replays_that_wait_for_a_row_that_is_then_gone_do_not_find_it() {
    let rig = with_dead_letters(1);
    let mut holder = holder(&rig, 1);
    let commands: [&[&str]; 2] = [&["dlq", "replay", "1"], &["dlq", "discard", "1"]];
    let ends = both_waiting(&rig, commands, || {
        holder.execute("DELETE FROM dead_letters WHERE id = 1");
        holder.execute("COMMIT");
    });
    for end in ends {
        let complaint = end.failed(1);
        assert!(complaint.contains("dead letter 1 not found"), "{complaint}");
    }
    assert_eq!(dead_and_queued(&rig), [0, 0]);
}

#[test]
fn a_replay_of_all_skips_what_somebody_else_holds() {
    let rig = with_dead_letters(6);
    let mut holder = holder(&rig, 3);
    let replayed = rig.json(&["dlq", "replay", "--group", "chaos", "--all"]);
    let ids: Vec<&Value> =
        replayed.as_array().expect("a list").iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, [1, 2, 4, 5, 6]);
    assert_eq!(dead_and_queued(&rig), [1, 5]);
    holder.execute("ROLLBACK");
    let _ = rig.host(["dlq", "replay", "--group", "chaos", "--all"]).ok();
    assert_eq!(dead_and_queued(&rig), [0, 6]);
}

#[test]
fn a_replay_that_is_killed_while_it_waits_leaves_the_letter_dead() {
    let rig = with_dead_letters(1);
    let mut holder = holder(&rig, 1);
    let replay = rig.spawn(&["dlq", "replay", "1"]);
    wait_for_waiting(&rig, 1);
    replay.kill9();
    // The server finds out that nobody waits any more.
    wait_for_waiting(&rig, 0);
    holder.execute("ROLLBACK");
    assert_eq!(dead_and_queued(&rig), [1, 0]);
    let _ = rig.host(["dlq", "replay", "1"]).ok();
    assert_eq!(dead_and_queued(&rig), [0, 1]);
}

/// The copy and the deletion are one transaction: whatever ends it in between
/// leaves it dead.
#[test]
fn a_replay_whose_session_ends_before_it_commits_leaves_the_letter_dead() {
    let rig = with_dead_letters(1);
    // Holds up the deletion, wherever it stands in the transaction, and the copy.
    let mut holder = Client::new(&rig);
    holder.execute("BEGIN");
    holder.execute("LOCK TABLE events IN EXCLUSIVE MODE");
    let mut replay = rig.spawn(&["dlq", "replay", "1"]);
    wait_for_waiting(&rig, 1);
    let session = rig.number(&waiting("pid::bigint"));
    holder.execute(&format!("SELECT pg_terminate_backend({session})"));
    assert_eq!(replay.wait().code(), Some(1), "{:#?}", replay.log());
    holder.execute("ROLLBACK");
    assert_eq!(dead_and_queued(&rig), [1, 0]);
    let _ = rig.host(["dlq", "replay", "1"]).ok();
    assert_eq!(dead_and_queued(&rig), [0, 1]);
}
