//! Events in by HTTP, with the real program: each is there once whatever is killed, an answer
//! comes after the commit, and nobody's flood takes memory or turns from others.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use test_postgres::{Server, Stop};
use tests::{Answer, Handler, Http, PATIENCE, Rig, Running, Settings, Store, wait_until};

tests::on_both_stores! {
    each_mode_of_the_binding_gives_the_same_event,
    nothing_of_a_batch_with_one_bad_event_is_in_the_log,
    an_answer_comes_after_the_commit,
    the_same_id_at_once_from_many_connections_is_one_event,
    an_event_is_of_its_tokens_tenant,
    ingest_at_full_speed_leaves_settlements_their_turn,
    an_event_that_is_on_its_way_at_a_reload_and_at_a_stop_is_taken_and_answered,
}

/// Settings of a host that takes events from anybody on this machine.
fn taking(more: &str) -> Settings {
    Settings::of([Handler::new("tally", "tally", &["a"])]).top(&format!(
        "listen.local.address = \"127.0.0.1:0\"\nlisten.local.anonymous = [\"publish\"]\n\
         ingest.min_free = \"0B\"\n{more}"
    ))
}

fn run(rig: &Rig) -> (Running, SocketAddr) {
    let host = rig.spawn_run();
    let address = host.wait_until_listening("local");
    (host, address)
}

