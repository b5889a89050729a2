//! Requests as providers send them, signed by implementations that are not ours, and the same
//! with one bit turned. `make.py` beside this file makes them.
#![allow(clippy::unwrap_used, clippy::panic)]

use event_host_webhooks::{
    Algorithm, Encoding, Hmac, Key, Parts, Preset, Received, Refusal, Request, Secret, Source,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct Vector {
    name: String,
    verify: String,
    secrets: Vec<String>,
    settings: Map<String, Value>,
    headers: Vec<(String, String)>,
    query: Option<String>,
    body: String,
    now: i64,
    expect: Value,
}

fn vectors() -> Vec<Vector> {
    serde_json::from_str(include_str!("vectors.json")).unwrap()
}

impl Vector {
    fn setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key).and_then(Value::as_str)
    }

    fn source(&self, secrets: &[String]) -> Source {
        let preset: Preset = self.verify.parse().unwrap();
        let template = |key| self.setting(key).map(|text| text.parse().unwrap());
        let named = |names: &[(&str, Encoding)], name| {
            names.iter().find(|(known, _)| *known == name).map(|(_, encoding)| *encoding).unwrap()
        };
        let hmac = self.setting("header").map(|header| Hmac {
            header: header.parse().unwrap(),
            prefix: self.setting("prefix").unwrap_or_default().to_owned(),
            encoding: named(&Encoding::NAMES, self.setting("encoding").unwrap_or("hex")),
            algorithm: match self.setting("algorithm") {
                Some("sha512") => Algorithm::Sha512,
                _ => Algorithm::Sha256,
            },
            signed: template("signed").unwrap_or_else(|| "{body}".parse().unwrap()),
            timestamp: template("timestamp"),
        });
        let parts = Parts {
            secrets: secrets.iter().map(|text| Secret::parse(preset, text).unwrap()).collect(),
            hmac,
            tolerance: self
                .settings
                .get("tolerance")
                .and_then(Value::as_u64)
                .map(std::time::Duration::from_secs),
            event_type: template("type"),
            id: template("id"),
            source: template("source"),
            duplicate_key: match self.setting("duplicate_key") {
                Some(_) => Key::Nothing,
                None => Key::Usual,
            },
            ping: self.settings.get("ping") == Some(&Value::Bool(true)),
            ..Parts::new(preset)
        };
        Source::new(parts).unwrap()
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.now).unwrap()
    }

    fn receive(&self, source: &Source) -> Result<Received, Refusal> {
        self.receive_changed(source, &self.headers, self.body.as_bytes())
    }

    fn receive_changed(
        &self,
        source: &Source,
        list: &[(String, String)],
        body: &[u8],
    ) -> Result<Received, Refusal> {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(
                HeaderName::try_from(name).unwrap(),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        let request =
            Request { headers: &headers, query: self.query.as_deref(), body, token: None };
        source.receive(request, self.now())
    }
}

#[test]
fn what_providers_send_becomes_an_event_and_nothing_else_does() {
    let vectors = vectors();
    assert!(vectors.len() > 90);
    for vector in &vectors {
        let received = vector.receive(&vector.source(&vector.secrets));
        let Vector { name, body, .. } = vector;
        match (&vector.expect, received) {
            (Value::Object(expected), Ok(Received::Event { event, duplicate_key })) => {
                assert_eq!(event.data.as_deref(), Some(body.as_bytes()), "{name}");
                for (attribute, value) in expected {
                    let found = match &**attribute {
                        "type" => Some(event.event_type.clone()),
                        "id" => Some(event.id.clone()),
                        "source" => Some(event.source.clone()),
                        "time" => Some(event.time.to_string()),
                        "duplicate_key" => duplicate_key.clone(),
                        other => panic!("{other}"),
                    };
                    assert_eq!(found.as_deref(), value.as_str(), "{name}: {attribute}");
                }
            }
            (Value::String(expected), Ok(Received::Ping)) => assert_eq!(expected, "ping", "{name}"),
            (Value::String(expected), Ok(Received::Challenge(text))) => {
                assert_eq!(*expected, format!("challenge {text}"), "{name}");
            }
            (Value::String(expected), Err(refusal)) => {
                assert_eq!(refusal.reason(), expected, "{name}: {refusal}");
                for secret in &vector.secrets {
                    assert!(!refusal.to_string().contains(&**secret), "{name}: {refusal}");
                }
            }
            (expected, received) => panic!("{name}: {received:?} and not {expected}"),
        }
    }
}

/// The vectors whose signature each byte of the request and of the secret counts for.
fn signed_once() -> impl Iterator<Item = Vector> {
    let whole = [
        "github",
        "stripe",
        "standard",
        "standard of svix",
        "standard with Ed25519",
        "slack",
        "shopify",
        "gitlab",
        "hmac with SHA-512, in base64, after a prefix",
        "hmac over headers, address and body",
    ];
    vectors().into_iter().filter(move |vector| whole.contains(&&*vector.name))
}

