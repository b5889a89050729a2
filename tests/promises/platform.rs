//! The example of a platform, as whoever copies it runs it: its files are right, its handlers
//! are deployed, and what its README says of the three tenants is so (promises 4, 13 and 14).
//! `cargo xtask demo platform` measures it, for longer.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tests::{Answer, Http, PATIENCE, Rig, Settings, Store, event, wait_until, with};

tests::on_both_stores! {
    the_tenants_of_the_example_of_a_platform_are_held_to_what_its_settings_say,
}

/// What the hostile tenant's handler does, and how the attempt ends.
const MISDEEDS: [(&str, &str); 10] = [
    ("job.allocate", "memory-limit"),
    ("job.emit", "emit-limit"),
    ("job.log", "log-limit"),
    ("job.reach", "reject"),
    ("job.recurse", "stack-limit"),
    ("job.requests", "http-request-limit"),
    ("job.spin", "fuel"),
    ("job.state", "state-limit"),
    ("job.trap", "trap"),
    ("job.wait", "timeout"),
];

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/platform")
}

/// The example in a folder of its own, with the rig's database.
fn laid_out(store: Store) -> Rig {
    let rig = Rig::on(store, &Settings::of([]));
    let settings = fs::read_to_string(example().join("handlers.toml")).expect("the settings");
    let database = match store {
        Store::Sqlite => "sqlite:host.db",
        Store::Postgres => rig.url(),
    };
    assert!(settings.contains("sqlite:platform.db") && settings.contains("\n[ingest]\n"));
    let settings = settings
        .replace("sqlite:platform.db", database)
        .replace("\n[ingest]\n", "\n[ingest]\nmin_free = \"0B\"\n");
    rig.write("handlers.toml", settings);
    for file in ["build.toml", "handlers/readings/handler.wat", "components/miner.wasm"] {
        let to = rig.path(file);
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder can be made");
        let from = example().join(file);
        fs::copy(&from, to)
            .unwrap_or_else(|why| panic!("{}: {why}: `cargo xtask build-guests`", from.display()));
    }
    rig
}

/// A token of each tenant and the operator's, whose hashes lie where the settings expect them.
fn tokens(rig: &Rig) -> [String; 4] {
    ["quiet", "noisy", "hostile", "operator"].map(|name| {
        let made = rig.json(&["token", "new", "--name", name, "--roles", "publish"]);
        rig.write(&format!("{name}.sha256"), made["sha256"].as_str().expect("a hash"));
        made["token"].as_str().expect("a token").to_owned()
    })
}

/// Publishes events for whoever has the token.
fn publish(address: SocketAddr, path: &str, token: &str, events: &[Value]) -> Answer {
    let body = Value::from(events).to_string();
    let mut http = Http::connect(address);
    http.send(format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/cloudevents-batch+json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ))
    .expect("the host listens");
    http.answer().expect("an answer")
}

