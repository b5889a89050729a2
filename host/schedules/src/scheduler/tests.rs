//! The task with a store in memory, and a clock that moves with tokio's paused time.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::plan::Missed;
use crate::schedule::Payload;
use crate::timetable::Timetable;
use event_host_core::event::{Position, Tenant};
use event_host_store::memory::{Fault, MemoryStore, Operation};
use event_host_store::traits::*;
use event_host_store::{Fetch, Subscription};

/// A clock that goes with tokio's, and that can be put forward and back.
struct TestClock {
    began: Instant,
    ahead: AtomicI64,
}

impl TestClock {
    fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), ahead: AtomicI64::new(0) })
    }

    fn put_forward(&self, seconds: i64) {
        self.ahead.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let begin: Timestamp = "2026-03-01T08:59:30Z".parse().unwrap();
        let ahead = SignedDuration::from_secs(self.ahead.load(Ordering::SeqCst));
        begin + SignedDuration::try_from(self.began.elapsed()).unwrap() + ahead
    }
}

/// A database, and hosts that run schedules on it.
struct Rig {
    store: MemoryStore,
    clock: Arc<TestClock>,
}

/// A host that runs schedules.
struct Host {
    store: MemoryStore,
    clock: Arc<TestClock>,
    settings: watch::Sender<Arc<[Schedule]>>,
    troubles: Troubles,
    _task: AbortOnDropHandle<()>,
}

fn schedule(cron: &str) -> Schedule {
    let name = "s".parse().unwrap();
    Schedule {
        tenant: Tenant::none(),
        timetable: Timetable::new(cron, "UTC").unwrap(),
        missed: Missed::Once,
        payload: Payload {
            event_type: "tick".to_owned(),
            source: Payload::default_source(&name),
            subject: None,
            partitionkey: None,
            datacontenttype: None,
            data: None,
        },
        name,
    }
}

impl Rig {
    fn new() -> Self {
        let (store, clock) = (MemoryStore::new(), TestClock::new());
        store.set_clock(clock.clone());
        Self { store, clock }
    }

    /// Starts a host, with a clock of its own that shows the same time.
    fn host(&self, schedules: &[Schedule]) -> Host {
        let store = self.store.another_host();
        let clock = Arc::new(TestClock {
            began: self.clock.began,
            ahead: AtomicI64::new(self.clock.ahead.load(Ordering::SeqCst)),
        });
        let (settings, schedules) = watch::channel(Arc::from(schedules));
        let troubles = Troubles::default();
        let scheduler = Scheduler {
            store: Arc::new(store.clone()),
            clock: clock.clone(),
            troubles: troubles.clone(),
            schedules,
        };
        let task = AbortOnDropHandle::new(tokio::spawn(scheduler.run(CancellationToken::new())));
        Host { store, clock, settings, troubles, _task: task }
    }

    /// The ticks of all events, as hour and minute with the second, in their order.
    async fn ticks(&self) -> Vec<String> {
        let (group, tenant, all) = ("any".parse().unwrap(), Tenant::none(), Subscription::all());
        let fetched = self.store.fetch(Fetch {
            group: &group,
            tenant: &tenant,
            subscription: &all,
            partition: None,
            after: Position::ZERO,
            up_to: self.store.safe_position().await.unwrap(),
            max_events: 10_000,
            max_bytes: 1 << 20,
        });
        let events = fetched.await.unwrap().events;
        let ticks = events.iter().map(|event| {
            assert_eq!(event.event.id, format!("s:{}", event.event.time));
            assert_eq!(event.event.source, "/schedules/s");
            event.event.time.strftime("%H:%M:%S").to_string()
        });
        ticks.collect()
    }
}

