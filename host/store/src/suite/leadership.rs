//! Who may commit: epochs and sessions.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Barrier;

use super::samples::{
    claimed, claims, dead, end, event, fetch_all, give_back, group, head, host, led, letters, mark,
    publish_some, redelivery, release, settings, settlement, tenant, time, until, write,
};
use super::{DeliveryDatabase, TestDatabase};
use crate::{
    Claim, Deferral, DeliveryStore, Duty, GroupRegistration, GroupState, Leadership, Settled,
    Settlement, Start, Subscription,
};
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
        end(&former, &group("g"), epoch).await;

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
    end(&store, &name, fifth.epoch).await;
    let seventh = begin().await;
    assert_eq!(seventh.fruitless, 2, "the end of another leadership says nothing");
    end(&store, &name, seventh.epoch).await;
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
    end(&store, &group("g"), epoch).await;
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

/// Makes groups that receive every event.
async fn made(store: &Arc<dyn DeliveryStore>, names: &[GroupName]) {
    let registration = |name: &GroupName| settings(name.as_str());
    let settings: Vec<_> = names.iter().map(registration).collect();
    store.ensure_groups(&settings).await.unwrap();
}

pub async fn a_group_is_led_by_one_session(database: &dyn DeliveryDatabase) {
    let (one, two) = (database.delivery().await, database.delivery().await);
    let (g, other) = (group("g"), group("g.other"));
    made(&one, &[g.clone(), other.clone()]).await;
    let mut first = one.lock_session(&host("one")).await.unwrap();
    let mut second = two.lock_session(&host("two")).await.unwrap();

    let began = claimed(&mut first, &g).await.unwrap().epoch;
    let again = claimed(&mut first, &g).await.unwrap().epoch;
    assert!(again > began, "it leads already, and begins again");
    assert!(!claims(&mut second, &g).await);
    assert!(claims(&mut second, &other).await, "groups are independent");
    first.heartbeat(true).await.unwrap();
    second.heartbeat(true).await.unwrap();
    assert!(one.begin_leadership(&g, &host("two")).await.is_err(), "it leads no such group");
    let onward = one.begin_leadership(&g, &host("one")).await.unwrap();
    assert!(onward.epoch > again);
    assert!(!claims(&mut second, &g).await, "and leads it as before");

    // One release, however often it was claimed.
    give_back(&mut first, &g).await;
    assert!(claims(&mut second, &g).await);
    assert!(!claims(&mut first, &g).await);
}

pub async fn of_two_sessions_of_one_host_one_leads(database: &dyn DeliveryDatabase) {
    let (one, two) = (database.delivery().await, database.delivery().await);
    let g = group("g");
    made(&one, std::slice::from_ref(&g)).await;
    let mut first = one.lock_session(&host("one")).await.unwrap();
    let before = claimed(&mut first, &g).await.unwrap().epoch;
    let mut second = two.lock_session(&host("one")).await.unwrap();
    match claimed(&mut second, &g).await {
        None => first.heartbeat(false).await.unwrap(),
        // The new session stands for the host, and the one before is told.
        Some(leadership) => {
            assert!(leadership.epoch > before);
            assert!(first.heartbeat(false).await.is_err());
            assert!(first.claim(std::slice::from_ref(&g)).await.is_err());
            second.heartbeat(false).await.unwrap();
        }
    }
}

pub async fn many_groups_are_claimed_at_once_and_answered_in_order(
    database: &dyn DeliveryDatabase,
) {
    let (one, two) = (database.delivery().await, database.delivery().await);
    let mut first = one.lock_session(&host("one")).await.unwrap();
    let mut second = two.lock_session(&host("two")).await.unwrap();
    let name = |n: usize| group(&format!("g{n}"));
    let all: Vec<GroupName> = (0..1_000).rev().map(name).collect();
    made(&one, &all).await;
    let led = |claims: Vec<Claim>| -> Vec<bool> {
        claims.iter().map(|claim| matches!(claim, Claim::Led(_))).collect()
    };
    let mine: Vec<GroupName> = [700, 3, 41].map(name).into();
    assert_eq!(led(first.claim(&mine).await.unwrap()), [true; 3]);
    assert_eq!(led(first.claim(&[]).await.unwrap()), [false; 0]);

    let expected: Vec<bool> = all.iter().map(|group| !mine.contains(group)).collect();
    for _ in 0..3 {
        assert_eq!(led(second.claim(&all).await.unwrap()), expected);
    }
    // One release, however often it was claimed; and no other group goes with it.
    give_back(&mut second, &name(5)).await;
    give_back(&mut first, &name(41)).await;
    let wanted = [4, 5, 41, 3].map(name);
    assert_eq!(led(first.claim(&wanted).await.unwrap()), [false, true, true, true]);
    let unknown = first.claim(&[group("unknown"), name(3)]).await.unwrap();
    assert!(matches!(unknown[..], [Claim::Missing, Claim::Led(_)]), "{unknown:?}");
    first.heartbeat(true).await.unwrap();
    second.heartbeat(true).await.unwrap();
}

