//! `wasi:http/incoming-handler`: a component that answers HTTP requests, as a handler.
//!
//! An event goes in as a request and what becomes of it is read from the answer, within
//! this process: there is no socket and no server. [`request`] and [`response`] say what
//! means what and know nothing of wasmtime; this file makes the call. It promises that a
//! call ends when the guest's function does: one that traps or answers nothing keeps no
//! task waiting. A guest that has answered may go on, and is awaited, because what it writes and
//! emits until it returns belongs to the attempt.

mod binary;
mod request;
mod response;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::SystemTime;

use bytes::Bytes;
use http::response::Parts;
use http_body::Body as _;
use http_body_util::Full;
use tokio::sync::oneshot;
use tokio::task::unconstrained;
use wasmtime::Store;
use wasmtime::component::Resource;
use wasmtime_wasi_http::WasiHttpView as _;
use wasmtime_wasi_http::p2::bindings::Proxy;
use wasmtime_wasi_http::p2::bindings::http::types::{ErrorCode, Scheme};
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;
use wasmtime_wasi_http::p2::types::{HostIncomingRequest, HostResponseOutparam};

use self::response::{Body, Verdict};
use super::bindings::event_host::handler::outbox::{EmitError, Host as _};
use super::bindings::event_host::handler::types::{Failure, Retry};
use super::call_input::CallInput;
use super::ending::{Abort, size};
use super::imports::HostState;
use super::settings::{OPEN_RESOURCES, names};
use event_host_core::event::LogEvent;
use event_host_core::failure::FailureKind;

/// What the guest's function takes.
pub(super) type Arguments = (Resource<HostIncomingRequest>, Resource<HostResponseOutparam>);

/// What a guest hands over as its answer.
type GuestResponse = Result<http::Response<HyperOutgoingBody>, ErrorCode>;

/// Calls the guest with one event, and emits what its answer holds.
///
/// # Errors
/// When the attempt ended otherwise than by an answer.
pub(super) async fn call(
    store: &mut Store<HostState>,
    guest: &Proxy,
    input: &CallInput<'_>,
    event: &LogEvent,
) -> wasmtime::Result<Result<(), Failure>> {
    let (answer, answered) = oneshot::channel();
    let host = store.data_mut();
    let arguments = arguments(host, input, event, answer)?;
    let mut reading =
        Reading::new(answered, host.profile.limits.emit_total_bytes, host.limiter.answer());
    let (request, outparam) = arguments;
    let called = guest.wasi_http_incoming_handler().call_handle(&mut *store, request, outparam);
    reading.beside(called).await?;
    let host = store.data_mut();
    host.within_memory()?;
    match reading.end() {
        Some(Ok((Parts { status, headers, .. }, body))) => {
            act(host, response::verdict(status, &headers, body, SystemTime::now()))
        }
        Some(Err(code)) => {
            let code = format!("{code:?}");
            let code = code.strip_prefix("ErrorCode::").unwrap_or(&code);
            Ok(Err(retry(format!("answered with the error {code} of wasi:http"), None)))
        }
        None => Err(Abort::limit(
            FailureKind::NoAnswer,
            "returned without an answer: it set no response".to_owned(),
        )),
    }
}

/// Makes the resources that the guest is called with.
fn arguments(
    host: &mut HostState,
    input: &CallInput<'_>,
    event: &LogEvent,
    answer: oneshot::Sender<GuestResponse>,
) -> wasmtime::Result<Arguments> {
    let unwritable = |error: http::Error| {
        Abort::not_run(format!("the event cannot be written as an HTTP request: {error}"))
    };
    let request = request::request(event, input, &host.profile.http_path).map_err(unwritable)?;
    host.charge(request::bytes(&request))?;
    let request = request.map(|data| Full::new(Bytes::from(data)));
    let mut http = host.http();
    let request = http.new_incoming_request(Scheme::Http, request)?;
    Ok((request, http.new_response_outparam(answer)?))
}

