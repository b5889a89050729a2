//! Fleet deploy: components that reach the hosts through the database.

use std::process::Stdio;
use std::time::Instant;

use serde_json::{Value, json};
use tests::{Client, Handler, PATIENCE, Rig, Settings, Store, event, guest_file, wait_until};

tests::on_both_stores! {
    a_handler_runs_what_was_deployed_for_it_and_a_rollback_brings_back_what_it_ran_before,
    what_the_host_would_not_run_is_not_deployed,
    the_same_component_is_deployed_once,
    a_rollback_that_has_nowhere_to_go_says_so,
    run_and_check_refuse_a_handler_for_which_nothing_is_deployed,
    a_deployment_needs_no_handlers_toml_where_the_database_is_named,
    a_pinned_component_is_the_only_one_that_runs,
    one_tenants_components_are_not_anothers,
    kills_in_the_middle_of_a_deployment_leave_all_of_it_or_nothing,
    a_deployment_that_is_killed_before_its_end_leaves_not_even_the_component,
    one_row_that_cannot_be_read_stops_the_deployments_of_no_other,
}

/// A handler of this name whose component comes from the database.
fn deployed(name: &str) -> Handler {
    Handler::of_file(name, "deployed", &["a"])
}

/// A test guest's file.
fn guest(name: &str) -> Vec<u8> {
    std::fs::read(guest_file(name)).expect("the guest can be read")
}

/// The same component under another digest: a custom section does nothing. Made
/// longer by so many bytes, which no database makes shorter.
fn variant(component: &[u8], of: &str, bytes: usize) -> Vec<u8> {
    let mut content = vec![u8::try_from(of.len()).expect("a short name")];
    content.extend(of.as_bytes());
    let mut random = fastrand::Rng::with_seed(bytes as u64);
    content.extend(std::iter::repeat_with(|| random.u8(..)).take(bytes));
    let mut all = component.to_vec();
    all.push(0);
    let mut left = content.len();
    loop {
        let more = left >= 0x80;
        all.push(u8::try_from(left & 0x7f).expect("seven bits") | if more { 0x80 } else { 0 });
        left >>= 7;
        if !more {
            break;
        }
    }
    all.extend(content);
    all
}

/// `host deploy`, of these bytes; gives the version.
fn deploy(rig: &Rig, handler: &str, component: &[u8]) -> Value {
    rig.write("component.wasm", component);
    rig.json(&["deploy", handler, "component.wasm"])
}

/// Number and state of each version, the newest first.
fn versions(rig: &Rig, handler: &str) -> Vec<(i64, String)> {
    let list = rig.json(&["versions", handler]);
    let state = |version: &Value| version["state"].as_str().expect("a state").to_owned();
    list.as_array()
        .expect("a list")
        .iter()
        .map(|version| (version["version"].as_i64().expect("a number"), state(version)))
        .collect()
}

fn a_handler_runs_what_was_deployed_for_it_and_a_rollback_brings_back_what_it_ran_before(
    store: Store,
) {
    let rig = Rig::on(store, &Settings::of([deployed("h").attempts(1)]));
    let first = deploy(&rig, "h", &guest("tally"));
    assert_eq!((&first["version"], &first["new"]), (&json!(1), &json!(true)));
    std::fs::remove_file(rig.path("component.wasm")).expect("it was written");
    rig.publish(&[event("a", 1, json!(null))]);
    rig.drain();
    assert_eq!(rig.state("h", "count"), 1, "it needs no file");

    // The second version fails, and its dead letter names it.
    let second = deploy(&rig, "h", &guest("chaos"));
    assert_eq!(second["version"], 2);
    rig.publish(&[event("a", 2, json!("no command"))]);
    rig.drain();
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0]["digest"], second["digest"]);
    assert_ne!(first["digest"], second["digest"]);

    let back = rig.json(&["rollback", "h"]);
    assert_eq!((&back["version"], &back["digest"]), (&json!(1), &first["digest"]));
    rig.publish(&[event("a", 3, json!(null))]);
    rig.drain();
    assert_eq!(rig.state("h", "count"), 2);
    assert_eq!(versions(&rig, "h"), [(2, "rolled-back".to_owned()), (1, "active".to_owned())]);

    let checked = rig.json(&["check"]);
    assert_eq!(checked[0]["component"], "deployed");
    assert_eq!(checked[0]["digest"], first["digest"]);
    let table = rig.host(["versions", "h"]).ok();
    let digest = first["digest"].as_str().expect("a text");
    for part in ["VERSION", "rolled-back", "active", &digest[..19], "@"] {
        assert!(table.contains(part), "`{part}` is missing in:\n{table}");
    }
}

