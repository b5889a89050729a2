//! Hot swap: what runs is replaced while events flow (promise 15).

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use tests::{
    Handler, PATIENCE, Rig, Running, Settings, Store, event, version_of_guest, wait_until,
};

tests::on_both_stores! {
    a_component_that_changes_on_disk_takes_over_however_it_was_saved,
    a_component_that_does_not_load_leaves_the_old_one_running,
    a_hangup_reads_the_settings_again_and_touches_only_what_changed,
    settings_that_are_refused_leave_everything_running,
    a_swap_waits_for_the_event_that_is_handled,
    a_new_version_that_fails_everything_trips_the_group_and_the_next_one_frees_it,
    one_event_that_every_version_fails_trips_none_and_rolls_none_back,
    a_new_version_that_fails_everything_is_rolled_back_where_the_settings_say_so,
    a_version_that_is_deployed_reaches_a_running_host_at_once_and_a_rollback_too,
    a_deployed_version_that_fails_everything_is_rolled_back_for_all_hosts,
    a_hundred_swaps_under_load_lose_nothing_and_no_event_sees_two_versions,
}

const TAKES_OVER: &str = "another version takes over";

/// A group whose component is a file in the rig's folder.
fn versioned() -> Settings {
    Settings::of([Handler::of_file("versioned", "versioned.wasm", &["a"]).attempts(3)])
}

/// Starts a host that follows its files, with the first version.
fn watching(store: Store) -> (Rig, Running) {
    let rig = Rig::on(store, &versioned());
    rig.write("versioned.wasm", version_of_guest(1));
    let host = rig.spawn(&["run", "--watch"]);
    host.wait_until_leading("versioned");
    (rig, host)
}

/// Publishes one event and gives the version that handled it.
pub(super) fn version_that_handles(rig: &Rig, id: &str) -> i64 {
    rig.publish(&[event("a", id, json!({}))]);
    let mut version = None;
    wait_until("the event is handled", PATIENCE, || {
        let seen = rig.data_of("seen");
        let mut seen = seen.iter().filter(|seen| seen["id"] == id);
        version = seen.next().map(|seen| seen["version"].as_i64().expect("a number"));
        assert!(seen.next().is_none(), "{id} was handled twice");
        version.is_some()
    });
    version.expect("was found")
}

fn epoch(rig: &Rig, group: &str) -> Value {
    rig.group(group)["epoch"].clone()
}

fn a_component_that_changes_on_disk_takes_over_however_it_was_saved(store: Store) {
    let (rig, host) = watching(store);
    assert_eq!(version_that_handles(&rig, "before"), 1);
    let led = epoch(&rig, "versioned");
    let path = rig.path("versioned.wasm");
    let renamed_over = |version| {
        rig.write("built.wasm", version_of_guest(version));
        fs::rename(rig.path("built.wasm"), &path).expect("a file can be renamed");
    };
    let written_in_place = |version| rig.write("versioned.wasm", version_of_guest(version));
    let saved_by_an_editor = |version| {
        fs::rename(&path, rig.path("versioned.wasm~")).expect("a file can be renamed");
        written_in_place(version);
    };
    let ways: [&dyn Fn(u32); 3] = [&renamed_over, &written_in_place, &saved_by_an_editor];
    for (version, save) in (2..).zip(ways) {
        save(version);
        wait_until("the version takes over", PATIENCE, || {
            host.count_messages(TAKES_OVER) >= version as usize - 1
        });
        assert_eq!(version_that_handles(&rig, &format!("by {version}")), i64::from(version));
    }
    assert_eq!(epoch(&rig, "versioned"), led, "the leadership went on");
    // Touched, with the same bytes.
    rig.write("versioned.wasm", version_of_guest(4));
    host.hangup();
    host.wait_for_message("nothing changed");
    assert_eq!(host.count_messages(TAKES_OVER), 3);
    host.stop();
}

fn a_component_that_does_not_load_leaves_the_old_one_running(store: Store) {
    let (rig, host) = watching(store);
    for rubbish in [b"no wasm at all".to_vec(), version_of_guest(2)[..5_000].to_vec(), Vec::new()] {
        let complaints = || {
            let message = "does not load, and goes on as before";
            host.log().iter().filter(|line| says(line, message)).count()
        };
        let before = complaints();
        rig.write("versioned.wasm", &rubbish);
        wait_until("it is said", PATIENCE, || complaints() > before);
        let id = format!("beside {} bytes", rubbish.len());
        assert_eq!(version_that_handles(&rig, &id), 1);
        let status = rig.host(["status"]).ok();
        assert!(status.contains("versioned: what it is to run now does not load: "), "{status}");
    }
    fs::remove_file(rig.path("versioned.wasm")).expect("a file can be removed");
    host.hangup();
    host.wait_for_log("that it is gone", |line| {
        says(line, "goes on as before") && says(line, "no such file")
    });
    assert_eq!(version_that_handles(&rig, "without a file"), 1);
    rig.write("versioned.wasm", version_of_guest(3));
    host.wait_for_message(TAKES_OVER);
    assert_eq!(version_that_handles(&rig, "after"), 3);
    wait_until("status has nothing to say", PATIENCE, || {
        rig.group("versioned")["remark"].is_null()
    });
    host.stop();
}

