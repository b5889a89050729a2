//! Who may commit: epochs and locks.

use std::sync::Arc;

use tokio::sync::Barrier;

use super::samples::{
    dead, event, fetch_all, group, head, host, led, letters, mark, publish_some, settings,
    settlement, try_lock, until, write,
};
use super::{DeliveryDatabase, TestDatabase};
use crate::{GroupState, Leadership, Settled, Settlement, Start};
use event_host_core::event::{Epoch, GroupName, Position};

pub async fn each_leadership_raises_the_epoch(database: &dyn DeliveryDatabase) {
    let (one, two) = (database.delivery().await, database.delivery().await);
    let first = led(&one, "g").await;
    let second = two.begin_leadership(&group("g"), &host("two")).await.unwrap();
    let third = one.begin_leadership(&group("g"), &host("one")).await.unwrap();
    assert!(first < second.epoch && second.epoch < third.epoch);
    assert_eq!(third.position, Position::ZERO);
    assert_eq!(third.state, GroupState::Running);
    assert_eq!(third.head, None);
    assert_eq!(two.cursor(&group("g")).await.unwrap().epoch, third.epoch);

    one.pause(&group("g"), "because").await.unwrap();
    let paused = two.begin_leadership(&group("g"), &host("two")).await.unwrap();
    assert_eq!(paused.state, GroupState::Paused);
}

pub async fn a_former_leader_cannot_commit_anything(database: &dyn TestDatabase) {
    let (former, current) = (database.handle().await, database.handle().await);
    let events = publish_some(&former, 3).await;
    let old = led(&former, "g").await;
    let fetched = fetch_all(&former, "g", 0).await;
    let new = led(&current, "g").await;
    let progress = Settlement {
        head: Some(head(events[1].0, 2)),
        state: vec![write("key", Some(b"new"))],
        ..settlement(&current, "g", new, events[0].0).await
    };
    assert_eq!(current.settle(&progress).await.unwrap(), Settled::Committed);
    let before = current.cursor(&group("g")).await.unwrap();

    for epoch in [old, Epoch(old.0 - 1), Epoch(new.0 + 1)] {
        let late = Settlement {
            head: Some(head(events[2].0, 9)),
            dead_letters: vec![dead(fetched[0].clone())],
            emits: vec![event("late", "1")],
            state: vec![write("key", Some(b"old")), write("other", Some(b"old"))],
            ..settlement(&current, "g", epoch, events[2].0).await
        };
        assert_eq!(former.settle(&late).await.unwrap(), Settled::NotLeader);
        let only_cursor = settlement(&current, "g", epoch, events[2].0).await;
        assert_eq!(former.settle(&only_cursor).await.unwrap(), Settled::NotLeader);
        let late = mark(events[2].0, 9);
        let begun =
            former.record_attempt_started(&group("g"), epoch, before.settled, late).await.unwrap();
        assert_eq!(begun, Settled::NotLeader);
        let begun = former.record_work_started(&group("g"), epoch, before.settled).await.unwrap();
        assert_eq!(begun, Settled::NotLeader);
        former.end_leadership(&group("g"), epoch).await.unwrap();

        assert_eq!(current.cursor(&group("g")).await.unwrap(), before);
        assert!(letters(&current, "g").await.is_empty());
        assert_eq!(current.safe_position().await.unwrap(), events[2]);
        let key = current.state_get(&group("g"), "", "key").await.unwrap();
        assert_eq!(key.as_deref(), Some(&b"new"[..]));
        assert_eq!(current.state_get(&group("g"), "", "other").await.unwrap(), None);
    }
    let onward = settlement(&current, "g", new, events[1].0).await;
    assert_eq!(current.settle(&onward).await.unwrap(), Settled::Committed);
    let nobody = settlement(&current, "nobody", new, 1).await;
    assert_eq!(current.settle(&nobody).await.unwrap(), Settled::NotLeader);
}

