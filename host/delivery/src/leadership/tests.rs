//! Leases against the store in memory, with two hosts and paused time.

use std::collections::BTreeSet;
use std::pin::pin;

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::places::{FREE_FOR, THERE_AFTER};
use super::*;
use event_host_core::event::Tenant;
use event_host_core::troubles::Troubles;
use event_host_metrics::StoreMetrics;
use event_host_store::GroupRegistration;
use event_host_store::memory::{Fault, MemoryStore, Operation};

/// A deadline. Time is paused: it passes at once when nothing else happens.
const HOUR: Duration = Duration::from_secs(3_600);

/// What a timer may be late.
const TICK: Duration = Duration::from_millis(2);

fn locks(store: &MemoryStore, id: &str) -> Locks {
    let host = HostIdentity { id: id.to_owned(), hostname: id.to_owned(), pid: 1 };
    Locks::start(Arc::new(store.clone()), host, Troubles::default(), StoreMetrics::default())
}

fn group(name: &str) -> GroupName {
    name.parse().unwrap()
}

/// A store with the groups that the tests are about.
async fn stored() -> MemoryStore {
    let store = MemoryStore::new();
    make(&store, ["g", "h", "i"].map(group)).await;
    store
}

async fn make(store: &MemoryStore, groups: impl IntoIterator<Item = GroupName>) {
    for group in groups {
        store.ensure_group(&GroupRegistration::new(group, Tenant::none())).await.unwrap();
    }
}

/// A store with `g` in so many partitions.
async fn split(partitions: u32) -> MemoryStore {
    let store = MemoryStore::new();
    let settings = GroupRegistration::new(group("g"), Tenant::none());
    store.ensure_group(&GroupRegistration { partitions, ..settings }).await.unwrap();
    store
}

impl Locks {
    /// Waits for a group that is there, and says once that another host leads it.
    async fn lock(&self, group: &GroupName, standing_by: impl FnOnce()) -> Option<Lease> {
        let mut standing_by = Some(standing_by);
        let told = |obstacle: Obstacle| match (obstacle.clone(), standing_by.take()) {
            (Obstacle::LedElsewhere, Some(standing_by)) => standing_by(),
            _ => panic!("told {obstacle:?}"),
        };
        self.lead(group, told).await.map(|led| led.expect("the group is there"))
    }
}

/// Waits until a host gets a group's lock.
async fn taken(locks: &Locks, name: &str) -> Lease {
    let lease = tokio::time::timeout(HOUR, locks.lock(&group(name), || {})).await;
    lease.expect("the lock never came free").expect("the owner broke")
}

async fn lost(lease: &Lease) {
    tokio::time::timeout(HOUR, lease.proof().lost()).await.expect("it never stepped down");
}

