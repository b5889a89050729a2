//! Another server takes the place of the one that the hosts were on, or the same one comes
//! back from a crash, and holds less: what it holds is handled, and nothing of what it does
//! not hold is remembered (promises 1, 2, 3 and 18).

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use serde_json::{Value, json};
use test_postgres::{Server, Stop};
use tests::{Client, Handler, PATIENCE, Proxy, Rig, Running, Settings, event, wait_until, with};

use super::says;

/// Events of `a` that were not handled, and those that were handled twice.
const NOT_HANDLED: &str = "SELECT count(*) FROM events a WHERE type = 'a'
     AND NOT EXISTS (SELECT FROM events s WHERE s.type = 'seen' AND s.subject = a.id)";
const HANDLED_TWICE: &str =
    "SELECT count(*) - count(DISTINCT subject) FROM events WHERE type = 'seen'";

/// A host on a primary behind an address, and a standby that does not follow any more.
struct Pair {
    primary: Server,
    standby: Server,
    proxy: Proxy,
    rig: Rig,
    host: Running,
}

fn address(server: &Server) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, server.port()).into()
}

fn events(name: &str, count: usize) -> Vec<Value> {
    let numbered = (0..count).map(|n| format!("{name} {n}"));
    numbered.map(|id| with(event("a", id, json!(null)), "seen", true)).collect()
}

/// 50 events are on both servers, 400 on the primary alone, and all are handled.
fn behind() -> Pair {
    let primary = Server::start(&[]).expect("a server starts");
    let (proxy, url) = Proxy::before(&primary.url("postgres"), "event-host");
    let handler = Handler::new("tally", "tally", &["a"]).attempts(1);
    let rig = Rig::at(&url, &Settings::of([handler.set("batch.max_events = 10")]));
    let _ = rig.host(["migrate"]).ok();
    let host = rig.spawn_run();
    rig.publish(&events("both", 50));
    wait_until("the first are handled", PATIENCE, || rig.number(HANDLED) == 50);
    let standby = primary.standby(&[]).expect("a standby starts");
    let mut there = Client::of_url(&standby.url("postgres"));
    wait_until("the standby has them", PATIENCE, || there.number(HANDLED) == 50);
    there.execute("ALTER SYSTEM SET primary_conninfo = ''");
    there.execute("SELECT pg_reload_conf()");
    wait_until("it does not follow any more", PATIENCE, || {
        there.number("SELECT count(*) FROM pg_stat_wal_receiver") == 0
    });
    drop(there);
    rig.publish(&events("lost", 400));
    wait_until("the others are handled", PATIENCE, || rig.number(HANDLED) == 450);
    Pair { primary, standby, proxy, rig, host }
}

const HANDLED: &str = "SELECT count(DISTINCT subject) FROM events WHERE type = 'seen'";

impl Pair {
    /// How often the host has begun to lead.
    fn leads(&self) -> usize {
        self.host.count_messages("leading")
    }

    fn expect_all_handled_once(&self, what: &str) {
        wait_until(what, PATIENCE, || self.rig.number(NOT_HANDLED) == 0);
        assert_eq!(self.rig.number(HANDLED_TWICE), 0);
    }
}

fn says_what_changed(host: &Running) {
    host.wait_for_log("it says so", |line| {
        says(line, &["was restarted or replaced", "stepping down from all groups"])
    });
}

// Promises 1, 2, 3 and 18.
#[test]
fn what_a_promoted_standby_holds_is_handled_though_it_was_behind() {
    let mut pair = behind();
    let leads = pair.leads();
    pair.rig.hang_up();
    pair.primary.stop(Stop::Immediate).expect("the primary stops");
    pair.standby.promote().expect("the standby becomes the primary");
    pair.proxy.lead_to(address(&pair.standby));
    says_what_changed(&pair.host);
    wait_until("it leads anew", PATIENCE, || pair.leads() > leads);

    // One is open while others are published and handled.
    let mut open = Client::new(&pair.rig);
    open.execute(
        r#"BEGIN; INSERT INTO events (type, id, extensions) VALUES ('a', 'open', '{"seen": true}')"#,
    );
    pair.rig.publish(&events("new", 300));
    open.execute("COMMIT");
    pair.expect_all_handled_once("all that the new server holds is handled");
    let position = "SELECT position FROM consumer_groups";
    let last = "SELECT last_drawn()";
    assert!(pair.rig.number(position) <= pair.rig.number(last));

    // A host that is started now finds everything in order.
    pair.host.sigterm();
    assert!(pair.host.wait().success(), "{:#?}", pair.host.log());
    pair.rig.publish(&events("later", 10));
    pair.rig.drain();
    pair.expect_all_handled_once("a host that starts now handles the rest");
    assert_eq!(pair.rig.dead_letters(), Vec::<Value>::new());
}

