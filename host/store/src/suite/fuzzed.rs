//! Events as nobody would write them: what the host lets in, a store keeps as it is, in
//! the log and in all that a group keeps of it; what the host refuses, a store refuses.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::TestDatabase;
use super::samples::{
    bury_all, event, fetch_all, group, host, led, publish, settings, settlement, until,
};
use crate::{
    DeadLetterFilter, DeliveryStore, DueFetch, GroupRegistration, NewVersion, Retention, Settled,
    Settlement, Store, StoreError,
};
use event_host_core::event::jsonl::EventLines;
use event_host_core::event::{Epoch, Event, HandlerName, LogEvent, Position, Tenant};
use event_host_core::fuzz;

/// Whether the host lets it in.
fn is_let_in(event: &Event) -> bool {
    event.check().is_ok() && event.check_delay(Timestamp::now()).is_ok()
}

pub async fn what_the_host_lets_in_is_kept_as_it_is(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let mut events = fuzz::samples(1_500, &fuzz::event());
    events.retain(is_let_in);
    assert!(events.len() > 500, "most are events: {}", events.len());
    // One by one where the whole is refused: the error then names its event.
    if store.publish(&Tenant::none(), &events).await.is_err() {
        for event in &events {
            let alone = store.publish(&Tenant::none(), std::slice::from_ref(event)).await;
            alone.unwrap_or_else(|error| panic!("{error}: {event:?}"));
        }
    }
    stands_through(&store, &events).await;
}

