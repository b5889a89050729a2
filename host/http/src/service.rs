//! From a request of a connection to its answer: who it comes from, by which name the host
//! was asked, the route, the caller, the tenant, and the handler.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use axum_core::body::Body as AxumBody;
use event_host_core::event::Tenant;
use event_host_metrics::Level;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{ALLOW, HOST, HeaderName, STRICT_TRANSPORT_SECURITY};
use http::header::{CONNECTION, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, error, info};

use crate::body::Body;
use crate::call::{self, Call, Caller};
use crate::checks::{bearer, check_coding, check_host, check_site};
use crate::failures::Failures;
use crate::peer::{Forwarded, Peer};
use crate::problem::{Kind, Problem};
use crate::routes::{Access, Found, Paths, Routes, Spec};
use crate::settings::{Listener, Part};
use crate::token::{Scope, Tokens};

/// The header with the id of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id of a request that is taken over from a proxy.
const LONGEST_ID: usize = 128;

/// How a listener answers now. A reload replaces it as a whole.
pub(crate) struct Policy {
    pub(crate) listener: Arc<Listener>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) tenants: Option<Arc<BTreeSet<Tenant>>>,
    pub(crate) paths: Paths,
    /// With a certificate, connections are encrypted.
    pub(crate) tls: Option<TlsAcceptor>,
}

impl Policy {
    pub(crate) fn new(
        listener: Arc<Listener>,
        tokens: Arc<Tokens>,
        tenants: Option<Arc<BTreeSet<Tenant>>>,
        routes: &Routes,
        tls: Option<TlsAcceptor>,
    ) -> Self {
        let paths = routes.of_parts(|part| listener.serve.contains(&part));
        Self { listener, tokens, tenants, paths, tls }
    }
}

/// What all connections of a listener share.
pub(crate) struct Shared {
    policy: RwLock<Arc<Policy>>,
    failures: Arc<Failures>,
}

impl Shared {
    pub(crate) fn new(policy: Policy, failures: Arc<Failures>) -> Self {
        Self { policy: RwLock::new(Arc::new(policy)), failures }
    }

    /// How many connections the listener has, as it is measured.
    pub(crate) fn connections(&self) -> Level {
        self.failures.metrics().connections(&self.policy().listener.name)
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        // Every change of it is whole, even if the thread panicked after it.
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }
}

/// One connection: answers its requests.
#[derive(Clone)]
pub(crate) struct Service(Arc<OfConnection>);

struct OfConnection {
    shared: Arc<Shared>,
    peer: Peer,
    is_encrypted: bool,
    /// Whether each answer is to be the last of its connection.
    closing: tokio_util::sync::CancellationToken,
    served: AtomicUsize,
    under_way: AtomicUsize,
}

/// A request under way.
struct UnderWay(Arc<OfConnection>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service {
    pub(crate) fn new(
        shared: Arc<Shared>,
        peer: Peer,
        is_encrypted: bool,
        closing: tokio_util::sync::CancellationToken,
    ) -> Self {
        let [served, under_way] = [(); 2].map(|()| AtomicUsize::new(0));
        Self(Arc::new(OfConnection { shared, peer, is_encrypted, closing, served, under_way }))
    }

    /// How many requests the connection has made.
    pub(crate) fn served(&self) -> usize {
        self.0.served.load(Ordering::Relaxed)
    }

    /// Whether no request waits for its answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.under_way.load(Ordering::Relaxed) == 0
    }

    /// Answers a request. Whatever happens, there is an answer.
    pub(crate) async fn answer<B>(&self, request: Request<B>) -> Response<AxumBody>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<axum_core::BoxError>,
    {
        let begun = Instant::now();
        self.0.served.fetch_add(1, Ordering::Relaxed);
        self.0.under_way.fetch_add(1, Ordering::Relaxed);
        let _under_way = UnderWay(Arc::clone(&self.0));
        let policy = self.0.shared.policy();
        let mut request = Incoming::new(request.map(AxumBody::new), &self.0, policy);
        let id = Arc::clone(&request.id);
        let (policy, is_encrypted) = (Arc::clone(&request.policy), request.is_encrypted);
        let line = request.line();
        let method = line.method.clone();
        let answered = AssertUnwindSafe(self.0.answer(&mut request)).catch_unwind().await;
        let base = policy.listener.base_path.as_str();
        let mut response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(problem)) => problem.into_response(base, &id),
            Err(_) => {
                error!(request_id = %id, "the handler of a route panicked");
                Problem::new(Kind::Internal, "the host has a fault, which its log describes")
                    .into_response(base, &id)
            }
        };
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::from_str(&id) {
            headers.insert(REQUEST_ID, id);
        }
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if is_encrypted {
            let year = HeaderValue::from_static("max-age=31536000");
            headers.insert(STRICT_TRANSPORT_SECURITY, year);
        }
        if self.0.closing.is_cancelled() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let metrics = self.0.shared.failures.metrics();
        let status = response.status().as_u16();
        metrics.request(method.as_str(), request.route, status).observe(begun.elapsed());
        if !line.is_quiet {
            line.log(response.status(), begun);
        }
        response
    }
}

