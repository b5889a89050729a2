//! Admission on paused time: which task waits, for how long, and that everything is released.

use std::sync::Mutex as StdMutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::permit::{thread_time, yield_now};
use super::*;
use event_host_core::handler::{Outcome, Report, Usage};

/// Long against anything that is waited for here.
const DEADLINE: Duration = Duration::from_secs(30);

const DAY: Duration = Duration::from_secs(86_400);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn admission(attempts: usize) -> Arc<Admission> {
    Arc::new(Admission::new(Some(attempts)))
}

fn tenant(name: &str) -> Tenant {
    name.parse().unwrap()
}

fn one() -> Demand {
    Demand { concurrency: 1, memory_bytes: 0 }
}

fn bounded(admission: &Admission, attempts: usize, tenants: &[(&str, TenantQuota)]) {
    let tenants: Vec<(Tenant, TenantQuota)> =
        tenants.iter().map(|(name, quota)| (tenant(name), quota.clone())).collect();
    admission.configure(Some(attempts), tenants.iter().map(|(name, quota)| (name, quota)));
}

/// An attempt that waits for `waits`, and reports that it worked for `worked`.
async fn attempt(waits: Duration, worked: Duration) -> Report {
    if !waits.is_zero() {
        sleep(waits).await;
    }
    report(worked)
}

fn report(worked: Duration) -> Report {
    let usage = Usage { duration: worked, ..Usage::default() };
    Report { outcome: Outcome::Success, emits: Vec::new(), usage }
}

