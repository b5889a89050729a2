//! What handlers log costs the host no more than their limits say (promise 13).

use serde_json::{Value, json};
use tests::{Handler, PATIENCE, Rig, Settings, event, wait_for};

fn lines(text: &str, count: usize) -> Value {
    json!({ "do": "print", "text": format!("{text}\n").repeat(count) })
}

/// The lines of the log that handlers wrote, which begin so: those that begin a record,
/// those that go on with one, and all their bytes.
fn written(log: &str, text: &str) -> (usize, usize, usize) {
    let (first, further) = (format!(" guest: {text}"), format!("    | {text}"));
    let count = |is_one: &dyn Fn(&&str) -> bool| log.lines().filter(is_one).count();
    let is_first = |line: &&str| line.contains(&first);
    let is_further = |line: &&str| line.starts_with(&further);
    let bytes = log.lines().filter(|line| is_first(line) || is_further(line));
    (count(&is_first), count(&is_further), bytes.map(|line| line.len() + 1).sum())
}

// Promise 13.
#[test]
fn a_long_id_and_empty_lines_make_no_more_log_than_the_limit() {
    let rig = Rig::new(&Settings::of([
        Handler::new("flood", "chaos", &["command"]).attempts(1).set("limits.log = \"64KiB\""),
        Handler::new("innocent", "chaos", &["good"]).attempts(1),
    ]));
    let long = "x".repeat(1_000);
    rig.publish(&[
        event("command", format!("{long}1"), lines("", 3_000)),
        event("command", format!("{long}2"), lines(".", 300)),
        event("good", 1, json!({ "do": "log", "line": "innocent" })),
    ]);
    let log = rig.drain();
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0]["failure"]["kind"], "log-limit");
    let (records, further, bytes) = written(&log, ".");
    assert_eq!(records + further, 300, "{records} records");
    assert!(records < 50, "{records} records");
    // Two attempts, and what a line has beyond what it counts as.
    assert!(bytes < 2 * 80 * 1024, "{bytes} bytes");
    assert!(!log.contains(&"x".repeat(100)), "ids are cut");
    assert_eq!(written(&log, "innocent").0, 1, "{log}");
}

// Promise 13.
#[test]
fn lines_beyond_a_handlers_rate_are_dropped_and_counted() {
    let limits = "limits = { log = \"100MB\", log_lines_per_second = 20 }";
    let rig = Rig::new(&Settings::of([
        Handler::new("flood", "chaos", &["command"]).attempts(1).set(limits),
        Handler::new("innocent", "chaos", &["good"]).attempts(1),
    ]));
    let denied = json!({ "do": "request", "url": "http://192.0.2.1/", "type": "answer" });
    let mut events: Vec<Value> =
        (0..50).map(|n| event("command", n, json!([lines("flood", 100), denied]))).collect();
    events.push(event("good", 1, json!({ "do": "log", "line": "innocent" })));
    rig.publish(&events);
    let host = rig.spawn_run();
    rig.wait_until_handled("innocent", 51);
    rig.wait_until_handled("flood", 50);
    // A record has as many lines as were written at once.
    let of = |handler: &str, wanted: &dyn Fn(&Value) -> bool| {
        let log = host.log();
        let is_wanted = |line: &&Value| line["handler"] == handler && wanted(line);
        let messages = log.iter().filter(is_wanted).filter_map(|line| line["message"].as_str());
        messages.map(|message| message.lines().count() as u64).sum::<u64>()
    };
    let (written, told) = wait_for("each line is written or counted", PATIENCE, || {
        let told: u64 = host.log().iter().filter_map(|line| line["lines"].as_u64()).sum();
        let written = of("flood", &|line| line["lines"].is_null());
        // The denial is a line too.
        (written + told >= 50 * 100 + 50).then_some((written, told))
    });
    assert_eq!(written + told, 50 * 100 + 50);
    assert!(told > 0 && written < 1_000, "{written} lines, {told} dropped");
    assert_eq!(of("innocent", &|line| line["message"] == "innocent"), 1);
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    host.stop();
}
