//! Events that come in: the answers, each status of them.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use event_host_ingest::{Intake, Settings};
use event_host_metrics::Metrics;
use event_host_store::memory::{Fault, MemoryStore, Operation};
use event_host_store::traits::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{Request, Response};
use serde_json::Value;

use super::{connection, here, json, known, listener, request};
use crate::routes::{Routes, events};
use crate::service::Service;
use crate::token::{Scope, Token};

struct Rig {
    store: MemoryStore,
    intake: Intake,
    host: Service,
}

fn rig(settings: Settings, token: Token) -> Rig {
    let store = MemoryStore::new();
    let metrics = Metrics::new(&event_host_metrics::Settings::default());
    let intake = Intake::start(Arc::new(store.clone()), None, settings, metrics.ingest.clone());
    let mut routes = Routes::default();
    events::add(&mut routes, &intake);
    let host = connection(listener(), vec![token], None, &routes, here());
    Rig { store, intake, host }
}

impl Rig {
    async fn send(&self, headers: &[(&str, &str)], body: impl Into<Body>) -> Response<Body> {
        self.send_to("/v1/events", headers, body).await
    }

    async fn send_to(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Response<Body> {
        let headers = [&[("authorization", "Bearer t")], headers].concat();
        let (parts, _) = request("POST", path, &headers).into_parts();
        self.host.answer(Request::from_parts(parts, body.into())).await
    }

    async fn count(&self) -> i64 {
        self.store.status().await.unwrap().events
    }
}

const STRUCTURED: (&str, &str) = ("content-type", "application/cloudevents+json");
const BATCHED: (&str, &str) = ("content-type", "application/cloudevents-batch+json");

fn event(id: &str) -> String {
    format!(
        r#"{{"specversion":"1.0","id":"{id}","source":"/shop","type":"paid","data":{{"n":1}}}}"#
    )
}

#[tokio::test]
async fn an_event_is_202_with_its_position_and_200_when_it_comes_again() {
    let rig = rig(Settings::default(), known("t"));
    let response = rig.send(&[STRUCTURED], event("7")).await;
    assert_eq!(response.status(), 202);
    assert_eq!(response.headers()["content-type"], "application/json");
    let told = |position: i64, duplicate: bool| {
        serde_json::json!({"events": [
            {"id": "7", "source": "/shop", "position": position, "duplicate": duplicate}
        ]})
    };
    assert_eq!(json(response).await, told(1, false));
    let again = rig.send(&[STRUCTURED], event("7")).await;
    assert_eq!(again.status(), 200);
    assert_eq!(json(again).await, told(1, true));

    let both = rig.send(&[BATCHED], format!("[{},{}]", event("7"), event("8"))).await;
    assert_eq!(both.status(), 202);
    let events = json(both).await["events"].clone();
    assert_eq!((&events[0]["duplicate"], &events[1]["position"]), (&true.into(), &2.into()));

    let empty = rig.send(&[BATCHED], "[]").await;
    assert_eq!(empty.status(), 200);
    assert_eq!(json(empty).await, serde_json::json!({"events": []}));

    let minimal = rig.send(&[STRUCTURED, ("prefer", "wait=1, Return=Minimal")], event("9")).await;
    assert_eq!(minimal.status(), 202);
    assert_eq!(minimal.headers()["preference-applied"], "return=minimal");
    let body = http_body_util::BodyExt::collect(minimal.into_body()).await.unwrap();
    assert!(body.to_bytes().is_empty());
}

#[tokio::test]
async fn a_packed_body_is_unpacked_and_a_bomb_is_not() {
    let rig = rig(Settings::default(), known("t"));
    let gzip = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let packed = ("content-encoding", "gzip");
    let response = rig.send(&[STRUCTURED, packed], gzip(event("7").as_bytes())).await;
    assert_eq!(response.status(), 202);
    let bomb = rig.send(&[STRUCTURED, packed], gzip(&vec![b' '; 32 << 20])).await;
    assert_eq!(bomb.status(), 413);
    let broken = rig.send(&[STRUCTURED, packed], event("8")).await;
    assert_eq!(broken.status(), 400);
    let other = rig.send(&[STRUCTURED, ("content-encoding", "br")], event("8")).await;
    assert_eq!(other.status(), 415);
    assert_eq!(other.headers()["accept-encoding"], "gzip, identity");
    assert_eq!(rig.count().await, 1);
}

/// Status and slug of a refusal, and its JSON.
async fn refused(response: Response<Body>) -> (u16, String, Value) {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let status = response.status().as_u16();
    let problem = json(response).await;
    let slug = problem["type"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    assert_eq!(problem["status"], status);
    (status, slug, problem)
}

#[tokio::test]
async fn each_refusal_has_its_status_its_slug_and_its_place() {
    let settings = Settings {
        max_body: 2_000,
        max_event: 300,
        max_events: 3,
        min_free: 0,
        ..Settings::default()
    };
    let rig = rig(settings, known("t"));
    rig.send(&[STRUCTURED], event("known")).await;
    let other = event("known").replace("paid", "refunded");
    type Case = ((&'static str, &'static str), String, u16, &'static str, (&'static str, Value));
    let cases: Vec<Case> = vec![
        (STRUCTURED, "{".to_owned(), 400, "invalid-event", ("title", "No valid event".into())),
        (STRUCTURED, event(""), 400, "invalid-event", ("attribute", "id".into())),
        (
            BATCHED,
            format!("[{},{}]", event("a"), event("")),
            400,
            "invalid-event",
            ("event", 1.into()),
        ),
        (
            ("content-type", "text/plain"),
            "x".to_owned(),
            400,
            "invalid-request",
            ("status", 400.into()),
        ),
        (
            ("content-type", "application/cloudevents+avro"),
            "x".to_owned(),
            415,
            "unsupported",
            ("status", 415.into()),
        ),
        (STRUCTURED, event(&"x".repeat(300)), 413, "too-large", ("limit", 300.into())),
        (
            BATCHED,
            format!("[{}]", vec![event("a"); 4].join(",")),
            413,
            "too-large",
            ("limit", 3.into()),
        ),
        (STRUCTURED, " ".repeat(2_001), 413, "too-large", ("limit", 2_000.into())),
        (BATCHED, format!("[{},{other}]", event("b")), 422, "id-reused", ("position", 1.into())),
        (
            BATCHED,
            format!("[{},{}]", event("b"), event("b").replace("1}", "2}")),
            422,
            "id-reused",
            ("event", 1.into()),
        ),
    ];
    for (header, body, status, slug, member) in cases {
        let (found, found_slug, problem) = refused(rig.send(&[header], body.clone()).await).await;
        assert_eq!((found, found_slug.as_str()), (status, slug), "{body}: {problem}");
        assert_eq!(problem[member.0], member.1, "{problem}");
        assert!(problem["request_id"].is_string(), "{problem}");
    }
    assert_eq!(rig.count().await, 1, "nothing of a refused request");
    let unsupported = rig.send(&[("content-type", "application/cloudevents+xml")], "x").await;
    assert!(
        unsupported.headers()["accept-post"].to_str().unwrap().contains("cloudevents-batch+json")
    );
}

#[tokio::test]
async fn a_token_publishes_what_its_table_allows() {
    let token = Token {
        types: vec!["paid".to_owned()],
        sources: vec!["/shop*".to_owned()],
        scope: Scope::One("acme".parse().unwrap()),
        ..known("t")
    };
    let rig = rig(Settings::default(), token);
    assert_eq!(rig.send(&[STRUCTURED], event("7")).await.status(), 202);
    for (other, attribute) in [
        (event("8").replace("paid", "paidx"), "type"),
        (event("8").replace("/shop", "/bank"), "source"),
    ] {
        let (status, slug, problem) = refused(rig.send(&[STRUCTURED], other).await).await;
        assert_eq!((status, slug.as_str()), (403, "forbidden"));
        assert_eq!(problem["attribute"], attribute);
    }
    assert_eq!(
        rig.send_to("/v1/events?tenant=acme", &[STRUCTURED], event("9")).await.status(),
        202
    );
    let other = rig.send_to("/v1/events?tenant=globex", &[STRUCTURED], event("9")).await;
    assert_eq!(other.status(), 404);
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_429_with_a_wait_that_suffices() {
    let rig = rig(Settings::default(), Token { rate: Some(2.0), ..known("t") });
    for id in ["1", "2"] {
        assert_eq!(rig.send(&[STRUCTURED], event(id)).await.status(), 202);
    }
    let limited = rig.send(&[STRUCTURED], event("3")).await;
    let wait: u64 = limited.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    let (status, slug, problem) = refused(limited).await;
    assert_eq!((status, slug.as_str()), (429, "rate"));
    assert_eq!(problem["retry_after"], wait);
    tokio::time::advance(Duration::from_secs(wait)).await;
    assert_eq!(rig.send(&[STRUCTURED], event("3")).await.status(), 202);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_is_503_a_full_log_507_and_a_host_that_stops_503() {
    let rig = rig(Settings { queue: 100, ..Settings::default() }, known("t"));
    let busy = rig.send(&[STRUCTURED], event("1")).await;
    let wait: u64 = busy.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=5).contains(&wait));
    assert_eq!(refused(busy).await.1, "busy");
    assert_eq!(rig.count().await, 0);

    rig.intake.set(Settings { timeout: Duration::from_secs(5), ..Settings::default() });
    rig.store.fail(Operation::INGEST, Fault::After, 1);
    let (status, slug, problem) = refused(rig.send(&[STRUCTURED], event("1")).await).await;
    assert_eq!((status, slug.as_str()), (503, "database"));
    assert!(problem["detail"].as_str().unwrap().contains("same ids"), "{problem}");
    assert_eq!(rig.send(&[STRUCTURED], event("1")).await.status(), 200, "it was there");

    rig.intake.set(Settings { max_log: Some(0), ..Settings::default() });
    let (status, slug, problem) = refused(rig.send(&[STRUCTURED], event("2")).await).await;
    assert_eq!((status, slug.as_str(), &problem["retry_after"]), (507, "full", &60.into()));

    rig.intake.set(Settings::default());
    rig.intake.stop().await;
    assert_eq!(refused(rig.send(&[STRUCTURED], event("2")).await).await.1, "draining");
}

#[tokio::test]
async fn the_handshake_says_who_may_send_and_nobody_else_may_where_it_is_required() {
    let settings = Settings {
        origins: vec!["shop.example.com".to_owned()],
        require_origin: true,
        rate: Some(10.0),
        ..Settings::default()
    };
    let rig = rig(settings, known("t"));
    for (origin, allowed) in [("shop.example.com", true), ("bank.example.com", false)] {
        let headers = [
            ("webhook-request-origin", origin),
            ("webhook-request-rate", "120"),
            ("webhook-request-callback", "http://127.0.0.1:1/confirm"),
        ];
        let answer = rig.host.answer(request("OPTIONS", "/v1/events", &headers)).await;
        assert_eq!(answer.status(), 204);
        assert_eq!(answer.headers()["allow"], "POST, OPTIONS");
        assert_eq!(answer.headers().contains_key("webhook-allowed-origin"), allowed);
        let rate = answer.headers().get("webhook-allowed-rate");
        assert_eq!(rate.map(|rate| rate.to_str().unwrap()), allowed.then_some("120"));
        let sent = rig.send(&[STRUCTURED, ("webhook-request-origin", origin)], event(origin)).await;
        assert_eq!(sent.status(), if allowed { 202 } else { 403 });
    }
    assert_eq!(rig.send(&[STRUCTURED], event("7")).await.status(), 403);
    let other = rig.host.answer(request("PUT", "/v1/events", &[])).await;
    assert_eq!(other.status(), 405);
    assert_eq!(other.headers()["allow"], "POST, OPTIONS");
}

#[tokio::test]
async fn a_stamp_says_who_sent_an_event_and_nobody_can_forge_it() {
    let rig = rig(Settings { stamp: true, ..Settings::default() }, known("t"));
    assert_eq!(rig.send(&[STRUCTURED], event("7")).await.status(), 202);
    let forged = event("8").replace("\"type\"", "\"authid\":\"root\",\"type\"");
    let (status, _, problem) = refused(rig.send(&[STRUCTURED], forged).await).await;
    assert_eq!((status, &problem["attribute"]), (400, &"authid".into()));
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-id", "9"),
        ("ce-source", "/s"),
        ("ce-type", "t"),
        ("ce-authtype", "system"),
    ];
    assert_eq!(rig.send(&headers, "").await.status(), 400);
    let stamped = event_host_core::event::Event::from_json(event("7")).unwrap();
    let stored = rig.store.published().remove(0);
    assert_eq!(stored.data, stamped.data);
    let extensions = serde_json::to_value(&stored.extensions).unwrap();
    assert_eq!(extensions, serde_json::json!({"authtype": "api_key", "authid": "t"}));
}
