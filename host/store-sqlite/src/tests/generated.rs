//! Rows that another client might insert, as many kinds as there are: whatever the
//! constraints let in is an event that every group reads.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use sqlx::{AssertSqlSafe, Connection, Executor};

use super::SqliteDatabase;
use event_host_core::fuzz;
use event_host_store::suite::fuzzed::{
    Column, every_row_is_read, rows_by_hand, rows_by_hand_hurt_no_other,
};
use event_host_store::traits::*;

/// A value as SQL has it.
fn literal() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => fuzz::odd_text().prop_map(|text| of_bytes(text.as_bytes(), "TEXT")),
        4 => vec(any::<u8>(), 0..12).prop_map(|bytes| of_bytes(&bytes, "TEXT")),
        // Bytes that are no UTF-8, and of which U+FFFD makes more.
        1 => (select(vec![1_024, 8_192, 60_000]), any::<bool>()).prop_map(|(length, is_short)| {
            of_bytes(&vec![0xff; length - usize::from(is_short)], "TEXT")
        }),
        1 => vec(any::<u8>(), 0..12).prop_map(|bytes| of_bytes(&bytes, "BLOB")),
        1 => select(vec!["NULL", "0", "-1", "1.5", "9e999", "-9e999", "''", "9223372036854775807"])
            .prop_map(str::to_owned),
    ]
}

fn of_bytes(bytes: &[u8], sql_type: &str) -> String {
    let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    format!("CAST(x'{hex}' AS {sql_type})")
}

fn text(usual: &'static str) -> impl Strategy<Value = String> {
    prop_oneof![
        3 => usual.prop_map(|text| of_bytes(text.as_bytes(), "TEXT")),
        1 => literal(),
    ]
}

/// Extensions as JSON that somebody wrote by hand.
fn extensions() -> impl Strategy<Value = String> {
    let name = prop_oneof![8 => "x[a-z0-9]{0,4}", 1 => "[a-zA-Z\\\\u0061\"]{0,8}"];
    let members = vec((name, fuzz::json()), 0..3).prop_map(|members| {
        let member = |(name, value)| format!("\"{name}\": {value}");
        format!("{{{}}}", members.into_iter().map(member).collect::<Vec<_>>().join(" , "))
    });
    // Short numbers that are long ones when they are written out.
    let many = (1..6_600_usize, select(vec!["1e9", "-2E+9", "0.0000", "1", "\"\\u00e9\""]))
        .prop_map(|(count, value)| {
            let members: Vec<String> = (0..count).map(|n| format!("\"{n}\":{value}")).collect();
            format!("{{{}}}", members.join(","))
        });
    let broken =
        vec(any::<u8>(), 0..6).prop_map(|bytes| [b"{\"x\":\"", &bytes[..], b"\"}"].concat());
    let bytes = prop_oneof![
        12 => members.prop_map(String::into_bytes),
        1 => many.prop_map(String::into_bytes),
        2 => broken,
        1 => (1_000..65_000_usize).prop_map(|n| [b"{\"x\":\"", &vec![0xff; n][..], b"\"}"].concat()),
        1 => fuzz::json().prop_map(String::into_bytes),
    ];
    (bytes, proptest::bool::weighted(0.1))
        .prop_map(|(bytes, is_blob)| of_bytes(&bytes, if is_blob { "BLOB" } else { "TEXT" }))
}

fn microseconds() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (0..1_800_000_000_000_000_i64).prop_map(|us| us.to_string()),
        2 => (-377_705_023_201_000_010..253_402_207_200_000_010_i64).prop_map(|us| us.to_string()),
        2 => select(vec![
            "-377705023201000000", "-62167219200000000", "-62167219200000001",
            "253402207200000000", "'1769860800000000'", "1769860800000000.0", "NULL", "1e300",
        ]).prop_map(str::to_owned),
    ]
}