fn what_the_host_would_not_run_is_not_deployed(store: Store) {
    let rig = Rig::on(
        store,
        &Settings::of([
            deployed("h"),
            deployed("small").set("limits.memory = \"64KiB\""),
            Handler::new("file", "tally", &["a"]),
        ]),
    );
    rig.write("core.wasm", b"\0asm\x01\0\0\0");
    let tally = guest_file("tally");
    let tally = tally.to_str().expect("a path that is text");
    for (handler, file, parts) in [
        ("h", "missing.wasm", &["missing.wasm", "there is no such file"][..]),
        ("h", "core.wasm", &["core.wasm", "without component metadata"]),
        ("small", tally, &["`small`", "limits.memory is 64.0 KiB"]),
    ] {
        let complaint = rig.host(["deploy", handler, file]).failed(1);
        for part in parts {
            assert!(complaint.contains(part), "`{part}` is missing in: {complaint}");
        }
    }
    let complaint = rig.host(["deploy", "no name!", tally]).failed(2);
    assert!(complaint.contains("is not a name"), "{complaint}");
    if store == Store::Sqlite {
        assert!(!rig.database().exists(), "nothing was made");
    }

    // What is deployed all the same is said where it does nothing.
    let finished = rig.host(["deploy", "file", tally]);
    assert!(finished.stderr.contains("`component = \"deployed\"`"), "{finished:?}");
    let _ = finished.ok();
    let finished = rig.host(["deploy", "unknown", tally]);
    assert!(finished.stderr.contains("has no handler `unknown`"), "{finished:?}");
    let _ = finished.ok();
    assert_eq!(rig.number("SELECT count(*) FROM components"), 1, "one for both");
    assert_eq!(rig.number("SELECT count(*) FROM deployments"), 2);
}

fn the_same_component_is_deployed_once(store: Store) {
    let rig = Rig::on(store, &Settings::of([deployed("h")]));
    deploy(&rig, "h", &guest("tally"));
    let again = deploy(&rig, "h", &guest("tally"));
    assert_eq!((&again["version"], &again["new"]), (&json!(1), &json!(false)));
    assert_eq!(versions(&rig, "h").len(), 1);
    let said = rig.host(["deploy", "h", "component.wasm"]).ok();
    assert!(said.contains("has been running version 1, sha256:"), "{said}");
}

fn a_rollback_that_has_nowhere_to_go_says_so(store: Store) {
    let rig = Rig::on(store, &Settings::of([deployed("h")]));
    let _ = rig.host(["migrate"]).ok();
    let said = rig.host(["versions", "h"]).ok();
    assert!(said.contains("nothing is deployed for handler h"), "{said}");
    let complaint = rig.host(["rollback", "h"]).failed(1);
    assert!(complaint.contains("host deploy h FILE"), "{complaint}");

    let tally = guest("tally");
    deploy(&rig, "h", &tally);
    let complaint = rig.host(["rollback", "h"]).failed(1);
    assert!(complaint.contains("no version before version 1"), "{complaint}");
    deploy(&rig, "h", &variant(&tally, "second", 0));
    let complaint = rig.host(["rollback", "h", "--from", "1"]).failed(1);
    assert!(complaint.contains("runs version 2, not version 1"), "{complaint}");
    let said = rig.host(["rollback", "h", "--from", "2"]).ok();
    assert!(said.contains("goes back to version 1, sha256:"), "{said}");
}

fn run_and_check_refuse_a_handler_for_which_nothing_is_deployed(store: Store) {
    let rig = Rig::on(store, &Settings::of([deployed("h"), Handler::new("t", "tally", &["a"])]));
    let _ = rig.host(["migrate"]).ok();
    for command in ["run", "check"] {
        let complaint = rig.host([command]).failed(1);
        let complaint = complaint.lines().last().expect("a line");
        assert_eq!(
            complaint,
            "error: handlers.toml: handler `h`: nothing is deployed for it yet: `host deploy h FILE` does that"
        );
    }
    // What is wrong with a file hides nothing of it.
    let missing = Handler::of_file("t", "missing.wasm", &["a"]);
    rig.configure(&Settings::of([deployed("h"), missing]));
    let complaint = rig.host(["check"]).failed(1);
    for part in ["missing.wasm: there is no such file", "host deploy h FILE"] {
        assert!(complaint.contains(part), "`{part}` is missing in: {complaint}");
    }
    rig.configure(&Settings::of([deployed("h"), Handler::new("t", "tally", &["a"])]));
    deploy(&rig, "h", &guest("tally"));
    let _ = rig.host(["check"]).ok();
}

