//! Webhooks that come in: what is answered, what is in the log, and what the operator is told.

use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use event_host_core::event::{Position, Tenant};
use event_host_core::subscription::Subscription;
use event_host_ingest::{Intake, Settings};
use event_host_metrics::Metrics;
use event_host_store::Fetch;
use event_host_store::memory::MemoryStore;
use event_host_store::traits::*;
use event_host_webhooks::{Parts, Preset, Request as Sent, Secret, Source};
use http::{HeaderMap, HeaderName, Request, Response};
use jiff::Timestamp;

use super::{connection, here, json, known, listener, request};
use crate::peer::Peer;
use crate::routes::Routes;
use crate::routes::hooks::{Hook, Hooks, add};
use crate::service::Service;
use crate::token::{Role, Scope, Token};

struct Rig {
    store: MemoryStore,
    hooks: Hooks,
    host: Service,
}

fn hook(name: &str, parts: Parts) -> Hook {
    Hook {
        name: name.to_owned(),
        tenant: Tenant::none(),
        source: Source::new(parts).unwrap(),
        dedup: None,
        rate: None,
        max_body: None,
        retired: false,
        allow_from: Vec::new(),
        origins: Vec::new(),
        require_origin: false,
        query_token: false,
    }
}

fn preset(name: &str) -> Hook {
    let preset: Preset = name.parse().unwrap();
    let secrets = vec![Secret::parse(preset, "MTIzNDU2Nzg5MDEyMzQ1Ng==").unwrap()];
    hook(name, Parts { secrets, ..Parts::new(preset) })
}

/// A source without a signature.
fn unsigned(preset: Preset) -> Hook {
    let parts = Parts {
        event_type: Some("t".parse().unwrap()),
        id: Some("{header:x-id}".parse().unwrap()),
        source: Some("/s".parse().unwrap()),
        ..Parts::new(preset)
    };
    hook(preset.name(), parts)
}

fn rig_at(peer: Peer, settings: Settings, tokens: Vec<Token>, hooks: &[Hook]) -> Rig {
    let store = MemoryStore::new();
    let metrics = Metrics::new(&event_host_metrics::Settings::default());
    let intake = Intake::start(Arc::new(store.clone()), None, settings, metrics.ingest.clone());
    let hooks = Hooks::new(&intake, hooks);
    let mut routes = Routes::default();
    add(&mut routes, &hooks);
    let host = connection(listener(), tokens, None, &routes, peer);
    Rig { store, hooks, host }
}

fn rig(hooks: &[Hook]) -> Rig {
    rig_at(here(), Settings::default(), vec![known("t")], hooks)
}

