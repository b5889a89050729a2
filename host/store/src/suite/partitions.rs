//! Groups that are split: each partition has its keys, its cursor and its leader, and
//! what belongs to the group stays the group's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::samples::{
    claimed, claims, dead, event, fetch_all, give_back, group, head, host, letters, mark, publish,
    redelivery, scoped_write, settings, settlement, tenant, until,
};
use super::{DeliveryDatabase, TestDatabase};
use crate::{
    DeliveryStore, Fetch, GroupRegistration, GroupState, LockSession, Redelivery, Retention,
    Roster, Runners, Settled, Settlement, Start, StoreError, Subscription,
};
use event_host_core::event::{Epoch, Event, GroupName, LogEvent, Partition, Position, Tenant};

fn split(name: &str, partitions: u32) -> GroupRegistration {
    GroupRegistration { partitions, ..settings(name) }
}

fn part(name: &str, number: u32) -> GroupName {
    group(name).partition(number)
}

fn keyed(id: usize, key: Option<&str>) -> Event {
    Event { partitionkey: key.map(str::to_owned), ..event("some", &id.to_string()) }
}

/// Events of a few keys, and some without one.
fn mixed(count: usize) -> Vec<Event> {
    let keys = [Some("a"), Some("b"), None, Some("-"), Some("\u{1F980}"), Some("key-12"), None];
    (0..count).map(|n| keyed(n, keys[n % keys.len()])).collect()
}

async fn read(
    store: &Arc<impl DeliveryStore + ?Sized>,
    name: &GroupName,
    partition: Option<Partition>,
    (after, up_to): (Position, Position),
    max_events: usize,
) -> Vec<LogEvent> {
    let (tenant, subscription) = (Tenant::none(), Subscription::all());
    let mut after = after;
    let mut events = Vec::new();
    while after < up_to {
        let fetch = Fetch {
            group: name,
            tenant: &tenant,
            subscription: &subscription,
            partition,
            after,
            up_to,
            max_events,
            max_bytes: usize::MAX,
        };
        let fetched = store.fetch(fetch).await.unwrap();
        assert!(fetched.events.len() <= max_events);
        assert!(fetched.scanned_to > after && fetched.scanned_to <= up_to, "it goes on");
        after = fetched.scanned_to;
        events.extend(fetched.events.into_iter().map(Arc::unwrap_or_clone));
    }
    events
}

/// All that a partition has.
async fn all_of(
    store: &Arc<impl DeliveryStore + ?Sized>,
    name: &str,
    number: u32,
    of: u32,
) -> Vec<LogEvent> {
    let up_to = store.safe_position().await.unwrap();
    let partition = Some(Partition { number, of });
    read(store, &part(name, number), partition, (Position::ZERO, up_to), 100_000).await
}

async fn lead(store: &Arc<impl DeliveryStore + ?Sized>, part: &GroupName) -> Epoch {
    store.begin_leadership(part, &host("one")).await.unwrap().epoch
}

/// The next settlement of a part of a group.
async fn of_part(
    store: &Arc<impl DeliveryStore + ?Sized>,
    part: &GroupName,
    epoch: Epoch,
    position: Position,
) -> Settlement {
    let number = store.cursor(part).await.unwrap().settled + 1;
    let any = settlement(store, part.whole(), epoch, position.0).await;
    Settlement { group: part.clone(), number, ..any }
}

fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result.unwrap_err() {
        StoreError::Refused(why) => why,
        other => panic!("{other}"),
    }
}

pub async fn each_event_is_in_one_partition_which_its_key_or_its_position_says(
    database: &dyn DeliveryDatabase,
) {
    let store = database.delivery().await;
    let mut events = mixed(300);
    // One kept otherwise than it came is in some partition too.
    events.push(keyed(300, Some("a \u{fffd} b")));
    // Keys of every length that a hash may treat otherwise.
    let long = "0123456789 \u{e9}\u{4e2d}\u{1F980}".repeat(3);
    let ends = long.char_indices().skip(1).map(|(end, _)| end);
    events.extend(ends.map(|end| keyed(301 + end, Some(&long[..end]))));
    let published = publish(&store, &events).await;
    let up_to = store.safe_position().await.unwrap();
    for of in [1, 2, 3, 16] {
        let mut found = BTreeSet::new();
        for number in 0..of {
            let partition = Partition { number, of };
            for max_events in [1, 7, 100_000] {
                let name = part("g", number);
                let all = (Position::ZERO, up_to);
                let theirs = read(&store, &name, Some(partition), all, max_events).await;
                assert!(theirs.is_sorted_by_key(|event| event.position));
                for event in &theirs {
                    let key = event.event.partitionkey.as_deref();
                    assert!(partition.holds(key, event.position), "{key:?} in {partition:?}");
                }
                let theirs: BTreeSet<Position> = theirs.iter().map(|e| e.position).collect();
                if max_events == 1 {
                    assert!(found.is_disjoint(&theirs));
                    found.extend(theirs);
                } else {
                    assert!(found.is_superset(&theirs));
                }
            }
        }
        assert!(found.iter().eq(&published), "of {of} partitions");
    }
}

