//! An event that goes out as a request and comes back as an answer.

use http::StatusCode;
use proptest::prelude::*;

use super::*;
use crate::bindings::event_host::handler::outbox::Message;
use crate::imports::event_of;
use crate::settings::HttpPath;
use event_host_core::event::{Attempt, Event, ExtensionValue, GroupName, Position, Tenant};
use event_host_core::fuzz;
use event_host_core::handler::state::{BatchState, EmptyState};

/// The request of an event, with what is told of the call.
fn request_of(event: Event, tenant: &str, is_replay: bool) -> http::Request<Vec<u8>> {
    let group: GroupName = "triage".parse().unwrap();
    let tenant: Tenant = tenant.parse().unwrap();
    let deliver_to = is_replay.then(|| group.clone());
    let event = LogEvent { position: Position(7), deliver_to, digest: None, event };
    let input = CallInput {
        group: &group,
        tenant: &tenant,
        events: &[&event],
        attempt: Attempt(3),
        is_late: is_replay,
        state: &BatchState::new("").attempt(Arc::new(EmptyState)),
    };
    request::request(&event, &input, &HttpPath::default()).unwrap()
}

/// What a handler emits that answers with this.
fn emitted(headers: &http::HeaderMap, body: &[u8]) -> Vec<Message> {
    let body = Body { kept: body.to_vec(), total: body.len(), broken: None };
    match response::verdict(StatusCode::OK, headers, body, SystemTime::now()) {
        Verdict::Done(messages) => messages,
        other => panic!("{other:?}"),
    }
}

/// What HTTP can tell of an event: it has no types of extensions, and no difference between
/// data that is empty and none. Data without a media type is JSON.
fn as_http_tells(mut event: Event) -> Event {
    event.data = event.data.filter(|data| !data.is_empty());
    for value in event.extensions.values_mut() {
        *value = ExtensionValue::Text(match value {
            ExtensionValue::Boolean(value) => value.to_string(),
            ExtensionValue::Integer(value) => value.to_string(),
            ExtensionValue::Text(value) => value.clone(),
        });
    }
    event
}

/// Events that may be emitted, and whose data is not itself an event.
fn plain_event() -> impl Strategy<Value = Event> {
    fuzz::event().prop_filter("a whole event", |event| {
        let content_type = event.datacontenttype.as_deref().unwrap_or_default();
        event.check().is_ok()
            && event.check_delay(jiff::Timestamp::now()).is_ok()
            && !content_type.to_ascii_lowercase().starts_with("application/cloudevents")
    })
}

proptest! {
    #![proptest_config(fuzz::cases(2_000))]

    #[test]
    fn an_event_that_is_echoed_is_the_same_event(event in plain_event()) {
        let request = request_of(event.clone(), "", false);
        let messages = emitted(request.headers(), request.body());
        prop_assert_eq!(messages.len(), 1);
        let echoed = event_of(messages.into_iter().next().unwrap()).unwrap();
        let mut expected = as_http_tells(event.clone());
        if event.data.is_some() {
            expected.datacontenttype.get_or_insert_with(|| "application/json".to_owned());
        }
        prop_assert_eq!(echoed, expected);
    }

    #[test]
    fn an_event_in_structured_mode_is_the_same_event(events in prop::collection::vec(plain_event(), 1..4)) {
        let whole: Vec<Event> = events
            .into_iter()
            .map(|event| Event { data: event.data.filter(|data| !data.is_empty()), ..event })
            .collect();
        let texts: Vec<String> = whole.iter().map(Event::to_json_string).collect();
        let structured = |content_type: &'static str, text: &str| -> Vec<Event> {
            let mut headers = http::HeaderMap::new();
            headers.insert("content-type", http::HeaderValue::from_static(content_type));
            let messages = emitted(&headers, text.as_bytes());
            messages.into_iter().map(|message| event_of(message).unwrap()).collect()
        };
        let one = structured("application/cloudevents+json; charset=utf-8", &texts[0]);
        prop_assert_eq!(&one[..], &whole[..1]);
        let batch = format!("[{}]", texts.join(","));
        prop_assert_eq!(structured("Application/CloudEvents-Batch+JSON", &batch), whole);
    }
}

#[test]
fn a_request_says_what_the_event_and_the_call_are() {
    let event = Event::from_json(
        r#"{"specversion":"1.0","id":"Z\u00fc-1","source":"/orders","type":"order/placed","subject":"a b",
            "time":"2026-01-31T12:00:00.5Z","partitionkey":"k","dataschema":"https://example.com/s",
            "deliverafter":"2026-02-01T00:00:00Z","n":-7,"flag":true,"data":{"a":1}}"#,
    )
    .unwrap();
    let request = request_of(event, "acme", true);
    assert_eq!(request.method(), http::Method::POST);
    assert_eq!(request.uri(), "http://event-host.internal/order%2Fplaced");
    assert_eq!(request.body(), br#"{"a":1}"#);
    let headers: Vec<_> = request
        .headers()
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    assert_eq!(
        headers,
        [
            "content-type: application/json",
            "ce-specversion: 1.0",
            "ce-id: Z%C3%BC-1",
            "ce-source: /orders",
            "ce-type: order/placed",
            "ce-subject: a%20b",
            "ce-time: 2026-01-31T12:00:00.5Z",
            "ce-dataschema: https://example.com/s",
            "ce-partitionkey: k",
            "ce-deliverafter: 2026-02-01T00:00:00Z",
            "ce-flag: true",
            "ce-n: -7",
            "content-length: 7",
            "eh-position: 7",
            "eh-attempt: 3",
            "eh-group: triage",
            "eh-tenant: acme",
            "eh-replay: true",
            "eh-late: true",
        ]
    );
    let bare = Event::from_json(r#"{"specversion":"1.0","id":"1","source":"/s","type":"t"}"#);
    let request = request_of(bare.unwrap(), "", false);
    let names: Vec<_> = request.headers().keys().map(http::HeaderName::as_str).collect();
    assert!(!names.contains(&"content-type") && !names.contains(&"eh-tenant"), "{names:?}");
    assert!(!names.contains(&"eh-replay") && request.body().is_empty(), "{names:?}");
}