fn a_deployment_needs_no_handlers_toml_where_the_database_is_named(store: Store) {
    let settings = Settings::of([deployed("h").set("tenant = \"acme\"")]);
    let rig = Rig::on(store, &settings.clone().top("migrate = false"));
    rig.write("component.wasm", guest("tally"));
    let complaint = rig.host(["deploy", "h", "component.wasm"]).failed(1);
    assert!(complaint.contains("host migrate"), "{complaint}");

    std::fs::remove_file(rig.path("handlers.toml")).expect("the file is there");
    let deploy = ["deploy", "h", "component.wasm", "--tenant", "acme"];
    let complaint = rig.host(deploy).failed(1);
    assert!(complaint.contains("handlers.toml: there is no such file"), "{complaint}");
    let database = match store {
        Store::Sqlite => "sqlite:host.db",
        Store::Postgres => rig.url(),
    };
    let said = rig.host(deploy.iter().chain(&["--database", database])).ok();
    assert!(said.contains("handler h runs version 1"), "{said}");
    rig.configure(&settings);
    let _ = rig.host(["check"]).ok();
}

fn a_pinned_component_is_the_only_one_that_runs(store: Store) {
    let rig = Rig::on(store, &Settings::of([deployed("h")]));
    let tally = guest("tally");
    let first = deploy(&rig, "h", &tally);
    let pin = format!("digest = {}", first["digest"]);
    let pinned =
        Settings::of([deployed("h").set(&pin), Handler::new("file", "tally", &["a"]).set(&pin)]);
    rig.configure(&pinned);
    let _ = rig.host(["check"]).ok();
    rig.publish(&[event("a", 1, json!(null))]);
    rig.drain();
    assert_eq!((rig.state("h", "count"), rig.state("file", "count")), (1, 1));

    // It is refused before it is stored.
    rig.write("component.wasm", variant(&tally, "other", 0));
    let complaint = rig.host(["deploy", "h", "component.wasm"]).failed(1);
    assert!(complaint.contains("pins its component to sha256:"), "{complaint}");
    assert_eq!(versions(&rig, "h").len(), 1);

    rig.configure(&Settings::of([deployed("h")]));
    deploy(&rig, "h", &variant(&tally, "other", 0));
    rig.configure(&pinned);
    for command in ["run", "check"] {
        let complaint = rig.host([command]).failed(1);
        assert!(complaint.contains("handler `h`: `digest` pins its component"), "{complaint}");
    }
    let changed = format!("digest = \"sha256:{}\"", "0".repeat(64));
    rig.configure(&Settings::of([Handler::new("file", "tally", &["a"]).set(&changed)]));
    let complaint = rig.host(["check"]).failed(1);
    assert!(complaint.contains("handler `file`: `digest` pins its component"), "{complaint}");
}

fn one_tenants_components_are_not_anothers(store: Store) {
    let acmes = Settings::of([deployed("h").set("tenant = \"acme\"").set("group = \"acmes\"")]);
    let others = Settings::of([deployed("h").set("tenant = \"other\"").set("group = \"others\"")]);
    let rig = Rig::on(store, &acmes);
    let digest = deploy(&rig, "h", &guest("tally"))["digest"].clone();
    assert_eq!(rig.json(&["versions", "h"])[0]["tenant"], "acme");

    rig.configure(&others);
    let complaint = rig.host(["run", "--drain"]).failed(1);
    assert!(complaint.contains("nothing is deployed for it yet"), "{complaint}");
    assert_eq!(rig.json(&["versions", "h", "--tenant", "other"]), json!([]));
    let complaint = rig.host(["rollback", "h", "--tenant", "other"]).failed(1);
    assert!(complaint.contains("nothing is deployed"), "{complaint}");
    assert!(!complaint.contains("acme"), "{complaint}");

    // The same component, deployed by its own tenant: a version of its own.
    let own = deploy(&rig, "h", &guest("tally"));
    assert_eq!((&own["version"], &own["digest"]), (&json!(1), &digest));
    rig.drain();
    let complaint = rig.host(["versions", "h"]).failed(2);
    assert!(complaint.contains("--tenant"), "{complaint}");
    let complaint = rig.host(["deploy", "h", "component.wasm", "--tenant", "acme"]).failed(2);
    assert!(complaint.contains("leave --tenant out"), "{complaint}");
}

