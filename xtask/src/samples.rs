//! The example's sample events: webhooks of a few repositories that never were.
//!
//! The same events each time, so that the file in the repository can be checked
//! against this code. Two of them cause trouble on purpose; see [`RETRIED`] and
//! [`MALFORMED`].

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::root;

/// Where the events go, in the repository.
pub(crate) const FILE: &str = "examples/webhooks/events.jsonl";

/// How many events there are.
pub(crate) const COUNT: u32 = 240;

/// The event whose receiver is unavailable until the third attempt.
pub(crate) const RETRIED: &str = "hook-0090";

/// The event whose pull request is missing, so that the notifier rejects it.
pub(crate) const MALFORMED: &str = "hook-0150";

/// The payload of [`MALFORMED`] as it should have been.
pub(crate) fn corrected(mut data: Value) -> Value {
    data["pull_request"] = json!({ "number": 1150, "title": "Mend the fog horn" });
    data
}

/// Writes [`FILE`].
pub(crate) fn write() -> Result<()> {
    let file = root()?.join(FILE);
    fs::write(&file, lines()).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{COUNT} events in {FILE}");
    Ok(())
}

/// A webhook of GitHub: what it sends of an event.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    /// Its id, in `X-GitHub-Delivery`.
    pub(crate) id: String,
    /// The event, in `X-GitHub-Event`.
    pub(crate) event: String,
    /// The body.
    pub(crate) body: String,
}

/// The sample events as GitHub sends them.
pub(crate) fn deliveries() -> Vec<Delivery> {
    let mut dice = Dice(2026);
    let delivery = |event: Value| {
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        Delivery { id: text("id"), event: text("subject"), body: event["data"].to_string() }
    };
    (1..=COUNT).map(|number| delivery(event(number, &mut dice))).collect()
}

fn lines() -> String {
    let mut dice = Dice(2026);
    (1..=COUNT).map(|number| format!("{}\n", event(number, &mut dice))).collect()
}

const REPOSITORIES: [&str; 5] =
    ["harbour/dock", "harbour/pilot", "lighthouse/beam", "lighthouse/keeper", "ada/tide-tables"];

const PEOPLE: [&str; 7] = ["ada", "barbara", "edsger", "grace", "jürgen", "leslie", "tony"];

const ISSUES: [(&str, Option<&str>); 12] = [
    ("Crash when two ships arrive at once", Some("It fails with a panic in `assign_berth`.")),
    ("Typo in the README", Some("It says “habour” in the second line.")),
    ("Loading the chart is slow", Some("Twenty seconds for a chart of 3 MB. Is it the memory?")),
    ("How do I reset the fog horn?", None),
    ("Token shows in the log", Some("The pilot's token is in every line from 09:00 on.")),
    ("Night mode", Some("")),
    ("Tide table for 2027", None),
    (
        "Regression: the beam turns the wrong way",
        Some("Broken since the last release.\r\n\r\n> left"),
    ),
    ("Documentation of the signal flags", Some("An example for each flag would help.")),
    ("ログに波の高さが出ない", Some("波の高さ 🌊 が必要です。")),
    ("Timeout while mooring", Some("Latency of the winch is over 5 s, then an error.")),
    ("Support buoys", Some("There are buoys in the bay that we cannot see.")),
];

const CHANGES: [&str; 6] = [
    "Turn the beam by the sidereal clock",
    "Count ships once, not twice",
    "Bump the chart to edition 14",
    "Let the pilot sleep at low tide",
    "Remove the second anchor",
    "Say which berth is taken",
];

/// One webhook as a CloudEvent.
fn event(number: u32, dice: &mut Dice) -> Value {
    let id = format!("hook-{number:04}");
    let repository = dice.pick(&REPOSITORIES);
    let sender = dice.pick(&PEOPLE);
    let (kind, mut data) = if id == RETRIED || id == MALFORMED {
        pull_request_opened(number, dice)
    } else {
        payload(number, dice)
    };
    data.insert("sender".to_owned(), json!({ "login": sender }));
    // What concerns an account and no repository: it has no such field.
    let of_account = kind == "organization.member_added";
    if of_account {
        data.insert("organization".to_owned(), json!({ "login": account(repository) }));
    } else {
        let name = repository.rsplit('/').next();
        data.insert("repository".to_owned(), json!({ "name": name, "full_name": repository }));
    }
    if id == RETRIED {
        data.insert("receiver".to_owned(), json!({ "unavailable_until_attempt": 3 }));
    }
    if id == MALFORMED {
        data.insert("pull_request".to_owned(), Value::Null);
    }
    let place = if of_account { account(repository) } else { repository };
    json!({
        "specversion": "1.0",
        "id": id,
        "source": format!("https://github.com/{place}"),
        "type": format!("com.github.{kind}"),
        "subject": kind.split('.').next(),
        "time": time(number),
        "datacontenttype": "application/json",
        "partitionkey": place,
        "data": data,
    })
}

