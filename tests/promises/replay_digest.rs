//! Replays that name the component which is to handle the event: promises 6 and
//! 9, for those who put right what a version got wrong.

use std::collections::BTreeMap;
use std::thread;

use serde_json::{Value, json};
use tests::{Client, Handler, PATIENCE, Rig, Settings, Store, event, version_of_guest, wait_until};

tests::on_both_stores! {
    an_event_goes_to_the_component_that_its_replay_names_and_all_others_to_the_active_one,
    what_fails_again_names_the_component_that_ran_and_the_next_replay_goes_to_the_active_one,
    how_another_component_fails_never_trips_the_group,
    how_another_component_succeeds_never_frees_a_group_that_tripped,
    a_replay_that_names_nothing_the_group_can_run_is_refused_and_changes_nothing,
    a_digest_that_begins_like_others_is_refused_and_they_are_listed,
    another_tenants_component_is_never_run,
    of_two_who_replay_with_a_digest_at_once_one_runs,
    the_choice_survives_a_crash_a_change_of_leader_and_a_restart,
    a_component_that_is_gone_when_its_turn_comes_makes_a_dead_letter_and_holds_up_nothing,
    a_handler_with_a_file_runs_what_was_deployed_under_a_name_of_its_own,
}

/// The first version that fails everything.
const FAILING: u32 = 90_000_000;

/// A group whose component is deployed, and which never trips.
fn handler() -> Handler {
    Handler::of_file("versioned", "deployed", &["a"]).attempts(2).set("breaker.events = 0")
}

/// The same, where a single dead letter trips it.
fn sensitive() -> Settings {
    let handler = Handler::of_file("versioned", "deployed", &["a"]).attempts(2);
    Settings::of([handler.set("breaker = { events = 1, probe_after = \"200ms\" }")])
}

/// Makes a version active and gives its digest.
fn deploy(rig: &Rig, handler: &str, version: u32) -> String {
    rig.write("versioned.wasm", version_of_guest(version));
    let deployed = rig.json(&["deploy", handler, "versioned.wasm"]);
    deployed["digest"].as_str().expect("a digest").to_owned()
}

/// The digests of a version that works and of the active one that does not, and
/// so many dead letters of the latter: events with the ids 1 and up.
fn with_dead_letters(store: Store, count: usize) -> (Rig, String, String) {
    let rig = Rig::on(store, &Settings::of([handler()]));
    let good = deploy(&rig, "versioned", 1);
    let bad = deploy(&rig, "versioned", FAILING);
    let events: Vec<Value> = (1..=count).map(|n| event("a", n, json!(null))).collect();
    rig.publish(&events);
    rig.drain();
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), count);
    assert!(letters.iter().all(|letter| letter["digest"] == bad), "{letters:?}");
    (rig, good, bad)
}

/// Each event that was handled, with the version that did.
fn handled(rig: &Rig) -> BTreeMap<String, i64> {
    let seen = rig.data_of("seen");
    let of = |seen: &Value| {
        let id = seen["id"].as_str().expect("an id").to_owned();
        (id, seen["version"].as_i64().expect("a number"))
    };
    let handled: BTreeMap<String, i64> = seen.iter().map(of).collect();
    assert_eq!(handled.len(), seen.len(), "none was handled twice: {seen:?}");
    handled
}

fn map<const N: usize>(handled: [(&str, i64); N]) -> BTreeMap<String, i64> {
    handled.into_iter().map(|(id, version)| (id.to_owned(), version)).collect()
}

