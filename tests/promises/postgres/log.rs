//! The log, with transactions held open at known points: what commits late is
//! handled in its place (promises 1 and 2), what wrote nothing or was rolled
//! back stalls nothing (promise 5), who holds the log up is named (promise 19).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Client, Handler, PATIENCE, Rig, Running, Settings, Store, event, wait_until};

use super::says;

/// What a commit may take to be handled, on a machine that does much else.
const AT_ONCE: Duration = Duration::from_secs(1);

/// An event whose handler emits a `seen` event with its position.
const INSERT: &str =
    r#"INSERT INTO events (type, data) VALUES ('command', '{"do":"report","type":"seen"}')"#;

/// An idle host, which has handled nothing yet.
fn idle() -> (Rig, Running) {
    let rig = Rig::on(
        Store::Postgres,
        &Settings::of([Handler::new("chaos", "chaos", &["command"]).attempts(1)]),
    );
    let host = rig.spawn_run();
    host.wait_until_leading("chaos");
    (rig, host)
}

/// The positions that were handled, in the order in which they were.
fn handled(rig: &Rig) -> Vec<i64> {
    let seen = rig.data_of("seen");
    seen.iter().map(|report| report["position"].as_i64().expect("a number")).collect()
}

fn count_handled(rig: &Rig) -> i64 {
    rig.number("SELECT count(*) FROM events WHERE type = 'seen'")
}

/// Commits an event, and expects it to be handled at once.
fn flows(rig: &Rig, client: &mut Client) {
    let before = count_handled(rig);
    client.execute(INSERT);
    wait_until("what is committed now is handled at once", AT_ONCE, || {
        count_handled(rig) == before + 1
    });
}

/// Waits until the host has said that it is held up, which takes about a second,
/// and checks that nothing was handled.
fn wait_until_held_up(rig: &Rig, host: &Running, by: &str) {
    host.wait_for_log("the log is held up", |line| says(line, &["the log is held up", by]));
    assert_eq!(handled(rig), Vec::<i64>::new());
}

/// Events of these positions, and no others, were handled once and in order.
fn expect_handled(rig: &Rig, host: Running, positions: &[i64]) {
    wait_until("all that was committed is handled", PATIENCE, || {
        count_handled(rig) >= positions.len() as i64
    });
    host.stop();
    assert_eq!(handled(rig), positions);
    let committed =
        rig.numbers("SELECT count(*), min(position) FROM events WHERE type = 'command'");
    assert_eq!(committed, [positions.len() as i64, positions[0]]);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
}

// Promise 1.
#[test]
fn an_event_that_is_committed_after_a_later_one_is_handled_before_it() {
    let (rig, host) = idle();
    let [mut early, mut late] = [Client::new(&rig), Client::new(&rig)];
    early.execute("BEGIN");
    early.execute(INSERT);
    late.execute(INSERT);
    let begun = Instant::now();
    // Longer than any host waits for anything else: no clock may skip a gap.
    wait_until("it has been open for long", PATIENCE, || {
        assert_eq!(count_handled(&rig), 0, "after {:?}", begun.elapsed());
        begun.elapsed() > Duration::from_secs(6)
    });
    early.execute("COMMIT");
    expect_handled(&rig, host, &[1, 2]);
}

/// Publishes an event in a transaction that is prepared, and gives its name.
fn prepare(rig: &Rig) -> String {
    let mut client = Client::new(rig);
    // Names are those of the whole server, not of one database.
    let name = format!("late-{:x}", client.number("SELECT (random() * 1e15)::bigint"));
    client.execute("BEGIN");
    client.execute(INSERT);
    client.execute(&format!("PREPARE TRANSACTION '{name}'"));
    // Nothing is left of it but what the server keeps.
    name
}

// Promise 1.
#[test]
fn an_event_of_a_prepared_transaction_is_handled_in_its_place() {
    let (rig, host) = idle();
    let name = prepare(&rig);
    let mut late = Client::new(&rig);
    late.execute(INSERT);
    wait_until_held_up(&rig, &host, "prepared transaction");
    late.execute(&format!("COMMIT PREPARED '{name}'"));
    expect_handled(&rig, host, &[1, 2]);
}

