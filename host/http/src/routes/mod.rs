//! The table of routes: everything that can be asked of a host by HTTP.
//!
//! # How to add a route
//! 1. A constant [`Spec`] in a file of its own here, `routes/NAME.rs`: method, path, the
//!    part of the host that it belongs to, who may ([`Access`]), and whether a tenant counts.
//! 2. The constant in [`TABLE`].
//! 3. Its handler: an `async fn(Call) -> Result<Response, Problem>`, which is added with
//!    [`Routes::add`] by whoever puts the host together. What the handler needs it gets as
//!    trait objects; the caller is authenticated by then, and [`Call::tenant`] is one that
//!    the caller may reach.
//! 4. `UPDATE_MATRIX=1 cargo test -p event-host-http` writes the route's lines into
//!    `host/http/src/tests/matrix.txt`, which says for every route what every caller is answered.
//!    Read them before they are committed: they are what the test holds from then on.
//! 5. docs/http.md.
//!
//! A route of the table without a handler does not exist for clients. A handler may take as
//! long as it wants, but should answer while the host stops: the host waits for it.

pub mod events;
mod health;
pub mod hooks;
mod metrics;
mod problems;
mod whoami;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum_core::body::Body;
use futures_util::future::BoxFuture;
use http::{Method, Response};
use percent_encoding::percent_decode_str;
use tracing::error;

pub use events::{EVENTS, HANDSHAKE};
pub use health::{Health, LIVE, LIVE_ALIAS, READY};
pub use hooks::{HOOK, HOOK_HANDSHAKE};
pub use metrics::{Exposition, METRICS};
pub use problems::PROBLEM;
pub use whoami::WHOAMI;

use crate::call::Call;
use crate::problem::Problem;
use crate::settings::Part;
use crate::token::Role;

/// Every route.
pub const TABLE: &[&Spec] = &[
    &LIVE,
    &LIVE_ALIAS,
    &READY,
    &PROBLEM,
    &WHOAMI,
    &EVENTS,
    &HANDSHAKE,
    &HOOK,
    &HOOK_HANDSHAKE,
    &METRICS,
];

/// What a route is, its handler aside.
#[derive(Debug, PartialEq, Eq)]
pub struct Spec {
    /// The method. `GET` is `HEAD` too.
    pub method: Method,
    /// The path, below the listener's base path, with parameters such as `{source}`.
    pub path: &'static str,
    /// What it belongs to: only listeners that serve this have it. `None`: all have it.
    pub part: Option<Part>,
    /// Who may.
    pub access: Access,
    /// Whether a tenant counts: then a caller of one tenant reaches that one alone, and
    /// `?tenant=NAME` is understood.
    pub by_tenant: bool,
}

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anybody, under any name of the host: what proves nothing and tells nothing.
    Open,
    /// The handler finds out, by a signature for example. The caller is that of the token,
    /// if one was sent that is known, and a stranger else.
    Own,
    /// Any token.
    Token,
    /// A token with one of these roles.
    Roles(&'static [Role]),
}

/// What answers the requests of a route.
pub type Handler =
    Arc<dyn Fn(Call) -> BoxFuture<'static, Result<Response<Body>, Problem>> + Send + Sync>;

/// The routes of a host, with their handlers.
#[derive(Clone, Default)]
pub struct Routes {
    handlers: Vec<(&'static Spec, Handler)>,
}

impl Routes {
    /// The routes that every host has.
    #[must_use]
    pub fn new(health: Arc<dyn Health>) -> Self {
        let mut routes = Self::default();
        health::add(&mut routes, health);
        problems::add(&mut routes);
        whoami::add(&mut routes);
        routes
    }

    /// Adds a route of [`TABLE`].
    ///
    /// # Panics
    /// In builds with debug assertions, when the table does not have it, or it is there
    /// already.
    pub fn add<F>(
        &mut self,
        spec: &'static Spec,
        handler: impl Fn(Call) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<Response<Body>, Problem>> + Send + 'static,
    {
        debug_assert!(TABLE.contains(&spec), "{} is not in the table", spec.path);
        debug_assert!(
            self.handlers.iter().all(|(other, _)| *other != spec),
            "{} is there twice",
            spec.path
        );
        self.handlers.push((spec, Arc::new(move |call| Box::pin(handler(call)))));
    }

    /// The routes of a listener that serves these parts.
    pub(crate) fn of_parts(&self, serves: impl Fn(Part) -> bool) -> Paths {
        let mut by_path: BTreeMap<&'static str, Vec<(&'static Spec, Handler)>> = BTreeMap::new();
        for (spec, handler) in &self.handlers {
            if spec.part.is_none_or(&serves) {
                by_path.entry(spec.path).or_default().push((spec, Arc::clone(handler)));
            }
        }
        let mut paths = matchit::Router::new();
        for (path, methods) in by_path {
            // The test `every_path_of_the_table_can_be_looked_up` has them all.
            if let Err(why) = paths.insert(path, methods) {
                error!(path, "cannot be served: {why}");
            }
        }
        Paths(paths)
    }
}

/// The routes of one listener.
pub(crate) struct Paths(matchit::Router<Vec<(&'static Spec, Handler)>>);

/// What is at a path.
pub(crate) enum Found<'a> {
    /// A route, with the parameters of its path.
    Route(&'static Spec, &'a Handler, Vec<(String, String)>),
    /// Routes with other methods: these.
    OtherMethods(String),
    /// Nothing.
    Nothing,
}

impl Paths {
    pub(crate) fn find(&self, method: &Method, path: &str) -> Found<'_> {
        let Ok(found) = self.0.at(path) else { return Found::Nothing };
        let asked = if method == Method::HEAD { &Method::GET } else { method };
        let Some((spec, handler)) = found.value.iter().find(|(spec, _)| spec.method == asked)
        else {
            let mut methods: Vec<&str> =
                found.value.iter().map(|(spec, _)| spec.method.as_str()).collect();
            if methods.contains(&"GET") {
                methods.push("HEAD");
            }
            return Found::OtherMethods(methods.join(", "));
        };
        let mut parameters = Vec::new();
        for (name, value) in found.params.iter() {
            // What is no text names nothing.
            let Ok(value) = percent_decode_str(value).decode_utf8() else { return Found::Nothing };
            parameters.push((name.to_owned(), value.into_owned()));
        }
        Found::Route(spec, handler, parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_of_the_table_can_be_looked_up() {
        let mut routes = Routes::default();
        for spec in TABLE {
            routes.add(spec, |_| async { Ok(Response::default()) });
        }
        let paths = routes.of_parts(|_| true);
        for spec in TABLE {
            let path = spec.path.replace(['{', '}'], "");
            let found = paths.find(&spec.method, &path);
            assert!(matches!(found, Found::Route(found, ..) if found == *spec), "{}", spec.path);
        }
        assert!(matches!(paths.find(&Method::GET, "/no/such/path"), Found::Nothing));
        let Found::OtherMethods(allowed) = paths.find(&Method::DELETE, "/livez") else {
            panic!("another method")
        };
        assert_eq!(allowed, "GET, HEAD");
        let Found::Route(_, _, parameters) = paths.find(&Method::GET, "/problems/a%2Fb") else {
            panic!("a route")
        };
        assert_eq!(parameters, [("slug".to_owned(), "a/b".to_owned())]);
    }
}
