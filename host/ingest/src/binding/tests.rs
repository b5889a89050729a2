//! The binding: modes, attributes, data, and what is refused.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use event_host_core::event::ExtensionValue;

const LIMITS: Limits = Limits { max_event: 1 << 20, max_events: 1_000 };

fn headers(headers: &[(&str, &str)]) -> HeaderMap {
    headers
        .iter()
        .map(|(name, value)| {
            (
                name.parse::<HeaderName>().unwrap(),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            )
        })
        .collect()
}

fn read(sent: &HeaderMap, body: &[u8]) -> Result<Vec<Event>, Refusal> {
    events(Mode::of(sent)?, sent, body.to_vec(), LIMITS)
}

const LEAST: [(&str, &str); 4] =
    [("ce-specversion", "1.0"), ("ce-id", "7"), ("ce-source", "/shop"), ("ce-type", "paid")];

/// The least that an event has, and some more.
fn binary(more: &[(&str, &str)]) -> HeaderMap {
    headers(&[&LEAST[..], more].concat())
}

#[test]
fn each_mode_of_the_binding_gives_the_same_event() {
    let data = br#"{ "n": 1.10, "big": 12345678901234567890, "n": [ ] }"#;
    let sent = binary(&[
        ("ce-time", "2026-01-31T12:00:00.1234567+02:00"),
        ("ce-subject", "caf%C3%A9"),
        ("ce-dataschema", "https://example.com/s"),
        ("ce-partitionkey", "k"),
        ("ce-deliverafter", "2026-02-01T00:00:00Z"),
        ("ce-comexampleextension1", "value"),
        ("content-type", "application/json; charset=utf-8"),
    ]);
    let json = format!(
        r#"{{"specversion":"1.0","id":"7","source":"/shop","type":"paid","time":"2026-01-31T12:00:00.1234567+02:00",
            "subject":"café","dataschema":"https://example.com/s","partitionkey":"k","deliverafter":"2026-02-01T00:00:00Z",
            "comexampleextension1":"value","datacontenttype":"application/json; charset=utf-8","data": {} }}"#,
        std::str::from_utf8(data).unwrap()
    );
    let by_binary = read(&sent, data).unwrap();
    let structured = headers(&[("content-type", "Application/CloudEvents+JSON; charset=UTF-8")]);
    let by_structured = read(&structured, json.as_bytes()).unwrap();
    let batched = headers(&[("content-type", "application/cloudevents-batch+json")]);
    let by_batched = read(&batched, format!(" [ {json} ] ").as_bytes()).unwrap();
    assert_eq!(by_binary, by_structured);
    assert_eq!(by_binary, by_batched);
    assert_eq!(by_binary[0].data.as_deref(), Some(&data[..]), "byte for byte");
    assert_eq!(by_binary, [Event::from_json(&json).unwrap()]);
}

#[test]
fn data_of_binary_mode_are_the_body_as_it_is() {
    let bytes: Vec<u8> = (0..=255).collect();
    for content_type in
        ["application/octet-stream", "text/plain", "application/json", "a/b;c=\"d\""]
    {
        let event = read(&binary(&[("content-type", content_type)]), &bytes).unwrap().remove(0);
        assert_eq!(event.data.as_deref(), Some(&bytes[..]));
        assert_eq!(event.datacontenttype.as_deref(), Some(content_type));
    }
    let none = read(&binary(&[("content-type", "text/plain")]), b"").unwrap().remove(0);
    assert_eq!((none.data, none.datacontenttype.as_deref()), (None, Some("text/plain")));
    let json = read(&binary(&[]), b" [1, 2.0 ] ").unwrap().remove(0);
    assert_eq!((json.data.as_deref(), json.datacontenttype), (Some(&b" [1, 2.0 ] "[..]), None));
    let extension = read(&binary(&[("ce-a1", "%22x%22"), ("ce-b", "")]), b"").unwrap().remove(0);
    let text = |text: &str| ExtensionValue::Text(text.to_owned());
    assert_eq!(extension.extensions["a1"], text("\"x\""));
    assert_eq!(extension.extensions["b"], text(""));
}

