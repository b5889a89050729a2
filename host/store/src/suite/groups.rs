//! Consumer groups, and what an operator does to them.

use std::sync::Arc;

use jiff::Timestamp;

use super::samples::{
    bury_all, claims, dead, event, fetch_all, give_back, group, head, host, led, letters, publish,
    publish_some, redelivery, settings, settlement, tenant, time, write,
};
use super::{DeliveryDatabase, TestDatabase};
use crate::{
    Counting, Cursor, DeadLetterFilter, DeadLetterId, DeliveryStore, GroupRegistration, GroupState,
    Missing, Removed, Settled, Settlement, Start, StoreError, Subscription,
};
use event_host_core::event::{Event, Position};

/// Publishes an event at noon of each of the first days of a month, and one that
/// is older than all of them.
async fn publish_days(store: &Arc<impl DeliveryStore + ?Sized>) -> Vec<Position> {
    let mut events: Vec<Event> = (1..=5)
        .map(|day| Event {
            time: time(&format!("2026-03-0{day}T12:00:00Z")),
            ..event("a", &day.to_string())
        })
        .collect();
    events.push(Event { time: time("2020-01-01T00:00:00Z"), ..event("a", "old") });
    publish(store, &events).await
}

fn places(at: &[Position]) -> Vec<(Start, Position)> {
    let before = |position: Position| Position(position.0 - 1);
    vec![
        (Start::Earliest, Position::ZERO),
        (Start::Latest, at[5]),
        (Start::Position(Position::ZERO), Position::ZERO),
        (Start::Position(at[2]), at[2]),
        (Start::Position(at[5]), at[5]),
        (Start::Time(time("2019-01-01T00:00:00Z")), before(at[0])),
        (Start::Time(time("2026-03-03T12:00:00Z")), before(at[2])),
        (Start::Time(time("2026-03-03T12:00:00.000001Z")), before(at[3])),
        (Start::Time(time("2030-01-01T00:00:00Z")), at[5]),
    ]
}

pub async fn a_new_group_begins_where_its_start_says(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    for (n, start) in
        [Start::Earliest, Start::Latest, Start::Time(Timestamp::UNIX_EPOCH)].into_iter().enumerate()
    {
        let name = format!("empty{n}");
        store.ensure_group(&GroupRegistration { start, ..settings(&name) }).await.unwrap();
        let position = store.cursor(&group(&name)).await.unwrap().position;
        assert_eq!(position, Position::ZERO, "{start:?}");
    }

    let at = publish_days(&store).await;
    for (n, (start, position)) in places(&at).into_iter().enumerate() {
        let name = format!("g{n}");
        store.ensure_group(&GroupRegistration { start, ..settings(&name) }).await.unwrap();
        assert_eq!(store.cursor(&group(&name)).await.unwrap().position, position, "{start:?}");
    }
}

pub async fn an_existing_group_keeps_its_cursor_and_takes_over_the_subscription(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let events = publish_some(&store, 3).await;
    let epoch = led(&store, "g").await;
    let waiting =
        Settlement { head: Some(head(3, 2)), ..settlement(&store, "g", epoch, events[1].0).await };
    store.settle(&waiting).await.unwrap();
    let before = store.cursor(&group("g")).await.unwrap();
    assert_eq!(store.group_status(&group("g")).await.unwrap().subscribe, ["*"]);

    let patterns = ["a.*", "b \"quoted\"", "c"];
    let changed = GroupRegistration {
        subscription: Subscription::new(patterns).unwrap(),
        start: Start::Latest,
        ..settings("g")
    };
    for _ in 0..2 {
        store.ensure_group(&changed).await.unwrap();
        assert_eq!(store.cursor(&group("g")).await.unwrap(), before);
        assert_eq!(store.group_status(&group("g")).await.unwrap().subscribe, patterns);
    }
}

pub async fn a_group_never_changes_its_tenant(database: &dyn TestDatabase) {
    let store = database.handle().await;
    for (name, owner, other) in [("g", "acme", "globex"), ("h", "", "acme"), ("i", "acme", "")] {
        let own = GroupRegistration { tenant: tenant(owner), ..settings(name) };
        store.ensure_group(&own).await.unwrap();
        let error = store
            .ensure_group(&GroupRegistration { tenant: tenant(other), ..settings(name) })
            .await
            .unwrap_err();
        assert!(matches!(&error, StoreError::Refused(text) if text.contains(name)), "{error}");
        assert_eq!(store.group_status(&group(name)).await.unwrap().tenant, tenant(owner));
    }
}

