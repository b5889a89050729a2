//! Handlers of batches: several events in one call.

use super::guests::{self, BatchGuest, import};
use super::*;
use event_host_core::handler::{BatchCall, BatchReport};

/// Rejects an event whose data begins with `x`, traps at `t`, loops at `l`.
const BY_DATA: &str = r#"
    (local $first i32)
    (if (i32.eqz (i32.load offset=80 (local.get $event))) (then (return (i32.const 0))))
    (local.set $first (i32.load8_u (i32.load offset=76 (local.get $event))))
    (if (i32.eq (local.get $first) (i32.const 116)) (then unreachable))
    (if (i32.eq (local.get $first) (i32.const 108)) (then (loop $again (br $again))))
    (i32.eq (local.get $first) (i32.const 120))"#;

/// An event for each data, at positions 1, 2 and so on.
fn events(data: &[&str]) -> Vec<LogEvent> {
    let numbered = (1..).zip(data);
    numbered
        .map(|(position, data)| {
            let mut event = event();
            event.position = Position(position);
            event.event.data = Some(data.as_bytes().to_vec());
            event
        })
        .collect()
}

async fn call(worker: &mut Box<dyn Worker>, events: &[LogEvent]) -> BatchReport {
    let (group, tenant) = ("triage".parse().unwrap(), Tenant::none());
    let events: Vec<&LogEvent> = events.iter().collect();
    let call = BatchCall { group: &group, tenant: &tenant, events: &events, state: no_state() };
    tokio::time::timeout(Duration::from_secs(20), worker.attempt_all(call)).await.unwrap()
}

async fn call_of(wasm: Vec<u8>, data: &[&str]) -> BatchReport {
    let limits = Limits { timeout: Duration::from_millis(300), ..Limits::default() };
    let handler = load_with(wasm, limits, Reuse::Batch).await.unwrap();
    call(&mut handler.worker(), &events(data)).await
}

/// For each event its failure, if it failed.
fn failures(report: &BatchReport) -> Vec<Option<(FailureKind, &str)>> {
    let failure = |outcome| match outcome {
        &Outcome::Success => None,
        Outcome::Failure(failure) => Some((failure.kind, &*failure.text)),
        Outcome::NotRun(why) => panic!("{why}"),
    };
    report.outcomes.iter().map(failure).collect()
}

#[tokio::test]
async fn each_event_of_a_call_has_its_own_outcome() {
    let wasm = || BatchGuest { each: BY_DATA, ..BatchGuest::default() }.build();
    let report = call_of(wasm(), &["a", "x-1", "b", "x-2"]).await;
    let reject = |text| Some((FailureKind::Reject, text));
    assert_eq!(failures(&report), [None, reject("x-1"), None, reject("x-2")]);
    let report = call_of(wasm(), &["a", "b"]).await;
    assert_eq!(report.outcomes, [Outcome::Success, Outcome::Success]);
    assert!(report.usage.fresh && report.usage.memory_bytes == 2 * 65_536);
}

#[tokio::test]
async fn a_call_that_breaks_off_ends_alike_for_all_its_events() {
    let wasm = || BatchGuest { each: BY_DATA, ..BatchGuest::default() }.build();
    for (data, kind) in [("t", FailureKind::Trap), ("l", FailureKind::Timeout)] {
        let report = call_of(wasm(), &["a", "b", data]).await;
        let kinds: Vec<_> = failures(&report).iter().map(|failed| failed.unwrap().0).collect();
        assert_eq!(kinds, [kind; 3]);
        assert!(report.emits.is_empty());
    }
}

#[tokio::test]
async fn an_answer_with_another_number_of_results_is_a_bad_answer() {
    for (results, said) in [("(i32.const 1)", "1 results"), ("(i32.const 3)", "3 results")] {
        let report = call_of(BatchGuest { results, ..BatchGuest::default() }.build(), &["", ""]);
        let text = format!("answered {said} for 2 events");
        assert_eq!(failures(&report.await), [Some((FailureKind::BadAnswer, &*text)); 2]);
    }
    let none = BatchGuest { results: "(i32.const 0)", ..BatchGuest::default() }.build();
    let failure = failure_of(none).await;
    assert_kind(&failure, FailureKind::BadAnswer, "answered 0 results for 1 events");
}

#[tokio::test]
async fn an_answer_beyond_all_measure_is_refused_before_the_host_holds_it() {
    let results = "(drop (memory.grow (i32.const 1900))) (i32.const 3000000)";
    let report = call_of(BatchGuest { results, ..BatchGuest::default() }.build(), &[""]).await;
    let [Some((kind, text))] = failures(&report)[..] else { panic!("{report:?}") };
    assert_eq!(kind, FailureKind::HostCallLimit, "{text}");
}