#[test]
fn headers_beside_a_structured_event_count_for_nothing() {
    let json = br#"{"specversion":"1.0","id":"body","source":"/b","type":"b"}"#;
    let sent = binary(&[("content-type", "application/cloudevents+json"), ("ce-UPPER_", "%")]);
    assert_eq!(read(&sent, json).unwrap()[0].id, "body");
}

#[test]
fn an_empty_batch_is_no_event_and_no_mistake() {
    let batched = headers(&[("content-type", "application/cloudevents-batch+json")]);
    assert_eq!(read(&batched, b" [ ] ").unwrap(), []);
}

#[test]
fn each_mistake_is_named_with_its_place() {
    let json = [("content-type", "application/cloudevents+json")];
    let batch = [("content-type", "application/cloudevents-batch+json")];
    let good = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t"}"#;
    let bad = r#"{"specversion":"1.0","id":"","source":"/s","type":"t"}"#;
    let without = |left_out: &str| {
        headers(&LEAST.iter().copied().filter(|(name, _)| *name != left_out).collect::<Vec<_>>())
    };
    let twice = |name: &'static str| {
        let mut sent = binary(&[]);
        sent.append(name, HeaderValue::from_static("x"));
        sent
    };
    let raw = |name: &'static str, value: &[u8]| {
        let mut sent = binary(&[]);
        sent.insert(name, HeaderValue::from_bytes(value).unwrap());
        sent
    };
    use Reason::{InvalidEvent, InvalidRequest, TooLarge, Unsupported};
    // Headers and body; the reason, the event, the attribute, and a part of the sentence.
    type Case = (HeaderMap, String, Reason, Option<usize>, Option<&'static str>, &'static str);
    let cases: Vec<Case> = vec![
        (headers(&[]), String::new(), InvalidRequest, None, None, "no CloudEvent"),
        (
            headers(&[("content-type", "application/json")]),
            good.into(),
            InvalidRequest,
            None,
            None,
            "/hooks/NAME",
        ),
        (
            headers(&[("content-type", "application/cloudevents+avro")]),
            String::new(),
            Unsupported,
            None,
            None,
            "as JSON",
        ),
        (
            headers(&[("content-type", "application/cloudevents")]),
            good.into(),
            Unsupported,
            None,
            None,
            "as JSON",
        ),
        (
            headers(&[("content-type", "application/cloudevents-batch+protobuf")]),
            good.into(),
            Unsupported,
            None,
            None,
            "as JSON",
        ),
        (
            headers(&[("content-type", "application/cloudevents+json; charset=latin1")]),
            good.into(),
            Unsupported,
            None,
            None,
            "UTF-8",
        ),
        (headers(&json), "[]".into(), InvalidEvent, None, None, "a list stands"),
        (headers(&json), "{".into(), InvalidEvent, None, None, "not JSON"),
        (headers(&json), String::new(), InvalidEvent, None, None, "not JSON"),
        (headers(&json), bad.into(), InvalidEvent, None, Some("id"), "`id` is empty"),
        (
            headers(&json),
            good.replace("1.0", "0.3"),
            InvalidEvent,
            None,
            Some("specversion"),
            "only `1.0`",
        ),
        (headers(&batch), good.into(), InvalidEvent, None, None, "a JSON array"),
        (headers(&batch), "null".into(), InvalidEvent, None, None, "not JSON"),
        (headers(&batch), format!("[{good},"), InvalidEvent, None, None, "not JSON"),
        (
            headers(&batch),
            format!("[{good},{bad}]"),
            InvalidEvent,
            Some(1),
            Some("id"),
            "`id` is empty",
        ),
        (headers(&batch), format!("[{good},7]"), InvalidEvent, Some(1), None, "a number stands"),
        (
            headers(&batch),
            format!("[{}{good}]", format!("{good},").repeat(1_000)),
            TooLarge,
            None,
            None,
            "1001 events",
        ),
        (without("ce-id"), String::new(), InvalidEvent, None, Some("id"), "`ce-id` is missing"),
        (without("ce-source"), String::new(), InvalidEvent, None, Some("source"), "is missing"),
        (without("ce-type"), String::new(), InvalidEvent, None, Some("type"), "is missing"),
        (
            without("ce-specversion"),
            String::new(),
            InvalidEvent,
            None,
            Some("specversion"),
            "is missing",
        ),
        (twice("ce-id"), String::new(), InvalidEvent, None, Some("id"), "is there twice"),
        (twice("ce-x"), String::new(), InvalidEvent, None, Some("type"), ""),
        (
            binary(&[("ce-datacontenttype", "a/b")]),
            String::new(),
            InvalidEvent,
            None,
            Some("datacontenttype"),
            "`Content-Type`",
        ),
        (
            binary(&[("ce-data", "x")]),
            String::new(),
            InvalidEvent,
            None,
            Some("data"),
            "no extension",
        ),
        (
            binary(&[("ce-a_b", "x")]),
            String::new(),
            InvalidEvent,
            None,
            Some("a_b"),
            "names no attribute",
        ),
        (
            binary(&[("ce-", "x")]),
            String::new(),
            InvalidEvent,
            None,
            Some(""),
            "names no attribute",
        ),
        (
            binary(&[("ce-time", "yesterday")]),
            String::new(),
            InvalidEvent,
            None,
            Some("time"),
            "RFC 3339",
        ),
        (
            binary(&[("ce-deliverafter", "2999-01-01T00:00:00Z")]),
            String::new(),
            InvalidEvent,
            None,
            Some("deliverafter"),
            "366 days",
        ),
        (
            binary(&[("ce-subject", "%")]),
            String::new(),
            InvalidEvent,
            None,
            Some("subject"),
            "two hexadecimal digits",
        ),
        (
            binary(&[("ce-subject", "%C0%AF")]),
            String::new(),
            InvalidEvent,
            None,
            Some("subject"),
            "not UTF-8",
        ),
        (
            binary(&[("ce-subject", "%00")]),
            String::new(),
            InvalidEvent,
            None,
            Some("subject"),
            "U+0000",
        ),
        (
            binary(&[("ce-subject", "")]),
            String::new(),
            InvalidEvent,
            None,
            Some("subject"),
            "is empty",
        ),
        (
            raw("ce-subject", b"\xff"),
            String::new(),
            InvalidEvent,
            None,
            Some("subject"),
            "not UTF-8",
        ),
        (raw("content-type", b"\xff"), String::new(), InvalidRequest, None, None, "no text"),
        (
            binary(&[("content-type", "json")]),
            "{}".into(),
            InvalidEvent,
            None,
            Some("datacontenttype"),
            "no media type",
        ),
        (
            binary(&[]),
            "no json".into(),
            InvalidEvent,
            None,
            Some("datacontenttype"),
            "Content-Type",
        ),
        (
            binary(&[("content-type", "a/b"), ("content-type", "c/d")]),
            String::new(),
            InvalidRequest,
            None,
            None,
            "twice",
        ),
        (
            binary(&[("content-type", "a/b")]),
            "x".repeat(1 << 20),
            TooLarge,
            None,
            None,
            "the most is 1048576",
        ),
    ];
    for (sent, body, reason, event, attribute, part) in cases {
        if part.is_empty() {
            read(&sent, body.as_bytes()).unwrap();
            continue;
        }
        let shown = format!("{sent:?} {body:.100}");
        let refused = read(&sent, body.as_bytes()).expect_err(&shown);
        let found = (refused.reason, refused.event, refused.attribute.as_deref());
        assert_eq!(found, (reason, event, attribute), "{shown}: {refused}");
        assert!(refused.detail.contains(part), "{shown}: {refused}");
    }
}