/// A server that crashed before it wrote what a producer had not waited for, and a host
/// that had read it. `None` where it was written.
fn crashed() -> Option<(Server, Rig, Running)> {
    // Of itself the server writes what nobody waits for after 10 s.
    let mut server = Server::start(&[("wal_writer_delay", "10s")]).expect("a server starts");
    let handler = Handler::new("chaos", "chaos", &["command"]).attempts(1);
    let handler = handler.set("limits.timeout = \"60s\"");
    let rig = Rig::at(&server.url("postgres"), &Settings::of([handler]));
    let _ = rig.host(["migrate"]).ok();
    let host = rig.spawn_run();
    // A leader that has settled something records nothing at its next attempt.
    let count = json!({ "do": "count", "key": "count" });
    rig.publish(&[event("command", "before", count)]);
    rig.wait_until_handled("chaos", 1);
    let slow = json!([{ "do": "log", "line": "under way" }, { "do": "sleep", "ms": 60_000 }]);
    let mut producer = Client::new(&rig);
    producer.execute(&format!(
        "SET synchronous_commit = off;
         INSERT INTO events (type, id, data)
         SELECT 'command', 'lost ' || n, CASE n WHEN 1 THEN convert_to('{slow}', 'UTF8') ELSE 'null' END
         FROM generate_series(1, 40) n"
    ));
    host.wait_for_message("under way");
    host.freeze();
    drop(producer);
    rig.hang_up();
    server.stop(Stop::Immediate).expect("the server stops");
    server.resume().expect("the server starts");
    (rig.number("SELECT last_drawn()") < 41).then_some((server, rig, host))
}

// Promises 1, 2, 3 and 18.
#[test]
fn what_a_crash_lost_of_commits_that_nobody_waited_for_is_forgotten() {
    // A heartbeat of the host may have written it.
    let (_server, rig, host) = (0..10).find_map(|_| crashed()).expect("a crash loses something");
    let leads = host.count_messages("leading");
    let count = r#"{"do":"count","key":"count"}"#;
    let insert = |id: &str| {
        format!("INSERT INTO events (type, id, data) VALUES ('command', '{id}', '{count}')")
    };
    let mut open = Client::new(&rig);
    open.execute("BEGIN");
    open.execute(&insert("open"));
    let mut others = Client::new(&rig);
    others.execute(&insert("second"));
    others.execute(&insert("third"));
    host.thaw();
    says_what_changed(&host);
    wait_until("it leads anew", PATIENCE, || host.count_messages("leading") > leads);
    open.execute("COMMIT");
    wait_until("all that is left is handled", PATIENCE, || rig.state("chaos", "count") == 4);
    assert_eq!(rig.number("SELECT count(*) FROM events"), 4);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    host.stop();
}

