//! What is answered to a request that is refused: a problem as RFC 9457 has it.
//!
//! One [`Kind`] a cause, each with a status, a stable name and what its sender should do;
//! docs/http.md has the same table. The sentence of a [`Problem`] says what is wrong and
//! what would be right. It is shown to whoever sent the request: no secret, and nothing of
//! another tenant, belongs in it.

use std::time::Duration;

use axum_core::body::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

/// The content type of a problem.
pub const CONTENT: &str = "application/problem+json";

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $status:ident, $slug:literal, $title:literal, $sender:literal;)*) => {
        /// Why a request is refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The status of the answer.
            #[must_use]
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$kind => StatusCode::$status,)* }
            }

            /// Its name, which never changes: the end of the problem's `type`.
            #[must_use]
            pub const fn slug(self) -> &'static str {
                match self { $(Self::$kind => $slug,)* }
            }

            /// Its title.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$kind => $title,)* }
            }

            /// What the sender should do.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$kind => $sender,)* }
            }
        }
    };
}

kinds! {
    /// What came is no event, or an event with a mistake in it.
    InvalidEvent = BAD_REQUEST, "invalid-event", "No valid event",
        "Do not repeat it: correct the event.";
    /// The request itself has a mistake in it.
    InvalidRequest = BAD_REQUEST, "invalid-request", "No valid request",
        "Do not repeat it: correct the request.";
    /// No token, or one that the host does not know.
    Unauthenticated = UNAUTHORIZED, "unauthenticated", "Not authenticated",
        "Send a valid token in `Authorization: Bearer`.";
    /// The signature of a webhook is wrong.
    Signature = UNAUTHORIZED, "signature", "Wrong signature",
        "Sign the bytes that are sent, with the secret that the source has.";
    /// The signature of a webhook is too old, or of the future.
    StaleSignature = UNAUTHORIZED, "stale-signature", "Signature outside of its time",
        "Sign anew, with a clock that is right.";
    /// The caller may not do this.
    Forbidden = FORBIDDEN, "forbidden", "Not allowed",
        "Use a token that has the role.";
    /// A page of another site had a browser send the request.
    CrossSite = FORBIDDEN, "cross-site", "Request from another site",
        "Send the request from the host's own pages, or without a browser.";
    /// There is nothing at this path, or it is not the caller's.
    NotFound = NOT_FOUND, "not-found", "Not found",
        "Check the path and the names in it.";
    /// The path takes other methods.
    Method = METHOD_NOT_ALLOWED, "method", "Method not allowed",
        "Use a method of the header `Allow`.";
    /// The request did not arrive in time.
    TooSlow = REQUEST_TIMEOUT, "too-slow", "Request too slow",
        "Repeat it, with the same ids.";
    /// The source takes nothing any more.
    Retired = GONE, "retired", "Source retired",
        "Send nothing any more.";
    /// A body, an event or a batch is above its limit.
    TooLarge = PAYLOAD_TOO_LARGE, "too-large", "Too large",
        "Send less at once.";
    /// A format, charset or coding that is not taken.
    Unsupported = UNSUPPORTED_MEDIA_TYPE, "unsupported", "Format not supported",
        "Send one of the formats that the answer names.";
    /// The name of the host is not one of the listener's.
    WrongHost = MISDIRECTED_REQUEST, "wrong-host", "Not the name of this host",
        "Use an address, or a name that the listener's `hosts` has.";
    /// An id is there already with another content.
    IdReused = UNPROCESSABLE_ENTITY, "id-reused", "Id used for another event",
        "Do not repeat it: give each event an id of its own.";
    /// A limit of the token, the source, the tenant or the address.
    Rate = TOO_MANY_REQUESTS, "rate", "Too many",
        "Wait as long as `Retry-After` says, then repeat it.";
    /// A fault of the host.
    Internal = INTERNAL_SERVER_ERROR, "internal", "Fault of the host",
        "Repeat it with growing waits; tell the operator the request's id.";
    /// What the host can hold at once is full.
    Busy = SERVICE_UNAVAILABLE, "busy", "Busy",
        "Wait as long as `Retry-After` says, then repeat it with the same ids.";
    /// The database does not answer.
    Database = SERVICE_UNAVAILABLE, "database", "Database not available",
        "Wait as long as `Retry-After` says, then repeat it with the same ids.";
    /// The host stops.
    Draining = SERVICE_UNAVAILABLE, "draining", "Stopping",
        "Repeat it with the same ids, at another host or once this one is back.";
    /// No room is left for events.
    Full = INSUFFICIENT_STORAGE, "full", "No room left",
        "Wait long before it is repeated.";
}