fn an_event_goes_to_the_component_that_its_replay_names_and_all_others_to_the_active_one(
    store: Store,
) {
    let (rig, good, _) = with_dead_letters(store, 3);
    let newest = deploy(&rig, "versioned", FAILING + 1);
    let host = rig.spawn_run();
    host.wait_until_leading("versioned");
    // The version that failed is followed by one that fails as well.
    let _ = rig.host(["dlq", "replay", "1"]).ok();
    rig.publish(&[event("a", "other", json!(null))]);
    wait_until("both fail", PATIENCE, || rig.dead_letters().len() == 4);
    let letters = rig.dead_letters();
    assert!(letters[2..].iter().all(|letter| letter["digest"] == newest), "{letters:?}");

    // The first digits will do.
    let again = letters[2]["id"].to_string();
    let said = rig.host(["dlq", "replay", &again, "--digest", &good[7..20]]).ok();
    assert!(said.contains(&format!(", with {good}")), "{said}");
    wait_until("it is handled", PATIENCE, || handled(&rig) == map([("1", 1)]));
    let replayed = rig.json(&["dlq", "replay", "2", "--digest", &good]);
    assert_eq!(replayed[0]["digest"], good);
    wait_until("it is handled", PATIENCE, || handled(&rig) == map([("1", 1), ("2", 1)]));
    assert_eq!(rig.state("versioned", "count"), 2);

    // All others, also beside them, stay with the version that is active.
    rig.publish(&[event("a", "between", json!(null))]);
    let all = ["dlq", "replay", "--group", "versioned", "--all", "--digest", &good];
    let would = rig.host(all.iter().chain(&["--dry-run"])).ok();
    assert!(would.matches(&format!(", with {good}")).count() >= 2, "{would}");
    wait_until("the other fails", PATIENCE, || {
        rig.dead_letters().iter().any(|letter| letter["event"]["id"] == "between")
    });
    let listed = rig.json(&[&all[..], &["--dry-run"]].concat());
    assert!(listed.as_array().expect("a list").iter().all(|one| one["replay_digest"] == good));
    assert_eq!(listed.as_array().map(Vec::len), Some(3));
    let said = rig.host(all).ok();
    assert!(said.contains(&format!("3 dead letters of group versioned replayed, with {good}")));
    rig.publish(&[event("a", "last", json!(null))]);
    wait_until("all but the last are handled", PATIENCE, || handled(&rig).len() == 5);
    wait_until("the last fails", PATIENCE, || rig.dead_letters().len() == 1);
    let one = |id| (id, 1);
    let expected = map(["1", "2", "3", "other", "between"].map(one));
    assert_eq!(handled(&rig), expected);
    let last = &rig.dead_letters()[0];
    assert_eq!((&last["event"]["id"], &last["digest"]), (&json!("last"), &json!(newest)));
    assert_eq!(rig.json(&["versions", "versioned"])[0]["state"], "active");
    host.stop();
}

fn what_fails_again_names_the_component_that_ran_and_the_next_replay_goes_to_the_active_one(
    store: Store,
) {
    let (rig, _, bad) = with_dead_letters(store, 1);
    let newest = deploy(&rig, "versioned", 3);
    let _ = rig.host(["dlq", "replay", "1", "--digest", &bad]).ok();
    rig.drain();
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0]["digest"], bad);
    assert_eq!(letters[0]["attempts"], 2, "it has the attempts of the handler's settings");
    let text = letters[0]["failure"]["text"].as_str().expect("a text");
    assert_eq!(text, format!("version {FAILING} fails everything"));

    let _ = rig.host(["dlq", "replay", "2"]).ok();
    rig.drain();
    assert_eq!(handled(&rig), map([("1", 3)]));
    // To name the one that is active is as good as to name none.
    assert_eq!(rig.json(&["versions", "versioned"])[0]["digest"], newest);
}

fn how_another_component_fails_never_trips_the_group(store: Store) {
    const LETTERS: usize = 5;
    let (rig, _, bad) = with_dead_letters(store, LETTERS);
    deploy(&rig, "versioned", 3);
    rig.configure(&sensitive());
    let all = ["dlq", "replay", "--group", "versioned", "--all", "--digest", &bad];
    let _ = rig.host(all).ok();
    rig.publish(&[event("a", "after", json!(null))]);
    rig.drain();
    assert_eq!(handled(&rig), map([("after", 3)]));
    assert_eq!(rig.dead_letters().len(), LETTERS);
    assert_eq!(rig.group("versioned")["state"], "running");
}

