//! The log under fire (promises 1, 2, 3, 5, 7, 11, 12 and 18): sessions publish in
//! every way there is, while hosts are killed and frozen, their sessions ended
//! and the server restarted. At the end every event is handled once and in
//! order, or is a dead letter that was meant to be one.
//!
//! Once directly, and once through proxies, with a slow link, large events, hosts whose
//! sessions nobody ends when they are frozen, and a failover to a standby that was behind.
//!
//! `FIRE_SECONDS` says for how long, and `FIRE_SEED` makes the same choices as
//! the run that printed it; what comes of them still depends on the machine.

mod faults;
mod witness;
mod writers;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use serde_json::Value;
use test_postgres::{Server, Stop};
use tests::{Handler, PATIENCE, Rig, Settings, wait_until};

use faults::{Arena, Doors, Failover, url_at, url_for};
use witness::Witness;
use writers::{Account, Writers};

/// In the suite, in seconds.
const USUALLY: u64 = 30;

const WRITERS: u64 = 24;

/// So that a line of the server's log begins with who caused it and what it is:
/// `[pid] SQLSTATE application level: text`, without an application where it is
/// the server itself.
const LOG_LINE_PREFIX: &str = "[%p] %e %q%a ";

/// What the server may say of hosts: that it ends their sessions when a test
/// says so or the server stops, that it lets nobody in meanwhile, and that a
/// host that was killed is gone.
const MAY_BE_SAID: [(&str, &str); 4] = [
    ("57P01", "FATAL:  terminating connection due to administrator command"),
    ("57P01", "WARNING:  terminating connection due to immediate shutdown command"),
    ("57P03", "FATAL:  the database system is "),
    ("08006", "FATAL:  connection to client lost"),
];

/// What it may say besides where nobody else ends the sessions of a host that is frozen: the
/// limit of an idle transaction ends the one that the host left open, and another host that
/// wants the same row meanwhile stops waiting and tries again.
const MAY_BE_SAID_OF_THE_FROZEN: [(&str, &str); 2] = [
    ("25P03", "FATAL:  terminating connection due to idle-in-transaction timeout"),
    ("55P03", "ERROR:  canceling statement due to lock timeout"),
];

fn settings() -> Settings {
    // A crash may be counted as an attempt, and must not make a dead letter.
    let patient = |handler: Handler| handler.attempts(20);
    Settings::of([
        patient(Handler::new("tally", "tally", &["work"])),
        patient(Handler::new("chaos", "chaos", &["command"])),
        // What the others emit.
        patient(Handler::new("audit", "tally", &["seen", "reported"])),
    ])
}