pub async fn a_claim_takes_what_the_dead_led_and_nothing_of_the_living(
    database: &dyn DeliveryDatabase,
) {
    let store = database.delivery().await;
    let [a, b, living, free] = ["a", "b", "living", "free"].map(group);
    let all = [a.clone(), b.clone(), living.clone(), free.clone()];
    made(&store, &all).await;
    let mut dies = store.lock_session(&host("dies")).await.unwrap();
    let mut lives = store.lock_session(&host("lives")).await.unwrap();
    let mut second = store.lock_session(&host("two")).await.unwrap();
    let of_a = claimed(&mut dies, &a).await.unwrap();
    let of_b = claimed(&mut dies, &b).await.unwrap();
    let of_living = claimed(&mut lives, &living).await.unwrap();
    store.record_work_started(&a, of_a.epoch, 0).await.unwrap();
    drop(dies);
    until("the session is over", async || claims(&mut second, &a).await).await;
    let claims = second.claim(&all).await.unwrap();
    let [Claim::Led(a), Claim::Led(b), Claim::LedElsewhere, Claim::Led(_)] = &claims[..] else {
        panic!("{claims:?}");
    };
    assert_eq!(a.fruitless, 1, "it began work and did not end cleanly");
    assert!(a.epoch > of_a.epoch && b.epoch > of_b.epoch);
    lives.heartbeat(false).await.unwrap();
    let settled = settlement(&store, "living", of_living.epoch, 0).await;
    assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
    let late = settlement(&store, "b", of_b.epoch, 0).await;
    assert_eq!(store.settle(&late).await.unwrap(), Settled::NotLeader);
}

pub async fn a_claim_says_whether_there_may_be_redeliveries(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let [g, other] = ["g", "other"].map(group);
    made(&store, &[g.clone(), other.clone()]).await;
    publish_some(&store, 3).await;
    let mut session = store.lock_session(&host("one")).await.unwrap();
    let of_other = claimed(&mut session, &other).await.unwrap();
    let led = claimed(&mut session, &g).await.unwrap();
    assert!(!led.may_have_redeliveries, "it is new");
    for (redeliveries, redelivered, found) in
        [(vec![redelivery(2, 2)], vec![], true), (vec![], vec![Position(2)], false)]
    {
        let epoch = store.cursor(&g).await.unwrap().epoch;
        let next = settlement(&store, "g", epoch, 3).await;
        let next = Settlement { redeliveries, redelivered, ..next };
        assert_eq!(store.settle(&next).await.unwrap(), Settled::Committed);
        let led = claimed(&mut session, &g).await.unwrap();
        assert_eq!(led.may_have_redeliveries, found);
        assert_eq!(store.redeliveries(&g).await.unwrap().is_empty(), !found);
    }
    assert!(!claimed(&mut session, &g).await.unwrap().may_have_deferred);
    let epoch = store.cursor(&g).await.unwrap().epoch;
    let deferred =
        Deferral { position: Position(3), due_at: time("2100-01-01T00:00:00Z"), late: false };
    let next = Settlement { deferred: vec![deferred], ..settlement(&store, "g", epoch, 3).await };
    assert_eq!(store.settle(&next).await.unwrap(), Settled::Committed);
    let led = claimed(&mut session, &g).await.unwrap();
    assert!(led.may_have_deferred && !led.may_have_redeliveries);
    // An attempt that is marked may be the first of a deferred event.
    store.record_attempt_started(&other, of_other.epoch, 0, mark(1, 1)).await.unwrap();
    assert!(claimed(&mut session, &other).await.unwrap().may_have_redeliveries);
}