pub async fn what_a_line_gives_is_kept_as_it_is(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let mut events = Vec::new();
    let mut refused = 0;
    let files = fuzz::corpus("events").into_iter().map(|(_, bytes)| bytes);
    for file in files.chain(fuzz::samples(1_500, &line()).into_iter().map(String::into_bytes)) {
        for line in EventLines::new(&*file) {
            match line {
                Ok(line) => events.extend(line.events),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(events.len() > 300 && refused > 300, "{} and {refused}", events.len());
    publish(&store, &events).await;
    stands_through(&store, &events).await;
    // And it can be published again as it is shown.
    let shown: Vec<String> = events.iter().map(Event::to_json_string).collect();
    let read: Vec<Event> = shown.iter().map(|json| Event::from_json(json).unwrap()).collect();
    assert_eq!(read, events);
}

pub async fn what_the_host_refuses_a_store_refuses(database: &dyn TestDatabase) {
    let store = database.handle().await;
    let mut events = fuzz::samples(700, &fuzz::event());
    events.retain(|event| !is_let_in(event) && database.sees_what_is_wrong_with(event));
    assert!(events.len() > 50, "{}", events.len());
    for event in &events {
        let answer = store.publish(&Tenant::none(), std::slice::from_ref(event)).await;
        let why = event.check();
        assert!(
            matches!(answer, Err(StoreError::Refused(_))),
            "{answer:?}, but the host says {why:?} of {event:?}"
        );
    }
    assert_eq!(store.status().await.unwrap().events, 0);
}

/// What a client inserted by SQL, and the constraints let in, hurts no group: one reads
/// all of it, gives it up, has it replayed and emits the same again, in one part or in
/// two, and whoever asks for the status of all groups has it.
pub async fn every_row_is_read(store: &Arc<dyn Store>, rows: usize) -> Vec<LogEvent> {
    let name = "reads";
    let epoch = led(store, name).await;
    until("all are safe", async || fetch_all(store, name, 0).await.len() == rows).await;
    let events = fetch_all(store, name, 0).await;
    let positions: Vec<Position> = events.iter().map(|event| event.position).collect();
    let found = store.fetch_at(&group(name), &positions, usize::MAX).await.unwrap();
    assert_eq!(found.events, events);
    let status = store.status().await.unwrap();
    assert_eq!(status.unreadable, Vec::<String>::new());
    assert_eq!(status.groups[0].lag_events, i64::try_from(rows).unwrap());

    let letters = bury_all(store, name, epoch).await;
    assert_eq!(letters.len(), rows);
    for (letter, event) in letters.iter().zip(&events) {
        assert_eq!(letter.event.event, event.event);
        let replayed = store.replay(letter.id, None, None).await;
        replayed.unwrap_or_else(|error| panic!("{error}: {event:?}"));
    }
    // A handler emits what it was given, or something under its key. One by one where the
    // whole is refused: the error then names its event.
    // When it was published, and so until when it may be delayed, a client may have said.
    let again = |event: &LogEvent| Event { deliver_after: None, ..event.event.clone() };
    if emit(store, name, epoch, events.iter().map(again).collect()).await.is_err() {
        for event in &events {
            let emitted = emit(store, name, epoch, vec![again(event)]).await;
            emitted.unwrap_or_else(|error| panic!("{error}: {event:?}"));
        }
    }
    let all = settings("parts");
    store.ensure_group(&GroupRegistration { partitions: 2, ..all }).await.unwrap();
    store.status().await.unwrap();
    let retention = Retention { max_age: Some(Duration::from_secs(1)), max_bytes: Some(1) };
    store.enforce_retention(&retention).await.unwrap();
    events
}

/// What a column of the tables beside the log holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Text,
    Number,
    Time,
    Json,
    Bytes,
}

/// The tables beside the log whose rows belong to a group or a tenant, with the columns
/// that both stores have, but for `group_name`.
const TABLES: [(&str, &[(&str, Column)]); 6] = {
    use Column::{Bytes, Json, Number, Text, Time};
    [
        (
            "redeliveries",
            &[
                ("position", Number),
                ("attempt", Number),
                ("due_at", Time),
                ("partitionkey", Text),
                ("failure_kind", Text),
                ("failure_text", Text),
            ],
        ),
        (
            "deferred",
            &[
                ("position", Number),
                ("due_at", Time),
                ("deliver_to", Text),
                ("digest", Text),
                ("type", Text),
                ("time", Time),
                ("id", Text),
                ("source", Text),
                ("subject", Text),
                ("partitionkey", Text),
                ("deliver_after", Time),
                ("extensions", Json),
                ("data", Bytes),
            ],
        ),
        (
            "dead_letters",
            &[
                ("tenant", Text),
                ("position", Number),
                ("deliver_to", Text),
                ("type", Text),
                ("time", Time),
                ("event_id", Text),
                ("source", Text),
                ("deliver_after", Time),
                ("extensions", Json),
                ("data", Bytes),
                ("attempts", Number),
                ("failure_kind", Text),
                ("failure_text", Text),
                ("digest", Text),
                ("dead_at", Time),
            ],
        ),
        ("state", &[("scope", Text), ("key", Text), ("value", Bytes)]),
        (
            "deployments",
            &[
                ("tenant", Text),
                ("handler", Text),
                ("version", Number),
                ("digest", Text),
                ("deployed_at", Time),
                ("deployed_by", Text),
                ("state", Text),
            ],
        ),
        (
            "consumer_groups",
            &[
                ("tenant", Text),
                ("position", Number),
                ("epoch", Number),
                ("settled", Number),
                ("leader_since", Time),
                ("state", Text),
                ("reason", Text),
                ("remark", Text),
                ("head_position", Number),
                ("head_attempt", Number),
                ("head_due_at", Time),
                ("head_failure_kind", Text),
                ("head_failure_text", Text),
                ("mark_position", Number),
                ("mark_attempt", Number),
                ("fruitless", Number),
                ("failures", Json),
                ("created_at", Time),
                ("settled_at", Time),
                ("partitions", Number),
            ],
        ),
    ]
};

/// How many groups have rows that somebody wrote by hand.
const ODD_GROUPS: usize = 12;

/// Statements that write such rows, of values that `literal` draws.
pub fn rows_by_hand(
    literal: impl Fn(Column) -> BoxedStrategy<String>,
) -> impl Strategy<Value = String> {
    let statements = TABLES.map(|(table, columns)| {
        let values: Vec<_> = columns.iter().map(|(_, kind)| literal(*kind)).collect();
        let which = proptest::bits::usize::between(0, columns.len());
        (values, which, 0..ODD_GROUPS)
            .prop_map(move |(values, which, group)| {
                let group = format!("'odd{group}'");
                if table == "consumer_groups" {
                    // A few columns at a time: others would undo what one of them does.
                    let set: Vec<String> = columns
                        .iter()
                        .zip(values)
                        .enumerate()
                        .filter(|(n, _)| which & (which >> 1) & (1 << n) != 0)
                        .map(|(_, ((name, _), value))| format!("{name} = {value}"))
                        .collect();
                    let set =
                        if set.is_empty() { "reason = 'x'".to_owned() } else { set.join(", ") };
                    return format!("UPDATE consumer_groups SET {set} WHERE name = {group}");
                }
                let mut names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
                let mut values = values;
                if table == "deployments" {
                    // There has to be such a component.
                    let digest = names.iter().position(|name| *name == "digest").unwrap();
                    values[digest] = "(SELECT digest FROM components)".to_owned();
                } else {
                    names.push("group_name");
                    values.push(group);
                }
                format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), values.join(", "))
            })
            .boxed()
    });
    proptest::strategy::Union::new(statements)
}