pub async fn partitions_have_cursors_leaders_and_redeliveries_of_their_own(
    database: &dyn DeliveryDatabase,
) {
    let store = database.delivery().await;
    publish(&store, &mixed(30)).await;
    store.ensure_group(&split("g", 3)).await.unwrap();
    let [one, two] = [part("g", 0), part("g", 1)];
    let mut sessions = Vec::new();
    for name in ["one", "two"] {
        sessions.push(store.lock_session(&host(name)).await.unwrap());
    }
    let first = claimed(&mut sessions[0], &one).await.unwrap().epoch;
    let second = claimed(&mut sessions[1], &two).await.expect("it is led by itself").epoch;
    assert!(!claims(&mut sessions[1], &one).await);
    let parking = Settlement {
        redeliveries: vec![redelivery(3, 2)],
        ..of_part(&store, &one, first, Position(9)).await
    };
    assert_eq!(store.settle(&parking).await.unwrap(), Settled::Committed);
    let other = of_part(&store, &two, second, Position(4)).await;
    assert_eq!(store.settle(&other).await.unwrap(), Settled::Committed);
    let cursor = async |part| store.cursor(part).await.unwrap().position;
    assert_eq!((cursor(&one).await, cursor(&two).await), (Position(9), Position(4)));
    assert_eq!(cursor(&part("g", 2)).await, Position::ZERO);
    let parked = store.redeliveries(&one).await.unwrap();
    assert_eq!(parked.iter().map(|one| one.position.0).collect::<Vec<_>>(), [3]);
    assert!(store.redeliveries(&two).await.unwrap().is_empty());

    // A new leader of one fences nobody of the other.
    lead(&store, &one).await;
    let late = of_part(&store, &one, first, Position(20)).await;
    assert_eq!(store.settle(&late).await.unwrap(), Settled::NotLeader);
    let other = of_part(&store, &two, second, Position(20)).await;
    assert_eq!(store.settle(&other).await.unwrap(), Settled::Committed);
}

pub async fn dead_letters_and_state_are_the_whole_groups(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish(&store, &mixed(30)).await;
    store.ensure_group(&split("g", 3)).await.unwrap();
    let mut buried = 0;
    for number in 0..3 {
        let name = part("g", number);
        let epoch = lead(&store, &name).await;
        let theirs = all_of(&store, "g", number, 3).await;
        buried += theirs.len();
        let settlement = Settlement {
            dead_letters: theirs.into_iter().map(dead).collect(),
            state: vec![scoped_write(&format!("key:{number}"), "n", Some(b"1"))],
            ..of_part(&store, &name, epoch, Position(30)).await
        };
        assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
    }
    assert_eq!(buried, 30);
    let letters = letters(&store, "g").await;
    assert_eq!(letters.len(), 30);
    assert!(letters.iter().all(|letter| letter.group == group("g")));
    for name in [group("g"), part("g", 0), part("g", 2)] {
        assert_eq!(store.state_key_count(&name).await.unwrap(), 3);
        let value = store.state_get(&name, "key:1", "n").await.unwrap();
        assert_eq!(value.as_deref(), Some(&b"1"[..]));
        assert_eq!(store.state_keys(&name, "key:2", "", 10).await.unwrap(), ["n"]);
    }

    // A replay is in the partition of its key, and found again there.
    let letter = letters.iter().find(|l| l.event.event.partitionkey.as_deref() == Some("a"));
    let replayed = store.replay(letter.unwrap().id, None, None).await.unwrap();
    assert_eq!(replayed.group, group("g"));
    let number = Partition::number_of(Some("a"), replayed.position, 3);
    for other in 0..3 {
        let name = part("g", other);
        let up_to = store.safe_position().await.unwrap();
        let partition = Some(Partition { number: other, of: 3 });
        let found = read(&store, &name, partition, (Position(30), up_to), 100).await;
        assert_eq!(found.len(), usize::from(other == number));
    }
    let found = store.fetch_at(&part("g", number), &[replayed.position], 1).await.unwrap();
    assert_eq!(found.events.len(), 1);
}

