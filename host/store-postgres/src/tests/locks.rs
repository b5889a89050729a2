//! The session by which a host leads: that it keeps one lock and loses it to nobody, leaves
//! none behind, and knows when it is another's.

use sqlx::{PgConnection, Row};

use super::wire::Wire;
use super::{
    PostgresDatabase, claims, give_back, group, host, run, says, server_of_its_own, session_at,
    settings, store_at, until, value,
};
use crate::locks::OVER;
use event_host_core::event::GroupName;
use event_host_store::traits::*;
use event_host_store::{Claim, Duty, GroupRegistration, LockSession, Release, StoreError};

async fn leads(session: &mut Box<dyn LockSession>, name: &str) -> bool {
    claims(session, &[name]).await[0]
}

async fn advisory_locks(session: &mut PgConnection) -> i64 {
    value(
        session,
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .await
}

#[tokio::test]
async fn a_host_holds_one_lock_whatever_it_leads_and_leaves_none_and_no_warning() {
    let (server, store) = server_of_its_own().await;
    let mut other = session_at(&server.url("postgres")).await;
    let registrations: Vec<GroupRegistration> =
        (0..1_000).map(|n| settings(&format!("g{n}"))).collect();
    store.ensure_groups(&registrations).await.unwrap();
    let mut session = store.lock_session(&host("one")).await.unwrap();
    for n in 0..1_000 {
        let name = &registrations[n % 10].name;
        assert!(leads(&mut session, name.as_str()).await);
        // Claiming again needs no second release, and releasing again is nothing.
        assert!(leads(&mut session, name.as_str()).await);
        give_back(&mut session, name).await;
        give_back(&mut session, name).await;
        if n % 100 == 0 {
            assert_eq!(advisory_locks(&mut other).await, 1);
        }
    }
    let names: Vec<GroupName> = registrations.into_iter().map(|group| group.name).collect();
    session.claim(&names).await.unwrap();
    assert_eq!(advisory_locks(&mut other).await, 1);
    let led = "SELECT count(*) FROM event_host.consumer_groups WHERE leader_key IS NOT NULL";
    assert_eq!(value::<i64>(&mut other, led).await, 1_000);
    drop(session);
    until("the server sees it", async || advisory_locks(&mut other).await == 0).await;
    drop(store);
    let log = server.log().unwrap();
    assert!(!log.contains("WARNING") && !log.contains("ERROR"), "{log}");
}

/// Groups of three hosts that are gone, of which each leads many.
#[tokio::test]
async fn the_lock_of_each_session_is_asked_for_once_however_many_groups_it_led() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    let registrations: Vec<GroupRegistration> =
        (0..300).map(|n| settings(&format!("g{n}"))).collect();
    store.ensure_groups(&registrations).await.unwrap();
    run(
        &mut owner,
        "INSERT INTO event_host.hosts (id, hostname, pid, lock_key)
         SELECT n::text, 'gone', n, n FROM generate_series(1, 3) n;
         UPDATE event_host.consumer_groups SET leader = n::text, leader_key = n
         FROM (SELECT name, row_number() OVER () % 3 + 1 AS n FROM event_host.consumer_groups) s
         WHERE s.name = consumer_groups.name;
         SET enable_seqscan = off",
    )
    .await;
    let names: Vec<String> = registrations.iter().map(|group| group.name.to_string()).collect();
    let explained: String = {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) {OVER}"
        )))
        .bind(&names)
        .bind(99_i64)
        .fetch_all(&mut owner)
        .await
        .unwrap();
        let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        lines.join("\n")
    };
    let asked = explained.split("CTE asked").nth(1).expect("it is a step of its own");
    let step = asked.lines().nth(1).unwrap();
    assert!(step.contains("CTE Scan on leaders") && step.contains("rows=3"), "{explained}");
    assert!(step.contains("loops=1"), "{explained}");
    assert!(!explained.contains("Filter: (pg_try"), "{explained}");
    let mut session = store.lock_session(&host("one")).await.unwrap();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(claims(&mut session, &names).await, [true; 300]);
}

/// Ends the session that `hosts` shows for a host.
async fn end_session_of(session: &mut PgConnection, name: &str) {
    let ended: bool = value(
        session,
        format!(
            "SELECT pg_terminate_backend(backend_pid, 10000) FROM event_host.hosts
             WHERE hostname = '{name}'"
        ),
    )
    .await;
    assert!(ended);
}

#[tokio::test]
async fn a_session_that_was_ended_is_noticed_by_its_next_word() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert!(leads(&mut session, "g").await);
    session.heartbeat(false).await.unwrap();
    end_session_of(&mut owner, "one").await;
    let error = session.heartbeat(false).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let mut other = store.lock_session(&host("two")).await.unwrap();
    assert!(leads(&mut other, "g").await, "it is free at once");
}