#[test]
fn deep_json_is_read_in_every_mode_or_refused_with_a_sentence() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let event =
        format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{deep}}}"#);
    let structured = headers(&[("content-type", "application/cloudevents+json")]);
    let batched = headers(&[("content-type", "application/cloudevents-batch+json")]);
    for (sent, body) in [
        (binary(&[]), deep.clone()),
        (structured.clone(), event.clone()),
        (batched.clone(), format!("[{event}]")),
    ] {
        assert_eq!(read(&sent, body.as_bytes()).unwrap()[0].data.as_deref(), Some(deep.as_bytes()));
    }
    let broken = "[".repeat(100_000);
    for (sent, body) in [
        (&binary(&[]), broken.clone()),
        (&structured, broken.clone()),
        (&batched, broken.clone()),
        (&batched, deep.clone()),
        (&structured, event.replace("\"data\"", "\"x\"")),
    ] {
        read(sent, body.as_bytes()).unwrap_err();
    }
}

#[test]
fn only_gzip_is_a_coding_that_is_taken() {
    for (coding, is_gzip_sent) in [("gzip", true), ("GZIP", true), ("identity", false), ("", false)]
    {
        assert_eq!(
            is_gzip(&headers(&[("content-encoding", coding)])),
            Ok(is_gzip_sent),
            "{coding}"
        );
    }
    assert_eq!(is_gzip(&headers(&[])), Ok(false));
    for coding in ["br", "gzip, gzip", "deflate", "gzip, br"] {
        let refused = is_gzip(&headers(&[("content-encoding", coding)])).unwrap_err();
        assert_eq!(refused.reason, Reason::Unsupported, "{coding}");
    }
}

