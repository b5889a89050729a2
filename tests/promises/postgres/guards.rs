//! What a host refuses to run on, whom the server lets do what, how many
//! connections it takes, and what it never says (promises 14, 16 and 18).

use std::time::Duration;

use serde_json::{Value, json};
use test_postgres::{Server, Stop};
use tests::{Client, Handler, PATIENCE, Rig, Settings, Store, event, wait_until};

use super::says;

fn tally() -> Settings {
    Settings::of([Handler::new("tally", "tally", &["a"])])
}

/// A rig whose group has handled one event; no host runs.
fn used() -> (Rig, Client) {
    let rig = Rig::on(Store::Postgres, &tally());
    rig.publish(&[event("a", 1, json!(null))]);
    rig.drain();
    let client = Client::new(&rig);
    (rig, client)
}

/// Expects `host run` to fail with one sentence that says all of this.
fn refuses(rig: &Rig, fragments: &[&str]) -> String {
    let complaint = rig.host(["run"]).failed(1);
    let said: Vec<&str> = complaint.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(said.len(), 1, "{complaint}");
    for fragment in fragments {
        assert!(said[0].contains(fragment), "`{fragment}` is not in: {complaint}");
    }
    complaint
}

/// The statement that a complaint tells one to run.
fn advice(complaint: &str) -> String {
    let advice = complaint.split("run `").nth(1).and_then(|rest| rest.split('`').next());
    advice.unwrap_or_else(|| panic!("no advice in: {complaint}")).to_owned()
}

/// The group handles what there is, and one more event.
fn goes_on(rig: &Rig) {
    rig.publish(&[event("a", "more", json!(null))]);
    rig.drain();
    let events = rig.number("SELECT count(*) FROM events WHERE type = 'a'");
    assert_eq!(rig.state("tally", "count"), events);
}

#[test]
fn a_sequence_that_hands_positions_out_ahead_is_refused() {
    let (rig, mut client) = used();
    client.execute("ALTER SEQUENCE events_position_seq CACHE 50");
    let complaint = refuses(&rig, &["event_host.events_position_seq", "cache of 50"]);
    client.execute(&advice(&complaint));
    goes_on(&rig);
}

#[test]
fn a_sequence_that_stands_below_the_log_is_refused() {
    let (rig, mut client) = used();
    rig.publish(&[event("a", 2, json!(null)), event("a", 3, json!(null))]);
    client.execute("SELECT setval('events_position_seq', 2)");
    let complaint = refuses(&rig, &["stands at 2", "an event at position 3", "handed out again"]);
    client.execute(&advice(&complaint));
    goes_on(&rig);
}

#[test]
fn a_cursor_beyond_the_log_is_refused_also_of_a_group_that_is_not_run_here() {
    let (rig, mut client) = used();
    client.execute(
        "INSERT INTO consumer_groups (name, tenant, subscribe, position)
         VALUES ('other', '', '{a}', 1000)",
    );
    refuses(&rig, &["group `other` stands at 1000, beyond the log", "host groups seek other"]);
    let _ = rig.host(["groups", "seek", "other", "--to", "latest"]).ok();
    goes_on(&rig);
}

#[test]
fn a_database_that_was_restored_from_elsewhere_is_refused_until_it_is_adopted() {
    let (rig, mut client) = used();
    let here = client.number("SELECT system_identifier FROM pg_control_system()");
    assert_eq!(client.number("SELECT system_identifier FROM home"), here);
    let said = rig.host(["adopt"]).ok();
    assert_eq!(said, format!("nothing to do: the log is at home in cluster {here}\n"));

    client.execute("UPDATE home SET system_identifier = 4711");
    let here_and_there = ["restored", "cluster 4711", &here.to_string(), "`host adopt`", "copy"];
    refuses(&rig, &here_and_there);
    let said = rig.host(["adopt"]).ok();
    for fragment in ["came from cluster 4711", &here.to_string(), "every group goes on", "tally"] {
        assert!(said.contains(fragment), "{said}");
    }
    assert_eq!(rig.group("tally")["epoch"], 2, "what was open is refused");
    goes_on(&rig);

    client.execute("UPDATE home SET system_identifier = 4711");
    let adopted = rig.json(&["adopt"]);
    assert_eq!((&adopted["from"], &adopted["here"]), (&json!(4711), &json!(here)));
    assert_eq!(adopted["groups"], json!([["tally", 2]]));
    goes_on(&rig);
}

#[test]
fn a_standby_server_is_refused() {
    let mut server = Server::start(&[]).expect("a server starts");
    let rig = Rig::at(&server.url("postgres"), &tally());
    rig.publish(&[event("a", 1, json!(null))]);
    rig.drain();
    rig.hang_up();
    server.stop(Stop::Fast).expect("the server stops");
    // One that waits for its primary for ever.
    server.put("standby.signal", "").expect("a file can be written");
    server.resume().expect("the server starts");
    refuses(&rig, &["is a standby server, which only reads: connect to the primary"]);
    let complaint = rig.host(["publish", "--type", "a"]).failed(1);
    assert!(complaint.contains("not a standby"), "{complaint}");
    let status = rig.json(&["status"]);
    assert_eq!(status["groups"][0]["position"], 1, "it can be looked at");
}

