//! What the fuzz tests share: how many cases they draw, from which seed, and what is odd
//! about the text that they draw.
//!
//! A fuzz test draws the same cases each time, as many as take a few seconds. `FUZZ=100`
//! in the environment draws a hundred times as many, from a new seed, which a failure
//! prints, and `FUZZ_SEED` from a given one. What was found once stays as a file in `tests/corpus`, or as a test of its own.

#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says what it expects by failing"
)]

use std::fs;
use std::path::Path;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};

use crate::event::bounds::{EXTENSIONS_BYTES, LONG_BYTES, SHORT_BYTES};
use crate::event::{Event, ExtensionValue};

/// A number that the environment gives.
fn asked<N: FromStr>(name: &str) -> Option<N> {
    let asked = std::env::var(name).ok()?;
    Some(asked.parse().unwrap_or_else(|_| panic!("{name} is {asked:?}: give a whole number")))
}

/// Number of cases from a fixed seed, or `FUZZ` times as many from a new one.
pub fn cases(count: u32) -> ProptestConfig {
    let factor: Option<u32> = asked("FUZZ");
    let cases = count.saturating_mul(factor.unwrap_or(1));
    let seed: u64 =
        asked("FUZZ_SEED").unwrap_or(if factor.is_some() { fastrand::u64(..) } else { 1 });
    eprintln!("{cases} cases from FUZZ_SEED={seed}");
    // A case that failed is kept by hand, as a test that says what was wrong.
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// This number of values, for a test that tries them all at once.
pub fn samples<S: Strategy>(count: u32, strategy: &S) -> Vec<S::Value> {
    let config = cases(count);
    let count = config.cases;
    let mut runner = TestRunner::new(config);
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// The files of a folder of `tests/corpus`, with their names.
pub fn corpus(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus").join(folder);
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap())
        })
        .collect();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.sort();
    files
}

/// Characters that one program or another takes for something else.
pub const ODD: [char; 34] = [
    '\0',
    '\u{1}',
    '\t',
    '\n',
    '\r',
    '\u{1b}',
    '\u{1f}',
    ' ',
    '"',
    '\'',
    '\\',
    '/',
    '%',
    '#',
    '$',
    '{',
    '*',
    '?',
    '[',
    '^',
    '\u{7f}',
    '\u{85}',
    '\u{9f}',
    '\u{a0}',
    'é',
    '\u{2028}',
    '\u{202e}',
    '\u{d7ff}',
    '\u{e000}',
    '\u{fdd0}',
    '\u{feff}',
    '\u{ffff}',
    '\u{1f980}',
    '\u{10ffff}',
];

/// A text with odd characters, or none, or about as long as an attribute may be.
pub fn odd_text() -> impl Strategy<Value = String> {
    let edge = select(vec![SHORT_BYTES, LONG_BYTES, EXTENSIONS_BYTES]);
    prop_oneof![
        4 => vec(prop_oneof![select(ODD.to_vec()), any::<char>()], 0..6).prop_map(String::from_iter),
        4 => ("[ -~]{0,8}", select(ODD.to_vec()), "[ -~]{0,8}")
            .prop_map(|(before, odd, after)| format!("{before}{odd}{after}")),
        1 => (edge, -2..2_isize, select(vec!["x", "é", "\u{20ac}", "\u{1f980}", "\""])).prop_map(
            |(bytes, more, of)| {
                let bytes = bytes.saturating_add_signed(more);
                let whole = of.repeat(bytes / of.len());
                let rest = bytes - whole.len();
                whole + &"y".repeat(rest)
            }
        ),
    ]
}

/// A text that any attribute may have, or now and then an odd one.
fn text(usual: &'static str) -> impl Strategy<Value = String> {
    prop_oneof![12 => usual, 1 => odd_text()]
}

fn moment() -> impl Strategy<Value = Timestamp> {
    let microseconds = prop_oneof![
        8 => 0..2_000_000_000_000_000_i64,
        4 => -62_167_219_200_000_000..=253_402_207_200_000_000_i64,
        1 => select(vec![
            -377_705_023_201_000_000,
            -62_167_219_200_000_001,
            -62_167_219_200_000_000,
            -1,
            253_402_207_200_000_000,
        ]),
    ];
    microseconds.prop_map(|us| Timestamp::from_microsecond(us).unwrap())
}

