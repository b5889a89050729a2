//! What a host does while components are compiled for the first time: it says so, runs
//! what is ready, and ends as it would without.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tests::{
    Handler, PATIENCE, Rig, Running, Settings, Store, event, guest_that_compiles_slowly,
    version_of_guest, wait_for, wait_until,
};

use crate::compiling::{compilers, runs};

tests::on_both_stores! {
    a_group_starts_as_soon_as_its_own_component_is_ready,
    a_component_that_is_refused_late_ends_the_host_and_what_runs_stops_in_order,
    a_host_that_drains_waits_for_what_is_still_compiled,
    what_is_changed_while_it_is_compiled_is_treated_as_in_every_other_change,
}

/// A component that takes minutes, and one that is quick.
fn slow_and_quick() -> Settings {
    Settings::of(both())
}

fn both() -> [Handler; 2] {
    [Handler::of_file("slow", "slow.wasm", &["a"]), Handler::new("quick", "tally", &["a"])]
}

fn rig(store: Store, settings: &Settings, loops: usize) -> Rig {
    let rig = Rig::on(store, settings);
    let mut slow = guest_that_compiles_slowly(loops);
    // Larger than the others, which come first then.
    slow.extend(custom_section_of_a_megabyte());
    rig.write("slow.wasm", slow);
    rig
}

/// The process that compiles for a host.
fn compiler(host: &Running) -> u32 {
    wait_for("a process that compiles", PATIENCE, || {
        compilers(host.pid()).into_iter().find(|pid| {
            let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            // When it starts the host tries whether it can have one.
            arguments.is_ok_and(|arguments| {
                arguments.contains("compile-component") && !arguments.contains("--only-start")
            })
        })
    })
}

/// A command of a host whose compiled code nobody else has.
fn command(rig: &Rig, arguments: &[&str]) -> Command {
    let mut command = rig.command(arguments);
    command.env("XDG_CACHE_HOME", rig.path("cache"));
    command
}

fn run(rig: &Rig) -> Running {
    Running::start(&mut command(rig, &["run", "--log-format", "json"]))
}

fn says(line: &Value, text: &str) -> bool {
    line.to_string().contains(text)
}

/// How far a process is below others: the 19th field of its line, of which the second may
/// have blanks.
fn nice(pid: u32) -> Option<i32> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = line.rsplit_once(") ")?;
    fields.split(' ').nth(16)?.parse().ok()
}

fn a_group_starts_as_soon_as_its_own_component_is_ready(store: Store) {
    let rig = rig(store, &slow_and_quick(), 2_000);
    rig.publish(&[event("a", 1, json!(null))]);
    let mut host = run(&rig);
    rig.wait_until_handled("quick", 1);
    assert_eq!(rig.state("quick", "count"), 1);
    host.wait_for_log("what is compiled", |line| {
        line["message"].as_str().is_some_and(|said| {
            said.starts_with("compiling slow (") && said.ends_with(") for the first time")
        })
    });
    let at_work = compiler(&host);
    // It gives way, because a group runs.
    wait_until("it has a lower priority", PATIENCE, || {
        nice(at_work).zip(nice(host.pid())).is_some_and(|(it, host)| it == (host + 10).min(19))
    });
    let slow = rig.group("slow");
    assert_eq!((&slow["position"], &slow["leader"]), (&json!(0), &Value::Null), "{slow}");
    wait_until("status says so", PATIENCE, || {
        says(&rig.group("slow"), "what it is to run now is being loaded")
    });
    // The stop waits for no compilation.
    host.sigterm();
    assert_eq!(host.wait_within(Duration::from_secs(30)).code(), Some(0), "{:?}", host.log());
    wait_until("the end of the compiler", PATIENCE, || !runs(at_work));
}