pub async fn a_place_beyond_the_log_is_refused(database: &dyn TestDatabase) {
    let store = database.handle().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let refused = |result: Result<(), StoreError>| {
        let error = result.unwrap_err();
        assert!(matches!(&error, StoreError::Refused(text) if text.contains("beyond")), "{error}");
    };
    let last = publish_some(&store, 2).await[1];
    for beyond in [last.0 + 1, i64::MAX] {
        let start = Start::Position(Position(beyond));
        refused(store.seek(&group("g"), start).await.map(|_| ()));
        refused(store.ensure_group(&GroupRegistration { start, ..settings("new") }).await);
    }
    let Cursor { epoch, position, .. } = store.cursor(&group("g")).await.unwrap();
    assert_eq!(position, Position::ZERO);
    assert_eq!(store.group_states().await.unwrap().len(), 1);

    // As after the log was put back to an older state: said at the start, and
    // a seek puts it right.
    let beyond = settlement(&store, "g", epoch, last.0 + 10).await;
    database.drawn_up_to(last.0 + 10).await;
    assert_eq!(store.settle(&beyond).await.unwrap(), Settled::Committed);
    database.drawn_up_to(last.0).await;
    refused(store.ensure_group(&settings("g")).await);
    store.seek(&group("g"), Start::Latest).await.unwrap();
    store.ensure_group(&settings("g")).await.unwrap();
}

pub async fn a_seek_raises_the_epoch_and_refuses_the_open_batch(database: &dyn TestDatabase) {
    let (leading, seeking) = (database.handle().await, database.handle().await);
    let events = publish_some(&leading, 3).await;
    let epoch = led(&leading, "g").await;
    let waiting = Settlement {
        head: Some(head(events[1].0, 4)),
        ..settlement(&leading, "g", epoch, events[0].0).await
    };
    leading.settle(&waiting).await.unwrap();

    let cursor = seeking.seek(&group("g"), Start::Earliest).await.unwrap();
    assert_eq!(cursor, Position::ZERO);
    let open = Settlement {
        emits: vec![event("late", "1")],
        state: vec![write("a", Some(b"1"))],
        ..settlement(&leading, "g", epoch, events[2].0).await
    };
    assert_eq!(leading.settle(&open).await.unwrap(), Settled::NotLeader);

    let cursor = leading.cursor(&group("g")).await.unwrap();
    let raised = cursor.epoch;
    assert!(raised > epoch);
    assert_eq!((cursor.position, cursor.head), (Position::ZERO, None), "the retry is forgotten");
    let control = leading.group_states().await.unwrap().remove(0);
    assert_eq!((control.name, control.epoch), (group("g"), raised));
    assert_eq!(leading.safe_position().await.unwrap(), events[2]);
    let next = leading.begin_leadership(&group("g"), &host("one")).await.unwrap();
    assert!(next.epoch > raised);
}

pub async fn a_seek_goes_where_it_is_told(database: &dyn TestDatabase) {
    let store = database.handle().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let at = publish_days(&store).await;
    for (to, position) in places(&at) {
        assert_eq!(store.seek(&group("g"), to).await.unwrap(), position, "{to:?}");
        assert_eq!(store.cursor(&group("g")).await.unwrap().position, position, "{to:?}");
    }
}

pub async fn a_pause_shows_its_reason_until_the_group_is_resumed(database: &dyn TestDatabase) {
    let (store, watching) = (database.handle().await, database.handle().await);
    let epoch = led(&store, "g").await;
    led(&store, "h").await;
    let state_and_reason = || async {
        let status = watching.group_status(&group("g")).await.unwrap();
        let controls = watching.group_states().await.unwrap();
        assert_eq!(controls[0].state, status.state);
        assert_eq!(controls[1].state, GroupState::Running, "groups are independent");
        (status.state, status.reason)
    };
    assert_eq!(state_and_reason().await, (GroupState::Running, None));
    for reason in ["maintenance", "maintenance, still"] {
        store.pause(&group("g"), reason).await.unwrap();
        assert_eq!(state_and_reason().await, (GroupState::Paused, Some(reason.to_owned())));
    }
    // What was open when the pause came is not lost.
    assert_eq!(
        store.settle(&settlement(&store, "g", epoch, 0).await).await.unwrap(),
        Settled::Committed
    );
    for _ in 0..2 {
        store.resume(&group("g")).await.unwrap();
        assert_eq!(state_and_reason().await, (GroupState::Running, None));
    }
}