pub async fn status_has_the_partitions_and_their_sums(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish(&store, &mixed(70)).await;
    store.ensure_group(&split("g", 2)).await.unwrap();
    store.ensure_group(&settings("other")).await.unwrap();
    let one = part("g", 0);
    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert!(claims(&mut session, &one).await);
    let epoch = lead(&store, &one).await;
    let failures = BTreeMap::from([("trap".to_owned(), 4)]);
    let settled = Settlement {
        redeliveries: vec![redelivery(3, 2)],
        failures: Some(failures.clone()),
        ..of_part(&store, &one, epoch, Position(70)).await
    };
    assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
    let status = store.status().await.unwrap();
    let names: Vec<&str> = status.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["g", "other"]);
    let behind = all_of(&store, "g", 1, 2).await.len();
    for status in [&status.groups[0], &store.group_status(&group("g")).await.unwrap()] {
        assert_eq!((status.position, status.leader.is_some()), (Position::ZERO, false));
        assert_eq!(status.lag_events, i64::try_from(behind).unwrap());
        assert!(status.lag_seconds > 0.0);
        assert_eq!((status.parked, status.retries_pending), (1, 1));
        assert_eq!((&status.failures, status.state), (&failures, GroupState::Running));
        let [first, second] = &status.partitions[..] else { panic!("{status:?}") };
        assert_eq!((first.partition, first.position), (0, Position(70)));
        assert_eq!((first.lag_events, first.parked, first.epoch), (0, 1, epoch));
        assert_eq!(first.leader.as_ref().unwrap().host, host("one"));
        assert_eq!((second.partition, second.position), (1, Position::ZERO));
        assert!(second.leader.is_none() && second.settled_at.is_none());
        assert_eq!(second.lag_events, status.lag_events);
    }
    assert!(status.groups[1].partitions.is_empty());
    store.set_note(std::slice::from_ref(&one), Some("it holds back")).await.unwrap();
    let remark = async || store.group_status(&group("g")).await.unwrap().note;
    assert_eq!(remark().await.as_deref(), Some("g#0: it holds back"));
    store.set_note(&[group("g")], Some("it does not load")).await.unwrap();
    assert_eq!(remark().await.as_deref(), Some("it does not load"));
    store.set_note(&[group("g")], None).await.unwrap();
    assert_eq!(remark().await, None);
    store.record_trip(&one, epoch, Some("it fails everything")).await.unwrap();
    let status = store.group_status(&group("g")).await.unwrap();
    assert_eq!(status.state, GroupState::Tripped);
    assert_eq!(status.reason.as_deref(), Some("g#0: it fails everything"));
}

