//! `/metrics`: what the host measures, for Prometheus.

use std::sync::Arc;

use axum_core::body::Body;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, VARY};
use http::{HeaderValue, Method, Response};

use super::{Access, Routes, Spec};
use crate::call::Call;
use crate::problem::{Kind, Problem};
use crate::settings::Part;
use crate::token::{Role, Scope};

/// Everything that the host measures. It tells of all tenants, so a token of one tenant does
/// not reach it, whatever its roles.
pub const METRICS: Spec = Spec {
    method: Method::GET,
    path: "/metrics",
    part: Some(Part::Metrics),
    access: Access::Roles(&[Role::Metrics]),
    by_tenant: false,
};

/// What writes the answer, out of memory.
pub trait Exposition: Send + Sync {
    /// The answer, in the format that an `Accept` header asks for, and its `Content-Type`.
    fn expose(&self, accept: &str) -> (&'static str, String);
}

impl Routes {
    /// Adds [`METRICS`].
    pub fn add_metrics(&mut self, exposition: Arc<dyn Exposition>) {
        self.add(&METRICS, move |call| {
            let answer = answer(&call, &*exposition);
            async { answer }
        });
    }
}

fn answer(call: &Call, exposition: &dyn Exposition) -> Result<Response<Body>, Problem> {
    if let (Some(token), Scope::One(tenant)) = (call.caller.token(), call.caller.scope()) {
        return Err(Problem::new(
            Kind::Forbidden,
            format!(
                "metrics tell of all tenants, and the token `{}` is one of tenant `{tenant}`: use one with `tenant = \"*\"`",
                token.name
            ),
        ));
    }
    let accept = call.parts.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (content, body) = exposition.expose(&accept.collect::<Vec<_>>().join(", "));
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    Ok(response)
}
