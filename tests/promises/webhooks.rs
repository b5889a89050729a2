//! Webhooks of providers that know nothing of CloudEvents: who sent them is verified, and each
//! is in the log once.

use std::net::SocketAddr;

use serde_json::Value;
use tests::{Answer, Handler, Http, PATIENCE, Rig, Settings, Store, wait_until};

tests::on_both_stores! {
    a_webhook_is_handled_once_whatever_is_sent_again_and_whoever_dies,
    secrets_change_without_a_gap_and_show_nowhere,
}

/// A source with GitHub's preset, and one with a signature of its own kind.
const SOURCES: &str = r#"
[listen.local]
address = "127.0.0.1:0"

[ingest]
min_free = "1MiB"

[sources.github]
verify = "github"
secrets = ["${file:new.secret}", "${file:old.secret}"]
partitionkey = "{json:/repository/full_name?}"

[sources.tides]
verify = "hmac"
secrets = ["hex:00112233445566778899aabbccddeeff"]
header = "x-tide-signature"
signed = "{header:x-tide-time}.{body}"
timestamp = "{header:x-tide-time}"
type = "tide.{json:/turn}"
id = "{json:/id}"
source = "/tides"
"#;

fn rig() -> Rig {
    rig_on(Store::Sqlite)
}

fn rig_on(store: Store) -> Rig {
    let handler = Handler::new("counter", "tally", &["issues.*", "tide.*"]);
    let rig = Rig::on(store, &Settings::of([]));
    rig.write("new.secret", "the key is under the third plank\n");
    rig.write("old.secret", "the key was under the fourth plank\n");
    rig.configure(&Settings::of([handler]).top(SOURCES));
    rig
}

const ISSUE: &str =
    r#"{"action":"opened","issue":{"number":7},"repository":{"full_name":"harbour/dock"}}"#;