/// The columns that are given, with their values.
fn row() -> impl Strategy<Value = BTreeMap<&'static str, String>> {
    let texts = select(vec![
        ("id", 0_u8),
        ("source", 0),
        ("subject", 0),
        ("partitionkey", 0),
        ("datacontenttype", 1),
        ("dataschema", 2),
        ("source", 2),
        ("data", 0),
        ("tenant", 3),
        ("deliver_to", 3),
        ("digest", 4),
    ]);
    let texts = texts.prop_flat_map(|(name, kind)| {
        let value = match kind {
            0 => text("[ -~\u{e9}]{1,12}").boxed(),
            1 => prop_oneof![
                fuzz::media_type().prop_map(|text| of_bytes(text.as_bytes(), "TEXT")),
                literal()
            ]
            .boxed(),
            2 => prop_oneof![
                fuzz::uri().prop_map(|text| of_bytes(text.as_bytes(), "TEXT")),
                literal()
            ]
            .boxed(),
            // Of other tenants and groups, nothing is read here.
            3 => select(vec!["''", "'a b'", "x'00'", "'reads#1'"]).prop_map(str::to_owned).boxed(),
            _ => literal().boxed(),
        };
        (Just(name), value)
    });
    let times = (select(vec!["time", "published_at", "deliver_after"]), microseconds());
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

#[tokio::test]
async fn every_group_reads_whatever_row_the_constraints_let_in() {
    let database = SqliteDatabase::new();
    let store: Arc<dyn Store> = Arc::new(database.store().await);
    let mut raw = database.raw().await;
    let mut transaction = raw.begin().await.unwrap();
    let mut accepted = 0;
    let rows = fuzz::samples(3_000, &row());
    for row in &rows {
        let columns: Vec<&str> = row.keys().copied().collect();
        let values: Vec<&str> = row.values().map(String::as_str).collect();
        let sql =
            format!("INSERT INTO events ({}) VALUES ({})", columns.join(", "), values.join(", "));
        let inserted = (&mut *transaction).execute(sqlx::raw_sql(AssertSqlSafe(sql))).await;
        accepted += usize::from(inserted.is_ok());
    }
    transaction.commit().await.unwrap();
    let refused = rows.len() - accepted;
    assert!(accepted > 500 && refused > 500, "{accepted} and {refused}");
    for event in every_row_is_read(&store, accepted).await {
        // The parameters of a media type are not looked at in SQL.
        let mut event = event.event;
        event.datacontenttype = event.datacontenttype.filter(|text| !text.contains(';'));
        event.check().unwrap_or_else(|error| panic!("{error}: {event:?}"));
    }
}

/// A value for a column of this kind, of which most are what the host writes there.
fn value_of(column: Column) -> BoxedStrategy<String> {
    let number = prop_oneof![
        6 => (0..9_i64).prop_map(|n| n.to_string()),
        3 => any::<i64>().prop_map(|n| n.to_string()),
        1 => select(vec!["NULL", "1.5", "'x'", "x'ff'", "9e999", "9223372036854775807"])
            .prop_map(str::to_owned),
    ];
    match column {
        Column::Text => prop_oneof![
            4 => text("[a-z]{1,5}"),
            1 => select(vec!["''", "'active'", "'paused'", "'innocent'", "'trap'"]).prop_map(str::to_owned),
        ]
        .boxed(),
        Column::Number => number.boxed(),
        Column::Time => prop_oneof![4 => microseconds(), 1 => number].boxed(),
        Column::Json => extensions().boxed(),
        Column::Bytes => literal().boxed(),
    }
}

#[tokio::test]
async fn rows_that_somebody_wrote_by_hand_hurt_no_other_group() {
    let database = SqliteDatabase::new();
    let store: Arc<dyn Store> = Arc::new(database.store().await);
    rows_by_hand_hurt_no_other(&store, async || {
        let mut raw = database.raw().await;
        let mut transaction = raw.begin().await.unwrap();
        let mut written = 0;
        for sql in fuzz::samples(3_000, &rows_by_hand(value_of)) {
            let done = (&mut *transaction).execute(sqlx::raw_sql(AssertSqlSafe(sql))).await;
            written += usize::from(done.is_ok());
        }
        transaction.commit().await.unwrap();
        written
    })
    .await;
}
