//! The body of a request: read to a limit, and not for ever.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum_core::body::Body as AxumBody;
use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, Sleep};

use crate::problem::{Kind, Problem};

/// How long a body may take, however small it is.
pub const BODY_TIME: Duration = Duration::from_secs(30);

/// A body that takes longer must have come with so many bytes a second.
pub const BODY_RATE: f64 = 4096.0;

/// So much room is made for a body before any of it has come, whatever its sender says.
const FIRST_ROOM: u64 = 64 * 1024;

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It comes too slowly.
    #[error("the body came too slowly: send it within 30 s, or with at least 4 KiB a second")]
    TooSlow,
    /// It ended before its end, or is not what HTTP says of a body.
    #[error("the body broke off before its end: send as much as `Content-Length` says")]
    Broken,
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        let kind = match error {
            BodyError::TooSlow => Kind::TooSlow,
            BodyError::Broken => Kind::InvalidRequest,
        };
        Self::new(kind, error.to_string())
    }
}

/// The body of a request. It fails once it comes too slowly.
#[derive(Debug)]
pub struct Body {
    inner: AxumBody,
    begun: Option<Instant>,
    received: u64,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Body {
    pub(crate) fn new(inner: AxumBody) -> Self {
        Self { inner, begun: None, received: 0, alarm: None }
    }

    /// A body that is there already, for tests.
    #[must_use]
    pub fn of(bytes: impl Into<Bytes>) -> Self {
        Self::new(AxumBody::from(bytes.into()))
    }

    /// How many bytes its sender says that it has.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.inner.size_hint().exact()
    }

    /// Reads all of it. What is longer than `limit` bytes is refused before it is read, if
    /// its sender says so, and as soon as it is seen otherwise.
    ///
    /// # Errors
    /// `too-large`, `too-slow`, and `invalid-request` for a body that breaks off.
    pub async fn read(mut self, limit: usize) -> Result<Bytes, Problem> {
        let too_large = || {
            Problem::new(
                Kind::TooLarge,
                format!(
                    "the body has more than {limit} bytes, which is the most: send less at once"
                ),
            )
            .limit(limit as u64)
        };
        let said = self.inner.size_hint();
        if said.lower() > limit as u64 {
            return Err(too_large());
        }
        let mut bytes = BytesMut::with_capacity(said.lower().min(FIRST_ROOM) as usize);
        while let Some(frame) = self.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            if data.len() > limit - bytes.len() {
                return Err(too_large());
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes.freeze())
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            return Poll::Ready(match frame {
                Some(Ok(frame)) => {
                    this.received += frame.data_ref().map_or(0, |data| data.len() as u64);
                    Some(Ok(frame))
                }
                Some(Err(_)) => Some(Err(BodyError::Broken)),
                None => None,
            });
        }
        let begun = *this.begun.get_or_insert_with(Instant::now);
        loop {
            let by_rate = Duration::from_secs_f64(this.received as f64 / BODY_RATE);
            let deadline = begun + by_rate.max(BODY_TIME);
            let alarm =
                this.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
            ready!(alarm.as_mut().poll(cx));
            if deadline <= Instant::now() {
                return Poll::Ready(Some(Err(BodyError::TooSlow)));
            }
            // More has come since it was set.
            alarm.as_mut().reset(deadline);
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt as _, stream};

    use super::*;

    /// A body of pieces, each of which comes after a wait.
    fn trickle(pieces: usize, size: usize, wait: Duration) -> Body {
        let pieces = stream::iter(0..pieces).then(move |_| async move {
            tokio::time::sleep(wait).await;
            Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; size]))
        });
        Body::new(AxumBody::from_stream(pieces))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_be_slow_if_it_is_small_or_keeps_its_rate() {
        let bytes = trickle(29, 1, Duration::from_secs(1)).read(1000).await.unwrap();
        assert_eq!(bytes.len(), 29);
        let bytes = trickle(100, 5000, Duration::from_secs(1)).read(1 << 20).await.unwrap();
        assert_eq!(bytes.len(), 500_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_ends_after_its_time() {
        let begun = Instant::now();
        let problem = trickle(1000, 1, Duration::from_secs(1)).read(1000).await.unwrap_err();
        assert_eq!(problem.kind(), Kind::TooSlow);
        assert!(begun.elapsed() <= Duration::from_secs(31), "{:?}", begun.elapsed());
        let problem = trickle(1000, 3000, Duration::from_secs(1)).read(1 << 22).await.unwrap_err();
        assert_eq!(problem.kind(), Kind::TooSlow);
    }

    #[tokio::test]
    async fn what_is_longer_than_the_limit_is_refused() {
        assert_eq!(Body::of("12345").read(5).await.unwrap(), "12345");
        assert_eq!(Body::of("123456").read(5).await.unwrap_err().kind(), Kind::TooLarge);
        let chunked = trickle(6, 1, Duration::ZERO).read(5).await.unwrap_err();
        assert_eq!(chunked.kind(), Kind::TooLarge);
    }
}
