//! `host build`, and `host run --watch` for handlers that say how they are built.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tests::{
    Handler, PATIENCE, Rig, Running, Settings, Store, event, version_of_guest, wait_until,
};

use crate::swap::version_that_handles;

tests::on_both_stores! {
    what_is_saved_is_built_and_takes_over_and_a_build_that_fails_changes_nothing,
    a_newer_change_ends_the_build_that_is_under_way,
    events_that_come_while_a_handler_is_built_are_neither_lost_nor_handled_twice,
}

/// A compiler: what is in `source.wasm` becomes the component. It waits where there is a
/// `gate`, fails where there is no source, and says who it is.
const COMPILER: &str = r#"
echo $$ >> pids
test -e source.wasm || { echo "error: source.wasm:1: there is no source" >&2; exit 3; }
if test -p gate; then read -r go < gate; fi
cp source.wasm "$HOST_OUTPUT"
"#;

/// A handler that this compiler builds, again for each change of its source.
fn built(more: &str) -> Settings {
    let build = format!(
        "build = {{ command = [\"sh\", \"compile.sh\"], dir = \"versioned\", watch = [\"versioned/source.wasm\"]{more} }}"
    );
    Settings::of([Handler::of_file("versioned", "versioned.wasm", &["a"]).set(&build)])
}

fn project(rig: &Rig) -> PathBuf {
    let folder = rig.path("versioned");
    fs::create_dir_all(&folder).expect("a folder can be made");
    rig.write("versioned/compile.sh", COMPILER);
    folder
}

fn save(rig: &Rig, version: u32) {
    rig.write("versioned/source.wasm", version_of_guest(version));
}

fn component(rig: &Rig) -> Vec<u8> {
    fs::read(rig.path("versioned.wasm")).expect("the component can be read")
}

/// Has the compiler wait.
fn close_gate(rig: &Rig) {
    let made = Command::new("mkfifo").arg(rig.path("versioned/gate")).status();
    assert!(made.expect("mkfifo runs").success());
}

/// Lets the compiler that waits go on.
fn open_gate(rig: &Rig) {
    let gate = rig.path("versioned/gate");
    // It is open for writing once the compiler reads.
    fs::write(&gate, "go\n").expect("the gate can be written");
    fs::remove_file(gate).expect("the gate can be removed");
}

/// The processes of the compiler so far.
fn compilers(rig: &Rig) -> Vec<String> {
    let pids = fs::read_to_string(rig.path("versioned/pids")).unwrap_or_default();
    pids.lines().map(str::to_owned).collect()
}

fn is_running(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = state.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
    state.is_some_and(|state| state != 'Z')
}

fn says(line: &Value, text: &str) -> bool {
    line.to_string().contains(text)
}

fn count(host: &Running, text: &str) -> usize {
    host.log().iter().filter(|line| says(line, text)).count()
}

fn wait_for_versions(host: &Running, times: usize) {
    let taken = || host.count_messages("another version takes over");
    wait_until("it takes over", PATIENCE, || taken() >= times);
}

