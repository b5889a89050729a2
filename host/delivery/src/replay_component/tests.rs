//! Replays that name a component, against components that count their instances.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Mutex as SyncMutex;
use std::task::Poll;

use jiff::Timestamp;

use super::*;
use event_host_core::event::{Attempt, Event, LogEvent, Position, Tenant};
use event_host_core::handler::state::{BatchState, EmptyState};

/// A component that succeeds and names itself in an emit; counts the
/// instances that live.
struct Named {
    digest: Digest,
    alive: Arc<()>,
}

impl Handler for Named {
    fn digest(&self) -> &str {
        self.digest.as_str()
    }

    fn memory_bytes(&self) -> usize {
        7
    }

    fn takes_batches(&self) -> bool {
        true
    }

    fn worker(&self) -> Box<dyn Worker> {
        Box::new(NamedWorker { digest: self.digest.clone(), _alive: Arc::clone(&self.alive) })
    }
}

struct NamedWorker {
    digest: Digest,
    _alive: Arc<()>,
}

#[async_trait]
impl Worker for NamedWorker {
    async fn attempt(&mut self, _: Call<'_>) -> Report {
        let emits = vec![event(self.digest.as_str())];
        Report { outcome: Outcome::Success, emits, usage: Usage::default() }
    }

    async fn attempt_all(&mut self, call: BatchCall<'_>) -> BatchReport {
        let outcomes = vec![Outcome::Success; call.events.len()];
        let emits = vec![event(self.digest.as_str())];
        BatchReport { outcomes, emits, usage: Usage::default() }
    }

    fn end_batch(&mut self) {}
}

/// Answers as it was told, and counts how often it was asked for each.
#[derive(Default)]
struct Shelf {
    answers: SyncMutex<HashMap<Digest, ReplayComponentError>>,
    asked: SyncMutex<Vec<Digest>>,
    alive: Arc<()>,
}

#[async_trait]
impl ReplayComponents for Shelf {
    async fn load(&self, digest: &Digest) -> Result<Arc<dyn Handler>, ReplayComponentError> {
        self.asked.lock().unwrap().push(digest.clone());
        tokio::task::yield_now().await;
        match self.answers.lock().unwrap().get(digest) {
            Some(no) => Err(no.clone()),
            None => Ok(named(digest, &self.alive)),
        }
    }
}

impl Shelf {
    fn asked(&self) -> usize {
        std::mem::take(&mut *self.asked.lock().unwrap()).len()
    }

    fn answer(&self, digest: &Digest, no: ReplayComponentError) {
        self.answers.lock().unwrap().insert(digest.clone(), no);
    }
}

fn named(digest: &Digest, alive: &Arc<()>) -> Arc<dyn Handler> {
    Arc::new(Named { digest: digest.clone(), alive: Arc::clone(alive) })
}

fn event(id: &str) -> Event {
    Event::new(id, "/test", "t", Timestamp::UNIX_EPOCH)
}

fn digest(n: u8) -> Digest {
    Digest::of(&[n])
}

/// A handler whose own component is number 0.
fn handler() -> (Arc<Shelf>, ReplayHandler) {
    let shelf = Arc::new(Shelf::default());
    let own = named(&digest(0), &shelf.alive);
    let handler = ReplayHandler::new(own, Arc::clone(&shelf) as Arc<dyn ReplayComponents>);
    (shelf, handler)
}

async fn attempt(worker: &mut Box<dyn Worker>, digest: Option<&Digest>) -> Report {
    let event = LogEvent {
        position: Position(1),
        deliver_to: digest.map(|_| "g".parse().unwrap()),
        digest: digest.cloned(),
        event: event("e"),
    };
    let state = BatchState::new("").attempt(Arc::new(EmptyState));
    let (group, tenant) = ("g".parse().unwrap(), Tenant::none());
    let call = Call {
        group: &group,
        tenant: &tenant,
        event: &event,
        attempt: Attempt(1),
        is_late: false,
        state,
    };
    worker.attempt(call).await
}