/// When it is delivered: long ago, within a year, or clearly later than anything may be.
fn delay() -> impl Strategy<Value = Timestamp> {
    let from_now = |hours| Timestamp::now() + SignedDuration::from_hours(hours);
    prop_oneof![
        4 => moment().prop_filter("past", |time| time.as_second() < 1_700_000_000),
        4 => (-1_000..8_000_i64).prop_map(from_now),
        1 => (9_000..90_000_i64).prop_map(from_now),
    ]
    .prop_map(|time| Timestamp::from_microsecond(time.as_microsecond()).unwrap())
}

fn extension() -> impl Strategy<Value = ExtensionValue> {
    prop_oneof![
        any::<bool>().prop_map(ExtensionValue::Boolean),
        any::<i32>().prop_map(ExtensionValue::Integer),
        text("[ -~é\u{20ac}\u{1f980}]{0,12}").prop_map(ExtensionValue::Text),
    ]
}

/// Names of extensions, some of which cannot be.
pub fn extension_name() -> impl Strategy<Value = String> {
    let reserved = select(vec!["id", "data", "time", "partitionkey", "deliverafter"]);
    prop_oneof![
        20 => "x[a-z0-9]{0,8}",
        1 => "[a-zA-Z0-9_ \u{e9}]{0,4}",
        1 => reserved.prop_map(str::to_owned),
        1 => odd_text(),
    ]
}

/// Media types, some of which cannot be.
pub fn media_type() -> impl Strategy<Value = String> {
    let usual = select(vec![
        "application/json",
        "text/plain; charset=utf-8",
        "application/octet-stream",
        "application/cloudevents+json; charset=\"x;y\"",
        "A/B;c=\"\\\"\"",
        "json",
        "a/b/c",
        "a/b;",
        "a/b; c",
    ]);
    prop_oneof![
        12 => usual.prop_map(str::to_owned),
        4 => "[a-z!#]{1,4}/[a-z+.]{1,4}[ \t]?(;[ \t]?[a-z]{1,2}=([a-z]{1,2}|\"[ -~\t]{0,5}\"))?",
        1 => odd_text(),
    ]
}

/// URIs and references to them, some of which cannot be.
pub fn uri() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => "(https://[a-z]{1,9}|urn:|/|#|//|[?]|[a-z]+:)[a-zA-Z0-9._~/-]{0,20}",
        4 => "([a-zA-Z0-9:/?#@!$&'()*+,;=._~-]|\\[|\\]|%[0-9A-Fa-f]{2}){1,12}",
        2 => "[ -~]{1,6}",
        1 => odd_text(),
    ]
}

/// An event of which most attributes are what they may be.
pub fn event() -> impl Strategy<Value = Event> {
    let usual = "[ -~]{1,12}|[a-z\u{e9}\u{20ac}\u{1f980}]{1,12}";
    let names = (text(usual), prop_oneof![4 => Just("/fuzz".to_owned()), 2 => uri()], text(usual));
    let optional = (option::of(text(usual)), option::of(text(usual)));
    let described = (
        option::of(media_type()),
        option::weighted(0.3, prop_oneof![2 => "[a-z]{1,5}:[a-z/%]{0,9}", 1 => uri()]),
    );
    let times = (moment(), option::weighted(0.3, delay()));
    let extensions = btree_map(extension_name(), extension(), 0..3);
    let data = option::of(prop_oneof![
        4 => vec(any::<u8>(), 0..40),
        4 => odd_text().prop_map(String::into_bytes),
        2 => json().prop_map(String::into_bytes),
    ]);
    (names, optional, described, times, extensions, data).prop_map(
        |(
            (id, source, event_type),
            (subject, partitionkey),
            (datacontenttype, dataschema),
            (time, deliver_after),
            extensions,
            data,
        )| Event {
            id,
            source,
            event_type,
            subject,
            time,
            datacontenttype,
            dataschema,
            partitionkey,
            deliver_after,
            extensions,
            data,
        },
    )
}