pub async fn what_an_operator_does_is_done_to_all_partitions(database: &dyn TestDatabase) {
    let store = database.handle().await;
    publish(&store, &mixed(10)).await;
    store.ensure_group(&split("g", 2)).await.unwrap();
    store.ensure_group(&settings("gg")).await.unwrap();
    let parts = [part("g", 0), part("g", 1)];
    let epochs = [lead(&store, &parts[0]).await, lead(&store, &parts[1]).await];
    for (part, epoch) in parts.iter().zip(epochs) {
        let parking = Settlement {
            redeliveries: vec![redelivery(8, 2), redelivery(2, 2)],
            ..of_part(&store, part, epoch, Position(10)).await
        };
        // As no leader would, of the same events: it is only counted here.
        assert_eq!(store.settle(&parking).await.unwrap(), Settled::Committed);
    }
    let states = async || {
        let controls = store.group_states().await.unwrap().into_iter();
        let theirs = controls.filter(|control| parts.contains(&control.name));
        theirs.map(|control| control.state).collect::<Vec<_>>()
    };
    store.pause(&group("g"), "for now").await.unwrap();
    assert_eq!(states().await, [GroupState::Paused; 2]);
    assert_eq!(store.group_status(&group("gg")).await.unwrap().state, GroupState::Running);
    store.resume(&group("g")).await.unwrap();
    assert_eq!(states().await, [GroupState::Running; 2]);

    assert_eq!(store.seek(&group("g"), Start::Position(Position(5))).await.unwrap(), Position(5));
    for (part, epoch) in parts.iter().zip(epochs) {
        let cursor = store.cursor(part).await.unwrap();
        assert!(cursor.epoch > epoch && cursor.position == Position(5));
        let late = of_part(&store, part, epoch, Position(10)).await;
        assert_eq!(store.settle(&late).await.unwrap(), Settled::NotLeader);
        let parked = store.redeliveries(part).await.unwrap();
        assert_eq!(parked.iter().map(|one| one.position.0).collect::<Vec<_>>(), [2]);
    }

    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert!(claims(&mut session, &parts[1]).await);
    assert!(refused(store.remove_group(&group("g"), false).await).contains("is led"));
    give_back(&mut session, &parts[1]).await;
    assert_eq!(store.remove_group(&group("g"), false).await.unwrap().parked, 2);
    let names = store.group_states().await.unwrap().into_iter().map(|control| control.name);
    assert!(names.eq([group("gg")]), "and nothing is left of it");
    store.ensure_group(&split("g", 2)).await.unwrap();
    assert_eq!(store.cursor(&parts[0]).await.unwrap().position, Position::ZERO);
}

pub async fn new_partitions_begin_where_the_group_is_told_and_are_paused_with_it(
    database: &dyn DeliveryDatabase,
) {
    let store = database.delivery().await;
    publish(&store, &mixed(10)).await;
    let start = Start::Position(Position(4));
    store.ensure_group(&GroupRegistration { start, ..split("g", 2) }).await.unwrap();
    assert_eq!(store.cursor(&part("g", 1)).await.unwrap().position, Position(4));
    store.pause(&group("g"), "for now").await.unwrap();
    store.ensure_group(&split("g", 3)).await.unwrap();
    let controls = store.group_states().await.unwrap();
    let paused = controls.iter().filter(|control| control.state == GroupState::Paused).count();
    assert_eq!(paused, 4, "the group and its partitions");
    let acme = GroupRegistration { tenant: tenant("acme"), ..split("g", 4) };
    assert!(refused(store.ensure_group(&acme).await).contains("belongs to"));
}

/// Leads a part of a group once: handles, or parks, events up to somewhere.
async fn work(
    store: &Arc<impl DeliveryStore + ?Sized>,
    name: &GroupName,
    partition: Option<Partition>,
    handled: &mut BTreeMap<Position, u32>,
    random: &mut fastrand::Rng,
) {
    let last = store.safe_position().await.unwrap();
    let epoch = lead(store, name).await;
    let cursor = store.cursor(name).await.unwrap().position;
    let up_to = Position(random.i64(cursor.0..=last.0));
    let parked = store.redeliveries(name).await.unwrap();
    let theirs = |key: Option<&str>, position| {
        partition.is_none_or(|partition| partition.holds(key, position))
    };
    assert!(parked.iter().all(|one| theirs(one.key.as_deref(), one.position)), "{name}");
    let positions: Vec<Position> = parked.iter().map(|one| one.position).collect();
    let found = store.fetch_at(name, &positions, usize::MAX).await.unwrap();
    assert_eq!(found.events.len(), parked.len());
    let mut settlement = of_part(store, name, epoch, up_to).await;
    let mut now = |position| *handled.entry(position).or_insert(0) += 1;
    for one in parked {
        if random.bool() {
            settlement.redelivered.push(one.position);
            now(one.position);
        }
    }
    for event in read(store, name, partition, (cursor, up_to), 1_000).await {
        if random.u8(0..4) == 0 {
            let key = event.event.partitionkey.clone();
            settlement.redeliveries.push(Redelivery { key, ..redelivery(event.position.0, 2) });
        } else {
            now(event.position);
        }
    }
    assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
}

