mod fuzz;

use jiff::Timestamp;
use proptest::prelude::*;

use super::super::time::to_microseconds;
use super::*;

/// An event that is complete but for what a case adds.
fn with(members: &str) -> String {
    format!(r#"{{"specversion":"1.0","id":"i","source":"/s","type":"t"{members}}}"#)
}

fn read(json: &str) -> Event {
    Event::from_json(json).unwrap_or_else(|e| panic!("{json} was refused: {e}"))
}

fn refusal(json: &str) -> String {
    match Event::from_json(json) {
        Ok(event) => panic!("{json} was taken as {event:?}"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn the_least_event_gets_the_present_time_and_nothing_else() {
    let before = to_microseconds(Timestamp::now());
    let event = read(&with(""));
    assert!(before <= event.time && event.time <= Timestamp::now());
    assert_eq!(event.time.subsec_nanosecond() % 1000, 0);
    let expected = Event::new("i", "/s", "t", event.time);
    assert_eq!(event, expected);
}

#[test]
fn null_means_absent_for_every_optional_attribute() {
    let nulls = with(
        r#","subject":null,"time":null,"datacontenttype":null,"dataschema":null,"partitionkey":null,"deliverafter":null,"myext":null,"data_base64":null"#,
    );
    let event = read(&nulls);
    assert_eq!(Event { time: event.time, ..read(&with("")) }, event);
}

#[test]
fn a_time_of_delivery_is_read_in_utc_and_in_microseconds() {
    let event = read(&with(r#","deliverafter":"2026-01-31T13:00:00.1234567+01:00""#));
    assert_eq!(event.deliver_after, Some("2026-01-31T12:00:00.123456Z".parse().unwrap()));
    assert_eq!(event.extensions, BTreeMap::new());
    assert_eq!(event.to_json()["deliverafter"], "2026-01-31T12:00:00.123456Z");
}

#[test]
fn extensions_keep_their_types() {
    let event = read(&with(
        r#","yes":true,"no":false,"least":-2147483648,"most":2147483647,"word":"10","empty":"","uri":"//a/b","2x":0,"partitionkey":"k""#,
    ));
    assert_eq!(event.partitionkey.as_deref(), Some("k"));
    let expected = BTreeMap::from([
        ("yes".to_owned(), ExtensionValue::Boolean(true)),
        ("no".to_owned(), ExtensionValue::Boolean(false)),
        ("least".to_owned(), ExtensionValue::Integer(i32::MIN)),
        ("most".to_owned(), ExtensionValue::Integer(i32::MAX)),
        ("word".to_owned(), ExtensionValue::Text("10".into())),
        ("empty".to_owned(), ExtensionValue::Text(String::new())),
        ("uri".to_owned(), ExtensionValue::Text("//a/b".into())),
        ("2x".to_owned(), ExtensionValue::Integer(0)),
    ]);
    assert_eq!(event.extensions, expected);
}

#[test]
fn times_of_any_offset_are_kept_in_utc_and_microseconds() {
    for (text, expected) in [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("2026-01-31t12:00:00z", "2026-01-31T12:00:00Z"),
        ("2026-01-31T14:30:00+02:30", "2026-01-31T12:00:00Z"),
        ("2026-01-31T04:00:00-08:00", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00-00:00", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00.5Z", "2026-01-31T12:00:00.5Z"),
        ("2026-01-31T12:00:00.123456789Z", "2026-01-31T12:00:00.123456Z"),
        ("2026-01-31T12:00:00.9999999999999Z", "2026-01-31T12:00:00.999999Z"),
        ("1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999Z"),
        ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z"),
        ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00Z"),
    ] {
        let event = read(&with(&format!(r#","time":"{text}""#)));
        assert_eq!(event.time.to_string(), expected, "{text}");
    }
}

#[test]
fn what_is_not_rfc_3339_is_no_time() {
    for text in [
        "",
        "lunchtime",
        "1767225600",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-01-31 12:00:00Z",
        "2026-01-31T12:00Z",
        "2026-01-31T12:00:00X",
        "2026-01-31T12:00:00+xx:00",
        "2026-01-31T12:00:00+0200",
        "2026-01-31T12:00:00+02",
        "2026-01-31T12:00:00+24:00",
        "2026-01-31T12:00:00-25:59",
        "2026-01-31T12:00:00+01:60",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00,5Z",
        "2026-01-31T12:00:00Z[UTC]",
        "2026-02-30T12:00:00Z",
        "2026-01-31T25:00:00Z",
        "0000-01-01T00:00:00+01:00",
        "0000-01-01T00:00:59.5+00:01",
        "+002026-01-31T12:00:00Z",
        "2026-01-31T12:00:00Zé",
        "éééééééééééééééééééé",
    ] {
        let message = refusal(&with(&format!(r#","time":"{text}""#)));
        assert!(message.starts_with("`time` is "), "{message}");
    }
}

#[test]
fn a_json_payload_is_kept_byte_for_byte() {
    for payload in [
        r#"{"b":1,"a":1.0,"n":12345678901234567890123,"x":1e400}"#,
        r#"{"a": [1,  2],"a":"twice"}"#,
        r#""\ud800 half a pair""#,
        "[1,\n\t2]",
        "null",
        "false",
        "0",
        r#""""#,
    ] {
        for content_type in [
            "",
            r#""datacontenttype":"application/json; charset=utf-8","#,
            r#""datacontenttype":"Application/Vnd.X+JSON","#,
        ] {
            let json = with(&format!(r#",{content_type}"data":  {payload} "#));
            let event = read(&json);
            assert_eq!(event.data.as_deref(), Some(payload.as_bytes()));
            let written = event.to_json_string();
            assert!(written.ends_with(&format!(r#""data":{payload}}}"#)), "{written}");
            assert_eq!(read(&written), event);
        }
    }
}

#[test]
fn deep_nesting_is_no_danger() {
    let payload = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let event = read(&with(&format!(r#","data":{payload}"#)));
    assert_eq!(event.data.as_deref(), Some(payload.as_bytes()));
    assert_eq!(read(&event.to_json_string()), event);
    assert!(event.to_json().contains_key("data_base64"));
}

#[test]
fn other_payloads_are_the_bytes_that_the_string_says() {
    let text = r#","datacontenttype":"text/plain","data":"gr\u00fc\u00dfe\u0000\n""#;
    let event = read(&with(text));
    assert_eq!(event.data.as_deref(), Some("grüße\0\n".as_bytes()));
    assert!(event.to_json_string().contains(r#""data":"grüße\u0000\n""#));

    let structured = r#","datacontenttype":"text/csv","data":{"a":1}"#;
    assert_eq!(read(&with(structured)).data.as_deref(), Some(&br#"{"a":1}"#[..]));

    let none = r#","datacontenttype":"text/plain","data":null"#;
    assert_eq!(read(&with(none)).data, None);

    let binary = r#","datacontenttype":"image/png","data_base64":"AP+A""#;
    let event = read(&with(binary));
    assert_eq!(event.data.as_deref(), Some(&b"\x00\xff\x80"[..]));
    assert!(event.to_json_string().contains(r#""data_base64":"AP+A""#));

    let beside_null = r#","data":null,"data_base64":"AP+A""#;
    assert_eq!(read(&with(beside_null)).data.as_deref(), Some(&b"\x00\xff\x80"[..]));
    let beside_null = r#","data":1,"data_base64":null"#;
    assert_eq!(read(&with(beside_null)).data.as_deref(), Some(&b"1"[..]));

    let readable = r#","data_base64":"eyJhIjoxfQ==""#;
    assert!(read(&with(readable)).to_json_string().contains(r#""data":{"a":1}"#));
}

#[test]
fn what_breaks_the_specification_is_refused_with_a_sentence() {
    let cases: &[(&str, &str)] = &[
        ("", "not JSON: it ends before it is complete"),
        ("{", "not JSON: it ends before it is complete"),
        ("nonsense", "not JSON: expected ident (column 2)"),
        ("{\n\"id\": 1,}", "not JSON: trailing comma (line 2, column 9)"),
        ("{} {}", "not JSON: trailing characters (column 4)"),
        (r#""text""#, "a string stands where an event is expected, a JSON object"),
        ("[]", "a list stands where one event is expected, a JSON object"),
        (
            r#"{"id":"i","source":"/s","type":"t"}"#,
            "`specversion` is missing: every event has one, such as `1.0`",
        ),
        (
            r#"{"specversion":"0.3","id":"i","source":"/s","type":"t"}"#,
            "`specversion` is `0.3`: only `1.0` is known",
        ),
        (
            r#"{"specversion":1.0,"id":"i","source":"/s","type":"t"}"#,
            "`specversion` is a number: give it as a string in quotes",
        ),
        (
            r#"{"specversion":"1.0","source":"/s","type":"t"}"#,
            "`id` is missing: every event has one, such as `order-1842-paid`",
        ),
        (
            r#"{"specversion":"1.0","id":null,"source":"/s","type":"t"}"#,
            "`id` is missing: every event has one, such as `order-1842-paid`",
        ),
        (
            r#"{"specversion":"1.0","id":"i","type":"t"}"#,
            "`source` is missing: every event has one, such as `/orders`",
        ),
        (
            r#"{"specversion":"1.0","id":"i","source":"/s"}"#,
            "`type` is missing: every event has one, such as `order.paid`",
        ),
        (
            r#"{"specversion":"1.0","id":"","source":"/s","type":"t"}"#,
            "`id` is empty: give it at least one character, or leave it out if it is optional",
        ),
        (
            r#"{"specversion":"1.0","id":["i"],"source":"/s","type":"t"}"#,
            "`id` is a list: give it as a string in quotes",
        ),
        (
            r#"{"specversion":"1.0","id":"a\u0000","source":"/s","type":"t"}"#,
            "`id` holds the character U+0000: CloudEvents allows neither control characters nor noncharacters in an attribute",
        ),
        (
            r#"{"specversion":"1.0","id":"\ud800","source":"/s","type":"t"}"#,
            "`id` holds half of a surrogate pair, which is no character",
        ),
        (
            r#"{"specversion":"1.0","id":"i","source":"a b","type":"t"}"#,
            "`source` is `a b`, which is no URI-reference: a space is written `%20`",
        ),
        (
            r#"{"specversion":"1.0","id":"i","id":"i","source":"/s","type":"t"}"#,
            "`id` stands twice in the event: keep one of them",
        ),
    ];
    for (json, expected) in cases {
        assert_eq!(refusal(json), *expected, "{json}");
    }
    let members: &[(&str, &str)] = &[
        (
            r#","subject":"""#,
            "`subject` is empty: give it at least one character, or leave it out if it is optional",
        ),
        (r#","subject":7"#, "`subject` is a number: give it as a string in quotes"),
        (
            r#","partitionkey":"""#,
            "`partitionkey` is empty: give it at least one character, or leave it out if it is optional",
        ),
        (r#","partitionkey":true"#, "`partitionkey` is a boolean: give it as a string in quotes"),
        (
            r#","deliverafter":"tomorrow""#,
            "`deliverafter` is `tomorrow`, which is no time of RFC 3339: write one such as `2026-01-31T12:00:00Z`",
        ),
        (r#","deliverafter":7"#, "`deliverafter` is a number: give it as a string in quotes"),
        (
            r#","deliverafter":"0000-01-01T00:00:00+01:00""#,
            "`deliverafter` is before the year 0 in UTC, which RFC 3339 cannot write",
        ),
        (
            r#","datacontenttype":"""#,
            "`datacontenttype` is ``, which is no media type: write one such as `application/json`",
        ),
        (
            r#","datacontenttype":"xyz""#,
            "`datacontenttype` is `xyz`, which is no media type: write one such as `application/json`",
        ),
        (
            r#","dataschema":"""#,
            "`dataschema` is ``, which is no absolute URI: it has no scheme; write one such as `https://example.com/schema.json`",
        ),
        (
            r#","dataschema":"/schema""#,
            "`dataschema` is `/schema`, which is no absolute URI: it has no scheme; write one such as `https://example.com/schema.json`",
        ),
        (
            r#","MyExtension":"x""#,
            "`MyExtension` is not the name of an extension attribute: use only lower-case letters a to z and digits",
        ),
        (
            r#","my.extension":"x""#,
            "`my.extension` is not the name of an extension attribute: use only lower-case letters a to z and digits",
        ),
        (
            r#","Capital":null"#,
            "`Capital` is not the name of an extension attribute: use only lower-case letters a to z and digits",
        ),
        (
            r#","":"x""#,
            "`` is not the name of an extension attribute: use only lower-case letters a to z and digits",
        ),
        (
            r#","ext":1.5"#,
            "`ext` is `1.5`, which is no whole number of 32 bits: give it as a string in quotes",
        ),
        (
            r#","ext":2147483648"#,
            "`ext` is `2147483648`, which is no whole number of 32 bits: give it as a string in quotes",
        ),
        (
            r#","ext":{"a":1}"#,
            "`ext` is an object: an extension attribute is a boolean, an integer or a string; what has a structure belongs in `data`",
        ),
        (
            r#","ext":[]"#,
            "`ext` is a list: an extension attribute is a boolean, an integer or a string; what has a structure belongs in `data`",
        ),
        (
            r#","ext":"\u0007""#,
            "`ext` holds the character U+0007: CloudEvents allows neither control characters nor noncharacters in an attribute",
        ),
        (
            r#","data":1,"data_base64":"""#,
            "`data` and `data_base64` exclude one another: keep the one that holds the payload",
        ),
        (r#","data_base64":7"#, "`data_base64` is a number: give it as a string in quotes"),
        (
            r#","data_base64":"A""#,
            "`data_base64` is not Base64 with padding: Invalid input length: 1",
        ),
        (
            r#","datacontenttype":"text/plain","data":"\udc00""#,
            "`data` holds half of a surrogate pair, which is no character",
        ),
    ];
    for (added, expected) in members {
        assert_eq!(refusal(&with(added)), *expected, "{added}");
    }
}

#[test]
fn a_batch_is_taken_whole_or_not_at_all() {
    let one = with("");
    let ids = |json: &str| -> Result<Vec<String>, String> {
        let events = Event::list_from_json(json).map_err(|e| e.to_string())?;
        Ok(events.into_iter().map(|e| e.id).collect())
    };
    assert_eq!(ids(&one), Ok(vec!["i".to_owned()]));
    assert_eq!(ids(" [] "), Ok(vec![]));
    assert_eq!(ids(&format!(" [{one},\n{one}]")), Ok(vec!["i".to_owned(), "i".to_owned()]));
    assert_eq!(
        ids(&format!("[{one},7]")),
        Err("event 2 of the batch: a number stands where an event is expected, a JSON object"
            .into())
    );
    let old = one.replace("1.0", "0.9");
    assert_eq!(
        ids(&format!("[{one},{old}]")),
        Err("event 2 of the batch: `specversion` is `0.9`: only `1.0` is known".into())
    );
    assert_eq!(ids(&format!("[{one}")), Err(INCOMPLETE.to_owned()));
}

fn attribute_text() -> impl Strategy<Value = String> {
    "[^\\p{C}]{1,20}"
}

fn extension() -> impl Strategy<Value = (String, ExtensionValue)> {
    let value = prop_oneof![
        any::<bool>().prop_map(ExtensionValue::Boolean),
        any::<i32>().prop_map(ExtensionValue::Integer),
        "[^\\p{C}]{0,20}".prop_map(ExtensionValue::Text),
    ];
    ("x[a-z0-9]{0,8}", value)
}

fn payload() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        ".{0,20}".prop_map(String::into_bytes),
        "[ \n]{0,1}(\\{\"b\": 1.0,\n\"a\":[1e999,null]\\}|\"\\\\ud800\"|-0|12345678901234567890)[ \n]{0,1}"
            .prop_map(String::into_bytes),
    ])
}

prop_compose! {
    fn any_event()(
        id in attribute_text(),
        source in "(https://[a-z]{1,9}|urn:|/|#)[a-zA-Z0-9._~-]{0,20}",
        event_type in attribute_text(),
        subject in proptest::option::of(attribute_text()),
        microseconds in -62_000_000_000_000_000_i64..253_000_000_000_000_000,
        datacontenttype in proptest::option::of(proptest::sample::select(vec![
            "application/json", "text/plain", "TEXT/HTML; charset=utf-8", "application/xml",
            "application/octet-stream", "application/cloudevents+json; charset=\"x;y\"",
        ])),
        dataschema in proptest::option::of("[a-z]{1,5}:[a-zA-Z0-9/]{0,20}"),
        partitionkey in proptest::option::of(attribute_text()),
        deliver_after in proptest::option::of(
            -62_000_000_000_000_000_i64..253_000_000_000_000_000,
        ),
        extensions in proptest::collection::btree_map("x[a-z0-9]{0,8}", extension().prop_map(|(_, v)| v), 0..4),
        data in payload(),
    ) -> Event {
        Event {
            id, source, event_type, subject,
            time: Timestamp::from_microsecond(microseconds).unwrap(),
            datacontenttype: datacontenttype.map(str::to_owned),
            dataschema, partitionkey,
            deliver_after: deliver_after.map(|us| Timestamp::from_microsecond(us).unwrap()),
            extensions, data,
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back_as_the_same_event(event in any_event()) {
        event.check().unwrap();
        let json = event.to_json_string();
        prop_assert_eq!(Event::from_json(&json).unwrap(), event, "{}", json);
    }

    #[test]
    fn the_object_form_reads_back_as_the_same_attributes(event in any_event()) {
        let json = Value::Object(event.to_json()).to_string();
        let back = Event::from_json(&json).unwrap();
        prop_assert_eq!(back.data.is_some(), event.data.is_some());
        let data = event.data.clone();
        prop_assert_eq!(Event { data, ..back }, event);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Event::list_from_json(&bytes);
    }

    #[test]
    fn no_members_make_the_reader_panic(
        name in "[a-z_0-9]{0,12}|time|data|data_base64|datacontenttype|source",
        value in "null|true|-?[0-9.e]{1,20}|\"[^\"\\\\]{0,30}\"|\\[\\]",
    ) {
        let _ = Event::from_json(with(&format!(r#","{name}":{value}"#)));
    }
}
