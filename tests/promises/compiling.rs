//! What others wrote is compiled without harm: to the host, which only reads it, and
//! to other tenants, who wait for nobody.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::{
    Handler, PATIENCE, Rig, Running, Settings, event, guest_file, guest_that_compiles_slowly,
    version_of_guest, wait_for, wait_until,
};

/// A guest of 40 KB that a compiler works on for minutes.
fn slow_guest() -> Vec<u8> {
    guest_that_compiles_slowly(2_000)
}

/// A host whose compiled code nobody else has.
fn command(rig: &Rig, arguments: &[&str]) -> Command {
    let mut command = rig.command(arguments);
    command.env("XDG_CACHE_HOME", rig.path("cache"));
    command
}

fn run(rig: &Rig) -> Running {
    Running::start(&mut command(rig, &["run", "--log-format", "json"]))
}

fn check(rig: &Rig) -> (bool, String) {
    let output = command(rig, &["check"]).output().expect("the host program starts");
    (output.status.success(), String::from_utf8(output.stderr).expect("output is UTF-8"))
}

/// A handler that runs a file of the rig.
fn own(name: &str, event_type: &str) -> Handler {
    Handler::of_file(name, &format!("{name}.wasm"), &[event_type])
}

/// The processes that compile for a host.
pub(crate) fn compilers(host: u32) -> Vec<u32> {
    let children = format!("/proc/{host}/task");
    let Ok(tasks) = std::fs::read_dir(children) else { return Vec::new() };
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
        .flat_map(|pids| {
            pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
        })
        .collect()
}

/// Whether a process has not ended, even if nobody took note of its end.
pub(crate) fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| !status.contains("State:\tZ"))
}

#[test]
fn text_is_taken_up_to_a_mebibyte_and_never_deployed() {
    let rig = Rig::new(&Settings::of([own("h", "a")]));
    let text = format!("(component){}", " ".repeat((1 << 20) - 11));
    rig.write("h.wasm", &text);
    let (well, said) = check(&rig);
    assert!(!well && said.contains("it exports nothing"), "it was parsed: {said}");
    rig.write("h.wasm", format!("{text} "));
    let (well, said) = check(&rig);
    assert!(!well && said.contains("WebAssembly text of 1048577 bytes"), "{said}");
    rig.write("h.wasm", "(component)");
    let said = rig.host(["deploy", "h", "h.wasm"]).failed(1);
    assert!(said.contains("only binaries are deployed"), "{said}");
}

#[test]
fn thousands_of_foreign_imports_are_refused_and_not_looked_at_one_by_one() {
    let rig = Rig::new(&Settings::of([own("h", "a")]));
    let component = |imports: usize| {
        let mut text = String::from("(component");
        for n in 0..imports {
            write!(text, r#"(import "acme:db/table{n}@1.0.0" (instance))"#).unwrap();
        }
        text.push_str(
            r#"(instance $e) (export "event-host:handler/handler@0.1.0" (instance $e)))"#,
        );
        wat_to_wasm(&text)
    };
    rig.write("h.wasm", component(4_000));
    let (well, said) = check(&rig);
    assert!(!well && said.contains("it imports more than 256 names"), "{said}");
    // As many as may be get past that, to what is wrong with the export.
    rig.write("h.wasm", component(256));
    let (well, said) = check(&rig);
    assert!(!well && said.contains("its export"), "{said}");
}

fn wat_to_wasm(text: &str) -> Vec<u8> {
    wat::parse_str(text).expect("a component")
}

/// One author's component that takes minutes to compile; the other's next version runs
/// within 30 seconds, and its events never wait.
#[test]
fn a_component_that_takes_minutes_to_compile_holds_up_no_other_tenant() {
    const BOUND: Duration = Duration::from_secs(30);
    let of = |name: &str| own(name, name).set(&format!("tenant = {name:?}"));
    let rig = Rig::new(&Settings::of([of("mallory"), of("acme")]));
    for name in ["mallory", "acme"] {
        rig.write(&format!("{name}.wasm"), version_of_guest(1));
    }
    let host = run(&rig);
    for name in ["mallory", "acme"] {
        host.wait_until_leading(name);
    }
    rig.write("mallory.wasm", slow_guest());
    host.hangup();
    wait_until("the compiler at work", PATIENCE, || !compilers(host.pid()).is_empty());
    let slow = compilers(host.pid());
    // More of the same, which wait for the first.
    rig.write("acme.wasm", version_of_guest(2));
    let started = Instant::now();
    host.hangup();
    host.wait_for_log_within(BOUND, "the other's next version", |line| {
        line["changed"] == "handlers.acme"
    });
    assert!(started.elapsed() < BOUND);
    assert!(slow.iter().all(|pid| runs(*pid)), "the slow one is still being compiled");
    let _position =
        rig.host(["publish", "--tenant", "acme", "--type", "acme", "--data", "null"]).ok();
    rig.wait_until_handled("acme", 1);
    assert!(!host.log().iter().any(|line| line.to_string().contains("does not load")));
    // It ends with its host.
    host.kill9();
    wait_until("the end of the compiler", PATIENCE, || slow.iter().all(|pid| !runs(*pid)));
}

/// What a process that compiles is: the first that the system ends, gentle to others,
/// without network and files, and limited as the settings say.
#[test]
fn the_process_that_compiles_is_limited_as_the_settings_say() {
    let settings = Settings::of([own("h", "a"), own("innocent", "b")]);
    let settings = settings.top("compile_memory = \"512MiB\"").top("compile_timeout = \"2s\"");
    let rig = Rig::new(&settings);
    rig.write("h.wasm", version_of_guest(1));
    rig.write("innocent.wasm", version_of_guest(1));
    let host = run(&rig);
    host.wait_until_leading("innocent");
    rig.write("h.wasm", slow_guest());
    host.hangup();
    let read = |pid: u32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let (status, limits, score) = wait_for("a process that compiles", PATIENCE, || {
        let pid = *compilers(host.pid()).first()?;
        let status = read(pid, "status")?;
        // It limits itself before it reads anything.
        status.contains("Seccomp:\t2").then_some(())?;
        Some((status, read(pid, "limits")?, read(pid, "oom_score_adj")?))
    });
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    assert_eq!(score.trim(), "1000");
    let limit = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).expect("a limit");
        line[name.len()..].split_whitespace().next().expect("a number").to_owned()
    };
    assert_eq!(limit("Max data size"), (512 << 20).to_string());
    assert_eq!(limit("Max cpu time"), "2");
    assert_eq!(limit("Max core file size"), "0");
    host.wait_for_log("the refusal of the slow one", |line| {
        line["message"].as_str().is_some_and(|said| {
            said.starts_with("does not load, and goes on as before")
                && said.contains("more than 2s of processor time")
                && said.contains("`compile_timeout`")
        })
    });
    rig.publish(&[event("b", 1, json!(null))]);
    rig.wait_until_handled("innocent", 1);
    host.stop();
}