/// Lets virtual time pass.
async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn each_tick_is_published_when_it_is_due() {
    let rig = Rig::new();
    let _host = rig.host(&[schedule("*/2 9 * * *")]);
    pass(29).await;
    assert_eq!(rig.ticks().await, [""; 0]);
    pass(2).await;
    assert_eq!(rig.ticks().await, ["09:00:00"]);
    pass(240).await;
    assert_eq!(rig.ticks().await, ["09:00:00", "09:02:00", "09:04:00"]);
    let status = rig.store.schedules().await.unwrap().remove(0);
    assert_eq!(status.last_tick, Some("2026-03-01T09:04:00Z".parse().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn of_hosts_that_run_one_schedule_each_tick_is_published_once() {
    let rig = Rig::new();
    let mut hosts: Vec<Host> = (0..3).map(|_| rig.host(&[schedule("*/5 * * * * *")])).collect();
    pass(60).await;
    // Those that are left go on without a pause.
    hosts.truncate(1);
    hosts.push(rig.host(&[schedule("*/5 * * * * *")]));
    pass(61).await;
    let ticks = rig.ticks().await;
    assert_eq!(ticks.len(), 24, "{ticks:?}");
    assert!(ticks.is_sorted_by(|a, b| a < b), "{ticks:?}");
}

#[tokio::test(start_paused = true)]
async fn a_database_that_is_gone_delays_ticks_and_loses_none() {
    let rig = Rig::new();
    let host = rig.host(&[schedule("*/10 * * * * *")]);
    pass(1).await;
    host.store.fail(Operation::TICK, Fault::Before, 1_000);
    pass(40).await;
    assert_eq!(rig.ticks().await, [""; 0]);
    assert!(host.troubles.told().is_some_and(|told| told.starts_with(TROUBLE)));
    host.store.heal();
    pass(6).await;
    assert_eq!(host.troubles.told(), None);
    let made_up = ["08:59:40", "08:59:50", "09:00:00", "09:00:10"];
    assert_eq!(rig.ticks().await, made_up);
    // For longer, it is as if no host ran.
    host.store.fail(Operation::TICK, Fault::Before, 10_000);
    pass(600).await;
    host.store.heal();
    pass(6).await;
    let ticks = rig.ticks().await;
    assert!(ticks.starts_with(&made_up.map(str::to_owned)), "{ticks:?}");
    assert!((5..=12).contains(&ticks.len()), "{ticks:?}");
}

#[tokio::test(start_paused = true)]
async fn a_tick_whose_outcome_is_not_known_is_published_once() {
    let rig = Rig::new();
    let host = rig.host(&[schedule("* * * * *")]);
    host.store.fail(Operation::REGISTER_SCHEDULE, Fault::After, 1);
    host.store.fail(Operation::TICK, Fault::After, 1);
    host.store.fail(Operation::TICK, Fault::Before, 1);
    host.store.fail(Operation::TICK, Fault::After, 1);
    pass(100).await;
    assert_eq!(rig.ticks().await, ["09:00:00", "09:01:00"]);
    assert_eq!(host.store.faults_left(Operation::TICK), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_missed_is_made_up_for_as_the_schedule_says() {
    for (missed, expected) in [
        (Missed::Skip, &["09:40:00"][..]),
        (Missed::Once, &["09:30:00", "09:40:00"]),
        (Missed::All, &["09:10:00", "09:20:00", "09:30:00", "09:40:00"]),
    ] {
        let rig = Rig::new();
        let schedule = Schedule { missed, ..schedule("*/10 * * * *") };
        let host = rig.host(std::slice::from_ref(&schedule));
        pass(31).await;
        drop(host);
        pass(35 * 60).await;
        let _host = rig.host(&[schedule]);
        pass(5 * 60).await;
        assert_eq!(rig.ticks().await, [&["09:00:00"], expected].concat(), "{missed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_schedule_with_another_time_takes_over_from_now_on() {
    let rig = Rig::new();
    let host = rig.host(&[schedule("* * * * *")]);
    pass(45).await;
    // Its ticks since midnight were not missed.
    host.settings.send_replace(Arc::from([schedule("*/30 * * * * *")]));
    pass(50).await;
    assert_eq!(rig.ticks().await, ["09:00:00", "09:00:30", "09:01:00"]);
    host.settings.send_replace(Arc::from([]));
    pass(120).await;
    assert_eq!(rig.ticks().await.len(), 3);
    // What its events say is no other time.
    let mut other = schedule("*/30 * * * * *");
    other.missed = Missed::All;
    host.settings.send_replace(Arc::from([other]));
    pass(20).await;
    let ticks = rig.ticks().await;
    assert_eq!(ticks[3..], ["09:01:30", "09:02:00", "09:02:30", "09:03:00"]);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_goes_back_repeats_no_tick() {
    let rig = Rig::new();
    let host = rig.host(&[schedule("* * * * *")]);
    pass(95).await;
    for clock in [&host.clock, &rig.clock] {
        clock.put_forward(-120);
    }
    pass(120).await;
    assert_eq!(rig.ticks().await, ["09:00:00", "09:01:00"]);
    pass(60).await;
    assert_eq!(rig.ticks().await, ["09:00:00", "09:01:00", "09:02:00"]);
    // By more than a day it was wrong, and is not waited for.
    for clock in [&host.clock, &rig.clock] {
        clock.put_forward(-30 * 3_600);
    }
    pass(120).await;
    assert_eq!(rig.ticks().await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_put_right_is_noticed_within_ten_seconds() {
    let rig = Rig::new();
    let host = rig.host(&[schedule("0 12 * * *")]);
    pass(60).await;
    for clock in [&host.clock, &rig.clock] {
        clock.put_forward(3 * 3_600);
    }
    pass(11).await;
    assert_eq!(rig.ticks().await, ["12:00:00"]);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_ahead_by_more_than_a_period_delays_nothing_and_loses_nothing() {
    let rig = Rig::new();
    let host = rig.host(&[schedule("*/5 * * * * *")]);
    pass(1).await;
    host.clock.put_forward(20);
    pass(10).await;
    assert_eq!(rig.ticks().await, ["08:59:35", "08:59:40"]);
    pass(5).await;
    assert_eq!(rig.ticks().await, ["08:59:35", "08:59:40", "08:59:45"]);
}

#[tokio::test(start_paused = true)]
async fn no_tick_is_published_before_its_time_by_the_databases_clock() {
    let rig = Rig::new();
    let host = rig.host(&[schedule("* * * * *")]);
    pass(1).await;
    host.clock.put_forward(20);
    pass(28).await;
    assert_eq!(rig.ticks().await, [""; 0]);
    pass(2).await;
    assert_eq!(rig.ticks().await, ["09:00:00"]);
    assert!(host.store.calls(Operation::TICK) < 10, "it waits");
    // A host whose clock is further behind than the database's delays only its own.
    host.clock.put_forward(-50);
    pass(30).await;
    assert_eq!(rig.ticks().await, ["09:00:00"]);
    pass(61).await;
    assert_eq!(rig.ticks().await, ["09:00:00", "09:01:00"]);
}
