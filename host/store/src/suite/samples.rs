//! Events, groups and settlements for the tests, and short ways to ask a store.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::{
    Claim, DeadLetter, DeadLetterFilter, DeliveryStore, FailureRecord, Fetch, Fetched,
    GroupRegistration, Head, HostIdentity, Leadership, LockSession, Mark, NewDeadLetter,
    Redelivery, Release, Settled, Settlement, StateWrite, Store, Subscription,
};
use event_host_core::event::{
    Attempt, Epoch, Event, ExtensionValue, GroupName, LogEvent, Position, Tenant,
};
use event_host_core::failure::FailureKind;

pub(super) fn group(name: &str) -> GroupName {
    name.parse().unwrap()
}

pub(super) fn tenant(name: &str) -> Tenant {
    name.parse().unwrap()
}

pub(super) fn host(name: &str) -> HostIdentity {
    HostIdentity { id: format!("id of {name}"), hostname: name.to_owned(), pid: 4_711 }
}

pub(super) fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

pub(super) fn event(event_type: &str, id: &str) -> Event {
    Event {
        data: Some(id.as_bytes().to_vec()),
        ..Event::new(id, "/suite", event_type, time("2026-01-31T12:00:00.123456Z"))
    }
}

/// Every attribute, with what is likely to get lost.
pub(super) fn rich_event(id: &str) -> Event {
    let text = |text: &str| ExtensionValue::Text(text.to_owned());
    Event {
        subject: Some("sub/ject with spaces, 'quotes' and \u{1F980}".to_owned()),
        datacontenttype: Some("application/octet-stream".to_owned()),
        dataschema: Some("https://example.com/schema?v=1".to_owned()),
        partitionkey: Some("key with spaces".to_owned()),
        deliver_after: Some(time("2026-01-31T12:00:00.654321Z")),
        extensions: [
            ("yes".to_owned(), ExtensionValue::Boolean(true)),
            ("no".to_owned(), ExtensionValue::Boolean(false)),
            ("least".to_owned(), ExtensionValue::Integer(i32::MIN)),
            ("most".to_owned(), ExtensionValue::Integer(i32::MAX)),
            ("looksboolean".to_owned(), text("true")),
            ("looksinteger".to_owned(), text("42")),
            ("empty".to_owned(), text("")),
            ("odd".to_owned(), text("\"\\\u{FFFD}\u{10FFFD}\\n")),
        ]
        .into(),
        data: Some((0..=255).collect()),
        ..event("rich", id)
    }
}

pub(super) fn settings(name: &str) -> GroupRegistration {
    GroupRegistration::new(group(name), Tenant::none())
}

pub(super) fn head(position: i64, attempt: u32) -> Head {
    Head {
        position: Position(position),
        attempt: Attempt(attempt),
        due_at: time("2026-02-01T00:00:00.000001Z"),
        failure: Some(FailureRecord::new(FailureKind::Trap, "it trapped")),
    }
}

pub(super) fn mark(position: i64, attempt: u32) -> Mark {
    Mark { position: Position(position), attempt: Attempt(attempt) }
}

pub(super) fn redelivery(position: i64, attempt: u32) -> Redelivery {
    Redelivery {
        position: Position(position),
        attempt: Attempt(attempt),
        due_at: time("2026-02-01T00:00:00.000001Z"),
        key: Some("customer-7".to_owned()),
        failure: Some(FailureRecord::new(FailureKind::Trap, "it trapped")),
        late: false,
    }
}

/// The group's next settlement, which moves its cursor and does nothing else. A
/// group that does not exist has settled nothing.
pub(super) async fn settlement(
    store: &Arc<impl DeliveryStore + ?Sized>,
    name: &str,
    epoch: Epoch,
    position: i64,
) -> Settlement {
    let settled = store.cursor(&group(name)).await.map_or(0, |cursor| cursor.settled);
    Settlement {
        group: group(name),
        epoch,
        number: settled + 1,
        position: Position(position),
        head: None,
        dead_letters: Vec::new(),
        emits: Vec::new(),
        state: Vec::new(),
        redeliveries: Vec::new(),
        redelivered: Vec::new(),
        failures: None,
        undecided: None,
        handled: 0,
        mark: None,
        deferred: Vec::new(),
    }
}

pub(super) fn dead(event: LogEvent) -> NewDeadLetter {
    NewDeadLetter {
        event,
        attempts: 5,
        failure: FailureRecord::new(FailureKind::Reject, "no such customer"),
        digest: "sha256:0123".to_owned(),
        dead_at: time("2026-02-02T02:02:02.000002Z"),
    }
}

pub(super) fn write(key: &str, value: Option<&[u8]>) -> StateWrite {
    scoped_write("", key, value)
}

pub(super) fn scoped_write(scope: &str, key: &str, value: Option<&[u8]>) -> StateWrite {
    StateWrite { scope: scope.to_owned(), key: key.to_owned(), value: value.map(<[u8]>::to_vec) }
}

