//! What the database refuses to store, and what nobody can read, costs the event that is
//! the cause of it, and no other anything.

use std::time::Duration;

use serde_json::json;
use tests::{Client, Handler, Rig, Settings, Store, event, wait_until, with};

tests::on_both_stores! {
    what_somebodys_rule_refuses_costs_one_event_and_all_others_are_exact,
}

/// Has the database refuse an event that a handler emits.
fn refuse_what_is_emitted_of(store: Store, rig: &Rig, id: &str) {
    let rule = match store {
        Store::Sqlite => format!(
            "CREATE TRIGGER not_this_one BEFORE INSERT ON events
             WHEN NEW.type = 'seen' AND NEW.subject = '{id}'
             BEGIN SELECT RAISE(ABORT, 'not_this_one'); END"
        ),
        Store::Postgres => format!(
            "ALTER TABLE events ADD CONSTRAINT not_this_one
             CHECK (type <> 'seen' OR subject <> '{id}')"
        ),
    };
    Client::new(rig).execute(&rule);
}

fn what_somebodys_rule_refuses_costs_one_event_and_all_others_are_exact(store: Store) {
    const EVENTS: i64 = 300;
    let counter = Handler::new("counter", "tally", &["thing"]).attempts(3);
    let rig = Rig::on(store, &Settings::of([counter]));
    let things: Vec<_> =
        (1..=EVENTS).map(|n| with(event("thing", n, json!(null)), "seen", true)).collect();
    rig.publish(&things);
    refuse_what_is_emitted_of(store, &rig, "150");
    rig.drain();
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0]["event"]["id"], "150");
    assert_eq!(
        (&letters[0]["failure"]["kind"], &letters[0]["attempts"]),
        (&json!("not-stored"), &json!(3))
    );
    let text = letters[0].to_string();
    assert!(text.contains("not_this_one"), "in the database's words: {text}");
    assert_eq!(rig.state("counter", "count"), EVENTS - 1);
    assert_eq!(rig.number("SELECT count(*) FROM events WHERE type = 'seen'"), EVENTS - 1);
    let twice = "SELECT count(*) FROM (SELECT subject FROM events WHERE type = 'seen'
                 GROUP BY subject HAVING count(*) > 1) again";
    assert_eq!(rig.number(twice), 0);
}

#[test]
fn an_event_that_nobody_can_read_becomes_a_dead_letter_and_all_others_are_handled() {
    let counter = Handler::new("counter", "tally", &["thing"]);
    let rig = Rig::on(Store::Postgres, &Settings::of([counter]));
    rig.publish(&[event("thing", 1, json!(null)), event("thing", 2, json!(null))]);
    let mut client = Client::new(&rig);
    // As text its extensions have more than a gigabyte, which no rule lets in.
    client.execute(
        "ALTER TABLE events DROP CONSTRAINT it_is_an_event;
         INSERT INTO events (type, id, extensions) VALUES ('thing', 'unreadable',
             (SELECT jsonb_object_agg('k' || n, 1e131000) FROM generate_series(1, 8400) n));
         INSERT INTO events (type, id) VALUES ('thing', '4'), ('thing', '5')",
    );
    let host = rig.spawn_run();
    wait_until("the others are handled", Duration::from_secs(240), || {
        rig.state("counter", "count") == 4
    });
    let letters = rig.dead_letters();
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0]["event"]["id"], "unreadable");
    assert_eq!(letters[0]["failure"]["kind"], "too-large");
    let id = letters[0]["id"].to_string();
    let refused = rig.host(["dlq", "replay", id.as_str()]).failed(1);
    assert!(refused.contains("not the whole event"), "{refused}");
    host.stop();
}
