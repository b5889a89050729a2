//! What is refused, and with which sentence.

use std::fs;

use super::guests::{self, BatchGuest, Guest};
use super::*;
use crate::world_metadata::World;
use crate::{Form, Interface, LoadReason};

async fn reason(wasm: Vec<u8>) -> LoadReason {
    load_with(wasm, Limits::default(), Reuse::Batch).await.unwrap_err().reason
}

async fn reason_of_text(text: &str) -> LoadReason {
    reason(wat::parse_str(text).unwrap()).await
}

async fn file_reason(path: &std::path::Path) -> (LoadReason, String) {
    let error = sandbox().inspect(path).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
    (error.reason, text)
}

#[tokio::test]
async fn a_file_that_is_no_file_is_told_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.wasm");
    assert!(matches!(file_reason(&path).await.0, LoadReason::Missing));
    assert!(matches!(file_reason(dir.path()).await.0, LoadReason::Directory));
    fs::write(&path, b"").unwrap();
    assert!(matches!(file_reason(&path).await.0, LoadReason::Empty));
}

#[cfg(unix)]
#[tokio::test]
async fn a_pipe_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    assert!(matches!(file_reason(&path).await.0, LoadReason::NotAFile));
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_cannot_be_read_is_told_with_the_systems_reason() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    // A loop of links cannot be read by anybody, root included.
    let path = dir.path().join("h.wasm");
    symlink(&path, &path).unwrap();
    let (reason, text) = file_reason(&path).await;
    assert!(matches!(reason, LoadReason::Unreadable(_)), "{text}");
}

#[tokio::test]
async fn a_file_that_is_too_large_is_not_read() {
    let sandbox = Sandbox::new(EngineSettings {
        component_bytes: 1_000,
        pool: PoolSettings { enabled: false, ..PoolSettings::default() },
        ..settings()
    })
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.wasm");
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let error = sandbox.inspect(path.as_path()).await.unwrap_err();
    assert!(error.to_string().ends_with("the largest that is read has 1000"), "{error}");
    let error = sandbox.inspect(bytes(vec![0; 1_001])).await.unwrap_err();
    assert!(matches!(error.reason, LoadReason::TooLarge { bytes: 1_001, limit: 1_000 }));
}

#[tokio::test]
async fn what_is_not_webassembly_is_told_by_its_beginning() {
    let text = reason(b"#!/bin/sh\necho".to_vec()).await.to_string();
    assert!(text.contains("begins with the bytes [23, 21"), "{text}");
    let text = reason(b"hello, this is text".to_vec()).await.to_string();
    assert!(text.contains("\"hello, this is t\""), "{text}");
    assert!(matches!(reason(vec![0xff; 100]).await, LoadReason::NotWasm(_)));
    assert!(matches!(reason(b"(module".to_vec()).await, LoadReason::Text(_)));
    let future = reason(b"\0asm\x09\0\0\0".to_vec()).await;
    assert!(matches!(future, LoadReason::Invalid(_)), "{future}");
}

#[tokio::test]
async fn a_file_that_was_cut_anywhere_is_refused() {
    // Without its metadata, which comes last, it is whole.
    let bare = wat::parse_str(Guest::default().text()).unwrap();
    for whole in [guests::noop(), component_of(guests::noop())] {
        let mut truncated = 0;
        for len in (1..whole.len()).step_by(7).filter(|len| whole[..*len] != bare) {
            match reason(whole[..len].to_vec()).await {
                LoadReason::Truncated(at) => {
                    assert_eq!(at, len as u64);
                    truncated += 1;
                }
                // Cut exactly between two sections, the rest is whole, and
                // lacks what the last sections hold.
                LoadReason::NoMetadata | LoadReason::NoHandler { .. } | LoadReason::Invalid(_) => {}
                other => panic!("{len} of {} bytes: {other}", whole.len()),
            }
        }
        assert!(truncated > whole.len() / 7 / 2, "{truncated}");
    }
}

