//! What a handler may call does what the contract says, and nothing else is
//! there.

use std::collections::BTreeMap;

use super::guests::{self, Guest, import};
use super::*;
use event_host_core::event::ExtensionValue;

/// Rejects with what `calls` left at 2048, as many bytes as `$len` says.
fn telling(imports: &str, items: &str, calls: &str) -> Vec<u8> {
    let handle = format!("{calls} (call $reject (global.get $at) (global.get $len))");
    let items = format!(
        "(global $at (mut i32) (i32.const 2048)) (global $len (mut i32) (i32.const 0)) {items}"
    );
    Guest { imports, items: &items, handle: &handle, ..Guest::default() }.build()
}

async fn told(wasm: Vec<u8>, caller: &Caller) -> String {
    let handler = load(wasm).await;
    failure(caller.attempt(&mut handler.worker()).await).text
}

/// Takes the text that an answer at 640 points to, from this offset on.
fn take(offset: u32) -> String {
    format!(
        "(global.set $at (i32.load (i32.const {}))) (global.set $len (i32.load (i32.const {})))",
        640 + offset,
        644 + offset
    )
}

#[tokio::test]
async fn a_guest_is_handed_the_whole_event() {
    // Each field that is a text or bytes, by its place in the record.
    let fields = [
        (0, "e-1"),
        (8, "/test"),
        (16, "test.happened"),
        (28, "subject"),
        (36, "2026-01-01T00:00:01.5Z"),
        (48, "text/plain"),
        (60, "https://example.com/schema"),
        (76, "data\0bytes"),
        (88, "key"),
    ];
    let mut event = event();
    event.event.subject = Some("subject".into());
    event.event.time = "2026-01-01T00:00:01.5Z".parse().unwrap();
    event.event.datacontenttype = Some("text/plain".into());
    event.event.dataschema = Some("https://example.com/schema".into());
    event.event.data = Some(b"data\0bytes".to_vec());
    event.event.partitionkey = Some("key".into());
    let caller = Caller { event, ..Caller::default() };
    for (offset, expected) in fields {
        let calls = format!(
            "(global.set $at (i32.load (i32.add (local.get $event) (i32.const {offset}))))
             (global.set $len (i32.load (i32.add (local.get $event) (i32.const {}))))",
            offset + 4
        );
        let expected = expected.replace('\0', "\u{fffd}");
        assert_eq!(told(telling("", "", &calls), &caller).await, expected);
    }
    // Position and attempt, as they are.
    let calls = r"
        (if (i64.ne (i64.load (i32.add (local.get $event) (i32.const 96))) (i64.const 7)) (then unreachable))
        (if (i32.ne (i32.load (i32.add (local.get $event) (i32.const 104))) (i32.const 1)) (then unreachable))
        (call $ok)";
    let handler = load(guests::handling(calls)).await;
    assert_eq!(caller.attempt(&mut handler.worker()).await.outcome, Outcome::Success);
}

#[tokio::test]
async fn extensions_of_every_type_reach_the_guest() {
    let mut event = event();
    event.event.extensions = BTreeMap::from([
        ("a".to_owned(), ExtensionValue::Boolean(true)),
        ("b".to_owned(), ExtensionValue::Integer(-7)),
        ("c".to_owned(), ExtensionValue::Text("text".to_owned())),
    ]);
    let caller = Caller { event, ..Caller::default() };
    // An extension is 20 bytes: name, case at 8, value from 12 on.
    let calls = r"(local $at i32)
        (local.set $at (i32.load (i32.add (local.get $event) (i32.const 68))))
        (if (i32.ne (i32.load (i32.add (local.get $event) (i32.const 72))) (i32.const 3)) (then unreachable))
        (if (i32.ne (i32.load8_u offset=12 (local.get $at)) (i32.const 1)) (then unreachable))
        (if (i32.ne (i32.load offset=32 (local.get $at)) (i32.const -7)) (then unreachable))
        (if (i32.ne (i32.load8_u offset=48 (local.get $at)) (i32.const 2)) (then unreachable))
        (call $reject (i32.load offset=52 (local.get $at)) (i32.load offset=56 (local.get $at)))";
    assert_eq!(told(guests::handling(calls), &caller).await, "text");
}