/// Does what an answer says.
fn act(host: &mut HostState, verdict: Verdict) -> wasmtime::Result<Result<(), Failure>> {
    let bad = |text| Err(Abort::limit(FailureKind::BadAnswer, text));
    match verdict {
        Verdict::Done(messages) => {
            let several = messages.len() > 1;
            for (number, message) in (1_usize..).zip(messages) {
                let Err(error) = host.emit(message)? else { continue };
                let which = if several { format!("event {number} of ") } else { String::new() };
                return bad(match error {
                    EmitError::Invalid(why) => {
                        format!("{which}the answer holds what is no event: {why}")
                    }
                    EmitError::Denied(why) | EmitError::Other(why) => {
                        format!("{which}the answer cannot be emitted: {why}")
                    }
                });
            }
            Ok(Ok(()))
        }
        Verdict::Retry(reason, after) => {
            let after = after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
            Ok(Err(retry(reason, after)))
        }
        Verdict::Reject(reason) => Ok(Err(Failure::Reject(reason))),
        Verdict::Bad(why) => bad(why),
    }
}

fn retry(reason: String, after_ms: Option<u64>) -> Failure {
    Failure::Retry(Retry { reason, after_ms })
}

/// Whether the instance holds more than half of `OPEN_RESOURCES`, so that it is not used
/// again: code for hosts that make an instance for each request may drop none.
pub(super) fn is_crowded(host: &mut HostState) -> bool {
    host.resources.iter_mut().count() > OPEN_RESOURCES / 2
}

/// The answer, while the guest makes it.
struct Reading {
    /// `None` once the guest has set its answer, or dropped the outparam.
    answered: Option<oneshot::Receiver<GuestResponse>>,
    head: Option<Result<Parts, ErrorCode>>,
    stream: Option<HyperOutgoingBody>,
    body: Body,
    /// The most bytes that the body may have.
    most: usize,
    /// Bytes kept of the answer; they count for the instance's memory.
    counted: Arc<AtomicUsize>,
}

impl Reading {
    fn new(
        answered: oneshot::Receiver<GuestResponse>,
        most: usize,
        counted: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            answered: Some(answered),
            head: None,
            stream: None,
            body: Body::default(),
            most,
            counted,
        }
    }

    /// Reads beside the guest, which may wait until somebody takes what it writes, and no
    /// longer than the guest runs: only the guest writes an answer.
    async fn beside(
        &mut self,
        called: impl Future<Output = wasmtime::Result<()>>,
    ) -> wasmtime::Result<()> {
        let mut called = pin!(called);
        poll_fn(|cx| {
            let ended = called.as_mut().poll(cx)?;
            // Without it, tokio would at some point say that nothing is there, and what the
            // guest wrote last would be taken for missing.
            let read = poll_fn(|cx| self.read(cx));
            if let Poll::Ready(Err(over)) = pin!(unconstrained(read)).poll(cx) {
                return Poll::Ready(Err(over));
            }
            ended.map(Ok)
        })
        .await
    }

    /// Takes what is there.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<wasmtime::Result<()>> {
        if let Some(answered) = &mut self.answered {
            match Pin::new(answered).poll(cx) {
                Poll::Pending => return Poll::Pending,
                // The guest dropped what it was to answer with.
                Poll::Ready(Err(_)) => {}
                Poll::Ready(Ok(Err(code))) => self.head = Some(Err(code)),
                Poll::Ready(Ok(Ok(response))) => {
                    let (head, stream) = response.into_parts();
                    (self.head, self.stream) = (Some(Ok(head)), Some(stream));
                }
            }
            self.answered = None;
        }
        while let Some(stream) = &mut self.stream {
            match Pin::new(stream).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => self.stream = None,
                Poll::Ready(Some(Err(_))) => {
                    self.stream = None;
                    self.body.broken = Some("its body was broken off by the handler");
                }
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.take(&data)?;
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn take(&mut self, data: &[u8]) -> wasmtime::Result<()> {
        self.body.total = self.body.total.saturating_add(data.len());
        if self.body.total > self.most {
            return Err(Abort::limit(
                FailureKind::EmitLimit,
                format!(
                    "answered with a body of more than {}, {}",
                    size(self.most),
                    names::EMIT_TOTAL
                ),
            ));
        }
        let Some(Ok(Parts { status, headers, .. })) = &self.head else { return Ok(()) };
        let kept = response::kept_bytes(*status, headers);
        let room = kept.saturating_sub(self.body.kept.len()).min(data.len());
        self.body.kept.extend_from_slice(&data[..room]);
        self.counted.store(self.body.kept.capacity(), Ordering::Relaxed);
        Ok(())
    }

    /// What was read, once the guest has returned.
    fn end(mut self) -> Option<Result<(Parts, Body), ErrorCode>> {
        if self.stream.is_some() {
            self.body.broken = Some("its body was not finished when the handler returned");
        }
        Some(self.head?.map(|head| (head, self.body)))
    }
}
