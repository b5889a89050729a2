//! What a host measures, and what Prometheus reads of it.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use test_postgres::{Server, Stop};
use tests::{Answer, Handler, PATIENCE, Rig, Running, Settings, Store, event, get, wait_until};

tests::on_both_stores! {
    what_a_group_does_is_measured_and_prometheus_reads_it,
    the_lag_of_a_group_that_nobody_runs_is_shown_by_one_host_and_moves_when_that_dies,
}

/// Settings of a host that tells anybody of its metrics.
fn measured(handlers: impl IntoIterator<Item = Handler>) -> Settings {
    Settings::of(handlers).top(
        "listen.local = { address = \"127.0.0.1:0\", serve = [\"metrics\"], anonymous = [\"metrics\"] }\n\
         telemetry.metrics.interval = \"1s\"",
    )
}

fn run(rig: &Rig) -> (Running, SocketAddr) {
    let host = rig.spawn_run();
    let address = host.wait_until_listening("local");
    (host, address)
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0";

fn scrape(address: SocketAddr, accept: &str) -> Answer {
    let answer = get(address, "/metrics", &[("Accept", accept)]);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer
}

/// The value of a series; none while it is not there.
fn value(address: SocketAddr, series: &str) -> Option<f64> {
    let answer = scrape(address, "text/plain");
    let line = answer.body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(line.parse().unwrap_or_else(|why| panic!("{series}: {line}: {why}")))
}

fn wait_for_value(address: SocketAddr, series: &str, wanted: f64) {
    wait_until(&format!("{series} is {wanted}"), PATIENCE, || {
        value(address, series) == Some(wanted)
    });
}

/// Has another program read something, if it is on this machine.
fn read_by(program: &str, arguments: &[&str], text: &str) {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        println!("NOT CHECKED: {program} is missing");
        return;
    };
    let mut stdin = child.stdin.take().expect("a pipe");
    // One that ends early says why.
    let _ = stdin.write_all(text.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    if said.contains("No module named 'prometheus_client'") {
        println!("NOT CHECKED: python3 lacks prometheus-client");
        return;
    }
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

fn what_a_group_does_is_measured_and_prometheus_reads_it(store: Store) {
    const EVENTS: i64 = 20;
    let tally = Handler::new("tally", "tally", &["a"]);
    let rig = Rig::on(store, &measured([tally]));
    let events: Vec<Value> = (0..EVENTS).map(|n| event("a", n, json!(null))).collect();
    rig.publish(&events);
    let (host, address) = run(&rig);
    rig.wait_until_handled("tally", EVENTS);
    wait_for_value(address, "event_host_group_handled_total{group=\"tally\"}", 20.0);
    let attempts = "event_host_attempts_total{group=\"tally\",outcome=\"success\"}";
    assert_eq!(value(address, attempts), Some(20.0));
    assert_eq!(value(address, "event_host_group_lag_events{group=\"tally\"}"), Some(0.0));
    assert_eq!(value(address, "event_host_leading{group=\"tally\"}"), Some(1.0));
    let state = "event_host_group_state{group=\"tally\",state=\"running\"}";
    assert_eq!(value(address, state), Some(1.0));
    let has = |series: &str| assert!(value(address, series) > Some(0.0), "{series}");
    has("event_host_attempt_duration_seconds_count{group=\"tally\"}");
    has("event_host_attempt_memory_bytes_count{group=\"tally\"}");
    has("event_host_settlements_total{group=\"tally\",result=\"committed\"}");
    has("event_host_store_operations_seconds_count{operation=\"settle\"}");
    has("event_host_store_operations_seconds_count{operation=\"overview\"}");
    has("event_host_log_bytes");
    has("process_resident_memory_bytes");
    has("process_cpu_seconds_total");

    let text = scrape(address, "text/plain");
    assert_eq!(text.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    read_by("promtool", &["check", "metrics"], &text.body);
    let parser = "import sys; from prometheus_client.parser import text_string_to_metric_families as p; assert len(list(p(sys.stdin.read()))) > 20";
    read_by("python3", &["-c", parser], &text.body);
    let open = scrape(address, OPEN_METRICS);
    assert_eq!(
        open.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    let parser = "import sys; from prometheus_client.openmetrics.parser import text_string_to_metric_families as p; assert len(list(p(sys.stdin.read()))) > 20";
    read_by("python3", &["-c", parser], &open.body);
    host.stop();
}

fn the_lag_of_a_group_that_nobody_runs_is_shown_by_one_host_and_moves_when_that_dies(store: Store) {
    let (tally, left) =
        (Handler::new("tally", "tally", &["a"]), Handler::new("left", "tally", &["b"]));
    let rig = Rig::on(store, &measured([tally.clone(), left]));
    let (host, address) = run(&rig);
    wait_for_value(address, "event_host_group_leaders{group=\"left\"}", 1.0);
    host.stop();
    // From now on nobody runs it.
    rig.configure(&measured([tally]));
    rig.publish(&[event("b", 1, json!(null)), event("b", 2, json!(null))]);
    let hosts = [run(&rig), run(&rig)];
    let looks = |address: SocketAddr| value(address, "event_host_overview_here") == Some(1.0);
    wait_until("one looks", PATIENCE, || hosts.iter().any(|(_, address)| looks(*address)));
    let [(mut one, mut shows), (mut other, mut silent)] = hosts;
    if looks(silent) {
        (one, other) = (other, one);
        (shows, silent) = (silent, shows);
    }
    let lag = "event_host_group_lag_events{group=\"left\"}";
    wait_for_value(shows, lag, 2.0);
    assert_eq!(value(shows, "event_host_group_leaders{group=\"left\"}"), Some(0.0));
    assert!(value(shows, "event_host_group_lag_seconds{group=\"left\"}") > Some(0.0));
    assert_eq!(value(silent, "event_host_overview_here"), Some(0.0));
    for series in [lag, "event_host_log_events", "event_host_group_leaders{group=\"tally\"}"] {
        assert_eq!(value(silent, series), None, "{series} of the host that does not look");
    }
    one.kill9();
    wait_until("the other host looks", Duration::from_secs(5), || looks(silent));
    wait_for_value(silent, lag, 2.0);
    other.stop();
}

// As promise 10 says of groups.
#[test]
fn the_look_moves_within_two_seconds_of_a_stop_and_a_kill_and_within_fifteen_of_a_freeze() {
    const SOON: Duration = Duration::from_secs(2);
    const FROZEN: Duration = Duration::from_secs(15);
    let rig = Rig::on(Store::Postgres, &measured([Handler::new("tally", "tally", &["a"])]));
    let here = |address: SocketAddr| value(address, "event_host_overview_here");
    let looks = |address: SocketAddr| here(address) == Some(1.0);
    let (stops, address) = run(&rig);
    wait_until("the first looks", PATIENCE, || looks(address));
    let standby = || {
        let (host, address) = run(&rig);
        // Its first claim is refused by then.
        host.wait_for_log("it stands by", |line| {
            line["message"].as_str().is_some_and(|said| said.contains("standing by"))
        });
        assert_eq!(here(address), Some(0.0));
        (host, address)
    };
    let (dies, address) = standby();
    stops.stop();
    wait_until("after a clean stop", SOON, || looks(address));
    let (freezes, address) = standby();
    dies.kill9();
    wait_until("after a kill", SOON, || looks(address));
    let (last, frozen) = (standby(), address);
    freezes.freeze();
    wait_until("after a freeze", FROZEN, || looks(last.1));
    freezes.thaw();
    wait_until("it knows that it looks no more", PATIENCE, || here(frozen) == Some(0.0));
    assert!(looks(last.1));
    freezes.stop();
    last.0.stop();
}

#[test]
fn what_is_asked_by_http_is_measured() {
    let rig = Rig::new(&measured([Handler::new("tally", "tally", &["a"])]));
    let (host, address) = run(&rig);
    let refused = get(address, "/metrics", &[("Authorization", "Bearer nonsense")]);
    assert_eq!(refused.status, 401);
    assert_eq!(get(address, "/no/such/path", &[]).status, 404);
    let requests = |route: &str, code: &str| {
        let labels = format!("method=\"GET\",route=\"{route}\",code=\"{code}\"");
        value(address, &format!("http_server_request_duration_seconds_count{{{labels}}}"))
    };
    assert_eq!(requests("/metrics", "401"), Some(1.0));
    assert_eq!(requests("_unmatched", "4xx"), Some(1.0));
    assert!(requests("/metrics", "2xx") > Some(1.0));
    let failures = "event_host_auth_failures_total{reason=\"unknown\"}";
    assert_eq!(value(address, failures), Some(1.0));
    // That of the scrape itself.
    wait_for_value(address, "event_host_http_connections{listener=\"local\"}", 1.0);
    host.stop();
}

#[test]
fn metrics_are_answered_while_the_database_is_away() {
    let mut server = Server::start(&[]).expect("a server starts");
    let settings = measured([Handler::new("tally", "tally", &["a"])]);
    let rig = Rig::at(&server.url("postgres"), &settings);
    let _ = rig.host(["migrate"]).ok();
    let (host, address) = run(&rig);
    wait_for_value(address, "event_host_hosts", 1.0);
    rig.hang_up();
    server.stop(Stop::Fast).expect("the server stops");
    wait_until("what is of the database ends", PATIENCE, || {
        value(address, "event_host_hosts").is_none()
    });
    // What the process counts goes on, and says how old the last look is.
    assert!(value(address, "event_host_overview_age_seconds") > Some(1.0));
    assert!(value(address, "process_open_fds") > Some(0.0));
    server.resume().expect("the server starts");
    wait_for_value(address, "event_host_hosts", 1.0);
    host.stop();
}

#[test]
fn the_command_lists_every_metric() {
    let rig = Rig::new(&Settings::of([Handler::new("tally", "tally", &["a"])]));
    let all = rig.json(&["metrics", "list"]);
    let all = all.as_array().expect("a list");
    assert!(all.len() > 50, "{all:?}");
    let text = rig.host(["metrics", "list"]).ok();
    for metric in all {
        let name = metric["name"].as_str().expect("a name");
        assert!(text.contains(name), "{name}");
    }
}
