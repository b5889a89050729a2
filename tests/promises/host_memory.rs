//! What a guest makes the host keep counts for its memory (promise 13): the
//! resources that it makes with their bytes, its emits and its writes. Measured at
//! the host's process, from outside.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Handler, PATIENCE, Rig, Running, Settings, event};

/// An innocent event waits no longer than this from its publication to its
/// settlement, while others hoard.
const INNOCENT_WITHIN: Duration = Duration::from_secs(5);

/// What all hoarders of the test together may make the host larger by, in KiB. Each
/// attempt has 8 MiB, and two run at once; the rest is for what the allocator keeps,
/// for the instances' slots, and for the components' code.
const GROWTH_KIB: u64 = 128 << 10;

/// How large the process has ever been, in KiB.
fn peak_kib(host: &Running) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.pid()))
        .expect("the process is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim_end_matches("kB").trim().parse().expect("a number")
}

fn hoard(part: &str, count: u32, bytes: u32) -> Value {
    json!({ "do": "hoard", "part": part, "count": count, "bytes": bytes })
}

/// What is hoarded, and the failure that must come of it. Where the host counts
/// nothing, it is up to 200 MB each.
fn hoards() -> Vec<(Value, &'static str, &'static str)> {
    let memory = "limits.memory is 8.0 MiB";
    let twice = |command: Value| Value::Array(vec![command.clone(), command]);
    vec![
        (hoard("method", 200, 1_000_000), "reject", "the Method is refused"),
        (hoard("path", 200, 1_000_000), "reject", "the Path is refused"),
        (hoard("authority", 200, 1_000_000), "reject", "the Authority is refused"),
        (hoard("scheme", 200, 1_000_000), "reject", "the Scheme is refused"),
        (hoard("fields", 200, 1_000_000), "trap", "total size of fields exceeds limit"),
        (hoard("path", 900, 8_000), "memory-limit", memory),
        (hoard("fields", 900, 30_000), "memory-limit", memory),
        (hoard("headers", 900, 30_000), "memory-limit", memory),
        (hoard("body", 300, 4_096), "memory-limit", memory),
        (
            Value::Array(vec![json!({ "do": "huge-emit", "bytes": 1_000_000 }); 7]),
            "memory-limit",
            memory,
        ),
        (json!({ "do": "emit", "type": "small", "count": 20_000 }), "memory-limit", memory),
        (
            Value::Array(vec![json!({ "do": "huge-state", "bytes": 1_000_000 }); 7]),
            "memory-limit",
            memory,
        ),
        // What an attempt hoarded counts for the rest of it.
        (twice(hoard("fields", 150, 25_000)), "memory-limit", memory),
    ]
}

// Promise 13.
#[test]
fn what_a_guest_makes_the_host_keep_counts_for_its_memory_and_for_nobody_elses() {
    let hoarder = |name: &str, reuse: &str| {
        Handler::new(name, "chaos", &["command"])
            .attempts(1)
            .set(&format!("reuse = {reuse}"))
            .set("breaker.events = 0")
            .set("limits = { memory = \"8MiB\", emits = 1_000_000 }")
    };
    let rig = Rig::new(&Settings::of([
        hoarder("kept", "\"batch\""),
        hoarder("fresh", "\"event\""),
        Handler::new("innocent", "tally", &["good"]).attempts(1),
    ]));
    rig.publish(&[
        event("command", "warm", json!({ "do": "count", "key": "good" })),
        event("good", "warm", json!(null)),
    ]);
    let host = rig.spawn_run();
    for group in ["innocent", "kept", "fresh"] {
        rig.wait_until_handled(group, 2);
    }
    let before = peak_kib(&host);

    let hoards = hoards();
    let mut events = Vec::new();
    for (n, (command, ..)) in hoards.iter().enumerate() {
        events.push(event("command", format!("bad-{n}"), command.clone()));
        // As much as an attempt may have is there again for the next one.
        let good = json!([
            hoard("headers", 50, 25_000),
            { "do": "huge-emit", "bytes": 500_000 },
            { "do": "count", "key": "good" },
        ]);
        events.push(event("command", format!("good-{n}"), good));
    }
    rig.publish(&events);
    let mut last = 2 + events.len() as i64;
    let all = |position| {
        ["kept", "fresh"].iter().all(|group| {
            let sql = format!("SELECT position FROM consumer_groups WHERE name = '{group}'");
            rig.number(&sql) >= position
        })
    };
    let (hoarded, began) = (last, Instant::now());
    while !all(hoarded) {
        assert!(began.elapsed() < PATIENCE, "the hoarders do not end");
        rig.publish(&[event("good", last, json!(null))]);
        last += 1;
        let published = Instant::now();
        rig.wait_until_handled("innocent", last);
        assert!(published.elapsed() < INNOCENT_WITHIN, "{:?}", published.elapsed());
    }
    let grown = peak_kib(&host).saturating_sub(before);
    host.stop();

    let letters = rig.dead_letters();
    for group in ["kept", "fresh"] {
        let letters: Vec<&Value> =
            letters.iter().filter(|letter| letter["group"] == group).collect();
        let told: Vec<String> =
            letters.iter().map(|letter| letter["failure"].to_string()).collect();
        assert_eq!(letters.len(), hoards.len(), "{group}: {told:#?}");
        for (letter, (n, (command, kind, text))) in letters.iter().zip(hoards.iter().enumerate()) {
            let said = letter["failure"]["text"].as_str().expect("a text");
            let what: String = command.to_string().chars().take(80).collect();
            assert_eq!(letter["event"]["id"], format!("bad-{n}"), "{group}: {told:#?}");
            assert_eq!(letter["failure"]["kind"], *kind, "{group}, {what}: {said}");
            assert!(said.contains(text), "{group}, {what}: {said}");
        }
        assert_eq!(rig.state(group, "good"), 1 + hoards.len() as i64, "{group}");
    }
    assert!(letters.iter().all(|letter| letter["group"] != "innocent"));
    println!("the host grew by {} MiB", grown >> 10);
    assert!(grown < GROWTH_KIB, "the host grew by {} MiB", grown >> 10);
}