// Promises 1 and 5.
#[test]
fn events_of_savepoints_are_handled_if_their_savepoint_is_kept() {
    let (rig, host) = idle();
    let [mut early, mut late] = [Client::new(&rig), Client::new(&rig)];
    for sql in [
        "BEGIN",
        "SAVEPOINT one",
        INSERT,
        "RELEASE one",
        "SAVEPOINT two",
        INSERT,
        "ROLLBACK TO two",
        INSERT,
        "SAVEPOINT three",
        INSERT,
        "RELEASE three",
    ] {
        early.execute(sql);
    }
    late.execute(INSERT);
    wait_until_held_up(&rig, &host, "of role");
    early.execute("COMMIT");
    expect_handled(&rig, host, &[1, 3, 4, 5]);
}

// Promise 5.
#[test]
fn a_rolled_back_publish_never_stalls_the_log() {
    let (rig, host) = idle();
    let mut client = Client::new(&rig);
    let mut other = Client::new(&rig);
    for _ in 0..10 {
        other.execute("BEGIN");
        other.execute(INSERT);
        other.execute("ROLLBACK");
        flows(&rig, &mut client);
    }
    // Also while the transaction goes on.
    other.execute("BEGIN");
    other.execute("SAVEPOINT one");
    other.execute(INSERT);
    other.execute("ROLLBACK TO one");
    flows(&rig, &mut client);
    other.execute("ROLLBACK");
    // Also one that failed, and one whose session is gone.
    other.execute("BEGIN");
    other.execute(INSERT);
    let _ = other.try_execute("SELECT 1 / 0").expect_err("a division by zero");
    flows(&rig, &mut client);
    other.execute("ROLLBACK");
    other.execute("BEGIN");
    other.execute(INSERT);
    let pid = other.number("SELECT pg_backend_pid()::bigint");
    client.execute(&format!("SELECT pg_terminate_backend({pid})"));
    flows(&rig, &mut client);
    // Also many at once.
    client.execute("BEGIN");
    for _ in 0..1_000 {
        client.execute(INSERT);
    }
    client.execute("ROLLBACK");
    flows(&rig, &mut client);
    assert_eq!(count_handled(&rig), 14);
    assert_eq!(rig.number("SELECT count(*) FROM events WHERE type = 'command'"), 14);
    host.stop();
}

// Promise 5.
#[test]
fn transactions_that_wrote_no_event_stall_nothing_however_long_they_are_open() {
    let (rig, host) = idle();
    // The same tables in another database of the same server.
    let elsewhere = Rig::on(Store::Postgres, &Settings::default());
    let _ = elsewhere.host(["migrate"]).ok();
    let mut client = Client::new(&rig);
    client.execute("CREATE TABLE public.orders (id bigint)");
    let open: Vec<Client> = [
        (&elsewhere, vec![INSERT]),
        (&elsewhere, vec!["CREATE TABLE public.orders (id bigint)"]),
        (&rig, vec!["INSERT INTO public.orders VALUES (1)"]),
        (&rig, vec!["CREATE TEMPORARY TABLE notes (id bigint)", "INSERT INTO notes VALUES (1)"]),
        (&rig, vec!["SELECT count(*) FROM events"]),
        (&rig, vec!["SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SELECT * FROM events"]),
        (&rig, vec!["SELECT pg_current_xact_id()"]),
        (&rig, vec!["SELECT * FROM consumer_groups FOR KEY SHARE"]),
    ]
    .into_iter()
    .map(|(rig, statements)| {
        let mut session = Client::new(rig);
        session.execute("BEGIN");
        for sql in statements {
            session.execute(sql);
        }
        session
    })
    .collect();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        flows(&rig, &mut client);
    }
    let idle =
        client.number("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'");
    assert!(idle >= open.len() as i64, "only {idle} are open");
    let held = host.log().into_iter().find(|line| says(line, &["held up"]));
    assert_eq!(held, None);
    host.stop();
}

