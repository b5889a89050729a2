//! Events that the store cannot read.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_event_that_cannot_be_read_becomes_a_dead_letter_and_costs_no_other_anything() {
    for (ordering, batches) in [
        (Ordering::Total, false),
        (Ordering::Total, true),
        (Ordering::Key, false),
        (Ordering::Key, true),
        (Ordering::None, true),
    ] {
        let mut rig = Rig::new(0, |_, _| Act::Succeed).await;
        if batches {
            rig.handler = ScriptedHandler::of_batches(|_, _| Act::Succeed);
        }
        (rig.ordering, rig.concurrency) =
            (ordering, if ordering == Ordering::Total { 1 } else { 4 });
        rig.publish_keys(&[Some("a"), Some("b"), None, Some("a")].repeat(5)).await;
        for position in [1, 7, 8, 20] {
            rig.store.cannot_read(Position(position));
        }
        let _running = rig.start().await;
        rig.all_over(20).await;
        let mut seen = rig.seen().await;
        seen.sort_unstable();
        if !batches {
            let others: Vec<i64> = (1..=20).filter(|n| ![1, 7, 8, 20].contains(n)).collect();
            assert_eq!(seen, others, "{ordering:?}");
        }
        let mut dead = rig.dead().await;
        dead.sort_unstable();
        let expected = [1, 7, 8, 20].map(|position| (position, 1, "too-large".to_owned()));
        assert_eq!(dead, expected, "{ordering:?}");
        let called = rig.calls();
        assert!(called.iter().all(|(position, _)| ![1, 7, 8, 20].contains(position)));
        let batch_calls = rig.batch_calls().concat();
        assert!(batch_calls.iter().all(|position| ![1, 7, 8, 20].contains(position)));
        // Nobody was told that the handler fails.
        assert_eq!(rig.store.group_status(&name()).await.unwrap().state, GroupState::Running);
        let letters = rig.store.dead_letters(&DeadLetterFilter::default()).await.unwrap();
        assert!(letters[0].failure.text.contains("position 1 of the log"), "{:?}", letters[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_parked_event_that_cannot_be_read_again_becomes_a_dead_letter() {
    let mut rig = Rig::new(0, |position, attempt| {
        if matches!(position.0, 2 | 3) && attempt == Attempt::FIRST {
            Act::Fail(FailureKind::Trap)
        } else {
            Act::Succeed
        }
    })
    .await;
    (rig.ordering, rig.concurrency) = (Ordering::Key, 4);
    rig.publish_keys(&[Some("a"), Some("b"), Some("c"), Some("b"), Some("a")]).await;
    let _running = rig.start().await;
    rig.until(|_, cursor, _| cursor >= Position(5)).await;
    assert_eq!(rig.parked().await, [(2, 2), (3, 2), (4, 1)]);
    rig.store.cannot_read(Position(2));
    rig.all_over(5).await;
    let mut seen = rig.seen().await;
    seen.sort_unstable();
    assert_eq!(seen, [1, 3, 4, 5]);
    assert_eq!(rig.dead().await, [(2, 2, "too-large".to_owned())]);
}