/// Groups whose rows somebody wrote by hand, as the constraints let it be, hurt no other:
/// whatever is asked of all groups is answered, and an innocent one is led and settles.
pub async fn rows_by_hand_hurt_no_other(
    store: &Arc<dyn Store>,
    write: impl AsyncFnOnce() -> usize,
) {
    let deployer: HandlerName = "h".parse().unwrap();
    let (tenant, component) = (Tenant::none(), &b"one"[..]);
    let new = NewVersion { tenant: &tenant, handler: &deployer, component, deployed_by: "ada" };
    store.deploy(new).await.unwrap();
    let epoch = led(store, "innocent").await;
    for odd in 0..ODD_GROUPS {
        store.ensure_group(&settings(&format!("odd{odd}"))).await.unwrap();
    }
    let positions = publish(store, &[event("a", "1"), event("b", "2")]).await;
    let written = write().await;
    assert!(written > 100, "{written}");

    let patience = Duration::from_secs(20);
    let asked = tokio::time::timeout(patience, async {
        let status = store.status().await.unwrap();
        let innocent = status.groups.iter().find(|one| one.name == group("innocent")).unwrap();
        assert_eq!(innocent.lag_events, 2);
        assert_eq!(status.groups.len() + status.unreadable.len(), ODD_GROUPS + 1);
        let controls = store.group_states().await.unwrap();
        assert!(controls.iter().any(|control| control.name == group("innocent")));
        let deployed = store.deployed().await.unwrap();
        assert!(deployed.iter().any(|one| one.handler == deployer && one.tenant.is_none()));
        store.dead_letters(&DeadLetterFilter::default()).await.unwrap();
        let retention = Retention { max_age: Some(Duration::from_secs(1)), max_bytes: Some(1) };
        store.enforce_retention(&retention).await.unwrap();
        let settled = settlement(store, "innocent", epoch, positions[1].0).await;
        assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
        // Of their own, they are told what is wrong, if anything is.
        for odd in 0..ODD_GROUPS {
            let name = group(&format!("odd{odd}"));
            let _ = store.group_status(&name).await;
            let _ = store.cursor(&name).await;
            let _ = store.begin_leadership(&name, &host("one")).await;
            let _ = store.redeliveries(&name).await;
            let _ = store.deferred(&name).await;
            let due = DueFetch {
                group: &name,
                now: Timestamp::now(),
                after: None,
                up_to: Position(i64::MAX),
                max_events: 1_000,
            };
            let _ = store.due(due).await;
            let _ = store.state_keys(&name, "", "", 10).await;
            let filter = DeadLetterFilter { group: Some(name), ..DeadLetterFilter::default() };
            let letters = store.dead_letters(&filter).await.unwrap();
            if let Some(letter) = letters.first() {
                let _ = store.replay(letter.id, None, None).await;
            }
        }
    });
    asked.await.expect("all of it within 20 s");
}

/// Settles that a group, whose cursor stays where it is, emits these.
async fn emit(
    store: &Arc<impl DeliveryStore + ?Sized>,
    name: &str,
    epoch: Epoch,
    emits: Vec<Event>,
) -> Result<(), StoreError> {
    let cursor = store.cursor(&group(name)).await.unwrap();
    let emitting = Settlement { emits, ..settlement(store, name, epoch, cursor.position.0).await };
    store.settle(&emitting).await.map(|settled| assert_eq!(settled, Settled::Committed))
}

