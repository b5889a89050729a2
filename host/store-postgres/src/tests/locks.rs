//! The session that holds a host's locks: that it loses them to nobody, leaves
//! none behind, and knows when it is another's.

use sqlx::PgConnection;

use super::wire::Wire;
use super::{
    PostgresDatabase, group, host, run, says, server_of_its_own, session_at, settings, store_at,
    until, value,
};
use event_host_core::event::GroupName;
use event_host_store::traits::*;
use event_host_store::{LockSession, StoreError};

async fn try_lock(session: &mut Box<dyn LockSession>, name: &str) -> bool {
    session.try_locks(&[group(name)]).await.unwrap()[0]
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
async fn a_thousand_cycles_and_a_dropped_session_leave_no_lock_and_no_warning() {
    let (server, store) = server_of_its_own().await;
    let mut other = session_at(&server.url("postgres")).await;
    let mut session = store.lock_session(&host("one")).await.unwrap();
    let names: Vec<GroupName> = (0..10).map(|n| group(&format!("g{n}"))).collect();
    for n in 0..1_000 {
        let name = &names[n % 10];
        assert!(try_lock(&mut session, name.as_str()).await);
        // Asking again needs no second release, and releasing again is nothing.
        assert!(try_lock(&mut session, name.as_str()).await);
        session.unlock(name).await.unwrap();
        session.unlock(name).await.unwrap();
    }
    assert_eq!(advisory_locks(&mut other).await, 0);
    assert_eq!(session.try_locks(&names).await.unwrap(), [true; 10]);
    assert_eq!(advisory_locks(&mut other).await, 10);
    drop(session);
    until("the server sees it", async || advisory_locks(&mut other).await == 0).await;
    drop(store);
    let log = server.log().unwrap();
    assert!(!log.contains("WARNING") && !log.contains("ERROR"), "{log}");
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
    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert!(try_lock(&mut session, "g").await);
    session.heartbeat(&[]).await.unwrap();
    end_session_of(&mut owner, "one").await;
    let error = session.heartbeat(&[]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let mut other = store.lock_session(&host("two")).await.unwrap();
    assert!(try_lock(&mut other, "g").await, "it is free at once");
}

#[tokio::test]
async fn a_session_that_a_pooler_exchanges_is_refused_and_told_what_to_do() {
    let database = PostgresDatabase::new().await;
    let wire = Wire::to(database.database.url()).await;
    let store = store_at(wire.url());
    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert!(try_lock(&mut session, "g").await);
    wire.exchange_sessions();
    let error = session.heartbeat(&[]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    says(&error, &["changes hands", "pooler", "`lock_database`"]);

    // The same, once the session has spoken the statement before.
    let store = store_at(wire.url());
    let mut session = store.lock_session(&host("two")).await.unwrap();
    session.heartbeat(&[]).await.unwrap();
    wire.exchange_sessions();
    let error = session.heartbeat(&[]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    says(&error, &["pooler"]);
}

#[tokio::test]
async fn a_host_that_is_no_longer_listed_must_open_another_session() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut session = store.lock_session(&host("one")).await.unwrap();
    run(&mut database.raw().await, "DELETE FROM event_host.hosts").await;
    let error = session.heartbeat(&[]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let mut session = store.lock_session(&host("one")).await.unwrap();
    session.heartbeat(&[]).await.unwrap();
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
    assert!(try_lock(&mut leader, "g").await);
    assert!(try_lock(&mut of_another, "h").await);
    let mut standby = store.lock_session(&host("standby")).await.unwrap();

    // A healthy leader is let be, and a slow one within its bound.
    for seconds in [0, 5] {
        silence(&mut owner, "leader", seconds).await;
        standby.heartbeat(&[group("g")]).await.unwrap();
        assert!(!try_lock(&mut standby, "g").await);
    }
    // So is a silent host, while nobody waits for what it holds.
    for silent in ["leader", "of another", "without"] {
        silence(&mut owner, silent, 8).await;
    }
    standby.heartbeat(&[]).await.unwrap();
    for session in [&mut leader, &mut of_another, &mut without] {
        session.heartbeat(&[]).await.unwrap();
    }

    for silent in ["leader", "of another", "without"] {
        silence(&mut owner, silent, 8).await;
    }
    standby.heartbeat(&[group("g")]).await.unwrap();
    until("the lock is free", async || try_lock(&mut standby, "g").await).await;
    assert!(leader.heartbeat(&[]).await.is_err(), "it learns that it leads no more");
    for session in [&mut of_another, &mut without] {
        session.heartbeat(&[]).await.unwrap();
    }
}

#[tokio::test]
async fn a_session_that_has_the_number_of_a_dead_ones_process_is_let_be() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    let mut now = store.lock_session(&host("now")).await.unwrap();
    assert!(try_lock(&mut now, "g").await);
    // A host that is gone had the same process of the server's, a while before:
    // too long ago to be well, and not long enough to be forgotten.
    run(
        &mut owner,
        "INSERT INTO event_host.hosts (id, hostname, pid, seen_at, backend_pid, backend_start)
         SELECT 'gone', 'gone', 1, seen_at - interval '10 minutes', backend_pid,
                backend_start - interval '10 minutes'
         FROM event_host.hosts",
    )
    .await;
    let mut standby = store.lock_session(&host("standby")).await.unwrap();
    standby.heartbeat(&[group("g")]).await.unwrap();
    standby.heartbeat(&[group("g")]).await.unwrap();
    now.heartbeat(&[]).await.unwrap();
    assert!(!try_lock(&mut standby, "g").await);
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

async fn lock_key(session: &mut PgConnection) -> i64 {
    value(session, "SELECT lock_key FROM event_host.consumer_groups WHERE name = 'g'").await
}

#[tokio::test]
async fn a_host_whose_lock_was_replaced_does_not_begin_to_lead_and_takes_the_new_one() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let mut session = store.lock_session(&host("one")).await.unwrap();
    assert!(try_lock(&mut session, "g").await);
    run(&mut owner, "UPDATE event_host.consumer_groups SET lock_key = 42").await;
    let error = store.begin_leadership(&group("g"), &host("one")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    says(&error, &["`g` has another lock"]);
    assert!(session.heartbeat(&[]).await.is_err(), "the session is of no more use");
    drop(session);
    let mut session = store.lock_session(&host("one")).await.unwrap();
    session.heartbeat(&[]).await.unwrap();
    assert!(try_lock(&mut session, "g").await);
    let led = store.begin_leadership(&group("g"), &host("one")).await.unwrap();
    assert_eq!(led.epoch.0, 1);
    let held: i64 = value(
        &mut owner,
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = 42
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .await;
    assert_eq!(held, 1);
}

#[tokio::test]
async fn a_lock_that_no_live_host_holds_is_replaced_once_whoever_holds_it() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let first = lock_key(&mut owner).await;
    let mut stranger = database.raw().await;
    for (take, let_go) in [
        (format!("SELECT pg_advisory_lock({first})"), None),
        (
            format!("BEGIN; SELECT pg_advisory_xact_lock({first}); PREPARE TRANSACTION 'hold'"),
            Some("ROLLBACK PREPARED 'hold'"),
        ),
    ] {
        run(&mut owner, format!("UPDATE event_host.consumer_groups SET lock_key = {first}")).await;
        run(&mut stranger, take).await;
        let mut sessions = Vec::new();
        for name in ["one", "two"] {
            let mut session = store.lock_session(&host(name)).await.unwrap();
            assert!(!try_lock(&mut session, "g").await);
            sessions.push(session);
        }
        let [one, two] = &mut sessions[..] else { unreachable!() };
        let standing_by = [group("g")];
        let (a, b) = tokio::join!(one.heartbeat(&standing_by), two.heartbeat(&standing_by));
        a.unwrap();
        b.unwrap();
        let second = lock_key(&mut owner).await;
        assert_ne!(second, first);
        // Whoever read the key before the other replaced it reads it again.
        for session in [&mut *one, &mut *two] {
            session.heartbeat(&standing_by).await.unwrap();
        }
        assert_eq!(lock_key(&mut owner).await, second, "a lock that nobody holds is let be");
        assert!(try_lock(one, "g").await);
        assert!(!try_lock(two, "g").await);
        store.begin_leadership(&group("g"), &host("one")).await.unwrap();
        for _ in 0..3 {
            two.heartbeat(&standing_by).await.unwrap();
            one.heartbeat(&[]).await.unwrap();
        }
        assert_eq!(lock_key(&mut owner).await, second, "a live host is let be");
        one.unlock(&group("g")).await.unwrap();
        if let Some(let_go) = let_go {
            run(&mut owner, let_go).await;
        }
        stranger = database.raw().await;
    }
}

#[tokio::test]
async fn a_group_is_removed_and_split_whoever_holds_its_lock_and_is_no_host() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let key = lock_key(&mut owner).await;
    run(&mut owner, format!("SELECT pg_advisory_lock({key})")).await;
    let split = event_host_store::GroupRegistration { partitions: 3, ..settings("g") };
    store.ensure_group(&split).await.unwrap();
    store.remove_group(&group("g"), false).await.unwrap();
}
