//! `/v1/whoami`: what the caller's token is.

use axum_core::body::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Response};
use serde_json::json;

use super::{Access, Routes, Spec};
use crate::settings::Part;
use crate::token::Scope;

/// The name, the tenant, the roles and the end of the caller's token.
pub const WHOAMI: Spec = Spec {
    method: Method::GET,
    path: "/v1/whoami",
    part: Some(Part::Admin),
    access: Access::Token,
    by_tenant: false,
};

pub(super) fn add(routes: &mut Routes) {
    routes.add(&WHOAMI, |call| async move {
        let caller = &call.caller;
        let tenant = match caller.scope() {
            Scope::All => "*",
            Scope::One(tenant) => tenant.as_str(),
        };
        let roles: Vec<&str> = caller.roles().iter().map(|role| role.name()).collect();
        let expires = caller.token().and_then(|token| token.expires);
        let answer = json!({
            "name": caller.name(),
            "tenant": tenant,
            "roles": roles,
            "expires": expires.map(|expires| expires.to_string()),
        });
        let mut response = Response::new(Body::from(answer.to_string()));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    });
}
