//! What a host answers, request by request and connection by connection.

mod connections;
mod events;
mod hooks;
mod matrix;
mod metrics;
mod requests;

use std::sync::Arc;

use axum_core::body::Body;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::failures::Failures;
use crate::peer::Peer;
use crate::routes::{Routes, TABLE};
use crate::service::{Policy, Service, Shared};
use crate::settings::{Address, Listener};
use crate::token::{Token, TokenHash, Tokens};

/// A listener that serves everything.
fn listener() -> Listener {
    Listener::new("local", Address::Tcp(Listener::DEFAULT_ADDRESS))
}

/// Every route, each answering with 204 and, in headers, what its handler was told.
fn stubs() -> Routes {
    let mut routes = Routes::default();
    for spec in TABLE {
        routes.add(spec, |call| async move {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            let tenant = call.tenant.map_or("*".to_owned(), |tenant| tenant.to_string());
            for (name, value) in [
                ("x-caller", call.caller.name()),
                ("x-tenant", tenant.as_str()),
                ("x-peer", &call.peer.to_string()),
                ("x-encrypted", if call.is_encrypted { "yes" } else { "no" }),
            ] {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            Ok(response)
        });
    }
    routes
}

/// One connection to a host.
fn connection(
    listener: Listener,
    tokens: Vec<Token>,
    tenants: Option<&[&str]>,
    routes: &Routes,
    peer: Peer,
) -> Service {
    let tenants = tenants.map(|names| names.iter().map(|name| name.parse().unwrap()).collect());
    let tokens = Arc::new(Tokens::new(tokens));
    let policy = Policy::new(Arc::new(listener), tokens, tenants.map(Arc::new), routes, None);
    let shared = Shared::new(policy, Arc::new(Failures::default()));
    Service::new(Arc::new(shared), peer, false, CancellationToken::new())
}

/// The machine that the host runs on.
fn here() -> Peer {
    Peer::Address([127, 0, 0, 1].into())
}

/// A request, with its headers.
fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    if headers.iter().all(|(name, _)| *name != "host") {
        request = request.header("host", "127.0.0.1:8480");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

/// A token that may do everything, by what it is.
fn known(name: &str) -> Token {
    Token::unlimited(name, TokenHash::of(name))
}

/// The JSON of an answer.
async fn json(response: Response<Body>) -> Value {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap()
}
