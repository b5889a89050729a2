//! Failed authentications: how many an address may have, and how often they are logged.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use event_host_metrics::HttpMetrics;

use crate::peer::Peer;

/// Number of failures that an address may have at once before it has to wait.
const BURST: f64 = 10.0;

/// In this time an address that failed gets all of them back.
const REFILL: Duration = Duration::from_secs(60);

/// Maximum number of addresses that are remembered. Beyond it the tenth whose last failures are longest ago
/// is forgotten, at once: whoever has many addresses must not make each request wait.
const MOST: usize = 10_000;

/// Failures are logged once in this time, with how many there were.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The failures of every address.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    state: Mutex<State>,
    metrics: HttpMetrics,
}

#[derive(Debug, Default)]
struct State {
    /// What each has left, and when.
    left: HashMap<Peer, (f64, Instant)>,
    logged: Option<Instant>,
    unlogged: u64,
}

impl Failures {
    pub(crate) fn new(metrics: HttpMetrics) -> Self {
        Self { state: Mutex::default(), metrics }
    }

    /// What the answers to requests are measured with.
    pub(crate) fn metrics(&self) -> &HttpMetrics {
        &self.metrics
    }

    /// Counts a refusal of somebody who is known, and may not.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.metrics.auth_failures(reason).add(1);
    }

    /// How long this address must wait, if it failed too often.
    pub(crate) fn wait(&self, peer: Peer) -> Option<Duration> {
        let left = self.state().left_of(peer, Instant::now());
        (left < 1.0).then(|| REFILL.mul_f64((1.0 - left) / BURST))
    }

    /// Counts a failure of this address. `reason` is the metric's word for it.
    pub(crate) fn count(&self, peer: Peer, reason: &'static str, why: &str) {
        self.refused(reason);
        let now = Instant::now();
        let mut state = self.state();
        let left = state.left_of(peer, now) - 1.0;
        state.left.insert(peer.counted(), (left.max(0.0), now));
        state.forget();
        state.unlogged += 1;
        if state.logged.is_none_or(|logged| now.duration_since(logged) >= LOG_EVERY) {
            warn!(%peer, failures = state.unlogged, "authentication failed: {why}");
            state.logged = Some(now);
            state.unlogged = 0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of it is whole, even if the thread panicked after it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn left_of(&self, peer: Peer, now: Instant) -> f64 {
        self.left.get(&peer.counted()).map_or(BURST, |(left, at)| {
            let back = now.duration_since(*at).as_secs_f64() / REFILL.as_secs_f64() * BURST;
            (left + back).min(BURST)
        })
    }

    fn forget(&mut self) {
        if self.left.len() > MOST {
            let mut ages: Vec<Instant> = self.left.values().map(|(_, at)| *at).collect();
            let oldest = *ages.select_nth_unstable(MOST / 10).1;
            self.left.retain(|_, (_, at)| *at > oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ten_failures_a_minute_and_each_address_by_itself() {
        let failures = Failures::default();
        let [one, other] = [1, 2].map(|n| Peer::Address([192, 0, 2, n].into()));
        for _ in 0..10 {
            assert_eq!(failures.wait(one), None);
            failures.count(one, "unknown", "unknown token");
        }
        let wait = failures.wait(one).unwrap();
        assert!(wait <= Duration::from_secs(6), "{wait:?}");
        assert_eq!(failures.wait(other), None);
        tokio::time::advance(wait).await;
        assert_eq!(failures.wait(one), None, "the wait that was told suffices");
        failures.count(one, "unknown", "unknown token");
        assert!(failures.wait(one).is_some());
    }

    #[test]
    fn no_more_addresses_are_remembered_than_the_most() {
        let failures = Failures::default();
        for n in 0..(MOST as u32 + 5) {
            failures.count(Peer::Address(n.to_be_bytes().into()), "unknown", "unknown token");
        }
        let left = failures.state().left.len();
        assert!((MOST / 2..=MOST).contains(&left), "{left}");
    }
}
