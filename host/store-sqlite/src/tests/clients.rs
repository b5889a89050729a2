//! Other programs on the same file: what they insert, and how they write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use sqlx::{AssertSqlSafe, Connection, Row, SqliteConnection};

use super::{SqliteDatabase, SqliteStore, event, group, settings, this_host};
use event_host_core::event::{ExtensionValue, LogEvent, Position, Tenant};
use event_host_store::traits::*;
use event_host_store::{
    DeadLetterFilter, Fetch, Fetched, GroupRegistration, Retention, Settled, Settlement, Start,
    StoreError, Subscription,
};

async fn insert(connection: &mut SqliteConnection, sql: &'static str) {
    sqlx::query(sql).execute(connection).await.unwrap();
}

async fn fetch(store: &SqliteStore, subscription: &Subscription, after: Position) -> Fetched {
    let fetch = Fetch {
        partition: None,
        group: &group("g"),
        tenant: &Tenant::none(),
        subscription,
        after,
        up_to: store.safe_position().await.unwrap(),
        max_events: 1_000,
        max_bytes: usize::MAX,
    };
    store.fetch(fetch).await.unwrap()
}

async fn all(store: &SqliteStore) -> Vec<LogEvent> {
    let fetched = fetch(store, &Subscription::all(), Position::ZERO).await;
    fetched.events.into_iter().map(Arc::unwrap_or_clone).collect()
}

#[tokio::test]
async fn a_plain_insert_makes_a_whole_event() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let before = Timestamp::now();
    let mut raw = database.raw().await;
    insert(&mut raw, "INSERT INTO events (type, data) VALUES ('paid', '{\"id\": 7}')").await;
    insert(&mut raw, "INSERT INTO events (type) VALUES ('paid')").await;
    insert(&mut raw, "INSERT INTO events (type, data) VALUES ('paid', x'00ff')").await;

    let events = all(&store).await;
    let data: Vec<Option<&[u8]>> = events.iter().map(|event| event.event.data.as_deref()).collect();
    assert_eq!(data, [Some(&b"{\"id\": 7}"[..]), None, Some(b"\x00\xff")]);
    for LogEvent { event, deliver_to, .. } in &events {
        let id: uuid::Uuid = event.id.parse().unwrap();
        assert_eq!(id.get_version_num(), 4);
        assert_eq!(id.get_variant(), uuid::Variant::RFC4122);
        assert_eq!(event.id, id.to_string(), "in the usual form");
        assert_eq!(event.source, "/sql");
        let age = event.time.duration_since(before).abs();
        assert!(age.as_secs() < 60, "{} is not now", event.time);
        assert_eq!(*deliver_to, None);
    }
    assert_ne!(events[0].event.id, events[1].event.id);
    store.ensure_group(&settings("g")).await.unwrap();
    let status = store.group_status(&group("g")).await.unwrap();
    assert_eq!(status.lag_events, 3);
    assert!((0.0..60.0).contains(&status.lag_seconds));
}

#[tokio::test]
async fn what_another_client_inserts_can_always_be_read() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let mut raw = database.raw().await;
    for sql in [
        "INSERT INTO events (type, subject) VALUES (CAST(x'61ff62' AS TEXT), CAST(x'c0' AS TEXT))",
        "INSERT INTO events (type, id, source) VALUES (7, 8, 9)",
        "INSERT INTO events (type, time) VALUES ('t', '1769860800000000')",
        r#"INSERT INTO events (type, extensions) VALUES ('e', '{"a": 1e3, "b": null, "d": 7, "f": 2.0}')"#,
        r#"INSERT INTO events (type, extensions) VALUES ('e', '{"a": 1, "a": 2}')"#,
        "INSERT INTO events (type, data) VALUES ('d', CAST(x'ff00' AS TEXT))",
        "INSERT INTO events (type, deliver_to) VALUES ('only', 'g')",
    ] {
        insert(&mut raw, sql).await;
    }
    let events: Vec<LogEvent> = all(&store).await;
    assert_eq!(events.len(), 7);
    assert_eq!(events[0].event.event_type, "a\u{FFFD}b");
    assert_eq!(events[0].event.subject.as_deref(), Some("\u{FFFD}"));
    assert_eq!(events[1].event.event_type, "7");
    assert_eq!((&*events[1].event.id, &*events[1].event.source), ("8", "9"));
    assert_eq!(events[2].event.time, "2026-01-31T12:00:00Z".parse().unwrap());
    assert_eq!(events[3].event.extensions["a"], ExtensionValue::Integer(1_000));
    assert_eq!(events[3].event.extensions["f"], ExtensionValue::Integer(2));
    assert_eq!(events[3].event.extensions.get("b"), None);
    assert_eq!(events[3].event.extensions["d"], ExtensionValue::Integer(7));
    assert_eq!(events[5].event.data.as_deref(), Some(&b"\xff\x00"[..]));
    assert_eq!(events[6].deliver_to, Some(group("g")));
}