fn the_tenants_of_the_example_of_a_platform_are_held_to_what_its_settings_say(store: Store) {
    let rig = laid_out(store);
    let [quiet, noisy, hostile, operator] = tokens(&rig);
    let _ = rig.host(["build", "-c", "build.toml", "readings"]).ok();
    let _ = rig.host(["migrate"]).ok();
    // The one in C is left to the demonstration: not everybody has its compiler.
    for (handler, component) in
        [("readings", "readings"), ("orders", "readings"), ("miner", "miner")]
    {
        let _ = rig.host(["deploy", handler, &format!("components/{component}.wasm")]).ok();
    }
    assert!(rig.host(["check"]).ok().contains("all well"));
    let host = rig.spawn(&["run", "--http=127.0.0.1:0"]);
    let address = host.wait_until_listening("local");
    for group in ["readings", "orders", "miner"] {
        host.wait_until_leading(group);
    }
    let events = "/v1/events";

    // The noisy tenant: a second of its rate is let in, and what follows at once is not.
    let orders = |from: i64, to: i64| -> Vec<Value> {
        let order = |n| with(event("order.placed", n, json!({ "cents": 1 })), "partitionkey", "a");
        (from..to).map(order).collect()
    };
    assert_eq!(publish(address, events, &noisy, &orders(0, 100)).status, 202);
    let refused = publish(address, events, &noisy, &orders(100, 200));
    assert_eq!((refused.status, &refused.json()["type"]), (429, &json!("/problems/rate")));
    let elsewhere = publish(address, "/v1/events?tenant=quiet", &noisy, &orders(200, 201));
    assert_eq!(elsewhere.status, 404, "{elsewhere:?}");
    let large = [event("order.placed", "large", json!("x".repeat(65 << 10)))];
    assert_eq!(publish(address, events, &noisy, &large).status, 413);

    // The hostile one: everything that it can do, once.
    let inside = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    inside.set_nonblocking(true).expect("a listener may be asked without a wait");
    let urls = json!({ "urls": [
        "http://169.254.169.254/latest/meta-data/",
        format!("http://{}/", inside.local_addr().expect("an address")),
        format!("http://{address}/metrics"),
    ] });
    let jobs: Vec<Value> = MISDEEDS.iter().map(|(job, _)| event(job, job, urls.clone())).collect();
    assert_eq!(publish(address, events, &hostile, &jobs).status, 202);
    assert_eq!(publish(address, events, &hostile, &jobs[..1]).status, 200, "the same one again");
    let stolen = [event("reading.taken", "stolen", json!({}))];
    assert_eq!(publish(address, events, &hostile, &stolen).status, 403);

    // The quiet one meanwhile.
    for n in 0..5 {
        let reading = [event("reading.taken", n, json!({ "level": n }))];
        assert_eq!(publish(address, events, &quiet, &reading).status, 202);
    }
    let emitted = "SELECT count(*) FROM events WHERE type = 'counted' AND tenant = ";
    wait_until("the quiet tenant's events are handled", PATIENCE, || {
        rig.number(&format!("{emitted}'quiet'")) == 5
    });
    assert_eq!(rig.state("readings", "count"), 5, "each once");
    wait_until("every job has ended", PATIENCE, || rig.dead_letters().len() == MISDEEDS.len());
    let mut ended: Vec<(String, String)> = Vec::new();
    for letter in rig.dead_letters() {
        assert_eq!((&letter["group"], &letter["attempts"]), (&json!("miner"), &json!(1)));
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        ended.push((text(&letter["event"]["type"]), text(&letter["failure"]["kind"])));
    }
    ended.sort();
    let wanted: Vec<(String, String)> =
        MISDEEDS.iter().map(|(job, kind)| ((*job).to_owned(), (*kind).to_owned())).collect();
    assert_eq!(ended, wanted);
    let visit = inside.accept().map(|_| ()).map_err(|why| why.kind());
    assert_eq!(visit, Err(std::io::ErrorKind::WouldBlock), "nobody came");
    wait_until("the noisy tenant's events are handled", PATIENCE, || {
        rig.number(&format!("{emitted}'noisy'")) == 100
    });

    // The operator reads it from the metrics.
    let authorization = format!("Bearer {operator}");
    let metrics = tests::get(address, "/metrics", &[("Authorization", &authorization)]).body;
    for series in [
        r#"event_host_attempts_total{group="readings",tenant="quiet",outcome="success"} 5"#,
        r#"event_host_attempts_total{group="readings",tenant="quiet",outcome="dead_letter"} 0"#,
        r#"event_host_attempts_total{group="orders",tenant="noisy",outcome="success"} 100"#,
        r#"event_host_attempts_total{group="miner",tenant="hostile",outcome="dead_letter"} 10"#,
        r#"event_host_ingest_refused_total{source="events",reason="rate"} 1"#,
    ] {
        assert!(metrics.lines().any(|line| line == series), "{series}:\n{metrics}");
    }
    host.stop();
}
