//! Token buckets: a rate per second, and what was not used is kept for a second.
//!
//! A bucket is one moment: when it would be full again if nothing more were taken.
//! Taking moves the moment on, also beyond what the bucket holds, and returns when the
//! taker may go on. So a bucket never has to be filled, and needs no timer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::TenantQuota;
use event_host_core::clock::LONGEST_WAIT;
use event_host_core::handler::Usage;

/// For how long unused tokens are kept.
const BURST: Duration = Duration::from_secs(1);

/// One rate.
#[derive(Debug, Clone)]
struct Bucket {
    /// How long one token takes to come back.
    token: Duration,
    /// How much the bucket holds, as the time in which that comes back.
    burst: Duration,
    full_at: Instant,
}

impl Bucket {
    /// A full bucket. `smallest` is the least that is taken at once, in tokens: it
    /// always fits.
    fn new(rate: f64, smallest: f64, now: Instant) -> Self {
        let token = scaled(1.0 / rate);
        Self { token, burst: BURST.max(times(token, smallest)), full_at: now }
    }

    /// Takes tokens; returns when they are there.
    fn take(&mut self, tokens: f64, now: Instant) -> Instant {
        let full_in = self.full_in(now).saturating_add(times(self.token, tokens)).min(LONGEST_WAIT);
        self.full_at = now + full_in;
        self.debt_paid_at(now)
    }

    /// Puts tokens back that were taken and not used.
    fn refund(&mut self, tokens: f64, now: Instant) {
        self.full_at = now + self.full_in(now).saturating_sub(times(self.token, tokens));
    }

    /// When no debt is left.
    fn debt_paid_at(&self, now: Instant) -> Instant {
        now + self.full_in(now).saturating_sub(self.burst)
    }

    /// At most [`LONGEST_WAIT`], so that the clock can tell it.
    fn full_in(&self, now: Instant) -> Duration {
        self.full_at.saturating_duration_since(now)
    }
}

/// A number of seconds; saturates at [`LONGEST_WAIT`].
fn scaled(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT)
}

fn times(token: Duration, tokens: f64) -> Duration {
    scaled(token.as_secs_f64() * tokens)
}

/// The rates of one tenant.
#[derive(Debug, Default)]
pub(super) struct Rates {
    limited: AtomicBool,
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    /// Attempts.
    events: Option<Bucket>,
    /// Seconds of CPU.
    cpu: Option<Bucket>,
    /// Events that were emitted.
    emits: Option<Bucket>,
    /// Their bytes.
    emit_bytes: Option<Bucket>,
    /// HTTP requests.
    http_requests: Option<Bucket>,
    /// Lines that were logged.
    log_lines: Option<Bucket>,
}

impl Buckets {
    /// The buckets that an attempt is charged to after it has run.
    fn debts(&self) -> [&Option<Bucket>; 5] {
        [&self.cpu, &self.emits, &self.emit_bytes, &self.http_requests, &self.log_lines]
    }
}

impl Rates {
    /// Sets the rates. What was used before stays used.
    pub(super) fn set(&self, quota: &TenantQuota) {
        let now = Instant::now();
        let mut buckets = self.lock();
        let renewed = |old: &Option<Bucket>, rate: Option<f64>, smallest| {
            let new = Bucket::new(rate?, smallest, now);
            Some(Bucket { full_at: old.as_ref().map_or(now, |old| old.full_at), ..new })
        };
        buckets.events = renewed(&buckets.events, quota.events_per_second, 1.0);
        buckets.cpu = renewed(&buckets.cpu, quota.cpu, 0.0);
        buckets.emits = renewed(&buckets.emits, quota.emits_per_second, 0.0);
        buckets.emit_bytes = renewed(&buckets.emit_bytes, quota.emit_bytes_per_second, 0.0);
        let requests = quota.http_requests_per_second;
        buckets.http_requests = renewed(&buckets.http_requests, requests, 0.0);
        buckets.log_lines = renewed(&buckets.log_lines, quota.log_lines_per_second, 0.0);
        let limited = buckets.events.is_some() || buckets.debts().iter().any(|debt| debt.is_some());
        // A task that misses the change begins one attempt more or less.
        self.limited.store(limited, Ordering::Relaxed);
    }

    /// Whether there is any rate.
    pub(super) fn are_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    /// Whether CPU is counted.
    pub(super) fn count_cpu(&self) -> bool {
        self.are_limited() && self.lock().cpu.is_some()
    }

    /// Charges one attempt; returns when it may begin, by the attempts per second alone.
    pub(super) fn take_event(&self, now: Instant) -> Instant {
        self.take_events(1, now)
    }

