//! A database that is not there yet when a host starts: it is waited for, and what says no
//! is not.

use std::time::{Duration, Instant};

use serde_json::Value;
use test_postgres::{Server, Stop};
use tests::{Handler, Rig, Settings};

/// What the host says of a database that it waits for.
const WAITS: &str = "the database is not there yet, and the host waits for it";

/// Less than the host would wait, and far more than a refusal takes.
const AT_ONCE: Duration = Duration::from_secs(30);

fn settings() -> Settings {
    Settings::of([Handler::new("idle", "tally", &["nothing"])])
}

/// A server that does not run, and what uses it.
fn stopped() -> (Server, Rig) {
    let mut server = Server::start(&[]).expect("a server");
    let rig = Rig::at(&server.url("postgres"), &settings());
    server.stop(Stop::Fast).expect("it stops");
    (server, rig)
}

/// Whether a line of the log begins with this.
fn says(what: &str) -> impl Fn(&Value) -> bool {
    move |line| line["message"].as_str().is_some_and(|said| said.starts_with(what))
}

/// Runs a host that is to end at once, and gives what it says.
fn refused(rig: &Rig) -> String {
    let begun = Instant::now();
    let said = rig.host(["run", "--wait", "10m"]).failed(1);
    assert!(begun.elapsed() < AT_ONCE, "{said}");
    assert!(!said.contains(WAITS), "{said}");
    said
}

#[test]
fn a_server_that_is_started_after_the_host_is_waited_for() {
    let (mut server, rig) = stopped();
    let host = rig.spawn(&["run", "--wait", "10m"]);
    host.wait_for_log("it waits", says(WAITS));
    // It says so once, and again after ten seconds.
    let still = "the database is not there yet, and the host still waits for it";
    let again = host.wait_for_log("it still waits", says(still));
    assert!(again["waited"].as_str().is_some_and(|waited| waited.starts_with("1")), "{again}");
    let said = |what| host.log().iter().filter(|line| says(what)(line)).count();
    assert_eq!((said(WAITS), said(still)), (1, 1));
    server.resume().expect("it starts");
    host.wait_until_leading("idle");
    host.stop();
}

#[test]
fn a_server_that_does_not_come_ends_the_host_when_its_time_is_up() {
    let (_server, rig) = stopped();
    let said = rig.host(["run", "--wait", "1500ms"]).failed(1);
    assert!(said.contains(WAITS) && said.contains("the database did not come within 1s"), "{said}");
    assert!(said.contains("cannot be reached"), "{said}");
    // As it was without the option.
    let said = rig.host(["run", "--wait", "0s"]).failed(1);
    assert!(!said.contains(WAITS) && said.contains("cannot be reached"), "{said}");
}

#[test]
fn a_stop_ends_a_host_that_waits() {
    let (_server, rig) = stopped();
    let host = rig.spawn(&["run", "--wait", "10m"]);
    host.wait_for_log("it waits", says(WAITS));
    host.stop();
}

#[test]
fn what_says_no_is_refused_at_once() {
    let server = Server::start(&[]).expect("a server");
    let said = refused(&Rig::at(&server.url("missing"), &settings()));
    assert!(said.contains("lets nobody in") && said.contains("missing"), "{said}");
    let url = server.url("postgres").replace("postgres://postgres@", "postgres://stranger:wrong@");
    let said = refused(&Rig::at(&url, &settings()));
    assert!(said.contains("lets nobody in") && said.contains("stranger"), "{said}");

    let rig = Rig::on(tests::Store::Sqlite, &settings());
    rig.write("host.db", "this is no database, and long enough to be told from an empty one");
    let said = refused(&rig);
    assert!(said.contains("host.db"), "{said}");

    let said = rig.host(["run", "--wait", "soon"]).failed(2);
    assert!(said.contains("write a duration such as 30s"), "{said}");
}