fn kills_in_the_middle_of_a_deployment_leave_all_of_it_or_nothing(store: Store) {
    const KILLS: u32 = 12;
    let rig = Rig::on(store, &Settings::of([deployed("h")]));
    let tally = guest("tally");
    // Large, so that storing it has a middle.
    let large = 4 << 20;
    rig.write("component.wasm", variant(&tally, "first", large));
    let begun = Instant::now();
    let _ = rig.host(["deploy", "h", "component.wasm"]).ok();
    let whole = begun.elapsed();

    let check = || {
        let [versions, newest, active, components] = rig.numbers(
            "SELECT count(*), max(version), max(CASE WHEN state = 'active' THEN version END),
                    (SELECT count(*) FROM components) FROM deployments",
        );
        assert_eq!((newest, active, components), (versions, versions, versions));
        versions
    };
    let mut before = check();
    for n in 0..KILLS {
        rig.write("component.wasm", variant(&tally, &format!("{n}"), large));
        let mut deploying = rig
            .command(["deploy", "h", "component.wasm"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        // The moment of the kill is what differs here, so nothing is waited for. It
        // lies towards the end: the component is checked before it is stored.
        std::thread::sleep(whole.mul_f64(0.4 + 0.6 * f64::from(n) / f64::from(KILLS)));
        deploying.kill().expect("it can be killed");
        deploying.wait().expect("it ends");
        let now = check();
        assert!(now >= before, "{now} versions after {before}");
        before = now;
    }
    // What is there can be run, and nothing is in the way of the next.
    rig.publish(&[event("a", 1, json!(null))]);
    rig.drain();
    assert_eq!(rig.state("h", "count"), 1);
    let last = deploy(&rig, "h", &tally);
    assert_eq!(last["version"], check());
}

/// The component is stored, the version is being added, and there the process
/// dies.
fn a_deployment_that_is_killed_before_its_end_leaves_not_even_the_component(store: Store) {
    let rig = Rig::on(store, &Settings::of([deployed("h")]));
    let _ = rig.host(["migrate"]).ok();
    let mut client = Client::new(&rig);
    client.execute(match store {
        // Counts for hours.
        Store::Sqlite => {
            "CREATE TRIGGER hold BEFORE INSERT ON deployments BEGIN
                 SELECT count(*) FROM (
                     WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1e12)
                     SELECT i FROM n);
             END"
        }
        Store::Postgres => {
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_sleep(3600); RETURN NEW; END $$;
             CREATE TRIGGER hold BEFORE INSERT ON deployments FOR EACH ROW EXECUTE FUNCTION hold()"
        }
    });
    rig.write("component.wasm", guest("tally"));
    let mut deploying = rig
        .command(["deploy", "h", "component.wasm"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let asleep = "SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event = 'PgSleep'";
    wait_until("the version is being added", PATIENCE, || match store {
        // Somebody writes, and nobody but the deployment does so for long.
        Store::Sqlite => {
            client.execute("PRAGMA busy_timeout = 1000");
            let busy = client.try_execute("BEGIN IMMEDIATE").is_err();
            if !busy {
                client.execute("ROLLBACK");
            }
            busy
        }
        Store::Postgres => client.number(asleep) == 1,
    });
    deploying.kill().expect("it can be killed");
    deploying.wait().expect("it ends");
    if store == Store::Postgres {
        wait_until("the server lets go", PATIENCE, || client.number(asleep) == 0);
    }
    client.execute(match store {
        Store::Sqlite => "PRAGMA busy_timeout = 20000; DROP TRIGGER hold",
        Store::Postgres => "DROP TRIGGER hold ON deployments",
    });
    assert_eq!(rig.number("SELECT count(*) FROM components"), 0);
    assert_eq!(rig.number("SELECT count(*) FROM deployments"), 0);
    assert_eq!(deploy(&rig, "h", &guest("tally"))["version"], 1);
}

fn one_row_that_cannot_be_read_stops_the_deployments_of_no_other(store: Store) {
    let rig = Rig::on(store, &Settings::of([deployed("tally")]));
    let tally = guest("tally");
    deploy(&rig, "tally", &tally);
    let host = rig.spawn_run();
    host.wait_until_leading("tally");
    Client::new(&rig).execute(
        "INSERT INTO deployments (tenant, handler, version, digest, deployed_at, deployed_by, state)
         SELECT '', 'no handler!', 1, digest, deployed_at, deployed_by, state FROM deployments",
    );
    let is_about_it = |line: &Value| {
        line["message"].as_str().is_some_and(|message| message.contains("\"no handler!\""))
    };
    host.wait_for_log("the row is named", is_about_it);
    deploy(&rig, "tally", &variant(&tally, "another", 10));
    host.wait_for_message("reloaded");
    rig.publish(&[event("a", 1, json!(null))]);
    rig.wait_until_handled("tally", 1);
    assert_eq!(host.log().iter().filter(|line| is_about_it(line)).count(), 1, "once");
    assert_eq!(rig.json(&["versions", "tally"]).as_array().map(Vec::len), Some(2));
    host.stop();
}