/// Sends a request on a connection.
fn post(
    http: &mut Http,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> std::io::Result<Answer> {
    post_to(http, "", headers, body)
}

/// Does the same with a query.
fn post_to(
    http: &mut Http,
    query: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> std::io::Result<Answer> {
    let body = body.as_ref();
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!(
        "POST /v1/events{query} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    );
    http.send([head.as_bytes(), body].concat())?;
    http.answer()
}

const STRUCTURED: (&str, &str) = ("Content-Type", "application/cloudevents+json");
const BATCHED: (&str, &str) = ("Content-Type", "application/cloudevents-batch+json");

fn event(event_type: &str, id: &str) -> String {
    json!({
        "specversion": "1.0", "id": id, "source": "/tests/ingest", "type": event_type,
        "data": { "id": id },
    })
    .to_string()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("memory takes bytes");
    encoder.finish().expect("memory takes bytes")
}

fn each_mode_of_the_binding_gives_the_same_event(store: Store) {
    let rig = Rig::on(store, &taking(""));
    let data = r#"{ "n": 1.10, "big": 12345678901234567890123, "é": [ ] }"#;
    let structured = |id: &str| {
        let attributes = r#""specversion":"1.0","source":"https://example.com/%C3%A9","type":"t","time":"2026-01-31T12:00:00.123456+02:00","subject":"caf\u00e9 \"1\"","dataschema":"https://example.com/s","partitionkey":"k","deliverafter":"2026-01-31T13:00:00Z","extra":"\u20ac","datacontenttype":"application/json; charset=utf-8""#;
        format!(r#"{{"id":"{id}",{attributes},"data":{data}}}"#)
    };
    rig.write("one.jsonl", structured("publish") + "\n");
    let _ = rig.host(["publish", "--file", "one.jsonl"]).ok();
    let (host, address) = run(&rig);
    let mut http = Http::connect(address);
    let binary = [
        ("ce-specversion", "1.0"),
        ("ce-id", "binary"),
        ("ce-source", "https://example.com/%25C3%25A9"),
        ("ce-type", "t"),
        ("ce-time", "2026-01-31T12:00:00.123456+02:00"),
        ("ce-subject", "caf%C3%A9%20%221%22"),
        ("ce-dataschema", "https://example.com/s"),
        ("ce-partitionkey", "k"),
        ("ce-deliverafter", "2026-01-31T13:00:00Z"),
        ("ce-extra", "%e2%82%ac"),
        ("Content-Type", "application/json; charset=utf-8"),
    ];
    let batch = format!("[{},{}]", structured("batched 1"), structured("batched 2"));
    let packed = [STRUCTURED, ("Content-Encoding", "gzip")];
    for answer in [
        post(&mut http, &binary, data),
        post(&mut http, &[STRUCTURED], structured("structured")),
        post(&mut http, &[BATCHED], batch),
        post(&mut http, &packed, gzip(structured("packed").as_bytes())),
    ] {
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 202, "{answer:?}");
    }
    let columns = ["type", "time", "source", "subject", "datacontenttype", "dataschema"];
    let columns =
        columns.into_iter().chain(["partitionkey", "deliver_after", "extensions", "tenant"]);
    let columns: Vec<String> = columns.map(|column| format!("CAST({column} AS TEXT)")).collect();
    let rows = rig.texts(&format!(
        "SELECT {} || ' ' || {} FROM events ORDER BY position",
        columns.join(" || ' ' || "),
        match store {
            Store::Sqlite => "hex(data)".to_owned(),
            Store::Postgres => "encode(data, 'hex')".to_owned(),
        }
    ));
    assert_eq!(rows.len(), 6);
    let different: BTreeSet<&String> = rows.iter().collect();
    assert_eq!(different.len(), 1, "{rows:#?}");
    host.stop();
}

fn nothing_of_a_batch_with_one_bad_event_is_in_the_log(store: Store) {
    let rig = Rig::on(store, &taking(""));
    let (host, address) = run(&rig);
    let mut http = Http::connect(address);
    assert_eq!(post(&mut http, &[STRUCTURED], event("a", "first")).expect("an answer").status, 202);
    for (bad, status, slug) in [
        (event("", "3"), 400, "invalid-event"),
        ("7".to_owned(), 400, "invalid-event"),
        (event("b", "first"), 422, "id-reused"),
    ] {
        let batch = format!("[{},{},{bad}]", event("a", "1"), event("a", "2"));
        let answer = post(&mut http, &[BATCHED], batch).expect("an answer");
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.json()["event"], 2);
        assert_eq!(answer.json()["type"], format!("/problems/{slug}"));
        assert_eq!(rig.number("SELECT count(*) FROM events WHERE type IN ('a', 'b')"), 1);
    }
    let whole = format!("[{},{}]", event("a", "1"), event("a", "2"));
    assert_eq!(post(&mut http, &[BATCHED], whole).expect("an answer").status, 202);
    host.stop();
}

/// So many connections send at once.
const SENDERS: u64 = 32;

/// What the senders of a load have been told.
#[derive(Default)]
struct Load {
    /// Every id that was answered with 202 or 200, with its position.
    taken: Mutex<Vec<(String, i64)>>,
    count: AtomicU64,
    stop: AtomicBool,
}

/// Sends one event after another to hosts of which some are down, each until it is taken.
fn send(load: &Load, addresses: &[SocketAddr], sender: u64) {
    let mut at = sender as usize;
    let mut connection = None;
    let mut number = 0;
    while !load.stop.load(Ordering::Relaxed) {
        let id = format!("{sender} {number}");
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE * 2, "{id} is taken by nobody");
            if connection.is_none() {
                at += 1;
                connection = Http::try_connect(addresses[at % addresses.len()]).ok();
            }
            let Some(http) = &mut connection else {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            match post(http, &[STRUCTURED], event("load", &id)) {
                Ok(answer) if matches!(answer.status, 200 | 202) => {
                    let position =
                        answer.json()["events"][0]["position"].as_i64().expect("a position");
                    load.taken.lock().expect("no sender panicked").push((id, position));
                    load.count.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Ok(answer) => {
                    assert_eq!(answer.status, 503, "{answer:?}");
                    std::thread::sleep(Duration::from_millis(20));
                }
                // It had no answer, so it is sent again.
                Err(_) => connection = None,
            }
        }
        number += 1;
    }
}

/// A port that nobody listens at now.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("a port")
}

fn an_answer_comes_after_the_commit(store: Store) {
    // A server of the test's own, which it may restart.
    let mut server = (store == Store::Postgres).then(|| Server::start(&[]).expect("a server"));
    let rig = match &server {
        Some(server) => Rig::at(&server.url("postgres"), &taking("")),
        None => Rig::on(store, &taking("")),
    };
    let addresses: Vec<SocketAddr> =
        (0..if server.is_some() { 2 } else { 1 }).map(|_| free_port()).collect();
    let start = |address: &SocketAddr| {
        let host = rig.spawn(&["run", &format!("--http={address}")]);
        let _ = host.wait_until_listening("local");
        host
    };
    let mut hosts: Vec<Running> = addresses.iter().map(start).collect();
    let load = Arc::new(Load::default());
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let (load, addresses) = (Arc::clone(&load), addresses.clone());
            std::thread::spawn(move || send(&load, &addresses, sender))
        })
        .collect();
    // A host that was about to start while its server went down ends, and its service manager
    // starts it again.
    let look_after = |hosts: &mut Vec<Running>| {
        for (host, address) in hosts.iter_mut().zip(&addresses) {
            if host.ended().is_some() {
                *host = start(address);
            }
        }
    };
    for round in 0..8 {
        let before = load.count.load(Ordering::Relaxed);
        wait_until("senders go on", PATIENCE, || {
            look_after(&mut hosts);
            load.count.load(Ordering::Relaxed) > before + 2 * SENDERS
        });
        // The moment is what is random here, so nothing is waited for.
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..40)));
        match &mut server {
            Some(server) if round % 4 == 3 => server.restart(Stop::Immediate).expect("a server"),
            _ => {
                let killed = round % hosts.len();
                hosts.remove(killed).kill9();
                hosts.insert(killed, start(&addresses[killed]));
            }
        }
    }
    load.stop.store(true, Ordering::Relaxed);
    wait_until("each sender has its last answer", PATIENCE, || {
        look_after(&mut hosts);
        senders.iter().all(std::thread::JoinHandle::is_finished)
    });
    for sender in senders {
        sender.join().expect("a sender ends well");
    }
    let taken = std::mem::take(&mut *load.taken.lock().expect("no sender panicked"));
    let ids: BTreeSet<&str> = taken.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids.len(), taken.len());
    let mut positions: Vec<i64> = taken.iter().map(|(_, position)| *position).collect();
    positions.sort_unstable();
    let stored = rig.texts("SELECT id FROM events WHERE type = 'load' ORDER BY position");
    let different: BTreeSet<&str> = stored.iter().map(String::as_str).collect();
    assert_eq!(different, ids, "each that was taken is there, and nothing else");
    assert_eq!(stored.len(), ids.len(), "once");
    let there = rig.texts("SELECT CAST(position AS TEXT) FROM events WHERE type = 'load'");
    let mut there: Vec<i64> =
        there.iter().map(|position| position.parse().expect("a number")).collect();
    there.sort_unstable();
    assert!(there == positions, "not all are where the senders were told");
    for host in hosts {
        host.stop();
    }
}

