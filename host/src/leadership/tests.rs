//! Leases against the store in memory, with two hosts and paused time.

use super::*;
use crate::store::memory::{Fault, MemoryStore, Operation};

/// A deadline. Time is paused: a day passes at once when nothing else happens.
const DAY: Duration = Duration::from_secs(86_400);

fn locks(store: &MemoryStore, id: &str) -> Locks {
    let host = HostIdentity { id: id.to_owned(), hostname: id.to_owned(), pid: 1 };
    Locks::start(Arc::new(store.clone()), host)
}

fn group(name: &str) -> GroupName {
    name.parse().unwrap()
}

/// Waits until a host gets a group's lock.
async fn taken(locks: &Locks, group: &GroupName) -> Lease {
    let asking = async {
        loop {
            if let Some(lease) = locks.try_lock(group).await {
                return lease;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DAY, asking).await.expect("the lock never came free")
}

#[tokio::test(start_paused = true)]
async fn a_group_has_one_lease_and_the_next_host_gets_it_at_once_when_it_is_released() {
    let store = MemoryStore::new();
    let (one, two) = (locks(&store, "one"), locks(&store.another_host(), "two"));
    let lease = one.try_lock(&group("g")).await.unwrap();
    assert!(two.try_lock(&group("g")).await.is_none());
    assert!(two.try_lock(&group("h")).await.is_some(), "another group is free");
    lease.release().await;
    assert!(two.try_lock(&group("g")).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_dropped_gives_its_lock_back() {
    let store = MemoryStore::new();
    let (one, two) = (locks(&store, "one"), locks(&store.another_host(), "two"));
    drop(one.try_lock(&group("g")).await.unwrap());
    taken(&two, &group("g")).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_cannot_prove_its_locks_steps_down_from_every_group() {
    let store = MemoryStore::new();
    let one = locks(&store, "one");
    let leases = [taken(&one, &group("g")).await, taken(&one, &group("h")).await];
    store.fail(Operation::Heartbeat, Fault::Before, 1_000);
    let silent = Instant::now();
    for lease in &leases {
        tokio::time::timeout(DAY, lease.lost().cancelled()).await.expect("it never stepped down");
    }
    let took = silent.elapsed();
    assert!(
        took >= STEP_DOWN_AFTER - HEARTBEAT && took <= STEP_DOWN_AFTER + 2 * HEARTBEAT,
        "{took:?}"
    );
    store.heal();
    taken(&one, &group("g")).await;
}

#[tokio::test(start_paused = true)]
async fn a_short_silence_loses_no_lease() {
    let store = MemoryStore::new();
    let one = locks(&store, "one");
    let lease = taken(&one, &group("g")).await;
    store.fail(Operation::Heartbeat, Fault::Before, 3);
    let lost = tokio::time::timeout(DAY, lease.lost().cancelled()).await;
    assert!(lost.is_err(), "stepped down after three beats");
    assert_eq!(store.faults_left(Operation::Heartbeat), 0);
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_session_was_cut_steps_down_and_another_takes_over() {
    let store = MemoryStore::new();
    let (one, two) = (locks(&store, "one"), locks(&store.another_host(), "two"));
    let lease = taken(&one, &group("g")).await;
    store.sever_lock_sessions();
    let next = taken(&two, &group("g")).await;
    tokio::time::timeout(DAY, lease.lost().cancelled()).await.expect("it never stepped down");
    lease.release().await;
    assert!(!next.lost().is_cancelled(), "what is gone cannot be given back");
    assert!(one.try_lock(&group("g")).await.is_none());
}