#[tokio::test]
async fn what_no_constraint_has_seen_can_be_read_too() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let mut raw = database.raw().await;
    insert(&mut raw, "PRAGMA ignore_check_constraints = ON").await;
    insert(&mut raw, "DROP TRIGGER extensions_are_those_of_an_event").await;
    let ends = ["-377705023201000000", "253402207200000000"];
    for value in [
        "253402207200000001",
        "253402207200999999",
        "253402207201000000",
        "9223372036854775807",
        "-9223372036854775808",
        "-377705023201000001",
        "1e300",
        "-1e300",
        "0.5",
        "'noon'",
        "x'ff00'",
        "''",
    ] {
        let sql = format!(
            "INSERT INTO events (type, time, published_at, deliver_after) VALUES ('t', {value}, {value}, {value})"
        );
        sqlx::query(AssertSqlSafe(sql)).execute(&mut raw).await.unwrap();
    }
    for sql in [
        "INSERT INTO events (type, id, source, subject) VALUES (x'ff', x'', 1.5, x'c0')",
        "INSERT INTO events (type, extensions) VALUES ('', x'8b5b')",
        "INSERT INTO events (type, extensions) VALUES ('', 'null')",
        "INSERT INTO events (type, extensions) VALUES ('', '{\"A b\": [[[1]]]}')",
        "INSERT INTO events (type, data) VALUES ('', 1.5)",
        "INSERT INTO events (type, deliver_to, digest) VALUES ('', 'g', 'latest')",
        "INSERT INTO events (type, deliver_to, digest) VALUES ('', 'g', x'00ff')",
        "INSERT INTO events (type, partitionkey) VALUES ('', x'ff00')",
    ] {
        insert(&mut raw, sql).await;
    }
    let events = all(&store).await;
    assert_eq!(events.len(), 20);
    let ends = ends.map(|end| Timestamp::from_microsecond(end.parse().unwrap()).unwrap());
    assert!(events.iter().all(|event| (ends[0]..=ends[1]).contains(&event.event.time)));
    for event in &events[..4] {
        assert_eq!((event.event.time, event.event.deliver_after), (ends[1], Some(ends[1])));
    }
    // No component has this digest: the event becomes a dead letter.
    assert!(events[17].digest.is_some() && events[18].digest.is_some());
    let positions: Vec<Position> = events.iter().map(|event| event.position).collect();
    for partitions in [1, 2] {
        store.ensure_group(&GroupRegistration { partitions, ..settings("g") }).await.unwrap();
        assert_eq!(store.status().await.unwrap().groups[0].lag_events, 20);
        let found = store.fetch_at(&group("g"), &positions, usize::MAX).await.unwrap();
        assert_eq!(found.events, events);
    }
    // And so can what a group keeps of them.
    let epoch = store.begin_leadership(&group("g"), &this_host()).await.unwrap().epoch;
    let dead_letters = events.iter().cloned().map(super::children::dead);
    let settlement =
        Settlement { dead_letters: dead_letters.collect(), ..super::children::one_more(1, epoch) };
    assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
    let filter = DeadLetterFilter::default();
    assert_eq!(store.dead_letters(&filter).await.unwrap().len(), 20);
    let retention = Retention { max_age: Some(Duration::ZERO), max_bytes: Some(0) };
    store.enforce_retention(&retention).await.unwrap();
}

#[tokio::test]
async fn a_time_is_accepted_up_to_the_last_that_can_be_read() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let mut raw = database.raw().await;
    for column in ["time", "published_at", "deliver_after"] {
        for (microseconds, is_accepted) in [
            (-377_705_023_201_000_001_i64, false),
            // In an event, it is before the year 0.
            (-377_705_023_201_000_000, column == "published_at"),
            (-62_167_219_200_000_001, column == "published_at"),
            (-62_167_219_200_000_000, true),
            // Nothing is delivered more than a year after it was published.
            (253_402_207_200_000_000, column != "deliver_after"),
            (253_402_207_200_000_001, false),
            (253_402_207_200_999_999, false),
            (253_402_207_201_000_000, false),
        ] {
            let sql = format!("INSERT INTO events (type, {column}) VALUES ('t', {microseconds})");
            let inserted = sqlx::query(AssertSqlSafe(sql)).execute(&mut raw).await;
            assert_eq!(inserted.is_ok(), is_accepted, "{column} = {microseconds}");
            if let Err(error) = inserted {
                let error = error.to_string();
                let is_named = error.contains("_is_microseconds_since_1970")
                    || error.contains("_is_not_before_the_year_0")
                    || error.contains("deliver_after_is_within_a_year");
                assert!(is_named, "{error}");
            }
        }
    }
    assert_eq!(all(&store).await.len(), 7);
}