#[test]
fn a_schema_of_a_newer_version_is_refused_and_left_as_it_is() {
    let (rig, mut client) = used();
    client.execute(
        "INSERT INTO migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'of the future', true, '', 0)",
    );
    for command in [&["run", "--drain"][..], &["status"], &["publish", "--type", "a"], &["migrate"]]
    {
        let complaint = rig.host(command).failed(1);
        assert!(complaint.contains("newer") && complaint.contains("9999"), "{complaint}");
    }
    assert_eq!(client.number("SELECT count(*) FROM events"), 1);
}

const PASSWORD: &str = "hunter2";

/// A server that asks the role `runner` for its password, with the schema.
fn server_with_a_role() -> (Server, Client) {
    let mut server = Server::start(&[]).expect("a server starts");
    let access = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    server.put("pg_hba.conf", access).expect("a file can be written");
    server.restart(Stop::Fast).expect("the server restarts");
    let owner = Rig::at(&server.url("postgres"), &Settings::default());
    let _ = owner.host(["migrate"]).ok();
    let mut client = Client::new(&owner);
    client.execute(&format!("CREATE ROLE runner LOGIN PASSWORD '{PASSWORD}'"));
    (server, client)
}

fn url(server: &Server, password: &str) -> String {
    format!("postgres://runner:{password}@127.0.0.1:{}/postgres", server.port())
}

#[test]
fn what_host_grants_prints_is_what_a_role_needs() {
    let (server, mut owner) = server_with_a_role();
    let settings = Settings::of([
        Handler::new("chaos", "chaos", &["command"]).attempts(2),
        Handler::new("tally", "tally", &["seen"]),
    ])
    .top("migrate = false");
    let rig = Rig::at(&url(&server, PASSWORD), &settings);
    let complaint = rig.host(["run", "--drain"]).failed(1);
    assert!(complaint.contains("host grants"), "{complaint}");
    let grant = |purpose: &str| rig.host(["grants", "--role", "runner", "--as", purpose]).ok();

    owner.execute(&grant("host"));
    let publish = |owner: &mut Client, data: Value| {
        owner.execute(&format!("SELECT publish('command', '{data}')"));
    };
    publish(
        &mut owner,
        json!([{ "do": "count", "key": "count" }, { "do": "emit", "type": "seen" }]),
    );
    publish(&mut owner, json!({ "do": "fail-until-attempt", "attempt": 2 }));
    publish(&mut owner, json!({ "do": "reject" }));
    let leader = rig.spawn_run();
    leader.wait_until_leading("chaos");
    leader.wait_until_leading("tally");
    let standby = rig.spawn_run();
    wait_until("the other stands by", PATIENCE, || {
        standby.count_messages("another host leads; standing by") == 2
    });
    rig.wait_until_handled("chaos", 3);
    // Also the sessions of a silent host can be ended.
    leader.freeze();
    standby.wait_until_leading("chaos");
    leader.thaw();
    wait_until("all is handled", PATIENCE, || rig.state("tally", "count") == 1);
    for host in [leader, standby] {
        let trouble = host.log().into_iter().find(|line| says(line, &["permission denied"]));
        assert_eq!(trouble, None);
        host.stop();
    }
    assert_eq!(rig.state("chaos", "count"), 1);
    assert_eq!(owner.number("SELECT count(*) FROM dead_letters"), 1);

    // What an operator may do, whoever runs hosts may not.
    let complaint = rig.host(["dlq", "discard", "1"]).failed(1);
    assert!(complaint.contains("permission denied"), "{complaint}");
    owner.execute("DROP OWNED BY runner");
    owner.execute(&grant("operator"));
    assert_eq!(rig.dead_letters().len(), 1);
    for arguments in [
        &["status"][..],
        &["groups", "pause", "chaos"],
        &["groups", "resume", "chaos"],
        &["groups", "seek", "chaos", "--to", "3"],
        &["dlq", "replay", "1", "--dry-run"],
        &["dlq", "replay", "1"],
        &["groups", "remove", "tally"],
        &["publish", "--type", "a"],
        &["adopt"],
    ] {
        let _ = rig.host(arguments).ok();
    }

    rig.hang_up();
    owner.execute("DROP OWNED BY runner");
    owner.execute(&grant("publisher"));
    let mut publisher = Client::of_url(&url(&server, PASSWORD));
    publisher.execute("SELECT event_host.publish('a', '{}')");
    let insert = "INSERT INTO event_host.events (type, data) VALUES ('a', '{}')";
    for refused in [
        insert,
        "SELECT event_host.next_position()",
        "SELECT FROM event_host.events",
        "DELETE FROM event_host.events",
        "INSERT INTO event_host.events (type, tenant) VALUES ('a', 'other')",
        "INSERT INTO event_host.events (type, deliver_to) VALUES ('a', 'chaos')",
        "SELECT FROM event_host.consumer_groups",
        "SELECT nextval('event_host.events_position_seq')",
    ] {
        let error = publisher.try_execute(refused).expect_err(refused);
        assert!(error.to_string().contains("permission denied"), "{refused}: {error}");
    }
    owner.execute(&grant("inserter"));
    publisher.execute(insert);
}

