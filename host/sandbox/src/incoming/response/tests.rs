use std::time::UNIX_EPOCH;

use http::HeaderValue;

use super::*;

/// 2026-01-01T00:00:00Z.
const NOW: u64 = 1_767_225_600;

fn headers(given: &[(&'static str, &'static str)]) -> HeaderMap {
    given.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

fn body(text: &str) -> Body {
    Body { kept: text.as_bytes().to_vec(), total: text.len(), broken: None }
}

fn answer(status: u16, given: &[(&'static str, &'static str)], text: &str) -> Verdict {
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    verdict(StatusCode::from_u16(status).unwrap(), &headers(given), body(text), now)
}

fn bad(given: &[(&'static str, &'static str)], text: &str) -> String {
    match answer(200, given, text) {
        Verdict::Bad(why) => why,
        other => panic!("{other:?}"),
    }
}

fn emitted(status: u16, given: &[(&'static str, &'static str)], text: &str) -> Vec<Message> {
    match answer(status, given, text) {
        Verdict::Done(messages) => messages,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_status_decides() {
    for status in 100..=999 {
        let found = match answer(status, &[], "") {
            Verdict::Done(messages) if messages.is_empty() => "done",
            Verdict::Retry(..) => "retry",
            Verdict::Reject(_) => "reject",
            other => panic!("{other:?}"),
        };
        let expected = match status {
            200..=299 => "done",
            408 | 425 | 429 | 500..=599 => "retry",
            _ => "reject",
        };
        assert_eq!(found, expected, "{status}");
    }
}

#[test]
fn a_reason_is_the_status_and_the_words_of_the_body() {
    let reason = |given: &[(&'static str, &'static str)], text: &str| match answer(422, given, text)
    {
        Verdict::Reject(reason) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(&[], " no such order\n"), "HTTP 422: no such order");
    assert_eq!(reason(&[("content-type", "text/plain; charset=utf-8")], "é"), "HTTP 422: é");
    let problem = [("content-type", "application/problem+json")];
    assert_eq!(reason(&problem, "{}"), "HTTP 422: {}");
    assert_eq!(reason(&[("content-type", "image/png")], "PNG"), "HTTP 422 Unprocessable Entity");
    assert_eq!(reason(&[], ""), "HTTP 422 Unprocessable Entity");
    let Verdict::Reject(redirect) = answer(302, &[], "") else { panic!() };
    assert!(redirect.starts_with("HTTP 302 is no answer for an event: 2xx says"), "{redirect}");
}

#[test]
fn a_long_reason_is_cut_between_characters_and_says_how_long_it_was() {
    let long = "é".repeat(20_000);
    let kept = &long.as_bytes()[..REASON_BYTES - 1];
    let body = Body { kept: kept.to_vec(), total: long.len(), broken: None };
    let status = StatusCode::BAD_REQUEST;
    let Verdict::Reject(reason) = verdict(status, &HeaderMap::new(), body, UNIX_EPOCH) else {
        panic!()
    };
    assert!(reason.len() <= MAX_TEXT_BYTES, "{}", reason.len());
    assert!(reason.ends_with("éé… (40000 bytes in all)"), "{reason}");
    let binary = Body { kept: vec![0xff, 0xfe], total: 2, broken: None };
    let Verdict::Reject(reason) = verdict(status, &HeaderMap::new(), binary, UNIX_EPOCH) else {
        panic!()
    };
    assert_eq!(reason, "HTTP 400 Bad Request");
}

#[test]
fn retry_after_is_a_number_of_seconds_or_a_date() {
    let after = |value: &'static str| match answer(503, &[("retry-after", value)], "") {
        Verdict::Retry(_, after) => after,
        other => panic!("{other:?}"),
    };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(after("7"), seconds(7));
    assert_eq!(after(" 0 "), seconds(0));
    assert_eq!(after("99999999999999999999999"), seconds(u64::MAX));
    assert_eq!(after("Thu, 01 Jan 2026 00:01:00 GMT"), seconds(60));
    assert_eq!(after("Thursday, 01-Jan-26 00:01:00 GMT"), seconds(60));
    assert_eq!(after("Thu Jan  1 00:01:00 2026"), seconds(60));
    assert_eq!(after("Wed, 31 Dec 2025 23:00:00 GMT"), seconds(0), "it has passed");
    for nothing in ["", "soon", "-1", "1.5", "Thu, 32 Jan 2026 00:01:00 GMT"] {
        assert_eq!(after(nothing), None, "{nothing}");
    }
    let Verdict::Retry(_, none) = answer(429, &[], "") else { panic!() };
    assert_eq!(none, None);
}

#[test]
fn an_answer_without_events_emits_none_whatever_its_body() {
    assert!(emitted(204, &[], "").is_empty());
    assert!(emitted(200, &[("content-type", "text/html")], "<p>ok").is_empty());
    assert!(emitted(200, &[("content-type", ONE)], "").is_empty());
    assert!(emitted(202, &[("content-type", BATCH)], "[]").is_empty());
    assert_eq!(kept_bytes(StatusCode::OK, &headers(&[("content-type", "text/html")])), 0);
    assert_eq!(kept_bytes(StatusCode::OK, &headers(&[("content-type", ONE)])), usize::MAX);
    assert_eq!(kept_bytes(StatusCode::OK, &headers(&[("ce-type", "a")])), usize::MAX);
    assert_eq!(kept_bytes(StatusCode::NOT_FOUND, &headers(&[("ce-type", "a")])), REASON_BYTES);
}

#[test]
fn what_an_event_leaves_out_is_left_to_the_host() {
    let binary = emitted(200, &[("ce-type", "done"), ("content-type", "text/plain")], "data");
    let [binary] = &binary[..] else { panic!("{binary:?}") };
    assert_eq!((binary.type_.as_str(), &binary.data[..]), ("done", &b"data"[..]));
    assert_eq!(binary.datacontenttype.as_deref(), Some("text/plain"));
    assert!(binary.id.is_none() && binary.source.is_none() && binary.time.is_none());
    let structured = r#"{"specversion":"1.0","type":"done","data":{"a":1},"n":7}"#;
    let structured = emitted(200, &[("content-type", ONE)], structured);
    let [structured] = &structured[..] else { panic!("{structured:?}") };
    assert_eq!((structured.type_.as_str(), &structured.data[..]), ("done", &br#"{"a":1}"#[..]));
    assert!(structured.id.is_none() && structured.source.is_none() && structured.time.is_none());
    assert!(matches!(structured.extensions[..], [(_, ExtensionValueResult::Integer(7))]));
}

#[test]
fn what_is_no_event_is_told_why() {
    for (given, text, expected) in [
        (&[("content-type", ONE)][..], "{", "the answer holds what is no event: not JSON: it ends"),
        (&[("content-type", ONE)], r#"{"type":"a"}"#, "`specversion` is missing"),
        (&[("content-type", ONE)], r#"{"specversion":"1.0"}"#, "`type` is missing"),
        (&[("content-type", ONE)], "[]", "a list stands where an event is expected"),
        (
            &[("content-type", BATCH)],
            r#"[{"specversion":"1.0","type":"a"},{"specversion":"2"}]"#,
            "event 2 of the batch: `specversion` is `2`: only `1.0` is known",
        ),
        (&[("content-type", BATCH)], "{}", "not JSON: invalid type: map"),
        (
            &[("content-type", "application/cloudevents+avro")],
            "x",
            "the answer is `application/cloudevents+avro`, and events are read as `application/cloudevents+json`",
        ),
        (&[("ce-specversion", "1.0")], "x", "`ce-type` is missing"),
    ] {
        let why = bad(given, text);
        assert!(why.contains(expected), "{why:?} does not say {expected:?}");
    }
}

#[test]
fn a_body_that_is_cut_short_is_no_event_and_harms_no_other_answer() {
    let cut = |given: &[(&'static str, &'static str)], status| {
        let broken = Some("its body was broken off by the handler");
        let body = Body { broken, ..body("{}") };
        verdict(StatusCode::from_u16(status).unwrap(), &headers(given), body, UNIX_EPOCH)
    };
    let Verdict::Bad(why) = cut(&[("ce-type", "a")], 200) else { panic!() };
    assert_eq!(why, "the answer holds an event, and its body was broken off by the handler");
    assert!(matches!(cut(&[], 200), Verdict::Done(none) if none.is_empty()));
    assert!(matches!(cut(&[], 400), Verdict::Reject(reason) if reason == "HTTP 400: {}"));
}

#[test]
fn a_media_type_that_is_no_text_is_no_media_type() {
    let mut odd = HeaderMap::new();
    odd.insert(header::CONTENT_TYPE, HeaderValue::from_bytes(b"\xff").unwrap());
    assert_eq!(content_type(&odd), "");
    odd.insert("ce-type", HeaderValue::from_static("a"));
    let why = verdict(StatusCode::OK, &odd, body(""), UNIX_EPOCH);
    let Verdict::Bad(why) = why else { panic!("{why:?}") };
    assert!(why.ends_with("the header `content-type` is not UTF-8"), "{why}");
}