/// One byte of a name makes two packages of one, each of which needs the other. To follow
/// them overflowed the stack, and ended the host.
#[tokio::test]
async fn metadata_whose_packages_need_one_another_is_refused() {
    let mut wasm = guests::noop();
    let name = b"event-host:handler/outbox";
    let places: Vec<usize> =
        (0..wasm.len() - name.len()).filter(|at| wasm[*at..].starts_with(name)).collect();
    assert!(!places.is_empty());
    for at in places {
        wasm[at] = b'x';
    }
    let refused = reason(wasm).await;
    let LoadReason::NotEncodable(why) = &refused else { panic!("{refused}") };
    assert!(why.contains("packages that need one another"), "{why}");
}

/// Each is followed by a call within a call.
#[tokio::test]
async fn metadata_of_very_many_packages_is_refused() {
    let chain =
        |packages: usize| {
            let mut texts = vec!["package test:p0; interface i { type t = u8; }".to_owned()];
            texts.extend((1..packages).map(|n| {
                format!("package test:p{n}; interface i {{ use test:p{}/i.{{t}}; }}", n - 1)
            }));
            texts.push(format!(
                "package test:guest; world guest {{
                 include event-host:handler/event-handler@0.1.0; import test:p{}/i; }}",
                packages - 1
            ));
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            guests::marked(&Guest::default().text(), "guest", &texts)
        };
    let refused = reason(chain(255)).await;
    let LoadReason::NotEncodable(why) = &refused else { panic!("{refused}") };
    assert!(why.contains("has 257 packages; the most is 256"), "{why}");
    assert_eq!(attempt(&*load(chain(200)).await).await.outcome, Outcome::Success);
}

fn component_of(module: Vec<u8>) -> Vec<u8> {
    wit_component::ComponentEncoder::default().module(&module).unwrap().encode().unwrap()
}

#[tokio::test]
async fn a_component_and_the_module_inside_of_it_both_load() {
    let module = guests::noop();
    let component = component_of(module.clone());
    let preview1 = Guest { imports: endings::FD_WRITE, ..Guest::default() }.build();
    for (wasm, form) in [
        (module, Form::CoreModule),
        (component, Form::Component),
        (preview1, Form::CoreModuleWithPreview1),
    ] {
        let handler = load(wasm.clone()).await;
        assert_eq!(handler.inspection().form, form);
        assert_eq!(handler.inspection().bytes, wasm.len() as u64);
        assert_eq!(handler.inspection().exports, ["event-host:handler/handler@0.1.0"]);
        assert_eq!(attempt(&handler).await.outcome, Outcome::Success);
    }
}

/// A section that means nothing to the module.
fn custom(name: &str, contents: &[u8]) -> Vec<u8> {
    let length = u8::try_from(1 + name.len() + contents.len()).ok().filter(|length| *length < 128);
    let mut section = vec![0, length.unwrap(), u8::try_from(name.len()).unwrap()];
    section.extend_from_slice(name.as_bytes());
    section.extend_from_slice(contents);
    section
}

