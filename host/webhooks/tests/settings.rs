//! What settings may say, and what templates make of requests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use event_host_core::event::ExtensionValue;
use event_host_webhooks::{
    Algorithm, Encoding, Hmac, Key, Parts, Preset, Received, Refusal, Request, Secret, Source,
    Template,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use proptest::prelude::*;

fn template(text: &str) -> Template {
    text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// A source that verifies nothing, so that templates alone are tried.
fn unverified(id: &str) -> Parts {
    Parts {
        event_type: Some(template("t")),
        id: Some(template(id)),
        source: Some(template("/s")),
        ..Parts::new(Preset::Unverified)
    }
}

fn headers(list: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in list {
        headers.append(
            HeaderName::try_from(*name).unwrap(),
            HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        );
    }
    headers
}

/// The `id` that a template makes.
fn made(text: &str, list: &[(&str, &str)], query: &str, body: &str) -> Result<String, String> {
    let source = Source::new(unverified(text)).unwrap();
    let headers = headers(list);
    let request =
        Request { headers: &headers, query: Some(query), body: body.as_bytes(), token: None };
    match source.receive(request, Timestamp::UNIX_EPOCH) {
        Ok(Received::Event { event, .. }) => Ok(event.id),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal.to_string()),
    }
}

#[test]
fn a_template_is_made_of_headers_address_and_body() {
    let list = [("x-event", " issues "), ("x-empty", ""), ("content-type", "application/json")];
    let body = r#"{"action":"opened","n":1.50,"on":true,"null":null,"list":["a","b"],"e":""}"#;
    let query = "a=1&b=x%20y+z&c=&d";
    for (text, expected) in [
        ("{header:X-Event}", "issues"),
        ("{header:x-event}.{json:/action?}", "issues.opened"),
        ("{header:x-event}.{json:/missing?}", "issues"),
        ("{header:x-event}/{json:/missing?}", "issues/"),
        ("{json:/missing?}.{header:x-event}", ".issues"),
        ("{json:/missing|json:/null|json:/e|header:x-empty|json:/list/1}", "b"),
        ("{json:/n}-{json:/on}", "1.50-true"),
        ("{query:a}{query:b}{query:c?}{query:d?}", "1x y z"),
        ("{{{query:a}}} {{header:x}}", "{1} {header:x}"),
    ] {
        assert_eq!(made(text, &list, query, body).as_deref(), Ok(expected), "{text}");
    }
    let hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(made("{body:sha256}", &list, query, "").as_deref(), Ok(hash));
}

#[test]
fn what_a_template_does_not_find_is_named() {
    let json = ("content-type", "application/json");
    for (text, list, query, body, expected) in [
        ("{header:x-id}", &[json][..], "", "{}", "the request has no header `x-id`"),
        ("{header:x-id}", &[("x-id", "1"), ("x-id", "2"), json], "", "{}", "`x-id` is there twice"),
        ("{header:x-id}", &[("x-id", "\u{e9}"), json], "", "{}", ""),
        ("{query:a}", &[json], "b=1", "{}", "no parameter `a` in its address"),
        ("{query:a}", &[json], "a=1&%61=2", "{}", "`a` is there twice"),
        ("{query:a}", &[json], "a=%ff", "{}", "`a` is not UTF-8"),
        ("{json:/a/b}", &[json], "", r#"{"a":1}"#, "nothing at `/a/b` in its body"),
        (
            "{json:/a|header:x-a}",
            &[json],
            "",
            "{}",
            "nothing at `/a` in its body and no header `x-a`",
        ),
        ("{json:/a}", &[json], "", r#"{"a":{}}"#, "an object at `/a`"),
        ("{json:/a?}", &[json], "", r#"{"a":[]}"#, "an array at `/a`"),
        ("{json:/a}", &[json], "", r#"{"a":"#, "the body is not JSON"),
        ("{json:/a}", &[json], "", "", "the body is not JSON"),
        (
            "{json:/a}",
            &[("content-type", "application/x-www-form-urlencoded")],
            "",
            "payload=%7B%7D",
            "choose the content type application/json at the provider",
        ),
        ("{json:/a}", &[json], "", r#"{"a":"\u0007"}"#, "`id` holds the character U+0007"),
        ("{body:sha256}", &[], "", "tide=high", "no `content-type`, which means JSON"),
        ("{body:sha256}", &[json, json], "", "{}", "`content-type` is there twice"),
        ("{body:sha256}", &[("content-type", "json")], "", "{}", "no media type"),
    ] {
        let refused = made(text, list, query, body);
        match refused {
            Err(why) => assert!(why.contains(expected), "{text}: {why}"),
            // Any text in UTF-8 makes an id.
            Ok(id) => assert_eq!((id.as_str(), expected), ("\u{e9}", ""), "{text}"),
        }
    }
}

#[test]
fn a_text_that_is_no_template_is_refused_with_what_would_be_right() {
    for (text, expected) in [
        ("", "is empty"),
        ("{header:x", "has no `}`"),
        ("a}", "`}` closes nothing"),
        ("{}", "`{}` stands for nothing: there are `{header:NAME}`"),
        ("{headers:x}", "stands for nothing"),
        ("{header:}", "names no header"),
        ("{header:x y}", "names no header"),
        ("{query:}", "names nothing"),
        ("{json:a.b}", "is no JSON pointer"),
        ("{json:}", "is no JSON pointer"),
        ("{json:/a~2}", "is no JSON pointer"),
        ("{body:md5}", "stands for nothing"),
        ("{header:a|}", "stands for nothing"),
    ] {
        let why = text.parse::<Template>().unwrap_err().to_string();
        assert!(why.contains(expected), "{text}: {why}");
    }
    for text in ["a", "{header:x-a}.{json:/b~1c|query:d?} {{}} {body:sha256}", "{body}"] {
        assert_eq!(template(text).to_string(), text);
    }
}

#[test]
fn what_does_not_fit_together_is_named_by_its_key() {
    let secret = |preset| vec![Secret::parse(preset, "whsec_MTIzNDU2Nzg5MA==").unwrap()];
    let github = Parts { secrets: secret(Preset::GitHub), ..Parts::new(Preset::GitHub) };
    let hmac = Hmac {
        header: HeaderName::from_static("x-signature"),
        prefix: String::new(),
        encoding: Encoding::Hex,
        algorithm: Algorithm::Sha256,
        signed: template("{header:x-time}.{body}"),
        timestamp: Some(template("{header:x-time}")),
    };
    let own = Parts {
        secrets: secret(Preset::Hmac),
        hmac: Some(hmac.clone()),
        preset: Preset::Hmac,
        ..unverified("{header:x-id}")
    };
    let signed = |text: &str| Parts {
        hmac: Some(Hmac { signed: template(text), ..hmac.clone() }),
        ..own.clone()
    };
    let timestamp = |text: &str| Parts {
        hmac: Some(Hmac { timestamp: Some(template(text)), ..hmac.clone() }),
        ..own.clone()
    };
    let minute = Some(std::time::Duration::from_secs(60));
    let extension = |name: &str| BTreeMap::from([(name.to_owned(), template("x"))]);
    for (parts, key, why) in [
        (Parts::new(Preset::GitHub), "secrets", "`secrets` is missing"),
        (
            Parts { secrets: secret(Preset::GitHub), ..unverified("{body:sha256}") },
            "secrets",
            "does not go with `verify = \"unverified\"`: nothing is verified",
        ),
        (
            Parts { secrets: vec![secret(Preset::GitHub)[0].clone(); 9], ..github.clone() },
            "secrets",
            "keep 8 at most",
        ),
        (Parts { hmac: None, ..own.clone() }, "header", "`header` is missing"),
        (
            Parts { hmac: Some(hmac.clone()), ..github.clone() },
            "header",
            "goes with `verify = \"hmac\"`: `github` knows its own",
        ),
        (signed("{header:x-time}"), "signed", "does not hold `{body}`"),
        (signed("{header:x-time}{body|header:x}"), "signed", "does not hold `{body}`"),
        (signed("{header:x-time}{body}{json:/a}"), "signed", "before it is verified"),
        (signed("{body}"), "timestamp", "which `signed` does not hold"),
        (signed("{header:x-time?}{body}"), "timestamp", "which `signed` does not hold"),
        (timestamp("{json:/time}"), "timestamp", "it is one header or parameter"),
        (timestamp("{header:x-time?}"), "timestamp", "it is one header or parameter"),
        (timestamp("now"), "timestamp", "it is one header or parameter"),
        (Parts { tolerance: minute, ..github.clone() }, "tolerance", "`github` has none"),
        (Parts { ping: true, ..own.clone() }, "ping", "`hmac` has none"),
        (Parts { event_type: None, ..own.clone() }, "type", "`type = \"{json:/event}\"`"),
        (Parts { id: None, ..own.clone() }, "id", "`id` is missing"),
        (Parts { source: None, ..own.clone() }, "source", "`source` is missing"),
        (Parts { id: Some(template("1")), ..github.clone() }, "id", "the same for each request"),
        (Parts { subject: Some(template("{body}")), ..github.clone() }, "subject", "`{body}`"),
        (Parts { source: Some(template("a b")), ..github.clone() }, "source", "`%20`"),
        (Parts { time: Some(template("soon")), ..github.clone() }, "time", "which is no time"),
        (
            Parts { extensions: extension("Delivery"), ..github.clone() },
            "extensions",
            "lower-case letters",
        ),
        (
            Parts { extensions: extension("subject"), ..github.clone() },
            "extensions",
            "is an attribute of its own",
        ),
    ] {
        let misfits = Source::new(parts).unwrap_err();
        let found = misfits.iter().any(|misfit| misfit.key == key && misfit.why.contains(why));
        assert!(found, "{key}, {why}: {misfits:?}");
        assert_eq!(misfits.len(), 1, "{misfits:?}");
    }
    assert!(Source::new(own).is_ok());
    assert!(Source::new(github).is_ok());
}

#[test]
fn every_attribute_can_be_made_and_only_what_a_request_brings_is_encoded() {
    let parts = Parts {
        event_type: Some(template("order.{json:/state}")),
        source: Some(template("/shops/{json:/shop}#x")),
        subject: Some(template("{json:/id?}")),
        time: Some(template("{json:/at?}")),
        partitionkey: Some(template("{json:/shop}")),
        extensions: BTreeMap::from([
            ("delivery".to_owned(), template("{header:x-delivery}")),
            ("missing".to_owned(), template("{header:x-missing?}")),
        ]),
        duplicate_key: Key::Of(template("{json:/id} {body:sha256}")),
        ..unverified("{json:/id}")
    };
    let source = Source::new(parts).unwrap();
    let list = headers(&[("content-type", "application/json"), ("x-delivery", "é")]);
    let body =
        r#"{"id":18446744073709551616,"state":"paid","shop":"tée 1#%2f%zz","at":1772352000123}"#;
    let request = Request { headers: &list, query: None, body: body.as_bytes(), token: None };
    let Ok(Received::Event { event, duplicate_key }) = source.receive(request, Timestamp::MAX)
    else {
        panic!("no event")
    };
    assert_eq!(event.id, "18446744073709551616");
    assert_eq!(event.event_type, "order.paid");
    assert_eq!(event.source, "/shops/t%C3%A9e%201%23%2f%25zz#x");
    assert_eq!(event.subject.as_deref(), Some("18446744073709551616"));
    assert_eq!(event.time.to_string(), "2026-03-01T08:00:00.123Z");
    assert_eq!(event.partitionkey.as_deref(), Some("tée 1#%2f%zz"));
    assert_eq!(event.datacontenttype.as_deref(), Some("application/json"));
    let delivery = ExtensionValue::Text("é".to_owned());
    assert_eq!(event.extensions, BTreeMap::from([("delivery".to_owned(), delivery)]));
    assert!(duplicate_key.unwrap().starts_with("18446744073709551616 "));
}

proptest! {
    /// Whatever comes, it is an event that keeps to CloudEvents, or a refusal in a sentence.
    #[test]
    fn anything_at_all_is_an_event_or_refused(
        values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 3),
        query in "[ -~]{0,40}",
        body in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            "[\\[\\]{}:,\"a-c0-9\\\\u ]{0,60}".prop_map(String::into_bytes),
            "\\PC{0,20}".prop_map(|text| serde_json::json!({"type": text, "id": text}).to_string().into_bytes()),
        ],
    ) {
        let mut parts = unverified("{header:x-a|query:a|body:sha256}");
        parts.event_type = Some(template("{json:/type|header:x-b}"));
        parts.source = Some(template("/{json:/id?}{query:b?}"));
        parts.time = Some(template("{header:x-c?}"));
        let source = Source::new(parts).unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in ["x-a", "x-b", "content-type"].into_iter().zip(values) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(HeaderName::from_static(name), value);
            }
        }
        let request = Request { headers: &headers, query: Some(&query), body: &body, token: None };
        match source.receive(request, Timestamp::UNIX_EPOCH) {
            Ok(Received::Event { event, .. }) => prop_assert_eq!(event.check(), Ok(())),
            Ok(other) => prop_assert!(false, "{:?}", other),
            Err(Refusal::Invalid(_) | Refusal::Event(_)) => {}
            Err(other) => prop_assert!(false, "{:?}", other),
        }
    }

    /// Nor does a signature header that is anything at all.
    #[test]
    fn no_header_breaks_the_verification(value in proptest::collection::vec(any::<u8>(), 0..80)) {
        let Ok(value) = HeaderValue::from_bytes(&value) else { return Ok(()) };
        for preset in [Preset::GitHub, Preset::Stripe, Preset::Standard, Preset::Slack, Preset::Shopify, Preset::GitLab] {
            let secrets = vec![Secret::parse(preset, "whsec_MTIzNDU2Nzg5MA==").unwrap()];
            let source = Source::new(Parts { secrets, ..Parts::new(preset) }).unwrap();
            let mut headers = HeaderMap::new();
            for name in [
                "x-hub-signature-256", "stripe-signature", "webhook-id", "webhook-timestamp",
                "webhook-signature", "x-slack-signature", "x-slack-request-timestamp",
                "x-shopify-hmac-sha256", "x-gitlab-token",
            ] {
                headers.insert(HeaderName::from_static(name), value.clone());
            }
            let request = Request { headers: &headers, query: None, body: b"{}", token: None };
            let received = source.receive(request, Timestamp::UNIX_EPOCH);
            prop_assert!(matches!(received, Err(Refusal::Signature(_))), "{:?}", received);
        }
    }
}
