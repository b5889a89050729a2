use super::*;

#[test]
fn a_handler_of_batches_is_told_by_its_source() {
    for (text, kind) in [
        ("@handler\ndef work(event): ...", Kind::Event),
        ("@batch_handler\ndef work(events): ...", Kind::Batch),
        ("@event_host.batch_handler  # several\ndef work(events): ...", Kind::Batch),
        ("class BatchHandler(exports.BatchHandler):", Kind::Batch),
        ("# @batch_handler\n@handler\ndef work(event): ...", Kind::Event),
    ] {
        assert_eq!(python_kind(text), kind, "{text}");
    }
    for (text, is_batch) in [
        ("#include \"host.h\"\nHOST_HANDLER(event) {}", false),
        ("#define HOST_BATCH\n#include \"host.h\"", true),
        ("  #  define HOST_BATCH 1", true),
        ("// #define HOST_BATCH", false),
        ("#define HOST_BATCHES", false),
    ] {
        assert_eq!(is_c_batch(text), is_batch, "{text}");
    }
    for (exports, kind) in [
        (r#"["handler"]"#, Some(Kind::Event)),
        (r#"["batchHandler", "other"]"#, Some(Kind::Batch)),
        (r#"["handler", "batchHandler"]"#, None),
        (r#"["default"]"#, None),
    ] {
        let facts = format!(r#"{{"outputs": {{"a.js": {{"exports": {exports}}}}}}}"#);
        let found = exported(facts.as_bytes(), Path::new("handler.js"));
        assert_eq!(found.as_ref().ok().copied(), kind, "{exports}: {found:?}");
    }
}

#[test]
fn the_library_is_the_one_of_the_project_and_not_of_what_it_depends_on() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["own", "other"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("Cargo.toml"), "").unwrap();
    }
    let manifest = |name: &str| folder.path().join(name).join("Cargo.toml");
    let line = |name: &str, file: &str| {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":{:?},"filenames":["/t/{file}"]}}"#,
            manifest(name)
        )
    };
    let messages = [
        line("own", "libown.rlib"),
        line("own", "own.wasm"),
        line("other", "other.wasm"),
        "no JSON".to_owned(),
        r#"{"reason":"build-finished","success":true}"#.to_owned(),
    ];
    let found = library_in(messages.join("\n").as_bytes(), &manifest("own"));
    assert_eq!(found.as_deref(), Some(Path::new("/t/own.wasm")));
    assert_eq!(library_in(line("own", "libown.rlib").as_bytes(), &manifest("own")), None);
}

#[test]
fn the_sources_of_c_are_all_but_its_tests() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    for name in ["handler.c", "handler_test.c", "test_it.c", "notes.txt", "src/more.c", "x.cpp"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let names = sources(folder.path(), &["c"]);
    assert_eq!(names, ["handler.c", "src/more.c"].map(|name| folder.path().join(name)));
}