pub async fn leaderships_that_settle_nothing_are_counted(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let name = group("g");
    store.ensure_group(&settings("g")).await.unwrap();
    let begin = || async {
        let leadership = store.begin_leadership(&name, &host("one")).await.unwrap();
        let begun =
            store.record_work_started(&name, leadership.epoch, leadership.settled).await.unwrap();
        assert_eq!(begun, Settled::Committed);
        leadership
    };
    for _ in 0..3 {
        let idle = store.begin_leadership(&name, &host("one")).await.unwrap();
        assert_eq!(idle.fruitless, 0, "a leader that had nothing to do does not count");
        let stale = Epoch(idle.epoch.0 - 1);
        let begun = store.record_work_started(&name, stale, idle.settled).await.unwrap();
        assert_eq!(begun, Settled::NotLeader);
    }
    for before in 0..3 {
        let leadership = begin().await;
        assert_eq!(leadership.fruitless, before);
        // To begin an attempt is no progress.
        let Leadership { epoch, settled, .. } = leadership;
        let begun = store.record_attempt_started(&name, epoch, settled, mark(1, 1)).await.unwrap();
        assert_eq!(begun, Settled::Committed);
    }
    let fourth = begin().await;
    assert_eq!(fourth.fruitless, 3);
    store.settle(&settlement(&store, "g", fourth.epoch, 0).await).await.unwrap();
    let fifth = begin().await;
    assert_eq!(fifth.fruitless, 0, "the one before settled something");

    let sixth = begin().await;
    assert_eq!(sixth.fruitless, 1);
    store.end_leadership(&name, fifth.epoch).await.unwrap();
    let seventh = begin().await;
    assert_eq!(seventh.fruitless, 2, "the end of another leadership says nothing");
    store.end_leadership(&name, seventh.epoch).await.unwrap();
    let eighth = begin().await;
    assert_eq!(eighth.fruitless, 0, "the one before ended cleanly");

    begin().await;
    store.seek(&name, Start::Earliest).await.unwrap();
    assert_eq!(begin().await.fruitless, 0, "a seek leaves the crashes behind");
}

pub async fn a_crash_leaves_behind_what_was_in_flight(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let epoch = led(&store, "g").await;
    for begun in [mark(7, 1), mark(7, 3)] {
        let told = store.record_attempt_started(&group("g"), epoch, 0, begun).await.unwrap();
        assert_eq!(told, Settled::Committed);
    }
    let next = store.begin_leadership(&group("g"), &host("two")).await.unwrap();
    assert_eq!((next.mark, next.head), (Some(mark(7, 3)), None));
    let status = store.group_status(&group("g")).await.unwrap();
    assert_eq!((status.in_flight, status.retries_pending), (Some(mark(7, 3)), 0));
}

pub async fn a_mark_leaves_the_retry_that_waits_as_it_was(database: &dyn DeliveryDatabase) {
    database.drawn_up_to(10).await;
    let store = database.delivery().await;
    let epoch = led(&store, "g").await;
    let waiting = Settlement { head: Some(head(7, 3)), ..settlement(&store, "g", epoch, 6).await };
    assert_eq!(store.settle(&waiting).await.unwrap(), Settled::Committed);
    // An event that was to be delivered later comes before it.
    store.record_attempt_started(&group("g"), epoch, 1, mark(2, 1)).await.unwrap();
    let next = store.begin_leadership(&group("g"), &host("two")).await.unwrap();
    assert_eq!((next.head, next.mark), (Some(head(7, 3)), Some(mark(2, 1))));
    // A settlement says of each whether it stays.
    for (kept, left) in [(Some(mark(2, 1)), Some(head(7, 3))), (None, Some(head(7, 4)))] {
        let settled = Settlement {
            mark: kept,
            head: left.clone(),
            ..settlement(&store, "g", next.epoch, 6).await
        };
        assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
        let cursor = store.cursor(&group("g")).await.unwrap();
        assert_eq!((cursor.mark, cursor.head), (kept, left));
    }
}

pub async fn an_attempt_that_is_withdrawn_is_not_known_to_the_next_leader(
    database: &dyn DeliveryDatabase,
) {
    let (store, other) = (database.delivery().await, database.delivery().await);
    let name = group("g");
    let former = led(&store, "g").await;
    store.record_attempt_started(&name, former, 0, mark(7, 3)).await.unwrap();
    let next = other.begin_leadership(&name, &host("two")).await.unwrap();
    assert_eq!(next.mark, Some(mark(7, 3)));
    let told = store.withdraw_attempt(&name, former).await.unwrap();
    assert_eq!(told, Settled::NotLeader, "the former leader does");
    assert_eq!(store.cursor(&name).await.unwrap().mark, Some(mark(7, 3)));
    let told = other.withdraw_attempt(&name, next.epoch).await.unwrap();
    assert_eq!(told, Settled::Committed);
    let third = store.begin_leadership(&name, &host("one")).await.unwrap();
    assert_eq!(third.mark, None);
}