#[tokio::test]
async fn one_event_is_a_batch_of_one() {
    let wasm = BatchGuest { each: BY_DATA, ..BatchGuest::default() }.build();
    let handler = load(wasm).await;
    let mut caller = Caller::default();
    let mut worker = handler.worker();
    assert_eq!(caller.attempt(&mut worker).await.outcome, Outcome::Success);
    caller.event.event.data = Some(b"x".to_vec());
    let failure = failure(caller.attempt(&mut worker).await);
    assert_kind(&failure, FailureKind::Reject, "x");
}

/// Emits an event of type `t` for each event, before it looks at it.
fn emitting() -> Vec<u8> {
    BatchGuest {
        imports: &import("outbox", "emit", "(param i32 i32)"),
        items: r#"(data (i32.const 2048) "t")"#,
        each: &format!(
            "{}
             (i32.store (i32.const 512) (i32.const 2048))
             (i32.store (i32.const 516) (i32.const 1))
             (call $outbox_emit (i32.const 512) (i32.const 640))
             {}",
            "(local $first i32)",
            BY_DATA.replace("(local $first i32)", "")
        ),
        ..BatchGuest::default()
    }
    .build()
}

#[tokio::test]
async fn what_a_call_emits_belongs_to_all_its_events_and_is_dropped_if_one_fails() {
    let report = call_of(emitting(), &["a", "b", "c"]).await;
    let ids: Vec<&str> = report.emits.iter().map(|emit| &*emit.id).collect();
    // No other call that is settled has the same last event.
    assert_eq!(ids, ["triage:3:1", "triage:3:2", "triage:3:3"]);
    let report = call_of(emitting(), &["a", "x", "c"]).await;
    assert_eq!(report.outcomes[0], Outcome::Success);
    assert!(report.emits.is_empty());
}

#[tokio::test]
async fn emits_inherit_the_key_that_all_events_of_a_call_have() {
    let handler = load(emitting()).await;
    let key = |name: &str| Some(name.to_owned());
    for (keys, expected) in [
        ([key("a"), key("a")], key("a")),
        ([key("a"), key("b")], None),
        ([key("a"), None], None),
        ([None, key("a")], None),
    ] {
        let mut events = events(&["", ""]);
        for (event, key) in events.iter_mut().zip(keys) {
            event.event.partitionkey = key;
        }
        let report = call(&mut handler.worker(), &events).await;
        assert!(report.emits.iter().all(|emit| emit.partitionkey == expected), "{report:?}");
        assert_eq!(report.emits.len(), 2);
    }
}

/// Rejects once its instance has seen more than two events, with any data.
fn wearing_out() -> Vec<u8> {
    BatchGuest {
        items: "(global $seen (mut i32) (i32.const 0))",
        each: "(global.set $seen (i32.add (global.get $seen) (i32.const 1)))
               (i32.gt_u (global.get $seen) (i32.const 2))",
        ..BatchGuest::default()
    }
    .build()
}

#[tokio::test]
async fn an_instance_lives_for_as_many_events_as_it_may_whatever_calls_they_come_in() {
    let all_succeed = async |worker: &mut Box<dyn Worker>, data: &[&str]| {
        call(worker, &events(data)).await.outcomes.iter().all(|o| *o == Outcome::Success)
    };
    for (reuse, lives_on) in
        [(Reuse::Events(2), false), (Reuse::Event, false), (Reuse::Events(3), true)]
    {
        let handler = load_with(wearing_out(), Limits::default(), reuse).await.unwrap();
        let mut worker = handler.worker();
        assert!(all_succeed(&mut worker, &["", ""]).await);
        assert_eq!(all_succeed(&mut worker, &["", ""]).await, !lives_on, "{reuse:?}");
    }
    // A failure of one event ends it too.
    let handler = load(wearing_out()).await;
    let mut worker = handler.worker();
    assert!(!all_succeed(&mut worker, &["", "", ""]).await);
    assert!(all_succeed(&mut worker, &["", ""]).await);
}

#[tokio::test]
async fn a_handler_of_single_events_refuses_several() {
    let handler = load(guests::noop()).await;
    let report = call(&mut handler.worker(), &events(&["", ""])).await;
    let refused = Some((FailureKind::BadAnswer, "the handler takes one event a call"));
    assert_eq!(failures(&report), [refused; 2]);
}

#[tokio::test]
async fn a_call_has_room_for_thousands_of_events() {
    let data = vec!["0123456789"; 5_000];
    let report = call_of(BatchGuest { each: BY_DATA, ..BatchGuest::default() }.build(), &data);
    let report = report.await;
    assert_eq!(report.outcomes.len(), 5_000);
    assert!(report.outcomes.iter().all(|outcome| *outcome == Outcome::Success), "{report:?}");
}