/// The component that handled an event.
async fn ran(worker: &mut Box<dyn Worker>, digest: Option<&Digest>) -> String {
    let report = attempt(worker, digest).await;
    assert_eq!(report.outcome, Outcome::Success);
    report.emits[0].id.clone()
}

#[tokio::test]
async fn each_event_goes_to_the_component_that_it_names_or_to_the_groups_own() {
    let (shelf, handler) = handler();
    assert_eq!((handler.digest(), handler.memory_bytes()), (digest(0).as_str(), 7));
    let mut worker = handler.worker();
    for (wanted, runs) in [(None, 0), (Some(1), 1), (Some(1), 1), (None, 0), (Some(0), 0)] {
        let wanted = wanted.map(digest);
        assert_eq!(ran(&mut worker, wanted.as_ref()).await, digest(runs).as_str());
    }
    assert_eq!(shelf.asked(), 1, "once, and not for its own");
}

#[tokio::test]
async fn several_events_in_one_call_go_to_the_groups_own_component() {
    let (_, handler) = handler();
    assert!(handler.takes_batches());
    let mut worker = handler.worker();
    let (group, tenant) = ("g".parse().unwrap(), Tenant::none());
    let event =
        LogEvent { position: Position(1), deliver_to: None, digest: None, event: event("e") };
    for before in [None, Some(digest(1))] {
        ran(&mut worker, before.as_ref()).await;
        let state = BatchState::new("").attempt(Arc::new(EmptyState));
        let events = [&event, &event];
        let call = BatchCall { group: &group, tenant: &tenant, events: &events, state };
        let report = worker.attempt_all(call).await;
        assert_eq!((report.outcomes.len(), &*report.emits[0].id), (2, digest(0).as_str()));
    }
}

#[tokio::test]
async fn a_worker_has_one_instance_and_none_of_another_component_between_batches() {
    let (shelf, handler) = handler();
    let mut worker = handler.worker();
    let idle = Arc::strong_count(&shelf.alive);
    ran(&mut worker, Some(&digest(1))).await;
    assert_eq!(Arc::strong_count(&shelf.alive), idle + 1, "its code and no second instance");
    worker.end_batch();
    drop(handler);
    assert_eq!(ran(&mut worker, None).await, digest(0).as_str());
    assert_eq!(Arc::strong_count(&shelf.alive), idle + 1);
}

#[tokio::test]
async fn what_is_prepared_is_there_for_the_attempt_and_what_cannot_run_is_not_asked_for_again() {
    let (shelf, handler) = handler();
    assert!(handler.has(&digest(0)), "its own");
    shelf.answer(&digest(2), ReplayComponentError::Refused("it traps".to_owned()));
    shelf.answer(&digest(3), ReplayComponentError::NotNow("away".to_owned()));
    for (n, prepared) in [(1, Ok(())), (2, Ok(())), (3, Err("away".to_owned()))] {
        assert!(!handler.has(&digest(n)), "{n}");
        assert_eq!(handler.prepare(&digest(n)).await, prepared, "{n}");
        assert_eq!(handler.has(&digest(n)), prepared.is_ok(), "{n}");
    }
    assert_eq!(shelf.asked(), 3);
    let mut worker = handler.worker();
    assert_eq!(ran(&mut worker, Some(&digest(1))).await, digest(1).as_str());
    let report = attempt(&mut worker, Some(&digest(2))).await;
    assert!(matches!(report.outcome, Outcome::Failure(_)), "{report:?}");
    assert_eq!(shelf.asked(), 0);
}

