//! What a tenant may keep and use, seen from one group.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_dead_letter_too_many_pauses_the_group_and_is_not_lost() {
    let mut rig = Rig::new(5, |_, _| Act::Fail(FailureKind::Trap)).await;
    rig.retry = RetryPolicy { max_attempts: 2, ..rig.retry };
    let quota = TenantQuota { dead_letters: Some(2), ..TenantQuota::default() };
    rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
    let _running = rig.start().await;
    for first in 1..=2 {
        rig.paused().await;
        tokio::time::sleep(MINUTE).await;
        let dead: Vec<i64> = rig.dead().await.iter().map(|dead| dead.0).collect();
        assert_eq!(dead, [first, first + 1]);
        let (group, calls) = (rig.store.group_status(&name()).await.unwrap(), rig.calls());
        assert_eq!(group.position, Position(first + 1));
        // Its last attempt is repeated once there is room, and counts once.
        assert_eq!(calls.last(), Some(&(first + 2, 2)));
        assert!(group.reason.is_some_and(|why| why.contains("keeps 2 dead letters")));
        let oldest = rig.store.dead_letter_ids(&name()).await.unwrap()[0];
        rig.store.discard(oldest).await.unwrap();
        rig.store.resume(&name()).await.unwrap();
        rig.until(|_, cursor, _| cursor > Position(first + 1)).await;
    }
    assert!(rig.dead().await.iter().all(|dead| dead.1 == 2));
}

/// A store that carries out one read at once, which another group holds: an attempt that
/// reads its state waits for its turn, and so does who looks what a tenant keeps.
#[tokio::test(start_paused = true)]
async fn a_state_that_is_read_waits_for_its_turn_as_every_read_does() {
    let limit =
        TenantQuota { state_bytes: Some(1), dead_letters: Some(9), ..TenantQuota::default() };
    let none = TenantQuota::default();
    for (quota, reads) in [
        (&none, &[Operation::STATE_GET][..]),
        (&limit, &[Operation::STATE_GET, Operation::TENANT_STATE_BYTES]),
    ] {
        let rig = Rig::new(1, |_, _| Act::Take(MINUTE, Box::new(Act::Succeed))).await;
        rig.store.reads_at_once(1);
        let admission = rig.executor.admission();
        admission.configure(None, [(&Tenant::none(), quota)]);
        let other = admission.register(&"other".parse().unwrap(), demand());
        let _running = rig.start().await;
        rig.called(1).await;
        let permit = tokio::time::timeout(MINUTE / 2, other.acquire_read(1)).await.unwrap();
        tokio::time::sleep(10 * MINUTE).await;
        for read in reads {
            assert_eq!(rig.store.calls(*read), 0, "{read:?} did not wait");
        }
        drop(permit);
        let all_read = async {
            while reads.iter().any(|read| rig.store.calls(*read) == 0) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(MINUTE, all_read).await.is_ok(), "no task gets a permit");
    }
}

#[tokio::test(start_paused = true)]
async fn state_is_bounded_by_what_it_comes_to_and_not_by_what_is_written() {
    // Each success sets `count` to two bytes: seven in all.
    for (most, fits) in [(7, true), (6, false)] {
        let rig = Rig::new(5, |_, _| Act::Succeed).await;
        let quota = TenantQuota { state_bytes: Some(most), ..TenantQuota::default() };
        rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
        let _running = rig.start().await;
        rig.settled(5).await;
        let dead = rig.dead().await;
        if fits {
            assert_eq!((rig.count().await, dead.len()), (5, 0));
        } else {
            assert_eq!((rig.count().await, dead.len(), rig.seen().await.len()), (0, 5, 0));
            assert!(dead.iter().all(|(_, attempts, kind)| *attempts == 5 && kind == "state-limit"));
        }
    }
}

/// What an instance keeps across batches would else be memory that nobody counts.
#[tokio::test(start_paused = true)]
async fn an_instance_ends_before_the_memory_of_its_batch_is_given_back() {
    for (memory_bytes, expected) in [(Some(demand().memory_bytes), &[true; 3][..]), (None, &[])] {
        let mut rig = Rig::new(0, |_, _| Act::Succeed).await;
        let quota = TenantQuota { memory_bytes, ..TenantQuota::default() };
        rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
        let another = rig.executor.admission().register(&Tenant::none(), demand());
        let memory_is_held = move || {
            let mut permit = another.permit();
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            std::pin::pin!(permit.ready(None)).poll(&mut context).is_pending()
        };
        assert!(!memory_is_held());
        let dropped = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&dropped);
        let scripted = Arc::get_mut(&mut rig.handler.0).unwrap();
        scripted.dropped = Some(Box::new(move || noted.lock().unwrap().push(memory_is_held())));
        let running = rig.start().await;
        // Each emits an event, which has a position too.
        for position in [1, 3, 5] {
            rig.publish(1).await;
            rig.settled(position).await;
        }
        assert_eq!(*dropped.lock().unwrap(), expected);
        drop(running);
    }
}

#[tokio::test(start_paused = true)]
async fn a_database_that_cannot_say_what_a_tenant_keeps_counts_no_attempt() {
    for (operation, act) in [
        (Operation::TENANT_STATE_BYTES, Act::Succeed),
        (Operation::TENANT_DEAD_LETTERS, Act::Fail(FailureKind::Reject)),
    ] {
        let rig = Rig::new(1, move |_, _| act.clone()).await;
        let quota = TenantQuota {
            state_bytes: Some(1_000),
            dead_letters: Some(1),
            ..TenantQuota::default()
        };
        rig.executor.admission().configure(None, [(&Tenant::none(), &quota)]);
        rig.store.fail(operation, Fault::Before, 3);
        let _running = rig.start().await;
        rig.settled(1).await;
        assert_eq!(rig.calls(), [(1, 1); 4], "{operation:?}");
        assert_eq!(rig.seen().await.len() + rig.dead().await.len(), 1);
    }
}