pub async fn a_group_that_is_repartitioned_loses_and_repeats_nothing(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut handled = BTreeMap::new();
    let mut last = 0;
    let mut highest = Epoch(0);
    for partitions in [1, 3, 5, 2, 1, 4, 4, 16, 1] {
        last += publish(&store, &mixed(random.usize(1..80))).await.len();
        store.ensure_group(&split("g", partitions)).await.unwrap();
        for number in 0..partitions {
            let (name, partition) = match partitions {
                1 => (group("g"), None),
                of => (part("g", number), Some(Partition { number, of })),
            };
            let epoch = store.cursor(&name).await.unwrap().epoch;
            assert!(epoch >= highest, "an epoch came again, with seed {seed}");
            work(&store, &name, partition, &mut handled, &mut random).await;
        }
        let status = store.group_status(&group("g")).await.unwrap();
        highest = status.epoch;
        let waiting = usize::try_from(status.lag_events + status.parked).unwrap();
        assert_eq!(handled.len() + waiting, last, "with seed {seed}");
        let parts = if partitions == 1 { 0 } else { usize::try_from(partitions).unwrap() };
        assert_eq!(status.partitions.len(), parts);
    }
    assert!(handled.values().all(|times| *times == 1), "twice, with seed {seed}: {handled:?}");
}

/// What waits in the parts of a group, by position: the attempt that comes next.
async fn waiting(
    store: &Arc<impl DeliveryStore + ?Sized>,
    name: &str,
    partitions: u32,
) -> BTreeMap<i64, u32> {
    let mut waiting = BTreeMap::new();
    for number in 0..partitions {
        let partition = (partitions > 1).then_some(Partition { number, of: partitions });
        let part = partition.map_or_else(|| group(name), |_| part(name, number));
        for one in store.redeliveries(&part).await.unwrap() {
            let is_in = |partition: Partition| partition.holds(one.key.as_deref(), one.position);
            assert!(partition.is_none_or(is_in), "{one:?} in {part}");
            assert_eq!(waiting.insert(one.position.0, one.attempt.0), None, "{one:?} twice");
        }
    }
    waiting
}

fn some_and_other(count: usize) -> Vec<Event> {
    let types = ["some", "other", "third"];
    let events = mixed(count).into_iter().enumerate();
    let typed =
        |(n, event): (usize, Event)| Event { event_type: types[n / 7 % 3].to_owned(), ..event };
    events.map(typed).collect()
}

pub async fn a_new_subscription_that_comes_with_other_partitions_holds_for_all_above_each_cursor(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let subscribed = |types: &[&str]| Subscription::new(types.iter().copied()).unwrap();
    let before = GroupRegistration { subscription: subscribed(&["some"]), ..split("g", 2) };
    store.ensure_group(&before).await.unwrap();
    let events = some_and_other(84);
    publish(&store, &events).await;
    store.publish(&tenant("acme"), &some_and_other(21)).await.unwrap();
    // Two that are addressed, one of them to another group.
    for name in ["g", "h"] {
        let all = GroupRegistration { subscription: subscribed(&["*"]), ..settings("h") };
        store.ensure_group(&all).await.unwrap();
        let part = if name == "g" { part("g", 1) } else { group("h") };
        let epoch = lead(&store, &part).await;
        let position = store.cursor(&part).await.unwrap().position;
        let third = fetch_all(&store, "h", 0).await.remove(14);
        let settled = Settlement {
            dead_letters: vec![dead(third)],
            ..of_part(&store, &part, epoch, position).await
        };
        assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
        let letter = letters(&store, name).await.remove(0);
        store.replay(letter.id, None, None).await.unwrap();
    }
    let last = store.safe_position().await.unwrap();
    let cursors = [last, Position(10)];
    for (number, cursor) in (0..).zip(cursors) {
        let name = part("g", number);
        let epoch = lead(&store, &name).await;
        let settled = of_part(&store, &name, epoch, cursor).await;
        assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
    }

    let after = GroupRegistration { subscription: subscribed(&["some", "oth*"]), ..split("g", 4) };
    store.ensure_group(&after).await.unwrap();
    let mut expected = BTreeMap::new();
    for event in fetch_all(&store, "g", 0).await {
        let number = Partition::number_of(event.event.partitionkey.as_deref(), event.position, 2);
        let is_new = event.position > cursors[usize::try_from(number).unwrap()];
        if is_new && (event.event.event_type != "third" || event.deliver_to.is_some()) {
            expected.insert(event.position.0, 1);
        }
    }
    let types: BTreeSet<&str> = events.iter().map(|event| event.event_type.as_str()).collect();
    assert_eq!(types.len(), 3);
    assert!(expected.len() > 5, "enough is behind: {expected:?}");
    assert_eq!(waiting(&store, "g", 4).await, expected);
    for number in 0..4 {
        assert_eq!(store.cursor(&part("g", number)).await.unwrap().position, last);
    }
    let status = store.group_status(&group("g")).await.unwrap();
    assert_eq!(status.subscribe, ["some", "oth*"]);
}

