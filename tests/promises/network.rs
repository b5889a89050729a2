//! The network between a host and the server: it stalls, breaks, swallows
//! answers and delivers them late (promises 1, 2, 3, 7, 10, 11, 17 and 18).
//!
//! The host under test reaches the server through a proxy; the test, and other
//! hosts, directly.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_postgres::Server;
use tests::{
    Client, Connection, Handler, Namespace, PATIENCE, Proxy, Rig, Running, Settings, Store, event,
    wait_for, wait_until,
};

use super::swap::{BROKEN, deploy};

/// How long after its last proof a host leads, at most, and a little more.
const STEPS_DOWN_WITHIN: Duration = Duration::from_millis(6_000);

/// Promise 10.
const REPLACED_WITHIN: Duration = Duration::from_secs(15);

/// A rig, with a proxy before its server.
struct Far {
    rig: Rig,
    proxy: Proxy,
    url: String,
}

impl Far {
    fn new(settings: &Settings) -> Self {
        let rig = Rig::on(Store::Postgres, settings);
        let (proxy, url) = Proxy::before(rig.url(), "far");
        Self { rig, proxy, url }
    }

    /// A host behind the proxy that leads these groups.
    fn lead(&self, groups: &[&str]) -> Running {
        let host = self.rig.spawn(&["run", "--database", &self.url]);
        for group in groups {
            host.wait_until_leading(group);
        }
        host
    }

    fn settled(&self, group: &str) -> [i64; 3] {
        self.rig.numbers(&format!(
            "SELECT settled, position, epoch FROM consumer_groups WHERE name = '{group}'"
        ))
    }
}

fn chaos() -> Handler {
    Handler::new("chaos", "chaos", &["command"]).attempts(1)
}

/// Counts, and emits `out`.
fn command(id: impl ToString) -> Value {
    let data = json!([{ "do": "count", "key": "count" }, { "do": "report", "type": "out" }]);
    event("command", id, data)
}

/// What a settlement of this number sends to the server, in part: the values of
/// the number and of the group's name, each after its length.
fn settlement(number: i64, group: &str) -> Vec<u8> {
    let value = |bytes: &[u8]| {
        let length = i32::try_from(bytes.len()).expect("a short value");
        [&length.to_be_bytes()[..], bytes].concat()
    };
    [value(&number.to_be_bytes()), value(group.as_bytes())].concat()
}

fn is_lost(line: &Value) -> bool {
    line["message"] == "no longer leader; nothing more was committed"
}

/// Handlers that never end, and for the host that replaces theirs, ones that do
/// at once.
fn endless_and_its_replacement(rig: &Rig) {
    let instead = Settings::of([Handler::new("chaos", "tally", &["command"])]);
    let near = format!("database = \"{}\"\n{}", rig.url(), instead.to_toml());
    rig.write("near.toml", near);
    let data = json!([
        { "do": "count", "key": "count of the far host" },
        { "do": "emit", "type": "of the far host" },
        { "do": "log", "line": "begun" },
        { "do": "sleep", "ms": 3_000_000 },
    ]);
    rig.publish(&[event("command", 1, data)]);
}

fn endless() -> Settings {
    Settings::of([chaos().set("limits.timeout = \"1h\"")]).top("grace = \"2s\"")
}

/// What must be true once the near host has replaced the far one, which had one
/// event under way.
fn only_the_near_host_handled_it(rig: &Rig) {
    wait_until("the event is handled", PATIENCE, || rig.state("chaos", "count") == 1);
    the_far_host_committed_nothing(rig);
}

