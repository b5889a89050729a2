//! What is looked at in a request's head before its route is: the token, the name by which
//! the host was asked, and whether a page of another site sent it.

use std::convert::Infallible;
use std::net::IpAddr;

use axum_core::body::Body as AxumBody;
use futures_util::FutureExt as _;
use http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN, TRANSFER_ENCODING};
use http::{Request, Response};
use tower_http::csrf::{Csrf, CsrfLayer, ProtectionError};
use tower_layer::Layer as _;
use tower_service::Service as _;

use crate::call;
use crate::problem::{Kind, Problem};
use crate::settings::Listener;

/// The token of a request. Nothing else is understood in `Authorization`.
pub(crate) fn bearer(headers: &http::HeaderMap) -> Result<Option<&str>, Problem> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let wrong = || {
        call::unauthenticated("`Authorization` has no token: write `Authorization: Bearer TOKEN`")
    };
    if values.next().is_some() {
        return Err(call::unauthenticated("`Authorization` came twice: send it once"));
    }
    let (scheme, token) = value.to_str().ok().and_then(|v| v.split_once(' ')).ok_or_else(wrong)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(wrong());
    }
    Ok(Some(token))
}

/// Refuses a request that names the host by a name that is not its own: that of a page which
/// had its own name lead here, for example.
pub(crate) fn check_host(request: &Request<AxumBody>, listener: &Listener) -> Result<(), Problem> {
    let wrong = |detail: &str| Err(Problem::new(Kind::WrongHost, detail));
    let mut values = request.headers().get_all(HOST).iter();
    let host = match (request.uri().authority(), values.next(), values.next()) {
        (_, _, Some(_)) => return wrong("`Host` came twice: send it once"),
        (Some(authority), _, None) => authority.as_str(),
        (None, Some(host), None) => host.to_str().unwrap_or_default(),
        (None, None, None) => return wrong("no `Host` came with the request: send one"),
    };
    let name = host_name(host).to_ascii_lowercase();
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
    if bare.parse::<IpAddr>().is_ok() || name == "localhost" || listener.hosts.contains(&name) {
        return Ok(());
    }
    let name = event_host_core::event::quoted(&name);
    wrong(&format!(
        "{name} is no name of this host: its operator can add it to `hosts` of the listener"
    ))
}

/// Refuses a body in a transfer coding that the host does not undo: its bytes would be taken
/// for the data.
pub(crate) fn check_coding(request: &Request<AxumBody>) -> Result<(), Problem> {
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    if codings.all(|coding| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) {
        return Ok(());
    }
    let detail = "the body is in a transfer coding other than `chunked`: send it plainly, or packed by `Content-Encoding`";
    Err(Problem::new(Kind::InvalidRequest, detail))
}

/// A host without its port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => {
            // Else the colon is one of an IPv6 address.
            if name.contains(':') && !name.ends_with(']') { host } else { name }
        }
        _ => host,
    }
}

/// Refuses what a page of another site has a browser send.
pub(crate) fn check_site(request: &Request<AxumBody>) -> Result<(), Problem> {
    // Only browsers send either, and without both there is nothing to check.
    let has = |name: HeaderName| request.headers().contains_key(name);
    if !has(ORIGIN) && !has(HeaderName::from_static("sec-fetch-site")) {
        return Ok(());
    }
    let mut probe = Request::new(());
    *probe.method_mut() = request.method().clone();
    *probe.uri_mut() = request.uri().clone();
    *probe.headers_mut() = request
        .headers()
        .iter()
        .filter(|(name, _)| matches!(name.as_str(), "host" | "origin" | "sec-fetch-site"))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let mut layer: Csrf<Passes> = CsrfLayer::new().layer(Passes);
    let answer = layer.call(probe).now_or_never();
    let is_refused = match answer {
        Some(Ok(answer)) => answer.extensions().get::<ProtectionError>().is_some(),
        // It has nothing to wait for.
        _ => true,
    };
    if !is_refused {
        return Ok(());
    }
    let detail =
        "a page of another site sent this: send it from the host's own pages, or without a browser";
    Err(Problem::new(Kind::CrossSite, detail))
}

/// Stands for the host in [`check_site`].
#[derive(Clone)]
struct Passes;

impl tower_service::Service<Request<()>> for Passes {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::new(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_its_name_without_the_port() {
        for (host, name) in [
            ("localhost", "localhost"),
            ("localhost:8480", "localhost"),
            ("127.0.0.1:8480", "127.0.0.1"),
            ("[::1]:8480", "[::1]"),
            ("[::1]", "[::1]"),
            ("::1", "::1"),
            ("a.example:", "a.example"),
        ] {
            assert_eq!(host_name(host), name, "{host}");
        }
    }
}
