//! Engines on machines that are not as one would wish.

use std::env;
use std::process::Command;

use super::*;
use crate::Allocation;

const CHILD: &str = "EVENT_HOST_TEST_CHILD";

/// Runs one test of this binary again, in a process with little address space.
fn under_limit(test: &str, kib: u64) -> String {
    let output = Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit -v {kib} && exec \"$0\" --exact {test} --nocapture"))
        .arg(env::current_exe().unwrap())
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

async fn works_with(allocation: Allocation, settings: EngineSettings) {
    let sandbox = Sandbox::new(settings).unwrap();
    assert_eq!(sandbox.allocation(), allocation);
    let handler = sandbox
        .load("guest", bytes(guests::noop()), Limits::default(), Grants::default(), Reuse::Batch)
        .await
        .unwrap();
    assert_eq!(attempt(&handler).await.outcome, Outcome::Success);
    println!("works {allocation}");
}

/// 100 GiB: no room for a pool, room for the reservation of a few memories.
#[tokio::test]
async fn without_room_for_a_pool_instances_are_made_on_demand() {
    if env::var_os(CHILD).is_some() {
        let settings = EngineSettings { cache: CacheSettings::Off, ..EngineSettings::default() };
        return works_with(Allocation::OnDemand, settings).await;
    }
    let test = "tests::machine::without_room_for_a_pool_instances_are_made_on_demand";
    let output = under_limit(test, 100 << 20);
    assert!(output.contains("works on demand"), "{output}");
}

/// 3 GiB: not even room for the reservation of one memory.
#[tokio::test]
async fn without_room_for_one_reservation_bounds_are_checked() {
    if env::var_os(CHILD).is_some() {
        let settings = EngineSettings { cache: CacheSettings::Off, ..EngineSettings::default() };
        return works_with(Allocation::Compact, settings).await;
    }
    let test = "tests::machine::without_room_for_one_reservation_bounds_are_checked";
    let output = under_limit(test, 3 << 20);
    assert!(output.contains("works on demand without reservation"), "{output}");
}

#[tokio::test]
async fn limits_hold_without_a_pool() {
    let sandbox = Sandbox::new(EngineSettings {
        pool: PoolSettings { enabled: false, ..PoolSettings::default() },
        ..settings()
    })
    .unwrap();
    assert_eq!(sandbox.allocation(), Allocation::OnDemand);
    let cases = [
        ("(drop (memory.grow (i32.const 65000))) (call $ok)", FailureKind::MemoryLimit),
        ("(loop $again (br $again)) (unreachable)", FailureKind::Timeout),
        ("unreachable", FailureKind::Trap),
    ];
    for (handle, kind) in cases {
        let limits = Limits { timeout: Duration::from_millis(200), ..Limits::default() };
        let handler = sandbox
            .load("guest", bytes(guests::handling(handle)), limits, Grants::default(), Reuse::Batch)
            .await
            .unwrap();
        assert_eq!(failure(attempt(&handler).await).kind, kind);
    }
}

#[tokio::test]
async fn compiled_code_is_kept_and_what_is_broken_of_it_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let cached = || EngineSettings {
        cache: CacheSettings::Directory(dir.path().join("code")),
        ..settings()
    };
    let load = async || {
        let sandbox = Sandbox::new(cached()).unwrap();
        let handler = sandbox
            .load(
                "guest",
                bytes(guests::noop()),
                Limits::default(),
                Grants::default(),
                Reuse::Batch,
            )
            .await
            .unwrap();
        assert_eq!(attempt(&handler).await.outcome, Outcome::Success);
    };
    load().await;
    let kept = files(&dir.path().join("code/components"));
    assert_eq!(kept.len(), 1);
    let good = std::fs::read(&kept[0]).unwrap();
    load().await;
    std::fs::write(&kept[0], b"rubbish").unwrap();
    load().await;
    assert_eq!(std::fs::read(&kept[0]).unwrap(), good, "made again");
}

/// Hosts that share a folder, and start together.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hosts_that_share_a_folder_of_compiled_code_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let code = dir.path().join("code");
    let guests =
        ["(call $ok)", "(drop (i32.const 1)) (call $ok)", "unreachable"].map(guests::handling);
    let start = Arc::new(tokio::sync::Barrier::new(4));
    let hosts: Vec<_> = (0..4)
        .map(|_| {
            let settings =
                EngineSettings { cache: CacheSettings::Directory(code.clone()), ..settings() };
            let (guests, start) = (guests.clone(), Arc::clone(&start));
            tokio::spawn(async move {
                let sandbox = Sandbox::new(settings).unwrap();
                start.wait().await;
                let mut succeeded = Vec::new();
                for wasm in guests {
                    let limits = Limits::default();
                    let grants = Grants::default();
                    let handler =
                        sandbox.load("guest", bytes(wasm), limits, grants, Reuse::Batch).await;
                    let report = attempt(&handler.unwrap()).await;
                    succeeded.push(report.outcome == Outcome::Success);
                }
                succeeded
            })
        })
        .collect();
    for host in hosts {
        assert_eq!(host.await.unwrap(), [true, true, false]);
    }
    // Each of the guests once.
    assert_eq!(files(&code.join("components")).len(), 3);
}

#[tokio::test]
async fn compiled_code_is_kept_apart_by_the_settings_it_was_compiled_with() {
    let dir = tempfile::tempdir().unwrap();
    let code = dir.path().join("code");
    let cache = CacheSettings::Directory(code.clone());
    let sandbox = Sandbox::new(EngineSettings { cache, ..settings() }).unwrap();
    let mut kept = Vec::new();
    for fuel in [None, Some(1_000_000), None, Some(2_000_000)] {
        let limits = Limits { fuel, ..Limits::default() };
        let handler = sandbox
            .load("guest", bytes(guests::noop()), limits, Grants::default(), Reuse::Batch)
            .await
            .unwrap();
        assert_eq!(attempt(&handler).await.outcome, Outcome::Success);
        kept.push(files(&code.join("components")).len());
    }
    assert_eq!(kept, [1, 2, 2, 2]);
}

pub(super) fn files(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}