pub async fn what_is_no_longer_subscribed_comes_again_after_a_repartition_only_where_it_was_retried(
    database: &dyn DeliveryDatabase,
) {
    let store = database.delivery().await;
    publish(&store, &some_and_other(84)).await;
    store.ensure_group(&split("g", 2)).await.unwrap();
    let theirs = all_of(&store, "g", 0, 2).await;
    // One is parked, the one after it is retried at the cursor; neither is wanted any more.
    let unwanted = theirs.iter().filter(|event| event.event.event_type == "some");
    let [parked, retried] = [0, 1].map(|n| unwanted.clone().nth(n).unwrap().position);
    let cursor = Position(retried.0 - 1);
    let key = |position| {
        let event = theirs.iter().find(|event| event.position == position).unwrap();
        event.event.partitionkey.clone()
    };
    let name = part("g", 0);
    let epoch = lead(&store, &name).await;
    let settled = Settlement {
        head: Some(head(retried.0, 3)),
        redeliveries: vec![Redelivery { key: key(parked), ..redelivery(parked.0, 2) }],
        ..of_part(&store, &name, epoch, cursor).await
    };
    assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
    let ahead = part("g", 1);
    let epoch = lead(&store, &ahead).await;
    let settled = of_part(&store, &ahead, epoch, Position(84)).await;
    assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);

    let other = Subscription::new(["other"]).unwrap();
    let wanted = theirs.iter().filter(|event| event.event.event_type == "other");
    let mut expected: BTreeMap<i64, u32> =
        wanted.filter(|event| event.position > cursor).map(|event| (event.position.0, 1)).collect();
    assert!(expected.len() > 5);
    expected.extend([(parked.0, 2), (retried.0, 3)]);
    for partitions in [3, 1, 2] {
        let settings = GroupRegistration { subscription: other.clone(), ..split("g", partitions) };
        store.ensure_group(&settings).await.unwrap();
        assert_eq!(waiting(&store, "g", partitions).await, expected);
    }
    let failures = store.redeliveries(&part("g", 0)).await.unwrap().into_iter();
    let failures = failures.chain(store.redeliveries(&part("g", 1)).await.unwrap());
    assert_eq!(failures.filter(|one| one.failure.is_some()).count(), 2);
}

pub async fn what_failed_so_far_is_counted_however_a_group_is_split(database: &dyn TestDatabase) {
    let store = database.handle().await;
    store.ensure_group(&split("g", 3)).await.unwrap();
    for number in 0..3 {
        let name = part("g", number);
        let epoch = lead(&store, &name).await;
        let settled = Settlement {
            failures: Some(BTreeMap::from([("trap".to_owned(), 2)])),
            ..of_part(&store, &name, epoch, Position::ZERO).await
        };
        assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
    }
    for partitions in [3, 2, 1, 5] {
        store.ensure_group(&split("g", partitions)).await.unwrap();
        let status = store.group_status(&group("g")).await.unwrap();
        assert_eq!(status.failures, BTreeMap::from([("trap".to_owned(), 6)]));
    }
}

pub async fn a_group_is_not_repartitioned_under_a_leader(database: &dyn DeliveryDatabase) {
    let (store, other) = (database.delivery().await, database.delivery().await);
    publish(&store, &mixed(10)).await;
    store.ensure_group(&split("g", 2)).await.unwrap();
    let name = part("g", 1);
    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert!(claims(&mut session, &name).await);
    let epoch = lead(&store, &name).await;
    for partitions in [1, 3] {
        let why = refused(other.ensure_group(&split("g", partitions)).await);
        assert!(why.contains("while a part of it is led"), "{why}");
    }
    other.ensure_group(&split("g", 2)).await.unwrap();
    let settled = of_part(&store, &name, epoch, Position(5)).await;
    assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed, "nothing changed");
    give_back(&mut session, &name).await;
    other.ensure_group(&split("g", 3)).await.unwrap();
    let late = of_part(&store, &name, epoch, Position(10)).await;
    assert_eq!(store.settle(&late).await.unwrap(), Settled::NotLeader, "of before the split");
}

