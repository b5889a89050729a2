//! Each way to fail has its kind, and each limit is named when it is hit.

use std::time::Instant;

use futures_util::FutureExt as _;

use super::guests::{self, Guest, handling, import};
use super::*;

fn short() -> Limits {
    Limits { timeout: Duration::from_millis(200), ..Limits::default() }
}

const SPIN: &str = "(loop $again (br $again)) (unreachable)";

#[tokio::test]
async fn a_good_guest_succeeds_and_its_usage_is_told() {
    let handler = load(guests::noop()).await;
    let report = attempt(&handler).await;
    assert_eq!(report.outcome, Outcome::Success);
    assert_eq!(report.usage.memory_bytes, 2 * 65_536);
    assert!(report.usage.fresh);
    assert!(report.usage.duration > Duration::ZERO);
    assert!(handler.digest().starts_with("sha256:") && handler.digest().len() == 71);
}

#[tokio::test]
async fn a_guest_that_spins_anywhere_times_out() {
    let spin_in_start =
        Guest { items: &format!("(func $spin {SPIN}) (start $spin)"), ..Guest::default() };
    let spin_in_realloc = Guest { realloc: SPIN, ..Guest::default() };
    let spin_in_post = Guest { post: SPIN, ..Guest::default() };
    for wasm in
        [handling(SPIN), spin_in_start.build(), spin_in_realloc.build(), spin_in_post.build()]
    {
        let failure = failure_under(wasm, short()).await;
        assert_kind(&failure, FailureKind::Timeout, "limits.timeout, 200ms");
    }
}

/// One thread, which the guest has for itself: tokio's timers get no turn but
/// those that the guest is made to leave them.
#[tokio::test(flavor = "current_thread")]
async fn a_guest_that_spins_on_the_only_thread_times_out() {
    assert_eq!(failure_under(handling(SPIN), short()).await.kind, FailureKind::Timeout);
}

#[tokio::test]
async fn a_guest_that_sleeps_in_wasi_times_out() {
    // poll_oneoff with one clock subscription of an hour.
    let wasm = Guest {
        imports: r#"(import "wasi_snapshot_preview1" "poll_oneoff"
            (func $poll (param i32 i32 i32 i32) (result i32)))"#,
        handle: r"
            (i32.store (i32.const 16) (i32.const 1))
            (i64.store (i32.const 24) (i64.const 3600000000000))
            (drop (call $poll (i32.const 0) (i32.const 128) (i32.const 1) (i32.const 256)))
            (call $ok)",
        ..Guest::default()
    };
    assert_eq!(failure_under(wasm.build(), short()).await.kind, FailureKind::Timeout);
}

#[tokio::test]
async fn a_trap_is_told_with_the_functions_it_happened_in() {
    let wasm = Guest {
        items: "(func $deep_inside unreachable)",
        handle: "(call $deep_inside) (call $ok)",
        ..Guest::default()
    };
    let failure = failure_of(wasm.build()).await;
    assert_kind(
        &failure,
        FailureKind::Trap,
        "`unreachable` instruction executed\n  in deep_inside",
    );
    assert!(!failure.text.contains("wasm trap"), "{}", failure.text);
}

#[tokio::test]
async fn a_trap_in_a_start_function_is_a_trap() {
    let wasm = Guest { items: "(func $bad unreachable) (start $bad)", ..Guest::default() };
    assert_kind(&failure_of(wasm.build()).await, FailureKind::Trap, "in bad");
}

#[tokio::test]
async fn a_deep_recursion_hits_the_stack_limit() {
    let wasm = Guest {
        items: "(func $again (param i32) (result i32) (i32.add (i32.const 1) (call $again (local.get 0))))",
        handle: "(drop (call $again (i32.const 1))) (call $ok)",
        ..Guest::default()
    };
    let failure = failure_of(wasm.build()).await;
    assert_kind(&failure, FailureKind::StackLimit, "used up its stack of 1.0 MiB\n  in again");
    assert!(failure.text.lines().count() < 20, "{}", failure.text);
}

#[tokio::test]
async fn a_growing_memory_hits_the_memory_limit() {
    let grow = "(drop (memory.grow (i32.const 65000))) (call $ok)";
    let failure = failure_of(handling(grow)).await;
    assert_kind(&failure, FailureKind::MemoryLimit, "wanted 4.0 GiB, limits.memory is 128.0 MiB");
}

