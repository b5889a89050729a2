//! What a group is, as its settings say.

use std::time::Duration;

use crate::breaker::BreakerSettings;
use crate::ordering::{CallBatching, Ordering};
use event_host_core::event::{GroupName, Partition, Tenant};
use event_host_core::retry::RetryPolicy;
use event_host_core::subscription::Subscription;

/// How large a settlement gets, and how long it is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSettings {
    /// Maximum number of events in a settlement. At least 1.
    pub max_events: usize,
    /// How long a done event waits for its settlement at most.
    pub max_time: Duration,
    /// Maximum number of events in one call of a handler that takes batches; [`CALL_SIZE`]
    /// where it is `None`.
    pub size: Option<usize>,
    /// How long an event waits for others that go into the same call.
    pub wait: Duration,
}

/// Default number of events in one call of a handler that takes batches.
pub const CALL_SIZE: usize = 100;

impl Default for BatchSettings {
    fn default() -> Self {
        let max_time = Duration::from_millis(500);
        Self { max_events: 1_000, max_time, size: None, wait: Duration::ZERO }
    }
}

impl BatchSettings {
    /// The batching of the calls of a handler that takes batches.
    #[must_use]
    pub fn call_batching(&self) -> CallBatching {
        let size = self.size.unwrap_or(CALL_SIZE).min(self.max_events).max(1);
        CallBatching { max_size: size, linger: self.wait }
    }
}

/// What a group is, for delivery.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSettings {
    /// Its name, or that of its partition.
    pub name: GroupName,
    /// Which part of its events this is about; `None` for all.
    pub partition: Option<Partition>,
    /// Whose events it receives.
    pub tenant: Tenant,
    /// Which of them.
    pub subscription: Subscription,
    /// In which order.
    pub ordering: Ordering,
    /// Attempts at once. At least 1; 1 where the order is total.
    pub concurrency: usize,
    /// Maximum number of events that wait for their next attempt, or behind one that does,
    /// while others pass. At this number the group reads no further.
    pub max_parked: usize,
    /// Transactions that have been about to publish for longer than this are not
    /// waited for; `None` where all are.
    pub overtake: Option<Duration>,
    /// When to try again, and when to give up.
    pub retry: RetryPolicy,
    /// How large a batch gets.
    pub batch: BatchSettings,
    /// When it trips, because the handler fails everything.
    pub breaker: BreakerSettings,
}

/// The default of [`GroupSettings::max_parked`]: enough for a few keys that fail for hours,
/// little enough for a new leader to read at once.
pub const DEFAULT_MAX_PARKED: usize = 10_000;

impl GroupSettings {
    /// A group that receives every event of its tenant, in order, with the default of every
    /// other setting.
    #[must_use]
    pub fn new(name: GroupName, tenant: Tenant) -> Self {
        let ordering = Ordering::default();
        Self {
            name,
            partition: None,
            tenant,
            subscription: Subscription::all(),
            ordering,
            concurrency: ordering.default_concurrency(),
            max_parked: DEFAULT_MAX_PARKED,
            overtake: None,
            retry: RetryPolicy::default(),
            batch: BatchSettings::default(),
            breaker: BreakerSettings::default(),
        }
    }

    /// The group, whose name its handler knows and its state has, whichever part of
    /// it this is about.
    #[must_use]
    pub fn group(&self) -> GroupName {
        self.name.group()
    }
}
