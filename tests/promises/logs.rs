//! What handlers log costs the host no more than their limits say (promise 13).

use serde_json::{Value, json};
use tests::{Handler, PATIENCE, Rig, Settings, event, wait_for};

fn lines(text: &str, count: usize) -> Value {
    json!({ "do": "print", "text": format!("{text}\n").repeat(count) })
}

/// The lines of the log that a handler wrote, and all their bytes.
fn written(log: &str, handler: &str) -> (usize, usize) {
    let said = format!("handler=\"{handler}\"");
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains(&said) && line.contains("guest:")).collect();
    (lines.len(), lines.iter().map(|line| line.len() + 1).sum())
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
        event("command", format!("{long}2"), lines("", 300)),
        event("good", 1, json!({ "do": "log", "line": "innocent" })),
    ]);
    let log = rig.drain();
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0]["failure"]["kind"], "log-limit");
    let (count, bytes) = written(&log, "flood");
    assert!(count >= 300, "{count} lines");
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
    let of = |handler: &str, wanted: &dyn Fn(&Value) -> bool| {
        let is_wanted = |line: &&Value| line["handler"] == handler && wanted(line);
        host.log().iter().filter(is_wanted).count() as u64
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
