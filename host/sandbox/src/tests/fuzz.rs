//! Bytes that are no component, or a generated one: each is loaded or refused,
//! and never more than a panic away from it in neither case; and guests that answer at
//! random, which cost one attempt each.

use std::time::Instant;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::guests::{self, BatchGuest, Guest, import};
use super::*;
use crate::{Form, LoadReason};
use event_host_core::fuzz;
use event_host_core::handler::BatchCall;

/// How long one component may take, in a build that is not optimised.
const PATIENCE: Duration = Duration::from_secs(20);

/// Loads the bytes or has them refused, in time and without a panic: one of the compiler
/// is told as an internal error. Says which.
async fn load_any(what: &str, wasm: Vec<u8>) -> bool {
    let started = Instant::now();
    let loaded = load_with(wasm.clone(), Limits::default(), Reuse::Batch).await;
    assert!(started.elapsed() < PATIENCE, "{what} took {:?}", started.elapsed());
    match loaded {
        Ok(handler) => {
            assert_eq!(handler.inspection().bytes, wasm.len() as u64);
            true
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!matches!(error.reason, LoadReason::Internal(_)), "{what}: {text}");
            false
        }
    }
}

/// The bytes of a component as wasm-smith draws it: valid, and of every kind of section.
fn smithed_component(seed: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = arbitrary::Unstructured::new(seed);
    let component = wasm_smith::Component::new(wasm_smith::Config::default(), &mut bytes);
    component.ok().map(|component| component.to_bytes())
}

/// The same, of a core module.
fn smithed_module(seed: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = arbitrary::Unstructured::new(seed);
    let config = wasm_smith::Config { allow_start_export: true, ..wasm_smith::Config::default() };
    wasm_smith::Module::new(config, &mut bytes).ok().map(|module| module.to_bytes())
}

fn seed() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..4_000)
}

#[tokio::test]
async fn components_and_modules_as_they_may_be_are_loaded_or_refused() {
    let mut tried = 0;
    for (seed, damage) in fuzz::samples(150, &(seed(), proptest::option::of(fuzz::damage()))) {
        for made in [smithed_component(&seed), smithed_module(&seed)] {
            let Some(mut wasm) = made else { continue };
            if let Some(damage) = &damage {
                wasm = fuzz::damaged(&wasm, damage);
            }
            tried += 1;
            load_any(&format!("{seed:02x?} {damage:?}"), wasm).await;
        }
    }
    assert!(tried > 100, "{tried}");
}

/// With the metadata of a handler, so that more of the host looks at it.
#[tokio::test]
async fn modules_as_they_may_be_are_no_handlers_for_their_metadata() {
    let noop = guests::noop();
    let metadata: Vec<u8> = wasmparser::Parser::new(0)
        .parse_all(&noop)
        .filter_map(|payload| match payload.unwrap() {
            wasmparser::Payload::CustomSection(section)
                if section.name().starts_with("component-type") =>
            {
                let name = section.name();
                let mut whole = vec![u8::try_from(name.len()).unwrap()];
                whole.extend_from_slice(name.as_bytes());
                whole.extend_from_slice(section.data());
                Some(whole)
            }
            _ => None,
        })
        .next()
        .unwrap();
    for (seed, damage) in
        fuzz::samples(100, &(seed(), proptest::option::weighted(0.3, fuzz::damage())))
    {
        let Some(mut wasm) = smithed_module(&seed) else { continue };
        wasm.push(0);
        let length = u32::try_from(metadata.len()).unwrap();
        wasm.extend_from_slice(&leb128(length));
        wasm.extend_from_slice(&metadata);
        if let Some(damage) = &damage {
            wasm = fuzz::damaged(&wasm, damage);
        }
        load_any(&format!("{seed:02x?} {damage:?}"), wasm).await;
    }
}

/// A core module without what this engine does not run, and with a memory that fits.
fn plain_module(seed: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = arbitrary::Unstructured::new(seed);
    let config = wasm_smith::Config {
        exceptions_enabled: false,
        gc_enabled: false,
        compact_imports_enabled: false,
        threads_enabled: false,
        wide_arithmetic_enabled: false,
        memory64_enabled: false,
        max_memory32_bytes: 1 << 20,
        max_table_elements: 1_000,
        ..wasm_smith::Config::default()
    };
    wasm_smith::Module::new(config, &mut bytes).ok().map(|module| module.to_bytes())
}