pub async fn a_remark_is_shown_until_it_is_taken_back(database: &dyn TestDatabase) {
    let (store, watching) = (database.handle().await, database.handle().await);
    led(&store, "g").await;
    led(&store, "h").await;
    let remarks = || async {
        let one = watching.group_status(&group("g")).await.unwrap().note;
        (one, watching.group_status(&group("h")).await.unwrap().note)
    };
    assert_eq!(remarks().await, (None, None));
    let (both, one) = ([group("g"), group("nobody"), group("h")], [group("g")]);
    store.set_note(&both, Some("does not load")).await.unwrap();
    let said = Some("does not load".to_owned());
    assert_eq!(remarks().await, (said.clone(), said.clone()));
    store.set_note(&one, None).await.unwrap();
    assert_eq!(remarks().await, (None, said));
    store.set_note(&[], Some("to nobody")).await.unwrap();
    // It is said, and nothing else: the group goes on.
    assert_eq!(watching.group_status(&group("h")).await.unwrap().state, GroupState::Running);
}

pub async fn a_leader_trips_its_group_and_lets_it_go_on_again(database: &dyn TestDatabase) {
    let (store, watching) = (database.handle().await, database.handle().await);
    let epoch = led(&store, "g").await;
    let name = group("g");
    let state_and_reason = || async {
        let status = watching.group_status(&name).await.unwrap();
        (status.state, status.reason)
    };
    let (running, tripped) =
        ((GroupState::Running, None), (GroupState::Tripped, Some("all fail".to_owned())));
    for _ in 0..2 {
        assert_eq!(
            store.record_trip(&name, epoch, Some("all fail")).await.unwrap(),
            Settled::Committed
        );
        assert_eq!(state_and_reason().await, tripped);
    }
    for _ in 0..2 {
        assert_eq!(store.record_trip(&name, epoch, None).await.unwrap(), Settled::Committed);
        assert_eq!(state_and_reason().await, running);
    }
    store.record_trip(&name, epoch, Some("all fail")).await.unwrap();
    store.resume(&name).await.unwrap();
    assert_eq!(state_and_reason().await, running, "an operator may resume it");
    // What an operator says stands.
    let paused = (GroupState::Paused, Some("maintenance".to_owned()));
    store.pause(&name, "maintenance").await.unwrap();
    for reason in [Some("all fail"), None] {
        assert_eq!(store.record_trip(&name, epoch, reason).await.unwrap(), Settled::Committed);
        assert_eq!(state_and_reason().await, paused);
    }
    store.resume(&name).await.unwrap();
    // A former leader says nothing.
    led(&store, "g").await;
    assert_eq!(
        store.record_trip(&name, epoch, Some("all fail")).await.unwrap(),
        Settled::NotLeader
    );
    assert_eq!(state_and_reason().await, running);
    let nobody = store.record_trip(&group("nobody"), epoch, Some("all fail")).await;
    assert_eq!(nobody.unwrap(), Settled::NotLeader);
}

pub async fn a_group_with_dead_letters_or_a_leader_is_not_removed(database: &dyn TestDatabase) {
    let (store, other) = (database.handle().await, database.handle().await);
    publish_some(&store, 2).await;
    let epoch = led(&store, "g").await;
    bury_all(&store, "g", epoch).await;
    let refused = |result: Result<Removed, StoreError>, why: &str| {
        let error = result.unwrap_err();
        assert!(matches!(&error, StoreError::Refused(text) if text.contains(why)), "{error}");
    };
    refused(other.remove_group(&group("g"), false).await, "2 dead letters");

    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert!(claims(&mut session, &group("g")).await);
    refused(other.remove_group(&group("g"), true).await, "led by process 4711 on one");
    refused(store.remove_group(&group("g"), true).await, "led");
    assert_eq!(letters(&store, "g").await.len(), 2);

    give_back(&mut session, &group("g")).await;
    other.remove_group(&group("g"), true).await.unwrap();
    store.ensure_group(&settings("g")).await.unwrap();
    assert!(claims(&mut session, &group("g")).await, "removing keeps nobody from it");
}