/// The log holds these events and nothing else. So do, in turn, the dead letters of a
/// group, what is replayed of them, and the log again after a group emitted them.
async fn stands_through(store: &Arc<dyn Store>, events: &[Event]) {
    let name = "fuzzed";
    let epoch = led(store, name).await;
    let same = |found: &[Event], what: &str| {
        assert_eq!(found.len(), events.len(), "{what}");
        for (found, event) in found.iter().zip(events) {
            assert_eq!(found, event, "{what}");
        }
    };
    let bare = |events: Vec<LogEvent>| -> Vec<Event> {
        events.into_iter().map(|event| event.event).collect()
    };
    same(&bare(fetch_all(store, name, 0).await), "fetched");

    let letters = bury_all(store, name, epoch).await;
    let buried: Vec<Event> = letters.iter().map(|letter| letter.event.event.clone()).collect();
    same(&buried, "given up");
    let mut last = Position::ZERO;
    for letter in &letters {
        last = store.replay(letter.id, None, None).await.unwrap().position;
    }
    let first = last.0 - i64::try_from(events.len()).unwrap();
    until("all are safe", async || store.safe_position().await.unwrap() >= last).await;
    let replayed = fetch_all(store, name, first).await;
    assert!(replayed.iter().all(|event| event.deliver_to == Some(group(name))));
    let undelayed: Vec<Event> =
        events.iter().map(|event| Event { deliver_after: None, ..event.clone() }).collect();
    let found: Vec<Event> =
        bare(replayed).into_iter().map(|event| Event { deliver_after: None, ..event }).collect();
    assert_eq!(found, undelayed, "replayed");

    emit(store, name, epoch, events.to_vec()).await.unwrap();
    let all = last.0 + i64::try_from(events.len()).unwrap();
    until("all are safe", async || store.safe_position().await.unwrap().0 >= all).await;
    same(&bare(fetch_all(store, "another", last.0).await), "emitted");
}

/// A line of a file of events: one event, with members that may be anything.
fn line() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        8 => fuzz::extension_name(),
        8 => select(vec![
            "id", "source", "type", "subject", "time", "datacontenttype", "dataschema",
            "partitionkey", "deliverafter", "data", "data_base64", "specversion", "ID", "Data",
        ])
        .prop_map(str::to_owned),
    ];
    let name = (name, proptest::bool::weighted(0.1)).prop_map(|(name, is_escaped)| {
        if is_escaped {
            let units: Vec<String> =
                name.encode_utf16().take(64).map(|unit| format!("\\u{unit:04x}")).collect();
            format!("\"{}\"", units.concat())
        } else {
            serde_json::Value::from(name).to_string()
        }
    });
    let quoted = |text: String| serde_json::Value::from(text).to_string();
    let value = prop_oneof![
        6 => fuzz::json(),
        2 => fuzz::media_type().prop_map(quoted),
        2 => fuzz::uri().prop_map(quoted),
        2 => "[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]([.][0-9]{1,12})?(Z|[+-][0-2][0-9]:[0-6][0-9])"
            .prop_map(quoted),
        1 => "[A-Za-z0-9+/]{0,12}={0,2}".prop_map(quoted),
    ];
    let space = select(vec!["", "", "", " ", "\t", " \r "]);
    let more = vec((name, value, space), 0..3);
    let payload = prop_oneof![
        2 => fuzz::json().prop_map(|json| format!(",\"data\":{json}")),
        2 => (fuzz::media_type(), fuzz::json()).prop_map(|(of, json)| {
            format!(",\"datacontenttype\":{},\"data\":{json}", serde_json::Value::from(of))
        }),
        1 => Just(String::new()),
    ];
    (more, payload, 0..40_u8).prop_map(|(more, payload, is_batch)| {
        let more: String =
            more.into_iter().map(|(n, v, s)| format!(",{s}{n}{s}:{s}{v}{s}")).collect();
        let event =
            format!(r#"{{"specversion":"1.0","id":"i","source":"/s","type":"t"{payload}{more}}}"#);
        match is_batch {
            0 => format!("[{event},{event}]"),
            1 => format!("\u{feff}{event}\r"),
            2 => format!("{event}{event}"),
            _ => event,
        }
    })
}