#[test]
fn a_tool_that_is_missing_is_named_with_the_line_that_installs_it() {
    let handler = Handler::of_file("orders", "orders/orders.wasm", &["a"]);
    let rig = Rig::new(&Settings::of([handler.set("build = { lang = \"python\" }")]));
    fs::create_dir(rig.path("orders")).expect("a folder can be made");
    rig.write("orders/app.py", "");
    rig.write("orders/orders.wasm", "old");
    let build = || {
        let mut command = rig.command(["build"]);
        command.env("PATH", "/nowhere");
        let output = command.output().expect("the host runs");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let said = build();
    let orders = rig.path("orders");
    let expected = format!(
        "error: orders (python) needs componentize-py 0.25, which is not on the PATH nor in {0}/.venv or {0}/node_modules; install it with: python3 -m venv .venv && .venv/bin/pip install componentize-py==0.25.1\n",
        orders.display()
    );
    assert!(said.ends_with(&expected), "{said}");
    assert_eq!(fs::read(orders.join("orders.wasm")).expect("it is there"), b"old");
    // What is built with git would not take what was made on the way.
    assert_eq!(fs::read_to_string(orders.join(".host/.gitignore")).expect("it is there"), "*\n");
    // The SDK is written once, and never again.
    let record = orders.join("event-host/sdk.toml");
    fs::write(&record, "version = \"0.0.9\"\ndigest = \"sha256:1\"\n").expect("written");
    let said = build();
    assert!(said.contains("is the SDK of another host, of version 0.0.9"), "{said}");
    assert!(fs::read_to_string(&record).expect("it is there").contains("0.0.9"));
}

#[test]
fn a_build_that_fails_or_makes_what_does_not_load_leaves_the_old_component() {
    let rig = Rig::new(&built(""));
    project(&rig);
    save(&rig, 1);
    let said = rig.host(["build"]).ok();
    assert!(said.starts_with("versioned  command  ") && said.contains("  built in "), "{said}");
    assert_eq!(component(&rig), version_of_guest(1));

    let fails = |script: &str, why: &str| {
        rig.write("versioned/compile.sh", script);
        let said = rig.host(["build", "versioned"]).failed(1);
        assert!(said.contains(why), "{said}");
        assert_eq!(component(&rig), version_of_guest(1), "{script}");
    };
    fails(
        "echo half > \"$HOST_OUTPUT\"; echo 'error: no such type' >&2; exit 3",
        "error: no such type\nerror: versioned (command) is not built: `sh` ended with exit code 3\n",
    );
    fails(
        "echo rubbish > \"$HOST_OUTPUT\"",
        "what was built does not load, and the old file stays:",
    );
    fails("rm \"$HOST_OUTPUT\"", "versioned.wasm is not there after the build");
    fails("kill -9 $$", "`sh` was ended by signal 9");

    // Where the command leaves it elsewhere, what `component` names is not touched before.
    rig.configure(&built(", output = \"versioned/out.wasm\""));
    rig.write("versioned/compile.sh", "echo rubbish > \"$HOST_OUTPUT\"");
    let said = rig.host(["build"]).failed(1);
    assert!(said.contains("out.wasm"), "{said}");
    assert_eq!(component(&rig), version_of_guest(1));
    save(&rig, 2);
    rig.write("versioned/compile.sh", COMPILER);
    let _ = rig.host(["build"]).ok();
    assert_eq!(component(&rig), version_of_guest(2));
}

#[test]
fn handlers_are_chosen_by_name_and_what_is_wrong_with_the_choice_is_said() {
    let plain = Handler::of_file("plain", "plain.wasm", &["a"]);
    let with = Handler::of_file("orders", "orders.wasm", &["a"])
        .set("build = { command = [\"no-such-program\"] }");
    let rig = Rig::new(&Settings::of([plain.clone(), with]));
    for (names, code, why) in [
        (&["order"][..], 2, "has no handler `order`; is `orders` meant?"),
        (&["plain"], 2, "does not say how the handler `plain` is built: add a table"),
        (&["orders"], 1, "cannot start `no-such-program`: there is no such program"),
    ] {
        let said = rig.host(["build"].iter().chain(names)).failed(code);
        assert!(said.contains(why), "{said}");
    }
    rig.configure(&Settings::of([plain]));
    let said = rig.host(["build"]).failed(2);
    assert!(said.contains("no handler says how it is built"), "{said}");
    for (build, why) in [
        ("{ lang = \"pyhton\" }", "is python meant?"),
        ("{ lang = \"c\", command = [\"make\"] }", "are both set"),
        ("{ dir = \"x\" }", "nothing says how to build: write `lang"),
        ("{ command = [] }", "`command` names no program"),
        ("{ command = [\"make\"], watch = [\"../x\"] }", "below the folder of this file"),
        ("{ lang = \"c\", output = \"x.wasm\" }", "`output` goes with `command`"),
        ("{ language = \"c\" }", "did you mean `lang`?"),
    ] {
        let handler = Handler::of_file("a", "a.wasm", &["a"]).set(&format!("build = {build}"));
        rig.configure(&Settings::of([handler]));
        let said = rig.host(["check"]).failed(1);
        assert!(said.contains(why), "{build}: {said}");
    }
    let deployed = Handler::of_file("a", "deployed", &["a"]).set("build = { lang = \"c\" }");
    rig.configure(&Settings::of([deployed]));
    assert!(rig.host(["check"]).failed(1).contains("give it to `host deploy`"));
}

#[test]
fn the_doctor_says_what_each_language_needs() {
    let rig = Rig::new(&built(""));
    let mut command = rig.command(["build", "--doctor"]);
    let output = command.env("PATH", "/nowhere").output().expect("the host runs");
    let said = String::from_utf8(output.stdout).expect("text");
    for language in ["rust", "js", "ts", "python", "go", "c", "cpp", "zig", "wat"] {
        let of_language = |line: &str| line.split_whitespace().next() == Some(language);
        assert!(said.lines().any(of_language), "{language}: {said}");
    }
    assert!(output.status.success() && said.contains("missing"), "{said}");
}

#[test]
fn a_component_that_is_not_there_is_built_by_a_host_that_watches_and_said_by_others() {
    let rig = Rig::new(&built(""));
    project(&rig);
    save(&rig, 1);
    let said = rig.host(["run", "--drain"]).failed(1);
    assert!(said.contains("no such file: `host build versioned` makes it"), "{said}");
    let host = rig.spawn(&["run", "--watch"]);
    host.wait_until_leading("versioned");
    assert_eq!(version_that_handles(&rig, "first"), 1);
    assert_eq!(count(&host, "is not there yet: building it"), 1);
    host.stop();
    // What was saved while no host ran.
    save(&rig, 2);
    let host = rig.spawn(&["run", "--watch"]);
    wait_for_versions(&host, 1);
    assert_eq!(version_that_handles(&rig, "second"), 2);
    host.stop();
}

#[test]
fn sources_are_followed_once_the_settings_name_them() {
    let plain = Handler::of_file("versioned", "versioned.wasm", &["a"]);
    let rig = Rig::new(&Settings::of([plain]));
    project(&rig);
    rig.write("versioned.wasm", version_of_guest(1));
    let host = rig.spawn(&["run", "--watch"]);
    host.wait_until_leading("versioned");
    assert_eq!(version_that_handles(&rig, "before"), 1);
    save(&rig, 2);
    rig.configure(&built(""));
    wait_for_versions(&host, 1);
    assert_eq!(version_that_handles(&rig, "named"), 2);
    save(&rig, 3);
    wait_for_versions(&host, 2);
    assert_eq!(version_that_handles(&rig, "saved"), 3);
    host.stop();
}

fn watching(store: Store) -> (Rig, Running) {
    let rig = Rig::on(store, &built(""));
    project(&rig);
    save(&rig, 1);
    let _ = rig.host(["build"]).ok();
    let host = rig.spawn(&["run", "--watch"]);
    host.wait_until_leading("versioned");
    assert_eq!(version_that_handles(&rig, "before"), 1);
    (rig, host)
}

fn what_is_saved_is_built_and_takes_over_and_a_build_that_fails_changes_nothing(store: Store) {
    let (rig, host) = watching(store);
    save(&rig, 2);
    wait_for_versions(&host, 1);
    assert_eq!(version_that_handles(&rig, "second"), 2);
    fs::remove_file(rig.path("versioned/source.wasm")).expect("a file can be removed");
    let line = host.wait_for_log("what the compiler says", |line| says(line, "there is no source"));
    assert_eq!((&line["message"], &line["handler"]), (&json!("building"), &json!("versioned")));
    host.wait_for_log("that it failed", |line| says(line, "`sh` ended with exit code 3"));
    assert_eq!(version_that_handles(&rig, "still"), 2);
    save(&rig, 3);
    wait_for_versions(&host, 2);
    assert_eq!(version_that_handles(&rig, "third"), 3);
    host.stop();
}

fn a_newer_change_ends_the_build_that_is_under_way(store: Store) {
    let (rig, host) = watching(store);
    close_gate(&rig);
    let before = compilers(&rig).len();
    save(&rig, 2);
    wait_until("it is built", PATIENCE, || compilers(&rig).len() == before + 1);
    let first = compilers(&rig).pop().expect("a process");
    assert!(is_running(&first));
    save(&rig, 3);
    wait_until("it is built anew", PATIENCE, || compilers(&rig).len() == before + 2);
    assert!(!is_running(&first), "two builds of one handler run at once");
    open_gate(&rig);
    wait_for_versions(&host, 1);
    assert_eq!(version_that_handles(&rig, "after"), 3);
    assert_eq!(host.count_messages("another version takes over"), 1);
    host.stop();
}

fn events_that_come_while_a_handler_is_built_are_neither_lost_nor_handled_twice(store: Store) {
    let (rig, host) = watching(store);
    let mut expected = 1;
    for version in 2..6 {
        save(&rig, version);
        let events: Vec<Value> =
            (0..50).map(|n| event("a", format!("{version}-{n}"), json!({}))).collect();
        events.chunks(10).for_each(|some| rig.publish(some));
        expected += events.len();
        wait_for_versions(&host, version as usize - 1);
    }
    wait_until("all are handled", PATIENCE, || rig.group("versioned")["lag_events"] == 0);
    let mut ids: Vec<String> =
        rig.data_of("seen").iter().map(|seen| seen["id"].to_string()).collect();
    ids.sort();
    assert_eq!(ids.len(), expected);
    ids.dedup();
    assert_eq!(ids.len(), expected, "an event was handled twice");
    host.stop();
}

#[test]
fn what_a_build_writes_begins_no_other_build() {
    let rig = Rig::new(&Settings::default());
    // All that it writes is watched, and in the watched folder: also the component.
    let build = "build = { command = [\"sh\", \"compile.sh\"], watch = [\"versioned/**\"] }";
    let handler = Handler::of_file("versioned", "versioned/versioned.wasm", &["a"]).set(build);
    rig.configure(&Settings::of([handler]));
    project(&rig);
    save(&rig, 1);
    rig.write(
        "versioned/compile.sh",
        "echo generated > generated.h; mkdir -p node_modules; date > node_modules/x; cp source.wasm \"$HOST_OUTPUT\"",
    );
    let host = rig.spawn(&["run", "--watch"]);
    host.wait_until_leading("versioned");
    for version in 2..4 {
        save(&rig, version);
        wait_for_versions(&host, version as usize - 1);
    }
    assert_eq!(version_that_handles(&rig, "after"), 3);
    // The first one finds what it generated itself new, at most.
    let built = count(&host, "built: versioned");
    assert!((3..=4).contains(&built), "{built}: {:#?}", host.log());
    let begun = count(&host, "changed: building");
    assert!((2..=3).contains(&begun), "{begun}: {:#?}", host.log());
    host.stop();
}

#[test]
fn a_host_that_stops_leaves_no_compiler_behind() {
    for times in [1, 2] {
        let (rig, mut host) = watching(Store::Sqlite);
        let folder = rig.path("versioned");
        rig.write(
            "versioned/compile.sh",
            "echo $$ >> pids\nsh -c 'echo $$ >> pids; trap \"\" TERM INT; while :; do read -r go < never; done' &\nwait\n",
        );
        let made = Command::new("mkfifo").arg(folder.join("never")).status();
        assert!(made.expect("mkfifo runs").success());
        let before = compilers(&rig).len();
        save(&rig, 2);
        wait_until("it is built", PATIENCE, || compilers(&rig).len() == before + 2);
        let own = compilers(&rig).split_off(before);
        for _ in 0..times {
            host.sigterm();
        }
        host.wait();
        wait_until("the compiler is gone", PATIENCE, || own.iter().all(|pid| !is_running(pid)));
        assert!(Path::new(&folder).is_dir());
    }
}