#[tokio::test]
async fn a_session_that_a_pooler_exchanges_is_refused_and_told_what_to_do() {
    let database = PostgresDatabase::new().await;
    let wire = Wire::to(database.database.url()).await;
    let store = store_at(wire.url());
    store.ensure_group(&settings("g")).await.unwrap();
    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert!(leads(&mut session, "g").await);
    wire.exchange_sessions();
    let error = session.heartbeat(false).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    says(&error, &["changes hands", "pooler", "`lock_database`"]);

    // The same, once the session has spoken the statement before.
    let store = store_at(wire.url());
    let mut session = store.lock_session(&host("two")).await.unwrap();
    session.heartbeat(false).await.unwrap();
    wire.exchange_sessions();
    let error = session.heartbeat(false).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    says(&error, &["pooler"]);
}

#[tokio::test]
async fn a_host_that_is_no_longer_listed_must_open_another_session() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut session = store.lock_session(&host("one")).await.unwrap();
    run(&mut database.raw().await, "DELETE FROM event_host.hosts").await;
    let error = session.heartbeat(false).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let mut session = store.lock_session(&host("one")).await.unwrap();
    session.heartbeat(false).await.unwrap();
}

/// Has a host been silent for so long, as far as others can see.
async fn silence(session: &mut PgConnection, name: &str, seconds: u32) {
    run(
        session,
        format!(
            "UPDATE event_host.hosts SET seen_at = clock_timestamp() - interval '{seconds} s'
             WHERE hostname = '{name}'"
        ),
    )
    .await;
}

#[tokio::test]
async fn whoever_stands_by_ends_the_session_of_a_silent_leader_and_of_nobody_else() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    for name in ["g", "h"] {
        store.ensure_group(&settings(name)).await.unwrap();
    }
    let mut leader = store.lock_session(&host("leader")).await.unwrap();
    let mut of_another = store.lock_session(&host("of another")).await.unwrap();
    let mut without = store.lock_session(&host("without")).await.unwrap();
    assert!(leads(&mut leader, "g").await);
    assert!(leads(&mut of_another, "h").await);
    let mut standby = store.lock_session(&host("standby")).await.unwrap();
    standby.announce(&[group("g")]).await.unwrap();

    // A healthy leader is let be, and a slow one within its bound.
    for seconds in [0, 5] {
        silence(&mut owner, "leader", seconds).await;
        standby.heartbeat(true).await.unwrap();
        assert!(!leads(&mut standby, "g").await);
    }
    // So is a silent host, while nobody waits for what it holds.
    for silent in ["leader", "of another", "without"] {
        silence(&mut owner, silent, 8).await;
    }
    standby.heartbeat(false).await.unwrap();
    for session in [&mut leader, &mut of_another, &mut without] {
        session.heartbeat(false).await.unwrap();
    }

    for silent in ["leader", "of another", "without"] {
        silence(&mut owner, silent, 8).await;
    }
    standby.heartbeat(true).await.unwrap();
    until("the group is free", async || leads(&mut standby, "g").await).await;
    assert!(leader.heartbeat(false).await.is_err(), "it learns that it leads no more");
    for session in [&mut of_another, &mut without] {
        session.heartbeat(false).await.unwrap();
    }
    assert!(!leads(&mut standby, "h").await);
}

#[tokio::test]
async fn a_duty_is_taken_from_a_host_that_is_silent_and_from_no_other() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    let mut holder = store.lock_session(&host("holder")).await.unwrap();
    let mut standby = store.lock_session(&host("standby")).await.unwrap();
    assert!(holder.claim_duty(Duty::Overview).await.unwrap());
    for seconds in [0, 5] {
        silence(&mut owner, "holder", seconds).await;
        standby.heartbeat(true).await.unwrap();
        assert!(!standby.claim_duty(Duty::Overview).await.unwrap());
        holder.heartbeat(false).await.unwrap();
    }
    silence(&mut owner, "holder", 8).await;
    standby.heartbeat(true).await.unwrap();
    let taken = async || standby.claim_duty(Duty::Overview).await.unwrap();
    until("the duty is free", taken).await;
    assert!(holder.heartbeat(false).await.is_err(), "it learns that it has it no more");
    assert!(holder.claim_duty(Duty::Overview).await.is_err());
}

