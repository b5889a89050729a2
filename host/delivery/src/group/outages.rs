//! Operations that do not work at present: the leader tries again after a growing delay, and
//! logs each reason once.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::{debug, error, info};

use event_host_core::event::{Attempt, GroupName};
use event_host_core::repeats::Repeats;
use event_host_core::retry::RetryPolicy;
use event_host_core::troubles::Troubles;

/// An operation that a leader repeats until it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    RecordWork,
    RecordAttempt,
    Run,
    Prepare,
    Settle,
    Trip,
    Pause,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read the log",
            Self::RecordWork => "record the begin of work",
            Self::RecordAttempt => "record the begin of an attempt",
            Self::Run => "run the handler",
            Self::Prepare => "load the component that a replay names",
            Self::Settle => "settle",
            Self::Trip => "record that the group tripped",
            Self::Pause => "pause",
        })
    }
}

impl Operation {
    /// All that there are.
    const ALL: [Self; 8] = [
        Self::Read,
        Self::RecordWork,
        Self::RecordAttempt,
        Self::Run,
        Self::Prepare,
        Self::Settle,
        Self::Trip,
        Self::Pause,
    ];

    /// How many there are.
    const COUNT: usize = Self::ALL.len();
}

/// The outages of a leader. Each ends when the same operation works again, and all end with
/// the leadership.
#[derive(Debug)]
pub(super) struct Outages {
    group: GroupName,
    /// Where all of the host's are told of.
    troubles: Troubles,
    /// How often in a row each operation failed.
    times: [AtomicU32; Operation::COUNT],
    /// Why not.
    reasons: Mutex<[Repeats; Operation::COUNT]>,
}

impl Outages {
    /// None so far.
    pub(super) fn of(group: &GroupName, troubles: &Troubles) -> Self {
        Self {
            group: group.clone(),
            troubles: troubles.clone(),
            times: Default::default(),
            reasons: Mutex::default(),
        }
    }

    /// What `status` shows.
    fn what(&self, operation: Operation) -> String {
        format!("group `{}` cannot {operation}", self.group)
    }

    /// Records a failure, logs it unless its reason was logged before, and returns how long
    /// to wait.
    pub(super) fn failed(
        &self,
        group: &GroupName,
        operation: Operation,
        why: &dyn fmt::Display,
    ) -> Duration {
        let before = self.times[operation as usize].fetch_add(1, Ordering::Relaxed);
        self.troubles.set(&self.what(operation), why);
        if self.is_news(operation, why) {
            error!(%group, "cannot {operation}: {why}; trying again, no attempt is counted");
        } else {
            debug!(%group, "still cannot {operation}: {why}");
        }
        let policy = RetryPolicy {
            max_attempts: u32::MAX,
            initial: Duration::from_millis(50),
            max: Duration::from_secs(5),
            ..RetryPolicy::default()
        };
        policy.delay(Attempt(before.saturating_add(1)), None, fastrand::f64())
    }

    fn is_news(&self, operation: Operation, why: &dyn fmt::Display) -> bool {
        // Each change of it is whole, so a poisoned lock is fine.
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.get_mut(operation as usize).is_none_or(|reasons| reasons.is_news(why))
    }

    /// Whether the operation failed the last time.
    pub(super) fn is_failing(&self, operation: Operation) -> bool {
        self.times[operation as usize].load(Ordering::Relaxed) > 0
    }

    /// Records that the operation worked.
    pub(super) fn recovered(&self, group: &GroupName, operation: Operation) {
        if self.is_failing(operation) {
            self.times[operation as usize].store(0, Ordering::Relaxed);
            self.troubles.clear(&self.what(operation));
            let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(reasons) = reasons.get_mut(operation as usize) {
                reasons.over();
            }
            info!(%group, "can {operation} again");
        }
    }
}

impl Drop for Outages {
    fn drop(&mut self) {
        for operation in Operation::ALL {
            if self.is_failing(operation) {
                self.troubles.clear(&self.what(operation));
            }
        }
    }
}
