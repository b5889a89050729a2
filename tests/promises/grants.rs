//! What a handler reaches (promise 14): what its settings grant, and nothing
//! else.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tests::{Handler, Rig, Settings, event};

/// An HTTP server on this machine, which keeps what it was asked.
pub(super) struct Server {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&heads);
        // Ends with the process.
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || serve(stream, &kept));
            }
        });
        Self { address, heads }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn requests(&self) -> usize {
        self.heads.lock().expect("no thread failed").len()
    }
}

/// `/to/URL` leads to this URL, `/bytes/N` is so long, `/never` is silent, and
/// everything else is `hello`.
fn serve(stream: TcpStream, heads: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    heads.lock().expect("no thread failed").push(head);
    let answer = if let Some(location) = path.strip_prefix("/to/") {
        format!("HTTP/1.1 307 Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n")
    } else if let Some(bytes) = path.strip_prefix("/bytes/") {
        let bytes = bytes.parse().expect("a number");
        format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n{}", "x".repeat(bytes))
    } else if path == "/never" {
        let _ = reader.read_line(&mut String::new());
        return;
    } else {
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_owned()
    };
    // The guest may have gone.
    let _ = reader.into_inner().write_all(answer.as_bytes());
}

// Promise 14.
#[test]
fn a_handlers_clocks_are_coarse_unless_it_is_granted_fine_ones() {
    let chaos = |name: &str| Handler::new(name, "chaos", &["command", name]).attempts(1);
    let rig =
        Rig::new(&Settings::of([chaos("coarse"), chaos("fine").set("allow.clocks = \"fine\"")]));
    let seen_by = |handler: &str| format!("seen-by-{handler}");
    let look = |handler| event(handler, 1, json!({ "do": "clocks", "type": seen_by(handler) }));
    let unix_time = || SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    let began = unix_time().as_millis();
    rig.publish(&[look("coarse"), look("fine")]);
    rig.drain();
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    let ended = unix_time().as_millis();

    let whole = |time: &u64| time.is_multiple_of(1_000_000);
    for (handler, is_fine) in [("coarse", false), ("fine", true)] {
        let seen = &rig.data_of(&seen_by(handler))[0];
        for clock in ["monotonic", "wall"] {
            let resolution = seen[clock]["resolution"].as_u64().expect("a number");
            let times: Vec<u64> =
                serde_json::from_value(seen[clock]["times"].clone()).expect("numbers");
            assert_eq!(times.len(), 10, "{seen}");
            if is_fine {
                assert!(resolution < 1_000_000 && !times.iter().all(whole), "{seen}");
            } else {
                assert!(resolution == 1_000_000 && times.iter().all(whole), "{seen}");
            }
            if clock == "monotonic" {
                assert!(times.is_sorted(), "{seen}");
            } else {
                let milliseconds = u128::from(times[0] / 1_000_000);
                assert!((began..=ended).contains(&milliseconds), "{began} {ended} {seen}");
            }
        }
        for waited in ["sleep", "wait"] {
            let waited = seen[waited].as_u64().expect("a number");
            assert!((20_000_000..10_000_000_000).contains(&waited), "{seen}");
        }
    }
}

fn chaos() -> Handler {
    Handler::new("chaos", "chaos", &["command"]).attempts(1)
}

/// What came of the commands of one run, and the host's log.
fn run(handler: Handler, commands: &[Value]) -> (Rig, String) {
    let rig = Rig::new(&Settings::of([handler]));
    let events: Vec<Value> = commands
        .iter()
        .enumerate()
        .map(|(n, command)| event("command", n, command.clone()))
        .collect();
    rig.publish(&events);
    let log = rig.drain();
    (rig, log)
}

fn request(url: &str) -> Value {
    json!({ "do": "request", "url": url, "type": "answer" })
}

