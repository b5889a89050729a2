//! `/metrics`: who may read it, and in which format.

use std::sync::Arc;

use http_body_util::BodyExt as _;

use super::{connection, here, known, listener, request};
use crate::routes::{Exposition, Routes};
use crate::settings::Listener;
use crate::token::{Role, Scope, Token};

/// Answers with what was asked for.
struct Asked;

impl Exposition for Asked {
    fn expose(&self, accept: &str) -> (&'static str, String) {
        ("text/plain; version=0.0.4; charset=utf-8", accept.to_owned())
    }
}

fn routes() -> Routes {
    let mut routes = Routes::default();
    routes.add_metrics(Arc::new(Asked));
    routes
}

#[tokio::test]
async fn the_metrics_of_all_tenants_are_for_nobody_who_is_of_one() {
    let of = |name: &str, roles: &[Role], scope| Token {
        roles: roles.iter().copied().collect(),
        scope,
        ..known(name)
    };
    let acme = Scope::One("acme".parse().unwrap());
    let tokens = vec![
        of("prometheus", &[Role::Metrics], Scope::All),
        of("theirs", &[Role::Metrics], acme),
        of("operator", &[Role::Operate, Role::Read], Scope::All),
    ];
    for (token, status) in [("prometheus", 200), ("theirs", 403), ("operator", 403), ("", 401)] {
        let host = connection(listener(), tokens.clone(), Some(&["acme"]), &routes(), here());
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        let headers = if token.is_empty() { &[][..] } else { &headers };
        let response = host.answer(request("GET", "/metrics", headers)).await;
        assert_eq!(response.status().as_u16(), status, "{token}");
    }
    // Where nobody needs a token for it.
    let open = Listener { anonymous: [Role::Metrics].into(), ..listener() };
    let host = connection(open, tokens, Some(&["acme"]), &routes(), here());
    assert_eq!(host.answer(request("GET", "/metrics", &[])).await.status().as_u16(), 200);
}

#[tokio::test]
async fn the_format_is_asked_for_in_all_accept_headers_together() {
    let open = Listener { anonymous: [Role::Metrics].into(), ..listener() };
    let host = connection(open, vec![], None, &routes(), here());
    let headers = [("accept", "text/plain;q=0.5"), ("accept", "application/openmetrics-text")];
    let response = host.answer(request("GET", "/metrics", &headers)).await;
    assert_eq!(response.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(response.headers()["cache-control"], "no-store");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "text/plain;q=0.5, application/openmetrics-text");
}