pub(super) async fn publish(
    store: &Arc<impl DeliveryStore + ?Sized>,
    events: &[Event],
) -> Vec<Position> {
    store.publish(&Tenant::none(), events).await.unwrap()
}

/// Publishes events of one type with the ids 1 to `count`.
pub(super) async fn publish_some(
    store: &Arc<impl DeliveryStore + ?Sized>,
    count: usize,
) -> Vec<Position> {
    let events: Vec<Event> = (1..=count).map(|n| event("some", &n.to_string())).collect();
    publish(store, &events).await
}

/// Makes a group of all events and begins to lead it.
pub(super) async fn led(store: &Arc<impl DeliveryStore + ?Sized>, name: &str) -> Epoch {
    store.ensure_group(&settings(name)).await.unwrap();
    store.begin_leadership(&group(name), &host("one")).await.unwrap().epoch
}

/// Everything that a group of all events has after a position.
pub(super) async fn fetch_all(
    store: &Arc<impl DeliveryStore + ?Sized>,
    name: &str,
    after: i64,
) -> Vec<LogEvent> {
    let safe = store.safe_position().await.unwrap();
    let mut events = Vec::new();
    let mut after = after;
    while after < safe.0 {
        let fetched = fetch(store, name, &Tenant::none(), &Subscription::all(), after).await;
        assert!(fetched.scanned_to.0 > after, "it goes on");
        after = fetched.scanned_to.0;
        events.extend(fetched.events.into_iter().map(Arc::unwrap_or_clone));
    }
    events
}

pub(super) async fn fetch(
    store: &Arc<impl DeliveryStore + ?Sized>,
    name: &str,
    tenant: &Tenant,
    subscription: &Subscription,
    after: i64,
) -> Fetched {
    let fetch = Fetch {
        partition: None,
        group: &group(name),
        tenant,
        subscription,
        after: Position(after),
        up_to: store.safe_position().await.unwrap(),
        max_events: 100_000,
        max_bytes: usize::MAX,
    };
    store.fetch(fetch).await.unwrap()
}

/// Settles that the group gives up on all events there are, and on nothing
/// else.
pub(super) async fn bury_all(store: &Arc<dyn Store>, name: &str, epoch: Epoch) -> Vec<DeadLetter> {
    let last = store.safe_position().await.unwrap();
    let settlement = Settlement {
        dead_letters: fetch_all(store, name, 0).await.into_iter().map(dead).collect(),
        ..settlement(store, name, epoch, last.0).await
    };
    assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
    letters(store, name).await
}

pub(super) async fn letters(store: &Arc<dyn Store>, name: &str) -> Vec<DeadLetter> {
    let filter = DeadLetterFilter { group: Some(group(name)), ..DeadLetterFilter::default() };
    store.dead_letters(&filter).await.unwrap()
}

/// Claims one group. Whether the session leads it.
pub(super) async fn claims(session: &mut Box<dyn LockSession>, group: &GroupName) -> bool {
    claimed(session, group).await.is_some()
}

/// Claims one group, and gives the leadership if the session leads it.
pub(super) async fn claimed(
    session: &mut Box<dyn LockSession>,
    group: &GroupName,
) -> Option<Leadership> {
    match session.claim(std::slice::from_ref(group)).await.unwrap().remove(0) {
        Claim::Led(leadership) => Some(*leadership),
        Claim::LedElsewhere | Claim::Unavailable(_) => None,
        Claim::Missing => panic!("there is no group {group}"),
    }
}

/// Gives a group back, as one that did not end cleanly.
pub(super) async fn give_back(session: &mut Box<dyn LockSession>, group: &GroupName) {
    release(session, group, None).await;
}

/// Gives a group back.
pub(super) async fn release(
    session: &mut Box<dyn LockSession>,
    group: &GroupName,
    ended: Option<Epoch>,
) {
    let releases = [Release { group: group.clone(), ended }];
    // Whoever was refused something may have the row for a moment still.
    let released = async || session.release(&releases).await.unwrap().is_empty();
    until("its row is had", released).await;
}

/// Ends a leadership cleanly.
pub(super) async fn end(store: &Arc<impl DeliveryStore + ?Sized>, name: &GroupName, epoch: Epoch) {
    let mut session = store.lock_session(&host("ends")).await.unwrap();
    release(&mut session, name, Some(epoch)).await;
}

pub(super) fn ids(events: &[impl Borrow<LogEvent>]) -> Vec<&str> {
    events.iter().map(|event| event.borrow().event.id.as_str()).collect()
}

/// Looks again and again until it is so, for what another process does a little
/// later.
pub(super) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let looked = tokio::time::timeout(Duration::from_secs(20), looking).await;
    assert!(looked.is_ok(), "not within 20 s: {what}");
}