// A malformed custom section has no say in whether a module is valid: it is ignored
// (WebAssembly core specification, "Custom Section").
#[tokio::test]
async fn a_custom_section_that_is_malformed_is_ignored() {
    // Names of functions of which the map ends in the middle, a subsection that is
    // longer than the section, and a map whose one name is no UTF-8.
    let names: [&[u8]; 3] = [&[1, 2, 9, 0], &[1, 99, 0], &[1, 4, 1, 0, 1, 0xff]];
    // A field that no producer has, one that ends in the middle, and not even a count.
    let producers: [&[u8]; 3] = [&[1, 3, b'a', b'b', b'c', 0], &[2, 3, b's', b'd', b'k', 7], &[]];
    let names = names.map(|contents| custom("name", contents));
    let producers = producers.map(|contents| custom("producers", contents));
    let others = ["metadata.code.branch_hint", "dylink.0", ".debug_info", "linking", "reloc.CODE"]
        .map(|name| custom(name, &[0xff, 0xff]));
    let component_names = custom("component-name", &[0, 99, 1]);
    for section in names.iter().chain(&producers).chain(&others).chain([&component_names]) {
        let module = [guests::noop(), section.clone()].concat();
        let preview1 = Guest { imports: endings::FD_WRITE, ..Guest::default() }.build();
        // A component with another module inside of it, and the section in both.
        let mut component = component_of(guests::noop());
        component.extend([1, u8::try_from(8 + section.len()).unwrap()]);
        component.extend_from_slice(b"\0asm\x01\0\0\0");
        component.extend_from_slice(section);
        component.extend_from_slice(section);
        for wasm in [module, [preview1, section.clone()].concat(), component] {
            let handler = load(wasm).await;
            assert_eq!(attempt(&handler).await.outcome, Outcome::Success, "{section:?}");
        }
    }
    // Ours must be as it should.
    let ours = [guests::noop(), custom("component-type:more", &[0xff, 0xff])].concat();
    let reason = reason(ours).await;
    assert!(matches!(reason, LoadReason::NotEncodable(_)), "{reason}");
}

#[tokio::test]
async fn the_digest_is_that_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.wasm");
    fs::write(&path, guests::noop()).unwrap();
    let output = std::process::Command::new("sha256sum").arg(&path).output().unwrap();
    let expected = String::from_utf8(output.stdout).unwrap();
    let inspection = sandbox().inspect(path).await.unwrap();
    assert_eq!(inspection.digest, format!("sha256:{}", &expected[..64]));
}

#[tokio::test]
async fn native_code_is_never_taken() {
    let compiled = sandbox().engine().precompile_component(&component_of(guests::noop())).unwrap();
    let reason = reason(compiled).await;
    assert!(matches!(reason, LoadReason::Precompiled), "{reason}");
}

#[tokio::test]
async fn a_core_module_without_metadata_is_told_how_to_be_built() {
    let text = reason_of_text("(module (func (export \"handle\")))").await.to_string();
    assert!(text.contains("without component metadata") && text.contains("wit-bindgen"), "{text}");
    for world in [World::Handler, World::BatchHandler] {
        assert!(text.contains(&format!("`{}`", world.core_export())), "{text}");
    }
}

#[tokio::test]
async fn a_core_module_needs_no_metadata_where_it_exports_what_the_contract_names() {
    let emits = Guest {
        imports: &guests::import("outbox", "emit", "(param i32 i32)"),
        handle: "(call $outbox_emit (i32.const 512) (i32.const 640)) (call $ok)",
        ..Guest::default()
    };
    let (one, batch) = (Guest::default().text(), BatchGuest::default().text());
    for (text, interface, form) in [
        (&one, Interface::Handler, Form::CoreModule),
        (&emits.text(), Interface::Handler, Form::CoreModule),
        (&batch, Interface::BatchHandler, Form::CoreModule),
        (
            &Guest { imports: endings::FD_WRITE, ..Guest::default() }.text(),
            Interface::Handler,
            Form::CoreModuleWithPreview1,
        ),
    ] {
        for wasm in [wat::parse_str(text).unwrap(), text.clone().into_bytes()] {
            let handler = load(wasm).await;
            let inspection = handler.inspection();
            assert_eq!((inspection.interface, inspection.form), (interface, form));
            assert_eq!(inspection.exports, [interface.name()]);
        }
    }
    assert_eq!(
        attempt(&*load(wat::parse_str(&one).unwrap()).await).await.outcome,
        Outcome::Success
    );
    // The name of a function decides, and one that has another type is refused.
    let both = one.replace(
        "(func $ok",
        &format!(
            "(func (export {:?}) (param i32 i32) (result i32) (i32.const 0)) (func $ok",
            World::BatchHandler.core_export()
        ),
    );
    let refused = reason_of_text(&both).await;
    assert!(matches!(refused, LoadReason::SeveralHandlers { .. }), "{refused}");
    let other = format!(
        "(module (memory (export \"memory\") 1) (func (export {:?})))",
        World::Handler.core_export()
    );
    let refused = reason_of_text(&other).await;
    assert!(matches!(refused, LoadReason::NotEncodable(_)), "{refused}");
    // What the contract does not have needs metadata that says what it is.
    let foreign = one.replace(
        "(memory (export",
        "(import \"wasi:io/poll@0.2.0\" \"poll\" (func (param i32 i32 i32))) (memory (export",
    );
    let refused = reason_of_text(&foreign).await;
    let LoadReason::NotEncodable(why) = &refused else { panic!("{refused}") };
    assert!(why.contains("wasi:io/poll@0.2.0"), "{why}");
}