// Promise 14.
#[test]
fn a_password_is_never_said_whether_it_is_right_or_wrong() {
    let (mut server, mut owner) = server_with_a_role();
    let grants = Rig::at(&server.url("postgres"), &tally());
    owner.execute(&grants.host(["grants", "--role", "runner", "--as", "host"]).ok());
    let clean = |said: &str| {
        for secret in [PASSWORD, "tr0ub4dor"] {
            assert!(!said.contains(secret), "{said}");
        }
    };
    let address = format!("127.0.0.1:{}", server.port());
    for wrong in [
        url(&server, "tr0ub4dor"),
        format!("postgres://runner@{address}/postgres?password=tr0ub4dor"),
        // Nothing listens there, and there is no such database.
        "postgres://runner:tr0ub4dor@127.0.0.1:1/postgres?connect_timeout=2".to_owned(),
        format!("postgres://runner:{PASSWORD}@{address}/nowhere"),
        format!("postgres://runner:{PASSWORD}@{address}/postgres?sslmode=require"),
    ] {
        let rig = Rig::at(&wrong, &tally().top("migrate = false"));
        for command in [
            &["run"][..],
            &["status"],
            &["migrate"],
            &["groups", "list"],
            &["dlq", "list"],
            &["publish", "--type", "a"],
            &["--log", "trace", "status"],
        ] {
            let finished = rig.host(command);
            assert_eq!(finished.code, Some(1), "{finished:?}");
            assert!(finished.stderr.contains("127.0.0.1:"), "{finished:?}");
            clean(&finished.stdout);
            clean(&finished.stderr);
        }
    }

    let rig = Rig::at(&url(&server, PASSWORD), &tally().top("migrate = false"));
    let host = rig.spawn(&["run", "--log", "trace"]);
    host.wait_until_leading("tally");
    clean(&rig.host(["check"]).ok());
    clean(&rig.host(["status"]).ok());
    // Locked out while it runs.
    let refused = |server: &Server| {
        let log = server.log().expect("the server has a log");
        log.matches("password authentication failed for user \"runner\"").count()
    };
    let before = refused(&server);
    owner.execute("ALTER ROLE runner PASSWORD 'another'");
    drop(owner);
    rig.hang_up();
    server.restart(Stop::Fast).expect("the server restarts");
    wait_until("it has been refused a few times", PATIENCE, || refused(&server) > before + 5);
    let said: Vec<String> = host.log().iter().map(Value::to_string).collect();
    clean(&said.join("\n"));
    let mut host = host;
    host.sigterm();
    assert!(host.wait_within(Duration::from_secs(10)).success());
}

#[test]
fn the_number_of_connections_does_not_grow_with_the_groups() {
    const GROUPS: usize = 200;
    const EVENTS: i64 = 40;
    // The session for the locks, the listener, the watcher and the pool.
    const MOST: i64 = 3 + 8;
    let handlers = (0..GROUPS)
        .map(|n| Handler::new(&format!("group-{n}"), "tally", &["a"]).set("batch.max_events = 5"));
    let rig = Rig::on(Store::Postgres, &Settings::of(handlers));
    let host = rig.spawn_run();
    let mut client = Client::new(&rig);
    let mut most = 0;
    let mut count = |client: &mut Client| {
        let now = client.number(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()
               AND backend_type = 'client backend'",
        );
        let what = client.texts(
            "SELECT concat_ws(' ', application_name, backend_type, state, left(query, 60))
             FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        );
        assert!(now <= MOST, "{now} connections: {what:#?}");
        most = most.max(now);
    };
    wait_until("it leads all groups", PATIENCE, || {
        count(&mut client);
        host.count_messages("leading") == GROUPS
    });
    for _ in 0..EVENTS {
        client.execute("INSERT INTO events (type) VALUES ('a')");
        count(&mut client);
    }
    wait_until("all groups have handled all", PATIENCE, || {
        count(&mut client);
        let behind = format!("SELECT count(*) FROM consumer_groups WHERE position < {EVENTS}");
        client.number(&behind) == 0
    });
    println!("at most {most} connections");
    assert!(most > 4, "only {most} were ever seen");
    host.stop();
    let handled =
        "SELECT sum(convert_from(value, 'UTF8')::bigint)::bigint FROM state WHERE key = 'count'";
    assert_eq!(client.number(handled), GROUPS as i64 * EVENTS);
}
