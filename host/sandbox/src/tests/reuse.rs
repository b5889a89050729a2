//! How long an instance lives: counted by the guest itself.

use super::guests::{self, Guest};
use super::*;

/// Rejects every event with the number of events its instance has seen, as one
/// letter; succeeds instead while `$quiet` events have not been seen.
fn counter(quiet: u32) -> Vec<u8> {
    let handle = format!(
        r"(global.set $seen (i32.add (global.get $seen) (i32.const 1)))
          (if (result i32) (i32.le_u (global.get $seen) (i32.const {quiet}))
            (then (call $ok))
            (else
              (i32.store8 (i32.const 2048) (i32.add (i32.const 64) (global.get $seen)))
              (call $reject (i32.const 2048) (i32.const 1))))"
    );
    Guest { items: "(global $seen (mut i32) (i32.const 0))", handle: &handle, ..Guest::default() }
        .build()
}

/// Attempts of one worker: `.` for a success, else the letter that came back.
async fn attempts(worker: &mut Box<dyn Worker>, count: usize) -> String {
    let caller = Caller::default();
    let mut all = String::new();
    for _ in 0..count {
        let report = caller.attempt(worker).await;
        match report.outcome {
            Outcome::Success => all.push('.'),
            _ => all.push_str(&failure(report).text),
        }
    }
    all
}

async fn worker(wasm: Vec<u8>, reuse: Reuse) -> Box<dyn Worker> {
    load_with(wasm, Limits::default(), reuse).await.unwrap().worker()
}

#[tokio::test]
async fn an_instance_lives_for_a_batch() {
    let mut worker = worker(counter(2), Reuse::Batch).await;
    assert_eq!(attempts(&mut worker, 2).await, "..");
    worker.end_batch();
    assert_eq!(attempts(&mut worker, 3).await, "..C", "the second batch began anew");
}

#[tokio::test]
async fn an_instance_lives_for_one_event() {
    let mut worker = worker(counter(1), Reuse::Event).await;
    assert_eq!(attempts(&mut worker, 3).await, "...");
}

#[tokio::test]
async fn an_instance_lives_for_a_number_of_events_across_batches() {
    let mut one = worker(counter(3), Reuse::Events(3)).await;
    assert_eq!(attempts(&mut one, 2).await, "..");
    one.end_batch();
    assert_eq!(attempts(&mut one, 5).await, ".....", "new after the third and the sixth");
    let mut other = worker(counter(3), Reuse::Events(4)).await;
    assert_eq!(attempts(&mut other, 4).await, "...D");
}

#[tokio::test]
async fn any_failure_ends_the_instance() {
    let mut worker = worker(counter(1), Reuse::Batch).await;
    assert_eq!(attempts(&mut worker, 4).await, ".B.B", "a reject is a failure");
}

#[tokio::test]
async fn a_report_says_whether_the_instance_is_fresh() {
    let mut worker = worker(guests::noop(), Reuse::Batch).await;
    let caller = Caller::default();
    let mut fresh = Vec::new();
    for _ in 0..3 {
        fresh.push(caller.attempt(&mut worker).await.usage.fresh);
    }
    worker.end_batch();
    fresh.push(caller.attempt(&mut worker).await.usage.fresh);
    assert_eq!(fresh, [true, false, false, true]);
}

#[tokio::test]
async fn workers_share_no_instance() {
    let handler = load(counter(1)).await;
    let (mut first, mut second) = (handler.worker(), handler.worker());
    assert_eq!(attempts(&mut first, 1).await, ".");
    assert_eq!(attempts(&mut second, 1).await, ".");
}

#[tokio::test]
async fn events_without_end_leave_a_reused_instance_as_small_as_it_was() {
    let mut worker = worker(guests::noop(), Reuse::Batch).await;
    let caller = Caller::default();
    for _ in 0..2_000 {
        let report = caller.attempt(&mut worker).await;
        assert_eq!((report.outcome, report.usage.memory_bytes), (Outcome::Success, 2 * 65_536));
    }
}

/// In an engine with room for one instance, what is left is seen by a worker that wants
/// another.
#[tokio::test]
async fn an_instance_ends_with_its_batch_or_with_its_worker_or_where_another_needs_room() {
    let pool = PoolSettings { instances: 1, memories: 1, tables: 1, ..PoolSettings::default() };
    let sandbox = Sandbox::new(EngineSettings { pool, ..settings() }).unwrap();
    let worker = async |reuse| {
        let source = bytes(guests::noop());
        let (limits, grants) = (Limits::default(), Grants::default());
        sandbox.load("guest", source, limits, grants, reuse).await.unwrap().worker()
    };
    let caller = Caller::default();
    let is_fresh = async |worker: &mut Box<dyn Worker>| {
        let report = caller.attempt(worker).await;
        assert_eq!(report.outcome, Outcome::Success);
        report.usage.fresh
    };
    let mut other = worker(Reuse::Event).await;
    for (reuse, lives_on) in [(Reuse::Batch, false), (Reuse::Events(10), true)] {
        let mut worker = worker(reuse).await;
        assert!(is_fresh(&mut worker).await);
        assert!(!is_fresh(&mut worker).await, "{reuse:?}");
        worker.end_batch();
        assert_eq!(!is_fresh(&mut worker).await, lives_on, "{reuse:?}");
        // There is room for one alone.
        assert!(is_fresh(&mut other).await);
        assert!(is_fresh(&mut worker).await, "{reuse:?}");
        drop(worker);
        assert!(is_fresh(&mut other).await);
    }
}
