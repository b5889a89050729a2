//! Connections of handlers (promises 7 and 13): what one tenant keeps open leaves room for
//! another, and what the host lacks is no handler's failure.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Handler, PATIENCE, Rig, Running, Settings, event, wait_until};

use super::grants::Server;

/// An innocent request is answered and settled within this, beside a tenant that keeps
/// open what it can.
const INNOCENT_WITHIN: Duration = Duration::from_secs(5);

/// Starts a host that may have as many files open as 400, and begins with 128.
fn with_few_files(rig: &Rig) -> Running {
    let program = rig.command(["run"]).get_program().to_owned();
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -Sn 128 && ulimit -Hn 400 && exec \"$0\" run"])
        .arg(program)
        .current_dir(rig.folder())
        .env_remove("HOST_LOG");
    Running::start_with_stderr(&mut command, Stdio::null())
}

fn of(tenant: &str, name: &str, subscribe: &[&str], server: &Server) -> Handler {
    Handler::new(name, "chaos", subscribe)
        .attempts(1)
        .set(&format!("tenant = \"{tenant}\""))
        .set(&format!("allow.http = [\"{}\"]", server.url("")))
}

fn publish(rig: &Rig, tenant: &str, events: &[Value]) {
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    rig.write("of-tenant.jsonl", lines);
    let _ = rig.host(["publish", "--tenant", tenant, "--file", "of-tenant.jsonl"]).ok();
}

// Promise 13.
#[test]
fn connections_that_one_tenant_keeps_open_leave_room_for_another() {
    // The host's own files are 256, so handlers have 108 connections: one tenant has 54.
    const OF_ONE_TENANT: usize = 54;
    let (silent, server) = (Server::start(), Server::start());
    let greedy = |name: &str| {
        of("greedy", name, &["hold"], &silent).set("ordering = \"key\"").set(
            "limits = { http_requests = 1_000, http_connections = 1_000, http_timeout = \"10m\", timeout = \"10m\", concurrency = 8 }",
        )
    };
    let settings =
        Settings::of([greedy("one"), greedy("two"), of("other", "innocent", &["good"], &server)]);
    let rig = Rig::new(&settings.top("grace = \"0s\"\ntenants = { greedy = {}, other = {} }"));
    let hold =
        json!({ "do": "hold-requests", "url": silent.url("/never"), "count": 100, "ms": 600_000 });
    let holds: Vec<Value> = (0..16).map(|n| event("hold", n, hold.clone())).collect();
    publish(&rig, "greedy", &holds);
    let host = with_few_files(&rig);
    wait_until("the greedy tenant has what it can have", PATIENCE, || {
        silent.requests() >= OF_ONE_TENANT
    });
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", host.pid()))
        .expect("the process is there");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    assert_eq!(files.split_whitespace().nth(3), Some("400"), "the limit is raised: {files}");

    let request = json!({ "do": "request", "url": server.url("/"), "type": "answer" });
    for n in 0..10 {
        publish(&rig, "other", &[event("good", n, request.clone())]);
        let published = Instant::now();
        wait_until("an innocent request is answered", PATIENCE, || rig.data_of("answer").len() > n);
        assert!(published.elapsed() < INNOCENT_WITHIN, "{:?}", published.elapsed());
    }
    let answers = rig.data_of("answer");
    assert!(answers.iter().all(|answer| answer["status"] == 200), "{answers:?}");
    assert_eq!(silent.requests(), OF_ONE_TENANT);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    drop(host);
}

// Promise 13.
#[test]
fn a_handler_and_a_tenant_open_as_many_connections_as_they_may() {
    let server = Server::start();
    let hold = |name: &str, tenant: &str, connections: u32| {
        of(tenant, name, &[name], &server).set(&format!(
            "limits = {{ http_connections = {connections}, http_timeout = \"1s\", timeout = \"20s\" }}"
        ))
    };
    let settings = Settings::of([hold("few", "wide", 3), hold("many", "narrow", 4)]);
    let rig = Rig::new(&settings.top("tenants = { wide = {}, narrow = { http_connections = 4 } }"));
    for (tenant, name) in [("wide", "few"), ("narrow", "many")] {
        let hold = json!({ "do": "hold-requests", "url": server.url("/never"), "count": 10, "ms": 10_000 });
        publish(&rig, tenant, &[event(name, 1, hold)]);
    }
    let _ = rig.drain();
    assert_eq!(server.requests(), 7);
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 2);
    for letter in &letters {
        assert_eq!(letter["failure"]["kind"], "http-timeout", "{letter}");
    }
}