#[tokio::test]
async fn a_duty_whose_row_somebody_has_locked_is_not_waited_for() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut other = database.raw().await;
    run(&mut other, "BEGIN; SELECT FROM event_host.duties FOR UPDATE").await;
    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert!(!session.claim_duty(Duty::Overview).await.unwrap());
    session.heartbeat(true).await.unwrap();
    run(&mut other, "COMMIT").await;
    assert!(session.claim_duty(Duty::Overview).await.unwrap());
}

#[tokio::test]
async fn a_session_that_has_the_number_of_a_dead_ones_process_is_let_be() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let mut now = store.lock_session(&host("now")).await.unwrap();
    now.announce(&[group("g")]).await.unwrap();
    assert!(leads(&mut now, "g").await);
    // A host that is gone had the same process of the server's, a while before:
    // too long ago to be well, and not long enough to be forgotten.
    run(
        &mut owner,
        "INSERT INTO event_host.hosts (id, hostname, pid, seen_at, backend_pid, backend_start, lock_key)
         SELECT 'gone', 'gone', 1, seen_at - interval '10 minutes', backend_pid,
                backend_start - interval '10 minutes', 42
         FROM event_host.hosts",
    )
    .await;
    let mut standby = store.lock_session(&host("standby")).await.unwrap();
    standby.announce(&[group("g")]).await.unwrap();
    standby.heartbeat(true).await.unwrap();
    standby.heartbeat(true).await.unwrap();
    now.heartbeat(false).await.unwrap();
    assert!(!leads(&mut standby, "g").await);
    let hosts = store.status().await.unwrap().hosts;
    let names: Vec<&str> = hosts.iter().map(|host| &*host.host.hostname).collect();
    assert_eq!(names, ["now", "standby"], "and the dead one is not shown");
    let known: i64 = value(&mut owner, "SELECT count(*) FROM event_host.hosts").await;
    assert_eq!(known, 3, "though it is still known");
    assert_eq!(hosts[1].standing_by, [group("g")]);
}

#[tokio::test]
async fn a_host_that_is_gone_for_an_hour_is_forgotten_unless_something_still_names_it() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    let connected = store.lock_session(&host("connected")).await.unwrap();
    for name in ["gone", "named"] {
        drop(store.lock_session(&host(name)).await.unwrap());
    }
    until("their sessions are gone", async || {
        value::<i64>(
            &mut owner,
            "SELECT count(*) FROM event_host.hosts h JOIN pg_stat_activity a ON a.pid = h.backend_pid",
        )
        .await
            == 1
    })
    .await;
    store.ensure_group(&settings("g")).await.unwrap();
    store.begin_leadership(&group("g"), &host("named")).await.unwrap();
    for name in ["connected", "gone", "named"] {
        silence(&mut owner, name, 3_601).await;
    }
    drop(store.lock_session(&host("new")).await.unwrap());
    let names: Vec<String> =
        sqlx::query_scalar("SELECT hostname FROM event_host.hosts ORDER BY hostname")
            .fetch_all(&mut owner)
            .await
            .unwrap();
    assert_eq!(names, ["connected", "named", "new"]);
    drop(connected);
}

/// The key of a host's lock, which everybody sees.
async fn key_of(session: &mut PgConnection, name: &str) -> Option<i64> {
    let sql = format!("SELECT lock_key FROM event_host.hosts WHERE hostname = '{name}'");
    value(session, sql).await
}

#[tokio::test]
async fn each_session_has_a_lock_that_no_other_ever_had() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    let mut keys = std::collections::BTreeSet::new();
    for _ in 0..5 {
        let session = store.lock_session(&host("one")).await.unwrap();
        assert!(keys.insert(key_of(&mut owner, "one").await));
        drop(session);
    }
}

#[tokio::test]
async fn the_groups_of_a_host_that_is_gone_are_claimed_whoever_holds_its_lock() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let mut two = store.lock_session(&host("two")).await.unwrap();
    for (lock, prepare) in [
        ("pg_advisory_xact_lock", false),
        ("pg_advisory_xact_lock_shared", false),
        ("pg_advisory_xact_lock", true),
    ] {
        let mut one = store.lock_session(&host("one")).await.unwrap();
        assert!(leads(&mut one, "g").await);
        let key = key_of(&mut owner, "one").await.unwrap();
        // It queues behind the host that lives, and is there first once that is gone.
        let mut stranger = database.raw().await;
        let waits: i32 = value(&mut stranger, "SELECT pg_backend_pid()").await;
        let queues = tokio::spawn(async move {
            run(&mut stranger, format!("BEGIN; SELECT {lock}({key})")).await;
            if prepare {
                run(&mut stranger, "PREPARE TRANSACTION 'hold'").await;
            }
            stranger
        });
        let queued = format!(
            "SELECT count(*) FROM pg_locks WHERE pid = {waits} AND locktype = 'advisory' AND NOT granted"
        );
        until("it queues", async || value::<i64>(&mut owner, queued.clone()).await == 1).await;
        two.heartbeat(true).await.unwrap();
        assert!(!leads(&mut two, "g").await, "the host lives");
        drop(one);
        let stranger = queues.await.unwrap();
        // One that is shared keeps nobody from it in the first place.
        let is_shared = lock.ends_with("shared");
        assert_eq!(leads(&mut two, "g").await, is_shared, "the lock is held");
        two.heartbeat(true).await.unwrap();
        assert_eq!(key_of(&mut owner, "one").await, None, "and is no host's any more");
        assert!(leads(&mut two, "g").await);
        for _ in 0..3 {
            two.heartbeat(true).await.unwrap();
        }
        give_back(&mut two, &group("g")).await;
        drop(stranger);
        if prepare {
            run(&mut owner, "ROLLBACK PREPARED 'hold'").await;
        }
    }
}