fn signed_headers(vector: &Vector) -> &'static [&'static str] {
    match &*vector.verify {
        "github" => &["x-hub-signature-256"],
        "stripe" => &["stripe-signature"],
        "standard" => &[
            "webhook-id",
            "webhook-timestamp",
            "webhook-signature",
            "svix-id",
            "svix-timestamp",
            "svix-signature",
        ],
        "slack" => &["x-slack-request-timestamp", "x-slack-signature"],
        "shopify" => &["x-shopify-hmac-sha256"],
        "gitlab" => &["x-gitlab-token"],
        _ if vector.setting("timestamp").is_some() => &["x-id", "x-time", "x-signature"],
        _ => &["x-signature"],
    }
}

#[test]
fn one_bit_of_the_request_turned_is_a_wrong_signature() {
    let mut turned = 0;
    for vector in signed_once() {
        let source = vector.source(&vector.secrets);
        vector.receive(&source).unwrap();
        let refused = |headers: &[(String, String)], body: &[u8], what: &str| {
            let received = vector.receive_changed(&source, headers, body);
            let is_wrong = matches!(received, Err(Refusal::Signature(_)));
            assert!(is_wrong, "{}: {what}: {received:?}", vector.name);
        };
        // A shared token says nothing of the body.
        if vector.verify != "gitlab" {
            for at in 0..vector.body.len() * 8 {
                let mut body = vector.body.clone().into_bytes();
                body[at / 8] ^= 1 << (at % 8);
                refused(&vector.headers, &body, &format!("bit {at} of the body"));
                turned += 1;
            }
        }
        for (index, (name, value)) in vector.headers.iter().enumerate() {
            if !signed_headers(&vector).contains(&&**name) {
                continue;
            }
            for at in 0..value.len() {
                let mut headers = vector.headers.clone();
                let mut value = value.clone().into_bytes();
                // The lowest bit: that of case means the same in hex digits.
                value[at] ^= 1;
                headers[index].1 = String::from_utf8(value).unwrap();
                refused(&headers, vector.body.as_bytes(), &format!("byte {at} of {name}"));
                turned += 1;
            }
        }
        if let Some(query) = &vector.query {
            let other = query.replace('3', "2");
            let changed = Vector {
                query: Some(other),
                ..signed_once().find(|v| v.name == vector.name).unwrap()
            };
            assert!(matches!(changed.receive(&source), Err(Refusal::Signature(_))));
        }
    }
    assert!(turned > 5_000, "{turned}");
}

#[test]
fn one_bit_of_the_secret_turned_is_a_wrong_signature() {
    for vector in signed_once() {
        let [secret] = vector.secrets.as_slice() else { panic!("{}", vector.name) };
        let begins = ["whsec_", "whpk_", "base64:"]
            .into_iter()
            .find(|begins| secret.starts_with(begins))
            .map_or(0, str::len);
        let mut tried = 0;
        for at in begins..secret.len() {
            let mut other = secret.clone().into_bytes();
            other[at] ^= 1;
            let other = String::from_utf8(other).unwrap();
            let preset = vector.verify.parse().unwrap();
            // Not all of them are base64 still.
            if Secret::parse(preset, &other).is_ok() {
                let received = vector.receive(&vector.source(&[other]));
                assert!(matches!(received, Err(Refusal::Signature(_))), "{}: {at}", vector.name);
                tried += 1;
            }
        }
        assert!(tried >= 16, "{}: {tried}", vector.name);
    }
}

#[test]
fn what_this_program_signs_it_takes() {
    for vector in signed_once().filter(|vector| !vector.secrets[0].starts_with("whpk_")) {
        let source = vector.source(&vector.secrets);
        let signature = signed_headers(&vector);
        let mut headers = HeaderMap::new();
        let plain = vector.headers.iter().filter(|(name, _)| !signature.contains(&&**name));
        for (name, value) in plain {
            headers.insert(HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
        if vector.verify == "hmac" {
            headers.insert("x-id", "1".parse().unwrap());
        }
        let now = "2027-01-31T12:00:00Z".parse().unwrap();
        let body = vector.body.as_bytes();
        let query = vector.query.as_deref();
        let request = Request { headers: &headers, query, body, token: None };
        let added = source.sign(request, now).unwrap();
        for (name, value) in added {
            headers.insert(name, value.parse().unwrap());
        }
        let request = Request { headers: &headers, query, body, token: None };
        let received = source.receive(request, now);
        assert!(matches!(received, Ok(Received::Event { .. })), "{}: {received:?}", vector.name);
    }
}

#[test]
fn only_a_shown_token_opens_a_source_of_tokens() {
    let vector = vectors().into_iter().find(|vector| vector.verify == "token").unwrap();
    let source = vector.source(&[]);
    let headers = HeaderMap::from_iter([
        (http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain")),
        (HeaderName::from_static("x-id"), HeaderValue::from_static("7")),
    ]);
    let request =
        Request { headers: &headers, query: None, body: b"high", token: Some("tide-gauge") };
    let Ok(Received::Event { event, .. }) = source.receive(request, vector.now()) else {
        panic!("no event")
    };
    assert_eq!(event.id, "7");
    assert_eq!(event.time, vector.now());
}