pub async fn what_is_retried_at_a_cursor_keeps_its_attempts_when_a_group_is_repartitioned(
    database: &dyn DeliveryDatabase,
) {
    let store = database.delivery().await;
    publish(&store, &mixed(10)).await;
    store.ensure_group(&settings("g")).await.unwrap();
    let epoch = lead(&store, &group("g")).await;
    let settled = Settlement {
        head: Some(head(5, 3)),
        ..of_part(&store, &group("g"), epoch, Position(4)).await
    };
    assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
    store.ensure_group(&split("g", 2)).await.unwrap();
    let key = mixed(5)[4].partitionkey.clone();
    let name = part("g", Partition::number_of(key.as_deref(), Position(5), 2));
    let expected = Redelivery { key: key.clone(), ..redelivery(5, 3) };
    let parked = store.redeliveries(&name).await.unwrap();
    assert_eq!(parked, std::slice::from_ref(&expected));
    assert_eq!(store.cursor(&name).await.unwrap().position, Position(5));

    // One that is marked as begun, of what is parked: it begins once more.
    let epoch = lead(&store, &name).await;
    store.record_attempt_started(&name, epoch, 0, mark(5, 3)).await.unwrap();
    store.ensure_group(&settings("g")).await.unwrap();
    let parked = store.redeliveries(&group("g")).await.unwrap();
    assert_eq!(parked, [expected]);
    let led = store.begin_leadership(&group("g"), &host("two")).await.unwrap();
    assert_eq!((led.head, led.mark, led.position), (None, None, Position(5)));
}

pub async fn two_that_repartition_a_group_at_once_do_it_once(database: &dyn TestDatabase) {
    let mut handles = Vec::new();
    for _ in 0..4 {
        handles.push(database.handle().await);
    }
    handles[0].ensure_group(&split("g", 2)).await.unwrap();
    let at_once = handles.iter().map(async |store| {
        // One that finds the locks taken for a moment is refused, and tries again.
        until("it is split", async || store.ensure_group(&split("g", 4)).await.is_ok()).await;
    });
    futures_util::future::join_all(at_once).await;
    let status = handles[0].group_status(&group("g")).await.unwrap();
    assert_eq!((status.partitions.len(), status.epoch), (4, Epoch(1)));
}

pub async fn a_partition_that_is_behind_keeps_events_in_the_log(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    publish(&store, &mixed(10)).await;
    store.ensure_group(&split("g", 2)).await.unwrap();
    for (number, position) in [(0, 10), (1, 4)] {
        let name = part("g", number);
        let epoch = lead(&store, &name).await;
        let settled = of_part(&store, &name, epoch, Position(position)).await;
        assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
    }
    let nothing_stays = Retention { max_age: Some(std::time::Duration::ZERO), max_bytes: None };
    until("the log is pinned", async || {
        let enforced = store.enforce_retention(&nothing_stays).await.unwrap();
        enforced.pinned_by == Some(part("g", 1))
    })
    .await;
    let up_to = store.safe_position().await.unwrap();
    let left = read(&store, &group("g"), None, (Position(4), up_to), 100).await;
    assert_eq!(left.len(), 6, "what it has before it is there");
}