// Promise 14.
fn an_event_is_of_its_tokens_tenant(store: Store) {
    let rig = Rig::on(store, &taking(""));
    let mut lines = "tenants.acme = {}\ntenants.globex = {}".to_owned();
    let secrets = [("one", &["--tenant", "acme"][..]), ("all", &["--tenant", "*"]), ("none", &[])]
        .map(|(name, tenant)| {
            let made = ["--name", name, "--roles", "publish"];
            let (secret, table) = rig.token(&[&made[..], tenant].concat());
            lines += &format!("\n{table}");
            secret
        });
    rig.configure(
        &Settings::of([
            Handler::new("theirs", "tally", &["a"]).set("tenant = \"acme\""),
            Handler::new("others", "tally", &["a"]).set("tenant = \"globex\""),
        ])
        .top(&format!("listen.local.address = \"127.0.0.1:0\"\ningest.min_free = \"0B\"\n{lines}")),
    );
    let (host, address) = run(&rig);
    // The same id each time: those of two tenants are two events.
    for (token, query, status) in [
        (0, "", 202),
        (0, "?tenant=acme", 200),
        (0, "?tenant=globex", 404),
        (1, "?tenant=globex", 202),
        (1, "?tenant=nobody", 404),
        (2, "?tenant=acme", 404),
        (2, "", 202),
    ] {
        let body = event("a", "1");
        let bearer = format!("Bearer {}", secrets[token]);
        let headers = [STRUCTURED, ("Authorization", bearer.as_str())];
        let answer = post_to(&mut Http::connect(address), query, &headers, body);
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, status, "{token} {query} {answer:?}");
    }
    assert_eq!(rig.texts("SELECT tenant FROM events ORDER BY position"), ["acme", "globex", ""]);
    for group in ["theirs", "others"] {
        wait_until("each has handled its own", PATIENCE, || rig.state(group, "count") == 1);
    }
    wait_until("and nothing else", PATIENCE, || {
        ["theirs", "others"].iter().all(|group| rig.group(group)["lag_events"] == 0)
    });
    assert_eq!(rig.state("theirs", "count"), 1);
    host.stop();
}