/// What the old database handed out after the dump was taken, the new one hands out again,
/// and nothing of the server tells the two apart: not even what marks a run of it.
// Promises 1, 2 and 3.
#[test]
fn what_a_database_that_was_restored_in_its_place_holds_is_handled() {
    let server = Server::start(&[]).expect("a server starts");
    let mut admin = Client::of_url(&server.url("postgres"));
    admin.execute("CREATE DATABASE log");
    let url = server.url("log");
    let handler = Handler::new("tally", "tally", &["a"]).attempts(1);
    let rig = Rig::at(&url, &Settings::of([handler.set("batch.max_events = 10")]));
    let _ = rig.host(["migrate"]).ok();
    let host = rig.spawn_run();
    rig.publish(&events("kept", 50));
    wait_until("the first are handled", PATIENCE, || rig.number(HANDLED) == 50);
    let dump = rig.path("dump.sql");
    let tool = |name: &str, arguments: &[&OsStr]| {
        let output = Command::new(server.binaries().program(name)).args(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    };
    tool("pg_dump", &["--file".as_ref(), dump.as_ref(), url.as_ref()]);
    rig.publish(&events("lost", 100));
    wait_until("the others are handled", PATIENCE, || rig.number(HANDLED) == 150);
    let leads = host.count_messages("leading");
    let last_drawn = rig.number("SELECT last_drawn()");

    host.freeze();
    rig.hang_up();
    admin.execute("DROP DATABASE log WITH (FORCE)");
    admin.execute("CREATE DATABASE log");
    let settings = ["--quiet", "--set=ON_ERROR_STOP=1"].map(OsStr::new);
    tool("psql", &[settings[0], settings[1], "--file".as_ref(), dump.as_ref(), url.as_ref()]);
    let mut open = Client::new(&rig);
    open.execute(
        r#"BEGIN; INSERT INTO events (type, id, extensions) VALUES ('a', 'open', '{"seen": true}')"#,
    );
    rig.publish(&events("new", 300));
    assert!(rig.number("SELECT last_drawn()") > last_drawn);
    host.thaw();
    says_what_changed(&host);
    wait_until("it leads anew", PATIENCE, || host.count_messages("leading") > leads);
    open.execute("COMMIT");
    wait_until("all of it is handled", PATIENCE, || rig.number(NOT_HANDLED) == 0);
    assert_eq!((rig.number(HANDLED), rig.number(HANDLED_TWICE)), (351, 0));
    host.stop();
}

/// The old server lives on, and so do all connections to it but one.
fn moves_over_when_it_loses(what: &str, whose: &str) {
    let pair = behind();
    let leads = pair.leads();
    pair.rig.hang_up();
    pair.standby.promote().expect("the standby becomes the primary");
    pair.proxy.lead_to(address(&pair.standby));
    let mut old = Client::of_url(&pair.primary.url("postgres"));
    let ports = old.texts(&format!(
        "SELECT DISTINCT client_port::text FROM pg_stat_activity a
         WHERE application_name = 'event-host' AND pid <> pg_backend_pid() AND {whose}"
    ));
    assert!(!ports.is_empty(), "no {what}");
    for connection in pair.proxy.connections() {
        if ports.contains(&connection.upstream_port().to_string()) {
            connection.close();
        }
    }
    says_what_changed(&pair.host);
    wait_until("it leads anew", PATIENCE, || pair.leads() > leads);
    pair.rig.publish(&events("new", 300));
    pair.expect_all_handled_once(what);
    pair.host.stop();
}

// Promises 1, 2 and 3.
#[test]
fn a_host_whose_lock_session_finds_another_server_moves_over_with_all_it_has() {
    let holds = "EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND locktype = 'advisory')";
    moves_over_when_it_loses("the lock session", holds);
}

// Promises 1, 2 and 3.
#[test]
fn a_host_whose_watcher_finds_another_server_moves_over_with_all_it_has() {
    moves_over_when_it_loses("the watcher", "query LIKE '%look_at_the_end%'");
}

// Promise 18.
#[test]
fn a_host_whose_server_only_reads_says_so_and_goes_on_when_it_writes_again() {
    let mut server = Server::start(&[]).expect("a server starts");
    let handler = Handler::new("tally", "tally", &["a"]).attempts(1);
    let rig = Rig::at(&server.url("postgres"), &Settings::of([handler]));
    let _ = rig.host(["migrate"]).ok();
    let host = rig.spawn_run();
    rig.publish(&events("before", 3));
    wait_until("they are handled", PATIENCE, || rig.number(HANDLED) == 3);
    let set = |value: &str| {
        let mut client = Client::new(&rig);
        client.execute(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
        client.execute("SELECT pg_reload_conf()");
    };
    set("on");
    rig.hang_up();
    server.restart(Stop::Fast).expect("the server starts");
    host.wait_for_log("it says so", |line| {
        line["level"] == "ERROR" && says(line, &["only reads", "the host needs the primary server"])
    });
    set("off");
    rig.publish(&events("after", 3));
    wait_until("they are handled", PATIENCE, || rig.number(HANDLED) == 6);
    assert_eq!(rig.number(HANDLED_TWICE), 0);
    host.stop();
}