// Promise 19.
#[test]
fn who_holds_the_log_up_is_named_once_and_its_end_is_said() {
    let (rig, host) = idle();
    let status = rig.json(&["status"]);
    assert_eq!(status["held_up_by"], json!([]));
    rig.hang_up();
    let mut holder = Client::of_url(&format!("{}?application_name=shop", rig.url()));
    let pid = holder.number("SELECT pg_backend_pid()::bigint");
    holder.execute("BEGIN");
    holder.execute(INSERT);
    rig.publish(&[event("command", 1, json!({ "do": "report", "type": "seen" }))]);
    let named =
        format!("the transaction of server process {pid} (shop) of role postgres, open for");
    wait_until_held_up(&rig, &host, &named);

    let status = rig.json(&["status"]);
    let by = &status["held_up_by"];
    assert_eq!(by.as_array().map(Vec::len), Some(1), "{by}");
    assert_eq!((&by[0]["pid"], &by[0]["application"]), (&json!(pid), &json!("shop")));
    assert_eq!((&by[0]["user"], &by[0]["prepared"]), (&json!("postgres"), &Value::Null));
    assert!(by[0]["age_seconds"].as_f64().is_some_and(|age| age > 1.0), "{by}");
    let text = rig.host(["status"]).ok();
    assert!(text.contains(&format!("the log is held up by {named}")), "{text}");

    // It is asked for each second; long enough to be said again.
    let begun = Instant::now();
    wait_until("it has been held up for a while", PATIENCE, || {
        begun.elapsed() > Duration::from_millis(2_500)
    });
    holder.execute("COMMIT");
    host.wait_for_message("the log is no longer held up");
    wait_until("both are handled", AT_ONCE, || count_handled(&rig) == 2);
    assert_eq!(rig.json(&["status"])["held_up_by"], json!([]));
    let said = host.log().into_iter().filter(|line| says(line, &["the log is held up"])).count();
    assert_eq!(said, 1);
    host.stop();
}

// Promise 19.
#[test]
fn a_prepared_transaction_that_holds_the_log_up_is_named() {
    let (rig, host) = idle();
    let name = prepare(&rig);
    let named = format!("the prepared transaction `{name}` of role postgres, open for");
    wait_until_held_up(&rig, &host, &named);
    let text = rig.host(["status"]).ok();
    assert!(text.contains(&format!("the log is held up by {named}")), "{text}");
    let by = &rig.json(&["status"])["held_up_by"];
    assert_eq!((&by[0]["pid"], &by[0]["prepared"]), (&Value::Null, &json!(name)));
    rig.hang_up();
    Client::new(&rig).execute(&format!("ROLLBACK PREPARED '{name}'"));
    host.wait_for_message("the log is no longer held up");
    host.stop();
}

/// A rig whose group `poisoned` is suspected after two crashes, with an event
/// under way for an hour, and the third host.
fn with_a_poisoned_group() -> (Rig, Running) {
    let rig = Rig::on(
        Store::Postgres,
        &Settings::of([
            Handler::new("poisoned", "chaos", &["deadly"]).set("limits.timeout = \"1h\""),
            Handler::new("failing", "chaos", &["bad"])
                .set("retry = { max_attempts = 100000, initial = \"1ms\", max = \"1ms\" }"),
            Handler::new("locked", "tally", &["good"]).attempts(1),
            Handler::new("paused", "tally", &["good"]),
            Handler::new("innocent", "tally", &["good"]),
        ])
        .top("grace = \"0s\""),
    );
    rig.publish(&[event("deadly", 0, json!({ "do": "sleep", "ms": 3_600_000 }))]);
    for crash in 1..=2 {
        let host = rig.spawn_run();
        wait_until("it is under way", PATIENCE, || {
            rig.number("SELECT fruitless FROM consumer_groups WHERE name = 'poisoned'") == crash
        });
        host.kill9();
    }
    let host = rig.spawn_run();
    wait_until("it is marked", PATIENCE, || {
        rig.number("SELECT count(*) FROM consumer_groups WHERE mark_position IS NOT NULL") == 1
    });
    (rig, host)
}