#[tokio::test]
async fn nothing_goes_from_the_log_but_by_the_retention() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.publish(&Tenant::none(), &[event("a", "1"), event("a", "2")]).await.unwrap();
    let mut raw = database.raw().await;
    for sql in [
        "DELETE FROM events",
        "DELETE FROM events WHERE position = 1",
        "UPDATE events SET type = 'b' WHERE position = 1",
        "INSERT INTO events (position, type) VALUES (2, 'b') ON CONFLICT DO UPDATE SET type = 'c'",
    ] {
        let error = sqlx::query(sql).execute(&mut raw).await.expect_err(sql).to_string();
        assert!(error.contains("events are never"), "{sql}: {error}");
    }
    assert_eq!(all(&store).await.len(), 2);
    let retention = Retention { max_age: Some(Duration::ZERO), max_bytes: None };
    assert_eq!(store.enforce_retention(&retention).await.unwrap().dropped_up_to, Some(Position(2)));
    assert!(all(&store).await.is_empty());
    // What the retention allowed itself is over.
    store.publish(&Tenant::none(), &[event("a", "3")]).await.unwrap();
    sqlx::query("DELETE FROM events").execute(&mut raw).await.unwrap_err();
    assert_eq!(all(&store).await.len(), 1);
}

#[tokio::test]
async fn what_is_no_event_is_refused_by_a_name_that_says_why() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let mut raw = database.raw().await;
    for (sql, why) in [
        ("INSERT INTO events (type) VALUES ('')", "type_is_text_and_not_empty"),
        ("INSERT INTO events (type) VALUES (x'61')", "type_is_text_and_not_empty"),
        ("INSERT INTO events (data) VALUES ('x')", "events.type"),
        ("INSERT INTO events (type, id) VALUES ('a', '')", "id_is_text_and_not_empty"),
        ("INSERT INTO events (type, id) VALUES ('a', NULL)", "events.id"),
        ("INSERT INTO events (type, source) VALUES ('a', '')", "source_is_text_and_not_empty"),
        (
            "INSERT INTO events (type, time) VALUES ('a', '2026-01-31')",
            "time_is_microseconds_since_1970",
        ),
        ("INSERT INTO events (type, time) VALUES ('a', 1.5)", "time_is_microseconds_since_1970"),
        (
            "INSERT INTO events (type, time) VALUES ('a', 9223372036854775807)",
            "time_is_microseconds_since_1970",
        ),
        ("INSERT INTO events (type, subject) VALUES ('a', x'61')", "subject_is_text_or_null"),
        ("INSERT INTO events (type, data) VALUES ('a', 42)", "data_is_blob_text_or_null"),
        (
            "INSERT INTO events (type, extensions) VALUES ('a', '[]')",
            "extensions_are_a_json_object_or_null",
        ),
        (
            "INSERT INTO events (type, extensions) VALUES ('a', '{')",
            "extensions_are_a_json_object_or_null",
        ),
        (
            "INSERT INTO events (type, time) VALUES ('a', -62167219200000001)",
            "time_is_not_before_the_year_0",
        ),
        (
            "INSERT INTO events (type, subject) VALUES ('a', 'b' || char(0))",
            "attributes_hold_no_control_characters",
        ),
        (
            "INSERT INTO events (type, source) VALUES ('a', '/b' || char(0))",
            "source_is_a_uri_reference",
        ),
        ("INSERT INTO events (type, source) VALUES ('a', '1x:b')", "source_is_a_uri_reference"),
        (
            r#"INSERT INTO events (type, extensions) VALUES ('a', '{"b": {"c": 1}}')"#,
            "extensions_are_booleans_integers_and_strings",
        ),
        (
            r#"INSERT INTO events (type, extensions) VALUES ('a', '{"b": 1.5}')"#,
            "extensions_are_booleans_integers_and_strings",
        ),
        (
            r#"INSERT INTO events (type, extensions) VALUES ('a', '{"b": 2147483648}')"#,
            "extensions_are_booleans_integers_and_strings",
        ),
        (
            r#"INSERT INTO events (type, extensions) VALUES ('a', '{"B": 1}')"#,
            "extensions_have_names_of_a_to_z_and_digits",
        ),
        (
            r#"INSERT INTO events (type, extensions) VALUES ('a', '{"data": 1}')"#,
            "extensions_are_no_attributes_of_their_own",
        ),
        (
            r#"INSERT INTO events (type, extensions) VALUES ('a', '{"b": "c\nd"}')"#,
            "extensions_hold_no_control_characters",
        ),
        (
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 5500)
             INSERT INTO events (type, extensions)
             SELECT 'a', '{' || group_concat('\"' || n || '\":1e9') || '}' FROM n",
            "extensions_have_65536_bytes_of_json_at_most",
        ),
        (
            "INSERT INTO events (type, deliver_after) VALUES ('a', -62167219200000001)",
            "deliver_after_is_not_before_the_year_0",
        ),
        ("INSERT INTO events (type, tenant) VALUES ('a', 'b c')", "tenant_is_a_name_or_empty"),
        (
            "INSERT INTO events (type, deliver_to) VALUES ('a', 'b#1')",
            "deliver_to_is_a_name_or_null",
        ),
        ("INSERT INTO events (type, position) VALUES ('a', 0)", "position_is_above_zero"),
        ("INSERT INTO events (type, position) VALUES ('a', -1)", "position_is_above_zero"),
    ] {
        let error = sqlx::query(sql).execute(&mut raw).await.expect_err(sql).to_string();
        assert!(error.contains(why), "{sql}: {error}");
    }
    // A digest that the host could not read would hold up the group.
    let digits = "0123456789abcdef".repeat(4);
    for (given, addressee) in [
        (format!("'sha256:{digits}'"), "NULL"),
        (format!("CAST('sha256:{digits}' AS BLOB)"), "'g'"),
        (format!("'sha256:{}'", &digits[1..]), "'g'"),
        (format!("'sha256:{digits}0'"), "'g'"),
        (format!("'sha256:{}'", digits.to_uppercase()), "'g'"),
        (format!("'sha512:{digits}'"), "'g'"),
        (format!("'sha256:{digits}' || char(0) || 'x'"), "'g'"),
        (format!("'sha256:{}' || char(0) || 'x'", &digits[2..]), "'g'"),
        ("''".to_owned(), "'g'"),
    ] {
        let sql = format!(
            "INSERT INTO events (type, deliver_to, digest) VALUES ('a', {addressee}, {given})"
        );
        let inserted = sqlx::query(AssertSqlSafe(sql.as_str())).execute(&mut raw).await;
        let error = inserted.expect_err(&sql).to_string();
        assert!(error.contains("digest_is_that_of_a_component_or_null"), "{sql}: {error}");
    }
    store.publish(&Tenant::none(), &[event("a", "1")]).await.unwrap();
    let error = sqlx::query("UPDATE events SET type = 'b'").execute(&mut raw).await.unwrap_err();
    assert!(error.to_string().contains("events are never changed"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_writers_never_make_a_settlement_fail() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.ensure_group(&settings("g")).await.unwrap();
    let epoch = store.begin_leadership(&group("g"), &this_host()).await.unwrap().epoch;

    let over = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for batch in [1, 1, 100] {
        let mut raw = database.raw().await;
        let over = Arc::clone(&over);
        writers.push(tokio::spawn(async move {
            let mut inserted = 0;
            while !over.load(Ordering::Relaxed) {
                let mut transaction = raw.begin_with("BEGIN IMMEDIATE").await.unwrap();
                for _ in 0..batch {
                    let insert = sqlx::query("INSERT INTO events (type) VALUES ('other')");
                    insert.execute(&mut *transaction).await.unwrap();
                }
                transaction.commit().await.unwrap();
                inserted += batch;
            }
            inserted
        }));
    }
    for n in 1..=200 {
        let emits = if n % 2 == 0 { vec![event("own", &n.to_string())] } else { vec![] };
        let settlement = Settlement {
            group: group("g"),
            epoch,
            number: n,
            position: Position(n),
            head: None,
            dead_letters: vec![],
            emits,
            state: vec![],
            redeliveries: vec![],
            redelivered: vec![],
            failures: None,
            undecided: None,
            handled: 0,
            mark: None,
            deferred: Vec::new(),
        };
        assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
    }
    over.store(true, Ordering::Relaxed);
    let mut inserted = 0;
    for writer in writers {
        inserted += writer.await.unwrap();
    }
    assert!(inserted > 0);
    assert_eq!(store.status().await.unwrap().events, inserted + 100);
}

#[tokio::test]
async fn a_write_lock_that_is_kept_is_told_of_and_stops_no_reader() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.publish(&Tenant::none(), &[event("a", "1")]).await.unwrap();
    let mut raw = database.raw().await;
    let kept = raw.begin_with("BEGIN IMMEDIATE").await.unwrap();

    let (tenant, events) = (Tenant::none(), [event("a", "2")]);
    let publishing = store.publish(&tenant, &events);
    let reading = async {
        assert_eq!(all(&store).await.len(), 1);
        assert_eq!(store.status().await.unwrap().events, 1);
    };
    let (published, ()) = tokio::join!(publishing, reading);
    let error = published.unwrap_err();
    let told = matches!(
        &error,
        StoreError::Busy(text)
            if text.contains("another program") && text.contains("host.db")
    );
    assert!(told, "{error}");

    kept.rollback().await.unwrap();
    store.publish(&Tenant::none(), &[event("a", "3")]).await.unwrap();
    assert_eq!(all(&store).await.len(), 2);
}