#[tokio::test]
async fn a_time_of_delivery_reaches_the_guest_as_an_extension_in_its_place() {
    let mut event = event();
    event.event.deliver_after = Some("2026-02-01T00:00:00.5Z".parse().unwrap());
    event.event.extensions = BTreeMap::from([
        ("a".to_owned(), ExtensionValue::Boolean(true)),
        ("z".to_owned(), ExtensionValue::Boolean(false)),
    ]);
    let caller = Caller { event, ..Caller::default() };
    // The second of three.
    for (field, expected) in [(20, "deliverafter"), (32, "2026-02-01T00:00:00.5Z")] {
        let calls = format!(
            r"(local $at i32)
            (local.set $at (i32.load (i32.add (local.get $event) (i32.const 68))))
            (if (i32.ne (i32.load (i32.add (local.get $event) (i32.const 72))) (i32.const 3)) (then unreachable))
            (call $reject (i32.load offset={field} (local.get $at)) (i32.load offset={} (local.get $at)))",
            field + 4
        );
        assert_eq!(told(guests::handling(&calls), &caller).await, expected);
    }
}

#[tokio::test]
async fn a_guest_knows_its_group_its_tenant_its_time_and_whether_it_is_a_replay() {
    let group = import("context", "group", "(param i32)");
    let tenant = import("context", "tenant", "(param i32)");
    let mut caller = Caller { tenant: "acme".parse().unwrap(), ..Caller::default() };
    let wasm = telling(&group, "", &format!("(call $context_group (i32.const 640)) {}", take(0)));
    assert_eq!(told(wasm, &caller).await, "triage");
    let wasm = telling(&tenant, "", &format!("(call $context_tenant (i32.const 640)) {}", take(0)));
    assert_eq!(told(wasm, &caller).await, "acme");

    let checks = Guest {
        imports: &[
            import("context", "remaining-ms", "(result i64)"),
            import("context", "is-replay", "(result i32)"),
            import("context", "is-late", "(result i32)"),
        ]
        .concat(),
        handle: r"
            (if (i64.gt_u (call $context_remaining_ms) (i64.const 10000)) (then unreachable))
            (if (i64.lt_u (call $context_remaining_ms) (i64.const 1000)) (then unreachable))
            (if (call $context_is_late) (then unreachable))
            (if (result i32) (call $context_is_replay)
              (then (call $reject (i32.const 2048) (i32.const 0)))
              (else (call $ok)))",
        ..Guest::default()
    };
    let handler = load(checks.build()).await;
    let mut worker = handler.worker();
    assert_eq!(caller.attempt(&mut worker).await.outcome, Outcome::Success);
    caller.event.deliver_to = Some("triage".parse().unwrap());
    assert_eq!(failure(caller.attempt(&mut worker).await).kind, FailureKind::Reject);
}

/// Emits type `t` with data `{}`, and then does the rest.
fn emitting(then: &str) -> Vec<u8> {
    Guest {
        imports: &import("outbox", "emit", "(param i32 i32)"),
        items: r#"(data (i32.const 2048) "t{}")"#,
        handle: &format!(
            r"(i32.store (i32.const 512) (i32.const 2048)) (i32.store (i32.const 516) (i32.const 1))
              (i32.store (i32.const 520) (i32.const 2049)) (i32.store (i32.const 524) (i32.const 2))
              (call $outbox_emit (i32.const 512) (i32.const 640))
              (call $outbox_emit (i32.const 512) (i32.const 640))
              {then}"
        ),
        ..Guest::default()
    }
    .build()
}

#[tokio::test]
async fn emits_come_complete_and_with_the_key_of_the_event() {
    let mut event = event();
    event.event.partitionkey = Some("repo-1".into());
    let caller = Caller { event, ..Caller::default() };
    let handler = load(emitting("(call $ok)")).await;
    let mut worker = handler.worker();
    for _ in 0..2 {
        let report = caller.attempt(&mut worker).await;
        assert_eq!(report.outcome, Outcome::Success);
        let ids: Vec<&str> = report.emits.iter().map(|e| e.id.as_str()).collect();
        assert_eq!(ids, ["triage:7:1", "triage:7:2"], "the same in each attempt");
        let emit = &report.emits[0];
        assert_eq!((emit.source.as_str(), emit.event_type.as_str()), ("/groups/triage", "t"));
        assert_eq!(emit.data.as_deref(), Some(&b"{}"[..]));
        assert_eq!(emit.partitionkey.as_deref(), Some("repo-1"));
    }
}

#[tokio::test]
async fn a_failed_attempt_emits_nothing() {
    let handler = load(emitting("(call $reject (i32.const 2048) (i32.const 1))")).await;
    // `failure` checks that there are no emits.
    assert_eq!(failure(attempt(&handler).await).kind, FailureKind::Reject);
}

#[tokio::test]
async fn an_emit_that_breaks_cloudevents_is_told_so_to_the_guest() {
    let wasm = telling(
        &import("outbox", "emit", "(param i32 i32)"),
        "",
        // The type is empty; the answer is an error, whose text is at 8.
        &format!(
            r"(call $outbox_emit (i32.const 512) (i32.const 640))
              (if (i32.eqz (i32.load8_u (i32.const 640))) (then unreachable))
              {}",
            take(8)
        ),
    );
    let text = told(wasm, &Caller::default()).await;
    assert!(text.starts_with("`type` is empty"), "{text}");
}

