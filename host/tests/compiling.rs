//! Compiling in a process of its own: the real program, and real components.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use event_host_sandbox::settings::{Grants, Limits, Reuse};
use event_host_sandbox::{
    CacheSettings, EngineSettings, LoadError, LoadReason, LoadedHandler, Sandbox, Source,
};

#[path = "../sandbox/src/tests/guests.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests of the library")]
mod guests;

fn sandbox(cache: &Path, program: PathBuf, patience: Duration) -> Sandbox {
    Sandbox::new(EngineSettings {
        cache: CacheSettings::Directory(cache.to_owned()),
        compile_program: Some(program),
        compile_timeout: patience,
        ..EngineSettings::default()
    })
    .unwrap()
}

fn host() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_host"))
}

async fn load(
    sandbox: &Sandbox,
    wasm: Vec<u8>,
    fuel: Option<u64>,
) -> Result<Arc<LoadedHandler>, LoadError> {
    let source = Source::Bytes { name: "guest.wasm".to_owned(), bytes: wasm };
    let limits = Limits { fuel, ..Limits::default() };
    sandbox.load("guest", source, limits, Grants::default(), Reuse::Batch).await
}

const LONG: Duration = Duration::from_secs(120);

/// Loops in loops that all change the same variables: a few kilobytes that keep
/// a compiler busy for more than an hour, and fill gigabytes.
fn bomb() -> Vec<u8> {
    const SIZE: usize = 2_000;
    let changes: String = (0..SIZE)
        .map(|n| format!("(local.set {n} (i32.add (local.get {n}) (i32.const 1)))"))
        .collect();
    let body =
        format!("{}{changes}{}", "(loop ".repeat(SIZE), "(br_if 0 (local.get 0)))".repeat(SIZE));
    let items = format!("(func (local{}) {body})", " i32".repeat(SIZE));
    guests::Guest { items: &items, ..guests::Guest::default() }.build()
}

#[tokio::test]
async fn a_component_that_keeps_a_compiler_busy_is_refused_and_the_next_one_loads() {
    let folder = tempfile::tempdir().unwrap();
    let bomb = bomb();
    assert!(bomb.len() < 50_000, "{}", bomb.len());
    // Of processor time: how long that takes, the rest of the machine decides.
    let patience = Duration::from_secs(5);
    let sandbox = sandbox(&folder.path().join("cache"), host(), patience);
    let refused = load(&sandbox, bomb, None).await.unwrap_err();
    assert!(matches!(refused.reason, LoadReason::SlowCompilation(_)), "{refused}");
    // Nothing of it goes on.
    load(&sandbox, guests::noop(), None).await.unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_component_whose_compilation_takes_too_much_memory_is_refused_and_the_next_one_loads() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::new(EngineSettings {
        cache: CacheSettings::Directory(folder.path().join("cache")),
        compile_program: Some(host()),
        compile_timeout: LONG,
        compile_memory_bytes: 64 << 20,
        ..EngineSettings::default()
    })
    .unwrap();
    let items = format!("(data \"{}\")", "x".repeat(60 << 20));
    let large = guests::Guest { items: &items, ..guests::Guest::default() }.build();
    let refused = load(&sandbox, large, None).await.unwrap_err();
    assert!(matches!(refused.reason, LoadReason::CompilerDied(_)), "{refused}");
    assert!(refused.to_string().contains("`compile_memory` is 64.0 MiB"), "{refused}");
    load(&sandbox, guests::noop(), None).await.unwrap();
}

#[tokio::test]
async fn the_code_comes_from_the_other_process_for_each_kind_of_engine() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    for (pool, fuel, kept) in [(true, None, 1), (true, Some(1_000_000), 2), (false, None, 2)] {
        let mut settings = EngineSettings {
            cache: CacheSettings::Directory(cache.clone()),
            compile_program: Some(host()),
            compile_timeout: LONG,
            ..EngineSettings::default()
        };
        settings.pool.enabled = pool;
        let sandbox = Sandbox::new(settings).unwrap();
        load(&sandbox, guests::noop(), fuel).await.unwrap();
        // Were the code made for another engine, there would be one entry more.
        let entries = fs::read_dir(cache.join("components")).unwrap().count();
        assert_eq!(entries, kept, "pool: {pool}, fuel: {fuel:?}");
    }
}

#[tokio::test]
async fn what_is_known_to_compile_needs_no_process() {
    // Where programs may be run, as from a folder for temporary files they need not.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let cache = folder.path().join("cache");
    load(&sandbox(&cache, host(), LONG), guests::noop(), None).await.unwrap();
    let refusing = folder.path().join("refuse");
    fs::write(&refusing, "#!/bin/sh\ncat > /dev/null; echo no >&2; exit 3\n").unwrap();
    fs::set_permissions(&refusing, fs::Permissions::from_mode(0o700)).unwrap();
    let sandbox = sandbox(&cache, refusing, LONG);
    load(&sandbox, guests::noop(), None).await.unwrap();
    let refused = load(&sandbox, guests::handling("unreachable"), None).await.unwrap_err();
    let died = |said: &str| said.starts_with("exit status: 3: no");
    assert!(matches!(&refused.reason, LoadReason::CompilerDied(said) if died(said)), "{refused}");
}