// Promise 4.
#[test]
fn a_locked_a_failing_a_paused_and_a_poisoned_group_slow_no_other() {
    let (rig, host) = with_a_poisoned_group();
    host.wait_until_leading("paused");
    let _ = rig.host(["groups", "pause", "paused"]).ok();
    host.wait_for_log("paused", |line| line["message"] == "state changed");
    rig.publish(&[event("bad", "bad", json!({ "do": "trap" }))]);
    wait_until("it fails again and again", PATIENCE, || {
        rig.number("SELECT head_attempt FROM consumer_groups WHERE name = 'failing'") > 10
    });
    // Whoever settles the group waits for this session.
    let mut operator = Client::new(&rig);
    operator.execute("BEGIN");
    operator.execute("SELECT FROM consumer_groups WHERE name = 'locked' FOR UPDATE");

    let mut client = Client::new(&rig);
    let begun = Instant::now();
    let mut published = 0;
    // Past the moment at which the group that waits gives up and tries again.
    while begun.elapsed() < Duration::from_secs(11) {
        client.execute("INSERT INTO events (type) VALUES ('good')");
        published += 1;
        wait_until("the innocent group handles it at once", AT_ONCE, || {
            rig.state("innocent", "count") == published
        });
    }
    host.wait_for_log("it says that it waits", |line| {
        line["group"] == "locked" && line["level"] == "ERROR" && says(line, &["cannot "])
    });
    assert_eq!((rig.state("locked", "count"), rig.state("paused", "count")), (0, 0));
    assert!(rig.number("SELECT head_attempt FROM consumer_groups WHERE name = 'failing'") > 20);
    assert_eq!(
        rig.number("SELECT count(*) FROM consumer_groups WHERE mark_position IS NOT NULL"),
        1
    );

    operator.execute("COMMIT");
    wait_until("the locked group goes on", PATIENCE, || rig.state("locked", "count") == published);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    host.stop();
}

// Promise 4.
#[test]
fn more_locked_groups_than_the_pool_has_connections_slow_no_other() {
    const LOCKED: usize = 12;
    let handlers = (0..LOCKED)
        .map(|n| Handler::new(&format!("locked-{n}"), "tally", &["good"]).attempts(1))
        .chain([Handler::new("innocent", "tally", &["good"])]);
    let rig = Rig::on(Store::Postgres, &Settings::of(handlers).top("grace = \"0s\""));
    let host = rig.spawn_run();
    wait_until("it leads all groups", PATIENCE, || host.count_messages("leading") == LOCKED + 1);
    let mut operator = Client::new(&rig);
    operator.execute("BEGIN");
    operator.execute("SELECT FROM consumer_groups WHERE name <> 'innocent' FOR UPDATE");
    let mut client = Client::new(&rig);
    let begun = Instant::now();
    let mut published = 0;
    while begun.elapsed() < Duration::from_secs(4) {
        client.execute("INSERT INTO events (type) VALUES ('good')");
        published += 1;
        wait_until("the innocent group handles it at once", AT_ONCE, || {
            rig.state("innocent", "count") == published
        });
    }
    operator.execute("COMMIT");
    for n in 0..LOCKED {
        let group = format!("locked-{n}");
        wait_until("the locked group goes on", PATIENCE, || {
            rig.state(&group, "count") == published
        });
    }
    host.stop();
}

#[test]
fn a_host_whose_groups_have_much_to_read_looks_for_more_in_no_hurry() {
    const WINDOW: Duration = Duration::from_secs(2);
    // Fifty looks a second, a heartbeat, and what else a host asks; in a hurry it
    // looks two thousand times.
    const MOST_A_SECOND: f64 = 250.0;
    let hold = Handler::new("hold", "hold", &["hold"])
        .set("batch.max_events = 1")
        .set("limits.timeout = \"5m\"");
    let rig = Rig::on(Store::Postgres, &Settings::of([hold]));
    let host = rig.spawn_run();
    host.wait_until_leading("hold");
    let mut client = Client::new(&rig);
    client.execute(
        "INSERT INTO events (type, data) SELECT 'hold', '300000' FROM generate_series(1, 1000)",
    );
    let mut committed = || {
        client.number("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
    };
    let mut publisher = Client::new(&rig);
    let (mut began, mut before, mut own) = (Instant::now(), committed(), 0);
    wait_until("the host commits little", PATIENCE, || {
        // The log is never quiet.
        publisher.execute(INSERT);
        own += 2;
        let (elapsed, now) = (began.elapsed(), committed());
        if elapsed < WINDOW {
            return false;
        }
        let a_second = (now - before - own) as f64 / elapsed.as_secs_f64();
        (began, before, own) = (Instant::now(), now, 0);
        a_second < MOST_A_SECOND
    });
    assert_eq!(handled(&rig), Vec::<i64>::new());
    host.kill9();
}