fn state_imports() -> String {
    [
        import("state", "get", "(param i32 i32 i32)"),
        import("state", "set", "(param i32 i32 i32 i32 i32)"),
        import("state", "delete", "(param i32 i32 i32)"),
        import("state", "keys", "(param i32 i32 i32 i32)"),
    ]
    .concat()
}

#[tokio::test]
async fn a_guest_reads_what_it_wrote() {
    let wasm = telling(
        &state_imports(),
        r#"(data (i32.const 2048) "key") (data (i32.const 2060) "value")"#,
        // get answers: result at 0, option at 4, list from 8 on.
        &format!(
            r"(call $state_get (i32.const 2048) (i32.const 3) (i32.const 640))
              (if (i32.load8_u (i32.const 644)) (then unreachable))
              (call $state_set (i32.const 2048) (i32.const 3) (i32.const 2060) (i32.const 5) (i32.const 640))
              (call $state_set (i32.const 2048) (i32.const 2) (i32.const 2060) (i32.const 5) (i32.const 640))
              (call $state_delete (i32.const 2048) (i32.const 2) (i32.const 640))
              (call $state_get (i32.const 2048) (i32.const 2) (i32.const 640))
              (if (i32.load8_u (i32.const 644)) (then unreachable))
              (call $state_get (i32.const 2048) (i32.const 3) (i32.const 640))
              {}",
            take(8)
        ),
    );
    let caller = Caller::default();
    assert_eq!(told(wasm, &caller).await, "value");
    assert_eq!(caller.state.get("key").await.unwrap().as_deref(), Some(&b"value"[..]));
}

#[tokio::test]
async fn a_guest_lists_its_keys() {
    let wasm = telling(
        &state_imports(),
        r#"(data (i32.const 2048) "key") (data (i32.const 2060) "value")"#,
        // keys answers: result at 0, list from 4 on; the first text is there.
        r"(call $state_set (i32.const 2048) (i32.const 3) (i32.const 2060) (i32.const 5) (i32.const 640))
          (call $state_keys (i32.const 2048) (i32.const 1) (i32.const -1) (i32.const 640))
          (if (i32.ne (i32.load (i32.const 648)) (i32.const 1)) (then unreachable))
          (global.set $at (i32.load (i32.load (i32.const 644))))
          (global.set $len (i32.load offset=4 (i32.load (i32.const 644))))",
    );
    assert_eq!(told(wasm, &Caller::default()).await, "key");
}

#[tokio::test]
async fn keys_that_no_store_can_keep_are_refused_to_the_guest() {
    for (len, expected) in [(0, "the key is empty"), (1_025, "1025 bytes"), (4, "NUL")] {
        // A set that is refused: result at 0, the text at 8.
        let calls = format!(
            r"(call $state_set (i32.const 2048) (i32.const {len}) (i32.const 2048) (i32.const 1) (i32.const 640))
              (if (i32.eqz (i32.load8_u (i32.const 640))) (then unreachable))
              {}",
            take(8)
        );
        let items = r#"(data (i32.const 2048) "key")"#;
        let text = told(telling(&state_imports(), items, &calls), &Caller::default()).await;
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test]
async fn a_guests_lines_come_at_the_level_it_asks_for() {
    let wasm = Guest {
        imports: &import("log", "log", "(param i32 i32 i32)"),
        items: r#"(data (i32.const 2048) "line")"#,
        handle: r"
            (call $log_log (i32.const 0) (i32.const 2048) (i32.const 4))
            (call $log_log (i32.const 4) (i32.const 2048) (i32.const 4))
            (call $ok)",
        ..Guest::default()
    };
    let handler = load(wasm.build()).await;
    let (mut worker, lines) = logging(&handler);
    let report = Caller::default().attempt(&mut worker).await;
    assert_eq!(report.usage.log_lines, 2);
    let line = |level| (level, "line".to_owned());
    assert_eq!(*lines.lock().unwrap(), [line(Level::TRACE), line(Level::ERROR)]);
}

#[tokio::test]
async fn what_a_guest_prints_comes_as_lines() {
    let wasm = Guest {
        imports: endings::FD_WRITE,
        items: r#"(data (i32.const 2048) "one\ntwo")"#,
        handle: r"
            (i32.store (i32.const 0) (i32.const 2048))
            (i32.store (i32.const 4) (i32.const 7))
            (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))
            (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 16)))
            (call $ok)",
        ..Guest::default()
    };
    let handler = load(wasm.build()).await;
    let (mut worker, lines) = logging(&handler);
    assert_eq!(Caller::default().attempt(&mut worker).await.usage.log_lines, 4);
    let line = |level, text: &str| (level, text.to_owned());
    assert_eq!(
        *lines.lock().unwrap(),
        [
            line(Level::INFO, "one"),
            line(Level::WARN, "one"),
            line(Level::INFO, "two"),
            line(Level::WARN, "two"),
        ]
    );
}