/// Whether a line's message has this in it.
fn says(line: &Value, text: &str) -> bool {
    line.to_string().contains(text)
}

fn a_hangup_reads_the_settings_again_and_touches_only_what_changed(store: Store) {
    let group = |name: &str| Handler::new(name, "tally", &["a"]);
    let rig = Rig::on(store, &Settings::of([group("same"), group("changed"), group("removed")]));
    let host = rig.spawn_run();
    for name in ["same", "changed", "removed"] {
        host.wait_until_leading(name);
    }
    rig.publish(&[event("a", 1, json!({}))]);
    for name in ["same", "changed", "removed"] {
        wait_until("the first event is handled", PATIENCE, || rig.state(name, "count") == 1);
    }
    let led = epoch(&rig, "same");
    rig.configure(&Settings::of([
        group("same"),
        Handler::new("changed", "tally", &["a", "b"]).attempts(2),
        group("new"),
    ]));
    host.hangup();
    host.wait_until_leading("new");
    host.wait_for_message("reloaded");
    wait_until("the removed group stops", PATIENCE, || rig.group("removed")["leader"].is_null());
    rig.publish(&[event("a", 2, json!({})), event("b", 3, json!({}))]);
    wait_until("all are handled", PATIENCE, || {
        rig.state("same", "count") == 2
            && rig.state("changed", "count") == 3
            && rig.state("new", "count") == 2
    });
    assert_eq!(rig.state("removed", "count"), 1, "it is no longer run");
    assert_eq!(epoch(&rig, "same"), led, "it never noticed");
    // It goes on where it was.
    rig.configure(&Settings::of([group("same"), group("removed")]));
    host.hangup();
    wait_until("it goes on", PATIENCE, || rig.state("removed", "count") == 2);
    host.stop();
    assert_eq!(rig.state("removed", "count"), 2, "none was repeated");
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn settings_that_are_refused_leave_everything_running(store: Store) {
    let (rig, host) = watching(store);
    let good = fs::read_to_string(rig.path("handlers.toml")).expect("the settings can be read");
    rig.write("handlers.toml", format!("{good}subscribes = [\"b\"]\n"));
    host.wait_for_log("what is wrong", |line| {
        says(line, "everything goes on as before") && says(line, "unknown key `subscribes`")
    });
    assert_eq!(version_that_handles(&rig, "beside"), 1);
    let remark = rig.group("versioned")["remark"].to_string();
    assert!(remark.contains("unknown key `subscribes`"), "{remark}");
    // What else changed meanwhile comes with the settings that are right again.
    rig.write("versioned.wasm", version_of_guest(2));
    rig.write("handlers.toml", good);
    host.wait_for_message(TAKES_OVER);
    assert_eq!(version_that_handles(&rig, "after"), 2);
    host.stop();
}

fn a_swap_waits_for_the_event_that_is_handled(store: Store) {
    let hold = |attempts| Settings::of([Handler::new("hold", "hold", &["a"]).attempts(attempts)]);
    let rig = Rig::on(store, &hold(2));
    let host = rig.spawn_run();
    host.wait_until_leading("hold");
    rig.publish(&[event("a", "held", json!(2_000)), event("a", "next", json!(0))]);
    rig.configure(&hold(3));
    host.hangup();
    host.wait_for_message(TAKES_OVER);
    rig.wait_until_handled("hold", 2);
    host.stop();
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

/// From this version on the test guest fails everything.
pub(super) const BROKEN: u32 = 90_000_000;

fn a_new_version_that_fails_everything_trips_the_group_and_the_next_one_frees_it(store: Store) {
    let patient = Handler::of_file("versioned", "versioned.wasm", &["a"])
        .set("ordering = \"key\"")
        .set("retry = { initial = \"5s\", multiplier = 1 }");
    let rig = Rig::on(store, &Settings::of([patient]));
    rig.write("versioned.wasm", version_of_guest(1));
    let host = rig.spawn(&["run", "--watch"]);
    host.wait_until_leading("versioned");
    assert_eq!(version_that_handles(&rig, "before"), 1);
    rig.write("versioned.wasm", version_of_guest(BROKEN));
    host.wait_for_message(TAKES_OVER);
    rig.publish(&["stuck", "too", "third"].map(|id| event("a", id, json!({}))));
    wait_until("the group trips", PATIENCE, || rig.group("versioned")["state"] == "tripped");
    let group = rig.group("versioned");
    assert_eq!(group["reason"], "the version that took over failed 3 events and handled none");
    assert_eq!(group["failures"], json!({ "retry": 3 }), "one attempt of each: {group}");
    let status = rig.host(["status"]).ok();
    assert!(status.contains("tripped") && status.contains("failed 3 events"), "{status}");
    rig.write("versioned.wasm", version_of_guest(2));
    let handled = "SELECT count(*) FROM events WHERE type = 'seen'";
    wait_until("all is handled", PATIENCE, || rig.number(handled) == 4);
    wait_until("the group runs", PATIENCE, || rig.group("versioned")["state"] == "running");
    host.stop();
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn one_event_that_every_version_fails_trips_none_and_rolls_none_back(store: Store) {
    for ordering in ["total", "key"] {
        let settings = |component: &str| {
            let handler = Handler::of_file("chaos", component, &["a"])
                .set(&format!("ordering = \"{ordering}\""))
                .set("retry = { max_attempts = 100000, initial = \"50ms\", multiplier = 1 }")
                .set("breaker = { on_trip = \"rollback\" }");
            Settings::of([handler])
        };
        let rig = Rig::on(store, &settings(&tests::guest_file("chaos").to_string_lossy()));
        let host = rig.spawn_run();
        host.wait_until_leading("chaos");
        let failed = || rig.group("chaos")["failures"]["retry"].as_i64().unwrap_or(0);
        rig.publish(&[event("a", "poison", json!({ "do": "retry" }))]);
        wait_until("it fails", PATIENCE, || failed() >= 2);
        // Another version, with other bytes, which fails it as well. A custom section.
        let mut next = fs::read(tests::guest_file("chaos")).expect("the guest can be read");
        next.extend(b"\0\x05\x04next");
        rig.write("next.wasm", next);
        rig.configure(&settings("next.wasm"));
        host.hangup();
        host.wait_for_message(TAKES_OVER);
        let before = failed();
        wait_until("it fails again and again", PATIENCE, || failed() >= before + 5);
        assert_eq!(host.count_messages("rolled back"), 0, "{ordering}");
        assert_eq!(rig.group("chaos")["state"], "running", "{ordering}");
        host.stop();
    }
}

fn a_new_version_that_fails_everything_is_rolled_back_where_the_settings_say_so(store: Store) {
    let settings = Handler::of_file("versioned", "versioned.wasm", &["a"])
        .set("retry = { initial = \"5ms\", multiplier = 1 }")
        .set("breaker = { on_trip = \"rollback\", attempts_after_swap = 1 }");
    let rig = Rig::on(store, &Settings::of([settings]));
    rig.write("versioned.wasm", version_of_guest(1));
    let host = rig.spawn(&["run", "--watch"]);
    host.wait_until_leading("versioned");
    assert_eq!(version_that_handles(&rig, "before"), 1);
    rig.write("versioned.wasm", version_of_guest(BROKEN));
    host.wait_for_message(TAKES_OVER);
    assert_eq!(version_that_handles(&rig, "by the old one"), 1);
    host.wait_for_message("rolled back");
    // It stays so when the group begins anew.
    let _ = rig.host(["groups", "seek", "versioned", "--to", "latest"]).ok();
    wait_until("the group begins anew", PATIENCE, || {
        host.log().iter().filter(|line| line["message"] == "leading").count() == 2
    });
    assert_eq!(version_that_handles(&rig, "after a seek"), 1);
    // Two broken ones in a row: the last that worked is the one to go on.
    for broken in [BROKEN + 1, BROKEN + 2] {
        let before = host.count_messages(TAKES_OVER);
        rig.write("versioned.wasm", version_of_guest(broken));
        wait_until("it takes over", PATIENCE, || host.count_messages(TAKES_OVER) > before);
    }
    assert_eq!(version_that_handles(&rig, "by the old one again"), 1);
    rig.write("versioned.wasm", version_of_guest(2));
    wait_until("the mended one takes over", PATIENCE, || host.count_messages(TAKES_OVER) == 4);
    assert_eq!(version_that_handles(&rig, "after"), 2);
    assert_eq!(rig.group("versioned")["state"], "running");
    host.stop();
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

/// Deploys a version of the guest.
pub(super) fn deploy(rig: &Rig, version: u32) {
    rig.write("to-deploy.wasm", version_of_guest(version));
    let _ = rig.host(["deploy", "versioned", "to-deploy.wasm"]).ok();
}

/// A rig whose handler comes from the database, where version 1 is deployed.
fn deployed(store: Store, more: &str) -> Rig {
    let handler = Handler::of_file("versioned", "deployed", &["a"])
        .set("retry = { initial = \"5ms\", multiplier = 1 }")
        .set(more);
    let rig = Rig::on(store, &Settings::of([handler]));
    deploy(&rig, 1);
    rig
}

fn a_version_that_is_deployed_reaches_a_running_host_at_once_and_a_rollback_too(store: Store) {
    let rig = deployed(store, "");
    let host = rig.spawn_run();
    host.wait_until_leading("versioned");
    assert_eq!(version_that_handles(&rig, "first"), 1);
    let led = epoch(&rig, "versioned");
    deploy(&rig, 2);
    let began = Instant::now();
    host.wait_for_message(TAKES_OVER);
    println!("took over {:?} after the deployment", began.elapsed());
    assert_eq!(version_that_handles(&rig, "second"), 2);
    let _ = rig.host(["rollback", "versioned"]).ok();
    wait_until("the first is back", PATIENCE, || host.count_messages(TAKES_OVER) == 2);
    assert_eq!(version_that_handles(&rig, "third"), 1);
    assert_eq!(epoch(&rig, "versioned"), led, "the leadership went on");
    host.stop();
}

fn a_deployed_version_that_fails_everything_is_rolled_back_for_all_hosts(store: Store) {
    let rig = deployed(store, "breaker = { on_trip = \"rollback\", attempts_after_swap = 1 }");
    let host = rig.spawn_run();
    host.wait_until_leading("versioned");
    assert_eq!(version_that_handles(&rig, "first"), 1);
    deploy(&rig, BROKEN);
    host.wait_for_message(TAKES_OVER);
    assert_eq!(version_that_handles(&rig, "second"), 1);
    host.wait_for_message("the deployment is rolled back");
    let states: Vec<Value> = rig
        .json(&["versions", "versioned"])
        .as_array()
        .expect("a list")
        .iter()
        .map(|version| version["state"].clone())
        .collect();
    assert_eq!(states, [json!("rolled-back"), json!("active")]);
    host.stop();
    // A host that starts now knows.
    let host = rig.spawn_run();
    host.wait_until_leading("versioned");
    assert_eq!(version_that_handles(&rig, "third"), 1);
    host.stop();
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

fn a_hundred_swaps_under_load_lose_nothing_and_no_event_sees_two_versions(store: Store) {
    const SWAPS: u32 = 100;
    const EVENTS_A_ROUND: usize = 400;
    let (rig, host) = watching(store);
    let mut publisher = Publisher::default();
    for (version, taken_over) in (2..).zip(1..=SWAPS) {
        publisher.publish(&rig, EVENTS_A_ROUND);
        rig.write("built.wasm", version_of_guest(version));
        fs::rename(rig.path("built.wasm"), rig.path("versioned.wasm"))
            .expect("a file can be renamed");
        // Without waiting for `--watch` to find the end of the changes.
        host.hangup();
        wait_until("the version takes over", PATIENCE, || {
            host.count_messages(TAKES_OVER) >= taken_over as usize
        });
    }
    publisher.publish(&rig, EVENTS_A_ROUND);
    let all = publisher.published;
    wait_until("all are handled", PATIENCE, || rig.state("versioned", "count") >= all as i64);
    host.stop();
    assert_eq!(rig.state("versioned", "count"), all as i64);
    let seen = rig.data_of("seen");
    let ids: BTreeSet<&str> = seen.iter().map(|seen| seen["id"].as_str().expect("an id")).collect();
    assert_eq!((seen.len(), ids.len()), (all, all), "each once, with one version");
    let versions: BTreeSet<u64> =
        seen.iter().map(|seen| seen["version"].as_u64().expect("a version")).collect();
    assert!(versions.len() > SWAPS as usize / 2, "only {} versions ran", versions.len());
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

/// Publishes in processes of its own, one after the other.
#[derive(Default)]
struct Publisher {
    published: usize,
    last: Option<std::process::Child>,
}

impl Publisher {
    /// Begins to publish so many events, once those before are published.
    fn publish(&mut self, rig: &Rig, events: usize) {
        self.wait();
        let ids = self.published..self.published + events;
        let lines: String =
            ids.map(|id| format!("{}\n", event("a", format!("e{id}"), json!({})))).collect();
        rig.write("load.jsonl", lines);
        self.published += events;
        let mut command: Command = rig.command(["publish", "--file", "load.jsonl"]);
        command.stdout(std::process::Stdio::null());
        self.last = Some(command.spawn().expect("the program can be started"));
    }

    fn wait(&mut self) {
        if let Some(mut last) = self.last.take() {
            let status = last.wait().expect("the program can be waited for");
            assert!(status.success(), "{status}");
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some(mut last) = self.last.take() {
            let _ = last.wait();
        }
    }
}