fn a_component_that_is_refused_late_ends_the_host_and_what_runs_stops_in_order(store: Store) {
    let bad = Handler::of_file("bad", "bad.wasm", &["a"]);
    let rig = rig(store, &Settings::of(both().into_iter().chain([bad])), 1_000);
    // The largest one, whose turn comes last: a component without anything.
    let more = [custom_section_of_a_megabyte(), custom_section_of_a_megabyte()].concat();
    rig.write("bad.wasm", [b"\0asm\x0d\0\x01\0".to_vec(), more].concat());
    rig.publish(&[event("a", 1, json!(null))]);
    let mut host = run(&rig);
    assert_eq!(host.wait_within(3 * PATIENCE).code(), Some(1), "{:?}", host.log());
    let error = "error: handlers.toml: handler `bad`: bad.wasm: it exports nothing";
    let said = |text: &str| host.log().iter().filter(|line| says(line, text)).count();
    wait_until("the error", PATIENCE, || said(error) == 1);
    assert!(said("leading") >= 1, "something ran by then: {:?}", host.log());
    // What was handled by then counts once.
    rig.configure(&Settings::of([Handler::new("quick", "tally", &["a"])]));
    rig.drain();
    assert_eq!(rig.state("quick", "count"), 1);
}

fn a_host_that_drains_waits_for_what_is_still_compiled(store: Store) {
    let rig = rig(store, &slow_and_quick(), 1_000);
    rig.publish(&[event("a", 1, json!(null)), event("a", 2, json!(null))]);
    let drained = command(&rig, &["run", "--drain"]).output().expect("the host program starts");
    let said = String::from_utf8(drained.stderr).expect("output is UTF-8");
    assert!(drained.status.success(), "{said}");
    assert_eq!(rig.state("quick", "count"), 2);
    assert_eq!(rig.group("slow")["position"], rig.group("quick")["position"], "{said}");
    assert_eq!(rig.group("slow")["lag_events"], 0, "{said}");
}

fn what_is_changed_while_it_is_compiled_is_treated_as_in_every_other_change(store: Store) {
    let rig = rig(store, &slow_and_quick(), 2_000);
    let host = run(&rig);
    host.wait_until_leading("quick");
    let at_work = compiler(&host);
    // What is refused now is no longer what the host was started with.
    rig.write("slow.wasm", "rubbish");
    host.hangup();
    host.wait_for_log("that it is not run", |line| says(line, "does not load, and is not run"));
    wait_until("nobody compiles what is not wanted", PATIENCE, || !runs(at_work));
    rig.write("slow.wasm", version_of_guest(1));
    host.hangup();
    host.wait_until_leading("slow");
    host.stop();
}

/// Before the first group runs there is nothing to give way to.
#[test]
fn the_first_compilation_has_the_hosts_own_priority_and_is_said_in_its_log() {
    let slow = Handler::of_file("slow", "slow.wasm", &["a"]);
    let rig = rig(Store::Sqlite, &Settings::of([slow]), 2_000);
    let mut host = run(&rig);
    let at_work = compiler(&host);
    host.wait_for_log("what is compiled", |line| says(line, "compiling slow ("));
    let (its, hosts) = (nice(at_work), nice(host.pid()));
    assert!(its.is_some() && its == hosts, "{its:?} {hosts:?}");
    host.interrupt();
    assert_eq!(host.wait_within(Duration::from_secs(30)).code(), Some(0), "{:?}", host.log());
}

/// The smaller of two comes first, and what was compiled before waits for none.
#[test]
fn a_small_component_does_not_wait_for_a_large_one() {
    let names = ["slow", "small", "known"];
    let handlers = names.map(|name| Handler::of_file(name, &format!("{name}.wasm"), &["a"]));
    let rig = rig(Store::Sqlite, &Settings::of(handlers), 2_000);
    rig.write("small.wasm", guest_that_compiles_slowly(10));
    // Known, and as large as the slow one.
    let mut known = version_of_guest(1);
    known.extend(custom_section_of_a_megabyte());
    rig.write("known.wasm", known);
    rig.configure(&Settings::of([Handler::of_file("known", "known.wasm", &["a"])]));
    assert!(command(&rig, &["check"]).status().expect("the host program starts").success());
    rig.configure(&Settings::of(
        names.map(|name| Handler::of_file(name, &format!("{name}.wasm"), &["a"])),
    ));
    let host = run(&rig);
    host.wait_until_leading("small");
    host.wait_until_leading("known");
    assert_eq!(compilers(host.pid()).len(), 1, "the large one is still being compiled");
    host.stop();
}

/// A section that means nothing.
fn custom_section_of_a_megabyte() -> Vec<u8> {
    const BYTES: usize = 1 << 20;
    // The kind, the size in three bytes, and the name.
    let mut section = vec![0, 0x82, 0x80, 0x40, 1, b'x'];
    section.resize(4 + 2 + BYTES, 0);
    section
}
