//! Schedules, and the events of their ticks.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::TestDatabase;
use super::samples::{event, fetch_all, tenant, until};
use crate::schedules::{FURTHEST_AHEAD, registered_to};
use crate::{Registered, ScheduleRegistration, ScheduleStatus, Store, Ticked, Ticks};
use event_host_core::event::{Event, Position, Tenant};

/// How many hosts publish ticks at once, and how many each.
const HOSTS: usize = 4;
const TICKS_EACH: usize = 12;

fn registration(name: &str, cron: &str) -> ScheduleRegistration {
    ScheduleRegistration {
        name: name.parse().unwrap(),
        tenant: Tenant::none(),
        cron: cron.to_owned(),
        timezone: "Europe/Berlin".to_owned(),
    }
}

/// The instant that a store keeps next after this one. By the time that it is asked for,
/// every store has registered its schedule for longer than that.
fn next(instant: Timestamp) -> Timestamp {
    instant + SignedDuration::from_micros(1)
}

fn ticks<'a>(of: &'a ScheduleRegistration, after: Timestamp, events: &'a [Event]) -> Ticks<'a> {
    let done_to = next(after);
    Ticks { schedule: &of.name, tenant: &of.tenant, after, done_to, last: Some(done_to), events }
}

/// The status of the only schedule.
async fn only(store: &Arc<dyn Store>) -> ScheduleStatus {
    let mut all = store.schedules().await.unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// The ids of all events of no tenant.
async fn ids(store: &Arc<dyn Store>, up_to: Position) -> Vec<String> {
    until("all is safe", async || store.safe_position().await.unwrap() >= up_to).await;
    let events = fetch_all(store, "any", 0).await;
    events.iter().map(|event| event.event.id.clone()).collect()
}

pub async fn a_schedule_is_done_up_to_now_when_it_is_registered(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let daily = registration("daily", "0 9 * * *");
    let early = Timestamp::now() - SignedDuration::from_mins(5);
    let Registered { done_to, before } = store.register_schedule(&daily).await.unwrap();
    assert_eq!(before, None);
    assert!(done_to > early && done_to < Timestamp::now() + SignedDuration::from_mins(5));
    let status = only(&store).await;
    assert_eq!((&status.name, &status.tenant), (&daily.name, &daily.tenant));
    assert_eq!((&status.cron, &status.timezone), (&daily.cron, &daily.timezone));
    assert_eq!((status.done_to, status.last_tick), (done_to, None));
    assert!(status.seen_at > early);
    // Another host that has it goes on where it stands.
    let again = database.handle().await.register_schedule(&daily).await.unwrap();
    assert_eq!(again, Registered { done_to, before: None });
}

pub async fn a_schedule_with_another_time_goes_on_from_now(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let daily = registration("daily", "0 9 * * *");
    let first = store.register_schedule(&daily).await.unwrap().done_to;
    let was_at = |cron: &str, zone: &str| Some((cron.to_owned(), zone.to_owned()));
    let other = ScheduleRegistration { cron: "0 10 * * *".to_owned(), ..daily.clone() };
    let changed = store.register_schedule(&other).await.unwrap();
    assert_eq!(changed.before, was_at("0 9 * * *", "Europe/Berlin"));
    assert!(changed.done_to > first);
    let other = ScheduleRegistration { timezone: "UTC".to_owned(), ..other };
    let moved = store.register_schedule(&other).await.unwrap();
    assert_eq!(moved.before, was_at("0 10 * * *", "Europe/Berlin"));
    assert!(moved.done_to > changed.done_to);
    // Whose it is says nothing of its time.
    let theirs = ScheduleRegistration { tenant: tenant("acme"), ..other };
    let theirs = store.register_schedule(&theirs).await.unwrap();
    assert_eq!(theirs, Registered { done_to: moved.done_to, before: None });
    let status = only(&store).await;
    assert_eq!(
        (status.tenant.as_str(), &*status.cron, &*status.timezone),
        ("acme", "0 10 * * *", "UTC")
    );
    // By a clock that is a little behind, nothing comes twice; one that was far ahead is
    // not waited for.
    let ahead = |by| registered_to(first + by, true, first);
    assert_eq!(ahead(SignedDuration::from_hours(1)), first + SignedDuration::from_hours(1));
    assert_eq!(ahead(FURTHEST_AHEAD + SignedDuration::from_secs(1)), first);
}

pub async fn a_tick_and_its_events_are_written_together(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let schedule = registration("daily", "0 9 * * *");
    let done_to = store.register_schedule(&schedule).await.unwrap().done_to;
    let events: Vec<Event> = (0..3).map(|n| event("tick", &n.to_string())).collect();

    let broken = [event("tick", "0"), event("", "no type")];
    store.tick(ticks(&schedule, done_to, &broken)).await.unwrap_err();
    assert_eq!(only(&store).await.done_to, done_to);

    let published = ticks(&schedule, done_to, &events);
    assert_eq!(store.tick(published).await.unwrap(), Ticked::Published);
    let status = only(&store).await;
    assert_eq!((status.done_to, status.last_tick), (next(done_to), Some(next(done_to))));
    assert_eq!(ids(&store, Position(3)).await, ["0", "1", "2"]);

    // What is left out moves the schedule alone.
    let left_out = Ticks { last: None, ..ticks(&schedule, next(done_to), &[]) };
    assert_eq!(store.tick(left_out).await.unwrap(), Ticked::Published);
    let status = only(&store).await;
    assert_eq!((status.done_to, status.last_tick), (next(next(done_to)), Some(next(done_to))));

    // An event of a tenant is the tenant's.
    let acme = tenant("acme");
    let theirs = Ticks { tenant: &acme, ..ticks(&schedule, next(next(done_to)), &events[..1]) };
    assert_eq!(store.tick(theirs).await.unwrap(), Ticked::Published);
    assert_eq!(ids(&store, Position(4)).await, ["0", "1", "2"]);
}

pub async fn a_tick_is_refused_that_is_done_or_early_or_of_no_schedule(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let schedule = registration("daily", "0 9 * * *");
    let events = [event("tick", "0")];
    let nowhere = ticks(&schedule, Timestamp::now(), &events);
    assert_eq!(store.tick(nowhere).await.unwrap(), Ticked::NotRegistered);

    let done_to = store.register_schedule(&schedule).await.unwrap().done_to;
    let early = Ticks {
        done_to: done_to + SignedDuration::from_hours(1),
        ..ticks(&schedule, done_to, &events)
    };
    match store.tick(early).await.unwrap() {
        Ticked::Early(by) => {
            assert!(by > SignedDuration::from_mins(50) && by <= SignedDuration::from_hours(1));
        }
        other => panic!("{other:?}"),
    }
    let tick = ticks(&schedule, done_to, &events);
    assert_eq!(store.tick(tick).await.unwrap(), Ticked::Published);
    let was_at = Ticked::WasAt(next(done_to));
    for copy in [tick, early, ticks(&schedule, Timestamp::UNIX_EPOCH, &events)] {
        assert_eq!(store.tick(copy).await.unwrap(), was_at);
    }
    assert_eq!(ids(&store, Position(1)).await, ["0"]);
}

pub async fn of_hosts_that_publish_at_once_each_tick_is_published_once(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let schedule = registration("often", "* * * * * *");
    let done_to = store.register_schedule(&schedule).await.unwrap().done_to;
    let (mut hosts, all_begin) = (JoinSet::new(), Arc::new(Barrier::new(HOSTS)));
    for host in 0..HOSTS {
        let (store, all_begin) = (database.handle().await, Arc::clone(&all_begin));
        let schedule = schedule.clone();
        hosts.spawn(async move {
            all_begin.wait().await;
            let (mut after, mut published) = (done_to, Vec::new());
            while published.len() < TICKS_EACH {
                let id = format!("{host} {}", next(after));
                let events = [event("tick", &id)];
                match store.tick(ticks(&schedule, after, &events)).await.unwrap() {
                    Ticked::Published => {
                        published.push(id);
                        after = next(after);
                    }
                    Ticked::WasAt(at) => after = at,
                    other => panic!("{other:?}"),
                }
            }
            published
        });
    }
    let mut published: Vec<String> = hosts.join_all().await.into_iter().flatten().collect();
    published.sort_unstable();
    let count = HOSTS * TICKS_EACH;
    let mut found = ids(&store, Position(i64::try_from(count).unwrap())).await;
    let ticks: std::collections::BTreeSet<_> =
        found.iter().map(|id| id.split_once(' ').unwrap().1.to_owned()).collect();
    assert_eq!(ticks.len(), count, "each tick once");
    found.sort_unstable();
    assert_eq!(found, published);
    let micros = SignedDuration::from_micros(i64::try_from(count).unwrap());
    assert_eq!(only(&store).await.done_to, done_to + micros);
}

pub async fn a_schedule_that_a_host_has_is_not_forgotten(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let (a, b) = (registration("a", "@daily"), registration("b", "@daily"));
    for schedule in [&b, &a] {
        store.register_schedule(schedule).await.unwrap();
    }
    let seen = store.schedules().await.unwrap();
    let names: Vec<&str> = seen.iter().map(|status| status.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let of_both = [b.name.clone(), a.name.clone(), "unknown".parse().unwrap()];
    let (one, two) = (database.handle().await, database.handle().await);
    let (first, second) =
        tokio::join!(one.record_schedules(&of_both), two.record_schedules(&of_both[..1]));
    first.unwrap();
    second.unwrap();
    let now = store.schedules().await.unwrap();
    assert_eq!(now.len(), 2);
    for (before, after) in seen.iter().zip(&now) {
        assert!(after.seen_at >= before.seen_at && after.done_to == before.done_to);
    }
}
