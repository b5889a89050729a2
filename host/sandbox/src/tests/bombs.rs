//! Components that are larger, or ask for more, than they look.

use std::time::Instant;

use super::guests::{Guest, handling, import};
use super::*;

#[tokio::test]
async fn a_component_of_20_megabytes_loads_and_handles_events() {
    let data = format!("(data \"{}\")", "x".repeat(20 << 20));
    let wasm = Guest { items: &data, ..Guest::default() }.build();
    assert!(wasm.len() > 20 << 20);
    assert_eq!(attempt(&*load(wasm).await).await.outcome, Outcome::Success);
}

/// Bytes in the first page and in the last one, and zeros between them that no
/// file holds.
#[tokio::test]
async fn a_memory_of_zeros_with_an_end_costs_what_the_guest_touches() {
    let dir = tempfile::tempdir().unwrap();
    let code = dir.path().join("code");
    let cache = CacheSettings::Directory(code.clone());
    let sandbox = Sandbox::new(EngineSettings { cache, ..settings() }).unwrap();
    let items = r#"(memory $bomb 1900)
        (data (memory $bomb) (i32.const 0) "x")
        (data (memory $bomb) (i32.const 124000000) "x")"#;
    let wasm = Guest { items, ..Guest::default() }.build();
    assert!(wasm.len() < 10_000, "{}", wasm.len());
    let limits = Limits::default();
    let handler =
        sandbox.load("guest", bytes(wasm), limits, Grants::default(), Reuse::Event).await.unwrap();
    let mut worker = handler.worker();
    for _ in 0..20 {
        let report = Caller::default().attempt(&mut worker).await;
        assert_eq!(report.outcome, Outcome::Success);
        assert_eq!(report.usage.memory_bytes, 1902 * 65_536, "it counts as what it is");
    }
    let kept: u64 = machine::files(&code).iter().map(|f| f.metadata().unwrap().len()).sum();
    assert!(kept < 1 << 20, "{kept} bytes of compiled code");
}

#[tokio::test]
async fn a_memory_that_begins_beyond_the_limit_is_refused_when_it_is_loaded() {
    let wasm = Guest { items: "(memory 65536)", ..Guest::default() }.build();
    let refused = load_with(wasm, Limits::default(), Reuse::Batch).await.unwrap_err().to_string();
    assert!(refused.contains("begins with a memory of 4.0 GiB"), "{refused}");
}

#[tokio::test]
async fn a_memory_that_grows_page_by_page_hits_the_memory_limit() {
    let wasm =
        handling("(loop $again (drop (memory.grow (i32.const 1))) (br $again)) (unreachable)");
    let failure = failure_of(wasm).await;
    assert_kind(&failure, FailureKind::MemoryLimit, "limits.memory is 128.0 MiB");
}

#[tokio::test]
async fn a_table_that_grows_element_by_element_hits_the_table_limit() {
    let wasm = Guest {
        items: "(table $t 0 funcref)",
        handle: "(loop $again (drop (table.grow $t (ref.null func) (i32.const 1))) (br $again)) (unreachable)",
        ..Guest::default()
    };
    let failure = failure_of(wasm.build()).await;
    assert_kind(&failure, FailureKind::TableLimit, "wanted 100001 table elements");
}

#[tokio::test]
async fn recursion_through_a_table_hits_the_stack_limit() {
    let wasm = Guest {
        items: "(type $f (func (param i64 i64) (result i64)))
            (table $t 2 funcref) (elem (table $t) (i32.const 0) func $even $odd)
            (func $even (type $f) (i64.add (i64.const 1)
              (call_indirect $t (type $f) (local.get 1) (local.get 0) (i32.const 1))))
            (func $odd (type $f) (i64.add (i64.const 2)
              (call_indirect $t (type $f) (local.get 1) (local.get 0) (i32.const 0))))",
        handle: "(drop (call $even (i64.const 1) (i64.const 2))) (call $ok)",
        ..Guest::default()
    };
    assert_eq!(failure_of(wasm.build()).await.kind, FailureKind::StackLimit);
}

/// One call that asks the host for more than memory holds, and one for more
/// than it may: neither keeps the host busy.
#[tokio::test]
async fn asking_the_host_for_gigabytes_of_random_costs_it_nothing() {
    let wasm = |bytes: i64| {
        let handle = format!(
            "(drop (memory.grow (i32.const 320)))
             (drop (call $random (i32.const 8192) (i32.const {bytes}))) (call $ok)"
        );
        Guest {
            imports: r#"(import "wasi_snapshot_preview1" "random_get"
                (func $random (param i32 i32) (result i32)))"#,
            handle: &handle,
            ..Guest::default()
        }
        .build()
    };
    let started = Instant::now();
    let failure = failure_of(wasm(0xffff_0000)).await;
    assert_eq!(failure.kind, FailureKind::Trap, "{failure:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(attempt(&*load(wasm(1 << 20)).await).await.outcome, Outcome::Success);
}

#[tokio::test]
async fn a_guest_that_calls_the_host_for_ever_times_out() {
    let wasm = Guest {
        imports: &import("context", "remaining-ms", "(result i64)"),
        handle: "(loop $again (drop (call $context_remaining_ms)) (br $again)) (unreachable)",
        ..Guest::default()
    };
    let limits = Limits { timeout: Duration::from_millis(200), ..Limits::default() };
    assert_eq!(failure_under(wasm.build(), limits).await.kind, FailureKind::Timeout);
}

/// Fields of HTTP are resources of the host, each with memory of its own.
#[tokio::test]
async fn resources_by_the_hundred_thousand_hit_the_host_call_limit() {
    let wasm = Guest {
        imports: r#"(import "wasi:http/types@0.2.0" "[constructor]fields" (func $fields (result i32)))"#,
        items: "(global $made (mut i32) (i32.const 0))",
        handle: r"
            (loop $again
              (drop (call $fields))
              (global.set $made (i32.add (global.get $made) (i32.const 1)))
              (br_if $again (i32.lt_u (global.get $made) (i32.const 100000))))
            (call $ok)",
        ..Guest::default()
    };
    let failure = failure_of(wasm.build_with_wasi()).await;
    assert_kind(&failure, FailureKind::HostCallLimit, "more than 1000 open WASI resources");
}