// Promise 14.
#[test]
fn a_handler_reaches_a_granted_server_with_a_key_that_names_the_event() {
    let server = Server::start();
    let grant = format!("allow.http = [\"{}\"]", server.url(""));
    let post = json!({
        "do": "request", "url": server.url("/orders"), "method": "POST", "body": "{}", "type": "answer",
    });
    let (rig, log) = run(chaos().set(&grant), &[post]);
    let answers = rig.data_of("answer");
    assert_eq!(
        (&answers[0]["status"], &answers[0]["body"]),
        (&json!(200), &json!("hello")),
        "{log}"
    );
    let heads = server.heads.lock().expect("no thread failed").clone();
    assert!(heads[0].starts_with("POST /orders HTTP/1.1\r\n"), "{heads:?}");
    assert!(heads[0].contains("idempotency-key: chaos:/tests:0\r\n"), "{heads:?}");
    assert!(!log.contains("WARN"), "{log}");
}

// Promise 14.
#[test]
fn what_a_denial_says_in_the_log_allows_it() {
    let server = Server::start();
    let (rig, log) = run(chaos(), &[request(&server.url("/")), request(&server.url("/other"))]);
    let denied = json!({ "error": "ErrorCode::HttpRequestDenied" });
    assert_eq!(rig.data_of("answer"), [denied.clone(), denied]);
    assert_eq!(server.requests(), 0);
    let said = "to allow it, add to handlers.toml: [handlers.chaos.allow] ";
    assert_eq!(log.matches(said).count(), 2, "once an attempt: {log}");
    let line = log.split(said).nth(1).and_then(|rest| rest.lines().next()).expect("a line");
    let toml = &line[..=line.find(']').expect("a list")];
    assert_eq!(toml, format!("http = [\"{}\"]", server.url("")));

    let (rig, log) = run(chaos().set(&format!("allow.{toml}")), &[request(&server.url("/"))]);
    assert_eq!(rig.data_of("answer")[0]["status"], 200, "{log}");
}

// Promise 14.
#[test]
fn a_redirect_is_checked_like_any_other_request() {
    let (granted, other) = (Server::start(), Server::start());
    let grant = format!("allow.http = [\"{}\", \"http://*\"]", granted.url(""));
    let follow = |location: &str| {
        let mut command = request(&granted.url(&format!("/to/{location}")));
        command["redirects"] = json!(5);
        command
    };
    let (rig, log) = run(
        chaos().set(&grant),
        &[
            follow(&granted.url("/hello")),
            follow("http://169.254.169.254/latest/meta-data/"),
            follow("http://2852039166/latest/meta-data/"),
            follow("http://[::ffff:169.254.169.254]/latest/meta-data/"),
            follow(&other.url("/")),
            follow(&format!("http://localhost:{}/", other.address.port())),
        ],
    );
    let answers = rig.data_of("answer");
    assert_eq!(answers[0]["status"], 200, "{log}");
    for answer in &answers[1..] {
        assert_eq!(answer["error"], "ErrorCode::HttpRequestDenied", "{answers:?}");
    }
    assert_eq!(answers.len(), 6);
    assert_eq!((granted.requests(), other.requests()), (7, 0));
    assert!(log.contains("169.254.169.254 is a link-local address"), "{log}");
}

// Promises 13 and 14.
#[test]
fn each_limit_of_http_ends_the_attempt_whatever_the_guest_does_then() {
    let server = Server::start();
    let handler = chaos().set(&format!("allow.http = [\"{}\"]", server.url(""))).set(
        "limits = { http_requests = 2, http_bytes = \"1KB\", http_timeout = \"300ms\", timeout = \"20s\" }",
    );
    let many =
        json!([request(&server.url("/")), request(&server.url("/")), request(&server.url("/"))]);
    let mut spinning = request(&server.url("/bytes/2000"));
    spinning["spin"] = json!(true);
    let commands = [
        many,
        request(&server.url("/bytes/2000")),
        request(&server.url("/never")),
        spinning,
        request(&server.url("/bytes/900")),
    ];
    let (rig, log) = run(handler, &commands);
    let kinds: Vec<(Value, Value)> = rig
        .dead_letters()
        .iter()
        .map(|letter| (letter["event"]["id"].clone(), letter["failure"]["kind"].clone()))
        .collect();
    let expected = ["http-request-limit", "http-byte-limit", "http-timeout", "http-byte-limit"];
    let expected: Vec<(Value, Value)> =
        expected.iter().enumerate().map(|(n, kind)| (json!(n.to_string()), json!(kind))).collect();
    assert_eq!(kinds, expected, "{log}");
    let answers = rig.data_of("answer");
    assert_eq!(answers.len(), 1, "a failed attempt emits nothing: {answers:?}");
    assert_eq!(answers[0]["status"], 200);
}