pub async fn a_group_that_keeps_too_much_lets_go_with_all_its_partitions(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    publish(&store, &mixed(10)).await;
    store.ensure_group(&split("g", 2)).await.unwrap();
    let mut epochs = Vec::new();
    for (number, position) in [(0, 10), (1, 4)] {
        let name = part("g", number);
        let epoch = lead(&store, &name).await;
        let settled = of_part(&store, &name, epoch, Position(position)).await;
        assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
        epochs.push(epoch);
    }
    let nothing_stays = Retention { max_age: Some(std::time::Duration::ZERO), max_bytes: None };
    until("the log is pinned", async || {
        let enforced = store.enforce_retention(&nothing_stays).await.unwrap();
        enforced.pinned_by == Some(part("g", 1))
    })
    .await;
    let nobody = Tenant::none();
    let unpin = async |tenant: &Tenant, retention: &Retention, most: u64| {
        store.unpin(tenant, retention, most).await.unwrap()
    };
    assert_eq!(unpin(&nobody, &nothing_stays, u64::MAX).await, None, "it may keep as much");
    assert_eq!(unpin(&nobody, &Retention::FOREVER, 0).await, None, "nothing is to go");
    assert_eq!(unpin(&"other".parse().unwrap(), &nothing_stays, 0).await, None, "another's");
    let pin = unpin(&nobody, &nothing_stays, 0).await.unwrap();
    assert_eq!((pin.group, pin.position), (part("g", 1), Position(4)));
    assert_eq!(unpin(&nobody, &nothing_stays, 0).await, None, "once for each group");
    let status = store.group_status(&group("g")).await.unwrap();
    assert_eq!((status.state, status.unpinned), (GroupState::Paused, true));
    // What its leaders have read is refused.
    let late = of_part(&store, &part("g", 1), epochs[1], Position(10)).await;
    assert_eq!(store.settle(&late).await.unwrap(), Settled::NotLeader);

    let mut dropped = None;
    until("what it kept is gone", async || {
        let enforced = store.enforce_retention(&nothing_stays).await.unwrap();
        dropped = enforced.dropped_up_to.or(dropped);
        dropped.is_some()
    })
    .await;
    let refused = store.resume(&group("g")).await.unwrap_err().to_string();
    assert!(refused.contains("--accept-loss") && refused.contains("position 10"), "{refused}");
    let gone = store.resume_without_what_is_gone(&group("g")).await.unwrap();
    assert_eq!(gone.map(|gone| gone.up_to), Some(Position(10)));
    let status = store.group_status(&group("g")).await.unwrap();
    assert_eq!((status.state, status.unpinned, status.reason), (GroupState::Running, false, None));
    // It keeps again what it has before it.
    publish(&store, &mixed(3)).await;
    until("the log is pinned again", async || {
        let enforced = store.enforce_retention(&nothing_stays).await.unwrap();
        enforced.pinned_by.is_some()
    })
    .await;
}

pub async fn hosts_that_share_a_group_know_of_each_other_while_they_live(
    database: &dyn DeliveryDatabase,
) {
    /// Who else runs each group that this session announced, and who leads it; the same as
    /// before where nothing changed.
    async fn look(
        session: &mut Box<dyn LockSession>,
        known: &mut Roster,
    ) -> Vec<(Vec<String>, Option<String>)> {
        if let Some(roster) = session.roster().await.unwrap() {
            *known = roster;
        }
        let look = |group: &Runners| (group.others.to_vec(), group.leader.clone());
        known.groups.iter().map(look).collect()
    }
    let (store, other) = (database.delivery().await, database.delivery().await);
    let [g, h] = ["g", "h"].map(|name| split(name, 2));
    store.ensure_groups(&[g, h]).await.unwrap();
    let [g, h] = [part("g", 1), part("h", 1)];
    let both = [g.clone(), h.clone()];
    let nobody = (Vec::new(), None);
    let by = |name: &str| (vec![host(name).id], None);
    let (mut of_one, mut of_two) = (Roster::default(), Roster::default());
    let mut one = store.lock_session(&host("one")).await.unwrap();
    one.announce(&both).await.unwrap();
    assert_eq!(look(&mut one, &mut of_one).await, [nobody.clone(), nobody.clone()]);
    let mut two = other.lock_session(&host("two")).await.unwrap();
    assert_eq!(
        look(&mut one, &mut of_one).await,
        [nobody.clone(), nobody.clone()],
        "it runs nothing"
    );
    two.announce(std::slice::from_ref(&h)).await.unwrap();
    assert_eq!(look(&mut two, &mut of_two).await, [by("one")]);
    assert_eq!(look(&mut one, &mut of_one).await, [nobody.clone(), by("two")]);
    two.announce(&[]).await.unwrap();
    assert_eq!(look(&mut two, &mut of_two).await, []);
    assert_eq!(look(&mut one, &mut of_one).await, [nobody.clone(), nobody.clone()]);
    two.announce(&both).await.unwrap();
    assert_eq!(look(&mut two, &mut of_two).await, [by("one"), by("one")]);
    assert_eq!(look(&mut one, &mut of_one).await, [by("two"), by("two")]);
    assert!(claims(&mut two, &h).await);
    let led = (vec![host("two").id], Some(host("two").id));
    assert_eq!(look(&mut one, &mut of_one).await, [by("two"), led]);
    drop(two);
    let gone = async || look(&mut one, &mut of_one).await == [nobody.clone(), nobody.clone()];
    until("it is gone", gone).await;
}