fn how_another_component_succeeds_never_frees_a_group_that_tripped(store: Store) {
    let rig = Rig::on(store, &sensitive());
    let good = deploy(&rig, "versioned", 1);
    deploy(&rig, "versioned", FAILING);
    let host = rig.spawn_run();
    host.wait_until_leading("versioned");
    rig.publish(&[event("a", 1, json!(null))]);
    wait_until("it trips", PATIENCE, || rig.group("versioned")["state"] == "tripped");
    let _ = rig.host(["dlq", "replay", "1", "--digest", &good]).ok();
    rig.publish(&[event("a", "probe", json!(null))]);
    wait_until("the one succeeds", PATIENCE, || handled(&rig) == map([("1", 1)]));
    wait_until("the other fails", PATIENCE, || rig.dead_letters().len() == 1);
    assert_eq!(rig.group("versioned")["state"], "tripped");
    assert_eq!(host.count_messages("a probe succeeded: the group goes on"), 0);
    host.stop();
}

fn a_replay_that_names_nothing_the_group_can_run_is_refused_and_changes_nothing(store: Store) {
    let (rig, good, bad) = with_dead_letters(store, 2);
    let (letters, events) = (rig.dead_letters(), "SELECT count(*) FROM events");
    let published = rig.number(events);
    let never = format!("sha256:{}", "0".repeat(64));
    let refused = |digest: &str, code: i32, parts: &[&str]| {
        for which in [&["1", "2"][..], &["--group", "versioned", "--all"]] {
            for dry in [&[][..], &["--dry-run"]] {
                let arguments = [&["dlq", "replay", "--digest", digest], which, dry].concat();
                let complaint = rig.host(&arguments).failed(code);
                for part in parts {
                    assert!(complaint.contains(part), "`{part}` is missing in: {complaint}");
                }
                assert_eq!(rig.dead_letters(), letters);
                assert_eq!(rig.number(events), published);
            }
        }
    };
    refused(&never, 1, &["the database has no component", &never, "`host deploy NAME FILE`"]);
    refused("what it was", 2, &["a digest is `sha256:` and 64 of the digits"]);
    let pinned = handler().set(&format!("digest = \"{bad}\""));
    rig.configure(&Settings::of([pinned]));
    refused(&good, 1, &["handler `versioned` cannot run", "pins its component to", &bad]);
    rig.configure(&Settings::of([handler().set("limits.memory = \"64KiB\"")]));
    refused(&good, 1, &["handler `versioned` cannot run", "limits.memory is 64.0 KiB"]);

    // Who cannot know the handler's settings is told so, and the rest is done.
    rig.configure(&Settings::of([Handler::new("other", "tally", &["b"])]));
    let finished = rig.host(["dlq", "replay", "1", "--digest", &good]);
    assert!(finished.stderr.contains("has no handler in group `versioned`"), "{finished:?}");
    let _ = finished.ok();
    // And a host that cannot run it says that in a dead letter.
    rig.configure(&Settings::of([
        Handler::of_file("versioned", "pinned.wasm", &["a"]).set(&format!("digest = \"{bad}\""))
    ]));
    rig.write("pinned.wasm", version_of_guest(FAILING));
    rig.drain();
    let letters = rig.dead_letters();
    let again = letters.iter().find(|letter| letter["event"]["id"] == "1").expect("dead again");
    assert_eq!((&again["digest"], &again["attempts"]), (&json!(good), &json!(1)));
    assert_eq!(again["failure"]["kind"], "not-loaded");
    let text = again["failure"]["text"].as_str().expect("a text");
    assert!(text.contains("pins its component to"), "{text}");
}

