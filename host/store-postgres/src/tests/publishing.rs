//! Publishing from SQL: what any client of the database can do, and what it is
//! told when an event is none.

use jiff::Timestamp;
use sqlx::{Connection, PgConnection, Row};

use super::{PostgresDatabase, led, publish, run, seen, try_to_run, types, value};
use crate::log::partition_hash;
use event_host_core::event::{Event, ExtensionValue, LogEvent, Partition, Position};
use event_host_store::Retention;
use event_host_store::traits::*;

fn text(text: &str) -> ExtensionValue {
    ExtensionValue::Text(text.to_owned())
}

async fn the_only_event(database: &PostgresDatabase) -> Event {
    let mut events = seen(&database.store()).await;
    assert_eq!(events.len(), 1);
    events.remove(0).event
}

#[tokio::test]
async fn a_plain_insert_makes_a_whole_event() {
    let database = PostgresDatabase::new().await;
    let mut session = database.raw().await;
    let before = Timestamp::now();
    run(
        &mut session,
        r#"INSERT INTO event_host.events (type, data) VALUES ('paid', '{"id": 7}');
          INSERT INTO event_host.events (type) VALUES ('paid');
          INSERT INTO event_host.events (type, data) VALUES ('paid', '\x00ff')"#,
    )
    .await;
    let events = seen(&database.store()).await;
    let data: Vec<_> = events.iter().map(|event| event.event.data.as_deref()).collect();
    assert_eq!(data, [Some(&br#"{"id": 7}"#[..]), None, Some(b"\x00\xff")]);
    for LogEvent { event, deliver_to, .. } in &events {
        let id: uuid::Uuid = event.id.parse().unwrap();
        assert_eq!((id.get_version_num(), id.to_string()), (4, event.id.clone()));
        assert_eq!(event.source, "/sql");
        let age = event.time.duration_since(before).abs();
        assert!(age.as_secs() < 60, "{} is not now", event.time);
        assert_eq!((&event.datacontenttype, &event.subject), (&None, &None));
        assert_eq!(*deliver_to, None);
    }
    assert_ne!(events[0].event.id, events[1].event.id);
}

#[tokio::test]
async fn publish_takes_type_and_data_by_their_places_and_gives_the_position() {
    let database = PostgresDatabase::new().await;
    let mut session = database.raw().await;
    let before = Timestamp::now();
    let first: i64 = value(&mut session, "SELECT event_host.publish('gone')").await;
    run(&mut session, "BEGIN; SELECT event_host.publish('gone'); ROLLBACK").await;
    let position: i64 =
        value(&mut session, r#"SELECT event_host.publish('paid', '{"b": 1.50, "a": "ü"}')"#).await;
    assert_eq!(position, first + 2, "what was rolled back took one");
    let events = seen(&database.store()).await;
    let positions: Vec<i64> = events.iter().map(|event| event.position.0).collect();
    assert_eq!(positions, [first, position], "and is not there");
    let [without_data, event] = [0, 1].map(|n| events[n].event.clone());
    assert_eq!((without_data.data, without_data.datacontenttype), (None, None));
    // jsonb keeps the value, not the text.
    assert_eq!(event.data.as_deref(), Some("{\"a\": \"ü\", \"b\": 1.50}".as_bytes()));
    assert_eq!(event.datacontenttype.as_deref(), Some("application/json"));
    assert_eq!(event.source, "/sql");
    assert_eq!(event.id.parse::<uuid::Uuid>().unwrap().get_version_num(), 4);
    assert!(event.time.duration_since(before).abs().as_secs() < 60);
}

#[tokio::test]
async fn publish_takes_every_other_attribute_by_its_name() {
    let database = PostgresDatabase::new().await;
    let mut session = database.raw().await;
    run(
        &mut session,
        r#"SELECT event_host.publish(
            'paid', '[1, null]', id => 'i', source => '/s', subject => 'sub',
            "time" => '2026-01-31 13:00:00.123456+01', datacontenttype => 'application/vnd.paid+json',
            dataschema => 'https://example.com/s', partitionkey => 'k',
            extensions => '{"yes": true, "n": -7, "whole": 1.0, "big": 2e3, "t": "x", "none": null}',
            deliver_after => '2026-02-01 00:00:00.654321+00')"#,
    )
    .await;
    let event = the_only_event(&database).await;
    let wanted = Event {
        id: "i".to_owned(),
        source: "/s".to_owned(),
        event_type: "paid".to_owned(),
        subject: Some("sub".to_owned()),
        time: "2026-01-31T12:00:00.123456Z".parse().unwrap(),
        datacontenttype: Some("application/vnd.paid+json".to_owned()),
        dataschema: Some("https://example.com/s".to_owned()),
        partitionkey: Some("k".to_owned()),
        deliver_after: Some("2026-02-01T00:00:00.654321Z".parse().unwrap()),
        extensions: [
            ("yes".to_owned(), ExtensionValue::Boolean(true)),
            ("n".to_owned(), ExtensionValue::Integer(-7)),
            ("whole".to_owned(), ExtensionValue::Integer(1)),
            ("big".to_owned(), ExtensionValue::Integer(2_000)),
            ("t".to_owned(), text("x")),
        ]
        .into(),
        data: Some(b"[1, null]".to_vec()),
    };
    assert_eq!(event, wanted);
    wanted.check().unwrap();
}

#[tokio::test]
async fn an_event_lives_and_dies_with_its_callers_transaction() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut session = database.raw().await;
    run(&mut session, "CREATE TABLE public.orders (id int PRIMARY KEY)").await;
    for sql in [
        "BEGIN; SELECT event_host.publish('gone'); INSERT INTO public.orders VALUES (1); ROLLBACK",
        "BEGIN; INSERT INTO event_host.events (type) VALUES ('gone'); ROLLBACK",
        "BEGIN; SAVEPOINT s; SELECT event_host.publish('gone'); ROLLBACK TO s; COMMIT",
    ] {
        run(&mut session, sql).await;
    }
    run(&mut session, "INSERT INTO public.orders VALUES (1)").await;
    // One statement, and one transaction, of which the second half fails.
    let twice = "SELECT event_host.publish('gone'); INSERT INTO public.orders VALUES (1)";
    assert!(try_to_run(&mut session, twice).await.is_err());
    assert_eq!(types(&store).await, Vec::<String>::new());
    run(
        &mut session,
        "BEGIN; SELECT event_host.publish('kept'); INSERT INTO public.orders VALUES (2); COMMIT",
    )
    .await;
    assert_eq!(types(&store).await, ["kept"]);
}

#[tokio::test]
async fn a_driver_publishes_with_prepared_statements_and_its_own_types() {
    let database = PostgresDatabase::new().await;
    let mut session = database.raw().await;
    for n in 0..10_i64 {
        // Often enough for the server to keep a plan.
        let mut transaction = session.begin().await.unwrap();
        sqlx::query("SELECT event_host.publish($1, $2, partitionkey => $3)")
            .bind("function")
            .bind(serde_json::json!({ "n": n }))
            .bind(n.to_string())
            .execute(&mut *transaction)
            .await
            .unwrap();
        sqlx::query("INSERT INTO event_host.events (type, data, extensions) VALUES ($1, $2, $3)")
            .bind("table")
            .bind(n.to_be_bytes().as_slice())
            .bind(serde_json::json!({ "n": n }))
            .execute(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
    }
    let events = seen(&database.store()).await;
    assert_eq!(events.len(), 20);
    for (n, pair) in (0_i64..).zip(events.chunks(2)) {
        let [function, table] = pair else { unreachable!() };
        assert_eq!(function.event.event_type, "function");
        assert_eq!(function.event.data.as_deref(), Some(format!("{{\"n\": {n}}}").as_bytes()));
        assert_eq!(function.event.partitionkey.as_deref(), Some(&*n.to_string()));
        assert_eq!(table.event.data.as_deref(), Some(n.to_be_bytes().as_slice()));
        let n = ExtensionValue::Integer(i32::try_from(n).unwrap());
        assert_eq!(table.event.extensions["n"], n);
    }
}

/// Why a statement is refused: the constraint's name, or the column's that must
/// not be null, or the SQLSTATE.
async fn refusal(session: &mut PgConnection, sql: &str) -> String {
    let error = try_to_run(session, sql).await.expect_err(sql);
    let answer = error.as_database_error().unwrap();
    match (answer.constraint(), answer.code().as_deref()) {
        (Some(constraint), _) => constraint.to_owned(),
        (None, Some("23502")) => {
            let message = answer.message();
            message.split('"').nth(1).unwrap().to_owned()
        }
        (None, code) => code.unwrap().to_owned(),
    }
}

#[tokio::test]
async fn what_is_no_event_is_refused_by_a_name_that_says_why() {
    let database = PostgresDatabase::new().await;
    let mut session = database.raw().await;
    let names = "extensions_have_names_of_a_to_z_and_digits";
    let values = "extensions_are_booleans_integers_and_strings";
    let own = "extensions_are_no_attributes_of_their_own";
    let time = "time_is_finite_and_before_the_year_10000";
    let deliver_after = "deliver_after_is_in_the_years_0_to_9999";
    for (column, given, why) in [
        ("id", "''", "id_is_not_empty"),
        ("source", "''", "source_is_not_empty"),
        ("time", "'infinity'", time),
        ("time", "'-infinity'", time),
        ("time", "'9999-12-30 22:00:00.000001+00'", time),
        ("deliver_after", "'infinity'", deliver_after),
        ("deliver_after", "'-infinity'", deliver_after),
        ("deliver_after", "'9999-12-30 22:00:00.000001+00'", deliver_after),
        ("deliver_after", "'0002-12-31 23:59:59.999999+00 BC'", deliver_after),
        ("time", "'0002-12-31 23:59:59+00 BC'", "time_is_not_before_the_year_0"),
        ("id", "repeat('ü', 512) || 'x'", "id_has_1024_bytes_at_most"),
        ("source", "repeat('x', 1025)", "source_has_1024_bytes_at_most"),
        ("source", "'a b'", "source_is_a_uri_reference"),
        ("source", "E'/a\\n'", "source_is_a_uri_reference"),
        ("subject", "''", "subject_is_not_empty"),
        ("subject", "repeat('x', 8193)", "subject_has_8192_bytes_at_most"),
        ("subject", "E'a\\nb'", "attributes_hold_no_control_characters"),
        ("partitionkey", "''", "partitionkey_is_not_empty"),
        ("partitionkey", "repeat('x', 1025)", "partitionkey_has_1024_bytes_at_most"),
        ("datacontenttype", "''", "datacontenttype_is_a_media_type"),
        ("datacontenttype", "'text/plain; charset'", "datacontenttype_is_a_media_type"),
        ("dataschema", "'/relative'", "dataschema_is_an_absolute_uri"),
        (
            "extensions",
            "jsonb_build_object('a', repeat('x', 65528))",
            "extensions_have_65536_bytes_of_json_at_most",
        ),
        // As text it is thousands of times as long.
        ("extensions", "jsonb_build_object('a', 1e130000)", values),
        ("extensions", r#"'{"a": "b\nc"}'"#, "extensions_hold_no_control_characters"),
        ("extensions", "'[]'", "extensions_are_an_object"),
        ("extensions", "'null'", "extensions_are_an_object"),
        ("extensions", "'7'", "extensions_are_an_object"),
        ("extensions", r#"'{"": 1}'"#, names),
        ("extensions", r#"'{"Upper": 1}'"#, names),
        ("extensions", r#"'{"a_b": 1}'"#, names),
        ("extensions", r#"'{"good": 1, "a-b": 1}'"#, names),
        ("extensions", r#"'{"a\nb": 1}'"#, names),
        ("extensions", r#"'{"a": 1.5}'"#, values),
        ("extensions", r#"'{"a": 2147483648}'"#, values),
        ("extensions", r#"'{"a": -2147483649}'"#, values),
        ("extensions", r#"'{"a": {"b": 1}}'"#, values),
        ("extensions", r#"'{"good": 1, "a": []}'"#, values),
        ("extensions", r#"'{"id": "x"}'"#, own),
        ("extensions", r#"'{"partitionkey": "x"}'"#, own),
        ("extensions", r#"'{"deliverafter": "2026-01-31T12:00:00Z"}'"#, own),
        ("extensions", r#"'{"specversion": "1.0"}'"#, own),
        ("extensions", r#"'{"data": "x"}'"#, own),
    ] {
        let insert =
            format!("INSERT INTO event_host.events (type, \"{column}\") VALUES ('a', {given})");
        assert_eq!(refusal(&mut session, &insert).await, why, "{insert}");
        let publish = format!("SELECT event_host.publish('a', \"{column}\" => {given})");
        assert_eq!(refusal(&mut session, &publish).await, why, "{publish}");
    }
    // A digest that the host could not read would hold up the group.
    let digits = "0123456789abcdef".repeat(4);
    for (given, addressee) in [
        (format!("'sha256:{digits}'"), "NULL"),
        (format!("'sha256:{}'", &digits[1..]), "'g'"),
        (format!("'sha256:{digits}0'"), "'g'"),
        (format!("E'sha256:{digits}\\n'"), "'g'"),
        (format!("E'x\\nsha256:{digits}'"), "'g'"),
        (format!("'sha256:{}'", digits.to_uppercase()), "'g'"),
        (format!("'sha512:{digits}'"), "'g'"),
        ("''".to_owned(), "'g'"),
    ] {
        let sql = format!(
            "INSERT INTO event_host.events (type, deliver_to, digest)
             VALUES ('a', {addressee}, {given})"
        );
        let why = refusal(&mut session, &sql).await;
        assert_eq!(why, "digest_is_that_of_a_component_or_null", "{sql}");
    }
    for (sql, why) in [
        ("INSERT INTO event_host.events (type) VALUES ('')", "type_is_not_empty"),
        ("SELECT event_host.publish('')", "type_is_not_empty"),
        ("SELECT event_host.publish(NULL)", "type"),
        ("INSERT INTO event_host.events (data) VALUES ('')", "type"),
        ("INSERT INTO event_host.events (type, id) VALUES ('a', NULL)", "id"),
        ("INSERT INTO event_host.events (type, source) VALUES ('a', NULL)", "source"),
        ("INSERT INTO event_host.events (type, time) VALUES ('a', NULL)", "time"),
        // Nothing in the log changes, and what is inserted goes through it.
        ("UPDATE event_host.events SET type = 'b'", "P0001"),
        ("UPDATE event_host.events_0 SET type = 'b'", "P0001"),
        ("UPDATE event_host.events_elsewhere SET type = 'b'", "P0001"),
        ("INSERT INTO event_host.events_0 (type) VALUES ('a')", "position"),
        ("SELECT event_host.publish('a', '{')", "22P02"),
        ("SELECT event_host.publish('a', '\"\\u0000\"')", "22P05"),
    ] {
        assert_eq!(refusal(&mut session, sql).await, why, "{sql}");
    }
    assert_eq!(seen(&database.store()).await, []);
}

#[tokio::test]
async fn whatever_the_log_lets_in_can_be_handled() {
    let database = PostgresDatabase::new().await;
    let mut session = database.raw().await;
    run(
        &mut session,
        r#"INSERT INTO event_host.events (type, extensions) VALUES
             ('a', '{}'), ('a', '{"a": 2147483647, "b": -2147483648, "c": 0.0, "d": -0}'),
             ('a', '{"a": null, "b": "2147483648", "c": false, "0": ""}');
           INSERT INTO event_host.events (type, time) VALUES
             ('a', '0001-01-01 00:00:00+00'), ('a', '9999-12-30 22:00:00+00'),
             ('a', '0001-01-01 00:00:00+00 BC');
           INSERT INTO event_host.events (type, subject, partitionkey, dataschema, datacontenttype)
           VALUES ('ü.🦀', ' ', ' ', 'x:', 'text/plain;  charset="a\"b" ; x=y'),
                  (repeat('long', 256), 'x', 'x', 'urn:x', 'x/x')"#,
    )
    .await;
    let events = seen(&database.store()).await;
    assert_eq!(events.len(), 8);
    let numbers: Vec<_> = events[1].event.extensions.values().cloned().collect();
    assert_eq!(numbers, [i32::MAX, i32::MIN, 0, 0].map(ExtensionValue::Integer));
    let rest: Vec<_> = events[2].event.extensions.iter().map(|(k, v)| (&**k, v.clone())).collect();
    assert_eq!(
        rest,
        [("0", text("")), ("b", text("2147483648")), ("c", ExtensionValue::Boolean(false))]
    );
    let years = [3, 4, 5].map(|n| events[n].event.time.to_string());
    assert_eq!(years, ["0001-01-01T00:00:00Z", "9999-12-30T22:00:00Z", "0000-01-01T00:00:00Z"]);
    for event in events {
        event.event.check().unwrap();
    }
}

#[tokio::test]
async fn nothing_in_the_log_is_changed_or_deleted_by_anybody_but_the_retention() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    publish(&store, "a").await;
    let mut owner = database.raw().await;
    for table in ["events", "events_0", "events_1", "events_elsewhere"] {
        for sql in [
            "UPDATE event_host.TABLE SET type = 'b'",
            "DELETE FROM event_host.TABLE",
            "TRUNCATE event_host.TABLE",
        ] {
            let sql = sql.replace("TABLE", table);
            let error = try_to_run(&mut owner, &*sql).await.expect_err(&sql).to_string();
            assert!(error.contains("events are never"), "{sql}: {error}");
        }
    }
    // What the retention sets for itself is of no use for another table.
    let sql = "SET event_host.emptying = 'events_1'; TRUNCATE event_host.events_0";
    try_to_run(&mut owner, sql).await.unwrap_err();
    assert_eq!(types(&store).await, ["a"]);
}

/// Whatever the keys: a group's partitions never differ from one server to another, or
/// from what this program computes.
#[tokio::test]
async fn a_key_is_in_the_partition_that_the_program_computes() {
    let database = PostgresDatabase::new().await;
    let mut session = database.raw().await;
    let mut keys: Vec<String> = (0..2_000).map(|n| format!("customer-{n}")).collect();
    let long: String = (0..80_u8).map(|n| char::from(b' ' + n)).collect();
    keys.extend((0..long.len()).map(|length| long[..length].to_owned()));
    keys.extend((1..40).map(|length| "\u{e4}\u{20ac}\u{1F980}".repeat(length)));
    let rows = sqlx::query(concat!(
        "SELECT position, partitionkey, ",
        partition_hash!(),
        " FROM unnest($1::text[]) WITH ORDINALITY AS e (partitionkey, position)"
    ))
    .bind(&keys)
    .fetch_all(&mut session)
    .await
    .unwrap();
    assert_eq!(rows.len(), keys.len());
    for row in rows {
        let (position, key, hash): (i64, String, i64) = (row.get(0), row.get(1), row.get(2));
        for of in [2, 3, 64, 1_000_003, u32::MAX] {
            let number = Partition::number_of(Some(&key), Position(position), of);
            assert_eq!(i64::from(number), hash % i64::from(of), "{key}");
        }
    }
}

#[tokio::test]
async fn what_no_constraint_has_seen_can_be_read_too() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    run(
        &mut owner,
        "DO $$
         DECLARE
             c record;
         BEGIN
             FOR c IN SELECT conrelid::regclass AS relation, conname FROM pg_constraint
                      WHERE contype = 'c' AND conislocal
                        AND conrelid IN ('event_host.events'::regclass, 'event_host.events_0'::regclass)
                      ORDER BY conrelid = 'event_host.events_0'::regclass
             LOOP
                 EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.relation, c.conname);
             END LOOP;
         END $$",
    )
    .await;
    let times = [
        "infinity",
        "294276-12-31 23:59:59.999999+00",
        "9999-12-30 22:00:00.000001+00",
        "9999-12-30 22:00:00.999999+00",
        "-infinity",
        "4713-01-01 00:00:00+00 BC",
    ];
    for time in times {
        run(
            &mut owner,
            format!(
                "INSERT INTO event_host.events (type, time, published_at, deliver_after)
                 VALUES ('', '{time}', '{time}', '{time}')"
            ),
        )
        .await;
    }
    run(
        &mut owner,
        r#"INSERT INTO event_host.events (type, extensions) VALUES ('', '[1]'), ('', '{"A b": [[1e400]]}');
           INSERT INTO event_host.events (type, deliver_to, digest) VALUES ('', 'g', 'latest')"#,
    )
    .await;
    led(&store, "g").await;
    let events = seen(&store).await;
    assert_eq!(events.len(), 9);
    let last: Timestamp = "9999-12-30T22:00:00Z".parse().unwrap();
    for event in &events[..4] {
        assert_eq!((event.event.time, event.event.deliver_after), (last, Some(last)));
    }
    assert!(events[8].digest.is_some(), "that of no component");
    let positions: Vec<Position> = events.iter().map(|event| event.position).collect();
    let found = store.fetch_at(&super::group("g"), &positions, usize::MAX).await.unwrap();
    assert_eq!(found.events, events);
    assert_eq!(store.status().await.unwrap().groups[0].lag_events, 9);
    let short = Retention { max_age: Some(std::time::Duration::from_secs(1)), max_bytes: Some(1) };
    store.enforce_retention(&short).await.unwrap();
}
