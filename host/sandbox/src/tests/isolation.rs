//! What a guest does to itself, others do not notice.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Instant;

use tokio::sync::oneshot;

use super::guests::{self, Guest, handling, import};
use super::*;
use event_host_core::handler::state::{CommittedState, StateUnreadable};

const SPIN: &str = "(loop $again (br $again)) (unreachable)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_innocent_attempt_finishes_beside_more_spinning_guests_than_threads() {
    let limits = Limits { timeout: Duration::from_secs(5), ..Limits::default() };
    let spinner = load_with(handling(SPIN), limits, Reuse::Batch).await.unwrap();
    let spinning: Vec<_> = (0..8)
        .map(|_| {
            let spinner = Arc::clone(&spinner);
            tokio::spawn(async move { attempt(&spinner).await })
        })
        .collect();
    let innocent = load(guests::noop()).await;
    let started = Instant::now();
    for _ in 0..5 {
        // On a thread that the spinning guests are on as well.
        let innocent = Arc::clone(&innocent);
        let report = tokio::spawn(async move { attempt(&innocent).await }).await.unwrap();
        assert_eq!(report.outcome, Outcome::Success);
    }
    let took = started.elapsed();
    assert!(spinning.iter().all(|spinner| !spinner.is_finished()), "they spin to the end");
    assert!(took < Duration::from_secs(4), "{took:?}");
    for spinner in spinning {
        assert_eq!(failure(spinner.await.unwrap()).kind, FailureKind::Timeout);
    }
}

/// A store that answers when it is told to.
struct Slow(Mutex<Option<oneshot::Receiver<()>>>);

#[async_trait::async_trait]
impl CommittedState for Slow {
    async fn get(&self, _: &str, _: &str) -> Result<Option<Vec<u8>>, StateUnreadable> {
        let told = self.0.lock().unwrap().take();
        if let Some(told) = told {
            let _ = told.await;
        }
        Ok(None)
    }

    async fn keys(&self, _: &str, _: &str, _: usize) -> Result<Vec<String>, StateUnreadable> {
        Ok(Vec::new())
    }
}

/// Logs a line, reads state, and succeeds.
fn reader() -> Vec<u8> {
    Guest {
        imports: &[
            import("state", "get", "(param i32 i32 i32)"),
            import("log", "log", "(param i32 i32 i32)"),
        ]
        .concat(),
        items: r#"(data (i32.const 2048) "k")"#,
        handle: r"
            (call $log_log (i32.const 2) (i32.const 2048) (i32.const 1))
            (call $state_get (i32.const 2048) (i32.const 1) (i32.const 640))
            (call $ok)",
        ..Guest::default()
    }
    .build()
}

#[tokio::test]
async fn an_attempt_that_is_dropped_never_happened_and_takes_its_instance_along() {
    let handler = load(reader()).await;
    let mut worker = handler.worker();
    let caller = Caller::default();
    assert!(caller.attempt(&mut worker).await.usage.fresh);

    let (tell, told) = oneshot::channel();
    let slow = Caller {
        state: BatchState::new("").attempt(Arc::new(Slow(Mutex::new(Some(told))))),
        ..Caller::default()
    };
    {
        let mut attempt = pin!(worker.attempt(slow.call()));
        let pending = attempt.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        assert!(pending, "the guest waits for the store");
    }
    drop(tell);
    let report = caller.attempt(&mut worker).await;
    assert_eq!(report.outcome, Outcome::Success);
    assert!(report.usage.fresh);
    assert_eq!(report.usage.log_lines, 1, "not those of the attempt that was dropped");
}

#[tokio::test]
async fn a_store_that_hangs_is_not_the_handlers_fault() {
    let limits = Limits { timeout: Duration::from_millis(200), ..Limits::default() };
    let handler = load_with(reader(), limits, Reuse::Batch).await.unwrap();
    let (_never, told) = oneshot::channel();
    let hung = Caller {
        state: BatchState::new("").attempt(Arc::new(Slow(Mutex::new(Some(told))))),
        ..Caller::default()
    };
    let report = hung.attempt(&mut handler.worker()).await;
    assert!(matches!(report.outcome, Outcome::NotRun(_)), "{report:?}");
}

#[tokio::test]
async fn a_guest_that_asks_the_store_for_ever_is_at_fault() {
    let wasm = Guest {
        imports: &import("state", "get", "(param i32 i32 i32)"),
        items: r#"(data (i32.const 2048) "k")"#,
        handle: r"(loop $again
                (call $state_get (i32.const 2048) (i32.const 1) (i32.const 640)) (br $again))
            (unreachable)",
        ..Guest::default()
    };
    let limits = Limits { timeout: Duration::from_millis(200), ..Limits::default() };
    assert_eq!(failure_under(wasm.build(), limits).await.kind, FailureKind::Timeout);
}

/// A store that is gone.
struct Gone;

#[async_trait::async_trait]
impl CommittedState for Gone {
    async fn get(&self, _: &str, _: &str) -> Result<Option<Vec<u8>>, StateUnreadable> {
        Err(StateUnreadable("gone".to_owned()))
    }

    async fn keys(&self, _: &str, _: &str, _: usize) -> Result<Vec<String>, StateUnreadable> {
        Err(StateUnreadable("gone".to_owned()))
    }
}

#[tokio::test]
async fn a_store_that_is_gone_costs_no_attempt() {
    let handler = load(reader()).await;
    let mut worker = handler.worker();
    let gone = Caller { state: BatchState::new("").attempt(Arc::new(Gone)), ..Caller::default() };
    let report = gone.attempt(&mut worker).await;
    assert!(
        matches!(&report.outcome, Outcome::NotRun(text) if text.contains("gone")),
        "{report:?}"
    );
    assert!(Caller::default().attempt(&mut worker).await.usage.fresh, "its instance is gone too");
}

#[tokio::test]
async fn a_failing_handler_leaves_others_and_its_own_next_attempts_alone() {
    let bad = load(handling("unreachable")).await;
    let good = load(guests::noop()).await;
    let (mut bad, mut good) = (bad.worker(), good.worker());
    let caller = Caller::default();
    for round in 0..20 {
        assert_eq!(failure(caller.attempt(&mut bad).await).kind, FailureKind::Trap);
        let report = caller.attempt(&mut good).await;
        assert_eq!(report.outcome, Outcome::Success);
        assert_eq!(report.usage.fresh, round == 0);
    }
}
