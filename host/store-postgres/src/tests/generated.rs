//! Rows that another client might insert, as many kinds as there are: whatever the
//! constraints let in is an event that every group reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use sqlx::PgConnection;

use super::{PostgresDatabase, run, value};
use event_host_core::fuzz;
use event_host_store::suite::fuzzed::{
    Column, every_row_is_read, rows_by_hand, rows_by_hand_hurt_no_other,
};
use event_host_store::traits::*;

/// A text as SQL has it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn text(usual: &'static str) -> impl Strategy<Value = String> {
    prop_oneof![3 => usual.prop_map(|text| quoted(&text)), 1 => literal()]
}

fn literal() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => fuzz::odd_text().prop_map(|text| quoted(&text)),
        1 => select(vec!["NULL", "''", "1", "E'\\x01'", "U&'\\FFFF'"]).prop_map(str::to_owned),
    ]
}

fn extensions() -> impl Strategy<Value = String> {
    let name = prop_oneof![8 => "x[a-z0-9]{0,4}", 1 => "[a-zA-Z\\\\u0061\"]{0,8}"];
    let members = vec((name, fuzz::json()), 0..3).prop_map(|members| {
        let member = |(name, value)| format!("\"{name}\": {value}");
        format!("{{{}}}", members.into_iter().map(member).collect::<Vec<_>>().join(" , "))
    });
    let many = (1..6_600_usize, select(vec!["1e9", "-2E+9", "0.0000", "1.0", "\"\\u00e9\""]))
        .prop_map(|(count, value)| {
            let members: Vec<String> = (0..count).map(|n| format!("\"{n}\":{value}")).collect();
            format!("{{{}}}", members.join(","))
        });
    prop_oneof![12 => members, 1 => many, 1 => fuzz::json()].prop_map(|json| quoted(&json))
}

fn time() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (0..1_800_000_000_i64).prop_map(|s| format!("to_timestamp({s})")),
        1 => (-62_167_219_300..253_402_207_300_i64).prop_map(|s| format!("to_timestamp({s})")),
        3 => select(vec![
            "'infinity'", "'-infinity'", "'4713-01-01 BC'", "'0001-01-01 00:00:00+00 BC'",
            "'0001-12-31 23:59:59.999999+00 BC'", "'294276-12-31'", "'9999-12-30 22:00:00+00'",
            "now()", "NULL", "'epoch'",
        ])
        .prop_map(str::to_owned),
    ]
}

fn row() -> impl Strategy<Value = BTreeMap<&'static str, String>> {
    let texts = select(vec![
        ("id", 0_u8),
        ("source", 0),
        ("subject", 0),
        ("partitionkey", 0),
        ("datacontenttype", 1),
        ("dataschema", 2),
        ("source", 2),
        ("data", 4),
        ("tenant", 3),
        ("deliver_to", 3),
        ("digest", 0),
    ]);
    let texts = texts.prop_flat_map(|(name, kind)| {
        let value = match kind {
            0 => text("[ -~\u{e9}]{1,12}").boxed(),
            1 => prop_oneof![fuzz::media_type().prop_map(|text| quoted(&text)), literal()].boxed(),
            2 => prop_oneof![fuzz::uri().prop_map(|text| quoted(&text)), literal()].boxed(),
            3 => select(vec!["''", "'a b'", "'reads#1'"]).prop_map(str::to_owned).boxed(),
            _ => select(vec!["''", "'\\x00ff'", "NULL", "'text'"]).prop_map(str::to_owned).boxed(),
        };
        (Just(name), value)
    });
    let times = (select(vec!["time", "published_at", "deliver_after"]), time());
    let others = vec(prop_oneof![3 => texts, 1 => times], 0..3);
    (text("[ -~]{1,12}"), others, option::weighted(0.4, extensions())).prop_map(
        |(event_type, others, extensions)| {
            let mut row: BTreeMap<_, _> = others.into_iter().collect();
            row.insert("type", event_type);
            row.extend(extensions.map(|extensions| ("extensions", extensions)));
            row
        },
    )
}

