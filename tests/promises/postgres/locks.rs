//! The session that holds the locks, lost in every way (promises 3, 8, 11).

use serde_json::{Value, json};
use tests::{Client, Handler, PATIENCE, Rig, Settings, Store, event, wait_until};

use super::{end_lock_sessions, times_said};

// Promises 7 and 8.
#[test]
fn a_leader_that_loses_its_lock_again_and_again_is_not_taken_for_one_that_crashes() {
    let rig = Rig::on(
        Store::Postgres,
        &Settings::of([Handler::new("chaos", "chaos", &["command"]).attempts(1)]),
    );
    let slow = json!([
        { "do": "log", "line": "begun" },
        { "do": "sleep", "ms": 2500 },
        { "do": "report", "type": "seen" },
    ]);
    rig.publish(&[event("command", 1, slow)]);
    let host = rig.spawn_run();
    let mut client = Client::new(&rig);
    // The third loss is that of a leadership that goes carefully, because the two
    // before it settled nothing.
    for loss in 1..=4 {
        wait_until("the event is under way again, or dead", PATIENCE, || {
            times_said(&host, "begun") >= loss || host.count_messages("dead letter") > 0
        });
        assert_eq!(rig.dead_letters(), Vec::<Value>::new(), "after loss {}", loss - 1);
        assert_eq!(end_lock_sessions(&mut client), 1, "at loss {loss}");
    }
    rig.wait_until_handled("chaos", 1);
    host.stop();
    assert_eq!(rig.dead_letters(), Vec::<Value>::new());
    let seen = rig.data_of("seen");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0]["attempt"], 1);
}
