//! Processes that are killed, callers that give up, processes that start at
//! once.

use std::collections::BTreeSet;
use std::time::Duration;

use super::children::{child, one_more, ready_child};
use super::{SqliteDatabase, SqliteStore, claims, event, give_back, group, settings, this_host};
use event_host_core::event::{Event, Tenant};
use event_host_store::traits::*;
use event_host_store::{DeadLetterFilter, Fetch, Fetched, Settled, Subscription};

async fn whole_log(store: &SqliteStore) -> Fetched {
    let up_to = store.safe_position().await.unwrap();
    let fetch = Fetch {
        partition: None,
        group: &group("g"),
        tenant: &Tenant::none(),
        subscription: &Subscription::all(),
        after: event_host_core::event::Position::ZERO,
        up_to,
        max_events: usize::MAX,
        max_bytes: usize::MAX,
    };
    store.fetch(fetch).await.unwrap()
}

/// Checks that cursor, state, emits and dead letters tell the same number, and
/// gives it.
async fn settled_so_far(store: &SqliteStore) -> i64 {
    let cursor = store.cursor(&group("g")).await.unwrap().position;
    let count = store.state_get(&group("g"), "", "count").await.unwrap();
    let count = count.map_or(0, |count| String::from_utf8(count).unwrap().parse().unwrap());
    let letters = store.dead_letters(&DeadLetterFilter::default()).await.unwrap();
    let emits = whole_log(store).await.events;
    assert_eq!(
        (cursor.0, letters.len(), emits.len()),
        (count, usize::try_from(count).unwrap(), usize::try_from(count).unwrap())
    );
    count
}

#[tokio::test]
async fn a_killed_process_releases_its_locks() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let mut leader = ready_child("lead", &database.path()).await;

    let mut session = store.lock_session(&this_host()).await.unwrap();
    assert_eq!(claims(&mut session, &["g"]).await, [false]);
    let shown = store.group_status(&group("g")).await.unwrap().leader.unwrap();
    assert_eq!(Some(shown.host.pid), leader.id());

    leader.kill().await.unwrap();
    assert_eq!(claims(&mut session, &["g"]).await, [true]);
    give_back(&mut session, &group("g")).await;
    assert_eq!(store.group_status(&group("g")).await.unwrap().leader, None);
}

#[tokio::test]
async fn a_process_killed_while_it_settles_leaves_all_or_nothing() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let mut before = 0;
    for round in 0..10 {
        let mut settling = ready_child("settle", &database.path()).await;
        let some_more = before + 1 + fastrand::i64(0..5);
        let progress = async {
            while store.cursor(&group("g")).await.unwrap().position.0 < some_more {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), progress).await.unwrap();
        // Anywhere in the transaction that is open now.
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..5_000))).await;
        settling.kill().await.unwrap();
        let now = settled_so_far(&store).await;
        assert!(now >= some_more, "round {round}: what was committed is gone");
        before = now;
    }
}

#[tokio::test]
async fn a_process_killed_while_it_replays_leaves_each_letter_dead_or_queued() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let epoch = store.begin_leadership(&group("g"), &this_host()).await.unwrap().epoch;
    let total: i64 = 300;
    for n in 1..=total {
        let mut settlement = one_more(n, epoch);
        settlement.emits.clear();
        assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
    }
    let mut done = 0;
    while done < usize::try_from(total).unwrap() {
        let mut replaying = ready_child("replay", &database.path()).await;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..60_000))).await;
        replaying.kill().await.unwrap();

        let dead = store.dead_letters(&DeadLetterFilter::default()).await.unwrap();
        let queued = whole_log(&store).await.events;
        let dead = dead.iter().map(|letter| letter.event.event.id.clone());
        let queued_ids = queued.iter().map(|event| event.event.id.clone());
        let mut seen = BTreeSet::new();
        for id in dead.chain(queued_ids) {
            assert!(seen.insert(id.clone()), "{id} is both dead and queued");
        }
        assert_eq!(seen.len(), usize::try_from(total).unwrap(), "some are neither");
        done = queued.len();
    }
}

#[tokio::test]
async fn processes_that_start_at_once_on_an_empty_file_all_come_up() {
    for _ in 0..3 {
        let database = SqliteDatabase::new();
        let started: Vec<_> =
            (0..8).map(|_| child("start", &database.path()).spawn().unwrap()).collect();
        let mut migrated = 0;
        for process in started {
            let output = process.wait_with_output().await.unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{said}");
            migrated += usize::from(said.contains("applied 0001_"));
        }
        assert_eq!(migrated, 1, "the schema was made once");
        assert_eq!(whole_log(&database.store().await).await.events.len(), 8);
    }
}

/// Lets everything else run for so many turns.
async fn turns(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_gives_up_leaves_all_or_nothing_and_the_cursor_tells_which() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let epoch = store.begin_leadership(&group("g"), &this_host()).await.unwrap().epoch;
    let mut settled = 0;
    let mut given_up = 0;
    while settled < 100 || given_up < 100 {
        let next = one_more(settled + 1, epoch);
        tokio::select! {
            biased;
            result = store.settle(&next) => assert_eq!(result.unwrap(), Settled::Committed),
            () = turns(fastrand::usize(0..500)) => given_up += 1,
        }
        // Only the cursor is asked, at once; a settlement that would commit
        // after that would be settled twice.
        settled = store.cursor(&group("g")).await.unwrap().position.0;
    }
    assert_eq!(settled_so_far(&store).await, settled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_gives_up_stands_in_nobodys_way() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let events: Vec<Event> = (0..2_000).map(|n| event("some", &n.to_string())).collect();
    store.publish(&Tenant::none(), &events).await.unwrap();
    for _ in 0..50 {
        tokio::select! {
            biased;
            _ = whole_log(&store) => {}
            () = turns(fastrand::usize(0..500)) => {}
        }
    }
    assert_eq!(whole_log(&store).await.events.len(), 2_000);
}