    /// Charges `events` attempts at once; returns when they may begin.
    pub(super) fn take_events(&self, events: usize, now: Instant) -> Instant {
        self.lock().events.as_mut().map_or(now, |bucket| bucket.take(events as f64, now))
    }

    /// Refunds an attempt that did not begin.
    pub(super) fn refund_event(&self) {
        if let Some(bucket) = &mut self.lock().events {
            bucket.refund(1.0, Instant::now());
        }
    }

    /// When everything that attempts used beyond the rates is paid back.
    pub(super) fn debts_paid_at(&self, now: Instant) -> Instant {
        let buckets = self.lock();
        let debts = buckets.debts().into_iter().flatten();
        debts.map(|bucket| bucket.debt_paid_at(now)).max().unwrap_or(now)
    }

    /// Charges everything that an attempt used except its CPU time.
    pub(super) fn charge(&self, usage: &Usage) {
        let now = Instant::now();
        let mut buckets = self.lock();
        let Buckets { emits, emit_bytes, http_requests, log_lines, .. } = &mut *buckets;
        for (bucket, used) in [
            (emits, usage.emits as f64),
            (emit_bytes, usage.emit_bytes as f64),
            (http_requests, usage.http_requests as f64),
            (log_lines, f64::from(usage.log_lines)),
        ] {
            if let Some(bucket) = bucket {
                bucket.take(used, now);
            }
        }
    }

    /// Charges CPU time.
    pub(super) fn charge_cpu(&self, used: Duration) {
        if let Some(bucket) = &mut self.lock().cpu {
            bucket.take(used.as_secs_f64(), Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        // Each bucket is replaced whole.
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_seconds_worth_goes_at_once_and_the_rest_at_the_rate() {
        let now = Instant::now();
        let mut bucket = Bucket::new(10.0, 1.0, now);
        let waits: Vec<Duration> = (0..13).map(|_| bucket.take(1.0, now) - now).collect();
        assert_eq!(waits[..10], [Duration::ZERO; 10]);
        assert_eq!(waits[10..], [ms(100), ms(200), ms(300)]);
        // What is given back is there for the next.
        bucket.refund(1.0, now);
        assert_eq!(bucket.take(1.0, now) - now, ms(300));
        // Never more than a second's worth, however long nothing was taken.
        let later = now + Duration::from_secs(3600);
        let free = (0..100).filter(|_| bucket.take(1.0, later) == later).count();
        assert_eq!(free, 10);
    }

    #[test]
    fn a_rate_below_one_still_lets_one_through_at_a_time() {
        let now = Instant::now();
        let mut bucket = Bucket::new(0.5, 1.0, now);
        assert_eq!(bucket.take(1.0, now), now);
        assert_eq!(bucket.take(1.0, now) - now, ms(2_000));
    }

    #[test]
    fn what_was_used_too_much_is_waited_for() {
        let now = Instant::now();
        let mut bucket = Bucket::new(0.5, 0.0, now);
        assert_eq!(bucket.take(0.5, now), now, "a second's worth is there");
        assert_eq!(bucket.take(2.0, now) - now, ms(4_000));
        assert_eq!(bucket.debt_paid_at(now + ms(3_000)), now + ms(4_000));
        assert_eq!(bucket.debt_paid_at(now + ms(5_000)), now + ms(5_000));
    }

    proptest! {
        /// Whatever is taken and whenever: never more goes in any time than the
        /// rate and one burst allow, and no arithmetic breaks.
        #[test]
        fn no_more_goes_than_the_rate_and_one_burst(
            rate in prop_oneof![0.001..1_000.0_f64, Just(0.001), Just(1e9)],
            steps in proptest::collection::vec((0..5_000_u64, 1..4_u32), 1..60),
        ) {
            let begin = Instant::now();
            let (mut now, mut bucket) = (begin, Bucket::new(rate, 1.0, begin));
            let (mut gone, mut last) = (0_u32, begin);
            for (pause, taken) in steps {
                now += ms(pause);
                for _ in 0..taken {
                    last = bucket.take(1.0, now).max(last);
                    gone += 1;
                }
            }
            let allowed = (last - begin).as_secs_f64() * rate + rate.max(1.0);
            prop_assert!(f64::from(gone) <= allowed * 1.000_1 + 0.000_1, "{gone} of {allowed}");
        }
    }

    #[test]
    fn a_debt_of_ages_saturates() {
        let now = Instant::now();
        let mut bucket = Bucket::new(0.001, 0.0, now);
        for _ in 0..3 {
            bucket.take(f64::MAX, now);
        }
        assert!(bucket.debt_paid_at(now) <= now + LONGEST_WAIT);
    }
}