pub async fn a_removed_group_leaves_nothing_behind(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let events = publish_some(&store, 2).await;
    for name in ["g", "h"] {
        let epoch = led(&store, name).await;
        bury_all(&store, name, epoch).await;
        let state = vec![write("a", Some(b"1"))];
        store
            .settle(&Settlement { state, ..settlement(&store, name, epoch, 2).await })
            .await
            .unwrap();
    }
    store.remove_group(&group("g"), true).await.unwrap();

    let left = store.dead_letters(&DeadLetterFilter::default()).await.unwrap();
    assert!(left.len() == 2 && left.iter().all(|letter| letter.group == group("h")));
    assert_eq!(store.state_get(&group("g"), "", "a").await.unwrap(), None);
    assert!(store.state_get(&group("h"), "", "a").await.unwrap().is_some());
    assert_eq!(store.group_states().await.unwrap().len(), 1);
    assert_eq!(store.safe_position().await.unwrap(), events[1], "the log is as it was");

    store.ensure_group(&settings("g")).await.unwrap();
    assert_eq!(store.cursor(&group("g")).await.unwrap().position, Position::ZERO);
    assert_eq!(fetch_all(&store, "g", 0).await.len(), 2);
    let status = store.group_status(&group("g")).await.unwrap();
    assert_eq!((status.dead_letters, status.settled_at), (0, None));
}

pub async fn a_group_that_does_not_exist_is_not_found(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let name = group("nobody");
    let filter = DeadLetterFilter { group: Some(name.clone()), ..DeadLetterFilter::default() };
    let (from, to) = (DeadLetterId(0), DeadLetterId(9));
    for (what, result) in [
        ("group", store.group_status(&name).await.map(|_| ())),
        ("cursor", store.cursor(&name).await.map(|_| ())),
        ("begin", store.begin_leadership(&name, &host("one")).await.map(|_| ())),
        ("pause", store.pause(&name, "because").await),
        ("resume", store.resume(&name).await),
        ("seek", store.seek(&name, Start::Earliest).await.map(|_| ())),
        ("seek far", store.seek(&name, Start::Position(Position(9))).await.map(|_| ())),
        ("remove", store.remove_group(&name, true).await.map(|_| ())),
        ("dead letters", store.dead_letters(&filter).await.map(|_| ())),
        ("replay", store.replay_some(&name, from, to, 9, None).await.map(|_| ())),
    ] {
        let error = result.expect_err(what);
        let missing = matches!(
            &error,
            StoreError::NotFound(Missing::Group(missing)) if *missing == name
        );
        assert!(missing, "{what}: {error}");
    }
    assert!(store.group_states().await.unwrap().is_empty());
}

pub async fn status_counts_what_the_group_has_before_it(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let empty = store.status().await.unwrap();
    assert_eq!((empty.last_position, empty.safe_position), (Position::ZERO, Position::ZERO));
    assert_eq!((empty.events, empty.groups.len()), (0, 0));

    let before = Timestamp::now();
    let subscription = Subscription::new(["a", "b.*"]).unwrap();
    store.ensure_group(&GroupRegistration { subscription, ..settings("g") }).await.unwrap();
    store.ensure_group(&settings("everything")).await.unwrap();
    let idle = store.group_status(&group("g")).await.unwrap();
    assert_eq!((idle.lag_events, idle.lag_seconds), (0, 0.0));
    assert_eq!(idle.settled_at, None);
    assert!(idle.created_at.duration_since(before).as_secs() >= -1);

    // Its time says that it is years old; it was published just now.
    let types = ["a", "A", "b.1", "b", "c", "b.2"];
    let events: Vec<Event> = types.iter().map(|name| event(name, name)).collect();
    let at = publish(&store, &events).await;
    store.publish(&tenant("acme"), &[event("a", "of another tenant")]).await.unwrap();

    let status = store.status().await.unwrap();
    assert_eq!(status.events, 7);
    assert_eq!(status.last_position, status.safe_position);
    let names: Vec<&str> = status.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["everything", "g"]);
    assert_eq!(status.groups[0].lag_events, 6);
    let own = &status.groups[1];
    assert_eq!((own.lag_events, own.retries_pending, own.dead_letters), (3, 0, 0));
    assert!((0.0..60.0).contains(&own.lag_seconds), "{}", own.lag_seconds);

    let epoch = led(&store, "everything").await;
    let letter = bury_all(&store, "everything", epoch).await.remove(0);
    let epoch = store.begin_leadership(&group("g"), &host("one")).await.unwrap().epoch;
    let progress = Settlement {
        head: Some(head(at[2].0, 2)),
        ..settlement(&store, "g", epoch, at[1].0).await
    };
    store.settle(&progress).await.unwrap();
    let own = store.group_status(&group("g")).await.unwrap();
    assert_eq!((own.lag_events, own.retries_pending), (2, 1));
    assert_eq!((own.position, own.epoch), (at[1], epoch));
    assert!(own.settled_at.unwrap() >= own.created_at);

    // A replay for another group is nothing that this one has before it.
    store.replay(letter.id, None, None).await.unwrap();
    let status = store.status().await.unwrap();
    assert_eq!(status.groups[1].lag_events, 2);
    let everything = &status.groups[0];
    assert_eq!((everything.lag_events, everything.dead_letters), (1, 5));
    assert_eq!(status.events, 8);
}