pub async fn a_clean_end_leaves_nothing_in_flight(database: &dyn DeliveryDatabase) {
    database.drawn_up_to(10).await;
    let store = database.delivery().await;
    let epoch = led(&store, "g").await;
    let waiting = Settlement { head: Some(head(7, 3)), ..settlement(&store, "g", epoch, 6).await };
    store.settle(&waiting).await.unwrap();
    store.record_attempt_started(&group("g"), epoch, 1, mark(7, 3)).await.unwrap();
    store.end_leadership(&group("g"), epoch).await.unwrap();
    let next = store.begin_leadership(&group("g"), &host("two")).await.unwrap();
    assert_eq!((next.head, next.mark), (Some(head(7, 3)), None));
}

pub async fn a_late_mark_is_refused(database: &dyn DeliveryDatabase) {
    database.drawn_up_to(10).await;
    let (store, late) = (database.delivery().await, database.delivery().await);
    let name = group("g");
    let epoch = led(&store, "g").await;
    assert_eq!(store.record_work_started(&name, epoch, 0).await.unwrap(), Settled::Committed);
    let marked = store.record_attempt_started(&name, epoch, 0, mark(1, 1)).await.unwrap();
    assert_eq!(marked, Settled::Committed);
    store.settle(&settlement(&store, "g", epoch, 1).await).await.unwrap();
    let before = store.cursor(&name).await.unwrap();
    assert_eq!((before.settled, before.mark), (1, None));
    for not_the_last in [0, 2, i64::MIN, i64::MAX] {
        let marked =
            late.record_attempt_started(&name, epoch, not_the_last, mark(1, 1)).await.unwrap();
        assert_eq!(marked, Settled::NotLeader);
        let begun = late.record_work_started(&name, epoch, not_the_last).await.unwrap();
        assert_eq!(begun, Settled::NotLeader);
        assert_eq!(store.cursor(&name).await.unwrap(), before);
    }
    let next = store.begin_leadership(&name, &host("one")).await.unwrap();
    assert_eq!((next.fruitless, next.mark), (0, None));
}

pub async fn a_lock_has_one_holder(database: &dyn DeliveryDatabase) {
    let (one, two) = (database.delivery().await, database.delivery().await);
    let mut first = one.lock_session(&host("one")).await.unwrap();
    let mut same_host = one.lock_session(&host("one")).await.unwrap();
    let mut second = two.lock_session(&host("two")).await.unwrap();
    let (g, other) = (group("g"), group("g.other"));

    assert!(try_lock(&mut first, &g).await);
    assert!(try_lock(&mut first, &g).await, "it holds the lock already");
    assert!(!try_lock(&mut second, &g).await);
    assert!(!try_lock(&mut same_host, &g).await);
    assert!(try_lock(&mut second, &other).await, "groups are independent");
    first.heartbeat(&[]).await.unwrap();
    second.heartbeat(&[]).await.unwrap();

    // One release, however often it was taken.
    first.unlock(&g).await.unwrap();
    assert!(try_lock(&mut second, &g).await);
    assert!(!try_lock(&mut first, &g).await);
}

pub async fn many_locks_are_asked_for_at_once_and_answered_in_order(
    database: &dyn DeliveryDatabase,
) {
    let (one, two) = (database.delivery().await, database.delivery().await);
    let mut first = one.lock_session(&host("one")).await.unwrap();
    let mut second = two.lock_session(&host("two")).await.unwrap();
    let name = |n: usize| group(&format!("g{n}"));
    let mine: Vec<GroupName> = [700, 3, 41].map(name).into();
    assert_eq!(first.try_locks(&mine).await.unwrap(), [true; 3]);
    assert_eq!(first.try_locks(&[]).await.unwrap(), [false; 0]);

    let all: Vec<GroupName> = (0..1_000).rev().map(name).collect();
    let expected: Vec<bool> = all.iter().map(|group| !mine.contains(group)).collect();
    for _ in 0..3 {
        assert_eq!(second.try_locks(&all).await.unwrap(), expected);
    }
    // One release, however often it was taken; and no other lock goes with it.
    second.unlock(&name(5)).await.unwrap();
    first.unlock(&name(41)).await.unwrap();
    let wanted = [4, 5, 41, 3].map(name);
    assert_eq!(first.try_locks(&wanted).await.unwrap(), [false, true, true, true]);
    first.heartbeat(&all).await.unwrap();
    second.heartbeat(&[name(5), group("unknown")]).await.unwrap();
}