#[tokio::test]
async fn positions_use_all_64_bits_and_a_gap_of_any_size_costs_one_fetch() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    store.publish(&Tenant::none(), &[event("a", "1")]).await.unwrap();
    let mut raw = database.raw().await;
    let far = 1_i64 << 62;
    sqlx::query("UPDATE sqlite_sequence SET seq = ? WHERE name = 'events'")
        .bind(far)
        .execute(&mut raw)
        .await
        .unwrap();
    let events: Vec<_> = (0..100).map(|n| event("a", &n.to_string())).collect();
    let positions = store.publish(&Tenant::none(), &events).await.unwrap();
    let expected: Vec<Position> = (1..=100).map(|n| Position(far + n)).collect();
    assert_eq!(positions, expected);

    let first = fetch(&store, &Subscription::all(), Position::ZERO).await;
    assert_eq!((first.events.len(), first.scanned_to), (1, Position(far)));
    let second = fetch(&store, &Subscription::all(), first.scanned_to).await;
    assert_eq!((second.events.len(), second.scanned_to), (100, Position(far + 100)));

    store.ensure_group(&settings("g")).await.unwrap();
    assert_eq!(store.seek(&group("g"), Start::Latest).await.unwrap(), Position(far + 100));
    let epoch = store.begin_leadership(&group("g"), &this_host()).await.unwrap().epoch;
    let settlement = Settlement {
        group: group("g"),
        epoch,
        number: 1,
        position: Position(far + 100),
        head: None,
        dead_letters: vec![],
        emits: vec![event("b", "1")],
        state: vec![],
        redeliveries: vec![],
        redelivered: vec![],
        failures: None,
        undecided: None,
        handled: 0,
        mark: None,
        deferred: Vec::new(),
    };
    store.settle(&settlement).await.unwrap();
    let status = store.status().await.unwrap();
    assert_eq!(status.last_position, Position(far + 101));
    assert_eq!((status.events, status.groups[0].lag_events), (102, 1));
    let json = serde_json::to_string(&status).unwrap();
    assert!(json.contains("\"last_position\":4611686018427388005"), "{json}");
}

