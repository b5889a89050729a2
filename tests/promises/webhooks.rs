//! Webhooks of providers that know nothing of CloudEvents: who sent them is verified, and each
//! is in the log once.

use serde_json::Value;
use tests::{Handler, Rig, Settings};

/// A source with GitHub's preset, and one with a signature of its own kind.
const SOURCES: &str = r#"
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
    let handler = Handler::new("counter", "tally", &["issues.*", "tide.*"]);
    let rig = Rig::new(&Settings::of([]));
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