#[tokio::test]
async fn few_components_are_kept_and_the_one_not_asked_for_longest_goes() {
    let (shelf, handler) = handler();
    let mut worker = handler.worker();
    let idle = Arc::strong_count(&shelf.alive);
    for n in 1..=20 {
        ran(&mut worker, Some(&digest(n))).await;
        worker.end_batch();
        assert!(Arc::strong_count(&shelf.alive) <= idle + MAX_CACHED);
    }
    shelf.asked();
    for (n, asked) in [(19, 0), (20, 0), (19, 0), (1, 1), (19, 0), (20, 1)] {
        ran(&mut worker, Some(&digest(n))).await;
        assert_eq!(shelf.asked(), asked, "{n}");
    }
}

#[tokio::test]
async fn workers_that_want_the_same_component_load_it_once() {
    let (shelf, handler) = handler();
    let wanted = digest(1);
    let mut workers: Vec<_> = (0..8).map(|_| handler.worker()).collect();
    let attempts = workers.iter_mut().map(|worker| ran(worker, Some(&wanted)));
    let runs = futures_util::future::join_all(attempts).await;
    assert!(runs.iter().all(|run| run == wanted.as_str()));
    assert_eq!(shelf.asked(), 1);
}

#[tokio::test]
async fn what_cannot_be_run_fails_for_good_and_is_asked_for_again_where_that_may_help() {
    let (shelf, handler) = handler();
    let mut worker = handler.worker();
    let (refused, missing) = (digest(1), digest(2));
    shelf.answer(&refused, ReplayComponentError::Refused("it is no wasm".into()));
    shelf.answer(&missing, ReplayComponentError::Failed("it is not there".into()));
    for (digest, why, asked) in [(&refused, "it is no wasm", 1), (&missing, "it is not there", 3)] {
        for _ in 0..3 {
            let Outcome::Failure(failure) = attempt(&mut worker, Some(digest)).await.outcome else {
                panic!("it ran");
            };
            assert_eq!(failure.kind, FailureKind::NotLoaded);
            assert!(failure.kind.is_final());
            for part in [why, digest.as_str()] {
                assert!(failure.text.contains(part), "{failure:?}");
            }
            assert_eq!(ran(&mut worker, None).await, self::digest(0).as_str());
        }
        assert_eq!(shelf.asked(), asked);
    }
}

#[tokio::test]
async fn a_database_that_is_away_counts_for_nothing_and_is_asked_again() {
    let (shelf, handler) = handler();
    let mut worker = handler.worker();
    let wanted = digest(1);
    shelf.answer(&wanted, ReplayComponentError::NotNow("the database is away".into()));
    let outcome = attempt(&mut worker, Some(&wanted)).await.outcome;
    assert_eq!(outcome, Outcome::NotRun("the database is away".into()));
    shelf.answers.lock().unwrap().clear();
    assert_eq!(ran(&mut worker, Some(&wanted)).await, wanted.as_str());
}

#[tokio::test]
async fn an_attempt_that_is_dropped_while_it_loads_leaves_nothing_behind() {
    let (shelf, handler) = handler();
    let mut worker = handler.worker();
    let wanted = digest(1);
    let mut dropped = Box::pin(attempt(&mut worker, Some(&wanted)));
    let loads = poll_fn(|cx| Poll::Ready(dropped.as_mut().poll(cx).is_pending())).await;
    drop(dropped);
    assert!(loads);
    assert_eq!(ran(&mut worker, None).await, digest(0).as_str());
    assert_eq!(ran(&mut worker, Some(&wanted)).await, wanted.as_str());
    assert_eq!(shelf.asked(), 2);
}

#[tokio::test]
async fn a_handler_alone_runs_nothing_but_its_own() {
    let alive = Arc::new(());
    let handler = ReplayHandler::new(named(&digest(0), &alive), Arc::new(NoReplayComponents));
    let mut worker = handler.worker();
    let outcome = attempt(&mut worker, Some(&digest(1))).await.outcome;
    assert!(matches!(outcome, Outcome::Failure(_)), "{outcome:?}");
    assert_eq!(ran(&mut worker, None).await, digest(0).as_str());
}