fn the_far_host_committed_nothing(rig: &Rig) {
    assert_eq!(rig.state("chaos", "count of the far host"), 0);
    assert_eq!(rig.data_of("of the far host"), Vec::<Value>::new());
    assert_eq!(rig.group("chaos")["epoch"], 2);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

// Promises 3, 10, 11 and 17.
#[test]
fn a_host_whose_server_falls_silent_steps_down_is_replaced_and_still_stops() {
    let Far { rig, proxy, url } = &Far::new(&endless());
    endless_and_its_replacement(rig);
    let mut far = rig.spawn(&["run", "--database", url]);
    far.wait_for_message("begun");
    let near = rig.spawn(&["run", "near.toml"]);
    near.wait_for_message("another host leads; standing by");

    proxy.stall();
    let stalled = Instant::now();
    far.wait_for_log_within(STEPS_DOWN_WITHIN, "it steps down", is_lost);
    near.wait_for_log_within(
        REPLACED_WITHIN.saturating_sub(stalled.elapsed()),
        "the near host leads",
        |line| line["message"] == "leading",
    );
    only_the_near_host_handled_it(rig);

    far.sigterm();
    assert!(far.wait_within(Duration::from_secs(5)).success(), "{:#?}", far.log());
    near.stop();
}

// Promise 17.
#[test]
fn a_host_whose_server_is_silent_stops_within_its_grace() {
    let settings = Settings::of([chaos(), Handler::new("noop", "noop", &["command"])]);
    let far = Far::new(&settings.top("grace = \"2s\""));
    far.rig.publish(&[command(1)]);
    let mut host = far.lead(&["chaos", "noop"]);
    far.rig.wait_until_handled("chaos", 1);
    far.rig.wait_until_handled("noop", 1);
    far.proxy.stall();
    host.sigterm();
    // Two seconds of grace, two more for the answer to the settlement and for
    // that to the end of the leadership, and two for the machine.
    assert!(host.wait_within(Duration::from_secs(8)).success(), "{:#?}", host.log());
}

/// A host whose new version has failed everything, and that waits for the server
/// to roll its deployment back; the server never hears of it.
fn rolling_back_in_vain() -> (Far, Running) {
    let handler = Handler::of_file("versioned", "deployed", &["a"])
        .set("retry = { initial = \"5ms\", multiplier = 1 }")
        .set("breaker = { on_trip = \"rollback\", attempts_after_swap = 1 }");
    let far = Far::new(&Settings::of([handler]));
    deploy(&far.rig, 1);
    let host = far.lead(&["versioned"]);
    far.rig.publish(&[event("a", 1, json!({}))]);
    far.rig.wait_until_handled("versioned", 1);
    // What looks for the version to go back to, and nothing else that a host asks.
    far.proxy.hold_before(b"state = 'previous'");
    deploy(&far.rig, BROKEN);
    host.wait_for_message("another version takes over");
    far.rig.publish(&[event("a", 2, json!({}))]);
    let _: Connection = far.proxy.wait_until_held(PATIENCE);
    (far, host)
}

fn active_version(far: &Far) -> i64 {
    far.rig.number("SELECT version FROM deployments WHERE state = 'active'")
}

// Promise 17.
#[test]
fn a_server_that_stalls_in_a_roll_back_does_not_hold_up_a_stop() {
    let (far, mut host) = rolling_back_in_vain();
    host.sigterm();
    // The statement would be waited for as long as 15 s.
    assert!(host.wait_within(Duration::from_secs(8)).success(), "{:#?}", host.log());
    assert_eq!(active_version(&far), 2, "it is not rolled back");
    assert_eq!(far.rig.group("versioned")["leader"], Value::Null, "the end is a clean one");
    assert_eq!(far.rig.dead_letters(), Vec::<Value>::new());
}

// Promise 11.
#[test]
fn a_server_that_stalls_in_a_roll_back_does_not_hold_up_a_step_down() {
    let (far, mut host) = rolling_back_in_vain();
    far.proxy.stall();
    host.wait_for_log_within(STEPS_DOWN_WITHIN, "it steps down", is_lost);
    assert_eq!(active_version(&far), 2, "it is not rolled back");
    host.sigterm();
    assert!(host.wait_within(Duration::from_secs(5)).success(), "{:#?}", host.log());
}

// Promises 1, 2, 7 and 18.
#[test]
fn connections_that_break_in_mid_batch_lose_nothing_and_count_nothing() {
    const EVENTS: i64 = 600;
    let settings = Settings::of([chaos().set("batch.max_events = 20")]);
    let far = Far::new(&settings);
    let host = far.lead(&["chaos"]);
    let ids: Vec<String> = (0..EVENTS).map(|n| n.to_string()).collect();
    far.rig.publish(&ids.iter().map(command).collect::<Vec<_>>());
    for round in 1..=6 {
        let far_enough = EVENTS / 8 * round;
        wait_until("it goes on", PATIENCE, || far.rig.state("chaos", "count") >= far_enough);
        if round % 2 == 0 {
            far.proxy.reset_all();
        } else {
            far.proxy.drop_all();
        }
    }
    wait_until("all are handled", PATIENCE, || far.rig.state("chaos", "count") >= EVENTS);
    host.stop();
    let reports = far.rig.data_of("out");
    let reported: Vec<&str> = reports.iter().filter_map(|report| report["id"].as_str()).collect();
    assert_eq!(reported, ids);
    assert!(reports.iter().all(|report| report["attempt"] == 1), "{reports:?}");
    assert_eq!(far.rig.state("chaos", "count"), EVENTS);
    assert_eq!(far.rig.dead_letters(), Vec::<Value>::new());
}

// Promise 2.
#[test]
fn a_commit_whose_answer_is_lost_is_not_repeated() {
    let settings = Settings::of([chaos(), Handler::new("noop", "noop", &["nothing"])]);
    let far = Far::new(&settings);
    let host = far.lead(&["chaos", "noop"]);
    // Once in a transaction, and once in the one statement that commits by itself.
    for (group, commit, published) in [
        ("chaos", b"COMMIT".to_vec(), command(1)),
        ("noop", settlement(1, "noop"), event("nothing", 2, json!(null))),
    ] {
        far.proxy.hold_after(&commit);
        far.rig.publish(&[published]);
        let connection = far.proxy.wait_until_answered(PATIENCE);
        let [settled, ..] = far.settled(group);
        assert_eq!(settled, 1, "{group}: it is committed, and the host does not know");
        connection.reset();
        host.wait_for_log("it has found out", |line| {
            line["group"] == group && line["message"] == "can settle again"
        });
        let [settled, _, epoch] = far.settled(group);
        assert_eq!((settled, epoch), (1, 1), "{group}");
    }
    host.stop();
    assert_eq!(far.rig.state("chaos", "count"), 1);
    assert_eq!(far.rig.data_of("out").len(), 1);
}

/// Waits until a host has given up a settlement that the network keeps, has
/// settled all the same and went on; then lets the network deliver it.
fn is_refused_when_it_comes_late(group: &str, guest: &str, commit: &[u8]) {
    let far = Far::new(&Settings::of([Handler::new(group, guest, &["command"]).attempts(1)]));
    let host = far.lead(&[group]);
    far.proxy.hold_before(commit);
    far.rig.publish(&[command(1)]);
    let late: Connection = far.proxy.wait_until_held(PATIENCE);
    assert_eq!(far.settled(group)[0], 0);
    host.wait_for_log("it gives up, and settles", |line| line["message"] == "can settle again");
    far.rig.publish(&[command(2)]);
    wait_until("it goes on", PATIENCE, || far.settled(group)[0] == 2);
    let before = far.settled(group);

    assert!(late.is_open());
    late.resume();
    wait_until("the server has had it all", PATIENCE, || !late.is_open());
    assert_eq!(far.settled(group), before);
    far.rig.publish(&[command(3)]);
    wait_until("it goes on", PATIENCE, || far.settled(group)[0] == 3);
    let after = far.settled(group);
    assert!(before[1] < after[1] && before[2] == after[2], "{before:?} {after:?}");
    host.stop();
    let handled = if guest == "chaos" { 3 } else { 0 };
    assert_eq!(far.rig.state(group, "count"), handled);
    let reports = far.rig.data_of("out");
    let ids: Vec<&str> = reports.iter().filter_map(|report| report["id"].as_str()).collect();
    assert_eq!(ids, ["1", "2", "3"][..usize::try_from(handled).expect("a count")]);
}

// Promises 2 and 3.
#[test]
fn a_settlement_that_comes_late_is_refused() {
    std::thread::scope(|scope| {
        scope.spawn(|| is_refused_when_it_comes_late("noop", "noop", &settlement(1, "noop")));
        scope.spawn(|| is_refused_when_it_comes_late("chaos", "chaos", b"COMMIT"));
    });
}

#[test]
fn without_hints_an_event_still_comes_at_once() {
    let far = Far::new(&Settings::of([Handler::new("tally", "tally", &["a"])]));
    let host = far.lead(&["tally"]);
    let mut client = Client::new(&far.rig);
    let listener = || {
        wait_for("a session listens", PATIENCE, || {
            let listens = "SELECT client_port::bigint FROM pg_stat_activity
                           WHERE datname = current_database() AND query LIKE 'LISTEN%'";
            Some(far.rig.number(listens)).filter(|port| *port != 0)
        })
    };
    let connection_of = |port: i64| {
        let open = far.proxy.connections();
        let found = open.iter().find(|connection| i64::from(connection.upstream_port()) == port);
        found.expect("the listener comes through the proxy").clone()
    };
    let first = listener();
    let mut count = 0;
    let mut publish = |what: &str| {
        client.execute("INSERT INTO events (type) VALUES ('a')");
        count += 1;
        wait_until(what, Duration::from_secs(3), || far.rig.state("tally", "count") == count);
    };
    connection_of(first).stall();
    for _ in 0..5 {
        publish("it is handled while the listener hears nothing");
    }
    connection_of(first).reset();
    publish("it is handled without a listener");
    let second = wait_for("another session listens", PATIENCE, || {
        Some(listener()).filter(|port| *port != first)
    });
    connection_of(second).close();
    publish("it is handled without a listener");
    let troubles: Vec<Value> = host
        .log()
        .into_iter()
        .filter(|line| {
            let target = line["target"].as_str().unwrap_or_default();
            line["level"] != "INFO" && target.starts_with("event_host")
        })
        .collect();
    assert_eq!(troubles, Vec::<Value>::new());
    host.stop();
}

// Promise 18.
#[test]
fn a_server_that_lets_nobody_in_is_asked_ever_more_seldom_and_named_once() {
    const OUTAGE: Duration = Duration::from_secs(10);
    let groups = ["one", "two", "three", "four"];
    let handlers = groups.map(|group| Handler::new(group, "tally", &["a"]));
    let far = Far::new(&Settings::of(handlers));
    let host = far.lead(&groups);
    far.proxy.refuse();
    far.proxy.drop_all();
    // The outage is what is tested; there is nothing else to wait for.
    std::thread::sleep(OUTAGE / 2);
    let early = far.proxy.traffic().refused;
    std::thread::sleep(OUTAGE / 2);
    let late = far.proxy.traffic().refused - early;
    far.proxy.accept();
    let accepted = Instant::now();
    far.rig.publish(&[event("a", 1, json!(null))]);
    wait_until("it goes on by itself", Duration::from_secs(10), || {
        groups.iter().all(|group| far.rig.state(group, "count") == 1)
    });
    println!("{early} and {late} tries, back after {:?}", accepted.elapsed());
    assert!(early >= 3, "it hardly tried");
    // In the first 5 s each of what needs the server tries up to 6 times, 0.1 s and then twice
    // as long apart: four groups until they are lost, the lock session, the watcher, the
    // retention. Later three loops do, each up to 6 s apart.
    let most = 6 * (u64::try_from(groups.len()).expect("a number") + 3);
    assert!(early <= most && late <= 9, "{early} and {late} tries");
    let mut said: Vec<String> = host
        .log()
        .iter()
        .filter(|line| line["level"] != "INFO")
        .map(|line| format!("{} {}", line["group"], line["message"]))
        .collect();
    let lines = said.len();
    said.sort();
    said.dedup();
    assert_eq!(lines, said.len(), "something was said twice: {said:#?}");
    // Each group may have been in the middle of something, and each has lost its lock;
    // and then the lock session, the watcher and the retention. Each says each reason once,
    // and a connection that is refused at the door breaks in three ways.
    assert!(lines <= 3 * (2 * groups.len() + 4), "{said:#?}");
    host.stop();
}

// Promises 3, 10 and 11.
#[test]
fn a_host_whose_cable_is_cut_is_replaced_and_commits_nothing_when_it_is_mended() {
    let namespace = match Namespace::create() {
        Ok(namespace) => namespace,
        Err(reason) => return println!("skipped: no network namespaces here: {reason}"),
    };
    let server = Server::start(&[("listen_addresses", "*")]).expect("a server starts");
    let rig = Rig::at(&server.url("postgres"), &endless());
    let trusted = [&format!("{}/32", Ipv4Addr::LOCALHOST), Namespace::NETWORK];
    let trust = trusted.map(|network| format!("host all all {network} trust\n")).concat();
    server.put("pg_hba.conf", &trust).expect("the server's settings can be written");
    Client::of_url(rig.url()).execute("SELECT pg_reload_conf()");
    endless_and_its_replacement(&rig);

    let url =
        format!("postgres://postgres@{}:{}/postgres", namespace.host_address(), server.port());
    let far = wait_for("the server lets the namespace in", PATIENCE, || {
        let far = rig.spawn_inside(&namespace, &["run", "--database", &url]);
        // One that is not let in ends with an error, which is no JSON. One that is slow
        // must not be given up: the next would lead with another epoch.
        let line = far.wait_for_log("it has begun, or is refused", |line| {
            line["message"] == "begun" || line.is_string()
        });
        (line["message"] == "begun").then_some(far)
    });
    let near = rig.spawn(&["run", "near.toml"]);
    near.wait_for_message("another host leads; standing by");

    namespace.cut();
    let cut = Instant::now();
    far.wait_for_log_within(STEPS_DOWN_WITHIN, "it steps down", is_lost);
    near.wait_for_log_within(
        REPLACED_WITHIN.saturating_sub(cut.elapsed()),
        "the near host leads",
        |line| line["message"] == "leading",
    );
    only_the_near_host_handled_it(&rig);

    namespace.heal();
    far.wait_for_message("another host leads; standing by");
    rig.publish(&[event("command", 2, json!({ "do": "succeed" }))]);
    wait_until("the near host goes on", PATIENCE, || rig.state("chaos", "count") == 2);
    assert_eq!(rig.group("chaos")["leader"]["host"]["pid"], near.pid());
    the_far_host_committed_nothing(&rig);
    far.stop();
    near.stop();
}
