//! Sessions of others that have what a host needs: its lock, and its groups' rows
//! (promises 10, 12 and 19).

use std::time::Duration;

use serde_json::{Value, json};
use tests::{Client, Handler, PATIENCE, Rig, Settings, Store, event, wait_until};

use super::{says, stands_by};

/// How long a group is without a leader because of a stranger, at most: two heartbeats,
/// and a loaded machine.
const LED_WITHIN: Duration = Duration::from_secs(10);

fn tally() -> Settings {
    Settings::of([Handler::new("tally", "tally", &["a"])])
}

/// The key of the lock of the host that leads, which everybody sees.
fn key_of_the_leader(rig: &Rig) -> i64 {
    rig.number("SELECT leader_key FROM event_host.consumer_groups WHERE name = 'tally'")
}

/// A session of a stranger that queues for a lock, and is back once it has it.
fn queues(rig: &Rig, role: &Role, lock: &str, key: i64) -> std::thread::JoinHandle<Client> {
    let (url, lock) = (role.url.clone(), lock.to_owned());
    let queued = std::thread::spawn(move || {
        let mut stranger = Client::of_url(&url);
        stranger.execute("SET application_name = 'nightly report'");
        stranger.execute(&format!("SELECT {lock}({key})"));
        stranger
    });
    wait_until("it queues behind the leader", PATIENCE, || {
        rig.number("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == 1
    });
    queued
}

/// A role that may log in, which is all that it may, or what `host grants` gives it.
struct Role {
    name: String,
    url: String,
}

impl Role {
    fn new(rig: &Rig, what: &str) -> Self {
        let name = format!("{what}_{:016x}", fastrand::u64(..));
        Client::new(rig).execute(&format!("CREATE ROLE {name} LOGIN PASSWORD 'secret'"));
        let (scheme, rest) = rig.url().split_once("://").expect("a URL has a scheme");
        let at = rest.split_once('@').map_or(rest, |(_, at)| at);
        let url = format!("{scheme}://{name}:secret@{at}");
        Self { name, url }
    }

    fn for_hosts(rig: &Rig) -> Self {
        let role = Self::new(rig, "host");
        let grants = rig.host(["grants", "--role", &role.name, "--as", "host"]).ok();
        Client::new(rig).execute(&grants);
        role
    }

    fn drop(self, rig: &Rig) {
        let name = self.name;
        Client::new(rig).execute(&format!("DROP OWNED BY {name}; DROP ROLE {name}"));
    }
}

fn pid(client: &mut Client) -> i64 {
    client.number("SELECT pg_backend_pid()::bigint")
}

/// What a host says of a stranger.
fn names(line: &Value, pid: i64, role: &Role) -> bool {
    says(line, &["somebody else holds the lock of a host that is gone"])
        && line["process"] == pid
        && line["user"] == *role.name
        && line["application"] == "nightly report"
        && line["group"] == "tally"
}

// Promises 10 and 12.
#[test]
fn who_may_only_log_in_and_holds_the_lock_of_a_host_stops_nothing_and_is_named() {
    for lock in ["pg_advisory_lock", "pg_advisory_lock_shared"] {
        let rig = Rig::on(Store::Postgres, &tally());
        let _ = rig.host(["migrate"]).ok();
        let nobody = Role::new(&rig, "nobody");
        let first = rig.spawn_run();
        first.wait_until_leading("tally");
        let second = rig.spawn_run();
        second.wait_for_log("it stands by", stands_by);
        let queued = queues(&rig, &nobody, lock, key_of_the_leader(&rig));
        first.kill9();
        let mut stranger = queued.join().expect("it gets the lock that the leader had");
        second.wait_for_log_within(LED_WITHIN, "it leads", |line| line["message"] == "leading");
        // One that is shared is in nobody's way.
        if lock == "pg_advisory_lock" {
            second.wait_for_log("it names who held the lock", |line| {
                names(line, line["process"].as_i64().unwrap_or_default(), &nobody)
            });
            wait_until("a superuser's host ends it", PATIENCE, || {
                stranger.try_execute("SELECT 1").is_err()
            });
        }
        rig.publish(&[event("a", 1, json!(null))]);
        rig.wait_until_handled("tally", 1);
        assert_eq!(rig.group("tally")["epoch"], 2);
        second.stop();
        drop(stranger);
        rig.hang_up();
        gone(&rig, &[&nobody]);
        nobody.drop(&rig);
    }
}

/// Waits until no session of these roles is left.
fn gone(rig: &Rig, roles: &[&Role]) {
    let names: Vec<String> = roles.iter().map(|role| format!("'{}'", role.name)).collect();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename IN";
    wait_until("their sessions are gone", PATIENCE, || {
        rig.number(&format!("{sessions} ({})", names.join(", "))) == 0
    });
}

// Promises 10 and 12.
#[test]
fn hosts_that_may_end_no_sessions_get_round_a_stranger_and_round_one_that_queues() {
    let rig = Rig::on(Store::Postgres, &tally());
    let _ = rig.host(["migrate"]).ok();
    let (nobody, of_hosts) = (Role::new(&rig, "nobody"), Role::for_hosts(&rig));
    rig.configure(&tally().top(&format!("database = \"{}\"\nmigrate = false", of_hosts.url)));
    let first = rig.spawn_run();
    first.wait_for_log_within(LED_WITHIN, "it leads", |line| line["message"] == "leading");
    let second = rig.spawn_run();
    second.wait_for_log("it stands by", stands_by);
    let queued = queues(&rig, &nobody, "pg_advisory_lock", key_of_the_leader(&rig));
    first.kill9();
    let mut stranger = queued.join().expect("it gets the lock that the leader had");
    let process = pid(&mut stranger);
    second.wait_for_log_within(LED_WITHIN, "it leads", |line| line["message"] == "leading");
    second.wait_for_log("it names who held the lock", |line| names(line, process, &nobody));
    stranger.execute("SELECT 1");
    rig.publish(&[event("a", 1, json!(null))]);
    rig.wait_until_handled("tally", 1);
    assert_eq!(rig.group("tally")["epoch"], 2);
    second.stop();
    drop(stranger);
    gone(&rig, &[&nobody, &of_hosts]);
    nobody.drop(&rig);
    of_hosts.drop(&rig);
}

// Promises 3 and 10.
#[test]
fn a_frozen_leader_whose_session_the_others_may_not_end_is_replaced_all_the_same() {
    let rig = Rig::on(Store::Postgres, &tally());
    let _ = rig.host(["migrate"]).ok();
    let roles = [Role::for_hosts(&rig), Role::for_hosts(&rig)];
    let run_as = |role: &Role| {
        rig.configure(&tally().top(&format!("database = \"{}\"\nmigrate = false", role.url)));
        rig.spawn_run()
    };
    let leader = run_as(&roles[0]);
    leader.wait_until_leading("tally");
    let standby = run_as(&roles[1]);
    standby.wait_for_log("it stands by", stands_by);
    leader.freeze();
    standby.wait_for_log_within(Duration::from_secs(15), "it leads", |line| {
        line["message"] == "leading"
    });
    let said = standby.wait_for_log("it says whom it got round, and what to grant", |line| {
        says(line, &["a host that has been silent for too long", "pg_signal_backend"])
    });
    assert_eq!(said["pid"], leader.pid());
    rig.publish(&[event("a", 1, json!(null))]);
    rig.wait_until_handled("tally", 1);
    leader.thaw();
    leader.wait_for_log("it stands by", stands_by);
    assert_eq!(leader.count_messages("leading"), 1);
    assert_eq!(rig.group("tally")["epoch"], 2);
    assert_eq!(rig.group("tally")["leader"]["host"]["pid"], standby.pid());
    standby.stop();
    leader
        .wait_for_log("it leads again", |line| line["message"] == "leading" && line["epoch"] == 3);
    leader.stop();
    rig.hang_up();
    for role in roles {
        role.drop(&rig);
    }
}

// Promise 19.
#[test]
fn status_names_who_holds_the_lock_of_a_host_that_is_gone() {
    let rig = Rig::on(Store::Postgres, &tally());
    let nobody = Role::new(&rig, "nobody");
    let leader = rig.spawn_run();
    leader.wait_until_leading("tally");
    let queued = queues(&rig, &nobody, "pg_advisory_lock", key_of_the_leader(&rig));
    leader.kill9();
    let mut stranger = queued.join().expect("it gets the lock that the leader had");
    let process = pid(&mut stranger);
    let group = rig.group("tally");
    assert_eq!(group["leader"], Value::Null, "nobody leads");
    let by = &group["lock_held_by"];
    assert_eq!((&by["pid"], &by["user"]), (&json!(process), &json!(nobody.name)), "{group}");
    assert_eq!(by["application"], "nightly report");
    rig.publish(&[event("a", 1, json!(null))]);
    let wanted = format!("server process {process} (nightly report) of role {}", nobody.name);
    let status = rig.host(["status"]).ok();
    assert!(status.contains(&wanted) && status.contains("no host"), "{status}");
    // Nor does it keep the group from being removed.
    let _ = rig.host(["groups", "remove", "tally"]).ok();
    drop(stranger);
    rig.hang_up();
    gone(&rig, &[&nobody]);
    nobody.drop(&rig);
}

// Promise 19.
#[test]
fn status_says_that_a_killed_leader_is_gone_and_who_holds_the_groups_row() {
    let rig = Rig::on(Store::Postgres, &tally());
    let leader = rig.spawn_run();
    leader.wait_until_leading("tally");
    let standby = rig.spawn_run();
    standby.wait_for_log("it stands by", stands_by);
    let mut other = Client::new(&rig);
    other.execute("SET application_name = 'by hand'");
    let process = pid(&mut other);
    other.execute("BEGIN; SELECT FROM event_host.consumer_groups FOR UPDATE");
    leader.kill9();
    // The group is free, and it cannot begin to lead.
    standby.wait_for_log("it tries to lead", |line| says(line, &["cannot begin to lead"]));
    wait_until("who holds the row is shown", PATIENCE, || {
        rig.group("tally")["row_held_by"]["pid"] == process
    });
    let group = rig.group("tally");
    assert_eq!(group["leader"], Value::Null, "its session is gone");
    assert_eq!(group["row_held_by"]["application"], "by hand");
    let status = rig.host(["status"]).ok();
    let wanted = format!("the transaction of server process {process} (by hand)");
    assert!(status.contains(&wanted) && status.contains("row"), "{status}");
    other.execute("COMMIT");
    standby.wait_until_leading("tally");
    assert_eq!(rig.group("tally").get("row_held_by"), None);
    assert_eq!(rig.group("tally")["leader"]["host"]["pid"], standby.pid());
    standby.stop();
}

/// Within which a host that runs handles what is published, whatever strangers do.
const HANDLED_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn a_schema_of_somebody_else_is_refused_by_name_and_nothing_in_it_runs() {
    let rig = Rig::on(Store::Postgres, &tally());
    let stranger = Role::new(&rig, "stranger");
    let name = stranger.name.clone();
    let mut owner = Client::new(&rig);
    let database = owner.texts("SELECT quote_ident(current_database())").remove(0);
    owner.execute(&format!("GRANT CREATE ON DATABASE {database} TO {name}"));
    let mut session = Client::of_url(&stranger.url);
    session.execute(&format!(
        "CREATE SCHEMA event_host;
         CREATE SCHEMA {name};
         CREATE TABLE {name}.caught (who text);
         GRANT USAGE ON SCHEMA {name}, event_host TO PUBLIC;
         GRANT INSERT ON {name}.caught TO PUBLIC;
         CREATE FUNCTION event_host.trap() RETURNS bigint LANGUAGE sql
         AS 'INSERT INTO {name}.caught VALUES (current_user) RETURNING 1::bigint';
         CREATE VIEW event_host.migrations AS
         SELECT event_host.trap() AS version, ''::text AS description, now() AS installed_on,
                true AS success, ''::bytea AS checksum, 1::bigint AS execution_time;
         GRANT SELECT ON event_host.migrations TO PUBLIC"
    ));
    for command in [&["migrate"][..], &["run", "--drain"]] {
        let said = rig.host(command).failed(1);
        assert!(said.contains(&format!("belongs to role `{name}`")), "{said}");
        assert!(said.contains("ALTER SCHEMA event_host OWNER TO"), "{said}");
        assert!(said.contains("`migrate = false`"), "{said}");
    }
    assert_eq!(owner.number(&format!("SELECT count(*) FROM {name}.caught")), 0);

    owner.execute("DROP SCHEMA event_host CASCADE");
    let _ = rig.host(["migrate"]).ok();
    stranger.drop(&rig);
}

#[test]
fn who_may_create_in_the_schema_or_has_something_in_it_is_named_and_those_who_run_go_on() {
    let rig = Rig::on(Store::Postgres, &tally());
    let host = rig.spawn_run();
    host.wait_until_leading("tally");
    let stranger = Role::new(&rig, "stranger");
    let name = &stranger.name;
    let mut owner = Client::new(&rig);
    owner.execute(&format!("GRANT CREATE, USAGE ON SCHEMA event_host TO {name}"));
    let refused = || {
        let said = ["migrate", "run"].map(|command| {
            let drains = (command == "run").then_some("--drain");
            rig.host([command].into_iter().chain(drains)).failed(1)
        });
        let publishes = rig.host(["publish", "--type", "a"]).failed(1);
        assert_eq!(publishes, said[0]);
        said
    };
    let revoke = format!("REVOKE CREATE ON SCHEMA event_host FROM {name}");
    for said in refused() {
        assert!(said.trim_end().ends_with(&revoke), "{said}");
    }
    let mut session = Client::of_url(&stranger.url);
    // It would be called for `publish('a', '{}')` in the place of ours.
    session.execute(
        "CREATE FUNCTION event_host.publish(type text, data text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
    );
    // What was said mends it, and then there is what was made meanwhile.
    owner.execute(&revoke);
    for said in refused() {
        let named = format!("function event_host.publish(type text, data text) of role {name}");
        assert!(said.contains(&named), "{said}");
    }
    // Those who run already go on, and others commit in peace.
    owner.execute("INSERT INTO events (type) VALUES ('a')");
    wait_until("it is handled", HANDLED_WITHIN, || rig.state("tally", "count") == 1);
    owner.execute("DROP FUNCTION event_host.publish(text, text)");
    assert!(rig.host(["migrate"]).ok().contains("up to date"));
    rig.publish(&[event("a", 2, json!(null))]);
    wait_until("it is handled", HANDLED_WITHIN, || rig.state("tally", "count") == 2);
    host.stop();
    stranger.drop(&rig);
}

#[test]
fn a_member_of_the_owner_migrates_and_a_membership_that_somebody_thrusts_upon_it_does_not_count() {
    let rig = Rig::on(Store::Postgres, &tally());
    let (owner, member) = (Role::new(&rig, "owner"), Role::new(&rig, "member"));
    let mut superuser = Client::new(&rig);
    let database = superuser.texts("SELECT quote_ident(current_database())").remove(0);
    superuser.execute(&format!(
        "GRANT CREATE ON DATABASE {database} TO {}; GRANT {0} TO {}",
        owner.name, member.name
    ));
    let at = |url: &str| tally().top(&format!("database = \"{url}\""));
    rig.configure(&at(&owner.url));
    let _ = rig.host(["migrate"]).ok();
    rig.configure(&at(&member.url));
    let _ = rig.host(["migrate"]).ok();
    // Not every server lets a role do that.
    superuser.execute(&format!("REVOKE {} FROM {}", owner.name, member.name));
    let grants = format!("GRANT {} TO {}", owner.name, member.name);
    if Client::of_url(&owner.url).try_execute(&grants).is_ok() {
        let said = rig.host(["migrate"]).failed(1);
        assert!(said.contains("is no member of it"), "{said}");
    }
    superuser.execute("DROP SCHEMA event_host CASCADE");
    owner.drop(&rig);
    member.drop(&rig);
}

/// Within which a publisher that keeps a transaction open holds the log up at most, with
/// the settings that `host grants` prints, and a loaded machine: 10 s of them.
const HELD_UP_AT_MOST: Duration = Duration::from_secs(20);

#[test]
fn the_settings_that_host_grants_prints_bound_what_a_publisher_holds_up() {
    let rig = Rig::on(Store::Postgres, &tally());
    let host = rig.spawn_run();
    host.wait_until_leading("tally");
    let publisher = Role::new(&rig, "publisher");
    let name = &publisher.name;
    let grants = rig.host(["grants", "--role", name, "--as", "publisher"]).ok();
    for can in ["keep the transaction open", "advisory locks", "NOTIFY"] {
        assert!(grants.contains(can), "{grants}");
    }
    let mut owner = Client::new(&rig);
    owner.execute(&grants);
    let settings: Vec<&str> =
        grants.lines().filter_map(|line| line.strip_prefix("-- ALTER ROLE ")).collect();
    assert_eq!(settings.len(), 3, "{grants}");
    for setting in settings {
        owner.execute(&format!("ALTER ROLE {setting}"));
    }
    let mut session = Client::of_url(&publisher.url);
    session.execute("BEGIN");
    session.execute("SELECT event_host.publish('a')");
    owner.execute("INSERT INTO events (type) VALUES ('a')");
    host.wait_for_log("it names who holds the log up", |line| {
        says(line, &["held up"]) && line.to_string().contains(name.as_str())
    });
    wait_until("the log goes on", HELD_UP_AT_MOST, || rig.state("tally", "count") == 1);
    assert!(session.try_execute("SELECT 1").is_err(), "its session was ended");
    host.stop();
    publisher.drop(&rig);
}