#[test]
fn under_fire_every_committed_event_is_handled_once_and_in_order() {
    let seed = variable("FIRE_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let seconds = variable("FIRE_SECONDS").unwrap_or(USUALLY);
    println!("FIRE_SEED={seed} FIRE_SECONDS={seconds}");
    let prefix = ("log_line_prefix", LOG_LINE_PREFIX);
    let mut server = Server::start(&[prefix]).expect("a server starts");
    let url = url_for(&server, "tests");
    let rig = Rig::at(&url, &settings());
    let _ = rig.host(["migrate"]).ok();

    let witness = Witness::start(&url);
    let writers = Writers::start(&url, WRITERS, seed, false);
    let mut arena = Arena::new(&rig, &mut server, None, writers.keep_prepared(), seed);
    let faults = arena.fire(Duration::from_secs(seconds));
    let account = writers.stop();
    wait_until_drained(&rig);
    let (logs, _) = arena.stop();
    witness.stop();

    all_that_was_committed_is_in_the_log(&rig, &account, None);
    all_is_handled_once_and_in_order(&rig, &logs);
    each_leadership_went_forward(&logs, faults, None);
    no_host_broke(&logs);
    nothing_is_left_behind(&rig);
    rig.hang_up();
    server.stop(Stop::Fast).expect("the server stops");
    let log = server.log().expect("the server's log can be read");
    nothing_else_is_in_the_servers_log(&log, &[]);
}

#[test]
fn under_fire_a_standby_that_was_behind_takes_over_and_all_that_it_holds_is_handled_once() {
    let seed = variable("FIRE_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let seconds = variable("FIRE_SECONDS").unwrap_or(USUALLY);
    println!("FIRE_SEED={seed} FIRE_SECONDS={seconds}");
    let prefix = ("log_line_prefix", LOG_LINE_PREFIX);
    let mut server = Server::start(&[prefix]).expect("a server starts");
    let doors = Doors::before(&server, &[prefix]);
    let url = url_at(doors.others.port(), "tests");
    let rig = Rig::at(&url, &settings());
    let _ = rig.host(["migrate"]).ok();

    let witness = Witness::start(&url);
    let writers = Writers::start(&url, WRITERS, seed, true);
    let mut arena = Arena::new(&rig, &mut server, Some(doors), writers.keep_prepared(), seed);
    let half = Duration::from_secs(seconds) / 2;
    let mut faults = 1 + arena.fire(half);
    let failover = arena.fail_over(|| witness.forget());
    faults += arena.fire(half);
    let account = writers.stop();
    wait_until_drained(&rig);
    // What the test asks goes through them too.
    let (logs, _doors) = arena.stop();
    witness.stop();

    all_that_was_committed_is_in_the_log(&rig, &account, Some(&failover));
    all_is_handled_once_and_in_order(&rig, &logs);
    each_leadership_went_forward(&logs, faults, Some(&failover));
    no_host_broke(&logs);
    nothing_is_left_behind(&rig);
    rig.hang_up();
    server.stop(Stop::Fast).expect("the server stops");
    let log = server.log().expect("the server's log can be read");
    nothing_else_is_in_the_servers_log(&log[failover.said_before..], &MAY_BE_SAID_OF_THE_FROZEN);
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// What is emitted on the way is handled too: there is an end of it, as nothing
/// is emitted for it. It takes as long as it takes, on a busy machine too, but no group
/// stands still.
fn wait_until_drained(rig: &Rig) {
    rig.hang_up();
    let (mut before, mut since) = (-1, Instant::now());
    loop {
        let [behind, settled] = rig.numbers(
            "SELECT count(*) FILTER (WHERE head_position IS NOT NULL
                        OR position < (SELECT max(position) FROM events)),
                    coalesce(sum(settled), 0)::bigint
             FROM consumer_groups",
        );
        if behind == 0 {
            return;
        }
        if settled > before {
            (before, since) = (settled, Instant::now());
        }
        if since.elapsed() > PATIENCE {
            let groups = rig.host(["status", "--json"]);
            panic!("for {PATIENCE:?} no group has settled anything: {}", groups.stdout);
        }
        sleep(Duration::from_millis(100));
    }
}

fn all_that_was_committed_is_in_the_log(rig: &Rig, account: &Account, failover: Option<&Failover>) {
    let ids = rig.texts("SELECT id FROM events WHERE type IN ('work', 'command')");
    let log: BTreeSet<String> = ids.iter().cloned().collect();
    let Account { committed, undone, unknown, prepared } = account;
    println!(
        "{} events: {} known to be committed, {} undone, {} unknown; {prepared} transactions prepared",
        ids.len(),
        committed.len(),
        undone.len(),
        unknown.len()
    );
    assert_eq!(log.len(), ids.len(), "an event stands in the log twice");
    // What a standby never had is lost with the server that had it.
    let is_lost = |id: &&String| failover.is_some_and(|failover| failover.lost.contains(*id));
    if let Some(Failover { lost, .. }) = failover {
        println!("{} events were lost with the server", lost.len());
        assert!(!lost.is_empty(), "the standby was not behind");
    }
    let missing: Vec<_> = committed.difference(&log).filter(|id| !is_lost(id)).collect();
    assert!(missing.is_empty(), "committed, and not in the log: {missing:?}");
    let back: Vec<_> = log.intersection(undone).collect();
    assert!(back.is_empty(), "undone, and in the log: {back:?}");
    let strange: Vec<_> =
        log.iter().filter(|id| !committed.contains(*id) && !unknown.contains(*id)).collect();
    assert!(strange.is_empty(), "nobody knows of {strange:?}");
    assert!(committed.len() > 100 && *prepared > 10, "there was hardly any load");
}

fn all_is_handled_once_and_in_order(rig: &Rig, logs: &[Vec<Value>]) {
    let published = |condition: &str| {
        rig.texts(&format!("SELECT id FROM events WHERE {condition} ORDER BY position"))
    };
    let ids_of = |event_type: &str| -> Vec<String> {
        let id = |data: &Value| data["id"].as_str().expect("an id").to_owned();
        rig.data_of(event_type).iter().map(id).collect()
    };
    let work = published("type = 'work'");
    assert_same(&ids_of("seen"), &work);
    let good = published("type = 'command' AND id NOT LIKE '%-rejected'");
    assert_same(&ids_of("reported"), &good);
    let rejected = published("type = 'command' AND id LIKE '%-rejected'");
    let dead =
        rig.texts("SELECT event_id FROM dead_letters WHERE group_name = 'chaos' ORDER BY id");
    assert_same(&dead, &rejected);
    assert_eq!(rig.number("SELECT count(*) FROM dead_letters"), count(&rejected));

    assert_eq!(rig.state("tally", "count"), count(&work));
    assert_eq!(rig.state("tally", "type/work"), count(&work));
    assert_eq!(rig.state("chaos", "count"), count(&good));
    assert_eq!(rig.state("audit", "type/seen"), count(&work));
    assert_eq!(rig.state("audit", "type/reported"), count(&good));

    // After several leaderships without progress a crash counts, as it should.
    let suspicious = logs
        .iter()
        .flatten()
        .any(|line| text(&line["message"]).starts_with("no progress over several leaderships"));
    for report in rig.data_of("reported") {
        let expected = if text(&report["id"]).ends_with("-flaky") { 2 } else { 1 };
        let attempt = report["attempt"].as_u64().expect("an attempt");
        assert!(
            attempt == expected || suspicious && attempt > expected,
            "an attempt was counted that the handler had no part in: {report}"
        );
    }
}

fn count(ids: &[String]) -> i64 {
    i64::try_from(ids.len()).expect("a count")
}

/// Compares what was handled with what was to be, in order.
fn assert_same(handled: &[String], wanted: &[String]) {
    if handled == wanted {
        return;
    }
    let times = |ids: &[String]| {
        ids.iter().fold(BTreeMap::<String, i32>::new(), |mut times, id| {
            *times.entry(id.clone()).or_default() += 1;
            times
        })
    };
    let (handled_times, wanted_times) = (times(handled), times(wanted));
    let missing: Vec<_> = wanted.iter().filter(|id| !handled_times.contains_key(*id)).collect();
    let twice: Vec<_> = handled_times.iter().filter(|(_, times)| **times > 1).collect();
    let strange: Vec<_> = handled.iter().filter(|id| !wanted_times.contains_key(*id)).collect();
    let first = handled.iter().zip(wanted).position(|(handled, wanted)| handled != wanted);
    panic!(
        "{} handled of {}; never: {missing:?}; more than once: {twice:?}; wrongly: {strange:?}; \
         the order differs first at {first:?}",
        handled.len(),
        wanted.len()
    );
}

/// Whatever was committed of it: within a leadership no event is tried after a
/// later one, and no attempt after a later one of the same event. No two
/// leaderships have one epoch, and there are no more of them than the faults
/// explain: hosts do not take groups from each other. A server that was behind may give
/// an epoch out again that is known of the one before it.
fn each_leadership_went_forward(logs: &[Vec<Value>], faults: u64, failover: Option<&Failover>) {
    let mut epochs = BTreeSet::new();
    let mut attempts = 0;
    for log in logs {
        let mut last = (0, 0);
        for line in log {
            match text(&line["message"]) {
                "leading" => {
                    let server = failover.map(|failover| is_after(line, failover.at));
                    let epoch = (text(&line["group"]).to_owned(), line["epoch"].as_u64(), server);
                    if epoch.0 == "chaos" {
                        last = (0, 0);
                    }
                    assert!(epochs.insert(epoch.clone()), "two leaderships of {epoch:?}");
                }
                "attempt" => {
                    let number = |field: &str| line["span"][field].as_u64().expect("a number");
                    let now = (number("position"), number("attempt"));
                    assert!(last <= now, "{now:?} was tried after {last:?}");
                    last = now;
                    attempts += 1;
                }
                _ => {}
            }
        }
    }
    println!("{} leaderships, {attempts} attempts of chaos", epochs.len());
    // One at the start. A fault ends a leadership, and the one that follows may
    // begin while the fault still lasts, as at a restart.
    let most = (1 + 2 * faults) * 3;
    assert!(epochs.len() as u64 <= most, "{} leaderships of {faults} faults", epochs.len());
}

/// Whether a line of a host's log was written after a moment.
fn is_after(line: &Value, moment: SystemTime) -> bool {
    let written: Timestamp = text(&line["timestamp"]).parse().expect("a line has its time");
    written > Timestamp::try_from(moment).expect("a time of day")
}

fn no_host_broke(logs: &[Vec<Value>]) {
    for line in logs.iter().flatten() {
        // What is no JSON is the error of a host that gave up.
        assert!(line.is_object(), "{line}");
        let message = text(&line["message"]);
        for broke in ["panicked: ", "starting it again", "broke, and begins anew"] {
            assert!(!message.contains(broke), "{line}");
        }
    }
}

fn nothing_is_left_behind(rig: &Rig) {
    wait_until("no session of a host is left", PATIENCE, || {
        rig.number("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'host-%'")
            == 0
    });
    assert_eq!(rig.number("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 0);
    assert_eq!(rig.number("SELECT count(*) FROM pg_prepared_xacts"), 0);
    assert_eq!(rig.number("SELECT count(*) FROM consumer_groups WHERE leader IS NOT NULL"), 0);
}

/// Of what is worse than a word in passing, nothing may come from the hosts but
/// [`MAY_BE_SAID`] and `besides`, and nothing at all from the server itself.
fn nothing_else_is_in_the_servers_log(log: &str, besides: &[(&str, &str)]) {
    let bad: Vec<&str> = log
        .lines()
        .filter(|line| {
            ["WARNING: ", "ERROR: ", "FATAL: ", "PANIC: "].iter().any(|level| line.contains(level))
        })
        .filter(|line| {
            let mut words = line.splitn(4, ' ').skip(1);
            let (code, who) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let said = words.next().unwrap_or_default();
            let others = ["writer", "resolver", "witness", "tests"];
            let allowed =
                |(allowed, text): &(&str, &str)| code == *allowed && said.starts_with(text);
            !others.contains(&who) && !MAY_BE_SAID.iter().chain(besides).any(allowed)
        })
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