/// A handler in whose component another module lies, which is compiled with it.
#[tokio::test]
async fn a_handler_that_carries_any_module_is_loaded_and_works() {
    let handler = wit_component::ComponentEncoder::default()
        .module(&guests::noop())
        .unwrap()
        .encode()
        .unwrap();
    let mut loaded = 0;
    let mut refused = std::collections::BTreeSet::new();
    for seed in fuzz::samples(80, &seed()) {
        let Some(module) = plain_module(&seed) else { continue };
        let length = leb128(u32::try_from(module.len()).unwrap());
        // Section 1 of a component is a core module.
        let wasm = [&handler[..], &[1], &length, &module].concat();
        match load_with(wasm, Limits::default(), Reuse::Batch).await {
            Ok(handler) => {
                loaded += 1;
                assert_eq!(attempt(&handler).await.outcome, Outcome::Success);
            }
            Err(error) => {
                let text = error.to_string();
                assert!(!matches!(error.reason, LoadReason::Internal(_)), "{seed:02x?}: {text}");
                refused.insert(text);
            }
        }
    }
    assert!(loaded > 20, "{loaded}: {refused:#?}");
}

fn leb128(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).unwrap();
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

#[tokio::test]
async fn a_real_component_that_is_damaged_is_loaded_or_refused() {
    let with_preview1 = Guest { imports: endings::FD_WRITE, ..Guest::default() }.build();
    let originals = [
        guests::noop(),
        wit_component::ComponentEncoder::default()
            .module(&guests::noop())
            .unwrap()
            .encode()
            .unwrap(),
        with_preview1,
        BatchGuest::default().build(),
    ];
    for (which, damage) in fuzz::samples(250, &(0..originals.len(), fuzz::damage())) {
        load_any(&format!("{which} {damage:?}"), fuzz::damaged(&originals[which], &damage)).await;
    }
    let mut whole =
        load_with(guests::noop(), Limits::default(), Reuse::Batch).await.unwrap().worker();
    assert_eq!(Caller::default().attempt(&mut whole).await.outcome, Outcome::Success);
    let form = load(originals[1].clone()).await.inspection().form;
    assert_eq!(form, Form::Component);
}

#[tokio::test]
async fn bytes_that_were_a_trouble_once_are_refused() {
    for (name, bytes) in fuzz::corpus("components") {
        assert!(!load_any(&name, bytes).await, "{name} is no handler");
    }
}

#[tokio::test]
async fn text_that_is_hardly_webassembly_is_refused() {
    let piece = select(vec![
        "(module",
        "(component",
        "(func",
        ")",
        "))))",
        "(import \"a\" \"b\" (func))",
        "(memory 1)",
        "(@custom \"x\" \"y\")",
        "\"\\ff\"",
        "(core module $m",
        "(instance",
        "(type (",
        ";;",
        "(;",
        "$x",
        "0x1p9999",
        "(data \"\\u{110000}\")",
        "(rec",
        "\n",
        "\0",
        "(i32.const 99999999999)",
    ]);
    for pieces in fuzz::samples(500, &vec(piece, 1..12)) {
        let text = format!("({}", pieces.join(" "));
        assert!(!load_any(&text, text.clone().into_bytes()).await, "{text}");
    }
}

/// What a guest hands the host: 64 words at the place of its answer, or of its message.
/// Most are small, or point at where something is.
fn words() -> impl Strategy<Value = Vec<u32>> {
    let word = prop_oneof![
        6 => 0..3_u32,
        3 => 0..64_u32,
        4 => 2_040..2_112_u32,
        2 => select(vec![65_535, 131_071, 131_072, 0x7fff_ffff, 0x8000_0000, u32::MAX, u32::MAX - 7]),
        1 => any::<u32>(),
    ];
    vec(word, 64)
}

/// The bytes at 2048, which texts and data point to.
fn texts() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        1 => vec(any::<u8>(), 64),
        3 => "[a-z./:;=+-]{64}".prop_map(String::into_bytes),
        1 => vec(select(fuzz::ODD.to_vec()), 64)
            .prop_map(|text| String::from_iter(text).into_bytes()[..64].to_vec()),
    ]
}

fn data(at: u32, bytes: &[u8]) -> String {
    let escaped: Vec<String> = bytes.iter().map(|byte| format!("\\{byte:02x}")).collect();
    format!("(data (i32.const {at}) \"{}\")", escaped.concat())
}