#[tokio::test]
async fn two_memories_share_one_limit() {
    let wasm = |pages| {
        Guest {
            items: "(memory $second 100)",
            handle: &format!("(drop (memory.grow $second (i32.const {pages}))) (call $ok)"),
            ..Guest::default()
        }
        .build()
    };
    let limits = Limits { memory_bytes: 200 * 65_536, ..Limits::default() };
    let handler = load_with(wasm(98), limits.clone(), Reuse::Batch).await.unwrap();
    let report = attempt(&handler).await;
    assert_eq!(report.outcome, Outcome::Success);
    assert_eq!(report.usage.memory_bytes, 200 * 65_536);
    let failure = failure_under(wasm(99), limits).await;
    assert_kind(&failure, FailureKind::MemoryLimit, "limits.memory");
}

#[tokio::test]
async fn memories_that_are_too_large_together_fail_when_the_instance_is_made() {
    let wasm = Guest { items: "(memory 1500) (memory 1500)", ..Guest::default() };
    assert_kind(&failure_of(wasm.build()).await, FailureKind::MemoryLimit, "limits.memory");
}

#[tokio::test]
async fn a_memory_that_its_own_type_bounds_answers_the_guest() {
    let wasm = Guest {
        items: "(memory $small 1 2)",
        handle: r"
            (if (i32.ne (memory.grow $small (i32.const 5)) (i32.const -1)) (then unreachable))
            (call $ok)",
        ..Guest::default()
    };
    assert_eq!(attempt(&*load(wasm.build()).await).await.outcome, Outcome::Success);
}

#[tokio::test]
async fn growing_tables_hit_the_table_limit_together() {
    let wasm = Guest {
        items: "(table $a 10 funcref) (table $b 10 funcref)",
        handle: r"
            (drop (table.grow $a (ref.null func) (i32.const 50000)))
            (drop (table.grow $b (ref.null func) (i32.const 50000)))
            (call $ok)",
        ..Guest::default()
    };
    assert_kind(
        &failure_of(wasm.build()).await,
        FailureKind::TableLimit,
        "wanted 100020 table elements, limits.table_elements is 100000",
    );
}

#[tokio::test]
async fn a_guest_that_exits_is_told_to_return() {
    let wasm = Guest {
        imports: r#"(import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))"#,
        handle: "(call $exit (i32.const 0)) (unreachable)",
        ..Guest::default()
    };
    assert_kind(&failure_of(wasm.build()).await, FailureKind::Exit, "called exit with status 0");
}

#[tokio::test]
async fn a_flood_of_log_lines_hits_the_log_limit() {
    let wasm = Guest {
        imports: &import("log", "log", "(param i32 i32 i32)"),
        handle: "(loop $again (call $log_log (i32.const 2) (i32.const 2048) (i32.const 100)) (br $again)) (unreachable)",
        ..Guest::default()
    };
    let handler = load(wasm.build()).await;
    let (mut worker, lines) = logging(&handler);
    let report = Caller::default().attempt(&mut worker).await;
    let count = report.usage.log_lines;
    assert_kind(&failure(report), FailureKind::LogLimit, "limits.log, 64.0 KiB");
    assert_eq!(lines.lock().unwrap().len(), count as usize);
    assert!((250..=253).contains(&count), "{count}");
}

#[tokio::test]
async fn a_flood_of_output_hits_the_log_limit() {
    let wasm = Guest {
        imports: FD_WRITE,
        handle: r"
            (i32.store (i32.const 0) (i32.const 2048))
            (i32.store (i32.const 4) (i32.const 4000))
            (loop $again
              (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))
              (br $again))
            (unreachable)",
        ..Guest::default()
    };
    assert_kind(&failure_of(wasm.build()).await, FailureKind::LogLimit, "limits.log");
}

pub(super) const FD_WRITE: &str = r#"(import "wasi_snapshot_preview1" "fd_write"
    (func $write (param i32 i32 i32 i32) (result i32)))"#;

/// Sets up a message at 512: type `t`, and data of this many bytes at 4096.
fn message(bytes: u32) -> String {
    format!(
        r"(i32.store8 (i32.const 2048) (i32.const 116))
          (i32.store (i32.const 512) (i32.const 2048)) (i32.store (i32.const 516) (i32.const 1))
          (i32.store (i32.const 520) (i32.const 4096)) (i32.store (i32.const 524) (i32.const {bytes}))"
    )
}

fn emitting(pages: u32, bytes: u32, then: &str) -> Vec<u8> {
    let handle = format!(
        "(drop (memory.grow (i32.const {pages}))) {}
         (loop $again (call $outbox_emit (i32.const 512) (i32.const 640)) {then}) (call $ok)",
        message(bytes)
    );
    Guest {
        imports: &import("outbox", "emit", "(param i32 i32)"),
        handle: &handle,
        ..Guest::default()
    }
    .build()
}