fn any_header() -> impl Strategy<Value = (HeaderName, HeaderValue)> {
    let name = prop_oneof![
        Just("ce-id".to_owned()),
        Just("ce-source".to_owned()),
        Just("ce-type".to_owned()),
        Just("ce-specversion".to_owned()),
        Just("ce-time".to_owned()),
        Just("ce-subject".to_owned()),
        Just("content-type".to_owned()),
        "ce-[a-z0-9_]{0,4}",
    ];
    let value = prop_oneof![
        Just(b"1.0".to_vec()),
        Just(b"2026-01-31T12:00:00Z".to_vec()),
        Just(b"application/cloudevents+json".to_vec()),
        Just(b"application/cloudevents-batch+json".to_vec()),
        Just(b"application/json".to_vec()),
        "[a-z%0-9A-F\"\\\\]{0,12}".prop_map(String::into_bytes),
        any::<Vec<u8>>(),
    ];
    (name, value).prop_filter_map("a header", |(name, value)| {
        Some((name.parse().ok()?, HeaderValue::from_bytes(&value).ok()?))
    })
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let event = ("[a-z]{0,3}", "[ -~]{0,12}", any::<String>()).prop_map(|(id, source, subject)| {
        serde_json::json!({
            "specversion": "1.0", "id": id, "source": source, "type": "t", "subject": subject
        })
        .to_string()
    });
    prop_oneof![
        any::<Vec<u8>>(),
        event.clone().prop_map(String::into_bytes),
        event.prop_map(|event| format!("[{event},{event}]").into_bytes()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Whatever comes is an event that passes the check, or the sender's mistake.
    #[test]
    fn what_is_taken_passes_the_check_and_all_else_is_the_senders_mistake(
        sent in proptest::collection::vec(any_header(), 0..8),
        body in any_body(),
    ) {
        let mut all = HeaderMap::new();
        for (name, value) in sent {
            all.append(name, value);
        }
        match read(&all, &body) {
            Ok(events) => {
                for event in events {
                    prop_assert_eq!(event.check(), Ok(()));
                }
            }
            Err(refused) => {
                prop_assert!((400..500).contains(&refused.reason.status()), "{refused:?}");
                prop_assert!(!refused.detail.is_empty());
                prop_assert!(refused.detail.chars().all(|c| !c.is_control()), "{refused:?}");
            }
        }
    }

    /// What is encoded by the binding comes back.
    #[test]
    fn an_event_in_binary_mode_comes_back(
        id in "[^\\p{C}]{1,20}", subject in "[^\\p{C}]{1,20}", value in "[^\\p{C}]{0,20}", data in any::<Vec<u8>>()
    ) {
        let sent = headers(&[
            ("ce-specversion", "1.0"),
            ("ce-id", &encode(&id)),
            ("ce-source", "/s"),
            ("ce-type", "t"),
            ("ce-subject", &encode(&subject)),
            ("ce-extra", &encode(&value)),
            (CONTENT_TYPE.as_str(), "application/octet-stream"),
        ]);
        let event = read(&sent, &data).unwrap().remove(0);
        prop_assert_eq!((&event.id, event.subject.as_ref()), (&id, Some(&subject)));
        prop_assert_eq!(&event.extensions["extra"], &ExtensionValue::Text(value));
        prop_assert_eq!(event.data.unwrap_or_default(), data);
    }
}
