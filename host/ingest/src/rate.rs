//! Rates in events a second: of all senders, of a token, a source or a tenant.
//!
//! A bucket keeps what was not used for one second, and one event in any case. A request
//! takes from each of its buckets or from none. One that is larger than a bucket passes when
//! the bucket is full, and those after it wait the longer.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use event_host_core::event::Tenant;
use tokio::time::Instant;

use crate::refusal::{Reason, Refusal};

/// Whose rate it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RateOf {
    /// That of all senders together.
    All,
    /// That of a token, by its name.
    Token(String),
    /// That of a source, by its name.
    Source(String),
    /// That of a tenant.
    Tenant(Tenant),
}

impl RateOf {
    fn name(&self) -> String {
        match self {
            Self::All => "all senders together".to_owned(),
            Self::Token(name) => format!("token `{name}`"),
            Self::Source(name) => format!("source `{name}`"),
            Self::Tenant(name) => format!("tenant `{name}`"),
        }
    }
}

/// A rate that a request is subject to.
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    /// Whose.
    pub of: RateOf,
    /// Events a second: above 0.
    pub per_second: f64,
}

/// For how long unused tokens are kept.
const BURST: Duration = Duration::from_secs(1);

/// The longest wait that is told.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3_600);

/// The buckets, each by whose it is: by when it would be full again.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    full_at: Mutex<HashMap<RateOf, Instant>>,
}

impl Rates {
    /// Takes so many events from each, or from none.
    pub(crate) fn take(&self, rates: &[Rate], events: usize) -> Result<(), Refusal> {
        if rates.is_empty() || events == 0 {
            return Ok(());
        }
        let now = Instant::now();
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = rates
            .iter()
            .filter_map(|rate| {
                let full_in = full_at.get(&rate.of).map(|at| at.saturating_duration_since(now));
                // What is to be there: all that it takes, or all that the bucket holds.
                let burst = BURST.max(time_for(1, rate.per_second));
                let needed = time_for(events, rate.per_second).min(burst);
                let wait = (full_in.unwrap_or_default() + needed).saturating_sub(burst);
                (!wait.is_zero()).then_some((wait, rate))
            })
            .max_by_key(|(wait, _)| *wait);
        if let Some((wait, rate)) = longest {
            return Err(Refusal::new(
                Reason::Rate,
                format!(
                    "above {} events a second of {}: wait for {} s, then send it again",
                    rate.per_second,
                    rate.of.name(),
                    wait.as_secs_f64().ceil()
                ),
            )
            .retry_after(wait));
        }
        for rate in rates {
            let at = full_at.entry(rate.of.clone()).or_insert(now);
            *at = (*at).max(now) + time_for(events, rate.per_second).min(LONGEST_WAIT);
        }
        Ok(())
    }
}

/// In which time so many events come back.
fn time_for(events: usize, per_second: f64) -> Duration {
    let seconds = events as f64 / per_second;
    Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(of: RateOf, per_second: f64) -> Rate {
        Rate { of, per_second }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_told_suffices() {
        let rates = Rates::default();
        let all = [rate(RateOf::All, 10.0)];
        rates.take(&all, 10).unwrap();
        for events in [1, 3, 10, 25, 7] {
            let refused = rates.take(&all, events).unwrap_err();
            assert_eq!(refused.reason, Reason::Rate);
            let wait = refused.retry_after.unwrap();
            tokio::time::advance(wait - Duration::from_millis(2)).await;
            rates.take(&all, events).unwrap_err();
            tokio::time::advance(Duration::from_millis(2)).await;
            rates.take(&all, events).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_takes_from_each_of_its_buckets_or_from_none() {
        let rates = Rates::default();
        let token = rate(RateOf::Token("a".to_owned()), 5.0);
        let tenant = rate(RateOf::Tenant("acme".parse().unwrap()), 100.0);
        let both = [token.clone(), tenant.clone()];
        rates.take(&both, 5).unwrap();
        for _ in 0..50 {
            let refused = rates.take(&both, 5).unwrap_err();
            assert!(refused.detail.contains("token `a`"), "{refused}");
        }
        rates.take(&[tenant], 95).unwrap();
    }
}