pub async fn a_session_that_is_dropped_releases_its_locks(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let mut first = store.lock_session(&host("one")).await.unwrap();
    let mut second = store.lock_session(&host("two")).await.unwrap();
    for name in ["a", "b"] {
        assert!(try_lock(&mut first, &group(name)).await);
    }
    drop(first);
    for name in ["a", "b"] {
        until(name, async || try_lock(&mut second, &group(name)).await).await;
    }
}

pub async fn unlocking_what_was_never_held_does_nothing(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let mut first = store.lock_session(&host("one")).await.unwrap();
    let mut second = store.lock_session(&host("two")).await.unwrap();
    assert!(try_lock(&mut first, &group("g")).await);
    second.unlock(&group("g")).await.unwrap();
    second.unlock(&group("unknown")).await.unwrap();
    assert!(!try_lock(&mut second, &group("g")).await);
    first.heartbeat(&[]).await.unwrap();
}

pub async fn a_thousand_cycles_leave_no_lock_behind(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let mut first = store.lock_session(&host("one")).await.unwrap();
    let mut second = store.lock_session(&host("two")).await.unwrap();
    for cycle in 0..1_000 {
        let (taker, other) =
            if cycle % 2 == 0 { (&mut first, &mut second) } else { (&mut second, &mut first) };
        assert!(try_lock(taker, &group("g")).await, "cycle {cycle}");
        assert!(!try_lock(other, &group("g")).await, "cycle {cycle}");
        taker.unlock(&group("g")).await.unwrap();
    }
    first.heartbeat(&[]).await.unwrap();
}

pub async fn of_two_sessions_that_want_a_lock_at_once_one_gets_it(database: &dyn DeliveryDatabase) {
    const GROUPS: usize = 100;
    let barrier = Arc::new(Barrier::new(2));
    let mut hosts = Vec::new();
    for name in ["one", "two"] {
        let store = database.delivery().await;
        let barrier = Arc::clone(&barrier);
        hosts.push(tokio::spawn(async move {
            let mut session = store.lock_session(&host(name)).await.unwrap();
            let mut got = Vec::new();
            for n in 0..GROUPS {
                barrier.wait().await;
                got.push(try_lock(&mut session, &group(&format!("g{n}"))).await);
            }
            // Nobody lets go before both have asked.
            barrier.wait().await;
            got
        }));
    }
    let (one, two) = (hosts.remove(0).await.unwrap(), hosts.remove(0).await.unwrap());
    for (n, (one, two)) in one.into_iter().zip(two).enumerate() {
        assert!(one != two, "group {n}: {one} and {two}");
    }
}

pub async fn a_leader_is_shown_only_while_it_holds_the_lock(database: &dyn TestDatabase) {
    let (leading, watching) = (database.handle().await, database.handle().await);
    let name = group("g");
    leading.ensure_group(&settings("g")).await.unwrap();
    assert_eq!(watching.group_status(&name).await.unwrap().leader, None);

    let mut session = leading.lock_session(&host("one")).await.unwrap();
    assert!(try_lock(&mut session, &name).await);
    let epoch = leading.begin_leadership(&name, &host("one")).await.unwrap().epoch;
    let leader = watching.group_status(&name).await.unwrap().leader.unwrap();
    assert_eq!(leader.host, host("one"));
    assert_eq!(watching.status().await.unwrap().groups[0].leader, Some(leader));

    // As a process that dies does.
    drop(session);
    let gone = async || watching.group_status(&name).await.unwrap().leader.is_none();
    until("the lock is free", gone).await;
    assert_eq!(watching.status().await.unwrap().groups[0].leader, None);

    let mut session = leading.lock_session(&host("one")).await.unwrap();
    assert!(try_lock(&mut session, &name).await);
    leading.end_leadership(&name, epoch).await.unwrap();
    assert_eq!(watching.group_status(&name).await.unwrap().leader, None, "it ended cleanly");
}