impl Kind {
    /// The kind of a slug.
    #[must_use]
    pub fn of_slug(slug: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.slug() == slug)
    }
}

/// Why a request is refused, told to whoever sent it.
#[derive(Debug, Clone)]
pub struct Problem {
    kind: Kind,
    detail: String,
    fields: Vec<(&'static str, Value)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    retry_after: Option<Duration>,
}

impl Problem {
    /// A problem, with one sentence that says what is wrong and what would be right. Those
    /// that pass by themselves tell to wait for 1 to 5 s, unless [`Problem::retry_after`]
    /// says otherwise.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let passes = matches!(kind, Kind::Busy | Kind::Database | Kind::Draining);
        // Spread, so that senders do not come back all at once.
        let retry_after = passes.then(|| Duration::from_secs(fastrand::u64(1..=5)));
        Self { kind, detail: detail.into(), fields: Vec::new(), headers: Vec::new(), retry_after }
    }

    /// Adds the place of the event in its batch, from 0.
    #[must_use]
    pub fn event(self, index: usize) -> Self {
        self.field("event", index)
    }

    /// Adds the attribute that is wrong.
    #[must_use]
    pub fn attribute(self, name: &str) -> Self {
        self.field("attribute", name)
    }

    /// Adds the limit that was met.
    #[must_use]
    pub fn limit(self, limit: u64) -> Self {
        self.field("limit", limit)
    }

    /// Adds how long to wait; told in whole seconds, 1 at least.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Adds a member of the problem's JSON.
    #[must_use]
    pub fn field(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Adds a header of the answer.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its sentence.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The answer. `base` is what all paths of the listener begin with.
    #[must_use]
    pub fn into_response(self, base: &str, request_id: &str) -> Response<Body> {
        let retry_after = self.retry_seconds();
        let mut answer = self.as_json(base);
        if let Value::Object(answer) = &mut answer {
            answer.insert("request_id".to_owned(), request_id.into());
        }
        let mut response = Response::new(Body::from(answer.to_string()));
        *response.status_mut() = self.kind.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        response
    }

    /// The whole answer as bytes of HTTP/1.1, for a connection that ends with it and whose
    /// request was never whole.
    pub(crate) fn as_text(&self) -> String {
        let (status, body) = (self.kind.status(), self.as_json("").to_string());
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: {CONTENT}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    fn retry_seconds(&self) -> Option<u64> {
        self.retry_after.map(|wait| wait.as_secs_f64().ceil().max(1.0) as u64)
    }

    fn as_json(&self, base: &str) -> Value {
        let mut answer = json!({
            "type": format!("{base}/problems/{}", self.kind.slug()),
            "title": self.kind.title(),
            "status": self.kind.status().as_u16(),
            "detail": self.detail,
        });
        if let Value::Object(answer) = &mut answer {
            let fields = self.fields.iter();
            answer.extend(fields.map(|(name, value)| ((*name).to_owned(), value.clone())));
            if let Some(seconds) = self.retry_seconds() {
                answer.insert("retry_after".to_owned(), seconds.into());
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_kinds_have_one_slug_and_each_is_found_by_it() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_slug(kind.slug()), Some(*kind));
        }
        assert_eq!(Kind::of_slug("no-such"), None);
    }

    #[test]
    fn a_wait_is_told_in_whole_seconds_that_suffice() {
        for (wait, told) in [(0, "1"), (999, "1"), (1000, "1"), (1001, "2"), (60_000, "60")] {
            let problem =
                Problem::new(Kind::Rate, "slower").retry_after(Duration::from_millis(wait));
            let response = problem.into_response("", "r");
            assert_eq!(response.headers()[RETRY_AFTER], told);
        }
        let busy = Problem::new(Kind::Busy, "full").into_response("", "r");
        let seconds = busy.headers()[RETRY_AFTER].to_str().unwrap().parse::<u64>().unwrap();
        assert!((1..=5).contains(&seconds), "{seconds}");
    }
}