#[tokio::test]
async fn a_guest_sees_the_variables_that_are_granted_and_no_other() {
    let imports = r#"
        (import "wasi_snapshot_preview1" "environ_get" (func $get (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "environ_sizes_get" (func $sizes (param i32 i32) (result i32)))"#;
    let wasm = telling(
        imports,
        "",
        r"(drop (call $sizes (i32.const 640) (i32.const 644)))
          (if (i32.eqz (i32.load (i32.const 640))) (then (return (call $ok))))
          (drop (call $get (i32.const 700) (i32.const 4096)))
          (global.set $at (i32.const 4096))
          (global.set $len (i32.sub (i32.load (i32.const 644)) (i32.const 1)))",
    );
    // The test's own process has variables.
    assert!(std::env::vars_os().next().is_some());
    assert_eq!(attempt(&*load(wasm.clone()).await).await.outcome, Outcome::Success);

    let env = BTreeMap::from([("REGION".to_owned(), "eu".to_owned())]);
    let grants = Grants { env, ..Grants::default() };
    let handler = sandbox()
        .load("guest", bytes(wasm), Limits::default(), grants, Reuse::Batch)
        .await
        .unwrap();
    assert_eq!(failure(attempt(&handler).await).text, "REGION=eu");
}

#[tokio::test]
async fn a_guest_finds_no_argument_no_input_and_no_directory() {
    let wasm = Guest {
        imports: r#"
            (import "wasi_snapshot_preview1" "args_sizes_get" (func $args (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_prestat_get" (func $prestat (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "path_open" (func $open
                (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))"#,
        items: r#"(data (i32.const 2048) "/etc/passwd")"#,
        handle: r"
            (drop (call $args (i32.const 640) (i32.const 644)))
            (if (i32.load (i32.const 640)) (then unreachable))
            (i32.store (i32.const 0) (i32.const 4096))
            (i32.store (i32.const 4) (i32.const 100))
            (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 640)))
            (if (i32.load (i32.const 640)) (then unreachable))
            (if (i32.eqz (call $prestat (i32.const 3) (i32.const 640))) (then unreachable))
            (if (i32.eqz (call $open (i32.const 3) (i32.const 0) (i32.const 2048) (i32.const 11)
                (i32.const 0) (i64.const 2) (i64.const 2) (i32.const 0) (i32.const 640)))
              (then unreachable))
            (call $ok)",
        ..Guest::default()
    };
    assert_eq!(attempt(&*load(wasm.build()).await).await.outcome, Outcome::Success);
}

#[tokio::test]
async fn a_guest_gets_no_socket_and_no_name() {
    let wasm = Guest {
        imports: r#"
            (import "wasi:sockets/tcp-create-socket@0.2.0" "create-tcp-socket" (func $tcp (param i32 i32)))
            (import "wasi:sockets/udp-create-socket@0.2.0" "create-udp-socket" (func $udp (param i32 i32)))"#,
        // Answers: result at 0, the error's number at 4; 1 is access-denied.
        handle: r"
            (call $tcp (i32.const 0) (i32.const 640))
            (if (i32.ne (i32.load8_u (i32.const 640)) (i32.const 1)) (then unreachable))
            (if (i32.ne (i32.load8_u (i32.const 644)) (i32.const 1)) (then unreachable))
            (call $udp (i32.const 0) (i32.const 640))
            (if (i32.ne (i32.load8_u (i32.const 640)) (i32.const 1)) (then unreachable))
            (if (i32.ne (i32.load8_u (i32.const 644)) (i32.const 1)) (then unreachable))
            (call $ok)",
        ..Guest::default()
    };
    assert_eq!(attempt(&*load(wasm.build_with_wasi()).await).await.outcome, Outcome::Success);
}

#[tokio::test]
async fn nothing_of_an_attempt_reaches_the_next() {
    // Emits and prints half a line, then succeeds; the next attempt of the same
    // instance begins with nothing.
    let handler = load(emitting("(call $ok)")).await;
    let mut worker = handler.worker();
    let caller = Caller::default();
    for _ in 0..3 {
        assert_eq!(caller.attempt(&mut worker).await.emits.len(), 2);
    }
}
