//! Rows that another client broke: they hurt nobody but their owner.

use std::time::Duration;

use tokio::time::timeout;

use super::{PATIENCE, PostgresDatabase, run};
use event_host_core::event::{HandlerName, Tenant};
use event_host_store::traits::*;
use event_host_store::{
    DeadLetterFilter, DeadLetterId, GroupRegistration, NewVersion, Retention, Start,
};

#[tokio::test]
async fn a_row_that_cannot_be_read_hurts_no_other() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let (tenant, handler): (_, HandlerName) = (Tenant::none(), "h".parse().unwrap());
    let (component, deployed_by) = (&b"one"[..], "ada@here");
    store
        .deploy(NewVersion { tenant: &tenant, handler: &handler, component, deployed_by })
        .await
        .unwrap();
    let settings = GroupRegistration::new("g".parse().unwrap(), tenant);
    store.ensure_group(&settings).await.unwrap();
    let mut owner = database.raw().await;
    run(
        &mut owner,
        "INSERT INTO event_host.deployments (tenant, handler, version, digest, deployed_by, state)
         SELECT t, h, 1, digest, 'x', 'active' FROM event_host.components,
                (VALUES ('', 'no handler!'), ('no tenant!', 'h')) AS broken (t, h);
         INSERT INTO event_host.hosts (id, hostname, pid, backend_pid, backend_start, lock_key)
         SELECT 'id' || n, 'here', n, pid, backend_start, n FROM pg_stat_activity, generate_series(1, 2) n
         WHERE pid = pg_backend_pid();
         INSERT INTO event_host.consumer_groups (name, tenant, subscribe, position, leader_key)
         VALUES ('no group!', '', '{*}', 0, 2), ('h', 'no tenant!', '{*}', 0, 2),
                ('i', '', '{}', 0, NULL);
         UPDATE event_host.consumer_groups SET leader_key = 2 WHERE name = 'g';
         INSERT INTO event_host.host_groups VALUES ('no group!', 'id1'), ('g', 'id1');
         INSERT INTO event_host.dead_letters (
             group_name, position, time, tenant, type, event_id, source, attempts,
             failure_kind, failure_text, digest, dead_at)
         SELECT 'g', n, now(), CASE n WHEN 2 THEN 'no tenant!' ELSE '' END, 'a', n::text, '/', 1,
                'trap', 'it trapped', 'sha256:0', now()
         FROM generate_series(1, 4) n;
         INSERT INTO event_host.events (type) VALUES ('a'), ('a')",
    )
    .await;

    let deployed = store.deployed().await.unwrap();
    assert_eq!(deployed.len(), 1);
    assert_eq!(deployed[0].handler, handler);
    let controls = store.group_states().await.unwrap();
    let names: Vec<&str> = controls.iter().map(|control| control.name.as_str()).collect();
    assert_eq!(names, ["g", "h", "i"], "what a host watches of them can be read");
    let status = store.status().await.unwrap();
    let names: Vec<&str> = status.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["g"]);
    assert_eq!((status.groups[0].lag_events, status.groups[0].dead_letters), (2, 4));
    assert_eq!(status.unreadable.len(), 3, "{:?}", status.unreadable);
    assert!(status.unreadable[2].contains("\"no group!\""), "{:?}", status.unreadable);
    assert_eq!(status.hosts[0].standing_by, ["g".parse().unwrap()]);
    let error = store.group_status(&"h".parse().unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("no tenant!"), "{error}");

    // As many as were asked for, as long as there are so many.
    for (after, limit, expected) in
        [(0, None, &[1, 3, 4][..]), (0, Some(2), &[1, 3]), (1, Some(1), &[3]), (3, Some(9), &[4])]
    {
        let filter = DeadLetterFilter { group: None, after: Some(DeadLetterId(after)), limit };
        let letters = store.dead_letters(&filter).await.unwrap();
        let ids: Vec<i64> = letters.iter().map(|letter| letter.id.0).collect();
        assert_eq!(ids, expected, "{after} {limit:?}");
    }

    // What a group needs stays, whatever it is called.
    let nothing_stays = Retention { max_age: Some(Duration::ZERO), max_bytes: None };
    store.seek(&"g".parse().unwrap(), Start::Latest).await.unwrap();
    run(&mut owner, "DELETE FROM event_host.consumer_groups WHERE name IN ('h', 'i')").await;
    let pinned_by = async {
        loop {
            if let Some(group) = store.enforce_retention(&nothing_stays).await.unwrap().pinned_by {
                return group;
            }
        }
    };
    assert_eq!(timeout(PATIENCE, pinned_by).await.unwrap().as_str(), "?");
    assert_eq!(store.status().await.unwrap().events, 2);
}
