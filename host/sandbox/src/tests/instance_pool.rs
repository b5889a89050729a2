//! Who has the instances of the pool.

use super::guests::{Guest, handling, noop};
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn caller(tenant: &str) -> Caller {
    Caller { tenant: tenant.parse().unwrap(), ..Caller::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_with_many_tables_leave_room_for_others_and_wait_for_each_other() {
    // 300 tables: five of these would take all.
    let items = "(table 1 funcref)".repeat(60);
    let handle = "(loop $again (br $again)) (unreachable)";
    let wide = Guest { items: &items, handle, ..Guest::default() }.build();
    let sandbox = Sandbox::new(settings()).unwrap();
    let load = async |wasm| {
        let limits = Limits { timeout: PATIENCE, ..Limits::default() };
        sandbox.load("guest", bytes(wasm), limits, Grants::default(), Reuse::Event).await.unwrap()
    };
    let wide = load(wide).await;
    let spinning: Vec<_> = (0..10)
        .map(|_| {
            let mut worker = wide.worker();
            tokio::spawn(async move { caller("wide").attempt(&mut worker).await })
        })
        .collect();
    let innocent = load(noop()).await;
    for _ in 0..50 {
        let one = async { caller("innocent").attempt(&mut innocent.worker()).await };
        let report = tokio::time::timeout(PATIENCE / 2, one).await.unwrap();
        assert_eq!(report.outcome, Outcome::Success);
        tokio::task::yield_now().await;
    }
    assert!(spinning.iter().all(|spins| !spins.is_finished()), "those without room wait");
    for spins in spinning {
        spins.abort();
    }
}

#[tokio::test]
async fn instances_that_are_kept_end_where_somebody_would_wait_for_them() {
    let pool = PoolSettings { instances: 4, memories: 16, tables: 16, ..PoolSettings::default() };
    let sandbox = Sandbox::new(EngineSettings { pool, ..settings() }).unwrap();
    let (limits, grants) = (Limits::default(), Grants::default());
    let wasm = handling("(call $ok)");
    let kept =
        sandbox.load("kept", bytes(wasm), limits, grants, Reuse::Events(1_000)).await.unwrap();
    let mut workers: Vec<_> = (0..12).map(|_| kept.worker()).collect();
    for tenant in ["one", "other"] {
        for _ in 0..2 {
            for worker in &mut workers {
                let caller = caller(tenant);
                let attempt = tokio::time::timeout(PATIENCE, caller.attempt(worker));
                assert_eq!(attempt.await.unwrap().outcome, Outcome::Success);
                worker.end_batch();
            }
        }
    }
    // The last one still has its own.
    let last = workers.last_mut().unwrap();
    assert!(!caller("other").attempt(last).await.usage.fresh);
}
