//! A store that refuses settlements for what they hold.

use super::*;
use event_host_store::Settlement;

/// Whether a settlement has what the success of an event emits.
fn has_emitted(settlement: &Settlement, position: i64) -> bool {
    settlement.emits.iter().any(|event| event.id == format!("seen-{position}"))
}

fn has_buried(settlement: &Settlement, position: i64) -> bool {
    settlement.dead_letters.iter().any(|dead| dead.event.position == Position(position))
}

#[tokio::test(start_paused = true)]
async fn what_the_database_refuses_costs_its_own_event_an_attempt_and_no_other_anything() {
    for (ordering, concurrency) in [(Ordering::Total, 1), (Ordering::Key, 4), (Ordering::None, 4)] {
        let mut rig = Rig::new(0, |_, _| Act::Succeed).await;
        (rig.ordering, rig.concurrency) = (ordering, concurrency);
        rig.publish_keys(&[Some("a"), Some("b"), None, Some("a")].repeat(10)).await;
        rig.store.refuse(|settlement| {
            has_emitted(settlement, 7).then(|| "value \"x\" breaks the rule of the test".to_owned())
        });
        let running = rig.start().await;
        rig.all_over(40).await;
        let mut seen = rig.seen().await;
        seen.sort_unstable();
        let others: Vec<i64> = (1..=40).filter(|position| *position != 7).collect();
        assert_eq!(seen, others, "each once: {ordering:?}");
        assert_eq!(rig.dead().await, [(7, 5, "not-stored".to_owned())]);
        let letters = rig.store.dead_letters(&DeadLetterFilter::default()).await.unwrap();
        let text = &letters[0].failure.text;
        assert!(text.contains("breaks the rule of the test"), "{text}");
        assert_eq!(rig.cursor().await.epoch, running.epoch, "under the same leadership");
        let failures = rig.store.group_status(&name()).await.unwrap().failures;
        assert_eq!(failures, FailureCounts::from([("not-stored".to_owned(), 5)]));
        if ordering == Ordering::Total {
            assert_eq!(rig.count().await, 39, "its writes are dropped too");
        }
        // Each of its attempts was made once, though others were made again.
        let own = rig.calls().into_iter().filter(|(position, _)| *position == 7);
        let attempts: Vec<u32> = own.map(|(_, attempt)| attempt).collect();
        assert!(attempts.is_sorted() && attempts.len() < 12, "{attempts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_is_handled_once_what_refused_it_is_gone() {
    let rig = Rig::new(3, |_, _| Act::Succeed).await;
    let refuses = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&refuses);
    rig.store.refuse(move |settlement| {
        (still.load(SeqCst) && has_emitted(settlement, 2)).then(|| "not yet".to_owned())
    });
    let _running = rig.start().await;
    rig.until(|_, _, head| head.is_some_and(|head| head.attempt == Attempt(2))).await;
    refuses.store(false, SeqCst);
    rig.settled(3).await;
    assert_eq!(rig.seen().await, [1, 2, 3]);
    assert_eq!(rig.dead().await, []);
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_dead_letter_cannot_be_stored_is_paused_and_says_why() {
    let mut rig = Rig::new(3, |position, _| {
        if position == Position(2) { Act::Fail(FailureKind::Reject) } else { Act::Succeed }
    })
    .await;
    rig.retry = RetryPolicy { max_attempts: 1, ..rig.retry };
    let refuses = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&refuses);
    rig.store.refuse(move |settlement| {
        (still.load(SeqCst) && has_buried(settlement, 2)).then(|| "no room for it".to_owned())
    });
    let _running = rig.start().await;
    rig.paused().await;
    let group = rig.store.group_status(&name()).await.unwrap();
    let why = group.reason.unwrap();
    assert!(why.contains("position 2") && why.contains("no room for it"), "{why}");
    tokio::time::sleep(MINUTE).await;
    assert_eq!((rig.seen().await, rig.dead().await), (vec![1], vec![]), "it waits");
    refuses.store(false, SeqCst);
    rig.store.resume(&name()).await.unwrap();
    rig.settled(3).await;
    assert_eq!(rig.seen().await, [1, 3]);
    assert_eq!(rig.dead().await, [(2, 1, "reject".to_owned())]);
}