#[tokio::test]
async fn a_long_stretch_of_other_events_is_passed_in_bounded_steps() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let mut raw = database.raw().await;
    sqlx::query(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 120000)
         INSERT INTO events (type) SELECT 'other' FROM n",
    )
    .execute(&mut raw)
    .await
    .unwrap();
    insert(&mut raw, "INSERT INTO events (type) VALUES ('wanted')").await;
    let rows: i64 =
        sqlx::query("SELECT count(*) FROM events").fetch_one(&mut raw).await.unwrap().get(0);
    assert_eq!(rows, 120_001);

    let wanted = Subscription::new(["wanted"]).unwrap();
    let mut after = Position::ZERO;
    let mut steps = Vec::new();
    let found = loop {
        let fetched = fetch(&store, &wanted, after).await;
        assert!(fetched.scanned_to > after);
        after = fetched.scanned_to;
        steps.push(after);
        if !fetched.events.is_empty() {
            break fetched;
        }
    };
    assert_eq!(found.events[0].position, Position(120_001));
    assert_eq!(steps, [Position(50_000), Position(100_000), Position(120_001)]);
}

#[tokio::test]
async fn an_operation_that_is_given_no_answer_says_so_in_time() {
    let database = SqliteDatabase::new();
    let store = database.store().await;
    let stuck = store.connections.within("try", Duration::from_millis(10), std::future::pending());
    let error: StoreError = stuck.await.map(|(): ()| ()).unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable(text) if text.contains("host.db")), "{error}");
}