/// The arguments of curl, from the command that `host webhook sign` prints.
fn words(command: &str) -> Vec<String> {
    let output = std::process::Command::new("sh")
        .args(["-c", &format!("{} \"$@\"", command.replacen("curl", "printf '%s\\n'", 1)), "sh"])
        .output()
        .expect("sh runs");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_request_that_was_signed_is_taken_and_one_that_was_changed_is_not() {
    let rig = rig();
    rig.write("issue.json", ISSUE);
    rig.write("changed.json", ISSUE.replace('7', "8"));
    let sign = ["webhook", "sign", "github", "--file", "issue.json"];
    let sign = sign.iter().chain(&["--header", "x-github-event: issues"]);
    let command = rig.host(sign).ok();
    let words = words(&command);
    assert_eq!(words[0], "http://127.0.0.1:8480/hooks/github");
    assert_eq!(words[words.len() - 1], "@issue.json");
    let headers: Vec<&str> =
        words.iter().map(String::as_str).filter(|word| word.contains(": ")).collect();
    let check = |file: &str, headers: &[&str], more: &[&str]| {
        let mut arguments = vec!["webhook", "check", "github", "--file", file];
        for header in headers {
            arguments.extend(["--header", header]);
        }
        rig.host(arguments.iter().chain(more))
    };
    let taken: Value =
        serde_json::from_str(&check("issue.json", &headers, &["--json"]).ok()).expect("JSON");
    let event = &taken["event"];
    assert_eq!(taken["outcome"], "event");
    assert_eq!(event["type"], "issues.opened");
    assert_eq!(event["source"], "https://github.com/harbour/dock");
    assert_eq!(event["partitionkey"], "harbour/dock");
    assert_eq!(event["data"], serde_json::from_str::<Value>(ISSUE).expect("JSON"));
    assert_eq!(taken["duplicate_key"].as_str().map(str::len), Some(64), "the hash of the body");

    let refused = check("changed.json", &headers, &[]).failed(1);
    assert!(refused.contains("refused (signature)"), "{refused}");
    assert!(!refused.contains("plank"), "{refused}");
    let unsigned: Vec<&str> =
        headers.iter().filter(|header| !header.contains("signature")).copied().collect();
    let refused = check("issue.json", &unsigned, &[]).failed(1);
    assert!(refused.contains("`x-hub-signature-256` is missing"), "{refused}");

    // With the secret that is still valid at the provider, and no longer the first.
    rig.write("new.secret", "the key was under the fourth plank\n");
    rig.write("old.secret", "the key is under the third plank\n");
    let taken = check("issue.json", &headers, &[]).ok();
    assert!(taken.contains("issues.opened"), "{taken}");
}

#[test]
fn a_captured_request_is_judged_by_when_it_came() {
    let rig = rig();
    rig.write("tide.json", r#"{"turn":"high","id":"t-1"}"#);
    let command = rig.host(["webhook", "sign", "tides", "--file", "tide.json"]).ok();
    let words = words(&command);
    let mut check = vec!["webhook", "check", "tides", "--file", "tide.json"];
    for header in words.iter().filter(|word| word.contains(": ")) {
        check.extend(["--header", header]);
    }
    assert!(rig.host(&check).ok().contains(r#""type":"tide.high""#));
    let then = check.iter().chain(&["--at", "2026-01-31T12:00:00Z"]);
    let refused = rig.host(then).failed(1);
    assert!(refused.contains("refused (stale)"), "{refused}");
}

#[test]
fn what_is_wrong_with_the_question_is_said() {
    let rig = rig();
    rig.write("issue.json", ISSUE);
    for (arguments, code, expected) in [
        (
            &["check", "git", "--file", "issue.json"][..],
            1,
            "no source `git`: did you mean `github`?",
        ),
        (&["check", "x", "--file", "issue.json"], 1, "has `github`, `tides`"),
        (&["check", "github", "--file", "missing.json"], 1, "cannot read missing.json"),
        (&["check", "github", "--file", "issue.json", "--header", "x"], 2, "write 'NAME: VALUE'"),
        (&["sign", "github", "--file", "-"], 2, "the file that curl sends"),
        (&["sign", "github", "--file", "issue.json"], 1, "no header `x-github-event`"),
        (&["sign", "tides", "--file", "issue.json"], 1, "nothing at `/id` in its body"),
    ] {
        let said = rig.host(["webhook"].iter().chain(arguments)).failed(code);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    let shown = rig.host(["check"]).ok();
    for line in [
        "source github",
        "  address       /hooks/github",
        "  verify        github",
        "  type          {header:x-github-event}.{json:/action?}",
        "  repetitions   by id, or by {body:sha256}",
        "source tides",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(!shown.contains("plank") && !shown.contains("00112233"), "{shown}");
}

/// The headers with which GitHub sends a file, as the program signs it.
fn signed(rig: &Rig, delivery: &str) -> Vec<(String, String)> {
    let delivery = format!("x-github-delivery: {delivery}");
    let sign = ["webhook", "sign", "github", "--file", "issue.json", "--header", &delivery];
    let command = rig.host(sign.iter().chain(&["--header", "x-github-event: issues"])).ok();
    let headers = words(&command).into_iter();
    headers
        .filter_map(|word| {
            let (name, value) = word.split_once(": ")?;
            Some((name.to_owned(), value.to_owned()))
        })
        .collect()
}

fn post(address: SocketAddr, headers: &[(String, String)], body: &str) -> Answer {
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let mut http = Http::connect(address);
    http.send(format!(
        "POST /hooks/github HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    ))
    .expect("the host reads");
    http.answer().expect("an answer")
}

/// Promises 1 and 2, from the provider's request on.
fn a_webhook_is_handled_once_whatever_is_sent_again_and_whoever_dies(store: Store) {
    let rig = rig_on(store);
    rig.write("issue.json", ISSUE);
    let host = rig.spawn_run();
    let address = host.wait_until_listening("local");
    let first = post(address, &signed(&rig, "d-1"), ISSUE);
    assert_eq!(first.status, 202, "{first:?}");
    let position = first.json()["events"][0]["position"].clone();
    // What GitHub sends again, and what somebody sends who has captured it.
    for delivery in ["d-1", "d-2"] {
        let again = post(address, &signed(&rig, delivery), ISSUE);
        assert_eq!(again.status, 200, "{again:?}");
        assert_eq!(again.json()["events"][0]["position"], position, "{again:?}");
    }
    let unsigned = post(address, &[("x-github-event".to_owned(), "issues".to_owned())], ISSUE);
    assert_eq!(unsigned.status, 401, "{unsigned:?}");
    wait_until("it is handled", PATIENCE, || rig.state("counter", "count") == 1);

    // What is known of it is in the database, and not in a process.
    host.kill9();
    rig.wait_until_let_go();
    let host = rig.spawn_run();
    let address = host.wait_until_listening("local");
    let again = post(address, &signed(&rig, "d-3"), ISSUE);
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(again.json()["events"][0]["position"], position, "{again:?}");
    assert_eq!(rig.number("SELECT count(*) FROM events"), 1);
    host.stop();
    assert_eq!(rig.state("counter", "count"), 1);
}

fn secrets_change_without_a_gap_and_show_nowhere(store: Store) {
    let rig = rig_on(store);
    rig.write("issue.json", ISSUE);
    let (new, old) = ("the key is under the third plank", "the key was under the fourth plank");
    let host = rig.spawn_run();
    let address = host.wait_until_listening("local");
    let by_new = signed(&rig, "d-1");
    rig.write("new.secret", format!("{old}\n"));
    let by_old = signed(&rig, "d-2");
    for headers in [&by_new, &by_old] {
        let answer = post(address, headers, ISSUE);
        assert!([200, 202].contains(&answer.status), "{answer:?}");
    }
    // The old one is out: both files hold the new one.
    rig.write("new.secret", format!("{new}\n"));
    rig.write("old.secret", format!("{new}\n"));
    host.hangup();
    wait_until("the old secret is refused", PATIENCE, || {
        post(address, &by_old, ISSUE).status == 401
    });
    assert_eq!(post(address, &by_new, ISSUE).status, 200);
    let log = format!("{:?}", host.log());
    assert!(log.contains("a webhook is refused"), "{log}");
    for secret in [new, old, "00112233445566778899aabbccddeeff"] {
        assert!(!log.contains(secret), "{secret}");
    }
    host.stop();
}

#[test]
fn no_token_secret_or_signature_is_in_the_log_at_its_most_verbose() {
    let rig = rig();
    rig.write("issue.json", ISSUE);
    let (token, lines) = rig.token(&["--name", "ci", "--roles", "publish"]);
    let handler = Handler::new("counter", "tally", &["issues.*", "tide.*"]);
    rig.configure(&Settings::of([handler]).top(&format!("{lines}\n{SOURCES}")));
    let host = rig.spawn(&["run", "--log", "trace"]);
    let address = host.wait_until_listening("local");
    let headers = signed(&rig, "d-1");
    let signature = headers.iter().find(|(name, _)| name == "x-hub-signature-256");
    let signature = signature.expect("a signature").1.trim_start_matches("sha256=").to_owned();
    assert_eq!(post(address, &headers, ISSUE).status, 202);
    // One that is refused is told of in the log.
    assert_eq!(post(address, &headers, &ISSUE.replace('7', "8")).status, 401);
    let send = |path: &str, more: &str| {
        let mut http = Http::connect(address);
        let body = r#"{"specversion":"1.0","id":"1","source":"/s","type":"issues.x","data":1}"#;
        http.send(format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/cloudevents+json\r\n\
             {more}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
        .expect("the host reads");
        http.answer().expect("an answer").status
    };
    let bearer = format!("Authorization: Bearer {token}\r\n");
    assert_eq!(send("/v1/events", &bearer), 202);
    assert_eq!(send(&format!("/v1/events?access_token={token}&tenant=none"), ""), 401);
    assert_eq!(send(&format!("/hooks/github?token={token}"), &bearer), 401);
    let nobody = format!("/hooks/nobody?secret={token}&signature={signature}");
    assert_eq!(send(&nobody, &bearer), 404);
    wait_until("they are handled", PATIENCE, || rig.state("counter", "count") == 2);
    host.wait_for_log("the last request", |line| {
        line["message"] == "answered" && line["path"] == "`/hooks/nobody`"
    });
    let secret = "the key is under the third plank";
    for line in host.log() {
        let text = line.to_string();
        for planted in [&token[4..], &signature, secret] {
            assert!(!text.contains(planted), "{planted}: {text}");
        }
    }
    host.stop();
}
