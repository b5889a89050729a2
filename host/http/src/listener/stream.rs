//! The bytes of a connection, whatever carries them: what was read too much comes first, and
//! a peer that takes nothing ends the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A peer that takes nothing of its answer for so long is given up.
const STALLED: Duration = Duration::from_secs(30);

/// What a connection is made of.
trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// The bytes of a connection.
pub(crate) struct Stream {
    transport: Box<dyn Transport>,
    /// Read already.
    first: Bytes,
    /// Runs while the peer takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    pub(crate) fn new(transport: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self { transport: Box::new(transport), first: Bytes::new(), stalled: None }
    }

    /// Has these bytes read before what is left.
    pub(crate) fn unread(&mut self, bytes: Bytes) {
        if self.first.is_empty() {
            self.first = bytes;
        } else {
            let left = std::mem::take(&mut self.first);
            self.first = [bytes, left].concat().into();
        }
    }

    /// Whether bytes were given back.
    pub(crate) fn has_unread(&self) -> bool {
        !self.first.is_empty()
    }

    /// Notes whether the peer took something; fails if it took nothing for too long.
    fn watched<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let alarm = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(STALLED)));
        match alarm.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.transport).poll_read(cx, buffer);
        }
        let some = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first[..some]);
        self.first.advance(some);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write(cx, bytes);
        self.watched(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.transport).poll_flush(cx);
        self.watched(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.transport).poll_shutdown(cx);
        self.watched(cx, shut)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write_vectored(cx, parts);
        self.watched(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }
}
