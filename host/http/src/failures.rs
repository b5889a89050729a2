//! Failed authentications: how many an address may have, and how often they are logged.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::peer::Peer;

/// So many failures an address has at once before it has to wait.
const BURST: f64 = 10.0;

/// In this time an address that failed gets all of them back.
const REFILL: Duration = Duration::from_secs(60);

/// So many addresses are remembered. Beyond it the one whose last failure is longest ago
/// is forgotten: many addresses are worth more to an attacker than many tries.
const MOST: usize = 10_000;

/// Failures are logged once in this time, with how many there were.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The failures of every address.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What each has left, and when.
    left: HashMap<Peer, (f64, Instant)>,
    logged: Option<Instant>,
    unlogged: u64,
}

impl Failures {
    /// How long this address must wait, if it failed too often.
    pub(crate) fn wait(&self, peer: Peer) -> Option<Duration> {
        let left = self.state().left_of(peer, Instant::now());
        (left < 1.0).then(|| REFILL.mul_f64((1.0 - left) / BURST))
    }

    /// Counts a failure of this address.
    pub(crate) fn count(&self, peer: Peer, why: &str) {
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        if self.left.len() > MOST
            && let Some(oldest) = self.left.iter().min_by_key(|(_, (_, at))| *at)
        {
            let oldest = *oldest.0;
            self.left.remove(&oldest);
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
            failures.count(one, "unknown token");
        }
        let wait = failures.wait(one).unwrap();
        assert!(wait <= Duration::from_secs(6), "{wait:?}");
        assert_eq!(failures.wait(other), None);
        tokio::time::advance(wait).await;
        assert_eq!(failures.wait(one), None, "the wait that was told suffices");
        failures.count(one, "unknown token");
        assert!(failures.wait(one).is_some());
    }

    #[test]
    fn no_more_addresses_are_remembered_than_the_most() {
        let failures = Failures::default();
        for n in 0..(MOST as u32 + 5) {
            failures.count(Peer::Address(n.to_be_bytes().into()), "unknown token");
        }
        assert_eq!(failures.state().left.len(), MOST);
    }
}