/// A host that has no file descriptor left for a moment compiles nothing in itself, and
/// tries again.
#[test]
fn without_file_descriptors_for_a_process_it_is_tried_again_and_never_done_without() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let rig = Rig::new(&Settings::of([own("h", "a"), own("innocent", "b")]));
    rig.write("h.wasm", version_of_guest(1));
    rig.write("innocent.wasm", version_of_guest(1));
    let host = run(&rig);
    host.wait_until_leading("h");
    host.wait_until_leading("innocent");
    let pid = Pid::from_raw(i32::try_from(host.pid()).expect("a pid"));
    // Three numbers that are free: enough to read the file, and too few for three pipes.
    let all = std::fs::read_dir(format!("/proc/{}/fd", host.pid())).expect("the host runs");
    let open: BTreeSet<u64> =
        all.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse().ok()).collect();
    let free = (0..).filter(|fd| !open.contains(fd)).nth(3).expect("numbers do not end");
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let few = Rlimit { current: Some(free), maximum };
    let before = prlimit(pid, Resource::Nofile, few).expect("limits can be set");
    rig.write("h.wasm", version_of_guest(2));
    host.hangup();
    host.wait_for_log("a version that waits for file descriptors", |line| {
        line["message"].as_str().is_some_and(|said| {
            said.contains("does not load, and goes on as before")
                && (said.contains("tried again later") || said.contains("Too many open files"))
        })
    });
    rig.publish(&[event("b", 1, json!(null))]);
    prlimit(pid, Resource::Nofile, before).expect("limits can be set");
    rig.wait_until_handled("innocent", 1);
    // Nobody asks for it.
    host.wait_for_log("the version, in the end", |line| line["changed"] == "handlers.h");
    assert!(
        !host.log().iter().any(|line| line.to_string().contains("compiled in this process")),
        "{:?}",
        host.log()
    );
    host.stop();
}

#[test]
fn compiled_code_of_somebody_else_is_not_run() {
    let rig = Rig::new(&Settings::of([own("h", "a")]));
    rig.write("h.wasm", std::fs::read(guest_file("noop")).expect("the guest can be read"));
    let (well, said) = check(&rig);
    assert!(well, "{said}");
    let cache = rig.path("cache/event-host");
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").mode() & 0o777;
    assert_eq!((mode(&cache), mode(&cache.join("key"))), (0o700, 0o600));
    let entries: Vec<_> = std::fs::read_dir(cache.join("components"))
        .expect("the code is kept")
        .map(|entry| entry.expect("it can be listed").path())
        .collect();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    // A byte of the code is another, as somebody who wants to run their own would have it.
    let mut forged = std::fs::read(entry).expect("it can be read");
    let last = forged.len() - 1;
    forged[last] ^= 1;
    std::fs::write(entry, &forged).expect("it can be written");
    let (well, said) = check(&rig);
    assert!(well && said.contains("is not used, and made anew"), "{said}");
    assert_ne!(std::fs::read(entry).expect("it can be read"), forged);
    let (well, said) = check(&rig);
    assert!(well && said.is_empty(), "{said}");
    // Any level that others can change.
    for lax in [cache.join("components"), cache.clone(), rig.path("cache")] {
        let set = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&lax, mode).expect("it is ours");
        };
        set(0o777);
        let (well, said) = check(&rig);
        assert!(well && said.contains("cannot be kept in") && said.contains("chmod"), "{said}");
        set(0o700);
    }
}
