//! Code that is made fast, for handlers that somebody is working on.

use super::guests::{Guest, handling};
use super::*;

/// Loads a guest as one that somebody is working on.
async fn load_for_work(wasm: Vec<u8>, limits: Limits) -> Arc<LoadedHandler> {
    let sandbox = sandbox().for_work();
    let loaded =
        sandbox.load("guest", bytes(wasm), limits, Grants::default(), Reuse::default()).await;
    loaded.unwrap()
}

fn is_compiled(sandbox: &Sandbox, handler: &LoadedHandler) -> bool {
    sandbox.is_compiled(handler.digest(), &Limits::default())
}

#[tokio::test]
async fn code_that_is_made_fast_does_the_same_under_the_same_limits() {
    let limits = || Limits { timeout: Duration::from_millis(200), ..Limits::default() };
    // Unlike those of other tests, which would share its code.
    let wasm = handling("(drop (i32.const 4711)) (call $ok)");
    let handler = load_for_work(wasm, Limits::default()).await;
    assert_eq!(attempt(&handler).await.outcome, Outcome::Success);
    assert!(is_compiled(&sandbox().for_work(), &handler) && !is_compiled(sandbox(), &handler));
    let recursion = Guest {
        items: "(func $again (param i32) (result i32) (i32.add (i32.const 1) (call $again (local.get 0))))",
        handle: "(drop (call $again (i32.const 1))) (call $ok)",
        ..Guest::default()
    };
    let spin = "(loop $again (br $again)) (unreachable)";
    let fuel = Limits { fuel: Some(10_000), ..Limits::default() };
    for (wasm, limits, kind) in [
        (handling(spin), limits(), FailureKind::Timeout),
        (recursion.build(), Limits::default(), FailureKind::StackLimit),
        (
            handling("(drop (memory.grow (i32.const 65000))) (call $ok)"),
            Limits::default(),
            FailureKind::MemoryLimit,
        ),
        (handling("unreachable"), Limits::default(), FailureKind::Trap),
        (handling(spin), fuel, FailureKind::Fuel),
    ] {
        let handler = load_for_work(wasm, limits).await;
        let report = tokio::time::timeout(Duration::from_secs(20), attempt(&handler)).await;
        assert_eq!(failure(report.unwrap()).kind, kind);
    }
}

#[tokio::test]
async fn what_the_fast_compiler_does_not_know_gets_optimized_code() {
    let wasm = Guest {
        items: "(func $last (result i32) (return_call $ok))",
        handle: "(call $last)",
        ..Guest::default()
    };
    let handler = load_for_work(wasm.build(), Limits::default()).await;
    assert_eq!(attempt(&handler).await.outcome, Outcome::Success);
    assert!(is_compiled(sandbox(), &handler) && !is_compiled(&sandbox().for_work(), &handler));
}