fn a_digest_that_begins_like_others_is_refused_and_they_are_listed(store: Store) {
    let (rig, good, bad) = with_dead_letters(store, 1);
    // Of 17 digests two begin with the same digit.
    let mut digests = vec![good.clone(), bad];
    let (one, other) = (2..=16)
        .find_map(|version| {
            let new = deploy(&rig, "others", version);
            let alike = digests.iter().find(|digest| digest[7..8] == new[7..8]).cloned();
            digests.push(new.clone());
            Some((alike?, new))
        })
        .expect("there are 16 digits");
    let digit = &one[7..8];
    let complaint = rig.host(["dlq", "replay", "1", "--digest", digit]).failed(1);
    for part in [&format!("sha256:{digit} may be"), &one, &other, "give more digits"] {
        assert!(complaint.contains(part), "`{part}` is missing in: {complaint}");
    }
    assert_eq!(rig.dead_letters().len(), 1);
    let _ = rig.host(["dlq", "replay", "1", "--digest", &good[..30]]).ok();
    rig.drain();
    assert_eq!(handled(&rig), map([("1", 1)]));
}

fn another_tenants_component_is_never_run(store: Store) {
    let of = |tenant: &str| {
        let tenant = format!("tenant = \"{tenant}\"");
        Settings::of([handler().set(&tenant)])
    };
    let rig = Rig::on(store, &of("acme"));
    deploy(&rig, "versioned", FAILING);
    let theirs = ["publish", "--tenant", "acme", "--type", "a", "--id", "1"];
    let _ = rig.host(theirs).ok();
    rig.drain();
    assert_eq!(rig.dead_letters().len(), 1);

    rig.write("versioned.wasm", version_of_guest(1));
    let other = ["deploy", "fix", "versioned.wasm", "--tenant", "other"];
    let good = rig.json(&other)["digest"].as_str().expect("a digest").to_owned();
    for digest in [&good[..], &good[..20]] {
        let complaint = rig.host(["dlq", "replay", "1", "--digest", digest]).failed(1);
        assert!(complaint.contains("the database has no component"), "{complaint}");
        assert!(!complaint.contains("other"), "{complaint}");
    }
    // Nor if somebody writes it into the log past all checks.
    Client::new(&rig).execute(&format!(
        "INSERT INTO events (tenant, type, id, deliver_to, digest)
         VALUES ('acme', 'a', 'past', 'versioned', '{good}')"
    ));
    rig.drain();
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 2, "{letters:?}");
    assert_eq!(letters[1]["failure"]["kind"], "not-loaded");
    assert_eq!(handled(&rig), map([]));

    // The same file, deployed for the tenant itself.
    let own = ["deploy", "fix", "versioned.wasm", "--tenant", "acme"];
    assert_eq!(rig.json(&own)["digest"], good);
    let _ = rig.host(["dlq", "replay", "1", "2", "--digest", &good]).ok();
    rig.drain();
    assert_eq!(handled(&rig), map([("1", 1), ("past", 1)]));
}

fn of_two_who_replay_with_a_digest_at_once_one_runs(store: Store) {
    const ROUNDS: usize = 6;
    let (rig, good, _) = with_dead_letters(store, ROUNDS);
    for n in 1..=ROUNDS {
        let id = n.to_string();
        // Every other time one of them names none.
        let mut own = vec!["dlq", "replay", &id];
        if n % 2 == 1 {
            own.extend(["--digest", &good]);
        }
        let mut both = thread::scope(|scope| {
            let other = scope.spawn(|| rig.host(["dlq", "replay", &id, "--digest", &good]));
            let one = rig.host(own);
            [one, other.join().expect("the command ends")]
        });
        both.sort_by_key(|finished| finished.code);
        let [winner, loser] = both;
        let _ = winner.ok();
        let complaint = loser.failed(1);
        assert!(complaint.contains(&format!("dead letter {id} not found")), "{complaint}");
    }
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    let copies = "SELECT count(*), count(DISTINCT id) FROM events WHERE deliver_to IS NOT NULL";
    assert_eq!(rig.numbers(copies), [ROUNDS as i64, ROUNDS as i64]);
    rig.drain();
    // Those that went to the active version are dead again; no other is.
    let dead = rig.dead_letters().len();
    assert!(dead <= ROUNDS / 2, "{dead}");
    assert_eq!(handled(&rig).len(), ROUNDS - dead);
}

