//! One connection: its requests one after the other, its times, and its end.
//!
//! hyper counts the time for a request's head from the end of the answer before it, so that
//! a connection which nobody uses would end with it. Here an idle connection leaves hyper,
//! and enters it again with the first byte of its next request.
//!
//! An answer is never lost to a reset: after the last one the host says that nothing more
//! comes, and reads on for a moment what the peer still sends, which is thrown away. A
//! connection that is idle when its listener closes may send one more request for a moment,
//! since that may be on its way.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum_core::body::Body;
use bytes::BytesMut;
use futures_util::FutureExt as _;
use http::Response;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::stream::Stream;
use crate::problem::{Kind, Problem};
use crate::service::Service;

/// In this time the head of a request must have come.
pub(super) const HEAD_TIME: Duration = Duration::from_secs(10);

/// A connection without a request ends after this.
const IDLE: Duration = Duration::from_secs(75);

/// The most bytes of a request's head.
const HEAD_BYTES: usize = 32 * 1024;

/// The most bytes that are read ahead of a connection.
const BUFFER: usize = 64 * 1024;

/// An idle connection may send one more request so long after its listener closed.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// What a peer sends after its last answer is read and thrown away for so long.
const LINGER: Duration = Duration::from_secs(2);

/// Serves a connection to its end.
pub(super) async fn serve(mut stream: Stream, service: Service, closing: &CancellationToken) {
    let mut idle = IDLE;
    loop {
        if !stream.has_unread() && !first_byte(&mut stream, idle, closing).await {
            // Nothing was asked: nothing can be lost. A peer that is gone needs no end.
            let _ = stream.shutdown().await;
            return;
        }
        let served = service.served();
        let Ended { outcome, mut left, was_idle } =
            serve_until_idle(stream, &service, closing).await;
        let timed_out = matches!(&outcome, Err(why) if why.is_timeout());
        if timed_out && (!left.has_unread() || service.served() > served) {
            // hyper's time for a head runs from the previous answer, so this connection was
            // only idle. Bytes of a new head get the whole `HEAD_TIME`.
            idle = IDLE.saturating_sub(HEAD_TIME);
            stream = left;
            continue;
        }
        if timed_out {
            // A peer that is gone gets no answer.
            let _ = left.write_all(too_slow().as_bytes()).await;
        }
        end(left, was_idle).await;
        return;
    }
}

/// Waits for the first byte of a request. Whether it came.
async fn first_byte(stream: &mut Stream, idle: Duration, closing: &CancellationToken) -> bool {
    let mut bytes = BytesMut::with_capacity(1024);
    let came = tokio::select! {
        biased;
        read = stream.read_buf(&mut bytes) => matches!(read, Ok(length) if length > 0),
        () = tokio::time::sleep(idle) => false,
        () = last_request_time_over(closing) => false,
    };
    stream.unread(bytes.freeze());
    came
}

/// Waits until the listener closes and the time for a last request is over.
pub(super) async fn last_request_time_over(closing: &CancellationToken) {
    closing.cancelled().await;
    tokio::time::sleep(LAST_REQUEST).await;
}

/// How hyper's part of a connection ended.
struct Ended {
    outcome: hyper::Result<()>,
    left: Stream,
    was_idle: bool,
}

/// Has hyper serve the connection, until it ends or its next request does not come.
async fn serve_until_idle(stream: Stream, service: &Service, closing: &CancellationToken) -> Ended {
    let answering = service.clone();
    let answer = service_fn(move |request| {
        let service = answering.clone();
        async move { Ok::<Response<Body>, std::convert::Infallible>(service.answer(request).await) }
            .boxed()
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), answer);
    let mut was_idle = false;
    let first = tokio::select! {
        outcome = poll_fn(|cx| connection.poll_without_shutdown(cx)) => Some(outcome),
        () = last_request_time_over(closing) => None,
    };
    let outcome = match first {
        Some(outcome) => outcome,
        None => {
            was_idle = service.is_idle();
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    let parts = connection.into_parts();
    let mut left = parts.io.into_inner();
    left.unread(parts.read_buf);
    Ended { outcome, left, was_idle }
}

/// Ends a connection, so that its last answer arrives.
async fn end(mut stream: Stream, was_idle: bool) {
    if stream.shutdown().await.is_err() || was_idle {
        return;
    }
    let mut thrown_away = [0; 4096];
    let drain = async { while matches!(stream.read(&mut thrown_away).await, Ok(1..)) {} };
    // After `LINGER` the socket is closed, even if the peer still sends.
    let _ = tokio::time::timeout(LINGER, drain).await;
}

/// The answer to a request whose head did not come in time.
fn too_slow() -> String {
    let problem = Problem::new(
        Kind::TooSlow,
        format!(
            "the head of the request did not come within {} s: send it at once",
            HEAD_TIME.as_secs()
        ),
    );
    problem.as_text()
}