/// How many there are, and whether there may be more.
type AtLeast = (i64, bool);

pub async fn what_status_counts_is_bounded_and_exact_where_it_is_asked(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let only = |name: &str, types: &str| GroupRegistration {
        subscription: Subscription::new([types]).unwrap(),
        ..settings(name)
    };
    let parts = GroupRegistration { partitions: 4, ..settings("parts") };
    let (rare, other) = (only("rare", "rare"), only("another", "some"));
    let another = GroupRegistration { tenant: tenant("acme"), ..other };
    for settings in [settings("far"), settings("near"), parts, rare, another] {
        store.ensure_group(&settings).await.unwrap();
    }
    // Longer than what is looked at for the first event of one that is far behind.
    let at = publish_some(&store, 150).await;
    store.seek(&group("near"), Start::Position(at[144])).await.unwrap();
    let epoch = led(&store, "dead").await;
    bury_all(&store, "dead", epoch).await;
    let parked = Settlement {
        redeliveries: at[..30].iter().map(|position| redelivery(position.0, 2)).collect(),
        ..settlement(&store, "dead", epoch, at[149].0).await
    };
    assert_eq!(store.settle(&parked).await.unwrap(), Settled::Committed);

    let lags = async |counting: Counting| -> Vec<(String, AtLeast, bool)> {
        let status = store.status_counted(counting).await.unwrap();
        let mut lags = Vec::new();
        for shown in &status.groups {
            let one = store.group_status_counted(&shown.name, counting).await.unwrap();
            let lag = (shown.lag_events, shown.lag_events_is_at_least);
            assert_eq!((one.lag_events, one.lag_events_is_at_least), lag, "{}", shown.name);
            lags.push((shown.name.to_string(), lag, shown.lag_seconds_is_at_least));
            assert_eq!(shown.lag_seconds > 0.0, shown.lag_events > 0, "{}", shown.name);
        }
        lags
    };
    let of = |name: &str, events, is_at_least, may_be_older| {
        (name.to_owned(), (events, is_at_least), may_be_older)
    };
    let bounded = Counting::at_most(10);
    // What another tenant's group has before it is nothing of this one, and what is
    // behind it has not been looked at.
    let expected = [
        of("another", 0, true, true),
        of("dead", 0, false, false),
        of("far", 10, true, false),
        of("near", 5, false, false),
        of("parts", 10, true, false),
        of("rare", 0, true, true),
    ];
    assert_eq!(lags(bounded).await, expected);
    let exactly = |name: &str, events| of(name, events, false, false);
    let expected = [
        exactly("another", 0),
        exactly("dead", 0),
        exactly("far", 150),
        exactly("near", 5),
        exactly("parts", 150),
        exactly("rare", 0),
    ];
    assert_eq!(lags(Counting::EXACT).await, expected);
    assert_eq!(lags(Counting::BOUNDED).await, expected, "so few are all counted");

    let parts = store.group_status_counted(&group("parts"), bounded).await.unwrap().partitions;
    assert_eq!(parts.len(), 4);
    assert!(parts.iter().all(|part| part.lag_events_is_at_least && part.lag_seconds > 0.0));
    assert_eq!(parts.iter().map(|part| part.lag_events).sum::<i64>(), 10);

    let waiting = async |counting: Counting| {
        let status = store.group_status_counted(&group("dead"), counting).await.unwrap();
        let is_at_least = status.parked_is_at_least;
        assert_eq!(status.retries_pending, status.parked);
        let dead = (status.dead_letters, status.dead_letters_is_at_least);
        (dead, (status.parked, is_at_least))
    };
    assert_eq!(waiting(bounded).await, ((10, true), (10, true)));
    assert_eq!(waiting(Counting::at_most(30)).await, ((30, true), (30, false)));
    assert_eq!(waiting(Counting::EXACT).await, ((150, false), (30, false)));

    let keys = async |counting: Counting| -> Vec<String> {
        let status = store.group_status_counted(&group("dead"), counting).await.unwrap();
        let json = serde_json::to_value(&status).unwrap();
        let object = json.as_object().unwrap();
        assert_eq!(object["dead_letters"], status.dead_letters, "a number, whatever it says");
        object.keys().filter(|key| key.ends_with("_is_at_least")).cloned().collect()
    };
    assert_eq!(keys(bounded).await, ["dead_letters_is_at_least", "parked_is_at_least"]);
    assert_eq!(keys(Counting::EXACT).await, Vec::<String>::new());
    let events = store.status_counted(Counting::EXACT).await.unwrap();
    assert_eq!((events.events, events.events_is_estimate), (150, false));
}

