//! What a role can do with exactly what `grants` gives it, and what it cannot.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::FutureExt;
use jiff::SignedDuration;
use sqlx::PgConnection;

use super::{
    PostgresDatabase, PostgresStore, claims, dead, first_settlement, give_back, group, host,
    publish, redelivery, run, seen, session_at, settings, store_at, try_to_run, types, until,
};
use crate::{Purpose, grants};
use event_host_core::digest::Digest;
use event_host_core::event::{Attempt, Epoch, Event, Position, Tenant};
use event_host_store::traits::*;
use event_host_store::{
    Blocker, DeadLetterFilter, Deployment, GroupRegistration, GroupState, Incoming, Ingested,
    LockSession, Mark, NewVersion, Retention, ScheduleRegistration, Settled, Settlement, Start,
    StateWrite, StoreError, Ticked, Ticks,
};

/// A role that may log in and has been granted something.
struct Role {
    name: String,
    url: String,
}

impl Role {
    fn store(&self) -> PostgresStore {
        store_at(&self.url)
    }

    async fn session(&self) -> PgConnection {
        session_at(&self.url).await
    }
}

/// Runs a test with a role of its own, which is gone afterwards: roles belong to
/// the whole server. Its name needs quotes.
async fn with_role(
    database: &PostgresDatabase,
    purpose: Option<Purpose>,
    test: impl AsyncFnOnce(&Role),
) {
    let mut owner = database.raw().await;
    let name = format!("Test \"{:016x}", fastrand::u64(..));
    let quoted = name.replace('"', "\"\"");
    run(&mut owner, format!("CREATE ROLE \"{quoted}\" LOGIN PASSWORD 'secret'")).await;
    if let Some(purpose) = purpose {
        run(&mut owner, grants(&name, purpose)).await;
    }
    let url = database.database.url();
    let address =
        url.rsplit_once('@').map_or_else(|| url.trim_start_matches("postgres://"), |(_, at)| at);
    let user = percent_encoding::utf8_percent_encode(&name, percent_encoding::NON_ALPHANUMERIC);
    let role = Role { url: format!("postgres://{user}:secret@{address}"), name };
    let outcome = AssertUnwindSafe(test(&role)).catch_unwind().await;
    run(&mut owner, format!("DROP OWNED BY \"{quoted}\"; DROP ROLE \"{quoted}\"")).await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

async fn code(session: &mut PgConnection, sql: &str) -> String {
    let error = try_to_run(session, sql).await.expect_err(sql);
    error.as_database_error().unwrap().code().unwrap().into_owned()
}

async fn deploy(store: &PostgresStore, component: &[u8]) -> Result<Deployment, StoreError> {
    let (tenant, handler) = (Tenant::none(), "h".parse().unwrap());
    let deployed_by = "ada@here";
    store.deploy(NewVersion { tenant: &tenant, handler: &handler, component, deployed_by }).await
}

const FORBIDDEN: &str = "42501";

#[tokio::test]
async fn an_inserter_publishes_either_way_and_does_nothing_else() {
    let database = PostgresDatabase::new().await;
    with_role(&database, Some(Purpose::Inserter), async |role| {
        let mut session = role.session().await;
        for sql in [
            "SELECT event_host.publish('a', '{\"n\": 1}', subject => 's')",
            "INSERT INTO event_host.events (type, data) VALUES ('b', '1')",
            "INSERT INTO event_host.events (type, id, source, subject, time, datacontenttype,
                                            dataschema, partitionkey, extensions, deliver_after)
             VALUES ('c', 'i', '/s', 's', now(), 't/t', 'x:y', 'k', '{\"a\": 1}', now())",
            "BEGIN; SELECT event_host.publish('d'); COMMIT",
        ] {
            run(&mut session, sql).await;
        }
        assert_eq!(types(&database.store()).await, ["a", "b", "c", "d"]);

        for sql in [
            "SELECT * FROM event_host.events",
            "SELECT position FROM event_host.events",
            "INSERT INTO event_host.events (type) VALUES ('x') RETURNING position",
            "INSERT INTO event_host.events (type, tenant) VALUES ('x', 'other')",
            "INSERT INTO event_host.events (type, deliver_to) VALUES ('x', 'g')",
            "INSERT INTO event_host.events (type, digest) VALUES ('x', NULL)",
            "INSERT INTO event_host.events (type, published_at) VALUES ('x', now())",
            "INSERT INTO event_host.events (position, type) VALUES (9, 'x')",
            "INSERT INTO event_host.events_0 (position, type) VALUES (9, 'x')",
            "INSERT INTO event_host.events_elsewhere (position, type) VALUES (-9, 'x')",
            "SELECT * FROM event_host.events_0",
            "SELECT * FROM event_host.partitions",
            "SELECT * FROM event_host.log_pins",
            "SELECT * FROM event_host.retention",
            "SELECT event_host.make_partition(7)",
            "SELECT event_host.begin_partition(1)",
            "SELECT event_host.empty_partition(0)",
            "SELECT event_host.drop_partition(0)",
            "SELECT event_host.add_partition('mine', 'DEFAULT')",
            "UPDATE event_host.events SET type = 'x'",
            "DELETE FROM event_host.events",
            "TRUNCATE event_host.events",
            "DO $$ BEGIN LOCK TABLE event_host.events IN ACCESS EXCLUSIVE MODE; END $$",
            "SELECT nextval('event_host.events_position_seq')",
            "SELECT setval('event_host.events_position_seq', 1)",
            "SELECT last_value FROM event_host.events_position_seq",
            "SELECT * FROM event_host.look_at_the_end(0)",
            "SELECT * FROM event_host.consumer_groups",
            "UPDATE event_host.consumer_groups SET position = 0",
            "SELECT * FROM event_host.redeliveries",
            "SELECT * FROM event_host.deferred",
            "SELECT * FROM event_host.dead_letters",
            "DELETE FROM event_host.dead_letters",
            "SELECT * FROM event_host.state",
            "SELECT * FROM event_host.hosts",
            "SELECT * FROM event_host.home",
            "SELECT * FROM event_host.schedules",
            "SELECT * FROM event_host.components",
            "SELECT * FROM event_host.deployments",
            "SELECT * FROM event_host.migrations",
            "CREATE TABLE event_host.mine (id int)",
            "ALTER TABLE event_host.events DISABLE TRIGGER ALL",
            "CREATE OR REPLACE FUNCTION event_host.refuse_change() RETURNS trigger
             LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        ] {
            assert_eq!(code(&mut session, sql).await, FORBIDDEN, "{sql}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_ingest_role_takes_events_in_for_all_and_sees_none_of_them() {
    let database = PostgresDatabase::new().await;
    with_role(&database, Some(Purpose::Ingest), async |role| {
        let store = role.store();
        store.check_schema(true).await.unwrap();
        let request = |owner: &str, id: &str| Incoming {
            tenant: owner.parse().unwrap(),
            events: vec![Event::new(id, "/s", "t", jiff::Timestamp::UNIX_EPOCH)],
            window: Some(std::time::Duration::from_secs(60)),
            also_known_as: vec![format!("also {id}")],
        };
        let requests = [request("", "1"), request("acme", "1"), request("", "2")];
        store.ingest(&requests).await.unwrap();
        let again = store.ingest(&requests).await.unwrap();
        assert!(matches!(&again[0], Ingested::Committed(placed) if placed[0].is_duplicate));
        store.prune_ledger(Some(1)).await.unwrap();
        store.log_bytes().await.unwrap();
        assert_eq!(types(&database.store()).await, ["t", "t"]);

        let mut session = role.session().await;
        for sql in [
            "SELECT type FROM event_host.events",
            "SELECT data FROM event_host.events",
            "INSERT INTO event_host.events (type, deliver_to) VALUES ('x', 'g')",
            "INSERT INTO event_host.events (type, published_at) VALUES ('x', now())",
            "INSERT INTO event_host.events (position, type) VALUES (9, 'x')",
            "UPDATE event_host.events SET type = 'x'",
            "DELETE FROM event_host.events",
            "SELECT nextval('event_host.events_position_seq')",
            "SELECT * FROM event_host.consumer_groups",
            "SELECT * FROM event_host.dead_letters",
            "SELECT * FROM event_host.state",
            "SELECT * FROM event_host.components",
            "INSERT INTO event_host.migrations DEFAULT VALUES",
        ] {
            assert_eq!(code(&mut session, sql).await, FORBIDDEN, "{sql}");
        }
    })
    .await;
}

/// A role that publishes by the function alone draws no position in any other way.
#[tokio::test]
async fn a_publisher_draws_positions_by_publishing_alone() {
    let database = PostgresDatabase::new().await;
    with_role(&database, Some(Purpose::Publisher), async |role| {
        let mut session = role.session().await;
        run(&mut session, "SELECT event_host.publish('a', '{\"n\": 1}', subject => 's')").await;
        for sql in [
            "SELECT event_host.next_position()",
            "SELECT event_host.next_position() FROM generate_series(1, 1000000)",
            "CREATE TEMPORARY TABLE mine (p bigint DEFAULT event_host.next_position());
             INSERT INTO mine DEFAULT VALUES",
            "SELECT nextval('event_host.events_position_seq')",
            "INSERT INTO event_host.events (type) VALUES ('x')",
            "SELECT * FROM event_host.events",
        ] {
            assert_eq!(code(&mut session, sql).await, FORBIDDEN, "{sql}");
        }
        // Nothing of that has drawn one.
        run(&mut session, "SELECT event_host.publish('b')").await;
        let positions: Vec<i64> =
            seen(&database.store()).await.iter().map(|event| event.position.0).collect();
        assert_eq!(positions, [1, 2]);
    })
    .await;
}

#[tokio::test]
async fn a_role_without_grants_can_do_nothing() {
    let database = PostgresDatabase::new().await;
    with_role(&database, None, async |role| {
        let mut session = role.session().await;
        for sql in [
            "SELECT event_host.publish('a')",
            "INSERT INTO event_host.events (type) VALUES ('a')",
            "SELECT * FROM event_host.events",
        ] {
            assert_eq!(code(&mut session, sql).await, FORBIDDEN, "{sql}");
        }
        // And with the schema alone, which everybody might be given.
        let mut owner = database.raw().await;
        let name = role.name.replace('"', "\"\"");
        run(&mut owner, format!("GRANT USAGE ON SCHEMA event_host TO \"{name}\"")).await;
        for sql in ["SELECT event_host.publish('a')", "SELECT event_host.look_at_the_end(0)"] {
            assert_eq!(code(&mut session, sql).await, FORBIDDEN, "{sql}");
        }
        let error = role.store().check_schema(true).await.unwrap_err();
        super::says(&error, &["may not do that", "host grants"]);
    })
    .await;
}

#[tokio::test]
async fn publishing_is_safe_from_what_its_caller_puts_in_its_way() {
    let database = PostgresDatabase::new().await;
    with_role(&database, Some(Purpose::Publisher), async |role| {
        let mut owner = database.raw().await;
        run(
            &mut owner,
            "CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO PUBLIC;
             CREATE FUNCTION trap.now() RETURNS timestamptz
             LANGUAGE sql AS $$ SELECT 'epoch'::timestamptz $$;
             CREATE FUNCTION trap.gen_random_uuid() RETURNS uuid
             LANGUAGE sql AS $$ SELECT '00000000-0000-0000-0000-000000000000'::uuid $$",
        )
        .await;
        let mut session = role.session().await;
        run(&mut session, "SET search_path = trap, pg_catalog; SELECT event_host.publish('a')")
            .await;
        let events = seen(&database.store()).await;
        assert_eq!(events.len(), 1);
        assert!(!events[0].event.id.starts_with("00000000"));
        assert!(events[0].event.time > "2020-01-01T00:00:00Z".parse().unwrap());
    })
    .await;
}

/// Three events, handled by `g`, which a host of another role leads, and given
/// up on.
async fn given_up_on(store: &PostgresStore) -> Box<dyn LockSession> {
    let mut session = store.lock_session(&host("one")).await.unwrap();
    store.ensure_group(&settings("g")).await.unwrap();
    assert_eq!(claims(&mut session, &["g"]).await, [true]);
    for event_type in ["a", "b", "c"] {
        publish(store, event_type).await;
    }
    let events = seen(store).await;
    let settlement = Settlement {
        dead_letters: events.into_iter().map(dead).collect(),
        state: vec![StateWrite { scope: String::new(), key: "k".into(), value: Some(vec![1]) }],
        redeliveries: vec![redelivery(1, 2), redelivery(3, 2)],
        ..first_settlement("g", 3)
    };
    assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
    session
}

#[tokio::test]
async fn an_operator_can_do_all_that_the_commands_do() {
    let database = PostgresDatabase::new().await;
    let owner = database.store();
    let session = given_up_on(&owner).await;
    with_role(&database, Some(Purpose::Operator), async |role| {
        let store = role.store();
        store.check_schema(true).await.unwrap();
        store.check().await.unwrap();
        let status = store.status().await.unwrap();
        assert_eq!((status.events, status.last_position), (3, Position(3)));
        let g = &status.groups[0];
        assert_eq!(g.leader.as_ref().map(|leader| &*leader.host.hostname), Some("one"));
        assert_eq!((g.dead_letters, g.parked), (3, 2));
        let hosts: Vec<_> = status.hosts.iter().map(|host| &*host.host.hostname).collect();
        assert_eq!(hosts, ["one"], "though its session is another role's");

        let name = group("g");
        store.group_status(&name).await.unwrap();
        store.group_states().await.unwrap();
        store.cursor(&name).await.unwrap();
        store.pause(&name, "a reason").await.unwrap();
        store.resume(&name).await.unwrap();
        for to in [
            Start::Earliest,
            Start::Latest,
            Start::Position(Position(1)),
            Start::Time(jiff::Timestamp::UNIX_EPOCH),
        ] {
            store.seek(&name, to).await.unwrap();
        }
        let ids = store.dead_letter_ids(&name).await.unwrap();
        let filter = DeadLetterFilter { group: Some(name.clone()), ..Default::default() };
        assert_eq!(store.dead_letters(&filter).await.unwrap().len(), 3);
        assert_eq!(store.dead_letters(&DeadLetterFilter::default()).await.unwrap().len(), 3);
        store.dead_letter(ids[0]).await.unwrap();
        store.replay(ids[0], Some(b"other"), None).await.unwrap();
        let replayed = store.replay_some(&name, ids[0], ids[1], 10, None).await.unwrap();
        assert_eq!(replayed.len(), 1);
        store.discard(ids[2]).await.unwrap();
        publish(&store, "by hand").await;
        for component in [&b"one"[..], b"two", b"two"] {
            deploy(&store, component).await.unwrap();
        }
        let (tenant, handler) = (Tenant::none(), "h".parse().unwrap());
        store.rollback(&tenant, &handler, None).await.unwrap();
        assert_eq!(store.versions(&tenant, &handler).await.unwrap().len(), 2);
        assert_eq!(store.deployed().await.unwrap().len(), 1);
        store.component(&tenant, &Digest::of(b"two")).await.unwrap();
        assert_eq!(store.adopt().await.unwrap().groups, []);

        let error = store.remove_group(&name, true).await.unwrap_err();
        super::says(&error, &["is led by process 4711 on one"]);
        drop(session);
        until("it is removed", async || store.remove_group(&name, true).await.is_ok()).await;

        // A log that was restored elsewhere.
        let mut raw = database.raw().await;
        run(&mut raw, "UPDATE event_host.home SET system_identifier = 1").await;
        assert_eq!(store.adopt().await.unwrap().from, Some(1));

        let mut session = role.session().await;
        for sql in [
            "UPDATE event_host.events SET type = 'x'",
            "DELETE FROM event_host.events",
            "TRUNCATE event_host.events",
            "INSERT INTO event_host.events (position, type) VALUES (9, 'x')",
            "INSERT INTO event_host.events_0 (position, type) VALUES (9, 'x')",
            "SELECT event_host.empty_partition(0)",
            "UPDATE event_host.retention SET max_bytes = 0",
            "SELECT nextval('event_host.events_position_seq')",
            "SELECT setval('event_host.events_position_seq', 1)",
            "INSERT INTO event_host.dead_letters (group_name) VALUES ('g')",
            "UPDATE event_host.dead_letters SET attempts = 0",
            "UPDATE event_host.redeliveries SET attempt = 0",
            "INSERT INTO event_host.redeliveries (group_name) VALUES ('g')",
            "UPDATE event_host.state SET value = ''",
            "DELETE FROM event_host.hosts",
            "DELETE FROM event_host.home",
            "UPDATE event_host.components SET digest = 'x'",
            "DELETE FROM event_host.components",
            "UPDATE event_host.deployments SET digest = 'x'",
            "UPDATE event_host.deployments SET deployed_by = 'x'",
            "DELETE FROM event_host.deployments",
            "UPDATE event_host.migrations SET version = 7",
            "CREATE TABLE event_host.mine (id int)",
        ] {
            assert_eq!(code(&mut session, sql).await, FORBIDDEN, "{sql}");
        }
    })
    .await;
}

#[tokio::test]
async fn who_holds_the_log_up_is_named_as_far_as_the_role_may_see() {
    let database = PostgresDatabase::new().await;
    let mut holder = database.raw().await;
    run(
        &mut holder,
        "SET application_name = 'shop'; BEGIN;
         INSERT INTO event_host.events (type) VALUES ('a')",
    )
    .await;
    let process = i64::from(super::pid(&mut holder).await);
    let user: String = super::value(&mut holder, "SELECT current_user::text").await;
    for purpose in [Purpose::Operator, Purpose::Host] {
        with_role(&database, Some(purpose), async |role| {
            let store = role.store();
            let held = store.status().await.unwrap().held_up_by;
            let unseen = Blocker {
                pid: Some(process),
                prepared: None,
                application: "shop".to_owned(),
                user: user.clone(),
                age_seconds: None,
            };
            assert_eq!(held, [unseen], "since when is not shown to everybody");

            // The remark below the grants says what shows the rest.
            let remark = grants(&role.name, purpose);
            let more = remark.lines().filter_map(|line| line.strip_prefix("-- GRANT "));
            let more: String = more.map(|right| format!("GRANT {right}")).collect();
            run(&mut database.raw().await, more).await;
            let mut held = Vec::new();
            until("it has held the log up for a second", async || {
                held = store.status().await.unwrap().held_up_by;
                !held.is_empty()
            })
            .await;
            let [Blocker { pid: Some(of), age_seconds: Some(age), .. }] = &held[..] else {
                panic!("{held:?}");
            };
            assert_eq!(*of, process);
            assert!(*age >= 1.0, "{age}");
        })
        .await;
    }
}

/// Does all that a host does for a schedule.
async fn run_a_schedule(store: &PostgresStore) {
    let schedule = ScheduleRegistration {
        name: "daily".parse().unwrap(),
        tenant: Tenant::none(),
        cron: "@daily".to_owned(),
        timezone: "UTC".to_owned(),
    };
    for _ in 0..2 {
        store.register_schedule(&schedule).await.unwrap();
    }
    let after = store.register_schedule(&schedule).await.unwrap().done_to;
    let done_to = after + SignedDuration::from_micros(1);
    let ticks = Ticks {
        schedule: &schedule.name,
        tenant: &schedule.tenant,
        after,
        done_to,
        last: Some(done_to),
        events: &[super::event("tick")],
    };
    assert_eq!(store.tick(ticks).await.unwrap(), Ticked::Published);
    store.record_schedules(std::slice::from_ref(&schedule.name)).await.unwrap();
    assert_eq!(store.schedules().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_host_can_do_all_that_running_handlers_takes() {
    let database = PostgresDatabase::new().await;
    with_role(&database, Some(Purpose::Host), async |role| {
        let store = role.store();
        store.check_schema(true).await.unwrap();
        assert_eq!(store.migrate().await.unwrap(), Vec::<String>::new(), "there is nothing to do");
        store.check().await.unwrap();
        let mut session = store.lock_session(&host("one")).await.unwrap();
        store.ensure_group(&settings("g")).await.unwrap();
        store.ensure_group(&settings("g")).await.unwrap();
        assert_eq!(claims(&mut session, &["g"]).await, [true]);
        session.heartbeat(true).await.unwrap();
        session.announce(&[group("g")]).await.unwrap();
        assert_eq!(session.roster().await.unwrap().unwrap().groups.len(), 1);
        session.announce(&[]).await.unwrap();
        assert!(store.control_version().await.unwrap().is_some());
        store.ensure_groups(&[settings("g")]).await.unwrap();
        publish(&store, "a").await;
        let name = group("g");
        let event = seen(&store).await.remove(0);
        assert!(store.blockers().await.unwrap().is_empty());
        store.record_work_started(&name, Epoch(1), 0).await.unwrap();
        let mark = Mark { position: Position(1), attempt: Attempt(1) };
        store.withdraw_attempt(&name, Epoch(1)).await.unwrap();
        store.record_attempt_started(&name, Epoch(1), 0, mark).await.unwrap();
        assert!(!store.is_alive_since("nobody", &name).await.unwrap());
        let write = |value| StateWrite { scope: String::new(), key: "k".into(), value };
        let parked = || vec![redelivery(1, 2)];
        for (number, state, redeliveries, redelivered) in [
            (1, vec![write(Some(vec![1]))], parked(), vec![]),
            (2, vec![write(Some(vec![2]))], parked(), vec![]),
            (3, vec![write(None)], vec![], vec![Position(1)]),
        ] {
            let settlement = Settlement {
                number,
                dead_letters: vec![dead(event.clone())],
                emits: vec![super::event("emitted")],
                state,
                redeliveries,
                redelivered,
                ..first_settlement("g", 1)
            };
            assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
            store.state_get(&name, "", "k").await.unwrap();
            store.redeliveries(&name).await.unwrap();
            store.fetch_at(&name, &[Position(1)], 1).await.unwrap();
        }
        store.state_keys(&name, "", "", 10).await.unwrap();
        store.state_key_count(&name).await.unwrap();
        store.cursor(&name).await.unwrap();
        store.group_states().await.unwrap();
        store.status().await.unwrap();
        assert_eq!(store.group_status(&name).await.unwrap().state, GroupState::Running);
        give_back(&mut session, &name).await;
        store.seek(&name, Start::Latest).await.unwrap();
        super::retention::enforce_all(&store).await;
        assert_eq!(types(&store).await, Vec::<String>::new());
        store.enforce_retention(&Retention::FOREVER).await.unwrap();
        for partitions in [3, 2, 1] {
            let split = GroupRegistration { partitions, ..settings("split") };
            store.ensure_group(&split).await.unwrap();
        }
        publish(&store, "after").await;
        assert_eq!(types(&store).await, ["after"]);
        run_a_schedule(&store).await;

        let owner = database.store();
        for component in [&b"one"[..], b"two"] {
            deploy(&owner, component).await.unwrap();
        }
        let (tenant, handler) = (Tenant::none(), "h".parse().unwrap());
        assert_eq!(store.deployed().await.unwrap().len(), 1);
        assert_eq!(store.versions(&tenant, &handler).await.unwrap().len(), 2);
        store.component(&tenant, &Digest::of(b"two")).await.unwrap();
        store.rollback(&tenant, &handler, None).await.unwrap();
        let error = deploy(&store, b"three").await.unwrap_err();
        super::says(&error, &["this role may not do that", "host grants"]);

        let mut raw = role.session().await;
        for sql in [
            "UPDATE event_host.events SET type = 'x'",
            "DELETE FROM event_host.events",
            "INSERT INTO event_host.events (position, type) VALUES (9, 'x')",
            "INSERT INTO event_host.events_elsewhere (position, type) VALUES (-9, 'x')",
            "TRUNCATE event_host.events_elsewhere",
            "DROP TABLE event_host.events_elsewhere",
            "SELECT event_host.add_partition('mine', 'DEFAULT')",
            "SELECT nextval('event_host.events_position_seq')",
            "SELECT setval('event_host.events_position_seq', 1)",
            "DELETE FROM event_host.dead_letters",
            "DELETE FROM event_host.consumer_groups",
            "UPDATE event_host.home SET system_identifier = 1",
            "INSERT INTO event_host.components SELECT * FROM event_host.components",
            "UPDATE event_host.components SET bytes = ''",
            "INSERT INTO event_host.deployments SELECT * FROM event_host.deployments",
            "UPDATE event_host.deployments SET digest = 'x'",
            "DELETE FROM event_host.deployments",
            "DELETE FROM event_host.migrations",
            "CREATE TABLE event_host.mine (id int)",
        ] {
            assert_eq!(code(&mut raw, sql).await, FORBIDDEN, "{sql}");
        }
    })
    .await;
}

#[tokio::test]
async fn not_even_the_owner_gives_an_event_a_position_of_its_own() {
    let database = PostgresDatabase::new().await;
    let empty = test_databases::Database::create().await;
    with_role(&database, None, async |role| {
        let mut owner = session_at(empty.url()).await;
        let (name, at) = (role.name.replace('"', "\"\""), empty.name());
        run(&mut owner, format!("GRANT CREATE ON DATABASE {at} TO \"{name}\"")).await;
        let url = role.url.replace(database.database.name(), at);
        let store = store_at(&url);
        store.migrate().await.unwrap();
        publish(&store, "a").await;
        let mut session = session_at(&url).await;
        for sql in [
            "SELECT event_host.publish('b')",
            "INSERT INTO event_host.events (type, tenant, deliver_to) VALUES ('c', '', NULL)",
        ] {
            run(&mut session, sql).await;
        }
        for table in ["events", "events_0", "events_elsewhere"] {
            let given = format!("INSERT INTO event_host.{table} (position, type) VALUES (99, 'x')");
            assert_eq!(code(&mut session, &given).await, FORBIDDEN);
        }
        assert_eq!(types(&store).await, ["a", "b", "c"]);
        super::retention::enforce_all(&store).await;
        assert_eq!(types(&store).await, Vec::<String>::new());
        run(&mut owner, format!("DROP OWNED BY \"{name}\" CASCADE")).await;
    })
    .await;
}

#[tokio::test]
async fn a_silent_leader_that_a_host_may_not_end_is_got_round() {
    for more in [None, Some("pg_read_all_stats"), Some("pg_read_all_stats, pg_signal_backend")] {
        let database = PostgresDatabase::new().await;
        let owner = database.store();
        let mut theirs = owner.lock_session(&host("one")).await.unwrap();
        owner.ensure_groups(&["g", "h"].map(settings)).await.unwrap();
        assert_eq!(claims(&mut theirs, &["g"]).await, [true]);
        let mut raw = database.raw().await;
        with_role(&database, Some(Purpose::Host), async |role| {
            let name = role.name.replace('"', "\"\"");
            if let Some(more) = more {
                run(&mut raw, format!("GRANT {more} TO \"{name}\"")).await;
            }
            let store = role.store();
            let mut ours = store.lock_session(&host("two")).await.unwrap();
            ours.announce(&["g", "h"].map(group)).await.unwrap();
            assert_eq!(claims(&mut ours, &["g", "h"]).await, [false, true]);
            // One that shows itself is let be.
            ours.heartbeat(true).await.unwrap();
            assert_eq!(claims(&mut ours, &["g"]).await, [false]);
            run(&mut raw, "UPDATE event_host.hosts SET seen_at = seen_at - interval '10 minutes' WHERE hostname = 'one'").await;
            // A superuser's session is out of reach of everybody else.
            ours.heartbeat(true).await.unwrap();
            until("it is got round", async || claims(&mut ours, &["g", "h"]).await == [true, true]).await;
            assert!(store.cursor(&group("g")).await.unwrap().epoch > Epoch(1));
            ours.heartbeat(false).await.unwrap();
        })
        .await;
        // Whoever was silent has the lock that was, and does not lead again with it.
        let error = owner.begin_leadership(&group("g"), &host("one")).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert!(theirs.heartbeat(false).await.is_err());
    }
}

#[tokio::test]
async fn a_role_that_may_not_create_a_schema_is_told_whose_turn_it_is() {
    let database = test_databases::Database::create().await;
    let with_schema = PostgresDatabase::new().await;
    with_role(&with_schema, None, async |role| {
        let url = role.url.replace(with_schema.database.name(), database.name());
        let error = store_at(&url).migrate().await.unwrap_err();
        super::says(
            &error,
            &["may not make or change the schema `event_host`", "owner", "CREATE on the database"],
        );
        // There is a schema, of somebody else, and nothing in it.
        let mut owner = session_at(database.url()).await;
        let name = role.name.replace('"', "\"\"");
        let database = database.name();
        run(
            &mut owner,
            format!(
                "CREATE SCHEMA event_host; GRANT USAGE ON SCHEMA event_host TO \"{name}\";
                 GRANT CREATE ON DATABASE {database} TO \"{name}\""
            ),
        )
        .await;
        let error = store_at(&url).migrate().await.unwrap_err();
        super::says(&error, &["`event_host`", "belongs to role", "is no member of it"]);
        run(
            &mut owner,
            format!(
                "REVOKE CREATE ON DATABASE {database} FROM \"{name}\"; DROP OWNED BY \"{name}\""
            ),
        )
        .await;
    })
    .await;
}

#[tokio::test]
async fn an_inserter_has_eleven_columns_and_two_functions_and_no_more() {
    let database = PostgresDatabase::new().await;
    with_role(&database, Some(Purpose::Inserter), async |role| {
        // By the server's own account.
        let mut owner = database.raw().await;
        let of_role = |query| sqlx::query_scalar::<_, String>(query).bind(&role.name);
        let mut columns = of_role(
            "SELECT table_name || '.' || column_name FROM information_schema.column_privileges
             WHERE grantee = $1 AND privilege_type = 'INSERT'",
        )
        .fetch_all(&mut owner)
        .await
        .unwrap();
        columns.sort();
        let wanted = [
            "data",
            "datacontenttype",
            "dataschema",
            "deliver_after",
            "extensions",
            "id",
            "partitionkey",
            "source",
            "subject",
            "time",
            "type",
        ];
        assert_eq!(columns, wanted.map(|column| format!("events.{column}")));
        let others = of_role(
            "SELECT privilege_type FROM information_schema.column_privileges
             WHERE grantee = $1 AND privilege_type <> 'INSERT'
             UNION ALL
             SELECT privilege_type FROM information_schema.table_privileges WHERE grantee = $1
             UNION ALL
             SELECT privilege_type FROM information_schema.usage_privileges WHERE grantee = $1",
        )
        .fetch_all(&mut owner)
        .await
        .unwrap();
        assert_eq!(others, Vec::<String>::new());
        let functions = of_role(
            "SELECT routine_name::text FROM information_schema.routine_privileges
             WHERE grantee = $1 ORDER BY 1",
        )
        .fetch_all(&mut owner)
        .await
        .unwrap();
        assert_eq!(functions, ["next_position", "publish"]);
    })
    .await;
}
