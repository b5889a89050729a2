//! `/problems/{slug}`: what the `type` of a problem means.

use axum_core::body::Body;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response};

use super::{Access, Routes, Spec};
use crate::problem::{Kind, Problem};

/// What a kind of problem means.
pub const PROBLEM: Spec = Spec {
    method: Method::GET,
    path: "/problems/{slug}",
    part: None,
    access: Access::Open,
    by_tenant: false,
};

pub(super) fn add(routes: &mut Routes) {
    routes.add(&PROBLEM, |call| async move {
        let Some(kind) = Kind::of_slug(call.parameter("slug")) else {
            return Err(Problem::new(Kind::NotFound, "there is no problem of this name"));
        };
        let (status, title, advice) = (kind.status().as_u16(), kind.title(), kind.advice());
        let text = format!("{}\n\n{title} (status {status}). {advice}\n", kind.slug());
        let mut response = Response::new(Body::from(text));
        let content = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, content);
        Ok(response)
    });
}