pub async fn a_host_that_comes_back_finds_its_groups_taken(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let g = group("g");
    made(&store, std::slice::from_ref(&g)).await;
    let mut first = store.lock_session(&host("one")).await.unwrap();
    let mut second = store.lock_session(&host("two")).await.unwrap();
    let before = claimed(&mut first, &g).await.unwrap();
    drop(first);
    until("the other leads", async || claims(&mut second, &g).await).await;
    let mut again = store.lock_session(&host("one")).await.unwrap();
    assert!(!claims(&mut again, &g).await);
    assert!(store.begin_leadership(&g, &host("one")).await.is_err());
    let late = settlement(&store, "g", before.epoch, 0).await;
    assert_eq!(store.settle(&late).await.unwrap(), Settled::NotLeader);
    second.heartbeat(false).await.unwrap();
    give_back(&mut second, &g).await;
    assert!(claims(&mut again, &g).await);
}

pub async fn a_session_that_is_dropped_gives_its_groups_back(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    made(&store, &["a", "b"].map(group)).await;
    let mut first = store.lock_session(&host("one")).await.unwrap();
    let mut second = store.lock_session(&host("two")).await.unwrap();
    for name in ["a", "b"] {
        assert!(claims(&mut first, &group(name)).await);
    }
    drop(first);
    for name in ["a", "b"] {
        until(name, async || claims(&mut second, &group(name)).await).await;
    }
}

pub async fn giving_back_what_was_never_led_does_nothing(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    made(&store, &[group("g")]).await;
    let mut first = store.lock_session(&host("one")).await.unwrap();
    let mut second = store.lock_session(&host("two")).await.unwrap();
    assert!(claims(&mut first, &group("g")).await);
    give_back(&mut second, &group("g")).await;
    give_back(&mut second, &group("unknown")).await;
    assert!(!claims(&mut second, &group("g")).await);
    first.heartbeat(false).await.unwrap();
}

pub async fn a_release_under_a_stale_epoch_does_nothing(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let g = group("g");
    made(&store, std::slice::from_ref(&g)).await;
    let mut first = store.lock_session(&host("one")).await.unwrap();
    let mut second = store.lock_session(&host("two")).await.unwrap();
    let old = claimed(&mut first, &g).await.unwrap();
    drop(first);
    until("the other leads", async || claims(&mut second, &g).await).await;
    let led = claimed(&mut second, &g).await.unwrap();
    store.record_work_started(&g, led.epoch, 0).await.unwrap();
    store.record_attempt_started(&g, led.epoch, 0, mark(7, 3)).await.unwrap();
    let before = store.cursor(&g).await.unwrap();

    let mut late = store.lock_session(&host("one")).await.unwrap();
    for ended in [None, Some(old.epoch), Some(Epoch(led.epoch.0 + 1))] {
        release(&mut late, &g, ended).await;
        assert_eq!(store.cursor(&g).await.unwrap(), before);
        assert!(!claims(&mut late, &g).await, "the other leads still");
    }
    second.heartbeat(false).await.unwrap();
    // And one that did not end cleanly says nothing of what was in flight.
    give_back(&mut second, &g).await;
    let next = claimed(&mut late, &g).await.unwrap();
    assert_eq!((next.fruitless, next.mark), (1, Some(mark(7, 3))));
}

pub async fn a_thousand_cycles_leave_nothing_led(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    made(&store, &[group("g")]).await;
    let mut first = store.lock_session(&host("one")).await.unwrap();
    let mut second = store.lock_session(&host("two")).await.unwrap();
    for cycle in 0..1_000 {
        let (taker, other) =
            if cycle % 2 == 0 { (&mut first, &mut second) } else { (&mut second, &mut first) };
        let epoch = claimed(taker, &group("g")).await.map(|led| led.epoch);
        assert_eq!(epoch, Some(Epoch(cycle + 1)));
        assert!(!claims(other, &group("g")).await, "cycle {cycle}");
        release(taker, &group("g"), epoch).await;
    }
    first.heartbeat(false).await.unwrap();
}

