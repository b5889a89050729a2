//! Commits for many, on the store in memory.

use std::sync::Arc;
use std::time::Duration;

use event_host_core::event::{Event, Position};
use event_host_metrics::Metrics;
use event_host_store::Placed;
use event_host_store::memory::{Fault, MemoryStore, Operation};
use event_host_store::traits::*;
use jiff::Timestamp;
use tokio::task::JoinHandle;

use crate::refusal::{Reason, Refusal};
use crate::{Intake, Rate, RateOf, Settings, Submission};

const HOUR: Option<Duration> = Some(Duration::from_secs(3_600));

fn event(id: &str) -> Event {
    Event::new(id, "/tests", "t", Timestamp::UNIX_EPOCH)
}

fn intake(store: &MemoryStore, settings: Settings) -> Intake {
    let settings = Settings { connections: 1, ..settings };
    let metrics = Metrics::new(&event_host_metrics::Settings::default());
    Intake::start(Arc::new(store.clone()), None, settings, metrics.ingest.clone())
}

fn submission(intake: &Intake, tenant: &str, events: Vec<Event>) -> Submission {
    Submission {
        tenant: tenant.parse().unwrap(),
        events,
        window: HOUR,
        also_known_as: Vec::new(),
        max_event: None,
        rates: Vec::new(),
        room: intake.room(100).unwrap(),
    }
}

type Sending = JoinHandle<Result<Vec<Placed>, Refusal>>;

/// Sends a request, and returns once it stands in the queue.
async fn send(intake: &Intake, tenant: &str, events: Vec<Event>) -> Sending {
    let (before, count) = (intake.waiting().0, events.len());
    let submission = submission(intake, tenant, events);
    let theirs = intake.clone();
    let sending = tokio::spawn(async move { theirs.publish(submission).await });
    while intake.waiting().0 < before + count {
        tokio::task::yield_now().await;
    }
    sending
}

/// Has the next commit take so long that others gather, and waits until it is under way.
async fn hold(store: &MemoryStore, intake: &Intake, time: Duration) -> Sending {
    store.fail(Operation::INGEST, Fault::Slow(time), 1);
    let submission = submission(intake, "", vec![event("first")]);
    let theirs = intake.clone();
    let calls = store.calls(Operation::INGEST);
    let sending = tokio::spawn(async move { theirs.publish(submission).await });
    while store.calls(Operation::INGEST) == calls || intake.waiting().0 > 0 {
        tokio::task::yield_now().await;
    }
    sending
}

async fn count(store: &MemoryStore) -> i64 {
    store.status().await.unwrap().events
}

/// Promise 22.
#[tokio::test(start_paused = true)]
async fn no_request_is_answered_before_its_commit() {
    let store = MemoryStore::new();
    let intake = intake(&store, Settings::default());
    // Less than a request waits for its turn.
    let first = hold(&store, &intake, Duration::from_secs(5)).await;
    let second = send(&intake, "", vec![event("second")]).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!first.is_finished() && !second.is_finished());
    first.await.unwrap().unwrap();
    let position = second.await.unwrap().unwrap()[0].position;
    assert_eq!((position, count(&store).await), (Position(2), 2));
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_a_commit_is_under_way_is_one_commit() {
    let store = MemoryStore::new();
    let intake = intake(&store, Settings::default());
    let first = hold(&store, &intake, Duration::from_secs(1)).await;
    let mut others = Vec::new();
    for n in 0..50 {
        others.push(send(&intake, "", vec![event(&n.to_string())]).await);
    }
    assert_eq!(intake.waiting().0, 50);
    first.await.unwrap().unwrap();
    let mut positions = Vec::new();
    for other in others {
        positions.push(other.await.unwrap().unwrap()[0].position);
    }
    assert_eq!(positions, (2..52).map(Position).collect::<Vec<_>>());
    assert_eq!(store.calls(Operation::INGEST), 2);
}

#[tokio::test(start_paused = true)]
async fn a_tenants_flood_delays_another_tenants_event_by_one_commit() {
    let store = MemoryStore::new();
    let intake = intake(&store, Settings::default());
    let first = hold(&store, &intake, Duration::from_secs(1)).await;
    let mut flood = Vec::new();
    for n in 0..20 {
        let events = (0..500).map(|m| event(&format!("{n} {m}"))).collect();
        flood.push(send(&intake, "loud", events).await);
    }
    let quiet = send(&intake, "quiet", vec![event("quiet")]).await;
    first.await.unwrap().unwrap();
    let at = quiet.await.unwrap().unwrap()[0].position;
    // The first commit of the flood has it: one request of 500, it, and one more.
    assert!(at <= Position(1_002), "{at}");
    for one in flood {
        one.await.unwrap().unwrap();
    }
    assert_eq!(count(&store).await, 10_002);
}