pub async fn what_a_group_has_done_is_counted_with_what_it_settles(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let events = publish_some(&store, 5).await;
    let epoch = led(&store, "g").await;
    let fetched = fetch_all(&store, "g", 0).await;
    let counted = async || {
        let status = store.group_status(&group("g")).await.unwrap();
        (status.handled_events, status.dead_events)
    };
    assert_eq!(counted().await, (0, 0));
    let three = Settlement {
        handled: 2,
        dead_letters: vec![dead(fetched[2].clone())],
        ..settlement(&store, "g", epoch, events[2].0).await
    };
    assert_eq!(store.settle(&three).await.unwrap(), Settled::Committed);
    assert_eq!(counted().await, (2, 1));
    assert_eq!(store.settle(&three).await.unwrap(), Settled::NotLeader);
    assert_eq!(counted().await, (2, 1), "one that is refused counts nothing");
    let letter = letters(&store, "g").await[0].id;
    store.discard(letter).await.unwrap();
    let last = Settlement { handled: 1, ..settlement(&store, "g", epoch, events[3].0).await };
    assert_eq!(store.settle(&last).await.unwrap(), Settled::Committed);
    assert_eq!(counted().await, (3, 1), "they only ever grow");

    let split = GroupRegistration { partitions: 3, ..settings("g") };
    store.ensure_group(&split).await.unwrap();
    assert_eq!(counted().await, (3, 1), "a split group has done what it did before");
    let part = group("g").partition(1);
    let epoch = store.begin_leadership(&part, &host("one")).await.unwrap().epoch;
    let number = store.cursor(&part).await.unwrap().settled + 1;
    let whole = settlement(&store, "g", epoch, events[4].0).await;
    let of_part = Settlement { group: part, number, handled: 1, ..whole };
    assert_eq!(store.settle(&of_part).await.unwrap(), Settled::Committed);
    assert_eq!(counted().await, (4, 1));
    store.ensure_group(&settings("g")).await.unwrap();
    assert_eq!(counted().await, (4, 1));
}

pub async fn the_first_event_of_many_groups_that_are_far_behind_is_known(
    database: &dyn TestDatabase,
) {
    let store = database.handle().await;
    let of = |name: &str, types: &str| GroupRegistration {
        subscription: Subscription::new([types]).unwrap(),
        ..settings(name)
    };
    // More than the log is searched for.
    let names: Vec<String> = (0..50).map(|number| format!("g{number:02}")).collect();
    for name in &names {
        store.ensure_group(&of(name, "some")).await.unwrap();
        store.ensure_group(&of(&format!("{name}-other"), "other")).await.unwrap();
    }
    store.ensure_group(&settings("near")).await.unwrap();
    let at = publish_some(&store, 150).await;
    store.seek(&group("near"), Start::Latest).await.unwrap();
    let status = store.status_counted(Counting::at_most(10)).await.unwrap();
    for shown in &status.groups {
        let name = shown.name.as_str();
        let is_known = !shown.lag_seconds_is_at_least;
        // What is of another type is the oldest that there may be.
        assert_eq!(is_known, !name.ends_with("-other"), "{name}");
        assert_eq!(shown.lag_events_is_at_least, name != "near", "{name}");
        assert_eq!(shown.unread_seconds > 0.0, name != "near", "{name}");
        assert!(shown.unread_seconds >= shown.lag_seconds, "{name}");
    }
    assert_eq!(status.groups.len(), 101);
    assert!(status.bytes > 0);
    assert_eq!(status.last_position, at[149]);
}