#[tokio::test]
async fn a_module_whose_inside_does_not_fit_its_metadata_is_refused() {
    // Marked as a handler, and without its export.
    let reason = reason(guests::module("(module (memory (export \"memory\") 1))")).await;
    assert!(matches!(reason, LoadReason::NotEncodable(_)), "{reason}");
}

#[tokio::test]
async fn a_component_of_another_world_is_told_what_is_wanted() {
    let text = reason_of_text("(component)").await.to_string();
    assert!(text.starts_with("it exports nothing; wanted is one of"), "{text}");
    let other = r#"(component
        (core module $m (func (export "f")))
        (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f")))
        (export "run" (func $f)))"#;
    let text = reason_of_text(other).await.to_string();
    assert!(text.starts_with("it exports `run`; wanted is"), "{text}");
}

#[tokio::test]
async fn what_a_component_exports_tells_how_it_is_called() {
    for (wasm, interface, takes_batches) in [
        (guests::noop(), Interface::Handler, false),
        (BatchGuest::default().build(), Interface::BatchHandler, true),
    ] {
        let handler = load(wasm).await;
        assert_eq!(handler.inspection().interface, interface);
        assert_eq!(handler.inspection().exports, [interface.name()]);
        assert_eq!(handler.takes_batches(), takes_batches);
    }
}

/// A component that exports `handle` with this type, under this name.
fn exporting(name: &str, function: &str, import: &str) -> String {
    format!(
        r#"(component
          {import}
          (core module $m
            (memory (export "memory") 1)
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 8))
            (func (export "f") (param i32 i32) (result i32) (i32.const 8)))
          (core instance $i (instantiate $m))
          (func $f {function} (canon lift (core func $i "f") (memory (core memory $i "memory")) (realloc (core func $i "realloc"))))
          (instance $e (export "handle" (func $f)))
          (export "{name}" (instance $e)))"#
    )
}

const TEXT_TO_TEXT: &str = r#"(param "event" string) (result string)"#;

#[tokio::test]
async fn an_export_of_another_type_is_told_which_and_how() {
    let wasm = exporting("event-host:handler/handler@0.1.0", TEXT_TO_TEXT, "");
    let text = reason_of_text(&wasm).await.to_string();
    assert_eq!(
        text,
        "its export `event-host:handler/handler@0.1.0` does not fit what the host calls: `handle` has another type: expected `record` found `string`"
    );
}

#[tokio::test]
async fn an_export_of_batches_of_another_type_is_told_so() {
    let wasm = exporting("event-host:handler/batch-handler@0.1.0", TEXT_TO_TEXT, "");
    let wasm = wasm.replace("\"handle\"", "\"handle-batch\"");
    let text = reason_of_text(&wasm).await.to_string();
    assert!(
        text.starts_with(
            "its export `event-host:handler/batch-handler@0.1.0` does not fit what the host calls: `handle-batch` has another type"
        ),
        "{text}"
    );
}

#[tokio::test]
async fn an_export_of_another_version_is_told_with_both() {
    let wasm = exporting("event-host:handler/handler@0.7.0", TEXT_TO_TEXT, "");
    let text = reason_of_text(&wasm).await.to_string();
    assert!(text.contains("handler@0.7.0`, and this host has version 0.1.0"), "{text}");
}