// Promise 14.
#[test]
fn a_handler_emits_the_types_that_it_is_granted_and_no_others() {
    let emit = |event_type: &str| json!({ "do": "emit", "type": event_type });
    let types = ["audit.a", "seen", "other", "audit"];
    let commands: Vec<Value> = types.iter().map(|event_type| emit(event_type)).collect();
    let count = "SELECT count(*) FROM events WHERE type <> 'command'";
    let (rig, _) = run(chaos(), &commands);
    assert_eq!(rig.number(count), 4, "without a list every type is allowed");
    let (rig, log) = run(chaos().set("allow.emit = [\"audit.*\", \"seen\"]"), &commands);
    assert_eq!(rig.number(count), 2);
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 2);
    let text = letters[0]["failure"]["text"].as_str().expect("a text");
    assert!(text.contains("may not emit `other`"), "{text}");
    assert!(log.contains("[handlers.chaos.allow] emit = [\"other\"]"), "{log}");
    let (rig, _) = run(chaos().set("allow.emit = []"), &commands);
    assert_eq!(rig.number(count), 0);
}

// Promise 14.
#[test]
fn a_handler_without_its_state_neither_reads_nor_writes_it() {
    let count = json!({ "do": "count", "key": "n" });
    let (rig, log) = run(chaos().set("allow.state = false"), &[count]);
    assert_eq!(rig.number("SELECT count(*) FROM state"), 0);
    let letters = rig.dead_letters();
    let text = letters[0]["failure"]["text"].as_str().expect("a text");
    assert!(text.contains("may not use its state"), "{text}");
    assert!(log.contains("[handlers.chaos.allow] state = true"), "{log}");
}

// Promise 14.
#[test]
fn a_handler_reads_its_configuration_and_nobody_elses() {
    let config = |key: &str| json!({ "do": "config", "key": key, "type": "config" });
    let (rig, _) = run(
        chaos()
            .set("allow.config = { currency = \"EUR\", \"a key\" = \"\" }")
            .set("allow.env = { ENV = \"x\" }"),
        &[config("currency"), config("a key"), config("ENV"), config("PATH")],
    );
    let values: Vec<Value> = rig.data_of("config").iter().map(|c| c["value"].clone()).collect();
    assert_eq!(values, [json!("EUR"), json!(""), Value::Null, Value::Null]);
    assert!(rig.data_of("config").iter().all(|config| config["all"] == 2));
    let (rig, _) = run(chaos(), &[config("currency")]);
    assert_eq!(rig.data_of("config"), [json!({ "value": null, "all": 0 })]);
}

// Promise 14.
#[test]
fn no_way_out_of_the_sandbox_that_wasi_offers_leads_anywhere() {
    let ways_out = json!({ "do": "ways-out", "type": "found" });
    let (rig, log) = run(chaos().set("reuse = \"event\""), &[ways_out.clone(), ways_out]);
    let found = rig.data_of("found");
    assert_eq!(found.len(), 2, "{log}");
    for (way, expected) in [
        ("directories", "0"),
        ("stdin", "Closed"),
        ("environment", "0"),
        ("arguments", "0"),
        ("working-directory", "None"),
        ("tcp4", "access-denied"),
        ("tcp6", "access-denied"),
        ("udp4", "access-denied"),
        ("udp6", "access-denied"),
        ("name", "permanent-resolver-failure"),
        ("address", "permanent-resolver-failure"),
    ] {
        let led_to = found[0][way].as_str().expect("a text");
        assert!(led_to.contains(expected), "{way}: {found:?}");
    }
    // No instance can guess what another one is given.
    for way in ["seed", "random"] {
        assert!(found[0][way].is_string() && found[0][way] != found[1][way], "{way}: {found:?}");
    }
}
