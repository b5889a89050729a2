//! How many keys a group's state may have.

use super::*;
use event_host_store::{Settlement, StateWrite};

const SET: bool = true;
const DELETED: bool = false;

/// What each event has its attempt write, from the first on.
type Writes = Vec<Vec<(&'static str, bool)>>;

impl Rig {
    /// A rig whose handler writes these, and whose group may have so many keys.
    /// Nothing is tried twice.
    async fn writing(most: u64, writes: Writes) -> Self {
        let mut rig = Self::new(0, |_, _| Act::NotRun).await;
        rig.handler = writer(most, writes);
        rig.retry.max_attempts = 1;
        rig
    }

    async fn keys(&self) -> Vec<String> {
        self.store.another_host().state_keys(&name(), "", "", 1_000).await.unwrap()
    }
}

fn writer(most: u64, writes: Writes) -> ScriptedHandler {
    ScriptedHandler::limited(Some(most), move |position, _| {
        Act::Write(writes[usize::try_from(position.0 - 1).unwrap()].clone())
    })
}

/// Publishes so many events, in one batch or each in one of its own.
async fn publish(rig: &Rig, events: usize, at_once: bool) {
    let before = rig.cursor().await.position.0;
    let count = i64::try_from(events).unwrap();
    if at_once {
        rig.publish(events).await;
        rig.settled(before + count).await;
    } else {
        for position in before + 1..=before + count {
            rig.publish(1).await;
            rig.settled(position).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_has_as_many_keys_as_it_may_and_not_one_more() {
    let steps: [(&[(&str, bool)], bool); 9] = [
        (&[("a", SET), ("b", SET)], true),
        (&[("c", SET)], true),
        // A key that is there already takes no room.
        (&[("a", SET), ("b", SET)], true),
        (&[("d", SET)], false),
        (&[("a", SET), ("d", SET)], false),
        // One that is deleted makes some, in the attempt itself too.
        (&[("d", SET), ("a", DELETED)], true),
        (&[("b", DELETED), ("none", DELETED)], true),
        (&[("e", SET)], true),
        (&[("f", SET)], false),
    ];
    for at_once in [true, false] {
        let writes = steps.iter().map(|(writes, _)| writes.to_vec()).collect();
        let rig = Rig::writing(3, writes).await;
        let _running = rig.start().await;
        publish(&rig, steps.len(), at_once).await;
        let dead: Vec<i64> = rig.dead().await.iter().map(|dead| dead.0).collect();
        let refused: Vec<i64> =
            (1..).zip(&steps).filter(|(_, step)| !step.1).map(|(position, _)| position).collect();
        assert_eq!(dead, refused, "at once: {at_once}");
        assert!(rig.dead().await.iter().all(|dead| dead.2 == "state-keys-limit"));
        assert_eq!(rig.keys().await, ["c", "d", "e"]);
        let letter = &rig.store.dead_letters(&DeadLetterFilter::default()).await.unwrap()[0];
        let said = "the state of the group would have 4 keys, limits.state_keys is 3";
        assert_eq!(letter.failure.text, said);
        let failures = rig.leadership(&rig.store).await.failures;
        assert_eq!(failures["state-keys-limit"], 3);
    }
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_all_scopes_count() {
    let rig = Rig::writing(3, vec![vec![("a", SET)], vec![("b", SET)]]).await;
    let epoch = rig.leadership(&rig.store).await.epoch;
    let write = |key: &str| StateWrite {
        scope: "another".to_owned(),
        key: key.to_owned(),
        value: Some(vec![1]),
    };
    let settlement = Settlement {
        group: name(),
        epoch,
        number: 1,
        position: Position::ZERO,
        head: None,
        dead_letters: Vec::new(),
        emits: Vec::new(),
        state: vec![write("a"), write("b")],
        failures: None,
        undecided: None,
        handled: 0,
        mark: None,
        deferred: Vec::new(),
        redeliveries: Vec::new(),
        redelivered: Vec::new(),
    };
    rig.store.settle(&settlement).await.unwrap();
    let _running = rig.start().await;
    publish(&rig, 2, true).await;
    assert_eq!(rig.dead().await.iter().map(|dead| dead.0).collect::<Vec<_>>(), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_has_more_keys_than_it_may_still_changes_and_deletes_them() {
    let mut writes = vec![vec![("a", SET), ("b", SET), ("c", SET)]];
    let rig = Rig::writing(3, writes.clone()).await;
    let running = rig.start().await;
    publish(&rig, 1, true).await;
    writes.extend([
        vec![("a", SET)],
        vec![("d", SET)],
        vec![("a", SET), ("b", DELETED)],
        vec![("d", SET)],
        vec![("a", DELETED)],
        vec![("d", SET)],
    ]);
    running.replace(&writer(2, writes));
    publish(&rig, 6, true).await;
    assert_eq!(rig.dead().await.iter().map(|dead| dead.0).collect::<Vec<_>>(), [3, 5]);
    assert_eq!(rig.keys().await, ["c", "d"]);
}

/// Counting reads every key, so it must not be done for each event: not where
/// there is room, not where there is none, and not between the two.
#[tokio::test(start_paused = true)]
async fn keys_are_counted_now_and_then_and_not_for_each_event() {
    const KEYS: [&str; 32] = [
        "00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13", "14",
        "15", "16", "17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29",
        "30", "31",
    ];
    let filling = KEYS.map(|key| vec![(key, SET)]);
    let overwriting = (0..200).map(|n| vec![(KEYS[n % 32], SET)]);
    let refused = (0..10).map(|_| vec![("more", SET)]);
    let freed = std::iter::once(vec![(KEYS[31], DELETED)]);
    let turning = (0..100).map(|n| vec![(KEYS[n / 2 % 31], n % 2 == 1)]);
    let writes = filling.into_iter().chain(overwriting).chain(refused).chain(freed).chain(turning);
    let writes: Writes = writes.collect();
    let rig = Rig::writing(32, writes).await;
    let _running = rig.start().await;
    for (events, refused) in [(32, 0), (200, 0), (10, 10), (1, 10), (100, 10)] {
        publish(&rig, events, false).await;
        assert_eq!(rig.dead().await.len(), refused);
    }
    assert_eq!(rig.keys().await, KEYS[..31]);
    let counted = rig.store.calls(Operation::STATE_KEY_COUNT);
    assert!(counted <= 3, "counted {counted} times");
}

#[tokio::test(start_paused = true)]
async fn a_database_that_cannot_count_the_keys_counts_no_attempt() {
    let rig = Rig::writing(1, vec![vec![("a", SET)]]).await;
    rig.store.fail(Operation::STATE_KEY_COUNT, Fault::Before, 3);
    let _running = rig.start().await;
    publish(&rig, 1, true).await;
    assert_eq!(rig.calls(), [(1, 1); 4]);
    assert_eq!(rig.keys().await, ["a"]);
}

/// A rig with order by key, where three attempts are made at once. The first event
/// takes long, the next three write, the last of them a little later; those after
/// them take long too, so that nothing is settled before half a second is over
/// unless somebody waits for it.
async fn beside_others(most: u64, keys: [&str; 3]) -> Rig {
    let mut rig = Rig::new(0, |_, _| Act::NotRun).await;
    rig.handler = ScriptedHandler::limited(Some(most), |position, _| match position.0 {
        2 | 3 => Act::Write(vec![("k", SET)]),
        4 => Act::Take(Duration::from_millis(10), Box::new(Act::Write(vec![("k", SET)]))),
        _ => Act::Take(DAY, Box::new(Act::Succeed)),
    });
    rig.retry.max_attempts = 1;
    (rig.ordering, rig.concurrency) = (Ordering::Key, 3);
    let [second, third, fourth] = keys.map(Some);
    rig.publish_keys(&[None, second, third, fourth, None, None, None]).await;
    rig
}

#[tokio::test(start_paused = true)]
async fn keys_that_other_lanes_wrote_count_before_they_are_committed() {
    let rig = beside_others(2, ["a", "b", "c"]).await;
    let _running = rig.start().await;
    rig.until(|_, cursor, _| cursor >= Position(4)).await;
    let dead: Vec<_> = rig.dead().await.into_iter().map(|dead| (dead.0, dead.2)).collect();
    assert_eq!(dead, [(4, "state-keys-limit".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_refused_for_what_others_wrote_twice() {
    let rig = beside_others(2, ["a", "a", "b"]).await;
    let _running = rig.start().await;
    rig.until(|_, cursor, _| cursor >= Position(3)).await;
    assert!(rig.began.elapsed() < Duration::from_millis(100), "{:?}", rig.began.elapsed());
    rig.until(|_, cursor, _| cursor >= Position(4)).await;
    assert_eq!(rig.dead().await, []);
    assert_eq!(rig.calls().iter().filter(|call| call.0 == 4).count(), 1);
}