/// Statements of one transaction, each of which may be refused.
struct Tried<'a> {
    session: &'a mut PgConnection,
}

impl<'a> Tried<'a> {
    async fn begin(session: &'a mut PgConnection) -> Self {
        run(
            session,
            "CREATE FUNCTION pg_temp.try(statement text) RETURNS boolean LANGUAGE plpgsql AS $$
             BEGIN EXECUTE statement; RETURN true;
             EXCEPTION WHEN data_exception OR integrity_constraint_violation
                 OR program_limit_exceeded OR syntax_error OR datatype_mismatch
             THEN RETURN false; END $$;
             SET search_path = event_host; BEGIN",
        )
        .await;
        Self { session }
    }

    /// Whether it was accepted.
    async fn statement(&mut self, sql: &str) -> bool {
        // A text with a NUL does not even reach the server as one.
        !sql.contains('\0')
            && value(&mut *self.session, format!("SELECT pg_temp.try({})", quoted(sql))).await
    }

    async fn end(self) {
        run(self.session, "COMMIT").await;
    }
}

#[tokio::test]
async fn every_group_reads_whatever_row_the_constraints_let_in() {
    let database = PostgresDatabase::new().await;
    let store: Arc<dyn Store> = Arc::new(database.store());
    let mut raw = database.raw().await;
    let mut tried = Tried::begin(&mut raw).await;
    let rows = fuzz::samples(3_000, &row());
    for row in &rows {
        let columns: Vec<&str> = row.keys().copied().collect();
        let values: Vec<&str> = row.values().map(String::as_str).collect();
        let sql = format!(
            "INSERT INTO event_host.events ({}) VALUES ({})",
            columns.join(", "),
            values.join(", ")
        );
        tried.statement(&sql).await;
    }
    tried.end().await;
    let accepted: i64 = value(&mut raw, "SELECT count(*) FROM event_host.events").await;
    let accepted = usize::try_from(accepted).unwrap();
    let refused = rows.len() - accepted;
    assert!(accepted > 500 && refused > 500, "{accepted} and {refused}");
    for event in every_row_is_read(&store, accepted).await {
        event.event.check().unwrap_or_else(|error| panic!("{error}: {event:?}"));
    }
}

/// A value for a column of this kind, of which most are what the host writes there.
fn value_of(column: Column) -> BoxedStrategy<String> {
    match column {
        Column::Text => prop_oneof![
            4 => text("[a-z]{1,5}"),
            1 => select(vec!["''", "'active'", "'paused'", "'innocent'", "'trap'"]).prop_map(str::to_owned),
        ]
        .boxed(),
        Column::Number => prop_oneof![
            6 => (0..9_i64).prop_map(|n| n.to_string()),
            3 => any::<i64>().prop_map(|n| n.to_string()),
            1 => select(vec!["NULL", "9223372036854775807", "-9223372036854775808"]).prop_map(str::to_owned),
        ]
        .boxed(),
        Column::Time => time().boxed(),
        Column::Json => extensions().boxed(),
        Column::Bytes => select(vec!["''", "'\\x00ff'", "NULL", "'text'"]).prop_map(str::to_owned).boxed(),
    }
}

#[tokio::test]
async fn rows_that_somebody_wrote_by_hand_hurt_no_other_group() {
    let database = PostgresDatabase::new().await;
    let store: Arc<dyn Store> = Arc::new(database.store());
    rows_by_hand_hurt_no_other(&store, async || {
        let mut raw = database.raw().await;
        let mut tried = Tried::begin(&mut raw).await;
        let mut written = 0;
        for sql in fuzz::samples(3_000, &rows_by_hand(value_of)) {
            written += usize::from(tried.statement(&sql).await);
        }
        tried.end().await;
        written
    })
    .await;
}