fn the_same_id_at_once_from_many_connections_is_one_event(store: Store) {
    let rig = Rig::on(store, &taking(""));
    let (host, address) = run(&rig);
    let sending: Vec<_> = (0..16)
        .map(|sender| {
            std::thread::spawn(move || {
                let mut http = Http::connect(address);
                let mut answers = Vec::new();
                for n in 0..20 {
                    // Some send another content under the id.
                    let event_type = if sender % 4 == 3 { "b" } else { "a" };
                    let answer = post(&mut http, &[STRUCTURED], event(event_type, &n.to_string()))
                        .expect("an answer");
                    answers.push((answer.status, answer.json()));
                }
                answers
            })
        })
        .collect();
    let answers: Vec<Vec<(u16, Value)>> =
        sending.into_iter().map(|sending| sending.join().expect("a sender ends well")).collect();
    for n in 0..20 {
        let of_n: Vec<&(u16, Value)> = answers.iter().map(|answers| &answers[n]).collect();
        assert_eq!(of_n.iter().filter(|(status, _)| *status == 202).count(), 1, "{of_n:?}");
        let positions: BTreeSet<i64> = of_n
            .iter()
            .map(|(_, answer)| {
                let position = answer.get("position").unwrap_or(&answer["events"][0]["position"]);
                position.as_i64().expect("a position")
            })
            .collect();
        assert_eq!(positions.len(), 1, "all are told of the one that is there: {of_n:?}");
        assert!(of_n.iter().all(|(status, _)| matches!(status, 200 | 202 | 422)), "{of_n:?}");
    }
    assert_eq!(rig.number("SELECT count(*) FROM events WHERE source = '/tests/ingest'"), 20);
    host.stop();
}

fn ingest_at_full_speed_leaves_settlements_their_turn(store: Store) {
    let rig = Rig::on(store, &taking(""));
    let (host, address) = run(&rig);
    let load = Arc::new(Load::default());
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let load = Arc::clone(&load);
            std::thread::spawn(move || send(&load, &[address], sender))
        })
        .collect();
    wait_until("senders go on", PATIENCE, || load.count.load(Ordering::Relaxed) > 100);
    let mut http = Http::connect(address);
    let mut slowest = Duration::ZERO;
    for n in 0..20 {
        let answer =
            post(&mut http, &[STRUCTURED], event("a", &format!("mine {n}"))).expect("an answer");
        let position = answer.json()["events"][0]["position"].as_i64().expect("a position");
        let begun = Instant::now();
        rig.wait_until_handled("tally", position);
        slowest = slowest.max(begun.elapsed());
    }
    load.stop.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.join().expect("a sender ends well");
    }
    // Alone it takes milliseconds; starved, it would take until the senders end.
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    assert_eq!(rig.state("tally", "count"), 20);
    host.stop();
}

/// A request of which half of the body is still to come.
fn half_sent(address: SocketAddr, id: &str) -> (Http, String) {
    let body = event("a", id);
    let (sent, rest) = body.split_at(body.len() / 2);
    let mut http = Http::connect(address);
    http.send(format!(
        "POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/cloudevents+json\r\n\
         Content-Length: {}\r\n\r\n{sent}",
        body.len()
    ))
    .expect("somebody listens");
    (http, rest.to_owned())
}