#[tokio::test]
async fn a_host_that_is_taken_for_gone_and_lives_leads_nothing_more() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    store.ensure_groups(&["g", "h"].map(settings)).await.unwrap();
    let mut one = store.lock_session(&host("one")).await.unwrap();
    assert!(leads(&mut one, "g").await);
    run(&mut owner, "UPDATE event_host.hosts SET lock_key = NULL").await;
    assert!(store.begin_leadership(&group("g"), &host("one")).await.is_err());
    assert!(one.claim(&[group("h")]).await.is_err(), "nor does it claim what is free");
    let mut two = store.lock_session(&host("two")).await.unwrap();
    assert!(leads(&mut two, "g").await);
    let error = one.heartbeat(false).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn a_row_that_somebody_has_locked_keeps_no_other_group_from_being_led_or_given_back() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    store.ensure_groups(&["f", "g", "h"].map(settings)).await.unwrap();
    let mut other = database.raw().await;
    let lock = "BEGIN; SELECT FROM event_host.consumer_groups WHERE name = 'g' FOR UPDATE";
    run(&mut other, lock).await;
    let mut session = store.lock_session(&host("one")).await.unwrap();
    let all = ["f", "g", "h"].map(group);
    let claimed = session.claim(&all).await.unwrap();
    let [Claim::Led(_), Claim::Unavailable(why), Claim::Led(_)] = &claimed[..] else {
        panic!("{claimed:?}");
    };
    assert!(why.contains("another transaction has the row"), "{why}");
    run(&mut other, "COMMIT").await;
    assert_eq!(claims(&mut session, &["f", "g", "h"]).await, [true; 3]);

    run(&mut other, lock).await;
    let releases = all.clone().map(|group| Release { group, ended: None });
    assert_eq!(session.release(&releases).await.unwrap(), [group("g")]);
    let mut next = store.lock_session(&host("two")).await.unwrap();
    assert_eq!(claims(&mut next, &["f", "g", "h"]).await, [true, false, true]);
    run(&mut other, "COMMIT").await;
    assert_eq!(session.release(&releases).await.unwrap(), []);
    assert_eq!(claims(&mut next, &["f", "g", "h"]).await, [true; 3]);
}

#[tokio::test]
async fn a_row_that_cannot_be_read_keeps_no_other_group_from_being_led() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    store.ensure_groups(&["g", "h"].map(settings)).await.unwrap();
    let mut owner = database.raw().await;
    run(
        &mut owner,
        "ALTER TABLE event_host.consumer_groups DROP CONSTRAINT state_is_running_paused_or_tripped;
         UPDATE event_host.consumer_groups SET state = 'dreaming' WHERE name = 'g'",
    )
    .await;
    let mut session = store.lock_session(&host("one")).await.unwrap();
    let claimed = session.claim(&["g", "h"].map(group)).await.unwrap();
    assert!(matches!(claimed[..], [Claim::Unavailable(_), Claim::Led(_)]), "{claimed:?}");
    let led = "SELECT count(*) FROM event_host.consumer_groups WHERE leader_key IS NOT NULL";
    assert_eq!(value::<i64>(&mut owner, led).await, 1);
}

#[tokio::test]
async fn a_group_is_removed_and_split_whoever_holds_the_lock_of_a_host_that_is_gone() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert!(leads(&mut session, "g").await);
    let key = key_of(&mut owner, "one").await.unwrap();
    drop(session);
    let mut stranger = database.raw().await;
    run(&mut stranger, format!("SELECT pg_advisory_lock({key})")).await;
    let split = GroupRegistration { partitions: 3, ..settings("g") };
    store.ensure_group(&split).await.unwrap();
    store.remove_group(&group("g"), false).await.unwrap();
}