#[tokio::test]
async fn a_flood_of_emits_hits_the_emit_limit() {
    let failure = failure_of(emitting(0, 0, "(br $again)")).await;
    assert_kind(&failure, FailureKind::EmitLimit, "wanted more than 1000 emits, limits.emits");
    let failure = failure_of(emitting(16, 1_000_000, "(br $again)")).await;
    assert_kind(&failure, FailureKind::EmitLimit, "limits.emit_total is 8.0 MiB");
}

#[tokio::test]
async fn a_huge_emit_hits_the_emit_limit_and_a_monstrous_one_the_host_call_limit() {
    let failure = failure_of(emitting(32, 2_000_000, "")).await;
    assert_kind(
        &failure,
        FailureKind::EmitLimit,
        "wanted to emit 1.9 MiB at once, limits.emit is 1.0 MiB",
    );
    let failure = failure_of(emitting(320, 20_000_000, "")).await;
    assert_kind(&failure, FailureKind::HostCallLimit, "limits.host_call in one call, 16.0 MiB");
}

#[tokio::test]
async fn a_flood_of_wasi_resources_hits_the_host_call_limit() {
    let wasm = Guest {
        imports: r#"(import "wasi:clocks/monotonic-clock@0.2.0" "subscribe-duration"
            (func $subscribe (param i64) (result i32)))"#,
        handle: "(loop $again (drop (call $subscribe (i64.const 1))) (br $again)) (unreachable)",
        ..Guest::default()
    };
    let failure = failure_of(wasm.build_with_wasi()).await;
    assert_kind(&failure, FailureKind::HostCallLimit, "more than 1000 open WASI resources");
}

#[tokio::test]
async fn state_beyond_its_limits_hits_the_state_limit() {
    let imports = import("state", "set", "(param i32 i32 i32 i32 i32)");
    let set = |bytes: u32, then: &str| {
        let handle = format!(
            r"(drop (memory.grow (i32.const 40)))
              (loop $again
                (call $state_set (i32.const 2048) (i32.const 1) (i32.const 4096) (i32.const {bytes}) (i32.const 640))
                {then})
              (call $ok)"
        );
        Guest {
            imports: &imports,
            items: r#"(data (i32.const 2048) "k")"#,
            handle: &handle,
            ..Guest::default()
        }
        .build()
    };
    let failure = failure_of(set(2_000_000, "")).await;
    assert_kind(&failure, FailureKind::StateLimit, "limits.state_value is 1.0 MiB");
    let failure = failure_of(set(1, "(br $again)")).await;
    assert_kind(&failure, FailureKind::StateLimit, "more than 1000 writes, limits.state_writes");
    let failure = failure_of(set(1_000_000, "(br $again)")).await;
    assert_kind(&failure, FailureKind::StateLimit, "limits.state_total is 8.0 MiB");
}

#[tokio::test]
async fn a_retry_keeps_its_delay_and_a_reject_its_reason() {
    let text = r#"(data (i32.const 2048) "later\00\1b[31m")"#;
    let retry = Guest {
        items: text,
        handle: "(call $retry (i32.const 2048) (i32.const 11) (i64.const 1500))",
        ..Guest::default()
    };
    let failure = failure_of(retry.build()).await;
    assert_kind(&failure, FailureKind::Retry, "later\u{fffd}\u{fffd}[31m");
    assert_eq!(failure.retry_after, Some(Duration::from_millis(1500)));

    let reject = Guest {
        items: text,
        handle: "(call $reject (i32.const 2048) (i32.const 5))",
        ..Guest::default()
    };
    let failure = failure_of(reject.build()).await;
    assert_eq!((failure.kind, failure.text.as_str()), (FailureKind::Reject, "later"));
    assert_eq!(failure.retry_after, None);
}

#[tokio::test]
async fn a_reason_of_megabytes_is_cut() {
    let handle = "(drop (memory.grow (i32.const 200))) (call $reject (i32.const 1048576) (i32.const 10000000))";
    let failure = failure_of(handling(handle)).await;
    assert_kind(&failure, FailureKind::Reject, "(10000000 bytes in all)");
    assert!(failure.text.len() < 64 << 10);
    assert!(!failure.text.contains('\0'));
}