/// Promise 21, for events that come in.
fn an_event_that_is_on_its_way_at_a_reload_and_at_a_stop_is_taken_and_answered(store: Store) {
    let rig = Rig::on(store, &taking(""));
    let (mut host, address) = run(&rig);
    let (mut http, rest) = half_sent(address, "reload");
    rig.configure(&taking("ingest.max_events = 10"));
    host.hangup();
    host.wait_for_message("reloaded");
    http.send(rest).expect("somebody listens");
    assert_eq!(http.answer().expect("an answer").status, 202);
    // The connection goes on, under the new settings.
    let many = format!("[{}]", vec![event("a", "x"); 11].join(","));
    assert_eq!(post(&mut http, &[BATCHED], many).expect("an answer").status, 413);

    let (mut http, rest) = half_sent(address, "stop");
    host.sigterm();
    wait_until("nobody listens", PATIENCE, || Http::try_connect(address).is_err());
    http.send(rest).expect("it is still read");
    let answer = http.answer().expect("an answer");
    assert_eq!((answer.status, answer.header("connection")), (202, Some("close")), "{answer:?}");
    assert!(host.wait().success(), "{:#?}", host.log());
    assert_eq!(rig.number("SELECT count(*) FROM events"), 2);
}

/// What a process has in memory, in bytes.
fn resident(host: &Running) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.pid()))
        .expect("what the process has");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("what the process has");
    line.split_whitespace()
        .nth(1)
        .expect("what the process has")
        .parse::<u64>()
        .expect("what the process has")
        << 10
}

#[test]
fn slow_bodies_gzip_bombs_and_deep_json_cost_bounded_memory() {
    let rig = Rig::new(&taking("ingest.queue = \"32MiB\"\ningest.max_body = \"8MiB\""));
    let (host, address) = run(&rig);
    let mut http = Http::connect(address);
    assert_eq!(post(&mut http, &[STRUCTURED], event("a", "warm")).expect("an answer").status, 202);
    let before = resident(&host);

    // Bodies that do not come hold their part of the memory, and no more.
    let slowly = || {
        let mut http = Http::connect(address);
        let head = "POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/cloudevents+json\r\nContent-Length: 8000000\r\n\r\n{";
        http.send(head).expect("somebody listens");
        http
    };
    let slow: Vec<Http> = (0..4).map(|_| slowly()).collect();
    wait_until("four hold their parts", PATIENCE, || {
        let larger = " ".repeat(3 << 20);
        // A host that refuses does not read to the end.
        !post(&mut Http::connect(address), &[STRUCTURED], larger).is_ok_and(|a| a.status == 400)
    });
    let others: Vec<Http> = (0..60).map(|_| slowly()).collect();
    for mut http in others {
        let answer = http.answer().expect("an answer");
        assert_eq!(answer.status, 503, "{answer:?}");
        assert_eq!(answer.json()["type"], "/problems/busy");
        let wait: u64 = answer.header("retry-after").expect("a wait").parse().expect("a wait");
        assert!((1..=5).contains(&wait));
    }
    drop(slow);
    let free = || post(&mut Http::connect(address), &[STRUCTURED], event("a", "free"));
    wait_until("the memory of those who went away is free", PATIENCE, || {
        free().is_ok_and(|answer| matches!(answer.status, 200 | 202))
    });

    let bomb = gzip(&vec![b'['; 64 << 20]);
    let deep = "[".repeat(4 << 20);
    let batch = format!("[{}]", vec![event("a", "x"); 60_000].join(","));
    for _ in 0..8 {
        let packed = [STRUCTURED, ("Content-Encoding", "gzip")];
        for (headers, body, statuses) in [
            (&packed[..], &bomb[..], [413, 503]),
            (&[STRUCTURED][..], deep.as_bytes(), [400, 503]),
            (&[BATCHED][..], deep.as_bytes(), [400, 503]),
            (&[BATCHED][..], batch.as_bytes(), [413, 503]),
        ] {
            let answer = post(&mut Http::connect(address), headers, body).expect("an answer");
            assert!(statuses.contains(&answer.status), "{answer:?}");
        }
    }
    let grown = resident(&host).saturating_sub(before);
    assert!(grown < 160 << 20, "{} MiB more than before", grown >> 20);
    host.stop();
}