/// A text of JSON that a careless writer might make, or an attacker.
pub fn json() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        "-?(0|[1-9][0-9]{0,30})([.][0-9]{1,20})?([eE][+-]?[0-9]{1,4})?",
        select(vec![
            "-0",
            "-0.0",
            "1e400",
            "1E-400",
            "2147483647",
            "2147483648",
            "-2147483648",
            "-2147483649",
            "2147483647.0",
            "1.0000000000000000000000000001",
            "1e0",
            "01",
            "+1",
            "1.",
            ".5",
            "NaN",
            "Infinity",
            "0x10",
            "9007199254740993",
            "18446744073709551616",
        ])
        .prop_map(str::to_owned),
    ];
    let escape = select(vec![
        "\\u0000",
        "\\u001f",
        "\\ud800",
        "\\udc00",
        "\\ud83e\\udd80",
        "\\udc00\\ud800",
        "\\uFFFF",
        "\\uFDD0",
        "\\u0061",
        "\\n",
        "\\\"",
        "\\\\",
        "\\/",
        "\\x",
        "\\u12",
        "\n",
        "\u{7f}",
        "\u{85}",
        "\u{feff}",
        "\u{10ffff}",
        "é",
    ]);
    let string = vec(prop_oneof![2 => "[a-z ]{1,4}", 3 => escape.prop_map(str::to_owned)], 0..4)
        .prop_map(|parts| format!("\"{}\"", parts.concat()));
    let deep = (select(vec![2, 127, 128, 129, 20_000]), select(vec![("[", "]"), ("{\"a\":", "}")]))
        .prop_map(|(depth, (open, close))| {
            format!("{}1{}", open.repeat(depth), close.repeat(depth))
        });
    let leaf = prop_oneof![
        4 => string,
        4 => number,
        4 => select(vec!["true", "false", "null", "True", "nul", "", "{}", "[]", "[", "{\"a\"}"])
            .prop_map(str::to_owned),
        1 => deep,
        2 => odd_text().prop_map(|text| serde_json::Value::from(text).to_string()),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(", "))),
            vec(("[a-z]{0,2}", inner), 0..3).prop_map(|members| {
                let member = |(name, value)| format!("\"{name}\": {value}");
                format!("{{{}}}", members.into_iter().map(member).collect::<Vec<_>>().join(","))
            }),
        ]
    })
}

/// A small change of some bytes: what a bad disk or a bad sender makes of them.
#[derive(Debug, Clone)]
pub enum Damage {
    /// Nothing from here on.
    Cut(usize),
    /// One bit is another.
    Flip(usize, u8),
    /// One byte is another.
    Set(usize, u8),
    /// Some bytes come in between.
    Insert(usize, Vec<u8>),
    /// Some bytes are gone.
    Remove(usize, usize),
    /// Some bytes stand there twice.
    Repeat(usize, usize),
}

/// Where the damage is, is taken modulo the length of what is damaged.
pub fn damage() -> impl Strategy<Value = Vec<Damage>> {
    let at = any::<usize>();
    let one = prop_oneof![
        1 => at.prop_map(Damage::Cut),
        4 => (at, 0..8_u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        2 => (at, prop_oneof![any::<u8>(), select(vec![0, 0x7f, 0x80, 0xff])])
            .prop_map(|(at, byte)| Damage::Set(at, byte)),
        1 => (at, vec(any::<u8>(), 1..6)).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        1 => (at, 1..40_usize).prop_map(|(at, count)| Damage::Remove(at, count)),
        1 => (at, 1..40_usize).prop_map(|(at, count)| Damage::Repeat(at, count)),
    ];
    vec(one, 1..5)
}

/// The bytes, damaged.
pub fn damaged(bytes: &[u8], damage: &[Damage]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for one in damage {
        let length = bytes.len().max(1);
        match one {
            Damage::Cut(at) => bytes.truncate(at % length),
            Damage::Flip(at, bit) => {
                bytes.iter_mut().skip(at % length).take(1).for_each(|b| *b ^= 1 << bit)
            }
            Damage::Set(at, byte) => {
                bytes.iter_mut().skip(at % length).take(1).for_each(|b| *b = *byte)
            }
            Damage::Insert(at, more) => {
                let at = (at % length).min(bytes.len());
                bytes.splice(at..at, more.iter().copied());
            }
            Damage::Remove(at, count) => {
                let at = (at % length).min(bytes.len());
                let end = (at + count).min(bytes.len());
                bytes.drain(at..end);
            }
            Damage::Repeat(at, count) => {
                let at = (at % length).min(bytes.len());
                let end = (at + count).min(bytes.len());
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
        }
    }
    bytes
}