fn account(repository: &'static str) -> &'static str {
    repository.split('/').next().unwrap_or(repository)
}

/// A kind of webhook and what is special in its payload.
fn payload(number: u32, dice: &mut Dice) -> (&'static str, Map<String, Value>) {
    match dice.roll(100) {
        0..25 => issue_opened(number, dice),
        25..40 => push(number, dice),
        40..55 => pull_request_opened(number, dice),
        55..70 => {
            let comment = json!({ "id": 9_000 + number, "body": dice.pick(&CHANGES) });
            ("issue_comment.created", with("created", "comment", comment))
        }
        70..80 => {
            let issue = json!({ "number": number, "state": "closed" });
            ("issues.closed", with("closed", "issue", issue))
        }
        80..90 => ("star.created", with("created", "starred_at", json!(time(number)))),
        90..95 => {
            let tag = format!("v0.{number}.0");
            let name =
                if dice.roll(2) == 0 { Value::Null } else { json!(format!("Tide {number}")) };
            let release = json!({ "tag_name": tag, "name": name, "draft": false });
            ("release.published", with("published", "release", release))
        }
        _ => {
            let url = format!("https://example.com/memberships/{number}");
            let membership = json!({ "role": "member", "url": url, "user": null });
            ("organization.member_added", with("member_added", "membership", membership))
        }
    }
}

fn issue_opened(number: u32, dice: &mut Dice) -> (&'static str, Map<String, Value>) {
    let (title, body) = dice.pick(&ISSUES);
    let mut issue = json!({
        "number": number,
        "title": title,
        "body": body,
        "html_url": format!("https://example.com/issues/{number}"),
    });
    // Some senders leave out what is empty, some say null.
    match dice.roll(4) {
        0 => issue["labels"] = json!([{ "id": 1, "name": "bug", "color": "d73a4a" }]),
        1 => issue["labels"] = Value::Null,
        2 => issue["labels"] = json!([]),
        _ => {}
    }
    ("issues.opened", with("opened", "issue", issue))
}

fn pull_request_opened(number: u32, dice: &mut Dice) -> (&'static str, Map<String, Value>) {
    let number = 1_000 + number;
    let pull_request = json!({
        "number": number,
        "title": dice.pick(&CHANGES),
        "body": null,
        "draft": dice.roll(5) == 0,
        "html_url": format!("https://example.com/pull/{number}"),
    });
    ("pull_request.opened", with("opened", "pull_request", pull_request))
}

fn push(number: u32, dice: &mut Dice) -> (&'static str, Map<String, Value>) {
    let commits: Vec<Value> = (0..dice.roll(4))
        .map(|commit| json!({ "id": format!("{number:038x}{commit:02x}"), "message": dice.pick(&CHANGES) }))
        .collect();
    let mut data = Map::new();
    data.insert("ref".to_owned(), json!("refs/heads/main"));
    data.insert("after".to_owned(), json!(format!("{number:038x}ff")));
    data.insert("head_commit".to_owned(), commits.last().cloned().unwrap_or_default());
    data.insert("commits".to_owned(), Value::Array(commits));
    ("push", data)
}

fn with(action: &str, name: &str, value: Value) -> Map<String, Value> {
    Map::from_iter([("action".to_owned(), json!(action)), (name.to_owned(), value)])
}

/// A minute apart.
fn time(number: u32) -> String {
    format!("2026-03-01T{:02}:{:02}:00Z", 8 + number / 60, number % 60)
}

/// Numbers that look like chance and are the same each time.
struct Dice(u64);

impl Dice {
    /// A number below `sides`, by xorshift.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let sides = from.len() as u64;
        // It fits: it is below a length.
        from[self.roll(sides) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_in_the_repository_is_what_this_code_writes() {
        let file = root().unwrap().join(FILE);
        let written = fs::read_to_string(file).unwrap();
        let parsed = |text: &str| -> Vec<Value> {
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        // Not text with text: the order of keys hangs on features of serde_json.
        let same = parsed(&written) == parsed(&lines());
        assert!(same, "run `cargo xtask sample-events` and commit {FILE}");
    }

    #[test]
    fn no_two_deliveries_have_one_body_which_would_be_one_event() {
        let bodies: std::collections::BTreeSet<String> =
            deliveries().into_iter().map(|delivery| delivery.body).collect();
        assert_eq!(bodies.len() as u32, COUNT);
    }

    #[test]
    fn the_two_that_cause_trouble_are_there() {
        let events: Vec<Value> =
            lines().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(events.len() as u32, COUNT);
        let of = |id: &str| events.iter().find(|event| event["id"] == id).unwrap();
        assert_eq!(of(RETRIED)["data"]["receiver"]["unavailable_until_attempt"], 3);
        assert_eq!(of(MALFORMED)["type"], "com.github.pull_request.opened");
        assert_eq!(of(MALFORMED)["data"]["pull_request"], Value::Null);
    }
}