/// What is logged of a request: nothing that could be a secret, so no query.
struct Line {
    listener: String,
    id: Arc<str>,
    peer: Peer,
    method: Method,
    path: String,
    is_quiet: bool,
}

impl Line {
    fn log(&self, status: StatusCode, begun: Instant) {
        let Self { listener, id, peer, method, path, .. } = self;
        let (status, milliseconds) = (status.as_u16(), begun.elapsed().as_millis() as u64);
        let path = event_host_core::event::quoted(path);
        if status >= 500 {
            info!(listener, request_id = %id, %peer, %method, path, status, milliseconds, "answered");
        } else {
            debug!(listener, request_id = %id, %peer, %method, path, status, milliseconds, "answered");
        }
    }
}

/// A request, and what is known of it before its route is.
struct Incoming {
    request: Option<Request<AxumBody>>,
    policy: Arc<Policy>,
    id: Arc<str>,
    peer: Peer,
    is_encrypted: bool,
    /// The route that it fits, once that is known.
    route: Option<&'static str>,
}

impl Incoming {
    fn new(mut request: Request<AxumBody>, connection: &OfConnection, policy: Arc<Policy>) -> Self {
        let (mut peer, mut is_encrypted) = (connection.peer, connection.is_encrypted);
        let proxies = &policy.listener.trusted_proxies;
        let mut id = None;
        if peer.is_trusted(proxies) {
            id = taken_over(request.headers());
            let said = Forwarded::read(request.headers(), proxies);
            peer = said.client.map_or(peer, Peer::Address);
            is_encrypted = said.is_encrypted.unwrap_or(is_encrypted);
            if let Some(host) = said.host.and_then(|host| HeaderValue::try_from(host).ok()) {
                request.headers_mut().insert(HOST, host);
            }
        }
        let id = id.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
        Self { request: Some(request), policy, id: id.into(), peer, is_encrypted, route: None }
    }

    fn line(&self) -> Line {
        let (method, path) = match &self.request {
            Some(request) => (request.method().clone(), request.uri().path().to_owned()),
            None => (Method::GET, String::new()),
        };
        let listener = &self.policy.listener;
        let below = path.strip_prefix(&listener.base_path).unwrap_or(&path);
        let is_quiet = matches!(below, "/livez" | "/healthz" | "/readyz" | "/metrics");
        let listener = listener.name.clone();
        Line { listener, id: Arc::clone(&self.id), peer: self.peer, method, path, is_quiet }
    }
}

/// An id that a trusted proxy gave the request, if it is a plain one.
fn taken_over(headers: &http::HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':');
    let fits = !id.is_empty() && id.len() <= LONGEST_ID && id.bytes().all(is_plain);
    fits.then(|| id.to_owned())
}

impl OfConnection {
    async fn answer(&self, incoming: &mut Incoming) -> Result<Response<AxumBody>, Problem> {
        let Some(request) = incoming.request.take() else {
            return Err(Problem::new(Kind::Internal, "the request is gone"));
        };
        let policy = &incoming.policy;
        let path = below_base(request.uri().path(), &policy.listener.base_path)
            .ok_or_else(|| no_such_path(request.uri()))?;
        let found = policy.paths.find(request.method(), path);
        let is_health = matches!(&found, Found::Route(spec, ..) if spec.part == Some(Part::Health));
        if !is_health {
            check_host(&request, &policy.listener)?;
            check_site(&request)?;
            check_coding(&request)?;
        }
        let (spec, handler, parameters) = match found {
            Found::Route(spec, handler, parameters) => (spec, handler, parameters),
            Found::Nothing => return Err(no_such_path(request.uri())),
            Found::OtherMethods(allowed) => {
                let detail =
                    format!("{} is not taken at this path: use {allowed}", request.method());
                let problem = Problem::new(Kind::Method, detail);
                return Err(match HeaderValue::try_from(allowed) {
                    Ok(allowed) => problem.header(ALLOW, allowed),
                    Err(_) => problem,
                });
            }
        };
        incoming.route = Some(spec.path);
        let caller = self.caller(&request, spec, policy, incoming.peer)?;
        let (parts, body) = request.into_parts();
        let tenant = tenant(&parts, spec, &caller, policy)
            .inspect_err(|_| self.shared.failures.refused("tenant"))?;
        let call = Call {
            parts,
            body: Body::new(body),
            caller,
            tenant,
            request_id: Arc::clone(&incoming.id),
            peer: incoming.peer,
            is_encrypted: incoming.is_encrypted,
            listener: Arc::clone(&policy.listener),
            parameters,
            tokens: Arc::clone(&policy.tokens),
            failures: Arc::clone(&self.shared.failures),
        };
        let answer: BoxFuture<'_, _> = handler(call);
        answer.await
    }