pub async fn of_two_hosts_claiming_at_once_each_group_has_one(database: &dyn DeliveryDatabase) {
    const ROUNDS: usize = 20;
    let name = |round: usize, n: usize| group(&format!("g{round}.{n}"));
    let groups = move |round: usize| (0..50).map(|n| name(round, n)).collect::<Vec<_>>();
    let store = database.delivery().await;
    made(&store, &(0..ROUNDS).flat_map(groups).collect::<Vec<_>>()).await;
    let barrier = Arc::new(Barrier::new(2));
    let mut hosts = Vec::new();
    for name in ["one", "two"] {
        let store = database.delivery().await;
        let barrier = Arc::clone(&barrier);
        hosts.push(tokio::spawn(async move {
            let mut session = store.lock_session(&host(name)).await.unwrap();
            let mut got = BTreeMap::new();
            for round in 0..ROUNDS {
                barrier.wait().await;
                let groups = groups(round);
                let claims = session.claim(&groups).await.unwrap();
                let led = groups.into_iter().zip(claims).filter_map(|(group, claim)| match claim {
                    Claim::Led(leadership) => Some((group, leadership.epoch)),
                    _ => None,
                });
                got.extend(led);
            }
            // Nobody lets go before both have claimed.
            barrier.wait().await;
            session.heartbeat(false).await.unwrap();
            got
        }));
    }
    let (one, two) = (hosts.remove(0).await.unwrap(), hosts.remove(0).await.unwrap());
    for round in 0..ROUNDS {
        for group in groups(round) {
            let epochs = [one.get(&group), two.get(&group)];
            assert_eq!(epochs.into_iter().flatten().collect::<Vec<_>>(), [&Epoch(1)], "{group}");
        }
    }
}

pub async fn a_duty_has_one_holder_until_that_gives_it_back_or_ends(
    database: &dyn DeliveryDatabase,
) {
    let (one, two) = (database.delivery().await, database.delivery().await);
    let mut first = one.lock_session(&host("one")).await.unwrap();
    let mut second = two.lock_session(&host("two")).await.unwrap();
    for duty in Duty::ALL {
        assert!(first.claim_duty(duty).await.unwrap());
        assert!(first.claim_duty(duty).await.unwrap(), "it has it already");
        for _ in 0..3 {
            assert!(!second.claim_duty(duty).await.unwrap());
            second.release_duty(duty).await.unwrap();
        }
        first.heartbeat(true).await.unwrap();
        second.heartbeat(true).await.unwrap();
        // One release, however often it was claimed.
        first.release_duty(duty).await.unwrap();
        assert!(second.claim_duty(duty).await.unwrap());
        assert!(!first.claim_duty(duty).await.unwrap());
        second.heartbeat(true).await.unwrap();
    }
    drop(second);
    for duty in Duty::ALL {
        until("the session is over", async || first.claim_duty(duty).await.unwrap()).await;
    }
    // No group is called like it, and none goes with it.
    let named = group(Duty::Overview.name());
    made(&one, std::slice::from_ref(&named)).await;
    let mut third = two.lock_session(&host("three")).await.unwrap();
    assert!(claims(&mut third, &named).await);
    assert!(!third.claim_duty(Duty::Overview).await.unwrap());
}

pub async fn of_two_hosts_claiming_a_duty_at_once_one_has_it(database: &dyn DeliveryDatabase) {
    const ROUNDS: usize = 50;
    let barrier = Arc::new(Barrier::new(2));
    let mut hosts = Vec::new();
    for name in ["one", "two"] {
        let (store, barrier) = (database.delivery().await, Arc::clone(&barrier));
        hosts.push(tokio::spawn(async move {
            let mut session = store.lock_session(&host(name)).await.unwrap();
            let mut had = Vec::new();
            for _ in 0..ROUNDS {
                barrier.wait().await;
                had.push(session.claim_duty(Duty::Overview).await.unwrap());
                // Nobody gives it back before both have claimed it.
                barrier.wait().await;
                session.release_duty(Duty::Overview).await.unwrap();
            }
            had
        }));
    }
    let (one, two) = (hosts.remove(0).await.unwrap(), hosts.remove(0).await.unwrap());
    for (round, (one, two)) in one.into_iter().zip(two).enumerate() {
        assert!(one != two, "round {round}: {one} and {two}");
    }
}

