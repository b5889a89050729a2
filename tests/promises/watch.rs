//! `host run --watch`: what it sees, what it does not heed, and what it says.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tests::{
    Handler, PATIENCE, Rig, Running, Settings, Store, event, version_of_guest, wait_until,
};

use crate::swap::version_that_handles;

tests::on_both_stores! {
    what_is_wrong_is_said_once_when_it_begins_and_once_when_it_is_over,
    what_took_effect_is_said_and_what_takes_a_restart_only_while_it_does,
    a_component_is_found_however_its_folder_was_replaced,
    a_component_is_found_behind_links_however_they_are_moved,
    neither_its_own_log_nor_its_database_nor_other_files_wake_it,
}

const TAKES_OVER: &str = "another version takes over";

/// Settings whose handler's component lies there.
fn settings(component: &str) -> Settings {
    Settings::of([Handler::of_file("versioned", component, &["a"])])
}

/// A host that watches, with this component, which is version 1.
fn watching(rig: &Rig) -> Running {
    let host = rig.spawn(&["run", "--watch"]);
    host.wait_until_leading("versioned");
    assert_eq!(version_that_handles(rig, "before"), 1);
    host
}

/// Waits for one more version to take over.
fn taken_over(host: &Running, times: usize) {
    wait_until("it takes over", PATIENCE, || host.count_messages(TAKES_OVER) >= times);
}

fn says(line: &Value, text: &str) -> bool {
    line.to_string().contains(text)
}

fn count(host: &Running, text: &str) -> usize {
    host.log().iter().filter(|line| says(line, text)).count()
}

/// Has the host do things that change files beside the settings.
fn stir(rig: &Rig, from: i64) {
    for n in from..from + 20 {
        rig.publish(&[event("a", format!("stir-{n}"), json!({}))]);
        rig.write("some.log", n.to_string());
    }
    wait_until("all are handled", PATIENCE, || rig.group("versioned")["lag_events"] == 0);
}

fn what_is_wrong_is_said_once_when_it_begins_and_once_when_it_is_over(store: Store) {
    let rig = Rig::on(store, &settings("versioned.wasm"));
    rig.write("versioned.wasm", version_of_guest(1));
    let host = watching(&rig);
    let refused = "does not load, and goes on as before";
    rig.write("versioned.wasm", "rubbish");
    host.wait_for_log("that it does not load", |line| says(line, refused));
    stir(&rig, 0);
    // The same mistake, saved once more.
    let rubbish = File::options().write(true).open(rig.path("versioned.wasm"));
    let touched = rubbish.and_then(|file| file.set_modified(std::time::SystemTime::now()));
    touched.expect("a file can be touched");
    stir(&rig, 20);
    assert_eq!(count(&host, refused), 1, "{:#?}", host.log());
    // Whoever asks is told.
    host.hangup();
    wait_until("it is said again", PATIENCE, || count(&host, refused) == 2);
    rig.write("versioned.wasm", version_of_guest(2));
    taken_over(&host, 1);
    host.wait_for_message("loads again");

    let refused = "the settings are refused";
    let good = fs::read_to_string(rig.path("handlers.toml")).expect("the settings can be read");
    rig.write("handlers.toml", format!("{good}subscribes = [\"b\"]\n"));
    host.wait_for_log("that they are refused", |line| says(line, refused));
    stir(&rig, 40);
    // Another mistake is news.
    rig.write("handlers.toml", format!("{good}tenants = 5\n"));
    wait_until("the other is said", PATIENCE, || count(&host, refused) == 2);
    stir(&rig, 60);
    assert_eq!(count(&host, refused), 2, "{:#?}", host.log());
    rig.write("handlers.toml", good);
    host.wait_for_message("the settings are right again");
    assert_eq!(count(&host, "loads again"), 1);
    host.stop();
}

fn what_took_effect_is_said_and_what_takes_a_restart_only_while_it_does(store: Store) {
    let rig = Rig::on(store, &settings("versioned.wasm"));
    rig.write("versioned.wasm", version_of_guest(1));
    let host = watching(&rig);
    let reloaded = || -> Vec<Value> {
        let log = host.log();
        let lines = log.iter().filter(|line| line["message"] == "reloaded");
        lines.map(|line| line["changed"].clone()).collect()
    };
    let mut all = Vec::new();
    for (top, changed) in [
        ("concurrency = 3", "concurrency"),
        ("retention = \"7d\"", "concurrency, retention"),
        ("retention = \"7d\"\nretention_size = \"5GiB\"", "retention_size"),
        ("", "retention, retention_size"),
    ] {
        let settings = top.lines().fold(settings("versioned.wasm"), Settings::top);
        rig.configure(&settings);
        all.push(json!(changed));
        wait_until("it is said", PATIENCE, || reloaded() == all);
    }
    let restart = "`grace` changed";
    rig.configure(&settings("versioned.wasm").top("grace = \"5s\""));
    host.wait_for_log("that it takes a restart", |line| says(line, restart));
    rig.configure(&settings("versioned.wasm"));
    host.wait_for_message("`grace` is again what this host runs with");
    assert_eq!(count(&host, restart), 1);
    assert_eq!(reloaded(), all);
    host.stop();

    let of_tenant = |concurrency: u32| {
        let handler = Handler::of_file("versioned", "versioned.wasm", &["a"]);
        let tenant = format!("tenant = \"acme\"\n[tenants.acme]\nconcurrency = {concurrency}");
        Settings::of([handler.set(&tenant)])
    };
    let rig = Rig::on(store, &of_tenant(2));
    rig.write("versioned.wasm", version_of_guest(1));
    let host = rig.spawn(&["run", "--watch"]);
    host.wait_until_leading("versioned");
    rig.configure(&of_tenant(3));
    let line = host.wait_for_message("reloaded");
    assert_eq!(line["changed"], "tenants.acme", "{line}");
    host.stop();
}