#[tokio::test]
async fn an_answer_that_does_not_fit_the_contract_is_a_bad_answer() {
    let not_utf8 = Guest {
        items: r#"(data (i32.const 2048) "\ff\fe")"#,
        handle: "(call $reject (i32.const 2048) (i32.const 2))",
        ..Guest::default()
    };
    let wrong_case =
        "(drop (call $ok)) (i32.store8 (i32.const 1024) (i32.const 9)) (i32.const 1024)";
    let beyond_memory = "(i32.const -8)";
    let unaligned = "(i32.const 1025)";
    let text_beyond_memory = "(call $reject (i32.const -16) (i32.const 100))";
    let realloc_beyond_memory = Guest { realloc: "(i32.const -8)", ..Guest::default() };
    for wasm in [
        not_utf8.build(),
        handling(wrong_case),
        handling(beyond_memory),
        handling(unaligned),
        handling(text_beyond_memory),
        realloc_beyond_memory.build(),
    ] {
        let failure = failure_of(wasm).await;
        assert_eq!(failure.kind, FailureKind::BadAnswer, "{failure:?}");
        assert!(!failure.text.is_empty());
    }
}

#[tokio::test]
async fn rubbish_handed_to_the_host_is_a_trap_with_its_place() {
    let wasm = Guest {
        imports: &import("log", "log", "(param i32 i32 i32)"),
        items: r#"(data (i32.const 2048) "\ff\fe")"#,
        handle: "(call $log_log (i32.const 2) (i32.const 2048) (i32.const 2)) (call $ok)",
        ..Guest::default()
    };
    assert_kind(&failure_of(wasm.build()).await, FailureKind::Trap, "utf-8");
}

#[tokio::test]
async fn an_attempt_waits_for_room_in_the_pool_before_its_time_begins() {
    let sandbox = Sandbox::new(EngineSettings {
        pool: PoolSettings { instances: 1, memories: 1, tables: 1, ..PoolSettings::default() },
        ..settings()
    })
    .unwrap();
    let load = async |wasm, timeout| {
        let limits = Limits { timeout, ..Limits::default() };
        let loaded = sandbox.load("guest", bytes(wasm), limits, Grants::default(), Reuse::Batch);
        loaded.await.unwrap()
    };
    let spinning = load(handling("(loop $again (br $again)) (unreachable)"), Duration::MAX).await;
    let handler = load(guests::noop(), Duration::from_millis(500)).await;
    let (mut first, mut second) = (spinning.worker(), handler.worker());
    let caller = Caller::default();
    let mut running = Box::pin(caller.attempt(&mut first));
    assert!((&mut running).now_or_never().is_none());
    let mut waiting = Box::pin(caller.attempt(&mut second));
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(600) {
        assert!((&mut waiting).now_or_never().is_none(), "there is no room for it");
        assert!((&mut running).now_or_never().is_none(), "it spins until the next tick");
    }
    drop(running);
    assert_eq!(waiting.await.outcome, Outcome::Success);
}

/// Counts to the event's position times a thousand.
fn counting() -> Vec<u8> {
    handling(
        r"(local $left i64)
          (local.set $left (i64.mul (i64.load (i32.add (local.get $event) (i32.const 96))) (i64.const 1000)))
          (loop $again
            (local.set $left (i64.sub (local.get $left) (i64.const 1)))
            (br_if $again (i64.gt_s (local.get $left) (i64.const 0))))
          (call $ok)",
    )
}

async fn ends_with_fuel(fuel: u64, attempts: usize) -> Vec<bool> {
    let limits = Limits { fuel: Some(fuel), ..Limits::default() };
    let handler = load_with(counting(), limits, Reuse::Batch).await.unwrap();
    let mut worker = handler.worker();
    let mut ends = Vec::new();
    for _ in 0..attempts {
        let report = Caller::default().attempt(&mut worker).await;
        if let Outcome::Failure(failure) = &report.outcome {
            assert_kind(failure, FailureKind::Fuel, &format!("limits.fuel is {fuel}"));
        }
        ends.push(report.outcome == Outcome::Success);
    }
    ends
}

#[tokio::test]
async fn fuel_ends_the_same_attempt_at_the_same_place_each_time() {
    // The least that suffices, found by halving.
    let (mut too_little, mut enough) = (1, 1_000_000);
    while enough - too_little > 1 {
        let middle = u64::midpoint(too_little, enough);
        if ends_with_fuel(middle, 1).await == [true] {
            enough = middle;
        } else {
            too_little = middle;
        }
    }
    assert!((7_000..1_000_000).contains(&enough), "{enough}");
    // In a fresh instance and in one that has handled events before.
    assert_eq!(ends_with_fuel(enough, 5).await, [true; 5]);
    assert_eq!(ends_with_fuel(too_little, 5).await, [false; 5]);
}

#[tokio::test]
async fn without_a_limit_no_fuel_is_counted() {
    let handler = load_with(counting(), Limits::default(), Reuse::Batch).await.unwrap();
    assert_eq!(attempt(&handler).await.outcome, Outcome::Success);
}