pub async fn many_groups_are_made_and_changed_at_once(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let name = |n: usize| format!("g{n:03}");
    let mut all: Vec<_> = (0..300).map(|n| settings(&name(n))).collect();
    all[7].partitions = 3;
    store.ensure_groups(&all[..200]).await.unwrap();
    let led = store.begin_leadership(&group("g000"), &host("one")).await.unwrap();
    assert!(led.registered.is_as(&all[0]));
    all[0].subscription = Subscription::new(["a", "b*"]).unwrap();
    all[9].partitions = 2;
    store.ensure_groups(&all).await.unwrap();
    store.ensure_groups(&all).await.unwrap();
    for settings in &all {
        let row = store.begin_leadership(&settings.name, &host("one")).await.unwrap();
        assert!(row.registered.is_as(settings), "{settings:?} is {:?}", row.registered);
    }
    assert_eq!(store.group_states().await.unwrap().len(), 305, "with their partitions");
    let other = GroupRegistration { tenant: tenant("other"), ..settings("g100") };
    let error = store.ensure_groups(&[settings("new"), other]).await.unwrap_err();
    assert!(error.to_string().contains("`g100` belongs to no tenant"), "{error}");
}

pub async fn what_is_watched_of_groups_has_a_version(database: &dyn TestDatabase) {
    let (store, watching) = (database.handle().await, database.handle().await);
    let Some(mut version) = watching.control_version().await.unwrap() else { return };
    let mut session = store.lock_session(&host("one")).await.unwrap();
    let mut changed = async |what: &str, expected: bool| {
        let now = watching.control_version().await.unwrap().unwrap();
        assert_eq!(now != version, expected, "{what}: {version} to {now}");
        version = now;
    };
    changed("nothing", false).await;
    store.ensure_group(&settings("g")).await.unwrap();
    changed("a new group", true).await;
    let epoch = claimed(&mut session, &group("g")).await.unwrap().epoch;
    changed("a claim", true).await;
    store.settle(&settlement(&store, "g", epoch, 0).await).await.unwrap();
    store.record_work_started(&group("g"), epoch, 1).await.unwrap();
    store.ensure_group(&settings("g")).await.unwrap();
    session.heartbeat(true).await.unwrap();
    changed("a settlement, and what leaders write", false).await;
    store.record_trip(&group("g"), epoch, Some("it fails")).await.unwrap();
    changed("a trip", true).await;
    store.pause(&group("g"), "because").await.unwrap();
    changed("a pause", true).await;
    store.resume(&group("g")).await.unwrap();
    changed("the end of a pause", true).await;
    store.seek(&group("g"), Start::Latest).await.unwrap();
    changed("a seek", true).await;
    give_back(&mut session, &group("g")).await;
    changed("a release", true).await;
    store.remove_group(&group("g"), true).await.unwrap();
    changed("its end", true).await;
}

pub async fn a_leader_is_shown_only_while_it_holds_the_lock(database: &dyn TestDatabase) {
    let (leading, watching) = (database.handle().await, database.handle().await);
    let name = group("g");
    leading.ensure_group(&settings("g")).await.unwrap();
    assert_eq!(watching.group_status(&name).await.unwrap().leader, None);

    let mut session = leading.lock_session(&host("one")).await.unwrap();
    assert!(claims(&mut session, &name).await);
    let leader = watching.group_status(&name).await.unwrap().leader.unwrap();
    assert_eq!(leader.host, host("one"));
    assert_eq!(watching.status().await.unwrap().groups[0].leader, Some(leader));

    // As a process that dies does.
    drop(session);
    let gone = async || watching.group_status(&name).await.unwrap().leader.is_none();
    until("the lock is free", gone).await;
    assert_eq!(watching.status().await.unwrap().groups[0].leader, None);

    let mut session = leading.lock_session(&host("one")).await.unwrap();
    let epoch = claimed(&mut session, &name).await.unwrap().epoch;
    release(&mut session, &name, Some(epoch)).await;
    assert_eq!(watching.group_status(&name).await.unwrap().leader, None, "it ended cleanly");
}
