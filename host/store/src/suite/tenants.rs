//! What tenants keep.

use super::TestDatabase;
use super::samples::{dead, event, group, host, settings, settlement, tenant, write};
use crate::{DeadLetterFilter, GroupRegistration, Settlement, dead_letter_bytes};
use event_host_core::event::{LogEvent, Position};

pub async fn what_a_tenant_keeps_is_counted_over_its_groups_and_no_others(
    database: &dyn TestDatabase,
) {
    database.drawn_up_to(10).await;
    let store = database.handle().await;
    for (name, owner) in [("one", "acme"), ("two", "acme"), ("three", "other"), ("four", "")] {
        let registration = GroupRegistration { tenant: tenant(owner), ..settings(name) };
        store.ensure_group(&registration).await.unwrap();
    }
    for owner in ["acme", "other", "", "nobody"] {
        assert_eq!(store.tenant_dead_letters(&tenant(owner)).await.unwrap(), 0);
        assert_eq!(store.tenant_dead_letter_bytes(&tenant(owner)).await.unwrap(), 0);
        assert_eq!(store.tenant_state_bytes(&tenant(owner)).await.unwrap(), 0);
    }
    for (name, letters, value) in [("one", 2, 10), ("two", 1, 3_000_000), ("three", 4, 0)] {
        let epoch = store.begin_leadership(&group(name), &host("one")).await.unwrap().epoch;
        let settlement = settlement(&store, name, epoch, 10).await;
        let gave_up = |position| LogEvent {
            position: Position(position),
            deliver_to: None,
            digest: None,
            event: event("t", "e"),
        };
        let settled = Settlement {
            dead_letters: (1..=letters).map(|position| dead(gave_up(position))).collect(),
            state: vec![write("kéy", Some(&vec![0; value])), write("gone", None)],
            ..settlement
        };
        store.settle(&settled).await.unwrap();
    }
    for (owner, letters, bytes) in
        [("acme", 3, 2 * 4 + 10 + 3_000_000), ("other", 4, 4), ("", 0, 0)]
    {
        assert_eq!(store.tenant_dead_letters(&tenant(owner)).await.unwrap(), letters, "{owner}");
        assert_eq!(store.tenant_state_bytes(&tenant(owner)).await.unwrap(), bytes, "{owner}");
    }
    let letters = store.dead_letters(&DeadLetterFilter::default()).await.unwrap();
    for (owner, letters) in
        [("acme", &letters[..3]), ("other", &letters[3..]), ("nobody", &letters[..0])]
    {
        let all: usize = letters.iter().map(|l| dead_letter_bytes(&l.event, &l.failure)).sum();
        let about = store.tenant_dead_letter_bytes(&tenant(owner)).await.unwrap();
        // Spaces in JSON and the like.
        let difference = about.abs_diff(i64::try_from(all).unwrap());
        assert!(difference <= 100 * letters.len() as u64, "{owner}: {about} for {all}");
    }
    let first = store.dead_letter_ids(&group("one")).await.unwrap()[0];
    store.discard(first).await.unwrap();
    assert_eq!(store.tenant_dead_letters(&tenant("acme")).await.unwrap(), 2);
}
