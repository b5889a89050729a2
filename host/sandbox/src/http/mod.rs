//! `wasi:http/outgoing-handler`: requests to the hosts that are granted.
//!
//! It promises that a request goes where [`HttpPolicy`] allows and nowhere else,
//! whatever the guest writes and whatever a name server answers; that each one
//! carries a key by which its receiver can tell a repetition; and that an
//! attempt sends, receives and waits no more than its limits say. A guest
//! follows redirects itself, so that each is a request like any other. What is
//! still open when an attempt ends is broken off.

mod body;
mod client;
mod meter;
#[cfg(test)]
mod tests;
mod tls;

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method, Request, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};
use wasmtime::component::ResourceTable;
use wasmtime_wasi_http::p2::bindings::http::types::ErrorCode;
use wasmtime_wasi_http::{
    Error, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks,
};

pub(crate) use client::Client;
use client::Exchange;
use meter::Meter;

use super::call_input::CallInput;
use super::ending::Abort;
use super::fair_semaphore::{Claim, HandlerId};
use super::guest_log::{GuestLog, toml_string};
use super::settings::{HttpPolicy, Limits, Target};
use event_host_core::event::{LogEvent, Tenant};
use event_host_metrics::{Denied, GuestHttp, HandlerMetrics};

/// Bytes that a guest may hand over at once of a request's body. Bounds what the
/// host holds for a body that is not read.
pub(super) const CHUNK_BYTES: usize = 16 << 10;

/// Bytes of the headers of one request.
const HEADER_BYTES: usize = 32 << 10;

/// The longest key; receivers commonly take no longer one.
const KEY_BYTES: usize = 255;

/// What stays as it is in a key; a `:` would be taken for the end of a part.
const KEY_ESCAPES: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The way out for one handler's requests: its policy and limits, and the client of all
/// handlers.
#[derive(Debug)]
pub(super) struct Egress {
    handler: String,
    policy: HttpPolicy,
    limits: Limits,
    client: Arc<Client>,
    metrics: HandlerMetrics,
}

impl Egress {
    pub(super) fn new(
        handler: &str,
        policy: HttpPolicy,
        limits: Limits,
        client: Arc<Client>,
    ) -> Self {
        let metrics = HandlerMetrics::default();
        Self { handler: handler.to_owned(), policy, limits, client, metrics }
    }

    /// The same, counted.
    pub(super) fn counted(self, metrics: HandlerMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// Counts a request that was not granted.
    fn denied(&self) {
        self.metrics.denied(Denied::Http);
        self.metrics.requested(GuestHttp::Denied, None);
    }
}

/// The list that `http` is to hold, besides what it holds already.
fn toml_list(rule: &impl std::fmt::Display) -> String {
    format!("[{}]", toml_string(&rule.to_string()))
}

/// The host's state of a guest's HTTP.
pub(super) struct Http {
    ctx: WasiHttpCtx,
    hooks: Hooks,
}

struct Hooks {
    egress: Arc<Egress>,
    log: Arc<GuestLog>,
    attempt: Option<Requests>,
}

/// The requests of the attempt that is under way.
struct Requests {
    /// What names the event that is handled; empty for a handler that has no use
    /// for it.
    key: String,
    tenant: Tenant,
    /// Requests so far that change something.
    changes: u32,
    /// Made with the first request: most events cause none.
    meter: Option<Arc<Meter>>,
}

impl Http {
    pub(super) fn new(egress: Arc<Egress>, log: Arc<GuestLog>) -> Self {
        let mut ctx = WasiHttpCtx::new();
        ctx.set_field_size_limit(HEADER_BYTES);
        Self { ctx, hooks: Hooks { egress, log, attempt: None } }
    }

    /// Begins an attempt.
    pub(super) fn begin(&mut self, input: &CallInput<'_>) {
        let granted = !self.hooks.egress.policy.is_empty();
        let key = if granted { key_of(input) } else { String::new() };
        let tenant = input.tenant.clone();
        self.hooks.attempt = Some(Requests { key, tenant, changes: 0, meter: None });
    }

    /// What the linked functions work on, with the instance's table of resources.
    pub(super) fn view<'a>(&'a mut self, table: &'a mut ResourceTable) -> WasiHttpCtxView<'a> {
        let Self { ctx, hooks } = self;
        WasiHttpCtxView { hooks, table, ctx }
    }

    /// Ends the requests that the attempt left open.
    pub(super) fn end(&mut self) {
        if let Some(meter) = self.hooks.attempt.take().and_then(|attempt| attempt.meter) {
            meter.end.cancel();
        }
    }

    /// How many requests the attempt has made.
    pub(super) fn requests(&self) -> usize {
        let meter = self.hooks.attempt.as_ref().and_then(|attempt| attempt.meter.as_ref());
        meter.map_or(0, |meter| meter.requests())
    }