/// A permit for one attempt of this group, if it is granted at once.
async fn now(group: &GroupAdmission) -> Option<Permit> {
    let mut permit = group.permit();
    let ready = timeout(Duration::ZERO, permit.ready(None)).await;
    ready.is_ok().then_some(permit)
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_one_event_waits_for_one_slice_of_a_tenant_with_hundreds_of_handlers() {
    let admission = admission(1);
    let mut running = JoinSet::new();
    for _ in 0..300 {
        let group = admission.register(&tenant("heavy"), one());
        running.spawn(async move {
            loop {
                let mut permit = group.permit();
                for _ in 0..1_000 {
                    permit.ready(None).await;
                    permit.run(attempt(TIME_SLICE, TIME_SLICE)).await;
                }
            }
        });
    }
    let light = admission.register(&tenant("light"), one());
    for _ in 0..100 {
        sleep(ms(25)).await;
        let asked = Instant::now();
        let mut permit = light.permit();
        permit.ready(None).await;
        permit.run(attempt(ms(0), ms(1))).await;
        // The timer's step besides.
        assert!(asked.elapsed() <= TIME_SLICE + ms(1), "{:?}", asked.elapsed());
    }
    running.shutdown().await;
    assert_eq!(admission.ledger().held(), (0, 0, 0, false));
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_everything_back_with_short_batches_makes_way_after_a_slice_too() {
    let admission = admission(2);
    let _executor = FairExecutor::on_this_runtime(Arc::clone(&admission));
    let [heavy, light] = ["heavy", "light"].map(|name| admission.register(&tenant(name), one()));
    let done = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&done);
    let spawner = heavy.clone();
    let before = spawner.spawn(async move {
        let mut permit = heavy.permit();
        let mut others = None;
        for _ in 0..1_000 {
            permit.ready(None).await;
            permit.run(attempt(ms(0), TIME_SLICE / 4)).await;
            done.fetch_add(1, SeqCst);
            permit.release();
            others.get_or_insert_with(|| {
                let seen = Arc::clone(&seen);
                light.spawn(async move { seen.load(SeqCst) })
            });
        }
        others.unwrap().await.unwrap()
    });
    assert_eq!(before.await, Some(4), "attempts before another tenant's turn");
    assert_eq!(admission.ledger().held(), (0, 0, 0, false));
}

#[tokio::test(start_paused = true)]
async fn tenants_that_always_have_work_get_the_same_whatever_the_number_of_their_handlers() {
    let admission = admission(2);
    let done = Arc::new(StdMutex::new([0_u32; 3]));
    let mut running = JoinSet::new();
    for (which, handlers) in [(0, 1), (1, 10), (2, 100)] {
        for _ in 0..handlers {
            let (group, done) =
                (admission.register(&tenant(&format!("t{which}")), one()), Arc::clone(&done));
            running.spawn(async move {
                let mut permit = group.permit();
                loop {
                    permit.ready(None).await;
                    permit.run(attempt(ms(2), TIME_SLICE)).await;
                    done.lock().unwrap()[which] += 1;
                }
            });
        }
    }
    sleep(Duration::from_secs(20)).await;
    let done = *done.lock().unwrap();
    assert!(done.iter().sum::<u32>() > 5_000, "{done:?}");
    // The one handler of the first has an end of its own: one at a time.
    assert!(done[0] * 10 >= done[1] * 9 && done[2] * 10 <= done[1] * 11, "{done:?}");
}

#[tokio::test]
async fn who_computes_little_comes_before_all_who_always_compute() {
    let executor = FairExecutor::start(admission(100)).unwrap();
    let threads = available_parallelism().unwrap().get();
    let begun = Arc::new(AtomicUsize::new(0));
    let mut heavy = Vec::new();
    for number in 0..40 {
        let begun = Arc::clone(&begun);
        let group = executor.admission().register(&tenant(&format!("heavy-{}", number % 4)), one());
        heavy.push(group.spawn(async move {
            loop {
                begun.fetch_add(1, SeqCst);
                let until = thread_time() + ms(1);
                while thread_time() < until {}
                yield_now().await;
            }
        }));
    }
    let light = executor.admission().register(&tenant("light"), one());
    let waited = light.spawn(async move {
        // Whatever the others had computed before, they have computed more now.
        while begun.load(SeqCst) < 400 {
            yield_now().await;
        }
        let mut most = 0;
        for _ in 0..100 {
            let before = begun.load(SeqCst);
            yield_now().await;
            most = most.max(begun.load(SeqCst) - before);
        }
        most
    });
    // Steps that were taken from the queue just before, and were not counted yet.
    assert!(waited.await.unwrap() <= threads);
    for task in heavy {
        assert_eq!(task.cancel().await, None);
    }
    assert!(executor.admission().run_queue.is_empty());
}

#[tokio::test]
async fn a_task_that_waits_is_on_no_core() {
    let executor = FairExecutor::start(admission(100)).unwrap();
    let (answer, mut asked) = tokio::sync::mpsc::channel::<tokio::sync::oneshot::Sender<()>>(100);
    let group = executor.admission().register(&tenant("a"), one());
    let waiting: Vec<Task<()>> = (0..100)
        .map(|_| {
            let answer = answer.clone();
            group.spawn(async move {
                let (sender, told) = tokio::sync::oneshot::channel();
                answer.send(sender).await.unwrap();
                told.await.unwrap();
            })
        })
        .collect();
    let mut all = Vec::new();
    for _ in 0..100 {
        all.push(timeout(DEADLINE, asked.recv()).await.unwrap().unwrap());
    }
    for sender in all {
        sender.send(()).unwrap();
    }
    for task in waiting {
        assert_eq!(timeout(DEADLINE, task).await.unwrap(), Some(()));
    }
}

#[tokio::test]
async fn what_is_left_when_the_cores_end_is_cancelled() {
    let executor = FairExecutor::start(admission(100)).unwrap();
    let admission = Arc::clone(executor.admission());
    let group = admission.register(&tenant("a"), one());
    let ends = group.spawn(async { 1 });
    assert_eq!(timeout(DEADLINE, ends).await.unwrap(), Some(1));
    let panics = group.spawn(async { panic!("as it should") });
    let seen = tokio::spawn(panics);
    assert!(timeout(DEADLINE, seen).await.unwrap().unwrap_err().is_panic());
    let (sender, told) = tokio::sync::oneshot::channel::<()>();
    let (begins, begun) = tokio::sync::oneshot::channel();
    let waits = group.spawn(async move {
        begins.send(()).unwrap();
        told.await.is_ok()
    });
    timeout(DEADLINE, begun).await.unwrap().unwrap();
    drop(executor);
    // It is pushed into a queue that is closed.
    sender.send(()).unwrap();
    assert_ne!(timeout(DEADLINE, waits).await.unwrap(), Some(false));
    assert_eq!(timeout(DEADLINE, group.spawn(async { 1 })).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_settlements_of_one_tenant_stand_before_none_of_another() {
    let admission = admission(1);
    let mut running = JoinSet::new();
    for _ in 0..100 {
        let group = admission.register(&tenant("heavy"), one());
        running.spawn(async move {
            loop {
                let _permit = group.acquire_write(1).await;
                sleep(ms(5)).await;
            }
        });
    }
    let light = admission.register(&tenant("light"), one());
    for _ in 0..50 {
        sleep(ms(23)).await;
        let asked = Instant::now();
        // Reads have a queue of their own.
        drop(light.acquire_read(1).await);
        assert_eq!(asked.elapsed(), ms(0));
        let permit = light.acquire_write(1).await;
        assert!(asked.elapsed() <= ms(5), "{:?}", asked.elapsed());
        drop(permit);
        // A request that is cancelled while it waits blocks no other.
        let _ = timeout(ms(1), light.acquire_write(1)).await;
    }
    running.shutdown().await;
    assert_eq!(admission.ledger().held(), (0, 0, 0, false));
}

#[tokio::test(start_paused = true)]
async fn half_of_the_places_at_most_are_kept_for_tenants_that_run_nothing() {
    let admission = admission(4);
    let busy: Vec<GroupAdmission> =
        (0..4).map(|_| admission.register(&tenant("busy"), one())).collect();
    let others: Vec<GroupAdmission> =
        (0..3).map(|n| admission.register(&tenant(&format!("t{n}")), one())).collect();
    let mut held = Vec::new();
    for group in &busy {
        held.extend(now(group).await);
    }
    assert_eq!(held.len(), 2, "the other half is kept");
    for group in &others {
        held.extend(now(group).await);
    }
    assert_eq!(held.len(), 4, "there are no more");
    drop(held);
    // Without others nothing is kept.
    drop(others);
    let mut held = Vec::new();
    for group in &busy {
        held.extend(now(group).await);
    }
    assert_eq!(held.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn attempts_at_once_are_bounded_for_handler_tenant_and_host() {
    let admission = admission(3);
    let four = TenantQuota { concurrency: Some(2), ..TenantQuota::default() };
    bounded(&admission, 3, &[("a", four)]);
    let one_handler = admission.register(&tenant("a"), one());
    let first = now(&one_handler).await;
    assert!(first.is_some());
    assert!(now(&one_handler).await.is_none(), "the handler's");
    let [second, third] = [(); 2].map(|()| admission.register(&tenant("a"), one()));
    let second = now(&second).await;
    assert!(second.is_some());
    assert!(now(&third).await.is_none(), "the tenant's");
    let other = admission.register(&tenant("b"), Demand { concurrency: 9, ..one() });
    let fourth = now(&other).await;
    assert!(fourth.is_some());
    assert!(now(&other).await.is_none(), "the host's");
    assert_eq!(admission.in_use(), 3);
    drop((first, second));
    assert!(now(&third).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn memory_in_use_is_bounded_and_a_large_handler_has_its_turn_among_small_ones() {
    let admission = admission(100);
    let quota = TenantQuota { memory_bytes: Some(100), ..TenantQuota::default() };
    bounded(&admission, 100, &[("a", quota)]);
    let group =
        |memory_bytes| admission.register(&tenant("a"), Demand { concurrency: 1, memory_bytes });
    let (large, beyond) = (group(90), group(1_000));
    let mut running = JoinSet::new();
    for _ in 0..5 {
        let small = group(30);
        running.spawn(async move {
            loop {
                let mut permit = small.permit();
                permit.ready(None).await;
                permit.run(attempt(ms(7), ms(1))).await;
            }
        });
    }
    sleep(ms(100)).await;
    assert_eq!(admission.ledger().held().2, 90, "three of the small ones");
    for group in [large, beyond] {
        let mut permit = group.permit();
        timeout(ms(15), permit.ready(None)).await.expect("it starves");
        admission.ledger().check();
        // It keeps its memory while it makes room, because its instance lives.
        permit.run(attempt(ms(0), TIME_SLICE)).await;
        permit.ready(None).await;
        assert!(admission.ledger().held().2 >= 90);
    }
    running.shutdown().await;
    assert_eq!(admission.ledger().held(), (0, 0, 0, false));
}

#[tokio::test(start_paused = true)]
async fn attempts_a_second_are_exact_over_all_handlers_of_a_tenant() {
    let admission = admission(100);
    let quota = TenantQuota { events_per_second: Some(10.0), ..TenantQuota::default() };
    bounded(&admission, 100, &[("a", quota)]);
    let begun = Instant::now();
    let at = Arc::new(StdMutex::new(Vec::new()));
    let mut running = JoinSet::new();
    for _ in 0..5 {
        let (group, at) = (admission.register(&tenant("a"), one()), Arc::clone(&at));
        running.spawn(async move {
            let mut permit = group.permit();
            for _ in 0..7 {
                permit.ready(None).await;
                at.lock().unwrap().push(begun.elapsed().as_millis());
                permit.run(attempt(ms(0), ms(0))).await;
            }
        });
    }
    // No other tenant waits for it.
    let other = admission.register(&tenant("b"), one());
    assert!(now(&other).await.is_some());
    running.join_all().await;
    let expected: Vec<u128> = (0..35).map(|n: u128| n.saturating_sub(9) * 100).collect();
    assert_eq!(*at.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_never_began_is_given_back_to_the_rate() {
    let admission = admission(100);
    let quota = TenantQuota { events_per_second: Some(1.0), ..TenantQuota::default() };
    bounded(&admission, 100, &[("a", quota)]);
    let group = admission.register(&tenant("a"), one());
    for _ in 0..10 {
        let mut permit = group.permit();
        assert!(permit.ready(None).await);
    }
    let mut permit = group.permit();
    permit.ready(None).await;
    permit.run(attempt(ms(0), ms(0))).await;
    for _ in 0..10 {
        assert!(timeout(ms(10), group.permit().ready(None)).await.is_err());
    }
    // One that is known to come too late is not waited for.
    let asked = Instant::now();
    assert!(!permit.ready(Some(asked + ms(500))).await);
    assert_eq!(asked.elapsed(), ms(0));
    assert!(permit.ready(Some(asked + ms(1_000))).await);
    assert_eq!(asked.elapsed(), ms(900));
}

#[tokio::test(start_paused = true)]
async fn cpu_is_paid_back_before_the_next_attempt_and_waiting_costs_none() {
    let admission = admission(100);
    let quota = TenantQuota { cpu: Some(0.01), ..TenantQuota::default() };
    bounded(&admission, 100, &[("a", quota)]);
    let [one_handler, another] = [(); 2].map(|()| admission.register(&tenant("a"), one()));
    let mut permit = one_handler.permit();
    permit.ready(None).await;
    permit.run(attempt(DAY, DAY)).await;
    let asked = Instant::now();
    another.permit().ready(None).await;
    assert_eq!(asked.elapsed(), ms(0), "it only waited");
    permit.ready(None).await;
    permit
        .run(async {
            let until = thread_time() + ms(50);
            while thread_time() < until {}
            report(ms(0))
        })
        .await;
    another.permit().ready(None).await;
    let waited = asked.elapsed();
    // 50 ms at a hundredth, less the second that is kept.
    assert!(waited >= ms(4_000) && waited < ms(20_000), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn ceilings_that_change_reach_those_who_wait() {
    let admission = admission(100);
    let two = TenantQuota { concurrency: Some(2), ..TenantQuota::default() };
    bounded(
        &admission,
        100,
        &[("a", TenantQuota { concurrency: Some(1), ..TenantQuota::default() })],
    );
    let groups = [(); 3].map(|()| admission.register(&tenant("a"), one()));
    let held = now(&groups[0]).await;
    let mut second = groups[1].permit();
    let mut third = groups[2].permit();
    let second = tokio::spawn(async move { second.ready(None).await });
    sleep(ms(10)).await;
    assert!(!second.is_finished());
    bounded(&admission, 100, &[("a", two)]);
    timeout(ms(10), second).await.unwrap().unwrap();
    let held_too = now(&groups[1]).await;
    assert!(timeout(ms(10), third.ready(None)).await.is_err());
    bounded(&admission, 100, &[]);
    timeout(ms(10), third.ready(None)).await.unwrap();
    assert!(held.is_some() && held_too.is_some());
}

#[derive(Debug, Clone)]
struct Step {
    waits: u64,
    worked: u64,
    /// The wait for the permit, or the attempt, is cancelled after this time.
    patience: u64,
    until: Option<u64>,
}

fn step() -> impl Strategy<Value = Step> {
    let patience = prop_oneof![3 => Just(86_400_000_u64), 1 => 0..30_u64];
    (0..4_u64, 0..4_u64, patience, proptest::option::of(0..50_u64))
        .prop_map(|(waits, worked, patience, until)| Step { waits, worked, patience, until })
}

fn quota() -> impl Strategy<Value = TenantQuota> {
    use proptest::option::of;
    (of(1..4_usize), of(50..200_usize), of(20.0..500.0_f64), of(0.5..2.0_f64)).prop_map(
        |(concurrency, memory_bytes, events_per_second, cpu)| TenantQuota {
            concurrency,
            memory_bytes,
            events_per_second,
            cpu,
            ..TenantQuota::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Whatever is requested, worked, waited for and cancelled: no group or tenant ever
    /// holds more than it may, every task ends, and everything is released.
    #[test]
    fn every_permit_comes_back_and_nobody_waits_for_ever(
        attempts in 1..6_usize,
        tenants in proptest::collection::vec(quota(), 1..4),
        groups in proptest::collection::vec(
            (0..4_usize, 1..3_usize, 0..150_usize, proptest::collection::vec(step(), 1..25)),
            1..12,
        ),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let admission = admission(attempts);
            let names: Vec<String> = (0..4).map(|n| format!("t{n}")).collect();
            let bounds: Vec<(&str, TenantQuota)> =
                names.iter().map(String::as_str).zip(tenants).collect();
            bounded(&admission, attempts, &bounds);
            let mut running = JoinSet::new();
            for (tenant_number, concurrency, memory_bytes, steps) in groups {
                let group = admission.register(&tenant(&names[tenant_number]), Demand { concurrency, memory_bytes });
                for worker in 0..concurrency + 1 {
                    let (group, admission, steps) = (group.clone(), Arc::clone(&admission), steps.clone());
                    running.spawn(async move {
                        for batch in steps.chunks(3 + worker) {
                            let mut permit = group.permit();
                            for Step { waits, worked, patience, until } in batch {
                                let until = until.map(|until| Instant::now() + ms(until));
                                let ready = permit.is_ready()
                                    || timeout(ms(*patience), permit.ready(until)).await == Ok(true);
                                admission.ledger().check();
                                if ready {
                                    let attempt = attempt(ms(*waits), ms(*worked));
                                    let _ = timeout(ms(*patience), permit.run(attempt)).await;
                                }
                                admission.ledger().check();
                            }
                        }
                    });
                }
            }
            timeout(DAY / 2, async { while running.join_next().await.transpose().unwrap().is_some() {} })
                .await
                .expect("a task waits for ever");
            assert_eq!(admission.ledger().held(), (0, 0, 0, false));
        });
    }
}

#[tokio::test]
async fn a_thread_that_is_stuck_in_a_step_is_silent_and_one_that_waits_is_not() {
    let executor = FairExecutor::start(admission(100)).unwrap();
    let silent = || executor.pulses().iter().filter(|pulse| pulse.silence() > ms(20)).count();
    let group = executor.admission().register(&tenant("a"), one());
    let (release, released) = std::sync::mpsc::channel::<()>();
    // It blocks its thread, as no task should.
    let stuck = group.spawn(async move { released.recv().is_err() });
    let begun = Instant::now();
    while silent() != 1 {
        assert!(begun.elapsed() < DEADLINE, "{:?}", executor.pulses());
        yield_now().await;
    }
    drop(release);
    assert_eq!(timeout(DEADLINE, stuck).await.unwrap(), Some(true));
    while silent() != 0 {
        assert!(begun.elapsed() < DEADLINE, "{:?}", executor.pulses());
        yield_now().await;
    }
    // One that waits is on no thread, however long it does.
    let (begins, waits) = tokio::sync::oneshot::channel();
    let waiting = group.spawn(async move {
        begins.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    timeout(DEADLINE, waits).await.unwrap().unwrap();
    while executor.pulses().iter().any(|pulse| !pulse.silence().is_zero()) {
        assert!(begun.elapsed() < DEADLINE, "{:?}", executor.pulses());
        yield_now().await;
    }
    let waited = Instant::now();
    while waited.elapsed() < ms(40) {
        assert_eq!(silent(), 0);
        yield_now().await;
    }
    waiting.cancel().await;
}