fn a_component_is_found_however_its_folder_was_replaced(store: Store) {
    let rig = Rig::on(store, &settings("out/dist/versioned.wasm"));
    let dist = rig.path("out/dist");
    let build = |folder: &Path, version| {
        fs::create_dir_all(folder).expect("a folder can be made");
        fs::write(folder.join("versioned.wasm"), version_of_guest(version)).expect("written");
    };
    build(&dist, 1);
    let host = watching(&rig);
    let remove = || fs::remove_dir_all(&dist).expect("a folder can be removed");
    let rename = |from: &str, to: &str| {
        fs::rename(rig.path(from), rig.path(to)).expect("a folder can be renamed");
    };
    // rm -rf dist; mkdir dist
    remove();
    build(&dist, 2);
    taken_over(&host, 1);
    // Once more: the new folder is watched as the old one was.
    rig.write("out/dist/versioned.wasm", version_of_guest(3));
    taken_over(&host, 2);
    // One is built beside it, and they are swapped.
    build(&rig.path("out/next"), 4);
    rename("out/dist", "out/before");
    rename("out/next", "out/dist");
    taken_over(&host, 3);
    rig.write("out/dist/versioned.wasm", version_of_guest(5));
    taken_over(&host, 4);
    // The folder above it, after a while without any.
    rename("out", "gone");
    host.wait_for_log("that it is gone", |line| says(line, "no such file"));
    build(&rig.path("fresh/dist"), 6);
    rename("fresh", "out");
    taken_over(&host, 5);
    assert_eq!(version_that_handles(&rig, "after"), 6);
    // What is written to the folder that was there before is nothing to it.
    rig.write("gone/dist/versioned.wasm", version_of_guest(7));
    rig.write("out/dist/versioned.wasm", version_of_guest(8));
    taken_over(&host, 6);
    assert_eq!(version_that_handles(&rig, "last"), 8);
    host.stop();
}

fn a_component_is_found_behind_links_however_they_are_moved(store: Store) {
    let rig = Rig::on(store, &settings("current/versioned.wasm"));
    let release = |version: u32| {
        let folder = rig.path(&format!("releases/{version}/bin"));
        fs::create_dir_all(&folder).expect("a folder can be made");
        fs::write(folder.join("real.wasm"), version_of_guest(version)).expect("written");
        symlink("bin/real.wasm", folder.join("../versioned.wasm")).expect("a link can be made");
    };
    // As deploy tools do: made beside it, and renamed over it.
    let point_at = |version: u32| {
        symlink(format!("releases/{version}"), rig.path("new")).expect("a link can be made");
        fs::rename(rig.path("new"), rig.path("current")).expect("a link can be renamed");
    };
    (1..=3).for_each(release);
    point_at(1);
    let host = watching(&rig);
    point_at(2);
    taken_over(&host, 1);
    // The target of the last link is written.
    rig.write("releases/2/bin/real.wasm", version_of_guest(4));
    taken_over(&host, 2);
    // ln -sf
    fs::remove_file(rig.path("current")).expect("a link can be removed");
    symlink(rig.path("releases/3"), rig.path("current")).expect("a link can be made");
    taken_over(&host, 3);
    // The link of the component itself.
    rig.write("releases/3/bin/other.wasm", version_of_guest(5));
    fs::remove_file(rig.path("releases/3/versioned.wasm")).expect("a link can be removed");
    symlink("bin/other.wasm", rig.path("releases/3/versioned.wasm")).expect("a link can be made");
    taken_over(&host, 4);
    rig.write("releases/3/bin/other.wasm", version_of_guest(6));
    taken_over(&host, 5);
    assert_eq!(version_that_handles(&rig, "after"), 6);
    host.stop();
}

fn neither_its_own_log_nor_its_database_nor_other_files_wake_it(store: Store) {
    let rig = Rig::on(store, &settings("versioned.wasm"));
    rig.write("versioned.wasm", version_of_guest(1));
    let log = File::create(rig.path("host.log")).expect("a file can be made");
    let mut command = rig.command(["run", "--watch", "--log", "event_host::app=trace,info"]);
    let mut host = Running::start_with_stderr(&mut command, log.into());
    let log = || fs::read_to_string(rig.path("host.log")).expect("the log can be read");
    wait_until("it leads", PATIENCE, || log().contains(": leading"));
    stir(&rig, 0);
    // It sees what it is to see, after all of that.
    rig.write("versioned.wasm", version_of_guest(2));
    wait_until("it takes over", PATIENCE, || log().contains(TAKES_OVER));
    stir(&rig, 20);
    let woken = log().lines().filter(|line| line.contains("changed on disk")).count();
    assert!((1..10).contains(&woken), "{woken} times\n{}", log());
    host.sigterm();
    let status = host.wait_within(Duration::from_secs(30));
    assert!(status.success(), "{status}\n{}", log());
}