    /// Why one of its requests ended the attempt, if one did.
    pub(super) fn abort(&self) -> Option<&Abort> {
        self.hooks.attempt.as_ref()?.meter.as_ref()?.abort()
    }
}

type SendResult =
    Result<(Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>), Error>;

impl WasiHttpHooks for Hooks {
    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = SendResult> + Send> {
        match self.prepare(request, options.unwrap_or_default()) {
            Ok((exchange, request)) => Box::new(exchange.run(request)),
            Err(error) => Box::new(std::future::ready(Err(error))),
        }
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK_BYTES
    }

    // By default each of these is a warning: other people's servers would fill
    // the host's log. The guest sees the error.

    fn p2_error_from_hyper(&mut self, error: &hyper::Error) -> ErrorCode {
        tracing::debug!(handler = self.egress.handler, "HTTP: {error}");
        if error.is_incomplete_message() {
            ErrorCode::HttpResponseIncomplete
        } else {
            ErrorCode::HttpProtocolError
        }
    }

    fn p2_error_from_connect(&mut self, error: &std::io::Error) -> ErrorCode {
        tracing::debug!(handler = self.egress.handler, "HTTP: {error}");
        ErrorCode::ConnectionRefused
    }

    fn p2_error_from_tls(&mut self, error: &std::io::Error) -> ErrorCode {
        tracing::debug!(handler = self.egress.handler, "HTTP: {error}");
        ErrorCode::TlsProtocolError
    }
}

impl Hooks {
    /// Checks a request as far as it can be without looking its host up.
    fn prepare(
        &mut self,
        mut request: Request<WasiBody>,
        options: RequestOptions,
    ) -> Result<(Exchange, Request<WasiBody>), Error> {
        let attempt = self.attempt.as_mut().ok_or(Error::HttpRequestDenied)?;
        let limits = &self.egress.limits;
        let meter = attempt.meter.get_or_insert_with(|| Arc::new(Meter::new(limits)));
        let meter = Arc::clone(meter);
        if !meter.request() {
            return Err(Error::ConnectionLimitReached);
        }
        // It would make a tunnel of a connection.
        if request.method() == Method::CONNECT {
            return Err(Error::HttpRequestMethodInvalid);
        }
        let target = Target::of(request.uri()).ok_or(Error::HttpRequestUriInvalid)?;
        let egress = &self.egress;
        if !egress.policy.allows(&target) {
            egress.denied();
            self.log.denied(&format!("HTTP to {target}"), "http", &toml_list(&target));
            return Err(Error::HttpRequestDenied);
        }
        attempt.mark(&mut request);
        let handler_id =
            HandlerId { tenant: attempt.tenant.clone(), handler: egress.handler.clone() };
        let claim =
            Claim { handler_id: Arc::new(handler_id), wanted: [1], most: limits.http_connections };
        let (egress, log) = (Arc::clone(egress), Arc::clone(&self.log));
        Ok((Exchange { egress, log, target, meter, options, claim }, request))
    }
}

impl Requests {
    /// Gives a request that changes something its key, unless it has one.
    ///
    /// Each such request of an attempt has another one, because a receiver drops
    /// what comes under a key that it has seen; and a handler that does the same
    /// in each attempt sends the same keys again.
    fn mark(&mut self, request: &mut Request<WasiBody>) {
        let method = request.method();
        if method.is_safe() || request.headers().contains_key(IDEMPOTENCY_KEY) {
            return;
        }
        self.changes = self.changes.saturating_add(1);
        let key = match self.changes {
            1 => self.key.clone(),
            number => format!("{}:{number}", self.key),
        };
        // A key is of printable ASCII.
        if let Ok(key) = HeaderValue::try_from(key) {
            request.headers_mut().insert(IDEMPOTENCY_KEY, key);
        }
    }
}

/// Names what is handled for this group: `GROUP:SOURCE:ID` for an event, as the
/// source is a part of what identifies it. What would be too long is a digest, and
/// so is what names several events: the same ones in the same order.
fn key_of(input: &CallInput<'_>) -> String {
    let group = input.group.as_str();
    let named = |event: &&LogEvent| {
        let [source, id] = [&event.event.source, &event.event.id]
            .map(|part| utf8_percent_encode(part, KEY_ESCAPES).to_string());
        format!("{source}:{id}")
    };
    let key = match input.events {
        [event] => format!("{group}:{}", named(event)),
        events => events.iter().map(named).collect::<Vec<_>>().join("\n"),
    };
    // What follows for later requests has room too.
    if input.events.len() == 1 && key.len() + ":4294967295".len() <= KEY_BYTES {
        return key;
    }
    let digest = Sha256::digest(key);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let kind = if input.events.len() == 1 { "sha256" } else { "batch" };
    format!("{group}:{kind}:{hex}")
}
