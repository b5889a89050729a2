//! `/livez`, `/healthz` and `/readyz`: for service managers and load balancers, which have
//! no token and ask by address.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum_core::body::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::json;

use super::{Access, Routes, Spec};
use crate::call::Call;
use crate::settings::Part;

/// Whether the process is alive. It depends on nothing that a restart would not mend.
pub const LIVE: Spec = Spec {
    method: Method::GET,
    path: "/livez",
    part: Some(Part::Health),
    access: Access::Open,
    by_tenant: false,
};

/// Another name of [`LIVE`].
pub const LIVE_ALIAS: Spec = Spec { path: "/healthz", ..LIVE };

/// Whether the host can do its work now.
pub const READY: Spec = Spec { path: "/readyz", ..LIVE };

/// What knows how the host is. Both answer at once, from what is known.
pub trait Health: Send + Sync {
    /// Whether the process does anything still.
    ///
    /// # Errors
    /// With what is stuck.
    fn live(&self) -> Result<(), String>;

    /// Whether requests and events are handled now, by a listener that serves these parts.
    ///
    /// # Errors
    /// With the first reason why not.
    fn ready(&self, serves: &BTreeSet<Part>) -> Result<(), String>;
}

pub(super) fn add(routes: &mut Routes, health: Arc<dyn Health>) {
    for spec in [&LIVE, &LIVE_ALIAS] {
        let health = Arc::clone(&health);
        routes.add(spec, move |call| {
            let answer = answer(&call, health.live());
            async { Ok(answer) }
        });
    }
    routes.add(&READY, move |call| {
        let answer = answer(&call, health.ready(&call.listener.serve));
        async { Ok(answer) }
    });
}

/// `ok` or `unavailable`; why, only to those who are on this machine or have a token.
fn answer(call: &Call, state: Result<(), String>) -> Response<Body> {
    let is_verbose = call.query().any(|(name, _)| name == "verbose");
    let may_know = call.peer.is_local() || call.caller.token().is_some();
    let (status, word) = match &state {
        Ok(()) => (StatusCode::OK, "ok"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    };
    let (content, body) = if is_verbose && may_know {
        ("application/json", json!({ "status": word, "reason": state.err() }).to_string())
    } else {
        ("text/plain; charset=utf-8", format!("{word}\n"))
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
