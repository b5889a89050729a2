//! Files and rows that nobody would write: what is let in reaches every handler, and what
//! is refused is refused with its line.

use serde_json::json;
use tests::{Client, Handler, Rig, Settings, Store, event};

tests::on_both_stores! {
    what_is_let_in_reaches_every_handler_and_what_is_not_is_told_where,
}

const ACCEPTED: &[u8] = include_bytes!("../corpus/events/accepted.jsonl");
const REFUSED: &[u8] = include_bytes!("../corpus/events/refused.jsonl");

/// Rows that the constraints of a store let in, and that are odd to read.
fn rows(store: Store) -> &'static str {
    match store {
        Store::Sqlite => {
            r#"INSERT INTO events (type, partitionkey) VALUES
                 ('thing', CAST(replace(hex(zeroblob(512)), '0', x'ff') AS TEXT));
               INSERT INTO events (type, subject) VALUES (CAST(x'74ff' AS TEXT), CAST(x'c0' AS TEXT));
               INSERT INTO events (type, extensions) VALUES ('thing', '{"a": "\ud800", "b": 1}');
               INSERT INTO events (type, published_at) VALUES ('thing', 253402207200000000)"#
        }
        Store::Postgres => {
            r#"INSERT INTO events (type, extensions) VALUES ('thing', '{"a": 1e0, "b": "\ud83e\udd80"}');
               INSERT INTO events (type, published_at, deliver_after)
               VALUES ('thing', 'infinity', 'epoch'), ('thing', '-infinity', NULL)"#
        }
    }
}

fn what_is_let_in_reaches_every_handler_and_what_is_not_is_told_where(store: Store) {
    let all = Handler::new("all", "noop", &["*"]);
    let innocent = Handler::new("innocent", "tally", &["innocent"]);
    let rig = Rig::on(store, &Settings::of([all, innocent]));
    rig.write("accepted.jsonl", ACCEPTED);
    let _ = rig.host(["publish", "--file", "accepted.jsonl"]).ok();
    let published = rig.number("SELECT count(*) FROM events");
    assert!(published > 15, "{published}");

    // After a line of its own: the mark of a byte order is one at the beginning alone.
    for line in REFUSED.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        rig.write("refused.jsonl", [b"\n", line].concat());
        let said = rig.host(["publish", "--file", "refused.jsonl"]).failed(1);
        assert!(said.contains("line 2: "), "{said}");
    }
    assert_eq!(rig.number("SELECT count(*) FROM events"), published);

    Client::new(&rig).execute(rows(store));
    rig.publish(&[event("innocent", 1, json!(null))]);
    // Within the minute that a drain may take.
    rig.drain();
    assert_eq!(rig.group("all")["lag_events"], 0);
    assert_eq!(rig.state("innocent", "count"), 1);
    assert!(rig.dead_letters().is_empty(), "{:?}", rig.dead_letters());
}