impl Rig {
    async fn send(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Response<Body> {
        let (parts, _) = request("POST", path, headers).into_parts();
        self.host.answer(Request::from_parts(parts, body.into())).await
    }

    async fn count(&self) -> i64 {
        self.store.status().await.unwrap().events
    }
}

/// The headers with which a provider sends a body, signed at this time.
fn signed(hook: &Hook, more: &[(&str, &str)], body: &str, at: Timestamp) -> Vec<(String, String)> {
    let mut headers = HeaderMap::new();
    for (name, value) in [("content-type", "application/json")].iter().chain(more) {
        headers.insert(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    let request = Sent { headers: &headers, query: None, body: body.as_bytes(), token: None };
    let added = hook.source.sign(request, at).unwrap();
    let given = headers.iter().map(|(name, value)| (name, value.to_str().unwrap().to_owned()));
    let given = given.map(|(name, value)| (name.as_str().to_owned(), value));
    given.chain(added.into_iter().map(|(name, value)| (name.as_str().to_owned(), value))).collect()
}

fn borrowed(headers: &[(String, String)]) -> Vec<(&str, &str)> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

const ISSUE: &str = r#"{"action":"opened","repository":{"full_name":"harbour/dock"}}"#;

fn issue(hook: &Hook, delivery: &str) -> Vec<(String, String)> {
    let more = [("x-github-event", "issues"), ("x-github-delivery", delivery)];
    signed(hook, &more, ISSUE, Timestamp::now())
}

#[tokio::test]
async fn a_webhook_is_202_and_once_in_the_log_however_often_it_comes() {
    let github = preset("github");
    let rig = rig(std::slice::from_ref(&github));
    let first = rig.send("/hooks/github", &borrowed(&issue(&github, "d-1")), ISSUE).await;
    assert_eq!(first.status(), 202);
    let told = json(first).await;
    assert_eq!(told["events"][0]["id"], "d-1");
    assert_eq!(told["events"][0]["source"], "https://github.com/harbour/dock");
    assert_eq!(told["events"][0]["position"], 1);
    // What GitHub sends again, and what somebody else sends who has captured it: its id is not
    // signed.
    for delivery in ["d-1", "d-2", "d-3", "d-2"] {
        let again = rig.send("/hooks/github", &borrowed(&issue(&github, delivery)), ISSUE).await;
        assert_eq!(again.status(), 200, "{delivery}");
        let told = json(again).await;
        assert_eq!(told["events"][0]["position"], 1, "{delivery}");
        assert_eq!(told["events"][0]["duplicate"], true, "{delivery}");
    }
    assert_eq!(rig.count().await, 1);
    let other = ISSUE.replace("opened", "closed");
    let more = [("x-github-event", "issues"), ("x-github-delivery", "d-1")];
    let other_headers = signed(&github, &more, &other, Timestamp::now());
    let reused = rig.send("/hooks/github", &borrowed(&other_headers), other).await;
    assert_eq!(reused.status(), 422);
    assert_eq!(rig.count().await, 1);
}

#[tokio::test]
async fn a_captured_webhook_is_a_duplicate_whichever_header_that_is_not_signed_was_changed() {
    let shopify = preset("shopify");
    let rig = rig(std::slice::from_ref(&shopify));
    let body = r#"{"id":820982911946154508}"#;
    for (shop, id, status) in
        [("one.example", "w-1", 202), ("one.example", "w-2", 200), ("two.example", "w-3", 200)]
    {
        let more = [
            ("x-shopify-topic", "orders/create"),
            ("x-shopify-shop-domain", shop),
            ("x-shopify-webhook-id", id),
        ];
        let headers = signed(&shopify, &more, body, Timestamp::now());
        let answer = rig.send("/hooks/shopify", &borrowed(&headers), body).await;
        assert_eq!(answer.status(), status, "{shop} {id}");
    }
    assert_eq!(rig.count().await, 1);
}

#[tokio::test]
async fn what_is_not_its_senders_is_401_and_nothing_of_it_is_published() {
    let stripe = preset("stripe");
    let rig = rig(std::slice::from_ref(&stripe));
    let body = r#"{"id":"evt_1","type":"invoice.paid"}"#;
    let now = Timestamp::now();
    let minute = jiff::SignedDuration::from_mins(1);
    let right = signed(&stripe, &[], body, now);
    let old = signed(&stripe, &[], body, now - minute * 6);
    let ahead = signed(&stripe, &[], body, now + minute * 6);
    for (headers, sent, slug) in [
        (&right[..1], body, "signature"),
        (&right[..], r#"{"id":"evt_2","type":"invoice.paid"}"#, "signature"),
        (&old[..], body, "stale-signature"),
        (&ahead[..], body, "stale-signature"),
    ] {
        let refused = rig.send("/hooks/stripe", &borrowed(headers), sent).await;
        assert_eq!(refused.status(), 401);
        let told = json(refused).await;
        assert!(told["type"].as_str().unwrap().ends_with(&format!("/{slug}")), "{told}");
        assert!(!told.to_string().contains("MTIzNDU2"), "{told}");
    }
    assert_eq!(rig.count().await, 0);
    let taken = rig.send("/hooks/stripe", &borrowed(&right), body).await;
    assert_eq!(taken.status(), 202);
}

#[tokio::test]
async fn each_other_status_is_answered_with_what_would_be_right() {
    let github = Hook { max_body: Some(1024), ..preset("github") };
    let slow = Hook { rate: Some(0.001), name: "slow".to_owned(), ..preset("github") };
    let retired = Hook { retired: true, name: "retired".to_owned(), ..preset("github") };
    let picky = Hook {
        origins: vec!["a.example.com".to_owned()],
        require_origin: true,
        name: "picky".to_owned(),
        ..preset("github")
    };
    let far = Hook {
        allow_from: vec!["192.0.2.0/24".parse().unwrap()],
        name: "far".to_owned(),
        ..preset("github")
    };
    let rig = rig(&[github.clone(), slow, retired, picky, far]);
    let headers = issue(&github, "d-1");
    let headers = borrowed(&headers);
    for (path, more, body, status, detail) in [
        ("/hooks/nobody", None, ISSUE.to_owned(), 404, "no source `nobody`"),
        ("/hooks/retired", None, ISSUE.to_owned(), 410, "send no more"),
        ("/hooks/far", None, ISSUE.to_owned(), 403, "`allow_from`"),
        ("/hooks/picky", None, ISSUE.to_owned(), 403, "WebHook-Request-Origin"),
        (
            "/hooks/picky",
            Some(("webhook-request-origin", "a.example.com")),
            ISSUE.to_owned(),
            202,
            "",
        ),
        ("/hooks/github", Some(("content-encoding", "gzip")), ISSUE.to_owned(), 415, "signatures"),
        ("/hooks/github", None, "x".repeat(1025), 413, "1024 bytes"),
        // It is there already, and counts.
        ("/hooks/slow", Some(("x-n", "1")), ISSUE.to_owned(), 200, ""),
        ("/hooks/slow", Some(("x-n", "2")), ISSUE.to_owned(), 429, "`slow`"),
    ] {
        let headers: Vec<_> = headers.iter().copied().chain(more).collect();
        let answer = rig.send(path, &headers, body).await;
        assert_eq!(answer.status(), status, "{path} {more:?}");
        if status == 429 {
            assert!(answer.headers().contains_key("retry-after"));
        }
        let told = json(answer).await;
        assert!(told["detail"].as_str().unwrap_or_default().contains(detail), "{told}");
    }
    let without = signed(&github, &[], ISSUE, Timestamp::now());
    let answer = rig.send("/hooks/github", &borrowed(&without), ISSUE).await;
    assert_eq!(answer.status(), 400);
    assert!(json(answer).await["detail"].as_str().unwrap().contains("`x-github-event`"));
    let (parts, _) = request("GET", "/hooks/github", &[]).into_parts();
    let answer = rig.host.answer(Request::from_parts(parts, Body::empty())).await;
    assert_eq!(answer.status(), 405);
    let allowed = answer.headers()["allow"].to_str().unwrap();
    assert!(allowed.contains("POST") && allowed.contains("OPTIONS"), "{allowed}");
}

#[tokio::test]
async fn a_ping_and_a_challenge_are_answered_and_publish_nothing() {
    let (github, slack) = (preset("github"), preset("slack"));
    let rig = rig(&[github.clone(), slack.clone()]);
    let more = [("x-github-event", "ping"), ("x-github-delivery", "p-1")];
    let body = r#"{"zen":"Keep it logically awesome."}"#;
    let headers = signed(&github, &more, body, Timestamp::now());
    let answer = rig.send("/hooks/github", &borrowed(&headers), body).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(json(answer).await, serde_json::json!({ "events": [] }));

    let body = r#"{"type":"url_verification","challenge":"<b>3eZb</b>"}"#;
    let headers = signed(&slack, &[], body, Timestamp::now());
    let answer = rig.send("/hooks/slack", &borrowed(&headers), body).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "text/plain; charset=utf-8");
    let bytes = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    assert_eq!(bytes, "<b>3eZb</b>");
    let unsigned = rig.send("/hooks/slack", &[("content-type", "application/json")], body).await;
    assert_eq!(unsigned.status(), 401);
    assert_eq!(rig.count().await, 0);
}

#[tokio::test]
async fn what_verifies_nothing_is_open_to_this_machine_and_to_networks_that_are_named() {
    let elsewhere = Peer::Address("192.0.2.7".parse().unwrap());
    let open = unsigned(Preset::Unverified);
    let named = Hook { allow_from: vec!["192.0.2.0/24".parse().unwrap()], ..open.clone() };
    let other = Hook { allow_from: vec!["198.51.100.0/24".parse().unwrap()], ..open.clone() };
    for (peer, hook, status) in [
        (here(), &open, 202),
        (Peer::User(Some(1000)), &open, 202),
        (elsewhere, &open, 403),
        (elsewhere, &named, 202),
        (elsewhere, &other, 403),
        (here(), &named, 403),
        (Peer::User(None), &named, 403),
    ] {
        let rig = rig_at(peer, Settings::default(), Vec::new(), std::slice::from_ref(hook));
        let headers = [("x-id", "1"), ("content-type", "text/plain")];
        let answer = rig.send("/hooks/unverified", &headers, "high").await;
        assert_eq!(answer.status(), status, "{peer} {:?}", hook.allow_from);
    }
}

#[tokio::test]
async fn a_source_of_tokens_is_no_place_to_try_them_at() {
    let hooks = [unsigned(Preset::Token)];
    let rig = rig_at(here(), Settings::default(), vec![known("right")], &hooks);
    for status in [401; 10].into_iter().chain([429]) {
        let headers = [("authorization", "Bearer guessed"), ("content-type", "text/plain")];
        let answer = rig.send("/hooks/token", &headers, "high").await;
        assert_eq!(answer.status(), status);
    }
}

#[tokio::test]
async fn a_token_that_may_publish_opens_a_source_of_tokens() {
    let acme: Tenant = "acme".parse().unwrap();
    let token = |name: &str, roles: &[Role], scope| Token {
        roles: roles.iter().copied().collect(),
        scope,
        ..known(name)
    };
    let tokens = vec![
        token("of acme", &[Role::Publish], Scope::One(acme.clone())),
        token("of all", &[Role::Publish], Scope::All),
        token("reader", &[Role::Read], Scope::All),
        token("of none", &[Role::Publish], Scope::One(Tenant::none())),
        Token {
            types: vec!["other.*".to_owned()],
            ..token("of another type", &[Role::Publish], Scope::All)
        },
    ];
    let by_token = Hook { tenant: acme, ..unsigned(Preset::Token) };
    let by_query = Hook { query_token: true, name: "query".to_owned(), ..by_token.clone() };
    let hooks = [by_token, by_query];
    for (n, (path, name, status)) in [
        ("/hooks/token", Some("of acme"), 202),
        ("/hooks/token", Some("of all"), 202),
        ("/hooks/token", Some("reader"), 403),
        ("/hooks/token", Some("of none"), 403),
        ("/hooks/token", Some("of another type"), 403),
        ("/hooks/token", Some("unknown"), 401),
        ("/hooks/token", None, 401),
        ("/hooks/token?access_token=of+acme", None, 401),
        ("/hooks/query?access_token=of+acme", None, 202),
        ("/hooks/query?access_token=reader", None, 403),
        ("/hooks/query?access_token=unknown", None, 401),
        ("/hooks/query?access_token=of+acme&access_token=of+acme", None, 400),
        ("/hooks/query", Some("of acme"), 202),
    ]
    .into_iter()
    .enumerate()
    {
        let rig = rig_at(here(), Settings::default(), tokens.clone(), &hooks);
        let id = n.to_string();
        let bearer = name.map(|name| format!("Bearer {name}"));
        let mut headers = vec![("x-id", id.as_str()), ("content-type", "text/plain")];
        headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
        let answer = rig.send(path, &headers, "high").await;
        assert_eq!(answer.status(), status, "{path} {name:?}");
        assert_eq!(rig.count().await, i64::from(status == 202), "{path} {name:?}");
    }
}

#[tokio::test]
async fn a_sender_that_asks_whether_it_may_send_is_told() {
    let github =
        Hook { origins: vec!["a.example.com".to_owned()], rate: Some(2.0), ..preset("github") };
    let retired = Hook { retired: true, name: "retired".to_owned(), ..preset("github") };
    let rig = rig(&[github, retired]);
    for (path, origin, status, granted) in [
        ("/hooks/github", "a.example.com", 204, Some("120")),
        ("/hooks/github", "b.example.com", 204, None),
        ("/hooks/retired", "a.example.com", 410, None),
        ("/hooks/nobody", "a.example.com", 404, None),
    ] {
        let headers = [("webhook-request-origin", origin)];
        let (parts, _) = request("OPTIONS", path, &headers).into_parts();
        let answer = rig.host.answer(Request::from_parts(parts, Body::empty())).await;
        assert_eq!(answer.status(), status, "{path} {origin}");
        let rate = answer.headers().get("webhook-allowed-rate").map(|rate| rate.to_str().unwrap());
        assert_eq!(rate, granted, "{path} {origin}");
    }
}

#[tokio::test]
async fn sources_change_at_a_reload_and_who_sent_is_stamped() {
    let github = preset("github");
    let rig = rig_at(
        here(),
        Settings { stamp: true, ..Settings::default() },
        Vec::new(),
        std::slice::from_ref(&github),
    );
    let sent = rig.send("/hooks/github", &borrowed(&issue(&github, "d-1")), ISSUE).await;
    assert_eq!(sent.status(), 202);
    let fetch = Fetch {
        group: &"g".parse().unwrap(),
        tenant: &Tenant::none(),
        subscription: &Subscription::new(["*"]).unwrap(),
        partition: None,
        after: Position::ZERO,
        up_to: Position(1),
        max_events: 1,
        max_bytes: 1 << 20,
    };
    let events = rig.store.fetch(fetch).await.unwrap().events;
    let stamp = format!("{:?}", events[0].event.extensions);
    assert!(stamp.contains("service_account") && stamp.contains("github"), "{stamp}");

    rig.hooks.set(&[]);
    let gone = rig.send("/hooks/github", &borrowed(&issue(&github, "d-2")), ISSUE).await;
    assert_eq!(gone.status(), 404);
    let retired = Hook { retired: true, ..github.clone() };
    rig.hooks.set(&[retired]);
    let gone = rig.send("/hooks/github", &borrowed(&issue(&github, "d-2")), ISSUE).await;
    assert_eq!(gone.status(), 410);
}

#[tokio::test]
async fn a_window_of_nothing_knows_no_repetition() {
    let mut github = preset("github");
    github.dedup = Some(Duration::ZERO);
    let rig = rig(std::slice::from_ref(&github));
    for _ in 0..2 {
        let sent = rig.send("/hooks/github", &borrowed(&issue(&github, "d-1")), ISSUE).await;
        assert_eq!(sent.status(), 202);
    }
    assert_eq!(rig.count().await, 2);
}