#[tokio::test(start_paused = true)]
async fn one_that_the_database_refuses_spoils_nobodys() {
    let store = MemoryStore::new();
    let intake = intake(&store, Settings::default());
    let first = hold(&store, &intake, Duration::from_secs(1)).await;
    let mut others = Vec::new();
    let far = Timestamp::now() + Duration::from_secs(400 * 24 * 3_600);
    for n in 0..64 {
        let mut event = event(&n.to_string());
        if n == 37 {
            // A rule that the store has, and the check has not.
            event.deliver_after = Some(far);
        }
        others.push(send(&intake, "", vec![event]).await);
    }
    first.await.unwrap().unwrap();
    for (n, other) in others.into_iter().enumerate() {
        let answer = other.await.unwrap();
        if n == 37 {
            assert_eq!(answer.unwrap_err().reason, Reason::InvalidEvent);
        } else {
            assert_eq!(answer.unwrap().len(), 1, "{n}");
        }
    }
    assert_eq!(count(&store).await, 64);
    let commits = store.calls(Operation::INGEST);
    assert!(commits <= 1 + 2 * 7, "{commits} commits, not one a request");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_told_as_that_and_what_is_sent_again_is_there_once() {
    let store = MemoryStore::new();
    let intake = intake(&store, Settings::default());
    for (fault, is_there) in [(Fault::Before, false), (Fault::After, true)] {
        store.fail(Operation::INGEST, fault, 1);
        let id = format!("{fault:?}");
        let refused = intake.publish(submission(&intake, "", vec![event(&id)])).await.unwrap_err();
        assert_eq!(refused.reason, Reason::Database);
        assert!(refused.detail.contains("not known"), "{refused}");
        let again = intake.publish(submission(&intake, "", vec![event(&id)])).await.unwrap();
        assert_eq!(again[0].is_duplicate, is_there);
    }
    assert_eq!(count(&store).await, 2);
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_leaves_the_queue_and_is_not_published() {
    let store = MemoryStore::new();
    let intake =
        intake(&store, Settings { timeout: Duration::from_secs(10), ..Settings::default() });
    let first = hold(&store, &intake, Duration::from_secs(30)).await;
    let waiting = send(&intake, "", vec![event("late")]).await;
    let refused = waiting.await.unwrap().unwrap_err();
    assert_eq!(refused.reason, Reason::Busy);
    assert!(refused.detail.contains("nothing of it was published"), "{refused}");
    let unknown = first.await.unwrap().unwrap_err();
    assert_eq!(unknown.reason, Reason::Database, "it was begun");
    intake.stop().await;
    assert_eq!(count(&store).await, 1);
    assert_eq!(intake.waiting(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_before_anything_is_read() {
    let store = MemoryStore::new();
    let intake = intake(&store, Settings { queue: 250, ..Settings::default() });
    let mut rooms = vec![intake.room(100).unwrap()];
    assert!(intake.has_room());
    rooms.push(intake.room(100).unwrap());
    assert!(!intake.has_room(), "50 of 250 bytes are left");
    let refused = intake.room(100).unwrap_err();
    assert_eq!((refused.reason, refused.limit), (Reason::Busy, Some(250)));
    drop(rooms);
    assert!(intake.has_room());
    // An event in memory is larger than what came.
    let refused = intake.publish(submission(&intake, "", vec![event("1")])).await.unwrap_err();
    assert_eq!(refused.reason, Reason::Busy);
    intake.set(Settings { queue: 10_000, connections: 1, ..Settings::default() });
    intake.publish(submission(&intake, "", vec![event("1")])).await.unwrap();
    intake.room(10_000).expect("all of it was given back");
}

#[tokio::test(start_paused = true)]
async fn a_stop_answers_all_that_waits_and_takes_nothing_more() {
    let store = MemoryStore::new();
    let intake = intake(&store, Settings::default());
    let first = hold(&store, &intake, Duration::from_secs(5)).await;
    let waiting = send(&intake, "", vec![event("waiting")]).await;
    let reserved = submission(&intake, "", vec![event("too late")]);
    let stopping = tokio::spawn({
        let intake = intake.clone();
        async move { intake.stop().await }
    });
    while intake.room(1).is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(intake.publish(reserved).await.unwrap_err().reason, Reason::Draining);
    stopping.await.unwrap();
    assert!(first.is_finished() || first.await.unwrap().is_ok());
    waiting.await.unwrap().unwrap();
    assert_eq!(count(&store).await, 2);
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_changes_nothing() {
    let store = MemoryStore::new();
    let intake = intake(&store, Settings::default());
    let first = hold(&store, &intake, Duration::from_secs(1)).await;
    let gone = send(&intake, "", vec![event("gone")]).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    first.await.unwrap().unwrap();
    intake.stop().await;
    assert_eq!(count(&store).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_that_of_all_and_of_each() {
    let store = MemoryStore::new();
    let intake = intake(&store, Settings { rate: Some(10.0), ..Settings::default() });
    let events = |from: usize, to: usize| (from..to).map(|n| event(&n.to_string())).collect();
    let mut of_token = submission(&intake, "", events(0, 3));
    let token = Rate { of: RateOf::Token("ci".to_owned()), per_second: 3.0 };
    of_token.rates = vec![token.clone()];
    intake.publish(of_token).await.unwrap();
    let mut again = submission(&intake, "", events(3, 4));
    again.rates = vec![token];
    let refused = intake.publish(again).await.unwrap_err();
    assert_eq!(refused.reason, Reason::Rate);
    intake.publish(submission(&intake, "", events(4, 11))).await.unwrap();
    let refused = intake.publish(submission(&intake, "", events(11, 12))).await.unwrap_err();
    assert!(refused.detail.contains("all senders"), "{refused}");
    tokio::time::advance(refused.retry_after.unwrap()).await;
    intake.publish(submission(&intake, "", events(11, 12))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_linger_waits_for_more_and_no_longer() {
    let store = MemoryStore::new();
    let settings = Settings { linger: Duration::from_millis(50), ..Settings::default() };
    let intake = intake(&store, settings);
    let first = send(&intake, "", vec![event("1")]).await;
    tokio::time::advance(Duration::from_millis(30)).await;
    let second = send(&intake, "", vec![event("2")]).await;
    let (first, second) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
    assert_eq!((first[0].position, second[0].position), (Position(1), Position(2)));
    assert_eq!(store.calls(Operation::INGEST), 1);
}
