//! Single requests: names of the host, methods, proxies, problems, failures.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::StatusCode;

use super::{connection, here, json, known, listener, request, stubs};
use crate::call::Call;
use crate::peer::Peer;
use crate::problem::Kind;
use crate::routes::{Health, PROBLEM, Routes};
use crate::service::Service;
use crate::settings::{Listener, Part};

/// A host without tokens.
fn host() -> Service {
    connection(listener(), vec![], None, &stubs(), here())
}

#[tokio::test]
async fn every_answer_names_its_request_and_a_problem_says_what_is_wrong() {
    let response = host().answer(request("GET", "/no/such", &[])).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let problem = json(response).await;
    assert_eq!(problem["request_id"], id.as_str());
    assert_eq!(problem["type"], "/problems/not-found");
    assert_eq!(problem["status"], 404);
    assert_eq!(problem["detail"], "there is nothing at `/no/such` here");
    let other = host().answer(request("GET", "/livez", &[])).await;
    assert_ne!(other.headers()["x-request-id"], id.as_str());
}

#[tokio::test]
async fn another_method_is_told_which_ones_there_are() {
    let response = host().answer(request("DELETE", "/problems/busy", &[])).await;
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(response.headers()["allow"], "GET, HEAD");
    let response = host().answer(request("HEAD", "/problems/busy", &[])).await;
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_name_that_is_not_the_hosts_is_refused_but_not_for_health() {
    let named = Listener { hosts: ["events.example.com".to_owned()].into(), ..listener() };
    for (name, status) in [
        ("127.0.0.1:8480", 204),
        ("[::1]:8480", 204),
        ("192.0.2.1", 204),
        ("localhost", 204),
        ("LocalHost:8480", 204),
        ("events.example.com", 204),
        ("Events.Example.Com:443", 204),
        ("evil.example.com", 421),
        ("localhost.evil.example.com", 421),
        ("events.example.com.", 421),
        ("127.0.0.1.evil.example.com", 421),
        ("", 421),
    ] {
        let host = connection(named.clone(), vec![], None, &stubs(), here());
        let path = "/problems/busy";
        let response = host.answer(request("GET", path, &[("host", name)])).await;
        assert_eq!(response.status().as_u16(), status, "{name}");
        let response = host.answer(request("GET", "/livez", &[("host", name)])).await;
        assert_eq!(response.status().as_u16(), 204, "{name}");
    }
}

#[tokio::test]
async fn what_a_page_of_another_site_sends_is_refused() {
    for (headers, status) in [
        (&[][..], 405),
        (&[("sec-fetch-site", "same-origin")][..], 405),
        (&[("sec-fetch-site", "cross-site")], 403),
        (&[("sec-fetch-site", "same-site")], 403),
        (&[("origin", "http://127.0.0.1:8480")], 405),
        (&[("origin", "http://127.0.0.1:9999")], 403),
        (&[("origin", "null")], 403),
    ] {
        let response = host().answer(request("POST", "/problems/busy", headers)).await;
        assert_eq!(response.status().as_u16(), status, "{headers:?}");
    }
}

#[tokio::test]
async fn a_body_in_a_transfer_coding_that_is_not_undone_is_refused() {
    let host = connection(listener(), vec![known("one")], None, &stubs(), here());
    for (codings, status) in [
        (&["chunked"][..], StatusCode::NO_CONTENT),
        (&["Chunked"], StatusCode::NO_CONTENT),
        (&["gzip, chunked"], StatusCode::BAD_REQUEST),
        (&["gzip", "chunked"], StatusCode::BAD_REQUEST),
        (&["identity"], StatusCode::BAD_REQUEST),
    ] {
        let codings = codings.iter().map(|coding| ("transfer-encoding", *coding));
        let headers: Vec<_> = codings.chain([("authorization", "Bearer one")]).collect();
        let response = host.answer(request("GET", "/v1/whoami", &headers)).await;
        assert_eq!(response.status(), status, "{headers:?}");
    }
}

#[tokio::test]
async fn only_a_trusted_proxy_is_believed() {
    let trusting = Listener {
        trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
        hosts: ["events.example.com".to_owned()].into(),
        ..listener()
    };
    let said = [
        ("host", "10.0.0.1"),
        ("x-forwarded-for", "192.0.2.7"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "events.example.com"),
        ("x-request-id", "from-the-proxy"),
    ];
    let ask = async |peer: [u8; 4]| {
        let peer = Peer::Address(peer.into());
        let host = connection(trusting.clone(), vec![], None, &stubs(), peer);
        host.answer(request("GET", "/problems/busy", &said)).await
    };
    let believed = ask([10, 1, 2, 3]).await;
    assert_eq!(believed.headers()["x-peer"], "192.0.2.7");
    assert_eq!(believed.headers()["x-encrypted"], "yes");
    assert_eq!(believed.headers()["x-request-id"], "from-the-proxy");
    assert!(believed.headers().contains_key("strict-transport-security"));
    let doubted = ask([11, 1, 2, 3]).await;
    assert_eq!(doubted.headers()["x-peer"], "11.1.2.3");
    assert_eq!(doubted.headers()["x-encrypted"], "no");
    assert_ne!(doubted.headers()["x-request-id"], "from-the-proxy");
}

#[tokio::test]
async fn a_base_path_moves_everything_and_what_is_beside_it_is_nothing() {
    let based = Listener { base_path: "/host".to_owned(), ..listener() };
    for (path, status) in
        [("/host/livez", 204), ("/livez", 404), ("/hostile/livez", 404), ("/host", 404)]
    {
        let host = connection(based.clone(), vec![], None, &stubs(), here());
        let response = host.answer(request("GET", path, &[])).await;
        assert_eq!(response.status().as_u16(), status, "{path}");
        if status == 404 {
            assert_eq!(json(response).await["type"], "/host/problems/not-found");
        }
    }
}

#[tokio::test]
async fn a_listener_has_the_routes_of_what_it_serves_alone() {
    let serving = Listener { serve: [Part::Ingest].into(), ..listener() };
    let host = connection(serving, vec![], None, &stubs(), here());
    assert_eq!(host.answer(request("GET", "/livez", &[])).await.status().as_u16(), 404);
    assert_eq!(host.answer(request("GET", "/problems/busy", &[])).await.status().as_u16(), 204);
}

/// Answers as a route of a token, through the real path.
async fn with_token(host: &Service, headers: &[(&str, &str)]) -> StatusCode {
    host.answer(request("GET", "/v1/whoami", headers)).await.status()
}

#[tokio::test(start_paused = true)]
async fn an_address_that_fails_too_often_waits_and_others_do_not() {
    let host = connection(listener(), vec![known("one")], None, &stubs(), here());
    for _ in 0..10 {
        let status = with_token(&host, &[("authorization", "Bearer wrong")]).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
    }
    let response =
        host.answer(request("GET", "/v1/whoami", &[("authorization", "Bearer one")])).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    tokio::time::advance(std::time::Duration::from_secs(wait)).await;
    let status = with_token(&host, &[("authorization", "Bearer one")]).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_token_anywhere_but_in_authorization_is_none() {
    for headers in [
        &[("x-api-key", "one")][..],
        &[("cookie", "event-host=one; __Host-event-host=one")],
        &[("authorization", "one")],
        &[("authorization", "Basic one")],
        &[("authorization", "Bearer")],
        &[("authorization", "Bearer one"), ("authorization", "Bearer one")],
        &[("proxy-authorization", "Bearer one")],
    ] {
        let host = connection(listener(), vec![known("one")], None, &stubs(), here());
        assert_eq!(with_token(&host, headers).await, StatusCode::UNAUTHORIZED, "{headers:?}");
    }
    let host = connection(listener(), vec![known("one")], None, &stubs(), here());
    for name in ["Bearer one", "bearer one", "BEARER  one "] {
        assert_eq!(
            with_token(&host, &[("authorization", name)]).await,
            StatusCode::NO_CONTENT,
            "{name}"
        );
    }
    let response = host.answer(request("GET", "/v1/whoami?access_token=one", &[])).await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(response.headers()["www-authenticate"], "Bearer");
}

#[tokio::test]
async fn a_handler_that_panics_is_answered_with_500() {
    let mut routes = Routes::default();
    routes.add(&PROBLEM, |_: Call| async { panic!("a fault of the test's own") });
    let host = connection(listener(), vec![], None, &routes, here());
    let response = host.answer(request("GET", "/problems/busy", &[])).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(json(response).await["type"], "/problems/internal");
}

struct Stuck;

impl Health for Stuck {
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn ready(&self, serves: &BTreeSet<Part>) -> Result<(), String> {
        let why = match serves.contains(&Part::Ingest) {
            true => "the queue is full",
            false => "the database does not answer",
        };
        Err(why.to_owned())
    }
}

#[tokio::test]
async fn health_tells_why_only_to_those_who_may_know() {
    let routes = Routes::new(Arc::new(Stuck));
    let ask = async |peer: [u8; 4], path: &str, headers: &[(&str, &str)]| {
        let peer = Peer::Address(peer.into());
        let listener = Listener { serve: [Part::Health].into(), ..listener() };
        let host = connection(listener, vec![known("one")], None, &routes, peer);
        let response = host.answer(request("GET", path, headers)).await;
        let status = response.status().as_u16();
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
        (status, String::from_utf8(body.to_bytes().to_vec()).unwrap())
    };
    let (near, far) = ([127, 0, 0, 1], [192, 0, 2, 1]);
    let token = [("authorization", "Bearer one")];
    let why = r#"{"reason":"the database does not answer","status":"unavailable"}"#;
    for (peer, path, headers, status, body) in [
        (far, "/livez", &[][..], 200, "ok\n"),
        (far, "/healthz", &[], 200, "ok\n"),
        (far, "/readyz", &[], 503, "unavailable\n"),
        (far, "/readyz?verbose", &[], 503, "unavailable\n"),
        (near, "/readyz?verbose", &[], 503, why),
        (far, "/readyz?verbose", &token, 503, why),
        (near, "/livez?verbose", &[], 200, r#"{"reason":null,"status":"ok"}"#),
    ] {
        assert_eq!(ask(peer, path, headers).await, (status, body.to_owned()), "{path}");
    }
}

#[tokio::test]
async fn whether_a_host_is_ready_is_asked_for_what_the_listener_serves() {
    let routes = Routes::new(Arc::new(Stuck));
    for (serve, reason) in [
        ([Part::Health, Part::Ingest], "the queue is full"),
        ([Part::Health, Part::Metrics], "the database does not answer"),
    ] {
        let listener = Listener { serve: serve.into(), ..listener() };
        let host = connection(listener, vec![], None, &routes, here());
        let response = host.answer(request("GET", "/readyz?verbose", &[])).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(json(response).await["reason"], reason);
    }
}

#[tokio::test]
async fn what_is_open_to_all_is_no_place_to_try_tokens_at() {
    let routes = Routes::new(Arc::new(Stuck));
    let far = Peer::Address([192, 0, 2, 1].into());
    let host = connection(listener(), vec![known("one")], None, &routes, far);
    let shows_the_reason = async |token: &str| {
        let bearer = format!("Bearer {token}");
        let asked = request("GET", "/readyz?verbose", &[("authorization", bearer.as_str())]);
        let body = host.answer(asked).await.into_body();
        let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
        body.starts_with(b"{")
    };
    assert!(shows_the_reason("one").await);
    for _ in 0..11 {
        assert!(!shows_the_reason("guessed").await);
    }
    assert!(!shows_the_reason("one").await, "nobody learns that this was right");
}

#[tokio::test]
async fn every_kind_of_problem_has_its_page() {
    let routes = Routes::new(Arc::new(Stuck));
    let host = connection(listener(), vec![], None, &routes, here());
    for kind in Kind::ALL {
        let path = format!("/problems/{}", kind.slug());
        assert_eq!(host.answer(request("GET", &path, &[])).await.status(), StatusCode::OK);
    }
    let response = host.answer(request("GET", "/problems/no-such", &[])).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn without_a_token_the_listener_says_what_may_be_done() {
    let anonymous: BTreeSet<_> = [crate::token::Role::Read].into();
    let open = Listener { anonymous, ..listener() };
    let host = connection(open, vec![known("one")], None, &stubs(), here());
    assert_eq!(with_token(&host, &[]).await, StatusCode::NO_CONTENT);
    let status = with_token(&host, &[("authorization", "Bearer wrong")]).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "a wrong token is no anonymous caller");
}
