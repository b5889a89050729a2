//! The handshake of webhooks: who may send here, and how much.
//!
//! The headers are those of "HTTP 1.1 Web Hooks for Event Delivery", version 1.0.2. An address
//! that a sender wants to be called back is never called: a host that calls what strangers
//! name can be made to attack others.

use http::header::{ACCEPT_ENCODING, ALLOW, HeaderMap, HeaderName, HeaderValue};

use crate::refusal::{Reason, Refusal};

const REQUEST_ORIGIN: &str = "webhook-request-origin";
const REQUEST_RATE: &str = "webhook-request-rate";
const REQUEST_CALLBACK: &str = "webhook-request-callback";
const ALLOWED_ORIGIN: HeaderName = HeaderName::from_static("webhook-allowed-origin");
const ALLOWED_RATE: HeaderName = HeaderName::from_static("webhook-allowed-rate");
const ACCEPT_POST: HeaderName = HeaderName::from_static("accept-post");

/// The formats that are asked for, as `Accept-Post` lists them.
pub const FORMATS: &str = "application/cloudevents+json, application/cloudevents-batch+json, */*";

/// The codings of bodies, as `Accept-Encoding` lists them.
pub const CODINGS: &str = "gzip, identity";

/// What a handshake says of its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The name that it gives.
    pub name: String,
    /// Whether it may send.
    pub is_allowed: bool,
    /// It asked to be called back, which never happens.
    pub wants_callback: bool,
}

/// Answers `OPTIONS`: the headers, for a status of 204, and what they mean for the log. The
/// permission is there for an origin that `origins` has, or `*`; without it the answer is a no.
/// `rate` is the limit in events a second.
#[must_use]
pub fn handshake(
    asked: &HeaderMap,
    origins: &[String],
    rate: Option<f64>,
) -> (HeaderMap, Option<Origin>) {
    let mut answer = HeaderMap::new();
    answer.insert(ALLOW, HeaderValue::from_static("POST, OPTIONS"));
    answer.insert(ACCEPT_POST, HeaderValue::from_static(FORMATS));
    answer.insert(ACCEPT_ENCODING, HeaderValue::from_static(CODINGS));
    let text = |name: &str| asked.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let Some(name) = text(REQUEST_ORIGIN).filter(|name| !name.is_empty()) else {
        return (answer, None);
    };
    let origin = Origin {
        name: name.to_owned(),
        is_allowed: is_allowed(name, origins),
        wants_callback: asked.contains_key(REQUEST_CALLBACK),
    };
    if origin.is_allowed
        && let Some(value) = asked.get(REQUEST_ORIGIN)
    {
        answer.insert(ALLOWED_ORIGIN, value.clone());
        // Per minute. What is asked for is granted as far as there is no limit below it.
        let asked = text(REQUEST_RATE).and_then(|rate| rate.parse::<u64>().ok());
        let limit = rate.map(|rate| (rate * 60.0) as u64);
        let granted = match (asked, limit) {
            (Some(asked), Some(limit)) => Some(asked.min(limit)),
            (asked, limit) => asked.or(limit),
        };
        let granted = granted
            .map_or(HeaderValue::from_static("*"), |granted| HeaderValue::from(granted.max(1)));
        answer.insert(ALLOWED_RATE, granted);
    }
    (answer, Some(origin))
}

/// Whether a request may be sent here, where its origin must be one of those that are allowed.
///
/// # Errors
/// When its headers name no such origin.
pub fn may_send(headers: &HeaderMap, origins: &[String]) -> Result<(), Refusal> {
    let named = [REQUEST_ORIGIN, "origin"].into_iter().find_map(|name| headers.get(name));
    let name = named.and_then(|value| value.to_str().ok()).map(str::trim);
    match name {
        Some(name) if is_allowed(name, origins) => Ok(()),
        _ => Err(Refusal::new(
            Reason::Forbidden,
            "the host takes events of named origins alone: name one that it allows in `WebHook-Request-Origin`",
        )),
    }
}

/// Names of hosts are the same in any case.
fn is_allowed(name: &str, origins: &[String]) -> bool {
    origins.iter().any(|origin| origin == "*" || origin.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn an_origin_that_is_allowed_is_told_so_with_its_rate() {
        let origins = ["eventemitter.example.com".to_owned()];
        for (rate, limit, granted) in [
            (None, None, "*"),
            (Some("120"), None, "120"),
            (None, Some(10.0), "600"),
            (Some("120"), Some(10.0), "120"),
            (Some("6000"), Some(10.0), "600"),
            (Some("often"), None, "*"),
        ] {
            let mut asked = asked(&[(REQUEST_ORIGIN, "EventEmitter.example.com")]);
            if let Some(rate) = rate {
                asked.insert(REQUEST_RATE, HeaderValue::from_static(rate));
            }
            let (answer, origin) = handshake(&asked, &origins, limit);
            assert_eq!(answer[ALLOWED_ORIGIN], "EventEmitter.example.com");
            assert_eq!(answer[ALLOWED_RATE], granted, "{rate:?} {limit:?}");
            assert_eq!(answer[ALLOW], "POST, OPTIONS");
            assert!(origin.unwrap().is_allowed);
        }
        let (answer, _) =
            handshake(&asked(&[(REQUEST_ORIGIN, "anybody")]), &["*".to_owned()], None);
        assert_eq!(answer[ALLOWED_ORIGIN], "anybody");
    }

    #[test]
    fn an_origin_that_is_not_allowed_gets_no_permission() {
        let callback = asked(&[
            (REQUEST_ORIGIN, "elsewhere.example.com"),
            (REQUEST_RATE, "100"),
            (REQUEST_CALLBACK, "https://elsewhere.example.com/confirm"),
        ]);
        for asked in [&callback, &HeaderMap::new()] {
            let (answer, origin) = handshake(asked, &["eventemitter.example.com".to_owned()], None);
            assert!(!answer.contains_key(ALLOWED_ORIGIN) && !answer.contains_key(ALLOWED_RATE));
            assert_eq!(answer[ALLOW], "POST, OPTIONS");
            assert!(answer.contains_key(ACCEPT_POST));
            assert!(origin.is_none_or(|origin| !origin.is_allowed && origin.wants_callback));
        }
    }

    #[test]
    fn a_request_names_its_origin_where_it_must() {
        let origins = ["a.example.com".to_owned()];
        may_send(&asked(&[(REQUEST_ORIGIN, "a.example.com")]), &origins).unwrap();
        may_send(&asked(&[("origin", "a.example.com")]), &origins).unwrap();
        for bad in [asked(&[]), asked(&[(REQUEST_ORIGIN, "b.example.com")])] {
            assert_eq!(may_send(&bad, &origins).unwrap_err().reason, Reason::Forbidden);
        }
    }
}