fn the_choice_survives_a_crash_a_change_of_leader_and_a_restart(store: Store) {
    let (rig, good, bad) = with_dead_letters(store, 1);
    deploy(&rig, "versioned", 3);
    let slow = "retry = { max_attempts = 3, initial = \"1s\", multiplier = 1, jitter = 0 }";
    let patient = Handler::of_file("versioned", "deployed", &["a"]).set(slow);
    rig.configure(&Settings::of([patient]));
    let leader = rig.spawn_run();
    leader.wait_until_leading("versioned");
    let standby = rig.spawn_run();
    standby.wait_for_message("another host leads; standing by");
    let _ = rig.host(["dlq", "replay", "1", "--digest", &bad]).ok();
    wait_until("it waits for an attempt", PATIENCE, || {
        rig.group("versioned")["retries_pending"] == 1
    });
    leader.kill9();
    standby.wait_until_leading("versioned");
    wait_until("it is dead again", PATIENCE, || rig.dead_letters().len() == 1);
    let letter = &rig.dead_letters()[0];
    assert_eq!((&letter["digest"], &letter["attempts"]), (&json!(bad), &json!(3)));
    standby.stop();

    let id = letter["id"].to_string();
    let _ = rig.host(["dlq", "replay", &id, "--digest", &good]).ok();
    deploy(&rig, "versioned", 4);
    let _ = rig.drain();
    assert_eq!(handled(&rig), map([("1", 1)]));
}

fn a_component_that_is_gone_when_its_turn_comes_makes_a_dead_letter_and_holds_up_nothing(
    store: Store,
) {
    let (rig, good, _) = with_dead_letters(store, 2);
    deploy(&rig, "versioned", 3);
    let _ = rig.host(["dlq", "replay", "1", "2", "--digest", &good]).ok();
    rig.publish(&[event("a", "next", json!(null))]);
    Client::new(&rig).execute(&format!("DELETE FROM deployments WHERE digest = '{good}'"));
    rig.drain();
    assert_eq!(handled(&rig), map([("next", 3)]));
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 2);
    for letter in &letters {
        assert_eq!((&letter["digest"], &letter["attempts"]), (&json!(good), &json!(1)));
        assert_eq!(letter["failure"]["kind"], "not-loaded");
        let text = letter["failure"]["text"].as_str().expect("a text");
        assert!(text.contains(&good) && text.contains("`host deploy`"), "{text}");
    }
    assert_eq!(rig.group("versioned")["failures"]["not-loaded"], 2);
    // Put back, it runs.
    rig.write("versioned.wasm", version_of_guest(1));
    let _ = rig.host(["deploy", "fix", "versioned.wasm"]).ok();
    let all = ["dlq", "replay", "--group", "versioned", "--all", "--digest", &good];
    let _ = rig.host(all).ok();
    rig.drain();
    assert_eq!(handled(&rig), map([("1", 1), ("2", 1), ("next", 3)]));
}

fn a_handler_with_a_file_runs_what_was_deployed_under_a_name_of_its_own(store: Store) {
    let file = Handler::of_file("file", "file.wasm", &["a"]).attempts(1).set("breaker.events = 0");
    let rig = Rig::on(store, &Settings::of([file, Handler::new("t", "tally", &["a"])]));
    rig.write("file.wasm", version_of_guest(FAILING));
    rig.publish(&[event("a", 1, json!(null))]);
    rig.drain();
    let failed = rig.dead_letters()[0]["digest"].as_str().expect("a digest").to_owned();
    // What the host has as a file alone, another host may not have.
    let complaint = rig.host(["dlq", "replay", "1", "--digest", &failed]).failed(1);
    assert!(complaint.contains("host deploy NAME FILE"), "{complaint}");
    let fix = deploy(&rig, "fix-of-file", 7);
    let _ = rig.host(["dlq", "replay", "1", "--digest", &fix]).ok();
    rig.publish(&[event("a", 2, json!(null))]);
    rig.drain();
    assert_eq!(handled(&rig), map([("1", 7)]));
    assert_eq!(rig.dead_letters()[0]["event"]["id"], "2", "its file is as it was");
    assert_eq!(rig.state("t", "count"), 2, "a replay reaches its group alone");
}