fn of_words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Runs one call and sees that it ends as calls end, by the handler's own fault.
async fn ends(what: &str, wasm: Vec<u8>, events: usize) -> bool {
    let limits = Limits { timeout: Duration::from_secs(5), ..Limits::default() };
    let handler = load_with(wasm, limits, Reuse::Batch).await.unwrap();
    let events = vec![event(); events];
    let events: Vec<&LogEvent> = events.iter().collect();
    let (group, tenant) = ("triage".parse().unwrap(), Tenant::none());
    let call = BatchCall { group: &group, tenant: &tenant, events: &events, state: no_state() };
    let report = tokio::time::timeout(PATIENCE, handler.worker().attempt_all(call)).await.unwrap();
    assert_eq!(report.outcomes.len(), events.len(), "{what}");
    for outcome in &report.outcomes {
        match outcome {
            Outcome::Success => {}
            Outcome::Failure(failure) => {
                let text = &failure.text;
                assert!(text.len() <= 20_000, "{what}: {} bytes", text.len());
                assert!(!text.chars().any(|c| c == '\0' || c == '\u{1b}'), "{what}: {text:?}");
            }
            Outcome::NotRun(why) => panic!("{what}: {why}"),
        }
    }
    // What is emitted is settled without another look.
    for emitted in &report.emits {
        emitted.check().unwrap_or_else(|error| panic!("{what}: {error}: {emitted:?}"));
        emitted.check_delay(jiff::Timestamp::now()).unwrap();
    }
    report.outcomes.iter().all(|outcome| *outcome == Outcome::Success) && !report.emits.is_empty()
}

#[tokio::test]
async fn whatever_a_guest_answers_is_an_outcome() {
    for (words, text) in fuzz::samples(200, &(words(), texts())) {
        let items = format!("{}{}", data(1_024, &of_words(&words)), data(2_048, &text));
        let wasm = Guest { items: &items, handle: "(i32.const 1024)", ..Guest::default() }.build();
        ends(&format!("{words:?} {text:02x?}"), wasm, 1).await;
    }
}

#[tokio::test]
async fn whatever_a_guest_emits_is_an_event_or_refused() {
    let mut emitted = 0;
    for (words, text) in fuzz::samples(400, &(message(), texts())) {
        let items = format!("{}{}", data(512, &of_words(&words)), data(2_048, &text));
        let wasm = Guest {
            imports: &import("outbox", "emit", "(param i32 i32)"),
            items: &items,
            handle: "(call $outbox_emit (i32.const 512) (i32.const 768)) (call $ok)",
            ..Guest::default()
        };
        let has_emitted = ends(&format!("{words:?} {text:02x?}"), wasm.build(), 1).await;
        emitted += u32::from(has_emitted);
    }
    assert!(emitted > 10, "{emitted}");
}

/// A message as it lies in memory, of which most parts are what they may be: type and data
/// by place and length, then seven texts that may be absent, then extensions.
fn message() -> impl Strategy<Value = Vec<u32>> {
    let place = || prop_oneof![20 => 2_048..2_080_u32, 1 => any::<u32>()];
    let length = || prop_oneof![20 => 1..16_u32, 1 => Just(0_u32), 1 => any::<u32>()];
    let required = vec((place(), length()), 2);
    let optional = vec(
        (prop_oneof![24 => Just(0_u32), 6 => Just(1_u32), 1 => any::<u32>()], place(), length()),
        7,
    );
    let extensions = (place(), prop_oneof![12 => Just(0_u32), 2 => 0..4_u32, 1 => any::<u32>()]);
    (required, optional, extensions).prop_map(|(required, optional, extensions)| {
        let mut words: Vec<u32> =
            required.into_iter().flat_map(|(at, length)| [at, length]).collect();
        words.extend(optional.into_iter().flat_map(|(given, at, length)| [given, at, length]));
        words.extend([extensions.0 & !3, extensions.1]);
        words
    })
}

#[tokio::test]
async fn whatever_number_of_results_a_batch_answers_is_an_outcome() {
    let number = prop_oneof![0..5_u32, any::<u32>()];
    let each = select(vec!["(i32.const 0)", "(i32.const 1)", "(i32.const 7)", "(unreachable)"]);
    for (number, each, events) in fuzz::samples(60, &(number, each, 1..4_usize)) {
        let results = format!("(i32.const {number})");
        let wasm = BatchGuest { results: &results, each, ..BatchGuest::default() }.build();
        ends(&format!("{number} {each} {events}"), wasm, events).await;
    }
}
