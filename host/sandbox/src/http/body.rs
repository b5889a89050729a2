//! What is sent and received, counted: heads and bodies of requests and answers.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use wasmtime_wasi_http::{Error, WasiBody};

use super::meter::Meter;
use crate::settings::Target;

/// What the line and the fields of a request's head take, in bytes.
pub(super) fn request_head_bytes<T>(request: &Request<T>) -> usize {
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let line = request.method().as_str().len() + path + "  HTTP/1.1\r\n\r\n".len();
    line + field_bytes(request.headers())
}

/// The same of an answer.
pub(super) fn response_head_bytes<T>(answer: &Response<T>) -> usize {
    let reason = answer.status().canonical_reason().unwrap_or_default();
    "HTTP/1.1 200 \r\n\r\n".len() + reason.len() + field_bytes(answer.headers())
}

/// What header fields take as they are sent, in bytes.
fn field_bytes(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len()).sum()
}

/// How long a request's body is, as its head says.
pub(super) fn content_length<T>(request: &Request<T>) -> Option<u64> {
    request.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Bytes that were written of a body that is longer than it says.
pub(super) type Overrun = Arc<OnceLock<u64>>;

/// A body that must be as long as it says. Its end goes on only once it is known to be
/// the end: a connection that has sent as much as was said takes no more, and the server
/// would have a body that was cut short without a sign.
pub(super) struct Measured {
    body: WasiBody,
    length: u64,
    written: u64,
    /// The end, until nothing comes after it.
    end: Option<Frame<Bytes>>,
    overrun: Overrun,
}

impl Measured {
    pub(super) fn new(body: WasiBody, length: u64, overrun: Overrun) -> Self {
        Self { body, length, written: 0, end: None, overrun }
    }
}

impl Body for Measured {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        loop {
            let frame = match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(None) => return Poll::Ready(this.end.take().map(Ok)),
                other => return other,
            };
            // Nothing follows a body of a length that is said: trailers go with pieces.
            let Some(data) = frame.data_ref().filter(|data| !data.is_empty()) else { continue };
            this.written = this.written.saturating_add(data.len() as u64);
            if this.written > this.length {
                let written = *this.overrun.get_or_init(|| this.written);
                return Poll::Ready(Some(Err(Error::HttpRequestBodySize(Some(written)))));
            }
            if this.written < this.length {
                return Poll::Ready(Some(Ok(frame)));
            }
            this.end = Some(frame);
        }
    }
}

/// A body that counts.
pub(super) struct Metered {
    body: WasiBody,
    meter: Arc<Meter>,
    target: String,
    deadline: Pin<Box<Sleep>>,
    pause: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl Metered {
    pub(super) fn new(
        body: WasiBody,
        meter: &Arc<Meter>,
        target: &Target,
        deadline: Instant,
    ) -> Self {
        let (meter, target) = (Arc::clone(meter), target.to_string());
        Self { body, meter, target, deadline: Box::pin(sleep_until(deadline)), pause: None }
    }

    pub(super) fn with_pauses_of_at_most(mut self, pause: Option<Duration>) -> Self {
        self.pause = pause.map(|pause| (pause, Box::pin(sleep_until(after(pause)))));
        self
    }
}

/// Kept representable, whatever the guest asks for.
fn after(pause: Duration) -> Instant {
    Instant::now() + pause.min(Duration::from_secs(86_400))
}

impl Body for Metered {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        let broken_off = this.meter.end.is_cancelled();
        match Pin::new(&mut this.body).poll_frame(cx) {
            _ if broken_off => Poll::Ready(Some(Err(Error::ConnectionTerminated))),
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len)
                    + frame.trailers_ref().map_or(0, field_bytes);
                if !this.meter.bytes(bytes) {
                    return Poll::Ready(Some(Err(Error::HttpResponseBodySize(None))));
                }
                if let Some((pause, sleep)) = &mut this.pause {
                    sleep.as_mut().reset(after(*pause));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            // A connection that was ended by the clock looks like a broken one.
            Poll::Ready(Some(Err(_))) if Instant::now() >= this.deadline.deadline() => {
                this.meter.timed_out(&this.target);
                Poll::Ready(Some(Err(Error::HttpResponseTimeout)))
            }
            Poll::Pending => {
                if this.deadline.as_mut().poll(cx).is_ready() {
                    this.meter.timed_out(&this.target);
                    return Poll::Ready(Some(Err(Error::HttpResponseTimeout)));
                }
                if let Some((_, sleep)) = &mut this.pause
                    && sleep.as_mut().poll(cx).is_ready()
                {
                    return Poll::Ready(Some(Err(Error::ConnectionReadTimeout)));
                }
                Poll::Pending
            }
            other => other,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
