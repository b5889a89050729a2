//! Changes while groups run, against the store in memory. Time is not paused, because the
//! watcher sleeps on threads.

use std::collections::BTreeSet;
use std::sync::Mutex;

use async_trait::async_trait;
use tokio::task::JoinHandle;

use super::*;
use crate::admission::Admission;
use crate::ordering::Ordering;
use crate::replay_component::NoReplayComponents;
use event_host_core::clock::SystemClock;
use event_host_core::event::{Event, Partition, Tenant};
use event_host_core::handler::{Call, Outcome, Report, Usage, Worker};
use event_host_core::subscription::Subscription;
use event_host_core::troubles::Troubles;
use event_host_store::memory::{Fault, MemoryStore, Operation};
use event_host_store::traits::*;

const PARTS: u32 = 4;

/// How long a test waits for what should take far less.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was handled, by which version.
type Seen = Arc<Mutex<Vec<(u32, String)>>>;

/// A version of a handler: succeeds, and says so.
struct Numbered {
    version: u32,
    digest: String,
    seen: Seen,
}

impl Handler for Numbered {
    fn digest(&self) -> &str {
        &self.digest
    }

    fn worker(&self) -> Box<dyn Worker> {
        Box::new(NumberedWorker(self.version, Arc::clone(&self.seen)))
    }
}

struct NumberedWorker(u32, Seen);

#[async_trait]
impl Worker for NumberedWorker {
    async fn attempt(&mut self, call: Call<'_>) -> Report {
        self.1.lock().unwrap().push((self.0, call.event.event.id.clone()));
        Report { outcome: Outcome::Success, emits: Vec::new(), usage: Usage::default() }
    }

    fn end_batch(&mut self) {}
}

struct Rig {
    store: MemoryStore,
    seen: Seen,
    changes: mpsc::Sender<Change>,
    stop: CancellationToken,
    running: JoinHandle<Result<(), StoreError>>,
    published: u32,
}

/// A group of several parts, as one version runs it.
fn parts(seen: &Seen, version: u32, of: u32) -> Vec<Group> {
    let digest = format!("sha256:{version}");
    let handler: Arc<dyn Handler> = Arc::new(Numbered { version, digest, seen: Arc::clone(seen) });
    let name: GroupName = "g".parse().unwrap();
    let part = |number: u32| Group {
        settings: GroupSettings {
            partition: Some(Partition { number, of }),
            subscription: Subscription::new(["t"]).unwrap(),
            ordering: Ordering::Key,
            concurrency: 1,
            max_parked: 100,
            ..GroupSettings::new(name.partition(number), Tenant::none())
        },
        start: Start::Earliest,
        deployed: None,
        handler: Arc::clone(&handler),
        components: Arc::new(NoReplayComponents),
    };
    (0..of).map(part).collect()
}

impl Rig {
    fn start() -> Self {
        let (store, seen, stop) = (MemoryStore::new(), Seen::default(), CancellationToken::new());
        let supervisor = Supervisor {
            store: Arc::new(store.clone()),
            deployments: Some(Arc::new(store.clone())),
            host: HostIdentity { id: "h".into(), hostname: "h".into(), pid: 1 },
            clock: Arc::new(SystemClock),
            executor: FairExecutor::on_this_runtime(Arc::new(Admission::default())),
            groups: parts(&seen, 1, PARTS),
            grace: Duration::from_secs(1),
            drain: false,
            troubles: Troubles::default(),
            metrics: Arc::default(),
            locks: oneshot::channel().0,
        };
        let (changes, to_follow) = mpsc::channel(1);
        let running =
            tokio::spawn(supervisor.run_and_follow(stop.clone(), to_follow, Later::nothing()));
        Self { store, seen, changes, stop, running, published: 0 }
    }

    /// Has the host run another version, and gives what it refuses.
    async fn change(&self, version: u32, of: u32) -> Vec<(GroupName, StoreError)> {
        let (refused, refusals) = oneshot::channel();
        let groups = parts(&self.seen, version, of);
        assert!(self.changes.send(Change { groups, refused }).await.is_ok());
        tokio::time::timeout(PATIENCE, refusals).await.unwrap().unwrap()
    }

    /// The versions that handle what is published now, for every part.
    async fn versions(&mut self) -> BTreeSet<u32> {
        let event = |id: u32| Event {
            partitionkey: Some(id.to_string()),
            ..Event::new(id.to_string(), "/tests", "t", jiff::Timestamp::UNIX_EPOCH)
        };
        let before = self.published as usize;
        let events: Vec<Event> = (self.published..self.published + 40).map(event).collect();
        self.published += 40;
        self.store.publish(&Tenant::none(), &events).await.unwrap();
        let handled = async {
            while self.seen.lock().unwrap().len() < self.published as usize {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, handled).await.expect("a part is not run");
        self.seen.lock().unwrap()[before..].iter().map(|(version, _)| *version).collect()
    }

    async fn end(self) {
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
        let seen = self.seen.lock().unwrap();
        let once: BTreeSet<&String> = seen.iter().map(|(_, id)| id).collect();
        assert_eq!(once.len(), seen.len(), "something was handled twice");
    }
}

#[tokio::test]
async fn a_group_changes_with_all_its_partitions_or_with_none() {
    // Whichever call of the database fails.
    for failing in 0..=PARTS as usize {
        for fault in [Fault::Before, Fault::After] {
            let mut rig = Rig::start();
            assert_eq!(rig.versions().await, [1].into());
            rig.store.fail(Operation::ENSURE_GROUP, Fault::Slow(Duration::ZERO), failing);
            rig.store.fail(Operation::ENSURE_GROUP, fault, 1);
            let refused = rig.change(2, PARTS).await;
            rig.store.heal();
            let runs = if refused.is_empty() { 2 } else { 1 };
            assert_eq!(rig.versions().await, [runs].into(), "{failing}: {refused:?}");
            // Once the database is back, it goes through.
            assert!(rig.change(2, PARTS).await.is_empty());
            assert_eq!(rig.versions().await, [2].into());
            rig.end().await;
        }
    }
}

#[tokio::test]
async fn a_group_that_is_repartitioned_has_all_its_new_parts_or_all_of_those_before() {
    for failing in 0..=PARTS as usize {
        let mut rig = Rig::start();
        assert_eq!(rig.versions().await, [1].into());
        rig.store.fail(Operation::ENSURE_GROUP, Fault::Slow(Duration::ZERO), failing);
        rig.store.fail(Operation::ENSURE_GROUP, Fault::Before, 1);
        rig.store.fail(Operation::GROUP_STATES, Fault::Before, 3);
        let refused = rig.change(2, PARTS + 1).await;
        rig.store.heal();
        let runs = if refused.is_empty() { 2 } else { 1 };
        assert_eq!(rig.versions().await, [runs].into(), "{failing}: {refused:?}");
        rig.end().await;
    }
}