async fn importing(import: &str) -> String {
    let wasm = exporting("event-host:handler/handler@0.1.0", TEXT_TO_TEXT, import);
    reason_of_text(&wasm).await.to_string()
}

#[tokio::test]
async fn an_import_that_the_host_does_not_have_is_named() {
    let instance = |name: &str| format!(r#"(import "{name}" (instance (export "f" (func))))"#);
    let text = importing(&instance("wasi:http/incoming-handler@0.2.4")).await;
    assert!(
        text.contains("`wasi:http/incoming-handler@0.2.4`") && text.contains("outgoing-handler"),
        "{text}"
    );
    let text = importing(&instance("acme:db/query@1.0.0")).await;
    assert!(text.contains("`acme:db/query@1.0.0`") && text.contains("outbox"), "{text}");
    let text = importing(&instance("event-host:handler/log@0.9.0")).await;
    assert!(
        text.contains("imports `event-host:handler/log@0.9.0`, and this host has version 0.1.0"),
        "{text}"
    );
    let text = importing(r#"(import "plain" (func))"#).await;
    assert!(text.contains("it imports `plain`"), "{text}");
}

#[tokio::test]
async fn an_import_of_another_type_is_told_which_and_how() {
    let text = importing(
        r#"(import "event-host:handler/context@0.1.0" (instance (export "group" (func (result u32)))))"#,
    )
    .await;
    assert!(
        text.contains("`event-host:handler/context@0.1.0`: `group` has the wrong type"),
        "{text}"
    );
    let text = importing(
        r#"(import "event-host:handler/context@0.1.0" (instance (export "colour" (func (result u32)))))"#,
    )
    .await;
    assert!(text.contains("`colour`") && text.contains("missing"), "{text}");
}

#[tokio::test]
async fn an_import_that_holds_only_types_needs_no_host() {
    // It gets past the imports, to the export that does not fit.
    let text = importing(
        r#"(import "acme:shared/types@1.0.0" (instance
            (type $r (record (field "a" u32))) (export "r" (type (eq $r)))))"#,
    )
    .await;
    assert!(text.starts_with("its export `event-host:handler/handler@0.1.0`"), "{text}");
}

#[tokio::test]
async fn code_that_is_not_valid_is_refused() {
    let mut wasm = component_of(guests::noop());
    // Turn `i32.const 1024` at the end of `$ok` into a float, which is no i32.
    let at = wasm.windows(3).position(|w| w == [0x41, 0x80, 0x08]).unwrap();
    wasm[at] = 0x43;
    assert!(matches!(reason(wasm).await, LoadReason::Invalid(_)));
}

#[tokio::test]
async fn a_component_that_cannot_begin_within_its_limits_is_refused() {
    let big = Guest { items: "(memory 3000)", ..Guest::default() }.build();
    let text = reason(big).await.to_string();
    assert_eq!(text, "it begins with a memory of 187.5 MiB, and limits.memory is 128.0 MiB");
    let limits = Limits { table_elements: 10, ..Limits::default() };
    let wasm = Guest { items: "(table 11 funcref)", ..Guest::default() }.build();
    let error = load_with(wasm, limits, Reuse::Batch).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "guest.wasm: it begins with a table of 11 elements, and limits.table_elements is 10"
    );
}

#[tokio::test]
async fn limits_that_the_engine_cannot_give_are_refused() {
    let limits = Limits { table_elements: 1_000_000, ..Limits::default() };
    let error = load_with(guests::noop(), limits, Reuse::Batch).await.unwrap_err();
    assert!(matches!(error.reason, LoadReason::OverLimit(_)), "{error}");
}

#[tokio::test]
async fn text_loads_like_the_binary_it_stands_for() {
    let reason = reason(b";; a comment first\n(component)".to_vec()).await;
    assert!(matches!(reason, LoadReason::NoHandler { .. }), "{reason}");
}