    /// Who sent a request, if that one may use the route.
    fn caller(
        &self,
        request: &Request<AxumBody>,
        spec: &Spec,
        policy: &Policy,
        peer: Peer,
    ) -> Result<Caller, Problem> {
        let token = bearer(request.headers());
        let authenticate =
            |token: &str| call::authenticate(token, &policy.tokens, &self.shared.failures, peer);
        if spec.access == Access::Open {
            // What is open to all tells more to some: it is no place to try tokens at.
            let known = token.ok().flatten().and_then(|token| authenticate(token).ok());
            return Ok(known.unwrap_or_else(Caller::stranger));
        }
        if spec.access == Access::Own {
            // Such a route may take other credentials at the same place. Wrong ones are its
            // own matter.
            let known =
                token.ok().flatten().map(|token| policy.tokens.find(token, jiff::Timestamp::now()));
            return Ok(match known {
                Some(crate::token::Found::Valid(token)) => Caller::of_token(token),
                _ => Caller::stranger(),
            });
        }
        let caller = match token? {
            Some(token) => authenticate(token)?,
            None if !policy.listener.anonymous.is_empty() => {
                Caller::anonymous(policy.listener.anonymous.clone())
            }
            None => {
                return Err(call::unauthenticated(
                    "no token came with the request: send one in `Authorization: Bearer`",
                ));
            }
        };
        if let Access::Roles(roles) = spec.access
            && !caller.has_one_of(roles)
        {
            if caller.token().is_none() {
                return Err(call::unauthenticated(
                    "this takes a token: send one in `Authorization: Bearer`",
                ));
            }
            let roles: Vec<_> = roles.iter().map(|role| format!("`{role}`")).collect();
            let detail = format!(
                "the token `{}` may not do this: use one with the role {}",
                caller.name(),
                roles.join(" or ")
            );
            self.shared.failures.refused("role");
            return Err(Problem::new(Kind::Forbidden, detail));
        }
        Ok(caller)
    }
}

/// The path below the listener's base path.
fn below_base<'a>(path: &'a str, base: &str) -> Option<&'a str> {
    let below = path.strip_prefix(base)?;
    if below.is_empty() { Some("/") } else { below.starts_with('/').then_some(below) }
}

fn no_such_path(uri: &Uri) -> Problem {
    let path = event_host_core::event::quoted(uri.path());
    Problem::new(Kind::NotFound, format!("there is nothing at {path} here"))
}

/// Whose things a request is about.
fn tenant(
    parts: &Parts,
    spec: &Spec,
    caller: &Caller,
    policy: &Policy,
) -> Result<Option<Tenant>, Problem> {
    if !spec.by_tenant {
        return Ok(None);
    }
    let mut named = call::query(parts).filter(|(name, _)| name == "tenant").map(|(_, value)| value);
    let (named, another) = (named.next(), named.next());
    if another.is_some() {
        return Err(Problem::new(Kind::InvalidRequest, "`tenant` came twice: name one"));
    }
    let Some(named) = named else {
        return Ok(match caller.scope() {
            Scope::All => None,
            Scope::One(own) => Some(own.clone()),
        });
    };
    // One that is not the caller's is told in the words of one that is not there.
    let no_such = || {
        let name = event_host_core::event::quoted(&named);
        Problem::new(Kind::NotFound, format!("there is no tenant {name}"))
    };
    let tenant: Tenant = named.parse().map_err(|_| no_such())?;
    let is_known =
        tenant.is_none() || policy.tenants.as_ref().is_none_or(|tenants| tenants.contains(&tenant));
    if is_known && caller.reaches(&tenant) { Ok(Some(tenant)) } else { Err(no_such()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_the_base_path_or_there_is_nothing() {
        for (path, base, below) in [
            ("/livez", "", Some("/livez")),
            ("/host/livez", "/host", Some("/livez")),
            ("/host", "/host", Some("/")),
            ("/hostile/livez", "/host", None),
            ("/livez", "/host", None),
        ] {
            assert_eq!(below_base(path, base), below, "{path} {base}");
        }
    }
}
