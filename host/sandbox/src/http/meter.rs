//! What one attempt may send and receive, counted while it does.
//!
//! Requests run beside the guest, so a limit that is hit cannot end the attempt
//! from where it is noticed. It is kept here, ends every request of the attempt,
//! and ends the attempt when it is next asked for ([`Meter::abort`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::ending::{Abort, size};
use crate::settings::{Limits, names};
use event_host_core::failure::FailureKind;

/// The requests of one attempt.
#[derive(Debug)]
pub(super) struct Meter {
    most_requests: usize,
    most_bytes: usize,
    /// How long one request may take, its answer's body included.
    pub(super) timeout: Duration,
    requests: AtomicUsize,
    bytes: AtomicUsize,
    abort: OnceLock<Abort>,
    /// Cancelled when no request may go on.
    pub(super) end: CancellationToken,
}

// Counters of one attempt: nothing is ordered by them.
impl Meter {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            most_requests: limits.http_requests,
            most_bytes: limits.http_bytes,
            timeout: limits.http_timeout,
            requests: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            abort: OnceLock::new(),
            end: CancellationToken::new(),
        }
    }

    /// Counts a request. False if it may not be made.
    pub(super) fn request(&self) -> bool {
        let fits = self.requests.fetch_add(1, Ordering::Relaxed) < self.most_requests;
        if !fits {
            self.exceed(
                FailureKind::HttpRequestLimit,
                &format!(
                    "wanted more than {} HTTP requests, {}",
                    self.most_requests,
                    names::HTTP_REQUESTS
                ),
            );
        }
        fits
    }

    /// How many requests there were.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Counts bytes of a head or a body. False if they are too many.
    pub(super) fn bytes(&self, count: usize) -> bool {
        let before = self.bytes.fetch_add(count, Ordering::Relaxed);
        let fits = before.saturating_add(count) <= self.most_bytes;
        if !fits {
            self.exceed(
                FailureKind::HttpByteLimit,
                &format!(
                    "wanted to send and receive more than {} by HTTP, {}",
                    size(self.most_bytes),
                    names::HTTP_BYTES
                ),
            );
        }
        fits
    }

    /// How many bytes were counted.
    #[cfg(test)]
    pub(super) fn counted(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Tells that a request took too long.
    pub(super) fn timed_out(&self, target: &str) {
        self.exceed(
            FailureKind::HttpTimeout,
            &format!(
                "the request to {target} took longer than {}, {:?}",
                names::HTTP_TIMEOUT,
                self.timeout
            ),
        );
    }

    /// Tells that a request waited too long for one of the handler's own connections, or
    /// of its tenant's.
    pub(super) fn waited(&self, target: &str, what: &str) {
        self.exceed(
            FailureKind::HttpTimeout,
            &format!(
                "the request to {target} waited longer than {}, {:?}, for {what}",
                names::HTTP_TIMEOUT,
                self.timeout
            ),
        );
    }

    /// Tells that the host cannot do what it should, whatever the handler does.
    pub(super) fn not_run(&self, why: String) {
        self.end_with(Abort::NotRun(why));
    }

    fn exceed(&self, kind: FailureKind, text: &str) {
        self.end_with(Abort::Limit { kind, text: text.to_owned() });
    }

    fn end_with(&self, abort: Abort) {
        // The first one is the one that is told.
        self.abort.get_or_init(|| abort);
        self.end.cancel();
    }

    /// Why a request ended the attempt, if one did.
    pub(super) fn abort(&self) -> Option<&Abort> {
        self.abort.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter() -> Meter {
        Meter::new(&Limits { http_requests: 2, http_bytes: 100, ..Limits::default() })
    }

    #[test]
    fn the_first_limit_that_is_hit_is_told_and_ends_every_request() {
        let meter = meter();
        assert!(meter.request() && meter.request() && meter.bytes(100));
        assert!(meter.abort().is_none() && !meter.end.is_cancelled());
        assert!(!meter.request());
        assert!(!meter.bytes(1));
        meter.timed_out("http://a");
        let over = meter.abort().unwrap();
        assert!(matches!(over, Abort::Limit { kind: FailureKind::HttpRequestLimit, .. }), "{over}");
        assert_eq!(over.to_string(), "wanted more than 2 HTTP requests, limits.http_requests");
        assert!(meter.end.is_cancelled());
    }

    #[test]
    fn bytes_of_every_request_count_together() {
        let meter = meter();
        assert!(meter.bytes(60) && !meter.bytes(41));
        assert_eq!(
            meter.abort().unwrap().to_string(),
            "wanted to send and receive more than 100 B by HTTP, limits.http_bytes"
        );
    }
}