/// Waits until an operation was called so often through a handle.
async fn called(store: &MemoryStore, operation: Operation, times: u64) {
    let calls = async {
        while store.calls(operation) < times {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(HOUR, calls).await.expect("never called so often");
}

/// A heartbeat that was sent at this moment, and answered.
async fn proof(store: &MemoryStore) -> Instant {
    called(store, Operation::HEARTBEAT, store.calls(Operation::HEARTBEAT) + 1).await;
    Instant::now()
}

/// That a lease is lost no later than it must be, and, since nothing but silence
/// is the reason, no earlier.
async fn steps_down_in_time(lease: &Lease, proof: Instant) {
    lost(lease).await;
    let took = proof.elapsed();
    assert!(took <= STEP_DOWN_AFTER + TICK, "{took:?}");
    assert!(took >= STEP_DOWN_AFTER - TICK, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_group_has_one_lease_and_the_next_host_gets_it_soon_after_it_is_released() {
    let store = stored().await;
    let (one, two) = (locks(&store, "one"), locks(&store.another_host(), "two"));
    let lease = taken(&one, "g").await;
    let (refused, standing_by) = oneshot::channel();
    let wanted = group("g");
    let mut next = pin!(two.lock(&wanted, || refused.send(()).unwrap()));
    tokio::select! {
        _ = &mut next => panic!("two leases of one lock"),
        told = standing_by => told.expect("it is said that another host leads"),
    }
    taken(&two, "h").await;
    assert!(tokio::time::timeout(10 * LOCK_POLL, &mut next).await.is_err());
    lease.release(None, false).await;
    let released = Instant::now();
    let next = next.await.unwrap();
    assert!(released.elapsed() <= LOCK_POLL + TICK);
    assert!(!next.proof().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_free_is_had_at_once_and_nobody_is_said_to_lead() {
    let store = stored().await;
    let one = locks(&store, "one");
    let began = Instant::now();
    one.lock(&group("g"), || panic!("nobody else has it")).await.unwrap();
    assert!(began.elapsed() < TICK, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_dropped_gives_its_lock_back() {
    let store = stored().await;
    let (one, two) = (locks(&store, "one"), locks(&store.another_host(), "two"));
    drop(taken(&one, "g").await);
    taken(&two, "g").await;
}

#[tokio::test(start_paused = true)]
async fn two_who_want_a_lock_of_one_host_get_it_one_after_the_other() {
    let store = stored().await;
    let one = locks(&store, "one");
    let first = taken(&one, "g").await;
    let wanted = group("g");
    let mut second = pin!(one.lock(&wanted, || {}));
    assert!(tokio::time::timeout(10 * LOCK_POLL, &mut second).await.is_err());
    first.release(None, false).await;
    second.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_thousand_groups_are_asked_for_in_one_call() {
    const GROUPS: usize = 1_000;
    let store = stored().await;
    let standby = store.another_host();
    let (one, two) = (locks(&store, "one"), locks(&standby, "two"));
    let groups: Vec<GroupName> = (0..GROUPS).map(|n| group(&format!("g{n:04}"))).collect();
    make(&store, groups.clone()).await;
    let all = |locks: &Locks| {
        let locks = locks.clone();
        let each = groups.clone().into_iter().map(move |group| {
            let locks = locks.clone();
            async move { locks.lock(&group, || {}).await.unwrap() }
        });
        futures_util::future::join_all(each)
    };
    let leases = all(&one).await;
    assert_eq!(store.calls(Operation::CLAIM), 1);

    let mut waiting = pin!(all(&two));
    assert!(tokio::time::timeout(Duration::from_secs(10), &mut waiting).await.is_err());
    assert_eq!(standby.calls(Operation::CLAIM), 0, "all of them are led");
    let asked = standby.calls(Operation::ROSTER);
    assert!((99..=115).contains(&asked), "{asked} times in 100 polls and 10 heartbeats");
    assert_eq!(standby.standing_by(), groups);
    assert_eq!(store.standing_by(), []);

    drop(leases);
    let leases = waiting.await;
    assert_eq!(leases.len(), GROUPS);
    proof(&standby).await;
    assert_eq!(standby.standing_by(), [], "it stands by for nothing any more");
}

#[tokio::test(start_paused = true)]
async fn one_who_no_longer_waits_is_forgotten() {
    let store = stored().await;
    let standby = store.another_host();
    let (one, two) = (locks(&store, "one"), locks(&standby, "two"));
    let lease = taken(&one, "g").await;
    assert!(tokio::time::timeout(2 * HEARTBEAT, two.lock(&group("g"), || {})).await.is_err());
    assert_eq!(standby.standing_by(), [group("g")]);
    // The answer to a last question may be under way.
    tokio::time::sleep(LOCK_POLL).await;
    let asked = standby.calls(Operation::ROSTER);
    lease.release(None, false).await;
    tokio::time::sleep(10 * LOCK_POLL).await;
    assert_eq!(standby.calls(Operation::ROSTER), asked);
    assert_eq!(standby.calls(Operation::CLAIM), 0);
    assert_eq!(standby.standing_by(), []);
    taken(&one, "g").await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_comes_when_nobody_waits_any_more_is_given_back() {
    let store = stored().await;
    let hasty = store.another_host();
    let (one, two) = (locks(&store, "one"), locks(&hasty, "two"));
    hasty.fail(Operation::CLAIM, Fault::Slow(HEARTBEAT), 1);
    assert!(tokio::time::timeout(HEARTBEAT / 2, two.lock(&group("g"), || {})).await.is_err());
    assert_eq!(hasty.faults_left(Operation::CLAIM), 0, "it is being asked for");
    taken(&one, "g").await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_granted_and_never_received_is_given_back() {
    let store = stored().await;
    let (one, two) = (locks(&store, "one"), locks(&store.another_host(), "two"));
    let wanted = group("g");
    let mut asking = Box::pin(two.lock(&wanted, || {}));
    assert!((&mut asking).now_or_never().is_none());
    // The answer is there, and whoever asked does not look again.
    called(&store, Operation::HEARTBEAT, 2).await;
    drop(asking);
    taken(&one, "g").await;
}

#[tokio::test(start_paused = true)]
async fn a_host_without_an_answer_steps_down_from_every_group_and_comes_back() {
    let store = stored().await;
    let one = locks(&store, "one");
    let leases = [taken(&one, "g").await, taken(&one, "h").await];
    let proof = proof(&store).await;
    store.fail(Operation::HEARTBEAT, Fault::Slow(HOUR), 1);
    for lease in &leases {
        steps_down_in_time(lease, proof).await;
    }
    let back = taken(&one, "g").await;
    assert!(proof.elapsed() < STEP_DOWN_AFTER + HEARTBEAT, "{:?}", proof.elapsed());
    assert!(!back.proof().is_lost());
}

#[tokio::test(start_paused = true)]
async fn slow_answers_lose_no_lease_and_prove_only_the_moment_they_were_asked_for() {
    let store = stored().await;
    let one = locks(&store, "one");
    let lease = taken(&one, "g").await;
    store.fail(Operation::HEARTBEAT, Fault::Slow(Duration::from_secs(2)), 4);
    while store.faults_left(Operation::HEARTBEAT) > 0 {
        assert!(!lease.proof().is_lost());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The last of them is under way, and the next will have no answer.
    let proof = Instant::now();
    store.fail(Operation::HEARTBEAT, Fault::Slow(HOUR), 1);
    steps_down_in_time(&lease, proof).await;
}

#[tokio::test(start_paused = true)]
async fn one_answer_may_take_nearly_as_long_as_a_proof_holds() {
    let store = stored().await;
    let one = locks(&store, "one");
    let lease = taken(&one, "g").await;
    proof(&store).await;
    let slow = STEP_DOWN_AFTER - HEARTBEAT - 5 * TICK;
    store.fail(Operation::HEARTBEAT, Fault::Slow(slow), 1);
    assert!(tokio::time::timeout(HOUR, lease.proof().lost()).await.is_err());
    assert_eq!(store.faults_left(Operation::HEARTBEAT), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_of_any_kind_that_hangs_does_not_keep_the_host_from_stepping_down() {
    for operation in [Operation::CLAIM, Operation::ANNOUNCE, Operation::RELEASE] {
        let store = stored().await;
        let one = locks(&store, "one");
        let (lease, other) = (taken(&one, "g").await, taken(&one, "h").await);
        let proof = proof(&store).await;
        store.fail(operation, Fault::Slow(HOUR), 1);
        let hanging = async {
            match operation {
                Operation::CLAIM | Operation::ANNOUNCE => drop(taken(&one, "i").await),
                // Returns, because what is lost needs no giving back.
                _ => other.release(None, false).await,
            }
        };
        tokio::join!(steps_down_in_time(&lease, proof), hanging);
        assert!(proof.elapsed() < STEP_DOWN_AFTER + HEARTBEAT, "{operation:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_session_was_cut_steps_down_at_its_next_call_and_another_takes_over() {
    let store = stored().await;
    let (one, two) = (locks(&store, "one"), locks(&store.another_host(), "two"));
    let lease = taken(&one, "g").await;
    store.sever_lock_sessions();
    let cut = Instant::now();
    let next = taken(&two, "g").await;
    lost(&lease).await;
    assert!(cut.elapsed() <= HEARTBEAT + TICK, "{:?}", cut.elapsed());
    lease.release(None, false).await;
    assert!(!next.proof().is_lost(), "what is gone cannot be given back");
    let wanted = group("g");
    let mut again = pin!(one.lock(&wanted, || {}));
    assert!(tokio::time::timeout(10 * HEARTBEAT, &mut again).await.is_err());
    next.release(None, false).await;
    again.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_error_of_any_call_loses_all_leases_at_once() {
    for operation in [
        Operation::HEARTBEAT,
        Operation::ROSTER,
        Operation::ANNOUNCE,
        Operation::CLAIM,
        Operation::RELEASE,
    ] {
        let store = stored().await;
        let one = locks(&store, "one");
        let (lease, other) = (taken(&one, "g").await, taken(&one, "h").await);
        proof(&store).await;
        store.fail(operation, Fault::Before, 1);
        let began = Instant::now();
        let calling = async {
            match operation {
                Operation::CLAIM | Operation::ANNOUNCE => drop(taken(&one, "i").await),
                Operation::RELEASE => other.release(None, false).await,
                _ => {}
            }
        };
        tokio::join!(lost(&lease), calling);
        assert!(began.elapsed() <= HEARTBEAT + TICK, "{operation:?}: {:?}", began.elapsed());
        taken(&one, "g").await;
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_that_fail_whenever_they_are_used_are_made_ever_more_slowly() {
    let store = stored().await;
    let one = locks(&store, "one");
    store.fail(Operation::CLAIM, Fault::Before, 1_000);
    let wanted = group("g");
    let mut waiting = pin!(one.lock(&wanted, || {}));
    assert!(tokio::time::timeout(Duration::from_secs(60), &mut waiting).await.is_err());
    let made = store.calls(Operation::LOCK_SESSION);
    assert!((10..25).contains(&made), "{made} sessions in a minute");
    store.heal();
    waiting.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_frozen_finds_its_leases_lost() {
    let store = stored().await;
    let one = locks(&store, "one");
    let lease = taken(&one, "g").await;
    let proof = proof(&store).await;
    let before = store.calls(Operation::HEARTBEAT);
    // In one step, as time goes on for a process that was stopped and wakes.
    tokio::time::advance(STEP_DOWN_AFTER - 5 * TICK).await;
    assert!(!lease.proof().is_lost(), "proved until {:?}", proof + STEP_DOWN_AFTER);
    called(&store, Operation::HEARTBEAT, before + 1).await;
    tokio::time::advance(STEP_DOWN_AFTER + TICK).await;
    assert!(lease.proof().is_lost());
    let beats = store.calls(Operation::HEARTBEAT);
    lost(&lease).await;
    assert_eq!(store.calls(Operation::HEARTBEAT), beats, "a late proof is none");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_when_its_proof_is_over_whether_anybody_was_told_or_not() {
    let (_, proven_until) = watch::channel(Instant::now() + STEP_DOWN_AFTER);
    let proof = LeadershipProof::new(CancellationToken::new(), proven_until);
    assert!(!proof.is_lost());
    tokio::time::sleep(STEP_DOWN_AFTER).await;
    assert!(proof.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_database_that_is_away_at_the_start_is_waited_for() {
    let store = stored().await;
    store.fail(Operation::LOCK_SESSION, Fault::Before, 3);
    store.fail(Operation::LOCK_SESSION, Fault::Slow(HOUR), 1);
    let one = locks(&store, "one");
    taken(&one, "g").await;
    assert_eq!(store.faults_left(Operation::LOCK_SESSION), 0);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_an_owner_that_has_broken() {
    let (requests, inbox) = mpsc::unbounded_channel();
    let broken = Locks { requests, leaderships: Leaderships::default() };
    let wanted = group("g");
    let mut waiting = Box::pin(broken.lock(&wanted, || {}));
    assert!((&mut waiting).now_or_never().is_none());
    drop(inbox);
    tokio::time::timeout(HOUR, broken.broken()).await.unwrap();
    assert!(waiting.await.is_none());
    assert!(broken.lock(&wanted, || {}).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_session_ends_with_the_last_who_could_use_it() {
    let store = stored().await;
    let (one, two) = (locks(&store, "one"), locks(&store.another_host(), "two"));
    let (g, h) = (taken(&one, "g").await, taken(&one, "h").await);
    drop((one, g));
    taken(&two, "g").await;
    assert!(!h.proof().is_lost(), "somebody still leads");
    h.release(None, false).await;
    taken(&two, "h").await;
}

/// A host that leads partitions of `g` as far as it may, and gives each back when it is
/// wanted, after `takes`; until it is stopped.
struct Sharing {
    locks: Locks,
    led: watch::Receiver<BTreeSet<u32>>,
    stop: CancellationToken,
}

impl Sharing {
    fn start(store: &MemoryStore, id: &str, of: u32, takes: Duration) -> Self {
        let locks = locks(store, id);
        let stop = CancellationToken::new();
        let (leading, led) = watch::channel(BTreeSet::new());
        let leading = Arc::new(leading);
        for number in 0..of {
            let (locks, stop, leading) = (locks.clone(), stop.clone(), Arc::clone(&leading));
            tokio::spawn(async move {
                let name = group("g").partition(number);
                while !stop.is_cancelled() {
                    let lease = tokio::select! {
                        lease = locks.lock(&name, || {}) => lease.unwrap(),
                        () = stop.cancelled() => return,
                    };
                    leading.send_modify(|led| assert!(led.insert(number)));
                    tokio::select! {
                        () = lease.wanted_back().cancelled() => tokio::time::sleep(takes).await,
                        () = lease.proof().lost() => {}
                        () = stop.cancelled() => {}
                    }
                    leading.send_modify(|led| assert!(led.remove(&number)));
                    lease.release(None, !stop.is_cancelled()).await;
                }
            });
        }
        Self { locks, led, stop }
    }

    fn leads(&self) -> BTreeSet<u32> {
        self.led.borrow().clone()
    }
}

/// Waits until these hosts lead all partitions, and no two differ by more than one.
/// Gives how long it took.
async fn shared(hosts: &[&Sharing], of: usize) -> Duration {
    let began = Instant::now();
    let sharing = async {
        loop {
            let led: Vec<usize> = hosts.iter().map(|host| host.leads().len()).collect();
            let (least, most) = (of / hosts.len(), of.div_ceil(hosts.len()));
            if led.iter().sum::<usize>() == of && led.iter().all(|led| (least..=most).contains(led))
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(HOUR, sharing).await.expect("never shared");
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn hosts_that_come_and_go_share_the_partitions_of_a_group_within_five_seconds() {
    const SOON: Duration = Duration::from_secs(5);
    for of in [1, 2, 7, 64] {
        let store = split(of.max(2)).await;
        let host = |id: &str| Sharing::start(&store.another_host(), id, of, Duration::ZERO);
        let of = usize::try_from(of).unwrap();
        let one = host("one");
        assert!(shared(&[&one], of).await <= LOCK_POLL + TICK);
        let two = host("two");
        assert!(shared(&[&one, &two], of).await <= SOON);
        let (three, four) = (host("three"), host("four"));
        assert!(shared(&[&one, &two, &three, &four], of).await <= SOON);
        // One stops in order.
        two.stop.cancel();
        drop(two.locks);
        assert!(shared(&[&one, &three, &four], of).await <= SOON);
        // And, once all know of each other, nobody gives back what it has a right to.
        tokio::time::sleep(SOON).await;
        let before: Vec<_> = [&one, &three, &four].map(Sharing::leads).into();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let after: Vec<_> = [&one, &three, &four].map(Sharing::leads).into();
        assert_eq!(before, after);
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_gives_back_one_partition_after_the_other_and_asks_for_none_of_them() {
    let store = split(8).await;
    let takes = Duration::from_millis(700);
    let one = Sharing::start(&store.another_host(), "one", 8, takes);
    shared(&[&one], 8).await;
    let handle = store.another_host();
    let two = Sharing::start(&handle, "two", 8, takes);
    let mut before = 8;
    let began = Instant::now();
    while one.leads().len() > 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let now = one.leads().len();
        assert!(now == before || now + 1 == before, "from {before} to {now} at once");
        before = now;
    }
    assert!(began.elapsed() >= 4 * takes, "one after the other: {:?}", began.elapsed());
    shared(&[&one, &two], 8).await;
    assert!(one.leads().is_disjoint(&two.leads()));
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_session_ends_shares_again_with_the_next() {
    let store = split(6).await;
    let handle = store.another_host();
    let one = Sharing::start(&handle, "one", 6, Duration::ZERO);
    let two = Sharing::start(&store.another_host(), "two", 6, Duration::ZERO);
    shared(&[&one, &two], 6).await;
    handle.fail(Operation::HEARTBEAT, Fault::Before, 1);
    while !one.leads().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    shared(&[&one, &two], 6).await;
    assert!(one.leads().is_disjoint(&two.leads()));
    // Nor does it lead more than it may before it knows of the others.
    handle.fail(Operation::ROSTER, Fault::Before, 3);
    while !one.leads().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    shared(&[&one, &two], 6).await;
}

/// A host that leads whole groups as [`Sharing`] leads partitions, until it is stopped.
fn leads_all(
    store: &MemoryStore,
    id: &str,
    groups: &[GroupName],
) -> (watch::Receiver<BTreeSet<GroupName>>, CancellationToken) {
    let (locks, stop) = (locks(store, id), CancellationToken::new());
    let (leading, led) = watch::channel(BTreeSet::new());
    let leading = Arc::new(leading);
    for group in groups {
        let group = group.clone();
        let (locks, stop, leading) = (locks.clone(), stop.clone(), Arc::clone(&leading));
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                let lease = tokio::select! {
                    lease = locks.lock(&group, || {}) => lease.unwrap(),
                    () = stop.cancelled() => return,
                };
                leading.send_modify(|led| assert!(led.insert(group.clone())));
                tokio::select! {
                    () = lease.wanted_back().cancelled() => {}
                    () = lease.proof().lost() => {}
                    () = stop.cancelled() => {}
                }
                leading.send_modify(|led| assert!(led.remove(&group)));
                lease.release(None, !stop.is_cancelled()).await;
            }
        });
    }
    (led, stop)
}

#[tokio::test(start_paused = true)]
async fn hosts_that_come_and_go_share_the_groups_and_move_no_more_than_must() {
    const GROUPS: usize = 2_000;
    let store = MemoryStore::new();
    let groups: Vec<GroupName> = (0..GROUPS).map(|n| group(&format!("g{n}"))).collect();
    make(&store, groups.clone()).await;
    let start = |id: &str| leads_all(&store.another_host(), id, &groups);
    let within = THERE_AFTER + Duration::from_secs(5);
    let even = async |hosts: &[&watch::Receiver<BTreeSet<GroupName>>]| {
        let began = Instant::now();
        loop {
            let led: Vec<usize> = hosts.iter().map(|led| led.borrow().len()).collect();
            let (least, most) = (GROUPS / hosts.len(), GROUPS.div_ceil(hosts.len()));
            if led.iter().sum::<usize>() == GROUPS
                && led.iter().all(|led| (least..=most).contains(led))
            {
                return;
            }
            assert!(began.elapsed() < within, "{led:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let (one, _of_one) = start("one");
    even(&[&one]).await;
    let (two, of_two) = start("two");
    even(&[&one, &two]).await;
    let before = one.borrow().clone();
    let (three, _of_three) = start("three");
    even(&[&one, &two, &three]).await;
    assert!(one.borrow().is_subset(&before), "it gets none, and keeps the rest");
    let kept = one.borrow().clone();
    of_two.cancel();
    even(&[&one, &three]).await;
    assert!(one.borrow().is_superset(&kept), "it gets some, and keeps all");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_a_host_stops_is_led_by_another_at_once_whatever_else_that_host_runs() {
    let store = stored().await;
    let (one, two) = (locks(&store, "one"), locks(&store.another_host(), "two"));
    let [g, _h] = [taken(&one, "g").await, taken(&one, "h").await];
    let wanted = group("g");
    let mut next = pin!(two.lock(&wanted, || {}));
    assert!(tokio::time::timeout(HEARTBEAT, &mut next).await.is_err());
    g.release(None, false).await;
    let released = Instant::now();
    next.await.unwrap();
    assert!(released.elapsed() <= LOCK_POLL + TICK, "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_group_that_has_no_row_is_missed_and_led_once_it_has_one() {
    let store = stored().await;
    let one = locks(&store, "one");
    let new = group("new");
    assert_eq!(one.lead(&new, |_| {}).await.unwrap().unwrap_err(), Missing);
    make(&store, [new]).await;
    let mut lease = taken(&one, "new").await;
    assert_eq!(lease.take_leadership().unwrap().epoch, Epoch(1));
    assert!(lease.take_leadership().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_leader_gives_a_group_to_another_host_only_once_that_has_been_there_for_a_while() {
    let store = stored().await;
    let (one, two) = (locks(&store, "one"), locks(&store.another_host(), "two"));
    let leases = [taken(&one, "g").await, taken(&one, "h").await];
    let wanted = [group("g"), group("h")];
    let is_wanted = || leases.iter().any(|lease| lease.wanted_back().is_cancelled());
    {
        let waiting = wanted.each_ref().map(|group| two.lock(group, || {}));
        let gone = tokio::time::timeout(
            THERE_AFTER - HEARTBEAT,
            futures_util::future::select_all(waiting.map(Box::pin)),
        );
        assert!(gone.await.is_err());
    }
    // It goes, and comes again.
    tokio::time::sleep(10 * HEARTBEAT).await;
    assert!(!is_wanted());
    let came = Instant::now();
    let waiting = wanted.each_ref().map(|group| Box::pin(two.lock(group, || {})));
    let mut waiting = futures_util::future::select_all(waiting);
    while !is_wanted() {
        let _ = tokio::time::timeout(TICK, &mut waiting).await;
    }
    let took = came.elapsed();
    assert!((THERE_AFTER..THERE_AFTER + HEARTBEAT + 3 * LOCK_POLL).contains(&took), "{took:?}");
    let given: Vec<bool> = leases.iter().map(|lease| lease.wanted_back().is_cancelled()).collect();
    assert_eq!(given.iter().filter(|given| **given).count(), 1, "one each");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_the_host_which_is_to_lead_it_does_not_claim_is_led_by_another() {
    let store = stored().await;
    let both = ["g", "h"].map(group);
    let idle = HostIdentity { id: "idle".into(), hostname: "idle".into(), pid: 1 };
    let mut session = store.another_host().lock_session(&idle).await.unwrap();
    session.announce(&both).await.unwrap();
    let began = Instant::now();
    let one = locks(&store, "one");
    let leases = futures_util::future::join_all(["g", "h"].map(|name| taken(&one, name))).await;
    let took = began.elapsed();
    assert!((FREE_FOR..FREE_FOR + 3 * LOCK_POLL).contains(&took), "{took:?}");
    // The other is given none for a while, and then once more.
    let is_wanted = || leases.iter().any(|lease| lease.wanted_back().is_cancelled());
    tokio::time::sleep(THERE_AFTER).await;
    assert!(!is_wanted());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(is_wanted());
    drop(session);
}

/// Waits until a host has the duty.
async fn on_duty(locks: &Locks) -> DutyLease {
    let lease = tokio::time::timeout(HOUR, locks.take_duty(Duty::Overview, || {})).await;
    lease.expect("the duty never came free").expect("the owner broke")
}

#[tokio::test(start_paused = true)]
async fn a_duty_moves_within_two_seconds_of_its_release_and_of_the_end_of_its_host() {
    let store = stored().await;
    let (one, two) = (locks(&store, "one"), locks(&store.another_host(), "two"));
    let began = Instant::now();
    let lease = on_duty(&one).await;
    assert!(began.elapsed() <= TICK, "it is free");
    let (refused, standing_by) = oneshot::channel();
    let waiting = two.clone();
    let mut next = tokio::spawn(async move {
        waiting.take_duty(Duty::Overview, || refused.send(()).unwrap()).await.unwrap()
    });
    standing_by.await.unwrap();
    assert!(tokio::time::timeout(10 * HEARTBEAT, &mut next).await.is_err());
    drop(lease);
    let released = Instant::now();
    let next = next.await.unwrap();
    assert!(released.elapsed() <= HEARTBEAT + TICK, "{:?}", released.elapsed());

    // It leads a group still: nothing but the duty moves.
    let _lease = taken(&two, "g").await;
    let mut again = Box::pin(on_duty(&one));
    assert!(tokio::time::timeout(10 * HEARTBEAT, &mut again).await.is_err());
    store.sever_lock_sessions();
    assert!(tokio::time::timeout(10 * HEARTBEAT, &mut again).await.is_err(), "its own session");
    drop((next, two, _lease));
    let ended = Instant::now();
    again.await;
    assert!(ended.elapsed() <= 2 * HEARTBEAT, "{:?}", ended.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_host_without_an_answer_gives_up_its_duty_as_it_steps_down() {
    let store = stored().await;
    let one = locks(&store, "one");
    let lease = on_duty(&one).await;
    let proof = proof(&store).await;
    store.fail(Operation::HEARTBEAT, Fault::Slow(HOUR), 1);
    tokio::time::timeout(HOUR, lease.proof().lost()).await.expect("it never stepped down");
    assert!(proof.elapsed() <= STEP_DOWN_AFTER + TICK, "{:?}", proof.elapsed());
    drop(lease);
    on_duty(&one).await;
}

#[tokio::test(start_paused = true)]
async fn an_error_of_a_call_for_a_duty_loses_all_leases() {
    for operation in [Operation::CLAIM_DUTY, Operation::RELEASE_DUTY] {
        let store = stored().await;
        let one = locks(&store, "one");
        let lease = taken(&one, "g").await;
        store.fail(operation, Fault::After, 1);
        drop(on_duty(&one).await);
        lost(&lease).await;
        taken(&one, "g").await;
        on_duty(&one).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_duty_that_comes_when_nobody_waits_any_more_is_given_back() {
    let store = stored().await;
    let hasty = store.another_host();
    let (one, two) = (locks(&store, "one"), locks(&hasty, "two"));
    hasty.fail(Operation::CLAIM_DUTY, Fault::Slow(HEARTBEAT), 1);
    let waiting = two.take_duty(Duty::Overview, || {});
    assert!(tokio::time::timeout(HEARTBEAT / 2, waiting).await.is_err());
    assert_eq!(hasty.faults_left(Operation::CLAIM_DUTY), 0, "it is being asked for");
    on_duty(&one).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_not_waited_for_again_is_soon_no_longer_the_hosts() {
    let store = stored().await;
    let handle = store.another_host();
    let (one, two) = (locks(&handle, "one"), locks(&store, "two"));
    taken(&one, "g").await.release(None, true).await;
    let _next = taken(&two, "g").await;
    assert_eq!(handle.standing_by(), [group("g")]);
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(handle.standing_by(), []);
}
